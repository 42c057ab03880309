//! The bus source during outages of the store, the disk, the master and the daemon.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rmpv::Value;
use saltcellar_testkit::Random;

use crate::harness::{Asks as _, Cellar, FakeBus, master_bus, publish, recording, wait_for};

pub(crate) fn frame(tag: &str, data: &Value) -> Vec<u8> {
    let mut body = format!("{tag}\n\n").into_bytes();
    rmpv::encode::write_value(&mut body, data).unwrap();
    frame_of(body)
}

fn frame_of(body: Vec<u8>) -> Vec<u8> {
    let map = Value::Map(vec![
        ("head".into(), Value::Map(vec![])),
        ("body".into(), Value::Binary(body)),
    ]);
    let mut out = Vec::new();
    rmpv::encode::write_value(&mut out, &map).unwrap();
    out
}

fn event(n: usize, bytes: usize) -> Vec<u8> {
    // Incompressible, because the limits count compressed bytes.
    let fill = Value::Binary(Random::new(n as u64).bytes(bytes));
    let data = vec![
        ("id".into(), "web1".into()),
        ("n".into(), n.into()),
        ("fill".into(), fill),
    ];
    frame(&format!("test/{n:06}"), &Value::Map(data))
}

fn events(range: std::ops::Range<usize>, bytes: usize) -> Vec<Vec<u8>> {
    range.map(|n| event(n, bytes)).collect()
}

/// Waits for `count` tags in the archive, and returns them in order.
fn tags(cellar: &Cellar, count: usize) -> Vec<String> {
    wait_for(&format!("{count} entries"), || {
        (cellar.counter("entries_stored") >= count as u64).then_some(())
    });
    all_tags(cellar)
}

fn all_tags(cellar: &Cellar) -> Vec<String> {
    let mut tags = Vec::new();
    let mut before = Value::Nil;
    loop {
        let page = cellar.ask(
            "events_list",
            vec![("limit", 10_000.into()), ("before", before.clone())],
        );
        let events = page["events"].as_array().unwrap();
        tags.extend(
            events
                .iter()
                .map(|event| event["tag"].as_str().unwrap().to_owned()),
        );
        if page["more"] != Value::from(true) {
            tags.reverse();
            return tags;
        }
        before = events.last().unwrap()["seq"].clone();
    }
}

fn wanted(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| format!("test/{n:06}")).collect()
}

fn of_bus(cellar: &Cellar, name: &str) -> u64 {
    cellar.ask("status", vec![])["bus"][0][name]
        .as_u64()
        .unwrap()
}

fn gaps(cellar: &Cellar) -> Vec<Value> {
    let page = cellar.ask(
        "events_list",
        vec![
            ("tag", "saltcellar/gap/*".into()),
            ("newest_first", false.into()),
        ],
    );
    page["events"].as_array().unwrap().clone()
}

pub(crate) struct Bus {
    dir: tempfile::TempDir,
    bus: FakeBus,
}

impl Bus {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bus = master_bus(dir.path());
        Self { dir, bus }
    }

    pub(crate) fn flag(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }

    pub(crate) fn subscriber(&self) -> UnixStream {
        self.bus.subscriber().unwrap()
    }
}

fn spill_files(cellar: &Cellar) -> Vec<PathBuf> {
    let dirs = std::fs::read_dir(cellar.state_dir().join("spill")).unwrap();
    let files = dirs.flat_map(|dir| std::fs::read_dir(dir.unwrap().path()).unwrap());
    let is_file = |path: &PathBuf| {
        path.extension()
            .is_some_and(|e| e == "spill" || e == "read")
    };
    files
        .map(|file| file.unwrap().path())
        .filter(is_file)
        .collect()
}

/// A disk on which syncs of the store's logs take longer than the test; the spill is not synced.
const STALLED: &str = "sync_delay_ms=60000";

