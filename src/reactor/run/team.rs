//! The reactors of several masters that elect one of them: what each does until it leads.
//!
//! All of them open the same events, each the events of its bus first ([`twins`](super::twins)),
//! and close them when a record says that they are handled, whichever reactor wrote it. Only the
//! leader queues them. A reactor that begins to lead queues what is open, as after a start.
//!
//! # Invariant
//!
//! What is open here was not handled by any reactor, as far as the log tells.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::events::{event_of, is_bus_event, is_event_of_peer};
use super::gate::CallGate;
use super::in_use::RuleSnapshot;
use super::keeper::Keeper;
use super::record::{RecordSummary, read_summary};
use super::twins::{Arrival, Likeness, Sighting, Twins};
use super::{Event, SeqNo};
use crate::base::clock::{Clock, Micros, micros};
use crate::base::limits::{REACTOR_WAVE_BYTES, TWINS_WINDOW, TWINS_WINDOW_EQUAL};
use crate::base::metrics::Metrics;
use crate::model::{Flags, Kind, REACTION_TAG, ReactorSettings};
use crate::reactor::logged::is_by_reactor;
use crate::store::{Followed, Start, Store, StoreError};

pub(super) struct Team {
    gate: Arc<CallGate>,
    keeper: Arc<Keeper>,
    log: Store,
    clock: Clock,
    metrics: Arc<Metrics>,
    /// Lock order: before the checkpoint.
    twins: Mutex<Twins>,
    /// Events are queued.
    acts: AtomicBool,
    /// When what is over was last forgotten. Lock order: no other lock is taken under it.
    swept: Mutex<Micros>,
}

/// A change of what this reactor does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// It queues events from now on, and first what is open.
    Begins { term: u64 },
    /// It does not any more.
    Ends,
}

/// What is to be done about an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    /// Nothing.
    None,
    /// It is open, and queued; `resumed` if a reactor may have made calls of it already.
    Queue { resumed: bool },
}

