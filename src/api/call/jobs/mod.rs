//! Calls about jobs: lists, one job, its states, the difference between two runs, and changes of a job.
//!
//! Long answers are paged: by job in a list, by minion within a job. Filters are evaluated here.

pub(super) mod minions;

use std::collections::BTreeSet;

use super::cache::load_with_minions;
use super::lists::{Map, glob, limit, time};
use super::poll::{Attempt, Poll};
use super::{Caller, Ctx, failed, typed};
use crate::api::query::{
    Answer, Difference, Job, JobChanges, JobFilter, JobResult, ListedJob, PageLimits, StateRow, children,
    diff, job_changes, jobs_before, parent, previous_run, row_load, state_rows,
};
use crate::base::clock::Micros;
use crate::base::limits::{LIST_BYTES_MAX, LIST_ROWS_MAX, PAGE_MINIONS, WATCH_GATHER};
use crate::model::{Glob, JidKey, SeqNo};
use crate::store::JobSummary;
use crate::wire::call::{Args, CallError};
use crate::wire::msgpack::{self, Writer, as_text};

fn result(args: &Args<'_>) -> Result<Option<JobResult>, CallError> {
    let expected = "failed, succeeded, missing or changed";
    let named = args.text("result")?.map(JobResult::of);
    named.map(|result| result.ok_or(CallError::BadArgs { key: "result", expected })).transpose()
}

pub(super) fn jobs_list(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let metadata = args.raw("metadata").unwrap_or(&[0x80]);
    if msgpack::Reader::new(metadata).map().is_err() {
        return Err(CallError::BadArgs { key: "metadata", expected: "a map of key to glob" });
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
    let mut map = Map::default();
    let list = map.key("jobs").array(page.jobs.len());
    for listed in &page.jobs {
        let job = Job::read_load(&ctx.store, &listed.row.jid).map_err(failed)?.unwrap_or_default();
        job_row(ctx, listed, &job)?.write(list);
    }
    map.key("more").bool(page.more);
    if let Some(last) = page.last.filter(|_| page.more) {
        map.key("next").str(&last);
    }
    Ok(map.into_bytes())
}

fn job_row(ctx: &Ctx, listed: &ListedJob, job: &Job) -> Result<Map, CallError> {
    let row = row_load(&ctx.store, &listed.row).map_err(failed)?;
    let totals = job.totals();
    let mut map = Map::default();
    map.key("jid").str(&row.jid);
    map.key("time").int(listed.at.0);
    map.raw_or_nil("fun", Some(&row.fun));
    // For a job known by its returns only, a return provides arguments and target.
    let args = if row.arg.is_empty() { job.result_args() } else { Some(row.arg.as_slice()) };
    map.raw_or_nil("arg", args);
    let id = || msgpack::get(&job.load, "id");
    map.raw_or_nil("tgt", if row.tgt.is_empty() { id() } else { Some(&row.tgt) });
    map.raw_or_nil("tgt_type", Some(&row.tgt_type));
    map.raw_or_nil("user", Some(&row.user));
    count_or_nil(&mut map, "expected", totals.expected);
    map.key("returned").uint(totals.returned as u64);
    map.key("failed").uint(totals.failed as u64);
    map.key("succeeded").uint(totals.returned.saturating_sub(totals.failed) as u64);
    count_or_nil(&mut map, "missing_count", totals.missing);
    map.key("bus_only").uint(totals.bus_only as u64);
    let codes = map.key("retcodes").map(totals.retcodes.len());
    for (code, count) in &totals.retcodes {
        codes.str(&code.to_string()).uint(*count);
    }
    if let (Some(first), Some(last)) = (totals.first, totals.last) {
        map.key("first_answer").int(first.0);
        map.key("last_answer").int(last.0);
        map.key("duration_us").int(last.0.saturating_sub(listed.at.0).max(0));
    }
    map.text_unless_empty("endtime", &row.endtime);
    map.raw_if_any("metadata", Some(&row.metadata));
    Ok(map)
}

fn count_or_nil(map: &mut Map, key: &str, count: Option<usize>) {
    match count {
        Some(count) => map.key(key).uint(count as u64),
        None => map.key(key).nil(),
    };
}

fn started(row: &JobSummary) -> Micros {
    JidKey::of(&row.jid).time().unwrap_or(Micros(row.first_at))
}

/// A job and its summary; `None` if unknown.
fn find(ctx: &Ctx, jid: &str) -> Result<Option<(ListedJob, Job)>, CallError> {
    let row = ctx.store.job_row(jid).map_err(failed)?;
    let job = Job::read_load(&ctx.store, jid).map_err(failed)?;
    Ok(row.zip(job).map(|(row, job)| (ListedJob { at: started(&row), row }, job)))
}

/// A page of the minions of a job.
struct Page<'a> {
    after: Option<&'a str>,
    minion: Option<Glob>,
    rows: usize,
}

