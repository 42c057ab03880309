//! Limited tokens: every response equals that of a store in which what the token may not read was never stored.
//!
//! Two stores get the same entries; one of them also has entries of another minion, with a secret in each of their values. Each operation of the
//! API, each view of the page and the part of salt-api is asked with many parameters, among them filters that search for the secret.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Value as Json, json};

use crate::cli::in_process::{LISTENER, token};
use crate::daemon::in_process::{
    Cellar, Http, Stream, address, get, local, request, stream, wait_for,
};
use crate::testkit::entries::Asks as _;
use crate::testkit::limited::{
    ALONE, FOREIGN, ORCHESTRATION, OUT, OWN, SECRET, SHARED, World, chunks, fill, foreign, paths,
    views,
};

fn start(world: World) -> Cellar {
    let cellar = Cellar::start_configured(&format!("{LISTENER}{OUT}"));
    fill(&cellar, world);
    cellar
}

/// Replaces what differs between any two stores: the store's id, sequence numbers, and times of arrival.
fn normal(text: &str) -> String {
    // Compiled once: thousands of responses are compared.
    static RULES: LazyLock<[(Regex, &str); 8]> = LazyLock::new(|| {
        [
            (r"\d{4}-\d\d-\d\dT[0-9:.]+(Z|%3A)?", "TIME"),
            (r"\d{4}-\d\d-\d\d \d\d:\d\d:[0-9.]+", "TIME"),
            (r"\d+[smhd] ago", "AGO"),
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
        "since" | "until" | "not_seen_since" => vec![
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
        "arg" => vec![SECRET.into(), secret(), "web".into(), "*".into()],
        "sort" => vec!["last_seen".into(), "missing".into()],
        "master" => vec!["m2".into(), String::new()],
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
        "result" => [
            "failed",
            "succeeded",
            "missing",
            "changed",
            "none",
            "notable",
        ]
        .map(str::to_owned)
        .into(),
        "state" => ["failed", "changed", "ok", "missing", "not_seen"]
            .map(str::to_owned)
            .into(),
        "upto" => vec!["web1".into(), "db1".into()],
        "cause" => vec!["0000000000000000".into()],
        "metadata" => vec![
            json!({ SECRET: "*" }).to_string(),
            json!({ "web": "*" }).to_string(),
        ],
        "include_polling" | "links" | "attention" | "totals" => vec!["true".into(), "false".into()],
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

/// A response, and those of the pages after it.
fn pages(address: &Http, token: &str, path: &str, secret: &str) -> Vec<(u16, String)> {
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

/// Event streams are JSON lines or server-sent events.
const STREAM_FORMATS: [&str; 2] = ["application/x-ndjson", "text/event-stream"];

/// The newest events that a token may read, oldest first: id and number.
fn listed(address: &Http, token: &str, query: &str) -> Vec<(String, u64)> {
    let answer = get(
        address,
        &format!("/api/v1/events?limit=1000&{query}"),
        token,
    );
    let page = answer.json();
    let events = page["events"]
        .as_array()
        .unwrap_or_else(|| panic!("{page}"));
    let ids = events.iter().map(|event| event["id"].as_str().unwrap());
    let mut found: Vec<_> = ids
        .map(|id| {
            (
                id.to_owned(),
                id.split_once(':').unwrap().1.parse().unwrap(),
            )
        })
        .collect();
    found.reverse();
    found
}

/// What a stream from a position on sends, up to the event with this id.
fn replay(address: &Http, headers: &str, query: &str, last: &str) -> String {
    let path = format!("/api/v1/events/stream?{query}");
    let mut stream = stream(address, &path, headers);
    assert_eq!(stream.answer.status, 200, "{query}");

    let last = format!("\"id\":\"{last}\"");
    let (text, _) = read_stream(&mut stream, |text| text.contains(&last));

    // Without heartbeats, which come by the clock.
    let is_sent = |line: &&str| !matches!(*line, "" | ":");
    let lines: Vec<_> = text.lines().filter(is_sent).collect();
    lines.join("\n")
}

/// Compares streams of stored events, from their begin and from each event on.
fn compare_replays(stores: [&(Http, String); 2], limits: &[&str], secret: &str) {
    let condition = format!("\"{SECRET}\" in data.text or data.id == \"web1\"");
    for query in [String::new(), format!("where={}", encoded(&condition))] {
        let lists = stores.map(|(address, token)| listed(address, token, &query));
        let count = lists[0].len();
        assert_eq!(count, lists[1].len(), "{limits:?} {query}");
        if count == 0 {
            continue;
        }

        for format in STREAM_FORMATS {
            let of = |store: usize, position: &str, after: Option<&str>| {
                let (address, token) = stores[store];
                let after = after.map_or(String::new(), |id| format!("last-event-id: {id}\n"));
                let headers = format!("{token}{after}accept: {format}\n");
                let last = &lists[store][count - 1].0;
                let text = replay(address, &headers, &format!("{position}&{query}"), last);
                assert!(!text.contains(secret), "{limits:?} {query}: {text}");
                assert!(!text.contains("skipped"), "{limits:?} {query}: {text}");
                normal(&text)
            };

            let since = "since=2020-01-01T00:00:00Z";
            let all = [0, 1].map(|store| of(store, since, None));
            assert_eq!(all[0], all[1], "{limits:?} {query} {format}");
            assert_eq!(all[0].matches("\"tag\":").count(), count, "{}", all[0]);

            for at in 1..count {
                // Behind an event that the token may read, and behind the entry before the next one, which it may not read.
                let behind = [0, 1].map(|store| of(store, since, Some(&lists[store][at - 1].0)));
                let before = [0, 1].map(|store| {
                    let (id, number) = &lists[store][at];
                    let (store_id, _) = id.split_once(':').unwrap();
                    of(store, since, Some(&format!("{store_id}:{}", number - 1)))
                });
                assert_eq!(behind[0], behind[1], "{limits:?} {query} {format} {at}");
                assert_eq!(before, behind, "{limits:?} {query} {format} {at}");
                assert_eq!(behind[0].matches("\"tag\":").count(), count - at);
            }
        }
    }
}

/// Compares all responses of two stores for tokens with the same limits. These operations apply them, and all others reject the token.
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
    compare_replays([&of_full, &of_other], limits, secret);
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

const OF_JOBS: [&str; 9] = [
    "/jobs",
    "/jobs/{jid}",
    "/jobs/{jid}/missing",
    "/jobs/{jid}/states",
    "/jobs/{jid}/strip",
    "/jobs/{jid}/durations",
    "/jobs/{jid}/diff",
    "/causes",
    "/fleet",
];
const OF_EVENTS: [&str; 3] = ["/events", "/events/count", "/events/rates"];
const OF_MINIONS: [&str; 2] = ["/minions", "/minions/{minion}"];

#[test]
fn a_token_limited_to_minions_reads_as_if_there_were_no_others() {
    let (full, other) = (start(World::Full), start(World::WithoutMinion));
    let all = [&OF_JOBS[..], &OF_EVENTS, &OF_MINIONS].concat();
    compare(&full, &other, &["--minion", "web*"], SECRET, &all);
    let both = [&OF_JOBS[..], &OF_EVENTS].concat();
    let limits = ["--minion", "web1", "--fun", "state.*"];
    compare(&full, &other, &limits, SECRET, &both);
}

#[test]
fn a_token_limited_to_functions_or_tags_reads_as_if_there_were_no_others() {
    let (full, other) = (start(World::Full), start(World::WithoutOwnOfMinion));
    let both = [&OF_JOBS[..], &OF_EVENTS].concat();
    compare(&full, &other, &["--fun", "state.*"], ALONE, &both);
    compare(
        &full,
        &other,
        &["--tag", "salt/job/20261121*"],
        ALONE,
        &OF_EVENTS,
    );
}

/// The pieces of a stream until `done`, which gets the text of all of them.
fn read_stream(stream: &mut Stream, done: impl Fn(&str) -> bool) -> (String, usize) {
    let (mut text, mut beats) = (String::new(), 0);
    while !done(&text) {
        let piece = stream.piece().unwrap_or_else(|| panic!("closed: {text}"));
        beats += usize::from(&*piece == b"\n");
        text += &String::from_utf8_lossy(&piece);
    }
    (text, beats)
}

#[test]
fn a_stream_sends_nothing_when_others_entries_are_stored() {
    let cellar = Cellar::start_configured(LISTENER);
    let address = address(&cellar);
    // Conditions that entries of others also meet.
    let both = format!(
        "?where={}",
        encoded(&format!("\"{SECRET}\" in data.text or data.id == \"web1\""))
    );
    let all_of_it = token(&cellar, &["all", "--scope", "read"]);
    let all = ["", "?max_rate=1", "?where=data.text%20is%20defined", &both];
    for (n, (limit, glob, queries)) in [
        ("--minion", "web*", &all[..]),
        ("--fun", "state.*", &[all[0], all[3]]),
        ("--tag", "salt/minion/web1/*", &[all[0], all[3]]),
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

#[test]
fn a_stream_behind_retention_tells_nothing_of_others_entries() {
    // 1024 entries in sixteen segments.
    let classes = "store: {minion_share: 100, classes: [{name: events, keep: {entries: 1024}}]}\n";
    let cellar = Cellar::start_configured(&format!("{LISTENER}{classes}"));
    let address = address(&cellar);
    let own = |n: usize| {
        let data = json!({ "id": "web1", "fun": "state.apply", "text": "web", "n": n });
        cellar.store_event(&format!("salt/minion/web1/{n}"), &data);
    };
    let tokens = [
        ["--minion", "web*"],
        ["--fun", "state.*"],
        ["--tag", "salt/minion/web1/*"],
    ]
    .map(|limits| {
        let name = format!("of{}", limits[0]);
        token(
            &cellar,
            &[&[&*name, "--scope", "read"], &limits[..]].concat(),
        )
    });
    let all_of_it = token(&cellar, &["all", "--scope", "read"]);

    own(0);
    own(1);
    let seen = listed(&address, &tokens[0], "")[0].0.clone();
    foreign(&cellar, World::Full, 700);
    own(2);
    foreign(&cellar, World::Full, 3);
    own(3);
    wait_for("retention", || {
        (cellar.counter("segments_dropped") > 3).then_some(())
    });

    for format in STREAM_FORMATS {
        for position in [
            "since=2020-01-01T00:00:00Z".to_owned(),
            format!("after={}", encoded(&seen)),
        ] {
            for token in &tokens {
                let left = listed(&address, token, "");
                let headers = format!("{token}accept: {format}\n");
                let text = replay(&address, &headers, &position, &left[1].0);
                let numbers: Vec<_> = text
                    .split("\"n\":")
                    .skip(1)
                    .map(|rest| &rest[..1])
                    .collect();
                assert_eq!(numbers, ["2", "3"], "{position}: {text}");
                for word in [SECRET, "gap", "lost", "skipped"] {
                    assert!(!text.contains(word), "{position}: {text}");
                }
            }

            // There is a gap for whom it concerns.
            if position.starts_with("after") {
                let headers = format!("{all_of_it}accept: {format}\n");
                let newest = listed(&address, &all_of_it, "").pop().unwrap().0;
                let text = replay(&address, &headers, &position, &newest);
                assert!(text.contains("saltcellar/gap/retention"), "{text}");
            }
        }
    }
}

/// A stream whose position is fixed: its response has started.
fn opened_stream(address: &Http, token: &str, query: &str) -> Stream {
    let path = format!("/api/v1/events/stream{query}");
    let mut stream = stream(
        address,
        &path,
        &format!("accept: application/x-ndjson\n{token}"),
    );
    assert_eq!(stream.answer.status, 200);
    assert_eq!(&*stream.piece().unwrap(), b"\n");
    stream
}

/// Stores entries of the other minion, and returns when a stream without limits has told of all of them: the others
/// have also passed them.
fn foreign_passed(cellar: &Cellar, witness: &mut Stream) {
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
fn assert_alone(cellar: &Cellar, address: &Http, tokens: [&str; 2], query: &str, limit: &str) {
    let begun = std::time::Instant::now();
    let [mut stream, mut witness] = tokens.map(|token| opened_stream(address, token, query));
    for n in 0..3 {
        foreign_passed(cellar, &mut witness);
        let tag = format!("salt/minion/web1/{n}");
        let data = json!({ "id": "web1", "fun": "state.apply", "text": "web" });
        cellar.store_event(&tag, &data);
        foreign_passed(cellar, &mut witness);
        // With a rate, it is sent in another second than the one before, or counted.
        let counted = |text: &str| text.matches("{\"count\":1,").count();
        let (text, beats) =
            read_stream(&mut stream, |text| text.contains(&tag) || counted(text) > 0);
        assert!(!text.contains(SECRET), "{limit} {query}: {text}");
        let events = text.matches("\"tag\":").count() + counted(&text);
        assert_eq!(text.matches("skipped").count(), counted(&text), "{text}");
        // A heartbeat comes by the clock only, every 10 s.
        let most = usize::try_from(begun.elapsed().as_secs() / 10).unwrap();
        assert!(
            events == 1 && beats <= most,
            "{limit} {query}: {beats} beats, {most} expected: {text}"
        );
    }
}
