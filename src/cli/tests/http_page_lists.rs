//! Lists of the page: titles, time ranges, pages, and what a browser gets for an unknown path.

use super::http_page::{EARLIER, JID, html, put_event, put_job};
use crate::cli::in_process::{LISTENER, text, token};
use crate::daemon::in_process::{Cellar, address, get, local};
use crate::testkit::entries::Asks as _;
use serde_json::{Value as Json, json};

/// The accepted types of a browser that opens an address.
const BROWSER: &str = "accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n";

fn page(cellar: &Cellar, path: &str) -> String {
    html(&local(cellar, "GET", path, b""))
}

/// The address of a link of a page with this relation.
fn link(page: &str, rel: &str) -> String {
    let start = format!("rel=\"{rel}\" href=\"");
    let (_, rest) = page
        .split_once(&start)
        .unwrap_or_else(|| panic!("no link {rel} in {page}"));
    let (address, _) = rest.split_once('"').unwrap();
    address.replace("&#x2f;", "/").replace("&amp;", "&")
}

#[test]
fn every_view_has_a_title_of_its_own() {
    let cellar = Cellar::start_configured(LISTENER);
    put_job(&cellar, EARLIER, &["web1", "web2"], "first");
    put_job(&cellar, JID, &["web1", "web2"], "second");
    put_event(&cellar, "test/a\u{202e}", "web1", "hello");
    let seq = local(&cellar, "GET", "/api/v1/events?limit=1", b"").json()["events"][0]["seq"]
        .as_u64()
        .unwrap();
    for (path, expected) in [
        ("/".to_owned(), "Overview"),
        ("/jobs".to_owned(), "Jobs"),
        (
            "/jobs?fun=state.*&result=failed&last=".to_owned(),
            "Jobs · state.* · failed",
        ),
        (
            format!("/jobs/{JID}"),
            "state.highstate · 2 failed · 21 Nov 05:47",
        ),
        (
            format!("/jobs/{JID}/diff?with={EARLIER}"),
            "state.highstate · difference · 2 failed · 21 Nov 05:47",
        ),
        ("/events".to_owned(), "Events"),
        (format!("/events/{seq}"), "test&#x2f;a\\u{202e} · "),
        ("/minions".to_owned(), "Minions"),
        ("/minions/web1".to_owned(), "web1"),
        ("/reactor".to_owned(), "Reactor"),
        ("/sinks".to_owned(), "Delivery"),
        ("/consumers".to_owned(), "Consumers"),
    ] {
        let page = page(&cellar, &path);
        let (_, rest) = page.split_once("<title>").unwrap();
        assert!(rest.starts_with(expected), "{path}: {rest:.200}");
    }
}

#[test]
fn a_filter_keeps_the_time_range_and_what_its_form_has_no_field_for() {
    let cellar = Cellar::start_configured(LISTENER);
    put_job(&cellar, EARLIER, &["web1"], "first");
    put_job(&cellar, JID, &["web1"], "second");

    let shared = page(
        &cellar,
        "/jobs?since=2026-11-21T05:46:00Z&until=2026-11-21T06:00:00Z&limit=1",
    );
    for part in [
        "name=\"since\" value=\"2026-11-21T05:46:00\"",
        "name=\"until\" value=\"2026-11-21T06:00:00\"",
        "<option value=\"between\" selected>",
        "type=\"hidden\" name=\"limit\" value=\"1\"",
    ] {
        assert!(shared.contains(part), "{part} in {shared}");
    }
    assert!(
        shared.contains(JID) && !shared.contains(EARLIER),
        "{shared}"
    );

    // As the form sends it without the script: in UTC, without a zone.
    let sent = page(
        &cellar,
        "/jobs?fun=&last=between&since=2026-11-21T05:45&until=2026-11-21T05:46:00",
    );
    assert!(sent.contains(EARLIER) && !sent.contains(JID), "{sent}");
    let all = page(&cellar, "/jobs?last=&since=2030-01-01T00:00&until=");
    assert!(all.contains(EARLIER) && all.contains(JID), "{all}");
}

