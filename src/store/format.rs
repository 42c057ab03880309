//! The state directory: its format version, its lock, its names.
//!
//! # On disk
//!
//! ```text
//! state-dir/
//!   FORMAT                    "saltcellar store, format <version>\nstamp <16 hexadecimal digits>\n"
//!   LOCK                      flock(2); text: who holds it
//!   state/                    sled: jobs, latest, minions, segments (see `state`)
//!   log/<class>/<first-seq>/  a segment; first-seq in 20 digits
//!     log                     frames (see `log`)
//!     index/                  sled: the sealed segment's index (see `index`)
//! ```
//!
//! # Versions
//!
//! 1: the first one.
//! 2: heads apart from bodies, frames with the store's stamp, SEQUENCE, indexes in pages, no row per job in `state/`. A
//!    store of format 1 becomes one of format 2 when it is opened: its logs stay, what is made out of them is made again.

use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::error::{StoreError, io_at};
use super::medium::Medium;
use crate::model::{SeqNo, is_class_name};

/// The version of everything below a state directory.
pub const FORMAT_VERSION: u32 = 2;

/// The directory of a class.
pub fn class_dir(state_dir: &Path, class_name: &str) -> PathBuf {
    state_dir.join("log").join(class_name)
}

/// The names of all classes that have a directory, sorted.
pub fn class_names(state_dir: &Path) -> Result<Vec<String>, StoreError> {
    let path = state_dir.join("log");
    let items = match fs::read_dir(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        items => items.map_err(io_at("list", &path))?,
    };
    let mut names = Vec::new();
    for item in items {
        let item = item.map_err(io_at("list", &path))?;
        let name = item.file_name().to_str().filter(|name| is_class_name(name)).map(str::to_owned);
        names.extend(name.filter(|_| item.path().is_dir()));
    }
    names.sort_unstable();
    Ok(names)
}

/// The name of a segment's directory.
pub fn segment_name(first_seq: SeqNo) -> String {
    format!("{:020}", first_seq.0)
}

/// The name of a segment's directory until its log is there.
pub fn new_name(first_seq: SeqNo) -> String {
    segment_name(first_seq) + NEW
}

/// Ends the name of a segment's directory until its log is there.
pub const NEW: &str = ".new";

/// The first sequence number in a segment's directory name.
pub fn segment_seq(name: &str) -> Option<SeqNo> {
    (name.len() == 20).then(|| name.parse().ok().map(SeqNo))?
}

/// Makes a directory with mode 0750, and those above it, and syncs its parent. The parent of one that is there already
/// is synced too: whoever made it may have died, or been refused the sync, and a power cut would take it.
pub fn make_dir(medium: &dyn Medium, path: &Path) -> Result<(), StoreError> {
    let Some(parent) = path.parent() else { return Ok(()) };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let was_there = path.is_dir();
    if !was_there {
        if !parent.is_dir() {
            make_dir(medium, parent)?;
        }
        match medium.make_dir(path) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            made => made.map_err(io_at("create the directory", path)),
        }?;
    }
    match medium.sync_dir(parent) {
        // Somebody else's, above the state directory: not for us to read, and not for us to sync.
        Err(e) if was_there && e.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced.map_err(io_at("sync the directory", parent)),
    }
}

/// Syncs a directory: names made or removed in it survive a power cut from here on.
pub fn sync_dir(medium: &dyn Medium, path: &Path) -> Result<(), StoreError> {
    medium.sync_dir(path).map_err(io_at("sync the directory", path))
}

/// Holds the state directory for one process, as long as it lives.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock; `holder` is what the next one to try is told.
    pub fn take(state_dir: &Path, holder: &str) -> Result<Self, StoreError> {
        let path = state_dir.join("LOCK");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(io_at("open", &path))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut words = String::new();
            let _ = file.read_to_string(&mut words);
            let holder = if words.trim().is_empty() { "another process" } else { words.trim() }.to_owned();
            return Err(StoreError::Locked { path: state_dir.to_owned(), holder });
        }
        // Over the old text: its block is there also on a full disk. The text is for people; the lock holds without it.
        let text = format!("{holder}\n");
        if let Err(error) =
            file.write_all_at(text.as_bytes(), 0).and_then(|()| file.set_len(text.len() as u64))
        {
            tracing::warn!(path = %path.display(), %error, "cannot write who holds the lock");
            let _ = file.set_len(0);
        }
        Ok(Self { _file: file })
    }
}

const FORMAT_WORDS: &str = "saltcellar store, format ";

