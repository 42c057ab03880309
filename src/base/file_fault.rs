//! Small files of the state directory that could not be read, wholly or in part.
//!
//! Whoever reads such a file at the start logs what is wrong and keeps a [`FileFault`], so that `status` and `doctor` report it as long as
//! it lasts. A log line alone is seen by nobody.

use std::path::{Path, PathBuf};

/// A file with content that is ignored, and what that means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileFault {
    pub(crate) path: PathBuf,
    /// A sentence: what is ignored, the consequence, and the remedy.
    pub(crate) problem: String,
    /// Whether a part of the daemon does not work because of it.
    pub(crate) is_serious: bool,
}

impl FileFault {
    pub(crate) fn new(path: &Path, problem: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            problem: problem.into(),
            is_serious: false,
        }
    }

    /// As [`Self::new`], for a part of the daemon that does not work because of it.
    pub(crate) fn serious(path: &Path, problem: impl Into<String>) -> Self {
        Self {
            is_serious: true,
            ..Self::new(path, problem)
        }
    }

    /// A fault of some lines of a file; `None` if there are none.
    pub(crate) fn of_lines(path: &Path, lines: &[usize], meaning: &str) -> Option<Self> {
        let (first, rest) = lines.split_first()?;
        let which = match rest.len() {
            0 => format!("line {first} is malformed and ignored"),
            more => format!("line {first} and {more} more are malformed and ignored"),
        };
        Some(Self::new(path, format!("{which}: {meaning}")))
    }
}
