//! Files of the spill on a disk that fails or rots.

use super::*;
use crate::store::medium::faults::{Act, Fault, Faults, Plan};

fn faulty(words: &str) -> (Arc<Plan>, Arc<dyn Medium>) {
    let plan = Arc::new(Plan::read(words).unwrap());
    (plan.clone(), Arc::new(Faults::over(Arc::new(Disk), plan)))
}

/// A directory with events of these numbers in one file.
fn spilled(numbers: std::ops::RangeInclusive<u64>, bytes: usize) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("a/b");
    let (mut queue, _) = open(&place);
    for n in numbers {
        queue.append(&event(n, bytes), n).unwrap();
    }
    (dir, place)
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// What comes out, and what is missing.
fn drained_with_holes(queue: &mut DiskQueue) -> (Vec<String>, Vec<Option<u64>>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    while let Some(piece) = queue.next_piece().unwrap() {
        missing.extend(piece.hole.map(|hole| hole.lost));
        found.extend(piece.batch.entries().map(|(entry, _)| String::from_utf8_lossy(entry.tag).into_owned()));
        queue.stored(piece.file);
    }
    (found, missing)
}

#[test]
fn a_read_error_at_the_start_deleted_the_file() {
    let (_dir, place) = spilled(1..=20, 100);
    let (plan, medium) = faulty("read=EIO@1+");
    let (mut queue, found) = DiskQueue::open(medium, &place).unwrap();
    assert_eq!((found.events, files(&place).len()), (0, 1), "it stays where it is");
    assert!(queue.next_piece().is_err(), "and is tried again");
    plan.heal();
    assert_eq!(only_tags(&drained(&mut queue)), tags(1..21));
}

#[test]
fn a_read_error_in_the_middle_of_a_file_loses_nothing() {
    let mut failed = 0;
    // Opening reads the file through, handing it over reads it again, a piece at a time.
    for nth in 1..24 {
        let (_dir, place) = spilled(1..=20, 100_000);
        let (_plan, medium) = faulty(&format!("read=EIO@{nth}"));
        let (mut queue, _) = DiskQueue::open(medium, &place).unwrap();
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
        assert_eq!(found, tags(1..21), "the read that failed was number {nth}");
    }
    assert!(failed >= 4, "{failed} reads failed while pieces were handed over");
}

#[test]
fn a_flipped_bit_cut_off_all_records_behind_it_without_a_gap() {
    let (_dir, place) = spilled(1..=2_000, 100);
    let path = files(&place)[0].clone();
    flip(&path, 2_000);
    let (mut queue, found) = open(&place);
    assert_eq!(found.events, 1_999);
    let (found, missing) = drained_with_holes(&mut queue);
    assert_eq!((found.len(), missing), (1_999, vec![Some(1)]));
}

#[test]
fn a_record_inside_an_event_passed_for_a_record_behind_damage() {
    let (_dir, place) = spilled(1..=3, 100);
    let path = files(&place)[0].clone();
    let bytes = std::fs::read(&path).unwrap();
    let record = bytes[super::super::record::FILE_HEADER..].len() / 3;
    // A whole file of this format, and this file's own records, as the data of an event.
    let forged = [bytes.as_slice(), &bytes[bytes.len() - 2 * record..]].concat();
    let mut batch = Batch::default();
    let mut w = crate::wire::msgpack::Writer::new();
    w.map(1).str("forged").bin(&forged);
    batch.push(&read_event(b"test/4", &w.into_bytes(), Source::Bus, at(4)).entry, None);
    let (_other, place) = spilled(1..=3, 100);
    let (mut queue, _) = open(&place);
    queue.append(&batch, 4).unwrap();
    queue.append(&event(5, 100), 5).unwrap();
    drop(queue);
    let path = files(&place)[1].clone();
    let forged_at = std::fs::read(&path).unwrap().windows(8).rposition(|w| w == b"SCSPILL2").unwrap();
    assert!(forged_at > 0);
    // The record that has the forged ones in it no longer holds.
    flip(&path, 50);
    let (found, missing) = drained_with_holes(&mut open(&place).0);
    assert_eq!(found, [tags(1..4), tags(5..6)].concat());
    assert_eq!(missing, [Some(1)]);
}

