//! Comparisons of made-up calls.

use std::time::Duration;

use salt_sls::{Value, yaml};

use super::*;
use crate::base::clock::Micros;
use crate::model::SeqNo;

const SECOND: i64 = 1_000_000;
const BEGIN: i64 = 1_000 * SECOND;

/// `runner test.arg [a, {b: 1}]`, or `local state.apply {tgt: web1, arg: [..], ..}`.
fn observed(text: &str) -> ObservedCall {
    let mut words = text.splitn(3, ' ');
    let (client, fun, rest) = (
        words.next().unwrap(),
        words.next().unwrap(),
        words.next().unwrap(),
    );
    let value = yaml::load(rest).unwrap();
    match (client, value) {
        ("local", Value::Map(load)) => {
            let call = ObservedCall::job(fun, &load);
            if load.contains_key("kwargs") {
                call.with_load(&load)
            } else {
                call
            }
        }
        (client, value) => {
            ObservedCall::on_master(client, fun, Some(value.as_list().unwrap().to_vec()))
        }
    }
}

struct Harness {
    comparer: Comparer,
    number: u64,
    results: Vec<Comparison>,
}

impl Harness {
    /// In shadow for a long time, with a window of ten seconds.
    fn new() -> Self {
        let comparer = Comparer::new(
            Duration::from_secs(10),
            2,
            Micros(BEGIN),
            Micros(BEGIN + 1_000 * SECOND),
        );
        let mut harness = Self {
            comparer,
            number: 0,
            results: Vec::new(),
        };
        harness.take(ShadowItem::Mode {
            at: Micros(0),
            shadow: true,
            started: true,
        });
        harness
    }

    fn take(&mut self, item: ShadowItem) {
        self.results.extend(self.comparer.take(item));
    }

    fn ours(&mut self, at: i64, call: &str) {
        self.ours_prevented(at, call, "");
    }

    fn ours_prevented(&mut self, at: i64, call: &str, prevented_by: &str) {
        self.number += 1;
        let mut call = observed(call);
        call.id = "the id".to_owned();
        call.sls = "/srv/a.sls".to_owned();
        self.take(ShadowItem::Ours(OurCall {
            event: SeqNo(self.number),
            at: Micros(BEGIN + at * SECOND),
            tag: "a/b".to_owned(),
            rules: vec!["a/*".to_owned()],
            reaction: SeqNo(self.number),
            nth: 0,
            call,
            prevented_by: prevented_by.to_owned(),
            throttle: String::new(),
        }));
    }

    fn salts(&mut self, at: i64, jid: &str, call: &str) {
        self.number += 1;
        let (call, at) = (observed(call), Micros(BEGIN + at * SECOND));
        let certain = call.client != "local";
        let (seq, jid) = (SeqNo(self.number), jid.to_owned());
        self.take(ShadowItem::Salts(SaltsCall {
            seq,
            at,
            jid,
            call,
            certain,
        }));
    }

    fn load(&mut self, jid: &str, call: &str) {
        self.take(ShadowItem::Load {
            jid: jid.to_owned(),
            call: observed(call),
        });
    }

    /// Compares everything; the results in short form.
    fn results(&mut self) -> Vec<String> {
        self.results.extend(self.comparer.pass(Micros(i64::MAX)));
        std::mem::take(&mut self.results)
            .iter()
            .map(short)
            .collect()
    }
}

fn short(comparison: &Comparison) -> String {
    match comparison {
        Comparison::Same(_, salts, unseen) => {
            let unseen = if unseen.is_empty() {
                String::new()
            } else {
                format!(" but for {}", unseen.join(", "))
            };
            format!("same {}{unseen}", salts.jid)
        }
        Comparison::Differs(_, salts, fields) => {
            let shown =
                |value: &Option<Value>| value.as_ref().map_or("-".to_owned(), Value::python_repr);
            let fields: Vec<_> = fields
                .iter()
                .map(|one| format!("{}: {} {}", one.field, shown(&one.ours), shown(&one.salts)))
                .collect();
            format!("differs {}: {}", salts.jid, fields.join("; "))
        }
        Comparison::OnlyOurs(ours) => format!("only ours {}", ours.call.fun),
        Comparison::OnlySalts(salts, None) => format!("only salts {}", salts.jid),
        Comparison::OnlySalts(salts, Some(ours)) => {
            format!("only salts {}, {}", salts.jid, ours.prevented_by)
        }
        Comparison::OursFailed(failed, salts) => {
            let fun = salts.as_ref().map_or("nothing", |salts| &salts.call.fun);
            format!("ours failed {}, {fun}", failed.why())
        }
        Comparison::Unseen(ours, why) => format!("unseen {}: {why}", ours.call.fun),
        Comparison::Unattributed(salts) => format!("unattributed {}", salts.jid),
    }
}

