//! What `store stats` shows: per class what is kept, how much room it takes, how fast it grows.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::age_clock::Step;
use super::error::StoreError;
use super::extent::Extent;
use super::guard::Look;
use super::retention::Fate;
use super::{Shared, Store};
use crate::clock::Micros;
use crate::limits::RATE_SAMPLES;
use crate::model::{Age, Keep, SeqNo};

/// A store in figures.
#[derive(Debug, Clone)]
pub struct StoreStats {
    /// Everything before is readable.
    pub head: SeqNo,
    /// Everything before survives a power cut.
    pub durable: SeqNo,
    /// Room on the disk.
    pub space: Look,
    /// A step of the wall clock that deletion by age does not trust yet.
    pub clock_step: Option<Step>,
    /// Jobs that are held.
    pub holds: usize,
    /// The classes.
    pub classes: Vec<ClassStats>,
}

/// A class in figures.
#[derive(Debug, Clone)]
pub struct ClassStats {
    /// Its name.
    pub name: Arc<str>,
    /// Does the configuration name it?
    pub configured: bool,
    /// Its segments.
    pub segments: usize,
    /// All of it; `jobs` counts a job once a segment.
    pub extent: Extent,
    /// Entries a second over the last minutes.
    pub rate: f64,
    /// Its bounds.
    pub keep: Keep,
    /// What its age bound comes to at the moment; `None` is for ever.
    pub age: Option<Duration>,
    /// The age bound is known: it is not Salt's, or Salt has reported it since the start.
    pub age_known: bool,
    /// Segments that would have gone, were it not for held jobs.
    pub held_segments: usize,
}

/// Counts of entries written, sampled at each round.
#[derive(Debug, Default)]
pub(super) struct Rates(Mutex<VecDeque<(Micros, Vec<u64>)>>);

impl Rates {
    fn sample(&self, now: Micros, written: Vec<u64>) {
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        samples.push_back((now, written));
        if samples.len() > RATE_SAMPLES {
            samples.pop_front();
        }
    }

    /// Entries a second of each class between the oldest sample and now.
    fn rates(&self, now: Micros, written: &[u64]) -> Vec<f64> {
        let samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((since, before)) = samples.front() else { return vec![0.0; written.len()] };
        let span = Duration::from_micros(u64::try_from(now.0.saturating_sub(since.0)).unwrap_or(0));
        if span < Duration::from_secs(1) {
            return vec![0.0; written.len()];
        }
        let grown = written.iter().zip(before).map(|(now, before)| now.saturating_sub(*before));
        grown.map(|n| Duration::from_secs(n).div_duration_f64(span)).collect()
    }
}

impl Shared {
    fn written(&self) -> Vec<u64> {
        self.written.iter().map(|n| n.load(Ordering::Relaxed)).collect()
    }

    /// Notes how much has been written so far.
    pub(super) fn sample_rates(&self) {
        self.rates.sample(self.clock.now(), self.written());
    }
}

impl Store {
    /// The store in figures.
    pub fn stats(&self) -> Result<StoreStats, StoreError> {
        let shared = &self.0;
        let now = shared.clock.now();
        let age_now = shared.age_clock().look(&shared.metrics);
        let mut rates = shared.rates.rates(now, &shared.written()).into_iter();
        let mut classes = Vec::new();
        for class in shared.classes.all() {
            let segments = shared.segments(class);
            let mut all = Extent::default();
            for (n, segment) in segments.iter().enumerate() {
                let part = segment.whole_extent();
                all = if n == 0 { part } else { all.joined(part) };
            }
            let keep = shared.classes.keep(class);
            let plan = shared.plan(class, keep, age_now)?;
            classes.push(ClassStats {
                name: shared.classes.name(class),
                configured: shared.classes.is_configured(class),
                segments: segments.len(),
                extent: all,
                rate: rates.next().unwrap_or(0.0),
                keep,
                age: shared.age_of(keep),
                age_known: keep.age != Age::Salt || shared.retention.salt_has_said(),
                held_segments: plan.iter().filter(|(_, going)| matches!(going.fate, Fate::Held(_))).count(),
            });
        }
        let durable = self.durable();
        let holds = shared.holds.all().len();
        let clock_step = shared.age_clock().step();
        Ok(StoreStats { head: durable, durable, space: shared.guard.look(), clock_step, holds, classes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_what_was_written_since_the_oldest_sample() {
        let rates = Rates::default();
        assert_eq!(rates.rates(Micros(5), &[7]), [0.0]);
        for n in 0..2 * RATE_SAMPLES as u64 {
            let written = n.saturating_sub(RATE_SAMPLES as u64) * 10;
            rates.sample(Micros(i64::try_from(n).unwrap() * 5_000_000), vec![written, 0]);
        }
        let last = 2 * RATE_SAMPLES as u64;
        let now = Micros(i64::try_from(last).unwrap() * 5_000_000);
        assert_eq!(rates.rates(now, &[last * 5, 0]), [2.0, 0.0]);
    }
}
