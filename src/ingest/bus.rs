//! The bus source: reads the event bus of a master or minion without Python in the path.
//!
//! One thread per bus connects to the publisher's unix socket, which sends all events without a handshake
//! (`salt/transport/tcp.py`, `ipc.py`). A slow subscriber makes the publisher's memory grow on
//! 3006 and is disconnected on 3007 and 3008. Therefore the thread always reads, and events that the store cannot accept yet wait in
//! the spill ([`super::spill`]), which a second thread drains. Between two reads it pauses for as long as the socket
//! has room ([`super::gather`]).
//!
//! After a disconnect the thread reconnects with a growing pause, and detects the
//! framing again. Each interruption is recorded as a gap ([`super::gap`]) once the new connection is
//! established: after its first event, or after [`BUS_SETTLED`]; or when the daemon stops before.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::gap::{Cause, Gap};
use super::gather::{Taken, is_due, occupied_by};
use super::spill::{BusDependencies, Seen, Shared, SpillDrainer, SpillWriter, Waiting, dir_of};
use crate::base::backoff::Backoff;
use crate::base::clock::Micros;
use crate::base::limits::{
    BUS_GATHER, BUS_READ_BYTES, BUS_RECONNECT_MAX, BUS_RECONNECT_MIN, BUS_SETTLED, ENTRY_BYTES_MAX,
    FIRE_TIMEOUT, STOP_CHECK,
};
use crate::bus::patience::Patience;
use crate::bus::{BusLink, LinkState};
use crate::model::{Batch, Source};
use crate::wire::frame::{self, FrameError, FrameSplitter, Framing};

#[derive(Debug, Clone, Default)]
pub(crate) struct BusStatus {
    /// The publisher's socket.
    pub(crate) path: PathBuf,
    pub(crate) connected: bool,
    /// The framing of this connection, once detected.
    pub(crate) framing: Option<Framing>,
    /// Events received since the daemon started.
    pub(crate) events: u64,
    /// Events waiting for the store.
    pub(crate) waiting: Waiting,
    /// Why the store rejected the last batch; `None` if it accepted it.
    pub(crate) refused: Option<String>,
}

/// The live status behind a [`BusStatus`].
#[derive(Debug, Clone)]
pub struct BusMonitor(BusLink, Arc<Shared>);

impl BusMonitor {
    pub(crate) fn status(&self) -> BusStatus {
        let LinkState {
            path,
            connected,
            framing,
            events,
        } = self.0.state();

        BusStatus {
            path,
            connected,
            framing,
            events,
            waiting: self.1.waiting(),
            refused: self.1.refused(),
        }
    }

    /// The connection to the bus.
    pub(crate) fn link(&self) -> &BusLink {
        &self.0
    }
}

pub(crate) struct Bus {
    number: usize,
    path: PathBuf,
    deps: BusDependencies,
    watch: BusMonitor,
    spill_writer: SpillWriter,
    gathered: Option<Gathered>,
    /// Start and cause of an interruption that is not recorded yet.
    broken: Option<(Option<Micros>, Cause)>,
}

/// Events that are not handed over yet.
struct Gathered {
    batch: Batch,
    /// The time of the first read.
    at: Micros,
    since: Instant,
}

enum ConnectionEnd {
    ClosedBySalt,
    Failed(String),
    Unreadable(FrameError),
    Stopping,
}

/// A connection, established or not.
struct Connection {
    since: Micros,
    /// A monotonic time.
    began: Duration,
    settled: bool,
    read_at: Micros,
}

/// The publisher's socket in Salt's socket directory: a master's, else a minion's, else the path where the master will
/// create it. A path that is not a directory is the socket itself.
pub(crate) fn publisher(sock_dir: &Path) -> PathBuf {
    if sock_dir.exists() && !sock_dir.is_dir() {
        return sock_dir.to_owned();
    }

    let master = sock_dir.join("master_event_pub.ipc");
    if master.exists() {
        return master;
    }

    let is_minions = |name: &str| name.starts_with("minion_event_") && name.ends_with("_pub.ipc");
    let items = std::fs::read_dir(sock_dir).into_iter().flatten().flatten();
    let minions = items.map(|item| item.path()).filter(|path| {
        path.file_name()
            .and_then(|n| n.to_str())
            .is_some_and(is_minions)
    });

    // The newest, because a minion whose id changed leaves its old socket behind.
    let newest = minions.max_by_key(|path| path.metadata().and_then(|found| found.modified()).ok());
    newest.unwrap_or(master)
}

