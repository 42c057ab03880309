//! Tables of the decisions: no thread, store or master takes part.

use super::*;

/// The facts with some more that are true.
macro_rules! with {
    ($facts:expr, $($fact:ident),+) => {{
        let mut facts = $facts;
        $(facts.$fact = true;)+
        facts
    }};
}

const OLD: &str = "the event is older than `reactor.age_max`";
const SHADOW: &str = "the reactor is in shadow mode now";

#[test]
fn an_event_beyond_the_depth_limit_gets_no_reaction() {
    let decided = [0, 8, 9].map(|depth| at_arrival(depth, 8));
    assert_eq!(decided, [None, None, Some(SkipReason::Depth)]);
}

#[test]
fn a_task_at_its_turn_is_begun_continued_or_skipped() {
    use AtTurn::{Begin, Continue, Skip};
    let plain = Turn {
        is_old: false,
        has_begun: false,
        may_have_sent: false,
        is_replay: false,
        has_rule: true,
        is_of_peer: false,
    };
    let no_rule = Turn {
        has_rule: false,
        ..plain
    };
    let table = [
        ("a new event", plain, Begin),
        (
            "it expired in the queue",
            with!(plain, is_old),
            Skip(SkipReason::TooOld),
        ),
        (
            "it expired, and a call was started before a restart",
            with!(plain, is_old, may_have_sent),
            Begin,
        ),
        (
            "the master became one of a cluster",
            with!(plain, is_of_peer),
            Skip(SkipReason::Peer),
        ),
        (
            "it became one after a call was started",
            with!(plain, is_of_peer, may_have_sent),
            Begin,
        ),
        (
            "it became one while the reaction paused",
            with!(plain, is_of_peer, has_begun),
            Continue,
        ),
        (
            "a replay of another master's event",
            with!(plain, is_of_peer, is_replay),
            Begin,
        ),
        ("its rule was removed", no_rule, Skip(SkipReason::NoRule)),
        (
            "it expired, and its rule was removed",
            with!(no_rule, is_old),
            Skip(SkipReason::TooOld),
        ),
        (
            "its rule was removed after a call was started",
            with!(no_rule, may_have_sent),
            Skip(SkipReason::NoRule),
        ),
        (
            "a replay by a removed rule",
            with!(no_rule, is_replay),
            Begin,
        ),
        ("it paused", with!(plain, has_begun), Continue),
        (
            "its rule was removed while it paused",
            with!(no_rule, has_begun),
            Continue,
        ),
        (
            "it expired while the master was away",
            with!(plain, has_begun, is_old),
            Skip(SkipReason::TooOld),
        ),
        (
            "it expired after a call was sent",
            with!(plain, has_begun, is_old, may_have_sent),
            Continue,
        ),
    ];
    for (name, turn, expected) in table {
        assert_eq!(turn.decide(), expected, "{name}");
    }
}

#[test]
fn calls_are_made_for_events_of_ours_only() {
    let active = Mode {
        shadow: false,
        is_skipped: false,
        is_replay: false,
        is_ours: true,
    };
    let of_salt = Mode {
        is_ours: false,
        ..active
    };
    let table = [
        ("active", active, false),
        ("shadow mode", with!(active, shadow), true),
        (
            "skipped by a throttle, in shadow",
            with!(active, is_skipped),
            true,
        ),
        ("an event of Salt's reactor", of_salt, true),
        (
            "a replay of an event of Salt's reactor",
            with!(of_salt, is_replay),
            false,
        ),
        (
            "a replay in shadow mode",
            with!(active, is_replay, shadow),
            true,
        ),
    ];
    for (name, mode, only_watches) in table {
        assert_eq!(mode.only_watches(), only_watches, "{name}");
    }
}

/// The first try of a call.
const FIRST: Attempt = Attempt {
    is_held: false,
    is_refused: false,
    only_watches: false,
    is_old: false,
    was_started: false,
    must_not_repeat: false,
    tries: 0,
    maybe_sent: false,
    is_unanswered: false,
    is_searched: false,
};

