//! Statistics for `store stats`: size, growth and limits per class.

use std::sync::Arc;
use std::time::Duration;

use crate::StoreReader;
use crate::error::StoreError;
use crate::free_space::SpaceStatus;
use crate::read::LogReader;
use crate::retain::age_clock::Step;
use crate::retain::{DropOutcome, PlannedDrop};
use crate::segment::Segment;
use crate::segment::usage::SegmentUsage;
use saltcellar_base::clock::Micros;
use saltcellar_base::limits::{HOURS_BLOCKS_MAX, SALT_KEEP_DEFAULT};
use saltcellar_model::{Age, Keep, SeqNo};

/// Sizes, rates and limits of a store.
#[derive(Debug, Clone)]
pub struct StoreStats {
    /// All entries below are readable.
    pub head: SeqNo,
    /// All entries below survive a power loss.
    pub durable: SeqNo,
    /// The space of its file system.
    pub space: SpaceStatus,
    /// A step of the wall clock that the age clock does not trust yet.
    pub clock_step: Option<Step>,
    /// Number of held jobs.
    pub holds: usize,
    /// Returns per second over the last minutes.
    pub returns_rate: f64,
    /// Failed returns per second over the last minutes.
    pub failed_rate: f64,
    /// Of each class that is configured or has segments.
    pub classes: Vec<ClassStats>,
}

/// Sizes, rates and limits of a class.
#[derive(Debug, Clone)]
pub struct ClassStats {
    /// Its name.
    pub name: Arc<str>,
    /// Whether the configuration contains it.
    pub configured: bool,
    /// Number of its segments.
    pub segments: usize,
    /// Resource use; a job counts once per segment.
    pub segment_usage: SegmentUsage,
    /// Entries per second over the last minutes.
    pub rate: f64,
    /// Bytes on disk of the entries of the last day. Unlike a rate it knows no bursts: imported
    /// entries keep their own timestamps, and a nightly run counts once.
    pub bytes_of_day: u64,
    /// Its limits.
    pub keep: Keep,
    /// The current age limit; `None` for forever.
    pub age: Option<Duration>,
    /// A shorter age that Salt reported and that waits to be accepted, and the entries that it
    /// would delete now.
    pub shorter: Option<(Duration, u64)>,
    /// The entries that the first report of Salt's default would delete now, if the configured age is
    /// Salt's and none was reported yet.
    pub first_report_drops: Option<u64>,
    /// Segments beyond the limits that are kept for held jobs.
    pub held_segments: usize,
}

const HOUR: i64 = 3_600_000_000;
const DAY: i64 = 24 * HOUR;

impl LogReader {
    /// Entries that arrived in each of the last `hours` hours, the latest last. The entries of a
    /// block count as spread evenly over its time; only the newest `HOURS_BLOCKS_MAX` blocks of a
    /// class are examined.
    pub fn entries_by_hour(&self, hours: usize) -> Result<Vec<u64>, StoreError> {
        let now = self.clock.now();
        let start = now
            .0
            .saturating_sub(i64::try_from(hours).unwrap_or(0).saturating_mul(HOUR));

        let mut counts = vec![0; hours];
        for class in self.classes.all() {
            let mut left = HOURS_BLOCKS_MAX;

            for segment in self.segments.of(class).iter().rev() {
                if left == 0 {
                    break;
                }
                // Stays closed: opening it reads its index. One before it may be newer, after an
                // import.
                if segment
                    .metadata()
                    .is_some_and(|metadata| metadata.totals.at_max.0 < start)
                {
                    continue;
                }

                let ready = self.blocks.indexes().ready(segment)?;
                let metas = ready.blocks().metas();
                for meta in metas.iter().rev().take(left) {
                    spread(&mut counts, start, (meta.at_min, meta.at_max), meta.count);
                }
                left = left.saturating_sub(metas.len());
            }
        }
        Ok(counts)
    }
}

/// Adds the entries of a block to the hours from `start` on.
fn spread(counts: &mut [u64], start: i64, (from, to): (Micros, Micros), count: u32) {
    // Both ends belong to the block.
    let span = (to.0.saturating_sub(from.0)).max(0).saturating_add(1);
    let mut begin = start;

    for hour in counts {
        let end = begin.saturating_add(HOUR);
        let common = end
            .min(from.0.saturating_add(span))
            .saturating_sub(begin.max(from.0));
        // In 128 bits: entries times microseconds exceed 64.
        if common > 0 {
            let share = i128::from(count) * i128::from(common) / i128::from(span);
            *hour = hour.saturating_add(u64::try_from(share).unwrap_or(0));
        }

        begin = end;
    }
}

/// The bytes of a segment's entries since a time. The entries count as spread evenly over its time.
fn bytes_since(usage: &SegmentUsage, since: Micros) -> u64 {
    if usage.entries == 0 || usage.at_max < since {
        return 0;
    }

    // Both ends belong to the segment.
    let span = usage.at_max.0.saturating_sub(usage.at_min.0).max(0);
    let recent = usage.at_max.0.saturating_sub(since.0).min(span);

    // In 128 bits: bytes times microseconds exceed 64.
    let [span, recent] = [span, recent].map(|time| i128::from(time) + 1);
    let bytes = i128::from(usage.disk_bytes) * recent / span;
    u64::try_from(bytes).unwrap_or(usage.disk_bytes)
}

