//! The scheduler: decides which pending event a worker handles next.
//!
//! Each set of rules that is rendered together has separate queues ([`queues`]), and the sets take
//! turns, because a backlog or a pause of one must not delay the others. Within a set, events of
//! one minion are in order, and so are events without a minion; the option `order` changes that. At
//! most `concurrency` reactions of a set are in progress, which leaves workers for other sets if
//! rules are slow.
//!
//! A pending event is reduced to its sequence number if memory is short, so the follower never
//! waits for a rule.
//!
//! No clock inside: the caller passes the time.

pub(crate) mod queues;
pub(crate) mod runners;
pub(crate) mod task;
pub(crate) mod throttle;

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use self::queues::{QueueItem, RuleQueues};
use self::runners::Runners;
use self::task::{RuleSet, Task};
use self::throttle::{Admission, Throttles};
use super::{SeqNo, micros};
use crate::base::clock::Micros;
use crate::base::limits::{REACTOR_BODIES_BYTES, REACTOR_TASKS_MAX, REACTOR_WAITING_MAX};
use crate::model::{ReactorSettings, RuleOptions, RuleOrder, secret_seed};
use crate::reactor::stored::SkipReason;

#[derive(Debug)]
pub(crate) enum NextAction {
    /// Handle this item; then call [`Scheduler::done`], or return the item.
    Run(QueueItem, Slot),
    /// Nothing to do until that time, or until something changes.
    Wait(Option<Micros>),
}

/// The queue that an item was taken from.
#[derive(Debug)]
pub(crate) struct Slot {
    id: u32,
    key: u64,
    /// Its rules when the item was queued.
    pub(crate) rules: RuleSet,
    /// Their current options.
    pub(crate) options: Arc<RuleOptions>,
}

/// The rules of a debounced event, and the hash of its minion.
type DebounceKey = (RuleSet, u64);

#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    /// How many items may wait, if not [`REACTOR_WAITING_MAX`].
    room: Option<usize>,
    settings: Arc<ReactorSettings>,
    ids: HashMap<RuleSet, u32>,
    queues: BTreeMap<u32, RuleQueues>,
    next_id: u32,
    /// The queues that had the last turn.
    last: u32,
    /// Queues whose first item is paused, by the end of the pause.
    parked: BTreeMap<(Micros, u64), (u32, u64)>,
    /// Debounced events, by the end of the minion's quiet period.
    debounce_due: BTreeMap<(Micros, u64), DebounceKey>,
    debounced: HashMap<DebounceKey, ((Micros, u64), QueueItem)>,
    throttles: Throttles,
    pub(crate) runners: Runners,
    master_unreachable: bool,
    waiting: usize,
    tasks: usize,
    bytes: usize,
    tiebreaker: u64,
}

fn hash_of(minion: &str) -> u64 {
    xxh3_64_with_seed(minion.as_bytes(), secret_seed())
}

impl Scheduler {
    /// Applies new settings, even to pending events.
    pub(crate) fn configure(&mut self, settings: Arc<ReactorSettings>) {
        self.runners.limit(settings.runners);
        for queues in self.queues.values_mut() {
            queues.options = settings.options_of(&queues.rules).clone();
            queues.until = None;
        }
        self.settings = settings;
    }

