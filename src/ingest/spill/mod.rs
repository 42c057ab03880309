//! The spill: bus events that the store has not accepted yet, in memory first, then on disk.
//!
//! ```text
//! reader --push--> intake                            while nothing waits
//!             \--> memory --SpillDrainer--> intake   the newest events are in memory, older ones on disk
//!                        \--> disk --/
//! ```
//!
//! The reader never waits for a disk; only the drainer accesses it. A busy store may set the pace
//! for [`SPILL_AFTER`]; events that have waited longer are spilled to disk, up to
//! `ingest.spill_bytes_max`, once they take more than
//! [`SPILL_ABOVE_BYTES`](crate::base::limits::SPILL_ABOVE_BYTES). Memory is limited by
//! [`BUS_MEMORY_BYTES`]. While it is full the reader waits for the drainer, [`BUS_WAITS_MAX`] in
//! total. The drainer delivers in order: rejected batches, then events on disk, then events in
//! memory. Events are lost only when both are full, or the disk accepts no writes. Losses are
//! counted and recorded as a gap.
//!
//! # Invariant
//!
//! A batch is kept until the store reports it durable. A rejected one (no space, a failed write) is retried
//! in its place. Therefore everything up to the time in `SEEN` is in the log or in the spill.
//!
//! # Files
//!
//! - `state.rs`: what the reader, the drainer and the store's responses share, by its parts: `offered.rs`,
//!   `memory.rs`, `losses.rs`, `position.rs`
//! - `drainer.rs`: the thread that delivers and spills
//! - `file.rs`: the files on disk; `delivery.rs`: their events as chunks; `log.rs`: one of them
//!
//! [`BUS_MEMORY_BYTES`]: crate::base::limits::BUS_MEMORY_BYTES
//! [`BUS_WAITS_MAX`]: crate::base::limits::BUS_WAITS_MAX

mod delivery;
mod drainer;
pub mod file;
mod log;
mod losses;
mod memory;
mod offered;
mod pending;
mod position;
mod state;
mod verify;

pub(crate) use verify::faults;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

pub(crate) use self::drainer::{Seen, SpillDrainer, drain_orphaned_spills};
use self::pending::PendingBatch;
use self::state::SpillState;
use super::gap::Gap;
use super::gather::Readers;
use crate::base::clock::{Clock, Micros};
use crate::base::limits::{SOURCE_LOG_INTERVAL, SPILL_AFTER};
use crate::base::log_once::LogOnce;
use crate::base::metrics::Metrics;
use crate::base::shutdown::Drain;
use crate::model::Batch;
use crate::policy::Policy;
use crate::store::vfs::Fs;
use crate::store::{Done, Intake};

/// Waiting and lost events for `saltcellar status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Waiting {
    /// Events in memory.
    pub events: u64,
    /// Bytes of memory that they take.
    pub bytes: u64,
    /// Events on disk.
    pub(crate) spilled_events: u64,
    /// Bytes of files on disk.
    pub(crate) spilled_bytes: u64,
    /// Events lost since the start.
    pub lost: u64,
    /// Gaps recorded since the start.
    pub gaps: u64,
    /// Everything up to here is safe.
    pub seen: Option<Micros>,
}

/// State shared by writer, drainer and the store's responses. It holds no sender of `intake`: the
/// store stops when those are dropped.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Lock order: after the writer of the store, which answers under its lock; before `bus` and
    /// `losses`.
    state: Mutex<SpillState>,
    changed: Condvar,
    /// The publisher's socket, for gaps and messages. A minion's is known once it exists. Lock
    /// order: after `state`; no other lock is taken under it.
    bus: Mutex<PathBuf>,
    clock: Clock,
    metrics: Arc<Metrics>,
    losses: LogOnce,
}

impl Shared {
    /// The publisher's socket. Its lock is held for the copy only, whatever else is locked.
    fn bus(&self) -> PathBuf {
        self.bus.lock().clone()
    }