/// Checks the directory's version; writes it into an empty directory, and brings a directory of an older one up to it.
/// Returns the store's stamp, a random number that all its frames carry: what lies in an entry's body and looks like a
/// frame has another one.
pub fn check_version(medium: &dyn Medium, state_dir: &Path) -> Result<u64, StoreError> {
    let path = state_dir.join("FORMAT");
    let refused = |found: &str| StoreError::Version {
        path: state_dir.to_owned(),
        found: found.to_owned(),
        expected: FORMAT_VERSION,
    };
    let text = match fs::read_to_string(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            if state_dir.join("log").exists() {
                return Err(refused("unknown (the file FORMAT is missing)"));
            }
            return write_format(medium, &path);
        }
        Err(e) if e.kind() == std::io::ErrorKind::InvalidData => String::new(),
        read => read.map_err(io_at("read", &path))?,
    };
    let mut lines = text.lines();
    match lines.next().and_then(|line| line.strip_prefix(FORMAT_WORDS)) {
        Some("1") => {
            forget_what_was_made(medium, state_dir)?;
            write_format(medium, &path)
        }
        Some(found) if found == FORMAT_VERSION.to_string() => {
            let stamp = lines.next().and_then(|line| line.strip_prefix("stamp "));
            let stamp = stamp.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            stamp.ok_or_else(|| refused("2 without its second line, `stamp` and 16 hexadecimal digits"))
        }
        found => Err(refused(found.unwrap_or("unknown"))),
    }
}

fn write_format(medium: &dyn Medium, path: &Path) -> Result<u64, StoreError> {
    let stamp = crate::model::secret_seed();
    let words = format!("{FORMAT_WORDS}{FORMAT_VERSION}\nstamp {stamp:016x}\n");
    medium.write_whole(path, words.as_bytes()).map_err(io_at("write", path))?;
    Ok(stamp)
}

/// Removes what is made out of the logs; the start makes it again.
fn forget_what_was_made(medium: &dyn Medium, state_dir: &Path) -> Result<(), StoreError> {
    let mut made = vec![state_dir.join("state")];
    for name in class_names(state_dir)? {
        let class = class_dir(state_dir, &name);
        let segments = fs::read_dir(&class).map_err(io_at("list", &class))?;
        made.extend(segments.filter_map(|item| Some(item.ok()?.path().join("index"))));
    }
    for path in made.iter().filter(|path| path.is_dir()) {
        medium.remove_dir_all(path).map_err(io_at("remove", path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::medium::Disk;
    use super::*;

    #[test]
    fn a_second_holder_is_told_who_the_first_one_is() {
        let dir = tempfile::tempdir().unwrap();
        let _first = Lock::take(dir.path(), "pid 4711, socket /run/x").unwrap();
        let error = Lock::take(dir.path(), "me").unwrap_err().to_string();
        assert!(error.contains("pid 4711, socket /run/x"), "{error}");
    }

    #[test]
    fn another_version_is_refused_by_both_names() {
        let dir = tempfile::tempdir().unwrap();
        let stamp = check_version(&Disk, dir.path()).unwrap();
        assert_eq!(check_version(&Disk, dir.path()).unwrap(), stamp);
        fs::write(dir.path().join("FORMAT"), "saltcellar store, format 7\n").unwrap();
        let error = check_version(&Disk, dir.path()).unwrap_err().to_string();
        assert!(error.contains("format 7") && error.contains("format 2"), "{error}");
        fs::remove_file(dir.path().join("FORMAT")).unwrap();
        fs::create_dir(dir.path().join("log")).unwrap();
        assert!(check_version(&Disk, dir.path()).is_err());
    }

    #[test]
    fn a_directory_of_format_1_keeps_its_logs_and_loses_what_was_made_of_them() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("FORMAT"), "saltcellar store, format 1\n").unwrap();
        let segment = dir.path().join("log/jobs").join(segment_name(SeqNo(1)));
        fs::create_dir_all(segment.join("index")).unwrap();
        fs::create_dir_all(dir.path().join("state")).unwrap();
        fs::write(segment.join("log"), "frames").unwrap();
        let stamp = check_version(&Disk, dir.path()).unwrap();
        assert_eq!(check_version(&Disk, dir.path()).unwrap(), stamp);
        assert!(segment.join("log").is_file() && !segment.join("index").exists());
        assert!(!dir.path().join("state").exists());
    }

    #[test]
    fn segment_names_sort_as_their_numbers() {
        assert_eq!(segment_seq(&segment_name(SeqNo(42))), Some(SeqNo(42)));
        assert!(segment_name(SeqNo(9)) < segment_name(SeqNo(10)));
        assert_eq!(segment_seq("trash"), None);
    }
}
