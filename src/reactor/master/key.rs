//! The key of a master's own user: `<cachedir>/.<user>_key`, 76 bytes of text.
//!
//! 3006 creates a new key at each start, 3007 and 3008 only without an existing one. Therefore the file is
//! checked for each request, and reread if it has changed or if the master rejects the cached
//! key.

use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::address::MasterAddress;
use super::error::MasterError;
use crate::config::salt_master::{FileIdentity, read_key};

pub(super) struct MasterKeyFile {
    path: PathBuf,
    place: String,
    /// Lock order: no other lock is taken under it.
    read: Mutex<Option<(FileIdentity, String)>>,
}

impl MasterKeyFile {
    pub(super) fn of(place: &MasterAddress) -> Self {
        // For a user name with a backslash (Windows) Salt uses another file name; such a master is
        // not on this machine.
        let path = place.cachedir.join(format!(".{}_key", place.user));
        Self {
            path,
            place: place.to_string(),
            read: Mutex::default(),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The key. The file is reread if it has changed, or if `anew` is true.
    pub(super) fn text(&self, anew: bool) -> Result<String, MasterError> {
        let failed = |why: String| MasterError::Unauthenticated {
            place: self.place.clone(),
            path: self.path.display().to_string(),
            why,
        };

        // The identity before the content: a file that is replaced in between is reread next
        // time.
        let identity = FileIdentity::of(&self.path).map_err(|why| failed(why.to_string()))?;
        let mut read = self.read.lock();
        if let Some((known, key)) = &*read
            && *known == identity
            && !anew
        {
            return Ok(key.clone());
        }

        let key = read_key(&self.path).map_err(|why| failed(why.to_string()))?;
        let key = String::from_utf8(key).map_err(|why| failed(why.to_string()))?;
        if key.is_empty() {
            return Err(failed("it is empty, a key has 76 bytes".to_owned()));
        }

        *read = Some((identity, key.clone()));
        Ok(key)
    }
}
