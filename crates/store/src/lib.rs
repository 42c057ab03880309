//! The storage engine: an append-only log in segments, and the indexes over it.
//!
//! [`Store::open`] locks the state directory, recovers the log, and returns an [`Intake`] for
//! writers, a [`Store`] for readers, and one loop per thread: [`Appender`], [`Committer`],
//! [`Sealer`] and [`Retainer`].
//!
//! Every piece of state has one owner, which states its invariant, and at its lock when that is
//! taken. Threads, readers and the store hold the owners that they need:
//!
//! | owner | of |
//! |---|---|
//! | `state_dir::StateDir` | the directory and its lock |
//! | `segment::list::Segments` | the segments of each class |
//! | `segment::open_indexes::OpenIndexes` | which indexes are open, and which must be rewritten |
//! | `segment::catalogue::Catalogue` | the state database |
//! | `read::blocks::BlockReader` | blocks, and the cache of them |
//! | `read::allowed::AllowedCache` | what limits leave of blocks |
//! | `read::consumer::Consumers` | names with a filter and a cursor |
//! | `watermark::Watermark` | the durable position, and who waits for it |
//! | `retain::Retention`, `segment::removal::Drops` | what is dropped, and how |
//! | `retain::limits::KeepLimits`, `retain::salt_keep::SaltKeeps` | how long classes keep entries |
//! | `rounds::Rounds` | requests to the retainer |
//! | `free_space::FreeSpaceGuard` | the free space |
//! | `write::committer::SegmentWriter` | the active logs |
//! | `write::status::WriterStatus`, `rates::Rates`, `shares::ShareState` | what writers report |
//! | `damage::DamageList`, `damage::FileFaults` | what was found damaged |
//! | `settings::Settings` | what cannot be rebuilt |
//!
//! Locks are taken in this order: a retention round, consumers and other state over the settings, a
//! segment's `work`, the state database, open indexes, a segment's own. All other locks are taken
//! last.
//!
//! # Invariant
//!
//! The log is the only source of truth. Indexes and the state database are derived from it, and
//! rebuilt when missing or damaged. Sequence numbers ascend, and an acknowledged entry never changes.
//!
//! # Modules, in reading order
//!
//! ```text
//! open             the start: recovery, and construction of the owners; the record of a stop
//! limits           what the owner of a store may set
//! state_dir        the locked directory;  format: its version, lock and names
//! log              file, frame       log file: header, frames with checksums
//!                  block, column     columnar blocks of entries;  builder: their construction;  columns: those in memory
//!                  walk              scan of a log, tolerant of damage
//!                  exchange          blocks that travel to the stores of other masters
//!                  writer            a new log of existing entries
//! class            retention classes, and the assignment of entries
//! write            appender          ordering and packing: group commit
//!                  dedupe, refill    deduplication across sources;  its state after a start
//!                  seqno             allocation of sequence numbers
//!                  committer         write, fdatasync, index, acknowledge
//!                  status            what the writing threads report
//! shares           overflows of minions with too large a share
//! watermark        the durable position
//! segment          list              the segments of each class
//!                  open_indexes      indexes on demand;  catalogue: the state database in use
//!                  recovery          recovery of a log at start
//!                  seal, rewrite     sealing of finished segments;  compaction of small blocks
//!                  removal, usage    removal of segments;  their size and age
//! index            memory, sealed    segment indexes: in memory, then in a table, in pages (page, job, minion, latest, summary)
//!                  job_summary       the data for job lists
//!                  state             state database: data across segments
//!                  tree              sled trees with checksums;  sled_guard: sled's errors and panics
//! read             scan, pattern     backward scans;  evaluation of tag patterns
//!                  view, allowed     reads under limits;  what limits leave of each block
//!                  follow            forward reads, as a subscription;  consumer: filters with durable cursors
//!                  returns           results of many jobs
//!                  returned          returns by segment, for what is derived from them
//!                  last_seen         the latest entries of minions
//!                  blocks, cache     blocks on demand;  the block cache
//! retain           plan, limits      which segments go;  the limits in effect
//!                  age_clock         clock that ignores steps of the wall clock
//!                  hold              jobs exempt from retention
//!                  salt_keep         the time for which Salt keeps jobs
//! names            numbers for names: of a segment, of a block
//! rounds           requests to the retainer
//! free_space       free space guard
//! skipped          sequence numbers that were never assigned
//! stats, rates     size, growth and limits per class;  entries per second
//! settings         what cannot be rebuilt from entries: a log class of keys and values, and its view in memory
//! stopped          the record of a clean stop, to detect what is missing
//! damage           the damage found since the start
//! vfs              file system abstraction, for fault injection
//! tools            verify, rebuild, salvage, backup, restore
//! ```

