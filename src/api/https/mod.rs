//! The HTTPS door: minions on other machines, each of which signs what it sends with its own Salt key.
//!
//! `docs/WIRE.md` has the bytes. A connection is handed a challenge; each batch posted on it is signed over that
//! challenge, a number that rises, the minion's clock, the hash of the payload and the certificate that the daemon
//! showed. So a batch that somebody overheard is good for no other connection, after a restart neither, and there is no
//! memory of what was seen. A minion stores its own returns and nothing else; what it may read the configuration says.
//!
//! # Invariant
//!
//! Nothing of a peer is kept beyond an envelope (1.4 KB) before its signature has held. From then on its bytes are set
//! aside before they are read, and no minion has more than [`HTTPS_BATCHES_OF_ONE`] batches under way.
//!
//! [`HTTPS_BATCHES_OF_ONE`]: crate::limits::HTTPS_BATCHES_OF_ONE

mod batch;
pub mod client;
mod files;
mod keys;
mod patient;
mod peer;
mod seats;
mod tls;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use self::batch::House;
use self::keys::Keys;
use self::seats::Seats;
use self::tls::{Certificate, Files, Look};
use super::call::Ctx;
use crate::clock::Micros;
use crate::config::HttpsConfig;
use crate::limits::{HTTPS_EXPIRES_SOON, HTTPS_LOOK, HTTPS_PEERS_MAX, HTTPS_SAYS_EXPIRED, PEER_PATIENCE};
use crate::store::Intake;

/// The door as `status` shows it.
#[derive(Debug, Clone, Default)]
pub struct Status {
    /// Address and port.
    pub listen: String,
    /// `open`, or why it is not.
    pub state: String,
    /// Until when the certificate is valid.
    pub certificate_until: Option<Micros>,
    /// Connections.
    pub peers: usize,
}

/// A look at the door from elsewhere.
#[derive(Clone, Default)]
pub struct Watch(Arc<Mutex<(Status, Option<Arc<Seats>>)>>);

impl Watch {
    /// How it is.
    pub fn status(&self) -> Status {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let peers = held.1.as_ref().map_or(0, |seats| seats.taken());
        Status { peers, ..held.0.clone() }
    }

    fn set(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).0);
    }
}

/// Serves the door until `stop` turns true, then lets what is under way finish.
pub async fn serve(
    config: HttpsConfig,
    ctx: Arc<Ctx>,
    intake: Intake,
    watch: Watch,
    mut stop: watch::Receiver<bool>,
) {
    let (Some(listen), Some(certificate), Some(key)) = (config.listen, &config.certificate, &config.key)
    else {
        return;
    };
    let seats = Seats::new(HTTPS_PEERS_MAX);
    watch.0.lock().unwrap_or_else(PoisonError::into_inner).1 = Some(seats.clone());
    let shown = Shown { files: Files::new(certificate, key), current: None, said: None, ctx: ctx.clone() };
    let house = Arc::new(House::new(ctx, intake, Keys::of(&config.pki_dir), config.read));
    let peers_stop = stop.clone();
    tokio::select! {
        () = accept(listen, shown, &house, &seats, &watch, &peers_stop) => {}
        () = wait_for(&mut stop) => {}
    }
    watch.set(|status| "stopping".clone_into(&mut status.state));
    seats.all_free(PEER_PATIENCE).await;
}

async fn wait_for(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Binds, and takes connections. Never ends.
async fn accept(
    listen: SocketAddr,
    mut shown: Shown,
    house: &Arc<House>,
    seats: &Arc<Seats>,
    watch: &Watch,
    stop: &watch::Receiver<bool>,
) {
    watch.set(|status| status.listen = listen.to_string());
    let listener = bind(listen, watch).await;
    if let Ok(address) = listener.local_addr() {
        watch.set(|status| status.listen = address.to_string());
        tracing::info!(%address, "the HTTPS door listens");
    }
    let mut round = interval(HTTPS_LOOK);
    round.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            _ = round.tick() => shown.look(watch),
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => welcome(stream, from, &shown, house, seats, stop).await,
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection on the HTTPS door");
                    sleep(std::time::Duration::from_millis(50)).await;
                }
            }
        }
    }
}

