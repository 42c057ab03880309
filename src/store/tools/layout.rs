//! The content of a state directory, determined from file names only.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::files::LOST_AND_FOUND;
use super::{ToolError, files};
use crate::model::{SeqNo, is_class_name};
use crate::store::error::io_at;
use crate::store::format::Generation;
use crate::store::format::{FoundId, name_of};
use crate::store::log::frame::LogId;
use crate::store::segment::{INDEX, INDEX_ASIDE, INDEX_DAMAGED};
use crate::store::stopped::STOPPED;
use crate::store::vfs::{Disk, open_to_read};
use crate::store::write::seqno::SEQUENCE;
use crate::store::{StoreError, format};

/// What a name directly within a state directory stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The log.
    Log,
    /// Derived from the log, or without value after a stop.
    Derived,
    /// Cannot be rebuilt: part of backups and of salvaged stores.
    Kept,
    /// Cannot be rebuilt, and true only at this time: part of salvaged stores, not of backups.
    Present,
}

/// Everything that a state directory may hold, and what it is. The one list: verify, backup,
/// salvage and permissions use it.
pub(crate) const ITEMS: &[(&str, Role)] = &[
    ("FORMAT", Role::Kept),
    ("HOLDS", Role::Kept),
    ("KEEP_JOBS", Role::Kept),
    ("CONSUMERS", Role::Kept),
    (TOKENS_FILE, Role::Kept),
    (SINKS_DIR, Role::Kept),
    // Events of a restored backup are old, and their later records are lost: they must not cause
    // reactions again.
    ("REACTOR", Role::Present),
    // The newest entry supplies the time.
    ("CLOCK", Role::Present),
    // Events that the store has not accepted yet.
    (SPILL_DIR, Role::Present),
    // A new store continues with other numbers.
    (SEQUENCE, Role::Derived),
    (STOPPED, Role::Derived),
    (format::HOLDER, Role::Derived),
    ("log", Role::Log),
    ("state", Role::Derived),
    ("state.damaged", Role::Derived),
    ("state.new", Role::Derived),
    ("trash", Role::Derived),
    // Created by the file system if the directory is a mount point.
    (LOST_AND_FOUND, Role::Derived),
];

/// The directory of dead letters.
pub(crate) const SINKS_DIR: &str = "sinks";

/// The directory of events that the store has not accepted yet.
pub(crate) const SPILL_DIR: &str = "spill";

/// The tokens of the HTTP listener: hashes, from which no token can be made.
pub(crate) const TOKENS_FILE: &str = "TOKENS";

fn role(name: &str) -> Option<Role> {
    ITEMS
        .iter()
        .find(|(item, _)| *item == name)
        .map(|(_, role)| *role)
}

/// The name of the sink whose dead letters are in a file of the directory `sinks`.
fn sink_of(file: &str) -> Option<&str> {
    let sink = file.strip_suffix(".dead")?;
    (!sink.is_empty() && !sink.contains(['/', '.', ' '])).then_some(sink)
}

/// Whether a name within a state directory is that of a file that backups copy whole.
pub(crate) fn is_small_file(name: &str) -> bool {
    match name.split_once('/') {
        Some((SINKS_DIR, file)) => sink_of(file).is_some(),
        Some(_) => false,
        None => name != SINKS_DIR && role(name) == Some(Role::Kept),
    }
}

/// Whether a name directly within a state directory is one of saltcellar's.
pub(crate) fn is_known(name: &str) -> bool {
    role(name).is_some()
}

/// The name of a small file in a backup, without its number.
pub(crate) fn copy_name(name: &str) -> String {
    name.replace('/', "-")
}

/// The small file whose copies in a backup have this name, see [`copy_name`].
pub(crate) fn name_of_copy(copy: &str) -> Option<String> {
    // A name without a directory first: `-` is allowed in it.
    [copy.to_owned(), copy.replacen('-', "/", 1)]
        .into_iter()
        .find(|name| is_small_file(name))
}

/// The names of the files that a salvaged store gets unchanged.
pub(crate) fn salvaged_files(dir: &Path) -> Result<Vec<String>, StoreError> {
    let mut names = small_files(dir)?;
    let present = ITEMS.iter().filter(|(_, role)| *role == Role::Present);
    names.extend(present.map(|(name, _)| (*name).to_owned()));
    // The spill is copied as a tree: it has files of any name.
    names.retain(|name| name != SPILL_DIR);
    Ok(names)
}

