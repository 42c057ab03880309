//! `saltcellar import` and `export`: conversion, skipped items, resumption and repetition.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use rmpv::Value;
use serde_json::Value as Json;

use crate::fake_daemon::{program, stderr, stdout};
use crate::harness::{Cellar, list, map, wait_for};

const JID: &str = "20261101120000000001";
/// 2026-11-01 12:00:07.5 UTC, microseconds.
const LATER: u64 = 1_793_534_407_500_000;

fn run(cellar: &Cellar, args: &[&str]) -> Output {
    program().arg("--socket").arg(cellar.socket()).args(["--output", "json"]).args(args).output().unwrap()
}

fn json(output: &Output) -> Json {
    serde_json::from_str(&stdout(output))
        .unwrap_or_else(|e| panic!("{e}: {}{}", stdout(output), stderr(output)))
}

/// Numbers of stored, known and skipped items.
fn sums(output: &Output) -> [u64; 3] {
    let found = json(output);
    ["stored", "known", "skipped"].map(|key| found[key].as_u64().unwrap())
}

fn packed(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    bytes
}

/// Salt's tree of jobs.
struct Tree(PathBuf);

impl Tree {
    fn job_dir(&self, jid: &str) -> PathBuf {
        let hash = ring::digest::digest(&ring::digest::SHA256, jid.as_bytes());
        let digit = |digit: u8| char::from_digit(u32::from(digit), 16).unwrap();
        let digits: String =
            hash.as_ref().iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect();
        self.0.join(&digits[..2]).join(&digits[2..])
    }

    fn put(&self, jid: &str, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.job_dir(jid).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_micros(LATER)).unwrap();
        path
    }

    fn put_value(&self, jid: &str, name: &str, value: &Value) -> PathBuf {
        self.put(jid, name, &packed(value))
    }

    /// Writes a complete job with a return of each minion.
    fn put_job(&self, jid: &str, minions: &[&str]) {
        self.put(jid, "jid", jid.as_bytes());
        self.put_value(jid, ".load.p", &load(jid));
        let names = minions.iter().map(|minion| Value::from(*minion)).collect();
        self.put_value(jid, ".minions.p", &Value::Array(names));
        for minion in minions {
            let answer = vec![
                ("return", format!("{minion} of {jid}").into()),
                ("retcode", 0.into()),
                ("success", true.into()),
            ];
            self.put_value(jid, &format!("{minion}/return.p"), &map(answer));
        }
    }
}

fn load(jid: &str) -> Value {
    map(vec![
        ("cmd", "publish".into()),
        ("tgt", "*".into()),
        ("fun", "test.ping".into()),
        (
            "arg",
            Value::Array(vec![
                Value::Binary(vec![0xff]),
                Value::Ext(78, b"20260203T04:05:06.000789".to_vec()),
            ]),
        ),
        ("tgt_type", "glob".into()),
        ("ret", "".into()),
        ("jid", jid.into()),
        ("user", "root".into()),
    ])
}

