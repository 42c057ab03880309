//! Metrics, hooks, and every operation of the API.

use std::io::{BufRead as _, BufReader, Write as _};

use rmpv::Value;
use saltcellar::base::limits::HTTP_STREAMS_OF_ONE;
use saltcellar::wire::frame::Framing;
use serde_json::Value as Json;

use crate::events_send::{FakeMaster, connected};
use crate::harness::{Cellar, map, wait_for};
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
    // Each process has a random number of its own, and with it the id of a store that it makes.
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

/// The head of a response.
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
            "--tag",
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
        in_body.status == 400 && in_body.text().contains("contains a valid token"),
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
                .contains("the tag of the hook contains a valid token"),
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
