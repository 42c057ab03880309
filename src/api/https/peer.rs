//! One connection: TLS, then HTTP/1.1 requests one after the other.
//!
//! # Bounds
//!
//! The first byte tells TLS from a peer that speaks plain HTTP, which is told so. A handshake, a request's head and a
//! batch each have their time; a peer that takes no answer is given up; a silent one is let go.

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
use tokio_rustls::TlsAcceptor;

use super::batch::{Guest, House};
use super::patient::Patient;
use super::seats::Seat;
use super::tls::Certificate;
use crate::limits::{
    HTTPS_HANDSHAKE_PATIENCE, HTTPS_HEAD_BYTES_MAX, HTTPS_HEAD_LINES_MAX, HTTPS_IDLE, PEER_PATIENCE,
};
use crate::wire::call::{CallError, refusal_frame};
use crate::wire::msgpack::Writer;
use crate::wire::signed::{BATCH_PATH, HELLO_PATH, SIGNED_VERSION};

/// What a peer without TLS is told.
const SPEAK_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n\
    This port speaks HTTPS: the address begins with https://\n";

/// Serves a connection to its end.
pub(super) async fn serve(
    house: Arc<House>,
    seat: Seat,
    stream: TcpStream,
    from: SocketAddr,
    certificate: Certificate,
    mut stop: watch::Receiver<bool>,
) {
    let guest = Arc::new(Guest::new(house, seat, from, certificate.digest));
    let mut leaving = stop.clone();
    tokio::select! {
        () = talk(&guest, stream, certificate, &mut leaving) => {}
        () = guest.seat.must_go() => {}
        // Whoever has sent no request yet has nothing to lose.
        () = async { super::wait_for(&mut stop).await; if guest.requests() > 0 { std::future::pending::<()>().await; } } => {}
    }
}

async fn talk(
    guest: &Arc<Guest>,
    stream: TcpStream,
    certificate: Certificate,
    stop: &mut watch::Receiver<bool>,
) {
    let metrics = &guest.house.ctx.metrics;
    // Answers are small, and go at once.
    let _ = stream.set_nodelay(true);
    let mut first = [0];
    match timeout(HTTPS_HANDSHAKE_PATIENCE, stream.peek(&mut first)).await {
        Ok(Ok(1..)) if first[0].is_ascii_uppercase() => {
            metrics.https_without_tls.add(1);
            return tell_to_speak_tls(stream).await;
        }
        Ok(Ok(1..)) => {}
        Ok(Ok(_) | Err(_)) | Err(_) => return metrics.https_handshakes_failed.add(1),
    }
    let handshake = TlsAcceptor::from(certificate.config).accept(Patient::new(stream, PEER_PATIENCE));
    let stream = match timeout(HTTPS_HANDSHAKE_PATIENCE, handshake).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            metrics.https_handshakes_failed.add(1);
            return tracing::debug!(from = %guest.from, %error, "a TLS handshake failed");
        }
        Err(_) => return metrics.https_handshakes_failed.add(1),
    };
    let answer = service_fn(|request| {
        let guest = guest.clone();
        async move { Ok::<_, Infallible>(answer(&guest, request).await) }
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
        tracing::debug!(from = %guest.from, %error, "a connection on the HTTPS door ended");
    }
}

/// Closing with bytes of the peer unread would reset the connection before it has read the answer.
async fn tell_to_speak_tls(mut stream: TcpStream) {
    let talk = async {
        let _ = stream.readable().await;
        let _ = stream.try_read(&mut [0; HTTPS_HEAD_BYTES_MAX]);
        stream.write_all(SPEAK_TLS).await?;
        stream.shutdown().await
    };
    let _ = timeout(HTTPS_HANDSHAKE_PATIENCE, talk).await;
}

async fn answer(guest: &Guest, request: Request<Incoming>) -> Response<Full<Bytes>> {
    guest.count_request();
    let refused = match (request.method(), request.uri().path()) {
        (&Method::POST, BATCH_PATH) => match guest.take_batch(request.into_body()).await {
            Ok(answers) => return response(StatusCode::OK, answers),
            Err(refusal) => refusal,
        },
        (&Method::GET, HELLO_PATH) => return response(StatusCode::OK, hello(guest).into()),
        (method, path) => {
            guest.house.ctx.metrics.https_malformed.add(1);
            let words = format!(
                "there is no {method} {path:.100}: a minion asks GET {HELLO_PATH}, then POST {BATCH_PATH}"
            );
            CallError::Protocol(words)
        }
    };
    let mut response = response(status(&refused), refusal_frame(None, &refused).into());
    // The rest of the request may still be on its way.
    response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    response
}

fn hello(guest: &Guest) -> Vec<u8> {
    let mut w = Writer::new();
    w.map(3).str("version").uint(u64::from(SIGNED_VERSION)).str("challenge").bin(guest.challenge());
    w.str("time").int(guest.house.ctx.clock.now().0);
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
