//! The appender: the one thread that gives entries their order and packs them into blocks.
//!
//! ```text
//! intake -> appender: judge, number, pack into blocks per class -> committer: write, fdatasync, index, answer
//! ```
//!
//! While the committer syncs one commit, the appender packs the next. A commit takes what has arrived and starts as
//! soon as the one before is synced; there is no timer. A lone caller waits for one fdatasync, a flood fills
//! blocks by itself.
//!
//! # Invariant
//!
//! A batch is answered only when everything numbered up to its last entry is in a commit that has been synced, so what
//! was answered is readable, and a duplicate is never answered before its original is on disk. After a commit
//! failed, everything behind it fails too: its senders are told the reason, the duplicate memory forgets it, and
//! its numbers are never given again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Shared;
use super::builder::{BlockBuilder, Packer};
use super::class::Classifier;
use super::committer::{Commit, Idle, Part, Pen, Progress, held};
use super::dedupe::{Dedupe, Verdict};
use super::error::{StoreError, fits};
use super::frame::write_frame;
use super::log::BlockMeta;
use super::numbers::Numbers;
use crate::channel::{Either, Next, Refused, Rx, Tx};
use crate::limits::{BLOCK_WAITS_COMMITS, COMMIT_PACKED_BYTES, COMMIT_WORTH_BYTES, INTAKE_BYTES};
use crate::model::{Batch, Entry, Flags, Kind, SeqNo};
use crate::wire::salt_event::prints_of;

/// Called once with the outcome of a batch: stored and synced, or why not.
pub type Done = Box<dyn FnOnce(Result<(), String>) + Send>;

/// A batch that was offered, given back.
pub type Offer = (Arc<Batch>, Option<Done>);

/// A batch and whom to tell.
pub struct Work {
    batch: Arc<Batch>,
    done: Option<Done>,
}

/// The sending half of the queue `intake`, which is bounded by messages and by bytes. When it is full, senders wait.
#[derive(Clone)]
pub struct Intake {
    pub(super) works: Tx<Work>,
    pub(super) bytes: Arc<AtomicUsize>,
}

