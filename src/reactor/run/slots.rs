//! The slots of the master's runners: taken before a request, held by a runner until its result is
//! in the log, and freed when that can no longer come.
//!
//! # Invariant
//!
//! Each slot that is taken is given back once: by the failure of its request, the result of its
//! runner, or its expiry.

use std::sync::Arc;

use super::pending::Pending;
use super::scheduler::task::RuleSet;
use crate::base::clock::Clock;
use crate::base::metrics::Metrics;
use crate::store::Store;

pub(super) struct RunnerSlots {
    pub(super) pending: Arc<Pending>,
    pub(super) log: Store,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
}

impl RunnerSlots {
    /// Takes a slot if one is free.
    pub(super) fn take(&self, rules: &RuleSet, concurrency: Option<u32>) -> bool {
        self.pending.lock().runners.take(rules, concurrency)
    }

    /// Handles the end of a request for which a slot was taken: `jid` is the id of the runner that
    /// it started, if it did.
    pub(super) fn requested(&self, rules: &RuleSet, fun: &str, jid: Option<&str>) {
        if let Some(jid) = jid {
            self.pending
                .lock()
                .runners
                .started(jid, fun, rules, self.clock.now());
            // A short runner may have returned before its jid was known here.
            self.check_for_result(jid);
        } else {
            self.pending.lock().runners.give_back(rules);
        }
        self.pending.wake();
    }

    /// Adds a runner that the master started without a response.
    pub(super) fn found(&self, rules: &RuleSet, fun: &str, jid: &str) {
        self.pending
            .lock()
            .runners
            .found(jid, fun, rules, self.clock.now());
        self.check_for_result(jid);
    }

    /// Notes the result of a runner in the log.
    pub(super) fn ended(&self, jid: &str) {
        if self.pending.lock().runners.ended(jid) {
            self.pending.wake();
        }
    }

    /// Notes a gap in the events, which may include results.
    pub(super) fn missed_events(&self) {
        self.pending.lock().runners.missed_events(self.clock.now());
    }

    /// Searches the log for a result that came before the response with the jid. The follower sees
    /// later results.
    fn check_for_result(&self, jid: &str) {
        if matches!(self.events_of(jid), Some((_, true))) {
            self.pending.lock().runners.ended(jid);
        }
    }

    /// Whether the log contains events of a runner, and its result; `None` if the log cannot be
    /// read.
    fn events_of(&self, jid: &str) -> Option<(bool, bool)> {
        match self.log.job_entries_with(jid, |_| false) {
            Ok(entries) => {
                let tag = format!("salt/run/{jid}/ret");
                Some((
                    !entries.is_empty(),
                    entries.iter().any(|entry| entry.tag == tag.as_bytes()),
                ))
            }
            Err(error) => {
                tracing::warn!(%error, jid, "cannot read a runner's events, its slot stays in use, retrying");
                None
            }
        }
    }

    /// Expires runners without a result. Release 3008 fires no event for an unknown function.
    pub(super) fn expire(&self) {
        let now = self.clock.now();
        let due = self.pending.lock().runners.due(now);

        // The log is read without the lock, because workers need it.
        for jid in due {
            let Some((has_events, has_ended)) = self.events_of(&jid) else {
                // What cannot be read proves nothing; the next round retries.
                continue;
            };

            let fun = self.pending.lock().runners.fun(&jid);
            if !has_events {
                self.metrics.reactor_runners_without_events.add(1);
                tracing::error!(
                    jid = &*jid,
                    fun,
                    "runner accepted but produced no event: check function and arguments with `salt-run`"
                );
            } else if !has_ended {
                if self.pending.lock().runners.still_runs(&jid, now) {
                    continue;
                }
                self.metrics.reactor_runners_without_results.add(1);
                tracing::warn!(
                    jid = &*jid,
                    fun,
                    "no runner result seen, counting the runner as ended: see `saltcellar jobs show` of its jid, and the log of salt-master"
                );
            }

            self.ended(&jid);
        }
    }
}
