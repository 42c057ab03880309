//! The desk: what waits for a worker, and whose turn it is.
//!
//! Events of one minion lie in one lane, in order; only the first of a lane is worked on, and the next begins when it is through,
//! however often it has to be tried. Lanes do not wait for one another. A rule has no more reactions under way than its
//! `concurrency`, so that a slow one leaves workers to the others.
//!
//! Pure: whoever asks brings the time.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::Event;
use super::record::Made;
use super::throttle::{Start, Throttles};
use super::{Reacted, SeqNo, micros};
use crate::clock::Micros;
use crate::limits::{REACTOR_BODIES_BYTES, REACTOR_TASKS_MAX};
use crate::model::RuleOptions;

/// Rules that are to react to an event.
#[derive(Debug)]
pub struct Task {
    /// The event. Its body may have been left in the log.
    pub event: Event,
    /// Is the body here?
    pub loaded: bool,
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
}

impl Task {
    fn lane(&self) -> LaneKey {
        if self.event.minion.is_empty() {
            LaneKey::Alone(self.event.seq)
        } else {
            LaneKey::Minion(self.event.minion.clone())
        }
    }

    /// Whose concurrency it counts for.
    fn group(&self) -> Arc<str> {
        self.rules.first().cloned().unwrap_or_default()
    }

