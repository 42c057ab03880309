//! Layout of the state directory: format version, lock file, names of classes and segments.
//!
//! # On disk
//!
//! ```text
//! state-dir/
//!   FORMAT                    "saltcellar store, format <version>\nstore id <16 hexadecimal digits>-<8 of their crc32>\n"
//!                             flock(2) on it: the daemon, or a tool that changes the store
//!   HOLDER                    text: who has the lock, for messages
//!   state/                    sled: data across segments (see `index::state`)
//!   log/settings/             the class of what cannot be rebuilt from entries (see `settings`)
//!   log/<class>/<first-seq>.<n>/  a segment; first-seq in 20 digits; n its generation
//!     log                     frames (see `log` and `frame`)
//!     index                   the index of a sealed segment, a table (see `index`)
//!     log.dropped             in place of `log`: the segment was dropped (see `segment::removal`)
//!   log/<class>/<first-seq>.<n>.dropped/  what is left of a dropped segment
//! ```
//!
//! # Versions
//!
//! - 1 to 3: unreleased; not readable.
//! - 4: the index of a sealed segment is a table, bound to its log.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use super::error::{StoreError, io_at};
use super::vfs::Fs;
use super::vfs::read::{Content, read_whole};
use crate::log::file::{FORMAT_VERSION, LogFile};
use crate::log::frame::LogId;
use saltcellar_base::limits::LOCK_POLL;
use saltcellar_model::{SETTINGS, SeqNo, is_class_name};

/// The directory of a class.
pub fn class_dir(state_dir: &Path, class_name: &str) -> PathBuf {
    state_dir.join("log").join(class_name)
}

/// The entries of a directory, sorted; empty if it does not exist.
pub fn list(path: &Path) -> Result<Vec<PathBuf>, StoreError> {
    // Many directories exist only if they were ever needed.
    let items = match fs::read_dir(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        items => items.map_err(io_at("list", path))?,
    };

    let found: io::Result<Vec<PathBuf>> = items.map(|item| Ok(item?.path())).collect();
    let mut found = found.map_err(io_at("list", path))?;
    // Sorted, because file systems list names in any order, and segments need the order of their
    // numbers.
    found.sort_unstable();
    Ok(found)
}

/// The last component of a path; empty if it is not UTF-8.
pub(crate) fn name_of(path: &Path) -> &str {
    path.file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default()
}

/// The content of a small file; `None` if it does not exist. Unreadable parts are logged, and read
/// as zero bytes.
pub(crate) fn read_small(fs: &dyn Fs, path: &Path) -> Result<Option<Content>, StoreError> {
    // An error to retry is returned; only what the disk cannot read is replaced.
    let content = read_whole(fs, path).map_err(io_at("read", path))?;

    for range in content.iter().flat_map(|content| &content.unreadable) {
        tracing::error!(
            path = %path.display(), offset = range.start, bytes = range.end - range.start,
            "the disk cannot read part of a file, using zero bytes in its place: check the disk and run `saltcellar store verify`"
        );
    }
    Ok(content)
}

/// Removes a directory with its content, if it exists.
pub fn remove_dir(fs: &dyn Fs, path: &Path) -> Result<(), StoreError> {
    match fs.remove_dir_all(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(io_at("remove", path)),
    }
}

/// Removes derived data in one step: a crash leaves all or none of it. A half-removed database
/// would count as damaged, and be kept next to the new one. On a full disk, where the directory may
/// have no room for another name, it is removed in place.
pub(crate) fn discard(fs: &dyn Fs, derived: &Path) -> Result<(), StoreError> {
    // Nothing to do; also makes a repeated call harmless.
    if !derived.exists() {
        return Ok(());
    }

    finish_discard(fs, derived)?;
    let place = dropped(derived);
    match fs.rename(derived, &place).map_err(io_at("rename", derived)) {
        Err(error) if error.is_no_space() => return remove_dir(fs, derived),
        renamed => renamed?,
    }
    // Durable before the removal begins: a power loss must not bring back a half of it.
    sync_dir(fs, derived.parent().unwrap_or(derived))?;
    remove_dir(fs, &place)
}

