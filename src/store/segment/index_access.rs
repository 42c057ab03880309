//! Access to segment indexes, blocks and the state database for readers.
//!
//! # Invariant
//!
//! Derived data that is damaged is rebuilt from the log: damage costs time, never a result. Rebuilt indexes
//! stay in memory until the sealer has written them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::base::limits::{INDEXES_OPEN, INDEXES_OPEN_BYTES};
use crate::base::metrics::Metrics;
use crate::base::work;
use crate::model::SeqNo;
use crate::store::StoreInner;
use crate::store::damage::Damage;
use crate::store::error::{StoreError, io_at};
use crate::store::index::state::StateDatabase;
use crate::store::index::{LatestJob, MemIndex, SealedIndex, SegmentMetadata};
use crate::store::log::block::{BlockView, Rows};
use crate::store::log::file::{BlockMeta, FILE_HEADER_LEN};
use crate::store::segment::{IndexOpened, Ready, Segment};

impl StoreInner {
    /// Opens a segment's index; rebuilds a damaged one from the log.
    pub(in crate::store) fn ready<'a>(
        &self,
        segment: &'a Arc<Segment>,
    ) -> Result<Ready<'a>, StoreError> {
        // A loop, because the state may change between the looks: another thread opens, closes or
        // rebuilds the index.
        loop {
            if let Some(index) = segment.memory() {
                return Ok(Ready::Memory(index));
            }

            if let Some(index) = segment.opened() {
                segment.touch(self.index_uses.fetch_add(1, Ordering::Relaxed));
                return Ok(Ready::Sealed(index));
            }

            match segment.open_index(self.believed_below())? {
                IndexOpened::Before => {}
                IndexOpened::Now(bytes) => {
                    segment.touch(self.index_uses.fetch_add(1, Ordering::Relaxed));
                    self.note_open(segment, bytes);
                }
                IndexOpened::Rebuilt(error) => self.note_damaged(segment, &error),
            }
        }
    }

    /// Queries a segment's index in memory or on disk. An index that proves damaged is rebuilt and
    /// queried again.
    pub(in crate::store) fn query_index<T>(
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
                        if segment.replace_index(&index, self.believed_below())? {
                            self.note_damaged(segment, &error);
                        }
                    }
                    answer => return answer,
                },
            }
        }
    }

    fn note_damaged(&self, segment: &Arc<Segment>, error: &StoreError) {
        tracing::warn!(dir = %segment.dir().display(), %error, "index damaged, rebuilding it from the log");
        self.metrics.indexes_rebuilt.add(1);
        // No longer open. Before the sealer hears of it, and keeps its index locked.
        self.open
            .lock()
            .retain(|(other, _)| !Arc::ptr_eq(other, segment));
        self.damaged.lock().push(segment.clone());
    }

    /// Returns and clears the list of segments whose rebuilt index must be written.
    pub(in crate::store) fn take_damaged(&self) -> Vec<Arc<Segment>> {
        std::mem::take(&mut *self.damaged.lock())
    }

    /// Registers an open index, and closes the least recently used ones above the limits.
    pub(in crate::store) fn note_open(&self, segment: &Arc<Segment>, bytes: usize) {
        let mut open = self.open.lock();
        open.retain(|(other, _)| !Arc::ptr_eq(other, segment));
        open.push((segment.clone(), bytes));

        // The least recently used ones last.
        // By keys read once: readers change them meanwhile.
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

    /// A block by its index in the segment; `None` if it does not exist or is damaged.
    pub(in crate::store) fn block(
        &self,
        segment: &Arc<Segment>,
        number: u32,
    ) -> Result<Option<Arc<BlockView>>, StoreError> {
        work::check()?;
        // Before the block is looked up: one of a later numbering is then cached under one that
        // nobody asks for any more.
        let id = (segment.numbering(), number);
        // Only whole blocks are cached, so a head alone is never returned here.
        if let Some(view) = self.cache.get(&id) {
            return Ok(Some(view));
        }

        let view = self.read_block(segment, number, true)?;
        // A damaged block is not remembered: the disk may read it at the next try.
        if let Some(view) = &view {
            self.cache.put(id, view.clone());
        }
        Ok(view)
    }

    /// As [`StoreInner::block`], with only the head guaranteed to be readable.
    pub(in crate::store) fn head(
        &self,
        segment: &Arc<Segment>,
        number: u32,
    ) -> Result<Option<Arc<BlockView>>, StoreError> {
        work::check()?;
        // A head is not cached: it is small, and a search that reads all heads would displace the
        // blocks.
        match self.cache.get(&(segment.numbering(), number)) {
            Some(view) => Ok(Some(view)),
            None => self.read_block(segment, number, false),
        }
    }

    /// Position and bounds of a block by its index in the segment, if it exists.
    fn meta(&self, segment: &Arc<Segment>, number: u32) -> Result<Option<BlockMeta>, StoreError> {
        Ok(self
            .ready(segment)?
            .blocks()
            .metas()
            .get(number as usize)
            .copied())
    }

    /// Whether every entry of a block comes before `from`.
    pub(in crate::store) fn ends_before(
        &self,
        segment: &Arc<Segment>,
        number: u32,
        from: SeqNo,
    ) -> Result<bool, StoreError> {
        let meta = self.meta(segment, number)?;
        Ok(meta.is_some_and(|meta| meta.last_seq < from))
    }

    pub(in crate::store) fn read_block(
        &self,
        segment: &Arc<Segment>,
        number: u32,
        with_bodies: bool,
    ) -> Result<Option<Arc<BlockView>>, StoreError> {
        let Some(meta) = self.meta(segment, number)? else {
            return Ok(None);
        };

        let log = segment.log();
        match if with_bodies {
            log.block(&meta)
        } else {
            log.head(&meta)
        } {
            // Noted once per place; the other blocks of the segment stay readable.
            Ok(view) => Ok(Some(Arc::new(view))),
            Err(StoreError::Corrupt { path, offset, what }) => {
                self.note_block(segment, &meta, (path, offset), what);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The body of an entry; `None` if its block cannot be unpacked although its checksums hold,
    /// which is noted like any other damage.
    pub(in crate::store) fn body<'a>(
        &self,
        segment: &Arc<Segment>,
        rows: Rows<'a>,
        at: usize,
    ) -> Option<&'a [u8]> {
        let what = match rows.body(at) {
            Ok(body) => return Some(body),
            Err(what) => what,
        };

        // The bodies of a block are packed together, so all of them are lost.
        let seq = rows.seq(at);
        let meta = self.ready(segment).map(|ready| {
            let blocks = ready.blocks();
            let block = blocks.block_of(seq)?;
            blocks.metas().get(block as usize).copied()
        });
        match meta {
            Ok(Some(meta)) => {
                let place = (segment.log().path().to_owned(), meta.offset);
                self.note_block(segment, &meta, place, what);
            }
            // Its place cannot be told. The body is as unreadable.
            Ok(None) => tracing::error!(%seq, what, "unreadable entry skipped"),
            Err(error) => tracing::error!(%seq, what, %error, "unreadable entry skipped"),
        }
        None
    }

    fn note_block(
        &self,
        segment: &Arc<Segment>,
        meta: &BlockMeta,
        (path, offset): (PathBuf, u64),
        what: String,
    ) {
        let damage = Damage {
            path,
            offset,
            bytes: u64::from(meta.len),
            what,
            entries: Some(u64::from(meta.count)),
        };

        self.damage.note(damage, &self.metrics);
        self.count_unreadable(segment);
    }

    pub(in crate::store) fn state(&self) -> Arc<StateDatabase> {
        self.state.read().clone()
    }

    /// Queries the state database. If it proves damaged, it is rebuilt from the segments and
    /// queried again.
    pub(in crate::store) fn with_state<T>(
        &self,
        ask: impl Fn(&StateDatabase) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let state = self.state();
        match ask(&state) {
            // One reader rebuilds it. The others wait for the lock here, and then find it replaced.
            Err(error @ StoreError::Index { .. }) => {
                let mut slot = self.state.write();
                if Arc::ptr_eq(&slot, &state) {
                    let rebuilt = replace_damaged_state(&self.dir, &error, &self.metrics)?;
                    // In use only once it is complete: without a row, an answer would be wrong. If
                    // the disk is full, the next query tries again.
                    self.refill(&rebuilt)?;
                    *slot = Arc::new(rebuilt);
                }

                let state = slot.clone();
                // The query itself needs no lock.
                drop(slot);
                ask(&state)
            }
            answer => answer,
        }
    }

    /// Applies all sealed segments to an empty state database.
    pub(in crate::store) fn refill(&self, state: &StateDatabase) -> Result<(), StoreError> {
        for segment in self.all_segments() {
            // A segment without metadata is not sealed yet; the sealer applies it.
            let Some(metadata) = segment.metadata() else {
                continue;
            };
            let latest = self.latest_in(&segment)?;
            state.apply(&segment.class_name, segment.first_seq, &metadata, &latest)?;
        }
        Ok(())
    }

    /// The latest jobs per function and minion in a segment.
    pub(in crate::store) fn latest_in(
        &self,
        segment: &Arc<Segment>,
    ) -> Result<Vec<LatestJob>, StoreError> {
        self.query_index(segment, MemIndex::latest, SealedIndex::latest)
    }

    /// The metadata of a sealed segment: from the state database, or from its index, which is then
    /// applied to the state database. `None` if the log must be scanned.
    pub(in crate::store) fn sealed_metadata(
        &self,
        segment: &Arc<Segment>,
        known: Option<SegmentMetadata>,
    ) -> Result<Option<SegmentMetadata>, StoreError> {
        // Never sealed, or its index was discarded.
        if !segment.has_index() {
            return Ok(None);
        }

        // Whichever way the metadata is known: an index that was removed may be back after a power
        // loss.
        let outdated = |metadata: &SegmentMetadata| -> Result<bool, StoreError> {
            // Nothing that the disk can read again stays hidden.
            if segment.index_is_outdated(metadata)? {
                tracing::warn!(dir = %segment.dir().display(), "unreadable part of a log can be read again, rebuilding its index");
                return Ok(true);
            }
            // A log longer than indexed: the disk lost a truncation that was reported as durable.
            let indexed = metadata.totals.log_bytes.max(FILE_HEADER_LEN as u64);
            Ok(indexed < segment.log().size()?)
        };

        // The usual case at a start: no index is opened.
        if let Some(metadata) = known {
            return Ok((!outdated(&metadata)?).then_some(metadata));
        }

        // An index that opens may still have damaged pages, and a page is verified when it is read:
        // the rows that are needed now are read.
        let found = segment
            .read_index(self.reserved_at_start)
            .and_then(|index| Ok((index.metadata().clone(), index.latest()?)));

        let (metadata, latest) = match found {
            Ok(found) => found,
            // The start scans the log, and seals it again.
            Err(error @ StoreError::Index { .. }) => {
                tracing::warn!(dir = %segment.dir().display(), %error, "index damaged, rebuilding it from the log");
                self.metrics.indexes_rebuilt.add(1);
                segment.put_index_aside()?;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if outdated(&metadata)? {
            return Ok(None);
        }
        // Not all segments are known yet, so rows about latest jobs are kept even if their entries
        // are not found.
        let applied = self.with_state(|state| {
            state.apply(&segment.class_name, segment.first_seq, &metadata, &latest)
        });

        match applied {
            // The sealer retries.
            Err(error) if error.is_no_space() => {
                tracing::warn!(dir = %segment.dir().display(), %error, "no space to register a sealed segment, sealing it again later");
                Ok(None)
            }
            applied => applied.map(|()| Some(metadata)),
        }
    }

    /// Returns a test whether the entry with a sequence number is still in a segment.
    pub(in crate::store) fn stored_seqs(&self) -> impl Fn(SeqNo) -> bool + use<> {
        // Segments without jobs have no rows, whatever their numbers are.
        let spans: BTreeSet<(SeqNo, SeqNo)> = self
            .all_segments()
            .iter()
            .filter(|segment| segment.metadata().is_none_or(|metadata| metadata.jobs > 0))
            .map(|segment| {
                (
                    segment.first_seq,
                    segment.totals().last_seq.max(segment.first_seq),
                )
            })
            .collect();
        // Segments of different classes overlap, so all that start at or before the number are
        // tested.
        move |seq| {
            spans
                .range(..=(seq, SeqNo(u64::MAX)))
                .rev()
                .any(|&(_, last)| seq <= last)
        }
    }
}

/// Opens the state database; a damaged one is renamed away and replaced by an empty one.
pub(in crate::store) fn open_state(
    dir: &Path,
    metrics: &Metrics,
) -> Result<StateDatabase, StoreError> {
    let path = dir.join("state");
    match StateDatabase::open(&path) {
        Err(error @ StoreError::Index { .. }) => replace_damaged_state(dir, &error, metrics),
        opened => opened,
    }
}

fn replace_damaged_state(
    dir: &Path,
    error: &StoreError,
    metrics: &Metrics,
) -> Result<StateDatabase, StoreError> {
    let (path, aside) = (dir.join("state"), dir.join("state.damaged"));

    tracing::error!(%error, aside = %aside.display(), "state database damaged, rebuilding it from the log");
    metrics.indexes_rebuilt.add(1);
    // It does not exist if an earlier attempt failed after this. The evidence of then is kept.
    if StateDatabase::exists(&path) {
        // Derived data: nothing here has to be durable, and one damaged database is enough for
        // diagnosis.
        let _ = std::fs::remove_dir_all(&aside);
        std::fs::rename(&path, &aside).map_err(io_at("rename", &path))?;
    }

    let replaced = StateDatabase::open(&path)?;
    if !replaced.is_in_memory() {
        return Ok(replaced);
    }

    // Free the space of the damaged one.
    match std::fs::remove_dir_all(&aside) {
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => return Ok(replaced),
        removed => removed.map_err(io_at("remove", &aside))?,
    }
    StateDatabase::open(&path)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Its creation takes several files, and the process may end between two of them.
    #[test]
    fn a_damaged_state_database_is_replaced_under_the_mark_of_an_incomplete_one() {
        let dir = tempfile::tempdir().unwrap();
        let in_dir = |name: &str| dir.path().join(name);
        let (state, evidence) = (in_dir("state"), in_dir("state.damaged/evidence"));
        let metrics = Metrics::default();

        let damage = StoreError::Index {
            path: state.clone(),
            what: "a test".to_owned(),
        };
        let replace = || replace_damaged_state(dir.path(), &damage, &metrics);
        fs::create_dir(&state).unwrap();
        fs::write(state.join("evidence"), b"").unwrap();

        // The mark cannot be written, so nothing is created. Another attempt, as of the next query,
        // keeps what was put aside.
        let blocked = in_dir("state.new.tmp");
        fs::create_dir(&blocked).unwrap();
        for _ in 0..2 {
            let error = replace().unwrap_err().to_string();
            assert!(error.contains("state.new"), "{error}");
            assert!(!state.exists());
            assert!(evidence.exists());
        }
        fs::remove_dir(&blocked).unwrap();

        // The process ends while files are created: that is no damage, and no evidence of any.
        let known = metrics.indexes_rebuilt.get();
        fs::create_dir(&state).unwrap();
        fs::write(state.join("db"), b"a part").unwrap();
        fs::write(in_dir("state.new"), b"").unwrap();
        let replaced = open_state(dir.path(), &metrics).unwrap();
        assert!(replaced.segments().unwrap().is_empty());
        assert_eq!(metrics.indexes_rebuilt.get(), known);
        assert!(evidence.exists());
        assert!(!in_dir("state.new").exists());
    }
}
