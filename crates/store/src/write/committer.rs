//! The committer: the one thread that writes packed blocks to disk, indexes them, and acknowledges
//! their entries.
//!
//! It applies one commit at a time: one write per class, one `fdatasync` per log written to, the
//! update of the in-memory index, the acknowledgements. It hands the result to the appender, which
//! fails what it has packed behind a failed commit.
//!
//! Commits need the lock of `SegmentWriter`. The appender applies a small commit itself if no
//! further batch is waiting, which saves a single caller a thread switch.
//!
//! # Invariant
//!
//! An acknowledgement follows the sync of its commit, or, with durability `written`, the write. A
//! failed write leaves each log as it was. After a failed sync the state of the file's cached pages
//! is unknown. That log is therefore never appended to again: its segment ends at the last synced
//! frame, and a new one is created.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, SendError, Sender};
use parking_lot::Mutex;

use super::packed::{Done, EntryStats};
use super::status::WriterStatus;
use crate::class::{Class, Classes};
use crate::error::{StoreError, io_at};
use crate::free_space::{FreeSpaceGuard, SpaceLevel};
use crate::index::MemIndex;
use crate::limits::Limits;
use crate::log::builder::{BlockBuffers, BuiltBlock};
use crate::log::columns::Columns;
use crate::log::file::FILE_HEADER_LEN;
use crate::log::frame::{Position, place_frame};
use crate::rates::Rates;
use crate::retain::limits::KeepLimits;
use crate::rounds::Rounds;
use crate::segment::list::Segments;
use crate::segment::{Segment, create};
use crate::state_dir::StateDir;
use crate::vfs::FsFile;
use crate::watermark::Watermark;
use saltcellar_base::clock::Clock;
use saltcellar_base::limits::{LOG_BYTES_AHEAD, SEGMENT_AGE_POLL};
use saltcellar_base::metrics::{ByFunction, FUNCTION_CLASSES, Metrics};
use saltcellar_model::{Durability, Flags, Kind, SeqNo};

/// Blocks that are written and synced together.
pub(crate) struct Commit {
    pub(crate) parts: Vec<Part>,
    pub(crate) dones: Vec<Done>,
    /// All entries below this sequence number are in this commit or an earlier one.
    pub(crate) covered: SeqNo,
    pub(crate) stats: EntryStats,
}

impl Commit {
    /// Whether a thread switch costs more than it saves by packing the next commit meanwhile.
    pub(crate) fn is_small(&self) -> bool {
        self.dones.len() <= FEW_DONES
            && self
                .parts
                .iter()
                .map(|part| part.frames.len())
                .sum::<usize>()
                <= SMALL_BYTES
    }
}

/// The blocks of one class in a commit.
pub(crate) struct Part {
    pub(crate) class: Class,
    pub(crate) frames: Vec<u8>,
    pub(crate) blocks: Vec<BuiltBlock>,
}

impl Part {
    fn fits_into(&self, index: &MemIndex) -> bool {
        let entries = self.blocks.iter().map(|block| block.columns.len()).sum();
        let raw_bytes = self.blocks.iter().map(|block| block.raw_bytes).sum();

        let last = self
            .blocks
            .iter()
            .map(|block| block.meta.last_seq)
            .max()
            .unwrap_or_default();
        index.has_room(entries, raw_bytes, last)
    }
}

/// The result of a commit, for the appender: it may hand over the next one.
#[derive(Debug, Default)]
pub(crate) struct CommitResult {
    /// Last durable sequence number per class.
    pub(crate) on_disk: Vec<SeqNo>,
    pub(crate) error: Option<String>,
    pub(crate) buffers: CommitBuffers,
}

/// Empty buffers for the next commit.
#[derive(Debug, Default)]
pub(crate) struct CommitBuffers {
    pub(crate) frames: Vec<Vec<u8>>,
    pub(crate) blocks: Vec<BlockBuffers>,
}

/// Up to this number of callers, acknowledgements precede the idle signal: waking the appender
/// would compete with few callers for the processor, and is worth it for many.
const FEW_DONES: usize = 2;

/// Largest commit that counts as small, in bytes: packing the next one meanwhile saves less than a
/// thread switch costs (docs/decisions/commit-path.md).
const SMALL_BYTES: usize = 16 * 1024;

