//! Filters, redaction and the built-in redaction of masters' keys, by every source of entries.

use std::path::Path;

use rmpv::Value;

use crate::bus_outages::{Bus, frame, unpacked};
use crate::fake_daemon::{program, stderr};
use crate::harness::{Cellar, map, publish, wait_for};
use crate::https_source::{Server, call, post, signer};
use crate::zeromq_sockets::{Peer, message};

/// A key in Salt's format: 76 bytes of base 64.
const KEY: &str = "Nk3xqbMO0VDm2pSQ5t8c+ZxwYgE1/LrHfA7iKuTeJ94Bd6vPoWsCXyGzRjUhFnIlMaVbQk0OtZw=";

/// The kinds of entries that a source accepts.
#[derive(Clone, Copy, PartialEq)]
enum Accepts {
    Events,
    Returns,
    /// Never filtered, because Salt reads them.
    Loads,
    Registers,
}

struct Sources {
    server: Server,
    bus: std::os::unix::net::UnixStream,
    push: Peer,
    dir: tempfile::TempDir,
}

/// Every source, and the entries it accepts.
const SOURCES: [(&str, Accepts); 12] = [
    ("bus", Accepts::Events),
    ("event_return", Accepts::Events),
    ("event_return-replayed", Accepts::Events),
    ("zeromq", Accepts::Events),
    ("import", Accepts::Events),
    ("returner", Accepts::Returns),
    ("returner-replayed", Accepts::Returns),
    ("https", Accepts::Returns),
    ("https-replayed", Accepts::Returns),
    ("save_load", Accepts::Loads),
    ("save_load-replayed", Accepts::Loads),
    ("save_reg", Accepts::Registers),
];

impl Sources {
    /// Sends an event (tag, data) or a return (jid, function, value) by a source.
    fn send(&mut self, source: &str, (tag, jid, fun): (&str, &str, &str), value: Value) {
        let cellar = &self.server.cellar;
        let replay = source.ends_with("-replayed");
        let mut args = vec![("replay", Value::from(replay))];
        if replay {
            args.push(("at", 1_750_000_000_000_000_i64.into()));
        }
        let load = map(vec![
            ("id", "a".into()),
            ("jid", jid.into()),
            ("fun", fun.into()),
            ("retcode", 0.into()),
            ("success", true.into()),
            ("return", value.clone()),
        ]);
        match source.trim_end_matches("-replayed") {
            "bus" => publish(&mut self.bus, "len32", &[frame(tag, &value)]),
            "event_return" => {
                let event = map(vec![("tag", tag.into()), ("data", value)]);
                args.push(("events", Value::Array(vec![event])));
                cellar.ask("event_return", args);
            }
            "zeromq" => {
                let mut data = Vec::new();
                rmpv::encode::write_value(&mut data, &value).unwrap();
                self.push.send(&message(&[tag.as_bytes(), b"\n\n", &data]));
            }
            "import" => {
                let file = self.dir.path().join("import.jsonl");
                let data = json(&value);
                let line = serde_json::json!(
                    {"kind": "event", "on_bus": true, "time": 1_750_000_000_000_000_i64, "tag": tag, "data": data}
                );
                std::fs::write(&file, format!("{line}\n")).unwrap();
                let mut import = program();
                let import = import
                    .arg("--socket")
                    .arg(cellar.socket())
                    .args(["import", "jsonl"])
                    .arg(&file);
                let output = import.output().unwrap();
                assert!(output.status.success(), "{}", stderr(&output));
            }
            "returner" => {
                args.push(("load", load));
                cellar.ask("returner", args);
            }
            "https" => {
                args.push(("load", load));
                let mut connection = self.server.connect();
                let answer = post(
                    &mut connection,
                    "a",
                    &signer("minion-a.pem"),
                    &call("returner", args),
                );
                assert_eq!(answer, Ok(Value::Nil));
            }
            "save_load" => {
                let load = map(vec![
                    ("fun", fun.into()),
                    ("arg", Value::Array(vec![value])),
                ]);
                args.extend([("jid", jid.into()), ("load", load)]);
                cellar.ask("save_load", args);
            }
            "save_reg" => {
                args.push(("data", value));
                cellar.ask("save_reg", args);
            }
            other => panic!("unknown source {other}"),
        }
    }
}

fn json(value: &Value) -> serde_json::Value {
    let pairs = value.as_map().unwrap();
    pairs
        .iter()
        .map(|(key, value)| (key.as_str().unwrap(), value.as_str().unwrap()))
        .collect()
}