pub mod class;
pub mod damage;
pub mod error;
pub mod format;
pub mod free_space;
pub mod index;
mod limits;
pub mod log;
pub(crate) mod names;
mod open;
pub(crate) mod rates;
pub mod read;
pub mod retain;
pub(crate) mod rounds;
pub mod segment;
pub mod settings;
pub(crate) mod shares;
mod skipped;
pub(crate) mod state_dir;
pub mod stats;
pub(crate) mod stopped;
pub mod tools;
pub mod vfs;
pub(crate) mod watermark;
pub mod write;

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use class::{Class, Classes};
pub use error::StoreError;
pub use free_space::FreeSpace;
pub use index::LatestJob;
pub use index::job_summary::JobSummary;
pub use index::latest::HIGHSTATE;
pub use limits::Limits;
pub use log::file::FORMAT_VERSION;
pub use read::StoredEntry;
pub use read::consumer::{
    BatchLimits, ConsumerBatch, ConsumerRecord, ConsumerStatus, HolderProcess,
};
pub use read::consumer::{ReadAhead, Start, is_consumer_name, is_lost_tag};
pub use read::follow::Followed;
pub use read::last_seen::{LastSeen, Seen};
pub use read::returned::{BlockSpan, FoundReturn, ReturnsIn};
pub use read::{EventPage, JobPage, JobPart, JobRows, StoreView, TravellingPart};
pub use retain::Retainer;
pub use retain::age_clock::Step;
pub use retain::hold::{Held, Hold, HoldChange, Merged};
pub use segment::seal::Sealer;
pub use skipped::SkippedNumbers;
pub use write::appender::{Appender, Intake};
pub use write::committer::Committer;
pub use write::packed::Done;
pub use write::packed::FailedReturn;

use std::time::Duration;

use damage::{DamageList, FileFaults};
use free_space::FreeSpaceGuard;
use rates::Rates;
use read::LogReader;
use read::consumer::Consumers;
use retain::salt_keep::SaltKeeps;
use retain::{PlannedDrop, PruneOptions, Retention};
use shares::ShareState;
use state_dir::StateDir;
use vfs::Fs;
use write::status::WriterStatus;

use saltcellar_base::clock::Clock;
use saltcellar_base::file_fault::FileFault;
use saltcellar_base::metrics::Metrics;
use saltcellar_model::{ReadLimits, SeqNo};

/// Options of [`Store::open`].
#[derive(Debug, Clone)]
pub struct Options {
    /// The state directory.
    pub dir: PathBuf,
    /// Text for the lock file, shown to processes that fail to take the lock.
    pub holder: String,
    /// How long another process may take to release the lock.
    pub lock_timeout: Duration,
    /// Source of the time.
    pub clock: Clock,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Limits and durability.
    pub limits: Limits,
    /// File system for all durable writes.
    pub fs: Arc<dyn Fs>,
    /// The configured classes.
    pub classes: Classes,
    /// Free space to preserve.
    pub free: FreeSpace,
}

impl Options {
    /// Of a store on disk that any free space is enough for, for tests.
    pub fn for_tests(dir: &Path, clock: Clock) -> Self {
        Self {
            dir: dir.to_owned(),
            holder: "the test".to_owned(),
            lock_timeout: Duration::ZERO,
            clock,
            metrics: Arc::default(),
            limits: Limits::DEFAULT,
            fs: Arc::new(vfs::Disk),
            classes: Classes::default(),
            free: FreeSpace {
                low: Some(0),
                min: Some(0),
            },
        }
    }
}

