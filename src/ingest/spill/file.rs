//! The spill on disk: what a bus said while the store did not keep up, in files, first in first out.
//!
//! ```text
//! <state-dir>/spill/<bus>/     one directory per bus: its path, with - for what is no letter or digit, and a hash of it
//!   BUS                        the bus's path, for people
//!   SEEN                       text: microseconds, the number of an event: all up to there is stored or in these files
//!   0000000007.read            a file that is being handed over: its records may be stored already
//!   0000000008.spill           one that is not
//!   0000000003.damaged         one that was handed over but for its damage: a copy for people, of which the newest few are kept
//! ```
//!
//! What the files hold is in `record`.
//!
//! Nothing here has been acknowledged to anybody, so nothing is synced: a killed daemon finds everything again, a power cut may
//! take the newest. Data has passed the gate before it comes here.
//!
//! # Invariant
//!
//! Records come out in the order they went in. A file goes once each of its events is stored. Bytes of a file are checked
//! before they are believed. Damage costs the records that it hits: reading goes on with the next good one, numbers that are
//! missing tell how many were lost, and the file is kept. A file that cannot be read stays where it is and is tried again.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::reader::{Reader, Step, walk};
use super::record::{FILE_HEADER, Header};
use crate::clock::Micros;
use crate::limits::{SPILL_DAMAGED_FILES, SPILL_FILE_BYTES, SPILL_READ_BYTES, SPILL_READ_TRIES};
use crate::model::Batch;
use crate::store::medium::{Medium, MediumFile};

/// Numbers of files begin here, so that there are numbers for files in front of the first.
const FIRST_FILE: u64 = 1_000_000;
/// No file of ours has this number or a greater one: a thousand a second for ten thousand years.
const FILES_END: u64 = 1 << 48;

/// A file of the spill.
#[derive(Debug)]
struct File {
    number: u64,
    size: u64,
    events: u64,
    /// Is it being handed over, or was it when a daemon ended?
    read: bool,
    /// Batches out of it that the store has not answered.
    under_way: u64,
    /// Everything in it has been handed over.
    done: bool,
    /// Bytes of it are no records, or could not be read: it is kept.
    damaged: bool,
    /// How often reading it has failed.
    failures: u32,
}

impl File {
    fn new(number: u64, size: u64) -> Self {
        Self { number, size, events: 0, read: false, under_way: 0, done: false, damaged: false, failures: 0 }
    }
}

/// Events out of the spill.
#[derive(Debug)]
pub struct Piece {
    /// The events.
    pub batch: Batch,
    /// The number of the first.
    pub first: u64,
    /// The file, for [`DiskQueue::stored`].
    pub file: u64,
    /// Events that are missing in front of it. Where nothing is left behind them the batch is empty.
    pub hole: Option<Hole>,
}

/// Events that are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hole {
    /// How many, if that is known.
    pub lost: Option<u64>,
    /// When the event before them arrived, if that is known.
    pub after: Option<Micros>,
}

/// What opening found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Events.
    pub events: u64,
    /// The first of them: number and arrival.
    pub first: Option<(u64, Micros)>,
    /// The last of them.
    pub last: Option<(u64, Micros)>,
    /// Bytes cut off the torn end of the newest file.
    pub cut: u64,
    /// Files that could not be read, and are tried again.
    pub failed: u64,
    /// Files set aside: their names look like ours, and they are not.
    pub aside: u64,
}

/// The files of one bus.
#[derive(Debug)]
pub struct DiskQueue {
    medium: Arc<dyn Medium>,
    dir: PathBuf,
    files: VecDeque<File>,
    next_file: u64,
    tail: Option<Tail>,
    front: Option<Front>,
    /// The number of the next record, if none is missing, and the arrival of the one before.
    expected: Option<(u64, Option<Micros>)>,
    /// One more than the greatest number in the files.
    end: u64,
    bytes: u64,
    /// Events that have not been handed out.
    waiting: u64,
    /// Events that were skipped because Salt's codec cannot read them.
    unreadable: u64,
    /// Damaged stretches that were passed.
    damage: u64,
    /// Some were passed since the last record: the numbers do not tell yet what they cost.
    damage_open: bool,
}

