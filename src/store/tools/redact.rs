//! `redact-keys`: replaces bodies of stored entries, segment by segment.
//!
//! An affected segment is written anew beside itself and swapped in, with the steps and names of
//! `rewrite`: after a crash at any point, the next start or the next run finds it complete. Its
//! index and `state/` are removed before and rebuilt from the log when the store is opened.
//!
//! # Invariant
//!
//! Only bodies change; sequence numbers, times, tags and names of entries do not. Unaffected frames
//! and bytes outside of good frames are copied as they are, except that known texts in the latter
//! are replaced.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::layout::{self, SegmentFiles};
use super::{ToolError, Watch, files};
use crate::base::limits::LOCK_TIMEOUT;
use crate::model::{Entry, Replaced};
use crate::store::error::io_at;
use crate::store::format::remove_dir;
use crate::store::log::block::BlockView;
use crate::store::log::builder::{BlockBuilder, Packer};
use crate::store::log::file::{LogFile, cut_offset};
use crate::store::log::frame::{ALIGN, FrameHeader, LogId, Position, place_frame};
use crate::store::log::walk::{self, Bounds};
use crate::store::log::writer::LogWriter;
use crate::store::segment::{INDEX, INDEX_DAMAGED, removal, remove_file, rewrite};
use crate::store::vfs::Disk;
use crate::store::{Opened, Options, Store, StoreError, format};

