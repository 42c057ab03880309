//! A segment's log file: a header, then frames ([`super::frame`]), each with one block.
//!
//! # On disk
//!
//! ```text
//! file header, 80 bytes
//!   0  "SALTCLOG"
//!   8  format version          u32 LE
//!  12  zero                    u32
//!  16  first sequence number   u64 LE
//!  24  created, us since 1970  i64 LE
//!  32  name of the class       28 bytes, padded with zero bytes
//!  60  zero                    u32
//!  64  store id                u64 LE
//!  72  zero                    u32
//!  76  crc32 of bytes 0..76    u32 LE
//! ```
//!
//! Zero bytes may follow the last frame: an active log is preallocated, because a sync that need
//! not change the size is faster. They are truncated when the segment is finished and at shutdown.
//!
//! # Invariant
//!
//! A frame is data only if its checksums hold. The store id comes from `FORMAT`, never from a
//! frame. [`super::walk`] defines the meaning of the bytes between frames.

use std::ops::Range;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rkyv::util::AlignedVec;

use super::block::BlockView;
use super::frame::{
    ALIGN, FRAME_HEADER_LEN, FRAME_VERSION, FrameHeader, LogId, PAYLOAD_BYTES_MAX, put, u32_at,
    u64_at,
};
use crate::error::{StoreError, io_at};
use crate::vfs::read::{Outcome, read_at};
use crate::vfs::{Fs, FsFile};
use saltcellar_base::clock::Micros;
use saltcellar_base::limits::{CLASS_NAME_BYTES_MAX, REWRITE_PIECE_BYTES, SECTOR_BYTES};
use saltcellar_model::SeqNo;
use saltcellar_wire::signed::sha256;

/// Format version of the state directory.
pub const FORMAT_VERSION: u32 = 5;

/// Bytes of the file header.
pub(crate) const FILE_HEADER_LEN: usize = 80;

const FILE_MAGIC: &[u8; 8] = b"SALTCLOG";
/// Offset of the class's name in the header.
const NAME_AT: usize = 32;
/// Offset of the store id in the header.
const STORE_ID_AT: usize = 64;
/// Offset of the header's checksum.
const CRC_AT: usize = FILE_HEADER_LEN - 4;
const _: () =
    assert!(NAME_AT + CLASS_NAME_BYTES_MAX <= STORE_ID_AT && FILE_HEADER_LEN.is_multiple_of(ALIGN));
/// Bytes of the first read of a search. The size doubles with each further read, up to
/// [`SEARCH_BYTES_MAX`]: a search through a large range needs few reads.
const SEARCH_BYTES: usize = 4096;
const SEARCH_BYTES_MAX: usize = 1 << 20;

/// The position of a block and its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct BlockMeta {
    /// Offset of the frame in the file.
    pub offset: u64,
    /// Bytes of the frame, header and padding included.
    pub len: u32,
    /// Bytes of the block's head.
    pub head_len: u32,
    /// Entries.
    pub count: u32,
    /// First sequence number.
    pub first_seq: SeqNo,
    /// Last sequence number.
    pub last_seq: SeqNo,
    /// Earliest time of arrival.
    pub at_min: Micros,
    /// Latest time of arrival.
    pub at_max: Micros,
}

impl BlockMeta {
    /// Describes the block of a frame.
    pub(crate) fn of(view: &BlockView, header: &FrameHeader) -> Self {
        let (at_min, at_max) = view.rows().times();

        Self {
            offset: header.offset,
            len: u32::try_from(header.end() - header.offset)
                .expect("the parts of a frame are bounded"),
            head_len: header.head_len,
            count: u32::from(header.count),
            first_seq: header.first_seq,
            last_seq: header.last_seq,
            at_min,
            at_max,
        }
    }

    /// Offset after the frame and its padding.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }
}

