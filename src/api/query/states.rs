//! State returns as rows: one per state, for all forms of returns.
//!
//! A state's key in a return is `<module>_|-<id>_|-<name>_|-<function>`. Such a map is the return of `state.*`,
//! one of the values of a job with several functions, or under `data.<master>` in the result of an orchestration. A list of
//! texts in its place contains the reasons why nothing ran.

use super::answer::{Answer, is_empty};
use crate::wire::msgpack::{self, Head, Reader, as_bool, as_int, as_text};

const MARK: &str = "_|-";

/// One state of one run. Values are msgpack as received.
#[derive(Debug, Clone, Default)]
pub(crate) struct StateRow<'a> {
    pub(crate) minion: &'a str,
    /// Its key in the return; empty if nothing ran.
    pub(crate) key: &'a str,
    /// `__id__`, else the id in the key.
    pub(crate) id: &'a str,
    pub(crate) name: &'a str,
    /// `module.function`
    pub(crate) fun: String,
    pub(crate) sls: Option<&'a str>,
    /// True, false, or `None` for a test run with pending changes.
    pub(crate) result: Option<bool>,
    pub(crate) changes: Option<&'a [u8]>,
    pub(crate) comment: Option<&'a [u8]>,
    /// Duration in milliseconds.
    pub(crate) duration: Option<f64>,
    /// Time of day in Salt's format.
    pub(crate) start_time: Option<&'a str>,
    /// Its position in the run.
    pub(crate) run_num: Option<i64>,
    /// The job that it started, in an orchestration.
    pub(crate) job: Option<&'a str>,
}

impl StateRow<'_> {
    pub(crate) fn changed(&self) -> bool {
        self.changes.is_some_and(|changes| !is_empty(changes))
    }
}

/// The states of an answer, in the order in which they ran.
pub(crate) fn state_rows(answer: &Answer) -> Vec<StateRow<'_>> {
    let minion = answer.entry.minion.as_str();
    let outcome = answer.outcome();
    let Some(value) = outcome.value else {
        return Vec::new();
    };
    let mut rows = Vec::new();
    let fun = outcome.fun.and_then(as_text).unwrap_or(&answer.entry.fun);
    let of_states = fun.starts_with("state.") || fun.starts_with("runner.state.");
    if !collect(&mut rows, minion, value, of_states) {
        let data = msgpack::get(value, "data").filter(|_| outcome.of_master);
        for (id, part) in msgpack::pairs(data.unwrap_or_default()) {
            collect(&mut rows, as_text(id).unwrap_or(minion), part, of_states);
        }
        // Several functions: one value each.
        if outcome.fun.is_some_and(|fun| as_text(fun).is_none()) {
            for (name, part) in msgpack::pairs(value) {
                let of_states = as_text(name).is_some_and(|name| name.starts_with("state."));
                collect(&mut rows, minion, part, of_states);
            }
        }
    }
    rows.sort_by(|a, b| (a.minion, a.run_num, a.key).cmp(&(b.minion, b.run_num, b.key)));
    rows
}

/// Collects a map of states, or the reasons for its absence; false if the value is neither.
fn collect<'a>(
    rows: &mut Vec<StateRow<'a>>,
    minion: &'a str,
    value: &'a [u8],
    of_states: bool,
) -> bool {
    let before = rows.len();
    match Reader::new(value).head() {
        Ok(Head::Map(_)) => {
            for (key, state) in msgpack::pairs(value) {
                if let Some(key) = as_text(key).filter(|key| key.contains(MARK)) {
                    rows.push(row(minion, key, state));
                }
            }
        }
        Ok(Head::Array(_))
            if of_states && msgpack::elements(value).all(|why| as_text(why).is_some()) =>
        {
            let failed = StateRow {
                minion,
                result: Some(false),
                comment: Some(value),
                ..StateRow::default()
            };
            rows.extend((!is_empty(value)).then_some(failed));
        }
        _ => {}
    }
    rows.len() > before
}

fn row<'a>(minion: &'a str, key: &'a str, state: &'a [u8]) -> StateRow<'a> {
    let mut parts = key.split(MARK);
    let module = parts.next().unwrap_or_default();
    let id = parts.next().unwrap_or_default();
    let function = key.rsplit(MARK).next().unwrap_or_default();
    let between = module.len() + id.len() + 2 * MARK.len();
    let name = key
        .get(between..key.len().saturating_sub(function.len() + MARK.len()))
        .unwrap_or_default();
    let mut row = StateRow {
        minion,
        key,
        id,
        name,
        fun: format!("{module}.{function}"),
        ..StateRow::default()
    };
    for (key, value) in msgpack::pairs(state) {
        match as_text(key) {
            Some("__id__") => row.id = as_text(value).unwrap_or(id),
            Some("name") => row.name = as_text(value).unwrap_or(name),
            Some("__sls__") => row.sls = as_text(value),
            Some("result") => row.result = as_bool(value),
            Some("changes") => row.changes = Some(value),
            Some("comment") => row.comment = Some(value),
            Some("duration") => row.duration = milliseconds(value),
            Some("start_time") => row.start_time = as_text(value),
            Some("__run_num__") => row.run_num = as_int(value),
            Some("__jid__") => row.job = as_text(value),
            _ => {}
        }
    }
    row
}

/// A number, or text such as `12.3 ms`.
fn milliseconds(value: &[u8]) -> Option<f64> {
    match Reader::new(value).head().ok()? {
        #[expect(clippy::cast_precision_loss, reason = "a duration")]
        Head::Int(n) => Some(n as f64),
        Head::Float(x) => Some(x),
        _ => as_text(value)?.trim_end_matches("ms").trim().parse().ok(),
    }
    .filter(|x: &f64| x.is_finite())
}
