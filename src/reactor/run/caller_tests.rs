//! Functions that run on this machine, and what can never be carried out.

use super::*;
use crate::wire::msgpack::{as_bool, as_int};

/// The function that an event's tag names.
pub(super) fn wanted(event: &Event) -> What {
    What::Caller { fun: event.tag.clone(), args: Vec::new(), kwargs: Value::Null }
}

/// What the master's answers stand for here.
pub(super) fn told(answer: Result<Answer, MasterError>) -> Result<CallerReturn, CallerError> {
    match answer {
        // One that "fails" is a function that ran and says so.
        Ok(Answer::NoTarget { why }) => Ok(CallerReturn { value: why.into(), retcode: 2 }),
        Ok(_) => Ok(CallerReturn { value: "it ran".into(), retcode: 0 }),
        Err(MasterError::Refused { why, .. }) => Err(CallerError::Failed(why)),
        Err(MasterError::NoAnswer { why, .. }) => Err(CallerError::Lost(why)),
        Err(other) => Err(CallerError::NotStarted(other.to_string())),
    }
}

fn retry() -> MasterError {
    MasterError::Retry { place: "here".to_owned(), why: "no Salt".to_owned() }
}

#[test]
fn a_function_that_runs_here_is_tried_again_only_if_it_may_not_have_had_its_run() {
    let play = |settings: Settings| {
        let rules = Rules { caller: true, ..rules(&["*"]) };
        let rig = Rig::start(rules, settings, |call, times| match call.fun.as_str() {
            "raises" => Err(refused()),
            "absent" if times == 1 => Err(retry()),
            "dies" if times == 1 => Err(no_answer()),
            _ => Ok(yes()),
        });
        for tag in ["works", "raises", "absent", "dies"] {
            rig.tell(tag, tag);
        }
        rig.wait_for("all to be through", |rig| {
            rig.clock.wind(SECOND);
            let status = rig.reactor.handle().status();
            status.behind == 0 && status.waiting == 0 && status.open == 0
        });
        let mut outcomes: Vec<_> = rig.history().into_iter().map(|(tag, _, calls)| (tag, calls)).collect();
        outcomes.retain(|(_, calls)| calls.iter().any(|call| !call.is_empty()));
        outcomes.sort();
        let mut asked = rig.stop().1;
        asked.sort();
        let outcomes: Vec<_> =
            outcomes.iter().map(|(tag, calls)| format!("{tag} {}", calls.join(" "))).collect();
        (outcomes.join(", "), asked.join(" "))
    };
    let (outcomes, asked) = play(Settings::default());
    assert_eq!(outcomes, "absent ran, dies ran, raises dead, works ran");
    assert_eq!(asked, "absent absent dies dies raises works");
    let (outcomes, asked) = play(with(|options| options.at_most_once = true));
    assert_eq!(outcomes, "absent ran, dies unknown, raises dead, works ran");
    assert_eq!(asked, "absent absent dies raises works");
}

#[test]
fn a_function_that_failed_was_shown_as_one_that_ran() {
    let rules = Rules { caller: true, ..rules(&["*"]) };
    let rig = Rig::start(rules, Settings::default(), |call, _| match call.fun.as_str() {
        "fails" => Ok(Answer::NoTarget { why: "sh: 1: cannot create /no/file".to_owned() }),
        _ => Ok(yes()),
    });
    for tag in ["works", "fails"] {
        rig.tell(tag, "web1");
    }
    rig.wait_until_through();
    let filter = EventFilter { reactions: true, ..EventFilter::default() };
    let said: Vec<_> = rig
        .store
        .events_before(&filter, rig.store.durable(), usize::MAX, usize::MAX)
        .unwrap()
        .iter()
        .rev()
        .map(|entry| {
            let call = elements(get(&entry.body, "calls").unwrap()).next().unwrap();
            let int = |key| get(call, key).and_then(as_int);
            let text = |key| get(call, key).and_then(as_text).map(str::to_owned);
            (text("outcome"), get(call, "success").and_then(as_bool), int("retcode"), text("result"))
        })
        .collect();
    let ran = |success, retcode, result: &str| {
        (Some("ran".to_owned()), Some(success), Some(retcode), Some(result.to_owned()))
    };
    assert_eq!(said, [ran(true, 0, "it ran"), ran(false, 2, "sh: 1: cannot create /no/file")]);
    assert_eq!(rig.metrics.reactor_callers_failed.get(), 1);
    assert_eq!(rig.stop().1.len(), 2, "neither is tried again: both have had their run");
}

#[test]
fn what_can_never_be_carried_out_here_is_set_aside_at_once() {
    let rules = Rules { cmd: Some(Cmd::Wheel), ..rules(&["a"]) };
    let rig = Rig::start(rules, Settings::default(), |_, _| Ok(yes()));
    rig.tell("a", "web1");
    rig.wait_until_through();
    assert_eq!(rig.history(), [("a".to_owned(), "dead".to_owned(), vec!["dead".to_owned()])]);
    assert_eq!(rig.stop().1, [""; 0]);
}
