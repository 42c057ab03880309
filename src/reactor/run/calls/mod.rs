//! The calls of a reaction: made one after the other, retried, and proved by the log if a response
//! is lost.
//!
//! # Invariant
//!
//! A call that must not be repeated has a durable mark in the log before it is sent. The decisions
//! are made by [`decide`](super::decide).

mod settle;

use std::sync::Arc;
use std::time::Instant;

use salt_sls::Value;

use super::decide::{Attempt, Consequence, Failure, Next};
use super::depths::name_orchestration;
use super::gate::CallGate;
use super::keeper::Keeper;
use super::pending::Pending;
use super::record::recorder::Recorder;
use super::record::{Mark, call_key, mark};
use super::scheduler::task::{RuleSet, Task, TaskProgress};
use super::slots::RunnerSlots;
use super::traces::Traces;
use super::{CallerReturn, Executor, MasterError, ReactionPlan, SeqNo};
use crate::base::clock::{Clock, Micros, micros};
use crate::base::limits::{
    MASTER_TIMEOUT, REACTOR_MASTER_RETRY, REACTOR_RECORD_TIMEOUT, REACTOR_START_TIME,
    REACTOR_START_TIME_RESUMED,
};
use crate::base::metrics::Metrics;
use crate::model::{Slot, stamped_jid};
use crate::reactor::master::{Call, Client, pack};
use crate::reactor::shadow::ObservedCall;
use crate::reactor::{CallOutcome, CallRecord};
use crate::store::Store;

pub(super) struct Calls {
    pub(super) executor: Arc<dyn Executor>,
    pub(super) jid_slot: Option<Slot>,
    pub(super) gate: Arc<CallGate>,
    pub(super) pending: Arc<Pending>,
    pub(super) slots: Arc<RunnerSlots>,
    pub(super) traces: Arc<Traces>,
    /// Stores the marks.
    pub(super) recorder: Arc<Recorder>,
    /// Knows how far the log has been read.
    pub(super) keeper: Arc<Keeper>,
    pub(super) log: Store,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
}

#[expect(clippy::large_enum_variant, reason = "one per worker, short-lived")]
pub(super) enum TryResult {
    Finished(CallRecord),
    Pause(Micros),
    AwaitRunner,
}

/// What the event of a call allows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Permission {
    /// Calls are recorded and not made.
    pub(super) only_watches: bool,
    /// The event is too old for calls.
    pub(super) is_old: bool,
}

/// True if a call that may have been made must not be resent. Jobs may, unless the rule sets
/// `at_most_once`: minions run a jid once.
fn must_not_repeat(task: &Task, call: &Call) -> bool {
    let options = &task.options;
    options.at_most_once || (call.client.is_of_master() && !options.retry_unanswered)
}

/// The start event by which a runner or wheel function is recognised; `None` for other calls.
fn start_of(call: &Call) -> Option<ObservedCall> {
    let of_master = call.client.is_of_master();
    of_master.then(|| ObservedCall::of(call))
}

impl Calls {
    /// Fires the events of a plan onto the bus; what fails is a failure of the plan.
    pub(super) fn fire(&self, plan: &mut ReactionPlan, fired: Vec<(String, Value)>) {
        for (tag, data) in fired {
            if let Err(why) = self.executor.fire(&tag, &data) {
                tracing::error!(
                    tag,
                    why,
                    "cannot fire the response of the reactor onto the bus, salt-run times out"
                );
                plan.fail(format!("cannot fire {tag}: {why}"));
            }
        }
    }

