//! Wrappers around sled: opening, panics as errors, flush with fsync.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::{StoreError, derived_at, io_at};
use crate::format::{list, name_of};
use saltcellar_base::limits::INDEX_BUSY_TIMEOUT;

/// Opens a sled database; a panic inside sled on damaged files becomes an error. sled closes a
/// database on a background thread, so a recently closed one may still be locked: waits up to
/// `INDEX_BUSY_TIMEOUT`.
pub(crate) fn open_sled(dir: &Path, cache_bytes: u64) -> Result<sled::Db, StoreError> {
    let deadline = Instant::now() + INDEX_BUSY_TIMEOUT;
    loop {
        // No flush by time: `flush_and_sync` flushes where durability matters, and each open
        // database has one thread less.
        let config = sled::Config::new()
            .path(dir)
            .cache_capacity(cache_bytes)
            .flush_every_ms(None);
        match guarded(dir, || config.open()) {
            // Another thread of this process has just closed it. A database that stays locked
            // belongs to another process.
            Err(StoreError::Io { why, .. }) if is_held(&why) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2));
            }
            opened => return opened,
        }
    }
}

/// Opens a sled database and converts it with `open`. sled writes to a database on opening; on a
/// full disk a copy in memory is opened instead, and the second argument of `open` is true.
pub(crate) fn open_or_copy<T>(
    dir: &Path,
    cache_bytes: u64,
    open: impl Fn(sled::Db, bool) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    match open_sled(dir, cache_bytes).and_then(|db| open(db, false)) {
        // Only if there is something to copy: a new database has no files yet.
        Err(error) if error.is_no_space() && dir.join("db").is_file() => {
            open_copy(dir, cache_bytes).and_then(|db| open(db, true)).map_err(|cause| {
                tracing::warn!(dir = %dir.display(), %cause, "cannot open a copy of an index in memory while the disk is full: free some space");
                // A failed write may leave a sled database damaged.
                if matches!(cause, StoreError::Index { .. }) { cause } else { error }
            })
        }
        opened => opened,
    }
}

fn open_copy(dir: &Path, cache_bytes: u64) -> Result<sled::Db, StoreError> {
    // Wait until sled has closed the original.
    let place = dir.join("db");
    let held = File::open(&place).map_err(io_at("open", &place))?;
    let deadline = Instant::now() + INDEX_BUSY_TIMEOUT;
    // A shared lock: several readers may copy at the same time, and the copy is taken between two
    // owners of the database.
    while let Err(why) = held.try_lock_shared() {
        if Instant::now() >= deadline {
            return Err(io_at("lock", &place)(why.into()));
        }
        std::thread::sleep(Duration::from_millis(2));
    }

    // The copy is removed when this returns: reads need only the open file.
    open_sled(&DatabaseCopy::of(dir, &memory_dir())?.0, cache_bytes)
}

/// Opens an empty database in memory.
pub(crate) fn open_in_memory(cache_bytes: u64) -> Result<sled::Db, StoreError> {
    // Removed as a copy is.
    open_sled(&DatabaseCopy::empty(&memory_dir())?.0, cache_bytes)
}

/// A directory on a file system in memory, if there is one.
fn memory_dir() -> PathBuf {
    let in_memory = Path::new("/dev/shm");
    if in_memory.is_dir() {
        in_memory.to_owned()
    } else {
        std::env::temp_dir()
    }
}

/// A private copy of a database, removed on drop: sled writes to a database on opening.
pub(crate) struct DatabaseCopy(pub PathBuf);

impl DatabaseCopy {
    /// Copies the files of a closed database to a new directory in `parent`.
    pub(crate) fn of(dir: &Path, parent: &Path) -> Result<Self, StoreError> {
        let copy = Self::empty(parent)?;
        for path in list(dir)?.iter().filter(|path| path.is_file()) {
            fs::copy(path, copy.0.join(name_of(path))).map_err(derived_at("copy", path))?;
        }
        Ok(copy)
    }

    /// A new directory in `parent`.
    fn empty(parent: &Path) -> Result<Self, StoreError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // The directory may be left from a process with the same number, in a directory that other
        // users can write to: never use an existing directory.
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("saltcellar-{}-{number}", std::process::id()));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                made => {
                    return made
                        .map(|()| Self(path.clone()))
                        .map_err(io_at("create the directory", &path));
                }
            }
        }
    }
}

impl Drop for DatabaseCopy {
    fn drop(&mut self) {
        // In memory or in a temporary directory; nothing depends on it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Calls into sled. Damage, bad sectors and panics become [`StoreError::Index`]; other errors of
/// the operating system (no space, no file descriptor, no permission, database locked) become
/// [`StoreError::Io`].
pub(crate) fn guarded<T>(
    dir: &Path,
    work: impl FnOnce() -> sled::Result<T>,
) -> Result<T, StoreError> {
    let refused = derived_at("use the index", dir);
    // sled panics on some damaged files, and its own types need not be consistent afterwards: the
    // caller opens it again or discards it.
    let what = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => return Ok(done),
        // The disk, not the data: the caller may retry. sled's own errors have no error number.
        Ok(Err(sled::Error::Io(why))) if why.raw_os_error().is_some() || is_held(&why) => {
            return Err(refused(why));
        }
        Ok(Err(e)) => e.to_string(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            format!("sled panicked: {text}")
        }
    };

    // After a fatal error, sled returns the message of that error from every call.
    match os_error_in(&what) {
        Some(why) => Err(refused(why)),
        None => Err(StoreError::Index {
            path: dir.to_owned(),
            what,
        }),
    }
}

/// Parses an operating system error from a string with its debug form.
fn os_error_in(text: &str) -> Option<io::Error> {
    let (_, behind) = text.split_once("Os { code: ")?;
    let code = behind
        .split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()?;
    Some(io::Error::from_raw_os_error(code))
}

/// Whether the error is sled's for a database that is already open; sled has no dedicated variant.
fn is_held(error: &std::io::Error) -> bool {
    error.to_string().contains("could not acquire lock")
}

/// Flushes a database and syncs its file: `flush` of sled 0.34 does not fsync
/// (docs/decisions/log-and-indexes.md).
pub(crate) fn flush_and_sync(db: &sled::Db, dir: &Path) -> Result<(), StoreError> {
    // First sled's buffers, then the file that they went to.
    guarded(dir, || db.flush())?;
    let file = dir.join("db");
    File::open(&file)
        .and_then(|f| f.sync_data())
        .map_err(io_at("sync", &file))?;
    // sled writes its files directly, not through `Fs`.
    crate::format::sync_dir(&crate::vfs::Disk, dir)
}

#[cfg(test)]
mod tests;
