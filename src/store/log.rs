//! A segment's log file: a header, then frames, each with one block.
//!
//! # On disk
//!
//! ```text
//! file header, 64 bytes                      frame header, 32 bytes
//!   0  "SALTCLOG"                              0  "SCB1"
//!   8  format version   u32 LE                 4  version of the block  u16 LE
//!  12  class            u8                     6  zero                  u16
//!  13  zero             3 bytes                8  payload bytes         u32 LE
//!  16  first sequence number  u64 LE          12  crc32 of bytes 0..12, 16..32 and the payload
//!  24  created, us since 1970 i64 LE          16  first sequence number u64 LE
//!  32  zero             28 bytes              24  entries               u32 LE
//!  60  crc32 of bytes 0..60   u32 LE          28  zero                  u32
//! ```
//!
//! The payload is an rkyv archive of [`super::block::Block`]; zero bytes fill it up to a multiple of 16, so
//! that every payload begins aligned.
//!
//! # Invariant
//!
//! A frame is data only if its checksum holds. What follows the last good frame of an unfinished file is a
//! write that was never acknowledged and is cut off; a bad frame with good ones behind it is damage: it is
//! skipped, counted and named with its offset, and nothing is cut.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rkyv::util::AlignedVec;

use super::block::BlockView;
use super::error::{StoreError, io_at};
use super::format::FORMAT_VERSION;
use crate::clock::Micros;
use crate::limits::WIRE_FRAME_BYTES_MAX;
use crate::model::SeqNo;

/// Bytes before the first frame.
pub const FILE_HEADER_LEN: usize = 64;
/// Bytes before a frame's payload.
pub const FRAME_HEADER_LEN: usize = 32;

const FILE_MAGIC: &[u8; 8] = b"SALTCLOG";
const FRAME_MAGIC: &[u8; 4] = b"SCB1";
/// Version of the block in a frame. 1: the first one.
const BLOCK_VERSION: u16 = 1;
const ALIGN: usize = 16;

/// A payload is the largest entry with its columns at most.
pub const PAYLOAD_BYTES_MAX: usize = WIRE_FRAME_BYTES_MAX + 1024 * 1024;

/// Where a block lies, and enough about it to skip it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockMeta {
    /// Byte of the frame's header in the file.
    pub offset: u64,
    /// Bytes of the payload.
    pub len: u32,
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
    pub fn of(view: &BlockView, offset: u64, payload_len: usize) -> Self {
        let rows = view.rows();
        let last = view.len().saturating_sub(1);
        let times = || (0..=last).map(|i| rows.at(i));
        Self {
            offset,
            len: u32::try_from(payload_len).unwrap_or(u32::MAX),
            count: u32::try_from(view.len()).unwrap_or(u32::MAX),
            first_seq: rows.seq(0),
            last_seq: rows.seq(last),
            at_min: times().min().unwrap_or_default(),
            at_max: times().max().unwrap_or_default(),
        }
    }

    /// Byte after the frame and its padding.
    pub fn end(&self) -> u64 {
        self.offset + frame_len(self.len as usize) as u64
    }
}

/// Bytes of a frame with a payload of `len`: header, payload, padding.
pub fn frame_len(len: usize) -> usize {
    FRAME_HEADER_LEN + len.next_multiple_of(ALIGN)
}

/// Appends a frame to `out`.
pub fn write_frame(out: &mut Vec<u8>, payload: &[u8], first_seq: SeqNo, count: usize) {
    let mut header = [0_u8; FRAME_HEADER_LEN];
    let (front, back) = header.split_at_mut(16);
    put(front, 0, FRAME_MAGIC);
    put(front, 4, &BLOCK_VERSION.to_le_bytes());
    put(front, 8, &u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
    put(back, 0, &first_seq.0.to_le_bytes());
    put(back, 8, &u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
    let crc = checksum(front, back, payload);
    put(front, 12, &crc.to_le_bytes());
    out.extend_from_slice(&header);
    out.extend_from_slice(payload);
    out.resize(out.len().next_multiple_of(ALIGN), 0);
}

fn checksum(front: &[u8], back: &[u8], payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(front.get(..12).unwrap_or_default());
    crc.update(back);
    crc.update(payload);
    crc.finalize()
}

fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = to.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b))
}

/// The header of a new file.
pub fn file_header(class: u8, first_seq: SeqNo, created: Micros) -> [u8; FILE_HEADER_LEN] {
    let mut header = [0_u8; FILE_HEADER_LEN];
    put(&mut header, 0, FILE_MAGIC);
    put(&mut header, 8, &FORMAT_VERSION.to_le_bytes());
    put(&mut header, 12, &[class]);
    put(&mut header, 16, &first_seq.0.to_le_bytes());
    put(&mut header, 24, &created.0.to_le_bytes());
    let crc = crc32fast::hash(header.get(..60).unwrap_or_default());
    put(&mut header, 60, &crc.to_le_bytes());
    header
}

/// A log file open for reading; many threads may read at once.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: File,
}

/// What a walk over a file found.
#[derive(Debug, Default)]
pub struct Walked {
    /// Byte after the last good frame.
    pub end: u64,
    /// Bytes of the file.
    pub size: u64,
    /// Stretches that are no good frames but lie before one: offset and bytes.
    pub damaged: Vec<(u64, u64)>,
}