#[test]
fn a_stalled_store_does_not_block_the_bus_and_events_keep_their_order() {
    let bus = Bus::new();
    let cellar = Cellar::start_on_disk_with("", &["--bus", bus.flag()]);
    let mut to = bus.subscriber();
    publish(&mut to, "len32", &events(0..1, 10));
    tags(&cellar, 1);
    cellar.plan_disk("sync_delay_ms=6000");
    // The writes do not block: the socket buffers 200 kB, and these are 40 MB.
    publish(&mut to, "len32", &events(1..401, 100_000));
    wait_for("the spill", || {
        (of_bus(&cellar, "spilled_events") > 50).then_some(())
    });
    assert!(of_bus(&cellar, "waiting_bytes") <= 8 << 20);
    assert!(!spill_files(&cellar).is_empty());
    cellar.plan_disk("");
    publish(&mut to, "len32", &events(401..500, 1_000));
    assert_eq!(tags(&cellar, 500), wanted(0..500));
    wait_for("the spill to be empty", || {
        spill_files(&cellar).is_empty().then_some(())
    });
    let counted =
        ["bus_events_lost", "bus_gaps", "spill_writes_failed"].map(|name| cellar.counter(name));
    assert_eq!(counted, [0; 3]);
    assert!(
        cellar.counter("bus_events_spilled") > 50
            && cellar.counter("bus_bytes_spilled") > 5_000_000
    );
}

#[test]
fn a_daemon_killed_with_a_full_spill_hands_it_over_at_its_next_start() {
    let bus = Bus::new();
    let mut cellar = Cellar::start_on_disk_with("", &["--bus", bus.flag()]);
    let mut to = bus.subscriber();
    publish(&mut to, "len32", &events(0..1, 10));
    tags(&cellar, 1);
    cellar.plan_disk(STALLED);
    publish(&mut to, "len32", &events(1..401, 100_000));
    wait_for("all to be read", || {
        (of_bus(&cellar, "events") == 401).then_some(())
    });
    // The spill is older than the events in memory.
    wait_for("memory to be emptied", || {
        (of_bus(&cellar, "waiting_bytes") < 4 << 20).then_some(())
    });
    cellar.kill();
    cellar.plan_disk("");
    cellar.restart();
    let mut to = bus.subscriber();
    publish(&mut to, "len32", &events(401..402, 10));
    wait_for("the last", || {
        all_tags(&cellar)
            .contains(&"test/000401".to_owned())
            .then_some(())
    });
    // The events in the queue and in memory are lost: two gaps, before and after the spilled events.
    let found = all_tags(&cellar);
    let [stored, survived, last] = found
        .split(|tag| tag == "saltcellar/gap/start-up")
        .collect::<Vec<_>>()[..]
    else {
        panic!("{found:?}")
    };
    let from = survived[0]
        .strip_prefix("test/")
        .unwrap()
        .parse::<usize>()
        .unwrap();
    assert!(
        survived.len() > 150 && stored.len() < from && from + survived.len() <= 401,
        "{found:?}"
    );
    assert_eq!(
        survived,
        wanted(from..from + survived.len()),
        "the spill, whole and in order"
    );
    assert_eq!(last, ["test/000401"]);
    for gap in gaps(&cellar) {
        assert_eq!(gap["source"], "saltcellar".into());
        assert!(
            gap["data"]["begin"].as_str() < gap["data"]["end"].as_str(),
            "{gap}"
        );
    }
    assert_eq!(cellar.counter("spill_events_found"), survived.len() as u64);
    assert_eq!(cellar.counter("bus_gaps"), 2);
}

#[test]
fn events_rejected_by_a_full_disk_are_stored_once_space_is_free() {
    let bus = Bus::new();
    let mut cellar = Cellar::start_on_disk_with("", &["--bus", bus.flag()]);
    let mut to = bus.subscriber();
    publish(&mut to, "plain", &events(0..5, 10));
    tags(&cellar, 5);
    // Free space is checked periodically.
    cellar.plan_disk("space=4096/100000000000");
    let full = |cellar: &Cellar| cellar.call("save_reg", vec![("data", 1.into())]).is_err();
    wait_for("the guard", || full(&cellar).then_some(()));
    publish(&mut to, "plain", &events(5..205, 1_000));
    wait_for("all to be read", || {
        (of_bus(&cellar, "events") == 205).then_some(())
    });
    wait_for("a refusal", || {
        (cellar.counter("bus_events_retried") > 0).then_some(())
    });
    assert_eq!(cellar.counter("bus_events_lost"), 0);
    // Not even a stop loses them.
    assert!(cellar.terminate());
    assert!(!spill_files(&cellar).is_empty());
    cellar.plan_disk("");
    cellar.restart();
    let found = tags(&cellar, 200);
    assert_eq!(found[..205], wanted(0..205), "no gap in between");
    assert_eq!(cellar.counter("spill_events_found"), 200);
}

