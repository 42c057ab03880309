//! One connection: TLS if configured, then sequential HTTP/1.1 requests.
//!
//! # Limits
//!
//! Handshake and request head each have a timeout; peers that are idle, or do not read their
//! responses, are disconnected.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, SetOnce, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tower_service::Service as _;

use super::kind::ListenerKind;
use super::pace::Paced;
use super::permits::Permit;
use super::tls::Certificate;
use crate::api::call::Ctx;
use crate::api::http::access::{Access, Peer};
use crate::api::http::answer::Answer;
use crate::api::sign_in::tokens::{Token, Tokens};
use crate::base::limits::{
    HTTP_IDLE, HTTP_REVOKED_TIME, HTTPS_HANDSHAKE_TIMEOUT, HTTPS_HEAD_BYTES_MAX,
};
use crate::wire::signed::{Challenge, Digest};

/// The response to a peer without TLS.
const TLS_REQUIRED: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n\
This port speaks HTTPS: the address begins with https://\n";

/// A connection, in the extensions of each of its requests.
pub(in crate::api::http) struct Connection {
    pub(in crate::api::http) peer: Peer,
    /// The connection's permit, on a network address.
    pub(in crate::api::http) permit: Option<Permit>,
    /// The hash of the daemon's certificate, with TLS.
    pub(in crate::api::http) certificate: Option<Digest>,
    /// Set by the first request of a minion for the challenge.
    pub(in crate::api::http) session: OnceLock<SignedSession>,
    requests: AtomicU64,
    /// The first token or user of its requests, for which it counts.
    claim: SetOnce<Claim>,
}

/// The challenge of a connection, and the number of its last batch.
pub(in crate::api::http) struct SignedSession {
    pub(in crate::api::http) challenge: Challenge,
    pub(in crate::api::http) number: AtomicU64,
}

impl SignedSession {
    pub(in crate::api::http) fn new() -> Self {
        let mut challenge = Challenge::default();
        if SystemRandom::new().fill(&mut challenge).is_err() {
            // All batches of this connection are then rejected: an all-zero challenge is known to
            // everyone, and the check of a batch refuses it.
            tracing::error!(
                "the kernel provides no random bytes for a challenge, the batches of this connection are rejected: check that getrandom(2) is allowed in this sandbox"
            );
        }

        Self {
            challenge,
            number: AtomicU64::new(0),
        }
    }

    pub(in crate::api::http) fn challenge(&self) -> &Challenge {
        &self.challenge
    }
}

/// The client that a connection counts for.
struct Claim {
    token: Option<Box<Token>>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    pub(in crate::api::http) fn new(
        peer: Peer,
        permit: Option<Permit>,
        certificate: Option<Digest>,
    ) -> Self {
        Self {
            peer,
            permit,
            certificate,
            session: OnceLock::new(),
            requests: AtomicU64::new(0),
            claim: SetOnce::new(),
        }
    }

    /// Counts the connection for the client of its first authenticated request; false if that
    /// client has too many. A proxy may send requests of other clients on it.
    pub(in crate::api::http) fn claim(&self, access: &Access) -> bool {
        if self.claim.get().is_some() {
            return true;
        }
        let Some(permit) = access.budget.connection() else {
            return false;
        };
        // A connection cannot have a claim yet, because its requests are sequential.
        let claim = Claim {
            token: access.token.clone(),
            _permit: permit,
        };
        self.claim.set(claim).is_ok()
    }

    /// Waits until the token that it counts for is revoked.
    async fn revoked(&self, tokens: &Tokens) {
        match &self.claim.wait().await.token {
            Some(token) => tokens.revoked(token).await,
            None => std::future::pending().await,
        }
    }

    /// Waits until the connection must be closed: evicted, or timed out.
    async fn eviction_or_timeout(&self) {
        match &self.permit {
            Some(permit) => permit.eviction_or_timeout().await,
            None => std::future::pending().await,
        }
    }
}

/// State shared by the connections of a listener.
pub(in crate::api::http) struct ConnectionServer {
    pub(in crate::api::http) kind: &'static ListenerKind,
    pub(in crate::api::http) ctx: Arc<Ctx>,
    pub(in crate::api::http) routes: Router,
    /// Turns true when the daemon stops.
    pub(in crate::api::http) stop: watch::Receiver<bool>,
}

impl ConnectionServer {
    /// Waits until the daemon stops.
    pub(super) async fn stopped(&self) {
        let _ = self.stop.clone().wait_for(|stop| *stop).await;
    }

    /// Serves a connection of a unix socket to its end.
    pub(in crate::api::http) async fn serve_unix(self: Arc<Self>, stream: UnixStream) {
        let uid = stream.peer_cred().ok().map(|peer| peer.uid());
        let connection = Arc::new(Connection::new(Peer::Unix { uid }, None, None));
        self.until_closed(
            &connection,
            self.answer_all(&connection, Paced::new(stream)),
        )
        .await;
    }

