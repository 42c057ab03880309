//! Failed writes of log lines and output, which must not end the daemon or cause errors.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};

use saltcellar::api::client::Client;

use crate::fake_daemon::program;
use crate::harness::{Asks as _, Cellar, ended, map, serve_command, wait_for};

/// A daemon with that standard error, which logs a line for each call.
fn serve_to(dir: &std::path::Path, stderr: Stdio) -> Child {
    serve_command(dir)
        .args(["--log-level", "trace"])
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()
        .unwrap()
}

fn status(dir: &std::path::Path) -> Option<rmpv::Value> {
    Client::connect(&dir.join("s.sock"))
        .ok()?
        .call("status", map(vec![]))
        .ok()
}

/// Asserts that the daemon answers, counts lost lines, and stops gracefully.
fn lives_on(dir: &std::path::Path, child: &mut Child) {
    let lost = || {
        status(dir)?["counters"]["log_lines_lost"]
            .as_u64()
            .filter(|lost| *lost > 0)
    };
    wait_for("log lines that were lost", || {
        assert!(child.try_wait().unwrap().is_none(), "the daemon ended");
        lost()
    });
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(ended(child).success());
}

#[test]
fn a_log_that_cannot_be_written_does_not_end_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut child = serve_to(dir.path(), full.into());
    lives_on(dir.path(), &mut child);
}

#[test]
fn a_closed_log_pipe_does_not_end_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = serve_to(dir.path(), Stdio::piped());
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    log.read_line(&mut line).unwrap();
    drop(log);
    lives_on(dir.path(), &mut child);
}

#[test]
fn a_closed_pipe_ends_a_list_without_an_error() {
    let cellar = Cellar::start();
    for n in 0..2_000 {
        let load = map(vec![
            ("jid", format!("20261121030955{n:06}").into()),
            ("id", "web1".into()),
            ("fun", "test.ping".into()),
            ("return", true.into()),
        ]);
        cellar.ask(
            "save_load",
            vec![
                ("jid", format!("20261121030955{n:06}").into()),
                ("load", load),
            ],
        );
    }
    for verb in [
        &["jobs", "list", "--limit", "2000"][..],
        &["completions", "bash"],
        &["config", "show"],
        &["--help"],
    ] {
        let mut child = program()
            .args(verb)
            .arg("--socket")
            .arg(cellar.socket())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Closed before anything is read.
        drop(child.stdout.take());
        let status = ended(&mut child);
        let mut printed = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut printed)
            .unwrap();
        assert_eq!((status.code(), printed.as_str()), (Some(0), ""), "{verb:?}");
    }
}

#[test]
fn an_error_that_cannot_be_printed_still_sets_the_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    for (args, code) in [
        (&["status"][..], 69),
        (&["jobs", "list"], 69),
        (&["store", "prune"], 1),
    ] {
        let full = std::fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let mut child = program()
            .args(args)
            .arg("--socket")
            .arg(dir.path().join("none.sock"))
            .arg("--state-dir")
            .arg(dir.path().join("none"))
            .stdout(Stdio::null())
            .stderr(full)
            .spawn()
            .unwrap();
        assert_eq!(ended(&mut child).code(), Some(code), "{args:?}");
    }
}
