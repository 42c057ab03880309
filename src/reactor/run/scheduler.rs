//! The scheduler: what waits for a worker, and whose turn it is.
//!
//! Rules that are rendered together have queues of their own ([`super::queues`]), and take turns: what one of them has waiting, or
//! waits for, keeps no other one waiting. Events of one minion, or without one, are in order among those that the same rules take; the
//! option `order` changes that. A rule has no more reactions under way than its `concurrency`, so that a slow one leaves workers to
//! the others.
//!
//! An event that waits is a sequence number unless there is room for more. So the follower never waits for a rule.
//!
//! Pure: the caller gives the time.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Event;
use super::queues::{Item, RuleQueues, Rules};
use super::record::Made;
use super::runners::Runners;
use super::throttle::{Start, Throttles};
use super::{Reacted, SeqNo, micros};
use crate::clock::Micros;
use crate::limits::{REACTOR_BODIES_BYTES, REACTOR_TASKS_MAX, REACTOR_WAITING_MAX};
use crate::model::{ReactorSettings, RuleOptions, RuleOrder, secret_seed};

/// Rules that are to react to an event.
#[derive(Debug)]
pub struct Task {
    /// The event. A replay of calls needs none of its data.
    pub event: Event,
    /// The rules.
    pub rules: Vec<Arc<str>>,
    /// How many rules took the event.
    pub of: usize,
    /// The place of the first of these among those.
    pub place: usize,
    /// How they run.
    pub options: Arc<RuleOptions>,
    /// How many reactions led to the event.
    pub depth: u32,
    /// Calls that were begun before the daemon was started.
    pub begun: Vec<u64>,
    /// The daemon has been started since the event came.
    pub resumed: bool,
    /// The record that this is a replay of.
    pub replay: Option<SeqNo>,
    /// Calls that the record of which this is a replay had made.
    pub already_made: Vec<u64>,
    /// In shadow: why nothing would be done about it. It is rendered all the same, so that it is known what Salt's reactor does alone.
    pub left: Option<&'static str>,
    /// How far it is; none before its first turn.
    pub progress: Option<Box<Progress>>,
}

/// How far a task is.
#[derive(Debug)]
pub struct Progress {
    /// When its turn came first.
    pub began: Micros,
    /// What was rendered.
    pub reacted: Reacted,
    /// The calls that are over.
    pub made: Vec<Made>,
    /// How often the next one was tried.
    pub tries: u32,
    /// Nobody knows whether a try before reached the master.
    pub unsure: bool,
    /// The log has it that the next one begins, and may have been made.
    pub begun: bool,
    /// Entries before it were in the log when the next one was sent first.
    pub since: SeqNo,
    /// The next one was sent, is not sent again, and there is no answer.
    pub unanswered: Option<Unanswered>,
}

/// A call that was sent once and got no answer.
#[derive(Debug)]
pub struct Unanswered {
    /// Why there is none.
    pub why: String,
    /// Until then the log is searched for proof that it was carried out.
    pub until: Micros,
    /// The end of the log at that time; the search is over once the log was read up to it.
    pub end: Option<SeqNo>,
}

impl Progress {
    /// The calls of an event that has just been rendered.
    pub fn of(event: &Event, began: Micros, reacted: Reacted, unsure: bool) -> Self {
        let (made, since) = (Vec::new(), event.seq);
        Self { began, reacted, made, tries: 0, unsure, begun: false, since, unanswered: None }
    }

    /// A call is over; the next one has not been tried, unless that was before the daemon was started.
    pub fn over(&mut self, made: Made, task: &Task) {
        self.made.push(made);
        (self.tries, self.unsure, self.begun) = (0, task.resumed, false);
        (self.since, self.unanswered) = (task.event.seq, None);
    }
}

/// The next action of a worker.
#[derive(Debug)]
pub enum NextAction {
    /// This; then [`Scheduler::done`], or one of the ways to give it back.
    Run(Item, Slot),
    /// Nothing until then, or until something comes.
    Wait(Option<Micros>),
}

/// Where an item came from.
#[derive(Debug)]
pub struct Slot {
    id: u32,
    key: u64,
    /// Its rules, as they were when it came.
    pub rules: Rules,
    /// How they run by now.
    pub options: Arc<RuleOptions>,
}

/// Rules with a pause, and a minion.
type Quiet = (Rules, u64);

