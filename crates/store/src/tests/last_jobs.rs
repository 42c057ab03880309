//! The latest job of a function on each minion, for any order of storing and dropping.

use std::collections::BTreeMap;

use super::*;
use crate::tests::retention::{FOREVER, events, is_cleared, jobs, settle};

/// A return by a returner call.
fn answer(minion: &str, jid: &str) -> Batch {
    answer_by(Source::Returner, minion, jid)
}

fn answer_by(source: Source, minion: &str, jid: &str) -> Batch {
    let mut w = Writer::new();
    w.map(4)
        .str("fun")
        .str("test.echo")
        .str("return")
        .nil()
        .str("id")
        .str(minion)
        .str("jid")
        .str(jid);
    let (tag, data) = (format!("salt/job/{jid}/ret/{minion}"), w.into_bytes());
    Batch::of(&event_entry(tag.as_bytes(), &data, source, Micros(0)))
}

#[test]
fn a_forged_event_does_not_become_the_latest_job() {
    let (dir, rig) = Rig::new(SMALL);
    rig.put(answer("db1", &jid(5))).unwrap();
    rig.put(answer_by(Source::Bus, "db1", &jid(900))).unwrap();
    rig.put(answer_by(Source::EventReturn, "db2", &jid(7)))
        .unwrap();
    // The bus before the returner call, and vice versa.
    rig.put(answer_by(Source::Bus, "db3", &jid(8))).unwrap();
    rig.put(answer("db3", &jid(8))).unwrap();
    rig.put(answer("db4", &jid(9))).unwrap();
    rig.put(answer_by(Source::Bus, "db4", &jid(9))).unwrap();
    let check = |rig: &Rig| {
        let jids = |latest: BTreeMap<String, index::LatestJob>| -> Vec<_> {
            latest
                .into_iter()
                .map(|(minion, latest)| format!("{minion} {}", latest.jid))
                .collect()
        };
        let confirmed =
            [("db1", 5), ("db3", 8), ("db4", 9)].map(|(id, n)| format!("{id} {}", jid(n)));
        assert_eq!(jids(rig.store.latest_of("test.echo").unwrap()), confirmed);
        let on_bus =
            [("db1", 900), ("db2", 7), ("db3", 8)].map(|(id, n)| format!("{id} {}", jid(n)));
        assert_eq!(
            jids(rig.store.latest_on_bus_only("test.echo").unwrap()),
            on_bus
        );
        assert_eq!(rig.store.minions(true).unwrap(), ["db1", "db3", "db4"]);
        assert_eq!(
            rig.store.minions(false).unwrap(),
            ["db1", "db2", "db3", "db4"]
        );
    };
    check(&rig);
    let rig = rig.reopened();
    check(&rig);
    for n in 0..40 {
        rig.put(batch_of([n * 3])).unwrap();
    }
    rig.close();
    fs::remove_dir_all(dir.path().join("state")).unwrap();
    let rig = Rig::open(dir.path(), SMALL);
    check(&rig);
}

#[test]
fn a_return_repeated_on_a_bus_is_indexed_once() {
    let (_dir, rig) = Rig::new(SMALL);
    rig.store.note_seen_on_bus();
    rig.put(answer("db1", &jid(5))).unwrap();
    rig.put(answer_by(Source::Bus, "db1", &jid(5))).unwrap();
    let entries = rig.store.job_entries(&jid(5)).unwrap();
    assert_eq!(
        entries.iter().map(|e| e.kind).collect::<Vec<_>>(),
        [Kind::Return, Kind::SeenOnBus]
    );
    let latest = |rig: &Rig| rig.store.latest_of("test.echo").unwrap()["db1"].seq;
    assert_eq!(latest(&rig), entries[0].seq);
    let rig = rig.reopened();
    assert_eq!(latest(&rig), entries[0].seq, "rebuilt from the log");
}

