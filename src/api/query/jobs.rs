//! Lists of jobs, the latest first.
//!
//! Jids with a time sort by it. Other jids sort after all of those, in unspecified order.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use salt_sls::Glob;

use super::answer::Answer;
use super::arg_filter::ArgFilter;
use super::digest::{DigestView, RunRow};
use super::job::Job;
use super::others::Others;
use crate::base::clock::Micros;
use crate::base::limits::{JOBS_READ_AT_ONCE, LIST_JOBS_READ, LIST_JOBS_SEEN};
use crate::base::named::named;
use crate::model::{JidKey, Masters};
use crate::store::index::job_summary::load_of;
use crate::store::{JobRows, JobSummary, StoreError, StoreView};
use crate::wire::call::id_text;
use crate::wire::msgpack::{self, as_text};
use crate::wire::outcome::states::{StateRow, may_return_states};

/// A filter for lists of jobs; `None` and empty fields do not restrict.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobFilter {
    /// The user, exactly.
    pub(crate) user: Option<String>,
    /// Masters that published the job.
    pub(crate) masters: Option<Masters>,
    /// Pattern for the function; for any function of a job with several.
    pub(crate) fun: Option<Glob>,
    /// Pattern for the target; for any item of a list.
    pub(crate) tgt: Option<Glob>,
    /// A string of the arguments; of any job under the id.
    pub(crate) arg: Option<ArgFilter>,
    /// Pattern for a minion that answered or was expected.
    pub(crate) minion: Option<Glob>,
    /// Prefix of the jid.
    pub(crate) jid: Option<String>,
    /// Keys of the job's metadata with patterns for their values; all must match.
    pub(crate) metadata: Vec<(String, Glob)>,
    pub(crate) result: Option<JobResult>,
    /// What is known of [`JobResult::Changed`] without reading jobs.
    pub(crate) changed: ChangedJobs,
    /// Started at or after this time.
    pub(crate) since: Option<Micros>,
    /// Started before this time.
    pub(crate) until: Option<Micros>,
    /// Include `saltutil.find_job`, with which Salt polls running jobs.
    pub(crate) include_polling: bool,
    /// The other masters of a shared history.
    pub(crate) others: Others,
}

/// What became of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobResult {
    /// An answer failed.
    Failed,
    /// Some answers, none failed, and no expected minion without one.
    Succeeded,
    /// An expected minion has not answered.
    Missing,
    /// An expected minion may have answered a master that is behind.
    Unknown,
    /// A state changed something.
    Changed,
}

named! {
    JobResult {
        Failed: "failed",
        Succeeded: "succeeded",
        Missing: "missing",
        Unknown: "unknown",
        Changed: "changed",
    }
}

/// The jobs in which a state changed something, from the digest of runs: of these minions, if the filter has a pattern.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChangedJobs {
    jids: HashSet<Arc<str>>,
    /// All of them that started at this time or later; `None` if none is known.
    since: Option<Micros>,
}

/// A return may have an earlier time than the id of its job: another master's clock made it.
const CLOCKS_APART_US: i64 = 3_600_000_000;

impl ChangedJobs {
    /// Reads the digest, as far as one call does that.
    pub(crate) fn read(
        digest: &DigestView<'_>,
        store: &StoreView,
        since: Micros,
        minions: Option<&Glob>,
    ) -> Result<Self, StoreError> {
        let from = Micros(since.0.saturating_sub(CLOCKS_APART_US));
        let wanted =
            |run: &RunRow| run.changed() && minions.is_none_or(|glob| glob.matches(&run.minion));
        let runs = digest.runs(store, from, wanted)?;

        Ok(Self {
            jids: runs.rows.into_iter().map(|run| run.jid).collect(),
            since: Some(Micros(runs.since.0.saturating_add(CLOCKS_APART_US))),
        })
    }

    /// Whether a job is one of them; `None` if it has to be read.
    fn contains(&self, listed: &ListedJob) -> Option<bool> {
        let is_known = self.since.is_some_and(|since| listed.at >= since);
        is_known.then(|| self.jids.contains(listed.row.jid.as_str()))
    }
}