#[test]
fn equal_calls_match_once_in_any_order_of_keywords() {
    let mut harness = Harness::new();
    harness.ours(
        0,
        "runner state.orchestrate [{mods: a, pillar: {x: 1, y: [2]}}]",
    );
    harness.ours(
        1,
        "runner state.orchestrate [{mods: a, pillar: {x: 1, y: [2]}}]",
    );
    harness.ours(2, "wheel key.finger [{match: web1}]");
    harness.ours(
        2,
        "runner state.orchestrate [{mods: a, pillar: {x: 1, y: [3]}}]",
    );
    harness.salts(
        1,
        "0",
        "runner state.orchestrate [{mods: a, pillar: {x: 1, y: [3]}}]",
    );
    harness.salts(
        1,
        "1",
        "runner state.orchestrate [{pillar: {y: [2], x: 1}, mods: a}]",
    );
    harness.salts(
        2,
        "2",
        "runner state.orchestrate [{mods: a, pillar: {x: 1, y: [2]}}]",
    );
    harness.salts(
        3,
        "3",
        "runner state.orchestrate [{mods: a, pillar: {x: 1, y: [2]}}]",
    );
    harness.salts(3, "4", "wheel key.finger [{match: web1}]");
    assert_eq!(
        harness.results(),
        ["same 1", "same 2", "same 4", "same 0", "only salts 3"]
    );
}

#[test]
fn differences_are_reported_by_field() {
    let mut harness = Harness::new();
    harness.ours(
        0,
        "runner state.orchestrate [x, {mods: a, pillar: {x: 1, z: 0}, test: true}]",
    );
    harness.salts(
        1,
        "1",
        "runner state.orchestrate [y, {mods: a, pillar: {x: 2, y: 0}}]",
    );
    harness.ours(
        2,
        "local state.apply {tgt: web1, arg: [{__kwarg__: true, mods: a}]}",
    );
    harness.salts(
        3,
        "2",
        "local state.apply {tgt: web1, arg: [{__kwarg__: true, mods: b}]}",
    );
    harness.ours(2, "local test.arg {tgt: web1, arg: [1]}");
    harness.salts(
        3,
        "3",
        "local test.arg {tgt: [web1], tgt_type: list, arg: [1]}",
    );
    let mut results = harness.results();
    results.sort();
    assert_eq!(
        results,
        [
            "differs 1: arg[0]: 'x' 'y'; kwarg.pillar.x: 1 2; kwarg.pillar.z: 0 -; kwarg.pillar.y: - 0; kwarg.test: True -",
            "differs 2: kwarg.mods: 'a' 'b'",
            "differs 3: tgt: 'web1' ['web1']; tgt_type: 'glob' 'list'",
        ]
    );
}

#[test]
fn a_call_is_reserved_for_its_equal() {
    let mut harness = Harness::new();
    harness.ours(0, "runner test.arg [a]");
    harness.ours(1, "runner test.arg [b]");
    harness.salts(2, "1", "runner test.arg [b]");
    assert_eq!(harness.results(), ["only ours test.arg", "same 1"]);
}