impl Team {
    pub(super) fn new(
        gate: Arc<CallGate>,
        keeper: Arc<Keeper>,
        log: Store,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Self {
        // In an election nothing is queued until it leads and all open events are queued, see
        // `change`.
        let acts = gate.election().is_none();
        Self {
            gate,
            keeper,
            log,
            clock,
            metrics,
            twins: Mutex::default(),
            acts: AtomicBool::new(acts),
            swept: Mutex::default(),
        }
    }

    /// Whether this reactor is one of several.
    pub(super) fn is_one(&self) -> bool {
        self.gate.election().is_some()
    }

    /// Whether events are queued. Without an election always.
    pub(super) fn acts(&self) -> bool {
        self.acts.load(Ordering::Acquire)
    }

    /// Compares what this reactor does with what it should. Before it acts, all that is open must be queued: then [`Team::begun`].
    pub(super) fn change(&self) -> Option<Change> {
        if !self.acts() {
            return self.gate.term().map(|term| Change::Begins { term });
        }
        // In another term than it began in, another reactor may have led meanwhile.
        if self.gate.has_begun() {
            return None;
        }
        self.acts.store(false, Ordering::Release);
        Some(Change::Ends)
    }

    /// Notes that all open events are queued: from now on each is queued when it is read.
    pub(super) fn begun(&self) {
        self.acts.store(true, Ordering::Release);
    }

    /// Opens an event that rules match, unless it is known by a twin.
    pub(super) fn event(
        &self,
        row: &Followed<'_>,
        event: &Event,
        rule_count: usize,
        depth: u32,
    ) -> Share {
        let sighting = sighting(row, event, depth);
        let mut twins = self.twins.lock();
        let Arrival::Open(opening) = twins.arrived(&sighting) else {
            self.metrics.reactor_events_ignored_duplicate.add(1);
            return Share::None;
        };

        let mut checkpoint = self.keeper.checkpoint();

        // At most one of the twins is open.
        if let Some(other) = opening.instead_of {
            checkpoint.forget(other);
        }
        checkpoint.opened(row.seq, rule_count);

        // Records of a twin apply to this event, because its calls must not be repeated.
        for record in &opening.records {
            let record = RecordSummary {
                event: row.seq,
                ..record.clone()
            };
            checkpoint.apply_record(row.seq, &record);
        }

        // The records show that nothing is left to do.
        if !checkpoint.open.contains(row.seq) {
            twins.closed(sighting.likeness, row.seq);
            return Share::None;
        }

        // The event is taken by `due` if its twin does not come.
        if opening.waits {
            return Share::None;
        }
        Share::Queue {
            resumed: !opening.records.is_empty(),
        }
    }

    /// Applies a record about an event to the event that is open here.
    pub(super) fn record(&self, row: &Followed<'_>) {
        let Some(record) = read_summary(row.body) else {
            return;
        };
        let likeness = likeness_of_record(row, &record);
        let is_own = row.number == 0;
        let own = record.event;

        let mut twins = self.twins.lock();
        let known = twins.recorded(likeness, record.at, record.clone());
        // A record of this reactor names its event.
        let event = if is_own { Some(own) } else { known };
        let Some(event) = event else { return };

        let mut checkpoint = self.keeper.checkpoint();
        checkpoint.apply_record(row.seq, &RecordSummary { event, ..record });
        if !checkpoint.open.contains(event) {
            twins.closed(likeness, event);
        }
    }

    /// Reads twins again after a start, of all events that are open.
    pub(super) fn restore(&self, snapshot: &RuleSnapshot) -> Result<(), StoreError> {
        if !self.is_one() {
            return Ok(());
        }

        let (open, cursor): (BTreeSet<SeqNo>, SeqNo) = {
            let checkpoint = self.keeper.checkpoint();
            let open = checkpoint.open.iter().map(|(seq, _)| seq);
            (open.collect(), checkpoint.cursor)
        };

        // A copy of an event that was read before the restart may still arrive.
        let recent = self.clock.now().before(2 * TWINS_WINDOW_EQUAL);
        let recent = self.log.position(Start::Time(recent))?;
        let mut at = open.first().copied().unwrap_or(cursor).min(recent);

        let mut twins = self.twins.lock();
        while at < cursor {
            let planned = |kind, flags: Flags| {
                matches!(kind, Kind::Reaction | Kind::SeenOnBus | Kind::Return)
                    || flags.has(Flags::ON_BUS)
            };
            let after = self.log.follow(planned, at, REACTOR_WAVE_BYTES, |row| {
                if row.seq < cursor {
                    self.restore_row(&row, snapshot, &open, &mut twins);
                }
            })?;

            // The loop would not end without progress.
            if after == at {
                break;
            }
            at = after;
        }
        Ok(())
    }

    fn restore_row(
        &self,
        row: &Followed<'_>,
        snapshot: &RuleSnapshot,
        open: &BTreeSet<SeqNo>,
        twins: &mut Twins,
    ) {
        if row.kind == Kind::Reaction {
            let Some(record) = read_summary(row.body) else {
                return;
            };
            let likeness = likeness_of_record(row, &record);
            let event = twins.recorded(likeness, record.at, record);
            // What is open follows from the checkpoint, which has folded this record.
            if let Some(event) = event.filter(|event| !open.contains(event)) {
                twins.closed(likeness, event);
            }
            return;
        }

        let is_event = is_bus_event(row) || is_event_of_peer(row);
        if !is_event || is_by_reactor(row.body) {
            return;
        }

        let tag = String::from_utf8_lossy(row.tag);
        let rules = self.keeper.matching(&*snapshot.rules, &tag, row.seq);
        if !rules.is_empty() {
            let sighting = sighting(row, &event_of(row), 0);
            twins.restored(&sighting, open.contains(&row.seq));
        }
    }

    /// The open events whose twin is awaited: they are not queued yet.
    pub(super) fn awaited(&self) -> BTreeSet<SeqNo> {
        self.twins.lock().awaited()
    }

    /// Takes the open events whose twin is not awaited any more, with their depths, and forgets what is over.
    pub(super) fn due(&self, settings: &ReactorSettings) -> Vec<(SeqNo, u32)> {
        let now = self.clock.now();
        let due = self.twins.lock().due(now);

        let mut swept = self.swept.lock();
        if now.0 - swept.0 >= micros(TWINS_WINDOW) {
            *swept = now;
            self.sweep(now, settings);
        }
        due
    }

    fn sweep(&self, now: Micros, settings: &ReactorSettings) {
        // The leader skips an event that is too old, with a record.
        let oldest = if self.acts() {
            Micros(i64::MIN)
        } else {
            now.before(settings.age_max)
        };
        let unhandled = self.twins.lock().sweep(now, oldest);
        if unhandled.is_empty() {
            return;
        }

        tracing::warn!(
            events = unhandled.len(),
            first = unhandled.first().map(|event| event.0),
            "no reactor has handled these events within `reactor.age_max`: run `saltcellar reactor replay EVENT` for each, from the first on, on the master whose reactor leads"
        );
        self.metrics
            .reactor_events_unhandled
            .add(unhandled.len() as u64);
        let mut checkpoint = self.keeper.checkpoint();
        for event in unhandled {
            checkpoint.forget(event);
        }
    }
}

fn sighting<'a>(row: &Followed<'a>, event: &Event, depth: u32) -> Sighting<'a> {
    Sighting {
        seq: row.seq,
        at: row.at,
        origin: row.origin,
        likeness: Likeness::of(row.tag, &event.minion, row.body),
        is_of_job: row.kind == Kind::Return || !row.jid.is_empty(),
        depth,
    }
}

fn likeness_of_record(row: &Followed<'_>, record: &RecordSummary) -> Likeness {
    let tag = row.tag.strip_prefix(REACTION_TAG.as_bytes());
    Likeness::with(tag.unwrap_or(row.tag), row.minion, record.content)
}
