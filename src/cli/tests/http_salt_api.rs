//! The part of salt-api that SaltGUI's job and event pages use: its requests, replayed (`saltgui/static/scripts/Api.js`).

use std::io::{BufRead as _, BufReader};

use crate::base::limits::{LIST_BYTES_MAX, SALT_API_BYTES, SALT_API_CHUNKS};
use crate::cli::in_process::{LISTENER, token};
use crate::daemon::in_process::{Answer, Cellar, Http, address, get, map, request, stream};
use crate::testkit::entries::Asks as _;
use crate::wire::msgpack::json::from_json;
use rmpv::Value;
use serde_json::{Value as Json, json};

const JID: &str = "20261121054728123456";

fn put_job(cellar: &Cellar) {
    let load = json!({
        "fun": "state.apply", "jid": JID, "tgt": "*", "tgt_type": "glob", "user": "root", "arg": ["web"], "cmd": "publish",
    });
    let load = crate::wire::msgpack::json::from_json(&load).unwrap();
    let minions = Value::Array(vec!["web1".into(), "db1".into()]);
    cellar.ask(
        "save_load",
        vec![("jid", JID.into()), ("load", load), ("minions", minions)],
    );
    let load = json!({
        "jid": JID, "id": "web1", "fun": "state.apply", "retcode": 2, "success": false, "out": "highstate", "return": ["Rendering failed"],
    });
    cellar.ask(
        "returner",
        vec![(
            "load",
            crate::wire::msgpack::json::from_json(&load).unwrap(),
        )],
    );
}

/// A request as SaltGUI makes it: JSON as text, from a page of the same address.
fn post(address: &Http, path: &str, token: &str, body: &Json) -> Answer {
    let headers = format!(
        "accept: application/json\r\ncache-control: no-cache\r\nx-auth-token: {token}\r\norigin: http://{address}\r\n\
         content-type: text/plain;charset=UTF-8\r\nsec-fetch-site: same-origin\r\n"
    );
    request(address, "POST", path, &headers, body.to_string().as_bytes())
}

fn secret(line: &str) -> String {
    line.trim().rsplit(' ').next().unwrap().to_owned()
}

/// The response to one chunk.
fn run(address: &Http, token: &str, chunk: &Json) -> Json {
    let answer = post(address, "/", token, chunk);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["return"][0].clone()
}

/// A job whose return has keys that are no text, and one without a load.
fn put_more_jobs(cellar: &Cellar) {
    let load = json!({
        "fun": "test.kwarg", "jid": MORE[0], "tgt": ["web1", "db1"], "tgt_type": "list", "user": "anna", "arg": [],
        "metadata": { "ticket": 7, "team": "a" }, "cmd": "publish",
    });
    let load = from_json(&load).unwrap();
    let minions = Value::Array(vec!["web1".into(), "db1".into()]);
    cellar.ask(
        "save_load",
        vec![
            ("jid", MORE[0].into()),
            ("load", load),
            ("minions", minions),
        ],
    );
    for (jid, id) in [(MORE[0], "web1"), (MORE[1], "db1")] {
        let value = json!({ "$1": "int", "$$bin": "text", "text": [{ "$null": 1 }] });
        let load = json!({ "jid": jid, "id": id, "return": value, "retcode": 0 });
        cellar.ask("returner", vec![("load", from_json(&load).unwrap())]);
    }
}

const MORE: [&str; 2] = ["20261121060000123456", "20261121070000123456"];

