//! `salvage`: copies the readable entries of a damaged directory to a new store.
//!
//! Every file is searched for frames, regardless of its name. Good frames are copied with content
//! and sequence numbers unchanged. Of duplicate entries, such as in a segment and in its
//! interrupted replacement, the first found is kept. A block is rebuilt if some of its entries are
//! duplicates, or if its sequence numbers overlap those of another block. New entries get numbers
//! far behind (`renumber`), because the numbers of lost entries are unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::class_writer::ClassWriter;
use super::known::known_segments;
use super::layout::{DaemonWatch, SegmentFiles};
use super::losses::{Account, Loss, ReadLog};
use super::renumber::Renumbering;
use super::{ToolError, Watch, files, layout};
use crate::error::io_at;
use crate::format::name_of;
use crate::log::file::{BlockMeta, Header, LogFile, cut_offset, public_id};
use crate::log::frame::LogId;
use crate::log::walk::{self, Bounds, FRAMES_FROM};
use crate::segment::{INDEX, INDEX_ASIDE, INDEX_DAMAGED};
use crate::settings::{FoundSettings, Place, Settings, loss_text};
use crate::skipped::SkippedNumbers;
use crate::stopped::Stopped;
use crate::tools::backup::manifest::Manifest;
use crate::tools::verify::small_files::{self, CheckFile, FileFault};
use crate::vfs::Disk;
use crate::vfs::read::is_damage;
use crate::write::seqno::{SEQUENCE, SequenceFile};
use crate::{StoreError, format};
use saltcellar_base::clock::{Clock, Micros};
use saltcellar_base::limits::SETTINGS_GROWTH;
use saltcellar_model::{SETTINGS, SeqNo, is_class_name};

/// What was found, and what was not.
#[derive(Debug, Default)]
pub struct SalvageReport {
    /// Logs that were read.
    pub files: u64,
    /// Entries in the new store, by class.
    pub classes: Vec<(String, u64)>,
    /// Entries that were found more than once.
    pub doubles: u64,
    /// Unreadable ranges.
    pub losses: Vec<Loss>,
    /// Defects of files that cannot be rebuilt, which are copied as they are.
    pub faults: Vec<FileFault>,
    /// Files without data of saltcellar.
    pub foreign: Vec<PathBuf>,
    /// The sequence numbers that the new store leaves out.
    pub skipped: Option<SkippedNumbers>,
}

impl SalvageReport {
    /// Entries in the new store.
    pub fn entries(&self) -> u64 {
        self.classes.iter().map(|(_, entries)| entries).sum()
    }

    /// The entries lost: their number, or an upper bound.
    pub fn entries_lost(&self) -> u64 {
        self.losses.iter().map(|loss| loss.entries).sum()
    }

    /// Whether [`Self::entries_lost`] is their number.
    pub fn is_exact(&self) -> bool {
        self.losses.iter().all(|loss| loss.exact)
    }
}

/// A good frame.
struct FoundFrame {
    file: usize,
    id: LogId,
    meta: BlockMeta,
    /// Sequence numbers of its duplicate entries, ascending.
    known: Vec<SeqNo>,
}

/// A file to search; a lower rank is better.
struct InputFile {
    rank: u8,
    path: PathBuf,
    class: Option<String>,
    /// Whether it is in the directory of the settings.
    is_of_settings: bool,
    /// First sequence number of the segment, from its directory name.
    first_seq: Option<SeqNo>,
}

