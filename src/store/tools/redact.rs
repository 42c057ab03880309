//! `redact-keys`: bodies of entries that are stored already are replaced, segment by segment.
//!
//! A segment with something to replace is written anew beside itself and swapped in, with the steps and names of
//! [`crate::store`]'s own rewriting: after a crash at any point the next start, or the next run, finds it whole. Its index and
//! `state/` are removed before, and made again from the log by whoever opens the store next.
//!
//! # Invariant
//!
//! Entries keep their number, time, tag and names; only bodies change. Frames without a change, and bytes that are no good frame,
//! are copied as they are, but for known texts in the latter.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::layout::{self, Place};
use super::rebuild::remove;
use super::{ToolError, Watch, files};
use crate::model::Entry;
use crate::store::block::BlockView;
use crate::store::builder::{BlockBuilder, Packer};
use crate::store::error::io_at;
use crate::store::frame::{ALIGN, FrameHeader, LogId, Position, place_frame, write_frame_at};
use crate::store::log::{LogFile, cut_offset};
use crate::store::medium::Disk;
use crate::store::walk::{self, Bounds};
use crate::store::{StoreError, format, rewrite};

/// What to replace.
pub trait Clean {
    /// Another body for an entry, if it needs one.
    fn body(&self, entry: &Entry<'_>) -> Option<Vec<u8>>;

    /// Replaces known texts in bytes that are no entry, in place; how many.
    fn bytes(&self, bytes: &mut [u8]) -> usize;
}

/// What was found, and replaced unless it was only looked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Segments that were searched.
    pub segments: u64,
    /// Segments with something to replace.
    pub segments_affected: u64,
    /// Entries with something to replace.
    pub entries: u64,
    /// Files that cannot be searched: damaged frames in them, or another format.
    pub unsearchable: Vec<PathBuf>,
}

/// Looks for what would be replaced, also beside a running daemon.
pub fn look(dir: &Path, clean: &dyn Clean, watch: &mut dyn Watch) -> Result<Report, ToolError> {
    let store_id = layout::check_store(dir)?;
    let mut report = Report::default();
    each_segment(dir, watch, |place| {
        let found = search(place, store_id, clean)?;
        report.add(place, &found);
        Ok(())
    })?;
    report.unsearchable.extend(others(dir)?);
    Ok(report)
}

/// Replaces it: first all that `passes` has first, then the next. No daemon may have the store.
pub fn redact(
    dir: &Path,
    holder: &str,
    passes: &[&dyn Clean],
    watch: &mut dyn Watch,
) -> Result<Report, ToolError> {
    let store_id = layout::check_store(dir)?;
    let _lock = format::Lock::take(dir, holder)?;
    for class_name in format::class_names(dir)? {
        rewrite::recover(&Disk, &format::class_dir(dir, &class_name))?;
    }
    let mut report = Report::default();
    let mut affected = BTreeSet::new();
    for &clean in passes {
        let mut pass = Report::default();
        redact_once(dir, store_id, clean, watch, &mut pass, &mut affected)?;
        // What cannot be searched or is searched twice is still the same.
        report = Report { entries: report.entries + pass.entries, ..pass };
    }
    report.segments_affected = affected.len() as u64;
    remove(&dir.join("trash"))?;
    report.unsearchable.extend(others(dir)?);
    files::belong(dir)?;
    Ok(report)
}

fn redact_once(
    dir: &Path,
    store_id: u64,
    clean: &dyn Clean,
    watch: &mut dyn Watch,
    report: &mut Report,
    affected: &mut BTreeSet<PathBuf>,
) -> Result<(), ToolError> {
    each_segment(dir, watch, |place| {
        let found = search(place, store_id, clean)?;
        report.add(place, &found);
        if found.entries > 0 || found.texts {
            let size = fs::metadata(place.log()).map_err(io_at("look at", &place.log()))?.len();
            files::check_room(dir, size)?;
            // What is made from the log holds parts of it. It goes before the log changes, so that it never outlives it.
            for derived in [dir.join("state"), place.dir.join("index")] {
                remove(&derived)?;
            }
            rewrite_segment(place, place.id(store_id), clean)?;
            affected.insert(place.log());
        }
        Ok(())
    })
}

