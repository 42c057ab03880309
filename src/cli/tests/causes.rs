//! Failures by cause, the fleet, durations and strips: calls of a running daemon.

use std::fmt::Write as _;

use crate::base::clock::{Clock, Micros};
use crate::cli::in_process::{LISTENER, cli, stderr, token};
use crate::daemon::in_process::{Cellar, address, get, local, wait_for};
use crate::model::JidKey;
use crate::testkit::entries::Asks as _;
use serde_json::{Value as Json, json};

const MINUTE_US: i64 = 60_000_000;

/// The id of a job that was published some minutes ago.
fn jid(minutes: i64) -> String {
    let at = Micros(Clock::real().now().0 - minutes * MINUTE_US);
    JidKey::from_time(at, None).text().unwrap()
}

fn state(
    id: &str,
    fun: &str,
    num: u64,
    (result, changed): (bool, bool),
    comment: &str,
) -> (String, Json) {
    let module = fun.split('.').next().unwrap();
    let function = fun.split('.').nth(1).unwrap();
    let changes = if changed {
        json!({"pkg": {"old": "1", "new": "2"}})
    } else {
        json!({})
    };
    let state = json!({"name": id, "changes": changes, "result": result, "comment": comment, "__sls__": "web",
        "__run_num__": num, "start_time": "05:47:28.5", "duration": 10.0 * (num + 1) as f64, "__id__": id});
    (format!("{module}_|-{id}_|-{id}_|-{function}"), state)
}

/// A highstate of three states, of which `nginx` fails with a comment, if there is one.
fn run(failed: Option<&str>, changed: bool) -> Json {
    let states = [
        state("pkg", "pkg.installed", 0, (true, changed), "fine"),
        state("motd", "file.managed", 1, (true, false), "fine"),
        state(
            "nginx",
            "service.running",
            2,
            (failed.is_none(), false),
            failed.unwrap_or("fine"),
        ),
    ];
    states.into_iter().collect::<serde_json::Map<_, _>>().into()
}

struct Site {
    cellar: Cellar,
    token: String,
}

impl Site {
    fn new() -> Self {
        let cellar = Cellar::start_configured(LISTENER);
        let token = token(&cellar, &["reader", "--scope", "read"]);
        Self { cellar, token }
    }

    fn publish(&self, jid: &str, fun: &str, minions: &[&str]) {
        let load = json!({"cmd": "publish", "tgt": "*", "fun": fun, "arg": [], "tgt_type": "glob", "jid": jid});
        self.cellar.save_load(jid, &load, minions);
    }

    fn get(&self, path: &str) -> Json {
        self.get_as(&self.token, path)
    }

    fn get_as(&self, token: &str, path: &str) -> Json {
        get(&address(&self.cellar), &format!("/api/v1{path}"), token).json()
    }
}