impl<'a> Page<'a> {
    fn of(args: &Args<'a>) -> Result<Self, CallError> {
        let rows = args.count("limit")?.unwrap_or(LIST_ROWS_MAX).min(LIST_ROWS_MAX);
        Ok(Self { after: args.text("after")?, minion: glob(args, "minion")?, rows })
    }

    /// Passes the minions of this page to `write`, which returns the number of rows it wrote, until the page has enough rows
    /// or bytes. Returns the last minion if more follow.
    fn walk(
        &self,
        minions: impl Iterator<Item = &'a String>,
        list: &mut Writer,
        read: impl Fn(&BTreeSet<&str>) -> Result<[Option<Job>; 2], CallError>,
        mut write: impl FnMut(&str, &[Option<Job>; 2], &mut Writer) -> usize,
    ) -> Result<(usize, Option<String>), CallError> {
        let is_meant = |id: &&String| {
            self.after.is_none_or(|after| id.as_str() > after)
                && self.minion.as_ref().is_none_or(|glob| glob.matches(id))
        };
        let minions: Vec<&str> = minions.filter(is_meant).map(String::as_str).collect();
        let (mut rows, mut last) = (0, self.after);
        for part in minions.chunks(PAGE_MINIONS) {
            if rows >= self.rows {
                return Ok((rows, Some(last.unwrap_or_default().to_owned())));
            }
            let jobs = read(&part.iter().copied().collect())?;
            for &minion in part {
                if rows >= self.rows || list.len() >= LIST_BYTES_MAX {
                    return Ok((rows, Some(last.unwrap_or_default().to_owned())));
                }
                rows += write(minion, &jobs, list);
                last = Some(minion);
            }
        }
        Ok((rows, None))
    }
}

fn end_page(map: &mut Map, next: Option<String>) {
    map.key("more").bool(next.is_some());
    if let Some(next) = next {
        map.key("next").str(&next);
    }
}

fn write_list(map: &mut Map, key: &str, rows: usize, list: Writer) {
    map.key(key).array(rows).raw(&list.into_bytes());
}

pub(super) fn job_show(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let jid = args.required_id("jid")?;
    let (page, result) = (Page::of(args)?, result(args)?);
    let Some((listed, job)) = find(ctx, &jid)? else { return Ok(vec![0xc0]) };
    let mut map = job_row(ctx, &listed, &job)?;
    if job.load_rank > 0 {
        load_with_minions(map.key("load"), &job);
    } else {
        map.key("load").nil();
    }
    let minions = map.key("minions").array(job.minions.as_ref().map_or(0, BTreeSet::len));
    for id in job.minions.iter().flatten() {
        minions.str(id);
    }
    let missing = job.missing();
    let list = map.key("missing").array(missing.len());
    for id in missing {
        list.str(id);
    }
    let list = map.key("not_confirmed").array(job.bus_only.len());
    for id in &job.bus_only {
        list.str(id);
    }
    map.key("nocache").bool(job.nocache);
    let found =
        if args.flag("links")? { parent(&ctx.store, &job).map_err(failed)? } else { job.parent.clone() };
    if let Some(parent) = found {
        map.key("parent").str(&parent);
    }
    let started = children(&job);
    if !started.is_empty() {
        let list = map.key("children").array(started.len());
        for child in started {
            list.map(5).str("jid").str(&child.jid).str("id").str(&child.id).str("fun").str(&child.fun);
            list.str("name").str(&child.name).str("result");
            truth(list, child.result);
        }
    }
    let mut list = Writer::new();
    let read = |wanted: &BTreeSet<&str>| Ok([read_of(ctx, &jid, wanted)?, None]);
    let all = &job;
    let (rows, next) = page.walk(job.answers.keys(), &mut list, read, |minion, [job, _], list| {
        let answer = job.as_ref().and_then(|job| job.answers.get(minion));
        let answer = answer.filter(|answer| match result {
            Some(JobResult::Failed) => answer.failed(),
            Some(JobResult::Succeeded) => !answer.failed(),
            Some(JobResult::Changed) => state_rows(answer).iter().any(StateRow::changed),
            Some(JobResult::Missing) => false,
            None => true,
        });
        let Some(answer) = answer else { return 0 };
        let mut shown = answer_map(answer);
        if all.is_not_targeted(minion) {
            shown.key("not_targeted").bool(true);
        }
        shown.write(list);
        1
    })?;
    write_list(&mut map, "returns", rows, list);
    end_page(&mut map, next);
    Ok(map.into_bytes())
}

fn read_of(ctx: &Ctx, jid: &str, wanted: &BTreeSet<&str>) -> Result<Option<Job>, CallError> {
    Job::read_of(&ctx.store, jid, |minion| wanted.contains(minion)).map_err(failed)
}

