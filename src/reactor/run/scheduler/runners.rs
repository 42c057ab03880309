//! Running runners on the master, limited as in Salt's reactor.
//!
//! Salt's reactor uses `reactor_worker_threads` threads for runners and wheel functions. A runner
//! of saltcellar's reactor is a process of the master, and counts as running until its
//! `salt/run/<jid>/ret` is in the log. That event may never come: the process was killed, the
//! master was stopped, or the bus was not read. Therefore a runner expires after
//! [`REACTOR_RUNNER_TIME`], and already after [`REACTOR_RUNNER_TIMEOUT`] if it followed a gap in
//! the events or produced no event.

use std::collections::HashMap;
use std::sync::Arc;

use super::task::RuleSet;
use crate::base::clock::Micros;
use crate::base::limits::{REACTOR_RUNNER_TIME, REACTOR_RUNNER_TIMEOUT};
use crate::model::RunnerLimits;

/// A running runner.
#[derive(Debug)]
struct Started {
    fun: String,
    rules: RuleSet,
    at: Micros,
    /// Time of the next search for its result in the log.
    due: Micros,
    /// True if a gap may contain its result.
    in_gap: bool,
}

/// The limits and their use. No clock inside: the caller passes the time.
#[derive(Debug, Default)]
pub(crate) struct Runners {
    limits: RunnerLimits,
    /// Number of reactions that wait for a runner.
    pub(crate) awaiting: usize,
    /// Requests in flight and running runners, by the rules that caused them.
    taken: HashMap<RuleSet, u32>,
    total: u32,
    started: HashMap<Arc<str>, Started>,
}

impl Runners {
    pub(crate) fn limit(&mut self, limits: RunnerLimits) {
        self.limits = limits;
    }

    /// True if these rules may start another runner. One slot is reserved for rules without running
    /// runners.
    pub(crate) fn has_room(&self, rules: &RuleSet, concurrency: Option<u32>) -> bool {
        let share = self
            .limits
            .threads
            .saturating_sub(1)
            .max(1)
            .min(concurrency.unwrap_or(u32::MAX));
        self.total < self.limits.threads && self.taken.get(rules).is_none_or(|taken| *taken < share)
    }

    /// True if no further reaction may wait for a runner.
    pub(crate) fn is_full(&self) -> bool {
        self.limits
            .waiting
            .is_some_and(|most| self.awaiting >= most)
    }

    /// Takes a slot if one is free.
    pub(crate) fn take(&mut self, rules: &RuleSet, concurrency: Option<u32>) -> bool {
        let has_room = self.has_room(rules, concurrency);
        if has_room {
            *self.taken.entry(rules.clone()).or_default() += 1;
            self.total += 1;
        }
        has_room
    }

    /// Adds a runner whose request had no response, and that was found in the log; it takes a slot
    /// in excess of the limit.
    pub(crate) fn found(&mut self, jid: &str, fun: &str, rules: &RuleSet, now: Micros) {
        *self.taken.entry(rules.clone()).or_default() += 1;
        self.total += 1;
        self.started(jid, fun, rules, now);
    }

    pub(crate) fn give_back(&mut self, rules: &RuleSet) {
        self.total -= 1;
        if let Some(taken) = self.taken.get_mut(rules) {
            *taken -= 1;
            if *taken == 0 {
                self.taken.remove(rules);
            }
        }
    }

    /// Sets the jid of the runner in a slot.
    pub(crate) fn started(&mut self, jid: &str, fun: &str, rules: &RuleSet, now: Micros) {
        let due = now.after(REACTOR_RUNNER_TIMEOUT);
        let started = Started {
            fun: fun.to_owned(),
            rules: rules.clone(),
            at: now,
            due,
            in_gap: false,
        };

        // A known jid holds a slot already, and must not hold two.
        if let Some(before) = self.started.insert(jid.into(), started) {
            self.give_back(&before.rules);
        }
    }

    /// Ends a runner; true if it was known.
    pub(crate) fn ended(&mut self, jid: &str) -> bool {
        let Some(started) = self.started.remove(jid) else {
            return false;
        };
        self.give_back(&started.rules);
        true
    }

    /// Notes a gap in the events, which may contain results.
    pub(crate) fn missed_events(&mut self, now: Micros) {
        let due = now.after(REACTOR_RUNNER_TIMEOUT);
        for started in self.started.values_mut() {
            started.due = started.due.min(due);
            started.in_gap = true;
        }
    }

    /// Runners to search for in the log.
    pub(crate) fn due(&self, now: Micros) -> Vec<Arc<str>> {
        let is_due =
            |(jid, started): (&Arc<str>, &Started)| (started.due <= now).then(|| jid.clone());
        self.started.iter().filter_map(is_due).collect()
    }

    /// Extends the time of a runner that has produced events; false if its time is over.
    pub(crate) fn still_runs(&mut self, jid: &str, now: Micros) -> bool {
        let Some(started) = self.started.get_mut(jid) else {
            return false;
        };
        let end = started.at.after(REACTOR_RUNNER_TIME);
        if now >= end || started.in_gap {
            return false;
        }
        started.due = end;
        true
    }

    pub(crate) fn fun(&self, jid: &str) -> String {
        self.started
            .get(jid)
            .map(|started| started.fun.clone())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn runners(threads: u32) -> Runners {
        let mut runners = Runners::default();
        runners.limit(RunnerLimits {
            threads,
            waiting: Some(2),
        });
        runners
    }

    fn rules(name: &str) -> RuleSet {
        [name.into()].into()
    }

    #[test]
    fn one_slot_is_reserved_for_other_rules_unless_it_is_the_only_one() {
        let (a, b) = (rules("a"), rules("b"));
        let mut pool = runners(3);
        assert_eq!(
            [
                pool.take(&a, None),
                pool.take(&a, None),
                pool.take(&a, None)
            ],
            [true, true, false]
        );
        assert_eq!([pool.take(&b, None), pool.take(&b, None)], [true, false]);
        pool.give_back(&a);
        assert_eq!(
            [pool.take(&b, Some(1)), pool.take(&b, Some(2))],
            [false, true]
        );
        let mut pool = runners(1);
        assert_eq!([pool.take(&a, None), pool.take(&b, None)], [true, false]);
        pool.give_back(&a);
        assert!(pool.taken.is_empty() && pool.take(&b, None));
    }

    #[test]
    fn a_runner_counts_until_its_result_or_its_expiry() {
        let a = rules("a");
        let mut pool = runners(10);
        for jid in ["1", "2", "3"] {
            assert!(pool.take(&a, None));
            pool.started(jid, "test.sleep", &a, Micros(0));
        }
        assert!(pool.ended("1") && !pool.ended("1") && !pool.ended("foreign"));
        assert!(pool.due(Micros(59 * SECOND)).is_empty());
        assert_eq!(pool.due(Micros(60 * SECOND)).len(), 2);
        assert!(
            pool.still_runs("2", Micros(60 * SECOND)) && pool.still_runs("3", Micros(60 * SECOND))
        );
        assert!(pool.due(Micros(3_599 * SECOND)).is_empty());
        assert!(!pool.still_runs("2", Micros(3_600 * SECOND)));
        pool.missed_events(Micros(100 * SECOND));
        assert_eq!(pool.due(Micros(160 * SECOND)).len(), 2);
        assert!(!pool.still_runs("3", Micros(160 * SECOND)));
        assert!(pool.ended("2") && pool.ended("3"));
        assert_eq!((pool.total, pool.taken.len()), (0, 0));
    }
}
