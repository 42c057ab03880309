//! Lists of jobs, the latest first.
//!
//! A jid made of time sorts by it. Jobs with any other jid sort behind all of those, in no promised order.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::job::Job;
use super::states::state_rows;
use crate::clock::Micros;
use crate::limits::{JOBS_READ_AT_ONCE, LIST_JOBS_READ, LIST_JOBS_SEEN};
use crate::model::{Glob, JidKey};
use crate::store::{JobRow, Store, StoreError};
use crate::wire::call::id_text;
use crate::wire::msgpack::{self, as_text};

/// Which jobs somebody wants to see; what is `None` or empty does not filter.
#[derive(Debug, Clone, Default)]
pub struct JobFilter {
    /// The user, exactly.
    pub user: Option<String>,
    /// Pattern over the function; over each one of a job with several.
    pub fun: Option<Glob>,
    /// Pattern over the target; over each one of a list.
    pub tgt: Option<Glob>,
    /// A minion that answered or was asked.
    pub minion: Option<String>,
    /// How the jid begins.
    pub jid: Option<String>,
    /// Keys of the job's metadata, and patterns over their values; all must match.
    pub metadata: Vec<(String, Glob)>,
    /// What came of it.
    pub result: Option<JobResult>,
    /// Started at this instant or later.
    pub since: Option<Micros>,
    /// Started before this instant.
    pub until: Option<Micros>,
    /// Also `saltutil.find_job`, with which Salt asks whether a job still runs.
    pub find_job: bool,
}

/// What came of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobResult {
    /// An answer failed.
    Failed,
    /// There is an answer, none failed, and nobody who was asked is missing.
    Succeeded,
    /// Somebody who was asked has not answered.
    Missing,
    /// A state changed something.
    Changed,
}

impl JobResult {
    /// The result of that name.
    pub fn of(name: &str) -> Option<Self> {
        Some(match name {
            "failed" => Self::Failed,
            "succeeded" => Self::Succeeded,
            "missing" => Self::Missing,
            "changed" => Self::Changed,
            _ => return None,
        })
    }

    fn is_of(self, store: &Store, row: &JobRow) -> Result<bool, StoreError> {
        if self == Self::Changed {
            // States alone say what they changed.
            let could = words(&row.fun).iter().any(|fun| fun.contains("state."));
            let job = if could { Job::read(store, &row.jid)? } else { None };
            let changed = |job: &Job| {
                job.answers.values().any(|a| state_rows(a).iter().any(super::states::StateRow::changed))
            };
            return Ok(job.is_some_and(|job| changed(&job)));
        }
        let Some(job) = Job::read_load(store, &row.jid)? else { return Ok(false) };
        let missing = || !job.missing().is_empty();
        let failed = || job.answers.values().any(super::answer::Answer::failed);
        Ok(match self {
            Self::Failed => failed(),
            Self::Missing => missing(),
            _ => !job.answers.is_empty() && !missing() && !failed(),
        })
    }
}

/// A row of a list.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The summary.
    pub row: JobRow,
    /// When it started: what its jid says, else when its first entry came.
    pub at: Micros,
}

/// Part of a list of jobs.
#[derive(Debug, Clone, Default)]
pub struct JobsPage {
    /// The jobs, the latest first; none if each was handed over.
    pub jobs: Vec<Listed>,
    /// There may be more.
    pub more: bool,
    /// The last job looked at; more lie before it.
    pub last: Option<String>,
}

/// How much work one page may be.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Jobs in it.
    pub rows: usize,
    /// Rows looked at.
    pub seen: usize,
    /// Jobs whose entries are read.
    pub read: usize,
}

impl Bounds {
    /// Up to so many jobs, and what a caller may have one call cost.
    pub fn of_call(rows: usize) -> Self {
        Self { rows, seen: LIST_JOBS_SEEN, read: LIST_JOBS_READ }
    }

    /// Up to so many jobs, whatever it costs.
    pub fn of_rows(rows: usize) -> Self {
        Self { rows, seen: usize::MAX, read: usize::MAX }
    }
}

impl JobFilter {
    fn allows(&self, listed: &Listed) -> bool {
        let row = &listed.row;
        let any = |glob: &Option<Glob>, value: &[u8]| {
            glob.as_ref().is_none_or(|glob| words(value).iter().any(|word| glob.matches(word)))
        };
        (self.find_job || as_text(&row.fun) != Some("saltutil.find_job"))
            && self.user.as_deref().is_none_or(|user| as_text(&row.user) == Some(user))
            && any(&self.fun, &row.fun)
            && any(&self.tgt, &row.tgt)
            && self.jid.as_deref().is_none_or(|begin| row.jid.starts_with(begin))
            && self.since.is_none_or(|since| listed.at >= since)
            && self.until.is_none_or(|until| listed.at < until)
    }

    fn allows_metadata(&self, store: &Store, row: &JobRow) -> Result<bool, StoreError> {
        if self.metadata.is_empty() {
            return Ok(true);
        }
        let row = row_load(store, row)?;
        let matches = |(key, glob): &(String, Glob)| {
            let value = msgpack::get(&row.metadata, key);
            value.is_some_and(|value| scalars(value).iter().any(|word| glob.matches(word)))
        };
        Ok(self.metadata.iter().all(matches))
    }

    /// Does it ask for what only a job's entries tell?
    fn looks_inside(&self) -> bool {
        self.minion.is_some() || self.result.is_some()
    }
}

