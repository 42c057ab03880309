//! `backup`: an incremental, consistent copy of the logs, even while the daemon runs.
//!
//! ```text
//! backup/
//!   MANIFEST                           the list of its files (see `manifest`)
//!   log/<class>/<first-seq>-<n>        copies of logs; n distinguishes copies of one segment
//!   <name>-<n>                         copies of small files
//! ```
//!
//! # Invariant
//!
//! Files named in the manifest are never modified. New copies get new names; the new manifest
//! replaces the old one after they are synced, and unnamed files are removed after that. An
//! interrupted backup therefore leaves the previous one intact.
//!
//! A backup belongs to one store. A directory with a backup of another store, or of a later state
//! of this one, is left as it is: the backup may be all that is left of a lost store.
//!
//! The backup contains every entry acknowledged before it began: active logs are opened and
//! measured first, and copied up to their last complete frame.

pub mod manifest;
pub mod restore;

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::files;
use super::layout::{self, SegmentFiles};
use super::{ToolError, Watch};
use crate::error::io_at;
use crate::format::name_of;
use crate::log::file::{LogFile, public_id};
use crate::log::walk::{self, Bounds};
use crate::tools::backup::manifest::{FileVersion, LogCopy, Manifest, SegmentState, SmallFile};
use crate::tools::files::tree::Tree;
use crate::vfs::Disk;
use crate::write::seqno::SequenceFile;
use crate::{StoreError, format};
use saltcellar_base::clock::Micros;
use saltcellar_model::{SETTINGS, SeqNo};

/// How a backup is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct BackupOptions {
    /// Remove segments that retention has dropped from the store.
    pub delete: bool,
    /// Hard-link finished segments if the backup is on the same file system; otherwise copy them.
    pub link: bool,
}

/// What a backup has, and what was done for it.
#[derive(Debug, Default)]
pub struct BackupReport {
    /// Segments in the backup.
    pub segments: u64,
    /// Bytes of the logs in the backup.
    pub bytes: u64,
    /// Segments copied or linked by this run.
    pub segments_copied: u64,
    /// Bytes copied by this run.
    pub bytes_copied: u64,
    /// Segments kept in the backup that the store has dropped.
    pub segments_dropped: u64,
    /// Segments removed from the backup.
    pub segments_deleted: u64,
    /// Damaged ranges of the store's logs (path, offset, bytes), copied as they are.
    pub damaged: Vec<(PathBuf, u64, u64)>,
    /// Logs that the disk cannot open. What an earlier run copied of them stays.
    pub unreadable: Vec<UnreadableLog>,
}

/// A log of the store that the disk cannot open.
#[derive(Debug)]
pub struct UnreadableLog {
    /// The segment.
    pub segment: SegmentFiles,
    /// The error of the disk.
    pub why: StoreError,
}

/// A log of the store.
struct SourceLog {
    segment: SegmentFiles,
    /// Open if the log is active: the daemon may replace the file.
    file: Option<File>,
    version: FileVersion,
    /// The last sequence number of an active log; of a finished one possibly only the number before
    /// its first one.
    last_seq: SeqNo,
}

impl SourceLog {
    fn is_of_settings(&self) -> bool {
        self.segment.class_name == SETTINGS
    }
}

