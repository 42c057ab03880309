//! `import` and `export`: conversion, skipped items, resumption and repetition.

use std::fs;
use std::path::Path;
use std::process::Output;

use rmpv::Value;
use serde_json::Value as Json;

use crate::cli::in_process::{cli, stderr, text};
use crate::daemon::in_process::{Cellar, list, local, map, wait_for};
use crate::testkit::entries::Asks as _;
use crate::testkit::job_cache::{JobTree, LATER, document, load, packed, sums};

const JID: &str = "20261101120000000001";

fn run(cellar: &Cellar, args: &[&str]) -> Output {
    cli(cellar, &[&["--output", "json"], args].concat())
}

#[test]
fn a_tree_of_salts_job_cache_is_imported_once() {
    let cellar = Cellar::start();
    let tree = JobTree(cellar.dir.path().join("jobs"));
    tree.put_job(JID, &["db1", "web1"]);
    tree.put_value(JID, "web1/out.p", &"highstate".into());
    tree.put_value(JID, ".minions.syndic1.p", &list(["far1", "far2"]));
    tree.put(JID, "endtime", b"2026, Nov 01 12:00:09.000000");
    tree.put_job("20261101120000000002", &["web1"]);
    tree.put("20261101120000000002", "nocache", b"");
    tree.put_job("made up", &["web2"]);
    let from = tree.0.to_str().unwrap();
    let output = run(&cellar, &["import", "local-cache", from]);
    assert_eq!(
        (output.status.code(), sums(&output)),
        (Some(0), [10, 0, 0]),
        "{}",
        stderr(&output)
    );

    let job = cellar.ask("job_show", vec![("jid", JID.into())]);
    assert_eq!(job["minions"], list(["db1", "far1", "far2", "web1"]));
    assert_eq!(job["missing"], list(["far1", "far2"]));
    assert_eq!(
        (&job["fun"], &job["endtime"]),
        (&"test.ping".into(), &"2026, Nov 01 12:00:09.000000".into())
    );
    let answer = &job["returns"][1];
    assert_eq!(
        (&answer["time"], &answer["out"]),
        (&LATER.into(), &"highstate".into())
    );
    assert_eq!(answer["fun"], "test.ping".into(), "as in the load");
    assert_eq!(
        cellar.ask("get_jid", vec![("jid", "20261101120000000002".into())]),
        map(vec![]),
        "nocache"
    );

    let output = run(
        &cellar,
        &["import", "local-cache", cellar.dir.path().to_str().unwrap()],
    );
    assert_eq!(
        (output.status.code(), sums(&output)),
        (Some(0), [0, 10, 0]),
        "{}",
        stderr(&output)
    );
}

#[test]
fn an_import_of_the_past_is_no_growth_of_the_disk() {
    let cellar = Cellar::start();
    let lines = (0..500).map(|n| {
        let jid = format!("202601{:02}120000{n:06}", 1 + n % 20);
        let time = format!("2026-01-{:02}T12:00:00.{n:06}Z", 1 + n % 20);
        format!(
            r#"{{"kind": "load", "time": "{time}", "jid": "{jid}", "load": {{"jid": "{jid}", "fun": "test.ping", "tgt": "*"}}, "minions": ["web1"]}}"#
        )
    });
    let head = r#"{"kind": "saltcellar", "version": 2}"#.to_owned();
    let text: Vec<String> = std::iter::once(head).chain(lines).collect();
    let file = cellar.dir.path().join("past.jsonl");
    fs::write(&file, text.join("\n") + "\n").unwrap();
    let output = run(&cellar, &["import", "jsonl", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));

    let disk = || document_of(&cellar)["disk"].clone();
    let before = disk();
    assert!(before["used_bytes"].as_u64() > Some(10_000), "{before}");
    assert_eq!(before["bytes_per_day"], 0, "{before}");
    assert_eq!(before["days_left"], Json::Null, "{before}");

    // What arrives now is growth.
    let event = map(vec![("tag", "test/1".into()), ("data", map(vec![]))]);
    cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
    let after = disk();
    assert!(after["bytes_per_day"].as_u64() > Some(0), "{after}");
}

