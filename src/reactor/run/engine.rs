//! The reactor: its owners, its threads, and the handle for the rest of the daemon.
//!
//! | owner | of |
//! |---|---|
//! | [`InUse`] | the rules and settings in use |
//! | [`Keeper`] | the checkpoint: open events, and the position in the log |
//! | [`Pending`] | the scheduler: which task is next |
//! | [`Traces`] | what the log shows of calls, and which are saltcellar's |
//! | [`RunnerSlots`] | the slots of the master's runners |
//! | [`CallGate`] | whether calls may be made |
//! | [`Team`] | with an election: whether events are queued, and which are twins |
//! | [`Recorder`] | records on their way to the log |
//! | [`Endings`] | the end of reactions: counts, failures, records |
//! | [`Watch`] | the comparison with Salt's reactor |
//!
//! The threads and the handle have those that they need: [`Follower`], [`Worker`], [`Control`].

use std::ops::Deref;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use salt_sls::Glob;

use super::calls::Calls;
use super::control::Control;
use super::endings::Endings;
use super::failed::FailedReaction;
use super::follower::Follower;
use super::gate::CallGate;
use super::in_use::InUse;
use super::keeper::Keeper;
use super::pending::Pending;
use super::record;
use super::record::recorder::Recorder;
use super::replay::{ReplayError, Replayed, Replays};
use super::slots::RunnerSlots;
use super::tasks::Tasks;
use super::team::Team;
use super::traces::Traces;
use super::watch::{ShadowDifference, Watch};
use super::worker::Worker;
use super::{Executor, RuleEngine};
use crate::base::clock::{Clock, Micros};
use crate::base::limits::{
    ELECTION_RENEWAL, LIST_ROWS_MAX, REACTOR_CHECKPOINT_INTERVAL, REACTOR_MODE_INTERVAL,
    REACTOR_SEARCH_BYTES, REACTOR_STOP_TIMEOUT, REACTOR_WORKERS,
};
use crate::base::metrics::Metrics;
use crate::base::shutdown::Drain;
use crate::base::threads;
use crate::cluster::election::{Election, Standing};
use crate::model::{
    EventFilter, ListedRule, REACTION_TAG, ReactorSettings, SaltsReactor, SeqNo, Slot,
};
use crate::policy::master_keys::MasterKeys;
use crate::reactor::rules::lease::EngineReport;
use crate::reactor::stored::State;
use crate::store::{Intake, Store, StoreError, StoredEntry};

/// What the reactor works with.
pub struct Parts {
    /// Its events, and the last checkpoint.
    pub store: Store,
    /// Receives the records.
    pub intake: Intake,
    /// Redacted in records.
    pub keys: Arc<MasterKeys>,
    /// The time.
    pub clock: Clock,
    /// Counts what is done and why something is not.
    pub metrics: Arc<Metrics>,
    /// Matches and renders.
    pub rules: Arc<dyn RuleEngine>,
    /// Limits of rules, and the mode.
    pub settings: ReactorSettings,
    /// The slot of jobs' ids.
    pub jid_slot: Option<Slot>,
    /// Carries out calls.
    pub executor: Arc<dyn Executor>,
}

/// The reactor as the rest of the daemon sees it.
#[derive(Clone)]
pub struct Handle {
    reader: ReactorReader,
    replays: Replays,
}

/// What the reactor can tell. No method of it changes the reactor; those are of [`Handle`], which
/// dereferences to it.
#[derive(Clone)]
pub struct ReactorReader {
    control: Arc<Control>,
    watch: Arc<Watch>,
    endings: Arc<Endings>,
    log: Store,
}

impl Deref for Handle {
    type Target = ReactorReader;

    fn deref(&self) -> &ReactorReader {
        &self.reader
    }
}

/// How far the reactor is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Position in the log.
    pub cursor: SeqNo,
    /// Number of entries between `cursor` and the end of the log.
    pub behind: u64,
    /// Number of pending reactions.
    pub waiting: usize,
    /// Number of events without a complete record.
    pub open: usize,
    /// True while calls wait for the master.
    pub master_unreachable: bool,
    /// True in shadow mode: no calls are made.
    pub shadow: bool,
    /// The master's `cluster_id`, if the reactor therefore leaves events of other masters to their daemons.
    pub cluster_id: Option<String>,
    /// The election that decides whether this reactor acts, and who does.
    pub(crate) election: Option<(String, Standing)>,
    /// Time and reason of a rejected reload; `None` if the current configuration is in use.
    pub refused: Option<(Micros, String)>,
}

