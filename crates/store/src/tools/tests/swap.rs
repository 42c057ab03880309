//! Backups and checks while a sealed segment replaces the old one.

use super::*;
use crate::tools::Watch;

/// Runs a function at the first step of a tool.
struct Once<F>(Option<F>);

impl<F: FnOnce()> Watch for Once<F> {
    fn step(&mut self, _: u64, _: u64, _: &str) {
        if let Some(work) = self.0.take() {
            work();
        }
    }
}

/// A store with a segment of which the next generation has its name, and the old one is still there;
/// and a function that removes the old one.
fn in_the_middle_of_a_replacement() -> (tempfile::TempDir, PathBuf, impl FnOnce()) {
    let (dir, state) = a_store();
    let segment = layout::segments(&state)
        .unwrap()
        .into_iter()
        .rfind(|segment| segment.is_sealed)
        .unwrap();
    let class_dir = segment.dir.parent().unwrap();
    let next = format::next_generation(class_dir, segment.first_seq).unwrap();
    copy(&segment.dir, &next);
    let rest = move || fs::remove_dir_all(&segment.dir).unwrap();
    (dir, state, rest)
}

#[test]
fn a_backup_includes_a_segment_that_is_being_replaced() {
    let (dir, state, rest) = in_the_middle_of_a_replacement();
    let to = dir.path().join("backup");
    // Those of entries, and two of settings.
    let segments = layout::segments(&state).unwrap().len() as u64 + 2;
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
    let (_dir, state, rest) = in_the_middle_of_a_replacement();
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
    let found = || {
        let mut segment = listed.clone();
        let found = segment.open_log().unwrap();
        matches!(found, layout::FoundLog::Open(_)).then_some(segment.dir)
    };
    let class_dir = listed.dir.parent().unwrap();
    let next = format::next_generation(class_dir, listed.first_seq).unwrap();
    let unfinished = format::unfinished(&next);

    copy(&listed.dir, &unfinished);
    assert_eq!(found().as_ref(), Some(&listed.dir));
    fs::rename(&unfinished, &next).unwrap();
    assert_eq!(found().as_ref(), Some(&listed.dir), "it is as good");
    fs::remove_dir_all(&listed.dir).unwrap();
    assert_eq!(found().as_ref(), Some(&next));
    assert!(layout::without_log(&state).unwrap().is_empty());
    fs::remove_dir_all(&next).unwrap();
    assert_eq!(found(), None);
}
