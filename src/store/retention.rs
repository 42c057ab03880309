//! Retention: whole finished segments go, the oldest first, when a bound of their class is exceeded.
//!
//! How one goes is in `dropping`. If one cannot go, the newer ones of its class wait.
//!
//! # Which, and when
//!
//! - age: its newest entry came in longer ago than the class keeps, so every entry is kept at least so long. The time is that of
//!   the age clock (see `age_clock`), which does not follow a wall clock that was set ahead. Where the segments of a class
//!   show that an entry's time is wrong, it does not count (see `extent`)
//! - bytes, entries: the class as a whole, the growing segment included, has more
//! - space: the disk is nearly full (see `guard`). The classes are given up in the order of the configuration's list, each
//!   from its oldest segment on; `events` and then `jobs` stand at its end unless the list has them elsewhere.
//!
//! The growing segment never goes, nor the one with Thorium's register as saved last. A segment with entries of a held
//! job stays, whole, and is counted. A job with
//! entries in several segments stays visible with what is left of it until the last of them goes.
//!
//! Salt's word, `keep_jobs_seconds`, comes with each `clean_old_jobs`. Two masters may share a store and say different
//! things: the longer time counts, until nobody has said it for an hour.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::class::Class;
use super::dropping::left_in_trash;
use super::error::StoreError;
use super::extent::{Extent, arrivals};
use super::guard::Room;
use super::hold::Hold;
use super::segment::Segment;
use super::{Shared, Store};
use crate::clock::{Micros, micros};
use crate::limits::{
    CLOCK_STEP, GUARD_LOOK, GUARD_LOOK_IDLE, RETENTION_ROUND, SALT_WORD_LASTS, SEGMENT_AGE_MAX,
    SEGMENT_AGE_MIN, SEGMENT_BYTES_MIN, SEGMENT_ENTRIES_MIN, SEGMENTS_PER_BOUND,
};
use crate::model::{Age, JidKey, Keep, SeqNo};

/// Why a segment goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// All its entries are older than the class keeps.
    Age,
    /// The class has more bytes.
    Bytes,
    /// The class has more entries.
    Entries,
    /// The disk is nearly full.
    Space,
}

impl Reason {
    /// The word that `store prune` shows.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Age => "age",
            Reason::Bytes => "bytes",
            Reason::Entries => "entries",
            Reason::Space => "space",
        }
    }
}

/// What became of a segment that was to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It would go.
    Goes,
    /// It is gone.
    Gone,
    /// It stays: this many held jobs have entries in it.
    Held(usize),
    /// It stays: Thorium's register lies in it as saved last.
    Register,
    /// It stays for now: somebody works on it.
    Busy,
    /// It stays, because of an error.
    Failed(String),
}

/// A segment that was to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Going {
    /// The class's name.
    pub class: Arc<str>,
    /// The segment.
    pub segment: SeqNo,
    /// What it has.
    pub extent: Extent,
    /// Why it was to go.
    pub reason: Reason,
    /// What became of it.
    pub fate: Fate,
}

impl Going {
    /// It should be gone and is not: newer ones of its class wait.
    fn stands_in_the_way(&self) -> bool {
        matches!(self.fate, Fate::Busy | Fate::Failed(_))
    }
}

/// What the rounds share.
#[derive(Debug, Default)]
pub(super) struct Retention {
    /// Held during a round: there is one at a time.
    round: Mutex<()>,
    wish: Mutex<Wish>,
    woken: Condvar,
    /// Salt's word in seconds, and when it was said last by the monotonic clock.
    salt: Mutex<Option<(u64, Duration)>>,
}

