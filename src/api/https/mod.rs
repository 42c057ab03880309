//! The HTTPS source for minions on other machines, which sign their calls with their own Salt keys.
//!
//! `docs/WIRE.md` defines the format. Each connection gets a challenge. The signature of a batch covers this
//! challenge, an increasing number, the minion's clock, the hash of the payload, and the daemon's
//! certificate. So an intercepted batch is invalid on every other connection, also after a restart, without a
//! record of earlier batches. A minion can store only its own returns; the configuration defines its read access.
//!
//! # Invariant
//!
//! Before a valid signature, at most an envelope (1.4 KB) of a peer is kept in memory. Afterwards memory for its bytes is
//! reserved before they are read, and each minion has at most [`HTTPS_BATCHES_OF_ONE`] batches in flight.
//!
//! [`HTTPS_BATCHES_OF_ONE`]: crate::base::limits::HTTPS_BATCHES_OF_ONE

mod batch;
pub mod client;
mod keys;
mod peer;
mod permits;
pub(super) mod tls;

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use self::batch::HttpsServer;
use self::keys::Keys;
use self::tls::{Certificate, CertificateChange, Files};
use super::call::Ctx;
use crate::base::clock::Micros;
use crate::base::limits::{
    HTTPS_EXPIRED_LOG_INTERVAL, HTTPS_EXPIRES_SOON, HTTPS_PEERS_MAX, HTTPS_POLL, PEER_TIMEOUT,
};
use crate::config::HttpsConfig;
use crate::store::Intake;
use permits::HttpsPermits;

/// The status of the source for `saltcellar status`.
#[derive(Debug, Clone, Default)]
pub struct HttpsStatus {
    /// Address and port.
    pub listen: String,
    /// `open`, or the reason why not.
    pub state: String,
    /// The expiry of the certificate.
    pub certificate_until: Option<Micros>,
    /// Open connections.
    pub peers: usize,
}

/// The live status of the source.
#[derive(Clone, Default)]
pub struct HttpsMonitor(Arc<Mutex<(HttpsStatus, Option<Arc<HttpsPermits>>)>>);
impl HttpsMonitor {
    /// A snapshot.
    pub fn status(&self) -> HttpsStatus {
        let held = self.0.lock();
        let peers = held.1.as_ref().map_or(0, |permits| permits.taken());
        HttpsStatus { peers, ..held.0.clone() }
    }

    fn set(&self, change: impl FnOnce(&mut HttpsStatus)) {
        change(&mut self.0.lock().0);
    }
}

/// Serves the source until `stop` turns true, then waits for batches in flight.
pub async fn serve(
    config: HttpsConfig,
    ctx: Arc<Ctx>,
    intake: Intake,
    monitor: HttpsMonitor,
    mut stop: watch::Receiver<bool>,
) {
    let (Some(listen), Some(certificate), Some(key)) = (config.listen, &config.certificate, &config.key)
    else {
        return;
    };
    let permits = HttpsPermits::new(HTTPS_PEERS_MAX);
    monitor.0.lock().1 = Some(permits.clone());
    let certificates = CertificateState {
        files: Files::new(certificate, key),
        current: None,
        logged_at: None,
        ctx: ctx.clone(),
    };
    let server = Arc::new(HttpsServer::new(ctx, intake, Keys::of(&config.pki_dir), config.read));
    let peers_stop = stop.clone();
    tokio::select! {
        () = accept(listen, certificates, &server, &permits, &monitor, &peers_stop) => {}
        () = wait_for(&mut stop) => {}
    }
    monitor.set(|status| "stopping".clone_into(&mut status.state));
    permits.all_free(PEER_TIMEOUT).await;
}

