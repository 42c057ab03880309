//! Lets the reactor fire events onto the buses that the daemon reads.

use std::path::PathBuf;

use crate::ingest::fire::{FireError, FiredTag, Firer};
use crate::reactor::service::Bus;

impl Bus for Firer {
    fn disconnected(&self, directory: &str) -> Option<PathBuf> {
        Firer::disconnected(self, directory)
    }

    fn fire(&self, directory: &str, tag: &str, data: &[u8]) -> Result<(), String> {
        let fire = || {
            let tag = FiredTag::new(tag)?;

            // The only bus is meant, however its directory is spelled.
            let target = self
                .target(Some(directory))
                .or_else(|_| self.target(None))?;
            let framing = self.framing(&target)?;
            Firer::fire(self, &target, framing, tag, data)
        };
        fire().map_err(|error: FireError| error.to_string())
    }
}
