//! The spill on disk: bus events that the store could not accept in time, in files, first in first out.
//!
//! ```text
//! <state-dir>/spill/<bus>/     one directory per bus: its path, with - for other characters than letters and digits, and a hash of it
//!   BUS                        the bus's path, for administrators
//!   SEEN                       text: microseconds and an event number: everything up to there is stored or in these files
//!   0000000007-2101.read       a file in delivery, whose first event has number 2101: its events may be stored already
//!   0000000008-2893.spill      a file not in delivery yet
//!   0000000003-1377.damaged    a delivered file with damage: a copy for administrators; only the newest few are kept
//!   0000000005-1801.spill.aside  a file that is foreign, or that the daemon may not read: never delivered under this name
//! ```
//!
//! Each file is a log like the logs of segments (`log`).
//!
//! Spilled events have not been acknowledged to anyone, so nothing is synced: a killed daemon finds
//! everything again, a power loss can lose the newest. Events have passed the policy before they
//! are spilled.
//!
//! # Invariant
//!
//! Events are delivered in order. A file is deleted once each of its events is stored. Bytes of a file are verified
//! before use. Damage costs only the batches that it hits: reading continues with the next good frame, missing numbers
//! show how many events were lost, and the file is kept. An unreadable file stays in place and is retried.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use super::delivery::{Hole, SpillChunk};
use super::delivery::{OpenFile, Progress, Reading};
use super::log::{Scan, SpillLog, id, scan};
use crate::base::clock::Micros;
use crate::base::limits::{SPILL_DAMAGED_FILES, SPILL_FILE_BYTES, SPILL_READ_TRIES};
use crate::model::Batch;
use crate::store::StoreError;
use crate::store::error::io_at;
use crate::store::vfs::Fs;

/// The first file number, with room for files before it.
const FIRST_FILE: u64 = 1_000_000;
/// From one new file to the next. The numbers between are for [`DiskQueue::insert`].
const FILE_STEP: u64 = 2;
/// File numbers are below this: a thousand a second for ten thousand years.
const FILES_END: u64 = 1 << 48;

/// The name of a file without its ending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FileName {
    /// Its place in the queue.
    number: u64,
    /// The number of its first event.
    first: u64,
}

impl FileName {
    /// Parses a name. Only those that this module makes are accepted: new numbers are counted from
    /// them in both directions.
    fn parse(stem: &str) -> Option<Self> {
        let (number, first) = stem.split_once('-')?;
        let name = Self {
            number: number.parse().ok()?,
            first: first.parse().ok()?,
        };

        let is_ours = (1..FILES_END).contains(&name.number) && name.to_string() == stem;
        is_ours.then_some(name)
    }
}

impl std::fmt::Display for FileName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:010}-{}", self.number, self.first)
    }
}

struct File {
    name: FileName,
    size: u64,
    /// Events that were counted and not read yet.
    events: u64,
    /// Chunks in flight: the store has not responded to them yet.
    under_way: u64,
    /// Failed reads.
    failures: u32,
    stage: Stage,
}

/// How far the delivery of a file is.
enum Stage {
    /// Not begun by this daemon.
    Unread {
        /// An earlier daemon ended during it, so some of its events may be stored.
        was_begun: bool,
    },
    /// Under way.
    Open(OpenFile),
    /// All events were read.
    Delivered {
        /// Some bytes are invalid or unreadable: the file is kept.
        is_damaged: bool,
    },
}

impl File {
    fn new(name: FileName, size: u64) -> Self {
        Self {
            name,
            size,
            events: 0,
            under_way: 0,
            failures: 0,
            stage: Stage::Unread { was_begun: false },
        }
    }

    fn is_delivered(&self) -> bool {
        matches!(self.stage, Stage::Delivered { .. })
    }

    /// Whether a failed read is retried.
    fn may_recover(&self) -> bool {
        self.failures < SPILL_READ_TRIES
    }
}

/// The contents of a spill directory when it was opened.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SpillContents {
    /// Number of events.
    pub events: u64,
    /// Number and arrival of the first event.
    pub first: Option<(u64, Micros)>,
    /// Number and arrival of the last event.
    pub last: Option<(u64, Micros)>,
    /// Bytes truncated from the torn end of the newest file.
    pub cut: u64,
    /// Files that could not be read and are retried.
    pub failed: u64,
    /// Files that are foreign, or that this daemon may not read, renamed.
    pub quarantined: u64,
}

