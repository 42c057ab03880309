//! The reactor's threads, and what they share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::checkpoint::Checkpoint;
use super::checkpoint_file::{self, CheckpointFile, Update};
use super::depths::{ForeignCalls, JobDepths};
use super::record::{self, Record, option_of};
use super::recorder::{Clean, Recorder};
use super::scheduler::{Scheduler, Task};
use super::starts::Starts;
use super::{Event, Executor, RuleEngine, lock, micros};
use crate::clock::{Clock, Micros};
use crate::limits::{
    LIST_ROWS_MAX, REACTOR_CHECKPOINT_INTERVAL, REACTOR_MODE_INTERVAL, REACTOR_SEARCH_BYTES,
    REACTOR_STOP_TIMEOUT, REACTOR_WORKERS, STOP_CHECK,
};
use crate::metrics::Metrics;
use crate::model::{EventFilter, Glob, ListedRule, REACTION_TAG, ReactorSettings, SaltsReactor, SeqNo};
use crate::reactor::shadow::{self, Comparer};
use crate::shutdown::Drain;
use crate::store::{Intake, Store, StoreError};

/// What a reactor is made of.
pub struct Parts {
    /// The log.
    pub store: Store,
    /// Where records go.
    pub intake: Intake,
    /// What is done with them before.
    pub clean: Clean,
    /// The time.
    pub clock: Clock,
    /// Where to count.
    pub metrics: Arc<Metrics>,
    /// The rules.
    pub rules: Arc<dyn RuleEngine>,
    /// How they run.
    pub settings: ReactorSettings,
    /// Who carries out what they want.
    pub ask: Arc<dyn Executor>,
}

/// A view of the reactor, and the way to tell it something.
#[derive(Clone)]
pub struct Handle(pub(super) Arc<Shared>);

/// How it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The log has been read up to here.
    pub cursor: SeqNo,
    /// Entries between there and the end of the log.
    pub behind: u64,
    /// Reactions on the scheduler.
    pub waiting: usize,
    /// Events that are not through.
    pub open: usize,
    /// The master is away.
    pub master_unreachable: bool,
    /// Nothing is dispatched.
    pub shadow: bool,
    /// Since when the configuration as it stands cannot be used, and why.
    pub refused: Option<(Micros, String)>,
}

/// What rules there are, and how they run: one thing, so that nobody sees the one without the other.
#[derive(Clone)]
pub(super) struct RuleSnapshot {
    pub(super) rules: Arc<dyn RuleEngine>,
    pub(super) settings: Arc<ReactorSettings>,
}

/// What the threads share.
pub(super) struct Shared {
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
    rule_snapshot: RwLock<RuleSnapshot>,
    refused: Mutex<Option<(Micros, String)>>,
    /// In shadow, what waits to be compared.
    pub(super) comparer: Mutex<Option<Comparer>>,
    pub(super) ask: Arc<dyn Executor>,
    pub(super) scheduler: Mutex<Scheduler>,
    /// There is work for a worker.
    pub(super) change: Condvar,
    /// There may be room for the follower.
    pub(super) room: Condvar,
    pub(super) job_depths: Mutex<JobDepths>,
    pub(super) recorder: Recorder,
    pub(super) checkpoint: Mutex<Checkpoint>,
    /// Entries before this one have been handled: what rules take of them waits, or is done.
    pub(super) read: AtomicU64,
    /// Calls of another reactor while ours acts.
    pub(super) foreign_calls: Mutex<ForeignCalls>,
    pub(super) master_unreachable: AtomicBool,
    pub(super) drain: Drain,
    /// Starts of runners and wheel functions that the log shows.
    pub(super) starts: Mutex<Starts>,
    checkpoint_file: Mutex<CheckpointFile>,
}