/// The existing files that cannot be rebuilt, by their names within a state directory, and whether
/// their content is compared: files of the spill have checksums, and may be large.
pub(crate) fn irreplaceable(dir: &Path) -> Result<Vec<(String, bool)>, StoreError> {
    let mut found: Vec<(String, bool)> = Vec::new();
    for name in salvaged_files(dir)?
        .into_iter()
        .chain([SEQUENCE.to_owned()])
    {
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

/// The names of the small files that may exist in a state directory: all fixed ones, and the
/// existing dead letters.
pub(crate) fn small_files(dir: &Path) -> Result<Vec<String>, StoreError> {
    let fixed = ITEMS.iter().map(|(name, _)| (*name).to_owned());
    let mut names: Vec<String> = fixed.filter(|name| is_small_file(name)).collect();

    let found = files::list(&dir.join(SINKS_DIR))?;
    let letters = found
        .iter()
        .map(|path| format!("{SINKS_DIR}/{}", name_of(path)));
    names.extend(letters.filter(|name| is_small_file(name)));
    Ok(names)
}

/// Writes a small file into a state directory.
pub(crate) fn write_small_file(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    let path = dir.join(name);
    if name.contains('/') {
        files::make_dir(&dir.join(SINKS_DIR))?;
    }
    files::write_small(&path, bytes)
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SegmentFiles {
    pub(crate) class_name: String,
    pub(crate) first_seq: SeqNo,
    pub(crate) dir: PathBuf,
    /// Whether it has an index, which only finished segments have.
    pub(crate) is_sealed: bool,
    /// Whether it is the last segment of its class.
    pub(crate) is_newest: bool,
}

impl SegmentFiles {
    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    pub(crate) fn index(&self) -> PathBuf {
        self.dir.join(INDEX)
    }

    /// Opens its log for reading; `None` if the segment was dropped since it was listed. A daemon
    /// may replace it by another generation meanwhile (`rewrite`). Afterwards `dir` is where the log
    /// was found.
    pub(crate) fn open_log(&mut self) -> Result<Option<File>, StoreError> {
        let class_dir = self.dir.parent().unwrap_or(&self.dir).to_owned();
        loop {
            let path = self.log();
            match open_to_read(&path) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                file => return Ok(Some(file.map_err(io_at("open", &path))?)),
            }

            // The next generation has its name before this one goes. It ends, because a segment has
            // few of them.
            match format::find_segment(&class_dir, self.first_seq)? {
                Some(found) if found.dir != self.dir => self.dir = found.dir,
                _ => return Ok(None),
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
    pub(crate) fn name(&self) -> String {
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
            "not a directory"
        } else {
            "no such directory"
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
        not("the file FORMAT is missing")
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
        let holder = format::is_locked(dir)?;
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
pub(crate) fn segments(dir: &Path) -> Result<Vec<SegmentFiles>, StoreError> {
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

/// Directories of segments without a log.
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
            // It may have been replaced or dropped meanwhile.
            if segment.open_log()?.is_none() && segment.dir.is_dir() {
                found.push(segment);
            }
        }
    }
    Ok(found)
}

/// Whether a file is the incomplete form of a small file, or one with parts that the disk could not
/// read.
fn is_incomplete(path: &Path) -> bool {
    path.extension()
        .is_some_and(|end| end == "tmp" || end == "damaged")
}

/// Files and directories that saltcellar does not create.
pub(crate) fn foreign(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let known = |path: &PathBuf| role(name_of(path)).is_some() || is_incomplete(path);
    let mut found: Vec<PathBuf> = files::list(dir)?
        .into_iter()
        .filter(|path| !known(path))
        .collect();

    let sinks = files::list(&dir.join(SINKS_DIR))?;
    let is_letters = |path: &PathBuf| sink_of(name_of(path)).is_some() || is_incomplete(path);
    found.extend(sinks.into_iter().filter(|path| !is_letters(path)));

    for class_dir in files::list(&dir.join("log"))? {
        let name = name_of(&class_dir);
        if !class_dir.is_dir() || !is_class_name(name) {
            found.push(class_dir);
            continue;
        }

        for segment in files::list(&class_dir)? {
            let name = name_of(&segment);
            let known = format::generation_of(name.strip_suffix(format::NEW).unwrap_or(name));
            // Also a file with the name of a segment. Not `is_dir`: it may have gone meanwhile.
            if known.is_none() || segment.is_file() {
                found.push(segment);
                continue;
            }
            let is_known = |path: &PathBuf| {
                let name = name_of(path);
                matches!(
                    name,
                    "log" | "log.tmp" | INDEX | "index.tmp" | INDEX_ASIDE | INDEX_DAMAGED
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
