//! Calls about jobs: lists, one job, its states, the difference between two runs, and changes of a
//! job.
//!
//! Long answers are paged: by job in a list, by minion within a job. Filters are evaluated here.

pub(crate) mod answers;
pub(super) mod minions;

use std::collections::BTreeSet;

use self::answers::{
    JobAnswer, JobDiff, JobRow, JobUpdate, JobsPage, LaterReturn, MinionDiff, NewReturn, Return,
    RunOutcome, State, StateDiff, StatesPage, Step,
};
use super::cache::load_with_minions;
use super::lists::{glob, limit, time};
use super::poll::{Attempt, Poll};
use super::{ReadCtx, document, failed, typed};
use crate::api::query::{
    self, Answer, Difference, Job, JobChanges, JobFilter, JobResult, ListedJob, PageLimits,
    ProgressEvent, children, diff, job_changes, jobs_before, parent, previous_run, row_load,
};
use crate::base::clock::Micros;
use crate::base::limits::{LIST_BYTES_MAX, LIST_ROWS_MAX, PAGE_MINIONS, WATCH_GATHER};
use crate::model::{Glob, JidKey, SeqNo};
use crate::store::{JobSummary, StoredEntry};
use crate::wire::call::{Args, CallError};
use crate::wire::msgpack::{self, Stored, Time, Writer, as_text};
use crate::wire::states::StateRow;

fn result(args: &Args<'_>) -> Result<Option<JobResult>, CallError> {
    let expected = "failed, succeeded, missing or changed";

    let named = args.text("result")?.map(JobResult::of);
    named
        .map(|result| {
            result.ok_or(CallError::BadArgs {
                key: "result",
                expected,
            })
        })
        .transpose()
}

pub(super) fn jobs_list(ctx: &ReadCtx<'_>, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let metadata = args.raw("metadata").unwrap_or(&[0x80]);
    // An invalid filter must not select everything.
    if msgpack::Reader::new(metadata).map().is_err() {
        return Err(CallError::BadArgs {
            key: "metadata",
            expected: "a map of key to glob",
        });
    }

    let of_metadata = |(key, value)| Some((as_text(key)?.to_owned(), Glob::new(as_text(value)?)));
    let filter = JobFilter {
        user: args.text("user")?.map(str::to_owned),
        fun: glob(args, "fun")?,
        tgt: glob(args, "tgt")?,
        minion: args.text("minion")?.map(str::to_owned),
        jid: args.text("jid")?.map(str::to_owned),
        metadata: msgpack::pairs(metadata).filter_map(of_metadata).collect(),
        result: result(args)?,
        since: time(args, "since")?,
        until: time(args, "until")?,
        find_job: args.flag("find_job")?,
    };

    let before = args.id("before")?;
    let limits = PageLimits::of_call(limit(args)?);
    let page = jobs_before(&ctx.store, &filter, before.as_deref(), limits).map_err(failed)?;

    let mut jobs = Vec::new();
    // The summary lacks what lists show of returns, so the job is read, without bodies of returns.
    for listed in &page.jobs {
        let job = Job::read_load(&ctx.store, &listed.row.jid)
            .map_err(failed)?
            .unwrap_or_default();
        jobs.push(job_row(ctx, listed, &job)?);
    }

    document(&JobsPage {
        jobs,
        more: page.more,
        next: page.last.filter(|_| page.more),
    })
}

fn job_row(ctx: &ReadCtx<'_>, listed: &ListedJob, job: &Job) -> Result<JobRow, CallError> {
    let row = row_load(&ctx.store, &listed.row).map_err(failed)?;
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
        expected: totals.expected.map(|count| count as u64),
        returned: totals.returned as u64,
        failed: totals.failed as u64,
        succeeded: totals.returned.saturating_sub(totals.failed) as u64,
        missing_count: totals.missing.map(|count| count as u64),
        bus_only: totals.bus_only as u64,
        retcodes: totals
            .retcodes
            .iter()
            .map(|(code, count)| (code.to_string(), *count))
            .collect(),
        first_answer: totals.first.map(Time),
        last_answer: last.map(Time),
        duration_us: last.map(|last| last.0.saturating_sub(listed.at.0).max(0)),
        endtime: Some(row.endtime.clone()).filter(|text| !text.is_empty()),
        metadata: Stored::of(Some(&row.metadata)),
    })
}

