//! Searches under limits: what they find, and how much they look at.

use super::*;
use crate::model::ReadLimits;
use crate::store::read::EventPage;

fn put_event(rig: &Rig, tag: &str, minion: &str, fun: &str) {
    let mut w = Writer::new();
    w.map(2).str("fun").str(fun).str("id").str(minion);
    let body = w.into_bytes();
    let entry = event_entry(tag.as_bytes(), &body, Source::Bus, Micros(1));
    rig.put(Batch::of(&Entry {
        minion,
        fun,
        ..entry
    }))
    .unwrap();
}

/// Events of web and other minions in turn. `name` is in everything of the others.
fn filled(name: &str, fun: &str, limits: Limits) -> (tempfile::TempDir, Rig) {
    let (dir, rig) = Rig::new(limits);
    for n in 0..120 {
        let (minion, jid) = (n % 4, jid(n));
        let web = format!("web{minion}");
        put_event(
            &rig,
            &format!("salt/job/{jid}/ret/{web}"),
            &web,
            "test.ping",
        );
        let other = format!("{name}{minion}");
        put_event(&rig, &format!("salt/job/{jid}/ret/{other}"), &other, fun);
        put_event(&rig, &format!("custom/{name}/{n}"), &other, fun);
    }
    (dir, rig)
}

/// In one growing segment, each in a block of its own.
fn growing(name: &str, fun: &str) -> (tempfile::TempDir, Rig) {
    filled(name, fun, Limits::default())
}

/// In several sealed segments. A test of ids passes over the rest of a page once one is selected, so names are compared that sort alike.
fn sealed(name: &str, fun: &str) -> (tempfile::TempDir, Rig) {
    let (dir, rig) = filled(name, fun, SMALL);
    (dir, rig.reopened())
}

fn limits(text: &str) -> ReadLimits {
    serde_json::from_str(text).unwrap()
}

fn search(rig: &Rig, limits: &ReadLimits, filter: &EventFilter, most: usize) -> EventPage {
    let all = EntryFilter::default();
    let end = rig.store.durable();
    rig.store
        .search_allowed(filter, (&all, limits), end, most, usize::MAX)
        .unwrap()
}

fn by_tag(tag: &str) -> EventFilter {
    EventFilter {
        tag: Some(Glob::new(tag)),
        ..EventFilter::default()
    }
}

fn by_minion(minion: &str) -> EventFilter {
    EventFilter {
        minion: Some(minion.to_owned()),
        ..EventFilter::default()
    }
}