/// Removes what is left of [`discard`] after a crash.
pub(crate) fn finish_discard(fs: &dyn Fs, derived: &Path) -> Result<(), StoreError> {
    let place = dropped(derived);
    // The usual case.
    if !place.exists() {
        return Ok(());
    }
    // As in `discard`: the rename may not be durable yet.
    sync_dir(fs, derived.parent().unwrap_or(derived))?;
    remove_dir(fs, &place)
}

/// The names of all classes of entries with a directory, sorted.
pub(crate) fn class_names(state_dir: &Path) -> Result<Vec<String>, StoreError> {
    let mut dirs = list(&state_dir.join("log"))?;
    dirs.retain(|path| is_class_name(name_of(path)) && path.is_dir());
    Ok(dirs.iter().map(|path| name_of(path).to_owned()).collect())
}

/// The first number of a segment, as in names.
pub fn segment_name(first_seq: SeqNo) -> String {
    format!("{:020}", first_seq.0)
}

/// Suffix of a segment's directory until it is complete.
pub(crate) const NEW: &str = ".new";

/// Suffix of a directory that is being removed.
pub(crate) const DROPPED: &str = ".dropped";

/// Name of the log of a segment that was dropped.
pub(crate) const DROPPED_LOG: &str = "log.dropped";

/// Parses a segment's first number, as in names.
pub(crate) fn segment_seq(name: &str) -> Option<SeqNo> {
    (name.len() == 20).then(|| name.parse().ok().map(SeqNo))?
}

/// The name of a segment's directory. A segment that is rewritten gets another generation; the
/// highest one counts.
pub fn generation_name(first_seq: SeqNo, generation: u32) -> String {
    format!("{}.{generation}", segment_name(first_seq))
}

/// Parses the name of a segment's directory.
pub(crate) fn generation_of(name: &str) -> Option<(SeqNo, u32)> {
    let (first_seq, generation) = name.split_once('.')?;
    let first_seq = segment_seq(first_seq)?;
    let generation = generation.parse().ok()?;
    // One spelling each: `.07` is a foreign name.
    (generation_name(first_seq, generation) == name).then_some((first_seq, generation))
}

/// The directory of a segment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Generation {
    pub(crate) first_seq: SeqNo,
    pub(crate) number: u32,
    pub(crate) dir: PathBuf,
}

impl Generation {
    pub(crate) fn has_log(&self) -> bool {
        self.dir.join("log").is_file()
    }
}

/// Whether a directory was dropped on purpose. Nothing in it counts then.
pub(crate) fn is_dropped(dir: &Path) -> bool {
    // A log that an administrator put back counts.
    let has_mark = || dir.join(DROPPED_LOG).is_file() && !dir.join("log").is_file();
    dir.is_dir() && (name_of(dir).ends_with(DROPPED) || has_mark())
}

