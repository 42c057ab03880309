//! Minions, computed from the archive: last seen, last function, last highstate, missing returns.
//!
//! The latest job of each function and minion is in an index. Three things are read from a limited
//! number of entries, which the response states: events, jobs for missing returns, and the states of
//! highstates.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use salt_sls::Glob;

use super::answer::Answer;
use super::change;
use super::content::Answers;
use super::counts::StateCounts;
use super::digest::{DAY_US, DigestView, RunRow};
use super::job::Job;
use super::jobs::{ListedJob, newest_jobs};
use super::others::Others;
use super::parts::Parts;
use crate::base::clock::Micros;
use crate::base::limits::{
    LIST_BYTES_MAX, MINION_CHANGE_DAYS, MINION_CHANGES_SHOWN, MINION_RESULT_DAYS,
    MINION_RESULTS_SHOWN, MINION_STATES_SHOWN, MINION_TIMELINE, MINIONS_ENTRIES_CHECKED,
    MINIONS_ENTRIES_SEEN, MINIONS_JOBS_CHECKED, MINIONS_STATE_BYTES,
};
use crate::base::named::named;
use crate::model::{EventFilter, Flags, JidKey};
use crate::store::{HIGHSTATE, LastSeen, LatestJob, Seen, StoreError, StoreView};
use crate::wire::msgpack::{self, Time, as_text};
use crate::wire::outcome::states::StateRow;

answers! {
    /// Minions by id.
    MinionsPage {
        minions: Vec<MinionRow>,
        /// Number of minions on all pages.
        total: u64,
        more: bool,
        /// `after` of the next page.
        next: Option<String>,
        skipped: NotRead,
    }
    /// Data that was not examined for a response.
    NotRead {
        /// Newest jobs examined for missing returns.
        jobs_checked: u64,
        /// Whether earlier jobs were not examined.
        jobs_skipped: bool,
        /// Events before this time were not examined for `last_seen`, nor for `not_seen_since`; null if all were. Returns always count.
        events_since: Option<Time>,
        /// Highstates before this time were not examined for `state`; null if all of the 14 days were. A repeated call examines more.
        highstates_since: Option<Time>,
        /// Highstates whose states were not read.
        states_unread: u64,
    }
    /// A minion in a list.
    MinionRow {
        id: String,
        last_seen: Option<Moment>,
        /// Its last job.
        last: Option<MinionRun>,
        /// Its last highstate: a run of all states, without `test` and `mock`.
        highstate: Option<MinionRun>,
        /// Number of examined jobs that expect a return of it.
        missing: u64,
    }
    /// A time in an object.
    Moment {
        time: Time,
    }
    /// The latest run of a function on a minion.
    MinionRun {
        jid: String,
        /// Empty for several functions.
        fun: String,
        /// The time in the jid, if it has one.
        time: Option<Time>,
        /// Null if its return was not read.
        failed: Option<bool>,
        /// Null if they were not read.
        states: Option<StateCounts>,
    }
    /// A minion.
    Minion {
        #[serde(flatten)]
        row: MinionRow,
        /// Ids of failed states of the last highstate, up to a limit.
        failed_states: Vec<String>,
        /// Ids of changed states of the last highstate, up to a limit.
        changed_states: Vec<String>,
        /// The latest job of each function, the latest first.
        functions: Vec<MinionRun>,
        /// Examined jobs that expect a return of it, the latest first.
        missing_jobs: Vec<MinionRun>,
        /// Its latest events, the latest first.
        timeline: Vec<MinionEvent>,
        /// Its runs of states, and its failed runs, of the last 30 days, the latest first.
        results: Vec<MinionResult>,
        /// Results since this time are known.
        results_since: Time,
        /// What its states changed in the last 7 days, the latest first, up to a limit.
        changes: Vec<MinionChange>,
        skipped: NotRead,
    }
    /// The result of a run on a minion.
    MinionResult {
        jid: String,
        time: Time,
        /// Empty for several functions.
        fun: String,
        failed: bool,
        /// Null if it ran none.
        states: Option<StateCounts>,
    }
    /// What a state changed.
    MinionChange {
        jid: String,
        time: Time,
        /// The id of the state.
        id: String,
        fun: String,
        name: String,
        /// In one line.
        summary: String,
    }
    /// An event of a minion.
    MinionEvent {
        seq: u64,
        time: Time,
        tag: String,
        fun: String,
        retcode: Option<i64>,
    }
}

