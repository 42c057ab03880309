//! Consumers on a whole store.

use std::path::Path;

use super::*;
use crate::retain::{DropOutcome, PlannedDrop};
use crate::tests::retention::{FOREVER, events, fill, jobs, settle, with};
use crate::tests::{Rig, batch_of, event, options};
use crate::vfs::Fs;
use crate::{Classes, Limits, Options, Store};
use saltcellar_base::clock::{Clock, Micros};
use saltcellar_model::{ClassRules, Keep};
use saltcellar_testkit::wait_for;

const ALL: BatchLimits = BatchLimits {
    events: 10_000,
    bytes: usize::MAX,
};
const LEASE: Duration = Duration::from_secs(30);

/// The tags of all events from the beginning on, as the consumer `audit` gets them, without those of what
/// cannot be read.
pub(crate) fn take_all(store: &Store) -> Vec<String> {
    store.consumers().seek("audit", Start::Oldest).unwrap();
    let mut tags = Vec::new();
    loop {
        let batch = store
            .consumers()
            .next_batch("audit", "me", LEASE, ALL)
            .unwrap();
        let texts = batch.events.iter().map(|event| &event.tag);
        let texts = texts.map(|tag| String::from_utf8_lossy(tag).into_owned());
        tags.extend(texts.filter(|tag| tag != "saltcellar/gap/damage"));
        if let Some(last) = batch.events.last() {
            store.consumers().ack("audit", "me", last.seq).unwrap();
        }
        if batch.is_end {
            return tags;
        }
    }
}

pub(crate) fn filter(json: &str) -> EntryFilter {
    serde_json::from_str(json).unwrap()
}

/// A store of small segments with the consumer `audit` at its beginning, and a manual clock.
fn rig(dir: &Path, json: &str) -> (Rig, Clock) {
    let options = Options {
        classes: Classes::new(&[jobs(FOREVER), events(FOREVER)]),
        ..with(dir, &[])
    };
    let rig = Rig::open_with(&options);
    rig.store
        .consumers()
        .create("audit", filter(json), Start::Oldest)
        .unwrap();
    (rig, options.clock)
}

fn take(rig: &Rig, events: usize) -> Vec<u64> {
    let batch = rig
        .store
        .consumers()
        .next_batch("audit", "me", LEASE, BatchLimits { events, ..ALL })
        .unwrap();
    batch.events.iter().map(|event| event.seq.0).collect()
}

fn cursor(rig: &Rig) -> u64 {
    rig.store.consumers().all().unwrap()[0].record.cursor.0
}

#[test]
fn whether_a_consumer_is_of_a_sink_is_known_while_a_change_waits_for_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (rig, _) = rig(dir.path(), "{}");
    assert!(!rig.store.consumers().is_of_sink("audit"));
    rig.store.consumers().give_to_sink("audit").unwrap();

    let change = rig.store.consumers().state.lock();
    let (found, is_found) = std::sync::mpsc::sync_channel(1);
    let store = rig.store.clone();
    let asking = std::thread::Builder::new();
    let asking = asking.spawn(move || found.send(store.consumers().is_of_sink("audit")));
    let answer = is_found.recv_timeout(Duration::from_secs(30));
    drop(change);
    assert_eq!(answer, Ok(true));
    asking.unwrap().join().unwrap().unwrap();

    let rig = rig.reopened();
    assert!(
        rig.store.consumers().is_of_sink("audit"),
        "also after a start"
    );
    rig.store.consumers().delete("audit").unwrap();
    assert!(!rig.store.consumers().is_of_sink("audit"));
}

