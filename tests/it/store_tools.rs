//! `saltcellar store ...`: exit codes, output and errors.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use rmpv::Value;
use saltcellar::base::clock::Clock;
use saltcellar_testkit::Random;
use serde_json::Value as Json;

use crate::fake_daemon::{program, stderr, stdout};
use crate::harness::{Asks as _, Cellar, map, wait_for};
use crate::http::{LISTENER, address, get, token};

fn store(args: &[&str], paths: &[&Path]) -> Output {
    program()
        .arg("store")
        .args(args)
        .args(paths)
        .output()
        .unwrap()
}

fn json(output: &Output) -> Json {
    serde_json::from_str(&stdout(output))
        .unwrap_or_else(|e| panic!("{e}: {}{}", stdout(output), stderr(output)))
}

/// Two full segments of 1 MiB, with incompressible entries.
fn filled() -> (Cellar, u64) {
    let config = tempfile::NamedTempFile::new().unwrap();
    fs::write(config.path(), "store:\n  segment_bytes_max: 1MiB\n").unwrap();
    let cellar = Cellar::start_with(&["--config", config.path().to_str().unwrap()]);
    let mut random = Random::new(7);
    let mut event = |n: u64| {
        let bytes = random.bytes(50_000);
        let tag = if n.is_multiple_of(2) {
            format!("beacon/{n}")
        } else {
            format!("salt/job/{}/ret/web1", 4711 + n)
        };
        map(vec![
            ("tag", tag.into()),
            ("data", map(vec![("blob", Value::Binary(bytes))])),
        ])
    };
    for n in 0..80 {
        cellar.ask(
            "event_return",
            vec![("events", Value::Array(vec![event(n)]))],
        );
    }
    wait_for("a sealed segment", || {
        (cellar.counter("segments_sealed") >= 2).then_some(())
    });
    (cellar, 80)
}

fn a_log(state: &Path) -> PathBuf {
    let mut segments: Vec<_> = fs::read_dir(state.join("log/jobs"))
        .unwrap()
        .map(|item| item.unwrap().path())
        .collect();
    segments.sort();
    segments.remove(0).join("log")
}

#[test]
fn an_open_store_is_verified_and_backed_up_and_the_backup_is_restored() {
    let (mut cellar, entries) = filled();
    let state = cellar.state_dir();
    let (to, new) = (
        cellar.dir.path().join("backup"),
        cellar.dir.path().join("new"),
    );
    let flag = ["--state-dir", state.to_str().unwrap(), "--output", "json"];

    let verified = store(&["verify"], &[]);
    assert_eq!(
        verified.status.code(),
        Some(64),
        "no store in the default directory: {}",
        stderr(&verified)
    );
    let verified = program()
        .args(["store", "verify"])
        .args(flag)
        .output()
        .unwrap();
    assert_eq!(verified.status.code(), Some(0), "{}", stderr(&verified));
    let report = json(&verified);
    assert_eq!(report["entries"], entries);
    assert!(
        report["indexes"]["skipped"]
            .as_str()
            .unwrap()
            .contains("stop it to compare"),
        "{report}"
    );

    let rebuilt = program()
        .args(["store", "rebuild"])
        .args(flag)
        .output()
        .unwrap();
    assert_eq!(rebuilt.status.code(), Some(75));
    assert!(
        stderr(&rebuilt).contains(&format!("in use by pid {}", cellar.process.0.id())),
        "{}",
        stderr(&rebuilt)
    );

    let backed_up = program()
        .args(["store", "backup"])
        .args(flag)
        .arg(&to)
        .output()
        .unwrap();
    assert_eq!(backed_up.status.code(), Some(0), "{}", stderr(&backed_up));
    let first = json(&backed_up)["segments_copied"].as_u64().unwrap();
    assert!(first >= 4);
    let again = program()
        .args(["store", "backup"])
        .args(flag)
        .arg(&to)
        .output()
        .unwrap();
    assert_eq!(json(&again)["segments_copied"], 0);

    let restored = store(&["restore"], &[&to, &new]);
    assert_eq!(restored.status.code(), Some(0), "{}", stderr(&restored));
    let verified = store(&["verify", "--state-dir"], &[&new]);
    assert_eq!(
        verified.status.code(),
        Some(0),
        "{}{}",
        stdout(&verified),
        stderr(&verified)
    );
    assert!(
        stdout(&verified).contains("damage     none"),
        "{}",
        stdout(&verified)
    );
    assert!(
        stdout(&verified)
            .lines()
            .all(|line| line.contains("/tmp") || line.chars().count() <= 80)
    );
    let refused = store(&["restore"], &[&to, &new]);
    assert_eq!(refused.status.code(), Some(64));

    assert!(cellar.terminate());
    let rebuilt = program()
        .args(["store", "rebuild"])
        .args(flag)
        .output()
        .unwrap();
    assert_eq!(rebuilt.status.code(), Some(0), "{}", stderr(&rebuilt));
    assert!(json(&rebuilt)["segments_rebuilt"].as_u64().unwrap() >= 2);
    let verified = program()
        .args(["store", "verify"])
        .args(flag)
        .output()
        .unwrap();
    assert!(json(&verified)["indexes"]["compared"].as_u64().unwrap() >= 2);
}

