//! Calls about jobs: lists, one job, its states, the difference between two runs, and changes of a
//! job.
//!
//! Long responses are paged: by job in a list, by minion within a job. Filters are evaluated here.

pub(crate) mod answers;
pub(crate) mod strip;

use std::collections::{BTreeMap, BTreeSet};

use salt_sls::Glob;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::answers::{
    Awaited, DiffTotals, JobAnswer, JobDiff, JobRow, JobUpdate, JobsPage, LaterReturn, MinionDiff,
    NewReturn, Publish, Return, RunOutcome, State, StateDiff, StatesPage, Step, UnknownReturn,
};
use super::cache::load_with_minions;
use super::events::LIST_ROWS;
use super::page_rows::PageRows;
use super::poll::{Attempt, Poll};
use super::{Call, Cursor, In, Limited, OF_JOBS, ReadCtx, Run, Wait, failed};
use crate::api::query::{
    self, Answer, Answers, ArgFilter, Behind, ChangedJobs, Difference, Failure, Job, JobChanges,
    JobFilter, JobResult, ListedJob, PageLimits, Parts, ProgressEvent, StateCounts, children, diff,
    failures, job_changes, jobs_before, load_of, parent, previous_run, row_load, settled,
};
use crate::base::clock::Micros;
use crate::base::limits::{LIST_ROWS_MAX, WATCH_GATHER};
use crate::base::named::named;
use crate::model::{JidKey, Limit, SeqNo};
use crate::store::{JobSummary, StoredEntry};
use crate::wire::call::{CallError, Id};
use crate::wire::msgpack::{self, Stored, Time, Writer};
use crate::wire::outcome::states::StateRow;

/// `jobs_list`.
pub(crate) struct List;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ListArgs {
    /// Maximum number of rows
    pub(crate) limit: Option<usize>,
    /// Start of the time range
    pub(crate) since: Option<Time>,
    /// End of the time range
    pub(crate) until: Option<Time>,
    /// Only jobs that a minion that matches this glob returned or was expected to; with a result, only with that result of such a minion
    pub(crate) minion: Option<Glob>,
    /// Only functions that match this glob
    pub(crate) fun: Option<Glob>,
    /// Only jobs with an argument that contains this string, or that matches it as a glob if it contains *, ? or [
    pub(crate) arg: Option<String>,
    /// Only targets that match this glob
    pub(crate) tgt: Option<Glob>,
    /// Only jobs of this user
    pub(crate) user: Option<String>,
    /// Only jobs published by a master whose id matches this glob
    pub(crate) master: Option<Glob>,
    /// Only job ids that begin with this text
    pub(crate) jid: Option<Id>,
    /// Only failed, succeeded, missing, unknown or changed jobs
    pub(crate) result: Option<JobResult>,
    /// Only jobs with this metadata: {KEY: GLOB}
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) metadata: BTreeMap<String, Glob>,
    /// Also jobs of saltutil.find_job
    #[serde(default)]
    pub(crate) include_polling: bool,
    /// Only jobs before this one
    pub(crate) before: Option<Id>,
    /// `next` of the previous page, instead of `before`
    pub(crate) cursor: Option<Cursor>,
}

impl Call for List {
    const NAME: &'static str = "jobs_list";
    const DOC: &'static str = "List jobs, the latest first";
    const APPLIES: &'static [Limit] = OF_JOBS;
    type Scope = Limited;
    type Args<'a> = ListArgs;
    type Answer = JobsPage;
}