/// Creates a store in `to` from the readable entries in `from`. `now` is the creation time of the
/// new logs.
pub fn salvage(
    from: &Path,
    to: &Path,
    now: Micros,
    check_file: &CheckFile<'_>,
    watch: &mut dyn Watch,
) -> Result<SalvageReport, ToolError> {
    // In this order: nothing is created before everything is known to be possible.
    let to = &std::path::absolute(to).map_err(io_at("find", to))?;
    if !from.is_dir() {
        let why = if from.exists() {
            "not a directory"
        } else {
            "no such directory"
        };
        return Err(ToolError::NotOne {
            path: from.to_owned(),
            wanted: "directory to salvage",
            why: why.to_owned(),
        });
    }

    files::check_disjoint(from, to)?;
    // A daemon would write while files are read, and everything unfinished would count as damage.
    let locked = |holder| StoreError::Locked {
        path: from.to_owned(),
        holder,
    };
    let daemon = DaemonWatch::begin(from)?;
    if let Some(holder) = daemon.holder.clone() {
        return Err(locked(holder).into());
    }

    files::make_empty(to)?;

    // Sorted by rank: of several copies of an entry, the copy in the best place is kept.
    let mut sources = Vec::new();
    collect(from, from, &mut sources)?;
    let unreadable = without_unreadable(&mut sources)?;
    sources.sort_by(|a, b| (a.rank, &a.path).cmp(&(b.rank, &b.path)));

    let mut sizes = Vec::new();
    for source in &sources {
        sizes.push(
            std::fs::metadata(&source.path)
                .map_err(io_at("read the metadata of", &source.path))?
                .len(),
        );
    }

    let total = sizes.iter().sum::<u64>();
    files::check_free_space(to, total)?;

    let smalls = small_files(from)?;
    let format_text = match smalls.get("FORMAT") {
        Some(path) => files::text(path)?,
        None => None,
    };
    // An intact file of another format is not damage.
    let store_id = match format_text.map(|text| format::read_format(&text)) {
        Some(Ok(store_id)) => store_id,
        Some(Err(format::NoStoreId::OtherVersion(found))) => {
            let path = from.to_owned();
            let expected = crate::FORMAT_VERSION;
            return Err(StoreError::Version {
                path,
                found,
                expected,
            }
            .into());
        }
        // Without a valid FORMAT the log headers supply the id. Without any header there are no
        // frames of this store either.
        _ => named_most(&sources)?.unwrap_or_else(saltcellar_model::secret_seed),
    };

    let numbers = numbers_of(from)?;
    let stopped = Stopped::read(from)?;
    let segments = layout::segments(from)?;
    let known = known_segments(
        (from, store_id),
        &segments,
        true,
        stopped.as_ref().and_then(Option::as_ref),
    );

    let readable: BTreeSet<&PathBuf> = sources.iter().map(|source| &source.path).collect();
    let (segments, unopened): (BTreeMap<PathBuf, SegmentFiles>, BTreeMap<_, _>) = segments
        .into_iter()
        .map(|segment| (segment.log(), segment))
        .partition(|(path, _)| readable.contains(path));
    let end = Some(numbers.end).filter(|end| end.0 > 0);
    let mut account = Account::new(known, segments.values(), end, numbers.skipped.clone());
    account.note_unopened(unopened.values());

    let mut work = Salvager {
        store_id,
        sources,
        segments,
        account,
        by_class: Vec::new(),
        settings: Vec::new(),
        newest: None,
        now,
        report: SalvageReport::default(),
    };

    let mut done = 0;
    for (file, size) in sizes.iter().enumerate() {
        work.read(file, *size, (done, total * 2), watch)?;
        done += size;
    }

    work.report.losses = work.account.losses(from);
    // A copy of entries that were found elsewhere.
    let is_copy = |loss: &Loss| loss.entries == 0 && loss.range.entries.is_some();
    work.report.losses.retain(|loss| !is_copy(loss));

    work.report.faults = small_files::check((from, store_id), stopped.as_ref(), check_file)?;
    work.report.faults.retain(|fault| !fault.is_note);
    work.report.faults.extend(lost_smalls(from, &smalls)?);
    work.report.faults.extend(unreadable);

    let mut by_class = std::mem::take(&mut work.by_class);
    by_class.sort_by(|a, b| a.0.cmp(&b.0));
    let mut made = total;
    for (class_name, found) in by_class {
        let entries = work.write(
            ClassWriter::new(to, &class_name, store_id, now)?,
            found,
            (&mut made, total * 2),
            watch,
        )?;
        work.report.classes.push((class_name, entries));
    }

    // Behind every number that is known from anywhere.
    let used = work
        .account
        .last()
        .unwrap_or_default()
        .next()
        .max(numbers.end);
    // Without an entry no reader can remember a number.
    let since = work.newest.unwrap_or(now);
    let renumbering = Renumbering::new("salvage", used, since, now)?;
    renumbering.write(to, store_id, &numbers.skipped)?;
    work.report.skipped = Some(renumbering.skipped);

    let position = stopped.as_ref().and_then(Option::as_ref);
    let position = position.and_then(|stopped| stopped.settings);
    work.write_settings(from, to, position)?;

    let (spill, copy) = (from.join(layout::SPILL_DIR), to.join(layout::SPILL_DIR));
    copy_tree(&spill, &copy, &mut work.report.faults)?;

    // What was read before and after its start does not fit together.
    if daemon.has_started()? {
        return Err(locked("a daemon that was started meanwhile".to_owned()).into());
    }

    // Writes FORMAT, which makes the directory a store.
    finish(&smalls, to, store_id)?;
    files::inherit_owner(to)?;
    watch.step(total * 2, total * 2, "");
    Ok(work.report)
}

