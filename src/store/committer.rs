//! The committer: the one thread that puts packed blocks on disk, makes them findable, and answers.
//!
//! One commit at a time: for each class one write, then one `fdatasync` per log written to, then the index in memory, then
//! the answers. What lies behind a failed commit in the queue fails with it.
//!
//! Whoever holds the [`Pen`] commits: this thread, or, for a small commit behind which nobody waits, the appender, which
//! spares a lone caller one change of thread.
//!
//! # Invariant
//!
//! An answer leaves only after the commit it waits for is synced, or, with durability `written`, written. A failed write
//! leaves each log as it was. After a failed sync nobody knows what of the file's cached pages is on disk, so that
//! log is never written to again: its segment is finished where it was synced last, and a new one is begun.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::appender::{Done, PackedBlock, Tally};
use super::class::Class;
use super::error::{StoreError, io_at};
use super::frame::{LogId, Position, place_frame};
use super::index::MemIndex;
use super::log::FILE_HEADER_LEN;
use super::medium::MediumFile;
use super::segment::{Index, Segment, create};
use super::{Limits, Shared};
use crate::channel::{Next, Rx, Tx};
use crate::limits::{LOG_BYTES_AHEAD, SEGMENT_AGE_LOOK};
use crate::model::{Durability, Entry, SeqNo};

/// What goes to disk together.
pub(super) struct Commit {
    /// How many commits had failed when it was packed.
    pub(super) epoch: u64,
    pub(super) parts: Vec<Part>,
    pub(super) dones: Vec<Done>,
    /// Every entry numbered below is in this commit or in one before.
    pub(super) covered: SeqNo,
    pub(super) tally: Tally,
}

impl Commit {
    /// Is packing what comes meanwhile worth less than a change of thread?
    pub(super) fn is_small(&self) -> bool {
        self.dones.len() <= FEW_DONES
            && self.parts.iter().map(|part| part.frames.len()).sum::<usize>() <= SMALL_BYTES
    }
}

/// A class's part of a commit.
pub(super) struct Part {
    pub(super) class: Class,
    pub(super) frames: Vec<u8>,
    pub(super) blocks: Vec<PackedBlock>,
}

impl Part {
    fn fits_into(&self, index: &MemIndex) -> bool {
        let entries = self.blocks.iter().map(|block| block.entries.len()).sum();
        let raw_bytes = self.blocks.iter().map(|block| block.raw_bytes).sum();
        let last = self.blocks.iter().map(|block| block.meta.last_seq).max().unwrap_or_default();
        index.has_room(entries, raw_bytes, last)
    }
}

/// The committer has nothing to do, and gives used buffers back.
#[derive(Debug, Default)]
pub(super) struct Idle {
    pub(super) buffers: Vec<Vec<u8>>,
}

/// How commits fared, for the appender to learn.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Per class, the number of the last entry that is on disk.
    pub(super) on_disk: Vec<SeqNo>,
    /// How many have failed.
    pub(super) epoch: u64,
    /// Why the last one did.
    pub(super) words: String,
}

/// Up to so many callers are answered before the appender is told that the disk is free.
const FEW_DONES: usize = 2;

/// A commit of up to so many bytes is small.
const SMALL_BYTES: usize = 16 * 1024;

/// A class's growing segment.
pub(super) struct Active {
    pub(super) segment: Arc<Segment>,
    file: Box<dyn MediumFile>,
    /// Byte after the last frame that counts.
    end: u64,
    /// Byte after the last one that was written.
    written: u64,
    /// Everything before this byte is on stable storage.
    synced: u64,
    /// Bytes of the file. Behind `end` they are zero.
    len: u64,
    /// How much longer than needed the file is made.
    ahead: u64,
    /// Has it been written to since it was synced?
    dirty: bool,
    /// Did a sync fail?
    broken: bool,
}