/// The reactor with its threads.
pub struct Reactor {
    handle: Handle,
    /// For tests, which do a thread's work themselves.
    #[cfg(test)]
    pub(super) follower: Arc<Follower>,
    #[cfg(test)]
    pub(super) worker: Arc<Worker>,
    pending: Arc<Pending>,
    keeper: Arc<Keeper>,
    recorder: Arc<Recorder>,
    drain: Drain,
    threads: Vec<JoinHandle<()>>,
}

impl Reactor {
    /// Reads the checkpoint and starts the threads.
    pub fn start(parts: Parts) -> Result<Self, StoreError> {
        Self::start_in(parts, None)
    }

    /// The same, in an election.
    pub(crate) fn start_in(
        parts: Parts,
        election: Option<Arc<Election>>,
    ) -> Result<Self, StoreError> {
        let Parts {
            store: log,
            intake,
            keys,
            clock,
            metrics,
            rules,
            settings,
            jid_slot,
            executor,
        } = parts;

        let keeper = Keeper::open(log.clone(), metrics.clone(), &*rules, settings.shadow);
        let keeper = Arc::new(keeper);

        // An event that another source delivered first must not go without a reaction: from now on
        // its arrival on the bus becomes an entry.
        log.note_seen_on_bus();

        // The entry with the mode and all events from now on are after this position. None of them
        // was handled before the start.
        let (live, now) = (log.durable(), clock.now());

        let fallback = settings.salts.fallback;
        let in_use = Arc::new(InUse::new(rules, settings, now));
        // With the settings, because after a reload this reactor may no longer take part.
        let elected = election.clone().map(|election| (election, in_use.clone()));
        let gate = Arc::new(CallGate::new(fallback, elected, clock.clone()));
        let pending = Arc::new(Pending::new(in_use.settings(), clock.clone()));
        let traces = Arc::new(Traces::new(clock.clone()));
        let watch = Arc::new(Watch::new(metrics.clone()));
        let recorder = Arc::new(Recorder::new(intake, keys, metrics.clone()));
        let endings = Endings::new(recorder.clone(), clock.clone(), metrics.clone());
        let endings = Arc::new(endings);
        let drain = Drain::new();

        let slots = Arc::new(RunnerSlots {
            pending: pending.clone(),
            log: log.clone(),
            clock: clock.clone(),
            metrics: metrics.clone(),
        });

        let tasks = Arc::new(Tasks {
            in_use: in_use.clone(),
            keeper: keeper.clone(),
            pending: pending.clone(),
            endings: endings.clone(),
            log: log.clone(),
            clock: clock.clone(),
        });

        let control = Arc::new(Control {
            in_use: in_use.clone(),
            keeper: keeper.clone(),
            pending: pending.clone(),
            gate: gate.clone(),
            traces: traces.clone(),
            recorder: recorder.clone(),
            executor: executor.clone(),
            clock: clock.clone(),
            metrics: metrics.clone(),
        });

        let worker = Arc::new(Worker {
            in_use: in_use.clone(),
            keeper: keeper.clone(),
            pending: pending.clone(),
            gate: gate.clone(),
            tasks: tasks.clone(),
            calls: Calls {
                executor,
                jid_slot,
                gate: gate.clone(),
                pending: pending.clone(),
                slots: slots.clone(),
                traces: traces.clone(),
                recorder: recorder.clone(),
                keeper: keeper.clone(),
                log: log.clone(),
                clock: clock.clone(),
                metrics: metrics.clone(),
            },
            endings: endings.clone(),
            clock: clock.clone(),
            metrics: metrics.clone(),
        });

        let team = Team::new(
            gate.clone(),
            keeper.clone(),
            log.clone(),
            clock.clone(),
            metrics.clone(),
        );

        let follower = Arc::new(Follower {
            log: log.clone(),
            in_use: in_use.clone(),
            keeper: keeper.clone(),
            pending: pending.clone(),
            slots: slots.clone(),
            traces: traces.clone(),
            gate,
            watch: watch.clone(),
            tasks: tasks.clone(),
            endings: endings.clone(),
            drain: drain.clone(),
            clock: clock.clone(),
            metrics,
            team,
        });

        // Saved first: an event that is open when the daemon is killed must be known after the next
        // start.
        keeper.save();
        restore_once(&log, &pending, &in_use.settings(), now)?;
        // Calls of the previous process may still appear on the bus.
        traces.suspend_foreign();
        control.record_mode(true);

        let mut reactor = Self {
            handle: Handle {
                reader: ReactorReader {
                    control: control.clone(),
                    watch,
                    endings,
                    log: log.clone(),
                },
                replays: Replays(tasks),
            },
            #[cfg(test)]
            follower: follower.clone(),
            #[cfg(test)]
            worker: worker.clone(),
            pending,
            keeper: keeper.clone(),
            recorder: recorder.clone(),
            drain: drain.clone(),
            threads: Vec::new(),
        };

        reactor.spawn("sc-react", move || follower.run(live))?;

        for n in 0..REACTOR_WORKERS {
            let (worker, drain) = (worker.clone(), drain.clone());
            reactor.spawn(&format!("sc-react-{n}"), move || worker.run(&drain))?;
        }

        if let Some(election) = election {
            let (control, drain) = (reactor.handle.control.clone(), drain.clone());
            // A thread for itself, because connecting to the master can take long.
            reactor.spawn("sc-react-fit", move || {
                loop {
                    election.set_unfit(control.unfit());
                    if drain.wait(ELECTION_RENEWAL) {
                        return election.set_unfit(Some("the daemon stops".to_owned()));
                    }
                }
            })?;
        }

        reactor.spawn("sc-react-keep", move || {
            let mut last_mode = Instant::now();
            while !drain.wait(REACTOR_CHECKPOINT_INTERVAL) {
                // Nothing else triggers these: they repeat what failed, and end what got no result in time.
                recorder.retry();
                keeper.save();
                slots.expire();
                traces.settle_foreign();

                if last_mode.elapsed() >= REACTOR_MODE_INTERVAL {
                    control.record_mode(false);
                    last_mode = Instant::now();
                }
            }
        })?;

        Ok(reactor)
    }

