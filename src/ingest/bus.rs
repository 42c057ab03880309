//! The bus door: reads a master's or a minion's event bus with no Python in the path.
//!
//! One thread per bus connects to the publisher's unix socket, which asks for nothing and sends everything
//! (`salt/transport/tcp.py`, `ipc.py`). A subscriber that reads slowly makes the publisher's memory grow on
//! 3006 and is disconnected on 3007 and 3008; so this one always reads, and what the store cannot take yet waits in
//! the spill ([`super::spill`]), which a thread of its own moves on.
//!
//! The bus comes and goes with its master: the thread connects again with a growing pause, and finds out the
//! framing anew each time. Whenever continuity is broken a gap record tells from when to when ([`super::gap`]). It is
//! written once a connection has proved to be one: by its first event, or by having lived for [`BUS_SETTLED`].

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Instant;

use super::gap::{Cause, Gap};
use super::spill::{Feeder, Fittings, Mover, Seen, Shared, Waiting, dir_of};
use crate::clock::Micros;
use crate::limits::{
    BUS_READ_BYTES, BUS_READ_LITTLE, BUS_RECONNECT_MAX, BUS_RECONNECT_MIN, BUS_SETTLED, ENTRY_BYTES_MAX,
    STOP_CHECK,
};
use crate::model::{Batch, Source};
use crate::wire::frame::{self, FrameError, Framing, Splitter};

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
    /// What waits for the store.
    pub waiting: Waiting,
    /// Why the store takes nothing, if it refused what was offered last.
    pub refused: Option<String>,
}

/// A [`BusStatus`] that its door keeps up to date.
#[derive(Debug, Clone)]
pub struct Watch(Arc<Mutex<BusStatus>>, Arc<Shared>);

impl Watch {
    /// How it stands at the moment.
    pub fn status(&self) -> BusStatus {
        let status = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        BusStatus { waiting: self.1.waiting(), refused: self.1.refused(), ..status }
    }

