//! The state of the writing threads, as readers see it, and what they are told.
//!
//! # Invariant
//!
//! Reading it delays no writer: the appender stores one number per loop, and the committer takes
//! the lock only for a commit with a failed return.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::packed::FailedReturn;
use saltcellar_base::clock::Clock;

/// The state of the writing threads.
#[derive(Debug)]
pub(crate) struct WriterStatus {
    clock: Clock,
    /// Time of the appender's last iteration, microseconds of the monotonic clock.
    heartbeat: AtomicU64,
    /// Whether a reactor needs entries of kind [`saltcellar_model::Kind::SeenOnBus`].
    has_reactor: AtomicBool,
    /// Lock order: no other lock is taken under it.
    last_failed: Mutex<Option<FailedReturn>>,
}

impl WriterStatus {
    pub(crate) fn new(clock: Clock) -> Self {
        let status = Self {
            clock,
            heartbeat: AtomicU64::new(0),
            has_reactor: AtomicBool::new(false),
            last_failed: Mutex::default(),
        };
        status.beat();
        status
    }

    /// Shows that the appender is alive.
    pub(crate) fn beat(&self) {
        self.heartbeat.store(self.now(), Ordering::Relaxed);
    }

    /// Time since the appender's last iteration.
    pub(crate) fn beat_ago(&self) -> Duration {
        let last = self.heartbeat.load(Ordering::Relaxed);
        Duration::from_micros(self.now().saturating_sub(last))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.monotonic().as_micros()).unwrap_or(u64::MAX)
    }

    /// From now on, what a bus delivers after another source is stored again.
    pub(crate) fn note_reactor(&self) {
        self.has_reactor.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_reactor(&self) -> bool {
        self.has_reactor.load(Ordering::Relaxed)
    }

    pub(crate) fn note_failed(&self, failed: FailedReturn) {
        *self.last_failed.lock() = Some(failed);
    }

    pub(crate) fn last_failed(&self) -> Option<FailedReturn> {
        self.last_failed.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use saltcellar_base::clock::Micros;

    #[test]
    fn a_heartbeat_ages_until_the_next_one() {
        let clock = Clock::manual(Micros(1_000_000));
        let status = WriterStatus::new(clock.clone());
        assert_eq!(status.beat_ago(), Duration::ZERO);
        clock.wind(3_000_000);
        assert_eq!(status.beat_ago(), Duration::from_secs(3));
        status.beat();
        assert_eq!(status.beat_ago(), Duration::ZERO);
    }
}