#[test]
fn calls_match_only_within_the_window() {
    let mut harness = Harness::new();
    harness.ours(0, "runner test.arg [a]");
    harness.salts(10, "1", "runner test.arg [a]");
    harness.ours(20, "runner test.arg [b]");
    harness.salts(31, "2", "runner test.arg [b]");
    assert_eq!(
        harness.results(),
        ["same 1", "only ours test.arg", "only salts 2"]
    );
    // No result before the end of the window.
    let mut harness = Harness::new();
    harness.ours(0, "runner test.arg [a]");
    assert_eq!(harness.comparer.pass(Micros(BEGIN + 10 * SECOND)), []);
    assert_eq!(harness.comparer.waiting(), (1, 0));
}

#[test]
fn the_window_is_extended_while_salts_pool_is_full() {
    let mut harness = Harness::new();
    let ended = |harness: &mut Harness, at: i64, jid: &str| {
        harness.take(ShadowItem::Ended {
            jid: jid.to_owned(),
            at: Micros(BEGIN + at * SECOND),
        });
    };
    for n in 0..3 {
        harness.ours(0, &format!("runner test.sleep [{n}]"));
    }
    harness.ours(0, "local test.ping {tgt: web1, arg: []}");
    // Salt's two threads are busy for 30 s; the third of its runners starts then.
    harness.salts(1, "0", "runner test.sleep [0]");
    harness.salts(1, "1", "runner test.sleep [1]");
    let mut results = Vec::new();
    for second in 2..31 {
        results.extend(
            harness
                .comparer
                .pass(Micros(BEGIN + second * SECOND))
                .iter()
                .map(short),
        );
    }
    assert_eq!(results, ["only ours test.ping"]);
    ended(&mut harness, 31, "0");
    harness.salts(32, "2", "runner test.sleep [2]");
    ended(&mut harness, 32, "1");
    ended(&mut harness, 60, "2");
    for second in 32..100 {
        results.extend(
            harness
                .comparer
                .pass(Micros(BEGIN + second * SECOND))
                .iter()
                .map(short),
        );
    }
    assert_eq!(results[1..], ["same 0", "same 1", "same 2"]);
    // With a free thread the window has its normal length.
    harness.ours(200, "runner test.sleep [3]");
    harness.salts(211, "3", "runner test.sleep [3]");
    assert_eq!(harness.results(), ["only ours test.sleep", "only salts 3"]);
}

#[test]
fn only_the_load_of_a_job_names_its_publisher() {
    let mut harness = Harness::new();
    harness.salts(1, "1", "local test.ping {tgt: web1, arg: []}");
    harness.salts(1, "2", "local test.ping {tgt: web2, arg: []}");
    harness.load(
        "2",
        "local test.ping {tgt: web2, arg: [], kwargs: {show_jid: false}}",
    );
    // The load may come before the event.
    harness.load(
        "3",
        "local test.ping {tgt: web3, arg: [], kwargs: {__id__: a, __sls__: b}}",
    );
    harness.salts(1, "3", "local test.ping {tgt: web3, arg: []}");
    assert_eq!(harness.results(), ["unattributed 1", "only salts 3"]);
    // A user's job is not a reaction, even if it is similar.
    harness.ours(100, "local test.ping {tgt: web1, arg: []}");
    harness.salts(101, "4", "local test.ping {tgt: web1, arg: []}");
    harness.load("4", "local test.ping {tgt: web1, arg: [], kwargs: {}}");
    assert_eq!(harness.results(), ["only ours test.ping"]);
}

#[test]
fn a_job_with_its_load_is_matched_by_id_and_compared_by_more_fields() {
    let mut harness = Harness::new();
    harness.ours(
        0,
        "local test.ping {tgt: web1, arg: [], ret: redis, kwargs: {metadata: {a: 1}, order: 1, __id__: x}}",
    );
    harness.salts(1, "1", "local test.ping {tgt: web1, arg: []}");
    assert_eq!(
        harness.results(),
        ["same 1 but for ret, metadata and similar fields"]
    );
    harness.ours(
        100,
        "local test.ping {tgt: web1, arg: [], ret: redis, kwargs: {metadata: {a: 1}, order: 1}}",
    );
    harness.salts(101, "2", "local test.ping {tgt: web1, arg: []}");
    harness.load("2", "local test.ping {tgt: web1, arg: [], ret: '', kwargs: {metadata: {a: 2}, order: 9, __id__: the id, __sls__: /x/a.sls}}");
    assert_eq!(
        harness.results(),
        ["differs 2: load.ret: 'redis' -; load.metadata.a: 1 2"]
    );
    harness.ours(200, "local state.apply {tgt: web1, arg: [a]}");
    harness.salts(201, "3", "local state.sls {tgt: web1, arg: [a]}");
    harness.load(
        "3",
        "local state.sls {tgt: web1, arg: [a], kwargs: {__id__: the id, __sls__: /cache/a.sls}}",
    );
    assert_eq!(
        harness.results(),
        ["differs 3: fun: 'state.apply' 'state.sls'"]
    );
}

