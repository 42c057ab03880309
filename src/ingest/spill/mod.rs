//! The spill: what a bus has said and the store has not taken yet, in memory first, then on disk.
//!
//! ```text
//! reader --push--> intake                       while nothing waits
//!             \--> memory --mover--> intake     the newest is in memory, what is older on disk
//!                        \--> disk --/
//! ```
//!
//! The reader never waits for a disk, which only the mover touches. Memory is bounded by [`BUS_MEMORY_BYTES`]; while it is full
//! the reader gives the store a moment ([`SPILL_AFTER`]), so that a store that works at its limit sets the pace, and what it
//! has not taken by then goes to disk, up to `ingest.spill_bytes_max`. The mover hands over in order: what the store
//! refused, then what is on disk, then what is in memory. Only when both are full, or the disk takes nothing, are events
//! lost: counted, and told by a gap record in their place.
//!
//! # Invariant
//!
//! A batch is kept until the store has said that it is on disk. One that it refuses (no space, a failed write) is offered
//! again, in its place. So the moment that `SEEN` tells is one up to which everything is in the log or in the spill.

pub mod file;
mod mover;
mod reader;
mod record;
pub mod redact;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trials;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use self::mover::{Mover, Seen, hand_over_leftovers};
use super::gap::{Cause, Gap};
use super::gate::Gate;
use crate::channel::Refused;
use crate::clock::{Clock, Micros};
use crate::limits::{BUS_MEMORY_BYTES, BUS_WAITS_MAX, DOOR_SAYS, LOSING_ENDS_BYTES, SPILL_AFTER};
use crate::metrics::Metrics;
use crate::model::Batch;
use crate::shutdown::Drain;
use crate::store::medium::Medium;
use crate::store::{Done, Intake};

/// Events on their way, and what they are called.
#[derive(Debug, Clone)]
struct Parcel {
    batch: Arc<Batch>,
    /// The number of its first event.
    first: u64,
    /// When it was read.
    at: Micros,
    /// Since when it waits.
    since: Instant,
    /// The file of the spill that it came out of.
    file: Option<u64>,
    /// How often the store refused it alone.
    refused: u32,
}

/// A parcel that the store has not answered, or not all before it.
#[derive(Debug)]
struct Flight {
    parcel: Parcel,
    stored: Option<bool>,
}

/// How much waits, for `saltcellar status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waiting {
    /// Events in memory.
    pub events: u64,
    /// Memory they take.
    pub bytes: u64,
    /// Events on disk.
    pub spilled_events: u64,
    /// Bytes of files on disk.
    pub spilled_bytes: u64,
    /// Events lost since the start.
    pub lost: u64,
    /// Gaps recorded since the start.
    pub gaps: u64,
    /// Up to here everything is safe.
    pub seen: Option<Micros>,
}

#[derive(Debug, Default)]
struct State {
    flights: VecDeque<Flight>,
    /// The number of the first of them.
    first_flight: u64,
    /// Refused, to be offered again; the oldest first.
    back: VecDeque<Parcel>,
    /// In memory, newer than what is on disk; the oldest first.
    waiting: VecDeque<Parcel>,
    waiting_bytes: usize,
    /// There may be something on disk that has not been handed over.
    on_disk: bool,
    /// The store refused something: one parcel at a time, until it takes one.
    held: bool,
    words: String,
    /// How long the reader may still wait for room.
    patience: Duration,
    /// Events that are being lost.
    losing: Option<Gap>,
    /// The number of the next event.
    next_number: u64,
    /// Up to here the bus has been read.
    read_until: Option<Micros>,
    /// No more will come.
    closing: bool,
    /// Parcels that the store has taken.
    taken: u64,
    /// When it took the last one.
    taken_at: Option<Instant>,
    /// Files of which a piece has been stored.
    stored: Vec<u64>,
    disk: (u64, u64),
    lost: u64,
    gaps: u64,
    said_losing: Option<Instant>,
}

impl State {
    /// May what comes now go straight to the store?
    fn is_clear(&self) -> bool {
        self.waiting.is_empty() && self.back.is_empty() && !self.on_disk && !self.held
    }