fn document_of(cellar: &Cellar) -> Json {
    serde_json::from_slice(&run(cellar, &["status"]).stdout).unwrap()
}

#[test]
fn unreadable_files_are_reported_and_the_rest_is_imported() {
    let cellar = Cellar::start();
    let tree = JobTree(cellar.dir.path().join("jobs"));
    tree.put_job(JID, &["web1"]);
    let bad = [
        tree.put(JID, "db1/return.p", b""),
        tree.put(
            JID,
            "db2/return.p",
            &packed(&map(vec![("return", "cut".into())]))[..9],
        ),
        tree.put("2", ".load.p", b"\x85\xa3jid"),
        tree.put("3", "web1/return.p", b"\xc0"),
        tree.put_value("4", ".load.p", &list(["no", "map"])),
        tree.put_value("4", ".minions.p", &"no list".into()),
        tree.put(JID, "stray", b"?"),
        tree.put_value("5", ".load.p", &map(vec![("fun", "no jid".into())])),
        // Opening it would wait for a writer.
        tree.put_value("6", "pipe1/return.p", &"replaced below".into()),
        tree.0.join("zz"),
    ];
    fs::remove_file(&bad[8]).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&bad[8]).status();
    assert!(made.unwrap().success());
    // A job without `.minions.p`, as Salt leaves it when it is killed between two writes.
    tree.put("6", "jid", b"6");
    tree.put_value("6", ".load.p", &load("6"));
    tree.put_value("6", "web1/return.p", &map(vec![("return", 1.into())]));
    fs::create_dir(tree.0.join("zz")).unwrap();
    tree.put("4", "jid", b"4");
    tree.put_value("4", "old/return.p", &"the format of 2014".into());
    let output = run(
        &cellar,
        &["import", "local-cache", tree.0.to_str().unwrap()],
    );
    assert_eq!(
        (output.status.code(), sums(&output)),
        (Some(65), [5, 0, bad.len() as u64]),
        "{}",
        stderr(&output)
    );
    for path in &bad {
        // Without a jid, the error names the directory.
        let named = path.parent().unwrap().to_str().unwrap().to_owned();
        let printed = stderr(&output);
        assert!(
            printed.contains(path.to_str().unwrap())
                || printed.contains(&format!("{named}:"))
                || printed.contains(named.trim_end_matches("/web1")),
            "{path:?}\n{printed}"
        );
    }
    let old = cellar.ask("get_jid", vec![("jid", "4".into())]);
    assert_eq!(old["old"]["return"], "the format of 2014".into());
    let job = cellar.ask("get_jid", vec![("jid", "6".into())]);
    assert_eq!(job["web1"]["return"], 1.into());
    let nowhere = run(
        &cellar,
        &[
            "import",
            "local-cache",
            cellar.dir.path().join("state").to_str().unwrap(),
        ],
    );
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(
        stderr(&nowhere).contains("/var/cache/salt/master/jobs"),
        "{}",
        stderr(&nowhere)
    );
}

