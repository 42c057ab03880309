//! The bus door: reads a master's or a minion's event bus with no Python in the path.
//!
//! One thread per bus connects to the publisher's unix socket, which asks for nothing and sends everything
//! (`salt/transport/tcp.py`, `ipc.py`). A subscriber that reads slowly makes the publisher's memory grow on
//! 3006 and is disconnected on 3007 and 3008; so this one always reads, and what the store cannot take yet
//! waits in a backlog of [`BUS_BACKLOG_BYTES`]. Beyond that, events are lost and counted.
//!
//! The bus comes and goes with its master: the thread connects again with a growing pause, and finds out the
//! framing anew each time.

use std::collections::VecDeque;
use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use crate::channel::Refused;
use crate::clock::Clock;
use crate::limits::{
    BUS_BACKLOG_BYTES, BUS_READ_BYTES, BUS_RECONNECT_MAX, BUS_RECONNECT_MIN, ENTRY_BYTES_MAX, STOP_CHECK,
};
use crate::metrics::Metrics;
use crate::model::{Batch, Source};
use crate::shutdown::Drain;
use crate::store::Intake;
use crate::wire::frame::{self, FrameError, Framing, Splitter};
use crate::wire::salt_event;

/// What `saltcellar status` shows of a bus.
#[derive(Debug, Clone, Default)]
pub struct BusStatus {
    /// The publisher's socket.
    pub path: PathBuf,
    /// Is the door connected?
    pub connected: bool,
    /// The framing of this connection, once a byte has come.
    pub framing: Option<Framing>,
    /// Events taken since the daemon started.
    pub events: u64,
}

/// A [`BusStatus`] that its door keeps up to date.
#[derive(Debug, Clone, Default)]
pub struct Watch(Arc<Mutex<BusStatus>>);

impl Watch {
    /// How it stands at the moment.
    pub fn status(&self) -> BusStatus {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut BusStatus)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// A bus to read.
pub struct Bus {
    path: PathBuf,
    entry_bytes_max: usize,
    intake: Intake,
    clock: Clock,
    metrics: Arc<Metrics>,
    drain: Drain,
    watch: Watch,
    backlog: Backlog,
}

/// The publisher's socket in Salt's socket directory: a master's, else a minion's, else the master's that is
/// still to come. A path that is no directory is taken as the socket itself.
pub fn publisher(sock_dir: &Path) -> PathBuf {
    if sock_dir.exists() && !sock_dir.is_dir() {
        return sock_dir.to_owned();
    }
    let master = sock_dir.join("master_event_pub.ipc");
    if master.exists() {
        return master;
    }
    let is_minions = |name: &str| name.starts_with("minion_event_") && name.ends_with("_pub.ipc");
    let items = std::fs::read_dir(sock_dir).into_iter().flatten().flatten();
    let minion = items
        .map(|item| item.path())
        .find(|path| path.file_name().and_then(|n| n.to_str()).is_some_and(is_minions));
    minion.unwrap_or(master)
}

impl Bus {
    /// A door to the bus in a socket directory; events over `entry_bytes_max` are counted and left out.
    pub fn new(
        sock_dir: &Path,
        entry_bytes_max: usize,
        intake: Intake,
        clock: Clock,
        metrics: Arc<Metrics>,
        drain: Drain,
    ) -> Self {
        let backlog = Backlog { waiting: VecDeque::new(), bytes: 0, metrics: metrics.clone() };
        let watch = Watch::default();
        watch.change(|s| s.path = publisher(sock_dir));
        Self { path: sock_dir.to_owned(), entry_bytes_max, intake, clock, metrics, drain, watch, backlog }
    }

    /// A view of how it stands.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Reads until asked to stop.
    pub fn run(mut self) {
        let mut pause = BUS_RECONNECT_MIN;
        let mut said = false;
        while !self.drain.is_stopping() {
            let path = publisher(&self.path);
            self.watch.change(|s| s.path.clone_from(&path));
            match UnixStream::connect(&path) {
                Ok(stream) => {
                    tracing::info!(bus = %path.display(), "connected to the event bus");
                    self.metrics.bus_connects.add(1);
                    (pause, said) = (BUS_RECONNECT_MIN, false);
                    let why = self.read(stream);
                    self.watch.change(|s| (s.connected, s.framing) = (false, None));
                    if !self.drain.is_stopping() {
                        tracing::warn!(bus = %path.display(), why, "the event bus is gone; connecting again");
                    }
                }
                Err(error) => {
                    if !said {
                        tracing::info!(bus = %path.display(), %error, "no event bus yet; waiting for it");
                        said = true;
                    }
                    pause = (pause * 2).min(BUS_RECONNECT_MAX);
                }
            }
            self.backlog.pass_on(&self.intake);
            self.drain.wait(pause);
        }
        self.backlog.finish(&self.intake);
    }

