//! Tests of filters over stored events.

use super::*;
use crate::msgpack::Writer;
use crate::salt_event::event_entry;
use salt_sls::Glob;
use saltcellar_base::clock::Micros;
use saltcellar_model::Source;

fn filter(json: &str) -> Result<EntryFilter, String> {
    let mut reader = serde_json::Deserializer::from_str(json);
    serde_path_to_error::deserialize(&mut reader).map_err(|error| error.to_string())
}

#[test]
fn the_columns_decide_only_what_they_hold() {
    let one = filter(r#"{"match": [{"fun": "state.*", "minion": "web1"}]}"#).unwrap();
    for (minion, fun, expected) in [
        ("web1", "state.apply", true),
        ("web1", "", true),
        ("web1", "test.ping", false),
        ("web2", "", false),
    ] {
        assert_eq!(one.may_match(minion, fun), expected, "{minion} {fun}");
    }
    let two = filter(r#"{"match": [{"minion": "web1"}, {"tag": "a*"}]}"#).unwrap();
    assert!(two.may_match("web2", "x") && EntryFilter::default().may_match("", ""));
    let open = EventFilter::default();
    assert_eq!(one.narrowed(&open).minion, Some(Glob::new("web1")));
    assert_eq!(two.narrowed(&open), open, "two alternatives");
    let globs = filter(r#"{"match": [{"minion": "web?", "tag": "a*"}]}"#)
        .unwrap()
        .narrowed(&open);
    assert_eq!((globs.minion, globs.tag), (None, Some(Glob::new("a*"))));
    let own = EventFilter {
        minion: Some(Glob::new("db1")),
        ..open
    };
    assert_eq!(one.narrowed(&own), own, "both must hold");
}

fn passes(json: &str, tag: &str, fun: &str, retcode: i64) -> bool {
    let mut w = Writer::new();
    w.map(4)
        .str("id")
        .str("web1")
        .str("fun")
        .str(fun)
        .str("retcode")
        .int(retcode)
        .str("return")
        .bool(true);
    let body = w.into_bytes();
    let entry = event_entry(tag.as_bytes(), &body, Source::Bus, Micros(1));
    filter(json).unwrap().matches(&entry, "jobs").unwrap()
}

#[test]
fn one_scope_and_the_condition_must_hold() {
    let tag = "salt/job/20261121054728123456/ret/web1";
    assert!(passes("{}", tag, "test.ping", 0));
    let alternatives =
        r#"{"match": [{"tag": "salt/auth*"}, {"fun": ["user.*", "state.*"], "minion": "web?"}]}"#;
    assert!(
        passes(alternatives, tag, "state.apply", 0) && passes(alternatives, "salt/auth", "", 0)
    );
    assert!(!passes(alternatives, tag, "test.ping", 0));
    assert!(passes(
        r#"{"match": [{"retcode": "!0"}]}"#,
        tag,
        "test.ping",
        2
    ));
    assert!(passes(
        r#"{"match": [{"retcode": [1, 2]}]}"#,
        tag,
        "test.ping",
        2
    ));
    assert!(!passes(
        r#"{"match": [{"retcode": 0}]}"#,
        tag,
        "test.ping",
        2
    ));
    assert!(passes(
        r#"{"match": [{"class": "job*"}]}"#,
        tag,
        "test.ping",
        0
    ));
    assert!(!passes(
        r#"{"match": [{"class": "events"}]}"#,
        tag,
        "test.ping",
        0
    ));
    let both = r#"{"match": [{"fun": "state.*"}], "where": "data.retcode != 0"}"#;
    assert!(passes(both, tag, "state.apply", 2) && !passes(both, tag, "state.apply", 0));
    assert!(!passes(both, tag, "test.ping", 2));
    assert!(passes(r#"{"search": "te.app"}"#, tag, "state.apply", 0));
    assert!(!passes(r#"{"search": "Te.app"}"#, tag, "state.apply", 0));
    assert!(!passes(
        r#"{"search": "te.app", "where": "false"}"#,
        tag,
        "state.apply",
        0
    ));
}

#[test]
fn invalid_filters_name_the_item() {
    for (json, expected) in [
        (r#"{"match": [{"tag": "a"}, {"tagg": "b"}]}"#, "match[1]"),
        (r#"{"match": [{"retcode": "ok"}]}"#, "match[0].retcode"),
        (r#"{"match": {"tag": "a"}}"#, "match"),
        (r#"{"where": "data.x =="}"#, "where: column 10"),
    ] {
        let error = filter(json).unwrap_err();
        assert!(error.contains(expected), "{json}: {error}");
    }
    let many = format!(
        r#"{{"match": [{}]}}"#,
        vec!["{}"; FILTER_SCOPES_MAX + 1].join(",")
    );
    assert!(filter(&many).unwrap_err().contains("at most"), "{many}");
}

#[test]
fn a_filter_is_written_as_it_is_read() {
    let json =
        r#"{"match":[{"tag":["a*"],"retcode":["!0"]},{"class":["jobs"]}],"where":"tag == \"a\""}"#;
    assert_eq!(serde_json::to_string(&filter(json).unwrap()).unwrap(), json);
    assert_eq!(
        serde_json::to_string(&EntryFilter::default()).unwrap(),
        "{}"
    );
}

#[test]
fn jobs_of_the_own_master_are_what_is_shared_without_the_questions_for_running_ones() {
    let bus = Flags::ON_BUS;
    let none = Flags::default();
    for (kind, flags, fun, has_jid, [events, jobs, own]) in [
        (Kind::Load, none, "test.ping", true, [false, true, true]),
        (Kind::Return, bus, "test.ping", true, [true, true, true]),
        (Kind::Return, none, "test.ping", true, [false, true, true]),
        (
            Kind::JobNew,
            bus,
            Entries::QUESTION,
            true,
            [true, false, false],
        ),
        (
            Kind::Return,
            bus,
            Entries::QUESTION,
            true,
            [true, false, false],
        ),
        (Kind::Endtime, none, "", true, [false, true, true]),
        (Kind::NoCache, none, "", true, [false, true, true]),
        (Kind::Minions, none, "", true, [false, true, true]),
        (Kind::ReturnLoad, none, "", true, [false, true, true]),
        (Kind::Event, bus, "runner.x", true, [true, true, true]),
        (Kind::Event, bus, "", false, [true, false, true]),
        (Kind::Gap, bus, "", false, [true, false, true]),
        (Kind::SeenOnBus, none, "", false, [false, false, false]),
        (
            Kind::Reaction,
            Flags::REACTION,
            "",
            false,
            [false, true, true],
        ),
        (Kind::Register, none, "", false, [false, false, false]),
        (Kind::Setting, none, "", false, [false, false, false]),
    ] {
        let has = |entries: Entries, is_own| entries.have(kind, flags, fun, has_jid, is_own);
        let all = [Entries::Events, Entries::OwnJobs, Entries::Own];
        let of_own = all.map(|entries| has(entries, true));
        assert_eq!(of_own, [events, jobs, own], "{kind:?} {fun}");
        let of_peer = all.map(|entries| has(entries, false));
        assert_eq!(of_peer, [events, false, false], "{kind:?} of a peer");
    }

    let shared = filter(r#"{"entries": "own-jobs"}"#).unwrap();
    assert_eq!(shared.entries, Entries::OwnJobs);
    assert_eq!(
        serde_json::to_string(&shared).unwrap(),
        r#"{"entries":"own-jobs"}"#
    );
    assert_eq!(
        serde_json::to_string(&EntryFilter::default()).unwrap(),
        "{}"
    );
}