    /// The moment and the number up to which everything is in the log or on disk.
    fn safe(&self) -> (Option<Micros>, u64) {
        let flights = self.flights.iter().map(|flight| &flight.parcel);
        let mut kept_nowhere = flights.chain(&self.back).chain(&self.waiting).filter(|p| p.file.is_none());
        match (kept_nowhere.next(), &self.losing) {
            (Some(parcel), _) => (Some(parcel.at), parcel.first.saturating_sub(1)),
            (None, Some(losing)) => (losing.begin, self.next_number.saturating_sub(1)),
            (None, None) => (self.read_until, self.next_number.saturating_sub(1)),
        }
    }

    /// Is there room in memory? Who has lost something waits for more of it, so that a loss is one gap and not one between
    /// any two events.
    fn fits(&self, bytes: usize) -> bool {
        let room = BUS_MEMORY_BYTES - if self.losing.is_some() { LOSING_ENDS_BYTES } else { 0 };
        self.waiting.is_empty() || self.waiting_bytes + bytes <= room
    }

    fn events_in_memory(&self) -> u64 {
        self.waiting.iter().chain(&self.back).map(|parcel| parcel.batch.len() as u64).sum()
    }
}

/// What reader, mover and the store's answers share. It holds no sender of `intake`: the store stops when those are gone.
#[derive(Debug)]
pub struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    bus: PathBuf,
    clock: Clock,
    metrics: Arc<Metrics>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, pause: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0
    }

    /// How much waits.
    pub fn waiting(&self) -> Waiting {
        let state = self.lock();
        let (spilled_events, spilled_bytes) = state.disk;
        Waiting {
            events: state.events_in_memory(),
            bytes: state.waiting_bytes as u64,
            spilled_events,
            spilled_bytes,
            lost: state.lost,
            gaps: state.gaps,
            seen: state.safe().0,
        }
    }

    /// Why the store refused what was offered last; none once it takes something again.
    pub fn refused(&self) -> Option<String> {
        let state = self.lock();
        state.held.then(|| state.words.clone())
    }

    /// The store's answer to a flight.
    fn answered(&self, flight: u64, outcome: Result<(), String>) {
        let mut state = self.lock();
        let at = usize::try_from(flight.saturating_sub(state.first_flight)).unwrap_or(usize::MAX);
        let failed = outcome.is_err();
        if let Some(flight) = state.flights.get_mut(at) {
            flight.stored = Some(!failed);
        }
        if let Err(words) = outcome {
            (state.held, state.words) = (true, words);
        } else {
            while state.flights.front().is_some_and(|flight| flight.stored == Some(true)) {
                let file = state.flights.pop_front().and_then(|flight| flight.parcel.file);
                state.first_flight += 1;
                state.taken += 1;
                state.taken_at = Some(Instant::now());
                state.stored.extend(file);
            }
            // What it refused before, it takes now.
            let takes_again = state.held && state.flights.is_empty();
            state.held &= !takes_again;
        }
        let calls_mover = failed || state.closing || !state.is_clear() || !state.stored.is_empty();
        drop(state);
        if calls_mover {
            self.changed.notify_all();
        }
    }
}

/// Offers a parcel to the store; false if there is no room.
fn offer(shared: &Arc<Shared>, state: &mut State, intake: &Intake, parcel: &Parcel) -> bool {
    let id = state.first_flight + state.flights.len() as u64;
    let teller = shared.clone();
    let done: Done = Box::new(move |outcome| teller.answered(id, outcome));
    match intake.try_share(parcel.batch.clone(), Some(done)) {
        Ok(()) => {
            state.flights.push_back(Flight { parcel: parcel.clone(), stored: None });
            true
        }
        // Closed comes with the end of the process: what is here goes to disk.
        Err(Refused::Full(_) | Refused::Closed(_)) => false,
    }
}

/// What a bus door works with.
#[derive(Clone)]
pub struct Fittings {
    /// Where the entries go.
    pub intake: Intake,
    /// What they pass before.
    pub gate: Arc<Gate>,
    /// The directory of all spills.
    pub spills: PathBuf,
    /// Bytes that the spill of a bus may have on disk.
    pub spill_bytes_max: u64,
    /// Through which the spill is written.
    pub medium: Arc<dyn Medium>,
    /// The time.
    pub clock: Clock,
    /// Where to count.
    pub metrics: Arc<Metrics>,
    /// The wish to stop.
    pub drain: Drain,
    /// How long events gather after a read that brought few.
    pub gather: std::time::Duration,
}

/// The reader's end.
pub struct Feeder {
    shared: Arc<Shared>,
    intake: Intake,
}