async fn wait_for(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Binds, and accepts connections forever.
async fn accept(
    listen: SocketAddr,
    mut certificates: CertificateState,
    server: &Arc<HttpsServer>,
    permits: &Arc<HttpsPermits>,
    monitor: &HttpsMonitor,
    stop: &watch::Receiver<bool>,
) {
    monitor.set(|status| status.listen = listen.to_string());
    let listener = bind(listen, monitor).await;
    if let Ok(address) = listener.local_addr() {
        monitor.set(|status| status.listen = address.to_string());
        tracing::info!(%address, "HTTPS source listening");
    }
    let mut round = interval(HTTPS_POLL);
    round.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            _ = round.tick() => certificates.check(monitor),
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => admit(stream, from, &certificates, server, permits, stop).await,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection on the HTTPS source, retrying");
                    sleep(std::time::Duration::from_millis(50)).await;
                }
            }
        }
    }
}

/// Retries until it succeeds: the address may become available later, and the job cache works without this source.
async fn bind(listen: SocketAddr, monitor: &HttpsMonitor) -> TcpListener {
    loop {
        match TcpListener::bind(listen).await {
            Ok(listener) => return listener,
            Err(error) => {
                let state = format!("cannot listen: {error}");
                if monitor.status().state != state {
                    tracing::error!(address = %listen, %error, "HTTPS source cannot listen, retrying");
                }
                monitor.set(|status| status.state = state);
            }
        }
        sleep(HTTPS_POLL).await;
    }
}

async fn admit(
    stream: TcpStream,
    from: SocketAddr,
    certificates: &CertificateState,
    server: &Arc<HttpsServer>,
    permits: &Arc<HttpsPermits>,
    stop: &watch::Receiver<bool>,
) {
    let metrics = &server.ctx.metrics;
    metrics.https_peers.add(1);
    // Without a certificate no answer is possible.
    let Some(certificate) = &certificates.current else {
        metrics.https_peers_rejected.add(1);
        return;
    };
    let Some(permit) = permits.take(|| metrics.https_peers_evicted.add(1)).await else {
        metrics.https_peers_rejected.add(1);
        return;
    };
    tokio::spawn(peer::serve(server.clone(), permit, stream, from, certificate.clone(), stop.clone()));
}

/// The current certificate, and the time of the last log line about it.
struct CertificateState {
    files: Files,
    current: Option<Certificate>,
    logged_at: Option<Instant>,
    ctx: Arc<Ctx>,
}

impl CertificateState {
    fn check(&mut self, monitor: &HttpsMonitor) {
        match self.files.check() {
            CertificateChange::Same => {}
            CertificateChange::New(certificate) => {
                let until = certificate.not_after.map(Micros::iso);
                tracing::info!(until, "HTTPS source loaded its certificate");
                monitor.set(|status| {
                    "open".clone_into(&mut status.state);
                    status.certificate_until = certificate.not_after;
                });
                (self.current, self.logged_at) = (Some(certificate), None);
            }
            CertificateChange::Bad(why) => {
                self.ctx.metrics.https_certificates_bad.add(1);
                let state = if self.current.is_some() {
                    tracing::warn!(
                        why,
                        "HTTPS source cannot use its new certificate, keeping the previous one"
                    );
                    format!("open, with its previous certificate: {why}")
                } else {
                    tracing::error!(why, "HTTPS source has no usable certificate, rejecting all connections");
                    format!("no certificate: {why}")
                };
                monitor.set(|status| status.state = state);
            }
        }
        self.check_expiry();
    }
    fn check_expiry(&mut self) {
        let Some(until) = self.current.as_ref().and_then(|current| current.not_after) else { return };
        let soon = i64::try_from(HTTPS_EXPIRES_SOON.as_micros()).unwrap_or(i64::MAX);
        let now = self.ctx.clock.now();
        if until.0.saturating_sub(now.0) > soon
            || self.logged_at.is_some_and(|at| at.elapsed() < HTTPS_EXPIRED_LOG_INTERVAL)
        {
            return;
        }
        self.logged_at = Some(Instant::now());
        if until < now {
            self.ctx.metrics.https_certificates_expired.add(1);
            tracing::error!(
                expired = until.iso(),
                "certificate of the HTTPS source is expired; minions reject it and spool"
            );
        } else {
            tracing::warn!(expires = until.iso(), "certificate of the HTTPS source expires soon");
        }
    }
}
