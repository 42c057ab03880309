//! Small files of the state directory that could not be read, wholly or in part.
//!
//! The reader of such a file logs at the start what is wrong, and keeps a [`FileFault`], which
//! `status` and `doctor` report as long as it lasts. Nobody might see a log line alone.

use std::path::{Path, PathBuf};

/// A file with content that is ignored, and what that means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileFault {
    /// The file.
    pub path: PathBuf,
    /// A sentence: what is ignored, the consequence, and the remedy.
    pub problem: String,
    /// Whether a part of the daemon does not work because of it.
    pub is_serious: bool,
}

impl FileFault {
    /// A fault without which all parts of the daemon work.
    pub fn new(path: &Path, problem: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            problem: problem.into(),
            is_serious: false,
        }
    }

    /// As [`Self::new`], for a part of the daemon that does not work because of it.
    pub fn serious(path: &Path, problem: impl Into<String>) -> Self {
        Self {
            is_serious: true,
            ..Self::new(path, problem)
        }
    }
}
