//! Filters that several commands share: one flag selects the same rows in each.

use std::collections::BTreeSet;

use rmpv::Value;
use serde_json::{Value as Json, json};

use super::jobs::run_states;
use crate::base::clock::{Clock, Micros};
use crate::base::limits::MISSING_ENTRIES_SEEN;
use crate::cli::in_process::{cli, document, stderr, text};
use crate::daemon::in_process::{Cellar, wait_for};
use crate::model::JidKey;
use crate::testkit::entries::{Asks as _, event, value};

const DEPLOY: &str = "20261121054728123456";
const PING: &str = "20261121064728123456";

/// Returns, by a letter each: job, minion, function and exit code.
const RETURNS: [(char, &str, &str, &str, i64); 4] = [
    ('a', DEPLOY, "web1", "state.apply", 0),
    ('b', DEPLOY, "web2", "state.apply", 2),
    ('c', PING, "web1", "test.ping", 0),
    ('d', PING, "db1", "test.ping", 1),
];

fn tag(jid: &str, minion: &str) -> String {
    format!("salt/job/{jid}/ret/{minion}")
}

/// These returns, and an event `e` of no minion.
fn archive() -> Cellar {
    let cellar = Cellar::start();
    for (_, jid, minion, fun, retcode) in RETURNS {
        let data = json!({
            "jid": jid, "id": minion, "fun": fun, "return": "x", "retcode": retcode, "success": retcode == 0,
        });
        cellar.store_event(&tag(jid, minion), &data);
    }
    cellar.store_event("e", &json!({}));
    cellar
}

/// Stores an event that waited in a spool: its time is long before those of the events before it in the log.
fn store_spooled(cellar: &Cellar, tag: &str, at: Micros) {
    let event = event(tag, value(&json!({})));
    cellar.ask(
        "event_return",
        vec![
            ("events", Value::Array(vec![event])),
            ("replay", true.into()),
            ("at", at.0.into()),
        ],
    );
}

/// The letter of a row.
fn letter(row: &Json) -> char {
    let of = RETURNS
        .iter()
        .find(|(_, jid, minion, ..)| row["tag"] == tag(jid, minion));
    of.map_or('e', |(letter, ..)| *letter)
}

/// The rows that a command printed, one JSON object a line.
fn rows(cellar: &Cellar, args: &[&str]) -> Vec<Json> {
    let lines = text(cellar, &[args, &["--output", "jsonl"]].concat());
    let rows = lines.lines().map(serde_json::from_str);
    rows.collect::<Result<_, _>>().unwrap()
}

/// The letters of the events that a command printed.
fn letters(cellar: &Cellar, args: &[&str]) -> BTreeSet<char> {
    rows(cellar, args).iter().map(letter).collect()
}

#[test]
fn a_filter_selects_the_same_events_in_list_tail_and_count() {
    let cellar = archive();
    let rows = document(&cellar, &["events", "list"]);
    let row_of = |wanted: char| {
        let rows = rows["events"].as_array().unwrap();
        rows.iter().find(|row| letter(row) == wanted).unwrap()
    };
    let seq_of = |wanted: char| row_of(wanted)["seq"].as_u64().unwrap();
    let (third, end) = (seq_of('c').to_string(), (seq_of('e') + 1).to_string());
    let time_of_third = row_of('c')["time"].as_str().unwrap();

    for (flags, expected) in [
        (&[][..], "abcde"),
        (&["--minion", "web*"], "abc"),
        (&["--minion", "web1"], "ac"),
        (&["--minion", "web[23]"], "b"),
        (&["--minion", "web"], ""),
        (&["--minion", ""], "abcde"),
        (&["--failed"], "bd"),
        (&["--failed", "--minion", "web*"], "b"),
        (&["--failed", "--fun", "test.*"], "d"),
        (&["--jid", DEPLOY], "ab"),
        (&["--jid", DEPLOY, "--failed"], "b"),
        (&["--jid", "20261121"], ""),
        (&["--before", &third], "ab"),
        (&["--before", &third, "--minion", "*2"], "b"),
        (&["--until", time_of_third], "ab"),
        (&["--until", time_of_third, "--failed"], "b"),
        (&["--retention-class", "nothing"], ""),
    ] {
        let expected: BTreeSet<char> = expected.chars().collect();

        let listed = letters(&cellar, &[&["events", "list"], flags].concat());
        assert_eq!(listed, expected, "list {flags:?}");

        // Following ends before a number or a time; most filters name neither.
        let has_end = flags.contains(&"--before") || flags.contains(&"--until");
        let until: &[&str] = if has_end { &[] } else { &["--before", &end] };
        let followed = letters(
            &cellar,
            &[&["events", "tail", "--since", "2026-01-01"], flags, until].concat(),
        );
        assert_eq!(followed, expected, "tail {flags:?}");

        let counted = document(&cellar, &[&["events", "count"], flags].concat());
        assert_eq!(counted["count"], expected.len(), "count {flags:?}");
    }

    let both = cli(&cellar, &["events", "list", "--failed", "--retcode", "!0"]);
    assert_eq!(both.status.code(), Some(64), "{}", stderr(&both));
}

