//! A client of a Salt master's request port (`ret_port`, 4506): publishes jobs, starts runners,
//! runs wheel functions.
//!
//! A master accepts one msgpack map and responds with another, over a ZeroMQ REQ socket
//! (`salt/channel/server.py`). The key in the master's cache grants full access, so, as in Salt,
//! the key file's permissions protect the master.
//!
//! Requests block the calling thread. Connections are pooled; many threads may send requests
//! concurrently.
//!
//! # Invariant
//!
//! Every error states what is known of the request: never sent, rejected, or sent with an unknown
//! outcome. Only in the last case it may have had an effect, and it is never resent here.

mod address;
mod answer;
mod call;
mod connection;
mod error;
mod key;
pub(crate) mod pack;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use address::MasterAddress;
pub use answer::Answer;
pub use call::Call;
pub use call::Client;
pub(crate) use call::{caller_load, runner_load, target_text, wheel_load};
pub use error::MasterError;

use connection::MasterConnection;
use key::MasterKeyFile;

use crate::base::limits::{MASTER_CONNECT_TIMEOUT, MASTER_CONNECTIONS_KEPT};
use crate::base::metrics::Metrics;
use crate::wire::msgpack::Writer;

/// The user name of Salt's reactor in events of its runners and wheels; Salt's reactor skips
/// such events.
pub(crate) const REACTOR_USER: &str = "Reactor";

/// A master's request port: connections, and the key.
pub struct Master {
    place: MasterAddress,
    key: MasterKeyFile,
    /// Lock order: no other lock is taken under it.
    idle: Mutex<Vec<MasterConnection>>,
    metrics: Arc<Metrics>,
    /// The key under which the master rejects the reactor's user name and accepts its own. With
    /// another key both are retried. Lock order: no other lock is taken under it.
    own_name_only: Mutex<Option<String>>,
}

impl Master {
    /// A master at this address. Nothing is read or connected before the first request.
    pub fn new(place: MasterAddress, metrics: Arc<Metrics>) -> Self {
        let key = MasterKeyFile::of(&place);
        Self {
            place,
            key,
            idle: Mutex::default(),
            metrics,
            own_name_only: Mutex::default(),
        }
    }

    pub(crate) fn place(&self) -> &MasterAddress {
        &self.place
    }

    /// Sends a request and waits for the response, up to `timeout`. `jid` is the jid of a published
    /// job.
    ///
    /// If the master rejects the key, it is reread once: 3006 creates a new one at each start.
    pub fn ask(&self, call: &Call, jid: &str, timeout: Duration) -> Result<Answer, MasterError> {
        if call.client == Client::Caller {
            let why = "a master has no service for `caller` functions".to_owned();
            return Err(MasterError::Refused {
                place: self.place.to_string(),
                why,
            });
        }

        let until = Instant::now() + timeout;

        // With the key of root or salt, runners and wheels may be called under any user name
        // (`authenticate_key` in `salt/auth`). Their events carry that name, by which reactors skip
        // them.
        let may_be_reactor =
            call.client.is_of_master() && matches!(self.place.user.as_str(), "root" | "salt");
        let mut anew = false;

        // The key as it is on disk, under which the master rejected the reactor's name.
        let mut rejected: Option<String> = None;

        loop {
            let key = match &rejected {
                Some(key) => key.clone(),
                None => self.key.text(anew)?,
            };
            let as_reactor = may_be_reactor && rejected.is_none() && !self.is_own_name_only(&key);
            let user = if as_reactor {
                REACTOR_USER
            } else {
                &self.place.user
            };
            let request = call.request(&key, user, jid);
            self.metrics.master_requests.add(1);
            let reply = self.exchange(&request, until);
            let outcome = reply
                .and_then(|reply| answer::read(call.client, &reply, &self.place, self.key.path()));

            match outcome {
                // The key may be new since it was read, and the request was not carried out.
                Err(MasterError::Unauthenticated { .. }) if !anew => anew = true,
                // Either the key is wrong or the name is; the master's own name shows which.
                Err(MasterError::Unauthenticated { .. }) if as_reactor => rejected = Some(key),
                outcome => {
                    match (&outcome, rejected) {
                        (Ok(_), Some(key)) => self.use_own_name_only(key),
                        (Ok(_), None) => {}
                        (Err(_), _) => self.metrics.master_requests_failed.add(1),
                    }
                    return outcome;
                }
            }
        }
    }

    /// True if the master rejected the reactor's name under this key and accepted its own.
    fn is_own_name_only(&self, key: &str) -> bool {
        self.own_name_only.lock().as_deref() == Some(key)
    }

    fn use_own_name_only(&self, key: String) {
        tracing::warn!(
            place = %self.place, user = %self.place.user,
            "master accepts runner and wheel calls only as its own user, loop protection by user name is unavailable (reactor.depth_max still applies)"
        );
        *self.own_name_only.lock() = Some(key);
    }

    /// Waits for a response of one of the master's workers, which needs no key.
    pub(crate) fn ping(&self, timeout: Duration) -> Result<(), MasterError> {
        let mut w = Writer::new();
        w.map(3)
            .str("enc")
            .str("clear")
            .str("version")
            .int(3)
            .str("load")
            .map(1)
            .str("cmd")
            .str("ping");
        // Any response will do: it comes from a worker that has read its configuration.
        self.exchange(&w.into_bytes(), Instant::now() + timeout)
            .map(drop)
    }

    /// Ensures that a connection is open, without sending a request.
    pub fn reach(&self) -> Result<(), MasterError> {
        let connection = self.connected(Instant::now() + MASTER_CONNECT_TIMEOUT)?;
        self.keep(connection);
        Ok(())
    }

    fn exchange(&self, request: &[u8], until: Instant) -> Result<Vec<u8>, MasterError> {
        let mut connection = self.connected(until)?;
        let reply = connection.exchange(request, until)?;
        self.keep(connection);
        Ok(reply)
    }

    /// A pooled connection, or a new one.
    fn connected(&self, until: Instant) -> Result<MasterConnection, MasterError> {
        let kept = loop {
            // The most recently used one is the most likely to be alive.
            match self.idle.lock().pop() {
                // A connection that was closed, or contains data that nobody waits for, is dropped.
                Some(connection) if !connection.is_quiet() => {}
                kept => break kept,
            }
        };

        if let Some(connection) = kept {
            return Ok(connection);
        }

        let timeout = MASTER_CONNECT_TIMEOUT.min(until.saturating_duration_since(Instant::now()));
        self.metrics.master_connects.add(1);
        MasterConnection::open(&self.place, Instant::now() + timeout)
    }

    fn keep(&self, connection: MasterConnection) {
        let mut idle = self.idle.lock();
        if idle.len() < MASTER_CONNECTIONS_KEPT {
            idle.push(connection);
        }
    }
}

#[cfg(test)]
mod tests;
