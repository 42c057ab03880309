//! The queues of one set of rules: an event that these rules take together waits here.
//!
//! There is a queue for each minion (or one for all, or one for each event: option `order`). Only the first item of a queue is worked
//! on. An item is a task in memory only while few wait; the rest is sequence numbers, for the log has the events. The number of
//! queues is limited, too: events beyond it wait in one line, in order, until a queue is free.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::SeqNo;
use super::runners::Runners;
use super::scheduler::Task;
use crate::clock::Micros;
use crate::limits::{REACTOR_MINION_TASKS_MAX, REACTOR_QUEUES_MAX, REACTOR_RULE_TASKS_MAX};
use crate::model::RuleOptions;

/// Patterns of rules that are rendered together.
pub type Rules = Arc<[Arc<str>]>;

/// What waits in a queue.
#[derive(Debug)]
pub enum Item {
    /// In memory.
    Task(Box<Task>),
    /// In the log; it is loaded when its turn comes.
    Later {
        /// The event.
        seq: SeqNo,
        /// How many reactions led to it.
        depth: u16,
        /// The daemon has been started since the event came.
        resumed: bool,
    },
}

// A million of them wait while a master is down.
const _: () = assert!(size_of::<Item>() == 16);

impl From<Task> for Item {
    fn from(task: Task) -> Self {
        Self::Task(Box::new(task))
    }
}

impl Item {
    /// How many tasks it is in memory, and bytes of event data.
    pub(super) fn load(&self) -> (usize, usize) {
        match self {
            Self::Task(task) => (1, task.event.body.len()),
            Self::Later { .. } => (0, 0),
        }
    }

    /// The event.
    pub(super) fn seq(&self) -> SeqNo {
        match self {
            Self::Task(task) => task.event.seq,
            Self::Later { seq, .. } => *seq,
        }
    }

    /// The same without its data, if the log has all of it.
    pub(super) fn unloaded(self) -> Self {
        match self {
            Self::Task(task) if task.progress.is_none() && task.replay.is_none() && task.left.is_none() => {
                let depth = u16::try_from(task.depth).unwrap_or(u16::MAX);
                Self::Later { seq: task.event.seq, depth, resumed: task.resumed }
            }
            other => other,
        }
    }
}

/// Why the first item of a queue may be worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// It goes on after a pause.
    Retry,
    /// A runner may be started for it.
    Runner,
    /// It begins.
    Begin,
}

/// See the top of the file.
#[derive(Debug)]
pub struct RuleQueues {
    /// The rules.
    pub rules: Rules,
    /// How they run.
    pub options: Arc<RuleOptions>,
    /// First items that are with a worker.
    pub running: u32,
    /// Tasks in memory.
    pub tasks: usize,
    /// Queues whose first item waits for a time.
    pub parked: usize,
    /// No reaction begins before: `rate`.
    pub until: Option<Micros>,
    /// Every queue is in one of the lists below, parked, or its first item is with a worker.
    queues: HashMap<u64, VecDeque<Item>>,
    /// Items for which there was no queue. While there are any, all later ones wait behind them.
    overflow: VecDeque<(u64, Item)>,
    ready: VecDeque<u64>,
    retries: VecDeque<u64>,
    /// Queues whose first item waits until a runner may be started.
    awaiting: VecDeque<u64>,
}

impl RuleQueues {
    /// None yet.
    pub fn new(rules: Rules, options: Arc<RuleOptions>) -> Self {
        Self {
            rules,
            options,
            running: 0,
            tasks: 0,
            parked: 0,
            until: None,
            queues: HashMap::new(),
            overflow: VecDeque::new(),
            ready: VecDeque::new(),
            retries: VecDeque::new(),
            awaiting: VecDeque::new(),
        }
    }

