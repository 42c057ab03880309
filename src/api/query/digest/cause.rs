//! Why a run failed, in a form in which the same failure of many minions is one cause.
//!
//! A failed state's cause is its id, its function and the first line of its comment; another failure's is the function, the exit code and
//! the first line of the return. In that line the minion's name, paths and numbers are masked.

use std::hash::{Hash, Hasher};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3Default;

use super::super::mask::masked;
use crate::base::limits::{CAUSE_EXAMPLE_MAX, CAUSE_MESSAGE_MAX, CAUSES_PER_RETURN_MAX};
use crate::base::units::cut;
use crate::wire::msgpack::{self, Head, Reader, as_text};
use crate::wire::outcome::Outcome;
use crate::wire::outcome::states::StateRow;

/// What a failure is grouped by.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Cause {
    /// The id of the failed state; null if no state failed, or none ran
    pub(crate) state: Option<String>,
    /// The function of the state, or of the run
    pub(crate) fun: String,
    /// The exit code of a run in which no state failed
    pub(crate) exit_code: Option<i64>,
    /// The first line of the comment or of the return; names, paths and numbers are masked
    pub(crate) message: String,
}

/// A cause in one return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) cause: Cause,
    /// The SLS file of the state.
    pub(crate) sls: Option<String>,
    /// The line before it was masked.
    pub(crate) example: String,
}

