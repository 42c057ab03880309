//! Retention: drops whole finished segments, oldest first, when a limit of their class is exceeded.
//!
//! `segment::removal` describes how. If a segment cannot be dropped, newer ones of its class wait.
//!
//! # Criteria
//!
//! - age: the newest entry is older than the class keeps, by the age clock (see `age_clock`), which
//!   does not follow a wall clock that was set ahead. An arrival time that the segments of a class
//!   prove wrong is ignored (see `segment::usage`)
//! - bytes, entries: the class as a whole, including the active segment, exceeds its limit
//! - space: the disk is nearly full (see [`crate::store::free_space`]). Classes are emptied in the order of the
//!   configured list, each from its oldest segment; `events` and then `jobs` come last unless the
//!   list places them elsewhere
//!
//! Never dropped: the active segment, the segment with the last saved register of Thorium, and a
//! segment with entries of a held job, which stays whole and is reported. A pinned consumer keeps
//! what it has not processed, up to a limit and except for space. A job with entries in several
//! segments remains visible until the last of them is dropped.
//!
//! No limit becomes shorter by itself: a shorter `keep_jobs_seconds` of Salt waits for an
//! administrator (see `salt_keep`), a clock that was set ahead for a day or an administrator (see
//! `age_clock`). Only the configuration shortens one directly.

pub(in crate::store) mod age_clock;
pub mod hold;
pub(in crate::store) mod salt_keep;

pub use age_clock::age_last_run;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::error::StoreError;
use super::segment::Segment;
use super::{Store, StoreInner};
use crate::base::clock::{Micros, micros};
use crate::base::limits::{
    CLOCK_STEP, GUARD_POLL, GUARD_POLL_IDLE, RETENTION_ROUND, SEGMENT_AGE_MAX, SEGMENT_AGE_MIN,
    SEGMENT_BYTES_MIN, SEGMENT_ENTRIES_MIN, SEGMENTS_PER_BOUND,
};
use crate::base::named::named;
use crate::model::{Age, JidKey, Keep, SeqNo};
use crate::store::class::Class;
use crate::store::free_space::SpaceLevel;
use crate::store::retain::hold::Hold;
use crate::store::segment::removal::left_in_trash;
use crate::store::segment::usage::{SegmentUsage, arrivals};
use crate::store::segment::with_same_numbers;
use crate::store::write::shares::divided;

/// Why a segment is dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Reason {
    /// All its entries are older than the class keeps.
    #[default]
    Age,
    /// The class exceeds its limit of bytes.
    Bytes,
    /// The class exceeds its limit of entries.
    Entries,
    /// The disk is nearly full.
    Space,
}