impl Run for List {
    fn run(ctx: &In<'_, Self>, args: ListArgs) -> Result<JobsPage, CallError> {
        let since = args.since.map(|Time(at)| at);
        let changed = match (args.result, since) {
            (Some(JobResult::Changed), Some(since)) => {
                let minions = args.minion.as_ref();
                ChangedJobs::read(&ctx.digest, &ctx.store, since, minions).map_err(failed)?
            }
            _ => ChangedJobs::default(),
        };

        let filter = JobFilter {
            user: args.user,
            masters: args.master.map(|ids| ctx.master.masters(ids)),
            fun: args.fun,
            arg: args.arg.as_deref().map(ArgFilter::new),
            tgt: args.tgt,
            minion: args.minion,
            jid: args.jid.map(|Id(jid)| jid),
            metadata: args.metadata.into_iter().collect(),
            result: args.result,
            changed,
            since,
            until: args.until.map(|Time(at)| at),
            include_polling: args.include_polling,
            others: ctx.others.clone(),
        };

        let store = ctx.store.id();
        let before = match &args.cursor {
            Some(cursor) => Some(cursor.position(&store)?),
            None => args.before.as_ref().map(|Id(jid)| jid.as_str()),
        };
        let rows = args.limit.unwrap_or(LIST_ROWS).min(LIST_ROWS_MAX);
        let page =
            jobs_before(&ctx.store, &filter, before, PageLimits::of_call(rows)).map_err(failed)?;

        let mut jobs = PageRows::new(rows);
        // The summary lacks what lists show of returns, so the job is read, without bodies of
        // returns.
        for listed in &page.jobs {
            // Arguments and targets are as long as their senders made them.
            if jobs.is_full() {
                break;
            }

            let mut job = Job::read_load(&ctx.store, &listed.row.jid)
                .map_err(failed)?
                .unwrap_or_default();
            ctx.others.judge(&ctx.store, &mut job).map_err(failed)?;
            let row = job_row(ctx, listed, &job)?;
            let bytes = row.size();
            jobs.add([row], bytes);
        }

        // Where the scan ended, unless rows are left out here.
        let is_cut = jobs.len() < page.jobs.len();
        let jobs = jobs.into_rows();
        let last = if is_cut {
            jobs.last().map(|row| row.jid.clone())
        } else {
            page.last
        };
        let more = page.more || is_cut;

        Ok(JobsPage {
            jobs,
            more,
            next: last.filter(|_| more).map(|jid| Cursor::new(&store, jid)),
        })
    }
}

fn job_row(ctx: &ReadCtx<'_>, listed: &ListedJob, job: &Job) -> Result<JobRow, CallError> {
    let mut row = row_load(&ctx.store, &listed.row).map_err(failed)?;
    // A summary does not record other publishes behind this master's publish.
    if job.has_conflict() {
        row.to_mut().take_load(&job.load, usize::MAX);
    }
    let totals = job.totals();

    // For a job known by its returns only, a return provides arguments and target.
    let arg = if row.arg.is_empty() {
        job.result_args()
    } else {
        Some(row.arg.as_slice())
    };
    let tgt = if row.tgt.is_empty() {
        msgpack::get(&job.load, "id")
    } else {
        Some(row.tgt.as_slice())
    };

    // Set together with `totals.first`.
    let last = totals.last;

    Ok(JobRow {
        jid: row.jid.clone(),
        time: Time(listed.at),
        fun: Stored::of(Some(&row.fun)),
        arg: Stored::of(arg),
        tgt: Stored::of(tgt),
        tgt_type: Stored::of(Some(&row.tgt_type)),
        user: Stored::of(Some(&row.user)),
        master: ctx.master.shown(&job.origin),
        expected: totals.expected.map(|count| count as u64),
        returned: totals.returned as u64,
        failed: totals.failed as u64,
        succeeded: totals.returned.saturating_sub(totals.failed) as u64,
        missing_count: totals.missing.map(|count| count as u64),
        unknown_count: totals.unknown as u64,
        bus_only: totals.bus_only as u64,
        unverified: totals.unverified as u64,
        retcodes: totals
            .retcodes
            .iter()
            .map(|(code, count)| (code.to_string(), *count))
            .collect(),
        first_return: totals.first.map(Time),
        last_return: last.map(Time),
        duration_us: last.map(|last| last.0.saturating_sub(listed.at.0).max(0)),
        endtime: Some(row.endtime.clone()).filter(|text| !text.is_empty()),
        metadata: Stored::of(Some(&row.metadata)),
        conflict: job.has_conflict(),
    })
}

impl JobRow {
    /// Bytes of the values in it that senders chose.
    fn size(&self) -> usize {
        let values = [
            &self.fun,
            &self.arg,
            &self.tgt,
            &self.tgt_type,
            &self.user,
            &self.metadata,
        ];
        values.into_iter().map(Stored::size).sum()
    }
}

fn started(row: &JobSummary) -> Micros {
    JidKey::of(&row.jid).time().unwrap_or(Micros(row.first_at))
}

