//! Tests of the section `ingest`.

use crate::config::tests::{assert_errors, assert_round_trip};

#[test]
fn rendered_rules_are_read_back_equal() {
    for text in [
        "ingest: {filter: []}",
        "ingest.filter:\n- {do: drop, retcode: [0, '!2'], where: 'data.retcode == 0 and tag == \"a\"'}",
        "ingest.filter:\n- {do: store, tag: 'salt/job/*'}\n- {do: sample 7, fun: [a, b], minion: 'x*'}\n- {name: rest, do: drop}",
        "ingest.redact:\n- {builtin: pillar}\n- {keys: [a, '*b*'], paths: return.x.*, patterns: ['a\\d+'], tag: t}",
        "ingest.redact: [{name: n, builtin: private_keys, keys: k, minion: [1, true, 007]}]",
    ] {
        assert_round_trip(text);
    }
    let config = assert_round_trip("ingest.filter: [{do: drop}, {do: sample 7, minion: [5, 007]}]");
    let [first, second] = config.ingest.filter.as_slice() else {
        panic!()
    };
    assert_eq!((first.name.as_str(), second.name.as_str()), ("1", "2"));
    assert_eq!(
        second
            .minion
            .iter()
            .map(salt_sls::Glob::as_str)
            .collect::<Vec<_>>(),
        ["5", "007"]
    );
}

#[test]
fn an_error_names_line_key_and_accepted_values() {
    let many = format!("ingest.filter:\n{}", "- do: drop\n".repeat(65));
    assert_errors(&[
        (
            "ingest.filter:\n- x",
            "c.yaml:2: ingest.filter[0]: string \"x\" is not accepted; give a mapping with `do`",
        ),
        (
            "ingest.filter:\n- tag: x",
            "c.yaml:2: ingest.filter[0]: missing field `do`",
        ),
        (
            "ingest.filter:\n- tag: x\n  do: allow",
            "c.yaml:3: ingest.filter[0].do: \"allow\" is not accepted; give store, drop",
        ),
        (
            "ingest.filter:\n- do: sample 1",
            "c.yaml:2: ingest.filter[0].do: \"sample 1\" is not accepted",
        ),
        (
            "ingest.filter:\n- do: drop\n  tags: x",
            "c.yaml:3: ingest.filter[0].tags: unknown field `tags`, expected one of `name`, `do`, `tag`",
        ),
        (
            "ingest.filter:\n- do: drop\n  tag: []",
            "c.yaml:3: ingest.filter[0].tag: invalid length 0, expected a glob, or a list of 1 to 64",
        ),
        (
            "ingest.filter:\n- do: drop\n  tag: {a: b}",
            "c.yaml:3: ingest.filter[0].tag: a mapping is not accepted; give a glob",
        ),
        (
            "ingest.filter:\n- {do: drop, name: a}\n- {do: drop, name: a}",
            "c.yaml:3: ingest.filter[1].name: the name \"a\" appears twice",
        ),
        (
            "ingest.filter:\n- do: drop\n  retcode: ok",
            "c.yaml:3: ingest.filter[0].retcode: \"ok\" is not accepted; give an exit code",
        ),
        (
            "ingest.filter:\n- do: drop\n  where: data.x ==",
            "c.yaml:3: ingest.filter[0].where: column 10",
        ),
        (
            "ingest.filter:\n- do: drop\n  class: jobs",
            "c.yaml:3: ingest.filter[0].class: unknown field `class`, expected one of `name`, `do`, `tag`",
        ),
        (&many, "c.yaml:1: ingest.filter: 65 items; give at most 64"),
        (
            "ingest.redact:\n- tag: x",
            "c.yaml:2: ingest.redact[0]: it selects nothing; give at least one of builtin, keys",
        ),
        (
            "ingest.redact:\n- builtin: secrets",
            "c.yaml:2: ingest.redact[0].builtin: unknown variant `secrets`, expected one of `passwords`, `private_keys`",
        ),
        (
            "ingest.redact:\n- paths: a..b",
            "c.yaml:2: ingest.redact[0].paths: \"a..b\" is not accepted; give keys joined by dots",
        ),
        (
            "ingest.redact:\n- patterns:\n   - a\n   - '('",
            "c.yaml:4: ingest.redact[0].patterns[1]: \"(\" is not a regular expression: unclosed group",
        ),
        (
            "ingest.redact:\n- patterns: 'x*'",
            "c.yaml:2: ingest.redact[0].patterns: \"x*\" matches the empty string; give a pattern that needs at least one character",
        ),
    ]);
}