#[test]
fn events_lost_by_a_full_spill_are_counted_and_recorded_as_gaps() {
    let bus = Bus::new();
    let cellar = Cellar::start_on_disk_with("", &["--bus", bus.flag()]);
    let mut to = bus.subscriber();
    publish(&mut to, "len32", &events(0..1, 10));
    tags(&cellar, 1);
    cellar.plan_disk("sync_delay_ms=4000 write=ENOSPC@1+:/spill/ create=ENOSPC@1+:/spill/");
    publish(&mut to, "len32", &events(1..601, 100_000));
    wait_for("all to be read", || {
        (of_bus(&cellar, "events") == 601).then_some(())
    });
    cellar.plan_disk("");
    wait_for("room", || {
        (of_bus(&cellar, "waiting_bytes") == 0).then_some(())
    });
    publish(&mut to, "len32", &events(601..602, 10));
    // Events are counted before they are lost; the losses are final once the next event is stored.
    let found = wait_for("the last", || {
        Some(all_tags(&cellar)).filter(|tags| tags.contains(&wanted(601..602)[0]))
    });
    let lost = usize::try_from(of_bus(&cellar, "lost")).unwrap();
    assert!(
        lost > 100 && cellar.counter("spill_writes_failed") > 0,
        "{lost}"
    );
    // Each gap record has the number of events missing at its position.
    let mut gaps = gaps(&cellar).into_iter().map(|gap| {
        assert_eq!(gap["tag"], "saltcellar/gap/overflow".into());
        usize::try_from(gap["data"]["lost"].as_u64().unwrap()).unwrap()
    });
    let mut next = 0;
    for tag in found {
        next = match tag.strip_prefix("test/") {
            Some(n) if n.parse() == Ok(next) => next + 1,
            Some(_) => panic!("{tag} where {next} should be"),
            None => next + gaps.next().unwrap(),
        };
    }
    assert_eq!((next, gaps.next()), (602, None));
    assert_eq!(cellar.counter("bus_events_lost"), lost as u64);
    cellar.logged("events are lost");
}

#[test]
fn the_configured_limit_of_the_spill_was_exceeded() {
    const MIB: u64 = 1 << 20;
    let bus = Bus::new();
    let yaml = format!("bus: [{}]\ningest:\n  spill_bytes_max: 16MiB\n", bus.flag());
    let cellar = Cellar::start_configured_on_disk(&yaml, "");
    let mut to = bus.subscriber();
    publish(&mut to, "len32", &events(0..1, 10));
    tags(&cellar, 1);
    cellar.plan_disk(STALLED);
    // The store's queue and the memory buffer hold 8 MiB each.
    publish(&mut to, "len32", &events(1..601, 100_000));
    wait_for("all to be read", || {
        (of_bus(&cellar, "events") == 601).then_some(())
    });
    wait_for("a loss", || (of_bus(&cellar, "lost") > 0).then_some(()));
    let (reported, bytes) = (of_bus(&cellar, "spilled_bytes"), spill_files(&cellar));
    let bytes: u64 = bytes
        .iter()
        .map(|path| std::fs::metadata(path).map_or(0, |found| found.len()))
        .sum();
    // One read of the bus may exceed the limit.
    assert!(
        (15 * MIB..=18 * MIB).contains(&bytes) && reported == bytes,
        "{bytes} bytes on disk, {reported} reported"
    );
}

