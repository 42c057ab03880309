//! The state directory: its format version, its lock, its names.
//!
//! # On disk
//!
//! ```text
//! state-dir/
//!   FORMAT                    "saltcellar store, format <version>\n"
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

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::error::{StoreError, io_at};
use crate::model::{SeqNo, is_class_name};

/// The version of everything below a state directory.
pub const FORMAT_VERSION: u32 = 1;

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

/// The first sequence number in a segment's directory name.
pub fn segment_seq(name: &str) -> Option<SeqNo> {
    (name.len() == 20).then(|| name.parse().ok().map(SeqNo))?
}

/// Creates a directory with mode 0750 and syncs its parent. One that is there already is fine.
pub fn make_dir(path: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::DirBuilderExt as _;
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        make_dir(parent)?;
    }
    match fs::DirBuilder::new().mode(0o750).create(path) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made.map_err(io_at("create the directory", path)),
    }?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// Syncs a directory: names made or removed in it survive a power cut from here on.
pub fn sync_dir(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(io_at("sync the directory", path))
}

/// Writes a small file so that either the old one or the new one is there whole, also after a power cut.
pub fn write_small(path: &Path, text: &str) -> Result<(), StoreError> {
    let temporary = path.with_extension("tmp");
    let mut file = File::create(&temporary).map_err(io_at("create", &temporary))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io_at("write", &temporary))?;
    fs::rename(&temporary, path).map_err(io_at("rename to", path))?;
    path.parent().map_or(Ok(()), sync_dir)
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
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{holder}"))
            .map_err(io_at("write", &path))?;
        Ok(Self { _file: file })
    }
}

/// Checks the directory's version; writes it into an empty directory.
pub fn check_version(state_dir: &Path) -> Result<(), StoreError> {
    const WORDS: &str = "saltcellar store, format ";
    let path = state_dir.join("FORMAT");
    match fs::read_to_string(&path) {
        Ok(text) => {
            let found = text.trim_end().strip_prefix(WORDS).unwrap_or("unknown").to_owned();
            if found == FORMAT_VERSION.to_string() {
                return Ok(());
            }
            Err(StoreError::Version { path: state_dir.to_owned(), found, expected: FORMAT_VERSION })
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            if state_dir.join("log").exists() {
                let found = "unknown (the file FORMAT is missing)".to_owned();
                return Err(StoreError::Version {
                    path: state_dir.to_owned(),
                    found,
                    expected: FORMAT_VERSION,
                });
            }
            let temporary = state_dir.join("FORMAT.tmp");
            let mut file = File::create(&temporary).map_err(io_at("create", &temporary))?;
            writeln!(file, "{WORDS}{FORMAT_VERSION}")
                .and_then(|()| file.sync_all())
                .map_err(io_at("write", &temporary))?;
            fs::rename(&temporary, &path).map_err(io_at("rename to", &path))?;
            sync_dir(state_dir)
        }
        Err(why) => Err(StoreError::Io { action: "read", path, why }),
    }
}

#[cfg(test)]
mod tests {
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
        check_version(dir.path()).unwrap();
        check_version(dir.path()).unwrap();
        fs::write(dir.path().join("FORMAT"), "saltcellar store, format 7\n").unwrap();
        let error = check_version(dir.path()).unwrap_err().to_string();
        assert!(error.contains("format 7") && error.contains("format 1"), "{error}");
        fs::remove_file(dir.path().join("FORMAT")).unwrap();
        fs::create_dir(dir.path().join("log")).unwrap();
        assert!(check_version(dir.path()).is_err());
    }

    #[test]
    fn segment_names_sort_as_their_numbers() {
        assert_eq!(segment_seq(&segment_name(SeqNo(42))), Some(SeqNo(42)));
        assert!(segment_name(SeqNo(9)) < segment_name(SeqNo(10)));
        assert_eq!(segment_seq("trash"), None);
    }
}
