//! The storage engine: an append-only log in segments, and the indexes over it.
//!
//! [`Store::open`] locks the state directory, recovers the log, and returns an [`Intake`] for
//! writers, a [`Store`] for readers, and one loop per thread: [`Appender`], [`Committer`],
//! [`Sealer`] and [`Retainer`].
//!
//! # Invariant
//!
//! The log is the only source of truth. Indexes and the state database are derived from it, and
//! rebuilt when missing or damaged. Sequence numbers ascend, and an acknowledged entry never changes.
//!
//! # Modules, in reading order
//!
//! ```text
//! format           state directory: format version, lock, names
//! log              file, frame       log file: header, frames with checksums
//!                  block, column     columnar blocks of entries;  builder: their construction
//!                  walk              scan of a log, tolerant of damage
//!                  writer            a new log of existing entries
//! class            retention classes, and the assignment of entries
//! write            appender          ordering and packing: group commit
//!                  dedupe, refill    deduplication across sources;  its state after a start
//!                  seqno             allocation of sequence numbers
//!                  shares            overflows of minions with too large a share
//!                  committer         write, fdatasync, index, acknowledge
//! segment          recovery          recovery of a log at start
//!                  seal, rewrite     sealing of finished segments;  compaction of small blocks
//!                  removal, usage    removal of segments;  their size and age
//!                  index_access      open indexes and blocks on demand
//! index            memory, sealed    segment indexes: in memory, then in a table, in pages (page, job, minion, latest, summary)
//!                  job_summary       the data for job lists
//!                  state             state database: data across segments
//!                  tree              sled trees with checksums;  sled_guard: sled's errors and panics
//! read             scan, pattern     backward scans;  evaluation of tag patterns
//!                  view, allowed     reads under limits;  what limits leave of each block
//!                  follow            forward reads, as a subscription;  consumer: filters with durable cursors
//!                  returns           results of many jobs
//!                  last_seen         the latest entries of minions;  cache: the block cache
//! retain           age_clock         clock that ignores steps of the wall clock
//!                  hold              jobs exempt from retention
//!                  salt_keep         the time for which Salt keeps jobs
//! free_space       free space guard
//! stats            size, growth and limits per class
//! settings         what cannot be rebuilt from entries: a log class of keys and values, and its view in memory
//! stopped          the record of a clean stop, to detect what is missing
//! damage           the damage found since the start
//! vfs              file system abstraction, for fault injection
//! tools            verify, rebuild, salvage, backup, restore
//! ```

pub mod class;
pub(crate) mod damage;
pub mod error;
pub mod format;
pub mod free_space;
pub mod index;
pub mod log;
pub mod read;
pub mod retain;
pub mod segment;
pub(crate) mod settings;
pub mod stats;
pub(crate) mod stopped;
pub mod tools;
pub mod vfs;
pub mod write;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_channel::bounded;
use parking_lot::{Mutex, RwLock};

pub use class::{Class, Classes};
pub use error::StoreError;
pub use free_space::FreeSpace;
pub use index::LatestJob;
pub use index::job_summary::JobSummary;
pub(crate) use index::latest::HIGHSTATE;
pub use log::file::FORMAT_VERSION;
pub use read::StoredEntry;
pub(crate) use read::consumer::{BatchLimits, ConsumerRecord, ConsumerStatus, HolderProcess};
pub use read::consumer::{ReadAhead, Start, is_consumer_name};
pub use read::follow::Followed;
pub(crate) use read::last_seen::LastSeen;
pub(crate) use read::{EventPage, JobRows, StoreView};
pub use retain::Retainer;
pub(crate) use retain::age_clock::Step;
pub(crate) use retain::hold::Hold;
pub use segment::seal::Sealer;
pub use write::appender::{Appender, Intake};
pub use write::committer::Committer;
pub use write::packed::Done;
pub(crate) use write::packed::FailedReturn;

use vfs::Fs;

use std::time::Duration;

