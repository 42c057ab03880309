//! Classes, retention, holds and the free space guard, on a whole store.

mod bounds;
mod clocks;
mod gaps;
mod removal;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use salt_sls::Glob;

use crate::free_space::{FreeSpaceGuard, SpaceLevel};
use crate::retain::{DropOutcome, PlannedDrop, PruneOptions, Reason};
use crate::tests::{Rig, SMALL, batch_of, check_all, event, jid, options};
use crate::vfs::{Disk, Fs, FsFile, Space};
use crate::*;
use saltcellar_base::clock::Micros;
use saltcellar_model::{Age, ClassRule, ClassRules, EventFilter, Keep, Source};
use saltcellar_testkit::wait_for;
use saltcellar_wire::salt_event::event_entry;

pub(crate) const FOREVER: Keep = Keep {
    age: Age::Forever,
    bytes: None,
    entries: None,
};

/// A class for the beacon events of the tests.
fn beacons(keep: Keep) -> ClassRules {
    let rule = ClassRule {
        fun: None,
        tag: Some(Glob::new("salt/beacon/*")),
    };
    ClassRules {
        name: "beacons".to_owned(),
        rules: vec![rule],
        keep,
    }
}

/// A class for half of the returns of the tests.
fn half(keep: Keep) -> ClassRules {
    let rule = ClassRule {
        fun: None,
        tag: Some(Glob::new("salt/job/*/ret/web*[02468]")),
    };
    ClassRules {
        name: "half".to_owned(),
        rules: vec![rule],
        keep,
    }
}

fn entries_of(rig: &Rig, class: &str) -> Option<u64> {
    rig.store
        .classes()
        .unwrap()
        .into_iter()
        .find(|totals| *totals.name == *class)
        .map(|totals| totals.totals.entries)
}

#[test]
fn an_entry_is_stored_in_its_class_and_found_in_any() {
    let dir = tempfile::tempdir().unwrap();
    for limits in [Limits::default(), SMALL] {
        let rules = [beacons(FOREVER), half(FOREVER)];
        let with = |rules: &[ClassRules]| Options {
            classes: Classes::new(rules),
            ..options(dir.path(), limits)
        };
        let _ = std::fs::remove_dir_all(dir.path().join("log"));
        let _ = std::fs::remove_dir_all(dir.path().join("state"));
        let rig = Rig::open_with(&with(&rules));
        rig.put_each(0..300);
        let of = |rig: &Rig, class| entries_of(rig, class);
        let counts = |rig: &Rig| ["jobs", "events", "beacons", "half"].map(|class| of(rig, class));
        let expected = [Some(100), Some(0), Some(100), Some(100)];
        check_all(&rig, 0..300);
        assert_eq!(counts(&rig), expected);
        rig.close();

        // Without the rules, the classes are read-only.
        let rig = Rig::open_with(&with(&[]));
        check_all(&rig, 0..300);
        assert_eq!(counts(&rig), expected);
        rig.put(batch_of(300..600)).unwrap();
        check_all(&rig, 0..600);
        assert_eq!(counts(&rig), [Some(300), Some(100), Some(100), Some(100)]);
        let job = EventFilter {
            jid: Some(jid(2)),
            ..EventFilter::default()
        };
        let latest = rig
            .store
            .events_before(&job, rig.store.durable(), 3, usize::MAX)
            .unwrap();
        assert_eq!(
            latest.iter().map(|e| e.minion.as_str()).collect::<Vec<_>>(),
            ["web29", "web28", "web26"]
        );
        rig.close();

        // Configured again, they accept entries.
        let rig = Rig::open_with(&with(&rules));
        rig.put(batch_of(600..900)).unwrap();
        check_all(&rig, 0..900);
        assert_eq!(counts(&rig), [Some(400), Some(100), Some(200), Some(200)]);
        rig.close();
        let rig = Rig::open_with(&with(&rules));
        check_all(&rig, 0..900);
    }
}

pub(crate) const HOUR: i64 = 3_600_000_000;
pub(crate) const DAY: Duration = Duration::from_secs(86_400);

pub(crate) fn jobs(keep: Keep) -> ClassRules {
    ClassRules {
        keep,
        ..ClassRules::jobs()
    }
}

pub(crate) fn events(keep: Keep) -> ClassRules {
    ClassRules {
        keep,
        ..ClassRules::events()
    }
}

pub(crate) fn with(dir: &Path, rules: &[ClassRules]) -> Options {
    Options {
        classes: Classes::new(rules),
        ..options(dir, SMALL)
    }
}