/// All segment directories in a class's directory, ascending by segment, then by generation.
pub(crate) fn generations(class_dir: &Path) -> Result<Vec<Generation>, StoreError> {
    let mut found: Vec<Generation> = list(class_dir)?
        .into_iter()
        .filter_map(|dir| {
            let (first_seq, number) = generation_of(name_of(&dir))?;
            // Not `is_dir`: it may have gone meanwhile.
            (!dir.is_file()).then_some(Generation {
                first_seq,
                number,
                dir,
            })
        })
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// The generation of a segment that counts: the highest one with a log.
pub(crate) fn find_segment(
    class_dir: &Path,
    first_seq: SeqNo,
) -> Result<Option<Generation>, StoreError> {
    let mut found = generations(class_dir)?;
    found.retain(|found| found.first_seq == first_seq && found.has_log());
    Ok(found.pop())
}

/// The directory of a segment. The generation of a lost segment is unknown: its name contains a `*`
/// in that place.
pub(crate) fn segment_dir(state_dir: &Path, class_name: &str, first_seq: SeqNo) -> PathBuf {
    let class_dir = class_dir(state_dir, class_name);
    // For messages and comparisons: what cannot be listed is lost.
    let mut found = generations(&class_dir).unwrap_or_default();
    found.retain(|found| found.first_seq == first_seq);
    let with_log = found.iter().rposition(Generation::has_log);
    let at = with_log.or(found.len().checked_sub(1));
    at.and_then(|at| found.get(at)).map_or_else(
        || class_dir.join(segment_name(first_seq) + ".*"),
        |found| found.dir.clone(),
    )
}

/// The directory of a generation that does not exist yet, above all existing generations of a
/// segment.
pub(crate) fn next_generation(class_dir: &Path, first_seq: SeqNo) -> Result<PathBuf, StoreError> {
    let found = generations(class_dir)?;
    let highest = found.iter().rfind(|found| found.first_seq == first_seq);
    let number = match highest {
        Some(highest) => highest.number.checked_add(1).ok_or_else(|| {
            StoreError::Failed(format!(
                "{}: no higher number exists for the next form of this segment; please report it",
                highest.dir.display()
            ))
        })?,
        None => 0,
    };
    Ok(class_dir.join(generation_name(first_seq, number)))
}

/// The name of a directory until it is complete.
pub(crate) fn unfinished(dir: &Path) -> PathBuf {
    with_suffix(dir, NEW)
}

/// The name of a directory while it is being removed.
pub(crate) fn dropped(dir: &Path) -> PathBuf {
    with_suffix(dir, DROPPED)
}

fn with_suffix(dir: &Path, suffix: &str) -> PathBuf {
    let mut name = dir.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Creates a directory and its ancestors with mode 0750, and syncs the parent. The parent of an
/// existing directory is also synced: its creator may have died before the sync, or the sync
/// failed.
pub(crate) fn make_dir(fs: &dyn Fs, path: &Path) -> Result<(), StoreError> {
    // The root always exists.
    let Some(parent) = path.parent() else {
        return Ok(());
    };

    let parent = if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    };

    let was_there = path.is_dir();
    if !was_there {
        // One at a time, because every new name on the way must be synced.
        if !parent.is_dir() {
            make_dir(fs, parent)?;
        }
        match fs.make_dir(path) {
            // Another process made it in between.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            made => made.map_err(io_at("create the directory", path)),
        }?;
    }

    // Also for an existing directory; see above.
    match fs.sync_dir(parent) {
        // An ancestor of the state directory that belongs to another user.
        Err(e) if was_there && e.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced.map_err(io_at("sync the directory", parent)),
    }
}

/// Syncs a directory: entries created or removed so far survive a power loss.
pub(crate) fn sync_dir(fs: &dyn Fs, path: &Path) -> Result<(), StoreError> {
    fs.sync_dir(path).map_err(io_at("sync the directory", path))
}

/// An exclusive lock on the state directory: on an open handle of `FORMAT`, held until all clones
/// are dropped. Without that file there is no store. If it is removed while the holder runs, nobody
/// opens a second store.
#[derive(Debug, Clone)]
pub(crate) struct Lock {
    _file: Arc<File>,
}

impl Lock {
    /// Takes the lock, and records `holder` for the error message of later attempts. Makes an empty
    /// directory a store. A process that holds the lock may take up to `timeout` to release it: a
    /// tool holds it for a moment to see whether a daemon runs ([`is_locked`]), and a process that
    /// a killed daemon was about to start holds it until it runs its program.
    pub(crate) fn take(
        fs: &dyn Fs,
        state_dir: &Path,
        holder: &str,
        timeout: Duration,
    ) -> Result<Self, StoreError> {
        let path = state_dir.join(FORMAT);
        let deadline = Instant::now() + timeout;
        loop {
            let file = match OpenOptions::new().read(true).write(true).open(&path) {
                Err(why) if why.kind() == io::ErrorKind::NotFound => {
                    // Another process may create the file at the same time, so the loop opens
                    // whichever is there.
                    create_format(fs, state_dir)?;
                    continue;
                }
                file => file.map_err(io_at("open", &path))?,
            };

            // Polled, because `flock` has no timeout.
            while !try_lock(&file, FlockOperation::NonBlockingLockExclusive)
                .map_err(io_at("lock", &path))?
            {
                if Instant::now() >= deadline {
                    return Err(StoreError::Locked {
                        path: state_dir.to_owned(),
                        holder: holder_of(state_dir),
                    });
                }
                std::thread::sleep(LOCK_POLL);
            }

            // An administrator may have replaced the file meanwhile. Others would lock the new one.
            if is_named(&file, &path)? {
                note_holder(&file, state_dir, holder);
                return Ok(Self {
                    _file: Arc::new(file),
                });
            }
        }
    }
}

/// Whether a path still names an open file.
fn is_named(file: &File, path: &Path) -> Result<bool, StoreError> {
    use std::os::unix::fs::MetadataExt as _;

    let identity = |about: fs::Metadata| (about.dev(), about.ino());
    let own = file
        .metadata()
        .map_err(io_at("read the metadata of", path))?;
    match fs::metadata(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(false),
        named => {
            let named = named.map_err(io_at("read the metadata of", path))?;
            Ok(identity(own) == identity(named))
        }
    }
}

/// Records who holds the lock, and when it was taken ([`last_taken`]). Both are informative; the
/// lock works without them.
fn note_holder(file: &File, state_dir: &Path, holder: &str) {
    let now = rustix::fs::Timespec {
        tv_sec: 0,
        tv_nsec: rustix::fs::UTIME_NOW,
    };
    let times = rustix::fs::Timestamps {
        last_access: now,
        last_modification: now,
    };
    if let Err(error) = rustix::fs::futimens(file, &times) {
        tracing::warn!(dir = %state_dir.display(), %error, "cannot set the time of FORMAT, `saltcellar store verify` may not notice that a daemon started: check that the daemon's user owns the file");
    }

    // Overwriting needs no free block on a full disk.
    let path = state_dir.join(HOLDER);
    let text = format!("{holder}\n");
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .and_then(|file| {
            file.write_all_at(text.as_bytes(), 0)?;
            file.set_len(text.len() as u64)
        });
    if let Err(error) = written {
        tracing::warn!(path = %path.display(), %error, "cannot write the holder of the lock, messages about the lock do not name it: check the owner of the file and the space on the disk");
        // A wrong holder is worse than none.
        let _ = fs::remove_file(&path);
    }
}

/// When the lock was taken last, or the store was made; `None` without a store.
pub(crate) fn last_taken(state_dir: &Path) -> Result<Option<SystemTime>, StoreError> {
    let path = state_dir.join(FORMAT);
    match fs::metadata(&path).and_then(|found| found.modified()) {
        Err(e) if is_absent(&e) => Ok(None),
        time => Ok(Some(time.map_err(io_at("read the time of", &path))?)),
    }
}

/// The name of the process that holds the lock of a state directory, or `None`. Takes the lock only
/// for this check. A daemon that starts at this moment waits, see [`Lock::take`].
pub(crate) fn is_locked(state_dir: &Path) -> Result<Option<String>, StoreError> {
    let path = state_dir.join(FORMAT);
    let file = match File::open(&path) {
        Err(e) if is_absent(&e) => return Ok(None),
        file => file.map_err(io_at("open", &path))?,
    };

    // Shared, because otherwise two tools would take each other for a daemon.
    let is_free =
        try_lock(&file, FlockOperation::NonBlockingLockShared).map_err(io_at("lock", &path))?;
    Ok((!is_free).then(|| holder_of(state_dir)))
}

/// Name of the file with the version and the store id, which is locked.
const FORMAT: &str = "FORMAT";

/// Name of the file that tells who holds the lock.
pub(crate) const HOLDER: &str = "HOLDER";

/// Whether an error means that a file does not exist, or cannot: its directory is a file.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// False if another process holds the lock. A file system without locks is an error, not a holder.
fn try_lock(file: &File, operation: FlockOperation) -> io::Result<bool> {
    match flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Who holds the lock. Only for messages.
fn holder_of(state_dir: &Path) -> String {
    let text = File::open(state_dir.join(HOLDER)).and_then(io::read_to_string);
    let text = text.unwrap_or_default();
    match text.trim() {
        "" => "another process".to_owned(),
        holder => holder.to_owned(),
    }
}

const SUM_WORD: &str = "sum ";

/// A string with its checksum as the last line: `sum`, space, xxh3-64 of everything before, 16
/// hexadecimal digits.
pub(crate) fn with_sum(text: &str) -> String {
    format!("{text}{SUM_WORD}{:016x}\n", xxh3_64(text.as_bytes()))
}

/// The text before the checksum in the last line; `None` if the checksum is missing or does not
/// match.
pub(crate) fn without_sum(bytes: &[u8]) -> Option<&str> {
    let text = str::from_utf8(bytes).ok()?;
    let at = text
        .trim_end_matches('\n')
        .rfind('\n')
        .map_or(0, |at| at + 1);
    let body = text.get(..at)?;
    // The whole text is compared, so a second line of checksums or bytes behind it do not pass
    // either.
    (with_sum(body) == text).then_some(body)
}

const FORMAT_WORDS: &str = "saltcellar store, format ";
const STORE_ID_WORDS: &str = "store id ";

/// The text of a file `FORMAT`.
pub fn format_text(store_id: u64) -> String {
    format!(
        "{FORMAT_WORDS}{FORMAT_VERSION}\n{}\n",
        store_id_line(store_id)
    )
}

fn store_id_line(store_id: u64) -> String {
    let digits = format!("{store_id:016x}");
    format!(
        "{STORE_ID_WORDS}{digits}-{:08x}",
        crc32fast::hash(digits.as_bytes())
    )
}

/// Why no store id can be read from a file `FORMAT`. The strings describe the format that was
/// found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoStoreId {
    /// The file is damaged.
    Damaged(String),
    /// It is intact, and written by another release.
    OtherVersion(String),
}

/// Parses the store id from a file `FORMAT`.
pub(crate) fn read_format(text: &str) -> Result<u64, NoStoreId> {
    let mut lines = text.lines();
    let version = lines
        .next()
        .and_then(|line| line.strip_prefix(FORMAT_WORDS))
        .ok_or_else(|| NoStoreId::Damaged("unknown (FORMAT is damaged)".to_owned()))?;
    // Not damage: another release wrote this string.
    if version != FORMAT_VERSION.to_string() {
        return Err(NoStoreId::OtherVersion(version.to_owned()));
    }

    let line = lines.next().unwrap_or_default();
    let digits = line
        .strip_prefix(STORE_ID_WORDS)
        .and_then(|id| id.get(..16))
        .unwrap_or_default();

    // The digits alone would accept a changed digit.
    let store_id = u64::from_str_radix(digits, 16)
        .ok()
        .filter(|store_id| store_id_line(*store_id) == line);
    store_id.ok_or_else(|| {
        NoStoreId::Damaged(format!(
            "{version} without a valid store id in its second line (FORMAT is damaged)"
        ))
    })
}

/// Makes an empty directory a store: a new store id.
fn create_format(fs: &dyn Fs, state_dir: &Path) -> Result<(), StoreError> {
    // One process at a time: there is no file to lock yet, and a process could replace a file that
    // another has just locked.
    let dir = File::open(state_dir).map_err(io_at("open", state_dir))?;
    flock(&dir, FlockOperation::LockExclusive)
        .map_err(io::Error::from)
        .map_err(io_at("lock", state_dir))?;

    let path = state_dir.join(FORMAT);
    if path.exists() {
        return Ok(());
    }
    // Never made up in a store with data: frames of the true id would then be invalid. An
    // interrupted restore looks the same.
    if state_dir.join("log").exists() {
        let found = "unknown (the file FORMAT is missing)".to_owned();
        return Err(format_lost(state_dir, found));
    }

    let text = format_text(saltcellar_model::secret_seed());
    fs.write_whole(&path, text.as_bytes())
        .map_err(io_at("write", &path))
}

/// Checks the format version of a locked state directory. Returns the store id, a random number that
/// is part of every frame's checksum.
pub(crate) fn check_version(fs: &dyn Fs, state_dir: &Path) -> Result<u64, StoreError> {
    match find_store_id(fs, state_dir)? {
        FoundId::Stored(store_id) => Ok(store_id),
        FoundId::InLogs(store_id) => {
            let path = state_dir.join(FORMAT);
            tracing::error!(path = %path.display(), "file damaged, rewritten with the store id from the log headers: run `saltcellar store verify` and check the disk");
            // In place: the lock is on this file. If it is interrupted, the file is as damaged as
            // before.
            let text = format_text(store_id);
            let write = || {
                let file = fs.open_to_write(&path)?;
                file.write_all_at(text.as_bytes(), 0)?;
                file.set_len(text.len() as u64)?;
                file.sync_all()
            };
            write().map_err(io_at("write", &path))?;
            Ok(store_id)
        }
        // Removed since it was locked.
        FoundId::Missing => Err(format_lost(
            state_dir,
            "unknown (the file FORMAT is missing)".to_owned(),
        )),
    }
}

/// Where the store id of a state directory was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FoundId {
    /// In `FORMAT`.
    Stored(u64),
    /// `FORMAT` is damaged or cannot be read; the headers of all logs agree.
    InLogs(u64),
    /// There is no `FORMAT`.
    Missing,
}