#[test]
fn events_are_delivered_until_they_are_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = rig(dir.path(), "{}");
    fill(&store, 0..50);
    assert_eq!(take(&store, 10), (1..=10).collect::<Vec<_>>());
    assert_eq!(
        take(&store, 10),
        (1..=10).collect::<Vec<_>>(),
        "not acknowledged"
    );
    store
        .store
        .consumers()
        .ack("audit", "me", SeqNo(4))
        .unwrap();
    assert_eq!(take(&store, 3), [5, 6, 7]);
    store
        .store
        .consumers()
        .ack("audit", "me", SeqNo(2))
        .unwrap();
    assert_eq!(
        cursor(&store),
        5,
        "a repeated acknowledgement changes nothing"
    );
    let error = store
        .store
        .consumers()
        .ack("audit", "me", SeqNo(51))
        .unwrap_err()
        .to_string();
    assert!(error.contains("event 51 does not exist"), "{error}");
    store.close();
    // Without any orderly end of the consumer.
    let (store, _) = rig(dir.path(), "{}");
    assert_eq!(take(&store, 2), [5, 6]);
    store
        .store
        .consumers()
        .ack("audit", "me", SeqNo(50))
        .unwrap();
    let batch = store
        .store
        .consumers()
        .next_batch("audit", "me", LEASE, ALL)
        .unwrap();
    assert!(batch.events.is_empty() && batch.is_end && batch.next == SeqNo(51));
}

#[test]
fn the_cursor_advances_over_events_that_do_not_match() {
    let dir = tempfile::tempdir().unwrap();
    // Every third event is a beacon's.
    let (store, _) = rig(
        dir.path(),
        r#"{"match": [{"tag": "salt/beacon/*"}], "where": "data.return >= 30"}"#,
    );
    fill(&store, 0..30);
    assert_eq!(take(&store, 10), [] as [u64; 0]);
    assert_eq!(cursor(&store), 31, "nothing to acknowledge");
    store.put_each(30..100);
    assert_eq!(take(&store, 2), [31, 34]);
    assert_eq!(cursor(&store), 31);
    store
        .store
        .consumers()
        .ack("audit", "me", SeqNo(31))
        .unwrap();
    assert_eq!(cursor(&store), 32);
    assert_eq!(take(&store, 100).len(), 23);
    store
        .store
        .consumers()
        .ack("audit", "me", SeqNo(100))
        .unwrap();
    // Event 100 is the last one and a match.
    assert_eq!(cursor(&store), 101);
    store.put_each(100..102);
    assert_eq!(take(&store, 9), [] as [u64; 0]);
    assert_eq!(cursor(&store), 103);
    let status = &store.store.consumers().all().unwrap()[0];
    assert_eq!((status.lag_entries, status.lag), (0, Duration::ZERO));
}

#[test]
fn a_cursor_beyond_the_end_of_the_log_stays_moved_back_when_the_log_grows_past_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = rig(dir.path(), "{}");
    store.put_each(0..10);
    let settings = store.store.settings();
    let record = settings.get::<ConsumerRecord>("audit").unwrap().value;
    // As if the log were of an older backup than the settings.
    let beyond = ConsumerRecord {
        cursor: SeqNo(31),
        ..record.unwrap()
    };
    settings.put("audit", &beyond, Save::Durable).unwrap();

    let store = store.reopened();
    assert_eq!(cursor(&store), 11);
    // Nothing else changes the record before the next start.
    store.put_each(10..60);
    let store = store.reopened();
    assert_eq!(take(&store, 100), (11..=60).collect::<Vec<_>>());
}

/// The record of a consumer as a later release may write it.
#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Later {
    places: Vec<u64>,
}

impl Setting for Later {
    const KIND: &'static str = ConsumerRecord::KIND;
}