/// Names and contents of all files below a directory.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for item in fs::read_dir(&next).unwrap().map(|item| item.unwrap().path()) {
            if item.is_dir() {
                dirs.push(item);
            } else {
                found.push((item.strip_prefix(dir).unwrap().display().to_string(), fs::read(&item).unwrap()));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_tree_of_salts_job_cache_survives_import_and_export_unchanged() {
    let cellar = Cellar::start();
    let tree = Tree(cellar.dir.path().join("jobs"));
    tree.put_job(JID, &["db1", "web1"]);
    tree.put_value(JID, "web1/out.p", &"highstate".into());
    tree.put_value(JID, ".minions.syndic1.p", &list(["far1", "far2"]));
    tree.put(JID, "endtime", b"2026, Nov 01 12:00:09.000000");
    tree.put_job("20261101120000000002", &["web1"]);
    tree.put("20261101120000000002", "nocache", b"");
    tree.put_job("made up", &["web2"]);
    let from = tree.0.to_str().unwrap();
    let output = run(&cellar, &["import", "local_cache", from]);
    assert_eq!((output.status.code(), sums(&output)), (Some(0), [10, 0, 0]), "{}", stderr(&output));

    let job = cellar.ask("job_show", vec![("jid", JID.into())]);
    assert_eq!(job["minions"], list(["db1", "far1", "far2", "web1"]));
    assert_eq!(job["missing"], list(["far1", "far2"]));
    assert_eq!((&job["fun"], &job["endtime"]), (&"test.ping".into(), &"2026, Nov 01 12:00:09.000000".into()));
    let answer = &job["returns"][1];
    assert_eq!((&answer["time"], &answer["out"]), (&LATER.into(), &"highstate".into()));
    assert_eq!(answer["fun"], "test.ping".into(), "as in the load");
    assert_eq!(cellar.ask("get_jid", vec![("jid", "20261101120000000002".into())]), map(vec![]), "nocache");

    let output = run(&cellar, &["import", "local_cache", cellar.dir.path().to_str().unwrap()]);
    assert_eq!((output.status.code(), sums(&output)), (Some(0), [0, 10, 0]), "{}", stderr(&output));

    let to = cellar.dir.path().join("out");
    let output = run(&cellar, &["export", "local_cache", to.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!((&json(&output)["jobs"], &json(&output)["returns"]), (&3.into(), &4.into()));
    assert_eq!(files(&to), files(&tree.0));
    let path = to.join(tree.job_dir(JID).strip_prefix(&tree.0).unwrap());
    let modified = |name: &str| fs::metadata(path.join(name)).unwrap().modified().unwrap();
    assert_eq!(modified("web1/return.p"), UNIX_EPOCH + Duration::from_micros(LATER));
    assert_eq!(
        modified("jid"),
        UNIX_EPOCH + Duration::from_micros(1_793_534_400_000_001),
        "the start time of the job"
    );
}

#[test]
fn imported_old_jobs_are_not_the_last_jobs() {
    let live = "20261121030955505683";
    let mut cellar = Cellar::start();
    let answer = map(vec![("jid", live.into()), ("id", "web1".into()), ("fun", "test.ping".into())]);
    cellar.ask("returner", vec![("load", answer)]);
    let tree = Tree(cellar.dir.path().join("jobs"));
    tree.put_job(JID, &["db1", "web1"]);
    let output = run(&cellar, &["import", "local_cache", tree.0.to_str().unwrap()]);
    assert_eq!(sums(&output), [3, 0, 0], "{}", stderr(&output));
    let last = map(vec![("db1", JID.into()), ("web1", live.into())]);
    let fun = || vec![("fun", "test.ping".into())];
    assert_eq!(cellar.ask("get_fun", fun()), last);
    cellar.kill();
    cellar.restart();
    assert_eq!(cellar.ask("get_fun", fun()), last);
    assert_eq!(cellar.ask("get_minions", vec![]), list(["db1", "web1"]));
}

#[test]
fn unreadable_files_are_reported_and_the_rest_is_imported() {
    let cellar = Cellar::start();
    let tree = Tree(cellar.dir.path().join("jobs"));
    tree.put_job(JID, &["web1"]);
    let bad = [
        tree.put(JID, "db1/return.p", b""),
        tree.put(JID, "db2/return.p", &packed(&map(vec![("return", "cut".into())]))[..9]),
        tree.put("2", ".load.p", b"\x85\xa3jid"),
        tree.put("3", "web1/return.p", b"\xc0"),
        tree.put_value("4", ".load.p", &list(["no", "map"])),
        tree.put_value("4", ".minions.p", &"no list".into()),
        tree.put(JID, "stray", b"?"),
        tree.0.join("zz"),
    ];
    fs::create_dir(tree.0.join("zz")).unwrap();
    tree.put("4", "jid", b"4");
    tree.put_value("4", "old/return.p", &"the format of 2014".into());
    let output = run(&cellar, &["import", "local_cache", tree.0.to_str().unwrap()]);
    assert_eq!(
        (output.status.code(), sums(&output)),
        (Some(65), [3, 0, bad.len() as u64]),
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
    let nowhere = run(&cellar, &["import", "local_cache", cellar.state_dir().to_str().unwrap()]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(stderr(&nowhere).contains("/var/cache/salt/master/jobs"), "{}", stderr(&nowhere));
}

#[test]
fn a_killed_import_resumes_without_storing_anything_twice() {
    const JOBS: u64 = 1000;
    let mut cellar = Cellar::start();
    let tree = Tree(cellar.dir.path().join("jobs"));
    for n in 0..JOBS {
        tree.put_job(&format!("2026110112{n:010}"), &["web1", "web2"]);
    }
    let args = ["import", "local_cache", tree.0.to_str().unwrap()];
    for upto in [200, 1000] {
        let mut command = program();
        command.arg("--socket").arg(cellar.socket()).args(args).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        wait_for("some of the jobs", || (cellar.counter("entries_stored") > upto).then_some(()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let stored = cellar.counter("entries_stored");
    assert!(stored < JOBS * 3, "killed too late: {stored}");
    // The restart also clears the memory of recent entries.
    cellar.kill();
    cellar.restart();
    let output = run(&cellar, &args);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let [new, known, _] = sums(&output);
    assert_eq!((new + known, new < JOBS * 3 - 1000), (JOBS * 3, true));
    let stats = cellar.ask("store_stats", vec![]);
    let entries: u64 =
        stats["classes"].as_array().unwrap().iter().map(|c| c["entries"].as_u64().unwrap()).sum();
    assert_eq!(entries, JOBS * 3, "each once");
}

/// Stores an entry of every kind.
fn fill(cellar: &Cellar) {
    let at = |n: u64| ("at", Value::from(LATER + n));
    // Old times are kept.
    let import = || ("import", Value::from(true));
    let minions = list(["web1", "web2"]);
    cellar.ask(
        "save_load",
        vec![("jid", JID.into()), ("load", load(JID)), ("minions", minions), at(0), import()],
    );
    for (n, answer) in [(1, Value::Binary(vec![0, 0xff])), (2, "another".into())] {
        let returned =
            map(vec![("jid", JID.into()), ("id", "web1".into()), ("return", answer), ("retcode", 2.into())]);
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
    cellar.ask("update_endtime", vec![("jid", JID.into()), ("endtime", "soon".into()), at(4), import()]);
    cellar.ask("prep_jid", vec![("passed_jid", "quiet".into()), ("nocache", true.into()), at(5), import()]);
    let odd = Value::Map(vec![(1.into(), Value::Nil), ("\u{1f600}\n".into(), f64::INFINITY.into())]);
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
            vec![("events", Value::Array(vec![event("my/tag", odd.clone())])), at(n), import()],
        );
    }
    let events = vec![
        event(&format!("salt/job/{JID}/ret/web2"), on_bus),
        event(
            &format!("salt/job/{JID}/new"),
            map(vec![("fun", "test.ping".into()), ("minions", list(["web1"]))]),
        ),
    ];
    cellar.ask("event_return", vec![("events", Value::Array(events)), at(8), import()]);
    cellar.ask("save_reg", vec![("data", map(vec![("thorium", 1.into())])), at(9), import()]);
}

/// The lines of an export, without sequence numbers.
fn lines(path: &Path) -> Vec<Json> {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
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
    let (first, second) = (one.dir.path().join("1.jsonl"), one.dir.path().join("2.jsonl"));
    let export = |cellar, to: &Path, more: &[&str]| {
        let output = run(cellar, &[&["export", "jsonl", to.to_str().unwrap()], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    };
    export(&one, &first, &["--events"]);
    let exported = lines(&first);
    assert_eq!((exported.len(), &exported[0]["version"]), (12, &2.into()));
    for stored in [11, 0] {
        let output = run(&two, &["import", "jsonl", first.to_str().unwrap()]);
        // Thorium's register is stored again: the last one counts.
        let stored = if stored == 0 { 1 } else { stored };
        assert_eq!(
            (output.status.code(), sums(&output)),
            (Some(0), [stored, 11 - stored, 0]),
            "{}",
            stderr(&output)
        );
    }
    export(&two, &second, &["--events"]);
    let again = lines(&second);
    assert_eq!(again[..12], exported[..]);
    assert_eq!((again.len(), &again[12]["kind"]), (13, &"register".into()));
    for jid in [JID, "quiet"] {
        for call in ["job_show", "get_jid", "get_load"] {
            let [mut a, mut b] = [&one, &two].map(|cellar| cellar.ask(call, vec![("jid", jid.into())]));
            for job in [&mut a, &mut b] {
                forget_seq(job);
            }
            assert_eq!(a, b, "{call} {jid}");
        }
    }
    let jobs = one.dir.path().join("jobs.jsonl");
    export(&one, &jobs, &[]);
    assert_eq!(lines(&jobs).len(), 1 + 8, "without entries that belong to no job");
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
    let line = r#"{"kind": "event", "on_bus": true, "time": 1793534407600000, "tag": "twin", "data": {}}"#;
    fs::write(&second, format!("{line}\n{line}\n")).unwrap();
    for expected in [[2, 0, 0], [0, 2, 0]] {
        let output = run(&two, &["import", "jsonl", second.to_str().unwrap()]);
        assert_eq!(sums(&output), expected, "{}", stderr(&output));
    }

    // An event that is too large does not affect the others of its batch.
    let small = Cellar::start_configured("store:\n  entry_bytes_max: 64KiB\n", &[]);
    let event = |n: usize, fill: usize| {
        let data = format!(r#"{{"n": {n}, "fill": "{}"}}"#, "x".repeat(fill));
        format!(r#"{{"kind": "event", "on_bus": true, "time": {n}, "tag": "t/{n}", "data": {data}}}"#)
    };
    let text: Vec<_> = (1..=50).map(|n| event(n, if n == 17 { 70_000 } else { 10 })).collect();
    fs::write(&second, text.join("\n")).unwrap();
    let output = run(&small, &["import", "jsonl", second.to_str().unwrap()]);
    assert_eq!((output.status.code(), sums(&output)), (Some(65), [49, 0, 1]), "{}", stderr(&output));
    assert!(stderr(&output).contains("line 17: "), "{}", stderr(&output));

    fs::write(&second, "{\"kind\": \"song\"}\n\nno json\n").unwrap();
    let output = run(&two, &["import", "jsonl", second.to_str().unwrap()]);
    assert_eq!((output.status.code(), sums(&output)), (Some(65), [0, 0, 2]));
    assert!(stderr(&output).contains("2.jsonl, line 3: invalid JSON"), "{}", stderr(&output));
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

#[test]
fn an_export_does_not_change_foreign_files() {
    let cellar = Cellar::start();
    fill(&cellar);
    let dir = cellar.dir.path().join("jobs");
    let tree = Tree(dir.clone());
    tree.put(JID, "jid", b"of another user");
    let to = dir.to_str().unwrap();
    let output = run(&cellar, &["export", "local_cache", to]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--into-existing"), "{}", stderr(&output));
    assert_eq!(files(&dir).len(), 1);
    let output = run(&cellar, &["export", "local_cache", "--into-existing", to]);
    assert_eq!(
        (output.status.code(), &json(&output)["existing"]),
        (Some(0), &1.into()),
        "{}",
        stderr(&output)
    );
    assert_eq!(fs::read(tree.job_dir(JID).join("jid")).unwrap(), b"of another user");

    // A killed export resumes in its directory, and restarts the incomplete job.
    let dir = cellar.dir.path().join("new");
    fs::create_dir_all(dir.join(".saltcellar-export/making/job/web9")).unwrap();
    fs::write(dir.join(".saltcellar-export/making/job/web9/return.p"), b"half").unwrap();
    let output = run(&cellar, &["export", "local_cache", dir.to_str().unwrap()]);
    assert_eq!((output.status.code(), &json(&output)["jobs"]), (Some(0), &1.into()), "{}", stderr(&output));
    let job = Tree(dir.clone()).job_dir(JID);
    assert!(!dir.join(".saltcellar-export").exists() && !job.join("web9").exists());
    let answer = fs::read(job.join("web1/return.p")).unwrap();
    let first = map(vec![("return", Value::Binary(vec![0, 0xff])), ("retcode", 2.into())]);
    assert_eq!(rmpv::decode::read_value(&mut answer.as_slice()).unwrap(), first, "the first answer counts");
}

/// A fake `psql` with recorded output (PostgreSQL 15, tables filled by Salt's returner).
fn fake_psql(dir: &Path, script: &str) -> String {
    let path = dir.join("psql");
    fs::write(&path, format!("#!/bin/sh\n{script}")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", dir.display(), std::env::var("PATH").unwrap())
}

const ROWS: &str = r#"
case "$*" in *secret*) echo "the password is on the command line" >&2; exit 1;; esac
[ "$PGPASSWORD" = secret ] || { echo "psql: error: no password" >&2; exit 2; }
case "$*" in
*"count(*)"*) printf '2\t4\t3\n';;
*salt_events*) cat <<'EOF'
1	my/tag	{"n": 1.0, "_stamp": "2026-11-01T12:00:08"}	1793534408000000
2	my/tag	{"text": "a\\\\b\\tc\\n\\u00fc"}	1793534408000001
3	my/tag	[oops	1793534408000002
EOF
;;
*jids*) cat <<'EOF'
0	20261101120000000001		{"arg": [], "cmd": "publish", "fun": "test.ping", "jid": "20261101120000000001", "ret": "pgjsonb", "tgt": "*", "user": "root", "tgt_type": "glob"}	1793534407500000
1	20261101120000000001	web1	{"id": "web1", "fun": "test.ping", "jid": "20261101120000000001", "return": {"1": "x", "b": 1}, "retcode": 0, "success": true}	1793534407500000
1	20261101120000000001	web2	{"id": "web2", "fun": "test.ping", "jid": "20261101120000000001", "return": true, "retcode": 0, "success": true}	1793534407600000
1	20261101120000000001	web2	{"id": "web2", "fun": "test.ping", "jid": "20261101120000000001", "return": true, "retcode": 0, "success": true}	1793534407700000
0	free		{"fun": "test.ping"}	\N
1	free	web1	"no object"	1793534407700000
EOF
;;
esac
"#;

#[test]
fn the_tables_of_pgjsonb_are_imported_through_psql() {
    let cellar = Cellar::start();
    // The daemon has stored one of the returns itself, with types that JSON lacks.
    let answer = Value::Map(vec![("b".into(), Value::from(1.0)), (1.into(), Value::Binary(b"x".to_vec()))]);
    let returned = map(vec![
        ("jid", JID.into()),
        ("id", "web1".into()),
        ("return", answer),
        ("retcode", 0.into()),
        ("success", true.into()),
    ]);
    cellar.ask("returner", vec![("load", returned)]);
    let path = fake_psql(cellar.dir.path(), ROWS);
    let import_with = |password: &str, connection: &str| {
        let mut command = program();
        command.env("PATH", &path).env("PGPASSWORD", password).arg("--socket").arg(cellar.socket());
        command.args(["--output", "json", "import", "pgjsonb", connection]).output().unwrap()
    };
    let import = |connection: &str| import_with("secret", connection);
    // A password in the arguments is neither repeated nor passed on.
    for with_password in ["postgresql://salt:secret@db/salt", "host=db password='secret' dbname=salt"] {
        let output = import_with("", with_password);
        assert_eq!(output.status.code(), Some(64), "{}", stderr(&output));
        let printed = format!("{}{}", stderr(&output), stdout(&output));
        assert!(printed.contains("PGPASSWORD") && !printed.contains("secret"), "{printed}");
    }
    let output = import("postgresql://salt@db/salt");
    assert_eq!((output.status.code(), sums(&output)), (Some(65), [5, 2, 2]), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("salt_events, 3") && stderr(&output).contains("salt_returns, free of web1")
    );
    let job = cellar.ask("job_show", vec![("jid", JID.into())]);
    assert_eq!(job["returns"][0]["return"][Value::from("b").as_str().unwrap()], 1.0.into(), "unchanged");
    assert_eq!(
        (&job["returns"][1]["time"], &job["returns"][1]["duplicates"]),
        (&1_793_534_407_600_000_u64.into(), &0.into())
    );
    let entries = cellar.ask("entries", vec![("jid", JID.into())]);
    let load = entries["entries"].as_array().unwrap().iter().find(|entry| entry["kind"] == "load".into());
    assert_eq!(load.unwrap()["time"], 1_793_534_400_000_001_u64.into(), "the time of its jid");
    let events = cellar.ask("events_list", vec![("tag", "my/tag".into())]);
    assert_eq!(events["events"][0]["data"]["text"], "a\\b\tc\n\u{fc}".into());
    let output = import("host=db dbname=salt");
    assert_eq!(sums(&output), [0, 7, 2], "{}", stderr(&output));
    let output = import_with("", "host=db");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no password"), "{}", stderr(&output));
}