#[test]
fn backup_and_verify_get_the_state_directory_from_the_daemon() {
    let cellar = Cellar::start();
    let load = map(vec![
        ("jid", "20261121030955505683".into()),
        ("id", "web1".into()),
        ("return", 1.into()),
    ]);
    cellar.ask("returner", vec![("load", load)]);
    let home = tempfile::tempdir().unwrap();
    let to = cellar.dir.path().join("backup");
    let store = |args: &[&str], socket: &Path| {
        let mut command = program();
        command.env("HOME", home.path()).arg("--socket").arg(socket);
        command.args(["--output", "json", "store"]).args(args);
        command.output().unwrap()
    };
    for args in [&["backup", to.to_str().unwrap()][..], &["verify"]] {
        let output = store(args, &cellar.socket());
        assert_eq!(
            json(&output)["state_dir"],
            cellar.state_dir().to_str().unwrap(),
            "{args:?}: {}",
            stderr(&output)
        );
        let output = store(args, &cellar.dir.path().join("no-daemon"));
        assert!(!output.status.success());
        // Without a daemon the default state directory is used, of this user or of root.
        assert!(
            stderr(&output).contains("/saltcellar is not a store"),
            "{args:?}: {}",
            stderr(&output)
        );
    }
    assert!(to.join("MANIFEST").exists());
}

/// The commands of the example below a heading of a page of the documentation.
fn documented(page: &str, heading: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(page);
    let text = fs::read_to_string(path).unwrap();
    let (_, section) = text.split_once(heading).unwrap();
    let example = section.lines().skip_while(|line| !line.starts_with("    "));
    let lines = example.take_while(|line| line.starts_with("    "));
    lines.map(|line| line.trim().to_owned()).collect()
}

