//! Rewriting: when a segment is sealed, its small blocks become full ones.
//!
//! A quiet master commits one return at a time, and each commit is a block with columns, names and a compressed body of its
//! own. Merged they are as dense as those of a flood. Blocks that are at least half full are copied as they are.
//!
//! # Steps
//!
//! ```text
//! <first-seq>.sealing/    the new log and its index are written and synced here; then the two directories exchange their names,
//!                         and what grew is removed under this one
//! ```
//!
//! Where the file system cannot exchange names:
//!
//! ```text
//! <first-seq>.sealed/     renamed to this: from here on it counts
//! <first-seq>.old/        the segment as it grew, renamed away; then .sealed gets its name, and .old is removed
//! <first-seq>.stale/      a .sealed that could not take its place, on its way out
//! ```
//!
//! # Invariant
//!
//! After a crash between any two steps [`recover`] finds the segment whole: `.sealing` is removed, `.sealed` wins over the segment as it
//! grew, which is not removed before. Nothing is removed before the change of names that made it superfluous is synced. Entries keep
//! their order, their numbers and their bytes.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::builder::{BlockBuilder, Packer};
use super::error::{StoreError, fits, io_at};
use super::format::{segment_seq, sync_dir};
use super::frame::{Position, place_frame, write_frame_at};
use super::index::{Facts, Layout, MemIndex, sealed};
use super::log::{BlockMeta, FILE_HEADER_LEN, LogFile, cut_offset, file_header};
use super::medium::{Medium, MediumFile};
use super::segment::Segment;
use super::walk::{Bounds, walk};
use crate::limits::{
    BLOCK_ENTRIES_MAX, BLOCK_RAW_BYTES, REWRITE_PIECE_BYTES, REWRITE_SHARE, ZSTD_LEVEL_SEALED,
};
use crate::model::Entry;

pub(super) const SEALING: &str = "sealing";
pub(super) const SEALED: &str = "sealed";
const OLD: &str = "old";
const STALE: &str = "stale";

fn beside(dir: &Path, extension: &str) -> PathBuf {
    dir.with_extension(extension)
}

/// Which blocks are merged, as ranges of neighbours; `None` if too little is to be gained.
pub(super) fn plan(segment: &Segment, index: &MemIndex) -> Result<Option<Vec<Range<usize>>>, StoreError> {
    let metas = index.blocks().metas();
    // A segment with damage stays as it is: what a later salvage may read is not thrown away.
    let mut end = FILE_HEADER_LEN as u64;
    for meta in metas {
        if meta.offset != end {
            return Ok(None);
        }
        end = meta.end();
    }
    if segment.log().size()? != end {
        return Ok(None);
    }
    let mut groups: Vec<Range<usize>> = Vec::new();
    let (mut raw, mut entries, mut merged_bytes) = (0, 0, 0);
    for (at, meta) in metas.iter().enumerate() {
        let (own, count) = (index.raw_bytes_of(at), meta.count as usize);
        let small = own * 2 < BLOCK_RAW_BYTES && count * 2 < BLOCK_ENTRIES_MAX;
        match groups.last_mut() {
            Some(group)
                if small
                    && raw > 0
                    && raw + own <= BLOCK_RAW_BYTES
                    && entries + count <= BLOCK_ENTRIES_MAX =>
            {
                if group.len() == 1 {
                    merged_bytes += metas.get(group.start).map_or(0, |meta| u64::from(meta.len));
                }
                merged_bytes += u64::from(meta.len);
                group.end = at + 1;
                (raw, entries) = (raw + own, entries + count);
            }
            _ => {
                groups.push(at..at + 1);
                // Behind a large block nothing is merged into it.
                (raw, entries) = if small { (own.max(1), count) } else { (0, 0) };
            }
        }
    }
    Ok((merged_bytes * REWRITE_SHARE >= end).then_some(groups))
}

/// Writes the segment anew, with merged blocks, and its index, beside itself. Durable when it returns; [`swap`] makes
/// it count. `None` if a block cannot be read.
pub(super) fn write(
    segment: &Segment,
    index: &MemIndex,
    groups: &[Range<usize>],
) -> Result<Option<Facts>, StoreError> {
    let (medium, dir) = (segment.medium(), beside(segment.dir(), SEALING));
    if dir.exists() {
        // Perhaps the segment as it grew: an earlier attempt exchanged the names, and could not sync them.
        sync_dir(medium, segment.dir().parent().unwrap_or(&dir))?;
        remove_old(medium, segment.dir(), SEALING)?;
    }
    let written = write_to(segment, index, groups, &dir);
    if !matches!(written, Ok(Some(_))) {
        // Half a segment takes space that is perhaps what was lacking.
        remove(medium, &dir)?;
    }
    written
}

fn write_to(
    segment: &Segment,
    index: &MemIndex,
    groups: &[Range<usize>],
    dir: &Path,
) -> Result<Option<Facts>, StoreError> {
    let medium = segment.medium();
    medium.make_dir(dir).map_err(io_at("create the directory", dir))?;
    let Some(layout) = write_log(segment, index, groups, dir)? else { return Ok(None) };
    let facts = sealed::write(index, Some(&layout), &dir.join("index"))?;
    sync_dir(medium, dir)?;
    Ok(Some(facts))
}

