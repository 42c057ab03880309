//! Pauses between attempts that fail: each twice as long as the previous pause, up to a limit.

use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

/// The pause after this many failures before the last one.
pub fn doubled(first: Duration, max: Duration, before: u32) -> Duration {
    // A shift of 31 is the most that fits, and `max` bounds the rest.
    first.saturating_mul(1 << before.min(31)).min(max)
}

/// The pauses of one run of failures.
#[derive(Debug)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    /// Percentage by which a pause varies at random.
    jitter: u32,
    failures: u32,
}

impl Backoff {
    /// Pauses from `first` up to `max`, without variation.
    pub fn new(first: Duration, max: Duration) -> Self {
        Self {
            first,
            max,
            jitter: 0,
            failures: 0,
        }
    }

    /// Varies the pauses in both directions: clients that failed together must not return together.
    #[must_use]
    pub fn with_jitter(self, percent: u32) -> Self {
        Self {
            jitter: percent,
            ..self
        }
    }

    /// The pause after one more failure.
    #[expect(clippy::should_implement_trait, reason = "an endless sequence")]
    pub fn next(&mut self) -> Duration {
        // The keys of a `RandomState` are random.
        let random = RandomState::new().hash_one(self.failures) % 2_001;
        self.pause(u32::try_from(random).unwrap_or(1_000))
    }

    /// `random` is from 0 to 2,000; 1,000 is no variation.
    fn pause(&mut self, random: u32) -> Duration {
        let pause = doubled(self.first, self.max, self.failures);
        self.failures = self.failures.saturating_add(1);

        let permille = 1_000 - self.jitter * 10 + self.jitter * random / 100;
        pause.saturating_mul(permille) / 1_000
    }

    /// True if no pause of this run of failures has been taken yet.
    pub fn is_reset(&self) -> bool {
        self.failures == 0
    }

    /// Ends the run of failures: the next pause is the first one again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// When something that failed may be retried, for a loop that has other work meanwhile.
#[derive(Debug)]
pub struct Retry {
    backoff: Backoff,
    /// The time of the next attempt, and the pause before it.
    next: Option<(Instant, Duration)>,
}

impl Retry {
    /// Due now, for the first attempt.
    pub fn new(backoff: Backoff) -> Self {
        Self {
            backoff,
            next: None,
        }
    }

    /// Whether the pause after the last failure is over.
    pub fn is_due(&self) -> bool {
        self.next.is_none_or(|(at, _)| Instant::now() >= at)
    }

    /// The attempt failed: a pause begins.
    pub fn failed(&mut self) {
        let pause = self.backoff.next();
        self.next = Some((Instant::now() + pause, pause));
    }

    /// The attempt succeeded: the next one is due, and pauses begin with the shortest again.
    pub fn succeeded(&mut self) {
        self.backoff.reset();
        self.next = None;
    }

    /// The pause after the last failure; `None` after a success. For tests, as [`Self::come_due`].
    pub fn pause(&self) -> Option<Duration> {
        self.next.map(|(_, pause)| pause)
    }

    /// Ends the current pause; the next one is as long as it would have been.
    pub fn come_due(&mut self) {
        if let Some((at, _)) = &mut self.next {
            *at = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_double_up_to_the_limit_and_vary_within_the_jitter() {
        let mut backoff = Backoff::new(SECOND, 60 * SECOND).with_jitter(20);
        let pauses: Vec<_> = (0..8).map(|_| backoff.pause(1_000).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(backoff.pause(0), 48 * SECOND);
        assert_eq!(backoff.pause(2_000), 72 * SECOND);
        (0..100).for_each(|_| assert!(backoff.next() <= 72 * SECOND));

        backoff.reset();
        assert!(backoff.is_reset());
        assert_eq!(backoff.pause(1_000), SECOND);

        let mut exact = Backoff::new(SECOND, SECOND);
        assert_eq!(exact.pause(17), SECOND);
        assert_eq!(doubled(SECOND, Duration::MAX, u32::MAX), SECOND * (1 << 31));
    }

    #[test]
    fn an_attempt_is_due_after_its_pause_and_at_once_after_a_success() {
        let mut retry = Retry::new(Backoff::new(1_000 * SECOND, 4_000 * SECOND));
        assert!(retry.is_due());

        retry.failed();
        assert!(!retry.is_due());
        assert_eq!(retry.pause(), Some(1_000 * SECOND));
        retry.come_due();
        assert!(retry.is_due());
        retry.failed();
        assert_eq!(retry.pause(), Some(2_000 * SECOND));

        retry.succeeded();
        assert!(retry.is_due());
        retry.failed();
        assert_eq!(retry.pause(), Some(1_000 * SECOND));
    }
}
