//! The spill drainer: the thread that delivers waiting events, spills memory to disk, and records the safe position of the bus.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::file::{DiskQueue, Hole};
use super::offered::Settled;
use super::pending::PendingBatch;
use super::position::Position;
use super::state::SpillState;
use super::{BusDependencies, Shared, SpillWriter, dir_of, offer};
use crate::base::backoff::{Backoff, Retry};
use crate::base::clock::Micros;
use crate::base::limits::{
    REFUSED_PAUSE_MAX, REFUSED_PAUSE_MIN, REFUSED_TIMES_MAX, SEEN_INTERVAL, SOURCE_LOG_INTERVAL,
    SPILL_ABOVE_BYTES, SPILL_AFTER, SPILL_RETRY, SPILL_RETRY_MAX, SPILL_STOP_TIMEOUT, STOP_CHECK,
};
use crate::base::log_once::LogOnce;
use crate::base::metrics::Metrics;
use crate::ingest::gap::{Cause, Gap};
use crate::policy::master_keys::MasterKeys;
use crate::store::error::io_at;
use crate::store::vfs::read::read_whole;
use crate::store::vfs::{Fs, FsFile};
use crate::store::{Intake, StoreError};

/// The draining half of a spill.
pub(crate) struct SpillDrainer {
    shared: Arc<Shared>,
    intake: Intake,
    disk: DiskQueue,
    fs: Arc<dyn Fs>,
    /// For events spilled before their key was known.
    master_keys: Arc<MasterKeys>,
    bytes_max: u64,
    /// A batch read from disk that did not fit into the intake.
    piece: Option<PendingBatch>,
    disk_rests_until: Option<Instant>,
    /// Of a read that failed. The pause doubles: a broken disk must not be read all the time.
    reads: Retry,
    /// Of a batch that the store rejected.
    pub(super) offers: Retry,
    /// The store's count of stored entries at the first rejection of the current batch.
    stored_before: u64,
    /// As recorded last.
    seen: Position,
    seen_at: Option<Instant>,
    seen_file: Option<Box<dyn FsFile>>,
    log: LogOnce,
    logged_rejection: bool,
    /// Batches that the store accepted, and the time of the last progress.
    accepted: u64,
    accepted_at: Instant,
    /// The time without progress after which a stop leaves the rest on disk.
    pub(super) stop_timeout: Duration,
}

/// The position recorded by an earlier daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Seen {
    /// An earlier daemon read this bus.
    pub(crate) known: bool,
    /// Everything up to here is safe.
    pub(crate) until: Option<Micros>,
}

impl SpillDrainer {
    /// Opens the directory of a bus, and returns the recorded position.
    pub(crate) fn open(
        spill_writer: &SpillWriter,
        dir: &Path,
        fs: Arc<dyn Fs>,
        master_keys: Arc<MasterKeys>,
        bytes_max: u64,
    ) -> Result<(Self, Seen), StoreError> {
        let shared = spill_writer.shared();
        let known = dir.exists();
        let store_id = spill_writer.intake.store_id();
        let (disk, found) = DiskQueue::open(fs.clone(), dir, store_id)?;

        // A new bus. The file tells administrators which one, because the directory's name may be
        // shortened.
        if !known {
            let text = format!("{}\n", shared.bus().display());
            let path = dir.join(BUS);
            fs.create(&path)
                .and_then(|file| file.write_all_at(text.as_bytes(), 0))
                .map_err(io_at("write", &path))?;
        }

        let Position { until, number } = read_seen(&*fs, dir, &shared)
            .map_err(io_at("read the position in", dir))?
            .unwrap_or_default();

        shared.metrics.spill_bytes_truncated.add(found.cut);
        shared
            .metrics
            .spill_files_quarantined
            .add(found.quarantined);
        shared.metrics.spill_events_found.add(found.events);
        shared.metrics.spill_reads_failed.add(found.failed);

        let last = found.last.map_or(0, |(number, _)| number);
        {
            let mut state = shared.state.lock();
            // Whichever is later: neither the files nor the position are synced.
            state.read.number = last.max(number);
            state.disk.measure(&disk);
            if !disk.is_empty() {
                state.disk.begin();
            }

            // A gap for events older than those on disk: in memory or with the store when the daemon was killed.
            if let Some((first, at)) = found
                .first
                .filter(|(first, _)| known && *first > number + 1)
            {
                let gap = Gap {
                    begin: until,
                    end: at,
                    cause: Cause::StartUp,
                    lost: None,
                };
                let batch = shared.gap_batch(&mut state, &gap);
                state
                    .offered
                    .push_back(PendingBatch::new(batch, first - 1, at));
            }
        }

        if found.events > 0 {
            tracing::info!(dir = %dir.display(), events = found.events, "delivering events found in the spill");
        }

        // After a truncation the number of lost events is unknown: the gap of this start begins before it.
        let until = if last > number || found.cut > 0 {
            found.last.map(|(_, at)| at)
        } else {
            until
        };
        shared.state.lock().read.until = until;

        Ok((
            Self::new(spill_writer, disk, fs, master_keys, bytes_max),
            Seen { known, until },
        ))
    }

