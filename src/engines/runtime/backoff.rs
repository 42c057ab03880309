//! Pauses between attempts, and the limit of a rate.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use crate::engines::settings::RetrySettings;
use crate::model::Rate;

/// The pauses of one run of failures: each is twice as long as the one before, up to a limit,
/// varied at random.
#[derive(Debug)]
pub(in crate::engines) struct Backoff {
    settings: RetrySettings,
    failures: u32,
}

impl Backoff {
    pub(in crate::engines) fn new(settings: RetrySettings) -> Self {
        Self {
            settings,
            failures: 0,
        }
    }

    /// The next pause, at least as long as the destination requests.
    pub(in crate::engines) fn next(&mut self, requested: Option<Duration>) -> Duration {
        // The keys of a `RandomState` are random.
        let random = RandomState::new().hash_one(self.failures) % 2_001;
        self.pause(requested, u32::try_from(random).unwrap_or(1_000))
    }

    /// `random` is from 0 to 2,000; 1,000 is no variation.
    fn pause(&mut self, requested: Option<Duration>, random: u32) -> Duration {
        let RetrySettings {
            backoff,
            max,
            jitter,
        } = self.settings;

        let doubled =
            // The shift is bounded, and `max` bounds the rest.
            backoff.saturating_mul(1_u32.checked_shl(self.failures.min(31)).unwrap_or(u32::MAX));

        self.failures = self.failures.saturating_add(1);
        // Jitter in both directions, so that sinks that failed together do not come back together.
        let permille = 1_000 - jitter * 10 + jitter * random / 100;
        let varied = doubled.min(max).saturating_mul(permille) / 1_000;

        requested.map_or(varied, |requested| varied.max(requested))
    }

    /// True if no pause of this run of failures has been taken yet.
    pub(in crate::engines) fn is_reset(&self) -> bool {
        self.failures == 0
    }

    pub(in crate::engines) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// A rate over time; the items of one period may come at once.
#[derive(Debug)]
pub(in crate::engines) struct Throttle {
    rate: Rate,
    /// One period after the time when the items so far would have passed evenly, by the monotonic
    /// clock.
    next: Duration,
}

impl Throttle {
    pub(in crate::engines) fn new(rate: Rate) -> Self {
        Self {
            rate,
            next: Duration::ZERO,
        }
    }

    /// The pause before this many items.
    pub(in crate::engines) fn pause(&mut self, now: Duration, items: usize) -> Duration {
        let items = u32::try_from(items).unwrap_or(u32::MAX);
        self.next =
            self.next.max(now) + self.rate.per.saturating_mul(items) / self.rate.times.max(1);
        self.next.saturating_sub(now + self.rate.per)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::word::Word as _;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_double_up_to_the_limit_and_vary_within_the_jitter() {
        let mut backoff = Backoff::new(RetrySettings {
            backoff: SECOND,
            max: 60 * SECOND,
            jitter: 20,
        });
        let pauses: Vec<_> = (0..8)
            .map(|_| backoff.pause(None, 1_000).as_secs())
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(backoff.pause(None, 0), 48 * SECOND);
        assert_eq!(backoff.pause(None, 2_000), 72 * SECOND);
        assert_eq!(backoff.pause(Some(100 * SECOND), 1_000), 100 * SECOND);
        (0..100).for_each(|_| assert!(backoff.next(None) <= 72 * SECOND));
        backoff.reset();
        assert_eq!(backoff.pause(Some(SECOND / 2), 1_000), SECOND);
        let mut exact = Backoff::new(RetrySettings {
            backoff: SECOND,
            max: SECOND,
            jitter: 0,
        });
        assert_eq!(exact.pause(None, 17), SECOND);
    }

    #[test]
    fn a_rate_lets_one_period_through_at_once_and_then_slows_down() {
        let mut throttle = Throttle::new(Rate::parse("10/10s").unwrap());
        let now = 100 * SECOND;
        assert_eq!(throttle.pause(now, 10), Duration::ZERO);
        assert_eq!(throttle.pause(now, 1), SECOND);
        assert_eq!(throttle.pause(now + SECOND, 2), 2 * SECOND);
        assert_eq!(throttle.pause(now + 60 * SECOND, 10), Duration::ZERO);
        // Right after the start of the process.
        let mut throttle = Throttle::new(Rate::parse("10/10s").unwrap());
        assert_eq!(
            [throttle.pause(SECOND, 10), throttle.pause(SECOND, 1)],
            [Duration::ZERO, SECOND]
        );
    }
}
