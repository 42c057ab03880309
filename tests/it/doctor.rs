//! `saltcellar doctor` with healthy, unhealthy and unreachable daemons, and with other versions.

use rmpv::Value;

use crate::fake_daemon::{map, program, stderr, stdout};
use crate::harness::{Asks as _, Cellar};

/// The checks of `doctor`, as `(check, verdict, words)`.
fn checks(output: &std::process::Output) -> Vec<(String, String, String)> {
    let document: serde_json::Value = serde_json::from_str(&stdout(output)).unwrap();
    let text = |one: &serde_json::Value, key: &str| one[key].as_str().unwrap().to_owned();
    let checks = document["checks"].as_array().unwrap().iter();
    checks
        .map(|one| {
            (
                text(one, "check"),
                text(one, "result"),
                text(one, "message"),
            )
        })
        .collect()
}

fn verdict<'a>(checks: &'a [(String, String, String)], check: &str) -> (&'a str, &'a str) {
    let found = checks
        .iter()
        .find(|(name, ..)| name == check)
        .unwrap_or_else(|| panic!("{check}: {checks:?}"));
    (&found.1, &found.2)
}

fn doctor(cellar: &Cellar, more: &[&str]) -> std::process::Output {
    let mut command = program();
    command
        .arg("--socket")
        .arg(cellar.socket())
        .arg("--state-dir")
        .arg(cellar.state_dir());
    command
        .args(["--output", "json", "doctor", "--no-master"])
        .args(more)
        .output()
        .unwrap()
}

