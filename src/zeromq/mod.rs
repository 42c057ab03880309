//! ZeroMQ: a PULL that takes events from any program, and a PUB of all events stored.
//!
//! Both listen on `ipc://` alone, behind the permissions of a file, and speak ZMTP 3 themselves ([`crate::wire::zmtp`]): no
//! length that a peer announces is believed, none of its frames is unbounded, and none of its silences holds up another.
//! A message is an event as it is on Salt's bus: tag, two newlines, a msgpack map.
//!
//! # Invariant
//!
//! A peer can end its own connection and nothing else. Peers, their unfinished messages and what waits for them are bounded
//! (`limits.rs`), and whatever a bound takes has a counter.

pub mod publish;
pub mod pull;

mod peer;
mod subscriptions;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What `saltcellar status` shows of one of these doors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoorStatus {
    /// `pull` or `pub`.
    pub name: &'static str,
    /// Its socket.
    pub path: PathBuf,
    /// Connections open now.
    pub peers: u64,
    /// Events taken, or sent: one that goes to three subscribers counts three times.
    pub events: u64,
    /// Events not taken, or not sent because a subscriber was slow.
    pub dropped: u64,
}

#[derive(Debug)]
struct Tally {
    name: &'static str,
    path: PathBuf,
    peers: AtomicU64,
    events: AtomicU64,
    dropped: AtomicU64,
}

/// A [`DoorStatus`] that its door keeps up to date.
#[derive(Debug, Clone)]
pub struct Watch(Arc<Tally>);

impl Watch {
    fn new(name: &'static str, path: &Path) -> Self {
        let count = AtomicU64::default;
        Self(Arc::new(Tally {
            name,
            path: path.to_owned(),
            peers: count(),
            events: count(),
            dropped: count(),
        }))
    }

    /// How it stands at the moment.
    pub fn status(&self) -> DoorStatus {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        DoorStatus {
            name: self.0.name,
            path: self.0.path.clone(),
            peers: read(&self.0.peers),
            events: read(&self.0.events),
            dropped: read(&self.0.dropped),
        }
    }

    fn count(&self, events: u64) {
        self.0.events.fetch_add(events, Ordering::Relaxed);
    }

    fn drop_events(&self, events: u64) {
        self.0.dropped.fetch_add(events, Ordering::Relaxed);
    }

    /// Counts a connection for as long as it is held.
    fn enter(&self) -> Seat {
        self.0.peers.fetch_add(1, Ordering::Relaxed);
        Seat(self.clone())
    }
}

/// One open connection.
struct Seat(Watch);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.0.peers.fetch_sub(1, Ordering::Relaxed);
    }
}
