//! The bus source with recorded buses.

use std::fs;

use rmpv::Value;
use saltcellar::wire::{frame, salt_event};

use crate::harness::{Asks as _, Cellar, FakeBus, master_bus, publish, recording, wait_for};

const RELEASES: [&str; 3] = ["3006.28", "3007.15", "3008.3"];

fn with_bus() -> (tempfile::TempDir, FakeBus, Cellar) {
    let dir = tempfile::tempdir().unwrap();
    let bus = master_bus(dir.path());
    let cellar = Cellar::start_with(&["--bus", dir.path().to_str().unwrap()]);
    (dir, bus, cellar)
}

fn tags_and_data(frames: &[Vec<u8>]) -> Vec<(String, Value)> {
    let split = |f: &Vec<u8>| {
        let (tag, data) = salt_event::split(frame::body(f).unwrap()).unwrap();
        (
            String::from_utf8_lossy(tag).into_owned(),
            rmpv::decode::read_value(&mut &data[..]).unwrap(),
        )
    };
    frames.iter().map(split).collect()
}

fn archived(cellar: &Cellar, count: usize) -> Vec<(String, Value)> {
    wait_for("the store", || {
        let stored = cellar.counter("entries_stored") + cellar.counter("duplicates_folded");
        (stored >= count as u64).then_some(())
    });
    let page = cellar.ask(
        "events_list",
        vec![("limit", 10_000.into()), ("newest_first", false.into())],
    );
    let event = |e: &Value| (e["tag"].as_str().unwrap().to_owned(), e["data"].clone());
    page["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(event)
        .collect()
}

/// Whether two values have the same bytes; NaN equals itself.
fn assert_same(found: &[(String, Value)], expected: &[(String, Value)]) {
    assert_eq!(found.len(), expected.len());
    let bytes = |v: &Value| {
        let mut out = Vec::new();
        rmpv::encode::write_value(&mut out, v).unwrap();
        out
    };
    for ((tag, data), (wanted_tag, wanted)) in found.iter().zip(expected) {
        assert_eq!(tag, wanted_tag);
        assert_eq!(bytes(data), bytes(wanted), "{tag}");
    }
}

#[test]
fn recorded_buses_of_three_releases_are_archived_as_they_were() {
    for release in RELEASES {
        let (_dir, bus, cellar) = with_bus();
        let (framing, frames) = recording(release);
        let mut to = bus.subscriber().unwrap();
        publish(&mut to, &framing, &frames);
        assert_same(&archived(&cellar, frames.len()), &tags_and_data(&frames));
        let status = cellar.ask("status", vec![]);
        assert_eq!(
            status["bus"][0]["framing"],
            framing.as_str().into(),
            "{release}"
        );
        assert_eq!(cellar.counter("bus_frames_malformed"), 0);
    }
}

/// Events are gathered while no reader waits for them; neither a stop nor a closed bus loses those.
#[test]
fn gathered_events_are_stored_at_a_stop_and_at_a_disconnect() {
    let (framing, frames) = recording("3008.3");
    let (_dir, bus, mut cellar) = with_bus();
    let mut to = bus.subscriber().unwrap();
    publish(&mut to, &framing, &frames[..5]);
    wait_for("the source to read", || {
        (cellar.counter("bus_events") == 5).then_some(())
    });
    assert!(cellar.terminate());
    cellar.restart();
    publish(&mut bus.subscriber().unwrap(), &framing, &frames[5..10]);
    let mut found = Vec::new();
    wait_for("all events", || {
        found = archived(&cellar, 1);
        found.retain(|(tag, _)| !tag.starts_with("saltcellar/"));
        (found.len() >= 10).then_some(())
    });
    assert_same(&found, &tags_and_data(&frames[..10]));
}

#[test]
fn recorded_buses_of_minions_are_archived_as_they_were() {
    for release in ["3006.28.minion", "3008.3.minion"] {
        let dir = tempfile::tempdir().unwrap();
        // The name contains a hash of the minion's id.
        let bus = FakeBus::listen(&dir.path().join("minion_event_6fbb1ab0cc_pub.ipc")).unwrap();
        let cellar = Cellar::start_with(&["--bus", dir.path().to_str().unwrap()]);
        let (framing, frames) = recording(release);
        assert!(frames.len() > 100, "{release}");
        let mut to = bus.subscriber().unwrap();
        publish(&mut to, &framing, &frames);
        assert_same(&archived(&cellar, frames.len()), &tags_and_data(&frames));
        let status = cellar.ask("status", vec![]);
        assert_eq!(
            status["bus"][0]["framing"],
            framing.as_str().into(),
            "{release}"
        );
        assert!(
            status["bus"][0]["path"]
                .as_str()
                .unwrap()
                .contains("minion_event_"),
            "{release}"
        );
        assert_eq!(cellar.counter("bus_frames_malformed"), 0);
    }
}

#[test]
fn a_master_that_is_upgraded_may_change_its_framing() {
    let (dir, bus, cellar) = with_bus();
    let (_, frames) = recording("3008.3");
    let (before, after) = frames.split_at(frames.len() / 2);
    let mut to = bus.subscriber().unwrap();
    publish(&mut to, "plain", before);
    archived(&cellar, before.len());
    drop((to, bus));
    let bus = master_bus(dir.path());
    let mut to = bus.subscriber().unwrap();
    publish(&mut to, "len32", after);
    let found = archived(&cellar, frames.len() + 1);
    let (gaps, found): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|(tag, _)| tag.starts_with("saltcellar/"));
    assert_same(&found, &tags_and_data(&frames));
    assert_eq!(
        (gaps.len(), gaps[0].0.as_str()),
        (1, "saltcellar/gap/disconnect")
    );
    assert_eq!(cellar.counter("bus_connects"), 2);
}