/// Stores an entry of every kind.
fn fill(cellar: &Cellar) {
    let at = |n: u64| ("at", Value::from(LATER + n));
    // Old times are kept.
    let import = || ("import", Value::from(true));
    let minions = list(["web1", "web2"]);
    cellar.ask(
        "save_load",
        vec![
            ("jid", JID.into()),
            ("load", load(JID)),
            ("minions", minions),
            at(0),
            import(),
        ],
    );
    for (n, answer) in [(1, Value::Binary(vec![0, 0xff])), (2, "another".into())] {
        let returned = map(vec![
            ("jid", JID.into()),
            ("id", "web1".into()),
            ("return", answer),
            ("retcode", 2.into()),
        ]);
        cellar.ask("returner", vec![("load", returned), at(n), import()]);
    }
    cellar.ask(
        "save_minions",
        vec![
            ("jid", JID.into()),
            ("minions", list(["far1"])),
            ("syndic_id", "syndic1".into()),
            at(3),
            import(),
        ],
    );
    cellar.ask(
        "update_endtime",
        vec![
            ("jid", JID.into()),
            ("endtime", "soon".into()),
            at(4),
            import(),
        ],
    );
    cellar.ask(
        "prep_jid",
        vec![
            ("passed_jid", "quiet".into()),
            ("nocache", true.into()),
            at(5),
            import(),
        ],
    );
    let odd = Value::Map(vec![
        (1.into(), Value::Nil),
        ("\u{1f600}\n".into(), f64::INFINITY.into()),
    ]);
    let on_bus = map(vec![
        ("jid", JID.into()),
        ("id", "web2".into()),
        ("return", odd.clone()),
        ("_stamp", "x".into()),
    ]);
    let event = |tag: &str, data: Value| map(vec![("tag", tag.into()), ("data", data)]);
    for n in [6, 7] {
        cellar.ask(
            "event_return",
            vec![
                ("events", Value::Array(vec![event("my/tag", odd.clone())])),
                at(n),
                import(),
            ],
        );
    }
    let events = vec![
        event(&format!("salt/job/{JID}/ret/web2"), on_bus),
        event(
            &format!("salt/job/{JID}/new"),
            map(vec![
                ("fun", "test.ping".into()),
                ("minions", list(["web1"])),
            ]),
        ),
    ];
    cellar.ask(
        "event_return",
        vec![("events", Value::Array(events)), at(8), import()],
    );
    cellar.ask(
        "save_reg",
        vec![("data", map(vec![("thorium", 1.into())])), at(9), import()],
    );
}

/// The lines of an export, without sequence numbers.
fn lines(path: &Path) -> Vec<Json> {
    let text = fs::read_to_string(path).unwrap();
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<Json>(line).unwrap());
    lines
        .map(|mut line| {
            line.as_object_mut().unwrap().remove("seq");
            line
        })
        .collect()
}

