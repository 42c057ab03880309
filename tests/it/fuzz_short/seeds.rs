//! Seeds of each target: recordings of real buses, real stores, and output of the program's own encoders.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use rkyv::util::AlignedVec;
use rmpv::Value;
use saltcellar::base::clock::Micros;
use saltcellar::ingest::spill::file::DiskQueue;
use saltcellar::model::{Batch, Entry, Jid, Kind, SeqNo, Source};
use saltcellar::store::index::job::{Encoder, JobRecord};
use saltcellar::store::index::page::PageWriter;
use saltcellar::store::index::{
    Blocks, LatestJob, SegmentMetadata, TagTemplates, Totals, latest, minion,
};
use saltcellar::store::log::block::BlockView;
use saltcellar::store::log::builder::{BlockBuilder, Packer};
use saltcellar::store::log::file::BlockMeta;
use saltcellar::store::vfs::Disk;
use saltcellar::wire::call::request_frame;
use saltcellar::wire::frame::{Framing, body, fired};
use saltcellar::wire::salt_event::{event_entry, split};
use saltcellar::wire::signed::Envelope;
use saltcellar::wire::zmtp;

use crate::harness::{map, recording};

/// Keys and certificates for tests.
fn https_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("salt/tests/data/https")
}

/// The recordings of the crate that reads SLS files.
fn sls_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/salt-sls/tests/data")
}

/// Bodies of recorded buses: the first of each kind of tag, up to 4 kB.
fn bodies() -> Vec<Vec<u8>> {
    let mut found: Vec<Vec<u8>> = Vec::new();
    for release in ["3006.28", "3007.15", "3008.3"] {
        for frame in recording(release).1 {
            found.push(body(&frame).unwrap().to_vec());
        }
    }
    found.retain(|body| body.len() <= 4000);
    assert!(found.len() > 30, "{}", found.len());
    found
}

fn behind(byte: u8, rest: &[u8]) -> Vec<u8> {
    [&[byte], rest].concat()
}

fn packed(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    rmpv::encode::write_value(&mut out, value).unwrap();
    out
}

fn value(data: &[u8]) -> Value {
    rmpv::decode::read_value(&mut &*data).unwrap()
}

pub(super) fn frame() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (n, framing) in [(0_u8, Framing::Plain), (6, Framing::Len32)] {
        let frames: Vec<_> = bodies()
            .iter()
            .map(|body| split(body).map(|(t, d)| fired(framing, t, d)).unwrap())
            .collect();
        seeds.extend(frames.iter().map(|frame| behind(n, frame)));
        seeds.extend(frames.chunks(8).map(|frames| behind(n, &frames.concat())));
    }
    seeds
}

pub(super) fn salt_event() -> Vec<Vec<u8>> {
    bodies()
}

/// Calls of the extension: events in a batch, a load, a return, and each argument of the other calls.
fn requests() -> Vec<Vec<u8>> {
    let bodies = bodies();
    let events: Vec<_> = bodies.iter().filter_map(|body| split(body)).collect();
    let mut seeds = Vec::new();
    let mut request = |call: &str, args: Value| seeds.push(request_frame(7, call, &packed(&args)));
    for events in events.chunks(3) {
        let event = |(tag, data): &(&[u8], &[u8])| {
            map(vec![
                ("tag", Value::from(String::from_utf8_lossy(tag).as_ref())),
                ("data", value(data)),
            ])
        };
        request(
            "event_return",
            map(vec![(
                "events",
                Value::Array(events.iter().map(event).collect()),
            )]),
        );
    }
    for (tag, data) in &events {
        if tag.ends_with(b"/new") {
            let load = vec![
                ("jid", "20261121000000000001".into()),
                ("load", value(data)),
                ("minions", Value::Nil),
            ];
            request("save_load", map(load));
        } else if tag.windows(5).any(|part| part == b"/ret/") {
            request(
                "returner",
                map(vec![("load", value(data)), ("at", 1.into())]),
            );
        }
    }
    let many: Vec<_> = ["a", "b", "c", "d", "e", "f", "g", "h", "jid", "x"]
        .map(|key| (key, Value::from(1)))
        .to_vec();
    request("get_load", map(many));
    request(
        "jobs_list",
        map(vec![
            ("limit", 10.into()),
            ("id", 5.into()),
            ("count", Value::Nil),
            ("x", true.into()),
        ]),
    );
    seeds
}

