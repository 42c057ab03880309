//! Effects of damaged files on readers.

pub(crate) mod forged;
mod sectors;
mod table;
mod torn;

use rustix::io::Errno;

use super::*;
use crate::log::frame::{self, LogId};
use crate::read::JobPart;
use crate::read::consumer::BatchLimits;

#[test]
fn a_frame_inside_a_body_is_ignored_when_the_frame_around_it_is_damaged() {
    let forged = crate::tests::damage::forged::frame_at(
        LogId {
            store_id: 77,
            first_seq: SeqNo(1),
        },
        512,
        900,
        "forged/event",
    );
    // Incompressible, because the body must appear verbatim in the log.
    let body = [forged.as_slice(), &noise(0, 65_536)].concat();
    let (dir, rig) = Rig::new(Limits::default());
    rig.put(bare_event("first")).unwrap();
    rig.put(Batch::of(&event_entry(
        b"carrier",
        &body,
        Source::Bus,
        Micros(0),
    )))
    .unwrap();
    rig.put(bare_event("last")).unwrap();
    rig.close();
    let path = &files_named(dir.path(), "log")[0];
    let mut bytes = fs::read(path).unwrap();
    let at = memchr::memmem::find(&bytes, &forged).expect("the body is not compressed");
    assert_eq!(at % 16, 0, "at a position that searches examine");
    let around = crate::tests::damage::forged::frames(path)
        .into_iter()
        .rfind(|frame| *frame < at)
        .unwrap();
    bytes[around] ^= 1;
    fs::write(path, &bytes).unwrap();
    let rig = Rig::open(dir.path(), Limits::default());
    assert_eq!(rig.tags(), ["first", "last"]);
    assert_eq!(rig.metrics.frames_damaged.get(), 1);
}

/// The identity of a log file in a state directory.
fn log_id(state_dir: &Path, path: &Path) -> LogId {
    let text = fs::read_to_string(state_dir.join("FORMAT")).unwrap();
    let name = path
        .parent()
        .unwrap()
        .file_name()
        .unwrap()
        .to_str()
        .unwrap();
    let (first_seq, _) = format::generation_of(name).unwrap();
    LogId {
        store_id: format::read_format(&text).unwrap(),
        first_seq,
    }
}

#[test]
fn a_frame_of_another_version_is_never_truncated() {
    let (dir, rig) = Rig::new(Limits::default());
    rig.put(batch_of(0..20)).unwrap();
    rig.close();
    let path = &files_named(dir.path(), "log")[1];
    let mut bytes = fs::read(path).unwrap();
    // The newest frame as a later release would write it: another version, a valid checksum.
    let id = log_id(dir.path(), path);
    bytes[80 + 4] = 6;
    frame::place_frame(&mut bytes[80..], id, frame::Position::in_new_log(80));
    fs::write(path, &bytes).unwrap();
    let error = Store::open(&options(dir.path(), Limits::default()))
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("byte 80") && error.contains("version 6"),
        "{error}"
    );
    assert_eq!(fs::read(path).unwrap(), bytes);
}

#[test]
fn truncated_bytes_are_kept_in_a_copy() {
    let (dir, rig) = Rig::new(Limits::default());
    rig.put(batch_of(0..20)).unwrap();
    rig.close();
    let path = &files_named(dir.path(), "log")[0];
    let len = fs::metadata(path).unwrap().len();
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .write_all_at(b"half a frame", len)
        .unwrap();
    Rig::open(dir.path(), Limits::default()).close();
    assert_eq!(
        fs::read(path.with_file_name(format!("log.cut-{len}"))).unwrap(),
        b"half a frame"
    );
}

