//! Calls of both sides, made up, and what is made of them.

use std::time::Duration;

use super::*;
use crate::clock::Micros;
use crate::model::SeqNo;
use crate::sls::value::Value;
use crate::sls::yaml;

const SECOND: i64 = 1_000_000;
const BEGIN: i64 = 1_000 * SECOND;

/// `runner test.arg [a, {b: 1}]`, or `local state.apply {tgt: web1, arg: [..], ..}`.
fn act(text: &str) -> Act {
    let mut words = text.splitn(3, ' ');
    let (client, fun, rest) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
    let value = yaml::load(rest).unwrap();
    match (client, value) {
        ("local", Value::Map(load)) => {
            let act = Act::job(fun, &load);
            if load.contains_key("kwargs") { act.with_load(&load) } else { act }
        }
        (client, value) => Act::on_master(client, fun, Some(value.as_list().unwrap().to_vec())),
    }
}

struct Rig {
    comparer: Comparer,
    number: u64,
    told: Vec<Comparison>,
}

impl Rig {
    /// In shadow since long ago, with a window of ten seconds.
    fn new() -> Self {
        let comparer =
            Comparer::new(Duration::from_secs(10), 2, Micros(BEGIN), Micros(BEGIN + 1_000 * SECOND));
        let mut rig = Self { comparer, number: 0, told: Vec::new() };
        rig.take(Item::Mode { at: Micros(0), shadow: true, started: true });
        rig
    }

    fn take(&mut self, item: Item) {
        self.comparer.take(item, &mut |verdict| self.told.push(verdict));
    }

    fn ours(&mut self, at: i64, call: &str) {
        self.ours_barred(at, call, "");
    }

    fn ours_barred(&mut self, at: i64, call: &str, barred: &str) {
        self.number += 1;
        let mut act = act(call);
        (act.id, act.sls) = ("the id".to_owned(), "/srv/a.sls".to_owned());
        self.take(Item::Ours(Ours {
            event: SeqNo(self.number),
            at: Micros(BEGIN + at * SECOND),
            tag: "a/b".to_owned(),
            rules: vec!["a/*".to_owned()],
            reaction: SeqNo(self.number),
            nth: 0,
            act,
            barred: barred.to_owned(),
            throttle: String::new(),
        }));
    }

    fn salts(&mut self, at: i64, jid: &str, call: &str) {
        self.number += 1;
        let (act, at) = (act(call), Micros(BEGIN + at * SECOND));
        let certain = act.client != "local";
        let (seq, jid) = (SeqNo(self.number), jid.to_owned());
        self.take(Item::Salts(Salts { seq, at, jid, act, certain }));
    }

    fn load(&mut self, jid: &str, call: &str) {
        self.take(Item::Load { jid: jid.to_owned(), act: act(call) });
    }

    /// Judges all; each verdict in short.
    fn told(&mut self) -> Vec<String> {
        self.comparer.finish(&mut |verdict| self.told.push(verdict));
        std::mem::take(&mut self.told).iter().map(short).collect()
    }
}

fn short(verdict: &Comparison) -> String {
    match verdict {
        Comparison::Same(_, salts, unseen) => {
            let unseen =
                if unseen.is_empty() { String::new() } else { format!(" but for {}", unseen.join(", ")) };
            format!("same {}{unseen}", salts.jid)
        }
        Comparison::Differs(_, salts, fields) => {
            let shown = |value: &Option<Value>| value.as_ref().map_or("-".to_owned(), Value::python_repr);
            let fields: Vec<_> = fields
                .iter()
                .map(|one| format!("{}: {} {}", one.field, shown(&one.ours), shown(&one.salts)))
                .collect();
            format!("differs {}: {}", salts.jid, fields.join("; "))
        }
        Comparison::OnlyOurs(ours) => format!("only ours {}", ours.act.fun),
        Comparison::OnlySalts(salts, None) => format!("only salts {}", salts.jid),
        Comparison::OnlySalts(salts, Some(ours)) => format!("only salts {}, {}", salts.jid, ours.barred),
        Comparison::OursFailed(failed, salts) => {
            let fun = salts.as_ref().map_or("nothing", |salts| &salts.act.fun);
            format!("ours failed {}, {fun}", failed.why())
        }
        Comparison::Unseen(ours, why) => format!("unseen {}: {why}", ours.act.fun),
        Comparison::Unattributed(salts) => format!("nobody knows {}", salts.jid),
    }
}