pub(crate) struct Active {
    pub(crate) segment: Arc<Segment>,
    file: Box<dyn FsFile>,
    /// End of the last committed frame.
    end: u64,
    /// End of the last written frame.
    written: u64,
    /// All bytes below this offset are on stable storage.
    synced: u64,
    /// Length of the file; bytes past `end` are zero.
    len: u64,
    /// Bytes to preallocate past `end`.
    ahead: u64,
    /// Whether there are unsynced writes.
    dirty: bool,
    broken: bool,
}

impl Active {
    /// Opens the log of a segment for appending; it ends at `end` and is on stable storage.
    pub(crate) fn open(
        segment: Arc<Segment>,
        end: u64,
        limits: &Limits,
    ) -> Result<Self, StoreError> {
        let path = segment.log().path().to_owned();
        // First: nothing may take the segment for finished while its log is opened.
        segment.set_active(true);
        let file = segment
            .fs()
            .open_to_write(&path)
            .map_err(io_at("open for writing", &path))?;

        // A small segment would consist of preallocated bytes mostly.
        let ahead = LOG_BYTES_AHEAD.min(limits.segment_bytes_max / 16);
        Ok(Self {
            segment,
            file,
            end,
            written: end,
            synced: end,
            len: end,
            ahead,
            dirty: false,
            broken: false,
        })
    }

    /// Seals the frames of a commit for their offsets in this log; they are valid nowhere else.
    fn place(&self, part: &mut Part, syncs_each: bool) {
        let id = self.segment.log().id();
        let blocks = part.blocks.len();
        for (n, block) in part.blocks.iter().enumerate() {
            let offset = self.end + block.meta.offset;
            // Also what earlier frames of the same commit have not synced yet.
            let position = Position {
                offset,
                unsynced: offset - self.synced,
                // What follows proves that it was synced.
                ends_commit: syncs_each && n + 1 == blocks,
            };
            let at = usize::try_from(block.meta.offset).ok();

            let frame = at
                .and_then(|at| part.frames.get_mut(at..))
                .expect("the part contains its frames");
            place_frame(frame, id, position);
        }
    }

    fn write(&mut self, frames: &[u8]) -> Result<(), StoreError> {
        let path = self.segment.log().path();
        // Before the write: a failed one may have written any part.
        self.dirty = true;
        let end = self.end + frames.len() as u64;
        self.written = end;

        if end > self.len && self.ahead > 0 {
            // A sync that does not change the file's size saves the file system a journal commit.
            match self.file.set_len(end + self.ahead) {
                Ok(()) => self.len = end + self.ahead,
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "log preallocation failed, syncs become slower");
                    // Only a matter of speed, so it is tried once and then given up for this log.
                    self.ahead = 0;
                }
            }
        }

        self.len = self.len.max(end);
        assert!(!self.broken, "a log whose sync failed is never appended to");
        self.file
            .write_all_at(frames, self.end)
            .map_err(io_at("write", path))
    }

    /// Truncates the preallocated bytes of a log that is complete.
    fn trim(&mut self) {
        if self.len == self.end {
            return;
        }
        let path = self.segment.log().path();

        // The file's length must be durable before the segment is sealed and read by its size.
        match self
            .file
            .set_len(self.end)
            .and_then(|()| self.file.sync_data())
        {
            Ok(()) => self.len = self.end,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot truncate preallocated bytes of a log, readers skip them");
            }
        }
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        if !std::mem::take(&mut self.dirty) {
            return Ok(());
        }

        let synced = self
            .file
            .sync_data()
            .map_err(io_at("sync", self.segment.log().path()));
        match synced {
            Ok(()) => self.synced = self.written,
            // After a failed sync the kernel may drop the pages and report success the next time.
            Err(_) => self.broken = true,
        }

        synced
    }

    /// Truncates uncommitted bytes that a failed sync may have left, and rewrites acknowledged but
    /// unsynced bytes. The segment must not be sealed before this is durable: a power loss could
    /// restore frames that the index does not contain.
    fn cut_off(&self) -> Result<(), StoreError> {
        // Rewrite an acknowledged range, because the kernel may have marked its pages clean.
        let path = self.segment.log().path();
        self.segment
            .log()
            .rewrite_range(&*self.file, self.synced, self.end)?;

        self.file
            .set_len(self.end)
            .and_then(|()| self.file.sync_all())
            .map_err(io_at("cut", path))
    }

    fn undo(&mut self) {
        // The log may be synced already, if the log of another class failed.
        self.dirty = true;

        self.written = self.end;
        self.synced = self.synced.min(self.end);
        match self.file.set_len(self.end) {
            Ok(()) => self.len = self.end,
            // The next commit overwrites the remains; readers stop at `end`.
            Err(e) => {
                tracing::warn!(path = %self.segment.log().path().display(), error = %e, "cannot truncate a failed write, readers skip it");
            }
        }
    }
}