    /// A drainer without a disk, for a directory that cannot be opened.
    pub(crate) fn without_disk(spill_writer: &SpillWriter, dir: &Path, fs: Arc<dyn Fs>) -> Self {
        Self::new(
            spill_writer,
            DiskQueue::empty(fs.clone(), dir, spill_writer.intake.store_id()),
            fs,
            Arc::new(MasterKeys::none()),
            0,
        )
    }

    fn new(
        spill_writer: &SpillWriter,
        disk: DiskQueue,
        fs: Arc<dyn Fs>,
        master_keys: Arc<MasterKeys>,
        bytes_max: u64,
    ) -> Self {
        Self {
            shared: spill_writer.shared(),
            intake: spill_writer.intake.clone(),
            disk,
            fs,
            master_keys,
            bytes_max,
            piece: None,
            disk_rests_until: None,
            reads: Retry::new(Backoff::new(SPILL_RETRY, SPILL_RETRY_MAX)),
            offers: Retry::new(Backoff::new(REFUSED_PAUSE_MIN, REFUSED_PAUSE_MAX)),
            stored_before: 0,
            seen: Position::default(),
            seen_at: None,
            seen_file: None,
            log: LogOnce::every(SOURCE_LOG_INTERVAL),
            logged_rejection: false,
            accepted: 0,
            accepted_at: Instant::now(),
            stop_timeout: SPILL_STOP_TIMEOUT,
        }
    }

    /// Delivers events until the writer is closed and everything is stored or on disk.
    pub(crate) fn run(mut self) {
        loop {
            let moved = self.deliver();
            let spilled = self.spill();
            self.save_seen(false);

            let mut state = self.shared.state.lock();

            // The timeout for stopping runs only while the writer is closed and the store makes no
            // progress.
            if state.offered.accepted() != self.accepted || !state.closing {
                self.accepted = state.offered.accepted();
                self.accepted_at = Instant::now();
            }

            let empty = state.is_empty() && self.piece.is_none();
            let is_settled = !state.offered.has_in_flight() && !state.offered.has_stored_files();
            if state.closing && empty && is_settled {
                break;
            }

            // The store is stuck: what it has not accepted goes to disk for the next start.
            if state.closing && self.accepted_at.elapsed() > self.stop_timeout {
                drop(state);
                self.spill_all();
                break;
            }

            let pause = match () {
                () if moved || spilled => continue,
                // A fraction of the shortest pause between retries, because no retry may be much
                // too late.
                () if state.offered.is_held() => REFUSED_PAUSE_MIN / 4,
                // The intake is full, and nothing tells when it has room again.
                () if !empty => Duration::from_millis(1),
                () => STOP_CHECK,
            };
            self.shared.changed.wait_for(&mut state, pause);
        }

        self.save_seen(true);
    }