impl Bus {
    /// A source for the bus in a socket directory.
    pub(crate) fn new(number: usize, sock_dir: &Path, deps: BusDependencies) -> Self {
        let path = publisher(sock_dir);
        let spill_writer = SpillWriter::new(
            &path,
            deps.intake.clone(),
            deps.clock.clone(),
            deps.metrics.clone(),
        );

        let watch = BusMonitor(BusLink::new(path), spill_writer.shared());

        Self {
            number,
            path: sock_dir.to_owned(),
            deps,
            watch,
            spill_writer,
            gathered: None,
            broken: None,
        }
    }

    pub(crate) fn watch(&self) -> BusMonitor {
        self.watch.clone()
    }

    /// Reads until shutdown.
    pub(crate) fn run(mut self) {
        let dir = dir_of(&self.deps.spills, &self.path);
        let fs = self.deps.fs.clone();
        let bytes_max = self.deps.spill_bytes_max;
        let master_keys = self.deps.policy.master_keys().clone();

        let (spill_drainer, seen) = match SpillDrainer::open(
            &self.spill_writer,
            &dir,
            fs.clone(),
            master_keys,
            bytes_max,
        ) {
            Ok(opened) => opened,
            Err(error) => {
                // Reading goes on without a disk, because Salt's publisher waits for no subscriber.
                self.deps.metrics.spill_reads_failed.add(1);
                tracing::error!(dir = %dir.display(), %error, "cannot open the spill, bus events are kept in memory only: once it can be opened, restart the daemon");
                (
                    SpillDrainer::without_disk(&self.spill_writer, &dir, fs),
                    Seen::default(),
                )
            }
        };

        // Without a position of an earlier daemon nothing is known to be missing, so there is no
        // gap.
        if seen.known {
            self.broken = Some((seen.until, Cause::StartUp));
        }

        std::thread::scope(|threads| {
            let name = format!("sc-spill-{}", self.number);
            let moving = std::thread::Builder::new()
                .name(name)
                .spawn_scoped(threads, || spill_drainer.run());
            match moving {
                Ok(_) => self.connect_and_read(),
                // As at any other thread that cannot be started: the limit of the unit is too low.
                Err(error) => tracing::error!(
                    bus = %self.path.display(), %error,
                    "cannot start a thread for the spill, the event bus is not read: raise TasksMax of the unit and restart the daemon"
                ),
            }

            // Ends the drainer, for which the scope waits.
            self.spill_writer.close();
        });
    }

    fn connect_and_read(&mut self) {
        let mut backoff = Backoff::new(BUS_RECONNECT_MIN, BUS_RECONNECT_MAX);
        let mut logged = false;
        while !self.deps.drain.is_stopping() {
            // Looked up for each attempt, because a master or minion may create its socket later.
            let path = publisher(&self.path);
            self.watch.link().change(|s| s.path.clone_from(&path));
            self.spill_writer.set_bus(&path);
            // A publisher that hangs does not accept the connection, and must not delay a stop.
            let patience = Patience {
                until: Instant::now() + FIRE_TIMEOUT,
                stop: &self.deps.drain,
            };

            match patience.connect(&path) {
                Ok(stream) => {
                    tracing::info!(bus = %path.display(), "connected to the event bus");
                    self.deps.metrics.bus_connects.add(1);
                    logged = false;

                    let now = self.deps.clock.now();
                    let mut connection = Connection {
                        since: now,
                        began: self.deps.clock.monotonic(),
                        settled: false,
                        read_at: now,
                    };
                    let end = self.read(stream, &mut connection);

                    // Whatever ended the connection, its complete events are kept.
                    self.hand_over();
                    self.watch
                        .link()
                        .change(|s| (s.connected, s.framing) = (false, None));

                    // Connections that end immediately must not be retried at full speed.
                    if connection.settled {
                        backoff.reset();
                    }

                    self.ended(&path, &connection, end);
                }
                Err(error) => {
                    // Once for each outage: an absent master is an expected state, which `status`
                    // shows.
                    if !logged {
                        tracing::info!(bus = %path.display(), %error, "event bus not available, waiting for it");
                        logged = true;
                    }
                }
            }

            self.deps.drain.wait(backoff.next());
        }
    }