/// The committer's thread.
pub struct Committer {
    pub(crate) commits: Receiver<Commit>,
    pub(crate) results: Sender<CommitResult>,
    /// Lock order: before `index` of an active segment, and before the locks that an
    /// acknowledgement takes: both happen under it.
    pub(crate) writer: Arc<Mutex<SegmentWriter>>,
}

/// The state needed to write to active segments.
pub(crate) struct SegmentWriter {
    /// Where new segments are created.
    pub(crate) dir: StateDir,
    pub(crate) classes: Arc<Classes>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) watermark: Arc<Watermark>,
    pub(crate) keep: Arc<KeepLimits>,
    pub(crate) guard: Arc<FreeSpaceGuard>,
    pub(crate) rounds: Arc<Rounds>,
    pub(crate) rates: Arc<Rates>,
    pub(crate) status: Arc<WriterStatus>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) seals: Sender<Arc<Segment>>,
    /// By class; `None` until the first write.
    pub(crate) active: Vec<Option<Active>>,
    /// Segments with a failed write or sync, not finished yet.
    pub(crate) broken: Vec<Active>,
    pub(crate) limits: Limits,
    /// Last committed sequence number per class.
    pub(crate) on_disk: Vec<SeqNo>,
    /// Time of the first write that is not synced.
    pub(crate) unsynced_since: Option<Instant>,
    /// Whether a thread works with it, or panicked meanwhile.
    pub(crate) in_use: bool,
}

impl Committer {
    /// Runs until the appender has ended and all its commits are applied.
    pub fn run(self) {
        loop {
            // The lock is not held during the wait: the appender may commit meanwhile.
            let pause = with_writer(&self.writer, |writer| writer.pause());
            let next = self.commits.recv_timeout(pause);

            let is_closed = matches!(next, Err(RecvTimeoutError::Disconnected));

            // One commit at a time, whichever thread it comes from.
            with_writer(&self.writer, |writer| {
                match next {
                    Ok(commit) => writer.apply(commit, |result| drop(self.results.send(result))),
                    Err(RecvTimeoutError::Timeout) => writer.roll_full_segments(),
                    Err(RecvTimeoutError::Disconnected) => {
                        // The appender has ended, so nothing follows. Logs end with their last
                        // frame after a clean stop.
                        writer.sync_late();
                        writer.active.iter_mut().flatten().for_each(Active::trim);
                    }
                }

                // Under load no timeout occurs, so the delayed sync is checked after each commit.
                if writer.unsynced_since.is_some() && writer.pause().is_zero() {
                    writer.sync_late();
                }
            });

            if is_closed {
                return;
            }
        }
    }
}

/// Locks the segment writer and calls `work`. If `work` panics, memory and disk may differ: each
/// later call also panics, and nothing more is written or acknowledged. The daemon exits when
/// either thread ends.
pub(crate) fn with_writer<T>(
    writer: &Mutex<SegmentWriter>,
    work: impl FnOnce(&mut SegmentWriter) -> T,
) -> T {
    // Left set if `work` panics; parking_lot's locks have no poisoning.
    let mut writer = writer.lock();
    assert!(
        !std::mem::replace(&mut writer.in_use, true),
        "an earlier commit panicked"
    );

    let result = work(&mut writer);
    writer.in_use = false;
    result
}

impl SegmentWriter {
    /// Whether every commit is synced before it is acknowledged.
    pub(crate) fn syncs_each(&self) -> bool {
        matches!(self.limits.durability, Durability::Durable)
    }

    /// Maximum wait for a commit: until the delayed sync is due, or segment ages are to be checked.
    fn pause(&self) -> Duration {
        // Not less than zero: a sync that is overdue is due now.
        match (self.limits.durability, self.unsynced_since) {
            (Durability::Written { within }, Some(since)) => within.saturating_sub(since.elapsed()),
            _ => SEGMENT_AGE_POLL,
        }
    }