/// Whether a name belongs to a small file of a store or a backup, or to a copy of such a file.
fn is_small(name: &str) -> bool {
    // `FORMAT-3` of a backup, `SEQUENCE.tmp` of an interrupted write.
    let name = name.split(['-', '.']).next().unwrap_or_default();
    matches!(name, "MANIFEST" | "UNFINISHED") || layout::is_known(name)
}

/// The files that a salvaged store gets unchanged, by their names in a store. Copies in a backup
/// end in a number; the highest is the newest.
fn small_files(from: &Path) -> Result<BTreeMap<String, PathBuf>, StoreError> {
    let mut found = BTreeMap::new();

    for name in layout::small_files() {
        let path = from.join(&name);
        if path.is_file() {
            found.insert(name, path);
        }
    }

    // In a backup, or in a backup and a store that were mixed.
    let mut copies: BTreeMap<String, (u64, PathBuf)> = BTreeMap::new();
    for path in files::list(from)? {
        let copy = name_of(&path)
            .rsplit_once('-')
            .filter(|(name, _)| layout::is_small_file(name))
            .and_then(|(name, n)| Some((name.to_owned(), n.parse().ok()?)));
        let Some((name, number)) = copy.filter(|_| path.is_file()) else {
            continue;
        };
        if copies.get(&name).is_none_or(|(known, _)| *known < number) {
            copies.insert(name, (number, path));
        }
    }

    // The file of a store is newer than any copy of it.
    for (name, (_, path)) in copies {
        found.entry(name).or_insert(path);
    }
    Ok(found)
}

/// The sequence numbers that a store or a backup may have assigned, as far as it is known.
fn numbers_of(from: &Path) -> Result<SequenceFile, ToolError> {
    let of_store = SequenceFile::read(&Disk, from)?.flatten();
    let of_backup = || {
        // A damaged manifest is no reason to give up: the numbers in the logs count in any case.
        let manifest = Manifest::read(from).ok().flatten()?;
        let end = SeqNo(manifest.sequence);
        let skipped = manifest.skipped;
        Some(SequenceFile { end, skipped })
    };
    Ok(of_store.or_else(of_backup).unwrap_or_default())
}

