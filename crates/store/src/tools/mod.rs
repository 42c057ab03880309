//! Maintenance tools: verify, rebuild, salvage, backup, restore.
//!
//! They work on directories, not on an open [`super::Store`], and without the configuration:
//! classes are listed from the disk. Logs are append-only and finished segments immutable, so a
//! tool may read while the daemon runs.
//!
//! # Invariant
//!
//! A tool never changes the directory it reads, except for `rebuild`, which takes the
//! lock. Output is synced, and the file that makes it valid (`FORMAT`, `MANIFEST`) is written last.

pub mod backup;
mod class_writer;
pub mod error;
pub mod files;
mod known;
pub mod layout;
pub mod losses;
pub mod rebuild;
mod renumber;
pub mod salvage;
mod seqs;
pub mod verify;

pub use error::ToolError;

/// Receives the progress of a tool.
pub trait Watch {
    /// `done` of `total` bytes are done; `what` names the current item.
    fn step(&mut self, done: u64, total: u64, what: &str);
}

/// Discards progress.
impl Watch for () {
    fn step(&mut self, _: u64, _: u64, _: &str) {}
}

#[cfg(test)]
pub(super) mod tests;