    fn bytes(&self) -> usize {
        if self.loaded { self.event.body.len() } else { 0 }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum LaneKey {
    Minion(String),
    /// About no minion: it waits for nobody.
    Alone(SeqNo),
}

/// What a worker does next.
#[derive(Debug)]
pub enum Turn {
    /// This; then [`Desk::done`] or [`Desk::again`].
    Run(Task, Place),
    /// Write down that nothing is done about it. It is off the desk.
    Leave(Task, &'static str),
    /// Nothing until then, or until something comes.
    Wait(Option<Micros>),
}

/// Where a task came from.
#[derive(Debug)]
pub struct Place {
    lane: LaneKey,
    group: Arc<str>,
    bytes: usize,
}

/// A rule with a pause, and a minion.
type Quiet = (Arc<str>, String);

/// See the top of the file.
#[derive(Debug, Default)]
pub struct Desk {
    lanes: HashMap<LaneKey, VecDeque<Task>>,
    ready: VecDeque<LaneKey>,
    /// Lanes whose first task waits for a time.
    parked: BTreeMap<(Micros, u64), LaneKey>,
    /// Lanes whose first task waits for one of its rule to be through.
    blocked: HashMap<Arc<str>, VecDeque<LaneKey>>,
    running: HashMap<Arc<str>, u32>,
    /// Lanes whose first task is with a worker.
    under_way: HashSet<LaneKey>,
    /// Events of minions that are not quiet yet, by the time at which they will have been.
    quiet: BTreeMap<(Micros, u64), Quiet>,
    held: HashMap<Quiet, ((Micros, u64), Task)>,
    throttles: Throttles,
    waiting: usize,
    bytes: usize,
    stamp: u64,
}

impl Desk {
    /// Tasks that are on the desk, those under way among them.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Is there room for another event?
    pub fn has_room(&self) -> bool {
        self.waiting < REACTOR_TASKS_MAX
    }

    /// Is there room for another body? Else it stays in the log until its turn comes.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        self.bytes + bytes <= REACTOR_BODIES_BYTES
    }

    /// Is there work for another worker?
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// An event of a minion was the first that counts for a rule, before the daemon was started.
    pub fn note_first(&mut self, options: &RuleOptions, minion: &str, at: Micros) {
        self.throttles.note(options, minion, at);
    }

    /// Puts a task on the desk; what is left out therefore, and why. In shadow nothing waits for quiet that would be later than the
    /// window of the comparison.
    pub fn offer(
        &mut self,
        task: Task,
        now: Micros,
        shadow: Option<Duration>,
    ) -> Option<(Task, &'static str)> {
        let options = task.options.clone();
        // By the time of the event, so that it does not matter when it is looked at: also after a start.
        if task.replay.is_none() && !self.throttles.is_first(&options, &task.event.minion, task.event.at) {
            return Some((task, "once"));
        }
        let Some(pause) = options.debounce.filter(|_| task.replay.is_none()) else {
            self.put(task);
            return None;
        };
        if shadow.is_some_and(|window| pause > window) {
            return Some((task, "quiet"));
        }
        self.waiting += 1;
        self.bytes += task.bytes();
        let key = (options.rule.clone(), task.event.minion.clone());
        let pause = micros(pause);
        let due = (Micros(now.0.saturating_add(pause)), self.next_stamp());
        self.quiet.insert(due, key.clone());
        let (was_due, before) = self.held.insert(key, (due, task))?;
        self.quiet.remove(&was_due);
        self.waiting -= 1;
        self.bytes -= before.bytes();
        Some((before, "quiet"))
    }

    /// Puts a task on the desk that no throttle keeps waiting.
    pub fn put(&mut self, task: Task) {
        self.waiting += 1;
        self.bytes += task.bytes();
        self.queue(task);
    }

    fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    fn queue(&mut self, task: Task) {
        let key = task.lane();
        let lane = self.lanes.entry(key.clone()).or_default();
        lane.push_back(task);
        // A lane is in one of the lists, or under way, as long as it is there at all.
        if lane.len() == 1 && !self.under_way.contains(&key) {
            self.ready.push_back(key);
        }
    }

    /// The next thing to do. In shadow, with this window of the comparison, nothing waits for a `rate`: Salt's reactor does not, and what
    /// would be later than the window is left out.
    pub fn next(&mut self, now: Micros, shadow: Option<Duration>) -> Turn {
        while let Some(entry) = self.quiet.first_entry()
            && entry.key().0 <= now
        {
            let key = entry.remove();
            if let Some((_, task)) = self.held.remove(&key) {
                self.queue(task);
            }
        }
        while let Some(entry) = self.parked.first_entry()
            && entry.key().0 <= now
        {
            let key = entry.remove();
            self.ready.push_back(key);
        }
        while let Some(key) = self.ready.pop_front() {
            let Some(lane) = self.lanes.get_mut(&key) else { continue };
            let Some(task) = lane.front() else { continue };
            let group = task.group();
            let running = self.running.entry(group.clone()).or_default();
            if *running >= task.options.concurrency {
                self.blocked.entry(group).or_default().push_back(key);
                continue;
            }
            // A task that was begun has passed its throttles, and one that is left out was kept back by one.
            let start = if task.progress.is_some() || task.left.is_some() {
                Start::Go
            } else if let Some(window) = shadow {
                match self.throttles.would_start(&task.options, now) {
                    Some(at) if at.0 - task.event.at.0 > micros(window) => Start::TooLate,
                    Some(_) => Start::Go,
                    None => Start::OverBudget,
                }
            } else {
                self.throttles.start(&task.options, now)
            };
            match start {
                Start::At(at) => {
                    let stamp = self.next_stamp();
                    self.parked.insert((at, stamp), key);
                }
                Start::OverBudget | Start::TooLate => {
                    let Some(task) = lane.pop_front() else { continue };
                    self.waiting -= 1;
                    self.bytes -= task.bytes();
                    self.go_on(key);
                    return Turn::Leave(task, if start == Start::TooLate { "rate" } else { "budget" });
                }
                Start::Go => {
                    *running += 1;
                    let Some(task) = lane.pop_front() else { continue };
                    let bytes = task.bytes();
                    self.under_way.insert(key.clone());
                    return Turn::Run(task, Place { lane: key, group, bytes });
                }
            }
        }
        Turn::Wait(self.next_at())
    }

    /// The time for which the first of those waits that wait for one.
    pub fn next_at(&self) -> Option<Micros> {
        let first = |times: Option<&(Micros, u64)>| times.map(|(at, _)| *at);
        [first(self.parked.keys().next()), first(self.quiet.keys().next())].into_iter().flatten().min()
    }

    /// A lane whose first task is through goes on, or goes away.
    fn go_on(&mut self, key: LaneKey) {
        match self.lanes.get(&key) {
            Some(lane) if !lane.is_empty() => self.ready.push_back(key),
            _ => drop(self.lanes.remove(&key)),
        }
    }

    /// One less of a rule is under way.
    fn release(&mut self, group: &Arc<str>) {
        if let Some(running) = self.running.get_mut(group) {
            *running -= 1;
            if *running == 0 {
                self.running.remove(group);
            }
        }
        if let Some(blocked) = self.blocked.get_mut(group) {
            if let Some(key) = blocked.pop_front() {
                // In front: it has waited longer than those that are ready.
                self.ready.push_front(key);
            }
            if blocked.is_empty() {
                self.blocked.remove(group);
            }
        }
    }

    /// A task is through.
    pub fn done(&mut self, place: Place) {
        self.waiting -= 1;
        self.bytes -= place.bytes;
        self.under_way.remove(&place.lane);
        self.release(&place.group);
        self.go_on(place.lane);
    }

    /// A task is to go on at some time; nothing of its lane goes before it.
    pub fn again(&mut self, task: Task, place: Place, at: Micros) {
        self.bytes = self.bytes + task.bytes() - place.bytes;
        self.under_way.remove(&place.lane);
        self.release(&place.group);
        self.lanes.entry(place.lane.clone()).or_default().push_front(task);
        let stamp = self.next_stamp();
        self.parked.insert((at, stamp), place.lane);
    }

    /// The rest waits for no time any more: the master is back.
    pub fn hurry(&mut self) {
        let parked = std::mem::take(&mut self.parked);
        self.ready.extend(parked.into_values());
    }
}
