//! The mover: the thread that hands over what waits, empties memory to disk, and remembers how far the bus is safe.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::file::{DiskQueue, Hole};
use super::{Feeder, Fittings, Flight, Parcel, Shared, State, count_gap, dir_of, offer};
use crate::clock::Micros;
use crate::ingest::gap::{Cause, Gap};
use crate::ingest::master_keys::MasterKeys;
use crate::limits::{
    DOOR_SAYS, REFUSED_PAUSE_MAX, REFUSED_PAUSE_MIN, REFUSED_TIMES_MAX, SEEN_EVERY, SPILL_ABOVE_BYTES,
    SPILL_AFTER, SPILL_RETRY, SPILL_RETRY_MAX, SPILL_STOP_PATIENCE, STOP_CHECK,
};
use crate::store::Intake;
use crate::store::medium::{Medium, MediumFile};

/// The mover's end: hands over, spills, and remembers how far the bus is safe.
pub struct Mover {
    shared: Arc<Shared>,
    intake: Intake,
    disk: DiskQueue,
    medium: Arc<dyn Medium>,
    /// An earlier release spilled events as they came.
    master_keys: Arc<MasterKeys>,
    bytes_max: u64,
    /// A parcel off the disk that there was no room for.
    piece: Option<Parcel>,
    disk_rests_until: Option<Instant>,
    /// After a failed read: until when none is tried, and how long that is.
    reads_rest_until: Option<(Instant, Duration)>,
    pub(super) offers_again_at: Option<(Instant, Duration)>,
    /// Entries that the store had stored when it first refused what it refuses now.
    stored_before: u64,
    seen: (Option<Micros>, u64),
    seen_at: Option<Instant>,
    seen_file: Option<Box<dyn MediumFile>>,
    said: Option<Instant>,
    said_refused: bool,
    /// Parcels that the store has taken, and since when it has taken none.
    taken: u64,
    taken_at: Instant,
}

/// Where the bus was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    /// There was a daemon before that read this bus.
    pub known: bool,
    /// Up to here everything is safe.
    pub until: Option<Micros>,
}

impl Mover {
    /// Opens the directory of a bus, and says where the bus was left.
    pub fn open(
        feeder: &Feeder,
        dir: &Path,
        medium: Arc<dyn Medium>,
        master_keys: Arc<MasterKeys>,
        bytes_max: u64,
    ) -> std::io::Result<(Self, Seen)> {
        let shared = feeder.shared();
        let known = dir.exists();
        let (disk, found) = DiskQueue::open(medium.clone(), dir)?;
        if !known {
            let text = format!("{}\n", shared.bus.display());
            medium.create(&dir.join(BUS))?.write_all_at(text.as_bytes(), 0)?;
        }
        let (until, number) = read_seen(dir).unwrap_or_default();
        shared.metrics.spill_bytes_cut.add(found.cut);
        shared.metrics.spill_files_set_aside.add(found.aside);
        shared.metrics.spill_events_found.add(found.events);
        shared.metrics.spill_reads_failed.add(found.failed);
        let last = found.last.map_or(0, |(number, _)| number);
        {
            let mut state = shared.lock();
            state.next_number = last.max(number) + 1;
            state.on_disk = !disk.is_empty();
            state.disk = (disk.waiting(), disk.bytes());
            // Older than what is on disk, in memory or with the store when the daemon was killed.
            if let Some((first, at)) = found.first.filter(|(first, _)| known && *first > number + 1) {
                let gap = Gap { begin: until, end: at, cause: Cause::StartUp, lost: None };
                let batch = Arc::new(gap.batch(&shared.bus));
                state.back.push_back(Parcel {
                    batch,
                    first: first - 1,
                    at,
                    since: Instant::now(),
                    file: None,
                    refused: 0,
                });
                feeder.count_gap(&mut state, &gap);
            }
        }
        if found.events > 0 {
            tracing::info!(dir = %dir.display(), events = found.events, "handing over what waited on disk");
        }
        // Where an end was torn off, nobody knows how much was lost: the gap of this start begins before that.
        let until = if last > number || found.cut > 0 { found.last.map(|(_, at)| at) } else { until };
        shared.lock().read_until = until;
        Ok((Self::new(feeder, disk, medium, master_keys, bytes_max), Seen { known, until }))
    }