impl JobResult {
    /// Whether it is the result of any of these minions in a job.
    fn is_of_minions(
        self,
        store: &StoreView,
        others: &Others,
        (jid, minions): (&str, &Glob),
    ) -> Result<bool, StoreError> {
        let Some(mut job) = Job::read_heads(store, jid)? else {
            return Ok(false);
        };
        if self == Self::Changed {
            return has_changed(store, others, &job, |id| minions.matches(id));
        }
        others.judge(store, &mut job)?;

        let mut answers = job
            .answers
            .iter()
            .filter(|(id, _)| minions.matches(id))
            .map(|(_, answer)| answer);
        Ok(match self {
            Self::Failed => answers.any(Answer::failed),
            Self::Succeeded => answers.any(|answer| !answer.failed()),
            Self::Changed => false,
            Self::Missing => job.missing().iter().any(|id| minions.matches(id)),
            Self::Unknown => job.unknown.keys().any(|id| minions.matches(id)),
        })
    }

    fn is_of(
        self,
        store: &StoreView,
        others: &Others,
        row: &JobSummary,
    ) -> Result<bool, StoreError> {
        // Only the bodies of returns tell what changed. The other results are known without them.
        if self == Self::Changed {
            return match Job::read_heads(store, &row.jid)? {
                Some(job) => has_changed(store, others, &job, |_| true),
                None => Ok(false),
            };
        }

        let Some(mut job) = Job::read_load(store, &row.jid)? else {
            return Ok(false);
        };
        others.judge(store, &mut job)?;

        let missing = || !job.missing().is_empty();
        let failed = || job.answers.values().any(Answer::failed);
        Ok(match self {
            Self::Failed => failed(),
            Self::Missing => missing(),
            Self::Unknown => !job.unknown.is_empty(),
            _ => !job.answers.is_empty() && !missing() && job.unknown.is_empty() && !failed(),
        })
    }
}

/// Whether a state of such a minion changed something.
fn has_changed(
    store: &StoreView,
    others: &Others,
    job: &Job,
    is_meant: impl Fn(&str) -> bool,
) -> Result<bool, StoreError> {
    let mut minions = job.answered_in_order();
    minions.retain(|id| is_meant(id));
    job.any_answer(store, others, &minions, |answer| {
        answer.states().iter().any(StateRow::changed)
    })
}

#[derive(Debug, Clone)]
pub(crate) struct ListedJob {
    pub(crate) row: JobSummary,
    /// The start of the job: the time in its jid, or else the time of its first entry.
    pub(crate) at: Micros,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct JobsPage {
    /// The jobs, the latest first; empty if they were passed to a callback.
    pub(crate) jobs: Vec<ListedJob>,
    /// More jobs may follow.
    pub(crate) more: bool,
    /// The last scanned job; more are before it.
    pub(crate) last: Option<String>,
}

/// Limits of the work for one page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageLimits {
    pub(crate) rows: usize,
    /// Scanned rows.
    pub(crate) seen: usize,
    /// Jobs whose entries are read.
    pub(crate) read: usize,
}

impl PageLimits {
    /// Up to `rows` jobs, within the cost limits of one call.
    pub(crate) fn of_call(rows: usize) -> Self {
        Self {
            rows,
            seen: LIST_JOBS_SEEN,
            read: LIST_JOBS_READ,
        }
    }

    /// Up to `rows` jobs, at any cost.
    pub(crate) fn of_rows(rows: usize) -> Self {
        Self {
            rows,
            seen: usize::MAX,
            read: usize::MAX,
        }
    }
}

impl JobFilter {
    /// `at` is when the job started.
    fn allows(&self, row: &JobSummary, at: Micros) -> bool {
        let any = |glob: &Option<Glob>, value: &[u8]| {
            glob.as_ref()
                .is_none_or(|glob| words(value).iter().any(|word| glob.matches(word)))
        };

        // `salt` asks with it for running jobs, several times for each job that takes long.
        (self.include_polling || as_text(&row.fun) != Some("saltutil.find_job"))
            && self
                .user
                .as_deref()
                .is_none_or(|user| as_text(&row.user) == Some(user))
            && any(&self.fun, &row.fun)
            && any(&self.tgt, &row.tgt)
            && self
                .jid
                .as_deref()
                .is_none_or(|begin| row.jid.starts_with(begin))
            && self.since.is_none_or(|since| at >= since)
            && self.until.is_none_or(|until| at < until)
    }