pub(super) fn call() -> Vec<Vec<u8>> {
    requests().iter().map(|frame| frame[4..].to_vec()).collect()
}

pub(super) fn signed_batch() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for frames in requests().chunks(2) {
        let payload = frames.concat();
        let envelope = Envelope {
            time: Micros(1_795_000_000_000_000),
            challenge: [7; 16],
            number: 9,
            payload_digest: [8; 32],
            payload_len: u32::try_from(payload.len()).unwrap(),
            id: "web1",
        };
        seeds.push(behind(100, &[envelope.write(&[5; 64]), payload].concat()));
    }
    for name in ["minion-a.pem", "minion-a.pub", "server.pem", "ca.pem"] {
        let text = fs::read_to_string(https_dir().join(name)).unwrap();
        let inside: String = text
            .lines()
            .filter(|line| !line.starts_with("-----"))
            .collect();
        seeds.push(behind(
            0,
            &base64::engine::general_purpose::STANDARD
                .decode(inside)
                .unwrap(),
        ));
    }
    seeds
}

/// Tag and data of an event.
type Event<'a> = (&'a [u8], &'a [u8]);

/// Blocks of recorded events: head and bodies in the format of the target.
pub(super) fn block() -> Vec<Vec<u8>> {
    let (bodies, mut packer) = (bodies(), Packer::new().unwrap());
    let events: Vec<Event<'_>> = bodies.iter().filter_map(|body| split(body)).collect();
    let pack = |(n, events): (usize, &[Event<'_>])| {
        let mut builder = BlockBuilder::default();
        for (seq, (tag, data)) in (n as u64 * 100..).zip(events) {
            let at = Micros(1_763_700_237_000_000 + i64::try_from(seq).unwrap());
            builder
                .push(SeqNo(seq + 1), &event_entry(tag, data, Source::Bus, at))
                .unwrap();
        }
        let packed = builder.finish(&mut packer).unwrap();
        let len = u32::try_from(packed.head.len()).unwrap().to_le_bytes();
        [&len[..], packed.head.as_slice(), packed.bodies].concat()
    };
    events.chunks(9).enumerate().map(pack).collect()
}

/// Logs of a few frames with each kind of hostile body: intact, with a damaged first header, and with more damage.
pub(super) fn log() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for hostile in 0..7 {
        let frames = [[hostile, 0, 0, 0], [0, 0, 0, 0], [hostile, 1, 1, 3]].concat();
        let damages: [&[[u8; 4]]; 5] = [
            &[],
            &[[0x90, 5, 0, 3]],
            &[[0x90, 5, 0, 3], [0x06, 0, 8, 0]],
            &[[0x04, 5, 0, 9], [0x02, 0x40, 4, 9]],
            &[[0x90, 5, 0, 3], [0x07, 0, 0, 200]],
        ];
        seeds.extend(
            damages
                .iter()
                .map(|damage| behind(1, &[&frames[..], &damage.concat()].concat())),
        );
    }
    seeds
}

