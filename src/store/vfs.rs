//! The fs: the one place through which the store makes bytes durable.
//!
//! Every file and directory of a state directory that must survive a power cut is made, written, synced, renamed
//! and removed through a [`Fs`]. The daemon's is [`Disk`], the file system as it is; tests put a disk in its
//! place that fills up, fails, dawdles, or forgets what was not synced. What is only read by names (a listing, the
//! lock) and sled's own files, which nothing relies on, go past it.
//!
//! # Invariant
//!
//! A file's bytes are durable after [`FsFile::sync_data`], its name after [`Fs::sync_dir`] of the directory
//! that holds it, and not before. After a sync that failed nothing is known about what it should have made durable:
//! the kernel may have dropped those pages, and a second sync that succeeds says nothing about them.

#[cfg(any(test, debug_assertions))]
pub mod faults;
#[cfg(test)]
pub(crate) mod power_cut;

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

/// Bytes of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// What a process without privileges may still write.
    pub available: u64,
    /// All of it.
    pub total: u64,
}

/// Writes the content of a file that is empty.
pub type Write<'a> = Box<dyn FnOnce(&dyn FsFile) -> io::Result<()> + 'a>;

/// Where a store keeps its files.
pub trait Fs: Debug + Send + Sync {
    /// Makes a file, or empties the one that is there, for reading and writing. A symbolic link is refused.
    fn create(&self, path: &Path) -> io::Result<Box<dyn FsFile>>;

    /// Opens a file for reading.
    fn open(&self, path: &Path) -> io::Result<Box<dyn FsFile>>;

    /// Opens a file for reading and writing.
    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn FsFile>>;

    /// Makes one directory, with mode 0750.
    fn make_dir(&self, path: &Path) -> io::Result<()>;

    /// Makes durable which names a directory holds.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Gives a file or a directory another name, in place of a file of that name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Lets two files or directories exchange their names at once. [`io::ErrorKind::Unsupported`] or `EINVAL` where the kernel or
    /// the file system cannot.
    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        let _ = (one, other);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory with all that it holds.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;

    /// How much room the file system of a path has.
    fn space(&self, path: &Path) -> io::Result<Space>;

    /// Writes a small file whole; see [`Fs::replace`].
    fn write_whole(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.replace(path, Box::new(|file| file.write_all_at(bytes, 0)))
    }

    /// Writes a file whole, by way of `<name>.tmp` and a rename: after a power cut it has the old content or the new
    /// one. Durable when it returns.
    fn replace(&self, path: &Path, write: Write<'_>) -> io::Result<()> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".tmp");
        let temporary = Path::new(&temporary);
        let written = self.create(temporary).and_then(|file| {
            write(&*file)?;
            file.sync_all()
        });
        if let Err(why) = written.and_then(|()| self.rename(temporary, path)) {
            // Half a file takes room that is perhaps what is lacking.
            let _ = self.remove_file(temporary);
            return Err(why);
        }
        path.parent().map_or(Ok(()), |dir| self.sync_dir(dir))
    }
}

/// An open file of a [`Fs`]. Many threads may use it at once.
pub trait FsFile: Debug + Send + Sync {
    /// Writes all of `bytes` at `offset`. Of a write that failed, any part may be there.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Fills `buffer` from `offset`; [`io::ErrorKind::UnexpectedEof`] if the file ends before.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Makes the bytes durable, and as much else as is needed to read them again.
    fn sync_data(&self) -> io::Result<()>;

    /// As [`FsFile::sync_data`], with times and mode.
    fn sync_all(&self) -> io::Result<()>;

    /// Cuts the file off, or fills it up with zero bytes.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Bytes of the file.
    fn size(&self) -> io::Result<u64>;
}

/// The fs of a daemon: [`Disk`]. A debug build can be told another one by the environment, for tests.
pub fn of_a_daemon() -> Result<Arc<dyn Fs>, String> {
    #[cfg(debug_assertions)]
    if let Ok(words) = std::env::var(faults::VARIABLE) {
        let told = faults::Faults::told_by(&words);
        return Ok(Arc::new(told.map_err(|word| format!("{}: `{word}` is no plan", faults::VARIABLE))?));
    }
    Ok(Arc::new(Disk))
}

/// Opens a file for reading, with a shared lock that keeps retention from cutting it short under its reader. A file that is
/// being cut short counts as gone.
pub fn open_to_read(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Err(io::Error::new(io::ErrorKind::NotFound, "it is being removed")),
        // A file system without locks has no reader that retention could know of: it removes whole files there.
        Err(TryLockError::Error(_)) | Ok(()) => Ok(file),
    }
}

/// The file system as it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Disk;

impl Fs for Disk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn FsFile>> {
        // Whoever can write to a backup's directory may have put a link there.
        let no_link = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).custom_flags(no_link);
        Ok(Box::new(options.open(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn FsFile>> {
        Ok(Box::new(open_to_read(path)?))
    }

    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn FsFile>> {
        Ok(Box::new(OpenOptions::new().read(true).write(true).open(path)?))
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

    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        let (cwd, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
        Ok(rustix::fs::renameat_with(cwd, one, cwd, other, flags)?)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let found = rustix::fs::statvfs(path)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(Space { available: bytes(found.f_bavail), total: bytes(found.f_blocks) })
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

    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_written_whole_replaces_the_old_one_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("FORMAT");
        for words in ["one", "the other"] {
            Disk.write_whole(&path, words.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), words);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        // In its way is a directory that is not empty: what was begun goes again.
        fs::create_dir_all(dir.path().join("taken/x")).unwrap();
        Disk.write_whole(&dir.path().join("taken"), b"words").unwrap_err();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_file_is_read_written_and_cut_by_position() {
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
        assert_eq!(reader.read_exact_at(&mut found, 0).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let space = Disk.space(dir.path()).unwrap();
        assert!(space.total >= space.available && space.total > 0, "{space:?}");
    }

    /// The system refuses to sync a pipe: an answer other than that shows that it was not asked.
    #[test]
    fn syncing_asked_nothing_of_the_system() {
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
