//! Comparison of two runs, by minion and by state.
//!
//! Ignored are values that change with every run (durations, times of day, pids of commands, the
//! order of states), and a state's comment if its result and its changes are the same.

use std::collections::BTreeMap;

use super::answer::Answer;
use super::job::Job;
use super::jobs::{JobFilter, PageLimits, jobs_before};
use super::others::Others;
use crate::base::limits::{LIST_JOBS_READ, PREVIOUS_JOBS_SEEN};
use crate::base::named::named;
use crate::store::{JobSummary, StoreError, StoreView};
use crate::wire::msgpack::{as_text, elements, get, is_empty, pairs};
use crate::wire::outcome::states::StateRow;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum DiffKind {
    /// Only in the later run.
    Added,
    /// Only in the earlier run.
    Removed,
    /// Failure, exit code or result differ.
    Result,
    /// Value or changes differ.
    #[default]
    Value,
}

named! {
    DiffKind {
        Added: "added",
        Removed: "removed",
        Result: "result",
        Value: "value",
    }
}

/// A minion with differing answers.
#[derive(Debug)]
pub(crate) struct Difference<'a> {
    pub(crate) minion: &'a str,
    pub(crate) kind: DiffKind,
    /// The answers in the earlier and in the later run.
    pub(crate) answers: [Option<&'a Answer>; 2],
    /// The differing states, if both answers exist and at least one of them has states.
    pub(crate) states: Vec<StateDiff<'a>>,
}

#[derive(Debug)]
pub(crate) struct StateDiff<'a> {
    pub(crate) kind: DiffKind,
    /// The rows in the earlier and in the later run.
    pub(crate) rows: [Option<StateRow<'a>>; 2],
}

/// Compares one minion's answers; `None` if they are equal.
pub(crate) fn diff<'a>(
    minion: &'a str,
    a: Option<&'a Answer>,
    b: Option<&'a Answer>,
) -> Option<Difference<'a>> {
    let answers = [a, b];

    // A minion in one run only differs as a whole: there is nothing to compare its states with.
    let (Some(a), Some(b)) = (a, b) else {
        let kind = match answers {
            [None, Some(_)] => DiffKind::Added,
            [Some(_), None] => DiffKind::Removed,
            _ => return None,
        };
        return Some(Difference {
            minion,
            kind,
            answers,
            states: Vec::new(),
        });
    };

    let states = diff_states(a.states(), b.states());
    // The outcome counts first: a run that failed differs even if its states look alike.
    let result = (a.failed(), a.code()) != (b.failed(), b.code());
    let value = match &states {
        Some(states) => !states.is_empty(),
        None => a.outcome().value != b.outcome().value,
    };

    let kind = match (result, value) {
        (true, _) => DiffKind::Result,
        (false, true) => DiffKind::Value,
        (false, false) => return None,
    };

    Some(Difference {
        minion,
        kind,
        answers,
        states: states.unwrap_or_default(),
    })
}

/// The differing states, in the order in which they ran; `None` if neither run has states.
fn diff_states<'a>(a: Vec<StateRow<'a>>, b: Vec<StateRow<'a>>) -> Option<Vec<StateDiff<'a>>> {
    if a.is_empty() && b.is_empty() {
        return None;
    }

    let name = |row: &StateRow<'a>| (row.minion, row.key);
    let mut earlier: BTreeMap<_, _> = a.into_iter().map(|row| (name(&row), row)).collect();
    let mut found = Vec::new();
    for row in b {
        // Paired by the state's key: a renamed state counts as removed and added.
        let Some(known) = earlier.remove(&name(&row)) else {
            found.push(StateDiff {
                kind: DiffKind::Added,
                rows: [None, Some(row)],
            });
            continue;
        };

        // A comment mostly repeats the changes. A row without a key is an error text, so its
        // comment is all it has.
        let kind = if known.result != row.result {
            DiffKind::Result
        } else if !same_changes(&known, &row) || row.key.is_empty() && known.comment != row.comment
        {
            DiffKind::Value
        } else {
            continue;
        };

        found.push(StateDiff {
            kind,
            rows: [Some(known), Some(row)],
        });
    }

    // What is left ran in the earlier run only, and follows in the order of that run.
    let mut removed: Vec<_> = earlier.into_values().collect();
    removed.sort_by_key(|row| row.run_num);
    found.extend(removed.into_iter().map(|row| StateDiff {
        kind: DiffKind::Removed,
        rows: [Some(row), None],
    }));

    Some(found)
}

/// Compares changes; the pid of a command is ignored.
fn same_changes(a: &StateRow<'_>, b: &StateRow<'_>) -> bool {
    let [of_a, of_b] = [a, b].map(|row| {
        row.changes
            .filter(|changes| !is_empty(changes))
            .unwrap_or_default()
    });
    let telling = |(key, _): &(&[u8], &[u8])| as_text(key) != Some("pid");
    let commands =
        a.fun.starts_with("cmd.") && b.fun == a.fun && !of_a.is_empty() && !of_b.is_empty();
    of_a == of_b || commands && pairs(of_a).filter(telling).eq(pairs(of_b).filter(telling))
}

