//! Workers: render, and ask the master, one task at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::depths::{name_orchestration, orchestration_jid};
use super::engine::{RuleSnapshot, Shared};
use super::queues::{Item, Rules};
use super::record::{Made, Mark, Outcome, Record, State, call_key, client, mark, target};
use super::scheduler::{NextAction, Progress, Slot, Task};
use super::settle::{is_made_once, start_of};
use super::{CallerError, CallerReturn, Event, Reacted, RuleEngine, SeqNo, Wanted, What, lock, micros};
use crate::clock::Micros;
use crate::limits::{MASTER_TIMEOUT, REACTOR_MASTER_RETRY, REACTOR_START_TIME, REACTOR_START_TIME_RESUMED};
use crate::master::{Answer, Cmd, MasterError, pack};
use crate::model::{NoteLevel, stamped_jid};
use crate::sls::Value;

/// Where a task is after a step.
pub(super) enum Step {
    /// It is through.
    Done,
    /// It goes on then.
    Again(Item, Micros),
    /// It begins then, and nothing of its rule before.
    Throttled(Item, Micros),
    /// It goes on once a runner may be started.
    AwaitRunner(Item),
    /// Nothing is done about it.
    Leave(Box<Task>, &'static str),
}

/// What is known of a call after a try.
#[expect(clippy::large_enum_variant, reason = "one per worker, and gone at once")]
pub(super) enum Tried {
    Over(Made),
    Again(Micros),
    AwaitRunner,
}

/// Why a call was not carried out.
enum Failure {
    /// Nobody is there. It is waited for.
    Away(String),
    /// It must be written down first that it begins, and could not be.
    Unwritten(String),
    /// It was not done, and may be tried again.
    NotDone(String),
    /// It may have been done.
    Perhaps(String),
    /// It was done, or never can be; another try would change nothing.
    Final(String),
}

impl From<MasterError> for Failure {
    fn from(error: MasterError) -> Self {
        let words = error.to_string();
        match error {
            MasterError::Unreachable { .. } => Self::Away(words),
            error if error.was_not_done() => Self::NotDone(words),
            _ => Self::Perhaps(words),
        }
    }
}

impl From<CallerError> for Failure {
    fn from(error: CallerError) -> Self {
        match error {
            CallerError::NotStarted(words) => Self::NotDone(words),
            CallerError::Failed(words) => Self::Final(words),
            CallerError::Lost(words) => Self::Perhaps(words),
        }
    }
}

/// A thread.
pub(super) fn run(shared: &Arc<Shared>) {
    let mut scheduler = lock(&shared.scheduler);
    while !shared.drain.is_stopping() {
        // What cannot be written down is not begun.
        if shared.recorder.is_full() {
            scheduler = shared.rest(scheduler, None);
            continue;
        }
        match scheduler.next(shared.clock.now()) {
            NextAction::Run(item, place) => {
                drop(scheduler);
                let step = match shared.step(item, &place) {
                    Step::Leave(task, why) => {
                        shared.leave(*task, why);
                        Step::Done
                    }
                    step => step,
                };
                scheduler = lock(&shared.scheduler);
                match step {
                    Step::Again(item, at) => scheduler.again(item, &place, at),
                    Step::Throttled(item, at) => scheduler.throttle(item, &place, at),
                    Step::AwaitRunner(item) => scheduler.await_runner(item, &place),
                    Step::Done | Step::Leave(..) => scheduler.done(&place),
                }
                // This thread goes on with one of them itself.
                if scheduler.has_ready() {
                    shared.change.notify_one();
                }
                shared.room.notify_one();
            }
            NextAction::Wait(until) => scheduler = shared.rest(scheduler, until),
        }
    }
}

impl Shared {
    fn step(&self, item: Item, from: &Slot) -> Step {
        let RuleSnapshot { rules, settings } = self.rule_snapshot();
        let mut task = match self.loaded(item, from) {
            Ok(task) => task,
            Err(step) => return step,
        };
        let now = self.clock.now();
        let is_old = task.replay.is_none() && now.0 - task.event.at.0 > micros(settings.age_max);
        let mut progress = if let Some(progress) = task.progress.take() {
            progress
        } else {
            if is_old && task.begun.is_empty() {
                return Step::Leave(task.into(), "old");
            }
            // A rule that was taken out meanwhile reacts no more, also if it has been put back.
            let still = self.matching(&*rules, &task.event.tag, task.event.seq);
            if task.replay.is_none() && !task.rules.iter().any(|rule| still.contains(rule)) {
                return Step::Leave(task.into(), "gone");
            }
            task = match self.begin_task(task, &settings, now) {
                Ok(task) => task,
                Err(step) => return step,
            };
            let mut reacted = self.react(&*rules, &task.event, &task.rules);
            // In shadow Salt's own reactor answers.
            let fired = std::mem::take(&mut reacted.fired);
            for (tag, data) in fired.into_iter().filter(|_| !settings.shadow) {
                if let Err(why) = self.ask.fire(&tag, &data) {
                    tracing::error!(tag, why, "the reactor's answer could not be fired onto the bus");
                    reacted.fail(format!("{tag} could not be fired: {why}"));
                }
            }
            // A replay of what failed makes what was not made.
            for made in &task.already_made {
                if let Some(at) = reacted.wanted.iter().position(|wanted| call_key(wanted) == *made) {
                    reacted.wanted.remove(at);
                }
            }
            Box::new(Progress::of(&task.event, now, reacted, task.resumed))
        };
        // Calls that have waited for the master for too long. What was sent may have been carried out, and is no matter of age.
        if is_old && progress.made.is_empty() && !progress.unsure && progress.unanswered.is_none() {
            return Step::Leave(task.into(), "old");
        }
        // What came in shadow is not made, even if the shadow has ended meanwhile.
        let acts = task.replay.is_some()
            || lock(&self.checkpoint).acting_from().is_some_and(|from| task.event.seq >= from);
        let shadow = settings.shadow || task.left.is_some() || !acts;
        while let Some(wanted) = progress.reacted.wanted.get(progress.made.len()).cloned() {
            match self.make(&task, &from.rules, &mut progress, wanted, shadow, is_old) {
                Tried::Over(made) => progress.over(made, &task),
                Tried::Again(at) => {
                    task.progress = Some(progress);
                    return Step::Again(task.into(), at);
                }
                Tried::AwaitRunner => {
                    task.progress = Some(progress);
                    return Step::AwaitRunner(task.into());
                }
            }
        }
        self.finish(task, *progress);
        Step::Done
    }

