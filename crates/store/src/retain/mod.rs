//! Retention: drops whole finished segments, oldest first, when a limit of their class is exceeded.
//!
//! `segment::removal` describes how. If a segment cannot be dropped, newer segments of its class
//! wait.
//!
//! # Criteria
//!
//! - age: the newest entry is older than the class keeps, by the age clock (see `age_clock`), which
//!   does not follow a wall clock that was set ahead. An arrival time that the segments of a class
//!   prove wrong is ignored (see `retain::arrivals`)
//! - bytes, entries: the class as a whole, including the active segment, exceeds its limit
//! - space: the disk is nearly full (see [`crate::free_space`]). Classes are emptied in the order of the
//!   configured list, each from its oldest segment; `events` and then `jobs` come last unless the
//!   list places them elsewhere
//!
//! Never dropped: the active segment, the segment with the last saved register of Thorium, and a
//! segment with entries of a held job, which stays whole and is reported. A pinned consumer keeps
//! what it has not processed, up to a limit and except for space. A job with entries in several
//! segments remains visible until the last of them is dropped.
//!
//! # Invariant
//!
//! No limit becomes shorter by itself: a shorter `keep_jobs_seconds` of Salt waits for an
//! administrator (see `salt_keep`), a clock that was set ahead for a day or an administrator (see
//! `age_clock`). Only the configuration shortens one directly.

pub(crate) mod age_clock;
mod arrivals;
pub mod hold;
pub(crate) mod limits;
mod plan;
pub(crate) mod salt_keep;

pub use age_clock::age_last_run;
pub use plan::{DropOutcome, Reason};

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use age_clock::{AgeClock, Step};
use hold::{Hold, HoldChange, Holds, Merged};
use limits::KeepLimits;
use plan::{Candidate, ClassBounds, choose, limit_pins};
use salt_keep::SaltKeeps;

use super::error::StoreError;
use super::segment::Segment;
use crate::class::{Class, Classes};
use crate::free_space::{FreeSpaceGuard, SpaceLevel};
use crate::rates::Rates;
use crate::read::blocks::BlockReader;
use crate::read::consumer::{ConsumerRecord, Consumers};
use crate::retain::arrivals::arrivals;
use crate::rounds::{Rounds, Wakeup};
use crate::segment::list::Segments;
use crate::segment::removal::Drops;
use crate::segment::usage::SegmentUsage;
use crate::segment::with_same_numbers;
use crate::shares::ShareState;
use saltcellar_base::clock::{Clock, Micros, micros};
use saltcellar_base::limits::{GUARD_POLL, GUARD_POLL_IDLE, RETENTION_ROUND};
use saltcellar_base::metrics::Metrics;
use saltcellar_model::{Age, JidKey, Keep, SeqNo};

/// A planned drop of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedDrop {
    /// The class of the segment.
    pub class: Arc<str>,
    /// First sequence number of the segment.
    pub segment: SeqNo,
    /// What the segment has.
    pub segment_usage: SegmentUsage,
    /// The limit that it exceeds.
    pub reason: Reason,
    /// What became of the plan.
    pub outcome: DropOutcome,
}

impl PlannedDrop {
    fn new(
        segment: &Segment,
        segment_usage: SegmentUsage,
        reason: Reason,
        outcome: DropOutcome,
    ) -> Self {
        Self {
            class: segment.class_name.clone(),
            segment: segment.first_seq,
            segment_usage,
            reason,
            outcome,
        }
    }

    /// Whether newer segments of the class must wait because this drop did not succeed.
    fn blocks_newer(&self) -> bool {
        matches!(self.outcome, DropOutcome::Busy | DropOutcome::Failed(_))
    }
}

/// The retainer's thread.
pub struct Retainer {
    pub(super) retention: Arc<Retention>,
}

