//! The call that groups failures by their cause, of one job or of a time.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use salt_sls::Glob;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Archive, Call, In, Limited, OF_JOBS, ReadCtx, Run, failed, jobs};
use crate::api::query::{
    Cause, DAY_US, DigestView, Failure, MissingGroup, RunFailure, missing_by_silence,
    missing_lately,
};
use crate::base::clock::Micros;
use crate::base::limits::{CAUSE_MINIONS_SHOWN, CAUSES_SHOWN_MAX};
use crate::model::{Limit, ReadLimits};
use crate::store::StoreError;
use crate::wire::call::{CallError, Id};
use crate::wire::msgpack::{Time, or_absent};

/// `causes`.
pub(crate) struct List;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ListArgs {
    /// Only failures of this job
    pub(crate) jid: Option<Id>,
    /// Start of the time range of returns; by default the last 24 hours. Not together with a job
    pub(crate) since: Option<Time>,
    /// End of the time range
    pub(crate) until: Option<Time>,
    /// Only minions that match this glob
    pub(crate) minion: Option<Glob>,
    /// Maximum number of causes
    pub(crate) limit: Option<usize>,
}

answers! {
    /// Failures grouped by cause, sorted by the number of minions.
    #[schemars(rename = "Causes")]
    CausesPage {
        causes: Vec<CauseRow>,
        /// Number of causes, including omitted ones.
        total: u64,
        /// Minions with a failed return.
        failed_minions: u64,
        failed_returns: u64,
        /// Minions that have not returned: the job, or one of the newest jobs of the time.
        missing: Vec<MissingGroup>,
        /// Returns since this time were looked at; absent for a job. It is later than asked for if much is unread: ask again.
        #[serde(serialize_with = "or_absent")]
        since: Option<Time>,
    }
    /// Failures with the same cause.
    CauseRow {
        /// Names the cause, for the argument `cause` of other calls.
        key: String,
        #[serde(flatten)]
        cause: Cause,
        /// The SLS file of the state.
        #[serde(serialize_with = "or_absent")]
        sls: Option<String>,
        /// Number of failures.
        count: u64,
        /// Number of minions.
        minions: u64,
        /// The first minions by id, up to a limit.
        ids: Vec<String>,
        first: Time,
        last: Time,
        example: CauseExample,
    }
    /// A failure of a cause: the latest.
    CauseExample {
        jid: String,
        minion: String,
        /// The line before it was masked.
        message: String,
    }
}

impl Call for List {
    const NAME: &'static str = "causes";
    const DOC: &'static str = "Group failures by cause";
    const APPLIES: &'static [Limit] = OF_JOBS;
    type Scope = Limited;
    type Args<'a> = ListArgs;
    /// None for an unknown job.
    type Answer = Option<CausesPage>;
}

impl Run for List {
    fn run(ctx: &In<'_, Self>, args: ListArgs) -> Result<Option<CausesPage>, CallError> {
        let limit = args.limit.unwrap_or(CAUSES_SHOWN_MAX).min(CAUSES_SHOWN_MAX);
        let wanted = |id: &str| args.minion.as_ref().is_none_or(|glob| glob.matches(id));

        if let Some(Id(jid)) = &args.jid {
            if args.since.is_some() || args.until.is_some() {
                let why = "`since` and `until` select no failures of a job: leave them out";
                return Err(CallError::Argument(why.to_owned()));
            }
            return of_job(ctx, jid, wanted, limit);
        }

        let now = ctx.store.now();
        let since = args
            .since
            .map_or(Micros(now.0.saturating_sub(DAY_US)), |Time(at)| at);
        let until = args.until.map(|Time(at)| at);
        of_time(ctx, since, until, wanted, limit).map(Some)
    }
}

/// The numbers of minions that failed for one cause in the last 24 hours, the largest first: of all minions, for metrics.
pub(in crate::api) fn minions_by_cause(archive: &Archive) -> Result<Vec<u64>, StoreError> {
    let limits = Arc::new(ReadLimits::default());
    let store = archive.store.view(limits.clone());
    let since = Micros(store.now().0.saturating_sub(DAY_US));
    let digest = DigestView::new(&archive.digest, &archive.store, limits);

    let mut minions: HashMap<&Cause, BTreeSet<&str>> = HashMap::new();
    let runs = digest.runs(&store, since, |run| run.failed)?;
    for run in &runs.rows {
        // A minion counts once for a cause, however many of its runs failed for it.
        for failure in &run.failures {
            minions
                .entry(&failure.cause)
                .or_default()
                .insert(&run.minion);
        }
    }
    let mut counts: Vec<u64> = minions.values().map(|ids| ids.len() as u64).collect();
    counts.sort_unstable_by(|one, other| other.cmp(one));
    Ok(counts)
}