#[test]
fn a_consumer_of_another_release_is_kept_and_keeps_its_events_until_it_is_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = rig(dir.path(), "{}");
    fill(&store, 0..100);
    let later = || Later { places: vec![1, 7] };
    let settings = store.store.settings();
    settings.put("audit", &later(), Save::Durable).unwrap();

    let store = store.reopened();
    let consumers = store.store.consumers();
    assert_eq!(consumers.all().unwrap(), []);
    let create = || consumers.create("audit", EntryFilter::default(), Start::Newest);
    let error = create().unwrap_err().to_string();
    assert!(error.contains("cannot be read by this release"), "{error}");
    let saved = || store.store.settings().get::<Later>("audit");
    assert_eq!(saved().unwrap().value, Some(later()));

    // It may be a pinned one.
    let keep = Keep {
        entries: Some(10),
        ..FOREVER
    };
    let outcomes = || -> Vec<DropOutcome> {
        let retention = &store.store.0.retention;
        let planned = retention.plan(crate::class::Class::JOBS, keep, Micros(0));
        let planned = planned.unwrap().into_iter();
        planned.map(|(_, planned)| planned.outcome).collect()
    };
    let all_are = |outcome: &DropOutcome| {
        let found = outcomes();
        assert!(
            !found.is_empty() && found.iter().all(|found| found == outcome),
            "{found:?}"
        );
    };
    all_are(&DropOutcome::Pinned("audit".to_owned()));

    assert!(consumers.delete("audit").unwrap());
    assert!(saved().is_none());
    all_are(&DropOutcome::Planned);
    assert_eq!(create().unwrap().cursor, SeqNo(101));
}

#[test]
fn a_second_holder_is_refused_until_the_lease_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (store, clock) = rig(dir.path(), "{}");
    store.put_each(0..10);
    assert_eq!(take(&store, 1), [1]);
    let other = |store: &Rig| {
        store
            .store
            .consumers()
            .next_batch("audit", "other", LEASE, ALL)
            .map(|batch| batch.events.len())
    };
    let error = other(&store).unwrap_err().to_string();
    assert_eq!(
        error,
        "consumer \"audit\" is in use by \"me\" for at least 31 s more; stop that holder, or use another name"
    );
    assert!(
        store
            .store
            .consumers()
            .ack("audit", "other", SeqNo(1))
            .is_err()
    );
    assert!(store.store.consumers().nack("audit", "other", "x").is_err());
    clock.wind(29_000_000);
    assert!(other(&store).is_err());
    clock.wind(2_000_000);
    assert_eq!(other(&store).unwrap(), 10);
    assert!(
        store
            .store
            .consumers()
            .ack("audit", "me", SeqNo(1))
            .is_err(),
        "the first holder has lost it"
    );
    store.store.consumers().release("audit", "me").unwrap();
    assert!(
        store
            .store
            .consumers()
            .next_batch("audit", "me", LEASE, ALL)
            .is_err(),
        "only its holder releases it"
    );
    store.store.consumers().release("audit", "other").unwrap();
    assert_eq!(take(&store, 1), [1]);
}

#[test]
fn a_consumer_is_moved_paused_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = rig(dir.path(), "{}");
    fill(&store, 0..100);
    assert_eq!(take(&store, 1), [1]);
    let seek = |start| {
        store
            .store
            .consumers()
            .seek("audit", start)
            .unwrap()
            .cursor
            .0
    };
    assert_eq!(seek(Start::Newest), 101);
    let error = store
        .store
        .consumers()
        .ack("audit", "me", SeqNo(1))
        .unwrap_err()
        .to_string();
    assert!(error.contains("was moved"), "{error}");
    assert_eq!(seek(Start::Seq(SeqNo(7))), 7);
    // Event n arrived at n microseconds, and has the number n + 1.
    assert_eq!(seek(Start::Time(Micros(42))), 43);
    assert_eq!(seek(Start::Time(Micros(1_000))), 101);
    assert_eq!(seek(Start::Seq(SeqNo(1_000))), 101);
    assert_eq!(seek(Start::Oldest), 1);
    store.store.consumers().pause("audit", true).unwrap();
    let batch = store
        .store
        .consumers()
        .next_batch("audit", "me", LEASE, ALL)
        .unwrap();
    assert!(batch.paused && batch.events.is_empty());
    store.store.consumers().pause("audit", false).unwrap();
    assert_eq!(take(&store, 1), [1]);
    store
        .store
        .consumers()
        .nack("audit", "me", "far side\nis away")
        .unwrap();
    let error = store.store.consumers().all().unwrap()[0]
        .record
        .error
        .clone()
        .unwrap();
    assert_eq!(error.message, "far side is away");
    // Another filter for an existing consumer.
    store
        .store
        .consumers()
        .ack("audit", "me", SeqNo(1))
        .unwrap();
    store
        .store
        .consumers()
        .create(
            "audit",
            filter(r#"{"match": [{"minion": "web9*"}]}"#),
            Start::Oldest,
        )
        .unwrap();
    // Those of web91 and web92; web90 and web93 are beacons of other minions.
    assert_eq!(take(&store, 2), [92, 93]);
    assert!(store.store.consumers().delete("audit").unwrap());
    assert!(!store.store.consumers().delete("audit").unwrap());
    let error = store
        .store
        .consumers()
        .next_batch("audit", "me", LEASE, ALL)
        .unwrap_err()
        .to_string();
    assert!(error.contains("does not exist"), "{error}");
    for name in [
        "",
        ".a",
        "a b",
        "a/b",
        &"x".repeat(CONSUMER_NAME_BYTES_MAX + 1),
    ] {
        assert!(
            store
                .store
                .consumers()
                .create(name, EntryFilter::default(), Start::Oldest)
                .is_err(),
            "{name}"
        );
    }
}

