//! Throttles of rules: limits on the start of reactions. No clock inside: the caller passes the
//! time.

use std::collections::HashMap;
use std::sync::Arc;

use crate::base::clock::Micros;
use crate::base::limits::REACTOR_ONCE_MAX;
use crate::model::{Rate, RuleOptions};

/// A rate limit by GCRA: `even` is the theoretical arrival time. A burst of `times` is possible
/// after a pause. A changed rate resets the state.
#[derive(Debug, Clone, Copy, Default)]
struct Gcra {
    rate: Option<Rate>,
    even: i64,
}

impl Gcra {
    /// Takes a turn now; otherwise returns the time of the next one.
    fn take(&mut self, rate: Rate, now: Micros) -> Result<(), Micros> {
        let before = *self;
        let at = self.queue(rate, now);
        if at > now {
            *self = before;
            return Err(at);
        }
        Ok(())
    }

    /// Reserves the next turn and returns its time.
    fn queue(&mut self, rate: Rate, now: Micros) -> Micros {
        // At most a quarter of the range, which leaves room for the sums below.
        let per = i64::try_from(rate.per.as_micros())
            .unwrap_or(i64::MAX / 4)
            .max(1);
        let each = (per / i64::from(rate.times.max(1))).max(1);

        let even = if self.rate == Some(rate) {
            self.even.max(now.0)
        } else {
            now.0
        };

        *self = Self {
            rate: Some(rate),
            even: even.saturating_add(each),
        };

        // A burst of `times` may start that much before evenly spaced turns.
        Micros(even - (per - each)).max(now)
    }
}

#[derive(Debug, Default)]
struct RuleThrottle {
    rate: Gcra,
    /// In shadow: the delays that a rate would cause.
    queue: Gcra,
    budget: Gcra,
    /// By minion: time of the event that counted, and end of its window.
    once: HashMap<String, (Micros, Micros)>,
}

#[derive(Debug, Default)]
pub(crate) struct Throttles(HashMap<Arc<str>, RuleThrottle>);

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Now,
    At(Micros),
    /// Skip: the budget is used up.
    OverBudget,
    /// In shadow: skip, because the start would be too late to match a call of Salt's reactor.
    TooLate,
}

impl Throttles {
    fn of(&mut self, rule: &Arc<str>) -> &mut RuleThrottle {
        if !self.0.contains_key(rule) {
            self.0.insert(rule.clone(), RuleThrottle::default());
        }
        self.0.get_mut(rule).expect("it was just added")
    }

    /// True if an event that arrived `at` that time is the first of its minion in the window of
    /// `once_per`; notes it.
    pub(crate) fn is_first(&mut self, options: &RuleOptions, minion: &str, at: Micros) -> bool {
        if options.once_per.is_none() {
            return true;
        }

        let once = &mut self.0.entry(options.rule.clone()).or_default().once;
        // An event from before the noted one, handled late, is not in its window.
        if once
            .get(minion)
            .is_some_and(|(from, until)| *from <= at && at < *until)
        {
            return false;
        }

        if once.len() >= REACTOR_ONCE_MAX {
            once.retain(|_, (_, until)| at < *until);
        }
        if once.len() >= REACTOR_ONCE_MAX {
            // Forgetting causes an extra reaction, which is better than a missing one.
            once.clear();
        }

        self.note(options, minion, at);
        true
    }

    /// Notes an event that counted for `once_per`.
    pub(crate) fn note(&mut self, options: &RuleOptions, minion: &str, at: Micros) {
        let Some(window) = options.once_per else {
            return;
        };
        let once = &mut self.0.entry(options.rule.clone()).or_default().once;
        let until = at.after(window);
        // An event that is handled late must not replace a later one.
        if once.len() < REACTOR_ONCE_MAX && once.get(minion).is_none_or(|(from, _)| *from < at) {
            once.insert(minion.to_owned(), (at, until));
        }
    }

    /// Takes a turn and a part of the budget of a rule.
    pub(crate) fn start(
        &mut self,
        rule: &Arc<str>,
        options: &RuleOptions,
        now: Micros,
    ) -> Admission {
        if options.rate.is_none() && options.budget.is_none() {
            return Admission::Now;
        }

        let throttle = self.of(rule);
        if let Some(rate) = options.rate
            && let Err(at) = throttle.rate.take(rate, now)
        {
            return Admission::At(at);
        }

        // Last, so that a delayed reaction uses up no budget.
        match options
            .budget
            .map(|budget| throttle.budget.take(budget, now))
        {
            Some(Err(_)) => Admission::OverBudget,
            _ => Admission::Now,
        }
    }

    /// The time at which a reaction would start after the delays of all earlier ones; `None` if it
    /// exceeds the budget.
    pub(crate) fn would_start(
        &mut self,
        rule: &Arc<str>,
        options: &RuleOptions,
        now: Micros,
    ) -> Option<Micros> {
        if options.rate.is_none() && options.budget.is_none() {
            return Some(now);
        }

        let throttle = self.of(rule);
        let at = options
            .rate
            .map_or(now, |rate| throttle.queue.queue(rate, now));

        options
            .budget
            .is_none_or(|budget| throttle.budget.take(budget, at).is_ok())
            .then_some(at)
    }
}

#[cfg(test)]
mod tests;
