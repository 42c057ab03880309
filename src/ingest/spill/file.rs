//! The spill on disk: bus events that the store could not accept in time, in files, first in first out.
//!
//! ```text
//! <state-dir>/spill/<bus>/     one directory per bus: its path, with - for other characters than letters and digits, and a hash of it
//!   BUS                        the bus's path, for administrators
//!   SEEN                       text: microseconds and an event number: everything up to there is stored or in these files
//!   0000000007.read            a file in delivery: its records may be stored already
//!   0000000008.spill           a file not in delivery yet
//!   0000000003.damaged         a delivered file with damage: a copy for administrators; only the newest few are kept
//! ```
//!
//! `record` defines the format of the files.
//!
//! Spilled events have not been acknowledged to anyone, so nothing is synced: a killed daemon finds
//! everything again, a power loss can lose the newest. Events have passed the policy before they
//! are spilled.
//!
//! # Invariant
//!
//! Records are delivered in order. A file is deleted once each of its events is stored. Bytes of a file are verified
//! before use. Damage costs only the affected records: reading continues with the next valid one, missing numbers
//! show how many were lost, and the file is kept. An unreadable file stays in place and is retried.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::reader::{ReadStep, Reader, scan};
use super::record::{FILE_HEADER, Header};
use crate::base::clock::Micros;
use crate::base::limits::{
    SPILL_DAMAGED_FILES, SPILL_FILE_BYTES, SPILL_READ_BYTES, SPILL_READ_TRIES,
};
use crate::model::Batch;
use crate::store::vfs::{Fs, FsFile};

/// The first file number, with room for files before it.
const FIRST_FILE: u64 = 1_000_000;
/// File numbers are below this: a thousand a second for ten thousand years.
const FILES_END: u64 = 1 << 48;

#[derive(Debug)]
struct File {
    number: u64,
    size: u64,
    events: u64,
    /// In delivery, now or when an earlier daemon ended.
    read: bool,
    /// Chunks in flight: the store has not responded to them yet.
    under_way: u64,
    /// Everything in it is delivered.
    done: bool,
    /// Some bytes are invalid or unreadable: the file is kept.
    damaged: bool,
    failures: u32,
}

impl File {
    fn new(number: u64, size: u64) -> Self {
        Self {
            number,
            size,
            events: 0,
            read: false,
            under_way: 0,
            done: false,
            damaged: false,
            failures: 0,
        }
    }
}

/// Events read from the spill.
#[derive(Debug)]
pub struct SpillChunk {
    /// The events.
    pub batch: Batch,
    /// The number of the first.
    pub first: u64,
    /// The file, for [`DiskQueue::stored`].
    pub file: u64,
    /// Events missing before it. The batch is empty if none follow.
    pub hole: Option<Hole>,
}

/// Missing events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hole {
    /// Their number, if known.
    pub lost: Option<u64>,
    /// The arrival of the event before them, if known.
    pub after: Option<Micros>,
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
    /// Foreign files with names of spill files, renamed.
    pub quarantined: u64,
}

/// The files of one bus.
#[derive(Debug)]
pub struct DiskQueue {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    files: VecDeque<File>,
    next_file: u64,
    tail: Option<Tail>,
    front: Option<Front>,
    /// The next expected record number, and the arrival of the record before it.
    expected: Option<(u64, Option<Micros>)>,
    /// One more than the largest number in the files.
    end: u64,
    bytes: u64,
    /// Undelivered events.
    waiting: u64,
    /// Skipped events that Salt's codec cannot read.
    unreadable: u64,
    /// Skipped damaged ranges.
    damage: u64,
    /// Ranges were skipped since the last record, so their loss is not known yet.
    damage_open: bool,
}

#[derive(Debug)]
struct Tail {
    file: Box<dyn FsFile>,
    header: Header,
    size: u64,
}

#[derive(Debug)]
struct Front {
    reader: Reader,
    number: u64,
    unsure: bool,
}

impl DiskQueue {
    /// An empty queue, regardless of the directory.
    pub fn empty(fs: Arc<dyn Fs>, dir: &Path) -> Self {
        Self {
            fs,
            dir: dir.to_owned(),
            files: VecDeque::new(),
            next_file: FIRST_FILE,
            tail: None,
            front: None,
            expected: None,
            end: 0,
            bytes: 0,
            waiting: 0,
            unreadable: 0,
            damage: 0,
            damage_open: false,
        }
    }

