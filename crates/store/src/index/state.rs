//! The state database: data across segments.
//!
//! Its content is derived from sealed segments and can be rebuilt from them. A segment is applied
//! when it is sealed; applying is idempotent and independent of order. There are no rows per job or
//! entry: segment metadata states which segments may contain a job.
//!
//! # On disk
//!
//! ```text
//! state/               sled database of checked trees (see `tree`). The mark of `latest` grows
//!                      with each change, and `segments` records it: an old `latest` is detected
//!   tree "segments"    key    name of the class | 0 | first sequence number u64 BE
//!                      value  a page (see `page`) with the metadata (see `index::segment_metadata`)
//!   tree "latest"      key    number of a page, u32 BE
//!                      value  the page: the latest job per function and minion (see `index::latest`)
//! ```

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::error::{StoreError, io_at};
use crate::format::remove_dir;
use crate::index::SegmentMetadata;
use crate::index::latest::{self, LatestJob};
use crate::index::page::{PageWriter, unpack};
use crate::index::tree::CheckedTree;
use crate::index::tree::sled_guard::{
    flush_and_sync, guarded, open_in_memory, open_or_copy, open_sled,
};
use crate::vfs::{Disk, Fs as _};
use saltcellar_base::limits::{STATE_CACHE_BYTES, STATE_PAGE_BYTES};
use saltcellar_model::SeqNo;

#[derive(Debug)]
pub(crate) struct StateDatabase {
    dir: PathBuf,
    /// `None` after a failed attempt to reopen it. Lock order: after the slot of the catalogue,
    /// before `changing` and the sum of a tree: a call is carried out under it.
    open: RwLock<Option<Database>>,
    /// Serializes changes of `latest`. Lock order: after `open`, before the sum of the tree.
    changing: Mutex<()>,
}

#[derive(Debug)]
struct Database {
    db: sled::Db,
    segments: CheckedTree,
    latest: CheckedTree,
    /// Whether it is in memory, because the disk is full: a copy, or empty. Read-only.
    is_copy: bool,
    /// Whether an I/O error occurred; sled needs a reopen then.
    failed: AtomicBool,
}

/// The file that exists while the database is being created.
fn incomplete_mark(dir: &Path) -> PathBuf {
    dir.with_extension("new")
}

/// Whether the database is absent, or was being created when the process ended.
fn is_incomplete(dir: &Path) -> bool {
    !dir.exists() || incomplete_mark(dir).exists()
}

/// A catalogue row: class name, first sequence number, metadata.
pub(crate) type Known = (String, SeqNo, SegmentMetadata);

impl Database {
    fn open(dir: &Path) -> Result<Self, StoreError> {
        // Absent, or a start ended while it was created: nothing of it is worth keeping.
        if is_incomplete(dir) {
            return match Self::create(dir) {
                // There is nothing to copy, and the log has everything.
                Err(error) if error.is_no_space() => {
                    Self::read(open_in_memory(STATE_CACHE_BYTES)?, true, dir)
                }
                created => created,
            };
        }

        open_or_copy(dir, STATE_CACHE_BYTES, |db, is_copy| {
            Self::read(db, is_copy, dir)
        })
    }

    /// Creates the database. A file next to it marks it as incomplete until then: sled writes its
    /// files one after the other, and a part of them would count as damage.
    fn create(dir: &Path) -> Result<Self, StoreError> {
        let mark = incomplete_mark(dir);
        let fs = &Disk;
        // A directory that exists here is marked already, so a part of it is recognized.
        remove_dir(fs, dir)?;
        fs.write_whole(&mark, b"").map_err(io_at("write", &mark))?;

        let created = Self::read(open_sled(dir, STATE_CACHE_BYTES)?, false, dir)?;
        flush_and_sync(&created.db, dir)?;

        fs.remove_file(&mark).map_err(io_at("remove", &mark))?;
        Ok(created)
    }

    fn read(db: sled::Db, is_copy: bool, dir: &Path) -> Result<Self, StoreError> {
        let tree = |name: &str| CheckedTree::open(&db, dir, name);

        let (segments, latest) = (tree("segments")?, tree("latest")?);

        // Both trees are written together. If one is new and the other is not, it was lost.
        if !segments.is_new() && latest.is_new() {
            return Err(latest.damaged("it has lost everything"));
        }

        // `segments` records the mark of `latest` after `latest` is durable, so it can only be
        // behind.
        if latest.mark() < segments.mark() {
            return Err(latest.damaged("it is older than tree `segments`"));
        }

        if is_copy {
            tracing::warn!(dir = %dir.display(), "no space for the state database, using one in memory: free some space");
        }
        Ok(Self {
            db,
            segments,
            latest,
            is_copy,
            failed: AtomicBool::new(false),
        })
    }

