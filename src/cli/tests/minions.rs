//! `minions list` and `minions show` against a running daemon.

use std::collections::BTreeMap;

use super::jobs::run_states;
use crate::base::clock::{Clock, Micros};
use crate::base::limits::MINIONS_JOBS_CHECKED;
use crate::cli::in_process::{cli, document, stderr, text};
use crate::daemon::in_process::{Cellar, map};
use crate::model::{Batch, Entry, Kind, Source};
use crate::testkit::entries::Asks as _;
use crate::wire::msgpack::Writer;
use rmpv::Value;
use serde_json::{Value as Json, json};

const HIGHSTATE: &str = "20261121054728123456";
const PING: &str = "20261121064728123456";
const LATEST: &str = "20261121074728123456";

/// web1 ran a highstate with changes and one failure, web2 one without; web3 has never answered.
fn cellar() -> Cellar {
    let cellar = Cellar::start();
    let load = |fun: &str, jid: &str, arg: Json| {
        let load = json!({"cmd": "publish", "tgt": "*", "fun": fun, "arg": arg, "tgt_type": "glob", "jid": jid});
        cellar.save_load(jid, &load, &["web1", "web2", "web3"]);
    };
    load("state.highstate", HIGHSTATE, json!([]));
    cellar.answer(
        HIGHSTATE,
        "web1",
        "state.highstate",
        &run_states(true, false),
        2,
    );
    cellar.answer(
        HIGHSTATE,
        "web2",
        "state.highstate",
        &run_states(false, true),
        0,
    );
    load("test.ping", PING, json!([]));
    cellar.answer(PING, "web1", "test.ping", &json!(true), 0);
    cellar
}

