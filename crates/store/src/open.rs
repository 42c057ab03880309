//! The start of a store: recovery of the logs, and the construction of all owners. Also the record of its stop, which the next
//! start reads.
//!
//! # Invariant
//!
//! Nothing of the directory is read before it is locked. Nothing is written to a log before all logs
//! are read, and nothing counts as readable before it is durable. A sequence number of a log, or of a
//! missing segment that is known, is not assigned again.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use crossbeam_channel::{Receiver, bounded};

use super::class::{Class, Classes, Classifier};
use super::damage::{Damage, DamageList, FileFaults};
use super::error::{self, StoreError};
use super::free_space::FreeSpaceGuard;
use super::index::SegmentMetadata;
use super::index::state::StateDatabase;
use super::log::builder::Packer;
use super::log::file::public_id;
use super::log::walk::Walked;
use super::rates::Rates;
use super::read::LogReader;
use super::read::allowed::AllowedCache;
use super::read::blocks::BlockReader;
use super::read::consumer::Consumers;
use super::retain::age_clock::{AgeClock, newest_data};
use super::retain::hold::Holds;
use super::retain::limits::KeepLimits;
use super::retain::salt_keep::SaltKeeps;
use super::retain::{Retainer, Retention};
use super::rounds::Rounds;
use super::segment::Segment;
use super::segment::catalogue::Catalogue;
use super::segment::list::Segments;
use super::segment::open_indexes::OpenIndexes;
use super::segment::recovery::{make_durable, report_damage};
use super::segment::removal::{Drops, left_dropped, was_dropped};
use super::segment::rewrite::settle;
use super::segment::seal::{Sealer, Sealing};
use super::settings::{Place, Settings};
use super::shares::{ShareState, Shares};
use super::state_dir::StateDir;
use super::stopped::{self, ChangedFile, Stopped};
use super::tools::layout;
use super::watermark::Watermark;
use super::write::appender::{Appender, Intake};
use super::write::committer::{Active, Committer, SegmentWriter};
use super::write::dedupe::Dedupe;
use super::write::refill::refill;
use super::write::seqno::{SeqNos, SequenceFile};
use super::write::status::WriterStatus;
use super::{Opened, Options, Store, StoreReader, format};
use saltcellar_base::limits::SEALS_WAITING;
use saltcellar_model::SeqNo;

impl Store {
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
        // The order matters: each step needs what earlier steps have found.
        let found = Found::read(options, lock)?;
        let reading = Reading::new(options, &found)?;
        let recovered = reading.recover(options, &found)?;
        let seqnos = reading.continue_numbers(options, recovered.next_seq)?;
        let keeping = Keeping::new(options, &found, &reading, seqnos.next());
        let writing = Writing::new(
            options,
            &found,
            &reading,
            &keeping,
            (recovered.active, seqnos),
        )?;

        Ok(Opened {
            intake: writing.intake,
            appender: writing.appender,
            committer: writing.committer,
            sealer: Sealer {
                sealing: reading.sealing,
                indexes: reading.indexes,
                rounds: keeping.rounds,
                seals: writing.seals,
                backlog: recovered.backlog,
            },
            retainer: Retainer {
                retention: keeping.retention.clone(),
            },
            store: Store(Arc::new(StoreReader {
                log: reading.log,
                consumers: keeping.consumers,
                retention: keeping.retention,
                settings: found.settings,
                salt_keeps: keeping.salt_keeps,
                guard: keeping.guard,
                shares: keeping.shares,
                rates: keeping.rates,
                status: writing.status,
                damage: reading.damage,
                faults: reading.faults,
                dir: found.dir,
            })),
        })
    }

    /// Records the end of a clean stop. Nothing may change in the state directory any more.
    pub fn note_stop(&self) -> Result<(), StoreError> {
        let dir = &self.0.dir;
        // Closed before the files are listed, because that may still write.
        let settings = self.0.settings.close()?;
        let kept = layout::irreplaceable(dir.path())?;
        stopped::note(dir, &self.segments, settings, kept)
    }
}

