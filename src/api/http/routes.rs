//! The routes, and what happens to every request: checks before, protective headers and the audit
//! log after.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, Request, State};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::Response;
use axum::routing::{get, post};
use hyper::{Method, StatusCode};

use super::access::{Access, Peer, Site, authenticate, check_site};
use super::answer::{Answer, HttpError, plain, protect};
use super::hook;
use super::listener::Connection;
use super::metrics;
use super::page;
use super::salt_api;
use super::server::{HttpServer, Rejected, Server, rejected};
use super::v1;
use crate::api::budget::Client;
use crate::base::limits::{HEALTH_STUCK, HTTP_ANSWER_RESERVE, HTTP_PEERS_OF_ONE};

/// A request that passed the checks.
enum Checked {
    /// Rights of the request; `None` for a path that needs no token, without one.
    Access(Option<Access>),
    /// A visit of the page through a link on another site.
    Arrival,
}

/// All routes except the routes for minions.
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

/// The checks of a request before its handler.
fn check(server: &HttpServer, request: &Request, peer: Peer) -> Result<Checked, HttpError> {
    let site = check_site(
        peer,
        request.method(),
        request.uri(),
        request.headers(),
        &server.config.hosts,
    )?;

    // The response to a link contains no data, therefore no token is needed yet.
    if site == Site::Link {
        return Ok(Checked::Arrival);
    }

    authenticate(peer, request, &server.ctx, &server.budgets).map(Checked::Access)
}

/// Checks a request before it reaches its handler.
async fn guard(State(server): Server, mut request: Request, next: Next) -> Response {
    server.ctx.archive.metrics.http_requests.add(1);
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

    let access = match check(&server, &request, peer) {
        Ok(Checked::Access(access)) => access,
        Ok(Checked::Arrival) => return page::arrival(request.uri()),
        Err(error) => {
            server.count(peer, &line, &error);
            let (method, uri, headers) = (request.method(), request.uri(), request.headers());
            if page::is_wanted(method, uri, headers) {
                let has_tls = server.ctx.sign_in.sessions.has_tls;
                return page::not_admitted(method, uri, headers, has_tls, error);
            }
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

    // A handler puts its rejection into the extensions of its response, and all rejections are
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
                // All base64 characters, because no part of a secret may be left.
                .trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_');
            masked.push_str(start);
            masked.push_str("***");
            masked.push_str(rest);
        }
        shown = masked;
    }

    Cow::Owned(shown)
}

/// A path without a route: a page for a browser, JSON for a program.
async fn unknown(
    State(server): Server,
    Extension(access): Extension<Option<Access>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Response {
    let path = request.uri().path();
    if page::is_wanted(request.method(), request.uri(), request.headers()) {
        let error = HttpError::not_found(format!("there is no view {path:.100}"));
        return page::failed(access.as_ref(), peer, server.ctx.archive.clock.now(), error);
    }
    rejected(HttpError::not_found(format!(
        "there is no {path:.100}; docs/HTTP.md lists the paths"
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

/// `GET /healthz`: 200 while the appender shows heartbeats, otherwise 503 with the reason.
async fn health(State(server): Server) -> Answer {
    let stuck = server.ctx.archive.store.appender_seen_ago();
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

    // Only what keeps events from being stored counts. `status` reports everything else.
    if let Some(why) = ctx.archive.store.refusal() {
        reasons.push(format!("the store accepts no entries: {why}"));
    }

    for bus in ctx
        .reacting
        .buses
        .iter()
        .map(crate::ingest::bus::BusMonitor::status)
    {
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

    // Prometheus on this host may have no token: it shares the budget of all such peers.
    let client = match &access {
        Some(Access {
            token: Some(token), ..
        }) => Client::Token(token.name.clone()),
        Some(access) => Client::User(access.caller.uid),
        None => Client::Nobody,
    };

    // Room is reserved before the work. Otherwise a page could be made and then not be kept.
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
            tracing::error!(%error, "cannot read the metrics, the scrape fails: run `saltcellar status`");
            return rejected(error.into());
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
