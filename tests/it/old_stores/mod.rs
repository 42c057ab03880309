//! Stores that earlier releases wrote: they open, and everything in them reads as it was written.
//!
//! `tests/data/store-<version>/` is a state directory as `kill -9` left it: sealed segments, and one of each class
//! that was growing. `tests/data/store-<version>.jsonl` is what must be read back: every entry, and what the
//! release that wrote the store answered to calls. [`make`] makes both for the version to come.

mod make;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rmpv::Value;
use saltcellar::clock::Clock;
use saltcellar::model::SeqNo;
use saltcellar::store::medium::Disk;
use saltcellar::store::{Classes, FreeSpace, Limits, Options, Store, StoredEntry};
use serde_json::{Value as Json, json};

use crate::harness::{Cellar, wait_for};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Copies a directory, each file through `convert`: its name and content there.
fn copy(from: &Path, to: &Path, convert: fn(String, Vec<u8>) -> (String, Vec<u8>)) {
    std::fs::create_dir_all(to).unwrap();
    for item in std::fs::read_dir(from).unwrap() {
        let item = item.unwrap();
        let name = item.file_name().into_string().unwrap();
        if item.path().is_dir() {
            copy(&item.path(), &to.join(name), convert);
        } else {
            let (name, content) = convert(name, std::fs::read(item.path()).unwrap());
            std::fs::write(to.join(name), content).unwrap();
        }
    }
}

/// A database of sled has half a megabyte at least, most of it zeros; so it is kept packed.
fn keep(name: String, content: Vec<u8>) -> (String, Vec<u8>) {
    if name == "db" { (name + ".zst", zstd::bulk::compress(&content, 19).unwrap()) } else { (name, content) }
}

fn unpack(name: String, content: Vec<u8>) -> (String, Vec<u8>) {
    match name.strip_suffix(".zst") {
        Some(name) => (name.to_owned(), zstd::bulk::decompress(&content, 64 << 20).unwrap()),
        None => (name, content),
    }
}

/// Bytes in a line: as they are, or packed if that is much shorter.
fn write_bytes(bytes: &[u8]) -> Json {
    let packed = zstd::bulk::compress(bytes, 19).unwrap();
    if packed.len() * 2 < bytes.len() {
        json!({ "zstd": BASE64.encode(packed), "len": bytes.len() })
    } else {
        Json::from(BASE64.encode(bytes))
    }
}

fn read_bytes(value: &Json) -> Vec<u8> {
    let bytes = |text: &Json| BASE64.decode(text.as_str().unwrap()).unwrap();
    match value.get("zstd") {
        Some(packed) => {
            let len = usize::try_from(value["len"].as_u64().unwrap()).unwrap();
            zstd::bulk::decompress(&bytes(packed), len).unwrap()
        }
        None => bytes(value),
    }
}

/// An entry as a line.
fn line(entry: &StoredEntry) -> Json {
    json!({
        "seq": entry.seq.0, "kind": entry.kind as u8, "source": entry.source as u8, "flags": entry.flags.0,
        "at": entry.at.0, "tag": write_bytes(&entry.tag), "jid": entry.jid, "minion": entry.minion,
        "fun": entry.fun, "retcode": entry.retcode, "body": write_bytes(&entry.body),
    })
}

/// The same values whatever packing was chosen.
fn unpacked(mut line: Json) -> Json {
    for key in ["tag", "body"] {
        line[key] = BASE64.encode(read_bytes(&line[key])).into();
    }
    line
}

struct Recorded {
    entries: Vec<Json>,
    /// Name, arguments, and the answer as msgpack.
    calls: Vec<(String, Json, Vec<u8>)>,
}

fn recorded(version: u32) -> Recorded {
    let text = std::fs::read_to_string(data(&format!("store-{version}.jsonl"))).unwrap();
    let mut recorded = Recorded { entries: Vec::new(), calls: Vec::new() };
    for line in text.lines() {
        let line: Json = serde_json::from_str(line).unwrap();
        if let Some(name) = line["call"].as_str() {
            recorded.calls.push((name.to_owned(), line["args"].clone(), read_bytes(&line["answer"])));
        } else {
            recorded.entries.push(unpacked(line));
        }
    }
    recorded
}

fn open(dir: &Path) -> Store {
    let options = Options {
        dir: dir.to_owned(),
        holder: "a test".to_owned(),
        clock: Clock::real(),
        metrics: Arc::default(),
        limits: Limits::default(),
        classes: Classes::default(),
        free: FreeSpace { low: Some(0), min: Some(0) },
        medium: Arc::new(Disk),
    };
    Store::open(&options).unwrap().store
}

