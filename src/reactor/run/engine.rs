//! The reactor's threads and their shared state.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};
use salt_sls::Glob;

use super::checkpoint::Checkpoint;
use super::checkpoint::file::{self, CheckpointFile, Update};
use super::depths::{ForeignCalls, JobDepths};
use super::failed::{FailedReaction, FailedReactions};
use super::record::recorder::{Clean, Recorder};
use super::record::{self, Record};
use super::scheduler::{Scheduler, Task};
use super::settle::starts::Starts;
use super::{Event, Executor, RuleEngine};
use crate::base::clock::{Clock, Micros};
use crate::base::limits::{
    LIST_ROWS_MAX, REACTOR_CHECKPOINT_INTERVAL, REACTOR_MODE_INTERVAL, REACTOR_SEARCH_BYTES,
    REACTOR_STOP_TIMEOUT, REACTOR_WORKERS, STOP_CHECK,
};
use crate::base::metrics::Metrics;
use crate::base::shutdown::Drain;
use crate::base::threads;
use crate::model::{EventFilter, ListedRule, REACTION_TAG, ReactorSettings, SaltsReactor, SeqNo};
use crate::reactor::logged::option_of;
use crate::reactor::rules::lease::{EngineReport, Lease};
use crate::reactor::run::watch::ShadowDifference;
use crate::reactor::shadow::{self, Comparer};
use crate::store::{Intake, Store, StoreError};
use crate::wire::salt_event::stamp_of;

pub(crate) struct Parts {
    pub(crate) store: Store,
    /// Receives the records.
    pub(crate) intake: Intake,
    /// Redacts secrets in records.
    pub(crate) clean: Clean,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) rules: Arc<dyn RuleEngine>,
    pub(crate) settings: ReactorSettings,
    pub(crate) executor: Arc<dyn Executor>,
}