impl NotRead {
    /// Adds what another page of the same list did not examine.
    pub(crate) fn add(&mut self, page: &Self) {
        self.jobs_checked = self.jobs_checked.max(page.jobs_checked);
        self.jobs_skipped |= page.jobs_skipped;
        // The latest, because the events before it are missing in one of the pages.
        self.events_since = self.events_since.max(page.events_since);
        self.highstates_since = self.highstates_since.max(page.highstates_since);
        // Each page reads the states of its own minions.
        self.states_unread += page.states_unread;
    }
}

/// The order of a list of minions; those that are equal in it are in the order of their ids.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum MinionsSort {
    #[default]
    Id,
    /// The latest first, unknown times last.
    LastSeen,
    /// Those whose last highstate failed first.
    Failed,
    /// Most missing returns first.
    Missing,
}

named! {
    MinionsSort {
        Id: "id",
        LastSeen: "last_seen",
        Failed: "failed",
        Missing: "missing",
    }
}

/// Selects a page of minions.
#[derive(Debug, Clone, Default)]
pub(crate) struct MinionsFilter {
    /// Pattern for the id.
    pub(crate) minion: Option<Glob>,
    /// Only minions whose last highstate failed, or that have missing returns.
    pub(crate) attention: bool,
    /// Only these.
    pub(crate) only: Option<BTreeSet<String>>,
    /// Ids after this one, in the order of the list.
    pub(crate) after: Option<String>,
    pub(crate) sort: MinionsSort,
    pub(crate) limit: usize,
}

/// The jobs of one minion that count, by function. The job of [`HIGHSTATE`] is one of the other jobs, or
/// an earlier job.
type Runs = BTreeMap<String, LatestJob>;

/// The latest jobs by minion of the functions and minions that `wanted` selects, without forged
/// jobs: a return seen on a bus only does not count in a job that Salt stores through the
/// extension, see [`Job`].
fn runs(
    store: &StoreView,
    wanted: impl Fn(&[u8], &str) -> bool,
) -> Result<HashMap<String, Runs>, StoreError> {
    let rows = store
        .latest_jobs(&|fun, minion| std::str::from_utf8(minion).is_ok_and(|id| wanted(fun, id)))?;

    let (bus_only, confirmed): (Vec<_>, Vec<_>) =
        rows.into_iter().partition(|(_, is_bus_only)| *is_bus_only);
    let mut minions: HashMap<String, Runs> = HashMap::new();

    let is_newer = |minions: &HashMap<String, Runs>,
                    (minion, fun, row): &(String, String, LatestJob)| {
        let known = minions.get(minion).and_then(|runs| runs.get(fun));
        // Both rows may be of one job: the confirmed one counts.
        known.is_none_or(|known| known.jid != row.jid && known.newness() < row.newness())
    };

    let named = |(row, _): (LatestJob, bool)| {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (text(&row.minion), text(&row.fun), row)
    };

    for row in confirmed.into_iter().map(named) {
        if is_newer(&minions, &row) {
            minions.entry(row.0).or_default().insert(row.1, row.2);
        }
    }

    // Only rows that would count are looked up, since each costs a search for its job.
    let bus_only: Vec<_> = bus_only
        .into_iter()
        .map(named)
        .filter(|row| is_newer(&minions, row))
        .collect();

    let jids = bus_only.iter().map(|(_, _, row)| row.jid.to_string());
    let jids: BTreeSet<String> = jids.collect();
    let cached = store.cached_by_salt(&jids.iter().map(String::as_str).collect())?;
    // Compared again: an earlier row of this loop may be newer.
    for row in bus_only {
        let is_cached = cached.contains(row.2.jid.to_string().as_str());
        if !is_cached && is_newer(&minions, &row) {
            minions.entry(row.0).or_default().insert(row.1, row.2);
        }
    }

    // The results of runners have the id of the master.
    let of_master = |id: &str, runs: &Runs| {
        id.ends_with("_master")
            && runs
                .keys()
                .all(|fun| fun.starts_with("runner.") || fun.starts_with("wheel."))
    };

    minions.retain(|id, runs| !of_master(id, runs));
    Ok(minions)
}