/// A job and its summary; `None` if unknown.
pub(super) fn find(ctx: &ReadCtx<'_>, jid: &str) -> Result<Option<(ListedJob, Job)>, CallError> {
    let row = ctx.store.job_row(jid).map_err(failed)?;
    let job = Job::read_load(&ctx.store, jid).map_err(failed)?;

    // Both or none: retention may drop a job between the two reads.
    let Some((row, mut job)) = row.zip(job) else {
        return Ok(None);
    };
    ctx.others.judge(&ctx.store, &mut job).map_err(failed)?;

    let row = settled(&ctx.store, row).map_err(failed)?;
    let at = started(&row);
    Ok(Some((ListedJob { row, at }, job)))
}

/// A page of the minions of a job.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct PageArgs {
    /// Maximum number of rows
    pub(crate) limit: Option<usize>,
    /// Only minions that match this glob
    pub(crate) minion: Option<Glob>,
    /// Only minions after this one: `next` of the previous page
    pub(crate) after: Option<String>,
    /// Only minions up to this one, in the order of the page
    pub(crate) upto: Option<String>,
    /// Only these minions. Calls within the daemon give it
    #[serde(skip)]
    #[schemars(skip)]
    pub(crate) only: Option<BTreeSet<String>>,
}

impl PageArgs {
    /// The rows of the minions of this page, failed minions first and then by id, until there are enough rows or bytes, and the last minion
    /// if more follow. `rows` returns the rows of a minion with the bytes from which they are made.
    fn walk<'a, T>(
        &'a self,
        minions: impl Iterator<Item = Place<'a>>,
        read: impl Fn(&[&str]) -> Result<[Answers; 2], CallError>,
        mut rows: impl FnMut(&str, [Option<&Answer>; 2]) -> (Vec<T>, usize),
    ) -> Result<(Vec<T>, Option<String>), CallError> {
        let wanted_rows = self.limit.unwrap_or(LIST_ROWS_MAX).clamp(1, LIST_ROWS_MAX);
        // An empty one is that of a client which has no cursor yet.
        let given = |id: &'a Option<String>| id.as_deref().filter(|id| !id.is_empty());
        let after = given(&self.after);

        let mut places: Vec<Place<'_>> = minions.collect();
        places.sort_unstable();
        // One that is not known any more was among the others, which are by id.
        let place = |minion: &'a str| {
            let known = places.iter().find(|place| place.minion == minion);
            known.copied().unwrap_or(Place {
                has_not_failed: true,
                minion,
                bytes: 0,
            })
        };
        let (begin, end) = (after.map(place), given(&self.upto).map(place));
        let is_meant = |place: &&Place<'_>| {
            let matches = |glob: &Glob| glob.matches(place.minion);
            begin.is_none_or(|begin| **place > begin)
                && end.is_none_or(|end| **place <= end)
                && self.minion.as_ref().is_none_or(matches)
                && self
                    .only
                    .as_ref()
                    .is_none_or(|only| only.contains(place.minion))
        };
        let meant: Vec<Place<'_>> = places.iter().filter(is_meant).copied().collect();

        let mut all = PageRows::new(wanted_rows);
        let mut last = after;
        // A minion mostly has a row. If a filter leaves few, larger parts follow, because each part is a walk over the job's entries.
        let mut parts = Parts::beginning_with(&meant, wanted_rows);
        while let Some(part) = parts.next(|place| place.bytes) {
            // Before the part is read.
            if all.is_full() {
                return Ok((all.into_rows(), Some(last.unwrap_or_default().to_owned())));
            }

            let read = read_part(part, &read)?;
            for place in part {
                if all.is_full() {
                    return Ok((all.into_rows(), Some(last.unwrap_or_default().to_owned())));
                }
                let answers = read.each_ref().map(|answers| answers.get(place.minion));
                let (found, size) = rows(place.minion, answers);
                all.add(found, size);
                last = Some(place.minion);
            }
        }

        Ok((all.into_rows(), None))
    }
}

/// The place of a minion in the lists of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place<'a> {
    has_not_failed: bool,
    minion: &'a str,
    /// Bytes of the returns to read for it.
    bytes: usize,
}

/// The minions that have answered, with their places.
fn answered(job: &Job) -> impl Iterator<Item = Place<'_>> {
    job.answers.iter().map(|(minion, answer)| Place {
        has_not_failed: !answer.failed(),
        minion,
        bytes: job.bytes_of(minion),
    })
}

