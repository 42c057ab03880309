//! The state database in use: what sealed segments say together.
//!
//! # Invariant
//!
//! It is derived from the segments: one that proves damaged is rebuilt from them, and in use only once
//! it is complete, so damage costs time, never a result. A segment counts as sealed only once the
//! database in use has it.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::error::{StoreError, io_at};
use crate::format::finish_discard;
use crate::index::sealed::Written;
use crate::index::state::StateDatabase;
use crate::index::{LatestJob, SegmentMetadata};
use crate::log::file::FILE_HEADER_LEN;
use crate::segment::Segment;
use crate::segment::list::Segments;
use crate::segment::open_indexes::OpenIndexes;
use crate::state_dir::StateDir;
use saltcellar_base::metrics::Metrics;
use saltcellar_model::{JidKey, SeqNo};

/// The state database, and what it is rebuilt from.
#[derive(Debug)]
pub(crate) struct Catalogue {
    /// Lock order: after a segment's `work`, before `shared_index` and `index` of any segment: a
    /// rebuild opens their indexes under it.
    slot: RwLock<Arc<StateDatabase>>,
    segments: Arc<Segments>,
    indexes: Arc<OpenIndexes>,
    metrics: Arc<Metrics>,
    /// Last, with the lock of the directory: the database is closed before.
    dir: StateDir,
}

