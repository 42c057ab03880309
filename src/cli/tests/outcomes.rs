//! What counts as a failure, and as a minion's state: the same in lists, filters, metrics, sinks and rules, in each form of a return.

use crate::cli::in_process::{LISTENER, cli, document, stdout, text, token};
use crate::daemon::in_process::{Cellar, address, get, map, wait_for};
use crate::testkit::entries::{Asks as _, value};
use rmpv::Value;
use serde_json::{Value as Json, json};

const FIRST: &str = "20261121054728123456";
const SECOND: &str = "20261121064728123456";
const THIRD: &str = "20261121074728123456";

fn states(ok: bool) -> Json {
    json!({ "file_|-conf_|-/etc/a_|-managed": {
        "__id__": "conf", "__run_num__": 0, "name": "/etc/a", "result": ok, "changes": {}, "comment": "x" } })
}

fn ret(jid: &str, minion: &str, fun: &Json, args: &Json, ret: &Json, rest: &Json) -> Json {
    let mut load = json!({ "cmd": "_return", "id": minion, "jid": jid, "fun": fun, "fun_args": args, "return": ret });
    load.as_object_mut()
        .unwrap()
        .extend(rest.as_object().unwrap().clone());
    load
}

/// A run of states of web1 as its last one.
fn highstate(cellar: &Cellar, jid: &str, fun: &str, args: &Json, ok: bool) {
    let rest = json!({ "retcode": if ok { 0 } else { 2 }, "success": ok });
    let load = ret(jid, "web1", &json!(fun), args, &states(ok), &rest);
    cellar.store_return(&load);
}

/// Asserts in which views web1 has failed its last highstate.
fn assert_state(cellar: &Cellar, jid: &str, has_failed: bool, why: &str) {
    let list = document(cellar, &["minions", "list"]);
    let row = &list["minions"][0];
    assert_eq!(row["highstate"]["failed"], has_failed, "{why}: {list}");
    assert_eq!(row["highstate"]["jid"], jid, "{why}: {list}");
    let shown = document(cellar, &["minions", "show", "web1"]);
    assert_eq!(shown["highstate"], row["highstate"], "{why}");
    let attention = cellar.ask("minions_list", vec![("attention", true.into())]);
    let count = attention["minions"].as_array().unwrap().len();
    assert_eq!(count, usize::from(has_failed), "{why}: {attention}");
    let metrics = get(&address(cellar), "/metrics", "").text();
    let gauge = format!(
        "saltcellar_minion_highstate_failed{{minion=\"web1\"}} {}.0",
        u8::from(has_failed)
    );
    assert!(metrics.contains(&gauge), "{why}: {metrics}");
}

#[test]
fn only_an_applied_highstate_is_the_state_of_its_minion() {
    let config = "http: {listen: '127.0.0.1:0', minion_metrics: true}\n";
    for fun in ["state.highstate", "state.apply"] {
        let cellar = Cellar::start_configured(config);
        highstate(&cellar, FIRST, fun, &json!([]), false);
        assert_state(&cellar, FIRST, true, "the highstate failed");
        for (n, args) in [
            json!([{ "__kwarg__": true, "test": true }]),
            json!([{ "__kwarg__": true, "mock": true }]),
            json!(["test=True"]),
        ]
        .iter()
        .enumerate()
        {
            let jid = format!("2026112106472812345{n}");
            highstate(&cellar, &jid, fun, args, true);
            assert_state(&cellar, FIRST, true, &format!("{fun} {args}"));
        }
        highstate(&cellar, THIRD, fun, &json!([]), true);
        assert_state(&cellar, THIRD, false, "the highstate succeeded");
    }
    let cellar = Cellar::start_configured(config);
    highstate(&cellar, FIRST, "state.apply", &json!([]), true);
    for (n, args) in [
        json!(["web"]),
        json!([{ "__kwarg__": true, "mods": "web" }]),
    ]
    .iter()
    .enumerate()
    {
        let jid = format!("2026112106472812345{n}");
        highstate(&cellar, &jid, "state.apply", args, false);
        assert_state(&cellar, FIRST, false, &format!("state.apply {args}"));
    }
    let shown = document(&cellar, &["minions", "show", "web1"]);
    assert_eq!(shown["functions"][0]["fun"], "state.apply");
    assert_eq!(shown["functions"].as_array().unwrap().len(), 1, "{shown}");
    assert_eq!(
        cellar.ask("get_fun", vec![("fun", "state.apply".into())])["web1"].as_str(),
        Some("20261121064728123451"),
        "a trial is still the latest run of its function"
    );
}