    /// Applies a commit and acknowledges its entries; calls `free` with the result when the next
    /// commit may be handed over.
    pub(crate) fn apply(&mut self, mut commit: Commit, free: impl FnOnce(CommitResult)) {
        // Nothing is acknowledged before this returns.
        let outcome = self.execute(&mut commit);

        let entries: usize = commit
            .parts
            .iter()
            .flat_map(|p| &p.blocks)
            .map(|b| b.columns.len())
            .sum();
        if let Err(error) = &outcome {
            self.metrics.entries_failed.add(entries as u64);
            let parts = commit.parts.iter();
            let classes: Vec<_> = parts.map(|part| self.classes.name(part.class)).collect();
            let classes = classes.join(", ");
            tracing::error!(%error, entries, classes, "entries not stored, senders notified");
        }

        let outcome = outcome.map_err(|error| error.to_string());

        // The buffers go back to the appender, so a steady flow allocates nothing.
        let mut buffers = CommitBuffers::default();
        for part in commit.parts {
            buffers.frames.push(emptied(part.frames));
            let blocks = part.blocks.into_iter().map(BuiltBlock::into_buffers);
            buffers.blocks.extend(blocks);
        }
        let result = CommitResult {
            on_disk: self.on_disk.clone(),
            error: outcome.clone().err(),
            buffers,
        };

        let answer = |dones: Vec<Done>| dones.into_iter().for_each(|done| done(outcome.clone()));
        // Under load the next commit is packed while these callbacks run. One or two callers are
        // answered first: waking the appender would only compete for the processor. After a failure
        // the appender must be woken first: otherwise it could count a caller's next batch among
        // those packed behind the failed commit.
        if commit.dones.len() > FEW_DONES || outcome.is_err() {
            free(result);
            answer(commit.dones);
        } else {
            answer(commit.dones);
            free(result);
        }

        // After the acknowledgements: finishing a segment may wait for the sealer.
        self.roll_full_segments();
    }

    fn execute(&mut self, commit: &mut Commit) -> Result<(), StoreError> {
        let started = Instant::now();
        // Of several logs, some may have been written or synced already. All are undone, because
        // the commit counts as a whole.
        if let Err(error) = self.write(&mut commit.parts) {
            self.active.iter_mut().flatten().for_each(Active::undo);
            self.finish_broken_segments();
            return Err(error);
        }
        // The entries are on disk; nothing from here on can fail.
        for part in &mut commit.parts {
            // Offsets in a commit begin at zero; the log's end makes them absolute.
            let active = self
                .active
                .get_mut(part.class.index())
                .and_then(Option::as_mut);

            let active = active.expect("the segment just written");
            let mut end = active.end;
            for block in &mut part.blocks {
                block.meta.offset += active.end;
                assert_eq!(block.meta.offset, end, "frames are contiguous");
                end = block.meta.end();
            }

            active.end += part.frames.len() as u64;
            assert_eq!(active.end, end, "a log ends with its last frame");

            // Readers see the entries from here on, before their senders hear of them.
            if let Some(mut index) = active.segment.memory_mut() {
                part.blocks
                    .iter()
                    .for_each(|block| index_block(&mut index, block, &self.metrics));
            }
        }

        // After the index: who waits for this position finds its entries.
        self.watermark.advance(commit.covered);

        let (metrics, stats) = (&self.metrics, &commit.stats);

        for part in &commit.parts {
            let entries = part
                .blocks
                .iter()
                .map(|block| block.columns.len() as u64)
                .sum();

            self.rates.count(part.class, entries);
            // Not from `stats`, which include entries of blocks that are still open.
            metrics.entries_stored.add(entries);

            // Numbers of a class must ascend, or readers would miss entries.
            let last = part.blocks.last().expect("a part has blocks").meta.last_seq;
            let before = self
                .on_disk
                .get_mut(part.class.index())
                .expect("a class of the store");
            assert!(
                std::mem::replace(before, last) < last,
                "sequence numbers ascend within a class"
            );
        }

        // Before the acknowledgement: a full disk is noticed by the commit that fills it.
        self.check_free_space();

        metrics.commits.add(1);
        metrics.entry_bytes_stored.add(stats.raw_bytes);
        metrics.duplicates_folded.add(stats.known);
        metrics.returns_differing.add(stats.differing);
        metrics.returns_stored.add(stats.returns);
        metrics.returns_failed.add(stats.failed);

        if let Some(failed) = commit.stats.last_failed.take() {
            self.status.note_failed(failed);
        }
        metrics.distributions.commits.observe(started.elapsed());
        Ok(())
    }

