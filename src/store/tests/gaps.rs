//! What stays of a class when not all that should go can go.

use super::super::class::Class;
use super::super::retention::Fate;
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
