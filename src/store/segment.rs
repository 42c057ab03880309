//! A segment: one directory with a log of blocks and the index beside it; the unit of retention.
//!
//! # Invariant
//!
//! Whatever state the index is in (in memory, in sled, closed), it answers the same. A damaged index is never
//! an error to readers: it is made again from the log.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use super::class::Class;
use super::error::StoreError;
use super::format::{class_dir, make_dir, segment_name, sync_dir};
use super::index::{MemIndex, Place, SledIndex, Sums};
use super::log::{BlockMeta, LogFile, Walked};
use super::medium::Medium;
use crate::model::{Entry, JidKey, SeqNo};

/// Where a segment's index is.
#[derive(Debug)]
pub enum Index {
    /// In memory: the segment grows, or waits to be sealed.
    Memory(Box<MemIndex>),
    /// In sled, open.
    Open(Arc<SledIndex>),
    /// In sled, not open at the moment.
    Closed,
}

/// One segment.
#[derive(Debug)]
pub struct Segment {
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
    /// The sealed index as long as anybody holds it. Locked while it is opened: sled opens a database once.
    held: Mutex<Weak<SledIndex>>,
}

impl Segment {
    /// Opens a segment whose log file exists.
    pub fn open(
        medium: &Arc<dyn Medium>,
        state_dir: &Path,
        (class, class_name): (Class, Arc<str>),
        first_seq: SeqNo,
        index: Index,
    ) -> Result<Self, StoreError> {
        let dir = class_dir(state_dir, &class_name).join(segment_name(first_seq));
        let log = LogFile::open(&**medium, &dir.join("log"), &class_name, first_seq)?;
        let (medium, index, held) = (medium.clone(), RwLock::new(index), Mutex::default());
        Ok(Self { class, class_name, first_seq, medium, dir, log, index, held })
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

    /// Reads the log through and makes the index anew.
    pub fn walk(&self) -> Result<(MemIndex, Walked), StoreError> {
        let mut index = MemIndex::new(self.first_seq);
        let walked = self.log.walk(|meta, view| {
            index.add_block(meta);
            let rows = view.rows();
            for at in 0..view.len() {
                let (tag, jid) = (rows.tag(at), rows.jid(at));
                let entry = Entry {
                    kind: rows.kind(at),
                    source: rows.source(at),
                    flags: rows.flags(at),
                    at: rows.at(at),
                    tag: &tag,
                    jid: &jid,
                    minion: rows.minion(at),
                    fun: rows.fun(at),
                    retcode: rows.retcode(at),
                    body: &[],
                };
                let raw = tag.len() + rows.body_len(at);
                // A body that cannot be unpacked behind a good checksum: the row stays empty, readers report it.
                index.add(at, rows.seq(at), &entry, raw, || rows.body(at).unwrap_or_default());
            }
        })?;
        Ok((index, walked))
    }

    /// Opens the sealed index, or shares it with whoever has it open. One that is damaged is removed, so that the next
    /// start seals the segment again, and made anew from the log in memory; the error that told so comes with it.
    pub fn open_index(&self) -> Result<(Index, Option<StoreError>), StoreError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = held.upgrade() {
            return Ok((Index::Open(index), None));
        }
        if matches!(*self.index(), Index::Memory(_)) {
            return Ok((Index::Closed, None));
        }
        match SledIndex::open(&self.dir.join("index")) {
            Ok(index) => {
                let index = Arc::new(index);
                *held = Arc::downgrade(&index);
                Ok((Index::Open(index), None))
            }
            Err(error @ StoreError::Index { .. }) => {
                let (index, _) = self.walk()?;
                let place = self.dir.join("index");
                self.medium.remove_dir_all(&place).map_err(super::error::io_at("remove", &place))?;
                Ok((Index::Memory(Box::new(index)), Some(error)))
            }
            Err(error) => Err(error),
        }
    }

    /// Is there a sealed index on disk?
    pub fn has_index(&self) -> bool {
        self.dir.join("index").is_dir()
    }

    /// Writes the index to disk and puts it into its place by renaming. Durable when it returns.
    pub fn write_index(&self, index: &MemIndex) -> Result<(), StoreError> {
        let (temporary, place) = (self.dir.join("index.tmp"), self.dir.join("index"));
        for old in [&temporary, &place] {
            match self.medium.remove_dir_all(old) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StoreError::Io { action: "remove", path: old.clone(), why: e });
                }
                _ => {}
            }
        }
        SledIndex::write(index, &temporary)?;
        self.medium.rename(&temporary, &place).map_err(super::error::io_at("rename to", &place))?;
        sync_dir(self.medium(), &self.dir)
    }
}

/// What readers ask an index that is ready.
pub enum Ready<'a> {
    /// In memory, locked for reading.
    Memory(RwLockReadGuard<'a, Index>),
    /// In sled.
    Sled(Arc<SledIndex>),
}

impl Ready<'_> {
    fn memory(guard: &Index) -> Option<&MemIndex> {
        match guard {
            Index::Memory(index) => Some(index),
            _ => None,
        }
    }

    /// Runs something over the blocks.
    pub fn blocks(&self) -> &[BlockMeta] {
        match self {
            Ready::Memory(guard) => Self::memory(guard).map_or(&[], MemIndex::blocks),
            Ready::Sled(index) => index.blocks(),
        }
    }

    /// The places of a job's entries.
    pub fn places(&self, key: JidKey) -> Result<Vec<Place>, StoreError> {
        match self {
            Ready::Memory(guard) => Ok(Self::memory(guard).map_or(Vec::new(), |i| i.places(key).to_vec())),
            Ready::Sled(index) => index.places(key),
        }
    }
}

/// Makes the directory and the empty log of a new segment. Durable when it returns.
pub fn create(
    medium: &dyn Medium,
    state_dir: &Path,
    class_name: &str,
    first_seq: SeqNo,
    now: crate::clock::Micros,
) -> Result<(), StoreError> {
    let dir = class_dir(state_dir, class_name).join(segment_name(first_seq));
    make_dir(medium, &dir)?;
    let path = dir.join("log");
    let header = super::log::file_header(class_name, first_seq, now);
    medium.write_whole(&path, &header).map_err(super::error::io_at("write", &path))
}

/// Sums of an index in memory.
pub fn memory_sums(index: &Index) -> Option<Sums> {
    Ready::memory(index).map(MemIndex::sums)
}

/// Runs something over an index in memory; `None` for one in sled.
pub fn with_memory<T>(segment: &Segment, work: impl FnOnce(&MemIndex) -> T) -> Option<T> {
    Ready::memory(&segment.index()).map(work)
}