/// Creates or updates a backup in `to`.
pub fn backup(
    from: &Path,
    to: &Path,
    options: BackupOptions,
    now: Micros,
    watch: &mut dyn Watch,
) -> Result<BackupReport, ToolError> {
    // Made absolute before anything depends on it: hard links and messages use the path.
    let to = &std::path::absolute(to).map_err(io_at("find", to))?;

    let store_id = layout::check_store(from)?;
    let store_format = crate::FORMAT_VERSION;

    files::check_disjoint(from, to)?;
    if to.exists() && !to.is_dir() {
        let why = "it is a file; choose a directory".to_owned();
        return Err(ToolError::NotOne {
            path: to.to_owned(),
            wanted: "directory for a backup",
            why,
        });
    }

    let before = Manifest::read(to)?;
    // A directory with other files is probably a mistake, and `remove_unnamed` would work in it.
    if before.is_none() && !is_empty_or_unfinished(to)? {
        return Err(ToolError::NotEmpty {
            path: to.to_owned(),
        });
    }

    // Without the file, the last numbers of finished logs are also read: they alone distinguish a
    // later state of the store from an earlier state.
    let has_numbers = SequenceFile::read(&Disk, from)?.flatten().is_some();
    let mut report = BackupReport::default();
    let sources = measure(from, store_id, !has_numbers, &mut report)?;

    // Read after the logs are measured, so it is above every number in them.
    let numbers = SequenceFile::read(&Disk, from)?
        .flatten()
        .unwrap_or_default();

    let store = public_id(store_id);
    if let Some(before) = &before {
        // Settings are numbered separately.
        let of_entries = sources.iter().filter(|source| !source.is_of_settings());
        let logged = of_entries.map(|source| source.last_seq.next()).max();
        let end = numbers.end.max(logged.unwrap_or_default());
        check_store(before, to, (&store, end), from)?;
    }

    let before = before.unwrap_or_default();
    let known = |source: &SourceLog| {
        before
            .logs
            .iter()
            .find(|log| is_of(log, &source.segment) && is_unchanged(log, source))
            .cloned()
    };

    // Only what will be copied needs space: unchanged logs stay.
    let new: u64 = sources
        .iter()
        .filter(|s| known(s).is_none())
        .map(|s| s.version.size)
        .sum();
    files::check_free_space(to, new)?;

    let tree = Tree::root(to)?;
    // Check for symbolic links before anything is copied.
    dirs(&tree)?;

    let mut manifest = Manifest {
        store_format,
        store,
        made: now.0,
        sequence: numbers.end.0,
        skipped: numbers.skipped,
        ..Manifest::default()
    };

    let mut done = 0;
    for source in sources {
        // Unchanged since the copy that the last manifest names. It may have been removed by hand.
        if let Some(log) = known(&source).filter(|log| to.join(&log.file).is_file()) {
            manifest.logs.push(log);
            continue;
        }

        let name = source.segment.name();
        watch.step(done, new, &name);
        let size = source.version.size;
        let mut each = |bytes: u64| watch.step(done + bytes, new, &name);
        // `None`: retention was faster. The next backup lists the segment as dropped, if an earlier
        // one had it.
        if let Some(log) = take(
            (source, store_id),
            &tree,
            &before,
            options,
            &mut each,
            &mut report,
        )? {
            report.segments_copied += 1;
            manifest.logs.push(log);
        }
        done += size;
    }

    watch.step(new, new, "");
    for old in &before.logs {
        // Still in the store.
        if manifest
            .logs
            .iter()
            .any(|log| log.class_name == old.class_name && log.first_seq == old.first_seq)
        {
            continue;
        }

        // Still in the store too, and this copy may be all that is left of it.
        let mut unreadable = report.unreadable.iter();
        if unreadable.any(|log| is_of(old, &log.segment)) {
            manifest.logs.push(old.clone());
            continue;
        }

        // Newer segments contain all of its values.
        if old.class_name == SETTINGS {
            continue;
        }
        // Kept by default: a backup is often the only place where old entries survive retention.
        if options.delete {
            report.segments_deleted += 1;
        } else {
            report.segments_dropped += 1;
            manifest.logs.push(LogCopy {
                state: SegmentState::Dropped,
                ..old.clone()
            });
        }
    }

    manifest
        .logs
        .sort_by(|a, b| (&a.class_name, a.first_seq).cmp(&(&b.class_name, b.first_seq)));

    for name in layout::small_files() {
        manifest
            .smalls
            .extend(small((from, store_id), to, &name, &before)?);
    }

    // Everything that the manifest names is durable before it replaces the old one.
    for dir in dirs(&tree)? {
        tree.sync(&dir)
            .map_err(io_at("sync the directory", &tree.path(&dir)))?;
    }
    manifest.write(to)?;

    // Only now: the old manifest named these files.
    remove_unnamed(&tree, &manifest)?;

    report.segments = manifest.logs.len() as u64;
    report.bytes = manifest.logs.iter().map(|log| log.bytes).sum();
    Ok(report)
}

