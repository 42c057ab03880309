//! Compaction: when a segment is sealed, its small blocks are merged.
//!
//! On a quiet master each return is a commit of its own, and so a block with its own columns,
//! dictionary and compressed bodies. Merged blocks are as dense as those written under load. Blocks
//! that are at least half full are copied.
//!
//! # Steps
//!
//! ```text
//! <first-seq>.sealing/    new log and index, written and synced; then exchanged with the segment's directory (RENAME_EXCHANGE),
//!                         and the old segment is removed under this name
//! ```
//!
//! Without support for the exchange:
//!
//! ```text
//! <first-seq>.sealed/     .sealing is renamed to this: the commit point
//! <first-seq>.old/        the old segment, renamed; then .sealed gets the segment's name, and .old is removed
//! <first-seq>.stale/      the .sealed of an earlier failed attempt, before its removal
//! ```
//!
//! # Invariant
//!
//! After a crash between any two steps [`recover`] restores a complete segment: `.sealing` is
//! removed, `.sealed` supersedes the old segment, which is removed last. Sequence numbers, order
//! and bodies of entries do not change. Nothing is removed before the rename that made it
//! superfluous is synced.

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::base::limits::{BLOCK_ENTRIES_MAX, BLOCK_RAW_BYTES, REWRITE_SHARE, ZSTD_LEVEL_SEALED};
use crate::store::error::{StoreError, fits, io_at};
use crate::store::format::{list, name_of, remove_dir, segment_seq, sync_dir};
use crate::store::index::{Layout, MemIndex, SegmentMetadata, sealed};
use crate::store::log::builder::{BlockBuilder, Packer};
use crate::store::log::file::{BlockMeta, FILE_HEADER_LEN, LogFile, cut_offset, file_header};
use crate::store::log::walk::{Bounds, walk};
use crate::store::log::writer::LogWriter;
use crate::store::segment::{INDEX, Segment};
use crate::store::vfs::Fs;

pub(in crate::store) const SEALING: &str = "sealing";
pub(in crate::store) const SEALED: &str = "sealed";
const OLD: &str = "old";
const STALE: &str = "stale";

fn beside(dir: &Path, extension: &str) -> PathBuf {
    dir.with_extension(extension)
}

/// Groups neighbouring blocks to merge; `None` if the gain is too small.
pub(in crate::store) fn plan(
    segment: &Segment,
    index: &MemIndex,
) -> Result<Option<Vec<Range<usize>>>, StoreError> {
    let metas = index.blocks().metas();
    // A segment with damage is not rewritten: a later salvage may recover more from it.
    let mut end = FILE_HEADER_LEN as u64;
    for meta in metas {
        if meta.offset != end {
            return Ok(None);
        }
        end = meta.end();
    }
    // Bytes behind the last block: also damage, or space that was not cut off.
    if segment.log().size()? != end {
        return Ok(None);
    }
    let mut groups: Vec<Range<usize>> = Vec::new();
    let (mut raw, mut entries, mut merged_bytes) = (0, 0, 0);

    // Neighbors only: the order of entries does not change.
    for (at, meta) in metas.iter().enumerate() {
        let (own, count) = (index.raw_bytes_of(at), meta.count as usize);

        let small = own * 2 < BLOCK_RAW_BYTES && count * 2 < BLOCK_ENTRIES_MAX;
        // A group grows while its block stays within the limits of one written under load.
        match groups.last_mut() {
            Some(group)
                if small
                    && raw > 0
                    && raw + own <= BLOCK_RAW_BYTES
                    && entries + count <= BLOCK_ENTRIES_MAX =>
            {
                // The first block of a group counts once it has company: a block that is copied
                // alone gains nothing.
                if group.len() == 1 {
                    merged_bytes += metas.get(group.start).map_or(0, |meta| u64::from(meta.len));
                }

                merged_bytes += u64::from(meta.len);
                group.end = at + 1;
                (raw, entries) = (raw + own, entries + count);
            }
            _ => {
                groups.push(at..at + 1);
                // Nothing is merged into a large block.
                (raw, entries) = if small { (own.max(1), count) } else { (0, 0) };
            }
        }
    }

    // Copying is not worth it below this share; the limit has the reason.
    Ok((merged_bytes * REWRITE_SHARE >= end).then_some(groups))
}

/// Writes the merged log and its index beside the segment. Durable on return; [`swap`] puts it in
/// place. `None` if a block cannot be read.
pub(in crate::store) fn write(
    segment: &Segment,
    index: &MemIndex,
    groups: &[Range<usize>],
) -> Result<Option<SegmentMetadata>, StoreError> {
    let (fs, dir) = (segment.fs(), beside(segment.dir(), SEALING));

    if dir.exists() {
        // Perhaps the segment as it grew: an earlier attempt exchanged the names, and could not
        // sync them.
        sync_dir(fs, segment.dir().parent().unwrap_or(&dir))?;
        remove_old(fs, segment.dir(), SEALING)?;
    }

    let written = write_to(segment, index, groups, &dir);
    // Nothing refers to it yet.
    if !matches!(written, Ok(Some(_))) {
        // A partial copy may occupy the space that is missing.
        remove_dir(fs, &dir)?;
    }
    written
}

