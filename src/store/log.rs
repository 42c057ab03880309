//! A segment's log file: a header, then frames, each with one block.
//!
//! # On disk
//!
//! ```text
//! file header, 64 bytes                      frame header, 48 bytes
//!   0  "SALTCLOG"                              0  "SCB1"
//!   8  format version   u32 LE                 4  version of the block  u16 LE
//!  12  class            u8, see below          6  zero                  u16
//!  13  zero             3 bytes                8  bytes of the head     u32 LE
//!  16  first sequence number  u64 LE          12  crc32 of bytes 0..12, 16..48 and the head
//!  24  created, us since 1970 i64 LE          16  first sequence number u64 LE
//!  32  class's name     28 bytes              24  entries               u32 LE
//!  60  crc32 of bytes 0..60   u32 LE          28  bytes of the bodies   u32 LE
//!                                             32  crc32 of the bodies   u32 LE
//!                                             36  zero                  u32
//!                                             40  the store's stamp     u64 LE
//! ```
//!
//! Head and bodies of the block follow ([`super::block`]), each filled up with zero bytes to a multiple of 16, so that a
//! search reads and checks heads alone. A frame of version 1 has a header of 32 bytes, without those from 32 on, and
//! one payload ([`super::block_v1`]).
//!
//! Behind its last frame a log may have zero bytes: one that grows is made longer before it is written to, so that a sync
//! need not make its size durable each time. They are cut off when it is finished and at a stop.
//!
//! The name of the class is padded with zero bytes. Format 1 left it out: there byte 12 is 0 for `jobs` and 1
//! for `events`. It still is, and 255 for any other class.
//!
//! # Invariant
//!
//! A frame is data only if its checksum holds. What follows the last good frame of an unfinished file is a
//! write that was never acknowledged and is cut off; a bad frame with good ones behind it is damage: it is
//! skipped, counted and named with its offset, and nothing is cut.

use std::io;
use std::path::{Path, PathBuf};

use rkyv::util::AlignedVec;

use super::block::BlockView;
use super::block_v1;
use super::builder::Packed;
use super::error::{StoreError, fits, io_at};
use super::format::FORMAT_VERSION;
use super::medium::{Medium, MediumFile};
use crate::clock::Micros;
use crate::limits::{CLASS_NAME_BYTES_MAX, WIRE_FRAME_BYTES_MAX};
use crate::model::SeqNo;

/// Bytes before the first frame.
pub const FILE_HEADER_LEN: usize = 64;
/// Bytes before a frame's payload.
pub const FRAME_HEADER_LEN: usize = 48;

const FILE_MAGIC: &[u8; 8] = b"SALTCLOG";
const FRAME_MAGIC: &[u8; 4] = b"SCB1";
/// Version of the block in a frame. 1: the first one. 2: head and bodies apart.
const BLOCK_VERSION: u16 = 2;
/// Bytes before a payload of version 1.
const FRAME_HEADER_LEN_V1: usize = 32;
/// Every frame, and each part of it, begins at a multiple of so many bytes.
pub(super) const ALIGN: usize = 16;
/// Where the class's name stands in the file's header.
const NAME_AT: usize = 32;
const _: () = assert!(NAME_AT + CLASS_NAME_BYTES_MAX == FILE_HEADER_LEN - 4);

/// Head and bodies each have this many bytes at most: the largest entry with its columns.
pub const PAYLOAD_BYTES_MAX: usize = WIRE_FRAME_BYTES_MAX + 1024 * 1024;

/// Where a block lies, and enough about it to skip it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockMeta {
    /// Byte of the frame's header in the file.
    pub offset: u64,
    /// Bytes of the frame, header and padding included.
    pub len: u32,
    /// Bytes of the head behind the frame's header.
    pub head_len: u32,
    /// Entries.
    pub count: u32,
    /// First sequence number.
    pub first_seq: SeqNo,
    /// Last sequence number.
    pub last_seq: SeqNo,
    /// Earliest arrival.
    pub at_min: Micros,
    /// Latest arrival.
    pub at_max: Micros,
}

impl BlockMeta {
    /// Describes a block at `offset`.
    pub fn of(view: &BlockView, offset: u64, frame_len: usize, head_len: usize) -> Self {
        let rows = view.rows();
        let (at_min, at_max) = rows.times();
        let small = |n: usize| u32::try_from(n).expect("the parts of a frame are bounded");
        Self {
            offset,
            len: small(frame_len),
            head_len: small(head_len),
            count: small(view.len()),
            first_seq: rows.seq(0),
            last_seq: rows.seq(view.len() - 1),
            at_min,
            at_max,
        }
    }

