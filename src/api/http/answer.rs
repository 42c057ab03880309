//! Responses: complete bodies, errors with a stable code, and memory that is reserved until
//! the peer has read it.

use std::sync::Arc;

use axum::body::Body;
use hyper::body::Bytes;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::wire::call::CallError;
use crate::wire::msgpack::EncodeError;

/// Bytes per permit.
const PERMIT_BYTES: usize = 1024;

pub(super) type Answer = Response<Body>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HttpError {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    pub(super) message: String,
}

impl HttpError {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
        }
    }

    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// The response: `{"error": {"code": ..., "message": ...}}`.
    pub(super) fn answer(&self) -> Answer {
        let text = json!({ "error": { "code": self.code, "message": self.message } }).to_string();
        let mut answer = plain(self.status, "application/json", text.into());

        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer realm=\"saltcellar\"");
            answer
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, scheme);
        }
        // A budget in use, or a store that is busy, is free again within seconds: a client may
        // repeat the request soon.
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            answer
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }

        // The rest of a rejected request may still be in transit.
        answer
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("close"));

        answer
    }
}

impl From<CallError> for HttpError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Denied(message) => Self::forbidden(message),
            error => Self::new(status_of(&error), error.code(), error.to_string()),
        }
    }
}

/// The status code of an error.
pub(super) fn status_of(error: &CallError) -> StatusCode {
    match error {
        CallError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        CallError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        CallError::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        CallError::Refused(_) | CallError::OtherStore(_) => StatusCode::CONFLICT,
        CallError::Unproven { .. } | CallError::Denied(_) => StatusCode::FORBIDDEN,
        _ => StatusCode::BAD_REQUEST,
    }
}

impl From<EncodeError> for HttpError {
    fn from(error: EncodeError) -> Self {
        CallError::from(error).into()
    }
}

/// A response whose body is complete.
pub(super) fn plain(status: StatusCode, kind: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Body::from(body));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// Adds the headers of every response: others may not cache, guess or embed it.
pub(super) fn protect(headers: &mut HeaderMap) {
    for (name, value) in [
        ("cache-control", "private, no-cache"),
        ("x-content-type-options", "nosniff"),
        (
            "content-security-policy",
            "default-src 'none'; frame-ancestors 'none'",
        ),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        // A handler may have set its own: the page allows its script and style.
        headers
            .entry(HeaderName::from_static(name))
            .or_insert(HeaderValue::from_static(value));
    }
}

/// A budget for bytes of responses that minions have not read.
#[derive(Clone)]
pub(super) struct AnswerRoom {
    free: Arc<Semaphore>,
    all: usize,
}

/// Bytes with their share of the budget, which is released when the connection has written them.
struct HeldBytes {
    bytes: Vec<u8>,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AnswerRoom {
    pub(super) fn new(bytes: usize) -> Self {
        let all = bytes / PERMIT_BYTES;
        Self {
            free: Arc::new(Semaphore::new(all)),
            all,
        }
    }

    /// Reserves the bytes of a response; `None` if there is no room.
    pub(super) fn hold_now(&self, bytes: Vec<u8>) -> Option<Bytes> {
        let permit = self
            .free
            .clone()
            .try_acquire_many_owned(self.permits(&bytes))
            .ok()?;
        Some(Bytes::from_owner(HeldBytes {
            bytes,
            _permit: permit,
        }))
    }

    /// The number of permits for these bytes; all permits for a response larger than the budget.
    fn permits(&self, bytes: &[u8]) -> u32 {
        u32::try_from((bytes.len() / PERMIT_BYTES + 1).min(self.all)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_of_an_answer_is_free_when_its_last_bytes_are_dropped() {
        let room = AnswerRoom::new(20 * PERMIT_BYTES);
        let held = room.hold_now(vec![0; 10 * PERMIT_BYTES]).unwrap();
        let part = held.slice(..1);
        drop(held);
        assert_eq!(room.free.available_permits(), 20 - 11);
        assert!(room.hold_now(vec![0; 9 * PERMIT_BYTES]).is_none());
        drop(part);
        assert_eq!(
            room.hold_now(vec![0; 99 * PERMIT_BYTES]).unwrap().len(),
            99 * PERMIT_BYTES
        );
        assert_eq!(room.free.available_permits(), 20);
    }
}