impl Active {
    /// Opens a segment's log, which ends at `end` and is on stable storage, for appending.
    pub(super) fn open(segment: Arc<Segment>, end: u64, limits: &Limits) -> Result<Self, StoreError> {
        let path = segment.log().path().to_owned();
        segment.set_growing(true);
        let file = segment.medium().open_to_write(&path).map_err(io_at("open for writing", &path))?;
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

    /// Makes the frames of a commit valid behind the last one, and nowhere else.
    fn place(&self, part: &mut Part) {
        let (id, blocks) = (self.segment.log().id(), part.blocks.len());
        for (n, block) in part.blocks.iter().enumerate() {
            let offset = self.end + block.meta.offset;
            let position = Position { offset, unsynced: offset - self.synced, ends_commit: n + 1 == blocks };
            let at = usize::try_from(block.meta.offset).ok();
            let frame = at.and_then(|at| part.frames.get_mut(at..)).expect("a block's frame is in its part");
            place_frame(frame, id, position);
        }
    }

    fn write(&mut self, frames: &[u8]) -> Result<(), StoreError> {
        let path = self.segment.log().path();
        self.dirty = true;
        let end = self.end + frames.len() as u64;
        self.written = end;
        if end > self.len && self.ahead > 0 {
            // A sync that need not make a new size durable spares the file system a commit of its own journal.
            match self.file.set_len(end + self.ahead) {
                Ok(()) => self.len = end + self.ahead,
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "this log cannot be made longer ahead of what is written; syncs take longer");
                    self.ahead = 0;
                }
            }
        }
        self.len = self.len.max(end);
        assert!(!self.broken, "a log whose sync failed is never written to again");
        self.file.write_all_at(frames, self.end).map_err(io_at("write", path))
    }

    /// Cuts off the bytes ahead: nothing more is written.
    fn trim(&mut self) {
        if self.len == self.end {
            return;
        }
        let path = self.segment.log().path();
        match self.file.set_len(self.end).and_then(|()| self.file.sync_data()) {
            Ok(()) => self.len = self.end,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the zero bytes behind the last frame could not be cut off; readers pass over them");
            }
        }
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        if !std::mem::take(&mut self.dirty) {
            return Ok(());
        }
        let synced = self.file.sync_data().map_err(io_at("sync", self.segment.log().path()));
        match synced {
            Ok(()) => self.synced = self.written,
            Err(_) => self.broken = true,
        }
        synced
    }

    /// Cuts off for good what a failed sync may have left behind the last frame that counts, and writes again what was
    /// answered before it was synced. Until that is on disk the segment may not be sealed: a power cut could bring frames
    /// back that its index does not know.
    fn cut_off(&self) -> Result<(), StoreError> {
        let path = self.segment.log().path();
        self.segment.log().write_again(&*self.file, self.synced, self.end)?;
        self.file.set_len(self.end).and_then(|()| self.file.sync_all()).map_err(io_at("cut", path))
    }

    fn undo(&mut self) {
        // It may be synced already, if another class's log failed.
        self.dirty = true;
        (self.written, self.synced) = (self.end, self.synced.min(self.end));
        match self.file.set_len(self.end) {
            Ok(()) => self.len = self.end,
            // The next commit writes over what was left; until then readers do not look there.
            Err(e) => {
                tracing::warn!(path = %self.segment.log().path().display(), error = %e, "could not cut off a failed write");
            }
        }
    }
}

/// The committer's thread.
pub struct Committer {
    pub(super) commits: Rx<Commit>,
    pub(super) idles: Tx<Idle>,
    pub(super) pen: Arc<Mutex<Pen>>,
}

/// What the growing segments are written with.
pub(super) struct Pen {
    pub(super) shared: Arc<Shared>,
    pub(super) progress: Arc<Mutex<Progress>>,
    pub(super) seals: Tx<Arc<Segment>>,
    /// By class; none until something is to be written to it.
    pub(super) active: Vec<Option<Active>>,
    /// Segments with a failed write or sync behind them, that are not finished yet.
    pub(super) broken: Vec<Active>,
    pub(super) limits: Limits,
    /// When the first write was made that is not synced yet.
    pub(super) unsynced_since: Option<Instant>,
}

