//! The difference of two runs: equal differences of several minions are shown once.

use std::cmp::Reverse;
use std::collections::HashMap;

use serde::Serialize;

use super::super::answer::HttpError;
use crate::api::call::jobs::answers::{MinionDiff, RunOutcome, State, StateDiff};
use crate::api::query::DiffKind;
use crate::wire::call::CallError;

/// Minions with an equal difference.
#[derive(Debug, Serialize)]
pub(super) struct DiffGroup {
    minions: Vec<String>,
    what: DiffKind,
    a: Option<RunOutcome>,
    b: Option<RunOutcome>,
    states: Vec<StateDiff>,
}

/// What tells differences apart: all that the view shows of them, without times and durations.
#[derive(Serialize)]
struct Shown<'a> {
    what: DiffKind,
    outcomes: [Option<&'a RunOutcome>; 2],
    states: Vec<(DiffKind, [Option<ShownState<'a>>; 2])>,
}

#[derive(Serialize)]
struct ShownState<'a> {
    id: &'a str,
    fun: &'a str,
    result: Option<bool>,
    changed: bool,
    changes: &'a crate::wire::msgpack::Stored,
    comment: &'a crate::wire::msgpack::Stored,
}

impl<'a> ShownState<'a> {
    fn of(state: &'a State) -> Self {
        Self {
            id: &state.id,
            fun: &state.fun,
            result: state.result,
            changed: state.changed,
            changes: &state.changes,
            comment: &state.comment,
        }
    }
}

/// The differences of minions in groups, the largest first; within the same size in the order of
/// the first minion.
pub(super) fn grouped(minions: Vec<MinionDiff>) -> Result<Vec<DiffGroup>, HttpError> {
    let mut groups: Vec<DiffGroup> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();

    for found in minions {
        let shown = Shown {
            what: found.what,
            outcomes: [found.a.as_ref(), found.b.as_ref()],
            states: found
                .states
                .iter()
                .map(|one| {
                    let rows = [&one.a, &one.b].map(|row| row.as_ref().map(ShownState::of));
                    (one.what, rows)
                })
                .collect(),
        };
        // A key, because with many different minions each pair would be compared otherwise.
        let key = serde_json::to_string(&shown).map_err(|error| {
            CallError::Internal(format!(
                "a difference cannot be written as JSON, the page fails: report this message: {error}"
            ))
        })?;

        let group = known.get(&key).and_then(|n| groups.get_mut(*n));
        if let Some(group) = group {
            group.minions.push(found.minion);
            continue;
        }

        known.insert(key, groups.len());
        groups.push(DiffGroup {
            minions: vec![found.minion],
            what: found.what,
            a: found.a,
            b: found.b,
            states: found.states,
        });
    }

    groups.sort_by_key(|group| Reverse(group.minions.len()));
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_differences_are_one_group_whatever_their_durations() {
        let found = |minion: &str, id: &str, duration: f64| MinionDiff {
            minion: minion.to_owned(),
            what: DiffKind::Value,
            states: vec![StateDiff {
                what: DiffKind::Value,
                a: None,
                b: Some(State {
                    minion: minion.to_owned(),
                    id: id.to_owned(),
                    duration_ms: Some(duration),
                    ..State::default()
                }),
            }],
            ..MinionDiff::default()
        };
        let all = vec![
            found("a1", "motd", 1.0),
            found("b1", "nginx.conf", 2.0),
            found("c1", "nginx.conf", 3.0),
        ];
        let groups = grouped(all).unwrap();
        let minions: Vec<_> = groups.iter().map(|group| group.minions.join(" ")).collect();
        assert_eq!(minions, ["b1 c1", "a1"]);
    }
}
