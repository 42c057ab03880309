//! The class limits in effect, and the limits of their active segments.
//!
//! # Invariant
//!
//! A class and its overflow together keep what is configured for the class, or more. No limit here
//! is shorter than the configured limit and what Salt keeps (see [`super::salt_keep`]).

use std::sync::Arc;
use std::time::Duration;

use super::salt_keep::{self, SaltKeeps};
use crate::class::{Class, Classes};
use crate::limits::Limits;
use crate::segment::Segment;
use crate::segment::list::Segments;
use saltcellar_base::clock::{Clock, micros};
use saltcellar_base::limits::{
    CLOCK_STEP, SEGMENT_AGE_MAX, SEGMENT_AGE_MIN, SEGMENT_BYTES_MIN, SEGMENT_ENTRIES_MIN,
    SEGMENTS_PER_BOUND,
};
use saltcellar_model::Keep;

/// Limits at which an active segment is finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentBounds {
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    /// Microseconds since the creation of its log.
    pub(crate) age: Option<i64>,
}

/// What each class keeps, by the configuration, Salt, and what is stored.
#[derive(Debug)]
pub(crate) struct KeepLimits {
    classes: Arc<Classes>,
    segments: Arc<Segments>,
    salt_keeps: Arc<SaltKeeps>,
    clock: Clock,
}

impl KeepLimits {
    pub(crate) fn new(
        classes: Arc<Classes>,
        segments: Arc<Segments>,
        salt_keeps: Arc<SaltKeeps>,
        clock: Clock,
    ) -> Self {
        Self {
            classes,
            segments,
            salt_keeps,
            clock,
        }
    }

    /// Time for which a class currently keeps its entries; `None` for forever.
    pub(crate) fn age_of(&self, keep: Keep) -> Option<Duration> {
        salt_keep::age_with(keep, self.salt_keeps.in_effect())
    }

    /// Whether Salt ever reported how long it keeps jobs.
    pub(crate) fn has_salt_keep(&self) -> bool {
        self.salt_keeps.was_reported()
    }

    /// A shorter time that waits for an administrator to accept it.
    pub(crate) fn shorter_age_of(&self, keep: Keep) -> Option<Duration> {
        let shorter = salt_keep::age_with(keep, Some(self.salt_keeps.shorter()?))?;
        self.age_of(keep)
            .is_none_or(|age| shorter < age)
            .then_some(shorter)
    }

    /// The limits of a class in effect: a class and its overflow share those that are configured.
    pub(crate) fn keep_of(&self, class: Class) -> Keep {
        let keep = self.classes.keep(class);
        // Only limits by bytes or entries are divided.
        let Some((proper, overflow)) = self.classes.pair_of(class) else {
            return keep;
        };

        let other = if class == overflow { proper } else { overflow };

        // What the other class really uses: a share that it does not need stays usable here.
        let mut used = (0_u64, 0_u64);
        for segment in self.segments.of(other) {
            let usage = segment.usage();
            used.0 = used.0.saturating_add(usage.disk_bytes);
            used.1 = used.1.saturating_add(usage.entries);
        }

        divided(keep, self.classes.share_percent(), class == overflow, used)
    }

    /// Limits of an active segment of the class: a fraction of the class's limits. Only whole
    /// segments are dropped: the smaller they are, the closer the class stays to its limits.
    pub(crate) fn segment_bounds(&self, class: Class, limits: &Limits) -> SegmentBounds {
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
    pub(crate) fn is_full(&self, segment: &Segment, end: u64, limits: &Limits) -> bool {
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
}

/// The limits of a class proper and of its overflow, which share those that are configured.
///
/// The overflow may use its share, or what the class leaves. The class may use the rest, which is
/// never less than everything but one share.
fn divided(keep: Keep, percent: u64, is_overflow: bool, other: (u64, u64)) -> Keep {
    let divide = |limit: u64, other: u64| {
        let share = u128::from(limit) * u128::from(percent) / 100;
        let share = u64::try_from(share).unwrap_or(limit);
        if is_overflow {
            // What the class leaves is not lost, even beyond the share.
            share.max(limit.saturating_sub(other))
        } else {
            // The class gives up at most the share.
            limit.saturating_sub(other.min(share))
        }
    };

    Keep {
        bytes: keep.bytes.map(|limit| divide(limit, other.0)),
        entries: keep.entries.map(|limit| divide(limit, other.1)),
        ..keep
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use saltcellar_model::Age;

    #[test]
    fn a_class_and_its_overflow_divide_the_limits() {
        let keep = Keep {
            age: Age::Forever,
            bytes: Some(100),
            entries: Some(1000),
        };
        let divide = |is_overflow, other| {
            let keep = divided(keep, 50, is_overflow, other);
            (keep.bytes.unwrap(), keep.entries.unwrap())
        };
        // The class may use everything while no minion is over its share, and always half of it.
        assert_eq!(divide(false, (0, 0)), (100, 1000));
        assert_eq!(divide(false, (30, 900)), (70, 500));
        // The overflow gets half, and what the class itself does not use.
        assert_eq!(divide(true, (90, 990)), (50, 500));
        assert_eq!(divide(true, (20, 100)), (80, 900));
    }
}
