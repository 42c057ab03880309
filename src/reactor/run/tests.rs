//! The running reactor on a real store, with rules and a master that the test plays.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Condvar, Mutex};

use super::engine::{Parts, Reactor};
use super::record::told;
use super::*;
use crate::clock::Clock;
use crate::master::Cmd;
use crate::metrics::Metrics;
use crate::model::{Allow, Batch, EventFilter, Glob, Rate, ReactorSettings as Settings, RuleOptions, Source};
use crate::store::{Intake, Options, Store, vfs};
use crate::wire::msgpack::{Writer, as_text, elements, get};
use crate::wire::salt_event::event_entry;

#[path = "caller_tests.rs"]
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

/// A gate that what comes to it must wait at.
#[derive(Default)]
struct Policy(Mutex<bool>, Condvar);

impl Policy {
    fn wait(&self) {
        let shut = lock(&self.0);
        drop(self.1.wait_timeout_while(shut, TIMEOUT, |shut| *shut).unwrap());
    }

    fn shut(&self, whether: bool) {
        *lock(&self.0) = whether;
        self.1.notify_all();
    }
}

/// Rules by pattern; each wants one job on the minion, or a `caller`. `slow/*` waits at a gate to be rendered, `held/*` to be matched.
#[derive(Default)]
struct Rules {
    caller: bool,
    patterns: Vec<&'static str>,
    slow: Arc<Policy>,
    held: Arc<Policy>,
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

    fn react(&self, event: &Event, rules: &[Arc<str>]) -> Reacted {
        if event.tag.starts_with("slow/") {
            self.slow.wait();
        }
        let wanted = |rule: &Arc<str>| {
            let arg = vec![event.tag.as_str().into()];
            let fun = self.fun.unwrap_or("test.arg");
            let call = match self.cmd {
                Some(Cmd::Runner) => Call::runner(fun, arg, crate::sls::value::Map::new()),
                Some(Cmd::Wheel) => Call::wheel(fun, arg, crate::sls::value::Map::new()),
                _ => Call::publish(event.minion.as_str(), "glob", fun, arg),
            };
            let what = if self.caller { callers::wanted(event) } else { What::Executor(call) };
            Wanted { id: rule.to_string(), sls: format!("/srv/{rule}.sls"), what }
        };
        Reacted {
            files: vec![("/srv/a.sls".to_owned(), "rendered".to_owned())],
            wanted: rules.iter().map(wanted).collect(),
            fired: event
                .tag
                .starts_with("request/")
                .then(|| ("answer".to_owned(), Value::Null))
                .into_iter()
                .collect(),
            ..Reacted::default()
        }
    }
}

type Answers = Box<dyn Fn(&Call, u32) -> Result<Answer, MasterError> + Send + Sync>;

/// A master: what it was asked, in order, and what it says to the n-th asking of the same thing; to none (0) whether it is there.
struct FakeMaster {
    asked: Mutex<SyncSender<(String, String)>>,
    times: Mutex<HashMap<String, u32>>,
    answers: Answers,
}

impl Executor for FakeMaster {
    fn ask(&self, call: &Call, jid: &str, _patience: Duration) -> Result<Answer, MasterError> {
        let what = argument(call).to_owned();
        let times = {
            let mut times = lock(&self.times);
            let times = times.entry(what.clone()).or_default();
            *times += 1;
            *times
        };
        lock(&self.asked).send((what, jid.to_owned())).unwrap();
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

    fn cannot(&self, client: &str) -> Option<String> {
        (client == "wheel").then(|| "there are no wheels".to_owned())
    }

    fn caller(&self, fun: &str, _args: &[Value], _kwargs: &Value) -> Result<CallerReturn, CallerError> {
        callers::told(self.ask(&Call::publish("", "glob", fun, vec![fun.into()]), "", TIMEOUT))
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
    MasterError::Unreachable { place: "here".to_owned(), why: "nobody".to_owned() }
}

fn no_answer() -> MasterError {
    MasterError::NoAnswer { place: "here".to_owned(), why: "silence".to_owned() }
}

fn refused() -> MasterError {
    MasterError::Refused { place: "here".to_owned(), why: "no".to_owned() }
}

/// A store with its threads and a reactor on it.
struct Rig {
    dir: Arc<tempfile::TempDir>,
    clock: Clock,
    metrics: Arc<Metrics>,
    store: Store,
    intake: Intake,
    reactor: Reactor,
    asked: Receiver<(String, String)>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Rig {
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
            ask: Arc::new(master),
        })
        .unwrap();
        Self { dir, clock, metrics, store, intake, reactor, asked, threads }
    }

