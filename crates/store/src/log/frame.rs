//! Frames: a log is a file header followed by frames, each with one block.
//!
//! # On disk
//!
//! ```text
//! frame header, 48 bytes
//!   0  magic, the same in all logs of a store                   4 bytes
//!   4  version                                      u16 LE
//!   6  entries; 0 in a filler frame, see below      u16 LE
//!   8  bytes of the head                            u32 LE
//!  12  bytes of the bodies                          u32 LE
//!  16  first sequence number                        u64 LE
//!  24  last sequence number, less the first         u32 LE
//!  28  bit 0: last frame of a commit that is synced before more is written; bits 1..32: 16-byte units directly before this frame that
//!      were possibly unsynced when it was written; all ones: everything before it  u32 LE
//!  32  crc32 of the head                            u32 LE
//!  36  crc32 of the bodies                          u32 LE
//!  40  XXH3-64 checksum of bytes 0..40, see below   u64 LE
//! ```
//!
//! Head and bodies of the block follow ([`super::block`]), each padded with zero bytes to a
//! multiple of 16. A search reads and checks headers and heads only.
//!
//! The header checksum is the XXH3-64 of bytes 0..40, the segment's first sequence number (u64 LE)
//! and the frame's offset in the log (u64 LE), seeded with the store id. A frame is therefore valid
//! at one offset of one log of one store: the body of an entry cannot contain a valid frame,
//! neither a copy from this store nor a forged one.
//!
//! The magic marks candidates for a search: the first 4 bytes (LE) of the XXH3-64 of the empty
//! string, seeded with the store id. Senders do not know the store id, so they cannot fill bodies
//! with magics, and a search computes few checksums.
//!
//! A filler frame contains no entries. Recovery writes one over an unfinished write that is followed by
//! valid frames of the same commit. Its header covers the whole range; the bytes behind the header
//! are meaningless.
//!
//! # Invariant
//!
//! No field of a header is used before its checksum is verified. All versions share the layout of
//! the header.

use rkyv::util::AlignedVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::{StoreError, fits};
use saltcellar_base::limits::WIRE_FRAME_BYTES_MAX;
use saltcellar_model::SeqNo;

/// Bytes of a frame header.
pub const FRAME_HEADER_LEN: usize = 48;
/// Frame version of this release.
pub const FRAME_VERSION: u16 = 5;
/// Alignment in bytes of every frame and of each of its parts.
pub(crate) const ALIGN: usize = 16;
/// Bytes covered by the header checksum.
const CHECKED_LEN: usize = 40;
/// Means that no byte before this frame is known to be on stable storage.
const NOTHING_SYNCED: u32 = u32::MAX >> 1;

/// Limit of the head and of the bodies, in bytes: the largest entry and its columns.
pub(crate) const PAYLOAD_BYTES_MAX: usize = WIRE_FRAME_BYTES_MAX + 1024 * 1024;

/// Identity of a log among all logs of all stores. A frame is valid in one log only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogId {
    /// The store id, a random number.
    pub store_id: u64,
    /// The segment's first sequence number.
    pub first_seq: SeqNo,
}

impl LogId {
    /// The first bytes of every frame in the store.
    pub fn magic(self) -> [u8; 4] {
        let [a, b, c, d, ..] = xxh3_64_with_seed(&[], self.store_id).to_le_bytes();
        [a, b, c, d]
    }
}

/// The position of a frame in its log and its commit.
#[derive(Debug, Clone, Copy)]
pub struct Position {
    /// Offset of the frame in its log.
    pub offset: u64,
    /// Number of possibly unsynced bytes directly before the frame.
    pub unsynced: u64,
    /// Whether it is the last frame of its commit.
    pub ends_commit: bool,
}

impl Position {
    /// A position in a log that becomes visible only after a full sync.
    pub fn in_new_log(offset: u64) -> Self {
        Self {
            offset,
            unsynced: 0,
            ends_commit: true,
        }
    }
}

/// A frame header with a valid checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Offset of the frame in the file.
    pub(crate) offset: u64,
    pub(crate) version: u16,
    /// Entries; 0 in a filler frame.
    pub(crate) count: u16,
    pub(crate) head_len: u32,
    pub(crate) bodies_len: u32,
    pub(crate) first_seq: SeqNo,
    pub(crate) last_seq: SeqNo,
    /// All bytes below this offset were on stable storage when the frame was written.
    pub(crate) synced: u64,
    /// Whether it is the last frame of its commit.
    pub(crate) ends_commit: bool,
    pub(crate) head_crc: u32,
    pub(crate) bodies_crc: u32,
}