/// What the directory has besides the logs of entries.
struct Found {
    dir: StateDir,
    store_id: u64,
    /// The record of the last stop, if it was a clean one.
    stopped: Stopped,
    /// The small files that have changed since.
    changed: Vec<ChangedFile>,
    /// The numbers that were reserved, if that is known.
    reserved: Option<SequenceFile>,
    settings: Arc<Settings>,
    /// Those of the configuration, and those that are only on disk.
    classes: Arc<Classes>,
}

impl Found {
    /// Reads the small files and the settings, and makes the directories that are missing.
    fn read(options: &Options, lock: format::Lock) -> Result<Self, StoreError> {
        let (path, fs) = (&options.dir, &options.fs);

        // Locked first: nothing is read that another process may change.
        let store_id = format::check_version(&**fs, path)?;
        let dir = StateDir::new(fs.clone(), path, store_id, lock);
        // Before anything changes.
        let (stopped, changed) = stopped::take(&**fs, path)?;
        let count = changed.len() as u64;
        options.metrics.files_changed_while_stopped.add(count);

        // Before any log, because frames with a number that was never reserved must not be trusted.
        let reserved = SequenceFile::read(&**fs, path)?.flatten();

        format::make_dir(&**fs, &path.join("log"))?;

        let place = Place {
            state_dir: path,
            store_id,
            position: stopped.settings,
            is_new: reserved.is_none() && is_without_segments(path)?,
            growth: options.limits.settings_growth,
        };
        let settings = Settings::open(fs.clone(), place, options.clock.clone())?;
        let classes = all_classes(path, &options.classes)?;
        Ok(Self {
            dir,
            store_id,
            stopped,
            changed,
            reserved,
            settings: Arc::new(settings),
            classes: Arc::new(classes),
        })
    }
}

/// What reads entries, and what was found damaged.
struct Reading {
    log: Arc<LogReader>,
    indexes: Arc<OpenIndexes>,
    sealing: Sealing,
    damage: Arc<DamageList>,
    faults: Arc<FileFaults>,
}

impl Reading {
    /// Without any segment: [`Reading::recover`] finds them.
    fn new(options: &Options, found: &Found) -> Result<Self, StoreError> {
        let (clock, metrics) = (&options.clock, &options.metrics);
        let (dir, classes, reserved) = (&found.dir, &found.classes, found.reserved.as_ref());

        let reserved_at_start = reserved.map_or(SeqNo(u64::MAX), |file| file.end);
        let watermark = Arc::new(Watermark::new(reserved_at_start, clock.clone()));
        let segments = Arc::new(Segments::new(classes.len()));
        let indexes = Arc::new(OpenIndexes::new(watermark.clone(), metrics.clone()));
        let catalogue = Catalogue::open(
            dir.clone(),
            segments.clone(),
            indexes.clone(),
            metrics.clone(),
        )?;
        let catalogue = Arc::new(catalogue);
        let damage = Arc::new(DamageList::new(metrics.clone()));
        let faults = Arc::new(FileFaults::new(dir.clone(), metrics.clone()));

        let log = Arc::new(LogReader {
            classes: classes.clone(),
            segments: segments.clone(),
            blocks: Arc::new(BlockReader::new(indexes.clone(), damage.clone())),
            catalogue: catalogue.clone(),
            watermark,
            allowed: AllowedCache::new(indexes.clone()),
            public_id: public_id(found.store_id),
            clock: clock.clone(),
            skipped: reserved.map_or_else(Vec::new, |file| file.skipped.clone()),
        });
        let sealing = Sealing {
            dir: dir.clone(),
            segments,
            catalogue,
            metrics: metrics.clone(),
        };
        Ok(Self {
            log,
            indexes,
            sealing,
            damage,
            faults,
        })
    }

    /// Reads the logs of all classes, after which every segment is known.
    fn recover(&self, options: &Options, found: &Found) -> Result<Recovered, StoreError> {
        report_found(&found.changed, &found.settings, &self.damage, &self.faults);

        Recovery {
            options,
            dir: &found.dir,
            log: &self.log,
            damage: &self.damage,
            faults: &self.faults,
            sealing: &self.sealing,
            known: HashMap::new(),
            next_seq: SeqNo::FIRST,
            tails: Vec::new(),
            backlog: Vec::new(),
        }
        .run(&found.stopped)
    }

