//! The web page: every view, sign-in, and hostile text in every field.

use crate::cli::in_process::{LISTENER, token};
use crate::daemon::in_process::{Answer, Cellar, Http, address, get, local, map, request};
use crate::testkit::entries::Asks as _;
use rmpv::Value;
use serde_json::{Value as Json, json};

pub(super) const JID: &str = "20261121054728123456";
pub(super) const EARLIER: &str = "20261121054528123456";

/// Would leave its place in an element, an attribute, a script or a template.
const HOSTILE: &str =
    "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{ 7 * 7 }}{% raw %}&amp;";

/// Characters of an id that Salt accepts in tags, and that break an address.
const HOSTILE_ID: &str = "a\"><b>?#&%2f é";

/// Stores a highstate with a failed and a changed state of each minion, and one missing minion.
pub(super) fn put_job(cellar: &Cellar, jid: &str, minions: &[&str], text: &str) {
    let expected = minions
        .iter()
        .copied()
        .chain(["missing1"])
        .map(Value::from)
        .collect();
    let load = json!({
        "fun": "state.highstate", "jid": jid, "tgt": text, "tgt_type": "glob", "user": text, "arg": [text],
        "cmd": "publish",
    });
    let load = crate::wire::msgpack::json::from_json(&load).unwrap();
    cellar.ask(
        "save_load",
        vec![
            ("jid", jid.into()),
            ("load", load),
            ("minions", Value::Array(expected)),
        ],
    );
    for minion in minions {
        let state = |result: bool, changes: Json, n: u32| {
            json!({
                "result": result, "changes": changes, "comment": text, "name": text, "__id__": format!("{text}{jid}"),
                "__sls__": text, "duration": 1.5, "start_time": "05:47:28.123456", "__run_num__": n,
            })
        };
        let load = json!({
            "jid": jid, "id": minion, "fun": "state.highstate", "retcode": 2, "success": false,
            "return": {
                (format!("file_|-{text}_|-{text}_|-managed")): state(false, json!({}), 0),
                "cmd_|-b_|-b_|-run": state(true, json!({ text: [text, { text: text }] }), 1),
            },
        });
        cellar.ask(
            "returner",
            vec![(
                "load",
                crate::wire::msgpack::json::from_json(&load).unwrap(),
            )],
        );
    }
}

pub(super) fn put_event(cellar: &Cellar, tag: &str, minion: &str, text: &str) {
    let data = map(vec![
        ("id", minion.into()),
        ("fun", text.into()),
        ("text", text.into()),
        (
            text,
            Value::Array(vec![text.into(), map(vec![(text, text.into())])]),
        ),
    ]);
    let event = map(vec![("tag", tag.into()), ("data", data)]);
    cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
}

/// The text of a view, with the headers that every view has.
pub(super) fn html(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(
        answer.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    let policy = answer.header("content-security-policy").unwrap();
    assert!(
        policy.contains("default-src 'none'") && !policy.contains("unsafe"),
        "{policy}"
    );
    assert!(
        policy.contains("frame-ancestors 'none'") && policy.contains("script-src 'self'"),
        "{policy}"
    );
    let text = answer.text();
    // Each view has its own title.
    assert!(text.contains(" – saltcellar</title>"), "{text}");
    text
}

fn latest_event(cellar: &Cellar) -> u64 {
    local(cellar, "GET", "/api/v1/events?limit=1", b"").json()["events"][0]["seq"]
        .as_u64()
        .unwrap()
}

fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| format!("%{byte:02X}"))
        .collect::<Vec<_>>()
        .concat()
}