#[derive(Clone)]
pub(crate) struct Handle(pub(super) Arc<Shared>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Status {
    /// Position in the log.
    pub(crate) cursor: SeqNo,
    /// Number of entries between `cursor` and the end of the log.
    pub(crate) behind: u64,
    /// Number of pending reactions.
    pub(crate) waiting: usize,
    /// Number of events without a complete record.
    pub(crate) open: usize,
    pub(crate) master_unreachable: bool,
    /// True in shadow mode: no calls are made.
    pub(crate) shadow: bool,
    /// Time and reason of a rejected reload; `None` if the current configuration is in use.
    pub(crate) refused: Option<(Micros, String)>,
}

/// Rules and their settings, always replaced together.
#[derive(Clone)]
pub(super) struct RuleSnapshot {
    pub(super) rules: Arc<dyn RuleEngine>,
    pub(super) settings: Arc<ReactorSettings>,
}

pub(super) struct Shared {
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
    rule_snapshot: RwLock<RuleSnapshot>,
    refused: Mutex<Option<(Micros, String)>>,
    /// The settings as configured. Those in use also depend on the report of the master's engine,
    /// see [`Handle::apply`]. Lock order: before all others.
    configured: Mutex<ReactorSettings>,
    /// Calls to compare, in shadow mode.
    pub(super) comparer: Mutex<Option<Comparer>>,
    /// The latest differences, the latest first.
    pub(super) differences: Mutex<VecDeque<ShadowDifference>>,
    pub(super) executor: Arc<dyn Executor>,
    pub(super) scheduler: Mutex<Scheduler>,
    /// Signals workers that there is work.
    pub(super) change: Condvar,
    /// Signals the follower that there is room.
    pub(super) room: Condvar,
    pub(super) job_depths: Mutex<JobDepths>,
    pub(super) recorder: Recorder,
    pub(super) checkpoint: Mutex<Checkpoint>,
    /// Entries before this one have been handled: matched events are pending or done.
    pub(super) read: AtomicU64,
    /// Calls of another reactor while ours is active.
    pub(super) foreign_calls: Mutex<ForeignCalls>,
    pub(super) master_unreachable: AtomicBool,
    lease: Mutex<Lease>,
    /// The lease blocked calls when it was last checked.
    lease_blocked: AtomicBool,
    pub(super) drain: Drain,
    pub(super) starts: Mutex<Starts>,
    pub(super) failed: Mutex<FailedReactions>,
    checkpoint_file: Mutex<CheckpointFile>,
}

pub(crate) struct Reactor {
    pub(super) shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

type Work = Box<dyn FnOnce(&Arc<Shared>) + Send>;

impl Reactor {
    /// Reads the checkpoint and starts the threads.
    pub(crate) fn start(parts: Parts) -> Result<Self, StoreError> {
        let Parts {
            store,
            intake,
            clean,
            clock,
            metrics,
            rules,
            settings,
            executor,
        } = parts;

        // Without a usable file the reactor begins here: earlier events must not cause reactions.
        let durable = store.durable();
        let mut checkpoint = match store
            .reactor_file()?
            .map(|bytes| file::parse(&bytes, durable))
        {
            None => Checkpoint::at(durable),
            Some(Ok((checkpoint, ignored))) => {
                // The valid batches are an earlier checkpoint and the log has the rest, so nothing
                // is lost.
                if ignored > 0 {
                    let cursor = checkpoint.cursor.0;
                    store.report_file(
                        "REACTOR",
                        "its end was incomplete or damaged at the start: the log was read again from the last valid position",
                    );
                    tracing::warn!(
                        ignored,
                        cursor,
                        "end of file REACTOR is incomplete or damaged, reading the log again from the last valid cursor"
                    );
                }
                checkpoint
            }
            Some(Err(problem)) => {
                // Reading the whole log again would repeat old calls, so open reactions are given
                // up.
                tracing::error!(
                    problem,
                    "file REACTOR is invalid, starting with the next event"
                );
                metrics.reactor_keeps_failed.add(1);
                let what = format!(
                    "{problem}; the reactor began with the next event: reactions that were open then were not made"
                );
                store.report_file("REACTOR", what);
                Checkpoint::at(durable)
            }
        };

        // New rules, and calls after the end of shadow mode, apply from here on.
        set_rules(&mut checkpoint, &*rules, durable);
        checkpoint.set_mode(settings.shadow, durable);

        // An event that another source delivered first must not go without a reaction: from now on
        // its arrival on the bus becomes an entry.
        store.note_seen_on_bus();

        let lease = Lease::new(settings.salts.fallback, clock.now());
        let configured = Mutex::new(settings.clone());
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
            configured,
            comparer: Mutex::default(),
            differences: Mutex::default(),
            executor,
            scheduler: Mutex::new(scheduler),
            change: Condvar::new(),
            room: Condvar::new(),
            job_depths: Mutex::default(),
            read: AtomicU64::new(checkpoint.cursor.0),
            checkpoint: Mutex::new(checkpoint),
            foreign_calls: Mutex::default(),
            master_unreachable: AtomicBool::new(false),
            lease: Mutex::new(lease),
            lease_blocked: AtomicBool::new(false),
            drain: Drain::new(),
            starts: Mutex::default(),
            failed: Mutex::default(),
            checkpoint_file: Mutex::default(),
        });

        // Saved first: an event that is open when the daemon is killed must be known after the next
        // start.
        shared.save_checkpoint();
        shared.restore_once()?;
        shared.suspend_foreign_calls();
        shared.record_mode(true);

        let mut threads = Vec::new();
        let mut spawn = |name: String, work: Work| {
            let shared = shared.clone();
            let thread = Builder::new().name(name).spawn(move || work(&shared));
            threads.push(thread.map_err(|why| {
                StoreError::Failed(format!("cannot start a thread of the reactor: {why}"))
            })?);
            Ok::<(), StoreError>(())
        };

        // Read before the thread starts: an event of this moment on was certainly not handled
        // before the start.
        let live = shared.store.durable();
        spawn(
            "sc-react".to_owned(),
            Box::new(move |shared| super::follower::run(shared, live)),
        )?;
        for n in 0..REACTOR_WORKERS {
            spawn(format!("sc-react-{n}"), Box::new(super::worker::run))?;
        }
        spawn(
            "sc-react-keep".to_owned(),
            Box::new(|shared| shared.housekeeping()),
        )?;

        Ok(Self { shared, threads })
    }

    pub(crate) fn handle(&self) -> Handle {
        Handle(self.shared.clone())
    }

    /// Waits for the threads, at most [`REACTOR_STOP_TIMEOUT`], and saves the checkpoint.
    pub(crate) fn stop(self) {
        let Self { shared, threads } = self;

        shared.drain.stop();
        shared.change.notify_all();
        shared.room.notify_all();

        // A thread that waits for the master cannot be interrupted; its event stays open.
        let until = Instant::now() + REACTOR_STOP_TIMEOUT;
        let held_up = threads
            .into_iter()
            .filter_map(|thread| threads::join_until(thread, until))
            .count();
        if held_up > 0 {
            tracing::warn!(
                threads = held_up,
                "reactions still wait for the master, they continue after the next start"
            );
        }

        // Gives up the intake, for which the store waits when it stops.
        shared.recorder.close(Duration::from_secs(1));
        shared.save_checkpoint();
    }
}

