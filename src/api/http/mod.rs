//! The HTTP listener: health, metrics, hooks, the API and the page, on a network address and on a unix socket (docs/HTTP.md).
//!
//! # Limits
//!
//! Connections, heads, bodies, idle time and the bytes of unread answers are bounded (`base/limits/http.rs`). A request is carried out by a thread for
//! blocking work, at most `HTTP_CALLS_MAX` at once. A slow reader holds the memory of its own answer and no thread.
//!
//! # Invariant
//!
//! A request is checked in this order: site, token, right, parameters. Nothing of a rejected request is carried out.

mod access;
mod answer;
mod hook;
pub mod metrics;
mod page;
mod peer;
mod salt_api;
mod server;
pub mod tokens;
pub mod v1;

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use self::access::Peer;
use self::server::HttpServer;
use super::call::Ctx;
use super::https::tls::{Certificate, CertificateChange, Files};
use crate::base::limits::{HTTP_PEERS_MAX, HTTPS_POLL, PEER_TIMEOUT};
use crate::config::HttpConfig;
use crate::wire::unix_listener::Listener;

/// The status of the listener, for `saltcellar status`.
#[derive(Debug, Clone, Default)]
pub struct HttpStatus {
    /// Address and port.
    pub listen: String,
    /// `open`, or the reason why not.
    pub state: String,
}

/// The live status of the listener on the network address.
#[derive(Clone, Default)]
pub struct HttpMonitor(Arc<Mutex<HttpStatus>>);

impl HttpMonitor {
    /// A snapshot.
    pub fn status(&self) -> HttpStatus {
        self.0.lock().clone()
    }

    fn set(&self, state: impl Into<String>) {
        self.0.lock().state = state.into();
    }
}

/// Serves both listeners until `stop` turns true, then waits for requests in flight.
pub async fn serve(
    config: HttpConfig,
    unix: Option<Listener>,
    ctx: Arc<Ctx>,
    monitor: HttpMonitor,
    stop: watch::Receiver<bool>,
) {
    let is_loopback = config.listen.is_none_or(|address| address.ip().is_loopback());
    if !is_loopback && ctx.tokens.is_empty() {
        tracing::warn!(
            "HTTP listener has no token, all requests are rejected: `saltcellar token create` makes one"
        );
    }
    let server = Arc::new(HttpServer::new(ctx, &config, stop.clone()));
    let network = async {
        if let Some(listen) = config.listen {
            serve_network(listen, &config, &server, &monitor, stop.clone()).await;
        }
    };
    let local = async {
        if let Some(listener) = unix {
            let handle = |stream: UnixStream| {
                server.ctx.metrics.http_peers.add(1);
                let uid = stream.peer_cred().ok().map(|peer| peer.uid());
                peer::serve_plain(server.clone(), stream, Peer::Unix { uid }, stop.clone())
            };
            let reject = |_| server.ctx.metrics.http_peers_rejected.add(1);
            listener.serve(HTTP_PEERS_MAX, stop.clone(), reject, handle).await;
        }
    };
    tokio::join!(network, local);
}

async fn serve_network(
    listen: SocketAddr,
    config: &HttpConfig,
    server: &Arc<HttpServer>,
    monitor: &HttpMonitor,
    mut stop: watch::Receiver<bool>,
) {
    let permits = Arc::new(Semaphore::new(HTTP_PEERS_MAX));
    let certificates = config.tls.as_ref().map(|tls| Files::new(&tls.certificate, &tls.key));
    let peers_stop = stop.clone();
    tokio::select! {
        () = accept(listen, certificates, server, &permits, monitor, &peers_stop) => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
    monitor.set("stopping");
    let all = u32::try_from(HTTP_PEERS_MAX).unwrap_or(u32::MAX);
    let _ = timeout(PEER_TIMEOUT, permits.acquire_many(all)).await;
}

/// Binds, and accepts connections forever.
async fn accept(
    listen: SocketAddr,
    mut certificates: Option<Files>,
    server: &Arc<HttpServer>,
    permits: &Arc<Semaphore>,
    monitor: &HttpMonitor,
    stop: &watch::Receiver<bool>,
) {
    monitor.0.lock().listen = listen.to_string();
    let listener = bind(listen, monitor).await;
    if let Ok(address) = listener.local_addr() {
        monitor.0.lock().listen = address.to_string();
        tracing::info!(%address, tls = certificates.is_some(), "HTTP listener open");
    }
    let metrics = &server.ctx.metrics;
    let is_loopback = listen.ip().is_loopback();
    let mut current = None;
    let mut round = interval(HTTPS_POLL);
    round.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let accepted = tokio::select! {
            biased;
            _ = round.tick() => {
                if let Some(files) = &mut certificates {
                    reload(files, &mut current, monitor);
                }
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection on the HTTP listener, retrying");
                sleep(std::time::Duration::from_millis(50)).await;
                continue;
            }
        };
        metrics.http_peers.add(1);
        // Without its certificate the listener cannot answer.
        let certificate = match (&certificates, &current) {
            (None, _) => Some(None),
            (Some(_), Some(certificate)) => Some(Some(Certificate::clone(certificate))),
            (Some(_), None) => None,
        };
        let (Some(certificate), Ok(permit)) = (certificate, permits.clone().try_acquire_owned()) else {
            metrics.http_peers_rejected.add(1);
            continue;
        };
        let peer = Peer::Network { from, is_loopback };
        let (server, stop) = (server.clone(), stop.clone());
        tokio::spawn(async move {
            peer::serve_network(server, stream, peer, certificate, stop).await;
            drop(permit);
        });
    }
}

/// Retries until it succeeds: the address may become available later, and the job cache works without this listener.
async fn bind(listen: SocketAddr, monitor: &HttpMonitor) -> TcpListener {
    loop {
        match TcpListener::bind(listen).await {
            Ok(listener) => {
                monitor.set("open");
                return listener;
            }
            Err(error) => {
                let state = format!("cannot listen: {error}");
                if monitor.status().state != state {
                    tracing::error!(address = %listen, %error, "HTTP listener cannot listen, retrying");
                }
                monitor.set(state);
            }
        }
        sleep(HTTPS_POLL).await;
    }
}

fn reload(files: &mut Files, current: &mut Option<Certificate>, monitor: &HttpMonitor) {
    match files.check() {
        CertificateChange::Same => {}
        CertificateChange::New(certificate) => {
            let until = certificate.not_after.map(crate::base::clock::Micros::iso);
            tracing::info!(until, "HTTP listener loaded its certificate");
            monitor.set("open");
            *current = Some(certificate);
        }
        CertificateChange::Bad(why) if current.is_some() => {
            tracing::warn!(why, "HTTP listener cannot use its new certificate, keeping the previous one");
            monitor.set(format!("open, with its previous certificate: {why}"));
        }
        CertificateChange::Bad(why) => {
            tracing::error!(why, "HTTP listener has no usable certificate, rejecting all connections");
            monitor.set(format!("no certificate: {why}"));
        }
    }
}