#[test]
fn every_view_shows_what_is_stored() {
    let text = format!(
        "{LISTENER}sinks:\n  out: {{encoder: json, transport: {{file: {{path: DIR/out.jsonl}}}}}}\n"
    );
    let cellar = Cellar::start_configured(&text);
    put_job(&cellar, EARLIER, &["web1", "web2"], "first");
    put_job(&cellar, JID, &["web1", "web2"], "second");
    put_event(&cellar, "test/a", "web1", "hello");
    let seq = latest_event(&cellar);
    local(&cellar, "PUT", "/api/v1/consumers/audit", b"{}");
    for (path, expected) in [
        (
            "/".to_owned(),
            &[
                "web1",
                "missing1",
                "Minions that need attention",
                "Free space",
            ][..],
        ),
        (
            "/jobs".to_owned(),
            &["state.highstate", "2 failed", "1 missing", JID],
        ),
        (
            "/jobs?result=failed&fun=state.*".to_owned(),
            &[JID, EARLIER, "value=\"state.*\""],
        ),
        ("/jobs?fun=nothing".to_owned(), &["No job matches"]),
        (
            format!("/jobs/{JID}"),
            &[
                "never seen",
                "missing1",
                "What failed",
                "class=\"strip\"",
                "<title>web1: failed</title>",
                "2 states: 1 failed, 1 changed",
            ],
        ),
        (
            format!("/jobs/{JID}?minion=web2"),
            &["Shown: of <b>web2</b> of a job with 2 returns, 2 failed"],
        ),
        (
            format!("/jobs/{JID}/causes"),
            &["2 minions with 2 failed returns", "second"],
        ),
        (format!("/jobs/{JID}/durations"), &["1.5 ms", "web1"]),
        ("/causes".to_owned(), &["Causes of failures"]),
        ("/durations".to_owned(), &["Slowest states"]),
        ("/minions?state=failed".to_owned(), &["web1"]),
        (
            format!("/jobs/{JID}/diff?with={EARLIER}"),
            &["only in the later run", "web1", "first", "second"],
        ),
        ("/events".to_owned(), &["test&#x2f;a", "data-stream=\""]),
        ("/events?tag=test/*".to_owned(), &["match=", "test&#x2f;a"]),
        (format!("/events/{seq}"), &["hello", "<b>text</b>"]),
        (
            "/minions".to_owned(),
            &["web1", "failed", "1 failed, 1 changed of 2"],
        ),
        (
            "/minions/web1".to_owned(),
            &["Failed states", "2 states, 1 failed, 1 changed", "History"],
        ),
        ("/reactor".to_owned(), &["no reactor is configured"]),
        ("/sinks".to_owned(), &["out.jsonl", "Delivery"]),
        ("/consumers".to_owned(), &["audit", "Delivery"]),
        ("/sinks/out".to_owned(), &["Dead letters", "out.jsonl"]),
    ] {
        let page = html(&local(&cellar, "GET", &path, b""));
        for part in expected {
            assert!(page.contains(part), "{path}: `{part}` is missing in {page}");
        }
    }
    for path in [
        "/jobs/20200101000000000000",
        "/minions/unknown",
        "/events/999999",
        "/events/x",
        "/sinks/none",
    ] {
        let answer = local(&cellar, "GET", path, b"");
        assert!(
            matches!(answer.status, 400 | 404 | 409),
            "{path}: {}",
            answer.status
        );
        assert!(
            answer.text().contains("<h1>Error"),
            "{path}: {}",
            answer.text()
        );
    }
    let wrong = local(&cellar, "GET", "/jobs?last=1y", b"");
    assert_eq!(wrong.status, 400);
    assert!(
        wrong.text().contains("expected 1h, 1d, 7d, 30d or between"),
        "{}",
        wrong.text()
    );
}

