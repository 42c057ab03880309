//! The store id, with which a sender could put valid frames into bodies, is in no response.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use parking_lot::Mutex;
use rmpv::Value;
use saltcellar_testkit::limited::{OUT, World, chunks, fill, paths, views};

use crate::fake_daemon::program;
use crate::harness::{Asks as _, Cellar, map, wait_for};
use crate::http::{LISTENER, address, connect, get, local, request, token};
use crate::sinks::{service, status};

/// The forms in which the id could be shown: hexadecimal in both byte orders, decimal, and its bytes.
fn forms(id: u64) -> Vec<Vec<u8>> {
    let texts = [
        format!("{id:016x}"),
        format!("{:016x}", id.swap_bytes()),
        id.to_string(),
        id.cast_signed().to_string(),
    ];
    let bytes = [id.to_le_bytes().to_vec(), id.to_be_bytes().to_vec()];
    texts
        .map(String::into_bytes)
        .into_iter()
        .chain(bytes)
        .collect()
}

/// The argument of `event_return`.
fn one_event(tag: &str) -> Value {
    let event = vec![("tag", tag.into()), ("data", map(vec![]))];
    Value::Array(vec![map(event)])
}

#[test]
fn no_answer_contains_the_store_id() {
    // A sink whose destination keeps what it was sent, and rejects some of it.
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sent = seen.clone();
    let (port, _) = service(move |_, body| {
        sent.lock().extend_from_slice(body.as_bytes());
        if body.contains("salt/minion/web1/start") {
            status("400 Bad Request", "")
        } else {
            status("204 No Content", "")
        }
    });
    let sink = format!(
        "  hook: {{encoder: json, batch: {{count: 1, time: 0s}}, transport: {{http: {{url: 'http://127.0.0.1:{port}/'}}}}}}\n"
    );
    let mut cellar = Cellar::start_configured(&format!("{LISTENER}{OUT}{sink}"), &[]);
    fill(&cellar, World::Full);
    cellar.ask(
        "consumer_create",
        vec![("name", "audit".into()), ("to", "oldest".into())],
    );
    wait_for("the sinks", || {
        let sinks = cellar.ask("sinks_list", vec![]);
        let rows = sinks["sinks"].as_array().unwrap();
        let is_done = |row: &Value| row["lag_entries"] == 0.into();
        (rows.len() == 2 && rows.iter().all(is_done)).then_some(())
    });
    let format = std::fs::read_to_string(cellar.state_dir().join("FORMAT")).unwrap();
    let digits = format
        .lines()
        .nth(1)
        .unwrap()
        .strip_prefix("store id ")
        .unwrap();
    let id = u64::from_str_radix(digits.get(..16).unwrap(), 16).unwrap();

    let mut answers: Vec<(String, Vec<u8>)> = Vec::new();
    let state = cellar.state_dir().to_str().unwrap().to_owned();
    let to = cellar
        .dir
        .path()
        .join("backup")
        .to_str()
        .unwrap()
        .to_owned();
    let new = cellar.dir.path().join("new").to_str().unwrap().to_owned();
    let tokens = token(&cellar, &["a", "--scope", "admin"]);
    let mut run = |args: &[&str]| {
        let mut command = program();
        command.args(args);
        if args[0] != "store" || args[1] == "stats" {
            command.arg("--socket").arg(cellar.socket());
        }
        let output = command.output().unwrap();
        answers.push((args.join(" "), [output.stdout, output.stderr].concat()));
    };
    for verb in [
        &["status", "--output", "json"][..],
        &["doctor", "--output", "json"],
        &["events", "list", "--output", "json"],
        &["consumers", "list", "--output", "json"],
        &["jobs", "list", "--output", "json"],
        &["sinks", "list", "--output", "json"],
        &["sinks", "show", "hook", "--output", "json"],
        &["sinks", "dead-letters", "list", "hook", "--output", "jsonl"],
        &["store", "stats", "--output", "json"],
        &["store", "verify", "--state-dir", &state, "--output", "json"],
        &[
            "store",
            "backup",
            "--state-dir",
            &state,
            &to,
            "--output",
            "json",
        ],
        &["store", "backup", "--state-dir", &state, &to],
        &["export", "jsonl"],
    ] {
        run(verb);
    }
    let manifest = cellar.dir.path().join("backup/MANIFEST");
    answers.push(("MANIFEST".to_owned(), std::fs::read(manifest).unwrap()));

    let http = address(&cellar);
    // Every operation of the API that reads, and every view of the page.
    let document = local(&cellar, "GET", "/api/v1/openapi.json", b"").json();
    let operations = document["paths"].as_object().unwrap();
    let reading = operations
        .iter()
        .filter(|(path, methods)| methods.get("get").is_some() && !path.ends_with("/stream"));
    let asked: Vec<String> = reading
        .flat_map(|(path, _)| paths(path))
        .chain(["/api/v1/events?limit=1", "/metrics", "/sinks/hook"].map(str::to_owned))
        .chain(views())
        .collect();
    assert!(asked.len() > 60, "{asked:?}");
    for path in asked.iter().map(|path| path.replace("/none", "/hook")) {
        let answer = get(&http, &path, &tokens);
        let whole = [answer.head.as_bytes(), &answer.body].concat();
        answers.push((path, whole));
    }
    let next = "/api/v1/consumers/audit/next";
    let answer = request(&http, "POST", next, &tokens, b"{\"holder\": \"me\"}");
    assert_eq!(answer.status, 200, "{}", answer.text());
    answers.push((next.to_owned(), answer.body));
    for chunk in chunks() {
        let answer = request(&http, "POST", "/", &tokens, chunk.to_string().as_bytes());
        answers.push((chunk.to_string(), answer.body));
    }
    let names_an_entry = |name: &str, mark: &str| {
        let answer = answers.iter().find(|(asked, _)| asked == name);
        let text = String::from_utf8_lossy(&answer.unwrap().1).into_owned();
        assert!(text.contains(mark), "{name}: {text}");
    };
    names_an_entry("/api/v1/events", "\"id\":\"");
    names_an_entry(next, "\"id\":\"");
    names_an_entry("/api/v1/sinks/hook/dead-letters", "salt/minion/web1/start");
    for (n, accept) in ["application/x-ndjson", "text/event-stream"]
        .into_iter()
        .enumerate()
    {
        let path = "/api/v1/events/stream?since=2020-01-01T00:00:00Z";
        let mut stream = connect(&http);
        let head =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\n{tokens}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        // Also a later piece.
        let last = format!("test/last/{n}");
        let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
        let mut is_asked = false;
        while memchr::memmem::find(&bytes, last.as_bytes()).is_none() {
            if !is_asked && memchr::memmem::find(&bytes, b"salt/minion/web1/start").is_some() {
                is_asked = true;
                cellar.ask("event_return", vec![("events", one_event(&last))]);
            }
            let got = stream.read(&mut piece).unwrap();
            assert!(got > 0, "closed");
            bytes.extend_from_slice(&piece[..got]);
        }
        answers.push((format!("{path} as {accept}"), bytes));
    }
    answers.push(("what a sink was sent".to_owned(), seen.lock().clone()));
    let file = std::fs::read(cellar.dir.path().join("out.jsonl")).unwrap();
    answers.push(("a sink's file".to_owned(), file));

    // A log that belongs to another store is named without its id.
    assert!(cellar.terminate());
    let salvaged = program()
        .args(["store", "salvage", &state, &new])
        .output()
        .unwrap();
    answers.push((
        "salvage".to_owned(),
        [salvaged.stdout, salvaged.stderr].concat(),
    ));
    let path = cellar.state_dir().join("FORMAT");
    std::fs::write(&path, "").unwrap();
    cellar.restart();
    assert!(cellar.terminate());
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        format,
        "made again"
    );
    // FORMAT of another store: its logs are named without the id of either.
    let other = Cellar::start();
    std::fs::copy(other.state_dir().join("FORMAT"), &path).unwrap();
    for command in [
        &["serve", "--state-dir", &state, "--socket", &new][..],
        &["store", "verify", "--state-dir", &state],
    ] {
        let output = program().args(command).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&said).into_owned();
        assert!(!output.status.success(), "{text}");
        assert!(text.contains("belongs to the store"), "{text}");
        answers.push((command.join(" "), said));
    }
    std::fs::remove_file(&path).unwrap();
    let refused = program()
        .args(["serve", "--state-dir", &state, "--socket", &new])
        .output()
        .unwrap();
    assert!(!refused.status.success());
    answers.push((
        "serve".to_owned(),
        [refused.stdout, refused.stderr].concat(),
    ));
    answers.push(("log".to_owned(), cellar.log().into_bytes()));

    for (name, answer) in answers {
        for form in forms(id) {
            let found = memchr::memmem::find(&answer, &form);
            assert_eq!(found, None, "{name}: {}", String::from_utf8_lossy(&answer));
        }
    }
}