/// What follows a position for the consumer `audit`, read without it.
fn ahead(rig: &Rig, from: u64, limits: BatchLimits) -> (Vec<StoredEntry>, ReadAhead) {
    let (consumers, from) = (rig.store.consumers(), SeqNo(from));
    let filter = consumers.all().unwrap()[0].record.filter.clone();
    let range = from..rig.store.durable();
    let (events, next) = consumers.read(&filter, range, limits).unwrap().unwrap();
    let last = events.last().map(|event| event.seq);
    let ahead = ReadAhead {
        filter,
        from,
        last,
        next,
    };
    (events, ahead)
}

#[test]
fn what_is_read_without_a_match_moves_the_cursor() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = rig(dir.path(), r#"{"match": [{"tag": "other/*"}]}"#);
    fill(&store, 0..100);
    let consumers = store.store.consumers();
    assert_eq!(consumers.place("audit").unwrap(), Some(SeqNo(1)));
    let (events, next) = ahead(&store, 1, ALL);
    assert_eq!((events, next.last), (Vec::new(), None));
    assert!(consumers.take_ahead("audit", "me", LEASE, &next).unwrap());
    assert_eq!(consumers.place("audit").unwrap(), Some(SeqNo(101)));
    consumers.pause("audit", true).unwrap();
    assert_eq!(consumers.place("audit").unwrap(), None);
}

#[test]
fn what_was_read_ahead_is_the_next_batch_only_if_nothing_has_changed() {
    let dir = tempfile::tempdir().unwrap();
    let (store, clock) = rig(dir.path(), r#"{"match": [{"tag": "salt/beacon/*"}]}"#);
    fill(&store, 0..100);
    let ahead = |from| ahead(&store, from, BatchLimits { events: 3, ..ALL });
    let accepted = |ahead: &ReadAhead| {
        store
            .store
            .consumers()
            .take_ahead("audit", "me", LEASE, ahead)
            .unwrap()
    };
    assert_eq!(take(&store, 3), [1, 4, 7]);
    let (events, next) = ahead(8);
    assert_eq!(
        events.iter().map(|event| event.seq.0).collect::<Vec<_>>(),
        [10, 13, 16]
    );
    assert_eq!(
        (next.from, next.last, next.next),
        (SeqNo(8), Some(SeqNo(16)), SeqNo(17))
    );
    assert!(!accepted(&next), "the batch before is not acknowledged");
    store
        .store
        .consumers()
        .ack("audit", "me", SeqNo(7))
        .unwrap();
    clock.wind(29_000_000);
    assert!(accepted(&next));
    clock.wind(29_000_000);
    let error = store
        .store
        .consumers()
        .take_ahead("audit", "other", LEASE, &next)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("in use by \"me\""),
        "the lease was renewed: {error}"
    );
    store
        .store
        .consumers()
        .ack("audit", "me", SeqNo(16))
        .unwrap();
    assert_eq!(cursor(&store), 17);
    assert_eq!(ahead(101).0, [], "nothing follows");
    let (_, next) = ahead(17);
    store
        .store
        .consumers()
        .seek("audit", Start::Oldest)
        .unwrap();
    assert!(!accepted(&next));
    store
        .store
        .consumers()
        .seek("audit", Start::Seq(SeqNo(17)))
        .unwrap();
    assert!(accepted(&next));
    store.store.consumers().pause("audit", true).unwrap();
    assert!(!accepted(&next));
    store.store.consumers().pause("audit", false).unwrap();
    store
        .store
        .consumers()
        .create("audit", EntryFilter::default(), Start::Oldest)
        .unwrap();
    assert!(!accepted(&next), "of another filter");
}

