//! Workers: render events and make their calls, one task at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use salt_sls::Value;

use super::depths::{name_orchestration, orchestration_jid};
use super::engine::{RuleSnapshot, Shared};
use super::failed::FailedReaction;
use super::record::{CallOutcome, CallRecord, Mark, ReactionState, Record, call_key, mark};
use super::scheduler::RuleSet;
use super::scheduler::queues::QueueItem;
use super::scheduler::{NextAction, Slot, Task, TaskProgress};
use super::settle::{must_not_repeat, start_of};
use super::{
    CallerError, CallerReturn, Event, PlannedCall, ReactionPlan, RuleEngine, SeqNo, micros,
};
use crate::base::clock::Micros;
use crate::base::limits::{
    MASTER_TIMEOUT, REACTOR_MASTER_RETRY, REACTOR_RECORD_TIMEOUT, REACTOR_START_TIME,
    REACTOR_START_TIME_RESUMED,
};
use crate::model::{NoteLevel, stamped_jid};
use crate::reactor::master::{Answer, Call, Client, MasterError, pack};

pub(super) enum Step {
    Done,
    /// It continues at that time.
    Pause(QueueItem, Micros),
    /// A rate delays it, and all others of its rules.
    Throttled(QueueItem, Micros),
    /// It continues once a runner may be started.
    AwaitRunner(QueueItem),
    /// It is skipped, for that reason.
    Skip(Box<Task>, &'static str),
}

#[expect(clippy::large_enum_variant, reason = "one per worker, short-lived")]
pub(super) enum TryResult {
    Finished(CallRecord),
    Pause(Micros),
    AwaitRunner,
}

/// Why a try of a call failed, by the consequence.
#[derive(Debug)]
pub(super) enum Failure {
    /// The master is unreachable: wait, without counting the try.
    Unreachable(String),
    /// The mark that must precede the call could not be stored: wait, without counting the try.
    MarkNotStored(String),
    /// The call was not made: a retry is safe.
    NotMade(String),
    /// The call may have been made.
    PossiblyMade(String),
    /// The call was made, or can never be: do not retry.
    Final(String),
}

impl From<MasterError> for Failure {
    fn from(error: MasterError) -> Self {
        let words = error.to_string();
        match error {
            MasterError::Unreachable { .. } => Self::Unreachable(words),
            // A rejection is repeated, too: a master that restarts rejects the key that it has just
            // replaced, and accepts the next request.
            error if error.was_not_done() => Self::NotMade(words),
            _ => Self::PossiblyMade(words),
        }
    }
}

impl From<CallerError> for Failure {
    fn from(error: CallerError) -> Self {
        match error {
            CallerError::NotStarted(words) => Self::NotMade(words),
            CallerError::Failed(words) => Self::Final(words),
            CallerError::Lost(words) => Self::PossiblyMade(words),
        }
    }
}

pub(super) fn run(shared: &Arc<Shared>) {
    let mut scheduler = shared.scheduler.lock();
    while !shared.drain.is_stopping() {
        // Without room for its record, or without a lease, a reaction must not start.
        if shared.recorder.is_full() || shared.lease_blocks() {
            shared.wait_for_change(&mut scheduler, None);
            continue;
        }

        match scheduler.next(shared.clock.now()) {
            NextAction::Run(item, slot) => {
                // Rendering and the master take long, so the scheduler is free meanwhile.
                drop(scheduler);
                // Skipping locks the scheduler itself, so it comes before this thread locks it
                // again.
                let step = match shared.step(item, &slot) {
                    Step::Skip(task, why) => {
                        shared.skip(*task, why);
                        Step::Done
                    }
                    step => step,
                };

                scheduler = shared.scheduler.lock();
                match step {
                    Step::Pause(item, at) => scheduler.pause(item, &slot, at),
                    Step::Throttled(item, at) => scheduler.throttle(item, &slot, at),
                    Step::AwaitRunner(item) => scheduler.await_runner(item, &slot),
                    Step::Done | Step::Skip(..) => scheduler.done(&slot),
                }

                // This thread handles one item, another worker the next.
                if scheduler.has_ready() {
                    shared.change.notify_one();
                }
                shared.room.notify_one();
            }
            NextAction::Wait(until) => shared.wait_for_change(&mut scheduler, until),
        }
    }
}

impl Shared {
    fn step(&self, item: QueueItem, from: &Slot) -> Step {
        let RuleSnapshot { rules, settings } = self.rule_snapshot();
        let mut task = match self.load_task(item, from) {
            Ok(task) => task,
            Err(step) => return step,
        };

        let now = self.clock.now();
        let is_old = task.replay.is_none() && now.0 - task.event.at.0 > micros(settings.age_max);
        let of_fallback = task.replay.is_none() && self.is_of_fallback(&task.event);

        let mut progress = if let Some(progress) = task.progress.take() {
            progress
        } else {
            // A call that was started before a restart may have been made, and is settled at any
            // age.
            if is_old && task.started_calls.is_empty() {
                return Step::Skip(task.into(), "old");
            }

            // A removed rule does not handle pending events, even if it was added again.
            let still = self.matching(&*rules, &task.event.tag, task.event.seq);
            if task.replay.is_none() && !task.rules.iter().any(|rule| still.contains(rule)) {
                return Step::Skip(task.into(), "gone");
            }

            task = match self.start_task(task, &settings, now) {
                Ok(task) => task,
                Err(step) => return step,
            };

            let mut plan = self.react(&*rules, &task.event, &task.rules);

            // In shadow Salt's own reactor responds.
            let fired = std::mem::take(&mut plan.fired);
            for (tag, data) in fired
                .into_iter()
                .filter(|_| !settings.shadow && !of_fallback)
            {
                if let Err(why) = self.executor.fire(&tag, &data) {
                    tracing::error!(tag, why, "cannot fire the reactor's answer onto the bus");
                    plan.fail(format!("cannot fire {tag}: {why}"));
                }
            }

            // The replay of a partial reaction makes only the missing calls.
            for made in &task.already_made {
                if let Some(at) = plan
                    .calls
                    .iter()
                    .position(|planned| call_key(planned) == *made)
                {
                    plan.calls.remove(at);
                }
            }

            Box::new(TaskProgress::of(&task.event, now, plan, task.resumed))
        };

        // The event became too old while the master was unreachable. A call that was sent may have
        // been executed at any age.
        if is_old
            && progress.made.is_empty()
            && !progress.maybe_sent
            && progress.unanswered.is_none()
        {
            return Step::Skip(task.into(), "old");
        }

        // Calls for events from the time of shadow mode are not made after its end.
        let acts = task.replay.is_some()
            || self
                .checkpoint
                .lock()
                .acting_from()
                .is_some_and(|from| task.event.seq >= from);
        let shadow = settings.shadow || task.skipped.is_some() || !acts || of_fallback;

        while let Some(planned) = progress.plan.calls.get(progress.made.len()).cloned() {
            // A lease can end between two calls of a plan.
            if self.lease_blocks() {
                task.progress = Some(progress);
                return Step::Pause(task.into(), now.after(REACTOR_MASTER_RETRY));
            }
            match self.try_call(&task, &from.rules, &mut progress, planned, shadow, is_old) {
                TryResult::Finished(made) => progress.finish_call(made, &task),
                TryResult::Pause(at) => {
                    task.progress = Some(progress);
                    return Step::Pause(task.into(), at);
                }
                TryResult::AwaitRunner => {
                    task.progress = Some(progress);
                    return Step::AwaitRunner(task.into());
                }
            }
        }

        self.finish(task, *progress);
        Step::Done
    }