/// A page of each kind that the encoders write, and a manifest.
pub(super) fn pages() -> Vec<Vec<u8>> {
    let views: Vec<_> = block().iter().map(|seed| view(seed)).collect();
    let mut blocks = Blocks::default();
    let (mut templates, mut keys, mut offset) = (TagTemplates::default(), Vec::new(), 64);
    for view in &views {
        let (rows, (at_min, at_max)) = (view.rows(), view.rows().times());
        let (first_seq, last_seq) = (rows.seq(0), rows.seq(view.len() - 1));
        let count = u32::try_from(view.len()).unwrap();
        let meta = BlockMeta {
            offset,
            len: 4096,
            head_len: 1000,
            count,
            first_seq,
            last_seq,
            at_min,
            at_max,
        };
        offset = meta.end();
        blocks.push(meta, templates.bits(&view.rows().templates()));
        keys.extend((0..view.len()).filter_map(|i| view.rows().jid_key(i)));
    }
    keys.sort_unstable();
    keys.dedup();
    let metas = blocks.pages().next().unwrap().unwrap().to_vec();
    let sums = Totals {
        entries: 9,
        raw_bytes: 999,
        log_bytes: 500,
        first_seq: SeqNo(1),
        last_seq: SeqNo(20),
        ..Totals::default()
    };
    let facts = SegmentMetadata::new(sums, Some(SeqNo(3)), keys.iter().copied());

    let (mut encoder, mut jobs) = (Encoder::default(), Vec::new());
    for (n, key) in (0_u32..).zip(&keys) {
        let record = JobRecord {
            rank: u8::try_from(n % 3).unwrap(),
            nocache: n % 5 == 0,
            key: *key,
            text: b"a custom jid",
            first_at: i64::from(n) * 1000,
            load_seq: u64::from(n),
            load: b"\x82\xa3fun\xa9test.ping\xa3tgt\xa1*",
            endtime_seq: u64::from(n % 2),
            endtime: b"2026-11-21",
            count: 3,
            first: n,
        };
        encoder
            .push(&mut jobs, &record, n % 4, [n + 1, n + 9].into_iter())
            .unwrap();
    }

    let many: Vec<u32> = (0..300).collect();
    let [minions, names] = minion::pages(&[
        (b"db1", vec![1, 5, 900]),
        (b"web1", many),
        (b"web2", vec![]),
    ])
    .unwrap();
    let row = |fun: &[u8], minion: &[u8], seq, jid: &str| LatestJob {
        fun: fun.to_vec(),
        minion: minion.to_vec(),
        seq: SeqNo(seq),
        jid: Jid::of(jid),
    };
    let rows = [
        row(b"state.apply", b"web1", 5, "20261121000000000001"),
        row(b"state.apply", b"web2", 4, "20261121000000000001_77"),
        row(b"test.ping", b"db1", 9, "a custom jid"),
    ];
    let mut latest_writer = PageWriter::new().unwrap();
    latest::write(&mut latest_writer, &rows).unwrap();
    let mut seeds = vec![
        metas,
        templates.to_bytes().unwrap().to_vec(),
        facts.to_bytes().unwrap().to_vec(),
        jobs,
    ];
    // A page contains its codec in front: 0, as it is; or 1, a length and a frame of zstd.
    for (_, page) in minions
        .into_iter()
        .chain(names)
        .chain(latest_writer.pages())
    {
        let records = match page[0] {
            0 => page[1..].to_vec(),
            _ => zstd::bulk::decompress(&page[5..], 1 << 20).unwrap(),
        };
        seeds.push(records);
    }
    let log = "log jobs 7 log/jobs/7-0 64 05 64 -3 9 growing";
    let text =
        "saltcellar backup, format 1\nstore format 5\nmade 1 by saltcellar 0.1.0\nsequence 12";
    seeds.push(format!("{text}\n{log}\nsmall FORMAT FORMAT-1 1 02\nend 6 0\n").into_bytes());
    seeds
}

fn view(bytes: &[u8]) -> BlockView {
    let (len, rest) = bytes.split_first_chunk::<4>().unwrap();
    let (head, bodies) = rest.split_at(u32::from_le_bytes(*len) as usize);
    let mut aligned = AlignedVec::with_capacity(head.len());
    aligned.extend_from_slice(head);
    BlockView::new(aligned, Some(bodies.to_vec())).unwrap()
}