    /// Whether a field that the filter tests was too long for the summary.
    fn needs_whole(&self, row: &JobSummary) -> bool {
        let is_cut = |is_tested: bool, value: &[u8]| is_tested && value.is_empty();
        row.abridged
            && (is_cut(self.user.is_some(), &row.user)
                || is_cut(self.fun.is_some(), &row.fun)
                || is_cut(self.tgt.is_some(), &row.tgt))
    }

    /// Whether the arguments pass, as far as the summary has them; `None` if the job has to be read.
    fn allows_arg(&self, row: &JobSummary) -> Option<bool> {
        match &self.arg {
            None => Some(true),
            // Without a load, a return contains the arguments.
            Some(_) if row.arg.is_empty() || row.abridged => None,
            Some(arg) => Some(arg.matches(&row.arg)),
        }
    }

    /// As [`Self::allows_arg`], of a job that has to be read.
    fn allows_arg_of_job(&self, store: &StoreView, row: &JobSummary) -> Result<bool, StoreError> {
        let Some(arg) = &self.arg else {
            return Ok(true);
        };
        let whole = row_load(store, row)?;
        if !whole.arg.is_empty() {
            return Ok(arg.matches(&whole.arg));
        }
        // Retention may have dropped it since its summary was read.
        let job = Job::read_load(store, &row.jid)?.unwrap_or_default();
        Ok(job.result_args().is_some_and(|args| arg.matches(args)))
    }

