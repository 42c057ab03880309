//! Minions, computed from the archive: last seen, last function, last highstate, missing returns.
//!
//! The latest job of each function and minion is in an index. Three things are read from a limited number of entries, which the
//! answer states: events, jobs for missing returns, and the states of highstates.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::job::Job;
use super::states::state_rows;
use crate::base::clock::Micros;
use crate::base::limits::{
    LIST_BYTES_MAX, MINION_STATES_SHOWN, MINION_TIMELINE, MINIONS_ENTRIES_CHECKED, MINIONS_ENTRIES_SEEN,
    MINIONS_JOBS_CHECKED, MINIONS_STATE_BYTES, MINIONS_STATES_AT_ONCE,
};
use crate::model::{EventFilter, Flags, Glob, JidKey};
use crate::store::{LatestJob, Store, StoreError};
use crate::wire::msgpack::{self, as_text};

/// A page of minions, by id.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MinionsPage {
    /// The minions.
    pub minions: Vec<MinionRow>,
    /// More minions follow.
    pub more: bool,
    /// The argument `after` of the next page.
    pub next: Option<String>,
    /// Data not examined.
    pub skipped: Skipped,
}

/// Period that an answer covers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Skipped {
    /// Newest jobs examined for missing returns.
    pub jobs_checked: usize,
    /// Whether earlier jobs were not examined.
    pub jobs_skipped: bool,
    /// Events before this time were not examined for `last_seen`; absent if all were. Returns always count.
    pub events_since: Option<i64>,
    /// Highstates whose states were not read; their `states` is absent.
    pub states_unread: usize,
}

/// A minion in a list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MinionRow {
    /// Its id.
    pub id: String,
    /// When its last event or return arrived.
    pub last_seen: Option<Seen>,
    /// Its last job.
    pub last: Option<LastRun>,
    /// Its last highstate.
    pub highstate: Option<LastRun>,
    /// Jobs among those examined that expect a return of it.
    pub missing: usize,
}

impl MinionRow {
    /// Whether its last highstate failed, or returns are missing.
    fn needs_attention(&self) -> bool {
        self.missing > 0 || self.highstate.as_ref().is_some_and(|run| run.failed == Some(true))
    }
}

/// A time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Seen {
    /// Microseconds since 1970 UTC.
    pub time: i64,
}

/// The latest run of a function on a minion.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastRun {
    /// The job.
    pub jid: String,
    /// The function; empty for several.
    pub fun: String,
    /// The time in the jid, if it has one.
    pub time: Option<i64>,
    /// Whether it ran only some states (`state.apply web`).
    pub partial: bool,
    /// Whether it failed, if its return was read.
    pub failed: Option<bool>,
    /// Its states, if they were read.
    pub states: Option<StateCounts>,
}

/// Numbers of states.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StateCounts {
    /// All.
    pub total: usize,
    /// Failed ones.
    pub failed: usize,
    /// Those with changes.
    pub changed: usize,
}

/// One minion.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MinionDetails {
    /// As in a list.
    #[serde(flatten)]
    pub row: MinionRow,
    /// Ids of failed states of the highstate, up to a limit.
    pub failed_states: Vec<String>,
    /// Ids of changed states of the highstate, up to a limit.
    pub changed_states: Vec<String>,
    /// The latest job of each function, the latest first.
    pub functions: Vec<LastRun>,
    /// Jobs among those examined that expect a return of it, the latest first.
    pub missing_jobs: Vec<LastRun>,
    /// Its latest events, the latest first.
    pub timeline: Vec<TimelineEvent>,
    /// Data not examined.
    pub skipped: Skipped,
}

/// An event of a minion.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimelineEvent {
    /// Its sequence number.
    pub seq: u64,
    /// Its arrival.
    pub time: i64,
    /// Its tag.
    pub tag: String,
    /// The function of a return.
    pub fun: String,
    /// The exit code of a return, if known.
    pub retcode: Option<i64>,
}

