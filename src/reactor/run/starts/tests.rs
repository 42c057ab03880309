//! Tests of claims of starts.

use super::*;

fn call(client: &str, arg: &str) -> ObservedCall {
    ObservedCall::on_master(client, "test.arg", Some(vec![arg.into()]))
}

#[test]
fn a_start_is_reserved_for_an_equal_call_in_flight() {
    let (mut starts, one) = (Starts::default(), call("runner", "1"));
    starts.sent(&one);
    starts.sent(&one);
    starts.returned(&one, SeqNo(1), None);
    starts.note(SeqNo(5), "5", one.clone());
    assert_eq!(starts.find(&one, SeqNo(1)), None, "it may be the other's");
    starts.note(SeqNo(6), "6", one.clone());
    assert_eq!(
        starts.find(&one, SeqNo(6)),
        None,
        "one of the two came before the request"
    );
    assert_eq!(starts.find(&one, SeqNo(1)).as_deref(), Some("5"));
    starts.returned(&one, SeqNo(1), Some("6"));
    assert_eq!(starts.find(&one, SeqNo(1)), None);
}

#[test]
fn a_start_is_claimed_once_even_if_read_late_or_twice() {
    let (mut starts, one) = (Starts::default(), call("runner", "1"));
    starts.sent(&one);
    starts.returned(&one, SeqNo(1), Some("5"));
    starts.note(SeqNo(5), "5", one.clone());
    starts.note(
        SeqNo(6),
        "6",
        ObservedCall::on_master("runner", "test.arg", None),
    );
    starts.note(SeqNo(7), "7", call("runner", "2"));
    starts.note(SeqNo(8), "8", call("wheel", "1"));
    assert_eq!(starts.find(&one, SeqNo(1)), None);
    starts.note(SeqNo(9), "9", one.clone());
    starts.note(SeqNo(9), "9", one.clone());
    assert_eq!(starts.find(&one, SeqNo(1)).as_deref(), Some("9"));
    starts.note(SeqNo(9), "9", one.clone());
    assert_eq!(starts.find(&one, SeqNo(1)), None);
}

#[test]
fn both_jids_of_a_wheel_call_are_claimed() {
    for answer_first in [true, false] {
        let (mut starts, one) = (Starts::default(), call("wheel", "1"));
        starts.sent(&one);
        if answer_first {
            starts.returned(&one, SeqNo(1), Some("4"));
        }
        starts.note(
            SeqNo(4),
            "4",
            ObservedCall::on_master("wheel", "test.arg", None),
        );
        starts.note(SeqNo(5), "5", one.clone());
        if !answer_first {
            starts.returned(&one, SeqNo(1), Some("4"));
        }
        assert_eq!(starts.find(&one, SeqNo(1)), None);
    }
}

#[test]
fn memory_is_bounded() {
    let mut starts = Starts::default();
    for n in 0..REACTOR_STARTS_MAX + 5 {
        starts.note(SeqNo(n as u64), &n.to_string(), call("runner", "1"));
        starts.claim(&format!("c{n}"));
    }
    assert_eq!(
        (starts.unclaimed.len(), starts.claimed.len().0),
        (REACTOR_STARTS_MAX, REACTOR_STARTS_MAX)
    );
}