impl Intake {
    /// Hands over a batch, waiting for room.
    pub fn submit(&self, mut batch: Batch, mut done: Option<Done>) -> Result<(), StoreError> {
        loop {
            match self.try_submit(batch, done) {
                Ok(()) => return Ok(()),
                Err(Refused::Closed(_)) => return Err(StoreError::Stopping),
                Err(Refused::Full(back)) => (batch, done) = back,
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Hands over a batch if there is room; gives it back if there is none. A batch larger than all the room there is
    /// goes in alone.
    pub fn try_submit(&self, batch: Batch, done: Option<Done>) -> Result<(), Refused<(Batch, Option<Done>)>> {
        let own = |(batch, done)| (Arc::into_inner(batch).expect("nobody else has a share in it"), done);
        self.try_share(Arc::new(batch), done).map_err(|refused| match refused {
            Refused::Full(back) => Refused::Full(own(back)),
            Refused::Closed(back) => Refused::Closed(own(back)),
        })
    }

    /// As [`Intake::try_submit`], for a sender who keeps a share of the batch to offer it again should it fail.
    pub fn try_share(&self, batch: Arc<Batch>, done: Option<Done>) -> Result<(), Refused<Offer>> {
        let bytes = batch.bytes();
        let waiting = self.bytes.fetch_add(bytes, Ordering::AcqRel);
        if waiting > 0 && waiting + bytes > INTAKE_BYTES {
            self.bytes.fetch_sub(bytes, Ordering::AcqRel);
            return Err(Refused::Full((batch, done)));
        }
        self.works.try_send(Work { batch, done }).map_err(|refused| {
            self.bytes.fetch_sub(bytes, Ordering::AcqRel);
            match refused {
                Refused::Full(work) => Refused::Full((work.batch, work.done)),
                Refused::Closed(work) => Refused::Closed((work.batch, work.done)),
            }
        })
    }

    /// Batches waiting.
    pub fn depth(&self) -> usize {
        self.works.depth()
    }
}

/// An entry of a block: its number, and where its bytes are.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryRef {
    pub(super) seq: SeqNo,
    /// Place among the block's batches.
    pub(super) batch: u32,
    /// Place in that batch.
    pub(super) at: u32,
    /// What it is in the log, which need not be what it is in the batch.
    pub(super) kind: Kind,
    pub(super) flags: Flags,
}

/// A block that is packed, and what it was made of: the index takes note of that once the block is on disk.
#[derive(Debug)]
pub(super) struct PackedBlock {
    /// Its offset is that in [`Part::frames`].
    pub(super) meta: BlockMeta,
    /// The distinct shapes of its tags.
    pub(super) shapes: Vec<Vec<u8>>,
    pub(super) batches: Vec<Arc<Batch>>,
    pub(super) entries: Vec<EntryRef>,
    /// Bytes of its entries, names included.
    pub(super) raw_bytes: usize,
}

/// What one class has under way.
#[derive(Default)]
struct Lane {
    builder: BlockBuilder,
    batches: Vec<Arc<Batch>>,
    entries: Vec<EntryRef>,
    /// The number of the commit that the open block could have gone with first.
    open_since: u64,
    frames: Vec<u8>,
    blocks: Vec<PackedBlock>,
    /// The number of its last entry.
    last_seq: SeqNo,
}

impl Lane {
    fn push(
        &mut self,
        seq: SeqNo,
        entry: &Entry<'_>,
        batch: &Arc<Batch>,
        at: usize,
    ) -> Result<(), StoreError> {
        assert!(seq > self.last_seq, "numbers ascend in a class");
        if !self.batches.last().is_some_and(|last| Arc::ptr_eq(last, batch)) {
            self.batches.push(batch.clone());
        }
        let batch = fits(self.batches.len() - 1, "a block of over 4 G batches")?;
        let at = fits(at, "a batch of over 4 G entries")?;
        self.builder.push(seq, entry)?;
        self.entries.push(EntryRef { seq, batch, at, kind: entry.kind, flags: entry.flags });
        self.last_seq = seq;
        Ok(())
    }

    /// Packs the open block.
    fn finish(&mut self, packer: &mut Packer) -> Result<(), StoreError> {
        if self.entries.is_empty() {
            return Ok(());
        }
        let ((first_seq, last_seq), (at_min, at_max)) = (self.builder.seqs(), self.builder.times());
        if self.builder.len() != self.entries.len() {
            return Err(StoreError::Broken("a block has other entries than its index would have"));
        }
        let packed = self.builder.finish(packer)?;
        let offset = self.frames.len() as u64;
        let seqs = (first_seq, last_seq);
        let (len, head_len) = write_frame(&mut self.frames, &packed, seqs, self.entries.len())?;
        drop(packed);
        let count = fits(self.entries.len(), "a block has over 4 G entries")?;
        let meta = BlockMeta { offset, len, head_len, count, first_seq, last_seq, at_min, at_max };
        let (shapes, raw_bytes) = (self.builder.shapes(), self.builder.raw_bytes());
        self.builder.clear();
        let room = self.entries.len();
        let entries = std::mem::replace(&mut self.entries, Vec::with_capacity(room));
        let batches = std::mem::take(&mut self.batches);
        self.blocks.push(PackedBlock { meta, shapes, batches, entries, raw_bytes });
        Ok(())
    }

    /// Forgets everything that has not been handed over; how many entries that were.
    fn clear(&mut self) -> usize {
        let packed: usize = self.blocks.iter().map(|block| block.entries.len()).sum();
        let lost = packed + self.entries.len();
        self.builder.clear();
        self.batches.clear();
        self.entries.clear();
        self.frames.clear();
        self.blocks.clear();
        assert!(self.builder.is_empty(), "nothing of a failed block goes into the next one");
        lost
    }
}

/// A batch that waits for its last entry to be on disk.
struct Waiting {
    /// The number after its last entry, and after everything that its duplicates may be copies of.
    upto: SeqNo,
    done: Done,
}

/// What has happened to entries since the last commit was handed over.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) raw_bytes: u64,
    pub(super) known: u64,
    pub(super) differing: u64,
}

/// The appender's thread.
pub struct Appender {
    shared: Arc<Shared>,
    intake: Rx<Work>,
    intake_bytes: Arc<AtomicUsize>,
    commits: Tx<Commit>,
    idles: Rx<Idle>,
    /// The committer's word that it has nothing to do.
    idle: Option<Idle>,
    progress: Arc<Mutex<Progress>>,
    pen: Arc<Mutex<Pen>>,
    lanes: Vec<Lane>,
    waiting: VecDeque<Waiting>,
    dedupe: Dedupe,
    packer: Packer,
    numbers: Numbers,
    classifier: Classifier,
    tally: Tally,
    /// The number of the next commit, and how many commits have failed before it.
    number: u64,
    epoch: u64,
}

/// The queues at the appender's ends.
pub(super) struct Ends {
    pub(super) intake: Rx<Work>,
    pub(super) intake_bytes: Arc<AtomicUsize>,
    pub(super) commits: Tx<Commit>,
    pub(super) idles: Rx<Idle>,
    pub(super) progress: Arc<Mutex<Progress>>,
    pub(super) pen: Arc<Mutex<Pen>>,
}

impl Appender {
    pub(super) fn new(
        shared: Arc<Shared>,
        ends: Ends,
        dedupe: Dedupe,
        classifier: Classifier,
        packer: Packer,
        numbers: Numbers,
    ) -> Self {
        let Ends { intake, intake_bytes, commits, idles, progress, pen } = ends;
        let lanes = shared.classes.configured().map(|_| Lane::default()).collect();
        Self {
            shared,
            intake,
            intake_bytes,
            commits,
            idles,
            idle: None,
            progress,
            pen,
            lanes,
            waiting: VecDeque::new(),
            dedupe,
            packer,
            numbers,
            classifier,
            tally: Tally::default(),
            number: 1,
            epoch: 0,
        }
    }

