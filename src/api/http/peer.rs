//! One connection: TLS if configured, then sequential HTTP/1.1 requests.

use std::convert::Infallible;
use std::sync::Arc;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;

use super::access::Peer;
use super::server::{HttpServer, routes};
use crate::api::https::tls::Certificate;
use crate::base::limits::{
    HTTP_HEAD_BYTES_MAX, HTTP_HEAD_LINES_MAX, HTTP_IDLE, HTTPS_HANDSHAKE_TIMEOUT, PEER_TIMEOUT,
};

/// Serves a connection of the network listener to its end.
pub(super) async fn serve_network(
    server: Arc<HttpServer>,
    stream: TcpStream,
    peer: Peer,
    certificate: Option<Certificate>,
    stop: watch::Receiver<bool>,
) {
    // Answers are sent at once.
    let _ = stream.set_nodelay(true);
    let Some(certificate) = certificate else { return serve_plain(server, stream, peer, stop).await };
    let handshake = TlsAcceptor::from(certificate.config).accept(stream);
    match timeout(HTTPS_HANDSHAKE_TIMEOUT, handshake).await {
        Ok(Ok(stream)) => serve_plain(server, stream, peer, stop).await,
        Ok(Err(error)) => {
            server.ctx.metrics.http_handshakes_failed.add(1);
            tracing::debug!(%peer, %error, "TLS handshake failed");
        }
        Err(_) => server.ctx.metrics.http_handshakes_failed.add(1),
    }
}

/// Serves a connection without TLS, or within it, to its end.
pub(super) async fn serve_plain(
    server: Arc<HttpServer>,
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
    peer: Peer,
    mut stop: watch::Receiver<bool>,
) {
    let mut stream = TimeoutStream::new(stream);
    // A peer that does not read is disconnected.
    stream.set_write_timeout(Some(PEER_TIMEOUT));
    let (answered, routes) = (server.clone(), routes(&server));
    let answer = service_fn(move |request: Request<Incoming>| {
        let (server, routes) = (answered.clone(), routes.clone());
        async move { Ok::<_, Infallible>(server.answer(routes, request, peer).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HTTP_IDLE)
        .max_buf_size(HTTP_HEAD_BYTES_MAX)
        .max_headers(HTTP_HEAD_LINES_MAX)
        .serve_connection(TokioIo::new(Box::pin(stream)), answer);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        if error.is_parse() {
            server.ctx.metrics.http_malformed.add(1);
        }
        tracing::debug!(%peer, %error, "connection on the HTTP listener ended");
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}
