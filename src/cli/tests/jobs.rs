//! Queries of jobs: verbs and calls against a running daemon, with entries in Salt's format.

use std::sync::Arc;

use crate::api::query::{JobFilter, PageLimits, held, jobs_before};
use crate::base::clock::{Clock, Micros};
use crate::base::limits::{LIST_BYTES_MAX, PART_BYTES};
use crate::cli::in_process::{LISTENER, cli, document, stderr, stdout, text, token};
use crate::cluster::peers::{Beat, Mark};
use crate::daemon::in_process::{Cellar, address, get, map, wait_for};
use crate::model::{MasterName, ReadLimits};
use crate::store::settings::Changes;
use crate::testkit::entries::{Asks as _, value};
use rmpv::Value;
use salt_sls::Glob;
use serde_json::{Value as Json, json};

const JID: &str = "20261121054728123456";
const LATER: &str = "20261121064728123456";

fn state(num: u64, result: bool, changes: &Json, comment: &str) -> Json {
    json!({"name": "nginx", "changes": changes, "result": result, "comment": comment, "__sls__": "web",
           "__run_num__": num, "start_time": "05:47:28.5", "duration": 1.5 + num as f64, "__id__": "nginx"})
}

pub(crate) fn run_states(restarted: bool, ok: bool) -> Json {
    let changes = if restarted {
        json!({"nginx": true})
    } else {
        json!({})
    };
    json!({
        "service_|-nginx_|-nginx_|-running": state(1, ok, &changes, "The service"),
        "pkg_|-nginx_|-nginx_|-installed": state(0, true, &json!({}), "All there"),
    })
}

fn show(cellar: &Cellar, jid: &str) -> Json {
    document(cellar, &["jobs", "show", jid])
}

fn listed(cellar: &Cellar, flags: &[&str]) -> Vec<String> {
    let rows = document(cellar, &[&["jobs", "list"], flags].concat());
    rows["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["jid"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_minion_whose_master_is_behind_is_unknown_and_not_missing() {
    let cellar =
        Cellar::start_configured("cluster: {name: a, nats: {servers: ['nats://n1:4222']}}\n");
    let load = json!({"fun": "test.ping", "jid": JID, "tgt": "*", "tgt_type": "glob", "user": "root", "arg": []});
    cellar.save_load(JID, &load, &["web1", "web2"]);
    let now = || Clock::real().now().0;
    let heard = |published| {
        let beat = Beat {
            name: "b".to_owned(),
            epoch: "e".to_owned(),
            instance: "x".to_owned(),
            published,
            unpublished_us: 0,
            at: now(),
            slot: None,
            version: "1".to_owned(),
            holds_digest: None,
            holds: Vec::new(),
        };
        let sender = MasterName::new("b").unwrap();
        cellar.peers().heard(&sender, beat);
    };
    let have = |number, at| {
        let mark = Mark {
            number,
            at: Micros(at),
        };
        let mut changes = Changes::default();
        let peers = cellar.peers();
        peers.have(("b", "e"), mark, 1, &mut changes).unwrap();
    };
    let counts = |shown: &Json| {
        let minions = |key: &str| shown[key].as_array().unwrap().len();
        let counted = &shown["unknown_count"];
        assert_eq!(*counted, minions("unknown"), "{shown}");
        (minions("missing"), minions("unknown"))
    };

    assert_eq!(counts(&show(&cellar, JID)), (2, 0), "there is no other");
    have(1, now() - 250_000_000);
    heard(2);
    let shown = show(&cellar, JID);
    assert_eq!(counts(&shown), (0, 2));
    assert_eq!(shown["unknown"][0]["minion"], "web1");
    assert_eq!(shown["unknown"][0]["master"], "b");
    assert_eq!(shown["missing_count"], 0);
    let lines = text(&cellar, &["jobs", "show", JID]);
    assert!(
        lines.contains("\n    web1: unknown (master b is 4m behind)\n"),
        "{lines}"
    );
    let rows = text(&cellar, &["jobs", "list"]);
    assert!(rows.contains("0/2 (2 unknown)"), "{rows}");
    let of_result = |result| listed(&cellar, &["--result", result]);
    assert!(of_result("missing").is_empty());
    assert_eq!(of_result("unknown"), [JID]);

    // One job by a result agrees with the list of jobs.
    let shown_of = |result, more: &[&str]| {
        let flags = ["jobs", "show", JID, "--result", result];
        document(&cellar, &[&flags[..], more].concat())
    };
    let missing = shown_of("missing", &[]);
    assert_eq!([&missing["missing"], &missing["unknown"]], [&json!([]); 2]);
    let unknown = shown_of("unknown", &["--minion", "*2"]);
    assert_eq!(unknown["unknown"].as_array().unwrap().len(), 1);
    assert_eq!(unknown["unknown"][0]["minion"], "web2");
    assert_eq!(unknown["unknown_count"], 2, "of the whole job");
    let line = text(
        &cellar,
        &[
            "jobs", "show", JID, "--result", "unknown", "--minion", "*1", "--output", "jsonl",
        ],
    );
    let line: Json = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (&line["minion"], &line["master"]),
        (&json!("web1"), &json!("b"))
    );
    assert!(line["behind_s"].as_u64().unwrap() >= 240, "{line}");

    let watch = ["jobs", "watch", JID, "--timeout", "1s"];
    let watched = stdout(&cli(&cellar, &watch));
    assert!(!watched.contains("missing"), "{watched}");
    let line = "web1: unknown (master b is 4m behind)\n";
    assert!(watched.contains(line), "{watched}");
    let ended = stdout(&cli(&cellar, &[&watch[..], &["--output", "json"]].concat()));
    let ended: Json = serde_json::from_str(&ended).unwrap();
    assert_eq!(ended["missing"], json!([]));
    assert_eq!(ended["unknown"][1]["minion"], "web2");

    // All of it is here.
    have(2, now());
    assert_eq!(counts(&show(&cellar, JID)), (2, 0));
    let of_result = |result| listed(&cellar, &["--result", result]);
    assert_eq!(of_result("missing"), [JID]);
    assert!(of_result("unknown").is_empty());
    let watched = stdout(&cli(&cellar, &watch));
    assert!(watched.contains("\nmissing: web1,web2\n"), "{watched}");
}

