//! Runners on the master: how many are under way, as the master's own pool of threads would count them.
//!
//! Salt's reactor has `reactor_worker_threads` threads for runners and wheel functions. A runner that our reactor starts runs in a
//! process of the master, and is under way until its `salt/run/<jid>/ret` is in the log. That event may never come: the process was
//! killed, the master was stopped, the bus was not read at that moment. Therefore a runner counts no longer than
//! [`REACTOR_RUNNER_TIME`], and only [`REACTOR_RUNNER_TIMEOUT`] after a gap in the events, or if it never fired an event.

use std::collections::HashMap;
use std::sync::Arc;

use super::engine::Shared;
use super::queues::Rules;
use super::record::Outcome;
use super::{lock, micros};
use crate::clock::Micros;
use crate::limits::{REACTOR_RUNNER_TIME, REACTOR_RUNNER_TIMEOUT};
use crate::master::Answer;
use crate::model::RunnerLimits;

/// A runner that was started.
#[derive(Debug)]
struct Started {
    fun: String,
    rules: Rules,
    at: Micros,
    /// When it is looked for in the log.
    due: Micros,
    /// Its result may have been missed.
    in_gap: bool,
}

/// See the top of the file. Pure: the caller gives the time.
#[derive(Debug, Default)]
pub struct Runners {
    limits: RunnerLimits,
    /// Reactions that wait until a runner may be started.
    pub awaiting: usize,
    /// Requests and runners under way, by the rules that caused them.
    taken: HashMap<Rules, u32>,
    total: u32,
    started: HashMap<Arc<str>, Started>,
}

impl Runners {
    /// Other limits hold from now on.
    pub fn limit(&mut self, limits: RunnerLimits) {
        self.limits = limits;
    }

    /// May these rules start another runner? One of the master's threads is left to rules that have none under way.
    pub fn has_room(&self, rules: &Rules, concurrency: Option<u32>) -> bool {
        let share = self.limits.threads.saturating_sub(1).max(1).min(concurrency.unwrap_or(u32::MAX));
        self.total < self.limits.threads && self.taken.get(rules).is_none_or(|taken| *taken < share)
    }

    /// Do as many reactions wait as may?
    pub fn is_full(&self) -> bool {
        self.limits.waiting.is_some_and(|most| self.awaiting >= most)
    }

    /// Takes the place of a runner, if there is one.
    pub fn take(&mut self, rules: &Rules, concurrency: Option<u32>) -> bool {
        let has_room = self.has_room(rules, concurrency);
        if has_room {
            *self.taken.entry(rules.clone()).or_default() += 1;
            self.total += 1;
        }
        has_room
    }

    /// A runner is under way that had no place: its request had no answer, and it was found in the log.
    pub fn found(&mut self, jid: &str, fun: &str, rules: &Rules, now: Micros) {
        *self.taken.entry(rules.clone()).or_default() += 1;
        self.total += 1;
        self.started(jid, fun, rules, now);
    }

    /// Gives it back.
    pub fn give_back(&mut self, rules: &Rules) {
        self.total -= 1;
        if let Some(taken) = self.taken.get_mut(rules) {
            *taken -= 1;
            if *taken == 0 {
                self.taken.remove(rules);
            }
        }
    }

    /// The runner in a place that was taken has this jid.
    pub fn started(&mut self, jid: &str, fun: &str, rules: &Rules, now: Micros) {
        let due = Micros(now.0 + micros(REACTOR_RUNNER_TIMEOUT));
        let started = Started { fun: fun.to_owned(), rules: rules.clone(), at: now, due, in_gap: false };
        if let Some(before) = self.started.insert(jid.into(), started) {
            self.give_back(&before.rules);
        }
    }

    /// A runner has ended. Was it one of ours?
    pub fn ended(&mut self, jid: &str) -> bool {
        let Some(started) = self.started.remove(jid) else { return false };
        self.give_back(&started.rules);
        true
    }

    /// Events have been missed; the results of runners may be among them.
    pub fn missed_events(&mut self, now: Micros) {
        let due = Micros(now.0 + micros(REACTOR_RUNNER_TIMEOUT));
        for started in self.started.values_mut() {
            (started.due, started.in_gap) = (started.due.min(due), true);
        }
    }

    /// Runners that are to be looked for in the log.
    pub fn due(&self, now: Micros) -> Vec<Arc<str>> {
        let is_due = |(jid, started): (&Arc<str>, &Started)| (started.due <= now).then(|| jid.clone());
        self.started.iter().filter_map(is_due).collect()
    }

    /// A runner has fired events, but not its result: it counts for a while yet, or no longer.
    pub fn still_runs(&mut self, jid: &str, now: Micros) -> bool {
        let Some(started) = self.started.get_mut(jid) else { return false };
        let end = Micros(started.at.0 + micros(REACTOR_RUNNER_TIME));
        if now >= end || started.in_gap {
            return false;
        }
        started.due = end;
        true
    }