/// Selects a page of minions.
#[derive(Debug, Clone, Default)]
pub struct MinionsFilter {
    /// Pattern for the id.
    pub minion: Option<Glob>,
    /// Only minions whose last highstate failed, or that have missing returns.
    pub attention: bool,
    /// Ids after this one.
    pub after: Option<String>,
    /// Minions on the page.
    pub limit: usize,
}

/// The functions of a highstate.
const HIGHSTATES: [&str; 2] = ["state.apply", "state.highstate"];

/// The jobs of one minion that count, by function.
type Runs = BTreeMap<String, LatestJob>;

/// The latest jobs by minion, without forged ones: a return seen on a bus only does not count in a job that Salt stores through the
/// extension, see [`Job`].
fn runs(store: &Store, wanted: impl Fn(&str) -> bool) -> Result<HashMap<String, Runs>, StoreError> {
    let mut minions: HashMap<String, Runs> = HashMap::new();
    let mut by_jid: HashMap<String, bool> = HashMap::new();
    let mut rows = store.latest_jobs()?;
    // Confirmed returns first, so that most others are seen to be older.
    rows.sort_by_key(|(_, is_bus_only)| *is_bus_only);
    for (row, is_bus_only) in rows {
        let Ok(minion) = std::str::from_utf8(&row.minion) else { continue };
        if !wanted(minion) {
            continue;
        }
        let fun = String::from_utf8_lossy(&row.fun).into_owned();
        let known = minions.get(minion).and_then(|runs| runs.get(&fun));
        if known.is_some_and(|known| known.jid == row.jid || known.newness() >= row.newness()) {
            continue;
        }
        if is_bus_only {
            let is_cached = if let Some(known) = by_jid.get(&row.jid) {
                *known
            } else {
                let found = store.job_row(&row.jid)?.is_some_and(|job| job.is_cached_by_salt());
                by_jid.insert(row.jid.clone(), found);
                found
            };
            if is_cached {
                continue;
            }
        }
        minions.entry(minion.to_owned()).or_default().insert(fun, row);
    }
    // The results of runners have the id of the master.
    let of_master = |id: &str, runs: &Runs| {
        id.ends_with("_master")
            && runs.keys().all(|fun| fun.starts_with("runner.") || fun.starts_with("wheel."))
    };
    minions.retain(|id, runs| !of_master(id, runs));
    Ok(minions)
}

fn newest<'a>(
    runs: impl Iterator<Item = (&'a String, &'a LatestJob)>,
) -> Option<(&'a String, &'a LatestJob)> {
    runs.max_by_key(|(_, run)| run.newness())
}

fn last_run(fun: &str, run: &LatestJob) -> LastRun {
    let time = JidKey::of(&run.jid).time().map(|at| at.0);
    LastRun { jid: run.jid.clone(), fun: fun.to_owned(), time, ..LastRun::default() }
}

fn last_highstate(runs: &Runs) -> Option<LastRun> {
    let of_states = runs.iter().filter(|(fun, _)| HIGHSTATES.contains(&fun.as_str()));
    newest(of_states).map(|(fun, run)| last_run(fun, run))
}

/// Missing returns of the newest jobs.
#[derive(Default)]
struct MissingReturns {
    by_minion: HashMap<String, Vec<LastRun>>,
    skipped: Skipped,
}

fn missing_returns(store: &Store, wanted: impl Fn(&str) -> bool) -> Result<MissingReturns, StoreError> {
    let mut found = MissingReturns::default();
    let mut entries = 0;
    let rows = store.jobs_before(None, MINIONS_JOBS_CHECKED + 1)?;
    for (n, (key, row)) in rows.iter().enumerate() {
        if n >= MINIONS_JOBS_CHECKED || entries > MINIONS_ENTRIES_CHECKED {
            found.skipped.jobs_skipped = true;
            break;
        }
        found.skipped.jobs_checked += 1;
        if row.rank == 0 || as_text(&row.fun) == Some("saltutil.find_job") {
            continue;
        }
        let Some(job) = Job::read_load(store, &row.jid)? else { continue };
        entries += job.answers.len() + job.minions.as_ref().map_or(0, BTreeSet::len);
        for id in job.missing() {
            if wanted(id) {
                let run = LastRun {
                    jid: row.jid.clone(),
                    fun: as_text(&row.fun).unwrap_or_default().to_owned(),
                    time: key.time().map(|at| at.0),
                    ..LastRun::default()
                };
                found.by_minion.entry(id.to_owned()).or_default().push(run);
            }
        }
    }
    Ok(found)
}