/// Builds the header of a new file.
pub fn file_header(class_name: &str, id: LogId, created: Micros) -> [u8; FILE_HEADER_LEN] {
    let mut header = [0_u8; FILE_HEADER_LEN];
    put(&mut header, 0, FILE_MAGIC);
    put(&mut header, 8, &FORMAT_VERSION.to_le_bytes());
    put(&mut header, 16, &id.first_seq.0.to_le_bytes());
    put(&mut header, 24, &created.0.to_le_bytes());
    put(&mut header, NAME_AT, class_name.as_bytes());
    put(&mut header, STORE_ID_AT, &id.store_id.to_le_bytes());

    // The checksum covers everything before it, so it is written last.
    let crc = crc32fast::hash(header.get(..CRC_AT).expect("a whole header"));
    put(&mut header, CRC_AT, &crc.to_le_bytes());
    header
}

/// A log file open for reading; threads may read concurrently.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: Box<dyn FsFile>,
    created: Micros,
    id: LogId,
    /// Offset in the log of the file's first byte.
    base: u64,
    /// Lock order: no other lock is taken under it.
    unreadable: Mutex<Unreadable>,
}

/// The sectors of a log that the disk could not read so far.
#[derive(Debug, Default)]
struct Unreadable {
    /// Ascending, without overlaps.
    ranges: Vec<Range<u64>>,
    /// Bytes that [`LogFile::take_unreadable_bytes`] has not returned yet.
    uncounted: u64,
}

impl Unreadable {
    /// Adds a range; returns the number of bytes that were not known.
    // Ranges that only touch are joined as well, because a bad area is found sector by sector.
    fn add(&mut self, range: &Range<u64>) -> u64 {
        let first = self.ranges.partition_point(|known| known.end < range.start);
        let behind = self
            .ranges
            .partition_point(|known| known.start <= range.end);
        let touched = self.ranges.get(first..behind).unwrap_or_default();

        let joined = touched.iter().fold(range.clone(), |all, known| {
            all.start.min(known.start)..all.end.max(known.end)
        });
        let len = |range: &Range<u64>| range.end - range.start;
        let known: u64 = touched.iter().map(len).sum();
        let fresh = len(&joined) - known;

        self.ranges.splice(first..behind, [joined]);
        self.uncounted += fresh;
        fresh
    }
}

/// The payload of a frame.
pub(crate) enum Payload {
    Block(BlockView),
    /// Head or bodies fail their checksum, or the file ends before them.
    Damaged(&'static str),
    /// The checksums hold, but this release cannot read the block.
    Unreadable(String),
}

/// A file header with a valid checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    bytes: [u8; FILE_HEADER_LEN],
}

impl Header {
    pub(crate) fn id(&self) -> LogId {
        LogId {
            store_id: u64_at(&self.bytes, STORE_ID_AT),
            first_seq: SeqNo(u64_at(&self.bytes, 16)),
        }
    }

    fn created(&self) -> Micros {
        Micros(u64_at(&self.bytes, 24).cast_signed())
    }

    pub(crate) fn class_name(&self) -> Option<&str> {
        let name = self
            .bytes
            .get(NAME_AT..NAME_AT + CLASS_NAME_BYTES_MAX)?
            .split(|b| *b == 0)
            .next()?;
        std::str::from_utf8(name).ok()
    }

    /// Describes a mismatch between the header and the expected class or identity.
    pub fn mismatch(&self, class_name: &str, id: LogId) -> Option<String> {
        let own = self.id();
        if own.store_id != id.store_id {
            // The store ids themselves are secret.
            let (own, other) = (public_id(own.store_id), public_id(id.store_id));
            return Some(format!(
                "the header belongs to the store {own}, FORMAT to {other}"
            ));
        }

        (self.class_name() != Some(class_name) || own.first_seq != id.first_seq).then(|| {
            format!(
                "the header belongs to segment {}/{}",
                self.class_name().unwrap_or("?"),
                own.first_seq.0
            )
        })
    }
}