#[test]
fn each_interruption_of_the_bus_is_a_gap_record() {
    let bus = Bus::new();
    let mut cellar = Cellar::start_with(&["--bus", bus.flag()]);
    let mut to = bus.subscriber();
    publish(&mut to, "len32", &events(0..2, 10));
    assert_eq!(
        tags(&cellar, 2),
        wanted(0..2),
        "nothing is known to be missing before the first start"
    );
    // The master restarts.
    drop(to);
    let mut to = bus.subscriber();
    publish(&mut to, "len32", &events(2..4, 10));
    tags(&cellar, 5);
    // The daemon restarts.
    assert!(cellar.terminate());
    drop(to);
    cellar.restart();
    let mut to = bus.subscriber();
    publish(&mut to, "len32", &events(4..6, 10));
    tags(&cellar, 3);
    let gap = |cause: &str| vec![format!("saltcellar/gap/{cause}")];
    let expected = [
        wanted(0..2),
        gap("disconnect"),
        wanted(2..4),
        gap("start-up"),
        wanted(4..6),
    ]
    .concat();
    assert_eq!(all_tags(&cellar), expected);
    for gap in gaps(&cellar) {
        let data = &gap["data"];
        assert!(
            data["bus"]
                .as_str()
                .unwrap()
                .ends_with("master_event_pub.ipc")
        );
        assert!(
            data["begin"].as_str() < data["end"].as_str() && data["seconds"].as_f64() > Some(0.0),
            "{gap}"
        );
        assert!(data["lost"].is_nil());
    }
    assert_eq!(of_bus(&cellar, "gaps"), 1, "since this start");
}

#[test]
fn a_master_that_stops_before_it_accepts_is_one_that_closes_the_bus() {
    let bus = Bus::new();
    let cellar = Cellar::start_with(&["--bus", bus.flag()]);
    wait_for("a connection", || {
        let status = cellar.ask("status", vec![]);
        status["bus"][0]["connected"].as_bool().filter(|is| *is)
    });
    // The connection waits in the queue of the listener, and is reset with it.
    drop(bus);
    cellar.logged("event bus closed by Salt, reconnecting");
    let log = cellar.log();
    assert!(!log.contains("event bus disconnected"), "{log}");
}

#[test]
fn a_quiet_bus_closes_its_gap_without_an_event() {
    let bus = Bus::new();
    let mut cellar = Cellar::start_with(&["--bus", bus.flag()]);
    let to = bus.subscriber();
    wait_for("a moment on the bus", || {
        let status = cellar.ask("status", vec![]);
        status["bus"][0]["safe_until"].as_i64()
    });
    assert!(cellar.terminate());
    drop(to);
    cellar.restart();
    let _to = bus.subscriber();
    assert_eq!(tags(&cellar, 1), ["saltcellar/gap/start-up"]);
}

#[test]
fn spills_of_removed_buses_are_drained() {
    let bus = Bus::new();
    let mut cellar = Cellar::start_on_disk_with("space=4096/100000000000", &["--bus", bus.flag()]);
    let mut to = bus.subscriber();
    publish(&mut to, "len32", &events(0..20, 10));
    wait_for("the events", || {
        (of_bus(&cellar, "events") == 20).then_some(())
    });
    assert!(cellar.terminate());
    cellar.plan_disk("");
    let other = Bus::new();
    cellar.restart_with(&["--bus", other.flag()]);
    assert_eq!(tags(&cellar, 20), wanted(0..20));
}

#[test]
fn a_burst_of_a_hundred_thousand_events_is_stored_completely() {
    let bus = Bus::new();
    let cellar = Cellar::start_with(&["--bus", bus.flag()]);
    let mut to = bus.subscriber();
    let mut bytes = Vec::new();
    for n in 0..100_000 {
        bytes.extend_from_slice(&event(n, 100));
    }
    to.write_all(&bytes).unwrap();
    wait_for("the store", || {
        (cellar.counter("entries_stored") == 100_000).then_some(())
    });
    let (found, wanted) = (all_tags(&cellar), wanted(0..100_000));
    let odd = (0..wanted.len()).find(|&at| found.get(at) != wanted.get(at));
    let around = odd.map(|at| {
        found
            .get(at.saturating_sub(1)..)
            .unwrap_or_default()
            .iter()
            .take(3)
    });
    assert!(
        found.len() == wanted.len() && odd.is_none(),
        "{} events; odd {odd:?}: {around:?}",
        found.len()
    );
    assert_eq!(
        (
            cellar.counter("bus_events_lost"),
            cellar.counter("bus_gaps")
        ),
        (0, 0)
    );
}

