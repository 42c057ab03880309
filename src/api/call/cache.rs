//! Calls of the job cache, with the responses that Salt relies on (`salt/returners/local_cache.py`,
//! `salt/utils/jid.py`).

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Archive, Call, In, Limited, NoArgs, OF_JOBS, OF_MINIONS, ReadCtx, Run, Whole, failed};
use crate::api::query::{
    Answer, Job, JobFilter, ListedJob, PageLimits, each_job_before, jobs_before, last_jobs,
    row_load,
};
use crate::base::limits::WIRE_ANSWER_BYTES_MAX;
use crate::model::{Limit, start_time};
use crate::store::{JobSummary, StoreError};
use crate::wire::call::{ANSWER_HEAD_BYTES_MAX, CallError, Id};
use crate::wire::msgpack::{self, Reader, Stored, Writer};

/// `get_load`.
pub(crate) struct GetLoad;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct JobArgs {
    /// The job's id
    pub(crate) jid: Id,
}

impl Call for GetLoad {
    const NAME: &'static str = "get_load";
    const DOC: &'static str = "Return a job as published, with its minions";
    const APPLIES: &'static [Limit] = OF_JOBS;
    type Scope = Limited;
    type Args<'a> = JobArgs;
    type Answer = Stored;
}

impl Run for GetLoad {
    fn run(ctx: &In<'_, Self>, args: JobArgs) -> Result<Stored, CallError> {
        let job = Job::read_load(&ctx.store, &args.jid.0).map_err(failed)?;
        // Salt's cache contains a load only if one was published: the stand-in made from returns is
        // not one.
        let job = job.filter(|job| job.load_rank > 0);

        let mut w = Writer::new();
        match &job {
            Some(job) => load_with_minions(&mut w, job.own_load(), job),
            // As `salt` expects for an unknown job.
            None => {
                w.map(0);
            }
        }
        Ok(Stored::Packed(w.into_bytes()))
    }
}

pub(super) fn load_with_minions(w: &mut Writer, load: &[u8], job: &Job) {
    let minions = job.minions.as_ref().filter(|minions| !minions.is_empty());
    // Salt adds `Minions` when it reads a load, so one within the stored load is outdated.
    let is_minions = |key: &[u8]| minions.is_some() && msgpack::as_text(key) == Some("Minions");
    let pairs: Vec<_> = msgpack::pairs(load)
        .filter(|(key, _)| !is_minions(key))
        .collect();

    w.map(pairs.len() + usize::from(minions.is_some()));
    for (key, value) in pairs {
        w.raw(key).raw(value);
    }

    if let Some(minions) = minions {
        w.str("Minions").array(minions.len());
        for id in minions {
            w.str(id);
        }
    }
}

/// Reads a job without the content of its returns; with `confirmed` only those confirmed by a returner call.
fn job_of(ctx: &ReadCtx<'_>, jid: &str, confirmed: bool) -> Result<Job, CallError> {
    let mut job = Job::read_heads(&ctx.store, jid)
        .map_err(failed)?
        .unwrap_or_default();
    ctx.others.settle(&mut job);
    if confirmed {
        job.keep_confirmed();
    }
    Ok(job)
}

/// Key added to a return that was seen on a bus only.
const BUS_ONLY: &str = "bus_only";

/// A map of returns by minion. Salt expects all of them in one response, which is therefore whole in memory, up to the largest that a
/// client takes. The returns themselves are not.
#[derive(Default)]
struct ReturnsMap {
    values: BTreeMap<String, Vec<u8>>,
    bytes: usize,
}

impl ReturnsMap {
    /// Adds the answers of these minions, as `write` writes them.
    fn add(
        &mut self,
        ctx: &ReadCtx<'_>,
        (job, minions): (&Job, &[&str]),
        mut write: impl FnMut(&mut Writer, &Answer),
    ) -> Result<(), CallError> {
        let mut is_too_long = false;
        let take = |answer: &Answer| {
            let mut w = Writer::new();
            write(&mut w, answer);
            let (minion, value) = (answer.entry.minion.clone(), w.into_bytes());
            self.bytes += ID_HEAD_BYTES_MAX + minion.len() + value.len();
            self.values.insert(minion, value);
            is_too_long = self.bytes > WIRE_ANSWER_BYTES_MAX;
            is_too_long
        };
        job.any_answer(&ctx.store, &ctx.others, minions, take)
            .map_err(failed)?;

        if is_too_long {
            return Err(CallError::Refused(format!(
                "the returns have more than {WIRE_ANSWER_BYTES_MAX} bytes, the limit of a response: read the job in pages (job_show)"
            )));
        }
        Ok(())
    }

