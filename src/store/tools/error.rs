//! Why a tool did not do its work.

use std::path::PathBuf;

use crate::store::StoreError;

/// What the tools refuse or meet; variants say what the caller can do.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// Reading or writing a store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The directory is something else.
    #[error("{} is no {wanted}: {why}", path.display())]
    NotOne {
        /// The directory.
        path: PathBuf,
        /// `store of saltcellar`, `backup`.
        wanted: &'static str,
        /// What gives it away.
        why: String,
    },
    /// One directory lies within the other.
    #[error("{} lies within {}: give a directory elsewhere", inner.display(), outer.display())]
    Nested {
        /// The one inside.
        inner: PathBuf,
        /// The one around it.
        outer: PathBuf,
    },
    /// There is something already where something new is to be written.
    #[error("{} is not empty: give a new directory, or an empty one", path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// The file system is too full for what is to be written.
    #[error("not enough space for {}: {needed} bytes are needed, {free} are free", path.display())]
    NoSpace {
        /// Where it was to go.
        path: PathBuf,
        /// Bytes.
        needed: u64,
        /// Bytes.
        free: u64,
    },
    /// A backup's file is not what its manifest says.
    #[error("{}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Found against expected.
        what: String,
    },
    /// Asked for a segment that is not there.
    #[error("no segment {name} in {}", path.display())]
    NoSegment {
        /// What was asked for.
        name: String,
        /// The store.
        path: PathBuf,
    },
}
