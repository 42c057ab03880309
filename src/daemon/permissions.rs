//! The permissions of a state directory that is there already: at most those that the daemon's umask leaves to a new one.
//!
//! A directory that holds more than a store is left as it is, and reported: its other content is somebody else's to decide about.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::Context as _;

use crate::store::tools::layout;

/// Takes the permissions in `mask` from the state directory and from what is directly in it.
pub(super) fn restrict(dir: &Path, mask: u32) -> anyhow::Result<()> {
    // The directory may be named by a link.
    let dir = &dir.canonicalize().with_context(|| format!("find {}", dir.display()))?;
    let foreign = layout::foreign(dir)?;
    for item in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let path = item?.path();
        if !foreign.contains(&path) {
            restrict_one(&path, mask)?;
        }
    }
    match foreign.iter().find(|path| path.parent().is_some_and(|parent| parent == dir)) {
        None => restrict_one(dir, mask),
        Some(other) => {
            let mode = fs::metadata(dir)?.mode() & 0o7777;
            if mode & mask != 0 {
                tracing::warn!(
                    state_dir = %dir.display(), mode = %format_args!("{mode:04o}"), other = %other.display(),
                    "the state directory is open to others and holds other files, its permissions were not changed"
                );
            }
            Ok(())
        }
    }
}

fn restrict_one(path: &Path, mask: u32) -> anyhow::Result<()> {
    let looking = || format!("look at {}", path.display());
    let found = match fs::symlink_metadata(path) {
        // Retention, or a rename, was faster.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.with_context(looking)?,
    };
    let mode = found.mode() & 0o7777;
    if found.is_symlink() || mode & mask == 0 {
        return Ok(());
    }
    let less = mode & !mask;
    match fs::set_permissions(path, fs::Permissions::from_mode(less)) {
        Ok(()) => tracing::info!(
            path = %path.display(), from = %format_args!("{mode:04o}"), to = %format_args!("{less:04o}"),
            "permissions restricted"
        ),
        // Somebody else's, or a file system without permissions.
        Err(error) => tracing::warn!(
            path = %path.display(), mode = %format_args!("{mode:04o}"), %error,
            "open to others, and its permissions cannot be changed"
        ),
    }
    Ok(())
}
