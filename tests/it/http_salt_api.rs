//! The part of salt-api that SaltGUI's job and event pages use: its requests, replayed (`saltgui/static/scripts/Api.js`).

use std::io::{BufRead as _, BufReader, Write as _};

use rmpv::Value;
use serde_json::{Value as Json, json};

use crate::harness::{Cellar, map};
use crate::http::{Answer, LISTENER, address, connect, get, request, token};

const JID: &str = "20261121054728123456";

fn put_job(cellar: &Cellar) {
    let load = json!({
        "fun": "state.apply", "jid": JID, "tgt": "*", "tgt_type": "glob", "user": "root", "arg": ["web"], "cmd": "publish",
    });
    let load = saltcellar::wire::msgpack::json::from_json(&load).unwrap();
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
            saltcellar::wire::msgpack::json::from_json(&load).unwrap(),
        )],
    );
}

/// A request as SaltGUI makes it: JSON as text, from a page of the same address.
fn post(address: &str, path: &str, token: &str, body: &Json) -> Answer {
    let headers = format!(
        "accept: application/json\r\ncache-control: no-cache\r\nx-auth-token: {token}\r\norigin: http://{address}\r\n\
         content-type: text/plain;charset=UTF-8\r\nsec-fetch-site: same-origin\r\n"
    );
    request(address, "POST", path, &headers, body.to_string().as_bytes())
}

fn secret(line: &str) -> String {
    line.trim().rsplit(' ').next().unwrap().to_owned()
}

/// The answer to one chunk.
fn run(address: &str, token: &str, chunk: &Json) -> Json {
    let answer = post(address, "/", token, chunk);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["return"][0].clone()
}

#[test]
fn the_requests_of_saltgui_are_answered() {
    let cellar = Cellar::start_configured(LISTENER, &[]);
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
fn follow(cellar: &Cellar, address: &str, headers: &str) -> Vec<String> {
    let mut stream = connect(address);
    let head = format!(
        "GET /events HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "HTTP/1.1 200 OK");
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
    let cellar = Cellar::start_configured(LISTENER, &[]);
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
        &["web", "--scope", "read", "--minions", "web*"],
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
        &["other", "--scope", "read", "--minions", "app*"],
    ));
    assert_eq!(run(&address, &other, &list), json!({}));
    let tags = secret(&token(&cellar, &["tags", "--scope", "read", "--tags", "x"]));
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
    // A token in the address counts as none, and the log does not have it.
    let in_address = get(&address, &format!("/events?token={all}"), stream);
    assert_eq!(in_address.status, 401);
    assert!(!cellar.log().contains(&all), "{}", cellar.log());
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
