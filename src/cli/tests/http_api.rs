//! Metrics, hooks, and every operation of the API.

use std::io::{BufRead as _, BufReader};

use crate::cli::in_process::{LISTENER, token};
use crate::daemon::in_process::{
    Answer, Cellar, Http, address, get, local, map, request, stream, wait_for,
};
use crate::testkit::entries::Asks as _;
use rmpv::Value;
use serde_json::{Value as Json, json};

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

/// Whether a value fits a schema, in the parts of JSON Schema that the document uses.
fn check(document: &Json, schema: &Json, value: &Json, at: &str) {
    if let Some(target) = schema["$ref"].as_str() {
        let name = target.rsplit('/').next().unwrap();
        let target = &document["components"]["schemas"][name];
        assert!(target.is_object(), "{at}: {name} is not described");
        return check(document, target, value, at);
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        let fits = |choice: &Json| choice["type"] == "null" && value.is_null();
        if !choices.iter().any(fits) {
            let other = choices
                .iter()
                .find(|choice| choice["type"] != "null")
                .unwrap();
            check(document, other, value, at);
        }
        return;
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Json::String(kind) => vec![kind],
        Json::Array(kinds) => kinds.iter().filter_map(Json::as_str).collect(),
        _ => return,
    };
    let kind = match value {
        Json::Null => "null",
        Json::Bool(_) => "boolean",
        Json::Number(number) if number.is_f64() => "number",
        Json::Number(_) => "integer",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    };
    let fits = kinds.contains(&kind) || (kind == "integer" && kinds.contains(&"number"));
    assert!(fits, "{at}: {kind}, expected {kinds:?}: {value}");
    if let Some(items) = value.as_array() {
        for (n, item) in items.iter().enumerate() {
            check(document, &schema["items"], item, &format!("{at}[{n}]"));
        }
    }
    let (Some(fields), Some(properties)) = (value.as_object(), schema["properties"].as_object())
    else {
        return;
    };
    for name in schema["required"].as_array().into_iter().flatten() {
        assert!(
            fields.contains_key(name.as_str().unwrap()),
            "{at}: {name} is missing in {value}"
        );
    }
    for (name, field) in fields {
        let property = properties
            .get(name)
            .unwrap_or_else(|| panic!("{at}.{name} is not described"));
        check(document, property, field, &format!("{at}.{name}"));
    }
}

