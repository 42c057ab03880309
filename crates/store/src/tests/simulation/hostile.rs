//! Bodies that look like frames of a log: valid frames of this store, of other stores and of another version, and magics.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::StoreError;
use crate::log::file::{FILE_HEADER_LEN, Header, LogFile};
use crate::log::frame::LogId;
use crate::log::walk::{self, Bounds};
use crate::tests::damage::forged::{foreign_frame, of_unknown_version};
use crate::vfs::Disk;
use saltcellar_model::SeqNo;
use saltcellar_testkit::Random;

/// The tag of events in forged frames.
const FORGED: &str = "salt/forged";

/// Number of kinds of hostile bodies.
pub(super) const KINDS: u8 = 6;
/// A frame of another store.
pub(super) const FOREIGN: u8 = 0;
/// A frame with a sequence number near the maximum.
pub(super) const LAST_NUMBERS: u8 = 1;
/// A frame of another version.
pub(super) const UNKNOWN_VERSION: u8 = 2;
/// A copy of a frame of this store.
const COPY: u8 = 3;
/// A copy that does not begin at a multiple of 16.
const COPY_SHIFTED: u8 = 4;

/// Bytes of a hostile body. Large enough that the block, which compresses by less than 1/64, is stored uncompressed.
pub(super) const LEN: usize = 60_000;

/// The position of a frame in its log, and the sequence numbers of its entries.
#[derive(Debug, Clone)]
pub(super) struct FrameAt {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) seqs: Vec<SeqNo>,
}

/// The frames of a log up to the first damaged one.
pub(super) fn frames(path: &Path) -> Vec<FrameAt> {
    let (mut found, intact) = all_frames(path);
    found.retain(|frame| frame.offset < intact);
    found
}

/// All frames of entries that a start finds in a log, and the offset of the first byte that belongs to no frame. Bytes that a start has
/// given up are also a frame, without entries.
pub(super) fn all_frames(path: &Path) -> (Vec<FrameAt>, u64) {
    let mut found: Vec<FrameAt> = Vec::new();
    let Some(header) = header(path) else {
        return (found, 0);
    };

    let log = LogFile::bare(&Disk, path, header.id()).unwrap();
    let bounds = Bounds::of_log(log.size().unwrap());
    let walked = walk::walk(&log, bounds, true, |meta, view| {
        let seqs = (0..view.len()).map(|at| view.rows().seq(at)).collect();
        found.push(FrameAt {
            offset: meta.offset,
            len: u64::from(meta.len),
            seqs,
        });
        None
    })
    .unwrap();

    let damaged = walked.damaged.iter().chain(&walked.unfinished);
    let intact = damaged.map(|range| range.offset).min();
    (found, intact.unwrap_or(walked.end))
}

/// The header of a log; `None` if it is damaged, or if the sealer of a running store has replaced
/// the log since it was listed.
fn header(path: &Path) -> Option<Header> {
    let unknown = LogId {
        store_id: 0,
        first_seq: SeqNo(0),
    };
    match LogFile::bare(&Disk, path, unknown) {
        Err(StoreError::Io { why, .. }) if why.kind() == ErrorKind::NotFound => None,
        log => log.unwrap().header().unwrap(),
    }
}

pub(super) fn logs(state_dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for class in std::fs::read_dir(state_dir.join("log"))
        .into_iter()
        .flatten()
    {
        for segment in std::fs::read_dir(class.unwrap().path()).unwrap() {
            let log = segment.unwrap().path().join("log");
            if log.is_file() {
                found.push(log);
            }
        }
    }
    found.sort();
    found
}

pub(super) fn is_of_settings(log: &Path) -> bool {
    log.components().any(|part| part.as_os_str() == "settings")
}

