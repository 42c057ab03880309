//! The gap record that a reader gets in place of entries that retention has dropped, or that cannot be
//! read.

use super::record::LostEntries;
use crate::read::StoredEntry;
use crate::read::follow::Unread;
use saltcellar_base::clock::Micros;
use saltcellar_model::{Entry, Flags, Kind, Source};
use saltcellar_wire::msgpack::Writer;

/// The tag of a gap record in the events of a consumer; only there, it is not stored.
const LOST_TAG: &str = "saltcellar/gap/retention";

/// As [`LOST_TAG`], in place of entries that cannot be read.
const UNREAD_TAG: &str = "saltcellar/gap/damage";

/// Whether an event has the tag of a gap record that is not stored.
pub fn is_lost_tag(tag: &[u8]) -> bool {
    tag == LOST_TAG.as_bytes() || tag == UNREAD_TAG.as_bytes()
}

/// The entry that a consumer, or a reader without a consumer, gets in place of lost entries.
pub(super) fn gap_record(consumer: Option<&str>, lost: LostEntries, at: Micros) -> StoredEntry {
    record((LOST_TAG, "retention"), consumer, lost, at)
}

/// Adds gap records to a batch for what its reader could not read. Not noted in the consumer's record: a
/// later read may succeed, as after a cable was replaced.
pub(super) fn add_unread(
    consumer: &str,
    unread: Vec<Unread>,
    events: &mut Vec<StoredEntry>,
    at: Micros,
) {
    // Each place has one, because a log that cannot be read may have many blocks.
    let mut gaps: Vec<(usize, LostEntries)> = Vec::new();
    for Unread {
        first,
        last,
        entries,
        ..
    } in unread
    {
        // At the number of the last entry, which no event has, and which the cursor passes once. Before the
        // first one there may be events of other classes that are not acknowledged yet.
        let place = events.partition_point(|event| event.seq < last);
        let fresh = LostEntries {
            first,
            last,
            entries,
        };
        match gaps.last_mut().filter(|(before, _)| *before == place) {
            Some((_, known)) => *known = known.joined(fresh),
            None => gaps.push((place, fresh)),
        }
    }

    // From the end, because each moves those behind it.
    for (place, lost) in gaps.into_iter().rev() {
        let gap = record((UNREAD_TAG, "damage"), Some(consumer), lost, at);
        let seq = lost.last;
        events.insert(place, StoredEntry { seq, ..gap });
    }
}

fn record(
    (tag, cause): (&str, &str),
    consumer: Option<&str>,
    lost: LostEntries,
    at: Micros,
) -> StoredEntry {
    let mut w = Writer::new();
    w.map(4 + usize::from(consumer.is_some()))
        .str("cause")
        .str(cause);
    if let Some(consumer) = consumer {
        w.str("consumer").str(consumer);
    }
    w.str("first")
        .uint(lost.first.0)
        .str("last")
        .uint(lost.last.0)
        .str("lost")
        .uint(lost.entries);
    let body = w.into_bytes();

    let Entry {
        kind,
        source,
        flags,
        ..
    } = Entry::new(Kind::Gap, Source::Bus, at, &body);
    StoredEntry {
        seq: lost.first,
        kind,
        source,
        origin: String::new(),
        number: 0,
        flags: flags.with(Flags::ON_BUS),
        at,
        tag: tag.as_bytes().to_vec(),
        jid: String::new(),
        minion: String::new(),
        fun: String::new(),
        retcode: 0,
        body,
        unread: 0,
    }
}