/// A handle for reading, and for administration; clones share the store.
#[derive(Debug, Clone)]
pub struct Store(Arc<StoreReader>);

/// An open store: handles for readers and writers, and the loops of its threads.
pub struct Opened {
    /// For readers.
    pub store: Store,
    /// For writers. The appender ends when all clones are dropped.
    pub intake: Intake,
    /// Runs on its own thread.
    pub appender: Appender,
    /// Runs on its own thread; ends after the appender.
    pub committer: Committer,
    /// Runs on its own thread; ends after the committer.
    pub sealer: Sealer,
    /// Runs on its own thread; ends after the sealer.
    pub retainer: Retainer,
}

impl Opened {
    /// Starts a thread per loop, for benchmarks and tests. The threads end when all handles are
    /// dropped.
    pub fn on_threads(self) -> (Store, Intake, Vec<std::thread::JoinHandle<()>>) {
        let Self {
            store,
            intake,
            appender,
            committer,
            sealer,
            retainer,
        } = self;

        let thread = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(work)
                .expect("start a thread")
        };

        // In the order in which they end.
        let threads = vec![
            thread("sc-append", Box::new(|| appender.run())),
            thread("sc-commit", Box::new(|| committer.run())),
            thread("sc-seal", Box::new(|| sealer.run())),
            thread("sc-retain", Box::new(|| retainer.run())),
        ];

        (store, intake, threads)
    }
}

/// The reading half of a store. Its methods change nothing; methods that change the store belong to
/// [`Store`], which dereferences to it.
///
/// Its fields own the state of the store. None of them knows this struct.
#[derive(Debug)]
pub struct StoreReader {
    log: Arc<LogReader>,
    consumers: Arc<Consumers>,
    retention: Arc<Retention>,
    settings: Arc<settings::Settings>,
    salt_keeps: Arc<SaltKeeps>,
    guard: Arc<FreeSpaceGuard>,
    shares: Arc<ShareState>,
    rates: Arc<Rates>,
    status: Arc<WriterStatus>,
    damage: Arc<DamageList>,
    faults: Arc<FileFaults>,
    /// Last, with the lock of the directory.
    dir: StateDir,
}

/// All reads.
impl Deref for Store {
    type Target = StoreReader;

    fn deref(&self) -> &StoreReader {
        &self.0
    }
}

/// All reads of the log.
impl Deref for StoreReader {
    type Target = LogReader;

    fn deref(&self) -> &LogReader {
        &self.log
    }
}

impl Store {
    /// An administrator accepts that settings are lost: those that are left count as they are, and
    /// unknown names are new. False if nothing is lost. Durable on return.
    pub fn accept_loss(&self) -> Result<bool, StoreError> {
        let accepted = self.0.settings.accept_loss()?;
        if accepted {
            self.0.salt_keeps.reload();
        }
        Ok(accepted)
    }

    /// Reports settings that were lost, and what follows from it, until the next start.
    pub fn report_settings(&self, problem: impl Into<String>) {
        self.0.faults.report_serious(self.0.settings.dir(), problem);
    }

    /// From now on an event that a bus delivers after another source is stored again, as
    /// [`saltcellar_model::Kind::SeenOnBus`], because only events of buses cause reactions.
    pub fn note_seen_on_bus(&self) {
        self.0.status.note_reactor();
    }

    /// What cannot be rebuilt from entries.
    pub fn settings(&self) -> &Arc<settings::Settings> {
        &self.0.settings
    }

    /// Names with a filter and a durable cursor.
    pub fn consumers(&self) -> &Consumers {
        &self.0.consumers
    }

    /// Sets whether retention keeps unprocessed events of a consumer. Durable on return.
    pub fn pin_consumer(&self, name: &str, pin: bool) -> Result<ConsumerRecord, StoreError> {
        self.0.retention.pin_consumer(name, pin)
    }

    /// Takes Salt's `keep_jobs_seconds` (0: forever), if given, and requests a round.
    pub fn set_salt_keep(&self, keep_jobs_seconds: Option<u64>) {
        self.0.retention.set_salt_keep(keep_jobs_seconds);
    }

