//! A segment: one directory with a log of blocks and the index beside it; the unit of retention.
//!
//! # Invariant
//!
//! Whatever state the index is in (in memory, in sled, closed), it answers the same. A damaged index is never
//! an error to readers: it is made again from the log.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use super::class::Class;
use super::error::StoreError;
use super::extent::Extent;
use super::format::{class_dir, make_dir, new_name, segment_name, sync_dir};
use super::frame::LogId;
use super::index::sealed;
use super::index::{Blocks, Facts, MemIndex, SealedIndex, Sums};
use super::log::LogFile;
use super::medium::Medium;
use super::walk::{Bounds, Walked, walk};
use crate::model::{Entry, SeqNo};

/// Where a segment's index is.
#[derive(Debug)]
pub enum Index {
    /// In memory: the segment grows, or waits to be sealed.
    Memory(Box<MemIndex>),
    /// In sled, open.
    Open(Arc<SealedIndex>),
    /// In sled, not open at the moment.
    Closed,
}

/// One segment.
#[derive(Debug)]
pub struct Segment {
    /// No other segment of this process has this number, not even one that took the place of this one.
    pub id: u64,
    /// Its class.
    pub class: Class,
    /// The class's name.
    pub class_name: Arc<str>,
    /// Its first sequence number, which is also its name.
    pub first_seq: SeqNo,
    medium: Arc<dyn Medium>,
    dir: PathBuf,
    log: LogFile,
    index: RwLock<Index>,
    /// Set before the index leaves memory.
    facts: RwLock<Option<Arc<Facts>>>,
    /// The sealed index as long as anybody holds it. Locked while it is opened: sled opens a database once.
    held: Mutex<Weak<SealedIndex>>,
    used: AtomicU64,
    /// Is the committer writing to it?
    growing: AtomicBool,
    /// Held by whoever works on the segment as a whole: the sealer, retention. True once it is dropped.
    pub(super) work: Mutex<bool>,
    /// What it has, once that does not change any more.
    pub(super) extent: OnceLock<Extent>,
}