#[test]
fn bad_events_on_the_bus_are_logged_and_counted_without_affecting_others() {
    let bus = Bus::new();
    let cellar = Cellar::start_with(&["--bus", bus.flag()]);
    let mut to = bus.subscriber();
    let body = |body: &[u8]| {
        let map = Value::Map(vec![
            ("head".into(), Value::Map(vec![])),
            ("body".into(), Value::Binary(body.into())),
        ]);
        let mut out = Vec::new();
        rmpv::encode::write_value(&mut out, &map).unwrap();
        out
    };
    let stamped = |stamp: &str| {
        frame(
            "stamped",
            &Value::Map(vec![("_stamp".into(), stamp.into())]),
        )
    };
    let long = [&vec![b't'; 10 << 20][..], b"\n\n\x80"].concat();
    let mut no_body = Vec::new();
    rmpv::encode::write_value(
        &mut no_body,
        &Value::Map(vec![("a".into(), 1.into()), ("b".into(), 2.into())]),
    )
    .unwrap();
    let bad = [
        body(b"no tag"),
        body(&long),
        body(b"broken\n\n\x82\xa1"),
        body(b"no-map\n\n\x93\x01\x02\x03"),
        stamped("1999-12-31T23:59:59.000001"),
        stamped("9999-12-31T23:59:59.000001"),
        no_body,
    ];
    publish(&mut to, "len32", &bad);
    publish(&mut to, "len32", &events(0..1, 10));
    let expected = ["no-map", "stamped", "stamped", "test/000000"];
    assert_eq!(tags(&cellar, 4), expected);
    for (counter, count, words) in [
        (
            "events_dropped_without_tag",
            1,
            "reason=no tag: an event is its tag, two newlines, and msgpack",
        ),
        (
            "events_dropped_tag_too_long",
            1,
            "a tag of 10485760 bytes exceeds the limit of 65536",
        ),
        (
            "entries_rejected_unreadable",
            1,
            "msgpack ends inside a value",
        ),
        ("events_without_map", 1, "data is not a map"),
        (
            "event_timestamps_off",
            2,
            "stamp differs by more than a day",
        ),
        ("bus_frames_malformed", 1, ""),
    ] {
        assert_eq!(cellar.counter(counter), count, "{counter}");
        cellar.logged(words);
    }
}

/// A frame with this tag and so much data that the daemon does not read it.
fn too_large(tag: &str) -> Vec<u8> {
    frame_of([tag.as_bytes(), b"\n\n\x81\xa1x", &vec![7; 65 << 20]].concat())
}

#[test]
fn a_frame_that_is_too_large_is_a_loss_that_is_told_and_others_are_stored() {
    for framing in ["len32", "plain"] {
        let bus = Bus::new();
        let cellar = Cellar::start_with(&["--bus", bus.flag()]);
        let mut to = bus.subscriber();
        publish(&mut to, framing, &events(0..1, 10));
        let large = ["big/event", "salt/job/20261121054728123456/ret/web1"].map(too_large);
        publish(&mut to, framing, &large);
        publish(&mut to, framing, &events(1..2, 10));

        // The minion has answered.
        let answer = "salt/job/20261121054728123456/ret/web1";
        let expected = ["test/000000", answer, "test/000001"];
        assert_eq!(tags(&cellar, 3), expected, "{framing}");
        let job = cellar.ask("get_jid", vec![("jid", "20261121054728123456".into())]);
        let value = job["web1"]["return"].as_str().unwrap().to_owned();
        assert!(value.contains("too large to be stored: 681"), "{value}");

        for (counter, count) in [
            ("entries_rejected_too_large", 1),
            ("returns_without_value", 1),
            ("bus_frames_malformed", 0),
            ("bus_connects", 1),
            ("bus_gaps", 0),
        ] {
            assert_eq!(cellar.counter(counter), count, "{framing} {counter}");
        }
        for words in ["reason=an event of 681", "tag=big/event"] {
            cellar.logged(words);
        }
        let health = format!("{:?}", cellar.ask("status", vec![])["health"]);
        assert!(
            health.contains("entries_rejected_too_large is 1"),
            "{health}"
        );
    }
}