fn truth(w: &mut Writer, value: Option<bool>) {
    match value {
        Some(value) => w.bool(value),
        None => w.nil(),
    };
}

/// An answer for display: the keys of the return, and derived values.
fn answer_map(answer: &Answer) -> Map {
    let mut map = Map::default();
    map.key("minion").str(&answer.entry.minion);
    map.key("seq").uint(answer.entry.seq.0);
    map.key("time").int(answer.entry.at.0);
    map.raw_or_nil("return", answer.get("return"));
    let outcome = answer.outcome();
    map.raw_if_any("retcode", outcome.retcode);
    map.raw_if_any("success", outcome.success);
    map.raw_or_nil("fun", outcome.fun);
    map.raw_if_any("fun_args", outcome.fun_args);
    map.raw_if_any("out", outcome.out);
    map.key("failed").bool(answer.failed());
    map.key("bus_only").bool(answer.is_bus_only());
    map.key("duplicates").uint(answer.duplicates);
    if !answer.others.is_empty() {
        let list = map.key("others").array(answer.others.len());
        for other in &answer.others {
            let get = |key| msgpack::get(&other.body, key);
            let mut one = Map::default();
            one.key("seq").uint(other.seq.0);
            one.key("time").int(other.at.0);
            one.raw_or_nil("return", get("return"));
            one.raw_if_any("retcode", get("retcode"));
            one.raw_if_any("success", get("success"));
            one.write(list);
        }
    }
    map
}

fn state_map(row: &StateRow<'_>) -> Map {
    let mut map = Map::default();
    map.key("minion").str(row.minion);
    map.key("id").str(row.id);
    map.key("name").str(row.name);
    map.key("fun").str(&row.fun);
    match row.sls {
        Some(sls) => map.key("sls").str(sls),
        None => map.key("sls").nil(),
    };
    truth(map.key("result"), row.result);
    map.key("changed").bool(row.changed());
    map.raw_or_nil("changes", row.changes);
    map.raw_or_nil("comment", row.comment);
    match row.duration {
        Some(duration) => map.key("duration_ms").float(duration),
        None => map.key("duration_ms").nil(),
    };
    map.text_unless_empty("start_time", row.start_time.unwrap_or_default());
    match row.run_num {
        Some(run_num) => map.key("run_num").int(run_num),
        None => map.key("run_num").nil(),
    };
    map.text_unless_empty("job", row.job.unwrap_or_default());
    map
}

pub(super) fn job_states(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let jid = args.required_id("jid")?;
    let page = Page::of(args)?;
    let [id, fun, sls] = [glob(args, "id")?, glob(args, "fun")?, glob(args, "sls")?];
    let expected = "succeeded, failed, none, or changed";
    let wanted = match args.text("result")? {
        None => None,
        Some(name @ ("succeeded" | "failed" | "none" | "changed")) => Some(name),
        Some(_) => return Err(CallError::BadArgs { key: "result", expected }),
    };
    let Some((_, job)) = find(ctx, &jid)? else { return Ok(vec![0xc0]) };
    let passes = |row: &StateRow<'_>| {
        let matches = |glob: &Option<Glob>, text| glob.as_ref().is_none_or(|glob| glob.matches(text));
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
    let mut list = Writer::new();
    let read = |wanted: &BTreeSet<&str>| Ok([read_of(ctx, &jid, wanted)?, None]);
    let (rows, next) = page.walk(job.answers.keys(), &mut list, read, |minion, [job, _], list| {
        let Some(answer) = job.as_ref().and_then(|job| job.answers.get(minion)) else { return 0 };
        let rows = state_rows(answer);
        rows.iter().filter(|row| passes(row)).map(|row| state_map(row).write(list)).count()
    })?;
    let mut map = Map::default();
    map.key("jid").str(&jid);
    write_list(&mut map, "states", rows, list);
    end_page(&mut map, next);
    Ok(map.into_bytes())
}