#[test]
fn hostile_text_stays_text_in_every_view() {
    let cellar = Cellar::start_configured(LISTENER);
    put_job(&cellar, EARLIER, &[HOSTILE_ID, "web1"], "before");
    put_job(&cellar, JID, &[HOSTILE_ID, "web1"], HOSTILE);
    put_event(&cellar, &format!("test/{HOSTILE}"), HOSTILE_ID, HOSTILE);
    let seq = latest_event(&cellar);
    let (text, id) = (encoded(HOSTILE), encoded(HOSTILE_ID));
    for path in [
        "/".to_owned(),
        "/jobs".to_owned(),
        format!("/jobs?fun={text}&tgt={text}&minion={id}&user={text}&jid={text}"),
        format!("/jobs/{JID}"),
        format!("/jobs/{JID}?minion={id}"),
        format!("/jobs/{JID}/diff?with={EARLIER}"),
        "/events".to_owned(),
        format!("/events?tag={text}&minion={id}&jid={text}"),
        format!("/events/{seq}"),
        "/minions".to_owned(),
        format!("/minions?minion={text}"),
        format!("/minions/{id}"),
        format!("/minions/{text}"),
        format!("/jobs/{text}"),
        format!("/reactor?tag={text}&minion={id}&why={text}"),
        format!("/sinks/{text}"),
        format!("/sign-in?next={text}"),
        format!("/jobs?{text}={text}"),
        format!("/jobs?last={text}"),
        format!("/jobs?cursor={text}"),
    ] {
        let answer = local(&cellar, "GET", &path, b"");
        assert_eq!(
            answer.header("content-type"),
            Some("text/html; charset=utf-8"),
            "{path}"
        );
        let page = answer.text();
        assert_ne!(answer.status, 500, "{path}: {page}");
        for bad in ["<script>alert", "<img", "<b>?", "onerror=alert(1)>", "\"'>"] {
            assert!(!page.contains(bad), "{path}: {bad} in {page}");
        }
        assert!(
            !page.contains("49{%") && page.matches("<script").count() == 1,
            "{path}: {page}"
        );
    }
    // The text is there, so the checks above had something to find.
    let event = html(&local(&cellar, "GET", &format!("/events/{seq}"), b""));
    assert!(
        event.contains("&lt;script&gt;alert(1)&lt;&#x2f;script&gt;"),
        "{event}"
    );
    let minion = html(&local(&cellar, "GET", &format!("/minions/{id}"), b""));
    assert!(
        minion.contains("a&quot;&gt;&lt;b&gt;?#&amp;%2f é"),
        "{minion}"
    );
}

#[test]
fn no_link_leads_to_another_site() {
    let cellar = Cellar::start_configured(LISTENER);
    let address = address(&cellar);
    let link =
        "sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: document\r\n";
    for path in ["//evil.example", "//evil.example/jobs", "///evil.example"] {
        let page = html(&get(&address, path, link));
        assert!(
            page.contains("<a href=\"&#x2f;\">Continue") && !page.contains("evil"),
            "{page}"
        );
    }
}

#[test]
fn a_link_on_another_site_opens_a_view_without_data_in_its_first_answer() {
    let cellar = Cellar::start_configured(LISTENER);
    let address = address(&cellar);
    put_job(&cellar, JID, &["web1"], "x");
    let line = token(&cellar, &["r", "--scope", "read"]);
    let link =
        "sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: document\r\n";
    let page = html(&get(
        &address,
        &format!("/jobs/{JID}?minion=web1"),
        &format!("{line}{link}"),
    ));
    assert!(
        page.contains("http-equiv=\"refresh\"") && page.contains("Continue"),
        "{page}"
    );
    assert!(!page.contains("state.highstate"), "{page}");
    assert_eq!(
        get(&address, "/api/v1/jobs", &format!("{line}{link}")).status,
        403
    );
    assert_eq!(
        get(
            &address,
            "/jobs",
            &format!("{line}sec-fetch-site: cross-site\r\n")
        )
        .status,
        403
    );
}

#[test]
fn the_assets_have_entity_tags_and_refer_to_this_listener_only() {
    let cellar = Cellar::start_configured(LISTENER);
    let address = address(&cellar);
    let mut total = 0;
    for (path, kind) in [
        ("/assets/page.css", "text/css; charset=utf-8"),
        ("/assets/page.js", "text/javascript; charset=utf-8"),
        ("/assets/icon.svg", "image/svg+xml"),
    ] {
        let asset = get(&address, path, "");
        assert_eq!(
            (asset.status, asset.header("content-type")),
            (200, Some(kind)),
            "{path}"
        );
        total += asset.body.len();
        let tag = format!("if-none-match: {}\r\n", asset.header("etag").unwrap());
        assert_eq!(get(&address, path, &tag).status, 304, "{path}");
    }
    assert!(total < 200_000, "{total}");
}