    fn react(&self, by: &dyn RuleEngine, event: &Event, rules: &[Arc<str>]) -> Reacted {
        tracing::debug!("Compiling reactions for tag {}", event.tag);
        let rendered = catch_unwind(AssertUnwindSafe(|| by.react(event, rules)));
        let reacted = rendered.unwrap_or_else(|_| {
            let words = format!("rendering reactions for tag {} ended by panic, which is a bug", event.tag);
            let mut reacted = Reacted::default();
            reacted.fail(words);
            reacted
        });
        for (file, text) in &reacted.files {
            tracing::debug!("Rendered data from file: {file}:\n{text}");
        }
        for (level, text) in &reacted.notes {
            match level {
                NoteLevel::Error => {
                    self.metrics.reactor_errors.add(1);
                    tracing::error!(event = event.seq.0, tag = event.tag, "{text}");
                }
                NoteLevel::Warning => tracing::warn!(event = event.seq.0, tag = event.tag, "{text}"),
                NoteLevel::Info => tracing::info!("{text}"),
                NoteLevel::Debug => tracing::debug!("{text}"),
            }
        }
        reacted
    }

    /// Makes a call, or does not: in shadow, or because its event is too old.
    fn make(
        &self,
        task: &Task,
        rules: &Rules,
        progress: &mut Progress,
        mut wanted: Wanted,
        shadow: bool,
        is_old: bool,
    ) -> Tried {
        let sent = self.clock.now();
        if let What::Executor(call) = &mut wanted.what
            && !shadow
        {
            name_orchestration(call, || own_jid(task, progress));
        }
        let mut made = Made {
            jid: jid(task, progress, &wanted),
            wanted,
            tries: progress.tries,
            sent,
            took_us: 0,
            outcome: Outcome::Shadowed,
        };
        // In shadow, too: what is told to be done would be done.
        if let Some(why) = not_allowed(task, &made.wanted) {
            self.metrics.reactor_calls_not_allowed.add(1);
            return self.dead(task, made, why);
        }
        if let Some(why) = self.ask.cannot(client(&made.wanted.what)) {
            return self.dead(task, made, why);
        }
        let key = call_key(&made.wanted);
        let times = |keys: &mut dyn Iterator<Item = u64>| keys.filter(|one| *one == key).count();
        // Two calls of an event may look alike.
        let was_begun = !task.begun.is_empty()
            && times(&mut task.begun.iter().copied())
                > times(&mut progress.made.iter().map(|made| call_key(&made.wanted)));
        let was_sent = was_begun || progress.unanswered.is_some() || (progress.unsure && progress.tries > 0);
        if shadow && !was_sent {
            if let Some(why) = self.no_target(&made.wanted) {
                made.outcome = Outcome::Answered(Answer::NoTarget { why });
            }
            return Tried::Over(made);
        }
        if was_begun && progress.unanswered.is_none() && is_made_once(task, &made.wanted.what) {
            let why = "it was sent before the daemon was started last, and is sent once".to_owned();
            progress.unanswered = Some(self.unanswered(why, REACTOR_START_TIME_RESUMED));
        }
        if let Some(unanswered) = progress.unanswered.take() {
            return self.settle(task, progress, made, unanswered);
        }
        if progress.unsure
            && let Some(jid) = self.is_there(&made, progress.since)
        {
            return self.found(task, made, jid);
        }
        if is_old || shadow {
            let why = if shadow {
                "the reactor only watches by now"
            } else {
                "its event is older than `reactor.age_max`"
            };
            let is_unknown = progress.unsure || was_begun;
            let end = if is_unknown { Self::unknown } else { Self::dead };
            return end(self, task, made, why.to_owned());
        }
        if !progress.unsure {
            progress.since = self.store.durable();
        }
        let runner = match &made.wanted.what {
            What::Executor(call) if call.cmd != Cmd::Publish => Some(call.fun.clone()),
            _ => None,
        };
        if runner.is_some() && !lock(&self.scheduler).runners.take(rules, task.options.concurrency) {
            return Tried::AwaitRunner;
        }
        let outcome = self.begin(task, progress, &made, key).and_then(|()| {
            let began = Instant::now();
            let outcome = self.carry_out(&made, task.depth, progress.since);
            made.took_us = micros(began.elapsed());
            outcome
        });
        if let Some(fun) = runner {
            self.runner_asked(rules, &fun, outcome.as_ref().ok());
        }
        if progress.tries > 0 {
            self.metrics.reactor_calls_again.add(1);
        }
        let failure = match outcome {
            Ok(outcome) => {
                self.metrics.reactor_calls.add(1);
                (made.outcome, made.tries) = (outcome, progress.tries + 1);
                return Tried::Over(made);
            }
            Err(failure) => failure,
        };
        let tried = self.failed(task, progress, made, failure);
        if matches!(tried, Tried::Again(_))
            && progress.unanswered.is_none()
            && std::mem::take(&mut progress.begun)
        {
            // What is tried again was not made: what may have been is over by now. If a kill comes first it counts as perhaps made.
            let record = mark(&task.event, &task.rules, task.of, Mark::TakenBack, key, self.clock.now());
            self.recorder.write(record);
        }
        tried
    }

