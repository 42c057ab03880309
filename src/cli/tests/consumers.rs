//! Consumers and `events tail`, over the local socket and on the command line.

use std::thread::Builder;

use crate::cli::in_process::{cli, stderr, stdout};
use crate::daemon::in_process::{Cellar, list, map, wait_for};
use crate::testkit::entries::Asks as _;
use rmpv::Value;
use serde_json::Value as Json;

fn next(cellar: &Cellar, limit: u64, wait_ms: u64) -> Vec<(u64, u64, String)> {
    let args = vec![
        ("name", "audit".into()),
        ("holder", "me".into()),
        ("limit", limit.into()),
        ("wait_ms", wait_ms.into()),
    ];
    let answer = cellar.ask("consumer_next", args);
    let one = |event: &Value| {
        let id = event["id"].as_str().unwrap().to_owned();
        (
            event["seq"].as_u64().unwrap(),
            event["data"]["n"].as_u64().unwrap(),
            id,
        )
    };
    answer["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(one)
        .collect()
}

/// Standard output of a verb that must succeed.
fn done(cellar: &Cellar, args: &[&str]) -> String {
    let output = cli(cellar, args);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{args:?}: {}",
        stderr(&output)
    );
    stdout(&output)
}

#[test]
fn invalid_filters_names_and_positions_are_refused_with_the_reason() {
    let cellar = Cellar::start();
    let refused =
        |call: &str, args: Vec<(&str, Value)>| cellar.call(call, args).unwrap_err().to_string();
    let create = |key: &'static str, value: Value| {
        refused(
            "consumer_create",
            vec![("name", "audit".into()), (key, value)],
        )
    };
    let scope = |key: &str, value: &str| Value::Array(vec![map(vec![(key, value.into())])]);
    for (error, expected) in [
        (
            create("where", "data.x ==".into()),
            "argument `where`: column 10: ",
        ),
        (
            create("where", "secret".into()),
            "column 1: unknown name `secret`; available: data, tag (bad_args)",
        ),
        (
            create("match", scope("tagg", "x")),
            "argument `match[0].tagg`: unknown field `tagg`, expected one of `tag`",
        ),
        (
            create("match", scope("retcode", "x")),
            "argument `match[0].retcode`: \"x\" is not accepted; give an exit code",
        ),
        (
            create("match", list(["x"])),
            "argument `match[0]`: invalid type",
        ),
        (
            create("to", "yesterday".into()),
            "argument `to`: expected oldest or newest",
        ),
        (
            refused("consumer_create", vec![("name", "a b".into())]),
            "\"a b\" is not a name for a consumer",
        ),
        (refused("consumer_create", vec![]), "missing field `name`"),
        (
            refused("consumer_seek", vec![("name", "audit".into())]),
            "give one of `to`, `time` and `seq`",
        ),
        (
            refused(
                "consumer_seek",
                vec![("name", "audit".into()), ("seq", 1.into())],
            ),
            "\"audit\" does not exist",
        ),
        (
            refused("events_list", vec![("where", "1 +".into())]),
            "argument `where`: ",
        ),
        (refused("events_follow", vec![("seq", (-1).into())]), "-1"),
    ] {
        assert!(error.contains(expected), "{error}\nexpected: {expected}");
    }
    // Below the limit of bytes, and deep enough to overflow the stack of a thread.
    for deep in [
        format!("data{}", ".a".repeat(1_900)),
        format!("{}1", "-".repeat(3_900)),
        format!("{}data", "not ".repeat(1_000)),
    ] {
        let error = create("where", deep.as_str().into());
        assert!(error.contains("nested operations"), "{error}");
        let output = cli(&cellar, &["consumers", "create", "audit", "--where", &deep]);
        assert_eq!(output.status.code(), Some(64), "{}", stderr(&output));
    }
    let long = Value::from("x".repeat(100_000));
    assert!(create("where", long).contains("exceeds the limit"));
    let output = cli(&cellar, &["events", "list", "--where", "data.x = 1"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(stderr(&output).contains("column 8"), "{}", stderr(&output));
}

#[test]
fn two_holders_of_one_name_conflict_with_a_clear_error() {
    let cellar = Cellar::start();
    cellar.ask("consumer_create", vec![("name", "audit".into())]);
    cellar.store_numbered(0..3);
    assert_eq!(next(&cellar, 1, 0).len(), 1);
    let output = cli(
        &cellar,
        &["consumers", "next", "audit", "--holder", "other"],
    );
    assert_eq!(output.status.code(), Some(1));
    let error = stderr(&output);
    assert!(
        error.contains("consumer \"audit\" is in use by \"me\" for at least"),
        "{error}"
    );
    cellar.ask(
        "consumer_release",
        vec![("name", "audit".into()), ("holder", "me".into())],
    );
    done(
        &cellar,
        &["consumers", "next", "audit", "--holder", "other"],
    );
}

#[test]
fn an_event_that_a_condition_is_too_slow_for_is_left_out_and_reported() {
    let cellar = Cellar::start();
    let condition = format!(
        "data.big is matching('*{}b*') or data.n == 3",
        "a".repeat(3_900)
    );
    let args = vec![
        ("name", "audit".into()),
        ("to", "oldest".into()),
        ("where", condition.as_str().into()),
    ];
    cellar.ask("consumer_create", args);
    let event = |data| map(vec![("tag", "test/x".into()), ("data", map(data))]);
    let large = event(vec![
        ("n", 1.into()),
        ("big", "a".repeat(200_000).as_str().into()),
    ]);
    let events = Value::Array(vec![large, event(vec![("n", 3.into())])]);
    cellar.ask("event_return", vec![("events", events)]);
    let found: Vec<_> = next(&cellar, 10, 10_000)
        .into_iter()
        .map(|(_, n, _)| n)
        .collect();
    assert_eq!(found, [3]);
    let consumers = cellar.ask("consumers_list", vec![]);
    let error = consumers["consumers"][0]["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        error.contains("event 1: the condition goes through more than"),
        "{error}"
    );
    assert!(cellar.counter("conditions_too_costly") >= 1);
}

#[test]
fn counting_up_to_a_time_does_not_read_what_came_later() {
    let cellar = Cellar::start();
    let event = |n: u64, big: &str| {
        let data = map(vec![("n", n.into()), ("big", big.into())]);
        map(vec![("tag", "test/x".into()), ("data", data)])
    };
    let put = |event| cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
    put(event(0, ""));
    let first = cellar.ask("events_list", vec![])["events"][0]["time"].clone();
    let until = first.as_i64().unwrap() + 1;
    // More than one call reads.
    let large = "x".repeat(4 * 1024 * 1024);
    for n in 1..20 {
        put(event(n, &large));
    }
    let whole = cellar.ask("events_count", vec![]);
    assert_ne!(whole["next"], Value::Nil);
    let found = cellar.ask("events_count", vec![("until", until.into())]);
    assert_eq!((&found["count"], &found["next"]), (&1.into(), &Value::Nil));
}

#[test]
fn the_verbs_control_a_consumer() {
    let cellar = Cellar::start();
    assert_eq!(
        done(
            &cellar,
            &[
                "consumers",
                "create",
                "audit",
                "--tag",
                "test/*",
                "--retcode",
                "!0"
            ]
        ),
        "audit continues with 1\n"
    );
    let filter = ["--where", "data.retcode != 0"];
    done(
        &cellar,
        &[&["consumers", "create", "audit"][..], &filter].concat(),
    );
    cellar.store_numbered(0..10);
    let lines = done(
        &cellar,
        &[
            "consumers",
            "next",
            "audit",
            "--limit",
            "2",
            "--output",
            "jsonl",
        ],
    );
    let events: Vec<Json> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        events
            .iter()
            .map(|event| event["data"]["n"].as_u64().unwrap())
            .collect::<Vec<_>>(),
        [1, 3]
    );
    assert!(
        events[0]["id"].as_str().unwrap().ends_with(":2"),
        "{}",
        events[0]
    );
    assert_eq!(
        done(&cellar, &["consumers", "ack", "audit", "2"]),
        "audit continues with 3\n"
    );
    done(&cellar, &["consumers", "pin", "audit"]);
    done(&cellar, &["consumers", "pause", "audit"]);
    let listed = done(&cellar, &["consumers", "list"]);
    assert!(
        listed.contains("audit") && listed.contains("paused,pinned"),
        "{listed}"
    );
    assert_eq!(
        done(
            &cellar,
            &["consumers", "next", "audit", "--output", "jsonl"]
        ),
        ""
    );
    done(&cellar, &["consumers", "resume", "audit"]);
    done(&cellar, &["consumers", "unpin", "audit"]);
    assert_eq!(
        done(&cellar, &["consumers", "seek", "audit", "oldest"]),
        "audit continues with 1\n"
    );
    let shown = done(&cellar, &["consumers", "show", "audit"]);
    assert!(
        shown.contains("where     data.retcode != 0") && shown.contains("lag       10 entries"),
        "{shown}"
    );
    let row: Json = serde_json::from_str(&done(
        &cellar,
        &["consumers", "show", "audit", "--output", "json"],
    ))
    .unwrap();
    assert_eq!(
        (row["cursor"].as_u64(), row["holder"].as_str()),
        (Some(1), Some("cli"))
    );
    assert_eq!(
        done(&cellar, &["consumers", "delete", "audit"]),
        "audit is deleted\n"
    );
    assert_eq!(
        cli(&cellar, &["consumers", "show", "audit"]).status.code(),
        Some(1)
    );
    assert_eq!(
        cli(&cellar, &["consumers", "seek", "audit", "soon"])
            .status
            .code(),
        Some(64)
    );
}