/// A replacement of parts of entries.
pub(crate) trait Redact {
    /// The replacement for parts of an entry; `None` to keep it.
    fn entry(&self, entry: &Entry<'_>) -> Option<Replaced>;

    /// Replaces known texts in bytes outside of entries, in place; returns their number.
    fn bytes(&self, bytes: &mut [u8]) -> usize;
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RedactReport {
    pub(crate) segments: u64,
    pub(crate) segments_affected: u64,
    pub(crate) entries: u64,
    /// Files that cannot be searched: they contain damaged frames or have another format.
    pub(crate) unsearchable: Vec<PathBuf>,
}

/// Searches without changes, also beside a running daemon.
pub(crate) fn dry_run(
    dir: &Path,
    clean: &dyn Redact,
    watch: &mut dyn Watch,
) -> Result<RedactReport, ToolError> {
    let store_id = layout::check_store(dir)?;
    let mut report = RedactReport::default();
    // Nothing is locked: a running daemon may drop a segment meanwhile.
    each_segment(dir, watch, |segment| {
        let found = search(segment, store_id, clean)?;
        report.add(segment, &found);
        Ok(())
    })?;
    report.unsearchable.extend(others(dir)?);
    Ok(report)
}

/// A store that nothing else has open until this is dropped.
#[must_use]
pub(crate) struct LockedStore {
    dir: PathBuf,
    store_id: u64,
    lock: format::Lock,
}

impl LockedStore {
    /// Takes the lock, and completes what an interrupted run left. Fails if a daemon has the store
    /// open; nothing has changed then.
    pub(crate) fn take(dir: &Path, holder: &str) -> Result<Self, ToolError> {
        let store_id = layout::check_store(dir)?;
        let lock = format::Lock::take(&Disk, dir, holder, LOCK_TIMEOUT)?;
        // Logs change without the daemon, so what the last stop recorded is no longer true.
        crate::store::stopped::forget(&Disk, dir)?;

        // A crash in an earlier run may have left a segment under another name, where a search would
        // not find it.
        for class_name in format::class_names(dir)? {
            rewrite::settle(
                &Disk,
                &format::class_dir(dir, &class_name),
                &class_name,
                store_id,
            )?;
        }

        Ok(Self {
            dir: dir.to_owned(),
            store_id,
            lock,
        })
    }

    /// Opens the store without releasing its lock.
    pub(crate) fn open(self, options: &Options) -> Result<Opened, StoreError> {
        Store::open_locked(options, self.lock)
    }

    /// Applies the passes in order.
    pub(crate) fn redact(
        &self,
        passes: &[&dyn Redact],
        watch: &mut dyn Watch,
    ) -> Result<RedactReport, ToolError> {
        let dir = &self.dir;
        let mut report = RedactReport::default();
        let mut affected = BTreeSet::new();

        for &clean in passes {
            let mut pass = RedactReport::default();
            redact_once(dir, self.store_id, clean, watch, &mut pass, &mut affected)?;
            // Segments and unsearchable files are the same in each pass.
            report = RedactReport {
                entries: report.entries + pass.entries,
                ..pass
            };
        }

        report.segments_affected = affected.len() as u64;
        // The trash has the old forms of what was replaced.
        remove_dir(&Disk, &dir.join("trash"))?;

        report.unsearchable.extend(others(dir)?);
        files::inherit_owner(dir)?;
        Ok(report)
    }
}

fn redact_once(
    dir: &Path,
    store_id: u64,
    clean: &dyn Redact,
    watch: &mut dyn Watch,
    report: &mut RedactReport,
    affected: &mut BTreeSet<PathBuf>,
) -> Result<(), ToolError> {
    each_segment(dir, watch, |segment| {
        let found = search(segment, store_id, clean)?;
        report.add(segment, &found);

        if found.entries > 0 || found.texts {
            let size = fs::metadata(segment.log())
                .map_err(io_at("read the metadata of", &segment.log()))?
                .len();
            files::check_free_space(dir, size)?;
            // Derived data contains parts of entries, so it is removed before the log changes.
            removal::discard(&Disk, dir, &dir.join("state"))?;
            for index in [INDEX, INDEX_DAMAGED] {
                remove_file(&Disk, &segment.dir.join(index))?;
            }
            rewrite_segment(segment, segment.id(store_id), clean)?;
            // By the log, because several passes may change one segment.
            affected.insert(segment.log());
        }
        Ok(())
    })
}

impl RedactReport {
    fn add(&mut self, segment: &SegmentFiles, found: &SearchResult) {
        self.segments += 1;
        self.segments_affected += u64::from(found.entries > 0 || found.texts);
        self.entries += found.entries;
        if found.damaged {
            self.unsearchable.push(segment.log());
        }
    }
}

fn each_segment(
    dir: &Path,
    watch: &mut dyn Watch,
    mut each: impl FnMut(&SegmentFiles) -> Result<(), ToolError>,
) -> Result<(), ToolError> {
    let segments = layout::segments(dir)?;
    let total = segments.len() as u64;

    for (done, segment) in (0..).zip(&segments) {
        watch.step(done, total, &segment.name());
        match each(segment) {
            // Retention has dropped it.
            Err(ToolError::Store(StoreError::Io { why, .. }))
                if why.kind() == std::io::ErrorKind::NotFound && !segment.log().exists() => {}
            outcome => outcome?,
        }
    }
    watch.step(total, total, "");
    Ok(())
}

#[derive(Debug, Default)]
struct SearchResult {
    entries: u64,
    /// Whether there are known texts outside of good frames.
    texts: bool,
    /// Whether there are bytes outside of good frames.
    damaged: bool,
}

fn search(
    segment: &SegmentFiles,
    store_id: u64,
    clean: &dyn Redact,
) -> Result<SearchResult, StoreError> {
    let mut found = SearchResult::default();
    let damaged = pieces(&segment.log(), segment.id(store_id), |piece| {
        match piece {
            Piece::Frame(view, _) => {
                found.entries += changes(view, clean)?.iter().flatten().count() as u64;
            }
            Piece::Other(mut bytes) => found.texts |= clean.bytes(&mut bytes) > 0,
        }
        Ok(())
    })?;

    found.damaged = damaged;
    // Bytes that recovery once cut off may contain anything, keys included.
    for path in cut_off(&segment.dir)? {
        let mut bytes = fs::read(&path).map_err(io_at("read", &path))?;
        found.texts |= clean.bytes(&mut bytes) > 0;
    }
    Ok(found)
}

/// A part of a log.
enum Piece<'a> {
    /// A good frame: its block and its bytes.
    Frame(&'a BlockView, Vec<u8>),
    /// The file header, or bytes outside of good frames.
    Other(Vec<u8>),
}

/// Calls `each` for all parts of a log, in order; returns whether there is damage.
fn pieces(
    path: &Path,
    id: LogId,
    mut each: impl FnMut(Piece<'_>) -> Result<(), StoreError>,
) -> Result<bool, StoreError> {
    let log = LogFile::bare(&Disk, path, id)?;
    let size = log.size()?;

    let between = |from: u64, to: u64| -> Result<Vec<u8>, StoreError> {
        let mut bytes = vec![0; usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX)];
        log.read(&mut bytes, from)?;
        Ok(bytes)
    };
    // `each` of the walk cannot fail, so the first error is kept and the rest passed over.
    let (mut at, mut failed) = (0, None);
    let scanned = walk::walk(&log, Bounds::of_log(size), true, |meta, view| {
        if failed.is_some() {
            return None;
        }
        // A body that cannot be decompressed makes the frame one that cannot be searched.
        if let Err(what) = view.rows().body(0) {
            return Some(what);
        }
        let end = meta.end().min(size);

        let mut hand_out = || {
            if meta.offset > at {
                each(Piece::Other(between(at, meta.offset)?))?;
            }
            each(Piece::Frame(view, between(meta.offset, end)?))
        };
        failed = hand_out().err();
        at = end;
        None
    })?;

    if let Some(error) = failed {
        return Err(error);
    }

    // Zero bytes after the last frame are preallocated space.
    let end = log.used_end(at, size)?;
    if end > at {
        each(Piece::Other(between(at, end)?))?;
    }

    Ok(!scanned.finished().damaged.is_empty() || end > at)
}

fn entry<'a>(
    view: &'a BlockView,
    at: usize,
    names: &'a (Vec<u8>, String),
) -> Result<Entry<'a>, StoreError> {
    let rows = view.rows();
    let body = rows.body(at).map_err(|what| {
        StoreError::Failed(format!("cannot read entry {}: {what}", rows.seq(at).0))
    })?;
    Ok(rows.entry(at, &names.0, &names.1, body))
}

