//! Tests of the checkpoint.

use super::*;
use crate::base::clock::Micros;

fn summary(event: u64, rules: &[&str], rule_count: usize) -> RecordSummary {
    RecordSummary {
        event: SeqNo(event),
        at: Micros(0),
        content: 0,
        rules: rules.iter().map(|rule| rule_hash(rule)).collect(),
        rule_count,
        marks: None,
    }
}

#[test]
fn an_event_is_open_until_all_its_rules_are_complete() {
    let mut checkpoint = Checkpoint::at(SeqNo(5));
    checkpoint.opened(SeqNo(7), 2);
    checkpoint.apply_record(SeqNo(9), &summary(7, &["a"], 2));
    assert!(checkpoint.is_done(SeqNo(7), "a") && !checkpoint.is_done(SeqNo(7), "b"));
    checkpoint.apply_record(SeqNo(9), &summary(7, &["a"], 2));
    assert!(checkpoint.open.contains(SeqNo(7)));
    checkpoint.apply_record(SeqNo(9), &summary(7, &["b"], 2));
    assert_eq!(checkpoint.open.len(), 0);
    checkpoint.apply_record(SeqNo(9), &summary(8, &["b"], 1));
    assert_eq!(checkpoint.open.len(), 0, "a record without its event");
}

#[test]
fn a_rule_that_is_added_again_ignores_the_events_in_between() {
    let mut checkpoint = Checkpoint::at(SeqNo(5));
    checkpoint.set_rules(["a", "b"].into_iter(), SeqNo(5));
    checkpoint.set_rules(["b"].into_iter(), SeqNo(7));
    checkpoint.set_rules(["a", "b"].into_iter(), SeqNo(9));
    assert_eq!(
        [8, 9].map(|seq| checkpoint.takes("a", SeqNo(seq))),
        [false, true]
    );
    assert_eq!(
        [4, 5].map(|seq| checkpoint.takes("b", SeqNo(seq))),
        [false, true]
    );
    assert!(checkpoint.takes("added while it runs", SeqNo(1)));
}

#[test]
fn calls_start_with_the_first_event_after_shadow_mode() {
    let mut checkpoint = Checkpoint::at(SeqNo(5));
    assert_eq!(checkpoint.acting_from(), None);
    for (shadow, from, acting) in [
        (false, 5, Some(5)),
        (false, 7, Some(5)),
        (true, 8, None),
        (false, 9, Some(9)),
    ] {
        checkpoint.set_mode(shadow, SeqNo(from));
        assert_eq!(checkpoint.acting_from(), acting.map(SeqNo));
    }
}
