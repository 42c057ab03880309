//! The follower: reads the log in order, applies records, and queues matching events.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Event;
use super::engine::{RuleSnapshot, Shared};
use super::record::{self, Record, read_summary};
use crate::base::limits::{REACTOR_WAVE_BYTES, STOP_CHECK};
use crate::base::shutdown::Drain;
use crate::model::{Flags, Kind, SeqNo, Source};
use crate::reactor::logged::is_by_reactor;
use crate::reactor::shadow;
use crate::store::{Followed, StoreError};
use crate::wire::salt_event::authenticated;

/// True for entries that the reactor reads.
pub(super) fn is_of_interest(kind: Kind, flags: Flags) -> bool {
    matches!(kind, Kind::Reaction | Kind::SeenOnBus) || flags.has(Flags::ON_BUS)
}

/// True for events of a bus that the daemon reads itself. Otherwise any client with write access to
/// the archive could make the master act.
pub(super) fn is_bus_event(row: &Followed<'_>) -> bool {
    row.kind == Kind::SeenOnBus
        || (matches!(row.source, Source::Bus | Source::SpilledBus)
            && !matches!(row.kind, Kind::Gap | Kind::Reaction))
}

/// True for the `salt/run/<jid>/ret` of a runner.
fn is_result_of_runner(row: &Followed<'_>) -> bool {
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
        has_key: row.flags.has(Flags::MASTER_KEY),
    }
}

/// Follows the log. Open events before `live` are those of a former run.
pub(super) fn run(shared: &Arc<Shared>, live: SeqNo) {
    let drain = &shared.drain;

    // Entries before the start are applied first, because a record may come long after its event.
    while shared.checkpoint.lock().cursor < live {
        if drain.is_stopping() {
            return;
        }
        let part = || read_part(shared, Some(live));
        if until_read(drain, "the reactor cannot read the log", part).is_none() {
            return;
        }
    }

    let starts = || note_starts(shared);
    if until_read(drain, "cannot read the starts of runners", starts).is_none() {
        return;
    }

    // Those from `live` on are queued already.
    let open: Vec<SeqNo> = shared
        .checkpoint
        .lock()
        .open
        .iter()
        .map(|(seq, _)| seq)
        .take_while(|seq| *seq < live)
        .collect();

    if !open.is_empty() {
        tracing::info!(events = open.len(), "continuing open reactions");
    }

    let depths = || shared.restore_depths();
    let Some(depths) = until_read(drain, "cannot restore reaction depths from the log", depths)
    else {
        return;
    };

    let events = |from| open_events(shared, from);
    let mut unread = resume(shared, open, &depths, events);
    let mut read = Instant::now();

    loop {
        if !wait_for_room(shared) {
            return;
        }

        // Open events that could not be read are tried again, without delaying new ones.
        if !unread.is_empty() && read.elapsed() >= READ_RETRY_PAUSE {
            unread = resume(shared, unread, &depths, events);
            read = Instant::now();
        }

        let before = shared.checkpoint.lock().cursor;
        match read_part(shared, None) {
            // The end of the log: the next commit wakes this thread.
            Ok(after) if after == before => shared.store.wait_for(before, STOP_CHECK),
            Ok(_) => {}
            Err(error) => {
                tracing::error!(%error, seq = %before, "reactor cannot read the log, retrying");
                shared.drain.wait(READ_RETRY_PAUSE);
            }
        }
    }
}

/// Between attempts to read a log that cannot be read, for example on a failing disk.
const READ_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Reads what the reactor cannot start without, until that succeeds; `None` if the daemon stops.
/// Each failure is logged, because no event is handled meanwhile.
fn until_read<T>(
    drain: &Drain,
    failure: &str,
    read: impl Fn() -> Result<T, StoreError>,
) -> Option<T> {
    loop {
        match read() {
            Ok(found) => return Some(found),
            Err(error) => {
                tracing::error!(%error, "{failure}, retrying; no event is handled meanwhile");
                if drain.wait(READ_RETRY_PAUSE) {
                    return None;
                }
            }
        }
    }
}