#[test]
fn different_jobs_under_one_id_are_all_shown() {
    let cellar = Cellar::start_configured(LISTENER);
    for (fun, user) in [("test.ping", "root"), ("state.apply", "bob")] {
        let load = json!({
            "fun": fun, "jid": JID, "tgt": "web*", "tgt_type": "glob", "user": user, "arg": ["<b>"],
        });
        cellar.save_load(JID, &load, &["web1"]);
    }

    let shown = text(&cellar, &["jobs", "show", JID]);
    let (_, conflict) = shown.split_once("conflict: different jobs").unwrap();
    let lines: Vec<_> = conflict.lines().skip(1).take(2).collect();
    assert!(
        lines[0].ends_with("test.ping <b> on web* by root"),
        "{shown}"
    );
    assert!(
        lines[1].ends_with("state.apply <b> on web* by bob"),
        "{shown}"
    );
    let list = text(&cellar, &["jobs", "list"]);
    assert!(list.contains("test.ping (conflict)"), "{list}");
    // Each of them is found, and shown as the one that counts.
    for (flags, is_found) in [
        (["--fun", "test.*", "--user", "root"], true),
        (["--fun", "state.*", "--user", "bob"], true),
        (["--fun", "state.*", "--user", "root"], false),
    ] {
        let found = listed(&cellar, &flags);
        assert_eq!(found == [JID], is_found, "{flags:?} {found:?}");
    }

    let job = show(&cellar, JID);
    let funs = [0, 1].map(|n| job["publishes"][n]["fun"].clone());
    assert_eq!(job["conflict"], true);
    assert_eq!(funs, ["test.ping", "state.apply"]);

    let (address, line) = (address(&cellar), token(&cellar, &["r", "--scope", "read"]));
    let page = get(&address, &format!("/jobs/{JID}"), &line).text();
    assert!(
        page.contains("Different jobs were published under this id."),
        "{page}"
    );
    assert!(
        page.contains("<bdi>state.apply</bdi> <bdi>&lt;b&gt;</bdi>"),
        "{page}"
    );
    let page = get(&address, "/jobs", &line).text();
    assert!(
        page.contains(r#"<span class="warn">conflict</span>"#),
        "{page}"
    );
}

#[test]
fn a_return_that_a_peer_fired_is_shown_as_not_verified() {
    let cellar = Cellar::start_configured(LISTENER);
    cellar.publish(JID, "test.ping", &["web1", "web2"]);
    cellar.answer(JID, "web1", "test.ping", &json!(true), 0);
    let load = json!({
        "cmd": "_return", "id": "web2", "jid": JID, "fun": "test.ping", "fun_args": [], "return": true,
        "retcode": 0, "success": true, "_stamp": "2026-11-21T05:47:29.000000",
    });
    let args = vec![
        ("load", value(&load)),
        ("mirrored", true.into()),
        ("master", "<b>".into()),
    ];
    cellar.ask("returner", args);

    let shown = text(&cellar, &["jobs", "show", JID]);
    assert!(
        shown.contains("2 of 2, 0 failed, 1 from peers, not verified here"),
        "{shown}"
    );
    assert!(
        shown.contains("answered, from peer <b>, not verified here"),
        "{shown}"
    );
    let job = show(&cellar, JID);
    let of = |n: usize| {
        let shown = &job["returns"][n];
        [&shown["verified"], &shown["master"]].map(Clone::clone)
    };
    assert_eq!(
        (of(0), of(1)),
        ([json!(true), json!(null)], [json!(false), json!("<b>")])
    );
    assert_eq!(
        (&job["unverified"], &job["bus_only"]),
        (&json!(1), &json!(1))
    );

    let (address, line) = (address(&cellar), token(&cellar, &["r", "--scope", "read"]));
    let page = get(&address, &format!("/jobs/{JID}"), &line).text();
    let mark = "answered, from peer <bdi>&lt;b&gt;</bdi>, not verified here";
    assert!(page.contains(mark), "{page}");
}

#[test]
fn a_list_of_jobs_in_a_pipe_has_short_lines_whatever_their_arguments() {
    let cellar = Cellar::start();
    let argument = "x".repeat(100_000);
    for (jid, argument) in [(JID, argument.as_str()), (LATER, "short")] {
        let load = json!({
            "fun": "cmd.run", "jid": jid, "tgt": "*", "tgt_type": "glob", "user": "root", "arg": [argument],
        });
        cellar.save_load(jid, &load, &["web1"]);
    }

    let printed = text(&cellar, &["jobs", "list"]);
    let rows: Vec<_> = printed
        .lines()
        .filter(|line| line.contains("cmd.run"))
        .collect();
    assert_eq!(rows.len(), 2, "{printed}");
    assert!(printed.contains("xxxx"), "{printed}");
    let longest = printed.lines().map(|line| line.chars().count()).max();
    assert!(longest < Some(2_000), "{longest:?}");

    // Other formats have whole values.
    let whole = document(&cellar, &["jobs", "show", JID]).to_string();
    assert!(whole.contains(&argument));
}

#[test]
fn jobs_with_targets_that_are_too_long_for_a_summary_are_told_apart() {
    let cellar = Cellar::start();
    for (jid, kind) in [(JID, "web"), (LATER, "db")] {
        let tgt: Vec<String> = (0..200).map(|n| format!("{kind}{n}.example.net")).collect();
        let ids: Vec<&str> = tgt.iter().map(String::as_str).collect();
        let load = json!({"cmd": "publish", "tgt": tgt, "tgt_type": "list", "fun": "test.ping", "arg": [], "jid": jid});
        cellar.save_load(jid, &load, &ids);
        cellar.answer(jid, ids[0], "test.ping", &json!(true), 0);
    }
    assert_eq!(listed(&cellar, &["--tgt", "web1*"]), [JID]);
    assert_eq!(listed(&cellar, &["--tgt", "db*"]), [LATER]);
    // Nor is one the earlier run of the other.
    let diff = cli(&cellar, &["jobs", "diff", LATER]);
    let printed = stdout(&diff) + &stderr(&diff);
    assert!(!printed.contains(JID), "{printed}");
}

#[test]
fn jobs_that_are_read_for_their_metadata_count_towards_the_limit_of_a_call() {
    let cellar = Cellar::start();
    let long = "x".repeat(100_000);
    for n in 0..5 {
        let jid = format!("2026112105472{n}123456");
        let load = json!({
            "fun": "cmd.run", "jid": jid, "tgt": "*", "tgt_type": "glob", "user": "root", "arg": [long],
            "metadata": {"ticket": "1"},
        });
        cellar.save_load(&jid, &load, &["web1"]);
    }

    let log = &cellar.ctx().archive.store;
    let store = log.view(Arc::new(ReadLimits::default()));
    let filter = JobFilter {
        metadata: vec![("ticket".to_owned(), Glob::new("2"))],
        ..JobFilter::default()
    };
    let limits = PageLimits {
        read: 2,
        ..PageLimits::of_rows(10)
    };
    let page = jobs_before(&store, &filter, None, limits).unwrap();
    assert_eq!(page.last.as_deref(), Some("20261121054723123456"));
    assert!(page.jobs.is_empty() && page.more);
}

#[test]
fn a_watched_job_is_complete_whatever_its_minions_are_called() {
    let cellar = Cellar::start();
    let ids = ["web1", "we\u{202e}b2"];
    cellar.publish(JID, "test.ping", &ids);
    for id in ids {
        cellar.answer(JID, id, "test.ping", &json!(true), 0);
    }
    // By the beginning of its id, as other commands.
    let watch = ["jobs", "watch", &JID[..18], "--timeout", "30s"];
    let watched = text(&cellar, &watch);
    assert!(watched.contains("we\\u{202e}b2: ok"), "{watched}");
    assert!(!watched.contains("missing"), "{watched}");
}

#[test]
fn a_job_is_summarised_with_its_missing_minions() {
    let cellar = Cellar::start();
    cellar.publish(JID, "cmd.run", &["web1", "web2", "web3"]);
    cellar.answer(JID, "web1", "cmd.run", &json!("fine"), 0);
    cellar.answer(JID, "web2", "cmd.run", &json!("no"), 2);
    let job = show(&cellar, JID);
    let fields = [
        "expected",
        "returned",
        "failed",
        "succeeded",
        "missing_count",
        "retcodes",
        "missing",
    ];
    assert_eq!(
        fields.map(|name| job[name].clone()),
        [
            json!(3),
            json!(2),
            json!(1),
            json!(1),
            json!(1),
            json!({"0": 1, "2": 1}),
            json!(["web3"])
        ]
    );
    let [first, last] =
        ["first_return", "last_return"].map(|name| job[name].as_str().unwrap().to_owned());
    assert!(first <= last && first.ends_with('Z'), "{first} {last}");
    assert!(job["duration_us"].as_i64().unwrap() >= 0);
    assert_eq!(text(&cellar, &["jobs", "missing", JID]), "web3\n");
    cellar.publish(LATER, "cmd.run", &["web1"]);
    cellar.answer(LATER, "web1", "cmd.run", &json!("all there"), 0);
    let rows = text(&cellar, &["jobs", "missing"]);
    assert!(
        rows.lines().nth(1).unwrap().ends_with("2/3        1  web3"),
        "{rows}"
    );
    assert_eq!(
        rows.lines().count(),
        2,
        "a head, and the only job with a missing answer: {rows}"
    );
    assert_eq!(
        document(&cellar, &["jobs", "missing", JID])["missing"],
        json!(["web3"])
    );
    let all = document(&cellar, &["jobs", "missing"]);
    assert_eq!(
        (&all["jobs"][0]["jid"], &all["jobs"][0]["missing"]),
        (&json!(JID), &json!(["web3"]))
    );
    let none = document(&cellar, &["jobs", "missing", "--fun", "none"]);
    assert_eq!(none, json!({"jobs": [], "more": false}));
    let shown = text(&cellar, &["jobs", "show", JID]);
    assert!(
        shown.contains("returned  2 of 3, 1 failed\nretcodes  0: 1, 2: 1\ntook      "),
        "{shown}"
    );
    let only = text(
        &cellar,
        &["jobs", "show", JID, "--result", "failed", "--returns"],
    );
    assert!(
        only.starts_with("web2: (") && !only.contains("web1"),
        "{only}"
    );

    // Without a return; that of the others is not shown.
    let of = |more: &[&str]| {
        let flags = ["jobs", "show", JID, "--result", "missing"];
        stdout(&cli(&cellar, &[&flags[..], more].concat()))
    };
    let shown: Json = serde_json::from_str(&of(&["--output", "json"])).unwrap();
    assert_eq!(
        (&shown["returns"], &shown["more"]),
        (&json!([]), &json!(false))
    );
    assert_eq!(shown["missing"], json!(["web3"]));
    let listed = of(&[]);
    assert!(
        listed.ends_with("\nmissing:\n    web3  never seen\n"),
        "{listed}"
    );
    assert_eq!(
        of(&["--output", "csv"]),
        "minion,result,master,behind_s\nweb3,missing,,\n"
    );
    assert!(
        !of(&["--minion", "web1"]).contains("missing"),
        "by the glob"
    );
}

#[test]
fn jobs_are_found_by_result() {
    let cellar = Cellar::start();
    let jids = [
        "20261120000000000001",
        "20261121000000000002",
        "20261121000000000003",
        "20261121000000000004",
        "20261121000000000005",
    ];
    cellar.publish(jids[0], "cmd.run", &["web1"]);
    cellar.answer(jids[0], "web1", "cmd.run", &json!("x"), 1);
    cellar.publish(jids[1], "cmd.run", &["web1", "db1"]);
    cellar.answer(jids[1], "web1", "cmd.run", &json!("x"), 0);
    cellar.publish(jids[2], "state.apply", &["web1"]);
    cellar.answer(jids[2], "web1", "state.apply", &run_states(true, true), 0);
    let load = json!({"cmd": "publish", "fun": "state.apply", "tgt": "db1", "tgt_type": "glob", "user": "jane",
                      "arg": [{"__kwarg__": true, "metadata": {"ticket": "OPS-8", "tags": ["a", "b"]}}]});
    cellar.save_load(jids[3], &load, &["db1"]);
    cellar.answer(jids[3], "db1", "state.apply", &run_states(false, true), 0);
    // Salt polls running jobs with this function; it is listed only on request.
    cellar.publish(jids[4], "saltutil.find_job", &["web1"]);
    for (flags, expected) in [
        (&[][..], &[3, 2, 1, 0][..]),
        (&["--include-polling", "--result", "missing"], &[4, 1]),
        (&["--result", "failed"], &[0]),
        (&["--result", "missing"], &[1]),
        (&["--result", "succeeded"], &[3, 2]),
        (&["--user", "jane"], &[3]),
        (&["--user", "root"], &[2, 1, 0]),
        (&["--since", "2026-11-21"], &[3, 2, 1]),
        (&["--limit", "2"], &[3, 2]),
        (&["--before", "20261121000000000003"], &[1, 0]),
        (&["--result", "changed"], &[2]),
        (&["--metadata", "ticket=OPS-7"], &[2, 1, 0]),
        (
            &["--metadata", "ticket=OPS-*", "--metadata", "tags=b"],
            &[3],
        ),
        (
            &["--metadata", "nodes=3", "--user", "root", "--fun", "cmd.*"],
            &[1, 0],
        ),
        (&["--metadata", "other=*"], &[]),
        (&["--jid", "20261121"], &[3, 2, 1]),
        (&["--jid", "20261121000000000003"], &[2]),
        (&["--jid", "2026112"], &[3, 2, 1, 0]),
        (&["--jid", "2026111"], &[]),
        (&["--jid", "20261119"], &[]),
        (&["--minion", "db1"], &[3, 1]),
        (
            &[
                "--minion",
                "db1",
                "--result",
                "missing",
                "--since",
                "2026-11-21",
            ],
            &[1],
        ),
        (&["--tgt", "db*"], &[3]),
        (&["--until", "2026-11-21", "--limit", "1"], &[0]),
    ] {
        let expected: Vec<_> = expected.iter().map(|n| jids[*n]).collect();
        assert_eq!(listed(&cellar, flags), expected, "{flags:?}");
    }
    let page = cellar.ask("jobs_list", vec![("limit", 1.into())]);
    assert_eq!(page["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(page["more"].as_bool(), Some(true));
    // The position names its store.
    let next = page["next"].as_str().unwrap().to_owned();
    assert_eq!(next.split_once(':').unwrap().1, jids[3]);
    let second = cellar.ask(
        "jobs_list",
        vec![("limit", 1.into()), ("cursor", next.into())],
    );
    assert_eq!(second["jobs"][0]["jid"].as_str(), Some(jids[2]));
    let other = format!("0123456789abcdef:{}", jids[3]);
    let error = cellar
        .call("jobs_list", vec![("cursor", other.into())])
        .unwrap_err();
    assert!(error.to_string().contains("other_store"), "{error}");
    for bad in [&["--result", "good"][..], &["--metadata", "x"]] {
        assert_eq!(
            cli(&cellar, &[&["jobs", "list"], bad].concat())
                .status
                .code(),
            Some(64),
            "{bad:?}"
        );
    }
    let error = cellar
        .call("jobs_list", vec![("result", "odd".into())])
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("argument `result`: unknown variant `odd`, expected one of `failed`"),
        "{error}"
    );
}

#[test]
fn a_page_of_jobs_ends_at_its_bytes_and_the_next_one_continues() {
    let cellar = Cellar::start();
    let jids = [
        "20261121054728123456",
        "20261121054729123456",
        "20261121054730123456",
    ];
    let arg = "x".repeat(LIST_BYTES_MAX / 2 + 1);
    for jid in jids {
        let load = json!({ "fun": "test.echo", "jid": jid, "tgt": "*", "tgt_type": "glob", "user": "root", "arg": [arg], "cmd": "publish" });
        cellar.save_load(jid, &load, &["web1"]);
    }
    let page = |cursor: Option<Value>| {
        let cursor = cursor.map(|cursor| ("cursor", cursor));
        let args = [("limit", 100.into())].into_iter().chain(cursor);
        let page = cellar.ask("jobs_list", args.collect());
        let rows = page["jobs"].as_array().unwrap().iter();
        let found: Vec<_> = rows
            .map(|row| row["jid"].as_str().unwrap().to_owned())
            .collect();
        (found, page["more"].as_bool(), page["next"].clone())
    };
    let (found, more, next) = page(None);
    assert_eq!(
        (found, more),
        (vec![jids[2].to_owned(), jids[1].to_owned()], Some(true))
    );
    let (found, more, next) = page(Some(next));
    assert_eq!(
        (found, more, next),
        (vec![jids[0].to_owned()], Some(false), Value::Nil)
    );
}

#[test]
fn of_the_returns_of_a_large_job_only_a_part_is_in_memory_at_a_time() {
    let cellar = Cellar::start();
    let comment = "x".repeat(PART_BYTES / 4);
    let jids = ["20261121054728515253", "20261121064728515253"];
    let minions = ["web1", "web2", "web3", "web4", "web5", "web6"];
    let answer = |jid: &str| {
        for (n, minion) in minions.iter().enumerate() {
            let changed = n == 5;
            let changes = if changed {
                json!({"nginx": true})
            } else {
                json!({})
            };
            let states = json!({
                "service_|-nginx_|-nginx_|-running": state(1, n != 4, &changes, &comment),
            });
            cellar.answer(jid, minion, "state.apply", &states, i64::from(n == 4));
        }
    };
    // The second one is known by its returns only.
    cellar.publish(jids[0], "state.apply", &minions);
    jids.into_iter().for_each(answer);
    let is_bounded = |asked: &str| {
        for jid in jids {
            let held = held::most(jid);
            assert!((1..=PART_BYTES).contains(&held), "{asked}: {jid} {held}");
        }
    };

    let both = || listed(&cellar, &[]).len();
    assert_eq!(both(), 2);
    is_bounded("jobs list");
    for flags in [
        &["--result", "changed"][..],
        &["--minion", "web*"],
        &["--result", "failed"],
    ] {
        assert_eq!(listed(&cellar, flags), [jids[1], jids[0]], "{flags:?}");
    }
    let of_minion = |minion| listed(&cellar, &["--result", "changed", "--minion", minion]).len();
    assert_eq!((of_minion("web6"), of_minion("web[1-5]")), (2, 0));
    is_bounded("jobs list --result changed");

    for jid in jids {
        for call in [
            "get_jid",
            "job_show",
            "job_states",
            "job_strip",
            "job_durations",
        ] {
            cellar.ask(call, vec![("jid", jid.into())]);
            is_bounded(call);
        }
        let returns = cellar.ask("get_jid", vec![("jid", jid.into()), ("full", true.into())]);
        let mut named: Vec<_> = returns
            .as_map()
            .unwrap()
            .iter()
            .map(|(id, _)| id.as_str().unwrap())
            .collect();
        named.sort_unstable();
        assert_eq!(named, minions);
        let totals = cellar.ask("causes", vec![("jid", jid.into())]);
        assert_eq!(totals["causes"][0]["count"], 1.into());
        is_bounded("causes");
    }
    let diff = vec![
        ("jid", jids[1].into()),
        ("with", jids[0].into()),
        ("totals", true.into()),
    ];
    let diff = cellar.ask("job_diff", diff);
    assert_eq!(
        (&diff["totals"]["same"], &diff["same"]),
        (&6.into(), &6.into())
    );
    is_bounded("job_diff");
    let all = cellar.ask(
        "get_fun",
        vec![("fun", "state.apply".into()), ("full", true.into())],
    );
    assert_eq!(all.as_map().unwrap().len(), 6);
    cellar.ask("minions_list", vec![]);
    is_bounded("minions_list");
}

#[test]
fn jobs_of_every_kind_are_shown() {
    let cellar = Cellar::start();
    // A syndic reports additional minions.
    cellar.publish(JID, "test.ping", &["web1"]);
    let named = vec![
        ("jid", JID.into()),
        ("minions", value(&json!(["far1"]))),
        ("syndic_id", "syndic".into()),
    ];
    cellar.ask("save_minions", named);
    cellar.answer(JID, "far1", "test.ping", &json!(true), 0);
    let job = show(&cellar, JID);
    assert_eq!(
        (&job["minions"], &job["missing"]),
        (&json!(["far1", "web1"]), &json!(["web1"]))
    );

    // A minion returns again with another value.
    cellar.answer(JID, "far1", "test.ping", &json!(true), 0);
    cellar.answer(JID, "far1", "test.ping", &json!("later"), 3);
    let job = show(&cellar, JID);
    let far = &job["returns"][0];
    assert_eq!(
        (&far["return"], &far["duplicates"]),
        (&json!(true), &json!(1))
    );
    assert_eq!(
        (&far["others"][0]["return"], &far["others"][0]["retcode"]),
        (&json!("later"), &json!(3))
    );
    assert_eq!((&job["failed"], &far["failed"]), (&json!(0), &json!(false)));
    let shown = text(&cellar, &["jobs", "show", JID]);
    assert!(
        shown.contains("1 different later return(s)") && shown.contains("        later\n"),
        "{shown}"
    );

    // Several functions, of which one failed: `fun` is a list, `retcode` and `success` are maps.
    let load = json!({"cmd": "publish", "fun": ["test.ping", "cmd.run"], "arg": [[], ["false"]], "tgt": "web1",
                      "tgt_type": "glob", "user": "root"});
    cellar.save_load("20261121100000000001", &load, &["web1"]);
    let ret = json!({"id": "web1", "jid": "20261121100000000001", "fun": ["test.ping", "cmd.run"],
                     "return": {"test.ping": true, "cmd.run": ""}, "retcode": {"test.ping": 0, "cmd.run": 1},
                     "success": {"test.ping": true, "cmd.run": false}});
    cellar.store_return(&ret);
    let job = show(&cellar, "20261121100000000001");
    assert_eq!(
        (&job["failed"], &job["retcodes"]),
        (&json!(1), &json!({"1": 1}))
    );
    assert!(text(&cellar, &["jobs", "list"]).contains("test.ping,cmd.run"));

    // Returns excluded from the job cache are known from the bus.
    let jid = cellar.ask("prep_jid", vec![("nocache", true.into())]);
    let jid = jid.as_str().unwrap();
    cellar.answer(jid, "web1", "test.ping", &json!(true), 0);
    let job = show(&cellar, jid);
    assert_eq!(
        (&job["nocache"], &job["returned"]),
        (&json!(true), &json!(1))
    );
    assert!(text(&cellar, &["jobs", "show", jid]).contains("nocache   true"));

    // salt-ssh: a load without `cmd`.
    let load = json!({"jid": "20261121100000000002", "tgt_type": "glob", "tgt": "box*", "user": "root",
                      "fun": "test.ping", "arg": []});
    cellar.save_load("20261121100000000002", &load, &[]);
    assert_eq!(show(&cellar, "20261121100000000002")["tgt"], json!("box*"));

    // A custom jid with only a return.
    cellar.answer("nightly-7", "web1", "cmd.run", &json!("x"), 0);
    let job = show(&cellar, "nightly-7");
    assert_eq!(
        (&job["jid"], &job["tgt"], &job["arg"]),
        (&json!("nightly-7"), &json!("web1"), &json!([]))
    );
    assert_eq!(
        (&job["expected"], &job["missing_count"]),
        (&Json::Null, &Json::Null)
    );
    assert!(text(&cellar, &["jobs", "show", "nightly-7"]).contains("returned  1, 0 failed\n"));
    assert_eq!(listed(&cellar, &["--jid", "night"]), ["nightly-7"]);
    assert_eq!(
        listed(&cellar, &["--since", "2100-01-01"]),
        [""; 0],
        "it arrived today"
    );
}

/// The result of a runner as passed by Salt 3008.3 to `save_load` and `returner`.
fn of_runner(jid: &str, fun: &str, args: &Json, ret: &Json, ok: bool) -> Json {
    json!({"id": "vm_master", "tgt": "vm_master", "jid": jid, "fun": fun, "user": "root",
           "return": {"fun": fun, "jid": jid, "user": "root", "fun_args": args, "return": ret, "success": ok,
                      "_stamp": "2026-11-21T05:47:30.0"}})
}

fn store_runner(cellar: &Cellar, load: &Json) {
    let jid = load["jid"].as_str().unwrap();
    cellar.ask(
        "save_load",
        vec![("jid", jid.into()), ("load", value(load))],
    );
    cellar.store_return(load);
}

#[test]
fn an_orchestration_and_its_jobs_are_linked() {
    let cellar = Cellar::start();
    let (nested, deep, alone) = (
        "20261121054729000001",
        "20261121054729000002",
        "20261121054729000003",
    );
    let step = |num: u64, name: &str, jid: &str| {
        json!({"name": name, "changes": {"ret": {"web1": true}}, "result": true, "comment": "ran", "__jid__": jid,
               "__sls__": "orch", "__run_num__": num, "start_time": "05:47:28.6", "duration": 100.0, "__id__": name})
    };
    let outer = json!({"outputter": "highstate", "retcode": 1, "data": {"vm_master": {
        "salt_|-ping_|-test.ping_|-function": step(0, "test.ping", LATER),
        "salt_|-inner_|-state.orchestrate_|-runner": step(1, "state.orchestrate", nested),
    }}});
    let own = json!(["orch", {"orchestration_jid": JID}]);
    store_runner(
        &cellar,
        &of_runner(JID, "runner.state.orchestrate", &own, &outer, false),
    );
    let inner = json!({"outputter": "highstate", "retcode": 0, "data": {"vm_master": {
        "salt_|-echo_|-test.echo_|-function": step(0, "test.echo", deep),
    }}});
    let args = json!([{"mods": "inner", "orchestration_jid": JID}]);
    store_runner(
        &cellar,
        &of_runner(nested, "runner.state.orchestrate", &args, &inner, true),
    );
    for jid in [LATER, deep, alone] {
        cellar.publish(jid, "test.ping", &["web1"]);
        cellar.answer(jid, "web1", "test.ping", &json!(true), 0);
    }

    let job = show(&cellar, JID);
    let children: Vec<_> = job["children"]
        .as_array()
        .unwrap()
        .iter()
        .map(|child| &child["jid"])
        .collect();
    assert_eq!(children, [&json!(LATER), &json!(nested)]);
    assert_eq!(
        job["parent"],
        Json::Null,
        "its orchestration_jid is its own"
    );
    assert_eq!(
        (&job["failed"], &job["retcodes"]),
        (&json!(1), &json!({"1": 1})),
        "as its data states"
    );
    assert_eq!(
        show(&cellar, nested)["parent"],
        json!(JID),
        "named in its own load"
    );
    assert_eq!(
        show(&cellar, deep)["parent"],
        json!(nested),
        "the nearest one"
    );
    assert_eq!(show(&cellar, LATER)["parent"], json!(JID));
    assert_eq!(show(&cellar, alone)["parent"], Json::Null);
    assert_eq!(listed(&cellar, &["--result", "failed"]), [JID]);

    let shown = text(&cellar, &["jobs", "show", JID]);
    assert!(shown.contains("arg       orch\n"), "{shown}");
    assert!(
        shown.contains(&format!(
            "started:\n    {LATER}  salt.function test.ping: succeeded\n"
        )),
        "{shown}"
    );
    let rows = document(&cellar, &["jobs", "states", JID]);
    assert_eq!(
        (&rows["states"][0]["minion"], &rows["states"][0]["job"]),
        (&json!("vm_master"), &json!(LATER))
    );
    let highstate = text(&cellar, &["jobs", "show", nested, "--format", "highstate"]);
    assert!(
        highstate.starts_with("vm_master:\n----------\n          ID: echo\n"),
        "{highstate}"
    );
}

#[test]
fn states_are_rows_and_runs_are_compared() {
    let cellar = Cellar::start();
    for (jid, minions) in [
        (JID, ["db1", "web1", "web2", "web3", "web4"]),
        (LATER, ["mail1", "web1", "web2", "web3", "web4"]),
    ] {
        cellar.publish(jid, "state.apply", &minions);
    }
    cellar.answer(JID, "db1", "state.apply", &run_states(false, true), 0);
    cellar.answer(JID, "web1", "state.apply", &run_states(false, true), 0);
    cellar.answer(JID, "web2", "state.apply", &run_states(true, true), 0);
    cellar.answer(JID, "web3", "state.apply", &run_states(true, true), 0);
    cellar.answer(
        LATER,
        "mail1",
        "state.apply",
        &json!(["Rendering SLS 'base:web' failed"]),
        1,
    );
    cellar.answer(LATER, "web1", "state.apply", &run_states(false, false), 2);
    cellar.answer(LATER, "web2", "state.apply", &run_states(false, true), 0);
    let mut other = run_states(true, true);
    // Values that differ in every run, and the pid of a command.
    for (jid, pid) in [(JID, 7), (LATER, 8)] {
        let ret = json!({"cmd_|-date_|-date_|-run": state(0, true, &json!({"pid": pid, "stdout": ""}), "ran")});
        cellar.answer(jid, "web4", "state.apply", &ret, 0);
    }
    other["pkg_|-nginx_|-nginx_|-installed"]["duration"] = json!(99.0);
    other["pkg_|-nginx_|-nginx_|-installed"]["comment"] = json!("Everything is there");
    cellar.answer(LATER, "web3", "state.apply", &other, 0);
    // Other jobs in between are not runs of this job.
    cellar.publish("20261121060000000000", "test.ping", &["web1"]);

    let rows = document(&cellar, &["jobs", "states", JID]);
    let rows = rows["states"].as_array().unwrap();
    assert_eq!(rows.len(), 9);
    let fields = [
        "minion",
        "id",
        "name",
        "fun",
        "sls",
        "result",
        "changed",
        "duration_ms",
        "run_num",
        "comment",
    ];
    assert_eq!(
        fields.map(|name| rows[5][name].clone()),
        [
            json!("web2"),
            json!("nginx"),
            json!("nginx"),
            json!("service.running"),
            json!("web"),
            json!(true),
            json!(true),
            json!(2.5),
            json!(1),
            json!("The service")
        ]
    );
    for (flags, count) in [
        (&["--result", "changed"][..], 3),
        (&["--result", "failed"], 0),
        (&["--minion", "web*", "--fun", "pkg.*"], 3),
        (&["--sls", "other"], 0),
        (&["--id", "ngin?"], 9),
    ] {
        let rows = document(&cellar, &[&["jobs", "states", JID], flags].concat());
        assert_eq!(rows["states"].as_array().unwrap().len(), count, "{flags:?}");
    }
    let failed = text(&cellar, &["jobs", "states", LATER, "--result", "failed"]);
    assert!(
        failed.contains("mail1   failed") && failed.contains("Rendering SLS 'base:web' failed"),
        "{failed}"
    );
    // In pages of one row: by whole minions.
    let page = cellar.ask("job_states", vec![("jid", JID.into()), ("limit", 1.into())]);
    assert_eq!(
        (
            page["states"].as_array().unwrap().len(),
            page["next"].as_str()
        ),
        (2, Some("db1"))
    );

    let shown = text(&cellar, &["jobs", "diff", LATER]);
    let body = shown.split_once("\n\n").unwrap().1;
    assert_eq!(
        body,
        "mail1: only in the later run (failed, retcode 1)\n\
         \n\
         web1: succeeded, retcode 0 -> failed, retcode 2\n    \
             ! nginx (service.running): ok -> failed\n        \
                 The service\n\
         \n\
         db1: only in the earlier run (succeeded, retcode 0)\n\
         \n\
         web2: different return\n    \
             ~ nginx (service.running): changed -> ok\n        \
                 - nginx: true\n"
    );
    let head = shown.lines().next().unwrap();
    assert!(
        head.starts_with(&format!(
            "a  {JID}  2026-11-21 05:47:28.123 UTC  state.apply web on *: 5/5"
        )),
        "{head}"
    );
    let named = document(&cellar, &["jobs", "diff", JID, LATER, "--minion", "web1"]);
    assert_eq!(
        (
            named["minions"].as_array().unwrap().len(),
            &named["minions"][0]["what"]
        ),
        (1, &json!("result"))
    );
    assert_eq!(
        cli(&cellar, &["jobs", "diff", LATER, "--exit-code"])
            .status
            .code(),
        Some(1)
    );
    let same = cli(&cellar, &["jobs", "diff", JID, JID, "--exit-code"]);
    assert_eq!(same.status.code(), Some(0));
    assert!(stdout(&same).ends_with("no differences\n"));
    let first = cli(&cellar, &["jobs", "diff", JID]);
    assert_eq!(first.status.code(), Some(1));
    assert!(
        stderr(&first).contains("no earlier run of job"),
        "{}",
        stderr(&first)
    );
}

#[test]
fn a_job_of_many_minions_is_read_in_pages() {
    let cellar = Cellar::start();
    let minions: Vec<String> = (0..2_500).map(|n| format!("web{n:04}")).collect();
    cellar.publish(
        JID,
        "test.ping",
        &minions.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    let mut client = cellar.client();
    for id in &minions {
        let load = json!({"cmd": "_return", "id": id, "jid": JID, "fun": "test.ping", "fun_args": [],
                          "return": id, "retcode": 0, "success": true});
        client
            .call("returner", map(vec![("load", value(&load))]))
            .unwrap();
    }
    let job = show(&cellar, JID);
    let returns = job["returns"].as_array().unwrap();
    assert!(
        returns
            .iter()
            .zip(&minions)
            .all(|(answer, id)| answer["return"] == json!(id))
            && returns.len() == 2_500
    );
    let page = cellar.ask(
        "job_show",
        vec![
            ("jid", JID.into()),
            ("limit", 3.into()),
            ("after", "web1200".into()),
        ],
    );
    let ids = page["returns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|answer| answer["minion"].as_str().unwrap());
    assert!(ids.eq(["web1201", "web1202", "web1203"]));
    assert_eq!(
        (page["more"].as_bool(), page["next"].as_str()),
        (Some(true), Some("web1203"))
    );
    assert_eq!(
        page["returned"].as_u64(),
        Some(2_500),
        "totals of the whole job"
    );
    let last = cellar.ask(
        "job_show",
        vec![("jid", JID.into()), ("after", "web2498".into())],
    );
    assert_eq!(
        (
            last["more"].as_bool(),
            last["returns"].as_array().unwrap().len()
        ),
        (Some(false), 1)
    );
    let cached = cellar.ask("get_jid", vec![("jid", JID.into())]);
    assert_eq!(cached.as_map().unwrap().len(), 2_500);
    let some = document(&cellar, &["jobs", "show", JID, "--minion", "web000?"]);
    assert_eq!(some["returns"].as_array().unwrap().len(), 10);
}

#[test]
fn the_progress_of_a_job_is_told_in_parts_of_limited_size() {
    let cellar = Cellar::start();
    cellar.publish(JID, "state.apply", &["web1"]);
    let report = "r".repeat(1024 * 1024);
    for n in 0..20 {
        let data = json!({ "id": "web1", "jid": JID, "data": { "ret": format!("{n} {report}") } });
        cellar.store_event(&format!("salt/job/{JID}/prog/web1/{n}"), &data);
    }

    let (mut lengths, mut from) = (Vec::new(), 0);
    while lengths.iter().sum::<usize>() < 20 {
        let asked = vec![("jid", JID.into()), ("from", from.into())];
        let part = cellar.ask("job_watch", asked);
        let steps = part["steps"].as_array().unwrap();
        let bytes: usize = steps.iter().map(|step| step.to_string().len()).sum();
        assert!(!steps.is_empty() && bytes < LIST_BYTES_MAX + 2 * report.len());
        lengths.push(steps.len());
        from = part["next"].as_u64().unwrap();
    }
    assert_eq!(lengths, [16, 4]);
}

#[test]
fn waiting_for_a_job_does_not_delay_a_stop() {
    let mut cellar = Cellar::start();
    cellar.publish(JID, "cmd.run", &["web1"]);
    let next = cellar.ask("job_watch", vec![("jid", JID.into())])["next"]
        .as_u64()
        .unwrap();
    let mut waiting = cellar.client();
    let calls = cellar.counter("calls");
    let waits = std::thread::Builder::new().name("waits".to_owned());
    let waits = waits
        .spawn(move || {
            let started = std::time::Instant::now();
            let wait = vec![
                ("jid", JID.into()),
                ("from", next.into()),
                ("wait_ms", 10_000.into()),
            ];
            (
                waiting.call("job_watch", map(wait)).unwrap(),
                started.elapsed(),
            )
        })
        .unwrap();
    // Calls are counted on arrival.
    wait_for("the wait", || {
        (cellar.counter("calls") > calls).then_some(())
    });
    assert!(cellar.terminate());
    let (news, waited) = waits.join().unwrap();
    assert_eq!(news["answers"].as_array().unwrap().len(), 0);
    assert!(waited < std::time::Duration::from_secs(9), "{waited:?}");
}

#[test]
fn returns_are_shown_in_the_forms_of_salt() {
    let cellar = Cellar::start();
    cellar.publish(JID, "state.apply", &["web1"]);
    cellar.answer(JID, "web1", "state.apply", &run_states(true, true), 0);
    let highstate = text(&cellar, &["jobs", "show", JID, "--format", "highstate"]);
    assert!(
        highstate
            .starts_with("web1:\n----------\n          ID: nginx\n    Function: pkg.installed\n"),
        "{highstate}"
    );
    assert!(highstate.contains("\nSummary for web1\n"), "{highstate}");
    assert!(
        highstate.ends_with("Total states run:     2\nTotal run time:   4.000 ms\n"),
        "{highstate}"
    );
    cellar.publish(LATER, "test.ping", &["web1"]);
    cellar.answer(LATER, "web1", "test.ping", &json!(true), 0);
    assert_eq!(
        text(&cellar, &["jobs", "show", LATER, "--format", "salt"]),
        "web1:\n    True\n"
    );
    let returns = document(&cellar, &["jobs", "show", LATER, "--returns"]);
    assert_eq!(returns, json!({"web1": true}));
    let both = [
        "jobs", "show", LATER, "--format", "salt", "--output", "json",
    ];
    let refused = cli(&cellar, &both);
    assert_eq!(refused.status.code(), Some(64), "{}", stderr(&refused));
}

#[test]
fn an_unknown_jid_is_reported_in_one_line() {
    let cellar = Cellar::start();
    let long = "9".repeat(10_240);
    for verb in [
        &["jobs", "show"][..],
        &["jobs", "missing"],
        &["jobs", "states"],
    ] {
        let output = cli(&cellar, &[verb, &[long.as_str()]].concat());
        let printed = stderr(&output);
        assert_eq!(
            (output.status.code(), printed.lines().count()),
            (Some(1), 1),
            "{verb:?}: {printed}"
        );
        assert!(
            printed.len() < 250
                && printed
                    .ends_with("... (10240 bytes); `saltcellar jobs list` lists the known jobs\n"),
            "{printed}"
        );
    }
    let output = cli(&cellar, &["jobs", "show", &"9".repeat(20_000)]);
    assert_eq!(output.status.code(), Some(64), "{}", stderr(&output));
    let output = cli(&cellar, &["jobs", "diff", "1", "2"]);
    assert_eq!(
        (
            output.status.code(),
            stderr(&output).contains("unknown job")
        ),
        (Some(1), true)
    );
}
