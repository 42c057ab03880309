//! The follower: reads the log in order, applies records, and queues matching events.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Event;
use super::endings::Endings;
use super::events::{
    self, event_of, is_bus_event, is_event_of_peer, is_of_interest, is_result_of_runner,
};
use super::gate::CallGate;
use super::in_use::{InUse, RuleSnapshot};
use super::keeper::Keeper;
use super::pending::Pending;
use super::record::read_summary;
use super::slots::RunnerSlots;
use super::tasks::Tasks;
use super::team::{Change, Share, Team};
use super::traces::Traces;
use super::watch::Watch;
use crate::base::clock::Clock;
use crate::base::limits::{REACTOR_WAVE_BYTES, SOURCE_LOG_INTERVAL, STOP_CHECK};
use crate::base::log_once::LogOnce;
use crate::base::metrics::Metrics;
use crate::base::shutdown::Drain;
use crate::model::{Kind, SeqNo};
use crate::reactor::logged::is_by_reactor;
use crate::reactor::shadow;
use crate::store::{Followed, Store, StoreError};

pub(super) struct Follower {
    pub(super) log: Store,
    pub(super) in_use: Arc<InUse>,
    pub(super) keeper: Arc<Keeper>,
    pub(super) pending: Arc<Pending>,
    pub(super) slots: Arc<RunnerSlots>,
    pub(super) traces: Arc<Traces>,
    pub(super) gate: Arc<CallGate>,
    pub(super) watch: Arc<Watch>,
    pub(super) tasks: Arc<Tasks>,
    pub(super) endings: Arc<Endings>,
    pub(super) drain: Drain,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
    pub(super) team: Team,
}

/// Between attempts to read a log that cannot be read, for example on a failing disk.
const READ_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Reads what the reactor cannot start without, until that succeeds; `None` if the daemon stops.
fn until_read<T>(
    drain: &Drain,
    failure: &str,
    read: impl Fn() -> Result<T, StoreError>,
) -> Option<T> {
    let unreadable = Unreadable::default();
    loop {
        match read() {
            Ok(found) => return Some(found),
            Err(error) => {
                unreadable.log(&error, failure);
                if drain.wait(READ_RETRY_PAUSE) {
                    return None;
                }
            }
        }
    }
}

/// Logs that no event is handled, because the log cannot be read: not for each attempt.
struct Unreadable {
    begin: Instant,
    log: LogOnce,
}

impl Default for Unreadable {
    fn default() -> Self {
        Self {
            begin: Instant::now(),
            log: LogOnce::every(SOURCE_LOG_INTERVAL),
        }
    }
}

impl Unreadable {
    fn log(&self, error: &StoreError, failure: &str) {
        if self.log.is_due((), self.begin.elapsed()) {
            tracing::error!(%error, failure, "reactor cannot read the log, no event is handled meanwhile, retrying: run `saltcellar store verify`");
        }
    }
}

/// Open events that were requeued.
struct Opened {
    depths: HashMap<SeqNo, u32>,
    /// Those that are not queued yet, and when that was last tried.
    unread: Vec<SeqNo>,
    read: Instant,
}

impl Default for Opened {
    fn default() -> Self {
        Self {
            depths: HashMap::new(),
            unread: Vec::new(),
            read: Instant::now(),
        }
    }
}

impl Follower {
    /// Follows the log. Open events before `live` belong to a former run.
    pub(super) fn run(&self, live: SeqNo) {
        let drain = &self.drain;

        let restore = || self.team.restore(&self.in_use.snapshot());
        if until_read(drain, "cannot read which events have twins", restore).is_none() {
            return;
        }

        // Entries before the start are applied first, because a record may come long after its event.
        if !self.read_up_to(live, Some(live)) {
            return;
        }

        let starts = || self.restore_starts();
        if until_read(drain, "cannot read the starts of runners", starts).is_none() {
            return;
        }

        let unreadable = Unreadable::default();
        let mut opened = Opened::default();
        if self.team.acts() && !self.queue_all(&mut opened) {
            return;
        }

        loop {
            match self.team.change() {
                Some(Change::Begins { term }) if !self.begin(term, &mut opened) => return,
                Some(Change::Ends) => {
                    opened = Opened::default();
                    self.pending.release_all();
                }
                Some(Change::Begins { .. }) | None => {}
            }
            if self.team.is_one() {
                self.queue_due(&mut opened);
            }

            if drain.is_stopping() {
                return;
            }
            // A reactor that does not act queues nothing.
            if self.team.acts() && !self.wait_for_room() {
                continue;
            }

            // Open events that could not be read are retried, without delaying new events.
            if !opened.unread.is_empty() && opened.read.elapsed() >= READ_RETRY_PAUSE {
                let unread = std::mem::take(&mut opened.unread);
                opened.unread = self.resume(unread, &opened.depths, |from| self.open_events(from));
                opened.read = Instant::now();
            }

            let before = self.keeper.cursor();
            match self.read_part(None) {
                // The end of the log: the next commit wakes this thread.
                Ok(after) if after == before => self.log.wait_for(before, STOP_CHECK),
                Ok(_) => unreadable.log.reset(),
                Err(error) => {
                    unreadable.log(&error, "cannot read new events");
                    self.drain.wait(READ_RETRY_PAUSE);
                }
            }
        }
    }