/// Reads the answers of the minions of a part.
fn read_part(
    part: &[Place<'_>],
    read: impl Fn(&[&str]) -> Result<[Answers; 2], CallError>,
) -> Result<[Answers; 2], CallError> {
    let minions: Vec<&str> = part.iter().map(|place| place.minion).collect();
    read(&minions)
}

/// `job_show`.
pub(crate) struct Show;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ShowArgs {
    /// The job's id
    pub(crate) jid: Id,
    #[serde(flatten)]
    pub(crate) page: PageArgs,
    /// Only failed, succeeded or changed returns; or, without returns, only the minions that are missing or unknown
    pub(crate) result: Option<ReturnResult>,
    /// Only returns that failed for this cause: its `key` in `causes`
    pub(crate) cause: Option<String>,
    /// Search for the job that started this one
    #[serde(default)]
    pub(crate) links: bool,
}

/// What a return is, or why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReturnResult {
    Failed,
    Succeeded,
    /// An expected minion has not answered.
    Missing,
    /// An expected minion may have answered a master that is behind.
    Unknown,
    /// A state changed something.
    Changed,
}

named! {
    ReturnResult {
        Failed: "failed",
        Succeeded: "succeeded",
        Missing: "missing",
        Unknown: "unknown",
        Changed: "changed",
    }
}

impl ReturnResult {
    /// Whether it is a result of minions without a return.
    pub(crate) fn is_without_return(self) -> bool {
        matches!(self, Self::Missing | Self::Unknown)
    }
}

impl Call for Show {
    const NAME: &'static str = "job_show";
    const DOC: &'static str = "Show one job with its returns";
    const APPLIES: &'static [Limit] = OF_JOBS;
    type Scope = Limited;
    type Args<'a> = ShowArgs;
    /// None for an unknown job.
    type Answer = Option<JobAnswer>;
}

impl Run for Show {
    fn run(ctx: &In<'_, Self>, args: ShowArgs) -> Result<Option<JobAnswer>, CallError> {
        show(ctx, args)
    }
}

fn show(ctx: &ReadCtx<'_>, args: ShowArgs) -> Result<Option<JobAnswer>, CallError> {
    let ShowArgs {
        jid: Id(jid),
        page,
        result,
        cause,
        links,
    } = args;

    let Some((listed, job)) = find(ctx, &jid)? else {
        return Ok(None);
    };

    let parent = if links {
        // A search through older jobs; without it, only what the job itself states.
        parent(&ctx.store, &job).map_err(failed)?
    } else {
        job.parent.clone()
    };

    let read = |minions: &[&str]| Ok([answers_of(ctx, &job, minions)?, Answers::new()]);
    let without_return = result.filter(|result| result.is_without_return());
    // Whether a return failed is known without its body, so only bodies that can be shown are read.
    let may_be_meant = |place: &Place<'_>| match result {
        Some(ReturnResult::Failed) => !place.has_not_failed,
        Some(ReturnResult::Succeeded) => place.has_not_failed,
        Some(ReturnResult::Missing | ReturnResult::Unknown) => false,
        Some(ReturnResult::Changed) | None => true,
    };
    let returned = answered(&job).filter(may_be_meant);
    let (returns, next) = page.walk(returned, read, |minion, [answer, _]| {
        let has_cause = |answer: &&Answer| {
            cause.as_ref().is_none_or(|key| {
                let mut found = failures_of(answer).into_iter();
                found.any(|failure| failure.cause.key() == *key)
            })
        };
        let is_meant = |answer: &&Answer| match result {
            Some(ReturnResult::Failed) => answer.failed(),
            Some(ReturnResult::Succeeded) => !answer.failed(),
            Some(ReturnResult::Changed) => answer.states().iter().any(StateRow::changed),
            Some(ReturnResult::Missing | ReturnResult::Unknown) => false,
            None => true,
        };
        // The minion counts as passed, so the next page does not read it again.
        let Some(answer) = answer.filter(is_meant).filter(has_cause) else {
            return (Vec::new(), 0);
        };

        let not_targeted = job.is_not_targeted(minion);
        (
            vec![Return {
                not_targeted,
                ..return_of(answer)
            }],
            answer.entry.body.len(),
        )
    })?;

    // By one of these results, the other list is left out, and a glob counts for the list as for returns.
    let is_listed = |of: ReturnResult, minion: &str| {
        without_return.is_none_or(|wanted| {
            wanted == of && page.minion.as_ref().is_none_or(|glob| glob.matches(minion))
        })
    };
    let mut missing = job.missing();
    missing.retain(|minion| is_listed(ReturnResult::Missing, minion));
    let mut unknown = unknown(&job);
    unknown.retain(|one| is_listed(ReturnResult::Unknown, &one.minion));

    let publish = |entry: &StoredEntry| {
        let get = |key| Stored::of(msgpack::get(load_of(entry.kind, &entry.body), key));
        Publish {
            seq: entry.seq.0,
            time: Time(job.published_at(entry)),
            fun: get("fun"),
            arg: get("arg"),
            tgt: get("tgt"),
            tgt_type: get("tgt_type"),
            user: get("user"),
            master: ctx.master.shown(&entry.origin),
        }
    };
    let publishes = job.conflict().into_iter().map(publish).collect();

    let mut load = Writer::new();
    // The load of a job that is known by its returns only is a stand-in.
    if job.load_rank > 0 {
        load_with_minions(&mut load, &job.load, &job);
    }

    Ok(Some(JobAnswer {
        row: job_row(ctx, &listed, &job)?,
        load: Stored::of(Some(&load.into_bytes())),
        missing: missing.into_iter().map(str::to_owned).collect(),
        unknown,
        children: children(&job),
        nocache: job.nocache,
        publishes,
        parent,
        minions: job.minions.unwrap_or_default(),
        not_confirmed: job.bus_only,
        returns,
        more: next.is_some(),
        next,
    }))
}