    fn change(&self, change: impl FnOnce(&mut BusStatus)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// A bus to read.
pub struct Bus {
    number: usize,
    path: PathBuf,
    fittings: Fittings,
    watch: Watch,
    feeder: Feeder,
    /// Continuity is broken: since when, and why.
    broken: Option<(Option<Micros>, Cause)>,
}

/// Why a connection ended.
enum End {
    Closed(String),
    Unreadable(FrameError),
    Stopping,
}

/// A connection that may still have to prove itself.
struct Connection {
    since: Micros,
    began: Instant,
    settled: bool,
    /// When it was read last.
    read_at: Micros,
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
    /// A door to the bus in a socket directory.
    pub fn new(number: usize, sock_dir: &Path, fittings: Fittings) -> Self {
        let path = publisher(sock_dir);
        let feeder =
            Feeder::new(&path, fittings.intake.clone(), fittings.clock.clone(), fittings.metrics.clone());
        let status = BusStatus { path, ..BusStatus::default() };
        let watch = Watch(Arc::new(Mutex::new(status)), feeder.shared());
        Self { number, path: sock_dir.to_owned(), fittings, watch, feeder, broken: None }
    }

    /// A view of how it stands.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Reads until asked to stop.
    pub fn run(mut self) {
        let dir = dir_of(&self.fittings.spills, &self.path);
        let (medium, bytes_max) = (self.fittings.medium.clone(), self.fittings.spill_bytes_max);
        let master_keys = self.fittings.gate.master_keys().clone();
        let (mover, seen) = match Mover::open(&self.feeder, &dir, medium.clone(), master_keys, bytes_max) {
            Ok(opened) => opened,
            Err(error) => {
                self.fittings.metrics.spill_reads_failed.add(1);
                tracing::error!(dir = %dir.display(), %error, "could not open the spill; what a bus says can wait in memory only");
                (Mover::without_disk(&self.feeder, &dir, medium), Seen::default())
            }
        };
        if seen.known {
            self.broken = Some((seen.until, Cause::StartUp));
        }
        std::thread::scope(|threads| {
            let name = format!("sc-spill-{}", self.number);
            let moving = std::thread::Builder::new().name(name).spawn_scoped(threads, || mover.run());
            match moving {
                Ok(_) => self.connect_and_read(),
                Err(error) => tracing::error!(%error, "could not start the thread that moves events on"),
            }
            self.feeder.close();
        });
    }

    fn connect_and_read(&mut self) {
        let mut pause = BUS_RECONNECT_MIN;
        let mut said = false;
        while !self.fittings.drain.is_stopping() {
            let path = publisher(&self.path);
            self.watch.change(|s| s.path.clone_from(&path));
            match UnixStream::connect(&path) {
                Ok(stream) => {
                    tracing::info!(bus = %path.display(), "connected to the event bus");
                    self.fittings.metrics.bus_connects.add(1);
                    said = false;
                    let now = self.fittings.clock.now();
                    let mut connection =
                        Connection { since: now, began: Instant::now(), settled: false, read_at: now };
                    let end = self.read(stream, &mut connection);
                    self.watch.change(|s| (s.connected, s.framing) = (false, None));
                    // One that ends at once, again and again, is not to be tried at full speed.
                    pause = if connection.settled {
                        BUS_RECONNECT_MIN
                    } else {
                        (pause * 2).min(BUS_RECONNECT_MAX)
                    };
                    self.ended(&path, &connection, end);
                }
                Err(error) => {
                    if !said {
                        tracing::info!(bus = %path.display(), %error, "no event bus yet; waiting for it");
                        said = true;
                    }
                    pause = (pause * 2).min(BUS_RECONNECT_MAX);
                }
            }
            self.fittings.drain.wait(pause);
        }
    }

    fn ended(&mut self, path: &Path, connection: &Connection, end: End) {
        let cause = match end {
            End::Stopping => return,
            End::Closed(why) => {
                tracing::warn!(bus = %path.display(), why, "the event bus is gone; connecting again");
                Cause::Disconnect
            }
            End::Unreadable(error) => {
                let counter = match error {
                    FrameError::Unknown { .. } => &self.fittings.metrics.bus_framings_unknown,
                    _ => &self.fittings.metrics.bus_frames_malformed,
                };
                counter.add(1);
                tracing::warn!(bus = %path.display(), %error, "the event bus cannot be read on; connecting again");
                Cause::Framing
            }
        };
        // A connection that never became one leaves the gap as long as it was.
        if connection.settled {
            self.broken = Some((Some(connection.read_at), cause));
        } else if self.broken.is_none() {
            self.broken = Some((Some(connection.since), cause));
        }
    }

    /// Reads one connection to its end.
    fn read(&mut self, mut stream: UnixStream, connection: &mut Connection) -> End {
        if let Err(error) = stream.set_read_timeout(Some(STOP_CHECK)) {
            return End::Closed(error.to_string());
        }
        // The frame around a body adds a few bytes to the largest entry.
        let mut splitter = Splitter::new(ENTRY_BYTES_MAX + 64);
        let mut buffer = vec![0_u8; BUS_READ_BYTES];
        self.watch.change(|s| s.connected = true);
        while !self.fittings.drain.is_stopping() {
            match stream.read(&mut buffer) {
                Ok(0) => return End::Closed("closed by Salt".to_owned()),
                Ok(n) => {
                    splitter.feed(buffer.get(..n).unwrap_or_default());
                    if let Err(error) = self.take(&mut splitter, n, connection) {
                        return End::Unreadable(error);
                    }
                    if n < BUS_READ_LITTLE {
                        self.fittings.drain.wait(self.fittings.gather);
                    }
                }
                Err(e)
                    if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) =>
                {
                    if connection.began.elapsed() >= BUS_SETTLED {
                        self.settle(connection);
                    }
                    if connection.settled {
                        connection.read_at = self.fittings.clock.now();
                        self.feeder.read_until(connection.read_at);
                    }
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return End::Closed(error.to_string()),
            }
        }
        End::Stopping
    }

    /// The connection is one: what was missed before it is told.
    fn settle(&mut self, connection: &mut Connection) {
        connection.settled = true;
        if let Some((begin, cause)) = self.broken.take() {
            self.feeder.push_gap(&Gap { begin, end: connection.since, cause, lost: None });
        }
    }

    /// Turns the whole frames that have come into a batch.
    fn take(
        &mut self,
        splitter: &mut Splitter,
        bytes: usize,
        connection: &mut Connection,
    ) -> Result<(), FrameError> {
        let at = self.fittings.clock.now();
        let mut batch = Batch::with_room(bytes);
        let (mut events, mut frames) = (0, false);
        let gate = self.fittings.gate.clone();
        let outcome = loop {
            match splitter.next_frame() {
                Ok(Some(frame)) => {
                    frames = true;
                    let Some(message) = frame::body(frame) else {
                        self.fittings.metrics.bus_frames_malformed.add(1);
                        continue;
                    };
                    let taken = gate.message(message, Source::Bus, at, |entry, prints| {
                        batch.push(entry, Some(prints));
                    });
                    events += u64::from(taken.is_ok());
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let framing = splitter.framing();
        if frames {
            self.settle(connection);
        }
        if events > 0 {
            self.fittings.metrics.bus_events.add(events);
            self.watch.change(|s| (s.framing, s.events) = (framing, s.events + events));
        }
        self.feeder.push(batch, at);
        if connection.settled {
            connection.read_at = at;
            self.feeder.read_until(at);
        }
        outcome
    }
}