    /// Byte after the frame and its padding.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }
}

/// Bytes of a frame: header, head, bodies, each with its padding.
fn frame_len(head: usize, bodies: usize) -> usize {
    FRAME_HEADER_LEN + head.next_multiple_of(ALIGN) + bodies.next_multiple_of(ALIGN)
}

/// Appends a frame to `out`; its bytes, and those of its head. Appends nothing if a part is longer than readers take.
pub fn write_frame(
    out: &mut Vec<u8>,
    block: &Packed<'_>,
    first_seq: SeqNo,
    count: usize,
    stamp: u64,
) -> Result<(u32, u32), StoreError> {
    let (head, bodies) = (block.head.as_slice(), block.bodies);
    if head.len().max(bodies.len()) > PAYLOAD_BYTES_MAX {
        return Err(StoreError::Broken("a part of a block is longer than readers take"));
    }
    let len = frame_len(head.len(), bodies.len());
    let [head_len, bodies_len, count] =
        [head.len(), bodies.len(), count].map(|n| fits(n, "a frame over 4 GiB"));
    let (head_len, bodies_len, count) = (head_len?, bodies_len?, count?);
    let begin = out.len();
    let mut header = [0_u8; FRAME_HEADER_LEN];
    let (front, back) = header.split_at_mut(16);
    put(front, 0, FRAME_MAGIC);
    put(front, 4, &BLOCK_VERSION.to_le_bytes());
    put(front, 8, &head_len.to_le_bytes());
    put(back, 0, &first_seq.0.to_le_bytes());
    put(back, 8, &count.to_le_bytes());
    put(back, 12, &bodies_len.to_le_bytes());
    put(back, 16, &crc32fast::hash(bodies).to_le_bytes());
    put(back, 24, &stamp.to_le_bytes());
    let crc = checksum(front, back, head);
    put(front, 12, &crc.to_le_bytes());
    out.reserve(len);
    out.extend_from_slice(&header);
    for part in [head, bodies] {
        out.extend_from_slice(part);
        // Not by the length of `out`: what is in it already may begin anywhere.
        let padding = part.len().next_multiple_of(ALIGN) - part.len();
        out.extend_from_slice(ZEROS.get(..padding).expect("less than a multiple"));
    }
    assert_eq!(out.len() - begin, len, "a frame is as long as its parts");
    Ok((fits(len, "a frame over 4 GiB")?, head_len))
}

const ZEROS: [u8; ALIGN] = [0; ALIGN];

fn checksum(front: &[u8], back: &[u8], payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(front.get(..12).expect("a whole header"));
    crc.update(back);
    crc.update(payload);
    crc.finalize()
}

fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    to.get_mut(at..at + bytes.len()).expect("a place in the header").copy_from_slice(bytes);
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes.get(at..).and_then(|b| b.first_chunk()).expect("a place in the header"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes.get(at..).and_then(|b| b.first_chunk()).expect("a place in the header"))
}

/// The number of a class in the header.
fn class_number(class_name: &str) -> u8 {
    match class_name {
        "jobs" => 0,
        "events" => 1,
        _ => u8::MAX,
    }
}

/// Does a header name this class? One of format 1 has no name, but a number.
fn names_class(header: &[u8], class_name: &str) -> bool {
    let name = header.get(NAME_AT..NAME_AT + CLASS_NAME_BYTES_MAX).expect("a whole header");
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    match name.split_at_checked(end) {
        Some((b"", _)) => header.get(12) == Some(&class_number(class_name)),
        Some((name, _)) => name == class_name.as_bytes(),
        None => false,
    }
}

/// The header of a new file.
pub fn file_header(class_name: &str, first_seq: SeqNo, created: Micros) -> [u8; FILE_HEADER_LEN] {
    let mut header = [0_u8; FILE_HEADER_LEN];
    put(&mut header, 0, FILE_MAGIC);
    put(&mut header, 8, &FORMAT_VERSION.to_le_bytes());
    put(&mut header, 12, &[class_number(class_name)]);
    put(&mut header, 16, &first_seq.0.to_le_bytes());
    put(&mut header, 24, &created.0.to_le_bytes());
    put(&mut header, NAME_AT, class_name.as_bytes());
    let crc = crc32fast::hash(header.get(..60).expect("a whole header"));
    put(&mut header, 60, &crc.to_le_bytes());
    header
}

/// A log file open for reading; many threads may read at once.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: Box<dyn MediumFile>,
    created: Micros,
}