impl LogFile {
    /// Opens a file and looks at its header. A damaged header is reported and done without: the frames have
    /// checksums of their own, and the directory names class and number.
    pub fn open(path: &Path, class: u8, first_seq: SeqNo) -> Result<Self, StoreError> {
        let file = File::open(path).map_err(io_at("open", path))?;
        let mut header = [0_u8; FILE_HEADER_LEN];
        let whole = match file.read_exact_at(&mut header, 0) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => false,
            read => read.map(|()| true).map_err(io_at("read the header of", path))?,
        };
        let crc_holds = crc32fast::hash(header.get(..60).unwrap_or_default()) == u32_at(&header, 60);
        if !whole || header.get(..8) != Some(FILE_MAGIC) || !crc_holds {
            tracing::error!(path = %path.display(), offset = 0, "the header of a log is damaged; its frames are read all the same");
            return Ok(Self { path: path.to_owned(), file });
        }
        let found = u32_at(&header, 8);
        if found != FORMAT_VERSION {
            let path = path.to_owned();
            return Err(StoreError::Version { path, found: found.to_string(), expected: FORMAT_VERSION });
        }
        if header.get(12) != Some(&class) || u64_at(&header, 16) != first_seq.0 {
            let what = "the header names another segment: was a directory renamed?".to_owned();
            return Err(StoreError::Corrupt { path: path.to_owned(), offset: 0, what });
        }
        Ok(Self { path: path.to_owned(), file })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file.
    pub fn size(&self) -> Result<u64, StoreError> {
        Ok(self.file.metadata().map_err(io_at("read the size of", &self.path))?.len())
    }

    /// Reads and checks the block of a frame.
    pub fn block(&self, meta: &BlockMeta) -> Result<BlockView, StoreError> {
        match self.frame_at(meta.offset)? {
            Some((view, _)) => Ok(view),
            None => Err(self.corrupt(meta.offset, "the block's checksum does not hold".to_owned())),
        }
    }

    fn corrupt(&self, offset: u64, what: String) -> StoreError {
        StoreError::Corrupt { path: self.path.clone(), offset, what }
    }

    /// The frame at an offset: its block and payload length, or `None` if none was wholly written there. Bytes
    /// whose checksum holds were written as they are: if this release cannot read them, that is an error.
    fn frame_at(&self, offset: u64) -> Result<Option<(BlockView, usize)>, StoreError> {
        let mut header = [0_u8; FRAME_HEADER_LEN];
        if !self.read(&mut header, offset)? || header.get(..4) != Some(FRAME_MAGIC) {
            return Ok(None);
        }
        let len = u32_at(&header, 8) as usize;
        // Do not allocate what the file cannot hold: a damaged length stays harmless.
        if len > PAYLOAD_BYTES_MAX || offset + (FRAME_HEADER_LEN + len) as u64 > self.size()? {
            return Ok(None);
        }
        let mut payload = AlignedVec::with_capacity(len);
        payload.resize(len, 0);
        if !self.read(&mut payload, offset + FRAME_HEADER_LEN as u64)? {
            return Ok(None);
        }
        let (front, back) = header.split_at(16);
        if checksum(front, back, &payload) != u32_at(&header, 12) {
            return Ok(None);
        }
        let version = u32_at(&header, 4) & 0xffff;
        if version != u32::from(BLOCK_VERSION) {
            let what = format!("a block of version {version}, this release reads version {BLOCK_VERSION}");
            return Err(self.corrupt(offset, what));
        }
        match BlockView::new(payload) {
            Ok(view) => Ok(Some((view, len))),
            Err(what) => {
                Err(self.corrupt(offset, format!("a frame with a good checksum holds no block: {what}")))
            }
        }
    }

    /// Fills `buffer` from `offset`; false if the file ends before.
    fn read(&self, buffer: &mut [u8], offset: u64) -> Result<bool, StoreError> {
        match self.file.read_exact_at(buffer, offset) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(source) => Err(StoreError::Io { action: "read", path: self.path.clone(), source }),
        }
    }

    /// Walks over every good frame in order.
    pub fn walk(&self, mut each: impl FnMut(BlockMeta, &BlockView)) -> Result<Walked, StoreError> {
        let size = self.size()?;
        let mut walked = Walked { end: FILE_HEADER_LEN as u64, size, damaged: Vec::new() };
        let mut at = walked.end;
        while at + FRAME_HEADER_LEN as u64 <= size {
            match self.frame_at(at)? {
                Some((view, len)) => {
                    if at > walked.end {
                        walked.damaged.push((walked.end, at - walked.end));
                    }
                    let meta = BlockMeta::of(&view, at, len);
                    each(meta, &view);
                    at = meta.end();
                    walked.end = at;
                }
                None => at = self.next_magic(at + ALIGN as u64, size)?,
            }
        }
        Ok(walked)
    }

    /// Copies what lies behind `end` into a file of its own beside the log, for whoever wants to look at it.
    pub fn keep_tail(&self, end: u64) -> Result<PathBuf, StoreError> {
        let path = self.path.with_file_name(format!("log.cut-{end}"));
        let mut tail = vec![0; usize::try_from(self.size()?.saturating_sub(end)).unwrap_or(0)];
        self.read(&mut tail, end)?;
        std::fs::write(&path, tail).map_err(io_at("write", &path))?;
        Ok(path)
    }

    /// The next aligned place where a frame may begin; `size` if there is none.
    fn next_magic(&self, mut from: u64, size: u64) -> Result<u64, StoreError> {
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