    /// Writes down that a call begins, if it must not be made twice. While the master is away none does.
    fn begin(&self, task: &Task, progress: &mut Progress, made: &Made, key: u64) -> Result<(), Failure> {
        if !is_made_once(task, &made.wanted.what) {
            return Ok(());
        }
        if matches!(made.wanted.what, What::Executor(_)) {
            self.ask.reach()?;
        }
        let record = mark(&task.event, &task.rules, task.of, Mark::Begun, key, made.sent);
        self.recorder.write_and_wait(record).map_err(Failure::Unwritten)?;
        progress.begun = true;
        Ok(())
    }

    /// A call was not carried out, or nobody knows.
    fn failed(&self, task: &Task, progress: &mut Progress, mut made: Made, failure: Failure) -> Tried {
        let now = self.clock.now();
        let wait = || Tried::Again(Micros(now.0 + micros(REACTOR_MASTER_RETRY)));
        match &failure {
            // Nothing was sent. It is waited for, and this was no try.
            Failure::Away(why) => {
                self.master_is(true, why);
                return wait();
            }
            Failure::Unwritten(why) => {
                let event = task.event.seq.0;
                tracing::error!(why, event, "could not write down that a call begins; trying again");
                return wait();
            }
            _ => progress.tries += 1,
        }
        made.tries = progress.tries;
        let why = match failure {
            Failure::Perhaps(why) => {
                self.suspend_foreign_calls();
                if is_made_once(task, &made.wanted.what) {
                    tracing::warn!(
                        error = why,
                        event = task.event.seq.0,
                        id = made.wanted.id,
                        "a reaction's call got no answer and is not made again"
                    );
                    return self.settle(task, progress, made, self.unanswered(why, REACTOR_START_TIME));
                }
                progress.unsure = true;
                why
            }
            Failure::Final(why) => return self.dead(task, made, why),
            Failure::Away(why) | Failure::Unwritten(why) | Failure::NotDone(why) => why,
        };
        if progress.tries >= task.options.tries {
            if !progress.unsure {
                return self.dead(task, made, why);
            }
            return match self.is_there(&made, progress.since) {
                Some(jid) => self.found(task, made, jid),
                None => self.unknown(task, made, why),
            };
        }
        let pause = task.options.pause(progress.tries);
        tracing::warn!(error = why, event = task.event.seq.0, id = made.wanted.id, tries = progress.tries, again_in = ?pause, "a reaction's call failed");
        Tried::Again(Micros(now.0 + micros(pause)))
    }

