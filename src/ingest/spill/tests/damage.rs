//! Spill files on a failing or corrupting disk.

use super::*;
use crate::store::vfs::faults::{Act, Fault, Faults, Plan};

fn faulty(words: &str) -> (Arc<Plan>, Arc<dyn Fs>) {
    let plan = Arc::new(Plan::parse(words).unwrap());
    (plan.clone(), Arc::new(Faults::over(Arc::new(Disk), plan)))
}

/// A directory with the given events in one file.
fn spilled(numbers: std::ops::RangeInclusive<u64>, bytes: usize) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b");
    let (mut queue, _) = open(&path);
    for n in numbers {
        queue.append(&event(n, bytes), n).unwrap();
    }
    (dir, path)
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// Drains a queue: the tags, and the numbers of missing events.
fn drained_with_holes(queue: &mut DiskQueue) -> (Vec<String>, Vec<Option<u64>>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    while let Some(piece) = queue.next_piece().unwrap() {
        missing.extend(piece.hole.map(|hole| hole.lost));
        found.extend(
            piece
                .batch
                .entries()
                .map(|(entry, _)| String::from_utf8_lossy(entry.tag).into_owned()),
        );
        queue.stored(piece.file);
    }
    (found, missing)
}

#[test]
fn a_read_error_at_the_start_keeps_the_file() {
    let (_dir, place) = spilled(1..=20, 100);
    let (plan, fs) = faulty("read=EIO@1+");
    let (mut queue, found) = DiskQueue::open(fs, &place).unwrap();
    assert_eq!(
        (found.events, files(&place).len()),
        (0, 1),
        "the file is kept"
    );
    assert!(queue.next_piece().is_err(), "and retried");
    plan.heal();
    assert_eq!(only_tags(&drained(&mut queue)), tags(1..21));
}

#[test]
fn a_read_error_in_the_middle_of_a_file_loses_nothing() {
    let mut failed = 0;
    // Opening scans the file, delivery reads it again, a chunk at a time.
    for nth in 1..24 {
        let (_dir, place) = spilled(1..=20, 100_000);
        let (_plan, fs) = faulty(&format!("read=EIO@{nth}"));
        let (mut queue, _) = DiskQueue::open(fs, &place).unwrap();
        let mut found = Vec::new();
        loop {
            match queue.next_piece() {
                Ok(Some(piece)) => {
                    let tag = |tag: &[u8]| String::from_utf8_lossy(tag).into_owned();
                    found.extend(piece.batch.entries().map(|(entry, _)| tag(entry.tag)));
                    queue.stored(piece.file);
                }
                Ok(None) => break,
                Err(_) => failed += 1,
            }
        }
        assert_eq!(found, tags(1..21), "with a failure of read {nth}");
    }
    assert!(failed >= 4, "{failed} reads failed during delivery");
}

#[test]
fn a_flipped_bit_costs_one_record_and_is_reported() {
    let (_dir, place) = spilled(1..=2_000, 100);
    let path = files(&place)[0].clone();
    flip(&path, 2_000);
    let (mut queue, found) = open(&place);
    assert_eq!(found.events, 1_999);
    let (found, missing) = drained_with_holes(&mut queue);
    assert_eq!((found.len(), missing), (1_999, vec![Some(1)]));
}

#[test]
fn a_record_inside_an_events_data_is_not_delivered() {
    let (_dir, place) = spilled(1..=3, 100);
    let path = files(&place)[0].clone();
    let bytes = std::fs::read(&path).unwrap();
    let record = bytes[super::super::record::FILE_HEADER..].len() / 3;
    // A whole file of this format, and records of this very file, as the data of an event.
    let forged = [bytes.as_slice(), &bytes[bytes.len() - 2 * record..]].concat();
    let mut batch = Batch::default();
    let mut w = crate::wire::msgpack::Writer::new();
    w.map(1).str("forged").bin(&forged);
    batch.push(
        &read_event(b"test/4", &w.into_bytes(), Source::Bus, at(4)).entry,
        None,
    );
    let (_other, place) = spilled(1..=3, 100);
    let (mut queue, _) = open(&place);
    queue.append(&batch, 4).unwrap();
    queue.append(&event(5, 100), 5).unwrap();
    drop(queue);
    let path = files(&place)[1].clone();
    let forged_at = std::fs::read(&path)
        .unwrap()
        .windows(8)
        .rposition(|w| w == b"SCSPILL2")
        .unwrap();
    assert!(forged_at > 0);
    // The record with the forged ones becomes invalid.
    flip(&path, 50);
    let (found, missing) = drained_with_holes(&mut open(&place).0);
    assert_eq!(found, [tags(1..4), tags(5..6)].concat());
    assert_eq!(missing, [Some(1)]);
}