/// See the top of the file.
#[derive(Debug, Default)]
pub struct Scheduler {
    settings: Arc<ReactorSettings>,
    ids: HashMap<Rules, u32>,
    queues: BTreeMap<u32, RuleQueues>,
    next_id: u32,
    /// Whose turn it was last.
    last: u32,
    /// Queues whose first item waits for a time.
    parked: BTreeMap<(Micros, u64), (u32, u64)>,
    /// Events of minions that are not quiet yet, by the time at which they will have been.
    quiet: BTreeMap<(Micros, u64), Quiet>,
    held: HashMap<Quiet, ((Micros, u64), Item)>,
    throttles: Throttles,
    /// Runners under way.
    pub runners: Runners,
    is_away: bool,
    waiting: usize,
    tasks: usize,
    bytes: usize,
    stamp: u64,
}

fn hash_of(minion: &str) -> u64 {
    xxh3_64_with_seed(minion.as_bytes(), secret_seed())
}

impl Scheduler {
    /// These settings hold from now on, also for what waits.
    pub fn configure(&mut self, settings: Arc<ReactorSettings>) {
        self.runners.limit(settings.runners);
        for queues in self.queues.values_mut() {
            queues.options = settings.options_of(&queues.rules).clone();
            queues.until = None;
        }
        self.settings = settings;
    }

    /// Items that wait or are with a worker.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Is there room for another event?
    pub fn has_room(&self) -> bool {
        self.waiting < REACTOR_WAITING_MAX
    }

    /// Is there work for another worker?
    pub fn has_ready(&self) -> bool {
        self.queues.values().any(|queues| queues.has_next(&self.runners, self.is_away))
    }

    /// An event of a minion was the first that counts for a rule, before the daemon was started.
    pub fn note_first(&mut self, options: &RuleOptions, minion: &str, at: Micros) {
        self.throttles.note(options, minion, at);
    }

    /// Puts a task on the scheduler; what is left out therefore, with its rules and the reason. In shadow nothing waits for quiet that would
    /// be later than the window of the comparison.
    pub fn offer(&mut self, task: Task, now: Micros) -> Option<(Rules, Item, &'static str)> {
        let (rules, options) = (Rules::from(&*task.rules), task.options.clone());
        // By the time of the event, so that it does not matter when it is looked at: also after a start.
        if task.replay.is_none() && !self.throttles.is_first(&options, &task.event.minion, task.event.at) {
            return Some((rules, task.into(), "once"));
        }
        let Some(pause) = options.debounce.filter(|_| task.replay.is_none()) else {
            self.put(task);
            return None;
        };
        if self.settings.compares().is_some_and(|window| pause > window) {
            return Some((rules, task.into(), "quiet"));
        }
        let key = (rules, hash_of(&task.event.minion));
        let item = self.fitted(task, true);
        self.waiting += 1;
        let due = (Micros(now.0.saturating_add(micros(pause))), self.next_stamp());
        self.quiet.insert(due, key.clone());
        let (was_due, before) = self.held.insert(key.clone(), (due, item))?;
        self.quiet.remove(&was_due);
        self.waiting -= 1;
        self.is_taken(&before);
        Some((key.0, before, "quiet"))
    }

    /// Puts a task on the scheduler that no throttle keeps waiting.
    pub fn put(&mut self, task: Task) {
        let (id, key) =
            self.place_of(&Rules::from(&*task.rules), hash_of(&task.event.minion), task.event.seq);
        let has_room = self.queues.get(&id).is_some_and(|queues| queues.has_room(key));
        let item = self.fitted(task, has_room);
        self.waiting += 1;
        if let Some(queues) = self.queues.get_mut(&id) {
            queues.push(key, item);
        }
    }

    /// The queues of these rules, and the one among them.
    fn place_of(&mut self, rules: &Rules, minion: u64, seq: SeqNo) -> (u32, u64) {
        let id = self.ids.get(rules).copied().unwrap_or_else(|| {
            self.next_id = self.next_id.wrapping_add(1);
            let options = self.settings.options_of(rules).clone();
            self.queues.insert(self.next_id, RuleQueues::new(rules.clone(), options));
            self.ids.insert(rules.clone(), self.next_id);
            self.next_id
        });
        let order = self.queues.get(&id).map(|queues| queues.options.order).unwrap_or_default();
        let key = match order {
            RuleOrder::Rule => 0,
            RuleOrder::Minion => minion,
            RuleOrder::None => seq.0,
        };
        (id, key)
    }

    /// A task in memory if there is room for it, else by its number.
    fn fitted(&mut self, task: Task, has_room: bool) -> Item {
        let fits = has_room
            && self.tasks < REACTOR_TASKS_MAX
            && self.bytes + task.event.body.len() <= REACTOR_BODIES_BYTES;
        let item = Item::from(task);
        let item = if fits { item } else { item.unloaded() };
        self.is_kept(&item);
        item
    }

