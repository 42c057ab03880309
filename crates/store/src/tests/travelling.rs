//! Parts of the log that travel have exactly the wanted entries, in order, whether blocks are copied or merged.

use std::collections::HashSet;
use std::ops::Range;

use super::*;
use crate::log::exchange;
use saltcellar_wire::filter::Entries;

const JID: &str = "20261121030955000001";
/// A job of which only its end is here.
const QUESTION_JID: &str = "20261121030955000002";

/// Stores returns `from` to `to` in one batch.
fn put_returns(
    rig: &Rig,
    numbers: Range<u64>,
    change: impl for<'a> Fn(u64, Entry<'a>) -> Entry<'a>,
) {
    let mut batch = Batch::default();
    for n in numbers {
        let tag = format!("salt/job/{JID}/ret/web{n}");
        let body = [b"\x81\xa1x\xda\x01\x00".as_slice(), &[b'y'; 256]].concat();
        let minion = format!("web{n}");
        let entry = Entry {
            jid: JID,
            minion: &minion,
            fun: "test.ping",
            tag: tag.as_bytes(),
            ..Entry::new(Kind::Return, Source::Returner, Micros(1), &body)
        };
        batch.push(&change(n, entry), None);
    }
    rig.put(batch).unwrap();
}

fn same(_: u64, entry: Entry<'_>) -> Entry<'_> {
    entry
}

fn put_event(rig: &Rig, tag: &str) {
    rig.put(Batch::of(&event_entry(
        tag.as_bytes(),
        b"\x80",
        Source::Bus,
        Micros(1),
    )))
    .unwrap();
}

/// Numbers of all entries that travel from a range, read with a limit of bytes; and how many blocks have many entries.
fn travelling(
    store: &Store,
    entries: Entries,
    range: Range<SeqNo>,
    bytes_max: usize,
) -> (Vec<u64>, usize) {
    let is_wanted = |jid: &str| jid != QUESTION_JID;
    let (mut seqs, mut large, mut next) = (Vec::new(), 0, range.start);
    while next < range.end {
        let part = store
            .travelling(entries, next..range.end, bytes_max, is_wanted)
            .unwrap();
        assert!(part.next > next);
        next = part.next;

        for block in part.blocks {
            let views = exchange::read(&block.bytes).unwrap();
            let rows: Vec<_> = views.iter().map(|view| view.rows()).collect();
            let [rows] = rows[..] else {
                panic!("one block")
            };
            let last = rows.len() - 1;
            assert_eq!((rows.seq(0), rows.seq(last)), (block.first, block.last));
            assert_eq!((rows.at(last), rows.len()), (block.last_at, block.entries));
            let raw = |n| rows.tag(n).len() + rows.body(n).unwrap().len();
            assert_eq!((0..=last).map(raw).sum::<usize>() as u64, block.raw_bytes);
            large += usize::from(rows.len() > 300);
            seqs.extend((0..=last).map(|n| rows.seq(n).0));
        }
    }
    (seqs, large)
}

#[test]
fn wanted_entries_travel_once_in_order_whatever_is_between_them() {
    let (_dir, rig) = Rig::new(Limits::default());
    // Whole blocks; small ones; blocks with entries that stay; an event of another class in between.
    put_returns(&rig, 0..400, same);
    (400..420).for_each(|n| put_returns(&rig, n..n + 1, same));
    put_returns(&rig, 500..900, |n, entry| match n % 4 {
        0 => Entry {
            fun: Entries::QUESTION,
            ..entry
        },
        1 => Entry {
            origin: "m2",
            number: n,
            ..entry
        },
        _ => entry,
    });
    put_event(&rig, "beacon/1");
    // One of another class within a block.
    put_returns(&rig, 1000..1400, |n, entry| match n {
        1200 => Entry {
            kind: Kind::Event,
            source: Source::Bus,
            flags: Flags::ON_BUS,
            tag: b"beacon/within",
            jid: "",
            minion: "",
            fun: "",
            ..entry
        },
        _ => entry,
    });
    put_event(&rig, "salt/job/20261121030955000001/new");
    put_event(&rig, "beacon/2");
    // The end of a job, which says nothing of its function: one that stays, and one that is known by the returns around it.
    for (numbers, jid) in [(2000..2400, QUESTION_JID), (2400..2800, JID)] {
        put_returns(&rig, numbers, |n, entry| match n % 400 {
            100 => Entry {
                kind: Kind::Endtime,
                tag: b"",
                minion: "",
                fun: "",
                jid,
                ..entry
            },
            _ => entry,
        });
    }

    let check = |rig: &Rig, entries: Entries| {
        let end = rig.store.durable();
        let any = |_: Kind, _: Flags| true;
        let (all, _) = rig
            .store
            .entries_from(SeqNo::FIRST, end, usize::MAX, any)
            .unwrap();
        let wanted: Vec<u64> = all
            .iter()
            .filter(|one| {
                let is_own = one.origin.is_empty() && one.number == 0;
                let has_jid = !one.jid.is_empty();
                one.jid != QUESTION_JID
                    && entries.have(one.kind, one.flags, &one.fun, has_jid, is_own)
            })
            .map(|one| one.seq.0)
            .collect();
        assert!(wanted.len() > 1800, "{}", wanted.len());

        let (seqs, large) = travelling(&rig.store, entries, SeqNo::FIRST..end, usize::MAX);
        assert_eq!(seqs, wanted);
        assert!(large >= 2, "{large} blocks are whole");
        for bytes_max in [1, 300, 10_000, 200_000] {
            for from in [2, 399, 400, 410, 600, 1300] {
                let range = SeqNo(from)..SeqNo(end.0 - 7);
                let expected: HashSet<_> = wanted
                    .iter()
                    .filter(|seq| range.contains(&SeqNo(**seq)))
                    .collect();
                let (seqs, _) = travelling(&rig.store, entries, range, bytes_max);
                assert!(seqs.is_sorted());
                assert_eq!(
                    seqs.iter().collect::<HashSet<_>>(),
                    expected,
                    "{from} {bytes_max}"
                );
                assert_eq!(seqs.len(), expected.len());
            }
        }
    };
    let all = [Entries::OwnJobs, Entries::Own];
    for entries in all {
        check(&rig, entries);
    }
    // Read from sealed segments, whose small blocks are merged.
    let rig = rig.reopened();
    for entries in all {
        check(&rig, entries);
    }
}
