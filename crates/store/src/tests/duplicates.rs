//! Deduplication after restarts and failures.

use rustix::io::Errno;

use super::*;

/// Events without a job, in one batch.
fn beacons(numbers: std::ops::Range<u64>) -> Batch {
    batch_of(numbers.map(|n| n * 3))
}

/// The returns of five minions to one job, as returner calls with the whole event.
fn returns(source: Source) -> Batch {
    let mut batch = Batch::default();
    for n in [1, 2, 4, 5, 7] {
        let (tag, data) = event(n);
        let at = Micros(50 + i64::try_from(n).unwrap());
        batch.push(&event_entry(tag.as_bytes(), &data, source, at), None);
    }
    batch
}

fn windowed(dedupe_window: usize) -> Limits {
    Limits {
        dedupe_window,
        ..Limits::default()
    }
}

fn of_jobs(rig: &Rig) -> u64 {
    rig.store
        .classes()
        .unwrap()
        .iter()
        .find(|totals| *totals.name == *"jobs")
        .unwrap()
        .totals
        .entries
}

#[test]
fn returns_replayed_after_a_restart_are_stored_once_despite_many_events() {
    for batches in [1, 300] {
        let (dir, rig) = Rig::new(Limits::default());
        for n in 0..batches {
            rig.put(beacons(n * 3000 / batches..(n + 1) * 3000 / batches))
                .unwrap();
        }
        rig.put(returns(Source::Returner)).unwrap();
        rig.close();
        for window in [16, 64, 1000, 4000] {
            let rig = Rig::open(dir.path(), windowed(window));
            rig.put(returns(Source::SpooledReturner)).unwrap();
            assert_eq!(of_jobs(&rig), 5, "{batches} batches, a window of {window}");
            assert_eq!(rig.metrics.duplicates_folded.get(), 5);
        }
    }
}

#[test]
fn the_duplicate_memory_covers_the_window_across_all_classes() {
    let (dir, rig) = Rig::new(Limits::default());
    rig.put(beacons(0..100)).unwrap();
    rig.put(returns(Source::Returner)).unwrap();
    rig.put(beacons(100..200)).unwrap();
    rig.put(beacons(200..300)).unwrap();
    rig.close();
    let rig = Rig::open(dir.path(), windowed(205));
    rig.put(returns(Source::SpooledReturner)).unwrap();
    assert_eq!(of_jobs(&rig), 5);
    rig.close();
    // Duplicates occupy no slot, so the returns are as old as before.
    let rig = Rig::open(dir.path(), windowed(200));
    rig.put(returns(Source::SpooledReturner)).unwrap();
    assert_eq!(of_jobs(&rig), 10, "the returns are older than the window");
}

#[test]
fn a_failed_reservation_of_sequence_numbers_does_not_affect_the_commit_in_flight() {
    let dir = tempfile::tempdir().unwrap();
    let (plan, fs) = faulty_disk();
    // Makes the appender hand commits to the committer, and continue while they are in flight.
    let durability = Durability::Written {
        within: std::time::Duration::from_secs(3600),
    };
    let limits = Limits {
        durability,
        numbers_ahead: 100,
        ..Limits::default()
    };
    let options = Options {
        fs,
        ..options(dir.path(), limits)
    };
    let Opened {
        store,
        intake,
        appender,
        committer,
        sealer,
        retainer,
    } = Store::open(&options).unwrap();
    let thread = |work: Box<dyn FnOnce() + Send>| std::thread::Builder::new().spawn(work).unwrap();
    let mut threads = vec![thread(Box::new(|| appender.run()))];
    let submit = |batch| {
        let (tx, rx) = sync_channel(1);
        intake.submit(batch, Some(tell(tx))).unwrap();
        rx
    };
    let first = submit(batch_of(0..60));
    saltcellar_testkit::wait_for("a commit under way", || {
        (!committer.commits.is_empty()).then_some(())
    });
    plan.add(Fault::lasting(Act::Create, Errno::NOSPC));
    let outcome = receive(&submit(batch_of(60..180)));
    assert!(
        outcome
            .as_ref()
            .is_err_and(|words| words.contains("SEQUENCE")),
        "{outcome:?}"
    );
    plan.heal();
    threads.push(thread(Box::new(|| committer.run())));
    threads.push(thread(Box::new(|| sealer.run())));
    threads.push(thread(Box::new(|| retainer.run())));
    assert_eq!(receive(&first), Ok(()));
    let mut again = Batch::default();
    for n in 0..60 {
        let (tag, data) = event(n);
        again.push(
            &event_entry(tag.as_bytes(), &data, Source::EventReturn, Micros(0)),
            None,
        );
    }
    assert_eq!(receive(&submit(again)), Ok(()));
    let metrics = options.metrics.clone();
    let rig = Rig {
        store,
        intake,
        metrics,
        options,
        threads: Threads(threads),
    };
    check_all(&rig, 0..60);
    assert_eq!(rig.metrics.duplicates_folded.get(), 60);
    assert_eq!(rig.metrics.entries_failed.get(), 120);
    rig.put(batch_of(60..180)).unwrap();
    check_all(&rig, 0..180);
}

#[test]
fn a_bad_sector_in_a_sealed_segment_does_not_prevent_the_start() {
    let (dir, rig) = Rig::new(SMALL);
    rig.put_each(0..300);
    crate::tests::retention::settle(&rig);
    let sealed = rig.store.segments.of(Class::JOBS);
    let bad = sealed
        .iter()
        .rfind(|segment| segment.is_finished())
        .unwrap();
    let blocks = rig.metas(bad).len() as u64;
    let (path, of_bad) = (bad.dir().to_owned(), bad.totals());
    drop(sealed);
    rig.close();

    let (plan, fs) = faulty_disk();
    plan.add(Fault {
        within: path.join("log").display().to_string(),
        ..Fault::lasting(Act::Read, Errno::IO)
    });
    let rig = Rig::open_with(&Options {
        fs,
        ..options(dir.path(), SMALL)
    });
    assert_eq!(rig.metrics.blocks_unread_at_start.get(), blocks);
    // Other duplicates are detected, and the bad segment's entries are found when it is readable again.
    let in_bad = |n: u64| {
        !n.is_multiple_of(3) && (of_bad.first_seq.0..=of_bad.last_seq.0).contains(&(n + 1))
    };
    let mut again = Batch::default();
    for n in (0..300).filter(|n| !in_bad(*n)) {
        let (tag, data) = event(n);
        again.push(
            &event_entry(tag.as_bytes(), &data, Source::EventReturn, Micros(0)),
            None,
        );
    }
    rig.put(again).unwrap();
    assert_eq!(rig.metrics.duplicates_folded.get(), 300 - of_bad.entries);
    plan.heal();
    check_all(&rig, 0..300);
}
