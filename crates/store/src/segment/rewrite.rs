//! Compaction: when a segment is sealed, its small blocks are merged.
//!
//! On a quiet master each return is a separate commit, and therefore a block with its own columns,
//! dictionary and compressed bodies. Merged blocks are as dense as blocks written under load.
//! Blocks that are at least half full are copied.
//!
//! # Steps
//!
//! The copy is written to `<first-seq>.<n + 1>.new`, with its index, synced, and renamed to
//! `<first-seq>.<n + 1>`: the commit point. Then the old generation is removed.
//!
//! # Invariant
//!
//! A directory without the suffix is complete, and of several generations the highest one counts. A
//! crash therefore leaves one of two states, which [`settle`] ends: a copy with the suffix is
//! removed, and so is a generation below another one. Sequence numbers, order and bodies of entries
//! do not change. Nothing is removed before the rename that made it superfluous is synced.

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::error::{StoreError, fits, io_at};
use crate::format::{
    Generation, NEW, generation_of, generations, is_dropped, list, name_of, next_generation,
    remove_dir, sync_dir, unfinished,
};
use crate::index::{Layout, MemIndex, sealed};
use crate::log::builder::{BlockBuilder, Packer};
use crate::log::file::{BlockMeta, FILE_HEADER_LEN, LogFile, cut_offset};
use crate::log::frame::LogId;
use crate::log::walk::{Bounds, walk};
use crate::log::writer::LogWriter;
use crate::segment::{INDEX, Segment};
use crate::vfs::Fs;
use saltcellar_base::limits::{
    BLOCK_ENTRIES_MAX, BLOCK_RAW_BYTES, REWRITE_SHARE, ZSTD_LEVEL_SEALED,
};
use saltcellar_model::SeqNo;

/// Groups neighbouring blocks to merge; `None` if the gain is too small.
pub(crate) fn plan(
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
        let own = index.raw_bytes_of(at);
        let count = meta.count as usize;

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
                raw += own;
                entries += count;
            }
            _ => {
                groups.push(at..at + 1);
                // Nothing is merged into a large block.
                (raw, entries) = if small { (own.max(1), count) } else { (0, 0) };
            }
        }
    }

    // Copying is not worth it below this share; see the limit for the reason.
    Ok((merged_bytes * REWRITE_SHARE >= end).then_some(groups))
}

/// Writes the merged log and its index next to the segment, durably; [`commit`] makes it the
/// segment. Returns its future directory, and what its index contains for the state database.
/// `None` if a block cannot be read.
pub(crate) fn write(
    segment: &Segment,
    index: &MemIndex,
    groups: &[Range<usize>],
) -> Result<Option<(PathBuf, sealed::Written)>, StoreError> {
    let fs = segment.fs();
    let dir = next_generation(class_dir_of(segment.dir()), segment.first_seq)?;

    let new = unfinished(&dir);
    // Left by an earlier attempt.
    remove_dir(fs, &new)?;
    let written = write_to(segment, index, groups, &new);
    // Nothing refers to it yet.
    if !matches!(written, Ok(Some(_))) {
        // A partial copy may occupy the space that is missing.
        remove_dir(fs, &new)?;
    }
    Ok(written?.map(|written| (dir, written)))
}

/// The class's directory, from a segment's directory.
fn class_dir_of(dir: &Path) -> &Path {
    dir.parent().unwrap_or(dir)
}

fn write_to(
    segment: &Segment,
    index: &MemIndex,
    groups: &[Range<usize>],
    dir: &Path,
) -> Result<Option<sealed::Written>, StoreError> {
    let fs = segment.fs();

    fs.make_dir(dir)
        .map_err(io_at("create the directory", dir))?;

    let Some(layout) = write_log(segment, index, groups, dir)? else {
        return Ok(None);
    };

    let path = dir.join(INDEX);
    let layout = (index, Some(&layout));
    let written = sealed::write(fs, &path, layout, segment.log().id(), Vec::new())?;
    // The names in it, before it is renamed.
    sync_dir(fs, dir)?;
    Ok(Some(written))
}

