//! The queues of one set of rules that is rendered together.
//!
//! There is one queue per minion (or one in total, or one per event: option `order`). Only the
//! first item of a queue is handled. Items are tasks in memory up to a limit, and sequence numbers
//! beyond it. The number of queues is also limited: further events wait in an overflow list, in
//! order, until a queue is free.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::runners::Runners;
use super::task::{RuleSet, Task};
use crate::base::clock::Micros;
use crate::base::limits::{REACTOR_MINION_TASKS_MAX, REACTOR_QUEUES_MAX, REACTOR_RULE_TASKS_MAX};
use crate::model::RuleOptions;
use crate::reactor::run::SeqNo;

#[derive(Debug)]
pub(crate) enum QueueItem {
    /// In memory.
    Task(Box<Task>),
    /// In the log, loaded when its turn comes.
    Later {
        seq: SeqNo,
        /// Length of the chain of reactions that led to it.
        depth: u16,
        /// True if the daemon was restarted since the event arrived.
        resumed: bool,
    },
}

// A million of them are queued while a master is down.
const _: () = assert!(size_of::<QueueItem>() == 16);

impl From<Task> for QueueItem {
    fn from(task: Task) -> Self {
        Self::Task(Box::new(task))
    }
}

impl QueueItem {
    /// Number of tasks in memory, and bytes of their event data.
    pub(in crate::reactor::run) fn load(&self) -> (usize, usize) {
        match self {
            Self::Task(task) => (1, task.event.body.len()),
            Self::Later { .. } => (0, 0),
        }
    }

    pub(in crate::reactor::run) fn seq(&self) -> SeqNo {
        match self {
            Self::Task(task) => task.event.seq,
            Self::Later { seq, .. } => *seq,
        }
    }

    /// The item as a sequence number, unless it has state that the log lacks.
    pub(in crate::reactor::run) fn unloaded(self) -> Self {
        match self {
            Self::Task(task)
                if task.progress.is_none() && task.replay.is_none() && task.skipped.is_none() =>
            {
                let depth = u16::try_from(task.depth).unwrap_or(u16::MAX);
                Self::Later {
                    seq: task.event.seq,
                    depth,
                    resumed: task.resumed,
                }
            }
            other => other,
        }
    }
}

/// The kind of item that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Continues after a pause.
    Retry,
    /// Continues now that a runner may be started.
    Runner,
    Begin,
}

#[derive(Debug, Default)]
pub(crate) struct RuleQueues {
    pub(crate) rules: RuleSet,
    pub(crate) options: Arc<RuleOptions>,
    pub(crate) running: u32,
    pub(crate) tasks: usize,
    /// Queues whose first item is paused.
    pub(crate) parked: usize,
    /// No reaction starts before this time (`rate`).
    pub(crate) until: Option<Micros>,
    /// Each queue is in one of the lists below, parked, or its first item is in progress.
    queues: HashMap<u64, VecDeque<QueueItem>>,
    /// Items without a queue. While the list is not empty, new items are appended to it.
    overflow: VecDeque<(u64, QueueItem)>,
    ready: VecDeque<u64>,
    retries: VecDeque<u64>,
    /// Queues whose first item waits for a runner.
    awaiting: VecDeque<u64>,
}

impl RuleQueues {
    pub(crate) fn new(rules: RuleSet, options: Arc<RuleOptions>) -> Self {
        Self {
            rules,
            options,
            ..Self::default()
        }
    }

