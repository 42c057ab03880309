//! Limited tokens: every answer equals that of a store in which what the token may not read was never stored.
//!
//! Two stores get the same entries; one of them also has entries of another minion, with a secret in each of their values. Each operation of the
//! API, each view of the page and the part of salt-api is asked with many parameters, among them filters that search for the secret.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::LazyLock;

use regex::Regex;
use saltcellar::wire::msgpack::json::from_json;
use serde_json::{Value as Json, json};

use crate::harness::Cellar;
use crate::http::{LISTENER, address, connect, get, local, request, token};

/// In every value of the other minion.
const SECRET: &str = "s3cret";
/// In every value of the entries of the other minion alone.
const ALONE: &str = "s3cret-alone";

/// A job of both minions, and a later run of it.
const SHARED: [&str; 2] = ["20261121054728123456", "20261121055728123456"];
/// Jobs of the allowed minion alone.
const OWN: [&str; 2] = ["20261121064728123456", "20261121074728123456"];
/// Jobs of the other minion alone: one with a load, one that is known by its return.
const FOREIGN: [&str; 2] = ["20261122054728123456", "20261122064728123456"];
/// An orchestration.
const ORCHESTRATION: &str = "20261122074728123456";

/// What a store has beside the entries that every token may read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum World {
    /// Everything.
    Full,
    /// No trace of the other minion.
    WithoutMinion,
    /// No entry of the other minion alone, whose function and tags are its own; but its part of shared jobs.
    WithoutOwnOfMinion,
}

fn put(cellar: &Cellar, call: &str, args: Vec<(&str, Json)>) {
    let args = args
        .into_iter()
        .map(|(name, value)| (name, from_json(&value).unwrap()))
        .collect();
    cellar.ask(call, args);
}

fn event(cellar: &Cellar, tag: &str, data: &Json) {
    put(
        cellar,
        "event_return",
        vec![("events", json!([{ "tag": tag, "data": data }]))],
    );
}

fn states(text: &str, result: bool) -> Json {
    let key = format!("file_|-{text}_|-{text}_|-managed");
    json!({ key: {
        "result": result, "changes": { text: text }, "comment": text, "name": text, "__id__": text, "__sls__": text,
        "duration": 1.5, "start_time": "05:47:28.123456", "__run_num__": 0,
    } })
}

fn answer(cellar: &Cellar, jid: &str, minion: &str, fun: &str, text: &str, retcode: i64) {
    let is_done = retcode == 0;
    let load = json!({
        "jid": jid, "id": minion, "fun": fun, "fun_args": [text], "return": states(text, is_done), "retcode": retcode,
        "success": is_done, "out": text,
    });
    put(cellar, "returner", vec![("load", load.clone())]);
    event(cellar, &format!("salt/job/{jid}/ret/{minion}"), &load);
}

/// A job of the two minions; the other one has failed, and a third one is missing.
fn shared_job(cellar: &Cellar, jid: &str, world: World) {
    let is_full = world != World::WithoutMinion;
    let (minions, text) = if is_full {
        (json!(["db1", "db2", "web1"]), SECRET)
    } else {
        (json!(["web1"]), "web")
    };
    let load = json!({
        "fun": "state.apply", "jid": jid, "tgt": minions, "tgt_type": text, "user": "root", "arg": [text],
        "metadata": { text: text }, "kwargs": { text: text }, "cmd": "publish",
    });
    let args = vec![
        ("jid", json!(jid)),
        ("load", load),
        ("minions", minions.clone()),
    ];
    put(cellar, "save_load", args);
    let new = json!({ "fun": "state.apply", "jid": jid, "user": "root", "minions": minions, "arg": [text], "tgt": text });
    event(cellar, &format!("salt/job/{jid}/new"), &new);
    if is_full {
        answer(cellar, jid, "db1", "state.apply", SECRET, 7);
        let syndic = vec![
            ("jid", json!(jid)),
            ("minions", json!(["db3"])),
            ("syndic_id", json!(SECRET)),
        ];
        put(cellar, "save_minions", syndic);
    } else {
        let syndic = vec![
            ("jid", json!(jid)),
            ("minions", json!([])),
            ("syndic_id", json!("x")),
        ];
        put(cellar, "save_minions", syndic);
    }
    answer(cellar, jid, "web1", "state.apply", "web", 0);
    if is_full {
        let end = json!("2026, Nov 21 06:00:00.000000");
        put(
            cellar,
            "update_endtime",
            vec![("jid", json!(jid)), ("endtime", end)],
        );
    }
}