#[test]
fn the_documented_restore_works_word_for_word_and_clients_continue() {
    let mut cellar = Cellar::start_configured(LISTENER, &[]);
    let state = cellar.state_dir();
    let header = token(&cellar, &["ci", "--scope", "read"]);
    let event = |n: u64| {
        let data = map(vec![("n", n.into())]);
        map(vec![("tag", format!("beacon/{n}").into()), ("data", data)])
    };
    let send = |cellar: &Cellar, n| {
        let events = Value::Array(vec![event(n)]);
        cellar.ask("event_return", vec![("events", events)]);
    };
    (0..10).for_each(|n| send(&cellar, n));
    let events = |cellar: &Cellar| {
        let answer = get(&address(cellar), "/api/v1/events?limit=100", &header);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let page: Json = serde_json::from_str(&answer.text()).unwrap();
        let rows = page["events"].as_array().unwrap().clone();
        let text = |row: &Json, key: &str| row[key].as_str().unwrap().to_owned();
        rows.iter()
            .map(|row| (text(row, "id"), text(row, "tag")))
            .collect::<Vec<_>>()
    };
    let backup = cellar.dir.path().join("backup");
    let bin = cellar.dir.path().join("bin");
    saltcellar_testkit::program(&bin, "systemctl", "#!/bin/sh\n");
    fs::create_dir_all(&bin).unwrap();
    std::os::unix::fs::symlink(program().get_program(), bin.join("saltcellar")).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let run = |line: &str| {
        let line = line
            .replace("/var/lib/saltcellar", state.to_str().unwrap())
            .replace("/backup/saltcellar", backup.to_str().unwrap());
        let output = std::process::Command::new("sh")
            .args(["-euc", &line])
            .env("PATH", &path)
            .env("SALTCELLAR_STATE_DIR", &state)
            .output()
            .unwrap();
        (line, output)
    };
    let well = |line: &str| {
        let (line, output) = run(line);
        assert!(output.status.success(), "{line}: {}", stderr(&output));
    };
    for line in documented("STORE.md", "## Back up") {
        well(&line);
    }
    // Stored after the backup, and lost.
    (10..15).for_each(|n| send(&cellar, n));
    let lost = events(&cellar);
    assert!(cellar.terminate());
    fs::remove_dir_all(&state).unwrap();
    // The daemon starts with an empty directory, and the nightly backup runs.
    cellar.restart();
    send(&cellar, 100);
    for delete in ["", " --delete"] {
        let (line, output) = run(&format!(
            "saltcellar store backup{delete} /backup/saltcellar"
        ));
        assert_eq!(output.status.code(), Some(64), "{line}");
        assert!(
            stderr(&output).contains("Nothing was changed"),
            "{}",
            stderr(&output)
        );
    }
    assert!(cellar.terminate());
    for line in documented("STORE.md", "### Restore") {
        well(&line);
    }
    cellar.restart();
    send(&cellar, 200);
    let found = events(&cellar);
    let tags: Vec<_> = found.iter().map(|(_, tag)| tag.as_str()).collect();
    assert_eq!(tags.len(), 12, "{tags:?}");
    assert_eq!(
        tags[..3],
        ["beacon/200", "saltcellar/gap/restore", "beacon/9"]
    );
    // No id of an event that was lost names another one.
    for (id, tag) in &lost {
        assert!(
            found.iter().all(|(other, now)| id != other || tag == now),
            "{id}"
        );
    }
    for line in documented("STORE.md", "## Back up") {
        well(&line);
    }
}

#[test]
fn damage_is_reported_by_file_and_offset_and_the_rest_is_salvaged() {
    let (mut cellar, entries) = filled();
    cellar.kill();
    let (state, new) = (cellar.state_dir(), cellar.dir.path().join("new"));
    let log = a_log(&state);
    let mut bytes = fs::read(&log).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(&log, bytes).unwrap();

    let verified = program()
        .args(["store", "verify", "--output", "json", "--state-dir"])
        .arg(&state)
        .output()
        .unwrap();
    assert_eq!(verified.status.code(), Some(1));
    assert!(
        stderr(&verified).contains(" problems found, ") && stderr(&verified).contains(" lost"),
        "{}",
        stderr(&verified)
    );
    let problem = &json(&verified)["problems"][0];
    assert_eq!(problem["path"], log.to_str().unwrap());
    let offset = problem["offset"].as_u64().unwrap();
    assert!(
        (offset..offset + problem["bytes"].as_u64().unwrap()).contains(&(at as u64)),
        "{problem}"
    );
    let lost = problem["entries_lost"].as_u64().unwrap();
    assert!((1..=5).contains(&lost), "{problem}");

    let salvaged = program()
        .args(["store", "salvage", "--output", "json"])
        .args([&state, &new])
        .output()
        .unwrap();
    assert_eq!(salvaged.status.code(), Some(1), "{}", stderr(&salvaged));
    let report = json(&salvaged);
    assert_eq!(
        (&report["entries"], &report["entries_lost"]),
        (&(entries - lost).into(), &lost.into())
    );
    assert_eq!(report["losses"][0]["offset"], offset);
    let verified = store(&["verify", "--state-dir"], &[&new]);
    assert_eq!(
        verified.status.code(),
        Some(0),
        "{}{}",
        stdout(&verified),
        stderr(&verified)
    );
}

