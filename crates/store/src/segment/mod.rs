//! A segment: a directory with a log of blocks and its index; the unit of retention.
//!
//! # Invariant
//!
//! Queries return the same in each state of the index (in memory, open on disk, closed). A damaged
//! index is never an error to readers: it is rebuilt from the log. Totals and timestamps of the
//! entries are known in each state: retention decides by them.
//!
//! # Locks
//!
//! In this order: `work`, the state database of the store, `shared_index`, `index`. An index in
//! memory may be read for long, by the sealer or by a query. Therefore only the committer, while the segment
//! is active, and a holder of `work` wait to write to one; everybody else writes to a sealed one, which
//! is read for a moment at a time.

pub(crate) mod catalogue;
pub(crate) mod list;
pub(crate) mod open_indexes;
pub(crate) mod recovery;
pub(crate) mod removal;
pub(crate) mod rewrite;
pub mod seal;
pub mod usage;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{
    MappedRwLockReadGuard, MappedRwLockWriteGuard, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

use super::error::StoreError;
use super::format::{class_dir, make_dir, next_generation, sync_dir, unfinished};
use super::index::sealed;
use super::index::{Blocks, MemIndex, SealedIndex, SegmentMetadata, TagTemplates, Totals};
use super::vfs::Fs;
use crate::class::Class;
use crate::log::file::LogFile;
use crate::log::frame::LogId;
use crate::log::walk::{Bounds, Walked, walk};
use crate::segment::usage::{SegmentUsage, disk_bytes};
use saltcellar_model::SeqNo;

/// Name of a sealed segment's index.
pub(crate) const INDEX: &str = "index";

/// Name under which `store rebuild` keeps an index until the new index is complete.
pub(crate) const INDEX_ASIDE: &str = "index.old";

/// Name of an index that was damaged, or made from another log, kept for diagnosis.
pub(crate) const INDEX_DAMAGED: &str = "index.damaged";

/// The state of a segment's index. Either form contains the totals of the entries.
#[derive(Debug)]
enum Index {
    /// In memory: the segment is active or waits to be sealed.
    Memory(Box<MemIndex>),
    /// On disk, and open while in use. The metadata stay in memory.
    Sealed {
        metadata: Arc<SegmentMetadata>,
        open: Option<Arc<SealedIndex>>,
    },
}

/// What [`Segment::open_index`] did.
#[derive(Debug)]
pub(crate) enum IndexOpened {
    /// Nothing: another thread has opened or rebuilt it.
    Before,
    /// It is open, and takes this many bytes of memory.
    Now(usize),
    /// It was damaged, as the error says, and is now in memory.
    Rebuilt(StoreError),
}

/// A number that no segment had yet, see [`Segment::numbering`].
fn next_numbering() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Counts the indexes that were rebuilt, of all segments.
static RENUMBERED: AtomicU64 = AtomicU64::new(0);

/// What `read` finds while the blocks of all segments keep their numbers: it restarts otherwise.
///
/// A read takes the numbers of blocks from an index, and reads the blocks later. An index that is
/// rebuilt in between may number them differently, and the read would miss a block or see it twice.
/// Rebuilds are rare, and each segment has few, so this ends.
pub(crate) fn with_same_numbers<T, E>(mut read: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    loop {
        let before = RENUMBERED.load(Ordering::Acquire);
        let found = read()?;
        if RENUMBERED.load(Ordering::Acquire) == before {
            return Ok(found);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Segment {
    /// See [`Segment::numbering`].
    numbering: AtomicU64,
    pub(crate) class: Class,
    pub(crate) class_name: Arc<str>,
    /// Its first sequence number, which is in the name of its directory.
    pub(crate) first_seq: SeqNo,
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    log: LogFile,
    /// Lock order: after `work`, the state database and `shared_index`.
    index: RwLock<Index>,
    /// The open sealed index, while in use. Locked during opening: one thread opens it for all.
    /// Lock order: after `work` and the state database, before `index`.
    shared_index: Mutex<Weak<SealedIndex>>,
    used: AtomicU64,
    /// Whether the index on disk was compared with the log.
    fits_log: AtomicBool,
    /// Whether the committer writes to it.
    active: AtomicBool,
    /// Held while the sealer or retention works on the whole segment. True once it is replaced or
    /// dropped. Lock order: before the state database, `shared_index` and `index`.
    pub(super) work: Mutex<bool>,
    /// Its resource use, once final.
    usage: OnceLock<SegmentUsage>,
}

impl Segment {
    /// Opens a segment whose log file exists, with an empty index in memory.
    pub(crate) fn open(
        fs: &Arc<dyn Fs>,
        dir: &Path,
        (class, class_name): (Class, Arc<str>),
        id: LogId,
    ) -> Result<Self, StoreError> {
        let first_seq = id.first_seq;
        let log = LogFile::open(&**fs, &dir.join("log"), &class_name, id)?;

        Ok(Self {
            numbering: AtomicU64::new(next_numbering()),
            class,
            class_name,
            first_seq,
            fs: fs.clone(),
            dir: dir.to_owned(),
            log,
            index: RwLock::new(Index::Memory(Box::new(MemIndex::new(first_seq)))),
            shared_index: Mutex::default(),
            used: AtomicU64::new(0),
            fits_log: AtomicBool::new(false),
            active: AtomicBool::new(false),
            work: Mutex::default(),
            usage: OnceLock::new(),
        })
    }

    /// Identifies the numbering of its blocks: unique in this process, even among successive
    /// versions of one segment, and new with each rebuilt index, which may lack a block that has
    /// become unreadable. Everything that is cached by block number is cached under this value.
    ///
    /// What was found between two equal results is of one numbering.
    pub(crate) fn numbering(&self) -> u64 {
        self.numbering.load(Ordering::Acquire)
    }

    /// Whether the segment is no longer written to.
    pub(crate) fn is_finished(&self) -> bool {
        !self.active.load(Ordering::Acquire)
    }

    /// Sets whether the committer writes to it.
    pub(super) fn set_active(&self, active: bool) {
        self.active.store(active, Ordering::Release);
    }

    pub(crate) fn fs(&self) -> &dyn Fs {
        &*self.fs
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn log(&self) -> &LogFile {
        &self.log
    }

    /// The index, locked for reading, if it is in memory.
    pub(crate) fn memory(&self) -> Option<MappedRwLockReadGuard<'_, MemIndex>> {
        RwLockReadGuard::try_map(self.index.read(), |index| match index {
            Index::Memory(index) => Some(&**index),
            Index::Sealed { .. } => None,
        })
        .ok()
    }

    /// The index of the active segment, locked for writing. For the committer only.
    pub(super) fn memory_mut(&self) -> Option<MappedRwLockWriteGuard<'_, MemIndex>> {
        RwLockWriteGuard::try_map(self.index.write(), |index| match index {
            Index::Memory(index) => Some(&mut **index),
            Index::Sealed { .. } => None,
        })
        .ok()
    }

    /// The sealed index, if it is open.
    pub(super) fn opened(&self) -> Option<Arc<SealedIndex>> {
        match &*self.index.read() {
            Index::Sealed { open, .. } => open.clone(),
            Index::Memory(_) => None,
        }
    }

    /// Sets the index in memory. For a start, before the segment is visible.
    pub(super) fn set_memory(&self, index: MemIndex) {
        *self.index.write() = Index::Memory(Box::new(index));
    }

    /// Replaces the index in memory by the index that was written to disk. For a start, and for the
    /// holder of `work`.
    pub(super) fn set_sealed(&self, metadata: SegmentMetadata) {
        let metadata = Arc::new(metadata);
        *self.index.write() = Index::Sealed {
            metadata,
            open: None,
        };
    }

    /// Its metadata, if it is sealed.
    pub(crate) fn metadata(&self) -> Option<Arc<SegmentMetadata>> {
        match &*self.index.read() {
            Index::Sealed { metadata, .. } => Some(metadata.clone()),
            Index::Memory(_) => None,
        }
    }

    /// Sequence number of its newest Thorium register.
    pub(crate) fn register(&self) -> Option<SeqNo> {
        match &*self.index.read() {
            Index::Memory(index) => index.register(),
            Index::Sealed { metadata, .. } => metadata.register,
        }
    }

    pub(crate) fn totals(&self) -> Totals {
        match &*self.index.read() {
            Index::Memory(index) => index.totals(),
            Index::Sealed { metadata, .. } => metadata.totals,
        }
    }

    /// The segment's resource use; cached once the segment is sealed.
    pub(crate) fn usage(&self) -> SegmentUsage {
        if let Some(known) = self.usage.get() {
            return *known;
        }

        let finished = self.is_finished();
        // Taken once, because all values must come from the same state.
        let sealed = self.metadata();
        // Not counted for an active segment: no caller needs it.
        let jobs = match &sealed {
            Some(metadata) => metadata.jobs,
            None if finished => self.memory().map_or(0, |index| index.jobs_len() as u64),
            None => 0,
        };
        let totals = match &sealed {
            Some(metadata) => metadata.totals,
            None => self.totals(),
        };
        let Totals {
            entries,
            raw_bytes,
            at_min,
            at_max,
            ..
        } = totals;

        let disk_bytes = disk_bytes(self.dir());

        let segment_usage = SegmentUsage {
            entries,
            jobs,
            raw_bytes,
            disk_bytes,
            at_min,
            at_max,
        };

        // Sealing changes the size on disk again, so only the final value is kept.
        if finished && sealed.is_some() && self.has_index() {
            let _ = self.usage.set(segment_usage);
        }
        segment_usage
    }

    /// Records a use of the index.
    pub(crate) fn touch(&self, use_number: u64) {
        self.used.store(use_number, Ordering::Relaxed);
    }

    /// The last use of the index, as passed to [`Segment::touch`].
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Scans the log and builds the index in memory. Only numbers below `below` are trusted.
    pub(crate) fn walk(&self, below: SeqNo) -> Result<(MemIndex, Walked), StoreError> {
        let mut index = MemIndex::new(self.first_seq);
        let mut noted = Ok(());
        let bounds = Bounds::of_log(self.log.size()?).below(below);

        let walked = walk(&self.log, bounds, true, |meta, view| {
            // `each` cannot end the walk, so the rest is passed over.
            if noted.is_err() {
                return None;
            }

            // Bodies that cannot be decompressed despite a valid checksum: their rows stay empty,
            // readers report them.
            let bodies = || view.rows().bodies().unwrap_or_default();
            noted = index.add_block(*meta, &view.rows().columns(), bodies);
            None
        })?;

        // A full index is an error of the whole segment: a partial one would hide entries.
        noted.map(|()| (index, walked))
    }

    /// Reads the sealed index on disk. An index that was not made from this log is
    /// [`StoreError::Index`], like a damaged index. Only numbers below `below` are trusted.
    pub(super) fn read_index(&self, below: SeqNo) -> Result<SealedIndex, StoreError> {
        let index = SealedIndex::open(&*self.fs, &self.index_path(), self.log.id())?;
        // The catalogue knows which index was written last.
        let known = self.metadata();
        if known.is_some_and(|known| known.positions != index.metadata().positions) {
            return Err(self.not_of_log("the state database knows other blocks"));
        }

        // Once: a log of a sealed segment does not change.
        if !self.fits_log.load(Ordering::Acquire) {
            self.check_fits_log(&index, below)?;
            self.fits_log.store(true, Ordering::Release);
        }
        Ok(index)
    }

    /// Compares the positions in an index with the log.
    fn check_fits_log(&self, index: &SealedIndex, below: SeqNo) -> Result<(), StoreError> {
        let metas = index.blocks().metas();
        // The usual case costs one read. A frame is valid at one place of one log, so another log
        // has none of these bounds there.
        if let Some(last) = metas.last()
            && self.log.has_frame(last)?
        {
            return Ok(());
        }

        // Either the log is damaged there, and readers report it, or the index is not of this log,
        // and would hide the blocks that it does not know.
        let mut unknown = None;
        let bounds = Bounds::of_log(self.log.size()?).below(below);
        walk(&self.log, bounds, true, |meta, _| {
            let place = metas.partition_point(|known| known.offset < meta.offset);
            if metas.get(place) != Some(meta) {
                unknown.get_or_insert(meta.offset);
            }
            None
        })?;
        unknown.map_or(Ok(()), |offset| {
            Err(self.not_of_log(&format!("it lacks the block at byte {offset}")))
        })
    }

    fn not_of_log(&self, what: &str) -> StoreError {
        StoreError::Index {
            path: self.index_path(),
            what: format!("made from another log: {what}"),
        }
    }

    fn index_path(&self) -> PathBuf {
        self.dir.join(INDEX)
    }

    /// Opens the sealed index. A damaged one is replaced by one that is rebuilt from the log.
    pub(crate) fn open_index(&self, below: SeqNo) -> Result<IndexOpened, StoreError> {
        // Held while the index is opened.
        let mut shared_index = self.shared_index.lock();

        // Looked at under the lock, so it stays as it is but for being sealed.
        if !matches!(*self.index.read(), Index::Sealed { open: None, .. }) {
            return Ok(IndexOpened::Before);
        }

        // A reader may still use it, although it was closed.
        let index = match shared_index
            .upgrade()
            .map_or_else(|| self.read_index(below).map(Arc::new), Ok)
        {
            Ok(index) => index,
            Err(error @ StoreError::Index { .. }) => {
                self.rebuild_index(below)?;
                return Ok(IndexOpened::Rebuilt(error));
            }
            Err(error) => return Err(error),
        };

        *shared_index = Arc::downgrade(&index);
        let bytes = index.memory();
        if let Index::Sealed { open, .. } = &mut *self.index.write() {
            *open = Some(index);
        }
        Ok(IndexOpened::Now(bytes))
    }

    /// Closes the sealed index, unless the lock is taken: then it is in use, or in memory and being
    /// sealed. False if it may be open still.
    pub(super) fn try_close_index(&self) -> bool {
        let Some(mut index) = self.index.try_write() else {
            return false;
        };

        // Readers that query it now hold their own reference. It may have been rebuilt in memory
        // meanwhile, and then it stays.
        if let Index::Sealed { open, .. } = &mut *index {
            *open = None;
        }
        true
    }

    /// Removes the index on disk, if any: the segment counts as not sealed.
    pub(super) fn remove_index(&self) -> Result<(), StoreError> {
        remove_file(self.fs(), &self.index_path())
    }

    /// Puts a damaged index aside, if there is any: the segment counts as not sealed.
    pub(super) fn put_index_aside(&self) -> Result<(), StoreError> {
        let path = self.index_path();
        let aside = self.dir.join(INDEX_DAMAGED);
        match self.fs.rename(&path, &aside) {
            // Removed by an administrator.
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(()),
            renamed => renamed.map_err(super::error::io_at("rename", &path)),
        }
    }

    /// Replaces the sealed index by an index that is rebuilt from the log, in memory, and puts the
    /// file on disk aside. The segment then counts as not sealed. For the holder of `shared_index`.
    fn rebuild_index(&self, below: SeqNo) -> Result<(), StoreError> {
        // Read first: if the log cannot be read now, the damaged index stays for another attempt.
        let (index, _) = self.walk(below)?;
        self.put_index_aside()?;

        // In one step, because the totals must be known at any time: the values from the damaged
        // index go when the rebuilt index is there.
        let mut slot = self.index.write();
        // Under the lock: no reader finds the rebuilt index with the old numbering.
        self.numbering.store(next_numbering(), Ordering::Release);
        RENUMBERED.fetch_add(1, Ordering::AcqRel);
        *slot = Index::Memory(Box::new(index));
        Ok(())
    }

    /// Replaces an open index that proved damaged by one rebuilt from the log. False if another
    /// thread has done so.
    pub(crate) fn replace_index(
        &self,
        broken: &Arc<SealedIndex>,
        below: SeqNo,
    ) -> Result<bool, StoreError> {
        // As in `open_index`: no other thread opens the index that is replaced.
        let mut shared_index = self.shared_index.lock();

        if !self.opened().is_some_and(|open| Arc::ptr_eq(&open, broken)) {
            return Ok(false);
        }

        self.rebuild_index(below)?;
        // The next `open_index` must not find the damaged one.
        *shared_index = Weak::new();
        Ok(true)
    }

    /// Replaces the index by an empty one and runs `work`, which may move the directory: no file of
    /// it is opened meanwhile. If `work` fails, the index is restored.
    pub(crate) fn detach_index(
        &self,
        work: impl FnOnce() -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        // Before `index`, as everywhere.
        let _held = self.shared_index.lock();
        let empty = Index::Memory(Box::new(MemIndex::new(self.first_seq)));
        // Readers that still hold the segment find no entries, and are not sent to a path that no
        // longer exists.
        let index = std::mem::replace(&mut *self.index.write(), empty);
        work().inspect_err(|_| *self.index.write() = index)
    }

    /// Whether a part of the log cannot be read, or could not when the index was made.
    pub(crate) fn has_unreadable(&self) -> bool {
        let was_unreadable = |metadata: &SegmentMetadata| !metadata.unreadable.is_empty();
        !self.log.unreadable().is_empty()
            || self.metadata().is_some_and(|known| was_unreadable(&known))
    }

    /// Whether the index was made while a part of the log could not be read that can be read now.
    pub(super) fn index_is_outdated(&self, metadata: &SegmentMetadata) -> Result<bool, StoreError> {
        // The usual case: nothing was unreadable.
        if metadata.unreadable.is_empty() {
            return Ok(false);
        }
        let parts: Vec<_> = metadata.unreadable.iter().map(|&(a, b)| a..b).collect();
        self.log.can_read(&parts)
    }

    /// Whether there is a sealed index on disk.
    pub(crate) fn has_index(&self) -> bool {
        self.index_path().is_file()
    }

    /// Writes the index to disk, atomically. Durable on return.
    pub(crate) fn write_index(&self, index: &MemIndex) -> Result<sealed::Written, StoreError> {
        let unreadable = self.log.unreadable();
        let unreadable = unreadable.iter().map(|part| (part.start, part.end));
        let path = self.index_path();
        let written = sealed::write(
            self.fs(),
            &path,
            (index, None),
            self.log.id(),
            unreadable.collect(),
        )
        .inspect_err(|error| {
            // Derived data may occupy the space that is missing.
            if error.is_no_space() {
                let _ = self.fs.remove_file(&self.dir.join(INDEX_DAMAGED));
            }
        })?;

        // It was made from this log.
        self.fits_log.store(true, Ordering::Release);
        // Only now that the new one is complete.
        remove_file(self.fs(), &self.dir.join(INDEX_ASIDE))?;
        Ok(written)
    }
}

/// Removes a file, if it exists.
pub(crate) fn remove_file(fs: &dyn Fs, path: &Path) -> Result<(), StoreError> {
    match fs.remove_file(path) {
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(super::error::io_at("remove", path)),
    }
}

/// An index ready for queries.
pub(crate) enum Ready<'a> {
    /// In memory, locked for reading.
    Memory(MappedRwLockReadGuard<'a, MemIndex>),
    /// On disk.
    Sealed(Arc<SealedIndex>),
}

impl Ready<'_> {
    pub(crate) fn blocks(&self) -> &Blocks {
        match self {
            Ready::Memory(index) => index.blocks(),
            Ready::Sealed(index) => index.blocks(),
        }
    }

    pub(crate) fn templates(&self) -> &TagTemplates {
        match self {
            Ready::Memory(index) => index.templates(),
            Ready::Sealed(index) => index.templates(),
        }
    }
}

/// Creates a new segment with an empty log; returns its directory, which gets its name only when the
/// log is complete: a segment without a log counts as damaged. Durable on return.
pub(crate) fn create(
    fs: &dyn Fs,
    state_dir: &Path,
    class_name: &str,
    id: LogId,
    now: saltcellar_base::clock::Micros,
) -> Result<PathBuf, StoreError> {
    let class_dir = class_dir(state_dir, class_name);
    // Usually the first one. A directory that an administrator put there stays.
    let dir = next_generation(&class_dir, id.first_seq)?;
    let new = unfinished(&dir);
    make_dir(fs, &new)?;

    let path = new.join("log");
    let header = crate::log::file::file_header(class_name, id, now);
    fs.write_whole(&path, &header)
        .map_err(super::error::io_at("write", &path))?;

    fs.rename(&new, &dir)
        .map_err(super::error::io_at("rename to", &dir))?;
    sync_dir(fs, &class_dir)?;
    Ok(dir)
}
