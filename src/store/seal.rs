//! Sealing: a finished segment's index moves from memory to sled, beside its log.
//!
//! The thread takes finished segments in order. For each it writes `index/`, applies the segment to the state
//! database, and only then lets go of the index in memory. A crash at any point leaves a segment that the
//! next start seals again.

use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::error::StoreError;
use super::segment::{Index, Segment};
use crate::channel::{Next, Rx};

/// The sealer's thread.
pub struct Sealer {
    pub(super) shared: Arc<Shared>,
    pub(super) seals: Rx<Arc<Segment>>,
    /// Segments found unsealed at start, oldest first.
    pub(super) backlog: Vec<Arc<Segment>>,
}

impl Sealer {
    /// Works until the appender is gone and everything finished is sealed.
    pub fn run(mut self) {
        for segment in std::mem::take(&mut self.backlog) {
            self.seal_and_report(&segment);
        }
        loop {
            match self.seals.next(Duration::from_secs(1)) {
                Next::Message(segment) => self.seal_and_report(&segment),
                Next::Idle => {}
                Next::Closed => break,
            }
        }
    }

    fn seal_and_report(&self, segment: &Segment) {
        match self.seal(segment) {
            Ok(()) => self.shared.metrics.segments_sealed.add(1),
            // The index stays in memory and goes on answering; the next start tries again.
            Err(error) => tracing::error!(dir = %segment.dir().display(), %error, "could not seal a segment"),
        }
    }

    fn seal(&self, segment: &Segment) -> Result<(), StoreError> {
        // Reading: the segment is finished, so its index does not change while readers go on.
        if let Index::Memory(index) = &*segment.index() {
            segment.write_index(index)?;
            self.shared.state.apply(segment.class, segment.first_seq, index)?;
        } else {
            return Ok(());
        }
        *segment.index_mut() = Index::Closed;
        Ok(())
    }
}
