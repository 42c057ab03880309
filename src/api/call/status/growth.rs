//! Forecast of disk usage: each class grows as it did in the last day, until its own limits stop it.
//!
//! A day, because the minutes of an import or of a nightly run would make a forecast of nothing. In its
//! first day a store is not extrapolated either: it has grown by what it holds.

use crate::base::clock::Micros;
use crate::store::stats::ClassStats;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClassGrowth {
    /// Bytes that the last day added.
    pub(super) per_day: u64,
    /// Bytes until the limits of the class stop its growth; `None` without limits.
    pub(super) room: Option<u64>,
}

const DAY_S: f64 = 86_400.0;

impl ClassGrowth {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bytes, not negative; the largest number for the rest"
    )]
    pub(super) fn of(class: &ClassStats, now: Micros) -> Self {
        let usage = &class.segment_usage;
        let entry_bytes = if usage.entries == 0 {
            0.0
        } else {
            usage.disk_bytes as f64 / usage.entries as f64
        };

        let per_second = class.bytes_of_day as f64 / DAY_S;
        let by_age = class.age.map(|age| {
            // The age of the oldest entry. A clock that was ahead may have dated it later than now.
            let held =
                u64::try_from(now.0.saturating_sub(usage.at_min.0)).unwrap_or(0) as f64 / 1e6;
            let full = usage.entries == 0 || held >= age.as_secs_f64();
            // Once the oldest entries expire, the class grows only if the last day was above the
            // average of its whole age.
            if full {
                0.0_f64.max(per_second * age.as_secs_f64() - usage.disk_bytes as f64)
            } else {
                per_second * (age.as_secs_f64() - held)
            }
        });

        let by_bytes = class
            .keep
            .bytes
            .map(|bytes| bytes.saturating_sub(usage.disk_bytes) as f64);
        let by_entries = class
            .keep
            .entries
            .map(|entries| entries.saturating_sub(usage.entries) as f64 * entry_bytes);

        // The first limit that is reached stops the growth.
        let room = [by_age, by_bytes, by_entries]
            .into_iter()
            .flatten()
            .reduce(f64::min);

        Self {
            per_day: class.bytes_of_day,
            room: room.map(|room| room as u64),
        }
    }
}

/// Days until classes have grown by `free` bytes together; `None` if their limits stop them before.
pub(super) fn days_left(classes: &[ClassGrowth], mut free: u64) -> Option<u64> {
    // The classes that still grow, by the time at which their limits stop them.
    let days = |class: &ClassGrowth| {
        class
            .room
            .map_or(f64::INFINITY, |room| room as f64 / class.per_day as f64)
    };

    let mut growing: Vec<ClassGrowth> = classes
        .iter()
        .filter(|class| class.per_day > 0)
        .copied()
        .collect();
    growing.sort_by(|a, b| days(a).total_cmp(&days(b)));

    let mut passed = 0.0;
    // The classes before this one have reached their limits and grow no more.
    for (n, class) in growing.iter().enumerate() {
        let per_day: u64 = growing.iter().skip(n).map(|class| class.per_day).sum();

        let until = days(class);
        let left = free as f64 / per_day as f64;
        // The space ends before this class reaches its limit.
        if passed + left <= until {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "days, not negative"
            )]
            return Some((passed + left) as u64);
        }

        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "less than `free`"
        )]
        let used = ((until - passed) * per_day as f64) as u64;

        free = free.saturating_sub(used);
        passed = until;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_classes_stop_their_growth() {
        let class = |per_day, room| ClassGrowth { per_day, room };
        for (classes, free, days) in [
            (vec![], 100, None),
            (vec![class(0, None)], 100, None),
            (vec![class(10, None)], 100, Some(10)),
            (vec![class(10, Some(99))], 100, None),
            (vec![class(10, Some(100))], 100, Some(10)),
            // One stops after a day; the other uses the remaining 80 bytes alone.
            (vec![class(10, None), class(10, Some(10))], 100, Some(9)),
            (vec![class(10, Some(10)), class(10, Some(20))], 100, None),
            (vec![class(10, None)], 0, Some(0)),
        ] {
            assert_eq!(days_left(&classes, free), days, "{classes:?}");
        }
    }
}