/// Stores `numbers` one by one, which makes segments roll, and waits until finished segments are
/// sealed.
pub(crate) fn fill(rig: &Rig, numbers: std::ops::Range<u64>) {
    rig.put_each(numbers);
    settle(rig);
}

pub(crate) fn settle(rig: &Rig) {
    let unsealed = |s: &Arc<segment::Segment>| {
        s.is_finished() && (s.metadata().is_none() || s.work.is_locked())
    };
    wait_for("sealed segments", || {
        (!rig.store.segments.all().iter().any(unsealed)).then_some(())
    });
}

pub(crate) fn dropped(planned: &[PlannedDrop]) -> Vec<(&str, Reason)> {
    planned
        .iter()
        .filter(|g| g.outcome == DropOutcome::Dropped)
        .map(|g| (&*g.class, g.reason))
        .collect()
}

/// The numbers of the remaining test events.
fn left(rig: &Rig) -> Vec<u64> {
    let all = rig.events(&EventFilter::default());
    for (seq, tag) in &all {
        assert_eq!(*tag, event(seq - 1).0);
    }
    all.into_iter().map(|(seq, _)| seq - 1).collect()
}

/// Whether nothing is left of dropped segments.
pub(crate) fn is_cleared(dir: &Path) -> bool {
    crate::segment::removal::left_dropped(dir).is_empty()
}

#[test]
fn a_segment_is_dropped_when_its_newest_entry_is_too_old() {
    let dir = tempfile::tempdir().unwrap();
    let keep = Keep {
        age: Age::For(DAY),
        ..FOREVER
    };
    let options = with(dir.path(), &[jobs(keep), events(FOREVER)]);
    let rig = Rig::open_with(&options);
    // Event n arrives at n microseconds; the clock is at one second.
    fill(&rig, 0..300);
    let shared = &rig.store;
    let jobs_before = shared.segments.of(Class::JOBS).len();
    assert!(jobs_before > 10, "{jobs_before}");
    options.clock.wind(24 * HOUR - 1_000_000 + 100);
    let drops = shared.0.retention.run_round();
    // Segments whose newest entry is among the first hundred.
    let all_old = drops
        .iter()
        .all(|g| g.segment_usage.at_max < Micros(100) && g.outcome == DropOutcome::Dropped);
    assert!(all_old && drops.len() > 2, "{drops:?}");
    assert!(dropped(&drops).iter().all(|g| *g == ("jobs", Reason::Age)));
    let left_now = left(&rig);
    let last = drops
        .iter()
        .map(|g| g.segment_usage.at_max.0.unsigned_abs())
        .max()
        .unwrap();
    let expected: Vec<u64> = (0..300_u64)
        .filter(|n| n.is_multiple_of(3) || *n > last)
        .collect();
    assert_eq!(left_now, expected);
    assert!(last < 100 && shared.0.retention.run_round().is_empty());
    // Jobs are dropped with their segments; a job across the boundary keeps its remaining entries.
    let border = rig.store.job_entries(&jid(last / 10)).unwrap();
    assert!(border.iter().all(|entry| entry.seq.0 > last + 1));
    let jids: Vec<_> = rig
        .store
        .jobs_before(None, 100)
        .unwrap()
        .into_iter()
        .map(|(_, row)| row.jid)
        .collect();
    let first = (last + 1..300).find(|n| !n.is_multiple_of(3)).unwrap() / 10;
    let with_entries: Vec<_> = (first..30).rev().map(jid).collect();
    assert_eq!(jids, with_entries);
    for n in 0..first {
        assert!(rig.store.job_row(&jid(n)).unwrap().is_none());
    }
    // The active segment is never dropped. Planned with a far-off time, because its age must not
    // finish it.
    rig.put(batch_of([300, 301])).unwrap();
    rig.put(batch_of([302])).unwrap();
    settle(&rig);
    let far = Micros(shared.clock.now().0 + 100 * 24 * HOUR);
    let keep = shared.classes.keep(Class::JOBS);
    let planned: Vec<_> = shared
        .0
        .retention
        .plan(Class::JOBS, keep, far)
        .unwrap()
        .into_iter()
        .map(|(s, _)| s.first_seq)
        .collect();
    let growing = |s: &&Arc<segment::Segment>| !s.is_finished() && s.totals().entries > 0;
    assert!(
        shared
            .segments
            .of(Class::JOBS)
            .iter()
            .filter(growing)
            .all(|s| !planned.contains(&s.first_seq))
    );
    assert!(!planned.is_empty());
    assert_eq!(
        shared.0.retention.metrics.entries_dropped.get(),
        303 - left(&rig).len() as u64
    );
    assert!(is_cleared(dir.path()));
    rig.put(batch_of(303..310)).unwrap();
    rig.close();
    // The same holds after a restart.
    let rig = Rig::open_with(&options);
    assert_eq!(rig.metrics.indexes_rebuilt.get(), 0);
    let numbers = left(&rig);
    assert!(numbers.ends_with(&[305, 306, 307, 308, 309]), "{numbers:?}");
}

