//! `caller` functions, and unsupported calls.

use super::*;
use crate::wire::msgpack::{as_bool, as_int};

/// Converts the fake master's answers to results of functions.
pub(super) fn caller_result(
    answer: Result<Answer, MasterError>,
) -> Result<CallerReturn, CallerError> {
    match answer {
        // A function that ran and failed.
        Ok(Answer::NoTarget { why }) => Ok(CallerReturn {
            value: why.into(),
            retcode: 2,
        }),
        Ok(_) => Ok(CallerReturn {
            value: "it ran".into(),
            retcode: 0,
        }),
        Err(MasterError::Refused { why, .. }) => Err(CallerError::Failed(why)),
        Err(MasterError::NoAnswer { why, .. }) => Err(CallerError::Lost(why)),
        Err(other) => Err(CallerError::NotStarted(other.to_string())),
    }
}

fn retry() -> MasterError {
    MasterError::Retry {
        place: "here".to_owned(),
        why: "no Salt".to_owned(),
    }
}

#[test]
fn a_caller_function_is_retried_only_if_it_did_not_run() {
    let run = |settings: Settings| {
        let rules = Rules {
            client: Some(Client::Caller),
            ..rules(&["*"])
        };
        let harness = Harness::start(rules, settings, |call, times| match call.fun.as_str() {
            "raises" => Err(refused()),
            "absent" if times == 1 => Err(retry()),
            "dies" if times == 1 => Err(no_answer()),
            _ => Ok(yes()),
        });
        for tag in ["works", "raises", "absent", "dies"] {
            harness.fire_event(tag, tag);
        }
        harness.wind_until_done();
        let mut outcomes: Vec<_> = harness
            .history()
            .into_iter()
            .map(|(tag, _, calls)| (tag, calls))
            .collect();
        outcomes.retain(|(_, calls)| calls.iter().any(|call| !call.is_empty()));
        outcomes.sort();
        let mut asked = harness.stop().1;
        asked.sort();
        let outcomes: Vec<_> = outcomes
            .iter()
            .map(|(tag, calls)| format!("{tag} {}", calls.join(" ")))
            .collect();
        (outcomes.join(", "), asked.join(" "))
    };
    let (outcomes, asked) = run(Settings::default());
    assert_eq!(outcomes, "absent ran, dies ran, raises dead, works ran");
    assert_eq!(asked, "absent absent dies dies raises works");
    let (outcomes, asked) = run(with(|options| options.at_most_once = true));
    assert_eq!(outcomes, "absent ran, dies unknown, raises dead, works ran");
    assert_eq!(asked, "absent absent dies raises works");
}

#[test]
fn a_failed_caller_function_is_recorded_as_failed() {
    let rules = Rules {
        client: Some(Client::Caller),
        ..rules(&["*"])
    };
    let harness = Harness::start(rules, Settings::default(), |call, _| {
        match call.fun.as_str() {
            "fails" => Ok(Answer::NoTarget {
                why: "sh: 1: cannot create /no/file".to_owned(),
            }),
            _ => Ok(yes()),
        }
    });
    for tag in ["works", "fails"] {
        harness.fire_event(tag, "web1");
    }
    harness.wait_until_done();
    let results: Vec<_> = harness
        .records()
        .iter()
        .map(|entry| {
            let call = elements(get(&entry.body, "calls").unwrap()).next().unwrap();
            let int = |key| get(call, key).and_then(as_int);
            let text = |key| get(call, key).and_then(as_text).map(str::to_owned);
            (
                text("outcome"),
                get(call, "success").and_then(as_bool),
                int("retcode"),
                text("result"),
            )
        })
        .collect();
    let ran = |success, retcode, result: &str| {
        (
            Some("ran".to_owned()),
            Some(success),
            Some(retcode),
            Some(result.to_owned()),
        )
    };
    assert_eq!(
        results,
        [
            ran(true, 0, "it ran"),
            ran(false, 2, "sh: 1: cannot create /no/file")
        ]
    );
    assert_eq!(harness.metrics.reactor_callers_failed.get(), 1);
    assert_eq!(harness.stop().1.len(), 2, "no retry, because both ran");
}

#[test]
fn unsupported_calls_are_dead_lettered_at_once() {
    let rules = Rules {
        client: Some(Client::Wheel),
        ..rules(&["a"])
    };
    let harness = Harness::start(rules, Settings::default(), |_, _| Ok(yes()));
    harness.fire_event("a", "web1");
    harness.wait_until_done();
    assert_eq!(harness.history(), [outcome("a", "dead", "dead")]);
    assert_eq!(harness.stop().1, [""; 0]);
}
