//! Makes the store of a version, with the program of that version: see [`make_a_store`].

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rmpv::Value;
use saltcellar::api::client::Client;
use saltcellar::clock::Micros;
use saltcellar::model::{Entry, Flags, Kind, SeqNo, Source};
use saltcellar::store::StoredEntry;
use saltcellar::wire::{frame, salt_event};
use serde_json::{Value as Json, json};

use super::{copy, data, keep, line, write_bytes};
use crate::harness::{FakeBus, list, map, publish, recording, wait_for};

/// Small, so that a few hundred entries make several segments. Releases refuse less than 1 MiB: build the one that is to
/// make the store without that bound, it is in `config/keys.rs`.
const CONFIG: &str = "store:\n  segment_bytes_max: 10KiB\n";

/// When Salt made the first call, and how far the calls are apart.
const TIME: i64 = 1_795_240_048_123_456;

/// A value as msgpack.
pub(super) fn packed(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    bytes
}

/// What a line of JSON says, for arguments of calls: texts, numbers, truths.
pub(super) fn value_of(json: &Json) -> Value {
    match json {
        Json::String(text) => text.as_str().into(),
        Json::Number(n) => n.as_i64().unwrap().into(),
        Json::Bool(truth) => (*truth).into(),
        other => panic!("{other}"),
    }
}

/// The program of the version, its store, and what went into it.
struct Maker {
    dir: tempfile::TempDir,
    child: Child,
    bus: FakeBus,
    /// What must be read back, in the order of the log: entry `n` has sequence number `n + 1`.
    entries: Vec<StoredEntry>,
}