const RULES: &str = "
ingest:
  filter:
    - {name: pings, fun: test.ping, do: drop}
    - {name: lab, minion: 'lab-*', tag: 'test/*', do: drop}
  redact:
    - {name: passwords, builtin: passwords}
    - {name: keys, builtin: private_keys}
    - {name: pillar, builtin: pillar}
    - {name: cloud, patterns: 'AKIA[A-Z0-9]{4}'}
";

fn answer(jid: &str, fun: &str, value: Value) -> Value {
    Value::Map(vec![
        ("cmd".into(), "_return".into()),
        ("jid".into(), jid.into()),
        ("id".into(), "web1".into()),
        ("fun".into(), fun.into()),
        ("retcode".into(), 0.into()),
        ("success".into(), true.into()),
        ("return".into(), value),
        ("_stamp".into(), "2026-11-21T05:47:28.123456".into()),
    ])
}

#[test]
fn rules_apply_to_every_source_and_no_secret_reaches_the_disk() {
    let bus = Bus::new();
    let mut cellar = Cellar::start_configured(RULES, &["--bus", bus.flag()]);
    let mut to = bus.subscriber();
    let secrets = [
        "hunter2-secret",
        "MIIEsecretsecret",
        "pillar-secret",
        "AKIAQQ77",
    ];
    let inner = Value::Map(vec![
        ("password".into(), secrets[0].into()),
        (
            "key".into(),
            format!("-----BEGIN RSA PRIVATE KEY-----\n{}", secrets[1]).into(),
        ),
        ("text".into(), format!("use {} now", secrets[3]).into()),
    ]);
    let plain = answer("20261121054728000001", "x.y", inner.clone());
    let pillar = answer("20261121054728000002", "pillar.items", secrets[2].into());
    let ping = answer("20261121054728000003", "test.ping", true.into());
    for load in [&plain, &pillar, &ping] {
        let tag = format!("salt/job/{}/ret/web1", load["jid"].as_str().unwrap());
        publish(&mut to, "len32", &[frame(&tag, load)]);
        let event = Value::Map(vec![
            ("tag".into(), tag.as_str().into()),
            ("data".into(), load.clone()),
        ]);
        let events = Value::Array(vec![event]);
        assert_eq!(
            cellar.ask("event_return", vec![("events", events)]),
            1.into(),
            "dropped events are acknowledged, too"
        );
        cellar.ask("returner", vec![("load", load.clone())]);
    }
    let load = Value::Map(vec![
        ("fun".into(), "x.y".into()),
        ("arg".into(), Value::Array(vec![inner])),
    ]);
    cellar.ask(
        "save_load",
        vec![("jid", "20261121054728000001".into()), ("load", load)],
    );
    cellar.ask(
        "save_reg",
        vec![(
            "data",
            Value::Map(vec![("token".into(), secrets[0].into())]),
        )],
    );
    let data = Value::Map(vec![("id".into(), "lab-7".into())]);
    publish(&mut to, "len32", &[frame("test/lab", &data)]);
    publish(&mut to, "len32", &events(0..1, 10));
    wait_for("the last", || {
        all_tags(&cellar)
            .contains(&"test/000000".to_owned())
            .then_some(())
    });
    let ret = |n: u32| format!("salt/job/2026112105472800000{n}/ret/web1");
    let mut found = all_tags(&cellar);
    found.sort();
    assert_eq!(
        found,
        [ret(1), ret(2), "test/000000".to_owned()],
        "each once, by whichever source"
    );

    let jid = |n: u32| vec![("jid", Value::from(format!("2026112105472800000{n}")))];
    let returned = cellar.ask("get_jid", jid(1));
    assert_eq!(returned["web1"]["retcode"], 0.into());
    assert_eq!(returned["web1"]["success"], true.into());
    assert_eq!(returned["web1"]["return"]["password"], "[redacted]".into());
    assert_eq!(returned["web1"]["return"]["key"], "[redacted]".into());
    assert_eq!(
        returned["web1"]["return"]["text"],
        "use [redacted] now".into()
    );
    assert_eq!(
        cellar.ask("get_jid", jid(2))["web1"]["return"],
        "[redacted]".into()
    );
    assert_eq!(cellar.ask("get_jid", jid(3)), Value::Map(vec![]));
    assert_eq!(
        cellar.ask("get_load", jid(1))["arg"][0]["password"],
        "[redacted]".into()
    );
    assert_eq!(cellar.ask("load_reg", vec![])["token"], "[redacted]".into());

    let status = cellar.ask("status", vec![]);
    let count = |name: &str| {
        let rules = status["rules"].as_array().unwrap();
        let rule = rules
            .iter()
            .find(|rule| rule["name"] == name.into())
            .unwrap();
        ["entries", "filtered"].map(|key| rule[key].as_u64().unwrap())
    };
    assert_eq!((count("pings"), count("lab")), ([3, 3], [1, 1]));
    assert_eq!(
        (count("passwords"), count("pillar"), count("cloud")),
        ([5, 0], [3, 0], [4, 0])
    );
    assert_eq!(cellar.counter("entries_filtered"), 4);
    assert_eq!(cellar.counter("entries_redacted"), 8);
    // Blocks are compressed, so the entries are searched instead of the files.
    assert!(cellar.terminate());
    for secret in secrets {
        assert!(
            !unpacked(&cellar.state_dir()).contains(secret),
            "{secret} is on the disk"
        );
    }
}

