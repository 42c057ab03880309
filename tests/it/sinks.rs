//! Sinks of a running daemon: delivery over kills, failing destinations, reloads, the command line, secrets.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rmpv::Value;
use rustix::process::{Pid, Signal, kill_process};
use saltcellar_testkit::Random;
use serde_json::Value as Json;

use crate::fake_daemon::{program, stderr, stdout};
use crate::harness::{Asks as _, Cellar, in_dir, map, wait_for};
use crate::http::LISTENER;

/// Stores events with these numbers and the tag `test/<n>`, in one call.
fn put(cellar: &Cellar, numbers: std::ops::Range<u64>) {
    let event = |n: u64| {
        let data = map(vec![
            ("n", n.into()),
            ("id", format!("web{}", n % 3).into()),
            ("password", "pa55".into()),
        ]);
        map(vec![("tag", format!("test/{n}").into()), ("data", data)])
    };
    let events = Value::Array(numbers.map(event).collect());
    cellar
        .client()
        .call("event_return", map(vec![("events", events)]))
        .unwrap();
}

/// The lines of a file, as JSON, without one that is being written.
fn lines(path: &Path) -> Vec<Json> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.rsplit_once('\n')
        .map_or("", |(whole, _)| whole)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

fn numbers(lines: &[Json]) -> Vec<u64> {
    lines
        .iter()
        .filter_map(|line| line["data"]["n"].as_u64())
        .collect()
}

fn verb(cellar: &Cellar, args: &[&str]) -> Output {
    program()
        .args(args)
        .arg("--socket")
        .arg(cellar.socket())
        .output()
        .unwrap()
}

/// Standard output of a verb that must succeed.
fn done(cellar: &Cellar, args: &[&str]) -> String {
    let output = verb(cellar, args);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{args:?}: {}",
        stderr(&output)
    );
    stdout(&output)
}

fn sink(cellar: &Cellar, name: &str) -> Json {
    let text = done(cellar, &["sinks", "show", name, "--output", "json"]);
    serde_json::from_str(&text).unwrap()
}

/// Replaces the configuration and reloads it.
fn reload(cellar: &Cellar, yaml: &str) {
    std::fs::write(
        cellar.dir.path().join("c.yaml"),
        in_dir(yaml, cellar.dir.path()),
    )
    .unwrap();
    let pid = Pid::from_raw(i32::try_from(cellar.process.0.id()).unwrap()).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
}

/// An HTTP service that answers the `n`-th request by `answer(n, body)`; an empty response closes the connection.
pub(crate) fn service(
    answer: impl Fn(usize, &str) -> String + Send + Sync + 'static,
) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let count = Arc::new(AtomicUsize::new(0));
    let (requests, answer) = (count.clone(), Arc::new(answer));
    let serve = move || {
        for stream in listener.incoming() {
            let (requests, answer) = (requests.clone(), answer.clone());
            let talk =
                move || while converse(stream.as_ref().unwrap(), &requests, &*answer).is_some() {};
            std::thread::Builder::new()
                .name("service".to_owned())
                .spawn(talk)
                .unwrap();
        }
    };
    std::thread::Builder::new()
        .name("listener".to_owned())
        .spawn(serve)
        .unwrap();
    (port, count)
}

/// Reads one request and answers it; `None` at the end of the connection.
fn converse(
    stream: &TcpStream,
    requests: &AtomicUsize,
    answer: &dyn Fn(usize, &str) -> String,
) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let text = answer(
        requests.fetch_add(1, Ordering::SeqCst),
        &String::from_utf8_lossy(&body),
    );
    let mut stream = stream;
    stream.write_all(text.as_bytes()).ok()?;
    (!text.is_empty()).then_some(())
}

pub(crate) fn status(status: &str, headers: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: 0\r\n\r\n")
}

const FILE: &str = "sinks:\n  audit:\n    match: [{tag: 'test/*'}]\n    encoder: json\n    transport: {file: {path: DIR/out.jsonl}}\n";

