//! `saltcellar import` and `export`: conversion, skipped items, resumption and repetition.

use std::fs;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use rmpv::Value;
use saltcellar_testkit::job_cache::{JobTree, sums};

use crate::fake_daemon::{FakeDaemon, program, stderr};
use crate::harness::{Asks as _, Cellar, list, map, wait_for};

const JID: &str = "20261101120000000001";
fn run(cellar: &Cellar, args: &[&str]) -> Output {
    program()
        .arg("--socket")
        .arg(cellar.socket())
        .args(["--output", "json"])
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn imported_old_jobs_are_not_the_last_jobs() {
    let live = "20261121030955505683";
    let mut cellar = Cellar::start();
    let answer = map(vec![
        ("jid", live.into()),
        ("id", "web1".into()),
        ("fun", "test.ping".into()),
    ]);
    cellar.ask("returner", vec![("load", answer)]);
    let tree = JobTree(cellar.dir.path().join("jobs"));
    tree.put_job(JID, &["db1", "web1"]);
    let output = run(
        &cellar,
        &["import", "local-cache", tree.0.to_str().unwrap()],
    );
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
fn a_killed_import_resumes_without_storing_anything_twice() {
    const JOBS: u64 = 1000;
    let mut cellar = Cellar::start();
    let tree = JobTree(cellar.dir.path().join("jobs"));
    for n in 0..JOBS {
        tree.put_job(&format!("2026110112{n:010}"), &["web1", "web2"]);
    }
    let args = ["import", "local-cache", tree.0.to_str().unwrap()];
    for upto in [200, 1000] {
        let mut command = program();
        command
            .arg("--socket")
            .arg(cellar.socket())
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        wait_for("some of the jobs", || {
            (cellar.counter("entries_stored") > upto).then_some(())
        });
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
    let entries: u64 = stats["classes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["entries"].as_u64().unwrap())
        .sum();
    assert_eq!(entries, JOBS * 3, "each once");
}

#[test]
fn an_export_replaces_no_file_that_was_made_meanwhile() {
    let file = Arc::new(Mutex::new(PathBuf::new()));
    let made = file.clone();
    let daemon = FakeDaemon::answering("entries", move |_| {
        fs::write(&*made.lock(), "not an export").unwrap();
        Ok(map(vec![
            ("entries", Value::Array(Vec::new())),
            ("next", Value::Nil),
            ("durable", 1.into()),
        ]))
    });
    let path = daemon.dir.path().join("salt.jsonl");
    file.lock().clone_from(&path);
    let output = daemon.run(&["export", "jsonl", path.to_str().unwrap()]);
    assert!(!output.status.success());
    assert!(
        stderr(&output).contains("the file exists"),
        "{}",
        stderr(&output)
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "not an export");
    // Nothing is lost either: the next export continues there.
    assert!(daemon.dir.path().join("salt.jsonl.part").exists());
}