#[test]
fn lists_and_counts_take_the_same_filter() {
    let cellar = Cellar::start();
    cellar.store_numbered(0..40);
    let tags = |args: &[&str]| {
        let lines = done(
            &cellar,
            &[&["events", "list", "--output", "jsonl"][..], args].concat(),
        );
        let tag = |line: &str| {
            serde_json::from_str::<Json>(line).unwrap()["tag"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        lines.lines().map(tag).collect::<Vec<_>>()
    };
    let condition = ["--where", "data.n >= 36 and data.retcode == 1"];
    assert_eq!(tags(&condition), ["test/39", "test/37"]);
    assert_eq!(tags(&["--retention-class", "jobs"]), [""; 0]);
    assert_eq!(
        tags(&["--tag", "test/3?", "--where", "data.n in [31, 32, 5]"]),
        ["test/32", "test/31"]
    );
    let count = |args: &[&str]| done(&cellar, &[&["events", "count"][..], args].concat());
    assert_eq!(
        (count(&condition), count(&[])),
        ("2\n".to_owned(), "40\n".to_owned())
    );
    assert_eq!(count(&["--until", "2026-01-01"]), "0\n");
}

#[test]
fn a_waiting_call_is_answered_by_the_next_event_that_matches_and_occupies_no_thread() {
    let cellar = Cellar::start();
    let condition = "data.n == 7";
    cellar.ask(
        "consumer_create",
        vec![("name", "audit".into()), ("where", condition.into())],
    );
    std::thread::scope(|scope| {
        // More than there are threads for calls.
        let mut waiting = Vec::new();
        for _ in 0..30 {
            waiting.push(
                Builder::new()
                    .spawn_scoped(scope, || next(&cellar, 10, 10_000))
                    .unwrap(),
            );
        }
        let asked = std::time::Instant::now();
        cellar.store_numbered(0..10);
        for one in waiting {
            let events = one.join().unwrap();
            assert_eq!(
                events.iter().map(|(_, n, _)| *n).collect::<Vec<_>>(),
                [7],
                "after {:?}",
                asked.elapsed()
            );
        }
    });
    // An orderly stop answers a waiting call.
    let mut cellar = cellar;
    let mut client = cellar.client();
    let args = map(vec![
        ("name", "audit".into()),
        ("holder", "me".into()),
        ("wait_ms", 10_000.into()),
    ]);
    let acknowledged = vec![
        ("name", "audit".into()),
        ("holder", "me".into()),
        ("seq", 10.into()),
    ];
    cellar.ask("consumer_ack", acknowledged);
    let mut packed = Vec::new();
    rmpv::encode::write_value(&mut packed, &args).unwrap();
    let before = cellar.counter("calls");
    client.post("consumer_next", &packed).unwrap();
    wait_for("the call", || {
        (cellar.counter("calls") > before).then_some(())
    });
    assert!(cellar.terminate());
    assert_eq!(
        client.next_answer().unwrap().1.unwrap()["events"],
        Value::Array(vec![])
    );
}