#[test]
fn a_class_is_limited_to_its_bytes_and_entries() {
    let dir = tempfile::tempdir().unwrap();
    let rules = [
        jobs(Keep {
            entries: Some(100),
            ..FOREVER
        }),
        events(Keep {
            bytes: Some(200 * 1024),
            ..FOREVER
        }),
    ];
    let rig = Rig::open_with(&with(dir.path(), &rules));
    fill(&rig, 0..600);
    let shared = &rig.store;
    shared.0.retention.run_round();
    let stats = rig.store.stats().unwrap();
    let of = |name: &str| {
        stats
            .classes
            .iter()
            .find(|class| *class.name == *name)
            .unwrap()
    };
    assert!(
        (30..=100).contains(&of("jobs").segment_usage.entries),
        "{:?}",
        of("jobs").segment_usage
    );
    assert!(
        (100 * 1024..=200 * 1024).contains(&of("events").segment_usage.disk_bytes),
        "{:?}",
        of("events").segment_usage
    );
    let numbers = left(&rig);
    assert_eq!(numbers.last(), Some(&599));
    let of_jobs: Vec<_> = numbers.iter().filter(|n| !n.is_multiple_of(3)).collect();
    assert_eq!(of_jobs.len() as u64, of("jobs").segment_usage.entries);
}

#[test]
fn narrow_limits_make_small_segments() {
    let dir = tempfile::tempdir().unwrap();
    let keep = Keep {
        age: Age::For(16 * DAY),
        bytes: None,
        entries: Some(1600),
    };
    let options = Options {
        classes: Classes::new(&[
            jobs(keep),
            events(Keep {
                age: Age::Salt,
                ..FOREVER
            }),
        ]),
        ..options(dir.path(), Limits::default())
    };
    let rig = Rig::open_with(&options);
    fill(&rig, 0..600);
    let shared = &rig.store;
    let segments = || {
        (
            shared.segments.of(Class::JOBS).len(),
            shared.segments.of(Class::EVENTS).len(),
        )
    };
    let newest = || shared.segments.of(Class::EVENTS).last().unwrap().first_seq;
    assert_eq!(segments(), (4, 1), "400 entries of jobs, 100 per segment");
    // The last of them was finished because it was full; the next one ages.
    rig.put(batch_of([600, 601])).unwrap();
    options.clock.wind(25 * HOUR);
    rig.put(batch_of([603, 604])).unwrap();
    rig.put(batch_of([606, 607])).unwrap();
    assert_eq!(
        segments(),
        (6, 1),
        "finished after a day; without keep_jobs_seconds events do not age"
    );
    let before = newest();
    rig.store.set_salt_keep(Some(3600));
    rig.put(batch_of([609])).unwrap();
    rig.put(batch_of([612])).unwrap();
    assert_ne!(newest(), before);
}

#[test]
fn a_reported_keep_jobs_seconds_deletes_nothing_unless_the_configuration_asks_for_it() {
    let check = |rules: &[ClassRules], expected: bool| {
        let dir = tempfile::tempdir().unwrap();
        let options = with(dir.path(), rules);
        let rig = Rig::open_with(&options);
        fill(&rig, 0..300);
        options.clock.wind(20 * 24 * HOUR);
        assert!(
            rig.store.0.retention.run_round().is_empty(),
            "nothing was reported"
        );
        let segments = || rig.store.segments.of(Class::JOBS).len();
        let before = segments();
        // What the report would delete is told before it comes.
        let would = || {
            let classes = rig.store.stats().unwrap().classes.into_iter();
            let mut jobs = classes.filter(|class| *class.name == *"jobs");
            jobs.next().unwrap().first_report_drops
        };
        assert_eq!(would().is_some_and(|entries| entries > 100), expected);

        // The retainer's thread may carry out the round that the report requests before this one.
        rig.store.set_salt_keep(Some(86_400));
        let drops = rig.store.0.retention.run_round();
        assert_eq!(before - segments() > 10, expected, "{drops:?}");
        assert!(dropped(&drops).iter().all(|g| *g == ("jobs", Reason::Age)));
        assert_eq!(would(), None);
    };
    check(&[], false);
    let salt = Keep {
        age: Age::Salt,
        ..FOREVER
    };
    check(&[jobs(salt)], true);
}