pub(super) fn job_diff(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let later = args.required_id("jid")?;
    let page = Page::of(args)?;
    let unknown = |jid: &str| CallError::Refused(format!("unknown job {jid}"));
    let (b_listed, b) = find(ctx, &later)?.ok_or_else(|| unknown(&later))?;
    let earlier = match args.id("with")? {
        Some(jid) => jid,
        None => previous_run(&ctx.store, &b, &b_listed.row).map_err(failed)?.ok_or_else(|| {
            CallError::Refused(format!("no earlier run of job {later} found; name the job to compare with"))
        })?,
    };
    let (a_listed, a) = find(ctx, &earlier)?.ok_or_else(|| unknown(&earlier))?;
    let minions: BTreeSet<&String> = a.answers.keys().chain(b.answers.keys()).collect();
    let mut list = Writer::new();
    let read = |wanted: &BTreeSet<&str>| Ok([read_of(ctx, &earlier, wanted)?, read_of(ctx, &later, wanted)?]);
    let mut same = 0_u64;
    let (rows, next) = page.walk(minions.into_iter(), &mut list, read, |minion, [a, b], list| {
        let answer = |job: &'_ Option<Job>| job.as_ref().and_then(|job| job.answers.get(minion)).cloned();
        let (a, b) = (answer(a), answer(b));
        let Some(found) = diff(minion, a.as_ref(), b.as_ref()) else {
            same += 1;
            return 0;
        };
        difference_map(&found).write(list);
        1
    })?;
    let mut map = Map::default();
    let mut one = |key: &str, listed: &ListedJob, job: &Job| -> Result<(), CallError> {
        job_row(ctx, listed, job)?.write(map.key(key));
        Ok(())
    };
    one("a", &a_listed, &a)?;
    one("b", &b_listed, &b)?;
    map.key("same").uint(same);
    write_list(&mut map, "minions", rows, list);
    end_page(&mut map, next);
    Ok(map.into_bytes())
}

fn difference_map(found: &Difference<'_>) -> Map {
    let mut map = Map::default();
    map.key("minion").str(found.minion);
    map.key("what").str(found.kind.name());
    for (key, answer) in ["a", "b"].into_iter().zip(found.answers) {
        let Some(answer) = answer else { continue };
        let outcome = answer.outcome();
        let mut one = Map::default();
        one.key("failed").bool(answer.failed());
        one.raw_if_any("retcode", outcome.retcode);
        one.raw_if_any("success", outcome.success);
        // States are listed one by one.
        if found.states.is_empty() {
            one.raw_or_nil("return", outcome.value);
        }
        one.write(map.key(key));
    }
    if !found.states.is_empty() {
        let list = map.key("states").array(found.states.len());
        for state in &found.states {
            let mut one = Map::default();
            one.key("what").str(state.kind.name());
            for (key, row) in ["a", "b"].into_iter().zip(&state.rows) {
                if let Some(row) = row {
                    state_map(row).write(one.key(key));
                }
            }
            one.write(list);
        }
    }
    map
}

#[derive(serde::Deserialize)]
struct WatchArgs {
    from: Option<u64>,
    wait_ms: Option<u64>,
}

pub(super) fn job_watch(_: &Ctx, args: &Args<'_>, _: Caller) -> Result<Poll, CallError> {
    let jid = args.required_id("jid")?;
    let WatchArgs { from, wait_ms } = typed(args)?;
    let mut from = SeqNo(from.unwrap_or(0)).max(SeqNo::FIRST);
    Ok(Poll::new(wait_ms, WATCH_GATHER, move |ctx, is_last| {
        let found = job_changes(&ctx.store, &jid, from).map_err(failed)?;
        from = found.next;
        let has_changes = found.job.is_some() || !found.steps.is_empty() || found.ended;
        if has_changes || is_last {
            return Ok(Attempt::Done(changes_answer(&found)));
        }
        Ok(Attempt::After(from))
    }))
}

fn changes_answer(found: &JobChanges) -> Vec<u8> {
    let mut map = Map::default();
    map.key("next").uint(found.next.0);
    map.key("ended").bool(found.ended);
    let unknown = Job::default();
    let job = found.job.as_ref().unwrap_or(&unknown);
    map.key("known").bool(found.job.is_some());
    match &job.minions {
        Some(minions) => {
            let list = map.key("minions").array(minions.len());
            for id in minions {
                list.str(id);
            }
        }
        None => {
            map.key("minions").nil();
        }
    }
    let fun = msgpack::get(&job.load, "fun");
    map.raw_if_any("fun", fun);
    map.raw_if_any("tgt", msgpack::get(&job.load, "tgt").filter(|_| fun.is_some()));
    let list = map.key("answers").array(job.answers.len());
    for answer in job.answers.values() {
        let mut one = Map::default();
        one.key("minion").str(&answer.entry.minion);
        one.key("seq").uint(answer.entry.seq.0);
        one.key("time").int(answer.entry.at.0);
        if let Some(code) = answer.code() {
            one.key("retcode").int(code);
        }
        one.key("failed").bool(answer.failed());
        one.key("bus_only").bool(answer.is_bus_only());
        one.write(list);
    }
    let list = map.key("steps").array(found.steps.len());
    for step in &found.steps {
        let mut one = Map::default();
        one.text_unless_empty("minion", &step.entry.minion);
        one.key("seq").uint(step.entry.seq.0);
        one.key("time").int(step.entry.at.0);
        one.data(step.value());
        one.write(list);
    }
    map.into_bytes()
}
