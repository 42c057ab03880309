//! Tests of the section `store`.

use std::time::Duration;

use super::*;
use crate::config::tests::{assert_errors, assert_round_trip};
use crate::model::Age;

#[test]
fn classes_are_read_in_their_order_and_jobs_and_events_are_added() {
    let text = "- name: chatter\n  match: [{fun: 'saltutil.*'}, {tag: salt/auth}]\n  keep: {age: 1d, bytes: 1GiB}\n\
                - name: events\n  keep: {entries: 5000}\n";
    let config = assert_round_trip(&format!("store.classes:\n{text}"));
    let names: Vec<_> = config
        .store
        .classes
        .iter()
        .map(|class| class.name.as_str())
        .collect();
    assert_eq!(names, ["chatter", "events", "jobs"]);
    let [chatter, events, jobs] = config.store.classes.as_slice() else {
        panic!()
    };
    assert_eq!(chatter.rules.len(), 2);
    assert_eq!(chatter.keep.age, Age::For(Duration::from_secs(86_400)));
    assert_eq!(chatter.keep.bytes, Some(GIB));
    assert_eq!(
        (events.keep.age, events.keep.entries),
        (ClassRules::events().keep.age, Some(5000))
    );
    assert_eq!(
        jobs.keep.age,
        Age::AtLeastSalt(Duration::from_secs(90 * 86_400))
    );
}

#[test]
fn rendered_classes_are_read_back_equal() {
    for text in [
        "[]",
        "[{name: a, match: [{fun: 'x*', tag: 'y?'}], keep: {age: 90s, bytes: 1500000, entries: 1000}}]",
        "[{name: jobs, keep: {age: forever}}, {name: b-2, match: [{tag: '*'}], keep: {age: salt}}]",
        "[{name: jobs, keep: {age: 30d or salt}}]",
    ] {
        assert_round_trip(&format!("store.classes: {text}"));
    }
}

#[test]
fn an_error_names_line_key_and_accepted_values() {
    let check = |text: &str, expected: &str| {
        assert_errors(&[(
            &format!("store.classes:\n{text}"),
            &format!("c.yaml:{expected}"),
        )]);
    };
    check(
        "- 5",
        "2: store.classes[0]: integer `5` is not accepted; give a mapping with `name`, `match` and `keep`",
    );
    check(
        "- keep: {age: 1d}\n",
        "2: store.classes[0]: missing field `name`",
    );
    check(
        "- name: A\n",
        "2: store.classes[0]: `name` \"A\" is not accepted; give a name of lower-case",
    );
    check(
        "- name: jobs\n  match: []\n",
        "2: store.classes[0]: jobs contains the entries that match no other class; leave",
    );
    check(
        "- name: a\n  keep: {age: 1d}\n",
        "2: store.classes[0]: `match` is missing; give a list such as",
    );
    check(
        "- name: a\n  match: []\n  keep: {age: 1d}\n",
        "3: store.classes[0].match: 0 items; give from 1 to",
    );
    check(
        "- name: a\n  match: [{}]\n  keep: {age: 1d}\n",
        "3: store.classes[0].match[0]: it matches nothing; give fun, tag, or both",
    );
    check(
        "- name: a\n  match:\n   - fn: x\n",
        "4: store.classes[0].match[0].fn: unknown field `fn`, expected `fun` or `tag`",
    );
    check(
        "- name: a\n  match:\n   - fun: [x]\n",
        "4: store.classes[0].match[0].fun: a list is not accepted; give a glob",
    );
    check(
        "- name: a\n  match: [{fun: x}]\n",
        "2: store.classes[0]: `keep` contains no limit; give at least one of",
    );
    check(
        "- name: jobs\n  keep: {}\n",
        "2: store.classes[0]: `keep` contains no limit; give at least one of",
    );
    check(
        "- name: jobs\n  keep: {days: 3}\n",
        "3: store.classes[0].keep.days: unknown field `days`, expected one of `age`, `bytes`, `entries`",
    );
    check(
        "- name: jobs\n  keep: [1d]\n",
        "3: store.classes[0].keep: a list is not accepted; give a mapping",
    );
    check(
        "- name: jobs\n  keep: {age: 30}\n",
        "3: store.classes[0].keep.age: \"30\" is not accepted; give a time from 1s",
    );
    check(
        "- name: jobs\n  keep: {age: 0d}\n",
        "3: store.classes[0].keep.age: \"0d\" is not accepted",
    );
    check(
        "- name: jobs\n  keep: {bytes: 5}\n",
        "3: store.classes[0].keep.bytes: \"5\" is not accepted; give a value from 1MiB on",
    );
    check(
        "- name: jobs\n  keep:\n    entries: 5\n",
        "4: store.classes[0].keep.entries: \"5\" is not accepted; give a value from 1000 on",
    );
    check(
        "- {name: jobs, keep: {age: 1d}}\n- {name: jobs, keep: {age: 2d}}\n",
        "3: store.classes[1].name: the name \"jobs\" appears twice; give each item its own",
    );
    let one = |n| format!("- {{name: c{n}, match: [{{fun: x}}], keep: {{age: 1d}}}}\n");
    check(
        &(0..40).map(one).collect::<String>(),
        "1: store.classes: 40 items; give at most",
    );
}