#[test]
fn an_unreadable_sector_costs_its_records_and_the_file_is_kept() {
    let (_dir, place) = spilled(1..=40, 10_000);
    let (plan, fs) = faulty("");
    let (mut queue, found) = DiskQueue::open(fs, &place).unwrap();
    assert_eq!(found.events, 40);
    plan.add(Fault::lasting(Act::Read, rustix::io::Errno::IO));
    let mut failures = 0;
    while failures < crate::base::limits::SPILL_READ_TRIES {
        assert!(queue.next_piece().is_err());
        failures += 1;
    }
    plan.heal();
    plan.add(Fault::once(Act::Read, rustix::io::Errno::IO));
    // After the large read, the third sector, in which the second record begins.
    plan.add(Fault {
        from: 4,
        ..Fault::once(Act::Read, rustix::io::Errno::IO)
    });
    let (found, missing) = drained_with_holes(&mut queue);
    assert_eq!(
        (found, missing),
        ([tags(1..2), tags(3..41)].concat(), vec![Some(1)])
    );
    assert!(files(&place).is_empty());
    let kept = place.read_dir().unwrap().filter(|item| {
        item.as_ref()
            .unwrap()
            .path()
            .extension()
            .is_some_and(|ending| ending == "damaged")
    });
    assert_eq!(kept.count(), 1);
}

#[test]
fn damage_at_the_end_of_the_last_file_is_reported() {
    let (_dir, place) = spilled(1..=10, 1_000);
    let (mut queue, _) = open(&place);
    let path = files(&place)[0].clone();
    let len = std::fs::metadata(&path).unwrap().len();
    flip(&path, usize::try_from(len).unwrap() - 10);
    let (found, missing) = drained_with_holes(&mut queue);
    assert_eq!((found, missing), (tags(1..10), vec![Some(1)]));
}

#[test]
fn the_number_of_damaged_files_is_limited() {
    let dir = tempfile::tempdir().unwrap();
    for n in 1..=20 {
        let (mut queue, _) = open(dir.path());
        queue.append(&event(n, 100), n).unwrap();
        flip(&files(dir.path())[0], 100);
        assert_eq!(drained_with_holes(&mut queue), (vec![], vec![Some(1)]));
    }
    assert_eq!(
        dir.path().read_dir().unwrap().count(),
        crate::base::limits::SPILL_DAMAGED_FILES
    );
}

#[test]
fn a_file_header_with_a_flipped_bit_is_readable() {
    for at in [0, 8, 16, 24, 32] {
        let (_dir, place) = spilled(1..=5, 100);
        flip(&files(&place)[0], at);
        assert_eq!(
            only_tags(&drained(&mut open(&place).0)),
            tags(1..6),
            "byte {at}"
        );
    }
}

#[test]
fn a_lost_record_becomes_a_gap_in_the_log() {
    let mut harness = Harness::new();
    let (mut queue, _) = open(&harness.spill());
    for n in 1..=20 {
        queue.append(&event(n, 100), n).unwrap();
    }
    drop(queue);
    flip(&files(&harness.spill())[0], 1_000);
    let spill_writer = harness.spill_writer();
    let (spill_drainer, _) = harness.spill_drainer(&spill_writer, 1 << 30);
    harness.start();
    spill_writer.close();
    drop(spill_writer);
    spill_drainer.run();
    let stored = harness.stored();
    assert_eq!(stored.len(), 20, "{stored:?}");
    assert_eq!(
        stored
            .iter()
            .filter(|tag| *tag == "saltcellar/gap/spill")
            .count(),
        1,
        "{stored:?}"
    );
    assert_eq!(
        (
            harness.metrics.bus_events_lost.get(),
            harness.metrics.spill_ranges_damaged.get()
        ),
        (1, 1)
    );
}
