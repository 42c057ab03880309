//! The call for the picture of a job: one strip of results per minion.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::{Call, In, Limited, OF_JOBS, Run};
use super::{answered, each_answer, known};
use crate::base::limits::STRIP_MINIONS;
use crate::base::named::named;
use crate::model::Limit;
use crate::wire::call::{CallError, Id};
use crate::wire::outcome::states::StateRow;

/// `job_strip`.
pub(crate) struct Strip;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct StripArgs {
    /// The job's id
    pub(crate) jid: Id,
}

/// What a cell of a strip shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum CellResult {
    #[default]
    Ok,
    Changed,
    Failed,
    /// Of a test run: it would change something.
    Pending,
}

named! {
    CellResult {
        Ok: "ok",
        Changed: "changed",
        Failed: "failed",
        Pending: "pending",
    }
}

answers! {
    /// The results of a job, as strips of cells.
    #[schemars(rename = "Strip")]
    StripAnswer {
        /// Failed minions first, then by id, up to a limit.
        minions: Vec<MinionStrip>,
        /// The number of minions that have returned.
        returned: u64,
        /// The number of states of the longest strip.
        states: u64,
    }
    /// The results of a minion.
    MinionStrip {
        minion: String,
        failed: bool,
        /// In the order in which its states ran; of a run without states one cell.
        cells: Vec<StripCell>,
    }
    /// Neighbouring states with equal results.
    StripCell {
        result: CellResult,
        /// The id of the first of them; empty without states.
        id: String,
        /// States before it.
        at: u64,
        count: u64,
    }
}

impl Call for Strip {
    const NAME: &'static str = "job_strip";
    const DOC: &'static str = "Show the results of the states of a job as strips";
    const APPLIES: &'static [Limit] = OF_JOBS;
    type Scope = Limited;
    type Args<'a> = StripArgs;
    /// None for an unknown job.
    type Answer = Option<StripAnswer>;
}

impl Run for Strip {
    fn run(ctx: &In<'_, Self>, args: StripArgs) -> Result<Option<StripAnswer>, CallError> {
        let Id(jid) = args.jid;
        let Some(job) = known(ctx, &jid)? else {
            return Ok(None);
        };

        let mut places: Vec<_> = answered(&job).collect();
        // Failed minions come first, because only some are shown.
        places.sort_unstable();
        let shown: Vec<&str> = places
            .iter()
            .take(STRIP_MINIONS)
            .map(|place| place.minion)
            .collect();

        let mut minions = Vec::new();
        each_answer(ctx, &job, &shown, |answer| {
            minions.push(MinionStrip {
                minion: answer.entry.minion.clone(),
                failed: answer.failed(),
                cells: cells(&answer.states(), answer.failed()),
            });
        })?;

        let len = |strip: &MinionStrip| strip.cells.iter().map(|cell| cell.count).sum();
        Ok(Some(StripAnswer {
            states: minions.iter().map(len).max().unwrap_or(0),
            minions,
            returned: job.answers.len() as u64,
        }))
    }
}

fn cells(states: &[StateRow<'_>], failed: bool) -> Vec<StripCell> {
    if states.is_empty() {
        let result = if failed {
            CellResult::Failed
        } else {
            CellResult::Ok
        };
        return vec![StripCell {
            result,
            count: 1,
            ..StripCell::default()
        }];
    }

    let mut at = 0;
    let one = |run: &[StateRow<'_>]| {
        let count = run.len() as u64;
        let cell = run.first().map(|first| StripCell {
            result: result_of(first),
            id: first.id.to_owned(),
            at,
            count,
        });
        at += count;
        cell
    };
    states
        .chunk_by(|one, other| result_of(one) == result_of(other))
        .filter_map(one)
        .collect()
}

fn result_of(state: &StateRow<'_>) -> CellResult {
    match state.result {
        Some(false) => CellResult::Failed,
        _ if state.result.is_none() => CellResult::Pending,
        _ if state.changed() => CellResult::Changed,
        _ => CellResult::Ok,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(result: Option<bool>) -> StateRow<'static> {
        StateRow {
            id: "a",
            result,
            ..StateRow::default()
        }
    }

    #[test]
    fn equal_neighbours_are_one_cell() {
        let states = [Some(true), Some(true), Some(false), None, Some(true)].map(state);
        let found = cells(&states, true);
        let short: Vec<_> = found.iter().map(|c| (c.result, c.at, c.count)).collect();
        let expected = [
            (CellResult::Ok, 0, 2),
            (CellResult::Failed, 2, 1),
            (CellResult::Pending, 3, 1),
            (CellResult::Ok, 4, 1),
        ];
        assert_eq!(short, expected);
        assert_eq!(cells(&[], true)[0].result, CellResult::Failed);
        assert_eq!(cells(&[], false)[0].count, 1);
    }
}
