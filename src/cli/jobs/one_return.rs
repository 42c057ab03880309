//! A return of a job as lines of text.
//!
//! On a terminal the states of a return are a short report: those that failed, changed or would
//! change, and the number of the others. Elsewhere the return is printed as it is.

use serde_json::Value as Json;

use super::states::word;
use crate::api::call::jobs::answers::Return;
use crate::cli::{Line, Tone, leaf, line_of, nested, plain, short_at, value};

/// How the states of returns are shown.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::cli) struct StateView {
    /// As a report, not as the value that they are.
    pub(in crate::cli) is_report: bool,
    /// Also those that succeeded and changed nothing.
    pub(in crate::cli) all: bool,
    /// The slowest first, not in the order in which they ran.
    pub(in crate::cli) by_duration: bool,
}

/// The lines of a return of the job `jid`.
pub(in crate::cli) fn return_lines(jid: &str, answer: &Return, view: StateView) -> Vec<Line> {
    let whole = value(&answer.value);

    // The return of a runner or a wheel function is its final event.
    let has_ended =
        whole.get("jid").and_then(Json::as_str) == Some(jid) && whole.get("fun").is_some();
    let inner = whole.get("return").filter(|_| has_ended).unwrap_or(&whole);

    let states = view.is_report.then(|| states_of(inner)).flatten();
    let mut head = heading(answer);
    let mut lines = Vec::new();

    match states {
        Some(mut states) => {
            if view.by_duration {
                states.sort_by(|a, b| b.duration_ms.total_cmp(&a.duration_ms));
            }
            let (shown, others): (Vec<_>, Vec<_>) = states
                .iter()
                .partition(|state| view.all || state.is_notable());

            if !others.is_empty() {
                let count = others.len();
                let text = match (shown.len(), count) {
                    (0, _) => format!(" {count} states without change"),
                    (_, 1) => "    1 state without change".to_owned(),
                    _ => format!("    {count} states without change"),
                };
                // Nothing else to tell: one line is enough.
                if shown.is_empty() {
                    head = head.and(Tone::Plain, text);
                } else {
                    lines.push(text.into());
                }
            }
            let mut of_states: Vec<Line> = shown.into_iter().flat_map(state_lines).collect();
            of_states.append(&mut lines);
            lines = of_states;
        }
        None => lines.extend(nested(inner, 4).lines().map(Line::from)),
    }

    // The first return counts; later returns that differ are only shown.
    for other in &answer.others {
        let code = if other.retcode.is_none() {
            String::new()
        } else {
            format!(", retcode {}", line_of(&other.retcode))
        };
        let time = short_at(other.time);
        lines.push(format!("    later return: ({time}{code})").into());
        lines.extend(nested(&value(&other.value), 8).lines().map(Line::from));
    }

    lines.insert(0, head);
    lines
}

/// `web1: (2026-11-21 05:47:28.123, retcode 2, failed)`
fn heading(answer: &Return) -> Line {
    let mut marks = vec![short_at(answer.time)];

    if !answer.retcode.is_none() {
        marks.push(format!("retcode {}", line_of(&answer.retcode)));
    }

    let mut head = Line::new(
        Tone::Title,
        format!("{}: ({}", plain(&answer.minion), marks.join(", ")),
    );
    if answer.failed {
        head = head.and(Tone::Title, ", ").and(Tone::Bad, "failed");
    }

    // What the master did not confirm is marked (docs/decisions/confirmed-returns.md).
    let seen = match &answer.master {
        Some(peer) => format!("answered, from peer {}, not verified here", plain(peer)),
        None => "seen on the bus only".to_owned(),
    };
    let duplicates = format!("{} different later return(s)", answer.duplicates);
    for (is_set, mark) in [
        (answer.bus_only, seen.as_str()),
        (answer.not_targeted, "not targeted by this job"),
        (answer.duplicates > 0, duplicates.as_str()),
    ] {
        if is_set {
            head = head.and(Tone::Title, format!(", {mark}"));
        }
    }
    head.and(Tone::Title, ")")
}

/// A state that ran.
struct Ran<'a> {
    id: &'a str,
    fun: String,
    state: &'a Json,
    result: Option<bool>,
    changes: Option<&'a Json>,
    duration_ms: f64,
    number: i64,
}

impl Ran<'_> {
    /// Whether it is anything but well and unchanged.
    fn is_notable(&self) -> bool {
        self.result != Some(true) || self.changes.is_some()
    }
}

/// The states of a return in the order in which they ran; `None` if it contains none, or anything
/// else.
fn states_of(value: &Json) -> Option<Vec<Ran<'_>>> {
    let of_runner = |value: &'_ Json| value.get("outputter").is_some();
    let map = match value.get("data") {
        // An orchestration, under the id of its master.
        Some(Json::Object(hosts)) if of_runner(value) => match hosts.values().next() {
            Some(only) if hosts.len() == 1 => only,
            _ => return None,
        },
        _ => value,
    };

    let states = map.as_object()?;
    let mut ran: Vec<Ran<'_>> = states
        .iter()
        .map(|(key, state)| ran(key, state))
        .collect::<Option<_>>()?;
    ran.sort_by_key(|state| state.number);
    (!ran.is_empty()).then_some(ran)
}