#[test]
fn every_parameter_is_applied_or_rejected_by_its_name() {
    let cellar = Cellar::start_configured(LISTENER);
    let address = address(&cellar);
    put_job(&cellar);
    put_more_jobs(&cellar);
    let token = secret(&token(&cellar, &["gui", "--scope", "read"]));
    let jids = |more: Json| {
        let mut chunk = json!({ "client": "runner", "fun": "jobs.list_jobs" });
        chunk
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let list = run(&address, &token, &chunk);
        let mut jids: Vec<_> = list.as_object().unwrap().keys().cloned().collect();
        jids.sort_unstable();
        jids
    };
    assert_eq!(jids(json!({})), [JID, MORE[0], MORE[1]]);
    for (filter, expected) in [
        (json!({ "search_target": "db*" }), vec![MORE[0], MORE[1]]),
        (
            json!({ "search_target": ["db1", "\\*"] }),
            vec![MORE[0], MORE[1]],
        ),
        (json!({ "search_target": "nothing,web1" }), vec![MORE[0]]),
        (
            json!({ "search_function": "state.*,test.*" }),
            vec![JID, MORE[0]],
        ),
        (
            json!({ "search_metadata": { "ticket": 7, "other": 1 } }),
            vec![MORE[0]],
        ),
        (json!({ "search_metadata": { "ticket": "7" } }), vec![]),
        (
            json!({ "start_time": "2026, Nov 21 05:50" }),
            vec![MORE[0], MORE[1]],
        ),
        (
            json!({ "end_time": "2026-11-21T06:00:00.123456" }),
            vec![JID, MORE[0]],
        ),
        (
            json!({ "kwarg": { "start_time": "2026-11-21 05:50:00", "end_time": "2026-11-21 06:50" } }),
            vec![MORE[0]],
        ),
        (
            json!({ "arg": [null, null, null, "test.*"] }),
            vec![MORE[0]],
        ),
    ] {
        assert_eq!(jids(filter.clone()), expected, "{filter}");
    }
    let ask = |chunk: Json| post(&address, "/run", &token, &chunk);
    let wrapped = ask(
        json!({ "client": "runner", "fun": "jobs.list_jobs", "outputter": "nested", "search_target": "none" }),
    );
    assert_eq!(
        wrapped.json()["return"][0],
        json!({ "outputter": "nested", "data": {} })
    );
    for (fun, more, named) in [
        (
            "jobs.list_jobs",
            json!({ "search_user": "root" }),
            "search_user",
        ),
        (
            "jobs.list_jobs",
            json!({ "start_time": "yesterday" }),
            "start_time",
        ),
        (
            "jobs.list_jobs",
            json!({ "search_metadata": "x" }),
            "search_metadata",
        ),
        (
            "jobs.list_jobs",
            json!({ "display_progress": true }),
            "display_progress",
        ),
        (
            "jobs.list_jobs",
            json!({ "ext_source": "mysql" }),
            "ext_source",
        ),
        (
            "jobs.list_jobs",
            json!({ "search_target": "a", "kwarg": { "search_target": "b" } }),
            "search_target",
        ),
        (
            "jobs.lookup_jid",
            json!({ "jid": JID, "missing": "maybe" }),
            "missing",
        ),
        ("jobs.lookup_jid", json!({ "jid": [JID] }), "jid"),
        ("jobs.active", json!({ "arg": [false, 1] }), "arg"),
    ] {
        let mut chunk = json!({ "client": "runner", "fun": fun });
        chunk
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let answer = ask(chunk);
        assert!(
            answer.status == 400 && answer.text().contains(&format!("`{named}`")),
            "{named}: {} {}",
            answer.status,
            answer.text()
        );
    }
}

#[test]
fn a_jid_is_a_number_or_text_and_values_are_as_salt_writes_them() {
    let cellar = Cellar::start_configured(LISTENER);
    let address = address(&cellar);
    put_job(&cellar);
    put_more_jobs(&cellar);
    let token = secret(&token(&cellar, &["gui", "--scope", "read"]));
    let value = json!({ "1": "int", "$bin": "text", "text": [{ "null": 1 }] });
    // Pepper sends jids as numbers, of more than 64 bits.
    for (jid, by) in [
        (format!("\"{}\"", MORE[0]), "text"),
        (MORE[0].to_owned(), "a number"),
    ] {
        let body = format!(
            "[{{\"client\": \"runner\", \"fun\": \"jobs.lookup_jid\", \"kwarg\": {{\"jid\": {jid}}}}}]"
        );
        let headers = format!("x-auth-token: {token}\r\n");
        let answer = request(&address, "POST", "/", &headers, body.as_bytes());
        assert_eq!(answer.json()["return"][0], json!({ "web1": value }), "{by}");
    }
    let lookup = |more: Json| {
        let mut chunk = json!({ "client": "runner", "fun": "jobs.lookup_jid", "jid": MORE[0] });
        chunk
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        run(&address, &token, &chunk)
    };
    let missing = json!({ "db1": "Minion did not return" });
    assert_eq!(
        lookup(json!({ "missing": true, "returned": false })),
        missing
    );
    let both = json!({ "web1": value, "db1": "Minion did not return" });
    assert_eq!(lookup(json!({ "missing": "True" })), both);
    assert_eq!(lookup(json!({ "arg": [], "returned": false })), json!({}));
    let job = |jid: &str| {
        run(
            &address,
            &token,
            &json!({ "client": "runner", "fun": "jobs.list_job", "jid": jid }),
        )
    };
    assert_eq!(
        job(MORE[0])["Metadata"],
        json!({ "ticket": 7, "team": "a" })
    );
    // Of a job without a load, Salt's defaults.
    let unknown = job(MORE[1]);
    let shown = ["Function", "Target", "Target-type", "User"].map(|name| unknown[name].clone());
    assert_eq!(
        shown,
        ["unknown-function", "db1", "list", "root"],
        "{unknown}"
    );
    let none = job("20200101000000000000");
    assert_eq!(none["StartTime"], "2020, Jan 01 00:00:00.000000", "{none}");
}