fn ok(answer: &Answer) -> Json {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

#[test]
fn every_operation_answers_as_the_openapi_document_describes() {
    let text = format!(
        "{LISTENER}sinks:\n  out: {{encoder: json, transport: {{file: {{path: DIR/out.jsonl}}}}}}\n"
    );
    let cellar = Cellar::start_configured(&text);
    let jid = "20261121054728123456";
    put_job(&cellar, "20261121054528123456", "state.apply");
    put_job(&cellar, jid, "state.apply");
    put(&cellar, 0..5);
    let document = ok(&local(&cellar, "GET", "/api/v1/openapi.json", b""));
    let mut operations: Vec<(String, String, Json)> = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            operations.push((method.to_ascii_uppercase(), path.clone(), operation.clone()));
        }
    }
    // Created before it is used, deleted last.
    operations.sort_by_key(|(method, path, _)| match method.as_str() {
        "PUT" => 0,
        "DELETE" => 9,
        // A seek ends the lease; `ack` follows `next`.
        _ if path.ends_with("/next") => 1,
        _ if path.ends_with("/ack") => 2,
        _ => 3,
    });
    assert!(operations.len() > 25, "{}", operations.len());
    let mut seq = 0;
    for (method, path, operation) in &operations {
        let url = path.replace("{jid}", jid).replace(
            "{name}",
            if path.contains("/sinks/") {
                "out"
            } else {
                "audit"
            },
        );
        let url = url.replace("{seq}", "1").replace("{minion}", "web1");
        let body = match path.rsplit('/').next().unwrap() {
            "{name}" if method == "PUT" => {
                json!({ "match": [{ "tag": "salt/*" }], "to": "oldest" })
            }
            "next" => json!({ "limit": 2, "holder": "me" }),
            "ack" => json!({ "seq": seq, "holder": "me" }),
            "nack" => json!({ "error": "broken", "holder": "me" }),
            "seek" => json!({ "to": "newest" }),
            _ => json!({}),
        };
        let url = if path.ends_with("/why") {
            format!("{url}?tag=a")
        } else {
            url
        };
        if path.ends_with("/stream") {
            continue;
        }
        let answer = local(&cellar, method, &url, body.to_string().as_bytes());
        // No reactor is configured.
        if path.contains("/reactor") {
            assert_eq!(
                answer.status,
                if path.ends_with("/reactions") {
                    200
                } else {
                    409
                },
                "{path}: {}",
                answer.text()
            );
            continue;
        }
        let answer = ok(&answer);
        let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
        check(&document, schema, &answer, &format!("{method} {path}"));
        if path.ends_with("/next") {
            assert_eq!(answer["events"].as_array().unwrap().len(), 2);
            seq = answer["events"][1]["seq"].as_u64().unwrap();
        }
    }
    let store = ok(&local(&cellar, "GET", "/api/v1/store", b""));
    let hours: Vec<u64> = store["entries_by_hour"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Json::as_u64)
        .collect();
    let stored: u64 = store["classes"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|class| class["entries"].as_u64())
        .sum();
    assert!(
        hours.len() == 24 && stored > 0 && hours.iter().sum::<u64>() == stored,
        "{store}"
    );
    assert_eq!(
        hours[..22],
        [0; 22],
        "all within this hour, or the one before"
    );
    let job = ok(&local(&cellar, "GET", &format!("/api/v1/jobs/{jid}"), b""));
    assert_eq!(job["returns"][0]["minion"], "web1");
    assert!(job["time"].as_str().unwrap().ends_with('Z'), "{job}");
    let missing = ok(&local(
        &cellar,
        "GET",
        &format!("/api/v1/jobs/{jid}/missing"),
        b"",
    ));
    assert_eq!(missing["missing"], json!(["db1"]));
    let diff = ok(&local(
        &cellar,
        "GET",
        &format!("/api/v1/jobs/{jid}/diff"),
        b"",
    ));
    assert_eq!(
        (&diff["a"]["jid"], &diff["same"]),
        (&json!("20261121054528123456"), &json!(1)),
        "{diff}"
    );
    let minions = ok(&local(&cellar, "GET", "/api/v1/minions?limit=1", b""));
    assert_eq!(
        (&minions["minions"][0]["id"], &minions["next"]),
        (&json!("db1"), &json!("db1")),
        "{minions}"
    );
    let minion = ok(&local(&cellar, "GET", "/api/v1/minions/web1", b""));
    assert_eq!(
        minion["highstate"]["states"],
        json!({"total": 1, "failed": 0, "changed": 1}),
        "{minion}"
    );
    assert_eq!(minion["last"]["time"], "2026-11-21T05:47:28.123456Z");
    for path in ["/api/v1/jobs/20200101000000000000", "/api/v1/minions/web9"] {
        assert_eq!(local(&cellar, "GET", path, b"").status, 404, "{path}");
    }
}

#[test]
fn a_search_through_everything_ends_early_and_continues() {
    let cellar = Cellar::start_configured(LISTENER);
    put(&cellar, 7..8);
    // 80 MB in which there is nothing to find.
    let text = Value::from("x".repeat(1 << 20));
    for _ in 0..80 {
        let event = map(vec![
            ("tag", "big".into()),
            ("data", map(vec![("text", text.clone())])),
        ]);
        cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
    }
    let path = "/api/v1/events?where=data.n%20==%207";
    let first = ok(&local(&cellar, "GET", path, b""));
    assert_eq!(
        (&first["events"], &first["more"]),
        (&json!([]), &json!(true)),
        "{first}"
    );
    let next = first["next"].as_str().unwrap();
    let second = ok(&local(
        &cellar,
        "GET",
        &format!("{path}&cursor={next}"),
        b"",
    ));
    assert_eq!(
        (&second["events"][0]["data"]["n"], &second["next"]),
        (&json!(7), &Json::Null),
        "{second}"
    );
    let count = ok(&local(
        &cellar,
        "GET",
        "/api/v1/events/count?where=data.n%20==%207",
        b"",
    ));
    assert_eq!(count["count"], 1, "{count}");
    let from = count["next"].as_u64().unwrap();
    let rest = ok(&local(
        &cellar,
        "GET",
        &format!("/api/v1/events/count?where=data.n%20==%207&from={from}"),
        b"",
    ));
    assert_eq!(
        (&rest["count"], &rest["next"]),
        (&json!(0), &Json::Null),
        "{rest}"
    );
}