fn causes(page: &Json) -> Vec<(Json, String, String, u64)> {
    let row = |row: &Json| {
        let text = |key: &str| row[key].as_str().unwrap().to_owned();
        (
            row["state"].clone(),
            text("fun"),
            text("message"),
            row["minions"].as_u64().unwrap(),
        )
    };
    page["causes"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn failures_of_a_job_are_grouped_and_each_group_opens_its_returns() {
    let site = Site::new();
    let job = jid(30);
    let minions: Vec<String> = (1..=6).map(|n| format!("web{n}.example.net")).collect();
    let ids: Vec<&str> = minions.iter().map(String::as_str).collect();
    site.publish(&job, "state.apply", &[&ids[..], &["away", "gone"]].concat());
    for (n, id) in minions.iter().enumerate() {
        let why = match n {
            0 | 2 | 4 => Some(format!(
                "Job {n}17 for nginx failed on {id}\nSee journalctl"
            )),
            1 => Some("no space left on /var/lib/x".to_owned()),
            _ => None,
        };
        let code = if why.is_some() { 2 } else { 0 };
        site.cellar
            .answer(&job, id, "state.apply", &run(why.as_deref(), n == 3), code);
    }

    let page = site.get(&format!("/causes?jid={job}"));
    let nginx = || json!("nginx");
    let expected = [
        (
            nginx(),
            "service.running".into(),
            "Job # for nginx failed on <minion>".into(),
            3,
        ),
        (
            nginx(),
            "service.running".into(),
            "no space left on <path>".into(),
            1,
        ),
    ];
    assert_eq!(causes(&page), expected, "{page}");
    assert_eq!(
        (&page["failed_minions"], &page["total"]),
        (&json!(4), &json!(2))
    );
    assert_eq!(page["causes"][0]["ids"], json!([ids[0], ids[2], ids[4]]));
    assert_eq!(page["causes"][0]["sls"], "web");
    let example = &page["causes"][0]["example"]["message"];
    assert!(
        example.as_str().unwrap().contains(ids[4]),
        "the latest: {example}"
    );
    assert_eq!(page["missing"][0]["why"], "never_seen");
    assert_eq!(page["missing"][0]["count"], 2);

    // Failed ones are first over the whole job, page by page.
    let returned = |path: &str| {
        let job = site.get(path);
        let ids: Vec<Json> = job["returns"]
            .as_array()
            .unwrap()
            .iter()
            .map(|r| r["minion"].clone())
            .collect();
        (ids, job["next"].clone())
    };
    let (first, next) = returned(&format!("/jobs/{job}?limit=3"));
    assert_eq!(first, [ids[0], ids[1], ids[2]]);
    let (same, _) = returned(&format!("/jobs/{job}?limit=3&after="));
    assert_eq!(same, first, "a client without a cursor yet");
    let (second, _) = returned(&format!(
        "/jobs/{job}?limit=3&after={}",
        next.as_str().unwrap()
    ));
    assert_eq!(second, [ids[4], ids[3], ids[5]]);
    let several = cli(&site.cellar, &["jobs", "show", &job, "--cause", ""]);
    let printed = stderr(&several);
    assert!(printed.contains("several causes have keys"), "{printed}");
    let key = page["causes"][1]["key"].as_str().unwrap();
    assert_eq!(returned(&format!("/jobs/{job}?cause={key}")).0, [ids[1]]);

    let one = site.get(&format!("/jobs/{job}?minion={}", ids[3]));
    assert_eq!(
        one["returns"][0]["states"],
        json!({"total": 3, "failed": 0, "changed": 1})
    );
    let notable = site.get(&format!("/jobs/{job}/states?result=notable"));
    assert_eq!(notable["states"].as_array().unwrap().len(), 5);

    let unknown = site.get("/causes?jid=20200101000000000000");
    assert_eq!(unknown["error"]["message"], "the job is not known");
    let both = site.get(&format!("/causes?jid={job}&since=2026-11-21T06:00:00Z"));
    let message = both["error"]["message"].as_str().unwrap();
    assert!(message.contains("leave them out"), "{message}");
}

#[test]
fn missing_returns_are_those_of_jobs_within_the_time_range() {
    let site = Site::new();
    site.publish(&jid(30), "test.ping", &["web1"]);
    let ago = |minutes| Micros(Clock::real().now().0 - minutes * MINUTE_US).iso();
    let missing = |since, until| {
        let page = site.get(&format!(
            "/causes?since={}&until={}",
            ago(since),
            ago(until)
        ));
        page["missing"].as_array().unwrap().len()
    };
    assert_eq!(missing(60, 20), 1);
    assert_eq!(missing(60, 40), 0, "it was published later");
    assert_eq!(missing(20, 10), 0, "it was published before");
}

#[test]
fn failures_of_the_last_day_and_the_fleet_are_counted_as_they_arrive() {
    let site = Site::new();
    let (old, new) = (jid(60), jid(10));
    site.publish(&old, "state.highstate", &["web1", "web2", "web3"]);
    for id in ["web1", "web2", "web3"] {
        site.cellar
            .answer(&old, id, "state.highstate", &run(Some("broken"), false), 2);
    }
    let day = site.get("/causes");
    assert_eq!(causes(&day)[0].3, 3);
    let fleet = site.get("/fleet");
    let counts =
        |fleet: &Json| ["failed", "changed", "ok", "known"].map(|key| fleet[key].as_u64().unwrap());
    assert_eq!(counts(&fleet), [3, 0, 0, 3], "{fleet}");

    // web1 is fine again, web2 too, with a change; another function fails.
    site.publish(&new, "state.highstate", &["web1", "web2"]);
    site.cellar
        .answer(&new, "web1", "state.highstate", &run(None, false), 0);
    site.cellar
        .answer(&new, "web2", "state.highstate", &run(None, true), 0);
    let other = jid(5);
    site.publish(&other, "cmd.run", &["web1"]);
    site.cellar.answer(
        &other,
        "web1",
        "cmd.run",
        &json!("bash: certbot: command not found"),
        127,
    );

    let fleet = site.get("/fleet");
    assert_eq!(counts(&fleet), [1, 1, 1, 3], "{fleet}");
    assert_eq!(fleet["days"].as_array().unwrap().len(), 14);
    let results: u64 = fleet["days"]
        .as_array()
        .unwrap()
        .iter()
        .map(|day| {
            ["failed", "changed", "ok"]
                .map(|key| day[key].as_u64().unwrap())
                .iter()
                .sum::<u64>()
        })
        .sum();
    assert_eq!(results, 5);

    let day = site.get("/causes");
    let found = causes(&day);
    assert_eq!(
        found[0],
        (json!("nginx"), "service.running".into(), "broken".into(), 3)
    );
    assert_eq!(
        found[1],
        (
            Json::Null,
            "cmd.run".into(),
            "bash: certbot: command not found".into(),
            1
        )
    );
    assert_eq!(day["causes"][1]["exit_code"], 127);
    assert_eq!(site.get("/causes?minion=web3*")["failed_minions"], 1);

    // A job that Salt cached through the extension counts no return that was seen on a bus only.
    let event = json!({"tag": format!("salt/job/{old}/ret/web9"), "data": {"jid": old, "id": "web9", "fun": "state.highstate", "fun_args": [], "return": run(Some("forged"), false), "retcode": 2, "success": false}});
    site.cellar.ask(
        "event_return",
        vec![("events", crate::testkit::entries::value(&json!([event])))],
    );
    let day = site.get("/causes");
    assert!(!day.to_string().contains("forged"), "{day}");
    assert_eq!(counts(&site.get("/fleet")), [1, 1, 1, 3]);
}

/// A job whose failures fill segments of 1 MiB, and what the digest knows of it.
struct LongJob {
    site: Site,
    jid: String,
}

impl LongJob {
    fn new() -> Self {
        let small = format!("{LISTENER}store: {{segment_bytes_max: 1MiB}}\n");
        let cellar = Cellar::start_configured(&small);
        let token = token(&cellar, &["reader", "--scope", "read"]);
        Self {
            site: Site { cellar, token },
            jid: jid(10),
        }
    }

    /// Stores a highstate of each of these minions that failed with a comment of 64 KiB.
    fn fail(&self, minions: std::ops::Range<u64>) {
        for n in minions {
            // Different for each minion, with more of it than is grouped by.
            let mut why = "broken\n".to_owned();
            for m in n * 4000..(n + 1) * 4000 {
                // Digits that compress badly: segments are sealed by their size on disk.
                write!(why, "{:x}", m.wrapping_mul(0x9e37_79b9_7f4a_7c15)).unwrap();
            }
            let (id, states) = (format!("web{n}"), run(Some(&why), false));
            let cellar = &self.site.cellar;
            cellar.answer(&self.jid, &id, "state.highstate", &states, 2);
        }
    }

    fn causes(&self, since: &str) -> Json {
        self.site.get(&format!("/causes?since={since}"))
    }

    /// The failed returns since a time, and the runs of each state of the last days.
    fn counts(&self, since: &str) -> (u64, Vec<u64>) {
        let failed = self.causes(since)["failed_returns"].as_u64().unwrap();
        let durations = self.site.get("/durations")["states"].clone();
        let states = durations.as_array().unwrap().iter();
        let runs = states.map(|row| row["runs"].as_u64().unwrap()).collect();
        (failed, runs)
    }
}

fn an_hour_ago() -> String {
    Micros(Clock::real().now().0 - 60 * MINUTE_US).iso()
}

#[test]
fn runs_are_counted_once_whatever_was_asked_before_their_segments_were_sealed() {
    let mut job = LongJob::new();
    let long_ago = an_hour_ago();

    // Both are in one active segment, of which the later one is asked for first.
    job.fail(0..1);
    let later = Clock::real().now().iso();
    job.fail(1..2);
    assert_eq!(job.counts(&later).0, 1);
    assert_eq!(job.counts(&long_ago), (2, vec![2; 3]));

    // The segment is sealed, and others follow.
    job.fail(2..100);
    wait_for("sealed segments", || {
        (job.site.cellar.counter("segments_sealed") >= 2).then_some(())
    });
    assert_eq!(job.counts(&later), (99, vec![100; 3]));
    assert_eq!(job.counts(&long_ago), (100, vec![100; 3]));

    // A digest that reads all of it in one call finds the same.
    job.site.cellar.restart();
    assert_eq!(job.counts(&long_ago), (100, vec![100; 3]));
    assert_eq!(job.counts(&later).0, 99);
}

#[test]
fn much_that_is_unread_is_read_by_several_calls_the_newest_first() {
    let job = LongJob::new();
    let (long_ago, digest) = (an_hour_ago(), &job.site.cellar.ctx().archive.digest);
    let read_all = |before: u64, all: u64| {
        let mut counted = Vec::new();
        loop {
            let page = job.causes(&long_ago);
            counted.push(page["failed_returns"].as_u64().unwrap());
            let complete_since = page["since"].as_str().unwrap();
            if complete_since <= long_ago.as_str() {
                break;
            }
            assert!(counted.len() < 1000, "no end: {counted:?}");
        }

        // A part of what is new at first, and with each call more of what is older.
        let first = counted[0];
        assert!(0 < first && first < all - before, "{counted:?}");
        assert!(counted.len() >= 3, "{counted:?}");
        assert!(counted.is_sorted(), "{counted:?}");
        assert_eq!(counted.last(), Some(&all));
    };

    job.fail(0..60);
    digest.read_at_most(1);
    read_all(0, 60);

    // The same if a part is known.
    job.fail(60..120);
    read_all(60, 120);

    digest.read_at_most(usize::MAX);
    assert_eq!(job.counts(&long_ago), (120, vec![120; 3]));
}

#[test]
fn a_restart_changes_no_answer_and_limits_hide_other_minions() {
    let mut site = Site::new();
    let job = jid(10);
    site.publish(&job, "state.highstate", &["web1", "db1", "db2"]);
    site.cellar.answer(
        &job,
        "web1",
        "state.highstate",
        &run(Some("broken on web1"), false),
        2,
    );
    site.cellar.answer(
        &job,
        "db1",
        "state.highstate",
        &run(Some("broken on db1"), false),
        2,
    );
    let limited = token(
        &site.cellar,
        &["web", "--scope", "read", "--minion", "web*"],
    );

    let before = ["/causes", "/fleet", &format!("/causes?jid={job}")].map(|path| site.get(path));
    assert_eq!(before[0]["failed_minions"], 2);
    site.cellar.restart();
    let after = ["/causes", "/fleet", &format!("/causes?jid={job}")].map(|path| site.get(path));
    for (before, after) in before.iter().zip(&after) {
        let without_times = |page: &Json| {
            let mut page = page.clone();
            page.as_object_mut().unwrap().remove("since");
            page
        };
        assert_eq!(without_times(before), without_times(after));
    }

    for path in ["/causes", &format!("/causes?jid={job}")] {
        let seen = site.get_as(&limited, path);
        assert_eq!(seen["failed_minions"], 1, "{seen}");
        assert!(!seen.to_string().contains("db"), "{seen}");
    }
    let fleet = site.get_as(&limited, "/fleet");
    assert_eq!(
        (&fleet["failed"], &fleet["known"]),
        (&json!(1), &json!(1)),
        "{fleet}"
    );
    let strip = site.get_as(&limited, &format!("/jobs/{job}/strip"));
    assert_eq!(strip["returned"], 1);
    assert!(site.get_as(&limited, "/durations")["error"]["message"].is_string());
}

#[test]
fn states_are_listed_by_how_long_they_take_and_drawn_as_strips() {
    let site = Site::new();
    let job = jid(10);
    site.publish(&job, "state.apply", &["web1", "web2"]);
    site.cellar
        .answer(&job, "web1", "state.apply", &run(None, true), 0);
    site.cellar
        .answer(&job, "web2", "state.apply", &run(Some("broken"), false), 2);

    for path in [format!("/jobs/{job}/durations"), "/durations".to_owned()] {
        let page = site.get(&path);
        let first = &page["states"][0];
        assert_eq!(
            (&first["id"], &first["runs"], &first["max_ms"]),
            (&json!("nginx"), &json!(2), &json!(30.0)),
            "{page}"
        );
        assert_eq!(page["total"], 3);
    }

    let strip = site.get(&format!("/jobs/{job}/strip"));
    assert_eq!(
        (&strip["minions"][0]["minion"], &strip["states"]),
        (&json!("web2"), &json!(3))
    );
    let cells = &strip["minions"][0]["cells"];
    assert_eq!(
        (&cells[0]["count"], &cells[1]["result"]),
        (&json!(2), &json!("failed"))
    );
    assert_eq!(strip["minions"][1]["cells"][0]["result"], "changed");
}

#[test]
fn a_list_of_changed_jobs_is_the_same_from_the_digest_and_from_the_jobs() {
    let site = Site::new();
    // The minions that changed something, by job.
    let changed: [&[&str]; 3] = [&["web1"], &[], &["web2"]];
    let jobs = [jid(30), jid(20), jid(10)];
    for (job, changed) in jobs.iter().zip(changed) {
        site.publish(job, "state.apply", &["web1", "web2"]);
        for id in ["web1", "web2"] {
            site.cellar
                .answer(job, id, "state.apply", &run(None, changed.contains(&id)), 0);
        }
    }

    let listed = |query: &str| {
        let page = site.get(&format!("/jobs?result=changed{query}"));
        let jobs = page["jobs"].as_array().unwrap().iter();
        jobs.map(|job| job["jid"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    // Only with a time range the digest is asked.
    let since = Micros(Clock::real().now().0 - 60 * MINUTE_US).iso();
    for (query, expected) in [
        ("", vec![jobs[2].clone(), jobs[0].clone()]),
        ("&minion=web1", vec![jobs[0].clone()]),
        ("&minion=web3", vec![]),
    ] {
        assert_eq!(listed(query), expected, "{query}");
        assert_eq!(
            listed(&format!("{query}&since={since}")),
            expected,
            "{query}"
        );
    }
}

#[test]
fn wrappers_of_states_are_changed_jobs_in_every_list() {
    let site = Site::new();
    let funs = [
        "state.run_request",
        "mystate.deploy",
        "transactional_update.apply",
        "my.function",
    ];
    for (n, fun) in funs.iter().enumerate() {
        let job = jid(40 - i64::try_from(n).unwrap());
        site.publish(&job, fun, &["web1"]);
        site.cellar.answer(&job, "web1", fun, &run(None, true), 0);
    }

    let since = Micros(Clock::real().now().0 - 60 * MINUTE_US).iso();
    for query in ["", "&minion=web1"] {
        for range in [String::new(), format!("&since={since}")] {
            let page = site.get(&format!("/jobs?result=changed{query}{range}"));
            let jobs = page["jobs"].as_array().unwrap().iter();
            let found: Vec<_> = jobs.map(|job| job["fun"].as_str().unwrap()).collect();
            // The name of the last shows nothing of states.
            assert_eq!(found, [funs[2], funs[1], funs[0]], "{query} {range}");
        }
    }
}

#[test]
fn a_rare_result_is_found_behind_the_returns_of_many_minions() {
    let site = Site::new();
    let job = jid(10);
    let ids: Vec<String> = (100..200).map(|n| format!("web{n}")).collect();
    site.publish(
        &job,
        "state.apply",
        &ids.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    for id in &ids {
        let has_changed = id == "web120" || id == "web199";
        site.cellar
            .answer(&job, id, "state.apply", &run(None, has_changed), 0);
    }

    let mut found = Vec::new();
    let mut after = String::new();
    loop {
        let page = site.get(&format!("/jobs/{job}?result=changed&limit=1{after}"));
        let returns = page["returns"].as_array().unwrap().iter();
        found.extend(returns.map(|one| one["minion"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(found, ["web120", "web199"]);
}

#[test]
fn a_step_that_waits_for_a_job_is_a_duration_of_its_orchestration_only() {
    let site = Site::new();
    let job = jid(10);
    site.publish(&job, "state.apply", &["web1"]);
    let states = [
        state("deploy", "salt.state", 9, (true, true), "fine"),
        state("pkg", "pkg.installed", 0, (true, false), "fine"),
    ];
    let states: Json = states.into_iter().collect::<serde_json::Map<_, _>>().into();
    site.cellar.answer(&job, "web1", "state.apply", &states, 0);

    let ids = |path: &str| {
        let states = site.get(path)["states"].clone();
        let states = states.as_array().unwrap().iter();
        states.map(|state| state["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&format!("/jobs/{job}/durations")), ["deploy", "pkg"]);
    assert_eq!(ids("/durations"), ["pkg"]);
}

#[test]
fn a_minion_shows_its_results_and_what_changed_on_it() {
    let site = Site::new();
    let (one, other) = (jid(600), jid(10));
    for (jid, changed, why) in [(&one, true, None), (&other, false, Some("broken"))] {
        site.publish(jid, "state.highstate", &["web1"]);
        let code = if why.is_some() { 2 } else { 0 };
        site.cellar
            .answer(jid, "web1", "state.highstate", &run(why, changed), code);
    }

    let minion = site.get("/minions/web1");
    let results = minion["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    let of_one = results.iter().find(|row| row["jid"] == json!(one)).unwrap();
    assert_eq!(
        (&of_one["failed"], &of_one["states"]["changed"]),
        (&json!(false), &json!(1))
    );
    let changes = minion["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 1);
    assert_eq!(
        (&changes[0]["id"], &changes[0]["summary"]),
        (&json!("pkg"), &json!("pkg: 1 → 2"))
    );
    assert_eq!(changes[0]["jid"], json!(one));
}

#[test]
fn a_minion_with_a_result_selects_jobs_by_its_own_result() {
    let site = Site::new();
    let job = jid(10);
    site.publish(&job, "state.apply", &["web1", "web2", "web3"]);
    site.cellar
        .answer(&job, "web1", "state.apply", &run(None, true), 0);
    site.cellar
        .answer(&job, "web2", "state.apply", &run(Some("broken"), false), 2);

    let count = |minion: &str, result: &str| {
        let page = site.get(&format!("/jobs?minion={minion}&result={result}"));
        page["jobs"].as_array().unwrap().len()
    };
    for (minion, failed, succeeded, changed, missing) in [
        ("web1", 0, 1, 1, 0),
        ("web2", 1, 0, 0, 0),
        ("web3", 0, 0, 0, 1),
    ] {
        let found =
            ["failed", "succeeded", "changed", "missing"].map(|result| count(minion, result));
        assert_eq!(found, [failed, succeeded, changed, missing], "{minion}");
    }
}

#[test]
fn the_page_of_a_job_shows_the_states_of_the_returns_that_a_filter_leaves() {
    let site = Site::new();
    let job = jid(10);
    // More states than are read for one page, all of minions before the one that is meant.
    let all = |last: &str| -> Json {
        let states = (0..100).map(|n| {
            let why = if n == 0 { last } else { "broken" };
            state(
                &format!("s{n:02}"),
                "service.running",
                n,
                (false, false),
                why,
            )
        });
        states.collect::<serde_json::Map<_, _>>().into()
    };
    for n in 0..110 {
        let states = all("broken");
        site.cellar
            .answer(&job, &format!("web{n:03}"), "state.apply", &states, 2);
    }
    site.cellar
        .answer(&job, "web999", "state.apply", &all("only here"), 2);

    let page = site.get(&format!("/causes?jid={job}"));
    let rows = page["causes"].as_array().unwrap().iter();
    let mut only = rows.filter(|row| row["message"] == "only here");
    let key = only.next().unwrap()["key"].as_str().unwrap();
    let shown = local(
        &site.cellar,
        "GET",
        &format!("/jobs/{job}?cause={key}"),
        b"",
    )
    .text();
    assert!(shown.contains("<bdi>only here</bdi>"), "{shown}");
    assert!(!shown.contains("states without change"), "{shown}");
}