fn own_job(cellar: &Cellar, jid: &str, minion: &str, fun: &str, text: &str, retcode: i64) {
    let load = json!({
        "fun": fun, "jid": jid, "tgt": minion, "tgt_type": "glob", "user": text, "arg": [text],
        "metadata": { text: text }, "cmd": "publish",
    });
    let args = vec![
        ("jid", json!(jid)),
        ("load", load),
        ("minions", json!([minion])),
    ];
    put(cellar, "save_load", args);
    answer(cellar, jid, minion, fun, text, retcode);
}

/// Entries of the other minion alone.
fn foreign(cellar: &Cellar, world: World, count: usize) {
    if world != World::Full {
        return;
    }
    for n in 0..count {
        let data = json!({ "id": "db1", "fun": "secret.fun", "text": ALONE, "retcode": 7, "n": n });
        event(cellar, &format!("secret/{ALONE}/{n}"), &data);
        event(cellar, &format!("salt/minion/db1/{ALONE}"), &data);
    }
}

fn start(world: World) -> Cellar {
    start_with(world, "")
}

/// A store with every kind of entry, and this sink besides `out`.
pub(crate) fn start_full(sink: &str) -> Cellar {
    start_with(World::Full, sink)
}

fn start_with(world: World, sink: &str) -> Cellar {
    let sinks = format!(
        "sinks:\n  out: {{encoder: json, transport: {{file: {{path: DIR/out.jsonl}}}}}}\n{sink}"
    );
    let cellar = Cellar::start_configured(&format!("{LISTENER}{sinks}"), &[]);
    foreign(&cellar, world, 3);
    own_job(&cellar, OWN[0], "web1", "state.apply", "web", 1);
    shared_job(&cellar, SHARED[0], world);
    foreign(&cellar, world, 3);
    shared_job(&cellar, SHARED[1], world);
    own_job(&cellar, OWN[1], "web1", "state.apply", "own", 0);
    event(
        &cellar,
        "salt/minion/web1/start",
        &json!({ "id": "web1", "text": "web" }),
    );
    if world == World::Full {
        own_job(&cellar, FOREIGN[0], "db1", "secret.fun", ALONE, 7);
        answer(&cellar, FOREIGN[1], "db1", "secret.fun", ALONE, 7);
        // Of the master, whose id the token's glob matches; it names the other minion.
        let fun = "runner.state.orch";
        let load = json!({
            "jid": ORCHESTRATION, "id": "web_master", "fun": fun, "fun_args": [ALONE], "return": {
                "fun": fun, "jid": ORCHESTRATION, "fun_args": [ALONE], "success": true,
                "return": { "data": { "web_master": states(ALONE, true) }, "retcode": 0 },
            },
        });
        put(&cellar, "returner", vec![("load", load.clone())]);
        event(&cellar, &format!("salt/run/{ORCHESTRATION}/ret"), &load);
    }
    foreign(&cellar, world, 3);
    cellar
}

