//! The appender: the one thread that orders entries and packs them into blocks.
//!
//! ```text
//! intake -> appender: deduplicate, number, pack into blocks per class -> committer: write, fdatasync, index, acknowledge
//! ```
//!
//! This is group commit with a pipeline of two: the appender packs the next commit while the committer syncs the current
//! one. A commit contains all entries that have arrived and starts as soon as the previous one is synced; there is no timer.
//! A single caller waits for one fdatasync, and under load blocks fill up.
//!
//! # Invariant
//!
//! A batch is acknowledged only when every entry up to its last sequence number is in a synced commit. Acknowledged
//! entries are therefore readable, and a duplicate is never acknowledged before its original is on disk. The appender hands over
//! a commit only after it has applied the result of the previous one. When a commit fails, everything packed behind it
//! fails with the same reason, is removed from the duplicate memory, and its sequence numbers are never assigned again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, SendError, Sender, TrySendError, bounded};
use parking_lot::Mutex;

use super::committer::{Commit, CommitResult, Committer, Part, SegmentWriter, with_writer};
use super::dedupe::{Dedupe, DedupeOutcome};
use super::packed::{Done, EntryStats};
use super::seqno::SeqNos;
use super::status::WriterStatus;
use crate::class::{Class, Classes, Classifier};
use crate::error::StoreError;
use crate::free_space::FreeSpaceGuard;
use crate::log::builder::{BlockBuffers, BlockBuilder, BuiltBlock, Packer};
use crate::shares::{ShareState, Shares};
use saltcellar_base::clock::Clock;
use saltcellar_base::limits::{
    BLOCK_WAITS_COMMITS, COMMIT_PACKED_BYTES, COMMIT_WORTH_BYTES, INTAKE_BATCHES, INTAKE_BYTES,
};
use saltcellar_base::metrics::Metrics;
use saltcellar_model::{Batch, Entry, Fingerprints, Flags, Kind, SeqNo};
use saltcellar_wire::salt_event::fingerprints_of;

/// A batch and its completion callback, returned to the sender by a full or closed queue.
pub(crate) type Offer = (Arc<Batch>, Option<Done>);

pub(crate) struct Submission {
    batch: Arc<Batch>,
    done: Option<Done>,
}

/// The sending half of the queue `intake`, bounded by messages and by bytes. Senders wait while it is full.
#[derive(Clone)]
pub struct Intake {
    pub(crate) store_id: u64,
    pub(crate) submissions: Sender<Submission>,
    pub(crate) bytes: Arc<AtomicUsize>,
}

impl Intake {
    /// The id of the store that accepts the batches. A secret: see
    /// [`crate::log::frame`].
    pub fn store_id(&self) -> u64 {
        self.store_id
    }

    /// Submits a batch; waits while the queue is full.
    pub fn submit(&self, mut batch: Batch, mut done: Option<Done>) -> Result<(), StoreError> {
        loop {
            match self.try_submit(batch, done) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(_)) => return Err(StoreError::Stopping),
                Err(TrySendError::Full(back)) => (batch, done) = back,
            }
            // Polled, because a full queue has two limits and the channel knows only one of them.
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Submits a batch, or returns it if the queue is full. A batch larger than the byte limit is accepted when the
    /// queue is empty.
    pub fn try_submit(
        &self,
        batch: Batch,
        done: Option<Done>,
    ) -> Result<(), TrySendError<(Batch, Option<Done>)>> {
        let own = |(batch, done)| {
            (
                Arc::into_inner(batch).expect("this is the only reference"),
                done,
            )
        };

        self.try_share(Arc::new(batch), done)
            .map_err(|refused| match refused {
                TrySendError::Full(back) => TrySendError::Full(own(back)),
                TrySendError::Disconnected(back) => TrySendError::Disconnected(own(back)),
            })
    }