    /// Delivers as much as the intake has room for; returns whether there was progress.
    pub(super) fn deliver(&mut self) -> bool {
        // The lock covers no work on the disk, because the reader of the bus needs it.
        let stored = self.shared.state.lock().offered.take_stored_files();
        let mut moved = !stored.is_empty();
        for file in stored {
            self.disk.stored(file);
        }

        self.requeue_rejected();
        loop {
            let shared = self.shared.clone();
            let mut state = shared.state.lock();
            state.disk.measure(&self.disk);

            // The order must hold, so nothing is offered before the batch that was rejected.
            if state.offered.is_held() && !self.may_retry(&state) {
                return moved;
            }

            // Oldest first: rejected, read from disk, on disk, in memory.
            if let Some(pending_batch) = state.offered.queue().front().cloned() {
                if !offer(&shared, &mut state, &self.intake, &pending_batch) {
                    return moved;
                }
                // The pause stays, and grows if the store rejects the batch again.
                state.offered.pop_front();
            } else if let Some(pending_batch) = &self.piece {
                if !offer(&shared, &mut state, &self.intake, pending_batch) {
                    return moved;
                }
                self.piece = None;
            } else if state.disk.has_events() {
                drop(state);
                // Read without the lock: the reader of the bus must not wait for a disk.
                if !self.read_disk() {
                    return moved;
                }
            } else if let Some(pending_batch) = state.memory.front().cloned() {
                if !offer(&shared, &mut state, &self.intake, &pending_batch) {
                    return moved;
                }
                state.memory.pop_front();
            } else {
                return moved;
            }

            moved = true;
        }
    }

    /// While the store rejects batches, one is retried at a time, with pauses, to keep the order.
    fn may_retry(&mut self, state: &SpillState) -> bool {
        // The store's response to the batch in flight decides about the next one.
        if state.offered.has_in_flight() {
            return false;
        }
        if state.offered.queue().is_empty() {
            return true;
        }

        self.offers.is_due()
    }

    /// Requeues rejected batches once the store has responded to all batches in flight.
    fn requeue_rejected(&mut self) {
        let shared = self.shared.clone();
        let mut state = shared.state.lock();

        let (batches, alone) = match state.offered.settle() {
            Settled::NotYet => return,
            Settled::Stored => {
                let accepts = !state.offered.is_held();
                drop(state);
                if accepts {
                    self.accepts_again();
                }
                return;
            }
            Settled::Rejected { batches, alone } => (batches, alone),
        };

        // From the newest, because each one goes to the front.
        for mut pending_batch in batches.into_iter().rev() {
            shared
                .metrics
                .bus_events_retried
                .add(pending_batch.events());

            if pending_batch.refused == 0 {
                self.stored_before = shared.metrics.entries_stored.get();
            }
            // Only the rejection of a single batch proves that this batch is the cause.
            pending_batch.refused += u32::from(alone);
            let accepts_others = shared.metrics.entries_stored.get() > self.stored_before;

            // Other entries are stored, so neither the disk nor the daemon is the reason.
            if pending_batch.refused >= REFUSED_TIMES_MAX && accepts_others {
                self.drop_rejected(&mut state, &pending_batch);
                continue;
            }

            state.offered.push_front(pending_batch);
        }

        self.offers.failed();
        if self.log.is_due((), shared.clock.monotonic()) {
            self.logged_rejection = true;
            tracing::warn!(
                bus = %shared.bus().display(), why = state.offered.refusal(),
                "the store rejects bus events, retrying; they are lost once memory and the spill are full: run `saltcellar status`"
            );
        }
    }

    /// Ends the pauses between retries.
    fn accepts_again(&mut self) {
        self.offers.succeeded();
        if self.logged_rejection {
            self.logged_rejection = false;
            let bus = self.shared.bus();
            tracing::info!(bus = %bus.display(), "the store accepts bus events");
        }
    }

    /// Drops a batch that the store rejects permanently while it accepts others, and records a gap in its place.
    fn drop_rejected(&self, state: &mut SpillState, pending_batch: &PendingBatch) {
        let lost = pending_batch.events();
        self.shared.metrics.bus_events_lost.add(lost);
        state.losses.count(lost);
        tracing::error!(bus = %self.shared.bus().display(), lost, why = state.offered.refusal(), "bus events rejected permanently and lost: run `saltcellar doctor`");
        state.offered.dropped(pending_batch);

        let PendingBatch { first, at, .. } = *pending_batch;
        let gap = Gap {
            begin: Some(at),
            end: at,
            cause: Cause::Refused,
            lost: Some(lost),
        };

        let batch = self.shared.gap_batch(state, &gap);
        state
            .offered
            .push_front(PendingBatch::new(batch, first, at));
    }

