//! A digest of runs: what lists and counts of the fleet need of each run of states and of each failed run, without reading the returns
//! again.
//!
//! It is derived from the log when somebody asks, segment by segment, the newest entries first, and kept in memory. A call that finds much
//! unread derives a part; its response says since when it is complete, and the next call continues.
//!
//! # Invariant
//!
//! What the digest says of a run follows from the log alone, whatever was read first. It holds the runs of all minions: readers get at it
//! only through a [`DigestView`], which applies their limits to each row.
//!
//! # Simplification
//!
//! Successful runs without states have no row. Therefore a minion whose first return of such a job succeeded, and that then sent another one that
//! failed, counts as failed here, while the job itself ([`super::Job`]) shows the first.

mod cause;
mod spread;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use memchr::memmem;
use parking_lot::Mutex;

pub(crate) use self::cause::{Cause, Failure, failures};
pub(crate) use self::spread::Spread;
use super::counts::StateCounts;
use crate::base::clock::Micros;
use crate::base::limits::{
    DIGEST_BYTES_AT_ONCE, DIGEST_RUNS_MAX, DIGEST_STATES_MAX, DIGEST_WINDOW,
};
use crate::model::{Flags, ReadLimits, SeqNo};
use crate::store::{FoundReturn, ReturnsIn, StoreError, StoreReader, StoreView};
use crate::wire::outcome::Outcome;
use crate::wire::outcome::states::may_return_states;

/// Microseconds of a day.
pub(crate) const DAY_US: i64 = 86_400_000_000;

/// The digest of a store. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Digest {
    /// Held while the digest is updated and read. Lock order: before the locks of the store.
    state: Arc<Mutex<State>>,
}

/// A run: the return of a minion that ran states, or that failed.
#[derive(Debug, Clone)]
pub(crate) struct RunRow {
    pub(crate) jid: Arc<str>,
    pub(crate) minion: Arc<str>,
    pub(crate) fun: Arc<str>,
    /// When it was stored.
    pub(crate) at: Micros,
    /// Whether it applied a whole highstate.
    pub(crate) is_highstate: bool,
    pub(crate) failed: bool,
    /// The counts of its states, if it ran any.
    pub(crate) states: Option<StateCounts>,
    /// Why it failed.
    pub(crate) failures: Vec<RunFailure>,
    standing: Standing,
    /// It counts only in a job that Salt does not store through the extension.
    is_bus_only: bool,
    segment: SegmentName,
}

impl RunRow {
    /// Whether a state changed something.
    pub(crate) fn changed(&self) -> bool {
        self.states
            .as_ref()
            .is_some_and(|states| states.changed > 0)
    }
}

/// A cause in a run.
#[derive(Debug, Clone)]
pub(crate) struct RunFailure {
    pub(crate) cause: Arc<Cause>,
    pub(crate) sls: Option<Arc<str>>,
    pub(crate) example: Box<str>,
}

/// Which of several returns of a minion in a job counts: the smaller one, as in [`super::Job`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Standing {
    is_unconfirmed: bool,
    is_trimmed: bool,
    at: i64,
    number: u64,
    origin: Arc<str>,
    seq: SeqNo,
}

type SegmentName = (Arc<str>, SeqNo);

#[derive(Debug, Default)]
struct State {
    /// How much a call may read, if not [`DIGEST_BYTES_AT_ONCE`].
    bytes_at_once: Option<usize>,
    /// The range of sequence numbers of each segment that was read.
    read: HashMap<SegmentName, Range<SeqNo>>,
    /// By job and minion.
    runs: HashMap<(Arc<str>, Arc<str>), RunRow>,
    /// Each string once.
    texts: HashSet<Arc<str>>,
    causes: HashSet<Arc<Cause>>,
    /// The durations of states by day since 1970, by id and function.
    durations: BTreeMap<i64, HashMap<StateName, Spread>>,
    /// Runs before this time were left out.
    floor: Micros,
}

/// Id and function of a state.
type StateName = (Arc<str>, Arc<str>);

