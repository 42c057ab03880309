//! The running reactor with a real store, test rules and a fake master.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use parking_lot::{Condvar, Mutex};
use salt_sls::{Glob, Map};

use super::engine::{Parts, Reactor};
use super::*;
use crate::base::clock::Clock;
use crate::base::metrics::Metrics;
use crate::cluster::election::Election;
use crate::model::{Batch, EventFilter, Rate, ReactorSettings as Settings, RuleOptions, Source};
use crate::policy::master_keys::MasterKeys;
use crate::store::{Intake, Options, Store, StoredEntry};
use crate::wire::msgpack::{Writer, as_text, elements, get};
use crate::wire::salt_event::event_entry;

mod basics;
mod callers;
mod changes;
mod cluster;
mod load;
mod loops;
mod once;
mod outcome;
mod scheduling;
mod team;

const NOW: i64 = 1_795_000_000_000_000;
const SECOND: i64 = 1_000_000;
const TIMEOUT: Duration = Duration::from_secs(20);

/// Replaces the settings of a store that is closed by those of another, with the checkpoint.
fn copy_settings(from: &std::path::Path, to: &std::path::Path) {
    let target = to.join("log/settings");
    let copied = std::process::Command::new("sh")
        .args([
            "-c",
            "rm -rf \"$2\" && mkdir -p \"$2\" && cp -a \"$1/.\" \"$2\"",
            "-",
        ])
        .args([&from.join("log/settings"), &target])
        .status();
    assert!(copied.unwrap().success());
}

/// Removes the checkpoint of a store that is closed.
fn forget_checkpoint(dir: &std::path::Path) {
    let options = store_options(dir, Clock::manual(Micros(NOW)), Arc::default());
    let (store, intake, threads) = Store::open(&options).unwrap().on_threads();
    assert!(checkpoint::saved::remove(store.settings()).unwrap());

    drop((store, intake));
    for thread in threads {
        thread.join().unwrap();
    }
}

fn store_options(dir: &std::path::Path, clock: Clock, metrics: Arc<Metrics>) -> Options {
    Options {
        metrics,
        ..Options::for_tests(dir, clock)
    }
}

/// Blocks threads while it is shut.
#[derive(Default)]
struct Barrier(Mutex<bool>, Condvar, AtomicUsize);

impl Barrier {
    fn wait(&self) {
        self.2.fetch_add(1, Ordering::SeqCst);
        self.1
            .wait_while_for(&mut self.0.lock(), |shut| *shut, TIMEOUT);
    }

    /// How many have come to it.
    fn reached(&self) -> usize {
        self.2.load(Ordering::SeqCst)
    }

    fn shut(&self, whether: bool) {
        *self.0.lock() = whether;
        self.1.notify_all();
    }
}

/// Rules by pattern; each makes one call, by default a job for the minion. Events `slow/*` block in rendering, `held/*` in matching.
#[derive(Default)]
struct Rules {
    patterns: Vec<&'static str>,
    slow: Arc<Barrier>,
    held: Arc<Barrier>,
    client: Option<Client>,
    fun: Option<&'static str>,
}

impl RuleEngine for Rules {
    fn matching(&self, tag: &str) -> Vec<Arc<str>> {
        if tag.starts_with("held/") {
            self.held.wait();
        }
        self.patterns
            .iter()
            .filter(|glob| Glob::new(glob).matches(tag))
            .map(|glob| (*glob).into())
            .collect()
    }

    fn all(&self) -> Vec<ListedRule> {
        let listed = |glob: &&str| ListedRule {
            pattern: (*glob).to_owned(),
            files: Vec::new(),
        };
        self.patterns.iter().map(listed).collect()
    }