fn put_key(dir: &Path, key: &str) {
    std::fs::create_dir_all(dir.join("cache")).unwrap();
    std::fs::write(dir.join("cache/.root_key"), key).unwrap();
    std::fs::write(
        dir.join("master"),
        format!("cachedir: {}/cache\nid: m\n", dir.display()),
    )
    .unwrap();
}

#[test]
fn filters_and_redaction_hold_for_every_source_and_the_master_s_key_needs_no_rule() {
    let (bus, dir) = (Bus::new(), tempfile::tempdir().unwrap());
    put_key(dir.path(), KEY);
    let config = format!(
        "bus: [{}]\nzeromq: {{pull: 'ipc://DIR/z/in.sock'}}\ningest:\n  masters: [{}/master]\n  filter:\n    \
         - {{do: drop, tag: 'probe/*/dropped'}}\n    - {{do: drop, fun: probe.dropped}}\n  redact:\n    - {{builtin: passwords}}\n",
        bus.flag(),
        dir.path().display()
    );
    let server = Server::open(&config);
    let (stream, push) = (bus.subscriber(), Peer::push(&server.cellar));
    let mut sources = Sources {
        server,
        bus: stream,
        push,
        dir,
    };
    for (n, (source, takes)) in SOURCES.iter().enumerate() {
        let jid = |what: u32| format!("202501010000000{n:02}{what:03}");
        let text = |what: &str| format!("{what} by {source}");
        let kept = map(vec![
            ("password", text("password").into()),
            ("text", format!("{source}: {KEY}!").into()),
        ]);
        sources.send(
            source,
            (&format!("probe/{source}/kept"), &jid(1), "probe.kept"),
            kept,
        );
        if matches!(takes, Accepts::Events | Accepts::Returns) {
            let dropped = map(vec![("text", text("dropped").into())]);
            sources.send(
                source,
                (&format!("probe/{source}/dropped"), &jid(2), "probe.dropped"),
                dropped,
            );
        }
        if *takes == Accepts::Events {
            let request = map(vec![("key", text("another master's key").into())]);
            let tag = format!("salt/run/{}/salt/reactors/manage/{source}", jid(3));
            sources.send(source, (&tag, "", ""), request);
        }
    }
    let expected: u64 = SOURCES
        .iter()
        .map(|(_, takes)| 1 + u64::from(*takes == Accepts::Events))
        .sum();
    let cellar = &mut sources.server.cellar;
    wait_for("the store", || {
        (cellar.counter("entries_stored") >= expected).then_some(())
    });
    assert_eq!(
        cellar.counter("entries_redacted"),
        SOURCES.len() as u64,
        "by the rule"
    );
    assert_eq!(
        cellar.counter("master_keys_redacted"),
        expected,
        "without a rule"
    );
    assert!(cellar.terminate());
    let stored = unpacked(&cellar.state_dir());
    for (source, _) in SOURCES {
        let blank = format!("[redacted]{}", "*".repeat(KEY.len() - 10));
        assert!(
            stored.contains(&format!("{source}: {blank}!")),
            "{source}: nothing is stored, or it is not redacted"
        );
        for secret in ["password", "dropped", "another master's key"] {
            assert!(
                !stored.contains(&format!("{secret} by {source}")),
                "{secret} by {source} is stored"
            );
        }
    }
    assert!(!stored.contains(KEY) && !cellar.log().contains(KEY));
}