#[test]
fn what_was_read_ahead_is_read_again_if_retention_dropped_entries() {
    let dir = tempfile::tempdir().unwrap();
    let keep = Keep {
        entries: Some(40),
        ..FOREVER
    };
    let rig = Rig::open_with(&with(dir.path(), &[jobs(keep), events(keep)]));
    rig.store
        .consumers()
        .create("audit", EntryFilter::default(), Start::Oldest)
        .unwrap();
    fill(&rig, 0..600);
    take(&rig, 3);
    let (_, ahead) = ahead(&rig, 4, ALL);
    rig.store.0.retention.run_round();
    rig.store.consumers().ack("audit", "me", SeqNo(3)).unwrap();
    assert_eq!(cursor(&rig), 4);
    assert!(
        !rig.store
            .consumers()
            .take_ahead("audit", "me", LEASE, &ahead)
            .unwrap()
    );
    let batch = rig
        .store
        .consumers()
        .next_batch("audit", "me", LEASE, ALL)
        .unwrap();
    assert_eq!(batch.events[0].tag, b"saltcellar/gap/retention");
}

#[test]
fn a_lease_ends_with_the_process_that_it_is_bound_to() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = rig(dir.path(), "{}");
    store.put_each(0..3);
    let mut child = std::process::Command::new("/bin/sleep")
        .arg("1000")
        .spawn()
        .unwrap();
    assert_eq!(take(&store, 1), [1]);
    store
        .store
        .consumers()
        .bind_lease("audit", "me", HolderProcess::find(child.id()).unwrap())
        .unwrap();
    let other = || {
        store
            .store
            .consumers()
            .next_batch("audit", "other", LEASE, ALL)
            .map(|batch| batch.events.len())
    };
    assert!(other().is_err());
    assert_eq!(take(&store, 1), [1], "a renewal keeps the process");
    assert!(other().is_err());
    child.kill().unwrap();
    // Also before its parent collects it.
    saltcellar_testkit::wait_for("the end of the lease", || other().ok());
    child.wait().unwrap();
    assert!(HolderProcess::find(std::process::id()).is_some() && HolderProcess::find(0).is_none());
}

