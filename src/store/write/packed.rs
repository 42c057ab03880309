//! What the appender hands to the committer: packed blocks with their entries, counts, and the callbacks of batches.

use std::sync::Arc;

use crate::base::clock::Micros;
use crate::model::{Batch, Entry, Flags, Kind, SeqNo};
use crate::store::log::file::BlockMeta;

/// Completion callback of a batch, called once: stored and synced, or the reason of the failure.
pub type Done = Box<dyn FnOnce(Result<(), String>) + Send>;

/// An entry of a block: its sequence number and where its bytes are.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) struct EntryRef {
    pub(in crate::store) seq: SeqNo,
    /// Index into the block's batches.
    pub(in crate::store) batch: u32,
    /// Index into that batch.
    pub(in crate::store) at: u32,
    /// Kind in the log; deduplication may have changed it from that in the batch.
    pub(in crate::store) kind: Kind,
    pub(in crate::store) flags: Flags,
}

/// A packed block and its entries, which are indexed once the block is on disk.
#[derive(Debug)]
pub(in crate::store) struct PackedBlock {
    /// Its offset is relative to [`Part::frames`](super::committer::Part::frames).
    pub(in crate::store) meta: BlockMeta,
    /// The distinct templates of its tags.
    pub(in crate::store) templates: Vec<Vec<u8>>,
    pub(in crate::store) batches: Vec<Arc<Batch>>,
    pub(in crate::store) entries: Vec<EntryRef>,
    /// Bytes of its entries, names included.
    pub(in crate::store) raw_bytes: usize,
}

#[derive(Debug, Default)]
pub(in crate::store) struct EntryStats {
    pub(in crate::store) raw_bytes: u64,
    pub(in crate::store) known: u64,
    pub(in crate::store) differing: u64,
    pub(in crate::store) returns: u64,
    /// Failed returns; the last one.
    pub(in crate::store) failed: u64,
    pub(in crate::store) last_failed: Option<FailedReturn>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailedReturn {
    /// Time of arrival.
    pub at: Micros,
    /// Job id.
    pub jid: String,
    /// Minion id.
    pub minion: String,
    /// Function; empty for several.
    pub fun: String,
    /// Exit code.
    pub retcode: i64,
}

impl EntryStats {
    pub(super) fn count_return(&mut self, entry: &Entry<'_>) {
        self.returns += 1;
        if entry.flags.failed(entry.retcode) {
            self.failed += 1;
            self.last_failed = Some(FailedReturn {
                at: entry.at,
                jid: entry.jid.to_owned(),
                minion: entry.minion.to_owned(),
                fun: entry.fun.to_owned(),
                retcode: entry.retcode,
            });
        }
    }
}