    /// As [`Intake::try_submit`], for a sender that keeps a reference for retries.
    pub fn try_share(
        &self,
        batch: Arc<Batch>,
        done: Option<Done>,
    ) -> Result<(), TrySendError<Offer>> {
        let bytes = batch.bytes();
        // Added before the comparison: two senders that check at the same time must not both find
        // room.
        let waiting = self.bytes.fetch_add(bytes, Ordering::AcqRel);
        // Alone in the queue, any batch is accepted, or one that is larger than the limit would
        // wait forever.
        if waiting > 0 && waiting + bytes > INTAKE_BYTES {
            self.bytes.fetch_sub(bytes, Ordering::AcqRel);
            return Err(TrySendError::Full((batch, done)));
        }

        self.submissions
            .try_send(Submission { batch, done })
            .map_err(|refused| {
                self.bytes.fetch_sub(bytes, Ordering::AcqRel);
                match refused {
                    TrySendError::Full(work) => TrySendError::Full((work.batch, work.done)),
                    TrySendError::Disconnected(work) => {
                        TrySendError::Disconnected((work.batch, work.done))
                    }
                }
            })
    }
}

/// Number of blocks whose buffers are kept for reuse; under full load a commit contains about as
/// many blocks.
const SPARE_BLOCKS: usize = 4;

/// Blocks of one class that are not committed yet.
#[derive(Default)]
struct ClassQueue {
    builder: BlockBuilder,
    /// Number of the next commit when the open block got its first entry.
    open_since: u64,
    frames: Vec<u8>,
    blocks: Vec<BuiltBlock>,
    /// Sequence number of its last entry.
    last_seq: SeqNo,
}

impl ClassQueue {
    fn has_entries(&self) -> bool {
        !self.builder.is_empty() || !self.blocks.is_empty()
    }

    fn push(&mut self, seq: SeqNo, entry: &Entry<'_>) -> Result<(), StoreError> {
        assert!(
            seq > self.last_seq,
            "sequence numbers ascend within a class"
        );
        self.builder.push(seq, entry)?;
        self.last_seq = seq;
        Ok(())
    }

    /// Packs the open block.
    fn finish(
        &mut self,
        packer: &mut Packer,
        spare: &mut Vec<BlockBuffers>,
    ) -> Result<(), StoreError> {
        // Nothing is open.
        if self.builder.is_empty() {
            return Ok(());
        }
        let next = spare.pop().unwrap_or_default();
        let block = self.builder.build(packer, &mut self.frames, next)?;
        self.blocks.push(block);
        Ok(())
    }

    /// Drops everything that is not handed over yet; returns the number of entries.
    fn clear(&mut self) -> usize {
        let packed: usize = self.blocks.iter().map(|block| block.columns.len()).sum();
        let lost = packed + self.builder.len();

        self.builder.clear();
        self.frames.clear();
        self.blocks.clear();

        assert!(
            self.builder.is_empty(),
            "a failed block leaves nothing in the builder"
        );
        lost
    }
}

struct Waiting {
    /// One past its last entry, and past the originals of its duplicates.
    upto: SeqNo,
    done: Done,
}

/// The appender's thread.
pub struct Appender {
    classes: Arc<Classes>,
    guard: Arc<FreeSpaceGuard>,
    status: Arc<WriterStatus>,
    share_state: Arc<ShareState>,
    clock: Clock,
    metrics: Arc<Metrics>,
    intake: Receiver<Submission>,
    intake_bytes: Arc<AtomicUsize>,
    commits: Sender<Commit>,
    results: Receiver<CommitResult>,
    /// Buffers for the frames of the next commit; `None` while a commit is in flight.
    idle: Option<Vec<Vec<u8>>>,
    /// Buffers for the next blocks.
    spare: Vec<BlockBuffers>,
    /// Last durable sequence number per class.
    on_disk: Vec<SeqNo>,
    /// The committer's. Lock order: as there.
    writer: Arc<Mutex<SegmentWriter>>,
    queues: Vec<ClassQueue>,
    waiting: VecDeque<Waiting>,
    dedupe: Dedupe,
    packer: Packer,
    seqnos: SeqNos,
    classifier: Classifier,
    shares: Shares,
    stats: EntryStats,
    commit_number: u64,
}

