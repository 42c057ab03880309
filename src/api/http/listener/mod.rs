//! The server of every network address: it binds, accepts, loads the certificate, limits
//! connections and stops. [`ListenerKind`] contains what differs between addresses; the caller
//! passes the routes.
//!
//! # Invariant
//!
//! Invalid certificate files and addresses in use never stop the daemon: they are reported and
//! retried.

mod connection;
mod kind;
mod pace;
mod permits;
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};

pub(super) use self::connection::{Connection, ConnectionServer, SignedSession};
use self::kind::ListenerKind;
pub(super) use self::kind::{API, MINIONS};
use self::permits::ConnectionPermits;
pub(super) use self::permits::{BatchInFlight, Permit};
use self::tls::{Certificate, CertificateChange, Files};
use super::access::Peer;
use crate::api::call::Ctx;
use crate::api::monitor::{ListenerMonitor, ListenerState};
use crate::base::advice::TOO_FEW_FILES;
use crate::base::clock::Micros;
use crate::base::limits::{
    HTTPS_EXPIRED_LOG_INTERVAL, HTTPS_EXPIRES_SOON, HTTPS_POLL, PEER_TIMEOUT,
};
use crate::base::log_once::LogOnce;
use crate::config::HttpTls;

pub(super) struct NetworkListener {
    listen: SocketAddr,
    monitor: ListenerMonitor,
    permits: Arc<ConnectionPermits>,
    server: Arc<ConnectionServer>,
    /// The certificate, on an address with TLS.
    tls: Option<CertificateState>,
}

impl NetworkListener {
    pub(super) fn new(
        kind: &'static ListenerKind,
        (listen, tls): (SocketAddr, Option<HttpTls>),
        routes: Router,
        (ctx, monitor): (Arc<Ctx>, ListenerMonitor),
        stop: watch::Receiver<bool>,
    ) -> Self {
        let permits = ConnectionPermits::new(kind.peers_max, kind.times);
        monitor.count(permits.slots());

        let files = tls.map(|tls| Files::new(&tls.certificate, &tls.key));
        let tls = files.map(|files| CertificateState {
            files,
            current: None,
            expiry_logged: LogOnce::every(HTTPS_EXPIRED_LOG_INTERVAL),
        });

        let server = Arc::new(ConnectionServer {
            kind,
            ctx,
            routes,
            stop,
        });

        Self {
            listen,
            monitor,
            permits,
            server,
            tls,
        }
    }

    /// Serves until the daemon stops, then waits for requests in flight.
    pub(super) async fn serve(mut self) {
        let (monitor, permits, server) = (
            self.monitor.clone(),
            self.permits.clone(),
            self.server.clone(),
        );
        tokio::select! {
            () = self.accept() => {}
            () = server.stopped() => {}
        }

        monitor.set(ListenerState::Stopping);

        // A batch or request in flight is answered, but a peer that stopped reading must not keep
        // the daemon from stopping.
        permits.all_free(PEER_TIMEOUT).await;
    }