fn write_to(
    segment: &Segment,
    index: &MemIndex,
    groups: &[Range<usize>],
    dir: &Path,
) -> Result<Option<SegmentMetadata>, StoreError> {
    let fs = segment.fs();

    fs.make_dir(dir)
        .map_err(io_at("create the directory", dir))?;

    let Some(layout) = write_log(segment, index, groups, dir)? else {
        return Ok(None);
    };

    let (path, layout) = (dir.join(INDEX), (index, Some(&layout)));
    let metadata = sealed::write(fs, &path, layout, segment.log().id(), Vec::new())?;
    // The names in `.sealing`, before it is renamed.
    sync_dir(fs, dir)?;
    Ok(Some(metadata))
}

fn write_log(
    segment: &Segment,
    index: &MemIndex,
    groups: &[Range<usize>],
    dir: &Path,
) -> Result<Option<Layout>, StoreError> {
    let path = dir.join("log");

    let (fs, id) = (segment.fs(), segment.log().id());
    let mut out = LogWriter::create(fs, &path, id)?;

    out.append(&file_header(
        &segment.class_name,
        id,
        segment.log().created(),
    ))?;

    let mut packer =
        Packer::with_level(ZSTD_LEVEL_SEALED).map_err(io_at("start zstd for", &path))?;
    let mut builder = BlockBuilder::default();

    let mut layout = Layout::default();
    for group in groups {
        let block = fits(layout.blocks.metas().len(), "a segment has over 4 G blocks")?;
        let metas = index
            .blocks()
            .metas()
            .get(group.clone())
            .expect("groups are ranges of blocks");

        layout.became.extend(metas.iter().map(|_| block));
        let bits = group
            .clone()
            .fold(0, |bits, at| bits | index.blocks().templates(at));

        // A block of its own is copied with its checksums and bodies as they are; only its place is
        // new.
        let meta = if let [one] = metas {
            let meta = BlockMeta {
                offset: out.end(),
                ..*one
            };
            let frame = segment.log().frame(one)?;
            frame
                .map(|frame| out.append_frame(frame).map(|()| meta))
                .transpose()?
        } else {
            merged(segment, metas, &mut builder, &mut packer, &mut out)?
        };
        // Not sealed in this form: the segment keeps its log, and readers report the block.
        let Some(meta) = meta else { return Ok(None) };
        layout.blocks.push(meta, bits);
    }
    // Read back from the disk, because the old log is removed next.
    out.finish()?;
    check(fs, segment, &layout, &path).map(|()| Some(layout))
}