#[test]
fn a_full_disk_prevents_the_copy_of_truncated_bytes_but_not_the_start() {
    let (dir, rig) = Rig::new(Limits::default());
    rig.put(batch_of(0..20)).unwrap();
    rig.close();
    let path = &files_named(dir.path(), "log")[0];
    let len = fs::metadata(path).unwrap().len();
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .write_all_at(b"half a frame", len)
        .unwrap();
    let (plan, fs) = faulty_disk();
    plan.add(Fault {
        within: "log.cut".to_owned(),
        ..Fault::lasting(Act::Write, Errno::NOSPC)
    });
    let rig = Rig::open_with(&Options {
        fs,
        ..options(dir.path(), Limits::default())
    });
    check_all(&rig, 0..20);
    assert_eq!(rig.metrics.tail_bytes_truncated.get(), 12);
    rig.close();
    assert!(
        !path.with_file_name(format!("log.cut-{len}")).exists(),
        "no partial copy remains"
    );
}

#[test]
fn a_start_by_time_passes_over_a_damaged_block_only() {
    let (dir, rig) = Rig::new(Limits::default());
    for n in 1..=4 {
        let (tag, body) = (format!("event/{n}"), noise(n, 4096));
        let entry = event_entry(tag.as_bytes(), &body, Source::Bus, Micros(n.cast_signed()));
        rig.put(Batch::of(&entry)).unwrap();
    }
    let first_since = |at| rig.store.first_since(Micros(at)).unwrap();
    assert_eq!([1, 2, 3, 5].map(first_since), [1, 2, 3, 5].map(SeqNo));

    // The second block, while the store is open.
    let path = &files_named(dir.path(), "log")[0];
    let at = crate::tests::damage::forged::frames(path)[1];
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[0xff; 32], at as u64 + 40).unwrap();

    assert_eq!([1, 2, 3, 4, 5].map(first_since), [1, 3, 3, 4, 5].map(SeqNo));
    assert_eq!(rig.metrics.frames_damaged.get(), 1);
}

/// A store of sealed segments, the second of which has a damaged index; and that segment.
fn one_damaged_index() -> (tempfile::TempDir, Rig, Arc<segment::Segment>) {
    let dir = closed_store(SMALL, 0..100);
    // The start does not look for earlier entries in the old segments.
    let limits = Limits {
        dedupe_window: 1,
        ..SMALL
    };
    let rig = Rig::open(dir.path(), limits);
    let segment = rig.store.segments.of(Class::JOBS).swap_remove(1);
    spoil(&segment.dir().join("index"));
    (dir, rig, segment)
}

#[test]
fn retention_knows_the_entries_of_a_segment_whose_index_is_being_rebuilt() {
    let (_dir, rig, segment) = one_damaged_index();
    let before = segment.totals();
    assert!(before.entries > 0 && before.at_max > Micros(0));

    // As a reader that has rebuilt the index, and has not told the sealer yet.
    segment.open_index(SeqNo(u64::MAX)).unwrap();
    assert_eq!(segment.totals(), before);

    let day = std::time::Duration::from_secs(86_400);
    let keep = saltcellar_model::Keep {
        age: saltcellar_model::Age::For(day),
        bytes: None,
        entries: None,
    };
    // Its newest entry is a day old, and not older.
    let now = Micros(before.at_max.0 + saltcellar_base::clock::micros(day));
    let planned = rig.store.0.retention.plan(Class::JOBS, keep, now).unwrap();
    assert!(
        planned
            .iter()
            .all(|(planned, _)| planned.first_seq < segment.first_seq),
        "{planned:?}"
    );
}

#[test]
fn a_failed_drop_leaves_what_retention_knows_of_a_segment() {
    let (_dir, rig) = Rig::new(SMALL);
    rig.put_each(0..100);
    let rig = rig.reopened();
    let segment = rig.store.segments.of(Class::JOBS).swap_remove(1);
    let before = segment.totals();

    let failed = segment.detach_index(|| {
        // Another thread that has an older list of segments.
        segment.usage();
        Err(StoreError::Stopping)
    });
    assert!(failed.is_err());
    assert_eq!(segment.usage().entries, before.entries);
    assert_eq!(segment.usage().at_max, before.at_max);
}