#[test]
fn active_jobs_have_all_returns_however_many_pages_they_take() {
    let cellar = Cellar::start_configured(LISTENER);
    let address = address(&cellar);
    let token = secret(&token(&cellar, &["gui", "--scope", "read"]));
    // Of now: older jobs are not active.
    let jid = cellar.ask("prep_jid", vec![]);
    let jid = jid.as_str().unwrap();
    let load = json!({ "fun": "test.echo", "jid": jid, "tgt": "*", "tgt_type": "glob", "user": "root", "arg": [], "cmd": "publish" });
    let minions = Value::Array(["a", "b", "c", "d"].map(Value::from).to_vec());
    cellar.ask(
        "save_load",
        vec![
            ("jid", jid.into()),
            ("load", from_json(&load).unwrap()),
            ("minions", minions),
        ],
    );
    // A page ends behind the second one.
    let large = "x".repeat(LIST_BYTES_MAX / 2 + 1);
    for id in ["a", "b", "c"] {
        let load = map(vec![
            ("jid", jid.into()),
            ("id", id.into()),
            ("fun", "test.echo".into()),
            ("return", large.as_str().into()),
            ("retcode", 0.into()),
        ]);
        cellar.ask("returner", vec![("load", load)]);
    }
    let active = run(
        &address,
        &token,
        &json!({ "client": "runner", "fun": "jobs.active" }),
    );
    assert_eq!(active[jid]["Returned"], json!(["a", "b", "c"]));
    assert_eq!(active[jid]["Running"], json!([{ "d": 0 }]));

    // All of them are one response, and two such responses are more than one request may have.
    let chunk = json!({ "client": "runner", "fun": "jobs.list_job", "jid": jid });
    let job = run(&address, &token, &chunk);
    assert_eq!(job["Result"].as_object().unwrap().len(), 3);
    let answer = post(&address, "/", &token, &json!([chunk, chunk]));
    assert_eq!(answer.status, 413, "{} bytes", answer.body.len());
    let why = answer.text();
    assert!(why.contains("send this chunk alone"), "{why}");

    // A single job can be too large as well, counted with its first page.
    let load = map(vec![
        ("jid", jid.into()),
        ("id", "d".into()),
        ("fun", "test.echo".into()),
        ("return", large.as_str().into()),
        ("retcode", 0.into()),
    ]);
    cellar.ask("returner", vec![("load", load)]);
    assert_eq!(post(&address, "/", &token, &chunk).status, 413);
}

#[test]
fn the_chunks_of_a_request_have_one_limit_of_bytes_together() {
    let cellar = Cellar::start_configured(LISTENER);
    let address = address(&cellar);
    put_job(&cellar);
    let load = json!({
        "jid": JID, "id": "db1", "fun": "state.apply", "retcode": 0, "return": "x".repeat(6 << 20),
    });
    cellar.ask("returner", vec![("load", from_json(&load).unwrap())]);
    let token = secret(&token(&cellar, &["gui", "--scope", "read"]));
    // Each of them is small enough.
    let chunk = json!({ "client": "runner", "fun": "jobs.lookup_jid", "jid": JID });
    let answers = [1, 2, SALT_API_CHUNKS].map(|count| {
        let chunks = Json::Array(vec![chunk.clone(); count]);
        post(&address, "/", &token, &chunks)
    });
    assert_eq!(
        answers.each_ref().map(|answer| answer.status),
        [200, 200, 413]
    );
    let why = answers[2].text();
    assert!(why.contains("send this chunk alone"), "{why}");
    assert!(answers[1].body.len() > 12 << 20);
    const { assert!(2 * (7 << 20) < SALT_API_BYTES && SALT_API_CHUNKS * (6 << 20) > SALT_API_BYTES) };
}

