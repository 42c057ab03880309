//! Creation of tasks from events, on arrival and at their turn.

use std::sync::Arc;

use super::RuleSet;
use super::queues::QueueItem;
use super::throttle::Admission;
use super::{Slot, Task};
use crate::base::clock::Micros;
use crate::base::limits::REACTOR_MASTER_RETRY;
use crate::model::{ReactorSettings, RuleOptions};
use crate::reactor::run::engine::Shared;
use crate::reactor::run::worker::Step;
use crate::reactor::run::{Event, SeqNo};

impl Shared {
    /// Queues an event: one task per group of its rules.
    pub(in crate::reactor::run) fn admit(
        &self,
        settings: &ReactorSettings,
        event: &Event,
        matched: &[Arc<str>],
        depth: u32,
        resumed: bool,
    ) {
        for (mut rules, options) in settings.groups(matched.to_vec()) {
            // Some of its rules may have their record from before the restart.
            if resumed {
                let checkpoint = self.checkpoint.lock();
                rules.retain(|rule| !checkpoint.is_done(event.seq, rule));
            }
            if rules.is_empty() {
                continue;
            }

            let task = Task {
                depth,
                resumed,
                ..self.task(event.clone(), rules, matched, options, resumed)
            };

            // Recorded like any skipped reaction, so that `doctor` finds the loop.
            if depth > settings.depth_max {
                self.skip(task, "depth");
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
        let started = || {
            self.checkpoint
                .lock()
                .open
                .progress(event.seq)
                .started
                .clone()
        };

        // Only a resumed event can have calls from before; the lock is not needed otherwise.
        let started_calls = resumed.then(started).unwrap_or_default();
        let first = matched.iter().position(|rule| Some(rule) == rules.first());

        let task = Task::new(event, rules, matched.len(), options);
        Task {
            started_calls,
            rule_index: first.unwrap_or(0),
            resumed,
            ..task
        }
    }

    /// The task of an item, with its event loaded.
    pub(in crate::reactor::run) fn load_task(
        &self,
        item: QueueItem,
        slot: &Slot,
    ) -> Result<Task, Step> {
        let (seq, depth, resumed) = match item {
            QueueItem::Task(task) => return Ok(*task),
            QueueItem::Later {
                seq,
                depth,
                resumed,
            } => (seq, depth, resumed),
        };

        match self.load(seq) {
            Ok(Some(event)) => {
                let task = self.task_from_log(event, &slot.rules, slot.options.clone(), resumed);
                Ok(Task {
                    depth: depth.into(),
                    ..task
                })
            }
            Ok(None) => {
                self.skip_deleted(seq);
                Err(Step::Done)
            }
            Err(error) => {
                // Not skipped: a read that fails now may succeed later, and the event stays open.
                tracing::error!(%error, event = seq.0, "cannot read event of a pending reaction, retrying");
                Err(Step::Pause(
                    item,
                    self.clock.now().after(REACTOR_MASTER_RETRY),
                ))
            }
        }
    }

    /// A task for an event of the log, by the current rules.
    fn task_from_log(
        &self,
        event: Event,
        rules: &[Arc<str>],
        options: Arc<RuleOptions>,
        resumed: bool,
    ) -> Task {
        let matched = self.rules().matching(&event.tag);

        // Removed rules count as long as the event is open for them.
        let opened = self
            .checkpoint
            .lock()
            .open
            .of(event.seq)
            .map_or(0, |rule_count| rule_count as usize);

        let task = self.task(event, rules.to_vec(), &matched, options, resumed);
        Task {
            // After a restart only current rules are queued. Removed ones would keep the event open
            // forever.
            rule_count: if resumed {
                task.rule_count
            } else {
                task.rule_count.max(opened)
            },
            ..task
        }
    }

    /// Starts a task unless a throttle delays or skips it. If its rules have different options by
    /// now, it is split into one task per group.
    pub(in crate::reactor::run) fn start_task(
        &self,
        task: Task,
        settings: &ReactorSettings,
        now: Micros,
    ) -> Result<Task, Step> {
        // Rendered only for the comparison in shadow, since a throttle has decided already.
        if task.skipped.is_some() {
            return Ok(task);
        }

        let groups = settings.groups(task.rules.clone());
        if groups.len() > 1 && task.replay.is_none() {
            // Each part passes through the throttles of its own rules.
            for (rules, options) in groups {
                let (depth, resumed) = (task.depth, task.resumed);
                let part = self.task_from_log(task.event.clone(), &rules, options, resumed);
                self.offer(Task { depth, ..part });
            }
            return Err(Step::Done);
        }

        let start = self.scheduler.lock().start(&task, now);
        match start {
            Admission::Now => Ok(task),
            Admission::At(at) => Err(Step::Throttled(task.into(), at)),
            Admission::OverBudget => Err(Step::Skip(task.into(), "budget")),
            Admission::TooLate => Err(Step::Skip(task.into(), "rate")),
        }
    }

    pub(in crate::reactor::run) fn offer(&self, task: Task) {
        let skipped = self.scheduler.lock().offer(task, self.clock.now());
        self.change.notify_one();

        // Outside of the lock: skipping reads the log, and may queue the task again.
        if let Some((rules, item, why)) = skipped {
            self.skip_item(&rules, item, why);
        }
    }

    /// Records that an item is skipped.
    fn skip_item(&self, rules: &RuleSet, item: QueueItem, why: &'static str) {
        let (seq, resumed) = match item {
            QueueItem::Task(task) => return self.skip(*task, why),
            QueueItem::Later { seq, resumed, .. } => (seq, resumed),
        };

        match self.load(seq) {
            Ok(Some(event)) => {
                let options = self.settings().options_of(rules).clone();
                self.skip(self.task_from_log(event, rules, options, resumed), why);
            }
            Ok(None) => self.skip_deleted(seq),
            Err(error) => {
                tracing::error!(%error, event = seq.0, why, "cannot read skipped event, it stays open until the next start");
            }
        }
    }

    /// Closes an event that retention has deleted.
    pub(in crate::reactor::run) fn skip_deleted(&self, seq: SeqNo) {
        tracing::warn!(
            event = seq.0,
            "pending event was deleted from the log, reaction skipped"
        );
        self.metrics.reactions_left_gone.add(1);
        self.checkpoint.lock().forget(seq);
    }
}