/// Reads the store id. Another format is an error, as is a damaged `FORMAT` if the logs do not
/// determine the store id.
pub(crate) fn find_store_id(fs: &dyn Fs, state_dir: &Path) -> Result<FoundId, StoreError> {
    // Nothing is derived from the logs without a file: see `check_version`.
    let Some(content) = read_small(fs, &state_dir.join("FORMAT"))? else {
        return Ok(FoundId::Missing);
    };

    match read_format(&String::from_utf8_lossy(&content.bytes)) {
        // A header is valid for this format only.
        Ok(store_id) => Ok(FoundId::Stored(store_id)),
        Err(NoStoreId::Damaged(found)) => match store_ids(fs, state_dir).as_slice() {
            [store_id] => Ok(FoundId::InLogs(*store_id)),
            _ => Err(format_lost(state_dir, found)),
        },
        Err(NoStoreId::OtherVersion(found)) => Err(StoreError::Version {
            path: state_dir.to_owned(),
            found,
            expected: FORMAT_VERSION,
        }),
    }
}

/// The error for a missing or damaged `FORMAT`.
fn format_lost(state_dir: &Path, found: String) -> StoreError {
    StoreError::FormatLost {
        path: state_dir.to_owned(),
        found,
        expected: FORMAT_VERSION,
    }
}