impl Committer {
    /// Works until the appender is gone and everything it handed over is on disk.
    pub fn run(self) {
        let _ = self.idles.send(Idle::default());
        loop {
            let pause = held(&self.pen).pause();
            let next = self.commits.next(pause);
            let mut pen = held(&self.pen);
            match next {
                Next::Message(commit) => pen.apply(commit, |idle| drop(self.idles.send(idle))),
                Next::Idle => pen.roll_full_segments(),
                Next::Closed => break,
            }
            if pen.unsynced_since.is_some() && pen.pause().is_zero() {
                pen.sync_late();
            }
        }
        let mut pen = held(&self.pen);
        pen.sync_late();
        pen.active.iter_mut().flatten().for_each(Active::trim);
    }
}

/// Locks the writer of segments. If a thread panicked while it had it, what is in memory need not be what is on disk:
/// nothing more is written or acknowledged, and this thread ends, too. The daemon ends with either of the two.
pub(super) fn held<T>(pen: &Mutex<T>) -> MutexGuard<'_, T> {
    pen.lock().expect("no commit was broken off by a panic")
}

impl Pen {
    /// Is everything answered only once it is synced?
    pub(super) fn syncs_each(&self) -> bool {
        matches!(self.limits.durability, Durability::Durable)
    }

    /// How long to wait for a commit: until what was written has to be synced, or the segments' ages are looked at.
    fn pause(&self) -> Duration {
        match (self.limits.durability, self.unsynced_since) {
            (Durability::Written { within }, Some(since)) => within.saturating_sub(since.elapsed()),
            _ => SEGMENT_AGE_LOOK,
        }
    }

    /// Carries out a commit and tells whoever waits for it; `free` hears when the next one may come.
    pub(super) fn apply(&mut self, mut commit: Commit, free: impl FnOnce(Idle)) {
        let outcome = self.carry_out(&mut commit);
        let entries: usize = commit.parts.iter().flat_map(|p| &p.blocks).map(|b| b.entries.len()).sum();
        self.tell_progress(&commit, &outcome);
        if let Err(error) = &outcome {
            self.shared.metrics.entries_failed.add(entries as u64);
            tracing::error!(%error, entries, "entries could not be stored; their senders are told");
        }
        let idle = Idle { buffers: commit.parts.into_iter().map(|part| emptied(part.frames)).collect() };
        let words = outcome.map_err(|error| error.to_string());
        let answer = |dones: Vec<Done>| dones.into_iter().for_each(|done| done(words.clone()));
        // In a flood the next commit is packed while these are answered. One or two callers wait for nothing else, and the
        // appender's being woken would only take the processor from them. After a failure the appender hears of it first: it
        // must not take what a caller then sends for something behind the failed commit.
        if commit.dones.len() > FEW_DONES || words.is_err() {
            free(idle);
            answer(commit.dones);
        } else {
            answer(commit.dones);
            free(idle);
        }
        self.roll_full_segments();
    }