#[test]
fn a_call_is_sent_shown_searched_for_or_given_up() {
    use Next::{Dead, Hold, Refuse, Search, Send, Settle, Show, Unknown};
    let watched = with!(FIRST, only_watches);
    let old = with!(FIRST, is_old);
    let maybe_sent = with!(FIRST, maybe_sent);
    let searched = with!(maybe_sent, is_searched);
    let retried = Attempt { tries: 2, ..FIRST };
    let maybe_made = Attempt {
        tries: 1,
        ..maybe_sent
    };
    let started = with!(FIRST, was_started, maybe_sent);

    let table = [
        ("first try", FIRST, Send),
        ("again, after it was not made", retried, Send),
        ("held by the lease", with!(FIRST, is_held), Hold),
        (
            "held, whatever else",
            with!(watched, is_held, is_refused),
            Hold,
        ),
        (
            "not allowed, or not supported",
            with!(FIRST, is_refused),
            Refuse,
        ),
        ("the same in shadow", with!(watched, is_refused), Refuse),
        // Dry run.
        ("shadow", watched, Show),
        ("shadow, and old", with!(watched, is_old), Show),
        ("shadow, after a restart", with!(watched, maybe_sent), Show),
        (
            "shadow began after a try that may have arrived",
            with!(maybe_made, only_watches),
            Search,
        ),
        (
            "the same without proof",
            with!(maybe_made, is_searched, only_watches),
            Unknown(SHADOW),
        ),
        (
            "shadow began while the response was awaited",
            with!(watched, is_unanswered),
            Settle,
        ),
        (
            "shadow began, and it was started before a restart",
            with!(started, only_watches),
            Search,
        ),
        // Expired.
        ("old, never sent", old, Dead(OLD)),
        ("old, tried in vain", with!(retried, is_old), Dead(OLD)),
        ("old, after a restart", with!(maybe_sent, is_old), Search),
        (
            "the same without proof",
            with!(searched, is_old),
            Unknown(OLD),
        ),
        (
            "old, started before a restart, may be repeated",
            with!(FIRST, is_old, was_started),
            Unknown(OLD),
        ),
        // The response was lost.
        ("a job without a response", maybe_sent, Search),
        ("the same without proof", searched, Send),
        (
            "a runner without a response",
            with!(FIRST, is_unanswered),
            Settle,
        ),
        ("the same, old", with!(old, is_unanswered), Settle),
        // A mark from before a restart.
        (
            "started, must not be repeated",
            with!(started, must_not_repeat),
            Settle,
        ),
        ("started, may be repeated", started, Search),
        ("the same without proof", with!(started, is_searched), Send),
        (
            "without a mark it was not sent",
            with!(searched, must_not_repeat),
            Send,
        ),
    ];
    for (name, attempt, expected) in table {
        assert_eq!(attempt.next(), expected, "{name}");
    }
}

/// Every combination of the facts about a call.
fn all_attempts() -> impl Iterator<Item = Attempt> {
    (0..1_u32 << 10).map(|bits| {
        let bit = |n: u32| bits >> n & 1 == 1;
        Attempt {
            is_held: bit(0),
            is_refused: bit(1),
            only_watches: bit(2),
            is_old: bit(3),
            was_started: bit(4),
            must_not_repeat: bit(5),
            tries: u32::from(bit(6)),
            maybe_sent: bit(7),
            is_unanswered: bit(8),
            is_searched: bit(9),
        }
    })
}

#[test]
fn what_may_have_been_made_is_neither_recorded_as_not_made_nor_repeated_in_vain() {
    for attempt in all_attempts() {
        let next = attempt.next();
        let certainly_sent =
            attempt.was_started || attempt.is_unanswered || attempt.maybe_sent && attempt.tries > 0;
        match next {
            Next::Dead(_) => assert!(!certainly_sent && !attempt.maybe_sent, "{attempt:?}"),
            Next::Show => assert!(!certainly_sent && attempt.only_watches, "{attempt:?}"),
            Next::Send => {
                assert!(
                    !attempt.is_held
                        && !attempt.is_refused
                        && !attempt.only_watches
                        && !attempt.is_old
                        && !attempt.is_unanswered,
                    "{attempt:?}"
                );
                assert!(!attempt.maybe_sent || attempt.is_searched, "{attempt:?}");
                assert!(
                    !(attempt.was_started && attempt.must_not_repeat),
                    "{attempt:?}"
                );
            }
            // Only once, or the log would be searched forever.
            Next::Search => assert!(attempt.maybe_sent && !attempt.is_searched, "{attempt:?}"),
            Next::Hold => assert!(attempt.is_held, "{attempt:?}"),
            Next::Refuse => assert!(attempt.is_refused, "{attempt:?}"),
            Next::Settle | Next::Unknown(_) => {}
        }
    }
}