#[cfg(test)]
impl Digest {
    /// Limits what a call may read: it ends after the block in which it has read this much.
    pub(crate) fn read_at_most(&self, bytes: usize) {
        self.state.lock().bytes_at_once = Some(bytes);
    }
}

impl State {
    /// Reads what is new, and what is older up to `since`. Returns the time since which everything was read.
    fn update(&mut self, log: &StoreReader, since: Micros) -> Result<Micros, StoreError> {
        let segments = log.segments_of_returns();
        self.forget(log.now(), &segments);

        let mut budget = self.bytes_at_once.unwrap_or(DIGEST_BYTES_AT_ONCE);
        let mut complete = since.max(self.floor);
        for segment in &segments {
            if let Some(unread) = self.read_segment(log, segment, since, &mut budget)? {
                complete = complete.max(unread);
            }
        }

        self.bound();
        Ok(complete.max(self.floor))
    }

    /// Forgets what is gone from the store, and what is too old.
    fn forget(&mut self, now: Micros, segments: &[ReturnsIn]) {
        let window = i64::try_from(DIGEST_WINDOW.as_micros()).unwrap_or(i64::MAX);
        let oldest = Micros(now.0.saturating_sub(window));
        self.floor = self.floor.max(oldest);

        let known: HashSet<SegmentName> = segments.iter().map(ReturnsIn::name).collect();
        let has_gone = self.read.keys().any(|name| !known.contains(name));
        if has_gone {
            self.read.retain(|name, _| known.contains(name));
        }

        // A walk over all rows, so only when it is due: a segment is gone, or a day is over.
        let first_day = oldest.0.div_euclid(DAY_US);
        let is_day_over = self
            .durations
            .keys()
            .next()
            .is_some_and(|day| *day < first_day);
        if has_gone || is_day_over {
            self.runs
                .retain(|_, run| run.at >= oldest && known.contains(&run.segment));
            self.durations = self.durations.split_off(&first_day);
            self.sweep();
        }
    }

    /// Drops strings and causes of which no run is left.
    fn sweep(&mut self) {
        self.causes.retain(|cause| Arc::strong_count(cause) > 1);
        self.texts.retain(|text| Arc::strong_count(text) > 1);
    }

    /// Leaves out the oldest runs if there are too many.
    fn bound(&mut self) {
        let excess = self.runs.len().saturating_sub(DIGEST_RUNS_MAX);
        if excess == 0 {
            return;
        }
        // Some more: otherwise this would be due with each new run.
        let excess = excess + DIGEST_RUNS_MAX / 10;
        let mut times: Vec<Micros> = self.runs.values().map(|run| run.at).collect();
        let (_, last, _) = times.select_nth_unstable(excess.min(self.runs.len() - 1));
        self.floor = self.floor.max(Micros(last.0.saturating_add(1)));
        let floor = self.floor;
        self.runs.retain(|_, run| run.at >= floor);
        self.sweep();
    }

    /// Reads a segment from its newest block downwards: everything that is new, and of what is older the blocks of the time. Returns the
    /// time after the latest entry that is left unread, if that is after `since`.
    fn read_segment(
        &mut self,
        log: &StoreReader,
        segment: &ReturnsIn,
        since: Micros,
        budget: &mut usize,
    ) -> Result<Option<Micros>, StoreError> {
        let blocks = log.blocks_of_returns(segment)?;
        let Some(last) = blocks.last() else {
            return Ok(None);
        };

        // Numbers behind the durable position may be used again after a crash.
        let end = last.seqs.end.min(log.durable());
        let oldest = blocks.iter().position(|block| block.at_max >= since);
        let oldest = oldest.unwrap_or(blocks.len());

        let name = segment.name();
        let known = self.read.get(&name).cloned().unwrap_or(end..end);
        let mut range = if known.end == end {
            known.clone()
        } else {
            end..end
        };
        let mut unread = None;
        'blocks: for (number, block) in blocks.iter().enumerate().rev() {
            let start = block.seqs.start;
            while start < range.start {
                // New blocks are read whatever their time: the range that was read has no gap.
                let is_new = range.start > known.end;
                if number < oldest && !is_new {
                    break 'blocks;
                }
                if *budget == 0 {
                    let left = blocks.get(oldest..=number).unwrap_or_default();
                    let latest = left.iter().map(|block| block.at_max).max();
                    unread = latest.map(|at| Micros(at.0.saturating_add(1)));
                    break 'blocks;
                }

                // Of the active segment, a block may be known in part.
                let from = if is_new { start.max(known.end) } else { start };
                self.read_range(log, segment, from..range.start, budget)?;
                let joins = is_new && from == known.end;
                range.start = if joins { known.start } else { from };
            }
        }

