//! Calls that must not be repeated: which ones a restart treats as possibly made.

use super::*;

fn once() -> Settings {
    with(|options| options.at_most_once = true)
}

fn unknown(tag: &str) -> Outcome {
    outcome(tag, "dead", "unknown")
}

/// Stops the daemon during a call; returns the requests after the next start, and the history.
fn ended_after(
    answers: impl Fn(&Call, u32) -> Result<Answer, MasterError> + Send + Sync + 'static,
    so_far: impl Fn(&Harness),
) -> (Vec<String>, Vec<Outcome>) {
    let harness = Harness::start(rules(&["*"]), once(), answers);
    harness.fire_event("1", "web1");
    so_far(&harness);
    let (dir, _) = harness.stop();
    let harness = Harness::start_in(dir, NOW + SECOND, rules(&["*"]), once(), |_, _| Ok(yes()));
    harness.wait_until_done();
    let history = harness.history();
    (harness.stop().1, history)
}

#[test]
fn a_call_with_a_lost_answer_is_not_repeated() {
    let harness = Harness::start(rules(&["*"]), once(), silent);
    harness.fire_event("1", "web1");
    assert_eq!(harness.next(), "1");
    harness.wait_until_done();
    assert_eq!(harness.history(), [unknown("1")]);
    assert_eq!(harness.metrics.reactor_calls_unknown.get(), 1);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn no_call_starts_while_the_master_is_unreachable_and_all_are_made_after_a_restart() {
    let (asked, history) = ended_after(
        |_, _| Err(unreachable()),
        |harness| {
            harness.wait_for_the_pause();
            assert!(harness.status().master_unreachable);
            // Waiting adds no entries to the log.
            let head = harness.store.durable();
            for _ in 0..3 {
                harness.clock.wind(SECOND);
                harness.wait_for_the_pause();
            }
            assert_eq!(harness.store.durable(), head);
        },
    );
    assert_eq!((asked, history), (vec!["1".to_owned()], vec![done("1")]));
}

#[test]
fn a_call_that_was_certainly_not_made_is_retried_after_a_restart() {
    for why in [unreachable, refused] {
        let (asked, history) = ended_after(
            move |_, times| if times == 0 { Ok(yes()) } else { Err(why()) },
            |harness| {
                for _ in 0..2 {
                    assert_eq!(harness.next(), "1");
                    harness.wait_for_the_pause();
                    harness.clock.wind(2 * SECOND);
                }
                assert_eq!(harness.next(), "1");
                harness.wait_for_the_pause();
            },
        );
        assert_eq!(
            (asked, history),
            (vec!["1".to_owned()], vec![done("1")]),
            "{}",
            why()
        );
    }
}

#[test]
fn a_call_that_may_have_been_made_is_not_repeated_after_a_restart() {
    let barrier: Arc<Barrier> = Arc::default();
    barrier.shut(true);
    let waits = barrier.clone();
    let harness = Harness::start(rules(&["*"]), once(), move |_, times| match times {
        0 => Ok(yes()),
        1 | 2 => Err(unreachable()),
        _ => {
            waits.wait();
            Ok(yes())
        }
    });
    harness.fire_event("1", "web1");
    for _ in 0..2 {
        assert_eq!(harness.next(), "1");
        harness.wait_for_the_pause();
        harness.clock.wind(SECOND);
    }
    assert_eq!(harness.next(), "1", "sent without a response yet");
    let copy = harness.as_after_a_kill();
    barrier.shut(false);
    harness.wait_until_done();
    harness.stop();
    let harness = Harness::start_in(copy, NOW + SECOND, rules(&["*"]), once(), |_, _| Ok(yes()));
    harness.wait_until_done();
    assert_eq!(harness.history(), [unknown("1")]);
    assert_eq!(harness.stop().1, [""; 0]);
}