/// The cookie that signing in sets.
fn cookie(address: &Http, token: &str, next: &str) -> Answer {
    let origin =
        format!("origin: http://{address}\r\ncontent-type: application/x-www-form-urlencoded\r\n");
    let body = format!("token={}&next={}", encoded(token), encoded(next));
    request(address, "POST", "/sign-in", &origin, body.as_bytes())
}

#[test]
fn a_token_signs_in_and_its_limits_apply() {
    let mut cellar = Cellar::start_configured(LISTENER);
    let address = address(&cellar);
    put_job(&cellar, JID, &["web1", "db1"], "x");
    let secret = |line: &str| line.trim().rsplit(' ').next().unwrap().to_owned();
    let web = secret(&token(
        &cellar,
        &["web", "--scope", "read", "--minion", "web*"],
    ));
    // Without a token: the form, and no data.
    for path in ["/", "/jobs", &format!("/jobs/{JID}"), "/minions/web1"] {
        let answer = get(&address, path, "");
        assert_eq!(answer.status, 401, "{path}");
        assert!(
            answer.text().contains("name=\"token\"") && !answer.text().contains("web1</"),
            "{}",
            answer.text()
        );
    }
    let wrong = cookie(&address, "sct_wrong", "/jobs");
    assert_eq!((wrong.status, wrong.header("set-cookie")), (401, None));
    let signed = cookie(&address, &web, "/minions?minion=web*");
    assert_eq!(
        (signed.status, signed.header("location")),
        (303, Some("/minions?minion=web*"))
    );
    assert_eq!(
        cookie(&address, &web, "https://evil.example/").header("location"),
        Some("/")
    );
    let set = signed.header("set-cookie").unwrap();
    assert!(
        set.contains("; HttpOnly") && set.contains("; SameSite=Strict") && !set.contains("Secure"),
        "{set}"
    );
    let line = format!("cookie: {}\r\n", set.split(';').next().unwrap());
    let minions = html(&get(&address, "/minions", &line));
    assert!(
        minions.contains("web1") && !minions.contains("db1"),
        "{minions}"
    );
    assert!(minions.contains("token web, right read"), "{minions}");
    let job = html(&get(&address, &format!("/jobs/{JID}"), &line));
    assert!(
        job.contains("aria-label=\"States of web1\"")
            && !job.contains("db1")
            && !job.contains("missing1"),
        "{job}"
    );
    let jobs = html(&get(&address, "/jobs", &line));
    assert!(jobs.contains(JID) && !jobs.contains("db1"), "{jobs}");
    for path in ["/minions/db1", "/sinks/out"] {
        let denied = get(&address, path, &line);
        assert_eq!(denied.status, 403, "{path}");
        assert!(
            denied.text().contains("limited to minions web*"),
            "{}",
            denied.text()
        );
    }
    // The overview has what the token may read, and no error for the rest.
    let overview = html(&get(&address, "/", &line));
    for part in [
        "limited to minions web*",
        "Failed in the last day",
        "web1",
        "href=\"&#x2f;minions\"",
    ] {
        assert!(overview.contains(part), "{part} in {overview}");
    }
    for part in [
        "class=\"note\"",
        "Sources and lag",
        "href=\"&#x2f;sinks\"",
        "href=\"&#x2f;reactor\"",
    ] {
        assert!(!overview.contains(part), "{part} in {overview}");
    }
    // The stream of the page contains the cookie too.
    assert_eq!(get(&address, "/api/v1/minions", &line).status, 200);
    // A change needs the proof of its origin, and the right.
    let replay = "/reactor/reactions/1/replay";
    assert_eq!(request(&address, "POST", replay, &line, b"").status, 401);
    let origin = format!("{line}origin: http://{address}\r\n");
    assert_eq!(request(&address, "POST", replay, &origin, b"").status, 403);
    let foreign = format!("{line}origin: http://evil.example\r\n");
    let refused = request(&address, "POST", replay, &foreign, b"");
    assert!(
        refused.text().contains("other sites are rejected"),
        "{}",
        refused.text()
    );
    assert!(
        !set.contains(&web),
        "the cookie is a session, not the token"
    );
    // Signing out ends the session on the daemon, not only the cookie; another session of the token goes on.
    let other = cookie(&address, &web, "/");
    let other = other
        .header("set-cookie")
        .unwrap()
        .split(';')
        .next()
        .unwrap();
    let other = format!("cookie: {other}\r\n");
    let out = request(&address, "POST", "/sign-out", &origin, b"");
    assert!(out.header("set-cookie").unwrap().contains("Max-Age=0"));
    assert_eq!(get(&address, "/minions", &line).status, 401, "signed out");
    assert_eq!(get(&address, "/minions", &other).status, 200);
    let line = other;
    // The token itself is no cookie.
    let token_cookie = format!("cookie: saltcellar={web}\r\n");
    assert_eq!(get(&address, "/minions", &token_cookie).status, 401);
    cellar.ask("token_revoke", vec![("name", "web".into())]);
    assert_eq!(
        get(&address, "/minions", &line).status,
        401,
        "a revoked token is signed out"
    );
    assert!(cellar.terminate());
}