    /// Reads the next chunk from disk; false if that has to wait.
    fn read_disk(&mut self) -> bool {
        if !self.reads.is_due() {
            return false;
        }

        let piece = self.disk.next_piece();

        self.shared
            .metrics
            .spill_ranges_damaged
            .add(self.disk.take_damage());

        match piece {
            Ok(Some(piece)) => {
                self.reads.succeeded();
                let at = piece
                    .batch
                    .entry(0)
                    .map_or_else(|| self.shared.clock.now(), |entry| entry.at);

                // A key may have become known since the batch was spilled.
                let batch = self.master_keys.clean_batch(piece.batch);
                let pending_batch = PendingBatch {
                    file: Some(piece.file),
                    ..PendingBatch::new(batch, piece.first, at)
                };

                if let Some(Hole { lost, after }) = piece.hole {
                    let gap = Gap {
                        begin: after,
                        end: at,
                        cause: Cause::Spill,
                        lost,
                    };
                    let missing = lost.unwrap_or_default();

                    // What is missing behind the last event shows again if its number is known.
                    let file = if pending_batch.batch.is_empty() {
                        self.disk.newest()
                    } else {
                        Some(piece.file)
                    };

                    // The gap goes before the events that follow it.
                    let mut state = self.shared.state.lock();
                    state.losses.count(missing);
                    self.shared.metrics.bus_events_lost.add(missing);
                    let batch = self.shared.gap_batch(&mut state, &gap);
                    state.offered.push_back(PendingBatch {
                        gap_of: lost.and(file),
                        ..PendingBatch::new(batch, piece.first, at)
                    });
                }

                // Without events only the gap is delivered.
                self.piece =
                    Some(pending_batch).filter(|pending_batch| !pending_batch.batch.is_empty());
                true
            }
            Ok(None) => {
                let mut state = self.shared.state.lock();
                state.disk.end();
                state.disk.measure(&self.disk);
                true
            }
            Err(error) => {
                self.shared.metrics.spill_reads_failed.add(1);

                // The file stays in place.
                self.reads.failed();
                self.log_failure("read", &error);
                false
            }
        }
    }

    /// Spills memory to disk above the limit; returns whether anything was written.
    fn spill(&mut self) -> bool {
        let (mut wrote, mut emptying) = (false, false);
        loop {
            let pending_batch = {
                let mut state = self.shared.state.lock();
                let store_is_behind =
                    || state.offered.is_held() || state.memory.waits_longer_than(SPILL_AFTER);

                // Once begun, memory is emptied. Otherwise spilling would restart with each batch.
                emptying |= state.memory.bytes() > SPILL_ABOVE_BYTES && store_is_behind();
                if !emptying || state.memory.is_empty() {
                    return wrote;
                }

                // At the limit, or shortly after a failure, events stay in memory.
                if self.disk.bytes() >= self.bytes_max || self.disk_rests() {
                    return wrote;
                }

                state.disk.begin();
                state.memory.front().cloned()
            };

            let Some(pending_batch) = pending_batch else {
                return wrote;
            };

            // The lock is free during the write. Only this thread removes batches from the front.
            if !self.write(&pending_batch) {
                return wrote;
            }

            wrote = true;
            let mut state = self.shared.state.lock();
            state.memory.pop_front();
            state.disk.measure(&self.disk);
        }
    }

    fn write(&mut self, pending_batch: &PendingBatch) -> bool {
        // No disk, or none allowed: events stay in memory.
        if self.bytes_max == 0 {
            return false;
        }

        let before = self.disk.bytes();
        match self.disk.append(&pending_batch.batch, pending_batch.first) {
            Ok(()) => {
                self.shared
                    .metrics
                    .bus_events_spilled
                    .add(pending_batch.batch.len() as u64);
                self.shared
                    .metrics
                    .bus_bytes_spilled
                    .add(self.disk.bytes().saturating_sub(before));
                true
            }
            Err(error) => {
                self.shared.metrics.spill_writes_failed.add(1);
                self.disk_failed("write", &error);
                false
            }
        }
    }