impl Report {
    fn add(&mut self, place: &Place, found: &Found) {
        self.segments += 1;
        self.segments_affected += u64::from(found.entries > 0 || found.texts);
        self.entries += found.entries;
        if found.damaged {
            self.unsearchable.push(place.log());
        }
    }
}

fn each_segment(
    dir: &Path,
    watch: &mut dyn Watch,
    mut each: impl FnMut(&Place) -> Result<(), ToolError>,
) -> Result<(), ToolError> {
    let places = layout::segments(dir)?;
    let total = places.len() as u64;
    for (done, place) in (0..).zip(&places) {
        watch.step(done, total, &place.name());
        match each(place) {
            // Retention has dropped it since.
            Err(ToolError::Store(StoreError::Io { why, .. }))
                if why.kind() == std::io::ErrorKind::NotFound && !place.log().exists() => {}
            outcome => outcome?,
        }
    }
    watch.step(total, total, "");
    Ok(())
}

/// What a segment holds.
#[derive(Debug, Default)]
struct Found {
    /// Entries to change.
    entries: u64,
    /// Known texts outside of good frames.
    texts: bool,
    /// Bytes that are no good frame.
    damaged: bool,
}

fn search(place: &Place, store_id: u64, clean: &dyn Clean) -> Result<Found, StoreError> {
    let mut found = Found::default();
    let damaged = pieces(&place.log(), place.id(store_id), |piece| {
        match piece {
            Piece::Frame(view, _) => found.entries += changes(view, clean)?.iter().flatten().count() as u64,
            Piece::Other(mut bytes) => found.texts |= clean.bytes(&mut bytes) > 0,
        }
        Ok(())
    })?;
    found.damaged = damaged;
    for path in cut_off(&place.dir)? {
        let mut bytes = fs::read(&path).map_err(io_at("read", &path))?;
        found.texts |= clean.bytes(&mut bytes) > 0;
    }
    Ok(found)
}

/// A part of a log, in order.
enum Piece<'a> {
    /// A good frame: its block, and its bytes.
    Frame(&'a BlockView, Vec<u8>),
    /// The header, or bytes that are no good frame.
    Other(Vec<u8>),
}

/// Hands out a log in parts; says whether some of it is damaged.
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
    let (mut at, mut failed) = (0, None);
    let scanned = walk::walk(&log, Bounds::of_log(size), true, |meta, view| {
        if failed.is_some() {
            return None;
        }
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
    // Zero bytes behind the last frame mean nothing.
    let end = log.used(at, size)?;
    if end > at {
        each(Piece::Other(between(at, end)?))?;
    }
    Ok(!scanned.finished().damaged.is_empty() || end > at)
}

fn entry<'a>(view: &'a BlockView, at: usize, names: &'a (Vec<u8>, String)) -> Result<Entry<'a>, StoreError> {
    let rows = view.rows();
    let body =
        rows.body(at).map_err(|what| StoreError::Failed(format!("read entry {}: {what}", rows.seq(at).0)))?;
    Ok(Entry {
        kind: rows.kind(at),
        source: rows.source(at),
        flags: rows.flags(at),
        at: rows.at(at),
        tag: &names.0,
        jid: &names.1,
        minion: rows.minion(at),
        fun: rows.fun(at),
        retcode: rows.retcode(at),
        body,
    })
}

/// Per entry of a block its new body, if it gets one.
fn changes(view: &BlockView, clean: &dyn Clean) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
    let rows = view.rows();
    let change = |at| {
        let names = (rows.tag(at), rows.jid(at).as_str().to_owned());
        Ok(clean.body(&entry(view, at, &names)?))
    };
    (0..view.len()).map(change).collect()
}