    /// One that has memory only: its directory cannot be opened.
    pub fn without_disk(feeder: &Feeder, dir: &Path, medium: Arc<dyn Medium>) -> Self {
        Self::new(feeder, DiskQueue::empty(medium.clone(), dir), medium, Arc::new(MasterKeys::none()), 0)
    }

    fn new(
        feeder: &Feeder,
        disk: DiskQueue,
        medium: Arc<dyn Medium>,
        master_keys: Arc<MasterKeys>,
        bytes_max: u64,
    ) -> Self {
        Self {
            shared: feeder.shared(),
            intake: feeder.intake.clone(),
            disk,
            medium,
            master_keys,
            bytes_max,
            piece: None,
            disk_rests_until: None,
            reads_rest_until: None,
            offers_again_at: None,
            stored_before: 0,
            seen: (None, 0),
            seen_at: None,
            seen_file: None,
            said: None,
            said_refused: false,
            taken: 0,
            taken_at: Instant::now(),
        }
    }

    /// Moves until nothing more comes and everything is stored, or on disk.
    pub fn run(mut self) {
        loop {
            let moved = self.hand_over();
            let spilled = self.spill();
            self.note_seen(false);
            let state = self.shared.lock();
            if state.taken != self.taken || !state.closing {
                (self.taken, self.taken_at) = (state.taken, Instant::now());
            }
            let empty =
                state.waiting.is_empty() && state.back.is_empty() && !state.on_disk && self.piece.is_none();
            if state.closing && empty && state.flights.is_empty() && state.stored.is_empty() {
                break;
            }
            if state.closing && self.taken_at.elapsed() > SPILL_STOP_PATIENCE {
                drop(state);
                self.keep_all();
                break;
            }
            let pause = match () {
                () if moved || spilled => continue,
                () if state.held => REFUSED_PAUSE_MIN / 4,
                () if !empty => Duration::from_millis(1),
                () => STOP_CHECK,
            };
            drop(self.shared.wait(state, pause));
        }
        self.note_seen(true);
    }

    /// Hands over what there is room for; says whether that was something.
    pub(super) fn hand_over(&mut self) -> bool {
        let stored = std::mem::take(&mut self.shared.lock().stored);
        let mut moved = !stored.is_empty();
        for file in stored {
            self.disk.stored(file);
        }
        self.take_back();
        loop {
            let shared = self.shared.clone();
            let mut state = shared.lock();
            state.disk = (self.disk.waiting(), self.disk.bytes());
            if state.held && !self.may_offer_again(&state) {
                return moved;
            }
            if let Some(parcel) = state.back.front().cloned() {
                if !offer(&shared, &mut state, &self.intake, &parcel) {
                    return moved;
                }
                state.back.pop_front();
                self.offers_again_at = None;
            } else if let Some(parcel) = &self.piece {
                if !offer(&shared, &mut state, &self.intake, parcel) {
                    return moved;
                }
                self.piece = None;
            } else if state.on_disk {
                drop(state);
                if !self.read_disk() {
                    return moved;
                }
            } else if let Some(parcel) = state.waiting.front().cloned() {
                if !offer(&shared, &mut state, &self.intake, &parcel) {
                    return moved;
                }
                state.waiting_bytes = state.waiting_bytes.saturating_sub(parcel.batch.footprint());
                state.waiting.pop_front();
            } else {
                return moved;
            }
            moved = true;
        }
    }

    /// While the store refuses: one parcel at a time, with pauses. Nothing of what it refused may be overtaken.
    fn may_offer_again(&mut self, state: &State) -> bool {
        if !state.flights.is_empty() {
            return false;
        }
        if state.back.is_empty() {
            return true;
        }
        let now = Instant::now();
        self.offers_again_at.is_none_or(|(at, _)| now >= at)
    }

