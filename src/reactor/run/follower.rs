//! The follower: reads the log in order, folds records, and puts what rules take on the desk.

use std::sync::Arc;

use super::desk::Task;
use super::engine::Shared;
use super::origins::says_reactor;
use super::record::{Record, told};
use super::{Event, lock};
use crate::limits::{REACTOR_WAVE_BYTES, STOP_CHECK};
use crate::model::{Flags, Kind, ReactorSettings, SeqNo, Source};
use crate::reactor::shadow;
use crate::store::{Followed, StoreError};

/// The entries that the reactor looks at.
pub(super) fn is_of_interest(kind: Kind, flags: Flags) -> bool {
    matches!(kind, Kind::Reaction | Kind::Heard) || flags.has(Flags::ON_BUS)
}

/// Was it on a bus that the daemon read itself? Whoever may add to history could otherwise make the master act.
fn is_of_a_bus(row: &Followed<'_>) -> bool {
    row.kind == Kind::Heard
        || (matches!(row.source, Source::Bus | Source::SpilledBus)
            && !matches!(row.kind, Kind::Gap | Kind::Reaction))
}

pub(super) fn event_of(row: &Followed<'_>) -> Event {
    Event {
        seq: row.seq,
        at: row.at,
        tag: String::from_utf8_lossy(row.tag).into_owned(),
        body: row.body.into(),
        minion: row.minion.to_owned(),
        has_key: row.flags.has(Flags::MASTER_KEY),
    }
}

/// The thread.
pub(super) fn run(shared: &Arc<Shared>) {
    let live = shared.store.durable();
    // What happened before the start is folded first: a record may stand far behind its event.
    while lock(&shared.ledger).cursor < live {
        if shared.drain.is_stopping() || wave(shared, Some(live)).is_err() && shared.drain.wait(READ_AGAIN) {
            return;
        }
    }
    let open: Vec<SeqNo> = lock(&shared.ledger).open.keys().copied().collect();
    if !open.is_empty() {
        tracing::info!(events = open.len(), "going on with reactions that were not through");
    }
    for seq in open {
        if !wait_for_room(shared) {
            return;
        }
        resume(shared, seq);
    }
    loop {
        if !wait_for_room(shared) {
            return;
        }
        let before = lock(&shared.ledger).cursor;
        match wave(shared, None) {
            Ok(after) if after == before => shared.store.wait_for(before, STOP_CHECK),
            Ok(_) => {}
            Err(error) => {
                tracing::error!(%error, seq = %before, "the log could not be read for the reactor; trying again");
                shared.drain.wait(READ_AGAIN);
            }
        }
    }
}

/// The pause before the log is read again where it could not be read.
const READ_AGAIN: std::time::Duration = std::time::Duration::from_secs(1);

/// Waits until there is room on the desk; false if the daemon stops.
fn wait_for_room(shared: &Shared) -> bool {
    let mut said = false;
    loop {
        if shared.drain.is_stopping() {
            return false;
        }
        let desk = lock(&shared.desk);
        if desk.has_room() && !shared.recorder.is_full() {
            return true;
        }
        if !said {
            shared.metrics.reactor_held_up.add(1);
            said = true;
        }
        drop(shared.room.wait_timeout(desk, STOP_CHECK));
    }
}

