//! What the appender hands to the committer: packed blocks with their entries, counts, and the callbacks of batches.

use std::sync::Arc;

use crate::log::file::BlockMeta;
use saltcellar_base::clock::Micros;
use saltcellar_model::{Batch, Entry, Flags, Kind, SeqNo};

/// Completion callback of a batch, called once: stored and synced, or the reason of the failure.
pub type Done = Box<dyn FnOnce(Result<(), String>) + Send>;

/// An entry of a block: its sequence number and where its bytes are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryRef {
    pub(crate) seq: SeqNo,
    /// Index into the block's batches.
    pub(crate) batch: u32,
    /// Index into that batch.
    pub(crate) at: u32,
    /// Kind in the log; deduplication may have changed it from that in the batch.
    pub(crate) kind: Kind,
    pub(crate) flags: Flags,
}

/// A packed block and its entries, which are indexed once the block is on disk.
#[derive(Debug)]
pub(crate) struct PackedBlock {
    /// Its offset is relative to [`Part::frames`](super::committer::Part::frames).
    pub(crate) meta: BlockMeta,
    /// The distinct templates of its tags.
    pub(crate) templates: Vec<Vec<u8>>,
    pub(crate) batches: Vec<Arc<Batch>>,
    pub(crate) entries: Vec<EntryRef>,
    /// Bytes of its entries, names included.
    pub(crate) raw_bytes: usize,
}

#[derive(Debug, Default)]
pub(crate) struct EntryStats {
    pub(crate) raw_bytes: u64,
    pub(crate) known: u64,
    pub(crate) differing: u64,
    pub(crate) returns: u64,
    /// Failed returns; the last one.
    pub(crate) failed: u64,
    pub(crate) last_failed: Option<FailedReturn>,
}

/// A return that reports a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedReturn {
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