#[test]
fn a_relative_range_has_a_link_with_absolute_times() {
    let cellar = Cellar::start_configured(LISTENER);
    let jobs = page(&cellar, "/jobs?fun=a&last=1d");
    let start = "href=\"/jobs?fun=a&amp;since=20";
    assert!(jobs.contains(start), "{start} in {jobs}");
    let fixed = page(&cellar, "/jobs?fun=a&since=2026-11-21T05:46:00Z");
    assert!(!fixed.contains("absolute times"), "{fixed}");
}

#[test]
fn pages_of_a_list_lead_on_and_back() {
    let cellar = Cellar::start_configured(LISTENER);
    let jids: Vec<String> = (1..=3).map(|n| format!("2026112105472812345{n}")).collect();
    for jid in &jids {
        put_job(&cellar, jid, &["web1"], "x");
    }
    let shown = |page: &str| -> Vec<bool> {
        let is_linked = |jid: &String| page.contains(&format!("/jobs/{jid}\""));
        jids.iter().map(is_linked).collect()
    };

    let first = page(&cellar, "/jobs?limit=1&fun=state.*");
    assert_eq!(shown(&first), [false, false, true]);
    let second = page(&cellar, &link(&first, "next"));
    let third = page(&cellar, &link(&second, "next"));
    assert_eq!(shown(&second), [false, true, false]);
    assert_eq!(shown(&third), [true, false, false]);
    assert!(!third.contains("rel=\"next\"") && third.contains("Newest jobs"));

    let back = page(&cellar, &link(&third, "prev"));
    assert_eq!(shown(&back), shown(&second));
    let back = page(&cellar, &link(&back, "prev"));
    assert_eq!(shown(&back), shown(&first));
    assert!(!back.contains("rel=\"prev\""), "{back}");
}

#[test]
fn an_event_and_a_job_lead_to_the_events_around_them() {
    let cellar = Cellar::start_configured(LISTENER);
    put_job(&cellar, JID, &["web1"], "x");
    let job = page(&cellar, &format!("/jobs/{JID}"));
    let around =
        "/events?since=2026-11-21T05%3A42%3A28.123456Z&amp;until=2026-11-21T05%3A52%3A28.123456Z";
    assert!(job.contains(around), "{job}");
}

#[test]
fn the_overview_lists_the_jobs_with_most_failures_first() {
    let cellar = Cellar::start_configured(LISTENER);
    let now = jiff::Timestamp::now();
    let jid = |minutes: i64| {
        let at = now - jiff::SignedDuration::from_mins(minutes);
        at.strftime("%Y%m%d%H%M%S%6f").to_string()
    };
    let (worst, latest) = (jid(60), jid(1));
    put_job(&cellar, &worst, &["web1", "web2", "web3"], "x");
    for minutes in 2..=9 {
        put_job(&cellar, &jid(minutes), &["web1"], "x");
    }
    put_job(&cellar, &latest, &["web1"], "x");

    let overview = page(&cellar, "/");
    let (_, rest) = overview.split_once("id=\"failed\"").unwrap();
    let (section, _) = rest.split_once("</section>").unwrap();
    let at = |jid: &str| section.find(&format!("/jobs/{jid}"));
    assert!(
        at(&worst).is_some() && at(&worst) < at(&latest),
        "{section}"
    );
}

#[test]
fn a_sink_and_its_consumer_are_listed_once() {
    let config = format!(
        "{LISTENER}sinks:\n  out: {{encoder: json, transport: {{file: {{path: DIR/out.jsonl}}}}}}\n"
    );
    let cellar = Cellar::start_configured(&config);
    local(&cellar, "PUT", "/api/v1/consumers/audit", b"{}");
    let shown = page(&cellar, "/consumers");
    let (_, consumers) = shown.split_once("id=\"consumers\"").unwrap();
    assert!(consumers.contains("audit"), "{consumers}");
    assert!(!consumers.contains("<th scope=\"row\">out"), "{consumers}");
}

