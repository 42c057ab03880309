//! `saltcellar config check` and `config show` with valid and invalid configurations.

use std::path::Path;
use std::process::Output;

use serde_json::Value as Json;

use crate::fake_daemon::{FakeDaemon, map, program, stderr, stdout};

fn config(verb: &str, dir: &Path, text: &str, args: &[&str]) -> Output {
    let file = dir.join("c.yaml");
    std::fs::write(&file, text).unwrap();
    let mut command = program();
    command
        .env("HOME", "/home/u")
        .args(["config", verb])
        .arg("--config")
        .arg(&file)
        .args(args);
    command.output().unwrap()
}

/// The error for an invalid file, without the directory.
fn problem(text: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let output = config("check", dir.path(), text, &[]);
    assert_eq!(output.status.code(), Some(64));
    assert_eq!(stdout(&output), "");
    stderr(&output).replace(&format!("{}/", dir.path().display()), "")
}

#[test]
fn a_valid_file_is_shown_with_origins_and_can_be_checked_again() {
    let dir = tempfile::tempdir().unwrap();
    let text = "state_dir: /srv/cellar\nbus:\n  - /var/run/salt/master\nlog:\n  level: debug\n";
    let output = config("show", dir.path(), text, &["--socket", "/srv/cellar.sock"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let shown = stdout(&output);
    let file = dir.path().join("c.yaml").display().to_string();
    for line in [
        format!("state_dir: /srv/cellar  # {file}:1"),
        "socket: /srv/cellar.sock  # --socket".to_owned(),
        format!("bus:  # {file}:2"),
        format!("  level: debug  # {file}:5"),
        "  segment_bytes_max: 256MiB  # default".to_owned(),
    ] {
        assert!(shown.lines().any(|l| l == line), "{line:?} in {shown}");
    }
    let again = config("check", dir.path(), &shown, &[]);
    assert_eq!(again.status.code(), Some(0), "{}", stderr(&again));
    assert_eq!(stdout(&again), "configuration is valid\n");

    let again = config("check", dir.path(), &shown, &["--output", "json"]);
    let document: Json = serde_json::from_str(&stdout(&again)).unwrap();
    assert_eq!(document, serde_json::json!({"valid": true}));

    let arguments = ["--output", "json", "--socket", "/s"];
    let output = config("show", dir.path(), text, &arguments);
    let document: Json = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(document["config"]["bus"][0], "/var/run/salt/master");
    assert_eq!(document["origins"]["socket"], "--socket");
}

#[test]
fn an_unknown_key_is_refused_with_file_line_and_the_nearest_known_key() {
    assert_eq!(
        problem("state_dir: /s\nlog:\n  levle: info\n"),
        "saltcellar: cannot read the configuration: c.yaml:3: log.levle: unknown key; \
         the nearest known key is log.level\n"
    );
}

#[test]
fn invalid_values_are_rejected_with_the_accepted_form() {
    for (text, message) in [
        (
            "store: {segment_bytes_max: lots}\n",
            "c.yaml:1: store.segment_bytes_max: \"lots\" is not accepted; give a size",
        ),
        (
            "socket_mode: \"0999\"\n",
            "c.yaml:1: socket_mode: \"0999\" is not accepted; give file permissions in octal",
        ),
        (
            "socket: /a\nsocket: /b\n",
            "c.yaml:2: duplicate key \"socket\"",
        ),
        ("a: b: c\n", "c.yaml:1: not YAML: "),
        (
            "bus: {a: b}\n",
            "c.yaml:1: bus: a mapping is not accepted; give a list, each item an absolute path",
        ),
    ] {
        let problem = problem(text);
        assert!(problem.contains(message), "{message:?} in {problem}");
    }
}

#[test]
fn a_named_file_must_exist() {
    let output = program()
        .args(["config", "check", "--config", "/no/such.yaml"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(stderr(&output).contains("/no/such.yaml:1: cannot read the file: No such file"));
}

#[test]
fn clients_find_the_socket_of_the_configuration() {
    let daemon = FakeDaemon::answering("status", |_| Ok(map([("pid", 7.into())])));
    let file = daemon.dir.path().join("c.yaml");
    std::fs::write(&file, format!("socket: {}\n", daemon.socket.display())).unwrap();
    let output = program()
        .arg("status")
        .arg("--config")
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}
