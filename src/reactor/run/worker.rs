//! Workers: render, and ask the master, one task at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::desk::{Progress, Task, Turn};
use super::engine::{Ruled, Shared};
use super::record::{Made, Mark, Outcome, Record, State, call_key, client, mark, target};
use super::{CallerError, CallerReturn, Event, React, Reacted, Wanted, What, lock, micros};
use crate::clock::Micros;
use crate::limits::{MASTER_PATIENCE, REACTOR_MASTER_AWAY};
use crate::master::{Answer, Cmd, MasterError, pack};
use crate::model::{NoteLevel, stamped_jid};
use crate::sls::Value;

/// Where a task is after a step.
enum Step {
    /// It is through.
    Done,
    /// It goes on then.
    Again(Task, Micros),
    /// Nothing is done about it.
    Leave(Task, &'static str),
}

/// What is known of a call after a try.
#[expect(clippy::large_enum_variant, reason = "one per worker, and gone at once")]
enum Tried {
    Over(Made),
    Again(Micros),
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
            CallerError::NotBegun(words) => Self::NotDone(words),
            CallerError::Failed(words) => Self::Final(words),
            CallerError::Lost(words) => Self::Perhaps(words),
        }
    }
}

/// A thread.
pub(super) fn run(shared: &Arc<Shared>) {
    let mut desk = lock(&shared.desk);
    while !shared.drain.is_stopping() {
        match desk.next(shared.clock.now(), shared.settings().compares()) {
            Turn::Run(task, place) => {
                drop(desk);
                let step = shared.step(task);
                if let Step::Again(task, at) = step {
                    desk = lock(&shared.desk);
                    desk.again(task, place, at);
                } else {
                    if let Step::Leave(task, why) = step {
                        shared.leave(task, why);
                    }
                    desk = lock(&shared.desk);
                    desk.done(place);
                }
                // This thread goes on with one of them itself.
                if desk.has_ready() {
                    shared.change.notify_one();
                }
                shared.room.notify_one();
            }
            Turn::Leave(task, why) => {
                drop(desk);
                shared.leave(task, why);
                desk = lock(&shared.desk);
            }
            Turn::Wait(until) => desk = shared.rest(desk, until),
        }
    }
}