/// Reads on a little; up to `fold` nothing is put on the desk. Returns the new place.
fn wave(shared: &Arc<Shared>, fold: Option<SeqNo>) -> Result<SeqNo, StoreError> {
    let from = lock(&shared.ledger).cursor;
    let ruled = shared.ruled();
    // What was before the start was counted before it.
    let compares = ruled.settings.shadow && fold.is_none();
    if compares {
        shared.begin_comparing(ruled.settings.shadow_window);
    }
    let debug = tracing::enabled!(tracing::Level::DEBUG);
    let wanted =
        |kind, flags| is_of_interest(kind, flags) || (compares && shadow::is_of_interest(kind, flags));
    let mut seen = None;
    let after = shared.store.follow_those(wanted, from, REACTOR_WAVE_BYTES, |row| {
        if compares {
            shared.compare(&row);
            seen = seen.max(Some(row.at).filter(|_| shadow::is_timely(row.source)));
        }
        if !compares
            && fold.is_none()
            && is_of_a_bus(&row)
            && let Some(salts) = shadow::master_call(&row)
        {
            let mut foreign = lock(&shared.foreign_calls);
            foreign.note(&salts.jid, &salts.act.fun, shared.clock.now());
        }
        if row.kind == Kind::Reaction {
            if let Some(told) = told(row.body) {
                lock(&shared.ledger).told(&told);
            }
            return;
        }
        if !is_of_a_bus(&row) {
            return;
        }
        let tag = String::from_utf8_lossy(row.tag);
        if debug && fold.is_none() && !says_reactor(row.body) {
            // As Salt says it, for each event that is not its own.
            tracing::debug!("Gathering reactors for tag {tag}");
        }
        let matched = ruled.rules.matching(&tag);
        if matched.is_empty() {
            return;
        }
        if says_reactor(row.body) {
            shared.metrics.reactor_events_own.add(1);
            return;
        }
        lock(&shared.ledger).opened(row.seq, matched.len());
        if fold.is_some_and(|live| row.seq < live) {
            return;
        }
        shared.metrics.reactor_events.add(1);
        let depth = lock(&shared.origins).depth(row.jid);
        let event = Event { body: Arc::default(), ..event_of(&Followed { body: &[], ..row }) };
        admit(shared, &ruled.settings, &event, row.body, matched, depth, false);
    })?;
    assert!(from <= after && after <= shared.store.durable(), "cursor <= durable, and it never goes back");
    lock(&shared.ledger).cursor = after;
    if compares {
        // At the end of the log time goes on without entries.
        let now = if after >= shared.store.durable() { Some(shared.clock.now()) } else { seen };
        shared.judge(now);
    } else {
        drop(lock(&shared.comparer).take());
    }
    Ok(after)
}

/// Puts an event on the desk, a task for each group of its rules.
fn admit(
    shared: &Arc<Shared>,
    settings: &ReactorSettings,
    event: &Event,
    body: &[u8],
    matched: Vec<Arc<str>>,
    depth: u32,
    resumed: bool,
) {
    let of = matched.len();
    let order = matched.clone();
    for (rules, options) in settings.groups(matched) {
        let (rules, begun) = {
            let ledger = lock(&shared.ledger);
            let rules: Vec<_> = rules.into_iter().filter(|rule| !ledger.is_done(event.seq, rule)).collect();
            (rules, ledger.open.get(&event.seq).map(|open| open.begun.clone()).unwrap_or_default())
        };
        let Some(first) = rules.first() else { continue };
        let place = order.iter().position(|rule| rule == first).unwrap_or(0);
        let loaded = lock(&shared.desk).has_room_for(body.len());
        let body = if loaded { body } else { &[] };
        let event = Event { body: body.into(), ..event.clone() };
        let task = Task {
            event,
            loaded,
            rules,
            of,
            place,
            options,
            depth,
            begun,
            resumed,
            replay: None,
            already_made: Vec::new(),
            left: None,
            progress: None,
        };
        if depth > settings.depth_max {
            shared.leave(task, "depth");
        } else {
            shared.offer(task);
        }
    }
}

/// Goes on with an event that was open when the daemon ended.
fn resume(shared: &Arc<Shared>, seq: SeqNo) {
    let event = match shared.load(seq) {
        Ok(Some(event)) => event,
        Ok(None) => {
            // Retention has let go of it. There is nothing to react to, and nothing to wait for.
            tracing::warn!(event = seq.0, "an event that was to be reacted to is no longer in the log");
            shared.metrics.reactions_left_gone.add(1);
            lock(&shared.ledger).open.remove(&seq);
            return;
        }
        Err(error) => {
            tracing::error!(%error, event = seq.0, "an event that was to be reacted to cannot be read");
            shared.metrics.reactions_left_gone.add(1);
            lock(&shared.ledger).open.remove(&seq);
            return;
        }
    };
    let ruled = shared.ruled();
    let matched = ruled.rules.matching(&event.tag);
    let left: Vec<_> = {
        let ledger = lock(&shared.ledger);
        matched.iter().filter(|rule| !ledger.is_done(seq, rule)).cloned().collect()
    };
    if left.is_empty() {
        // The rules are others by now.
        shared.metrics.reactions_left_gone.add(1);
        let now = shared.clock.now();
        shared.recorder.write(Record::left(event, Vec::new(), 0, "gone", now).batch(now));
        return;
    }
    admit(shared, &ruled.settings, &event, &event.body, matched, 0, true);
}
