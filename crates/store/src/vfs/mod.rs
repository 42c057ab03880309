//! File system access of the store. Everything that must be durable is created, written, synced,
//! renamed and removed through a [`Fs`].
//!
//! The daemon uses [`Disk`], the real file system; tests use simulated disks that fill up, fail,
//! delay operations, or forget unsynced data. Directory listings, locks and sled's files,
//! which the store can rebuild, bypass it. [`read`] decides what a failed read means.
//!
//! # Invariant
//!
//! A file's bytes are durable after [`FsFile::sync_data`], its name after [`Fs::sync_dir`] of its
//! directory, and not before. A failed sync leaves the durability of the data unknown: the kernel
//! may have dropped the dirty pages, and a later successful sync does not cover them.

pub mod faults;
#[cfg(test)]
pub(crate) mod power_cut;
pub mod read;

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::io::Errno;

/// Sizes of a file system in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Free for processes without privileges.
    pub(crate) available: u64,
    /// Total size.
    pub total: u64,
}

/// Writes the content of an empty file.
pub type Write<'a> = Box<dyn FnOnce(&dyn FsFile) -> io::Result<()> + 'a>;

/// The file system operations of the store.
pub trait Fs: Debug + Send + Sync {
    /// Creates or truncates a file for reading and writing. Symbolic links are rejected.
    fn create(&self, path: &Path) -> io::Result<Box<dyn FsFile>>;

    /// Opens a file for reading.
    fn open(&self, path: &Path) -> io::Result<Box<dyn FsFile>>;

    /// Opens a log for reading: while it is open, retention does not truncate it. A log that is being
    /// truncated is reported as not found.
    fn open_log(&self, path: &Path) -> io::Result<Box<dyn FsFile>> {
        self.open(path)
    }

    /// Opens a file for reading and writing.
    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn FsFile>>;

    /// Creates one directory with mode 0750.
    fn make_dir(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Renames a file or a directory; replaces an existing file.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory and its content.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Size of the file system that contains `path`, and its free space.
    fn space(&self, path: &Path) -> io::Result<Space>;

    /// Writes a small file atomically; see [`Fs::replace`].
    fn write_whole(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.replace(path, Box::new(|file| file.write_all_at(bytes, 0)))
    }

    /// Replaces a file atomically through `<name>.tmp` and a rename: after a power loss it has
    /// either the old or the new content. Durable on return.
    fn replace(&self, path: &Path, write: Write<'_>) -> io::Result<()> {
        // Beside the file: a rename is atomic within one file system only.
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".tmp");
        let temporary = Path::new(&temporary);

        // Synced before the rename, or the new name could refer to an empty file after a power
        // loss.
        let written = self.create(temporary).and_then(|file| {
            write(&*file)?;
            file.sync_all()
        });

        if let Err(why) = written.and_then(|()| self.rename(temporary, path)) {
            // An incomplete file occupies space, which may be short.
            let _ = self.remove_file(temporary);
            return Err(why);
        }

        // The rename itself is durable only with its directory.
        self.sync_dir(dir_of(path))
    }
}

/// The directory with the name of a file; the current one for a name alone.
fn dir_of(path: &Path) -> &Path {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    dir.unwrap_or(Path::new("."))
}

/// Gives a complete and synced file its name, which must be new: a file of that name fails it with
/// [`io::ErrorKind::AlreadyExists`]. Durable on return.
pub fn publish(temporary: &Path, path: &Path) -> io::Result<()> {
    let cwd = rustix::fs::CWD;
    let flags = rustix::fs::RenameFlags::NOREPLACE;
    match rustix::fs::renameat_with(cwd, temporary, cwd, path, flags) {
        // Some network file systems cannot do it; a second name is never given to two files either.
        Err(Errno::INVAL | Errno::NOSYS) => {
            fs::hard_link(temporary, path)?;
            fs::remove_file(temporary)?;
        }
        renamed => renamed?,
    }
    Disk.sync_dir(dir_of(path))
}

/// An open file of a [`Fs`]. Can be shared between threads.
pub trait FsFile: Debug + Send + Sync {
    /// Writes all of `bytes` at `offset`. A failed write may have written any part.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Fills `buffer` from `offset`; fails with [`io::ErrorKind::UnexpectedEof`] if the file is
    /// shorter.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Makes the bytes durable, with the metadata needed to read them.
    fn sync_data(&self) -> io::Result<()>;