impl LogFile {
    /// Opens a file and checks its header. A damaged header is only logged: frames have their own
    /// checksums, and class and first sequence number follow from the path.
    pub fn open(fs: &dyn Fs, path: &Path, class_name: &str, id: LogId) -> Result<Self, StoreError> {
        let log = Self::bare(fs, path, id)?;
        // The frames are checked one by one, so the readable rest of the log is worth more than an
        // error.
        let Some(header) = log.header()? else {
            tracing::error!(path = %path.display(), offset = 0, "log header damaged, reading its frames without it: run `saltcellar store verify` and check the disk");
            return Ok(log);
        };

        // The class and number of a path are what retention and lookups use; contradicting bytes
        // mean that an administrator moved files.
        if let Some(what) = header.mismatch(class_name, id) {
            return Err(StoreError::Misplaced {
                path: path.to_owned(),
                what,
            });
        }
        Ok(Self {
            created: header.created(),
            ..log
        })
    }

    /// Opens a file without checking its header.
    pub fn bare(fs: &dyn Fs, path: &Path, id: LogId) -> Result<Self, StoreError> {
        Ok(Self::of(
            path,
            fs.open_log(path).map_err(io_at("open", path))?,
            id,
        ))
    }

    /// Wraps an open file.
    pub fn of(path: &Path, file: Box<dyn FsFile>, id: LogId) -> Self {
        Self {
            path: path.to_owned(),
            file,
            created: Micros::default(),
            id,
            base: 0,
            unreadable: Mutex::default(),
        }
    }

    /// The same file, as the part of the log that starts at byte `base`.
    pub(crate) fn with_base(self, base: u64) -> Self {
        Self { base, ..self }
    }

