//! Errors of the maintenance tools.

use std::path::PathBuf;

use crate::store::StoreError;

/// Why a tool failed; each variant calls for a different reaction of the caller.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ToolError {
    /// Reading or writing a store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The directory is not of the wanted kind.
    #[error("{} is not a {wanted}: {why}", path.display())]
    NotOne {
        path: PathBuf,
        /// `store of saltcellar`, `backup`.
        wanted: &'static str,
        why: String,
    },
    /// One of two directories contains the other.
    #[error("{} is inside {}: choose a directory outside of it", inner.display(), outer.display())]
    Nested { inner: PathBuf, outer: PathBuf },
    /// The target directory is not empty.
    #[error("{} is not empty: choose a new or an empty directory", path.display())]
    NotEmpty { path: PathBuf },
    /// The target has a backup of another store, or of a later state of this one.
    #[error(
        "{} holds a backup that this store must not replace: {found}. Nothing was changed. If the store was lost, restore it first: \
         `saltcellar store restore {} DIR`. To keep both, choose another directory for the new backup",
        path.display(), path.display()
    )]
    OtherStore {
        path: PathBuf,
        /// Which store is where.
        found: String,
    },
    /// The file system of the target lacks space.
    #[error("not enough space for {}: {needed} bytes are needed, {free} are free", path.display())]
    NoSpace {
        path: PathBuf,
        needed: u64,
        free: u64,
    },
    /// A file of a backup does not match its manifest.
    #[error("{}: {what}", path.display())]
    Damaged { path: PathBuf, what: String },
    /// The requested segment does not exist.
    #[error("no segment {name} in {}", path.display())]
    NoSegment { name: String, path: PathBuf },
}
