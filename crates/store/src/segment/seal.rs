//! Sealing: the index of a finished segment moves from memory to disk, and small blocks of its log
//! are merged.
//!
//! The thread seals segments in order: it writes `index`, applies the segment to the state
//! database, and then drops the index in memory. After a crash in between, the next start seals the
//! segment again. Readers rebuild damaged indexes in memory and queue them here.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::rewrite;
use crate::error::StoreError;
use crate::index::sealed::Written;
use crate::index::{MemIndex, SegmentMetadata};
use crate::rounds::Rounds;
use crate::segment::Segment;
use crate::segment::catalogue::Catalogue;
use crate::segment::list::Segments;
use crate::segment::open_indexes::OpenIndexes;
use crate::state_dir::StateDir;
use saltcellar_base::limits::SEAL_RETRY;
use saltcellar_base::metrics::Metrics;

/// The sealer's thread.
pub struct Sealer {
    pub(crate) sealing: Sealing,
    /// Of segments whose indexes were rebuilt.
    pub(crate) indexes: Arc<OpenIndexes>,
    /// Told when the sealer has ended.
    pub(crate) rounds: Arc<Rounds>,
    pub(crate) seals: Receiver<Arc<Segment>>,
    /// Segments to seal, oldest first.
    pub(crate) backlog: Vec<Arc<Segment>>,
}

impl Sealer {
    /// Runs until the committer has ended and every finished segment has been tried.
    pub fn run(mut self) {
        let mut tried = Instant::now();

        loop {
            let received = match self.seals.recv_timeout(Duration::from_secs(1)) {
                Ok(segment) => {
                    self.backlog.push(segment);
                    true
                }
                Err(RecvTimeoutError::Timeout) => false,
                // The committer has ended, so no segment follows.
                Err(RecvTimeoutError::Disconnected) => break,
            };

            let known = self.backlog.len() - usize::from(received);
            // Rebuilt indexes are written by the same thread: two writers of one directory would
            // disturb each other.
            self.backlog.extend(self.indexes.take_damaged());
            // Segments that failed wait for SEAL_RETRY unless new segments arrive.
            if self.backlog.is_empty()
                || (self.backlog.len() == known && tried.elapsed() < SEAL_RETRY)
            {
                continue;
            }

            tried = Instant::now();
            self.try_all();
        }

        // One last attempt, to leave the next start as little as possible to do.
        self.backlog.extend(self.indexes.take_damaged());
        self.try_all();
        // The retainer runs until now: a drop may be what makes room for sealing.
        self.rounds.stop();

        for segment in self.backlog {
            tracing::warn!(dir = %segment.dir().display(), "segment not sealed before shutdown, the next start seals it");
        }
    }

    fn try_all(&mut self) {
        // The index in memory keeps serving reads.
        self.backlog
            .retain(|segment| !self.sealing.try_seal(segment));
    }
}

/// What sealing needs: the list in which a segment is replaced, and the catalogue, which is told.
#[derive(Debug, Clone)]
pub(crate) struct Sealing {
    pub(crate) dir: StateDir,
    pub(crate) segments: Arc<Segments>,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Sealing {
    /// Seals a finished segment; false if that failed and is to be retried.
    pub(crate) fn try_seal(&self, segment: &Arc<Segment>) -> bool {
        let sealed = self.seal(segment);
        if let Err(error) = &sealed {
            tracing::error!(dir = %segment.dir().display(), %error, "cannot seal a segment, its index stays in memory, retrying");
            self.metrics.seals_failed.add(1);
        }
        sealed.is_ok()
    }

    /// Seals a finished segment whose index is in memory.
    fn seal(&self, segment: &Arc<Segment>) -> Result<(), StoreError> {
        // Waits: the sealer has nothing else to do. Retention only tries, so it never blocks the
        // sealer.
        let mut is_closed = segment.work.lock();
        // Retention dropped it while it waited here.
        if *is_closed {
            return Ok(());
        }

        // Locked for reading only while the files are written: readers continue, and the index of a
        // finished segment does not change as long as `work` is held. Not while the state database is
        // told, because that may have to be rebuilt, and then other indexes are opened.
        let Some(index) = segment.memory() else {
            // Already sealed, as after a rebuilt index that was queued twice.
            return Ok(());
        };

        let rewritten = rewritten(segment, &index)?;
        if let Some((dir, written)) = rewritten {
            drop(index);
            self.catalogue.apply(segment, &written, || {
                self.replace(segment, &dir, written.metadata.clone())
            })?;

            // A new `Segment` has replaced this one; the mark stops other threads from working on it.
            *is_closed = true;
            self.metrics.segments_rewritten.add(1);
        } else {
            let written = segment.write_index(&index)?;
            drop(index);
            self.catalogue.apply(segment, &written, || {
                segment.set_sealed(written.metadata.clone());
                Ok(())
            })?;
        }

        self.metrics.segments_sealed.add(1);
        Ok(())
    }

    /// Puts the copy with merged blocks in the place of a segment. Readers of the old one continue with
    /// its open file.
    fn replace(
        &self,
        segment: &Arc<Segment>,
        dir: &Path,
        metadata: SegmentMetadata,
    ) -> Result<(), StoreError> {
        let fs = self.dir.fs();
        // The name first: the new `Segment` opens its files by path.
        rewrite::commit(&**fs, dir)?;
        let class = (segment.class, segment.class_name.clone());
        let id = segment.log().id();
        let new = Segment::open(fs, dir, class, id).inspect_err(|_| rewrite::revoke(&**fs, dir))?;

        new.set_sealed(metadata);
        self.segments.replace(segment, Arc::new(new));

        // Only its space is late. The next start removes it, or retention before the new one.
        if let Err(error) = rewrite::remove_older(&**fs, dir, &segment.class_name, id) {
            tracing::warn!(dir = %segment.dir().display(), %error, "cannot remove a segment whose blocks were merged, the next start retries");
        }
        Ok(())
    }
}

/// Writes a copy of a segment with merged blocks next to it, if there are enough small blocks.
fn rewritten(
    segment: &Segment,
    index: &MemIndex,
) -> Result<Option<(PathBuf, Written)>, StoreError> {
    // Too little to gain, or damage in the log.
    let Some(groups) = rewrite::plan(segment, index)? else {
        return Ok(None);
    };
    // `None` for a block that cannot be read: the segment is sealed with its log as it is.
    rewrite::write(segment, index, &groups)
}