impl Maker {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.yaml"), CONFIG).unwrap();
        let bus = FakeBus::in_dir(dir.path());
        let child = serve(dir.path());
        Self { dir, child, bus, entries: Vec::new() }
    }

    fn stop(&mut self) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    fn ask(&self, call: &str, args: Vec<(&str, Value)>) -> Value {
        let socket = self.dir.path().join("s.sock");
        wait_for("the daemon", || Client::connect(&socket).ok()).call(call, map(args)).unwrap()
    }

    fn expect(&mut self, entry: &Entry<'_>) {
        self.entries.push(StoredEntry {
            seq: SeqNo(self.entries.len() as u64 + 1),
            kind: entry.kind,
            source: entry.source,
            flags: entry.flags,
            at: entry.at,
            tag: entry.tag.to_vec(),
            jid: entry.jid.to_owned(),
            minion: entry.minion.to_owned(),
            fun: entry.fun.to_owned(),
            retcode: entry.retcode,
            body: entry.body.to_vec(),
        });
    }

    fn wait_until_stored(&self) {
        wait_for("the store", || {
            let head = self.ask("status", vec![])["head"].as_u64().unwrap();
            (head == self.entries.len() as u64 + 1).then_some(())
        });
    }

    /// Frames on the bus; when they arrived is asked for in the end.
    fn on_the_bus(&mut self, frames: &[Vec<u8>]) {
        // The newest connection: a daemon that was started anew connects anew.
        publish(&mut self.bus.subscriber(), "len32", frames);
        for frame in frames {
            let (tag, body) = salt_event::split(frame::body(frame).unwrap()).unwrap();
            self.expect(&salt_event::event_entry(tag, body, Source::Bus, Micros(0)));
        }
        self.wait_until_stored();
    }

    fn event_return(&mut self, events: &[(Vec<u8>, Value)], replay: bool) {
        let at = self.now();
        let each = |(tag, data): &(Vec<u8>, Value)| {
            map(vec![("tag", Value::Binary(tag.clone())), ("data", data.clone())])
        };
        let list = Value::Array(events.iter().map(each).collect());
        let mut args = vec![("events", list), ("at", at.0.into()), ("import", true.into())];
        if replay {
            args.push(("replay", true.into()));
        }
        self.ask("event_return", args);
        let source = if replay { Source::SpooledEventReturn } else { Source::EventReturn };
        for (tag, data) in events {
            self.expect(&salt_event::event_entry(tag, &packed(data), source, at));
        }
        self.wait_until_stored();
    }

    fn now(&self) -> Micros {
        Micros(TIME + i64::try_from(self.entries.len()).unwrap() * 137_001)
    }

    /// A returner call that stores one entry.
    fn call(&mut self, call: &str, mut args: Vec<(&str, Value)>, entry: Entry<'_>) {
        let at = self.now();
        args.extend([("at", at.0.into()), ("import", true.into())]);
        self.ask(call, args);
        self.expect(&Entry { at, ..entry });
        self.wait_until_stored();
    }

    fn save_load(&mut self, jid: &str, load: &Value, minions: Value) {
        let fun = load["fun"].as_str().unwrap_or("");
        let body = packed(&Value::Array(vec![load.clone(), minions.clone()]));
        let kind = if load["return"].is_nil() { Kind::Load } else { Kind::ReturnLoad };
        let args = vec![("jid", jid.into()), ("load", load.clone()), ("minions", minions)];
        self.call("save_load", args, Entry { kind, jid, fun, body: &body, ..NOTHING });
    }

    fn returner(&mut self, jid: &str, minion: &str, value: Value, retcode: i64, replay: bool) {
        let load = a_return(jid, minion, value, retcode);
        let body = packed(&load);
        let tag = format!("salt/job/{jid}/ret/{minion}");
        let flags = salt_event::peek(&body).flags().with(Flags::ON_BUS);
        let mut args = vec![("load", load)];
        let mut source = Source::Returner;
        if replay {
            args.push(("replay", true.into()));
            source = Source::SpooledReturner;
        }
        let kind = Kind::Return;
        let entry = Entry { kind, source, flags, tag: tag.as_bytes(), jid, minion, retcode, ..NOTHING };
        self.call("returner", args, Entry { fun: "test.ping", body: &body, ..entry });
    }

    /// Everything that the other calls store.
    fn facts(&mut self, jid: &str, register: &Value) {
        let minions = list(["syndic-web1", "syndic-web2"]);
        let body = packed(&Value::Array(vec![minions.clone(), "syndic1".into()]));
        let args = vec![("jid", jid.into()), ("minions", minions), ("syndic_id", "syndic1".into())];
        self.call("save_minions", args, Entry { kind: Kind::Minions, jid, body: &body, ..NOTHING });
        let endtime = "2026, Nov 21 03:10:01.000001";
        let body = packed(&endtime.into());
        let args = vec![("jid", jid.into()), ("endtime", endtime.into())];
        self.call("update_endtime", args, Entry { kind: Kind::Endtime, jid, body: &body, ..NOTHING });
        let jid = format!("{jid}-uncached");
        let args = vec![("passed_jid", jid.as_str().into()), ("nocache", true.into())];
        let body = packed(&Value::Nil);
        self.call("prep_jid", args, Entry { kind: Kind::NoCache, jid: &jid, body: &body, ..NOTHING });
        let body = packed(register);
        let args = vec![("data", register.clone())];
        self.call("save_reg", args, Entry { kind: Kind::Register, body: &body, ..NOTHING });
    }

    /// When the events arrived, from the store itself; and whether its numbers are as expected.
    fn learn_times(&mut self) {
        let args = vec![("limit", 10_000.into()), ("newest_first", false.into())];
        let page = self.ask("events_list", args);
        let events = page["events"].as_array().unwrap();
        let mut shown = events.iter();
        for entry in self.entries.iter_mut().filter(|entry| entry.flags.has(Flags::ON_BUS)) {
            let event = shown.next().unwrap();
            let tag = String::from_utf8_lossy(&entry.tag).into_owned();
            assert_eq!(
                (event["seq"].as_u64(), event["tag"].as_str()),
                (Some(entry.seq.0), Some(tag.as_str()))
            );
            entry.at = Micros(event["time"].as_i64().unwrap());
        }
        assert!(shown.next().is_none());
    }

    /// What the release answers, as lines.
    fn answers(&self) -> Vec<Json> {
        let mut calls = vec![
            ("get_jids", json!({})),
            ("get_jids_filter", json!({"count": 7, "filter_find_job": true})),
            ("jobs_list", json!({"limit": 1000, "find_job": true})),
            ("get_minions", json!({})),
            ("get_fun", json!({"fun": "test.ping"})),
            ("load_reg", json!({})),
        ];
        let mut jids: Vec<_> =
            self.entries.iter().map(|entry| &entry.jid).filter(|j| !j.is_empty()).collect();
        jids.sort();
        jids.dedup();
        for jid in jids {
            calls.extend(["get_load", "get_jid", "get_endtime"].map(|call| (call, json!({"jid": jid}))));
        }
        let answer = |(call, args): (&str, Json)| {
            let pairs = args.as_object().unwrap().iter();
            let value = self.ask(call, pairs.map(|(k, v)| (k.as_str(), value_of(v))).collect());
            json!({"call": call, "args": args, "answer": write_bytes(&packed(&value))})
        };
        calls.into_iter().map(answer).collect()
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An entry of a returner call with nothing in it.
const NOTHING: Entry<'static> = Entry {
    kind: Kind::Event,
    source: Source::Returner,
    flags: Flags(0),
    at: Micros(0),
    tag: b"",
    jid: "",
    minion: "",
    fun: "",
    retcode: 0,
    body: b"",
};

