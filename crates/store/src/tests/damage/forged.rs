//! Bodies that contain frames: of other stores, of this store, of other versions. They must be treated as plain bytes.

use std::os::unix::fs::FileExt;

use crate::log::frame::{self, LogId};
use crate::log::walk::{self, Bounds};
use crate::log::{builder, file};
use crate::tests::*;
use crate::tools::backup::{self, backup};
use crate::tools::rebuild::rebuild;
use crate::tools::tests::{salvage, verify};
use crate::tools::verify;

/// Offsets of the frames in a log: occurrences of its magic, which bodies contain only where a test puts it.
pub(crate) fn frames(path: &Path) -> Vec<usize> {
    let bytes = fs::read(path).unwrap();
    let store_id = u64::from_le_bytes(*bytes[64..].first_chunk().unwrap());
    let magic = LogId {
        store_id,
        first_seq: SeqNo(0),
    }
    .magic();
    (80..bytes.len())
        .step_by(16)
        .filter(|at| bytes[*at..].starts_with(&magic))
        .collect()
}

/// A frame with one event, valid at one offset of one log.
pub(crate) fn frame_at(id: LogId, offset: u64, seq: u64, tag: &str) -> Vec<u8> {
    let mut builder = builder::BlockBuilder::default();
    builder
        .push(
            SeqNo(seq),
            &event_entry(tag.as_bytes(), b"\x80", Source::Bus, Micros(0)),
        )
        .unwrap();
    let mut packer = builder::Packer::new().unwrap();
    let mut frame = Vec::new();
    builder.write(&mut packer, &mut frame).unwrap();
    frame::place_frame(&mut frame, id, frame::Position::in_new_log(offset));
    frame
}

/// A frame of a store with another id.
pub(crate) fn foreign_frame(seq: u64, tag: &str) -> Vec<u8> {
    frame_at(
        LogId {
            store_id: 77,
            first_seq: SeqNo(1),
        },
        512,
        seq,
        tag,
    )
}

/// The frame with another version and valid checksums.
fn with_version(mut frame: Vec<u8>, version: u8, id: LogId, offset: u64) -> Vec<u8> {
    frame[4] = version;
    frame::place_frame(&mut frame, id, frame::Position::in_new_log(offset));
    frame
}

pub(crate) fn of_unknown_version(seq: u64, tag: &str) -> Vec<u8> {
    let id = LogId {
        store_id: 77,
        first_seq: SeqNo(1),
    };
    with_version(frame_at(id, 512, seq, tag), 9, id, 512)
}

fn carrier(tag: &str, frames: &[Vec<u8>]) -> Batch {
    let body = [frames.concat(), noise(0, 65_536)].concat();
    Batch::of(&event_entry(tag.as_bytes(), &body, Source::Bus, Micros(0)))
}

fn plain(n: u64) -> Batch {
    bare_event(&format!("plain/{n}"))
}

/// Creates a store with an event that carries frames, then plain events up to `entries`; returns
/// the log.
fn store_with_carrier(dir: &Path, frames: &[Vec<u8>], entries: u64) -> PathBuf {
    let rig = Rig::open(dir, Limits::default());
    rig.put(carrier("carrier", frames)).unwrap();
    (1..entries).for_each(|n| rig.put(plain(n)).unwrap());
    rig.close();
    files_named(dir, "log").remove(0)
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn first_frame(path: &Path) -> usize {
    frames(path)[0]
}

fn plain_tags(numbers: std::ops::Range<u64>) -> Vec<String> {
    numbers.map(|n| format!("plain/{n}")).collect()
}

#[test]
fn a_damaged_first_header_does_not_expose_a_forged_return() {
    let dir = tempfile::tempdir().unwrap();
    let log = store_with_carrier(dir.path(), &[foreign_frame(900, "forged")], 101);
    flip(&log, first_frame(&log) + 9);
    let rig = Rig::open(dir.path(), Limits::default());
    assert_eq!(rig.tags(), plain_tags(1..101));
    assert_eq!(rig.metrics.frames_damaged.get(), 1);
}

#[test]
fn a_torn_first_commit_does_not_expose_a_forged_sequence_number() {
    let dir = tempfile::tempdir().unwrap();
    let log = store_with_carrier(dir.path(), &[foreign_frame(u64::MAX - 1, "forged")], 1);
    flip(&log, first_frame(&log) + 9);
    let rig = Rig::open(dir.path(), Limits::default());
    (1..10).for_each(|n| rig.put(plain(n)).unwrap());
    assert_eq!(rig.tags(), plain_tags(1..10));
    let rig = rig.reopened();
    assert_eq!(rig.tags(), plain_tags(1..10));
}

#[test]
fn a_frame_of_an_unknown_version_in_a_torn_body_does_not_prevent_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let log = store_with_carrier(dir.path(), &[of_unknown_version(900, "forged")], 1);
    let len = fs::metadata(&log).unwrap().len();
    fs::OpenOptions::new()
        .write(true)
        .open(&log)
        .unwrap()
        .set_len(len - 512)
        .unwrap();
    rebuild(&options(dir.path(), Limits::default()), None, &mut ()).unwrap();
    let rig = Rig::open(dir.path(), Limits::default());
    assert_eq!(rig.tags(), Vec::<String>::new());
    rig.put(plain(1)).unwrap();
    assert_eq!(rig.tags(), plain_tags(1..2));
}

