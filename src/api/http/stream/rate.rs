//! The rate of a stream with `max_rate`: up to that many events in each second, the first ones;
//! later ones are skipped and counted.
//!
//! # Invariant
//!
//! Streams skip only at the start of a second, all to the same position ([`Marks`]): those with
//! equal filters and rates share their pieces from there on.

use std::time::Duration;

use parking_lot::Mutex;

use crate::model::SeqNo;

/// The events that a stream may still send in a second of the monotonic clock.
#[derive(Debug)]
pub(in crate::api::http) struct Budget {
    max_rate: usize,
    second: u64,
    left: usize,
}

impl Budget {
    pub(in crate::api::http) fn new(max_rate: usize, now: Duration) -> Self {
        Self {
            max_rate,
            second: now.as_secs(),
            left: max_rate,
        }
    }

    pub(in crate::api::http) fn left(&mut self, now: Duration) -> usize {
        if now.as_secs() != self.second {
            *self = Self::new(self.max_rate, now);
        }
        self.left
    }

    pub(in crate::api::http) fn spend(&mut self, events: usize, now: Duration) {
        self.left = self.left(now).saturating_sub(events);
    }
}

pub(in crate::api::http) fn until_next_second(now: Duration) -> Duration {
    Duration::from_secs(now.as_secs() + 1).saturating_sub(now)
}

/// The position to which streams skip in the current second. Lock order: no other lock is taken
/// under it.
#[derive(Debug, Default)]
pub(in crate::api::http) struct Marks(Mutex<(u64, SeqNo)>);

impl Marks {
    /// The position of this second. The first stream that asks sets it to the end of the log.
    pub(in crate::api::http) fn at(&self, now: Duration, durable: SeqNo) -> SeqNo {
        let mut latest = self.0.lock();
        if now.as_secs() > latest.0 || latest.1 == SeqNo::default() {
            *latest = (now.as_secs(), durable);
        }
        latest.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_budget_is_full_again_in_the_next_second() {
        let mut budget = Budget::new(10, at(5300));
        budget.spend(4, at(5400));
        assert_eq!(budget.left(at(5999)), 6);
        budget.spend(7, at(5999));
        assert_eq!((budget.left(at(5999)), budget.left(at(6000))), (0, 10));
        // Read before the second ended, sent after it.
        budget.spend(3, at(7001));
        assert_eq!(budget.left(at(7002)), 7);
        assert_eq!(
            (until_next_second(at(5300)), until_next_second(at(6000))),
            (at(700), at(1000))
        );
    }

    #[test]
    fn streams_skip_to_the_same_position_in_a_second() {
        let marks = Marks::default();
        assert_eq!(
            (marks.at(at(300), SeqNo(7)), marks.at(at(900), SeqNo(9))),
            (SeqNo(7), SeqNo(7))
        );
        assert_eq!(
            (marks.at(at(1000), SeqNo(12)), marks.at(at(1001), SeqNo(20))),
            (SeqNo(12), SeqNo(12))
        );
    }
}
