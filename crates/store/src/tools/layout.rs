//! The content of a state directory, determined from file names only.
//!
//! # Invariant
//!
//! A tool that runs while the daemon does finds every segment, even while its sealed form replaces it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::files::LOST_AND_FOUND;
use super::{ToolError, files};
use crate::error::io_at;
use crate::format::Generation;
use crate::format::{FoundId, name_of};
use crate::log::frame::LogId;
use crate::segment::{INDEX, INDEX_ASIDE, INDEX_DAMAGED};
use crate::settings::DAMAGED;
use crate::stopped::STOPPED;
use crate::vfs::read::is_damage;
use crate::vfs::{Disk, open_to_read};
use crate::write::seqno::SEQUENCE;
use crate::{StoreError, format};
use saltcellar_model::{SETTINGS, SeqNo, is_class_name};

/// What a name directly within a state directory stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The log.
    Log,
    /// Derived from the log, or without value after a stop.
    Derived,
    /// Cannot be rebuilt: part of backups and of salvaged stores.
    Kept,
    /// Cannot be rebuilt, and true only at this time: part of salvaged stores, not of backups. Settings of this kind are left
    /// out by `settings`.
    Present,
}

/// Everything that a state directory may hold, and what it is. The one list: verify, backup,
/// salvage and permissions use it.
pub(crate) const ITEMS: &[(&str, Role)] = &[
    ("FORMAT", Role::Kept),
    // Events that the store has not accepted yet.
    (SPILL_DIR, Role::Present),
    // A new store continues with other numbers.
    (SEQUENCE, Role::Derived),
    (STOPPED, Role::Derived),
    (format::HOLDER, Role::Derived),
    ("log", Role::Log),
    ("state", Role::Derived),
    ("state.damaged", Role::Derived),
    ("state.dropped", Role::Derived),
    ("state.new", Role::Derived),
    // Created by the file system if the directory is a mount point.
    (LOST_AND_FOUND, Role::Derived),
];

/// The directory of events that the store has not accepted yet.
pub const SPILL_DIR: &str = "spill";

fn role(name: &str) -> Option<Role> {
    ITEMS
        .iter()
        .find(|(item, _)| *item == name)
        .map(|(_, role)| *role)
}

/// Whether a name within a state directory belongs to a file that backups copy whole.
pub(crate) fn is_small_file(name: &str) -> bool {
    role(name) == Some(Role::Kept)
}

/// Whether a name directly within a state directory is one of saltcellar's.
pub(crate) fn is_known(name: &str) -> bool {
    role(name).is_some()
}

/// The existing files that cannot be rebuilt, by their names within a state directory, and whether
/// their content is compared: files of the spill have checksums, and may be large.
pub(crate) fn irreplaceable(dir: &Path) -> Result<Vec<(String, bool)>, StoreError> {
    let mut found: Vec<(String, bool)> = Vec::new();
    for name in small_files().into_iter().chain([SEQUENCE.to_owned()]) {
        if dir.join(&name).is_file() {
            found.push((name, true));
        }
    }

    // One directory per bus.
    for bus in files::list(&dir.join(SPILL_DIR))? {
        if !bus.is_dir() {
            continue;
        }
        for file in files::list(&bus)? {
            let name = file.strip_prefix(dir).ok().and_then(Path::to_str);
            let is_text = file.extension().is_none();
            found.extend(name.map(|name| (name.to_owned(), is_text)));
        }
    }

    Ok(found)
}

/// The names of the small files that backups and salvaged stores get unchanged.
pub(crate) fn small_files() -> Vec<String> {
    let names = ITEMS.iter().map(|(name, _)| (*name).to_owned());
    names.filter(|name| is_small_file(name)).collect()
}

/// The files of a segment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentFiles {
    pub(crate) class_name: String,
    pub(crate) first_seq: SeqNo,
    pub(crate) dir: PathBuf,
    /// Whether it has an index, which only finished segments have.
    pub(crate) is_sealed: bool,
    /// Whether it is the last segment of its class.
    pub is_newest: bool,
}

/// What is in the place of a segment's log.
#[derive(Debug)]
pub(crate) enum FoundLog {
    Open(File),
    /// Nothing: the segment was dropped since it was listed.
    Dropped,
    /// A file that the disk cannot open.
    Unreadable(StoreError),
}

impl FoundLog {
    /// The file, if it is open. Why the disk cannot open it is passed to `unreadable`; of a segment
    /// that was dropped there is nothing to say.
    pub(crate) fn or_report(self, unreadable: impl FnOnce(StoreError)) -> Option<File> {
        match self {
            Self::Open(file) => Some(file),
            Self::Dropped => None,
            Self::Unreadable(why) => {
                unreadable(why);
                None
            }
        }
    }
}

