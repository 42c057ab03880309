//! The reactor's checkpoint file: appended to, and rewritten as a whole from time to time.
//!
//! ```text
//! REACTOR    text; the format is in `reactor::run::checkpoint::file`
//! ```

use std::io;
use std::sync::atomic::Ordering;

use crate::store::Store;
use crate::store::error::{StoreError, io_at};
use crate::store::format::open_small;
use crate::store::vfs::FsFile;

const NAME: &str = "REACTOR";

impl Store {
    /// From now on an event that a bus delivers after another source is stored again, as
    /// [`crate::model::Kind::SeenOnBus`], because only events of buses cause reactions.
    pub(crate) fn note_seen_on_bus(&self) {
        self.0.has_reactor.store(true, Ordering::Relaxed);
    }

    pub(crate) fn reactor_file(&self) -> Result<Option<Vec<u8>>, StoreError> {
        // Unreadable parts fail their checksums.
        let content = open_small(&*self.0.fs, &self.0.dir.join(NAME))?;
        Ok(content.map(|content| content.bytes))
    }

    /// Replaces the file. `write` receives a function that appends text to it. Durable on return.
    pub(crate) fn replace_reactor_file(
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

        self.0
            .fs
            .replace(&path, Box::new(write_to))
            .map_err(io_at("write", &path))
    }

    /// Appends to the file; fails if its length is not `offset`. Durable on return. A failed append
    /// may have written any part.
    pub(crate) fn append_to_reactor_file(&self, offset: u64, text: &str) -> Result<(), StoreError> {
        let path = self.0.dir.join(NAME);
        let append = || {
            let file = self.0.fs.open_to_write(&path)?;
            // Another process, or a failed append, has changed it: the checkpoint then rewrites the
            // file.
            if file.size()? != offset {
                return Err(io::Error::other("unexpected length of the file"));
            }

            file.write_all_at(text.as_bytes(), offset)?;
            file.sync_data()
        };
        append().map_err(io_at("append to", &path))
    }

    /// Removes the file; returns whether it existed. Durable on return.
    pub(crate) fn remove_reactor_file(&self) -> Result<bool, StoreError> {
        let path = self.0.dir.join(NAME);
        match self.0.fs.remove_file(&path) {
            Ok(()) => self
                .0
                .fs
                .sync_dir(&self.0.dir)
                .map_err(io_at("sync", &self.0.dir))?,
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(why) => return Err(io_at("remove", &path)(why)),
        }
        Ok(true)
    }
}
