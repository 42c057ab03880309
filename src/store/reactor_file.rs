//! What the reactor keeps beside the log: a small file that is appended to, and written whole from time to time.
//!
//! ```text
//! REACTOR    text; `reactor::run::checkpoint` has its form
//! ```

use std::io;
use std::sync::atomic::Ordering;

use super::Store;
use super::error::{StoreError, io_at};
use super::vfs::FsFile;

const NAME: &str = "REACTOR";

impl Store {
    /// From now on an event that a bus tells after another source brought it is stored once more, as
    /// [`crate::model::Kind::SeenOnBus`]: whoever reacts, reacts to buses alone.
    pub fn note_seen_on_bus(&self) {
        self.0.has_reactor.store(true, Ordering::Relaxed);
    }

    /// The file of the reactor, if there is one.
    pub fn reactor_file(&self) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.0.dir.join(NAME);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(why) => Err(io_at("read", &path)(why)),
        }
    }

    /// Writes it whole: `write` is given a function that takes the text piece by piece. Durable when it returns.
    pub fn keep_reactor_file(
        &self,
        write: impl FnOnce(&mut dyn FnMut(&str) -> io::Result<()>) -> io::Result<()>,
    ) -> Result<(), StoreError> {
        let path = self.0.dir.join(NAME);
        let write_to = |file: &dyn FsFile| {
            let mut at = 0;
            write(&mut |text| {
                file.write_all_at(text.as_bytes(), at)?;
                at += text.len() as u64;
                Ok(())
            })
        };
        self.0.fs.replace(&path, Box::new(write_to)).map_err(io_at("write", &path))
    }

    /// Appends to it; fails if it does not end at `offset`. Durable when it returns. After an error any part of it may be there.
    pub fn append_to_reactor_file(&self, offset: u64, text: &str) -> Result<(), StoreError> {
        let path = self.0.dir.join(NAME);
        let append = || {
            let file = self.0.fs.open_to_write(&path)?;
            if file.size()? != offset {
                return Err(io::Error::other("it is not as long as it was left"));
            }
            file.write_all_at(text.as_bytes(), offset)?;
            file.sync_data()
        };
        append().map_err(io_at("append to", &path))
    }

    /// Removes it; whether it was there. Durable when it returns.
    pub fn remove_reactor_file(&self) -> Result<bool, StoreError> {
        let path = self.0.dir.join(NAME);
        match self.0.fs.remove_file(&path) {
            Ok(()) => self.0.fs.sync_dir(&self.0.dir).map_err(io_at("sync", &self.0.dir))?,
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(why) => return Err(io_at("remove", &path)(why)),
        }
        Ok(true)
    }
}