    fn ended(&mut self, path: &Path, connection: &Connection, end: ConnectionEnd) {
        let cause = match end {
            ConnectionEnd::Stopping => {
                self.stopped(connection);
                return;
            }
            // A master that stops closes it. If it stays away, `status` says so, and the gap is logged when it is back.
            ConnectionEnd::ClosedBySalt => {
                tracing::info!(bus = %path.display(), "event bus closed by Salt, reconnecting");
                Cause::Disconnect
            }
            ConnectionEnd::Failed(why) => {
                tracing::warn!(bus = %path.display(), why, "event bus disconnected, reconnecting: is salt-master running? `saltcellar doctor` checks it");
                Cause::Disconnect
            }
            ConnectionEnd::Unreadable(error) => {
                let counter = match error {
                    FrameError::Unknown { .. } => &self.deps.metrics.bus_framings_unknown,
                    _ => &self.deps.metrics.bus_frames_malformed,
                };
                counter.add(1);
                tracing::warn!(bus = %path.display(), %error, "malformed data on the event bus, reconnecting: does `bus` name Salt's publisher socket?");
                Cause::Framing
            }
        };

        // A connection that was never established does not shorten the gap.
        if connection.settled {
            self.broken = Some((Some(connection.read_at), cause));
        } else if self.broken.is_none() {
            self.broken = Some((Some(connection.since), cause));
        }
    }

    /// Completes the records of a connection when the daemon stops. The gap before a connection
    /// that was not established yet is recorded now: otherwise it would become part of the next
    /// start's gap, and restarts in quick succession would look like one long loss. Nothing is
    /// certain about events within the connection, so the next gap begins with it.
    fn stopped(&mut self, connection: &Connection) {
        if connection.settled {
            return;
        }
        self.record_gap(connection);
        self.spill_writer.read_until(connection.since);
    }