impl Shared {
    fn step(&self, mut task: Task) -> Step {
        let Ruled { rules, settings } = self.ruled();
        if !task.loaded {
            match self.load(task.event.seq) {
                Ok(Some(event)) => (task.event, task.loaded) = (event, true),
                Ok(None) => return Step::Leave(task, "gone"),
                Err(error) => {
                    tracing::error!(%error, event = task.event.seq.0, "an event cannot be read for a reaction; trying again");
                    return Step::Again(task, Micros(self.clock.now().0 + micros(REACTOR_MASTER_AWAY)));
                }
            }
        }
        let now = self.clock.now();
        let mut progress = if let Some(progress) = task.progress.take() {
            progress
        } else {
            let is_old = now.0 - task.event.at.0 > micros(settings.age_max);
            if is_old && task.replay.is_none() {
                return Step::Leave(task, "old");
            }
            // A rule that was taken out meanwhile reacts no more.
            let still = rules.matching(&task.event.tag);
            if task.replay.is_none() && !task.rules.iter().any(|rule| still.contains(rule)) {
                return Step::Leave(task, "gone");
            }
            let mut reacted = self.react(&*rules, &task.event, &task.rules);
            for (tag, data) in std::mem::take(&mut reacted.fired) {
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
            let (made, unsure) = (Vec::new(), task.resumed);
            Box::new(Progress { began: now, reacted, made, tries: 0, unsure, begun: false })
        };
        while let Some(wanted) = progress.reacted.wanted.get(progress.made.len()).cloned() {
            // What was left out in shadow is not made, even if the shadow has ended meanwhile.
            match self.make(&task, &mut progress, wanted, settings.shadow || task.left.is_some()) {
                Tried::Over(made) => {
                    (progress.tries, progress.unsure, progress.begun) = (0, task.resumed, false);
                    progress.made.push(made);
                }
                Tried::Again(at) => {
                    task.progress = Some(progress);
                    return Step::Again(task, at);
                }
            }
        }
        self.finish(task, *progress);
        Step::Done
    }

    fn react(&self, by: &dyn React, event: &Event, rules: &[Arc<str>]) -> Reacted {
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

    /// Makes a call, or does not.
    fn make(&self, task: &Task, progress: &mut Progress, wanted: Wanted, shadow: bool) -> Tried {
        let sent = self.clock.now();
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
        if shadow {
            if let Some(why) = self.reaches_nobody(&made.wanted) {
                made.outcome = Outcome::Answered(Answer::Nobody { why });
            }
            return Tried::Over(made);
        }
        let key = call_key(&made.wanted);
        if task.begun.contains(&key) {
            let why = "it was begun before the daemon was started last, and is made once at most".to_owned();
            return self.unknown(task, made, why);
        }
        if progress.unsure && self.is_there(&made) {
            made.outcome = Outcome::Found;
            return Tried::Over(made);
        }
        let outcome = self.begin(task, progress, &made, key).and_then(|()| {
            let began = Instant::now();
            let outcome = self.carry_out(&made, task.depth);
            made.took_us = micros(began.elapsed());
            outcome
        });
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
        if matches!(tried, Tried::Again(_)) && std::mem::take(&mut progress.begun) {
            // What is tried again was not made: what may have been is over by now. If a kill comes first it counts as perhaps made.
            let record = mark(&task.event, &task.rules, task.of, Mark::TakenBack, key, self.clock.now());
            self.recorder.write(record);
        }
        tried
    }

    /// Writes down that a call begins, if it must not be made twice. While the master is away none does.
    fn begin(&self, task: &Task, progress: &mut Progress, made: &Made, key: u64) -> Result<(), Failure> {
        if !task.options.at_most_once {
            return Ok(());
        }
        if matches!(made.wanted.what, What::Ask(_)) {
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
        let wait = || Tried::Again(Micros(now.0 + micros(REACTOR_MASTER_AWAY)));
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
            Failure::Perhaps(why) if task.options.at_most_once => return self.unknown(task, made, why),
            Failure::Perhaps(why) => {
                self.suspend_foreign_calls();
                progress.unsure = true;
                why
            }
            Failure::Final(why) => return self.dead(task, made, why),
            Failure::Away(why) | Failure::Unwritten(why) | Failure::NotDone(why) => why,
        };
        if progress.tries >= task.options.tries {
            return self.dead(task, made, why);
        }
        let pause = task.options.pause(progress.tries);
        tracing::warn!(error = why, event = task.event.seq.0, id = made.wanted.id, tries = progress.tries, again_in = ?pause, "a reaction's call failed");
        Tried::Again(Micros(now.0 + micros(pause)))
    }

    /// What the master would have said to a job for nobody. Salt's reactor then leaves nothing behind, either.
    fn reaches_nobody(&self, wanted: &Wanted) -> Option<String> {
        let What::Ask(call) = &wanted.what else { return None };
        let tgt = call.load.get("tgt").filter(|_| call.cmd == Cmd::Publish)?;
        let tgt_type = call.load.get("tgt_type").and_then(Value::as_str).unwrap_or("glob");
        self.ask.reaches_nobody(tgt, tgt_type)
    }

    fn carry_out(&self, made: &Made, depth: u32) -> Result<Outcome, Failure> {
        let call = match &made.wanted.what {
            What::Ask(call) => call,
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
            lock(&self.origins).note(&made.jid, depth);
        }
        let answer = self.ask.ask(call, &made.jid, MASTER_PATIENCE)?;
        self.master_is(false, "");
        match &answer {
            Answer::Started { jid, .. } => {
                lock(&self.origins).note(jid, depth);
                self.await_runner(jid, &call.fun);
            }
            Answer::Ran { jid, .. } | Answer::Published { jid, .. } => lock(&self.origins).note(jid, depth),
            Answer::Nobody { .. } => {}
        }
        Ok(Outcome::Answered(answer))
    }

    /// Has the job been seen? Its jid comes of the event, so it is the same at each try, also after a start.
    fn is_there(&self, made: &Made) -> bool {
        if made.jid.is_empty() {
            return false;
        }
        match self.store.job_entries_with(&made.jid, |_| false) {
            Ok(entries) => !entries.is_empty(),
            Err(error) => {
                tracing::warn!(%error, jid = made.jid, "could not look whether a job is there already");
                false
            }
        }
    }

    fn dead(&self, task: &Task, mut made: Made, why: String) -> Tried {
        self.metrics.reactor_calls_dead.add(1);
        let wanted = &made.wanted;
        let fun = match &wanted.what {
            What::Ask(call) => &call.fun,
            What::Caller { fun, .. } => fun,
        };
        // Salt's words, and ours behind them.
        tracing::error!(
            event = task.event.seq.0, tag = task.event.tag, sls = wanted.sls, rules = ?task.rules, why,
            "Reactor '{}' failed to execute {} '{fun}'", wanted.id, client(&wanted.what)
        );
        made.outcome = Outcome::Dead(why);
        Tried::Over(made)
    }

    fn unknown(&self, task: &Task, mut made: Made, why: String) -> Tried {
        self.metrics.reactor_calls_unknown.add(1);
        tracing::error!(
            event = task.event.seq.0,
            tag = task.event.tag,
            sls = made.wanted.sls,
            id = made.wanted.id,
            why,
            "nobody knows whether a reaction's call was made; it is not made again"
        );
        made.outcome = Outcome::Unknown(why);
        Tried::Over(made)
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
        };
        self.recorder.write(record.batch(now));
    }
}

/// The jid of a job: the event's time and number, so that each try has the same one. None for what the master names itself.
fn jid(task: &Task, progress: &Progress, wanted: &Wanted) -> String {
    let What::Ask(call) = &wanted.what else { return String::new() };
    if call.cmd != Cmd::Publish {
        return String::new();
    }
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
        What::Ask(call) => &call.fun,
        What::Caller { fun, .. } => fun,
    };
    if allow.is_empty() || allow.iter().any(|allow| allow.allows(client, fun, &tgt)) {
        return None;
    }
    let on = if tgt.is_empty() { String::new() } else { format!(" on {tgt:?}") };
    Some(format!("the configuration (`allow`) lets no reaction of this rule call {client} {fun}{on}"))
}
