//! The removal of dropped segments, and their readers.

use crate::tests::retention::{fill, trash_is_empty, with};
use crate::tests::*;
use crate::tools::tests::verify;
use crate::tools::verify::VerifyOptions;
use crate::vfs::Fs as _;

#[test]
fn a_log_with_a_reader_or_a_second_link_is_not_truncated() {
    let (dir, rig) = Rig::new(Limits::default());
    let shared = &rig.store;
    let whole = vec![7; 3 * 1024 * 1024 + 5];
    let trash = |name: &str| {
        // Outside of the trash, which the retainer empties at its start.
        let path = dir.path().join("dropped").join(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("log"), &whole).unwrap();
        path
    };
    let read = trash("events-1");
    let reader = vfs::Disk.open_log(&read.join("log")).unwrap();
    shared.0.retention.trash.remove(&read);
    assert!(!read.exists());
    let mut found = vec![0; whole.len()];
    reader.read_exact_at(&mut found, 0).unwrap();
    assert!(found == whole);

    let linked = trash("events-2");
    let link = dir.path().join("the same in a backup");
    fs::hard_link(linked.join("log"), &link).unwrap();
    shared.0.retention.trash.remove(&linked);
    assert!(!linked.exists());
    assert!(fs::read(&link).unwrap() == whole);

    // Without other users it is truncated, and later readers get a not-found error.
    let free = trash("events-3");
    let held = fs::OpenOptions::new()
        .write(true)
        .open(free.join("log"))
        .unwrap();
    held.lock().unwrap();
    assert_eq!(
        vfs::Disk.open_log(&free.join("log")).unwrap_err().kind(),
        std::io::ErrorKind::NotFound
    );
    held.unlock().unwrap();
    let watcher = fs::File::open(free.join("log")).unwrap();
    shared.0.retention.trash.remove(&free);
    assert!(!free.exists());
    assert!(watcher.metadata().unwrap().len() <= saltcellar_base::limits::TRASH_PIECE_BYTES);
}

#[test]
fn an_interrupted_drop_is_not_reported_as_a_missing_segment() {
    let dir = tempfile::tempdir().unwrap();
    let options = with(dir.path(), &[]);
    let rig = Rig::open_with(&options);
    fill(&rig, 0..300);
    let oldest = rig.store.segments.of(Class::JOBS)[0].clone();
    assert!(oldest.metadata().is_some());
    let name = format::segment_name(oldest.first_seq);
    let (from, last) = (oldest.dir().to_owned(), oldest.totals().last_seq);
    drop(oldest);
    rig.close();
    // Renamed, and in one case emptied; the state database still contains it.
    for emptied in [false, true] {
        let copied = tempfile::tempdir().unwrap();
        sealing::copy_dir(dir.path(), copied.path());
        let at = copied.path().join(from.strip_prefix(dir.path()).unwrap());
        let place = copied.path().join("trash").join(format!("jobs-{name}"));
        fs::rename(at, &place).unwrap();
        if emptied {
            fs::remove_dir_all(&place).unwrap();
            fs::create_dir(&place).unwrap();
        }
        let report = verify(copied.path(), VerifyOptions::default(), &mut ()).unwrap();
        assert_eq!(
            report.problems,
            [],
            "the store is not damaged before the next start"
        );
        for _ in 0..2 {
            let options = with(copied.path(), &[]);
            let rig = Rig::open_with(&options);
            saltcellar_testkit::wait_for("empty trash", || {
                trash_is_empty(copied.path()).then_some(())
            });
            let known = rig
                .store
                .catalogue
                .query(crate::index::state::StateDatabase::segments)
                .unwrap();
            assert!(
                !known
                    .iter()
                    .any(|(class, seq, _)| class == "jobs" && *seq <= last)
            );
            let latest = rig
                .store
                .catalogue
                .query(crate::index::state::StateDatabase::latest)
                .unwrap();
            let is_stored = rig.store.segments.stored_seqs();
            assert!(latest.iter().all(|row| is_stored(row.seq)));
            assert_eq!(options.metrics.segments_missing.get(), 0);
        }
    }
}