/// Fails if the backup in `to` is of another store than `from`, or of a later state of it: `end` is
/// the number after its last entry.
fn check_store(
    before: &Manifest,
    to: &Path,
    (store, end): (&str, SeqNo),
    from: &Path,
) -> Result<(), ToolError> {
    // Another store first: numbers of different stores cannot be compared.
    let made = Micros(before.made).iso();
    let theirs = &before.store;
    let last = before.last_seq().0;
    let found = if theirs != store {
        format!(
            "the backup, made {made} with entries up to number {last}, is of the store {theirs}; {} is the store {store}",
            from.display()
        )
    } else if end.0 <= last {
        format!(
            "the backup, made {made}, has entries up to number {last}; {} has entries up to number {} only: \
             it is an earlier state of the same store, {store}",
            from.display(),
            end.0.saturating_sub(1)
        )
    } else {
        return Ok(());
    };

    Err(ToolError::OtherStore {
        path: to.to_owned(),
        found,
    })
}

fn is_of(log: &LogCopy, segment: &SegmentFiles) -> bool {
    log.class_name == segment.class_name && log.first_seq == segment.first_seq
}

fn is_unchanged(log: &LogCopy, source: &SourceLog) -> bool {
    // A segment that was sealed meanwhile is copied again, because its log may have been merged.
    log.version == source.version && (log.state == SegmentState::Sealed) == source.segment.is_sealed
}

/// Whether a directory is empty or contains only files of an interrupted first backup.
fn is_empty_or_unfinished(to: &Path) -> Result<bool, StoreError> {
    // One leftover is enough: an interrupted first backup left copies next to it.
    let is_leftover = |path: &PathBuf| {
        let name = name_of(path);
        name == "MANIFEST.tmp" || name == UNFINISHED
    };
    let items = files::list(to)?;
    let is_empty = items.iter().all(|path| files::is_of_file_system(path));
    Ok(is_empty || items.iter().any(is_leftover))
}

/// Exists until the first manifest is written: marks an interrupted backup.
const UNFINISHED: &str = "UNFINISHED";

/// Opens active logs and measures all logs before any copy. With `numbers`, the last sequence
/// number of each finished log is also read. Logs that cannot be opened are in the report.
fn measure(
    from: &Path,
    store_id: u64,
    numbers: bool,
    report: &mut BackupReport,
) -> Result<Vec<SourceLog>, ToolError> {
    let mut sources = Vec::new();
    // The settings first: cursors in the backup are then in its logs.
    let mut segments = layout::settings_segments(from)?;
    segments.append(&mut layout::segments(from)?);
    for mut segment in segments {
        let Some(file) = open(&mut segment, report)? else {
            continue;
        };

        let path = segment.log();
        let mut version = file_version(&file, &path)?;
        let mut last_seq = SeqNo(segment.first_seq.0.saturating_sub(1));

        // An active log is copied up to its last whole frame, which must be known before the copies
        // begin: everything acknowledged until now is in them.
        if !segment.is_sealed || numbers {
            let same = Box::new(file.try_clone().map_err(io_at("open", &path))?);
            let (end, last) = walk::end(&LogFile::of(&path, same, segment.id(store_id)))?;
            last_seq = last;
            if !segment.is_sealed {
                version.size = end;
            }
        }
        // A finished log is immutable and is reopened, which limits the open files.
        let file = (!segment.is_sealed).then_some(file);
        sources.push(SourceLog {
            segment,
            file,
            version,
            last_seq,
        });
    }
    Ok(sources)
}

/// Opens a log; `None` if its segment was dropped, or if the disk cannot open it, which is in the
/// report.
fn open(segment: &mut SegmentFiles, report: &mut BackupReport) -> Result<Option<File>, StoreError> {
    let found = segment.open_log()?;
    Ok(found.or_report(|why| {
        let segment = segment.clone();
        report.unreadable.push(UnreadableLog { segment, why });
    }))
}