impl Appender {
    /// The queue of entries, and the two threads that empty it.
    pub(crate) fn new(
        writer: SegmentWriter,
        dedupe: Dedupe,
        (classifier, shares, share_state): (Classifier, Shares, Arc<ShareState>),
        packer: Packer,
        seqnos: SeqNos,
    ) -> (Intake, Self, Committer) {
        let (submissions, intake) = bounded(INTAKE_BATCHES);
        // Only one commit in flight: if it fails, everything behind it is still here.
        let (commits, commits_rx) = bounded(1);
        let (results_tx, results) = bounded(1);
        let intake_bytes = Arc::<AtomicUsize>::default();

        let store_id = writer.dir.store_id();
        let (classes, guard) = (writer.classes.clone(), writer.guard.clone());
        let (status, clock) = (writer.status.clone(), writer.clock.clone());
        let metrics = writer.metrics.clone();
        let writer = Arc::new(Mutex::new(writer));
        let queues = classes
            .configured()
            .map(|_| ClassQueue::default())
            .collect();

        let committer = Committer {
            commits: commits_rx,
            results: results_tx,
            writer: writer.clone(),
        };
        let appender = Self {
            classes,
            guard,
            status,
            share_state,
            clock,
            metrics,
            intake,
            intake_bytes: intake_bytes.clone(),
            commits,
            results,
            idle: Some(Vec::new()),
            spare: Vec::new(),
            on_disk: Vec::new(),
            writer,
            queues,
            waiting: VecDeque::new(),
            dedupe,
            packer,
            seqnos,
            classifier,
            shares,
            stats: EntryStats::default(),
            commit_number: 1,
        };

        (
            Intake {
                store_id,
                submissions,
                bytes: intake_bytes,
            },
            appender,
            committer,
        )
    }

    /// Runs until all senders are gone and all their batches are committed or failed.
    pub fn run(mut self) {
        loop {
            // Proves to `status` that the loop is alive, at least once a second; see the default
            // below.
            self.status.beat();

            // With work and an idle committer, a commit starts as soon as the queue is empty.
            if self.idle.is_some() && self.has_work() {
                let Ok(work) = self.intake.try_recv() else {
                    self.hand_over(true);
                    continue;
                };
                self.take(work);
            } else {
                crossbeam_channel::select! {
                    recv(self.intake) -> work => match work {
                        Ok(work) => {
                            // It may be the retry of a batch that failed: its failure is applied first.
                            self.results.try_recv().into_iter().for_each(|result| self.apply_result(result));
                            self.take(work);
                        }
                        Err(_) => break,
                    },
                    recv(self.results) -> result => if let Ok(result) = result { self.apply_result(result) },
                    default(Duration::from_secs(1)) => {}
                }
            }

            // The limit of memory: the committer is behind, so the next batch waits in the queue.
            if self.packed_bytes() > COMMIT_PACKED_BYTES {
                self.wait_for_idle();
            }

            // Under full load a commit waits until it is worth its sync.
            if self.idle.is_some() && self.packed_bytes() > COMMIT_WORTH_BYTES {
                self.hand_over(false);
            }
        }

        // All senders have hung up. The result in flight decides whether the rest may still be
        // committed.
        self.wait_for_idle();
        self.hand_over(true);
        self.wait_for_idle();
        // Last: nothing is numbered after it.
        self.seqnos.release_unused();

        tracing::debug!(next_seq = self.seqnos.next().0, "appender done");
    }

    fn has_work(&self) -> bool {
        !self.waiting.is_empty() || self.queues.iter().any(ClassQueue::has_entries)
    }

    fn packed_bytes(&self) -> usize {
        self.queues.iter().map(|queue| queue.frames.len()).sum()
    }

    fn wait_for_idle(&mut self) {
        // An error means that the committer ended, and the process ends with it.
        if self.idle.is_none()
            && let Ok(result) = self.results.recv()
        {
            self.apply_result(result);
        }
    }