/// Every entry is there under its number, and nothing else is.
fn compare_entries(store: &Store, expected: &[Json]) {
    let filter = saltcellar::model::EventFilter::default();
    let mut found = store.events_before(&filter, SeqNo(u64::MAX), usize::MAX, usize::MAX).unwrap();
    let jids: std::collections::BTreeSet<_> =
        expected.iter().map(|entry| entry["jid"].as_str().unwrap()).filter(|jid| !jid.is_empty()).collect();
    for jid in jids {
        found.extend(store.job_entries(jid).unwrap());
    }
    found.sort_by_key(|entry| entry.seq);
    found.dedup_by_key(|entry| entry.seq);
    let mut found: Vec<_> = found.iter().map(line).map(unpacked).collect();
    // A register belongs to no job and was on no bus: of those the last can be asked for.
    let is_register = |entry: &&Json| entry["kind"] == 8;
    let register = expected.iter().rfind(is_register).unwrap();
    assert_eq!(store.register().unwrap().unwrap(), read_bytes(&register["body"]));
    found.extend(expected.iter().filter(is_register).cloned());
    found.sort_by_key(|entry| entry["seq"].as_u64());
    let seqs = |list: &[Json]| list.iter().map(|entry| entry["seq"].to_string()).collect::<Vec<_>>();
    assert_eq!(seqs(&found), seqs(expected));
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found, expected);
    }
    let sums: u64 = store.classes().unwrap().iter().map(|class| class.sums.entries).sum();
    assert_eq!(sums, expected.len() as u64, "the sums over the classes");
    // Numbers that a killed daemon had set aside are passed over.
    assert!(store.durable().0 > expected.len() as u64);
}

/// What Salt asks for is answered as it was, to the byte; a list for people may say more than it did.
fn compare_answers(cellar: &Cellar, calls: &[(String, Json, Vec<u8>)]) {
    for (name, args, recorded) in calls {
        let args = args.as_object().unwrap().iter();
        let args: Vec<_> = args.map(|(key, value)| (key.as_str(), make::value_of(value))).collect();
        let mut found = cellar.ask(name, args.clone());
        let mut wanted = rmpv::decode::read_value(&mut recorded.as_slice()).unwrap();
        if name == "jobs_list" {
            let known: Vec<_> =
                wanted["jobs"][0].as_map().unwrap().iter().map(|(key, _)| key.clone()).collect();
            for answer in [&mut found, &mut wanted] {
                let Value::Map(pairs) = answer else { panic!("{answer}") };
                let rows = pairs.iter_mut().find(|(key, _)| key.as_str() == Some("jobs")).unwrap();
                let Value::Array(rows) = &mut rows.1 else { panic!("{rows:?}") };
                for row in rows {
                    let Value::Map(row) = row else { panic!("{row}") };
                    row.retain(|(key, _)| known.contains(key));
                }
            }
        }
        assert!(make::packed(&found) == make::packed(&wanted), "{name} {args:?}: {found}, recorded {wanted}");
    }
}

/// The store of a version, opened in process, then by a daemon, twice, the second time without anything made from
/// the log.
fn check(version: u32) {
    let expected = recorded(version);
    assert!(expected.entries.len() > 200 && expected.calls.len() > 50);
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    copy(&data(&format!("store-{version}")), &state, unpack);
    compare_entries(&open(&state), &expected.entries);
    let mut cellar = Cellar::start_on(dir);
    compare_answers(&cellar, &expected.calls);
    for counter in ["frames_damaged", "tail_bytes_cut", "indexes_rebuilt", "seals_failed"] {
        assert_eq!(cellar.counter(counter), 0, "{counter}:\n{}", cellar.log());
    }
    // It takes new entries too, behind the old ones.
    let event = Value::Map(vec![("tag".into(), "new".into()), ("data".into(), Value::Map(vec![]))]);
    cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
    let head = wait_for("the new entry", || cellar.ask("status", vec![])["head"].as_u64());
    assert!(head > expected.entries.len() as u64 + 1);
    assert_eq!(cellar.counter("entries_stored"), 1);
    assert!(cellar.terminate());
    std::fs::remove_dir_all(state.join("state")).unwrap();
    cellar.restart();
    compare_answers(&cellar, &expected.calls);
}

#[test]
fn a_store_of_format_3_opens_and_reads_as_it_was_written() {
    check(3);
}
