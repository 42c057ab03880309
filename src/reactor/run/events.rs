//! The entries of the log that the reactor reads, and the events in them.
//!
//! # Invariant
//!
//! Only events that the daemon read from a bus make the master act. What a peer's daemon sent was on the bus of another master.

use super::Event;
use crate::model::{Flags, Kind, SeqNo, Source};
use crate::store::{Followed, Store, StoreError};
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

pub(super) fn event_of(row: &Followed<'_>) -> Event {
    Event {
        seq: row.seq,
        at: row.at,
        tag: String::from_utf8_lossy(row.tag).into_owned(),
        body: row.body.into(),
        // A minion can forge the minion id in its tag, but not the one that the master
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

    log.first_entry(is_of_interest, seq, take)?;
    Ok(found)
}