#[test]
fn salvage_ignores_forged_frames_and_copies_genuine_ones() {
    let dir = tempfile::tempdir().unwrap();
    let (state, new) = (dir.path().join("state"), dir.path().join("new"));
    let log = store_with_carrier(&state, &[foreign_frame(900, "forged")], 20);
    flip(&log, first_frame(&log) + 9);
    for with_format in [true, false] {
        if !with_format {
            fs::remove_file(state.join("FORMAT")).unwrap();
        }
        let report = salvage(&state, &new, Micros(7), &mut ()).unwrap();
        assert_eq!(report.entries(), 19, "{report:#?}");
        let rig = Rig::open(&new, Limits::default());
        let mut tags = rig.tags();
        tags.retain(|tag| tag != "saltcellar/gap/salvage");
        assert_eq!(tags, plain_tags(1..20));
        rig.close();
        fs::remove_dir_all(&new).unwrap();
    }
}

#[test]
fn verify_and_backup_ignore_forged_frames_behind_one_of_an_unknown_version() {
    let dir = tempfile::tempdir().unwrap();
    let (state, to) = (dir.path().join("state"), dir.path().join("backup"));
    let forged = [
        of_unknown_version(900, "forged"),
        foreign_frame(901, "forged"),
    ];
    let log = store_with_carrier(&state, &forged, 20);
    flip(&log, first_frame(&log) + 9);
    let report = verify(&state, verify::VerifyOptions::default(), &mut ()).unwrap();
    assert_eq!(
        (report.entries, report.problems.len()),
        (19, 1),
        "{report:#?}"
    );
    let report = backup(
        &state,
        &to,
        backup::BackupOptions::default(),
        Micros(9),
        &mut (),
    )
    .unwrap();
    assert_eq!(report.damaged.len(), 1, "{report:#?}");
    let settings = crate::tools::layout::settings_segments(&state).unwrap();
    let logs = settings
        .iter()
        .map(crate::tools::layout::SegmentFiles::log)
        .chain([log]);
    let bytes: u64 = logs.map(|log| fs::metadata(log).unwrap().len()).sum();
    assert_eq!(report.bytes, bytes);
}

/// Counts the bytes read.
#[derive(Debug)]
struct Counting {
    file: fs::File,
    read: Arc<AtomicU64>,
}

impl vfs::FsFile for Counting {
    fn write_all_at(&self, _: &[u8], _: u64) -> std::io::Result<()> {
        panic!("a walk writes nothing")
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.read.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        FileExt::read_exact_at(&self.file, buffer, offset)
    }

    fn sync_data(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _: u64) -> std::io::Result<()> {
        panic!("a walk cuts nothing")
    }

    fn set_mode(&self, _: u32) -> std::io::Result<()> {
        panic!("a walk changes nothing")
    }

    fn size(&self) -> std::io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}

/// Writes a log of `damaged` frames with these bodies and damaged headers, followed by two good
/// frames.
fn log_with_damaged_bodies(path: &Path, damaged: u64, bodies: &[u8]) -> u64 {
    let mut bytes = file::file_header("events", DAMAGED, Micros(0)).to_vec();
    let mut builder = builder::BlockBuilder::default();
    let mut packer = builder::Packer::new().unwrap();
    for seq in 1..damaged + 3 {
        builder.clear();
        builder
            .push(
                SeqNo(seq),
                &event_entry(b"x", b"\x80", Source::Bus, Micros(0)),
            )
            .unwrap();
        let mut packed = builder.finish(&mut packer).unwrap();
        if seq <= damaged {
            packed.bodies = bodies;
        }
        let begin = bytes.len();
        frame::write_frame(&mut bytes, &packed, (SeqNo(seq), SeqNo(seq)), 1).unwrap();
        frame::place_frame(
            &mut bytes[begin..],
            DAMAGED,
            frame::Position::in_new_log(begin as u64),
        );
        bytes[begin + 9] ^= u8::from(seq <= damaged);
    }
    fs::write(path, &bytes).unwrap();
    bytes.len() as u64
}