/// The files of one bus.
pub struct DiskQueue {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    /// The store that the events are for: the files of another are not delivered to it.
    store_id: u64,
    files: VecDeque<File>,
    next_file: u64,
    tail: Option<SpillLog>,
    progress: Progress,
    bytes: u64,
    /// Undelivered events.
    waiting: u64,
}

impl DiskQueue {
    /// An empty queue, regardless of the directory.
    pub fn empty(fs: Arc<dyn Fs>, dir: &Path, store_id: u64) -> Self {
        Self {
            fs,
            dir: dir.to_owned(),
            store_id,
            files: VecDeque::new(),
            next_file: FIRST_FILE,
            tail: None,
            progress: Progress::default(),
            bytes: 0,
            waiting: 0,
        }
    }

    /// Damaged ranges skipped since the last call.
    pub(crate) fn take_damage(&mut self) -> u64 {
        self.progress.take_damage()
    }

    /// Whether everything is delivered.
    pub fn is_empty(&self) -> bool {
        self.files.iter().all(File::is_delivered)
    }

    /// Opens or creates a directory, and scans its files. A torn end of the newest file is truncated.
    pub fn open(
        fs: Arc<dyn Fs>,
        dir: &Path,
        store_id: u64,
    ) -> Result<(Self, SpillContents), StoreError> {
        // The first bus of a state directory finds no directory of spills either.
        for dir in [dir.parent().unwrap_or(dir), dir] {
            match fs.make_dir(dir) {
                Err(why) if why.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(io_at("create", dir)(why));
                }
                _ => {}
            }
        }

        let mut queue = Self::empty(fs, dir, store_id);
        let mut found = SpillContents::default();
        let mut scanned = Vec::new();

        for item in std::fs::read_dir(dir).map_err(io_at("list", dir))? {
            let path = item.map_err(io_at("list", dir))?.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let ending = path.extension().and_then(|ending| ending.to_str());
            let (Some(stem), Some(ending)) = (stem, ending) else {
                continue;
            };
            let aside = stem.rsplit_once('.').filter(|_| ending.starts_with(ASIDE));
            let name = FileName::parse(aside.map_or(stem, |(stem, _)| stem));

            // New files do not reuse the number of a damaged one, which would overwrite it if they
            // are damaged as well, nor of one set aside, which may get its name back.
            if ending == DAMAGED || aside.is_some() {
                let behind = name.map_or(0, |name| name.number + FILE_STEP);
                queue.next_file = queue.next_file.max(behind);
            }

            let read = ending == READ;
            if !read && ending != WAITING {
                continue;
            }

            let Some(name) = name else {
                queue.quarantine(&path, "not a name of a spill file", false, &mut found)?;
                continue;
            };
            match queue.examine(name, &path) {
                Ok(Scan::Foreign(why)) => queue.quarantine(&path, &why, false, &mut found)?,
                Ok(Scan::Unread(why)) => {
                    queue.next_file = queue.next_file.max(name.number + FILE_STEP);
                    queue.quarantine(&path, &why, true, &mut found)?;
                }
                scan => scanned.push((name, read, scan)),
            }
        }

        // In the order of their numbers, which is the order of their events.
        scanned.sort_unstable_by_key(|(name, ..)| *name);
        let newest = scanned.last().map(|(name, ..)| *name);
        for (name, read, scan) in scanned {
            queue.next_file = queue.next_file.max(name.number + FILE_STEP);
            queue.adopt((name, read), scan, Some(name) == newest, &mut found)?;
        }