/// Files of a store without which it cannot be opened, or without which numbers may be assigned
/// twice.
fn lost_smalls(
    from: &Path,
    smalls: &BTreeMap<String, PathBuf>,
) -> Result<Vec<FileFault>, StoreError> {
    let fault = |name: &str, what: &str| FileFault {
        path: from.join(name),
        what: what.to_owned(),
        is_note: false,
    };

    let mut found = Vec::new();
    match smalls.get("FORMAT") {
        None => found.push(fault("FORMAT", "missing: the store id is that of the logs")),
        Some(path) => {
            let text = files::text(path)?.unwrap_or_default();
            if format::read_format(&text).is_err() {
                found.push(fault("FORMAT", "damaged: the store id is that of the logs"));
            }
        }
    }

    // A backup has its number in the manifest.
    // Whatever the manifest says: its numbers were used above.
    let is_backup = Manifest::read(from).ok().flatten().is_some();
    match SequenceFile::read(&Disk, from)? {
        Some(Some(_)) => {}
        _ if is_backup => {}
        Some(None) => found.push(fault(SEQUENCE, "malformed, or its checksum does not match")),
        None if from.join("log").is_dir() => found.push(fault(SEQUENCE, "missing")),
        None => {}
    }
    Ok(found)
}

/// Copies the files of a directory, if it exists, and of those in it. Files that the disk cannot
/// open are left out, and added to `faults`.
fn copy_tree(from: &Path, to: &Path, faults: &mut Vec<FileFault>) -> Result<(), StoreError> {
    // As in the store: the files of each bus are in a separate directory.
    for path in files::list(from)? {
        let target = to.join(path.file_name().unwrap_or_default());
        let kind = std::fs::symlink_metadata(&path)
            .map_err(io_at("read the metadata of", &path))?
            .file_type();
        // Links are not followed: they may lead anywhere.
        if kind.is_dir() {
            copy_tree(&path, &target, faults)?;
        } else if kind.is_file() {
            files::make_dir(to)?;
            let Some(file) = opened(&path, faults)? else {
                continue;
            };
            let len = file
                .metadata()
                .map_err(io_at("read the metadata of", &path))?
                .len();
            let out = std::fs::File::create_new(&target).map_err(io_at("create", &target))?;
            files::copy(&file, &path, out, &target, len, |_| ())?;
        }
    }

    Ok(())
}

/// Opens a file; `None` if the disk cannot open it, which is added to `faults`.
fn opened(path: &Path, faults: &mut Vec<FileFault>) -> Result<Option<File>, StoreError> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(why) if is_damage(&why) => {
            faults.push(FileFault {
                path: path.to_owned(),
                what: format!("unreadable: {}", io_at("open", path)(why)),
                is_note: false,
            });
            Ok(None)
        }
        Err(why) => Err(io_at("open", path)(why)),
    }
}

/// Removes the files that the disk cannot open, and returns a fault for each.
fn without_unreadable(sources: &mut Vec<InputFile>) -> Result<Vec<FileFault>, StoreError> {
    let (mut readable, mut faults) = (Vec::new(), Vec::new());
    for source in sources.drain(..) {
        if opened(&source.path, &mut faults)?.is_some() {
            readable.push(source);
        }
    }
    *sources = readable;
    Ok(faults)
}