impl Shared {
    pub(super) fn rule_snapshot(&self) -> RuleSnapshot {
        self.rule_snapshot.read().clone()
    }

    pub(super) fn rules(&self) -> Arc<dyn RuleEngine> {
        self.rule_snapshot().rules
    }

    /// The rules that match an event and were configured when it arrived.
    pub(super) fn matching(&self, rules: &dyn RuleEngine, tag: &str, seq: SeqNo) -> Vec<Arc<str>> {
        let mut matched = rules.matching(tag);

        // Most tags match no rule and need no lock.
        if !matched.is_empty() {
            let checkpoint = self.checkpoint.lock();
            matched.retain(|rule| checkpoint.takes(rule, seq));
        }
        matched
    }

    pub(super) fn settings(&self) -> Arc<ReactorSettings> {
        self.rule_snapshot().settings
    }

    /// Records in the log whether the reactor is in shadow, for later comparisons.
    fn record_mode(&self, started: bool) {
        let now = self.clock.now();
        self.recorder
            .write(shadow::mode(self.settings().shadow, started, now));
    }

    /// Ignores calls of reactors for a while, because they may be our own without a known response.
    pub(super) fn suspend_foreign_calls(&self) {
        self.foreign_calls.lock().suspend(self.clock.now());
    }

    /// Whether the lease forbids calls now. Logs a change, with its reason.
    pub(super) fn lease_blocks(&self) -> bool {
        let why = self.lease.lock().blocked(self.clock.monotonic());

        // `swap` lets one of the threads that notice the change log it.
        if self.lease_blocked.swap(why.is_some(), Ordering::Relaxed) != why.is_some() {
            if let Some(why) = &why {
                tracing::warn!(why, "the reactor makes no calls, reactions are waiting");
            } else {
                tracing::info!("the reactor's lease is valid, reactions continue");
            }
        }
        why.is_some()
    }

    /// Whether Salt's own reactor, as a fallback, was in charge of an event.
    pub(super) fn is_of_fallback(&self, event: &Event) -> bool {
        // After a pause the daemon reads events that were fired earlier.
        let fired = stamp_of(&event.body).and_then(Micros::of_stamp);
        let lease = self.lease.lock();
        lease.is_of_fallback(event.at) || fired.is_some_and(|at| lease.is_of_fallback(at))
    }

    pub(super) fn count_skipped(&self, why: &str) {
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

    /// Skips a task and records that.
    pub(super) fn skip(&self, mut task: Task, why: &'static str) {
        // Salt's reactor has no throttles. A call that only Salt makes can be explained if the
        // skipped reaction is rendered.
        if option_of(why).is_some() && task.skipped.is_none() && self.settings().shadow {
            task.skipped = Some(why);
            // Past the throttles, which have decided already.
            self.scheduler.lock().put(task);
            self.change.notify_one();
            return;
        }

        self.count_skipped(why);

        // Only these reasons can mean that wanted work is lost.
        if matches!(why, "budget" | "depth" | "old") {
            tracing::warn!(
                event = task.event.seq.0, tag = task.event.tag, rules = ?task.rules, why,
                "reaction skipped; run `saltcellar reactor replay` to make its calls"
            );
        }

        let now = self.clock.now();
        let mut record = Record::skipped(task.event, task.rules, task.rule_count, why, now);
        record.replay = task.replay;
        self.recorder.write(record.batch(now));
    }

    /// Reads an event from the log; `None` if retention has deleted it.
    pub(super) fn load(&self, seq: SeqNo) -> Result<Option<Event>, StoreError> {
        let mut found = None;
        let take = |row: crate::store::Followed<'_>| {
            // If retention has deleted the entry, the first one that is read is a later one.
            if row.seq == seq && found.is_none() {
                found = Some(super::follower::event_of(&row));
            }
        };

        self.store
            .first_entry(super::follower::is_of_interest, seq, take)?;
        Ok(found)
    }