    /// Reads one connection to its end and says why it ended.
    fn read(&mut self, mut stream: UnixStream) -> String {
        if let Err(error) = stream.set_read_timeout(Some(STOP_CHECK)) {
            return error.to_string();
        }
        // The frame around a body adds a few bytes to the largest entry.
        let mut splitter = Splitter::new(ENTRY_BYTES_MAX + 64);
        let mut buffer = vec![0_u8; BUS_READ_BYTES];
        self.watch.change(|s| s.connected = true);
        while !self.drain.is_stopping() {
            match stream.read(&mut buffer) {
                Ok(0) => return "closed by Salt".to_owned(),
                Ok(n) => {
                    splitter.feed(buffer.get(..n).unwrap_or_default());
                    if let Err(error) = self.take(&mut splitter) {
                        self.metrics.bus_frames_malformed.add(1);
                        return error.to_string();
                    }
                }
                Err(e)
                    if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return error.to_string(),
            }
            self.backlog.pass_on(&self.intake);
        }
        "stopping".to_owned()
    }

    /// Turns the whole frames that have come into a batch.
    fn take(&mut self, splitter: &mut Splitter) -> Result<(), FrameError> {
        let at = self.clock.now();
        let mut batch = Batch::default();
        let outcome = loop {
            match splitter.next_frame() {
                Ok(Some(frame)) => match frame::body(frame).and_then(salt_event::split) {
                    Some((tag, data)) if tag.len() + data.len() > self.entry_bytes_max => {
                        self.metrics.entries_too_large.add(1);
                    }
                    Some((tag, data)) => {
                        let (entry, prints) = salt_event::printed_entry(tag, data, Source::Bus, at);
                        batch.push(&entry, Some(prints));
                    }
                    None => self.metrics.bus_frames_malformed.add(1),
                },
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let framing = splitter.framing();
        if !batch.is_empty() {
            let events = batch.len() as u64;
            self.metrics.bus_events.add(events);
            self.watch.change(|s| (s.framing, s.events) = (framing, s.events + events));
            self.backlog.push(batch);
        }
        outcome
    }
}

/// Batches that wait for room in `intake`.
struct Backlog {
    waiting: VecDeque<Batch>,
    bytes: usize,
    metrics: Arc<Metrics>,
}

impl Backlog {
    fn push(&mut self, batch: Batch) {
        if self.bytes + batch.bytes() > BUS_BACKLOG_BYTES {
            let lost = batch.len() as u64;
            self.metrics.bus_events_lost.add(lost);
            tracing::error!(lost, "the store cannot keep up with the event bus; events are lost");
            return;
        }
        self.bytes += batch.bytes();
        self.waiting.push_back(batch);
    }

    /// Hands over what the queue has room for; never waits.
    fn pass_on(&mut self, intake: &Intake) {
        while let Some(batch) = self.waiting.pop_front() {
            let (bytes, events) = (batch.bytes(), batch.len() as u64);
            let metrics = self.metrics.clone();
            let done: crate::store::Done = Box::new(move |stored| {
                if stored.is_err() {
                    metrics.bus_events_lost.add(events);
                }
            });
            match intake.try_submit(batch, Some(done)) {
                Ok(()) => self.bytes = self.bytes.saturating_sub(bytes),
                Err(Refused::Full((batch, _))) => {
                    self.waiting.push_front(batch);
                    return;
                }
                Err(Refused::Closed(_)) => {
                    self.bytes = self.bytes.saturating_sub(bytes);
                    self.metrics.bus_events_lost.add(events);
                }
            }
        }
    }

    /// Hands over everything, waiting for room: the end is near and nobody reads the bus any more.
    fn finish(&mut self, intake: &Intake) {
        while !self.waiting.is_empty() {
            self.pass_on(intake);
            if !self.waiting.is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