#[test]
fn what_is_missing_after_a_clean_stop_is_noticed_and_a_kill_is_no_alarm() {
    let mut cellar = Cellar::start_configured(LISTENER, &[]);
    let state = cellar.state_dir();
    token(&cellar, &["ci", "--scope", "read"]);
    for n in 0..10 {
        let data = map(vec![("n", n.into())]);
        let event = map(vec![("tag", format!("beacon/{n}").into()), ("data", data)]);
        cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
    }
    let verify = || {
        let output = store(&["verify", "--output", "json", "--state-dir"], &[&state]);
        (output.status.code(), json(&output))
    };
    cellar.kill();
    let (code, report) = verify();
    assert_eq!(
        (code, &report["entries"]),
        (Some(0), &10.into()),
        "{report}"
    );
    cellar.restart();
    assert!(cellar.terminate());
    let (code, report) = verify();
    assert_eq!(
        (code, &report["entries"]),
        (Some(0), &10.into()),
        "{report}"
    );
    // The whole log with zero bytes, as of a sector that was never written.
    let log = fs::read_dir(state.join("log/events"))
        .unwrap()
        .map(|item| item.unwrap().path().join("log"))
        .max()
        .unwrap();
    let bytes = fs::read(&log).unwrap();
    fs::write(&log, [&bytes[..80], &vec![0; bytes.len() - 80]].concat()).unwrap();
    fs::remove_file(state.join("SEQUENCE")).unwrap();
    let (code, report) = verify();
    assert_eq!(code, Some(1), "{report}");
    assert_eq!(
        (&report["entries_lost"], &report["exact"]),
        (&10.into(), &true.into()),
        "{report}"
    );
    let problems = report["problems"].as_array().unwrap();
    let paths: Vec<_> = problems
        .iter()
        .map(|problem| problem["path"].as_str().unwrap())
        .collect();
    for path in [log, state.join("SEQUENCE")] {
        assert!(paths.contains(&path.to_str().unwrap()), "{report}");
    }
    // The daemon starts, says it, and does not say it again.
    cellar.restart();
    let counters = |cellar: &Cellar| {
        ["entries_missing_at_start", "files_changed_while_stopped"].map(|name| cellar.counter(name))
    };
    assert_eq!(counters(&cellar), [10, 1]);
    let told = [
        "entries_missing_at_start is 10: entries that were stored at the last clean stop are missing",
        "files_changed_while_stopped is 1: files that cannot be rebuilt were changed or removed",
    ];
    for args in [&["status"][..], &["doctor", "--no-master"]] {
        let output = program()
            .args(args)
            .args(["--output", "json", "--socket"])
            .arg(cellar.socket())
            .output()
            .unwrap();
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        for reason in told {
            assert!(text.contains(reason), "{args:?}: {text}");
        }
    }
    cellar.kill();
    cellar.restart();
    assert_eq!(counters(&cellar), [0, 0]);
}

