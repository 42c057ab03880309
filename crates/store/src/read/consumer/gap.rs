//! The gap record that a reader gets in place of entries that retention has dropped.

use super::record::LostEntries;
use crate::read::StoredEntry;
use saltcellar_base::clock::Micros;
use saltcellar_model::{Entry, Flags, Kind, Source};
use saltcellar_wire::msgpack::Writer;

/// The tag of a gap record in the events of a consumer; only there, it is not stored.
pub const LOST_TAG: &str = "saltcellar/gap/retention";

/// The entry that a consumer, or a reader without a consumer, gets in place of lost entries.
pub(super) fn gap_record(consumer: Option<&str>, lost: LostEntries, at: Micros) -> StoredEntry {
    let mut w = Writer::new();
    w.map(4 + usize::from(consumer.is_some()))
        .str("cause")
        .str("retention");
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
        tag: LOST_TAG.as_bytes().to_vec(),
        jid: String::new(),
        minion: String::new(),
        fun: String::new(),
        retcode: 0,
        body,
    }
}