#[test]
fn kills_lose_no_event_and_repeat_only_those_of_a_batch_with_the_same_id() {
    let mut cellar = Cellar::start_configured(FILE, &[]);
    let out = cellar.dir.path().join("out.jsonl");
    let mut random = Random::new(7);
    for round in 0..8_u64 {
        for part in 0..5 {
            let first = round * 100 + part * 20;
            put(&cellar, first..first + 20);
        }
        let wanted = usize::try_from(random.below(100) + round * 100).unwrap();
        wait_for("some lines", || (lines_of(&out) >= wanted).then_some(()));
        cellar.kill();
        cellar.restart();
    }
    wait_for("all lines", || {
        (numbers(&lines(&out)).last() == Some(&799)).then_some(())
    });
    assert!(
        std::fs::read_to_string(&out).unwrap().ends_with('\n'),
        "no line was left incomplete"
    );
    let lines = lines(&out);
    let mut found = numbers(&lines);
    found.sort_unstable();
    found.dedup();
    assert_eq!(found, (0..800).collect::<Vec<_>>());
    let mut ids = HashMap::new();
    for line in &lines {
        let id = ids
            .entry(line["data"]["n"].as_u64())
            .or_insert_with(|| line["id"].clone());
        assert_eq!(*id, line["id"], "the id of an event is stable");
    }
    assert_eq!(lines[0]["tag"], "test/0");
    assert_eq!(lines[0]["minion"], "web0");
}

fn lines_of(path: &Path) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.matches('\n').count())
}

#[test]
fn a_destination_that_fails_in_every_way_gets_each_event() {
    // 429 with a pause, an error, a closed connection, an incomplete answer; then 413 for more than two items.
    let (port, requests) = service(|n, body| match n {
        0 => status("429 Too Many Requests", "retry-after: 1\r\n"),
        1 => status("500 Internal Server Error", ""),
        2 => String::new(),
        3 => "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf".to_owned(),
        _ if body.matches("\"n\":").count() > 2 => status("413 Payload Too Large", ""),
        _ if body.contains("\"n\":5") => status("400 Bad Request", ""),
        _ => status("204 No Content", ""),
    });
    let yaml = format!(
        "sinks:\n  hook:\n    match: [{{tag: 'test/*'}}]\n    encoder: json\n    batch: {{count: 8, time: 0s}}\n    \
         retry: {{backoff: 1s, max: 1s}}\n    transport: {{http: {{url: 'http://127.0.0.1:{port}/', timeout: 2s, \
         body: {{separator: \"\\n\"}}}}}}\n"
    );
    let cellar = Cellar::start_configured(&yaml, &[]);
    put(&cellar, 0..8);
    wait_for("the delivery", || {
        (sink(&cellar, "hook")["lag_entries"] == 0).then_some(())
    });
    let shown = sink(&cellar, "hook");
    assert_eq!(shown["dead_letters"], 1, "{shown}");
    assert_eq!(shown["counters"]["delivered"], 7);
    assert!(requests.load(Ordering::SeqCst) > 8);
    let letters = done(
        &cellar,
        &["sinks", "dead-letters", "list", "hook", "--output", "jsonl"],
    );
    let letter: Json = serde_json::from_str(letters.trim()).unwrap();
    assert_eq!(
        (&letter["tag"], &letter["reason"]),
        (&Json::from("test/5"), &Json::from("400 Bad Request"))
    );
    let seq = letter["seq"].to_string();
    assert!(done(&cellar, &["sinks", "dead-letters", "show", "hook", &seq]).contains("\"n\":5"));
    let retried = done(
        &cellar,
        &["sinks", "dead-letters", "retry", "hook", "--all"],
    );
    assert!(
        retried.starts_with("1 dead letters of hook are redelivered"),
        "{retried}"
    );
    wait_for("the second rejection", || {
        let text = done(
            &cellar,
            &["sinks", "dead-letters", "list", "hook", "--output", "jsonl"],
        );
        text.contains("\"attempts\":2").then_some(())
    });
    let doctor = verb(&cellar, &["doctor", "--no-master"]);
    assert!(
        stdout(&doctor).contains("hook: 1 dead letters"),
        "{}",
        stdout(&doctor)
    );
    assert!(
        stdout(&doctor).contains("responds (status "),
        "{}",
        stdout(&doctor)
    );
    assert_eq!(
        done(&cellar, &["sinks", "dead-letters", "drop", "hook", &seq]),
        "1 dead letters of hook are deleted\n"
    );
    let missing = verb(&cellar, &["sinks", "dead-letters", "drop", "hook"]);
    assert_eq!(missing.status.code(), Some(64));
}