    pub(crate) fn waiting(&self) -> Waiting {
        let state = self.state.lock();

        Waiting {
            events: state.events_in_memory(),
            bytes: state.memory.bytes() as u64,
            spilled_events: state.disk.events(),
            spilled_bytes: state.disk.bytes(),
            lost: state.losses.lost(),
            gaps: state.losses.gaps(),
            seen: state.safe().until,
        }
    }

    /// Why the store rejected the last batch; `None` once it accepts one again.
    pub(crate) fn refused(&self) -> Option<String> {
        self.state.lock().offered.refusal().map(str::to_owned)
    }

    /// Counts and logs a gap; returns the batch with its entry.
    fn gap_batch(&self, state: &mut SpillState, gap: &Gap) -> Batch {
        state.losses.count_gap();
        self.metrics.bus_gaps.add(1);
        let bus_path = self.bus();
        let (bus, cause) = (bus_path.display(), gap.cause.name());
        let (begin, end, lost) = (gap.begin.map(Micros::iso), gap.end.iso(), gap.lost);

        // A restart is an expected state and no reason for a warning.
        if gap.is_of_a_restart() {
            tracing::info!(%bus, cause, begin, end, "the bus was not read during a restart");
        } else {
            tracing::warn!(%bus, cause, begin, end, lost, "bus events may be missing: see `saltcellar events list --tag 'saltcellar/gap/*'`");
        }

        gap.batch(&bus_path)
    }

    /// Records the store's response to a batch in flight.
    fn answered(&self, id: u64, outcome: Result<(), String>) {
        let failed = outcome.is_err();

        let mut state = self.state.lock();
        state.offered.answered(id, outcome);
        let wakes_drainer =
            failed || state.closing || !state.is_clear() || state.offered.has_stored_files();
        drop(state);

        // Without the lock, which the drainer takes first.
        if wakes_drainer {
            self.changed.notify_all();
        }
    }
}

/// Offers a batch to the store; false if there is no room.
fn offer(
    shared: &Arc<Shared>,
    state: &mut SpillState,
    intake: &Intake,
    pending_batch: &PendingBatch,
) -> bool {
    let id = state.offered.next_id();
    let answers = shared.clone();
    let done: Done = Box::new(move |outcome| answers.answered(id, outcome));

    match intake.try_share(pending_batch.batch.clone(), Some(done)) {
        Ok(()) => {
            state.offered.offered(pending_batch.clone());
            true
        }
        // Full, or the process exits: the events are spilled to disk.
        Err(_) => false,
    }
}

#[derive(Clone)]
pub(crate) struct BusDependencies {
    pub intake: Intake,
    pub policy: Arc<Policy>,
    pub(crate) spills: PathBuf,
    /// Limit of the files of one bus, in bytes.
    pub(crate) spill_bytes_max: u64,
    pub fs: Arc<dyn Fs>,
    pub clock: Clock,
    pub metrics: Arc<Metrics>,
    pub drain: Drain,
    pub(crate) readers: Readers,
}

/// The writing half of a spill.
pub(crate) struct SpillWriter {
    shared: Arc<Shared>,
    intake: Intake,
}

impl SpillWriter {
    /// A writer with an empty spill.
    pub(crate) fn new(bus: &Path, intake: Intake, clock: Clock, metrics: Arc<Metrics>) -> Self {
        let shared = Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            bus: Mutex::new(bus.to_owned()),
            clock,
            metrics,
            losses: LogOnce::every(SOURCE_LOG_INTERVAL),
        };