    fn react(&self, event: &Event, rules: &[Arc<str>]) -> ReactionPlan {
        if event.tag.starts_with("slow/") {
            self.slow.wait();
        }
        let planned = |rule: &Arc<str>| {
            let arg = vec![event.tag.as_str().into()];
            let fun = self.fun.unwrap_or("test.arg");
            let call = match self.client {
                Some(Client::Runner) => Call::runner(fun, arg, Map::default()),
                Some(Client::Wheel) => Call::wheel(fun, arg, Map::default()),
                Some(Client::Caller) => Call::caller(&event.tag, arg, Value::Null),
                _ => Call::publish(event.minion.as_str(), "glob", fun, arg),
            };
            Call {
                id: rule.to_string(),
                sls: format!("/srv/{rule}.sls"),
                ..call
            }
        };
        ReactionPlan {
            files: vec![("/srv/a.sls".to_owned(), "rendered".to_owned())],
            calls: rules.iter().map(planned).collect(),
            fired: if event.tag.starts_with("request/") {
                vec![("answer".to_owned(), Value::Null)]
            } else {
                vec![]
            },
            ..ReactionPlan::default()
        }
    }
}

type Answers = Box<dyn Fn(&Call, u32) -> Result<Answer, MasterError> + Send + Sync>;

/// A fake master. Records its requests; `answers` gets a request and its repetition count, which is 0 for a check of reachability.
struct FakeMaster {
    asked: Mutex<SyncSender<(String, String)>>,
    times: Mutex<HashMap<String, u32>>,
    answers: Answers,
}

impl Executor for FakeMaster {
    fn ask(&self, call: &Call, jid: &str, _timeout: Duration) -> Result<Answer, MasterError> {
        let action = argument(call).to_owned();
        let times = {
            let mut times = self.times.lock();
            let times = times.entry(action.clone()).or_default();
            *times += 1;
            *times
        };
        self.asked.lock().send((action, jid.to_owned())).unwrap();
        (self.answers)(call, times).map(|answer| match answer {
            Answer::Published {
                minions, missing, ..
            } => Answer::Published {
                jid: jid.to_owned(),
                minions,
                missing,
            },
            other => other,
        })
    }

    fn reach(&self) -> Result<(), MasterError> {
        let asked = (self.answers)(&Call::publish("", "glob", "reach", Vec::new()), 0);
        asked.map(drop)
    }

    fn unsupported(&self, client: Client) -> Option<String> {
        (client == Client::Wheel).then(|| "there are no wheels".to_owned())
    }

    fn caller(&self, call: &Call) -> Result<CallerReturn, CallerError> {
        callers::caller_result(self.ask(call, "", TIMEOUT))
    }
}

/// The first argument of a call.
fn argument(call: &Call) -> &str {
    let load = call
        .load
        .get("kwarg")
        .and_then(Value::as_map)
        .unwrap_or(&call.load);
    load.get("arg")
        .or(load.get("args"))
        .and_then(Value::as_list)
        .and_then(|arg| arg.first()?.as_str())
        .unwrap_or_default()
}

fn yes() -> Answer {
    Answer::Published {
        jid: String::new(),
        minions: vec!["web1".to_owned()],
        missing: vec![],
    }
}

fn unreachable() -> MasterError {
    MasterError::Unreachable {
        place: "here".to_owned(),
        why: "down".to_owned(),
    }
}

fn no_answer() -> MasterError {
    MasterError::NoAnswer {
        place: "here".to_owned(),
        why: "silence".to_owned(),
    }
}

fn refused() -> MasterError {
    MasterError::Refused {
        place: "here".to_owned(),
        why: "no".to_owned(),
    }
}