    fn is_usable(&self, writes: bool) -> bool {
        let read_only = self.is_copy;
        (!writes || !read_only) && !self.failed.load(Ordering::Acquire)
    }
}

impl StateDatabase {
    /// Whether there is a database. A part of one that was being created is none.
    pub(crate) fn exists(dir: &Path) -> bool {
        !is_incomplete(dir)
    }

    /// Opens the database and verifies its trees; creates it if it is missing. On a full disk it is
    /// a copy in memory, an empty one in place of a missing one.
    pub(crate) fn open(dir: &Path) -> Result<Self, StoreError> {
        let open = RwLock::new(Some(Database::open(dir)?));
        Ok(Self {
            dir: dir.to_owned(),
            open,
            changing: Mutex::default(),
        })
    }

    /// Whether it is in memory, because the disk is full.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.open.read().as_ref().is_some_and(|open| open.is_copy)
    }

    /// Runs `work` on the open database; reopens it first after a failure.
    fn with<T>(
        &self,
        writes: bool,
        work: impl FnOnce(&Database) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        // After an error of the operating system sled returns a copy of it from every call.
        let run = |open: &Database| {
            work(open).inspect_err(|error| {
                if matches!(error, StoreError::Io { .. }) {
                    open.failed.store(true, Ordering::Release);
                }
            })
        };
        // The usual case, under the read lock: readers do not wait for each other.
        if let Some(open) = &*self.open.read()
            && open.is_usable(writes)
        {
            return run(open);
        }

        // Another thread may have reopened it while this one waited for the lock.
        let mut slot = self.open.write();
        if !slot.as_ref().is_some_and(|open| open.is_usable(writes)) {
            // Closed before it is reopened: sled locks its files. Dropping it may panic in
            // sled.
            let failed = slot.take();
            guarded(&self.dir, || {
                drop(failed);
                Ok(())
            })?;
            *slot = Some(Database::open(&self.dir)?);
        }

        // On a full disk the reopened database may be a copy in memory, which serves readers only.
        match &*slot {
            Some(open) if open.is_usable(writes) => run(open),
            _ => {
                let why = rustix::io::Errno::NOSPC.into();
                Err(StoreError::Io {
                    action: "write to",
                    path: self.dir.clone(),
                    why,
                })
            }
        }
    }

    /// Applies a finished segment. Durable on return. Rows of latest jobs in a dropped segment
    /// remain until [`StateDatabase::forget_latest`], whose caller finds their replacements.
    pub(crate) fn apply(
        &self,
        class_name: &str,
        segment: SeqNo,
        metadata: &SegmentMetadata,
        fresh: &[LatestJob],
    ) -> Result<(), StoreError> {
        self.with(true, |open| {
            let mark = self.take_latest(open, fresh, |_| true)?;
            // The rows become durable before the segment counts as applied.
            flush_and_sync(&open.db, &self.dir)?;
            let row = self.packed(metadata)?;
            open.segments
                .put([(segment_key(class_name, segment), row)], mark)?;
            flush_and_sync(&open.db, &self.dir)
        })
    }

    /// Merges rows into `latest`; returns its new mark.
    fn take_latest(
        &self,
        open: &Database,
        fresh: &[LatestJob],
        stays: impl Fn(SeqNo) -> bool,
    ) -> Result<u64, StoreError> {
        // Held until the tree is replaced: two merges of the same old rows would lose the rows of
        // one.
        let _changing = self.changing.lock();
        let known = latest_of_all(&open.latest, &|_, _| true)?;

        let rows = merged(known.iter().filter(|row| stays(row.seq)).chain(fresh));

        let pages = PageWriter::with_page_bytes(STATE_PAGE_BYTES).and_then(|mut writer| {
            latest::write(&mut writer, &rows)?;
            Ok(writer.pages())
        });
        let mark = open.latest.mark() + 1;
        open.latest
            .replace(pages.map_err(io_at("pack rows for", &self.dir))?, mark)?;
        Ok(mark)
    }

    /// A row of the catalogue. Packed, because the times of a busy segment's jobs are many.
    fn packed(&self, metadata: &SegmentMetadata) -> Result<Vec<u8>, StoreError> {
        let packed = PageWriter::new().and_then(|mut writer| {
            writer.page(b"", &metadata.to_bytes()?)?;
            Ok(writer.pages().pop().unwrap_or_default().1)
        });
        packed.map_err(io_at("pack rows for", &self.dir))
    }

    /// Deletes dropped segments from the catalogue. Durable on return.
    pub(crate) fn forget<'a>(
        &self,
        segments: impl IntoIterator<Item = (&'a str, SeqNo)>,
    ) -> Result<(), StoreError> {
        self.with(true, |open| {
            for (class_name, segment) in segments {
                open.segments.remove(&segment_key(class_name, segment))?;
            }
            // Durable before the caller removes the directories, which are the record of the
            // unfinished drop.
            flush_and_sync(&open.db, &self.dir)
        })
    }

    /// Removes the latest jobs in `gone` and inserts their replacements from `stay`. Durable on
    /// return.
    pub(crate) fn forget_latest(
        &self,
        gone: &[LatestJob],
        stay: &[LatestJob],
    ) -> Result<(), StoreError> {
        let gone: HashSet<SeqNo> = gone.iter().map(|row| row.seq).collect();
        self.with(true, |open| {
            // As in `apply`: the rows first, then the mark that refers to them.
            let mark = self.take_latest(open, stay, |seq| !gone.contains(&seq))?;
            flush_and_sync(&open.db, &self.dir)?;
            open.segments.put([], mark)?;
            flush_and_sync(&open.db, &self.dir)
        })
    }

    /// The catalogue: all applied segments.
    pub(crate) fn segments(&self) -> Result<Vec<Known>, StoreError> {
        self.with(false, |open| Self::known(&open.segments))
    }

    fn known(segments: &CheckedTree) -> Result<Vec<Known>, StoreError> {
        let rows = segments.rows()?;
        let known = |(key, value): &crate::index::tree::Row| {
            // Class names contain no zero byte.
            let (name, seq) = key.split_last_chunk::<8>()?;
            let name = std::str::from_utf8(name.strip_suffix(&[0])?).ok()?;
            Some((
                name.to_owned(),
                SeqNo(u64::from_be_bytes(*seq)),
                SegmentMetadata::from_bytes(&unpack(value)?)?,
            ))
        };

        let known: Option<Vec<Known>> = rows.iter().map(known).collect();
        known.ok_or_else(|| segments.damaged("malformed row"))
    }

    pub(crate) fn latest_of(&self, fun: &str) -> Result<Vec<LatestJob>, StoreError> {
        self.with(false, |open| {
            let latest = &open.latest;
            let broken = || latest.damaged("malformed page");
            let page = |number: u32| {
                let packed = latest.get(&number.to_be_bytes())?;
                packed.and_then(|page| unpack(&page)).ok_or_else(broken)
            };
            let count = u32::try_from(latest.len()).map_err(|_| broken())?;
            latest::of_function(count, page, broken, fun)
        })
    }

    pub(crate) fn latest(&self) -> Result<Vec<LatestJob>, StoreError> {
        self.latest_with(&|_, _| true)
    }

    /// The latest job of each function and minion that `wanted` selects.
    pub(crate) fn latest_with(
        &self,
        wanted: &dyn Fn(&[u8], &[u8]) -> bool,
    ) -> Result<Vec<LatestJob>, StoreError> {
        self.with(false, |open| latest_of_all(&open.latest, wanted))
    }
}

