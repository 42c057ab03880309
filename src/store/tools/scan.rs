//! A log file read through, whatever has become of it: what is good, what is not, and what that costs.

use crate::model::SeqNo;
use crate::store::StoreError;
use crate::store::block::BlockView;
use crate::store::log::{ALIGN, BlockMeta, FILE_HEADER_LEN, LogFile};

/// Bytes that are no good frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    /// Where they begin.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
    /// What is wrong with them.
    pub what: String,
    /// First and last number of entries that were there for sure, and how many: the head could be read.
    pub entries: Option<(SeqNo, SeqNo, u64)>,
    /// The last number before.
    pub after: SeqNo,
    /// The first number behind; none if nothing good follows.
    pub before: Option<SeqNo>,
}

/// What a scan found.
#[derive(Debug, Default)]
pub struct Scanned {
    /// Good frames.
    pub frames: u64,
    /// Entries in them.
    pub entries: u64,
    /// Byte after the last good frame.
    pub end: u64,
    /// The last number.
    pub last_seq: SeqNo,
    /// The stamp of the last frame that has one.
    pub stamp: Option<u64>,
    /// Bytes that are no good frames and lie before one.
    pub damaged: Vec<Stretch>,
    /// Bytes behind the last good frame.
    pub tail: Option<Stretch>,
}

/// What is known of a log before it is read.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    /// Where to begin.
    pub from: u64,
    /// Where to end.
    pub size: u64,
    /// Its first sequence number.
    pub first_seq: SeqNo,
    /// The stamp of its store. Behind damage lie perhaps the bodies of the damaged frame, with anything in them; they
    /// do not know it.
    pub stamp: Option<u64>,
}

/// Where a log ends that may grow meanwhile: its file is longer, and what comes to be written there is not there yet.
pub fn end(log: &LogFile, first_seq: SeqNo, stamp: Option<u64>) -> Result<u64, StoreError> {
    let size = log.size()?;
    let expected = Expected { from: FRAMES_FROM.min(size), size, first_seq, stamp };
    let scanned = scan(log, expected, false, |_, _| None)?;
    Ok(scanned.tail.map_or(scanned.end, |tail| tail.offset + tail.bytes))
}

/// Reads a log; each good frame goes to `each`, which may say what is wrong with it all the
/// same. With `bodies`, they are checked too.
pub fn scan(
    log: &LogFile,
    expected: Expected,
    bodies: bool,
    mut each: impl FnMut(&BlockMeta, &BlockView) -> Option<String>,
) -> Result<Scanned, StoreError> {
    let size = expected.size;
    let last_seq = SeqNo(expected.first_seq.0.saturating_sub(1));
    let mut scanned = Scanned { end: expected.from, last_seq, ..Scanned::default() };
    let mut at = expected.from;
    let bad = |scanned: &Scanned, offset: u64, end: u64, what: &str| Stretch {
        offset,
        bytes: end - offset,
        what: what.to_owned(),
        entries: None,
        after: scanned.last_seq,
        before: None,
    };
    while at < size {
        let found = frame(log, at, size, bodies)?;
        let is_next = at == scanned.end && at >= FRAMES_FROM;
        let is_ours = |stamp: Option<u64>| match (scanned.stamp, stamp) {
            (None, None) => true,
            (known, stamp) => known.or(expected.stamp).is_none_or(|known| Some(known) == stamp),
        };
        match found {
            At::Frame { stamp, .. } if !is_next && !is_ours(stamp) => {
                at = log.next_magic(at + ALIGN as u64, size)?;
            }
            At::Frame { meta, view, stamp } => {
                scanned.stamp = stamp.or(scanned.stamp);
                if at > scanned.end {
                    let what = "no frame can be read here";
                    scanned.damaged.push(bad(&scanned, scanned.end, at, what));
                }
                for stretch in scanned.damaged.iter_mut().filter(|stretch| stretch.before.is_none()) {
                    stretch.before = Some(meta.first_seq);
                }
                let rows = (meta.first_seq, meta.last_seq, u64::from(meta.count));
                let mut fault = view.is_none().then(|| "the bodies do not match their checksum".to_owned());
                if let Some(view) = view {
                    fault = each(&meta, &view);
                }
                if let Some(what) = fault {
                    let stretch = bad(&scanned, at, meta.end().min(size), &what);
                    scanned.damaged.push(Stretch { entries: Some(rows), ..stretch });
                } else {
                    scanned.frames += 1;
                    scanned.entries += u64::from(meta.count);
                }
                scanned.last_seq = scanned.last_seq.max(meta.last_seq);
                at = meta.end();
                scanned.end = at.min(size);
            }
            At::Strange(what) => {
                if at > scanned.end {
                    scanned.damaged.push(bad(&scanned, scanned.end, at, "no frame can be read here"));
                }
                let next = log.next_magic(at + ALIGN as u64, size)?;
                scanned.damaged.push(bad(&scanned, at, next, &what));
                at = next;
                scanned.end = next;
            }
            At::Nothing => at = log.next_magic(at + ALIGN as u64, size)?,
        }
    }
    let used = log.used(scanned.end, size)?;
    if used > scanned.end {
        scanned.tail = Some(bad(&scanned, scanned.end, used, "no whole frame can be read here"));
    }
    Ok(scanned)
}

/// Where frames begin in a log.
pub const FRAMES_FROM: u64 = FILE_HEADER_LEN as u64;

enum At {
    /// A frame; without a view its head is good and its bodies are not.
    Frame {
        meta: BlockMeta,
        view: Option<BlockView>,
        stamp: Option<u64>,
    },
    /// Bytes whose checksum holds, and which are no block that this release knows.
    Strange(String),
    Nothing,
}

fn frame(log: &LogFile, at: u64, size: u64, bodies: bool) -> Result<At, StoreError> {
    let mut with_bodies = bodies;
    loop {
        match log.frame_at(at, size, with_bodies) {
            Ok(Some(frame)) => {
                let meta = BlockMeta::of(&frame.view, at, frame.len, frame.head_len);
                let view = (bodies == with_bodies).then_some(frame.view);
                return Ok(At::Frame { meta, view, stamp: frame.stamp });
            }
            // Perhaps it is only the bodies.
            Ok(None) if with_bodies => with_bodies = false,
            Ok(None) => return Ok(At::Nothing),
            Err(StoreError::Corrupt { what, .. }) => return Ok(At::Strange(what)),
            Err(error) => return Err(error),
        }
    }
}