    /// Works until every sender is gone and everything they sent is with the committer.
    pub fn run(mut self) {
        loop {
            self.shared.beat();
            self.learn();
            let next = if self.idle.is_some() && self.has_work() {
                let Some(work) = self.intake.try_next() else {
                    self.hand_over(true);
                    continue;
                };
                Next::Message(Either::This(work))
            } else {
                self.intake.next_of(&self.idles, Duration::from_secs(1))
            };
            match next {
                Next::Message(Either::This(work)) => self.take(work),
                Next::Message(Either::Other(idle)) => self.idle = Some(idle),
                Next::Idle => {}
                Next::Closed => break,
            }
            let packed = self.packed_bytes();
            if packed > COMMIT_PACKED_BYTES {
                self.wait_for_idle();
            }
            if self.idle.is_some() && packed > COMMIT_WORTH_BYTES {
                self.hand_over(false);
            }
        }
        self.wait_for_idle();
        self.hand_over(true);
        self.wait_for_idle();
        self.learn();
        self.numbers.give_back();
        tracing::debug!(next_seq = self.numbers.next().0, "appender done");
    }

    fn has_work(&self) -> bool {
        let has = |lane: &Lane| !lane.entries.is_empty() || !lane.blocks.is_empty();
        !self.waiting.is_empty() || self.lanes.iter().any(has)
    }

    fn packed_bytes(&self) -> usize {
        self.lanes.iter().map(|lane| lane.frames.len()).sum()
    }

    fn wait_for_idle(&mut self) {
        while self.idle.is_none() {
            match self.idles.next(Duration::from_secs(1)) {
                Next::Message(idle) => self.idle = Some(idle),
                Next::Idle => {}
                // The committer is gone, and the process with it.
                Next::Closed => return,
            }
        }
    }

    /// Learns how the commits fared that were handed over.
    fn learn(&mut self) {
        let failure = {
            let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
            self.dedupe.keep(&progress.on_disk);
            (progress.epoch != self.epoch).then(|| {
                self.epoch = progress.epoch;
                std::mem::take(&mut progress.words)
            })
        };
        if let Some(words) = failure {
            self.fail(&words);
        }
    }

    /// Tells everybody who waits that nothing of theirs is stored.
    fn fail(&mut self, words: &str) {
        let lost: usize = self.lanes.iter_mut().map(Lane::clear).sum();
        self.shared.metrics.entries_failed.add(lost as u64);
        self.tally = Tally::default();
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        self.dedupe.forget(&progress.on_disk);
        drop(progress);
        for waiting in self.waiting.drain(..) {
            (waiting.done)(Err(words.to_owned()));
        }
    }