        Self {
            shared: Arc::new(shared),
            intake,
        }
    }

    /// Sets the publisher's socket that gaps and messages name from now on.
    pub(crate) fn set_bus(&self, bus: &Path) {
        bus.clone_into(&mut self.shared.bus.lock());
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// An empty batch for [`SpillWriter::push`].
    pub(crate) fn empty_batch(&self) -> Batch {
        self.shared.state.lock().offered.empty_batch()
    }

    /// Accepts events read at `at`. If memory is full it waits for the drainer, [`BUS_WAITS_MAX`] in all
    /// until memory is half empty again. Salt does not notice such a pause, and a working disk frees memory in that time.
    ///
    /// [`BUS_WAITS_MAX`]: crate::base::limits::BUS_WAITS_MAX
    pub(crate) fn push(&self, mut batch: Batch, at: Micros) {
        if batch.is_empty() {
            return;
        }

        batch.shrink();
        let mut state = self.shared.state.lock();
        let wanted = batch.footprint();
        state.memory.renew_timeout();

        while !state.fits(wanted) && state.memory.may_wait() {
            // The drainer frees memory without a notification, hence the short wait.
            let began = Instant::now();
            self.shared
                .changed
                .wait_for(&mut state, Duration::from_millis(2));

            // A busy store that makes progress may set the pace.
            if !state.offered.accepted_within(SPILL_AFTER) {
                state.memory.waited(began.elapsed());
            }
        }

        if !state.fits(wanted) {
            self.lose(&mut state, batch.len() as u64, at);
            return;
        }

        // A loss ends with this batch, and its gap goes before it.
        self.take_loss(&mut state);
        self.take(&mut state, batch, at);
    }

    /// Accepts a gap in order with the events.
    pub(crate) fn push_gap(&self, gap: &Gap) {
        self.take_gap(&mut self.shared.state.lock(), gap);
    }

    /// Sets the time up to which the bus has been read.
    pub(crate) fn read_until(&self, at: Micros) {
        self.shared.state.lock().read.until = Some(at);
    }

    /// Marks the end of input.
    pub(crate) fn close(&self) {
        let mut state = self.shared.state.lock();

        // A loss that lasts until the end needs its gap as well.
        self.take_loss(&mut state);
        state.closing = true;
        drop(state);
        self.shared.changed.notify_all();
    }

    fn take(&self, state: &mut SpillState, batch: Batch, at: Micros) {
        let first = state.read.number_events(batch.len() as u64);
        let pending_batch = PendingBatch::new(batch, first, at);

        // Directly to the store only while no older event waits, to keep the order.
        if state.is_clear() && offer(&self.shared, state, &self.intake, &pending_batch) {
            return;
        }

        state.memory.push(pending_batch);
        self.shared.changed.notify_all();
    }

    fn lose(&self, state: &mut SpillState, events: u64, at: Micros) {
        self.shared.metrics.bus_events_lost.add(events);
        state.losses.lose(events, at);

        if self.shared.losses.is_due((), self.shared.clock.monotonic()) {
            tracing::error!(
                bus = %self.shared.bus().display(), events,
                "neither the store nor the spill accepts bus events, events are lost: check the disk for errors and free space, and whether `ingest.spill_bytes_max` is too low"
            );
        }
    }

    /// Ends the current loss, if any, with its gap.
    fn take_loss(&self, state: &mut SpillState) {
        if let Some(gap) = state.losses.end() {
            self.take_gap(state, &gap);
        }
    }

    fn take_gap(&self, state: &mut SpillState, gap: &Gap) {
        let batch = self.shared.gap_batch(state, gap);
        self.take(state, batch, gap.end);
    }
}

/// The directory of a bus in the directory of all spills: its path in readable form, and a hash of it.
pub(crate) fn dir_of(spills: &Path, bus: &Path) -> PathBuf {
    let text = bus.to_string_lossy();

    // The end of a path tells more than its beginning, and the length of a file name is limited.
    let readable: String = text
        .trim_matches('/')
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .rev()
        .take(60)
        .collect();
    let readable: String = readable.chars().rev().collect();

    let hash = crate::model::chained(0, [text.as_bytes()]);
    spills.join(format!("{readable}-{hash:016x}"))
}