    /// Takes back what the store refused, once it has answered everything.
    fn take_back(&mut self) {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        if state.flights.iter().any(|flight| flight.stored.is_none()) {
            return;
        }
        if state.flights.is_empty() {
            if !state.held && self.said_refused {
                self.said_refused = false;
                tracing::info!(bus = %shared.bus.display(), "the store takes events again");
            }
            return;
        }
        let flights = std::mem::take(&mut state.flights);
        state.first_flight += flights.len() as u64;
        let alone = flights.len() == 1;
        for Flight { mut parcel, stored } in flights.into_iter().rev() {
            if stored == Some(true) {
                state.stored.extend(parcel.file);
                continue;
            }
            shared.metrics.bus_events_offered_again.add(parcel.batch.len() as u64);
            if parcel.refused == 0 {
                self.stored_before = shared.metrics.entries_stored.get();
            }
            parcel.refused += u32::from(alone);
            let takes_others = shared.metrics.entries_stored.get() > self.stored_before;
            if parcel.refused >= REFUSED_TIMES_MAX && takes_others {
                self.give_up(&mut state, &parcel);
                continue;
            }
            state.back.push_front(parcel);
        }
        let pause =
            self.offers_again_at.map_or(REFUSED_PAUSE_MIN, |(_, pause)| pause * 2).min(REFUSED_PAUSE_MAX);
        self.offers_again_at = Some((Instant::now() + pause, pause));
        if self.said.is_none_or(|said| said.elapsed() >= DOOR_SAYS) {
            (self.said, self.said_refused) = (Some(Instant::now()), true);
            tracing::warn!(
                bus = %shared.bus.display(), why = state.words,
                "the store refuses events of the bus; they wait in the spill"
            );
        }
    }

    /// Gives up a parcel that the store never takes, though it takes others: a gap stands in its place.
    fn give_up(&self, state: &mut State, parcel: &Parcel) {
        let lost = parcel.batch.len() as u64;
        self.shared.metrics.bus_events_lost.add(lost);
        state.lost += lost;
        tracing::error!(bus = %self.shared.bus.display(), lost, why = state.words, "the store takes other events and never these: they are lost");
        state.stored.extend(parcel.file);
        let gap = Gap { begin: Some(parcel.at), end: parcel.at, cause: Cause::Refused, lost: Some(lost) };
        state.gaps += 1;
        count_gap(&self.shared, &gap);
        let batch = Arc::new(gap.batch(&self.shared.bus));
        state.back.push_front(Parcel { batch, file: None, refused: 0, ..*parcel });
    }

    /// Reads the next piece off the disk; false if that has to wait.
    fn read_disk(&mut self) -> bool {
        if self.reads_rest_until.is_some_and(|(until, _)| Instant::now() < until) {
            return false;
        }
        let piece = self.disk.next_piece();
        self.shared.metrics.spill_stretches_damaged.add(self.disk.take_damage());
        let unreadable = self.disk.take_unreadable();
        if unreadable > 0 {
            self.shared.metrics.entries_unreadable.add(unreadable);
            tracing::warn!(bus = %self.shared.bus.display(), unreadable, "events in the spill that Salt's codec cannot read, rejected");
        }
        match piece {
            Ok(Some(piece)) => {
                self.reads_rest_until = None;
                let at = piece.batch.entry(0).map_or_else(|| self.shared.clock.now(), |entry| entry.at);
                let parcel = Parcel {
                    batch: Arc::new(self.master_keys.clean_batch(piece.batch)),
                    first: piece.first,
                    at,
                    since: Instant::now(),
                    file: Some(piece.file),
                    refused: 0,
                };
                if let Some(Hole { lost, after }) = piece.hole {
                    let gap = Gap { begin: after, end: at, cause: Cause::Spill, lost };
                    let missing = lost.unwrap_or_default();
                    let mut state = self.shared.lock();
                    (state.lost, state.gaps) = (state.lost + missing, state.gaps + 1);
                    self.shared.metrics.bus_events_lost.add(missing);
                    count_gap(&self.shared, &gap);
                    let batch = Arc::new(gap.batch(&self.shared.bus));
                    state.back.push_back(Parcel {
                        batch,
                        first: piece.first,
                        at,
                        since: Instant::now(),
                        file: None,
                        refused: 0,
                    });
                }
                // Without events it is a hole with nothing behind it.
                self.piece = Some(parcel).filter(|parcel| !parcel.batch.is_empty());
                true
            }
            Ok(None) => {
                let mut state = self.shared.lock();
                state.on_disk = false;
                state.disk = (self.disk.waiting(), self.disk.bytes());
                true
            }
            Err(error) => {
                self.shared.metrics.spill_reads_failed.add(1);
                let pause =
                    self.reads_rest_until.map_or(SPILL_RETRY, |(_, pause)| (pause * 2).min(SPILL_RETRY_MAX));
                self.reads_rest_until = Some((Instant::now() + pause, pause));
                self.say_failed("read", &error);
                false
            }
        }
    }

