//! What all requests share: budgets, bodies, pieces of streams, and the count of rejected requests.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::StatusCode;
use hyper::body::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::access::Peer;
use super::answer::{Answer, HttpError};
use super::attention::Attention;
use super::metrics::Highstates;
use super::stream::pieces::SharedPieces;
use super::stream::rate::Marks;
use crate::api::budget::{Budget, BudgetLimits, Budgets};
use crate::api::call::Ctx;
use crate::base::limits::{
    HOOK_BYTES_MAX, HOOK_CALLS_MAX, HOOK_CALLS_OF_ONE, HTTP_ANSWER_BYTES, HTTP_ANSWER_BYTES_OF_ONE,
    HTTP_BODY_TIMEOUT, HTTP_CALLS_MAX, HTTP_CALLS_OF_ONE, HTTP_LOG_INTERVAL, HTTP_PEERS_OF_ONE,
    HTTP_PROCESSOR_TIME, HTTP_STREAMS_MAX, HTTP_STREAMS_OF_ONE, METRICS_ANSWER_BYTES,
    METRICS_CALLS_MAX, METRICS_CALLS_OF_ONE,
};
use crate::base::log_once::LogOnce;
use crate::base::metrics::Counter;
use crate::config::HttpConfig;

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
    pub(super) budgets: Budgets,
    /// The budgets of `/metrics`, which no other request can use up.
    pub(super) metrics: Budgets,
    /// The budgets of hooks, which wait for Salt's master.
    pub(super) hooks: Budgets,
    pub(super) pieces: SharedPieces,
    pub(super) marks: Marks,
    pub(super) attention: Attention,
    /// Turns true when the daemon stops.
    pub(super) stop: watch::Receiver<bool>,
    pub(super) highstates: Option<Highstates>,
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
                // Half of the room: a scraper that does not read its responses leaves room for
                // another scraper.
                bytes: (METRICS_ANSWER_BYTES / 2, METRICS_ANSWER_BYTES),
                ..BUDGET
            }),
            hooks: Budgets::new(BudgetLimits {
                workers: (HOOK_CALLS_OF_ONE, HOOK_CALLS_MAX),
                // As above: half for one client.
                bytes: (HOOK_BYTES_MAX / 2, HOOK_BYTES_MAX),
                ..BUDGET
            }),
            pieces: SharedPieces::default(),
            marks: Marks::default(),
            attention: Attention::default(),
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
            .archive
            .metrics
            .distributions
            .responses
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
                format!("the body contains more than {max} bytes"),
            )),
            Ok(Err(error)) => Err(HttpError::bad(format!("the body ended early: {error}"))),
            Err(_) => Err(HttpError::new(
                StatusCode::REQUEST_TIMEOUT,
                "timeout",
                "the body did not arrive in time",
            )),
        }
    }

    /// Counts a rejected request, and logs one of each kind at an interval.
    pub(super) fn count(&self, peer: Peer, request: &str, error: &HttpError) {
        let metrics = &self.ctx.archive.metrics;
        let counter: &Counter = match (error.code, error.status) {
            ("cross_site", _) => &metrics.http_rejected_cross_site,
            (_, StatusCode::UNAUTHORIZED) => &metrics.http_rejected_unauthenticated,
            (_, StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS) => {
                &metrics.http_rejected_denied
            }
            (_, status) if status.is_client_error() => &metrics.http_rejected_malformed,
            _ => &metrics.calls_failed,
        };
        counter.add(1);

        // The counter counts every rejection. The log contains one of each kind per interval,
        // because a flood of bad requests must not fill the journal.
        if self
            .logged
            .is_due(error.code, self.ctx.archive.clock.monotonic())
        {
            let status = error.status.as_u16();
            tracing::warn!(%peer, request, status, error = error.message, "HTTP request rejected");
        }
    }
}

/// An error in the extensions of a response, for the guard of the routes.
#[derive(Clone)]
pub(super) struct Rejected(pub(super) HttpError);

/// The response to a rejected request, which the guard of the routes counts.
pub(super) fn rejected(error: HttpError) -> Response {
    let answer = error.answer();
    rejected_with(error, answer)
}

/// Like [`rejected`], with a response in another form.
pub(super) fn rejected_with(error: HttpError, mut answer: Answer) -> Response {
    answer.extensions_mut().insert(Rejected(error));
    answer
}