    /// What the master would have said to a job for nobody. Salt's reactor then leaves nothing behind, either.
    fn no_target(&self, wanted: &Wanted) -> Option<String> {
        let What::Executor(call) = &wanted.what else { return None };
        let tgt = call.load.get("tgt").filter(|_| call.cmd == Cmd::Publish)?;
        let tgt_type = call.load.get("tgt_type").and_then(Value::as_str).unwrap_or("glob");
        self.ask.no_target(tgt, tgt_type)
    }

    fn carry_out(&self, made: &Made, depth: u32, since: SeqNo) -> Result<Outcome, Failure> {
        let call = match &made.wanted.what {
            What::Executor(call) => call,
            What::Caller { fun, args, kwargs } => {
                let CallerReturn { value, retcode } = self.ask.caller(fun, args, kwargs)?;
                if retcode != 0 {
                    self.metrics.reactor_callers_failed.add(1);
                    tracing::warn!(
                        fun,
                        retcode,
                        id = made.wanted.id,
                        sls = made.wanted.sls,
                        "a caller function failed"
                    );
                }
                return Ok(Outcome::Ran { retcode, result: pack::packed(&value) });
            }
        };
        if call.cmd == Cmd::Publish {
            // Before it is published: an event of it may come before the answer.
            lock(&self.job_depths).note(&made.jid, depth);
        } else if let Some(jid) = orchestration_jid(call) {
            lock(&self.job_depths).note(jid, depth);
        }
        let start = start_of(&made.wanted.what);
        if let Some(act) = &start {
            lock(&self.starts).sent(act);
            lock(&self.job_depths).announce(act, depth, self.clock.now());
        }
        let answer = self.ask.ask(call, &made.jid, MASTER_TIMEOUT);
        if let Some(act) = &start {
            let jid = match &answer {
                Ok(Answer::Started { jid, .. } | Answer::Ran { jid, .. }) => Some(jid.as_str()),
                _ => None,
            };
            lock(&self.starts).returned(act, since, jid);
            if answer.as_ref().is_err_and(MasterError::was_not_done) {
                lock(&self.job_depths).withdraw(act, self.clock.now());
            }
        }
        let answer = answer?;
        self.master_is(false, "");
        match &answer {
            Answer::Started { jid, .. } | Answer::Ran { jid, .. } | Answer::Published { jid, .. } => {
                lock(&self.job_depths).note(jid, depth);
            }
            Answer::NoTarget { .. } => {}
        }
        Ok(Outcome::Answered(answer))
    }