    /// Damaged ranges skipped since the last call.
    pub(crate) fn take_damage(&mut self) -> u64 {
        std::mem::take(&mut self.damage)
    }

    /// Whether everything is delivered.
    pub fn is_empty(&self) -> bool {
        self.files.iter().all(|file| file.done)
    }

    /// Events skipped since the last call because Salt's codec cannot read them.
    pub fn take_unreadable(&mut self) -> u64 {
        std::mem::take(&mut self.unreadable)
    }

    /// Opens or creates a directory, and scans its files. A torn end of the newest file is truncated.
    pub fn open(fs: Arc<dyn Fs>, dir: &Path) -> io::Result<(Self, SpillContents)> {
        for dir in [dir.parent().unwrap_or(dir), dir] {
            match fs.make_dir(dir) {
                Err(why) if why.kind() != io::ErrorKind::AlreadyExists => return Err(why),
                _ => {}
            }
        }

        let mut queue = Self::empty(fs, dir);
        let mut names = Vec::new();
        let mut found = SpillContents::default();

        for item in std::fs::read_dir(dir)? {
            let name = item?.file_name();
            let Some((name, (digits, ending))) = name
                .to_str()
                .and_then(|name| Some((name, name.split_once('.')?)))
            else {
                continue;
            };

            // New files do not reuse the number of a damaged one, which would overwrite it if they
            // are damaged as well.
            if ending == "damaged" {
                let number = digits.parse().unwrap_or(0);
                queue.next_file =
                    queue
                        .next_file
                        .max(if number < FILES_END { number + 1 } else { 0 });
            }

            if !matches!(ending, "spill" | "read") {
                continue;
            }

            let (number, read) = (digits.parse().unwrap_or(0), ending == "read");
            // Only names that this module generates are accepted: new numbers are counted from them
            // in both directions.
            let is_ours =
                (1..FILES_END).contains(&number) && queue.path(number, read) == dir.join(name);

            match is_ours.then(|| queue.is_spill(number, read)) {
                Some(Ok(())) => names.push((number, read)),
                Some(Err(why)) => queue.quarantine(&dir.join(name), &why, &mut found)?,
                None => {
                    queue.quarantine(&dir.join(name), "not a name of a spill file", &mut found)?;
                }
            }
        }

        // In the order of their numbers, which is the order of their events.
        names.sort_unstable();
        let newest = names.last().map(|(number, _)| *number);
        for (number, read) in names {
            queue.next_file = queue.next_file.max(number + 1);
            queue.adopt(number, read, Some(number) == newest, &mut found)?;
        }

        found.events = queue.waiting;
        Ok((queue, found))
    }

    /// Checks that the file has the header of a spill file, possibly incomplete after a crash.
    fn is_spill(&self, number: u64, read: bool) -> Result<(), String> {
        let path = self.path(number, read);

        // Links are not followed: they could lead to any file.
        match std::fs::symlink_metadata(&path) {
            Ok(meta) if !meta.is_file() => return Err("it is not a file".to_owned()),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }

        let begins = self.fs.open_to_write(&path).and_then(|file| {
            let len = file.size()?.min(FILE_HEADER as u64);
            let mut begins = vec![0; usize::try_from(len).unwrap_or(FILE_HEADER)];
            file.read_exact_at(&mut begins, 0).map(|()| begins)
        });

        match begins {
            // A crash can leave an empty file, and a power loss zeros in place of written bytes.
            Ok(begins)
                if Header::read(&begins).is_some() || begins.iter().all(|byte| *byte == 0) =>
            {
                Ok(())
            }
            Ok(begins) if begins.len() < FILE_HEADER && begins.starts_with(b"SCSPILL") => Ok(()),
            Ok(_) => Err("it does not start with the header of a spill file".to_owned()),
            // Unlike a read error, this does not pass by itself.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error.to_string()),
            // Decided once the disk can be read.
            Err(_) => Ok(()),
        }
    }

    /// Renames a foreign file, so that it is neither in the way nor lost.
    fn quarantine(&self, path: &Path, why: &str, found: &mut SpillContents) -> io::Result<()> {
        let mut names = (0_u32..).map(|n| {
            let mut name = path.as_os_str().to_owned();
            name.push(if n == 0 {
                ".aside".to_owned()
            } else {
                format!(".aside-{n}")
            });
            PathBuf::from(name)
        });

        let aside = names
            .find(|name| !name.exists())
            .unwrap_or_else(|| path.with_extension("aside"));
        self.fs.rename(path, &aside)?;
        found.quarantined += 1;

        tracing::error!(
            path = %path.display(), aside = %aside.display(), why,
            "foreign file in the spill renamed; its contents are not delivered"
        );
        Ok(())
    }

