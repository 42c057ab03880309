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
//! Behind its last frame a log may have zero bytes: one that grows is made longer before it is written to, so that a sync
//! need not make its size durable each time. They are cut off when it is finished and at a stop.
//!
//! # Invariant
//!
//! A frame is data only if its checksums hold. The store id comes from `FORMAT`: no frame is needed to learn it.
//! [`super::walk`] says what the bytes between frames mean.

use std::io;
use std::path::{Path, PathBuf};

use rkyv::util::AlignedVec;

use super::block::BlockView;
use super::error::{StoreError, io_at};
use super::format::FORMAT_VERSION;
use super::frame::{
    ALIGN, FRAME_HEADER_LEN, FRAME_VERSION, FrameHeader, LogId, PAYLOAD_BYTES_MAX, put, u32_at, u64_at,
};
use super::medium::{Medium, MediumFile};
use crate::clock::Micros;
use crate::limits::{CLASS_NAME_BYTES_MAX, REWRITE_PIECE_BYTES};
use crate::model::SeqNo;

/// Bytes before the first frame.
pub const FILE_HEADER_LEN: usize = 80;

const FILE_MAGIC: &[u8; 8] = b"SALTCLOG";
/// Offset of the class's name in the header.
const NAME_AT: usize = 32;
/// Offset of the store id in the header.
const STORE_ID_AT: usize = 64;
/// Offset of the header's checksum.
const CRC_AT: usize = FILE_HEADER_LEN - 4;
const _: () = assert!(NAME_AT + CLASS_NAME_BYTES_MAX <= STORE_ID_AT && FILE_HEADER_LEN.is_multiple_of(ALIGN));
/// Bytes that a search for a frame reads first; each further read takes twice as many, up to [`SEARCH_BYTES_MAX`].
const SEARCH_BYTES: usize = 4096;
const SEARCH_BYTES_MAX: usize = 1 << 20;

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
    /// Describes the block of a frame.
    pub(super) fn of(view: &BlockView, header: &FrameHeader) -> Self {
        let (at_min, at_max) = view.rows().times();
        Self {
            offset: header.offset,
            len: u32::try_from(header.end() - header.offset).expect("the parts of a frame are bounded"),
            head_len: header.head_len,
            count: u32::from(header.count),
            first_seq: header.first_seq,
            last_seq: header.last_seq,
            at_min,
            at_max,
        }
    }

    /// Byte after the frame and its padding.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }
}

/// The header of a new file.
pub fn file_header(class_name: &str, id: LogId, created: Micros) -> [u8; FILE_HEADER_LEN] {
    let mut header = [0_u8; FILE_HEADER_LEN];
    put(&mut header, 0, FILE_MAGIC);
    put(&mut header, 8, &FORMAT_VERSION.to_le_bytes());
    put(&mut header, 16, &id.first_seq.0.to_le_bytes());
    put(&mut header, 24, &created.0.to_le_bytes());
    put(&mut header, NAME_AT, class_name.as_bytes());
    put(&mut header, STORE_ID_AT, &id.store_id.to_le_bytes());
    let crc = crc32fast::hash(header.get(..CRC_AT).expect("a whole header"));
    put(&mut header, CRC_AT, &crc.to_le_bytes());
    header
}

/// A log file open for reading; many threads may read at once.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: Box<dyn MediumFile>,
    created: Micros,
    id: LogId,
    /// The file holds the log from this byte on.
    base: u64,
}

/// What stands behind a frame's header.
pub(super) enum Content {
    /// A block; with its bodies, if they were asked for.
    Block(BlockView),
    /// Head or bodies do not match their checksums, or the file ends before.
    Damaged(&'static str),
    /// Checksums hold, and it is no block that this release can read.
    Unreadable(String),
}

/// What the header of a file says, if its checksum holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    bytes: [u8; FILE_HEADER_LEN],
}

impl Header {
    /// The log that it names.
    pub(super) fn id(&self) -> LogId {
        LogId { store_id: u64_at(&self.bytes, STORE_ID_AT), first_seq: SeqNo(u64_at(&self.bytes, 16)) }
    }