/// The minions that have returned a job, with the time of the newest.
pub(super) fn known(store: &StoreView) -> Result<HashMap<String, Option<Micros>>, StoreError> {
    let runs = runs(store, |_, _| true)?;
    let of_minion = |(id, runs): (String, Runs)| {
        let at = newest(&runs).and_then(|(_, run)| run.jid.key().time());
        (id, at)
    };
    Ok(runs.into_iter().map(of_minion).collect())
}

/// The latest jobs of the functions of a minion.
fn functions(runs: &Runs) -> impl Iterator<Item = (&String, &LatestJob)> {
    runs.iter().filter(|(fun, _)| fun.as_str() != HIGHSTATE)
}

fn newest(runs: &Runs) -> Option<(&String, &LatestJob)> {
    functions(runs).max_by_key(|(_, run)| run.newness())
}

fn last_run(fun: &str, run: &LatestJob) -> MinionRun {
    let time = run.jid.key().time().map(Time);
    MinionRun {
        jid: run.jid.to_string(),
        fun: fun.to_owned(),
        time,
        ..MinionRun::default()
    }
}

/// The last highstate; [`read_states`] adds the function, which its row does not have.
fn last_highstate(runs: &Runs) -> Option<MinionRun> {
    runs.get(HIGHSTATE).map(|run| last_run("", run))
}

/// Missing returns of the newest jobs.
#[derive(Default)]
pub(super) struct MissingReturns {
    /// The latest first.
    pub(super) by_minion: HashMap<String, Vec<MissingReturn>>,
    skipped: NotRead,
}

/// A return that a job expects.
#[derive(Clone)]
pub(super) struct MissingReturn {
    /// When the job started.
    pub(super) at: Micros,
    pub(super) run: MinionRun,
}

pub(super) fn missing_returns(
    store: &StoreView,
    others: &Others,
    wanted: impl Fn(&str) -> bool,
) -> Result<MissingReturns, StoreError> {
    let mut found = MissingReturns::default();
    let mut entries = 0;

    let newest = newest_jobs(store, MINIONS_JOBS_CHECKED)?;
    found.skipped.jobs_skipped = newest.more;

    for ListedJob { row, at } in newest.jobs {
        // A job counts by its number of minions, because the work must be bounded by entries.
        if entries > MINIONS_ENTRIES_CHECKED {
            found.skipped.jobs_skipped = true;
            break;
        }
        found.skipped.jobs_checked += 1;

        let Some(mut job) = Job::read_load(store, &row.jid)? else {
            continue;
        };
        others.judge(store, &mut job)?;
        entries += job.answers.len() + job.minions.as_ref().map_or(0, BTreeSet::len);

        for id in job.missing() {
            if wanted(id) {
                let fun = msgpack::get(&job.load, "fun").and_then(as_text);
                let run = MinionRun {
                    jid: row.jid.clone(),
                    fun: fun.unwrap_or_default().to_owned(),
                    time: JidKey::of(&row.jid).time().map(Time),
                    ..MinionRun::default()
                };
                let missing = MissingReturn { at, run };
                found
                    .by_minion
                    .entry(id.to_owned())
                    .or_default()
                    .push(missing);
            }
        }
    }

    Ok(found)
}

