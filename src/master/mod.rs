//! The client of a Salt master's request port (`ret_port`, 4506): publish a job, start a runner, run a wheel function.
//!
//! A master takes one msgpack map and answers with one, over a ZeroMQ REQ socket (`salt/channel/server.py`); whoever has the
//! key that lies in the master's cache may do anything. So the key file's permissions are what guards a master, here as in Salt.
//!
//! Requests block the thread that makes them. A pool keeps connections; many threads may ask at once.
//!
//! # Invariant
//!
//! Every error says what is known of the request: never sent, refused, or sent and perhaps carried out. Only the last one may
//! have had an effect, and nothing here sends a request a second time after it.

mod answer;
mod call;
mod connection;
mod key;
pub mod pack;
mod signatures;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use answer::Answer;
pub use call::{Call, Cmd};
pub use signatures::{Signature, Signatures, read as read_signatures};

use connection::Connection;
use key::Key;

use crate::limits::{MASTER_CONNECT_PATIENCE, MASTER_CONNECTIONS_KEPT};
use crate::metrics::Metrics;

/// The user that Salt's own reactor puts into what its runners and wheels fire; Salt's reactor skips such events.
pub const REACTOR_USER: &str = "Reactor";

/// Where a master is, and how it knows us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its `interface`, or a name or address that leads there.
    pub host: String,
    /// Its `ret_port`.
    pub port: u16,
    /// Its `cachedir`: the key lies in it.
    pub cachedir: PathBuf,
    /// The user it runs as.
    pub user: String,
}

impl Place {
    /// The address to connect to: a master that listens everywhere listens here, too.
    fn address(&self) -> (&str, u16) {
        let host = match self.host.as_str() {
            "0.0.0.0" | "" => "127.0.0.1",
            "::" | "[::]" => "::1",
            host => host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host),
        };
        (host, self.port)
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (host, port) = self.address();
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Why a request has no answer that helps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MasterError {
    /// Nothing was sent: try again when it is there.
    #[error("no Salt master answers at {place}: {why}")]
    Unreachable {
        /// Where.
        place: String,
        /// What happened.
        why: String,
    },
    /// The master does not take the key: it is read anew for the next request.
    #[error("the master at {place} does not take the key of {path}: {why}")]
    Unauthenticated {
        /// Where.
        place: String,
        /// The key's file.
        path: String,
        /// What the master, or the file system, said.
        why: String,
    },
    /// The master could not at the moment; nothing was done. Try again later.
    #[error("the master at {place} could not: {why}")]
    Retry {
        /// Where.
        place: String,
        /// What it said.
        why: String,
    },
    /// The request went out, and no answer came or none that can be read: it may have been carried out.
    #[error("the master at {place} got the request and gave no usable answer: {why}")]
    NoAnswer {
        /// Where.
        place: String,
        /// What happened.
        why: String,
    },
    /// The master understood and will not; asking again does not help.
    #[error("the master at {place} refused: {why}")]
    Refused {
        /// Where.
        place: String,
        /// What it said.
        why: String,
    },
}

impl MasterError {
    /// May the same request be made again without the risk of carrying it out twice?
    pub fn was_not_done(&self) -> bool {
        !matches!(self, Self::NoAnswer { .. })
    }

    /// Is it of use to ask again?
    pub fn may_pass(&self) -> bool {
        !matches!(self, Self::Refused { .. })
    }
}

/// A master.
pub struct Master {
    place: Place,
    key: Key,
    idle: Mutex<Vec<Connection>>,
    metrics: Arc<Metrics>,
    /// The key under which the master rejects the reactor's name and accepts its own. With another key both are tried again.
    own_name_only: Mutex<Option<String>>,
}

impl Master {
    /// A master that is asked once there is something to ask.
    pub fn new(place: Place, metrics: Arc<Metrics>) -> Self {
        let key = Key::of(&place);
        Self { place, key, idle: Mutex::default(), metrics, own_name_only: Mutex::default() }
    }

    /// Where it is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The master's key, as `reactor.list` and its kin bring it along.
    pub fn key(&self) -> Result<String, MasterError> {
        self.key.text(false)
    }

    /// Makes a request and waits for the answer, up to `patience`. `jid` is the one that a published job gets.
    ///
    /// A key that the master does not take is read anew, once: 3006 makes a new one at each start.
    pub fn ask(&self, call: &Call, jid: &str, patience: Duration) -> Result<Answer, MasterError> {
        let until = Instant::now() + patience;
        // Runners and wheels may be called under any name by whoever has the key of root or of salt (`authenticate_key` in
        // `salt/auth`). What they fire then carries that name, and no reactor reacts to it.
        let may_be_reactor = call.cmd != Cmd::Publish && matches!(self.place.user.as_str(), "root" | "salt");
        let mut anew = false;
        // The key as it is on disk, under which the master rejected the reactor's name.
        let mut rejected: Option<String> = None;
        loop {
            let key = match &rejected {
                Some(key) => key.clone(),
                None => self.key.text(anew)?,
            };
            let as_reactor = may_be_reactor && rejected.is_none() && !self.is_own_name_only(&key);
            let user = if as_reactor { REACTOR_USER } else { &self.place.user };
            let request = call.request(&key, user, jid);
            self.metrics.master_requests.add(1);
            let reply = self.exchange(&request, until);
            let outcome =
                reply.and_then(|reply| answer::read(call.cmd, &reply, &self.place, self.key.path()));
            match outcome {
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
        self.own_name_only.lock().unwrap_or_else(PoisonError::into_inner).as_deref() == Some(key)
    }

    fn use_own_name_only(&self, key: String) {
        tracing::warn!(
            place = %self.place, user = %self.place.user,
            "the master accepts runners and wheels under its own user's name only; their events do not show that they are reactions"
        );
        *self.own_name_only.lock().unwrap_or_else(PoisonError::into_inner) = Some(key);
    }

    /// Sees to it that a connection stands, without asking anything.
    pub fn reach(&self) -> Result<(), MasterError> {
        let connection = self.connected(Instant::now() + MASTER_CONNECT_PATIENCE)?;
        self.keep(connection);
        Ok(())
    }

    fn exchange(&self, request: &[u8], until: Instant) -> Result<Vec<u8>, MasterError> {
        let mut connection = self.connected(until)?;
        let reply = connection.exchange(request, until)?;
        self.keep(connection);
        Ok(reply)
    }

    /// A connection that was kept, or a new one.
    fn connected(&self, until: Instant) -> Result<Connection, MasterError> {
        let kept = loop {
            // The latest first: it is the likeliest to live.
            match self.idle().pop() {
                Some(connection) if !connection.is_quiet() => {}
                kept => break kept,
            }
        };
        if let Some(connection) = kept {
            return Ok(connection);
        }
        let patience = MASTER_CONNECT_PATIENCE.min(until.saturating_duration_since(Instant::now()));
        self.metrics.master_connects.add(1);
        Connection::open(&self.place, Instant::now() + patience)
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle();
        if idle.len() < MASTER_CONNECTIONS_KEPT {
            idle.push(connection);
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
