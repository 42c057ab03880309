//! Throttles of rules: how often reactions may begin. Pure: whoever asks brings the time.

use std::collections::HashMap;
use std::sync::Arc;

use super::micros;
use crate::clock::Micros;
use crate::limits::REACTOR_ONCE_MAX;
use crate::model::{Rate, RuleOptions};

/// When something may happen next, by one number: the time at which all that has happened would have been spread evenly
/// (GCRA). A whole `times` may happen at once, after a pause. Another rate begins anew.
#[derive(Debug, Clone, Copy, Default)]
struct Spread {
    rate: Option<Rate>,
    even: i64,
}

impl Spread {
    /// Lets it happen now, or says when it may.
    fn take(&mut self, rate: Rate, now: Micros) -> Result<(), Micros> {
        let before = *self;
        let at = self.queue(rate, now);
        if at > now {
            *self = before;
            return Err(at);
        }
        Ok(())
    }

    /// Lets it happen as early as it may; when that is.
    fn queue(&mut self, rate: Rate, now: Micros) -> Micros {
        let per = i64::try_from(rate.per.as_micros()).unwrap_or(i64::MAX / 4).max(1);
        let each = (per / i64::from(rate.times.max(1))).max(1);
        let even = if self.rate == Some(rate) { self.even.max(now.0) } else { now.0 };
        *self = Self { rate: Some(rate), even: even.saturating_add(each) };
        Micros(even - (per - each)).max(now)
    }
}

#[derive(Debug, Default)]
struct OfRule {
    rate: Spread,
    /// In shadow, where nothing waits: what would be waiting.
    queue: Spread,
    budget: Spread,
    /// Minions whose first event has come: when, and until when no other counts.
    once: HashMap<String, (Micros, Micros)>,
}

/// What has happened, by rule.
#[derive(Debug, Default)]
pub struct Throttles(HashMap<Arc<str>, OfRule>);

/// May a reaction begin?
#[derive(Debug, PartialEq, Eq)]
pub enum Start {
    /// Now.
    Go,
    /// Not before then.
    At(Micros),
    /// Never: the rule has used up what it may.
    OverBudget,
    /// In shadow: too late to be the same as what Salt's reactor does at once.
    TooLate,
}

impl Throttles {
    fn of(&mut self, rule: &Arc<str>) -> &mut OfRule {
        if !self.0.contains_key(rule) {
            self.0.insert(rule.clone(), OfRule::default());
        }
        self.0.get_mut(rule).expect("it was just added")
    }

    /// Is an event that came `at` then the first of its minion in the rule's window? Remembers it if so.
    pub fn is_first(&mut self, options: &RuleOptions, minion: &str, at: Micros) -> bool {
        if options.once_per.is_none() {
            return true;
        }
        let once = &mut self.0.entry(options.rule.clone()).or_default().once;
        if once.get(minion).is_some_and(|(from, until)| *from <= at && at < *until) {
            return false;
        }
        if once.len() >= REACTOR_ONCE_MAX {
            once.retain(|_, (_, until)| at < *until);
        }
        if once.len() >= REACTOR_ONCE_MAX {
            // Forgetting means reacting once too often, which is better than never.
            once.clear();
        }
        self.note(options, minion, at);
        true
    }

    /// An event that came `at` then was the first of its minion.
    pub fn note(&mut self, options: &RuleOptions, minion: &str, at: Micros) {
        let Some(window) = options.once_per else { return };
        let once = &mut self.0.entry(options.rule.clone()).or_default().once;
        let until = Micros(at.0.saturating_add(micros(window)));
        // What is done late is no reason to forget what came later.
        if once.len() < REACTOR_ONCE_MAX && once.get(minion).is_none_or(|(from, _)| *from < at) {
            once.insert(minion.to_owned(), (at, until));
        }
    }

    /// Lets a reaction of a rule begin, or says why not.
    pub fn start(&mut self, rule: &Arc<str>, options: &RuleOptions, now: Micros) -> Start {
        if options.rate.is_none() && options.budget.is_none() {
            return Start::Go;
        }
        let of_rule = self.of(rule);
        if let Some(rate) = options.rate
            && let Err(at) = of_rule.rate.take(rate, now)
        {
            return Start::At(at);
        }
        match options.budget.map(|budget| of_rule.budget.take(budget, now)) {
            Some(Err(_)) => Start::OverBudget,
            _ => Start::Go,
        }
    }

