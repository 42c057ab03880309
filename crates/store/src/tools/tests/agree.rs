//! What verify and salvage say of the same damage: the same, except for a write that may never have been acknowledged.

use super::*;
use crate::tools::layout::SegmentFiles;

/// What is damaged of a store.
type Damage<'a> = &'a dyn Fn(&Path);

/// The entries lost and whether that is their number, by verify and by salvage, and the entries that salvage found.
fn judged(state: &Path, damage: Damage<'_>) -> ((u64, bool), (u64, bool), u64) {
    let dir = tempfile::tempdir().unwrap();
    let (hurt, new) = (dir.path().join("hurt"), dir.path().join("new"));
    copy(state, &hurt);
    damage(&hurt);
    let report = check(&hurt);
    let saved = salvage(&hurt, &new, Micros(7), &mut ()).unwrap();
    (
        (report.entries_lost(), report.is_exact()),
        (saved.entries_lost(), saved.is_exact()),
        saved.entries(),
    )
}

/// A segment of a store.
fn segment(state: &Path, which: impl Fn(&&SegmentFiles) -> bool) -> SegmentFiles {
    let segments = layout::segments(state).unwrap();
    segments.iter().rfind(which).unwrap().clone()
}

/// Takes away what is known of a segment besides its log.
fn forget(state: &Path, segment: &SegmentFiles) {
    fs::write(segment.index(), "damaged").unwrap();
    fs::remove_dir_all(state.join("state")).unwrap();
}

fn cut(log: &Path, len: usize) {
    let file = fs::OpenOptions::new().write(true).open(log).unwrap();
    file.set_len(len as u64).unwrap();
}

#[test]
fn a_log_that_ends_early_is_a_loss_even_if_nothing_of_it_is_damaged() {
    let (_dir, state) = a_store();
    let is_last = |segment: &&SegmentFiles| segment.is_sealed && segment.class_name == "events";
    // Between two frames, and within the header: what is left is intact, or nothing.
    let ends: [fn(&Path) -> usize; 2] = [|log| *frames(log).last().unwrap(), |_| 40];
    for end in ends {
        let (verified, salvaged, entries) = judged(&state, &|hurt| {
            let segment = segment(hurt, is_last);
            forget(hurt, &segment);
            cut(&segment.log(), end(&segment.log()));
        });
        assert_eq!(verified, salvaged);
        let (most, is_exact) = salvaged;
        assert!(199 - entries <= most && !is_exact, "{most} of {entries}");
    }
}

#[test]
fn an_end_that_nothing_bounds_is_no_exact_number() {
    let (_dir, state) = a_store();
    // The newest log of its class, without its header, and no file shows which numbers were assigned.
    let (verified, salvaged, entries) = judged(&state, &|hurt| {
        let segment = segment(hurt, |segment| segment.grows());
        fs::remove_file(hurt.join("SEQUENCE")).unwrap();
        flip(&segment.log(), 3);
    });
    assert_eq!((verified, salvaged, entries), ((0, false), (0, false), 199));
}

#[test]
fn numbers_that_were_left_out_on_purpose_are_no_loss() {
    let (dir, state) = a_store();
    let new = dir.path().join("new");
    salvage(&state, &new, Micros(7), &mut ()).unwrap();
    make(&new, 200..205);

    // The last log before these numbers, without its header and its last entry.
    let (verified, salvaged, entries) = judged(&new, &|hurt| {
        let segment = segment(hurt, |segment| {
            segment.class_name == "jobs" && segment.is_sealed && segment.first_seq < SeqNo(200)
        });
        forget(hurt, &segment);
        flip(&segment.log(), 3);
        cut(&segment.log(), *frames(&segment.log()).last().unwrap());
    });
    assert_eq!(verified, salvaged);
    let (most, is_exact) = salvaged;
    assert!(204 - entries <= most && most < 10 && !is_exact, "{most}");
}

#[test]
fn entries_in_a_directory_with_another_name_are_not_lost() {
    let (_dir, state) = a_store();
    let (verified, salvaged, entries) = judged(&state, &|hurt| {
        let segment = segment(hurt, |segment| {
            segment.is_sealed && segment.class_name == "jobs"
        });
        let name = segment.dir.file_name().unwrap();
        fs::rename(&segment.dir, hurt.join("log/events").join(name)).unwrap();
    });
    assert_eq!((verified, salvaged, entries), ((0, true), (0, true), 199));
}

#[test]
fn a_block_with_the_number_of_another_entry_loses_nothing() {
    let (_dir, state) = a_store();
    let (verified, salvaged, _) = judged(&state, &|hurt| {
        let store_id = layout::check_store(hurt).unwrap();
        let segment = segment(hurt, |segment| {
            segment.grows() && segment.class_name == "events"
        });
        let log = fs::read(segment.log()).unwrap();
        let end = log.len() as u64;
        let frame = crate::tests::damage::forged::frame_at(segment.id(store_id), end, 199, "twice");
        fs::write(segment.log(), [log, frame].concat()).unwrap();
    });
    assert_eq!((verified, salvaged), ((0, true), (0, true)));
}

#[test]
fn damage_at_the_end_of_an_active_log_is_exact_after_a_stop_and_a_bound_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let rig = Rig::open_with(&options(&state));
    put(&rig.intake, 1..200);
    let store = rig.store.clone();
    rig.close();
    store.note_stop().unwrap();
    drop(store);

    let end = |hurt: &Path| {
        let log = segment(hurt, |segment| segment.grows()).log();
        let last = *frames(&log).last().unwrap();
        (log, last)
    };
    // The header of the last frame, and its bodies.
    for at in [9, 70] {
        let damage = |hurt: &Path| {
            let (log, last) = end(hurt);
            flip(&log, last + at);
        };
        let (verified, salvaged, entries) = judged(&state, &damage);
        assert_eq!((verified, salvaged, entries), ((1, true), (1, true), 198));

        // By its place.
        let hurt = dir.path().join("hurt");
        copy(&state, &hurt);
        damage(&hurt);
        let (log, last) = end(&state);
        let log = hurt.join(log.strip_prefix(&state).unwrap());
        let report = check(&hurt);
        let found = &report.problems[0];
        assert_eq!(
            (&found.path, found.offset),
            (&log, Some(last as u64)),
            "{report:#?}"
        );
        fs::remove_dir_all(&hurt).unwrap();

        // The same without a stop: for verify an unfinished write, and for salvage a bound.
        let (verified, salvaged, _) = judged(&state, &|hurt| {
            fs::remove_file(hurt.join("STOPPED")).unwrap();
            damage(hurt);
        });
        assert_eq!((verified, salvaged.1), ((0, true), false));
        assert!(salvaged.0 <= 1, "{salvaged:?}");
    }
}
