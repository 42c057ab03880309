//! The appender: the one thread that gives entries their order and puts them on disk.
//!
//! ```text
//! intake -> commit: judge, number, pack into blocks per class -> write -> fdatasync -> index -> answer
//! ```
//!
//! A commit takes what has arrived and starts as soon as the one before is synced; there is no timer. A lone
//! caller waits for one fdatasync, a flood fills blocks by itself.
//!
//! # Invariant
//!
//! An entry is answered only after its block is synced, and is readable before it is answered. A commit that
//! fails leaves each log as it was before it: its entries are answered with the reason, forgotten by the
//! duplicate memory, and their numbers are never given again.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;

use super::builder::{BlockBuilder, Packer};
use super::class::Classifier;
use super::dedupe::{Dedupe, Verdict};
use super::error::{StoreError, io_at};
use super::index::MemIndex;
use super::log::{BlockMeta, PAYLOAD_BYTES_MAX, write_frame};
use super::segment::{Index, Segment, create};
use super::{Limits, Shared};
use crate::channel::{Next, Refused, Rx, Tx};
use crate::limits::COMMIT_RAW_BYTES;
use crate::model::{Batch, Entry, Flags, SeqNo};

/// Called once with the outcome of a batch: stored and synced, or why not.
pub type Done = Box<dyn FnOnce(Result<(), String>) + Send>;

/// A batch and whom to tell.
pub struct Work {
    batch: Batch,
    done: Option<Done>,
}

impl Work {
    /// A batch whose sender is told by `done`.
    pub fn new(batch: Batch, done: Option<Done>) -> Self {
        Self { batch, done }
    }
}

/// The sending half of the queue `intake`. When it is full, senders wait.
#[derive(Clone)]
pub struct Intake(pub(super) Tx<Work>);

impl Intake {
    /// Hands over a batch, waiting for room.
    pub fn submit(&self, batch: Batch, done: Option<Done>) -> Result<(), StoreError> {
        self.0.send(Work::new(batch, done)).map_err(|_| StoreError::Stopping)
    }

    /// Hands over a batch if there is room; gives it back if there is none.
    pub fn try_submit(&self, batch: Batch, done: Option<Done>) -> Result<(), Refused<(Batch, Option<Done>)>> {
        self.0.try_send(Work::new(batch, done)).map_err(|refused| match refused {
            Refused::Full(work) => Refused::Full((work.batch, work.done)),
            Refused::Closed(work) => Refused::Closed((work.batch, work.done)),
        })
    }

    /// Batches waiting.
    pub fn depth(&self) -> usize {
        self.0.depth()
    }
}

/// A class's growing segment.
pub(super) struct Active {
    pub(super) segment: Arc<Segment>,
    file: File,
    end: u64,
}

impl Active {
    /// Opens a segment's log for appending at `end`.
    pub(super) fn open(segment: Arc<Segment>, end: u64) -> Result<Self, StoreError> {
        let path = segment.log().path().to_owned();
        let file = OpenOptions::new().write(true).open(&path).map_err(io_at("open for writing", &path))?;
        Ok(Self { segment, file, end })
    }

    fn write(&self, frames: &[u8]) -> Result<(), StoreError> {
        let path = self.segment.log().path();
        self.file.write_all_at(frames, self.end).map_err(io_at("write", path))?;
        self.file.sync_data().map_err(io_at("sync", path))
    }

    /// Lets every write fail, as on a disk that has gone read-only.
    #[cfg(test)]
    pub(super) fn break_writes(&mut self) -> File {
        std::mem::replace(&mut self.file, File::open(self.segment.log().path()).unwrap())
    }

    /// Lets writes succeed again.
    #[cfg(test)]
    pub(super) fn mend_writes(&mut self, file: File) {
        self.file = file;
    }

    fn undo(&self) {
        if let Err(e) = self.file.set_len(self.end) {
            // The next commit writes over what was left; until then readers do not look there.
            tracing::warn!(path = %self.segment.log().path().display(), error = %e, "could not cut off a failed write");
        }
    }
}