fn of_job(
    ctx: &ReadCtx<'_>,
    jid: &str,
    wanted: impl Fn(&str) -> bool,
    limit: usize,
) -> Result<Option<CausesPage>, CallError> {
    let Some((listed, job)) = jobs::find(ctx, jid)? else {
        return Ok(None);
    };

    let mut groups = Groups::default();
    // Only failed returns are read, because bodies are the largest part of a job.
    let failed_minions = job
        .answers
        .iter()
        .filter(|(id, answer)| answer.failed() && wanted(id));
    let ids: Vec<&str> = failed_minions.map(|(id, _)| id.as_str()).collect();
    jobs::each_answer(ctx, &job, &ids, |answer| {
        let entry = &answer.entry;
        let found = jobs::failures_of(answer);
        groups.add(
            (jid, &entry.minion, entry.at),
            found.iter().map(Failed::from),
        );
    })?;

    let missing = missing_by_silence(&ctx.store, (&job, listed.at), wanted).map_err(failed)?;
    Ok(Some(groups.into_page(missing, None, limit)))
}

fn of_time(
    ctx: &ReadCtx<'_>,
    since: Micros,
    until: Option<Micros>,
    wanted: impl Fn(&str) -> bool,
    limit: usize,
) -> Result<CausesPage, CallError> {
    let runs = ctx.digest.runs(&ctx.store, since, |run| {
        run.failed && until.is_none_or(|until| run.at < until) && wanted(&run.minion)
    });
    let runs = runs.map_err(failed)?;

    let mut groups = Groups::default();
    for run in &runs.rows {
        groups.add(
            (&run.jid, &run.minion, run.at),
            run.failures.iter().map(Failed::from),
        );
    }

    let missing =
        missing_lately(&ctx.store, &ctx.others, (since, until), wanted).map_err(failed)?;
    Ok(groups.into_page(missing, Some(Time(runs.since)), limit))
}

/// A failure, borrowed from a job or from the digest.
struct Failed<'a> {
    cause: &'a Cause,
    sls: Option<&'a str>,
    example: &'a str,
}

impl<'a> From<&'a Failure> for Failed<'a> {
    fn from(failure: &'a Failure) -> Self {
        Self {
            cause: &failure.cause,
            sls: failure.sls.as_deref(),
            example: &failure.example,
        }
    }
}

impl<'a> From<&'a RunFailure> for Failed<'a> {
    fn from(failure: &'a RunFailure) -> Self {
        Self {
            cause: &failure.cause,
            sls: failure.sls.as_deref(),
            example: &failure.example,
        }
    }
}

/// Failures by cause.
#[derive(Default)]
struct Groups {
    by_cause: HashMap<Cause, Group>,
    minions: BTreeSet<String>,
    returns: u64,
}

#[derive(Default)]
struct Group {
    count: u64,
    minions: BTreeSet<String>,
    times: Option<(Micros, Micros)>,
    sls: Option<String>,
    example: CauseExample,
}

impl Groups {
    /// Adds the failures of a return.
    fn add<'a>(
        &mut self,
        (jid, minion, at): (&str, &str, Micros),
        failures: impl Iterator<Item = Failed<'a>>,
    ) {
        self.returns += 1;
        self.minions.insert(minion.to_owned());
        for failure in failures {
            // Looked up by reference: most failures are of a cause that is known.
            if !self.by_cause.contains_key(failure.cause) {
                self.by_cause
                    .insert(failure.cause.clone(), Group::default());
            }
            let Some(group) = self.by_cause.get_mut(failure.cause) else {
                continue;
            };

            group.count += 1;
            group.minions.insert(minion.to_owned());
            let (first, last) = group.times.unwrap_or((at, at));
            // The latest example; if times are equal, always the same example.
            let known = (last, group.example.minion.as_str());
            if group.times.is_none() || (at, minion) > known {
                group.example = CauseExample {
                    jid: jid.to_owned(),
                    minion: minion.to_owned(),
                    message: failure.example.to_owned(),
                };
                group.sls = failure.sls.map(str::to_owned);
            }
            group.times = Some((first.min(at), last.max(at)));
        }
    }

    fn into_page(
        self,
        missing: Vec<MissingGroup>,
        since: Option<Time>,
        limit: usize,
    ) -> CausesPage {
        let total = self.by_cause.len() as u64;

        let row = |(cause, group): (Cause, Group)| {
            let (first, last) = group.times.unwrap_or_default();
            CauseRow {
                key: cause.key(),
                sls: group.sls,
                count: group.count,
                minions: group.minions.len() as u64,
                ids: group
                    .minions
                    .into_iter()
                    .take(CAUSE_MINIONS_SHOWN)
                    .collect(),
                first: Time(first),
                last: Time(last),
                example: group.example,
                cause,
            }
        };
        let mut causes: Vec<CauseRow> = self.by_cause.into_iter().map(row).collect();

        // What only follows from another failure comes after it.
        causes.sort_by(|one, other| {
            let place = |row: &CauseRow| {
                (
                    std::cmp::Reverse(row.minions),
                    row.cause.is_of_requisite(),
                    std::cmp::Reverse(row.last),
                )
            };
            place(one)
                .cmp(&place(other))
                .then_with(|| one.key.cmp(&other.key))
        });
        causes.truncate(limit);

        CausesPage {
            causes,
            total,
            failed_minions: self.minions.len() as u64,
            failed_returns: self.returns,
            missing,
            since,
        }
    }
}