    /// Continues what a former leader left open; false if the daemon stops.
    fn begin(&self, term: u64, opened: &mut Opened) -> bool {
        // What it did is in the log. Events that are read until then are queued with all others, once.
        if !self.read_up_to(self.log.durable(), None) {
            return false;
        }

        // Before the events are queued: the workers make the room that these need.
        self.gate.begin(term);
        let has_begun = self.queue_all(opened);
        if has_begun {
            self.team.begun();
        }
        has_begun
    }

    /// Reads the log up to a position; false if the daemon stops. See [`Follower::read_part`] for `fold`.
    fn read_up_to(&self, end: SeqNo, fold: Option<SeqNo>) -> bool {
        while self.keeper.cursor() < end {
            if self.drain.is_stopping() {
                return false;
            }
            let part = || self.read_part(fold);
            if until_read(&self.drain, "cannot read earlier events", part).is_none() {
                return false;
            }
        }
        true
    }

    /// Queues all open events; false if the daemon stops.
    fn queue_all(&self, opened: &mut Opened) -> bool {
        // Events whose twin is awaited are queued later.
        let awaited = self.team.awaited();
        let open: Vec<SeqNo> = {
            let checkpoint = self.keeper.checkpoint();
            let open = checkpoint.open.iter().map(|(seq, _)| seq);
            open.filter(|seq| !awaited.contains(seq)).collect()
        };
        if !open.is_empty() {
            tracing::info!(events = open.len(), "continuing open reactions");
        }

        // Depths are restored first, because events without them would pass the limit for loops.
        let depths = || self.restore_depths();
        let failure = "cannot restore reaction depths from the log";
        let Some(depths) = until_read(&self.drain, failure, depths) else {
            return false;
        };

        let unread = self.resume(open, &depths, |from| self.open_events(from));
        *opened = Opened {
            depths,
            unread,
            read: Instant::now(),
        };
        true
    }

    /// Queues the events that only other masters have, once their twins are not awaited any more.
    fn queue_due(&self, opened: &mut Opened) {
        let snapshot = self.in_use.snapshot();
        for (seq, depth) in self.team.due(&snapshot.settings) {
            // It stays open, and is queued with all others if this reactor begins to lead.
            if !self.team.acts() {
                continue;
            }
            // Of one from before the start the depth is known since all that was open was queued.
            let known = opened.depths.get(&seq).copied().unwrap_or(0);
            let depth = depth.max(known);
            match events::load(&self.log, seq) {
                Ok(Some(event)) => self.queue_open(&snapshot, event, depth),
                Ok(None) => self.tasks.skip_deleted(seq),
                Err(error) => {
                    tracing::error!(%error, event = seq.0, "cannot read an event of another master, its reactions wait, retrying: run `saltcellar store verify`");
                    self.metrics.reactor_event_reads_failed.add(1);
                    opened.depths.insert(seq, depth);
                    opened.unread.push(seq);
                    opened.unread.sort_unstable();
                }
            }
        }
    }

    /// Reads the starts of runners and wheel functions since the first open event with started
    /// calls.
    fn restore_starts(&self) -> Result<(), StoreError> {
        let (first, end) = {
            let checkpoint = self.keeper.checkpoint();
            (checkpoint.open.first_started(), checkpoint.cursor)
        };

        // Without a started call there is none whose start could be found.
        let Some(from) = first else { return Ok(()) };
        self.traces
            .restore_starts(&self.log, from, end, &self.drain)
    }

    /// The depths of the open events.
    fn restore_depths(&self) -> Result<HashMap<SeqNo, u32>, StoreError> {
        // A copy: the checkpoint must not be locked while the log is read.
        let (open, cursor) = {
            let checkpoint = self.keeper.checkpoint();
            let open: Vec<SeqNo> = checkpoint.open.iter().map(|(seq, _)| seq).collect();
            (open, checkpoint.cursor)
        };
        self.traces
            .restore_depths(&self.log, open.into_iter(), cursor)
    }

