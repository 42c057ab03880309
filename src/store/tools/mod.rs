//! Tools for whoever looks after a store: verify, rebuild, redact, salvage, backup, restore.
//!
//! They work on directories, not on an open [`super::Store`], and know no configuration: what classes there are, the
//! disk says. Logs only grow and finished ones never change, so reading beside a running daemon is sound.
//!
//! # Invariant
//!
//! Nothing here changes the directory it reads, save `rebuild` and `redact`, which need the lock. What is written is synced, and
//! what makes it count (`FORMAT`, `MANIFEST`) is written last.

pub mod backup;
pub mod compare;
pub mod error;
pub mod files;
pub mod layout;
pub mod manifest;
pub mod rebuild;
pub mod redact;
pub mod restore;
pub mod salvage;
pub mod seqs;
pub mod tree;
pub mod verify;

pub use error::ToolError;

/// Where a tool says how far it is.
pub trait Watch {
    /// So many bytes of `total` are done; `what` is being worked on.
    fn step(&mut self, done: u64, total: u64, what: &str);
}

/// Says nothing.
impl Watch for () {
    fn step(&mut self, _: u64, _: u64, _: &str) {}
}

#[cfg(test)]
mod tests;