    fn react(&self, by: &dyn RuleEngine, event: &Event, rules: &[Arc<str>]) -> ReactionPlan {
        tracing::debug!("Compiling reactions for tag {}", event.tag);

        // A panic while rendering is a bug of ours, and must cost this event only.
        let rendered = catch_unwind(AssertUnwindSafe(|| by.react(event, rules)));
        let plan = rendered.unwrap_or_else(|_| {
            let words = format!(
                "rendering reactions for tag {} panicked; please report this bug",
                event.tag
            );
            let mut plan = ReactionPlan::default();
            plan.fail(words);
            plan
        });

        for (file, text) in &plan.files {
            tracing::debug!("Rendered data from file: {file}:\n{text}");
        }

        for (level, text) in &plan.notes {
            match level {
                NoteLevel::Error => {
                    self.metrics.reactor_errors.add(1);
                    tracing::error!(event = event.seq.0, tag = event.tag, "{text}");
                }
                NoteLevel::Warning => {
                    tracing::warn!(event = event.seq.0, tag = event.tag, "{text}");
                }
                NoteLevel::Info => tracing::info!("{text}"),
                NoteLevel::Debug => tracing::debug!("{text}"),
            }
        }

        plan
    }

    /// Tries a call. In shadow, or if the event is too old, it decides without sending.
    fn try_call(
        &self,
        task: &Task,
        rules: &RuleSet,
        progress: &mut TaskProgress,
        mut planned: PlannedCall,
        shadow: bool,
        is_old: bool,
    ) -> TryResult {
        let sent = self.clock.now();

        // In shadow the call stays as rendered, so that it can equal the call of Salt's reactor.
        if !shadow {
            name_orchestration(&mut planned.request, || own_jid(task, progress));
        }

        let mut made = CallRecord {
            jid: jid(task, progress, &planned.request),
            call: planned,
            tries: progress.tries,
            sent,
            took_us: 0,
            outcome: CallOutcome::Shadowed,
        };

        // Also in shadow, so that the record shows the result that the call would have.
        if let Some(why) = not_allowed(task, &made.call.request) {
            self.metrics.reactor_calls_not_allowed.add(1);
            return self.dead(task, made, why);
        }
        if let Some(why) = self.executor.unsupported(made.call.request.client) {
            return self.dead(task, made, why);
        }

        let key = call_key(&made.call);
        let times = |keys: &mut dyn Iterator<Item = u64>| keys.filter(|one| *one == key).count();

        // An event can have two equal calls, so they are counted.
        let was_started = !task.started_calls.is_empty()
            && times(&mut task.started_calls.iter().copied())
                > times(&mut progress.made.iter().map(|made| call_key(&made.call)));

        // `maybe_sent` is set for each call of a resumed task; only a try proves that it was sent.
        let was_sent = was_started
            || progress.unanswered.is_some()
            || (progress.maybe_sent && progress.tries > 0);

        if shadow && !was_sent {
            if let Some(why) = self.no_target(&made.call.request) {
                made.outcome = CallOutcome::Answered(Answer::NoTarget { why });
            }
            return TryResult::Finished(made);
        }

        if was_started && progress.unanswered.is_none() && must_not_repeat(task, &made.call.request)
        {
            let why =
                "sent before the last start of the daemon, and must not be repeated".to_owned();
            // The log lacks starts from while the daemon was down, so a short search is enough.
            progress.unanswered = Some(self.unanswered(why, REACTOR_START_TIME_RESUMED));
        }

        if let Some(unanswered) = progress.unanswered.take() {
            return self.settle(task, progress, made, unanswered);
        }

        // The response may be lost although the job was published, so the log is asked before a new
        // try.
        if progress.maybe_sent
            && let Some(jid) = self.find_in_log(&made, progress.since)
        {
            return self.found(task, made, jid);
        }

        if is_old || shadow {
            let why = if shadow {
                "the reactor is in shadow mode now"
            } else {
                "the event is older than `reactor.age_max`"
            };

            let is_unknown = progress.maybe_sent || was_started;
            let end = if is_unknown {
                Self::unknown
            } else {
                Self::dead
            };
            return end(self, task, made, why.to_owned());
        }

        // The search for proof begins at the first try, and later tries must not move that point.
        if !progress.maybe_sent {
            progress.since = self.store.durable();
        }

        // The slot is taken last, so that none is held by a call that cannot be made.
        let Call { client, fun, .. } = &made.call.request;
        let runner = client.is_of_master().then(|| fun.clone());
        if runner.is_some()
            && !self
                .scheduler
                .lock()
                .runners
                .take(rules, task.options.concurrency)
        {
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
            self.runner_requested(rules, &fun, outcome.as_ref().ok());
        }
        if progress.tries > 0 {
            self.metrics.reactor_calls_again.add(1);
        }

        let failure = match outcome {
            Ok(outcome) => {
                self.metrics.reactor_calls.add(1);
                (made.outcome, made.tries) = (outcome, progress.tries + 1);
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
        if !must_not_repeat(task, &made.call.request) {
            return Ok(());
        }
        // A mark that is still on its way is waited for: a second one would count as a second call,
        // of which only one could be withdrawn.
        let pending = if let Some(pending) = progress.mark.take() {
            pending
        } else {
            // A mark of a call that cannot be sent would have to be withdrawn at every try.
            if made.call.request.client != Client::Caller {
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

    fn failed(
        &self,
        task: &Task,
        progress: &mut TaskProgress,
        mut made: CallRecord,
        failure: Failure,
    ) -> TryResult {
        let now = self.clock.now();
        let wait = || TryResult::Pause(now.after(REACTOR_MASTER_RETRY));

        match &failure {
            // Nothing was sent, so this does not count as a try.
            Failure::Unreachable(why) => {
                self.set_master_unreachable(true, why);
                return wait();
            }
            Failure::MarkNotStored(why) => {
                let event = task.event.seq.0;
                tracing::error!(why, event, "cannot store the mark of a call, retrying");
                return wait();
            }
            _ => progress.tries += 1,
        }
        made.tries = progress.tries;
        let why = match failure {
            Failure::PossiblyMade(why) => {
                // If it was made, its event on the bus is ours but has no known response.
                self.suspend_foreign_calls();
                if must_not_repeat(task, &made.call.request) {
                    tracing::warn!(
                        error = why,
                        event = task.event.seq.0,
                        id = made.call.id,
                        "call got no answer, not repeating it"
                    );
                    return self.settle(
                        task,
                        progress,
                        made,
                        self.unanswered(why, REACTOR_START_TIME),
                    );
                }
                progress.maybe_sent = true;
                why
            }
            Failure::Final(why) => return self.dead(task, made, why),
            Failure::Unreachable(why) | Failure::MarkNotStored(why) | Failure::NotMade(why) => why,
        };

        if progress.tries >= task.options.tries {
            // No try was sent, so the outcome is certain.
            if !progress.maybe_sent {
                return self.dead(task, made, why);
            }
            return match self.find_in_log(&made, progress.since) {
                Some(jid) => self.found(task, made, jid),
                None => self.unknown(task, made, why),
            };
        }

        let pause = task.options.pause(progress.tries);
        tracing::warn!(error = why, event = task.event.seq.0, id = made.call.id, tries = progress.tries, again_in = ?pause, "call failed, retrying");
        TryResult::Pause(now.after(pause))
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

    fn execute(&self, made: &CallRecord, depth: u32, since: SeqNo) -> Result<CallOutcome, Failure> {
        let PlannedCall {
            id,
            sls,
            request: call,
        } = &made.call;

        if call.client == Client::Caller {
            let CallerReturn { value, retcode } = self.executor.caller(call)?;
            if retcode != 0 {
                self.metrics.reactor_callers_failed.add(1);
                tracing::warn!(fun = call.fun, retcode, id, sls, "caller function failed");
            }

            return Ok(CallOutcome::Ran {
                retcode,
                result: pack::packed(&value),
            });
        }

        if call.client == Client::Local {
            // Before publishing, because an event of the job may arrive before the response.
            self.job_depths.lock().note(&made.jid, depth);
        } else if let Some(jid) = orchestration_jid(call) {
            self.job_depths.lock().note(jid, depth);
        }

        // Noted before the request, because events of a runner can overtake the master's response.
        let start = start_of(call);
        if let Some(started) = &start {
            self.starts.lock().sent(started);
            self.job_depths
                .lock()
                .announce(started, depth, self.clock.now());
        }

        let answer = self.executor.ask(call, &made.jid, MASTER_TIMEOUT);

        // From here on the call no longer reserves a start in `Starts::find`.
        if let Some(started) = &start {
            let jid = match &answer {
                Ok(Answer::Started { jid, .. } | Answer::Ran { jid, .. }) => Some(jid.as_str()),
                _ => None,
            };
            self.starts.lock().returned(started, since, jid);
            // A rejected call fires nothing; its announcement must not match the next equal call.
            if answer.as_ref().is_err_and(MasterError::was_not_done) {
                self.job_depths.lock().withdraw(started, self.clock.now());
            }
        }

        let answer = answer?;
        self.set_master_unreachable(false, "");

        match &answer {
            Answer::Started { jid, .. }
            | Answer::Ran { jid, .. }
            | Answer::Published { jid, .. } => {
                self.job_depths.lock().note(jid, depth);
            }
            Answer::NoTarget { .. } => {}
        }

        Ok(CallOutcome::Answered(answer))
    }

    fn finish(&self, task: Task, progress: TaskProgress) {
        let is_dead = |made: &CallRecord| {
            matches!(made.outcome, CallOutcome::Dead(_) | CallOutcome::Unknown(_))
        };

        let state = if let Some(why) = task.skipped {
            self.count_skipped(why);
            ReactionState::Skipped(why)
        } else {
            let dead = progress.made.iter().filter(|made| is_dead(made)).count();
            let failed = !progress.plan.failures.is_empty();
            let (counter, state) = match (failed, dead) {
                (false, 0) => (&self.metrics.reactions_done, ReactionState::Done),
                // At least one call was made, whatever failed beside it.
                _ if dead < progress.made.len() => {
                    (&self.metrics.reactions_partial, ReactionState::Partial)
                }
                (true, _) => (&self.metrics.reactions_failed, ReactionState::Failed),
                (false, _) => (&self.metrics.reactions_dead, ReactionState::Dead),
            };
            counter.add(1);
            state
        };

        let now = self.clock.now();
        self.note_result(&task, &state, now);

        let record = Record {
            event: task.event,
            rules: task.rules,
            rule_count: task.rule_count,
            state,
            started_at: progress.started_at,
            ended: now,
            plan: progress.plan,
            calls: progress.made,
            replay: task.replay,
            depth: task.depth,
        };

        self.recorder.write(record.batch(now));
    }
}

impl Shared {
    /// Keeps the failed reactions for `status`.
    fn note_result(&self, task: &Task, state: &ReactionState, now: Micros) {
        let mut failed = self.failed.lock();
        match state {
            ReactionState::Done => failed.succeeded(task.event.seq, &task.rules),
            ReactionState::Partial | ReactionState::Failed | ReactionState::Dead => {
                failed.add(FailedReaction {
                    at: now,
                    event: task.event.seq,
                    tag: task.event.tag.clone(),
                    rules: task.rules.clone(),
                });
            }
            ReactionState::Skipped(_) => {}
        }
    }
}

/// The jid of a job, from the event's time and number, so that each try has the same jid. Empty for
/// calls whose jid the master chooses.
fn jid(task: &Task, progress: &TaskProgress, call: &Call) -> String {
    if call.client == Client::Local {
        own_jid(task, progress)
    } else {
        String::new()
    }
}

fn own_jid(task: &Task, progress: &TaskProgress) -> String {
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
        stamped_jid(Micros(base.0 + nth)),
        task.event.seq.0 % (1 << 32)
    )
}

fn not_allowed(task: &Task, call: &Call) -> Option<String> {
    let allow = &task.options.allow;
    let (client, fun, tgt) = (call.client.name(), &call.fun, call.target());
    if allow.is_empty() || allow.iter().any(|allow| allow.allows(client, fun, &tgt)) {
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
