//! What an answer promises.

use std::time::Duration;

/// When an entry is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Once it is synced: a power cut takes nothing that was answered.
    Durable,
    /// Once it is written. A killed daemon loses nothing; a power cut takes what was answered in the last
    /// `within`, and what the disk needs for one sync.
    Written {
        /// It is synced so soon.
        within: Duration,
    },
}