/// Replaces what differs between any two stores: the store's id, sequence numbers, and times of arrival.
fn normal(text: &str) -> String {
    // Compiled once: thousands of answers are compared.
    static RULES: LazyLock<[(Regex, &str); 7]> = LazyLock::new(|| {
        [
            (r"\d{4}-\d\d-\d\dT[0-9:.]+(Z|%3A)?", "TIME"),
            (r"\d{4}-\d\d-\d\d [0-9:.]+ UTC", "TIME"),
            (r"[0-9a-f]{16}(:|%3A)\d+", "CURSOR"),
            (r#""(seq|duration_us)":\d+"#, r#""$1":N"#),
            (r"/events/\d+", "/events/N"),
            (r"[0-9.]+ (ms|s|µs)\b", "SPAN"),
            (r#"(data-place|value|x|cx|width)="[0-9.]+%?""#, r#"$1="N""#),
        ]
        .map(|(pattern, by)| (Regex::new(pattern).unwrap(), by))
    });

    RULES.iter().fold(text.to_owned(), |text, (pattern, by)| {
        pattern.replace_all(&text, *by).into_owned()
    })
}

/// The values with which each parameter is tried; `None` for an unknown parameter.
fn values(name: &str) -> Option<Vec<String>> {
    let secret = || format!("*{SECRET}*");
    let list: Vec<String> = match name {
        "limit" => vec!["1".into(), "2".into(), "1000".into()],
        "since" | "until" => vec![
            "2026-11-21T06:00:00Z".into(),
            "2026-11-22T06:00:00Z".into(),
            "4000000000000000".into(),
        ],
        "minion" => ["web1", "db1", "db*", "*", "*b1", "web_master"]
            .map(str::to_owned)
            .into(),
        "fun" => vec![
            "state.*".into(),
            "secret.*".into(),
            "*".into(),
            "runner.*".into(),
            "file.*".into(),
        ],
        "tgt" => vec!["db1".into(), "web1".into(), secret(), "*".into()],
        "user" => vec![SECRET.into(), "root".into(), "web".into()],
        "jid" => [
            SHARED[0],
            OWN[0],
            FOREIGN[0],
            FOREIGN[1],
            ORCHESTRATION,
            "20261122",
            "2026112",
        ]
        .map(str::to_owned)
        .into(),
        "result" => ["failed", "succeeded", "missing", "changed", "none"]
            .map(str::to_owned)
            .into(),
        "metadata" => vec![
            json!({ SECRET: "*" }).to_string(),
            json!({ "web": "*" }).to_string(),
        ],
        "find_job" | "links" | "attention" => vec!["true".into(), "false".into()],
        "newest_first" => vec!["false".into()],
        "match" => [
            json!([{ "minion": "db1" }]),
            json!([{ "tag": secret() }]),
            json!([{ "retcode": "!0" }]),
            json!([{ "fun": "secret.*" }]),
            json!([{ "minion": "web1" }, { "tag": secret() }]),
        ]
        .map(|value| value.to_string())
        .into(),
        "where" => [
            format!("\"{}\" in data.text", &SECRET[..3]),
            "data.retcode == 7".into(),
            "data.id is startingwith(\"d\")".into(),
            "tag is startingwith(\"secret\")".into(),
            "data.fun == \"state.apply\"".into(),
            "true".into(),
            "data.n is defined".into(),
        ]
        .into(),
        // Others are at different events in the two stores.
        "from" => vec!["1".into(), "100000".into()],
        "with" | "before" => [SHARED[0], OWN[0], FOREIGN[0], "20200101000000000000"]
            .map(str::to_owned)
            .into(),
        "id" | "sls" => vec![secret(), "web".into(), "*".into()],
        "after" => vec!["d".into(), "db1".into(), "w".into()],
        "tag" => vec![secret(), "salt/*".into(), "*".into(), "secret/*".into()],
        // Followed as `next`.
        // `max_rate` is tested with streams.
        "cursor" | "max_rate" => Vec::new(),
        "state" => vec!["failed".into()],
        "search" => vec![SECRET.into(), "web".into()],
        "by" => ["function", "minion", "hour", "class"]
            .map(str::to_owned)
            .into(),
        "replays" => vec!["true".into()],
        "name" => vec!["out".into(), "none".into()],
        "ids" => vec!["[\"1\"]".into()],
        _ => return None,
    };
    Some(list)
}

fn encoded(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

/// All values of the parameters in a path.
pub(crate) fn paths(path: &str) -> Vec<String> {
    let mut found = vec![path.to_owned()];
    for (part, values) in [
        (
            "{jid}",
            &[
                SHARED[0],
                SHARED[1],
                OWN[0],
                OWN[1],
                FOREIGN[0],
                FOREIGN[1],
                ORCHESTRATION,
                "20200101000000000000",
            ][..],
        ),
        ("{minion}", &["web1", "db1", "web_master", "web9"][..]),
        ("{name}", &["out", "none"][..]),
        ("{seq}", &["1", "20"][..]),
    ] {
        if path.contains(part) {
            found = values
                .iter()
                .flat_map(|value| found.iter().map(|path| path.replace(part, value)))
                .collect();
        }
    }
    found
}

/// The position after which a list continues names nothing that the token may not read: an event or a minion that the page
/// shows, a job of the allowed minion, or a whole second. It is another one in another store, so it is not compared.
fn assert_allowed(path: &str, page: &Json, next: &str) {
    let rows = |name: &str, key: &str| -> Vec<String> {
        let rows = page[name].as_array().into_iter().flatten();
        rows.map(|row| match &row[key] {
            Json::String(text) => text.clone(),
            other => other.to_string(),
        })
        .collect()
    };

    let Some((_, position)) = next.split_once(':') else {
        // A minion by its name.
        let names = [
            rows("minions", "id"),
            rows("minions", "minion"),
            rows("returns", "minion"),
            rows("states", "minion"),
        ];
        let is_shown = names.iter().flatten().any(|name| name == next);
        return assert!(
            is_shown,
            "{path}: next is {next}, which it does not show: {page}"
        );
    };
    if page.get("jobs").is_some() {
        let is_allowed = SHARED.iter().chain(&OWN).any(|jid| *jid == position);
        let is_second = position.len() == 20 && position.ends_with("000000");
        return assert!(is_allowed || is_second, "{path}: next is {next}: {page}");
    }
    let ids = rows("events", "id");
    assert!(
        ids.iter().any(|id| id == next),
        "{path}: next is {next}, which it does not show: {page}"
    );
}

/// An answer, and those of the pages after it.
fn pages(address: &str, token: &str, path: &str, secret: &str) -> Vec<(u16, String)> {
    let mut found = Vec::new();
    let mut next = path.to_owned();
    loop {
        let answer = get(address, &next, token);
        let text = answer.text();
        assert!(!text.contains(secret), "{next}: {text}");
        found.push((answer.status, normal(&text)));
        let json: Json = serde_json::from_str(&text).unwrap_or_default();
        let Some(cursor) = json["next"].as_str() else {
            return found;
        };
        assert_allowed(&next, &json, cursor);
        assert!(found.len() < 100, "{path} does not end");
        let name = if cursor.contains(':') {
            "cursor"
        } else {
            "after"
        };
        let sign = if path.contains('?') { '&' } else { '?' };
        next = format!("{path}{sign}{name}={}", encoded(cursor));
    }
}

/// All requests, from the document of the API, each with the parameters that the table has for it.
fn requests(cellar: &Cellar) -> Vec<(String, String)> {
    let document = local(cellar, "GET", "/api/v1/openapi.json", b"").json();
    let mut found = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let Some(operation) = methods.get("get") else {
            continue;
        };
        // Tested below.
        if path.ends_with("/stream") {
            continue;
        }
        let mut queries = vec![String::new()];
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            if parameter["in"] != "query" {
                continue;
            }
            let name = parameter["name"].as_str().unwrap();
            let values = values(name);
            let values =
                values.unwrap_or_else(|| panic!("{path}: the parameter {name} is not covered"));
            for value in values {
                queries.push(format!("?{name}={}", encoded(&value)));
                // Page by page.
                if name != "limit" {
                    queries.push(format!("?limit=1&{name}={}", encoded(&value)));
                }
            }
        }
        for one in paths(path) {
            found.extend(
                queries
                    .iter()
                    .map(|query| (path.clone(), format!("{one}{query}"))),
            );
        }
    }
    assert!(found.len() > 300, "{}", found.len());
    found
}

/// The views of the page.
pub(crate) fn views() -> Vec<String> {
    let views = ["/", "/jobs", "/events", "/minions", "/reactor", "/engines"];
    let more = [
        "/minions/web1",
        "/minions/db1",
        "/events/4",
        "/engines/out",
        "/jobs?result=failed",
        "/events?where=true",
    ];
    let jobs = [SHARED[0], OWN[0], FOREIGN[0], FOREIGN[1], ORCHESTRATION]
        .map(|jid| format!("/jobs/{jid}"));
    let diff = format!("/jobs/{}/diff", SHARED[1]);
    let all = views.into_iter().chain(more).map(str::to_owned);
    all.chain(jobs).chain([diff]).collect()
}

/// What salt-api is asked.
pub(crate) fn chunks() -> Vec<Json> {
    let jids = [SHARED[0], OWN[0], FOREIGN[0], FOREIGN[1], ORCHESTRATION];
    let mut chunks = vec![
        json!({ "fun": "jobs.list_jobs" }),
        json!({ "fun": "jobs.active" }),
    ];
    for fun in ["jobs.list_job", "jobs.lookup_jid"] {
        chunks.extend(jids.map(|jid| json!({ "fun": fun, "jid": jid })));
    }
    for filter in [
        json!({ "search_target": "db1" }),
        json!({ "search_function": "secret.*" }),
        json!({ "search_metadata": { SECRET: "*" } }),
    ] {
        let mut chunk = json!({ "fun": "jobs.list_jobs" });
        chunk
            .as_object_mut()
            .unwrap()
            .extend(filter.as_object().unwrap().clone());
        chunks.push(chunk);
    }
    for chunk in &mut chunks {
        chunk["client"] = "runner".into();
    }
    chunks
}

/// Compares all answers of two stores for tokens with the same limits. These operations apply them, and all others reject the token.
fn compare(full: &Cellar, other: &Cellar, limits: &[&str], secret: &str, applied: &[&str]) {
    let name = limits.join("");
    let make = |cellar: &Cellar, scope: &str| {
        let name = format!(
            "{scope}{}",
            name.replace(|c: char| !c.is_ascii_alphanumeric(), "")
        );
        token(cellar, &[&[&*name, "--scope", scope], limits].concat())
    };
    let of_full = (address(full), make(full, "read"));
    let of_other = (address(other), make(other, "read"));
    let (mut answered, mut rejected) = (BTreeSet::new(), BTreeSet::new());
    for (operation, path) in requests(full) {
        let [one, two] =
            [&of_full, &of_other].map(|(address, token)| pages(address, token, &path, secret));
        assert_eq!(one, two, "{limits:?} {path}");
        if one[0].0 == 200 {
            answered.insert(operation);
        } else if one[0].0 == 403 && one[0].1.contains("cannot apply") {
            rejected.insert(operation);
        }
    }
    let expected: BTreeSet<_> = applied
        .iter()
        .map(|path| format!("/api/v1{path}"))
        .collect();
    assert_eq!(answered, expected, "{limits:?}: operations that apply them");
    assert!(answered.is_disjoint(&rejected), "{rejected:?}");
    let admin = make(full, "admin");
    let document = local(full, "GET", "/api/v1/openapi.json", b"").json();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let is_read = method == "get";
            if is_read {
                let is_known =
                    answered.contains(path) || rejected.contains(path) || path.ends_with("/stream");
                assert!(
                    is_known,
                    "{path}: neither applies the limits nor rejects the token"
                );
                continue;
            }
            let path = paths(path).swap_remove(0);
            let answer = request(
                &of_full.0,
                &method.to_ascii_uppercase(),
                &path,
                &admin,
                b"{}",
            );
            assert_eq!(answer.status, 403, "{method} {path}: {}", answer.text());
        }
    }
    for path in views() {
        let [one, two] = [&of_full, &of_other].map(|(address, token)| {
            let answer = get(address, &path, token);
            assert!(!answer.text().contains(secret), "{path}: {}", answer.text());
            (answer.status, normal(&answer.text()))
        });
        // An event of this number exists in one store or the other.
        if path != "/events/4" {
            assert_eq!(one, two, "{limits:?} {path}");
        }
    }
    for chunk in chunks() {
        let [one, two] = [&of_full, &of_other].map(|(address, token)| {
            let answer = request(address, "POST", "/", token, chunk.to_string().as_bytes());
            assert!(
                !answer.text().contains(secret),
                "{chunk}: {}",
                answer.text()
            );
            (answer.status, answer.text())
        });
        assert_eq!(one, two, "{limits:?} {chunk}");
    }
}

