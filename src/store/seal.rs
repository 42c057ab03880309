//! Sealing: a finished segment's index moves from memory to sled, beside its log.
//!
//! The thread takes finished segments in order. For each it writes `index/`, applies the segment to the state
//! database, and only then lets go of the index in memory. A crash at any point leaves a segment that the
//! next start seals again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Shared;
use super::error::StoreError;
use super::segment::{Index, Segment};
use crate::channel::{Next, Rx};
use crate::limits::SEAL_RETRY;

/// The sealer's thread.
pub struct Sealer {
    pub(super) shared: Arc<Shared>,
    pub(super) seals: Rx<Arc<Segment>>,
    /// Segments that could not be sealed yet, oldest first.
    pub(super) backlog: Vec<Arc<Segment>>,
}

impl Sealer {
    /// Works until the appender is gone and everything finished is sealed.
    pub fn run(mut self) {
        let mut tried = Instant::now();
        loop {
            match self.seals.next(Duration::from_secs(1)) {
                Next::Message(segment) => self.backlog.push(segment),
                Next::Idle if !self.backlog.is_empty() && tried.elapsed() < SEAL_RETRY => continue,
                Next::Idle => {}
                Next::Closed => break,
            }
            tried = Instant::now();
            let shared = self.shared.clone();
            self.backlog.retain(|segment| match seal(&shared, segment) {
                Ok(()) => false,
                // The index stays in memory and goes on answering until it can be written.
                Err(error) => {
                    tracing::error!(dir = %segment.dir().display(), %error, "could not seal a segment; trying again");
                    shared.metrics.seals_failed.add(1);
                    true
                }
            });
        }
        for segment in self.backlog {
            tracing::warn!(dir = %segment.dir().display(), "left for the next start to seal");
        }
    }
}

/// Seals a finished segment whose index lies in memory.
pub(super) fn seal(shared: &Shared, segment: &Segment) -> Result<(), StoreError> {
    // Reading: the segment is finished, so its index does not change while readers go on.
    if let Index::Memory(index) = &*segment.index() {
        segment.write_index(index)?;
        shared.state.apply(segment, index)?;
    } else {
        return Ok(());
    }
    *segment.index_mut() = Index::Closed;
    shared.metrics.segments_sealed.add(1);
    Ok(())
}