impl Retainer {
    /// Runs rounds periodically and on request until the sealer has ended.
    pub fn run(self) {
        let retention = self.retention;
        // What an earlier process left is removed before new drops, under the lock of a round.
        {
            let _one = retention.round.lock();
            retention.drops.clear_left();
        }

        let mut last = retention.clock.monotonic();
        loop {
            let due_in = |last: Duration| {
                RETENTION_ROUND.saturating_sub(retention.clock.monotonic().saturating_sub(last))
            };

            // Other programs also fill the disk; near the limit they are noticed sooner.
            let look = if retention.guard.room() == SpaceLevel::Ample {
                GUARD_POLL_IDLE
            } else {
                GUARD_POLL
            };
            let wakeup = retention.rounds.wait(due_in(last).min(look));

            if wakeup == Wakeup::Stop {
                // Saved at the end, because the next start needs it to know how long the daemon was
                // down.
                retention.age_clock.close();
                return;
            }

            if wakeup == Wakeup::RoundRequested || due_in(last).is_zero() {
                retention.run_round();
                last = retention.clock.monotonic();
            } else if retention.guard.check().room != SpaceLevel::Ample {
                // Between rounds only space is urgent.
                let _one = retention.round.lock();
                retention.drops.clear_left();
                let gone = retention.free_disk_space();
                retention.report(&gone);
            }
        }
    }
}

/// Decides which segments are dropped, and drops them.
#[derive(Debug)]
pub(crate) struct Retention {
    /// Held during a round: rounds are serialized, and what they decide by does not change
    /// meanwhile. Lock order: before all other locks of the store.
    pub(super) round: Mutex<()>,
    pub(super) rounds: Arc<Rounds>,
    pub(super) classes: Arc<Classes>,
    pub(super) segments: Arc<Segments>,
    pub(super) blocks: Arc<BlockReader>,
    pub(super) limits: Arc<KeepLimits>,
    pub(super) salt_keeps: Arc<SaltKeeps>,
    pub(super) holds: Holds,
    /// Until then nothing is dropped, because holds of other masters may be unknown. Monotonic. Lock order: no
    /// other lock is taken under it.
    pub(super) holds_due: Mutex<Option<Duration>>,
    pub(super) consumers: Arc<Consumers>,
    pub(super) age_clock: AgeClock,
    pub(super) guard: Arc<FreeSpaceGuard>,
    pub(super) drops: Drops,
    pub(super) shares: Arc<ShareState>,
    pub(super) rates: Arc<Rates>,
    /// See [`crate::Limits::pin_bytes_max`].
    pub(super) pin_bytes_max: u64,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
}

impl Retention {
    /// Runs one round over all classes; returns the drops, including failed drops.
    pub(crate) fn run_round(&self) -> Vec<PlannedDrop> {
        // Before the lock: samples change nothing that a round decides on.
        self.rates.sample();
        self.shares
            .sample_compression(&self.classes, &self.segments);

        let _one = self.round.lock();

        self.drops.clear_left();
        // Once for all classes: they are compared with the same time.
        let now = self.age_now();

        let mut all = Vec::new();
        for class in self.classes.all() {
            // A class that cannot be planned must not stop retention of the other classes.
            match self.plan(class, self.limits.keep_of(class), now) {
                Ok(plan) => all.extend(self.carry_out(plan)),
                Err(error) => {
                    tracing::error!(class = %self.classes.name(class), %error, "cannot plan retention of a class, nothing of it is deleted, retrying");
                }
            }
        }

        // After the limits, which may already have made room.
        all.extend(self.free_disk_space());
        self.report(&all);
        all
    }

