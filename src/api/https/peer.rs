//! One connection: TLS, then sequential HTTP/1.1 requests.
//!
//! # Limits
//!
//! The first byte distinguishes TLS from plain HTTP, which is answered with a hint. Handshake, request head and
//! batch each have a timeout; peers that do not read their answers, and idle ones, are disconnected.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;

use super::batch::{HttpsServer, Session};
use super::permits::HttpsPermit;
use super::tls::Certificate;
use crate::base::limits::{
    HTTPS_HANDSHAKE_TIMEOUT, HTTPS_HEAD_BYTES_MAX, HTTPS_HEAD_LINES_MAX, HTTPS_IDLE, PEER_TIMEOUT,
};
use crate::wire::call::{CallError, refusal_frame};
use crate::wire::msgpack::Writer;
use crate::wire::signed::{BATCH_PATH, HELLO_PATH, SIGNED_VERSION};

/// The answer to a peer without TLS.
const TLS_REQUIRED: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n\
This port speaks HTTPS: the address begins with https://\n";

/// Serves a connection to its end.
pub(super) async fn serve(
    server: Arc<HttpsServer>,
    permit: HttpsPermit,
    stream: TcpStream,
    from: SocketAddr,
    certificate: Certificate,
    mut stop: watch::Receiver<bool>,
) {
    let session = Arc::new(Session::new(server, permit, from, certificate.digest));
    let mut leaving = stop.clone();
    tokio::select! {
        () = talk(&session, stream, certificate, &mut leaving) => {}
        () = session.permit.eviction_or_timeout() => {}
        // A connection without a request so far can be closed at once.
        () = async { super::wait_for(&mut stop).await; if session.requests() > 0 { std::future::pending::<()>().await; } } => {}
    }
}

async fn talk(
    session: &Arc<Session>,
    stream: TcpStream,
    certificate: Certificate,
    stop: &mut watch::Receiver<bool>,
) {
    let metrics = &session.server.ctx.metrics;
    // Answers are small and sent at once.
    let _ = stream.set_nodelay(true);
    let mut first = [0];
    match timeout(HTTPS_HANDSHAKE_TIMEOUT, stream.peek(&mut first)).await {
        Ok(Ok(1..)) if first[0].is_ascii_uppercase() => {
            metrics.https_without_tls.add(1);
            return reject_plain_http(stream).await;
        }
        Ok(Ok(1..)) => {}
        Ok(Ok(_) | Err(_)) | Err(_) => return metrics.https_handshakes_failed.add(1),
    }
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(PEER_TIMEOUT));
    let handshake = TlsAcceptor::from(certificate.config).accept(Box::pin(stream));
    let stream = match timeout(HTTPS_HANDSHAKE_TIMEOUT, handshake).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            metrics.https_handshakes_failed.add(1);
            return tracing::debug!(from = %session.from, %error, "TLS handshake failed");
        }
        Err(_) => return metrics.https_handshakes_failed.add(1),
    };
    let answer = service_fn(|request| {
        let session = session.clone();
        async move { Ok::<_, Infallible>(answer(&session, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HTTPS_IDLE)
        .max_buf_size(HTTPS_HEAD_BYTES_MAX)
        .max_headers(HTTPS_HEAD_LINES_MAX)
        .serve_connection(TokioIo::new(stream), answer);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = super::wait_for(stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        if error.is_parse() {
            metrics.https_malformed.add(1);
        }
        tracing::debug!(from = %session.from, %error, "connection on the HTTPS source ended");
    }
}

/// Reads the request first: closing with unread bytes would reset the connection before the peer reads the answer.
async fn reject_plain_http(mut stream: TcpStream) {
    let talk = async {
        let _ = stream.readable().await;
        let _ = stream.try_read(&mut [0; HTTPS_HEAD_BYTES_MAX]);
        stream.write_all(TLS_REQUIRED).await?;
        stream.shutdown().await
    };
    let _ = timeout(HTTPS_HANDSHAKE_TIMEOUT, talk).await;
}

async fn answer(session: &Session, request: Request<Incoming>) -> Response<Full<Bytes>> {
    session.count_request();
    let refused = match (request.method(), request.uri().path()) {
        (&Method::POST, BATCH_PATH) => match session.take_batch(request.into_body()).await {
            Ok(answers) => return response(StatusCode::OK, answers),
            Err(refusal) => refusal,
        },
        (&Method::GET, HELLO_PATH) => return response(StatusCode::OK, hello(session).into()),
        (method, path) => {
            session.server.ctx.metrics.https_malformed.add(1);
            let message = format!(
                "{method} {path:.100} is unknown: minions send GET {HELLO_PATH}, then POST {BATCH_PATH}"
            );
            CallError::Protocol(message)
        }
    };
    let mut response = response(status(&refused), refusal_frame(None, &refused).into());
    // The rest of the request may still be in transit.
    response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    response
}

fn hello(session: &Session) -> Vec<u8> {
    let mut w = Writer::new();
    w.map(3).str("version").uint(u64::from(SIGNED_VERSION)).str("challenge").bin(session.challenge());
    w.str("time").int(session.server.ctx.clock.now().0);
    w.into_bytes()
}

fn response(status: StatusCode, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn status(error: &CallError) -> StatusCode {
    match error {
        CallError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        CallError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        CallError::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        CallError::Unproven { .. } => StatusCode::FORBIDDEN,
        _ => StatusCode::BAD_REQUEST,
    }
}