    /// Serves a connection of the network to its end.
    pub(super) async fn serve_network(
        self: Arc<Self>,
        stream: TcpStream,
        connection: Arc<Connection>,
        certificate: Option<Certificate>,
    ) {
        // A response is one write; Nagle's algorithm would only delay it.
        let _ = stream.set_nodelay(true);

        let talk = async {
            let Some(certificate) = certificate else {
                return self.answer_all(&connection, Paced::new(stream)).await;
            };
            if let Some(stream) = self.handshake(&connection, stream, certificate).await {
                self.answer_all(&connection, stream).await;
            }
        };

        self.until_closed(&connection, talk).await;
    }

    async fn until_closed(&self, connection: &Connection, talk: impl Future<Output = ()>) {
        // A connection without a request so far can be closed immediately: `graceful_shutdown` would
        // wait for its first request.
        let stopped_unused = async {
            self.stopped().await;
            if connection.requests.load(Ordering::Relaxed) > 0 {
                std::future::pending::<()>().await;
            }
        };
        // A revoked token ends the connection by itself: the request in flight is answered, and a
        // stream ends with the reason. This is for a peer that does not read that.
        let revoked_in_vain = async {
            connection.revoked(&self.ctx.sign_in.tokens).await;
            sleep(HTTP_REVOKED_TIME).await;
        };

        tokio::select! {
            () = talk => {}
            () = connection.eviction_or_timeout() => {}
            () = stopped_unused => {}
            () = revoked_in_vain => {}
        }
    }

    async fn handshake(
        &self,
        connection: &Connection,
        stream: TcpStream,
        certificate: Certificate,
    ) -> Option<TlsStream<Paced<TcpStream>>> {
        let counters = (self.kind.counters)(&self.ctx.archive.metrics);
        // A minion that speaks plain HTTP shows the text of the hint in its log; a failed handshake
        // would say nothing about the cause.
        if let Some(without_tls) = counters.without_tls {
            let mut first = [0];
            match timeout(HTTPS_HANDSHAKE_TIMEOUT, stream.peek(&mut first)).await {
                // A TLS record of a handshake begins with the byte 22, a request with its method.
                Ok(Ok(1..)) if first[0].is_ascii_uppercase() => {
                    without_tls.add(1);
                    reject_plain_http(stream).await;
                    return None;
                }
                Ok(Ok(1..)) => {}
                Ok(Ok(_) | Err(_)) | Err(_) => {
                    counters.handshakes_failed.add(1);
                    return None;
                }
            }
        }

        let handshake = TlsAcceptor::from(certificate.config).accept(Paced::new(stream));
        let failed = match timeout(HTTPS_HANDSHAKE_TIMEOUT, handshake).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "timeout".to_owned(),
        };

        counters.handshakes_failed.add(1);
        tracing::debug!(peer = %connection.peer, error = failed, "TLS handshake failed");
        None
    }

    async fn answer_all(
        &self,
        connection: &Arc<Connection>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    ) {
        let answer = service_fn(|request| {
            let routes = self.routes.clone();
            let connection = connection.clone();
            async move { Ok::<_, Infallible>(answer(routes, connection, request).await) }
        });

        // hyper's limits for the head replace its defaults, which are larger than any request here
        // needs.
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HTTP_IDLE)
            .max_buf_size(self.kind.head_bytes_max)
            .max_headers(self.kind.head_lines_max)
            .serve_connection(TokioIo::new(stream), answer);

        let mut served = std::pin::pin!(served);
        let ended = tokio::select! {
            ended = served.as_mut() => ended,
            () = self.stopped() => {
                served.as_mut().graceful_shutdown();
                served.await
            }
            // A revoked token ends its connection after the request in flight; the next request
            // would be rejected anyway.
            () = connection.revoked(&self.ctx.sign_in.tokens) => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        };

        if let Err(error) = ended {
            // Only bytes that are not HTTP are counted; broken connections are normal.
            if error.is_parse() {
                (self.kind.counters)(&self.ctx.archive.metrics)
                    .malformed
                    .add(1);
            }
            tracing::debug!(peer = %connection.peer, %error, "HTTP connection ended");
        }
    }
}

async fn answer(
    mut routes: Router,
    connection: Arc<Connection>,
    request: hyper::Request<Incoming>,
) -> Answer {
    connection.requests.fetch_add(1, Ordering::Relaxed);
    // A body in chunks whose end a proxy before this listener sees elsewhere could hide a second
    // request. The connection ends after this one, so no second request is accepted.
    let is_last = request.headers().contains_key(header::TRANSFER_ENCODING);

    let mut request = request.map(Body::new);
    request.extensions_mut().insert(connection.peer);
    request.extensions_mut().insert(connection);

    let Ok(mut answer) = routes.call(request).await;

    if is_last {
        answer
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

/// Rejects plain HTTP. Reads the request first: closing with unread bytes would reset the
/// connection before the peer reads the response.
async fn reject_plain_http(mut stream: TcpStream) {
    let talk = async {
        let _ = stream.readable().await;
        let _ = stream.try_read(&mut [0; HTTPS_HEAD_BYTES_MAX]);
        stream.write_all(TLS_REQUIRED).await?;
        stream.shutdown().await
    };
    let _ = timeout(HTTPS_HANDSHAKE_TIMEOUT, talk).await;
}