#[test]
fn a_reload_applies_valid_sinks_and_an_invalid_one_changes_nothing() {
    let cellar = Cellar::start_configured(FILE, &[]);
    let dir = cellar.dir.path();
    put(&cellar, 0..1);
    wait_for("a line", || {
        (lines_of(&dir.join("out.jsonl")) == 1).then_some(())
    });
    reload(&cellar, &FILE.replace("json\n", "jsno\n"));
    cellar.logged("configuration reloaded in part");
    cellar.logged("c.yaml:4: sinks.audit.encoder: ");
    let more = "  states: {match: [{tag: 'test/*'}], encoder: {template: {text: '{{ data.n }}'}}, transport: {file: {path: DIR/n}}}\n";
    reload(
        &cellar,
        &format!("{}{more}", FILE.replace("out.jsonl", "new.jsonl")),
    );
    wait_for("both sinks", || {
        (done(&cellar, &["sinks", "list"]).contains("new.jsonl")).then_some(())
    });
    wait_for("the start of the new sink", || {
        (sink(&cellar, "states")["state"] == "idle").then_some(())
    });
    put(&cellar, 1..3);
    wait_for("the new files", || {
        (lines_of(&dir.join("n")) == 2 && lines_of(&dir.join("new.jsonl")) == 2).then_some(())
    });
    assert_eq!(lines_of(&dir.join("out.jsonl")), 1);
    assert!(
        !cellar
            .log()
            .contains("take effect after `systemctl restart"),
        "{}",
        cellar.log()
    );
}

#[test]
fn a_sink_waits_while_another_process_holds_its_name() {
    let cellar = Cellar::start_configured(FILE, &[]);
    cellar.ask("consumer_create", vec![("name", "late".into())]);
    let held = || vec![("name", "late".into()), ("holder", "elsewhere".into())];
    cellar.ask("consumer_next", held());
    let more = "  late: {encoder: json, transport: {file: {path: DIR/late}}}\n";
    reload(&cellar, &format!("{FILE}{more}"));
    let show = || {
        stdout(&verb(
            &cellar,
            &["sinks", "show", "late", "--output", "json"],
        ))
    };
    wait_for("the error", || show().contains("in use by").then_some(()));
    put(&cellar, 0..3);
    assert_eq!(lines_of(&cellar.dir.path().join("late")), 0);
    cellar.ask("consumer_release", held());
    wait_for("the events", || {
        (numbers(&lines(&cellar.dir.path().join("late"))) == [0, 1, 2]).then_some(())
    });
}

#[test]
fn an_invalid_sink_ends_the_start_with_line_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.yaml");
    std::fs::write(
        &path,
        "sinks:\n  audit:\n    encoder: json\n    transport: {file: {path: relative}}\n",
    )
    .unwrap();
    for name in [&["serve"][..], &["config", "check"]] {
        let output = program()
            .args(name)
            .arg("--config")
            .arg(&path)
            .output()
            .unwrap();
        assert_eq!(
            output.status.code(),
            Some(64),
            "{name:?}: {}",
            stderr(&output)
        );
        let expected = "c.yaml:4: sinks.audit.transport.file.path: \"relative\" is not accepted; give an absolute path";
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}