/// A running reactor.
pub struct Reactor {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Reactor {
    /// Reads where it was, and goes on.
    pub fn start(parts: Parts) -> Result<Self, StoreError> {
        let Parts { store, intake, clean, clock, metrics, rules, settings, ask } = parts;
        let durable = store.durable();
        let mut checkpoint = match store.reactor_file()?.map(|bytes| checkpoint_file::parse(&bytes, durable))
        {
            None => Checkpoint::at(durable),
            Some(Ok((checkpoint, ignored))) => {
                if ignored > 0 {
                    let cursor = checkpoint.cursor.0;
                    tracing::warn!(
                        ignored,
                        cursor,
                        "bytes at the end of the file REACTOR are incomplete or damaged; the log is read again from the cursor"
                    );
                }
                checkpoint
            }
            Some(Err(problem)) => {
                tracing::error!(
                    problem,
                    "the file REACTOR cannot be read; the reactor begins with the next event"
                );
                metrics.reactor_keeps_failed.add(1);
                Checkpoint::at(durable)
            }
        };
        set_rules(&mut checkpoint, &*rules, durable);
        checkpoint.set_mode(settings.shadow, durable);
        store.note_seen_on_bus();
        let settings = Arc::new(settings);
        let mut scheduler = Scheduler::default();
        scheduler.configure(settings.clone());
        let shared = Arc::new(Shared {
            store,
            clock,
            recorder: Recorder::new(intake, clean, metrics.clone()),
            metrics,
            rule_snapshot: RwLock::new(RuleSnapshot { rules, settings }),
            refused: Mutex::default(),
            comparer: Mutex::default(),
            ask,
            scheduler: Mutex::new(scheduler),
            change: Condvar::new(),
            room: Condvar::new(),
            job_depths: Mutex::default(),
            read: AtomicU64::new(checkpoint.cursor.0),
            checkpoint: Mutex::new(checkpoint),
            foreign_calls: Mutex::default(),
            master_unreachable: AtomicBool::new(false),
            drain: Drain::new(),
            starts: Mutex::default(),
            checkpoint_file: Mutex::default(),
        });
        // Kept before anything is done: a first event that is open when the daemon is killed must be known.
        shared.keep();
        shared.remember_once()?;
        shared.suspend_foreign_calls();
        shared.tell_mode(true);
        let mut threads = Vec::new();
        let mut spawn = |name: String, work: fn(&Arc<Shared>)| {
            let shared = shared.clone();
            let thread = Builder::new().name(name).spawn(move || work(&shared));
            threads.push(
                thread.map_err(|why| StoreError::Failed(format!("start a thread of the reactor: {why}")))?,
            );
            Ok::<(), StoreError>(())
        };
        spawn("sc-react".to_owned(), super::follower::run)?;
        for n in 0..REACTOR_WORKERS {
            spawn(format!("sc-react-{n}"), super::worker::run)?;
        }
        spawn("sc-react-keep".to_owned(), |shared| shared.housekeeping())?;
        Ok(Self { shared, threads })
    }

    /// The way to ask and tell it.
    pub fn handle(&self) -> Handle {
        Handle(self.shared.clone())
    }

    /// Lets what is under way end, within reason, and writes down where it is.
    pub fn stop(self) {
        let Self { shared, threads } = self;
        shared.drain.stop();
        shared.change.notify_all();
        shared.room.notify_all();
        let until = Instant::now() + REACTOR_STOP_TIMEOUT;
        while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (ended, held_up): (Vec<_>, Vec<_>) = threads.into_iter().partition(JoinHandle::is_finished);
        if !held_up.is_empty() {
            let threads = held_up.len();
            tracing::warn!(
                threads,
                "reactions under way wait for the master; they are done after the next start"
            );
        }
        for thread in ended {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                tracing::error!(thread = name, "a thread ended by panic");
            }
        }
        shared.recorder.close(Duration::from_secs(1));
        shared.keep();
    }
}

impl Shared {
    pub(super) fn rule_snapshot(&self) -> RuleSnapshot {
        self.rule_snapshot.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn rules(&self) -> Arc<dyn RuleEngine> {
        self.rule_snapshot().rules
    }

    /// The rules that take an event: they match its tag, and were configured when it came.
    pub(super) fn matching(&self, rules: &dyn RuleEngine, tag: &str, seq: SeqNo) -> Vec<Arc<str>> {
        let mut matched = rules.matching(tag);
        if !matched.is_empty() {
            let checkpoint = lock(&self.checkpoint);
            matched.retain(|rule| checkpoint.takes(rule, seq));
        }
        matched
    }

    pub(super) fn settings(&self) -> Arc<ReactorSettings> {
        self.rule_snapshot().settings
    }

    /// Writes into the log whether we are in shadow: whoever compares later must know.
    fn tell_mode(&self, started: bool) {
        let now = self.clock.now();
        self.recorder.write(shadow::mode(self.settings().shadow, started, now));
    }

    /// Calls by a reactor that come now may be ours without our knowing.
    pub(super) fn suspend_foreign_calls(&self) {
        lock(&self.foreign_calls).suspend(self.clock.now());
    }

    /// Counts a reaction about which nothing is done.
    pub(super) fn count_left(&self, why: &str) {
        let metrics = &self.metrics;
        match why {
            "old" => &metrics.reactions_left_old,
            "quiet" => &metrics.reactions_left_quiet,
            "once" => &metrics.reactions_left_once,
            "rate" => &metrics.reactions_left_rate,
            "budget" => &metrics.reactions_left_budget,
            "depth" => &metrics.reactions_left_depth,
            _ => &metrics.reactions_left_gone,
        }
        .add(1);
    }

    /// Writes down that nothing is done about a task.
    pub(super) fn leave(&self, mut task: Task, why: &'static str) {
        // Salt's reactor has no throttles. What it does alone can only be told from other things if it is known what would have been done.
        if option_of(why).is_some() && task.left.is_none() && self.settings().shadow {
            task.left = Some(why);
            lock(&self.scheduler).put(task);
            self.change.notify_one();
            return;
        }
        self.count_left(why);
        if matches!(why, "budget" | "depth" | "old") {
            tracing::warn!(
                event = task.event.seq.0, tag = task.event.tag, rules = ?task.rules, why,
                "a reaction is left out; `saltcellar reactor replay` does it after all"
            );
        }
        let now = self.clock.now();
        let mut record = Record::left(task.event, task.rules, task.of, why, now);
        record.replay = task.replay;
        self.recorder.write(record.batch(now));
    }

    /// An event of the log, with its data.
    pub(super) fn load(&self, seq: SeqNo) -> Result<Option<Event>, StoreError> {
        let mut found = None;
        let take = |row: crate::store::Followed<'_>| {
            if row.seq == seq && found.is_none() {
                found = Some(super::follower::event_of(&row));
            }
        };
        self.store.first_entry(super::follower::is_of_interest, seq, take)?;
        Ok(found)
    }