/// The store ids in valid log headers, most frequent first.
pub(crate) fn store_ids(fs: &dyn Fs, state_dir: &Path) -> Vec<u64> {
    // What cannot be read does not vote.
    let mut counts = std::collections::BTreeMap::<u64, u64>::new();
    let settings = std::iter::once(SETTINGS.to_owned());
    for class_name in class_names(state_dir)
        .unwrap_or_default()
        .into_iter()
        .chain(settings)
    {
        let class_dir = class_dir(state_dir, &class_name);
        for segment in list(&class_dir).unwrap_or_default() {
            // Reading a header needs no id.
            let id = LogId {
                store_id: 0,
                first_seq: SeqNo::default(),
            };
            let log = LogFile::bare(fs, &segment.join("log"), id);
            if let Ok(Some(header)) = log.and_then(|log| log.header()) {
                *counts.entry(header.id().store_id).or_default() += 1;
            }
        }
    }

    let mut ids: Vec<_> = counts.into_iter().collect();
    ids.sort_by_key(|(store_id, count)| (std::cmp::Reverse(*count), *store_id));
    ids.into_iter().map(|(store_id, _)| store_id).collect()
}

#[cfg(test)]
mod tests {
    use super::super::vfs::Disk;
    use super::*;
    use saltcellar_base::clock::Micros;