/// A value as people write it on a command line, or its elements.
fn scalars(value: &[u8]) -> Vec<String> {
    let one = |value: &[u8]| {
        let known = msgpack::as_bool(value).map(|b| (if b { "true" } else { "false" }).to_owned());
        known.or_else(|| id_text(value)).or_else(|| msgpack::as_int(value).map(|n| n.to_string()))
    };
    one(value).map_or_else(|| msgpack::elements(value).filter_map(one).collect(), |word| vec![word])
}

/// A value as text, or its elements as texts.
fn words(value: &[u8]) -> Vec<&str> {
    as_text(value).map_or_else(|| msgpack::elements(value).filter_map(as_text).collect(), |word| vec![word])
}

/// Jobs before `before` that pass, the latest first.
pub fn jobs_before(
    store: &Store,
    filter: &JobFilter,
    before: Option<&str>,
    bounds: Bounds,
) -> Result<JobsPage, StoreError> {
    let mut jobs = Vec::new();
    let page = each_job_before(store, filter, before, bounds, |listed| {
        jobs.push(listed);
        Ok(())
    })?;
    Ok(JobsPage { jobs, ..page })
}

/// The same, each handed over as it comes: a million jobs are not to be in memory together.
pub fn each_job_before(
    store: &Store,
    filter: &JobFilter,
    before: Option<&str>,
    bounds: Bounds,
    mut take: impl FnMut(Listed) -> Result<(), StoreError>,
) -> Result<JobsPage, StoreError> {
    let mut at = before.map(JidKey::of);
    let span = filter.jid.as_deref().and_then(span_of);
    let since = filter.since.max(span.map(|(from, _)| from));
    let mut page = JobsPage::default();
    let (mut seen, mut read, mut taken) = (0, 0, 0);
    // Fewer are wanted than are read at once: the rows of many segments are merged, and each costs.
    let mut at_once = bounds.rows.saturating_add(1).clamp(64, JOBS_READ_AT_ONCE);
    loop {
        let rows = store.jobs_before(at, at_once)?;
        let mut whole = rows.len() == at_once;
        for (key, row) in rows {
            if let Some((_, upto)) = span.filter(|(_, upto)| key.time().is_some() && key >= *upto) {
                (at, whole) = (Some(upto), true);
                break;
            }
            at = Some(key);
            let listed = Listed { at: key.time().unwrap_or(Micros(row.first_at)), row };
            // Everything further back is older still.
            if key.time().is_some() && since.is_some_and(|since| listed.at < since) {
                return Ok(page);
            }
            seen += 1;
            let mut passes = listed.row.rank > 0 && filter.allows(&listed);
            if passes && filter.looks_inside() {
                read += 1;
                passes = answered_by(store, filter, &listed)?
                    && match filter.result {
                        Some(result) => result.is_of(store, &listed.row)?,
                        None => true,
                    };
            }
            passes = passes && filter.allows_metadata(store, &listed.row)?;
            if passes && taken == bounds.rows {
                page.more = true;
                return Ok(page);
            }
            page.last = Some(listed.row.jid.clone());
            if passes {
                taken += 1;
                take(listed)?;
            }
            if seen >= bounds.seen || read >= bounds.read {
                page.more = true;
                return Ok(page);
            }
        }
        if !whole {
            return Ok(page);
        }
        at_once = JOBS_READ_AT_ONCE;
    }
}

/// The first instant of jids that begin so, and the key behind the last of them; `None` for a beginning that says too little.
fn span_of(begin: &str) -> Option<(Micros, JidKey)> {
    const LAST: &str = "235959999999";
    if !begin.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Whole fields only: of hour, minute and second a first digit alone says nothing here.
    let len = begin.len().min(20);
    let begin = begin.get(..if len < 14 { len / 2 * 2 } else { len }).filter(|begin| begin.len() >= 8)?;
    let rest = begin.len() - 8;
    let from = JidKey::of(&format!("{begin:0<20}")).time()?;
    let upto = JidKey::of(&format!("{begin}{}", LAST.get(rest..)?)).time()?;
    Some((from, JidKey::from_time(Micros(upto.0.saturating_add(1)), None)))
}

fn answered_by(store: &Store, filter: &JobFilter, listed: &Listed) -> Result<bool, StoreError> {
    let Some(minion) = &filter.minion else { return Ok(true) };
    let job = Job::read_load(store, &listed.row.jid)?;
    Ok(job.is_some_and(|job| {
        job.answers.contains_key(minion) || job.minions.is_some_and(|minions| minions.contains(minion))
    }))
}

/// Per minion the last job that ran a function. A return that was on a bus alone counts as in a [`Job`]; or not at all, if only
/// confirmed ones are asked for.
pub fn last_jobs(
    store: &Store,
    fun: &str,
    confirmed_only: bool,
) -> Result<BTreeMap<String, String>, StoreError> {
    let mut latest = store.latest_of(fun)?;
    if !confirmed_only {
        for (minion, seen) in store.latest_on_bus_only(fun)? {
            let is_newer = latest
                .get(&minion)
                .is_none_or(|known| known.jid != seen.jid && known.newness() < seen.newness());
            if is_newer && !store.job_row(&seen.jid)?.is_some_and(|row| row.is_cached_by_salt()) {
                latest.insert(minion, seen);
            }
        }
    }
    Ok(latest.into_iter().map(|(minion, latest)| (minion, latest.jid)).collect())
}

/// A row whose values are whole: those that were too long for it are read from the log.
pub fn row_load<'a>(store: &Store, row: &'a JobRow) -> Result<Cow<'a, JobRow>, StoreError> {
    if !row.abridged {
        return Ok(Cow::Borrowed(row));
    }
    let mut whole = row.clone();
    if let Some(job) = Job::read_load(store, &row.jid)? {
        whole.take_load(&job.load, usize::MAX);
    }
    Ok(Cow::Owned(whole))
}