#[test]
fn the_latest_job_has_the_newest_jid_for_any_order_of_storing() {
    for limits in [Limits::default(), SMALL] {
        let (dir, rig) = Rig::new(limits);
        // Imported jobs are stored after today's jobs.
        let stored = [
            "b 9",
            "a 800",
            "a imported",
            "a 300",
            "b 10",
            "a 900",
            "c mine",
            "c 1",
            "c yours",
            "a 200",
            "b 8",
        ];
        let stored = stored.map(|one| one.split_once(' ').unwrap());
        let spell = |text: &str| text.parse().map_or_else(|_| text.to_owned(), jid);
        for (n, (minion, job)) in (0..).zip(stored) {
            rig.put(answer(minion, &spell(job))).unwrap();
            rig.put(batch_of(n * 40..n * 40 + 40)).unwrap();
        }
        rig.put(answer("d", "mine")).unwrap();
        rig.put(answer("d", "yours")).unwrap();
        let check = |rig: &Rig| {
            let latest = rig.store.latest_of("test.echo").unwrap();
            let of = |minion: &str| {
                latest
                    .get(minion)
                    .map(|latest| latest.jid.to_string())
                    .unwrap()
            };
            assert_eq!(
                ["a", "b", "c", "d"].map(of),
                [jid(900), jid(10), jid(1), "yours".to_owned()]
            );
        };
        check(&rig);
        let rig = rig.reopened();
        check(&rig);
        rig.close();
        // The state database can be rebuilt.
        fs::remove_dir_all(dir.path().join("state")).unwrap();
        let rig = Rig::open(dir.path(), limits);
        check(&rig);
    }
}

#[test]
fn an_older_job_that_was_stored_later_replaces_a_dropped_latest_job() {
    let dir = tempfile::tempdir().unwrap();
    let classes = Classes::new(&[jobs(FOREVER), events(FOREVER)]);
    let options = Options {
        classes,
        ..options(dir.path(), SMALL)
    };
    let rig = Rig::open_with(&options);
    // The segment of class `events` spans the whole range.
    rig.put(batch_of([0])).unwrap();
    for (n, job) in (0..).zip([900, 500, 700, 600]) {
        rig.put(answer("db1", &jid(job))).unwrap();
        for filler in (n * 120..n * 120 + 120).filter(|filler| filler % 3 != 0) {
            rig.put(batch_of([filler])).unwrap();
        }
    }
    // The last one is in the active segment.
    rig.put(answer("db1", &jid(300))).unwrap();
    rig.put(batch_of([3])).unwrap();
    settle(&rig);
    let shared = &rig.store;
    let mut seen = Vec::new();
    loop {
        let latest = rig
            .store
            .latest_of("test.echo")
            .unwrap()
            .remove("db1")
            .unwrap();
        seen.push(latest.jid.to_string());
        let lies_in =
            |s: &Arc<segment::Segment>| (s.first_seq..=s.totals().last_seq).contains(&latest.seq);
        let segment = shared
            .segments
            .of(Class::JOBS)
            .into_iter()
            .find(lies_in)
            .unwrap();
        if !segment.is_finished() {
            break;
        }
        let drops = &shared.0.retention.drops;
        drops.clear(vec![drops.drop_segment(&segment).unwrap().unwrap()]);
        assert!(
            rig.store
                .minions(false)
                .unwrap()
                .contains(&"db1".to_owned())
        );
    }
    assert_eq!(seen, [900, 700, 600, 500, 300].map(jid));
    rig.close();
    let rig = Rig::open_with(&options);
    assert_eq!(
        rig.store.latest_of("test.echo").unwrap()["db1"]
            .jid
            .to_string(),
        jid(300)
    );
}

#[test]
fn a_job_sealed_before_a_dropped_segment_was_forgotten_does_not_hide_newer_ones() {
    let (_dir, rig) = Rig::new(SMALL);
    let put = |n: u64, job| {
        rig.put(answer("db1", &jid(job))).unwrap();
        for filler in (n * 120..n * 120 + 120).filter(|filler| filler % 3 != 0) {
            rig.put(batch_of([filler])).unwrap();
        }
        settle(&rig);
    };
    put(0, 900);
    put(1, 700);
    let shared = &rig.store;
    let newest = rig
        .store
        .latest_of("test.echo")
        .unwrap()
        .remove("db1")
        .unwrap();
    let lies_in =
        |s: &Arc<segment::Segment>| (s.first_seq..=s.totals().last_seq).contains(&newest.seq);
    let segment = shared
        .segments
        .of(Class::JOBS)
        .into_iter()
        .find(lies_in)
        .unwrap();
    // As if the state database could not be written until the next segment was sealed.
    let dropped = shared
        .0
        .retention
        .drops
        .drop_segment(&segment)
        .unwrap()
        .unwrap();
    put(2, 600);
    shared.0.retention.drops.clear(vec![dropped]);
    assert_eq!(
        rig.store.latest_of("test.echo").unwrap()["db1"]
            .jid
            .to_string(),
        jid(700)
    );
    drop(segment);
}

