//! Tests of the guard around sled.

use super::*;

#[test]
fn a_panic_inside_sled_is_an_error() {
    let error = guarded::<()>(Path::new("/x"), || panic!("boom"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("/x") && error.contains("boom"), "{error}");
}

#[test]
fn a_full_disk_is_not_reported_as_damage_after_sled_has_failed() {
    let full = || io::Error::from_raw_os_error(28);
    let repeated = || io::Error::new(io::ErrorKind::StorageFull, format!("{:?}", full()));
    let twice = || io::Error::new(io::ErrorKind::StorageFull, format!("{:?}", repeated()));
    for why in [full(), repeated(), twice()] {
        let error = guarded::<()>(Path::new("/x"), || Err(sled::Error::Io(why))).unwrap_err();
        assert!(error.is_no_space(), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains("/x") && text.contains("No space left") && text.contains("prune"),
            "{text}"
        );
    }
    let panicked = guarded::<()>(Path::new("/x"), || {
        panic!("called `unwrap()`: {:?}", full())
    });
    assert!(panicked.unwrap_err().is_no_space());
}

#[test]
fn a_database_without_space_is_read_from_a_temporary_copy() {
    let dir = tempfile::tempdir().unwrap();
    let db = open_sled(dir.path(), 1 << 20).unwrap();
    db.insert(b"key", b"value").unwrap();
    flush_and_sync(&db, dir.path()).unwrap();
    drop(db);
    let db = open_copy(dir.path(), 1 << 20).unwrap();
    assert_eq!(db.get(b"key").unwrap().unwrap(), b"value");
    let ours = format!("saltcellar-{}-", std::process::id());
    let left = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    assert_eq!(
        left.filter(|item| item.file_name().to_string_lossy().starts_with(&ours))
            .count(),
        0
    );
}