    fn disk_rests(&self) -> bool {
        self.disk_rests_until
            .is_some_and(|until| Instant::now() < until)
    }

    fn disk_failed(&mut self, act: &str, error: &StoreError) {
        self.disk_rests_until = Some(Instant::now() + SPILL_RETRY);
        self.log_failure(act, error);
    }

    fn log_failure(&mut self, act: &str, error: &StoreError) {
        if self.log.is_due((), self.shared.clock.monotonic()) {
            let dir = self.disk.dir().display();
            tracing::error!(%dir, act, %error, "cannot use the spill, events that do not fit into memory are lost");
        }
    }

    /// Writes all events that the store did not accept before shutdown to disk.
    fn spill_all(&mut self) {
        let (offered, new) = {
            // Taken under one lock, because no response may come in between.
            let mut state = self.shared.state.lock();
            (state.offered.take_all(), state.memory.take_all())
        };

        // Events from disk are still there, and what is missing between them is found again.
        let is_on_disk = |batch: &PendingBatch| {
            let of_gap = batch.gap_of.is_some_and(|file| self.disk.has(file));
            batch.file.is_some() || of_gap
        };
        let old: Vec<&PendingBatch> = offered.iter().filter(|batch| !is_on_disk(batch)).collect();

        let first = old.first().copied().or(new.front());
        let first = first.map(|batch| (batch.first, batch.at));
        let old: Vec<_> = old
            .into_iter()
            .map(|pending_batch| (pending_batch.batch.clone(), pending_batch.first))
            .collect();

        let mut kept = old.iter().map(|(batch, _)| batch.len() as u64).sum::<u64>();
        let mut lost = 0;

        // What was offered goes between the existing files, newer events behind them. Numbers
        // therefore stay in order.
        let inserted = if self.bytes_max == 0 {
            Err(StoreError::Refused(
                "the spill could not be opened, or ingest.spill_bytes_max is 0".to_owned(),
            ))
        } else {
            self.disk.insert(&old)
        };

        if let Err(error) =
            inserted.or_else(|error| if old.is_empty() { Ok(()) } else { Err(error) })
        {
            self.shared.metrics.spill_writes_failed.add(1);
            self.disk_failed("write", &error);
            lost = kept;
            kept = 0;
        }

        for pending_batch in &new {
            let events = pending_batch.batch.len() as u64;
            *(if self.write(pending_batch) {
                &mut kept
            } else {
                &mut lost
            }) += events;
        }

        self.shared.metrics.bus_events_lost.add(lost);
        let mut state = self.shared.state.lock();
        state.losses.count(lost);
        if let Some((first, at)) = first.filter(|_| lost > 0) {
            // The gap of the next start begins here, at the latest: it may not be shorter than the loss.
            state.read = Position {
                until: Some(at),
                number: first.saturating_sub(1),
            };
        }

        drop(state);
        let bus_path = self.shared.bus();
        let bus = bus_path.display();
        if lost == 0 {
            tracing::warn!(%bus, kept, "the store did not accept all events before shutdown, the next start delivers them");
        } else {
            tracing::error!(
                %bus, kept, lost,
                "neither the store nor the spill accepted all events before shutdown, some are lost: check the disk for errors and free space, and whether `ingest.spill_bytes_max` is too low"
            );
        }
    }