#[test]
fn equal_calls_are_the_same_whatever_the_order_of_keywords_and_each_counts_once() {
    let mut rig = Rig::new();
    rig.ours(0, "runner state.orchestrate [{mods: a, pillar: {x: 1, y: [2]}}]");
    rig.ours(1, "runner state.orchestrate [{mods: a, pillar: {x: 1, y: [2]}}]");
    rig.ours(2, "wheel key.finger [{match: web1}]");
    rig.ours(2, "runner state.orchestrate [{mods: a, pillar: {x: 1, y: [3]}}]");
    rig.salts(1, "0", "runner state.orchestrate [{mods: a, pillar: {x: 1, y: [3]}}]");
    rig.salts(1, "1", "runner state.orchestrate [{pillar: {y: [2], x: 1}, mods: a}]");
    rig.salts(2, "2", "runner state.orchestrate [{mods: a, pillar: {x: 1, y: [2]}}]");
    rig.salts(3, "3", "runner state.orchestrate [{mods: a, pillar: {x: 1, y: [2]}}]");
    rig.salts(3, "4", "wheel key.finger [{match: web1}]");
    assert_eq!(rig.told(), ["same 1", "same 2", "same 4", "same 0", "only salts 3"]);
}

#[test]
fn what_differs_is_named_field_by_field() {
    let mut rig = Rig::new();
    rig.ours(0, "runner state.orchestrate [x, {mods: a, pillar: {x: 1, z: 0}, test: true}]");
    rig.salts(1, "1", "runner state.orchestrate [y, {mods: a, pillar: {x: 2, y: 0}}]");
    rig.ours(2, "local state.apply {tgt: web1, arg: [{__kwarg__: true, mods: a}]}");
    rig.salts(3, "2", "local state.apply {tgt: web1, arg: [{__kwarg__: true, mods: b}]}");
    rig.ours(2, "local test.arg {tgt: web1, arg: [1]}");
    rig.salts(3, "3", "local test.arg {tgt: [web1], tgt_type: list, arg: [1]}");
    let mut told = rig.told();
    told.sort();
    assert_eq!(
        told,
        [
            "differs 1: arg[0]: 'x' 'y'; kwarg.pillar.x: 1 2; kwarg.pillar.z: 0 -; kwarg.pillar.y: - 0; kwarg.test: True -",
            "differs 2: kwarg.mods: 'a' 'b'",
            "differs 3: tgt: 'web1' ['web1']; tgt_type: 'glob' 'list'",
        ]
    );
}

#[test]
fn a_call_that_another_one_equals_is_left_for_that_one() {
    let mut rig = Rig::new();
    rig.ours(0, "runner test.arg [a]");
    rig.ours(1, "runner test.arg [b]");
    rig.salts(2, "1", "runner test.arg [b]");
    assert_eq!(rig.told(), ["only ours test.arg", "same 1"]);
}

#[test]
fn the_window_bounds_what_belongs_together() {
    let mut rig = Rig::new();
    rig.ours(0, "runner test.arg [a]");
    rig.salts(10, "1", "runner test.arg [a]");
    rig.ours(20, "runner test.arg [b]");
    rig.salts(31, "2", "runner test.arg [b]");
    assert_eq!(rig.told(), ["same 1", "only ours test.arg", "only salts 2"]);
    // Nothing is judged before it is over.
    let mut rig = Rig::new();
    rig.ours(0, "runner test.arg [a]");
    rig.comparer.pass(Micros(BEGIN + 10 * SECOND), &mut |verdict| panic!("{verdict:?}"));
    assert_eq!(rig.comparer.waiting(), (1, 0));
}

