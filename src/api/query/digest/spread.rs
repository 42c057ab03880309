//! How long something took over many runs: enough to tell the median and a percentile, in little memory.

use std::sync::Arc;

/// The ratio between two neighbouring bounds: what is told is at most 5 % from the truth.
const RATIO: f64 = 1.1;
/// Durations from here on are told apart, in milliseconds.
const LEAST_MS: f64 = 0.1;

/// Durations by size, on a logarithmic scale.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spread {
    /// How many lie in each step of the scale, by step.
    steps: Vec<(u16, u32)>,
    pub(crate) runs: u64,
    pub(crate) total_ms: f64,
    pub(crate) longest: Option<Longest>,
}

/// The longest of the durations.
#[derive(Debug, Clone)]
pub(crate) struct Longest {
    pub(crate) ms: f64,
    pub(crate) minion: Arc<str>,
    pub(crate) jid: Arc<str>,
}

impl Spread {
    /// Adds a duration, which is finite, of a run.
    pub(crate) fn add(&mut self, ms: f64, minion: &Arc<str>, jid: &Arc<str>) {
        let ms = ms.max(0.0);
        self.add_steps(step_of(ms), 1);
        self.runs += 1;
        self.total_ms += ms;
        if self.longest.as_ref().is_none_or(|longest| ms > longest.ms) {
            let (minion, jid) = (minion.clone(), jid.clone());
            self.longest = Some(Longest { ms, minion, jid });
        }
    }

    /// Adds the durations of another spread.
    pub(crate) fn join(&mut self, other: &Self) {
        for (step, count) in &other.steps {
            self.add_steps(*step, *count);
        }
        self.runs += other.runs;
        self.total_ms += other.total_ms;
        if let Some(longest) = &other.longest
            && self.longest.as_ref().is_none_or(|own| longest.ms > own.ms)
        {
            self.longest = Some(longest.clone());
        }
    }

    fn add_steps(&mut self, step: u16, count: u32) {
        match self.steps.binary_search_by_key(&step, |(step, _)| *step) {
            Ok(at) => {
                if let Some((_, known)) = self.steps.get_mut(at) {
                    *known = known.saturating_add(count);
                }
            }
            Err(at) => self.steps.insert(at, (step, count)),
        }
    }

    /// The duration, in milliseconds, that this many percent of the runs do not exceed; at most the longest.
    pub(crate) fn percentile(&self, percent: u64) -> f64 {
        let wanted = (self.runs * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let step = self.steps.iter().find(|(_, count)| {
            seen += u64::from(*count);
            seen >= wanted
        });
        let middle = step.map_or(0.0, |(step, _)| middle_of(*step));
        self.longest
            .as_ref()
            .map_or(middle, |longest| middle.min(longest.ms))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bounded by `clamp`"
)]
fn step_of(ms: f64) -> u16 {
    if ms < LEAST_MS {
        return 0;
    }
    let steps = (ms / LEAST_MS).ln() / RATIO.ln();
    steps.clamp(0.0, f64::from(u16::MAX - 1)) as u16 + 1
}

/// The middle of a step, by its logarithm.
fn middle_of(step: u16) -> f64 {
    match step.checked_sub(1) {
        None => 0.0,
        Some(above) => LEAST_MS * RATIO.powf(f64::from(above) + 0.5),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spread(all: &[f64]) -> Spread {
        let (minion, jid) = ("web1".into(), "1".into());
        let mut spread = Spread::default();
        for ms in all {
            spread.add(*ms, &minion, &jid);
        }
        spread
    }

    proptest! {
        #[test]
        fn percentiles_are_near_the_exact_ones(mut all in proptest::collection::vec(0.0_f64..1e7, 1..200), percent in 1_u64..=100) {
            let found = spread(&all).percentile(percent);
            all.sort_by(f64::total_cmp);
            let at = (all.len() * usize::try_from(percent).unwrap()).div_ceil(100).max(1) - 1;
            let exact = all[at];
            prop_assert!((found - exact).abs() <= 0.05 * exact + LEAST_MS, "{found} for {exact}");
        }

        #[test]
        fn joined_spreads_are_the_spread_of_all(one in proptest::collection::vec(0.0_f64..1e5, 0..50), other in proptest::collection::vec(0.0_f64..1e5, 0..50)) {
            let mut joined = spread(&one);
            joined.join(&spread(&other));
            let all = spread(&[one, other].concat());
            prop_assert_eq!(joined.runs, all.runs);
            prop_assert_eq!(joined.percentile(95).to_bits(), all.percentile(95).to_bits());
            prop_assert_eq!(joined.longest.map(|l| l.ms.to_bits()), all.longest.map(|l| l.ms.to_bits()));
        }
    }

    #[test]
    fn extreme_durations_have_a_place() {
        let found = spread(&[0.0, 1e300, f64::MIN_POSITIVE, -5.0]);
        assert_eq!(found.runs, 4);
        assert!(found.percentile(100).is_finite());
        assert_eq!(found.percentile(25).to_bits(), 0.0_f64.to_bits());
    }
}
