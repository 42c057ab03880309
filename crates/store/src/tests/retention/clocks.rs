//! Retention by age with steps of the wall clock, and with wrong arrival times.

use crate::retain::{DropOutcome, PruneOptions, Reason};
use crate::tests::retention::{DAY, FOREVER, HOUR, dropped, events, jobs, settle, with};
use crate::tests::*;
use saltcellar_model::{Age, Keep};

const NOW: Micros = Micros(1_800_000_000_000_000);

fn options_at(dir: &Path, keep: Keep, now: Micros) -> Options {
    Options {
        clock: Clock::manual(now),
        ..with(dir, &[jobs(FOREVER), events(keep)])
    }
}

/// Stores events that arrive now, a minute apart, which makes segments roll.
fn fill(rig: &Rig, clock: &Clock, numbers: std::ops::Range<u64>) {
    for n in numbers {
        let (tag, data) = event(n * 3);
        rig.put(Batch::of(&event_entry(
            tag.as_bytes(),
            &data,
            Source::Bus,
            clock.now(),
        )))
        .unwrap();
        clock.wind(60_000_000);
    }
    settle(rig);
}

fn finished(rig: &Rig) -> usize {
    rig.store
        .segments
        .of(Class::EVENTS)
        .iter()
        .filter(|segment| segment.is_finished())
        .count()
}

/// Checks that every finished segment is dropped, by this round or by a periodic one.
fn wait_until_all_dropped(rig: &Rig) {
    saltcellar_testkit::wait_for("every finished segment to be dropped", || {
        let planned = rig.store.0.retention.run_round();
        assert!(
            planned.iter().all(|g| g.reason == Reason::Age),
            "{planned:?}"
        );
        (finished(rig) == 0).then_some(())
    });
}

const MONTH: Keep = Keep {
    age: Age::For(Duration::from_secs(30 * 86_400)),
    ..FOREVER
};

#[test]
fn a_clock_40_days_ahead_deletes_no_segment() {
    let dir = tempfile::tempdir().unwrap();
    let options = options_at(dir.path(), MONTH, NOW);
    let clock = &options.clock;
    let rig = Rig::open_with(&options);
    fill(&rig, clock, 0..100);
    let before = finished(&rig);
    assert!(before > 5, "{before}");
    clock.set(Micros(clock.now().0 + 40 * 24 * HOUR));
    assert_eq!(rig.store.0.retention.run_round(), []);
    let step = rig.store.stats().unwrap().clock_step.unwrap();
    assert_eq!((step.ahead, step.left), (40 * 24 * HOUR, DAY));
    assert_eq!(rig.metrics.clock_steps.get(), 1);
    // Only deletion by age is affected.
    let entries = Some(Keep {
        entries: Some(60),
        ..FOREVER
    });
    let events_only = PruneOptions {
        class: Some("events".to_owned()),
        keep: entries,
        ..PruneOptions::default()
    };
    let drops = rig.store.prune(&events_only).unwrap();
    assert!(
        !drops.is_empty()
            && drops
                .iter()
                .all(|g| (g.reason, &g.outcome) == (Reason::Entries, &DropOutcome::Dropped))
    );
    assert!(
        rig.store.stats().unwrap().clock_step.is_some(),
        "other prunes do not confirm the clock"
    );
    rig.close();

    // Neither a restart nor later entries confirm the clock.
    let rig = Rig::open_with(&options);
    fill(&rig, clock, 100..110);
    let left = finished(&rig);
    assert_eq!(rig.store.0.retention.run_round(), []);
    assert!(rig.store.stats().unwrap().clock_step.is_some());
    // An administrator confirms it.
    let all = rig
        .store
        .prune(&PruneOptions {
            dry_run: true,
            ..PruneOptions::default()
        })
        .unwrap();
    assert!(
        all.len() > 2
            && all
                .iter()
                .all(|g| (g.reason, &g.outcome) == (Reason::Age, &DropOutcome::Planned))
    );
    assert_eq!(
        (rig.store.0.retention.run_round(), finished(&rig)),
        (vec![], left),
        "a dry run confirms nothing"
    );
    assert_eq!(
        dropped(&rig.store.prune(&PruneOptions::default()).unwrap()).len(),
        all.len()
    );
    assert_eq!(rig.store.stats().unwrap().clock_step, None);
}