impl FrameHeader {
    /// Reads the header at `offset` of a file that starts at byte `base` of the log. `None` if no
    /// valid header is there.
    pub(crate) fn read(bytes: &[u8], id: LogId, base: u64, offset: u64) -> Option<Self> {
        let bytes: &[u8; FRAME_HEADER_LEN] = bytes.first_chunk()?;
        // The magic is covered by the checksum, so it needs no comparison.
        if check_value(bytes, id, base.checked_add(offset)?) != u64_at(bytes, 40) {
            return None;
        }

        let first_seq = SeqNo(u64_at(bytes, 16));
        let commit = u32_at(bytes, 28);
        let unsynced = match commit >> 1 {
            NOTHING_SYNCED => u64::MAX,
            units => u64::from(units) * ALIGN as u64,
        };

        Some(Self {
            offset,
            version: u16_at(bytes, 4),
            count: u16_at(bytes, 6),
            head_len: u32_at(bytes, 8),
            bodies_len: u32_at(bytes, 12),
            first_seq,
            last_seq: SeqNo(first_seq.0.saturating_add(u64::from(u32_at(bytes, 24)))),
            synced: offset.saturating_sub(unsynced),
            ends_commit: commit & 1 == 1,
            head_crc: u32_at(bytes, 32),
            bodies_crc: u32_at(bytes, 36),
        })
    }

    pub(crate) fn head_at(&self) -> u64 {
        self.offset + FRAME_HEADER_LEN as u64
    }

    pub(crate) fn bodies_at(&self) -> u64 {
        self.head_at() + u64::from(self.head_len).next_multiple_of(ALIGN as u64)
    }

    /// Offset of the first byte after the frame and its padding.
    pub(crate) fn end(&self) -> u64 {
        self.bodies_at() + u64::from(self.bodies_len).next_multiple_of(ALIGN as u64)
    }

    /// Whether the frame contains no entries and only covers an unfinished write.
    pub(crate) fn is_filler(&self) -> bool {
        self.count == 0
    }
}

/// The two parts of a finished block, each with its own checksum in the frame.
pub struct Packed<'a> {
    /// The archived head.
    pub head: AlignedVec,
    /// The bodies, compressed if that is shorter.
    pub bodies: &'a [u8],
}

/// Appends a frame to `out`; returns the lengths of the frame and of its head. The frame is invalid
/// until [`place_frame`] completes its header. On error nothing is appended.
pub(crate) fn write_frame(
    out: &mut Vec<u8>,
    block: &Packed<'_>,
    (first_seq, last_seq): (SeqNo, SeqNo),
    count: usize,
) -> Result<(u32, u32), StoreError> {
    let head = block.head.as_slice();
    let bodies = block.bodies;
    // Readers reject a larger part, so it must never be acknowledged.
    if head.len().max(bodies.len()) > PAYLOAD_BYTES_MAX {
        return Err(StoreError::Broken(
            "a part of a block exceeds PAYLOAD_BYTES_MAX",
        ));
    }

    let count = u16::try_from(count).ok().filter(|count| *count > 0);
    let count = count.ok_or(StoreError::Broken(
        "the number of entries of a block does not fit a frame",
    ))?;

    let span = last_seq
        .0
        .checked_sub(first_seq.0)
        .and_then(|span| u32::try_from(span).ok());
    let span = span.ok_or(StoreError::Broken(
        "the sequence numbers of a block do not fit a frame",
    ))?;

    let (head_len, bodies_len) = (
        fits(head.len(), "a frame over 4 GiB")?,
        fits(bodies.len(), "a frame over 4 GiB")?,
    );

    let padded = |part: &[u8]| part.len().next_multiple_of(ALIGN);
    let len = FRAME_HEADER_LEN + padded(head) + padded(bodies);
    let begin = out.len();

    // Magic, commit and checksum stay zero: they depend on the position, which the committer knows.
    let mut header = [0_u8; FRAME_HEADER_LEN];
    put(&mut header, 4, &FRAME_VERSION.to_le_bytes());
    put(&mut header, 6, &count.to_le_bytes());
    put(&mut header, 8, &head_len.to_le_bytes());
    put(&mut header, 12, &bodies_len.to_le_bytes());
    put(&mut header, 16, &first_seq.0.to_le_bytes());
    put(&mut header, 24, &span.to_le_bytes());
    put(&mut header, 32, &crc32fast::hash(head).to_le_bytes());
    put(&mut header, 36, &crc32fast::hash(bodies).to_le_bytes());

    out.reserve(len);
    out.extend_from_slice(&header);
    for part in [head, bodies] {
        out.extend_from_slice(part);
        // Relative to the part: `out` may start at any offset.
        out.extend_from_slice(
            ZEROS
                .get(..padded(part) - part.len())
                .expect("padding is shorter than ALIGN"),
        );
    }

    assert_eq!(
        out.len() - begin,
        len,
        "frame length equals the sum of its parts"
    );

    Ok((fits(len, "a frame over 4 GiB")?, head_len))
}

/// Completes the header of the frame at the start of `bytes` for its position in a log.
pub fn place_frame(bytes: &mut [u8], id: LogId, position: Position) {
    let units = u32::try_from(position.unsynced.div_ceil(ALIGN as u64)).unwrap_or(NOTHING_SYNCED);
    // A number of bytes that does not fit means that nothing is known to be synced, which only
    // makes a start write more bytes again.
    let commit = units.min(NOTHING_SYNCED) << 1 | u32::from(position.ends_commit);
    put(bytes, 0, &id.magic());
    put(bytes, 28, &commit.to_le_bytes());
    let check = check_value(bytes, id, position.offset);
    put(bytes, CHECKED_LEN, &check.to_le_bytes());
}