/// Walks such a log; returns the number of bytes read.
fn walk_damaged(path: &Path) -> u64 {
    let read = Arc::new(AtomicU64::new(0));
    let file = Counting {
        file: fs::File::open(path).unwrap(),
        read: read.clone(),
    };
    let log = file::LogFile::of(path, Box::new(file), DAMAGED);
    let mut found = 0;
    let each = |_: &file::BlockMeta, _: &crate::log::block::BlockView| {
        found += 1;
        None
    };
    let walked = walk::walk(&log, Bounds::of_log(log.size().unwrap()), true, each)
        .unwrap()
        .finished();
    assert_eq!((found, walked.damaged.len()), (2, 1));
    read.load(Ordering::Relaxed)
}

/// The log that [`log_with_damaged_bodies`] writes.
const DAMAGED: LogId = LogId {
    store_id: 77,
    first_seq: SeqNo(1),
};

/// The start of a frame header at every aligned offset; each header claims a head of 64 KiB.
fn magics(store_id: u64, bytes: usize) -> Vec<u8> {
    let magic = LogId {
        store_id,
        ..DAMAGED
    }
    .magic();
    [&magic[..], b"\x03\0\x01\0\0\0\x01\0", &[0; 4]]
        .concat()
        .repeat(bytes / 16)
}

#[test]
fn recovery_reads_a_damaged_body_full_of_magics_at_most_twice() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let size = log_with_damaged_bodies(&path, 1, &magics(DAMAGED.store_id, 256 * 1024));
    let read = walk_damaged(&path);
    assert!(read < 2 * size, "{read} of {size} bytes");
}

#[test]
#[ignore = "a measurement; in a release build: cargo test --release -p saltcellar-store full_of_magics -- --ignored --nocapture"]
fn recovery_of_a_log_full_of_magics() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let seconds = |bodies: &[u8]| {
        let size = log_with_damaged_bodies(&path, 4, bodies);
        let mut seconds: Vec<f64> = (0..7)
            .map(|_| {
                let begin = std::time::Instant::now();
                walk_damaged(&path);
                begin.elapsed().as_secs_f64()
            })
            .collect();
        seconds.sort_by(f64::total_cmp);
        (size, seconds[3])
    };
    let bytes = 64 << 20;
    let (size, without) = seconds(&noise(0, bytes));
    eprintln!("{size} bytes: {without:.3} s without magics");
    for (name, store_id) in [
        ("another store", 78),
        ("this store, which no sender knows", DAMAGED.store_id),
    ] {
        let (_, with) = seconds(&magics(store_id, bytes));
        eprintln!(
            "{with:.3} s full of magics of {name}: ratio {:.2}",
            with / without
        );
    }
}

/// Puts a frame into the body of the only carrier of a log, as a sender who knows the store id could have, and returns its offset.
fn put_forged(state_dir: &Path, log: &Path, seq: u64) -> u64 {
    let begin = first_frame(log);
    let at = (begin + 4096).next_multiple_of(16) as u64;
    let forged = frame_at(super::log_id(state_dir, log), at, seq, "forged");
    let file = fs::OpenOptions::new().write(true).open(log).unwrap();
    FileExt::write_all_at(&file, &forged, at).unwrap();
    at
}

#[test]
fn no_frame_is_looked_for_in_the_damaged_payload_of_a_valid_header() {
    for seq in [900, 2, u64::MAX - 1] {
        let dir = tempfile::tempdir().unwrap();
        let log = store_with_carrier(dir.path(), &[], 101);
        // Known to the forger here: the store id, and a number above it is not reserved yet.
        put_forged(dir.path(), &log, seq);
        fs::remove_file(dir.path().join("SEQUENCE")).unwrap();
        let rig = Rig::open(dir.path(), Limits::default());
        assert_eq!(rig.tags(), plain_tags(1..101), "{seq}");
        assert_eq!(rig.metrics.frames_damaged.get(), 1);
    }
}

#[test]
fn a_number_above_the_reserved_ones_is_not_believed() {
    for entries in [101, 1] {
        let dir = tempfile::tempdir().unwrap();
        let log = store_with_carrier(dir.path(), &[], entries);
        let begin = first_frame(&log);
        put_forged(dir.path(), &log, 900);
        // Without its header, the body is searched.
        flip(&log, begin + 9);
        let size = fs::metadata(&log).unwrap().len();
        for start in 0..2 {
            let rig = Rig::open(dir.path(), Limits::default());
            assert_eq!(rig.tags(), plain_tags(1..entries));
            // The second start finds the segment sealed: nothing is appended to it.
            assert!(rig.metrics.frames_damaged.get() > 0 || start == 1);
            rig.close();
            assert!(
                fs::metadata(&log).unwrap().len() >= size,
                "nothing is cut off"
            );
            // The start has reserved numbers: the forger's is still above them.
            let file = crate::write::seqno::SequenceFile {
                end: SeqNo(entries + 1),
                ..Default::default()
            };
            fs::write(dir.path().join("SEQUENCE"), file.text()).unwrap();
        }
    }
}
