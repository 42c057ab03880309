//! The store as a whole: acknowledged entries survive a restart, a torn write, a flipped bit, a lost index.

mod ahead;
mod commits;
pub(super) mod damage;
mod duplicates;
mod following;
mod invariants;
mod job_pages;
mod last_jobs;
mod limited;
pub(super) mod retention;
mod sealing;
mod simulation;
mod travelling;
mod written;

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use salt_sls::Glob;

use super::vfs::faults::{Act, Fault, Faults, Plan};
use super::*;
use crate::log::file::BlockMeta;
use crate::segment::Segment;
use saltcellar_base::clock::Micros;
use saltcellar_model::{Batch, Durability, Entry, EventFilter, Flags, JidKey, Kind, Source};
use saltcellar_testkit::receive;
use saltcellar_wire::filter::EntryFilter;
use saltcellar_wire::msgpack::Writer;
use saltcellar_wire::salt_event::event_entry;

/// An open store and its threads, which end when it is dropped.
pub(super) struct Rig {
    pub(super) store: Store,
    pub(super) intake: Intake,
    pub(super) metrics: Arc<Metrics>,
    options: Options,
    // Last: the threads end when the handles above are dropped.
    threads: Threads,
}

/// Joins the threads of a store when it is dropped. A panic of one fails the test.
struct Threads(Vec<JoinHandle<()>>);

impl Drop for Threads {
    fn drop(&mut self) {
        // In a test that failed, other handles may keep them running.
        if !std::thread::panicking() {
            self.0.drain(..).for_each(|thread| thread.join().unwrap());
        }
    }
}

pub(super) fn options(dir: &Path, limits: Limits) -> Options {
    Options {
        limits,
        ..Options::for_tests(dir, Clock::manual(Micros(1_000_000)))
    }
}

pub(super) const SMALL: Limits = Limits {
    durability: Durability::Durable,
    segment_bytes_max: 4096,
    segment_entries_max: 1_000_000,
    ..Limits::DEFAULT
};

impl Rig {
    /// The blocks of a segment.
    pub(super) fn metas(&self, segment: &Arc<Segment>) -> Vec<BlockMeta> {
        let ready = self.store.blocks.indexes().ready(segment).unwrap();
        ready.blocks().metas().to_vec()
    }

    /// A new store and its directory.
    pub(super) fn new(limits: Limits) -> (tempfile::TempDir, Self) {
        let dir = tempfile::tempdir().unwrap();
        let rig = Self::open(dir.path(), limits);
        (dir, rig)
    }

    pub(super) fn open(dir: &Path, limits: Limits) -> Self {
        Self::open_with(&options(dir, limits))
    }

    pub(super) fn open_with(options: &Options) -> Self {
        let (store, intake, threads) = Store::open(options).unwrap().on_threads();
        let (metrics, options) = (options.metrics.clone(), options.clone());
        Self {
            store,
            intake,
            metrics,
            options,
            threads: Threads(threads),
        }
    }

    /// Closes the store and opens it again, with new counters.
    pub(super) fn reopened(self) -> Self {
        let options = Options {
            metrics: Arc::default(),
            ..self.options.clone()
        };
        self.close();
        Self::open_with(&options)
    }

    pub(super) fn put(&self, batch: Batch) -> Result<(), String> {
        let (tx, rx) = sync_channel(1);
        self.intake.submit(batch, Some(tell(tx))).unwrap();
        receive(&rx)
    }

    /// Stores each event alone.
    pub(super) fn put_each(&self, numbers: std::ops::Range<u64>) {
        numbers.for_each(|n| self.put(batch_of([n])).unwrap());
    }

    pub(super) fn close(self) {
        drop(self);
    }

    /// Sequence number and tag of every event, oldest first.
    pub(super) fn events(&self, filter: &EventFilter) -> Vec<(u64, String)> {
        let mut found = self
            .store
            .events_before(filter, self.store.durable(), usize::MAX, usize::MAX)
            .unwrap();
        found.reverse();
        found
            .into_iter()
            .map(|e| (e.seq.0, String::from_utf8(e.tag).unwrap()))
            .collect()
    }