#[test]
fn what_waited_for_a_busy_pool_of_salts_was_only_ours_and_then_only_salts() {
    let mut rig = Rig::new();
    let ended = |rig: &mut Rig, at: i64, jid: &str| {
        rig.take(Item::Ended { jid: jid.to_owned(), at: Micros(BEGIN + at * SECOND) });
    };
    for n in 0..3 {
        rig.ours(0, &format!("runner test.sleep [{n}]"));
    }
    rig.ours(0, "local test.ping {tgt: web1, arg: []}");
    // Salt's two threads are busy for 30 s; the third of its runners begins then.
    rig.salts(1, "0", "runner test.sleep [0]");
    rig.salts(1, "1", "runner test.sleep [1]");
    let mut told = Vec::new();
    for second in 2..31 {
        rig.comparer.pass(Micros(BEGIN + second * SECOND), &mut |verdict| told.push(short(&verdict)));
    }
    assert_eq!(told, ["only ours test.ping"]);
    ended(&mut rig, 31, "0");
    rig.salts(32, "2", "runner test.sleep [2]");
    ended(&mut rig, 32, "1");
    ended(&mut rig, 60, "2");
    for second in 32..100 {
        rig.comparer.pass(Micros(BEGIN + second * SECOND), &mut |verdict| told.push(short(&verdict)));
    }
    assert_eq!(told[1..], ["same 0", "same 1", "same 2"]);
    // With a free thread the window is what it was.
    rig.ours(200, "runner test.sleep [3]");
    rig.salts(211, "3", "runner test.sleep [3]");
    assert_eq!(rig.told(), ["only ours test.sleep", "only salts 3"]);
}

#[test]
fn of_a_job_only_its_load_says_who_published_it() {
    let mut rig = Rig::new();
    rig.salts(1, "1", "local test.ping {tgt: web1, arg: []}");
    rig.salts(1, "2", "local test.ping {tgt: web2, arg: []}");
    rig.load("2", "local test.ping {tgt: web2, arg: [], kwargs: {show_jid: false}}");
    // The load may come before the event.
    rig.load("3", "local test.ping {tgt: web3, arg: [], kwargs: {__id__: a, __sls__: b}}");
    rig.salts(1, "3", "local test.ping {tgt: web3, arg: []}");
    assert_eq!(rig.told(), ["nobody knows 1", "only salts 3"]);
    // A person's job is no reaction, even if it is like one.
    rig.ours(100, "local test.ping {tgt: web1, arg: []}");
    rig.salts(101, "4", "local test.ping {tgt: web1, arg: []}");
    rig.load("4", "local test.ping {tgt: web1, arg: [], kwargs: {}}");
    assert_eq!(rig.told(), ["only ours test.ping"]);
}

#[test]
fn with_its_load_a_job_is_compared_by_more_and_found_by_its_id() {
    let mut rig = Rig::new();
    rig.ours(
        0,
        "local test.ping {tgt: web1, arg: [], ret: redis, kwargs: {metadata: {a: 1}, order: 1, __id__: x}}",
    );
    rig.salts(1, "1", "local test.ping {tgt: web1, arg: []}");
    assert_eq!(rig.told(), ["same 1 but for ret, metadata and the like"]);
    rig.ours(100, "local test.ping {tgt: web1, arg: [], ret: redis, kwargs: {metadata: {a: 1}, order: 1}}");
    rig.salts(101, "2", "local test.ping {tgt: web1, arg: []}");
    rig.load("2", "local test.ping {tgt: web1, arg: [], ret: '', kwargs: {metadata: {a: 2}, order: 9, __id__: the id, __sls__: /x/a.sls}}");
    assert_eq!(rig.told(), ["differs 2: load.ret: 'redis' -; load.metadata.a: 1 2"]);
    rig.ours(200, "local state.apply {tgt: web1, arg: [a]}");
    rig.salts(201, "3", "local state.sls {tgt: web1, arg: [a]}");
    rig.load("3", "local state.sls {tgt: web1, arg: [a], kwargs: {__id__: the id, __sls__: /cache/a.sls}}");
    assert_eq!(rig.told(), ["differs 3: fun: 'state.apply' 'state.sls'"]);
}