/// Appends one block merged from several; `None` if one cannot be read.
fn merged(
    segment: &Segment,
    metas: &[BlockMeta],
    builder: &mut BlockBuilder,
    packer: &mut Packer,
    out: &mut LogWriter,
) -> Result<Option<BlockMeta>, StoreError> {
    builder.clear();

    for meta in metas {
        // One block after the other: a group has the size of one block.
        let view = match segment.log().block(meta) {
            Ok(view) => view,
            Err(StoreError::Corrupt { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let rows = view.rows();
        for at in 0..view.len() {
            let (tag, jid) = (rows.tag(at), rows.jid(at));
            // Checksums hold, but the body cannot be decompressed.
            let Ok(body) = rows.body(at) else {
                return Ok(None);
            };
            builder.push(rows.seq(at), &rows.entry(at, &tag, &jid, body))?;
        }
    }

    out.append_block(builder, packer).map(Some)
}

/// Verifies the new log before the old one is removed: all blocks and bodies are readable.
fn check(fs: &dyn Fs, segment: &Segment, layout: &Layout, path: &Path) -> Result<(), StoreError> {
    let log = LogFile::open(fs, path, &segment.class_name, segment.log().id())?;
    let mut expected = layout.blocks.metas().iter();

    let mut wrong = None;
    let walked = walk(&log, Bounds::of_log(log.size()?), true, |meta, view| {
        // Heads and bodies were checked by the walk; only decompression is left to try.
        if expected.next() != Some(meta) || (0..view.len()).any(|at| view.rows().body(at).is_err())
        {
            wrong.get_or_insert(meta.offset);
        }
        None
    })?
    .finished();
    // A log that ends early leaves blocks that were expected.
    let missing = expected.next().map(|meta| meta.offset);
    let damaged = walked
        .damaged
        .iter()
        .chain(&walked.tail)
        .map(|stretch| stretch.offset)
        .next();

    match wrong.or(missing).or(damaged) {
        Some(offset) => {
            let what = "verification after write failed".to_owned();
            Err(StoreError::Corrupt {
                path: path.to_owned(),
                offset,
                what,
            })
        }
        None => Ok(()),
    }
}

/// Replaces the segment by the result of [`write`].
pub(in crate::store) fn swap(fs: &dyn Fs, dir: &Path) -> Result<(), StoreError> {
    let (sealing, sealed) = (beside(dir, SEALING), beside(dir, SEALED));

    let parent = dir.parent().unwrap_or(dir);
    // A `.sealed` of an earlier attempt must be dealt with first: it would win after a crash.
    if !sealed.exists() {
        match fs.exchange(&sealing, dir) {
            Ok(()) => {
                // The exchange is durable before the old segment is removed.
                sync_dir(fs, parent)?;
                return remove_old(fs, dir, SEALING);
            }
            // The steps below do the same with three renames.
            Err(why) if is_unsupported(&why) => {}
            Err(why) => return Err(io_at("exchange", &sealing)(why)),
        }
    }

    if sealed.exists() {
        // Left by a failed attempt. Rename it first: partially removed, it would still win after a
        // crash.
        let stale = beside(dir, STALE);
        remove_dir(fs, &stale)?;

        fs.rename(&sealed, &stale)
            .map_err(io_at("rename", &sealed))?;
        sync_dir(fs, parent)?;
        remove_dir(fs, &stale)?;
    }

    // The commit point: from here on a start completes the swap.
    fs.rename(&sealing, &sealed)
        .map_err(io_at("rename", &sealing))?;
    sync_dir(fs, parent)?;

    take_place(fs, dir)
}

/// Moves `.sealed` to the segment's name and removes the old segment.
fn take_place(fs: &dyn Fs, dir: &Path) -> Result<(), StoreError> {
    let (sealed, old) = (beside(dir, SEALED), beside(dir, OLD));
    // A crash between these renames leaves `.sealed`, which `recover` puts in place.
    if dir.exists() {
        remove_old(fs, dir, OLD)?;
        fs.rename(dir, &old).map_err(io_at("rename", dir))?;
    }

    fs.rename(&sealed, dir).map_err(io_at("rename", &sealed))?;
    // Durable before the old segment is removed.
    sync_dir(fs, dir.parent().unwrap_or(dir))?;
    remove_old(fs, dir, OLD)
}

/// Removes the old segment, now named `extension`. Files with bytes that recovery cut from its log
/// move to the new segment.
fn remove_old(fs: &dyn Fs, dir: &Path, extension: &str) -> Result<(), StoreError> {
    let old = beside(dir, extension);
    let mut moved = false;
    // What a start once cut off is kept for the administrator.
    for path in list(&old)? {
        let place = dir.join(name_of(&path));
        if cut_offset(&path).is_some() && !place.exists() {
            fs.rename(&path, &place).map_err(io_at("rename", &path))?;
            moved = true;
        }
    }

    if moved {
        sync_dir(fs, dir)?;
    }
    remove_dir(fs, &old)
}

/// Whether the file system or the kernel lacks support for RENAME_EXCHANGE.
fn is_unsupported(why: &std::io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(why);
    why.kind() == std::io::ErrorKind::Unsupported || errno == Some(rustix::io::Errno::INVAL)
}

/// Completes or reverts interrupted compactions in the directory of a class.
pub(in crate::store) fn recover(fs: &dyn Fs, class_dir: &Path) -> Result<(), StoreError> {
    let mut left: Vec<(String, PathBuf)> = Vec::new();
    for path in list(class_dir)? {
        let is_segment = path
            .file_stem()
            .and_then(|name| name.to_str())
            .and_then(segment_seq)
            .is_some();

        let extension = path.extension().and_then(|extension| extension.to_str());
        if let Some(extension) = extension.filter(|_| is_segment) {
            left.push((extension.to_owned(), path.with_extension("")));
        }
    }

    if !left.is_empty() {
        // The renames of the previous run must be durable before anything is removed: a power loss
        // could undo them.
        sync_dir(fs, class_dir)?;
    }

    // `.sealed` first: `.old` is removed only once the segment is complete.
    for wanted in [SEALED, OLD, SEALING, STALE] {
        for (_, dir) in left.iter().filter(|(extension, _)| extension == wanted) {
            tracing::warn!(dir = %dir.display(), step = wanted, "completing an interrupted seal");
            match wanted {
                // Only between two renames without a `.sealed`: the old segment is the only one.
                SEALED => take_place(fs, dir)?,

                OLD if !dir.exists() => {
                    let old = beside(dir, OLD);
                    fs.rename(&old, dir).map_err(io_at("rename", &old))?;
                }
                // After the exchange, `.sealing` is the old segment.
                OLD | SEALING if dir.exists() => remove_old(fs, dir, wanted)?,
                // A copy that was never complete, or the rest of a removal.
                other => remove_dir(fs, &beside(dir, other))?,
            }
        }
    }
    Ok(())
}