/// A store of an earlier release, with keys in plain text in sealed and growing segments.
fn old_store(dir: &Path, events: &[(String, Value)]) {
    use saltcellar::base::clock::{Clock, Micros};
    let config = saltcellar::config::Config::for_state_dir(dir, "/s");
    let mut options =
        saltcellar::cli::serve::store_options(&config, "the test".to_owned(), Clock::real());
    options.limits.segment_bytes_max = 4096;
    let opened = saltcellar::store::Store::open(&options).unwrap();
    let (store, intake) = (opened.store, opened.intake);
    let (appender, committer, sealer) = (opened.appender, opened.committer, opened.sealer);
    let retainer = opened.retainer;
    let thread = |work: Box<dyn FnOnce() + Send>| std::thread::Builder::new().spawn(work).unwrap();
    let threads = [
        thread(Box::new(move || appender.run())),
        thread(Box::new(move || committer.run())),
        thread(Box::new(move || sealer.run())),
        thread(Box::new(move || retainer.run())),
    ];
    for (n, (tag, data)) in events.iter().enumerate() {
        let mut body = Vec::new();
        rmpv::encode::write_value(&mut body, data).unwrap();
        let at = Micros(1_750_000_000_000_000 + i64::try_from(n).unwrap());
        let source = saltcellar::model::Source::Bus;
        let entry = saltcellar::wire::salt_event::event_entry(tag.as_bytes(), &body, source, at);
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let done = Box::new(move |stored| sender.send(stored).unwrap());
        intake
            .submit(saltcellar::model::Batch::of(&entry), Some(done))
            .unwrap();
        receiver
            .recv_timeout(std::time::Duration::from_secs(30))
            .unwrap()
            .unwrap();
    }
    drop((store, intake));
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Events in several segments, some with a master's current or old key.
fn events_with(old_key: &str) -> Vec<(String, Value)> {
    let noise = |n: u64| {
        let bytes = (0..60).flat_map(|i| {
            (n * 67 + i)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .to_le_bytes()
        });
        Value::Binary(bytes.collect())
    };
    let event = |n: u64| match n {
        3 | 30 => (
            "salt/run/1/salt/reactors/manage/list",
            map(vec![("key", KEY.into())]),
        ),
        17 => (
            "salt/reactors/manage/add",
            map(vec![("key", old_key.into()), ("event", "x".into())]),
        ),
        20 => ("other", map(vec![("text", format!("it is {KEY}.").into())])),
        38 => (
            "other",
            map(vec![("text", format!("it was {old_key}.").into())]),
        ),
        n => (
            "plain",
            map(vec![
                ("key", "of no master".into()),
                ("n", n.into()),
                ("noise", noise(n)),
            ]),
        ),
    };
    (0..40)
        .map(event)
        .map(|(tag, data)| (tag.to_owned(), data))
        .collect()
}

/// `saltcellar store redact-keys` on a state directory: its exit code and document.
fn redact_keys(dir: &Path, more: &[&str]) -> (Option<i32>, serde_json::Value) {
    let mut command = program();
    command
        .args(["store", "redact-keys", "--output", "json", "--config"])
        .arg(dir.join("c.yaml"));
    let output = command
        .arg("--state-dir")
        .arg(dir.join("state"))
        .args(more)
        .output()
        .unwrap();
    let text = crate::fake_daemon::stdout(&output);
    let found = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{}", stderr(&output)));
    (output.status.code(), found)
}

#[test]
fn only_keys_in_an_existing_store_are_found_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    put_key(dir.path(), KEY);
    std::fs::write(
        dir.path().join("c.yaml"),
        format!("ingest: {{masters: [{}/master]}}\n", dir.path().display()),
    )
    .unwrap();
    let old_key = "a key that the master had before, in its time";
    let events = events_with(old_key);
    let state = dir.path().join("state");
    old_store(&state, &events);
    let before = unpacked(&state);
    assert!(before.contains(KEY) && before.contains(old_key));

    let (code, found) = redact_keys(dir.path(), &["--dry-run"]);
    assert_eq!((code, &found["entries"]), (Some(1), &5.into()), "{found}");
    assert_eq!(unpacked(&state), before, "a dry run changes nothing");
    let (code, found) = redact_keys(dir.path(), &[]);
    assert_eq!((code, &found["entries"]), (Some(0), &5.into()), "{found}");
    assert!(
        found["segments_affected"].as_u64() < found["segments"].as_u64(),
        "{found}"
    );
    let (code, found) = redact_keys(dir.path(), &["--dry-run"]);
    assert_eq!((code, &found["entries"]), (Some(0), &0.into()), "{found}");

    let blank = |key: &str| format!("[redacted]{}", "*".repeat(key.len() - 10));
    let expected: Vec<_> = events
        .iter()
        .map(|(tag, data)| {
            let Value::Map(pairs) = data else { panic!() };
            let pair = |(name, value): &(Value, Value)| {
                let is_key = name.as_str() == Some("key") && tag.contains("manage");
                let text = value.as_str().map(|text| {
                    text.replace(KEY, &blank(KEY))
                        .replace(old_key, &blank(old_key))
                });
                let text = text.map(|text| {
                    if is_key {
                        "[redacted]".to_owned()
                    } else {
                        text
                    }
                });
                (
                    name.clone(),
                    text.map_or_else(|| value.clone(), Value::from),
                )
            };
            (tag.clone(), Value::Map(pairs.iter().map(pair).collect()))
        })
        .collect();
    let verify = program()
        .args(["store", "verify", "--state-dir"])
        .arg(&state)
        .output()
        .unwrap();
    assert!(
        verify.status.success(),
        "{}{}",
        crate::fake_daemon::stdout(&verify),
        stderr(&verify)
    );
    let cellar = Cellar::start_in(dir, &[]);
    let page = cellar.ask(
        "events_list",
        vec![("limit", 100.into()), ("newest_first", false.into())],
    );
    let listed = page["events"].as_array().unwrap();
    let listed: Vec<_> = listed
        .iter()
        .map(|e| (e["tag"].as_str().unwrap().to_owned(), e["data"].clone()))
        .collect();
    assert_eq!(listed, expected);
    assert!(
        grep(&cellar.state_dir(), KEY.as_bytes()).is_empty()
            && grep(&cellar.state_dir(), old_key.as_bytes()).is_empty()
    );
}