    /// Writes the changes of the checkpoint since the last call.
    fn save_checkpoint(&self) {
        // Lock order: the file before the checkpoint. The checkpoint is free again before the
        // write, so that the follower does not wait for the disk.
        let mut checkpoint_file = self.checkpoint_file.lock();
        let update = checkpoint_file.update(&mut self.checkpoint.lock());
        let written = match update {
            None => Ok(()),
            Some(Update::Whole(checkpoint)) => self
                .store
                .replace_reactor_file(|put| checkpoint_file.write_whole(&checkpoint, put)),
            Some(Update::Append(offset, text)) => self.store.append_to_reactor_file(offset, &text),
        };

        if let Err(error) = written {
            // What the file contains now is unknown, so the next save rewrites it.
            checkpoint_file.failed();
            self.metrics.reactor_keeps_failed.add(1);
            tracing::error!(%error, "cannot write the reactor's checkpoint");
        }
    }

    /// Restores from the log which events counted for rules with `once_per`.
    fn restore_once(&self) -> Result<(), StoreError> {
        let (settings, now) = (self.settings(), self.clock.now());
        for options in &settings.rules {
            let Some(window) = options.once_per else {
                continue;
            };

            let filter = EventFilter {
                tag: Some(Glob::new(&format!("{REACTION_TAG}{}", options.rule))),
                since: Some(now.before(window)),
                reactions: true,
                ..EventFilter::default()
            };

            // Backwards from the end, and bounded, so that a large log does not delay the start.
            let (mut before, mut bytes) = (self.store.durable(), 0);
            while bytes < REACTOR_SEARCH_BYTES {
                let rows = self.store.events_before(
                    &filter,
                    before,
                    LIST_ROWS_MAX,
                    REACTOR_SEARCH_BYTES / 16,
                )?;
                let Some(last) = rows.last() else { break };
                before = last.seq;
                bytes += rows.iter().map(|row| row.body.len()).sum::<usize>();

                let mut scheduler = self.scheduler.lock();
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
        let mut last_mode = Instant::now();
        while !self.drain.wait(REACTOR_CHECKPOINT_INTERVAL) {
            self.recorder.retry();
            self.save_checkpoint();
            self.expire_runners();
            // Lock order: `foreign_calls` before `job_depths`.
            self.foreign_calls
                .lock()
                .settle(&self.job_depths.lock(), self.clock.now());

            if last_mode.elapsed() >= REACTOR_MODE_INTERVAL {
                self.record_mode(false);
                last_mode = Instant::now();
            }
        }
    }

    /// Notes whether the master is reachable; logs a change with its reason.
    pub(super) fn set_master_unreachable(&self, away: bool, why: &str) {
        // Most calls change nothing and need no lock.
        if self.master_unreachable.load(Ordering::Relaxed) == away {
            return;
        }

        {
            // Under the lock of the scheduler, which has a flag of its own: two threads must not
            // leave the two different.
            let mut scheduler = self.scheduler.lock();
            // Only the thread that changes the flag logs, and wakes the others.
            if self.master_unreachable.swap(away, Ordering::Relaxed) == away {
                return;
            }
            scheduler.set_master_unreachable(away);
        }

        if away {
            tracing::warn!(why, "master unreachable, reactions are waiting");
        } else {
            tracing::info!("master reachable again, reactions continue");
            self.change.notify_all();
        }
    }

    /// Waits for a change of the scheduler, at most until `until` or the next check for a stop.
    pub(super) fn wait_for_change(
        &self,
        scheduler: &mut parking_lot::MutexGuard<'_, Scheduler>,
        until: Option<Micros>,
    ) {
        // At least 200 us: a time that has just passed must not cause a busy loop.
        let micros = until
            .map_or(i64::MAX, |at| at.0 - self.clock.now().0)
            .max(200);

        let pause = Duration::from_micros(u64::try_from(micros).unwrap_or(0)).min(STOP_CHECK);
        self.change.wait_for(scheduler, pause);
    }
}

/// Sets the rules; new rules apply to events from `from` on.
fn set_rules(checkpoint: &mut Checkpoint, rules: &dyn RuleEngine, from: SeqNo) {
    let rules = rules.all();
    checkpoint.set_rules(rules.iter().map(|rule| rule.pattern.as_str()), from);
}

impl Handle {
    pub(crate) fn status(&self) -> Status {
        let shared = &self.0;
        let cursor = SeqNo(shared.read.load(Ordering::Acquire));
        let open = shared.checkpoint.lock().open.len();

        Status {
            cursor,
            behind: shared.store.durable().0.saturating_sub(cursor.0),
            waiting: shared.scheduler.lock().waiting(),
            open,
            master_unreachable: shared.master_unreachable.load(Ordering::Relaxed),
            shadow: shared.settings().shadow,
            refused: shared.refused.lock().clone(),
        }
    }

    /// Replaces rules and settings together. Reactions in progress keep the old ones.
    pub(crate) fn change(&self, rules: Arc<dyn RuleEngine>, settings: ReactorSettings) {
        let shared = &self.0;
        shared.lease.lock().configure(settings.salts.fallback);
        {
            // Held until all is in use, see `report`.
            let mut configured = shared.configured.lock();
            configured.clone_from(&settings);
            self.apply(rules, settings);
        }

        *shared.refused.lock() = None;
        shared.metrics.reactor_reloads.add(1);
    }

    /// Puts rules and configured settings into use. The reactor only watches if the master's engine
    /// has reported that Salt's own reactor runs beside it: the configuration alone does not show
    /// what Salt has started.
    fn apply(&self, rules: Arc<dyn RuleEngine>, mut settings: ReactorSettings) {
        let shared = &self.0;
        if shared.lease.lock().salts_reactor() {
            settings.salts.runs = true;
            settings.shadow = true;
        }

        {
            // New rules apply to events that are not in the log yet, even if the follower is
            // behind.
            let (from, before) = (shared.store.durable(), shared.rules());
            let mut checkpoint = shared.checkpoint.lock();
            // Rules added by `salt-run reactor.add` applied to all events read so far.
            set_rules(&mut checkpoint, &*before, SeqNo(0));
            set_rules(&mut checkpoint, &*rules, from);
            checkpoint.set_mode(settings.shadow, from);
        }

        let settings = Arc::new(settings);
        // Only after the checkpoint, because a rule that it does not know applies to every event.
        let changes = {
            let mut rule_snapshot = shared.rule_snapshot.write();
            let changes = rule_snapshot.settings.shadow != settings.shadow;
            *rule_snapshot = RuleSnapshot {
                rules,
                settings: settings.clone(),
            };
            changes
        };

        shared.scheduler.lock().configure(settings);
        shared.change.notify_all();

        // Later comparisons need the change. Responses to calls that were just sent may be missing.
        if changes {
            shared.record_mode(false);
            shared.suspend_foreign_calls();
        }
    }

    /// Applies a report of the master's engine. Returns the token for its next one, and why the
    /// reactor makes no calls.
    pub(crate) fn report(&self, report: &EngineReport<'_>) -> (String, Option<String>) {
        let shared = &self.0;
        let now = shared.clock.monotonic();
        // Under one lock, so that the changes are those that this report made.
        let (token, ended, both) = {
            let mut lease = shared.lease.lock();
            let (acted, ran) = (lease.fallback_acts(), lease.salts_reactor());
            lease.report(report, now);
            let both = (lease.salts_reactor() != ran).then(|| lease.salts_reactor());
            (lease.token(now), acted && !lease.fallback_acts(), both)
        };

        if let Some(both) = both {
            // Held until all is in use: a reload in between would otherwise be undone by the rules
            // that are read here.
            let configured = shared.configured.lock();
            if both {
                tracing::error!(
                    "the master runs Salt's own reactor beside its engine saltcellar_reactor; saltcellar's only watches. Remove `reactor` from \
                    the master's list `engines`, write saltcellar_reactor there as text, and restart the master"
                );
            }
            self.apply(shared.rules(), configured.clone());
        }

        if ended {
            // Calls of the fallback may still appear on the bus.
            shared.suspend_foreign_calls();
        }

        if !shared.lease_blocks() {
            shared.change.notify_all();
        }

        (token, self.blocked_by())
    }

    /// Notes rejected configuration or rules, and the reason; the old ones stay in use.
    pub(crate) fn refuse(&self, why: String) {
        *self.0.refused.lock() = Some((self.0.clock.now(), why));
        self.0.metrics.reactor_reloads_refused.add(1);
    }

    /// Ends a rejection for this reason. One for another reason stays.
    pub(crate) fn accept(&self, why: &str) {
        self.0.refused.lock().take_if(|(_, known)| known == why);
    }

    /// The latest differences from Salt's reactor, the latest first.
    pub(crate) fn differences(&self) -> Vec<ShadowDifference> {
        self.0.differences.lock().iter().cloned().collect()
    }

    /// Length of the window in which a call of Salt's reactor can match ours.
    pub(crate) fn shadow_window(&self) -> Duration {
        self.0.settings().shadow_window
    }

    /// Number of runners and wheel functions that Salt's own reactor runs concurrently.
    pub(crate) fn salts_workers(&self) -> usize {
        self.0.settings().salts.workers
    }

    pub(crate) fn rules(&self) -> Vec<ListedRule> {
        self.0.rules().all()
    }

    /// Salt's own reactor: as configured, or on if its calls have been seen.
    pub(crate) fn salts_reactor(&self) -> SaltsReactor {
        let mut salts = self.0.settings().salts.clone();
        salts.runs |= self.0.lease.lock().fallback_acts()
            || self
                .0
                .foreign_calls
                .lock()
                .seen(self.0.clock.now())
                .is_some();
        salts
    }

    /// The latest call of another reactor, if it was recent and ours is active.
    pub(crate) fn foreign_call(&self) -> Option<(Micros, String)> {
        self.0.foreign_calls.lock().seen(self.0.clock.now())
    }

    /// Why the reactor makes no calls, as far as known here.
    pub(crate) fn blocked_by(&self) -> Option<String> {
        let shared = &self.0;
        let RuleSnapshot { rules, settings } = shared.rule_snapshot();

        // The most general reason comes first, because a reader sees only one.
        if settings.shadow && settings.salts.runs {
            return Some("shadow mode, because Salt's own reactor is on".to_owned());
        }
        if settings.shadow {
            return Some("shadow mode: `reactor.shadow` is true".to_owned());
        }

        if let Some(why) = shared.lease.lock().blocked(shared.clock.monotonic()) {
            return Some(why);
        }

        let full = || "records of reactions cannot be written to the log".to_owned();
        rules
            .blocked_by()
            .or_else(|| shared.executor.blocked_by())
            .or_else(|| shared.recorder.is_full().then(full))
    }

    /// The number of failed reactions of the last day that were not replayed, and the latest.
    pub(crate) fn recently_failed(&self) -> Option<(u64, FailedReaction)> {
        self.0.failed.lock().recent(self.0.clock.now())
    }

    /// Number of reactions since the start, by final state: done, failed, partial, dead.
    pub(crate) fn ended(&self) -> [(&'static str, u64); 4] {
        let metrics = &self.0.metrics;
        [
            ("done", metrics.reactions_done.get()),
            ("failed", metrics.reactions_failed.get()),
            ("partial", metrics.reactions_partial.get()),
            ("dead", metrics.reactions_dead.get()),
        ]
    }

    pub(crate) fn matching(&self, tag: &str) -> Vec<Arc<str>> {
        self.0.rules().matching(tag)
    }
}