/// A hostile body that will be stored at offset `begin` of the entry's body.
pub(super) fn blob(
    kind: u8,
    begin: usize,
    next_seq: u64,
    state_dir: &Path,
    rng: &mut Random,
) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..LEN)
        .map(|_| u8::try_from(rng.below(256)).unwrap())
        .collect();
    if kind > COPY_SHIFTED {
        let magic = magic_of(state_dir);
        // Plausible lengths: a reader that trusts them reads each.
        for at in (0..LEN - 16).step_by(16) {
            let at = at + (16 - begin % 16) % 16;
            bytes
                .get_mut(at..at + 4)
                .unwrap_or_default()
                .copy_from_slice(&magic);
            bytes.get_mut(at + 10..at + 12).unwrap_or_default().fill(0);
        }
        return bytes;
    }
    let shift = if kind == COPY_SHIFTED {
        rng.index(16)
    } else {
        0
    };
    let seq = next_seq + 1 + rng.below(3);
    // Only one frame: compression would remove a second.
    let frame = match kind {
        FOREIGN => foreign_frame(seq, FORGED),
        LAST_NUMBERS => foreign_frame(u64::MAX - 2, FORGED),
        UNKNOWN_VERSION => of_unknown_version(seq, FORGED),
        _ => copy(state_dir, rng).unwrap_or_default(),
    };
    let at = 512 + rng.index(1024) * 16;
    let start = at + (16 - (begin + at) % 16) % 16 + shift;
    bytes[start..start + frame.len()].copy_from_slice(&frame);
    bytes
}

/// The magic of this store's frames, or another store's magic if there is no log yet.
fn magic_of(state_dir: &Path) -> [u8; 4] {
    let found = logs(state_dir).iter().find_map(|path| header(path));
    found
        .map_or_else(
            || LogId {
                store_id: 77,
                first_seq: SeqNo(0),
            },
            |header| header.id(),
        )
        .magic()
}

/// A random small frame of this store.
fn copy(state_dir: &Path, rng: &mut Random) -> Option<Vec<u8>> {
    let logs = logs(state_dir);
    let path = logs.get(rng.index(logs.len()))?;
    let small: Vec<_> = frames(path)
        .into_iter()
        .filter(|frame| frame.len < 3000)
        .collect();
    let frame = small.get(rng.index(small.len()))?;
    let [from, to] =
        [frame.offset, frame.offset + frame.len].map(|at| usize::try_from(at).unwrap());
    // The sealed form may have replaced the log meanwhile.
    std::fs::read(path)
        .unwrap()
        .get(from..to)
        .map(<[u8]>::to_vec)
}

/// Flips a random bit of a byte.
pub(super) fn flip(path: &Path, at: u64, rng: &mut Random) {
    let mut bytes = std::fs::read(path).unwrap();
    if let Some(byte) = bytes.get_mut(usize::try_from(at).unwrap()) {
        *byte ^= 1 << rng.index(8);
    }
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_hostile_body_is_stored_verbatim_at_an_offset_where_a_frame_may_begin() {
    use super::{Simulated, TINY};

    for kind in [FOREIGN, LAST_NUMBERS, UNKNOWN_VERSION, COPY] {
        let mut simulated = Simulated::new(super::Limits {
            segment_bytes_max: 1 << 20,
            ..TINY
        });
        simulated.put(&[vec![super::ItemSpec {
            variant: 7,
            job: 1,
            minion: 1,
            size: 5,
        }]]);
        simulated.apply(&super::operations::Op::Hostile {
            kind,
            outcome: super::operations::HostileOutcome::Stored,
            seed: 1,
        });
        let own = magic_of(&simulated.state_dir());
        let found = logs(&simulated.state_dir()).iter().any(|log| {
            let bytes = std::fs::read(log).unwrap();
            let magics = [
                own,
                LogId {
                    store_id: 77,
                    first_seq: SeqNo(0),
                }
                .magic(),
            ];
            let real = frames(log);
            (FILE_HEADER_LEN..bytes.len())
                .step_by(16)
                .filter(|at| magics.iter().any(|magic| bytes[*at..].starts_with(magic)))
                .any(|at| real.iter().all(|frame| frame.offset != at as u64))
        });
        assert!(found, "a body of kind {kind} has no frame in the log");
        simulated.close();
    }
}