impl SegmentFiles {
    /// The path of its log.
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// The path of its index, if it has one.
    pub fn index(&self) -> PathBuf {
        self.dir.join(INDEX)
    }

    /// Opens its log for reading. A daemon may replace the segment by another generation meanwhile
    /// (`rewrite`): afterwards `dir` is where the log was found.
    pub(crate) fn open_log(&mut self) -> Result<FoundLog, StoreError> {
        let class_dir = self.dir.parent().unwrap_or(&self.dir).to_owned();
        loop {
            let path = self.log();
            match open_to_read(&path) {
                Ok(file) => return Ok(FoundLog::Open(file)),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                // Says nothing about the other segments, and the tool continues with them.
                Err(e) if is_damage(&e) => {
                    return Ok(FoundLog::Unreadable(io_at("open", &path)(e)));
                }
                Err(e) => return Err(io_at("open", &path)(e)),
            }

            // The next generation has its name before this one goes. It ends, because a segment has
            // few of them.
            match format::find_segment(&class_dir, self.first_seq)? {
                Some(found) if found.dir != self.dir => self.dir = found.dir,
                _ => return Ok(FoundLog::Dropped),
            }
        }
    }

    pub(crate) fn id(&self, store_id: u64) -> LogId {
        LogId {
            store_id,
            first_seq: self.first_seq,
        }
    }

    /// Its name in messages.
    pub fn name(&self) -> String {
        format!(
            "{}/{}",
            self.class_name,
            format::segment_name(self.first_seq)
        )
    }

    /// Whether it is active, or would be after the next start.
    pub(crate) fn grows(&self) -> bool {
        self.is_newest && !self.is_sealed
    }
}

/// Reads the store id from `FORMAT`; an error if the directory is not a store that this release can
/// read.
pub(crate) fn check_store(dir: &Path) -> Result<u64, ToolError> {
    let wanted = "store of saltcellar";
    let not = |why: &str| ToolError::NotOne {
        path: dir.to_owned(),
        wanted,
        why: why.to_owned(),
    };
    // From the plainest mistake to the damage that needs another tool.
    if !dir.is_dir() {
        return Err(not(if dir.exists() {
            "not a directory; name the store with --state-dir"
        } else {
            "no such directory; name the store with --state-dir"
        }));
    }

    let missing = || {
        if dir.join("MANIFEST").is_file() {
            return not("it is a backup; `saltcellar store restore` restores it");
        }
        if dir.join("log").is_dir() {
            return not(
                "the file FORMAT is missing; `saltcellar store salvage` copies the readable entries to a new store",
            );
        }
        not("the file FORMAT is missing; name the store with --state-dir")
    };

    match format::find_store_id(&Disk, dir) {
        Ok(FoundId::Stored(store_id) | FoundId::InLogs(store_id)) => Ok(store_id),
        // Not guessed from the logs: a restore that was interrupted looks the same.
        Ok(FoundId::Missing) => Err(missing()),
        Err(StoreError::FormatLost { .. }) => Err(not(
            "the file FORMAT is damaged; `saltcellar store salvage` copies the readable entries to a new store",
        )),
        Err(error) => Err(error.into()),
    }
}

/// Notices a daemon that has a state directory open, or had it open for a part of the time since the
/// first look: what a tool read meanwhile may not fit together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DaemonWatch {
    dir: PathBuf,
    /// The holder of the lock at the first look.
    pub(crate) holder: Option<String>,
    /// When the lock was taken last.
    taken: Option<SystemTime>,
}

impl DaemonWatch {
    pub(crate) fn begin(dir: &Path) -> Result<Self, StoreError> {
        // The time first: a daemon that starts in between is the holder, or has changed the time.
        let taken = format::last_taken(dir)?;
        let holder = match format::is_locked(dir) {
            // If it is unknown who holds the lock, assume that nobody does: this caller only reads.
            Err(error) if error.is_damage() => None,
            holder => holder?,
        };
        Ok(Self {
            dir: dir.to_owned(),
            holder,
            taken,
        })
    }

    /// Whether a daemon has opened the directory since the first look.
    pub(crate) fn has_started(&self) -> Result<bool, StoreError> {
        Ok(format::last_taken(&self.dir)? != self.taken)
    }
}

/// All segments, sorted by class and number, each in its highest generation.
pub fn segments(dir: &Path) -> Result<Vec<SegmentFiles>, StoreError> {
    // A daemon may rename directories meanwhile; two equal listings are consistent.
    let mut before = list_segments(dir)?;
    // Bounded: a busy store must not keep a tool here forever. The last listing is then as good as
    // any.
    for _ in 0..100 {
        let now = list_segments(dir)?;
        if now == before {
            break;
        }
        before = now;
    }
    Ok(before)
}