    /// As a start does.
    fn opened(dir: &Path) -> Result<u64, StoreError> {
        let _lock = Lock::take(&Disk, dir, "the test", Duration::ZERO)?;
        check_version(&Disk, dir)
    }

    #[test]
    fn without_its_format_a_locked_store_is_not_opened_a_second_time() {
        let dir = tempfile::tempdir().unwrap();
        opened(dir.path()).unwrap();
        let path = dir.path().join(FORMAT);
        let text = fs::read(&path).unwrap();
        let take = || Lock::take(&Disk, dir.path(), "me", Duration::ZERO);

        let held = take().unwrap();
        fs::create_dir(dir.path().join("log")).unwrap();
        fs::remove_file(dir.path().join(HOLDER)).unwrap();
        let error = take().unwrap_err().to_string();
        assert!(error.contains("another process"), "{error}");
        fs::remove_file(&path).unwrap();
        assert!(matches!(take(), Err(StoreError::FormatLost { .. })));
        drop(held);

        // A start that waits for the lock sees that the file was replaced.
        fs::write(&path, &text).unwrap();
        let old = take().unwrap();
        std::thread::scope(|scope| {
            let taker = || Lock::take(&Disk, dir.path(), "next", Duration::from_secs(60));
            let taker = scope.spawn(taker);
            std::thread::sleep(LOCK_POLL * 3);
            fs::write(dir.path().join("FORMAT.new"), &text).unwrap();
            fs::rename(dir.path().join("FORMAT.new"), &path).unwrap();
            drop(old);
            let lock = taker.join().unwrap().unwrap();
            assert!(is_locked(dir.path()).unwrap().is_some(), "the new file");
            drop(lock);
        });
    }

