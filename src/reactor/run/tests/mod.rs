//! The running reactor with a real store, test rules and a fake master.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use parking_lot::{Condvar, Mutex};

use super::engine::{Parts, Reactor};
use super::record::read_summary;
use super::record::replay::Replayed;
use super::*;
use crate::base::clock::Clock;
use crate::base::metrics::Metrics;
use crate::model::{Allow, Batch, EventFilter, Glob, Rate, ReactorSettings as Settings, RuleOptions, Source};
use crate::reactor::master::Cmd;
use crate::store::{Intake, Options, Store, vfs};
use crate::wire::msgpack::{Writer, as_text, elements, get};
use crate::wire::salt_event::event_entry;

mod callers;
mod changes;
mod load;
mod loops;
mod once;
mod outcome;
mod scheduling;
const NOW: i64 = 1_795_000_000_000_000;
const SECOND: i64 = 1_000_000;
const TIMEOUT: Duration = Duration::from_secs(20);

/// Blocks threads while it is shut.
#[derive(Default)]
struct Barrier(Mutex<bool>, Condvar);

impl Barrier {
    fn wait(&self) {
        self.1.wait_while_for(&mut self.0.lock(), |shut| *shut, TIMEOUT);
    }

    fn shut(&self, whether: bool) {
        *self.0.lock() = whether;
        self.1.notify_all();
    }
}

/// Rules by pattern; each makes one job for the minion, or a `caller` call. Events `slow/*` block in rendering, `held/*` in matching.
#[derive(Default)]
struct Rules {
    caller: bool,
    patterns: Vec<&'static str>,
    slow: Arc<Barrier>,
    held: Arc<Barrier>,
    cmd: Option<Cmd>,
    fun: Option<&'static str>,
}

impl RuleEngine for Rules {
    fn matching(&self, tag: &str) -> Vec<Arc<str>> {
        if tag.starts_with("held/") {
            self.held.wait();
        }
        self.patterns.iter().filter(|glob| Glob::new(glob).matches(tag)).map(|glob| (*glob).into()).collect()
    }

    fn all(&self) -> Vec<ListedRule> {
        let listed = |glob: &&str| ListedRule { pattern: (*glob).to_owned(), files: Vec::new() };
        self.patterns.iter().map(listed).collect()
    }

    fn react(&self, event: &Event, rules: &[Arc<str>]) -> ReactionPlan {
        if event.tag.starts_with("slow/") {
            self.slow.wait();
        }
        let planned = |rule: &Arc<str>| {
            let arg = vec![event.tag.as_str().into()];
            let fun = self.fun.unwrap_or("test.arg");
            let call = match self.cmd {
                Some(Cmd::Runner) => Call::runner(fun, arg, crate::wire::python::value::Map::default()),
                Some(Cmd::Wheel) => Call::wheel(fun, arg, crate::wire::python::value::Map::default()),
                _ => Call::publish(event.minion.as_str(), "glob", fun, arg),
            };
            let action = if self.caller { callers::planned(event) } else { Action::Master(call) };
            PlannedCall { id: rule.to_string(), sls: format!("/srv/{rule}.sls"), action }
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
            Answer::Published { minions, missing, .. } => {
                Answer::Published { jid: jid.to_owned(), minions, missing }
            }
            other => other,
        })
    }

    fn reach(&self) -> Result<(), MasterError> {
        let asked = (self.answers)(&Call::publish("", "glob", "reach", Vec::new()), 0);
        asked.map(drop)
    }

    fn unsupported(&self, client: &str) -> Option<String> {
        (client == "wheel").then(|| "there are no wheels".to_owned())
    }

    fn caller(&self, fun: &str, _args: &[Value], _kwargs: &Value) -> Result<CallerReturn, CallerError> {
        callers::caller_result(self.ask(&Call::publish("", "glob", fun, vec![fun.into()]), "", TIMEOUT))
    }
}

/// The first argument of a call.
fn argument(call: &Call) -> &str {
    let load = call.load.get("kwarg").and_then(Value::as_map).unwrap_or(&call.load);
    load.get("arg").and_then(Value::as_list).and_then(|arg| arg.first()?.as_str()).unwrap_or_default()
}

fn yes() -> Answer {
    Answer::Published { jid: String::new(), minions: vec!["web1".to_owned()], missing: vec![] }
}

fn unreachable() -> MasterError {
    MasterError::Unreachable { place: "here".to_owned(), why: "down".to_owned() }
}

fn no_answer() -> MasterError {
    MasterError::NoAnswer { place: "here".to_owned(), why: "silence".to_owned() }
}