    /// The numbers of new entries, from `next_seq` on. Everything before them is readable from now
    /// on.
    fn continue_numbers(&self, options: &Options, next_seq: SeqNo) -> Result<SeqNos, StoreError> {
        // All numbers of the logs are known by now, so none is assigned twice.
        let ahead = options.limits.numbers_ahead;
        let seqnos = SeqNos::open(&options.fs, &options.dir, next_seq, ahead)?;
        if let Some(problem) = seqnos.problem_at_start() {
            self.faults.report("SEQUENCE", problem);
        }

        // Everything found counts as acknowledged: it was made durable.
        self.log.watermark.advance(seqnos.next());
        Ok(seqnos)
    }
}

/// What decides about what stays.
struct Keeping {
    consumers: Arc<Consumers>,
    salt_keeps: Arc<SaltKeeps>,
    keep: Arc<KeepLimits>,
    guard: Arc<FreeSpaceGuard>,
    rounds: Arc<Rounds>,
    shares: Arc<ShareState>,
    rates: Arc<Rates>,
    retention: Arc<Retention>,
}

impl Keeping {
    /// `next_seq` is the number of the next entry, which no cursor is behind.
    fn new(options: &Options, found: &Found, reading: &Reading, next_seq: SeqNo) -> Self {
        let (path, fs) = (&options.dir, &options.fs);
        let (clock, metrics) = (&options.clock, &options.metrics);
        let (classes, settings) = (&found.classes, &found.settings);
        let log = &reading.log;

        let consumers = Consumers::open(settings.clone(), log.clone(), metrics.clone());

        // A cursor beyond the end of the log, as after a restore, would skip new entries.
        consumers.limit_to(next_seq);
        let consumers = Arc::new(consumers);
        let salt_keeps = Arc::new(SaltKeeps::open(settings.clone()));
        let keep = Arc::new(KeepLimits::new(
            classes.clone(),
            log.segments.clone(),
            salt_keeps.clone(),
            clock.clone(),
        ));
        let guard = FreeSpaceGuard::new(path, fs.clone(), clock.clone(), options.free);
        let guard = Arc::new(guard);
        let rounds = Arc::new(Rounds::default());
        let shares = Arc::new(ShareState::new(classes.len()));
        let rates = Arc::new(Rates::new(classes.len(), clock.clone(), metrics.clone()));

        let newest = |wall| newest_data(&log.segments.all(), wall);
        let drops = Drops::new(
            found.dir.clone(),
            (
                log.segments.clone(),
                reading.indexes.clone(),
                log.catalogue.clone(),
            ),
            guard.clone(),
            rounds.clone(),
        );
        let retention = Arc::new(Retention {
            round: parking_lot::Mutex::default(),
            rounds: rounds.clone(),
            classes: classes.clone(),
            segments: log.segments.clone(),
            blocks: log.blocks.clone(),
            limits: keep.clone(),
            salt_keeps: salt_keeps.clone(),
            holds: Holds::new(settings.clone()),
            holds_due: parking_lot::Mutex::default(),
            consumers: consumers.clone(),
            age_clock: AgeClock::open(clock.clone(), settings.clone(), metrics, newest),
            guard: guard.clone(),
            drops,
            shares: shares.clone(),
            rates: rates.clone(),
            pin_bytes_max: options.limits.pin_bytes_max,
            clock: clock.clone(),
            metrics: metrics.clone(),
        });

        Self {
            consumers,
            salt_keeps,
            keep,
            guard,
            rounds,
            shares,
            rates,
            retention,
        }
    }
}

/// What writes entries, and the ends of its queues.
struct Writing {
    intake: Intake,
    appender: Appender,
    committer: Committer,
    /// Finished segments.
    seals: Receiver<Arc<Segment>>,
    status: Arc<WriterStatus>,
}