/// The entries of the segments that a plan drops.
fn planned_entries(plan: &[(Arc<Segment>, PlannedDrop)]) -> u64 {
    plan.iter()
        .filter(|(_, planned)| planned.outcome == DropOutcome::Planned)
        .map(|(_, planned)| planned.segment_usage.entries)
        .sum()
}

impl StoreReader {
    /// Sizes, rates and limits.
    pub fn stats(&self) -> Result<StoreStats, StoreError> {
        let retention = &self.retention;
        let limits = retention.limits();
        let age_now = retention.age_now();
        let yesterday = Micros(self.clock.now().0.saturating_sub(DAY));

        let mut rates = self.rates.per_second().into_iter();
        let mut classes = Vec::new();
        for class in self.classes.all() {
            let segments = self.segments.of(class);
            let mut all = SegmentUsage::default();
            let mut bytes_of_day = 0_u64;
            for (n, segment) in segments.iter().enumerate() {
                let part = segment.usage();
                bytes_of_day = bytes_of_day.saturating_add(bytes_since(&part, yesterday));
                all = if n == 0 { part } else { all.joined(part) };
            }

            let keep = limits.keep_of(class);

            // Planned, not carried out: the figures show what retention would do now.
            let plan = retention.plan(class, keep, age_now)?;
            let drops = |age: Duration| {
                let keep = Keep {
                    age: Age::For(age),
                    ..keep
                };
                Ok::<_, StoreError>((age, planned_entries(&retention.plan(class, keep, age_now)?)))
            };
            let shorter = limits.shorter_age_of(keep).map(drops).transpose()?;

            let waits_for_salt = keep.age == Age::Salt && limits.age_of(keep).is_none();
            let is_unreported = waits_for_salt && !limits.has_salt_keep();
            let first = is_unreported.then_some(SALT_KEEP_DEFAULT).map(drops);
            let first_report_drops = first.transpose()?.map(|(_, entries)| entries);

            classes.push(ClassStats {
                name: self.classes.name(class),
                configured: self.classes.is_configured(class),
                segments: segments.len(),
                segment_usage: all,
                rate: rates.next().unwrap_or(0.0),
                bytes_of_day,
                keep,
                age: limits.age_of(keep),
                shorter,
                first_report_drops,
                held_segments: plan
                    .iter()
                    .filter(|(_, planned)| matches!(planned.outcome, DropOutcome::Held(_)))
                    .count(),
            });
        }

        let durable = self.durable();
        let holds = retention.holds().len();
        let clock_step = retention.clock_step();
        let [returns_rate, failed_rate] = [(); 2].map(|()| rates.next().unwrap_or(0.0));
        let space = self.guard.check();
        Ok(StoreStats {
            head: durable,
            durable,
            space,
            clock_step,
            holds,
            returns_rate,
            failed_rate,
            classes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_day_of_a_segment_counts_as_growth() {
        let usage = |from: i64, to: i64, entries| SegmentUsage {
            entries,
            disk_bytes: 3_000,
            at_min: Micros(from),
            at_max: Micros(to),
            ..SegmentUsage::default()
        };
        let since = Micros(10 * DAY);
        for (usage, bytes) in [
            // An import of the past, in whatever time it was written.
            (usage(0, 9 * DAY, 5), 0),
            (usage(11 * DAY - 1, 11 * DAY - 1, 5), 3_000),
            (usage(10 * DAY, 11 * DAY, 5), 3_000),
            // A month of which the last day is the thirtieth part.
            (usage(-19 * DAY, 11 * DAY, 5), 100),
            (usage(10 * DAY, 11 * DAY, 0), 0),
            // A clock that stepped back within the segment.
            (usage(11 * DAY, 11 * DAY - HOUR, 5), 3_000),
            (usage(i64::MIN, i64::MAX, u64::MAX), 2_999),
        ] {
            assert_eq!(bytes_since(&usage, since), bytes, "{usage:?}");
        }
    }

    #[test]
    fn the_entries_of_a_block_are_spread_over_its_hours() {
        let mut counts = [0; 3];
        spread(&mut counts, HOUR, (Micros(HOUR), Micros(HOUR)), 5);
        spread(
            &mut counts,
            HOUR,
            (Micros(2 * HOUR), Micros(4 * HOUR - 1)),
            10,
        );
        // Half of it is older, and one is newer.
        spread(&mut counts, HOUR, (Micros(0), Micros(2 * HOUR - 1)), 8);
        spread(&mut counts, HOUR, (Micros(4 * HOUR), Micros(5 * HOUR)), 7);
        assert_eq!(counts, [9, 5, 5]);
        // A clock that stepped back within a block.
        spread(&mut counts, HOUR, (Micros(HOUR + 1), Micros(HOUR)), 1);
        spread(
            &mut counts,
            HOUR,
            (Micros(i64::MIN), Micros(i64::MAX)),
            u32::MAX,
        );
        assert_eq!(counts, [10, 5, 5]);
    }
}