/// `job_missing`.
pub(crate) struct Missing;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct MissingArgs {
    /// The job's id
    pub(crate) jid: Id,
}

impl Call for Missing {
    const NAME: &'static str = "job_missing";
    const DOC: &'static str = "List the minions that have not returned a job";
    const APPLIES: &'static [Limit] = OF_JOBS;
    type Scope = Limited;
    type Args<'a> = MissingArgs;
    /// None for an unknown job.
    type Answer = Option<Awaited>;
}

impl Run for Missing {
    fn run(ctx: &In<'_, Self>, args: MissingArgs) -> Result<Option<Awaited>, CallError> {
        let MissingArgs { jid: Id(jid) } = args;
        let Some((_, job)) = find(ctx, &jid)? else {
            return Ok(None);
        };

        let totals = job.totals();
        Ok(Some(Awaited {
            jid,
            expected: totals.expected.map(|count| count as u64),
            returned: totals.returned as u64,
            missing_count: totals.missing.map(|count| count as u64),
            missing: job.missing().into_iter().map(str::to_owned).collect(),
            unknown: unknown(&job),
        }))
    }
}

/// The minions of which it is unknown whether they answered.
fn unknown(job: &Job) -> Vec<UnknownReturn> {
    let row = |(minion, behind): (&String, &Behind)| UnknownReturn {
        minion: minion.clone(),
        master: behind.master.clone(),
        behind_s: behind.behind.as_secs(),
    };
    job.unknown.iter().map(row).collect()
}

/// A job without the bodies of its returns; `None` if unknown.
pub(super) fn known(ctx: &ReadCtx<'_>, jid: &str) -> Result<Option<Job>, CallError> {
    Ok(find(ctx, jid)?.map(|(_, job)| job))
}

/// Calls `take` with the answers of minions, which are read a part at a time.
pub(super) fn each_answer(
    ctx: &ReadCtx<'_>,
    job: &Job,
    minions: &[&str],
    take: impl FnMut(&Answer),
) -> Result<(), CallError> {
    job.each_answer(&ctx.store, &ctx.others, minions, take)
        .map_err(failed)
}

/// Why an answer failed; none if it did not.
pub(super) fn failures_of(answer: &Answer) -> Vec<Failure> {
    if !answer.failed() {
        return Vec::new();
    }
    let entry = &answer.entry;
    let code = answer.code().unwrap_or_default();
    failures(&entry.body, &entry.jid, &entry.minion, code)
}

fn answers_of(ctx: &ReadCtx<'_>, job: &Job, minions: &[&str]) -> Result<Answers, CallError> {
    job.answers_of(&ctx.store, &ctx.others, minions)
        .map_err(failed)
}

