//! A commit that fails, and those that were packed before its failure was known.

use rustix::io::Errno;

use super::super::medium::faults::{Act, Fault, Faults, Plan};
use super::*;
use crate::channel::Next;

/// An event that takes a commit out of the appender's hands: it is not small.
fn large(n: u32) -> (String, Vec<u8>) {
    let noise: Vec<u8> =
        (0..10_000).flat_map(|at: u32| (at ^ n).wrapping_mul(2_654_435_761).to_be_bytes()).collect();
    let mut w = Writer::new();
    w.map(1).str("noise").bin(&noise);
    (format!("test/large/{n}"), w.into_bytes())
}

#[test]
fn a_commit_queued_behind_a_failed_one_was_carried_out_and_a_duplicate_confirmed_without_its_original() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Arc::new(Plan::default());
    let medium = Arc::new(Faults::over(Arc::new(medium::Disk), plan.clone()));
    let Opened { store, intake, appender, committer, .. } =
        Store::open(&Options { medium, ..options(dir.path(), Limits::default()) }).unwrap();
    let appender = std::thread::Builder::new().spawn(|| appender.run()).unwrap();
    let put = |batch: Batch| {
        let (tx, rx) = sync_channel(1);
        intake.submit(batch, Some(tell(tx))).unwrap();
        rx
    };
    // The test takes the committer's place, and carries a commit out after the next one is packed.
    let next_commit = || {
        committer.idles.send(committer::Idle::default()).unwrap();
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
    assert_eq!((failing.epoch, queued.epoch, queued.dones.len()), (0, 0, 2), "neither knows of the failure");
    plan.add(Fault::once(Act::Sync, Errno::IO));
    for commit in [failing, queued] {
        committer::held(&committer.pen).apply(commit, drop);
    }
    for (outcome, whose) in [(first, "original"), (duplicate, "duplicate"), (behind, "later event")] {
        assert!(receive(&outcome).is_err(), "the {whose} was confirmed");
    }
    assert_eq!(store.durable(), SeqNo::FIRST);
    // The disk works again, and none of the three is taken for a duplicate of what was lost.
    let committer = std::thread::Builder::new().spawn(|| committer.run()).unwrap();
    for (event, source) in [(&original, Source::EventReturn), (&other, Source::Bus)] {
        // As callers do: what comes before the appender knows of the failure fails, too.
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