#[test]
fn an_index_that_is_being_sealed_again_delays_no_reader_of_another() {
    let (_dir, rig) = Rig::new(SMALL);
    rig.put_each(0..100);
    let rig = rig.reopened();
    let [damaged, other] = [0, 1].map(|n| rig.store.segments.of(Class::JOBS).swap_remove(n));

    // Opened, found damaged by a query, and in memory now.
    let segment::Ready::Sealed(index) = rig.store.blocks.indexes().ready(&damaged).unwrap() else {
        panic!("it is sealed");
    };
    assert!(damaged.replace_index(&index, SeqNo(u64::MAX)).unwrap());
    // All other segments are used later.
    for segment in rig.store.segments.all() {
        segment.touch(u64::from(!Arc::ptr_eq(&segment, &damaged)));
    }

    // The sealer reads it meanwhile.
    let sealing = damaged.memory().unwrap();
    let (tx, rx) = sync_channel(1);
    let shared = rig.store.clone();
    let open = move || {
        shared
            .blocks
            .indexes()
            .note_open(&other, saltcellar_base::limits::INDEXES_OPEN_BYTES + 1);
        tx.send(()).unwrap();
    };
    let opens = std::thread::Builder::new().spawn(open).unwrap();
    receive(&rx);

    drop(sealing);
    opens.join().unwrap();
}

#[test]
fn a_block_that_cannot_be_unpacked_is_noted_once_and_costs_no_other_entry() {
    let (dir, rig) = Rig::new(Limits::default());
    rig.put(batch_of(0..6)).unwrap();
    rig.put(batch_of(6..10)).unwrap();

    // The first block of returns, with other bytes and valid checksums.
    let segment = rig.store.segments.of(Class::JOBS).swap_remove(0);
    let meta = rig.metas(&segment)[0];
    let path = segment.log().path();
    let mut frame = fs::read(path)
        .unwrap()
        .split_off(usize::try_from(meta.offset).unwrap());
    let word = |at: usize| u32::from_le_bytes(*frame[at..].first_chunk().unwrap()) as usize;
    let begin = frame::FRAME_HEADER_LEN + word(8).next_multiple_of(16);
    let bodies = begin..begin + word(12);
    frame[bodies.clone()].fill(0xff);
    let crc = crc32fast::hash(&frame[bodies]);
    frame[36..40].copy_from_slice(&crc.to_le_bytes());
    let id = log_id(dir.path(), path);
    frame::place_frame(&mut frame, id, frame::Position::in_new_log(meta.offset));
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&frame, meta.offset).unwrap();

    for _ in 0..2 {
        let entries = rig.store.job_entries(&jid(0)).unwrap();
        let minions: Vec<_> = entries.iter().map(|entry| &*entry.minion).collect();
        assert_eq!(minions, ["web7", "web8"]);
        let upto = rig.store.durable();
        let page = rig.store.job_page(&jid(0), JobPart::ALL).unwrap();
        assert_eq!((page.entries.len(), page.next), (2, None));

        let expected = [0, 3, 6, 7, 8, 9].map(|n| event(n).0);
        assert_eq!(rig.tags(), expected);
        let (all, _) = rig
            .store
            .entries_from(SeqNo::FIRST, upto, usize::MAX, |_, _| true)
            .unwrap();
        assert_eq!(all.len(), expected.len());
    }

    let known = rig.store.damage();
    assert_eq!(known.len(), 1, "{known:?}");
    assert_eq!((known[0].offset, known[0].entries), (meta.offset, Some(4)));
    assert_eq!(rig.metrics.frames_damaged.get(), 1);

    // A consumer gets gap records in their places: event `n` has the number `n + 1`.
    let consumers = rig.store.consumers();
    consumers
        .create("audit", EntryFilter::default(), Start::Oldest)
        .unwrap();
    let limits = BatchLimits {
        events: 100,
        bytes: usize::MAX,
    };
    let lease = std::time::Duration::from_secs(30);
    let batch = consumers.next_batch("audit", "me", lease, limits).unwrap();
    let seqs: Vec<_> = batch.events.iter().map(|event| event.seq.0).collect();
    assert_eq!(seqs, [1, 3, 4, 6, 7, 8, 9, 10]);
    let is_gap = |event: &&StoredEntry| event.tag == b"saltcellar/gap/damage";
    let gaps = batch.events.iter().filter(is_gap).map(|gap| gap.seq.0);
    assert_eq!(gaps.collect::<Vec<_>>(), [3, 6]);
}
