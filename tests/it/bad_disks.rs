//! Full, failing and slow disks under the real program: callers get errors, and no acknowledged entry is lost.

#![cfg(debug_assertions)]

use rmpv::Value;
use saltcellar::api::client::ClientError;

use crate::harness::{Asks as _, Cellar, map, wait_for};

fn jid(n: u64) -> String {
    format!("20261121030955{n:06}")
}

fn put(cellar: &Cellar, n: u64) -> Result<Value, ClientError> {
    let load = map(vec![
        ("jid", jid(n).into()),
        ("id", "web1".into()),
        ("fun", "test.ping".into()),
        ("return", n.into()),
    ]);
    cellar.call("returner", vec![("load", load)])
}

fn check(cellar: &Cellar, numbers: impl IntoIterator<Item = u64>) {
    for n in numbers {
        let found = cellar.ask("get_jid", vec![("jid", jid(n).into())]);
        assert_eq!(found["web1"]["return"], n.into(), "return {n}");
    }
}

#[test]
fn callers_get_errors_while_the_disk_is_full() {
    let mut cellar = Cellar::start_on_disk("");
    (0..20).for_each(|n| drop(put(&cellar, n).unwrap()));
    cellar.plan_disk("room=100");
    for n in 20..25 {
        let Err(ClientError::Refused { code, message }) = put(&cellar, n) else {
            panic!("the entry was stored")
        };
        assert!(
            message.contains("No space left on device"),
            "{code}: {message}"
        );
    }
    assert!(cellar.counter("entries_failed") >= 5);
    check(&cellar, 0..20);
    cellar.plan_disk("");
    // The status measures the free space.
    wait_for("room", || {
        (cellar.ask("store_stats", vec![])["space"]["state"] == "ample".into()).then_some(())
    });
    (20..30).for_each(|n| drop(put(&cellar, n).unwrap()));
    check(&cellar, 0..30);
    cellar.kill();
    cellar.restart();
    check(&cellar, 0..30);
    assert_eq!(
        (
            cellar.counter("frames_damaged"),
            cellar.counter("tail_bytes_truncated")
        ),
        (0, 0)
    );
    assert!(cellar.terminate(), "{}", cellar.log());
}

#[test]
fn the_daemon_survives_a_failed_sync() {
    let mut cellar = Cellar::start_on_disk("");
    put(&cellar, 0).unwrap();
    cellar.plan_disk("sync=EIO@1");
    assert!(put(&cellar, 1).is_err());
    (2..10).for_each(|n| drop(put(&cellar, n).unwrap()));
    cellar.kill();
    cellar.plan_disk("");
    cellar.restart();
    check(&cellar, [0, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert!(cellar.terminate(), "{}", cellar.log());
}

#[test]
fn callers_share_syncs_of_a_slow_disk() {
    const CALLERS: u64 = 24;
    let cellar = Cellar::start_on_disk("sync_delay_ms=5");
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let cellar = &cellar;
            scope.spawn(move || (0..10).for_each(|n| drop(put(cellar, caller * 100 + n).unwrap())));
        }
    });
    let (entries, commits) = (cellar.counter("entries_stored"), cellar.counter("commits"));
    assert_eq!(entries, CALLERS * 10);
    assert!(
        commits * 4 < entries,
        "{entries} entries took {commits} commits"
    );
    let head = wait_for("everything", || {
        cellar.ask("status", vec![])["head"].as_u64()
    });
    assert!(head > entries);
}