#[test]
fn a_time_range_selects_the_same_events_whatever_their_order_in_the_log() {
    let cellar = Cellar::start();
    let now = Clock::real().now();
    let ago = |minutes: i64| Micros(now.0 - minutes * 60_000_000);
    for (tag, minutes) in [("t/4", 4), ("t/9", 9), ("t/2", 2), ("t/7", 7)] {
        store_spooled(&cellar, tag, ago(minutes));
    }

    let tags = |args: &[&str]| -> BTreeSet<String> {
        let tag = |row: &Json| row["tag"].as_str().unwrap().to_owned();
        rows(&cellar, args).iter().map(tag).collect()
    };
    let (eight, three) = (ago(8).iso(), ago(3).iso());
    for (flags, expected) in [
        (
            &["--since", &eight, "--until", &three][..],
            &["t/4", "t/7"][..],
        ),
        (&["--since", "2026-01-01", "--until", &eight], &["t/9"]),
        (&["--since", &three, "--before", "5"], &["t/2"]),
        (
            &["--since", &eight, "--until", &three, "--tag", "*/4"],
            &["t/4"],
        ),
        (
            &["--since", &eight, "--until", &three, "--before", "3"],
            &["t/4"],
        ),
    ] {
        let expected: BTreeSet<String> = expected.iter().map(|&tag| tag.to_owned()).collect();
        assert_eq!(
            tags(&[&["events", "list"], flags].concat()),
            expected,
            "list {flags:?}"
        );
        assert_eq!(
            tags(&[&["events", "tail"], flags].concat()),
            expected,
            "tail {flags:?}"
        );
        let counted = document(&cellar, &[&["events", "count"], flags].concat());
        assert_eq!(counted["count"], expected.len(), "count {flags:?}");
    }
}

/// The id of a job that was published this many hours ago.
fn jid(hours: i64) -> String {
    let at = Micros(Clock::real().now().0 - hours * 3_600_000_000);
    JidKey::from_time(at, None).text().unwrap()
}

/// The last highstate of web1 failed, and that of web2 did not; web3 never returned.
fn fleet() -> Cellar {
    let cellar = Cellar::start();
    let job = jid(1);
    let load = json!({"cmd": "publish", "tgt": "*", "fun": "state.highstate", "arg": [], "tgt_type": "glob", "jid": job});
    cellar.save_load(&job, &load, &["web1", "web2", "web3"]);
    for (minion, ok) in [("web1", false), ("web2", true)] {
        let code = if ok { 0 } else { 2 };
        let states = run_states(false, ok);
        cellar.answer(&job, minion, "state.highstate", &states, code);
    }
    cellar
}