/// A store that keeps only about 40 events, whose consumer has processed three of 600.
fn overtaken(dir: &Path, pin: bool, limits: Limits) -> (Rig, Vec<PlannedDrop>) {
    let keep = Keep {
        entries: Some(40),
        ..FOREVER
    };
    let rules: [ClassRules; 2] = [jobs(keep), events(FOREVER)];
    let rig = Rig::open_with(&Options {
        classes: Classes::new(&rules),
        ..options(dir, limits)
    });
    rig.store
        .consumers()
        .create("audit", EntryFilter::default(), Start::Oldest)
        .unwrap();
    rig.store
        .consumers()
        .create(
            "elsewhere",
            filter(r#"{"match": [{"class": "events"}]}"#),
            Start::Oldest,
        )
        .unwrap();
    rig.store.pin_consumer("audit", pin).unwrap();
    fill(&rig, 0..600);
    take(&rig, 3);
    rig.store.consumers().ack("audit", "me", SeqNo(3)).unwrap();
    let drops = rig.store.0.retention.run_round();
    (rig, drops)
}

fn small() -> Limits {
    crate::tests::SMALL
}

#[test]
fn retention_that_overtakes_a_consumer_leaves_a_gap_record() {
    let dir = tempfile::tempdir().unwrap();
    let (store, drops) = overtaken(dir.path(), false, small());
    assert!(
        drops
            .iter()
            .any(|drop| drop.outcome == DropOutcome::Dropped)
    );
    let status = store.store.consumers().all().unwrap();
    let lost = status[0].record.lost.unwrap();
    assert_eq!(status[1].record.lost, None, "its filter excludes the class");
    // Number 4 is an event of the other class.
    assert!(
        lost.first == SeqNo(5) && lost.last > SeqNo(500) && lost.entries > 300,
        "{lost:?}"
    );
    assert!(
        store.metrics.consumer_gaps.get() > 5
            && store.metrics.consumer_entries_lost.get() == lost.entries
    );
    // Events of the other class are still there; the gap is in its place.
    let batch = store
        .store
        .consumers()
        .next_batch("audit", "me", LEASE, ALL)
        .unwrap();
    let tags: Vec<_> = batch
        .events
        .iter()
        .map(|event| String::from_utf8(event.tag.clone()).unwrap())
        .collect();
    assert_eq!(
        (batch.events[0].seq, batch.events[1].seq),
        (SeqNo(4), SeqNo(5))
    );
    assert_eq!(
        (&tags[0][..12], tags[1].as_str()),
        ("salt/beacon/", "saltcellar/gap/retention")
    );
    assert!(batch.events.is_sorted_by(|a, b| a.seq < b.seq));
    assert!(store.store.event_id(&batch.events[1]).ends_with(":gap:5"));
    assert!(
        tags[2..]
            .iter()
            .all(|tag| !tag.starts_with("saltcellar/gap"))
    );
    // It stays until it is acknowledged, even across a restart.
    store.close();
    let (store, _) = rig(dir.path(), "{}");
    assert_eq!(take(&store, 1), [4]);
    store
        .store
        .consumers()
        .ack("audit", "me", SeqNo(4))
        .unwrap();
    assert_eq!(
        store.store.consumers().all().unwrap()[0].record.lost,
        Some(lost)
    );
    assert_eq!(take(&store, 1)[0], 5);
    store
        .store
        .consumers()
        .ack("audit", "me", SeqNo(5))
        .unwrap();
    assert_eq!(store.store.consumers().all().unwrap()[0].record.lost, None);
}

#[test]
fn a_gap_is_on_disk_before_its_segment_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open_with(&with(dir.path(), &[jobs(FOREVER), events(FOREVER)]));
    rig.store
        .consumers()
        .create("audit", EntryFilter::default(), Start::Oldest)
        .unwrap();
    fill(&rig, 0..600);
    let segments = rig.store.segments.all();
    let segment = segments
        .iter()
        .find(|segment| segment.totals().entries > 0)
        .unwrap();
    let noted = rig.store.consumers().note_lost(segment);
    let lost = || {
        let found = rig.store.settings().get::<ConsumerRecord>("audit");
        found.unwrap().value.unwrap().lost
    };
    assert!(lost().is_some(), "as a daemon finds it that is killed now");
    rig.store.consumers().settle_lost(noted, false);
    assert_eq!(lost(), None);
}