    fn apply_result(&mut self, result: CommitResult) {
        let CommitResult {
            on_disk,
            error,
            buffers,
        } = result;

        // First what is durable, then what failed: entries of the commit itself may be on disk.
        self.dedupe.keep(&on_disk);
        self.on_disk = on_disk;
        self.idle = Some(buffers.frames);
        self.spare.extend(buffers.blocks);
        self.spare.truncate(SPARE_BLOCKS);
        if let Some(error) = error {
            self.fail(&error);
        }
    }

    /// Fails everything that is not committed, because a block cannot be packed; and logs it, with
    /// the number of entries of a batch that are in no queue.
    fn fail_to_pack(&mut self, error: &StoreError, unqueued: usize) {
        let queues = self.classes.configured().zip(&self.queues);
        let classes: Vec<_> = queues
            .filter(|(_, queue)| queue.has_entries())
            .map(|(class, _)| self.classes.name(class))
            .collect();
        let classes = classes.join(", ");

        self.metrics.entries_failed.add(unqueued as u64);
        let entries = unqueued + self.fail(&error.to_string());
        tracing::error!(%error, entries, classes, "entries cannot be packed and are not stored, senders notified");
    }

    /// Fails everything that is not committed; returns the number of entries.
    fn fail(&mut self, reason: &str) -> usize {
        // In the order of the pipeline: what is packed, then the memory of it, then the senders.
        let lost: usize = self.queues.iter_mut().map(ClassQueue::clear).sum();
        self.metrics.entries_failed.add(lost as u64);
        self.stats = EntryStats::default();
        self.dedupe.forget(&self.on_disk);
        for waiting in self.waiting.drain(..) {
            (waiting.done)(Err(reason.to_owned()));
        }
        lost
    }

    /// Checks, numbers and packs the entries of a batch.
    fn take(&mut self, work: Submission) {
        let Submission { batch, done } = work;

        let bytes = batch.bytes();
        let refused = match self.guard.refusal().filter(|_| !batch.is_empty()) {
            Some(reason) => Some((reason, &self.metrics.entries_rejected_disk_full)),
            // Reserve before deduplication: a failure then leaves nothing to undo and concerns this batch alone.
            None => self.seqnos.reserve(batch.len()).err().map(|error| {
                tracing::error!(%error, entries = batch.len(), "cannot reserve sequence numbers, the entries of a batch are not stored, sender notified");
                (error.to_string(), &self.metrics.entries_failed)
            }),
        };

        if let Some((reason, counter)) = refused {
            self.intake_bytes.fetch_sub(bytes, Ordering::AcqRel);
            // Told right away: nothing of the batch was numbered, so nothing waits behind it.
            counter.add(batch.len() as u64);
            if let Some(done) = done {
                done(Err(reason));
            }
            return;
        }

        let outcome = self.pack(&batch);
        // Only now: until the entries are packed, they count as waiting.
        self.intake_bytes.fetch_sub(bytes, Ordering::AcqRel);
        if let Some(done) = done {
            // Also for a batch of duplicates only: their originals may not be durable yet.
            self.waiting.push_back(Waiting {
                upto: self.seqnos.next(),
                done,
            });
        }

        if let Err((error, unqueued)) = outcome {
            // The commit in flight may still succeed, and its entries must stay in the duplicate memory.
            self.wait_for_idle();
            self.fail_to_pack(&error, unqueued);
        }
    }

    /// The number of the last entry of a class that was taken over.
    fn last_seq_of(&self, class: Class) -> SeqNo {
        self.queues
            .get(class.index())
            .map_or(SeqNo::default(), |queue| queue.last_seq)
    }