    /// Reads the file's header; `None` if it is damaged or the file is not a log. Another version
    /// is an error.
    pub fn header(&self) -> Result<Option<Header>, StoreError> {
        let mut bytes = [0_u8; FILE_HEADER_LEN];
        // Not a header of any version: the caller decides whether that is damage.
        if !self.read(&mut bytes, 0)? || !bytes.starts_with(FILE_MAGIC) {
            return Ok(None);
        }

        // A version counts only if the checksum holds. Otherwise the field itself may be damaged.
        let checked = bytes.get(..CRC_AT).unwrap_or_default();
        if crc32fast::hash(checked) != u32_at(&bytes, CRC_AT) {
            return Ok(None);
        }

        let version = u32_at(&bytes, 8);
        if version != FORMAT_VERSION {
            let path = self.path.clone();
            let found = version.to_string();
            return Err(StoreError::Version {
                path,
                found,
                expected: FORMAT_VERSION,
            });
        }
        Ok(Some(Header { bytes }))
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Identity of the log.
    pub fn id(&self) -> LogId {
        self.id
    }

    /// Time of creation; 1970 if the header is damaged.
    pub(crate) fn created(&self) -> Micros {
        self.created
    }

    /// Length in bytes.
    pub fn size(&self) -> Result<u64, StoreError> {
        self.file
            .size()
            .map_err(io_at("read the size of", &self.path))
    }

    /// Reads and checks the block of a frame.
    pub fn block(&self, meta: &BlockMeta) -> Result<BlockView, StoreError> {
        self.view(meta, true)
    }

    /// Reads and checks only the head of a frame's block; its bodies read as errors.
    pub fn head(&self, meta: &BlockMeta) -> Result<BlockView, StoreError> {
        self.view(meta, false)
    }

    /// Whether the header of a frame with these bounds is where it should be.
    pub(crate) fn has_frame(&self, meta: &BlockMeta) -> Result<bool, StoreError> {
        let header = self.header_at(meta.offset)?;
        Ok(header.is_some_and(|header| {
            (header.end(), header.first_seq, header.last_seq)
                == (meta.end(), meta.first_seq, meta.last_seq)
        }))
    }

    /// Reads a frame with a valid header and an unchecked payload; `None` if there is no such
    /// frame, or if it cannot be read.
    pub fn frame(&self, meta: &BlockMeta) -> Result<Option<Vec<u8>>, StoreError> {
        // The index and the log disagree: the caller treats the frame as lost.
        let Some(header) = self
            .header_at(meta.offset)?
            .filter(|header| header.end() == meta.end())
        else {
            return Ok(None);
        };

        let mut bytes = vec![0; meta.len as usize];
        // The padding of the last frame may be missing from the file.
        let len = usize::try_from(header.bodies_at() - header.offset).unwrap_or(usize::MAX);
        let len = len.saturating_add(header.bodies_len as usize);
        let Some(part) = bytes.get_mut(..len) else {
            return Ok(None);
        };

        // Unreadable sectors read as zero bytes, which must not be copied as if they were data.
        let end = meta.offset + part.len() as u64;
        let is_there = self.read(part, meta.offset)? && !self.is_unreadable(meta.offset, end);
        Ok(is_there.then_some(bytes))
    }

    fn view(&self, meta: &BlockMeta, with_bodies: bool) -> Result<BlockView, StoreError> {
        let what = match self.header_at(meta.offset)? {
            Some(header) if header.version == FRAME_VERSION => {
                match self.content(&header, meta.end(), with_bodies)? {
                    Payload::Block(view) => return Ok(view),
                    Payload::Damaged(what) => what.to_owned(),
                    Payload::Unreadable(what) => what,
                }
            }
            _ => "frame header damaged".to_owned(),
        };
        Err(self.corrupt(meta.offset, what))
    }

    /// The error that reports damage at an offset of this log.
    pub fn corrupt(&self, offset: u64, what: String) -> StoreError {
        StoreError::Corrupt {
            path: self.path.clone(),
            offset,
            what,
        }
    }

    /// The error that reports a frame of another release at an offset of this log.
    pub(crate) fn of_version(&self, offset: u64, version: u16) -> StoreError {
        StoreError::FrameVersion {
            path: self.path.clone(),
            offset,
            version,
            reads: FRAME_VERSION,
        }
    }

    /// The header of the frame at `offset`; `None` if there is no valid one.
    fn header_at(&self, offset: u64) -> Result<Option<FrameHeader>, StoreError> {
        let mut bytes = [0_u8; FRAME_HEADER_LEN];
        Ok(if self.read(&mut bytes, offset)? {
            FrameHeader::read(&bytes, self.id, self.base, offset)
        } else {
            None
        })
    }

    /// Whether the file holds nothing but what a crash leaves of a new one: zero bytes, or the
    /// beginning of a header.
    pub fn is_blank(&self) -> Result<bool, StoreError> {
        let size = self.size()?;
        let mut bytes = [0_u8; FILE_HEADER_LEN];
        let len = usize::try_from(size)
            .unwrap_or(usize::MAX)
            .min(FILE_HEADER_LEN);

        let begun = bytes.get_mut(..len).unwrap_or_default();
        self.read(begun, 0)?;
        let magic = FILE_MAGIC.get(..len).unwrap_or(FILE_MAGIC);
        let is_begun = len < FILE_HEADER_LEN && begun.starts_with(magic);

        Ok(is_begun || self.used_end(0, size)? == 0)
    }

    /// Whether a file of `size` bytes ends inside the frame at `offset`: a write that a kill cut
    /// off. A whole frame with a damaged payload is none.
    pub fn ends_within_frame(&self, offset: u64, size: u64) -> Result<bool, StoreError> {
        // Not even its header.
        if size < offset + FRAME_HEADER_LEN as u64 {
            return Ok(true);
        }

        let header = self.header_at(offset)?;
        Ok(header.is_some_and(|header| size < header.bodies_at() + u64::from(header.bodies_len)))
    }

    /// The first frame at or after `from` and below `size`. A candidate costs the check of its
    /// header.
    pub(crate) fn next_header(
        &self,
        from: u64,
        size: u64,
    ) -> Result<Option<FrameHeader>, StoreError> {
        if let Some(header) = self.header_at(from)? {
            // The usual case: the frame follows directly.
            return Ok(Some(header));
        }

        let mut at = from + ALIGN as u64;
        let magic = self.id.magic();
        let mut chunk = vec![0_u8; SEARCH_BYTES];

        // Frames are aligned, so only multiples of `ALIGN` are candidates.
        while at + FRAME_HEADER_LEN as u64 <= size {
            let want = usize::try_from(size - at)
                .unwrap_or(usize::MAX)
                .min(chunk.len());

            let Some(part) = chunk.get_mut(..want) else {
                break;
            };
            if !self.read(part, at)? {
                break;
            }

            // Candidates whose header would cross the end of this read are looked at in the next
            // one.
            let last = part.len() - FRAME_HEADER_LEN;
            for place in (0..=last).step_by(ALIGN) {
                let bytes = part.get(place..).unwrap_or_default();
                // The magic is compared first: hashing every candidate would slow down the search.
                if bytes.starts_with(&magic)
                    && let Some(header) =
                        FrameHeader::read(bytes, self.id, self.base, at + place as u64)
                {
                    return Ok(Some(header));
                }
            }

            at += (last / ALIGN * ALIGN + ALIGN) as u64;
            chunk.resize((chunk.len() * 2).min(SEARCH_BYTES_MAX), 0);
        }
        Ok(None)
    }

    /// Reads and checks the payload behind a header, in a file of `size` bytes.
    pub(crate) fn content(
        &self,
        header: &FrameHeader,
        size: u64,
        with_bodies: bool,
    ) -> Result<Payload, StoreError> {
        let (head_len, bodies_len) = (header.head_len as usize, header.bodies_len as usize);
        // This release writes no such part, so it is data of another one. Checked before anything
        // is allocated.
        if head_len.max(bodies_len) > PAYLOAD_BYTES_MAX {
            return Ok(Payload::Unreadable(
                "a part exceeds the limit of this release".to_owned(),
            ));
        }

        // Without padding, which may be missing at the end of the file.
        if size < header.bodies_at() + u64::from(header.bodies_len) {
            return Ok(Payload::Damaged("the file ends before the frame does"));
        }

        let mut head = AlignedVec::with_capacity(head_len);
        head.resize(head_len, 0);
        if !self.read(&mut head, header.head_at())? || crc32fast::hash(&head) != header.head_crc {
            return Ok(Payload::Damaged("the head does not match its checksum"));
        }

        // Searches read heads only; bodies are most of a frame.
        let mut bodies = None;
        if with_bodies {
            let mut bytes = vec![0; bodies_len];
            if !self.read(&mut bytes, header.bodies_at())?
                || crc32fast::hash(&bytes) != header.bodies_crc
            {
                return Ok(Payload::Damaged("the bodies do not match their checksum"));
            }
            bodies = Some(bytes);
        }

        let view = match BlockView::new(head, bodies) {
            Ok(view) => view,
            Err(what) => {
                return Ok(Payload::Unreadable(format!(
                    "checksums hold, but the block is malformed: {what}"
                )));
            }
        };

        // Both are under a checksum, so a difference is a bug of the writer, not damage of the
        // disk.
        let rows = view.rows();
        let last_seq = rows.seq(view.len() - 1);
        if (rows.seq(0), last_seq, view.len())
            != (header.first_seq, header.last_seq, usize::from(header.count))
        {
            let what = "checksums hold, but header and block disagree";
            return Ok(Payload::Unreadable(what.to_owned()));
        }
        Ok(Payload::Block(view))
    }

    /// Fills `buffer` from `offset`; false at the end of the file. Unreadable sectors read as zero
    /// bytes, and are remembered ([`LogFile::is_unreadable`]): checksums treat them as any other
    /// damage.
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<bool, StoreError> {
        match read_at(&*self.file, buffer, offset).map_err(io_at("read", &self.path))? {
            Outcome::Whole => Ok(true),
            Outcome::End => Ok(false),
            Outcome::Damaged(ranges) => {
                let mut known = self.unreadable.lock();
                let sector = SECTOR_BYTES as u64;
                // Whole sectors: the disk fails in these units, and neighbors of one request share
                // them.
                for range in ranges {
                    let range = range.start / sector * sector..range.end.next_multiple_of(sector);
                    // Once: readers meet the same sector again and again.
                    if known.add(&range) > 0 {
                        tracing::error!(
                            path = %self.path.display(), offset = range.start, bytes = range.end - range.start,
                            "the disk cannot read part of a log, skipping its entries: check the disk and run `saltcellar store verify`"
                        );
                    }
                }
                Ok(true)
            }
        }
    }

    /// Whether a part of the range could not be read.
    pub fn is_unreadable(&self, from: u64, to: u64) -> bool {
        self.last_unreadable(from, to).is_some()
    }

    /// The last part of the range that could not be read.
    pub(crate) fn last_unreadable(&self, from: u64, to: u64) -> Option<Range<u64>> {
        let known = self.unreadable.lock();
        known
            .ranges
            .iter()
            .rfind(|range| range.start < to && from < range.end)
            .cloned()
    }

    /// All parts that could not be read, ascending.
    pub fn unreadable(&self) -> Vec<Range<u64>> {
        self.unreadable.lock().ranges.clone()
    }

    /// Whether all of these parts can be read now.
    pub(crate) fn can_read(&self, parts: &[Range<u64>]) -> Result<bool, StoreError> {
        let size = self.size()?;
        for part in parts {
            // Parts are whole sectors, of which the file may end in the last one.
            let end = part.end.min(size);
            // Sector by sector: one read over several of them would be halved again around each bad
            // one.
            let mut at = part.start;
            while at < end {
                let len = (end - at).min(SECTOR_BYTES as u64);

                let mut bytes = [0; SECTOR_BYTES];
                let sector = bytes.get_mut(..usize::try_from(len).unwrap_or(0));
                let is_there = self.read(sector.unwrap_or_default(), at)?;
                if !is_there || self.is_unreadable(at, at + len) {
                    return Ok(false);
                }

                at += len;
            }
        }
        Ok(true)
    }

    /// The number of unreadable bytes found since the last call.
    pub(crate) fn take_unreadable_bytes(&self) -> u64 {
        std::mem::take(&mut self.unreadable.lock().uncounted)
    }

    /// Offset after the last byte of a range that is not zero or cannot be read; `from` if there is
    /// none.
    pub(crate) fn used_end(&self, from: u64, to: u64) -> Result<u64, StoreError> {
        // A chunk bounds the memory; the preallocated rest of a log may be 1 MiB.
        let mut chunk = vec![0_u8; 64 * 1024];
        let (mut at, mut used) = (from, from);
        while at < to {
            let want = usize::try_from(to - at)
                .unwrap_or(usize::MAX)
                .min(chunk.len());
            let Some(part) = chunk.get_mut(..want) else {
                break;
            };
            // The log became shorter meanwhile. Counting the rest as used cuts nothing off.
            if !self.read(part, at)? {
                return Ok(to);
            }

            if let Some(last) = part.iter().rposition(|byte| *byte != 0) {
                used = at + last as u64 + 1;
            }
            at += want as u64;
        }

        // A sector that cannot be read may hold acknowledged bytes, so it counts as used.
        let unreadable = self.last_unreadable(from, to);
        Ok(unreadable.map_or(used, |range| used.max(range.end.min(to))))
    }

    /// Rewrites a range through `file`, a handle open for writing. After a failed sync the kernel
    /// may consider dirty pages clean. Rewriting makes them dirty again, and the next sync stores
    /// them. Unreadable sectors stay as they are: a later read may succeed.
    pub(crate) fn rewrite_range(
        &self,
        file: &dyn FsFile,
        from: u64,
        to: u64,
    ) -> Result<(), StoreError> {
        let mut at = from;
        while at < to {
            // In pieces: the range is a whole log if nothing in it is known to be synced.
            let want = usize::try_from(to - at)
                .unwrap_or(usize::MAX)
                .min(REWRITE_PIECE_BYTES);
            let mut piece = vec![0_u8; want];
            if !self.read(&mut piece, at)? {
                return Err(self.corrupt(at, "the log was truncated during a read".to_owned()));
            }

            // Asked after the read, which has noted unreadable sectors: the zero bytes in their
            // place must not be written.
            for part in self.readable_parts(&(at..at + want as u64)) {
                let bytes = usize::try_from(part.start - at)
                    .ok()
                    .zip(usize::try_from(part.end - at).ok())
                    .and_then(|(from, to)| piece.get(from..to))
                    .unwrap_or_default();
                file.write_all_at(bytes, part.start)
                    .map_err(io_at("write", &self.path))?;
            }

            at += want as u64;
        }

        Ok(())
    }

    /// A range without its unreadable parts.
    fn readable_parts(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut parts = Vec::new();
        let mut at = range.start;
        for bad in &self.unreadable.lock().ranges {
            // Before what is left, or behind the range.
            if bad.end <= at || bad.start >= range.end {
                continue;
            }

            if bad.start > at {
                parts.push(at..bad.start);
            }
            at = bad.end;
        }
        if at < range.end {
            parts.push(at..range.end);
        }
        parts
    }

    /// Copies a range into a file next to the log, for diagnosis. Not synced.
    pub(crate) fn copy_range(
        &self,
        fs: &dyn Fs,
        from: u64,
        to: u64,
    ) -> Result<PathBuf, StoreError> {
        let path = self.path.with_file_name(format!("{CUT_PREFIX}{from}"));

        let len = to
            .checked_sub(from)
            .ok_or(StoreError::Broken("a log ends before its last frame"))?;

        let copied = fs
            .create(&path)
            .map_err(io_at("write", &path))
            .and_then(|file| self.copy_into(&*file, &path, from, len));

        if let Err(error) = copied {
            // A partial copy may occupy the space that is missing.
            let _ = fs.remove_file(&path);
            return Err(error);
        }
        Ok(path)
    }

    /// Neither syncs nor checks for the end of the log: the range was never acknowledged, and the
    /// copy is only for diagnosis.
    fn copy_into(
        &self,
        out: &dyn FsFile,
        path: &Path,
        from: u64,
        len: u64,
    ) -> Result<(), StoreError> {
        let mut at = 0;
        while at < len {
            // In pieces: the range may be most of a segment.
            let want = usize::try_from(len - at)
                .unwrap_or(usize::MAX)
                .min(REWRITE_PIECE_BYTES);
            let mut piece = vec![0; want];
            self.read(&mut piece, from + at)?;

            out.write_all_at(&piece, at).map_err(io_at("write", path))?;
            at += want as u64;
        }
        Ok(())
    }
}

/// Name prefix of a file with bytes that recovery removed from a log; their offset in the log
/// follows.
const CUT_PREFIX: &str = "log.cut-";

/// Parses the offset from the name of such a file.
pub(crate) fn cut_offset(path: &Path) -> Option<u64> {
    path.file_name()?
        .to_str()?
        .strip_prefix(CUT_PREFIX)?
        .parse()
        .ok()
}

/// The store's public id, which is the first half of an event's id. It is derived one way from the
/// store id, which must stay secret: with the store id, a sender could put valid frames into the
/// bodies of entries.
pub(crate) fn public_id(store_id: u64) -> String {
    let input = [
        b"saltcellar public store id".as_slice(),
        &store_id.to_le_bytes(),
    ]
    .concat();

    let digest = sha256(&input);
    let first = digest.first_chunk().copied().unwrap_or_default();
    format!("{:016x}", u64::from_be_bytes(first))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::vfs::faults::{Act, Fault, Faults, Plan};

    #[test]
    fn unreadable_ranges_are_joined_and_counted_once() {
        let mut known = Unreadable::default();
        let added = [(8, 12), (20, 24), (8, 12), (12, 16), (4, 30), (40, 41)];
        let fresh: Vec<u64> = added
            .iter()
            .map(|(from, to)| known.add(&(*from..*to)))
            .collect();
        assert_eq!(fresh, [4, 4, 0, 4, 14, 1]);
        assert_eq!(known.ranges, [4..30, 40..41]);
        assert_eq!(known.uncounted, 27);
    }

    #[test]
    fn a_range_of_several_pieces_is_copied_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let id = LogId {
            store_id: 1,
            first_seq: SeqNo(7),
        };
        let fs = crate::vfs::Disk;
        let bytes: Vec<u8> = (0..=250)
            .cycle()
            .take(2 * REWRITE_PIECE_BYTES + 99)
            .collect();
        std::fs::write(&path, &bytes).unwrap();
        let log = LogFile::bare(&fs, &path, id).unwrap();

        let to = bytes.len() as u64 - 5;
        let copy = log.copy_range(&fs, 80, to).unwrap();
        assert_eq!(cut_offset(&copy), Some(80));
        assert!(std::fs::read(copy).unwrap() == bytes[80..bytes.len() - 5]);
        assert!(log.copy_range(&fs, 2, 1).is_err());

        // The range is never in memory as a whole: its second piece is another write.
        let plan = Arc::new(Plan::default());
        plan.add(Fault {
            from: 2,
            ..Fault::once(Act::Write, rustix::io::Errno::IO)
        });
        let fs = Faults::over(Arc::new(fs), plan);
        assert!(log.copy_range(&fs, 81, to).is_err());
        assert!(!path.with_file_name("log.cut-81").exists());
    }

