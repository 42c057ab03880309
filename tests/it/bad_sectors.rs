//! Sectors that the disk cannot read, under the real program: a library between it and the C library fails the reads of one file.
//!
//! The daemon starts whichever file it is. Only entries in an unreadable sector of a log are missing, and the status names the
//! place; consumers and sinks go on behind it; tools complete.

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rmpv::Value;
use saltcellar_testkit::Random;
use saltcellar_testkit::usage::Process;

use crate::fake_daemon::{program, stderr, stdout};
use crate::harness::{Asks as _, Cellar, map, serve_command, wait_for};

pub(crate) const EVENTS: u64 = 60;

/// Four events share a block in a sealed segment.
const EVENT_BYTES: usize = 50_000;

/// Everything that keeps a file of its own in the state directory: tokens, a rule, a sink with a dead letter, the position of a bus.
/// `MADE` is the directory in which the store was filled; there is a master's configuration and its bus.
const YAML: &str = "store:\n  segment_bytes_max: 1MiB\n\
    http: {listen: '127.0.0.1:0'}\n\
    reactor: {master: MADE/master, rules: [{'no/such': MADE/none.sls}]}\n\
    sinks:\n  dead:\n    match: [{tag: 'dead/*'}]\n    encoder: json\n    batch: {count: 1, time: 0s}\n\
    \x20   transport: {http: {url: 'http://127.0.0.1:PORT/'}}\n";

/// A sink of its own for each copy of the store.
const COPY: &str =
    "  copy:\n    encoder: json\n    transport:\n      file: {path: DIR/copy.jsonl}\n";

/// The bus, whose position is read if it is configured, and whose name is read if it is not.
const BUS: &str = "bus: [MADE]\n";

/// Compiles the library; `None` without a C compiler.
fn library(dir: &Path) -> Option<PathBuf> {
    crate::sync_order::compiled(dir, "bad_sector", include_str!("bad_sector.c"))
}

/// What the disk cannot do with a file.
#[derive(Debug, Clone)]
struct Bad {
    path: PathBuf,
    /// Bytes that cannot be read; `None`: the file cannot be opened.
    bytes: Option<Range<u64>>,
}

impl Bad {
    fn apply(&self, command: &mut Command, library: &Path) {
        command.env("LD_PRELOAD", library);
        match &self.bytes {
            Some(bytes) => command
                .env("BAD_PATH", &self.path)
                .env("BAD_FROM", bytes.start.to_string())
                .env("BAD_TO", bytes.end.to_string()),
            // Wherever it is moved to.
            None => command.env(
                "BAD_OPEN",
                std::fs::metadata(&self.path).unwrap().ino().to_string(),
            ),
        };
    }
}

/// The directory of a store with every file that a store can have, and its configuration.
pub(crate) struct Made {
    dir: tempfile::TempDir,
    yaml: String,
    /// The headers of a token that may read what is about minion `web1`.
    pub(crate) token: String,
}

impl Made {
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path().canonicalize().unwrap().join("state")
    }
}

pub(crate) fn filled(dir: tempfile::TempDir) -> Made {
    let at = dir.path().to_str().unwrap().to_owned();
    let (port, _) = crate::sinks::service(|_, _| crate::sinks::status("400 Bad Request", ""));
    let yaml = YAML.replace("MADE", &at).replace("PORT", &port.to_string());
    let with_bus = format!("{}{yaml}", BUS.replace("MADE", &at));
    std::fs::write(dir.path().join("c.yaml"), with_bus).unwrap();
    let master = format!("interface: 127.0.0.1\nret_port: 1\nsock_dir: {at}\nuser: root\nid: m\n");
    std::fs::write(dir.path().join("master"), master).unwrap();
    let bus = crate::harness::master_bus(dir.path());
    let mut cellar = Cellar::start_in(dir, &["--config", "DIR/c.yaml"]);
    let (framing, frames) = crate::harness::recording("3008.3");
    let mut stream = bus.subscriber().unwrap();
    crate::harness::publish(&mut stream, &framing, &frames[..1]);
    wait_for("the bus", || {
        (cellar.counter("entries_stored") > 0).then_some(())
    });
    let token = crate::http::token(&cellar, &["ci", "--scope", "read", "--minion", "web1"]);
    let keep = vec![("keep_jobs_seconds", (400 * 24 * 3600_u64).into())];
    cellar.ask("clean_old_jobs", keep);
    let event = map(vec![("tag", "dead/1".into()), ("data", map(vec![]))]);
    cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
    wait_for("the dead letter", || {
        let letters = cellar.ask("sink_dead_letters", vec![("name", "dead".into())]);
        (!letters["dead_letters"].as_array().unwrap().is_empty()).then_some(())
    });
    cellar.ask(
        "consumer_create",
        vec![("name", "audit".into()), ("to", "oldest".into())],
    );
    let load = map(vec![
        ("jid", "4711".into()),
        ("id", "web1".into()),
        ("fun", "test.ping".into()),
        ("return", true.into()),
    ]);
    cellar.ask("returner", vec![("load", load)]);
    cellar.ask(
        "store_hold",
        vec![("jid", "4711".into()), ("reason", "audit".into())],
    );
    let mut random = Random::new(7);
    for n in 0..EVENTS {
        let blob = Value::Binary(random.bytes(EVENT_BYTES));
        let event = map(vec![
            ("tag", format!("test/{n}").into()),
            ("data", map(vec![("n", n.into()), ("blob", blob)])),
        ]);
        cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
    }
    wait_for("sealed segments", || {
        (cellar.counter("segments_sealed") >= 2).then_some(())
    });
    assert!(cellar.terminate(), "{}", cellar.log());
    let Cellar { dir, .. } = cellar;
    let made = Made { dir, yaml, token };
    let names: Vec<_> = files(&made.state())
        .into_iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    for name in SMALL {
        assert!(names.iter().any(|found| found == name), "{name}: {names:?}");
    }
    made
}

