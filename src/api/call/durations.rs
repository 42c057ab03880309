//! Calls about how long states take, of one job or of a time.

use std::collections::HashMap;
use std::sync::Arc;

use salt_sls::Glob;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Archive, Call, In, Limited, OF_JOBS, Run, Whole, failed, jobs};
use crate::api::query::{DAY_US, DigestView, Spread};
use crate::base::clock::Micros;
use crate::base::limits::{DIGEST_STATES_MAX, DURATION_DAYS, LIST_ROWS_MAX};
use crate::model::{Limit, ReadLimits};
use crate::wire::call::{CallError, Id};
use crate::wire::msgpack::{Time, or_absent};

answers! {
    /// States by the time that they take, the slowest first.
    #[schemars(rename = "Durations")]
    DurationsPage {
        states: Vec<StateDurations>,
        /// Number of states, including omitted ones.
        total: u64,
        /// Runs since this time are counted; absent for a job. It is later than asked for if much is unread: ask again.
        #[serde(serialize_with = "or_absent")]
        since: Option<Time>,
    }
    /// How long a state took. Median and percentile are at most 5 % from the exact value.
    StateDurations {
        id: String,
        fun: String,
        /// Number of runs with a duration.
        runs: u64,
        median_ms: f64,
        p95_ms: f64,
        max_ms: f64,
        /// All runs together.
        total_ms: f64,
        /// The minion of the longest run.
        minion: String,
        /// The job of the longest run.
        jid: String,
    }
}

/// `job_durations`.
pub(crate) struct OfJob;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct OfJobArgs {
    /// The job's id
    pub(crate) jid: Id,
    /// Only minions that match this glob
    pub(crate) minion: Option<Glob>,
    /// Maximum number of states
    pub(crate) limit: Option<usize>,
}

impl Call for OfJob {
    const NAME: &'static str = "job_durations";
    const DOC: &'static str = "List the states of a job by how long they took";
    const APPLIES: &'static [Limit] = OF_JOBS;
    type Scope = Limited;
    type Args<'a> = OfJobArgs;
    /// None for an unknown job.
    type Answer = Option<DurationsPage>;
}

impl Run for OfJob {
    fn run(ctx: &In<'_, Self>, args: OfJobArgs) -> Result<Option<DurationsPage>, CallError> {
        let Id(jid) = args.jid;
        let Some(job) = jobs::known(ctx, &jid)? else {
            return Ok(None);
        };

        let is_wanted = |id: &&str| args.minion.as_ref().is_none_or(|glob| glob.matches(id));
        let ids: Vec<&str> = job
            .answers
            .keys()
            .map(String::as_str)
            .filter(is_wanted)
            .collect();
        let named: Arc<str> = jid.as_str().into();
        let mut spreads: HashMap<(Arc<str>, Arc<str>), Spread> = HashMap::new();
        jobs::each_answer(ctx, &job, &ids, |answer| {
            let minion: Arc<str> = answer.entry.minion.as_str().into();
            for state in answer.states() {
                let Some(ms) = state.duration else {
                    continue;
                };
                let name = (state.id.into(), state.fun.as_str().into());
                // Minions can make ids without end.
                if spreads.len() < DIGEST_STATES_MAX || spreads.contains_key(&name) {
                    spreads.entry(name).or_default().add(ms, &minion, &named);
                }
            }
        })?;
        Ok(Some(page(spreads, args.limit, None)))
    }
}

/// `durations`.
pub(crate) struct OfTime;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct OfTimeArgs {
    /// Start of the time range, as a whole day in UTC; by default seven days ago
    pub(crate) since: Option<Time>,
    /// Maximum number of states
    pub(crate) limit: Option<usize>,
}

impl Call for OfTime {
    const NAME: &'static str = "durations";
    const DOC: &'static str = "List states by how long they took in the last days";
    type Scope = Whole<Archive>;
    type Args<'a> = OfTimeArgs;
    type Answer = DurationsPage;
}

impl Run for OfTime {
    fn run(ctx: &In<'_, Self>, args: OfTimeArgs) -> Result<DurationsPage, CallError> {
        let week = DURATION_DAYS.saturating_mul(DAY_US);
        let default = Micros(ctx.store.now().0.saturating_sub(week));
        let since = args.since.map_or(default, |Time(at)| at);

        // Of all minions: this call is not for limited callers.
        let limits = Arc::new(ReadLimits::default());
        let digest = DigestView::new(ctx.digest, ctx.store, limits);
        let (spreads, complete) = digest.durations(since).map_err(failed)?;
        Ok(page(spreads, args.limit, Some(Time(complete))))
    }
}

fn page(
    spreads: HashMap<(Arc<str>, Arc<str>), Spread>,
    limit: Option<usize>,
    since: Option<Time>,
) -> DurationsPage {
    let total = spreads.len() as u64;

    let row = |((id, fun), spread): ((Arc<str>, Arc<str>), Spread)| {
        let median_ms = spread.percentile(50);
        let p95_ms = spread.percentile(95);
        let longest = spread.longest;
        StateDurations {
            id: id.to_string(),
            fun: fun.to_string(),
            runs: spread.runs,
            median_ms,
            p95_ms,
            max_ms: longest.as_ref().map_or(0.0, |longest| longest.ms),
            total_ms: spread.total_ms,
            minion: longest
                .as_ref()
                .map_or_else(String::new, |l| l.minion.to_string()),
            jid: longest
                .as_ref()
                .map_or_else(String::new, |l| l.jid.to_string()),
        }
    };

    let mut states: Vec<StateDurations> = spreads.into_iter().map(row).collect();
    states.sort_by(|one, other| {
        let by_time = other.p95_ms.total_cmp(&one.p95_ms);
        let by_longest = by_time.then_with(|| other.max_ms.total_cmp(&one.max_ms));
        by_longest.then_with(|| (&one.id, &one.fun).cmp(&(&other.id, &other.fun)))
    });
    states.truncate(limit.unwrap_or(LIST_ROWS_MAX).min(LIST_ROWS_MAX));

    DurationsPage {
        states,
        total,
        since,
    }
}
