//! How much is written per second.
//!
//! # Invariant
//!
//! Counting costs the committer an addition per class and commit, and no lock. A rate never follows
//! from the wall clock, which may be set.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::class::Class;
use saltcellar_base::clock::Clock;
use saltcellar_base::limits::RATE_SAMPLES;
use saltcellar_base::metrics::Metrics;

/// Counts of written entries, sampled once per retention round.
#[derive(Debug)]
pub(crate) struct Rates {
    /// Entries written since the start, by class.
    written: Vec<AtomicU64>,
    samples: Samples,
    clock: Clock,
    metrics: Arc<Metrics>,
}

impl Rates {
    pub(crate) fn new(classes: usize, clock: Clock, metrics: Arc<Metrics>) -> Self {
        Self {
            written: (0..classes).map(|_| AtomicU64::new(0)).collect(),
            samples: Samples::default(),
            clock,
            metrics,
        }
    }

    /// Adds to the count of entries written to a class since the start.
    pub(crate) fn count(&self, class: Class, entries: u64) {
        if let Some(written) = self.written.get(class.index()) {
            written.fetch_add(entries, Ordering::Relaxed);
        }
    }

    pub(crate) fn sample(&self) {
        self.samples.add(self.clock.monotonic(), self.counts());
    }

    /// Entries per second over the last minutes: by class, then returns, then failed returns.
    pub(crate) fn per_second(&self) -> Vec<f64> {
        self.samples.rates(self.clock.monotonic(), &self.counts())
    }

    /// Written entries: by class, then returns, then failed returns.
    fn counts(&self) -> Vec<u64> {
        let by_class = self.written.iter().map(|n| n.load(Ordering::Relaxed));
        by_class
            .chain([
                self.metrics.returns_stored.get(),
                self.metrics.returns_failed.get(),
            ])
            .collect()
    }
}

/// Counts with the monotonic time, oldest first. Lock order: no other lock is taken under it.
#[derive(Debug, Default)]
struct Samples(Mutex<VecDeque<(Duration, Vec<u64>)>>);

impl Samples {
    fn add(&self, now: Duration, written: Vec<u64>) {
        let mut samples = self.0.lock();
        samples.push_back((now, written));
        if samples.len() > RATE_SAMPLES {
            samples.pop_front();
        }
    }

    /// Entries per second and class since the oldest sample.
    fn rates(&self, now: Duration, written: &[u64]) -> Vec<f64> {
        // No sample yet.
        let samples = self.0.lock();
        let Some((since, before)) = samples.front() else {
            return vec![0.0; written.len()];
        };

        let span = now.saturating_sub(*since);
        // Too short for a rate.
        if span < Duration::from_secs(1) {
            return vec![0.0; written.len()];
        }

        let grown = written
            .iter()
            .zip(before)
            .map(|(now, before)| now.saturating_sub(*before));
        grown
            .map(|n| Duration::from_secs(n).div_duration_f64(span))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_covers_the_time_since_the_oldest_sample() {
        let rates = Samples::default();
        assert_eq!(rates.rates(Duration::from_micros(5), &[7]), [0.0]);
        for n in 0..2 * RATE_SAMPLES as u64 {
            let written = n.saturating_sub(RATE_SAMPLES as u64) * 10;
            rates.add(Duration::from_secs(n * 5), vec![written, 0]);
        }
        let last = 2 * RATE_SAMPLES as u64;
        let now = Duration::from_secs(last * 5);
        assert_eq!(rates.rates(now, &[last * 5, 0]), [2.0, 0.0]);
    }
}