#[test]
fn by_default_jobs_and_events_are_kept_for_90_days_and_jobs_as_long_as_salt_keeps_them() {
    /// Whether (jobs, events) are all still there after a number of days.
    type AfterDays = (i64, (bool, bool));

    let check = |reported_days: Option<u64>, expected: &[AfterDays]| {
        let dir = tempfile::tempdir().unwrap();
        let options = with(dir.path(), &[]);
        let rig = Rig::open_with(&options);
        fill(&rig, 0..300);
        rig.store
            .set_salt_keep(reported_days.map(|days| days * 86_400));

        let entries = || ["jobs", "events"].map(|class| entries_of(&rig, class).unwrap());
        let all = entries();
        assert_eq!(all, [200, 100]);

        let mut day = 0;
        for (until, (jobs, events)) in expected {
            options.clock.wind((until - day) * 24 * HOUR);
            day = *until;
            rig.store.0.retention.run_round();
            for ((left, all), stay) in entries().into_iter().zip(all).zip([*jobs, *events]) {
                // An active segment stays.
                let is_expected = if stay { left == all } else { left < all / 5 };
                assert!(
                    is_expected,
                    "{reported_days:?} reported, day {day}: {left} of {all} entries"
                );
            }
        }
    };
    let (both, jobs, none) = ((true, true), (true, false), (false, false));
    check(None, &[(89, both), (91, none)]);
    check(Some(1), &[(89, both), (91, none)]);
    check(
        Some(200),
        &[(89, both), (100, jobs), (199, jobs), (201, none)],
    );
    // 0 is forever.
    check(Some(0), &[(89, both), (91, jobs), (1000, jobs)]);
}

#[test]
fn a_shorter_keep_jobs_seconds_waits_until_an_administrator_accepts_it() {
    let dir = tempfile::tempdir().unwrap();
    let salt = Keep {
        age: Age::Salt,
        ..FOREVER
    };
    let options = with(dir.path(), &[jobs(salt)]);
    let rig = Rig::open_with(&options);
    fill(&rig, 0..300);
    rig.store.set_salt_keep(Some(40 * 86_400));
    rig.close();

    // After a restart the master reports a day, and goes on doing so.
    let options = with(dir.path(), &[jobs(salt)]);
    let rig = Rig::open_with(&options);
    options.clock.wind(20 * 24 * HOUR);
    for _ in 0..3 {
        rig.store.set_salt_keep(Some(86_400));
        assert_eq!(rig.store.0.retention.run_round(), []);
        options.clock.wind(HOUR);
    }
    let of_jobs = || {
        let stats = rig.store.stats().unwrap();
        stats.classes.into_iter().find(|c| *c.name == *"jobs")
    };
    let (age, would) = of_jobs().unwrap().shorter.unwrap();
    assert_eq!(age.as_secs(), 86_400);
    let prune = |dry_run| {
        let options = PruneOptions {
            accept_salt: true,
            dry_run,
            ..PruneOptions::default()
        };
        let all = rig.store.prune(&options).unwrap();
        all.iter().map(|g| g.segment_usage.entries).sum::<u64>()
    };
    assert_eq!(prune(true), would);
    assert_eq!(of_jobs().unwrap().shorter, Some((age, would)), "planned");
    assert_eq!(prune(false), would);
    assert!(would > 100 && of_jobs().unwrap().shorter.is_none());
    assert_eq!(of_jobs().unwrap().age, Some(age));
}

#[test]
fn a_dry_run_plans_what_prune_does_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let options = with(dir.path(), &[jobs(FOREVER), events(FOREVER)]);
    let rig = Rig::open_with(&options);
    fill(&rig, 0..300);
    let keep = Some(Keep {
        entries: Some(50),
        ..FOREVER
    });
    let options = PruneOptions {
        class: Some("jobs".to_owned()),
        keep,
        accept_salt: false,
        dry_run: true,
    };
    let would = rig.store.prune(&options).unwrap();
    assert!(would.iter().all(|g| g.outcome == DropOutcome::Planned
        && g.reason == Reason::Entries
        && g.segment_usage.jobs > 0));
    check_all(&rig, 0..300);
    let does = rig
        .store
        .prune(&PruneOptions {
            dry_run: false,
            ..options.clone()
        })
        .unwrap();
    let metadata = |all: &[PlannedDrop]| {
        all.iter()
            .map(|g| (g.segment, g.segment_usage))
            .collect::<Vec<_>>()
    };
    assert_eq!(metadata(&would), metadata(&does));
    assert_eq!(dropped(&does).len(), would.len());
    let entries: u64 = does.iter().map(|g| g.segment_usage.entries).sum();
    assert_eq!(left(&rig).len() as u64, 300 - entries);
    assert!((1..=50).contains(&entries_of(&rig, "jobs").unwrap()));
    let error = rig
        .store
        .prune(&PruneOptions {
            class: Some("job".to_owned()),
            ..options
        })
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "class \"job\" does not exist; classes: jobs, events"
    );
}

