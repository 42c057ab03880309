//! State returns as rows: one per state, for all forms of returns.
//!
//! A state's key in a return is `<module>_|-<id>_|-<name>_|-<function>`. Such a map is the return of `state.*`,
//! one of the values of a job with several functions, or under `data.<master>` in the result of an orchestration. A list of
//! strings in its place contains the reasons why nothing ran.

use super::msgpack::{
    self, DecodeError, Head, Reader, as_bool, as_int, as_text, is_empty, text_bytes,
};
use super::part::Part;

const MARK: &str = "_|-";

/// One state of one run. Values are msgpack as received.
#[derive(Debug, Clone, Default)]
pub struct StateRow<'a> {
    /// The minion that ran it.
    pub minion: &'a str,
    /// Its key in the return; empty if nothing ran.
    pub key: &'a str,
    /// `__id__`, else the id in the key.
    pub id: &'a str,
    /// The name that the state acts on.
    pub name: &'a str,
    /// `module.function`
    pub fun: String,
    /// The SLS file that declares it, by its dotted name.
    pub sls: Option<&'a str>,
    /// True, false, or `None` for a test run with pending changes.
    pub result: Option<bool>,
    /// The map of changes.
    pub changes: Option<&'a [u8]>,
    /// The comment of the state module.
    pub comment: Option<&'a [u8]>,
    /// Duration in milliseconds.
    pub duration: Option<f64>,
    /// Time of day in Salt's format.
    pub start_time: Option<&'a str>,
    /// Its position in the run.
    pub run_num: Option<i64>,
    /// The job that it started, in an orchestration.
    pub job: Option<&'a str>,
}

impl StateRow<'_> {
    /// Whether it reported any change.
    pub fn changed(&self) -> bool {
        self.changes.is_some_and(|changes| !is_empty(changes))
    }
}

/// Passes the states of one function of a run to `take`, in no order.
pub(super) fn each_of_part<'a>(
    part: &Part<'a>,
    minion: &'a str,
    of_master: bool,
    take: &mut impl FnMut(StateRow<'a>),
) {
    let Some(value) = part.value else { return };
    let of_states = runs_states(part.fun);

    // The result of an orchestration contains the states one level deeper, by master.
    if !each(minion, value, of_states, take) {
        let data = msgpack::get(value, "data").filter(|_| of_master);
        for (id, of_id) in msgpack::pairs(data.unwrap_or_default()) {
            each(as_text(id).unwrap_or(minion), of_id, of_states, take);
        }
    }
}

/// The functions of the module `state`, and of the runner, that run states. Others return strings that are no reasons (`state.running`).
const RUN_STATES: [&str; 16] = [
    "apply",
    "high",
    "highstate",
    "low",
    "orch",
    "orchestrate",
    "orchestrate_high",
    "orchestrate_single",
    "pkg",
    "single",
    "sls",
    "sls_id",
    "template",
    "template_str",
    "test",
    "top",
];

/// Whether a function runs states.
pub fn runs_states(fun: &str) -> bool {
    let fun = fun.strip_prefix("runner.").unwrap_or(fun);
    fun.strip_prefix("state.")
        .is_some_and(|name| RUN_STATES.contains(&name))
}

/// Whether a function may return states: it runs them, or is a wrapper that its name shows, as of `transactional_update` and of modules of a
/// site. What other functions return is not searched for states.
pub fn may_return_states(fun: &str) -> bool {
    runs_states(fun) || fun.contains("state.") || fun.starts_with("transactional_update.")
}

/// Passes on a map of states, or the reasons for its absence; false if the value is neither.
fn each<'a>(
    minion: &'a str,
    value: &'a [u8],
    of_states: bool,
    take: &mut impl FnMut(StateRow<'a>),
) -> bool {
    let mut has_any = false;
    let mut reader = Reader::new(value);

    match reader.head() {
        Ok(Head::Map(count)) => {
            for _ in 0..count {
                let Ok(key) = reader.value() else { break };
                // A map of another function has other keys.
                let Some(key) = as_text(key).and_then(StateKey::of) else {
                    if reader.value().is_err() {
                        break;
                    }
                    continue;
                };
                let Ok(state) = row(minion, &key, &mut reader) else {
                    break;
                };
                take(state);
                has_any = true;
            }
        }
        Ok(Head::Array(_))
            if of_states && msgpack::elements(value).all(|why| as_text(why).is_some()) =>
        {
            // Salt reports in this form why nothing ran.
            let failed = StateRow {
                minion,
                result: Some(false),
                comment: Some(value),
                ..StateRow::default()
            };
            if !is_empty(value) {
                take(failed);
                has_any = true;
            }
        }
        _ => {}
    }

    has_any
}

/// A state's key, in parts.
struct StateKey<'a> {
    whole: &'a str,
    module: &'a str,
    id: &'a str,
    name: &'a str,
    function: &'a str,
}

impl<'a> StateKey<'a> {
    /// `None` without a mark: the key of something else.
    fn of(whole: &'a str) -> Option<Self> {
        // Every state of every return passes here. One search for a byte is faster than several for a string.
        let bytes = whole.as_bytes();
        let is_mark = |at: &usize| {
            let from = at.checked_sub(1);
            from.and_then(|from| bytes.get(from..at + 2)) == Some(MARK.as_bytes())
        };
        let mut marks = memchr::memchr_iter(b'|', bytes).filter(is_mark);

        let first = marks.next()?;
        let second = marks.next();
        let last = marks.next_back().or(second).unwrap_or(first);

        // The bar is in the middle of a mark.
        let before = |bar: usize| bar - 1;
        let behind = |bar: usize| bar + 2;
        let part = |from: usize, to: usize| whole.get(from..to).unwrap_or_default();
        Some(Self {
            whole,
            module: part(0, before(first)),
            id: part(behind(first), second.map_or(whole.len(), before)),
            // A name may contain the mark, so the name is all that is between id and function.
            name: second.map_or("", |second| part(behind(second), before(last))),
            function: part(behind(last), whole.len()),
        })
    }
}

/// Reads a state at the position of a reader: one walk over its bytes, of which a return has many.
fn row<'a>(
    minion: &'a str,
    key: &StateKey<'a>,
    reader: &mut Reader<'a>,
) -> Result<StateRow<'a>, DecodeError> {
    let mut row = StateRow {
        minion,
        key: key.whole,
        id: key.id,
        name: key.name,
        fun: [key.module, ".", key.function].concat(),
        ..StateRow::default()
    };

    let mut fields = *reader;
    let Ok(count) = fields.map() else {
        // Not what a state returns: it counts without fields.
        reader.value()?;
        return Ok(row);
    };
    *reader = fields;

    for _ in 0..count {
        let (key_of_field, value) = (reader.value()?, reader.value()?);
        match text_bytes(key_of_field) {
            // Fields of the state count more than its key.
            b"__id__" => row.id = as_text(value).unwrap_or(key.id),
            b"name" => row.name = as_text(value).unwrap_or(key.name),
            b"__sls__" => row.sls = as_text(value),
            b"result" => row.result = as_bool(value),
            b"changes" => row.changes = Some(value),
            b"comment" => row.comment = Some(value),
            b"duration" => row.duration = milliseconds(value),
            b"start_time" => row.start_time = as_text(value),
            b"__run_num__" => row.run_num = as_int(value),
            b"__jid__" => row.job = as_text(value),
            _ => {}
        }
    }

    Ok(row)
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