fn serve(dir: &Path) -> Child {
    let program = std::env::var_os("STORE_BIN").expect("STORE_BIN names the program that makes the store");
    let log = std::fs::OpenOptions::new().create(true).append(true).open(dir.join("log")).unwrap();
    let mut command = Command::new(program);
    command.args(["serve", "--config"]).arg(dir.join("config.yaml")).arg("--bus").arg(dir);
    command.arg("--state-dir").arg(dir.join("state")).arg("--socket").arg(dir.join("s.sock"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

fn a_load(jid: &str, tgt: &str) -> Value {
    map(vec![
        ("cmd", "publish".into()),
        ("tgt", tgt.into()),
        ("fun", "test.ping".into()),
        ("arg", list(["a", "\u{fc}ml\u{e4}ut"])),
        ("tgt_type", "glob".into()),
        ("ret", "".into()),
        ("jid", jid.into()),
        ("kwargs", map(vec![("metadata", map(vec![("why", "kept".into())]))])),
        ("user", "root".into()),
    ])
}

fn a_return(jid: &str, minion: &str, value: Value, retcode: i64) -> Value {
    map(vec![
        ("cmd", "_return".into()),
        ("id", minion.into()),
        ("success", (retcode == 0).into()),
        ("return", value),
        ("retcode", retcode.into()),
        ("jid", jid.into()),
        ("fun", "test.ping".into()),
        ("_stamp", "2026-11-21T03:09:55.600000+00:00".into()),
    ])
}

/// A frame as a publisher writes it.
fn a_frame(tag: &[u8], data: &[u8]) -> Vec<u8> {
    let body = [tag, b"\n\n", data].concat();
    packed(&map(vec![("head", map(vec![])), ("body", Value::Binary(body))]))
}

/// Tags and data as nobody should send them, and somebody will.
fn odd_events() -> Vec<(Vec<u8>, Value)> {
    vec![
        (b"\xff\xfe not text".to_vec(), map(vec![("x", 1.into())])),
        (b"\x00\x01\x02".to_vec(), map(vec![])),
        (b"salt/job/\x01/ret/\x02".to_vec(), map(vec![])),
        ("gr\u{fc}n/\u{1f9c2}".into(), Value::Nil),
        (b"a line\nand another".to_vec(), Value::from(-5)),
        ([b"long/".as_slice(), &[b'x'; 3000]].concat(), list(["a", "b"])),
        (b"salt/job/not a jid/ret/web1".to_vec(), map(vec![("id", "web2".into())])),
        (b"salt/run/20261121031000000001/new".to_vec(), map(vec![("fun", "runner.jobs".into())])),
        (b"salt/beacon/web1/status/2026".to_vec(), map(vec![("nan", Value::F64(f64::NAN))])),
        (b"ext".to_vec(), Value::Ext(78, b"20261121T03:10:00.000000".to_vec())),
    ]
}

fn jid(n: usize) -> String {
    match n % 5 {
        0..3 => format!("2026112103095550{n:04}"),
        3 => format!("2026112103095550{n:04}_{}", 4000 + n),
        _ => format!("by hand, no. {n}"),
    }
}

/// The first half is stopped in order, which seals it; the second is killed.
fn fill(maker: &mut Maker, half: usize) {
    let (_, frames) = recording(["3006.28", "3008.3"][half]);
    maker.on_the_bus(&frames);
    // Neither msgpack nor text; and what was there before, by another door: stored once.
    maker.bus = FakeBus::in_dir(maker.dir.path());
    let garbage = a_frame(b"\xc1\xc1", format!("\u{c1}\n\nhalf {half}").as_bytes());
    maker.on_the_bus(&[garbage]);
    let (tag, body) = salt_event::split(frame::body(&frames[3]).unwrap()).unwrap();
    let again = map(vec![
        ("tag", Value::Binary(tag.to_vec())),
        ("data", rmpv::decode::read_value(&mut &body[..]).unwrap()),
    ]);
    maker.ask("event_return", vec![("events", Value::Array(vec![again]))]);
    if half == 0 {
        maker.event_return(&odd_events(), false);
    } else {
        let spooled = |(tag, data): (Vec<u8>, Value)| ([b"spooled/".as_slice(), &tag].concat(), data);
        maker.event_return(&odd_events().into_iter().map(spooled).collect::<Vec<_>>(), true);
    }
    let minions = ["web1", "db1.example", "m\u{fc}hle", "a/b c"];
    let retcodes = [0, 1, 0, -7];
    for n in (0..12).map(|n| half * 12 + n) {
        let jid = jid(n);
        if n % 4 < 3 {
            let expected = if n % 2 == 0 { list(minions) } else { Value::Nil };
            maker.save_load(&jid, &a_load(&jid, &format!("web{n}*")), expected);
        } else {
            maker.save_load(&jid, &a_return(&jid, "web1", n.into(), 0), Value::Nil);
        }
        for (minion, retcode) in minions.into_iter().zip(retcodes).take(n % 5) {
            let value = map(vec![("n", n.into()), ("blob", Value::Binary(vec![0xc1; 40]))]);
            maker.returner(&jid, minion, value, retcode, retcode < 0);
        }
    }
    // One that fills a block of its own.
    let large = format!("half {half} ").repeat(40_000);
    maker.returner(&jid(half * 12), "large", large.into(), 0, false);
    maker.facts(&jid(half * 12), &map(vec![("register", half.into())]));
}

#[test]
#[ignore = "makes tests/data/store-<STORE_VERSION> with the program STORE_BIN; see tests/data/README.md"]
fn make_a_store() {
    let version = std::env::var("STORE_VERSION").expect("STORE_VERSION is the version of the format");
    let mut maker = Maker::start();
    fill(&mut maker, 0);
    maker.stop();
    maker.bus = FakeBus::in_dir(maker.dir.path());
    maker.child = serve(maker.dir.path());
    fill(&mut maker, 1);
    maker.learn_times();
    let answers = maker.answers();
    maker.child.kill().unwrap();
    maker.child.wait().unwrap();
    let into = data(&format!("store-{version}"));
    let _ = std::fs::remove_dir_all(&into);
    copy(&maker.dir.path().join("state"), &into, keep);
    let mut lines = std::fs::File::create(data(&format!("store-{version}.jsonl"))).unwrap();
    for line in maker.entries.iter().map(line).chain(answers) {
        writeln!(lines, "{line}").unwrap();
    }
    eprintln!("{} entries", maker.entries.len());
}