/// The replacements of a block, per entry.
fn changes(view: &BlockView, clean: &dyn Redact) -> Result<Vec<Option<Replaced>>, StoreError> {
    let rows = view.rows();
    let change = |at| {
        let names = (rows.tag(at), rows.jid(at));
        Ok(clean.entry(&entry(view, at, &names)?))
    };
    (0..view.len()).map(change).collect()
}

/// Writes a redacted copy of a segment, verifies it, and swaps it in.
fn rewrite_segment(
    segment: &SegmentFiles,
    id: LogId,
    clean: &dyn Redact,
) -> Result<(), StoreError> {
    // As a seal: a start removes an incomplete copy, and the generation below a complete one.
    let class_dir = segment.dir.parent().unwrap_or(&segment.dir);
    let next = format::next_generation(class_dir, segment.first_seq)?;
    let new = format::unfinished(&next);
    remove_dir(&Disk, &new)?;
    files::make_dir(&new)?;

    let path = new.join("log");
    let mut out = LogWriter::create(&Disk, &path, id)?;
    let mut packer = Packer::new().map_err(io_at("start zstd for", &path))?;
    let (mut builder, mut entries) = (BlockBuilder::default(), 0_u64);
    // Offset of the piece in the old log: frames are recognized by it.
    let mut old_at = 0_u64;
    pieces(&segment.log(), id, |piece| {
        let (view, bytes) = match piece {
            Piece::Other(mut bytes) => {
                // Filler frames, and frames with a damaged payload, need a header for the new
                // offset.
                for n in (0..bytes.len()).step_by(ALIGN) {
                    let Some(part) = bytes.get_mut(n..) else {
                        break;
                    };
                    if FrameHeader::read(part, id, 0, old_at + n as u64).is_some() {
                        place_frame(part, id, Position::in_new_log(out.end() + n as u64));
                    }
                }
                clean.bytes(&mut bytes);
                old_at += bytes.len() as u64;
                return out.append(&bytes);
            }
            Piece::Frame(view, bytes) => (view, bytes),
        };

        entries += view.len() as u64;
        old_at += bytes.len() as u64;
        let changes = changes(view, clean)?;
        // Copied without unpacking. Most blocks have nothing to replace.
        if changes.iter().all(Option::is_none) {
            return out.append_frame(bytes);
        }

        // Rebuilt as one block, so that entries keep their order and numbers.
        for (at, change) in changes.iter().enumerate() {
            let names = (view.rows().tag(at), view.rows().jid(at));
            let entry = entry(view, at, &names)?;
            let entry = change
                .as_ref()
                .map_or(entry, |change| change.in_entry(entry));
            builder.push(view.rows().seq(at), &entry)?;
        }
        out.append_block(&mut builder, &mut packer).map(drop)
    })?;

    out.finish()?;

    // Side files are part of the segment, and would come back when the old one is removed.
    for old in cut_off(&segment.dir)? {
        let mut bytes = fs::read(&old).map_err(io_at("read", &old))?;
        clean.bytes(&mut bytes);
        let copy = new.join(old.file_name().unwrap_or_default());
        fs::write(&copy, &bytes).map_err(io_at("write", &copy))?;
        files::sync_file(&copy)?;
    }

    // Durable, then checked, before the old segment is replaced: it is the only other copy.
    files::sync_dir(&new)?;
    check(&path, id, entries, clean)?;
    rewrite::commit(&Disk, &next)?;
    rewrite::remove_older(&Disk, &next, &segment.class_name, id)
}

/// Verifies that the new log has all entries and nothing to replace.
fn check(path: &Path, id: LogId, entries: u64, clean: &dyn Redact) -> Result<(), StoreError> {
    let (mut found, mut left) = (0, 0);
    pieces(path, id, |piece| {
        if let Piece::Frame(view, _) = piece {
            found += view.len() as u64;
            left += changes(view, clean)?.iter().flatten().count();
        }
        Ok(())
    })?;
    if found == entries && left == 0 {
        return Ok(());
    }

    let what = format!(
        "verification after write failed: {found} of {entries} entries found, {left} not redacted"
    );
    Err(StoreError::Corrupt {
        path: path.to_owned(),
        offset: 0,
        what,
    })
}

/// Files with bytes that recovery cut from the log of a segment.
fn cut_off(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    Ok(files::list(dir)?
        .into_iter()
        .filter(|path| cut_offset(path).is_some())
        .collect())
}

/// Files that may contain parts of entries and cannot be searched.
fn others(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut found = Vec::new();
    for segment in layout::segments(dir)? {
        found.extend(cut_off(&segment.dir)?);
    }
    found.extend(Some(dir.join("state.damaged")).filter(|path| path.exists()));
    Ok(found)
}