    /// As [`Retention::prune`].
    pub fn prune(&self, options: &PruneOptions) -> Result<Vec<PlannedDrop>, StoreError> {
        self.0.retention.prune(options)
    }

    /// Exempts a job from retention. Durable on return.
    pub fn hold(&self, jid: &str, reason: &str) -> Result<Hold, StoreError> {
        self.0.retention.hold(jid, reason)
    }

    /// Ends the hold of a job; false if it was not held. Durable on return.
    pub fn release(&self, jid: &str) -> Result<bool, StoreError> {
        self.0.retention.release(jid)
    }

    /// Takes changes of holds from other masters that are later than the local changes. Durable on
    /// return. `own` is the name of this daemon's master.
    pub fn merge_holds(&self, own: &str, changes: Vec<HoldChange>) -> Result<Merged, StoreError> {
        self.0.retention.merge_holds(own, changes)
    }

    /// Retention drops nothing for this time, or until [`Self::has_all_holds`]: other masters may hold
    /// jobs of which this store does not know.
    pub fn await_holds(&self, time: Duration) {
        self.0.retention.await_holds(time);
    }

    /// The holds of other masters are known.
    pub fn has_all_holds(&self) {
        self.0.retention.has_all_holds();
    }
}

impl StoreReader {
    /// Why new entries are rejected; `None` while there is enough disk space.
    pub fn refusal(&self) -> Option<String> {
        self.guard.refusal()
    }

    /// The damage of logs found since the start, by path and offset.
    pub fn damage(&self) -> Vec<damage::Damage> {
        self.damage.all()
    }

    /// Small files of the state directory with content that is or was ignored.
    pub fn file_faults(&self) -> Vec<FileFault> {
        let present = [self.salt_keeps.fault(), self.settings.fault()];
        let at_start = self.faults.all();
        present.into_iter().flatten().chain(at_start).collect()
    }

    /// The store as a caller with these limits may know it.
    pub fn view(&self, limits: Arc<ReadLimits>) -> StoreView {
        StoreView::new(self.log.clone(), limits)
    }

    /// The whole store, for work that is done for no limited caller.
    pub fn whole_view(&self) -> StoreView {
        self.view(Arc::default())
    }

    /// The jobs that are exempt from retention.
    pub fn holds(&self) -> Vec<Hold> {
        self.retention.holds()
    }

    /// The latest change of each job that is held, or was released not long ago. Sorted by jid. `own` is
    /// the name of this daemon's master.
    pub fn hold_changes(&self, own: &str) -> Vec<HoldChange> {
        self.retention.hold_changes(own)
    }

    /// Grows with each change of [`Self::hold_changes`]. Read it before them.
    pub fn holds_version(&self) -> u64 {
        self.retention.holds_version()
    }

    /// The minions that were over their share of a class within a day: the class, the minion, and
    /// what of it is in the overflow.
    pub fn over_share(&self) -> Vec<(Arc<str>, String, shares::OverShare)> {
        let over = self.shares.over(self.clock.now()).into_iter();
        over.map(|(class, minion, one)| (self.classes.name(class), minion, one))
            .collect()
    }

    /// The share of a class, in percent, that one minion may have.
    pub fn share_percent(&self) -> u64 {
        self.classes.share_percent()
    }

    /// The last failed return since the start.
    pub fn last_failed_return(&self) -> Option<FailedReturn> {
        self.status.last_failed()
    }

    /// Time since the appender's last iteration: at most about a second, unless disk I/O blocks it.
    pub fn appender_seen_ago(&self) -> Duration {
        self.status.beat_ago()
    }

    /// The state of all consumers, by name.
    pub fn consumer_states(&self) -> Result<Vec<ConsumerStatus>, StoreError> {
        self.consumers.all()
    }

    /// The lowest cursor of all consumers; `None` if there are none.
    pub fn lowest_cursor(&self) -> Option<SeqNo> {
        self.consumers.lowest_cursor()
    }
}

#[cfg(test)]
mod tests;