named! {
    Reason {
        Age: "age",
        Bytes: "bytes",
        Entries: "entries",
        Space: "space",
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DropOutcome {
    Planned,
    Dropped,
    /// Kept: it has entries of this many held jobs.
    Held(usize),
    /// Kept: it has the last saved register of Thorium.
    Register,
    /// Kept: this pinned consumer has not processed it.
    Pinned(String),
    /// Kept for now: another thread works on it.
    Busy,
    Failed(String),
}

/// A planned drop of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedDrop {
    pub(crate) class: Arc<str>,
    /// First sequence number of the segment.
    pub(crate) segment: SeqNo,
    pub(crate) segment_usage: SegmentUsage,
    pub(crate) reason: Reason,
    pub(crate) outcome: DropOutcome,
}

impl PlannedDrop {
    /// Whether newer segments of the class must wait because this drop did not succeed.
    fn blocks_newer(&self) -> bool {
        matches!(self.outcome, DropOutcome::Busy | DropOutcome::Failed(_))
    }
}

/// State shared by the retention rounds.
#[derive(Debug, Default)]
pub(super) struct Retention {
    /// Held during a round: rounds are serialized.
    round: Mutex<()>,
    signals: Mutex<Signals>,
    wakeup: Condvar,
}

#[derive(Debug, Default)]
struct Signals {
    round: bool,
    stop: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wakeup {
    Timeout,
    RoundRequested,
    Stop,
}

/// Limits at which an active segment is finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentBounds {
    pub(super) bytes: u64,
    pub(super) entries: u64,
    /// Microseconds since the creation of its log.
    pub(super) age: Option<i64>,
}

impl Retention {
    pub(super) fn request_round(&self) {
        self.signals.lock().round = true;
        self.wakeup.notify_all();
    }

    /// Ends the retainer.
    pub(super) fn stop(&self) {
        self.signals.lock().stop = true;
        self.wakeup.notify_all();
    }

    /// Whether the retainer is to end.
    pub(super) fn is_stopping(&self) -> bool {
        self.signals.lock().stop
    }

    /// Waits for at most `pause`, or until a round or the end is requested.
    fn wait(&self, pause: Duration) -> Wakeup {
        let mut signals = self.signals.lock();

        let idle = |signals: &mut Signals| !signals.round && !signals.stop;
        self.wakeup.wait_while_for(&mut signals, idle, pause);

        let requested = std::mem::take(&mut signals.round);
        match signals.stop {
            true => Wakeup::Stop,
            false if requested => Wakeup::RoundRequested,
            false => Wakeup::Timeout,
        }
    }
}

/// The retainer's thread.
pub struct Retainer {
    pub(super) shared: Arc<StoreInner>,
}

impl Retainer {
    /// Runs rounds periodically and on request until the sealer has ended.
    pub fn run(self) {
        // What an earlier process left is removed before new drops, under the lock of a round.
        let shared = self.shared;
        {
            let _one = shared.retention.round.lock();
            shared.clear_trash(&left_in_trash(&shared.dir));
        }

        let mut last = shared.clock.monotonic();
        loop {
            let due_in = |last: Duration| {
                RETENTION_ROUND.saturating_sub(shared.clock.monotonic().saturating_sub(last))
            };

            // Other programs fill the disk, too; near the limit they are noticed sooner.
            let look = if shared.guard.room() == SpaceLevel::Ample {
                GUARD_POLL_IDLE
            } else {
                GUARD_POLL
            };
            let wakeup = shared.retention.wait(due_in(last).min(look));

            if wakeup == Wakeup::Stop {
                // Saved at the end, so that the next start knows how long the daemon was down.
                shared.age_clock().close();
                return;
            }

            if wakeup == Wakeup::RoundRequested || due_in(last).is_zero() {
                shared.round();
                last = shared.clock.monotonic();
            } else if shared.guard.check().room != SpaceLevel::Ample {
                // Between rounds only space is urgent.
                let _one = shared.retention.round.lock();
                let gone = shared.free_disk_space();
                shared.report(&gone);
            }
        }
    }
}

impl StoreInner {
    /// Time for which a class currently keeps its entries; `None` for forever.
    pub(super) fn age_of(&self, keep: Keep) -> Option<Duration> {
        salt_keep::age_with(keep, self.salt_keeps.in_effect())
    }

    /// A shorter time that waits for an administrator to accept it.
    pub(super) fn shorter_age_of(&self, keep: Keep) -> Option<Duration> {
        let shorter = salt_keep::age_with(keep, Some(self.salt_keeps.shorter()?))?;
        self.age_of(keep)
            .is_none_or(|age| shorter < age)
            .then_some(shorter)
    }

    /// The limits of a class in effect: a class and its overflow share those that are configured.
    pub(super) fn keep_of(&self, class: Class) -> Keep {
        let keep = self.classes.keep(class);
        // Only limits by bytes or entries are divided.
        let Some((proper, overflow)) = self.classes.pair_of(class) else {
            return keep;
        };

        let other = if class == overflow { proper } else { overflow };

        // What the other class really uses, so that a share that nobody needs is not lost.
        let mut used = (0_u64, 0_u64);
        for segment in self.segments(other) {
            let usage = segment.usage();
            used.0 = used.0.saturating_add(usage.disk_bytes);
            used.1 = used.1.saturating_add(usage.entries);
        }

        divided(keep, self.classes.share_percent(), class == overflow, used)
    }

    /// Tells the appender how well the classes are compressed, in which shares of minions are
    /// counted.
    pub(super) fn sample_compression(&self) {
        // Shares are counted in bytes as received, limits in bytes on disk.
        for (proper, _) in self.classes.overflows() {
            let (mut raw, mut disk) = (0_u64, 0_u64);
            for segment in self.segments(proper) {
                let usage = segment.usage();
                raw = raw.saturating_add(usage.raw_bytes);
                disk = disk.saturating_add(usage.disk_bytes);
            }
            self.shares.set_compression(proper, raw, disk);
        }
    }

    /// Limits of an active segment of the class: a fraction of the class's limits, so that dropping
    /// whole segments follows these closely.
    pub(super) fn segment_bounds(&self, class: Class, limits: &super::Limits) -> SegmentBounds {
        let keep = self.classes.keep(class);

        let part = |bound: Option<u64>, least: u64, most: u64| {
            bound.map_or(most, |bound| {
                (bound / SEGMENTS_PER_BOUND).max(least).min(most)
            })
        };

        let age = self.age_of(keep).map(|age| {
            let part = age / u32::try_from(SEGMENTS_PER_BOUND).unwrap_or(1);
            micros(part.clamp(SEGMENT_AGE_MIN, SEGMENT_AGE_MAX))
        });

        SegmentBounds {
            bytes: part(keep.bytes, SEGMENT_BYTES_MIN, limits.segment_bytes_max),
            entries: part(
                keep.entries,
                SEGMENT_ENTRIES_MIN,
                limits.segment_entries_max,
            ),
            age,
        }
    }

    /// Whether an active segment with a log of `end` bytes has reached its limits.
    pub(super) fn is_full(&self, segment: &Segment, end: u64, limits: &super::Limits) -> bool {
        let bounds = self.segment_bounds(segment.class, limits);
        let entries = segment.totals().entries;
        // An empty segment costs nothing, and finishing it would only make another one.
        if entries == 0 {
            return false;
        }

        // The age of the log, not of its entries: an entry from a spool may be days old.
        let age = self.clock.now().0.saturating_sub(segment.log().created().0);

        // The clock was set back: without this check, the segment would be finished late.
        let of_the_future = age < -micros(CLOCK_STEP);
        let aged = bounds.age.is_some_and(|most| age >= most || of_the_future);

        end >= bounds.bytes || entries >= bounds.entries || aged
    }

    /// Runs one round over all classes; returns the drops, including the failed ones.
    pub(super) fn round(&self) -> Vec<PlannedDrop> {
        // Before the lock: samples change nothing that a round decides on.
        self.sample_rates();
        self.sample_compression();

        let _one = self.retention.round.lock();

        self.clear_trash(&left_in_trash(&self.dir));
        // Once for all classes: they are compared with the same time.
        let now = self.age_clock().update(&self.metrics);

        let mut all = Vec::new();
        for class in self.classes.all() {
            // One class that cannot be planned must not stop the others.
            match self.plan(class, self.keep_of(class), now) {
                Ok(plan) => all.extend(self.carry_out(plan)),
                Err(error) => tracing::error!(%error, "cannot plan retention of a class"),
            }
        }

        // After the limits, which may already have made room.
        all.extend(self.free_disk_space());
        self.report(&all);
        all
    }

    /// Segments of a class that exceed its limits, oldest first.
    pub(super) fn plan(
        &self,
        class: Class,
        keep: Keep,
        now: Micros,
    ) -> Result<Vec<(Arc<Segment>, PlannedDrop)>, StoreError> {
        // From one list, so that sums and arrivals belong to the same segments.
        let mut usages = Vec::new();
        for segment in self.segments(class) {
            let segment_usage = segment.usage();
            usages.push((segment, segment_usage));
        }

        let oldest = self
            .age_of(keep)
            .map(|age| now.0.saturating_sub(micros(age)));

        let mut bytes: u64 = usages
            .iter()
            .map(|(_, segment_usage)| segment_usage.disk_bytes)
            .sum();
        let mut entries: u64 = usages
            .iter()
            .map(|(_, segment_usage)| segment_usage.entries)
            .sum();

        let newest = arrivals(&usages, now);

        let mut plan = Vec::new();

        // Oldest first, so a limit of bytes or entries is met by the oldest segments.
        for ((segment, segment_usage), newest) in usages.into_iter().zip(newest) {
            // Counted above, but the committer still writes to it.
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

            let planned = self.plan_drop(segment, segment_usage, reason)?;
            // A held segment stays, so newer ones must make up for it.
            if planned.1.outcome == DropOutcome::Planned {
                bytes = bytes.saturating_sub(segment_usage.disk_bytes);
                entries = entries.saturating_sub(segment_usage.entries);
            }
            plan.push(planned);
        }

        self.limit_pins(&mut plan);
        Ok(plan)
    }

    fn plan_drop(
        &self,
        segment: Arc<Segment>,
        segment_usage: SegmentUsage,
        reason: Reason,
    ) -> Result<(Arc<Segment>, PlannedDrop), StoreError> {
        let held = self.held_in(&segment)?;
        // Asked last: the answer of the consumers is needed only for a segment that would otherwise
        // go.
        let pinned = || {
            // A full disk would stop all consumers.
            let last = (reason != Reason::Space).then(|| segment.totals().last_seq)?;
            self.consumers.pinned(&segment.class_name, last)
        };

        let outcome = if held > 0 {
            DropOutcome::Held(held)
        } else if self.has_newest_register(&segment) {
            DropOutcome::Register
        } else if let Some(consumer) = pinned() {
            DropOutcome::Pinned(consumer)
        } else {
            DropOutcome::Planned
        };

        let class = segment.class_name.clone();
        let planned = PlannedDrop {
            class,
            segment: segment.first_seq,
            segment_usage,
            reason,
            outcome,
        };
        Ok((segment, planned))
    }

    /// Gives up the oldest of the segments that pinned consumers keep, beyond the limit of bytes.
    fn limit_pins(&self, plan: &mut [(Arc<Segment>, PlannedDrop)]) {
        // From the newest to the oldest, so it is the oldest that exceed the limit.
        let mut kept: u64 = 0;
        for (_, planned) in plan.iter_mut().rev() {
            if matches!(planned.outcome, DropOutcome::Pinned(_)) {
                kept = kept.saturating_add(planned.segment_usage.disk_bytes);
                if kept > self.pin_bytes_max {
                    planned.outcome = DropOutcome::Planned;
                }
            }
        }
    }

    /// Held during a round: decisions about segments that must not change meanwhile.
    pub(super) fn retention_round(&self) -> parking_lot::MutexGuard<'_, ()> {
        self.retention.round.lock()
    }

    /// Carries out the plan of one class.
    fn carry_out(&self, plan: Vec<(Arc<Segment>, PlannedDrop)>) -> Vec<PlannedDrop> {
        let mut done: Vec<PlannedDrop> = Vec::new();

        let mut trash = Vec::new();
        for (segment, mut planned) in plan {
            // Newer segments wait: without them, the older one would stand behind a gap.
            if done.last().is_some_and(PlannedDrop::blocks_newer) {
                break;
            }

            if planned.outcome == DropOutcome::Planned {
                // Gaps of consumers are recorded before the entries are gone, and taken back if
                // they stay.
                let noted = self.note_lost(&segment);
                let dropped = self.drop_segment(&segment);
                self.settle_lost(noted, matches!(dropped, Ok(Some(_))));
                planned.outcome = match dropped {
                    Ok(Some(dropped)) => {
                        trash.push(dropped);
                        DropOutcome::Dropped
                    }
                    Ok(None) => DropOutcome::Busy,
                    Err(error) => DropOutcome::Failed(error.to_string()),
                };
            }
            done.push(planned);
        }

        // Together: the state database is synced once for all of them.
        self.clear_trash(&trash);
        done
    }

    /// Checks the free space after a commit and wakes the retainer when it becomes short.
    pub(super) fn check_free_space(&self) {
        let before = self.guard.room();
        // Once per change: the retainer polls until there is space again.
        if self.guard.check_if_due() != SpaceLevel::Ample && before == SpaceLevel::Ample {
            self.retention.request_round();
        }
    }

    /// Drops segments while the disk is nearly full, in the configured order of classes.
    pub(super) fn free_disk_space(&self) -> Vec<PlannedDrop> {
        let mut done: Vec<PlannedDrop> = Vec::new();

        let status = self.guard.check();
        // The usual case.
        if status.room == SpaceLevel::Ample {
            return done;
        }

        // File systems may report freed space late; do not drop more because of that.
        let mut expected = status.free;
        for class in self.classes.drop_order() {
            for segment in self.segments(class) {
                if !segment.is_finished() {
                    continue;
                }
                let segment_usage = segment.usage();

                // Pass on the only reference: an open file would keep its bytes allocated.
                let drops = match self.plan_drop(segment, segment_usage, Reason::Space) {
                    Ok(planned) => self.carry_out(vec![planned]),
                    Err(error) => {
                        tracing::error!(%error, "cannot check whether a segment is held");
                        continue;
                    }
                };

                if drops
                    .iter()
                    .any(|planned| planned.outcome == DropOutcome::Dropped)
                {
                    expected = expected.saturating_add(segment_usage.disk_bytes);
                }

                let stuck = drops.iter().any(PlannedDrop::blocks_newer);
                done.extend(drops);
                if stuck {
                    break;
                }
                // Checked after every segment, so no more is dropped than needed.
                if self.guard.check().free.max(expected) >= status.low {
                    return done;
                }
            }
        }
        done
    }

    /// Whether the segment has the last saved register of Thorium. Without it an older one would
    /// appear to be the last.
    fn has_newest_register(&self, segment: &Segment) -> bool {
        let newest = || {
            self.all_segments()
                .iter()
                .filter_map(|segment| segment.register())
                .max()
        };
        segment
            .register()
            .is_some_and(|register| Some(register) == newest())
    }

    /// The number of held jobs with entries in the segment.
    pub(super) fn held_in(&self, segment: &Arc<Segment>) -> Result<usize, StoreError> {
        // Any job may be in the unreadable part.
        if self.holds.may_be_any() {
            return Ok(1);
        }

        let mut held = 0;
        for (key, jid) in self.holds.jids() {
            held += usize::from(with_same_numbers(|| {
                self.has_entries_of(segment, key, &jid)
            })?);
        }
        Ok(held)
    }

    fn report(&self, all: &[PlannedDrop]) {
        let metrics = &self.metrics;

        // One line per class and reason, not one per segment.
        let mut dropped: HashMap<(Arc<str>, &str), (u64, u64, u64)> = HashMap::new();
        for planned in all {
            match &planned.outcome {
                DropOutcome::Dropped => {
                    metrics.segments_dropped.add(1);
                    metrics.entries_dropped.add(planned.segment_usage.entries);
                    let totals = dropped
                        .entry((planned.class.clone(), planned.reason.name()))
                        .or_default();
                    *totals = (
                        totals.0 + 1,
                        totals.1 + planned.segment_usage.entries,
                        totals.2 + planned.segment_usage.disk_bytes,
                    );
                }
                DropOutcome::Failed(error) => {
                    metrics.drops_failed.add(1);
                    tracing::error!(class = %planned.class, segment = planned.segment.0, %error, "cannot drop a segment");
                }
                DropOutcome::Planned
                | DropOutcome::Held(_)
                | DropOutcome::Register
                | DropOutcome::Pinned(_)
                | DropOutcome::Busy => {}
            }
        }

        for ((class, reason), (segments, entries, bytes)) in dropped {
            tracing::info!(%class, reason, segments, entries, bytes, "segments dropped");
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct PruneOptions {
    /// This class only.
    pub(crate) class: Option<String>,
    /// Limits to apply instead of the class's own.
    pub(crate) keep: Option<Keep>,
    /// Accept the `keep_jobs_seconds` that Salt reported, although it is shorter.
    pub(crate) accept_salt: bool,
    /// Plan only.
    pub(crate) dry_run: bool,
}

impl Store {
    /// Takes Salt's `keep_jobs_seconds` (0: forever), if given, and requests a round.
    pub(crate) fn set_salt_keep(&self, keep_jobs_seconds: Option<u64>) {
        // A class may follow it, so a round applies it immediately.
        if let Some(seconds) = keep_jobs_seconds {
            self.0.salt_keeps.report(seconds, self.0.clock.monotonic());
        }
        self.0.retention.request_round();
    }

    /// Drops the segments that exceed their limits by the wall clock, or only plans it. Fails if
    /// the class does not exist. A real run with the configured limits of all classes confirms the
    /// wall clock (see `age_clock`).
    pub(crate) fn prune(&self, options: &PruneOptions) -> Result<Vec<PlannedDrop>, StoreError> {
        let shared = &self.0;
        let classes: Vec<Class> = match &options.class {
            Some(name) => vec![shared.classes.find(name).ok_or_else(|| {
                let known: Vec<_> = shared
                    .classes
                    .all()
                    .map(|class| shared.classes.name(class))
                    .collect();
                StoreError::Refused(format!(
                    "class {name:?} does not exist; classes: {}",
                    known.join(", ")
                ))
            })?],
            None => shared.classes.all().collect(),
        };

        let _one = shared.retention.round.lock();

        // From here on as in a round, which would otherwise decide about the same segments.
        if !options.dry_run {
            shared.clear_trash(&left_in_trash(&shared.dir));
        }
        // The administrator vouches for the wall clock. A run with other limits, or for one class,
        // does not vouch for what a round deletes.
        let now = shared.clock.now();
        if !options.dry_run && options.class.is_none() && options.keep.is_none() {
            shared.age_clock().confirm();
        }

        if !options.dry_run && options.accept_salt {
            shared.salt_keeps.accept();
        }

        let mut all = Vec::new();
        for class in classes {
            let mut keep = options.keep.unwrap_or_else(|| shared.keep_of(class));
            // A dry run shows what accepting would do. A real run has accepted it above.
            if let Some(age) = shared
                .shorter_age_of(keep)
                .filter(|_| options.dry_run && options.accept_salt)
            {
                keep.age = Age::For(age);
            }

            let plan = shared.plan(class, keep, now)?;
            if options.dry_run {
                all.extend(plan.into_iter().map(|(_, planned)| planned));
            } else {
                all.extend(shared.carry_out(plan));
            }
        }

        if !options.dry_run {
            shared.report(&all);
            shared.guard.check();
        }

        Ok(all)
    }

    /// Exempts a job from retention. Durable on return.
    pub(crate) fn hold(&self, jid: &str, reason: &str) -> Result<Hold, StoreError> {
        // Wait for the end of a round, which may have decided about the job's segments.
        let _one = self.0.retention_round();
        self.0.holds.hold(jid, reason, self.0.clock.now())
    }

    /// Ends the hold of a job; false if it was not held. Durable on return.
    pub(crate) fn release(&self, jid: &str) -> Result<bool, StoreError> {
        self.0.holds.release(jid)
    }

    pub(crate) fn holds(&self) -> Vec<Hold> {
        self.0.holds.all()
    }
}

impl StoreInner {
    /// Whether a segment has entries of the job.
    fn has_entries_of(
        &self,
        segment: &Arc<Segment>,
        key: JidKey,
        jid: &str,
    ) -> Result<bool, StoreError> {
        // Jids that the segment cannot hold need no look at its index.
        if segment
            .metadata()
            .is_some_and(|metadata| !metadata.may_hold(key))
        {
            return Ok(false);
        }

        // Keys of jids without a time may collide, so the texts are compared.
        for place in self.query_index(
            segment,
            |index| index.positions(key),
            |index| index.positions(key),
        )? {
            if let Some(view) = self.block(segment, place.block)? {
                let (rows, at) = (view.rows(), usize::from(place.at));
                if at < rows.len() && rows.jid(at) == jid {
                    return Ok(true);
                }
            }
        }

        Ok(false)
    }

    /// Adds to the count of entries written to a class since the start.
    pub(super) fn count_written(&self, class: Class, entries: u64) {
        if let Some(written) = self.written.get(class.index()) {
            written.fetch_add(entries, Ordering::Relaxed);
        }
    }
}