/// The header of a filler frame over `bytes` bytes from `offset`; `None` if the length is not a
/// valid frame length.
pub(crate) fn filler(id: LogId, offset: u64, bytes: u64) -> Option<[u8; FRAME_HEADER_LEN]> {
    let rest = u32::try_from(bytes.checked_sub(FRAME_HEADER_LEN as u64)?).ok()?;
    let mut header = [0_u8; FRAME_HEADER_LEN];
    put(&mut header, 4, &FRAME_VERSION.to_le_bytes());
    put(&mut header, 12, &rest.to_le_bytes());
    // Neither part of the position matters: a walk takes both from frames with entries.
    place_frame(&mut header, id, Position::in_new_log(offset));
    (rest as usize).is_multiple_of(ALIGN).then_some(header)
}

const ZEROS: [u8; ALIGN] = [0; ALIGN];

fn check_value(header: &[u8], id: LogId, offset: u64) -> u64 {
    let mut input = [0_u8; CHECKED_LEN + 16];
    put(
        &mut input,
        0,
        header.get(..CHECKED_LEN).expect("a whole header"),
    );

    put(&mut input, CHECKED_LEN, &id.first_seq.0.to_le_bytes());
    put(&mut input, CHECKED_LEN + 8, &offset.to_le_bytes());
    xxh3_64_with_seed(&input, id.store_id)
}

pub(crate) fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    to.get_mut(at..at + bytes.len())
        .expect("an offset in the header")
        .copy_from_slice(bytes);
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(
        *bytes
            .get(at..)
            .and_then(|b| b.first_chunk())
            .expect("an offset in the header"),
    )
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(
        *bytes
            .get(at..)
            .and_then(|b| b.first_chunk())
            .expect("an offset in the header"),
    )
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(
        *bytes
            .get(at..)
            .and_then(|b| b.first_chunk())
            .expect("an offset in the header"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: LogId = LogId {
        store_id: 7,
        first_seq: SeqNo(5),
    };

    fn frame() -> Vec<u8> {
        let mut head = AlignedVec::new();
        head.extend_from_slice(b"a head");
        let mut out = Vec::new();
        write_frame(
            &mut out,
            &Packed {
                head,
                bodies: b"bodies",
            },
            (SeqNo(9), SeqNo(12)),
            3,
        )
        .unwrap();
        out
    }

    #[test]
    fn a_frame_is_valid_at_its_own_offset_of_its_own_log_only() {
        let mut frame = frame();
        assert_eq!(FrameHeader::read(&frame, ID, 0, 0), None, "not placed yet");
        place_frame(
            &mut frame,
            ID,
            Position {
                offset: 160,
                unsynced: 80,
                ends_commit: true,
            },
        );
        let header = FrameHeader::read(&frame, ID, 0, 160).unwrap();
        assert_eq!(
            (header.count, header.first_seq, header.last_seq),
            (3, SeqNo(9), SeqNo(12))
        );
        assert_eq!(
            (header.synced, header.ends_commit, header.end()),
            (80, true, 160 + frame.len() as u64)
        );
        assert_eq!(
            FrameHeader::read(&frame, ID, 96, 64).map(|header| header.offset),
            Some(64)
        );
        assert_eq!(FrameHeader::read(&frame, ID, 0, 176), None);
        assert_eq!(
            FrameHeader::read(&frame, LogId { store_id: 8, ..ID }, 0, 160),
            None
        );
        assert_eq!(
            FrameHeader::read(
                &frame,
                LogId {
                    first_seq: SeqNo(6),
                    ..ID
                },
                0,
                160
            ),
            None
        );
        for at in 0..FRAME_HEADER_LEN {
            frame[at] ^= 1;
            assert_eq!(FrameHeader::read(&frame, ID, 0, 160), None, "byte {at}");
            frame[at] ^= 1;
        }
    }

    #[test]
    fn the_number_of_unsynced_bytes_is_never_understated() {
        let mut frame = frame();
        for unsynced in [0, 16, 1 << 34, 1 << 35, 1 << 40] {
            let offset = 1 << 41;
            place_frame(
                &mut frame,
                ID,
                Position {
                    offset,
                    unsynced,
                    ends_commit: false,
                },
            );
            let header = FrameHeader::read(&frame, ID, 0, offset).unwrap();
            assert!(header.synced <= offset - unsynced, "{unsynced}: {header:?}");
            assert!(!header.ends_commit);
        }
    }

    #[test]
    fn a_filler_frame_covers_its_range() {
        let header = filler(ID, 96, 160).unwrap();
        let header = FrameHeader::read(&header, ID, 0, 96).unwrap();
        assert!(header.is_filler());
        assert_eq!(header.end(), 256);
        assert!(filler(ID, 96, 32).is_none() && filler(ID, 96, 1 << 40).is_none());
    }
}
