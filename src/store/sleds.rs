//! sled, held at arm's length: opened, guarded against its panics, flushed and synced.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::{StoreError, io_at};
use crate::limits::INDEX_BUSY_PATIENCE;

/// Opens a sled database; a panic inside sled on damaged files becomes an error. sled lets go of a database on a thread
/// of its own, so one that was closed a moment ago may still be held: that is waited for.
pub fn open_sled(dir: &Path, cache_bytes: u64) -> Result<sled::Db, StoreError> {
    let deadline = Instant::now() + INDEX_BUSY_PATIENCE;
    loop {
        let config = sled::Config::new().path(dir).cache_capacity(cache_bytes).flush_every_ms(None);
        match guarded(dir, || config.open()) {
            Err(StoreError::Io { why, .. }) if is_held(&why) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2));
            }
            opened => return opened,
        }
    }
}

/// Runs something of sled's. Damage and panics become a [`StoreError::Index`], what the operating system refuses
/// (no space, no file descriptor, no permission, a database that somebody holds) a [`StoreError::Io`].
pub fn guarded<T>(dir: &Path, work: impl FnOnce() -> sled::Result<T>) -> Result<T, StoreError> {
    let what = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => return Ok(done),
        Ok(Err(sled::Error::Io(why))) if why.raw_os_error().is_some() || is_held(&why) => {
            return Err(StoreError::Io { action: "use the index", path: dir.to_owned(), why });
        }
        Ok(Err(e)) => e.to_string(),
        Err(panic) => {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words");
            format!("sled panicked: {words}")
        }
    };
    Err(StoreError::Index { path: dir.to_owned(), what })
}

/// Is this sled's word for a database that is open already? It has no error of its own for that.
fn is_held(error: &std::io::Error) -> bool {
    error.to_string().contains("could not acquire lock")
}

/// Flushes a database and syncs its file: `flush` of sled 0.34 alone is no fsync (docs/DECISIONS.md).
pub fn flush_and_sync(db: &sled::Db, dir: &Path) -> Result<(), StoreError> {
    guarded(dir, || db.flush())?;
    let file = dir.join("db");
    File::open(&file).and_then(|f| f.sync_data()).map_err(io_at("sync", &file))?;
    // sled's own files are outside the medium.
    super::format::sync_dir(&super::medium::Disk, dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_inside_sled_is_an_error() {
        let error = guarded::<()>(Path::new("/x"), || panic!("boom")).unwrap_err().to_string();
        assert!(error.contains("/x") && error.contains("boom"), "{error}");
    }
}
