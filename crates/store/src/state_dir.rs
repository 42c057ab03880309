//! The state directory, for those that write in it.
//!
//! # Invariant
//!
//! While anyone in this process may write in the directory, it is locked, and no other process
//! opens the store: each clone holds the lock.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::format::{Lock, class_dir};
use super::log::frame::LogId;
use super::vfs::Fs;
use saltcellar_model::SeqNo;

/// Where the store is, and what its logs are bound to. Clones are cheap.
#[derive(Debug, Clone)]
pub(crate) struct StateDir {
    fs: Arc<dyn Fs>,
    path: Arc<Path>,
    store_id: u64,
    /// Last: nothing of the directory is open any more when it is released.
    _lock: Lock,
}

impl StateDir {
    pub(crate) fn new(fs: Arc<dyn Fs>, path: &Path, store_id: u64, lock: Lock) -> Self {
        Self {
            fs,
            path: path.into(),
            store_id,
            _lock: lock,
        }
    }

    /// A directory on disk, for tests of what needs no whole store.
    #[cfg(test)]
    pub(crate) fn for_tests(path: &Path) -> Self {
        let fs = Arc::new(super::vfs::Disk);
        let lock = Lock::take(&*fs, path, "the test", std::time::Duration::ZERO);
        Self::new(fs, path, 7, lock.expect("lock the directory"))
    }

    /// The file system for all durable writes.
    pub(crate) fn fs(&self) -> &Arc<dyn Fs> {
        &self.fs
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A random number, part of every frame's checksum. Secret; see
    /// [`crate::log::file::public_id`].
    pub(crate) fn store_id(&self) -> u64 {
        self.store_id
    }

    /// The id of the log that begins with a number.
    pub(crate) fn log_id(&self, first_seq: SeqNo) -> LogId {
        LogId {
            store_id: self.store_id,
            first_seq,
        }
    }

    pub(crate) fn class_dir(&self, class_name: &str) -> PathBuf {
        class_dir(&self.path, class_name)
    }
}