/// A store with its threads and a reactor.
struct Harness {
    dir: Arc<tempfile::TempDir>,
    clock: Clock,
    metrics: Arc<Metrics>,
    store: Store,
    intake: Intake,
    reactor: Reactor,
    asked: Receiver<(String, String)>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Harness {
    fn start(
        rules: Rules,
        settings: Settings,
        answers: impl Fn(&Call, u32) -> Result<Answer, MasterError> + Send + Sync + 'static,
    ) -> Self {
        Self::start_in(
            Arc::new(tempfile::tempdir().unwrap()),
            NOW,
            rules,
            settings,
            answers,
        )
    }

    fn start_in(
        dir: Arc<tempfile::TempDir>,
        now: i64,
        rules: Rules,
        settings: Settings,
        answers: impl Fn(&Call, u32) -> Result<Answer, MasterError> + Send + Sync + 'static,
    ) -> Self {
        let clock = Clock::manual(Micros(now));
        Self::start_as((dir, clock, None), rules, settings, answers)
    }

    fn start_as(
        (dir, clock, election): (Arc<tempfile::TempDir>, Clock, Option<Arc<Election>>),
        rules: Rules,
        settings: Settings,
        answers: impl Fn(&Call, u32) -> Result<Answer, MasterError> + Send + Sync + 'static,
    ) -> Self {
        let metrics: Arc<Metrics> = Arc::default();
        let options = store_options(dir.path(), clock.clone(), metrics.clone());
        let (store, intake, threads) = Store::open(&options).unwrap().on_threads();
        let (tx, asked) = sync_channel(10_000);
        let master = FakeMaster {
            asked: Mutex::new(tx),
            times: Mutex::default(),
            answers: Box::new(answers),
        };
        let parts = Parts {
            keys: Arc::new(MasterKeys::new(&[], None)),
            store: store.clone(),
            intake: intake.clone(),
            clock: clock.clone(),
            metrics: metrics.clone(),
            rules: Arc::new(rules),
            settings,
            jid_slot: None,
            executor: Arc::new(master),
        };
        let reactor = Reactor::start_in(parts, election).unwrap();
        Self {
            dir,
            clock,
            metrics,
            store,
            intake,
            reactor,
            asked,
            threads,
        }
    }

    /// Stores an event of a minion from this source.
    fn fire_from(&self, source: Source, tag: &str, minion: &str, user: &str) {
        let mut w = Writer::new();
        w.map(3)
            .str("id")
            .str(minion)
            .str("user")
            .str(user)
            .str("_stamp")
            .str("2026");
        let body = w.into_bytes();
        let entry = event_entry(tag.as_bytes(), &body, source, self.clock.now());
        self.store(Batch::of(&crate::model::Entry { minion, ..entry }));
    }

    fn store(&self, batch: Batch) {
        let (tx, rx) = sync_channel(1);
        self.intake
            .submit(
                batch,
                Some(Box::new(move |stored| tx.send(stored).unwrap())),
            )
            .unwrap();
        crate::testkit::receive(&rx).unwrap();
    }

    /// Stores an event of the bus with this data.
    fn fire_data(&self, tag: &str, data: &[u8]) {
        self.store(Batch::of(&event_entry(
            tag.as_bytes(),
            data,
            Source::Bus,
            self.clock.now(),
        )));
    }

    fn fire_event(&self, tag: &str, minion: &str) {
        self.fire_from(Source::Bus, tag, minion, "root");
    }

    fn fire_texts(&self, tag: &str, pairs: &[(&str, &str)]) {
        let mut w = Writer::new();
        w.map(pairs.len());
        for (key, value) in pairs {
            w.str(key).str(value);
        }
        self.fire_data(tag, &w.into_bytes());
    }

    /// The first argument of the next request.
    fn next(&self) -> String {
        self.next_request().0
    }

    /// The first argument of the next request, and its jid.
    fn next_request(&self) -> (String, String) {
        self.asked.recv_timeout(TIMEOUT).expect("a request")
    }

    /// The time at which a paused reaction continues.
    fn next_at(&self) -> Option<Micros> {
        self.reactor.worker.pending.lock().next_at()
    }

    fn wait_for_the_pause(&self) {
        self.wait_for("the pause", |harness| harness.next_at().is_some());
    }

    /// Waits until one event is being rendered: an event that is open may still wait for a worker.
    fn wait_for_rendering(&self, slow: &Barrier) {
        self.wait_for("an event to be rendered", |_| slow.reached() == 1);
    }

    fn wait_for_open(&self, events: usize) {
        self.wait_for("open events", |harness| harness.status().open == events);
    }

    fn status(&self) -> super::engine::Status {
        self.reactor.handle().status()
    }

    fn wait_for(&self, action: &str, is_done: impl Fn(&Self) -> bool) {
        crate::testkit::wait_for(action, || is_done(self).then_some(()));
    }

    fn wait_until_done(&self) {
        self.wait_for("all events to be complete", Self::is_done);
    }

    /// Advances the clock until all events are complete.
    fn wind_until_done(&self) {
        self.wait_for("all events to be complete", |harness| {
            harness.clock.wind(SECOND);
            harness.is_done()
        });
    }

    fn is_done(&self) -> bool {
        let status = self.status();
        status.behind == 0 && status.waiting == 0 && status.open == 0
    }

    /// The records, the earliest first.
    fn records(&self) -> Vec<StoredEntry> {
        let filter = EventFilter {
            reactions: true,
            ..EventFilter::default()
        };
        let found = self
            .store
            .events_before(&filter, self.store.durable(), usize::MAX, usize::MAX);
        found.unwrap().into_iter().rev().collect()
    }

    /// Tag and state of each record, and the outcome of each call.
    fn history(&self) -> Vec<Outcome> {
        let text = |bytes: Option<&[u8]>| bytes.and_then(as_text).unwrap_or_default().to_owned();
        let record = |entry: StoredEntry| {
            let calls = get(&entry.body, "calls").unwrap_or_default();
            let outcomes = elements(calls)
                .map(|call| text(get(call, "outcome")))
                .collect();
            let state = text(get(&entry.body, "state"));
            let why = text(get(&entry.body, "why"));
            let state = if why.is_empty() { state } else { why };
            (
                String::from_utf8(entry.tag)
                    .unwrap()
                    .replace("saltcellar/reaction/", ""),
                state,
                outcomes,
            )
        };
        self.records().into_iter().map(record).collect()
    }

    /// Stops everything; returns the remaining requests.
    fn stop(self) -> (Arc<tempfile::TempDir>, Vec<String>) {
        self.reactor.stop();
        drop((self.store, self.intake));
        self.threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        (
            self.dir,
            self.asked.try_iter().map(|(action, _)| action).collect(),
        )
    }
}

fn rules(patterns: &[&'static str]) -> Rules {
    Rules {
        patterns: patterns.to_vec(),
        ..Rules::default()
    }
}

fn with(change: impl FnOnce(&mut RuleOptions)) -> Settings {
    let mut plain = RuleOptions::default();
    change(&mut plain);
    Settings {
        plain: Arc::new(plain),
        ..Settings::default()
    }
}

/// Options of one rule.
fn own(rule: &str, change: fn(&mut RuleOptions)) -> Arc<RuleOptions> {
    let mut options = RuleOptions {
        rule: rule.into(),
        ..RuleOptions::default()
    };
    change(&mut options);
    Arc::new(options)
}

/// See [`Harness::history`].
type Outcome = (String, String, Vec<String>);

/// The outcome of an event with one call.
fn outcome(tag: &str, state: &str, call: &str) -> Outcome {
    (tag.to_owned(), state.to_owned(), vec![call.to_owned()])
}

fn done(tag: &str) -> Outcome {
    outcome(tag, "done", "published")
}

/// Rules whose templates for `slow/*` block.
fn slow(patterns: &[&'static str]) -> (Rules, Arc<Barrier>) {
    let rules = rules(patterns);
    let slow = rules.slow.clone();
    slow.shut(true);
    (rules, slow)
}

/// Rules whose calls are runners.
fn runners(patterns: &[&'static str]) -> Rules {
    Rules {
        client: Some(Client::Runner),
        ..rules(patterns)
    }
}

/// A reachable master that never answers.
fn silent(_: &Call, times: u32) -> Result<Answer, MasterError> {
    if times == 0 {
        Ok(yes())
    } else {
        Err(no_answer())
    }
}