    /// Tries the next call of a task.
    pub(super) fn try_call(
        &self,
        task: &Task,
        rules: &RuleSet,
        progress: &mut TaskProgress,
        mut planned: Call,
        permission: Permission,
    ) -> TryResult {
        let sent = self.clock.now();

        // In shadow the call stays as rendered, because it is compared with the call of Salt's
        // reactor.
        if !permission.only_watches {
            name_orchestration(&mut planned, || own_jid(task, progress, self.jid_slot));
        }

        let mut made = CallRecord {
            jid: jid(task, progress, &planned, self.jid_slot),
            call: planned,
            tries: progress.tries,
            sent,
            took_us: 0,
            outcome: CallOutcome::Shadowed,
        };

        let key = call_key(&made.call);
        let not_allowed = not_allowed(task, &made.call);
        let is_allowed = not_allowed.is_none();
        let mut refusal = not_allowed.or_else(|| self.executor.unsupported(made.call.client));
        let mut attempt = Attempt {
            is_held: self.gate.blocks(),
            is_refused: refusal.is_some(),
            only_watches: permission.only_watches,
            is_old: permission.is_old,
            was_started: was_started(task, progress, key),
            must_not_repeat: must_not_repeat(task, &made.call),
            tries: progress.tries,
            maybe_sent: progress.maybe_sent,
            is_unanswered: progress.unanswered.is_some(),
            is_searched: false,
        };

        // A second round only follows a search without a result, which leads to another decision.
        loop {
            return match attempt.next() {
                Next::Hold => TryResult::Pause(sent.after(REACTOR_MASTER_RETRY)),
                Next::Refuse => {
                    self.metrics
                        .reactor_calls_not_allowed
                        .add(u64::from(!is_allowed));
                    self.dead(task, made, refusal.take().unwrap_or_default())
                }
                Next::Show => {
                    if let Some(why) = self.no_target(&made.call) {
                        made.outcome = CallOutcome::NoTarget { why };
                    }
                    TryResult::Finished(made)
                }
                Next::Settle => {
                    let unanswered = progress.unanswered.take().unwrap_or_else(|| {
                        // The log lacks starts from while the daemon was down, so a short search is
                        // enough.
                        let why =
                            "sent before the last start of the daemon, and must not be repeated";
                        self.unanswered(why.to_owned(), REACTOR_START_TIME_RESUMED)
                    });
                    self.settle(task, progress, made, unanswered)
                }
                Next::Search => {
                    if let Some(jid) = self.find_in_log(&made, progress.since) {
                        self.found(task, made, jid)
                    } else {
                        attempt.is_searched = true;
                        continue;
                    }
                }
                Next::Dead(why) => self.dead(task, made, why.to_owned()),
                Next::Unknown(why) => self.unknown(task, made, why.to_owned()),
                Next::Send => self.send(task, rules, progress, made, key),
            };
        }
    }

    fn send(
        &self,
        task: &Task,
        rules: &RuleSet,
        progress: &mut TaskProgress,
        mut made: CallRecord,
        key: u64,
    ) -> TryResult {
        // The search for proof begins at the first try, and later tries must not move that point.
        if !progress.maybe_sent {
            progress.since = self.log.durable();
        }

        // The slot is taken last, because a call that cannot be made must not hold one.
        let Call { client, fun, .. } = &made.call;
        let runner = client.is_of_master().then(|| fun.clone());
        if runner.is_some() && !self.slots.take(rules, task.options.concurrency) {
            return TryResult::AwaitRunner;
        }

        // The mark is durable before the call: after a kill in between it counts as possibly made.
        let outcome = self.store_mark(task, progress, &made, key).and_then(|()| {
            let started_at = Instant::now();
            let outcome = self.execute(&made, task.depth, progress.since);
            made.took_us = micros(started_at.elapsed());
            outcome
        });

        // Frees the slot, unless a runner holds it until its result.
        if let Some(fun) = runner {
            let jid = match &outcome {
                Ok((jid, CallOutcome::Started { .. })) => jid.as_deref(),
                _ => None,
            };
            self.slots.requested(rules, &fun, jid);
        }

        if progress.tries > 0 {
            self.metrics.reactor_calls_retried.add(1);
        }

        let failure = match outcome {
            Ok((jid, outcome)) => {
                self.metrics.reactor_calls.add(1);
                made.outcome = outcome;
                made.tries = progress.tries + 1;
                made.jid = jid.unwrap_or(made.jid);
                return TryResult::Finished(made);
            }
            Err(failure) => failure,
        };

        let tried = self.failed(task, progress, made, failure);
        if matches!(tried, TryResult::Pause(_))
            && progress.unanswered.is_none()
            && std::mem::take(&mut progress.start_recorded)
        {
            // Withdraws the mark, because the call was certainly not made. If the daemon is killed
            // first, it counts as possibly made.
            let record = mark(
                &task.event,
                &task.rules,
                task.rule_count,
                Mark::Withdrawn,
                key,
                self.clock.now(),
            );
            self.recorder.write(record);
        }
        tried
    }