fn set_mode(cellar: &Cellar, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(cellar.dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn doctor_finds_no_problem_with_a_healthy_daemon() {
    let cellar = Cellar::start();
    set_mode(&cellar, 0o700);
    let output = doctor(&cellar, &[]);
    let checks = checks(&output);
    assert_eq!(output.status.code(), Some(0), "{checks:?}");
    for check in ["socket", "daemon", "store", "clock", "counters"] {
        assert_eq!(verdict(&checks, check).0, "ok", "{checks:?}");
    }
}

#[test]
fn doctor_names_the_slot_of_one_of_several_masters() {
    let cellar = Cellar::start_configured("cluster: {slot: 2/3}\n", &[]);
    let checks = checks(&doctor(&cellar, &[]));
    let (result, message) = verdict(&checks, "daemon");
    assert_eq!(result, "ok");
    assert!(message.ends_with(", slot 2/3 of job ids"), "{message}");
}

#[test]
fn doctor_did_not_report_a_clock_step_that_needs_confirmation() {
    let mut cellar = Cellar::start();
    assert!(cellar.terminate());
    // By the store's records, the last run ended 40 days ago.
    saltcellar::store::retain::age_last_run(&cellar.state_dir(), 40 * 86_400_000_000).unwrap();
    cellar.restart();
    set_mode(&cellar, 0o700);
    let output = doctor(&cellar, &[]);
    let found = checks(&output);
    for (check, is, words) in &found {
        assert!(is != "problem", "{check}: {words}");
    }
    let (is, words) = verdict(&found, "clock");
    assert!(
        is == "warning" && words.contains("40 d 0 h ahead of the expected time"),
        "{words}"
    );
    assert_eq!(cellar.counter("clock_steps"), 1);
    cellar.logged("wall clock stepped");
    cellar.ask("store_prune", vec![]);
    assert_eq!(verdict(&checks(&doctor(&cellar, &[])), "clock").0, "ok");
    // It remains after a restart.
    assert!(cellar.terminate());
    cellar.restart();
    assert_eq!(verdict(&checks(&doctor(&cellar, &[])), "clock").0, "ok");
}

#[test]
fn doctor_reports_spooled_and_lost_entries_and_open_directories() {
    let mut cellar = Cellar::start();
    let spool = cellar.dir.path().join("spool");
    std::fs::create_dir(&spool).unwrap();
    std::fs::write(spool.join("spool"), [0; 100]).unwrap();
    std::fs::write(spool.join("spool.counters"), r#"{"spool_full": 7}"#).unwrap();
    let dir = spool.to_str().unwrap().to_owned();

    set_mode(&cellar, 0o755);
    let output = doctor(&cellar, &["--spool", &dir]);
    let found = checks(&output);
    assert_eq!(output.status.code(), Some(0), "warnings only: {found:?}");
    let (is, words) = verdict(&found, "socket");
    assert!(is == "warning" && words.contains("chmod o-rwx"), "{words}");
    let (is, words) = verdict(&found, "spool");
    assert!(
        is == "warning" && words.contains("100B are waiting"),
        "{words}"
    );
    assert!(
        found
            .iter()
            .any(|(_, _, words)| words.contains("spool_full 7")),
        "{found:?}"
    );

    set_mode(&cellar, 0o777);
    let output = doctor(&cellar, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(verdict(&checks(&output), "socket").0, "problem");
    assert_eq!(
        verdict(&checks(&output), "state directory").0,
        "problem",
        "it can be replaced"
    );
    assert!(stderr(&output).contains("2 of "), "{}", stderr(&output));

    set_mode(&cellar, 0o700);
    cellar.kill();
    let output = doctor(&cellar, &["--spool", &dir]);
    let found = checks(&output);
    assert_eq!(output.status.code(), Some(69), "{found:?}");
    assert_eq!(verdict(&found, "daemon").0, "problem");
    assert!(
        verdict(&found, "spool")
            .1
            .contains("once the daemon is reachable"),
        "{found:?}"
    );
}

#[test]
fn doctor_did_not_report_a_readable_state_directory_and_key() {
    use std::os::unix::fs::PermissionsExt as _;
    let cellar = Cellar::start();
    let (config, key) = (
        cellar.dir.path().join("c.yaml"),
        cellar.dir.path().join("key.pem"),
    );
    std::fs::write(&key, "no key").unwrap();
    let https = format!(
        "https: {{certificate: /no/such/file, key: {}}}\n",
        key.display()
    );
    std::fs::write(&config, https).unwrap();
    let look = |state: u32, key_mode: u32| {
        let set = |path: &std::path::Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set(&cellar.state_dir(), state);
        set(&key, key_mode);
        let checks = checks(&doctor(&cellar, &["--config", config.to_str().unwrap()]));
        let of = |check| {
            let (verdict, words) = verdict(&checks, check);
            (verdict.to_owned(), words.to_owned())
        };
        (of("state directory"), of("https.key"))
    };
    for (state, key, expected) in [
        (0o700, 0o600, ["", ""]),
        (0o700, 0o640, ["", ""]),
        (0o750, 0o604, ["its group can read", "others can read"]),
        (
            0o705,
            0o660,
            ["others can read", "its group can read or write"],
        ),
        (
            0o777,
            0o666,
            ["others can read or write", "others can read or write"],
        ),
    ] {
        let (of_state, of_key) = look(state, key);
        for ((verdict, words), expected) in [of_state, of_key].into_iter().zip(expected) {
            let is = if expected.is_empty() { "ok" } else { "warning" };
            assert!(
                verdict == is && words.contains(expected),
                "{state:o} {key:o}: {verdict} {words}"
            );
        }
    }
}

#[test]
fn doctor_did_not_report_a_writable_parent_of_the_socket() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let outer = dir.path().join("outer");
    std::fs::create_dir(&outer).unwrap();
    let inner = tempfile::tempdir_in(&outer).unwrap();
    std::fs::set_permissions(inner.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let cellar = Cellar::start_on(inner);
    for (mode, is) in [
        (0o755, "ok"),
        (0o777, "problem"),
        (0o1777, "ok"),
        (0o775, "warning"),
    ] {
        std::fs::set_permissions(&outer, std::fs::Permissions::from_mode(mode)).unwrap();
        let checks = checks(&doctor(&cellar, &[]));
        for check in ["socket", "state directory"] {
            let (verdict, words) = verdict(&checks, check);
            assert!(verdict == is, "{mode:o}: {verdict} {words}");
            assert!(is == "ok" || words.contains("replace"), "{words}");
        }
    }
}

#[test]
fn doctor_and_status_report_a_daemon_of_another_version() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let peers = std::thread::Builder::new()
        .name("later-daemon".to_owned())
        .spawn(move || {
            for peer in listener.incoming() {
                use std::io::Write as _;
                // A daemon of a later version.
                let words =
                    "this daemon speaks version 2 of the socket protocol, the client version 1";
                let why = map([
                    ("code", "version".into()),
                    ("message", words.into()),
                    ("server_version", 2.into()),
                ]);
                let mut body = Vec::new();
                rmpv::encode::write_value(
                    &mut body,
                    &Value::Array(vec![Value::Nil, false.into(), why]),
                )
                .unwrap();
                let len = u32::try_from(body.len()).unwrap().to_be_bytes();
                peer.unwrap()
                    .write_all(&[&len[..], &body].concat())
                    .unwrap();
            }
        });
    // Runs until the test process exits.
    drop(peers.unwrap());
    let run = |verb: &str| {
        let mut command = program();
        command
            .arg("--socket")
            .arg(&socket)
            .arg("--state-dir")
            .arg(dir.path());
        command.args(["--output", "json", verb]).output().unwrap()
    };
    let output = run("doctor");
    let found = checks(&output);
    assert!(
        verdict(&found, "daemon").1.contains("version 2"),
        "{found:?}"
    );
    let output = run("status");
    assert!(
        stderr(&output).contains("speaks version 2"),
        "{}",
        stderr(&output)
    );
    assert_ne!(output.status.code(), Some(0));
}