#[derive(Debug, Default)]
struct Wish {
    round: bool,
    stop: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Woken {
    ByTime,
    ByNudge,
    ToEnd,
}

/// When a growing segment of a class is finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentBounds {
    pub(super) bytes: u64,
    pub(super) entries: u64,
    /// Microseconds since its earliest entry came in.
    pub(super) age: Option<i64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Retention {
    /// Takes Salt's word: keep jobs for so many seconds, for ever if there are none.
    pub(super) fn salt_says(&self, seconds: u64, now: Duration) {
        let seconds = if seconds == 0 { u64::MAX } else { seconds };
        let mut salt = lock(&self.salt);
        let stands =
            salt.is_some_and(|(known, at)| known > seconds && now.saturating_sub(at) < SALT_WORD_LASTS);
        if !stands {
            *salt = Some((seconds, now));
        }
    }

    /// How long Salt wants its jobs kept; `None` while it says nothing, or for ever.
    pub(super) fn salt_age(&self) -> Option<Duration> {
        (*lock(&self.salt)).map(|(seconds, _)| seconds).filter(|&s| s != u64::MAX).map(Duration::from_secs)
    }

    /// Has Salt said how long it wants its jobs kept, since the start?
    pub(super) fn salt_has_said(&self) -> bool {
        lock(&self.salt).is_some()
    }

    /// Asks for a round now.
    pub(super) fn nudge(&self) {
        lock(&self.wish).round = true;
        self.woken.notify_all();
    }

    /// Lets the retainer end.
    pub(super) fn stop(&self) {
        lock(&self.wish).stop = true;
        self.woken.notify_all();
    }

    /// Is the retainer to end?
    pub(super) fn is_stopping(&self) -> bool {
        lock(&self.wish).stop
    }

    /// Waits for `pause`, or less if there is something to do.
    fn wait(&self, pause: Duration) -> Woken {
        let wish = lock(&self.wish);
        let idle = |wish: &mut Wish| !wish.round && !wish.stop;
        let (mut wish, _) =
            self.woken.wait_timeout_while(wish, pause, idle).unwrap_or_else(PoisonError::into_inner);
        let nudged = std::mem::take(&mut wish.round);
        match wish.stop {
            true => Woken::ToEnd,
            false if nudged => Woken::ByNudge,
            false => Woken::ByTime,
        }
    }
}

/// The retainer's thread.
pub struct Retainer {
    pub(super) shared: Arc<Shared>,
}

impl Retainer {
    /// Lets go of what has to go, every few seconds and when asked, until the sealer has ended.
    pub fn run(self) {
        let shared = self.shared;
        {
            let _one = lock(&shared.retention.round);
            shared.clear_trash(&left_in_trash(&shared.dir));
        }
        let mut last = shared.clock.monotonic();
        loop {
            let due_in = |last: Duration| {
                RETENTION_ROUND.saturating_sub(shared.clock.monotonic().saturating_sub(last))
            };
            let look = if shared.guard.room() == Room::Ample { GUARD_LOOK_IDLE } else { GUARD_LOOK };
            let woken = shared.retention.wait(due_in(last).min(look));
            if woken == Woken::ToEnd {
                shared.age_clock().close();
                return;
            }
            if woken == Woken::ByNudge || due_in(last).is_zero() {
                shared.round();
                last = shared.clock.monotonic();
            } else if shared.guard.look().room != Room::Ample {
                let _one = lock(&shared.retention.round);
                let gone = shared.make_room();
                shared.report(&gone);
            }
        }
    }
}

impl Shared {
    /// How long a class keeps its entries at the moment.
    pub(super) fn age_of(&self, keep: Keep) -> Option<Duration> {
        match keep.age {
            Age::Forever => None,
            Age::Salt => self.retention.salt_age(),
            Age::For(age) => Some(age),
        }
    }