    fn into_bytes(mut self) -> Vec<u8> {
        let mut w = Writer::behind(Vec::with_capacity(self.bytes + MAP_HEAD_BYTES));
        w.map(self.values.len());
        // Each is dropped as soon as it is copied, and memory that is not written yet costs nothing.
        while let Some((minion, value)) = self.values.pop_first() {
            w.str(&minion).raw(&value);
        }
        w.into_bytes()
    }
}

/// Bytes of the header of a string.
const ID_HEAD_BYTES_MAX: usize = 5;

/// Room for the header of a map, and for that of the frame, which the socket puts in front.
const MAP_HEAD_BYTES: usize = 5 + ANSWER_HEAD_BYTES_MAX;

/// Writes the whole return, marked if it was seen on a bus only.
fn whole_return(w: &mut Writer, answer: &Answer) {
    let body = &answer.entry.body;
    // A return that is not a map has no place for the mark.
    if !answer.is_bus_only() || Reader::new(body).map().is_err() {
        w.raw(body);
        return;
    }

    let pairs: Vec<_> = msgpack::pairs(body).collect();
    w.map(pairs.len() + 1);
    for (key, value) in pairs {
        w.raw(key).raw(value);
    }
    w.str(BUS_ONLY).bool(true);
}

/// `get_jid`.
pub(crate) struct GetJid;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ReturnsArgs {
    /// The job's id
    pub(crate) jid: Id,
    /// Only returns that a returner call brought
    #[serde(default)]
    pub(crate) confirmed: bool,
    /// The whole returns
    #[serde(default)]
    pub(crate) full: bool,
}

impl Call for GetJid {
    const NAME: &'static str = "get_jid";
    const DOC: &'static str = "Return the returns of a job by minion: all of them, of up to 1 GiB";
    const APPLIES: &'static [Limit] = OF_JOBS;
    type Scope = Limited;
    type Args<'a> = ReturnsArgs;
    type Answer = Stored;
}

impl Run for GetJid {
    fn run(ctx: &In<'_, Self>, args: ReturnsArgs) -> Result<Stored, CallError> {
        let job = job_of(ctx, &args.jid.0, args.confirmed)?;
        let mut returns = ReturnsMap::default();
        returns.add(ctx, (&job, &job.cached()), |w, answer| {
            if args.full {
                whole_return(w, answer);
                return;
            }
            // A single pass over the return, which can be long. The first of equal keys counts.
            let mut kept: [(&str, Option<&[u8]>); 4] =
                ["return", "retcode", "success", "out"].map(|key| (key, None));
            for (key, value) in msgpack::pairs(&answer.entry.body) {
                let key = msgpack::as_text(key);
                if let Some((_, place)) = kept.iter_mut().find(|(name, _)| Some(*name) == key) {
                    place.get_or_insert(value);
                }
            }

            let bus_only = answer.is_bus_only();
            let known = kept.iter().filter(|(_, value)| value.is_some()).count();
            w.map(known + usize::from(bus_only));

            for (key, value) in kept {
                if let Some(value) = value {
                    w.str(key).raw(value);
                }
            }

            if bus_only {
                w.str(BUS_ONLY).bool(true);
            }
        })?;
        Ok(Stored::Packed(returns.into_bytes()))
    }
}

/// `get_jids`.
pub(crate) struct GetJids;

impl Call for GetJids {
    const NAME: &'static str = "get_jids";
    const DOC: &'static str = "List all jobs";
    const APPLIES: &'static [Limit] = OF_JOBS;
    type Scope = Limited;
    type Args<'a> = NoArgs;
    type Answer = Stored;
}

impl Run for GetJids {
    fn run(ctx: &In<'_, Self>, _: NoArgs) -> Result<Stored, CallError> {
        let filter = JobFilter {
            include_polling: true,
            ..JobFilter::default()
        };

        let mut answer = Backwards::default();
        let mut scratch = Vec::new();
        each_job_before(
            &ctx.store,
            &filter,
            None,
            PageLimits::of_rows(usize::MAX),
            |ListedJob { row, .. }| {
                // One buffer for all jobs: a million of them must not mean a million allocations.
                let mut w = Writer::behind(std::mem::take(&mut scratch));
                w.str(&row.jid);
                instance(ctx, &mut w, &row, false)?;

                scratch = w.into_bytes();
                // The first jobs determine how much memory all of them need: growing by doubling would
                // hold twice the response.
                if answer.pairs == JOBS_MEASURED {
                    answer.reserve_for(ctx.store.jobs_at_most());
                }

                answer.put(&scratch);
                scratch.clear();
                Ok(())
            },
        )
        .map_err(failed)?;

        Ok(Stored::Packed(answer.into_bytes()))
    }
}

/// Number of jobs from which the average size is estimated.
const JOBS_MEASURED: usize = 1000;

