//! The requests of minions on other hosts, which sign their calls with their own Salt keys.
//!
//! `docs/WIRE.md` defines the format. Each connection gets a challenge. The signature of a batch
//! covers this challenge, an increasing number, the minion's clock, the hash of the payload, and
//! the daemon's certificate. Therefore an intercepted batch is invalid on every other connection, even
//! after a restart, without a record of earlier batches. A minion can store only its own returns;
//! the configuration defines its read access.
//!
//! # Invariant
//!
//! Before a valid signature, at most an envelope (1.4 KB) of a peer is kept in memory. Afterwards
//! memory for its bytes is reserved before they are read, and each minion has at most
//! [`HTTPS_BATCHES_OF_ONE`] batches in flight.
//!
//! [`HTTPS_BATCHES_OF_ONE`]: crate::base::limits::HTTPS_BATCHES_OF_ONE

mod batch;
mod keys;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, Request, State};
use axum::routing::{get, post};
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{self, HeaderValue};

pub(super) use self::batch::Minions;
use super::answer::{Answer, plain, status_of};
use super::listener::{Connection, SignedSession};
use crate::wire::call::{CallError, refusal_frame};
use crate::wire::msgpack::Writer;
use crate::wire::signed::{BATCH_PATH, HELLO_PATH, SIGNED_VERSION};

/// The routes of minions. A separate minion listener rejects all other paths in the same format.
pub(super) fn routes(minions: Arc<Minions>, alone: bool) -> Router {
    // Responses to other methods of these paths also have the format of minions.
    let routes = Router::new()
        .route(HELLO_PATH, get(hello).fallback(unknown))
        .route(BATCH_PATH, post(take_batch).fallback(unknown));

    let routes = if alone {
        routes.fallback(unknown)
    } else {
        routes
    };

    routes.with_state(minions)
}

async fn hello(
    State(minions): State<Arc<Minions>>,
    Extension(connection): Extension<Arc<Connection>>,
) -> Answer {
    // One challenge per connection: a second request for it must not invalidate the batches in
    // between.
    let session = connection.session.get_or_init(SignedSession::new);

    let mut w = Writer::new();
    w.map(3)
        .str("version")
        .uint(u64::from(SIGNED_VERSION))
        .str("challenge")
        .bin(session.challenge());
    w.str("time").int(minions.ctx.archive.clock.now().0);

    answer(StatusCode::OK, w.into_bytes().into())
}

async fn take_batch(
    State(minions): State<Arc<Minions>>,
    Extension(connection): Extension<Arc<Connection>>,
    request: Request,
) -> Answer {
    match minions.take_batch(&connection, request.into_body()).await {
        Ok(answers) => answer(StatusCode::OK, answers),
        Err(error) => rejected(&error),
    }
}

async fn unknown(State(minions): State<Arc<Minions>>, request: Request) -> Answer {
    minions.ctx.archive.metrics.https_rejected_malformed.add(1);
    rejected(&CallError::Protocol(format!(
        "{} {:.100} is unknown: minions send GET {HELLO_PATH}, then POST {BATCH_PATH}",
        request.method(),
        request.uri().path()
    )))
}

fn rejected(error: &CallError) -> Answer {
    let mut answer = answer(status_of(error), refusal_frame(None, error).into());
    // The rest of the request may still be in transit.
    answer
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

fn answer(status: StatusCode, body: Bytes) -> Answer {
    plain(status, "application/octet-stream", body)
}
