//! The limits and counters of one network address.

use super::permits::Times;
use crate::base::limits::{
    HTTP_HEAD_BYTES_MAX, HTTP_HEAD_LINES_MAX, HTTP_PEERS_MAX, HTTPS_AUTH_TIMEOUT,
    HTTPS_HEAD_BYTES_MAX, HTTPS_HEAD_LINES_MAX, HTTPS_IDLE, HTTPS_PEERS_MAX,
};
use crate::base::metrics::{Counter, Metrics};

/// Limits and counters of an address.
pub(in crate::api::http) struct ListenerKind {
    /// The section of the configuration.
    pub(super) name: &'static str,
    pub(super) peers_max: usize,
    pub(super) times: Times,
    pub(super) head_bytes_max: usize,
    pub(super) head_lines_max: usize,
    pub(in crate::api::http) counters: fn(&Metrics) -> ConnectionCounters<'_>,
}

/// The counters of an address.
pub(in crate::api::http) struct ConnectionCounters<'a> {
    pub(in crate::api::http) accepted: &'a Counter,
    pub(in crate::api::http) rejected: &'a Counter,
    pub(super) evicted: &'a Counter,
    pub(super) handshakes_failed: &'a Counter,
    pub(super) malformed: &'a Counter,
    /// For peers without TLS, which then get a hint; otherwise their handshake fails.
    pub(super) without_tls: Option<&'a Counter>,
}

/// The API, the page, metrics and hooks.
pub(in crate::api::http) static API: ListenerKind = ListenerKind {
    name: "http",
    peers_max: HTTP_PEERS_MAX,
    // Health checks need no token and may keep their connection.
    times: Times {
        unauthenticated: None,
        idle: HTTPS_IDLE,
    },
    head_bytes_max: HTTP_HEAD_BYTES_MAX,
    head_lines_max: HTTP_HEAD_LINES_MAX,
    counters: |metrics| ConnectionCounters {
        accepted: &metrics.http_connections,
        rejected: &metrics.http_connections_rejected,
        evicted: &metrics.http_connections_evicted,
        handshakes_failed: &metrics.http_handshakes_failed,
        malformed: &metrics.http_rejected_malformed,
        without_tls: None,
    },
};

/// Minions alone.
pub(in crate::api::http) static MINIONS: ListenerKind = ListenerKind {
    name: "https",
    peers_max: HTTPS_PEERS_MAX,
    times: Times {
        unauthenticated: Some(HTTPS_AUTH_TIMEOUT),
        idle: HTTPS_IDLE,
    },
    head_bytes_max: HTTPS_HEAD_BYTES_MAX,
    head_lines_max: HTTPS_HEAD_LINES_MAX,
    counters: |metrics| ConnectionCounters {
        accepted: &metrics.https_connections,
        rejected: &metrics.https_connections_rejected,
        evicted: &metrics.https_connections_evicted,
        handshakes_failed: &metrics.https_handshakes_failed,
        malformed: &metrics.https_rejected_malformed,
        without_tls: Some(&metrics.https_rejected_without_tls),
    },
};
