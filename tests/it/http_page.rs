//! The web page: every view, sign-in, and hostile text in every field.

use rmpv::Value;
use serde_json::{Value as Json, json};

use crate::fake_daemon::{program, stderr, stdout};
use crate::harness::{Asks as _, Cellar};
use crate::http::{Answer, LISTENER, address, get, request, token};

const JID: &str = "20261121054728123456";

/// Stores a highstate with a failed and a changed state of each minion, and one missing minion.
fn put_job(cellar: &Cellar, jid: &str, minions: &[&str], text: &str) {
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
    let load = saltcellar::wire::msgpack::json::from_json(&load).unwrap();
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
                saltcellar::wire::msgpack::json::from_json(&load).unwrap(),
            )],
        );
    }
}

/// The text of a view, with the headers that every view has.
fn html(answer: &Answer) -> String {
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
    assert!(text.contains("<title>saltcellar</title>"), "{text}");
    text
}

fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| format!("%{byte:02X}"))
        .collect::<Vec<_>>()
        .concat()
}

/// The cookie that signing in sets.
fn cookie(address: &str, token: &str, next: &str) -> Answer {
    let origin =
        format!("origin: http://{address}\r\ncontent-type: application/x-www-form-urlencoded\r\n");
    let body = format!("token={}&next={}", encoded(token), encoded(next));
    request(address, "POST", "/sign-in", &origin, body.as_bytes())
}

#[test]
fn a_token_signs_in_and_its_limits_apply() {
    let mut cellar = Cellar::start_configured(LISTENER, &[]);
    let address = address(&cellar);
    put_job(&cellar, JID, &["web1", "db1"], "x");
    let secret = |line: &str| line.trim().rsplit(' ').next().unwrap().to_owned();
    let web = secret(&token(
        &cellar,
        &["web", "--scope", "read", "--minions", "web*"],
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
        job.contains("Summary for <bdi>web1</bdi>")
            && !job.contains("db1")
            && !job.contains("missing1"),
        "{job}"
    );
    let jobs = html(&get(&address, "/jobs", &line));
    assert!(jobs.contains(JID) && !jobs.contains("db1"), "{jobs}");
    for path in ["/minions/db1", "/engines/out"] {
        let denied = get(&address, path, &line);
        assert_eq!(denied.status, 403, "{path}");
        assert!(
            denied.text().contains("limited to minions web*"),
            "{}",
            denied.text()
        );
    }
    // The overview states what the token may not read.
    assert!(html(&get(&address, "/", &line)).contains("limited to minions web*"));
    // The stream of the page has the cookie too.
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
    assert!(cellar.log().contains("signed in to the page") && !cellar.log().contains(&web));
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
    let mut cellar = Cellar::start_configured(LISTENER, &[]);
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

#[test]
fn a_one_time_link_signs_in_with_the_rights_of_its_user() {
    let cellar = Cellar::start_configured(LISTENER, &[]);
    let address = address(&cellar);
    let link = cellar.ask("page_link", vec![]);
    let path = link["path"].as_str().unwrap();
    assert_eq!(
        link["url"].as_str().unwrap(),
        format!("http://{address}{path}")
    );
    assert!(link["seconds"].as_u64().unwrap() > 0);
    // A program that looks at it in advance does not use it up.
    assert_eq!(
        request(&address, "HEAD", path, "", b"").header("set-cookie"),
        None
    );
    let opened = get(&address, path, "");
    assert_eq!(
        (opened.status, opened.header("location")),
        (303, Some("/")),
        "an address without the secret"
    );
    let set = opened.header("set-cookie").unwrap();
    assert!(set.contains("; HttpOnly; SameSite=Strict"), "{set}");
    let line = format!("cookie: {}\r\n", set.split(';').next().unwrap());
    let overview = html(&get(&address, "/", &line));
    assert!(overview.contains("by a link, right admin"), "{overview}");
    let again = get(&address, path, "");
    assert_eq!((again.status, again.header("set-cookie")), (401, None));
    assert!(
        again.text().contains("it works once") && again.text().contains("name=\"token\""),
        "{}",
        again.text()
    );
    let secret = path.rsplit('/').next().unwrap();
    assert!(!cellar.log().contains(secret), "{}", cellar.log());

    // The verb prints such a link.
    let printed = program()
        .args(["page", "--socket"])
        .arg(cellar.socket())
        .output()
        .unwrap();
    assert!(printed.status.success(), "{}", stderr(&printed));
    let printed = stdout(&printed);
    let path = printed
        .trim_end()
        .strip_prefix(&format!("http://{address}"))
        .unwrap();
    let opened = get(&address, path, "");
    assert_eq!((opened.status, opened.header("location")), (303, Some("/")));
}
