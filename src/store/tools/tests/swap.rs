//! Backups and checks while a sealed segment replaces the old one.

use super::*;
use crate::store::tests::retention::LimitedSpace;
use crate::store::tools::Watch;

/// Runs a function at the first step of a tool.
struct Once<F>(Option<F>);

impl<F: FnOnce()> Watch for Once<F> {
    fn step(&mut self, _: u64, _: u64, _: &str) {
        if let Some(work) = self.0.take() {
            work();
        }
    }
}

/// A store with a segment between the two renames of its replacement; and a function that completes it.
fn in_the_middle_of_a_swap() -> (tempfile::TempDir, PathBuf, impl FnOnce()) {
    let (dir, state) = a_store();
    let segment = layout::segments(&state)
        .unwrap()
        .into_iter()
        .rfind(|segment| segment.is_sealed)
        .unwrap();
    let (sealed, old) = (
        segment.dir.with_extension("sealed"),
        segment.dir.with_extension("old"),
    );
    copy(&segment.dir, &sealed);
    fs::rename(&segment.dir, &old).unwrap();
    let rest = move || {
        fs::rename(&sealed, &segment.dir).unwrap();
        fs::remove_dir_all(&old).unwrap();
    };
    (dir, state, rest)
}

#[test]
fn a_backup_includes_a_segment_that_is_being_replaced() {
    let (dir, state, rest) = in_the_middle_of_a_swap();
    let to = dir.path().join("backup");
    let segments = layout::segments(&state).unwrap().len() as u64;
    let options = backup::BackupOptions {
        delete: true,
        ..backup::BackupOptions::default()
    };
    let report = backup(&state, &to, options, Micros(1), &mut Once(Some(rest))).unwrap();
    assert_eq!(report.segments, segments);
    let report = backup(&state, &to, options, Micros(2), &mut ()).unwrap();
    assert_eq!((report.segments, report.segments_deleted), (segments, 0));
}

#[test]
fn verify_includes_a_segment_that_is_being_replaced() {
    let (_dir, state, rest) = in_the_middle_of_a_swap();
    let segments = layout::segments(&state).unwrap().len() as u64;
    let report = verify(
        &state,
        verify::VerifyOptions::default(),
        &mut Once(Some(rest)),
    )
    .unwrap();
    assert_eq!(report.segments, segments);
    assert!(report.problems.is_empty(), "{report:#?}");
}

#[test]
fn a_log_is_found_at_every_step_of_a_replacement() {
    let (_dir, state) = a_store();
    let listed = layout::segments(&state)
        .unwrap()
        .into_iter()
        .find(|segment| segment.is_sealed)
        .unwrap();
    let (dir, sealed, old) = (
        listed.dir.clone(),
        listed.dir.with_extension("sealed"),
        listed.dir.with_extension("old"),
    );
    copy(&dir, &sealed);
    let found = |segment: &layout::SegmentFiles| {
        let mut segment = segment.clone();
        segment.open_log().unwrap().map(|_| segment.dir)
    };
    let in_between = layout::SegmentFiles {
        dir: sealed.clone(),
        ..listed.clone()
    };
    let check = |expected: Option<&PathBuf>| {
        for segment in [&listed, &in_between] {
            assert_eq!(found(segment).as_ref(), expected);
        }
    };
    check(Some(&dir));
    fs::rename(&dir, &old).unwrap();
    check(Some(&sealed));
    assert!(layout::without_log(&state).unwrap().is_empty());
    fs::rename(&sealed, &dir).unwrap();
    check(Some(&dir));
    fs::remove_dir_all(&dir).unwrap();
    check(None);
}

#[test]
fn a_replacement_is_complete_with_and_without_rename_exchange() {
    let media: [&dyn vfs::Fs; 2] = [&vfs::Disk, &LimitedSpace::default()];
    for fs in media {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join(format::segment_name(SeqNo(1)));
        for (dir, text) in [(dir.clone(), "old"), (dir.with_extension("sealing"), "new")] {
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("log"), text).unwrap();
        }
        crate::store::segment::rewrite::swap(fs, &dir).unwrap();
        assert_eq!(
            fs::read_to_string(dir.join("log")).unwrap(),
            "new",
            "{fs:?}"
        );
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1, "{fs:?}");
    }
}