fn list_segments(dir: &Path) -> Result<Vec<SegmentFiles>, StoreError> {
    let mut segments = Vec::new();
    for class_name in format::class_names(dir)? {
        let mut found = format::generations(&format::class_dir(dir, &class_name))?;
        found.retain(Generation::has_log);

        let mut of_class: Vec<SegmentFiles> = Vec::new();
        for generation in found {
            let first_seq = generation.first_seq;
            // Ascending: the highest one counts.
            if of_class
                .last()
                .is_some_and(|before| before.first_seq == first_seq)
            {
                of_class.pop();
            }
            of_class.push(SegmentFiles {
                class_name: class_name.clone(),
                first_seq,
                is_sealed: generation.dir.join(INDEX).is_file(),
                dir: generation.dir,
                is_newest: false,
            });
        }

        if let Some(newest) = of_class.last_mut() {
            newest.is_newest = true;
        }
        segments.append(&mut of_class);
    }
    Ok(segments)
}

/// The segments of the settings, ascending.
pub(crate) fn settings_segments(dir: &Path) -> Result<Vec<SegmentFiles>, StoreError> {
    let found = format::generations(&format::class_dir(dir, SETTINGS))?;
    let mut segments: Vec<SegmentFiles> = found
        .into_iter()
        .filter(Generation::has_log)
        .map(|generation| SegmentFiles {
            class_name: SETTINGS.to_owned(),
            first_seq: generation.first_seq,
            dir: generation.dir,
            is_sealed: false,
            is_newest: false,
        })
        .collect();
    if let Some(newest) = segments.last_mut() {
        newest.is_newest = true;
    }

    Ok(segments)
}

/// Directories of segments that have lost their logs.
pub(crate) fn without_log(dir: &Path) -> Result<Vec<SegmentFiles>, StoreError> {
    let mut found = Vec::new();
    for class_name in format::class_names(dir)? {
        let generations = format::generations(&format::class_dir(dir, &class_name))?;
        for generation in generations.into_iter().filter(|one| !one.has_log()) {
            let mut segment = SegmentFiles {
                class_name: class_name.clone(),
                first_seq: generation.first_seq,
                is_sealed: generation.dir.join(INDEX).is_file(),
                dir: generation.dir,
                is_newest: false,
            };
            // It may have been replaced or dropped meanwhile. Without a log it has the mark of a
            // drop until the directory is renamed, so the directory is looked for last.
            if matches!(segment.open_log()?, FoundLog::Dropped)
                && !format::is_dropped(&segment.dir)
                && segment.dir.is_dir()
            {
                found.push(segment);
            }
        }
    }

    Ok(found)
}

/// Whether a file is the incomplete form of a small file.
fn is_incomplete(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "tmp")
}

/// Files and directories that saltcellar does not create.
pub fn foreign(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let known = |path: &PathBuf| role(name_of(path)).is_some() || is_incomplete(path);
    let mut found: Vec<PathBuf> = files::list(dir)?
        .into_iter()
        .filter(|path| !known(path))
        .collect();

    for class_dir in files::list(&dir.join("log"))? {
        let name = name_of(&class_dir);
        let is_class = is_class_name(name) || name == SETTINGS;
        if !class_dir.is_dir() || !is_class {
            found.push(class_dir);
            continue;
        }

        for segment in files::list(&class_dir)? {
            let name = name_of(&segment);
            // A damaged log that was kept.
            let damaged = name.strip_suffix(DAMAGED).and_then(format::generation_of);
            if damaged.is_some() && segment.is_file() && name_of(&class_dir) == SETTINGS {
                continue;
            }
            let mut suffixes = [format::NEW, format::DROPPED].into_iter();
            let plain = suffixes.find_map(|suffix| name.strip_suffix(suffix));
            let known = format::generation_of(plain.unwrap_or(name));
            // Also a file with the name of a segment. Not `is_dir`: it may have been removed
            // meanwhile.
            if known.is_none() || segment.is_file() {
                found.push(segment);
                continue;
            }
            let is_known = |path: &PathBuf| {
                let name = name_of(path);
                matches!(
                    name,
                    "log"
                        | "log.tmp"
                        | format::DROPPED_LOG
                        | INDEX
                        | "index.tmp"
                        | INDEX_ASIDE
                        | INDEX_DAMAGED
                ) || name.starts_with("log.cut-")
            };
            found.extend(
                files::list(&segment)?
                    .into_iter()
                    .filter(|path| !is_known(path)),
            );
        }
    }
    Ok(found)
}