    /// Packs the entries of a batch. An error has the number of entries that are in no queue.
    fn pack(&mut self, batch: &Batch) -> Result<(), (StoreError, usize)> {
        // Read once per batch: a reactor may be configured while the daemon runs.
        self.dedupe.note_seen_on_bus(self.status.has_reactor());

        self.dedupe.look_ahead(batch.fingerprints());

        for (at, (entry, fingerprints)) in batch.entries().enumerate() {
            self.pack_entry(entry, fingerprints)
                .map_err(|error| (error, batch.len().saturating_sub(at)))?;
        }
        Ok(())
    }

    fn pack_entry(
        &mut self,
        mut entry: Entry<'_>,
        fingerprints: Option<Fingerprints>,
    ) -> Result<(), StoreError> {
        let fingerprints = fingerprints.unwrap_or_else(|| fingerprints_of(&entry));
        // Stored with the entry: job readers decide by it whether the return counts.
        if entry.kind == Kind::Return && !entry.confirms() {
            entry.flags = entry.flags.with(Flags::UNCONFIRMED);
        }

        let of = self.classifier.class_of(&entry);
        let outcome = self.dedupe.check(&entry, fingerprints);
        match outcome {
            DedupeOutcome::Known => {
                self.stats.known += 1;
                // The known entry may be in the overflow of the class.
                let (class, last_seq) = [Some(of), self.shares.overflow_of(of)]
                    .into_iter()
                    .flatten()
                    .map(|class| (class.index(), self.last_seq_of(class)))
                    .max_by_key(|(_, last_seq)| *last_seq)
                    .unwrap_or((of.index(), SeqNo::default()));
                self.dedupe.depends_on(class, last_seq);
                return Ok(());
            }
            DedupeOutcome::Differs => self.stats.differing += 1,
            DedupeOutcome::SeenOnBus => {
                self.stats.known += 1;
                self.metrics.bus_events_already_stored.add(1);
                entry.kind = Kind::SeenOnBus;
                entry.flags = entry.flags.without(Flags::ON_BUS);
            }
            // The event has been shown already, so views of events must not show it twice.
            DedupeOutcome::Confirms => entry.flags = entry.flags.without(Flags::ON_BUS),
            DedupeOutcome::New => {}
        }

        if entry.kind == Kind::Return && outcome != DedupeOutcome::Confirms {
            // A confirmation repeats a return that was counted.
            self.stats.count_return(&entry);
        }

        let (class, is_over) = self
            .shares
            .place(of, &entry, &self.share_state, &self.clock);
        // Counters are shared by threads, and each addition waits for the memory.
        if is_over {
            self.metrics.entries_over_share.add(1);
        }
        let class = class.index();
        let Some(queue) = self.queues.get_mut(class) else {
            return Err(StoreError::Broken("a class does not exist"));
        };

        let seq = self.seqnos.take();
        self.stats.raw_bytes += entry.raw_len() as u64;
        // The decision of deduplication stands or falls with this entry.
        self.dedupe.depends_on(class, seq);
        if queue.builder.is_full_for(&entry) {
            queue.finish(&mut self.packer, &mut self.spare)?;
        }

        if queue.builder.is_empty() {
            queue.open_since = self.commit_number;
        }
        queue.push(seq, &entry)
    }