    /// Nothing waits, and nothing is with a worker.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.overflow.is_empty()
    }

    /// Reactions that wait until a runner may be started.
    pub fn awaiting(&self) -> usize {
        self.awaiting.len()
    }

    /// May another event be kept in memory?
    pub fn has_room(&self, key: u64) -> bool {
        self.tasks < REACTOR_RULE_TASKS_MAX
            && self.overflow.is_empty()
            && self.queues.get(&key).is_none_or(|queue| queue.len() < REACTOR_MINION_TASKS_MAX)
    }

    /// Puts an item behind those of its queue.
    pub fn push(&mut self, key: u64, item: Item) {
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

    fn append(&mut self, key: u64, item: Item) {
        let queue = self.queues.entry(key).or_insert_with(|| {
            self.ready.push_back(key);
            VecDeque::with_capacity(1)
        });
        queue.push_back(item);
    }

    /// What may be worked on now. While the master is away only as many reactions begin as may run at once.
    fn next(&self, runners: &Runners, is_away: bool) -> Option<Next> {
        let concurrency = self.options.concurrency();
        if self.running >= concurrency {
            return None;
        }
        if !self.retries.is_empty() {
            return Some(Next::Retry);
        }
        if !self.awaiting.is_empty() && runners.has_room(&self.rules, self.options.concurrency) {
            return Some(Next::Runner);
        }
        let begun = self.running as usize + self.parked;
        let most = if is_away { concurrency as usize } else { REACTOR_RULE_TASKS_MAX };
        let waits = self.until.is_some() || (runners.is_full() && !self.awaiting.is_empty());
        (!self.ready.is_empty() && !waits && begun < most).then_some(Next::Begin)
    }

    /// Is there something to be worked on now?
    pub fn has_next(&self, runners: &Runners, is_away: bool) -> bool {
        self.next(runners, is_away).is_some()
    }

    /// When the next reaction may begin, if `rate` keeps one waiting.
    pub fn begins_at(&self) -> Option<Micros> {
        self.until.filter(|_| !self.ready.is_empty())
    }

    /// Takes the first item of a queue whose turn it is.
    pub fn take(&mut self, runners: &mut Runners, is_away: bool) -> Option<(u64, Item)> {
        let list = match self.next(runners, is_away)? {
            Next::Retry => &mut self.retries,
            Next::Runner => {
                runners.awaiting -= 1;
                &mut self.awaiting
            }
            Next::Begin => &mut self.ready,
        };
        let key = list.pop_front()?;
        let item = self.queues.get_mut(&key)?.pop_front()?;
        self.running += 1;
        self.tasks -= item.load().0;
        Some((key, item))
    }

    /// A worker is through with the first item of a queue.
    pub fn done(&mut self, key: u64) {
        self.running -= 1;
        if self.queues.get(&key).is_some_and(|queue| !queue.is_empty()) {
            self.ready.push_back(key);
            return;
        }
        self.queues.remove(&key);
        while let Some((key, _)) = self.overflow.front()
            && self.may_have_queue(*key)
            && let Some((key, item)) = self.overflow.pop_front()
        {
            self.append(key, item);
        }
    }

    /// A worker gives the first item of a queue back.
    fn give_back(&mut self, key: u64, item: Item) {
        self.running -= 1;
        self.tasks += item.load().0;
        self.queues.entry(key).or_default().push_front(item);
    }

    /// It goes on at some time; see [`RuleQueues::unpark`].
    pub fn park(&mut self, key: u64, item: Item) {
        self.give_back(key, item);
        self.parked += 1;
    }

    /// The time has come.
    pub fn unpark(&mut self, key: u64) {
        self.parked -= 1;
        self.retries.push_back(key);
    }

    /// It goes on once a runner may be started.
    pub fn await_runner(&mut self, key: u64, item: Item) {
        self.give_back(key, item);
        self.awaiting.push_back(key);
    }

    /// It may begin at that time, and none of these rules before, by the options that they had. With others it is looked at again.
    pub fn throttle(&mut self, key: u64, item: Item, until: Micros, options: &Arc<RuleOptions>) {
        self.give_back(key, item);
        self.ready.push_front(key);
        if Arc::ptr_eq(options, &self.options) {
            self.until = Some(until);
        }
    }
}