#[test]
fn a_sector_that_stays_unreadable_costs_its_records_and_the_file_is_kept() {
    let (_dir, place) = spilled(1..=40, 10_000);
    let (plan, medium) = faulty("");
    let (mut queue, found) = DiskQueue::open(medium, &place).unwrap();
    assert_eq!(found.events, 40);
    plan.add(Fault::lasting(Act::Read, rustix::io::Errno::IO));
    let mut failures = 0;
    while failures < crate::limits::SPILL_READ_TRIES {
        assert!(queue.next_piece().is_err());
        failures += 1;
    }
    plan.heal();
    plan.add(Fault::once(Act::Read, rustix::io::Errno::IO));
    // After the read of much the third sector, where the second record begins.
    plan.add(Fault { from: 4, ..Fault::once(Act::Read, rustix::io::Errno::IO) });
    let (found, missing) = drained_with_holes(&mut queue);
    assert_eq!((found, missing), ([tags(1..2), tags(3..41)].concat(), vec![Some(1)]));
    assert!(files(&place).is_empty());
    let kept = place
        .read_dir()
        .unwrap()
        .filter(|item| item.as_ref().unwrap().path().extension().is_some_and(|ending| ending == "damaged"));
    assert_eq!(kept.count(), 1);
}

#[test]
fn damage_at_the_end_of_all_is_told_though_nothing_comes_behind_it() {
    let (_dir, place) = spilled(1..=10, 1_000);
    let (mut queue, _) = open(&place);
    let path = files(&place)[0].clone();
    let len = std::fs::metadata(&path).unwrap().len();
    flip(&path, usize::try_from(len).unwrap() - 10);
    let (found, missing) = drained_with_holes(&mut queue);
    assert_eq!((found, missing), (tags(1..10), vec![Some(1)]));
}

#[test]
fn damaged_files_are_kept_up_to_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    for n in 1..=20 {
        let (mut queue, _) = open(dir.path());
        queue.append(&event(n, 100), n).unwrap();
        flip(&files(dir.path())[0], 100);
        assert_eq!(drained_with_holes(&mut queue), (vec![], vec![Some(1)]));
    }
    assert_eq!(dir.path().read_dir().unwrap().count(), crate::limits::SPILL_DAMAGED_FILES);
}

#[test]
fn a_file_header_with_a_flipped_bit_is_read_all_the_same() {
    for at in [0, 8, 16, 24, 32] {
        let (_dir, place) = spilled(1..=5, 100);
        flip(&files(&place)[0], at);
        assert_eq!(only_tags(&drained(&mut open(&place).0)), tags(1..6), "byte {at}");
    }
}

#[test]
fn a_file_of_an_earlier_release_is_handed_over() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = b"SCSPILL1".to_vec();
    for n in 1_u64..=3 {
        let batch = event(n, 10);
        let (entry, _) = batch.entries().next().unwrap();
        let mut payload = at(n).0.to_le_bytes().to_vec();
        payload.extend([0; 4]);
        payload.extend(u32::try_from(entry.tag.len()).unwrap().to_le_bytes());
        payload.extend([entry.tag, entry.body].concat());
        let rest = [&n.to_le_bytes()[..], &payload].concat();
        bytes.extend(u32::try_from(payload.len()).unwrap().to_le_bytes());
        bytes.extend(crc32fast::hash(&rest).to_le_bytes());
        bytes.extend(rest);
    }
    std::fs::write(dir.path().join("0001000000.spill"), bytes).unwrap();
    assert_eq!(only_tags(&drained(&mut open(dir.path()).0)), tags(1..4));
}

#[test]
fn a_lost_record_becomes_a_gap_in_the_log() {
    let mut rig = Rig::new();
    let (mut queue, _) = open(&rig.spill());
    for n in 1..=20 {
        queue.append(&event(n, 100), n).unwrap();
    }
    drop(queue);
    flip(&files(&rig.spill())[0], 1_000);
    let feeder = rig.feeder();
    let (mover, _) = rig.mover(&feeder, 1 << 30);
    rig.start();
    feeder.close();
    drop(feeder);
    mover.run();
    let stored = rig.stored();
    assert_eq!(stored.len(), 20, "{stored:?}");
    assert_eq!(stored.iter().filter(|tag| *tag == "saltcellar/gap/spill").count(), 1, "{stored:?}");
    assert_eq!((rig.metrics.bus_events_lost.get(), rig.metrics.spill_stretches_damaged.get()), (1, 1));
}
