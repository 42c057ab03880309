//! The store: a log of everything, and what is needed to look things up in it.
//!
//! [`Store::open`] checks the directory, reads the tail of the log, and hands out what each thread needs: an
//! [`Intake`] to write, the [`Store`] itself to read, and the two loops, [`Appender`] and [`Sealer`].
//!
//! # Invariant
//!
//! The log alone is the truth. Everything in sled can be made again from it, and is, whenever it is missing or
//! damaged. Sequence numbers only grow; nothing that was acknowledged is ever written again.

mod age_clock;
pub mod appender;
pub mod block;
pub mod builder;
pub mod cache;
pub mod checked;
pub mod class;
pub mod column;
pub mod committer;
pub mod dedupe;
mod dropping;
pub mod error;
pub mod extent;
mod follow;
pub mod format;
pub mod frame;
pub mod guard;
pub mod hold;
pub mod index;
pub mod log;
pub mod medium;
pub mod numbers;
pub mod pattern;
mod reach;
mod reactor_file;
pub mod read;
mod recovery;
mod refill;
pub mod retention;
mod rewrite;
pub mod row;
mod scan;
pub mod seal;
pub mod segment;
pub mod sleds;
pub mod state;
pub mod stats;
pub mod tools;
pub mod walk;

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

pub use age_clock::Step;
pub use appender::{Appender, Done, Intake};
pub use class::{Class, Classes};
pub use committer::Committer;
pub use error::StoreError;
pub use follow::Followed;
pub use format::FORMAT_VERSION;
pub use guard::FreeSpace;
pub use hold::Hold;
pub use read::{ClassSums, StoredEntry};
pub use retention::Retainer;
pub use row::JobRow;
pub use seal::Sealer;

use medium::Medium;

use std::time::Duration;

use crate::channel::bounded;
use crate::clock::Clock;
use crate::limits::{
    DEDUPE_WINDOW, INTAKE_BATCHES, NUMBERS_AHEAD, SEALS_WAITING, SEGMENT_BYTES, SEGMENT_ENTRIES_MAX,
};
use crate::metrics::Metrics;
use crate::model::{Durability, SeqNo};
use index::Facts;

/// When a segment is finished, and an entry answered; what is remembered and reserved.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// When an entry is answered.
    pub durability: Durability,
    /// Bytes of its log.
    pub segment_bytes_max: u64,
    /// Entries in it.
    pub segment_entries_max: u64,
    /// Fingerprints in one generation of the duplicate memory.
    pub dedupe_window: usize,
    /// Sequence numbers reserved at once.
    pub numbers_ahead: u64,
}