/// The tags and data of all events, oldest first.
fn stored_events(state_dir: &Path) -> Vec<(String, Value)> {
    let config = saltcellar::config::Config::for_state_dir(state_dir, "/s");
    let clock = saltcellar::base::clock::Clock::real();
    let options = saltcellar::cli::serve::store_options(&config, "the test".to_owned(), clock);
    let opened = saltcellar::store::Store::open(&options).unwrap();
    let (filter, before) = (
        saltcellar::model::EventFilter::default(),
        saltcellar::model::SeqNo(u64::MAX),
    );
    let mut found = opened
        .store
        .events_before(&filter, before, 1_000, usize::MAX)
        .unwrap();
    found.reverse();
    let data = |body: &[u8]| rmpv::decode::read_value(&mut &body[..]).unwrap();
    found
        .into_iter()
        .map(|e| (String::from_utf8(e.tag).unwrap(), data(&e.body)))
        .collect()
}

/// The directory's files and directories, copied.
fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for item in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (path, copy) = (item.path(), to.join(item.file_name()));
        if path.is_dir() {
            copy_dir(&path, &copy);
        } else {
            std::fs::copy(&path, &copy).unwrap();
        }
    }
}

#[test]
fn a_killed_redaction_of_keys_can_be_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let Some(library) = crate::sync_order::library(dir.path()) else {
        return saltcellar::testkit::missing("a C compiler as `cc`");
    };
    put_key(dir.path(), KEY);
    let config = format!("ingest: {{masters: [{}/master]}}\n", dir.path().display());
    std::fs::write(dir.path().join("c.yaml"), config).unwrap();
    // This key can be collected only from the events themselves.
    let old_key = "a key that the master had before, in its time";
    let events = events_with(old_key);
    let (state, whole, steps) = (
        dir.path().join("state"),
        dir.path().join("whole"),
        dir.path().join("steps"),
    );
    old_store(&whole, &events);
    std::fs::write(&steps, "").unwrap();
    let run_until = |crash_at: u64| {
        let _ = std::fs::remove_dir_all(&state);
        copy_dir(&whole, &state);
        let mut command = program();
        command
            .env("LD_PRELOAD", &library)
            .env("CRASH_STEPS", &steps)
            .env("CRASH_AT", crash_at.to_string());
        command
            .args(["store", "redact-keys", "--config"])
            .arg(dir.path().join("c.yaml"));
        command
            .arg("--state-dir")
            .arg(&state)
            .output()
            .unwrap()
            .status
    };
    assert!(run_until(0).success());
    let steps: u64 = std::fs::read_to_string(&steps)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(steps > 50, "{steps} steps");
    let mut killed = 0;
    for (round, crash_at) in (1..=steps)
        .step_by(usize::try_from(steps / 40).unwrap())
        .enumerate()
    {
        use std::os::unix::process::ExitStatusExt as _;
        killed += u64::from(run_until(crash_at).signal() == Some(9));
        let check = |when: &str| {
            let found = stored_events(&state);
            assert_eq!(found.len(), events.len(), "{when} {crash_at} of {steps}");
            for (found, given) in found.iter().zip(&events) {
                let same = if given.0 == "plain" {
                    found == given
                } else {
                    found.0 == given.0
                };
                assert!(
                    same,
                    "{when} {crash_at} of {steps}: {found:?} and not {given:?}"
                );
            }
        };
        if round % 2 == 0 {
            // A daemon started in between finds all entries.
            check("after step");
        }
        let (code, found) = redact_keys(dir.path(), &[]);
        assert_eq!(code, Some(0), "after step {crash_at} of {steps}: {found}");
        check("redacted again after step");
        let text = unpacked(&state);
        assert!(
            !text.contains(KEY) && !text.contains(old_key),
            "a key stayed after step {crash_at} of {steps}"
        );
        let (code, found) = redact_keys(dir.path(), &["--dry-run"]);
        assert_eq!((code, &found["entries"]), (Some(0), &0.into()), "{found}");
    }
    assert!(killed >= 35, "only {killed} were killed");
}

/// The files below a directory with these bytes in them.
fn grep(dir: &Path, bytes: &[u8]) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for item in std::fs::read_dir(dir)
        .unwrap()
        .map(|item| item.unwrap().path())
    {
        if item.is_dir() {
            found.extend(grep(&item, bytes));
        } else if memchr::memmem::find(&std::fs::read(&item).unwrap(), bytes).is_some() {
            found.push(item);
        }
    }
    found
}