#[test]
fn a_session_that_has_ended_is_named_as_the_reason_to_sign_in_again() {
    let mut cellar = Cellar::start_configured(LISTENER);
    let line = token(&cellar, &["web", "--scope", "read"]);
    let secret = line.trim().rsplit(' ').next().unwrap().to_owned();
    let session = |cellar: &Cellar| {
        let signed = cookie(&address(cellar), &secret, "/");
        let set = signed.header("set-cookie").unwrap().to_owned();
        format!("cookie: {}\r\n", set.split(';').next().unwrap())
    };
    let ended =
        "Your session has ended: it expired, its token was revoked, or saltcellar was restarted.";
    let assert_ended = |cellar: &Cellar, cookie: &str| {
        let address = address(cellar);
        let view = get(&address, "/jobs", cookie);
        assert_eq!(view.status, 401);
        assert!(view.text().contains(ended), "{}", view.text());
        assert!(view.text().contains("name=\"next\" value=\"&#x2f;jobs\""));
        let call = get(&address, "/api/v1/jobs", cookie);
        assert_eq!(call.status, 401);
        let error: Json = serde_json::from_str(&call.text()).unwrap();
        assert_eq!(error["error"]["code"], "session_ended", "{error}");
        assert!(
            error["error"]["message"]
                .as_str()
                .unwrap()
                .starts_with(ended)
        );
    };

    let cookie = session(&cellar);
    assert_eq!(get(&address(&cellar), "/jobs", &cookie).status, 200);
    cellar.terminate();
    cellar.restart();
    assert_ended(&cellar, &cookie);

    let cookie = session(&cellar);
    cellar.ask("token_revoke", vec![("name", "web".into())]);
    assert_ended(&cellar, &cookie);

    // Who was never signed in is told nothing of a session, and a wrong token is no session.
    for header in ["", "cookie: other=1\r\n"] {
        let view = get(&address(&cellar), "/jobs", header);
        assert!(
            view.status == 401 && !view.text().contains("session"),
            "{}",
            view.text()
        );
        let call = get(&address(&cellar), "/api/v1/jobs", header);
        assert!(
            call.text().contains("\"unauthenticated\""),
            "{}",
            call.text()
        );
    }
    let call = get(&address(&cellar), "/api/v1/jobs", &line);
    assert!(
        call.text().contains("the token is not valid"),
        "{}",
        call.text()
    );
}
