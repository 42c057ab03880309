//! What calls know of the history that several masters share. They only read it.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Micros;
use crate::cluster::peers::{Links, PeerView, Peers};

/// The shared history, on a daemon with `cluster.nats`. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct SharedHistory {
    peers: Arc<Peers>,
    stream: Arc<str>,
    /// The time for which the stream keeps messages.
    window: Duration,
}

impl SharedHistory {
    pub(crate) fn new(peers: Arc<Peers>, stream: &str, window: Duration) -> Self {
        Self {
            peers,
            stream: stream.into(),
            window,
        }
    }

    /// The name of this master in it.
    pub(crate) fn own(&self) -> &str {
        self.peers.own.as_str()
    }

    pub(crate) fn slot(&self) -> Option<&str> {
        self.peers.slot()
    }

    pub(crate) fn stream(&self) -> &str {
        &self.stream
    }

    pub(crate) fn window(&self) -> Duration {
        self.window
    }

    /// The other masters, by name.
    pub(crate) fn others(&self) -> Vec<PeerView> {
        let mut others = self.peers.all();
        for other in &mut others {
            // Nothing of it is here yet, and no more than this is to come.
            if other.complete == Micros::default() && other.behind.is_some() {
                other.behind = Some(self.window);
            }
        }
        others
    }

    pub(crate) fn links(&self) -> Links {
        self.peers.links()
    }

    /// Messages of the stream with a subject of no master.
    pub(crate) fn foreign(&self) -> u64 {
        self.peers.foreign()
    }
}
