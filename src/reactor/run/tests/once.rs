//! Calls that must not be made twice: what a start takes for perhaps made, and what it does not.

use super::*;

fn once() -> Settings {
    with(|options| options.at_most_once = true)
}

type History = Vec<(String, String, Vec<String>)>;

fn unknown(tag: &str) -> (String, String, Vec<String>) {
    (tag.to_owned(), "dead".to_owned(), vec!["unknown".to_owned()])
}

/// One call comes so far before the daemon ends; then what the master is asked after the next start, and the history.
fn ended_after(
    answers: impl Fn(&Call, u32) -> Result<Answer, MasterError> + Send + Sync + 'static,
    so_far: impl Fn(&Rig),
) -> (Vec<String>, History) {
    let rig = Rig::start(rules(&["*"]), once(), answers);
    rig.tell("1", "web1");
    so_far(&rig);
    let (dir, _) = rig.stop();
    let rig = Rig::start_in(dir, NOW + SECOND, rules(&["*"]), once(), |_, _| Ok(yes()));
    rig.wait_until_through();
    let history = rig.history();
    (rig.stop().1, history)
}

fn pauses(rig: &Rig) {
    rig.wait_for("the pause", |rig| rig.reactor.handle().next_at().is_some());
}

#[test]
fn there_is_no_second_time_when_the_answer_is_lost() {
    let is_there = |_: &Call, times| if times == 0 { Ok(yes()) } else { Err(no_answer()) };
    let rig = Rig::start(rules(&["*"]), once(), is_there);
    rig.tell("1", "web1");
    assert_eq!(rig.next(), "1");
    rig.wait_until_through();
    assert_eq!(rig.history(), [unknown("1")]);
    assert_eq!(rig.metrics.reactor_calls_unknown.get(), 1);
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn nothing_begins_while_the_master_is_away_and_all_is_done_after_a_start() {
    let (asked, history) = ended_after(
        |_, _| Err(unreachable()),
        |rig| {
            pauses(rig);
            assert!(rig.reactor.handle().status().master_unreachable);
            // Waiting adds nothing to the log, however long it takes.
            let head = rig.store.durable();
            for _ in 0..3 {
                rig.clock.wind(SECOND);
                pauses(rig);
            }
            assert_eq!(rig.store.durable(), head);
        },
    );
    assert_eq!((asked, history), (vec!["1".to_owned()], vec![done("1")]));
}

#[test]
fn what_was_certainly_not_done_is_tried_again_after_a_start() {
    for why in [unreachable, refused] {
        let (asked, history) = ended_after(
            move |_, times| if times == 0 { Ok(yes()) } else { Err(why()) },
            |rig| {
                for _ in 0..2 {
                    assert_eq!(rig.next(), "1");
                    pauses(rig);
                    rig.clock.wind(2 * SECOND);
                }
                assert_eq!(rig.next(), "1");
                pauses(rig);
            },
        );
        assert_eq!((asked, history), (vec!["1".to_owned()], vec![done("1")]), "{}", why());
    }
}

#[test]
fn what_may_have_been_done_is_not_made_again_after_a_start_though_tries_before_were_none() {
    let gate: Arc<Policy> = Arc::default();
    gate.shut(true);
    let waits = gate.clone();
    let rig = Rig::start(rules(&["*"]), once(), move |_, times| match times {
        0 => Ok(yes()),
        1 | 2 => Err(unreachable()),
        _ => {
            waits.wait();
            Ok(yes())
        }
    });
    rig.tell("1", "web1");
    for _ in 0..2 {
        assert_eq!(rig.next(), "1");
        pauses(&rig);
        rig.clock.wind(SECOND);
    }
    assert_eq!(rig.next(), "1", "it has been sent, and there is no answer yet");
    let copy = rig.as_after_a_kill();
    gate.shut(false);
    rig.wait_until_through();
    rig.stop();
    let rig = Rig::start_in(copy, NOW + SECOND, rules(&["*"]), once(), |_, _| Ok(yes()));
    rig.wait_until_through();
    assert_eq!(rig.history(), [unknown("1")]);
    assert_eq!(rig.stop().1, [""; 0]);
}