#[test]
fn the_requests_of_saltgui_are_answered() {
    let cellar = Cellar::start_configured(LISTENER);
    let address = address(&cellar);
    put_job(&cellar);
    let token = secret(&token(&cellar, &["gui", "--scope", "read"]));
    let login = |password: &str, old: &str| {
        post(
            &address,
            "/login",
            old,
            &json!({ "eauth": "pam", "password": password, "username": "anna" }),
        )
    };
    assert_eq!(login("sct_wrong", "").status, 401);
    // An old token in the header does not prevent it.
    let signed = login(&token, "sct_old");
    let session = &signed.json()["return"][0];
    assert_eq!(
        (
            signed.status,
            session["token"].as_str(),
            session["eauth"].as_str()
        ),
        (200, Some(&*token), Some("pam"))
    );
    assert!(
        session["expire"].as_i64() > session["start"].as_i64() && session["perms"][0].is_string(),
        "{session}"
    );
    let cookie = signed
        .header("set-cookie")
        .unwrap()
        .split(';')
        .next()
        .unwrap()
        .to_owned();
    let described = json!({
        "Function": "state.apply", "Arguments": ["web"], "Target": "*", "Target-type": "glob", "User": "root",
        "StartTime": "2026, Nov 21 05:47:28.123456",
    });
    let list = |more: &Json| {
        let mut chunk = json!({ "client": "runner", "fun": "jobs.list_jobs" });
        chunk
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        run(&address, &token, &chunk)
    };
    assert_eq!(list(&json!({})), json!({ JID: described }));
    assert_eq!(
        list(&json!({ "search_function": "state.*" })),
        json!({ JID: described })
    );
    assert_eq!(list(&json!({ "search_function": "test.*" })), json!({}));
    let job = run(
        &address,
        &token,
        &json!({ "client": "runner", "fun": "jobs.list_job", "jid": JID }),
    );
    assert_eq!(
        (&job["jid"], &job["Function"], &job["StartTime"]),
        (&json!(JID), &described["Function"], &described["StartTime"])
    );
    assert_eq!(job["Minions"], json!(["db1", "web1"]));
    let result = json!({ "web1": { "return": ["Rendering failed"], "retcode": 2, "success": false, "out": "highstate" } });
    assert_eq!(job["Result"], result);
    let unknown = run(
        &address,
        &token,
        &json!({ "client": "runner", "fun": "jobs.list_job", "jid": "20200101000000000000" }),
    );
    assert!(unknown["Error"].is_string(), "{unknown}");
    // As `salt-run` answers; arguments by position, in a list of chunks.
    let returns = post(
        &address,
        "/run",
        &token,
        &json!([{ "client": "runner", "fun": "jobs.lookup_jid", "arg": [JID] }]),
    );
    let expected = json!({ "return": [{ "outputter": "highstate", "data": { "web1": ["Rendering failed"] } }] });
    assert_eq!(returns.json(), expected);
    assert_eq!(
        run(
            &address,
            &token,
            &json!({ "client": "runner", "fun": "jobs.active" })
        ),
        json!({}),
        "it is too old"
    );
    assert_eq!(
        follow(&cellar, &address, &format!("cookie: {cookie}\r\n")),
        ["test/a", "test/b"]
    );
    let out = post(&address, "/logout", &token, &json!({}));
    assert!(
        out.status == 200 && out.header("set-cookie").unwrap().contains("Max-Age=0"),
        "{}",
        out.text()
    );
}

/// The tags of two events that `EventSource` receives.
fn follow(cellar: &Cellar, address: &Http, headers: &str) -> Vec<String> {
    let headers = format!("accept: text/event-stream\n{headers}");
    let stream = stream(address, "/events", &headers);
    assert_eq!(stream.answer.status, 200);
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    // The first piece of the stream: its position is fixed.
    assert!(lines.any(|line| line == ":"));
    for tag in ["test/a", "test/b"] {
        let event = map(vec![
            ("tag", tag.into()),
            ("data", map(vec![("n", 1.into())])),
        ]);
        cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
    }
    let mut tags = Vec::new();
    while tags.len() < 2 {
        let line = lines.next().unwrap();
        if let Some(tag) = line.strip_prefix("tag: ") {
            let data: Json =
                serde_json::from_str(lines.next().unwrap().strip_prefix("data: ").unwrap())
                    .unwrap();
            assert_eq!(data, json!({ "tag": tag, "data": { "n": 1 } }));
            tags.push(tag.to_owned());
        }
    }
    tags
}