/// Reads results, and states up to [`MINIONS_STATE_BYTES`], of the runs of these minions. Runs of
/// the same job are read together.
fn read_states(
    store: &StoreView,
    rows: &mut [(String, &mut MinionRun)],
    mut details: impl FnMut(&str, &StateRow<'_>),
) -> Result<u64, StoreError> {
    let mut by_jid: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (n, (_, run)) in rows.iter().enumerate() {
        by_jid.entry(run.jid.clone()).or_default().push(n);
    }

    let (mut bytes, mut unread) = (0, 0);
    for (jid, of_job) in by_jid {
        let Some(job) = Job::read_heads(store, &jid)? else {
            continue;
        };
        let mut parts = Parts::of_all(&of_job);
        while let Some(part) = parts.next(|n| rows.get(*n).map_or(0, |(id, _)| job.bytes_of(id))) {
            // Beyond the limit only the outcome is known, from the columns of the entry.
            let mut read = Answers::new();
            if bytes < MINIONS_STATE_BYTES {
                let ids = part.iter().filter_map(|n| rows.get(*n));
                let ids: Vec<&str> = ids.map(|(id, _)| id.as_str()).collect();
                read = job.answers_of(store, &Others::default(), &ids)?;
            }

            for n in part {
                let Some((id, run)) = rows.get_mut(*n) else {
                    continue;
                };
                let Some(answer) = read.get(id).or_else(|| job.answers.get(id)) else {
                    continue;
                };

                run.failed = Some(answer.failed());
                run.fun.clone_from(&answer.entry.fun);
                // Without a body its states are not known.
                if answer.entry.body.is_empty() {
                    unread += 1;
                    continue;
                }

                bytes += answer.entry.body.len();

                let mut counts = StateCounts::default();
                for state in answer.states() {
                    counts.add(&state);
                    details(id, &state);
                }
                run.states = Some(counts);
            }
        }
    }

    Ok(unread)
}

/// The highstates of a list, by minion.
fn highstates(minions: &mut [MinionRow]) -> Vec<(String, &mut MinionRun)> {
    minions
        .iter_mut()
        .filter_map(|row| Some((row.id.clone(), row.highstate.as_mut()?)))
        .collect()
}

fn seen(id: &str, events: &HashMap<String, Seen>, last: Option<&MinionRun>) -> Option<Moment> {
    // The time in a jid may be later than the events that were examined.
    let of_jid = last.and_then(|last| last.time);
    let time = events.get(id).map(|seen| Time(seen.at)).max(of_jid)?;
    Some(Moment { time })
}

/// The minions whose last highstate failed.
fn failed_highstates(
    store: &StoreView,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeSet<String>, StoreError> {
    let runs = runs(store, |fun, id| fun == HIGHSTATE.as_bytes() && wanted(id))?;
    let last: Vec<(&String, MinionRun)> = runs
        .iter()
        .filter_map(|(id, runs)| Some((id, last_highstate(runs)?)))
        .collect();

    let mut by_jid: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (id, run) in &last {
        by_jid.entry(&run.jid).or_default().insert(id);
    }

    let mut jobs = store.returns_of(&by_jid)?;

    let mut failed = BTreeSet::new();
    // A job that this search does not know is read as a whole.
    for (jid, minions) in by_jid {
        let job = match jobs.remove(jid) {
            Some(job) => Job::of_part(job.returns, job.is_cached),
            None => Job::read_heads(store, jid)?,
        };

        let has_failed = |id: &&str| {
            job.as_ref()
                .and_then(|job| job.answers.get(*id))
                .is_some_and(Answer::failed)
        };

        failed.extend(minions.into_iter().filter(has_failed).map(str::to_owned));
    }

    Ok(failed)
}

/// A page of the minions that the archive knows.
pub(crate) fn minions_list(
    store: &StoreView,
    others: &Others,
    filter: &MinionsFilter,
) -> Result<MinionsPage, StoreError> {
    let wanted = |id: &str| {
        let is_among = |only: &BTreeSet<String>| only.contains(id);
        filter.minion.as_ref().is_none_or(|glob| glob.matches(id))
            && filter.only.as_ref().is_none_or(is_among)
    };
    let missing = missing_returns(store, others, wanted)?;

    let mut known: BTreeSet<String> = missing.by_minion.keys().cloned().collect();
    let mut events = LastSeen::default();
    // With `attention` few minions are left. Therefore failed minions are found first, and only
    // their runs are read.
    let runs = if filter.attention {
        known.append(&mut failed_highstates(store, wanted)?);
        runs(store, |_, id| known.contains(id))?
    } else {
        let runs = runs(store, |_, id| wanted(id))?;
        events = store.last_seen(MINIONS_ENTRIES_SEEN, None)?;
        known.extend(
            runs.keys()
                .chain(events.minions.keys())
                .filter(|id| wanted(id))
                .cloned(),
        );
        runs
    };

    // Salt stores the results of runners under the id of the master, which ends like this.
    let is_master = |id: &str| id.ends_with("_master") && !runs.contains_key(id);
    let mut ids: Vec<String> = known.into_iter().filter(|id| !is_master(id)).collect();
    let total = ids.len() as u64;

    // Only now are the minions of the list known, and their order depends on when they were seen.
    if filter.attention && filter.sort == MinionsSort::LastSeen {
        let listed = ids.iter().map(String::as_str).collect();
        events = store.last_seen(MINIONS_ENTRIES_SEEN, Some(&listed))?;
    }
    match filter.sort {
        MinionsSort::Id => {}
        // The sort is stable: equal rows stay in the order of their ids.
        MinionsSort::LastSeen => ids.sort_by_cached_key(|id| {
            let last = runs.get(id).and_then(newest);
            let last = last.map(|(fun, run)| last_run(fun, run));
            let at = seen(id, &events.minions, last.as_ref()).map(|seen| seen.time);
            Reverse(at)
        }),
        MinionsSort::Failed => {
            let failed = failed_highstates(store, wanted)?;
            ids.sort_by_key(|id| !failed.contains(id));
        }
        MinionsSort::Missing => {
            ids.sort_by_key(|id| Reverse(missing.by_minion.get(id).map_or(0, Vec::len)));
        }
    }

    if let Some(after) = &filter.after {
        // In the order of ids the place of one that has gone is known as well.
        let place = ids.iter().position(|id| id == after).map(|n| n + 1);
        let passed = match (place, filter.sort) {
            (Some(place), _) => place,
            (None, MinionsSort::Id) => ids.partition_point(|id| id <= after),
            (None, _) => 0,
        };
        ids.drain(..passed);
    }
    // One more than is shown tells whether a page follows.
    ids.truncate(filter.limit.saturating_add(1));

    // As above, of the page alone.
    if filter.attention {
        let shown = ids.iter().map(String::as_str).collect();
        events = store.last_seen(MINIONS_ENTRIES_SEEN, Some(&shown))?;
    }

    let row = |id: String| {
        let runs = runs.get(&id);
        let last = runs.and_then(newest).map(|(fun, run)| last_run(fun, run));
        MinionRow {
            last_seen: seen(&id, &events.minions, last.as_ref()),
            highstate: runs.and_then(last_highstate),
            missing: missing.by_minion.get(&id).map_or(0, Vec::len) as u64,
            last,
            id,
        }
    };

    let mut minions: Vec<MinionRow> = ids.into_iter().map(row).collect();
    let more = minions.len() > filter.limit;
    minions.truncate(filter.limit);

    let states_unread = read_states(store, &mut highstates(&mut minions), |_, _| {})?;
    let next = minions.last().map(|row| row.id.clone()).filter(|_| more);

    let events_since = events.since.map(Time);

    Ok(MinionsPage {
        minions,
        total,
        more,
        next,
        skipped: NotRead {
            events_since,
            states_unread,
            ..missing.skipped
        },
    })
}

/// What the states of a minion changed since a time, by its runs, the latest first.
fn changes_of(
    store: &StoreView,
    id: &str,
    runs: &[RunRow],
    since: Micros,
) -> Result<Vec<MinionChange>, StoreError> {
    let mut changes = Vec::new();
    for run in runs.iter().filter(|run| run.at >= since && run.changed()) {
        if changes.len() >= MINION_CHANGES_SHOWN {
            break;
        }

        let job = Job::read_heads(store, &run.jid)?.unwrap_or_default();
        let read = job.answers_of(store, &Others::default(), &[id])?;
        let Some(answer) = read.get(id) else {
            continue;
        };

        for state in answer.states().iter().filter(|state| state.changed()) {
            changes.push(MinionChange {
                jid: run.jid.to_string(),
                time: Time(answer.entry.at),
                id: state.id.to_owned(),
                fun: state.fun.clone(),
                name: state.name.to_owned(),
                summary: change::summary(state.changes.unwrap_or_default()),
            });
        }
    }

    // One run can change many states and exceed the limit.
    changes.truncate(MINION_CHANGES_SHOWN);
    Ok(changes)
}

/// One minion; `None` if the archive does not know it.
pub(crate) fn minion(
    store: &StoreView,
    others: &Others,
    digest: &DigestView<'_>,
    id: &str,
) -> Result<Option<Minion>, StoreError> {
    let runs = runs(store, |_, known| known == id)?
        .remove(id)
        .unwrap_or_default();

    let missing = missing_returns(store, others, |known| known == id)?;

    let filter = EventFilter {
        minion: Some(Glob::of_literal(id)),
        ..EventFilter::default()
    };
    let events = store.events_before(&filter, store.durable(), MINION_TIMELINE, LIST_BYTES_MAX)?;
    let missing_jobs = missing.by_minion.get(id).into_iter().flatten();
    let missing_jobs: Vec<MinionRun> = missing_jobs.map(|missing| missing.run.clone()).collect();
    // HTTP responds with 404.
    if runs.is_empty() && events.is_empty() && missing_jobs.is_empty() {
        return Ok(None);
    }

    let last = newest(&runs).map(|(fun, run)| last_run(fun, run));
    let latest = events.first().map(|event| {
        let seen = Seen {
            at: event.at,
            origin: event.origin.clone(),
        };
        (id.to_owned(), seen)
    });
    let mut highstate = last_highstate(&runs);
    let (mut failed_states, mut changed_states) = (Vec::new(), Vec::new());

    let mut rows: Vec<_> = highstate
        .iter_mut()
        .map(|run| (id.to_owned(), run))
        .collect();

    let states_unread = read_states(store, &mut rows, |_, state| {
        for (list, is_in) in [
            (&mut failed_states, state.result == Some(false)),
            (&mut changed_states, state.changed()),
        ] {
            if is_in && list.len() < MINION_STATES_SHOWN {
                list.push(state.id.to_owned());
            }
        }
    })?;

    let mut functions: Vec<(&String, &LatestJob)> = functions(&runs).collect();
    functions.sort_by_key(|(_, run)| std::cmp::Reverse(run.newness()));

    let timeline = events.iter().map(|event| MinionEvent {
        seq: event.seq.0,
        time: Time(event.at),
        tag: String::from_utf8_lossy(&event.tag).into_owned(),
        fun: event.fun.clone(),
        retcode: event
            .flags
            .has(Flags::RETCODE_KNOWN)
            .then_some(event.retcode),
    });

    let days_ago = |days: i64| Micros(store.now().0.saturating_sub(days.saturating_mul(DAY_US)));
    let known = digest.runs(store, days_ago(MINION_RESULT_DAYS), |run| {
        *run.minion == *id
    })?;
    let results_since = Time(known.since);
    let mut known = known.rows;
    known.sort_by(|one, other| (other.at, &other.jid).cmp(&(one.at, &one.jid)));
    let changes = changes_of(store, id, &known, days_ago(MINION_CHANGE_DAYS))?;
    let result = |run: RunRow| MinionResult {
        jid: run.jid.to_string(),
        time: Time(run.at),
        fun: run.fun.to_string(),
        failed: run.failed,
        states: run.states,
    };

    Ok(Some(Minion {
        results: known
            .into_iter()
            .take(MINION_RESULTS_SHOWN)
            .map(result)
            .collect(),
        results_since,
        changes,
        row: MinionRow {
            id: id.to_owned(),
            last_seen: seen(id, &latest.into_iter().collect(), last.as_ref()),
            last,
            highstate,
            missing: missing_jobs.len() as u64,
        },
        failed_states,
        changed_states,
        functions: functions
            .into_iter()
            .map(|(fun, run)| last_run(fun, run))
            .collect(),
        missing_jobs,
        timeline: timeline.collect(),
        // The timeline is complete: events are found by an index.
        skipped: NotRead {
            states_unread,
            ..missing.skipped
        },
    }))
}