/// Every entry of a store as text.
pub(crate) fn unpacked(state_dir: &std::path::Path) -> String {
    let options = saltcellar::daemon::store_options(
        &saltcellar::config::Config::for_state_dir(state_dir, "/s"),
        "the test".to_owned(),
        saltcellar::base::clock::Clock::real(),
    );
    let opened = saltcellar::store::Store::open(&options).unwrap();
    let filter = saltcellar::model::EventFilter::default();
    let before = saltcellar::model::SeqNo(u64::MAX);
    let events = opened
        .store
        .events_before(&filter, before, 1_000, usize::MAX)
        .unwrap();
    assert!(events.len() >= 3);
    let jobs = opened.store.jobs_before(None, 100).unwrap();
    let entries = jobs
        .iter()
        .flat_map(|(_, row)| opened.store.job_entries(&row.jid).unwrap());
    let bodies = events
        .into_iter()
        .chain(entries)
        .map(|entry| String::from_utf8_lossy(&entry.body).into_owned());
    let register = opened.store.register().unwrap().unwrap_or_default();
    bodies
        .chain([String::from_utf8_lossy(&register).into_owned()])
        .collect()
}

#[test]
fn recorded_buses_pass_rules_as_valid_msgpack() {
    for release in ["3006.28", "3007.15", "3008.3"] {
        let bus = Bus::new();
        let cellar = Cellar::start_configured(
            "ingest: {redact: [{builtin: passwords}, {builtin: pillar}, {keys: ['*a*'], patterns: ['[0-9]{3}']}]}",
            &["--bus", bus.flag()],
        );
        let (framing, frames) = recording(release);
        publish(&mut bus.subscriber(), &framing, &frames);
        // A busy host may interrupt the reading of the bus, which adds a record.
        let of_bus = || {
            let tags = all_tags(&cellar);
            tags.iter()
                .filter(|tag| !tag.starts_with("saltcellar/gap/"))
                .count()
        };
        wait_for("all frames", || (of_bus() >= frames.len()).then_some(()));
        assert_eq!(of_bus(), frames.len(), "{release}");
        let page = cellar.ask("events_list", vec![("limit", 10_000.into())]);
        for event in page["events"].as_array().unwrap() {
            assert!(event["data"].is_map(), "{release}: {event}");
        }
        assert!(
            cellar.counter("entries_redacted") > 20
                && cellar.counter("bodies_redacted_entirely") == 0
        );
    }
}
