//! A damaged log whose bodies contain frames: of this log at other offsets, of other logs of this store, of
//! other stores at the same offset, of other versions. Every undamaged frame is read, nothing else is, and no
//! damage prevents a start.
//!
//! Input: a byte (bits 0 and 1: frames, 2 to 5; bits 2 to 4 all zero: the store is opened, too), four bytes per
//! frame (the content of its body), then damage: kind (u8), position (u16, times 16, plus the rest of the first
//! byte), length (u8).

use std::fs;
use std::path::Path;
use std::sync::Arc;

use saltcellar::base::clock::{Clock, Micros};
use saltcellar::model::{Entry, EventFilter, Flags, Kind, SeqNo, Source};
use saltcellar::store::log::builder::{BlockBuilder, Packer};
use saltcellar::store::log::frame::{FRAME_HEADER_LEN, LogId, Position, place_frame};
use saltcellar::store::log::file::{LogFile, file_header};
use saltcellar::store::vfs::Disk;
use saltcellar::store::log::walk::{Bounds, walk};
use saltcellar::store::{Classes, FreeSpace, Limits, Options, Store, format};

const ID: LogId = LogId { store_id: 0x5a17_ce11_a25a_17ce, first_seq: SeqNo(1) };
const FOREIGN: LogId = LogId { store_id: 77, ..ID };

/// The position of a frame without its padding, and the tag of its entry.
struct Written {
    from: usize,
    to: usize,
    tag: String,
}

pub(crate) fn log(data: &[u8]) {
    let Some((mode, mut rest)) = data.split_first() else { return };
    let mut log = file_header("events", ID, Micros(1)).to_vec();
    let mut written: Vec<Written> = Vec::new();
    for n in 0..2 + u64::from(mode & 3) {
        let Some((what, behind)) = rest.split_first_chunk::<4>() else { break };
        rest = behind;
        append(&mut log, &mut written, n + 1, *what);
    }
    let whole = log.clone();
    while let Some((damage, behind)) = rest.split_first_chunk::<4>() {
        rest = behind;
        apply(&mut log, *damage);
    }
    let is_whole = |frame: &&Written| log.get(frame.from..frame.to) == whole.get(frame.from..frame.to);
    let expected: Vec<(u64, &str)> =
        written.iter().filter(is_whole).map(|frame| (frame.from as u64, frame.tag.as_str())).collect();
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
    let path = dir.path().join("log");
    fs::write(&path, &log).expect("a file");
    let file = LogFile::bare(&Disk, &path, ID).expect("it opens");
    let mut found = Vec::new();
    let walked = walk(&file, Bounds::of_log(log.len() as u64), true, |meta, view| {
        found.push((meta.offset, String::from_utf8(view.rows().tag(0)).expect("a tag that was written")));
        None
    });
    let walked = walked.expect("no damage is an error").finished();
    let found: Vec<(u64, &str)> = found.iter().map(|(offset, tag)| (*offset, tag.as_str())).collect();
    assert_eq!(found, expected);
    let mut before = 0;
    for stretch in walked.damaged.iter().chain(&walked.tail) {
        assert!(stretch.offset >= before && stretch.bytes > 0, "{stretch:?} behind {before}");
        before = stretch.end();
    }
    if mode & 0b1_1100 == 0 {
        check_start(&dir.path().join("state"), &log, &expected);
    }
}

/// Appends a frame whose body contains the data selected by `what`.
fn append(log: &mut Vec<u8>, written: &mut Vec<Written>, seq: u64, what: [u8; 4]) {
    let offset = log.len() as u64;
    let tag = format!("genuine/{seq}");
    // With other data of the same length the head, and so the body's offset, stays the same.
    let (_, bodies_at) = frame(&tag, seq, &noise(seq, BODY));
    let mut body = hostile(what, offset + bodies_at as u64, seq, log, written);
    body.truncate(BODY / 4);
    body.extend(noise(seq, BODY - body.len()));
    let (mut bytes, _) = frame(&tag, seq, &body);
    let unsynced = if what[3] & 1 == 0 { 0 } else { offset - 80 };
    place_frame(&mut bytes, ID, Position { offset, unsynced, ends_commit: what[3] & 2 == 0 });
    let from = log.len();
    let used = used_len(&bytes);
    log.extend_from_slice(&bytes);
    written.push(Written { from, to: from + used, tag });
}

/// Bytes of a body.
const BODY: usize = 16 * 1024;

/// A frame without a position, and the offset of its bodies.
fn frame(tag: &str, seq: u64, body: &[u8]) -> (Vec<u8>, usize) {
    let entry = Entry {
        kind: Kind::Event,
        source: Source::Bus,
            origin: "",
            number: 0,
        flags: Flags::ON_BUS,
        at: Micros(5),
        tag: tag.as_bytes(),
        jid: "",
        minion: "",
        fun: "",
        retcode: 0,
        body,
    };
    let mut builder = BlockBuilder::default();
    builder.push(SeqNo(seq), &entry).expect("it fits");
    let mut packer = Packer::new().expect("zstd starts");
    let mut out = Vec::new();
    let meta = builder.write(&mut packer, &mut out).expect("a block");
    (out, FRAME_HEADER_LEN + (meta.head_len as usize).next_multiple_of(16))
}

