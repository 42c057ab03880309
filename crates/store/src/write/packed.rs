//! What the appender hands to the committer in addition to blocks: counts, and the callbacks of batches.

use saltcellar_base::clock::Micros;
use saltcellar_model::Entry;

/// Completion callback of a batch, called once: stored and synced, or the reason of the failure.
pub type Done = Box<dyn FnOnce(Result<(), String>) + Send>;

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
