//! A batch of events on its way to the store.

use std::sync::Arc;
use std::time::Instant;

use crate::base::clock::Micros;
use crate::model::Batch;

/// A batch of events that waits for the store.
#[derive(Debug, Clone)]
pub(super) struct PendingBatch {
    pub(super) batch: Arc<Batch>,
    /// The number of its first event.
    pub(super) first: u64,
    /// When it was read from the bus.
    pub(super) at: Micros,
    /// When it started to wait.
    pub(super) since: Instant,
    /// The spill file that it was read from.
    pub(super) file: Option<u64>,
    /// For a gap: the spill file that lacks the events, as long as it is there. Who reads it again
    /// finds the same gap.
    pub(super) gap_of: Option<u64>,
    /// Rejections of this batch alone.
    pub(super) refused: u32,
}

impl PendingBatch {
    pub(super) fn new(batch: Batch, first: u64, at: Micros) -> Self {
        Self {
            batch: Arc::new(batch),
            first,
            at,
            since: Instant::now(),
            file: None,
            gap_of: None,
            refused: 0,
        }
    }

    pub(super) fn events(&self) -> u64 {
        self.batch.len() as u64
    }
}
