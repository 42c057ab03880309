//! The open indexes of segments.
//!
//! # Invariant
//!
//! An index that is damaged is rebuilt from the log: damage costs time, never a result. A rebuilt
//! index stays in memory until the sealer has written it. No more indexes are open than the limits
//! allow, but for those that are in use at the moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{IndexOpened, Ready, Segment};
use crate::error::StoreError;
use crate::index::{LatestJob, MemIndex, SealedIndex};
use crate::watermark::Watermark;
use saltcellar_base::limits::{INDEXES_OPEN, INDEXES_OPEN_BYTES};
use saltcellar_base::metrics::Metrics;
use saltcellar_base::work;

/// Opens the indexes of segments when they are needed.
#[derive(Debug)]
pub(crate) struct OpenIndexes {
    /// Segments with an open sealed index, and its memory in bytes. Indexes are closed under it.
    /// Their own locks are only tried, because a thread that holds one of them may wait here. Lock
    /// order: no lock is waited for under it.
    open: Mutex<Vec<(Arc<Segment>, usize)>>,
    /// Logical clock for the least recently used index.
    uses: AtomicU64,
    /// Segments with a damaged index, rebuilt in memory and to be written. Lock order: no other
    /// lock is taken under it.
    damaged: Mutex<Vec<Arc<Segment>>>,
    watermark: Arc<Watermark>,
    metrics: Arc<Metrics>,
}

impl OpenIndexes {
    pub(crate) fn new(watermark: Arc<Watermark>, metrics: Arc<Metrics>) -> Self {
        Self {
            open: Mutex::default(),
            uses: AtomicU64::new(1),
            damaged: Mutex::default(),
            watermark,
            metrics,
        }
    }