    /// Records the safe position of the bus: periodically, and more often while a kill would lose events.
    fn save_seen(&mut self, now: bool) {
        let (seen, spilling) = {
            let state = self.shared.state.lock();
            (state.safe(), state.disk.has_events())
        };

        let every = if spilling { STOP_CHECK } else { SEEN_INTERVAL };
        let due = now || self.seen_at.is_none_or(|at| at.elapsed() >= every);
        // Unchanged, or nothing has been read yet: then an earlier position stays valid.
        let Some(until) = seen.until.filter(|_| due && seen != self.seen) else {
            return;
        };
        self.seen_at = Some(Instant::now());

        let path = self.disk.dir().join(SEEN);
        if self.seen_file.is_none() {
            self.seen_file = self
                .fs
                .open_to_write(&path)
                .or_else(|_| self.fs.create(&path))
                .ok();
        }

        // Overwritten in place at constant length: a rename would force other files' blocks to disk first.
        let line = Position::line(until, seen.number);
        let written = match &self.seen_file {
            Some(file) => file.write_all_at(line.as_bytes(), 0),
            None => Err(std::io::ErrorKind::NotFound.into()),
        };

        match written {
            Ok(()) => self.seen = seen,
            // The gap of the next start then begins at the previous position: too early, never too late.
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "cannot record the position of the bus");
            }
        }
    }
}

const SEEN: &str = "SEEN";
const BUS: &str = "BUS";

/// Delivers events in spills of buses that are no longer configured, which would otherwise wait forever.
/// Returns when everything is stored, or when the store accepts nothing.
pub(crate) fn drain_orphaned_spills(spills: &Path, configured: &[PathBuf], deps: &BusDependencies) {
    let own: Vec<PathBuf> = configured.iter().map(|bus| dir_of(spills, bus)).collect();
    for item in std::fs::read_dir(spills).into_iter().flatten().flatten() {
        let dir = item.path();
        if own.contains(&dir) || !dir.is_dir() {
            continue;
        }

        let bus = bus_of(&*deps.fs, &deps.metrics, &dir);
        let spill_writer = SpillWriter::new(
            &bus,
            deps.intake.clone(),
            deps.clock.clone(),
            deps.metrics.clone(),
        );

        let master_keys = deps.policy.master_keys().clone();
        match SpillDrainer::open(
            &spill_writer,
            &dir,
            deps.fs.clone(),
            master_keys,
            deps.spill_bytes_max,
        ) {
            Ok((spill_drainer, _)) => {
                // Without input the drainer ends once everything is stored.
                spill_writer.close();
                spill_drainer.run();
            }
            Err(error) => {
                deps.metrics.spill_reads_failed.add(1);
                tracing::error!(dir = %dir.display(), %error, "cannot open the spill of a bus that is no longer configured, its events stay on disk: once it can be opened, restart the daemon");
            }
        }
    }
}

/// The bus of a spill directory, for messages and gap records. The name of the directory, which may
/// be shortened, stands for one that cannot be read: its events are delivered in any case.
pub(super) fn bus_of(fs: &dyn Fs, metrics: &Metrics, dir: &Path) -> PathBuf {
    let why = match read_whole(fs, &dir.join(BUS)) {
        Ok(Some(content)) if !content.is_damaged() => match String::from_utf8(content.bytes) {
            Ok(bus) => return PathBuf::from(bus.trim_end()),
            Err(_) => "it is not UTF-8".to_owned(),
        },
        Ok(Some(_)) => "the disk cannot read it".to_owned(),
        Ok(None) => "it does not exist".to_owned(),
        Err(error) => error.to_string(),
    };

    metrics.spill_reads_failed.add(1);
    tracing::warn!(path = %dir.join(BUS).display(), why, "the bus of a spill is unknown, its events are stored under the directory's name: check the permissions of the file, and the disk for errors");
    dir.to_owned()
}

/// The recorded position; `None` if there is none. An error is one to retry: without the
/// position of the daemon before, a gap could not be told.
fn read_seen(fs: &dyn Fs, dir: &Path, shared: &Shared) -> std::io::Result<Option<Position>> {
    let path = dir.join(SEEN);
    let Some(content) = read_whole(fs, &path)? else {
        return Ok(None);
    };

    let seen = Position::parse(&content.bytes).filter(|_| !content.is_damaged());
    if seen.is_none() {
        shared.metrics.spill_reads_failed.add(1);
        tracing::warn!(path = %path.display(), "saved bus position malformed or unreadable, a gap is recorded although nothing may be missing: check the disk for errors");
    }
    Ok(seen)
}