#[test]
fn an_unknown_path_answers_a_browser_with_a_page() {
    let cellar = Cellar::start_configured(LISTENER);
    let address = address(&cellar);
    let line = token(&cellar, &["r", "--scope", "read"]);

    let shown = get(&address, "/nothing/%3Cb%3E", &format!("{line}{BROWSER}"));
    assert_eq!(shown.status, 404);
    let text = shown.text();
    assert!(
        text.contains("<h1>Error 404") && text.contains("%3Cb%3E"),
        "{text}"
    );
    assert!(text.contains("<nav aria-label=\"Views\">"), "{text}");

    // A visitor without rights gets the form for a token, and learns nothing of paths.
    let visitor = get(&address, "/nothing", BROWSER);
    assert_eq!(visitor.status, 401);
    assert!(
        visitor.text().contains("name=\"token\""),
        "{}",
        visitor.text()
    );

    for (path, headers) in [
        ("/nothing", line.clone()),
        ("/api/v1/nothing", format!("{line}{BROWSER}")),
    ] {
        let answer = get(&address, path, &headers);
        assert_eq!(answer.status, 404, "{path}");
        assert_eq!(answer.json()["error"]["code"], "not_found", "{path}");
    }
}

/// Stores a job with these arguments, and no return.
fn put_args(cellar: &Cellar, jid: &str, fun: &str, args: &Json) {
    let load = json!({
        "fun": fun, "jid": jid, "tgt": "web*", "tgt_type": "glob", "user": "root", "arg": args, "cmd": "publish",
    });
    let load = crate::wire::msgpack::json::from_json(&load).unwrap();
    cellar.ask("save_load", vec![("jid", jid.into()), ("load", load)]);
}

#[test]
fn jobs_are_found_by_text_in_their_arguments() {
    let cellar = Cellar::start_configured(LISTENER);
    put_args(&cellar, EARLIER, "cmd.run", &json!(["rm -rf /srv/old"]));
    put_args(
        &cellar,
        JID,
        "state.apply",
        &json!(["web", { "pillar": { "tier": "gold" } }]),
    );
    for (arg, expected) in [
        ("rm%20-rf", [true, false]),
        ("rm%20*", [true, false]),
        ("gold", [false, true]),
        ("tier%3Dgold", [false, true]),
        ("silver", [false, false]),
        ("", [true, true]),
    ] {
        let jobs = page(&cellar, &format!("/jobs?arg={arg}"));
        let is_listed = |jid: &str| jobs.contains(&format!("/jobs/{jid}\""));
        assert_eq!([EARLIER, JID].map(is_listed), expected, "{arg}");
    }
    // Arguments that are longer than a summary keeps are read from the job.
    let long = "x".repeat(100_000);
    put_args(
        &cellar,
        "20261121054928123456",
        "cmd.run",
        &json!([format!("{long} needle")]),
    );
    assert!(page(&cellar, "/jobs?arg=needle").contains("/jobs/20261121054928123456\""));
    let listed = text(&cellar, &["jobs", "list", "--arg", "rm *"]);
    assert!(
        listed.contains(EARLIER) && !listed.contains(JID),
        "{listed}"
    );
}

