//! Two runs compared, minion by minion and state by state.
//!
//! What differs from run to run without a word of its own (durations, times of day, pids of commands, the order of states)
//! does not count, nor does a state's comment while its result and its changes are the same.

use std::collections::BTreeMap;

use super::answer::{Answer, is_empty};
use super::job::Job;
use super::jobs::{Bounds, JobFilter, jobs_before};
use super::states::{StateRow, state_rows};
use crate::limits::{LIST_JOBS_READ, PREVIOUS_JOBS_SEEN};
use crate::store::{JobRow, Store, StoreError};
use crate::wire::msgpack::{as_text, elements, get, pairs};

/// How something differs between two runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Only the later run has it.
    Appeared,
    /// Only the earlier run has it.
    Went,
    /// It failed in one of them, or its exit code or result is another.
    Result,
    /// It gave, or changed, something else.
    Value,
}

impl What {
    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Appeared => "appeared",
            Self::Went => "went",
            Self::Result => "result",
            Self::Value => "value",
        }
    }
}

/// A minion whose answers differ.
#[derive(Debug)]
pub struct Difference<'a> {
    /// The minion.
    pub minion: &'a str,
    /// How.
    pub what: What,
    /// Its answer in the earlier run, and in the later one.
    pub answers: [Option<&'a Answer>; 2],
    /// The states that differ, if both runs, or the only one that it answered, were of states.
    pub states: Vec<StateDiff<'a>>,
}

/// A state that differs.
#[derive(Debug)]
pub struct StateDiff<'a> {
    /// How.
    pub what: What,
    /// It in the earlier run, and in the later one.
    pub rows: [Option<StateRow<'a>>; 2],
}

/// How one minion's answers differ; `None` if they do not.
pub fn diff<'a>(minion: &'a str, a: Option<&'a Answer>, b: Option<&'a Answer>) -> Option<Difference<'a>> {
    let answers = [a, b];
    let (Some(a), Some(b)) = (a, b) else {
        let what = match answers {
            [None, Some(_)] => What::Appeared,
            [Some(_), None] => What::Went,
            _ => return None,
        };
        return Some(Difference { minion, what, answers, states: Vec::new() });
    };
    let states = diff_states(state_rows(a), state_rows(b));
    let result = (a.failed(), a.code()) != (b.failed(), b.code());
    let value = match &states {
        Some(states) => !states.is_empty(),
        None => a.outcome().value != b.outcome().value,
    };
    let what = match (result, value) {
        (true, _) => What::Result,
        (false, true) => What::Value,
        (false, false) => return None,
    };
    Some(Difference { minion, what, answers, states: states.unwrap_or_default() })
}

/// The states that differ, in the order in which they ran; `None` if neither run has any.
fn diff_states<'a>(a: Vec<StateRow<'a>>, b: Vec<StateRow<'a>>) -> Option<Vec<StateDiff<'a>>> {
    if a.is_empty() && b.is_empty() {
        return None;
    }
    let name = |row: &StateRow<'a>| (row.minion, row.key);
    let mut earlier: BTreeMap<_, _> = a.into_iter().map(|row| (name(&row), row)).collect();
    let mut found = Vec::new();
    for row in b {
        let Some(known) = earlier.remove(&name(&row)) else {
            found.push(StateDiff { what: What::Appeared, rows: [None, Some(row)] });
            continue;
        };
        let what = if known.result != row.result {
            What::Result
        } else if !same_changes(&known, &row) || row.key.is_empty() && known.comment != row.comment {
            What::Value
        } else {
            continue;
        };
        found.push(StateDiff { what, rows: [Some(known), Some(row)] });
    }
    let mut went: Vec<_> = earlier.into_values().collect();
    went.sort_by_key(|row| row.run_num);
    found.extend(went.into_iter().map(|row| StateDiff { what: What::Went, rows: [Some(row), None] }));
    Some(found)
}

/// A command's pid is another one each time.
fn same_changes(a: &StateRow<'_>, b: &StateRow<'_>) -> bool {
    let [of_a, of_b] = [a, b].map(|row| row.changes.filter(|changes| !is_empty(changes)).unwrap_or_default());
    let telling = |(key, _): &(&[u8], &[u8])| as_text(key) != Some("pid");
    let commands = a.fun.starts_with("cmd.") && b.fun == a.fun && !of_a.is_empty() && !of_b.is_empty();
    of_a == of_b || commands && pairs(of_a).filter(telling).eq(pairs(of_b).filter(telling))
}

/// The run before a job: the latest one with the same function, arguments and target. Looks at a bounded number of jobs.
pub fn previous_run(store: &Store, job: &Job, row: &JobRow) -> Result<Option<String>, StoreError> {
    let same = |other: &JobRow| {
        (&other.fun, &other.tgt, &other.tgt_type, &other.user)
            == (&row.fun, &row.tgt, &row.tgt_type, &row.user)
            && (&other.arg, other.abridged) == (&row.arg, row.abridged)
    };
    let filter = JobFilter { find_job: true, ..JobFilter::default() };
    let bounds = Bounds { rows: PREVIOUS_JOBS_SEEN, seen: PREVIOUS_JOBS_SEEN, read: LIST_JOBS_READ };
    let page = jobs_before(store, &filter, Some(&job.jid), bounds)?;
    for listed in page.jobs.iter().filter(|listed| same(&listed.row)) {
        let needs_look = row.abridged || row.arg.is_empty();
        if !needs_look {
            return Ok(Some(listed.row.jid.clone()));
        }
        // What the row leaves out decides.
        let Some(other) = Job::read_load(store, &listed.row.jid)? else { continue };
        let mut whole = [JobRow::default(), JobRow::default()];
        for (whole, load) in whole.iter_mut().zip([&job.load, &other.load]) {
            whole.take_load(load, usize::MAX);
        }
        let [one, two] = whole;
        if one.arg == two.arg && args_of_result(job) == args_of_result(&other) {
            return Ok(Some(listed.row.jid.clone()));
        }
    }
    Ok(None)
}

/// What a result says of its arguments, without the id that every orchestration has of its own.
fn args_of_result(job: &Job) -> Vec<&[u8]> {
    let args = job.result_args().unwrap_or_default();
    elements(args).filter(|arg| get(arg, "orchestration_jid").is_none()).collect()
}
