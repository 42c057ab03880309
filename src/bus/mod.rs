//! The event buses of Salt as far as the daemon is connected to them, and firing events onto one.

pub mod fire;
pub(crate) mod firing;
pub(crate) mod patience;

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::wire::frame::Framing;

/// The state of a connection to a bus.
#[derive(Debug, Clone, Default)]
pub(crate) struct LinkState {
    /// The publisher's socket.
    pub(crate) path: PathBuf,
    pub(crate) connected: bool,
    /// The framing of this connection, once detected.
    pub(crate) framing: Option<Framing>,
    /// Events received since the daemon started.
    pub(crate) events: u64,
}

/// A connection to a bus: the source of the bus changes its state, others look at it. Lock order:
/// no other lock is taken under it.
#[derive(Debug, Clone, Default)]
pub struct BusLink(Arc<Mutex<LinkState>>);

impl BusLink {
    /// A connection to the publisher's socket at `path`, not established yet.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(Arc::new(Mutex::new(LinkState {
            path,
            ..LinkState::default()
        })))
    }

    pub(crate) fn state(&self) -> LinkState {
        self.0.lock().clone()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut LinkState)) {
        change(&mut self.0.lock());
    }
}