        // Where the budget did not suffice for what is new, this range replaces the one below: the next call reads on from here.
        self.read.insert(name, range);
        Ok(unread)
    }

    fn read_range(
        &mut self,
        log: &StoreReader,
        segment: &ReturnsIn,
        range: Range<SeqNo>,
        budget: &mut usize,
    ) -> Result<(), StoreError> {
        let name = segment.name();
        log.returns_in(segment, range, |found| {
            let cost = self.learn(&found, &name);
            *budget = budget.saturating_sub(cost);
        })
    }

    /// Takes a return; returns the bytes that were looked at.
    fn learn(&mut self, found: &FoundReturn<'_>, segment: &SegmentName) -> usize {
        let (rows, at) = (found.rows, found.at);
        let (fun, flags, failed) = (rows.fun(at), found.flags(), found.failed());

        // Of several functions the column names none.
        let may_have_states =
            flags.has(Flags::HIGHSTATE) || may_return_states(fun) || fun.is_empty();
        if rows.at(at) < self.floor || !(failed || may_have_states) {
            return 0;
        }

        let jid = self.text(&rows.jid(at));
        let minion = self.text(rows.minion(at));
        let is_unconfirmed = flags.has(Flags::UNCONFIRMED);
        let known = self.runs.get(&(jid.clone(), minion.clone()));
        // The usual case: the bus has shown what the returner call confirms.
        if is_unconfirmed && known.is_some_and(|known| !known.standing.is_unconfirmed) {
            return 0;
        }

        let Some(body) = found.body() else {
            return 0;
        };
        let standing = Standing {
            is_unconfirmed,
            is_trimmed: is_unconfirmed && memmem::find(body, b"VALUE_TRIMMED").is_some(),
            at: rows.at(at).0,
            number: rows.number(at),
            origin: self.text(rows.origin(at)),
            seq: rows.seq(at),
        };
        let known = self.runs.get(&(jid.clone(), minion.clone()));
        if known.is_some_and(|known| known.standing <= standing) {
            return body.len();
        }

        let counts_durations = known.is_none();
        let states =
            self.count_states(body, (&jid, &minion), counts_durations.then(|| rows.at(at)));
        // Neither failed nor with states: one of several functions, which ran none.
        if !failed && states.is_none() {
            return body.len();
        }

        let failures = if failed {
            self.failures(body, (&jid, &minion), rows.retcode(at))
        } else {
            Vec::new()
        };
        let run = RunRow {
            fun: self.text(fun),
            at: rows.at(at),
            is_highstate: flags.has(Flags::HIGHSTATE),
            failed,
            states,
            failures,
            // Seen on this bus only, or by a peer's daemon on its bus only: those returns have a number. What a peer passed on over the bus
            // has an origin and no number, and is an answer that is not verified here.
            is_bus_only: is_unconfirmed && (standing.origin.is_empty() || standing.number > 0),
            standing,
            segment: segment.clone(),
            jid: jid.clone(),
            minion: minion.clone(),
        };
        self.runs.insert((jid, minion), run);
        body.len()
    }

    /// The counts of the states of a return, and their durations at a time, if it is given.
    fn count_states(
        &mut self,
        body: &[u8],
        (jid, minion): (&Arc<str>, &Arc<str>),
        at: Option<Micros>,
    ) -> Option<StateCounts> {
        let outcome = Outcome::of(body, jid);
        let mut counts = StateCounts::default();
        outcome.each_state(minion, |state| {
            counts.add(&state);

            // A step of an orchestration (`salt/states/saltmod.py`) waits for a job, whose own states are counted.
            let waits = state.fun.starts_with("salt.");
            if let (Some(at), Some(ms), false) = (at, state.duration, waits) {
                let name = (self.text(state.id), self.text(&state.fun));
                let of_day = self.durations.entry(at.0.div_euclid(DAY_US)).or_default();
                if let Some(known) = of_day.get_mut(&name) {
                    known.add(ms, minion, jid);
                } else if of_day.len() < DIGEST_STATES_MAX {
                    // Ids can be made by minions, without end.
                    of_day.entry(name).or_default().add(ms, minion, jid);
                }
            }
        });
        counts.if_any()
    }

    fn failures(
        &mut self,
        body: &[u8],
        (jid, minion): (&Arc<str>, &Arc<str>),
        code: i64,
    ) -> Vec<RunFailure> {
        let found = failures(body, jid, minion, code);
        let shared = |failure: Failure| RunFailure {
            cause: self.cause(failure.cause),
            sls: failure.sls.map(|sls| self.text(&sls)),
            example: failure.example.into(),
        };
        found.into_iter().map(shared).collect()
    }

    fn cause(&mut self, cause: Cause) -> Arc<Cause> {
        if let Some(known) = self.causes.get(&cause) {
            return known.clone();
        }
        let cause = Arc::new(cause);
        self.causes.insert(cause.clone());
        cause
    }

    fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        let text: Arc<str> = text.into();
        self.texts.insert(text.clone());
        text
    }
}