/// Streams of sockets: a greeting alone; commands and messages of one, two and more frames.
pub(super) fn zmtp() -> Vec<Vec<u8>> {
    let message = |parts: &[&[u8]]| {
        let mut out = Vec::new();
        zmtp::put_message(&mut out, parts);
        out
    };
    let mut seeds = vec![behind(3, &zmtp::greeting())];
    let mut stream = zmtp::ready(zmtp::SocketType::Pull);
    stream.extend(b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04PUSH");
    stream.extend(b"\x04\x0a\x04PING\0\x0aabc");
    for body in bodies() {
        let (tag, data) = split(&body).unwrap();
        let one = message(&[tag, b"\n\n", data]);
        let mut two = message(&[tag]);
        two[0] |= 1;
        two.extend(message(&[data]));
        let mut three = two.clone();
        three[0] |= 1;
        three.splice(0..0, b"\x01\x00".iter().copied());
        for (n, part) in [(0, &one), (7, &two), (31, &three)] {
            seeds.push(behind(n, part));
        }
        stream.extend([one, two].concat());
        if stream.len() < 8000 {
            seeds.push(behind(200, &stream));
        }
    }
    seeds
}

/// Files of a spill: of events, of damaged ones, with a gap's record, with a hole.
pub(super) fn spill() -> Vec<Vec<u8>> {
    let bodies = bodies();
    let mut seeds = Vec::new();
    for (n, some) in (0_u8..).zip(bodies.chunks(5)) {
        let mut batch = Batch::default();
        for body in some {
            let (tag, data) = split(body).unwrap();
            batch.push(
                &event_entry(tag, data, Source::Bus, Micros(1_795_000_000_000_000)),
                None,
            );
        }
        if n % 3 == 0 {
            let gap = Entry {
                kind: Kind::Gap,
                tag: b"saltcellar/gap/spill",
                body: b"\x81\xa3bus\xa1/",
                ..batch.entry(0).unwrap()
            };
            batch = Batch::of(&Entry {
                jid: "",
                minion: "",
                fun: "",
                ..gap
            });
        }
        let dir = tempfile::tempdir().unwrap();
        let (mut queue, _) =
            DiskQueue::open(Arc::new(Disk), &dir.path().join("spill/bus"), 7).unwrap();
        queue.append(&batch, 1).unwrap();
        queue.append(&batch, 1000 * u64::from(n % 2) + 100).unwrap();
        let file = fs::read_dir(queue.dir())
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        seeds.push(behind(n % 4, &fs::read(file).unwrap()));
    }
    seeds
}

/// Returns and events with values to redact, and ordinary ones.
pub(super) fn redact() -> Vec<Vec<u8>> {
    let pem = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n";
    let secrets = map(vec![
        ("password", "hunter2".into()),
        (
            "DB_SECRET",
            Value::Array(vec![1.into(), map(vec![("x", "y".into())])]),
        ),
        ("token", Value::Nil),
        ("name", "the key AKIA0123ABCD of AKIAZZZZ".into()),
        ("bytes", Value::Binary(b"\xff\xfeAKIA1234".to_vec())),
        ("key", format!("a\n{pem}b").into()),
        ("pin", 1234.into()),
        (
            "lines",
            Value::Array(pem.lines().map(Value::from).collect()),
        ),
    ]);
    let answer = |inner: Value| {
        map(vec![
            ("jid", "1".into()),
            ("id", "AKIA1234".into()),
            ("fun", "test.ping".into()),
            ("return", inner),
        ])
    };
    let load = Value::Array(vec![
        answer(secrets.clone()),
        Value::Array(vec!["web1".into()]),
    ]);
    let mut deep = secrets.clone();
    for _ in 0..600 {
        deep = Value::Array(vec![deep]);
    }
    let mut seeds = vec![behind(2, &packed(&load)), behind(0, &packed(&deep))];
    for kind in 0..4 {
        seeds.push(behind(kind, &packed(&secrets)));
        seeds.push(behind(kind, &packed(&answer(secrets.clone()))));
        seeds.push(behind(
            kind,
            &packed(&answer(Value::Array(vec![secrets.clone(), "x".into()]))),
        ));
    }
    // Each alone and in upper case, so that detection does not depend on the others.
    for (key, secret) in secrets.as_map().unwrap() {
        for key in [
            key.as_str().unwrap().to_lowercase(),
            key.as_str().unwrap().to_uppercase(),
        ] {
            seeds.push(behind(
                0,
                &packed(&map(vec![(key.as_str(), secret.clone())])),
            ));
            seeds.push(behind(
                1,
                &packed(&answer(map(vec![(key.as_str(), secret.clone())]))),
            ));
        }
    }
    seeds.extend(
        bodies()
            .iter()
            .map(|body| behind(1, split(body).unwrap().1)),
    );
    seeds
}

/// Recorded documents and the files of recorded events.
pub(super) fn sls_yaml() -> Vec<Vec<u8>> {
    let rows = |name: &str| {
        let text = fs::read_to_string(sls_dir().join(name)).unwrap();
        text.lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .collect::<Vec<_>>()
    };
    let text = |text: &serde_json::Value| text.as_str().unwrap().as_bytes().to_vec();
    let mut seeds: Vec<Vec<u8>> = rows("yaml.jsonl")
        .iter()
        .map(|row| text(&row["text"]))
        .collect();
    seeds.extend(rows("json.jsonl").iter().map(|row| text(&row["text"])));
    let files = rows("compile.jsonl");
    seeds.extend(
        files
            .iter()
            .flat_map(|row| row["files"].as_array().unwrap())
            .map(|file| text(&file[1])),
    );
    seeds
}

/// Templates rendered by Salt, some of each kind, and event data for a few of them.
pub(super) fn filter() -> Vec<Vec<u8>> {
    let conditions = [
        r#"data.retcode != 0 and data.fun is startingwith("state.")"#,
        r#"data["id"]|lower in ["web1", 'db1', none] or not (tag is matching("salt/*[0-9]"))"#,
        "1 < data.load <= 2.5e3 and data.fun_args[-1].test is true",
        "(data.a if data.b else data.c|default(-7))|length == 3 and data is mapping",
        "data.x is not defined and tag is endingwith('/ret')\n  and 'a' not in data.list",
    ];
    let bodies = bodies();
    let mut seeds: Vec<Vec<u8>> = conditions
        .iter()
        .map(|text| text.as_bytes().to_vec())
        .collect();
    for (condition, body) in conditions.iter().cycle().zip(bodies.iter().step_by(3)) {
        let data = split(body).map_or(&[][..], |(_, data)| data);
        seeds.push([condition.as_bytes(), b"\xff", data].concat());
    }
    seeds
}

/// Every construct along which minijinja's parser, its code generator or a destructor recurses, often enough to overflow a stack without a
/// limit, and less often.
pub(super) fn nesting() -> Vec<Vec<u8>> {
    // Beginning, repeated part, middle, part that is repeated as often behind it, end.
    let constructs = [
        ["data", ".a", "", "", ""],
        ["data", "[0]", "", "", ""],
        ["data", "['a']", "", "", ""],
        ["data", "[0:1]", "", "", ""],
        ["data", "()", "", "", ""],
        ["data", "|lower", "", "", ""],
        ["data", "|default(1)", "", "", ""],
        ["data", " is defined", "", "", ""],
        ["data", " is not defined", "", "", ""],
        ["data", " is true", "", "", ""],
        ["data", " is startingwith -1", "", "", ""],
        ["", "-", "1", "", ""],
        ["", "- ", "data.a", "", ""],
        ["", "not ", "data", "", ""],
        ["", "(", "data", ")", ""],
        ["", "[", "data", "]", ""],
        ["", "[data, ", "data", "]", ""],
        ["", "{'a': ", "data", "}", ""],
        ["", "{data: ", "data", "}", ""],
        ["data", "[data", "", "]", ""],
        ["", "(", "data", ",)", ""],
        ["", "data(", "data", ")", ""],
        ["", "data(a=", "data", ")", ""],
        ["", "data|default(", "1", ")", ""],
        ["", "data is startingwith(", "1", ")", ""],
        ["data", " + data", "", "", ""],
        ["data", " ~ data", "", "", ""],
        ["data", " * data", "", "", ""],
        ["2", " ** 2", "", "", ""],
        ["data", " and data", "", "", ""],
        ["data", " + data + data + data + data + and", "", "", ""],
        ["data", ".a.a.a.a.and", "", "", ""],
        ["data", " + data + data + data is f if", "", "", ""],
        [
            "data",
            " if data if data if data if data and data",
            "",
            "",
            "",
        ],
        ["data", " or data", "", "", ""],
        ["data", " == data", "", "", ""],
        ["data", " in data", "", "", ""],
        ["data", " not in data", "", "", ""],
        ["data", " if data", "", "", ""],
        ["", "data if data else ", "data", "", ""],
        ["", "(data if data else ", "data", ")", ""],
        ["", "{% if data %}", "x", "{% endif %}", ""],
        ["{% if data %}", "{% elif data %}", "x", "", "{% endif %}"],
        ["", "{% if data %}{% else %}", "x", "{% endif %}", ""],
        ["", "{% for x in [1] %}", "x", "{% endfor %}", ""],
        [
            "",
            "{% for x in data recursive %}{{ loop([[x]]) }}",
            "x",
            "{% endfor %}",
            "",
        ],
        ["", "{% with a=data %}", "x", "{% endwith %}", ""],
        ["", "{% set a %}", "x", "{% endset %}", ""],
        ["", "{% set a | upper %}", "x", "{% endset %}", ""],
        ["", "{% filter upper %}", "x", "{% endfilter %}", ""],
        ["", "{% autoescape false %}", "x", "{% endautoescape %}", ""],
        ["{% set x = 1 %}", "{% set x = [x] %}", "{{ x }}", "", ""],
        [
            "{% set x = 1 %}",
            "{% set x = [x]|list|batch(1) %}",
            "{{ x }}",
            "",
            "",
        ],
        [
            "{% set x = 1 %}",
            "{% set x = {'a': x} %}",
            "{{ x|tojson }}",
            "",
            "",
        ],
        [
            "{% set n = namespace(x=1) %}{% for i in range(9999) %}",
            "{% set n.x = [n.x] %}",
            "{% endfor %}{{ n.x }}",
            "",
            "",
        ],
        [
            "{% for x in [1] recursive %}",
            "",
            "{{ loop([[x]]) }}",
            "",
            "{% endfor %}",
        ],
        ["{% for ", "(", "a", ")", " in data %}{% endfor %}"],
        ["{% set ", "a.", "a", "", " = 1 %}"],
        ["{% set a", " | upper", "", "", " %}{% endset %}"],
        ["{% for x in data if ", "not ", "x", "", " %}{% endfor %}"],
        ["{% do ", "f(", "", ")", " %}"],
        ["{{ data.a", " }}{{ data.a", "", "", " }}"],
    ];
    let mut seeds = Vec::new();
    for parts in constructs {
        for count in [3_u16, 39, 49, 99, 1_900, u16::MAX] {
            let parts = parts.map(str::as_bytes).join(&0xff);
            seeds.push([&count.to_le_bytes()[..], &parts].concat());
        }
    }
    seeds
}

pub(super) fn sls_jinja() -> Vec<Vec<u8>> {
    let lines = fs::read_to_string(sls_dir().join("jinja-3008.3.jsonl")).unwrap();
    let templates = lines.lines().skip(1).step_by(5).map(|line| {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        case["t"].as_str().unwrap().as_bytes().to_vec()
    });
    let mut seeds: Vec<Vec<u8>> = templates.collect();
    for body in bodies().iter().step_by(4) {
        seeds.push(
            [
                b"{{ data|json }}{{ data }}{% for k, v in data.items() %}{{ k }}{{ v|yaml }}{% endfor %}\xff",
                &**body,
            ]
            .concat(),
        );
    }
    seeds
}

/// Patterns of reactors with tags, and edge cases of sets.
pub(super) fn fnmatch() -> Vec<Vec<u8>> {
    let inputs = [
        "salt/job/*/ret/*\nsalt/job/20261121/ret/web1",
        "salt/minion/*/start\nsalt/auth\n*\nsalt/minion/web1/start",
        "a*b*c\na**c\n*a?c\naXbYbZc",
        "web[0-9]\nweb[!0-9]\nweb[]x]\nweb[!]]\nweb5",
        "[a-cz-b-d]\n[--0]\n[!-a]\n[b-ax]\n[\n-",
        "caf?\ncaf\u{e9}\n[\u{e0}-\u{ff}]*\ncaf\u{e9}",
    ];
    inputs
        .iter()
        .map(|input| input.as_bytes().to_vec())
        .collect()
}
