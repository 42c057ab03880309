//! The durability of acknowledged entries.

use std::time::Duration;

/// When an entry is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// After it is synced: a power cut loses no acknowledged entry.
    Durable,
    /// After it is written. A killed daemon loses nothing; a power cut loses the entries acknowledged in the last
    /// `within`, and during one sync.
    Written {
        /// Maximum time until the sync.
        within: Duration,
    },
}