#[test]
fn a_gap_begins_at_the_cursor_that_a_consumer_has_when_it_is_noted() {
    let dir = tempfile::tempdir().unwrap();
    let (rig, _) = rig(dir.path(), "{}");
    fill(&rig, 0..100);
    let consumers = rig.store.consumers();
    let segment = rig.store.segments.all().remove(1);
    let (first, last) = (segment.first_seq, segment.totals().last_seq);
    assert!(first < last);

    let all = take(&rig, 10_000);
    assert_eq!(all.len(), 100);
    // A consumer acknowledges an event while retention looks for the first one that it loses.
    let lost = || consumers.all().unwrap()[0].record.lost;
    let note = |acked: SeqNo| {
        let behind = consumers.behind(&segment);
        assert_eq!(behind.len(), 1);
        consumers.ack("audit", "me", acked).unwrap();
        let noted = consumers.note_lost_of(&segment, behind);
        consumers.settle_lost(noted, true);
        lost()
    };

    let mut acked = first;
    for _ in 0..3 {
        // Every third event is of the other class, and is not acknowledged with the gap.
        let own = (acked.0 + 1..acked.0 + 3).find(|seq| !(seq - 1).is_multiple_of(3));
        let gap = note(acked).unwrap().first;
        assert_eq!(Some(gap.0), own);
        // What is noted can be acknowledged.
        assert!(take(&rig, 10).contains(&gap.0));
        consumers.ack("audit", "me", gap).unwrap();
        assert_eq!(lost(), None);
        acked = gap.next();
    }
    assert_eq!(note(last), None);
    assert_eq!(take(&rig, 1), [last.0 + 1]);
}

#[test]
fn a_reader_that_continues_before_the_oldest_entry_gets_a_gap_record() {
    let dir = tempfile::tempdir().unwrap();
    let (rig, _) = rig(dir.path(), "{}");
    let gap = rig.store.gap_before(SeqNo(3), SeqNo(10)).unwrap();
    assert_eq!(
        (gap.seq, gap.tag.as_slice()),
        (SeqNo(3), &b"saltcellar/gap/retention"[..])
    );
    let body = rmpv::decode::read_value(&mut gap.body.as_slice()).unwrap();
    assert_eq!(
        (body["last"].as_u64(), body["lost"].as_u64()),
        (Some(9), Some(7))
    );
    assert!(rig.store.gap_before(SeqNo(10), SeqNo(10)).is_none());
    assert!(rig.store.gap_before(SeqNo(0), SeqNo::FIRST).is_none());
}

#[test]
fn a_segment_that_is_not_dropped_leaves_no_gap() {
    let dir = tempfile::tempdir().unwrap();
    let keep = Keep {
        entries: Some(40),
        ..FOREVER
    };
    let rig = Rig::open_with(&with(dir.path(), &[jobs(keep), events(FOREVER)]));
    rig.store
        .consumers()
        .create("audit", EntryFilter::default(), Start::Oldest)
        .unwrap();
    fill(&rig, 0..600);
    let segments = rig.store.segments.all();
    let in_work = segments
        .iter()
        .find(|segment| &*segment.class_name == "jobs")
        .unwrap()
        .work
        .lock();
    let drops = rig.store.0.retention.run_round();
    assert_eq!(
        drops
            .iter()
            .map(|drop| drop.outcome.clone())
            .collect::<Vec<_>>(),
        [DropOutcome::Busy]
    );
    assert_eq!(rig.store.consumers().all().unwrap()[0].record.lost, None);
    assert_eq!(take(&rig, 10_000).len(), 600);
    drop(in_work);
}

#[test]
fn events_that_were_processed_before_they_were_dropped_are_no_gap() {
    let dir = tempfile::tempdir().unwrap();
    let keep = Keep {
        entries: Some(40),
        ..FOREVER
    };
    let rig = Rig::open_with(&with(dir.path(), &[jobs(keep), events(keep)]));
    rig.store
        .consumers()
        .create("audit", EntryFilter::default(), Start::Oldest)
        .unwrap();
    fill(&rig, 0..600);
    let taken = take(&rig, 10_000);
    assert_eq!(taken.len(), 600);
    // Delivered, dropped, acknowledged.
    rig.store.0.retention.run_round();
    assert!(
        rig.store.consumers().all().unwrap()[0]
            .record
            .lost
            .is_some()
    );
    rig.store
        .consumers()
        .ack("audit", "me", SeqNo(600))
        .unwrap();
    assert_eq!(rig.store.consumers().all().unwrap()[0].record.lost, None);
}