fn write_log(
    segment: &Segment,
    index: &MemIndex,
    groups: &[Range<usize>],
    dir: &Path,
) -> Result<Option<Layout>, StoreError> {
    let path = dir.join("log");

    let fs = segment.fs();
    let id = segment.log().id();
    let created = segment.log().created();
    let mut out = LogWriter::create(fs, &path, &segment.class_name, id, created)?;

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

        // A block that is not merged is copied with its checksums and bodies as they are; only its
        // place is new.
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
        // One block after the other: a group is at most as large as one block.
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

/// Makes the result of [`write()`] the segment: the directory gets its name, durably.
pub(crate) fn commit(fs: &dyn Fs, dir: &Path) -> Result<(), StoreError> {
    fs.rename(&unfinished(dir), dir)
        .map_err(io_at("rename to", dir))?;
    sync_dir(fs, class_dir_of(dir)).inspect_err(|_| revoke(fs, dir))
}

/// Takes the name of [`commit`] away again, because the segment is used in its old form. Each attempt
/// to seal it would otherwise leave a copy. May fail, and is not durable: after a start the copy may
/// count, which has the same entries. A drop removes it ([`remove_others`]).
pub(crate) fn revoke(fs: &dyn Fs, dir: &Path) {
    if let Err(error) = fs.rename(dir, &unfinished(dir)) {
        tracing::warn!(dir = %dir.display(), %error, "cannot rename the unused copy of a segment, it takes up space until the segment is sealed or deleted");
    }
}

/// Removes the generations below that in `dir`, which must be durable. Files with bytes that
/// recovery cut from their logs move to it.
pub(crate) fn remove_older(
    fs: &dyn Fs,
    dir: &Path,
    class_name: &str,
    id: LogId,
) -> Result<(), StoreError> {
    let own = generation_of(name_of(dir)).map(|(_, number)| number);
    let is_older = |other: &Generation| own.is_some_and(|own| other.number < own);
    remove_generations(fs, dir, class_name, id, is_older)
}

/// As [`remove_older`], and the generations above that in `dir`, before the segment is dropped: one of
/// a seal that failed behind [`commit`] would come back in its place.
pub(crate) fn remove_others(
    fs: &dyn Fs,
    dir: &Path,
    class_name: &str,
    id: LogId,
) -> Result<(), StoreError> {
    remove_generations(fs, dir, class_name, id, |_| true)
}

fn remove_generations(
    fs: &dyn Fs,
    dir: &Path,
    class_name: &str,
    id: LogId,
    is_superfluous: impl Fn(&Generation) -> bool,
) -> Result<(), StoreError> {
    for old in generations(class_dir_of(dir))? {
        let is_other = old.first_seq == id.first_seq && old.dir != dir;
        // Another segment that was moved here must not be removed.
        if !is_other
            || !is_superfluous(&old)
            || misplaced(fs, &old, class_name, id.store_id)?.is_some()
        {
            continue;
        }

        let mut moved = false;
        // What a start once cut off is kept for the administrator.
        for path in list(&old.dir)? {
            let place = dir.join(name_of(&path));
            if cut_offset(&path).is_some() && !place.exists() {
                fs.rename(&path, &place).map_err(io_at("rename", &path))?;
                moved = true;
            }
        }
        if moved {
            sync_dir(fs, dir)?;
        }
        remove_dir(fs, &old.dir)?;
    }
    Ok(())
}

/// Why the log in a directory does not match its name, if its header can be read.
fn misplaced(
    fs: &dyn Fs,
    generation: &Generation,
    class_name: &str,
    store_id: u64,
) -> Result<Option<String>, StoreError> {
    // The rest of a removal.
    if !generation.has_log() {
        return Ok(None);
    }

    let id = LogId {
        store_id,
        first_seq: generation.first_seq,
    };

    let log = LogFile::bare(fs, &generation.dir.join("log"), id)?;
    Ok(log
        .header()?
        .and_then(|header| header.mismatch(class_name, id)))
}

/// Ends what was interrupted in the directory of a class; returns the segments with a log,
/// ascending, and the first numbers of those that have lost theirs. Of several generations of a
/// segment only the highest one is left, and any that belong elsewhere.
pub(crate) fn settle(
    fs: &dyn Fs,
    class_dir: &Path,
    class_name: &str,
    store_id: u64,
) -> Result<(Vec<Generation>, Vec<SeqNo>), StoreError> {
    let is_unfinished = |path: &PathBuf| {
        let name = name_of(path).strip_suffix(NEW);
        name.is_some_and(|name| generation_of(name).is_some())
    };
    let left: Vec<PathBuf> = list(class_dir)?.into_iter().filter(is_unfinished).collect();
    let found = generations(class_dir)?;
    let is_double = |pair: &[Generation]| {
        pair.first().map(|one| one.first_seq) == pair.last().map(|other| other.first_seq)
    };

    if !left.is_empty() || found.windows(2).any(is_double) {
        tracing::warn!(dir = %class_dir.display(), "interrupted seal found, completing it");
        // The renames of the previous run must be durable before anything is removed: a power loss
        // could undo them.
        sync_dir(fs, class_dir)?;
    }
    for path in left {
        remove_dir(fs, &path)?;
    }

    let (mut kept, mut without_log) = (Vec::new(), Vec::new());
    for of_segment in found.chunk_by(|one, next| one.first_seq == next.first_seq) {
        let mut logs: Vec<&Generation> = of_segment.iter().filter(|one| one.has_log()).collect();
        // The usual case: one, and the caller checks its header.
        if logs.len() > 1 {
            let mut ours = None;
            for log in &logs {
                if misplaced(fs, log, class_name, store_id)?.is_none() {
                    ours = Some(*log);
                }
            }
            if let Some(ours) = ours {
                let first_seq = ours.first_seq;
                let id = LogId {
                    store_id,
                    first_seq,
                };
                remove_older(fs, &ours.dir, class_name, id)?;
                logs.retain(|log| log.dir == ours.dir || log.has_log());
            }
        } else if let (Some(only), true) = (logs.first(), of_segment.len() > 1) {
            let first_seq = only.first_seq;
            let id = LogId {
                store_id,
                first_seq,
            };
            // What remains of an interrupted removal contains no log.
            remove_older(fs, &only.dir, class_name, id)?;
        }

        match (logs.is_empty(), of_segment.first()) {
            // The retainer finishes the drop.
            (true, _) if of_segment.iter().any(|one| is_dropped(&one.dir)) => {}
            (true, Some(lost)) => without_log.push(lost.first_seq),
            _ => kept.extend(logs.into_iter().cloned()),
        }
    }
    Ok((kept, without_log))
}