    /// Checks the free space after a commit and wakes the retainer when it becomes short.
    fn check_free_space(&self) {
        let before = self.guard.room();
        // Once per change: the retainer polls until there is space again.
        if self.guard.check_if_due() != SpaceLevel::Ample && before == SpaceLevel::Ample {
            self.rounds.request();
        }
    }

    fn write(&mut self, parts: &mut [Part]) -> Result<(), StoreError> {
        let syncs_each = self.syncs_each();
        // All writes first, then all syncs: the disk can combine them.
        for part in &mut *parts {
            let Some(first) = part.blocks.first() else {
                continue;
            };

            self.finish_without_room_for(part)?;
            let active = self.active_segment(part.class, first.meta.first_seq)?;
            active.place(part, syncs_each);
            active.write(&part.frames)?;
        }
        // A commit may only have callers whose entries are known already.
        if parts.is_empty() {
            return Ok(());
        }

        match self.limits.durability {
            // Also logs that this commit did not write to, if an earlier write is not synced.
            Durability::Durable => self.active.iter_mut().flatten().try_for_each(Active::sync),
            // The first write since the last sync begins the time that may be lost.
            Durability::Written { .. } => {
                self.unsynced_since.get_or_insert_with(Instant::now);
                Ok(())
            }
        }
    }

    /// Finishes the active segment of a class if its index has no room for `part`.
    fn finish_without_room_for(&mut self, part: &Part) -> Result<(), StoreError> {
        // Checked before the write: once on disk, entries cannot be left out of the index.
        let Some(slot) = self.active.get_mut(part.class.index()) else {
            return Ok(());
        };

        let is_full = |active: &Active| {
            active
                .segment
                .memory()
                .is_some_and(|index| !part.fits_into(&index))
        };

        if let Some(full) = slot.as_mut().filter(|active| is_full(active)) {
            // Durable before the segment counts as finished.
            full.sync()?;
            full.trim();
            let segment = full.segment.clone();
            *slot = None;
            finish(&self.seals, segment);
        }
        Ok(())
    }

    /// Returns the active segment of a class; creates one named `first_seq` if there is none.
    fn active_segment(
        &mut self,
        class: Class,
        first_seq: SeqNo,
    ) -> Result<&mut Active, StoreError> {
        let Some(slot) = self.active.get_mut(class.index()) else {
            return Err(StoreError::Broken("a class does not exist"));
        };
        if slot.is_none() {
            // Created with its first entry, because a class without entries needs no directory.
            let fs = self.dir.fs();
            let name = self.classes.name(class);
            let id = self.dir.log_id(first_seq);
            let dir = create(&**fs, self.dir.path(), &name, id, self.clock.now())?;

            let segment = Arc::new(Segment::open(fs, &dir, (class, name), id)?);

            let active = Active::open(segment.clone(), FILE_HEADER_LEN as u64, &self.limits)?;
            // Visible to readers only now that it is complete.
            self.segments.add(segment);
            *slot = Some(active);
        }

        slot.as_mut()
            .ok_or(StoreError::Broken("a class has no active segment"))
    }

    /// Runs the delayed sync of durability `written`.
    fn sync_late(&mut self) {
        // Cleared first: a failed sync is not retried on the same file.
        self.unsynced_since = None;
        for active in self.active.iter_mut().flatten() {
            // The entries were acknowledged. All that is left is to write them again below.
            if let Err(error) = active.sync() {
                self.metrics.delayed_syncs_failed.add(1);
                tracing::error!(%error, "delayed sync failed, acknowledged entries may be lost at a power loss");
            }
        }

        self.finish_broken_segments();
    }

