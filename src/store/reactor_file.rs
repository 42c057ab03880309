//! What the reactor keeps beside the log: a small file that is written whole.
//!
//! ```text
//! REACTOR    text; `reactor::run::ledger` has its form
//! ```

use std::sync::atomic::Ordering;

use super::Store;
use super::error::{StoreError, io_at};

const NAME: &str = "REACTOR";

impl Store {
    /// From now on an event that a bus tells after another door brought it is stored once more, as
    /// [`crate::model::Kind::Heard`]: whoever reacts, reacts to buses alone.
    pub fn note_heard(&self) {
        self.0.heard.store(true, Ordering::Relaxed);
    }

    /// The file of the reactor, if there is one.
    pub fn reactor_file(&self) -> Result<Option<String>, StoreError> {
        let path = self.0.dir.join(NAME);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(why) => Err(io_at("read", &path)(why)),
        }
    }

    /// Writes it. Durable when it returns.
    pub fn keep_reactor_file(&self, text: &str) -> Result<(), StoreError> {
        let path = self.0.dir.join(NAME);
        self.0.medium.write_whole(&path, text.as_bytes()).map_err(io_at("write", &path))
    }
}
