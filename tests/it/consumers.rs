//! Consumers and `events tail`, over the local socket and on the command line.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::thread::Builder;

use rmpv::Value;
use saltcellar_testkit::Random;
use serde_json::Value as Json;

use crate::fake_daemon::{program, stderr};
use crate::harness::{Asks as _, Cellar, ended, master_bus, publish, wait_for};

fn next(cellar: &Cellar, limit: u64, wait_ms: u64) -> Vec<(u64, u64, String)> {
    let args = vec![
        ("name", "audit".into()),
        ("holder", "me".into()),
        ("limit", limit.into()),
        ("wait_ms", wait_ms.into()),
    ];
    let answer = cellar.ask("consumer_next", args);
    let one = |event: &Value| {
        let id = event["id"].as_str().unwrap().to_owned();
        (
            event["seq"].as_u64().unwrap(),
            event["data"]["n"].as_u64().unwrap(),
            id,
        )
    };
    answer["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(one)
        .collect()
}

fn ack(cellar: &Cellar, seq: u64) {
    cellar.ask(
        "consumer_ack",
        vec![
            ("name", "audit".into()),
            ("holder", "me".into()),
            ("seq", seq.into()),
        ],
    );
}

#[test]
fn after_kill_9_nothing_is_skipped_and_only_unacknowledged_events_are_repeated() {
    let mut cellar = Cellar::start();
    cellar.ask(
        "consumer_create",
        vec![("name", "audit".into()), ("to", "oldest".into())],
    );
    let mut random = Random::new(18);
    let (mut processed, mut acked, mut ids) = (Vec::new(), 0, std::collections::HashMap::new());
    for round in 0..6_u64 {
        cellar.store_numbered(round * 20..round * 20 + 20);
        let batch = next(&cellar, 13, 0);
        assert!(batch[0].1 >= acked, "an acknowledged event is redelivered");
        for (seq, n, id) in batch {
            assert_eq!(
                *ids.entry(n).or_insert_with(|| id.clone()),
                id,
                "the id of an event is stable"
            );
            processed.push(n);
            if random.below(3) > 0 {
                ack(&cellar, seq);
                acked = n + 1;
            }
        }
        cellar.kill();
        cellar.restart();
    }
    loop {
        let batch = next(&cellar, 1000, 0);
        let Some((last, ..)) = batch.last().cloned() else {
            break;
        };
        processed.extend(batch.iter().map(|(_, n, _)| *n));
        ack(&cellar, last);
    }
    processed.sort_unstable();
    processed.dedup();
    assert_eq!(processed, (0..120).collect::<Vec<_>>());
}

/// A running `events tail --output jsonl`.
struct Tail {
    process: saltcellar_testkit::usage::Process,
    lines: std::sync::mpsc::Receiver<Json>,
}

fn tail(cellar: &Cellar, args: &[&str]) -> Tail {
    let mut command = program();
    command
        .args(["events", "tail", "--output", "jsonl", "--socket"])
        .arg(cellar.socket())
        .args(args);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let (sender, lines) = std::sync::mpsc::sync_channel(10_000);
    Builder::new()
        .spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        })
        .unwrap();
    Tail {
        process: saltcellar_testkit::usage::Process(child),
        lines,
    }
}

#[test]
fn a_tail_joins_history_and_live_events_without_gap_or_duplicate() {
    let cellar = Cellar::start();
    cellar.store_numbered(0..300);
    std::thread::scope(|scope| {
        // Stored while the tail reads history and passes over to live events.
        let writes = Builder::new()
            .spawn_scoped(scope, || cellar.store_numbered(300..900))
            .unwrap();
        let since = tail(&cellar, &["--since", "1h", "--limit", "900"]);
        let found: Vec<u64> = (0..900)
            .map(|_| {
                saltcellar_testkit::receive(&since.lines)["data"]["n"]
                    .as_u64()
                    .unwrap()
            })
            .collect();
        assert_eq!(found, (0..900).collect::<Vec<_>>());
        writes.join().unwrap();
        let mut process = since.process;
        assert!(ended(&mut process.0).success(), "the limit ends it");
    });
    // Without a time, only new events that match.
    let live = tail(&cellar, &["--where", "data.retcode == 1"]);
    wait_for("the tail", || {
        (cellar.ask("status", vec![])["counters"]["calls"].as_u64() > Some(900)).then_some(())
    });
    let first = wait_for("an event", || {
        cellar.store_numbered(1000..1002);
        live.lines
            .recv_timeout(std::time::Duration::from_millis(200))
            .ok()
    });
    assert_eq!(first["tag"], "test/1001");
}

#[test]
fn a_tail_continues_at_its_position_after_the_daemon_was_killed() {
    let mut cellar = Cellar::start();
    cellar.store_numbered(0..3);
    let tail = tail(&cellar, &["--since", "1h"]);
    let next = || {
        saltcellar_testkit::receive(&tail.lines)["data"]["n"]
            .as_u64()
            .unwrap()
    };
    assert_eq!([next(), next(), next()], [0, 1, 2]);
    cellar.kill();
    cellar.restart();
    cellar.store_numbered(3..6);
    assert_eq!([next(), next(), next()], [3, 4, 5]);
}

#[test]
fn events_of_a_bus_reach_a_tail() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("bus")).unwrap();
    let bus = master_bus(&dir.path().join("bus"));
    let cellar = Cellar::start_in(dir, &["--bus", "DIR/bus"]);
    let mut master = bus.subscriber().unwrap();
    let live = tail(&cellar, &["--tag", "test/*"]);
    let mut frame = Vec::new();
    saltcellar_testkit::bus::put_frame(&mut frame, b"test/1\n\n\x81\xa1n\x01");
    let event = wait_for("an event of the bus", || {
        publish(&mut master, "plain", &[frame.clone()]);
        live.lines
            .recv_timeout(std::time::Duration::from_millis(300))
            .ok()
    });
    assert_eq!(
        (event["tag"].as_str(), event["source"].as_str()),
        (Some("test/1"), Some("bus"))
    );
}

#[test]
fn cursors_are_part_of_a_backup_and_survive_a_rebuild() {
    let mut cellar = Cellar::start();
    cellar.ask(
        "consumer_create",
        vec![("name", "audit".into()), ("to", "oldest".into())],
    );
    cellar.store_numbered(0..20);
    let batch = next(&cellar, 10, 0);
    ack(&cellar, batch[9].0);
    let state = cellar.state_dir();
    let (backup, restored) = (
        cellar.dir.path().join("backup"),
        cellar.dir.path().join("new/state"),
    );
    let store = |args: &[&str]| {
        let output = program().arg("store").args(args).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(0),
            "{args:?}: {}",
            stderr(&output)
        );
    };
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    store(&["backup", &text(&backup), "--state-dir", &text(&state)]);
    // Acknowledged after the backup.
    ack(&cellar, 15);
    assert!(cellar.terminate());
    store(&["rebuild", "--state-dir", &text(&state)]);
    cellar.restart();
    assert_eq!(next(&cellar, 1, 0)[0].0, 16);
    assert!(cellar.terminate());
    std::fs::create_dir(cellar.dir.path().join("new")).unwrap();
    store(&["restore", &text(&backup), &text(&restored)]);
    let new = tempfile::tempdir().unwrap();
    std::fs::rename(&restored, new.path().join("state")).unwrap();
    let cellar = Cellar::start_on(new);
    let batch = next(&cellar, 1, 0);
    assert_eq!(
        (batch[0].0, batch[0].1),
        (11, 10),
        "as at the time of the backup"
    );
}
