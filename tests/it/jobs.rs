//! Queries of jobs: verbs and calls against a running daemon, with entries in Salt's format.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use rmpv::Value;
use saltcellar_testkit::entries::value;
use serde_json::{Value as Json, json};

use crate::fake_daemon::{program, stderr, stdout};
use crate::harness::{Asks as _, Cellar, map};

const JID: &str = "20261121054728123456";
const LATER: &str = "20261121064728123456";

pub(crate) fn cli(cellar: &Cellar, args: &[&str]) -> std::process::Output {
    program()
        .arg("--socket")
        .arg(cellar.socket())
        .args(args)
        .output()
        .unwrap()
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

/// `jobs watch` of a job of two minions, of which the first has returned, and the lines after that.
fn watched(cellar: &Cellar) -> (Child, impl Iterator<Item = String> + use<>) {
    cellar.publish(JID, "cmd.run", &["web1", "web2"]);
    cellar.answer(JID, "web1", "cmd.run", &json!("x"), 0);
    let mut child = program()
        .arg("--socket")
        .arg(cellar.socket())
        // Shorter than the default, in case a line never arrives.
        .args(["jobs", "watch", JID, "--timeout", "5m"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();

    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), format!("job {JID} cmd.run on *"));
    assert!(lines.next().unwrap().ends_with("1/2  web1: ok, retcode 0"));
    (child, lines)
}

#[test]
fn a_list_of_events_that_follows_prints_each_event_once() {
    let cellar = Cellar::start();
    let fire = |tag: &str| {
        let event = map(vec![("tag", tag.into()), ("data", map(vec![]))]);
        cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
    };
    for n in 0..3 {
        fire(&format!("test/{n}"));
    }

    let mut child = program()
        .arg("--socket")
        .arg(cellar.socket())
        .args(["events", "list", "-n", "2", "-f", "--tag", "test/*"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    assert!(lines.next().unwrap().contains("TAG"));
    for n in 1..3 {
        assert!(lines.next().unwrap().ends_with(&format!("test/{n}")));
    }
    for n in 3..5 {
        fire("other/1");
        fire(&format!("test/{n}"));
        assert!(lines.next().unwrap().ends_with(&format!("test/{n}")));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_watch_continues_after_the_daemon_was_restarted() {
    let mut cellar = Cellar::start();
    let (child, mut lines) = watched(&cellar);

    cellar.kill();
    cellar.restart();
    cellar.answer(JID, "web2", "cmd.run", &json!("x"), 0);
    // Nothing is printed twice.
    assert!(lines.next().unwrap().ends_with("2/2  web2: ok, retcode 0"));
    assert_eq!(lines.next().unwrap(), "2/2 returned, 0 failed");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn a_job_is_watched_until_all_minions_have_returned() {
    let cellar = Cellar::start();
    let (child, mut lines) = watched(&cellar);
    // The watch sees the following entries even if it is not waiting yet.
    let data = json!({"id": "web2", "data": {"ret": {"name": "b", "__id__": "step", "result": true}, "len": 2},
                      "cmd": "_minion_event", "jid": JID});
    let event = map(vec![
        ("tag", format!("salt/job/{JID}/prog/web2/1").into()),
        ("data", value(&data)),
    ]);
    cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
    assert!(lines.next().unwrap().ends_with("web2 step: ok"));
    cellar.answer(JID, "web2", "cmd.run", &json!("x"), 5);
    assert!(
        lines
            .next()
            .unwrap()
            .ends_with("2/2  web2: failed, retcode 5")
    );
    assert_eq!(lines.next().unwrap(), "2/2 returned, 1 failed");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(stderr(&output), "saltcellar: 1 of 2 minions failed\n");

    // Not all minions return.
    cellar.publish(LATER, "cmd.run", &["web1", "web2"]);
    cellar.answer(LATER, "web1", "cmd.run", &json!("x"), 0);
    let output = cli(
        &cellar,
        &[
            "jobs",
            "watch",
            LATER,
            "--timeout",
            "1s",
            "--output",
            "jsonl",
        ],
    );
    assert_eq!(output.status.code(), Some(75));
    let last: Json = serde_json::from_str(stdout(&output).lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["missing"], &last["returned"]),
        (&json!(["web2"]), &json!(1))
    );

    // A runner is finished once it has returned. An unknown job is an error.
    store_runner(
        &cellar,
        &of_runner(
            "20261121070000000000",
            "runner.test.arg",
            &json!([1]),
            &json!({}),
            true,
        ),
    );
    let output = cli(
        &cellar,
        &["jobs", "watch", "20261121070000000000", "--timeout", "30s"],
    );
    assert_eq!(
        (output.status.code(), stdout(&output).lines().last()),
        (Some(0), Some("1 returned, 0 failed"))
    );
    let output = cli(&cellar, &["jobs", "watch", "7", "--timeout", "1s"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr(&output),
        "saltcellar: cannot watch the job: unknown job 7; `saltcellar jobs list` lists the known jobs\n"
    );
}
