//! Rates over time: how long something has to wait.

use std::time::Duration;

use crate::Rate;
use saltcellar_base::clock::{Micros, micros};

/// A rate limit by GCRA (ITU-T I.371), which stores one time: that at which the items so far would
/// have passed evenly. The items of one period may come together. No clock inside: the caller
/// passes the time, of any clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct Throttle {
    rate: Option<Rate>,
    even: i64,
}

impl Throttle {
    /// Takes a turn now; otherwise returns the time of the next one.
    pub fn take(&mut self, rate: Rate, now: Micros) -> Result<(), Micros> {
        let before = *self;
        let at = self.queue(rate, now, 1);
        if at > now {
            *self = before;
            return Err(at);
        }
        Ok(())
    }

    /// Reserves turns for this many items and returns the time of the last one. A changed rate
    /// restarts.
    pub fn queue(&mut self, rate: Rate, now: Micros, items: usize) -> Micros {
        // A quarter of the range at most: the sums below must fit.
        let per = micros(rate.per).clamp(1, i64::MAX / 4);
        let items = i64::try_from(items).unwrap_or(i64::MAX);
        let taken = (per.saturating_mul(items) / i64::from(rate.times.max(1))).max(1);

        let even = if self.rate == Some(rate) {
            self.even.max(now.0)
        } else {
            now.0
        };
        *self = Self {
            rate: Some(rate),
            even: even.saturating_add(taken),
        };

        // A burst of one period may pass that much before evenly spaced items.
        Micros(self.even.saturating_sub(per)).max(now)
    }

    /// The pause before this many items, by the monotonic clock.
    pub fn pause(&mut self, rate: Rate, now: Duration, items: usize) -> Duration {
        let now = Micros(micros(now));
        let at = self.queue(rate, now, items);
        Duration::from_micros(u64::try_from(at.0 - now.0).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::word::Word as _;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_rate_lets_one_period_through_at_once_and_then_slows_down() {
        let rate = Rate::parse("10/10s").unwrap();
        let mut throttle = Throttle::default();
        let now = 100 * SECOND;
        assert_eq!(throttle.pause(rate, now, 10), Duration::ZERO);
        assert_eq!(throttle.pause(rate, now, 1), SECOND);
        assert_eq!(throttle.pause(rate, now + SECOND, 2), 2 * SECOND);
        assert_eq!(throttle.pause(rate, now + 60 * SECOND, 10), Duration::ZERO);
        // Right after the start of the process.
        let mut throttle = Throttle::default();
        let pauses = [10, 1].map(|items| throttle.pause(rate, SECOND, items));
        assert_eq!(pauses, [Duration::ZERO, SECOND]);
        // As many as there are.
        let long = throttle.pause(rate, SECOND, usize::MAX);
        assert!(long > 1_000 * SECOND, "{long:?}");
    }
}