    #[test]
    fn a_log_opens_only_as_the_store_and_class_in_its_header() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let id = LogId {
            store_id: 1,
            first_seq: SeqNo(7),
        };
        let opens = |class: &str, id| LogFile::open(&crate::vfs::Disk, &path, class, id).is_ok();
        let longest = "x".repeat(CLASS_NAME_BYTES_MAX);
        for class in ["jobs", "events", "chatter", &longest] {
            std::fs::write(&path, file_header(class, id, Micros(1))).unwrap();
            for other in ["jobs", "events", "chatter", &longest] {
                assert_eq!(opens(other, id), class == other, "{class} as {other}");
            }
            assert!(!opens(class, LogId { store_id: 2, ..id }));
            assert!(!opens(
                class,
                LogId {
                    first_seq: SeqNo(8),
                    ..id
                }
            ));
        }
    }

    #[test]
    fn a_log_of_an_older_format_is_rejected_with_its_version() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let id = LogId {
            store_id: 1,
            first_seq: SeqNo(7),
        };
        let mut old = file_header("jobs", id, Micros(1));
        put(&mut old, 8, &3_u32.to_le_bytes());
        let crc = crc32fast::hash(&old[..CRC_AT]);
        put(&mut old, CRC_AT, &crc.to_le_bytes());
        std::fs::write(&path, old).unwrap();
        let error = LogFile::open(&crate::vfs::Disk, &path, "jobs", id)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("format 3") && error.contains("saltcellar import"),
            "{error}"
        );
    }

    #[test]
    fn the_public_id_is_fixed_and_differs_from_the_store_id() {
        // printf "saltcellar public store id\x07\0\0\0\0\0\0\0" | sha256sum
        assert_eq!(public_id(7), "f3b0e167cab67930");
        assert_ne!(public_id(7), public_id(8));
    }
}