fn ids(cellar: &Cellar, flags: &[&str]) -> Vec<String> {
    let page = document(cellar, &[&["minions", "list"], flags].concat());
    let rows = page["minions"].as_array().unwrap().iter();
    rows.map(|row| row["id"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn minions_are_listed_by_their_last_highstate_missing_returns_and_silence() {
    let cellar = fleet();
    for (flags, expected) in [
        (&[][..], &["web1", "web2", "web3"][..]),
        (&["--failed"], &["web1"]),
        (&["--missing"], &["web3"]),
        // A minion that was never seen is a missing one only.
        (&["--not-seen-since", "0s"], &["web1", "web2"]),
        (&["--not-seen-since", "1h"], &[]),
        (&["--failed", "--not-seen-since", "0s"], &["web1"]),
        (&["--failed", "--not-seen-since", "1h"], &[]),
        (&["web[12]", "--failed"], &["web1"]),
        (&["*2", "--failed"], &[]),
    ] {
        assert_eq!(ids(&cellar, flags), expected, "{flags:?}");
    }

    let both = cli(&cellar, &["minions", "list", "--failed", "--missing"]);
    assert_eq!(both.status.code(), Some(64), "{}", stderr(&both));
}

#[test]
fn a_list_of_silent_minions_states_which_events_were_not_examined() {
    let cellar = Cellar::start();
    let old = jid(30);
    cellar.publish(&old, "test.ping", &["web1"]);
    cellar.answer(&old, "web1", "test.ping", &json!(true), 0);

    let listed = |flags: &[&str]| document(&cellar, &[&["minions", "list"], flags].concat());
    let quiet = &["--not-seen-since", "1h"][..];
    let since = |page: &Json| page["skipped"]["events_since"].clone();
    let of_fleet = || cellar.ask("fleet", Vec::new())["events_since"].clone();
    // Its return was stored just now.
    assert!(of_fleet().is_nil());
    assert_eq!(listed(quiet)["minions"], json!([]));
    assert_eq!(since(&listed(quiet)), Json::Null);

    // More events than are examined for silent minions, and fewer than for a list.
    for _ in 0..=MISSING_ENTRIES_SEEN / 500 {
        cellar.store_events((0..500).map(|n| event(&format!("x/{n}"), value(&json!({})))));
    }
    assert_eq!(since(&listed(&[])), Json::Null);
    assert_ne!(since(&listed(quiet)), Json::Null);
    assert!(of_fleet().is_i64(), "{}", of_fleet());
    let printed = text(&cellar, &[&["minions", "list"], quiet].concat());
    assert!(printed.contains("limited to: events"), "{printed}");
}

#[test]
fn a_list_of_failed_minions_states_which_highstates_were_not_examined() {
    let cellar = fleet();
    let failed = &["minions", "list", "--failed"][..];

    // A block per call: the latest return is examined first, which is that of web2.
    cellar.ctx().archive.digest.read_at_most(1);
    let printed = text(&cellar, failed);
    assert!(!printed.contains("web1"), "{printed}");
    assert!(
        printed.contains("limited to: highstates since"),
        "{printed}"
    );

    let found = wait_for("all highstates", || {
        let page = document(&cellar, failed);
        page["skipped"]["highstates_since"]
            .is_null()
            .then_some(page)
    });
    assert_eq!(found["minions"][0]["id"], "web1", "{found}");
    assert!(!text(&cellar, failed).contains("limited to"));
}

#[test]
fn jobs_are_listed_by_minion_globs_and_by_failure() {
    let cellar = fleet();
    let failed = jid(1);
    let ok = jid(0);
    let load = json!({"cmd": "publish", "tgt": "db1", "fun": "test.ping", "arg": [], "tgt_type": "glob", "jid": ok});
    cellar.save_load(&ok, &load, &["db1"]);
    cellar.answer(&ok, "db1", "test.ping", &json!(true), 0);

    let funs = |flags: &[&str]| {
        let page = document(&cellar, &[&["jobs", "list"], flags].concat());
        let rows = page["jobs"].as_array().unwrap().iter();
        rows.map(|row| row["fun"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    for (flags, expected) in [
        (&[][..], &["test.ping", "state.highstate"][..]),
        (&["--minion", "d?1"], &["test.ping"]),
        (&["--minion", "web*"], &["state.highstate"]),
        (&["--minion", "*[12]"], &["test.ping", "state.highstate"]),
        (&["--failed"], &["state.highstate"]),
        (&["--failed", "--minion", "web1"], &["state.highstate"]),
        // The result is that of such a minion.
        (&["--failed", "--minion", "web2"], &[]),
        (&["--failed", "--minion", "db*"], &[]),
    ] {
        assert_eq!(funs(flags), expected, "{flags:?}");
    }

    let both = cli(&cellar, &["jobs", "list", "--failed", "--result", "failed"]);
    assert_eq!(both.status.code(), Some(64), "{}: {failed}", stderr(&both));
}

#[test]
fn quiet_prints_results_and_no_confirmation() {
    let cellar = archive();
    let listed = |flags: &[&str]| text(&cellar, &[flags, &["events", "list"]].concat());
    assert_eq!(listed(&["-q"]), listed(&[]));

    let create = |flags: &[&str], name: &str| {
        text(&cellar, &[flags, &["consumers", "create", name]].concat())
    };
    assert!(create(&[], "reader").contains("reader"));
    assert_eq!(create(&["--quiet"], "silent"), "");
    let names = document(&cellar, &["-q", "consumers", "list"]).to_string();
    assert!(names.contains("\"silent\""), "{names}");

    // Errors are printed.
    let unknown = cli(&cellar, &["-q", "jobs", "show", "20261121074728123456"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(stderr(&unknown).contains("20261121074728123456"));
}
