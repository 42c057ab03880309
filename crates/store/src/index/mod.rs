//! The index of a segment: positions of its blocks, and the entries of each job.
//!
//! The index of an active segment is in memory ([`MemIndex`]) and is rebuilt from the log at start.
//! When the segment is sealed, the index is written as a table, one immutable file ([`sealed`]): no
//! event costs a write of an index. Both forms support the same queries.

pub(crate) mod archive;
pub mod job;
pub mod job_summary;
pub mod latest;
pub mod memory;
pub mod minion;
pub mod page;
pub mod sealed;
pub mod segment_metadata;
pub mod state;
pub mod summary;
pub mod tree;

pub use latest::LatestJob;
pub(crate) use memory::MemIndex;
pub(crate) use minion::MinionSelection;
pub(crate) use sealed::{Layout, SealedIndex};
pub use segment_metadata::SegmentMetadata;
pub use summary::{Blocks, TagTemplates};

use saltcellar_base::clock::Micros;
use saltcellar_model::{JidKey, SeqNo};

/// The position of an entry in its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryPosition {
    /// Index of the block.
    pub block: u32,
    /// Index of the entry in the block.
    pub at: u16,
}

/// Sort key of the returns of one function from one minion; the greatest belongs to the latest job.
///
/// The start time in the jid decides, because jobs may be imported long after they ran. A jid
/// without a time sorts before all other jids. Ties, such as returns of one job, are decided by the
/// order in the log.
pub(crate) fn newness(jid: JidKey, seq: SeqNo) -> (Option<JidKey>, SeqNo) {
    (jid.time().map(|_| jid), seq)
}

/// Totals of a segment.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize,
)]
pub struct Totals {
    /// Entries.
    pub entries: u64,
    /// Bytes of the entries, uncompressed.
    pub raw_bytes: u64,
    /// Bytes of the log file.
    pub log_bytes: u64,
    /// First sequence number.
    pub first_seq: SeqNo,
    /// Last sequence number.
    pub last_seq: SeqNo,
    /// Earliest time of arrival.
    pub at_min: Micros,
    /// Latest time of arrival.
    pub at_max: Micros,
}

impl Totals {
    #[must_use]
    pub(crate) fn joined(self, other: Self) -> Self {
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