#[test]
fn live_events_continue_a_list_by_each_of_its_filters_or_not_at_all() {
    let cellar = Cellar::start_configured(LISTENER);
    put_event(&cellar, "test/a", "web1", "hello");
    let schema = schemars::schema_for!(crate::api::call::events::ListArgs);
    let names = schema.get("properties").unwrap().as_object().unwrap();

    for name in names.keys() {
        // A value, and what the address of the stream then has; without it there is no stream.
        let (value, expected) = match name.as_str() {
            // The page has these rows, and the stream what follows them.
            "limit" => ("5", Some("after=")),
            "since" => ("2026-01-01T00:00:00Z", Some("after=")),
            "minion" => ("web*", Some("match=")),
            "master" => ("master1", Some("match=")),
            "tag" => ("test/*", Some("match=")),
            "search" => ("hello", Some("search=hello")),
            "where" => ("tag", Some("where=tag")),
            "match" => ("[]", None),
            "until" => ("2036-01-01T00:00:00Z", None),
            "jid" => (JID, None),
            "newest_first" => ("false", None),
            "before" => ("100", None),
            // `next` of an earlier page, which this test does not have.
            "cursor" => continue,
            other => panic!("say what {other} does to the live events of a page"),
        };
        let address = format!("/events?{name}={}", value.replace('*', "%2A"));
        let found = page(&cellar, &address);
        let stream = found.split_once("data-stream=\"").map(|(_, rest)| {
            let (stream, _) = rest.split_once('"').unwrap();
            stream.replace("&amp;", "&")
        });
        match expected {
            Some(part) => assert!(
                stream.as_deref().is_some_and(|it| it.contains(part)),
                "{address}: {stream:?}"
            ),
            None => assert_eq!(stream, None, "{address}"),
        }
    }
}

#[test]
fn a_search_leads_to_what_it_names_or_lists_what_it_may_be() {
    let cellar = Cellar::start_configured(LISTENER);
    put_job(
        &cellar,
        JID,
        &["web1.example", "web2.example", "db1.example"],
        "nginx",
    );
    put_args(&cellar, EARLIER, "cmd.run", &json!(["certbot renew"]));
    for (q, expected) in [
        (JID, format!("/jobs/{JID}")),
        ("web1.example", "/minions/web1.example".to_owned()),
        ("db1", "/minions/db1.example".to_owned()),
        ("salt%2Fjob", "/events?tag=salt%2Fjob%2A".to_owned()),
    ] {
        let answer = local(&cellar, "GET", &format!("/find?q={q}"), b"");
        assert_eq!(
            (answer.status, answer.header("location")),
            (303, Some(&*expected)),
            "{q}"
        );
    }
    for (q, found, not_found) in [
        ("web", "/minions/web2.example", "/minions/db1"),
        ("highstate", JID, EARLIER),
        ("certbot", EARLIER, JID),
    ] {
        let lists = page(&cellar, &format!("/find?q={q}"));
        assert!(
            lists.contains(found) && !lists.contains(not_found),
            "{q}: {lists}"
        );
    }
    assert!(page(&cellar, "/find?q=").contains("Type a job id"));
    assert!(
        page(&cellar, "/jobs").contains("action=\"/find\""),
        "the box is on every view"
    );
}

#[test]
fn a_search_finds_nothing_outside_of_the_limits() {
    let cellar = Cellar::start_configured(LISTENER);
    let address = address(&cellar);
    put_job(&cellar, JID, &["web1", "db1"], "x");
    let line = token(&cellar, &["web", "--scope", "read", "--minion", "web*"]);
    let hidden = html(&get(&address, "/find?q=db1", &line));
    assert!(
        !hidden.contains("/minions/db1") && !hidden.contains("href=\"/jobs/"),
        "{hidden}"
    );
    assert_eq!(
        get(&address, "/find?q=web1", &line).header("location"),
        Some("/minions/web1")
    );
}

