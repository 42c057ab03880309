//! The key files of a master: `.<user>_key` in its `cachedir`, one for each user with permission to publish.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::limits::MASTER_KEY_BYTES_MAX;

/// The key files in a master's `cachedir`, sorted; empty if the directory does not exist.
pub fn key_files(cachedir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let items = match fs::read_dir(cachedir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        items => items?,
    };
    for item in items {
        let item = item?;
        let name = item.file_name();
        if name.to_str().is_some_and(|name| name.starts_with('.') && name.ends_with("_key")) {
            found.push(item.path());
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The whole content of a key file, as Salt reads it.
pub fn read_key(path: &Path) -> io::Result<Vec<u8>> {
    let mut key = Vec::new();
    File::open(path)?.take(MASTER_KEY_BYTES_MAX + 1).read_to_end(&mut key)?;
    if key.len() as u64 > MASTER_KEY_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long for a key"));
    }
    Ok(key)
}