fn refused() -> MasterError {
    MasterError::Refused { place: "here".to_owned(), why: "no".to_owned() }
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
        Self::start_in(Arc::new(tempfile::tempdir().unwrap()), NOW, rules, settings, answers)
    }

    fn start_in(
        dir: Arc<tempfile::TempDir>,
        now: i64,
        rules: Rules,
        settings: Settings,
        answers: impl Fn(&Call, u32) -> Result<Answer, MasterError> + Send + Sync + 'static,
    ) -> Self {
        let clock = Clock::manual(Micros(now));
        let metrics: Arc<Metrics> = Arc::default();
        let options = Options {
            dir: dir.path().to_owned(),
            holder: "the test".to_owned(),
            clock: clock.clone(),
            metrics: metrics.clone(),
            limits: crate::store::Limits::default(),
            classes: crate::store::Classes::default(),
            free: crate::store::FreeSpace { low: Some(0), min: Some(0) },
            fs: Arc::new(vfs::Disk),
        };
        let (store, intake, threads) = Store::open(&options).unwrap().on_threads();
        let (tx, asked) = sync_channel(10_000);
        let master =
            FakeMaster { asked: Mutex::new(tx), times: Mutex::default(), answers: Box::new(answers) };
        let reactor = Reactor::start(Parts {
            clean: Arc::new(|batch| batch),
            store: store.clone(),
            intake: intake.clone(),
            clock: clock.clone(),
            metrics: metrics.clone(),
            rules: Arc::new(rules),
            settings,
            executor: Arc::new(master),
        })
        .unwrap();
        Self { dir, clock, metrics, store, intake, reactor, asked, threads }
    }

    /// Stores an event of a minion from this source.
    fn fire_from(&self, source: Source, tag: &str, minion: &str, user: &str) {
        let mut w = Writer::new();
        w.map(3).str("id").str(minion).str("user").str(user).str("_stamp").str("2026");
        let body = w.into_bytes();
        let entry = event_entry(tag.as_bytes(), &body, source, self.clock.now());
        let entry = crate::model::Entry { minion, ..entry };
        let (tx, rx) = sync_channel(1);
        self.intake
            .submit(Batch::of(&entry), Some(Box::new(move |stored| tx.send(stored).unwrap())))
            .unwrap();
        crate::testkit::receive(&rx).unwrap();
    }

    fn fire_event(&self, tag: &str, minion: &str) {
        self.fire_from(Source::Bus, tag, minion, "root");
    }

    /// The first argument of the next request.
    fn next(&self) -> String {
        self.asked.recv_timeout(TIMEOUT).expect("a request").0
    }

    fn wait_for(&self, action: &str, is_done: impl Fn(&Self) -> bool) {
        crate::testkit::wait_for(action, || is_done(self).then_some(()));
    }

    fn wait_until_done(&self) {
        self.wait_for("all events to be complete", |harness| {
            let status = harness.reactor.handle().status();
            status.behind == 0 && status.waiting == 0 && status.open == 0
        });
    }

    /// The records, the earliest first: tag, state, and the outcome of each call.
    fn history(&self) -> Vec<(String, String, Vec<String>)> {
        let filter = EventFilter { reactions: true, ..EventFilter::default() };
        let found = self.store.events_before(&filter, self.store.durable(), usize::MAX, usize::MAX).unwrap();
        let text = |bytes: Option<&[u8]>| bytes.and_then(as_text).unwrap_or_default().to_owned();
        let record = |entry: crate::store::StoredEntry| {
            let calls = get(&entry.body, "calls").unwrap_or_default();
            let outcomes = elements(calls).map(|call| text(get(call, "outcome"))).collect();
            let state = text(get(&entry.body, "state"));
            let why = text(get(&entry.body, "why"));
            let state = if why.is_empty() { state } else { why };
            (String::from_utf8(entry.tag).unwrap().replace("saltcellar/reaction/", ""), state, outcomes)
        };
        found.into_iter().rev().map(record).collect()
    }

    /// Stops everything; returns the remaining requests.
    fn stop(self) -> (Arc<tempfile::TempDir>, Vec<String>) {
        self.reactor.stop();
        drop((self.store, self.intake));
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        (self.dir, self.asked.try_iter().map(|(action, _)| action).collect())
    }
}