#[test]
fn every_tool_has_help_with_examples() {
    for tool in ["verify", "rebuild", "salvage", "backup", "restore"] {
        let output = program().args(["store", tool, "--help"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let help = stdout(&output);
        assert!(
            help.contains("Examples:") && help.contains(&format!("saltcellar store {tool}")),
            "{help}"
        );
    }
}

#[test]
fn verify_accepts_all_files_of_a_daemon_with_reactor_and_bus() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_str().unwrap();
    fs::write(
        dir.path().join("master"),
        format!("cachedir: {at}/cache\nid: m\n"),
    )
    .unwrap();
    fs::write(
        dir.path().join("c.yaml"),
        format!("bus: [{at}]\nreactor: {{master: {at}/master, rules: [{{a: /a}}]}}\n"),
    )
    .unwrap();
    let mut cellar = Cellar::start_in(dir, &["--config", "DIR/c.yaml"]);
    let state = cellar.state_dir();
    assert!(cellar.terminate(), "{}", cellar.log());
    assert!(
        state.join("log/settings").exists() && state.join("spill").exists(),
        "the daemon created settings and spill"
    );
    let output = store(&["verify", "--output", "json", "--state-dir"], &[&state]);
    assert_eq!(json(&output)["notes"], Json::Array(Vec::new()));
    fs::write(state.join("notes.txt"), "mine").unwrap();
    let output = store(&["verify", "--output", "json", "--state-dir"], &[&state]);
    assert_eq!(json(&output)["notes"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_prune_without_a_daemon_shows_the_warnings_of_the_store_and_nothing_else() {
    let mut cellar = Cellar::start_configured("", &[]);
    let state = cellar.state_dir();
    assert!(cellar.terminate(), "{}", cellar.log());
    let prune = || {
        let output = store(&["prune", "--dry-run", "--state-dir"], &[&state]);
        assert!(output.status.success(), "{}", stderr(&output));
        let opening = "saltcellar: daemon unreachable, opening the store in ";
        let printed = stderr(&output);
        let lines = printed.lines().filter(|line| !line.starts_with(opening));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(prune(), [""; 0]);

    fs::write(state.join("notes.txt"), "mine").unwrap();
    let warnings = prune();
    let [line] = warnings.as_slice() else {
        panic!("{warnings:?}")
    };
    let warning = "unknown file in the state directory, ignored";
    assert!(
        line.contains(" WARN ") && line.contains(warning) && line.contains("notes.txt"),
        "{line}"
    );
}

fn jobs_stored(cellar: &Cellar) -> u64 {
    let stats = cellar.ask("store_stats", vec![]);
    let classes = stats["classes"].as_array().unwrap();
    let jobs = classes.iter().find(|one| one["class"] == "jobs".into());
    jobs.unwrap()["entries"].as_u64().unwrap()
}

fn report_keep_jobs(cellar: &Cellar, seconds: u64) {
    cellar.ask(
        "clean_old_jobs",
        vec![("keep_jobs_seconds", seconds.into())],
    );
    // A round of retention, without waiting for the next one.
    cellar.ask("store_prune", vec![]);
}

/// A daemon that only reads the bus keeps jobs; with Salt's job cache, the master reports `keep_jobs_seconds`.
#[test]
fn a_reported_keep_jobs_seconds_deleted_the_jobs_of_a_daemon_that_had_only_read_the_bus() {
    const DAY: u64 = 86_400;
    // The limit of entries makes small segments. The age is the default.
    let mut cellar = Cellar::start_configured(
        "store: {classes: [{name: jobs, keep: {entries: 1000}}]}",
        &[],
    );
    let now = Clock::real().now().0;
    let mut client = cellar.client();
    for n in 0..200 {
        let at = now - (40 * 86_400 - n) * 1_000_000;
        let load = map(vec![
            ("id", "web1".into()),
            ("jid", format!("202601010000000{n:05}").into()),
            ("fun", "test.ping".into()),
            ("return", true.into()),
        ]);
        let args = vec![("load", load), ("at", at.into()), ("import", true.into())];
        client.call("returner", map(args)).unwrap();
    }
    assert_eq!(jobs_stored(&cellar), 200);
    report_keep_jobs(&cellar, DAY);
    assert_eq!(jobs_stored(&cellar), 200, "nothing goes by itself");

    // The administrator follows Salt, which keeps jobs for long: a report that becomes shorter deletes nothing, and is shown.
    let salt = "store: {classes: [{name: jobs, keep: {age: salt, entries: 1000}}]}";
    report_keep_jobs(&cellar, 400 * DAY);
    assert!(cellar.terminate());
    fs::write(cellar.dir.path().join("c.yaml"), salt).unwrap();
    cellar.restart();
    report_keep_jobs(&cellar, DAY);
    assert_eq!(jobs_stored(&cellar), 200, "still 400 days");
    let run = |args: &[&str]| {
        let output = program()
            .args(args)
            .arg("--socket")
            .arg(cellar.socket())
            .output()
            .unwrap();
        stdout(&output)
    };
    let status = run(&["status"]);
    assert!(
        status.contains("keeps    jobs 400 days")
            && status.contains("class jobs: Salt's keep_jobs_seconds became shorter"),
        "{status}"
    );
    let planned = run(&["store", "prune", "--accept-salt", "--dry-run"]);
    assert!(
        planned.contains("3 segments would be dropped: 192 entries"),
        "{planned}"
    );
    assert_eq!(jobs_stored(&cellar), 200);
    run(&["store", "prune", "--accept-salt"]);
    assert_eq!(jobs_stored(&cellar), 8, "accepted");
    let status = run(&["status"]);
    assert!(
        status.contains("keeps    jobs 24h") && !status.contains("shorter"),
        "{status}"
    );
}