    fn allows_metadata(&self, store: &StoreView, row: &JobSummary) -> Result<bool, StoreError> {
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

    /// True if the filter depends on a job's entries.
    fn needs_entries(&self) -> bool {
        self.minion.is_some() || self.result.is_some() || self.masters.is_some()
    }

    fn allows_result(&self, store: &StoreView, listed: &ListedJob) -> Result<bool, StoreError> {
        let Some(result) = self.result else {
            return Ok(true);
        };
        if result == JobResult::Changed {
            // Only states report changes, so jobs of other functions are not read. The digest leaves them out in the same way.
            let funs = words(&listed.row.fun);
            if !funs.iter().any(|fun| may_return_states(fun)) {
                return Ok(false);
            }
            if let Some(known) = self.changed.contains(listed) {
                return Ok(known);
            }
        }

        match &self.minion {
            Some(minions) => {
                let of = (listed.row.jid.as_str(), minions);
                result.is_of_minions(store, &self.others, of)
            }
            None => result.is_of(store, &self.others, &listed.row),
        }
    }

    fn allows_origin(&self, store: &StoreView, row: &JobSummary) -> Result<bool, StoreError> {
        let Some(masters) = &self.masters else {
            return Ok(true);
        };
        // Retention may have dropped it since its summary was read.
        let job = Job::read_load(store, &row.jid)?;
        Ok(job.is_some_and(|job| {
            let published = job.conflict().into_iter().map(|one| one.origin.as_str());
            published
                .chain([job.origin.as_str()])
                .any(|origin| masters.include(origin))
        }))
    }
}

/// A scalar in command line form, or the elements of an array.
fn scalars(value: &[u8]) -> Vec<String> {
    let one = |value: &[u8]| {
        let known = msgpack::as_bool(value).map(|b| (if b { "true" } else { "false" }).to_owned());
        known
            .or_else(|| id_text(value))
            .or_else(|| msgpack::as_int(value).map(|n| n.to_string()))
    };

    one(value).map_or_else(
        || msgpack::elements(value).filter_map(one).collect(),
        |word| vec![word],
    )
}

/// A string, or the strings in an array.
fn words(value: &[u8]) -> Vec<&str> {
    as_text(value).map_or_else(
        || msgpack::elements(value).filter_map(as_text).collect(),
        |word| vec![word],
    )
}

/// Matching jobs before `before`, the latest first.
pub(crate) fn jobs_before(
    store: &StoreView,
    filter: &JobFilter,
    before: Option<&str>,
    limits: PageLimits,
) -> Result<JobsPage, StoreError> {
    let mut jobs = Vec::new();
    let page = each_job_before(store, filter, before, limits, |listed| {
        jobs.push(listed);
        Ok(())
    })?;
    Ok(JobsPage { jobs, ..page })
}

/// Like [`jobs_before`], with a callback for each job, because a million jobs do not fit in memory
/// together.
pub(crate) fn each_job_before(
    store: &StoreView,
    filter: &JobFilter,
    before: Option<&str>,
    limits: PageLimits,
    take: impl FnMut(ListedJob) -> Result<(), StoreError>,
) -> Result<JobsPage, StoreError> {
    each_job_below(store, filter, before.map(JidKey::of), limits, take)
}

/// The newest jobs by their time, the latest first, without `saltutil.find_job`. A list begins with the jobs whose ids have no time, however
/// old they are; here they have the time of their first entry.
pub(super) fn newest_jobs(store: &StoreView, count: usize) -> Result<JobsPage, StoreError> {
    let filter = JobFilter::default();
    let mut jobs = Vec::new();
    let all_times = JidKey::from_time(Micros(i64::MAX), None);
    let limits = PageLimits::of_call(count);
    let with_time = each_job_below(store, &filter, Some(all_times), limits, |listed| {
        jobs.push(listed);
        Ok(())
    })?;

    let (without_time, is_cut) = newest_without_time(store, &filter, count)?;
    jobs.extend(without_time);
    jobs.sort_by_key(|listed| Reverse(listed.at));
    let more = with_time.more || is_cut || jobs.len() > count;
    jobs.truncate(count);
    Ok(JobsPage {
        jobs,
        more,
        last: None,
    })
}

/// The newest jobs whose ids have no time, one more than `count` at most, and whether some were not looked at. No index has them by their
/// time, so all are looked at, up to a limit.
fn newest_without_time(
    store: &StoreView,
    filter: &JobFilter,
    count: usize,
) -> Result<(Vec<ListedJob>, bool), StoreError> {
    let mut found: Vec<ListedJob> = Vec::new();
    let (mut at, mut at_once, mut seen) = (None, 1, 0);
    loop {
        // Mostly there are none, which the first row tells.
        let part = store.jobs_before(at, at_once)?;
        seen += part.seen;
        let mut is_end = part.next.is_none_or(|next| next.time().is_some());
        for (key, row) in part.rows {
            if key.time().is_some() {
                is_end = true;
                break;
            }
            let row = settled(store, row)?;
            let at = Micros(row.first_at);
            if row.rank > 0 && filter.allows(&row, at) {
                found.push(ListedJob { row, at });
            }
        }

        found.sort_by_key(|listed| Reverse(listed.at));
        found.truncate(count.saturating_add(1));
        if is_end || seen >= LIST_JOBS_SEEN {
            return Ok((found, !is_end));
        }
        (at, at_once) = (part.next, JOBS_READ_AT_ONCE);
    }
}

/// As [`each_job_before`], below a key.
fn each_job_below(
    store: &StoreView,
    filter: &JobFilter,
    mut at: Option<JidKey>,
    limits: PageLimits,
    mut take: impl FnMut(ListedJob) -> Result<(), StoreError>,
) -> Result<JobsPage, StoreError> {
    let span = filter.jid.as_deref().and_then(span_of);
    let since = filter.since.max(span.map(|(from, _)| from));
    let mut page = JobsPage::default();
    let (mut seen, mut read, mut taken) = (0, 0, 0);
    // Small first read: the rows of many segments are merged, and each costs time. Under limits the entries of each are also read.
    let least = if store.is_limited() { 1 } else { 64 };
    let mut at_once = limits
        .rows
        .saturating_add(1)
        .clamp(least, JOBS_READ_AT_ONCE);
    loop {
        let began_at = at;
        let JobRows {
            rows,
            next,

            seen: examined,
        } = store.jobs_before(at, at_once)?;
        // A limited store reads the entries of each job to know whether the reader may see it.
        if store.is_limited() {
            read += examined;
        }

        let mut whole = next.is_some();

        at = next;
        for (key, row) in rows {
            let (row, others) = settled_with_others(store, row)?;
            // Newer than all jids with this prefix: the next read begins at the newest of them.
            // Jids without a time are in no order, so they are filtered one by one.
            if let Some((_, upto)) = span.filter(|(_, upto)| key.time().is_some() && key >= *upto) {
                at = Some(upto);
                whole = true;
                break;
            }

            let listed = ListedJob {
                at: key.time().unwrap_or(Micros(row.first_at)),
                row,
            };
            // All further jobs are older than the start of the time range.
            if key.time().is_some() && since.is_some_and(|since| listed.at < since) {
                return Ok(page);
            }

            seen += 1;

            // If an id stands for different jobs, the caller may look for any of them.
            let mut whole_rows = Vec::new();
            for row in std::iter::once(&listed.row).chain(&others) {
                if filter.needs_whole(row) {
                    read += 1;
                    whole_rows.push(row_load(store, row)?.into_owned());
                }
            }
            let known = std::iter::once(&listed.row).chain(&others);
            let known = known.filter(|row| !filter.needs_whole(row));
            let all: Vec<&JobSummary> = known.chain(&whole_rows).collect();
            let is_allowed = |row: &&JobSummary| filter.allows(row, listed.at);
            let mut passes = listed.row.rank > 0 && all.iter().any(is_allowed);
            if passes {
                let known: Vec<_> = all.iter().map(|row| filter.allows_arg(row)).collect();
                passes = known.contains(&Some(true));
                if !passes && known.contains(&None) {
                    read += 1;
                    for row in &all {
                        passes = passes || filter.allows_arg_of_job(store, row)?;
                    }
                }
            }
            if passes && filter.needs_entries() {
                // The costly tests come last, and are counted.
                read += 1;
                passes = answered_by(store, filter, &listed)?
                    && filter.allows_origin(store, &listed.row)?
                    && filter.allows_result(store, &listed)?;
            }

            passes = passes && {
                let mut has_metadata = false;
                for row in all {
                    read += usize::from(row.abridged && !filter.metadata.is_empty());
                    has_metadata = has_metadata || filter.allows_metadata(store, row)?;
                }
                has_metadata
            };
            // The first job that does not fit proves that there are more.
            if passes && taken == limits.rows {
                page.more = true;
                return Ok(page);
            }

            page.last = Some(listed.row.jid.clone());
            if passes {
                taken += 1;
                take(listed)?;
            }
            // The page ends early to bound the work of one call even if hardly a job passes.
            if seen >= limits.seen || (read >= limits.read && !store.is_limited()) {
                page.more = true;
                return Ok(page);
            }
        }

        if !whole {
            return Ok(page);
        }
        // For a limited reader a page ends only after a whole read, at a full second: the jid of a
        // hidden job must not be its cursor.
        if store.is_limited()
            && read >= limits.read
            && let Some(cursor) = at.and_then(|at| coarse_cursor(at, began_at))
        {
            page.more = true;
            page.last = Some(cursor);
            return Ok(page);
        }

        at_once = JOBS_READ_AT_ONCE;
    }
}

/// A cursor before which all further jobs are, at a full second: `at` may be a job that the reader
/// may not know. `None` if it would not advance beyond `began_at`.
fn coarse_cursor(at: JidKey, began_at: Option<JidKey>) -> Option<String> {
    const SECOND_US: i64 = 1_000_000;

    let second = at.time()?.0.div_euclid(SECOND_US).saturating_add(1);

    let key = JidKey::from_time(Micros(second.saturating_mul(SECOND_US)), None);
    began_at
        .is_none_or(|began| key < began)
        .then(|| key.text())?
}

/// The first time of jids with this prefix, and the key after the last of them; `None` for a prefix
/// that is too short.
fn span_of(begin: &str) -> Option<(Micros, JidKey)> {
    const LAST: &str = "235959999999";
    if !begin.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Complete fields only: half a number of the month, day, hour, minute or second is ignored.
    let len = begin.len().min(20);
    let begin = begin
        .get(..if len < 14 { len / 2 * 2 } else { len })
        .filter(|begin| begin.len() >= 8)?;

    let rest = begin.len() - 8;
    let from = JidKey::of(&format!("{begin:0<20}")).time()?;
    let upto = JidKey::of(&format!("{begin}{}", LAST.get(rest..)?)).time()?;

    Some((
        from,
        JidKey::from_time(Micros(upto.0.saturating_add(1)), None),
    ))
}

fn answered_by(
    store: &StoreView,
    filter: &JobFilter,
    listed: &ListedJob,
) -> Result<bool, StoreError> {
    let Some(glob) = &filter.minion else {
        return Ok(true);
    };
    let job = Job::read_load(store, &listed.row.jid)?;
    Ok(job.is_some_and(|job| {
        // One id is looked up: a job may have as many minions as the fleet.
        if let Some(minion) = glob.as_literal() {
            return job.answers.contains_key(&minion)
                || job.minions.is_some_and(|minions| minions.contains(&minion));
        }

        let mut expected = job.minions.iter().flatten();
        job.answers.keys().any(|id| glob.matches(id)) || expected.any(|id| glob.matches(id))
    }))
}

/// The last job of a function per minion. A return seen on a bus only counts as in a [`Job`], or
/// not at all with `confirmed_only`.
pub(crate) fn last_jobs(
    store: &StoreView,
    fun: &str,
    confirmed_only: bool,
) -> Result<BTreeMap<String, String>, StoreError> {
    let mut latest = store.latest_of(fun)?;
    // Each has a separate row, because a forged return must not hide a confirmed return.
    if !confirmed_only {
        for (minion, seen) in store.latest_on_bus_only(fun)? {
            let is_newer = latest
                .get(&minion)
                .is_none_or(|known| known.jid != seen.jid && known.newness() < seen.newness());
            // Looked up last, and only for rows that would count.
            if is_newer
                && !store
                    .job_row(&seen.jid.to_string())?
                    .is_some_and(|row| row.is_cached_by_salt())
            {
                latest.insert(minion, seen);
            }
        }
    }

    Ok(latest
        .into_iter()
        .map(|(minion, latest)| (minion, latest.jid.to_string()))
        .collect())
}

/// A row with the values of the load that counts, see [`JobSummary::contested`].
pub(crate) fn settled(store: &StoreView, row: JobSummary) -> Result<JobSummary, StoreError> {
    Ok(settled_with_others(store, row)?.0)
}

/// The same, and rows with the values of other jobs that were published under its id, see [`Job::conflict`].
fn settled_with_others(
    store: &StoreView,
    row: JobSummary,
) -> Result<(JobSummary, Vec<JobSummary>), StoreError> {
    // The usual case.
    if !row.contested {
        return Ok((row, Vec::new()));
    }
    let Some(job) = Job::read_load(store, &row.jid)? else {
        return Ok((row, Vec::new()));
    };

    let with = |load: &[u8]| {
        let mut whole = row.clone();
        whole.take_load(load, usize::MAX);
        whole
    };
    let others = job.conflict().into_iter().skip(1);
    let others = others.map(|publish| with(load_of(publish.kind, &publish.body)));
    Ok((with(&job.load), others.collect()))
}

/// A complete row: values that were too long for it, or depend on the times of several loads, are
/// read from the log.
pub(crate) fn row_load<'a>(
    store: &StoreView,
    row: &'a JobSummary,
) -> Result<Cow<'a, JobSummary>, StoreError> {
    if !row.abridged && !row.contested {
        return Ok(Cow::Borrowed(row));
    }
    let mut whole = row.clone();
    if let Some(job) = Job::read_load(store, &row.jid)? {
        whole.take_load(&job.load, usize::MAX);
    }
    Ok(Cow::Owned(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coarse_cursor_names_no_job_and_advances() {
        let key = JidKey::of;
        let cursor = |at: &str, began: Option<&str>| coarse_cursor(key(at), began.map(key));
        let next = Some("20261121054729000000".to_owned());
        assert_eq!(cursor("20261121054728123456", None), next);
        assert_eq!(
            cursor("20261121054728000000_7", Some("20261121060000000000")),
            next
        );
        assert_eq!(
            cursor("20261121054728123456", Some("20261121054728999999")),
            None
        );
        assert_eq!(cursor("some text", None), None, "it has no time");
    }
}