    fn spawn(
        &mut self,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), StoreError> {
        let thread = threads::spawn(name, work);
        self.threads
            .push(thread.map_err(|why| StoreError::Refused(why.to_string()))?);
        Ok(())
    }

    /// The reactor as the rest of the daemon sees it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits for the threads, at most [`REACTOR_STOP_TIMEOUT`], and saves the checkpoint.
    pub fn stop(self) {
        self.drain.stop();
        self.pending.stop();

        // A thread that waits for the master cannot be interrupted; its event stays open.
        let until = Instant::now() + REACTOR_STOP_TIMEOUT;
        let held_up = self
            .threads
            .into_iter()
            .filter_map(|thread| threads::join_until(thread, until))
            .count();
        if held_up > 0 {
            tracing::warn!(
                threads = held_up,
                "reactions still wait for the master at shutdown, they continue after the next start"
            );
        }

        // Gives up the intake, for which the store waits when it stops.
        self.recorder.close(Duration::from_secs(1));
        self.keeper.save();
    }
}

/// Restores from the log which events counted for rules with `once_per`.
fn restore_once(
    log: &Store,
    pending: &Pending,
    settings: &ReactorSettings,
    now: Micros,
) -> Result<(), StoreError> {
    for options in &settings.rules {
        let Some(window) = options.once_per else {
            continue;
        };

        // The tag of a record ends with the tag of its event, which the rule's pattern matches.
        let filter = EventFilter {
            tag: Some(Glob::new(&format!("{REACTION_TAG}{}", options.rule))),
            since: Some(now.before(window)),
            reactions: true,
            ..EventFilter::default()
        };

        // Backwards from the end, and bounded, because a large log must not delay the start.
        let (mut before, mut bytes) = (log.durable(), 0);
        while bytes < REACTOR_SEARCH_BYTES {
            let rows =
                log.events_before(&filter, before, LIST_ROWS_MAX, REACTOR_SEARCH_BYTES / 16)?;
            let Some(last) = rows.last() else { break };
            before = last.seq;
            bytes += rows.iter().map(|row| row.body.len()).sum::<usize>();

            let mut scheduler = pending.lock();
            for row in &rows {
                if let Some(at) = record::counted_once(&row.body, &options.rule) {
                    scheduler.note_first(options, &row.minion, at);
                }
            }
        }
    }
    Ok(())
}