    /// Writes down what has changed in the checkpoint since last time.
    fn keep(&self) {
        let mut checkpoint_file = lock(&self.checkpoint_file);
        let update = checkpoint_file.update(&mut lock(&self.checkpoint));
        let written = match update {
            None => Ok(()),
            Some(Update::Whole(checkpoint)) => {
                self.store.replace_reactor_file(|put| checkpoint_file.write_whole(&checkpoint, put))
            }
            Some(Update::Append(offset, text)) => self.store.append_to_reactor_file(offset, &text),
        };
        if let Err(error) = written {
            checkpoint_file.failed();
            self.metrics.reactor_keeps_failed.add(1);
            tracing::error!(%error, "the reactor's place in the log could not be written down");
        }
    }

    /// Rules with `once_per` know whose events they took before the start: the log tells.
    fn remember_once(&self) -> Result<(), StoreError> {
        let (settings, now) = (self.settings(), self.clock.now());
        for options in &settings.rules {
            let Some(window) = options.once_per else { continue };
            let window = micros(window);
            let filter = EventFilter {
                tag: Some(Glob::new(&format!("{REACTION_TAG}{}", options.rule))),
                since: Some(Micros(now.0.saturating_sub(window))),
                reactions: true,
                ..EventFilter::default()
            };
            let (mut before, mut bytes) = (self.store.durable(), 0);
            while bytes < REACTOR_SEARCH_BYTES {
                let rows =
                    self.store.events_before(&filter, before, LIST_ROWS_MAX, REACTOR_SEARCH_BYTES / 16)?;
                let Some(last) = rows.last() else { break };
                before = last.seq;
                bytes += rows.iter().map(|row| row.body.len()).sum::<usize>();
                let mut scheduler = lock(&self.scheduler);
                for row in &rows {
                    if let Some(at) = record::counted_once(&row.body, &options.rule) {
                        scheduler.note_first(options, &row.minion, at);
                    }
                }
            }
        }
        Ok(())
    }

    fn housekeeping(&self) {
        let mut told = Instant::now();
        while !self.drain.wait(REACTOR_CHECKPOINT_INTERVAL) {
            self.recorder.offer_again();
            self.keep();
            self.look_after_runners();
            lock(&self.foreign_calls).settle(&lock(&self.job_depths), self.clock.now());
            if told.elapsed() >= REACTOR_MODE_INTERVAL {
                self.tell_mode(false);
                told = Instant::now();
            }
        }
    }

    /// The master has answered, or is away.
    pub(super) fn master_is(&self, away: bool, why: &str) {
        if self.master_unreachable.swap(away, Ordering::Relaxed) == away {
            return;
        }
        lock(&self.scheduler).master_is_unreachable(away);
        if away {
            tracing::warn!(why, "reactions wait for the master");
        } else {
            tracing::info!("the master is back; reactions go on");
            self.change.notify_all();
        }
    }

    /// Waits until something changes on the scheduler, or until it is time to look whether to stop.
    pub(super) fn rest<'a>(
        &self,
        scheduler: std::sync::MutexGuard<'a, Scheduler>,
        until: Option<Micros>,
    ) -> std::sync::MutexGuard<'a, Scheduler> {
        let micros = until.map_or(i64::MAX, |at| at.0 - self.clock.now().0).max(200);
        let pause = Duration::from_micros(u64::try_from(micros).unwrap_or(0)).min(STOP_CHECK);
        self.change.wait_timeout(scheduler, pause).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Rules that are new take events from `from` on.