impl Feeder {
    /// One that feeds the store, with nothing waiting.
    pub fn new(bus: &Path, intake: Intake, clock: Clock, metrics: Arc<Metrics>) -> Self {
        let state = State { next_number: 1, ..State::default() };
        let shared =
            Shared { state: Mutex::new(state), changed: Condvar::new(), bus: bus.to_owned(), clock, metrics };
        Self { shared: Arc::new(shared), intake }
    }

    /// A view of it.
    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Takes events that were read at a time. If memory is full it waits a moment for the mover, [`BUS_WAITS_MAX`] in all
    /// until there is ample room again: Salt does not notice so little, and a disk that writes at all makes room.
    pub fn push(&self, mut batch: Batch, at: Micros) {
        if batch.is_empty() {
            return;
        }
        batch.shrink();
        let mut state = self.shared.lock();
        let wanted = batch.footprint();
        if state.waiting_bytes < BUS_MEMORY_BYTES / 2 {
            state.patience = BUS_WAITS_MAX;
        }
        while !state.fits(wanted) && !state.patience.is_zero() {
            let began = Instant::now();
            state = self.shared.wait(state, Duration::from_millis(2));
            // A store that is busy, and not stuck, may set the pace.
            if state.taken_at.is_none_or(|at| at.elapsed() > SPILL_AFTER) {
                state.patience = state.patience.saturating_sub(began.elapsed());
            }
        }
        if !state.fits(wanted) {
            self.lose(&mut state, batch.len() as u64, at);
            return;
        }
        if let Some(gap) = state.losing.take() {
            self.take(&mut state, gap.batch(&self.shared.bus), gap.end);
            self.count_gap(&mut state, &gap);
        }
        self.take(&mut state, batch, at);
    }

    /// Takes a gap, in its place among the events.
    pub fn push_gap(&self, gap: &Gap) {
        let mut state = self.shared.lock();
        self.take(&mut state, gap.batch(&self.shared.bus), gap.end);
        self.count_gap(&mut state, gap);
    }

    /// The bus has been read up to here.
    pub fn read_until(&self, at: Micros) {
        self.shared.lock().read_until = Some(at);
    }

    /// Nothing more will come.
    pub fn close(&self) {
        let mut state = self.shared.lock();
        if let Some(gap) = state.losing.take() {
            self.take(&mut state, gap.batch(&self.shared.bus), gap.end);
            self.count_gap(&mut state, &gap);
        }
        state.closing = true;
        drop(state);
        self.shared.changed.notify_all();
    }

    fn take(&self, state: &mut State, batch: Batch, at: Micros) {
        let first = state.next_number;
        state.next_number += batch.len() as u64;
        let parcel =
            Parcel { batch: Arc::new(batch), first, at, since: Instant::now(), file: None, refused: 0 };
        if state.is_clear() && offer(&self.shared, state, &self.intake, &parcel) {
            return;
        }
        state.waiting_bytes += parcel.batch.footprint();
        state.waiting.push_back(parcel);
        self.shared.changed.notify_all();
    }

    fn lose(&self, state: &mut State, events: u64, at: Micros) {
        self.shared.metrics.bus_events_lost.add(events);
        state.lost += events;
        let gap = state.losing.get_or_insert(Gap {
            begin: Some(at),
            end: at,
            cause: Cause::Overflow,
            lost: Some(0),
        });
        gap.end = at;
        gap.lost = gap.lost.map(|lost| lost + events);
        if state.said_losing.is_none_or(|said| said.elapsed() >= DOOR_SAYS) {
            state.said_losing = Some(Instant::now());
            tracing::error!(
                bus = %self.shared.bus.display(), events,
                "neither store nor spill take what the bus says: events are lost"
            );
        }
    }

    fn count_gap(&self, state: &mut State, gap: &Gap) {
        state.gaps += 1;
        count_gap(&self.shared, gap);
    }
}

fn count_gap(shared: &Shared, gap: &Gap) {
    shared.metrics.bus_gaps.add(1);
    tracing::warn!(
        bus = %shared.bus.display(), cause = gap.cause.name(), begin = gap.begin.map(Micros::iso),
        end = gap.end.iso(), lost = gap.lost, "events of the bus may be missing"
    );
}

/// The directory of a bus, below that of all spills: its path, readable, and a hash of it.
pub fn dir_of(spills: &Path, bus: &Path) -> PathBuf {
    let text = bus.to_string_lossy();
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