#[test]
fn a_failed_try_is_repeated_proved_or_given_up() {
    use Consequence::{Dead, Retry, Search, Settle, Wait};
    let text = String::new;
    let (away, no_mark) = (Failure::Unreachable(text()), Failure::MarkNotStored(text()));
    let (not_made, lost) = (Failure::NotMade(text()), Failure::PossiblyMade(text()));
    let last = Failure::Final(text());

    // Failure, tries of 3, an earlier try may have arrived, must not be repeated.
    let table = [
        ("the master is away", &away, 0, false, false, Wait),
        (
            "the master is away after all tries",
            &away,
            3,
            true,
            true,
            Wait,
        ),
        ("its mark is not stored", &no_mark, 3, false, true, Wait),
        ("not made", &not_made, 1, false, false, Retry),
        (
            "not made, must not be repeated",
            &not_made,
            1,
            false,
            true,
            Retry,
        ),
        ("not made at the last try", &not_made, 3, false, false, Dead),
        (
            "not made at the last try, unlike an earlier one",
            &not_made,
            3,
            true,
            false,
            Search,
        ),
        ("possibly made", &lost, 1, false, false, Retry),
        (
            "possibly made at the last try",
            &lost,
            3,
            false,
            false,
            Search,
        ),
        (
            "possibly made, must not be repeated",
            &lost,
            1,
            false,
            true,
            Settle,
        ),
        (
            "possibly made at the last try, not to be repeated",
            &lost,
            3,
            false,
            true,
            Settle,
        ),
        ("it ran and failed", &last, 1, true, false, Dead),
    ];
    for (name, failure, tries, maybe_sent, must_not_repeat, expected) in table {
        let found = failure.consequence(tries, 3, maybe_sent, must_not_repeat);
        assert_eq!(found, expected, "{name}");
        assert_eq!(failure.is_a_try(), expected != Wait, "{name}");
    }
}

#[test]
fn only_a_runner_is_searched_for_until_the_log_of_its_time_was_read() {
    let decided = [(true, true), (true, false), (false, true), (false, false)]
        .map(|(may_start_late, has_time)| searches_on(may_start_late, has_time));
    assert_eq!(decided, [true, false, false, false]);
}

#[test]
fn the_state_of_a_reaction_follows_from_its_calls_and_failures() {
    use ReactionState::{Dead, Done, Failed, Partial, Skipped};
    use SkipReason::Rate;
    // Skipped, failed to render, calls, of these dead.
    let table = [
        (None, false, 0, 0, Done),
        (None, false, 2, 0, Done),
        (None, false, 2, 1, Partial),
        (None, false, 2, 2, Dead),
        (None, true, 0, 0, Failed),
        (None, true, 2, 0, Partial),
        (None, true, 2, 1, Partial),
        (None, true, 2, 2, Failed),
        (Some(Rate), true, 2, 2, Skipped(Rate)),
        (Some(Rate), false, 2, 0, Skipped(Rate)),
    ];
    for (skipped, has_failures, calls, dead, expected) in table {
        assert_eq!(state(skipped, has_failures, calls, dead), expected);
    }
}

#[test]
fn errors_of_a_master_and_of_functions_state_whether_the_call_may_have_been_made() {
    let (place, why) = (|| "here".to_owned(), || "x".to_owned());
    let of_master = |error: MasterError| {
        let words = error.to_string();
        (Failure::from(error), words)
    };
    let (failure, words) = of_master(MasterError::Unreachable {
        place: place(),
        why: why(),
    });
    assert_eq!(failure, Failure::Unreachable(words));
    for error in [
        MasterError::Retry {
            place: place(),
            why: why(),
        },
        MasterError::Refused {
            place: place(),
            why: why(),
        },
    ] {
        let (failure, words) = of_master(error);
        assert_eq!(failure, Failure::NotMade(words));
    }
    let (failure, words) = of_master(MasterError::NoAnswer {
        place: place(),
        why: why(),
    });
    assert_eq!(failure, Failure::PossiblyMade(words));

    let of_caller = [
        (CallerError::NotStarted(why()), Failure::NotMade(why())),
        (CallerError::Failed(why()), Failure::Final(why())),
        (CallerError::Lost(why()), Failure::PossiblyMade(why())),
    ];
    for (error, expected) in of_caller {
        assert_eq!(Failure::from(error), expected);
    }
}
