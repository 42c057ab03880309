//! What verbs print on a terminal: colours by result, what a narrow one leaves out, orders.

use rmpv::Value;
use serde_json::{Value as Json, json};

use super::jobs::run_states;
use crate::cli::in_process::{cli, document, screen, stderr, text};
use crate::cli::width_of;
use crate::daemon::in_process::{Cellar, map};
use crate::testkit::entries::{Asks as _, value};

const FIRST: &str = "20261121054728123456";
const SECOND: &str = "20261121064728123456";
const THIRD: &str = "20261121074728123456";

/// Turns a terminal red, and hides what follows.
const HOSTILE: &str = "web1\u{1b}[31m\u{202e}";

const RED: &str = "\u{1b}[31m";
const YELLOW: &str = "\u{1b}[33m";
const GREEN: &str = "\u{1b}[32m";

/// A daemon with a run that failed on one minion and changed another, and two that went well.
fn cellar() -> Cellar {
    let cellar = Cellar::start();
    let minions = ["web1", "app13.customer-with-a-long-name.example.net"];
    let load = |jid: &str, fun: &str| {
        json!({"fun": fun, "jid": jid, "tgt": "*", "tgt_type": "glob", "user": "sudo_administrator",
               "arg": ["x".repeat(300)]})
    };
    cellar.save_load(FIRST, &load(FIRST, "state.apply"), &minions);
    cellar.answer(
        FIRST,
        minions[0],
        "state.apply",
        &run_states(false, false),
        2,
    );
    cellar.answer(FIRST, minions[1], "state.apply", &run_states(true, true), 0);
    for jid in [SECOND, THIRD] {
        cellar.save_load(jid, &load(jid, "test.ping"), &[minions[0]]);
        cellar.answer(jid, minions[0], "test.ping", &json!(true), 0);
    }

    // As the bus has them.
    for (jid, minion, fun, ret, code) in [
        (
            FIRST,
            minions[0],
            "state.apply",
            run_states(false, false),
            2,
        ),
        (FIRST, minions[1], "state.apply", run_states(true, true), 0),
        (SECOND, minions[0], "test.ping", json!(true), 0),
        (THIRD, minions[0], "test.ping", json!(true), 0),
    ] {
        let data = json!({"jid": jid, "id": minion, "fun": fun, "return": ret, "retcode": code, "success": code == 0});
        let event = map(vec![
            ("tag", format!("salt/job/{jid}/ret/{minion}").into()),
            ("data", value(&data)),
        ]);
        cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
    }
    cellar
}

/// The text without the colours of this program.
fn uncoloured(text: &str) -> String {
    let codes = ["\u{1b}[0m", "\u{1b}[1m", RED, YELLOW, GREEN];
    codes
        .iter()
        .fold(text.to_owned(), |text, code| text.replace(code, ""))
}

#[test]
fn results_are_coloured_on_a_terminal() {
    let cellar = cellar();
    let red = |word: &str| format!("{RED}{word}\u{1b}[0m");
    let green = |word: &str| format!("{GREEN}{word}\u{1b}[0m");
    let yellow = |word: &str| format!("{YELLOW}{word}\u{1b}[0m");

    let jobs = screen(&cellar, 120, &["jobs", "list"]);
    assert_eq!(jobs.matches(&red("1")).count(), 1, "{jobs}");

    let states = screen(&cellar, 120, &["jobs", "states", FIRST]);
    for word in [red("failed"), green("ok"), yellow("changed")] {
        assert!(states.contains(&word), "{states}");
    }

    let minions = screen(&cellar, 120, &["minions", "list"]);
    assert!(
        minions.contains(RED) && minions.contains(GREEN),
        "{minions}"
    );

    let events = screen(
        &cellar,
        200,
        &["events", "list", "--tag", "salt/job/*/ret/*"],
    );
    for (colour, jid) in [
        (RED, FIRST),
        (YELLOW, FIRST),
        (GREEN, SECOND),
        (GREEN, THIRD),
    ] {
        let tag = format!("{colour}salt/job/{jid}");
        assert!(events.contains(&tag), "{tag} in {events}");
    }

    let status = screen(&cellar, 120, &["status"]);
    assert!(
        [GREEN, YELLOW]
            .iter()
            .any(|colour| status.lines().next().unwrap().contains(colour)),
        "{status}"
    );

    let diff = screen(&cellar, 120, &["jobs", "diff", SECOND, FIRST]);
    assert!(diff.contains(&red("failed, retcode 2")), "{diff}");
}

