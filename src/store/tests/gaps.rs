//! What stays of a class when not all that should go can go.

use super::super::class::Class;
use super::super::retention::{Fate, Going};
use super::super::retention_tests::{FOREVER, events, fill, gone, jobs, settle, with};
use super::*;
use crate::model::{EventFilter, Keep, Source};
use crate::wire::salt_event::event_entry;

/// What `get_fun` says against the entries themselves.
#[test]
fn the_last_jobs_are_right_when_newer_segments_went_than_a_held_one() {
    let dir = tempfile::tempdir().unwrap();
    let keep = Keep { entries: Some(40), ..FOREVER };
    let rig = Rig::open_with(&with(dir.path(), &[jobs(keep)]));
    // The minions of the first hundred events answer over and over.
    for n in 0..600 {
        let tag = format!("salt/job/{}/ret/web{}", jid(n / 10), n % 100);
        let mut w = crate::wire::msgpack::Writer::new();
        w.map(4).str("fun").str("test.echo").str("return").uint(n);
        w.str("id").str(&format!("web{}", n % 100)).str("jid").str(&jid(n / 10));
        let mut batch = crate::model::Batch::default();
        batch.push(
            &event_entry(tag.as_bytes(), &w.into_bytes(), Source::Bus, Micros(i64::try_from(n).unwrap())),
            None,
        );
        rig.put(batch).unwrap();
    }
    settle(&rig);
    rig.store.hold(&jid(0), "for the test").unwrap();
    let went = rig.store.0.round();
    assert!(went.iter().any(|g| matches!(g.fate, Fate::Held(_))) && gone(&went).len() > 5, "{went:?}");
    let check = |rig: &Rig| {
        let mut expected = std::collections::BTreeMap::new();
        for entry in
            rig.store.events_before(&EventFilter::default(), SeqNo(u64::MAX), 999, usize::MAX).unwrap()
        {
            expected.entry(entry.minion.clone()).or_insert(entry.seq);
        }
        let said = rig.store.latest_on_bus_only("test.echo").unwrap();
        let said: std::collections::BTreeMap<_, _> = said.into_iter().map(|(m, l)| (m, l.seq)).collect();
        assert!(expected.values().any(|seq| seq.0 < 40) && expected.values().any(|seq| seq.0 > 550));
        assert_eq!(said, expected);
    };
    check(&rig);
    rig.close();
    let rig = Rig::open_with(&with(dir.path(), &[jobs(keep)]));
    check(&rig);
    rig.close();
}

/// A newer segment that went before an older one would leave a gap that nobody asked for.
#[test]
fn while_a_segment_cannot_go_the_newer_ones_of_its_class_wait() {
    let dir = tempfile::tempdir().unwrap();
    let rig =
        Rig::open_with(&with(dir.path(), &[jobs(Keep { entries: Some(40), ..FOREVER }), events(FOREVER)]));
    fill(&rig, 0..300);
    let shared = &rig.store.0;
    let segments = shared.segments(Class::JOBS);
    let busy = segments.get(1).unwrap().work.lock().unwrap();
    let went = shared.round();
    let fates: Vec<_> = went.iter().map(|g| g.fate.clone()).collect();
    assert_eq!(fates, [Fate::Gone, Fate::Busy]);
    drop(busy);
    assert!(gone(&shared.round()).len() > 5);
    rig.close();
}

/// Thorium reads the register once, at its start: what it saved last has to be there, however long ago.
#[test]
fn the_segment_with_the_last_register_went() {
    let dir = tempfile::tempdir().unwrap();
    let rules = [jobs(Keep { entries: Some(40), ..FOREVER }), events(FOREVER)];
    let rig = Rig::open_with(&with(dir.path(), &rules));
    let save = |rig: &Rig, text: &str| rig.put(register(text)).unwrap();
    let saved = |rig: &Rig| rig.store.register().unwrap().map(|body| body.get(1..).unwrap().to_vec());
    let kept = |going: &[Going]| -> Vec<SeqNo> {
        going.iter().filter(|g| g.fate == Fate::Register).map(|g| g.segment).collect()
    };
    save(&rig, "first");
    fill(&rig, 0..150);
    save(&rig, "second");
    fill(&rig, 150..450);
    let went = rig.store.0.round();
    assert_eq!(saved(&rig).as_deref(), Some(&b"second"[..]));
    let [segment] = kept(&went)[..] else { panic!("one segment has it: {went:?}") };
    assert!(
        went.iter().any(|g| g.segment < segment && g.fate == Fate::Gone),
        "the first one's goes: {went:?}"
    );
    assert!(went.iter().any(|g| g.segment > segment && g.fate == Fate::Gone), "newer ones go: {went:?}");
    rig.close();

    // Its segment is known by its metadata alone after a restart.
    let rig = Rig::open_with(&with(dir.path(), &rules));
    fill(&rig, 450..600);
    assert_eq!(kept(&rig.store.0.round()), [segment]);
    assert_eq!(saved(&rig).as_deref(), Some(&b"second"[..]));
    // It may go when a newer one is saved.
    save(&rig, "third");
    fill(&rig, 600..700);
    let went = rig.store.0.round();
    assert!(went.iter().any(|g| g.segment == segment && g.fate == Fate::Gone), "{went:?}");
    assert_eq!(saved(&rig).as_deref(), Some(&b"third"[..]));
    rig.close();
}
