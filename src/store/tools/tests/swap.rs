//! Backups and checks while a sealed segment takes the place of the one that grew.

use super::*;
use crate::store::tools::Watch;

/// Runs something at the first step of a backup.
struct Once<F>(Option<F>);

impl<F: FnOnce()> Watch for Once<F> {
    fn step(&mut self, _: u64, _: u64, _: &str) {
        if let Some(work) = self.0.take() {
            work();
        }
    }
}

/// A store of which a segment stands as between the two renames of its swap; and the rest of the swap.
fn in_the_middle_of_a_swap() -> (tempfile::TempDir, PathBuf, impl FnOnce()) {
    let (dir, state) = a_store();
    let place = layout::segments(&state).unwrap().into_iter().rfind(|place| place.is_sealed).unwrap();
    let (sealed, old) = (place.dir.with_extension("sealed"), place.dir.with_extension("old"));
    copy(&place.dir, &sealed);
    fs::rename(&place.dir, &old).unwrap();
    let rest = move || {
        fs::rename(&sealed, &place.dir).unwrap();
        fs::remove_dir_all(&old).unwrap();
    };
    (dir, state, rest)
}

#[test]
fn a_backup_left_out_a_segment_that_was_swapped_meanwhile() {
    let (dir, state, rest) = in_the_middle_of_a_swap();
    let to = dir.path().join("backup");
    let segments = layout::segments(&state).unwrap().len() as u64;
    let options = backup::Options { delete: true, ..backup::Options::default() };
    let report = backup(&state, &to, options, Micros(1), &mut Once(Some(rest))).unwrap();
    assert_eq!(report.segments, segments);
    let report = backup(&state, &to, options, Micros(2), &mut ()).unwrap();
    assert_eq!((report.segments, report.segments_deleted), (segments, 0));
}

#[test]
fn verify_left_out_a_segment_that_was_swapped_meanwhile() {
    let (_dir, state, rest) = in_the_middle_of_a_swap();
    let segments = layout::segments(&state).unwrap().len() as u64;
    let report = verify(&state, verify::Options::default(), &mut Once(Some(rest))).unwrap();
    assert_eq!(report.segments, segments);
    assert!(report.problems.is_empty(), "{report:#?}");
}

#[test]
fn a_log_is_found_at_every_moment_of_a_swap() {
    let (_dir, state) = a_store();
    let listed = layout::segments(&state).unwrap().into_iter().find(|place| place.is_sealed).unwrap();
    let (dir, sealed, old) =
        (listed.dir.clone(), listed.dir.with_extension("sealed"), listed.dir.with_extension("old"));
    copy(&dir, &sealed);
    let found = |place: &layout::Place| {
        let mut place = place.clone();
        place.open_log().unwrap().map(|_| place.dir)
    };
    let in_between = layout::Place { dir: sealed.clone(), ..listed.clone() };
    let check = |expected: Option<&PathBuf>| {
        for place in [&listed, &in_between] {
            assert_eq!(found(place).as_ref(), expected);
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

/// A file system that cannot exchange names.
#[derive(Debug)]
struct Plain;

impl medium::Medium for Plain {
    fn create(&self, path: &Path) -> std::io::Result<Box<dyn medium::MediumFile>> {
        medium::Disk.create(path)
    }

    fn open(&self, path: &Path) -> std::io::Result<Box<dyn medium::MediumFile>> {
        medium::Disk.open(path)
    }

    fn open_to_write(&self, path: &Path) -> std::io::Result<Box<dyn medium::MediumFile>> {
        medium::Disk.open_to_write(path)
    }

    fn make_dir(&self, path: &Path) -> std::io::Result<()> {
        medium::Disk.make_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> std::io::Result<()> {
        medium::Disk.sync_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        medium::Disk.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> std::io::Result<()> {
        medium::Disk.remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> std::io::Result<()> {
        medium::Disk.remove_dir_all(path)
    }

    fn space(&self, path: &Path) -> std::io::Result<medium::Space> {
        medium::Disk.space(path)
    }
}

#[test]
fn a_swap_is_whole_with_and_without_an_exchange_of_names() {
    let media: [&dyn medium::Medium; 2] = [&medium::Disk, &Plain];
    for medium in media {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join(format::segment_name(SeqNo(1)));
        for (dir, text) in [(dir.clone(), "old"), (dir.with_extension("sealing"), "new")] {
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("log"), text).unwrap();
        }
        rewrite::swap(medium, &dir).unwrap();
        assert_eq!(fs::read_to_string(dir.join("log")).unwrap(), "new", "{medium:?}");
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1, "{medium:?}");
    }
}