#[test]
fn without_a_terminal_or_if_unwanted_nothing_is_coloured() {
    let cellar = cellar();
    for args in [
        &["jobs", "list"][..],
        &["jobs", "states", FIRST],
        &["events", "list"],
        &["minions", "list"],
        &["status"],
    ] {
        let plain = text(&cellar, args);
        assert!(!plain.contains('\u{1b}'), "{args:?}: {plain:?}");
        if args == ["status"] {
            continue;
        }
        let unwanted = screen(&cellar, 120, &[args, &["--output", "csv"]].concat());
        assert!(!unwanted.contains('\u{1b}'), "{args:?}: {unwanted:?}");
    }
}

#[test]
fn data_cannot_colour_the_terminal() {
    let cellar = Cellar::start();
    let load = json!({"fun": HOSTILE, "jid": FIRST, "tgt": HOSTILE, "tgt_type": "glob", "user": HOSTILE,
                      "arg": [HOSTILE]});
    cellar.save_load(FIRST, &load, &["web1"]);
    cellar.answer(FIRST, "web1", HOSTILE, &json!({HOSTILE: HOSTILE}), 1);
    let event = map(vec![
        ("tag", format!("test/{HOSTILE}").into()),
        ("data", value(&json!({"id": HOSTILE}))),
    ]);
    cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);

    for args in [
        &["jobs", "list"][..],
        &["jobs", "show", FIRST],
        &["jobs", "diff", FIRST, FIRST],
        &["events", "list"],
        &["minions", "list"],
        &["status"],
    ] {
        let shown = uncoloured(&screen(&cellar, 120, args));
        assert!(
            !shown.contains(['\u{1b}', '\u{202e}']),
            "{args:?}: {shown:?}"
        );
    }
}

#[test]
fn at_80_columns_times_and_users_stay_and_ids_are_cut() {
    let cellar = cellar();
    let wide = uncoloured(&screen(&cellar, 200, &["jobs", "list"]));
    assert!(
        wide.contains(FIRST) && wide.contains("05:47:28.123"),
        "{wide}"
    );

    let narrow = uncoloured(&screen(&cellar, 80, &["jobs", "list"]));
    let lines: Vec<&str> = narrow.lines().collect();
    for title in ["JID", "TIME", "FUN", "TGT", "USER", "RETURNED", "FAILED"] {
        assert!(lines[0].contains(title), "{title} in {narrow}");
    }
    assert!(!lines[0].contains("ARG"), "{narrow}");
    assert!(
        narrow.contains("11-21 05:47:28 ") && narrow.contains("2026112105472"),
        "{narrow}"
    );
    assert!(narrow.contains("sudo_a\u{2026}"), "{narrow}");
    assert!(lines.iter().all(|line| width_of(line) <= 80), "{narrow}");

    let minions = uncoloured(&screen(&cellar, 80, &["minions", "list"]));
    assert!(
        minions.lines().all(|line| width_of(line) <= 80),
        "{minions}"
    );
    assert!(
        minions.contains("app13") && minions.contains("example.net"),
        "{minions}"
    );
}