    /// Checks, numbers and packs the entries of a batch.
    fn take(&mut self, work: Work) {
        let Work { batch, done } = work;
        let bytes = batch.bytes();
        let refused = match self.shared.guard.refusal().filter(|_| !batch.is_empty()) {
            Some(words) => Some((words, &self.shared.metrics.entries_refused_disk_full)),
            // Before anything is judged: nothing of this batch has to be undone, and others are not concerned.
            None => self.numbers.reserve(batch.len()).err().map(|error| {
                tracing::error!(%error, "cannot reserve sequence numbers, batch rejected");
                (error.to_string(), &self.shared.metrics.entries_failed)
            }),
        };
        if let Some((words, counter)) = refused {
            self.intake_bytes.fetch_sub(bytes, Ordering::AcqRel);
            counter.add(batch.len() as u64);
            if let Some(done) = done {
                done(Err(words));
            }
            return;
        }
        let outcome = self.pack(&batch);
        self.intake_bytes.fetch_sub(bytes, Ordering::AcqRel);
        if let Some(done) = done {
            self.waiting.push_back(Waiting { upto: self.numbers.next(), done });
        }
        if let Err(error) = outcome {
            tracing::error!(%error, "entries could not be stored; their senders are told");
            // The commit under way may still succeed, and what it stores must stay remembered.
            self.wait_for_idle();
            self.learn();
            self.fail(&error.to_string());
        }
    }

    fn pack(&mut self, batch: &Arc<Batch>) -> Result<(), StoreError> {
        self.dedupe.note_heard(self.shared.heard.load(Ordering::Relaxed));
        for (at, (mut entry, prints)) in batch.entries().enumerate() {
            let prints = prints.unwrap_or_else(|| prints_of(&entry));
            if entry.kind == Kind::Return && !entry.source.confirms() {
                entry.flags = entry.flags.with(Flags::UNCONFIRMED);
            }
            let class = self.classifier.class_of(&entry).index();
            let Some(lane) = self.lanes.get_mut(class) else {
                return Err(StoreError::Failed(format!("no class has the number {class}")));
            };
            match self.dedupe.judge(&entry, prints) {
                Verdict::Known => {
                    self.tally.known += 1;
                    self.dedupe.depends_on(class, lane.last_seq);
                    continue;
                }
                Verdict::Differs => self.tally.differing += 1,
                Verdict::Heard => {
                    self.tally.known += 1;
                    self.shared.metrics.events_heard_again.add(1);
                    (entry.kind, entry.flags) = (Kind::Heard, entry.flags.without(Flags::ON_BUS));
                }
                Verdict::Confirms => entry.flags = entry.flags.without(Flags::ON_BUS),
                Verdict::New => {}
            }
            let seq = self.numbers.take();
            self.tally.raw_bytes += entry.raw_len() as u64;
            self.dedupe.depends_on(class, seq);
            if lane.builder.is_full_for(&entry) {
                lane.finish(&mut self.packer)?;
            }
            if lane.entries.is_empty() {
                lane.open_since = self.number;
            }
            lane.push(seq, &entry, batch, at)?;
        }
        Ok(())
    }

    /// Gives the committer what is packed, and with it the blocks that are still open: all of them, or those that are
    /// half full or have waited long enough.
    fn hand_over(&mut self, everything: bool) {
        let Some(mut idle) = self.idle.take() else { return };
        let mut parts = Vec::new();
        let mut covered = self.numbers.next();
        for (class, lane) in self.shared.classes.configured().zip(&mut self.lanes) {
            let ripe = lane.builder.is_half_full() || self.number - lane.open_since >= BLOCK_WAITS_COMMITS;
            if (everything || ripe)
                && let Err(error) = lane.finish(&mut self.packer)
            {
                tracing::error!(%error, "entries could not be stored; their senders are told");
                self.idle = Some(idle);
                self.fail(&error.to_string());
                return;
            }
            if let Some(open) = lane.entries.first() {
                covered = covered.min(open.seq);
            }
            if !lane.blocks.is_empty() {
                let frames = std::mem::replace(&mut lane.frames, idle.buffers.pop().unwrap_or_default());
                parts.push(Part { class, frames, blocks: std::mem::take(&mut lane.blocks) });
            }
        }
        assert!(covered <= self.numbers.next(), "a commit covers only numbers that were given out");
        let mut dones = Vec::new();
        while self.waiting.front().is_some_and(|first| first.upto <= covered) {
            dones.extend(self.waiting.pop_front().map(|first| first.done));
        }
        let tally = std::mem::take(&mut self.tally);
        let commit = Commit { epoch: self.epoch, parts, dones, covered, tally };
        self.number += 1;
        if commit.is_small() && self.intake.is_empty() {
            let mut pen = held(&self.pen);
            // What is written and not synced yet is the committer's to remember.
            if pen.syncs_each() {
                pen.apply(commit, |idle| self.idle = Some(idle));
                return;
            }
        }
        if let Err(commit) = self.commits.send(commit) {
            let gone = "the committer is gone".to_owned();
            commit.dones.into_iter().for_each(|done| done(Err(gone.clone())));
        }
    }
}