    /// Binds, and accepts connections forever.
    async fn accept(&mut self) {
        let name = self.server.kind.name;
        self.monitor
            .change(|status| status.listen = self.listen.to_string());
        let (listener, address) = self.bind().await;
        // Together: whoever sees that it is open may connect. With TLS it is open once it has a
        // certificate.
        let has_tls = self.tls.is_some();
        self.monitor.change(|status| {
            status.listen = address.to_string();
            if !has_tls {
                status.state = ListenerState::Open;
            }
        });
        tracing::info!(listener = name, %address, tls = self.tls.is_some(), "listener open");

        // An interval needs no knowledge of the way in which the files are replaced.
        let mut round = interval(HTTPS_POLL);
        round.set_missed_tick_behavior(MissedTickBehavior::Delay);

        loop {
            tokio::select! {
                // The certificate first: a flood of connections must not delay its reload.
                biased;
                _ = round.tick() => if let Some(tls) = &mut self.tls {
                    tls.check(&self.server, &self.monitor);
                },
                accepted = listener.accept() => match accepted {
                    Ok((stream, from)) => self.admit(stream, from).await,
                    Err(error) => {
                        tracing::warn!(listener = name, %error, "cannot accept a connection, retrying: if too many files are open, raise LimitNOFILE of the unit");
                        // Mostly no free file descriptor: without a pause this loop would spin
                        // until one is free.
                        sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        }
    }

    /// Retries until it succeeds: the address may become available later, and the job cache works
    /// without it. Returns the real address, because the port may have been chosen by the system.
    async fn bind(&self) -> (TcpListener, SocketAddr) {
        let bind = async || {
            let listener = TcpListener::bind(self.listen).await?;
            let address = listener.local_addr()?;
            std::io::Result::Ok((listener, address))
        };

        loop {
            // An address may be in use, or belong to an interface that is not up yet.
            match bind().await {
                Ok(bound) => return bound,
                Err(error) => {
                    let error = advised(&error);
                    // One log line per reason, not one per attempt.
                    let state = ListenerState::Refusing(format!("cannot listen: {error}"));
                    if self.monitor.status().state != state {
                        let name = self.server.kind.name;
                        tracing::error!(listener = name, address = %self.listen, error, "cannot listen on the address, nobody can connect to it, retrying");
                    }
                    self.monitor.set(state);
                }
            }

            sleep(HTTPS_POLL).await;
        }
    }

    async fn admit(&self, stream: TcpStream, from: SocketAddr) {
        let counters = (self.server.kind.counters)(&self.server.ctx.archive.metrics);
        counters.accepted.add(1);
        let certificate = self.tls.as_ref().map(|tls| tls.current.clone());
        // A listener with TLS and no certificate could not even say why it rejects the peer.
        if let Some(None) = certificate {
            return counters.rejected.add(1);
        }

        let Some(permit) = self.permits.take(|| counters.evicted.add(1)).await else {
            return counters.rejected.add(1);
        };

        let certificate = certificate.flatten();
        let peer = Peer::Network {
            from,
            is_loopback: self.listen.ip().is_loopback(),
        };

        let digest = certificate.as_ref().map(|certificate| certificate.digest);
        let connection = Arc::new(Connection::new(peer, Some(permit), digest));

        // A separate task, because a slow handshake must not delay another peer.
        tokio::spawn(
            self.server
                .clone()
                .serve_network(stream, connection, certificate),
        );
    }
}

/// The current certificate.
struct CertificateState {
    files: Files,
    current: Option<Certificate>,
    expiry_logged: LogOnce,
}

impl CertificateState {
    fn check(&mut self, server: &ConnectionServer, monitor: &ListenerMonitor) {
        let listener = server.kind.name;
        match self.files.check() {
            CertificateChange::Same => {}
            CertificateChange::New(certificate) => {
                let until = certificate.not_after.map(Micros::iso);
                tracing::info!(listener, until, "certificate loaded");
                monitor.set(ListenerState::Open);
                monitor.change(|status| status.certificate_until = certificate.not_after);

                self.current = Some(certificate);
                // The interval belongs to the warnings about the old certificate.
                self.expiry_logged.reset();
            }
            CertificateChange::Bad(why) => {
                server
                    .ctx
                    .archive
                    .metrics
                    .https_certificates_unusable
                    .add(1);
                // A certificate that was valid a moment ago serves better than none.
                if self.current.is_some() {
                    tracing::warn!(
                        listener,
                        why,
                        "cannot use the new certificate, keeping the previous one: correct the files and run `systemctl reload saltcellar`"
                    );
                    monitor.set(ListenerState::Impaired(format!(
                        "serves with its previous certificate: {why}"
                    )));
                } else {
                    tracing::error!(
                        listener,
                        why,
                        "no usable certificate, rejecting all connections: correct the files and run `systemctl reload saltcellar`"
                    );
                    monitor.set(ListenerState::Refusing(format!(
                        "rejects every connection, for lack of a certificate: {why}"
                    )));
                }
            }
        }

        // Even if the files did not change: the certificate may expire in the meantime.
        self.check_expiry(server);
    }

    fn check_expiry(&mut self, server: &ConnectionServer) {
        let Some(until) = self.current.as_ref().and_then(|current| current.not_after) else {
            return;
        };

        let soon = i64::try_from(HTTPS_EXPIRES_SOON.as_micros()).unwrap_or(i64::MAX);
        let now = server.ctx.archive.clock.now();
        let listener = server.kind.name;
        // The check runs every few seconds, the warning is logged at a longer interval.
        let monotonic = server.ctx.archive.clock.monotonic();
        if until.0.saturating_sub(now.0) > soon || !self.expiry_logged.is_due((), monotonic) {
            return;
        }

        if until < now {
            server.ctx.archive.metrics.https_certificates_expired.add(1);
            tracing::error!(
                listener,
                expired = until.iso(),
                "certificate expired, clients reject it: renew the files and run `systemctl reload saltcellar`"
            );
        } else {
            tracing::warn!(
                listener,
                expires = until.iso(),
                "certificate expires soon, clients will reject it: renew the files and run `systemctl reload saltcellar`"
            );
        }
    }
}

/// Why an address cannot be listened on, with what helps.
fn advised(error: &std::io::Error) -> String {
    use std::io::ErrorKind::{AddrInUse, AddrNotAvailable, PermissionDenied};

    let remedy = match error.kind() {
        AddrInUse => "`ss -ltnp` shows the program that uses it",
        AddrNotAvailable => "no interface of this host has it, correct it in the configuration",
        PermissionDenied => "choose a port from 1024 on, or give the unit CAP_NET_BIND_SERVICE",
        _ => match Errno::from_io_error(error) {
            Some(Errno::AFNOSUPPORT) => "this host has no IPv6, configure an IPv4 address",
            Some(Errno::MFILE | Errno::NFILE) => TOO_FEW_FILES,
            _ => return error.to_string(),
        },
    };
    format!("{error}; {remedy}")
}