/// The digest as a caller may know it.
pub(crate) struct DigestView<'a> {
    digest: &'a Digest,
    log: &'a StoreReader,
    limits: Arc<ReadLimits>,
}

/// Runs of the digest.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// In no order.
    pub(crate) rows: Vec<RunRow>,
    /// All runs since this time are among them.
    pub(crate) since: Micros,
}

impl<'a> DigestView<'a> {
    pub(crate) fn new(digest: &'a Digest, log: &'a StoreReader, limits: Arc<ReadLimits>) -> Self {
        Self {
            digest,
            log,
            limits,
        }
    }

    /// The runs since a time that `wanted` selects and that count: a return that was seen on a bus only does not in a job that Salt
    /// stores through the extension.
    pub(crate) fn runs(
        &self,
        store: &StoreView,
        since: Micros,
        wanted: impl Fn(&RunRow) -> bool,
    ) -> Result<Runs, StoreError> {
        let is_allowed =
            |run: &RunRow| self.limits.allow_minion(&run.minion) && self.limits.allow_fun(&run.fun);

        let mut found = Runs::default();
        // Ends before the store is asked below, because every caller of the digest needs this lock.
        {
            let mut state = self.digest.state.lock();
            found.since = state.update(self.log, since)?;
            let all = state.runs.values();
            let selected =
                all.filter(|run| run.at >= found.since && is_allowed(run) && wanted(run));
            found.rows.extend(selected.cloned());
        }

        let in_doubt: BTreeSet<&str> = found
            .rows
            .iter()
            .filter(|run| run.is_bus_only)
            .map(|run| &*run.jid)
            .collect();
        // The usual case.
        if in_doubt.is_empty() {
            return Ok(found);
        }

        let cached: HashSet<Box<str>> = store
            .cached_by_salt(&in_doubt)?
            .into_iter()
            .map(Into::into)
            .collect();
        found
            .rows
            .retain(|run| !(run.is_bus_only && cached.contains(&*run.jid)));
        Ok(found)
    }

    /// The durations of states of the days from `since` on, by id and function; not for readers with limits, because a spread has all
    /// minions.
    pub(crate) fn durations(
        &self,
        since: Micros,
    ) -> Result<(HashMap<StateName, Spread>, Micros), StoreError> {
        let mut state = self.digest.state.lock();
        let complete = state.update(self.log, since)?;
        let mut all: HashMap<StateName, Spread> = HashMap::new();
        for (_, of_day) in state.durations.range(since.0.div_euclid(DAY_US)..) {
            for (name, spread) in of_day {
                all.entry(name.clone()).or_default().join(spread);
            }
        }
        Ok((all, complete))
    }
}