/// Lists all files except sled's files and files of dropped segments.
fn collect(root: &Path, dir: &Path, found: &mut Vec<InputFile>) -> Result<(), StoreError> {
    for path in files::list(dir)? {
        let name = name_of(&path);
        let kind = std::fs::symlink_metadata(&path)
            .map_err(io_at("read the metadata of", &path))?
            .file_type();
        if kind.is_dir() {
            // By the files that every database has.
            let is_sled = path.join("conf").is_file() && path.join("db").is_file();
            // Copied whole, not searched.
            let is_copied = dir == root && name == layout::SPILL_DIR;
            if !is_sled && !format::is_dropped(&path) && !is_copied {
                collect(root, &path, found)?;
            }
            continue;
        }
        // An index contains no entries, only where they are.
        let is_index = matches!(name, INDEX | "index.tmp" | INDEX_ASIDE | INDEX_DAMAGED);
        // Devices and links contain no log data.
        if is_index || !kind.is_file() || dir == root && is_small(name) {
            continue;
        }

        let inside: Vec<_> = path
            .strip_prefix(root)
            .unwrap_or(&path)
            .iter()
            .filter_map(|part| part.to_str())
            .collect();

        // The place shows how likely a file is whole: a segment, its next generation before the
        // rename, anything else next to logs, anything else.
        let (rank, class) = match inside.as_slice() {
            ["log", class, segment, "log"] if format::generation_of(segment).is_some() => {
                (0, Some(class))
            }
            ["log", class, segment, "log"] if segment.ends_with(format::NEW) => (1, Some(class)),
            ["log", class, ..] => (2, Some(class)),
            _ => (3, None),
        };
        let is_of_settings = class.is_some_and(|class| *class == SETTINGS);
        let class = class
            .filter(|class| is_class_name(class))
            .map(|class| (*class).to_owned());

        // The plain number, or the name of a copy in a backup (`<first-seq>-<n>`).
        let first_seq = inside.get(2).and_then(|name| {
            format::segment_seq(name.split(['.', '-']).next().unwrap_or_default())
        });

        found.push(InputFile {
            rank,
            path,
            class,
            is_of_settings,
            first_seq,
        });
    }
    Ok(())
}

/// The most frequent store id in log headers.
fn named_most(sources: &[InputFile]) -> Result<Option<u64>, StoreError> {
    let mut counts = std::collections::BTreeMap::<u64, u64>::new();

    for source in sources {
        // The header does not depend on the identity that the file is opened with.
        if let Some(header) = source
            .open(LogId {
                store_id: 0,
                first_seq: SeqNo::default(),
            })?
            .header()?
        {
            *counts.entry(header.id().store_id).or_default() += 1;
        }
    }

    Ok(counts
        .into_iter()
        .max_by_key(|(_, count)| *count)
        .map(|(store_id, _)| store_id))
}

/// A file as a part of a log.
struct InputLog {
    file: LogFile,
    has_header: bool,
    /// By the header, else by the place.
    class_name: Option<String>,
    /// The store that the header names, if it is another one.
    other_store: Option<u64>,
}

impl InputFile {
    /// Finds out which log the file is a part of. `store_id` identifies the store.
    fn identify(&self, store_id: u64) -> Result<InputLog, StoreError> {
        let by_place = LogId {
            store_id,
            first_seq: self.first_seq.unwrap_or_default(),
        };
        // The header knows which log it was, even if the file was renamed. The frames belong to
        // this store in any case.
        let header = self.open(by_place)?.header()?;
        let id = header.as_ref().map_or(by_place, Header::id);

        let of_settings = || self.is_of_settings.then(|| SETTINGS.to_owned());
        let class_name = match header.as_ref().and_then(Header::class_name) {
            Some(name) if name == SETTINGS || is_class_name(name) => Some(name.to_owned()),
            Some(_) => self.class.clone(),
            None => of_settings().or_else(|| self.class.clone()),
        };
        Ok(InputLog {
            file: self.open(LogId { store_id, ..id })?,
            has_header: header.is_some(),
            class_name,
            other_store: Some(id.store_id).filter(|other| *other != store_id),
        })
    }

    /// Opens the file as a part of a log.
    fn open(&self, id: LogId) -> Result<LogFile, StoreError> {
        // The name of a side file contains its offset in the log, on which the validity of its frames
        // depends.
        Ok(LogFile::bare(&Disk, &self.path, id)?.with_base(cut_offset(&self.path).unwrap_or(0)))
    }
}

struct Salvager {
    store_id: u64,
    sources: Vec<InputFile>,
    /// The files of `sources` that are the log of a segment: each in its highest generation.
    segments: BTreeMap<PathBuf, SegmentFiles>,
    account: Account,
    by_class: Vec<(String, Vec<FoundFrame>)>,
    /// Logs of the settings: path, directory and first sequence number.
    settings: Vec<(PathBuf, PathBuf, SeqNo)>,
    /// The arrival of the newest entry that is not in the future.
    newest: Option<Micros>,
    now: Micros,
    report: SalvageReport,
}