#[test]
fn unknown_fields_are_reported_as_unseen() {
    let mut harness = Harness::new();
    harness.ours(0, "caller test.ping []");
    harness.ours(1, "runner test.arg [a, {b: c, big: x}]");
    harness.salts(
        2,
        "1",
        "runner test.arg [a, {b: '[redacted]', big: VALUE_TRIMMED}]",
    );
    assert_eq!(
        harness.results(),
        [
            "unseen test.ping: caller functions leave no trace on the master's bus",
            "same 1 but for kwarg.b, kwarg.big"
        ]
    );
    // For a function that could not be started, 3006 and 3007 do not show the arguments.
    harness.ours(100, "runner there.is_none [a]");
    let call = ObservedCall::on_master("runner", "there.is_none", None);
    let (seq, at, jid) = (SeqNo(1), Micros(BEGIN + 101 * SECOND), "2".to_owned());
    harness.take(ShadowItem::Salts(SaltsCall {
        seq,
        at,
        jid,
        call,
        certain: true,
    }));
    assert_eq!(harness.results(), ["same 2 but for arguments"]);
    harness.ours(200, "runner test.arg [a]");
    harness.take(ShadowItem::Gap {
        begin: Micros(BEGIN + 205 * SECOND),
        end: Micros(BEGIN + 300 * SECOND),
    });
    assert_eq!(
        harness.results(),
        ["unseen test.arg: bus events were lost in that time"]
    );
}

#[test]
fn a_prevented_call_of_ours_explains_one_of_salt_only() {
    let mut harness = Harness::new();
    harness.ours_prevented(0, "runner test.arg [a]", "not allowed");
    harness.ours_prevented(
        1,
        "local test.ping {tgt: absent, arg: []}",
        "no such minion",
    );
    harness.salts(2, "1", "runner test.arg [a]");
    assert_eq!(harness.results(), ["only salts 1, not allowed"]);
}

#[test]
fn a_prevented_call_yields_to_calls_that_are_made() {
    let mut harness = Harness::new();
    harness.ours_prevented(0, "runner test.arg [a]", "once");
    harness.ours(1, "runner test.arg [a]");
    harness.salts(2, "1", "runner test.arg [a]");
    assert_eq!(harness.results(), ["same 1"]);
    harness.ours_prevented(100, "runner test.arg [a]", "once");
    harness.ours(101, "runner test.arg [a]");
    harness.ours_prevented(102, "runner test.arg [a]", "once");
    harness.salts(103, "2", "runner test.arg [a]");
    harness.salts(103, "3", "runner test.arg [a]");
    assert_eq!(harness.results(), ["only salts 2, once", "same 3"]);
    // A prevented call that comes too late for Salt's first call does not explain it.
    harness.ours_prevented(200, "runner test.arg [a]", "once");
    harness.ours(209, "runner test.arg [a]");
    harness.salts(201, "4", "runner test.arg [a]");
    harness.salts(212, "5", "runner test.arg [a]");
    assert_eq!(harness.results(), ["only salts 4, once", "same 5"]);
}

