//! A segment's index: where its blocks lie, and which entries belong to which job.
//!
//! The index of an unfinished segment lies in memory ([`MemIndex`]) and is made anew from the log at start.
//! When the segment is sealed it is written to sled in one go, in pages ([`sealed`]): sled then never sees a write
//! per event, and the hot path never waits for it. Both answer the same questions.

pub mod arena;
pub mod code;
pub mod facts;
pub mod job;
pub mod latest;
pub mod mem;
pub mod minion;
pub mod names;
pub mod page;
pub mod sealed;
pub mod summary;

pub use facts::Facts;
pub use latest::LatestJob;
pub use mem::{LatestRow, MemIndex};
pub use sealed::{Layout, SealedIndex};
pub use summary::{Blocks, Shapes};

use crate::clock::Micros;
use crate::model::{JidKey, SeqNo};

/// An entry's place in its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Number of the block.
    pub block: u32,
    /// Number of the entry in the block.
    pub at: u16,
}

/// The last job that ran a function on a minion: see [`newness`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latest {
    /// Where its return lies in the log.
    pub seq: SeqNo,
    /// The job.
    pub jid: String,
}

/// Orders returns of one function from one minion; the greatest is that of the last job.
///
/// A jid says when its job began, and that counts: jobs are also imported, long after they were run. A jid of another form is
/// taken for older than any that says so. Of two such jids, and of the returns of one job, the one stored last is the greater.
pub fn newness(jid: JidKey, seq: SeqNo) -> (Option<JidKey>, SeqNo) {
    (jid.time().map(|_| jid), seq)
}

impl Latest {
    /// See [`newness`].
    pub fn newness(&self) -> (Option<JidKey>, SeqNo) {
        newness(JidKey::of(&self.jid), self.seq)
    }
}

/// Sums over a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sums {
    /// Entries.
    pub entries: u64,
    /// Bytes that they brought along.
    pub raw_bytes: u64,
    /// Bytes of the log file.
    pub log_bytes: u64,
    /// First sequence number.
    pub first_seq: SeqNo,
    /// Last sequence number.
    pub last_seq: SeqNo,
    /// Earliest arrival.
    pub at_min: Micros,
    /// Latest arrival.
    pub at_max: Micros,
}

impl Sums {
    /// The sums of two segments together.
    #[must_use]
    pub fn joined(self, other: Self) -> Self {
        Self {
            entries: self.entries + other.entries,
            raw_bytes: self.raw_bytes + other.raw_bytes,
            log_bytes: self.log_bytes + other.log_bytes,
            first_seq: self.first_seq.min(other.first_seq),
            last_seq: self.last_seq.max(other.last_seq),
            at_min: self.at_min.min(other.at_min),
            at_max: self.at_max.max(other.at_max),
        }
    }
}

#[cfg(test)]
mod tests;
