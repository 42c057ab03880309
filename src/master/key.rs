//! The key of a master's own user: `<cachedir>/.<user>_key`, 76 bytes of text.
//!
//! 3006 creates a new key at each start, 3007 and 3008 only without an existing one. So the file is checked for each request, and read again
//! if it has changed or if the master rejects the cached key.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::{MasterAddress, MasterError};
use crate::limits::MASTER_KEY_BYTES_MAX;

/// The identity of a file's content: device, inode, size, time of the last change.
type Identity = (u64, u64, u64, i64, i64);

pub(super) struct Key {
    path: PathBuf,
    place: String,
    read: Mutex<Option<(Identity, String)>>,
}

impl Key {
    pub(super) fn of(place: &MasterAddress) -> Self {
        // For a user name with a backslash (Windows) Salt uses another file name; such a master is not on this machine.
        let path = place.cachedir.join(format!(".{}_key", place.user));
        Self { path, place: place.to_string(), read: Mutex::default() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The key; read again if the file has changed, or if `anew`.
    pub(super) fn text(&self, anew: bool) -> Result<String, MasterError> {
        let failed = |why: String| MasterError::Unauthenticated {
            place: self.place.clone(),
            path: self.path.display().to_string(),
            why,
        };
        let found = std::fs::metadata(&self.path).map_err(|why| failed(why.to_string()))?;
        let identity = (found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec());
        let mut read = self.read.lock();
        if let Some((known, key)) = &*read
            && *known == identity
            && !anew
        {
            return Ok(key.clone());
        }
        let mut key = String::new();
        let file = File::open(&self.path).map_err(|why| failed(why.to_string()))?;
        file.take(MASTER_KEY_BYTES_MAX + 1)
            .read_to_string(&mut key)
            .map_err(|why| failed(why.to_string()))?;
        if key.is_empty() || key.len() as u64 > MASTER_KEY_BYTES_MAX {
            return Err(failed(format!("it has {} bytes, a key has 76", found.size())));
        }
        *read = Some((identity, key.clone()));
        Ok(key)
    }
}
