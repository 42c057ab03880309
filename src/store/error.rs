//! Why the store could not do something.

use std::io;
use std::path::{Path, PathBuf};

/// The store's one error; variants say what the caller can do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused; what was being done is in `action`.
    #[error("{action} {}: {why}{}", path.display(), remedy(why))]
    Io {
        /// Verb first: `write`, `open the directory`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The refusal.
        why: io::Error,
    },
    /// Another daemon has this state directory.
    #[error("the state directory {} is in use by {holder}: stop that one first, or give another --state-dir", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
        /// What the lock file says about its holder.
        holder: String,
    },
    /// The directory was written by a release with another format.
    #[error(
        "the state directory {} has format {found}, this release reads format {expected}: \
         export it with the release that wrote it (`saltcellar export jsonl`) and import that file here \
         (`saltcellar import jsonl`) into an empty --state-dir",
        path.display()
    )]
    Version {
        /// The directory.
        path: PathBuf,
        /// What the directory says.
        found: String,
        /// What this release writes.
        expected: u32,
    },
    /// The directory's file `FORMAT` is lost or damaged, and its logs say what was in it.
    #[error(
        "the state directory {} has format {found}, this release reads format {expected}: \
         the headers of its logs name its store id; write two lines into {}/FORMAT, \
         `saltcellar store, format {expected}` and `{line}`",
        path.display(), path.display()
    )]
    FormatLost {
        /// The directory.
        path: PathBuf,
        /// What the directory says.
        found: String,
        /// What this release writes.
        expected: u32,
        /// The second line.
        line: String,
    },
    /// Bytes on disk are not what was written there.
    #[error("{}: damaged at byte {offset}: {what}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where the frame or record begins.
        offset: u64,
        /// Found against expected.
        what: String,
    },
    /// Rows are missing or sled found its files damaged; the index can be built again from the log.
    #[error("index {}: {what}", path.display())]
    Index {
        /// The database's directory.
        path: PathBuf,
        /// sled's words.
        what: String,
    },
    /// What was asked for cannot be done; the words say why.
    #[error("{0}")]
    Refused(String),
    /// The daemon is stopping and takes nothing new.
    #[error("the daemon is stopping")]
    Stopping,
    /// What is to be written contradicts itself or does not fit its place: a bug. Nothing of it is written.
    #[error("internal error, nothing was written: {0}")]
    Broken(&'static str),
    /// An earlier commit failed in a way that this handle cannot repair.
    #[error("could not store: {0}")]
    Failed(String),
}

impl StoreError {
    /// Was there no space for what was to be written?
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::Io { why, .. } if is_no_space(why))
    }
}

fn is_no_space(why: &io::Error) -> bool {
    matches!(why.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn remedy(why: &io::Error) -> &'static str {
    if is_no_space(why) {
        ". Nothing is damaged; free space on that file system, for example with `saltcellar store prune`"
    } else {
        ""
    }
}

/// A count, a length or a place as it stands on disk, in 32 bits; `what` says what is too large otherwise.
pub(crate) fn fits(n: usize, what: &'static str) -> Result<u32, StoreError> {
    u32::try_from(n).map_err(|_| StoreError::Broken(what))
}

/// Names the act and the file in an I/O error.
pub(crate) fn io_at<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> StoreError + 'a {
    move |why| StoreError::Io { action, path: path.to_owned(), why }
}