    #[test]
    fn several_processes_make_one_store() {
        for _ in 0..50 {
            let dir = tempfile::tempdir().unwrap();
            let begin = std::sync::Barrier::new(4);
            let ids: std::collections::BTreeSet<u64> = std::thread::scope(|scope| {
                let open = || {
                    begin.wait();
                    let timeout = Duration::from_secs(60);
                    let _lock = Lock::take(&Disk, dir.path(), "me", timeout).unwrap();
                    check_version(&Disk, dir.path()).unwrap()
                };
                let all: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
                all.into_iter().map(|one| one.join().unwrap()).collect()
            });
            assert_eq!(ids.len(), 1);
        }
    }

    #[test]
    fn a_second_holder_sees_the_name_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let take = |holder| Lock::take(&Disk, dir.path(), holder, Duration::ZERO);
        let _first = take("pid 4711, socket /run/x").unwrap();
        let error = take("me").unwrap_err().to_string();
        assert!(error.contains("pid 4711, socket /run/x"), "{error}");
        assert_eq!(
            is_locked(dir.path()).unwrap().as_deref(),
            Some("pid 4711, socket /run/x")
        );
    }

    #[test]
    fn a_daemon_starts_while_tools_look_whether_one_runs() {
        let dir = tempfile::tempdir().unwrap();
        drop(Lock::take(&Disk, dir.path(), "the former one", Duration::ZERO).unwrap());

        let is_over = std::sync::atomic::AtomicBool::new(false);
        let begin = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    begin.wait();
                    while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                        is_locked(dir.path()).unwrap();
                    }
                });
            }

            begin.wait();
            let take = || Lock::take(&Disk, dir.path(), "me", Duration::from_secs(60)).map(drop);
            let taken: Result<(), StoreError> = (0..300).try_for_each(|_| take());
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            taken.unwrap();
        });

        // What a killed daemon was about to start releases it as well.
        let left = Lock::take(&Disk, dir.path(), "the killed one", Duration::ZERO).unwrap();
        std::thread::scope(|scope| {
            let taker =
                scope.spawn(|| Lock::take(&Disk, dir.path(), "me", Duration::from_secs(60)));
            // Long enough for several attempts, all of which find it locked.
            for _ in 0..20 {
                std::thread::sleep(LOCK_POLL);
                assert!(!taker.is_finished());
            }
            drop(left);
            taker.join().unwrap().unwrap();
        });
    }

    #[test]
    fn another_version_is_rejected_with_both_versions_and_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let store_id = opened(dir.path()).unwrap();
        assert_eq!(check_version(&Disk, dir.path()).unwrap(), store_id);
        for (text, found) in [
            ("saltcellar store, format 1\n", "format 1"),
            (
                "saltcellar store, format 2\nstamp 0123456789abcdef\n",
                "format 2",
            ),
            (
                "saltcellar store, format 3\nstore id 0123456789abcdef-01234567\n",
                "format 3",
            ),
            ("saltcellar store, format 7\n", "format 7"),
            (
                "saltcellar store, format 8, FORMAT is not damaged\n",
                "format 8",
            ),
        ] {
            fs::write(dir.path().join("FORMAT"), text).unwrap();
            let error = check_version(&Disk, dir.path()).unwrap_err().to_string();
            let text = [
                found,
                "format 5",
                "saltcellar export",
                "saltcellar import",
                dir.path().to_str().unwrap(),
            ];
            assert!(text.iter().all(|word| error.contains(word)), "{error}");
        }
    }

    #[test]
    fn one_wrong_digit_in_format_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        opened(dir.path()).unwrap();
        let path = dir.path().join("FORMAT");
        let text = fs::read(&path).unwrap();
        for at in 0..text.len() - 1 {
            let mut damaged = text.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            assert!(check_version(&Disk, dir.path()).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_store_without_format_is_identified_by_its_logs() {
        let dir = tempfile::tempdir().unwrap();
        let store_id = opened(dir.path()).unwrap();
        let text = fs::read_to_string(dir.path().join("FORMAT")).unwrap();
        for (class, seq) in [("jobs", 1), ("events", 5)] {
            let id = LogId {
                store_id,
                first_seq: SeqNo(seq),
            };
            let segment = class_dir(dir.path(), class).join(generation_name(id.first_seq, 0));
            fs::create_dir_all(&segment).unwrap();
            fs::write(
                segment.join("log"),
                crate::log::file::file_header(class, id, Micros(1)),
            )
            .unwrap();
        }
        let path = dir.path().join("FORMAT");
        for damaged in ["", "nonsense", "saltcellar store, format 5\nstore id 00\n"] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(check_version(&Disk, dir.path()).unwrap(), store_id);
            assert_eq!(fs::read_to_string(&path).unwrap(), text, "made again");
        }

        // As after an interrupted restore. The id is a secret.
        fs::remove_file(&path).unwrap();
        let error = check_version(&Disk, dir.path()).unwrap_err().to_string();
        assert!(error.contains("create an empty file"), "{error}");
        assert!(!error.contains(&format!("{store_id:016x}")), "{error}");

        // A log of another store.
        let id = LogId {
            store_id: store_id ^ 1,
            first_seq: SeqNo(9),
        };
        let segment = class_dir(dir.path(), "jobs").join(generation_name(id.first_seq, 0));
        fs::create_dir_all(&segment).unwrap();
        let header = crate::log::file::file_header("jobs", id, Micros(1));
        fs::write(segment.join("log"), header).unwrap();
        fs::write(&path, "").unwrap();
        let error = check_version(&Disk, dir.path()).unwrap_err().to_string();
        assert!(error.contains("if they agree"), "{error}");
    }

    #[test]
    fn a_text_with_a_sum_is_read_as_written_and_any_change_is_detected() {
        for text in ["", "7\n", "7\nskipped 1 2\n"] {
            let whole = with_sum(text);
            assert_eq!(without_sum(whole.as_bytes()), Some(text));
            for at in 0..whole.len() {
                let mut bytes = whole.clone().into_bytes();
                bytes[at] ^= 1;
                assert_eq!(
                    without_sum(&bytes),
                    None,
                    "{whole:?} with a changed byte {at}"
                );
                assert_eq!(
                    without_sum(&whole.as_bytes()[..at]),
                    None,
                    "{whole:?} cut at {at}"
                );
            }
        }
    }

    #[test]
    fn segment_names_sort_as_their_numbers() {
        assert_eq!(segment_seq(&segment_name(SeqNo(42))), Some(SeqNo(42)));
        assert!(segment_name(SeqNo(9)) < segment_name(SeqNo(10)));
        assert_eq!(segment_seq("settings"), None);
    }

    #[test]
    fn generations_are_ordered_by_their_numbers_and_have_one_name_each() {
        let dir = tempfile::tempdir().unwrap();
        let names = [(2, 0), (1, 10), (1, 9)].map(|(seq, n)| generation_name(SeqNo(seq), n));
        let foreign = [
            "00000000000000000001",
            "00000000000000000001.07",
            "00000000000000000001.+7",
            "1.7",
        ];
        for name in names.iter().map(String::as_str).chain(foreign) {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join(generation_name(SeqNo(1), 11)), "a file").unwrap();
        let found: Vec<_> = generations(dir.path())
            .unwrap()
            .into_iter()
            .map(|found| (found.first_seq.0, found.number))
            .collect();
        assert_eq!(found, [(1, 9), (1, 10), (2, 0)]);

        // The highest one counts, if it has a log.
        fs::write(dir.path().join(&names[2]).join("log"), "").unwrap();
        let found = find_segment(dir.path(), SeqNo(1)).unwrap();
        assert_eq!(found.unwrap().number, 9);
        let next = next_generation(dir.path(), SeqNo(1)).unwrap();
        assert_eq!(name_of(&next), generation_name(SeqNo(1), 11));
    }
}
