//! Tests of files that `setup` manages.

use super::*;

#[test]
fn only_files_with_a_valid_checksum_are_recognised_as_written_by_setup() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("saltcellar.conf");
    let text = marked("# New text.\nmaster_job_cache: saltcellar\n");
    let is = || state_of(&path, Some(&text)).unwrap();
    assert_eq!(is(), FileState::Absent);
    fs::write(
        dir.path()
            .join(format!(".saltcellar.conf.{}", std::process::id())),
        "torn",
    )
    .unwrap();
    write(&path, text.as_bytes()).unwrap();
    assert_eq!(is(), FileState::InPlace);
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        MODE
    );
    let names: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["saltcellar.conf"]);
    write(
        &path,
        marked("# Old text.\nmaster_job_cache: saltcellar\n").as_bytes(),
    )
    .unwrap();
    assert_eq!(is(), FileState::Outdated);
    fs::write(&path, format!("{text}timeout: 5\n")).unwrap();
    assert_eq!(is(), FileState::Changed);
    fs::write(&path, "master_job_cache: redis\n").unwrap();
    assert_eq!(is(), FileState::Foreign);
    fs::write(&path, [0xff, 0xfe]).unwrap();
    assert_eq!(is(), FileState::Foreign);
    let real = dir.path().join("real");
    fs::rename(&path, &real).unwrap();
    fs::write(&real, &text).unwrap();
    std::os::unix::fs::symlink(&real, &path).unwrap();
    assert_eq!(is(), FileState::Foreign, "a link");
}

#[test]
fn a_change_can_be_undone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/file");
    let before = Before::of(&path).unwrap();
    write(&path, b"one").unwrap();
    let one = Before::of(&path).unwrap();
    write(&path, b"two").unwrap();
    one.restore(&path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"one");
    before.restore(&path).unwrap();
    assert!(!path.exists());
}
