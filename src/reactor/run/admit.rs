//! From an event to tasks: when it comes, and when its turn comes.

use std::sync::Arc;

use super::engine::Shared;
use super::queues::{Item, Rules};
use super::scheduler::{Slot, Task};
use super::throttle::Start;
use super::worker::Step;
use super::{Event, SeqNo, lock, micros};
use crate::clock::Micros;
use crate::limits::REACTOR_MASTER_RETRY;
use crate::model::{ReactorSettings, RuleOptions};

impl Shared {
    /// Puts an event on the scheduler, a task for each group of its rules.
    pub(super) fn admit(
        &self,
        settings: &ReactorSettings,
        event: &Event,
        matched: &[Arc<str>],
        depth: u32,
        resumed: bool,
    ) {
        for (mut rules, options) in settings.groups(matched.to_vec()) {
            if resumed {
                let checkpoint = lock(&self.checkpoint);
                rules.retain(|rule| !checkpoint.is_done(event.seq, rule));
            }
            if rules.is_empty() {
                continue;
            }
            let task = Task { depth, resumed, ..self.task(event.clone(), rules, matched, options, resumed) };
            if depth > settings.depth_max {
                self.leave(task, "depth");
            } else {
                self.offer(task);
            }
        }
    }

    fn task(
        &self,
        event: Event,
        rules: Vec<Arc<str>>,
        matched: &[Arc<str>],
        options: Arc<RuleOptions>,
        resumed: bool,
    ) -> Task {
        let begun = || lock(&self.checkpoint).open.progress(event.seq).begun.clone();
        let first = matched.iter().position(|rule| Some(rule) == rules.first());
        Task {
            begun: resumed.then(begun).unwrap_or_default(),
            event,
            of: matched.len(),
            place: first.unwrap_or(0),
            rules,
            options,
            depth: 0,
            resumed,
            replay: None,
            already_made: Vec::new(),
            left: None,
            progress: None,
        }
    }

    /// A task whose turn has come, with its event.
    pub(super) fn loaded(&self, item: Item, place: &Slot) -> Result<Task, Step> {
        let (seq, depth, resumed) = match item {
            Item::Task(task) => return Ok(*task),
            Item::Later { seq, depth, resumed } => (seq, depth, resumed),
        };
        match self.load(seq) {
            Ok(Some(event)) => {
                let task = self.task_later(event, &place.rules, place.options.clone(), resumed);
                Ok(Task { depth: depth.into(), ..task })
            }
            Ok(None) => {
                self.is_gone(seq);
                Err(Step::Done)
            }
            Err(error) => {
                tracing::error!(%error, event = seq.0, "an event cannot be read for a reaction; trying again");
                Err(Step::Again(item, Micros(self.clock.now().0 + micros(REACTOR_MASTER_RETRY))))
            }
        }
    }

    /// A task for an event that came before, by the rules as they are now.
    fn task_later(&self, event: Event, rules: &[Arc<str>], options: Arc<RuleOptions>, resumed: bool) -> Task {
        let matched = self.rules().matching(&event.tag);
        // Rules that were taken out count as long as the event is open for them.
        let opened = lock(&self.checkpoint).open.of(event.seq).map_or(0, |of| of as usize);
        let task = self.task(event, rules.to_vec(), &matched, options, resumed);
        Task { of: if resumed { task.of } else { task.of.max(opened) }, ..task }
    }

    /// Lets a task begin now, unless a throttle keeps it waiting. Rules that were one group when the event came may have options of
    /// their own by now, and wait apart then.
    pub(super) fn begin_task(
        &self,
        task: Task,
        settings: &ReactorSettings,
        now: Micros,
    ) -> Result<Task, Step> {
        if task.left.is_some() {
            return Ok(task);
        }
        let groups = settings.groups(task.rules.clone());
        if groups.len() > 1 && task.replay.is_none() {
            for (rules, options) in groups {
                let (depth, resumed) = (task.depth, task.resumed);
                let part = self.task_later(task.event.clone(), &rules, options, resumed);
                self.offer(Task { depth, ..part });
            }
            return Err(Step::Done);
        }
        let start = lock(&self.scheduler).start(&task, now);
        match start {
            Start::Go => Ok(task),
            Start::At(at) => Err(Step::Throttled(task.into(), at)),
            Start::OverBudget => Err(Step::Leave(task.into(), "budget")),
            Start::TooLate => Err(Step::Leave(task.into(), "rate")),
        }
    }

    /// Puts a task on the scheduler.
    pub(super) fn offer(&self, task: Task) {
        let left = lock(&self.scheduler).offer(task, self.clock.now());
        self.change.notify_one();
        if let Some((rules, item, why)) = left {
            self.leave_item(&rules, item, why);
        }
    }

    /// Writes down that nothing is done about an item.
    fn leave_item(&self, rules: &Rules, item: Item, why: &'static str) {
        let (seq, resumed) = match item {
            Item::Task(task) => return self.leave(*task, why),
            Item::Later { seq, resumed, .. } => (seq, resumed),
        };
        match self.load(seq) {
            Ok(Some(event)) => {
                let options = self.settings().options_of(rules).clone();
                self.leave(self.task_later(event, rules, options, resumed), why);
            }
            Ok(None) => self.is_gone(seq),
            Err(error) => {
                tracing::error!(%error, event = seq.0, why, "an event that is left out cannot be read; it is open until the next start");
            }
        }
    }

    /// Retention has deleted an event. There is nothing to react to, and nothing to wait for.
    pub(super) fn is_gone(&self, seq: SeqNo) {
        tracing::warn!(event = seq.0, "an event that was to be reacted to is no longer in the log");
        self.metrics.reactions_left_gone.add(1);
        lock(&self.checkpoint).forget(seq);
    }
}