    fn created(&self) -> Micros {
        Micros(u64_at(&self.bytes, 24).cast_signed())
    }

    /// The class that it names.
    pub(super) fn class_name(&self) -> Option<&str> {
        let name = self.bytes.get(NAME_AT..NAME_AT + CLASS_NAME_BYTES_MAX)?.split(|b| *b == 0).next()?;
        std::str::from_utf8(name).ok()
    }

    /// What is wrong with it as the header of a segment's log; `None` if nothing is.
    pub(super) fn contradicts(&self, class_name: &str, id: LogId) -> Option<String> {
        let own = self.id();
        if own.store_id != id.store_id {
            let (own, other) = (own.store_id, id.store_id);
            return Some(format!("the header names store id {own:016x}, FORMAT names {other:016x}"));
        }
        (self.class_name() != Some(class_name) || own.first_seq != id.first_seq).then(|| {
            format!(
                "the header says that this is segment {}/{}",
                self.class_name().unwrap_or("?"),
                own.first_seq.0
            )
        })
    }
}

impl LogFile {
    /// Opens a file and looks at its header. A damaged header is reported and done without: the frames have
    /// checksums of their own, and the directory names class and number.
    pub fn open(medium: &dyn Medium, path: &Path, class_name: &str, id: LogId) -> Result<Self, StoreError> {
        let log = Self::bare(medium, path, id)?;
        let header = match log.header() {
            Err(error @ StoreError::Io { .. }) => {
                tracing::error!(%error, offset = 0, "cannot read the header of a log");
                None
            }
            header => header?,
        };
        let Some(header) = header else {
            tracing::error!(path = %path.display(), offset = 0, "the header of a log is damaged; its frames are read all the same");
            return Ok(log);
        };
        if let Some(what) = header.contradicts(class_name, id) {
            let what = format!("{what}: was a directory renamed or copied?");
            return Err(StoreError::Corrupt { path: path.to_owned(), offset: 0, what });
        }
        Ok(Self { created: header.created(), ..log })
    }

    /// Opens a file whatever it is.
    pub fn bare(medium: &dyn Medium, path: &Path, id: LogId) -> Result<Self, StoreError> {
        Ok(Self::of(path, medium.open(path).map_err(io_at("open", path))?, id))
    }

    /// A file that is open already.
    pub fn of(path: &Path, file: Box<dyn MediumFile>, id: LogId) -> Self {
        Self { path: path.to_owned(), file, created: Micros::default(), id, base: 0 }
    }

    /// The same file, which holds only the part of the log from its byte `base` on.
    pub(super) fn with_base(self, base: u64) -> Self {
        Self { base, ..self }
    }

