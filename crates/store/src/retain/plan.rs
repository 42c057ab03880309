//! Which segments of a class are dropped: a decision from figures alone.
//!
//! # Invariant
//!
//! The oldest segments are dropped first, and no more of them than the limits need: a limit by
//! bytes or entries counts what stays, and if a segment beyond it must be kept, newer segments are
//! dropped instead. An active segment counts, and is never dropped.

use crate::segment::usage::SegmentUsage;
use saltcellar_base::clock::Micros;
use saltcellar_base::named::named;

/// Why a segment is dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reason {
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

/// What became of a planned drop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DropOutcome {
    /// Not tried yet.
    Planned,
    /// The segment was dropped.
    Dropped,
    /// Kept: it has entries of this many held jobs.
    Held(usize),
    /// Kept: it has the last saved register of Thorium.
    Register,
    /// Kept: this pinned consumer has not processed it.
    Pinned(String),
    /// Kept for now: another thread works on it.
    Busy,
    /// The error of the attempt.
    Failed(String),
}

/// What is known of a segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate<T> {
    pub(super) segment: T,
    pub(super) usage: SegmentUsage,
    /// Arrival time of its newest entry (see [`super::arrivals`]).
    pub(super) newest: Micros,
    /// Whether it is no longer written to.
    pub(super) is_finished: bool,
}

/// What a class may have.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ClassBounds {
    /// Entries that arrived before are too old.
    pub(super) oldest: Option<i64>,
    pub(super) bytes: Option<u64>,
    pub(super) entries: Option<u64>,
}

/// A segment beyond the limits of its class, and what becomes of it.
#[derive(Debug)]
pub(super) struct Choice<'a, T> {
    pub(super) candidate: &'a Candidate<T>,
    pub(super) reason: Reason,
    pub(super) outcome: DropOutcome,
}

/// The segments of a class that exceed its limits, oldest first. `candidates` are all of its
/// segments, oldest first. `outcome_of` returns what would become of a segment that exceeds a
/// limit.
pub(super) fn choose<T, E>(
    candidates: &[Candidate<T>],
    bounds: ClassBounds,
    outcome_of: impl Fn(&T, Reason) -> Result<DropOutcome, E>,
) -> Result<Vec<Choice<'_, T>>, E> {
    let sum =
        |of: fn(&SegmentUsage) -> u64| -> u64 { candidates.iter().map(|one| of(&one.usage)).sum() };
    let mut bytes = sum(|usage| usage.disk_bytes);
    let mut entries = sum(|usage| usage.entries);

    let mut chosen = Vec::new();
    // Oldest first, so a limit of bytes or entries is met by the oldest segments.
    for candidate in candidates {
        // Counted above, but the committer still writes to it.
        if !candidate.is_finished {
            continue;
        }

        let is_old = |oldest| candidate.newest.0 < oldest;
        let reason = if bounds.oldest.is_some_and(is_old) {
            Reason::Age
        } else if bounds.bytes.is_some_and(|bound| bytes > bound) {
            Reason::Bytes
        } else if bounds.entries.is_some_and(|bound| entries > bound) {
            Reason::Entries
        } else {
            continue;
        };

        let outcome = outcome_of(&candidate.segment, reason)?;
        // A held segment stays, so newer segments must make up for it. What pinned consumers keep is
        // allowed beyond the limits.
        if matches!(outcome, DropOutcome::Planned | DropOutcome::Pinned(_)) {
            bytes = bytes.saturating_sub(candidate.usage.disk_bytes);
            entries = entries.saturating_sub(candidate.usage.entries);
        }
        chosen.push(Choice {
            candidate,
            reason,
            outcome,
        });
    }
    Ok(chosen)
}

