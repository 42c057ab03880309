//! What retention removes, and who still reads it.

use super::*;
use crate::store::medium::Medium as _;

#[test]
fn a_log_that_somebody_reads_or_has_by_another_name_is_not_cut_short() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open(dir.path(), Limits::default());
    let shared = &rig.store.0;
    let whole = vec![7; 3 * 1024 * 1024 + 5];
    let trash = |name: &str| {
        // Not where the retainer, which has just started, empties what a crash left.
        let path = dir.path().join("gone").join(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("log"), &whole).unwrap();
        path
    };
    let read = trash("events-1");
    let reader = medium::Disk.open(&read.join("log")).unwrap();
    shared.remove_trash(&read);
    assert!(!read.exists());
    let mut found = vec![0; whole.len()];
    reader.read_exact_at(&mut found, 0).unwrap();
    assert!(found == whole);

    let linked = trash("events-2");
    let link = dir.path().join("the same in a backup");
    fs::hard_link(linked.join("log"), &link).unwrap();
    shared.remove_trash(&linked);
    assert!(!linked.exists());
    assert!(fs::read(&link).unwrap() == whole);

    // Nobody's: it is cut short, and whoever would begin to read it now is told that it is gone.
    let free = trash("events-3");
    let held = fs::OpenOptions::new().write(true).open(free.join("log")).unwrap();
    held.lock().unwrap();
    assert_eq!(medium::Disk.open(&free.join("log")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    held.unlock().unwrap();
    let watcher = fs::File::open(free.join("log")).unwrap();
    shared.remove_trash(&free);
    assert!(!free.exists());
    assert!(watcher.metadata().unwrap().len() <= crate::limits::TRASH_PIECE_BYTES);
    rig.close();
}