/// The rows, sorted, each pair of function and minion once. Of two returns the newer job wins, so applying a segment twice, or in
/// another order, changes nothing.
fn merged<'a>(rows: impl Iterator<Item = &'a LatestJob>) -> Vec<&'a LatestJob> {
    let mut rows: Vec<_> = rows.collect();
    // Two sorted lists behind each other, mostly, which a merge sort exploits.
    rows.sort_by(|one, other| one.pair().cmp(&other.pair()));
    rows.dedup_by(|next, kept| {
        let is_same = next.pair() == kept.pair();
        if is_same && next.seq != kept.seq && kept.newness() < next.newness() {
            *kept = next;
        }
        is_same
    });
    rows
}

/// The rows of tree `latest` that `wanted` selects.
fn latest_of_all(
    latest: &CheckedTree,
    wanted: &dyn Fn(&[u8], &[u8]) -> bool,
) -> Result<Vec<LatestJob>, StoreError> {
    let pages: Option<Vec<_>> = latest
        .rows()?
        .iter()
        .map(|(_, page)| unpack(page))
        .collect();
    pages
        .and_then(|pages| latest::all(&pages, wanted))
        .ok_or_else(|| latest.damaged("malformed page"))
}

fn segment_key(class_name: &str, segment: SeqNo) -> Vec<u8> {
    [class_name.as_bytes(), &[0], &segment.0.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use saltcellar_model::{Jid, JidKey};

    fn job(minion: &str, seq: u64) -> LatestJob {
        let (fun, minion) = (b"test.ping".to_vec(), minion.as_bytes().to_vec());
        LatestJob {
            fun,
            minion,
            seq: SeqNo(seq),
            jid: Jid::of(&seq.to_string()),
        }
    }

    /// A damaged sled file may yield an old version of a tree with a valid sum.
    #[test]
    fn latest_jobs_older_than_the_catalogue_are_detected() {
        let dir = tempfile::tempdir().unwrap();
        let row = |seq| job("web1", seq);
        let state = StateDatabase::open(dir.path()).unwrap();
        state
            .apply("jobs", SeqNo(1), &SegmentMetadata::default(), &[row(1)])
            .unwrap();
        let tree = |state: &StateDatabase| {
            state
                .open
                .read()
                .as_ref()
                .unwrap()
                .db
                .open_tree("latest")
                .unwrap()
        };
        let old: Vec<_> = tree(&state).iter().map(Result::unwrap).collect();
        state
            .apply("jobs", SeqNo(9), &SegmentMetadata::default(), &[row(9)])
            .unwrap();
        drop(state);

        let state = StateDatabase::open(dir.path()).unwrap();
        assert_eq!(state.latest_of("test.ping").unwrap()[0].seq, SeqNo(9));
        let raw = tree(&state);
        raw.clear().unwrap();
        for (key, value) in old {
            raw.insert(key, value).unwrap();
        }
        raw.flush().unwrap();
        drop((raw, state));
        let error = StateDatabase::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("older"), "{error}");
    }

    /// sled rejects every call after an error that it considers fatal.
    #[test]
    fn a_database_that_ran_out_of_space_is_reopened() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDatabase::open(dir.path()).unwrap();
        let refused = || StoreError::Io {
            action: "write",
            path: PathBuf::new(),
            why: rustix::io::Errno::NOSPC.into(),
        };
        state
            .apply("jobs", SeqNo(1), &SegmentMetadata::default(), &[])
            .unwrap();
        assert!(
            state
                .with(true, |_| Err::<(), _>(refused()))
                .unwrap_err()
                .is_no_space()
        );
        let failed = |state: &StateDatabase| !state.open.read().as_ref().unwrap().is_usable(true);
        assert!(failed(&state));
        assert_eq!(state.segments().unwrap().len(), 1);
        assert!(!failed(&state));
        state.open.write().as_mut().unwrap().is_copy = true;
        assert_eq!(state.segments().unwrap().len(), 1, "a copy is read");
        state.forget([("jobs", SeqNo(1))]).unwrap();
        assert!(
            !failed(&state),
            "the copy is replaced by the database on disk before a write"
        );
        assert!(state.segments().unwrap().is_empty());
    }

    /// sled does not sync the files in `blobs/`.
    #[test]
    fn the_database_has_no_data_in_unsynced_files() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDatabase::open(dir.path()).unwrap();
        // Incompressible, as long as names get.
        let noise = |n: u64, len: u64| {
            let words = (0..len.div_ceil(16)).map(|i| {
                let bytes = [n, i].map(u64::to_le_bytes).concat();
                format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&bytes))
            });
            words.collect::<String>()
        };
        let mut rows: Vec<_> = (0..3_000)
            .map(|n| LatestJob {
                fun: noise(n % 50, 50).into_bytes(),
                minion: noise(n, 250).into_bytes(),
                seq: SeqNo(n),
                jid: Jid::of(&noise(n, 400)),
            })
            .collect();
        rows.sort();
        // As many intervals of jids as there may be, and jids of any form.
        let mut keys: Vec<_> = (0..1_000)
            .map(|n: i64| {
                JidKey::from_time(saltcellar_base::clock::Micros(n * n * 7_919_173), None)
            })
            .chain((0..2_000).map(|n| JidKey::of(&noise(n, 40))))
            .collect();
        keys.sort_unstable();
        let metadata =
            SegmentMetadata::new(crate::index::Totals::default(), None, keys.into_iter());
        for first in 1..60 {
            state.apply("jobs", SeqNo(first), &metadata, &rows).unwrap();
        }
        assert_eq!(state.latest().unwrap(), rows);
        assert_eq!(state.segments().unwrap().len(), 59);
        let blobs = std::fs::read_dir(dir.path().join("blobs"));
        assert_eq!(blobs.map_or(0, Iterator::count), 0);
    }

    #[test]
    fn an_older_job_replaces_a_dropped_latest_job() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDatabase::open(dir.path()).unwrap();
        let known = [job("web1", 5), job("web2", 6), job("web3", 17)];
        state
            .apply("jobs", SeqNo(1), &SegmentMetadata::default(), &known)
            .unwrap();
        let gone = [job("web1", 5), job("web2", 6), job("web3", 7)];
        state
            .forget_latest(&gone, &[job("web1", 2), job("web3", 3)])
            .unwrap();
        let latest = state.latest_of("test.ping").unwrap();
        let found: Vec<_> = latest
            .iter()
            .map(|row| (row.minion.as_slice(), row.seq.0))
            .collect();
        assert_eq!(found, [(&b"web1"[..], 2), (b"web3", 17)]);
    }
}