/// Failed returns in each form.
fn failures() -> Vec<(&'static str, Json)> {
    let several = json!(["test.ping", "state.apply"]);
    let of = |name, fun: &Json, value: Json, rest: Json| {
        (name, ret(FIRST, name, fun, &json!([]), &value, &rest))
    };
    let named = |ok| json!({ "test.ping": true, "state.apply": states(ok) });
    vec![
        of(
            "code",
            &json!("test.ping"),
            json!(false),
            json!({ "retcode": 3, "success": true }),
        ),
        of(
            "success",
            &json!("test.ping"),
            json!(false),
            json!({ "retcode": 0, "success": false }),
        ),
        of(
            "state",
            &json!("state.sls"),
            states(false),
            json!({ "success": true }),
        ),
        of(
            "map",
            &several,
            named(false),
            json!({
            "retcode": { "test.ping": 0, "state.apply": 2 }, "success": { "test.ping": true, "state.apply": false } }),
        ),
        of(
            "list",
            &several,
            json!([true, states(false)]),
            json!({
            "retcode": [0, 2], "success": [true, false] }),
        ),
        of(
            "codes",
            &several,
            json!([true, states(false)]),
            json!({ "retcode": [0, 2] }),
        ),
    ]
}

fn successes() -> Vec<(&'static str, Json)> {
    let several = json!(["test.ping", "state.apply"]);
    let rest = json!({ "retcode": [0, 0], "success": [true, true] });
    vec![
        (
            "one",
            ret(
                FIRST,
                "one",
                &json!("test.ping"),
                &json!([]),
                &json!(true),
                &json!({ "retcode": 0, "success": true }),
            ),
        ),
        (
            "many",
            ret(
                FIRST,
                "many",
                &several,
                &json!([]),
                &json!([true, states(true)]),
                &rest,
            ),
        ),
    ]
}