#[test]
fn what_cannot_be_seen_is_said_to_be_so() {
    let mut rig = Rig::new();
    rig.ours(0, "caller test.ping []");
    rig.ours(1, "runner test.arg [a, {b: c, big: x}]");
    rig.salts(2, "1", "runner test.arg [a, {b: '[redacted]', big: VALUE_TRIMMED}]");
    assert_eq!(
        rig.told(),
        [
            "unseen test.ping: a caller leaves nothing on the master's bus",
            "same 1 but for kwarg.b, kwarg.big"
        ]
    );
    // Of what could not be started, 3006 and 3007 do not tell the arguments.
    rig.ours(100, "runner there.is_none [a]");
    let act = Act::on_master("runner", "there.is_none", None);
    let (seq, at, jid) = (SeqNo(1), Micros(BEGIN + 101 * SECOND), "2".to_owned());
    rig.take(Item::Salts(Salts { seq, at, jid, act, certain: true }));
    assert_eq!(rig.told(), ["same 2 but for arguments"]);
    rig.ours(200, "runner test.arg [a]");
    rig.take(Item::Gap { begin: Micros(BEGIN + 205 * SECOND), end: Micros(BEGIN + 300 * SECOND) });
    assert_eq!(rig.told(), ["unseen test.arg: events of the bus were lost meanwhile"]);
}

#[test]
fn a_call_of_ours_that_is_not_made_counts_as_none() {
    let mut rig = Rig::new();
    rig.ours_barred(0, "runner test.arg [a]", "not allowed");
    rig.ours_barred(1, "local test.ping {tgt: nobody, arg: []}", "nobody there");
    rig.salts(2, "1", "runner test.arg [a]");
    assert_eq!(rig.told(), ["only salts 1, not allowed"]);
}

#[test]
fn a_call_that_is_not_made_leaves_an_equal_one_to_those_that_are() {
    let mut rig = Rig::new();
    rig.ours_barred(0, "runner test.arg [a]", "once");
    rig.ours(1, "runner test.arg [a]");
    rig.salts(2, "1", "runner test.arg [a]");
    assert_eq!(rig.told(), ["same 1"]);
    rig.ours_barred(100, "runner test.arg [a]", "once");
    rig.ours(101, "runner test.arg [a]");
    rig.ours_barred(102, "runner test.arg [a]", "once");
    rig.salts(103, "2", "runner test.arg [a]");
    rig.salts(103, "3", "runner test.arg [a]");
    assert_eq!(rig.told(), ["only salts 2, once", "same 3"]);
    // What comes too late to be Salt's first is no reason to spare that.
    rig.ours_barred(200, "runner test.arg [a]", "once");
    rig.ours(209, "runner test.arg [a]");
    rig.salts(201, "4", "runner test.arg [a]");
    rig.salts(212, "5", "runner test.arg [a]");
    assert_eq!(rig.told(), ["only salts 4, once", "same 5"]);
}