/// Reads the starts of runners and wheel functions since the first open event with started calls,
/// and claims those that belong to calls in records.
fn note_starts(shared: &Shared) -> Result<(), StoreError> {
    let (first, end) = {
        let checkpoint = shared.checkpoint.lock();
        (checkpoint.open.first_started(), checkpoint.cursor)
    };
    // Without a started call there is none whose start could be found.
    let Some(mut from) = first else { return Ok(()) };

    while from < end && !shared.drain.is_stopping() {
        from = shared
            .store
            .follow(is_of_interest, from, REACTOR_WAVE_BYTES, |row| {
                // Locked per entry, so that workers do not wait for the disk.
                let mut starts = shared.starts.lock();
                if row.kind == Kind::Reaction {
                    record::jids(row.body).for_each(|jid| starts.claim(jid));
                } else if row.seq < end
                    && is_bus_event(&row)
                    && let Some(start) = shadow::master_call(&row)
                {
                    starts.note(row.seq, &start.jid, start.call);
                }
            })?;
    }

    Ok(())
}

/// Waits for room in the scheduler; false if the daemon stops.
fn wait_for_room(shared: &Shared) -> bool {
    let mut counted = false;
    loop {
        if shared.drain.is_stopping() {
            return false;
        }

        // Lock order: the scheduler before the list of the recorder.
        let mut scheduler = shared.scheduler.lock();
        if scheduler.has_room() && !shared.recorder.is_full() {
            return true;
        }
        // Once per wait, not per check.
        if !counted {
            shared.metrics.reactor_held_up.add(1);
            counted = true;
        }

        shared.room.wait_for(&mut scheduler, STOP_CHECK);
    }
}

/// Reads a part of the log. Events before `fold` are not queued. Returns the new cursor.
fn read_part(shared: &Arc<Shared>, fold: Option<SeqNo>) -> Result<SeqNo, StoreError> {
    let from = shared.checkpoint.lock().cursor;
    let rule_snapshot = shared.rule_snapshot();

    // Entries before the start were counted by the previous process.
    let compares = rule_snapshot.settings.shadow && fold.is_none();
    if compares {
        shared.start_comparing(
            rule_snapshot.settings.shadow_window,
            rule_snapshot.settings.salts.workers,
        );
    }

    let debug = tracing::enabled!(tracing::Level::DEBUG);
    let planned = |kind, flags| {
        is_of_interest(kind, flags)
            || kind == Kind::Gap
            || (compares && shadow::is_of_interest(kind, flags))
    };
    let mut seen = None;

    let after = shared
        .store
        .follow(planned, from, REACTOR_WAVE_BYTES, |row| {
            if compares {
                shared.compare(&row);
                seen = seen.max(Some(row.at).filter(|_| shadow::is_timely(row.source)));
            }

            if fold.is_none()
                && is_bus_event(&row)
                && let Some(salts) = shadow::master_call(&row)
            {
                // Without a lease Salt's reactor may act, so its calls are no sign of a mistake.
                if !compares && !shared.lease_blocks() {
                    let mut foreign = shared.foreign_calls.lock();
                    foreign.note(&salts.jid, &salts.call.fun, shared.clock.now());
                }
                shared.starts.lock().note(row.seq, &salts.jid, salts.call);
            }

            if row.kind == Kind::Reaction {
                if let Some(summary) = read_summary(row.body) {
                    shared.checkpoint.lock().apply_record(row.seq, &summary);
                }
                return;
            }

            // The lost events may include results of runners.
            if row.kind == Kind::Gap && fold.is_none() {
                shared
                    .scheduler
                    .lock()
                    .runners
                    .missed_events(shared.clock.now());
            }

            if !is_bus_event(&row) {
                return;
            }

            // Depths from before the start are restored separately; runners from then are not
            // counted.
            if fold.is_none() {
                shared.job_depths.lock().follow(&row);
                if is_result_of_runner(&row) && shared.scheduler.lock().runners.ended(row.jid) {
                    shared.change.notify_one();
                }
            }

            let tag = String::from_utf8_lossy(row.tag);
            if debug && fold.is_none() && !is_by_reactor(row.body) {
                // Salt's message, for each event that is not its own.
                tracing::debug!("Gathering reactors for tag {tag}");
            }

            let matched = shared.matching(&*rule_snapshot.rules, &tag, row.seq);
            if matched.is_empty() {
                return;
            }

            // As in Salt's reactor. The check is after the rules, so that only affected events
            // count.
            if is_by_reactor(row.body) {
                shared.metrics.reactor_events_own.add(1);
                return;
            }

            // Open before it is queued: a checkpoint may be written at any moment.
            shared.checkpoint.lock().opened(row.seq, matched.len());
            // `resume` queues the events of a former run.
            if fold.is_some_and(|live| row.seq < live) {
                return;
            }

            shared.metrics.reactor_events.add(1);
            let depth = shared.job_depths.lock().depth_of(&row);
            shared.admit(
                &rule_snapshot.settings,
                &event_of(&row),
                &matched,
                depth,
                false,
            );
        })?;

    assert!(
        from <= after && after <= shared.store.durable(),
        "cursor <= durable, and the cursor never decreases"
    );

    // Not earlier: `read` promises that the matching events before it are queued.
    shared.checkpoint.lock().cursor = after;
    shared.read.store(after.0, Ordering::Release);

    if compares {
        // At the end of the log time advances without entries.
        let now = if after >= shared.store.durable() {
            Some(shared.clock.now())
        } else {
            seen
        };
        shared.compare_due(now);
    } else {
        // Calls are made from now on, so there is nothing to compare.
        drop(shared.comparer.lock().take());
    }

    Ok(after)
}