impl Segment {
    /// Opens a segment whose log file exists.
    pub fn open(
        medium: &Arc<dyn Medium>,
        state_dir: &Path,
        (class, class_name): (Class, Arc<str>),
        id: LogId,
        index: Index,
    ) -> Result<Self, StoreError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let first_seq = id.first_seq;
        let dir = class_dir(state_dir, &class_name).join(segment_name(first_seq));
        let log = LogFile::open(&**medium, &dir.join("log"), &class_name, id)?;
        Ok(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            class,
            class_name,
            first_seq,
            medium: medium.clone(),
            dir,
            log,
            index: RwLock::new(index),
            facts: RwLock::default(),
            held: Mutex::default(),
            used: AtomicU64::new(0),
            growing: AtomicBool::new(false),
            work: Mutex::default(),
            extent: OnceLock::new(),
        })
    }

    /// Will nothing more be written to it?
    pub fn is_finished(&self) -> bool {
        !self.growing.load(Ordering::Acquire)
    }

    /// Says whether the committer writes to it.
    pub(super) fn set_growing(&self, growing: bool) {
        self.growing.store(growing, Ordering::Release);
    }

    /// Where its files are.
    pub fn medium(&self) -> &dyn Medium {
        &*self.medium
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its log.
    pub fn log(&self) -> &LogFile {
        &self.log
    }

    /// Its index, for reading.
    pub fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its index, to change it.
    pub fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of it without opening it, once it is sealed.
    pub fn facts(&self) -> Option<Arc<Facts>> {
        self.facts.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says what is known of it.
    pub fn set_facts(&self, facts: Facts) {
        *self.facts.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(facts));
    }

    /// Where its newest Thorium register lies in the log, whatever state its index is in.
    pub fn register(&self) -> Option<SeqNo> {
        with_memory(self, MemIndex::register).unwrap_or_else(|| self.facts().and_then(|facts| facts.register))
    }

    /// Sums over it, whatever state its index is in.
    pub fn sums(&self) -> Sums {
        with_memory(self, MemIndex::sums).or_else(|| self.facts().map(|facts| facts.sums)).unwrap_or_default()
    }

    /// Notes that its index is made use of at a moment.
    pub fn touch(&self, moment: u64) {
        self.used.store(moment, Ordering::Relaxed);
    }

    /// The moment of its last use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Reads the log through and makes the index anew.
    pub fn walk(&self) -> Result<(MemIndex, Walked), StoreError> {
        let mut index = MemIndex::new(self.first_seq);
        let mut noted = Ok(());
        let bounds = Bounds::of_log(self.log.size()?);
        let walked = walk(&self.log, bounds, true, |meta, view| {
            if noted.is_err() {
                return None;
            }
            let rows = view.rows();
            index.add_block(*meta, &rows.shapes());
            let names = rows.jid_texts();
            let jids = rows.jids();
            for at in 0..view.len() {
                let jid = jids.get(at).and_then(|&n| usize::try_from(n - 1).ok()).and_then(|n| names.get(n));
                let jid = jid.map_or("", String::as_str);
                let entry = Entry {
                    kind: rows.kind(at),
                    source: rows.source(at),
                    flags: rows.flags(at),
                    at: rows.at(at),
                    tag: &[],
                    jid,
                    minion: rows.minion(at),
                    fun: rows.fun(at),
                    retcode: rows.retcode(at),
                    body: &[],
                };
                let raw = rows.tag_len(at, jid) + rows.body_len(at);
                // A body that cannot be unpacked behind a good checksum: the row stays empty, readers report it.
                let body = || rows.body(at).unwrap_or_default();
                noted = index.add(at, rows.seq(at), &entry, raw, body);
                if noted.is_err() {
                    break;
                }
            }
            None
        })?;
        noted.map(|()| (index, walked))
    }

    /// Opens the sealed index, or shares it with whoever has it open. One that is damaged is made anew from the log in
    /// memory; the error that told so comes with it.
    pub fn open_index(&self) -> Result<(Index, Option<StoreError>), StoreError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = held.upgrade() {
            return Ok((Index::Open(index), None));
        }
        if matches!(*self.index(), Index::Memory(_)) {
            return Ok((Index::Closed, None));
        }
        match SealedIndex::open(&self.dir.join("index")) {
            Ok(index) => {
                let index = Arc::new(index);
                *held = Arc::downgrade(&index);
                Ok((Index::Open(index), None))
            }
            Err(error @ StoreError::Index { .. }) => Ok((self.index_from_log()?, Some(error))),
            Err(error) => Err(error),
        }
    }

    /// Removes the index on disk, if there is one: the segment counts as not sealed.
    pub(super) fn remove_index(&self) -> Result<(), StoreError> {
        let place = self.dir.join("index");
        match std::fs::remove_dir_all(&place) {
            Err(why) if why.kind() != std::io::ErrorKind::NotFound => {
                Err(StoreError::Io { action: "remove", path: place, why })
            }
            _ => Ok(()),
        }
    }

    /// Makes the index anew in memory, and removes the one on disk, so that the segment counts as not sealed. What was known of
    /// the segment came from the damaged index, and may be as wrong.
    fn index_from_log(&self) -> Result<Index, StoreError> {
        let (index, _) = self.walk()?;
        self.remove_index()?;
        *self.facts.write().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(Index::Memory(Box::new(index)))
    }

    /// Gives up an index that turned out damaged while it was open, and makes it anew from the log. False if somebody
    /// else has done so.
    pub fn replace_index(&self, broken: &Arc<SealedIndex>) -> Result<bool, StoreError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(&*self.index(), Index::Open(open) if Arc::ptr_eq(open, broken)) {
            return Ok(false);
        }
        let fresh = self.index_from_log()?;
        *held = Weak::new();
        *self.index_mut() = fresh;
        Ok(true)
    }

    /// Takes the index away from readers, who from then on find nothing in it, and runs `work`, which may move the
    /// directory: nobody opens anything in it meanwhile. If `work` fails, all is as before.
    pub(super) fn take_away(&self, work: impl FnOnce() -> Result<(), StoreError>) -> Result<(), StoreError> {
        let _held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let empty = Index::Memory(Box::new(MemIndex::new(self.first_seq)));
        let index = std::mem::replace(&mut *self.index_mut(), empty);
        work().inspect_err(|_| *self.index_mut() = index)
    }

    /// Is there a sealed index on disk?
    pub fn has_index(&self) -> bool {
        self.dir.join("index").is_dir()
    }

    /// Writes the index to disk and puts it into its place by renaming. Durable when it returns.
    pub fn write_index(&self, index: &MemIndex) -> Result<Facts, StoreError> {
        let (temporary, place) = (self.dir.join("index.tmp"), self.dir.join("index"));
        for old in [&temporary, &place] {
            match self.medium.remove_dir_all(old) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StoreError::Io { action: "remove", path: old.clone(), why: e });
                }
                _ => {}
            }
        }
        let facts = sealed::write(index, None, &temporary).inspect_err(|_| {
            // Half an index takes space that is perhaps what was lacking.
            let _ = self.medium.remove_dir_all(&temporary);
        })?;
        self.medium.rename(&temporary, &place).map_err(super::error::io_at("rename to", &place))?;
        sync_dir(self.medium(), &self.dir)?;
        Ok(facts)
    }
}

/// What readers ask an index that is ready.
pub enum Ready<'a> {
    /// In memory, locked for reading.
    Memory(RwLockReadGuard<'a, Index>),
    /// In sled.
    Sled(Arc<SealedIndex>),
}

impl Ready<'_> {
    /// The index, if it is in memory.
    pub fn memory(guard: &Index) -> Option<&MemIndex> {
        match guard {
            Index::Memory(index) => Some(index),
            _ => None,
        }
    }

    /// Its blocks.
    pub fn blocks(&self) -> Option<&Blocks> {
        match self {
            Ready::Memory(guard) => Self::memory(guard).map(MemIndex::blocks),
            Ready::Sled(index) => Some(index.blocks()),
        }
    }
}

/// Makes the directory and the empty log of a new segment, under another name until both are there: a segment without its
/// log has lost it. Durable when it returns.
pub fn create(
    medium: &dyn Medium,
    state_dir: &Path,
    class_name: &str,
    id: LogId,
    now: crate::clock::Micros,
) -> Result<(), StoreError> {
    let first_seq = id.first_seq;
    let class_dir = class_dir(state_dir, class_name);
    let (new, dir) = (class_dir.join(new_name(first_seq)), class_dir.join(segment_name(first_seq)));
    make_dir(medium, &new)?;
    let path = new.join("log");
    let header = super::log::file_header(class_name, id, now);
    medium.write_whole(&path, &header).map_err(super::error::io_at("write", &path))?;
    medium.rename(&new, &dir).map_err(super::error::io_at("rename to", &dir))?;
    sync_dir(medium, &class_dir)
}

/// Sums of an index in memory.
pub fn memory_sums(index: &Index) -> Option<Sums> {
    Ready::memory(index).map(MemIndex::sums)
}

/// Runs something over an index in memory; `None` for one in sled.
pub fn with_memory<T>(segment: &Segment, work: impl FnOnce(&MemIndex) -> T) -> Option<T> {
    Ready::memory(&segment.index()).map(work)
}