    fn is_kept(&mut self, item: &Item) {
        let (tasks, bytes) = item.load();
        (self.tasks, self.bytes) = (self.tasks + tasks, self.bytes + bytes);
    }

    fn is_taken(&mut self, item: &Item) {
        let (tasks, bytes) = item.load();
        (self.tasks, self.bytes) = (self.tasks - tasks, self.bytes - bytes);
    }

    fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    /// The next thing to do. Rules take turns.
    pub fn next(&mut self, now: Micros) -> NextAction {
        self.release(now);
        let behind = self.queues.range((Bound::Excluded(self.last), Bound::Unbounded));
        let mut in_turn = behind.chain(self.queues.range(..=self.last));
        let found = in_turn.find(|(_, queues)| queues.has_next(&self.runners, self.is_away));
        let Some(id) = found.map(|(id, _)| *id) else { return NextAction::Wait(self.next_at()) };
        let taken = self.queues.get_mut(&id).and_then(|queues| {
            let (key, item) = queues.take(&mut self.runners, self.is_away)?;
            Some((item, Slot { id, key, rules: queues.rules.clone(), options: queues.options.clone() }))
        });
        let Some((mut item, place)) = taken else { return NextAction::Wait(self.next_at()) };
        self.last = id;
        self.is_taken(&item);
        if let Item::Task(task) = &mut item {
            task.options = place.options.clone();
        }
        NextAction::Run(item, place)
    }

    /// Lets go on what has waited for a time that has come.
    fn release(&mut self, now: Micros) {
        while let Some(entry) = self.quiet.first_entry()
            && entry.key().0 <= now
        {
            let held = entry.remove();
            if let Some((_, item)) = self.held.remove(&held) {
                let (id, key) = self.place_of(&held.0, held.1, item.seq());
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
        for queues in self.queues.values_mut() {
            queues.until = queues.until.filter(|until| *until > now);
        }
    }

    /// The time for which the first of those waits that wait for one.
    pub fn next_at(&self) -> Option<Micros> {
        let first = |times: Option<&(Micros, u64)>| times.map(|(at, _)| *at);
        let throttled = self.queues.values().filter_map(RuleQueues::begins_at).min();
        let times = [first(self.parked.keys().next()), first(self.quiet.keys().next()), throttled];
        times.into_iter().flatten().min()
    }

    /// Lets a reaction begin, by the throttles of its rule. In shadow nothing waits for a `rate`: Salt's reactor does not, and what would
    /// be later than the window of the comparison is left out.
    pub fn start(&mut self, task: &Task, now: Micros) -> Start {
        let rule = task.rules.first().cloned().unwrap_or_default();
        let Some(window) = self.settings.compares() else {
            return self.throttles.start(&rule, &task.options, now);
        };
        match self.throttles.would_start(&rule, &task.options, now) {
            Some(at) if at.0 - task.event.at.0 > micros(window) => Start::TooLate,
            Some(_) => Start::Go,
            None => Start::OverBudget,
        }
    }

    /// An item is through.
    pub fn done(&mut self, place: &Slot) {
        self.waiting -= 1;
        let Some(queues) = self.queues.get_mut(&place.id) else { return };
        queues.done(place.key);
        if queues.is_empty() {
            self.queues.remove(&place.id);
            self.ids.remove(&place.rules);
        }
    }

    /// An item is to go on at some time; nothing of its queue goes before it.
    pub fn again(&mut self, item: Item, place: &Slot, at: Micros) {
        self.is_kept(&item);
        let stamp = self.next_stamp();
        if let Some(queues) = self.queues.get_mut(&place.id) {
            queues.park(place.key, item);
            self.parked.insert((at, stamp), (place.id, place.key));
        }
    }

    /// A throttle lets a reaction begin then, and none of its rule before.
    pub fn throttle(&mut self, item: Item, place: &Slot, until: Micros) {
        self.is_kept(&item);
        if let Some(queues) = self.queues.get_mut(&place.id) {
            queues.throttle(place.key, item, until, &place.options);
        }
    }

    /// An item is to go on once a runner may be started.
    pub fn await_runner(&mut self, item: Item, place: &Slot) {
        self.is_kept(&item);
        self.runners.awaiting += 1;
        if let Some(queues) = self.queues.get_mut(&place.id) {
            queues.await_runner(place.key, item);
        }
    }

    /// The master is away, or is back: then the rest waits for no time any more.
    pub fn master_is_unreachable(&mut self, away: bool) {
        self.is_away = away;
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