#[test]
fn minions_are_counted_and_sorted() {
    let cellar = Cellar::start_configured(LISTENER);
    put_job(&cellar, EARLIER, &["a1", "c1"], "x");
    put_job(&cellar, JID, &["b1"], "x");
    let ids = |page: &str| -> Vec<String> {
        let rows = page.split("<th scope=\"row\"><a href=\"/minions/").skip(1);
        rows.map(|row| row.split('"').next().unwrap().to_owned())
            .collect()
    };
    let by_id = page(&cellar, "/minions");
    assert!(
        by_id.contains("Minions: 4") && by_id.contains("aria-sort=\"ascending\""),
        "{by_id}"
    );
    assert_eq!(ids(&by_id), ["a1", "b1", "c1", "missing1"]);
    let missing = page(&cellar, "/minions?sort=missing");
    assert!(missing.contains("aria-sort=\"descending\""), "{missing}");
    assert_eq!(ids(&missing), ["missing1", "a1", "b1", "c1"]);
    let failed = page(&cellar, "/minions?sort=failed&limit=2");
    assert_eq!(ids(&failed), ["a1", "b1"]);
    let more = page(&cellar, &link(&failed, "next"));
    assert_eq!(ids(&more), ["c1", "missing1"]);
}

#[test]
fn two_ticked_jobs_are_compared() {
    let cellar = Cellar::start_configured(LISTENER);
    put_job(&cellar, EARLIER, &["web1"], "x");
    put_job(&cellar, JID, &["web1"], "y");
    let jobs = page(&cellar, "/jobs");
    assert!(
        jobs.contains(&format!("name=\"run\" value=\"{JID}\"")),
        "{jobs}"
    );
    let compare = |query: &str| local(&cellar, "GET", &format!("/jobs/compare?{query}"), b"");
    let expected = format!("/jobs/{JID}/diff?with={EARLIER}");
    for query in [
        format!("run={JID}&run={EARLIER}"),
        format!("run={EARLIER}&run={JID}"),
    ] {
        let found = compare(&query);
        assert_eq!(
            (found.status, found.header("location")),
            (303, Some(&*expected))
        );
    }
    let one = compare(&format!("run={JID}"));
    assert_eq!(one.status, 400);
    assert!(one.text().contains("tick the two jobs"), "{}", one.text());
}

#[test]
fn a_comparison_counts_the_whole_jobs_and_shows_equal_differences_once() {
    let cellar = Cellar::start_configured(LISTENER);
    let put = |jid: &str, returns: &[(&str, i64, &str)]| {
        put_args(&cellar, jid, "cmd.run", &json!(["x"]));
        for (minion, retcode, value) in returns {
            let load = json!({
                "jid": jid, "id": minion, "fun": "cmd.run", "retcode": retcode, "success": *retcode == 0, "return": value,
            });
            let load = crate::wire::msgpack::json::from_json(&load).unwrap();
            cellar.ask("returner", vec![("load", load)]);
        }
    };
    put(
        EARLIER,
        &[
            ("a", 0, "1"),
            ("b", 1, "1"),
            ("c", 0, "1"),
            ("d", 0, "1"),
            ("e", 0, "1"),
            ("g", 0, "1"),
        ],
    );
    put(
        JID,
        &[
            ("a", 1, "1"),
            ("b", 0, "1"),
            ("d", 0, "2"),
            ("e", 0, "1"),
            ("f", 0, "1"),
            ("g", 0, "2"),
        ],
    );

    let path = format!("/api/v1/jobs/{JID}/diff?with={EARLIER}&limit=1");
    let found = local(&cellar, "GET", &format!("{path}&totals=true"), b"").json();
    let expected =
        json!({ "newly_failed": 1, "fixed": 1, "changed": 2, "added": 1, "removed": 1, "same": 1 });
    assert_eq!(found["totals"], expected, "{found}");
    let without = local(&cellar, "GET", &path, b"").json();
    assert!(without["totals"].is_null(), "{without}");

    let diff = page(&cellar, &format!("/jobs/{JID}/diff?with={EARLIER}"));
    for part in [
        "1 newly failed</b>",
        "1 fixed</b>",
        "2 changed</b>",
        "1 same",
        "2 minions: changed",
    ] {
        assert!(diff.contains(part), "{part} in {diff}");
    }
}