    /// The tag of every event, oldest first.
    pub(super) fn tags(&self) -> Vec<String> {
        self.events(&EventFilter::default())
            .into_iter()
            .map(|(_, tag)| tag)
            .collect()
    }
}

pub(super) fn tell(tx: SyncSender<Result<(), String>>) -> Done {
    Box::new(move |outcome| tx.send(outcome).unwrap())
}

pub(super) fn data(n: u64) -> Vec<u8> {
    let mut w = Writer::new();
    w.map(5)
        .str("fun")
        .str("test.echo")
        .str("return")
        .uint(n)
        .str("_stamp")
        .str(&format!("at {n}"));
    w.str("id")
        .str(&format!("web{n}"))
        .str("jid")
        .str(&jid(n / 10));
    w.into_bytes()
}

pub(super) fn jid(n: u64) -> String {
    format!("20261121030955{n:06}")
}

/// Event `n`: every third belongs to no job, the rest are returns, ten per job.
pub(super) fn event(n: u64) -> (String, Vec<u8>) {
    let tag = if n.is_multiple_of(3) {
        format!("salt/beacon/web{}/load/", n % 5)
    } else {
        format!("salt/job/{}/ret/web{n}", jid(n / 10))
    };
    (tag, data(n))
}

pub(super) fn batch_of(numbers: impl IntoIterator<Item = u64>) -> Batch {
    let mut batch = Batch::default();
    for n in numbers {
        let (tag, data) = event(n);
        let at = Micros(i64::try_from(n).unwrap());
        batch.push(&event_entry(tag.as_bytes(), &data, Source::Bus, at), None);
    }
    batch
}

/// The real disk with faults, and their plan, which is empty.
fn faulty_disk() -> (Arc<Plan>, Arc<Faults>) {
    let plan = Arc::new(Plan::default());
    (
        plan.clone(),
        Arc::new(Faults::over(Arc::new(vfs::Disk), plan)),
    )
}

/// An event without data.
fn bare_event(tag: &str) -> Batch {
    Batch::of(&event_entry(
        tag.as_bytes(),
        b"\x80",
        Source::Bus,
        Micros(0),
    ))
}

/// An entry with Thorium's register.
fn register(text: &str) -> Batch {
    let mut w = Writer::new();
    w.str(text);
    let body = w.into_bytes();
    Batch::of(&Entry::new(
        Kind::Register,
        Source::Returner,
        Micros(0),
        &body,
    ))
}

/// Incompressible bytes, because a body must appear verbatim in the log.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let word = |n: u64| {
        (n + 1 + seed * 1_000_003)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
            .to_le_bytes()
    };
    (0..bytes as u64 / 8).flat_map(word).collect()
}

/// The directory of a closed store with these events, each stored alone.
pub(super) fn closed_store(limits: Limits, numbers: std::ops::Range<u64>) -> tempfile::TempDir {
    let (dir, rig) = Rig::new(limits);
    rig.put_each(numbers);
    dir
}

pub(super) fn check_all(rig: &Rig, numbers: std::ops::Range<u64>) {
    let expected: Vec<String> = numbers.clone().map(|n| event(n).0).collect();
    assert_eq!(rig.tags(), expected);
    for job in numbers.start / 10..numbers.end / 10 {
        let entries = rig.store.job_entries(&jid(job)).unwrap();
        let of_job = (job * 10..job * 10 + 10).filter(|n| numbers.contains(n) && n % 3 != 0);
        let expected: Vec<_> = of_job.map(|n| (format!("web{n}"), data(n))).collect();
        assert_eq!(
            entries
                .into_iter()
                .map(|e| (e.minion, e.body))
                .collect::<Vec<_>>(),
            expected
        );
        assert!(rig.store.job_row(&jid(job)).unwrap().is_some());
    }
    let rows = rig.store.jobs_before(None, usize::MAX).unwrap();
    let jids: Vec<_> = rows.iter().map(|(_, row)| row.jid.clone()).collect();
    let expected: Vec<_> = (numbers.start / 10..numbers.end.div_ceil(10))
        .rev()
        .map(jid)
        .collect();
    assert_eq!(jids, expected);
}

