//! Filters, redaction and the built-in redaction of masters' keys, by every source of entries.

use std::path::Path;

use rmpv::Value;

use crate::bus_outages::{Bus, frame, unpacked};
use crate::fake_daemon::{program, stderr};
use crate::harness::{Asks as _, map, publish, wait_for};
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