#[test]
fn a_repeated_limited_search_tests_no_ids_and_reads_only_blocks_with_allowed_entries() {
    let (_dir, rig) = growing("db", "secret.fun");
    let web = limits(r#"{"minions": "web*"}"#);
    let newest = EventFilter::default();
    assert!(search(&rig, &web, &newest, 10).stats.minions > 0);

    for most in [1, 10] {
        let page = search(&rig, &web, &newest, most);
        assert_eq!(page.events.len(), most);
        assert!(
            page.events
                .iter()
                .all(|event| event.minion.starts_with("web"))
        );
        // One block per event, as without limits where every event is allowed; the other class is looked at once.
        assert_eq!((page.stats.minions, page.stats.entries), (0, most as u64));
        assert!(page.stats.blocks <= most as u64 + 1, "{:?}", page.stats);
    }

    // With new events, too: ids are tested again only when a segment has grown to twice its size.
    for n in 0..3 {
        put_event(&rig, &format!("custom/web/{n}"), "web1", "test.ping");
        let page = search(&rig, &web, &newest, 1);
        assert_eq!(page.events[0].tag, format!("custom/web/{n}").into_bytes());
    }
    let again = search(&rig, &web, &newest, 10);
    assert_eq!(again.stats.minions, 0);
}

#[test]
fn a_limited_list_looks_at_no_segment_that_it_does_not_reach() {
    let (_dir, rig) = sealed("db", "secret.fun");
    let web = limits(r#"{"minions": "web*"}"#);
    let newest = EventFilter::default();
    let whole = search(&rig, &web, &newest, usize::MAX).stats;
    let (_dir, rig) = sealed("db", "secret.fun");
    let first = search(&rig, &web, &newest, 1).stats;
    assert!(
        whole.segments > 4 && first.segments <= 3 && first.minions * 2 < whole.minions,
        "{first:?} {whole:?}"
    );
    assert_eq!(search(&rig, &web, &newest, 1).stats.minions, 0);
}

#[test]
fn a_repeated_limited_search_without_a_match_reads_what_an_unlimited_one_reads() {
    let (_dir, rig) = growing("db", "test.ping");
    let (none, web) = (ReadLimits::default(), limits(r#"{"minions": "web*"}"#));
    let absent = by_tag("*/absent-*");
    search(&rig, &web, &absent, 10);
    let (own, whole) = (
        search(&rig, &web, &absent, 10).stats,
        search(&rig, &none, &absent, 10).stats,
    );
    assert_eq!((own.blocks, own.entries), (whole.blocks, whole.entries));
    assert!(own.minions <= whole.minions, "{own:?} {whole:?}");

    // A block without an allowed entry of the tag is no candidate, and is not read.
    let own = search(&rig, &web, &by_tag("custom/*"), 10);
    assert_eq!((own.events.len(), own.stats.blocks), (0, 0));
}

#[test]
fn the_work_of_a_limited_search_does_not_depend_on_what_others_entries_contain() {
    let [(_one, one), (_two, two)] = [growing("db", "secret.fun"), growing("dz", "public.fun")];
    same_work(&one, &two);
}

#[test]
fn the_work_in_sealed_segments_does_not_depend_on_what_others_entries_contain() {
    let [(_one, one), (_two, two)] = [sealed("db", "secret.fun"), sealed("dz", "public.fun")];
    same_work(&one, &two);
}

fn same_work(one: &Rig, two: &Rig) {
    for limits in [
        r#"{"minions": "web*"}"#,
        r#"{"minions": "web1"}"#,
        r#"{"minions": "*[13]", "functions": "test.*"}"#,
        r#"{"functions": "test.*"}"#,
        r#"{"tags": "salt/job/*/ret/web*"}"#,
    ]
    .map(limits)
    {
        // Each is asked twice: nothing is known of the blocks before the first one.
        for filter in [
            by_tag("custom/db*"),
            by_tag("custom/dz*"),
            by_tag("*/ret/db*"),
            by_tag("*/ret/dz1"),
            by_tag("salt/job/*/ret/*"),
            by_tag("*/absent"),
            by_minion("db1"),
            by_minion("dz2"),
            by_minion("web1"),
            EventFilter::default(),
        ] {
            for most in [3, usize::MAX, 3] {
                let found = [one, two].map(|rig| search(rig, &limits, &filter, most));
                let of = |page: &EventPage| -> Vec<_> {
                    let named = page.events.iter();
                    named.map(|e| (e.seq, e.tag.clone())).collect()
                };
                let context = format!("{limits:?} {filter:?} {most}");
                assert_eq!(of(&found[0]), of(&found[1]), "{context}");
                assert_eq!(found[0].stats, found[1].stats, "{context}");
            }
        }
    }
}

#[test]
fn a_limited_search_finds_what_a_scan_of_everything_finds() {
    for (_dir, rig) in [growing("db", "secret.fun"), sealed("db", "secret.fun")] {
        finds_all_allowed(&rig);
    }
}

fn finds_all_allowed(rig: &Rig) {
    put_event(rig, "salt/auth", "", "");
    let everything = search(
        rig,
        &ReadLimits::default(),
        &EventFilter::default(),
        usize::MAX,
    );
    for limits in [
        r#"{"minions": "*"}"#,
        r#"{"minions": "web*"}"#,
        r#"{"minions": "db2"}"#,
        r#"{"minions": "none*"}"#,
        r#"{"functions": "secret.*"}"#,
        r#"{"tags": "*/ret/*1"}"#,
        r#"{"minions": "*[12]", "tags": "custom/*"}"#,
    ]
    .map(limits)
    {
        for glob in ["*", "custom/*", "*/ret/web*", "*/ret/*2", "salt/auth", "no"] {
            let tag = Glob::new(glob);
            let is_expected = |event: &&StoredEntry| {
                limits.allow_event(&event.tag, &event.minion, &event.fun)
                    && tag.matches_bytes(&event.tag)
            };
            let expected: Vec<_> = everything.events.iter().filter(is_expected).collect();
            for _ in 0..2 {
                let found = search(rig, &limits, &by_tag(glob), usize::MAX);
                assert_eq!(
                    found.events.iter().collect::<Vec<_>>(),
                    expected,
                    "{limits:?} {glob}"
                );
            }
        }
    }
}