/// The latest earlier job with the same function, arguments and target. Scans a limited number of
/// jobs.
pub(crate) fn previous_run(
    store: &StoreView,
    job: &Job,
    row: &JobSummary,
) -> Result<Option<String>, StoreError> {
    fn of_run(row: &JobSummary) -> [&[u8]; 5] {
        let JobSummary {
            fun,
            tgt,
            tgt_type,
            user,
            arg,
            ..
        } = row;
        [fun, tgt, tgt_type, user, arg]
    }
    let same = |other: &JobSummary| of_run(other) == of_run(row) && other.abridged == row.abridged;

    let filter = JobFilter {
        include_polling: true,
        ..JobFilter::default()
    };

    let limits = PageLimits {
        rows: PREVIOUS_JOBS_SEEN,
        seen: PREVIOUS_JOBS_SEEN,
        read: LIST_JOBS_READ,
    };

    let page = jobs_before(store, &filter, Some(&job.jid), limits)?;
    // Summaries are compared first, since each further look reads a job.
    let candidates = page.jobs.iter().filter(|listed| same(&listed.row));

    // A limited reader does not know the loads, so the arguments of the returns decide.
    if store.is_limited() {
        let jids = candidates.map(|listed| &*listed.row.jid);
        let found = first_with_args_of(&job.jid, jids, |jid| args_of_returns(store, jid))?;
        return Ok(found.map(str::to_owned));
    }

    for listed in candidates {
        let needs_look = row.abridged || row.arg.is_empty();
        // The arguments are equal in the summaries, and complete.
        if !needs_look {
            return Ok(Some(listed.row.jid.clone()));
        }

        // The summary is abridged, so the loads decide.
        let Some(other) = Job::read_load(store, &listed.row.jid)? else {
            continue;
        };

        let mut whole = [JobSummary::default(), JobSummary::default()];
        for (whole, load) in whole.iter_mut().zip([&job.load, &other.load]) {
            whole.take_load(load, usize::MAX);
        }

        // Any of them may be too long for the summary.
        let [one, two] = &whole;
        if of_run(one) == of_run(two) && args_of_result(job) == args_of_result(&other) {
            return Ok(Some(listed.row.jid.clone()));
        }
    }
    Ok(None)
}

/// The first of `candidates` that has the arguments of `jid`. `args` reads a job, so it is called once
/// for each.
fn first_with_args_of<'a>(
    jid: &str,
    mut candidates: impl Iterator<Item = &'a str>,
    mut args: impl FnMut(&str) -> Result<Option<Vec<u8>>, StoreError>,
) -> Result<Option<&'a str>, StoreError> {
    let Some(first) = candidates.next() else {
        return Ok(None);
    };

    let wanted = args(jid)?;
    for candidate in std::iter::once(first).chain(candidates) {
        if args(candidate)? == wanted {
            return Ok(Some(candidate));
        }
    }
    Ok(None)
}

/// The arguments in the first return that has any.
fn args_of_returns(store: &StoreView, jid: &str) -> Result<Option<Vec<u8>>, StoreError> {
    let job = Job::read_heads(store, jid)?.unwrap_or_default();
    let minions: Vec<&str> = job.answers.keys().map(String::as_str).collect();
    let mut found = None;
    job.any_answer(store, &Others::default(), &minions, |answer| {
        found = answer.outcome().fun_args.map(<[u8]>::to_vec);
        found.is_some()
    })?;
    Ok(found)
}

/// The arguments in a result, without the jid that every orchestration adds.
fn args_of_result(job: &Job) -> Vec<&[u8]> {
    let args = job.result_args().unwrap_or_default();
    elements(args)
        .filter(|arg| get(arg, "orchestration_jid").is_none())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_job_is_read_once_to_find_one_with_the_same_arguments() {
        let jobs = [("9", "a"), ("8", "b"), ("7", "b"), ("6", "a"), ("5", "a")];
        let mut read = Vec::new();
        let args = |jid: &str| {
            read.push(jid.to_owned());
            let found = jobs.iter().find(|(known, _)| *known == jid);
            Ok(found.map(|(_, args)| args.as_bytes().to_vec()))
        };
        let candidates = jobs.iter().skip(1).map(|(jid, _)| *jid);
        let found = first_with_args_of("9", candidates, args).unwrap();
        assert_eq!((found, read.join(" ")), (Some("6"), "9 8 7 6".to_owned()));

        let none = first_with_args_of("9", std::iter::empty(), |_| unreachable!("nothing to read"));
        assert_eq!(none.unwrap(), None);
    }
}