/// The address may come up later than the daemon, and somebody else may hold the port: the job cache runs all the same.
async fn bind(listen: SocketAddr, watch: &Watch) -> TcpListener {
    loop {
        match TcpListener::bind(listen).await {
            Ok(listener) => return listener,
            Err(error) => {
                let state = format!("cannot listen: {error}");
                if watch.status().state != state {
                    tracing::error!(address = %listen, %error, "the HTTPS door cannot listen; trying again");
                }
                watch.set(|status| status.state = state);
            }
        }
        sleep(HTTPS_LOOK).await;
    }
}

async fn welcome(
    stream: TcpStream,
    from: SocketAddr,
    shown: &Shown,
    house: &Arc<House>,
    seats: &Arc<Seats>,
    stop: &watch::Receiver<bool>,
) {
    let metrics = &house.ctx.metrics;
    metrics.https_peers.add(1);
    // Without a certificate there is nothing to say, and no way to say it.
    let Some(certificate) = &shown.current else {
        metrics.https_peers_turned_away.add(1);
        return;
    };
    let Some(seat) = seats.take(|| metrics.https_peers_outwaited.add(1)).await else {
        metrics.https_peers_turned_away.add(1);
        return;
    };
    tokio::spawn(peer::serve(house.clone(), seat, stream, from, certificate.clone(), stop.clone()));
}

/// The certificate that is shown, and what was said about it.
struct Shown {
    files: Files,
    current: Option<Certificate>,
    said: Option<Instant>,
    ctx: Arc<Ctx>,
}

impl Shown {
    fn look(&mut self, watch: &Watch) {
        match self.files.look() {
            Look::Same => {}
            Look::New(certificate) => {
                let until = certificate.not_after.map(Micros::iso);
                tracing::info!(until, "the HTTPS door shows a certificate that it has just read");
                watch.set(|status| {
                    "open".clone_into(&mut status.state);
                    status.certificate_until = certificate.not_after;
                });
                (self.current, self.said) = (Some(certificate), None);
            }
            Look::Bad(why) => {
                self.ctx.metrics.https_certificates_bad.add(1);
                let state = if self.current.is_some() {
                    tracing::warn!(
                        why,
                        "the HTTPS door cannot use its new certificate, and goes on with the last one"
                    );
                    format!("open, with its former certificate: {why}")
                } else {
                    tracing::error!(why, "the HTTPS door has no certificate, and turns everybody away");
                    format!("no certificate: {why}")
                };
                watch.set(|status| status.state = state);
            }
        }
        self.look_at_the_date();
    }

    fn look_at_the_date(&mut self) {
        let Some(until) = self.current.as_ref().and_then(|current| current.not_after) else { return };
        let soon = i64::try_from(HTTPS_EXPIRES_SOON.as_micros()).unwrap_or(i64::MAX);
        let now = self.ctx.clock.now();
        if until.0.saturating_sub(now.0) > soon
            || self.said.is_some_and(|said| said.elapsed() < HTTPS_SAYS_EXPIRED)
        {
            return;
        }
        self.said = Some(Instant::now());
        if until < now {
            self.ctx.metrics.https_certificates_expired.add(1);
            tracing::error!(
                expired = until.iso(),
                "the certificate of the HTTPS door is expired: minions refuse it, and spool"
            );
        } else {
            tracing::warn!(expires = until.iso(), "the certificate of the HTTPS door expires soon");
        }
    }
}

/// Whether files would do for the door, and until when; for checks before a start.
pub fn check_certificate(certificate: &Path, key: &Path) -> Result<Option<Micros>, String> {
    match Files::new(certificate, key).look() {
        Look::New(found) => Ok(found.not_after),
        Look::Bad(why) => Err(why),
        Look::Same => Ok(None),
    }
}