    /// Segments of a class that exceed its limits, oldest first.
    pub(crate) fn plan(
        &self,
        class: Class,
        keep: Keep,
        now: Micros,
    ) -> Result<Vec<(Arc<Segment>, PlannedDrop)>, StoreError> {
        // From one list, because sums and arrivals must belong to the same segments.
        let of_class = self.segments.of(class).into_iter();
        let usages: Vec<_> = of_class
            .map(|segment| {
                let usage = segment.usage();
                (segment, usage)
            })
            .collect();

        let newest = arrivals(&usages, now);
        let candidates: Vec<_> = usages
            .into_iter()
            .zip(newest)
            .map(|((segment, usage), newest)| Candidate {
                usage,
                newest,
                is_finished: segment.is_finished(),
                segment,
            })
            .collect();

        let age = self.limits.age_of(keep);
        let bounds = ClassBounds {
            oldest: age.map(|age| now.0.saturating_sub(micros(age))),
            bytes: keep.bytes,
            entries: keep.entries,
        };
        let outcome_of = |segment: &Arc<Segment>, reason| self.outcome_of(segment, reason);
        let mut chosen = choose(&candidates, bounds, outcome_of)?;
        limit_pins(&mut chosen, self.pin_bytes_max);

        let planned = chosen.into_iter().map(|choice| {
            let Candidate { segment, usage, .. } = choice.candidate;
            (
                segment.clone(),
                PlannedDrop::new(segment, *usage, choice.reason, choice.outcome),
            )
        });
        Ok(planned.collect())
    }

    /// What would become of a segment that exceeds a limit.
    fn outcome_of(
        &self,
        segment: &Arc<Segment>,
        reason: Reason,
    ) -> Result<DropOutcome, StoreError> {
        let held = self.held_in(segment)?;
        // Asked last: the consumers matter only for a segment that would otherwise be dropped.
        let pinned = || {
            // A full disk would stop all consumers.
            let last = (reason != Reason::Space).then(|| segment.totals().last_seq)?;
            self.consumers.pinned(&segment.class_name, last)
        };

        Ok(if held > 0 {
            DropOutcome::Held(held)
        } else if self.awaits_holds() {
            DropOutcome::Busy
        } else if self.has_newest_register(segment) {
            DropOutcome::Register
        } else if let Some(consumer) = pinned() {
            DropOutcome::Pinned(consumer)
        } else {
            DropOutcome::Planned
        })
    }

    pub(crate) fn limits(&self) -> &KeepLimits {
        &self.limits
    }

    /// The time by which entries are too old.
    pub(crate) fn age_now(&self) -> Micros {
        self.age_clock.update(&self.metrics)
    }

    /// A step of the wall clock that is not trusted yet.
    pub(crate) fn clock_step(&self) -> Option<Step> {
        self.age_clock.step()
    }

