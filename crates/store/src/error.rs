//! Errors of the store.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// The store's error type; each variant calls for a different reaction of the caller.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An operation of the operating system failed.
    #[error("{action} {}: {why}{}", path.display(), remedy(why))]
    Io {
        /// The operation, verb first: `write`, `open the directory`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// Another daemon holds the lock of this state directory.
    #[error("the state directory {} is in use by {holder}: stop it, or use another --state-dir", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
        /// The text of the lock file.
        holder: String,
    },
    /// The directory was written by a release with another format.
    #[error(
        "the state directory {} has format {found}, this build reads format {expected}: \
         export it with the build that wrote it (`saltcellar export jsonl`), and import that file with this one \
         (`saltcellar import jsonl`) into an empty --state-dir",
        path.display()
    )]
    Version {
        /// The directory.
        path: PathBuf,
        /// The version in the file `FORMAT`.
        found: String,
        /// The version of this release.
        expected: u32,
    },
    /// The file `FORMAT` is missing, or it is damaged and the logs do not determine the store id.
    #[error(
        "the state directory {} has format {found}, this release reads format {expected}: \
         restore the file from a backup, or, if this is no interrupted `restore` or `salvage`, create an empty file {}/FORMAT: \
         the next start completes it from the headers of the logs, if they agree; \
         `saltcellar store salvage` copies the readable entries to a new store",
        path.display(), path.display()
    )]
    FormatLost {
        /// The directory.
        path: PathBuf,
        /// The content of `FORMAT`, as far as it is readable.
        found: String,
        /// The version of this release.
        expected: u32,
    },
    /// Bytes on disk fail their checksum or are malformed.
    #[error("{}: damaged at byte {offset}: {what}; run `saltcellar store verify` and check the disk", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Offset of the frame or record.
        offset: u64,
        /// Found and expected values.
        what: String,
    },
    /// A log has a frame of another release.
    #[error("{}: the frame at byte {offset} has version {version}, this release reads {reads}: start the release that wrote it", path.display())]
    FrameVersion {
        /// The log.
        path: PathBuf,
        /// Offset of the frame.
        offset: u64,
        /// Its version.
        version: u16,
        /// The version that this release reads.
        reads: u16,
    },
    /// A segment does not match its path, because an administrator renamed or copied a directory.
    #[error("{}: {what}; its directory was renamed or copied: restore the original name, or move the copy out of the store", path.display())]
    Misplaced {
        /// The log.
        path: PathBuf,
        /// What its header says.
        what: String,
    },
    /// Derived data is damaged, or belongs to another log. It can be rebuilt from the log.
    #[error("index {}: {what}; it is rebuilt from the log, at the latest by a restart", path.display())]
    Index {
        /// The table, or the directory of the state database.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// The request cannot be carried out; the text names the reason.
    #[error("{0}")]
    Refused(String),
    /// The request was ended before it was done: its client has disconnected, or it took too long.
    #[error(transparent)]
    Ended(#[from] saltcellar_base::work::Ended),
    /// The daemon is stopping and accepts no new entries.
    #[error("the daemon is stopping: retry after its restart")]
    Stopping,
    /// A bug: data to be written is inconsistent or exceeds a format limit. Nothing was written.
    #[error("internal error, nothing was written: {0}; please report it")]
    Broken(&'static str),
    /// What no other variant describes; the text names what failed, and what can be done.
    #[error("{0}")]
    Failed(String),
}

impl StoreError {
    /// Whether the disk cannot return the data; see [`super::vfs::read`].
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Self::Io { why, .. } if super::vfs::read::is_damage(why))
    }

    /// Whether the disk or a quota is full.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::Io { why, .. } if is_no_space(why))
    }
}

fn is_no_space(why: &io::Error) -> bool {
    matches!(
        why.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

fn is_file_limit(why: &io::Error) -> bool {
    matches!(Errno::from_io_error(why), Some(Errno::MFILE | Errno::NFILE))
}

fn remedy(why: &io::Error) -> &'static str {
    if is_no_space(why) {
        ". Nothing is damaged; free space on that file system (`saltcellar store prune` frees some in the state directory)"
    } else if super::vfs::read::is_damage(why) {
        "; look for disk errors in `dmesg`"
    } else if why.kind() == io::ErrorKind::PermissionDenied {
        "; the daemon's user must own it (`chown`), and other users need `sudo`"
    } else if is_file_limit(why) {
        "; raise the limit of open files: LimitNOFILE of the unit, or `ulimit -n` in a shell"
    } else if why.kind() == io::ErrorKind::ReadOnlyFilesystem {
        ". If `dmesg` shows errors of this disk, repair the disk. Otherwise the systemd unit may write below /var/lib/saltcellar only: name another `state_dir` in a line `ReadWritePaths=DIR` below [Service] \
         (`systemctl edit saltcellar`)"
    } else {
        ""
    }
}

/// Converts to the 32-bit form used on disk; `what` names the exceeded limit in the error.
pub(crate) fn fits(n: usize, what: &'static str) -> Result<u32, StoreError> {
    u32::try_from(n).map_err(|_| StoreError::Broken(what))
}

/// As [`io_at`], for data that is derived from the log: what the disk cannot return is rebuilt.
pub(crate) fn derived_at<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> StoreError + 'a {
    // An index is rebuilt instead of repaired, so the kind of damage does not matter.
    move |why| {
        let error = io_at(action, path)(why);
        if error.is_damage() {
            StoreError::Index {
                path: path.to_owned(),
                what: error.to_string(),
            }
        } else {
            error
        }
    }
}

/// Adds the operation and the path to an I/O error.
pub fn io_at<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> StoreError + 'a {
    move |why| StoreError::Io {
        action,
        path: path.to_owned(),
        why,
    }
}