/// A frame that was read.
pub(super) struct Frame {
    pub(super) view: BlockView,
    /// Bytes of the frame, header and padding included.
    pub(super) len: usize,
    pub(super) head_len: usize,
    /// Of the store that wrote it; none before format 2.
    pub(super) stamp: Option<u64>,
}

/// What the header of a file says, if its checksum holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    bytes: [u8; FILE_HEADER_LEN],
}

impl Header {
    /// The version of the format that wrote it.
    pub(super) fn version(&self) -> u32 {
        u32_at(&self.bytes, 8)
    }

    pub(super) fn first_seq(&self) -> SeqNo {
        SeqNo(u64_at(&self.bytes, 16))
    }

    fn created(&self) -> Micros {
        Micros(u64_at(&self.bytes, 24).cast_signed())
    }

    /// Is it of that class?
    pub(super) fn names_class(&self, class_name: &str) -> bool {
        names_class(&self.bytes, class_name)
    }

    /// The class that it names; format 1 knew two, by number.
    pub(super) fn class_name(&self) -> Option<&str> {
        let name = self.bytes.get(NAME_AT..NAME_AT + CLASS_NAME_BYTES_MAX)?.split(|b| *b == 0).next()?;
        match (std::str::from_utf8(name).ok()?, self.bytes.get(12)?) {
            ("", 0) => Some("jobs"),
            ("", 1) => Some("events"),
            ("", _) => None,
            (name, _) => Some(name),
        }
    }
}

/// What a walk over a file found.
#[derive(Debug, Default)]
pub struct Walked {
    /// Byte after the last good frame.
    pub end: u64,
    /// Bytes of the file, without zero bytes behind the last good frame.
    pub size: u64,
    /// Stretches that are no good frames but lie before one: offset and bytes.
    pub damaged: Vec<(u64, u64)>,
}

impl LogFile {
    /// Opens a file and looks at its header. A damaged header is reported and done without: the frames have
    /// checksums of their own, and the directory names class and number.
    pub fn open(
        medium: &dyn Medium,
        path: &Path,
        class_name: &str,
        first_seq: SeqNo,
    ) -> Result<Self, StoreError> {
        let log = Self::bare(medium, path)?;
        let header = log.header().unwrap_or_else(|error| {
            tracing::error!(%error, offset = 0, "cannot read the header of a log");
            None
        });
        let Some(header) = header else {
            tracing::error!(path = %path.display(), offset = 0, "the header of a log is damaged; its frames are read all the same");
            return Ok(log);
        };
        let found = header.version();
        if !(1..=FORMAT_VERSION).contains(&found) {
            let path = path.to_owned();
            return Err(StoreError::Version { path, found: found.to_string(), expected: FORMAT_VERSION });
        }
        if !header.names_class(class_name) || header.first_seq() != first_seq {
            let what = "the header names another segment: was a directory renamed?".to_owned();
            return Err(StoreError::Corrupt { path: path.to_owned(), offset: 0, what });
        }
        Ok(Self { created: header.created(), ..log })
    }

    /// Opens a file whatever it is.
    pub(super) fn bare(medium: &dyn Medium, path: &Path) -> Result<Self, StoreError> {
        Ok(Self::of(path, medium.open(path).map_err(io_at("open", path))?))
    }

    /// A file that is open already.
    pub(super) fn of(path: &Path, file: Box<dyn MediumFile>) -> Self {
        Self { path: path.to_owned(), file, created: Micros::default() }
    }