    /// Held during a round: decisions about segments that must not change meanwhile.
    #[cfg(test)]
    pub(crate) fn lock_round(&self) -> parking_lot::MutexGuard<'_, ()> {
        self.round.lock()
    }

    /// Carries out the plan of one class.
    fn carry_out(&self, plan: Vec<(Arc<Segment>, PlannedDrop)>) -> Vec<PlannedDrop> {
        let mut done: Vec<PlannedDrop> = Vec::new();

        let mut dropped_now = Vec::new();
        for (segment, mut planned) in plan {
            // Newer segments wait: without them, the older one would stand behind a gap.
            if done.last().is_some_and(PlannedDrop::blocks_newer) {
                break;
            }

            if planned.outcome == DropOutcome::Planned {
                // Gaps of consumers are recorded before the entries are deleted, and taken back if
                // they stay.
                let noted = self.consumers.note_lost(&segment);
                let dropped = self.drops.drop_segment(&segment);
                self.consumers
                    .settle_lost(noted, matches!(dropped, Ok(Some(_))));
                planned.outcome = match dropped {
                    Ok(Some(dropped)) => {
                        dropped_now.push(dropped);
                        DropOutcome::Dropped
                    }
                    Ok(None) => DropOutcome::Busy,
                    Err(error) => DropOutcome::Failed(error.to_string()),
                };
            }
            done.push(planned);
        }

        // Together: the state database is synced once for all of them.
        self.drops.clear(dropped_now);
        done
    }

    /// Drops segments while the disk is nearly full, in the configured order of classes.
    pub(crate) fn free_disk_space(&self) -> Vec<PlannedDrop> {
        let mut done: Vec<PlannedDrop> = Vec::new();

        let status = self.guard.check();
        // The usual case.
        if status.room == SpaceLevel::Ample {
            return done;
        }

        // File systems may report freed space late; do not drop more because of that.
        let mut expected = status.free;
        for class in self.classes.drop_order() {
            for segment in self.segments.of(class) {
                if !segment.is_finished() {
                    continue;
                }
                let segment_usage = segment.usage();

                let drops = match self.outcome_of(&segment, Reason::Space) {
                    Ok(outcome) => {
                        let reason = Reason::Space;
                        let planned = PlannedDrop::new(&segment, segment_usage, reason, outcome);
                        // Pass on the only reference: an open file would keep its bytes allocated.
                        self.carry_out(vec![(segment, planned)])
                    }
                    Err(error) => {
                        tracing::error!(class = %segment.class_name, segment = segment.first_seq.0, %error, "cannot check whether a segment is held, keeping it, retrying");
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

    /// Whether the segment contains the last saved register of Thorium. Without it an older one would
    /// appear to be the last.
    fn has_newest_register(&self, segment: &Segment) -> bool {
        segment
            .register()
            .is_some_and(|register| Some(register) == self.segments.newest_register())
    }

    /// The number of held jobs with entries in the segment.
    pub(crate) fn held_in(&self, segment: &Arc<Segment>) -> Result<usize, StoreError> {
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
                    metrics.segment_drops_failed.add(1);
                    tracing::error!(class = %planned.class, segment = planned.segment.0, %error, "cannot delete an expired segment, it takes up space, retrying");
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

/// What [`Store::prune`](crate::Store::prune) drops.
#[derive(Debug, Clone, Default)]
pub struct PruneOptions {
    /// This class only.
    pub class: Option<String>,
    /// Limits to apply instead of the class's own.
    pub keep: Option<Keep>,
    /// Accept the `keep_jobs_seconds` that Salt reported, although it is shorter.
    pub accept_salt: bool,
    /// Plan only.
    pub dry_run: bool,
}

impl Retention {
    /// Takes Salt's `keep_jobs_seconds` (0: forever), if given, and requests a round.
    pub(crate) fn set_salt_keep(&self, keep_jobs_seconds: Option<u64>) {
        // A class may follow it, so a round applies it immediately.
        if let Some(seconds) = keep_jobs_seconds {
            self.salt_keeps.report(seconds, self.clock.monotonic());
        }
        self.rounds.request();
    }

    /// Drops the segments that exceed their limits by the wall clock, or only plans it. Fails if
    /// the class does not exist. A real run with the configured limits of all classes confirms the
    /// wall clock (see `age_clock`).
    pub(crate) fn prune(&self, options: &PruneOptions) -> Result<Vec<PlannedDrop>, StoreError> {
        let classes: Vec<Class> = match &options.class {
            Some(name) => vec![self.classes.find(name).ok_or_else(|| {
                let known: Vec<_> = self
                    .classes
                    .all()
                    .map(|class| self.classes.name(class))
                    .collect();
                StoreError::Refused(format!(
                    "class {name:?} does not exist; classes: {}",
                    known.join(", ")
                ))
            })?],
            None => self.classes.all().collect(),
        };

        if options.accept_salt {
            self.salt_keeps.ensure_reported()?;
        }

        let _one = self.round.lock();

        // From here on as in a round, which would otherwise decide about the same segments.
        if !options.dry_run {
            self.drops.clear_left();
        }
        // The administrator vouches for the wall clock. A run with other limits, or for one class,
        // does not vouch for what a round deletes.
        let now = self.clock.now();
        if !options.dry_run && options.class.is_none() && options.keep.is_none() {
            self.age_clock.confirm();
        }

        if !options.dry_run && options.accept_salt {
            self.salt_keeps.accept();
        }

        let mut all = Vec::new();
        for class in classes {
            let mut keep = options.keep.unwrap_or_else(|| self.limits.keep_of(class));
            // A dry run shows what accepting would do. A real run has accepted it above.
            if let Some(age) = self
                .limits
                .shorter_age_of(keep)
                .filter(|_| options.dry_run && options.accept_salt)
            {
                keep.age = Age::For(age);
            }

            let plan = self.plan(class, keep, now)?;
            if options.dry_run {
                all.extend(plan.into_iter().map(|(_, planned)| planned));
            } else {
                all.extend(self.carry_out(plan));
            }
        }

        if !options.dry_run {
            self.report(&all);
            self.guard.check();
        }

        Ok(all)
    }

    /// Exempts a job from retention. Durable on return.
    pub(crate) fn hold(&self, jid: &str, reason: &str) -> Result<Hold, StoreError> {
        // Wait for the end of a round, which may have decided about the job's segments.
        let _one = self.round.lock();
        self.holds.hold(jid, reason, self.clock.now())
    }

    /// Ends the hold of a job; false if it was not held. Durable on return.
    pub(crate) fn release(&self, jid: &str) -> Result<bool, StoreError> {
        self.holds.release(jid, self.clock.now())
    }

    /// As [`Holds::merge`].
    pub(crate) fn merge_holds(
        &self,
        own: &str,
        changes: Vec<HoldChange>,
    ) -> Result<Merged, StoreError> {
        // Wait for the end of a round, which may have decided about segments of these jobs.
        let _one = self.round.lock();
        self.holds.merge(own, changes)
    }

    /// As [`Holds::changes`].
    pub(crate) fn hold_changes(&self, own: &str) -> Vec<HoldChange> {
        self.holds.changes(own)
    }

    /// As [`Holds::version`].
    pub(crate) fn holds_version(&self) -> u64 {
        self.holds.version()
    }

    /// Drops nothing for this time, or until [`Self::has_all_holds`].
    pub(crate) fn await_holds(&self, time: Duration) {
        *self.holds_due.lock() = Some(self.clock.monotonic().saturating_add(time));
    }

    /// Ends [`Self::await_holds`].
    pub(crate) fn has_all_holds(&self) {
        *self.holds_due.lock() = None;
    }

    fn awaits_holds(&self) -> bool {
        let due = *self.holds_due.lock();
        due.is_some_and(|due| self.clock.monotonic() < due)
    }

    pub(crate) fn holds(&self) -> Vec<Hold> {
        self.holds.all()
    }

    /// Sets whether retention keeps unprocessed events of a consumer. Durable on return.
    pub(crate) fn pin_consumer(&self, name: &str, pin: bool) -> Result<ConsumerRecord, StoreError> {
        // Wait for the end of a round, which may have decided about segments.
        let _one = self.round.lock();
        self.consumers.pin(name, pin)
    }

    /// Whether a segment has entries of the job.
    fn has_entries_of(
        &self,
        segment: &Arc<Segment>,
        key: JidKey,
        jid: &str,
    ) -> Result<bool, StoreError> {
        // Any job may be in an unreadable part, of which the indexes know nothing, and a later read
        // may succeed.
        if segment.has_unreadable() {
            return Ok(true);
        }

        // The index is not read for jids that the segment cannot contain.
        if segment
            .metadata()
            .is_some_and(|metadata| !metadata.may_hold(key))
        {
            return Ok(false);
        }

        // Keys of jids without a time may collide, so the strings are compared.
        for place in self.blocks.indexes().query(
            segment,
            |index| index.positions(key),
            |index| index.positions(key),
        )? {
            let Some(view) = self.blocks.block(segment, place.block)? else {
                return Ok(true);
            };
            let rows = view.rows();
            let at = usize::from(place.at);
            if at < rows.len() && rows.jid(at) == jid {
                return Ok(true);
            }
        }

        Ok(false)
    }
}