    /// Closes logs with a failed sync, and finishes the segments whose logs could be repaired.
    fn finish_broken_segments(&mut self) {
        for slot in &mut self.active {
            if let Some(broken) = slot.take_if(|active| active.broken) {
                tracing::warn!(dir = %broken.segment.dir().display(), "sync failed, continuing in a new segment");
                self.broken.push(broken);
            }
        }

        let seals = &self.seals;

        // Kept until the cut is durable; see `cut_off`.
        self.broken.retain(|broken| {
            let cut = broken.cut_off();
            match &cut {
                Ok(()) => finish(seals, broken.segment.clone()),
                // The next commit retries; recovery at start also handles such a segment.
                Err(error) => {
                    tracing::warn!(%error, "cannot finish a log with a failed write or sync, retrying");
                }
            }
            cut.is_err()
        });
    }

    /// Finishes segments that have reached their limits. The next write creates new segments.
    fn roll_full_segments(&mut self) {
        let keep = &self.keep.clone();
        let limits = self.limits;
        let is_full = |active: &mut Active| keep.is_full(&active.segment, active.end, &limits);

        // A segment must be durable before it is finished.
        if self.unsynced_since.is_some() && self.active.iter_mut().flatten().any(is_full) {
            self.sync_late();
        }

        for slot in &mut self.active {
            match slot.take_if(is_full) {
                // After a failed write the truncation is not synced yet.
                Some(full) if full.dirty => self.broken.push(full),
                Some(mut full) => {
                    full.trim();
                    // The preallocated bytes are truncated before the sealer reads the log.
                    finish(&self.seals, full.segment);
                }
                None => {}
            }
        }

        if !self.broken.is_empty() {
            self.finish_broken_segments();
        }
    }
}

/// Queues a finished segment for sealing; waits while the queue is full.
fn finish(seals: &Sender<Arc<Segment>>, segment: Arc<Segment>) {
    // First, because the sealer and retention work on finished segments only.
    segment.set_active(false);
    // Fails during a stop. The segment is complete, so nothing is lost.
    if let Err(SendError(segment)) = seals.send(segment) {
        tracing::warn!(dir = %segment.dir().display(), "sealer ended before a segment was sealed, the next start seals it");
    }
}

fn emptied(mut buffer: Vec<u8>) -> Vec<u8> {
    // A block with a huge entry must not keep its buffer forever.
    buffer.clear();
    buffer.shrink_to(saltcellar_base::limits::COMMIT_PACKED_BYTES);
    buffer
}

fn index_block(index: &mut MemIndex, block: &BuiltBlock, metrics: &Metrics) {
    let added = index.add_block(block.meta, &block.columns, || block.bodies());
    added.expect("room was checked before the write");
    count(&block.columns, metrics);
}

/// Counts jobs and returns by function.
fn count(columns: &Columns, metrics: &Metrics) {
    let counts = &metrics.distributions;
    let [succeeded, failed] = &counts.confirmed_returns;
    // Both kinds are counted apart: a forged event must not look like a return of a minion.
    let [claimed, claimed_failed] = &counts.unconfirmed_returns;
    let counters = [&counts.jobs, succeeded, failed, claimed, claimed_failed];

    // Each function is classified once a block.
    let mut classes: Vec<Option<usize>> = vec![None; columns.texts.ends.len()];
    let mut found = [[0_u64; FUNCTION_CLASSES.len()]; 5];
    for row in columns.rows() {
        let of = match row.kind {
            Kind::Load => 0,
            Kind::Return => {
                let is_claimed = row.flags.has(Flags::UNCONFIRMED);
                let has_failed = row.flags.failed(row.retcode);
                1 + 2 * usize::from(is_claimed) + usize::from(has_failed)
            }
            _ => continue,
        };

        let class_of = |text: u32| {
            let fun = String::from_utf8_lossy(columns.texts.get(text));
            ByFunction::class_of(&fun)
        };
        let class = match row.fun {
            Some(text) => classes
                .get_mut(text as usize)
                .map(|class| *class.get_or_insert_with(|| class_of(text)))
                .expect("a string of the block"),
            None => ByFunction::class_of(""),
        };
        if let Some(n) = found.get_mut(of).and_then(|found| found.get_mut(class)) {
            *n += 1;
        }
    }

    for (counter, found) in counters.into_iter().zip(found) {
        for (class, n) in found.into_iter().enumerate().filter(|(_, n)| *n > 0) {
            counter.count(class, n);
        }
    }
}