fn write_log(
    segment: &Segment,
    index: &MemIndex,
    groups: &[Range<usize>],
    dir: &Path,
) -> Result<Option<Layout>, StoreError> {
    let path = dir.join("log");
    let medium = segment.medium();
    let file = medium.create(&path).map_err(io_at("create", &path))?;
    let mut out = Output { path: &path, file: &*file, piece: Vec::new(), end: 0 };
    let (id, created) = (segment.log().id(), segment.log().created());
    out.piece.extend(file_header(&segment.class_name, id, created));
    let mut packer = Packer::with_level(ZSTD_LEVEL_SEALED).map_err(io_at("start zstd for", &path))?;
    let mut builder = BlockBuilder::default();
    let mut layout = Layout::default();
    for group in groups {
        let block = fits(layout.blocks.metas().len(), "a segment of over 4 G blocks")?;
        let metas = index.blocks().metas().get(group.clone()).expect("blocks of this segment");
        layout.became.extend(metas.iter().map(|_| block));
        let bits = group.clone().fold(0, |bits, at| bits | index.blocks().shapes(at));
        let meta = if let [one] = metas {
            let meta = BlockMeta { offset: out.at(), ..*one };
            segment.log().frame(one)?.map(|mut frame| {
                place_frame(&mut frame, id, Position::in_new_log(meta.offset));
                out.piece.extend_from_slice(&frame);
                meta
            })
        } else {
            merged(segment, metas, &mut builder, &mut packer, &mut out)?
        };
        let Some(meta) = meta else { return Ok(None) };
        layout.blocks.push(meta, bits);
        out.flush_full()?;
    }
    out.flush()?;
    file.sync_all().map_err(io_at("sync", &path))?;
    check(medium, segment, &layout, &path).map(|()| Some(layout))
}

/// Appends one block made of several.
fn merged(
    segment: &Segment,
    metas: &[BlockMeta],
    builder: &mut BlockBuilder,
    packer: &mut Packer,
    out: &mut Output<'_>,
) -> Result<Option<BlockMeta>, StoreError> {
    builder.clear();
    for meta in metas {
        let view = match segment.log().block(meta) {
            Ok(view) => view,
            Err(StoreError::Corrupt { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let rows = view.rows();
        for at in 0..view.len() {
            let (tag, jid) = (rows.tag(at), rows.jid(at));
            let Ok(body) = rows.body(at) else { return Ok(None) };
            let (kind, source, flags) = (rows.kind(at), rows.source(at), rows.flags(at));
            let (minion, fun, retcode) = (rows.minion(at), rows.fun(at), rows.retcode(at));
            let (arrived, tag, jid) = (rows.at(at), tag.as_slice(), jid.as_str());
            builder.push(
                rows.seq(at),
                &Entry { kind, source, flags, at: arrived, tag, jid, minion, fun, retcode, body },
            )?;
        }
    }
    let ((first_seq, last_seq), (at_min, at_max)) = (builder.seqs(), builder.times());
    let packed = builder.finish(packer)?;
    let offset = out.at();
    let (id, seqs) = (segment.log().id(), (first_seq, last_seq));
    let (len, head_len) = write_frame_at(&mut out.piece, &packed, seqs, builder.len(), (id, offset))?;
    let count = fits(builder.len(), "a block has over 4 G entries")?;
    Ok(Some(BlockMeta { offset, len, head_len, count, first_seq, last_seq, at_min, at_max }))
}

/// Reads the new log through before the old one goes: every block is there, and has its entries.
fn check(medium: &dyn Medium, segment: &Segment, layout: &Layout, path: &Path) -> Result<(), StoreError> {
    let log = LogFile::open(medium, path, &segment.class_name, segment.log().id())?;
    let mut expected = layout.blocks.metas().iter();
    let mut wrong = None;
    let walked = walk(&log, Bounds::of_log(log.size()?), true, |meta, view| {
        if expected.next() != Some(meta) || (0..view.len()).any(|at| view.rows().body(at).is_err()) {
            wrong.get_or_insert(meta.offset);
        }
        None
    })?
    .finished();
    let missing = expected.next().map(|meta| meta.offset);
    let damaged = walked.damaged.iter().chain(&walked.tail).map(|stretch| stretch.offset).next();
    match wrong.or(missing).or(damaged) {
        Some(offset) => {
            let what = "a block that was just written is not as it should be".to_owned();
            Err(StoreError::Corrupt { path: path.to_owned(), offset, what })
        }
        None => Ok(()),
    }
}

/// A log being written.
struct Output<'a> {
    path: &'a Path,
    file: &'a dyn MediumFile,
    piece: Vec<u8>,
    end: u64,
}

impl Output<'_> {
    /// Where the next byte goes.
    fn at(&self) -> u64 {
        self.end + self.piece.len() as u64
    }

    fn flush_full(&mut self) -> Result<(), StoreError> {
        if self.piece.len() >= REWRITE_PIECE_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.file.write_all_at(&self.piece, self.end).map_err(io_at("write", self.path))?;
        self.end = self.at();
        self.piece.clear();
        Ok(())
    }
}

/// Puts what [`write`] made into the place of the segment.
pub(super) fn swap(medium: &dyn Medium, dir: &Path) -> Result<(), StoreError> {
    let (sealing, sealed) = (beside(dir, SEALING), beside(dir, SEALED));
    let parent = dir.parent().unwrap_or(dir);
    if !sealed.exists() {
        match medium.exchange(&sealing, dir) {
            Ok(()) => {
                sync_dir(medium, parent)?;
                return remove_old(medium, dir, SEALING);
            }
            Err(why) if is_unsupported(&why) => {}
            Err(why) => return Err(io_at("exchange", &sealing)(why)),
        }
    }
    if sealed.exists() {
        // An earlier attempt came no further. Half removed it would still win after a crash, so it loses its name first.
        let stale = beside(dir, STALE);
        remove(medium, &stale)?;
        medium.rename(&sealed, &stale).map_err(io_at("rename", &sealed))?;
        sync_dir(medium, parent)?;
        remove(medium, &stale)?;
    }
    medium.rename(&sealing, &sealed).map_err(io_at("rename", &sealing))?;
    sync_dir(medium, parent)?;
    take_place(medium, dir)
}

/// Lets `.sealed` take the place of the segment as it grew.
fn take_place(medium: &dyn Medium, dir: &Path) -> Result<(), StoreError> {
    let (sealed, old) = (beside(dir, SEALED), beside(dir, OLD));
    if dir.exists() {
        remove_old(medium, dir, OLD)?;
        medium.rename(dir, &old).map_err(io_at("rename", dir))?;
    }
    medium.rename(&sealed, dir).map_err(io_at("rename", &sealed))?;
    sync_dir(medium, dir.parent().unwrap_or(dir))?;
    remove_old(medium, dir, OLD)
}

/// Removes the segment as it grew, which has the name `extension` now, but for what starts cut off its log: that moves into the
/// segment that took its place.
fn remove_old(medium: &dyn Medium, dir: &Path, extension: &str) -> Result<(), StoreError> {
    let old = beside(dir, extension);
    let items = match std::fs::read_dir(&old) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        items => items.map_err(io_at("list", &old))?,
    };
    let mut moved = false;
    for item in items {
        let path = item.map_err(io_at("list", &old))?.path();
        let place = dir.join(path.file_name().unwrap_or_default());
        if cut_offset(&path).is_some() && !place.exists() {
            medium.rename(&path, &place).map_err(io_at("rename", &path))?;
            moved = true;
        }
    }
    if moved {
        sync_dir(medium, dir)?;
    }
    remove(medium, &old)
}