const OF_JOBS: [&str; 5] = [
    "/jobs",
    "/jobs/{jid}",
    "/jobs/{jid}/missing",
    "/jobs/{jid}/states",
    "/jobs/{jid}/diff",
];
const OF_EVENTS: [&str; 2] = ["/events", "/events/count"];
const OF_MINIONS: [&str; 2] = ["/minions", "/minions/{minion}"];

#[test]
fn a_token_limited_to_minions_reads_as_if_there_were_no_others() {
    let (full, other) = (start(World::Full), start(World::WithoutMinion));
    let all = [&OF_JOBS[..], &OF_EVENTS, &OF_MINIONS].concat();
    compare(&full, &other, &["--minions", "web*"], SECRET, &all);
    let both = [&OF_JOBS[..], &OF_EVENTS].concat();
    let limits = ["--minions", "web1", "--functions", "state.*"];
    compare(&full, &other, &limits, SECRET, &both);
}

#[test]
fn a_token_limited_to_functions_or_tags_reads_as_if_there_were_no_others() {
    let (full, other) = (start(World::Full), start(World::WithoutOwnOfMinion));
    let both = [&OF_JOBS[..], &OF_EVENTS].concat();
    compare(&full, &other, &["--functions", "state.*"], ALONE, &both);
    compare(
        &full,
        &other,
        &["--tags", "salt/job/20261121*"],
        ALONE,
        &OF_EVENTS,
    );
}

