//! `status` and `doctor` tell what is wrong, and client commands work beside a broken configuration.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Output;

use serde_json::Value as Json;

use crate::fake_daemon::{program, stderr, stdout};
use crate::harness::{Asks as _, Cellar, wait_for};

/// The reasons of `status`: level, part, message.
fn reasons(cellar: &Cellar) -> Vec<[String; 3]> {
    let output = program()
        .args(["status", "--output", "json", "--socket"])
        .arg(cellar.socket())
        .output()
        .unwrap();
    let status: Json = serde_json::from_str(&stdout(&output)).unwrap();
    let rows = status["health"]["reasons"].as_array().unwrap().iter();
    rows.map(|row| ["level", "part", "message"].map(|key| row[key].as_str().unwrap().to_owned()))
        .collect()
}

/// Waits for a reason whose level and part are these, and whose message contains `words`; `doctor` also reports it.
pub(crate) fn assert_told(cellar: &Cellar, level: &str, part: &str, words: &str) {
    wait_for(words, || {
        let found = reasons(cellar);
        let is_it = |[of, name, message]: &[String; 3]| {
            of == level && name == part && message.contains(words)
        };
        found.iter().any(is_it).then_some(())
    });
    let told = findings(&doctor(cellar, &[]));
    assert!(
        told.iter().any(|[_, verdict, text]| verdict == level
            && text.contains(part)
            && text.contains(words)),
        "{part}: {words}: {told:#?}"
    );
}

fn doctor(cellar: &Cellar, more: &[&str]) -> Output {
    program()
        .args(["doctor", "--output", "json", "--no-master", "--socket"])
        .arg(cellar.socket())
        .args(more)
        .output()
        .unwrap()
}

/// Check, verdict and text of each finding.
fn findings(output: &Output) -> Vec<[String; 3]> {
    let document: Json = serde_json::from_str(&stdout(output))
        .unwrap_or_else(|error| panic!("{error}: {}{}", stdout(output), stderr(output)));
    let rows = document["checks"].as_array().unwrap().iter();
    rows.map(|row| ["check", "result", "message"].map(|key| row[key].as_str().unwrap().to_owned()))
        .collect()
}

fn hang_up(cellar: &Cellar) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(cellar.process.0.id()).unwrap());
    rustix::process::kill_process(pid.unwrap(), rustix::process::Signal::HUP).unwrap();
}

#[test]
fn a_malformed_file_and_lost_settings_were_all_well() {
    let mut cellar = Cellar::start_configured("", &[]);
    let state = cellar.state_dir();
    for name in ["reader", "other"] {
        cellar.ask(
            "consumer_create",
            vec![("name", name.into()), ("start", "begin".into())],
        );
    }
    assert!(cellar.terminate());
    fs::write(state.join("SEQUENCE"), b"what?\n\xff").unwrap();
    let settings = state.join("log/settings");
    let logs = || {
        let segments = fs::read_dir(&settings).unwrap();
        segments.map(|segment| segment.unwrap().path().join("log"))
    };
    let told = |cellar: &Cellar, path: &Path, level: &str, words: &str| {
        assert_told(cellar, level, &format!("file {}", path.display()), words);
    };

    // One copy: nothing is lost.
    let first = logs().min().unwrap();
    fs::write(&first, b"what?").unwrap();
    cellar.restart();
    told(
        &cellar,
        &state.join("SEQUENCE"),
        "warning",
        "malformed at the start",
    );
    let status = cellar.ask("status", vec![]).to_string();
    assert!(status.contains(first.to_str().unwrap()), "{status}");
    let consumers = cellar.ask("consumers_list", vec![]);
    assert_eq!(consumers["consumers"].as_array().map(Vec::len), Some(2));

    // Both.
    assert!(cellar.terminate());
    for log in logs() {
        let bytes = fs::read(&log).unwrap();
        fs::write(&log, &bytes[..bytes.len() / 2]).unwrap();
    }
    cellar.restart();
    told(&cellar, &settings, "problem", "accept-loss");
    let accept = || {
        let mut command = program();
        command
            .args(["store", "accept-loss", "--socket"])
            .arg(cellar.socket());
        command.output().unwrap()
    };
    let accepted = accept();
    assert!(accepted.status.success(), "{}", stderr(&accepted));
    let part = format!("file {}", settings.display());
    assert!(reasons(&cellar).iter().all(|[_, found, _]| *found != part));
    assert!(stderr(&accept()).contains("no settings are lost"));
}