/// Bytes of a frame without the padding at its end.
fn used_len(frame: &[u8]) -> usize {
    let word = |at: usize| u32::from_le_bytes(*frame.get(at..).and_then(|b| b.first_chunk()).expect("a header")) as usize;
    FRAME_HEADER_LEN + word(8).next_multiple_of(16) + word(12)
}

/// The content of a body that will start at `offset`.
fn hostile(what: [u8; 4], offset: u64, seq: u64, log: &[u8], written: &[Written]) -> Vec<u8> {
    let forged = |id: LogId, offset: u64, version: u8| {
        let mut builder = BlockBuilder::default();
        let entry = Entry {
            flags: Flags::ON_BUS,
            tag: b"forged",
            ..Entry::new(Kind::Event, Source::Bus, Micros(5), b"\x80")
        };
        builder.push(SeqNo(seq + 1), &entry).expect("it fits");
        let mut packer = Packer::new().expect("zstd starts");
        let mut out = Vec::new();
        builder.write(&mut packer, &mut out).expect("a block");
        if let Some(byte) = out.get_mut(4) {
            *byte = version;
        }
        place_frame(&mut out, id, Position::in_new_log(offset));
        out
    };
    let shift = 16 * (1 + u64::from(what[1]));
    match what[0] % 7 {
        0 => Vec::new(),
        1 => forged(FOREIGN, offset, 3),
        2 => forged(FOREIGN, offset, 9),
        3 => forged(LogId { first_seq: SeqNo(900), ..ID }, offset, 3),
        4 => forged(ID, offset + shift, if what[2] & 1 == 0 { 3 } else { 9 }),
        // A copy of a frame of this log.
        5 => {
            let copied = written.get(usize::from(what[1]) % written.len().max(1));
            copied.and_then(|frame| log.get(frame.from..frame.to)).unwrap_or_default().to_vec()
        }
        _ => [&ID.magic()[..], b"\x03\0\x01\0\x40\0\0\0\x40\0\0\0"].concat().repeat(BODY / 64),
    }
}

/// Incompressible bytes.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let word = |n: u64| (n + 1 + seed * 8192).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).to_le_bytes();
    (0..len.div_ceil(8) as u64).flat_map(word).take(len).collect()
}

fn apply(log: &mut Vec<u8>, [what, low, high, much]: [u8; 4]) {
    let at = (usize::from(u16::from_le_bytes([low, high])) * 16 + usize::from(what >> 4)) % log.len().max(1);
    let much = usize::from(much);
    match what & 7 {
        0 | 1 => log.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << (much % 8)),
        2 => log.iter_mut().skip(at).take(much * 64).for_each(|byte| *byte = 0),
        3 => log.iter_mut().skip(at).take(much).for_each(|byte| *byte = !*byte),
        // Sectors from elsewhere in the log.
        4 | 5 => {
            let (to, from) = (at / 16 * 16, (at / 16 + much) * 16 % log.len().max(1) / 16 * 16);
            let len = (512 * (1 + much % 8)).min(log.len() - to.max(from).min(log.len()));
            log.copy_within(from..from + len, to);
        }
        6 => log.truncate(at.max(80)),
        _ => log.extend(std::iter::repeat_n(0, much * 16)),
    }
}

/// A store with this log starts twice and serves exactly these events.
fn check_start(state_dir: &Path, log: &[u8], expected: &[(u64, &str)]) {
    let segment = format::class_dir(state_dir, "events").join(format::generation_name(ID.first_seq, 0));
    fs::create_dir_all(&segment).expect("a directory");
    fs::write(segment.join("log"), log).expect("a file");
    fs::write(state_dir.join("FORMAT"), format::format_text(ID.store_id)).expect("a file");
    let options = Options {
        dir: state_dir.to_owned(),
        holder: "a fuzz target".to_owned(),
        lock_timeout: std::time::Duration::ZERO,
        clock: Clock::real(),
        metrics: Arc::default(),
        limits: Limits::default(),
        classes: Classes::default(),
        free: FreeSpace { low: Some(0), min: Some(0) },
        fs: Arc::new(Disk),
    };
    for start in ["the first", "the second"] {
        let opened = Store::open(&options).unwrap_or_else(|error| panic!("{start} start is refused: {error}"));
        let filter = EventFilter::default();
        let mut events =
            opened.store.events_before(&filter, SeqNo(u64::MAX), usize::MAX, usize::MAX).expect("they can be read");
        events.reverse();
        let tags: Vec<&[u8]> = events.iter().map(|event| event.tag.as_slice()).collect();
        let wanted: Vec<&[u8]> = expected.iter().map(|(_, tag)| tag.as_bytes()).collect();
        assert_eq!(tags, wanted, "{start} start");
    }
}