pub(super) fn files_named(dir: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for class in format::class_names(dir).unwrap() {
        for item in fs::read_dir(format::class_dir(dir, &class)).unwrap() {
            found.push(item.unwrap().path().join(name));
        }
    }
    found.retain(|path| path.exists());
    found.sort();
    found
}

/// Damages an index.
fn spoil(index: &Path) {
    fs::write(index, b"no table").unwrap();
}

#[test]
fn acknowledged_entries_survive_a_restart() {
    let (_dir, rig) = Rig::new(Limits::default());
    rig.put_each(0..200);
    check_all(&rig, 0..200);
    let last = rig.store.durable();
    let totals = rig.store.classes().unwrap();
    let rig = rig.reopened();
    check_all(&rig, 0..200);
    assert_eq!(rig.store.classes().unwrap(), totals);
    assert_eq!(rig.store.durable(), last);
    rig.put(batch_of(200..230)).unwrap();
    check_all(&rig, 0..230);
}

#[test]
fn the_origin_of_an_entry_stays_with_it() {
    const MASTERS: [&str; 3] = ["", "master2", "master3"];
    let (_dir, rig) = Rig::new(SMALL);
    let put = |n: usize| {
        let tag = format!("event/{n}");
        let entry = event_entry(tag.as_bytes(), b"\x80", Source::Bus, Micros(0));
        rig.put(Batch::of(&Entry {
            origin: MASTERS[n % 3],
            ..entry
        }))
        .unwrap();
    };
    (0..60).for_each(put);
    let check = |rig: &Rig| {
        let upto = rig.store.durable();
        let (found, _) = rig
            .store
            .entries_from(SeqNo::FIRST, upto, usize::MAX, |_, _| true)
            .unwrap();
        let origins: Vec<_> = found.iter().map(|entry| entry.origin.as_str()).collect();
        let expected: Vec<_> = (0..60).map(|n| MASTERS[n % 3]).collect();
        assert_eq!(origins, expected);
    };
    // In memory, and in segments whose blocks were merged.
    check(&rig);
    let rig = rig.reopened();
    check(&rig);
}

#[test]
fn sealed_segments_answer_the_same_after_every_loss_of_an_index() {
    let (dir, rig) = Rig::new(SMALL);
    rig.put_each(0..400);
    check_all(&rig, 0..400);
    rig.close();
    let sealed = files_named(dir.path(), "index").len();
    assert!(sealed > 10, "{sealed} segments were sealed");

    let reopened = Rig::open(dir.path(), SMALL);
    check_all(&reopened, 0..400);
    assert_eq!(reopened.metrics.indexes_rebuilt.get(), 0);
    reopened.close();

    // Successive damage: the state database, an index, both, all indexes.
    for round in 0..4 {
        if round != 1 {
            fs::remove_dir_all(dir.path().join("state")).unwrap();
        }
        if round == 1 || round == 2 {
            let index = files_named(dir.path(), "index").into_iter().nth(2).unwrap();
            fs::remove_file(index).unwrap();
        }
        if round == 3 {
            for index in files_named(dir.path(), "index") {
                spoil(&index);
            }
        }
        let rig = Rig::open(dir.path(), SMALL);
        check_all(&rig, 0..400);
        rig.close();
        // The newest segment of a class may be the growing one again.
        let left = files_named(dir.path(), "index").len();
        assert!(
            (sealed - 2..=sealed).contains(&left),
            "round {round}: {left}"
        );
    }
}

#[test]
fn a_damaged_index_is_rebuilt_while_the_store_is_open() {
    let dir = closed_store(SMALL, 0..100);
    for index in files_named(dir.path(), "index") {
        let len = fs::metadata(&index).unwrap().len();
        fs::OpenOptions::new()
            .write(true)
            .open(&index)
            .unwrap()
            .set_len(len / 2)
            .unwrap();
    }
    let rig = Rig::open(dir.path(), SMALL);
    check_all(&rig, 0..100);
    assert!(rig.metrics.indexes_rebuilt.get() > 5);
}