#[test]
fn minions_are_listed_with_their_last_jobs() {
    let cellar = cellar();
    let all = document(&cellar, &["minions", "list"]);
    let rows = all["minions"].as_array().unwrap();
    let of = |name: &str| rows.iter().map(|row| row[name].clone()).collect::<Vec<_>>();
    assert_eq!(of("id"), ["web1", "web2", "web3"]);
    assert_eq!(of("missing"), [0, 1, 2]);
    assert_eq!(rows[0]["last"]["jid"], PING);
    assert_eq!(rows[1]["last"]["jid"], HIGHSTATE);
    assert_eq!(
        (&rows[2]["last"], &rows[2]["last_seen"]),
        (&Json::Null, &Json::Null)
    );
    let [first, second] = [0, 1].map(|n| &rows[n]["highstate"]);
    assert_eq!(
        (&first["failed"], &second["failed"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(
        first["states"],
        json!({"total": 2, "failed": 1, "changed": 1})
    );
    assert_eq!(
        second["states"],
        json!({"total": 2, "failed": 0, "changed": 0})
    );
    assert_eq!(first["time"], "2026-11-21T05:47:28.123456Z");
    assert_eq!(all["skipped"]["jobs_skipped"], false);
    let table = text(&cellar, &["minions", "list", "web[12]"]);
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.lines().nth(1).unwrap().contains("failed"), "{table}");
    let some = document(&cellar, &["minions", "list", "--limit", "2"]);
    assert_eq!(some["minions"].as_array().unwrap().len(), 2);
}

/// Number of missing returns by minion.
fn missing(cellar: &Cellar) -> BTreeMap<String, u64> {
    let all = document(cellar, &["minions", "list"]);
    let rows = all["minions"].as_array().unwrap().iter();
    let counts = rows.map(|row| {
        let id = row["id"].as_str().unwrap().to_owned();
        (id, row["missing"].as_u64().unwrap())
    });
    counts.collect()
}

#[test]
fn questions_about_running_jobs_push_out_no_job_that_a_minion_has_not_returned() {
    let cellar = cellar();
    let before = missing(&cellar);
    for n in 0..=MINIONS_JOBS_CHECKED {
        let jid = format!("2026112108{:02}{:02}123456", n / 60, n % 60);
        cellar.publish(&jid, "saltutil.find_job", &["web3"]);
    }
    assert_eq!(missing(&cellar), before);
    let all = document(&cellar, &["minions", "list"]);
    assert_eq!(all["skipped"]["jobs_skipped"], false);
    assert_eq!(all["skipped"]["jobs_checked"], 2);
}

#[test]
fn a_job_whose_id_has_no_time_counts_by_the_time_of_its_first_entry() {
    let cellar = Cellar::start();
    cellar.publish("20161121054728123456", "test.ping", &["long-ago"]);
    for n in 1..MINIONS_JOBS_CHECKED {
        cellar.publish(&format!("deploy-{n}"), "test.ping", &["today"]);
    }
    let today = MINIONS_JOBS_CHECKED as u64 - 1;
    let expected = [("long-ago", 1), ("today", today)];
    assert_eq!(
        missing(&cellar),
        expected.map(|(id, n)| (id.to_owned(), n)).into()
    );
    cellar.publish("20991121054728123456", "test.ping", &["in-future"]);
    let expected = [("in-future", 1), ("today", today)];
    assert_eq!(
        missing(&cellar),
        expected.map(|(id, n)| (id.to_owned(), n)).into()
    );
    let all = document(&cellar, &["minions", "list"]);
    assert_eq!(all["skipped"]["jobs_skipped"], true);
    cellar.publish("20991121054729123456", "test.ping", &["in-future"]);
    let expected = [("in-future", 2), ("today", today - 1)];
    assert_eq!(
        missing(&cellar),
        expected.map(|(id, n)| (id.to_owned(), n)).into()
    );
}

#[test]
fn a_job_whose_id_has_no_time_is_missing_for_a_day_only() {
    let cellar = Cellar::start();
    let now = Clock::real().now().0;
    let publish = |jid: &str, hours_ago: i64, minion: &str| {
        let mut body = Writer::new();
        body.array(2).map(1).str("fun").str("test.ping");
        body.array(1).str(minion);
        let body = body.into_bytes();
        let at = Micros(now - hours_ago * 3_600_000_000);
        let entry = Entry {
            jid,
            ..Entry::new(Kind::Load, Source::Returner, at, &body)
        };
        cellar.store(Batch::of(&entry));
    };
    publish("deploy-1", 48, "web1");
    let of_last_day = || {
        let causes = cellar.ask("causes", vec![]);
        let groups = causes["missing"].as_array().unwrap().iter();
        let groups = groups.map(|group| {
            let id = group["minions"][0]["id"].as_str().unwrap();
            (group["why"].as_str().unwrap().to_owned(), id.to_owned())
        });
        let fleet = cellar.ask("fleet", vec![]);
        (
            groups.collect::<Vec<_>>(),
            fleet["missing"].as_u64().unwrap(),
        )
    };
    assert_eq!(of_last_day(), (Vec::new(), 0));

    publish("deploy-2", 1, "web2");
    cellar.answer(PING, "web2", "test.ping", &json!(true), 0);
    let silent = ("silent".to_owned(), "web2".to_owned());
    assert_eq!(
        of_last_day(),
        (vec![silent.clone()], 1),
        "it was heard since"
    );
    let of_job = cellar.ask("causes", vec![("jid", "deploy-2".into())]);
    assert_eq!(of_job["missing"][0]["why"].as_str(), Some("silent"));
}

#[test]
fn pages_of_minions_continue_after_the_last_one() {
    let cellar = cellar();
    let mut found = Vec::new();
    let mut after = Value::Nil;
    loop {
        let page = cellar.ask("minions_list", vec![("limit", 1.into()), ("after", after)]);
        found.push(page["minions"][0]["id"].as_str().unwrap().to_owned());
        after = page["next"].clone();
        assert_eq!(page["more"].as_bool(), Some(!after.is_nil()));
        if after.is_nil() {
            break;
        }
    }
    assert_eq!(found, ["web1", "web2", "web3"]);
}

#[test]
fn minions_that_need_attention_are_listed_alone() {
    let cellar = cellar();
    cellar.answer(PING, "web2", "test.ping", &json!(true), 0);
    let ids = |args: Vec<(&str, Value)>| -> Vec<String> {
        let page = cellar.ask("minions_list", args);
        let rows = page["minions"].as_array().unwrap().iter();
        rows.map(|row| row["id"].as_str().unwrap().to_owned())
            .collect()
    };
    let all = document(&cellar, &["minions", "list"]);
    let rows = all["minions"].as_array().unwrap().iter();
    let expected: Vec<_> = rows
        .filter(|row| row["missing"].as_u64() > Some(0) || row["highstate"]["failed"] == true)
        .map(|row| row["id"].as_str().unwrap())
        .collect();
    assert!(
        !expected.is_empty() && expected.len() < all["minions"].as_array().unwrap().len(),
        "{all}"
    );
    assert_eq!(ids(vec![("attention", true.into())]), expected);
    // A further, different return does not count; a later highstate does.
    cellar.answer(
        HIGHSTATE,
        "web1",
        "state.highstate",
        &run_states(false, false),
        0,
    );
    assert_eq!(ids(vec![("attention", true.into())]), expected);
    cellar.answer(
        HIGHSTATE,
        "web2",
        "state.highstate",
        &run_states(true, false),
        2,
    );
    assert_eq!(ids(vec![("attention", true.into())]), expected);
    cellar.answer(
        HIGHSTATE,
        "web3",
        "state.highstate",
        &run_states(false, false),
        0,
    );
    cellar.answer(PING, "web3", "test.ping", &json!(true), 0);
    assert_eq!(ids(vec![("attention", true.into())]), ["web1"]);
    cellar.publish(LATEST, "state.apply", &["web2"]);
    cellar.answer(LATEST, "web2", "state.apply", &run_states(true, false), 2);
    assert_eq!(ids(vec![("attention", true.into())]), ["web1", "web2"]);
    let limited = cellar.ask(
        "minions_list",
        vec![("attention", true.into()), ("limit", 1.into())],
    );
    assert_eq!(limited["more"].as_bool(), Some(true));
    assert_eq!(
        limited["minions"][0]["highstate"]["states"]["total"].as_u64(),
        Some(2),
        "{limited}"
    );
}

#[test]
fn an_event_counts_as_a_sign_of_life() {
    let cellar = cellar();
    cellar.store_event("salt/minion/new1/start", &json!({ "id": "new1" }));
    let all = document(&cellar, &["minions", "list", "new*"]);
    assert!(all["minions"][0]["last_seen"]["time"].is_string(), "{all}");
    let one = document(&cellar, &["minions", "show", "new1"]);
    assert_eq!(one["timeline"][0]["tag"], "salt/minion/new1/start");
}

#[test]
fn one_minion_is_shown_with_its_history() {
    let cellar = cellar();
    let one = document(&cellar, &["minions", "show", "web1"]);
    assert_eq!(
        (&one["failed_states"], &one["changed_states"]),
        (&json!(["nginx"]), &json!(["nginx"]))
    );
    let functions: Vec<_> = one["functions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["fun"].clone())
        .collect();
    assert_eq!(functions, ["test.ping", "state.highstate"]);
    let other = document(&cellar, &["minions", "show", "web3"]);
    let missing: Vec<_> = other["missing_jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["jid"].clone())
        .collect();
    assert_eq!(missing, [PING, HIGHSTATE], "the latest first");
    let table = text(&cellar, &["minions", "show", "web1"]);
    assert!(table.contains("2 states, 1 failed, 1 changed"), "{table}");
    let output = cli(&cellar, &["minions", "show", "web\x1b9"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr(&output),
        "saltcellar: cannot show the minion: no entry of the archive names the minion web\\x1b9; `saltcellar minions list` lists the known minions\n"
    );
}

#[test]
fn events_are_searched_and_counted_by_group() {
    let cellar = cellar();
    for (n, minion) in ["web1", "web1", "web2"].iter().enumerate() {
        let text = format!("line {n}: Permission denied");
        let data = map(vec![("id", (*minion).into()), ("text", text.into())]);
        let event = map(vec![
            ("tag", format!("my/event/{n}").into()),
            ("data", data),
        ]);
        cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
    }
    let found = |args: &[&str]| {
        let all = document(&cellar, &[&["events", "list"], args].concat());
        all["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|event| event["tag"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(found(&["--search", "1: Permission"]), ["my/event/1"]);
    assert!(
        found(&["--search", "permission"]).is_empty(),
        "upper and lower case differ"
    );
    assert_eq!(
        found(&["--search", "Permission", "--where", "data.id == 'web2'"]),
        ["my/event/2"]
    );
    let counted = document(
        &cellar,
        &["events", "count", "--tag", "my/*", "--by", "minion"],
    );
    let groups = json!([{"minion": "web1", "count": 2}, {"minion": "web2", "count": 1}]);
    assert_eq!(
        (&counted["groups"], &counted["count"]),
        (&groups, &json!(3))
    );
    for by in ["function", "hour", "class"] {
        let counted = document(&cellar, &["events", "count", "--tag", "my/*", "--by", by]);
        assert_eq!(
            (
                counted["groups"].as_array().unwrap().len(),
                &counted["count"]
            ),
            (1, &json!(3)),
            "{by}"
        );
    }
    let output = cli(
        &cellar,
        &["events", "list", "--tag", "no/such/*", "--stats"],
    );
    assert!(
        stderr(&output).starts_with("saltcellar: searched 0 of "),
        "{}",
        stderr(&output)
    );
}