fn set_rules(checkpoint: &mut Checkpoint, rules: &dyn RuleEngine, from: SeqNo) {
    let rules = rules.all();
    checkpoint.set_rules(rules.iter().map(|rule| rule.pattern.as_str()), from);
}

impl Handle {
    /// How it stands.
    pub fn status(&self) -> Status {
        let shared = &self.0;
        let cursor = SeqNo(shared.read.load(Ordering::Acquire));
        let open = lock(&shared.checkpoint).open.len();
        Status {
            cursor,
            behind: shared.store.durable().0.saturating_sub(cursor.0),
            waiting: lock(&shared.scheduler).waiting(),
            open,
            master_unreachable: shared.master_unreachable.load(Ordering::Relaxed),
            shadow: shared.settings().shadow,
            refused: lock(&shared.refused).clone(),
        }
    }

    /// Lets other rules and settings take the place of those that are, both at once. What is under way ends as it began.
    pub fn change(&self, rules: Arc<dyn RuleEngine>, settings: ReactorSettings) {
        let shared = &self.0;
        {
            let (from, before) = (shared.store.durable(), shared.rules());
            let mut checkpoint = lock(&shared.checkpoint);
            // Rules that `salt-run reactor.add` added have taken all that was read.
            set_rules(&mut checkpoint, &*before, SeqNo(0));
            set_rules(&mut checkpoint, &*rules, from);
            checkpoint.set_mode(settings.shadow, from);
        }
        let settings = Arc::new(settings);
        let changes = {
            let mut rule_snapshot = shared.rule_snapshot.write().unwrap_or_else(PoisonError::into_inner);
            let changes = rule_snapshot.settings.shadow != settings.shadow;
            *rule_snapshot = RuleSnapshot { rules, settings: settings.clone() };
            changes
        };
        lock(&shared.scheduler).configure(settings);
        shared.change.notify_all();
        if changes {
            shared.tell_mode(false);
            shared.suspend_foreign_calls();
        }
        *lock(&shared.refused) = None;
        shared.metrics.reactor_reloads.add(1);
    }

    /// The configuration has changed and cannot be used, for that reason; everything goes on as it was.
    pub fn refuse(&self, why: String) {
        *lock(&self.0.refused) = Some((self.0.clock.now(), why));
        self.0.metrics.reactor_reloads_refused.add(1);
    }

    /// How long after an event Salt's own reactor may do what is held against ours.
    pub fn shadow_window(&self) -> Duration {
        self.0.settings().shadow_window
    }

    /// Runners and wheel functions that Salt's own reactor runs at once.
    pub fn salts_workers(&self) -> usize {
        self.0.settings().salts.workers
    }

    /// When something is tried again, or has waited long enough, at the earliest.
    pub fn next_at(&self) -> Option<Micros> {
        lock(&self.0.scheduler).next_at()
    }

    /// The rules.
    pub fn rules(&self) -> Vec<ListedRule> {
        self.0.rules().all()
    }

    /// Salt's own reactor: as the configuration has it, or on if it has been seen to act.
    pub fn salts_reactor(&self) -> SaltsReactor {
        let mut salts = self.0.settings().salts.clone();
        salts.runs |= lock(&self.0.foreign_calls).seen(self.0.clock.now()).is_some();
        salts
    }

    /// The latest call of another reactor, if there was one lately while ours acts.
    pub fn foreign_call(&self) -> Option<(Micros, String)> {
        lock(&self.0.foreign_calls).seen(self.0.clock.now())
    }

    /// What in here keeps the reactor from acting on events.
    pub fn blocked_by(&self) -> Option<String> {
        let shared = &self.0;
        let RuleSnapshot { rules, settings } = shared.rule_snapshot();
        if settings.shadow && settings.salts.runs {
            return Some("it only watches, because Salt's own reactor is on".to_owned());
        }
        if settings.shadow {
            return Some("it only watches: `reactor.shadow` is true".to_owned());
        }
        let full = || "records of reactions cannot be written to the log".to_owned();
        rules.idle().or_else(|| shared.ask.idle()).or_else(|| shared.recorder.is_full().then(full))
    }

    /// Reactions since the start by how they ended: done, failed, partial, dead.
    pub fn ended(&self) -> [(&'static str, u64); 4] {
        let metrics = &self.0.metrics;
        [
            ("done", metrics.reactions_done.get()),
            ("failed", metrics.reactions_failed.get()),
            ("partial", metrics.reactions_partial.get()),
            ("dead", metrics.reactions_dead.get()),
        ]
    }

    /// The patterns of the rules that take a tag.
    pub fn matching(&self, tag: &str) -> Vec<Arc<str>> {
        self.0.rules().matching(tag)
    }
}
