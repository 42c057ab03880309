//! Workers: render events and have their calls made, one task at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::calls::{Calls, Permission, TryResult};
use super::decide::{AtTurn, Mode, Turn};
use super::endings::Endings;
use super::gate::CallGate;
use super::in_use::{InUse, RuleSnapshot};
use super::keeper::Keeper;
use super::pending::Pending;
use super::record::call_key;
use super::scheduler::queues::QueueItem;
use super::scheduler::task::{Task, TaskProgress};
use super::scheduler::{NextAction, Slot};
use super::tasks::{Step, Tasks};
use super::{Event, ReactionPlan, RuleEngine};
use crate::base::clock::{Clock, Micros, micros};
use crate::base::metrics::Metrics;
use crate::base::shutdown::Drain;
use crate::model::NoteLevel;

pub(super) struct Worker {
    pub(super) in_use: Arc<InUse>,
    pub(super) keeper: Arc<Keeper>,
    pub(super) pending: Arc<Pending>,
    pub(super) gate: Arc<CallGate>,
    pub(super) tasks: Arc<Tasks>,
    pub(super) calls: Calls,
    pub(super) endings: Arc<Endings>,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
}

impl Worker {
    /// Handles pending tasks until the daemon stops.
    pub(super) fn run(&self, drain: &Drain) {
        let mut scheduler = self.pending.lock();
        while !drain.is_stopping() {
            // Without room for its record, or without a lease, a reaction must not start.
            if self.endings.is_full() || self.gate.blocks() {
                self.pending.wait_for_change(&mut scheduler, None);
                continue;
            }

            match scheduler.next(self.clock.now()) {
                NextAction::Run(item, slot) => {
                    // Rendering and the master take long, so the scheduler is free meanwhile.
                    drop(scheduler);
                    // Skipping locks the scheduler itself, so it comes before this thread locks it
                    // again.
                    let step = match self.step(item, &slot) {
                        Step::Skip(task, why) => {
                            self.tasks.skip(*task, why);
                            Step::Done
                        }
                        step => step,
                    };

                    scheduler = self.pending.lock();
                    match step {
                        Step::Pause(item, at) => scheduler.pause(item, &slot, at),
                        Step::Throttled(item, at) => scheduler.throttle(item, &slot, at),
                        Step::AwaitRunner(item) => scheduler.await_runner(item, &slot),
                        Step::Done | Step::Skip(..) => scheduler.done(&slot),
                    }

                    // This thread handles one item, another worker the next.
                    if scheduler.has_ready() {
                        self.pending.wake();
                    }
                    self.pending.has_made_room();
                }
                NextAction::Wait(until) => self.pending.wait_for_change(&mut scheduler, until),
            }
        }
    }

    fn step(&self, item: QueueItem, from: &Slot) -> Step {
        let snapshot = self.in_use.snapshot();
        let mut task = match self.tasks.load_task(item, from) {
            Ok(task) => task,
            Err(step) => return step,
        };

        let is_replay = task.replay.is_some();
        // The reactor of another master, which led before, has done it meanwhile.
        if !is_replay && self.gate.election().is_some() && self.is_done(&task) {
            return Step::Done;
        }

        let progress = task.progress.take();
        let now = self.clock.now();
        let is_old = !is_replay && now.0 - task.event.at.0 > micros(snapshot.settings.age_max);

        let turn = Turn {
            is_old,
            has_begun: progress.is_some(),
            may_have_sent: progress
                .as_ref()
                .map_or(!task.started_calls.is_empty(), |progress| {
                    progress.may_have_sent()
                }),
            is_replay,
            is_of_peer: snapshot.settings.is_of_peer(&task.event.origin),
            // Only a task that begins needs to know.
            has_rule: progress.is_some() || is_replay || self.has_rule(&*snapshot.rules, &task),
        };

        // Salt's reactor has made these calls. They are rendered and recorded as shadowed.
        let of_fallback = !is_replay && self.gate.is_of_fallback(&task.event);
        let mut progress = match (turn.decide(), progress) {
            (AtTurn::Skip(why), _) => return Step::Skip(task.into(), why),
            (_, Some(progress)) => progress,
            (_, None) => {
                task = match self.tasks.start_task(task, &snapshot.settings, now) {
                    Ok(task) => task,
                    Err(step) => return step,
                };
                self.begin(&task, &snapshot, now, of_fallback)
            }
        };

        let mode = Mode {
            shadow: snapshot.settings.shadow,
            is_skipped: task.skipped.is_some(),
            is_replay,
            // Calls for events from the time of shadow mode are not made after its end.
            is_ours: !of_fallback && self.keeper.acts_on(task.event.seq),
        };
        let permission = Permission {
            only_watches: mode.only_watches(),
            is_old,
        };

        let is_one = self.gate.election().is_some();
        // In order, because the jid of a job contains the number of calls before it.
        while let Some(planned) = progress.plan.calls.get(progress.made.len()).cloned() {
            // If this reactor leads again, the event was requeued: one of the two tasks makes the calls.
            if is_one && !is_replay && !self.pending.lock().has(from) {
                return Step::Done;
            }
            let tried = self
                .calls
                .try_call(&task, &from.rules, &mut progress, planned, permission);
            match tried {
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

        self.endings.finish(task, *progress);
        Step::Done
    }

    /// Whether records have closed the event for all rules of a task.
    fn is_done(&self, task: &Task) -> bool {
        let checkpoint = self.keeper.checkpoint();
        let mut rules = task.rules.iter();
        rules.all(|rule| checkpoint.is_done(task.event.seq, rule))
    }

    /// Whether one of a task's rules still matches its event.
    fn has_rule(&self, rules: &dyn RuleEngine, task: &Task) -> bool {
        let still = self.keeper.matching(rules, &task.event.tag, task.event.seq);
        task.rules.iter().any(|rule| still.contains(rule))
    }

    /// Renders a task.
    fn begin(
        &self,
        task: &Task,
        snapshot: &RuleSnapshot,
        now: Micros,
        of_fallback: bool,
    ) -> Box<TaskProgress> {
        let RuleSnapshot {
            rules, settings, ..
        } = snapshot;
        let mut plan = self.react(&**rules, &task.event, &task.rules);

        // In shadow Salt's reactor responds.
        let fired = std::mem::take(&mut plan.fired);
        if !settings.shadow && !of_fallback {
            self.calls.fire(&mut plan, fired);
        }

        // The replay of a partial reaction makes only the missing calls.
        for made in &task.already_made {
            let mut calls = plan.calls.iter();
            if let Some(at) = calls.position(|planned| call_key(planned) == *made) {
                plan.calls.remove(at);
            }
        }

        Box::new(TaskProgress::of(&task.event, now, plan, task.resumed))
    }

    fn react(&self, by: &dyn RuleEngine, event: &Event, rules: &[Arc<str>]) -> ReactionPlan {
        tracing::debug!("Compiling reactions for tag {}", event.tag);

        // A panic while rendering is a bug of saltcellar, and must affect only this event.
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
                    tracing::error!(event = event.seq.0, tag = event.tag, note = %text, "reaction failed to render, its calls are not made: correct the cause, then run `saltcellar reactor replay --render EVENT`");
                }
                NoteLevel::Warning => {
                    tracing::warn!(event = event.seq.0, tag = event.tag, note = %text, "warning while rendering a reaction");
                }
                NoteLevel::Info => tracing::info!("{text}"),
                NoteLevel::Debug => tracing::debug!("{text}"),
            }
        }

        plan
    }
}