    /// Empties memory to disk if it is too full; says whether anything was written.
    fn spill(&mut self) -> bool {
        let (mut wrote, mut emptying) = (false, false);
        loop {
            let parcel = {
                let mut state = self.shared.lock();
                let waits_long = || state.waiting.front().is_some_and(|p| p.since.elapsed() > SPILL_AFTER);
                emptying |= state.waiting_bytes > SPILL_ABOVE_BYTES && (state.held || waits_long());
                if !emptying || state.waiting.is_empty() {
                    return wrote;
                }
                if self.disk.bytes() >= self.bytes_max || self.disk_rests() {
                    return wrote;
                }
                state.on_disk = true;
                state.waiting.front().cloned()
            };
            let Some(parcel) = parcel else { return wrote };
            if !self.write(&parcel) {
                return wrote;
            }
            wrote = true;
            let mut state = self.shared.lock();
            state.waiting.pop_front();
            state.waiting_bytes = state.waiting_bytes.saturating_sub(parcel.batch.footprint());
            state.disk = (self.disk.waiting(), self.disk.bytes());
        }
    }

    fn write(&mut self, parcel: &Parcel) -> bool {
        if self.bytes_max == 0 {
            return false;
        }
        let before = self.disk.bytes();
        match self.disk.append(&parcel.batch, parcel.first) {
            Ok(()) => {
                self.shared.metrics.bus_events_spilled.add(parcel.batch.len() as u64);
                self.shared.metrics.bus_bytes_spilled.add(self.disk.bytes().saturating_sub(before));
                true
            }
            Err(error) => {
                self.shared.metrics.spill_writes_failed.add(1);
                self.disk_failed("write to", &error);
                false
            }
        }
    }

    fn disk_rests(&self) -> bool {
        self.disk_rests_until.is_some_and(|until| Instant::now() < until)
    }

    fn disk_failed(&mut self, act: &str, error: &std::io::Error) {
        self.disk_rests_until = Some(Instant::now() + SPILL_RETRY);
        self.say_failed(act, error);
    }

    fn say_failed(&mut self, act: &str, error: &std::io::Error) {
        if self.said.is_none_or(|said| said.elapsed() >= DOOR_SAYS) {
            self.said = Some(Instant::now());
            let dir = self.disk.dir().display();
            tracing::error!(%dir, %error, "could not {act} the spill; what it should take stays in memory");
        }
    }