    fn fun(&self, jid: &str) -> String {
        self.started.get(jid).map(|started| started.fun.clone()).unwrap_or_default()
    }
}

impl Shared {
    /// A runner or wheel function has been asked for. What was started counts until it has ended.
    pub(super) fn runner_asked(&self, rules: &Rules, fun: &str, outcome: Option<&Outcome>) {
        if let Some(Outcome::Answered(Answer::Started { jid, .. })) = outcome {
            lock(&self.scheduler).runners.started(jid, fun, rules, self.clock.now());
            self.look_for_result(jid);
        } else {
            lock(&self.scheduler).runners.give_back(rules);
        }
        self.change.notify_one();
    }

    /// A runner was found that the master had started without an answer.
    pub(super) fn runner_found(&self, rules: &Rules, fun: &str, jid: &str) {
        lock(&self.scheduler).runners.found(jid, fun, rules, self.clock.now());
        self.look_for_result(jid);
    }

    /// The result of a runner may be in the log before it was known to be ours; what comes after this look, the follower sees.
    fn look_for_result(&self, jid: &str) {
        if matches!(self.runner_events(jid), Some((_, true))) {
            lock(&self.scheduler).runners.ended(jid);
        }
    }

    /// Has a runner fired events, and its result? None if the log cannot be read.
    fn runner_events(&self, jid: &str) -> Option<(bool, bool)> {
        match self.store.job_entries_with(jid, |_| false) {
            Ok(entries) => {
                let tag = format!("salt/run/{jid}/ret");
                Some((!entries.is_empty(), entries.iter().any(|entry| entry.tag == tag.as_bytes())))
            }
            Err(error) => {
                tracing::warn!(%error, jid, "cannot look for a runner's events");
                None
            }
        }
    }

    /// Looks for runners whose result has not come, so that none counts for ever. 3008 fires nothing for one that it does not know.
    pub(super) fn look_after_runners(&self) {
        let now = self.clock.now();
        let due = lock(&self.scheduler).runners.due(now);
        for jid in due {
            let Some((has_events, has_ended)) = self.runner_events(&jid) else { continue };
            let fun = lock(&self.scheduler).runners.fun(&jid);
            if !has_events {
                self.metrics.reactor_runners_silent.add(1);
                tracing::error!(
                    jid = &*jid,
                    fun,
                    "runner accepted but produced no event: unknown function, or wrong arguments?"
                );
            } else if !has_ended {
                if lock(&self.scheduler).runners.still_runs(&jid, now) {
                    continue;
                }
                self.metrics.reactor_runners_lost.add(1);
                tracing::warn!(jid = &*jid, fun, "no result of a runner has been seen; it counts as ended");
            }
            if lock(&self.scheduler).runners.ended(&jid) {
                self.change.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn runners(threads: u32) -> Runners {
        let mut runners = Runners::default();
        runners.limit(RunnerLimits { threads, waiting: Some(2) });
        runners
    }

    fn rules(name: &str) -> Rules {
        [name.into()].into()
    }

    #[test]
    fn one_thread_is_left_to_other_rules_unless_it_is_the_only_one() {
        let (a, b) = (rules("a"), rules("b"));
        let mut pool = runners(3);
        assert_eq!([pool.take(&a, None), pool.take(&a, None), pool.take(&a, None)], [true, true, false]);
        assert_eq!([pool.take(&b, None), pool.take(&b, None)], [true, false]);
        pool.give_back(&a);
        assert_eq!([pool.take(&b, Some(1)), pool.take(&b, Some(2))], [false, true]);
        let mut pool = runners(1);
        assert_eq!([pool.take(&a, None), pool.take(&b, None)], [true, false]);
        pool.give_back(&a);
        assert!(pool.taken.is_empty() && pool.take(&b, None));
    }

    #[test]
    fn a_runner_counts_until_its_result_or_as_long_as_it_may() {
        let a = rules("a");
        let mut pool = runners(10);
        for jid in ["1", "2", "3"] {
            assert!(pool.take(&a, None));
            pool.started(jid, "test.sleep", &a, Micros(0));
        }
        assert!(pool.ended("1") && !pool.ended("1") && !pool.ended("foreign"));
        assert!(pool.due(Micros(59 * SECOND)).is_empty());
        assert_eq!(pool.due(Micros(60 * SECOND)).len(), 2);
        assert!(pool.still_runs("2", Micros(60 * SECOND)) && pool.still_runs("3", Micros(60 * SECOND)));
        assert!(pool.due(Micros(3_599 * SECOND)).is_empty());
        assert!(!pool.still_runs("2", Micros(3_600 * SECOND)));
        pool.missed_events(Micros(100 * SECOND));
        assert_eq!(pool.due(Micros(160 * SECOND)).len(), 2);
        assert!(!pool.still_runs("3", Micros(160 * SECOND)));
        assert!(pool.ended("2") && pool.ended("3"));
        assert_eq!((pool.total, pool.taken.len()), (0, 0));
    }
}
