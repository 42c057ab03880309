//! Small files that other programs rewrite: change detection, and reads with a size limit.

use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::limits::PEM_BYTES_MAX;

/// The identity of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileIdentity {
    file: (u64, u64),
    len: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

impl FileIdentity {
    /// The current identity of a file.
    pub(super) fn of(path: &Path) -> std::io::Result<Self> {
        std::fs::metadata(path).map(|found| Self::from(&found))
    }
}

impl From<&Metadata> for FileIdentity {
    fn from(found: &Metadata) -> Self {
        Self {
            file: (found.dev(), found.ino()),
            len: found.len(),
            written: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }
}

/// Reads a regular file up to the size limit.
pub(super) fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let odd = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned());
    // Checked before opening: opening a pipe would block.
    if !std::fs::metadata(path)?.is_file() {
        return Err(odd("not a file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(PEM_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > PEM_BYTES_MAX {
        return Err(odd("too long for a key or a certificate"));
    }
    Ok(bytes)
}