#[test]
fn only_calls_during_shadow_mode_are_compared() {
    let mut harness = Harness::new();
    // Our own calls are not Salt's, whether their record comes before or after.
    harness.salts(0, "1", "runner test.arg [a]");
    harness.take(ShadowItem::Made {
        jid: "1".to_owned(),
    });
    harness.take(ShadowItem::Made {
        jid: "2".to_owned(),
    });
    harness.salts(0, "2", "runner test.arg [a]");
    harness.take(ShadowItem::Mode {
        at: Micros(BEGIN + SECOND),
        shadow: false,
        started: false,
    });
    harness.ours_prevented(2, "runner test.arg [a]", "refused by the master");
    harness.salts(2, "3", "runner test.arg [a]");
    assert_eq!(harness.results(), Vec::<String>::new());
    // The cause may have been before the range.
    harness.take(ShadowItem::Mode {
        at: Micros(BEGIN + 50 * SECOND),
        shadow: true,
        started: true,
    });
    harness.salts(55, "4", "runner test.arg [a]");
    harness.salts(61, "5", "runner test.arg [a]");
    harness.take(ShadowItem::Mode {
        at: Micros(BEGIN + 60 * SECOND),
        shadow: true,
        started: false,
    });
    // Later entries of the log about another start do not change that.
    harness.take(ShadowItem::Mode {
        at: Micros(BEGIN + 65 * SECOND),
        shadow: true,
        started: true,
    });
    assert_eq!(harness.results(), ["only salts 5"]);
    // Outside of the range there are no results.
    harness.ours(-1, "runner test.arg [a]");
    harness.salts(-1, "6", "runner test.arg [a]");
    harness.ours(1_000, "runner test.arg [a]");
    assert_eq!(harness.results(), Vec::<String>::new());
}

#[test]
fn excess_calls_are_compared_early() {
    let mut harness = Harness::new();
    let long = vec![Value::from("x".repeat(1_000_000))];
    for n in 0..80 {
        let call = ObservedCall::on_master("runner", "test.arg", Some(long.clone()));
        let (seq, at, jid) = (SeqNo(n), Micros(BEGIN + SECOND), n.to_string());
        harness.take(ShadowItem::Salts(SaltsCall {
            seq,
            at,
            jid,
            call,
            certain: true,
        }));
    }
    assert!(
        harness.comparer.compared_early > 10 && harness.results.len() > 10,
        "{}",
        harness.comparer.compared_early
    );
    assert_eq!(harness.results().len(), 80, "and none is forgotten");
}

impl Harness {
    /// A saltcellar reaction failed, in that file.
    fn ours_failed(&mut self, at: i64, file: &str) {
        self.number += 1;
        let at_line = crate::model::Location {
            line: Some(3),
            ..crate::model::Location::file(file)
        };
        self.take(ShadowItem::Failed(FailedReaction {
            event: SeqNo(self.number),
            at: Micros(BEGIN + at * SECOND),
            tag: "a/b".to_owned(),
            rules: vec!["a/*".to_owned()],
            reaction: SeqNo(self.number),
            failures: vec![crate::model::ReactionFailure {
                at: at_line,
                cause: "no".to_owned(),
            }],
        }));
    }

    fn salts_call(&mut self, at: i64, fun: &str, sls: &str) {
        self.number += 1;
        let call = ObservedCall {
            sls: sls.to_owned(),
            ..ObservedCall::on_master("runner", fun, Some(Vec::new()))
        };
        let (seq, at) = (SeqNo(self.number), Micros(BEGIN + at * SECOND));
        self.take(ShadowItem::Salts(SaltsCall {
            seq,
            at,
            jid: self.number.to_string(),
            call,
            certain: true,
        }));
    }
}

#[test]
fn calls_of_salt_in_place_of_a_failed_reaction_are_reported_with_it() {
    let mut harness = Harness::new();
    harness.ours_failed(100, "/srv/a.sls");
    harness.salts_call(101, "of.a", "/var/cache/files/base/a.sls");
    harness.salts_call(102, "of.b", "/srv/b.sls");
    harness.salts_call(103, "of.somewhere", "");
    harness.salts_call(150, "too.late", "");
    harness.ours_failed(300, "/srv/c.sls");
    assert_eq!(
        harness.results(),
        [
            "ours failed /srv/a.sls:3: no, of.a",
            "only salts 3",
            "ours failed /srv/a.sls:3: no, of.somewhere",
            "only salts 5",
            "ours failed /srv/c.sls:3: no, nothing",
        ]
    );
}
