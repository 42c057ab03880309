//! Metrics, hooks, and every operation of the API.

use std::io::{BufRead as _, BufReader, Write as _};

use rmpv::Value;
use saltcellar::base::limits::HTTP_STREAMS_OF_ONE;
use saltcellar::wire::frame::Framing;
use serde_json::{Value as Json, json};

use crate::events_send::{FakeMaster, connected};
use crate::harness::{Asks as _, Cellar, map, wait_for};
use crate::http::{Answer, LISTENER, address, connect, get, local, receive, request, token};

/// Stores events `n` with the tag `test/<n>`.
pub(crate) fn put(cellar: &Cellar, numbers: std::ops::Range<u64>) {
    let mut client = cellar.client();
    for n in numbers {
        let minion = if n % 2 == 0 { "web1" } else { "db1" };
        let data = map(vec![
            ("n", n.into()),
            ("id", minion.into()),
            ("fun", "state.apply".into()),
        ]);
        let event = map(vec![
            ("tag", format!("salt/job/1/ret/{minion}/{n}").into()),
            ("data", data),
        ]);
        client
            .call(
                "event_return",
                map(vec![("events", Value::Array(vec![event]))]),
            )
            .unwrap();
    }
}

/// Stores a job with one return and one minion missing.
fn put_job(cellar: &Cellar, jid: &str, fun: &str) {
    let minions = Value::Array(vec!["web1".into(), "db1".into()]);
    let load = map(vec![
        ("fun", fun.into()),
        ("jid", jid.into()),
        ("tgt", "*".into()),
        ("tgt_type", "glob".into()),
        ("user", "root".into()),
        ("arg", Value::Array(vec![])),
    ]);
    let args = vec![("jid", jid.into()), ("load", load), ("minions", minions)];
    cellar.ask("save_load", args);
    let states = map(vec![(
        "file_|-/a_|-/a_|-managed",
        map(vec![
            ("result", true.into()),
            ("changes", map(vec![("diff", "x".into())])),
            ("comment", "done".into()),
            ("name", "/a".into()),
            ("__id__", "/a".into()),
            ("__sls__", "web".into()),
            ("duration", Value::F64(1.5)),
            ("start_time", "05:47:28.123456".into()),
            ("__run_num__", 0.into()),
        ]),
    )]);
    let load = map(vec![
        ("jid", jid.into()),
        ("id", "web1".into()),
        ("fun", fun.into()),
        ("return", states),
        ("retcode", 0.into()),
        ("success", true.into()),
    ]);
    cellar.ask("returner", vec![("load", load)]);
}

