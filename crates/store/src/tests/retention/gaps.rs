//! Retention when some segments cannot be dropped.

use crate::class::Class;
use crate::retain::{DropOutcome, PlannedDrop};
use crate::tests::retention::{FOREVER, dropped, events, fill, jobs, settle, with};
use crate::tests::*;
use saltcellar_model::{EventFilter, Keep, Source};
use saltcellar_wire::salt_event::event_entry;

/// Compares the latest jobs with those derived from the entries.
#[test]
fn latest_jobs_are_correct_when_segments_newer_than_a_held_one_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let keep = Keep {
        entries: Some(40),
        ..FOREVER
    };
    let rig = Rig::open_with(&with(dir.path(), &[jobs(keep)]));
    // The minions of the first hundred events return repeatedly.
    for n in 0..600 {
        let tag = format!("salt/job/{}/ret/web{}", jid(n / 10), n % 100);
        let mut w = saltcellar_wire::msgpack::Writer::new();
        w.map(4).str("fun").str("test.echo").str("return").uint(n);
        w.str("id")
            .str(&format!("web{}", n % 100))
            .str("jid")
            .str(&jid(n / 10));
        let mut batch = saltcellar_model::Batch::default();
        batch.push(
            &event_entry(
                tag.as_bytes(),
                &w.into_bytes(),
                Source::Bus,
                Micros(i64::try_from(n).unwrap()),
            ),
            None,
        );
        rig.put(batch).unwrap();
    }
    settle(&rig);
    rig.store.hold(&jid(0), "for the test").unwrap();
    let drops = rig.store.0.retention.run_round();
    assert!(
        drops
            .iter()
            .any(|g| matches!(g.outcome, DropOutcome::Held(_)))
            && dropped(&drops).len() > 5,
        "{drops:?}"
    );
    let check = |rig: &Rig| {
        let mut expected = std::collections::BTreeMap::new();
        for entry in rig
            .store
            .events_before(&EventFilter::default(), SeqNo(u64::MAX), 999, usize::MAX)
            .unwrap()
        {
            expected.entry(entry.minion.clone()).or_insert(entry.seq);
        }
        let latest = rig.store.latest_on_bus_only("test.echo").unwrap();
        let latest: std::collections::BTreeMap<_, _> =
            latest.into_iter().map(|(m, l)| (m, l.seq)).collect();
        assert!(
            expected.values().any(|seq| seq.0 < 40) && expected.values().any(|seq| seq.0 > 550)
        );
        assert_eq!(latest, expected);
    };
    check(&rig);
    rig.close();
    let rig = Rig::open_with(&with(dir.path(), &[jobs(keep)]));
    check(&rig);
}

/// Dropping a newer segment before an older one would leave a gap.
#[test]
fn while_a_segment_cannot_be_dropped_newer_ones_of_its_class_wait() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open_with(&with(
        dir.path(),
        &[
            jobs(Keep {
                entries: Some(40),
                ..FOREVER
            }),
            events(FOREVER),
        ],
    ));
    fill(&rig, 0..300);
    let shared = &rig.store;
    let segments = shared.segments.of(Class::JOBS);
    let busy = segments.get(1).unwrap().work.lock();
    let drops = shared.0.retention.run_round();
    let outcomes: Vec<_> = drops.iter().map(|g| g.outcome.clone()).collect();
    assert_eq!(outcomes, [DropOutcome::Dropped, DropOutcome::Busy]);
    drop(busy);
    assert!(dropped(&shared.0.retention.run_round()).len() > 5);
}

/// Thorium reads the register once at its start, so the last saved one must be kept forever.
#[test]
fn the_segment_with_the_last_register_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let rules = [
        jobs(Keep {
            entries: Some(40),
            ..FOREVER
        }),
        events(FOREVER),
    ];
    let rig = Rig::open_with(&with(dir.path(), &rules));
    let save = |rig: &Rig, text: &str| rig.put(register(text)).unwrap();
    let saved = |rig: &Rig| {
        rig.store
            .register()
            .unwrap()
            .map(|body| body.get(1..).unwrap().to_vec())
    };
    let kept = |planned: &[PlannedDrop]| -> Vec<SeqNo> {
        planned
            .iter()
            .filter(|g| g.outcome == DropOutcome::Register)
            .map(|g| g.segment)
            .collect()
    };
    save(&rig, "first");
    fill(&rig, 0..150);
    save(&rig, "second");
    fill(&rig, 150..450);
    let drops = rig.store.0.retention.run_round();
    assert_eq!(saved(&rig).as_deref(), Some(&b"second"[..]));
    let [segment] = kept(&drops)[..] else {
        panic!("one segment has it: {drops:?}")
    };
    assert!(
        drops
            .iter()
            .any(|g| g.segment < segment && g.outcome == DropOutcome::Dropped),
        "the first one's goes: {drops:?}"
    );
    assert!(
        drops
            .iter()
            .any(|g| g.segment > segment && g.outcome == DropOutcome::Dropped),
        "newer ones go: {drops:?}"
    );
    rig.close();

    // After a restart its segment is known only from metadata.
    let rig = Rig::open_with(&with(dir.path(), &rules));
    fill(&rig, 450..600);
    assert_eq!(kept(&rig.store.0.retention.run_round()), [segment]);
    assert_eq!(saved(&rig).as_deref(), Some(&b"second"[..]));
    // It may be dropped once a newer one is saved.
    save(&rig, "third");
    fill(&rig, 600..700);
    let drops = rig.store.0.retention.run_round();
    assert!(
        drops
            .iter()
            .any(|g| g.segment == segment && g.outcome == DropOutcome::Dropped),
        "{drops:?}"
    );
    assert_eq!(saved(&rig).as_deref(), Some(&b"third"[..]));
}