/// A minion's answer for display: the keys of the return, and derived values.
fn return_of(answer: &Answer) -> Return {
    let outcome = answer.outcome();
    let later = |other: &StoredEntry| {
        let get = |key| Stored::of(msgpack::get(&other.body, key));
        let (value, retcode, success) = (get("return"), get("retcode"), get("success"));
        LaterReturn {
            seq: other.seq.0,
            time: Time(other.at),
            value,
            retcode,
            success,
        }
    };

    Return {
        minion: answer.entry.minion.clone(),
        seq: answer.entry.seq.0,
        time: Time(answer.entry.at),
        states: StateCounts::of(&outcome, &answer.entry.minion),
        value: Stored::of(answer.get("return")),
        retcode: Stored::of(outcome.retcode),
        success: Stored::of(outcome.success),
        fun: Stored::of(outcome.fun),
        fun_args: Stored::of(outcome.fun_args),
        out: Stored::of(outcome.out),
        failed: answer.failed(),
        bus_only: answer.is_bus_only(),
        verified: answer.entry.as_entry().confirms(),
        master: answer.peer().map(str::to_owned),
        duplicates: answer.duplicates,
        others: answer.others.iter().map(later).collect(),
        not_targeted: false,
    }
}

fn state_of(row: &StateRow<'_>) -> State {
    let text = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);

    State {
        minion: row.minion.to_owned(),
        id: row.id.to_owned(),
        name: row.name.to_owned(),
        fun: row.fun.clone(),
        sls: row.sls.map(str::to_owned),
        result: row.result,
        changed: row.changed(),
        changes: Stored::of(row.changes),
        comment: Stored::of(row.comment),
        duration_ms: row.duration,
        start_time: text(row.start_time),
        run_num: row.run_num,
        job: text(row.job),
    }
}

/// `job_states`.
pub(crate) struct States;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct StatesArgs {
    /// The job's id
    pub(crate) jid: Id,
    #[serde(flatten)]
    pub(crate) page: PageArgs,
    /// Only state ids that match this glob
    pub(crate) id: Option<Glob>,
    /// Only state functions that match this glob
    pub(crate) fun: Option<Glob>,
    /// Only SLS files that match this glob
    pub(crate) sls: Option<Glob>,
    /// Only succeeded, failed, none or changed states; `notable`: failed, none or changed
    pub(crate) result: Option<StateResult>,
}

/// What a state did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateResult {
    Succeeded,
    Failed,
    /// A test run with pending changes.
    None,
    Changed,
    /// All but those that succeeded and changed nothing.
    Notable,
}

named! {
    StateResult {
        Succeeded: "succeeded",
        Failed: "failed",
        None: "none",
        Changed: "changed",
        Notable: "notable",
    }
}

impl Call for States {
    const NAME: &'static str = "job_states";
    const DOC: &'static str = "List the states of a job";
    const APPLIES: &'static [Limit] = OF_JOBS;
    type Scope = Limited;
    type Args<'a> = StatesArgs;
    /// None for an unknown job.
    type Answer = Option<StatesPage>;
}

impl Run for States {
    fn run(ctx: &In<'_, Self>, args: StatesArgs) -> Result<Option<StatesPage>, CallError> {
        states(ctx, args)
    }
}

fn states(ctx: &ReadCtx<'_>, args: StatesArgs) -> Result<Option<StatesPage>, CallError> {
    let StatesArgs {
        jid: Id(jid),
        page,
        id,
        fun,
        sls,
        result: wanted,
    } = args;

    let Some((_, job)) = find(ctx, &jid)? else {
        return Ok(None);
    };

    let passes = |row: &StateRow<'_>| {
        let matches =
            |glob: &Option<Glob>, text| glob.as_ref().is_none_or(|glob| glob.matches(text));
        let result = match wanted {
            Some(StateResult::Succeeded) => row.result == Some(true),
            Some(StateResult::Failed) => row.result == Some(false),
            Some(StateResult::Changed) => row.changed(),
            Some(StateResult::None) => row.result.is_none(),
            Some(StateResult::Notable) => row.result != Some(true) || row.changed(),
            None => true,
        };

        result
            && matches(&id, row.id)
            && matches(&fun, &row.fun)
            && matches(&sls, row.sls.unwrap_or_default())
    };

    let read = |minions: &[&str]| Ok([answers_of(ctx, &job, minions)?, Answers::new()]);
    let (states, next) = page.walk(answered(&job), read, |_, [answer, _]| {
        let Some(answer) = answer else {
            return (Vec::new(), 0);
        };

        let states = answer
            .states()
            .iter()
            .filter(|row| passes(row))
            .map(state_of)
            .collect();
        (states, answer.entry.body.len())
    })?;

    Ok(Some(StatesPage {
        jid,
        states,
        more: next.is_some(),
        next,
    }))
}

