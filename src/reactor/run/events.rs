//! The entries of the log that the reactor reads, and the events in them.
//!
//! # Invariant
//!
//! Only events that the daemon read from a bus make the master act. What a peer's daemon sent was on the bus of another master, and counts with an
//! election only.

use super::Event;
use crate::model::{Flags, Kind, SeqNo, Source, chained};
use crate::store::{Followed, Store, StoreError};
use crate::wire::msgpack::{Reader, as_text, get, pairs};
use crate::wire::salt_event::authenticated;

/// True for entries that the reactor reads.
pub(super) fn is_of_interest(kind: Kind, flags: Flags) -> bool {
    matches!(kind, Kind::Reaction | Kind::SeenOnBus) || flags.has(Flags::ON_BUS)
}

/// True for events of a bus that the daemon reads itself. Otherwise any client with write access to
/// the archive could make the master act.
pub(super) fn is_bus_event(row: &Followed<'_>) -> bool {
    let is_event = row.kind == Kind::SeenOnBus
        || (matches!(row.source, Source::Bus | Source::SpilledBus)
            && !matches!(row.kind, Kind::Gap | Kind::Reaction));
    is_event && row.number == 0
}

/// True for the `salt/run/<jid>/ret` of a runner.
pub(super) fn is_result_of_runner(row: &Followed<'_>) -> bool {
    let rest = row
        .tag
        .strip_prefix(b"salt/run/")
        .and_then(|rest| rest.strip_prefix(row.jid.as_bytes()));
    rest == Some(b"/ret")
}

/// True for events that other masters' buses brought, or may have: of a return that Salt's call delivered first the origin keeps the bus's copy.
pub(super) fn is_event_of_peer(row: &Followed<'_>) -> bool {
    let is_event = row.flags.has(Flags::ON_BUS) || row.kind == Kind::Return;
    row.number != 0 && is_event && !matches!(row.kind, Kind::Gap | Kind::Reaction)
}

/// A hash of an event's data without the time at which a master fired it, and the second at which a minion of 3008 sent it to that master (`ts`, in
/// Salt's `channel/client.py`).
pub(super) fn content_of(body: &[u8]) -> u64 {
    if Reader::new(body).map().is_err() {
        return chained(0, [body]);
    }
    let is_minions = get(body, "cmd").and_then(as_text) == Some("_minion_event");
    pairs(body)
        .filter(|(key, _)| match as_text(key) {
            Some("_stamp") => false,
            Some("ts") => !is_minions,
            _ => true,
        })
        .fold(0, |hash, (key, value)| chained(hash, [key, value]))
}

pub(super) fn event_of(row: &Followed<'_>) -> Event {
    Event {
        seq: row.seq,
        at: row.at,
        tag: String::from_utf8_lossy(row.tag).into_owned(),
        body: row.body.into(),
        // A minion can forge the minion id in its tag, but not the id that the master
        // authenticated.
        minion: authenticated(row.body).unwrap_or(row.minion).to_owned(),
        origin: row.origin.to_owned(),
        has_key: row.flags.has(Flags::MASTER_KEY),
    }
}

/// Reads an event from the log; `None` if retention has deleted it.
pub(super) fn load(log: &Store, seq: SeqNo) -> Result<Option<Event>, StoreError> {
    let mut found = None;
    let take = |row: Followed<'_>| {
        // If retention has deleted the entry, the first one that is read is a later one.
        if row.seq == seq && found.is_none() {
            found = Some(event_of(&row));
        }
    };

    let any = |_: Kind, _: Flags| true;
    log.first_entry(any, seq, take)?;
    Ok(found)
}