impl Catalogue {
    /// Opens the state database; a damaged one is renamed away and replaced by an empty one.
    pub(crate) fn open(
        dir: StateDir,
        segments: Arc<Segments>,
        indexes: Arc<OpenIndexes>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, StoreError> {
        let state = open_state(dir.path(), &metrics)?;
        // Only its space is late.
        if let Err(error) = finish_discard(&**dir.fs(), &dir.path().join("state")) {
            tracing::warn!(%error, "cannot remove a discarded state database, the next start retries");
        }

        Ok(Self {
            slot: RwLock::new(Arc::new(state)),
            segments,
            indexes,
            metrics,
            dir,
        })
    }

    /// The database in use.
    pub(crate) fn state(&self) -> Arc<StateDatabase> {
        self.slot.read().clone()
    }

    /// Queries the state database. If it proves damaged, it is rebuilt from the segments and
    /// queried again.
    pub(crate) fn query<T>(
        &self,
        ask: impl Fn(&StateDatabase) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let state = self.state();
        match ask(&state) {
            // One reader rebuilds it. Other readers wait for the lock here, and then find it
            // replaced.
            Err(error @ StoreError::Index { .. }) => {
                let mut slot = self.slot.write();
                if Arc::ptr_eq(&slot, &state) {
                    let rebuilt = replace_damaged_state(self.dir.path(), &error, &self.metrics)?;
                    // In use only once it is complete: without a row, a result would be wrong. If
                    // the disk is full, the next query retries.
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
    pub(crate) fn refill(&self, state: &StateDatabase) -> Result<(), StoreError> {
        for segment in self.segments.all() {
            // A segment without metadata is not sealed yet; the sealer applies it.
            let Some(metadata) = segment.metadata() else {
                continue;
            };
            let latest = self.indexes.latest_in(&segment)?;
            state.apply(&segment.class_name, segment.first_seq, &metadata, &latest)?;
        }
        Ok(())
    }

    /// Applies a segment to the state database, then calls `show`, which publishes it as sealed.
    pub(crate) fn apply(
        &self,
        segment: &Segment,
        written: &Written,
        show: impl FnOnce() -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        loop {
            let told = self.state();
            self.query(|state| {
                state.apply(
                    &segment.class_name,
                    segment.first_seq,
                    &written.metadata,
                    &written.latest,
                )
            })?;

            // A reader that finds the database damaged rebuilds it from the sealed segments. Under
            // the lock this happens either before, and the segment is applied again, or after, and
            // it is seen as sealed.
            let now = self.slot.read();
            if Arc::ptr_eq(&told, &now) {
                return show();
            }
        }
    }

    /// The metadata of a sealed segment: from the state database, or from its index, which is then
    /// applied to the state database. `None` if the log must be scanned. Only numbers below `below`
    /// are trusted.
    pub(crate) fn sealed_metadata(
        &self,
        segment: &Arc<Segment>,
        known: Option<SegmentMetadata>,
        below: SeqNo,
    ) -> Result<Option<SegmentMetadata>, StoreError> {
        // Never sealed, or its index was discarded.
        if !segment.has_index() {
            return Ok(None);
        }

        // Whichever way the metadata is known: an index that was removed may be back after a power
        // loss.
        let outdated = |metadata: &SegmentMetadata| -> Result<bool, StoreError> {
            // Nothing that the disk can reread stays hidden.
            if segment.index_is_outdated(metadata)? {
                tracing::warn!(dir = %segment.dir().display(), "unreadable part of a log is readable now, rebuilding its index");
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
            .read_index(below)
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
        let applied = self
            .query(|state| state.apply(&segment.class_name, segment.first_seq, &metadata, &latest));

        match applied {
            // The sealer retries.
            Err(error) if error.is_no_space() => {
                tracing::warn!(dir = %segment.dir().display(), %error, "no space to register a sealed segment, sealing it later: free some space");
                Ok(None)
            }
            applied => applied.map(|()| Some(metadata)),
        }
    }

    /// Deletes dropped segments. `seqs` are their sequence numbers, as far as they are known: for a
    /// segment that an earlier process dropped they are known only from its row.
    pub(crate) fn forget(
        &self,
        segments: &HashSet<(&str, SeqNo)>,
        seqs: impl Iterator<Item = RangeInclusive<SeqNo>>,
    ) -> Result<(), StoreError> {
        let known = self.query(StateDatabase::segments)?;
        let known = known.iter().filter(|(class_name, first_seq, _)| {
            segments.contains(&(class_name.as_str(), *first_seq))
        });

        let known = known.map(|(_, first_seq, metadata)| *first_seq..=metadata.totals.last_seq);
        let seqs: Vec<_> = known.chain(seqs).collect();

        // The rows of segments are changed last: after a crash they still contain the sequence
        // numbers.
        self.forget_last_jobs(&seqs)?;
        self.query(|state| state.forget(segments.iter().copied()))
    }

    /// Removes last jobs whose returns are in no segment. `seqs` are the sequence numbers of
    /// segments that were dropped or lost.
    pub(crate) fn forget_last_jobs(
        &self,
        seqs: &[RangeInclusive<SeqNo>],
    ) -> Result<(), StoreError> {
        // Read before the segments are listed: the list then contains any segment that is sealed in
        // between.
        let mut gone = self.query(StateDatabase::latest)?;
        let is_stored = self.segments.stored_seqs();
        gone.retain(|row| !is_stored(row.seq) || seqs.iter().any(|seqs| seqs.contains(&row.seq)));

        // Numbers of several classes overlap, so a row in the range of a dropped segment may belong
        // to one that stays: look into those.
        for segment in self.segments.all() {
            // Has no rows to look for.
            if segment
                .metadata()
                .is_some_and(|metadata| metadata.jobs == 0)
            {
                continue;
            }
            let own = segment.first_seq..=segment.totals().last_seq;
            // Reading the rows of a segment is expensive, so only if it may own one.
            if gone.iter().any(|row| own.contains(&row.seq)) {
                let found: HashSet<SeqNo> = self
                    .indexes
                    .latest_in(&segment)?
                    .iter()
                    .map(|row| row.seq)
                    .collect();
                gone.retain(|row| !found.contains(&row.seq));
            }
        }
        // Writing to the state database costs two syncs.
        if gone.is_empty() {
            return Ok(());
        }
        // Sorted for the binary search of `jobs_before`.
        gone.sort_unstable_by(|a, b| a.pair().cmp(&b.pair()));
        // Segments sealed from here on write their own rows, so `jobs_before` sees every possible
        // replacement.
        let before = self.jobs_before(&gone)?;
        self.query(|state| state.forget_latest(&gone, &before))
    }

    /// The replacements of `gone`: the newest remaining job of the same function and minion in each
    /// segment. Later segments also count, because jobs may be stored late or imported.
    fn jobs_before(&self, gone: &[LatestJob]) -> Result<Vec<LatestJob>, StoreError> {
        let Some((newest, _)) = gone.iter().map(LatestJob::newness).max() else {
            return Ok(Vec::new());
        };

        let mut found = Vec::new();
        for other in self
            .segments
            .with_older_jobs(newest.unwrap_or(JidKey(u128::MAX)))
        {
            found.extend(self.indexes.latest_in(&other)?.into_iter().filter(|row| {
                let at = gone.binary_search_by(|gone| gone.pair().cmp(&row.pair()));
                at.ok()
                    .and_then(|at| gone.get(at))
                    .is_some_and(|gone| row.newness() < gone.newness())
            }));
        }
        Ok(found)
    }
}

/// Opens the state database; a damaged one is renamed away and replaced by an empty one.
fn open_state(dir: &Path, metrics: &Metrics) -> Result<StateDatabase, StoreError> {
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

    tracing::error!(%error, aside = %aside.display(), "state database damaged, rebuilding it from the log: check the disk for errors");
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
    use crate::class::Class;
    use crate::segment::list::tests::sealed_segment;
    use crate::watermark::Watermark;
    use saltcellar_base::clock::{Clock, Micros};

    #[test]
    fn a_database_that_is_gone_is_filled_again_from_the_sealed_segments() {
        let dir = tempfile::tempdir().unwrap();
        let (segments, metrics) = (Arc::new(Segments::new(2)), Arc::<Metrics>::default());
        let watermark = Watermark::new(SeqNo(u64::MAX), Clock::manual(Micros(1)));
        let indexes = OpenIndexes::new(Arc::new(watermark), metrics.clone());
        let (state_dir, indexes) = (StateDir::for_tests(dir.path()), Arc::new(indexes));
        let open = || {
            let owners = (segments.clone(), indexes.clone());
            Catalogue::open(state_dir.clone(), owners.0, owners.1, metrics.clone()).unwrap()
        };
        let rows = |catalogue: &Catalogue| {
            let rows = catalogue.query(StateDatabase::segments).unwrap();
            rows.into_iter().map(|row| row.1.0).collect::<Vec<_>>()
        };

        let catalogue = open();
        for first_seq in [10, 20] {
            let segment = sealed_segment(dir.path(), Class::JOBS, first_seq);
            let metadata = (*segment.metadata().unwrap()).clone();
            let mut is_shown = false;
            let show = || {
                is_shown = true;
                segments.add(segment.clone());
                Ok(())
            };
            let latest = Vec::new();
            let written = Written { metadata, latest };
            catalogue.apply(&segment, &written, show).unwrap();
            assert!(is_shown);
        }
        assert_eq!(rows(&catalogue), [10, 20]);

        drop(catalogue);
        // As after a crash while it was being discarded.
        let dropped = dir.path().join("state.dropped");
        fs::rename(dir.path().join("state"), &dropped).unwrap();
        let catalogue = open();
        assert!(!dropped.exists());
        assert_eq!(rows(&catalogue), [0_u64; 0]);
        catalogue.refill(&catalogue.state()).unwrap();
        assert_eq!(rows(&catalogue), [10, 20]);

        let dropped = HashSet::from([("class-0", SeqNo(10))]);
        catalogue.forget(&dropped, std::iter::empty()).unwrap();
        assert_eq!(rows(&catalogue), [20]);
    }

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

        // The mark cannot be written, so nothing is created. Another attempt, such as the next
        // query, keeps the renamed directory.
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
