//! The key files of a master: `.<user>_key` in its `cachedir`, one for each user with permission to publish.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::base::limits::MASTER_KEY_BYTES_MAX;

/// The key files in a master's `cachedir`, sorted; empty if the directory does not exist.
pub fn key_files(cachedir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let items = match fs::read_dir(cachedir) {
        // The master has not run yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        items => items?,
    };

    for item in items {
        let item = item?;
        let name = item.file_name();
        // Salt names the key of a user `.USER_key` (`salt/daemons/masterapi.py`).
        if name
            .to_str()
            .is_some_and(|name| name.starts_with('.') && name.ends_with("_key"))
        {
            found.push(item.path());
        }
    }

    // A directory has no order of its own.
    found.sort_unstable();
    Ok(found)
}

/// The whole content of a key file, as Salt reads it.
pub fn read_key(path: &Path) -> io::Result<Vec<u8>> {
    read_small(path, MASTER_KEY_BYTES_MAX)
}

/// Reads a regular file of up to `bytes_max` bytes.
pub fn read_small(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let odd = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    // Checked before opening: opening a pipe would block.
    if !fs::metadata(path)?.is_file() {
        return Err(odd("not a file".to_owned()));
    }

    let mut bytes = Vec::new();
    File::open(path)?
        .take(bytes_max + 1)
        .read_to_end(&mut bytes)?;

    if bytes.len() as u64 > bytes_max {
        return Err(odd(format!("longer than {bytes_max} bytes")));
    }
    Ok(bytes)
}

/// The identity of a file's content, which changes when another program rewrites the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    file: (u64, u64),
    len: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

impl FileIdentity {
    /// The current identity of a file.
    pub fn of(path: &Path) -> io::Result<Self> {
        let found = fs::metadata(path)?;
        Ok(Self {
            file: (found.dev(), found.ino()),
            len: found.len(),
            written: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}
