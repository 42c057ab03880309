//! A file that setup owns, recognised by a checksum.
//!
//! # Invariant
//!
//! The first line contains a checksum of the rest: a file with a wrong checksum or without one was
//! edited or written by a person, and is neither changed nor removed.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Context as _, bail};

/// Start of the first line; the CRC-32 of all following lines comes next, in hexadecimal.
const MARK: &str = "# Written by `saltcellar setup`, sum ";
/// Permissions of the files. They contain no secrets, and masters that do not run as root must read
/// them.
const MODE: u32 = 0o644;
/// Permissions of new directories.
const DIRECTORY_MODE: u32 = 0o755;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileState {
    /// It does not exist.
    Absent,
    /// Equal to the planned file.
    InPlace,
    /// Written by setup with other flags or by another version.
    Outdated,
    /// Written by setup and edited since.
    Changed,
    /// Not written by setup.
    Foreign,
}

impl FileState {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::InPlace => "in place",
            Self::Outdated => "outdated",
            Self::Changed => "changed by hand",
            Self::Foreign => "not written by setup",
        }
    }
}

/// The whole file: [`MARK`] with the checksum, then `body`.
pub(super) fn marked(body: &str) -> String {
    format!("{MARK}{:08x}\n{body}", crc32fast::hash(body.as_bytes()))
}

/// Compares the file with the planned text; `None` if it is to be removed.
pub(super) fn state_of(path: &Path, text: Option<&str>) -> anyhow::Result<FileState> {
    match fs::symlink_metadata(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(FileState::Absent);
        }
        Err(error) => {
            let error = advised(error);
            return Err(error).with_context(|| format!("inspect {}", path.display()));
        }
        // Setup never creates links, and following one would change a file that is not its own.
        Ok(found) if !found.is_file() => return Ok(FileState::Foreign),
        Ok(_) => {}
    }

    let there = fs::read(path).map_err(advised);
    let there = there.with_context(|| format!("read {}", path.display()))?;
    // The whole file counts, because a string of another version must be replaced even if its
    // checksum is right.
    if text.is_some_and(|text| there == text.as_bytes()) {
        return Ok(FileState::InPlace);
    }

    let there = String::from_utf8_lossy(&there);
    let Some((sum, body)) = there
        .strip_prefix(MARK)
        .and_then(|rest| rest.split_once('\n'))
    else {
        return Ok(FileState::Foreign);
    };

    let is_whole = sum == format!("{:08x}", crc32fast::hash(body.as_bytes()));
    Ok(if is_whole {
        FileState::Outdated
    } else {
        FileState::Changed
    })
}

/// Fails if a person edited or wrote the file.
pub(super) fn refuse_foreign(path: &Path, found: FileState) -> anyhow::Result<()> {
    match found {
        FileState::Changed | FileState::Foreign => {
            bail!(
                "change {}: it is {}; move it away first, or keep it and do not use setup",
                path.display(),
                found.name()
            )
        }
        FileState::Absent | FileState::InPlace | FileState::Outdated => Ok(()),
    }
}

/// Creates a directory and those above it, readable for all users: masters and daemons that do not
/// run as root read the files. The umask is ignored, because it is meant for the store's files.
fn make_directories(dir: &Path) -> std::io::Result<()> {
    let is_missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.exists();
    let missing: Vec<_> = dir.ancestors().take_while(is_missing).collect();

    fs::create_dir_all(dir)?;
    missing
        .into_iter()
        .try_for_each(|dir| fs::set_permissions(dir, fs::Permissions::from_mode(DIRECTORY_MODE)))
}

/// With what helps if the error is a missing right, or a file system without writes.
pub(super) fn advised(error: std::io::Error) -> std::io::Error {
    let remedy = match error.kind() {
        ErrorKind::PermissionDenied if !rustix::process::geteuid().is_root() => "run setup as root",
        ErrorKind::PermissionDenied => {
            "check its attributes (`lsattr`), and the rules of SELinux or AppArmor"
        }
        ErrorKind::ReadOnlyFilesystem => "mount its file system for writing",
        _ => return error,
    };
    std::io::Error::new(error.kind(), format!("{error}; {remedy}"))
}

/// Replaces a file atomically, in a directory that is created if it is missing. The scratch file is
/// hidden from Salt, whose patterns skip names that start with a dot.
pub(super) fn write(path: &Path, text: &[u8]) -> std::io::Result<()> {
    replace(path, text).map_err(advised)
}

fn replace(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    make_directories(dir)?;

    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let scratch = dir.join(format!(".{name}.{}", std::process::id()));

    // If process ids repeat, a killed run may have left a file with this name.
    if let Err(error) = fs::remove_file(&scratch)
        && error.kind() != ErrorKind::NotFound
    {
        return Err(error);
    }

    let put = || {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&scratch)?;

        file.write_all(text)?;
        // Explicitly, because the umask applies to the mode of `open`.
        file.set_permissions(fs::Permissions::from_mode(MODE))?;
        // Before the rename, or the name could refer to an incomplete file after a power loss.
        file.sync_all()?;
        fs::rename(&scratch, path)?;
        // A rename is durable only once its directory is synced.
        File::open(dir)?.sync_all()
    };

    put().inspect_err(|_| {
        // A leftover is harmless.
        let _ = fs::remove_file(&scratch);
    })
}

/// Removes a file durably; a missing one is no error.
pub(super) fn remove(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => {
            removed.map_err(advised)?;
            File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
        }
    }
}

pub(super) struct Before(Option<Vec<u8>>);

impl Before {
    pub(super) fn of(path: &Path) -> std::io::Result<Self> {
        match fs::read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self(None)),
            read => Ok(Self(Some(read.map_err(advised)?))),
        }
    }

    pub(super) fn restore(&self, path: &Path) -> std::io::Result<()> {
        match &self.0 {
            Some(text) => write(path, text),
            None => remove(path),
        }
    }
}

#[cfg(test)]
mod tests;
