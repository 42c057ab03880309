//! Tasks: created from events, on arrival and at their turn, and skipped.
//!
//! # Invariant
//!
//! Each matched event that is open has tasks for all its rules, or a record for those without one.

use std::sync::Arc;

use super::endings::Endings;
use super::events;
use super::in_use::InUse;
use super::keeper::Keeper;
use super::pending::Pending;
use super::record::counted_once;
use super::scheduler::Slot;
use super::scheduler::queues::QueueItem;
use super::scheduler::task::{RuleSet, Task};
use super::scheduler::throttle::Admission;
use super::{Event, SeqNo, decide};
use crate::base::clock::{Clock, Micros};
use crate::base::limits::REACTOR_MASTER_RETRY;
use crate::model::{ReactorSettings, RuleOptions};
use crate::reactor::stored::SkipReason;
use crate::store::{Followed, Store};

/// What becomes of an item after a turn.
pub(super) enum Step {
    Done,
    /// It continues at that time.
    Pause(QueueItem, Micros),
    /// A rate delays it, and all others of its rules.
    Throttled(QueueItem, Micros),
    /// It continues once a runner may be started.
    AwaitRunner(QueueItem),
    /// It is skipped, for that reason.
    Skip(Box<Task>, SkipReason),
}

pub(super) struct Tasks {
    pub(super) in_use: Arc<InUse>,
    pub(super) keeper: Arc<Keeper>,
    pub(super) pending: Arc<Pending>,
    pub(super) endings: Arc<Endings>,
    pub(super) log: Store,
    pub(super) clock: Clock,
}

impl Tasks {
    /// Queues an event: one task per group of its rules.
    pub(super) fn admit(
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
                let checkpoint = self.keeper.checkpoint();
                rules.retain(|rule| !checkpoint.is_done(event.seq, rule));
            }
            if rules.is_empty() {
                continue;
            }

            // `matched` contains all rules, because each needs a record before the event is closed.
            let task = Task {
                depth,
                resumed,
                ..self.task(event.clone(), rules, matched, options, resumed)
            };

            match decide::at_arrival(depth, settings.depth_max) {
                Some(why) => self.skip(task, why),
                None => self.offer(task),
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
            self.keeper
                .checkpoint()
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

    /// Notes an event that counted for rules with `once_per`, according to the record of another master's reactor.
    pub(super) fn note_first(&self, settings: &ReactorSettings, row: &Followed<'_>) {
        for options in settings.rules.iter().filter(|one| one.once_per.is_some()) {
            if let Some(at) = counted_once(row.body, &options.rule) {
                self.pending.lock().note_first(options, row.minion, at);
            }
        }
    }

    /// The task of an item, with its event loaded.
    pub(super) fn load_task(&self, item: QueueItem, slot: &Slot) -> Result<Task, Step> {
        let (seq, depth, resumed) = match item {
            QueueItem::Task(task) => return Ok(*task),
            QueueItem::Later {
                seq,
                depth,
                resumed,
            } => (seq, depth, resumed),
        };

        match events::load(&self.log, seq) {
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
                tracing::error!(%error, event = seq.0, "cannot read the event of a pending reaction, retrying: run `saltcellar store verify`");
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
        let matched = self.in_use.rules().matching(&event.tag);

        // Removed rules count as long as the event is open for them.
        let opened = self
            .keeper
            .checkpoint()
            .open
            .of(event.seq)
            .map_or(0, |rule_count| rule_count as usize);

        let task = self.task(event, rules.to_vec(), &matched, options, resumed);
        Task {
            // After a restart only current rules are queued. Removed rules would keep the event
            // open forever.
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
    pub(super) fn start_task(
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
            // Each part passes through the throttles of its rules.
            for (rules, options) in groups {
                let (depth, resumed) = (task.depth, task.resumed);
                let part = self.task_from_log(task.event.clone(), &rules, options, resumed);
                self.offer(Task { depth, ..part });
            }
            return Err(Step::Done);
        }

        let start = self.pending.lock().start(&task, now);
        match start {
            Admission::Now => Ok(task),
            Admission::At(at) => Err(Step::Throttled(task.into(), at)),
            Admission::OverBudget => Err(Step::Skip(task.into(), SkipReason::Budget)),
            Admission::TooLate => Err(Step::Skip(task.into(), SkipReason::Rate)),
        }
    }

    pub(super) fn offer(&self, task: Task) {
        let skipped = self.pending.offer(task);

        // Outside of the lock: skipping reads the log, and may queue the task again.
        if let Some((rules, item, why)) = skipped {
            self.skip_item(&rules, item, why);
        }
    }

    /// Skips a task and records that.
    pub(super) fn skip(&self, mut task: Task, why: SkipReason) {
        // Salt's reactor has no throttles. A call that only Salt makes can be explained if the
        // skipped reaction is rendered.
        if why.throttle().is_some() && task.skipped.is_none() && self.in_use.settings().shadow {
            task.skipped = Some(why);
            // Past the throttles, which have decided already.
            self.pending.put(task);
            return;
        }

        self.endings.skip(task, why);
    }

    /// Records that an item is skipped.
    fn skip_item(&self, rules: &RuleSet, item: QueueItem, why: SkipReason) {
        let (seq, resumed) = match item {
            QueueItem::Task(task) => return self.skip(*task, why),
            QueueItem::Later { seq, resumed, .. } => (seq, resumed),
        };

        match events::load(&self.log, seq) {
            Ok(Some(event)) => {
                let options = self.in_use.settings().options_of(rules).clone();
                self.skip(self.task_from_log(event, rules, options, resumed), why);
            }
            Ok(None) => self.skip_deleted(seq),
            Err(error) => {
                tracing::error!(%error, event = seq.0, why = why.name(), "cannot read a skipped event, it stays open until the next start: run `saltcellar store verify`");
            }
        }
    }

    /// Closes an event that retention has deleted.
    pub(super) fn skip_deleted(&self, seq: SeqNo) {
        tracing::warn!(
            event = seq.0,
            "retention deleted a pending event, its reaction is skipped: keep its class longer (`store.classes`)"
        );
        self.endings.skip_deleted();
        self.keeper.checkpoint().forget(seq);
    }
}