    /// When a growing segment of that class is finished: small enough that letting go of one at a time comes close to
    /// the bounds.
    pub(super) fn segment_bounds(&self, class: Class, limits: &super::Limits) -> SegmentBounds {
        let keep = self.classes.keep(class);
        let part = |bound: Option<u64>, least: u64, most: u64| {
            bound.map_or(most, |bound| (bound / SEGMENTS_PER_BOUND).max(least).min(most))
        };
        let age = self.age_of(keep).map(|age| {
            let part = age / u32::try_from(SEGMENTS_PER_BOUND).unwrap_or(1);
            micros(part.clamp(SEGMENT_AGE_MIN, SEGMENT_AGE_MAX))
        });
        SegmentBounds {
            bytes: part(keep.bytes, SEGMENT_BYTES_MIN, limits.segment_bytes_max),
            entries: part(keep.entries, SEGMENT_ENTRIES_MIN, limits.segment_entries_max),
            age,
        }
    }

    /// Has a growing segment, whose log ends at `end`, reached its bounds?
    pub(super) fn is_full(&self, segment: &Segment, end: u64, limits: &super::Limits) -> bool {
        let bounds = self.segment_bounds(segment.class, limits);
        let entries = segment.sums().entries;
        if entries == 0 {
            return false;
        }
        // Not the age of an entry: one that comes out of a spool may be days old.
        let age = self.clock.now().0.saturating_sub(segment.log().created().0);
        // The clock was set back: by its new time the segment would age late.
        let of_the_future = age < -micros(CLOCK_STEP);
        let aged = bounds.age.is_some_and(|most| age >= most || of_the_future);
        end >= bounds.bytes || entries >= bounds.entries || aged
    }

    /// One round over all classes. What went, or failed to.
    pub(super) fn round(&self) -> Vec<Going> {
        self.sample_rates();
        let _one = lock(&self.retention.round);
        self.clear_trash(&left_in_trash(&self.dir));
        let now = self.age_clock().look(&self.metrics);
        let mut all = Vec::new();
        for class in self.classes.all() {
            match self.plan(class, self.classes.keep(class), now) {
                Ok(plan) => all.extend(self.carry_out(plan)),
                Err(error) => tracing::error!(%error, "could not tell what has to go"),
            }
        }
        all.extend(self.make_room());
        self.report(&all);
        all
    }

    /// What exceeds bounds, the oldest first.
    pub(super) fn plan(
        &self,
        class: Class,
        keep: Keep,
        now: Micros,
    ) -> Result<Vec<(Arc<Segment>, Going)>, StoreError> {
        let mut extents = Vec::new();
        for segment in self.segments(class) {
            let extent = segment.whole_extent();
            extents.push((segment, extent));
        }
        let oldest = self.age_of(keep).map(|age| now.0.saturating_sub(micros(age)));
        let mut bytes: u64 = extents.iter().map(|(_, extent)| extent.disk_bytes).sum();
        let mut entries: u64 = extents.iter().map(|(_, extent)| extent.entries).sum();
        let newest = arrivals(&extents, now);
        let mut plan = Vec::new();
        for ((segment, extent), newest) in extents.into_iter().zip(newest) {
            if !segment.is_finished() {
                continue;
            }
            let reason = if oldest.is_some_and(|oldest| newest.0 < oldest) {
                Reason::Age
            } else if keep.bytes.is_some_and(|bound| bytes > bound) {
                Reason::Bytes
            } else if keep.entries.is_some_and(|bound| entries > bound) {
                Reason::Entries
            } else {
                continue;
            };
            let planned = self.going(segment, extent, reason)?;
            // What is held stays, and so the next ones have to make up for it.
            if planned.1.fate == Fate::Goes {
                bytes = bytes.saturating_sub(extent.disk_bytes);
                entries = entries.saturating_sub(extent.entries);
            }
            plan.push(planned);
        }
        Ok(plan)
    }

    fn going(
        &self,
        segment: Arc<Segment>,
        extent: Extent,
        reason: Reason,
    ) -> Result<(Arc<Segment>, Going), StoreError> {
        let held = self.held_in(&segment)?;
        let fate = if held > 0 {
            Fate::Held(held)
        } else if self.has_newest_register(&segment) {
            Fate::Register
        } else {
            Fate::Goes
        };
        let class = segment.class_name.clone();
        let going = Going { class, segment: segment.first_seq, extent, reason, fate };
        Ok((segment, going))
    }