/// Reads results, and states up to a number of bytes, of the runs of these minions. Runs of the same job are read together.
fn read_states(
    store: &Store,
    rows: &mut [(String, &mut LastRun)],
    bytes_max: usize,
    mut details: impl FnMut(&str, &super::states::StateRow<'_>),
) -> Result<usize, StoreError> {
    let mut by_jid: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (n, (_, run)) in rows.iter().enumerate() {
        by_jid.entry(run.jid.clone()).or_default().push(n);
    }
    let (mut bytes, mut unread) = (0, 0);
    for (jid, of_job) in by_jid {
        let partial = store.job_row(&jid)?.is_some_and(|job| {
            let is_name = |arg: &[u8]| as_text(arg).is_some_and(|name| !name.contains('='));
            as_text(&job.fun) == Some("state.apply") && msgpack::elements(&job.arg).any(is_name)
        });
        // Results alone need little memory; each further part reads the job again.
        let at_once = if bytes_max == 0 { of_job.len().max(1) } else { MINIONS_STATES_AT_ONCE };
        for part in of_job.chunks(at_once) {
            let ids: BTreeSet<&str> =
                part.iter().filter_map(|n| rows.get(*n)).map(|(id, _)| id.as_str()).collect();
            let with_states = bytes < bytes_max;
            let job = Job::read_of(store, &jid, |id| with_states && ids.contains(id))?;
            for n in part {
                let Some((id, run)) = rows.get_mut(*n) else { continue };
                run.partial = partial;
                let Some(answer) = job.as_ref().and_then(|job| job.answers.get(id)) else { continue };
                run.failed = Some(answer.failed());
                if answer.entry.body.is_empty() {
                    unread += 1;
                    continue;
                }
                bytes += answer.entry.body.len();
                let mut counts = StateCounts::default();
                for state in state_rows(answer) {
                    counts.total += 1;
                    counts.failed += usize::from(state.result == Some(false));
                    counts.changed += usize::from(state.changed());
                    details(id, &state);
                }
                run.states = Some(counts);
            }
        }
    }
    Ok(unread)
}

/// The highstates of a list, by minion.
fn highstates(minions: &mut [MinionRow]) -> Vec<(String, &mut LastRun)> {
    minions.iter_mut().filter_map(|row| Some((row.id.clone(), row.highstate.as_mut()?))).collect()
}

fn seen(id: &str, events: &HashMap<String, Micros>, last: Option<&LastRun>) -> Option<Seen> {
    let of_jid = last.and_then(|last| last.time);
    let time = events.get(id).map(|at| at.0).max(of_jid)?;
    Some(Seen { time })
}

/// A page of the minions that the archive knows.
pub fn minions_list(store: &Store, filter: &MinionsFilter) -> Result<MinionsPage, StoreError> {
    let wanted = |id: &str| filter.minion.as_ref().is_none_or(|glob| glob.matches(id));
    let runs = runs(store, wanted)?;
    let events = store.last_seen(MINIONS_ENTRIES_SEEN)?;
    let missing = missing_returns(store, wanted)?;
    let known = runs.keys().chain(events.minions.keys()).chain(missing.by_minion.keys());
    let after = |id: &&String| filter.after.as_ref().is_none_or(|after| *id > after);
    let is_master = |id: &str| id.ends_with("_master") && !runs.contains_key(id);
    let ids: BTreeSet<&String> = known.filter(|id| wanted(id) && !is_master(id)).filter(after).collect();
    let row = |id: &String| {
        let runs = runs.get(id);
        let last = runs.and_then(|runs| newest(runs.iter())).map(|(fun, run)| last_run(fun, run));
        MinionRow {
            id: id.clone(),
            last_seen: seen(id, &events.minions, last.as_ref()),
            highstate: runs.and_then(last_highstate),
            missing: missing.by_minion.get(id).map_or(0, Vec::len),
            last,
        }
    };
    let examined = if filter.attention { usize::MAX } else { filter.limit.saturating_add(1) };
    let mut minions: Vec<MinionRow> = ids.into_iter().take(examined).map(row).collect();
    if filter.attention {
        read_states(store, &mut highstates(&mut minions), 0, |_, _| {})?;
        minions.retain(MinionRow::needs_attention);
    }
    let more = minions.len() > filter.limit;
    minions.truncate(filter.limit);
    let states_unread = read_states(store, &mut highstates(&mut minions), MINIONS_STATE_BYTES, |_, _| {})?;
    let next = minions.last().map(|row| row.id.clone()).filter(|_| more);
    let events_since = events.since.map(|at| at.0);
    Ok(MinionsPage {
        minions,
        more,
        next,
        skipped: Skipped { events_since, states_unread, ..missing.skipped },
    })
}

/// One minion; `None` if the archive does not know it.
pub fn minion(store: &Store, id: &str) -> Result<Option<MinionDetails>, StoreError> {
    let runs = runs(store, |known| known == id)?.remove(id).unwrap_or_default();
    let missing = missing_returns(store, |known| known == id)?;
    let filter = EventFilter { minion: Some(id.to_owned()), ..EventFilter::default() };
    let events = store.events_before(&filter, store.durable(), MINION_TIMELINE, LIST_BYTES_MAX)?;
    let missing_jobs = missing.by_minion.get(id).cloned().unwrap_or_default();
    if runs.is_empty() && events.is_empty() && missing_jobs.is_empty() {
        return Ok(None);
    }
    let last = newest(runs.iter()).map(|(fun, run)| last_run(fun, run));
    let latest = events.first().map(|event| (id.to_owned(), event.at));
    let mut highstate = last_highstate(&runs);
    let (mut failed_states, mut changed_states) = (Vec::new(), Vec::new());
    let mut rows: Vec<_> = highstate.iter_mut().map(|run| (id.to_owned(), run)).collect();
    let states_unread = read_states(store, &mut rows, MINIONS_STATE_BYTES, |_, state| {
        for (list, is_in) in
            [(&mut failed_states, state.result == Some(false)), (&mut changed_states, state.changed())]
        {
            if is_in && list.len() < MINION_STATES_SHOWN {
                list.push(state.id.to_owned());
            }
        }
    })?;
    let mut functions: Vec<(&String, &LatestJob)> = runs.iter().collect();
    functions.sort_by_key(|(_, run)| std::cmp::Reverse(run.newness()));
    let timeline = events.iter().map(|event| TimelineEvent {
        seq: event.seq.0,
        time: event.at.0,
        tag: String::from_utf8_lossy(&event.tag).into_owned(),
        fun: event.fun.clone(),
        retcode: event.flags.has(Flags::RETCODE_KNOWN).then_some(event.retcode),
    });
    Ok(Some(MinionDetails {
        row: MinionRow {
            id: id.to_owned(),
            last_seen: seen(id, &latest.into_iter().collect(), last.as_ref()),
            last,
            highstate,
            missing: missing_jobs.len(),
        },
        failed_states,
        changed_states,
        functions: functions.into_iter().map(|(fun, run)| last_run(fun, run)).collect(),
        missing_jobs,
        timeline: timeline.collect(),
        // The timeline is complete: events are found by an index.
        skipped: Skipped { states_unread, ..missing.skipped },
    }))
}