/// Gives up the oldest of the segments that pinned consumers keep, beyond `bytes_max`.
pub(super) fn limit_pins<T>(chosen: &mut [Choice<'_, T>], bytes_max: u64) {
    // From the newest to the oldest, so it is the oldest that exceed the limit.
    let mut kept: u64 = 0;
    for choice in chosen.iter_mut().rev() {
        if matches!(choice.outcome, DropOutcome::Pinned(_)) {
            kept = kept.saturating_add(choice.candidate.usage.disk_bytes);
            if kept > bytes_max {
                choice.outcome = DropOutcome::Planned;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Finished segments of 100 bytes and 10 entries, the newest entry of each one tick later.
    fn candidates(count: i64) -> Vec<Candidate<i64>> {
        let candidate = |n| Candidate {
            segment: n,
            usage: SegmentUsage {
                entries: 10,
                disk_bytes: 100,
                ..SegmentUsage::default()
            },
            newest: Micros(n),
            is_finished: true,
        };
        (0..count).map(candidate).collect()
    }

    /// What becomes of each candidate, and why; those with a number in `held` are kept.
    fn check(candidates: &[Candidate<i64>], bounds: ClassBounds, held: &[i64], expected: &str) {
        let outcome_of = |number: &i64, _| {
            let is_held = held.contains(number);
            Ok::<_, Infallible>(if is_held {
                DropOutcome::Held(1)
            } else {
                DropOutcome::Planned
            })
        };
        let chosen = choose(candidates, bounds, outcome_of).unwrap();
        let found: Vec<_> = chosen
            .iter()
            .map(|choice| {
                let mark = if choice.outcome == DropOutcome::Planned {
                    ""
                } else {
                    "!"
                };
                format!(
                    "{mark}{} {}",
                    choice.candidate.segment,
                    choice.reason.name()
                )
            })
            .collect();
        assert_eq!(found.join(", "), expected, "{bounds:?} {held:?}");
    }

    #[test]
    fn the_oldest_segments_go_until_the_limits_are_met() {
        let five = candidates(5);
        let none = ClassBounds::default();
        let oldest = |oldest| ClassBounds {
            oldest: Some(oldest),
            ..none
        };
        let bytes = |bytes| ClassBounds {
            bytes: Some(bytes),
            ..none
        };
        let entries = |entries| ClassBounds {
            entries: Some(entries),
            ..none
        };

        check(&five, none, &[], "");
        check(&five, oldest(0), &[], "");
        check(&five, oldest(2), &[], "0 age, 1 age");
        check(&five, bytes(500), &[], "");
        check(&five, bytes(499), &[], "0 bytes");
        check(&five, bytes(300), &[], "0 bytes, 1 bytes");
        check(&five, entries(31), &[], "0 entries, 1 entries");

        // Segments dropped for their age count for the other limits.
        let both = ClassBounds {
            oldest: Some(1),
            bytes: Some(300),
            ..none
        };
        check(&five, both, &[], "0 age, 1 bytes");

        // What is kept is made up for, but not by segments that are young enough.
        check(&five, bytes(300), &[0], "!0 bytes, 1 bytes, 2 bytes");
        check(&five, oldest(2), &[0], "!0 age, 1 age");
    }

    #[test]
    fn an_active_segment_counts_and_stays() {
        let mut all = candidates(3);
        all[2].is_finished = false;
        let bounds = ClassBounds {
            oldest: Some(9),
            bytes: Some(0),
            entries: Some(0),
        };
        check(&all, bounds, &[], "0 age, 1 age");
        let bounds = ClassBounds {
            bytes: Some(100),
            ..ClassBounds::default()
        };
        check(&all, bounds, &[], "0 bytes, 1 bytes");
    }

    #[test]
    fn pins_keep_the_newest_segments_within_their_limit() {
        let all = candidates(4);
        let bounds = ClassBounds {
            oldest: Some(9),
            ..ClassBounds::default()
        };
        let pinned_of = |bounds, limit| {
            let outcome_of = |number: &i64, _| {
                Ok::<_, Infallible>(if *number == 1 {
                    DropOutcome::Held(1)
                } else {
                    DropOutcome::Pinned("audit".to_owned())
                })
            };
            let mut chosen = choose(&all, bounds, outcome_of).unwrap();
            limit_pins(&mut chosen, limit);
            let is_pinned =
                |choice: &&Choice<'_, i64>| matches!(choice.outcome, DropOutcome::Pinned(_));
            let pinned = chosen.iter().filter(is_pinned);
            pinned
                .map(|choice| choice.candidate.segment)
                .collect::<Vec<_>>()
        };
        let pinned = |limit| pinned_of(bounds, limit);
        assert_eq!(pinned(300), [0, 2, 3]);
        assert_eq!(pinned(299), [2, 3]);
        assert_eq!(pinned(0), [0_i64; 0]);

        // Of a limit of bytes, what is beyond it is pinned, and nothing that is within.
        let of_bytes = |limit| {
            let bounds = ClassBounds {
                bytes: Some(350),
                ..ClassBounds::default()
            };
            pinned_of(bounds, limit)
        };
        assert_eq!(of_bytes(200), [0]);
        assert_eq!(of_bytes(99), [0_i64; 0]);
    }
}