#[test]
fn a_held_job_stays_complete_until_it_is_released() {
    let dir = tempfile::tempdir().unwrap();
    let options = with(
        dir.path(),
        &[
            jobs(Keep {
                age: Age::For(DAY),
                ..FOREVER
            }),
            events(FOREVER),
        ],
    );
    let rig = Rig::open_with(&options);
    fill(&rig, 0..300);
    let before = rig.store.job_entries(&jid(7)).unwrap();
    assert!(before.len() > 5);
    rig.store.hold(&jid(7), "looked into").unwrap();
    rig.close();

    let rig = Rig::open_with(&options);
    options.clock.wind(48 * HOUR);
    let drops = rig.store.0.retention.run_round();
    let held = drops
        .iter()
        .filter(|g| g.outcome == DropOutcome::Held(1))
        .count();
    assert!(
        (1..5).contains(&held) && dropped(&drops).len() > 10,
        "{drops:?}"
    );
    assert_eq!(rig.store.job_entries(&jid(7)).unwrap(), before);
    assert!(rig.store.job_entries(&jid(2)).unwrap().is_empty());
    assert_eq!(rig.store.stats().unwrap().classes[0].held_segments, held);
    assert_eq!(rig.store.holds().len(), 1);
    assert!(rig.store.release(&jid(7)).unwrap());
    assert_eq!(dropped(&rig.store.0.retention.run_round()).len(), held);
    assert!(rig.store.job_entries(&jid(7)).unwrap().is_empty());
}

#[test]
fn nothing_is_dropped_while_the_holds_of_other_masters_are_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let age = Keep {
        age: Age::For(DAY),
        ..FOREVER
    };
    let options = with(dir.path(), &[jobs(age), events(FOREVER)]);
    let rig = Rig::open_with(&options);
    fill(&rig, 0..300);
    rig.close();

    let rig = Rig::open_with(&options);
    options.clock.wind(48 * HOUR);
    rig.store.await_holds(Duration::from_secs(60));
    let drops = rig.store.0.retention.run_round();
    assert_eq!(drops.len(), 1, "newer ones wait: {drops:?}");
    assert_eq!(drops[0].outcome, DropOutcome::Busy);

    let held = HoldChange {
        at: Micros(1),
        held: Some(Held {
            since: Micros(1),
            master: "b".to_owned(),
            reason: String::new(),
        }),
        jid: jid(7),
    };
    rig.store.merge_holds("a", vec![held]).unwrap();
    rig.store.has_all_holds();
    assert!(dropped(&rig.store.0.retention.run_round()).len() > 10);
    assert!(!rig.store.job_entries(&jid(7)).unwrap().is_empty());
    assert!(rig.store.job_entries(&jid(2)).unwrap().is_empty());

    // Nobody is heard: not forever.
    rig.store.release(&jid(7)).unwrap();
    rig.store.await_holds(Duration::from_secs(60));
    assert_eq!(dropped(&rig.store.0.retention.run_round()).len(), 0);
    options.clock.wind(60_000_000);
    assert!(!dropped(&rig.store.0.retention.run_round()).is_empty());
}

#[test]
fn newer_segments_are_dropped_in_place_of_a_held_one() {
    let dir = tempfile::tempdir().unwrap();
    let rules = [
        jobs(Keep {
            entries: Some(60),
            ..FOREVER
        }),
        events(FOREVER),
    ];
    let rig = Rig::open_with(&with(dir.path(), &[jobs(FOREVER), events(FOREVER)]));
    fill(&rig, 0..300);
    (0..8).for_each(|n| drop(rig.store.hold(&jid(n), "looked into").unwrap()));
    rig.close();
    let rig = Rig::open_with(&with(dir.path(), &rules));
    rig.store.0.retention.run_round();
    let stats = rig.store.stats().unwrap();
    let held = (0..8)
        .map(|n| rig.store.job_entries(&jid(n)).unwrap().len())
        .sum::<usize>();
    assert!(held > 40, "{held}");
    assert!(
        stats.classes[0].segment_usage.entries <= 60.max(held as u64 + 15),
        "{:?}",
        stats.classes[0].segment_usage
    );
}