    /// Carries out the plan for one class.
    fn carry_out(&self, plan: Vec<(Arc<Segment>, Going)>) -> Vec<Going> {
        let mut done: Vec<Going> = Vec::new();
        let mut trash = Vec::new();
        for (segment, mut going) in plan {
            if done.last().is_some_and(Going::stands_in_the_way) {
                break;
            }
            if going.fate == Fate::Goes {
                going.fate = match self.drop_segment(&segment) {
                    Ok(Some(dropped)) => {
                        trash.push(dropped);
                        Fate::Gone
                    }
                    Ok(None) => Fate::Busy,
                    Err(error) => Fate::Failed(error.to_string()),
                };
            }
            done.push(going);
        }
        self.clear_trash(&trash);
        done
    }

    /// Asks the guard after a commit; the retainer, which may be asleep, hears of it if there is little room.
    pub(super) fn look_for_room(&self) {
        let before = self.guard.room();
        if self.guard.look_in_time() != Room::Ample && before == Room::Ample {
            self.retention.nudge();
        }
    }

    /// While the disk is nearly full: segments go in the order in which the classes are given up.
    fn make_room(&self) -> Vec<Going> {
        let mut done: Vec<Going> = Vec::new();
        let look = self.guard.look();
        if look.room == Room::Ample {
            return done;
        }
        // A file system may show what became free a moment later; that is no reason to give up more.
        let mut expected = look.free;
        for class in self.classes.given_up() {
            for segment in self.segments(class) {
                if !segment.is_finished() {
                    continue;
                }
                let extent = segment.whole_extent();
                // Nobody here keeps the segment: its open file would keep its bytes on the disk.
                let went = match self.going(segment, extent, Reason::Space) {
                    Ok(planned) => self.carry_out(vec![planned]),
                    Err(error) => {
                        tracing::error!(%error, "could not tell whether a segment may go");
                        continue;
                    }
                };
                if went.iter().any(|going| going.fate == Fate::Gone) {
                    expected = expected.saturating_add(extent.disk_bytes);
                }
                let stuck = went.iter().any(Going::stands_in_the_way);
                done.extend(went);
                if stuck {
                    break;
                }
                if self.guard.look().free.max(expected) >= look.low {
                    return done;
                }
            }
        }
        done
    }

    /// Does Thorium's register lie in it as saved last? Without it an older one would be taken for the last.
    fn has_newest_register(&self, segment: &Segment) -> bool {
        let newest = || self.all_segments().iter().filter_map(|segment| segment.register()).max();
        segment.register().is_some_and(|register| Some(register) == newest())
    }

    /// How many held jobs have entries in it.
    fn held_in(&self, segment: &Arc<Segment>) -> Result<usize, StoreError> {
        let mut held = 0;
        for (key, jid) in self.holds.jids() {
            held += usize::from(self.has_entries_of(segment, key, &jid)?);
        }
        Ok(held)
    }

