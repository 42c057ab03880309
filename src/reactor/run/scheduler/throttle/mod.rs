//! Throttles of rules: limits on the start of reactions. No clock inside: the caller passes the
//! time.

use std::collections::HashMap;
use std::sync::Arc;

use crate::base::clock::Micros;
use crate::base::limits::REACTOR_ONCE_MAX;
use crate::model::{RuleOptions, SeqNo, Throttle};
use crate::reactor::run::Event;

#[derive(Debug, Default)]
struct RuleThrottle {
    rate: Throttle,
    /// In shadow: the delays that a rate would cause.
    queue: Throttle,
    budget: Throttle,
    /// By minion.
    once: HashMap<String, Counted>,
}

/// The event of a minion that counted for `once_per`.
#[derive(Debug)]
struct Counted {
    /// `None` if another master's record names it, or one from before the start.
    event: Option<SeqNo>,
    at: Micros,
    /// The end of its window.
    until: Micros,
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

    /// True if an event is the first of its minion in the window of `once_per`; notes it. The
    /// result is the same if the event is offered again.
    pub(crate) fn is_first(&mut self, options: &RuleOptions, event: &Event) -> bool {
        if options.once_per.is_none() {
            return true;
        }

        let (minion, at) = (event.minion.as_str(), event.at);
        let once = &mut self.0.entry(options.rule.clone()).or_default().once;
        if let Some(counted) = once.get(minion) {
            // Offered again, because another master's reactor led meanwhile or its rules changed.
            if counted.event == Some(event.seq) {
                return true;
            }
            // An event from before the noted one, handled late, is not in its window.
            if counted.at <= at && at < counted.until {
                return false;
            }
        }

        if once.len() >= REACTOR_ONCE_MAX {
            once.retain(|_, counted| at < counted.until);
        }
        if once.len() >= REACTOR_ONCE_MAX {
            // Forgetting causes an extra reaction, which is better than a missing one.
            once.clear();
        }

        self.note(options, minion, Some(event.seq), at);
        true
    }

    /// Notes an event that counted for `once_per`, with its number in this log, if it is known.
    pub(crate) fn note(
        &mut self,
        options: &RuleOptions,
        minion: &str,
        event: Option<SeqNo>,
        at: Micros,
    ) {
        let Some(window) = options.once_per else {
            return;
        };
        let once = &mut self.0.entry(options.rule.clone()).or_default().once;
        let until = at.after(window);
        // An event that is handled late must not replace a later one.
        if once.len() < REACTOR_ONCE_MAX && once.get(minion).is_none_or(|known| known.at < at) {
            once.insert(minion.to_owned(), Counted { event, at, until });
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

        // Checked last, because a delayed reaction must not use up the budget.
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
        // By the time of its start, because that is when its part of the budget would be taken.
        options: &RuleOptions,
        now: Micros,
    ) -> Option<Micros> {
        if options.rate.is_none() && options.budget.is_none() {
            return Some(now);
        }

        let throttle = self.of(rule);
        // Nothing waits in shadow, so the delay is the place in a queue that exists only as a
        // number.
        let at = options
            .rate
            .map_or(now, |rate| throttle.queue.queue(rate, now, 1));

        options
            .budget
            .is_none_or(|budget| throttle.budget.take(budget, at).is_ok())
            .then_some(at)
    }
}

#[cfg(test)]
mod tests;
