//! Following the log: every event once, in order, across classes and sealing.

use super::*;
use saltcellar_model::ReadLimits;

/// Bodies of events from `from` on, read in chunks of at most `bytes`.
fn follow(store: &Store, from: SeqNo, bytes: usize) -> (Vec<(SeqNo, String)>, SeqNo) {
    let (mut found, mut next) = (Vec::new(), from);
    loop {
        let take = |event: Followed<'_>| {
            found.push((event.seq, String::from_utf8_lossy(event.tag).into_owned()));
        };
        let after = store
            .follow(|_, flags| flags.has(Flags::ON_BUS), next, bytes, take)
            .unwrap();
        if after == next {
            return (found, next);
        }
        next = after;
    }
}

/// Stores events alternating between both classes, and a load, which is not an event.
fn put(rig: &Rig, numbers: std::ops::Range<u64>) {
    for n in numbers {
        let tag = if n % 3 == 0 {
            format!("salt/job/2026112103095500000{n}/x")
        } else {
            format!("other/{n}")
        };
        let mut w = Writer::new();
        w.map(1).str("n").uint(n);
        let body = w.into_bytes();
        rig.put(Batch::of(&event_entry(
            tag.as_bytes(),
            &body,
            Source::Bus,
            Micros(1),
        )))
        .unwrap();
        if n % 10 == 0 {
            let load = Entry {
                kind: Kind::Load,
                flags: Flags::default(),
                tag: b"",
                ..event_entry(b"x", b"\x92\x80\xc0", Source::Returner, Micros(1))
            };
            rig.put(Batch::of(&Entry {
                jid: &format!("load{n}"),
                ..load
            }))
            .unwrap();
        }
    }
}

fn expected(numbers: std::ops::Range<u64>) -> Vec<String> {
    let tag = |n| {
        if n % 3 == 0 {
            format!("salt/job/2026112103095500000{n}/x")
        } else {
            format!("other/{n}")
        }
    };
    numbers.map(tag).collect()
}

#[test]
fn each_event_is_seen_once_and_in_order_for_any_chunk_size() {
    let dir = tempfile::tempdir().unwrap();
    // Small segments: some are sealed and rewritten, the newest are active.
    let rig = Rig::open(dir.path(), SMALL);
    put(&rig, 0..300);
    for bytes in [1, 100, 1 << 20] {
        let (found, next) = follow(&rig.store, SeqNo::FIRST, bytes);
        assert!(found.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(
            found.into_iter().map(|(_, tag)| tag).collect::<Vec<_>>(),
            expected(0..300)
        );
        assert_eq!(next, rig.store.durable());
    }
    // From the middle, continuing with later events.
    let (all, next) = follow(&rig.store, SeqNo::FIRST, 1 << 20);
    let (found, _) = follow(&rig.store, all[150].0, 1000);
    assert_eq!(found, all[150..]);
    assert_eq!(follow(&rig.store, next, 1000).0, []);
    put(&rig, 300..310);
    let (found, _) = follow(&rig.store, next, 1 << 20);
    assert_eq!(
        found.into_iter().map(|(_, tag)| tag).collect::<Vec<_>>(),
        expected(300..310)
    );
    let rig = rig.reopened();
    assert_eq!(follow(&rig.store, SeqNo::FIRST, 1 << 20).0.len(), 310);
}

#[test]
fn a_commit_wakes_a_waiting_follower() {
    let (_dir, rig) = Rig::new(SMALL);
    let next = rig.store.durable();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            rig.store
                .wait_for(next, std::time::Duration::from_secs(3600));
            rig.store.durable()
        });
        put(&rig, 0..1);
        assert!(waits.join().unwrap() > next);
    });
    // Waiting for an existing entry returns immediately.
    rig.store
        .wait_for(next, std::time::Duration::from_secs(3600));
}

#[test]
fn as_many_events_are_counted_as_selected() {
    let (_dir, rig) = Rig::new(SMALL);
    put(&rig, 0..300);
    let filter: EntryFilter =
        serde_json::from_str("{\"match\": [{\"tag\": \"other/*\"}]}").unwrap();
    let (from, upto) = (SeqNo(50), SeqNo(200));
    for filter in [EntryFilter::default(), filter] {
        let found = rig
            .store
            .select(&filter, from, upto, usize::MAX, usize::MAX)
            .unwrap();
        let whole = rig.store.whole_view();
        let counted = whole.count(&filter, from, upto).unwrap();
        let events = found.events.len() as u64;
        assert_eq!(
            (counted.count, counted.next, counted.last),
            (events, upto, found.events.last().map(|event| event.seq))
        );
        let limits: ReadLimits = serde_json::from_str("{\"tags\": \"*7\"}").unwrap();
        let limited = rig.store.view(limits.into());
        let only = limited.count(&filter, from, upto).unwrap();
        let ends = |event: &&StoredEntry| event.tag.ends_with(b"7");
        let allowed = found.events.iter().filter(ends).count() as u64;
        assert_eq!((only.count, only.next), (allowed, upto));
        assert!(only.count > 0 && only.count < counted.count);
    }
    let none = rig
        .store
        .whole_view()
        .count(&EntryFilter::default(), upto, upto)
        .unwrap();
    assert_eq!(none.count, 0);
}
