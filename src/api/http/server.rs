//! The routes, and what happens to every request: checks before, protective headers and the audit
//! log after.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::access::{Access, Peer, Site, authenticate, check_site};
use super::answer::{Answer, HttpError, plain, protect};
use super::hook;
use super::listener::Connection;
use super::metrics::{self, Highstates};
use super::page;
use super::salt_api;
use super::v1;
use crate::api::budget::{Budget, BudgetLimits, Budgets, Client};
use crate::api::call::Ctx;
use crate::base::limits::{
    HEALTH_STUCK, HOOK_BYTES_MAX, HOOK_CALLS_MAX, HOOK_CALLS_OF_ONE, HTTP_ANSWER_BYTES,
    HTTP_ANSWER_BYTES_OF_ONE, HTTP_ANSWER_RESERVE, HTTP_BODY_TIMEOUT, HTTP_CALLS_MAX,
    HTTP_CALLS_OF_ONE, HTTP_LOG_INTERVAL, HTTP_PEERS_OF_ONE, HTTP_PROCESSOR_TIME, HTTP_STREAMS_MAX,
    HTTP_STREAMS_OF_ONE, METRICS_ANSWER_BYTES, METRICS_CALLS_MAX, METRICS_CALLS_OF_ONE,
};
use crate::base::log_once::LogOnce;
use crate::base::metrics::Counter;
use crate::config::HttpConfig;
use crate::wire::call::CallError;

/// The budget of a client for reading.
pub(super) const BUDGET: BudgetLimits = BudgetLimits {
    workers: (HTTP_CALLS_OF_ONE, HTTP_CALLS_MAX),
    bytes: (HTTP_ANSWER_BYTES_OF_ONE, HTTP_ANSWER_BYTES),
    streams: (HTTP_STREAMS_OF_ONE, HTTP_STREAMS_MAX),
    connections: HTTP_PEERS_OF_ONE,
    processor_time: Some(HTTP_PROCESSOR_TIME),
    wait: HTTP_BODY_TIMEOUT,
};

/// State shared by all connections.
pub(super) struct HttpServer {
    pub(super) ctx: Arc<Ctx>,
    pub(super) config: HttpConfig,
    /// The budgets of tokens and users.
    budgets: Budgets,
    /// The budgets of `/metrics`, which no other request can use up.
    metrics: Budgets,
    /// The budgets of hooks, which wait for Salt's master.
    pub(super) hooks: Budgets,
    pub(super) pieces: v1::SharedPieces,
    pub(super) marks: v1::Marks,
    pub(super) attention: page::Attention,
    /// Turns true when the daemon stops.
    pub(super) stop: watch::Receiver<bool>,
    highstates: Option<Highstates>,
    logged: LogOnce<&'static str>,
}

/// The state of handlers.
pub(super) type Server = State<Arc<HttpServer>>;

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        self.answer()
    }
}

impl HttpServer {
    pub(super) fn new(ctx: Arc<Ctx>, config: &HttpConfig, stop: watch::Receiver<bool>) -> Self {
        Self {
            ctx,
            config: config.clone(),
            budgets: Budgets::new(BUDGET),
            metrics: Budgets::new(BudgetLimits {
                workers: (METRICS_CALLS_OF_ONE, METRICS_CALLS_MAX),
                // Half of the room, so that a scraper that does not read its answers leaves room
                // for another one.
                bytes: (METRICS_ANSWER_BYTES / 2, METRICS_ANSWER_BYTES),
                ..BUDGET
            }),
            hooks: Budgets::new(BudgetLimits {
                workers: (HOOK_CALLS_OF_ONE, HOOK_CALLS_MAX),
                // As above: half for one client.
                bytes: (HOOK_BYTES_MAX / 2, HOOK_BYTES_MAX),
                ..BUDGET
            }),
            pieces: v1::SharedPieces::default(),
            marks: v1::Marks::default(),
            attention: page::Attention::default(),
            stop,
            highstates: config.minion_metrics.then(Highstates::default),
            logged: LogOnce::every(HTTP_LOG_INTERVAL),
        }
    }

    /// Runs `work` on a thread for blocking work, within a client's budget.
    pub(super) async fn carry_out<T: Send + 'static>(
        &self,
        budget: &Budget,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HttpError> {
        let started = Instant::now();
        let done = budget.carry_out(work).await;
        self.ctx
            .metrics
            .distributions
            .answers
            .observe(started.elapsed());
        Ok(done?)
    }