#[test]
fn metadata_from_a_damaged_index_are_discarded() {
    let dir = closed_store(SMALL, 0..100);
    // State database and index belong to another log: neither contains a job of this log.
    let state = crate::index::state::StateDatabase::open(&dir.path().join("state")).unwrap();
    for (name, first_seq, metadata) in state.segments().unwrap() {
        let none = index::SegmentMetadata::new(metadata.totals, None, std::iter::empty());
        state.apply(&name, first_seq, &none, &[]).unwrap();
    }
    drop(state);
    for index in files_named(dir.path(), "index") {
        spoil(&index);
    }
    let rig = Rig::open(dir.path(), SMALL);
    // The next reader that opens an index finds the damage.
    rig.events(&EventFilter::default());
    check_all(&rig, 0..100);
}

#[test]
fn a_truncated_state_database_is_rebuilt() {
    let dir = closed_store(SMALL, 0..300);
    let db = dir.path().join("state/db");
    for part in [1, 2, 3] {
        let len = fs::metadata(&db).unwrap().len();
        fs::OpenOptions::new()
            .write(true)
            .open(&db)
            .unwrap()
            .set_len(len * part / 4)
            .unwrap();
        for item in fs::read_dir(dir.path().join("state"))
            .unwrap()
            .map(|i| i.unwrap().path())
        {
            if item
                .file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with("snap")
            {
                fs::remove_file(item).unwrap();
            }
        }
        let rig = Rig::open(dir.path(), SMALL);
        check_all(&rig, 0..300);
    }
}

#[test]
fn an_unfinished_write_is_truncated_and_the_log_continues() {
    let (dir, rig) = Rig::new(Limits::default());
    rig.put(batch_of(0..50)).unwrap();
    rig.close();
    let logs = files_named(dir.path(), "log");
    let whole = fs::read(&logs[0]).unwrap();
    // Possible remains of a crash: half a frame, or noise.
    for tail in [
        &whole[80..whole.len() - 20],
        &[0xff; 1000][..],
        &whole[80..84],
    ] {
        for path in &logs {
            let len = fs::metadata(path).unwrap().len();
            fs::OpenOptions::new()
                .write(true)
                .open(path)
                .unwrap()
                .write_all_at(tail, len)
                .unwrap();
        }
        let rig = Rig::open(dir.path(), Limits::default());
        assert_eq!(
            rig.metrics.tail_bytes_truncated.get(),
            2 * tail.len() as u64
        );
        check_all(&rig, 0..50);
    }
    let rig = Rig::open(dir.path(), Limits::default());
    rig.put(batch_of(50..60)).unwrap();
    let rig = rig.reopened();
    check_all(&rig, 0..60);
    assert_eq!(rig.metrics.tail_bytes_truncated.get(), 0);
}

#[test]
fn a_flipped_bit_costs_only_its_block() {
    let dir = closed_store(Limits::default(), 0..60);
    let path = &files_named(dir.path(), "log")[1];
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, &bytes).unwrap();
    let rig = Rig::open(dir.path(), Limits::default());
    assert_eq!(
        (
            rig.metrics.frames_damaged.get(),
            rig.metrics.tail_bytes_truncated.get()
        ),
        (1, 0)
    );
    let events = rig.events(&EventFilter::default());
    assert_eq!(events.len(), 59);
    assert!(
        events.iter().all(|(seq, tag)| *tag == event(seq - 1).0),
        "remaining entries are unchanged"
    );
}

#[test]
fn a_damaged_file_header_costs_nothing() {
    let dir = closed_store(SMALL, 0..100);
    for path in files_named(dir.path(), "log") {
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[0x55; 30], 4).unwrap();
    }
    let rig = Rig::open(dir.path(), SMALL);
    check_all(&rig, 0..100);
    rig.put(batch_of(100..110)).unwrap();
    let rig = rig.reopened();
    check_all(&rig, 0..110);
}