impl Limits {
    /// Those of a daemon without a configuration.
    pub const DEFAULT: Self = Self {
        durability: Durability::Durable,
        segment_bytes_max: SEGMENT_BYTES,
        segment_entries_max: SEGMENT_ENTRIES_MAX,
        dedupe_window: DEDUPE_WINDOW,
        numbers_ahead: NUMBERS_AHEAD,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// What opening a store needs to know.
#[derive(Debug, Clone)]
pub struct Options {
    /// The state directory.
    pub dir: PathBuf,
    /// Who holds it; the next one to try is told.
    pub holder: String,
    /// Where the time comes from.
    pub clock: Clock,
    /// Where to count.
    pub metrics: Arc<Metrics>,
    /// When segments are finished.
    pub limits: Limits,
    /// Through which files are written.
    pub medium: Arc<dyn Medium>,
    /// The classes that take entries.
    pub classes: Classes,
    /// How much of the disk is kept free.
    pub free: FreeSpace,
}

/// A handle for reading; clones read the same store.
#[derive(Debug, Clone)]
pub struct Store(Arc<Shared>);

/// An open store, in the parts that its threads take.
pub struct Opened {
    /// For readers.
    pub store: Store,
    /// For writers. The appender ends when all of these are dropped.
    pub intake: Intake,
    /// To run on a thread of its own.
    pub appender: Appender,
    /// To run on a thread of its own; ends after the appender.
    pub committer: Committer,
    /// To run on a thread of its own; ends after the committer.
    pub sealer: Sealer,
    /// To run on a thread of its own; ends after the sealer.
    pub retainer: Retainer,
}

#[cfg(test)]
impl Opened {
    /// With a thread for each part; they end once the store and all that write to it are gone.
    pub(crate) fn on_threads(self) -> (Store, Intake, Vec<std::thread::JoinHandle<()>>) {
        let Self { store, intake, appender, committer, sealer, retainer } = self;
        let thread = |work: Box<dyn FnOnce() + Send>| std::thread::Builder::new().spawn(work).unwrap();
        let threads = vec![
            thread(Box::new(|| appender.run())),
            thread(Box::new(|| committer.run())),
            thread(Box::new(|| sealer.run())),
            thread(Box::new(|| retainer.run())),
        ];
        (store, intake, threads)
    }
}

#[derive(Debug)]
struct Shared {
    medium: Arc<dyn Medium>,
    dir: PathBuf,
    clock: Clock,
    /// Set when all segments are known.
    age_clock: OnceLock<age_clock::AgeClock>,
    metrics: Arc<Metrics>,
    state: RwLock<Arc<state::State>>,
    classes: Classes,
    /// The random number of this store, a part of every frame's check value.
    store_id: u64,
    /// One chain per class, oldest first.
    segments: Vec<RwLock<Vec<Arc<segment::Segment>>>>,
    durable: AtomicU64,
    news: follow::News,
    /// Does somebody react to what buses say?
    heard: AtomicBool,
    /// When the appender last came round, microseconds of the monotonic clock.
    beat: AtomicU64,
    cache: cache::BlockCache,
    /// Segments whose sealed index is open.
    open: Mutex<VecDeque<Arc<segment::Segment>>>,
    /// Counts uses of open indexes.
    moment: AtomicU64,
    /// Segments whose index was damaged, and lies in memory until it is written again.
    damaged: Mutex<Vec<Arc<segment::Segment>>>,
    holds: hold::Holds,
    guard: guard::Guard,
    retention: retention::Retention,
    rates: stats::Rates,
    /// Entries written since the start, by class.
    written: Vec<AtomicU64>,
    _lock: format::Lock,
}

impl Shared {
    fn segments(&self, class: Class) -> Vec<Arc<segment::Segment>> {
        let list = self.segments.get(class.index());
        list.map_or(Vec::new(), |list| list.read().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Those of all classes, one class after the other: any may hold entries of a job.
    fn all_segments(&self) -> Vec<Arc<segment::Segment>> {
        self.classes.all().flat_map(|class| self.segments(class)).collect()
    }

    fn add_segment(&self, segment: Arc<segment::Segment>) {
        if let Some(list) = self.segments.get(segment.class.index()) {
            list.write().unwrap_or_else(PoisonError::into_inner).push(segment);
        }
    }

    /// Lets a rewritten segment take the place of another.
    fn replace_segment(&self, old: &Arc<segment::Segment>, new: Arc<segment::Segment>) {
        if let Some(list) = self.segments.get(new.class.index()) {
            let mut list = list.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(place) = list.iter_mut().find(|segment| Arc::ptr_eq(segment, old)) {
                *place = new;
            }
        }
    }

    fn beat(&self) {
        self.beat.store(beat_of(&self.clock), Ordering::Relaxed);
    }

    fn set_durable(&self, next: SeqNo) {
        let before = self.durable.swap(next.0, Ordering::AcqRel);
        assert!(before <= next.0, "what is durable stays so");
        self.news.tell();
    }
}

impl Store {
    /// Why nothing is taken at the moment, if nothing is: the disk is nearly full.
    pub fn refusal(&self) -> Option<String> {
        self.0.guard.refusal()
    }

    /// How long ago the appender last came round. It does at least every second, unless a disk holds it up.
    pub fn appender_seen_ago(&self) -> Duration {
        Duration::from_micros(beat_of(&self.0.clock).saturating_sub(self.0.beat.load(Ordering::Relaxed)))
    }

    /// Opens a state directory, making it if need be, and repairs what a crash left half done.
    pub fn open(options: &Options) -> Result<Opened, StoreError> {
        let (dir, medium) = (&options.dir, &options.medium);
        format::make_dir(&**medium, dir)?;
        let lock = format::Lock::take(dir, &options.holder)?;
        let store_id = format::check_version(&**medium, dir)?;
        format::make_dir(&**medium, &dir.join("log"))?;
        match format::make_dir(&**medium, &dropping::trash_dir(dir)) {
            // Dropping a segment makes it in the room of that segment.
            Err(error) if error.is_no_space() => tracing::warn!(%error, "no space for the trash"),
            made => made?,
        }
        let classes = all_classes(dir, &options.classes)?;
        let written = classes.all().map(|_| AtomicU64::new(0)).collect();
        let shared = Arc::new(Shared {
            medium: medium.clone(),
            dir: dir.clone(),
            clock: options.clock.clone(),
            age_clock: OnceLock::new(),
            metrics: options.metrics.clone(),
            state: RwLock::new(Arc::new(reach::open_state(dir, &options.metrics)?)),
            segments: classes.all().map(|_| RwLock::default()).collect(),
            classes,
            store_id,
            durable: AtomicU64::new(SeqNo::FIRST.0),
            news: follow::News::default(),
            heard: AtomicBool::new(false),
            beat: AtomicU64::new(beat_of(&options.clock)),
            cache: cache::BlockCache::default(),
            open: Mutex::default(),
            moment: AtomicU64::new(1),
            damaged: Mutex::default(),
            holds: hold::Holds::open(dir, medium.clone())?,
            guard: guard::Guard::new(dir, medium.clone(), options.clock.clone(), options.free),
            retention: retention::Retention::default(),
            rates: stats::Rates::default(),
            written,
            _lock: lock,
        });
        let mut known: HashMap<(String, SeqNo), Facts> = HashMap::new();
        let state = shared.state();
        for (name, first_seq, facts) in shared.with_state(state::State::segments)? {
            known.insert((name, first_seq), facts);
        }
        let mut backlog = Vec::new();
        let mut next_seq = SeqNo::FIRST;
        let mut tails = Vec::new();
        for class in shared.classes.all() {
            let name = shared.classes.name(class);
            let grows = shared.classes.is_configured(class);
            let found = segments_on_disk(&**medium, dir, &name, |first_seq| {
                // One of the catalogue is told of below.
                if !known.contains_key(&(name.to_string(), first_seq)) {
                    tell_missing(dir, &name, first_seq, &options.metrics);
                }
            })?;
            let newest = found.last().copied();
            if newest.is_some() {
                // The name of one may not be on disk yet, because the sync failed when it was made.
                format::sync_dir(&**medium, &format::class_dir(dir, &name))?;
            }
            for first_seq in found {
                next_seq = next_seq.max(first_seq);
                let index = segment::Index::Closed;
                let id = frame::LogId { store_id, first_seq };
                let segment =
                    Arc::new(segment::Segment::open(medium, dir, (class, name.clone()), id, index)?);
                // The newest one grows, and has no index. A class that the configuration did not name meanwhile has
                // one: it is finished like the others.
                let facts = known.remove(&(name.to_string(), first_seq));
                if let Some(facts) = shared.sealed_facts(&segment, facts)? {
                    next_seq = next_seq.max(facts.sums.last_seq.next());
                    segment.set_facts(facts);
                    shared.add_segment(segment);
                    continue;
                }
                // What is written from here on an old index does not know.
                segment.remove_index()?;
                // The log's name in there may not be on disk yet.
                format::sync_dir(&**medium, segment.dir())?;
                let (index, mut walked) = segment.walk()?;
                if let Some((offset, version)) = walked.unknown_version {
                    let what =
                        format!("a frame of version {version}, which another release wrote: start that one");
                    return Err(segment.log().corrupt(offset, what));
                }
                if Some(first_seq) != newest {
                    walked = walked.finished();
                }
                recovery::report_damage(&segment, &walked, Some(first_seq) == newest, &options.metrics);
                next_seq =
                    index.blocks().metas().iter().fold(next_seq, |next, b| next.max(b.last_seq.next()));
                *segment.index_mut() = segment::Index::Memory(Box::new(index));
                shared.add_segment(segment.clone());
                if Some(first_seq) == newest && grows {
                    tails.push((class, segment, walked));
                    continue;
                }
                recovery::settle(&segment, &walked, Some(first_seq) == newest, &options.metrics)?;
                let is_empty = segment::memory_sums(&segment.index()).is_none_or(|sums| sums.entries == 0);
                if Some(first_seq) == newest && is_empty {
                    // Nothing to seal, and a configuration that names the class again goes on with it.
                    continue;
                }
                // Not all segments are known yet, so nothing that is known of last jobs is given up.
                if let Err(error) = seal::seal(&shared, &segment) {
                    // One at a time, so that a whole archive without its indexes does not lie in memory at once.
                    tracing::error!(dir = %segment.dir().display(), %error, "could not seal a segment");
                    options.metrics.seals_failed.add(1);
                    backlog.push(segment);
                }
            }
        }
        for facts in known.values() {
            next_seq = next_seq.max(facts.sums.last_seq.next());
        }
        // What retention had dropped when the daemon ended is not lost; the retainer goes on with it.
        let dropped = dropping::left_in_trash(dir);
        known.retain(|(name, first_seq), _| {
            !dropped.iter().any(|dropped| dropped.segment() == Some((name, *first_seq)))
        });
        let mut lost = Vec::new();
        for ((name, first_seq), facts) in known {
            tell_missing(dir, &name, first_seq, &options.metrics);
            lost.push(first_seq..=facts.sums.last_seq);
        }
        let state_now = shared.state();
        if !Arc::ptr_eq(&state, &state_now) {
            // It was damaged, and what was put into it did not include the segments found later.
            shared.refill(&state_now)?;
        }
        drop((state, state_now));
        shared.open_age_clock()?;
        let mut active = Vec::new();
        for class in shared.classes.configured() {
            let tail = tails.iter().position(|(c, ..)| *c == class).map(|at| tails.swap_remove(at));
            let opened = tail.map(|(_, segment, walked)| {
                recovery::settle(&segment, &walked, true, &options.metrics)?;
                committer::Active::open(segment, walked.end, &options.limits)
            });
            active.push(opened.transpose()?);
        }
        if !lost.is_empty() {
            match shared.forget_last_jobs(&lost) {
                Err(error) if error.is_no_space() => {
                    tracing::warn!(%error, "no space to forget the last jobs of lost segments, trying again at the next start");
                }
                forgotten => forgotten?,
            }
        }
        let numbers = numbers::Numbers::open(medium, dir, next_seq, options.limits.numbers_ahead)?;
        shared.set_durable(numbers.next());
        let mut dedupe = dedupe::Dedupe::new(options.limits.dedupe_window);
        let mut classifier = class::Classifier::new(&shared.classes);
        refill::refill(&shared, options.limits.dedupe_window, &mut dedupe, &mut classifier);
        let packer = builder::Packer::new().map_err(error::io_at("start zstd for", dir))?;
        let (works_tx, works) = bounded("intake", INTAKE_BATCHES);
        let (seals_tx, seals) = bounded("seals", SEALS_WAITING);
        let (commits_tx, commits) = bounded("commits", 1);
        let (idles_tx, idles) = bounded("idles", 2);
        let intake = Intake { works: works_tx, bytes: Arc::default() };
        let on_disk = shared.classes.configured().map(|_| SeqNo::default()).collect();
        let progress = committer::Progress { on_disk, ..committer::Progress::default() };
        let progress = Arc::new(Mutex::new(progress));
        let pen = committer::Pen {
            shared: shared.clone(),
            progress: progress.clone(),
            seals: seals_tx,
            active,
            broken: Vec::new(),
            limits: options.limits,
            unsynced_since: None,
        };
        let pen = Arc::new(Mutex::new(pen));
        let ends = appender::Ends {
            intake: works,
            intake_bytes: intake.bytes.clone(),
            commits: commits_tx,
            idles,
            progress: progress.clone(),
            pen: pen.clone(),
        };
        let appender = Appender::new(shared.clone(), ends, dedupe, classifier, packer, numbers);
        let committer = Committer { commits, idles: idles_tx, pen };
        let sealer = Sealer { shared: shared.clone(), seals, backlog };
        let retainer = Retainer { shared: shared.clone() };
        Ok(Opened { store: Store(shared), intake, appender, committer, sealer, retainer })
    }
}

fn beat_of(clock: &Clock) -> u64 {
    u64::try_from(clock.monotonic().as_micros()).unwrap_or(u64::MAX)
}

/// The configured classes, and those that only the disk has.
fn all_classes(dir: &Path, configured: &Classes) -> Result<Classes, StoreError> {
    let mut classes = configured.clone();
    for name in format::class_names(dir)? {
        if classes.find(&name).is_some() {
            continue;
        }
        tracing::warn!(class = name, dir = %format::class_dir(dir, &name).display(), "a class of the store that no configuration names; it stays readable");
        if !classes.add_found(&name) {
            return Err(StoreError::Failed(format!(
                "read the class {name}: there are more classes than fit"
            )));
        }
    }
    Ok(classes)
}

fn tell_missing(dir: &Path, class_name: &str, first_seq: SeqNo, metrics: &Metrics) {
    let path = format::class_dir(dir, class_name).join(format::segment_name(first_seq)).join("log");
    tracing::error!(path = %path.display(), offset = 0, "the log of a segment is not there: what was in it is lost");
    metrics.segments_missing.add(1);
}

/// The segments that have a log. One without is told to `missing`, and left where it is: perhaps there is a backup.
fn segments_on_disk(
    medium: &dyn Medium,
    dir: &Path,
    class_name: &str,
    mut missing: impl FnMut(SeqNo),
) -> Result<Vec<SeqNo>, StoreError> {
    let class_dir = format::class_dir(dir, class_name);
    format::make_dir(medium, &class_dir)?;
    rewrite::recover(medium, &class_dir)?;
    let mut found = Vec::new();
    for item in std::fs::read_dir(&class_dir).map_err(error::io_at("list", &class_dir))? {
        let item = item.map_err(error::io_at("list", &class_dir))?;
        let (name, path) = (item.file_name(), item.path());
        if name.to_str().is_some_and(|name| name.ends_with(format::NEW)) {
            // What a crash left of a segment in the making holds nothing.
            medium.remove_dir_all(&path).map_err(error::io_at("remove", &path))?;
            continue;
        }
        let Some(seq) = name.to_str().and_then(format::segment_seq) else { continue };
        if path.join("log").is_file() {
            found.push(seq);
        } else {
            missing(seq);
        }
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod retention_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod trials;