/// The sequence numbers of the segment lie within the range of a segment that remains.
#[test]
fn a_last_job_of_a_lost_segment_does_not_hide_an_older_one() {
    for is_dropped in [true, false] {
        let (dir, rig) = Rig::new(SMALL);
        // The active segment of the class `events` spans all of it.
        rig.put(batch_of([0])).unwrap();
        for (n, job) in (0..).zip([900, 500]) {
            rig.put(answer("db1", &jid(job))).unwrap();
            for filler in (n * 120..n * 120 + 120).filter(|filler| filler % 3 != 0) {
                rig.put(batch_of([filler])).unwrap();
            }
        }
        rig.put(batch_of([3])).unwrap();
        settle(&rig);
        let last = |rig: &Rig| {
            rig.store
                .latest_of("test.echo")
                .unwrap()
                .remove("db1")
                .unwrap()
        };
        let newest = last(&rig);
        assert_eq!(newest.jid.to_string(), jid(900));
        let segments = rig.store.segments.of(Class::JOBS);
        let lies_in =
            |s: &&Arc<segment::Segment>| (s.first_seq..=s.totals().last_seq).contains(&newest.seq);
        let segment = segments.iter().find(lies_in).unwrap();
        let place = segment.dir().to_owned();
        drop(segments);
        rig.close();
        if is_dropped {
            fs::rename(place.join("log"), place.join("log.dropped")).unwrap();
        } else {
            fs::remove_dir_all(&place).unwrap();
        }
        for _ in 0..2 {
            let rig = Rig::open(dir.path(), SMALL);
            assert_eq!(rig.metrics.segments_missing.get(), u64::from(!is_dropped));
            saltcellar_testkit::wait_for("finished drops", || is_cleared(dir.path()).then_some(()));
            assert_eq!(last(&rig).jid.to_string(), jid(500), "{is_dropped}");
        }
    }
}

#[test]
fn results_of_many_jobs_equal_those_of_each() {
    let (_dir, rig) = Rig::new(SMALL);
    rig.put_each(0..400);
    for jid in [jid(3), jid(39), jid(77), "free".to_owned()] {
        rig.put(answer("web31", &jid)).unwrap();
    }
    let load = event_entry(
        b"",
        b"\x92\x81\xa3fun\xa1x\xc0",
        Source::Returner,
        Micros(9),
    );
    let load = Entry {
        kind: Kind::Load,
        flags: Flags::default(),
        ..load
    };
    rig.put(Batch::of(&Entry {
        jid: &jid(20),
        ..load
    }))
    .unwrap();
    let check = |store: &Store, jids: &[String], wants: &dyn Fn(&str) -> bool| {
        let mut wanted = BTreeMap::new();
        let mut expected = BTreeMap::new();
        for jid in jids {
            let entries = store.job_entries_with(jid, |_| false).unwrap();
            let is_cached = entries
                .iter()
                .any(|entry| index::job_summary::is_of_cached_job(entry.kind, entry.flags));
            let of_wanted =
                |entry: &read::StoredEntry| entry.kind == Kind::Return && wants(&entry.minion);
            let returns: Vec<_> = entries.into_iter().filter(of_wanted).collect();
            if let Some(row) = store.job_row(jid).unwrap() {
                let is_cached = is_cached && !returns.is_empty();
                expected.insert(jid.clone(), (row, is_cached, returns.clone()));
            }
            wanted.insert(
                jid.as_str(),
                returns.into_iter().map(|entry| entry.minion).collect(),
            );
        }
        let wanted: BTreeMap<&str, std::collections::BTreeSet<String>> = wanted;
        let wanted = wanted
            .iter()
            .map(|(jid, ids)| (*jid, ids.iter().map(String::as_str).collect()))
            .collect();
        let found = store.returns_of(&wanted).unwrap().into_iter();
        let found: BTreeMap<_, _> = found
            .map(|(jid, job)| (jid, (job.summary, job.is_cached, job.returns)))
            .collect();
        assert_eq!(found, expected);
    };
    let all: Vec<String> = (0..45)
        .map(jid)
        .chain([jid(77), "free".to_owned(), "unknown".to_owned()])
        .collect();
    let some: Vec<String> = all.iter().step_by(7).cloned().collect();
    let checks = |store: &Store| {
        for jids in [&all[..], &some, &all[44..], &[]] {
            check(store, jids, &|_| true);
            check(store, jids, &|minion| minion.ends_with('1'));
            check(store, jids, &|_| false);
        }
    };
    checks(&rig.store);
    let rig = rig.reopened();
    checks(&rig.store);
}