#[test]
fn a_pinned_consumer_keeps_its_events_up_to_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let (store, drops) = overtaken(dir.path(), true, small());
    assert!(
        drops
            .iter()
            .all(|drop| drop.outcome == DropOutcome::Pinned("audit".to_owned())),
        "{drops:?}"
    );
    assert!(drops.len() > 5);
    let bytes: u64 = drops.iter().map(|drop| drop.segment_usage.disk_bytes).sum();
    let all = take(&store, 10_000);
    assert_eq!(all, (4..=600).collect::<Vec<_>>());
    store
        .store
        .consumers()
        .ack("audit", "me", SeqNo(600))
        .unwrap();
    let drops = store.store.0.retention.run_round();
    assert!(
        drops
            .iter()
            .all(|drop| drop.outcome == DropOutcome::Dropped),
        "{drops:?}"
    );
    store.close();

    let dir = tempfile::tempdir().unwrap();
    let (store, drops) = overtaken(
        dir.path(),
        true,
        Limits {
            pin_bytes_max: bytes / 2,
            ..small()
        },
    );
    let kept: u64 = drops
        .iter()
        .filter(|drop| matches!(drop.outcome, DropOutcome::Pinned(_)))
        .map(|drop| drop.segment_usage.disk_bytes)
        .sum();
    assert!((1..=bytes / 2).contains(&kept), "{kept} of {bytes}");
    assert!(
        drops[0].outcome == DropOutcome::Dropped,
        "the oldest goes first"
    );
    assert!(
        store.store.consumers().all().unwrap()[0]
            .record
            .lost
            .is_some()
    );
}

#[test]
fn a_full_disk_refuses_changes_and_nothing_is_skipped() {
    use std::sync::Arc;

    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan");
    std::fs::write(&plan, "").unwrap();
    let faults = crate::vfs::faults::Faults::parse(plan.to_str().unwrap()).unwrap();
    let fs: Arc<dyn Fs> = Arc::new(faults);
    let state = dir.path().join("state");
    let rig = Rig::open_with(&Options {
        fs,
        ..options(&state, Limits::default())
    });
    rig.store
        .consumers()
        .create("audit", EntryFilter::default(), Start::Oldest)
        .unwrap();
    rig.put_each(0..10);
    std::fs::write(&plan, "write=ENOSPC@1+:log/settings").unwrap();
    take(&rig, 5);
    let refused = wait_for("a failed write", || {
        rig.store.consumers().nack("audit", "me", "x").err()
    });
    assert!(refused.is_no_space(), "{refused}");
    rig.store
        .consumers()
        .ack("audit", "me", SeqNo(3))
        .unwrap_err();
    assert_eq!(cursor(&rig), 1);
    std::fs::write(&plan, "").unwrap();
    wait_for("room", || {
        rig.store.consumers().ack("audit", "me", SeqNo(5)).ok()
    });
    rig.close();
    let rig = Rig::open(&state, Limits::default());
    assert_eq!(cursor(&rig), 6);
}

#[test]
fn ids_are_stable_and_batches_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = rig(dir.path(), "{}");
    store.put(batch_of(0..100)).unwrap();
    settle(&store);
    let id_of = |store: &Rig| {
        let batch = store
            .store
            .consumers()
            .next_batch("audit", "me", LEASE, ALL)
            .unwrap();
        store.store.event_id(&batch.events[6])
    };
    let id = id_of(&store);
    let one = event(0).0.len() + event(0).1.len();
    let limits = BatchLimits {
        events: 10_000,
        bytes: one * 3,
    };
    let batch = store
        .store
        .consumers()
        .next_batch("audit", "me", LEASE, limits)
        .unwrap();
    assert!(
        (2..=4).contains(&batch.events.len()) && !batch.is_end,
        "{}",
        batch.events.len()
    );
    store.close();
    let (store, _) = rig(dir.path(), "{}");
    assert_eq!(id_of(&store), id);
    let (uuid, seq) = id.split_once(':').unwrap();
    assert!(uuid.len() == 16 && seq == "7", "{id}");
}
