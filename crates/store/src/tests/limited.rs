//! Searches under limits: what they find, and how much they look at.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::index::MinionSelection;
use crate::index::job_summary::JobSummary;
use crate::read::{EventPage, JobPage, JobPart};
use saltcellar_base::work;
use saltcellar_model::ReadLimits;

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

/// Events of web and other minions in turn. `name` is in every entry of the other minions.
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

/// In one active segment, each in a separate block.
fn growing(name: &str, fun: &str) -> (tempfile::TempDir, Rig) {
    filled(name, fun, Limits::default())
}

/// In several sealed segments.
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
        minion: Some(Glob::new(minion)),
        ..EventFilter::default()
    }
}

#[test]
fn a_repeated_limited_search_tests_no_ids_and_reads_only_blocks_with_allowed_entries() {
    let (_dir, rig) = growing("db", "secret.fun");
    let web = limits(r#"{"minions": "web*"}"#);
    let newest = EventFilter::default();
    let first = search(&rig, &web, &newest, 10).stats;
    // Even then, blocks without an allowed minion are not read.
    assert!(first.minions > 0 && first.blocks <= 11, "{first:?}");

    for most in [1, 10] {
        let page = search(&rig, &web, &newest, most);
        assert_eq!(page.events.len(), most);
        assert!(
            page.events
                .iter()
                .all(|event| event.minion.starts_with("web"))
        );
        // One block per event, as without limits where every event is allowed; the other class is
        // examined once.
        assert_eq!((page.stats.minions, page.stats.entries), (0, most as u64));
        assert!(page.stats.blocks <= most as u64 + 1, "{:?}", page.stats);
    }

    // Also with new events: ids are tested again only when a segment has grown to twice its size.
    for n in 0..3 {
        put_event(&rig, &format!("custom/web/{n}"), "web1", "test.ping");
        let page = search(&rig, &web, &newest, 1);
        assert_eq!(page.events[0].tag, format!("custom/web/{n}").into_bytes());
        assert_eq!(page.stats.minions, 0);
    }
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
fn what_a_limit_says_of_each_id_is_remembered() {
    for (_dir, rig) in [growing("db", "secret.fun"), sealed("zz", "secret.fun")] {
        let web = Arc::new(limits(r#"{"minions": "web*"}"#));
        for segment in rig.store.segments.all() {
            let (known, _) = rig.store.allowed.blocks(&segment, &web).unwrap();
            let is_sealed = segment.metadata().is_some();

            let names = RefCell::new(Vec::new());
            let note = |number: Option<usize>, name: &[u8]| {
                let number = number.map(|number| (number, name.to_vec()));
                names.borrow_mut().extend(number);
                true
            };
            let selection = MinionSelection::Numbered(&note);
            let asked = rig.store.blocks.indexes().query(
                &segment,
                |index| index.blocks_with(selection),
                |index| index.blocks_with(selection),
            );
            asked.unwrap();

            let names = names.into_inner();
            assert!(!names.is_empty());
            for (number, name) in names {
                let is_allowed = name.starts_with(b"web");
                let ask =
                    |is_sealed, name| known.allows_name((is_sealed, Some(number)), name, &web);
                // By the number alone. The other form of the index has other numbers.
                assert_eq!(
                    [ask(is_sealed, b""), ask(is_sealed, b"web")],
                    [is_allowed; 2]
                );
                assert!(!ask(!is_sealed, b""));
            }
        }
    }
}

#[test]
fn the_work_of_a_limited_search_does_not_depend_on_what_others_entries_contain() {
    let [(_one, one), (_two, two)] = [growing("db", "secret.fun"), growing("dz", "public.fun")];
    same_work(&one, &two);
}

#[test]
fn the_work_in_sealed_segments_does_not_depend_on_what_others_entries_contain() {
    // Ids that sort before and behind the reader's ids as well.
    for other in ["dz", "zz"] {
        let [(_one, one), (_two, two)] = [sealed("db", "secret.fun"), sealed(other, "public.fun")];
        same_work(&one, &two);
    }
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

fn by_job(jid: &str) -> EventFilter {
    EventFilter {
        jid: Some(jid.to_owned()),
        ..EventFilter::default()
    }
}

/// A store with a job of another minion, and jobs before and after it: a jid of its form and time
/// must be nothing special.
fn with_hidden(
    job: &str,
    beside: [&str; 2],
    make: fn(&str, &str) -> (tempfile::TempDir, Rig),
) -> (tempfile::TempDir, Rig) {
    let (dir, rig) = make("db", "secret.fun");
    // The last jobs fill segments, because the job must be in a sealed segment.
    let jobs = beside.into_iter().chain([job]);
    for job in jobs.chain((0..60).map(|n| beside[n % 2])) {
        put_event(
            &rig,
            &format!("salt/job/{job}/ret/db1"),
            "db1",
            "secret.fun",
        );
        let load = load("secret.fun", &["db1", "db2"]);
        put(&rig, Kind::Load, job, ("", ""), 9, &load);
    }
    (dir, rig.reopened())
}

/// Compares stores with a hidden job under each of these limits, by `check`: the first store is
/// asked for the hidden job, the second for an absent one. They are equal, and nothing is known of
/// their blocks before the first search under a limit.
fn each_hidden_job(all: &[&str], check: impl Fn([(&Rig, &str); 2], &ReadLimits)) {
    let of_time = ["20260601000000000000", "20260701000000000000"];
    let before_and_after = ["20260101000000000000", "20271231000000000000"];
    for ([job, absent], beside) in [
        (of_time, before_and_after),
        (["by hand", "by foot"], ["other", "another"]),
    ] {
        for make in [growing, sealed] {
            let [(_one, one), (_two, two)] = [(); 2].map(|()| with_hidden(job, beside, make));
            for text in all {
                check([(&one, job), (&two, absent)], &limits(text));
            }
        }
    }
}

const HIDING: [&str; 4] = [
    r#"{"minions": "web*"}"#,
    r#"{"minions": "none*"}"#,
    r#"{"minions": "web*", "functions": "test.*"}"#,
    r#"{"functions": "test.*"}"#,
];

#[test]
fn a_search_for_a_hidden_job_does_what_one_for_an_absent_job_does() {
    let all = [&HIDING[..], &[r#"{"tags": "salt/job/*/ret/web*"}"#]].concat();
    each_hidden_job(&all, |asked, limits| {
        for n in 0..3 {
            let [hidden, none] = asked.map(|(rig, jid)| search(rig, limits, &by_job(jid), 10));
            assert_eq!((hidden.events.len(), none.events.len()), (0, 0));
            assert_eq!(hidden.next, none.next);
            assert_eq!(hidden.stats, none.stats, "{limits:?} {} {n}", asked[0].1);
            // Blocks are read once per limit.
            assert!(n == 0 || hidden.stats.blocks == 0, "{:?}", hidden.stats);
        }
    });
}

/// The returns of a job are the same in parts, and their lengths are known without them.
fn check_returns(view: &StoreView, jid: &str, entries: &[StoredEntry]) {
    let all = (SeqNo::FIRST, SeqNo(u64::MAX));
    let of_minion = entries.iter().map(|entry| entry.minion.as_str());
    let of_minion = of_minion.map(|minion| (minion, all));
    let of_number = entries
        .iter()
        .map(|entry| ("", (entry.seq, entry.seq.next())));
    for (minion, (from, upto)) in of_minion.chain(of_number).chain([("", all)]) {
        let is_meant = |entry: &&StoredEntry| {
            entry.kind == Kind::Return
                && (minion.is_empty() || entry.minion == minion)
                && (from..upto).contains(&entry.seq)
        };
        let expected = entries.iter().filter(is_meant).map(|entry| StoredEntry {
            tag: Vec::new(),
            ..entry.clone()
        });
        let is_wanted = |id: &str| minion.is_empty() || id == minion;
        let returns = view.returns_between(jid, (from, upto), is_wanted).unwrap();
        assert_eq!(returns, expected.collect::<Vec<_>>(), "{jid} {minion}");
    }

    let heads = view.job_entries_with(jid, |entry| entry.kind != Kind::Return);
    let heads = heads.unwrap();
    assert_eq!(heads.len(), entries.len());
    for (head, entry) in heads.iter().zip(entries) {
        assert_eq!(head.body_len(), entry.body.len(), "{head:?}");
        assert_eq!(
            head.body.is_empty(),
            entry.kind == Kind::Return || entry.body.is_empty()
        );
    }
}

/// The steps of all questions about a job, none of which knows it.
fn steps_of_unknown(rig: &Rig, limits: &ReadLimits, jid: &str) -> u64 {
    let view = rig.store.view(Arc::new(limits.clone()));
    let before = work::steps();

    assert_eq!(view.job_entries(jid).unwrap(), []);
    assert_eq!(view.job_row(jid).unwrap(), None);
    for from in [SeqNo::FIRST, SeqNo(300)] {
        let range = (from, SeqNo(u64::MAX));
        let later = view.job_page_with(jid, JobPart::of(range), |_| true);
        assert_eq!(later.unwrap(), JobPage::default());
        let returns = view.returns_between(jid, range, |_| true).unwrap();
        assert_eq!(returns, []);
    }
    work::steps() - before
}

#[test]
fn a_question_about_a_hidden_job_does_what_one_about_an_absent_job_does() {
    each_hidden_job(&HIDING, |asked, limits| {
        let mut first = 0;
        for n in 0..3 {
            let [hidden, none] = asked.map(|(rig, jid)| steps_of_unknown(rig, limits, jid));
            assert_eq!(hidden, none, "{limits:?} {} {n}", asked[0].1);
            // Blocks are read once per limit.
            first = if n == 0 { hidden } else { first };
            assert!(n == 0 || hidden < first, "{hidden} {first}");
        }
    });
}

#[test]
fn a_limited_search_for_a_job_finds_its_allowed_events() {
    for (_dir, rig) in [growing("db", "secret.fun"), sealed("db", "secret.fun")] {
        let web = limits(r#"{"minions": "web*"}"#);
        for n in [0, 57, 119] {
            let of_job = search(&rig, &web, &by_job(&jid(n)), 10).events;
            let tags: Vec<_> = of_job.iter().map(|event| event.tag.clone()).collect();
            let tag = format!("salt/job/{}/ret/web{}", jid(n), n % 4);
            assert_eq!(tags, [tag.into_bytes()]);
        }
        // And those that arrive later.
        let tag = format!("salt/job/{}/ret/web9", jid(57));
        put_event(&rig, &tag, "web9", "test.ping");
        assert_eq!(search(&rig, &web, &by_job(&jid(57)), 10).events.len(), 2);
    }
}

#[test]
fn a_limited_list_of_jobs_has_the_jobs_and_summaries_that_their_entries_have() {
    for (_dir, rig) in [growing("db", "secret.fun"), sealed("db", "secret.fun")] {
        lists_what_is_allowed(&rig);
    }
}

fn load(fun: &str, minions: &[&str]) -> Vec<u8> {
    let mut w = Writer::new();
    w.array(2)
        .map(4)
        .str("fun")
        .str(fun)
        .str("user")
        .str("root");
    w.str("tgt").str("db*").str("arg").array(0);
    minions
        .iter()
        .fold(w.array(minions.len()), |w, id| w.str(id));
    w.into_bytes()
}

fn put(rig: &Rig, kind: Kind, jid: &str, (minion, fun): (&str, &str), at: i64, body: &[u8]) {
    let entry = Entry::new(kind, Source::Returner, Micros(at), body);
    let tag = if kind == Kind::Return { "salt/x" } else { "" };
    let entry = Entry {
        jid,
        minion,
        fun,
        tag: tag.as_bytes(),
        ..entry
    };
    rig.put(Batch::of(&entry)).unwrap();
}

/// Compares lists with jobs that are read one by one.
fn lists_what_is_allowed(rig: &Rig) {
    let ret = |fun: &str| {
        let mut w = Writer::new();
        w.map(2).str("fun").str(fun).str("return").nil();
        w.into_bytes()
    };
    let mut jids: Vec<String> = (0..130).map(jid).collect();
    for (n, of) in [
        (200, &["web1", "db1"][..]),
        (201, &["db1"]),
        (202, &["web1"]),
        (203, &[]),
    ] {
        for name in [jid(n), format!("{}_4711", jid(n)), format!("by hand {n}")] {
            let (secret, ping) = ("secret.fun", "test.ping");
            put(rig, Kind::Return, &name, ("db1", secret), 3, &ret(secret));
            put(rig, Kind::Load, &name, ("", ""), 9, &load(ping, of));
            put(rig, Kind::Load, &name, ("", ""), 8, &load(secret, of));
            put(rig, Kind::Return, &name, ("web2", ping), 7, &ret(ping));
            jids.push(name);
        }
    }
    for (n, minion) in [(204, "web1"), (205, "db1"), (206, "")] {
        let version = ret("test.version");
        put(rig, Kind::Return, &jid(n), (minion, ""), 5, &version);
        put(rig, Kind::NoCache, &jid(n), ("", ""), 4, &[0xc0]);
        jids.push(jid(n));
    }

    for text in [
        r#"{"minions": "web*"}"#,
        r#"{"minions": "web1"}"#,
        r#"{"minions": "none"}"#,
        r#"{"functions": "test.*"}"#,
        r#"{"functions": "secret.fun"}"#,
        r#"{"minions": "*[12]", "functions": "test.p*"}"#,
        r#"{"minions": "*", "tags": "custom/*"}"#,
    ] {
        let view = rig.store.view(Arc::new(limits(text)));
        // Before a list has looked at all jobs.
        let early = jids.iter().map(|jid| view.job_entries(jid).unwrap());
        let early: Vec<_> = early.collect();
        let rows = view.jobs_before(None, usize::MAX).unwrap().rows;
        let mut listed: BTreeMap<String, JobSummary> = rows
            .into_iter()
            .map(|(_, row)| (row.jid.clone(), row))
            .collect();
        let wanted = jids
            .iter()
            .map(|jid| (&**jid, BTreeSet::from(["web1", "db1"])));
        let mut of_many = view.returns_of(&wanted.collect()).unwrap();
        for (jid, early) in jids.iter().zip(early) {
            let entries = view.job_entries(jid).unwrap();
            assert_eq!(early, entries, "{text} {jid}");
            check_returns(&view, jid, &entries);
            let expected = read::summary(&entries);
            assert_eq!(listed.remove(jid), expected, "{text} {jid}");
            assert_eq!(view.job_row(jid).unwrap(), expected, "{text} {jid}");

            let job = of_many.remove(jid);
            assert_eq!(job.is_some(), expected.is_some(), "{text} {jid}");
            let job = job.unwrap_or_default();
            let is_cached = entries
                .iter()
                .any(|entry| index::job_summary::is_of_cached_job(entry.kind, entry.flags));
            assert_eq!(
                (
                    job.is_cached,
                    Some(job.summary).filter(|_| expected.is_some())
                ),
                (is_cached, expected)
            );
            let is_wanted = |entry: &&StoredEntry| {
                entry.kind == Kind::Return && ["web1", "db1"].contains(&&*entry.minion)
            };
            let seqs: Vec<_> = entries
                .iter()
                .filter(is_wanted)
                .map(|entry| entry.seq)
                .collect();
            assert_eq!(
                job.returns
                    .iter()
                    .map(|entry| entry.seq)
                    .collect::<Vec<_>>(),
                seqs
            );
        }
        assert!(listed.is_empty(), "{text} {listed:?}");
    }
}

/// A store with a sealed segment of jobs that contains a block for each entry, and that segment.
/// Odd jobs belong to web1, even jobs to db1.
fn of_many_blocks() -> (tempfile::TempDir, Rig, Arc<segment::Segment>) {
    let (dir, rig) = Rig::new(Limits {
        segment_bytes_max: 1 << 20,
        ..SMALL
    });
    // Most of the segment: merging the small blocks behind it is not worth it then.
    let large = noise(0, 900_000);
    let fill = |n| put(&rig, Kind::Load, &jid(n), ("", ""), 9, &large);
    fill(900);
    for n in 0..24 {
        let minion = ["db1", "web1"][usize::try_from(n % 2).unwrap()];
        put(
            &rig,
            Kind::Load,
            &jid(n),
            ("", ""),
            9,
            &load("test.ping", &[minion]),
        );
        let tag = format!("salt/job/{}/ret/{minion}", jid(n));
        put_event(&rig, &tag, minion, "test.ping");
    }
    // The last one begins the next segment.
    fill(901);
    fill(902);

    let rig = rig.reopened();
    let segment = rig.store.segments.of(Class::JOBS).swap_remove(0);
    assert!(segment.metadata().is_some(), "it is sealed");
    let blocks = rig.metas(&segment).len();
    assert_eq!(blocks, 2 + 2 * 24, "no block was merged");
    (dir, rig, segment)
}

/// What is remembered by the number of a block: whole blocks, allowed entries, and what they are for
/// their jobs.
#[test]
fn nothing_that_is_known_of_a_block_is_believed_of_the_one_that_gets_its_number() {
    let (_dir, rig, segment) = of_many_blocks();
    let web = limits(r#"{"minions": "web*"}"#);
    let is_own = |n: u64| n % 2 == 1;

    let check = |lost: u64| {
        let view = rig.store.view(Arc::new(web.clone()));
        let rows = view.jobs_before(None, usize::MAX).unwrap().rows;
        let listed: BTreeSet<_> = rows.into_iter().map(|(_, row)| row.jid).collect();
        let own: BTreeSet<_> = (0..24).filter(|n| is_own(*n)).map(jid).collect();
        assert_eq!(listed, own);

        for n in 0..24 {
            let whole = if n == lost { 1 } else { 2 };
            let all = rig.store.job_entries(&jid(n)).unwrap();
            assert_eq!(all.len(), whole, "job {n}");

            let entries = view.job_entries(&jid(n)).unwrap();
            assert_eq!(entries.len(), if is_own(n) { whole } else { 0 }, "job {n}");
            assert_eq!(view.job_row(&jid(n)).unwrap().is_some(), is_own(n));
        }
        let found = search(&rig, &web, &EventFilter::default(), usize::MAX).events;
        assert_eq!(found.len(), 12);
        assert!(found.iter().all(|event| event.minion == "web1"));
    };
    check(99);

    // The load of job 4, after which every other block belongs to another minion. It becomes
    // unreadable, and the index is rebuilt.
    let metas = rig.metas(&segment);
    let file = fs::OpenOptions::new()
        .write(true)
        .open(segment.log().path());
    file.unwrap()
        .write_all_at(&[0xff; 32], metas[1 + 2 * 4].offset + 40)
        .unwrap();
    let damaged = || StoreError::Index {
        path: segment.dir().to_owned(),
        what: "a test".to_owned(),
    };
    let count = rig
        .store
        .blocks
        .indexes()
        .query(
            &segment,
            |index| index.blocks().metas().len(),
            |_| Err(damaged()),
        )
        .unwrap();
    assert_eq!(count, metas.len() - 1);
    check(4);
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