impl Handle {
    /// Replaces rules and settings together. Reactions in progress keep the old ones.
    pub(crate) fn change(&self, rules: Arc<dyn RuleEngine>, settings: ReactorSettings) {
        self.control.change(rules, settings);
    }

    /// Applies a report of the master's engine. Returns the token for its next one, and why the
    /// reactor makes no calls.
    pub(crate) fn report(&self, report: &EngineReport<'_>) -> (String, Option<String>) {
        self.control.report(report)
    }

    /// Notes rejected configuration or rules, and the reason; the old ones stay in use.
    pub(crate) fn refuse(&self, why: String) {
        self.control.refuse(why);
    }

    /// Ends a rejection for this reason. One for another reason stays.
    pub(crate) fn accept(&self, why: &str) {
        self.control.in_use.accept(why);
    }

    /// Makes the dead-lettered calls of a record, or `all` of its calls. If a part failed to
    /// render, it renders the record's rules again and omits the calls that were made.
    pub(crate) fn replay(&self, record: &StoredEntry, all: bool) -> Result<Replayed, ReplayError> {
        self.may_replay()?;
        self.replays.replay(record, all)
    }

    /// Renders an event again with all current rules.
    pub(crate) fn replay_event(&self, seq: SeqNo) -> Result<Replayed, ReplayError> {
        self.may_replay()?;
        self.replays.replay_event(seq)
    }

    fn may_replay(&self) -> Result<(), ReplayError> {
        match self.control.gate.standing() {
            Some(Standing::Follows(leader)) => Err(ReplayError::Follows(leader)),
            _ => Ok(()),
        }
    }
}

impl ReactorReader {
    /// How far it is.
    pub fn status(&self) -> Status {
        let Control {
            in_use,
            keeper,
            pending,
            ..
        } = &*self.control;

        let settings = in_use.settings();
        // Before the end of the log is read: `behind` may be a little too large, and is never
        // negative.
        let cursor = keeper.read();
        let open = keeper.checkpoint().open.len();
        Status {
            cursor,
            behind: self.log.durable().0.saturating_sub(cursor.0),
            waiting: pending.lock().waiting(),
            open,
            master_unreachable: pending.is_master_unreachable(),
            shadow: settings.shadow,
            cluster_id: settings.cluster_id.clone().filter(|_| !settings.shadow),
            election: self
                .control
                .gate
                .election()
                .map(|election| (election.name.clone(), election.standing())),
            refused: in_use.refused(),
        }
    }

    /// Whether the daemon of another master reacts to events of this origin.
    pub(crate) fn is_of_peer(&self, origin: &str) -> bool {
        self.control.in_use.settings().is_of_peer(origin)
    }

    /// The latest differences from Salt's reactor, the latest first.
    pub(crate) fn differences(&self) -> Vec<ShadowDifference> {
        self.watch.differences()
    }

    /// Length of the window in which a call of Salt's reactor can match ours.
    pub(crate) fn shadow_window(&self) -> Duration {
        self.control.in_use.settings().shadow_window
    }

    /// Number of runners and wheel functions that Salt's reactor runs concurrently.
    pub(crate) fn salts_workers(&self) -> usize {
        self.control.in_use.settings().salts.workers
    }

    pub(crate) fn rules(&self) -> Vec<ListedRule> {
        self.control.in_use.rules().all()
    }

    pub(crate) fn matching(&self, tag: &str) -> Vec<Arc<str>> {
        self.control.in_use.rules().matching(tag)
    }

    /// Salt's reactor: as configured, or on if its calls have been seen.
    pub(crate) fn salts_reactor(&self) -> SaltsReactor {
        self.control.salts_reactor()
    }

    /// The latest call of another reactor, if it was recent and saltcellar's is active.
    pub(crate) fn foreign_call(&self) -> Option<(Micros, String)> {
        self.control.traces.foreign()
    }

    /// Why the reactor makes no calls, as far as known here.
    pub(crate) fn blocked_by(&self) -> Option<String> {
        self.control.blocked_by()
    }

    /// The number of failed reactions of the last day that were not replayed, and the latest.
    pub(crate) fn recently_failed(&self) -> Option<(u64, FailedReaction)> {
        self.endings.recently_failed()
    }

    /// Number of reactions since the start, by final state: done, failed, partial, dead.
    pub(crate) fn ended(&self) -> [(State, u64); 4] {
        self.endings.counts()
    }
}