fn jids(shown: &Json) -> Vec<String> {
    let jobs = shown["jobs"].as_array().unwrap().iter();
    jobs.map(|job| job["jid"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn lists_are_reversed_by_one_flag() {
    let cellar = cellar();
    let [args, reversed] = [
        &["jobs", "list", "-n", "2"][..],
        &["jobs", "list", "-n2", "-r"],
    ];
    assert_eq!(jids(&document(&cellar, args)), [THIRD, SECOND]);
    assert_eq!(jids(&document(&cellar, reversed)), [SECOND, THIRD]);

    let first_of = |args: &[&str]| {
        let table = text(&cellar, args);
        table
            .lines()
            .nth(1)
            .unwrap()
            .split_whitespace()
            .next()
            .unwrap()
            .to_owned()
    };
    assert_eq!(first_of(args), THIRD);
    assert_eq!(first_of(reversed), SECOND);

    // Events as jobs, in JSON as in a table.
    let seqs = |flags: &[&str]| -> Vec<u64> {
        let shown = document(&cellar, &[&["events", "list", "-n", "3"], flags].concat());
        let events = shown["events"].as_array().unwrap().iter();
        events.map(|event| event["seq"].as_u64().unwrap()).collect()
    };
    let mut turned = seqs(&["-r"]);
    assert!(turned.is_sorted() && turned.len() == 3, "{turned:?}");
    let [oldest, newest] = [turned[0], turned[2]].map(|seq| seq.to_string());
    turned.reverse();
    assert_eq!(turned, seqs(&[]));
    assert_eq!(first_of(&["events", "list", "-n", "3"]), newest);
    assert_eq!(first_of(&["events", "list", "-n", "3", "-r"]), oldest);

    let missing = cli(&cellar, &["events", "list", "--no-limit", "--reverse"]);
    assert_eq!(missing.status.code(), Some(64), "{}", stderr(&missing));
}

#[test]
fn short_flags_are_those_of_other_tools() {
    let cellar = cellar();
    for args in [
        &["jobs", "list", "-n", "1", "-o", "json"][..],
        &["jobs", "missing", "-n", "1", "-r", "-o", "jsonl"],
        &["minions", "list", "-n", "1", "-o", "csv"],
        &["events", "list", "-n", "1", "-o", "jsonl"],
        &[
            "events", "tail", "-f", "-n", "1", "--since", "30d", "-o", "jsonl",
        ],
    ] {
        text(&cellar, args);
    }
}

#[test]
fn a_terminal_shows_the_states_that_failed_or_changed() {
    let cellar = cellar();
    let shown = uncoloured(&screen(&cellar, 100, &["jobs", "show", FIRST]));
    // What it is comes first, without the whole of a long argument.
    assert!(
        shown.starts_with(&format!("jid       {FIRST}\n")),
        "{shown}"
    );
    assert!(shown.contains("returned  2 of 2, 1 failed\n"), "{shown}");
    let arguments = shown.lines().find(|line| line.starts_with("arg")).unwrap();
    assert!(
        arguments.ends_with("\u{2026} (300 characters, see --output json)"),
        "{shown}"
    );
    assert!(width_of(arguments) <= 300, "{shown}");

    assert!(
        shown.contains("    failed   nginx  service.running  web  2.5 ms\n"),
        "{shown}"
    );
    assert!(shown.contains("             The service\n"), "{shown}");
    assert!(
        shown.contains("    changed  nginx  service.running  web  2.5 ms\n"),
        "{shown}"
    );
    assert_eq!(
        shown.matches("    1 state without change\n").count(),
        2,
        "{shown}"
    );
    assert!(!shown.contains("pkg.installed"), "{shown}");

    let all = uncoloured(&screen(
        &cellar,
        100,
        &["jobs", "show", FIRST, "--all-states"],
    ));
    let lines: Vec<&str> = all
        .lines()
        .filter(|line| line.contains("  web  "))
        .collect();
    let funs = |lines: &[&str]| -> Vec<bool> {
        lines
            .iter()
            .map(|line| line.contains("service.running"))
            .collect()
    };
    // In the order in which they ran, or the slowest first.
    assert_eq!(funs(&lines), [false, true, false, true], "{all}");
    let slowest = ["jobs", "show", FIRST, "--all-states", "--sort", "duration"];
    let slowest = uncoloured(&screen(&cellar, 100, &slowest));
    let lines: Vec<&str> = slowest
        .lines()
        .filter(|line| line.contains("  web  "))
        .collect();
    assert_eq!(funs(&lines), [true, false, true, false], "{slowest}");

    // A report of a minion on which nothing happened is one line.
    cellar.answer(FIRST, "web9", "state.apply", &run_states(false, true), 0);
    let shown = uncoloured(&screen(&cellar, 100, &["jobs", "show", FIRST]));
    let of_web9 = shown
        .lines()
        .find(|line| line.starts_with("web9: ("))
        .unwrap();
    assert!(of_web9.ends_with(") 2 states without change"), "{shown}");

    // Everything else is complete.
    for flags in [&[][..], &["--format", "highstate"], &["--format", "salt"]] {
        let whole = text(&cellar, &[&["jobs", "show", FIRST], flags].concat());
        assert!(whole.contains("All there"), "{whole}");
    }
    let whole = text(&cellar, &["jobs", "show", FIRST]);
    assert!(whole.contains(&"x".repeat(300)), "{whole}");
}

#[test]
fn states_can_be_sorted_by_their_duration() {
    let cellar = cellar();
    let durations = |flags: &[&str]| -> Vec<f64> {
        let shown = document(&cellar, &[&["jobs", "states", FIRST], flags].concat());
        let states = shown["states"].as_array().unwrap().iter();
        states
            .map(|state| state["duration_ms"].as_f64().unwrap())
            .collect()
    };
    let mut sorted = durations(&[]);
    assert!(!sorted.is_sorted_by(|a, b| a >= b), "{sorted:?}");
    sorted.sort_by(|a, b| b.total_cmp(a));
    assert_eq!(durations(&["--sort", "duration"]), sorted);

    let funs = |flags: &[&str]| -> Vec<String> {
        let args = [
            &[
                "jobs",
                "show",
                FIRST,
                "--minion",
                "web1",
                "--format",
                "highstate",
            ],
            flags,
        ]
        .concat();
        let shown = text(&cellar, &args);
        let lines = shown.lines().filter(|line| line.contains("Function: "));
        lines.map(|line| line.trim().to_owned()).collect()
    };
    let mut order = funs(&[]);
    order.reverse();
    assert_eq!(order[0], "Function: service.running");
    assert_eq!(funs(&["--sort", "duration"]), order);
}

#[test]
fn the_beginning_of_an_id_names_a_job() {
    let cellar = cellar();
    let beginning = &SECOND[..13];
    for args in [
        &["jobs", "show", beginning][..],
        &["jobs", "states", beginning],
        &["jobs", "missing", beginning],
        &["jobs", "diff", beginning, &THIRD[..13]],
    ] {
        text(&cellar, args);
    }
    assert_eq!(
        document(&cellar, &["jobs", "show", beginning])["jid"],
        SECOND
    );

    let several = cli(&cellar, &["jobs", "show", &FIRST[..8]]);
    assert_eq!(several.status.code(), Some(1));
    let said = stderr(&several);
    assert!(said.contains("several ids begin with 20261121"), "{said}");
    let none = cli(&cellar, &["jobs", "show", "20200101"]);
    assert!(stderr(&none).contains("unknown job 20200101"));
}

#[test]
fn a_terminal_shows_some_of_many_missing_minions() {
    let cellar = Cellar::start();
    let minions: Vec<String> = (100..1_000)
        .map(|n| format!("web{n}.example.net"))
        .collect();
    let ids: Vec<&str> = minions.iter().map(String::as_str).collect();
    let load = json!({"fun": "test.ping", "jid": FIRST, "tgt": "*", "tgt_type": "glob", "user": "root", "arg": []});
    cellar.save_load(FIRST, &load, &ids);
    cellar.answer(FIRST, "web100.example.net", "test.ping", &json!(true), 0);

    let shown = uncoloured(&screen(&cellar, 80, &["jobs", "show", FIRST]));
    let [missing, returned] =
        ["missing: 899\n", "\nweb100.example.net: ("].map(|text| shown.find(text));
    assert!(missing.is_some() && missing < returned, "{shown}");
    assert!(shown.lines().count() < 24, "{shown}");
    let count = shown.matches(".example.net").count();
    assert!(
        shown.contains(&format!("and {} more\n", 900 - count)),
        "{shown}"
    );

    let whole = text(&cellar, &["jobs", "show", FIRST]);
    assert_eq!(whole.matches("\n    web").count(), 899, "{whole}");
}

#[test]
fn causes_of_a_job_come_before_its_returns() {
    let cellar = cellar();
    cellar.answer(FIRST, "web2", "state.apply", &run_states(false, false), 2);
    let shown = uncoloured(&screen(&cellar, 100, &["jobs", "show", FIRST]));
    let cause = shown
        .lines()
        .find(|line| line.contains("nginx") && !line.starts_with(' '));
    let row = shown
        .lines()
        .find(|line| line.contains("The service") && line.contains("service.running"));
    let row = row.unwrap_or_else(|| panic!("{cause:?} in {shown}"));
    assert_eq!(row.split_whitespace().next(), Some("2"), "{shown}");
    let [causes, returns] = ["MINIONS  STATE", "\nweb1: ("].map(|text| shown.find(text));
    assert!(causes.is_some() && causes < returns, "{shown}");
    assert!(
        shown
            .lines()
            .all(|line| width_of(line) <= 100 || line.starts_with("arg")),
        "{shown}"
    );

    // The same rows by themselves, with whole keys for programs.
    let page = document(&cellar, &["jobs", "causes", FIRST]);
    let key = page["causes"][0]["key"].as_str().unwrap();
    assert_eq!(page["causes"][0]["minions"], 2, "{page}");
    assert!(row.ends_with(&key[..8]), "{row}");
    let csv = text(&cellar, &["jobs", "causes", FIRST, "--output", "csv"]);
    assert!(csv.contains(key), "{csv}");
    let jsonl = text(
        &cellar,
        &["jobs", "causes", FIRST, "-o", "jsonl", "-n", "1"],
    );
    assert_eq!(jsonl.lines().count(), 1, "{jsonl}");

    // The beginning of a key selects the returns of its cause.
    let of_cause = document(&cellar, &["jobs", "show", FIRST, "--cause", &key[..8]]);
    let returns = of_cause["returns"].as_array().unwrap().iter();
    let minions: Vec<&str> = returns.map(|one| one["minion"].as_str().unwrap()).collect();
    assert_eq!(minions, ["web1", "web2"]);
    let none = cli(&cellar, &["jobs", "show", FIRST, "--cause", "nothing"]);
    let printed = stderr(&none);
    assert!(printed.contains("no cause has this key"), "{printed}");
    assert!(printed.contains("`saltcellar jobs causes"), "{printed}");
    let one = document(&cellar, &["jobs", "causes", FIRST, "--minion", "web2"]);
    assert_eq!(one["failed_minions"], 1, "{one}");
}