        found.events = queue.waiting;
        Ok((queue, found))
    }

    /// Reads a file of an earlier daemon.
    fn examine(&self, name: FileName, path: &Path) -> Result<Scan, StoreError> {
        // Links are not followed: they could lead to any file.
        match std::fs::symlink_metadata(path) {
            Ok(meta) if !meta.is_file() => {
                return Ok(Scan::Foreign("it is not a file".to_owned()));
            }
            Ok(_) => {}
            Err(error) => return Ok(Scan::Unread(error.to_string())),
        }

        match scan(&*self.fs, path, id(self.store_id, name.first), false) {
            // Unlike another error, this does not pass by itself.
            Err(StoreError::Io { why, .. }) if why.kind() == io::ErrorKind::PermissionDenied => {
                let why = format!("{why}: give the daemon's user access to the file");
                Ok(Scan::Unread(why))
            }
            scan => scan,
        }
    }

    /// Renames a file that is foreign or cannot be read, which is then neither in the way nor lost.
    fn quarantine(
        &self,
        path: &Path,
        why: &str,
        is_own: bool,
        found: &mut SpillContents,
    ) -> Result<(), StoreError> {
        // A new name, because an earlier file must not be overwritten.
        let mut names = (0_u32..).map(|n| {
            let mut name = path.as_os_str().to_owned();
            name.push(if n == 0 {
                format!(".{ASIDE}")
            } else {
                format!(".{ASIDE}-{n}")
            });
            PathBuf::from(name)
        });

        let aside = names
            .find(|name| !name.exists())
            .unwrap_or_else(|| path.with_extension(ASIDE));
        self.fs
            .rename(path, &aside)
            .map_err(io_at("rename", path))?;

        found.quarantined += 1;

        let (path, aside) = (path.display(), aside.display());
        if is_own {
            tracing::error!(
                %path, %aside, why,
                "cannot read a spill file, set aside, its events are not delivered: correct the cause, rename it to `path`, and restart the daemon"
            );
        } else {
            tracing::error!(
                %path, %aside, why,
                "not a spill file of this store, set aside and not delivered: delete it if nobody needs it"
            );
        }
        Ok(())
    }

    /// Adds a file of an earlier daemon to the queue.
    fn adopt(
        &mut self,
        (name, read): (FileName, bool),
        scan: Result<Scan, StoreError>,
        newest: bool,
        found: &mut SpillContents,
    ) -> Result<(), StoreError> {
        let path = self.path(name, read);

        let scan = match scan {
            Ok(Scan::Log(scan)) => scan,
            // Created just before a crash, or zeros after a power loss. Missing numbers show a loss.
            Ok(_) => {
                return self.fs.remove_file(&path).map_err(io_at("remove", &path));
            }
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "cannot read a spill file, its events wait, retrying later");
                found.failed += 1;

                // It keeps its place in the queue, because the order must hold once it can be read.
                let size = std::fs::symlink_metadata(&path).map_or(0, |meta| meta.len());
                self.bytes += size;
                self.files.push_back(File {
                    stage: Stage::Unread { was_begun: read },
                    ..File::new(name, size)
                });
                return Ok(());
            }
        };

        let mut size = scan.size;
        // A daemon killed during a write leaves a torn end, which is not damage. It wrote only to
        // the newest file, and to none in delivery.
        if let Some(bytes) = scan.torn.filter(|_| newest && !read) {
            tracing::warn!(path = %path.display(), offset = scan.end, bytes, "incomplete last write of a spill file removed, its events are lost: see `saltcellar events list --tag 'saltcellar/gap/*'`");
            self.fs
                .open_to_write(&path)
                .and_then(|file| file.set_len(scan.end))
                .map_err(io_at("truncate", &path))?;
            found.cut += size - scan.end;
            size = scan.end;
        }

        if let (Some(first), Some(last)) = (scan.first, scan.last) {
            found.first.get_or_insert(first);
            found.last = Some(last);
            self.progress.extend(last.0.saturating_add(1));
        }

        self.bytes += size;
        self.waiting += scan.events;
        self.files.push_back(File {
            events: scan.events,
            stage: Stage::Unread { was_begun: read },
            ..File::new(name, size)
        });

        Ok(())
    }

    fn path(&self, name: FileName, read: bool) -> PathBuf {
        self.dir
            .join(format!("{name}.{}", if read { READ } else { WAITING }))
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Total bytes of its files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of the newest file.
    pub(super) fn newest(&self) -> Option<u64> {
        self.files.back().map(|file| file.name.number)
    }

    /// Whether the file of this number is still there.
    pub(super) fn has(&self, file: u64) -> bool {
        self.files.iter().any(|known| known.name.number == file)
    }

    /// Undelivered events.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Appends the entries of a batch. After an error none of them are appended.
    pub fn append(&mut self, batch: &Batch, first: u64) -> Result<(), StoreError> {
        // Small files: each is deleted once all of it is stored.
        self.tail.take_if(|tail| tail.end() >= SPILL_FILE_BYTES);

        let (mut tail, is_new) = match self.tail.take() {
            Some(tail) => (tail, false),
            None => (self.create(self.next_file, batch, first)?, true),
        };

        // After an error the next append begins a new file, in case the rest of this one could not
        // be cut off.
        let before = if is_new { 0 } else { tail.end() };
        let appended = tail.append(batch, first, false);
        if is_new {
            let name = FileName {
                number: self.next_file,
                first,
            };
            if let Err(error) = appended {
                // The file contains no event, and removing it may free the missing space.
                let _ = self.fs.remove_file(&self.path(name, false));
                return Err(error);
            }
            self.next_file += FILE_STEP;
            self.files.push_back(File::new(name, 0));
        }
        appended?;

        let Some(file) = self.files.back_mut() else {
            return Err(StoreError::Broken("the spill has no file to append to"));
        };

        let added = tail.end() - before;
        file.size += added;
        file.events += batch.len() as u64;
        self.bytes += added;
        self.waiting += batch.len() as u64;
        self.progress
            .extend(first.saturating_add(batch.len() as u64));
        self.tail = Some(tail);

        Ok(())
    }

    fn create(&self, number: u64, batch: &Batch, first: u64) -> Result<SpillLog, StoreError> {
        let path = self.path(FileName { number, first }, false);
        let created = batch.entry(0).map_or(Micros(0), |entry| entry.at);
        SpillLog::create(&*self.fs, &path, id(self.store_id, first), created)
    }

    /// Inserts batches, each with the number of its first event, between the files with older and
    /// with newer events, for the next daemon. They may be stored already. After an error none of
    /// them are inserted.
    pub(crate) fn insert(&self, batches: &[(Arc<Batch>, u64)]) -> Result<(), StoreError> {
        let is_one_file =
            |(_, one): &(_, u64), (_, next): &(_, u64)| self.place_of(*one) == self.place_of(*next);

        let written = batches.chunk_by(is_one_file).try_for_each(|run| {
            let Some((batch, first)) = run.first() else {
                return Ok(());
            };
            let mut log = self.create(self.place_of(*first), batch, *first)?;
            run.iter()
                .try_for_each(|(batch, first)| log.append(batch, *first, true))
        });

        // Their events are counted as lost, so none of them may be delivered later.
        if written.is_err() {
            for &(_, first) in batches.chunk_by(is_one_file).filter_map(<[_]>::first) {
                let number = self.place_of(first);
                let path = self.path(FileName { number, first }, false);
                let _ = self.fs.remove_file(&path);
            }
        }
        written
    }

    /// The number of an inserted file whose first event has this number.
    fn place_of(&self, first: u64) -> u64 {
        let mut newest_first = self.files.iter().rev();
        if let Some(older) = newest_first.find(|file| file.name.first < first) {
            // Every second number is free.
            return older.name.number.saturating_add(1);
        }
        // Numbers start high ([`FIRST_FILE`]), so there is room before the first.
        let oldest = self.files.front();
        let oldest = oldest.map_or(self.next_file, |file| file.name.number);
        oldest.saturating_sub(1)
    }

    /// The next events; `None` if everything is delivered. After an error the next call retries, until
    /// a file has failed [`SPILL_READ_TRIES`] times: then its unreadable part is skipped like damage.
    pub fn next_piece(&mut self) -> Result<Option<SpillChunk>, StoreError> {
        while let Some(at) = self.files.iter().position(|file| !file.is_delivered()) {
            if let Some(chunk) = self.read_file(at)? {
                return Ok(Some(chunk));
            }
        }

        Ok(self.progress.end())
    }

    /// The next events of a file; `None` once it is delivered.
    fn read_file(&mut self, at: usize) -> Result<Option<SpillChunk>, StoreError> {
        self.open_file(at)?;
        let Some(file) = self.files.get_mut(at) else {
            return Ok(None);
        };
        let may_recover = file.may_recover();
        // Otherwise it was skipped, and may be removed already.
        let Stage::Open(open) = &mut file.stage else {
            return Ok(None);
        };

        match open.read_chunk(&mut self.progress, may_recover) {
            Reading::Events(chunk) => {
                file.under_way += 1;

                // Bounded, because events of a file that could not be scanned were never counted.
                let read = chunk.batch.len() as u64;
                self.waiting -= read.min(self.waiting);
                file.events -= read.min(file.events);
                Ok(Some(chunk))
            }
            Reading::Failed(error) => {
                file.failures += 1;
                Err(error)
            }
            Reading::End => {
                let is_damaged = open.is_damaged();
                self.finish_file(at, is_damaged);
                Ok(None)
            }
        }
    }

    /// Opens a file that was not read yet. One that cannot be read for good is skipped.
    fn open_file(&mut self, at: usize) -> Result<(), StoreError> {
        let is_tail = at + 1 == self.files.len();
        let Some(file) = self.files.get(at) else {
            return Ok(());
        };
        let Stage::Unread { was_begun } = file.stage else {
            return Ok(());
        };

        let (name, may_recover) = (file.name, file.may_recover());
        let scan = self.scan_file(name, was_begun, !may_recover);

        if is_tail {
            // New events go into a separate file.
            self.tail = None;
        }
        let Some(file) = self.files.get_mut(at) else {
            return Ok(());
        };

        let error = match scan {
            Ok(Scan::Log(scan)) => {
                // The name of the first file shows how many events are missing before its first
                // frame.
                self.progress.begin(name.first);

                // Only files that were in delivery when a daemon ended may contain stored events.
                file.stage = Stage::Open(OpenFile::new(scan, name.number, was_begun));
                return Ok(());
            }

            // Not for good: the disk may recover.
            Err(error) if may_recover => {
                file.failures += 1;
                return Err(error);
            }
            Err(error) => error.to_string(),
            Ok(Scan::Foreign(why) | Scan::Unread(why)) => why,
            Ok(Scan::Blank) => "its content is gone".to_owned(),
        };

        let path = self.path(name, true);
        tracing::error!(path = %path.display(), error, "unreadable spill file skipped, its events are lost: check the disk for errors");
        self.progress.skip();
        self.finish_file(at, true);
        Ok(())
    }

    /// Reads the frames of a file, whose delivery begins.
    fn scan_file(
        &self,
        name: FileName,
        was_begun: bool,
        past_errors: bool,
    ) -> Result<Scan, StoreError> {
        let (path, waiting) = (self.path(name, true), self.path(name, false));

        // Renamed before the first event is read: after a crash only a `.read` file may contain
        // stored events.
        if !was_begun && waiting.exists() {
            self.fs
                .rename(&waiting, &path)
                .map_err(io_at("rename", &waiting))?;
        }

        scan(&*self.fs, &path, id(self.store_id, name.first), past_errors)
    }

    /// Ends the delivery of a file.
    fn finish_file(&mut self, at: usize, is_damaged: bool) {
        if let Some(file) = self.files.get_mut(at) {
            file.stage = Stage::Delivered { is_damaged };

            // Events that were counted at the start and could not be read now.
            let unread = std::mem::take(&mut file.events);
            self.waiting -= unread.min(self.waiting);
        }

        self.remove_done_files();
    }

    /// Marks a chunk of that file as stored.
    pub fn stored(&mut self, file: u64) {
        if let Some(file) = self
            .files
            .iter_mut()
            .find(|known| known.name.number == file)
        {
            file.under_way = file.under_way.saturating_sub(1);
        }
        self.remove_done_files();
    }

    /// Deletes files that are completely stored, and renames damaged files for keeping.
    fn remove_done_files(&mut self) {
        while let Some(file) = self
            .files
            .pop_front_if(|file| file.is_delivered() && file.under_way == 0)
        {
            self.bytes -= file.size.min(self.bytes);
            let path = self.path(file.name, true);
            let is_damaged = matches!(file.stage, Stage::Delivered { is_damaged: true });
            let done = if is_damaged {
                let kept = path.with_extension(DAMAGED);
                tracing::warn!(path = %kept.display(), "damaged spill file kept: delete it after inspection");
                self.fs
                    .rename(&path, &kept)
                    .and_then(|()| self.limit_damaged())
            } else {
                self.fs.remove_file(&path)
            };

            if let Err(error) = done {
                // It is redelivered at the next start, and recognised as stored.
                tracing::warn!(path = %path.display(), %error, "cannot remove a delivered spill file, its events are redelivered after a restart: check the disk for errors and the permissions of the directory");
            }
        }
    }

    /// Deletes the oldest damaged files beyond the limit.
    fn limit_damaged(&self) -> io::Result<()> {
        let mut kept = Vec::new();
        for item in std::fs::read_dir(&self.dir)? {
            let path = item?.path();
            if path.extension().is_some_and(|ending| ending == DAMAGED) {
                kept.push(path);
            }
        }

        // All numbers have the same length, therefore the oldest come first.
        kept.sort_unstable();
        let too_many = kept.len().saturating_sub(SPILL_DAMAGED_FILES);
        kept.iter()
            .take(too_many)
            .try_for_each(|path| self.fs.remove_file(path))
    }
}

/// The ending of a file that is not in delivery yet.
pub(super) const WAITING: &str = "spill";
/// The ending of a file in delivery.
pub(super) const READ: &str = "read";
const DAMAGED: &str = "damaged";
/// The ending of a file set aside, behind its former ending; a number may follow.
const ASIDE: &str = "aside";

/// The path of a file whose name shows its first event: the number.
pub(super) fn first_of(path: &Path) -> Option<u64> {
    let stem = path.file_stem()?.to_str()?;
    FileName::parse(stem).map(|name| name.first)
}