fn file_version(file: &File, path: &Path) -> Result<FileVersion, StoreError> {
    let meta = file
        .metadata()
        .map_err(io_at("read the metadata of", path))?;
    // 128 bits: nanoseconds since 1970 leave 64 bits after 2262, and the file system may say
    // anything.
    let mtime_ns = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
    Ok(FileVersion {
        size: meta.len(),
        mtime_ns,
        inode: meta.ino(),
    })
}

/// Copies one log; `None` if retention has dropped it, or if it cannot be opened any more.
fn take(
    (source, store_id): (SourceLog, u64),
    tree: &Tree,
    before: &Manifest,
    options: BackupOptions,
    each: &mut dyn FnMut(u64),
    report: &mut BackupReport,
) -> Result<Option<LogCopy>, ToolError> {
    let SourceLog {
        mut segment,
        file,
        mut version,
        ..
    } = source;
    let file = match file {
        Some(file) => Some(file),
        None => open(&mut segment, report)?,
    };
    let Some(file) = file else {
        return Ok(None);
    };

    let path = segment.log();
    if segment.is_sealed {
        // Reopened: it may be the rewritten file, with the same entries.
        version = self::file_version(&file, &path)?;
    }

    let same = Box::new(file.try_clone().map_err(io_at("open", &path))?);
    let log = LogFile::of(&path, same, segment.id(store_id));
    let mut scanned = walk::walk(&log, Bounds::of_log(version.size), true, |_, _| None)?;
    // In an active log of the moment, an unfinished end is expected.
    if !segment.grows() {
        scanned = scanned.finished();
    }

    report.damaged.extend(
        scanned
            .damaged
            .iter()
            .map(|bad| (path.clone(), bad.offset, bad.bytes)),
    );

    let mut bytes = version.size;
    if segment.is_sealed {
        report.damaged.extend(
            scanned
                .tail
                .iter()
                .map(|bad| (path.clone(), bad.offset, bad.bytes)),
        );
    } else {
        // Bytes after the last complete frame are being written, or were never completed.
        bytes = scanned.end.min(version.size);
    }

    let root = tree.path(Path::new(""));
    let base = format!(
        "log/{}/{}",
        segment.class_name,
        format::segment_name(segment.first_seq)
    );
    let name = new_name(&root, &base, before);
    let target = root.join(&name);

    // Before the first copy: an interrupted first backup must not look like a directory of someone
    // else.
    if before.made == 0 {
        mark_unfinished(&root)?;
    }

    // A hard link fails across file systems, and then the log is copied.
    let linked = options.link && segment.is_sealed && tree.link(&path, &name).is_ok();
    let mut copied = 0;
    let hash = if linked {
        // Hashed all the same: the manifest must be able to prove the content.
        let file = tree.open_file(&name).map_err(io_at("open", &target))?;
        files::hashed(&file, &target, bytes, |_| Ok(()))?
    } else {
        let out = tree.create_new(&name).map_err(io_at("create", &target))?;
        files::copy(&file, &path, out, &target, bytes, |part| {
            copied += part;
            each(copied);
        })?
    };

    report.bytes_copied += copied;
    let state = if segment.is_sealed {
        SegmentState::Sealed
    } else {
        SegmentState::Growing
    };

    let SegmentFiles {
        class_name,
        first_seq,
        ..
    } = segment;
    Ok(Some(LogCopy {
        class_name,
        first_seq,
        last_seq: scanned.last_seq,
        file: name,
        bytes,
        hash,
        version,
        state,
    }))
}

/// A name that is free in the manifest and in the directory.
fn new_name(to: &Path, base: &str, before: &Manifest) -> String {
    let mut names = (0_u64..).map(|n| format!("{base}-{n}"));
    // Also in the directory: copies of an interrupted backup have names that no manifest has.
    let is_free = |name: &String| {
        let named = before
            .logs
            .iter()
            .map(|log| &log.file)
            .chain(before.smalls.iter().map(|small| &small.file));
        !named.into_iter().any(|known| known == name) && !to.join(name).exists()
    };
    names.find(is_free).unwrap_or_default()
}