    /// Waits for room in the scheduler; false if the daemon stops, or if another reactor may lead.
    fn wait_for_room(&self) -> bool {
        let mut counted = false;
        loop {
            if self.drain.is_stopping() {
                return false;
            }

            // Lock order: the scheduler before the list of the recorder.
            let mut scheduler = self.pending.lock();
            if scheduler.has_room() && !self.endings.is_full() {
                return true;
            }
            // No worker would make room, and what is queued is no longer this reactor's.
            if !self.gate.has_begun() {
                return false;
            }
            // Once per wait, not per check.
            if !counted {
                self.metrics.reactor_reads_paused.add(1);
                counted = true;
            }

            self.pending.wait_for_room(&mut scheduler);
        }
    }

    /// Reads a part of the log. With `fold` it ends there, and its events are not queued. Returns
    /// the new cursor.
    fn read_part(&self, fold: Option<SeqNo>) -> Result<SeqNo, StoreError> {
        // The clock is read before the log. All entries of a time that counts as over are then in
        // the log.
        let began = self.clock.now();
        let from = self.keeper.cursor();
        let snapshot = self.in_use.snapshot();
        let settings = &snapshot.settings;

        // Entries before the start were counted by the previous process.
        let compares = settings.shadow && fold.is_none();
        if compares {
            self.watch.start(
                settings.shadow_window,
                settings.salts.workers,
                snapshot.compared_since,
            );
        }

        let is_one = self.team.is_one();
        let planned = |kind, flags| {
            is_of_interest(kind, flags)
                || kind == Kind::Gap
                || (is_one && kind == Kind::Return)
                || (compares && shadow::is_of_interest(kind, flags))
        };
        let debug = tracing::enabled!(tracing::Level::DEBUG);
        let mut seen = None;

        let range = from..fold.unwrap_or(SeqNo(u64::MAX));
        let apply = |row: Followed<'_>| {
            if compares {
                self.watch.compare(&row);
                seen = seen.max(Some(row.at).filter(|_| shadow::is_timely(row.source)));
            }
            if fold.is_none() {
                self.follow_calls(&row, compares);
            }

            if row.kind == Kind::Reaction {
                self.follow_record(&row, is_one);
            } else if is_bus_event(&row) || (is_one && is_event_of_peer(&row)) {
                let tag = String::from_utf8_lossy(row.tag);
                if debug && fold.is_none() && !is_by_reactor(row.body) {
                    // Salt's message, for each event that is not its own.
                    tracing::debug!("Gathering reactors for tag {tag}");
                }
                self.follow_event(&row, &tag, &snapshot, fold.is_some());
            }
        };
        let after = self
            .log
            .follow_range(planned, range, REACTOR_WAVE_BYTES, apply)?;

        assert!(
            from <= after && after <= self.log.durable(),
            "cursor <= durable, and the cursor never decreases"
        );

        // Not earlier: the matching events before it must be queued.
        self.keeper.has_read(after);

        if compares {
            // At the end of the log time advances without entries.
            let now = if after >= self.log.durable() {
                Some(began)
            } else {
                seen
            };
            self.watch.pass(now);
        } else {
            self.watch.end();
        }