    fn report(&self, all: &[Going]) {
        let metrics = &self.metrics;
        let mut dropped: HashMap<(Arc<str>, &str), (u64, u64, u64)> = HashMap::new();
        for going in all {
            match &going.fate {
                Fate::Gone => {
                    metrics.segments_dropped.add(1);
                    metrics.entries_dropped.add(going.extent.entries);
                    let sums = dropped.entry((going.class.clone(), going.reason.name())).or_default();
                    *sums = (sums.0 + 1, sums.1 + going.extent.entries, sums.2 + going.extent.disk_bytes);
                }
                Fate::Failed(error) => {
                    metrics.drops_failed.add(1);
                    tracing::error!(class = %going.class, segment = going.segment.0, %error, "a segment could not go");
                }
                Fate::Goes | Fate::Held(_) | Fate::Register | Fate::Busy => {}
            }
        }
        for ((class, reason), (segments, entries, bytes)) in dropped {
            tracing::info!(%class, reason, segments, entries, bytes, "retention");
        }
    }
}

/// What `prune` is asked for.
#[derive(Debug, Clone, Default)]
pub struct PruneWish {
    /// This class only.
    pub class: Option<String>,
    /// These bounds instead of the class's own.
    pub keep: Option<Keep>,
    /// Only say what would go.
    pub dry_run: bool,
}

impl Store {
    /// Takes Salt's word on how long jobs are kept (0: for ever), if it says so, and asks for a round.
    pub fn salt_says(&self, keep_jobs_seconds: Option<u64>) {
        if let Some(seconds) = keep_jobs_seconds {
            self.0.retention.salt_says(seconds, self.0.clock.monotonic());
        }
        self.0.retention.nudge();
    }

    /// Lets go of what exceeds bounds, now, or says what would go, by the wall clock. Fails if there is no such class. If
    /// the configured bounds of all classes are meant, the wall clock is confirmed (see `age_clock`).
    pub fn prune(&self, wish: &PruneWish) -> Result<Vec<Going>, StoreError> {
        let shared = &self.0;
        let classes: Vec<Class> = match &wish.class {
            Some(name) => vec![shared.classes.find(name).ok_or_else(|| {
                let known: Vec<_> = shared.classes.all().map(|class| shared.classes.name(class)).collect();
                StoreError::Refused(format!("there is no class {name:?}; there are {}", known.join(", ")))
            })?],
            None => shared.classes.all().collect(),
        };
        let _one = lock(&shared.retention.round);
        if !wish.dry_run {
            shared.clear_trash(&left_in_trash(&shared.dir));
        }
        // Whoever asks for this knows what time it is.
        let now = shared.clock.now();
        if !wish.dry_run && wish.class.is_none() && wish.keep.is_none() {
            shared.age_clock().confirm();
        }
        let mut all = Vec::new();
        for class in classes {
            let plan = shared.plan(class, wish.keep.unwrap_or_else(|| shared.classes.keep(class)), now)?;
            if wish.dry_run {
                all.extend(plan.into_iter().map(|(_, going)| going));
            } else {
                all.extend(shared.carry_out(plan));
            }
        }
        if !wish.dry_run {
            shared.report(&all);
            shared.guard.look();
        }
        Ok(all)
    }

    /// Holds a job: its entries stay. Durable when it returns.
    pub fn hold(&self, jid: &str, reason: &str) -> Result<Hold, StoreError> {
        // Not in the middle of a round, which may have decided about the job's segments.
        let _one = lock(&self.0.retention.round);
        self.0.holds.hold(jid, reason, self.0.clock.now())
    }

    /// Lets go of a job; false if it was not held. Durable when it returns.
    pub fn release(&self, jid: &str) -> Result<bool, StoreError> {
        self.0.holds.release(jid)
    }

    /// The jobs that are held.
    pub fn holds(&self) -> Vec<Hold> {
        self.0.holds.all()
    }
}

impl Shared {
    /// Does a segment have entries of this job?
    fn has_entries_of(&self, segment: &Arc<Segment>, key: JidKey, jid: &str) -> Result<bool, StoreError> {
        if segment.facts().is_some_and(|facts| !facts.may_hold(key)) {
            return Ok(false);
        }
        for place in self.ask(segment, |index| index.places(key), |index| index.places(key))? {
            if let Some(view) = self.block(segment, place.block)? {
                let (rows, at) = (view.rows(), usize::from(place.at));
                if at < rows.len() && rows.jid(at) == jid {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Entries written to a class since the start.
    pub(super) fn count_written(&self, class: Class, entries: u64) {
        if let Some(written) = self.written.get(class.index()) {
            written.fetch_add(entries, Ordering::Relaxed);
        }
    }
}
