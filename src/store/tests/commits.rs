//! A failed commit, and commits packed before its failure was known.

use rustix::io::Errno;

use super::super::vfs::faults::{Act, Fault, Faults, Plan};
use super::*;
use crate::channel::Next;

/// An event too large for a commit by the appender.
fn large(n: u32) -> (String, Vec<u8>) {
    let noise: Vec<u8> =
        (0..10_000).flat_map(|at: u32| (at ^ n).wrapping_mul(2_654_435_761).to_be_bytes()).collect();
    let mut w = Writer::new();
    w.map(1).str("noise").bin(&noise);
    (format!("test/large/{n}"), w.into_bytes())
}

#[test]
fn a_commit_queued_behind_a_failed_one_fails_with_its_duplicates() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Arc::new(Plan::default());
    let fs = Arc::new(Faults::over(Arc::new(vfs::Disk), plan.clone()));
    let Opened { store, intake, appender, committer, .. } =
        Store::open(&Options { fs, ..options(dir.path(), Limits::default()) }).unwrap();
    let appender = std::thread::Builder::new().spawn(|| appender.run()).unwrap();
    let put = |batch: Batch| {
        let (tx, rx) = sync_channel(1);
        intake.submit(batch, Some(tell(tx))).unwrap();
        rx
    };
    // The test acts as the committer, and applies a commit after the next one is packed.
    let next_commit = || {
        committer.idles.send(crate::store::write::committer::ReturnedBuffers::default()).unwrap();
        match committer.commits.next(crate::testing::DEADLINE) {
            Next::Message(commit) => commit,
            other => panic!("no commit: {}", if matches!(other, Next::Closed) { "closed" } else { "idle" }),
        }
    };
    let (original, other) = (large(1), large(2));
    let entry = |(tag, data): &(String, Vec<u8>), source| {
        Batch::of(&event_entry(tag.as_bytes(), data, source, Micros(0)))
    };
    let first = put(entry(&original, Source::Bus));
    let failing = next_commit();
    let duplicate = put(entry(&original, Source::EventReturn));
    let behind = put(entry(&other, Source::Bus));
    let queued = next_commit();
    assert_eq!((failing.epoch, queued.epoch, queued.dones.len()), (0, 0, 2), "packed before the failure");
    plan.add(Fault::once(Act::Sync, Errno::IO));
    for commit in [failing, queued] {
        crate::store::write::committer::lock_writer(&committer.writer).apply(commit, drop);
    }
    for (outcome, whose) in [(first, "original"), (duplicate, "duplicate"), (behind, "later event")] {
        assert!(receive(&outcome).is_err(), "the {whose} was confirmed");
    }
    assert_eq!(store.durable(), SeqNo::FIRST);
    // The disk works again, and none of the three counts as a duplicate of a lost entry.
    let committer = std::thread::Builder::new().spawn(|| committer.run()).unwrap();
    for (event, source) in [(&original, Source::EventReturn), (&other, Source::Bus)] {
        // Like a real caller: batches fail until the appender knows of the failure.
        crate::testing::wait_for("a retry to succeed", || receive(&put(entry(event, source))).ok());
    }
    drop((intake, store));
    for thread in [appender, committer] {
        thread.join().unwrap();
    }
    let rig = Rig::open(dir.path(), Limits::default());
    let tags: Vec<_> = rig.events(&EventFilter::default()).into_iter().map(|(_, tag)| tag).collect();
    assert_eq!(tags, [original.0, other.0]);
    rig.close();
}