    /// Stores a mark before a call that must not be repeated. While the master is unreachable no
    /// mark is stored.
    pub(super) fn store_mark(
        &self,
        task: &Task,
        progress: &mut TaskProgress,
        made: &CallRecord,
        key: u64,
    ) -> Result<(), Failure> {
        if !must_not_repeat(task, &made.call) {
            return Ok(());
        }
        // A mark that is still on its way is waited for: a second one would count as a second call,
        // of which only one could be withdrawn.
        let pending = if let Some(pending) = progress.mark.take() {
            pending
        } else {
            // A mark of a call that cannot be sent would have to be withdrawn at every try.
            if made.call.client != Client::Caller {
                self.executor.reach()?;
            }

            let record = mark(
                &task.event,
                &task.rules,
                task.rule_count,
                Mark::Started,
                key,
                made.sent,
            );
            self.recorder
                .submit(record)
                .map_err(Failure::MarkNotStored)?
        };

        match pending.wait(REACTOR_RECORD_TIMEOUT) {
            Ok(stored) => stored.map_err(Failure::MarkNotStored)?,
            Err(pending) => {
                progress.mark = Some(pending);
                let why = "timeout while writing the record".to_owned();
                return Err(Failure::MarkNotStored(why));
            }
        }

        progress.start_recorded = true;
        Ok(())
    }

    /// Carries out the consequence of a try that failed.
    fn failed(
        &self,
        task: &Task,
        progress: &mut TaskProgress,
        mut made: CallRecord,
        failure: Failure,
    ) -> TryResult {
        let (now, event) = (self.clock.now(), task.event.seq.0);
        progress.tries += u32::from(failure.is_a_try());
        made.tries = progress.tries;

        let consequence = failure.consequence(
            progress.tries,
            task.options.tries,
            progress.maybe_sent,
            must_not_repeat(task, &made.call),
        );

        match &failure {
            // Few reactions begin until it is back, because each would only find out the same.
            Failure::Unreachable(why) => self.pending.set_master_unreachable(true, why),
            Failure::MarkNotStored(why) => {
                tracing::error!(
                    why,
                    event,
                    "cannot store the announcement of a call, the call waits, retrying: check the disk for errors and free space"
                );
            }
            Failure::PossiblyMade(_) => {
                // If it was made, its event on the bus is saltcellar's but has no known response.
                self.traces.suspend_foreign();
                // A settled call is never resent, and keeps its state in `unanswered`.
                progress.maybe_sent |= consequence != Consequence::Settle;
            }
            Failure::NotMade(_) | Failure::Final(_) => {}
        }

        let why = failure.into_why();
        match consequence {
            Consequence::Wait => TryResult::Pause(now.after(REACTOR_MASTER_RETRY)),
            Consequence::Retry => {
                let pause = task.options.pause(progress.tries);
                tracing::warn!(error = why, event, id = made.call.id, tries = progress.tries, again_in = ?pause, "call failed, retrying");
                TryResult::Pause(now.after(pause))
            }
            Consequence::Settle => {
                tracing::warn!(
                    error = why,
                    event,
                    id = made.call.id,
                    "call got no response, not retrying it: see `saltcellar reactor history`"
                );
                let unanswered = self.unanswered(why, REACTOR_START_TIME);
                self.settle(task, progress, made, unanswered)
            }
            Consequence::Search => match self.find_in_log(&made, progress.since) {
                Some(jid) => self.found(task, made, jid),
                None => self.unknown(task, made, why),
            },
            Consequence::Dead => self.dead(task, made, why),
        }
    }

    /// The master's response to a job that matches no minion. Salt's reactor leaves no trace of
    /// such a job.
    fn no_target(&self, call: &Call) -> Option<String> {
        let tgt = call
            .load
            .get("tgt")
            .filter(|_| call.client == Client::Local)?;

        let tgt_type = call
            .load
            .get("tgt_type")
            .and_then(Value::as_str)
            .unwrap_or("glob");
        self.executor.no_target(tgt, tgt_type)
    }