    /// As [`FsFile::sync_data`], and timestamps and mode as well.
    fn sync_all(&self) -> io::Result<()>;

    /// Truncates the file or extends it with zero bytes.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Sets the access mode, whatever the umask is. Durable with [`FsFile::sync_all`].
    fn set_mode(&self, mode: u32) -> io::Result<()>;

    /// Length in bytes.
    fn size(&self) -> io::Result<u64>;
}

/// Opens a log for reading with a shared lock, which prevents retention from truncating it. A file
/// that retention is truncating is reported as not found.
pub(crate) fn open_to_read(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    // Not waited for: retention holds its lock while it truncates the log away.
    match file.try_lock_shared() {
        // The bytes are being freed, so the caller treats the file as removed.
        Err(TryLockError::WouldBlock) => Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the file is being removed",
        )),
        // Without locks retention does not truncate: it removes whole files, which readers keep
        // open.
        Err(TryLockError::Error(_)) | Ok(()) => Ok(file),
    }
}

/// The real file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct Disk;

impl Fs for Disk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn FsFile>> {
        // A user with write access to a backup directory may have created a symbolic link there.
        let no_link = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();

        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(no_link);
        Ok(Box::new(options.open(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn FsFile>> {
        Ok(Box::new(File::open(path)?))
    }

    fn open_log(&self, path: &Path) -> io::Result<Box<dyn FsFile>> {
        Ok(Box::new(open_to_read(path)?))
    }

    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn FsFile>> {
        Ok(Box::new(
            OpenOptions::new().read(true).write(true).open(path)?,
        ))
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o750).create(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        // Blocks that only root may use (`f_bfree`) do not count: the daemon is not root.
        let found = rustix::fs::statvfs(path)?;
        // `f_frsize`, not `f_bsize`: the counts are in units of fragments.
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(Space {
            available: bytes(found.f_bavail),
            total: bytes(found.f_blocks),
        })
    }
}

impl FsFile for File {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(self, bytes, offset)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, buffer, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        File::sync_data(self)
    }

    fn sync_all(&self) -> io::Result<()> {
        File::sync_all(self)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        File::set_len(self, len)
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.set_permissions(fs::Permissions::from_mode(mode))
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_published_under_a_new_name_only() {
        let dir = tempfile::tempdir().unwrap();
        let [part, path] = ["a.part", "a"].map(|name| dir.path().join(name));
        fs::write(&part, "whole").unwrap();
        fs::write(&path, "other").unwrap();
        let error = publish(&part, &path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "other");

        fs::remove_file(&path).unwrap();
        publish(&part, &path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
        assert!(!part.exists());
    }

    #[test]
    fn write_whole_replaces_a_file_and_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("FORMAT");
        for text in ["one", "the other"] {
            Disk.write_whole(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        // The target is a directory that is not empty: the rename fails and the temporary file is removed.
        fs::create_dir_all(dir.path().join("taken/x")).unwrap();
        Disk.write_whole(&dir.path().join("taken"), b"text")
            .unwrap_err();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_file_is_read_written_and_truncated_by_position() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let file = Disk.create(&path).unwrap();
        file.write_all_at(b"world", 6).unwrap();
        file.write_all_at(b"hello ", 0).unwrap();
        file.sync_data().unwrap();
        let reader = Disk.open(&path).unwrap();
        let mut found = [0; 11];
        reader.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"hello world");
        assert!(reader.write_all_at(b"x", 0).is_err(), "opened for reading");
        Disk.open_to_write(&path).unwrap().set_len(5).unwrap();
        assert_eq!(reader.size().unwrap(), 5);
        assert_eq!(
            reader.read_exact_at(&mut found, 0).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        let space = Disk.space(dir.path()).unwrap();
        assert!(
            space.total >= space.available && space.total > 0,
            "{space:?}"
        );
    }

    /// The kernel rejects a sync of a pipe with EINVAL; any other result shows that no sync was called.
    #[test]
    fn a_sync_calls_the_kernel() {
        use std::os::fd::AsRawFd as _;

        let (reader, writer) = io::pipe().unwrap();
        let path = std::path::PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        let file: &dyn FsFile = &file;
        for refused in [file.sync_data(), file.sync_all(), Disk.sync_dir(&path)] {
            assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