impl Writing {
    /// Continues the active logs, by class, with these numbers.
    fn new(
        options: &Options,
        found: &Found,
        reading: &Reading,
        keeping: &Keeping,
        (active, seqnos): (Vec<Option<Active>>, SeqNos),
    ) -> Result<Self, StoreError> {
        let (clock, metrics) = (&options.clock, &options.metrics);
        let (classes, log) = (&found.classes, &reading.log);

        let mut dedupe = Dedupe::new(options.limits.dedupe_window);
        let mut classifier = Classifier::new(classes);
        let mut shares = Shares::new(classes);
        keeping.shares.sample_compression(classes, &log.segments);
        // Never fails: what it cannot read only means fewer recognized duplicates.
        refill(
            log,
            options.limits.dedupe_window,
            &mut dedupe,
            (&mut classifier, &mut shares, &keeping.shares),
            metrics,
        );

        let packer = Packer::new().map_err(error::io_at("start zstd for", &options.dir))?;
        let status = Arc::new(WriterStatus::new(clock.clone()));
        // Bounded, because the index of each waiting segment is in memory.
        let (seals_tx, seals) = bounded(SEALS_WAITING);
        let writer = SegmentWriter {
            dir: found.dir.clone(),
            classes: classes.clone(),
            segments: log.segments.clone(),
            watermark: log.watermark.clone(),
            keep: keeping.keep.clone(),
            guard: keeping.guard.clone(),
            rounds: keeping.rounds.clone(),
            rates: keeping.rates.clone(),
            status: status.clone(),
            clock: clock.clone(),
            metrics: metrics.clone(),
            seals: seals_tx,
            active,
            broken: Vec::new(),
            limits: options.limits,
            on_disk: classes.configured().map(|_| SeqNo::default()).collect(),
            unsynced_since: None,
            in_use: false,
        };
        let (intake, appender, committer) = Appender::new(
            writer,
            dedupe,
            (classifier, shares, keeping.shares.clone()),
            packer,
            seqnos,
        );
        Ok(Self {
            intake,
            appender,
            committer,
            seals,
            status,
        })
    }
}

/// Reports what was found before the logs: small files that have changed, and damaged settings.
fn report_found(
    changed: &[ChangedFile],
    settings: &Settings,
    damage: &DamageList,
    faults: &FileFaults,
) {
    for (name, what) in changed {
        faults.report(name, what.as_str());
    }

    for part in settings.damage() {
        damage.note(Damage {
            path: part.path.clone(),
            offset: part.offset,
            bytes: part.bytes,
            what: part.what.clone(),
            entries: None,
        });
    }
}

/// Reads the logs of all classes.
struct Recovery<'a> {
    options: &'a Options,
    dir: &'a StateDir,
    log: &'a LogReader,
    damage: &'a DamageList,
    faults: &'a FileFaults,
    sealing: &'a Sealing,
    /// What the catalogue knows and no directory was found for.
    known: HashMap<(String, SeqNo), SegmentMetadata>,
    /// Greater than all numbers that are known to be assigned.
    next_seq: SeqNo,
    /// Logs that are continued.
    tails: Vec<(Class, Arc<Segment>, Walked)>,
    /// Segments that could not be sealed.
    backlog: Vec<Arc<Segment>>,
}

/// What the logs are continued with.
struct Recovered {
    next_seq: SeqNo,
    /// By class.
    active: Vec<Option<Active>>,
    backlog: Vec<Arc<Segment>>,
}