#[test]
fn secrets_are_shown_nowhere_and_redacted_values_are_not_delivered() {
    // The secret, and forms in which a destination could echo it.
    const SECRET: [&str; 4] = [
        "t0p/s3cret+",
        "t0p%2Fs3cret%2B",
        "t0p%2fs3cret%2b",
        "dDBwL3MzY3JldCs",
    ];
    let (port, _) = service(|n, body| {
        // A check of the destination has no body.
        assert!(
            body.is_empty() || !body.contains("pa55") && body.contains("[redacted]"),
            "{body}"
        );
        let echo = SECRET.join(" ");
        let echoing = |code: &str| {
            let len = echo.len();
            format!("HTTP/1.1 {code}\r\nx-echo: {echo}\r\ncontent-length: {len}\r\n\r\n{echo}")
        };
        match n {
            1 => echoing("401 Unauthorized"),
            2 => echoing("400 Bad Request"),
            _ => status("200 OK", ""),
        }
    });
    let yaml = format!(
        "{LISTENER}sinks:\n  hook:\n    retry: {{backoff: 1s, max: 1s}}\n    batch: {{count: 1, time: 0s}}\n    preset: webhook\n    with: {{url: 'http://127.0.0.1:{port}/', token: 'file:DIR/token'}}\n    \
         redact: [{{builtin: passwords}}]\n    match: [{{tag: 'test/*'}}]\n"
    );
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("token"), format!("{}\n", SECRET[0])).unwrap();
    std::fs::write(dir.path().join("c.yaml"), in_dir(&yaml, dir.path())).unwrap();
    let cellar = Cellar::start_in(dir, &["--config", "DIR/c.yaml", "--log-level", "debug"]);
    // Delivered, retried and then rejected.
    put(&cellar, 0..2);
    wait_for("the delivery", || {
        let shown = sink(&cellar, "hook");
        (shown["counters"]["delivered"] == 1 && shown["dead_letters"] == 1).then_some(())
    });
    let config = cellar.dir.path().join("c.yaml");
    let test = done(&cellar, &["sinks", "test", "hook"]);
    assert!(test.contains("authorization: Bearer [redacted]"), "{test}");
    let check = program()
        .args(["config", "show", "--config"])
        .arg(config)
        .output()
        .unwrap();
    let letters = ["sinks", "dead-letters", "list", "hook", "--output", "jsonl"];
    let letters = done(&cellar, &letters);
    assert!(letters.contains("400 Bad Request"), "{letters}");
    let address = crate::http::address(&cellar);
    let reader = crate::http::token(&cellar, &["all", "--scope", "admin"]);
    let page = |path: &str| {
        let answer = crate::http::get(&address, path, &reader);
        assert_eq!(answer.status, 200, "{path}");
        answer.text()
    };
    let view = page("/sinks/hook");
    assert!(view.contains("400 Bad Request"), "{view}");
    let shown = [
        test,
        letters,
        view,
        page("/sinks"),
        page("/"),
        page("/api/v1/sinks/hook"),
        page("/api/v1/sinks/hook/dead-letters"),
        stdout(&check),
        done(&cellar, &["sinks", "show", "hook"]),
        done(&cellar, &["sinks", "list"]),
        stdout(&verb(&cellar, &["doctor", "--no-master"])),
        cellar.log(),
    ];
    for text in shown {
        for form in SECRET {
            assert!(!text.contains(form), "{form}: {text}");
        }
    }
}

#[test]
fn a_full_disk_for_a_file_pauses_only_that_sink() {
    let yaml = format!(
        "{FILE}  other: {{match: [{{tag: 'test/*'}}], encoder: json, transport: {{file: {{path: DIR/other}}}}}}\n"
    );
    let cellar = Cellar::start_configured_on_disk(&yaml, "write=ENOSPC@1+:out.jsonl");
    let dir = cellar.dir.path();
    put(&cellar, 0..3);
    wait_for("the other sink", || {
        (lines_of(&dir.join("other")) == 3).then_some(())
    });
    wait_for("the error", || {
        sink(&cellar, "audit")["error"]["message"]
            .as_str()
            .unwrap_or_default()
            .contains("No space left")
            .then_some(())
    });
    assert_eq!(lines_of(&dir.join("out.jsonl")), 0);
    cellar.plan_disk("");
    wait_for("the lines", || {
        (lines_of(&dir.join("out.jsonl")) == 3).then_some(())
    });
    assert_eq!(numbers(&lines(&dir.join("out.jsonl"))), [0, 1, 2]);
}
