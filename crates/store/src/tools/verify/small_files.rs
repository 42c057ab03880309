//! Checks of the files that cannot be rebuilt, with the code that reads them.

use std::path::{Path, PathBuf};

use crate::StoreError;
use crate::format::read_small;
use crate::stopped::{STOPPED, Stopped};
use crate::tools::layout;
use crate::vfs::Disk;

/// What is wrong with a part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub(crate) what: String,
    /// Whether it is what a crash leaves: an unfinished write at the end.
    pub(crate) is_unfinished: bool,
}

impl Fault {
    /// The content is damaged.
    pub fn of_file(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            is_unfinished: false,
        }
    }

    /// A crash left it.
    pub fn unfinished(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            is_unfinished: true,
        }
    }
}

/// Checks a file that another module reads; the arguments are its name within the state directory,
/// its path, its content, and the store id.
pub(crate) type CheckFile<'a> = dyn Fn(&str, &Path, &[u8], u64) -> Vec<Fault> + 'a;

/// A defect of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileFault {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub what: String,
    /// Whether nothing is lost.
    pub(crate) is_note: bool,
}

/// Checks all files that cannot be rebuilt. `FORMAT` and `SEQUENCE` are checked elsewhere.
pub(crate) fn check(
    (dir, store_id): (&Path, u64),
    stopped: Option<&Option<Stopped>>,
    of_others: &CheckFile<'_>,
) -> Result<Vec<FileFault>, StoreError> {
    let mut found = Vec::new();
    let mut add = |path: PathBuf, what: String, is_note| {
        found.push(FileFault {
            path,
            what,
            is_note,
        });
    };

    let changed = match stopped {
        // Without what the last stop recorded, a file that is missing cannot be told from one that
        // never was.
        Some(Some(stopped)) => stopped.changed_files(dir)?,
        Some(None) => {
            let what = "malformed, or its checksum does not match: what is missing since the last stop is not detected";
            add(dir.join(STOPPED), what.to_owned(), false);
            Vec::new()
        }
        None => Vec::new(),
    };

    for (name, is_text) in layout::irreplaceable(dir)? {
        let path = dir.join(&name);
        // A large file is read by its own check.
        let bytes = if is_text {
            let Some(content) = read_small(&Disk, &path)? else {
                continue;
            };
            if content.is_damaged() {
                let what = "the disk cannot read a part of it".to_owned();
                add(path.clone(), what, false);
            }
            content.bytes
        } else {
            Vec::new()
        };

        let own = match name.as_str() {
            "FORMAT" | "SEQUENCE" => Vec::new(),
            // Files of modules above the store are checked by their own code, which the caller
            // passes.
            _ => of_others(&name, &path, &bytes, store_id),
        };
        for fault in own {
            add(path.clone(), fault.what, fault.is_unfinished);
        }
    }

    // After the content of the files: what changed since the stop explains nothing about what is
    // malformed.
    for (name, what) in changed {
        add(dir.join(name), what, false);
    }
    Ok(found)
}
