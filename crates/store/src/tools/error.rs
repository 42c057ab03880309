//! Errors of the maintenance tools.

use std::path::PathBuf;

use crate::StoreError;

/// Why a tool failed; each variant calls for a different reaction of the caller.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// Reading or writing a store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The directory is not of the wanted kind.
    #[error("{} is not a {wanted}: {why}", path.display())]
    NotOne {
        /// The directory.
        path: PathBuf,
        /// `store of saltcellar`, `backup`.
        wanted: &'static str,
        /// What it is not, or lacks.
        why: String,
    },
    /// One of two directories contains the other.
    #[error("{} is inside {}: choose a directory outside of it", inner.display(), outer.display())]
    Nested {
        /// The one inside.
        inner: PathBuf,
        /// The one around it.
        outer: PathBuf,
    },
    /// The target directory is not empty.
    #[error("{} is not empty: choose a new or an empty directory", path.display())]
    NotEmpty {
        /// The target.
        path: PathBuf,
    },
    /// The target contains a backup of another store, or of a later state of this store.
    #[error(
        "{} holds a backup that this store must not replace: {found}. Nothing was changed. If the store was lost, restore it first: \
         `saltcellar store restore {} DIR`. To keep both, choose another directory for the new backup",
        path.display(), path.display()
    )]
    OtherStore {
        /// The target.
        path: PathBuf,
        /// Which store is where.
        found: String,
    },
    /// The file system of the target lacks space.
    #[error("not enough space for {}: {needed} bytes are needed, {free} are free; free some space or choose another file system", path.display())]
    NoSpace {
        /// The target.
        path: PathBuf,
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// A file of a backup does not match its manifest.
    #[error("{}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// The requested segment does not exist.
    #[error("no segment {name} in {}: `saltcellar store rebuild` without --segment rebuilds all, `ls {}/log/*` lists them", path.display(), path.display())]
    NoSegment {
        /// As requested.
        name: String,
        /// The state directory.
        path: PathBuf,
    },
}