#[test]
fn only_what_happened_in_shadow_is_judged() {
    let mut rig = Rig::new();
    // What we made ourselves is nothing of Salt's, whether its record comes before or after.
    rig.salts(0, "1", "runner test.arg [a]");
    rig.take(Item::Made("1".to_owned()));
    rig.take(Item::Made("2".to_owned()));
    rig.salts(0, "2", "runner test.arg [a]");
    rig.take(Item::Mode { at: Micros(BEGIN + SECOND), shadow: false, started: false });
    rig.ours_barred(2, "runner test.arg [a]", "refused by the master");
    rig.salts(2, "3", "runner test.arg [a]");
    assert_eq!(rig.told(), Vec::<String>::new());
    // What led to it may have been before we looked.
    rig.take(Item::Mode { at: Micros(BEGIN + 50 * SECOND), shadow: true, started: true });
    rig.salts(55, "4", "runner test.arg [a]");
    rig.salts(61, "5", "runner test.arg [a]");
    rig.take(Item::Mode { at: Micros(BEGIN + 60 * SECOND), shadow: true, started: false });
    // What the log says later, of another start, changes nothing about it.
    rig.take(Item::Mode { at: Micros(BEGIN + 65 * SECOND), shadow: true, started: true });
    assert_eq!(rig.told(), ["only salts 5"]);
    // Outside of what was asked for nothing is told.
    rig.ours(-1, "runner test.arg [a]");
    rig.salts(-1, "6", "runner test.arg [a]");
    rig.ours(1_000, "runner test.arg [a]");
    assert_eq!(rig.told(), Vec::<String>::new());
}

#[test]
fn more_than_may_wait_is_judged_before_its_time() {
    let mut rig = Rig::new();
    let long = vec![Value::from("x".repeat(1_000_000))];
    for n in 0..80 {
        let act = Act::on_master("runner", "test.arg", Some(long.clone()));
        let (seq, at, jid) = (SeqNo(n), Micros(BEGIN + SECOND), n.to_string());
        rig.take(Item::Salts(Salts { seq, at, jid, act, certain: true }));
    }
    assert!(rig.comparer.hurried > 10 && rig.told.len() > 10, "{}", rig.comparer.hurried);
    assert_eq!(rig.told().len(), 80, "and none is forgotten");
}

impl Rig {
    /// A reaction of ours failed, in that file.
    fn ours_failed(&mut self, at: i64, file: &str) {
        self.number += 1;
        let at_line = crate::model::Location { line: Some(3), ..crate::model::Location::file(file) };
        self.take(Item::Failed(Failed {
            event: SeqNo(self.number),
            at: Micros(BEGIN + at * SECOND),
            tag: "a/b".to_owned(),
            rules: vec!["a/*".to_owned()],
            reaction: SeqNo(self.number),
            failures: vec![crate::model::ReactionFailure { at: at_line, cause: "no".to_owned() }],
        }));
    }

    fn salts_call(&mut self, at: i64, fun: &str, sls: &str) {
        self.number += 1;
        let act = Act { sls: sls.to_owned(), ..Act::on_master("runner", fun, Some(Vec::new())) };
        let (seq, at) = (SeqNo(self.number), Micros(BEGIN + at * SECOND));
        self.take(Item::Salts(Salts { seq, at, jid: self.number.to_string(), act, certain: true }));
    }
}

#[test]
fn what_salt_does_in_place_of_a_reaction_of_ours_that_failed_is_ours_to_mend() {
    let mut rig = Rig::new();
    rig.ours_failed(100, "/srv/a.sls");
    rig.salts_call(101, "of.a", "/var/cache/files/base/a.sls");
    rig.salts_call(102, "of.b", "/srv/b.sls");
    rig.salts_call(103, "of.somewhere", "");
    rig.salts_call(150, "too.late", "");
    rig.ours_failed(300, "/srv/c.sls");
    let told = &mut rig.told;
    rig.comparer.finish(&mut |verdict| told.push(verdict));
    let words: Vec<_> = rig.told.iter().map(short).collect();
    assert_eq!(
        words,
        [
            "ours failed /srv/a.sls:3: no, of.a",
            "only salts 3",
            "ours failed /srv/a.sls:3: no, of.somewhere",
            "only salts 5",
            "ours failed /srv/c.sls:3: no, nothing",
        ]
    );
}