/// The open events of a part of the log that begins with this sequence number, and the number
/// behind that part.
pub(super) fn open_events(shared: &Shared, from: SeqNo) -> Result<(Vec<Event>, SeqNo), StoreError> {
    let mut found = Vec::new();
    let upto = shared
        .store
        .follow(is_of_interest, from, REACTOR_WAVE_BYTES, |row| {
            if shared.checkpoint.lock().open.contains(row.seq) {
                found.push(event_of(&row));
            }
        })?;
    Ok((found, upto))
}

/// Queues events that were open when the daemon ended; returns those that could not be read.
/// `events` is [`open_events`].
pub(super) fn resume(
    shared: &Shared,
    open: Vec<SeqNo>,
    depths: &HashMap<SeqNo, u32>,
    events: impl Fn(SeqNo) -> Result<(Vec<Event>, SeqNo), StoreError>,
) -> Vec<SeqNo> {
    let mut unread = Vec::new();
    let mut open = open.into_iter().peekable();
    while let Some(seq) = open.peek().copied() {
        if !wait_for_room(shared) {
            break;
        }
        let rule_snapshot = shared.rule_snapshot();

        let (found, upto) = events(seq).unwrap_or_else(|error| {
            if unread.is_empty() {
                tracing::error!(%error, event = seq.0, "cannot read open events, retrying");
            }
            shared.metrics.reactor_events_unread.add(1);
            unread.push(seq);
            (Vec::new(), seq.next())
        });

        let mut found = found.into_iter().peekable();
        while let Some(seq) = open.next_if(|seq| *seq < upto) {
            // Events that were opened since are queued already.
            while found.next_if(|event| event.seq < seq).is_some() {}
            match found.next_if(|event| event.seq == seq) {
                Some(event) => {
                    queue_open(
                        shared,
                        &rule_snapshot,
                        event,
                        depths.get(&seq).copied().unwrap_or(0),
                    );
                }
                // This part was read and lacks the event, so retention has deleted it.
                None if unread.last() != Some(&seq) => shared.skip_deleted(seq),
                None => {}
            }
        }
    }

    unread
}

/// Queues an open event for its current rules.
fn queue_open(shared: &Shared, rule_snapshot: &RuleSnapshot, event: Event, depth: u32) {
    let matched = shared.matching(&*rule_snapshot.rules, &event.tag, event.seq);
    let is_open = {
        let checkpoint = shared.checkpoint.lock();
        matched
            .iter()
            .any(|rule| !checkpoint.is_done(event.seq, rule))
    };

    if is_open {
        return shared.admit(&rule_snapshot.settings, &event, &matched, depth, true);
    }

    // No current rule matches the event.
    shared.metrics.reactions_left_gone.add(1);
    let now = shared.clock.now();
    shared
        .recorder
        .write(Record::skipped(event, Vec::new(), 0, "gone", now).batch(now));
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// Keeps what is logged.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_that_cannot_be_read_at_the_start_is_an_error_in_the_daemons_log() {
        let (drain, kept) = (Drain::new(), Kept::default());
        let to = kept.clone();
        let log = tracing_subscriber::fmt().with_writer(move || to.clone());

        // It stops during the first attempt, so that nothing waits for the second.
        let read = || {
            drain.stop();
            Err::<(), _>(StoreError::Failed("the disk is bad".to_owned()))
        };
        let found = tracing::subscriber::with_default(log.finish(), || {
            until_read(&drain, "cannot read the log", read)
        });
        let text = String::from_utf8(kept.0.lock().clone()).unwrap();
        assert_eq!(found, None);
        assert!(
            text.contains("ERROR")
                && text.contains("cannot read the log, retrying")
                && text.contains("the disk is bad"),
            "{text:?}"
        );

        let found = until_read(&drain, "", || Ok(7));
        assert_eq!(found, Some(7));
    }
}