/// Reads a stream until `done`, without the signs of life.
fn read_stream(stream: &mut TcpStream, done: impl Fn(&str) -> bool) -> String {
    let mut text = String::new();
    let mut piece = [0; 4096];
    while !done(&text) {
        let got = stream.read(&mut piece).unwrap();
        assert!(got > 0, "closed: {text}");
        text += &String::from_utf8_lossy(&piece[..got]);
    }
    text
}

#[test]
fn a_stream_sends_nothing_when_others_entries_are_stored() {
    let cellar = Cellar::start_configured(LISTENER, &[]);
    let address = address(&cellar);
    // Conditions that others' entries meet, too.
    let both = format!(
        "?where={}",
        encoded(&format!("\"{SECRET}\" in data.text or data.id == \"web1\""))
    );
    let all_of_it = token(&cellar, &["all", "--scope", "read"]);
    let all = ["", "?max_rate=1", "?where=data.text%20is%20defined", &both];
    for (n, (limit, glob, queries)) in [
        ("--minions", "web*", &all[..]),
        ("--functions", "state.*", &[all[0], all[3]]),
        ("--tags", "salt/minion/web1/*", &[all[0], all[3]]),
    ]
    .into_iter()
    .enumerate()
    {
        let args = [&format!("web{n}"), "--scope", "read", limit, glob];
        let token = token(&cellar, &args);
        for query in queries {
            assert_alone(&cellar, &address, [&token, &all_of_it], query, limit);
        }
    }
}