#[test]
fn a_reader_of_a_dropped_segment_finishes() {
    let dir = tempfile::tempdir().unwrap();
    let options = with(dir.path(), &[jobs(FOREVER), events(FOREVER)]);
    let rig = Rig::open_with(&options);
    fill(&rig, 0..300);
    let shared = rig.store.clone();
    let segments = shared.segments.of(Class::JOBS);
    let (open, closed) = (&segments[0], &segments[1]);
    let index = match shared.blocks.indexes().ready(open).unwrap() {
        segment::Ready::Sealed(index) => index,
        segment::Ready::Memory(_) => panic!("sealed"),
    };
    let meta = index.blocks().metas()[0];
    let options = PruneOptions {
        class: None,
        keep: Some(Keep {
            entries: Some(10),
            ..FOREVER
        }),
        ..PruneOptions::default()
    };
    assert!(
        rig.store
            .prune(&options)
            .unwrap()
            .iter()
            .all(|g| g.outcome == DropOutcome::Dropped)
    );
    assert_eq!(
        open.log().block(&meta).unwrap().len(),
        meta.count as usize,
        "the file is still open"
    );
    assert!(
        !index
            .positions(saltcellar_model::JidKey::of(&jid(0)))
            .unwrap()
            .is_empty()
    );
    // A segment whose index was closed appears empty, and creates no directory.
    let asked = shared.blocks.indexes().query(
        closed,
        |index| index.blocks().metas().len(),
        |index| Ok(index.blocks().metas().len()),
    );
    assert_eq!(asked.unwrap(), 0);
    assert!(!closed.dir().exists() && is_cleared(dir.path()));
    // No other reference keeps its bytes allocated.
    drop((index, shared));
    let segments = segments.into_iter().take(2);
    assert!(segments.map(|s| Arc::strong_count(&s)).all(|n| n == 1));
}

#[test]
fn readers_and_writers_continue_while_segments_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let options = with(
        dir.path(),
        &[
            jobs(Keep {
                entries: Some(100),
                ..FOREVER
            }),
            events(FOREVER),
        ],
    );
    let rig = Rig::open_with(&options);
    let (store, rounds) = (rig.store.clone(), rig.store.clone());
    let stop = saltcellar_base::shutdown::Drain::new();
    let spawn = |work: Box<dyn FnOnce() + Send>| std::thread::Builder::new().spawn(work).unwrap();
    let (stopped, stopped_too) = (stop.clone(), stop.clone());
    let reader = spawn(Box::new(move || {
        while !stopped.is_stopping() {
            let found = store
                .events_before(
                    &EventFilter::default(),
                    store.durable(),
                    100_000,
                    usize::MAX,
                )
                .unwrap();
            assert!(found.is_sorted_by_key(|e| std::cmp::Reverse(e.seq)));
            assert!(
                found
                    .iter()
                    .all(|e| e.tag == event(e.seq.0 - 1).0.into_bytes())
            );
            for (_, row) in store.jobs_before(None, 1000).unwrap() {
                store.job_entries(&row.jid).unwrap();
                store.job_row(&row.jid).unwrap();
            }
        }
    }));
    let retainer = spawn(Box::new(move || {
        while !stopped_too.is_stopping() {
            for planned in rounds.0.retention.run_round() {
                assert!(
                    matches!(planned.outcome, DropOutcome::Dropped | DropOutcome::Busy),
                    "{planned:?}"
                );
            }
        }
    }));
    rig.put_each(0..900);
    stop.stop();
    reader.join().unwrap();
    retainer.join().unwrap();
    settle(&rig);
    rig.store.0.retention.run_round();
    assert!(entries_of(&rig, "jobs").unwrap() <= 100);
    assert_eq!(
        rig.metrics.segment_drops_failed.get() + rig.metrics.seals_failed.get(),
        0
    );
    rig.close();
    let rig = Rig::open_with(&options);
    assert_eq!(
        rig.metrics.indexes_rebuilt.get() + rig.metrics.segments_missing.get(),
        0
    );
}

