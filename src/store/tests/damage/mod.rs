//! Effects of damaged files on readers.

pub(in crate::store) mod forged;
mod sectors;
mod table;
mod torn;

use rustix::io::Errno;

use super::*;
use crate::store::log::frame::{self, LogId};

#[test]
fn a_frame_inside_a_body_is_ignored_when_the_frame_around_it_is_damaged() {
    let forged = crate::store::tests::damage::forged::frame_at(
        LogId {
            store_id: 77,
            first_seq: SeqNo(1),
        },
        512,
        900,
        "forged/event",
    );
    // Incompressible, so that the body appears verbatim in the log.
    let body = [forged.as_slice(), &noise(0, 65_536)].concat();
    let (dir, rig) = Rig::new(Limits::default());
    rig.put(bare_event("first")).unwrap();
    rig.put(Batch::of(&event_entry(
        b"carrier",
        &body,
        Source::Bus,
        Micros(0),
    )))
    .unwrap();
    rig.put(bare_event("last")).unwrap();
    rig.close();
    let path = &files_named(dir.path(), "log")[0];
    let mut bytes = fs::read(path).unwrap();
    let at = memchr::memmem::find(&bytes, &forged).expect("the body is not compressed");
    assert_eq!(at % 16, 0, "at a position that searches examine");
    let around = crate::store::tests::damage::forged::frames(path)
        .into_iter()
        .rfind(|frame| *frame < at)
        .unwrap();
    bytes[around] ^= 1;
    fs::write(path, &bytes).unwrap();
    let rig = Rig::open(dir.path(), Limits::default());
    assert_eq!(rig.tags(), ["first", "last"]);
    assert_eq!(rig.metrics.frames_damaged.get(), 1);
}

/// The identity of a log file in a state directory.
fn log_id(state_dir: &Path, path: &Path) -> LogId {
    let text = fs::read_to_string(state_dir.join("FORMAT")).unwrap();
    let name = path
        .parent()
        .unwrap()
        .file_name()
        .unwrap()
        .to_str()
        .unwrap();
    let first_seq = format::segment_seq(name).unwrap();
    LogId {
        store_id: format::read_format(&text).unwrap(),
        first_seq,
    }
}

#[test]
fn a_frame_of_another_version_is_never_truncated() {
    let (dir, rig) = Rig::new(Limits::default());
    rig.put(batch_of(0..20)).unwrap();
    rig.close();
    let path = &files_named(dir.path(), "log")[1];
    let mut bytes = fs::read(path).unwrap();
    // The newest frame as a later release would write it: another version, a valid checksum.
    let id = log_id(dir.path(), path);
    bytes[80 + 4] = 4;
    frame::place_frame(&mut bytes[80..], id, frame::Position::in_new_log(80));
    fs::write(path, &bytes).unwrap();
    let error = Store::open(&options(dir.path(), Limits::default()))
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("byte 80") && error.contains("version 4"),
        "{error}"
    );
    assert_eq!(fs::read(path).unwrap(), bytes);
}

#[test]
fn truncated_bytes_are_kept_in_a_copy() {
    let (dir, rig) = Rig::new(Limits::default());
    rig.put(batch_of(0..20)).unwrap();
    rig.close();
    let path = &files_named(dir.path(), "log")[0];
    let len = fs::metadata(path).unwrap().len();
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .write_all_at(b"half a frame", len)
        .unwrap();
    Rig::open(dir.path(), Limits::default()).close();
    assert_eq!(
        fs::read(path.with_file_name(format!("log.cut-{len}"))).unwrap(),
        b"half a frame"
    );
}

#[test]
fn a_full_disk_prevents_the_copy_of_truncated_bytes_but_not_the_start() {
    let (dir, rig) = Rig::new(Limits::default());
    rig.put(batch_of(0..20)).unwrap();
    rig.close();
    let path = &files_named(dir.path(), "log")[0];
    let len = fs::metadata(path).unwrap().len();
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .write_all_at(b"half a frame", len)
        .unwrap();
    let (plan, fs) = faulty_disk();
    plan.add(Fault {
        within: "log.cut".to_owned(),
        ..Fault::lasting(Act::Write, Errno::NOSPC)
    });
    let rig = Rig::open_with(&Options {
        fs,
        ..options(dir.path(), Limits::default())
    });
    check_all(&rig, 0..20);
    assert_eq!(rig.metrics.tail_bytes_cut.get(), 12);
    rig.close();
    assert!(
        !path.with_file_name(format!("log.cut-{len}")).exists(),
        "no partial copy remains"
    );
}