fn started(row: &JobSummary) -> Micros {
    JidKey::of(&row.jid).time().unwrap_or(Micros(row.first_at))
}

/// A job and its summary; `None` if unknown.
fn find(ctx: &ReadCtx<'_>, jid: &str) -> Result<Option<(ListedJob, Job)>, CallError> {
    let row = ctx.store.job_row(jid).map_err(failed)?;
    let job = Job::read_load(&ctx.store, jid).map_err(failed)?;

    // Both or none: retention may drop a job between the two reads.
    Ok(row.zip(job).map(|(row, job)| {
        (
            ListedJob {
                at: started(&row),
                row,
            },
            job,
        )
    }))
}

/// A page of the minions of a job.
struct Page<'a> {
    after: Option<&'a str>,
    minion: Option<Glob>,
    rows: usize,
}

impl<'a> Page<'a> {
    fn of(args: &Args<'a>) -> Result<Self, CallError> {
        let rows = args
            .count("limit")?
            .unwrap_or(LIST_ROWS_MAX)
            .min(LIST_ROWS_MAX);
        Ok(Self {
            after: args.text("after")?,
            minion: glob(args, "minion")?,
            rows,
        })
    }

    /// The rows of the minions of this page, until it has enough rows or bytes, and the last minion
    /// if more follow. `rows` returns the rows of a minion with the bytes from which they are made.
    fn walk<T>(
        &self,
        minions: impl Iterator<Item = &'a String>,
        read: impl Fn(&BTreeSet<&str>) -> Result<[Option<Job>; 2], CallError>,
        mut rows: impl FnMut(&str, &[Option<Job>; 2]) -> (Vec<T>, usize),
    ) -> Result<(Vec<T>, Option<String>), CallError> {
        let is_meant = |id: &&String| {
            self.after.is_none_or(|after| id.as_str() > after)
                && self.minion.as_ref().is_none_or(|glob| glob.matches(id))
        };
        let minions: Vec<&str> = minions.filter(is_meant).map(String::as_str).collect();

        let (mut all, mut bytes, mut last) = (Vec::new(), 0, self.after);
        for part in minions.chunks(PAGE_MINIONS) {
            // Jobs are read for a few minions at a time: the returns of a whole job may not fit
            // into memory.
            if all.len() >= self.rows {
                return Ok((all, Some(last.unwrap_or_default().to_owned())));
            }

            let jobs = read(&part.iter().copied().collect())?;
            for &minion in part {
                // Checked before a minion and not after it, so that a page always has at least one.
                if all.len() >= self.rows || bytes >= LIST_BYTES_MAX {
                    return Ok((all, Some(last.unwrap_or_default().to_owned())));
                }
                let (found, size) = rows(minion, &jobs);
                // Minions without a matching row cost nothing to send.
                bytes += if found.is_empty() { 0 } else { size };

                all.extend(found);
                last = Some(minion);
            }
        }

        Ok((all, None))
    }
}