    /// The file's header; `None` if it is damaged or this is no log. One of another version is an error.
    pub(super) fn header(&self) -> Result<Option<Header>, StoreError> {
        let mut bytes = [0_u8; FILE_HEADER_LEN];
        if !self.read(&mut bytes, 0)? || !bytes.starts_with(FILE_MAGIC) {
            return Ok(None);
        }
        let holds = |crc_at: usize| {
            crc32fast::hash(bytes.get(..crc_at).unwrap_or_default()) == u32_at(&bytes, crc_at)
        };
        let version = u32_at(&bytes, 8);
        // Headers of formats 1 and 2 had 64 bytes.
        if version != FORMAT_VERSION && (holds(CRC_AT) || holds(60)) {
            let (path, found) = (self.path.clone(), version.to_string());
            return Err(StoreError::Version { path, found, expected: FORMAT_VERSION });
        }
        Ok(holds(CRC_AT).then_some(Header { bytes }))
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Which log it is.
    pub fn id(&self) -> LogId {
        self.id
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

    /// The bytes of a frame, whose header was checked and whose content was not; `None` if there is no such frame.
    pub fn frame(&self, meta: &BlockMeta) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(header) = self.header_at(meta.offset)?.filter(|header| header.end() == meta.end()) else {
            return Ok(None);
        };
        let mut bytes = vec![0; meta.len as usize];
        // The padding of the last frame of a file may be cut off.
        let len = usize::try_from(header.bodies_at() - header.offset).unwrap_or(usize::MAX);
        let len = len.saturating_add(header.bodies_len as usize);
        let Some(part) = bytes.get_mut(..len) else { return Ok(None) };
        Ok(self.read(part, meta.offset)?.then_some(bytes))
    }

    fn view(&self, meta: &BlockMeta, with_bodies: bool) -> Result<BlockView, StoreError> {
        let what = match self.header_at(meta.offset)? {
            Some(header) if header.version == FRAME_VERSION => {
                match self.content(&header, meta.end(), with_bodies)? {
                    Content::Block(view) => return Ok(view),
                    Content::Damaged(what) => what.to_owned(),
                    Content::Unreadable(what) => what,
                }
            }
            _ => "the frame's header is damaged".to_owned(),
        };
        Err(self.corrupt(meta.offset, what))
    }

    pub(super) fn corrupt(&self, offset: u64, what: String) -> StoreError {
        StoreError::Corrupt { path: self.path.clone(), offset, what }
    }

    /// The header of the frame that begins at `offset`, if one does.
    fn header_at(&self, offset: u64) -> Result<Option<FrameHeader>, StoreError> {
        let mut bytes = [0_u8; FRAME_HEADER_LEN];
        Ok(if self.read(&mut bytes, offset)? {
            FrameHeader::read(&bytes, self.id, self.base, offset)
        } else {
            None
        })
    }

    /// The first frame that begins at `from` or behind it, below `size`. A candidate costs the check of its header.
    pub(super) fn next_header(&self, from: u64, size: u64) -> Result<Option<FrameHeader>, StoreError> {
        if let Some(header) = self.header_at(from)? {
            return Ok(Some(header));
        }
        let mut at = from + ALIGN as u64;
        let magic = self.id.magic();
        let mut chunk = vec![0_u8; SEARCH_BYTES];
        while at + FRAME_HEADER_LEN as u64 <= size {
            let want = usize::try_from(size - at).unwrap_or(usize::MAX).min(chunk.len());
            let Some(part) = chunk.get_mut(..want) else { break };
            if !self.read(part, at)? {
                break;
            }
            let last = part.len() - FRAME_HEADER_LEN;
            for place in (0..=last).step_by(ALIGN) {
                let bytes = part.get(place..).unwrap_or_default();
                if bytes.starts_with(&magic)
                    && let Some(header) = FrameHeader::read(bytes, self.id, self.base, at + place as u64)
                {
                    return Ok(Some(header));
                }
            }
            at += (last / ALIGN * ALIGN + ALIGN) as u64;
            chunk.resize((chunk.len() * 2).min(SEARCH_BYTES_MAX), 0);
        }
        Ok(None)
    }

    /// Reads and checks what stands behind a header, in a file that ends at `size`.
    pub(super) fn content(
        &self,
        header: &FrameHeader,
        size: u64,
        with_bodies: bool,
    ) -> Result<Content, StoreError> {
        let (head_len, bodies_len) = (header.head_len as usize, header.bodies_len as usize);
        if head_len.max(bodies_len) > PAYLOAD_BYTES_MAX {
            return Ok(Content::Unreadable("a part of it is longer than this release reads".to_owned()));
        }
        // Without its padding: it may be cut off the last frame of a file.
        if size < header.bodies_at() + u64::from(header.bodies_len) {
            return Ok(Content::Damaged("the file ends before the frame does"));
        }
        let mut head = AlignedVec::with_capacity(head_len);
        head.resize(head_len, 0);
        if !self.read(&mut head, header.head_at())? || crc32fast::hash(&head) != header.head_crc {
            return Ok(Content::Damaged("the head does not match its checksum"));
        }
        let mut bodies = None;
        if with_bodies {
            let mut bytes = vec![0; bodies_len];
            if !self.read(&mut bytes, header.bodies_at())? || crc32fast::hash(&bytes) != header.bodies_crc {
                return Ok(Content::Damaged("the bodies do not match their checksum"));
            }
            bodies = Some(bytes);
        }
        let view = match BlockView::new(head, bodies) {
            Ok(view) => view,
            Err(what) => {
                return Ok(Content::Unreadable(format!("checksums hold, but it is no block: {what}")));
            }
        };
        let rows = view.rows();
        let last_seq = rows.seq(view.len() - 1);
        if (rows.seq(0), last_seq, view.len())
            != (header.first_seq, header.last_seq, usize::from(header.count))
        {
            let what = "checksums hold, but its header and its block contradict each other";
            return Ok(Content::Unreadable(what.to_owned()));
        }
        Ok(Content::Block(view))
    }

    /// Fills `buffer` from `offset`; false if the file ends before.
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<bool, StoreError> {
        match self.file.read_exact_at(buffer, offset) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(why) => Err(StoreError::Io { action: "read", path: self.path.clone(), why }),
        }
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

    /// Writes what lies between two places once more, through `file`, which is this file open for writing. After a failed
    /// sync the kernel takes pages for written that are only in its memory; written again, the next sync has to store them.
    pub(super) fn write_again(&self, file: &dyn MediumFile, from: u64, to: u64) -> Result<(), StoreError> {
        let mut at = from;
        while at < to {
            let want = usize::try_from(to - at).unwrap_or(usize::MAX).min(REWRITE_PIECE_BYTES);
            let mut piece = vec![0_u8; want];
            if !self.read(&mut piece, at)? {
                return Err(self.corrupt(at, "the log became shorter while it was read".to_owned()));
            }
            file.write_all_at(&piece, at).map_err(io_at("write", &self.path))?;
            at += want as u64;
        }
        Ok(())
    }

    /// Copies what lies from `from` to `to` into a file of its own beside the log, for people to look at.
    pub(super) fn keep_copy(&self, medium: &dyn Medium, from: u64, to: u64) -> Result<PathBuf, StoreError> {
        let path = self.path.with_file_name(format!("{CUT_PREFIX}{from}"));
        let len = to.checked_sub(from).and_then(|len| usize::try_from(len).ok());
        let mut bytes = vec![0; len.ok_or(StoreError::Broken("a log ends before its last frame"))?];
        self.read(&mut bytes, from)?;
        // Not synced: nothing in it was acknowledged, and nobody misses it after a power cut.
        let written = medium.create(&path).and_then(|file| file.write_all_at(&bytes, 0));
        if let Err(error) = written {
            // Half a copy takes room that is perhaps what is lacking.
            let _ = medium.remove_file(&path);
            return Err(io_at("write", &path)(error));
        }
        Ok(path)
    }
}

/// Begins the name of a file with bytes that a start cut off a log; their offset in the log follows.
const CUT_PREFIX: &str = "log.cut-";

/// The offset in the log of the bytes that a file of this name holds, if it holds bytes that were cut off.
pub fn cut_offset(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix(CUT_PREFIX)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_of_the_store_and_the_class_that_its_header_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let id = LogId { store_id: 1, first_seq: SeqNo(7) };
        let opens = |class: &str, id| LogFile::open(&super::super::medium::Disk, &path, class, id).is_ok();
        let longest = "x".repeat(CLASS_NAME_BYTES_MAX);
        for class in ["jobs", "events", "chatter", &longest] {
            std::fs::write(&path, file_header(class, id, Micros(1))).unwrap();
            for other in ["jobs", "events", "chatter", &longest] {
                assert_eq!(opens(other, id), class == other, "{class} as {other}");
            }
            assert!(!opens(class, LogId { store_id: 2, ..id }));
            assert!(!opens(class, LogId { first_seq: SeqNo(8), ..id }));
        }
    }

    #[test]
    fn a_log_of_an_older_format_is_refused_by_its_version() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let id = LogId { store_id: 1, first_seq: SeqNo(7) };
        let mut old = [file_header("jobs", id, Micros(1)), [0; FILE_HEADER_LEN]].concat();
        put(&mut old, 8, &2_u32.to_le_bytes());
        let crc = crc32fast::hash(&old[..60]);
        put(&mut old, 60, &crc.to_le_bytes());
        std::fs::write(&path, old).unwrap();
        let error = LogFile::open(&super::super::medium::Disk, &path, "jobs", id).unwrap_err().to_string();
        assert!(error.contains("format 2") && error.contains("saltcellar import"), "{error}");
    }
}