    /// An event of a minion comes by a source.
    fn tell_by(&self, source: Source, tag: &str, minion: &str, user: &str) {
        let mut w = Writer::new();
        w.map(3).str("id").str(minion).str("user").str(user).str("_stamp").str("2026");
        let body = w.into_bytes();
        let entry = event_entry(tag.as_bytes(), &body, source, self.clock.now());
        let entry = crate::model::Entry { minion, ..entry };
        let (tx, rx) = sync_channel(1);
        self.intake
            .submit(Batch::of(&entry), Some(Box::new(move |stored| tx.send(stored).unwrap())))
            .unwrap();
        crate::testing::receive(&rx).unwrap();
    }

    fn tell(&self, tag: &str, minion: &str) {
        self.tell_by(Source::Bus, tag, minion, "root");
    }

    /// What the master is asked next.
    fn next(&self) -> String {
        self.asked.recv_timeout(TIMEOUT).expect("the master is asked").0
    }

    fn wait_for(&self, what: &str, is_there: impl Fn(&Self) -> bool) {
        crate::testing::wait_for(what, || is_there(self).then_some(()));
    }

    fn wait_until_through(&self) {
        self.wait_for("everything to be through", |rig| {
            let status = rig.reactor.handle().status();
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

    /// Stops all, in order; what was asked and not looked at.
    fn stop(self) -> (Arc<tempfile::TempDir>, Vec<String>) {
        self.reactor.stop();
        drop((self.store, self.intake));
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        (self.dir, self.asked.try_iter().map(|(what, _)| what).collect())
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
fn what_a_bus_tells_is_reacted_to_and_written_down() {
    let rig = Rig::start(rules(&["a/*", "*/x"]), Settings::default(), |_, _| Ok(yes()));
    rig.tell("a/x", "web1");
    rig.tell("b/y", "web1");
    assert_eq!([rig.next(), rig.next()], ["a/x", "a/x"]);
    rig.wait_until_through();
    let both = vec!["published".to_owned(); 2];
    assert_eq!(rig.history(), [("a/x".to_owned(), "done".to_owned(), both)]);
    // A record is no event.
    let events =
        rig.store.events_before(&EventFilter::default(), rig.store.durable(), 10, usize::MAX).unwrap();
    assert_eq!(events.len(), 2);
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn nobody_but_a_bus_makes_the_reactor_act_however_often_it_was_told_before() {
    let rig = Rig::start(rules(&["*"]), Settings::default(), |_, _| Ok(yes()));
    for source in [Source::EventReturn, Source::Returner, Source::Zeromq, Source::SpooledEventReturn] {
        rig.tell_by(source, "forged", "web1", "root");
    }
    rig.tell_by(Source::EventReturn, "early", "web1", "root");
    rig.tell("early", "web1");
    assert_eq!(rig.next(), "early");
    rig.tell_by(Source::EventReturn, "early", "web1", "root");
    // A spill may repeat what the bus told, and is folded; twice on the bus is twice.
    rig.tell_by(Source::SpilledBus, "early", "web1", "root");
    rig.tell("early", "web1");
    assert_eq!(rig.next(), "early");
    rig.wait_until_through();
    assert_eq!(rig.metrics.events_seen_on_bus_again.get(), 2);
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn what_a_reactor_caused_is_passed_over_and_a_chain_of_reactions_ends() {
    let settings = Settings { depth_max: 3, ..Settings::default() };
    let rig = Rig::start(rules(&["own", "salt/job/*"]), settings, |_, _| Ok(yes()));
    rig.tell_by(Source::Bus, "own", "web1", "Reactor");
    rig.tell("salt/job/1/new", "web1");
    let mut jids = Vec::new();
    // Each job's event causes the next job.
    for _ in 0..4 {
        let (_, jid) = rig.asked.recv_timeout(TIMEOUT).unwrap();
        rig.tell(&format!("salt/job/{jid}/new"), "web1");
        jids.push(jid);
    }
    rig.wait_until_through();
    assert_eq!(rig.metrics.reactor_events_own.get(), 1);
    assert_eq!(rig.metrics.reactions_left_depth.get(), 1);
    assert_eq!(rig.history().iter().filter(|(_, state, _)| state == "depth").count(), 1);
    jids.dedup();
    assert_eq!(jids.len(), 4);
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn the_order_of_a_minions_events_is_kept_and_others_do_not_wait_for_a_slow_template() {
    let reacting = rules(&["*"]);
    let slow = reacting.slow.clone();
    slow.shut(true);
    let rig = Rig::start(reacting, Settings::default(), |_, _| Ok(yes()));
    rig.tell("slow/1", "web1");
    for n in 2..50 {
        rig.tell(&format!("{n}"), "web1");
    }
    for n in 0..40 {
        rig.tell(&format!("other/{n}"), &format!("db{n}"));
    }
    let mut others: Vec<_> = (0..40).map(|_| rig.next()).collect();
    others.sort();
    assert!(others.iter().all(|tag| tag.starts_with("other/")), "{others:?}");
    slow.shut(false);
    assert_eq!(rig.next(), "slow/1");
    for n in 2..50 {
        assert_eq!(rig.next(), n.to_string());
    }
    rig.wait_until_through();
    rig.stop();
}

#[test]
fn a_rule_whose_template_is_slow_leaves_workers_to_the_others() {
    let reacting = rules(&["slow/*", "fast"]);
    let slow = reacting.slow.clone();
    slow.shut(true);
    let rig = Rig::start(reacting, Settings::default(), |_, _| Ok(yes()));
    for n in 0..100 {
        rig.tell(&format!("slow/{n}"), &format!("web{n}"));
    }
    rig.tell("fast", "db1");
    assert_eq!(rig.next(), "fast");
    slow.shut(false);
    rig.wait_until_through();
    assert_eq!(rig.stop().1.len(), 100);
}

#[test]
fn a_master_that_is_away_is_waited_for_and_nothing_overtakes() {
    let rig = Rig::start(rules(&["*"]), Settings::default(), |_, times| {
        if times < 4 { Err(unreachable()) } else { Ok(yes()) }
    });
    rig.tell("1", "web1");
    rig.tell("2", "web1");
    for (n, what) in ["1", "1", "1", "2", "2", "2"].into_iter().enumerate() {
        if n == 3 {
            assert_eq!(rig.next(), "1");
        }
        assert_eq!(rig.next(), what);
        rig.wait_for("the pause", |rig| rig.reactor.handle().next_at().is_some());
        assert!(rig.reactor.handle().status().master_unreachable);
        rig.clock.wind(SECOND);
    }
    assert_eq!(rig.next(), "2");
    rig.wait_until_through();
    assert_eq!(rig.history(), [done("1"), done("2")]);
    assert!(!rig.reactor.handle().status().master_unreachable);
    rig.stop();
}

#[test]
fn what_is_refused_is_tried_again_with_growing_pauses_and_then_set_aside_and_can_be_replayed() {
    let settings = with(|options| options.tries = 3);
    let rig =
        Rig::start(rules(&["*"]), settings, |_, times| if times <= 3 { Err(refused()) } else { Ok(yes()) });
    rig.tell("1", "web1");
    assert_eq!(rig.next(), "1");
    rig.wait_for("the pause", |rig| rig.reactor.handle().next_at() == Some(Micros(NOW + SECOND)));
    rig.clock.wind(SECOND);
    assert_eq!(rig.next(), "1");
    rig.wait_for("the longer pause", |rig| rig.reactor.handle().next_at() == Some(Micros(NOW + 3 * SECOND)));
    rig.clock.wind(2 * SECOND);
    assert_eq!(rig.next(), "1");
    rig.wait_until_through();
    assert_eq!(rig.history(), [("1".to_owned(), "dead".to_owned(), vec!["dead".to_owned()])]);
    assert_eq!((rig.metrics.reactions_dead.get(), rig.metrics.reactor_calls_dead.get()), (1, 1));
    let filter = EventFilter { reactions: true, ..EventFilter::default() };
    let record = rig.store.events_before(&filter, rig.store.durable(), 1, usize::MAX).unwrap().remove(0);
    assert_eq!(rig.reactor.handle().replay(&record, false).unwrap(), replay::Replayed::Calls(1));
    assert_eq!(rig.next(), "1");
    rig.wait_for("the record of the replay", |rig| rig.history().len() == 2);
    assert_eq!(rig.history()[1], done("1"));
    assert!(rig.reactor.handle().replay(&record, false).is_ok());
    rig.stop();
}

#[test]
fn throttles_hold_by_the_clock() {
    let settings = Settings {
        rules: vec![
            own("rate", |o| o.rate = Some(Rate { times: 2, per: Duration::from_secs(10) })),
            own("budget", |o| o.budget = Some(Rate { times: 2, per: Duration::from_secs(10) })),
            own("once", |o| o.once_per = Some(Duration::from_secs(10))),
            own("quiet", |o| o.debounce = Some(Duration::from_secs(10))),
        ],
        ..Settings::default()
    };
    let rig = Rig::start(rules(&["rate", "budget", "once", "quiet"]), settings, |_, _| Ok(yes()));
    for _ in 0..3 {
        for tag in ["rate", "budget", "once", "quiet"] {
            // Not the same event thrice.
            rig.clock.wind(1);
            rig.tell(tag, &format!("minion-of-{tag}"));
        }
    }
    let asked = |rig: &Rig, n: usize| {
        let mut asked: Vec<_> = (0..n).map(|_| rig.next()).collect();
        asked.sort();
        asked
    };
    assert_eq!(asked(&rig, 5), ["budget", "budget", "once", "rate", "rate"]);
    rig.wait_for("the counters", |rig| {
        let left = [
            &rig.metrics.reactions_left_budget,
            &rig.metrics.reactions_left_once,
            &rig.metrics.reactions_left_quiet,
        ];
        left.map(crate::metrics::Counter::get) == [1, 2, 2]
    });
    assert_eq!(rig.reactor.handle().status().waiting, 2, "the third of `rate`, the last of `quiet`");
    rig.clock.wind(10 * SECOND + 100);
    assert_eq!(asked(&rig, 2), ["quiet", "rate"]);
    rig.tell("once", "minion-of-once");
    assert_eq!(rig.next(), "once");
    rig.wait_until_through();
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn only_what_is_allowed_is_called() {
    let allow = |client: &str, fun: &str, tgt: Option<&str>| Allow {
        client: Some(client.to_owned()),
        fun: Glob::new(fun),
        tgt: tgt.map(Glob::new),
    };
    let settings = with(|options| {
        options.allow = vec![allow("runner", "*", None), allow("local", "test.*", Some("web*"))];
    });
    let rig = Rig::start(rules(&["*"]), settings, |_, _| Ok(yes()));
    rig.tell("1", "web1");
    rig.tell("2", "db1");
    rig.wait_until_through();
    assert_eq!(rig.next(), "1");
    let mut history = rig.history();
    history.sort();
    assert_eq!(history, [done("1"), ("2".to_owned(), "dead".to_owned(), vec!["dead".to_owned()])]);
    assert_eq!(rig.metrics.reactor_calls_not_allowed.get(), 1);
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn in_shadow_nothing_is_called_and_all_is_written_down() {
    let settings = Settings { shadow: true, ..Settings::default() };
    let rig = Rig::start(rules(&["*"]), settings, |_, _| Ok(yes()));
    rig.tell("1", "web1");
    rig.wait_until_through();
    assert_eq!(rig.history(), [("1".to_owned(), "done".to_owned(), vec!["shadowed".to_owned()])]);
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn what_was_open_goes_on_after_a_start_and_what_was_through_does_not() {
    let rig = Rig::start(rules(&["*"]), Settings::default(), |call, _| {
        let waits = call.load.get("tgt").and_then(Value::as_str) == Some("away");
        if waits { Err(unreachable()) } else { Ok(yes()) }
    });
    rig.tell("done", "web1");
    rig.tell("open", "away");
    assert_eq!(
        {
            let mut asked = [rig.next(), rig.next()];
            asked.sort();
            asked
        },
        ["done", "open"]
    );
    rig.wait_for("the first to be through", |rig| rig.reactor.handle().status().open == 1);
    let (dir, _) = rig.stop();
    let rig = Rig::start_in(dir, NOW + SECOND, rules(&["*"]), Settings::default(), |_, _| Ok(yes()));
    assert_eq!(rig.next(), "open");
    rig.wait_until_through();
    assert_eq!(rig.history(), [done("done"), done("open")]);
    let (dir, rest) = rig.stop();
    assert_eq!(rest, [""; 0]);
    // A store without the file, such as one out of a backup, has nothing that is to be reacted to.
    std::fs::remove_file(dir.path().join("REACTOR")).unwrap();
    let rig = Rig::start_in(dir, NOW + SECOND, rules(&["*"]), Settings::default(), |_, _| Ok(yes()));
    rig.wait_until_through();
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn an_event_that_is_too_old_when_its_turn_comes_is_left() {
    let rig = Rig::start(rules(&["*"]), Settings::default(), |_, _| Err(unreachable()));
    rig.tell("1", "web1");
    rig.next();
    rig.tell("2", "web1");
    rig.wait_for("both to be open", |rig| rig.reactor.handle().status().open == 2);
    let (dir, _) = rig.stop();
    let rig = Rig::start_in(dir, NOW + 3_601 * SECOND, rules(&["*"]), Settings::default(), |_, _| Ok(yes()));
    rig.wait_until_through();
    let states: Vec<_> = rig.history().into_iter().map(|(_, state, _)| state).collect();
    assert_eq!(states, ["old", "old"]);
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn records_are_read_back() {
    let event = Event {
        seq: SeqNo(7),
        at: Micros(1),
        tag: "t".to_owned(),
        body: Arc::default(),
        minion: "m".to_owned(),
        has_key: false,
    };
    for (mark, key) in [(record::Mark::Begun, u64::MAX), (record::Mark::TakenBack, 1)] {
        let batch = record::mark(&event, &["a".into(), "b".into()], 3, mark, key, Micros(2));
        let (entry, _) = batch.entries().next().unwrap();
        let told = told(entry.body).unwrap();
        assert_eq!(
            (told.event, told.rules, told.of, told.marks),
            (SeqNo(7), vec!["a", "b"], 3, Some(vec![(mark, key)]))
        );
    }
    let mut old = Writer::new();
    old.map(1).str("state").str("done");
    assert!(record::failures(&old.into_bytes()).is_empty(), "a record from before there were any");
    assert_eq!(super::record::told(b"\x80"), None);
    assert_eq!(super::record::told(b"\xc1"), None);
}