/// The small files of this store.
const SMALL: [&str; 4] = ["FORMAT", "SEQUENCE", "SEEN", "BUS"];

/// All files below a directory.
pub(crate) fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for item in std::fs::read_dir(dir).unwrap() {
        let path = item.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

pub(crate) fn copy_of(made: &Made, with_bus: bool) -> tempfile::TempDir {
    let from = made.path();
    let to = tempfile::tempdir().unwrap();
    let copied = Command::new("cp")
        .args(["-a", &format!("{}/state", from.display())])
        .arg(to.path())
        .status();
    assert!(copied.unwrap().success());
    let copy = COPY.replace("DIR", to.path().to_str().unwrap());
    let bus = BUS.replace("MADE", from.to_str().unwrap());
    let bus = if with_bus { bus } else { String::new() };
    std::fs::write(
        to.path().join("c.yaml"),
        format!("{bus}{}{copy}", made.yaml),
    )
    .unwrap();
    to
}

/// Starts the daemon on a copy of the store with a bad file.
fn start(dir: tempfile::TempDir, bad: &Bad, library: &Path) -> Cellar {
    let log = std::fs::File::create(dir.path().join("log")).unwrap();
    let mut command = serve_command(dir.path());
    bad.apply(&mut command, library);
    command
        .arg("--config")
        .arg(dir.path().join("c.yaml"))
        .stdout(Stdio::null())
        .stderr(log);
    let process = Process(command.spawn().unwrap());
    let mut cellar = Cellar {
        dir,
        process,
        flags: Vec::new(),
    };
    wait_for("the daemon", || {
        assert!(
            cellar.process.0.try_wait().unwrap().is_none(),
            "{bad:?}: the daemon ended: {}",
            cellar.log()
        );
        cellar_status(&cellar)
    });
    cellar
}

pub(crate) fn cellar_status(cellar: &Cellar) -> Option<Value> {
    let mut client = saltcellar::api::client::Client::connect(&cellar.socket()).ok()?;
    client.call("status", map(vec![])).ok()
}

pub(crate) fn number(tag: &str) -> Option<u64> {
    tag.strip_prefix("test/")?.parse().ok()
}

pub(crate) fn listed(cellar: &Cellar) -> BTreeSet<u64> {
    let (mut found, mut before) = (BTreeSet::new(), None);
    loop {
        let mut args = vec![("limit", 1000.into())];
        args.extend(before.map(|before: u64| ("before", before.into())));
        let page = cellar.ask("events_list", args);
        let events = page["events"].as_array().unwrap();
        found.extend(events.iter().filter_map(|e| number(e["tag"].as_str()?)));
        let Some(last) = events.last() else {
            return found;
        };
        before = last["seq"].as_u64();
    }
}

fn consumed(cellar: &Cellar) -> BTreeSet<u64> {
    // Without the file its cursors are lost.
    cellar.ask(
        "consumer_create",
        vec![("name", "audit".into()), ("to", "oldest".into())],
    );
    let mut found = BTreeSet::new();
    loop {
        let args = vec![
            ("name", "audit".into()),
            ("holder", "me".into()),
            ("limit", 20.into()),
        ];
        let batch = cellar.ask("consumer_next", args);
        let events = batch["events"].as_array().unwrap();
        found.extend(events.iter().filter_map(|e| number(e["tag"].as_str()?)));
        let Some(last) = events.last() else {
            return found;
        };
        let args = vec![
            ("name", "audit".into()),
            ("holder", "me".into()),
            ("seq", last["seq"].clone()),
        ];
        cellar.ask("consumer_ack", args);
    }
}

/// The sink's events once it has delivered the last one.
fn sunk(cellar: &Cellar, last: u64) -> BTreeSet<u64> {
    let sought = program()
        .args(["sinks", "seek", "copy", "oldest", "--socket"])
        .arg(cellar.socket())
        .output()
        .unwrap();
    assert!(sought.status.success(), "{}", stderr(&sought));
    let path = cellar.dir.path().join("copy.jsonl");
    wait_for("the last event in the sink", || {
        let text = std::fs::read_to_string(&path).ok()?;
        let whole = text.rsplit_once('\n')?.0;
        let found: BTreeSet<u64> = whole
            .lines()
            .filter_map(|line| {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                number(line["tag"].as_str()?)
            })
            .collect();
        found.contains(&last).then_some(found)
    })
}

pub(crate) fn reasons(cellar: &Cellar) -> String {
    let status = cellar_status(cellar).unwrap();
    let reasons = status["health"]["reasons"].as_array().unwrap().clone();
    let text = |reason: &Value| format!("{}: {}", reason["part"], reason["message"]);
    reasons.iter().map(text).collect::<Vec<_>>().join("\n")
}

fn is_of_settings(path: &Path) -> bool {
    path.starts_with("state/log/settings")
}

pub(crate) fn is_log(path: &Path) -> bool {
    path.ends_with("log")
}

/// Runs a tool of the store: its exit code, and what it printed.
fn store_tool(
    verb: &str,
    dir: &Path,
    bad: &Bad,
    library: &Path,
    more: &[&Path],
) -> (Option<i32>, String) {
    let state = dir.join("state");
    let mut command = program();
    command.args(["store", verb]);
    if verb == "salvage" {
        command.arg(&state);
    } else {
        command.arg("--state-dir").arg(&state);
    }
    command.args(more);
    bad.apply(&mut command, library);
    let output = command.output().unwrap();
    let text = format!("{}{}", stdout(&output), stderr(&output));
    // 1: damage was found. Others mean that it could not do its work.
    assert!(
        matches!(output.status.code(), Some(0 | 1)),
        "{verb} with {bad:?}: {:?} {text}",
        output.status
    );
    (output.status.code(), text)
}

/// Entries of this test that one block may hold: how many are stored together depends on the load of the machine.
pub(crate) const ENTRIES_PER_BLOCK_MAX: usize = 8;

#[test]
fn the_daemon_starts_with_a_bad_sector_in_any_of_its_files() {
    let library_dir = tempfile::tempdir().unwrap();
    let Some(library) = library(library_dir.path()) else {
        return saltcellar_testkit::missing("a C compiler as `cc`");
    };
    let made = filled(tempfile::tempdir().unwrap());
    let state = made.state();
    let all: BTreeSet<u64> = (0..EVENTS).collect();
    let mut names: Vec<PathBuf> = files(&state)
        .into_iter()
        .map(|path| Path::new("state").join(path.strip_prefix(&state).unwrap()))
        .collect();
    let segments: Vec<_> = names
        .iter()
        .filter(|name| is_log(name) && name.starts_with("state/log/events"))
        .filter_map(|name| Some(name.parent()?.to_owned()))
        .collect();
    assert!(segments.len() >= 3, "{segments:?}");
    // The files of one sealed segment and of the growing one stand for all.
    names.retain(|name| {
        !name.starts_with("state/log")
            || is_of_settings(name)
            || name.starts_with("state/log/jobs")
            || name.starts_with(&segments[0])
            || name.starts_with(segments.last().unwrap())
    });
    assert!(names.len() > 10, "{names:?}");
    for name in &names {
        let size = std::fs::metadata(made.path().join(name)).unwrap().len();
        let ranges = if is_log(name) && !is_of_settings(name) {
            vec![0..4096, 200_704..204_800, size / 4096 * 4096..size.max(1)]
        } else {
            vec![0..u64::MAX / 4; 1]
        };
        let mut cases: Vec<_> = ranges.into_iter().map(Some).collect();
        let file = name.file_name().unwrap().to_str().unwrap();
        // Without a handle of it there is no lock.
        if file != "FORMAT" {
            cases.push(None);
        }
        for bytes in cases {
            let dir = copy_of(&made, file != "BUS");
            let path = dir.path().canonicalize().unwrap().join(name);
            let bad = Bad { path, bytes };
            let mut cellar = start(dir, &bad, &library);
            let is_gone = bad.bytes.is_none();
            let found = listed(&cellar);
            let lost = all.difference(&found).count();
            let most = match name.strip_prefix("state/log/events") {
                Ok(_) if is_log(name) && is_gone => all.len() - 1,
                Ok(_) if is_log(name) => ENTRIES_PER_BLOCK_MAX,
                _ => 0,
            };
            assert!(lost <= most, "{bad:?}: {lost} lost, {}", cellar.log());
            assert_eq!(consumed(&cellar), found, "{bad:?}");
            let last = *found.last().unwrap();
            if is_of_settings(name) {
                // The other copy has everything, and the damage is named.
                let reasons = reasons(&cellar);
                assert!(
                    reasons.contains(bad.path.to_str().unwrap()),
                    "{bad:?}: {reasons}"
                );
                let dead = cellar.ask("sink_dead_letters", vec![("name", "dead".into())]);
                let holds = cellar.ask("store_holds", vec![]);
                let tokens = cellar.ask("token_list", vec![]);
                for (list, key) in [(dead, "dead_letters"), (holds, "holds"), (tokens, "tokens")] {
                    assert_eq!(
                        list[key].as_array().map(Vec::len),
                        Some(1),
                        "{bad:?}: {key}"
                    );
                }
            } else if is_log(name) {
                assert_eq!(sunk(&cellar, last), found, "{bad:?}");
            }
            let job = cellar.ask("get_jid", vec![("jid", "4711".into())]);
            let has_job = job["web1"].as_map().is_some();
            if lost > 0 || !has_job || is_log(name) && is_gone && !is_of_settings(name) {
                let reasons = reasons(&cellar);
                let segment = bad
                    .path
                    .parent()
                    .unwrap()
                    .strip_prefix(cellar.dir.path().canonicalize().unwrap().join("state/log"))
                    .unwrap();
                if is_gone {
                    assert!(
                        reasons.contains(segment.to_str().unwrap()),
                        "{bad:?}: {reasons}"
                    );
                } else {
                    assert!(
                        reasons.contains(bad.path.to_str().unwrap())
                            && reasons.contains("damaged at byte"),
                        "{bad:?}: {reasons}"
                    );
                    assert!(cellar.counter("log_bytes_unreadable") > 0, "{bad:?}");
                }
            }
            assert!(cellar.terminate(), "{bad:?}: {}", cellar.log());
        }
    }
}

#[test]
fn tools_complete_with_a_bad_sector_in_any_of_the_files() {
    let library_dir = tempfile::tempdir().unwrap();
    let Some(library) = library(library_dir.path()) else {
        return saltcellar_testkit::missing("a C compiler as `cc`");
    };
    let made = filled(tempfile::tempdir().unwrap());
    let dir = made.path().canonicalize().unwrap();
    let spill = files(&dir.join("state/spill"));
    let logs: Vec<PathBuf> = files(&dir.join("state/log/events"))
        .into_iter()
        .filter(|path| is_log(path))
        .collect();
    let index = logs[0].with_file_name("index");
    let whole = |path: PathBuf| {
        let all = Bad {
            path: path.clone(),
            bytes: Some(0..u64::MAX / 4),
        };
        [all, Bad { path, bytes: None }]
    };
    let mut cases: Vec<Bad> = ["FORMAT", "SEQUENCE", "state/db"]
        .iter()
        .flat_map(|name| whole(dir.join("state").join(name)))
        .chain(spill.into_iter().flat_map(whole))
        .collect();
    cases.extend(whole(index));
    let settings = files(&dir.join("state/log/settings"));
    cases.extend(settings.into_iter().flat_map(whole));
    for log in [&logs[0], logs.last().unwrap()] {
        let sector = Some(200_704..204_800);
        cases.extend([sector, None].map(|bytes| Bad {
            path: log.clone(),
            bytes,
        }));
    }
    let total = entries(&dir.join("state"));
    for (n, bad) in cases.iter().enumerate() {
        let name = bad.path.to_str().unwrap();
        let tells = |(code, text): &(Option<i32>, String)| *code == Some(1) && text.contains(name);
        let is_silent = |(code, _): &(Option<i32>, String)| *code == Some(0);
        let is_settings = bad.path.starts_with(dir.join("state/log/settings"));
        let is_derived = bad.path.ends_with("index") || bad.path.ends_with("state/db");

        let verified = store_tool("verify", &dir, bad, &library, &[]);
        // To its end.
        let is_whole = verified.1.contains("entries lost");
        assert!(is_whole && tells(&verified), "{bad:?}: {verified:?}");

        let to = dir.join(format!("backup{n}"));
        let backed_up = store_tool("backup", &dir, bad, &library, &[&to]);
        if is_log(&bad.path) {
            assert!(tells(&backed_up), "{bad:?}: {backed_up:?}");
        } else {
            // It has everything: the file is derived, or made anew from what is in the backup.
            assert!(is_silent(&backed_up), "{bad:?}: {backed_up:?}");
        }
        let restored = dir.join(format!("restored{n}"));
        restore(&to, &restored);
        let lost = total - (entries(&restored) - GAP);
        let most = match (&bad.bytes, is_log(&bad.path) && !is_settings) {
            (_, false) => 0,
            (Some(_), true) => 2 * ENTRIES_PER_BLOCK_MAX as u64,
            (None, true) => total - 1,
        };
        assert!(lost <= most && (lost > 0) == (most > 0), "{bad:?}: {lost}");

        let new = dir.join(format!("new{n}"));
        let salvaged = store_tool("salvage", &dir, bad, &library, &[&new]);
        // Written last.
        assert!(new.join("FORMAT").is_file(), "{bad:?}: {salvaged:?}");
        // Of the settings the other copy has everything, but a whole file that is missing is told.
        if is_derived || is_settings && bad.bytes.is_some() {
            assert!(is_silent(&salvaged), "{bad:?}: {salvaged:?}");
        } else {
            assert!(tells(&salvaged), "{bad:?}: {salvaged:?}");
        }
    }
}

#[test]
fn tools_bound_what_is_lost_in_a_log_that_cannot_be_opened() {
    let library_dir = tempfile::tempdir().unwrap();
    let Some(library) = library(library_dir.path()) else {
        return saltcellar_testkit::missing("a C compiler as `cc`");
    };
    let made = filled(tempfile::tempdir().unwrap());
    let dir = made.path().canonicalize().unwrap();
    let log = files(&dir.join("state/log/events"))
        .into_iter()
        .find(|path| is_log(path) && !path.with_file_name("index").exists())
        .unwrap();

    // Nothing else knows how many entries it has.
    std::fs::remove_file(dir.join("state/STOPPED")).unwrap();
    std::fs::remove_dir_all(dir.join("state/state")).unwrap();

    let bad = Bad {
        path: log,
        bytes: None,
    };
    let new = dir.join("new");
    for (verb, more) in [("verify", &[][..]), ("salvage", &[new.as_path()])] {
        let (code, text) = store_tool(verb, &dir, &bad, &library, more);
        assert_eq!(code, Some(1), "{text}");
        assert!(
            text.contains("the log cannot be opened") && text.contains("at most"),
            "{text}"
        );
    }
}

#[test]
fn a_backup_keeps_what_it_has_of_a_log_that_cannot_be_opened_any_more() {
    let library_dir = tempfile::tempdir().unwrap();
    let Some(library) = library(library_dir.path()) else {
        return saltcellar_testkit::missing("a C compiler as `cc`");
    };
    let made = filled(tempfile::tempdir().unwrap());
    let dir = made.path().canonicalize().unwrap();
    let total = entries(&dir.join("state"));
    let to = dir.join("backup");
    let log = files(&dir.join("state/log/events"))
        .into_iter()
        .find(|path| is_log(path))
        .unwrap();
    let backup = |bad: &Bad| {
        let more = [Path::new("--delete"), &to];
        store_tool("backup", &dir, bad, &library, &more)
    };
    let good = Bad {
        path: log.clone(),
        bytes: Some(0..0),
    };
    assert_eq!(backup(&good).0, Some(0));
    // It would delete what retention has dropped.
    let bad = Bad {
        path: log,
        bytes: None,
    };
    for _ in 0..2 {
        let (code, text) = backup(&bad);
        assert_eq!(code, Some(1), "{text}");
    }
    restore(&to, &dir.join("restored"));
    assert_eq!(entries(&dir.join("restored")), total + GAP);
}

/// The record of the numbers that a restore passes over.
const GAP: u64 = 1;

fn restore(from: &Path, to: &Path) {
    let mut restore = program();
    let restored = restore
        .args(["store", "restore"])
        .args([from, to])
        .output()
        .unwrap();
    assert!(restored.status.success(), "{}", stderr(&restored));
}

/// The number of entries that can be read in the logs of a store.
fn entries(state: &Path) -> u64 {
    let mut verify = program();
    verify.args(["store", "verify", "--output", "json", "--state-dir"]);
    let verified = verify.arg(state).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&verified.stdout).unwrap();
    report["entries"].as_u64().unwrap()
}