#[test]
fn readers_miss_nothing_while_segments_are_sealed() {
    let (_dir, rig) = Rig::new(SMALL);
    let store = rig.store.clone();
    let reader = std::thread::Builder::new()
        .spawn(move || {
            let mut known = 0;
            while known < 60 {
                let jobs = store.jobs_before(None, usize::MAX).unwrap();
                assert!(jobs.len() >= known, "{} jobs after {known}", jobs.len());
                known = jobs.len();
                for (_, row) in jobs.iter().rev() {
                    assert!(
                        !store.job_entries(&row.jid).unwrap().is_empty(),
                        "{}",
                        row.jid
                    );
                    assert!(store.job_row(&row.jid).unwrap().is_some(), "{}", row.jid);
                }
            }
        })
        .unwrap();
    rig.put_each(0..600);
    reader.join().unwrap();
}

#[test]
fn a_block_damaged_while_the_store_is_open_is_skipped() {
    let (dir, rig) = Rig::new(Limits::default());
    rig.put_each(0..30);
    for path in files_named(dir.path(), "log") {
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[0x55; 8], 80 + 40).unwrap();
    }
    assert_eq!(rig.events(&EventFilter::default()).len(), 28);
    assert_eq!(rig.metrics.frames_damaged.get(), 2);
}

#[test]
fn one_event_from_two_sources_is_stored_once_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (tag, data) = event(1);
    let by = |source| Batch::of(&event_entry(tag.as_bytes(), &data, source, Micros(0)));
    let rig = Rig::open(dir.path(), Limits::default());
    rig.put(by(Source::Bus)).unwrap();
    let rig = rig.reopened();
    rig.put(by(Source::EventReturn)).unwrap();
    rig.put(by(Source::SpooledEventReturn)).unwrap();
    assert_eq!(rig.events(&EventFilter::default()).len(), 1);
    assert_eq!(rig.metrics.duplicates_folded.get(), 2);
}

#[test]
fn events_are_filtered_and_paged() {
    let (_dir, rig) = Rig::new(SMALL);
    rig.put_each(0..300);
    let seqs = |filter: &EventFilter| {
        rig.events(filter)
            .into_iter()
            .map(|(seq, _)| seq - 1)
            .collect::<Vec<_>>()
    };
    let beacons = EventFilter {
        tag: Some(Glob::new("salt/beacon/web2/*")),
        ..Default::default()
    };
    assert_eq!(
        seqs(&beacons),
        (0..300)
            .filter(|n| n % 3 == 0 && n % 5 == 2)
            .collect::<Vec<_>>()
    );
    let minion = EventFilter {
        minion: Some(Glob::new("web7")),
        ..Default::default()
    };
    assert_eq!(seqs(&minion), [7]);
    let of_job = EventFilter {
        jid: Some(jid(4)),
        ..Default::default()
    };
    assert_eq!(seqs(&of_job), [40, 41, 43, 44, 46, 47, 49]);
    let span = EventFilter {
        since: Some(Micros(100)),
        until: Some(Micros(110)),
        ..Default::default()
    };
    assert_eq!(seqs(&span), (100..110).collect::<Vec<_>>());
    let mut before = rig.store.durable();
    let mut paged = Vec::new();
    loop {
        let page = rig
            .store
            .events_before(&EventFilter::default(), before, 7, usize::MAX)
            .unwrap();
        let Some(last) = page.last() else { break };
        before = last.seq;
        paged.extend(page.iter().map(|e| e.seq.0));
    }
    assert_eq!(paged, (1..=300).rev().collect::<Vec<_>>());
}

#[test]
fn a_very_large_entry_gets_a_block_of_its_own() {
    let (_dir, rig) = Rig::new(Limits::default());
    let noise: Vec<u8> = (0..500_000_u32)
        .flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes())
        .collect();
    let mut w = Writer::new();
    w.map(1).str("x").bin(&noise);
    let giant = w.into_bytes();
    let mut batch = batch_of(0..3);
    batch.push(&event_entry(b"giant", &giant, Source::Bus, Micros(0)), None);
    rig.put(batch).unwrap();
    let found = rig
        .store
        .events_before(&EventFilter::default(), SeqNo(u64::MAX), 1, usize::MAX)
        .unwrap();
    assert_eq!(
        (found[0].tag.as_slice(), &found[0].body),
        (&b"giant"[..], &giant)
    );
}