    /// Number of pending items, including those in progress.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(crate) fn has_room(&self) -> bool {
        self.waiting < self.room.unwrap_or(REACTOR_WAITING_MAX)
    }

    /// Limits how many items may wait.
    #[cfg(test)]
    pub(crate) fn limit(&mut self, room: usize) {
        self.room = Some(room);
    }

    /// False if an item in progress was released, because another master's reactor leads or has led.
    pub(crate) fn has(&self, slot: &Slot) -> bool {
        self.queues.contains_key(&slot.id)
    }

    /// True if an idle worker could start an item.
    pub(crate) fn has_ready(&self) -> bool {
        self.queues
            .values()
            .any(|queues| queues.has_next(&self.runners, self.master_unreachable))
    }

    /// Notes an event that counted for a rule with `once_per` before the daemon's start.
    pub(crate) fn note_first(&mut self, options: &RuleOptions, minion: &str, at: Micros) {
        self.throttles.note(options, minion, None, at);
    }

    /// Queues a task. Returns an event that a throttle skips in consequence, with its rules and the
    /// reason. In shadow, an event whose debounce pause exceeds the comparison window is skipped.
    pub(crate) fn offer(
        &mut self,
        task: Task,
        now: Micros,
    ) -> Option<(RuleSet, QueueItem, SkipReason)> {
        let (rules, options) = (RuleSet::from(&*task.rules), task.options.clone());

        // By the event's time, because the result must not depend on when the event is handled, for
        // example after a restart.
        if task.replay.is_none() && !self.throttles.is_first(&options, &task.event) {
            return Some((rules, task.into(), SkipReason::OncePer));
        }

        let Some(pause) = options.debounce.filter(|_| task.replay.is_none()) else {
            self.put(task);
            return None;
        };

        if self
            .settings
            .compares()
            .is_some_and(|window| pause > window)
        {
            return Some((rules, task.into(), SkipReason::Debounced));
        }

        let key = (rules, hash_of(&task.event.minion));
        // Debounced events are in no queue, so only the limits of the whole scheduler apply.
        let item = self.item_for(task, true);
        self.waiting += 1;
        let due = (now.after(pause), self.next_tiebreaker());
        self.debounce_due.insert(due, key.clone());

        // A later event of the same minion replaces the earlier one and begins a new pause.
        let (was_due, before) = self.debounced.insert(key.clone(), (due, item))?;
        self.debounce_due.remove(&was_due);
        self.waiting -= 1;
        self.count_out(&before);

        Some((key.0, before, SkipReason::Debounced))
    }

    /// Queues a task without checking throttles.
    pub(crate) fn put(&mut self, task: Task) {
        let (id, key) = self.queue_of(
            &RuleSet::from(&*task.rules),
            hash_of(&task.event.minion),
            task.event.seq,
        );

        let has_room = self
            .queues
            .get(&id)
            .is_some_and(|queues| queues.has_room(key));

        let item = self.item_for(task, has_room);
        self.waiting += 1;
        if let Some(queues) = self.queues.get_mut(&id) {
            queues.push(key, item);
        }
    }

    /// The queues of a set of rules, and the key of the queue within them; creates the queues if
    /// necessary.
    fn queue_of(&mut self, rules: &RuleSet, minion: u64, seq: SeqNo) -> (u32, u64) {
        let id = self.ids.get(rules).copied().unwrap_or_else(|| {
            self.next_id = self.next_id.wrapping_add(1);
            let options = self.settings.options_of(rules).clone();
            self.queues
                .insert(self.next_id, RuleQueues::new(rules.clone(), options));
            self.ids.insert(rules.clone(), self.next_id);
            self.next_id
        });

        let order = self
            .queues
            .get(&id)
            .map(|queues| queues.options.order)
            .unwrap_or_default();

        // Minions with equal hashes only wait for each other.
        let key = match order {
            RuleOrder::Rule => 0,
            RuleOrder::Minion => minion,
            RuleOrder::None => seq.0,
        };

        (id, key)
    }

    /// The task itself if memory allows, else its sequence number.
    fn item_for(&mut self, task: Task, has_room: bool) -> QueueItem {
        let fits = has_room
            && self.tasks < REACTOR_TASKS_MAX
            && self.bytes + task.event.body.len() <= REACTOR_BODIES_BYTES;
        let item = QueueItem::from(task);
        let item = if fits { item } else { item.unloaded() };
        self.count_in(&item);
        item
    }

    fn count_in(&mut self, item: &QueueItem) {
        let (tasks, bytes) = item.load();
        self.tasks += tasks;
        self.bytes += bytes;
    }

    fn count_out(&mut self, item: &QueueItem) {
        let (tasks, bytes) = item.load();
        self.tasks -= tasks;
        self.bytes -= bytes;
    }

    fn next_tiebreaker(&mut self) -> u64 {
        self.tiebreaker += 1;
        self.tiebreaker
    }

    /// The next action of a worker. Sets of rules take turns.
    pub(crate) fn next(&mut self, now: Micros) -> NextAction {
        self.release(now);

        // The sets after the last one, then around: none waits for more than one turn of each
        // other.
        let behind = self
            .queues
            .range((Bound::Excluded(self.last), Bound::Unbounded));
        let mut in_turn = behind.chain(self.queues.range(..=self.last));
        let found =
            in_turn.find(|(_, queues)| queues.has_next(&self.runners, self.master_unreachable));
        let Some(id) = found.map(|(id, _)| *id) else {
            return NextAction::Wait(self.next_at());
        };

        let taken = self.queues.get_mut(&id).and_then(|queues| {
            let (key, item) = queues.take(&mut self.runners, self.master_unreachable)?;
            Some((
                item,
                Slot {
                    id,
                    key,
                    rules: queues.rules.clone(),
                    options: queues.options.clone(),
                },
            ))
        });
        let Some((mut item, slot)) = taken else {
            return NextAction::Wait(self.next_at());
        };

        self.last = id;
        self.count_out(&item);
        // The options may have changed while it waited.
        if let QueueItem::Task(task) = &mut item {
            task.options = slot.options.clone();
        }

        NextAction::Run(item, slot)
    }

    /// Makes items available whose time has come.
    fn release(&mut self, now: Micros) {
        while let Some(entry) = self.debounce_due.first_entry()
            && entry.key().0 <= now
        {
            let debounced = entry.remove();
            if let Some((_, item)) = self.debounced.remove(&debounced) {
                // The queues of its rules may be others by now, so they are looked up.
                let (id, key) = self.queue_of(&debounced.0, debounced.1, item.seq());
                if let Some(queues) = self.queues.get_mut(&id) {
                    queues.push(key, item);
                }
            }
        }

        while let Some(entry) = self.parked.first_entry()
            && entry.key().0 <= now
        {
            let (id, key) = entry.remove();
            if let Some(queues) = self.queues.get_mut(&id) {
                queues.unpark(key);
            }
        }

        // The queues of rules know no time, so a pause of a rate ends by being cleared here.
        for queues in self.queues.values_mut() {
            queues.until = queues.until.filter(|until| *until > now);
        }
    }

    /// The earliest time at which a waiting item becomes available.
    pub(crate) fn next_at(&self) -> Option<Micros> {
        let first = |times: Option<&(Micros, u64)>| times.map(|(at, _)| *at);
        let throttled = self.queues.values().filter_map(RuleQueues::begins_at).min();

        let times = [
            first(self.parked.keys().next()),
            first(self.debounce_due.keys().next()),
            throttled,
        ];

        times.into_iter().flatten().min()
    }

    /// Checks the rate and the budget of the task's rule. In shadow no task waits for a `rate`, as
    /// in Salt's reactor; one that would start after the comparison window is skipped.
    pub(crate) fn start(&mut self, task: &Task, now: Micros) -> Admission {
        let rule = task.rules.first().cloned().unwrap_or_default();
        let Some(window) = self.settings.compares() else {
            return self.throttles.start(&rule, &task.options, now);
        };
        match self.throttles.would_start(&rule, &task.options, now) {
            Some(at) if at.0 - task.event.at.0 > micros(window) => Admission::TooLate,
            Some(_) => Admission::Now,
            None => Admission::OverBudget,
        }
    }

    /// Drops all pending events, which stay open, but no replay. What is in progress is not taken back.
    pub(crate) fn release_all(&mut self) {
        let queued = std::mem::take(&mut self.queues).into_values();
        let items = queued.flat_map(RuleQueues::into_items);
        let debounced = std::mem::take(&mut self.debounced);
        let debounced = debounced.into_values().map(|(_, item)| item);

        // The checkpoint keeps the events, and they are queued again when this reactor leads. A
        // replay exists only here.
        let is_replay = |task: &Task| task.replay.is_some();
        let tasks = items.chain(debounced).filter_map(|item| match item {
            QueueItem::Task(task) if is_replay(&task) => Some(*task),
            _ => None,
        });
        let replays: Vec<Task> = tasks.collect();

        self.ids.clear();
        self.parked.clear();
        self.debounce_due.clear();
        // A replay that awaited a runner begins its wait again.
        self.runners.awaiting = 0;
        (self.waiting, self.tasks, self.bytes) = (0, 0, 0);
        for task in replays {
            self.put(task);
        }
    }

    pub(crate) fn done(&mut self, slot: &Slot) {
        // It was released meanwhile.
        let Some(queues) = self.queues.get_mut(&slot.id) else {
            return;
        };
        self.waiting -= 1;
        queues.done(slot.key);

        // Sets come and go with the configuration; an empty one is dropped with its id.
        if queues.is_empty() {
            self.queues.remove(&slot.id);
            self.ids.remove(&slot.rules);
        }
    }

    /// Returns an item that continues at that time. The rest of its queue waits behind it.
    pub(crate) fn pause(&mut self, item: QueueItem, slot: &Slot, at: Micros) {
        if !self.has(slot) {
            return self.put_back(item);
        }
        self.count_in(&item);
        let tiebreaker = self.next_tiebreaker();
        if let Some(queues) = self.queues.get_mut(&slot.id) {
            queues.park(slot.key, item);
            self.parked.insert((at, tiebreaker), (slot.id, slot.key));
        }
    }

    /// Takes back an item that was in progress when all others were released.
    fn put_back(&mut self, item: QueueItem) {
        if let QueueItem::Task(task) = item
            && task.replay.is_some()
        {
            self.put(*task);
        }
    }

    /// Returns an item that a rate delays, with all others of its rules.
    pub(crate) fn throttle(&mut self, item: QueueItem, slot: &Slot, until: Micros) {
        if !self.has(slot) {
            return self.put_back(item);
        }
        self.count_in(&item);
        if let Some(queues) = self.queues.get_mut(&slot.id) {
            queues.throttle(slot.key, item, until, &slot.options);
        }
    }

    /// Returns an item that continues once a runner may be started.
    pub(crate) fn await_runner(&mut self, item: QueueItem, slot: &Slot) {
        if !self.has(slot) {
            return self.put_back(item);
        }
        self.count_in(&item);
        self.runners.awaiting += 1;
        if let Some(queues) = self.queues.get_mut(&slot.id) {
            queues.await_runner(slot.key, item);
        }
    }

    #[cfg(test)]
    pub(crate) fn master_unreachable(&self) -> bool {
        self.master_unreachable
    }

    /// Notes whether the master is reachable. When it becomes reachable, all pauses end.
    pub(crate) fn set_master_unreachable(&mut self, away: bool) {
        self.master_unreachable = away;
        if away {
            return;
        }

        for (id, key) in std::mem::take(&mut self.parked).into_values() {
            if let Some(queues) = self.queues.get_mut(&id) {
                queues.unpark(key);
            }
        }
    }
}