    /// Opens a segment's index; rebuilds a damaged one from the log.
    pub(crate) fn ready<'a>(&self, segment: &'a Arc<Segment>) -> Result<Ready<'a>, StoreError> {
        // A loop, because the state may change between the looks: another thread opens, closes or
        // rebuilds the index.
        loop {
            if let Some(index) = segment.memory() {
                return Ok(Ready::Memory(index));
            }

            if let Some(index) = segment.opened() {
                segment.touch(self.uses.fetch_add(1, Ordering::Relaxed));
                return Ok(Ready::Sealed(index));
            }

            match segment.open_index(self.watermark.believed_below())? {
                IndexOpened::Before => {}
                IndexOpened::Now(bytes) => {
                    segment.touch(self.uses.fetch_add(1, Ordering::Relaxed));
                    self.note_open(segment, bytes);
                }
                IndexOpened::Rebuilt(error) => self.note_damaged(segment, &error),
            }
        }
    }

    /// Queries a segment's index in memory or on disk. An index that proves damaged is rebuilt and
    /// queried again.
    pub(crate) fn query<T>(
        &self,
        segment: &Arc<Segment>,
        memory: impl Fn(&MemIndex) -> T,
        sealed: impl Fn(&SealedIndex) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        work::check()?;
        // Ends with the rebuilt index in memory, or with the error of an index that cannot be
        // rebuilt.
        loop {
            match self.ready(segment)? {
                Ready::Memory(index) => return Ok(memory(&index)),
                Ready::Sealed(index) => match sealed(&index) {
                    // The other form cannot show damage: it was made from the log.
                    Err(error @ StoreError::Index { .. }) => {
                        // False if another thread has replaced it. Then that index is queried.
                        if segment.replace_index(&index, self.watermark.believed_below())? {
                            self.note_damaged(segment, &error);
                        }
                    }
                    answer => return answer,
                },
            }
        }
    }

    /// The latest jobs per function and minion in a segment.
    pub(crate) fn latest_in(&self, segment: &Arc<Segment>) -> Result<Vec<LatestJob>, StoreError> {
        self.query(segment, MemIndex::latest, SealedIndex::latest)
    }

    /// Returns and clears the list of segments whose rebuilt index must be written.
    pub(crate) fn take_damaged(&self) -> Vec<Arc<Segment>> {
        std::mem::take(&mut *self.damaged.lock())
    }

    /// Registers an open index, and closes the least recently used indexes above the limits.
    pub(crate) fn note_open(&self, segment: &Arc<Segment>, bytes: usize) {
        let mut open = self.open.lock();
        open.retain(|(other, _)| !Arc::ptr_eq(other, segment));
        open.push((segment.clone(), bytes));

        // The least recently used indexes last. Each key is read once, because readers change them
        // meanwhile.
        open.sort_by_cached_key(|(segment, _)| std::cmp::Reverse(segment.used()));

        let mut total: usize = open.iter().map(|(_, bytes)| bytes).sum();
        let mut at = open.len();
        while let Some(next) = at.checked_sub(1)
            && (open.len() > INDEXES_OPEN || (total > INDEXES_OPEN_BYTES && open.len() > 1))
        {
            at = next;
            // Never waited for, because every reader that opens an index waits for `open`. One that
            // is in use at this moment stays in the list.
            if open
                .get(at)
                .is_some_and(|(oldest, _)| oldest.try_close_index())
            {
                total -= open.remove(at).1;
            }
        }
    }

    /// Closes the index of a segment that is about to be dropped: an open file would keep its bytes
    /// allocated.
    pub(crate) fn forget(&self, segment: &Arc<Segment>) {
        let mut open = self.open.lock();
        open.retain(|(other, _)| !Arc::ptr_eq(other, segment));
    }

    fn note_damaged(&self, segment: &Arc<Segment>, error: &StoreError) {
        tracing::warn!(dir = %segment.dir().display(), %error, "index damaged, rebuilding it from the log");
        self.metrics.indexes_rebuilt.add(1);
        // No longer open. Before the sealer hears of it, and keeps its index locked.
        self.forget(segment);
        self.damaged.lock().push(segment.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::class::Class;
    use crate::segment::INDEX;
    use crate::segment::list::tests::sealed_segment;
    use saltcellar_base::clock::{Clock, Micros};
    use saltcellar_model::SeqNo;

    fn indexes(metrics: &Arc<Metrics>) -> OpenIndexes {
        let watermark = Watermark::new(SeqNo(u64::MAX), Clock::manual(Micros(1)));
        OpenIndexes::new(Arc::new(watermark), metrics.clone())
    }

    fn sealed(dir: &Path, first_seq: u64) -> Arc<Segment> {
        sealed_segment(dir, Class::JOBS, first_seq)
    }

    #[test]
    fn the_index_that_was_used_longest_ago_is_closed_when_memory_is_short() {
        let dir = tempfile::tempdir().unwrap();
        let indexes = indexes(&Arc::default());
        let [a, b, c] = [10, 20, 30].map(|first_seq| sealed(dir.path(), first_seq));
        for segment in [&a, &b, &a] {
            assert!(matches!(indexes.ready(segment).unwrap(), Ready::Sealed(_)));
        }
        let open = || [&a, &b, &c].map(|segment| segment.opened().is_some());
        assert_eq!(open(), [true, true, false]);

        // As if each took half of the memory that all may take.
        for segment in [&a, &b] {
            indexes.note_open(segment, INDEXES_OPEN_BYTES / 2);
        }
        assert_eq!(open(), [true, true, false]);
        indexes.ready(&c).unwrap();
        assert_eq!(open(), [true, false, true]);

        // What is dropped counts no more.
        indexes.forget(&a);
        indexes.ready(&b).unwrap();
        assert_eq!(open(), [true, true, true]);
    }

    #[test]
    fn a_damaged_index_is_rebuilt_and_handed_to_the_sealer_once() {
        let dir = tempfile::tempdir().unwrap();
        let metrics = Arc::<Metrics>::default();
        let indexes = indexes(&metrics);
        let segment = sealed(dir.path(), 10);
        std::fs::write(segment.dir().join(INDEX), b"no index").unwrap();

        for _ in 0..2 {
            assert!(matches!(indexes.ready(&segment).unwrap(), Ready::Memory(_)));
        }
        assert_eq!(metrics.indexes_rebuilt.get(), 1);
        let damaged = indexes.take_damaged();
        assert!(matches!(&damaged[..], [one] if Arc::ptr_eq(one, &segment)));
        assert!(indexes.take_damaged().is_empty());
    }
}