#[test]
fn every_view_agrees_on_what_failed() {
    let config = "http: {listen: '127.0.0.1:0'}\n\
        ingest: {filter: [{do: store, retcode: '!0'}, {do: drop, fun: [test.ping, state.sls]}]}\n\
        sinks:\n  failures: {match: [{retcode: '!0'}], encoder: {template: {text: '{{ minion }}'}}, transport: {file: {path: DIR/failures}}}\n";
    let cellar = Cellar::start_configured(config);
    let mut names = vec!["one", "many"];
    names.extend(failures().iter().map(|(name, _)| *name));
    cellar.publish(FIRST, "test.ping", &names);
    // As on a bus, which the filters of events show.
    for (name, load) in failures().into_iter().chain(successes()) {
        let tag = format!("salt/job/{FIRST}/ret/{name}");
        let event = map(vec![("tag", tag.into()), ("data", value(&load))]);
        cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
        cellar.store_return(&load);
    }
    let mut expected: Vec<_> = failures().iter().map(|(name, _)| *name).collect();
    expected.sort_unstable();

    // `drop` hits neither a failure nor, of the successes, one without a rule.
    let job = document(&cellar, &["jobs", "show", FIRST]);
    let returns = job["returns"].as_array().unwrap();
    let names = |failed: bool| {
        let of = returns.iter().filter(|ret| ret["failed"] == failed);
        of.map(|ret| ret["minion"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(true), expected, "{job}");
    assert!(names(false).is_empty(), "{job}");
    assert_eq!(job["failed"], expected.len());

    let list = text(
        &cellar,
        &["events", "list", "--retcode", "!0", "--output", "jsonl"],
    );
    let mut found: Vec<String> = list
        .lines()
        .map(|line| {
            serde_json::from_str::<Json>(line).unwrap()["minion"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    found.sort_unstable();
    assert_eq!(found, expected);
    assert!(text(&cellar, &["jobs", "list", "--result", "failed"]).contains(FIRST));
    let watch = cli(&cellar, &["jobs", "watch", FIRST, "--timeout", "2s"]);
    let watched = stdout(&watch);
    for name in &expected {
        let line = watched
            .lines()
            .find(|line| line.contains(&format!(" {name}: ")));
        assert!(
            line.is_some_and(|line| line.contains("failed")),
            "{name}: {watched}"
        );
    }
    let metrics = get(&address(&cellar), "/metrics", "").text();
    let line = format!("saltcellar_returns_failed_total {}\n", expected.len());
    assert!(metrics.contains(&line), "{line}{metrics}");
    let path = cellar.dir.path().join("failures");
    wait_for("the sink", || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let mut seen: Vec<_> = text.lines().map(str::to_owned).collect();
        seen.sort_unstable();
        (seen == expected).then_some(())
    });
}

#[test]
fn the_encoder_of_states_knows_several_functions_and_orchestrations() {
    let config = "sinks:\n  states: {match: [{tag: 'salt/*'}], encoder: states, transport: {file: {path: DIR/states}}}\n";
    let cellar = Cellar::start_configured(config);
    let fire = |tag: String, load: &Json| {
        let event = map(vec![("tag", tag.into()), ("data", value(load))]);
        cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
    };
    for (name, load) in failures()
        .into_iter()
        .filter(|(name, _)| ["map", "list"].contains(name))
    {
        fire(format!("salt/job/{FIRST}/ret/{name}"), &load);
    }
    let end = json!({ "fun": "runner.state.orchestrate", "jid": SECOND, "success": true,
                      "return": { "data": { "m_master": states(false) }, "outputter": "highstate", "retcode": 1 } });
    fire(format!("salt/run/{SECOND}/ret"), &end);
    let path = cellar.dir.path().join("states");
    let rows = wait_for("the sink", || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let rows: Vec<Json> = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        (rows.len() == 3).then_some(rows)
    });
    let minions: Vec<_> = rows
        .iter()
        .map(|row| row["minion"].as_str().unwrap())
        .collect();
    assert_eq!(minions, ["map", "list", "m_master"]);
    for row in &rows {
        assert_eq!(
            (&row["state"], &row["result"]),
            (&json!("file.managed"), &json!(false)),
            "{row}"
        );
    }
}

#[test]
fn an_event_of_a_job_that_is_not_cached_has_no_job() {
    let cellar = Cellar::start();
    for placeholder in ["nocache", "req", ""] {
        let load = json!({ "id": "web1", "jid": placeholder, "fun": "test.ping", "return": true, "retcode": 0 });
        let tag = format!("salt/job/{placeholder}/ret/web1");
        let event = map(vec![("tag", tag.into()), ("data", value(&load))]);
        cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
    }
    let events = document(&cellar, &["events", "list"]);
    assert_eq!(events["events"].as_array().unwrap().len(), 3, "{events}");
    assert_eq!(cellar.ask("get_jids", vec![]), Value::Map(vec![]));
    assert_eq!(
        cellar.ask("get_fun", vec![("fun", "test.ping".into())]),
        Value::Map(vec![])
    );

    // The extension's return of the same startup state: with the jid that it has got for it.
    let jid = cellar.ask("prep_jid", vec![]).as_str().unwrap().to_owned();
    let load = json!({ "id": "web1", "jid": jid, "fun": "test.ping", "fun_args": [], "return": true, "retcode": 0, "success": true });
    cellar.store_return(&load);
    let jobs = document(&cellar, &["jobs", "list"]);
    let rows = jobs["jobs"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "{jobs}");
    assert_eq!(
        (&rows[0]["jid"], &rows[0]["fun"]),
        (&json!(jid), &json!("test.ping"))
    );
    let job = document(&cellar, &["jobs", "show", &jid]);
    assert_eq!(
        (&job["returned"], &job["bus_only"]),
        (&json!(1), &json!(0)),
        "{job}"
    );
}

#[test]
fn a_return_that_came_with_its_load_is_not_missing() {
    // `store_job` with `ext_job_cache`: `save_load` and the event, no `returner`.
    let cellar = Cellar::start();
    let rest =
        json!({ "retcode": 2, "success": false, "tgt": "web1", "tgt_type": "glob", "arg": [] });
    let load = ret(
        FIRST,
        "web1",
        &json!("state.highstate"),
        &json!([]),
        &states(false),
        &rest,
    );
    cellar.ask(
        "save_load",
        vec![("jid", FIRST.into()), ("load", value(&load))],
    );
    let mut fired = load.clone();
    fired["_stamp"] = "2026-11-21T05:47:28.200000".into();
    let tag = format!("salt/job/{FIRST}/ret/web1");
    let event = map(vec![("tag", tag.into()), ("data", value(&fired))]);
    cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
    for with_returner in [false, true] {
        if with_returner {
            cellar.store_return(&fired);
        }
        let job = document(&cellar, &["jobs", "show", FIRST]);
        assert_eq!(
            (
                &job["expected"],
                &job["returned"],
                &job["failed"],
                &job["missing_count"]
            ),
            (&json!(1), &json!(1), &json!(1), &json!(0)),
            "{job}"
        );
        let list = document(&cellar, &["minions", "list"]);
        assert_eq!(list["minions"][0]["missing"], 0, "{list}");
        assert_eq!(list["minions"][0]["highstate"]["failed"], true, "{list}");
        assert_eq!(
            cellar.ask("get_jid", vec![("jid", FIRST.into())])["web1"]["retcode"].as_i64(),
            Some(2)
        );
    }
}

#[test]
fn jobs_without_a_published_load_have_salts_placeholders_or_their_own_minion() {
    let cellar = Cellar::start();
    // `salt-call --return saltcellar test.echo hi`
    let own = json!({ "id": "web1", "jid": FIRST, "fun": "test.echo", "fun_args": ["hi"], "return": "hi", "retcode": 0, "success": true });
    cellar.store_return(&own);
    let jobs = cellar.ask("get_jids", vec![]);
    let of = |jid: &str, key: &str| jobs[jid][key].to_string();
    assert_eq!(of(FIRST, "Target"), "\"web1\"");
    assert_eq!(of(FIRST, "Function"), "\"test.echo\"");
    assert_eq!(of(FIRST, "Arguments"), "[\"hi\"]");

    // A return without a function, as a returner may get it from a script.
    cellar.store_return(&json!({ "id": "web1", "jid": SECOND, "return": 1 }));
    let jobs = cellar.ask("get_jids", vec![]);
    let of = |key: &str| jobs[SECOND][key].to_string();
    assert_eq!(of("Function"), "\"unknown-function\"", "{jobs}");
}

/// A value of this many levels.
fn nested(levels: usize) -> Value {
    (0..levels).fold(Value::from("deep"), |inner, level| match level % 2 {
        0 => Value::Array(vec![inner]),
        _ => map(vec![("k", inner)]),
    })
}

#[test]
fn a_deep_value_of_one_minion_fails_no_view() {
    let cellar = Cellar::start_configured(LISTENER);
    cellar.publish(FIRST, "test.echo", &["web1", "web2"]);
    for (minion, levels) in [("web1", 510), ("web2", 1_000)] {
        let load = map(vec![
            ("cmd", "_return".into()),
            ("id", minion.into()),
            ("jid", FIRST.into()),
            ("fun", "test.echo".into()),
            ("fun_args", Value::Array(vec![nested(200)])),
            ("return", nested(levels)),
            ("retcode", 0.into()),
            ("success", true.into()),
            ("_stamp", "2026-11-21T05:47:28.200000".into()),
        ]);
        cellar.ask("returner", vec![("load", load)]);
    }
    let address = address(&cellar);
    let line = token(&cellar, &["all", "--scope", "read"]);
    for path in [
        format!("/api/v1/jobs/{FIRST}"),
        "/api/v1/jobs".to_owned(),
        "/api/v1/events".to_owned(),
        format!("/jobs/{FIRST}"),
        "/jobs".to_owned(),
        "/events".to_owned(),
        "/events/2".to_owned(),
        "/minions/web1".to_owned(),
    ] {
        let answer = get(&address, &path, &line);
        assert_eq!(
            answer.status,
            200,
            "{path}: {}",
            answer.text().get(..300).unwrap_or_default()
        );
    }
    for request in [format!("/jobs/{FIRST}"), "/jobs".to_owned()] {
        let headers = format!(
            "{line}accept: application/json\r\nx-auth-token: {}\r\n",
            line.trim().rsplit(' ').next().unwrap()
        );
        let answer = get(&address, &request, &headers);
        assert_eq!(
            answer.status,
            200,
            "salt-api {request}: {}",
            answer.text().get(..300).unwrap_or_default()
        );
    }
    // Beyond the levels that Salt's codec writes, the value is cut.
    let job = cellar.ask("get_jid", vec![("jid", FIRST.into())]);
    assert_eq!(job["web1"]["return"], nested(510));
    assert!(
        job["web2"]["return"]
            .to_string()
            .contains("<unreadable: nested deeper")
    );
    assert_eq!(cellar.counter("returns_repaired"), 1);
}

#[test]
fn a_return_that_is_too_large_is_stored_without_its_value() {
    let cellar = Cellar::start_configured("store: {entry_bytes_max: 64 KiB}\n");
    cellar.publish(FIRST, "test.echo", &["web1", "web2"]);
    let rest = json!({ "retcode": 2, "success": false });
    let load = |minion: &str, fun: &str| {
        ret(
            FIRST,
            minion,
            &json!(fun),
            &json!([]),
            &json!("x".repeat(70_000)),
            &rest,
        )
    };
    cellar.store_return(&load("web1", "cmd.run"));
    let fired = load("web2", "cmd.run");
    let tag = format!("salt/job/{FIRST}/ret/web2");
    let event = map(vec![("tag", tag.into()), ("data", value(&fired))]);
    cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
    let job = document(&cellar, &["jobs", "show", FIRST]);
    assert_eq!(
        (&job["returned"], &job["failed"]),
        (&json!(1), &json!(1)),
        "{job}"
    );
    assert_eq!(
        job["returns"][0]["return"],
        "saltcellar: this value was too large to be stored: 70005 bytes"
    );
    assert_eq!(job["not_confirmed"], json!(["web2"]), "{job}");
    assert_eq!(cellar.counter("returns_without_value"), 2);
    // Nothing else is shortened.
    let large = json!({ "cmd": "publish", "tgt": "*", "fun": "test.ping", "arg": ["x".repeat(70_000)], "jid": SECOND });
    let refused = cellar.call(
        "save_load",
        vec![("jid", SECOND.into()), ("load", value(&large))],
    );
    assert!(refused.unwrap_err().to_string().contains("exceed"));
}