    /// Reads a body of at most `max` bytes.
    pub(super) async fn body(&self, body: Body, max: usize) -> Result<Bytes, HttpError> {
        // The timeout is for the whole body: a peer that sends a byte at a time must not keep its
        // budget for longer.
        let read = timeout(HTTP_BODY_TIMEOUT, Limited::new(body, max).collect());

        match read.await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(HttpError::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "too_large",
                format!("the body has more than {max} bytes"),
            )),
            Ok(Err(error)) => Err(HttpError::bad(format!("the body ended early: {error}"))),
            Err(_) => Err(HttpError::new(
                StatusCode::REQUEST_TIMEOUT,
                "timeout",
                "the body did not arrive in time",
            )),
        }
    }

    fn check(&self, request: &Request, peer: Peer) -> Result<Checked, HttpError> {
        let site = check_site(
            peer,
            request.method(),
            request.uri(),
            request.headers(),
            &self.config.hosts,
        )?;

        // The answer to a link has no data, so no token is needed yet.
        if site == Site::Link {
            return Ok(Checked::Arrival);
        }

        authenticate(peer, request, &self.ctx, &self.budgets).map(Checked::Access)
    }

    /// Counts a rejected request, and logs one of each kind at an interval.
    fn count(&self, peer: Peer, request: &str, error: &HttpError) {
        let metrics = &self.ctx.metrics;
        let counter: &Counter = match (error.code, error.status) {
            ("cross_site", _) => &metrics.http_cross_site,
            (_, StatusCode::UNAUTHORIZED) => &metrics.http_unauthenticated,
            (_, StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS) => &metrics.http_denied,
            (_, status) if status.is_client_error() => &metrics.http_malformed,
            _ => &metrics.calls_failed,
        };
        counter.add(1);

        // The counter has every rejection. The log has one of each kind per interval, so that a
        // flood of bad requests does not fill the journal.
        if self.logged.is_due(error.code, self.ctx.clock.monotonic()) {
            let status = error.status.as_u16();
            tracing::warn!(%peer, request, status, error = error.message, "HTTP request rejected");
        }
    }
}

/// A request that passed the checks.
enum Checked {
    /// Rights of the request; `None` for a path that needs no token, without one.
    Access(Option<Access>),
    /// A visit of the page through a link on another site.
    Arrival,
}

/// The routes, except those of minions.
pub(super) fn routes(server: &Arc<HttpServer>) -> Router {
    Router::new()
        .route("/healthz", get(health))
        .route("/readyz", get(ready))
        .route("/metrics", get(scrape))
        .route("/hook/{*tag}", post(hook::receive))
        .merge(v1::routes())
        .merge(page::routes())
        .merge(salt_api::routes())
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(server.clone(), guard))
        .layer(map_response(protected))
        .with_state(server.clone())
}

/// An error in the extensions of a response, for [`guard`].
#[derive(Clone)]
struct Rejected(HttpError);

/// Checks a request before it reaches its handler.
async fn guard(State(server): Server, mut request: Request, next: Next) -> Response {
    server.ctx.metrics.http_requests.add(1);
    // The listener adds the connection to each request; without it there is no peer to check.
    let Some(connection) = request.extensions().get::<Arc<Connection>>().cloned() else {
        return HttpError::bad("no connection").answer();
    };
    let peer = connection.peer;

    // Formatted now, because the handler consumes the request.
    let line = format!(
        "{} {:.200}",
        request.method(),
        without_secrets(&request.uri().to_string())
    );
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);

    let access = match server.check(&request, peer) {
        Ok(Checked::Access(access)) => access,
        Ok(Checked::Arrival) => return page::arrival(request.uri()),
        Err(error) => {
            server.count(peer, &line, &error);
            return error.answer();
        }
    };
    if let Some(access) = &access {
        // Only now is the client known that the connection counts for.
        if !connection.claim(access) {
            let who = &access.name;
            let error = HttpError::new(
                StatusCode::TOO_MANY_REQUESTS,
                "busy",
                format!("{who} has {HTTP_PEERS_OF_ONE} connections, and no more are possible"),
            );
            server.count(peer, &line, &error);
            return error.answer();
        }

        // The client has proved who it is, so the connection is not closed to make room for others.
        if let Some(permit) = &connection.permit {
            permit.keep();
        }
    }

    let who = access
        .as_ref()
        .map(|access| (access.name.clone(), access.right.name()));
    request.extensions_mut().insert(access);

    // A handler puts its rejection into the extensions of its answer, so that all rejections are
    // counted here.
    let answer = next.run(request).await;

    if let Some(Rejected(error)) = answer.extensions().get() {
        server.count(peer, &line, error);
    }

    // Health checks and metrics without a token are not logged: they belong to no token, and they
    // come every few seconds.
    if let Some((who, right)) = who {
        let status = answer.status().as_u16();
        let bytes = axum::body::HttpBody::size_hint(answer.body()).exact();
        let action = if is_read { "read" } else { "change" };
        tracing::info!(target: "audit", action, who, right, %peer, request = line, status, bytes, "HTTP request");
    }
    answer
}

async fn protected(mut answer: Response) -> Response {
    protect(answer.headers_mut());
    answer
}