    /// Adds a file of an earlier daemon to the queue.
    fn adopt(
        &mut self,
        number: u64,
        read: bool,
        newest: bool,
        found: &mut SpillContents,
    ) -> io::Result<()> {
        let path = self.path(number, read);

        let (file, size) = match self
            .fs
            .open_to_write(&path)
            .and_then(|file| Ok((file.size()?, file)))
        {
            Ok((size, file)) => (Some(file), size),
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "cannot open a spill file, retrying later");
                (None, 0)
            }
        };

        let scan = file.map(|file| scan(file, size)).transpose();
        let Ok(Some(scan)) = scan else {
            if let Err(error) = scan {
                tracing::error!(path = %path.display(), %error, "cannot read a spill file, retrying later");
            }

            found.failed += 1;

            // It keeps its place in the queue, so that the order holds once it can be read.
            self.bytes += size;
            self.files.push_back(File {
                read,
                ..File::new(number, size)
            });
            return Ok(());
        };

        // Created just before a crash, or zeros after a power loss. Missing numbers show a loss.
        if scan.events == 0 && !scan.damaged {
            return self.fs.remove_file(&path);
        }

        let mut size = size;
        // A daemon killed during a write leaves a torn end, which is not damage. It wrote only to
        // the newest file, and to none in delivery.
        if newest && !read && scan.torn {
            tracing::warn!(path = %path.display(), offset = scan.end, bytes = size - scan.end, "truncating the torn end of a spill file");
            self.fs.open_to_write(&path)?.set_len(scan.end)?;
            found.cut += size - scan.end;
            size = scan.end;
        }

        if let (Some(first), Some(last)) = (scan.first, scan.last) {
            found.first.get_or_insert(first);
            found.last = Some(last);
            self.end = self.end.max(last.0.saturating_add(1));
        }

        self.bytes += size;
        self.waiting += scan.events;
        self.files.push_back(File {
            events: scan.events,
            read,
            ..File::new(number, size)
        });

        Ok(())
    }

    fn path(&self, number: u64, read: bool) -> PathBuf {
        self.dir.join(format!(
            "{number:010}.{}",
            if read { "read" } else { "spill" }
        ))
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Total bytes of its files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Undelivered events.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Appends the entries of a batch. After an error none of them are appended.
    pub fn append(&mut self, batch: &Batch, first: u64) -> io::Result<()> {
        if self
            .tail
            .as_ref()
            .is_none_or(|tail| tail.size >= SPILL_FILE_BYTES)
        {
            self.tail = None;
            let (number, header) = (self.next_file, Header::new(first));
            let path = self.path(number, false);
            let file = self.fs.create(&path)?;

            if let Err(why) = file.write_all_at(&header.to_bytes(), 0) {
                // The file is empty, and removing it may free the missing space.
                let _ = self.fs.remove_file(&path);

                return Err(why);
            }
            self.next_file += 1;
            let size = FILE_HEADER as u64;
            self.bytes += size;
            self.files.push_back(File::new(number, size));
            self.tail = Some(Tail { file, header, size });
        }

        let (Some(tail), Some(entry)) = (&mut self.tail, self.files.back_mut()) else {
            return Err(io::Error::other(
                "internal error: the spill has no file to append to",
            ));
        };

        // Complete before the write, so that an entry over the size limit leaves the file
        // unchanged.
        let mut bytes = Vec::with_capacity(batch.footprint());
        for ((entry, _), n) in batch.entries().zip(0_u64..) {
            tail.header.write_record(
                (&mut bytes, tail.size),
                &entry,
                first.wrapping_add(n),
                false,
            )?;
        }

        if let Err(why) = tail.file.write_all_at(&bytes, tail.size) {
            // If truncation fails as well, the partial write is found as damage.
            let _ = tail.file.set_len(tail.size);

            // The next append begins a new file, in case truncation failed.
            self.tail = None;
            return Err(why);
        }

        tail.size += bytes.len() as u64;
        entry.size = tail.size;
        entry.events += batch.len() as u64;
        self.bytes += bytes.len() as u64;
        self.waiting += batch.len() as u64;
        self.end = self.end.max(first.saturating_add(batch.len() as u64));

        Ok(())
    }

    /// Inserts batches before everything else, for the next daemon. They may be stored already.
    pub(crate) fn prepend(&mut self, batches: &[(Arc<Batch>, u64)]) -> io::Result<()> {
        let Some((_, first)) = batches.first() else {
            return Ok(());
        };

        let header = Header::new(*first);
        let mut bytes = header.to_bytes();
        for (batch, first) in batches {
            for ((entry, _), n) in batch.entries().zip(0_u64..) {
                header.write_record((&mut bytes, 0), &entry, first.wrapping_add(n), true)?;
            }
        }

        // Numbers start high ([`FIRST_FILE`]), so there is room before the first.
        let number = self
            .files
            .front()
            .map_or(self.next_file, |file| file.number)
            - 1;
        let path = self.path(number, false);

        let written = self
            .fs
            .create(&path)
            .and_then(|file| file.write_all_at(&bytes, 0));

        // Its events are counted as lost, so none of them may be delivered later.
        if written.is_err() {
            let _ = self.fs.remove_file(&path);
        }

        written
    }

    /// The next events, about [`SPILL_READ_BYTES`] of them; `None` if everything is delivered. After an error the next call
    /// retries, until a file has failed [`SPILL_READ_TRIES`] times: then its unreadable part is
    /// skipped like damage.
    pub fn next_piece(&mut self) -> io::Result<Option<SpillChunk>> {
        loop {
            if self.front.is_none() && !self.open_next()? {
                // Events from now until the next spilling bypass the disk.
                let (first, after) = self.expected.take().unwrap_or((self.end, None));
                let lost = Some(self.end.saturating_sub(first)).filter(|lost| *lost > 0);

                if lost.is_none() && !std::mem::take(&mut self.damage_open) {
                    return Ok(None);
                }
                self.damage_open = false;
                let hole = Some(Hole { lost, after });
                return Ok(Some(SpillChunk {
                    batch: Batch::default(),
                    first,
                    file: 0,
                    hole,
                }));
            }

            let Some(front) = &mut self.front else {
                return Ok(None);
            };

            let number = front.number;
            let Some(file) = self.files.iter_mut().find(|file| file.number == number) else {
                self.front = None;
                continue;
            };

            let mut batch = Batch::default();
            let mut piece: Option<(u64, Option<Hole>)> = None;
            let mut skipped = 0;
            let mut failure = None;
            let mut ended = false;

            while batch.bytes() < SPILL_READ_BYTES {
                let len = match front.reader.step() {
                    Ok(ReadStep::Record(len)) => len,
                    Ok(ReadStep::Damage(bytes)) => {
                        (file.damaged, self.damage, self.damage_open) =
                            (true, self.damage + 1, true);
                        let path = self.dir.join(format!("{number:010}.read"));
                        let offset = front.reader.at() - bytes;
                        tracing::error!(path = %path.display(), offset, bytes, "skipping a damaged range of a spill file");
                        continue;
                    }
                    Ok(ReadStep::End) => {
                        ended = true;
                        break;
                    }
                    Err(error) => {
                        failure = Some(error);
                        break;
                    }
                };

                let Some(record) = front.reader.record(len) else {
                    break;
                };

                let hole = self
                    .expected
                    .filter(|(expected, _)| *expected < record.number);

                // Missing events precede a chunk, so they end this one.
                if hole.is_some() && piece.is_some() {
                    break;
                }

                self.damage_open = false;
                let hole = hole.map(|(expected, after)| Hole {
                    lost: Some(record.number - expected),
                    after,
                });

                let readable = record.push_to(&mut batch, front.unsure);
                if !readable && piece.is_some() {
                    // Numbers within a chunk are contiguous, so it is skipped at the start of the next one.
                    break;
                }

                // After missing events, an unreadable one counts as missing as well.
                if readable || hole.is_none() {
                    self.expected = Some((record.number.saturating_add(1), Some(record.at)));
                }
                if readable {
                    piece.get_or_insert((record.number, hole));
                } else {
                    skipped += 1;
                }
                front.reader.pass(len);
            }

            // Bounded, because events of a file that could not be scanned were never counted.
            let read = batch.len() as u64 + skipped;
            self.waiting -= read.min(self.waiting);
            file.events -= read.min(file.events);
            self.unreadable += skipped;

            // Events before a failed read are returned first; the next call fails again.
            if let Some((first, hole)) = piece {
                file.under_way += 1;
                return Ok(Some(SpillChunk {
                    batch,
                    first,
                    file: number,
                    hole,
                }));
            }

            if let Some(error) = failure {
                file.failures += 1;
                if file.failures >= SPILL_READ_TRIES {
                    front.reader.read_past_errors();
                    file.damaged = true;
                }
                return Err(error);
            }

            if !ended {
                continue;
            }

            // Events that the scan counted and that could not be read now.
            self.waiting -= file.events.min(self.waiting);
            (file.done, file.events) = (true, 0);
            self.front = None;
            self.remove_done_files();
        }
    }

    /// Opens the next file for reading; false if no file is left.
    fn open_next(&mut self) -> io::Result<bool> {
        let Some(at) = self.files.iter().position(|file| !file.done) else {
            return Ok(false);
        };
        let is_tail = at + 1 == self.files.len();
        let Some(file) = self.files.get(at) else {
            return Ok(false);
        };

        let (number, was_read, failures) = (file.number, file.read, file.failures);
        let opened = self.open_front(number, was_read, failures >= SPILL_READ_TRIES);

        let Some(file) = self.files.get_mut(at) else {
            return Ok(false);
        };
        if is_tail {
            // New events go into a separate file.
            self.tail = None;
        }

        match opened {
            Ok(Some(reader)) => {
                file.read = true;

                // The header of the first file shows how many events are missing before its first
                // record.
                if let (None, Some(first)) = (self.expected, reader.header().first) {
                    self.expected = Some((first, None));
                }

                // Only files that were in delivery when a daemon ended may contain stored events.
                self.front = Some(Front {
                    reader,
                    number,
                    unsure: was_read,
                });
                Ok(true)
            }

            // Not for good: the disk may recover.
            Err(error) if file.failures < SPILL_READ_TRIES => {
                file.failures += 1;
                Err(error)
            }
            refused => {
                let path = self.dir.join(format!("{number:010}.read"));
                let error = refused.err().map(|error| error.to_string());
                tracing::error!(path = %path.display(), error, "skipping an unreadable spill file");
                (file.read, file.damaged) = (true, true);
                (self.damage, self.damage_open) = (self.damage + 1, true);
                self.waiting -= file.events.min(self.waiting);
                (file.done, file.events) = (true, 0);
                self.remove_done_files();
                self.open_next()
            }
        }
    }

    /// Opens a file for delivery; `None` without a readable header.
    fn open_front(
        &self,
        number: u64,
        was_read: bool,
        past_errors: bool,
    ) -> io::Result<Option<Reader>> {
        let path = self.path(number, true);

        // Renamed before the first record is read: after a crash only a `.read` file may contain
        // stored events.
        if !was_read && self.path(number, false).exists() {
            self.fs.rename(&self.path(number, false), &path)?;
        }

        let file = self.fs.open(&path)?;
        let size = file.size()?;
        Reader::open(file, size, past_errors)
    }

    /// Marks a chunk of that file as stored.
    pub fn stored(&mut self, file: u64) {
        if let Some(file) = self.files.iter_mut().find(|known| known.number == file) {
            file.under_way = file.under_way.saturating_sub(1);
        }
        self.remove_done_files();
    }

    /// Deletes files that are completely stored, and renames damaged ones for keeping.
    fn remove_done_files(&mut self) {
        while self
            .files
            .front()
            .is_some_and(|file| file.done && file.under_way == 0)
        {
            let Some(file) = self.files.pop_front() else {
                return;
            };

            self.bytes -= file.size.min(self.bytes);
            let path = self.path(file.number, true);
            let done = if file.damaged {
                let kept = path.with_extension(DAMAGED);
                tracing::warn!(path = %kept.display(), "keeping a damaged spill file");
                self.fs
                    .rename(&path, &kept)
                    .and_then(|()| self.limit_damaged())
            } else {
                self.fs.remove_file(&path)
            };

            if let Err(error) = done {
                // It is delivered again at the next start, and recognised as stored.
                tracing::warn!(path = %path.display(), %error, "cannot remove a spill file");
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

        // Numbers have the same length, so the oldest come first.
        kept.sort_unstable();
        let too_many = kept.len().saturating_sub(SPILL_DAMAGED_FILES);
        kept.iter()
            .take(too_many)
            .try_for_each(|path| self.fs.remove_file(path))
    }
}

const DAMAGED: &str = "damaged";