    /// Puts on disk what the store did not take before the stop.
    fn keep_all(&mut self) {
        let (old, new) = {
            let mut state = self.shared.lock();
            let flights = std::mem::take(&mut state.flights);
            let unanswered = flights.into_iter().filter(|flight| flight.stored != Some(true));
            let old: Vec<Parcel> =
                unanswered.map(|flight| flight.parcel).chain(std::mem::take(&mut state.back)).collect();
            (old, std::mem::take(&mut state.waiting))
        };
        // What came off the disk is there still.
        let old = old.iter().filter(|parcel| parcel.file.is_none());
        let old: Vec<_> = old.map(|parcel| (parcel.batch.clone(), parcel.first)).collect();
        let mut kept = old.iter().map(|(batch, _)| batch.len() as u64).sum::<u64>();
        let mut lost = 0;
        let prepended = if self.bytes_max == 0 {
            Err(std::io::ErrorKind::NotFound.into())
        } else {
            self.disk.prepend(&old)
        };
        if let Err(error) = prepended.or_else(|error| if old.is_empty() { Ok(()) } else { Err(error) }) {
            self.shared.metrics.spill_writes_failed.add(1);
            self.disk_failed("write to", &error);
            (lost, kept) = (kept, 0);
        }
        for parcel in &new {
            let events = parcel.batch.len() as u64;
            *(if self.write(parcel) { &mut kept } else { &mut lost }) += events;
        }
        self.shared.metrics.bus_events_lost.add(lost);
        let mut state = self.shared.lock();
        if let Some(first) = old
            .first()
            .map(|(_, first)| *first)
            .or(new.front().map(|parcel| parcel.first))
            .filter(|_| lost > 0)
        {
            // The next start tells of a gap from here on.
            state.read_until = new.front().map(|parcel| parcel.at).or(state.read_until);
            state.next_number = first;
        }
        drop(state);
        tracing::warn!(bus = %self.shared.bus.display(), kept, lost, "the store did not take everything before the stop; the next start hands it over");
    }

    /// Writes down how far the bus is safe: now and then, and often while something would be missing after a kill.
    fn note_seen(&mut self, now: bool) {
        let (seen, spilling) = {
            let state = self.shared.lock();
            (state.safe(), state.on_disk)
        };
        let every = if spilling { STOP_CHECK } else { SEEN_EVERY };
        let due = now || self.seen_at.is_none_or(|at| at.elapsed() >= every);
        if !due || seen == self.seen || seen.0.is_none() {
            return;
        }
        let (Some(until), number) = seen else { return };
        self.seen_at = Some(Instant::now());
        let path = self.disk.dir().join(SEEN);
        if self.seen_file.is_none() {
            self.seen_file = self.medium.open_to_write(&path).or_else(|_| self.medium.create(&path)).ok();
        }
        // In its place, of one length: no other file's blocks have to reach the disk for it, as a rename would have it.
        let line = format!("{:>20} {number:>20}\n", until.0);
        let written = match &self.seen_file {
            Some(file) => file.write_all_at(line.as_bytes(), 0),
            None => Err(std::io::ErrorKind::NotFound.into()),
        };
        match written {
            Ok(()) => self.seen = seen,
            // The gap of the next start begins at the moment written before: too early, never too late.
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "could not note how far the bus is safe");
            }
        }
    }
}

const SEEN: &str = "SEEN";
const BUS: &str = "BUS";

/// Hands over what waits in spills of buses that are no longer configured: no more will come, and it should not wait for ever.
/// Ends when everything is stored, or the store takes nothing.
pub fn hand_over_leftovers(spills: &Path, configured: &[PathBuf], fittings: &Fittings) {
    let own: Vec<PathBuf> = configured.iter().map(|bus| dir_of(spills, bus)).collect();
    for item in std::fs::read_dir(spills).into_iter().flatten().flatten() {
        let dir = item.path();
        if own.contains(&dir) || !dir.is_dir() {
            continue;
        }
        let bus = std::fs::read_to_string(dir.join(BUS)).unwrap_or_default();
        let feeder = Feeder::new(
            Path::new(bus.trim_end()),
            fittings.intake.clone(),
            fittings.clock.clone(),
            fittings.metrics.clone(),
        );
        let master_keys = fittings.gate.master_keys().clone();
        match Mover::open(&feeder, &dir, fittings.medium.clone(), master_keys, fittings.spill_bytes_max) {
            Ok((mover, _)) => {
                feeder.close();
                mover.run();
            }
            Err(error) => {
                fittings.metrics.spill_reads_failed.add(1);
                tracing::error!(dir = %dir.display(), %error, "could not open what is left of a bus that is not configured");
            }
        }
    }
}

fn read_seen(dir: &Path) -> Option<(Option<Micros>, u64)> {
    let text = std::fs::read_to_string(dir.join(SEEN)).ok()?;
    let mut words = text.split_whitespace();
    let (until, number) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some((Some(Micros(until)), number))
}