#[test]
fn exported_json_lines_import_as_the_same_entries() {
    let (one, two) = (Cellar::start(), Cellar::start());
    fill(&one);
    let (first, second) = (
        one.dir.path().join("1.jsonl"),
        one.dir.path().join("2.jsonl"),
    );
    let export = |cellar, to: &Path, more: &[&str]| {
        let output = run(
            cellar,
            &[&["export", "jsonl", to.to_str().unwrap()], more].concat(),
        );
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    };
    export(&one, &first, &["--events"]);
    let exported = lines(&first);
    assert_eq!((exported.len(), &exported[0]["version"]), (12, &2.into()));
    for stored in [11, 0] {
        let output = run(&two, &["import", "jsonl", first.to_str().unwrap()]);
        assert_eq!(
            (output.status.code(), sums(&output)),
            (Some(0), [stored, 11 - stored, 0]),
            "{}",
            stderr(&output)
        );
    }
    export(&two, &second, &["--events"]);
    let again = lines(&second);
    assert_eq!(again, exported);
    for jid in [JID, "quiet"] {
        for call in ["job_show", "get_jid", "get_load"] {
            let [mut a, mut b] =
                [&one, &two].map(|cellar| cellar.ask(call, vec![("jid", jid.into())]));
            for job in [&mut a, &mut b] {
                forget_seq(job);
            }
            assert_eq!(a, b, "{call} {jid}");
        }
    }
    let jobs = one.dir.path().join("jobs.jsonl");
    export(&one, &jobs, &[]);
    assert_eq!(
        lines(&jobs).len(),
        1 + 8,
        "without entries that belong to no job"
    );
    let refused = run(&one, &["export", "jsonl", jobs.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1), "the file exists");

    // An interrupted export resumes after its last complete line.
    let whole = fs::read_to_string(&jobs).unwrap();
    let half = whole.len() / 2;
    fs::rename(&jobs, one.dir.path().join("whole")).unwrap();
    fs::write(one.dir.path().join("jobs.jsonl.part"), &whole[..half]).unwrap();
    export(&one, &jobs, &[]);
    assert_eq!(fs::read_to_string(&jobs).unwrap(), whole);

    // Equal events with equal times keep their number.
    let line =
        r#"{"kind": "event", "on_bus": true, "time": 1793534407600000, "tag": "twin", "data": {}}"#;
    fs::write(&second, format!("{line}\n{line}\n")).unwrap();
    for expected in [[2, 0, 0], [0, 2, 0]] {
        let output = run(&two, &["import", "jsonl", second.to_str().unwrap()]);
        assert_eq!(sums(&output), expected, "{}", stderr(&output));
    }

    // An event that is too large does not affect the others of its batch.
    let small = Cellar::start_configured("store:\n  entry_bytes_max: 64KiB\n");
    let event = |n: usize, fill: usize| {
        let data = format!(r#"{{"n": {n}, "fill": "{}"}}"#, "x".repeat(fill));
        format!(
            r#"{{"kind": "event", "on_bus": true, "time": {n}, "tag": "t/{n}", "data": {data}}}"#
        )
    };
    let text: Vec<_> = (1..=50)
        .map(|n| event(n, if n == 17 { 70_000 } else { 10 }))
        .collect();
    fs::write(&second, text.join("\n")).unwrap();
    let output = run(&small, &["import", "jsonl", second.to_str().unwrap()]);
    assert_eq!(
        (output.status.code(), sums(&output)),
        (Some(65), [49, 0, 1]),
        "{}",
        stderr(&output)
    );
    assert!(stderr(&output).contains("line 17: "), "{}", stderr(&output));

    fs::write(&second, "{\"kind\": \"song\"}\n\nno json\n").unwrap();
    let output = run(&two, &["import", "jsonl", second.to_str().unwrap()]);
    assert_eq!((output.status.code(), sums(&output)), (Some(65), [0, 0, 2]));
    assert!(
        stderr(&output).contains("2.jsonl, line 3: invalid JSON"),
        "{}",
        stderr(&output)
    );
    fs::write(&second, "{\"kind\": \"saltcellar\", \"version\": 3}\n").unwrap();
    let output = run(&two, &["import", "jsonl", second.to_str().unwrap()]);
    assert!(stderr(&output).contains("version 3"), "{}", stderr(&output));
}

fn forget_seq(value: &mut Value) {
    match value {
        Value::Map(pairs) => {
            pairs.retain(|(key, _)| key.as_str() != Some("seq"));
            for (_, value) in pairs {
                forget_seq(value);
            }
        }
        Value::Array(items) => {
            for item in items {
                forget_seq(item);
            }
        }
        _ => {}
    }
}

/// The bodies of the entries of a store, in order.
fn bodies(cellar: &Cellar) -> Vec<Vec<u8>> {
    let entries = cellar.ask("entries", vec![("from", 1.into()), ("all", true.into())]);
    let entries = entries["entries"].as_array().unwrap();
    let body = |entry: &Value| entry["body"].as_slice().unwrap().to_vec();
    entries.iter().map(body).collect()
}

#[test]
fn records_of_the_exporting_daemon_are_counted_and_left_out() {
    let cellar = Cellar::start();
    let file = cellar.dir.path().join("all.jsonl");
    let line = |kind: &str| {
        format!(
            r#"{{"kind": "{kind}", "on_bus": true, "time": 1, "tag": "t/{kind}", "data": {{}}}}"#
        )
    };
    let kinds = ["gap", "reaction", "event", "seen_on_bus", "reaction"];
    fs::write(&file, kinds.map(line).join("\n")).unwrap();

    let output = run(&cellar, &["import", "jsonl", file.to_str().unwrap()]);
    assert_eq!(
        (output.status.code(), sums(&output)),
        (Some(0), [1, 0, 0]),
        "{}",
        stderr(&output)
    );
    assert_eq!(
        document(&output)["left_out"],
        serde_json::json!({ "gap": 1, "reaction": 2, "seen_on_bus": 1 })
    );
}

#[test]
fn json_lines_are_exact_for_everything_that_the_store_takes() {
    let text = |bytes: &[u8]| {
        let packed = [&[0xd9, u8::try_from(bytes.len()).unwrap()], bytes].concat();
        rmpv::decode::read_value(&mut packed.as_slice()).unwrap()
    };
    let deep = (0..508).fold(Value::from(1), |inner, level| match level % 2 {
        0 => Value::Array(vec![inner]),
        _ => map(vec![("$k", inner)]),
    });
    let odd = vec![
        ("deep", deep),
        ("text", text(b"caf\xe9")),
        ("bin", Value::Binary(vec![0, 255])),
        (
            "keys",
            Value::Map(vec![
                (1.into(), 2.into()),
                ("1".into(), 3.into()),
                (text(b"\xff"), 4.into()),
            ]),
        ),
        (
            "repeated",
            Value::Map(vec![("a".into(), 1.into()), ("a".into(), 2.into())]),
        ),
        ("narrow", Value::F32(1.5)),
        ("nan", Value::F64(f64::NAN)),
        ("date", Value::Ext(78, b"00010101T00:00:00.000000".to_vec())),
        ("dollar", map(vec![("$bin", "x".into())])),
    ];
    let from = Cellar::start();
    let mut events = Vec::new();
    for (n, (name, value)) in odd.iter().enumerate() {
        let data = map(vec![("n", n.into()), ("odd", value.clone())]);
        events.push(map(vec![
            ("tag", format!("test/{name}").into()),
            ("data", data),
        ]));
        let load = map(vec![
            ("id", (*name).into()),
            ("jid", JID.into()),
            ("fun", "test.echo".into()),
            ("return", value.clone()),
        ]);
        from.ask("returner", vec![("load", load)]);
    }
    from.ask("event_return", vec![("events", Value::Array(events))]);
    let load = map(vec![
        ("fun", "test.echo".into()),
        ("jid", JID.into()),
        ("arg", Value::Array(vec![Value::F32(0.5)])),
    ]);
    from.ask(
        "save_load",
        vec![
            ("jid", JID.into()),
            ("load", load),
            ("minions", list(["web1"])),
        ],
    );
    let file = from.dir.path().join("all.jsonl");
    let output = run(
        &from,
        &["export", "jsonl", "--events", file.to_str().unwrap()],
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let to = Cellar::start();
    let output = run(&to, &["import", "jsonl", file.to_str().unwrap()]);
    assert_eq!(
        sums(&output),
        [2 * odd.len() as u64 + 1, 0, 0],
        "{}",
        stderr(&output)
    );
    let (mut before, mut after) = (bodies(&from), bodies(&to));
    before.sort_unstable();
    after.sort_unstable();
    assert_eq!(before, after);
}

#[test]
fn an_imported_register_replaces_no_later_one() {
    let cellar = Cellar::start();
    let reg = |n: u64| map(vec![("thorium", n.into())]);
    let import = |n, at: i64| {
        let args = vec![
            ("data", reg(n)),
            ("at", at.into()),
            ("import", true.into()),
            ("replay", true.into()),
        ];
        cellar.ask("save_reg", args)
    };
    let day = 86_400_000_000;
    assert_eq!(import(1, day), Value::Nil);
    assert_eq!(import(2, 2 * day), Value::Nil);
    for (n, at) in [(1, day), (2, 2 * day)] {
        assert_eq!(import(n, at), false.into(), "repeated");
    }
    assert_eq!(cellar.ask("load_reg", vec![]), reg(2));
    cellar.ask("save_reg", vec![("data", reg(3))]);
    assert_eq!(import(4, 3 * day), false.into(), "Thorium has gone on");
    assert_eq!(cellar.ask("load_reg", vec![]), reg(3));
}

/// The daemon of a master with this id.
fn beside_master(id: &str) -> Cellar {
    let mut cellar = Cellar::start();
    fs::write(
        cellar.dir.path().join("master"),
        format!("id: {id}\ncluster_id: c\n"),
    )
    .unwrap();
    cellar.configure("ingest: {masters: [DIR/master]}\n");
    cellar.restart();
    cellar
}

/// What a master of a cluster has on its bus: events of itself, and those of a peer with the peer's mark.
fn on_the_bus_of(cellar: &Cellar, own: &str) {
    let job = |about: &str, id: &str| {
        let mut data = vec![("jid", JID.into()), ("fun", "test.ping".into())];
        if about == "new" {
            data.push(("minions", list(["a1", "b1"])));
        } else {
            data.extend([
                ("id", id.into()),
                ("return", true.into()),
                ("cmd", "_return".into()),
            ]);
        }
        (format!("salt/job/{JID}/{about}"), data)
    };
    let fired = [
        ("m1", job("new", "")),
        ("m1", job("ret/a1", "a1")),
        ("m2", job("ret/b1", "b1")),
        ("m1", ("my/event".to_owned(), vec![("n", 1.into())])),
        ("m2", ("my/event".to_owned(), vec![("n", 2.into())])),
    ];
    for (master, (tag, mut data)) in fired {
        data.push(("_stamp", "2026-11-01T12:00:00.000000".into()));
        if master != own {
            data.push(("__peer_id", master.into()));
        }
        let event = map(vec![("tag", tag.into()), ("data", map(data))]);
        cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
    }
}

/// The masters of the events of a daemon by tag and data, whose order is that of the log.
fn masters(cellar: &Cellar, filter: &[&str]) -> Vec<(String, String)> {
    let events = document(&run(cellar, &[&["events", "list"], filter].concat()));
    let row = |event: &Json| {
        assert!(event["data"].get("__peer_id").is_none());
        (
            event["tag"].as_str().unwrap().to_owned(),
            event["master"].as_str().unwrap().to_owned(),
        )
    };
    let events = events["events"].as_array().unwrap();
    events.iter().rev().map(row).collect()
}

#[test]
fn masters_of_a_cluster_have_the_same_events_and_imports_store_none_twice() {
    let (a, b, c) = (
        beside_master("m1"),
        beside_master("m2"),
        beside_master("m3"),
    );
    on_the_bus_of(&a, "m1");
    on_the_bus_of(&b, "m2");

    let of_job = |about: &str| format!("salt/job/{JID}/{about}");
    let all = [
        (of_job("new"), "m1".to_owned()),
        (of_job("ret/a1"), "m1".to_owned()),
        (of_job("ret/b1"), "m2".to_owned()),
        ("my/event".to_owned(), "m1".to_owned()),
        ("my/event".to_owned(), "m2".to_owned()),
    ];
    for cellar in [&a, &b] {
        assert_eq!(masters(cellar, &[]), all);
        assert_eq!(masters(cellar, &["--master", "m1"]).len(), 3);
        assert_eq!(masters(cellar, &["--master", "m2"]).len(), 2);
        assert!(masters(cellar, &["--master", "m3"]).is_empty());
        assert!(masters(cellar, &["--master", "m1", "--tag", "my/*"]) == all[3..4]);

        for (master, count) in [("m1", 1), ("m2", 0)] {
            let jobs = document(&run(cellar, &["jobs", "list", "--master", master]));
            let listed = jobs["jobs"].as_array().unwrap();
            assert_eq!(listed.len(), count, "{master}: {jobs}");
        }
        let job = document(&run(cellar, &["jobs", "show", JID]));
        assert_eq!(job["master"], "m1");
        let listed = local(cellar, "GET", "/api/v1/events?master=m2", b"");
        assert_eq!(listed.json()["events"].as_array().unwrap().len(), 2);

        // Several masters have a column, a single one has none.
        assert!(text(cellar, &["events", "list"]).contains("MASTER"));
        assert!(!text(cellar, &["events", "list", "--master", "m1"]).contains("MASTER"));
    }

    let export = |cellar: &Cellar| {
        let file = tempfile::tempdir().unwrap();
        let path = file.path().join("x.jsonl");
        let args = ["export", "jsonl", path.to_str().unwrap(), "--events"];
        assert_eq!(run(cellar, &args).status.code(), Some(0));
        (lines(&path), path, file)
    };
    let import = |cellar: &Cellar, path: &Path| {
        let output = run(cellar, &["import", "jsonl", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        sums(&output)
    };

    // Each knows the events of the other, whoever fired them.
    let (exports, of_b) = (export(&a), export(&b));
    assert_eq!(import(&a, &of_b.1), [0, 5, 0]);
    assert_eq!(import(&b, &exports.1), [0, 5, 0]);
    assert_eq!(export(&a).0, exports.0);
    assert_eq!(export(&b).0, of_b.0);

    // Elsewhere an import keeps the masters.
    assert_eq!(import(&c, &of_b.1), [5, 0, 0]);
    assert_eq!(import(&c, &exports.1), [0, 5, 0]);
    assert_eq!(masters(&c, &[]), all);
    assert_eq!(export(&c).0, of_b.0);
}

#[test]
fn sinks_consumers_streams_and_the_page_select_by_the_master_of_an_event() {
    let mut cellar = beside_master("m1");
    let sinks = ["own: .", "named: m1", "peer: 'm[2]'", "all: '*'", "none: m9"].map(|sink| {
        let (name, glob) = sink.split_once(": ").unwrap();
        format!(
            "  {name}: {{match: [{{master: {glob}}}], encoder: json, transport: {{file: {{path: DIR/{name}}}}}}}\n"
        )
    });
    cellar.configure(&format!(
        "ingest: {{masters: [DIR/master]}}\nsinks:\n{}",
        sinks.concat()
    ));
    cellar.restart();
    for (name, glob) in [("c-named", "m1"), ("c-peer", "m2"), ("c-own", ".")] {
        text(&cellar, &["consumers", "create", name, "--master", glob]);
    }
    on_the_bus_of(&cellar, "m1");

    // Those of m1, of m2, and in total.
    let delivered =
        |name: &str| fs::read_to_string(cellar.dir.path().join(name)).unwrap_or_default();
    for (name, count) in [("own", 3), ("named", 3), ("peer", 2), ("all", 5)] {
        let text = wait_for(name, || {
            Some(delivered(name)).filter(|text| text.matches('\n').count() == count)
        });
        let masters: Vec<_> = ["\"m1\"", "\"m2\""]
            .map(|id| text.matches(&format!("\"master_id\":{id}")).count())
            .into();
        let expected = if name == "peer" {
            [0, 2]
        } else {
            [3, count - 3]
        };
        assert_eq!(masters, expected, "{name}: {text}");
    }
    assert_eq!(delivered("none"), "");

    for (name, count) in [("c-named", 3), ("c-peer", 2), ("c-own", 3)] {
        let args = vec![("name", name.into()), ("holder", "me".into())];
        let events = cellar.ask("consumer_next", args)["events"].clone();
        assert_eq!(events.as_array().unwrap().len(), count, "{name}");
    }
    for (glob, count) in [("m1", 3), ("m2", 2), ("m*", 5), (".", 3), ("m9", 0)] {
        let counted = document(&run(&cellar, &["events", "count", "--master", glob]));
        assert_eq!(counted["count"], count, "{glob}");
        let events = cellar.ask(
            "events_follow",
            vec![
                (
                    "match",
                    Value::Array(vec![map(vec![("master", glob.into())])]),
                ),
                ("to", "oldest".into()),
            ],
        );
        assert_eq!(events["events"].as_array().unwrap().len(), count, "{glob}");
    }
    let tailed = text(
        &cellar,
        &[
            "events", "tail", "--master", "m2", "--since", "1h", "--limit", "2",
        ],
    );
    assert_eq!(tailed.matches("m2").count(), 2, "{tailed}");

    let page = |path: &str| {
        let answer = local(&cellar, "GET", path, b"");
        String::from_utf8(answer.body).unwrap()
    };
    let all = page("/events");
    assert!(all.contains(r#"id="masters""#), "{all}");
    assert!(all.contains(r#"<td data-label="Master">m2</td>"#), "{all}");
    let of_peer = page("/events?master=m2");
    assert!(!of_peer.contains(r#"id="masters""#), "{of_peer}");
    // The stream goes on with the same events.
    assert!(
        of_peer.contains("data-stream=") && of_peer.contains("master"),
        "{of_peer}"
    );
    let stream = of_peer.split_once("data-stream=\"").unwrap().1;
    let (stream, _) = stream.split_once('"').unwrap();
    assert!(
        stream.contains("master") && stream.contains("m2"),
        "{stream}"
    );
}

#[test]
fn the_calls_of_a_peer_for_a_job_are_imported_once() {
    let (a, b) = (beside_master("m1"), beside_master("m2"));
    let of_job = || ("jid", Value::from(JID));
    let load = |fun: &str| {
        map(vec![
            ("jid", JID.into()),
            ("fun", fun.into()),
            ("tgt", "*".into()),
            ("cmd", "publish".into()),
        ])
    };
    let answer = |id: &str| {
        let data = vec![
            ("jid", JID.into()),
            ("fun", "test.ping".into()),
            ("id", id.into()),
            ("return", true.into()),
            ("cmd", "_return".into()),
            ("_stamp", "2026-11-01T12:00:00.000000".into()),
        ];
        map(data)
    };

    // Master m1 publishes a job, and the answer of a minion of m2 is there before the job is.
    let published = vec![
        of_job(),
        ("load", load("test.ping")),
        ("minions", list(["a1", "b1"])),
    ];
    a.ask("save_load", published);
    a.ask("returner", vec![("load", answer("a1"))]);
    b.ask("save_load", vec![of_job(), ("load", answer("b1"))]);
    b.ask("returner", vec![("load", answer("b1"))]);
    on_the_bus_of(&a, "m1");
    on_the_bus_of(&b, "m2");
    let mirrored = |cellar: &Cellar, id: &str, master: &str| {
        let by = || vec![("mirrored", true.into()), ("master", master.into())];
        let call = vec![of_job(), ("load", answer(id))];
        cellar.ask("save_load", [call, by()].concat());
        cellar.ask("returner", [vec![("load", answer(id))], by()].concat());
    };
    mirrored(&a, "b1", "m2");
    mirrored(&b, "a1", "m1");

    let dir = tempfile::tempdir().unwrap();
    let export = |cellar: &Cellar, name: &str| {
        let path = dir.path().join(name);
        let args = ["export", "jsonl", path.to_str().unwrap()];
        assert_eq!(run(cellar, &args).status.code(), Some(0));
        path
    };
    let import = |cellar: &Cellar, path: &Path| {
        let output = run(cellar, &["import", "jsonl", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        sums(&output)
    };
    // Each learns that the other's master authenticated a return. A return that was passed to `save_load` is no load of a known job.
    let (of_a, of_b) = (export(&a, "a"), export(&b, "b"));
    assert_eq!(import(&a, &of_b), [1, 3, 0]);
    assert_eq!(import(&b, &of_a), [2, 2, 0]);
    assert_eq!(import(&a, &of_b), [0, 4, 0]);
    assert_eq!(import(&b, &of_a), [0, 4, 0]);
    assert_eq!(import(&a, &export(&b, "again")), [0, 6, 0]);

    let stored = |cellar: &Cellar| {
        let entries = cellar.ask("entries", vec![of_job()])["entries"].clone();
        let entries = entries.as_array().unwrap().iter();
        let mut kinds: Vec<_> = entries
            .map(|entry| entry["kind"].as_str().unwrap().to_owned())
            .collect();
        kinds.sort_unstable();
        kinds
    };
    // A new daemon of the same master takes the entries of that master for its own.
    let new = beside_master("m2");
    import(&new, &of_b);
    for (master, count) in [(".", 1), ("m1", 2)] {
        let counted = document(&run(&new, &["events", "count", "--master", master]));
        assert_eq!(counted["count"], count, "{master}");
    }

    // The return of the peer's minion twice: as its event, and as confirmed.
    assert_eq!(stored(&a), ["load", "new", "return", "return", "return"]);
    let of_b = ["load", "new", "return", "return", "return", "return_load"];
    assert_eq!(stored(&b), of_b);
    let shown = text(&a, &["jobs", "show", JID]);
    assert!(shown.contains("returned  2 of 2"), "{shown}");
    assert!(!shown.contains("not verified"), "{shown}");
    assert_eq!(shown, text(&b, &["jobs", "show", JID]));
}