impl Cause {
    /// A short text that names this cause, in every daemon and after every start.
    pub(crate) fn key(&self) -> String {
        // `Hash` writes each text with a mark at its end, which keeps two causes apart.
        let mut hasher = Xxh3Default::new();
        self.hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    /// Whether it only follows from the failure of another state (`salt/state.py`, `_call_unmet_requisites`).
    pub(crate) fn is_of_requisite(&self) -> bool {
        self.message.starts_with("One or more requisite failed")
    }
}

/// The causes of a failed return: one for each failed state, or else one for the run itself.
pub(crate) fn failures(body: &[u8], jid: &str, minion: &str, code: i64) -> Vec<Failure> {
    let outcome = Outcome::of(body, jid);
    let fun = outcome.fun.and_then(as_text).unwrap_or_default();

    let states = outcome.states(minion);
    let failed = states.iter().filter(|state| state.result == Some(false));
    let mut found: Vec<Failure> = failed
        .take(CAUSES_PER_RETURN_MAX)
        .map(|state| of_state(state, fun, minion))
        .collect();

    if found.is_empty() {
        found.push(of_run(&outcome, fun, minion, code));
    }
    found
}

fn of_state(state: &StateRow<'_>, fun: &str, minion: &str) -> Failure {
    let line = first_line(state.comment.unwrap_or_default());
    let ran = !state.key.is_empty();
    Failure {
        cause: Cause {
            // Without a key nothing ran: the comment says why, and the run is what failed.
            state: ran.then(|| cut(state.id, CAUSE_MESSAGE_MAX).into_owned()),
            fun: cut(if ran { &state.fun } else { fun }, CAUSE_MESSAGE_MAX).into_owned(),
            exit_code: None,
            message: cut(&masked(&line, minion), CAUSE_MESSAGE_MAX).into_owned(),
        },
        sls: state
            .sls
            .map(|sls| cut(sls, CAUSE_MESSAGE_MAX).into_owned()),
        example: line,
    }
}

fn of_run(outcome: &Outcome<'_>, fun: &str, minion: &str, code: i64) -> Failure {
    let line = first_line(outcome.value.unwrap_or_default());
    Failure {
        cause: Cause {
            state: None,
            fun: cut(fun, CAUSE_MESSAGE_MAX).into_owned(),
            exit_code: Some(code),
            message: cut(&masked(&line, minion), CAUSE_MESSAGE_MAX).into_owned(),
        },
        sls: None,
        example: line,
    }
}

/// Where a map says what went wrong, in the order of what says most (`salt/modules/cmdmod.py`, `salt/utils/error.py`).
const TOLD_BY: [&str; 6] = ["stderr", "error", "message", "comment", "stdout", "ret"];

/// The first line of a string, or of the text in a value that says most; at most [`CAUSE_EXAMPLE_MAX`] characters.
fn first_line(value: &[u8]) -> String {
    let text = text_in(value, 3).unwrap_or_default();
    let lines = text.lines().map(str::trim);
    let mut told = lines.filter(|line| !line.is_empty());

    let first = told.next().unwrap_or_default();
    // The last line of a traceback is the error.
    let line = if first.starts_with("Traceback (most recent call last)") {
        told.next_back().unwrap_or(first)
    } else {
        first
    };
    cut(line, CAUSE_EXAMPLE_MAX).into_owned()
}

/// The text in a value that says most; `depth` values deep at most.
fn text_in(value: &[u8], depth: usize) -> Option<&str> {
    let depth = depth.checked_sub(1)?;
    match Reader::new(value).head().ok()? {
        Head::Array(_) => msgpack::elements(value).find_map(|one| text_in(one, depth)),
        Head::Map(_) => {
            let told = TOLD_BY
                .iter()
                .filter_map(|key| msgpack::get(value, key))
                .find_map(|one| text_in(one, depth));
            told.or_else(|| msgpack::pairs(value).find_map(|(_, one)| text_in(one, depth)))
        }
        _ => as_text(value).filter(|text| !text.trim().is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::msgpack::Writer;

    fn failed_run(fun: &str, value: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut w = Writer::new();
        w.map(3)
            .str("fun")
            .str(fun)
            .str("retcode")
            .int(2)
            .str("return");
        value(&mut w);
        w.into_bytes()
    }

    fn state(w: &mut Writer, id: &str, result: bool, comment: &str) {
        w.str(&format!("service_|-{id}_|-{id}_|-running"));
        w.map(3).str("result").bool(result);
        w.str("comment")
            .str(comment)
            .str("__sls__")
            .str("web.nginx");
    }

    #[test]
    fn a_failed_state_is_grouped_by_id_function_and_masked_line() {
        let body = |minion: &str, pid: &str| {
            failed_run("state.apply", |w| {
                w.map(2);
                state(w, "motd", true, "fine");
                let why = format!("Job {pid} for nginx failed on {minion}\nSee journalctl");
                state(w, "nginx", false, &why);
            })
        };

        let of = |minion: &str, pid| failures(&body(minion, pid), "1", minion, 2);
        let (one, other) = (of("web1.example.net", "4711"), of("web22.example.net", "9"));
        assert_eq!(one.len(), 1);
        assert_eq!(one[0].cause, other[0].cause);
        assert_eq!(one[0].cause.key(), other[0].cause.key());
        assert_eq!(one[0].cause.state.as_deref(), Some("nginx"));
        assert_eq!(one[0].cause.fun, "service.running");
        assert_eq!(one[0].cause.message, "Job # for nginx failed on <minion>");
        assert_eq!(one[0].sls.as_deref(), Some("web.nginx"));
        assert_eq!(
            one[0].example,
            "Job 4711 for nginx failed on web1.example.net"
        );
    }

    #[test]
    fn a_run_that_found_no_states_is_the_cause_itself() {
        let body = failed_run("state.apply", |w| {
            w.array(1)
                .str("Rendering SLS 'base:web' failed: mapping values are not allowed");
        });
        let found = failures(&body, "1", "web1", 1);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].cause.state, None);
        assert_eq!(found[0].cause.fun, "state.apply");
        assert!(
            found[0]
                .cause
                .message
                .starts_with("Rendering SLS 'base:web' failed")
        );
    }

    #[test]
    fn other_functions_are_grouped_by_exit_code_and_first_line() {
        let text = failed_run("cmd.run", |w| {
            w.str("\n  bash: certbot: command not found\nmore");
        });
        let found = failures(&text, "1", "web1", 127);
        assert_eq!(found[0].cause.exit_code, Some(127));
        assert_eq!(found[0].cause.message, "bash: certbot: command not found");

        let all = failed_run("cmd.run_all", |w| {
            w.map(2)
                .str("stdout")
                .str("begins")
                .str("stderr")
                .str("no space left");
        });
        assert_eq!(
            failures(&all, "1", "web1", 1)[0].cause.message,
            "no space left"
        );

        let trace = failed_run("x.y", |w| {
            w.str("Traceback (most recent call last):\n  File \"/a/b.py\", line 3\nKeyError: 'a'");
        });
        assert_eq!(
            failures(&trace, "1", "web1", 1)[0].cause.message,
            "KeyError: 'a'"
        );
    }

    #[test]
    fn keys_differ_between_fields() {
        let one = Cause {
            state: Some("a".into()),
            fun: "b".into(),
            ..Cause::default()
        };
        let other = Cause {
            state: Some("ab".into()),
            ..Cause::default()
        };
        assert_ne!(one.key(), other.key());
        // Saved links name causes by their keys.
        assert_eq!(Cause::default().key().len(), 16);
    }

    #[test]
    fn long_values_and_many_states_are_bounded() {
        let body = failed_run("state.apply", |w| {
            w.map(CAUSES_PER_RETURN_MAX + 5);
            for n in 0..CAUSES_PER_RETURN_MAX + 5 {
                state(w, &format!("s{n}"), false, &"é".repeat(10_000));
            }
        });
        let found = failures(&body, "1", "web1", 2);
        assert_eq!(found.len(), CAUSES_PER_RETURN_MAX);
        assert!(found[0].cause.message.chars().count() <= CAUSE_MESSAGE_MAX + 1);
    }
}
