//! Spill files on a failing or corrupting disk.

use super::*;
use crate::store::vfs::faults::{Faults, Plan};

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

/// Drains a queue: the tags, and the numbers of missing events.
fn drained_with_holes(queue: &mut DiskQueue) -> (Vec<String>, Vec<Option<u64>>) {
    let (found, missing) = drained_whole(queue);
    (found.into_iter().map(|(tag, _)| tag).collect(), missing)
}

/// The tag and the body of an event.
type Delivered = (String, Vec<u8>);

/// As [`drained_with_holes`], with the body of each event.
fn drained_whole(queue: &mut DiskQueue) -> (Vec<Delivered>, Vec<Option<u64>>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    while let Some(piece) = queue.next_piece().unwrap() {
        missing.extend(piece.hole.map(|hole| hole.lost));
        found.extend(piece.batch.entries().map(|(entry, _)| {
            let tag = String::from_utf8_lossy(entry.tag).into_owned();
            (tag, entry.body.to_vec())
        }));
        queue.stored(piece.file);
    }
    (found, missing)
}

#[test]
fn a_read_error_at_the_start_keeps_the_file() {
    let (_dir, place) = spilled(1..=20, 100);
    let (plan, fs) = faulty("read=EIO@1+");
    let (mut queue, found) = DiskQueue::open(fs, &place, STORE).unwrap();
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
    // Opening scans the file, delivery scans it again, and then reads it a frame at a time. The
    // error passes: the disk corrects it, or the memory is free again.
    for nth in 1..150 {
        let (_dir, place) = spilled(1..=20, 20_000);
        let (_plan, fs) = faulty(&format!("read=ENOMEM@{nth}"));
        let (mut queue, _) = DiskQueue::open(fs, &place, STORE).unwrap();
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
fn a_flipped_bit_costs_one_batch_and_is_reported() {
    let (_dir, place) = spilled(1..=2_000, 100);
    damage(&files(&place)[0], 7);
    let (mut queue, found) = open(&place);
    assert_eq!(found.events, 1_999);
    let (found, missing) = drained_with_holes(&mut queue);
    assert_eq!((found.len(), missing), (1_999, vec![Some(1)]));
}

#[test]
fn a_frame_inside_an_events_data_is_not_delivered() {
    // One of these has its frames at multiples of 16 bytes of the file around it.
    for pad in 0..16 {
        let (_dir, place) = spilled(4..=6, 1_000);
        // A whole file of this store, whose frames belong into a file of this very number.
        let forged = std::fs::read(&files(&place)[0]).unwrap();
        let mut w = crate::wire::msgpack::Writer::new();
        w.map(1)
            .str("forged")
            .bin(&[&[0; 16][..pad], &forged].concat());
        let data = w.into_bytes();
        let mut batch = Batch::default();
        batch.push(&event_entry(b"test/4", &data, Source::Bus, at(4)), None);

        let (_other, place) = spilled(1..=3, 100);
        let (mut queue, _) = open(&place);
        queue.append(&batch, 4).unwrap();
        queue.append(&event(7, 100), 7).unwrap();
        drop(queue);

        let path = files(&place)[1].clone();
        let bytes = std::fs::read(&path).unwrap();
        let inside = memchr::memmem::rfind(&bytes, b"SALTCLOG").unwrap();
        assert!(inside > 0, "the data is stored as it is");

        // The header of the frame around it becomes invalid, so its payload is searched.
        flip(
            &path,
            usize::try_from(frames(&path)[0].offset).unwrap() + 20,
        );
        let (found, missing) = drained_with_holes(&mut open(&place).0);
        assert_eq!(found, [tags(1..4), tags(7..8)].concat(), "{pad}");
        assert_eq!(missing, [Some(3)]);
    }
}

#[test]
fn an_unreadable_sector_costs_its_batches_and_the_file_is_kept() {
    let (_dir, place) = spilled(1..=40, 10_000);
    let path = files(&place)[0].clone();
    let bad = frames(&path)[1].offset + 5_000;
    let (plan, fs) = faulty("");
    let (mut queue, found) = DiskQueue::open(fs, &place, STORE).unwrap();
    assert_eq!(found.events, 40);

    // Where the whole file cannot be read, its events wait.
    plan.add_bad_sector(".read", bad / 4096 * 4096..bad / 4096 * 4096 + 4096);
    for _ in 0..crate::base::limits::SPILL_READ_TRIES {
        assert!(queue.next_piece().is_err());
    }

    let (found, missing) = drained_with_holes(&mut queue);
    let lost = missing.first().copied().flatten().unwrap();
    assert!((1..=2).contains(&lost) && missing.len() == 1, "{missing:?}");
    assert_eq!(found.len() as u64, 40 - lost);
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
fn a_sector_that_can_be_read_again_in_time_costs_nothing() {
    let (_dir, place) = spilled(1..=40, 10_000);
    let (plan, fs) = faulty("");
    let (mut queue, _) = DiskQueue::open(fs, &place, STORE).unwrap();
    let first = queue.next_piece().unwrap().unwrap();
    // In the part that is not delivered yet.
    plan.add_bad_sector(".read", 360_448..364_544);
    let mut found = first.batch.len();
    while let Ok(Some(piece)) = queue.next_piece() {
        found += piece.batch.len();
    }
    assert!((20..40).contains(&found), "{found}");
    plan.heal();
    assert_eq!(found + drained(&mut queue).len(), 40);
    assert_eq!(queue.take_damage(), 0);
}

#[test]
fn damage_at_the_end_of_the_last_file_is_reported() {
    let (_dir, place) = spilled(1..=10, 1_000);
    let (mut queue, _) = open(&place);
    damage(&files(&place)[0], 9);
    let (found, missing) = drained_with_holes(&mut queue);
    assert_eq!((found, missing), (tags(1..10), vec![Some(1)]));
}

#[test]
fn the_number_of_damaged_files_is_limited() {
    let dir = tempfile::tempdir().unwrap();
    for n in 1..=20 {
        let (mut queue, _) = open(dir.path());
        queue.append(&event(n, 100), n).unwrap();
        damage(&files(dir.path())[0], 0);
        assert_eq!(drained_with_holes(&mut queue), (vec![], vec![Some(1)]));
    }
    assert_eq!(
        dir.path().read_dir().unwrap().count(),
        crate::base::limits::SPILL_DAMAGED_FILES
    );
}

#[test]
fn a_file_header_with_a_flipped_bit_is_readable() {
    for at in [0, 8, 16, 24, 32, 64, 76] {
        let (_dir, place) = spilled(1..=5, 100);
        flip(&files(&place)[0], at);
        assert_eq!(
            only_tags(&drained(&mut open(&place).0)),
            tags(1..6),
            "byte {at}"
        );
    }
}

/// A short form takes some bytes of each file; `FLIPS=all` takes each byte, as `make crash` does.
#[test]
fn a_changed_bit_of_any_byte_costs_at_most_a_batch_and_is_reported() {
    let all_bytes = std::env::var("FLIPS").is_ok_and(|flips| flips == "all");
    // Steps that meet each field of a header, wherever it begins.
    let step = |at: usize| if all_bytes { 1 } else { 3 + at % 5 };
    // Two files: the end of the first one is not the end of the spill.
    let intact = spilled(1..=5, 20);
    let (mut queue, _) = open(&intact.1);
    (6..=8).for_each(|n| queue.append(&event(n, 20), n).unwrap());
    drop(queue);
    let names = files(&intact.1);
    assert_eq!(names.len(), 2);
    let copied = || {
        let dir = tempfile::tempdir().unwrap();
        for file in files(&intact.1) {
            std::fs::copy(&file, dir.path().join(file.file_name().unwrap())).unwrap();
        }
        dir
    };
    let whole = copied();
    let (all, _) = drained_whole(&mut open(whole.path()).0);
    assert_eq!(all.len(), 8);

    for path in names {
        let bytes = std::fs::read(&path).unwrap();
        let name = path.file_name().unwrap();
        let places = std::iter::successors(Some(0), |at| Some(at + step(*at)));
        for at in places.take_while(|at| *at < bytes.len()) {
            let dir = copied();
            let mut hurt = bytes.clone();
            hurt[at] ^= 1 << (at % 8);
            std::fs::write(dir.path().join(name), hurt).unwrap();
            let faults = super::super::verify::faults(&dir.path().join(name), STORE);

            let (mut queue, found) = open(dir.path());
            let (delivered, missing) = drained_whole(&mut queue);
            let tags: Vec<_> = delivered.iter().map(|(tag, _)| tag).collect();
            let place = format!("byte {at} of {}: {tags:?}", name.display());
            // In order, as they were written, and all but one.
            let expected = all.iter().filter(|event| delivered.contains(event));
            assert!(delivered.iter().eq(expected), "{place}");
            let lost = (all.len() - delivered.len()) as u64;
            assert!(lost <= 1, "{place}");

            // Delivered as a hole, or counted at the start.
            let reported: u64 = missing.iter().map(|lost| lost.unwrap_or(1)).sum();
            let is_cut = found.cut > 0;
            assert!(reported >= lost || is_cut, "{place}: {missing:?}");
            assert!(lost == 0 || !faults.is_empty(), "{place}");
            assert_eq!(found.quarantined, 0, "{place}");
        }
    }
}

#[test]
fn a_lost_record_becomes_a_gap_in_the_log() {
    let mut harness = Harness::new();
    harness.spilled(1..=20);
    // In its third frame: the first ones take about 300 bytes each.
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

#[test]
fn a_lost_record_is_one_gap_although_a_stop_interrupts_the_delivery() {
    // Within the file, and at its end, where no number tells what is missing.
    for (is_last, lost) in [(false, 2), (true, 20)] {
        let mut harness = Harness::new();
        harness.spilled(1..=20);
        let file = &files(&harness.spill())[0];
        let size = std::fs::metadata(file).unwrap().len();
        // In the last frame, or in the second one.
        let at = if is_last { size - 20 } else { 1_000 };
        flip(file, usize::try_from(at).unwrap());
        stop_during_a_delivery(&harness, 21..=23);
        drop(harness.opened.take());

        let gap = vec!["saltcellar/gap/spill".to_owned()];
        let expected = [tags(1..lost), gap, tags(lost + 1..24)].concat();
        assert_eq!(delivered(&mut harness), expected);
    }
}