#[test]
fn latest_jobs_minions_and_the_register_survive_sealing() {
    let (_dir, rig) = Rig::new(SMALL);
    rig.put(register("old")).unwrap();
    rig.put_each(0..100);
    rig.put(register("new")).unwrap();
    rig.put_each(100..200);
    let rig = rig.reopened();
    assert_eq!(
        rig.store.register().unwrap().as_deref(),
        Some(&b"\xa3new"[..])
    );
    let latest = rig.store.latest_on_bus_only("test.echo").unwrap();
    assert_eq!(
        latest.get("web199").map(|l| l.jid.to_string()),
        Some(jid(19))
    );
    assert_eq!(latest.len(), rig.store.minions(false).unwrap().len());
    assert_eq!(
        rig.store.latest_on_bus_only("test").unwrap().len(),
        0,
        "a prefix of a function does not match"
    );
    let before = JidKey::of(&jid(5));
    let rows = rig.store.jobs_before(Some(before), 2).unwrap();
    assert_eq!(
        rows.iter().map(|(_, r)| r.jid.clone()).collect::<Vec<_>>(),
        [jid(4), jid(3)]
    );
}

#[test]
fn concurrent_readers_share_one_closed_index() {
    let dir = closed_store(SMALL, 0..400);
    let indexes = files_named(dir.path(), "index").len();
    let rig = Rig::open(dir.path(), SMALL);
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let store = rig.store.clone();
            let read = move || {
                (0..40).for_each(|job| assert!(!store.job_entries(&jid(job)).unwrap().is_empty()));
            };
            std::thread::Builder::new().spawn(read).unwrap()
        })
        .collect();
    for reader in readers {
        reader.join().unwrap();
    }
    assert_eq!(rig.metrics.indexes_rebuilt.get(), 0);
    rig.close();
    assert_eq!(files_named(dir.path(), "index").len(), indexes);
}

#[test]
fn events_of_runners_are_found_by_jid_after_sealing_too() {
    let (_dir, rig) = Rig::new(SMALL);
    let of_runner = Batch::of(&event_entry(
        b"salt/run/20261121030955999999/new",
        b"\x80",
        Source::Bus,
        Micros(0),
    ));
    rig.put(of_runner).unwrap();
    rig.put_each(0..100);
    let rig = rig.reopened();
    let filter = EventFilter {
        jid: Some("20261121030955999999".to_owned()),
        ..Default::default()
    };
    assert_eq!(rig.events(&filter).len(), 1);
}

#[test]
fn the_last_value_wins_after_an_older_segment_is_reindexed() {
    let (dir, rig) = Rig::new(SMALL);
    let fact = |kind, jid: &str, text: &str| {
        let mut w = Writer::new();
        w.str(text);
        let body = w.into_bytes();
        Batch::of(&Entry {
            jid,
            ..Entry::new(kind, Source::Returner, Micros(0), &body)
        })
    };
    for (text, numbers) in [("old", 0..100), ("new", 100..200)] {
        rig.put(fact(Kind::Register, "", text)).unwrap();
        rig.put(fact(Kind::Endtime, &jid(0), text)).unwrap();
        rig.put_each(numbers);
    }
    rig.close();
    let check = |rig: &Rig| {
        assert_eq!(
            rig.store.register().unwrap().as_deref(),
            Some(&b"\xa3new"[..])
        );
        assert_eq!(rig.store.job_row(&jid(0)).unwrap().unwrap().endtime, "new");
    };
    let oldest = files_named(dir.path(), "index")
        .into_iter()
        .find(|p| p.to_str().unwrap().contains("/jobs/"))
        .unwrap();
    spoil(&oldest);
    for _ in 0..2 {
        let rig = Rig::open(dir.path(), SMALL);
        check(&rig);
        rig.store.job_entries(&jid(0)).unwrap();
        check(&rig);
    }
}