#[test]
fn a_listener_that_serves_nobody_was_all_well() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let cellar = Cellar::start_configured(&format!("http: {{listen: '{address}'}}\n"), &[]);
    assert_told(
        &cellar,
        "problem",
        &format!("http {address}"),
        "cannot listen: Address already in use",
    );
    // It is retried.
    drop(taken);
    wait_for("the listener", || {
        let http = |[_, part, _]: &[String; 3]| part.starts_with("http ");
        (!reasons(&cellar).iter().any(http)).then_some(())
    });

    for section in [
        "http: {listen: '127.0.0.1:0', tls: {certificate: DIR/none.pem, key: DIR/none.key}}\n",
        "https: {listen: '127.0.0.1:0', certificate: DIR/none.pem, key: DIR/none.key}\n",
    ] {
        let cellar = Cellar::start_configured(section, &[]);
        let kind = section.split(':').next().unwrap();
        let part = wait_for("the reason", || {
            let found = reasons(&cellar).into_iter();
            let mut of_it = found.filter(|[_, part, _]| part.starts_with(&format!("{kind} ")));
            of_it.next().map(|[_, part, _]| part)
        });
        let words = "rejects every connection, for lack of a certificate";
        assert_told(&cellar, "problem", &part, words);
    }
}

#[test]
fn a_reload_that_left_a_restart_pending_was_all_well_and_hidden_in_the_log() {
    let cellar = Cellar::start_configured("socket_peers: write\n", &[]);
    let file = cellar.dir.path().join("c.yaml");
    assert_eq!(reasons(&cellar), Vec::<[String; 3]>::new());
    let before = cellar.log().lines().count();
    fs::write(&file, "socket_peers: read\nlog: {level: debug}\n").unwrap();
    hang_up(&cellar);
    assert_told(
        &cellar,
        "warning",
        "configuration",
        "changed keys take effect after a restart: socket_peers, log.level",
    );
    cellar.logged("needs_restart=");
    let log = cellar.log();
    let lines: Vec<_> = log.lines().skip(before).collect();
    assert!(
        lines.len() == 1 && lines[0].contains("needs_restart=\"socket_peers, log.level\""),
        "{lines:#?}"
    );

    fs::write(&file, "socket_peers: read\nbus: nowhere\n").unwrap();
    hang_up(&cellar);
    assert_told(
        &cellar,
        "warning",
        "configuration",
        "the last reload was rejected, the previous configuration stays in use",
    );
    // Back to what the daemon runs with: nothing is pending.
    fs::write(&file, "socket_peers: write\n").unwrap();
    hang_up(&cellar);
    wait_for("no reason", || reasons(&cellar).is_empty().then_some(()));
}

#[test]
fn doctor_judged_a_daemon_by_the_configuration_of_its_own_user() {
    let yaml = "socket_mode: '0600'\nspools: [DIR/spool]\nstore: {classes: [{name: jobs, keep: {age: 7d}}]}\n";
    let cellar = Cellar::start_configured(yaml, &[]);
    fs::create_dir(cellar.dir.path().join("spool")).unwrap();
    fs::write(cellar.dir.path().join("spool/spool"), [0; 100]).unwrap();
    let open = fs::Permissions::from_mode(0o700);
    fs::set_permissions(cellar.dir.path(), open).unwrap();
    // Only the socket is given: the rest comes from the daemon.
    let found = findings(&doctor(&cellar, &[]));
    let of = |check: &str| {
        let rows = found.iter().filter(move |[name, ..]| name == check);
        rows.map(|[_, verdict, text]| (verdict.as_str(), text.as_str()))
            .collect::<Vec<_>>()
    };
    assert!(
        of("socket")
            .iter()
            .all(|(verdict, text)| *verdict == "ok" && text.contains("mode 0600")),
        "{found:#?}"
    );
    assert!(
        of("spool")
            .iter()
            .any(|(_, text)| text.contains("100B are waiting")),
        "{found:#?}"
    );
    let state = cellar.state_dir();
    assert!(
        of("state directory")
            .iter()
            .any(|(verdict, text)| *verdict == "ok" && text.contains(state.to_str().unwrap())),
        "{found:#?}"
    );
    // An error of the file is a finding, and no reason to check nothing.
    fs::write(cellar.dir.path().join("c.yaml"), "socket_mode: 9\n").unwrap();
    let config = cellar.dir.path().join("c.yaml");
    let output = doctor(&cellar, &["--config", config.to_str().unwrap()]);
    let found = findings(&output);
    assert_eq!(output.status.code(), Some(1), "{found:#?}");
    let is_error = |[check, verdict, text]: &[String; 3]| {
        check == "configuration" && verdict == "problem" && text.contains("c.yaml:1: socket_mode")
    };
    assert!(found.iter().any(is_error), "{found:#?}");
    assert!(
        found
            .iter()
            .any(|[check, verdict, _]| check == "daemon" && verdict == "ok")
    );
}