    /// True without pending items and items in progress.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.overflow.is_empty()
    }

    /// All pending items.
    pub(crate) fn into_items(self) -> impl Iterator<Item = QueueItem> {
        let overflow = self.overflow.into_iter().map(|(_, item)| item);
        self.queues.into_values().flatten().chain(overflow)
    }

    /// True if another event of this queue may be kept in memory.
    pub(crate) fn has_room(&self, key: u64) -> bool {
        self.tasks < REACTOR_RULE_TASKS_MAX
            && self.overflow.is_empty()
            && self
                .queues
                .get(&key)
                .is_none_or(|queue| queue.len() < REACTOR_MINION_TASKS_MAX)
    }

    pub(crate) fn push(&mut self, key: u64, item: QueueItem) {
        self.tasks += item.load().0;
        if self.has_queue(key) {
            self.append(key, item);
        } else {
            self.overflow.push_back((key, item));
        }
    }

    fn has_queue(&self, key: u64) -> bool {
        self.overflow.is_empty() && self.may_have_queue(key)
    }

    fn may_have_queue(&self, key: u64) -> bool {
        self.queues.len() < REACTOR_QUEUES_MAX || self.queues.contains_key(&key)
    }

    fn append(&mut self, key: u64, item: QueueItem) {
        // A queue that exists is in one of the lists already, parked, or in progress.
        let queue = self.queues.entry(key).or_insert_with(|| {
            self.ready.push_back(key);
            VecDeque::with_capacity(1)
        });
        queue.push_back(item);
    }

    /// The kind of item that may be handled now. While the master is unreachable at most
    /// `concurrency` reactions start.
    fn next(&self, runners: &Runners, master_unreachable: bool) -> Option<Turn> {
        let concurrency = self.options.concurrency();
        if self.running >= concurrency {
            return None;
        }

        // Reactions that have begun come first: they occupy memory, and their minion waits.
        if !self.retries.is_empty() {
            return Some(Turn::Retry);
        }
        if !self.awaiting.is_empty() && runners.has_room(&self.rules, self.options.concurrency) {
            return Some(Turn::Runner);
        }

        let started = self.running as usize + self.parked;
        let most = if master_unreachable {
            concurrency as usize
        } else {
            REACTOR_RULE_TASKS_MAX
        };

        // A full list of reactions that await a runner stops only the sets that would add to it.
        let waits = self.until.is_some() || (runners.is_full() && !self.awaiting.is_empty());

        (!self.ready.is_empty() && !waits && started < most).then_some(Turn::Begin)
    }

    /// True if an item may be handled now.
    pub(crate) fn has_next(&self, runners: &Runners, master_unreachable: bool) -> bool {
        self.next(runners, master_unreachable).is_some()
    }

    /// Earliest start of the next reaction if `rate` delays it.
    pub(crate) fn begins_at(&self) -> Option<Micros> {
        self.until.filter(|_| !self.ready.is_empty())
    }

    /// Takes the first item that may be handled.
    pub(crate) fn take(
        &mut self,
        runners: &mut Runners,
        master_unreachable: bool,
    ) -> Option<(u64, QueueItem)> {
        let list = match self.next(runners, master_unreachable)? {
            Turn::Retry => &mut self.retries,
            Turn::Runner => {
                runners.awaiting -= 1;
                &mut self.awaiting
            }
            Turn::Begin => &mut self.ready,
        };

        let key = list.pop_front()?;
        // The queue stays even if it is empty now: its key is taken until `done`.
        let item = self.queues.get_mut(&key)?.pop_front()?;

        self.running += 1;
        self.tasks -= item.load().0;
        Some((key, item))
    }

    pub(crate) fn done(&mut self, key: u64) {
        self.running -= 1;
        if self.queues.get(&key).is_some_and(|queue| !queue.is_empty()) {
            self.ready.push_back(key);
            return;
        }

        // An empty queue makes room for events in the overflow.
        self.queues.remove(&key);
        while let Some((key, _)) = self.overflow.front()
            && self.may_have_queue(*key)
            && let Some((key, item)) = self.overflow.pop_front()
        {
            self.append(key, item);
        }
    }

    /// Returns an item in progress to the front of its queue.
    fn give_back(&mut self, key: u64, item: QueueItem) {
        self.running -= 1;
        self.tasks += item.load().0;
        self.queues.entry(key).or_default().push_front(item);
    }

    /// Returns an item that is paused until [`RuleQueues::unpark`].
    pub(crate) fn park(&mut self, key: u64, item: QueueItem) {
        self.give_back(key, item);
        self.parked += 1;
    }

    pub(crate) fn unpark(&mut self, key: u64) {
        self.parked -= 1;
        self.retries.push_back(key);
    }

    /// Returns an item that waits for a runner.
    pub(crate) fn await_runner(&mut self, key: u64, item: QueueItem) {
        self.give_back(key, item);
        self.awaiting.push_back(key);
    }

    /// Returns an item that may start at `until`, and delays all others of these rules. If the
    /// options have changed, the item is checked again.
    pub(crate) fn throttle(
        &mut self,
        key: u64,
        item: QueueItem,
        until: Micros,
        options: &Arc<RuleOptions>,
    ) {
        self.give_back(key, item);
        self.ready.push_front(key);
        if Arc::ptr_eq(options, &self.options) {
            self.until = Some(until);
        }
    }
}