fn rules(patterns: &[&'static str]) -> Rules {
    Rules { patterns: patterns.to_vec(), ..Rules::default() }
}

fn with(change: impl FnOnce(&mut RuleOptions)) -> Settings {
    let mut plain = RuleOptions::default();
    change(&mut plain);
    Settings { plain: Arc::new(plain), ..Settings::default() }
}

/// Options of one rule.
fn own(rule: &str, change: fn(&mut RuleOptions)) -> Arc<RuleOptions> {
    let mut options = RuleOptions { rule: rule.into(), ..RuleOptions::default() };
    change(&mut options);
    Arc::new(options)
}

fn done(tag: &str) -> (String, String, Vec<String>) {
    (tag.to_owned(), "done".to_owned(), vec!["published".to_owned()])
}

#[test]
fn events_of_a_bus_cause_calls_and_records() {
    let harness = Harness::start(rules(&["a/*", "*/x"]), Settings::default(), |_, _| Ok(yes()));
    harness.fire_event("a/x", "web1");
    harness.fire_event("b/y", "web1");
    assert_eq!([harness.next(), harness.next()], ["a/x", "a/x"]);
    harness.wait_until_done();
    let both = vec!["published".to_owned(); 2];
    assert_eq!(harness.history(), [("a/x".to_owned(), "done".to_owned(), both)]);
    // A record is not an event.
    let events = harness
        .store
        .events_before(&EventFilter::default(), harness.store.durable(), 10, usize::MAX)
        .unwrap();
    assert_eq!(events.len(), 2);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn only_events_of_a_bus_cause_reactions() {
    let harness = Harness::start(rules(&["*"]), Settings::default(), |_, _| Ok(yes()));
    for source in [Source::EventReturn, Source::Returner, Source::Zeromq, Source::SpooledEventReturn] {
        harness.fire_from(source, "forged", "web1", "root");
    }
    harness.fire_from(Source::EventReturn, "early", "web1", "root");
    harness.fire_event("early", "web1");
    assert_eq!(harness.next(), "early");
    harness.fire_from(Source::EventReturn, "early", "web1", "root");
    // A spill may repeat an event of the bus, and is deduplicated; two equal events of the bus are both kept.
    harness.fire_from(Source::SpilledBus, "early", "web1", "root");
    harness.fire_event("early", "web1");
    assert_eq!(harness.next(), "early");
    harness.wait_until_done();
    assert_eq!(harness.metrics.events_seen_on_bus_again.get(), 2);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn events_of_a_reactor_are_ignored_and_chains_of_reactions_end() {
    let settings = Settings { depth_max: 3, ..Settings::default() };
    let harness = Harness::start(rules(&["own", "salt/job/*"]), settings, |_, _| Ok(yes()));
    harness.fire_from(Source::Bus, "own", "web1", "Reactor");
    harness.fire_event("salt/job/1/new", "web1");
    let mut jids = Vec::new();
    // Each job's event causes the next job.
    for _ in 0..4 {
        let (_, jid) = harness.asked.recv_timeout(TIMEOUT).unwrap();
        harness.fire_event(&format!("salt/job/{jid}/new"), "web1");
        jids.push(jid);
    }
    harness.wait_until_done();
    assert_eq!(harness.metrics.reactor_events_own.get(), 1);
    assert_eq!(harness.metrics.reactions_left_depth.get(), 1);
    assert_eq!(harness.history().iter().filter(|(_, state, _)| state == "depth").count(), 1);
    jids.dedup();
    assert_eq!(jids.len(), 4);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn events_of_a_minion_keep_their_order_and_do_not_delay_other_minions() {
    let reacting = rules(&["*"]);
    let slow = reacting.slow.clone();
    slow.shut(true);
    let harness = Harness::start(reacting, Settings::default(), |_, _| Ok(yes()));
    harness.fire_event("slow/1", "web1");
    for n in 2..50 {
        harness.fire_event(&format!("{n}"), "web1");
    }
    for n in 0..40 {
        harness.fire_event(&format!("other/{n}"), &format!("db{n}"));
    }
    let mut others: Vec<_> = (0..40).map(|_| harness.next()).collect();
    others.sort();
    assert!(others.iter().all(|tag| tag.starts_with("other/")), "{others:?}");
    slow.shut(false);
    assert_eq!(harness.next(), "slow/1");
    for n in 2..50 {
        assert_eq!(harness.next(), n.to_string());
    }
    harness.wait_until_done();
    harness.stop();
}

#[test]
fn a_slow_template_leaves_workers_to_other_rules() {
    let reacting = rules(&["slow/*", "fast"]);
    let slow = reacting.slow.clone();
    slow.shut(true);
    let harness = Harness::start(reacting, Settings::default(), |_, _| Ok(yes()));
    for n in 0..100 {
        harness.fire_event(&format!("slow/{n}"), &format!("web{n}"));
    }
    harness.fire_event("fast", "db1");
    assert_eq!(harness.next(), "fast");
    slow.shut(false);
    harness.wait_until_done();
    assert_eq!(harness.stop().1.len(), 100);
}

#[test]
fn reactions_wait_in_order_while_the_master_is_unreachable() {
    let harness = Harness::start(rules(&["*"]), Settings::default(), |_, times| {
        if times < 4 { Err(unreachable()) } else { Ok(yes()) }
    });
    harness.fire_event("1", "web1");
    harness.fire_event("2", "web1");
    for (n, action) in ["1", "1", "1", "2", "2", "2"].into_iter().enumerate() {
        if n == 3 {
            assert_eq!(harness.next(), "1");
        }
        assert_eq!(harness.next(), action);
        harness.wait_for("the pause", |harness| harness.reactor.handle().next_at().is_some());
        assert!(harness.reactor.handle().status().master_unreachable);
        harness.clock.wind(SECOND);
    }
    assert_eq!(harness.next(), "2");
    harness.wait_until_done();
    assert_eq!(harness.history(), [done("1"), done("2")]);
    assert!(!harness.reactor.handle().status().master_unreachable);
    harness.stop();
}

#[test]
fn a_refused_call_is_retried_then_dead_lettered_and_can_be_replayed() {
    let settings = with(|options| options.tries = 3);
    let harness =
        Harness::start(
            rules(&["*"]),
            settings,
            |_, times| if times <= 3 { Err(refused()) } else { Ok(yes()) },
        );
    harness.fire_event("1", "web1");
    assert_eq!(harness.next(), "1");
    harness.wait_for("the pause", |harness| harness.reactor.handle().next_at() == Some(Micros(NOW + SECOND)));
    harness.clock.wind(SECOND);
    assert_eq!(harness.next(), "1");
    harness.wait_for("the longer pause", |harness| {
        harness.reactor.handle().next_at() == Some(Micros(NOW + 3 * SECOND))
    });
    harness.clock.wind(2 * SECOND);
    assert_eq!(harness.next(), "1");
    harness.wait_until_done();
    assert_eq!(harness.history(), [("1".to_owned(), "dead".to_owned(), vec!["dead".to_owned()])]);
    assert_eq!((harness.metrics.reactions_dead.get(), harness.metrics.reactor_calls_dead.get()), (1, 1));
    let filter = EventFilter { reactions: true, ..EventFilter::default() };
    let record =
        harness.store.events_before(&filter, harness.store.durable(), 1, usize::MAX).unwrap().remove(0);
    assert_eq!(harness.reactor.handle().replay(&record, false).unwrap(), Replayed::Calls(1));
    assert_eq!(harness.next(), "1");
    harness.wait_for("the record of the replay", |harness| harness.history().len() == 2);
    assert_eq!(harness.history()[1], done("1"));
    assert!(harness.reactor.handle().replay(&record, false).is_ok());
    harness.stop();
}

#[test]
fn throttles_follow_the_clock() {
    let settings = Settings {
        rules: vec![
            own("rate", |o| o.rate = Some(Rate { times: 2, per: Duration::from_secs(10) })),
            own("budget", |o| o.budget = Some(Rate { times: 2, per: Duration::from_secs(10) })),
            own("once", |o| o.once_per = Some(Duration::from_secs(10))),
            own("quiet", |o| o.debounce = Some(Duration::from_secs(10))),
        ],
        ..Settings::default()
    };
    let harness = Harness::start(rules(&["rate", "budget", "once", "quiet"]), settings, |_, _| Ok(yes()));
    for _ in 0..3 {
        for tag in ["rate", "budget", "once", "quiet"] {
            // Distinct times, so that the events are not duplicates.
            harness.clock.wind(1);
            harness.fire_event(tag, &format!("minion-of-{tag}"));
        }
    }
    let asked = |harness: &Harness, n: usize| {
        let mut asked: Vec<_> = (0..n).map(|_| harness.next()).collect();
        asked.sort();
        asked
    };
    assert_eq!(asked(&harness, 5), ["budget", "budget", "once", "rate", "rate"]);
    harness.wait_for("the counters", |harness| {
        let left = [
            &harness.metrics.reactions_left_budget,
            &harness.metrics.reactions_left_once,
            &harness.metrics.reactions_left_quiet,
        ];
        left.map(crate::base::metrics::Counter::get) == [1, 2, 2]
    });
    assert_eq!(harness.reactor.handle().status().waiting, 2, "the third of `rate`, the last of `quiet`");
    harness.clock.wind(10 * SECOND + 100);
    assert_eq!(asked(&harness, 2), ["quiet", "rate"]);
    harness.fire_event("once", "minion-of-once");
    assert_eq!(harness.next(), "once");
    harness.wait_until_done();
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn only_allowed_calls_are_made() {
    let allow = |client: &str, fun: &str, tgt: Option<&str>| Allow {
        client: Some(client.to_owned()),
        fun: Glob::new(fun),
        tgt: tgt.map(Glob::new),
    };
    let settings = with(|options| {
        options.allow = vec![allow("runner", "*", None), allow("local", "test.*", Some("web*"))];
    });
    let harness = Harness::start(rules(&["*"]), settings, |_, _| Ok(yes()));
    harness.fire_event("1", "web1");
    harness.fire_event("2", "db1");
    harness.wait_until_done();
    assert_eq!(harness.next(), "1");
    let mut history = harness.history();
    history.sort();
    assert_eq!(history, [done("1"), ("2".to_owned(), "dead".to_owned(), vec!["dead".to_owned()])]);
    assert_eq!(harness.metrics.reactor_calls_not_allowed.get(), 1);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn in_shadow_no_call_is_made_and_all_are_recorded() {
    let settings = Settings { shadow: true, ..Settings::default() };
    let harness = Harness::start(rules(&["*"]), settings, |_, _| Ok(yes()));
    harness.fire_event("1", "web1");
    harness.wait_until_done();
    assert_eq!(harness.history(), [("1".to_owned(), "done".to_owned(), vec!["shadowed".to_owned()])]);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn open_events_continue_after_a_restart_and_complete_ones_do_not() {
    let harness = Harness::start(rules(&["*"]), Settings::default(), |call, _| {
        let waits = call.load.get("tgt").and_then(Value::as_str) == Some("away");
        if waits { Err(unreachable()) } else { Ok(yes()) }
    });
    harness.fire_event("done", "web1");
    harness.fire_event("open", "away");
    let mut asked = [harness.next(), harness.next()];
    asked.sort();
    assert_eq!(asked, ["done", "open"]);
    harness.wait_for("the first event to be complete", |harness| harness.reactor.handle().status().open == 1);
    let (dir, _) = harness.stop();
    let harness = Harness::start_in(dir, NOW + SECOND, rules(&["*"]), Settings::default(), |_, _| Ok(yes()));
    assert_eq!(harness.next(), "open");
    harness.wait_until_done();
    assert_eq!(harness.history(), [done("done"), done("open")]);
    let (dir, rest) = harness.stop();
    assert_eq!(rest, [""; 0]);
    // A store without the file, for example a restored backup, has no open events.
    std::fs::remove_file(dir.path().join("REACTOR")).unwrap();
    let harness = Harness::start_in(dir, NOW + SECOND, rules(&["*"]), Settings::default(), |_, _| Ok(yes()));
    harness.wait_until_done();
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn an_event_that_is_too_old_at_its_turn_is_skipped() {
    let harness = Harness::start(rules(&["*"]), Settings::default(), |_, _| Err(unreachable()));
    harness.fire_event("1", "web1");
    harness.next();
    harness.fire_event("2", "web1");
    harness.wait_for("both to be open", |harness| harness.reactor.handle().status().open == 2);
    let (dir, _) = harness.stop();
    let harness =
        Harness::start_in(dir, NOW + 3_601 * SECOND, rules(&["*"]), Settings::default(), |_, _| Ok(yes()));
    harness.wait_until_done();
    let states: Vec<_> = harness.history().into_iter().map(|(_, state, _)| state).collect();
    assert_eq!(states, ["old", "old"]);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn records_survive_a_round_trip() {
    let event = Event {
        seq: SeqNo(7),
        at: Micros(1),
        tag: "t".to_owned(),
        body: Arc::default(),
        minion: "m".to_owned(),
        has_key: false,
    };
    for (mark, key) in [(record::Mark::Started, u64::MAX), (record::Mark::Withdrawn, 1)] {
        let batch = record::mark(&event, &["a".into(), "b".into()], 3, mark, key, Micros(2));
        let (entry, _) = batch.entries().next().unwrap();
        let summary = read_summary(entry.body).unwrap();
        assert_eq!(
            (summary.event, summary.rules, summary.rule_count, summary.marks),
            (SeqNo(7), vec!["a", "b"], 3, Some(vec![(mark, key)]))
        );
    }
    let mut old = Writer::new();
    old.map(1).str("state").str("done");
    assert!(record::failures(&old.into_bytes()).is_empty(), "a record of an early release");
    assert_eq!(super::record::read_summary(b"\x80"), None);
    assert_eq!(super::record::read_summary(b"\xc1"), None);
}