/// The file that is written to.
#[derive(Debug)]
struct Tail {
    file: Box<dyn MediumFile>,
    header: Header,
    size: u64,
}

/// The file that is read.
#[derive(Debug)]
struct Front {
    reader: Reader,
    number: u64,
    unsure: bool,
}

impl DiskQueue {
    /// One with no files, whatever is in its directory.
    pub fn empty(medium: Arc<dyn Medium>, dir: &Path) -> Self {
        Self {
            medium,
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

    /// Damaged stretches that were passed since the last call.
    pub fn take_damage(&mut self) -> u64 {
        std::mem::take(&mut self.damage)
    }

    /// Has everything been handed out?
    pub fn is_empty(&self) -> bool {
        self.files.iter().all(|file| file.done)
    }

    /// Events skipped since the last call because Salt's codec cannot read them.
    pub fn take_unreadable(&mut self) -> u64 {
        std::mem::take(&mut self.unreadable)
    }

    /// Opens a directory, or makes it, and reads through what is there. The torn end of the newest file is cut off.
    pub fn open(medium: Arc<dyn Medium>, dir: &Path) -> io::Result<(Self, Found)> {
        for dir in [dir.parent().unwrap_or(dir), dir] {
            match medium.make_dir(dir) {
                Err(why) if why.kind() != io::ErrorKind::AlreadyExists => return Err(why),
                _ => {}
            }
        }
        let mut queue = Self::empty(medium, dir);
        let mut names = Vec::new();
        let mut found = Found::default();
        for item in std::fs::read_dir(dir)? {
            let name = item?.file_name();
            let Some((name, (digits, ending))) =
                name.to_str().and_then(|name| Some((name, name.split_once('.')?)))
            else {
                continue;
            };
            if ending == "damaged" {
                let number = digits.parse().unwrap_or(0);
                queue.next_file = queue.next_file.max(if number < FILES_END { number + 1 } else { 0 });
            }
            if !matches!(ending, "spill" | "read") {
                continue;
            }
            let (number, read) = (digits.parse().unwrap_or(0), ending == "read");
            // Only what we would have called so ourselves: numbers are counted on from there, both ways.
            let is_ours = (1..FILES_END).contains(&number) && queue.path(number, read) == dir.join(name);
            match is_ours.then(|| queue.is_spill(number, read)) {
                Some(Ok(())) => names.push((number, read)),
                Some(Err(why)) => queue.set_aside(&dir.join(name), &why, &mut found)?,
                None => queue.set_aside(&dir.join(name), "no file of the spill has that name", &mut found)?,
            }
        }
        names.sort_unstable();
        let newest = names.last().map(|(number, _)| *number);
        for (number, read) in names {
            queue.next_file = queue.next_file.max(number + 1);
            queue.take_in(number, read, Some(number) == newest, &mut found)?;
        }
        found.events = queue.waiting;
        Ok((queue, found))
    }

    /// Is this a file, and does it begin as ours do? One that a crash left without its beginning does.
    fn is_spill(&self, number: u64, read: bool) -> Result<(), String> {
        let path = self.path(number, read);
        match std::fs::symlink_metadata(&path) {
            Ok(meta) if !meta.is_file() => return Err("it is not a file".to_owned()),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
        let begins = self.medium.open_to_write(&path).and_then(|file| {
            let len = file.size()?.min(FILE_HEADER as u64);
            let mut begins = vec![0; usize::try_from(len).unwrap_or(FILE_HEADER)];
            file.read_exact_at(&mut begins, 0).map(|()| begins)
        });
        match begins {
            // A crash may leave an empty file, and a power cut zeros where something was to be written.
            Ok(begins) if Header::read(&begins).is_some() || begins.iter().all(|byte| *byte == 0) => Ok(()),
            Ok(begins) if begins.len() < FILE_HEADER && begins.starts_with(b"SCSPILL") => Ok(()),
            Ok(_) => Err("it does not begin as a file of the spill does".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error.to_string()),
            // Whether it is one of ours shows when the disk is well again.
            Err(_) => Ok(()),
        }
    }

    /// Gives a file that is not ours another name, so that it is in nobody's way and nobody's loss.
    fn set_aside(&self, path: &Path, why: &str, found: &mut Found) -> io::Result<()> {
        let mut names = (0_u32..).map(|n| {
            let mut name = path.as_os_str().to_owned();
            name.push(if n == 0 { ".aside".to_owned() } else { format!(".aside-{n}") });
            PathBuf::from(name)
        });
        let aside = names.find(|name| !name.exists()).unwrap_or_else(|| path.with_extension("aside"));
        self.medium.rename(path, &aside)?;
        found.aside += 1;
        tracing::error!(
            path = %path.display(), aside = %aside.display(), why,
            "a foreign file in the spill is set aside; nothing in it is handed over"
        );
        Ok(())
    }

    /// Takes a file in that an earlier daemon left.
    fn take_in(&mut self, number: u64, read: bool, newest: bool, found: &mut Found) -> io::Result<()> {
        let path = self.path(number, read);
        let (file, size) = match self.medium.open_to_write(&path).and_then(|file| Ok((file.size()?, file))) {
            Ok((size, file)) => (Some(file), size),
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "cannot open a file of the spill, trying again later");
                (None, 0)
            }
        };
        let walked = file.map(|file| walk(file, size)).transpose();
        let Ok(Some(walked)) = walked else {
            if let Err(error) = walked {
                tracing::error!(path = %path.display(), %error, "cannot read a file of the spill, trying again later");
            }
            found.failed += 1;
            self.bytes += size;
            self.files.push_back(File { read, ..File::new(number, size) });
            return Ok(());
        };
        if walked.events == 0 && !walked.damaged {
            return self.medium.remove_file(&path);
        }
        let mut size = size;
        // What a daemon leaves that is killed while it writes is no damage.
        if newest && !read && walked.torn {
            tracing::warn!(path = %path.display(), offset = walked.end, bytes = size - walked.end, "cutting off a torn end of the spill");
            self.medium.open_to_write(&path)?.set_len(walked.end)?;
            found.cut += size - walked.end;
            size = walked.end;
        }
        if let (Some(first), Some(last)) = (walked.first, walked.last) {
            found.first.get_or_insert(first);
            found.last = Some(last);
            self.end = self.end.max(last.0.saturating_add(1));
        }
        self.bytes += size;
        self.waiting += walked.events;
        self.files.push_back(File { events: walked.events, read, ..File::new(number, size) });
        Ok(())
    }

    fn path(&self, number: u64, read: bool) -> PathBuf {
        self.dir.join(format!("{number:010}.{}", if read { "read" } else { "spill" }))
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Bytes of its files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Events that have not been handed out.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Appends the entries of a batch. After an error nothing of it is there.
    pub fn append(&mut self, batch: &Batch, first: u64) -> io::Result<()> {
        if self.tail.as_ref().is_none_or(|tail| tail.size >= SPILL_FILE_BYTES) {
            self.tail = None;
            let (number, header) = (self.next_file, Header::new(first));
            let path = self.path(number, false);
            let file = self.medium.create(&path)?;
            if let Err(why) = file.write_all_at(&header.to_bytes(), 0) {
                // An empty file in the way of nobody; it takes the place that is perhaps lacking.
                let _ = self.medium.remove_file(&path);
                return Err(why);
            }
            self.next_file += 1;
            let size = FILE_HEADER as u64;
            self.bytes += size;
            self.files.push_back(File::new(number, size));
            self.tail = Some(Tail { file, header, size });
        }
        let (Some(tail), Some(entry)) = (&mut self.tail, self.files.back_mut()) else {
            return Err(io::Error::other("internal error: the spill has no file to append to"));
        };
        let mut bytes = Vec::with_capacity(batch.footprint());
        for ((entry, _), n) in batch.entries().zip(0_u64..) {
            tail.header.write_record((&mut bytes, tail.size), &entry, first.wrapping_add(n), false)?;
        }
        if let Err(why) = tail.file.write_all_at(&bytes, tail.size) {
            // Should this fail, too, what was written of it is damage.
            let _ = tail.file.set_len(tail.size);
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

    /// Puts batches in front of everything else, for the next daemon. They may be stored already.
    pub fn prepend(&mut self, batches: &[(Arc<Batch>, u64)]) -> io::Result<()> {
        let Some((_, first)) = batches.first() else { return Ok(()) };
        let header = Header::new(*first);
        let mut bytes = header.to_bytes();
        for (batch, first) in batches {
            for ((entry, _), n) in batch.entries().zip(0_u64..) {
                header.write_record((&mut bytes, 0), &entry, first.wrapping_add(n), true)?;
            }
        }
        let number = self.files.front().map_or(self.next_file, |file| file.number) - 1;
        let path = self.path(number, false);
        let written = self.medium.create(&path).and_then(|file| file.write_all_at(&bytes, 0));
        if written.is_err() {
            let _ = self.medium.remove_file(&path);
        }
        written
    }

    /// The next events, about [`SPILL_READ_BYTES`] of them; `None` if everything has been handed out. After an error the same
    /// is tried again by the next call, until a file has failed [`SPILL_READ_TRIES`] times: then what cannot be read of it is
    /// passed over like damage.
    pub fn next_piece(&mut self) -> io::Result<Option<Piece>> {
        loop {
            if self.front.is_none() && !self.begin_next()? {
                // What comes between this and the next spilling goes past the disk.
                let (first, after) = self.expected.take().unwrap_or((self.end, None));
                let lost = Some(self.end.saturating_sub(first)).filter(|lost| *lost > 0);
                if lost.is_none() && !std::mem::take(&mut self.damage_open) {
                    return Ok(None);
                }
                self.damage_open = false;
                let hole = Some(Hole { lost, after });
                return Ok(Some(Piece { batch: Batch::default(), first, file: 0, hole }));
            }
            let Some(front) = &mut self.front else { return Ok(None) };
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
                    Ok(Step::Record(len)) => len,
                    Ok(Step::Damage(bytes)) => {
                        (file.damaged, self.damage, self.damage_open) = (true, self.damage + 1, true);
                        let path = self.dir.join(format!("{number:010}.read"));
                        let offset = front.reader.at() - bytes;
                        tracing::error!(path = %path.display(), offset, bytes, "a damaged stretch of the spill is passed over");
                        continue;
                    }
                    Ok(Step::End) => {
                        ended = true;
                        break;
                    }
                    Err(error) => {
                        failure = Some(error);
                        break;
                    }
                };
                let Some(record) = front.reader.record(len) else { break };
                let hole = self.expected.filter(|(expected, _)| *expected < record.number);
                if hole.is_some() && piece.is_some() {
                    break;
                }
                self.damage_open = false;
                let hole = hole.map(|(expected, after)| Hole { lost: Some(record.number - expected), after });
                let readable = record.push_to(&mut batch, front.unsure);
                if !readable && piece.is_some() {
                    // Numbers within a piece have no gaps, so it is skipped at the start of the next one.
                    break;
                }
                // Behind a hole one that is not readable is one more of the events missing there.
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
            let read = batch.len() as u64 + skipped;
            self.waiting -= read.min(self.waiting);
            file.events -= read.min(file.events);
            self.unreadable += skipped;
            if let Some((first, hole)) = piece {
                file.under_way += 1;
                return Ok(Some(Piece { batch, first, file: number, hole }));
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
            self.waiting -= file.events.min(self.waiting);
            (file.done, file.events) = (true, 0);
            self.front = None;
            self.tidy();
        }
    }

    /// Begins to read the next file; false if there is none.
    fn begin_next(&mut self) -> io::Result<bool> {
        let Some(at) = self.files.iter().position(|file| !file.done) else { return Ok(false) };
        let is_tail = at + 1 == self.files.len();
        let Some(file) = self.files.get(at) else { return Ok(false) };
        let (number, was_read, failures) = (file.number, file.read, file.failures);
        let opened = self.open_front(number, was_read, failures >= SPILL_READ_TRIES);
        let Some(file) = self.files.get_mut(at) else { return Ok(false) };
        if is_tail {
            // What comes now goes into a file of its own.
            self.tail = None;
        }
        match opened {
            Ok(Some(reader)) => {
                file.read = true;
                if let (None, Some(first)) = (self.expected, reader.header().first) {
                    self.expected = Some((first, None));
                }
                // Only what was being handed over when a daemon ended may be stored already.
                self.front = Some(Front { reader, number, unsure: was_read });
                Ok(true)
            }
            Err(error) if file.failures < SPILL_READ_TRIES => {
                file.failures += 1;
                Err(error)
            }
            refused => {
                let path = self.dir.join(format!("{number:010}.read"));
                let error = refused.err().map(|error| error.to_string());
                tracing::error!(path = %path.display(), error, "a file of the spill cannot be read and is passed over");
                (file.read, file.damaged) = (true, true);
                (self.damage, self.damage_open) = (self.damage + 1, true);
                self.waiting -= file.events.min(self.waiting);
                (file.done, file.events) = (true, 0);
                self.tidy();
                self.begin_next()
            }
        }
    }

    /// Opens a file to hand it over; `None` if it has no header that can be read.
    fn open_front(&self, number: u64, was_read: bool, past_errors: bool) -> io::Result<Option<Reader>> {
        let path = self.path(number, true);
        if !was_read && self.path(number, false).exists() {
            self.medium.rename(&self.path(number, false), &path)?;
        }
        let file = self.medium.open(&path)?;
        let size = file.size()?;
        Reader::open(file, size, past_errors)
    }

    /// A piece of that file is stored.
    pub fn stored(&mut self, file: u64) {
        if let Some(file) = self.files.iter_mut().find(|known| known.number == file) {
            file.under_way = file.under_way.saturating_sub(1);
        }
        self.tidy();
    }

    /// Removes files that are of no more use, and gives damaged ones the name under which they are kept.
    fn tidy(&mut self) {
        while self.files.front().is_some_and(|file| file.done && file.under_way == 0) {
            let Some(file) = self.files.pop_front() else { return };
            self.bytes -= file.size.min(self.bytes);
            let path = self.path(file.number, true);
            let done = if file.damaged {
                let kept = path.with_extension(DAMAGED);
                tracing::warn!(path = %kept.display(), "keeping a damaged file of the spill");
                self.medium.rename(&path, &kept).and_then(|()| self.bound_damaged())
            } else {
                self.medium.remove_file(&path)
            };
            if let Err(error) = done {
                // Handed over again at the next start, and known to be stored then.
                tracing::warn!(path = %path.display(), %error, "could not remove a file of the spill");
            }
        }
    }

    /// Removes the oldest of too many damaged files.
    fn bound_damaged(&self) -> io::Result<()> {
        let mut kept = Vec::new();
        for item in std::fs::read_dir(&self.dir)? {
            let path = item?.path();
            if path.extension().is_some_and(|ending| ending == DAMAGED) {
                kept.push(path);
            }
        }
        kept.sort_unstable();
        let too_many = kept.len().saturating_sub(SPILL_DAMAGED_FILES);
        kept.iter().take(too_many).try_for_each(|path| self.medium.remove_file(path))
    }
}

const DAMAGED: &str = "damaged";