/// A state under its key: `service_|-ID_|-NAME_|-running`.
fn ran<'a>(key: &'a str, state: &'a Json) -> Option<Ran<'a>> {
    let parts: Vec<&str> = key.split("_|-").collect();
    // Any other key is no state's. The return is then shown as the value that it is.
    let [module, id, _, function] = parts.as_slice() else {
        return None;
    };

    let is_change = |changes: &&Json| match changes {
        Json::Null => false,
        Json::Object(changes) => !changes.is_empty(),
        Json::Array(changes) => !changes.is_empty(),
        _ => true,
    };
    Some(Ran {
        id,
        fun: format!("{module}.{function}"),
        state,
        result: state.get("result")?.as_bool(),
        changes: state.get("changes").filter(is_change),
        duration_ms: state.get("duration").map_or(0.0, milliseconds),
        number: state
            .get("__run_num__")
            .and_then(Json::as_i64)
            .unwrap_or(i64::MAX),
    })
}

/// A duration in Salt's form: a number, or a string such as `12.3 ms`.
fn milliseconds(duration: &Json) -> f64 {
    let text = duration.as_str().and_then(|text| text.split(' ').next());
    duration
        .as_f64()
        .or_else(|| text?.parse().ok())
        .filter(|ms| ms.is_finite())
        .unwrap_or(0.0)
}

/// Columns of a result's name and the gap after it, within the indent of a return.
const RESULT: usize = 9;
const INDENT: usize = 4;

fn state_lines(ran: &Ran<'_>) -> Vec<Line> {
    let name = word(ran.result, ran.changes.is_some());
    let sls = ran.state.get("__sls__").map(leaf).unwrap_or_default();
    let what = [
        plain(ran.id).into_owned(),
        plain(&ran.fun).into_owned(),
        sls,
        format!("{:.1} ms", ran.duration_ms),
    ];
    let what: Vec<_> = what.into_iter().filter(|part| !part.is_empty()).collect();

    // The names of results are ASCII, so bytes are columns.
    let padding = " ".repeat(RESULT.saturating_sub(name.len()));
    let mut lines = vec![
        Line::from(" ".repeat(INDENT))
            .and(Tone::of_word(name), name)
            .and(Tone::Plain, padding + &what.join("  ")),
    ];

    // The comment of a successful state only says that it succeeded.
    let indent = INDENT + RESULT;
    if ran.is_notable()
        && let Some(comment) = ran.state.get("comment")
    {
        lines.extend(nested(comment, indent).lines().map(Line::from));
    }
    if let Some(changes) = ran.changes {
        lines.extend(change_lines(changes, indent));
    }
    lines
}

/// Changes; the lines of a diff by what they do.
fn change_lines(changes: &Json, indent: usize) -> Vec<Line> {
    let text = nested(changes, indent);
    let is_diff = changes.get("diff").is_some();
    let tone = |line: &str| match line.trim_start().chars().next() {
        Some('+') if is_diff => Tone::Good,
        Some('-') if is_diff => Tone::Bad,
        _ => Tone::Plain,
    };
    text.lines()
        .map(|line| Line::new(tone(line), line))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn state(number: u64, result: &Json, changes: &Json, duration: &Json) -> Json {
        json!({"result": result, "changes": changes, "comment": "said\nmore", "__sls__": "web",
               "__run_num__": number, "duration": duration})
    }

    fn shown(value: &Json, view: StateView) -> Vec<String> {
        let states = states_of(value).unwrap();
        let mut all = states;
        if view.by_duration {
            all.sort_by(|a, b| b.duration_ms.total_cmp(&a.duration_ms));
        }
        let shown = all.iter().filter(|state| view.all || state.is_notable());
        shown.map(|state| state.id.to_owned()).collect()
    }

    #[test]
    fn states_are_found_in_their_order_and_sorted_by_duration() {
        let value = json!({
            "pkg_|-ok_|-ok_|-installed": state(0, &json!(true), &json!({}), &json!(2.5)),
            "pkg_|-bad_|-bad_|-installed": state(3, &json!(false), &json!({}), &json!("7.5 ms")),
            "pkg_|-new_|-new_|-installed": state(1, &json!(true), &json!({"a": 1}), &json!(null)),
            "pkg_|-test_|-test_|-installed": state(2, &json!(null), &json!({}), &json!("inf ms")),
        });
        let view = StateView::default();
        assert_eq!(shown(&value, view), ["new", "test", "bad"]);
        let all = StateView { all: true, ..view };
        assert_eq!(shown(&value, all), ["ok", "new", "test", "bad"]);
        let slow = StateView {
            all: true,
            by_duration: true,
            ..view
        };
        assert_eq!(shown(&value, slow)[..2], ["bad", "ok"]);

        let of_orchestration = json!({"data": {"m_master": value}, "outputter": "highstate"});
        assert_eq!(shown(&of_orchestration, view).len(), 3);
    }

    #[test]
    fn other_returns_have_no_states() {
        let one = state(0, &json!(true), &json!({}), &json!(1));
        for value in [
            json!({}),
            json!([]),
            json!("text"),
            json!({"a_|-b": one}),
            json!({"a_|-b_|-c_|-d": one, "retcode": 2}),
            json!({"a_|-b_|-c_|-d": {"changes": {}}}),
        ] {
            assert!(states_of(&value).is_none(), "{value}");
        }
    }
}