/// Measures the drop of a segment with a log of 256 MiB: until it is hidden, and until its bytes are free.
/// `cargo test -p saltcellar-store -- --ignored --nocapture how_long`
#[test]
#[ignore = "a measurement"]
fn how_long_the_drop_of_a_large_segment_takes() {
    let dir =
        tempfile::tempdir_in(std::env::var_os("MEASURE_IN").unwrap_or_else(|| ".".into())).unwrap();
    let limits = Limits {
        segment_bytes_max: 256 << 20,
        ..Limits::default()
    };
    let classes = Classes::new(&[jobs(FOREVER), events(FOREVER)]);
    let options = Options {
        classes,
        ..options(dir.path(), limits)
    };
    let rig = Rig::open_with(&options);
    let mut noise = 1_u64;
    for n in 0..3 * 260_u64 {
        let mut body = vec![0xc6, 0, 0x10, 0, 0];
        body.extend((0..1 << 17).flat_map(|_| {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            noise.to_le_bytes()
        }));
        let tag = format!("salt/beacon/web{n}/noise");
        let entry = event_entry(tag.as_bytes(), &body, Source::Bus, Micros(1));
        rig.put(saltcellar_model::Batch::of(&entry)).unwrap();
    }
    settle(&rig);
    let shared = &rig.store;
    let free = || Disk.space(dir.path()).unwrap().available;
    for segment in shared
        .segments
        .of(Class::EVENTS)
        .into_iter()
        .filter(|s| s.is_finished())
    {
        let (before, began) = (free(), std::time::Instant::now());
        let gone = shared
            .0
            .retention
            .drops
            .drop_segment(&segment)
            .unwrap()
            .unwrap();
        let hidden = began.elapsed();
        drop(segment);
        shared.0.retention.drops.clear(vec![gone]);
        let (removed, bytes) = (began.elapsed(), free().saturating_sub(before));
        println!("hidden after {hidden:?}, removed after {removed:?}, {bytes} bytes free again");
    }
}

#[test]
fn a_drop_interrupted_by_a_crash_is_completed() {
    let dir = tempfile::tempdir().unwrap();
    let options = with(dir.path(), &[]);
    Rig::open_with(&options).close();
    // Also of classes that are not configured: marked, emptied, and renamed.
    let place = |name: &str| dir.path().join("log").join(name);
    let left = [
        ("jobs/00000000000000000001.0", "log.dropped"),
        ("was-once/00000000000000000002.1", "log.dropped"),
        ("was-once/00000000000000000003.0.dropped", "index"),
    ];
    for (segment, file) in left {
        std::fs::create_dir_all(place(segment)).unwrap();
        std::fs::write(place(segment).join(file), b"x").unwrap();
    }
    let rig = Rig::open_with(&options);
    wait_for("finished drops", || {
        (!left.iter().any(|(name, _)| place(name).exists())).then_some(())
    });
    assert_eq!(options.metrics.segments_missing.get(), 0);
    rig.close();
}

/// A disk with settable free space, which grows with every removal.
#[derive(Debug, Default)]
pub(crate) struct LimitedSpace {
    disk: Disk,
    available: AtomicU64,
}