/// A map built from its end: jobs are listed the latest first and returned the earliest first. It
/// exists in memory once, because it can have 136 MB.
#[derive(Default)]
struct Backwards {
    /// From the last byte to the first.
    bytes: Vec<u8>,
    pairs: usize,
}

impl Backwards {
    /// Prepends a pair.
    fn put(&mut self, pair: &[u8]) {
        self.bytes.extend(pair.iter().rev());
        self.pairs += 1;
    }

    /// Reserves memory for `pairs` pairs of the average size so far; unused memory is never
    /// touched.
    fn reserve_for(&mut self, pairs: u64) {
        let each = self.bytes.len() as u64 / self.pairs.max(1) as u64 + 1;
        let bytes = pairs
            // A sixteenth more, because later jobs may be longer than the first jobs.
            .saturating_mul(each + each / 16)
            .min(WIRE_ANSWER_BYTES_MAX as u64);

        let more = usize::try_from(bytes)
            .unwrap_or(0)
            .saturating_sub(self.bytes.len());
        self.bytes.reserve_exact(more);
    }

    fn into_bytes(mut self) -> Vec<u8> {
        let mut head = Writer::new();
        head.map(self.pairs);
        self.bytes.reserve(MAP_HEAD_BYTES);

        self.bytes.extend(head.into_bytes().iter().rev());
        self.bytes.reverse();
        self.bytes
    }
}

/// `get_jids_filter`.
pub(crate) struct GetJidsFilter;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct NewestArgs {
    /// Number of jobs
    pub(crate) count: Option<i64>,
    /// Without jobs of saltutil.find_job
    #[serde(default)]
    pub(crate) filter_find_job: bool,
}

impl Call for GetJidsFilter {
    const NAME: &'static str = "get_jids_filter";
    const DOC: &'static str = "List the newest jobs";
    const APPLIES: &'static [Limit] = OF_JOBS;
    type Scope = Limited;
    type Args<'a> = NewestArgs;
    type Answer = Stored;
}

impl Run for GetJidsFilter {
    fn run(ctx: &In<'_, Self>, args: NewestArgs) -> Result<Stored, CallError> {
        // Salt may pass any integer; a negative count means no job.
        let count = usize::try_from(args.count.unwrap_or(0)).unwrap_or(0);

        let filter = JobFilter {
            include_polling: !args.filter_find_job,
            ..JobFilter::default()
        };

        let jobs = jobs_before(&ctx.store, &filter, None, PageLimits::of_rows(count))
            .map_err(failed)?
            .jobs;

        let mut w = Writer::new();
        w.array(jobs.len());
        // The newest are selected, and returned the earliest first as in Salt.
        for listed in jobs.iter().rev() {
            instance(ctx, &mut w, &listed.row, true).map_err(failed)?;
        }
        Ok(Stored::Packed(w.into_bytes()))
    }
}

/// Salt's `format_jid_instance`, with its default message for missing values of a load.
fn instance(
    ctx: &ReadCtx<'_>,
    w: &mut Writer,
    row: &JobSummary,
    with_jid: bool,
) -> Result<(), StoreError> {
    // The row of a job that is in several segments may lack values of the load.
    let row = row_load(&ctx.store, row)?;

    let optional = [!row.metadata.is_empty(), with_jid, !row.endtime.is_empty()];
    w.map(6 + optional.iter().filter(|there| **there).count());

    let or_str = |w: &mut Writer, key: &str, value: &[u8], default: &str| {
        w.str(key);
        if value.is_empty() {
            w.str(default)
        } else {
            w.raw(value)
        };
    };

    or_str(w, "Function", &row.fun, "unknown-function");
    w.str("Arguments");
    // A load may have any value here, and Salt expects a list.
    if Reader::new(&row.arg).array().is_ok() {
        w.raw(&row.arg)
    } else {
        w.array(0)
    };

    or_str(w, "Target", &row.tgt, "unknown-target");
    or_str(w, "Target-type", &row.tgt_type, "list");
    or_str(w, "User", &row.user, "root");

    if !row.metadata.is_empty() {
        w.str("Metadata").raw(&row.metadata);
    }
    if with_jid {
        w.str("JID").str(&row.jid);
    }

    w.str("StartTime").str(&start_time(&row.jid));
    if !row.endtime.is_empty() {
        w.str("EndTime").str(&row.endtime);
    }

    Ok(())
}

/// `get_fun`.
pub(crate) struct GetFun;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct FunArgs {
    /// The function
    pub(crate) fun: String,
    /// Only returns that a returner call brought
    #[serde(default)]
    pub(crate) confirmed: bool,
    /// The whole returns
    #[serde(default)]
    pub(crate) full: bool,
}