/// `job_diff`.
pub(crate) struct Diff;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct DiffArgs {
    /// The job's id
    pub(crate) jid: Id,
    #[serde(flatten)]
    pub(crate) page: PageArgs,
    /// The job id of the earlier run; by default the previous run
    pub(crate) with: Option<Id>,
    /// Count the differences of all minions as well, not only of this page
    #[serde(default)]
    pub(crate) totals: bool,
}

impl Call for Diff {
    const NAME: &'static str = "job_diff";
    const DOC: &'static str = "Compare two runs of a job";
    const APPLIES: &'static [Limit] = OF_JOBS;
    type Scope = Limited;
    type Args<'a> = DiffArgs;
    type Answer = JobDiff;
}

impl Run for Diff {
    fn run(ctx: &In<'_, Self>, args: DiffArgs) -> Result<JobDiff, CallError> {
        compare(ctx, args)
    }
}

fn compare(ctx: &ReadCtx<'_>, args: DiffArgs) -> Result<JobDiff, CallError> {
    let DiffArgs {
        jid: Id(later),
        page,
        with,
        totals,
    } = args;

    let unknown = |jid: &str| {
        CallError::Refused(format!(
            "unknown job {jid}; `saltcellar jobs list` lists the known jobs"
        ))
    };
    // The job that is named is the later run; without `with` the previous run is looked up.
    let (b_listed, b) = find(ctx, &later)?.ok_or_else(|| unknown(&later))?;
    let earlier = match with {
        Some(Id(jid)) => jid,
        None => previous_run(&ctx.store, &b, &b_listed.row)
            .map_err(failed)?
            .ok_or_else(|| {
                CallError::Refused(format!(
                    "no earlier run of job {later} found; name the job to compare with"
                ))
            })?,
    };
    let (a_listed, a) = find(ctx, &earlier)?.ok_or_else(|| unknown(&earlier))?;

    // Failed in the later run, or in the earlier one if it is not in that.
    let of_both: BTreeSet<&String> = a.answers.keys().chain(b.answers.keys()).collect();
    let places = of_both.into_iter().map(|minion| {
        let answer = b.answers.get(minion).or_else(|| a.answers.get(minion));
        Place {
            has_not_failed: !answer.is_some_and(Answer::failed),
            minion,
            bytes: a.bytes_of(minion).saturating_add(b.bytes_of(minion)),
        }
    });
    let of_both: Vec<Place<'_>> = places.collect();
    let read =
        |minions: &[&str]| Ok([answers_of(ctx, &a, minions)?, answers_of(ctx, &b, minions)?]);

    let totals = if totals {
        let mut meant = of_both.clone();
        let matches = |id: &str| page.minion.as_ref().is_none_or(|glob| glob.matches(id));
        meant.retain(|place| matches(place.minion));
        Some(diff_totals(&meant, read)?)
    } else {
        None
    };

    let mut same = 0_u64;
    // Each page counts its own minions.
    let (minions, next) = page.walk(of_both.into_iter(), read, |minion, [a, b]| {
        let Some(found) = diff(minion, a, b) else {
            same += 1;
            return (Vec::new(), 0);
        };

        let bytes = [a, b]
            .into_iter()
            .flatten()
            .map(|answer| answer.entry.body.len())
            .sum();
        (vec![difference(&found)], bytes)
    })?;

    let (a, b) = (job_row(ctx, &a_listed, &a)?, job_row(ctx, &b_listed, &b)?);
    Ok(JobDiff {
        a,
        b,
        same,
        totals,
        minions,
        more: next.is_some(),
        next,
    })
}

