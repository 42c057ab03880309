//! Restricts the permissions of an existing state directory to those that the daemon's umask would
//! give a new one.
//!
//! A directory with foreign files is only reported, because they may need its permissions.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::Context as _;

use crate::store::tools::layout;

/// Removes the permissions in `mask` from the state directory and its direct contents.
pub(super) fn restrict(dir: &Path, mask: u32) -> anyhow::Result<()> {
    // The path may be a link.
    let dir = &dir
        .canonicalize()
        .with_context(|| format!("find {}", dir.display()))?;

    let foreign = layout::foreign(dir)?;
    for item in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let path = item?.path();
        if !foreign.contains(&path) {
            restrict_one(&path, mask)?;
        }
    }

    // To close the directory would also close the foreign files in it.
    match foreign
        .iter()
        .find(|path| path.parent().is_some_and(|parent| parent == dir))
    {
        None => restrict_one(dir, mask),
        Some(other) => {
            let mode = fs::metadata(dir)?.mode() & 0o7777;
            let less = mode & !mask;
            if mode != less {
                tracing::warn!(
                    state_dir = %dir.display(), mode = %format_args!("{mode:04o}"), wanted = %format_args!("{less:04o}"), other = %other.display(),
                    "state directory is open to others and contains foreign files, permissions not changed: run `chmod` with the wanted mode, or choose another --state-dir"
                );
            }
            Ok(())
        }
    }
}

fn restrict_one(path: &Path, mask: u32) -> anyhow::Result<()> {
    let inspecting = || format!("inspect {}", path.display());
    let found = match fs::symlink_metadata(path) {
        // Deleted or renamed meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.with_context(inspecting)?,
    };

    let mode = found.mode() & 0o7777;
    // A link has no permissions of its own, and its target may be outside of the directory.
    if found.is_symlink() || mode & mask == 0 {
        return Ok(());
    }

    let less = mode & !mask;
    match fs::set_permissions(path, fs::Permissions::from_mode(less)) {
        Ok(()) => tracing::info!(
            path = %path.display(), from = %format_args!("{mode:04o}"), to = %format_args!("{less:04o}"),
            "permissions restricted"
        ),
        // Owned by another user, or on a file system without permissions.
        Err(error) => tracing::warn!(
            path = %path.display(), mode = %format_args!("{mode:04o}"), wanted = %format_args!("{less:04o}"), %error,
            "path open to users who must not have access, and the daemon cannot change its mode: give it to the daemon's user (`chown`), or run `chmod` with the wanted mode"
        ),
    }

    Ok(())
}