impl Salvager {
    /// Reads the entries of a file.
    fn read(
        &mut self,
        file: usize,
        size: u64,
        at: (u64, u64),
        watch: &mut dyn Watch,
    ) -> Result<(), StoreError> {
        // Only a bug could ask for another one.
        let Some(source) = self.sources.get(file) else {
            return Ok(());
        };

        self.report.files += 1;
        let log = source.identify(self.store_id)?;
        if log.class_name.as_deref() == Some(SETTINGS) {
            let path = source.path.clone();
            let dir = path.parent().unwrap_or(&path).to_owned();
            self.settings.push((path, dir, log.file.id().first_seq));
            return Ok(());
        }

        let mut class = log.class_name;
        let mut found = Vec::new();
        let (now, newest) = (self.now, &mut self.newest);
        let (account, doubles) = (&mut self.account, &mut self.report.doubles);
        let name = name_of(&source.path);
        // A file with bytes cut from a log contains no header, and a damaged header is not recognized.
        let from = if log.has_header { FRAMES_FROM } else { 0 };
        let bounds = Bounds {
            from,
            ..Bounds::of_file(size)
        };

        let mut scanned = walk::walk(&log.file, bounds, true, |meta, view| {
            watch.step(at.0 + meta.end(), at.1, name);
            let rows = view.rows();
            // A time in the future is wrong.
            *newest = (*newest).max(Some(meta.at_max).filter(|at| *at <= now));
            if let Err(what) = rows.body(0) {
                return Some(what);
            }

            // Without a name of a class anywhere, the first entry decides.
            let class = class.get_or_insert_with(|| {
                let has_job = !rows.jid(0).is_empty();
                (if has_job { "jobs" } else { "events" }).to_owned()
            });
            // Already found in a file of a better rank. Duplicates count for the class of each file.
            let all = (0..rows.len()).map(|at| rows.seq(at));
            let known: Vec<_> = all.filter(|seq| !account.note_found(class, *seq)).collect();
            *doubles += known.len() as u64;
            // A frame without new entries is not needed.
            if known.len() < rows.len() {
                found.push(FoundFrame {
                    file,
                    id: log.file.id(),
                    meta: *meta,
                    known,
                });
            }
            None
        })?;

        // In the place of a log even a file without a frame is one, and what it lost counts.
        let has_frames =
            scanned.frames > 0 || !scanned.damaged.is_empty() || !scanned.unfinished.is_empty();
        if !log.has_header && !has_frames && source.rank > 1 {
            self.report.foreign.push(source.path.clone());
            return Ok(());
        }
        // Frames of another store are not recognized; the message says why.
        if let (Some(other), Some(range)) = (log.other_store, scanned.tail.as_mut()) {
            range.what = format!("belongs to the store {}", public_id(other));
        }

        let read = ReadLog {
            path: &source.path,
            segment: self.segments.get(&source.path),
            has_header: log.has_header,
            size,
        };
        self.account.note_damage(&read, &mut scanned);

        let class = class.unwrap_or_default();
        match self.by_class.iter_mut().find(|(known, _)| *known == class) {
            Some((_, all)) => all.append(&mut found),
            None if found.is_empty() => {}
            None => self.by_class.push((class, found)),
        }
        Ok(())
    }

    /// Writes the settings that were found to the new store. `position` is the last one at a clean
    /// stop.
    fn write_settings(
        &mut self,
        from: &Path,
        to: &Path,
        position: Option<u64>,
    ) -> Result<(), StoreError> {
        let mut logs = std::mem::take(&mut self.settings);
        logs.sort_by_key(|(_, _, first_seq)| *first_seq);
        let found = FoundSettings::of_logs(&Disk, logs, self.store_id, position)?;

        let place = Place {
            state_dir: to,
            store_id: self.store_id,
            position: None,
            is_new: false,
            growth: SETTINGS_GROWTH,
        };
        let clock = Clock::manual(self.now);
        let settings = Settings::create(Arc::new(Disk), place, found, clock)?;
        // Also one that was found and not accepted before.
        if let Some(loss) = settings.loss() {
            self.report.faults.push(FileFault {
                path: format::class_dir(from, SETTINGS),
                what: loss_text(&loss),
                is_note: false,
            });
        }
        settings.close()?;
        Ok(())
    }