#[test]
fn the_bus_may_start_after_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let sock_dir = dir.path().join("later");
    let cellar = Cellar::start_with(&["--bus", sock_dir.to_str().unwrap()]);
    fs::create_dir(&sock_dir).unwrap();
    let bus = master_bus(&sock_dir);
    let (_, frames) = recording("3007.15");
    publish(&mut bus.subscriber().unwrap(), "plain", &frames[..5]);
    assert_same(&archived(&cellar, 5), &tags_and_data(&frames[..5]));
}

#[test]
fn garbage_on_the_bus_ends_the_connection_not_the_daemon() {
    let (_dir, bus, cellar) = with_bus();
    let (_, frames) = recording("3008.3");
    publish(
        &mut bus.subscriber().unwrap(),
        "plain",
        &[vec![0x82, 0xc1, 0, 0, 0, 0, 0, 0]],
    );
    publish(
        &mut bus.subscriber().unwrap(),
        "plain",
        &[b"GET / HTTP/1.1".to_vec()],
    );
    let mut to = bus.subscriber().unwrap();
    // A frame without a tag is counted and skipped.
    let no_tag = vec![
        0x82, 0xa4, b'h', b'e', b'a', b'd', 0x80, 0xa4, b'b', b'o', b'd', b'y', 0xc4, 1, b'x',
    ];
    publish(&mut to, "len32", &[no_tag]);
    publish(&mut to, "len32", &frames[..3]);
    let found = archived(&cellar, 4);
    assert_eq!(
        found[0].0, "saltcellar/gap/framing",
        "one gap for all attempts"
    );
    assert_same(&found[1..], &tags_and_data(&frames[..3]));
    let counted = [
        "bus_frames_malformed",
        "bus_framings_unknown",
        "events_dropped_without_tag",
        "bus_gaps",
    ];
    assert_eq!(counted.map(|name| cellar.counter(name)), [1, 1, 1, 1]);
    for words in [
        "invalid msgpack byte 0xc1",
        "47, 45, 54, 20",
        "no tag: an event is its tag",
    ] {
        cellar.logged(words);
    }
}

#[test]
fn events_from_the_bus_and_event_return_are_stored_once() {
    let (_dir, bus, cellar) = with_bus();
    let (framing, frames) = recording("3008.3");
    let events = tags_and_data(&frames);
    let batch: Vec<Value> = events
        .iter()
        .map(|(tag, data)| {
            Value::Map(vec![
                ("tag".into(), tag.as_str().into()),
                ("data".into(), data.clone()),
            ])
        })
        .collect();
    let mut to = bus.subscriber().unwrap();
    // event_return is ahead of the bus for the first half, and behind for the second.
    let half = batch.len() / 2;
    cellar.ask(
        "event_return",
        vec![("events", Value::Array(batch[..half].to_vec()))],
    );
    publish(&mut to, &framing, &frames);
    // The first half has arrived twice now.
    archived(&cellar, half + frames.len());
    cellar.ask(
        "event_return",
        vec![("events", Value::Array(batch[half..].to_vec()))],
    );
    assert_same(&archived(&cellar, 2 * frames.len()), &events);
    let counters =
        ["bus_events", "event_return_events", "duplicates_folded"].map(|name| cellar.counter(name));
    assert_eq!(counters, [frames.len() as u64; 3]);
}