pub(super) fn job_show(ctx: &ReadCtx<'_>, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let jid = args.required_id("jid")?;
    let (page, result) = (Page::of(args)?, result(args)?);
    // nil, which HTTP turns into 404.
    let Some((listed, job)) = find(ctx, &jid)? else {
        return document(&());
    };

    let parent = if args.flag("links")? {
        // A search through older jobs; without it, only what the job itself states.
        parent(&ctx.store, &job).map_err(failed)?
    } else {
        job.parent.clone()
    };

    let read = |wanted: &BTreeSet<&str>| Ok([read_of(ctx, &jid, wanted)?, None]);
    let (returns, next) = page.walk(job.answers.keys(), read, |minion, [read, _]| {
        let answer = read.as_ref().and_then(|job| job.answers.get(minion));
        let is_meant = |answer: &&Answer| match result {
            Some(JobResult::Failed) => answer.failed(),
            Some(JobResult::Succeeded) => !answer.failed(),
            Some(JobResult::Changed) => answer.states().iter().any(StateRow::changed),
            Some(JobResult::Missing) => false,
            None => true,
        };
        // The minion counts as passed, so the next page does not read it again.
        let Some(answer) = answer.filter(is_meant) else {
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

    let mut load = Writer::new();
    // The load of a job that is known by its returns only is a stand-in.
    if job.load_rank > 0 {
        load_with_minions(&mut load, &job);
    }

    document(&JobAnswer {
        row: job_row(ctx, &listed, &job)?,
        load: Stored::of(Some(&load.into_bytes())),
        missing: job.missing().into_iter().map(str::to_owned).collect(),
        children: children(&job),
        nocache: job.nocache,
        parent,
        minions: job.minions.unwrap_or_default(),
        not_confirmed: job.bus_only,
        returns,
        more: next.is_some(),
        next,
    })
}

fn read_of(
    ctx: &ReadCtx<'_>,
    jid: &str,
    wanted: &BTreeSet<&str>,
) -> Result<Option<Job>, CallError> {
    Job::read_of(&ctx.store, jid, |minion| wanted.contains(minion)).map_err(failed)
}

/// A minion's answer for display: the keys of the return, and derived values.
fn return_of(answer: &Answer) -> Return {
    let outcome = answer.outcome();
    let later = |other: &StoredEntry| {
        let get = |key| Stored::of(msgpack::get(&other.body, key));
        let (value, retcode, success) = (get("return"), get("retcode"), get("success"));
        LaterReturn {
            seq: other.seq.0,
            time: other.at.0,
            value,
            retcode,
            success,
        }
    };

    Return {
        minion: answer.entry.minion.clone(),
        seq: answer.entry.seq.0,
        time: Time(answer.entry.at),
        value: Stored::of(answer.get("return")),
        retcode: Stored::of(outcome.retcode),
        success: Stored::of(outcome.success),
        fun: Stored::of(outcome.fun),
        fun_args: Stored::of(outcome.fun_args),
        out: Stored::of(outcome.out),
        failed: answer.failed(),
        bus_only: answer.is_bus_only(),
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

pub(super) fn job_states(ctx: &ReadCtx<'_>, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let jid = args.required_id("jid")?;
    let page = Page::of(args)?;
    let [id, fun, sls] = [glob(args, "id")?, glob(args, "fun")?, glob(args, "sls")?];

    // An unknown word must not select every state.
    let expected = "succeeded, failed, none, or changed";
    let wanted = match args.text("result")? {
        None => None,
        Some(name @ ("succeeded" | "failed" | "none" | "changed")) => Some(name),
        Some(_) => {
            return Err(CallError::BadArgs {
                key: "result",
                expected,
            });
        }
    };

    // nil, which HTTP turns into 404.
    let Some((_, job)) = find(ctx, &jid)? else {
        return document(&());
    };

    let passes = |row: &StateRow<'_>| {
        let matches =
            |glob: &Option<Glob>, text| glob.as_ref().is_none_or(|glob| glob.matches(text));
        let result = match wanted {
            Some("succeeded") => row.result == Some(true),
            Some("failed") => row.result == Some(false),
            Some("changed") => row.changed(),
            Some(_) => row.result.is_none(),
            None => true,
        };

        result
            && matches(&id, row.id)
            && matches(&fun, &row.fun)
            && matches(&sls, row.sls.unwrap_or_default())
    };

    let read = |wanted: &BTreeSet<&str>| Ok([read_of(ctx, &jid, wanted)?, None]);
    let (states, next) = page.walk(job.answers.keys(), read, |minion, [job, _]| {
        let answer = job.as_ref().and_then(|job| job.answers.get(minion));
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

    document(&StatesPage {
        jid,
        states,
        more: next.is_some(),
        next,
    })
}

pub(super) fn job_diff(ctx: &ReadCtx<'_>, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let later = args.required_id("jid")?;
    let page = Page::of(args)?;

    let unknown = |jid: &str| CallError::Refused(format!("unknown job {jid}"));
    // The job that is named is the later run; without `with` the run before it is looked for.
    let (b_listed, b) = find(ctx, &later)?.ok_or_else(|| unknown(&later))?;
    let earlier = match args.id("with")? {
        Some(jid) => jid,
        None => previous_run(&ctx.store, &b, &b_listed.row)
            .map_err(failed)?
            .ok_or_else(|| {
                CallError::Refused(format!(
                    "no earlier run of job {later} found; name the job to compare with"
                ))
            })?,
    };
    let (a_listed, a) = find(ctx, &earlier)?.ok_or_else(|| unknown(&earlier))?;

    let minions: BTreeSet<&String> = a.answers.keys().chain(b.answers.keys()).collect();
    let read = |wanted: &BTreeSet<&str>| {
        Ok([
            read_of(ctx, &earlier, wanted)?,
            read_of(ctx, &later, wanted)?,
        ])
    };

    let mut same = 0_u64;
    // Each page counts its own minions.
    let (minions, next) = page.walk(minions.into_iter(), read, |minion, jobs| {
        let [a, b] = jobs
            .each_ref()
            .map(|job| job.as_ref().and_then(|job| job.answers.get(minion)));
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
    document(&JobDiff {
        a,
        b,
        same,
        minions,
        more: next.is_some(),
        next,
    })
}

fn difference(found: &Difference<'_>) -> MinionDiff {
    let outcome = |answer: &Answer| {
        let outcome = answer.outcome();
        RunOutcome {
            failed: answer.failed(),
            retcode: Stored::of(outcome.retcode),
            success: Stored::of(outcome.success),
            // The states are listed one by one, so the value that has them all is left out.
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
            what: state.kind.name().to_owned(),
            a,
            b,
        }
    };

    let states = found.states.iter().map(state).collect();
    MinionDiff {
        minion: found.minion.to_owned(),
        what: found.kind.name().to_owned(),
        a,
        b,
        states,
    }
}

#[derive(serde::Deserialize)]
struct WatchArgs {
    from: Option<u64>,
    wait_ms: Option<u64>,
}

pub(super) fn job_watch(ctx: &ReadCtx<'_>, args: &Args<'_>) -> Result<Poll, CallError> {
    let jid = args.required_id("jid")?;
    let WatchArgs { from, wait_ms } = typed(args)?;

    let mut from = SeqNo(from.unwrap_or(0)).max(SeqNo::FIRST);
    let answer = move |ctx: &ReadCtx<'_>, is_last: bool| {
        let found = job_changes(&ctx.store, &jid, from).map_err(failed)?;
        from = found.next;
        let has_changes = found.job.is_some() || !found.steps.is_empty() || found.ended;
        // At the end of the wait an empty answer tells the caller how far it has read.
        if has_changes || is_last {
            return Ok(Attempt::Done(document(&update_of(found))?));
        }
        Ok(Attempt::After(from))
    };

    Ok(Poll::limited(ctx, wait_ms, WATCH_GATHER, answer))
}

fn update_of(found: JobChanges) -> JobUpdate {
    let known = found.job.is_some();
    let job = found.job.unwrap_or_default();
    let fun = msgpack::get(&job.load, "fun");
    // A target without a function is that of a stand-in for a load.
    let tgt = msgpack::get(&job.load, "tgt").filter(|_| fun.is_some());

    let answer = |answer: &Answer| NewReturn {
        minion: answer.entry.minion.clone(),
        seq: answer.entry.seq.0,
        time: Time(answer.entry.at),
        retcode: answer.code(),
        failed: answer.failed(),
        bus_only: answer.is_bus_only(),
    };

    let step = |step: &ProgressEvent| Step {
        minion: Some(step.entry.minion.clone()).filter(|minion| !minion.is_empty()),
        seq: step.entry.seq.0,
        time: Time(step.entry.at),
        data: Stored::of_data(step.value()),
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