#[test]
fn client_commands_refused_while_the_configuration_had_an_error() {
    let cellar = Cellar::start();
    let file = cellar.dir.path().join("broken.yaml");
    let socket = cellar.socket();
    let text = format!("http: [everywhere\nsocket: {}\n", socket.display());
    fs::write(&file, text).unwrap();
    for words in [
        &["status"][..],
        &["jobs", "list"],
        &["events", "list"],
        &["minions", "list"],
        &["store", "stats"],
        &["consumers", "list"],
        &["sinks", "list"],
        &["reactor", "rules"],
        &["tokens", "list"],
    ] {
        let output = program()
            .args(words)
            .arg("--config")
            .arg(&file)
            .output()
            .unwrap();
        let problem = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {problem}");
        assert!(
            problem.starts_with("saltcellar: warning: the configuration contains an error, only its key `socket` is used: ")
                && problem.contains("broken.yaml:"),
            "{words:?}: {problem}"
        );
    }
    // A restart would fail: that is no client command.
    let output = program()
        .args(["config", "check"])
        .arg("--config")
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(64));
}

/// A user without a home, configuration or group.
fn as_nobody(words: &[&str], socket: Option<&Path>) -> Output {
    let mut command = program();
    command
        .args(words)
        .uid(65534)
        .gid(65534)
        .env("HOME", "/nonexistent");
    for name in ["XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME"] {
        command.env_remove(name);
    }
    if let Some(socket) = socket {
        command.arg("--socket").arg(socket);
    }
    command.output().unwrap()
}

#[test]
fn a_user_outside_the_group_got_a_remedy_without_the_group() {
    if !rustix::process::geteuid().is_root() {
        return saltcellar_testkit::missing("root, to act as another user");
    }
    let cellar = Cellar::start_configured("socket_group: adm\n", &[]);
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(cellar.dir.path(), open).unwrap();
    let output = as_nobody(&["status"], Some(&cellar.socket()));
    let problem = stderr(&output);
    assert_eq!(output.status.code(), Some(69), "{problem}");
    assert!(
        problem.contains("user nobody is not in the group adm")
            && problem.contains("`sudo usermod -aG adm nobody`"),
        "{problem}"
    );
}

#[test]
fn doctor_had_false_findings_about_a_master_that_its_user_cannot_read() {
    if !rustix::process::geteuid().is_root() {
        return saltcellar_testkit::missing("root, to act as another user");
    }
    let cellar = Cellar::start_configured("socket_mode: '0666'\n", &[]);
    let dir = cellar.dir.path();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(dir.join("salt")).unwrap();
    fs::write(dir.join("salt/master"), "master_job_cache: saltcellar\n").unwrap();
    fs::set_permissions(dir.join("salt"), fs::Permissions::from_mode(0o700)).unwrap();
    let salt = dir.join("salt");
    let words = [
        "doctor",
        "--output",
        "json",
        "--salt-config",
        salt.to_str().unwrap(),
    ];
    let found = findings(&as_nobody(&words, Some(&cellar.socket())));
    let skipped: Vec<_> = found
        .iter()
        .filter(|[_, verdict, _]| verdict == "skipped")
        .collect();
    assert!(
        skipped
            .iter()
            .any(|[check, _, text]| check == "master_config" && text.contains("needs root")),
        "{found:#?}"
    );
    let about_master = [
        "master_job_cache",
        "extension",
        "job_cache",
        "engines",
        "pki_dir",
    ];
    assert!(
        !found
            .iter()
            .any(|[check, ..]| about_master.contains(&check.as_str())),
        "{found:#?}"
    );
}