/// A line of the log without secrets of this daemon, which clients may put into an address.
fn without_secrets(line: &str) -> Cow<'_, str> {
    const STARTS: [&str; 3] = ["sct_", "scs_", "scl_"];
    // Nearly every line: no copy.
    if !STARTS.iter().any(|start| line.contains(start)) {
        return Cow::Borrowed(line);
    }

    let mut shown = line.to_owned();
    for start in STARTS {
        let mut parts = shown.split(start);
        let mut masked = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let rest = part
                // All characters that base64 can have, so that no part of a secret is left.
                .trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_');
            masked.push_str(start);
            masked.push_str("***");
            masked.push_str(rest);
        }
        shown = masked;
    }

    Cow::Owned(shown)
}

/// The response to a rejected request, which [`guard`] counts.
pub(super) fn rejected(error: HttpError) -> Response {
    let answer = error.answer();
    rejected_with(error, answer)
}

/// Like [`rejected`], with a response in another form.
pub(super) fn rejected_with(error: HttpError, mut answer: Answer) -> Response {
    answer.extensions_mut().insert(Rejected(error));
    answer
}

async fn unknown(request: Request) -> Response {
    rejected(HttpError::not_found(format!(
        "there is no {:.100}; docs/HTTP.md lists the paths",
        request.uri().path()
    )))
}

async fn wrong_method(request: Request) -> Response {
    let message = format!(
        "{} {:.100} is not possible",
        request.method(),
        request.uri().path()
    );
    rejected(HttpError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method",
        message,
    ))
}

fn text(status: StatusCode, lines: String) -> Answer {
    plain(status, "text/plain; charset=utf-8", lines.into())
}

/// `GET /healthz`: 200 while the appender shows signs of life, otherwise 503 with the reason.
async fn health(State(server): Server) -> Answer {
    let stuck = server.ctx.store.appender_seen_ago();
    if stuck < HEALTH_STUCK {
        return text(StatusCode::OK, "ok\n".to_owned());
    }
    let why = format!(
        "the appender is stuck for {} s, probably in disk I/O\n",
        stuck.as_secs()
    );
    text(StatusCode::SERVICE_UNAVAILABLE, why)
}

/// `GET /readyz`: 200 if the daemon accepts entries and reads its buses, otherwise 503 with the
/// reasons.
async fn ready(State(server): Server) -> Answer {
    let ctx = &server.ctx;
    let mut reasons = Vec::new();

    if let Some(why) = ctx.store.refusal() {
        reasons.push(format!("the store accepts no entries: {why}"));
    }

    for bus in ctx.buses.iter().map(crate::ingest::bus::BusMonitor::status) {
        if !bus.connected {
            reasons.push(format!("the bus {} is not connected", bus.path.display()));
        }
    }

    if reasons.is_empty() {
        return text(StatusCode::OK, "ready\n".to_owned());
    }
    text(StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n")
}

/// `GET /metrics`, within the budget that it shares with no other request.
async fn scrape(State(server): Server, Extension(access): Extension<Option<Access>>) -> Response {
    // A counter of all entries cannot be reduced to those that a token may read.
    if let Some(access) = &access
        && access.caller.limits.is_limited()
    {
        let why = format!(
            "{} is limited, and metrics cover all minions, tags and functions",
            access.name
        );
        return rejected(HttpError::forbidden(why));
    }

    // Prometheus on this machine may have no token: it shares the budget of all such peers.
    let client = match &access {
        Some(Access {
            token: Some(token), ..
        }) => Client::Token(token.name.clone()),
        Some(access) => Client::User(access.caller.uid),
        None => Client::Nobody,
    };

    // Room is reserved before the work, so that no page is made that could not be kept.
    let budget = server.metrics.of(client);
    let room = match budget.room(HTTP_ANSWER_RESERVE).await {
        Ok(room) => room,
        Err(error) => return rejected(error.into()),
    };

    let rendering = server.clone();
    let work = move || metrics::render(&rendering.ctx, rendering.highstates.as_ref());
    let page = match server.carry_out(&budget, work).await {
        Ok(Ok(page)) => page,
        Ok(Err(error)) => {
            tracing::error!(%error, "cannot read the metrics");
            return rejected(CallError::Internal(error.to_string()).into());
        }
        Err(error) => return rejected(error),
    };

    match room.fill(page.into_bytes()) {
        Ok(page) => plain(StatusCode::OK, metrics::CONTENT_TYPE, page),
        Err(error) => rejected(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_log_has_no_secret() {
        for (line, expected) in [
            ("/jobs?fun=state.*", "/jobs?fun=state.*"),
            ("/events?token=sct_Ab-9_x&x=1", "/events?token=sct_***&x=1"),
            ("/sign-in/scl_abc", "/sign-in/scl_***"),
            (
                "/?a=sct_1&b=scs_2&c=sct_sct_3",
                "/?a=sct_***&b=scs_***&c=sct_***sct_***",
            ),
        ] {
            assert_eq!(without_secrets(line), expected);
        }
    }
}