    /// Hands packed blocks to the committer, and open blocks with them: all, or only those that are half full or have
    /// waited for `BLOCK_WAITS_COMMITS`.
    fn hand_over(&mut self, everything: bool) {
        // A commit is in flight; its result starts the next one.
        let Some(mut buffers) = self.idle.take() else {
            return;
        };

        // All are packed before any is taken: an error fails everything that is in the queues.
        for queue in &mut self.queues {
            let ripe = queue.builder.is_half_full()
                || self.commit_number - queue.open_since >= BLOCK_WAITS_COMMITS;

            if (everything || ripe)
                && let Err(error) = queue.finish(&mut self.packer, &mut self.spare)
            {
                self.idle = Some(buffers);
                self.fail_to_pack(&error, 0);
                return;
            }
        }

        let mut parts = Vec::new();
        let mut covered = self.seqnos.next();
        for (class, queue) in self.classes.configured().zip(&mut self.queues) {
            // Open blocks keep their senders waiting, and the senders of full blocks behind them.
            if let Some(open) = queue.builder.first_seq() {
                covered = covered.min(open);
            }

            if !queue.blocks.is_empty() {
                let frames =
                    std::mem::replace(&mut queue.frames, buffers.pop().unwrap_or_default());
                parts.push(Part {
                    class,
                    frames,
                    blocks: std::mem::take(&mut queue.blocks),
                });
            }
        }
        assert!(
            covered <= self.seqnos.next(),
            "a commit covers only assigned sequence numbers"
        );

        // Acknowledged in order, because a batch may depend on entries of earlier batches.
        let mut dones = Vec::new();
        while self
            .waiting
            .front()
            .is_some_and(|first| first.upto <= covered)
        {
            dones.extend(self.waiting.pop_front().map(|first| first.done));
        }

        let stats = std::mem::take(&mut self.stats);
        let commit = Commit {
            parts,
            dones,
            covered,
            stats,
        };

        self.commit_number += 1;
        // A small commit is carried out here if nothing else waits: a lone caller saves two thread
        // switches. With delayed syncs the committer tracks unsynced writes, so it gets every
        // commit.
        let syncs_each = || with_writer(&self.writer, |writer| writer.syncs_each());
        if commit.is_small() && self.intake.is_empty() && syncs_each() {
            let mut result = None;
            with_writer(&self.writer, |writer| {
                writer.apply(commit, |done| result = Some(done));
            });
            if let Some(result) = result {
                self.apply_result(result);
            }
            return;
        }

        // Only if the committer has panicked, and the process ends with it.
        if let Err(SendError(commit)) = self.commits.send(commit) {
            let gone = "the committer ended".to_owned();
            commit
                .dones
                .into_iter()
                .for_each(|done| done(Err(gone.clone())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Store};
    use saltcellar_base::clock::Micros;
    use saltcellar_model::Source;
    use saltcellar_wire::salt_event::event_entry;

    /// Events of the classes `jobs` and `events`, by turns.
    fn batch(numbers: std::ops::Range<usize>) -> Arc<Batch> {
        let mut batch = Batch::default();
        for n in numbers {
            let tag = if n.is_multiple_of(2) {
                format!("salt/job/20261121030955000001/ret/web{n}")
            } else {
                format!("beacon/{n}")
            };
            let data = b"\x80";
            let entry = event_entry(tag.as_bytes(), data, Source::Bus, Micros(5));
            batch.push(&entry, None);
        }
        Arc::new(batch)
    }

    #[test]
    fn every_entry_of_a_failed_packing_is_counted() {
        // The class whose open block is broken: the first one is packed before it, or after it.
        for broken in 0..2 {
            let dir = tempfile::tempdir().unwrap();
            let options = crate::tests::options(dir.path(), Limits::default());
            let mut appender = Store::open(&options).unwrap().appender;
            let failed = || options.metrics.entries_failed.get();
            let (told, results) = crossbeam_channel::bounded(9);
            let take = |appender: &mut Appender, numbers| {
                let told = told.clone();
                appender.take(Submission {
                    batch: batch(numbers),
                    done: Some(Box::new(move |result: Result<(), String>| {
                        told.send(result.is_ok()).unwrap();
                    })),
                });
            };
            let break_one = |appender: &mut Appender, class: &str| {
                let class = appender.classes.find(class).unwrap().index();
                appender.queues[class].builder.break_a_column();
            };

            take(&mut appender, 0..10);
            break_one(&mut appender, ["jobs", "events"][broken]);
            appender.hand_over(true);
            assert_eq!(failed(), 10);
            assert!(!results.recv().unwrap());

            // In the middle of a batch: what was not packed yet has failed as well.
            take(&mut appender, 20..30);
            break_one(&mut appender, "jobs");
            take(&mut appender, 100..40_000);
            assert_eq!(failed(), 10 + 10 + 39_900);
            assert_eq!(
                [results.recv().unwrap(), results.recv().unwrap()],
                [false; 2]
            );
        }
    }
}
