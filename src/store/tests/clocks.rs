//! Retention by age under clocks that are set, and with entries whose time is wrong.

use super::super::retention::{Fate, PruneWish, Reason};
use super::super::retention_tests::{DAY, FOREVER, HOUR, events, gone, jobs, settle, with};
use super::*;
use crate::model::{Age, Keep};

const NOW: Micros = Micros(1_800_000_000_000_000);

fn options_at(dir: &Path, keep: Keep, now: Micros) -> Options {
    Options { clock: Clock::hand_wound(now), ..with(dir, &[jobs(FOREVER), events(keep)]) }
}

/// Puts in events that come in now, a minute apart, so that segments roll.
fn fill(rig: &Rig, clock: &Clock, numbers: std::ops::Range<u64>) {
    for n in numbers {
        let (tag, data) = event(n * 3);
        rig.put(Batch::of(&event_entry(tag.as_bytes(), &data, Source::Bus, clock.now()))).unwrap();
        clock.wind(60_000_000);
    }
    settle(rig);
}

fn finished(rig: &Rig) -> usize {
    rig.store.0.segments(Class::EVENTS).iter().filter(|segment| segment.is_finished()).count()
}

/// Every finished segment is dropped, here or by the store's own round: time that passed made that due, too.
fn all_go(rig: &Rig) {
    crate::testing::wait_for("every finished segment to be dropped", || {
        let going = rig.store.0.round();
        assert!(going.iter().all(|g| g.reason == Reason::Age), "{going:?}");
        (finished(rig) == 0).then_some(())
    });
}

const MONTH: Keep = Keep { age: Age::For(Duration::from_secs(30 * 86_400)), ..FOREVER };

#[test]
fn a_clock_that_jumped_40_days_ahead_deleted_every_finished_segment() {
    let dir = tempfile::tempdir().unwrap();
    let options = options_at(dir.path(), MONTH, NOW);
    let clock = &options.clock;
    let rig = Rig::open_with(&options);
    fill(&rig, clock, 0..100);
    let before = finished(&rig);
    assert!(before > 5, "{before}");
    clock.set(Micros(clock.now().0 + 40 * 24 * HOUR));
    assert_eq!(rig.store.0.round(), []);
    let step = rig.store.stats().unwrap().clock_step.unwrap();
    assert_eq!((step.ahead, step.left), (40 * 24 * HOUR, DAY));
    assert_eq!(rig.metrics.clock_steps.get(), 1);
    // Not by age alone is deleted.
    let entries = Some(Keep { entries: Some(60), ..FOREVER });
    let wish = PruneWish { class: Some("events".to_owned()), keep: entries, dry_run: false };
    let went = rig.store.prune(&wish).unwrap();
    assert!(!went.is_empty() && went.iter().all(|g| (g.reason, &g.fate) == (Reason::Entries, &Fate::Gone)));
    assert!(rig.store.stats().unwrap().clock_step.is_some(), "that was no word about the time");
    rig.close();

    // A restart does not make it right, nor do entries that have come in since.
    let rig = Rig::open_with(&options);
    fill(&rig, clock, 100..110);
    let left = finished(&rig);
    assert_eq!(rig.store.0.round(), []);
    assert!(rig.store.stats().unwrap().clock_step.is_some());
    // An administrator does.
    let all = rig.store.prune(&PruneWish { dry_run: true, ..PruneWish::default() }).unwrap();
    assert!(all.len() > 2 && all.iter().all(|g| (g.reason, &g.fate) == (Reason::Age, &Fate::Goes)));
    assert_eq!((rig.store.0.round(), finished(&rig)), (vec![], left), "a dry run confirms nothing");
    assert_eq!(gone(&rig.store.prune(&PruneWish::default()).unwrap()).len(), all.len());
    assert_eq!(rig.store.stats().unwrap().clock_step, None);
    rig.close();
}

#[test]
fn the_wait_for_a_clock_that_was_set_ends_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let options = options_at(dir.path(), MONTH, NOW);
    let clock = &options.clock;
    let rig = Rig::open_with(&options);
    fill(&rig, clock, 0..100);
    assert!(finished(&rig) > 5);
    clock.set(Micros(clock.now().0 + 40 * 24 * HOUR));
    assert_eq!(rig.store.0.round(), []);
    clock.wind(24 * HOUR - 1);
    assert_eq!((rig.store.0.round(), finished(&rig) > 5), (vec![], true));
    clock.wind(1);
    all_go(&rig);
    rig.close();
}

#[test]
fn an_entry_of_the_far_future_kept_its_segment_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let options = options_at(dir.path(), MONTH, NOW);
    let clock = &options.clock;
    let rig = Rig::open_with(&options);
    fill(&rig, clock, 0..30);
    for at in [Micros(i64::MAX), Micros(NOW.0 + 1000 * 24 * HOUR)] {
        let (tag, data) = event(3000);
        let tag = format!("{tag}{}", at.0);
        rig.put(Batch::of(&event_entry(tag.as_bytes(), &data, Source::SpooledEventReturn, at))).unwrap();
        fill(&rig, clock, 30..60);
        fill(&rig, clock, 100..130);
    }
    let future = |s: &&Arc<segment::Segment>| s.is_finished() && s.sums().at_max > clock.now();
    assert_eq!(rig.store.0.segments(Class::EVENTS).iter().filter(future).count(), 2);
    clock.wind(29 * 24 * HOUR);
    assert_eq!(rig.store.0.round(), []);
    clock.wind(2 * 24 * HOUR);
    all_go(&rig);
    rig.close();
}

#[test]
fn what_came_in_while_the_clock_was_set_back_was_deleted_too_early() {
    let dir = tempfile::tempdir().unwrap();
    let options = options_at(dir.path(), MONTH, NOW);
    let clock = &options.clock;
    let rig = Rig::open_with(&options);
    fill(&rig, clock, 0..100);
    clock.set(Micros(clock.now().0 - 40 * 24 * HOUR));
    assert_eq!(rig.store.0.round(), []);
    fill(&rig, clock, 100..200);
    clock.set(Micros(clock.now().0 + 40 * 24 * HOUR));
    assert_eq!(rig.store.0.round(), []);
    assert_eq!(rig.store.stats().unwrap().clock_step, None, "it is back where it was");
    fill(&rig, clock, 200..210);
    clock.wind(29 * 24 * HOUR);
    assert_eq!(rig.store.0.round(), []);
    clock.wind(2 * 24 * HOUR);
    all_go(&rig);
    rig.close();
}

#[test]
fn a_clock_that_was_set_took_salts_longer_word_for_old() {
    let dir = tempfile::tempdir().unwrap();
    let options = options_at(dir.path(), FOREVER, NOW);
    let rig = Rig::open_with(&options);
    let age_after = |seconds| {
        rig.store.salt_says(Some(seconds));
        rig.store.0.retention.salt_age().map(|age| age.as_secs())
    };
    assert_eq!(age_after(7200), Some(7200));
    options.clock.set(Micros(NOW.0 + 24 * HOUR));
    assert_eq!(age_after(3600), Some(7200));
    options.clock.set(Micros(NOW.0 - 24 * HOUR));
    options.clock.wind(HOUR);
    assert_eq!(age_after(3600), Some(3600), "it has not been said for an hour");
    rig.close();
}