    /// Writes the segments of a class; returns the number of entries.
    fn write(
        &self,
        mut writer: ClassWriter,
        mut found: Vec<FoundFrame>,
        (done, total): (&mut u64, u64),
        watch: &mut dyn Watch,
    ) -> Result<u64, StoreError> {
        // Segments must ascend, and the frames of a class come from several files.
        found.sort_by_key(|found| found.meta.first_seq);
        let mut rest = found.as_slice();

        while let Some(first) = rest.first() {
            // Blocks with overlapping sequence numbers are merged.
            let mut last_seq = first.meta.last_seq;
            let mut count = 1;
            while let Some(next) = rest
                .get(count)
                .filter(|next| next.meta.first_seq <= last_seq)
            {
                last_seq = last_seq.max(next.meta.last_seq);
                count += 1;
            }

            let (group, others) = rest.split_at(count);
            rest = others;
            for found in group {
                *done += u64::from(found.meta.len);
            }

            watch.step((*done).min(total), total, &writer.class_name);

            // Copied with its checksums, if nothing has to be left out.
            if count == 1 && first.known.is_empty() {
                let frame = self.log(first)?.frame(&first.meta)?;
                let frame = frame.ok_or_else(|| {
                    StoreError::Failed(format!(
                        "the block of class {} from sequence number {} changed during the salvage: end what writes to the directory, look for disk errors in `dmesg`, and retry",
                        writer.class_name, first.meta.first_seq.0
                    ))
                })?;
                writer.put(frame, first.meta.first_seq, u64::from(first.meta.count))?;
            } else {
                self.merge(group, &mut writer)?;
            }
        }
        writer.finish()
    }

    /// Writes the entries of several blocks by ascending sequence number, without duplicates.
    fn merge(&self, group: &[FoundFrame], writer: &mut ClassWriter) -> Result<(), StoreError> {
        // In memory together: a group is a few blocks that were written twice.
        let mut views = Vec::new();
        for found in group {
            views.push(self.log(found)?.block(&found.meta)?);
        }

        let mut positions: Vec<(SeqNo, usize, usize)> = Vec::new();
        for (n, (view, found)) in views.iter().zip(group).enumerate() {
            let rows = view.rows();
            let all = (0..rows.len()).map(|at| (rows.seq(at), n, at));
            positions.extend(all.filter(|(seq, ..)| found.known.binary_search(seq).is_err()));
        }

        positions.sort_unstable();
        for (seq, n, at) in positions {
            if let Some(view) = views.get(n) {
                writer.entry(seq, view, at)?;
            }
        }
        writer.flush_block()
    }

    fn log(&self, found: &FoundFrame) -> Result<LogFile, StoreError> {
        // Frames refer to sources by their index.
        let source = self
            .sources
            .get(found.file)
            .ok_or(StoreError::Broken("a frame without a source file"))?;
        source.open(found.id)
    }
}

/// Writes the small files; `FORMAT` last, because it makes the directory a store.
fn finish(smalls: &BTreeMap<String, PathBuf>, to: &Path, store_id: u64) -> Result<(), StoreError> {
    for (name, path) in smalls.iter().filter(|(name, _)| *name != "FORMAT") {
        if let Some(content) = format::read_small(&Disk, path)? {
            files::write_small(&to.join(name), &content.bytes)?;
        }
    }
    files::write_small(&to.join("FORMAT"), format::format_text(store_id))
}