/// Writes a segment anew, reads that through, and puts it in the place of the old one.
fn rewrite_segment(place: &Place, id: LogId, clean: &dyn Clean) -> Result<(), StoreError> {
    use std::io::Write as _;
    let new = place.dir.with_extension(rewrite::SEALING);
    remove(&new)?;
    files::make_dir(&new)?;
    let path = new.join("log");
    let failed = |what: String| StoreError::Failed(format!("pack a block of {}: {what}", path.display()));
    let file = fs::File::create_new(&path).map_err(io_at("create", &path))?;
    let mut out = std::io::BufWriter::with_capacity(1 << 20, file);
    let mut packer = Packer::new().map_err(io_at("start zstd for", &path))?;
    let (mut builder, mut frame, mut entries) = (BlockBuilder::default(), Vec::new(), 0_u64);
    // Where the piece was in the old log, and where it goes in the new one.
    let (mut old_at, mut at) = (0_u64, 0_u64);
    pieces(&place.log(), id, |piece| {
        let (view, mut bytes) = match piece {
            Piece::Other(mut bytes) => {
                // Fillers, and frames whose content is damaged.
                for n in (0..bytes.len()).step_by(ALIGN) {
                    let Some(part) = bytes.get_mut(n..) else { break };
                    if FrameHeader::read(part, id, 0, old_at + n as u64).is_some() {
                        place_frame(part, id, Position::in_new_log(at + n as u64));
                    }
                }
                clean.bytes(&mut bytes);
                old_at += bytes.len() as u64;
                at += bytes.len() as u64;
                return out.write_all(&bytes).map_err(io_at("write", &path));
            }
            Piece::Frame(view, bytes) => (view, bytes),
        };
        entries += view.len() as u64;
        old_at += bytes.len() as u64;
        let changes = changes(view, clean)?;
        if changes.iter().all(Option::is_none) {
            place_frame(&mut bytes, id, Position::in_new_log(at));
            at += bytes.len() as u64;
            return out.write_all(&bytes).map_err(io_at("write", &path));
        }
        builder.clear();
        for (at, change) in changes.iter().enumerate() {
            let names = (view.rows().tag(at), view.rows().jid(at).as_str().to_owned());
            let entry = entry(view, at, &names)?;
            let body = change.as_deref().unwrap_or(entry.body);
            builder.push(view.rows().seq(at), &Entry { body, ..entry })?;
        }
        frame.clear();
        let packed = builder.finish(&mut packer).map_err(|error| failed(error.to_string()))?;
        write_frame_at(&mut frame, &packed, builder.seqs(), builder.len(), (id, at))?;
        at += frame.len() as u64;
        out.write_all(&frame).map_err(io_at("write", &path))
    })?;
    let file = out.into_inner().map_err(|error| io_at("write", &path)(error.into_error()))?;
    file.sync_all().map_err(io_at("sync", &path))?;
    for old in cut_off(&place.dir)? {
        let mut bytes = fs::read(&old).map_err(io_at("read", &old))?;
        clean.bytes(&mut bytes);
        let copy = new.join(old.file_name().unwrap_or_default());
        fs::write(&copy, &bytes).map_err(io_at("write", &copy))?;
        files::sync_file(&copy)?;
    }
    files::sync_dir(&new)?;
    check(&path, id, entries, clean)?;
    rewrite::swap(&Disk, &place.dir)
}

/// Is everything in the new log, and nothing left to replace?
fn check(path: &Path, id: LogId, entries: u64, clean: &dyn Clean) -> Result<(), StoreError> {
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
    let what = format!("{found} of {entries} entries were written, {left} of them as they were");
    Err(StoreError::Corrupt { path: path.to_owned(), offset: 0, what })
}

/// What starts cut off the log of a segment.
fn cut_off(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    Ok(files::list(dir)?.into_iter().filter(|path| cut_offset(path).is_some()).collect())
}

/// Files of a state directory that may hold parts of entries and cannot be searched.
fn others(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut found = Vec::new();
    for place in layout::segments(dir)? {
        found.extend(cut_off(&place.dir)?);
    }
    found.extend(Some(dir.join("state.damaged")).filter(|path| path.exists()));
    Ok(found)
}
