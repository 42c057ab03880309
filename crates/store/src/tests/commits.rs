//! A failed commit, and what was packed behind it.

use rustix::io::Errno;

use super::*;
use crate::write::committer::{Commit, CommitResult, Part, with_writer};

/// An event too large for a commit by the appender.
fn large(n: u32) -> (String, Vec<u8>) {
    let noise: Vec<u8> = (0..10_000)
        .flat_map(|at: u32| (at ^ n).wrapping_mul(2_654_435_761).to_be_bytes())
        .collect();
    let mut w = Writer::new();
    w.map(1).str("noise").bin(&noise);
    (format!("test/large/{n}"), w.into_bytes())
}

fn event((tag, data): &(String, Vec<u8>), source: Source) -> Batch {
    Batch::of(&event_entry(tag.as_bytes(), data, source, Micros(0)))
}

fn put(intake: &Intake, batch: Batch) -> std::sync::mpsc::Receiver<Result<(), String>> {
    let (tx, rx) = sync_channel(1);
    intake.submit(batch, Some(tell(tx))).unwrap();
    rx
}

/// The next commit; the test acts as the committer.
fn next_commit(committer: &Committer) -> Commit {
    committer
        .commits
        .recv_timeout(saltcellar_testkit::DEADLINE)
        .unwrap()
}

#[test]
fn after_a_panic_in_a_commit_nothing_is_written_or_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let Opened {
        store,
        intake,
        appender,
        committer,
        ..
    } = Store::open(&options(dir.path(), Limits::default())).unwrap();
    let appender = std::thread::Builder::new()
        .spawn(|| appender.run())
        .unwrap();
    let mut outcomes = Vec::new();
    let mut durable = Vec::new();
    for n in 0..2 {
        outcomes.push(put(&intake, event(&large(n), Source::Bus)));
        let mut commit = next_commit(&committer);
        if n == 0 {
            // Fails an assertion when the block is on disk.
            commit.parts.push(Part {
                class: commit.parts[0].class,
                frames: Vec::new(),
                blocks: Vec::new(),
            });
        }
        let apply = || with_writer(&committer.writer, |writer| writer.apply(commit, drop));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(apply)).unwrap_err();
        committer.results.send(CommitResult::default()).unwrap();
        durable.push(store.durable());
    }
    assert!(SeqNo::FIRST < durable[0], "the first commit was written");
    assert_eq!(durable[0], durable[1], "the second one was not");
    drop((committer, intake, store));
    appender
        .join()
        .expect_err("the appender ends with the committer");
    for outcome in outcomes {
        assert!(outcome.recv().is_err(), "no batch was acknowledged");
    }
}

#[test]
fn what_is_packed_behind_a_failed_commit_fails_with_it_and_so_do_its_duplicates() {
    let dir = tempfile::tempdir().unwrap();
    let (plan, fs) = faulty_disk();
    let Opened {
        store,
        intake,
        appender,
        committer,
        ..
    } = Store::open(&Options {
        fs,
        ..options(dir.path(), Limits::default())
    })
    .unwrap();
    let appender = std::thread::Builder::new()
        .spawn(|| appender.run())
        .unwrap();
    // The test applies the commit after the next one is packed.
    let (original, other) = (large(1), large(2));
    let first = put(&intake, event(&original, Source::Bus));
    let failing = next_commit(&committer);
    let duplicate = put(&intake, event(&original, Source::EventReturn));
    let behind = put(&intake, event(&other, Source::Bus));
    saltcellar_testkit::wait_for("both to be packed", || {
        (intake.bytes.load(Ordering::Acquire) == 0).then_some(())
    });
    plan.add(Fault::once(Act::Sync, Errno::IO));
    let hand_back = |result| committer.results.send(result).unwrap();
    with_writer(&committer.writer, |writer| writer.apply(failing, hand_back));
    for (outcome, whose) in [
        (first, "original"),
        (duplicate, "duplicate"),
        (behind, "later event"),
    ] {
        assert!(receive(&outcome).is_err(), "the {whose} was confirmed");
    }
    assert_eq!(store.durable(), SeqNo::FIRST);
    // The disk works again, and none of the three counts as a duplicate of a lost entry.
    let committer = std::thread::Builder::new()
        .spawn(|| committer.run())
        .unwrap();
    for (lost, source) in [(&original, Source::EventReturn), (&other, Source::Bus)] {
        assert_eq!(receive(&put(&intake, event(lost, source))), Ok(()));
    }
    drop((intake, store));
    for thread in [appender, committer] {
        thread.join().unwrap();
    }
    let rig = Rig::open(dir.path(), Limits::default());
    assert_eq!(rig.tags(), [original.0, other.0]);
}