impl Call for GetFun {
    const NAME: &'static str = "get_fun";
    const DOC: &'static str = "Return the last job of a function per minion";
    const APPLIES: &'static [Limit] = OF_JOBS;
    type Scope = Limited;
    type Args<'a> = FunArgs;
    type Answer = Stored;
}

impl Run for GetFun {
    fn run(ctx: &In<'_, Self>, args: FunArgs) -> Result<Stored, CallError> {
        let latest = last_jobs(&ctx.store, &args.fun, args.confirmed).map_err(failed)?;
        if args.full {
            return full_returns(ctx, args.confirmed, latest);
        }

        let mut w = Writer::new();
        w.map(latest.len());
        for (minion, jid) in &latest {
            w.str(minion).str(jid);
        }
        Ok(Stored::Packed(w.into_bytes()))
    }
}

/// The return of each minion for the job given with it.
fn full_returns(
    ctx: &ReadCtx<'_>,
    confirmed: bool,
    whose: BTreeMap<String, String>,
) -> Result<Stored, CallError> {
    // Minions mostly share their last job, and a job is read once for all of them.
    let mut by_job = BTreeMap::<String, Vec<String>>::new();
    for (minion, jid) in whose {
        by_job.entry(jid).or_default().push(minion);
    }

    let mut returns = ReturnsMap::default();
    for (jid, minions) in by_job {
        let job = job_of(ctx, &jid, confirmed)?;
        let minions: Vec<&str> = minions.iter().map(String::as_str).collect();
        returns.add(ctx, (&job, &minions), whole_return)?;
    }
    Ok(Stored::Packed(returns.into_bytes()))
}

/// `get_minions`.
pub(crate) struct GetMinions;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct MinionsArgs {
    /// Only returns that a returner call brought
    #[serde(default)]
    pub(crate) confirmed: bool,
}

impl Call for GetMinions {
    const NAME: &'static str = "get_minions";
    const DOC: &'static str = "List the minions that have returned a job";
    const APPLIES: &'static [Limit] = OF_MINIONS;
    type Scope = Limited;
    type Args<'a> = MinionsArgs;
    type Answer = BTreeSet<String>;
}

impl Run for GetMinions {
    fn run(ctx: &In<'_, Self>, args: MinionsArgs) -> Result<BTreeSet<String>, CallError> {
        let minions = ctx.store.minions(args.confirmed).map_err(failed)?;
        Ok(minions.into_iter().collect())
    }
}

/// A string, or false, because `salt/runners/jobs.py` tests its truth value.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum EndTime {
    Known(String),
    Unknown(bool),
}

/// `get_endtime`.
pub(crate) struct GetEndtime;

impl Call for GetEndtime {
    const NAME: &'static str = "get_endtime";
    const DOC: &'static str = "Return the end time of a job";
    const APPLIES: &'static [Limit] = OF_JOBS;
    type Scope = Limited;
    type Args<'a> = JobArgs;
    type Answer = EndTime;
}

impl Run for GetEndtime {
    fn run(ctx: &In<'_, Self>, args: JobArgs) -> Result<EndTime, CallError> {
        let row = ctx.store.job_row(&args.jid.0).map_err(failed)?;
        let endtime = row.map(|row| row.endtime).filter(|text| !text.is_empty());
        Ok(endtime.map_or(EndTime::Unknown(false), EndTime::Known))
    }
}

/// `load_reg`.
pub(crate) struct LoadReg;

impl Call for LoadReg {
    const NAME: &'static str = "load_reg";
    const DOC: &'static str = "Return Thorium's register";
    type Scope = Whole<Archive>;
    type Args<'a> = NoArgs;
    type Answer = Stored;
}

impl Run for LoadReg {
    fn run(ctx: &In<'_, Self>, _: NoArgs) -> Result<Stored, CallError> {
        let register = ctx.store.register().map_err(failed)?;
        Ok(register.map_or(Stored::None, Stored::Packed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_built_from_its_end_equals_one_built_forwards() {
        for count in [0_u64, 1, 15, 16, 70_000] {
            let mut backwards = Backwards::default();
            let mut forwards = Writer::new();
            forwards.map(usize::try_from(count).unwrap());
            for n in 0..count {
                forwards.str(&n.to_string()).uint(n);
            }
            for n in (0..count).rev() {
                let mut pair = Writer::new();
                pair.str(&n.to_string()).uint(n);
                backwards.put(&pair.into_bytes());
                if backwards.pairs == 10 {
                    backwards.reserve_for(count);
                }
            }
            let bytes = backwards.into_bytes();
            assert!(
                bytes.capacity() - bytes.len() >= ANSWER_HEAD_BYTES_MAX,
                "room for the frame header"
            );
            assert_eq!(bytes, forwards.into_bytes(), "{count}");
        }
    }
}