impl Recovery<'_> {
    fn run(mut self, stopped: &Stopped) -> Result<Recovered, StoreError> {
        let catalogue = &self.log.catalogue;

        // Kept, to notice below whether it was replaced.
        let state = catalogue.state();
        for (name, first_seq, metadata) in catalogue.query(StateDatabase::segments)? {
            self.known.insert((name, first_seq), metadata);
        }

        for path in layout::foreign(self.dir.path())? {
            tracing::warn!(path = %path.display(), "unknown file in the state directory, ignored: move it elsewhere, unless another release made it");
        }

        for class in self.log.classes.all() {
            self.read_class(class)?;
        }
        let lost = self.report_lost();

        // Active logs contain no row in the catalogue. Their ends are known only from the last stop.
        let missing = stopped.report_missing((&self.log.classes, &self.log.segments), self.faults);
        self.options.metrics.entries_missing_at_start.add(missing);

        let state_now = catalogue.state();
        if !Arc::ptr_eq(&state, &state_now) {
            // It proved damaged and was rebuilt before all segments were known.
            catalogue.refill(&state_now)?;
        }
        drop((state, state_now));

        let active = self.open_active()?;
        if !lost.is_empty() {
            match catalogue.forget_last_jobs(&lost) {
                Err(error) if error.is_no_space() => {
                    tracing::warn!(%error, "no space to delete the index entries of lost segments, the next start retries: free some space");
                }
                forgotten => forgotten?,
            }
        }

        Ok(Recovered {
            next_seq: self.next_seq,
            active,
            backlog: self.backlog,
        })
    }

    fn read_class(&mut self, class: Class) -> Result<(), StoreError> {
        let fs = self.dir.fs();
        let name = self.log.classes.name(class);
        let grows = self.log.classes.is_configured(class);
        let class_dir = self.dir.class_dir(&name);
        // The directory may not exist yet.
        format::make_dir(&**fs, &class_dir)?;
        let (found, without_log) = settle(&**fs, &class_dir, &name, self.dir.store_id())?;

        // Also if it cannot be opened: an older one has later entries behind it already, and is not
        // appended to.
        let of_found = found.iter().map(|generation| generation.first_seq);
        let newest = of_found.chain(without_log.iter().copied()).max();

        // The directory of a segment without a log stays: a backup may restore the log.
        for first_seq in without_log {
            self.report_without_log(&name, first_seq);
        }

        let mut opened = Vec::with_capacity(found.len());
        for generation in found {
            let id = self.dir.log_id(generation.first_seq);
            match Segment::open(fs, &generation.dir, (class, name.clone()), id) {
                Ok(segment) => opened.push(Arc::new(segment)),
                // Left alone: only an administrator knows where it belongs. Entries of this
                // store that it has are missing, and reported below.
                Err(error @ StoreError::Misplaced { .. }) => {
                    tracing::error!(%error, "segment directory renamed or copied, its entries are skipped: correct it as the error says, and restart the daemon");
                    let root = self.dir.path();
                    let path = generation.dir.strip_prefix(root).unwrap_or(&generation.dir);
                    let problem = format!("{error}; its entries are not read");
                    self.faults.report(path, problem);
                }
                // Its directory stays: a later start may read it.
                Err(error) if error.is_damage() => {
                    tracing::error!(%error, "cannot open a segment's log, its entries cannot be read: repair the disk or put the file back from a backup, and restart the daemon");
                    self.next_seq = self.next_seq.max(generation.first_seq);
                    self.report_without_log(&name, generation.first_seq);
                }
                Err(error) => return Err(error),
            }
        }

        if !opened.is_empty() {
            // The sync after the creation of a segment may have failed.
            format::sync_dir(&**fs, &class_dir)?;
        }
        for segment in opened {
            let is_newest = Some(segment.first_seq) == newest;
            self.read_segment(segment, is_newest, grows)?;
        }
        Ok(())
    }

    /// Reports a segment without a log, unless it is in the catalogue: those are reported together.
    fn report_without_log(&self, class_name: &str, first_seq: SeqNo) {
        if !self.known.contains_key(&(class_name.to_owned(), first_seq)) {
            self.faults.report_missing_log(class_name, first_seq);
        }
    }

    fn read_segment(
        &mut self,
        segment: Arc<Segment>,
        is_newest: bool,
        grows: bool,
    ) -> Result<(), StoreError> {
        let reserved_at_start = self.log.watermark.reserved_at_start();
        let first_seq = segment.first_seq;
        self.next_seq = self.next_seq.max(first_seq);

        // The active segment contains no index. In a class that was removed from the configuration for a
        // while, the newest segment is also sealed.
        let known = (segment.class_name.to_string(), first_seq);
        let known = self.known.remove(&known);
        let catalogue = &self.log.catalogue;
        if let Some(metadata) = catalogue.sealed_metadata(&segment, known, reserved_at_start)? {
            self.next_seq = self.next_seq.max(metadata.totals.last_seq.next());
            segment.set_sealed(metadata);
            self.log.segments.add(segment);
            return Ok(());
        }

        let (index, mut walked) = segment.walk(reserved_at_start)?;
        if let Some((offset, version)) = walked.unknown_version {
            return Err(segment.log().of_version(offset, version));
        }

        // An old index would lack the entries appended from here on.
        segment.remove_index()?;
        // Durable before anything is appended: `verify` takes a log with an index for finished, and an
        // unfinished write at its end for damage. Also, the sync of the log's directory entry may have
        // failed.
        format::sync_dir(&**self.dir.fs(), segment.dir())?;

        let grows = grows && !walked.is_closed;
        let is_newest = is_newest && !walked.is_closed;
        if walked.is_closed {
            // The next segment of the class gets another number.
            self.next_seq = self.next_seq.max(first_seq.next());
        }
        if !is_newest {
            // Nothing is appended to it again, so an unfinished write in it would stay forever.
            walked = walked.finished();
        }
        report_damage(self.damage, &segment, &walked, is_newest);

        if let Some(last) = walked.unbelieved {
            // The disk may have lost the last update of SEQUENCE: numbers just above it are not
            // assigned again.
            let skipped = self.options.limits.numbers_ahead.saturating_mul(2);
            if last.0 < reserved_at_start.0.saturating_add(skipped) {
                self.next_seq = self.next_seq.max(last.next());
            }
        }
        for block in index.blocks().metas() {
            self.next_seq = self.next_seq.max(block.last_seq.next());
        }

        segment.set_memory(index);
        self.log.segments.add(segment.clone());
        if is_newest && grows {
            // Opened for writing once all classes are read.
            self.tails.push((segment.class, segment, walked));
            return Ok(());
        }
        make_durable(&segment, &walked, is_newest, &self.options.metrics)?;

        if is_newest && segment.totals().entries == 0 {
            // Keep it as the active segment of the class if that is configured again.
            return Ok(());
        }
        // Not all segments are known yet, so keep every row about latest jobs. Sealed one at a time to
        // bound the memory: an archive may lack all its indexes.
        if !self.sealing.try_seal(&segment) {
            self.backlog.push(segment);
        }
        Ok(())
    }

    /// Reports the segments that the catalogue knows and no directory has; returns their numbers.
    fn report_lost(&mut self) -> Vec<RangeInclusive<SeqNo>> {
        let mut known = std::mem::take(&mut self.known);
        // Missing segments also count: their numbers were assigned.
        for metadata in known.values() {
            self.next_seq = self.next_seq.max(metadata.totals.last_seq.next());
        }
        // Those were dropped, not lost; the retainer resumes.
        let dropped = left_dropped(self.dir.path());
        known.retain(|(name, first_seq), _| !was_dropped(&dropped, name, *first_seq));

        let mut lost = Vec::new();
        for ((name, first_seq), metadata) in known {
            self.faults.report_missing_log(&name, first_seq);
            lost.push(first_seq..=metadata.totals.last_seq);
        }
        lost
    }

    /// Opens the active logs, by class: after all segments are known, and before anything is written.
    /// Each is made durable.
    fn open_active(&mut self) -> Result<Vec<Option<Active>>, StoreError> {
        let mut active = Vec::new();
        for class in self.log.classes.configured() {
            let tail = self
                .tails
                .iter()
                .position(|(c, ..)| *c == class)
                .map(|at| self.tails.swap_remove(at));
            let opened = tail.map(|(_, segment, walked)| {
                make_durable(&segment, &walked, true, &self.options.metrics)?;
                Active::open(segment, walked.end, &self.options.limits)
            });
            active.push(opened.transpose()?);
        }
        Ok(active)
    }
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
        tracing::warn!(class = name, dir = %format::class_dir(dir, &name).display(), "class not in the configuration, keeping it read-only: add it to `store.classes` to write to it");
        if !classes.add_found(&name) {
            return Err(StoreError::Refused(format!(
                "cannot read class {name}: the store has more than {} classes; move {} out of the state directory if its entries are not needed",
                u8::MAX,
                format::class_dir(dir, &name).display()
            )));
        }
    }
    Ok(classes)
}