#[test]
fn metrics_count_jobs_returns_and_times_and_name_no_minion_unless_configured() {
    let cellar = Cellar::start_configured(LISTENER);
    let address = address(&cellar);
    put_job(&cellar, "20261121054728123456", "state.apply");
    cellar.ask(
        "consumer_create",
        vec![("name", "audit".into()), ("to", "oldest".into())],
    );
    let page = get(&address, "/metrics", "");
    assert_eq!(page.status, 200);
    assert!(
        page.header("content-type")
            .unwrap()
            .starts_with("application/openmetrics-text")
    );
    let text = page.text();
    for line in [
        "# TYPE saltcellar_entries_stored counter",
        "saltcellar_jobs_total{function_class=\"state\"} 1",
        "saltcellar_returns_total{function_class=\"state\",outcome=\"succeeded\",confirmed=\"yes\"} 1",
        "saltcellar_consumer_lag_entries{consumer=\"audit\"} 2.0",
        "saltcellar_commit_duration_seconds_bucket{le=\"+Inf\"}",
        "saltcellar_response_duration_seconds_count",
    ] {
        assert!(
            text.lines().any(|found| found.starts_with(line)),
            "{line}: {text}"
        );
    }
    assert!(
        text.ends_with("# EOF\n") && !text.contains("web1") && !text.contains("20261121"),
        "{text}"
    );
    let with = Cellar::start_configured("http: {listen: '127.0.0.1:0', minion_metrics: true}\n");
    put_job(&with, "20261121054728123456", "state.apply");
    let text = get(&crate::daemon::in_process::address(&with), "/metrics", "").text();
    assert!(
        text.contains("saltcellar_minion_highstate_failed{minion=\"web1\"} 0.0"),
        "{text}"
    );
}

#[test]
fn no_condition_in_an_address_ends_the_daemon() {
    let cellar = Cellar::start_configured(LISTENER);
    let address = address(&cellar);
    let read = token(
        &cellar,
        &["r", "--scope", "read", "--minion", "does-not-exist"],
    );
    for deep in [
        format!("data{}", ".a".repeat(1_900)),
        format!("{}1", "-".repeat(3_900)),
        format!("{}1{}", "(".repeat(1_900), ")".repeat(1_900)),
        format!("data{}", "%20is%20true".repeat(300)),
    ] {
        let refused = get(&address, &format!("/api/v1/events?where={deep}"), &read);
        assert!(
            refused.status == 400 && refused.text().contains("nested"),
            "{}",
            refused.text()
        );
    }
    assert_eq!(get(&address, "/healthz", "").status, 200);
}

#[test]
fn a_token_reads_what_its_scope_and_limits_allow() {
    let sink = "sinks:\n  out: {encoder: json, transport: {file: {path: DIR/out.jsonl}}}\n";
    let cellar = Cellar::start_configured(&format!("{LISTENER}{sink}"));
    let address = address(&cellar);
    put(&cellar, 0..4);
    put_job(&cellar, "20261121054728123456", "state.apply");
    put_job(&cellar, "20261121054729123456", "test.ping");
    let read = token(&cellar, &["reader", "--scope", "read"]);
    let web = token(&cellar, &["web", "--scope", "read", "--minion", "web*"]);
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
    let state = token(&cellar, &["state", "--scope", "write", "--fun", "state.*"]);
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
}

/// Reads a stream's events until there are `count`.
fn follow(address: &Http, path: &str, headers: &str, count: usize) -> Vec<(String, u64)> {
    let stream = stream(address, path, headers);
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
    let cellar = Cellar::start_configured(LISTENER);
    let address = address(&cellar);
    let read = token(&cellar, &["reader", "--scope", "read"]);
    let stream = stream(&address, "/api/v1/events/stream", &read);
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    // The position is fixed once the response has started.
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
fn a_stream_ends_when_its_session_is_signed_out() {
    let cellar = Cellar::start_configured(LISTENER);
    let address = address(&cellar);
    let link = cellar.ask("page_link", vec![]);
    let opened = get(&address, link["path"].as_str().unwrap(), "");
    let cookie = opened.header("set-cookie").unwrap();
    let cookie = format!("cookie: {}\r\n", cookie.split(';').next().unwrap());

    let stream = stream(&address, "/api/v1/events/stream", &cookie);
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    // The position is fixed once the response has started.
    assert!(lines.by_ref().any(|line| line == ":"));
    put(&cellar, 0..1);
    assert!(lines.by_ref().any(|line| line.contains("\"n\":0")));

    let own = format!("{cookie}origin: http://{address}\r\n");
    assert_eq!(
        request(&address, "POST", "/sign-out", &own, b"").status,
        303
    );
    put(&cellar, 1..2);
    let rest: Vec<_> = lines.take(20).collect();
    assert!(
        rest.iter().any(|line| line.contains("session_ended")),
        "{rest:?}"
    );
    assert!(
        !rest.iter().any(|line| line.contains("\"n\":1")),
        "{rest:?}"
    );
}

#[test]
fn a_stream_resumes_without_a_gap_or_a_duplicate() {
    let cellar = Cellar::start_configured(LISTENER);
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
    let cellar = Cellar::start_configured(&format!("{LISTENER}{classes}"));
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
    let lines = BufReader::new(stream(&address, path, &last))
        .lines()
        .map(Result::unwrap);
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
    assert_eq!(stream(&address, path, &after).answer.status, 200);
}