#[test]
fn other_clients_functions_and_peers_are_refused() {
    let cellar = Cellar::start_configured(LISTENER);
    let address = address(&cellar);
    put_job(&cellar);
    let all = secret(&token(&cellar, &["all", "--scope", "admin"]));
    for (chunk, expected) in [
        (
            json!({ "client": "local", "fun": "test.ping", "tgt": "*" }),
            "client `local` is not supported",
        ),
        (
            json!({ "client": "wheel", "fun": "config.values" }),
            "client `wheel` is not supported",
        ),
        (
            json!({ "client": "runner", "fun": "manage.versions" }),
            "`manage.versions` is not supported, only jobs.list_jobs",
        ),
        (
            json!({ "client": "runner", "fun": "jobs.list_job" }),
            "needs `jid`",
        ),
        (json!({}), "client `` is not supported"),
    ] {
        let refused = post(&address, "/", &all, &chunk);
        assert!(
            refused.status == 400 && refused.text().contains(expected),
            "{chunk}: {}",
            refused.text()
        );
    }
    assert_eq!(
        post(&address, "/", &all, &json!(vec![json!({}); 17])).status,
        400
    );
    let list = json!({ "client": "runner", "fun": "jobs.list_jobs" });
    for path in ["/", "/run"] {
        for token in ["", "sct_wrong"] {
            assert_eq!(
                post(&address, path, token, &list).status,
                401,
                "{path} {token}"
            );
        }
    }
    // The limits of a token apply.
    let web = secret(&token(
        &cellar,
        &["web", "--scope", "read", "--minion", "web*"],
    ));
    let listed = &run(&address, &web, &list)[JID];
    // Target and arguments name other minions.
    assert_eq!(
        (
            &listed["Function"],
            &listed["Target"],
            &listed["Target-type"],
            &listed["Arguments"]
        ),
        (
            &json!("state.apply"),
            &json!("unknown-target"),
            &json!("list"),
            &json!([])
        ),
        "{listed}"
    );
    let other = secret(&token(
        &cellar,
        &["other", "--scope", "read", "--minion", "app*"],
    ));
    assert_eq!(run(&address, &other, &list), json!({}));
    let tags = secret(&token(&cellar, &["tags", "--scope", "read", "--tag", "x"]));
    let refused = post(&address, "/", &tags, &list);
    assert!(
        refused.status == 403 && refused.text().contains("limited to tags x"),
        "{}",
        refused.text()
    );
    let job = run(
        &address,
        &web,
        &json!({ "client": "runner", "fun": "jobs.list_job", "jid": JID }),
    );
    assert_eq!(
        (&job["Minions"], &job["Target"]),
        (&json!(["web1"]), &json!("unknown-target"))
    );
    let stream = "accept: text/event-stream\r\n";
    assert_eq!(get(&address, "/events", stream).status, 401);
    // A page of another site has no way in, with the cookie or without.
    let login = json!({ "password": all }).to_string();
    let signed = request(&address, "POST", "/login", "", login.as_bytes());
    let cookie = signed
        .header("set-cookie")
        .unwrap()
        .split(';')
        .next()
        .unwrap();
    let foreign = format!("cookie: {cookie}\r\norigin: http://evil.example\r\n");
    assert_eq!(
        request(&address, "POST", "/", &foreign, list.to_string().as_bytes()).status,
        403
    );
    assert_eq!(
        request(&address, "POST", "/login", &foreign, b"password=x").status,
        403
    );
    // A token in the address counts as none.
    let in_address = get(&address, &format!("/events?token={all}"), stream);
    assert_eq!(in_address.status, 401);
    let unproven = format!("cookie: {cookie}\r\n");
    assert_eq!(
        request(
            &address,
            "POST",
            "/",
            &unproven,
            list.to_string().as_bytes()
        )
        .status,
        401
    );
}