/// A stream with its answer's head read.
fn opened_stream(address: &str, token: &str, query: &str) -> TcpStream {
    let mut stream = connect(address);
    let head = format!(
        "GET /api/v1/events/stream{query} HTTP/1.1\r\nhost: localhost\r\naccept: application/x-ndjson\r\n{token}\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    read_stream(&mut stream, |text| text.contains("\r\n\r\n1\r\n\n\r\n"));
    stream
}

/// Stores entries of the other minion, and returns when a stream without limits has told of all of them: the others
/// have passed them, too.
fn foreign_passed(cellar: &Cellar, witness: &mut TcpStream) {
    foreign(cellar, World::Full, 10);
    let newest = cellar.ask("events_list", vec![("limit", 1.into())]);
    let newest = newest["events"][0]["seq"].as_u64().unwrap();
    let is_there = |text: &str| {
        let ids = text.split("\"id\":\"").skip(1);
        let mut numbers =
            ids.filter_map(|rest| rest.split('"').next()?.split(':').nth(1)?.parse().ok());
        numbers.any(|number: u64| number >= newest)
    };
    read_stream(witness, is_there);
}

/// Asserts that a stream sends web1's events, and nothing when entries of the other minion are stored.
fn assert_alone(cellar: &Cellar, address: &str, tokens: [&str; 2], query: &str, limit: &str) {
    let begun = std::time::Instant::now();
    let [mut stream, mut witness] = tokens.map(|token| opened_stream(address, token, query));
    for n in 0..3 {
        foreign_passed(cellar, &mut witness);
        let tag = format!("salt/minion/web1/{n}");
        let data = json!({ "id": "web1", "fun": "state.apply", "text": "web" });
        event(cellar, &tag, &data);
        foreign_passed(cellar, &mut witness);
        // With a rate, it is sent in another second than the one before, or counted.
        let counted = |text: &str| text.matches("{\"count\":1,").count();
        let text = read_stream(&mut stream, |text| text.contains(&tag) || counted(text) > 0);
        assert!(!text.contains(SECRET), "{limit} {query}: {text}");
        let events = text.matches("\"tag\":").count() + counted(&text);
        assert_eq!(text.matches("skipped").count(), counted(&text), "{text}");
        // A sign of life comes by the clock only, every 10 s.
        let beats = text.matches("\r\n\n\r\n").count();
        let most = usize::try_from(begun.elapsed().as_secs() / 10).unwrap();
        assert!(
            events == 1 && beats <= most,
            "{limit} {query}: {beats} beats, {most} expected: {text}"
        );
    }
}