    fn read(&mut self, mut stream: UnixStream, connection: &mut Connection) -> ConnectionEnd {
        // The framing adds a few bytes to the largest entry.
        let mut splitter = FrameSplitter::new(ENTRY_BYTES_MAX + 64);
        self.watch.link().change(|s| s.connected = true);
        let mut read_before = Instant::now();
        let mut timeout_before = None;

        while !self.deps.drain.is_stopping() {
            // Gathered events wait for the next read, or for a reader.
            let timeout = if self.gathered.is_some() {
                BUS_GATHER
            } else {
                STOP_CHECK
            };
            // Only when it changes, because it is a system call and reads are frequent.
            if timeout_before != Some(timeout)
                && let Err(error) = stream.set_read_timeout(Some(timeout))
            {
                return ConnectionEnd::Failed(error.to_string());
            }
            timeout_before = Some(timeout);

            match stream.read(splitter.room(BUS_READ_BYTES)) {
                Ok(0) => return ConnectionEnd::ClosedBySalt,
                Ok(n) => {
                    let now = Instant::now();
                    let within = now.duration_since(std::mem::replace(&mut read_before, now));
                    splitter.fed(n);
                    let occupied = match self.take(&mut splitter, connection) {
                        Ok(occupied) => occupied,
                        Err(error) => return ConnectionEnd::Unreadable(error),
                    };
                    self.hand_over_when_due();

                    let taken = Taken { occupied, within };
                    let pause = taken.pause(self.deps.readers.pause_max());
                    if !pause.is_zero() {
                        self.deps.drain.wait(pause);
                    }
                }
                Err(e)
                    if matches!(
                        e.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    ) =>
                {
                    // A publisher may have nothing to send for hours. It counts as connected once
                    // it has not closed the connection for a while.
                    let age = self.deps.clock.monotonic().saturating_sub(connection.began);
                    if age >= BUS_SETTLED {
                        self.settle(connection);
                    }

                    self.hand_over_when_due();
                    // Nothing arrived, so nothing was missed up to now.
                    self.read_until(connection, self.deps.clock.now());
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                // As a connection ends that a publisher had not accepted yet when it stopped.
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {
                    return ConnectionEnd::ClosedBySalt;
                }
                Err(error) => return ConnectionEnd::Failed(error.to_string()),
            }
        }

        ConnectionEnd::Stopping
    }

    /// Marks the connection as established, and records the gap before it.
    fn settle(&mut self, connection: &mut Connection) {
        connection.settled = true;
        self.record_gap(connection);
    }

    fn record_gap(&mut self, connection: &Connection) {
        if let Some((begin, cause)) = self.broken.take() {
            self.spill_writer.push_gap(&Gap {
                begin,
                end: connection.since,
                cause,
                lost: None,
            });
        }
    }

    /// Makes a batch of the complete frames received so far. Returns the bytes that these occupied in the socket.
    fn take(
        &mut self,
        splitter: &mut FrameSplitter,
        connection: &mut Connection,
    ) -> Result<usize, FrameError> {
        let at = self.deps.clock.now();
        let Gathered { batch, .. } = self.gathered.get_or_insert_with(|| Gathered {
            batch: self.spill_writer.empty_batch(),
            at,
            since: Instant::now(),
        });

        let mut events = 0;
        let mut occupied = 0;
        let policy = self.deps.policy.clone();

        let outcome = loop {
            match splitter.next_frame() {
                Ok(Some(frame)) => {
                    occupied += occupied_by(frame.len());
                    let Some(message) = frame::body(frame) else {
                        self.deps.metrics.bus_frames_malformed.add(1);
                        continue;
                    };
                    let Ok(outcome) = policy.message(message, Source::Bus, at) else {
                        // The policy has counted and logged the rejection.
                        continue;
                    };

                    // An event that a rule drops still counts as received.
                    if let Some(accepted) = outcome {
                        batch.push(&accepted.entry(), accepted.fingerprints);
                    }
                    events += 1;
                }
                Ok(None) => break Ok(occupied),
                Err(FrameError::Oversized { len, tag, .. }) => {
                    occupied += occupied_by(len);
                    // The policy has counted and logged it.
                    let body = policy.unreceived(&tag, len, Source::Bus);
                    let Some(body) = body else { continue };
                    let outcome = policy.event(&tag, &body, Source::Bus, at);
                    if let Ok(Some(accepted)) = outcome {
                        batch.push(&accepted.entry(), accepted.fingerprints);
                    }
                    events += 1;
                }
                Err(error) => break Err(error),
            }
        };

        let framing = splitter.framing();

        // A whole frame proves that this is a bus, so the connection is established.
        if occupied > 0 {
            self.settle(connection);
        }
        if events > 0 {
            self.deps.metrics.bus_events.add(events);
            self.watch
                .link()
                .change(|s| (s.framing, s.events) = (framing, s.events + events));
        }

        // Even before an error: the events up to here are in the batch.
        self.read_until(connection, at);
        outcome
    }

    /// Hands the gathered events over, if it is time.
    fn hand_over_when_due(&mut self) {
        let is_due = self.gathered.as_ref().is_some_and(|gathered| {
            let age = gathered.since.elapsed();
            is_due(&gathered.batch, age, self.deps.readers.wait())
        });

        if is_due {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        if let Some(Gathered { batch, at, .. }) = self.gathered.take() {
            self.spill_writer.push(batch, at);
        }
    }

    /// Marks the bus as read until `at`.
    fn read_until(&self, connection: &mut Connection, at: Micros) {
        if connection.settled {
            connection.read_at = at;
            self.spill_writer
                .read_until(self.gathered.as_ref().map_or(at, |gathered| gathered.at));
        }
    }
}