        Ok(after)
    }

    /// Notes what an entry shows of calls. Entries from before the start are evaluated by
    /// [`Traces::restore_depths`] and [`Traces::restore_starts`]; runners from then are not counted.
    fn follow_calls(&self, row: &Followed<'_>, compares: bool) {
        // The lost events may include results of runners.
        if row.kind == Kind::Gap {
            self.slots.missed_events();
        }
        if !is_bus_event(row) {
            return;
        }

        // Calls on other masters are not made by a reactor of this one.
        if row.origin.is_empty()
            && let Some(salts) = shadow::master_call(row)
        {
            // Without a lease Salt's reactor may act, so its calls are no sign of a mistake.
            let may_be_foreign = !compares && !self.gate.blocks();
            self.traces.saw(row.seq, salts, may_be_foreign);
        }

        self.traces.follow(row);
        if is_result_of_runner(row) {
            self.slots.ended(row.jid);
        }
    }

    /// Applies a record of a reaction.
    fn follow_record(&self, row: &Followed<'_>, is_one: bool) {
        // The number in another master's record refers to the log of that master.
        if row.number != 0 {
            self.traces.follow_record(row.body);
            self.tasks.note_first(&self.in_use.settings(), row);
        }
        if is_one {
            self.team.record(row);
        } else if row.number == 0
            && let Some(summary) = read_summary(row.body)
        {
            self.keeper.checkpoint().apply_record(row.seq, &summary);
        }
    }

    /// Opens and queues an event that rules match. [`Follower::resume`] queues events of a fold.
    fn follow_event(&self, row: &Followed<'_>, tag: &str, snapshot: &RuleSnapshot, is_fold: bool) {
        let matched = self.keeper.matching(&*snapshot.rules, tag, row.seq);
        if matched.is_empty() {
            return;
        }

        // Checked after the rules, because only affected events are counted, as below.
        if snapshot.settings.is_of_peer(row.origin) {
            self.metrics.reactor_events_ignored_other_master.add(1);
            return;
        }

        // As in Salt's reactor.
        if is_by_reactor(row.body) {
            self.metrics.reactor_events_ignored_own.add(1);
            return;
        }

        let (event, depth) = (event_of(row), self.traces.depth_of(row));
        // Open before it is queued: a checkpoint may be written at any moment.
        let share = if self.team.is_one() {
            self.team.event(row, &event, matched.len(), depth)
        } else {
            self.keeper.checkpoint().opened(row.seq, matched.len());
            Share::Queue { resumed: false }
        };

        let Share::Queue { resumed } = share else {
            return;
        };
        if is_fold || !self.team.acts() {
            return;
        }

        self.metrics.reactor_events.add(1);
        self.tasks
            .admit(&snapshot.settings, &event, &matched, depth, resumed);
    }

    /// The open events of a part of the log that begins with this sequence number, and the number
    /// behind that part.
    pub(super) fn open_events(&self, from: SeqNo) -> Result<(Vec<Event>, SeqNo), StoreError> {
        let mut found = Vec::new();
        let any = |kind, flags| is_of_interest(kind, flags) || kind == Kind::Return;
        let upto = self.log.follow(any, from, REACTOR_WAVE_BYTES, |row| {
            if self.keeper.checkpoint().open.contains(row.seq) {
                found.push(event_of(&row));
            }
        })?;
        Ok((found, upto))
    }

    /// Queues events that were open when the daemon ended; returns those that could not be read or for which there is no room.
    /// `events` is [`Follower::open_events`].
    pub(super) fn resume(
        &self,
        open: Vec<SeqNo>,
        depths: &HashMap<SeqNo, u32>,
        events: impl Fn(SeqNo) -> Result<(Vec<Event>, SeqNo), StoreError>,
    ) -> Vec<SeqNo> {
        let mut unread = Vec::new();
        let mut open = open.into_iter().peekable();
        while let Some(seq) = open.peek().copied() {
            if !self.wait_for_room() {
                unread.extend(open);
                break;
            }
            let snapshot = self.in_use.snapshot();

            let (found, upto) = events(seq).unwrap_or_else(|error| {
                if unread.is_empty() {
                    tracing::error!(%error, event = seq.0, "cannot read open events, their reactions wait, retrying: run `saltcellar store verify`");
                }
                self.metrics.reactor_event_reads_failed.add(1);
                // Only this event waits for another attempt: the next part begins behind it.
                unread.push(seq);
                (Vec::new(), seq.next())
            });

            let mut found = found.into_iter().peekable();
            while let Some(seq) = open.next_if(|seq| *seq < upto) {
                // Events that were opened since are queued already.
                while found.next_if(|event| event.seq < seq).is_some() {}
                match found.next_if(|event| event.seq == seq) {
                    Some(event) => {
                        let depth = depths.get(&seq).copied().unwrap_or(0);
                        self.queue_open(&snapshot, event, depth);
                    }
                    // This part was read and lacks the event, so retention has deleted it.
                    None if unread.last() != Some(&seq) => self.tasks.skip_deleted(seq),
                    None => {}
                }
            }
        }

        unread
    }

    /// Queues an open event for its current rules.
    fn queue_open(&self, snapshot: &RuleSnapshot, event: Event, depth: u32) {
        let matched = self
            .keeper
            .matching(&*snapshot.rules, &event.tag, event.seq);
        let is_open = {
            let checkpoint = self.keeper.checkpoint();
            matched
                .iter()
                .any(|rule| !checkpoint.is_done(event.seq, rule))
        };

        if is_open {
            self.tasks
                .admit(&snapshot.settings, &event, &matched, depth, true);
        } else {
            // Rules were removed since it was opened: their records would never come, and it would
            // stay open.
            self.endings.skip_unmatched(event);
        }
    }
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
                && text.contains("cannot read the log, no event is handled meanwhile, retrying")
                && text.contains("the disk is bad"),
            "{text:?}"
        );

        let found = until_read(&drain, "", || Ok(7));
        assert_eq!(found, Some(7));
    }
}