impl Fs for LimitedSpace {
    fn create(&self, path: &Path) -> std::io::Result<Box<dyn FsFile>> {
        self.disk.create(path)
    }
    fn open(&self, path: &Path) -> std::io::Result<Box<dyn FsFile>> {
        self.disk.open(path)
    }
    fn open_log(&self, path: &Path) -> std::io::Result<Box<dyn FsFile>> {
        self.disk.open_log(path)
    }
    fn open_to_write(&self, path: &Path) -> std::io::Result<Box<dyn FsFile>> {
        self.disk.open_to_write(path)
    }
    fn make_dir(&self, path: &Path) -> std::io::Result<()> {
        self.disk.make_dir(path)
    }
    fn sync_dir(&self, path: &Path) -> std::io::Result<()> {
        self.disk.sync_dir(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> std::io::Result<()> {
        use std::os::unix::fs::MetadataExt as _;
        let bytes = std::fs::metadata(path).map_or(0, |about| about.blocks() * 512);
        self.disk.remove_file(path)?;
        self.available.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
    fn remove_dir_all(&self, path: &Path) -> std::io::Result<()> {
        let bytes = crate::segment::usage::disk_bytes(path);
        self.disk.remove_dir_all(path)?;
        self.available.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
    fn space(&self, _: &Path) -> std::io::Result<Space> {
        Ok(Space {
            available: self.available.load(Ordering::Relaxed),
            total: 1 << 40,
        })
    }
}

fn guarded(dir: &Path, rules: &[ClassRules]) -> (Arc<LimitedSpace>, Options) {
    let fs = Arc::new(LimitedSpace {
        available: AtomicU64::new(1 << 30),
        ..LimitedSpace::default()
    });
    let free = FreeSpace {
        low: Some(200_000_000),
        min: Some(1_000_000),
    };
    (
        fs.clone(),
        Options {
            fs,
            free,
            ..with(dir, rules)
        },
    )
}

#[test]
fn low_space_drops_segments_in_the_order_of_classes_until_there_is_enough() {
    let dir = tempfile::tempdir().unwrap();
    let (fs, options) = guarded(dir.path(), &[beacons(FOREVER), half(FOREVER)]);
    let rig = Rig::open_with(&options);
    fill(&rig, 0..600);
    let shared = &rig.store;
    let finished = |name: &str| {
        let class = shared.classes.find(name).unwrap();
        shared
            .segments
            .of(class)
            .iter()
            .filter(|s| s.is_finished())
            .count()
    };
    let all = ["beacons", "half", "jobs"].map(finished);
    assert!(all.iter().all(|n| *n > 5), "{all:?}");
    rig.store.hold(&jid(1), "").unwrap();
    let freed_at = |available| {
        // The retainer's thread, which looks every second, would be first otherwise.
        let _one = shared.0.retention.lock_round();
        fs.available.store(available, Ordering::Relaxed);
        shared.0.retention.free_disk_space()
    };
    // One segment suffices.
    let drops = freed_at(199_999_999);
    assert_eq!(dropped(&drops), [("beacons", Reason::Space)]);
    assert_eq!(shared.0.guard.room(), SpaceLevel::Ample);
    // Dropping everything does not suffice.
    let drops = dropped(&freed_at(0))
        .into_iter()
        .map(|(class, _)| class.to_owned())
        .collect::<Vec<_>>();
    let mut order = drops.clone();
    order.dedup();
    assert_eq!(order, ["beacons", "half", "jobs"]);
    assert_eq!(finished("beacons"), 0);
    assert!(finished("jobs") > 0, "the segment of the held job stays");
    assert_eq!(rig.store.job_entries(&jid(1)).unwrap().len(), 7);
}

#[test]
fn the_guard_checks_at_intervals_and_at_every_commit_near_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let (fs, options) = guarded(dir.path(), &[]);
    let guard = FreeSpaceGuard::new(dir.path(), fs.clone(), options.clock.clone(), options.free);
    fs.available.store(0, Ordering::Relaxed);
    assert_eq!(
        guard.check_if_due(),
        SpaceLevel::Full,
        "near the limit every call checks"
    );
    let roomy = |bytes| fs.available.store(bytes, Ordering::Relaxed);
    roomy(1 << 40);
    assert_eq!(guard.check_if_due(), SpaceLevel::Ample);
    roomy(1_000_000);
    options.clock.wind(199_000);
    assert_eq!(guard.check_if_due(), SpaceLevel::Ample);
    options.clock.wind(1_000);
    assert_eq!(guard.check_if_due(), SpaceLevel::Low);
    roomy(1 << 40);
    guard.check();
    roomy(999_999);
    options.clock.wind(-3_600_000_000);
    assert_eq!(
        guard.check_if_due(),
        SpaceLevel::Full,
        "a clock set back triggers a check"
    );
    // Defaults: a fraction of the file system, within limits.
    let auto =
        FreeSpaceGuard::new(dir.path(), fs.clone(), options.clock, FreeSpace::default()).last();
    assert_eq!((auto.low, auto.min), (3 << 30, 1 << 30));
}

#[test]
fn a_full_disk_rejects_entries_with_a_reason_allows_reads_and_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let (fs, options) = guarded(dir.path(), &[]);
    let rig = Rig::open_with(&options);
    rig.put(batch_of(0..30)).unwrap();
    fs.available.store(999_999, Ordering::Relaxed);
    // The check after this commit finds the disk full, and wakes the retainer.
    rig.put(batch_of(30..32)).unwrap();
    wait_for("full disk", || {
        (rig.store.0.guard.room() == SpaceLevel::Full).then_some(())
    });
    let words = rig.put(batch_of(32..35)).unwrap_err();
    let expected = format!(
        "the disk is full: {} has 999999 bytes free, and 1000000 are kept free (store.free_bytes_min)",
        dir.path().display()
    );
    assert_eq!(words, expected);
    assert_eq!(rig.metrics.entries_rejected_disk_full.get(), 3);
    check_all(&rig, 0..32);
    rig.put(saltcellar_model::Batch::default()).unwrap();
    fs.available.store(1_500_000, Ordering::Relaxed);
    // The clock does not advance, so no periodic round runs.
    wait_for("room again", || rig.put(batch_of(32..35)).ok());
    check_all(&rig, 0..35);
    assert_eq!(rig.store.0.guard.room(), SpaceLevel::Low);
}