/// What a commit has packed for one class.
#[derive(Default)]
struct Packing<'a> {
    builder: BlockBuilder,
    open: Vec<(SeqNo, Entry<'a>)>,
    frames: Vec<u8>,
    blocks: Vec<(BlockMeta, Vec<(SeqNo, Entry<'a>)>)>,
}

impl<'a> Packing<'a> {
    fn push(
        &mut self,
        seq: SeqNo,
        entry: Entry<'a>,
        end: u64,
        packer: &mut Packer,
    ) -> Result<(), StoreError> {
        if self.builder.is_full_for(&entry) {
            self.finish(end, packer)?;
        }
        self.builder.push(seq, &entry);
        self.open.push((seq, entry));
        Ok(())
    }

    fn finish(&mut self, end: u64, packer: &mut Packer) -> Result<(), StoreError> {
        if self.open.is_empty() {
            return Ok(());
        }
        let ((first_seq, last_seq), (at_min, at_max)) = (self.builder.seqs(), self.builder.times());
        let failed = |what: String| StoreError::Failed(format!("pack a block: {what}"));
        let packed = self.builder.finish(packer).map_err(|e| failed(e.to_string()))?;
        if packed.head.len().max(packed.bodies.len()) > PAYLOAD_BYTES_MAX {
            // Names and entries are bounded before they come here, so this is a fault of ours; better told than
            // written where nobody can read it.
            let bytes = packed.head.len().max(packed.bodies.len());
            return Err(failed(format!("{bytes} bytes exceed the limit of {PAYLOAD_BYTES_MAX}")));
        }
        let offset = end + self.frames.len() as u64;
        let (len, head_len) = write_frame(&mut self.frames, &packed, first_seq, self.open.len());
        let fits = |n: usize| u32::try_from(n).map_err(|_| failed("a block over 4 GiB".to_owned()));
        let (len, head_len) = (fits(len)?, fits(head_len)?);
        let count = u32::try_from(self.open.len()).unwrap_or(u32::MAX);
        let meta = BlockMeta { offset, len, head_len, count, first_seq, last_seq, at_min, at_max };
        drop(packed);
        self.builder.clear();
        self.blocks.push((meta, std::mem::take(&mut self.open)));
        Ok(())
    }
}

/// The appender's thread.
pub struct Appender {
    pub(super) shared: Arc<Shared>,
    pub(super) intake: Rx<Work>,
    pub(super) seals: Tx<Arc<Segment>>,
    pub(super) active: Vec<Active>,
    pub(super) dedupe: Dedupe,
    pub(super) packer: Packer,
    pub(super) next_seq: SeqNo,
    pub(super) limits: Limits,
    pub(super) classifier: Classifier,
}

impl Appender {
    /// Works until every sender is gone and everything they sent is answered.
    pub fn run(mut self) {
        loop {
            self.shared.beat();
            match self.intake.next(Duration::from_secs(1)) {
                Next::Message(first) => {
                    let works = self.gather(first);
                    self.apply(works);
                }
                Next::Idle => {}
                Next::Closed => break,
            }
        }
        tracing::debug!(next_seq = self.next_seq.0, "appender done");
    }

    /// Adds what is already waiting to a first batch, up to the size of a commit.
    fn gather(&self, first: Work) -> Vec<Work> {
        let mut bytes = first.batch.bytes();
        let mut works = vec![first];
        while bytes < COMMIT_RAW_BYTES {
            let Some(next) = self.intake.try_next() else { break };
            bytes += next.batch.bytes();
            works.push(next);
        }
        works
    }

    /// Commits batches and tells their senders.
    pub(super) fn apply(&mut self, works: Vec<Work>) {
        let entries: usize = works.iter().map(|w| w.batch.len()).sum();
        let outcome = self.commit(&works);
        match &outcome {
            Ok(()) => self.dedupe.keep(),
            Err(error) => {
                self.dedupe.forget();
                self.active.iter().for_each(Active::undo);
                self.shared.metrics.entries_failed.add(entries as u64);
                tracing::error!(%error, entries, "entries could not be stored; their senders are told");
            }
        }
        let words = outcome.as_ref().map(|&()| ()).map_err(ToString::to_string);
        for work in works {
            if let Some(done) = work.done {
                done(words.clone());
            }
        }
        if outcome.is_ok()
            && let Err(error) = self.roll_full_segments()
        {
            tracing::error!(%error, "could not begin a new segment; the old one goes on growing");
        }
    }

    fn commit(&mut self, works: &[Work]) -> Result<(), StoreError> {
        let mut packings: Vec<Packing<'_>> = self.active.iter().map(|_| Packing::default()).collect();
        let (mut stored, mut raw_bytes, mut known, mut differing) = (0, 0, 0, 0);
        for mut entry in works.iter().flat_map(|w| w.batch.entries()) {
            match self.dedupe.judge(&entry) {
                Verdict::Known => {
                    known += 1;
                    continue;
                }
                Verdict::Differs => differing += 1,
                Verdict::Confirms => entry.flags = entry.flags.without(Flags::ON_BUS),
                Verdict::New => {}
            }
            let seq = self.next_seq;
            self.next_seq = seq.next();
            stored += 1;
            raw_bytes += entry.raw_len() as u64;
            let class = self.classifier.class_of(&entry).index();
            if let (Some(packing), Some(active)) = (packings.get_mut(class), self.active.get(class)) {
                packing.push(seq, entry, active.end, &mut self.packer)?;
            }
        }
        for (packing, active) in packings.iter_mut().zip(&self.active) {
            packing.finish(active.end, &mut self.packer)?;
            if !packing.frames.is_empty() {
                active.write(&packing.frames)?;
            }
        }
        // From here on nothing fails: the entries are on disk.
        for (packing, active) in packings.iter().zip(&mut self.active) {
            if packing.blocks.is_empty() {
                continue;
            }
            active.end += packing.frames.len() as u64;
            if let Index::Memory(index) = &mut *active.segment.index_mut() {
                take_note(index, &packing.blocks);
            }
        }
        let metrics = &self.shared.metrics;
        self.shared.set_durable(self.next_seq);
        metrics.commits.add(1);
        metrics.entries_stored.add(stored);
        metrics.entry_bytes_stored.add(raw_bytes);
        metrics.duplicates_folded.add(known);
        metrics.returns_differing.add(differing);
        Ok(())
    }

    /// Begins a new segment wherever the growing one has reached its bounds, and has the old one sealed.
    fn roll_full_segments(&mut self) -> Result<(), StoreError> {
        for active in &mut self.active {
            let entries = super::segment::memory_sums(&active.segment.index()).map_or(0, |s| s.entries);
            if entries == 0
                || (active.end < self.limits.segment_bytes_max && entries < self.limits.segment_entries_max)
            {
                continue;
            }
            let first_seq = self.next_seq;
            let shared = &self.shared;
            let (class, class_name) = (active.segment.class, active.segment.class_name.clone());
            create(&shared.dir, &class_name, first_seq, shared.clock.now())?;
            let index = Index::Memory(Box::new(MemIndex::new(first_seq)));
            let segment = Arc::new(Segment::open(&shared.dir, (class, class_name), first_seq, index)?);
            let fresh = Active::open(segment.clone(), super::log::FILE_HEADER_LEN as u64)?;
            let full = std::mem::replace(active, fresh);
            shared.add_segment(segment);
            // Waits if the sealer is behind.
            if let Err(segment) = self.seals.send(full.segment) {
                tracing::error!(dir = %segment.dir().display(), "the sealer is gone; the next start seals this segment");
            }
        }
        Ok(())
    }
}

fn take_note(index: &mut MemIndex, blocks: &[(BlockMeta, Vec<(SeqNo, Entry<'_>)>)]) {
    for (meta, entries) in blocks {
        index.add_block(*meta);
        for (at, (seq, entry)) in entries.iter().enumerate() {
            index.add(at, *seq, entry, entry.raw_len(), || entry.body);
        }
    }
}