    fn finish(&self, task: Task, progress: Progress) {
        let is_dead = |made: &Made| matches!(made.outcome, Outcome::Dead(_) | Outcome::Unknown(_));
        let state = if let Some(why) = task.left {
            self.count_left(why);
            State::Left(why)
        } else {
            let dead = progress.made.iter().filter(|made| is_dead(made)).count();
            let failed = !progress.reacted.failures.is_empty();
            let (counter, state) = match (failed, dead) {
                (false, 0) => (&self.metrics.reactions_done, State::Done),
                _ if dead < progress.made.len() => (&self.metrics.reactions_partial, State::Partial),
                (true, _) => (&self.metrics.reactions_failed, State::Failed),
                (false, _) => (&self.metrics.reactions_dead, State::Dead),
            };
            counter.add(1);
            state
        };
        let now = self.clock.now();
        let record = Record {
            event: task.event,
            rules: task.rules,
            of: task.of,
            state,
            began: progress.began,
            ended: now,
            reacted: progress.reacted,
            calls: progress.made,
            replay: task.replay,
            depth: task.depth,
        };
        self.recorder.write(record.batch(now));
    }
}

/// The jid of a job: the event's time and number, so that each try has the same one. None for what the master names itself.
fn jid(task: &Task, progress: &Progress, wanted: &Wanted) -> String {
    let What::Executor(call) = &wanted.what else { return String::new() };
    if call.cmd == Cmd::Publish { own_jid(task, progress) } else { String::new() }
}

fn own_jid(task: &Task, progress: &Progress) -> String {
    // A replay is another job.
    let base = if task.replay.is_some() { progress.began } else { task.event.at };
    let nth = i64::try_from(task.place * 1_000 + progress.made.len()).expect("calls of an event are few");
    // Salt knows jids with a number behind them from its option `unique_jid`; ours take the place of a pid.
    format!("{}_{}", stamped_jid(Micros(base.0 + nth)), task.event.seq.0 % (1 << 32))
}

fn not_allowed(task: &Task, wanted: &Wanted) -> Option<String> {
    let allow = &task.options.allow;
    let (client, tgt) = (client(&wanted.what), target(&wanted.what));
    let fun = match &wanted.what {
        What::Executor(call) => &call.fun,
        What::Caller { fun, .. } => fun,
    };
    if allow.is_empty() || allow.iter().any(|allow| allow.allows(client, fun, &tgt)) {
        return None;
    }
    let on = if tgt.is_empty() { String::new() } else { format!(" on {tgt:?}") };
    Some(format!("the configuration (`allow`) lets no reaction of this rule call {client} {fun}{on}"))
}