    fn tell_progress(&self, commit: &Commit, outcome: &Result<(), StoreError>) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(()) => {
                for part in &commit.parts {
                    let last = part.blocks.last().map(|block| block.meta.last_seq);
                    let place = progress.on_disk.get_mut(part.class.index()).expect("a class of the store");
                    let last = last.expect("a part with blocks");
                    assert!(last > *place, "numbers ascend in a class");
                    *place = last;
                }
            }
            Err(error) if commit.epoch == progress.epoch => {
                progress.epoch += 1;
                progress.words = error.to_string();
            }
            Err(_) => {}
        }
    }

    fn carry_out(&mut self, commit: &mut Commit) -> Result<(), StoreError> {
        let failed = {
            let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
            commit.epoch != progress.epoch
        };
        if failed {
            return Err(StoreError::Failed("an earlier commit failed".to_owned()));
        }
        if let Err(error) = self.write(&mut commit.parts) {
            self.active.iter_mut().flatten().for_each(Active::undo);
            self.finish_broken_segments();
            return Err(error);
        }
        // From here on nothing fails: the entries are on disk.
        for part in &mut commit.parts {
            let active = self.active.get_mut(part.class.index()).and_then(Option::as_mut);
            let active = active.expect("the segment that was written to");
            let mut end = active.end;
            for block in &mut part.blocks {
                block.meta.offset += active.end;
                assert_eq!(block.meta.offset, end, "frames follow one another");
                end = block.meta.end();
            }
            active.end += part.frames.len() as u64;
            assert_eq!(active.end, end, "a log ends behind its last frame");
            if let Index::Memory(index) = &mut *active.segment.index_mut() {
                part.blocks.iter().for_each(|block| take_note(index, block));
            }
        }
        self.shared.set_durable(commit.covered);
        let (metrics, tally) = (&self.shared.metrics, &commit.tally);
        for part in &commit.parts {
            let entries = part.blocks.iter().map(|block| block.entries.len() as u64).sum();
            self.shared.count_written(part.class, entries);
            // Not the tally's: some that were judged with these wait for a commit to come.
            metrics.entries_stored.add(entries);
        }
        self.shared.look_for_room();
        metrics.commits.add(1);
        metrics.entry_bytes_stored.add(tally.raw_bytes);
        metrics.duplicates_folded.add(tally.known);
        metrics.returns_differing.add(tally.differing);
        Ok(())
    }

    fn write(&mut self, parts: &mut [Part]) -> Result<(), StoreError> {
        for part in &mut *parts {
            let Some(first) = part.blocks.first() else { continue };
            self.finish_without_room_for(part)?;
            let active = self.growing(part.class, first.meta.first_seq)?;
            active.place(part);
            active.write(&part.frames)?;
        }
        if parts.is_empty() {
            return Ok(());
        }
        match self.limits.durability {
            Durability::Durable => self.active.iter_mut().flatten().try_for_each(Active::sync),
            Durability::Written { .. } => {
                self.unsynced_since.get_or_insert_with(Instant::now);
                Ok(())
            }
        }
    }

    /// Finishes the growing segment of a class if its index cannot number what is to come.
    fn finish_without_room_for(&mut self, part: &Part) -> Result<(), StoreError> {
        let Some(slot) = self.active.get_mut(part.class.index()) else { return Ok(()) };
        let is_full = |active: &Active| match &*active.segment.index() {
            Index::Memory(index) => !part.fits_into(index),
            Index::Open(_) | Index::Closed => false,
        };
        if let Some(full) = slot.as_mut().filter(|active| is_full(active)) {
            full.sync()?;
            full.trim();
            let segment = full.segment.clone();
            *slot = None;
            finish(&self.seals, segment);
        }
        Ok(())
    }

    /// The growing segment of a class; a new one, whose name will be `first_seq`, if there is none.
    fn growing(&mut self, class: Class, first_seq: SeqNo) -> Result<&mut Active, StoreError> {
        let Some(slot) = self.active.get_mut(class.index()) else {
            return Err(StoreError::Failed(format!("no class has the number {}", class.index())));
        };
        if slot.is_none() {
            let (shared, name) = (&self.shared, self.shared.classes.name(class));
            let id = LogId { store_id: shared.store_id, first_seq };
            create(&*shared.medium, &shared.dir, &name, id, shared.clock.now())?;
            let index = Index::Memory(Box::new(MemIndex::new(first_seq)));
            let segment = Arc::new(Segment::open(&shared.medium, &shared.dir, (class, name), id, index)?);
            let active = Active::open(segment.clone(), FILE_HEADER_LEN as u64, &self.limits)?;
            shared.add_segment(segment);
            *slot = Some(active);
        }
        slot.as_mut().ok_or_else(|| StoreError::Failed("no growing segment".to_owned()))
    }

    /// Syncs what was written and answered, with durability `written`.
    fn sync_late(&mut self) {
        self.unsynced_since = None;
        for active in self.active.iter_mut().flatten() {
            if let Err(error) = active.sync() {
                self.shared.metrics.late_syncs_failed.add(1);
                tracing::error!(%error, "what was answered before it was synced may be lost at a power cut");
            }
        }
        self.finish_broken_segments();
    }

    /// Lets go of logs whose sync failed.
    fn finish_broken_segments(&mut self) {
        for slot in &mut self.active {
            if let Some(broken) = slot.take_if(|active| active.broken) {
                tracing::warn!(dir = %broken.segment.dir().display(), "a sync failed; a new segment is begun");
                self.broken.push(broken);
            }
        }
        let seals = &self.seals;
        self.broken.retain(|broken| {
            let cut = broken.cut_off();
            match &cut {
                Ok(()) => finish(seals, broken.segment.clone()),
                // The next commit tries again; a start reads such a segment through.
                Err(error) => {
                    tracing::warn!(%error, "a log with a failed write or sync cannot be finished yet");
                }
            }
            cut.is_err()
        });
    }

    /// Finishes segments that have reached their bounds. The next ones are begun when there is something to write.
    fn roll_full_segments(&mut self) {
        let (shared, limits) = (&self.shared.clone(), self.limits);
        let is_full = |active: &mut Active| shared.is_full(&active.segment, active.end, &limits);
        if self.unsynced_since.is_some() && self.active.iter_mut().flatten().any(is_full) {
            self.sync_late();
        }
        for slot in &mut self.active {
            match slot.take_if(is_full) {
                // A write failed, and what it left is cut off but not synced.
                Some(full) if full.dirty => self.broken.push(full),
                Some(mut full) => {
                    full.trim();
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

/// Hands a finished segment to the sealer; waits if that one is behind.
fn finish(seals: &Tx<Arc<Segment>>, segment: Arc<Segment>) {
    segment.set_growing(false);
    if let Err(segment) = seals.send(segment) {
        tracing::error!(dir = %segment.dir().display(), "the sealer is gone; the next start seals this segment");
    }
}

fn emptied(mut buffer: Vec<u8>) -> Vec<u8> {
    buffer.clear();
    buffer.shrink_to(crate::limits::COMMIT_PACKED_BYTES);
    buffer
}

fn take_note(index: &mut MemIndex, block: &PackedBlock) {
    index.add_block(block.meta, &block.shapes);
    for (at, place) in block.entries.iter().enumerate() {
        let batch = block.batches.get(place.batch as usize);
        let entry = batch.and_then(|batch| batch.entry(place.at as usize)).expect("an entry of this block");
        let entry = Entry { kind: place.kind, flags: place.flags, ..entry };
        let added = index.add(at, place.seq, &entry, entry.raw_len(), || entry.body);
        added.expect("there was room before the write");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_panic_in_the_middle_of_a_commit_the_other_thread_went_on_committing() {
        let pen = Arc::new(Mutex::new(0));
        let commits = |pen: Arc<Mutex<i32>>, breaks_off: bool| {
            let commit = move || {
                let mut pen = held(&pen);
                *pen += 1;
                assert!(!breaks_off, "a broken invariant");
            };
            std::thread::Builder::new().name("sc-commit".to_owned()).spawn(commit).unwrap().join()
        };
        assert!(commits(pen.clone(), false).is_ok());
        assert!(commits(pen.clone(), true).is_err());
        assert!(commits(pen.clone(), false).is_err(), "it ends, too");
    }
}