fn mark_unfinished(to: &Path) -> Result<(), StoreError> {
    let path = to.join(UNFINISHED);
    // Written once; it stays until the first manifest is complete.
    if path.exists() {
        return Ok(());
    }
    files::write_small(&path, "interrupted backup; the next run continues it\n")
}

fn small(
    (from, store_id): (&Path, u64),
    to: &Path,
    name: &str,
    before: &Manifest,
) -> Result<Option<SmallFile>, ToolError> {
    let path = from.join(name);
    let bytes = match name {
        // The file may be damaged, and the store id known from the logs.
        "FORMAT" => format::format_text(store_id).into_bytes(),
        _ => match format::read_small(&Disk, &path)? {
            Some(content) => content.bytes,
            // Not in this store.
            None => return Ok(None),
        },
    };

    let hash = xxhash_rust::xxh3::xxh3_128(&bytes);
    let known = before
        .smalls
        .iter()
        .find(|small| small.name == name && small.hash == hash);

    // The copy that the last manifest names is kept if its content is the same, whatever the file's
    // timestamps are.
    if let Some(known) = known.filter(|small| to.join(&small.file).is_file()) {
        return Ok(Some(known.clone()));
    }

    let file = new_name(to, name, before);
    files::write_small(&to.join(&file), &bytes)?;
    Ok(Some(SmallFile {
        name: name.to_owned(),
        file,
        bytes: bytes.len() as u64,
        hash,
    }))
}

/// The directories of a backup, root first; an error if one of them is a symbolic link.
fn dirs(tree: &Tree) -> Result<Vec<PathBuf>, StoreError> {
    let mut dirs = vec![PathBuf::new()];
    let log = PathBuf::from("log");
    // Before the first backup there is only the root.
    if tree
        .file_type(&log)
        .map_err(io_at("read the metadata of", &tree.path(&log)))?
        .is_some()
    {
        for class in tree.list(&log).map_err(io_at("list", &tree.path(&log)))? {
            let dir = log.join(class);
            tree.dir(&dir).map_err(io_at("open", &tree.path(&dir)))?;
            dirs.push(dir);
        }
        dirs.push(log);
    }

    Ok(dirs)
}

/// Removes files that the manifest does not name: copies of an interrupted backup, and superseded
/// copies.
fn remove_unnamed(tree: &Tree, manifest: &Manifest) -> Result<(), ToolError> {
    let logs = manifest.logs.iter().map(|log| &log.file);
    let named: HashSet<&Path> = logs
        .chain(manifest.smalls.iter().map(|small| &small.file))
        .map(Path::new)
        .collect();

    // Foreign files stay, even in the directory of a backup.
    let is_copy = |name: &str| {
        let Some((base, n)) = name.rsplit_once('-') else {
            return name == UNFINISHED;
        };
        let ours = format::segment_seq(base).is_some() || layout::is_small_file(base);
        ours && n.bytes().all(|b| b.is_ascii_digit())
    };

    for dir in dirs(tree)? {
        let names = tree.list(&dir).map_err(io_at("list", &tree.path(&dir)))?;
        let mut left = names.len();
        for name in names
            .iter()
            .filter(|name| name.to_str().is_some_and(is_copy))
        {
            let path = dir.join(name);
            let shown = tree.path(&path);
            let found = tree
                .file_type(&path)
                .map_err(io_at("read the metadata of", &shown))?;
            // Neither directories nor symbolic links: this program made neither with such a name.
            if found.is_some_and(FileType::is_file) && !named.contains(path.as_path()) {
                tree.remove(&path).map_err(io_at("remove", &shown))?;
                left -= 1;
            }
        }

        // A class without logs, after its last segment was removed.
        if left == 0 && dir.parent() == Some(Path::new("log")) {
            tree.remove_dir(&dir)
                .map_err(io_at("remove", &tree.path(&dir)))?;
        }
    }
    Ok(())
}