fn ok(answer: &Answer) -> Json {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

#[test]
fn pages_continue_after_a_restart_and_not_in_another_store() {
    let mut cellar = Cellar::start_configured(LISTENER, &[]);
    put(&cellar, 0..5);
    let first = ok(&local(&cellar, "GET", "/api/v1/events?limit=2", b""));
    let cursor = first["next"].as_str().unwrap().to_owned();
    assert!(cellar.terminate());
    cellar.restart();
    let second = ok(&local(
        &cellar,
        "GET",
        &format!("/api/v1/events?limit=2&cursor={cursor}"),
        b"",
    ));
    let numbers = |page: &Json| -> Vec<u64> {
        page["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|event| event["data"]["n"].as_u64().unwrap())
            .collect()
    };
    assert_eq!([numbers(&first), numbers(&second)].concat(), [4, 3, 2, 1]);
    let other = Cellar::start_configured(LISTENER, &[]);
    let refused = local(
        &other,
        "GET",
        &format!("/api/v1/events?cursor={cursor}"),
        b"",
    );
    assert_eq!(
        (refused.status, refused.json()["error"]["code"].as_str()),
        (409, Some("other_store"))
    );
    for (query, expected) in [
        ("where=data.n%20==", "column 10"),
        (
            "where=dat.n%20==%201",
            "column 1: unknown name `dat`; available: data, tag",
        ),
        (
            "where=data.n%20is%20evil",
            "unknown test `evil`; available: boolean",
        ),
        ("limt=3", "unknown parameter limt; known: limit"),
        ("match=%5B%7B%22tagg%22:1%7D%5D", "match[0]"),
        ("cursor=5", "STORE:POSITION"),
    ] {
        let refused = local(&cellar, "GET", &format!("/api/v1/events?{query}"), b"");
        assert_eq!(refused.status, 400, "{query}: {}", refused.text());
        assert!(
            refused.text().contains(expected),
            "{query}: {}",
            refused.text()
        );
    }
}

#[test]
fn a_token_reads_what_its_scope_and_limits_allow() {
    let sink = "sinks:\n  out: {encoder: json, transport: {file: {path: DIR/out.jsonl}}}\n";
    let cellar = Cellar::start_configured(&format!("{LISTENER}{sink}"), &[]);
    let address = address(&cellar);
    put(&cellar, 0..4);
    put_job(&cellar, "20261121054728123456", "state.apply");
    put_job(&cellar, "20261121054729123456", "test.ping");
    let read = token(&cellar, &["reader", "--scope", "read"]);
    let web = token(&cellar, &["web", "--scope", "read", "--minions", "web*"]);
    let write = token(&cellar, &["writer", "--scope", "write"]);
    let admin = token(&cellar, &["admin", "--scope", "admin"]);
    for (method, below, body) in [
        ("PUT", "", "{}"),
        ("POST", "/next", "{}"),
        ("POST", "/ack", "{\"seq\": 1}"),
        ("POST", "/nack", "{\"error\": \"x\"}"),
        ("POST", "/pause", "{}"),
        ("POST", "/resume", "{}"),
        ("POST", "/seek", "{\"to\": \"newest\"}"),
        ("DELETE", "", "{}"),
    ] {
        let of = |name: &str, token: &str| {
            let path = format!("/api/v1/consumers/{name}{below}");
            request(&address, method, &path, token, body.as_bytes())
        };
        let denied = of("out", &write);
        assert!(
            denied.status == 403 && denied.text().contains("needs the right `admin`"),
            "{method} {below}: {}",
            denied.text()
        );
        assert_ne!(of("own", &write).status, 403, "{method} {below}");
        assert_ne!(of("out", &admin).status, 403, "{method} {below}");
    }
    let state = token(
        &cellar,
        &["state", "--scope", "write", "--functions", "state.*"],
    );
    let denied = request(&address, "PUT", "/api/v1/consumers/a", &read, b"{}");
    assert_eq!(denied.status, 403);
    assert!(
        denied
            .text()
            .contains("needs the right `write`, token reader has `read`"),
        "{}",
        denied.text()
    );
    let events = ok(&get(&address, "/api/v1/events", &web));
    let minions: Vec<_> = events["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| &event["minion"])
        .collect();
    assert_eq!(minions, ["web1/2", "web1/0"], "{events}");
    let job = ok(&get(&address, "/api/v1/jobs/20261121054728123456", &web));
    let load = json!({ "fun": "state.apply", "jid": "20261121054728123456", "user": "root", "Minions": ["web1"] });
    assert_eq!(
        (
            &job["missing"],
            &job["load"],
            &job["minions"],
            &job["expected"]
        ),
        (&json!([]), &load, &json!(["web1"]), &json!(1))
    );
    let minions = ok(&get(&address, "/api/v1/minions", &web));
    let ids: Vec<_> = minions["minions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|minion| &minion["id"])
        .collect();
    assert_eq!(ids, ["web1", "web1/0", "web1/2"], "{minions}");
    let diff = ok(&get(
        &address,
        "/api/v1/jobs/20261121054729123456/diff?with=20261121054728123456",
        &web,
    ));
    assert_eq!(diff["b"]["tgt"], Json::Null, "{diff}");
    ok(&get(&address, "/api/v1/minions/web1", &web));
    let jobs = ok(&get(&address, "/api/v1/jobs", &state));
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 1, "{jobs}");
    for (path, token) in [
        ("/api/v1/status", &web),
        ("/api/v1/store", &web),
        ("/api/v1/minions/db1", &web),
        ("/api/v1/minions", &state),
        ("/metrics", &web),
        ("/api/v1/consumers", &state),
    ] {
        let denied = get(&address, path, token);
        assert_eq!(denied.status, 403, "{path}: {}", denied.text());
        assert!(
            denied.text().contains("limited"),
            "{path}: {}",
            denied.text()
        );
    }
    // A job of another function does not exist.
    let unknown = get(&address, "/api/v1/jobs/20261121054729123456", &state);
    assert_eq!(unknown.status, 404, "{}", unknown.text());
    let audit = cellar.log();
    assert!(
        audit.contains("token web") && audit.contains("/api/v1/jobs/20261121054728123456"),
        "{audit}"
    );
}

#[test]
fn an_answer_that_did_not_change_is_not_sent_again_and_large_bodies_are_rejected() {
    let cellar = Cellar::start_configured(LISTENER, &[]);
    let address = address(&cellar);
    put(&cellar, 0..2);
    let admin = token(&cellar, &["a", "--scope", "admin"]);
    let first = get(&address, "/api/v1/events", &admin);
    let tag = first.header("etag").unwrap().to_owned();
    let again = get(
        &address,
        "/api/v1/events",
        &format!("{admin}if-none-match: {tag}\r\n"),
    );
    assert_eq!((again.status, again.body.len()), (304, 0));
    put(&cellar, 2..3);
    assert_eq!(
        get(
            &address,
            "/api/v1/events",
            &format!("{admin}if-none-match: {tag}\r\n")
        )
        .status,
        200
    );
    // A body of 1 GB is rejected by its first 64 KiB.
    let mut stream = connect(&address);
    let head = format!(
        "PUT /api/v1/consumers/a HTTP/1.1\r\nhost: localhost\r\n{admin}content-length: 1000000000\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let _ = stream.write_all(&vec![b' '; 100_000]);
    assert_eq!(receive(&mut stream).status, 413);
    assert_eq!(
        request(&address, "PUT", "/api/v1/consumers/a", &admin, b"[]").status,
        400
    );
    assert_eq!(
        request(
            &address,
            "PUT",
            "/api/v1/consumers/a",
            &admin,
            b"{\"wher\": 1}"
        )
        .status,
        400
    );
}

/// Reads a stream's events until there are `count`.
fn follow(address: &str, path: &str, headers: &str, count: usize) -> Vec<(String, u64)> {
    let mut stream = connect(address);
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n").as_bytes())
        .unwrap();
    let (mut events, mut id) = (Vec::new(), String::new());
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        if let Some(of) = line.strip_prefix("id: ") {
            of.clone_into(&mut id);
        } else if let Some(data) = line.strip_prefix("data: ") {
            let event: Json = serde_json::from_str(data).unwrap();
            assert_eq!(event["id"], id.as_str());
            events.push((id.clone(), event["data"]["n"].as_u64().unwrap()));
        }
        if events.len() == count {
            break;
        }
    }
    events
}

#[test]
fn a_stream_ends_when_its_token_is_revoked() {
    let cellar = Cellar::start_configured(LISTENER, &[]);
    let address = address(&cellar);
    let read = token(&cellar, &["reader", "--scope", "read"]);
    let mut stream = connect(&address);
    let head = format!(
        "GET /api/v1/events/stream HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{read}\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    // The position is fixed once the answer has started.
    assert!(lines.by_ref().any(|line| line == ":"));
    put(&cellar, 0..1);
    assert!(
        lines
            .by_ref()
            .any(|line| line.starts_with("data: ") && line.contains("\"n\":0"))
    );
    cellar.ask("token_revoke", vec![("name", "reader".into())]);
    put(&cellar, 1..2);
    let rest: Vec<_> = lines.collect();
    assert!(
        rest.iter()
            .any(|line| line.contains("the token was revoked")),
        "{rest:?}"
    );
    assert!(
        !rest.iter().any(|line| line.contains("\"n\":1")),
        "{rest:?}"
    );
}

#[test]
fn a_stream_resumes_without_a_gap_or_a_duplicate() {
    let cellar = Cellar::start_configured(LISTENER, &[]);
    let address = address(&cellar);
    let read = token(&cellar, &["reader", "--scope", "read"]);
    put(&cellar, 0..3);
    let path = "/api/v1/events/stream?since=2020-01-01T00:00:00Z";
    let first = follow(&address, path, &read, 2);
    assert_eq!(first.iter().map(|(_, n)| *n).collect::<Vec<_>>(), [0, 1]);
    let resumed = std::thread::scope(|scope| {
        let last = format!("{read}last-event-id: {}\r\n", first[1].0);
        let (address, path) = (address.clone(), path.to_owned());
        let follower = std::thread::Builder::new()
            .spawn_scoped(scope, move || follow(&address, &path, &last, 4))
            .unwrap();
        put(&cellar, 3..6);
        follower.join().unwrap()
    });
    assert_eq!(
        resumed.iter().map(|(_, n)| *n).collect::<Vec<_>>(),
        [2, 3, 4, 5]
    );
    let wrong = get(
        &address,
        path,
        &format!("{read}last-event-id: 0000000000000000:5\r\n"),
    );
    assert_eq!(wrong.status, 409, "{}", wrong.text());
    assert_eq!(
        get(&address, "/api/v1/events/stream?where=data.n%20==", &read).status,
        400
    );
}

#[test]
fn a_stream_that_retention_has_overtaken_begins_with_a_gap() {
    // 1024 entries in sixteen segments: the first ones of twice as many are dropped.
    let classes = "store: {classes: [{name: jobs, keep: {entries: 1024}}]}\n";
    let cellar = Cellar::start_configured(&format!("{LISTENER}{classes}"), &[]);
    let address = address(&cellar);
    let read = token(&cellar, &["reader", "--scope", "read"]);
    let path = "/api/v1/events/stream?since=2020-01-01T00:00:00Z";
    put(&cellar, 0..2);
    let seen = follow(&address, path, &read, 1);
    put(&cellar, 2..2048);
    wait_for("retention", || {
        (cellar.counter("segments_dropped") > 3).then_some(())
    });
    // As a page that was open all the time reconnects: it learns what it has missed, and continues with what is stored.
    let last = format!("{read}last-event-id: {}\r\n", seen[0].0);
    let mut stream = connect(&address);
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{last}\r\n").as_bytes())
        .unwrap();
    let lines = BufReader::new(stream).lines().map(Result::unwrap);
    let mut events = lines.filter_map(|line| {
        line.strip_prefix("data: ")
            .map(|data| serde_json::from_str::<Json>(data).unwrap())
    });
    let gap = events.next().unwrap();
    assert_eq!(
        (&gap["tag"], &gap["source"]),
        (&json!("saltcellar/gap/retention"), &json!("saltcellar")),
        "{gap}"
    );
    let lost = gap["data"]["lost"].as_u64().unwrap();
    let numbers: Vec<u64> = events
        .by_ref()
        .take(100)
        .map(|event| event["data"]["n"].as_u64().unwrap())
        .collect();
    assert!(
        lost > 100 && numbers[0] == lost + 1 && numbers.is_sorted_by(|a, b| a + 1 == *b),
        "{gap} {numbers:?}"
    );
    // The gap's own id is one to continue from.
    let after = format!("{read}last-event-id: {}\r\n", gap["id"].as_str().unwrap());
    let head = raw_head(
        &address,
        &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{after}\r\n"),
    );
    assert!(head.contains("200 OK"), "{head}");
}

#[test]
fn more_slow_readers_than_the_limit_are_answered_503_and_delay_no_one() {
    let cellar = Cellar::start_configured(LISTENER, &[]);
    let address = address(&cellar);
    let read = token(&cellar, &["reader", "--scope", "read"]);
    let path = "/api/v1/events/stream?since=2020-01-01T00:00:00Z";
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{read}\r\n");
    let mut slow = Vec::new();
    for _ in 0..HTTP_STREAMS_OF_ONE {
        let mut stream = connect(&address);
        stream.write_all(head.as_bytes()).unwrap();
        slow.push(stream);
    }
    // None of them reads; one more is refused, and when one has ended, another is accepted.
    let refused = wait_for("the limit of streams", || {
        Some(raw_head(&address, &head)).filter(|answer| answer.contains("503"))
    });
    assert!(refused.contains("retry-after"), "{refused}");
    put(&cellar, 0..50);
    assert_eq!(
        ok(&get(&address, "/api/v1/events?limit=1", &read))["events"][0]["data"]["n"],
        49
    );
    drop(slow);
    wait_for("a free stream", || {
        raw_head(&address, &head).contains("200 OK").then_some(())
    });
}

/// The head of an answer.
fn raw_head(address: &str, head: &str) -> String {
    let mut stream = connect(address);
    stream.write_all(head.as_bytes()).unwrap();
    let lines = BufReader::new(stream).lines().map(Result::unwrap);
    let lines: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
    lines.join("\n")
}

#[test]
fn a_stream_ends_when_the_daemon_stops_and_a_slow_reader_does_not_delay_others() {
    let mut cellar = Cellar::start_configured(LISTENER, &[]);
    let address = address(&cellar);
    let read = token(&cellar, &["reader", "--scope", "read"]);
    let mut slow = Vec::new();
    for _ in 0..40 {
        let mut stream = connect(&address);
        let path = "/api/v1/events/stream?since=2020-01-01T00:00:00Z";
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{read}\r\n").as_bytes())
            .unwrap();
        slow.push(stream);
    }
    put(&cellar, 0..50);
    assert_eq!(
        ok(&get(&address, "/api/v1/events?limit=1", &read))["events"][0]["data"]["n"],
        49
    );
    assert!(cellar.terminate());
}

#[test]
fn a_hook_fires_the_event_of_salts_engine_and_a_loop_ends() {
    let dir = tempfile::tempdir().unwrap();
    let master = FakeMaster::start(dir.path(), Framing::Len32, Framing::Len32);
    std::fs::write(
        dir.path().join("c.yaml"),
        crate::harness::in_dir(LISTENER, dir.path()),
    )
    .unwrap();
    let mut cellar = Cellar::start_in(dir, &["--config", "DIR/c.yaml", "--bus", "DIR"]);
    connected(&cellar);
    let address = address(&cellar);
    let write = token(
        &cellar,
        &[
            "gitlab",
            "--scope",
            "write",
            "--tags",
            "salt/engines/hook/gitlab/*",
        ],
    );
    let headers = format!("{write}content-type: application/json\r\nx-gitlab-event: Push\r\n");
    let fired = request(
        &address,
        "POST",
        "/hook/gitlab/push",
        &headers,
        b"{\"ref\": 1}",
    );
    assert_eq!(fired.status, 202, "{}", fired.text());
    let (tag, data) = master.next();
    assert_eq!(tag, "salt/engines/hook/gitlab/push");
    assert_eq!(data["body"], Value::Binary(b"{\"ref\": 1}".to_vec()));
    assert_eq!(data["headers"]["X-Gitlab-Event"].as_str(), Some("Push"));
    assert!(
        data["_stamp"].is_str() && !data.to_string().contains("sct_"),
        "{data}"
    );
    assert_eq!(
        request(&address, "POST", "/hook/other", &write, b"").status,
        403,
        "limited by tags"
    );
    // Wherever the token is, the event does not have it; a query is ignored, as by Salt's engine.
    let secret = write.trim().rsplit(' ').next().unwrap().to_owned();
    let of_salt = format!("x-auth-token: {secret}\r\nreferer: http://h/?t={secret}\r\n");
    let path = format!("/hook/gitlab/push?secret={secret}&x=%zz");
    let fired = request(&address, "POST", &path, &of_salt, b"{}");
    assert_eq!(fired.status, 202, "{}", fired.text());
    let (_, data) = master.next();
    assert!(!data.to_string().contains("sct_"), "{data}");
    let in_body = format!("{{\"token\": \"{secret}\"}}");
    let in_body = request(
        &address,
        "POST",
        "/hook/gitlab/push",
        &write,
        in_body.as_bytes(),
    );
    assert!(
        in_body.status == 400 && in_body.text().contains("has a valid token"),
        "{}",
        in_body.text()
    );
    let in_tag = request(
        &address,
        "POST",
        &format!("/hook/gitlab/{secret}"),
        &write,
        b"{}",
    );
    assert!(
        in_tag.status == 400
            && in_tag
                .text()
                .contains("the tag of the hook has a valid token"),
        "{}",
        in_tag.text()
    );
    assert!(!cellar.log().contains(&secret), "{}", cellar.log());
    for path in [
        "/hook/gitlab/ci%0A",
        "/hook/gitlab/a%0A%0Ab",
        "/hook/gitlab/%1b%5b2J",
    ] {
        let refused = request(&address, "POST", path, &write, b"");
        assert!(
            refused.status == 400 && refused.text().contains("without control characters"),
            "{path}: {}",
            refused.text()
        );
    }
    let read = token(&cellar, &["reader", "--scope", "read"]);
    assert_eq!(
        request(&address, "POST", "/hook/gitlab/a", &read, b"").status,
        403
    );
    assert_eq!(
        request(&address, "POST", "/hook/gitlab/a", "", b"").status,
        401
    );
    assert_eq!(
        request(
            &address,
            "POST",
            "/hook/gitlab/a",
            &write,
            &vec![b'x'; 2_000_000]
        )
        .status,
        413
    );
    let looped = request(
        &address,
        "POST",
        "/hook/gitlab/a",
        &format!("{write}saltcellar-hops: 4\r\n"),
        b"",
    );
    assert_eq!(
        (looped.status, cellar.counter("hook_loops")),
        (508, 1),
        "{}",
        looped.text()
    );
    // A sink that delivers to the hook itself: each event passes through the hook four times.
    let text = format!(
        "http: {{listen: '{address}', unix: DIR/http.sock, hook_headers: [X-GitLab-Event, authorization, saltcellar-hops]}}\nsinks:\n  back:\n    match: [{{tag: 'salt/engines/hook/gitlab/loop'}}]\n    encoder: json\n    \
         transport: {{http: {{url: 'http://{address}/hook/gitlab/loop', headers: {{authorization: '{}'}}}}}}\n",
        write.trim().strip_prefix("authorization: ").unwrap()
    );
    assert!(cellar.terminate());
    std::fs::write(
        cellar.dir.path().join("c.yaml"),
        crate::harness::in_dir(&text, cellar.dir.path()),
    )
    .unwrap();
    cellar.restart();
    connected(&cellar);
    wait_for("the listener", || {
        (crate::http::address(&cellar) == address).then_some(())
    });
    assert_eq!(
        request(&address, "POST", "/hook/gitlab/loop", &write, b"").status,
        202
    );
    wait_for("the end of the loop", || {
        (cellar.counter("hook_loops") > 0).then_some(())
    });
    let hops: Vec<_> = (0..4)
        .map(|_| {
            master.next().1["headers"]["Saltcellar-Hops"]
                .as_str()
                .map(str::to_owned)
        })
        .collect();
    assert_eq!(
        hops,
        [
            None,
            Some("1".to_owned()),
            Some("2".to_owned()),
            Some("3".to_owned())
        ]
    );
    assert_eq!(cellar.counter("hook_events"), 4);

    // Of the headers only those that the configuration lists, and no credentials.
    let headers = format!("{write}x-gitlab-event: Push\r\nx-other: 1\r\n");
    let fired = request(&address, "POST", "/hook/gitlab/push", &headers, b"{}");
    assert_eq!(fired.status, 202, "{}", fired.text());
    let (_, data) = master.next();
    assert_eq!(
        data["headers"],
        map(vec![("X-Gitlab-Event", "Push".into())]),
        "{data}"
    );
}