    /// The file's header; `None` if it is damaged or this is no log.
    pub(super) fn header(&self) -> Result<Option<Header>, StoreError> {
        let mut bytes = [0_u8; FILE_HEADER_LEN];
        let whole = self.read(&mut bytes, 0)?;
        let crc_holds = crc32fast::hash(bytes.get(..60).expect("a whole header")) == u32_at(&bytes, 60);
        Ok((whole && bytes.starts_with(FILE_MAGIC) && crc_holds).then_some(Header { bytes }))
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// When it was begun; 1970 if the header is damaged.
    pub fn created(&self) -> Micros {
        self.created
    }

    /// Bytes of the file.
    pub fn size(&self) -> Result<u64, StoreError> {
        self.file.size().map_err(io_at("read the size of", &self.path))
    }

    /// Reads and checks the block of a frame.
    pub fn block(&self, meta: &BlockMeta) -> Result<BlockView, StoreError> {
        self.view(meta, true)
    }

    /// Reads and checks the head of a frame's block alone; its bodies read as errors.
    pub fn head(&self, meta: &BlockMeta) -> Result<BlockView, StoreError> {
        self.view(meta, false)
    }

    /// The bytes of a frame as they are; `None` if the file ends before.
    pub fn frame(&self, meta: &BlockMeta) -> Result<Option<Vec<u8>>, StoreError> {
        let mut bytes = vec![0; meta.len as usize];
        Ok(self.read(&mut bytes, meta.offset)?.then_some(bytes))
    }

    fn view(&self, meta: &BlockMeta, with_bodies: bool) -> Result<BlockView, StoreError> {
        match self.frame_at(meta.offset, meta.end(), with_bodies)? {
            Some(frame) => Ok(frame.view),
            None => Err(self.corrupt(meta.offset, "the block's checksum does not hold".to_owned())),
        }
    }

    fn corrupt(&self, offset: u64, what: String) -> StoreError {
        StoreError::Corrupt { path: self.path.clone(), offset, what }
    }

    /// The frame at an offset of a file that ends at `size`, or `None` if none was wholly written there. Bytes whose
    /// checksum holds were written as they are: if this release cannot read them, that is an error.
    pub(super) fn frame_at(
        &self,
        offset: u64,
        size: u64,
        with_bodies: bool,
    ) -> Result<Option<Frame>, StoreError> {
        let mut header = [0_u8; FRAME_HEADER_LEN];
        let (front, back) = header.split_at_mut(FRAME_HEADER_LEN_V1);
        if !self.read(front, offset)? || front.get(..4) != Some(FRAME_MAGIC) {
            return Ok(None);
        }
        if u32_at(front, 4) & 0xffff == 1 {
            return self.frame_v1_at(front, offset, size);
        }
        if !self.read(back, offset + FRAME_HEADER_LEN_V1 as u64)? {
            return Ok(None);
        }
        let (head_len, bodies_len) = (u32_at(&header, 8) as usize, u32_at(&header, 28) as usize);
        let len = frame_len(head_len, bodies_len);
        // Do not allocate what the file cannot hold: a damaged length stays harmless.
        if head_len.max(bodies_len) > PAYLOAD_BYTES_MAX || offset + len as u64 > size {
            return Ok(None);
        }
        let mut head = AlignedVec::with_capacity(head_len);
        head.resize(head_len, 0);
        if !self.read(&mut head, offset + FRAME_HEADER_LEN as u64)? {
            return Ok(None);
        }
        let (front, back) = header.split_at(16);
        if checksum(front, back, &head) != u32_at(&header, 12) {
            return Ok(None);
        }
        let mut bodies = None;
        if with_bodies {
            let mut bytes = vec![0; bodies_len];
            let from = offset + (FRAME_HEADER_LEN + head_len.next_multiple_of(ALIGN)) as u64;
            if !self.read(&mut bytes, from)? || crc32fast::hash(&bytes) != u32_at(&header, 32) {
                return Ok(None);
            }
            bodies = Some(bytes);
        }
        let version = u32_at(&header, 4) & 0xffff;
        if version != u32::from(BLOCK_VERSION) {
            let what = format!("a block of version {version}, this release reads up to {BLOCK_VERSION}");
            return Err(self.corrupt(offset, what));
        }
        let view = BlockView::new(head, bodies).map_err(|what| self.no_block(offset, &what))?;
        Ok(Some(Frame { view, len, head_len, stamp: Some(u64_at(&header, 40)) }))
    }

    fn frame_v1_at(&self, header: &[u8], offset: u64, size: u64) -> Result<Option<Frame>, StoreError> {
        let len = u32_at(header, 8) as usize;
        let whole = FRAME_HEADER_LEN_V1 + len.next_multiple_of(ALIGN);
        if len > PAYLOAD_BYTES_MAX || offset + (FRAME_HEADER_LEN_V1 + len) as u64 > size {
            return Ok(None);
        }
        let mut payload = AlignedVec::with_capacity(len);
        payload.resize(len, 0);
        if !self.read(&mut payload, offset + FRAME_HEADER_LEN_V1 as u64)? {
            return Ok(None);
        }
        let (front, back) = header.split_at(16);
        if checksum(front, back, &payload) != u32_at(header, 12) {
            return Ok(None);
        }
        let view = block_v1::view(&payload).map_err(|what| self.no_block(offset, &what))?;
        Ok(Some(Frame { view, len: whole, head_len: len, stamp: None }))
    }

    fn no_block(&self, offset: u64, what: &str) -> StoreError {
        self.corrupt(offset, format!("a frame with a good checksum holds no block: {what}"))
    }

    /// Fills `buffer` from `offset`; false if the file ends before.
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<bool, StoreError> {
        match self.file.read_exact_at(buffer, offset) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(why) => Err(StoreError::Io { action: "read", path: self.path.clone(), why }),
        }
    }