/// The differences of all these minions, counted.
fn diff_totals(
    minions: &[Place<'_>],
    read: impl Fn(&[&str]) -> Result<[Answers; 2], CallError>,
) -> Result<DiffTotals, CallError> {
    let mut totals = DiffTotals::default();
    let mut parts = Parts::of_all(minions);
    while let Some(part) = parts.next(|place| place.bytes) {
        let read = read_part(part, &read)?;
        for Place { minion, .. } in part {
            let [a, b] = read.each_ref().map(|answers| answers.get(*minion));

            let count = match (a.map(Answer::failed), b.map(Answer::failed)) {
                (None, _) => &mut totals.added,
                (_, None) => &mut totals.removed,
                (Some(false), Some(true)) => &mut totals.newly_failed,
                (Some(true), Some(false)) => &mut totals.fixed,
                _ if diff(minion, a, b).is_some() => &mut totals.changed,
                _ => &mut totals.same,
            };
            *count += 1;
        }
    }
    Ok(totals)
}

fn difference(found: &Difference<'_>) -> MinionDiff {
    let outcome = |answer: &Answer| {
        let outcome = answer.outcome();
        RunOutcome {
            failed: answer.failed(),
            retcode: Stored::of(outcome.retcode),
            success: Stored::of(outcome.success),
            // The states are listed one by one, therefore the value that contains them all is left
            // out.
            value: if found.states.is_empty() {
                Stored::of(outcome.value).or_nil()
            } else {
                Stored::None
            },
        }
    };

    let [a, b] = found.answers.map(|answer| answer.map(outcome));

    let state = |state: &query::StateDiff<'_>| {
        let [a, b] = state.rows.each_ref().map(|row| row.as_ref().map(state_of));
        StateDiff {
            what: state.kind,
            a,
            b,
        }
    };

    let states = found.states.iter().map(state).collect();
    MinionDiff {
        minion: found.minion.to_owned(),
        what: found.kind,
        a,
        b,
        states,
    }
}

/// `job_watch`.
pub(crate) struct Watch;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct WatchArgs {
    /// The job's id
    pub(crate) jid: Id,
    /// Only changes from this position on: `next` of the previous answer
    pub(crate) from: Option<u64>,
    /// Wait so long for changes, at most 10000
    pub(crate) wait_ms: Option<u64>,
}

impl Call for Watch {
    const NAME: &'static str = "job_watch";
    const DOC: &'static str = "Wait for changes of a job";
    const APPLIES: &'static [Limit] = OF_JOBS;
    type Scope = Limited;
    type Args<'a> = WatchArgs;
    type Answer = JobUpdate;
}

impl Wait for Watch {
    fn start(ctx: &In<'_, Self>, args: WatchArgs) -> Result<Poll<JobUpdate>, CallError> {
        let WatchArgs {
            jid: Id(jid),
            from,
            wait_ms,
        } = args;

        let mut from = SeqNo(from.unwrap_or(0)).max(SeqNo::FIRST);
        let answer = move |ctx: &ReadCtx<'_>, is_last: bool| {
            let found = job_changes(&ctx.store, &jid, from).map_err(failed)?;
            from = found.next;
            let has_changes = found.job.is_some() || !found.steps.is_empty() || found.ended;
            // At the end of the wait an empty response tells the caller how far it has read.
            if has_changes || is_last {
                return Ok(Attempt::Done(update_of(found)));
            }
            Ok(Attempt::After(from))
        };

        Ok(Poll::limited(ctx, wait_ms, WATCH_GATHER, answer))
    }
}

fn update_of(found: JobChanges) -> JobUpdate {
    let known = found.job.is_some();
    let job = found.job.unwrap_or_default();
    let fun = msgpack::get(&job.load, "fun");
    // A target without a function belongs to a placeholder for a load.
    let tgt = msgpack::get(&job.load, "tgt").filter(|_| fun.is_some());

    let answer = |answer: &Answer| NewReturn {
        minion: answer.entry.minion.clone(),
        seq: answer.entry.seq.0,
        time: Time(answer.entry.at),
        retcode: answer.code(),
        failed: answer.failed(),
        bus_only: answer.is_bus_only(),
        master: answer.peer().map(str::to_owned),
    };

    let step = |step: &ProgressEvent| Step {
        minion: Some(step.entry.minion.clone()).filter(|minion| !minion.is_empty()),
        seq: step.entry.seq.0,
        time: Time(step.entry.at),
        data: Stored::of_data(step.value().to_vec()),
    };

    JobUpdate {
        next: found.next.0,
        ended: found.ended,
        known,
        fun: Stored::of(fun),
        tgt: Stored::of(tgt),
        answers: job.answers.values().map(answer).collect(),
        steps: found.steps.iter().map(step).collect(),
        minions: job.minions,
    }
}