use crate::base::clock::Clock;
use crate::base::file_fault::FileFault;
use crate::base::limits::{
    ALLOWED_BLOCKS_BYTES, BLOCK_CACHE_BYTES, DEDUPE_WINDOW, NUMBERS_AHEAD, PIN_BYTES_MAX,
    SEALS_WAITING, SEGMENT_BYTES, SEGMENT_ENTRIES_MAX, SETTINGS_GROWTH,
};
use crate::base::metrics::Metrics;
use crate::model::{Durability, SeqNo};
use index::SegmentMetadata;

/// Limits of segments, durability, and sizes of in-memory structures.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// When an entry is acknowledged.
    pub(crate) durability: Durability,
    /// Size of a segment's log in bytes.
    pub segment_bytes_max: u64,
    pub(crate) segment_entries_max: u64,
    /// Fingerprints per generation of the duplicate memory.
    pub(crate) dedupe_window: usize,
    /// Sequence numbers reserved at a time.
    pub(crate) numbers_ahead: u64,
    /// Bytes on disk that pinned consumers keep per class, beyond its own limits.
    pub(crate) pin_bytes_max: u64,
    /// Growth of a segment of the settings, in addition to twice its snapshot.
    pub(crate) settings_growth: u64,
}

impl Limits {
    /// The limits without a configuration.
    pub(crate) const DEFAULT: Self = Self {
        durability: Durability::Durable,
        segment_bytes_max: SEGMENT_BYTES,
        segment_entries_max: SEGMENT_ENTRIES_MAX,
        dedupe_window: DEDUPE_WINDOW,
        numbers_ahead: NUMBERS_AHEAD,
        pin_bytes_max: PIN_BYTES_MAX,
        settings_growth: SETTINGS_GROWTH,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

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

/// A handle for reading; clones share the store.
#[derive(Debug, Clone)]
pub struct Store(Arc<StoreInner>);

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

#[derive(Debug)]
struct StoreInner {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    clock: Clock,
    /// Set once all segments are known.
    age_clock: OnceLock<retain::age_clock::AgeClock>,
    metrics: Arc<Metrics>,
    state: RwLock<Arc<index::state::StateDatabase>>,
    classes: Classes,
    /// A random number, part of every frame's checksum.
    /// Secret; see [`log::file::public_id`].
    store_id: u64,
    public_id: String,
    /// One chain per class, oldest first.
    segments: Vec<RwLock<Vec<Arc<segment::Segment>>>>,
    durable: AtomicU64,
    durable_notify: read::follow::DurableNotify,
    /// Whether a reactor needs entries of kind [`crate::model::Kind::SeenOnBus`].
    has_reactor: AtomicBool,
    /// Time of the appender's last iteration, microseconds of the monotonic clock.
    heartbeat: AtomicU64,
    cache: read::cache::BlockCache,
    /// What limited readers may find, by block.
    allowed: read::allowed::AllowedCache,
    /// Segments with an open sealed index, and its memory in bytes.
    open: Mutex<Vec<(Arc<segment::Segment>, usize)>>,
    /// Logical clock for the least recently used index.
    index_uses: AtomicU64,
    /// Segments with a damaged index, rebuilt in memory and to be written.
    damaged: Mutex<Vec<Arc<segment::Segment>>>,
    settings: Arc<settings::Settings>,
    holds: retain::hold::Holds,
    salt_keeps: retain::salt_keep::SaltKeeps,
    shares: write::shares::ShareState,
    consumers: read::consumer::Consumers,
    /// Sequence numbers that were never assigned; set once the store is open.
    skipped: OnceLock<Vec<write::seqno::SkippedNumbers>>,
    guard: free_space::FreeSpaceGuard,
    retention: retain::Retention,
    /// See [`Limits::pin_bytes_max`].
    pin_bytes_max: u64,
    /// The content of `SEQUENCE` at the start: no number from there on was assigned before. The
    /// greatest number if it is unknown.
    reserved_at_start: SeqNo,
    damage: damage::DamageList,
    rates: stats::Rates,
    /// Entries written since the start, by class.
    written: Vec<AtomicU64>,
    last_failed: Mutex<Option<FailedReturn>>,
    /// See [`StoreInner::report_file`].
    faults_at_start: Mutex<Vec<FileFault>>,
    _lock: format::Lock,
}

impl StoreInner {
    fn segments(&self, class: Class) -> Vec<Arc<segment::Segment>> {
        let list = self.segments.get(class.index());
        list.map_or(Vec::new(), |list| list.read().clone())
    }

    /// The segments of all classes, by class: each may contain entries of a job.
    fn all_segments(&self) -> Vec<Arc<segment::Segment>> {
        self.classes
            .all()
            .flat_map(|class| self.segments(class))
            .collect()
    }

    fn add_segment(&self, segment: Arc<segment::Segment>) {
        if let Some(list) = self.segments.get(segment.class.index()) {
            list.write().push(segment);
        }
    }

    /// Replaces a segment by its rewritten form.
    fn replace_segment(&self, old: &Arc<segment::Segment>, new: Arc<segment::Segment>) {
        if let Some(list) = self.segments.get(new.class.index()) {
            let mut list = list.write();
            // By identity: retention may have removed it, and then nothing is shown again.
            if let Some(place) = list.iter_mut().find(|segment| Arc::ptr_eq(segment, old)) {
                *place = new;
            }
        }
    }

    /// How many numbers at least `from` and below `to` may have been assigned.
    fn numbers_between(&self, from: SeqNo, to: SeqNo) -> u64 {
        let skipped = self.skipped.get().map_or(&[][..], Vec::as_slice);
        let skipped: u64 = skipped
            .iter()
            .map(|range| range.count_between(from, to))
            .sum();
        // Numbers that were left out after a restore were never assigned.
        to.0.saturating_sub(from.0).saturating_sub(skipped)
    }

    /// Reports a file that was malformed when it was read at the start, and is replaced since. It
    /// stays reported until the next start.
    fn report_file(&self, name: &str, problem: impl Into<String>) {
        let fault = FileFault::new(&self.dir.join(name), problem);
        self.faults_at_start.lock().push(fault);
    }

    /// Reports a segment whose log is gone, with the entries in it.
    fn report_missing_log(&self, class_name: &str, first_seq: SeqNo) {
        // `offset` as in other reports of damage, so that one search finds all of them.
        let path = format::segment_dir(&self.dir, class_name, first_seq).join("log");
        tracing::error!(path = %path.display(), offset = 0, "log of a segment missing, its entries are lost");
        self.metrics.segments_missing.add(1);
        self.report_file(
            &path.to_string_lossy(),
            "log of a segment missing: its entries are lost, a backup may have them",
        );
    }

    /// Numbers of stored entries are below. A finished segment has only durable entries.
    fn believed_below(&self) -> SeqNo {
        let durable = SeqNo(self.durable.load(Ordering::Acquire));
        // Until the first commit the watermark may be lower than what the logs have.
        self.reserved_at_start.max(durable)
    }

    fn heartbeat(&self) {
        self.heartbeat
            .store(heartbeat_of(&self.clock), Ordering::Relaxed);
    }

    fn set_durable(&self, next: SeqNo) {
        let before = self.durable.swap(next.0, Ordering::AcqRel);
        assert!(before <= next.0, "the durable watermark never decreases");
        self.durable_notify.notify();
    }
}

impl Store {
    /// Records the end of a clean stop. Nothing may change in the state directory any more.
    pub(crate) fn note_stop(&self) -> Result<(), StoreError> {
        // Closed before the files are listed, because that may still write.
        let settings = self.0.settings.close()?;
        let kept = tools::layout::irreplaceable(&self.0.dir)?;
        self.note_stop_with(settings, kept)
    }

    /// Why new entries are rejected; `None` while there is enough disk space.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.0.guard.refusal()
    }

    /// Small files of the state directory with content that is or was ignored.
    pub(crate) fn file_faults(&self) -> Vec<FileFault> {
        let shared = &self.0;
        let present = [shared.salt_keeps.fault(), shared.settings.fault()];

        let at_start = shared.faults_at_start.lock().clone();
        present.into_iter().flatten().chain(at_start).collect()
    }

    /// An administrator accepts that settings are lost: those that are left count as they are, and
    /// unknown names are new. False if nothing is lost. Durable on return.
    pub(crate) fn accept_loss(&self) -> Result<bool, StoreError> {
        let accepted = self.0.settings.accept_loss()?;
        if accepted {
            self.0.salt_keeps.reload();
        }
        Ok(accepted)
    }

    /// Reports settings that were lost, and what follows from it, until the next start.
    pub(crate) fn report_settings(&self, problem: impl Into<String>) {
        let fault = FileFault::serious(self.0.settings.dir(), problem);
        self.0.faults_at_start.lock().push(fault);
    }

    /// From now on an event that a bus delivers after another source is stored again, as
    /// [`crate::model::Kind::SeenOnBus`], because only events of buses cause reactions.
    pub(crate) fn note_seen_on_bus(&self) {
        self.0.has_reactor.store(true, Ordering::Relaxed);
    }

    /// What cannot be rebuilt from entries.
    pub(crate) fn settings(&self) -> &Arc<settings::Settings> {
        &self.0.settings
    }

    /// The minions that were over their share of a class within a day: the class, the minion, and
    /// what of it is in the overflow.
    pub(crate) fn over_share(&self) -> Vec<(Arc<str>, String, write::shares::OverShare)> {
        let shared = &self.0;
        let over = shared.shares.over(shared.clock.now()).into_iter();
        over.map(|(class, minion, one)| (shared.classes.name(class), minion, one))
            .collect()
    }

    /// The share of a class, in percent, that one minion may have.
    pub(crate) fn share_percent(&self) -> u64 {
        self.0.classes.share_percent()
    }

    pub(crate) fn last_failed_return(&self) -> Option<FailedReturn> {
        self.0.last_failed.lock().clone()
    }

    /// Time since the appender's last iteration: at most about a second, unless disk I/O blocks it.
    pub(crate) fn appender_seen_ago(&self) -> Duration {
        Duration::from_micros(
            heartbeat_of(&self.0.clock).saturating_sub(self.0.heartbeat.load(Ordering::Relaxed)),
        )
    }

    /// Opens a state directory, creates it if missing, and recovers from a crash.
    pub fn open(options: &Options) -> Result<Opened, StoreError> {
        let (dir, fs) = (&options.dir, &options.fs);
        // Before the lock, which is on a file in it.
        format::make_dir(&**fs, dir)?;
        let lock = format::Lock::take(&**fs, dir, &options.holder, options.lock_timeout)?;
        Self::open_locked(options, lock)
    }

    /// As [`Store::open`], with the lock of the directory.
    pub(crate) fn open_locked(options: &Options, lock: format::Lock) -> Result<Opened, StoreError> {
        let (dir, fs) = (&options.dir, &options.fs);
        // Locked first: nothing is read that another process may change.
        let store_id = format::check_version(&**fs, dir)?;
        // Before anything changes.
        let (stopped, changed) = stopped::take(&**fs, dir)?;
        let changed_files = changed.len() as u64;
        options
            .metrics
            .files_changed_while_stopped
            .add(changed_files);

        // Before any log: a number that was never reserved is not believed.
        let reserved = write::seqno::SequenceFile::read(&**fs, dir)?.flatten();
        let reserved_at_start = reserved.as_ref().map_or(SeqNo(u64::MAX), |file| file.end);

        format::make_dir(&**fs, &dir.join("log"))?;
        match format::make_dir(&**fs, &segment::removal::trash_dir(dir)) {
            // The next drop of a segment creates it in the space of that segment.
            Err(error) if error.is_no_space() => tracing::warn!(%error, "no space for the trash"),
            made => made?,
        }

        let place = settings::Place {
            state_dir: dir,
            store_id,
            position: stopped.settings,
            is_new: reserved.is_none() && is_without_segments(dir)?,
            growth: options.limits.settings_growth,
        };
        let settings = settings::Settings::open(fs.clone(), place, options.clock.clone())?;
        let settings = Arc::new(settings);

        let classes = all_classes(dir, &options.classes)?;
        let written = classes.all().map(|_| AtomicU64::new(0)).collect();

        let shared = Arc::new(StoreInner {
            fs: fs.clone(),
            dir: dir.clone(),
            clock: options.clock.clone(),
            age_clock: OnceLock::new(),
            metrics: options.metrics.clone(),
            state: RwLock::new(Arc::new(segment::index_access::open_state(
                dir,
                &options.metrics,
            )?)),
            segments: classes.all().map(|_| RwLock::default()).collect(),
            shares: write::shares::ShareState::new(classes.len()),
            classes,
            store_id,
            public_id: log::file::public_id(store_id),
            durable: AtomicU64::new(SeqNo::FIRST.0),
            durable_notify: read::follow::DurableNotify::default(),
            has_reactor: AtomicBool::new(false),
            heartbeat: AtomicU64::new(heartbeat_of(&options.clock)),
            cache: read::cache::BlockCache::new(BLOCK_CACHE_BYTES),
            allowed: read::allowed::AllowedCache::new(ALLOWED_BLOCKS_BYTES),
            open: Mutex::default(),
            index_uses: AtomicU64::new(1),
            damaged: Mutex::default(),
            holds: retain::hold::Holds::new(settings.clone()),
            salt_keeps: retain::salt_keep::SaltKeeps::open(settings.clone()),
            consumers: read::consumer::Consumers::open(settings.clone()),
            settings,
            skipped: OnceLock::new(),
            guard: free_space::FreeSpaceGuard::new(
                dir,
                fs.clone(),
                options.clock.clone(),
                options.free,
            ),
            retention: retain::Retention::default(),
            pin_bytes_max: options.limits.pin_bytes_max,
            reserved_at_start,
            damage: damage::DamageList::default(),
            rates: stats::Rates::default(),
            written,
            last_failed: Mutex::default(),
            faults_at_start: Mutex::default(),
            _lock: lock,
        });

        for (name, what) in &changed {
            shared.report_file(name, what.as_str());
        }

        for part in shared.settings.damage() {
            let damage = damage::Damage {
                path: part.path.clone(),
                offset: part.offset,
                bytes: part.bytes,
                what: part.what.clone(),
                entries: None,
            };
            shared.damage.note(damage, &shared.metrics);
        }

        // What the catalogue knows and no directory has is missing.
        let mut known: HashMap<(String, SeqNo), SegmentMetadata> = HashMap::new();
        // Kept, to notice below whether it was replaced.
        let state = shared.state();
        for (name, first_seq, metadata) in
            shared.with_state(index::state::StateDatabase::segments)?
        {
            known.insert((name, first_seq), metadata);
        }

        for path in tools::layout::foreign(dir)? {
            tracing::warn!(path = %path.display(), "unknown file in the state directory, left alone");
        }

        let mut backlog = Vec::new();
        let mut next_seq = SeqNo::FIRST;
        let mut tails = Vec::new();
        for class in shared.classes.all() {
            let name = shared.classes.name(class);
            let grows = shared.classes.is_configured(class);
            let class_dir = format::class_dir(dir, &name);
            // The directory may not exist yet.
            format::make_dir(&**fs, &class_dir)?;
            let (found, without_log) =
                segment::rewrite::settle(&**fs, &class_dir, &name, store_id)?;

            // The directory of a segment without a log stays: a backup may restore the log.
            for first_seq in without_log {
                // Segments in the catalogue are reported below.
                if !known.contains_key(&(name.to_string(), first_seq)) {
                    shared.report_missing_log(&name, first_seq);
                }
            }

            let mut opened = Vec::with_capacity(found.len());
            for generation in found {
                let first_seq = generation.first_seq;
                let id = log::frame::LogId {
                    store_id,
                    first_seq,
                };
                match segment::Segment::open(fs, &generation.dir, (class, name.clone()), id) {
                    Ok(segment) => opened.push(Arc::new(segment)),
                    // Left alone: only an administrator knows where it belongs. Entries of this
                    // store that it has are missing, and reported below.
                    Err(error @ StoreError::Misplaced { .. }) => {
                        tracing::error!(%error, "directory of another segment, reading around it");
                        let path = generation.dir.strip_prefix(dir).unwrap_or(&generation.dir);
                        let problem = format!("{error} Its entries are not read");
                        shared.report_file(&path.to_string_lossy(), problem);
                    }
                    // Its directory stays: a later start may read it.
                    Err(error) if error.is_damage() => {
                        tracing::error!(%error, "cannot open the log of a segment");
                        next_seq = next_seq.max(first_seq);
                        if !known.contains_key(&(name.to_string(), first_seq)) {
                            shared.report_missing_log(&name, first_seq);
                        }
                    }
                    Err(error) => return Err(error),
                }
            }

            let newest = opened.last().map(|segment| segment.first_seq);
            if newest.is_some() {
                // The sync after the creation of a segment may have failed.
                format::sync_dir(&**fs, &class_dir)?;
            }

            for segment in opened {
                let first_seq = segment.first_seq;
                next_seq = next_seq.max(first_seq);

                // The active segment has no index. In a class that was removed from the
                // configuration for a while, the newest segment is sealed, too.
                let metadata = known.remove(&(name.to_string(), first_seq));
                if let Some(metadata) = shared.sealed_metadata(&segment, metadata)? {
                    next_seq = next_seq.max(metadata.totals.last_seq.next());
                    segment.set_sealed(metadata);
                    shared.add_segment(segment);
                    continue;
                }

                let (index, mut walked) = segment.walk(reserved_at_start)?;
                if let Some((offset, version)) = walked.unknown_version {
                    let what = format!(
                        "frame of version {version} from another release: start that release"
                    );
                    return Err(segment.log().corrupt(offset, what));
                }

                // An old index would lack the entries appended from here on.
                segment.remove_index()?;
                // Durable before anything is appended: `verify` takes a log with an index for finished,
                // and an unfinished write at its end for damage. Also, the sync of the log's
                // directory entry may have failed.
                format::sync_dir(&**fs, segment.dir())?;

                let grows = grows && !walked.is_closed;
                let is_newest = Some(first_seq) == newest && !walked.is_closed;
                if walked.is_closed {
                    // The next segment of the class gets another number.
                    next_seq = next_seq.max(first_seq.next());
                }
                if !is_newest {
                    // Nothing is appended to it again, so an unfinished write in it would stay
                    // forever.
                    walked = walked.finished();
                }
                shared.report_damage(&segment, &walked, is_newest);

                if let Some(last) = walked.unbelieved {
                    // The disk may have lost the last update of SEQUENCE: numbers just above it are
                    // not assigned again.
                    let skipped = options.limits.numbers_ahead.saturating_mul(2);
                    if last.0 < reserved_at_start.0.saturating_add(skipped) {
                        next_seq = next_seq.max(last.next());
                    }
                }

                next_seq = index
                    .blocks()
                    .metas()
                    .iter()
                    .fold(next_seq, |next, b| next.max(b.last_seq.next()));

                segment.set_memory(index);
                shared.add_segment(segment.clone());
                if is_newest && grows {
                    // Opened for writing below, once all classes are read.
                    tails.push((class, segment, walked));
                    continue;
                }
                segment::recovery::make_durable(&segment, &walked, is_newest, &options.metrics)?;

                if is_newest && segment.totals().entries == 0 {
                    // Keep it as the active segment of the class if that is configured again.
                    continue;
                }
                // Not all segments are known yet, so keep every row about latest jobs.
                if let Err(error) = segment::seal::seal(&shared, &segment) {
                    // Sealed one at a time to bound the memory: an archive may lack all its
                    // indexes.
                    tracing::error!(dir = %segment.dir().display(), %error, "seal failed, retrying");
                    options.metrics.seals_failed.add(1);
                    backlog.push(segment);
                }
            }
        }

        // Missing segments count, too: their numbers were assigned.
        for metadata in known.values() {
            next_seq = next_seq.max(metadata.totals.last_seq.next());
        }
        // Segments in the trash were dropped, not lost; the retainer resumes.
        let dropped = segment::removal::left_in_trash(dir);
        known.retain(|(name, first_seq), _| {
            !segment::removal::was_dropped(&dropped, name, *first_seq)
        });

        let mut lost = Vec::new();
        for ((name, first_seq), metadata) in known {
            shared.report_missing_log(&name, first_seq);
            lost.push(first_seq..=metadata.totals.last_seq);
        }

        // Active logs have no row in the catalogue. Their ends are known only from the last stop.
        let missing = shared.report_missing_since(&stopped);
        options.metrics.entries_missing_at_start.add(missing);
        let state_now = shared.state();
        if !Arc::ptr_eq(&state, &state_now) {
            // It proved damaged and was rebuilt before all segments were known.
            shared.refill(&state_now)?;
        }

        drop((state, state_now));
        shared.open_age_clock()?;

        let mut active = Vec::new();

        // After all segments are known, and before anything is written: each active log is made
        // durable.
        for class in shared.classes.configured() {
            let tail = tails
                .iter()
                .position(|(c, ..)| *c == class)
                .map(|at| tails.swap_remove(at));
            let opened = tail.map(|(_, segment, walked)| {
                segment::recovery::make_durable(&segment, &walked, true, &options.metrics)?;
                write::committer::Active::open(segment, walked.end, &options.limits)
            });
            active.push(opened.transpose()?);
        }

        if !lost.is_empty() {
            match shared.forget_last_jobs(&lost) {
                Err(error) if error.is_no_space() => {
                    tracing::warn!(%error, "no space to forget the last jobs of lost segments, the next start retries");
                }
                forgotten => forgotten?,
            }
        }

        // All numbers of the logs are known by now, so none is assigned twice.
        let seqnos = write::seqno::SeqNos::open(fs, dir, next_seq, options.limits.numbers_ahead)?;
        let skipped = || seqnos.skipped().to_vec();
        shared.skipped.get_or_init(skipped);
        if let Some(problem) = seqnos.problem_at_start() {
            shared.report_file("SEQUENCE", problem);
        }

        // Everything found counts as acknowledged: it was made durable above.
        shared.set_durable(seqnos.next());
        shared.consumers.limit_to(seqnos.next());

        let mut dedupe = write::dedupe::Dedupe::new(options.limits.dedupe_window);
        let mut classifier = class::Classifier::new(&shared.classes);
        let mut shares = write::shares::Shares::new(&shared.classes);
        shared.sample_compression();
        // Never fails: what it cannot read only means fewer recognized duplicates.
        write::refill::refill(
            &shared,
            options.limits.dedupe_window,
            &mut dedupe,
            (&mut classifier, &mut shares),
        );

        let packer = log::builder::Packer::new().map_err(error::io_at("start zstd for", dir))?;
        // Bounded, because the index of each waiting segment is in memory.
        let (seals_tx, seals) = bounded(SEALS_WAITING);
        let writer = write::committer::SegmentWriter {
            shared: shared.clone(),
            seals: seals_tx,
            active,
            broken: Vec::new(),
            limits: options.limits,
            on_disk: shared
                .classes
                .configured()
                .map(|_| SeqNo::default())
                .collect(),
            unsynced_since: None,
            in_use: false,
        };

        let (intake, appender, committer) = Appender::new(
            shared.clone(),
            writer,
            dedupe,
            (classifier, shares),
            packer,
            seqnos,
        );

        let sealer = Sealer {
            shared: shared.clone(),
            seals,
            backlog,
        };
        let retainer = Retainer {
            shared: shared.clone(),
        };
        Ok(Opened {
            store: Store(shared),
            intake,
            appender,
            committer,
            sealer,
            retainer,
        })
    }
}

fn heartbeat_of(clock: &Clock) -> u64 {
    u64::try_from(clock.monotonic().as_micros()).unwrap_or(u64::MAX)
}

/// Whether no class has a segment, as before the first start has ended.
fn is_without_segments(dir: &Path) -> Result<bool, StoreError> {
    for name in format::class_names(dir)? {
        if !format::generations(&format::class_dir(dir, &name))?.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The configured classes, and those that exist only on disk.
fn all_classes(dir: &Path, configured: &Classes) -> Result<Classes, StoreError> {
    let mut classes = configured.clone();

    for name in format::class_names(dir)? {
        if classes.find(&name).is_some() {
            continue;
        }
        tracing::warn!(class = name, dir = %format::class_dir(dir, &name).display(), "class not in the configuration, keeping it read-only");
        if !classes.add_found(&name) {
            return Err(StoreError::Failed(format!(
                "cannot read class {name}: too many classes"
            )));
        }
    }
    Ok(classes)
}

#[cfg(test)]
mod tests;
