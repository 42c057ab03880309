//! What runs besides the calls, as they see it: the network addresses, and the processes of the
//! ZeroMQ sockets. Who runs one changes its monitor, and `status` shows it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::base::clock::Micros;
use crate::base::named::named;

/// The state of an address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ListenerState {
    /// Not bound yet.
    #[default]
    Opening,
    /// It serves as configured.
    Open,
    /// It serves, but not as configured, for this reason.
    Impaired(String),
    /// It serves nobody, for this reason.
    Refusing(String),
    /// The daemon stops.
    Stopping,
}

/// The status of an address, for `saltcellar status`.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListenerStatus {
    /// Address and port.
    pub(crate) listen: String,
    /// Whether it serves.
    pub(crate) state: ListenerState,
    /// The expiry of the certificate.
    pub(crate) certificate_until: Option<Micros>,
    /// Open connections.
    pub(crate) peers: usize,
}

/// The connections of an address: how many there are, and how many are free.
#[derive(Debug, Clone)]
pub(crate) struct Slots {
    pub(crate) all: usize,
    pub(crate) free: Arc<Semaphore>,
}

impl Slots {
    pub(crate) fn new(all: usize) -> Self {
        Self {
            all,
            free: Arc::new(Semaphore::new(all)),
        }
    }

    /// Connections in use.
    pub(crate) fn taken(&self) -> usize {
        self.all - self.free.available_permits()
    }
}

/// The live status of an address. Lock order: no other lock is taken under it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListenerMonitor(Arc<Mutex<(ListenerStatus, Option<Slots>)>>);

impl ListenerMonitor {
    /// A snapshot.
    pub(crate) fn status(&self) -> ListenerStatus {
        let held = self.0.lock();
        let peers = held.1.as_ref().map_or(0, Slots::taken);
        ListenerStatus {
            peers,
            ..held.0.clone()
        }
    }

    /// The connections that it counts.
    pub(crate) fn count(&self, slots: Slots) {
        self.0.lock().1 = Some(slots);
    }

    pub(crate) fn set(&self, state: ListenerState) {
        self.0.lock().0.state = state;
    }

    /// Changes several of its values together.
    pub(crate) fn change(&self, change: impl FnOnce(&mut ListenerStatus)) {
        change(&mut self.0.lock().0);
    }
}

/// A kind of ZeroMQ socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ZmqKind {
    #[default]
    Pull,
    Pub,
}

named! {
    ZmqKind {
        Pull: "pull",
        Pub: "pub",
    }
}

/// The state of a ZeroMQ socket; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct ZmqSocketStatus {
    /// `pull` or `pub`.
    pub(crate) kind: ZmqKind,
    pub(crate) path: PathBuf,
    /// Lock order: no other lock is taken under it.
    process: Arc<Mutex<ZmqProcess>>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ZmqProcess {
    /// The process id; `None` between two processes.
    pub(crate) pid: Option<u32>,
    /// Number of processes that ended.
    pub(crate) restarts: u64,
}

impl ZmqSocketStatus {
    /// The state of a socket without a process.
    pub(crate) fn new(kind: ZmqKind, path: &Path) -> Self {
        Self {
            kind,
            path: path.to_owned(),
            process: Arc::default(),
        }
    }

    pub(crate) fn process(&self) -> ZmqProcess {
        *self.process.lock()
    }

    /// Records the process that serves the socket now.
    pub(crate) fn set_pid(&self, pid: Option<u32>) {
        self.process.lock().pid = pid;
    }

    pub(crate) fn count_restart(&self) {
        self.process.lock().restarts += 1;
    }
}