    /// Makes a call. Returns its outcome, and the jid that the master chose.
    fn execute(
        &self,
        made: &CallRecord,
        depth: u32,
        since: SeqNo,
    ) -> Result<(Option<String>, CallOutcome), Failure> {
        let call = &made.call;
        if call.client == Client::Caller {
            // It leaves no trace on the master's bus, so there is nothing to announce.
            let CallerReturn { value, retcode } = self.executor.caller(call)?;
            if retcode != 0 {
                self.metrics.reactor_callers_failed.add(1);
                let Call { id, sls, fun, .. } = call;
                tracing::warn!(
                    fun,
                    retcode,
                    id,
                    sls,
                    "function of a `caller` reaction failed: see `saltcellar reactor show EVENT`"
                );
            }

            let outcome = CallOutcome::ran(retcode == 0, Some(retcode), pack::packed(&value));
            return Ok((None, outcome));
        }

        // Before the request, because events of a job or a runner may overtake the response.
        let start = start_of(call);
        self.traces.announce(call, start.as_ref(), &made.jid, depth);
        let answer = self.executor.ask(call, &made.jid, MASTER_TIMEOUT);
        self.traces.answered(start.as_ref(), since, &answer, depth);

        // A rejection shows as well that the master is there.
        if answer.as_ref().err().is_none_or(MasterError::is_response) {
            self.pending.set_master_unreachable(false, "");
        }
        Ok(CallOutcome::answered(answer?))
    }
}

/// True if the log contains a mark of this call from before the daemon's last start.
fn was_started(task: &Task, progress: &TaskProgress, key: u64) -> bool {
    let times = |keys: &mut dyn Iterator<Item = u64>| keys.filter(|one| *one == key).count();

    // An event can have two equal calls, so they are counted.
    !task.started_calls.is_empty()
        && times(&mut task.started_calls.iter().copied())
            > times(&mut progress.made.iter().map(|made| call_key(&made.call)))
}

/// The jid of a job. It is derived from the event's time and number, because each try must have the
/// same jid. Empty for calls whose jid the master chooses.
fn jid(task: &Task, progress: &TaskProgress, call: &Call, slot: Option<Slot>) -> String {
    if call.client == Client::Local {
        own_jid(task, progress, slot)
    } else {
        String::new()
    }
}

fn own_jid(task: &Task, progress: &TaskProgress, slot: Option<Slot>) -> String {
    // A replay is a new job.
    let base = if task.replay.is_some() {
        progress.started_at
    } else {
        task.event.at
    };

    // Calls of one event differ by microseconds, with room for a thousand per group of rules.
    let nth = i64::try_from(task.rule_index * 1_000 + progress.made.len())
        .expect("an event has few calls");

    // The option `unique_jid` of Salt appends the process id to a jid; here it is the sequence
    // number.
    format!(
        "{}_{}",
        stamped_jid(nth_time(base, nth, slot)),
        task.event.seq.0 % (1 << 32)
    )
}

/// The time in the jid of the `nth` job of an event. With a slot only microseconds of it: the reactor of another master may react to
/// another event of the same time and number.
fn nth_time(base: Micros, nth: i64, slot: Option<Slot>) -> Micros {
    match slot {
        None => Micros(base.0 + nth),
        Some(slot) => Micros(slot.first_from(base).0 + nth * slot.step()),
    }
}

fn not_allowed(task: &Task, call: &Call) -> Option<String> {
    let allow = &task.options.allow;
    let (client, fun, tgt) = (call.client.name(), &call.fun, &call.tgt);
    if allow.is_empty() || allow.iter().any(|allow| allow.allows(client, fun, tgt)) {
        return None;
    }

    let on = if tgt.is_empty() {
        String::new()
    } else {
        format!(" on {tgt:?}")
    };

    Some(format!(
        "`allow` of this rule does not permit {client} {fun}{on}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::word::Word as _;

    #[test]
    fn jobs_of_reactors_with_distinct_slots_never_have_the_same_time() {
        let times = |base, slot: &'static str| {
            (0..3_000).map(move |nth| nth_time(Micros(base), nth, Slot::parse(slot)).0)
        };
        for slot in ["1/2", "2/2"] {
            assert!(times(1_001, slot).is_sorted_by(|a, b| a < b), "{slot}");
        }
        let ours: Vec<i64> = times(1_001, "1/2").collect();
        assert!(times(1_000, "2/2").all(|theirs| !ours.contains(&theirs)));
        assert_eq!(times(1_001, "2/2").next(), Some(1_002));

        // Without a slot as ever.
        assert_eq!(nth_time(Micros(1_001), 2, None), Micros(1_003));
    }
}