    /// When a reaction would begin that comes now, if those before it had waited for their turn as well; `None` if it never would.
    pub fn would_start(&mut self, rule: &Arc<str>, options: &RuleOptions, now: Micros) -> Option<Micros> {
        if options.rate.is_none() && options.budget.is_none() {
            return Some(now);
        }
        let of_rule = self.of(rule);
        let at = options.rate.map_or(now, |rate| of_rule.queue.queue(rate, now));
        options.budget.is_none_or(|budget| of_rule.budget.take(budget, at).is_ok()).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: i64 = 1_000_000;

    fn options(change: impl FnOnce(&mut RuleOptions)) -> RuleOptions {
        let mut options = RuleOptions { rule: "a".into(), ..RuleOptions::default() };
        change(&mut options);
        options
    }

    fn rate(times: u32, seconds: u64) -> Rate {
        Rate { times, per: Duration::from_secs(seconds) }
    }

    #[test]
    fn a_rate_lets_a_burst_pass_and_then_one_by_one() {
        let mut throttles = Throttles::default();
        let options = options(|o| o.rate = Some(rate(4, 2)));
        let mut start = |at| throttles.start(&options.rule, &options, Micros(at));
        for _ in 0..4 {
            assert_eq!(start(0), Start::Go);
        }
        assert_eq!(start(0), Start::At(Micros(SECOND / 2)));
        assert_eq!(start(SECOND / 2), Start::Go);
        assert_eq!(start(SECOND / 2), Start::At(Micros(SECOND)));
        // Over any length of time no more than the rate and one burst.
        let went = (0..100_000).filter(|n| start(SECOND + n * 1_000) == Start::Go).count();
        assert!((200..=204).contains(&went), "{went}");
    }

    #[test]
    fn a_budget_that_is_used_up_lets_nothing_pass_until_time_has_gone_by() {
        let mut throttles = Throttles::default();
        let options = options(|o| o.budget = Some(rate(2, 60)));
        let mut start = |at| throttles.start(&options.rule, &options, Micros(at));
        assert_eq!(
            [start(0), start(0), start(0), start(SECOND)],
            [Start::Go, Start::Go, Start::OverBudget, Start::OverBudget]
        );
        assert_eq!([start(30 * SECOND), start(31 * SECOND)], [Start::Go, Start::OverBudget]);
    }

    #[test]
    fn who_does_not_wait_is_told_when_each_would_have_begun() {
        let mut throttles = Throttles::default();
        let options = options(|o| (o.rate, o.budget) = (Some(rate(2, 10)), Some(rate(3, 60))));
        let mut at = |now| {
            throttles.would_start(&options.rule, &options, Micros(now * SECOND)).map(|at| at.0 / SECOND)
        };
        assert_eq!([at(0), at(0), at(0), at(1)], [Some(0), Some(0), Some(5), None]);
        assert_eq!([at(30), at(30)], [Some(30), None]);
        // Nobody waits for what never waited.
        assert_eq!(
            throttles.start(&"a".into(), &RuleOptions { budget: None, ..options }, Micros(30 * SECOND)),
            Start::Go
        );
    }

    #[test]
    fn once_counts_by_minion_and_window() {
        let mut throttles = Throttles::default();
        let options = options(|o| o.once_per = Some(Duration::from_secs(10)));
        let mut first = |minion, at| throttles.is_first(&options, minion, Micros(at));
        assert_eq!([first("a", 0), first("a", 1), first("b", 1)], [true, false, true]);
        assert_eq!(
            [first("a", 10 * SECOND - 1), first("a", 10 * SECOND), first("a", 11 * SECOND)],
            [false, true, false]
        );
        for n in 0..2 * REACTOR_ONCE_MAX {
            throttles.is_first(&options, &n.to_string(), Micros(0));
        }
        assert!(throttles.0["a"].once.len() <= REACTOR_ONCE_MAX);
    }
}
