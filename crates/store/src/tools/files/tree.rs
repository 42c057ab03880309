//! Writes into a directory without following symbolic links below it: another user with write
//! access could redirect them to a place that only the user of this process can write to.
//!
//! # Invariant
//!
//! Paths are resolved component by component with `O_NOFOLLOW`, relative to the parent directory.
//! Only the root may be a symbolic link, because the user of the tool named it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};

use crate::StoreError;
use crate::error::io_at;
use crate::tools::files;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// An open directory. Names are relative to it and must not contain `..`.
#[derive(Debug)]
pub(crate) struct Tree {
    directory: OwnedFd,
    path: PathBuf,
}

impl Tree {
    /// Opens a directory; creates it and its ancestors if missing.
    pub(crate) fn root(path: &Path) -> Result<Self, StoreError> {
        files::make_dir(path)?;
        let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
        let directory = rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from);
        Ok(Self {
            directory: directory.map_err(io_at("open", path))?,
            path: path.to_owned(),
        })
    }

    /// The full path of a name, for messages.
    pub(crate) fn path(&self, name: &Path) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn dir(&self, name: impl AsRef<Path>) -> io::Result<Self> {
        self.walk(name.as_ref(), false)
    }

    fn walk(&self, name: &Path, create: bool) -> io::Result<Self> {
        let mut at = Self {
            directory: self.directory.try_clone()?,
            path: self.path.clone(),
        };

        for part in name.components() {
            // `..` would lead out of the tree, whatever the parts before it are.
            let Component::Normal(part) = part else {
                return Err(io::ErrorKind::InvalidInput.into());
            };

            // A directory that exists is opened below, and rejected there if it is a link.
            if create {
                match rustix::fs::mkdirat(&at.directory, part, Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
            }

            let opened = rustix::fs::openat(&at.directory, part, DIRECTORY, Mode::empty());
            at = Self {
                directory: opened.map_err(|error| at.refusal(part, error))?,
                path: at.path.join(part),
            };
        }
        Ok(at)
    }

    /// Explains why a name could not be opened. For a symbolic link the system reports only ENOTDIR
    /// or ELOOP.
    fn refusal(&self, name: &OsStr, error: rustix::io::Errno) -> io::Error {
        // Looked at after the failure, so it only explains it.
        let found = rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW);
        if found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_symlink()) {
            let link = self.path.join(name);
            return io::Error::other(format!(
                "{} is a symbolic link, which is not followed: put the file or directory itself in its place",
                link.display()
            ));
        }
        error.into()
    }

    /// The directory that contains a name, and its last component.
    fn resolve(&self, name: &Path, create: bool) -> io::Result<(Self, OsString)> {
        // A path that ends in `..` has no last component.
        let Some(last) = name.file_name() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        Ok((
            self.walk(name.parent().unwrap_or(Path::new("")), create)?,
            last.to_owned(),
        ))
    }

    /// Creates a file; fails if it exists.
    pub(crate) fn create_new(&self, name: impl AsRef<Path>) -> io::Result<File> {
        self.open(
            name.as_ref(),
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
        )
    }

    pub(crate) fn open_file(&self, name: impl AsRef<Path>) -> io::Result<File> {
        self.open(name.as_ref(), OFlags::RDONLY)
    }

    fn open(&self, name: &Path, flags: OFlags) -> io::Result<File> {
        let (dir, name) = self.resolve(name, flags.contains(OFlags::CREATE))?;
        // Refuses a symbolic link in the last component, which `walk` does not resolve.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&dir.directory, &name, flags, Mode::from_raw_mode(0o666));
        Ok(opened.map_err(|error| dir.refusal(&name, error))?.into())
    }

    /// The type of a file, symbolic links included; `None` if it does not exist.
    pub(crate) fn file_type(&self, name: impl AsRef<Path>) -> io::Result<Option<FileType>> {
        let found = self.resolve(name.as_ref(), false).and_then(|(dir, name)| {
            Ok(rustix::fs::statat(
                &dir.directory,
                &name,
                AtFlags::SYMLINK_NOFOLLOW,
            )?)
        });

        match found {
            Ok(found) => Ok(Some(FileType::from_raw_mode(found.st_mode))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The names in a subdirectory, sorted.
    pub(crate) fn list(&self, name: impl AsRef<Path>) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();

        for item in rustix::fs::Dir::read_from(&self.dir(name)?.directory)? {
            let item = item?;
            let name = OsStr::from_bytes(item.file_name().to_bytes());
            if name != "." && name != ".." {
                names.push(name.to_owned());
            }
        }

        names.sort_unstable();
        Ok(names)
    }

    pub(crate) fn link(&self, from: &Path, name: impl AsRef<Path>) -> io::Result<()> {
        let (dir, name) = self.resolve(name.as_ref(), true)?;
        Ok(rustix::fs::linkat(
            CWD,
            from,
            &dir.directory,
            &name,
            AtFlags::empty(),
        )?)
    }

    /// Removes a file, a symbolic link, or a directory with its content. Succeeds if it does not
    /// exist.
    pub(crate) fn remove(&self, name: impl AsRef<Path>) -> io::Result<()> {
        use rustix::io::Errno;

        let (dir, name) = match self.resolve(name.as_ref(), false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            resolved => resolved?,
        };
        // Most names are files, so the type is not asked for first.
        match rustix::fs::unlinkat(&dir.directory, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // The error for a directory depends on the file system.
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }

        let inside = dir.dir(&name)?;
        for item in inside.list("")? {
            inside.remove(&item)?;
        }
        dir.remove_dir(&name)
    }

    pub(crate) fn remove_dir(&self, name: impl AsRef<Path>) -> io::Result<()> {
        let (dir, name) = self.resolve(name.as_ref(), false)?;
        Ok(rustix::fs::unlinkat(
            &dir.directory,
            &name,
            AtFlags::REMOVEDIR,
        )?)
    }

    pub(crate) fn sync(&self, name: impl AsRef<Path>) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.dir(name)?.directory)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_and_directories_are_created_linked_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::root(&dir.path().join("a/b")).unwrap();
        tree.create_new("c/d/file")
            .unwrap()
            .write_all(b"words")
            .unwrap();
        assert_eq!(
            tree.create_new("c/d/file").unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        tree.link(&dir.path().join("a/b/c/d/file"), "c/linked")
            .unwrap();
        assert_eq!(fs::read(dir.path().join("a/b/c/linked")).unwrap(), b"words");
        assert_eq!(tree.list("c").unwrap(), ["d", "linked"]);
        assert!(tree.file_type("c/d").unwrap().unwrap().is_dir());
        assert!(tree.file_type("e/d").unwrap().is_none());
        tree.sync("c").unwrap();
        tree.remove("c").unwrap();
        tree.remove("c").unwrap();
        assert!(tree.list("").unwrap().is_empty());
        for outside in ["..", "../x", "/x", "a/../../x", ""] {
            assert!(tree.create_new(outside).is_err(), "{outside}");
        }
    }

    #[test]
    fn no_operation_follows_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "kept").unwrap();
        let tree = Tree::root(&dir.path().join("root")).unwrap();
        tree.create_new("own").unwrap();
        symlink(&outside, dir.path().join("root/dir")).unwrap();
        symlink(outside.join("file"), dir.path().join("root/file")).unwrap();
        symlink(outside.join("new"), dir.path().join("root/new")).unwrap();
        let refused = [
            tree.create_new("dir/new").map(drop),
            tree.create_new("new").map(drop),
            tree.open_file("file").map(drop),
            tree.open_file("dir/file").map(drop),
            tree.dir("dir").map(drop),
            tree.list("dir").map(drop),
            tree.link(&dir.path().join("root/own"), "dir/own"),
            tree.remove("dir/file"),
            tree.sync("dir"),
            tree.file_type("dir/file").map(drop),
        ];
        for (number, refused) in refused.into_iter().enumerate() {
            assert!(refused.is_err(), "operation {number}");
        }
        assert!(tree.file_type("dir").unwrap().unwrap().is_symlink());
        let error = tree.create_new("dir/new").unwrap_err().to_string();
        assert!(error.contains("root/dir is a symbolic link"), "{error}");
        // The symbolic link is removed, not its target.
        tree.remove("dir").unwrap();
        tree.remove("file").unwrap();
        let found: Vec<_> = fs::read_dir(&outside)
            .unwrap()
            .map(|item| item.unwrap().file_name())
            .collect();
        assert_eq!(found, ["file"]);
        assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "kept");
    }
}