#[test]
fn the_wait_after_a_clock_step_ends() {
    let dir = tempfile::tempdir().unwrap();
    let options = options_at(dir.path(), MONTH, NOW);
    let clock = &options.clock;
    let rig = Rig::open_with(&options);
    fill(&rig, clock, 0..100);
    assert!(finished(&rig) > 5);
    clock.set(Micros(clock.now().0 + 40 * 24 * HOUR));
    assert_eq!(rig.store.0.retention.run_round(), []);
    clock.wind(24 * HOUR - 1);
    assert_eq!(
        (rig.store.0.retention.run_round(), finished(&rig) > 5),
        (vec![], true)
    );
    clock.wind(1);
    wait_until_all_dropped(&rig);
}

#[test]
fn an_entry_of_the_far_future_does_not_keep_its_segment_forever() {
    let dir = tempfile::tempdir().unwrap();
    let options = options_at(dir.path(), MONTH, NOW);
    let clock = &options.clock;
    let rig = Rig::open_with(&options);
    fill(&rig, clock, 0..30);
    for at in [Micros(i64::MAX), Micros(NOW.0 + 1000 * 24 * HOUR)] {
        let (tag, data) = event(3000);
        let tag = format!("{tag}{}", at.0);
        rig.put(Batch::of(&event_entry(
            tag.as_bytes(),
            &data,
            Source::SpooledEventReturn,
            at,
        )))
        .unwrap();
        fill(&rig, clock, 30..60);
        fill(&rig, clock, 100..130);
    }
    let future = |s: &&Arc<segment::Segment>| s.is_finished() && s.totals().at_max > clock.now();
    assert_eq!(
        rig.store
            .segments
            .of(Class::EVENTS)
            .iter()
            .filter(future)
            .count(),
        2
    );
    clock.wind(29 * 24 * HOUR);
    assert_eq!(rig.store.0.retention.run_round(), []);
    clock.wind(2 * 24 * HOUR);
    wait_until_all_dropped(&rig);
}

#[test]
fn entries_stored_while_the_clock_was_set_back_are_not_deleted_early() {
    let dir = tempfile::tempdir().unwrap();
    let options = options_at(dir.path(), MONTH, NOW);
    let clock = &options.clock;
    let rig = Rig::open_with(&options);
    fill(&rig, clock, 0..100);
    clock.set(Micros(clock.now().0 - 40 * 24 * HOUR));
    assert_eq!(rig.store.0.retention.run_round(), []);
    fill(&rig, clock, 100..200);
    clock.set(Micros(clock.now().0 + 40 * 24 * HOUR));
    assert_eq!(rig.store.0.retention.run_round(), []);
    assert_eq!(
        rig.store.stats().unwrap().clock_step,
        None,
        "the clock is correct again"
    );
    fill(&rig, clock, 200..210);
    clock.wind(29 * 24 * HOUR);
    assert_eq!(rig.store.0.retention.run_round(), []);
    clock.wind(2 * 24 * HOUR);
    wait_until_all_dropped(&rig);
}

#[test]
fn rates_do_not_follow_a_clock_that_is_set_back() {
    let dir = tempfile::tempdir().unwrap();
    let options = with(dir.path(), &[]);
    let rig = Rig::open_with(&options);
    rig.store.0.rates.sample();
    rig.put_each(0..10);
    options.clock.wind(60_000_000);
    options.clock.wind(-HOUR);
    let stats = rig.store.stats().unwrap();
    let rate: f64 = stats.classes.iter().map(|class| class.rate).sum();
    assert!(rate > 0.1 && rate < 0.2, "{rate}");
}