    /// Walks over every good frame in order.
    pub fn walk(&self, mut each: impl FnMut(BlockMeta, &BlockView)) -> Result<Walked, StoreError> {
        let size = self.size()?;
        let mut walked = Walked { end: FILE_HEADER_LEN as u64, size, damaged: Vec::new() };
        let (mut at, mut stamp) = (walked.end, None);
        while at + FRAME_HEADER_LEN_V1 as u64 <= size {
            // Behind damage lie perhaps the bodies of the damaged frame, with anything in them. They do not know the stamp.
            let frame = self.frame_at(at, size, true)?;
            match frame.filter(|frame| at == walked.end || stamp.is_none() || frame.stamp == stamp) {
                Some(frame) => {
                    stamp = frame.stamp.or(stamp);
                    if at > walked.end {
                        walked.damaged.push((walked.end, at - walked.end));
                    }
                    let meta = BlockMeta::of(&frame.view, at, frame.len, frame.head_len);
                    each(meta, &frame.view);
                    at = meta.end();
                    walked.end = at;
                }
                None => at = self.next_magic(at + ALIGN as u64, size)?,
            }
        }
        walked.size = self.used(walked.end, size)?;
        Ok(walked)
    }

    /// Byte after the last one between two places that is not zero; `from` if there is none.
    pub(super) fn used(&self, from: u64, to: u64) -> Result<u64, StoreError> {
        let mut chunk = vec![0_u8; 64 * 1024];
        let (mut at, mut used) = (from, from);
        while at < to {
            let want = usize::try_from(to - at).unwrap_or(usize::MAX).min(chunk.len());
            let Some(part) = chunk.get_mut(..want) else { break };
            if !self.read(part, at)? {
                return Ok(to);
            }
            if let Some(last) = part.iter().rposition(|byte| *byte != 0) {
                used = at + last as u64 + 1;
            }
            at += want as u64;
        }
        Ok(used)
    }

    /// Copies what lies from `end` to `size` into a file of its own beside the log, for whoever wants to look at it.
    pub(super) fn keep_tail(&self, medium: &dyn Medium, end: u64, size: u64) -> Result<PathBuf, StoreError> {
        let path = self.path.with_file_name(format!("log.cut-{end}"));
        let len = size.checked_sub(end).and_then(|len| usize::try_from(len).ok());
        let mut tail = vec![0; len.ok_or(StoreError::Broken("a log ends before its last frame"))?];
        self.read(&mut tail, end)?;
        // Not synced: nothing in it was acknowledged, and nobody misses it after a power cut.
        let written = medium.create(&path).and_then(|file| file.write_all_at(&tail, 0));
        if let Err(error) = written {
            // Half a copy takes room that is perhaps what is lacking.
            let _ = medium.remove_file(&path);
            return Err(io_at("write", &path)(error));
        }
        Ok(path)
    }

    /// The next aligned place where a frame may begin; `size` if there is none.
    pub(super) fn next_magic(&self, mut from: u64, size: u64) -> Result<u64, StoreError> {
        let mut chunk = vec![0_u8; 1 << 20];
        while from < size {
            let want = usize::try_from(size - from).unwrap_or(usize::MAX).min(chunk.len());
            let Some(part) = chunk.get_mut(..want) else { break };
            if !self.read(part, from)? {
                break;
            }
            let found = part.chunks(ALIGN).position(|c| c.starts_with(FRAME_MAGIC));
            if let Some(found) = found {
                return Ok(from + (found * ALIGN) as u64);
            }
            from += want as u64;
        }
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_of_the_class_that_its_header_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let opens = |header: &[u8], class: &str| {
            std::fs::write(&path, header).unwrap();
            LogFile::open(&super::super::medium::Disk, &path, class, SeqNo(7)).is_ok()
        };
        let longest = "x".repeat(CLASS_NAME_BYTES_MAX);
        for class in ["jobs", "events", "chatter", &longest] {
            let header = file_header(class, SeqNo(7), Micros(1));
            for other in ["jobs", "events", "chatter", &longest] {
                assert_eq!(opens(&header, other), class == other, "{class} as {other}");
            }
        }
        // As format 1 wrote it: a number and no name.
        let mut old = file_header("events", SeqNo(7), Micros(1));
        put(&mut old, 8, &1_u32.to_le_bytes());
        put(&mut old, NAME_AT, &[0; CLASS_NAME_BYTES_MAX]);
        let crc = crc32fast::hash(&old[..60]);
        put(&mut old, 60, &crc.to_le_bytes());
        assert!(opens(&old, "events") && !opens(&old, "jobs") && !opens(&old, "chatter"));
    }
}
