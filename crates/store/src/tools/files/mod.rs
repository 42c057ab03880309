//! Durable copies and writes of files, and checks of free space.

pub mod tree;

pub(crate) use crate::format::list;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use super::ToolError;
use crate::error::io_at;
use crate::vfs::read::{Outcome, read_at};
use crate::vfs::{Disk, Fs as _};
use crate::{StoreError, format};
use saltcellar_base::limits::TOOL_COPY_BYTES;

/// Free space to leave after a copy, in bytes: directories and small files are not counted before
/// it.
const SPARE_BYTES: u64 = 1024 * 1024;

pub(crate) type Hash = u128;

/// Exists at the root of some file systems.
pub(crate) const LOST_AND_FOUND: &str = "lost+found";

/// Copies the first `len` bytes of an open file into a file that was just created, and syncs it;
/// returns their hash. Zero bytes stand for what the disk cannot read.
pub(crate) fn copy(
    from: &File,
    source: &Path,
    mut out: File,
    to: &Path,
    len: u64,
    mut each: impl FnMut(u64),
) -> Result<Hash, StoreError> {
    let hash = hashed(from, source, len, |part| {
        each(part.len() as u64);
        out.write_all(part).map_err(io_at("write", to))
    })?;
    // Durable before its name is used anywhere.
    out.sync_all().map_err(io_at("sync", to))?;
    Ok(hash)
}

/// Hashes the first `len` bytes of an open file; calls `each` with every part. Zero bytes stand for
/// what the disk cannot read.
pub(crate) fn hashed(
    from: &File,
    source: &Path,
    len: u64,
    mut each: impl FnMut(&[u8]) -> Result<(), StoreError>,
) -> Result<Hash, StoreError> {
    let mut hash = Xxh3::new();
    let mut buffer = vec![0; TOOL_COPY_BYTES];

    let mut at = 0;
    let mut left = len;
    while left > 0 {
        let want = buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        let Some(part) = buffer.get_mut(..want) else {
            break;
        };

        // Read errors of the disk are not errors of the copy: the rest of the file is worth
        // keeping.
        match read_at(from, part, at).map_err(io_at("read", source))? {
            Outcome::Whole => {}
            Outcome::End => {
                let why = io::Error::new(io::ErrorKind::UnexpectedEof, "the file was truncated");
                return Err(io_at("read", source)(why));
            }
            Outcome::Damaged(ranges) => {
                for range in ranges {
                    tracing::error!(
                        path = %source.display(), offset = range.start, bytes = range.end - range.start,
                        "the disk cannot read part of a file, the copy contains zero bytes in its place: check the disk"
                    );
                }
            }
        }

        hash.update(part);
        each(part)?;

        at += want as u64;
        left -= want as u64;
    }
    Ok(hash.digest128())
}

/// Fails if the file system of `to` lacks space for `bytes`.
pub(crate) fn check_free_space(to: &Path, bytes: u64) -> Result<(), ToolError> {
    let absolute = std::path::absolute(to).map_err(io_at("find", to))?;
    // The target may not exist yet.
    let there = absolute
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(to);
    let space = Disk
        .space(there)
        .map_err(io_at("query the free space of", there))?;

    let free = space.available;
    let needed = bytes.saturating_add(SPARE_BYTES);
    if free < needed {
        return Err(ToolError::NoSpace {
            path: to.to_owned(),
            needed,
            free,
        });
    }
    Ok(())
}

/// Fails if one directory is inside the other, or both are the same.
pub(crate) fn check_disjoint(a: &Path, b: &Path) -> Result<(), ToolError> {
    let (a_real, b_real) = (real(a)?, real(b)?);
    // Both directions: the copy would include itself, or the target would be inside the source.
    for ((inner, real_inner), (outer, real_outer)) in
        [((a, &a_real), (b, &b_real)), ((b, &b_real), (a, &a_real))]
    {
        if real_inner.starts_with(real_outer) {
            return Err(ToolError::Nested {
                inner: inner.to_owned(),
                outer: outer.to_owned(),
            });
        }
    }
    Ok(())
}

/// Resolves symbolic links in the existing part of a path.
fn real(path: &Path) -> Result<PathBuf, StoreError> {
    let path = std::path::absolute(path).map_err(io_at("find", path))?;
    // The target of a copy usually does not exist, but a part of its path may be a symbolic link.
    for there in path.ancestors() {
        if let Ok(real) = there.canonicalize() {
            return Ok(real.join(path.strip_prefix(there).unwrap_or(Path::new(""))));
        }
    }
    Ok(path)
}

/// Creates a directory; accepts an existing empty one.
pub(crate) fn make_empty(path: &Path) -> Result<(), ToolError> {
    match fs::read_dir(path) {
        Ok(mut items) => {
            if items.any(|item| !item.is_ok_and(|item| is_of_file_system(&item.path()))) {
                return Err(ToolError::NotEmpty {
                    path: path.to_owned(),
                });
            }
            Ok(())
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(make_dir(path)?),
        Err(why) => Err(StoreError::Io {
            action: "list",
            path: path.to_owned(),
            why,
        }
        .into()),
    }
}

/// Whether a new file system also contains this: a directory with nothing else is empty.
pub(crate) fn is_of_file_system(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == LOST_AND_FOUND)
}

/// Creates a directory and its ancestors. Durable on return.
pub(crate) fn make_dir(path: &Path) -> Result<(), StoreError> {
    format::make_dir(&Disk, path)
}

pub(crate) fn sync_dir(path: &Path) -> Result<(), StoreError> {
    format::sync_dir(&Disk, path)
}

/// Writes a small file atomically and durably.
pub(crate) fn write_small(path: &Path, content: impl AsRef<[u8]>) -> Result<(), StoreError> {
    Disk.write_whole(path, content.as_ref())
        .map_err(io_at("write", path))
}

/// Gives all files in a directory the owner and group of the directory, for tools that run as root.
pub(crate) fn inherit_owner(dir: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::{MetadataExt as _, lchown};
    // Tools are often run as root, and the daemon must be able to write to what they made.
    let owner = fs::metadata(dir).map_err(io_at("read the metadata of", dir))?;
    let mut waiting = vec![dir.to_owned()];

    // Symbolic links are changed themselves, not followed.
    while let Some(dir) = waiting.pop() {
        for path in list(&dir)? {
            let meta = fs::symlink_metadata(&path).map_err(io_at("read the metadata of", &path))?;
            if (meta.uid(), meta.gid()) != (owner.uid(), owner.gid()) {
                lchown(&path, Some(owner.uid()), Some(owner.gid()))
                    .map_err(io_at("change the owner of", &path))?;
            }
            if meta.is_dir() {
                waiting.push(path);
            }
        }
    }
    Ok(())
}

/// The content of a small text file; `None` if it does not exist.
pub(crate) fn text(path: &Path) -> Result<Option<String>, StoreError> {
    let content = format::read_small(&Disk, path)?;
    Ok(content.map(|content| String::from_utf8_lossy(&content.bytes).into_owned()))
}