/// Can the file system, or the kernel, not exchange two names?
fn is_unsupported(why: &std::io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(why);
    why.kind() == std::io::ErrorKind::Unsupported || errno == Some(rustix::io::Errno::INVAL)
}

fn remove(medium: &dyn Medium, dir: &Path) -> Result<(), StoreError> {
    match medium.remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(StoreError::Io { action: "remove", path: dir.to_owned(), why: e })
        }
        _ => Ok(()),
    }
}

/// Brings the directory of a class in order after a crash in the middle of a rewriting.
pub(super) fn recover(medium: &dyn Medium, class_dir: &Path) -> Result<(), StoreError> {
    let listed = std::fs::read_dir(class_dir).map_err(io_at("list", class_dir))?;
    let mut left: Vec<(String, PathBuf)> = Vec::new();
    for item in listed {
        let path = item.map_err(io_at("list", class_dir))?.path();
        let is_segment = path.file_stem().and_then(|name| name.to_str()).and_then(segment_seq).is_some();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if let Some(extension) = extension.filter(|_| is_segment) {
            left.push((extension.to_owned(), path.with_extension("")));
        }
    }
    if !left.is_empty() {
        // Nothing is removed before the names that the daemon changed last are on disk: a power cut could bring the old ones back.
        sync_dir(medium, class_dir)?;
    }
    // `old` comes before `sealed`, and that is too early: it goes only when the segment is there again.
    for wanted in [SEALED, OLD, SEALING, STALE] {
        for (_, dir) in left.iter().filter(|(extension, _)| extension == wanted) {
            tracing::warn!(dir = %dir.display(), step = wanted, "a segment was being sealed when the daemon ended");
            match wanted {
                SEALED => take_place(medium, dir)?,
                OLD if !dir.exists() => {
                    let old = beside(dir, OLD);
                    medium.rename(&old, dir).map_err(io_at("rename", &old))?;
                }
                // After an exchange of names, `.sealing` is what grew.
                OLD | SEALING if dir.exists() => remove_old(medium, dir, wanted)?,
                other => remove(medium, &beside(dir, other))?,
            }
        }
    }
    Ok(())
}
