//! The spill on disk: what a bus said while the store did not keep up, in files, first in first out.
//!
//! ```text
//! <state-dir>/spill/<bus>/     one directory per bus: its path, with - for what is no letter or digit, and a hash of it
//!   BUS                        the bus's path, for people
//!   SEEN                       text: microseconds, the number of an event: all up to there is stored or in these files
//!   0000000007.read            a file that is being handed over: its records may be stored already
//!   0000000008.spill           one that is not
//! ```
//!
//! | byte | a file: `SCSPILL1`, then records |
//! |---|---|
//! | 0 | bytes of the payload, u32 LE |
//! | 4 | crc32 (IEEE) of bytes 8 to the end of the payload, u32 LE |
//! | 8 | number of the event: one more than that of the event before, u64 LE |
//! | 16 | payload: arrival in microseconds i64 LE; 0 event or 1 gap u8; 1 if it may be stored already, u8; 1 if it carried the master's key, u8; zero u8; bytes of the tag u32 LE; tag; data |
//!
//! Nothing here has been acknowledged to anybody, so nothing is synced: a killed daemon finds everything again, a power cut may
//! take the newest. Data has passed the gate before it comes here.
//!
//! # Invariant
//!
//! Records come out in the order they went in. A file goes once each of its events is stored. Bytes of a file are checked
//! before they are believed; a torn end is cut off, and a number that is missing tells of a hole.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::clock::Micros;
use crate::ingest::gap;
use crate::limits::{ENTRY_BYTES_MAX, SPILL_FILE_BYTES, SPILL_READ_BYTES, TAG_BYTES_MAX};
use crate::model::{Batch, Entry, Flags, Kind, Source};
use crate::store::medium::{Medium, MediumFile};
use crate::wire::salt_event::{Event, Form, read_event};

pub(super) const MAGIC: &[u8; 8] = b"SCSPILL1";
/// Numbers of files begin here, so that there are numbers for files in front of the first.
const FIRST_FILE: u64 = 1_000_000;
/// No file of ours has this number or a greater one: a thousand a second for ten thousand years.
const FILES_END: u64 = 1 << 48;
const HEADER: usize = 16;
const FIXED: usize = 16;

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
    /// A hole in front of it: events that are missing, and when the one before them arrived.
    pub hole: Option<(u64, Micros)>,
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
    /// Bytes cut off torn ends.
    pub cut: u64,
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
    /// The number and the arrival of the last record handed out.
    last_out: Option<(u64, Micros)>,
    bytes: u64,
    /// Events that have not been handed out.
    waiting: u64,
    /// Events that were skipped because Salt's codec cannot read them.
    unreadable: u64,
}

/// The file that is written to.
#[derive(Debug)]
struct Tail {
    file: Box<dyn MediumFile>,
    size: u64,
}

/// The file that is read.
#[derive(Debug)]
struct Front {
    file: Box<dyn MediumFile>,
    number: u64,
    at: u64,
    size: u64,
    unsure: bool,
}

/// A record in bytes that have been checked.
pub(super) struct Record<'a> {
    pub(super) number: u64,
    at: Micros,
    pub(super) gap: bool,
    pub(super) unsure: bool,
    has_key: bool,
    tag: &'a [u8],
    pub(super) data: &'a [u8],
    pub(super) len: usize,
}

/// The record at the beginning of `bytes`: `Ok(None)` if they are too few, an error if they are none.
pub(super) fn record(bytes: &[u8]) -> Result<Option<Record<'_>>, ()> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
    let word =
        |at: usize| head.get(at..at + 4).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b));
    let (len, crc) = (word(0) as usize, word(4));
    if !(FIXED..=RECORD_BYTES_MAX).contains(&len) {
        return Err(());
    }
    let Some(payload) = rest.get(..len) else { return Ok(None) };
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head.get(8..).unwrap_or_default());
    hasher.update(payload);
    if hasher.finalize() != crc {
        return Err(());
    }
    let number = head.last_chunk().map_or(0, |b| u64::from_le_bytes(*b));
    let (fixed, rest) = payload.split_first_chunk::<FIXED>().ok_or(())?;
    let at = fixed.first_chunk().map_or(0, |b| i64::from_le_bytes(*b));
    let tag_len = fixed.last_chunk().map_or(0, |b| u32::from_le_bytes(*b));
    let (tag, data) = rest.split_at_checked(tag_len as usize).ok_or(())?;
    let [gap, unsure, has_key] = [8, 9, 10].map(|at| fixed.get(at) == Some(&1));
    Ok(Some(Record { number, at: Micros(at), gap, unsure, has_key, tag, data, len: HEADER + len }))
}

/// Bytes of the longest record behind its header.
const RECORD_BYTES_MAX: usize = FIXED + TAG_BYTES_MAX + ENTRY_BYTES_MAX;

/// Appends a record; fails if it is longer than [`record`] takes.
pub(super) fn write_record(
    out: &mut Vec<u8>,
    entry: &Entry<'_>,
    number: u64,
    unsure: bool,
) -> io::Result<()> {
    let from = out.len();
    let broken = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
    let len = FIXED + entry.tag.len() + entry.body.len();
    let fits = |n: usize| u32::try_from(n).ok().filter(|_| len <= RECORD_BYTES_MAX);
    let (Some(length), Some(tag_len)) = (fits(len), fits(entry.tag.len())) else {
        return Err(broken("internal error: an entry is longer than the spill takes"));
    };
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&entry.at.0.to_le_bytes());
    let has_key = entry.flags.has(Flags::MASTER_KEY);
    out.extend_from_slice(&[u8::from(entry.kind == Kind::Gap), u8::from(unsure), u8::from(has_key), 0]);
    out.extend_from_slice(&tag_len.to_le_bytes());
    out.extend_from_slice(entry.tag);
    out.extend_from_slice(entry.body);
    assert_eq!(out.len() - from, HEADER + len, "a record is as long as it says");
    let crc = crc32fast::hash(out.get(from + 8..).expect("what was appended"));
    out.get_mut(from + 4..from + 8).expect("the header").copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

impl Record<'_> {
    /// The event, as the bus source would have made it. Of no use for a gap.
    pub(super) fn event(&self, unsure: bool) -> Event<'_> {
        let source = if unsure || self.unsure { Source::SpilledBus } else { Source::Bus };
        let mut event = read_event(self.tag, self.data, source, self.at);
        if self.has_key {
            event.entry.flags = event.entry.flags.with(Flags::MASTER_KEY);
        }
        event
    }

    /// Puts the entry into a batch. False for an event that Salt's codec cannot read: files of earlier releases hold such events.
    fn push_to(&self, batch: &mut Batch, unsure: bool) -> bool {
        if self.gap {
            batch.push(&gap::entry(self.tag, self.data, self.at), None);
            return true;
        }
        let event = self.event(unsure);
        if let Form::Unreadable(_) = event.form {
            return false;
        }
        batch.push(&event.entry, Some(event.prints));
        true
    }
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
            last_out: None,
            bytes: 0,
            waiting: 0,
            unreadable: 0,
        }
    }

    /// Events skipped since the last call because Salt's codec cannot read them.
    pub fn take_unreadable(&mut self) -> u64 {
        std::mem::take(&mut self.unreadable)
    }

    /// Opens a directory, or makes it, and reads through what is there. Torn ends are cut off.
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
        for (number, read) in names {
            queue.next_file = number + 1;
            queue.walk(number, read, &mut found)?;
        }
        found.events = queue.waiting;
        Ok((queue, found))
    }

    /// Is this a file, and does it begin as ours do? One that a crash left without its beginning does.
    fn is_spill(&self, number: u64, read: bool) -> Result<(), String> {
        let path = self.path(number, read);
        match std::fs::symlink_metadata(&path) {
            Ok(meta) if !meta.is_file() => return Err("it is not a file".to_owned()),
            Ok(meta) if meta.len() < MAGIC.len() as u64 => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
        let mut begins = [0; MAGIC.len()];
        let opened = self.medium.open_to_write(&path);
        match opened.and_then(|file| file.read_exact_at(&mut begins, 0)) {
            // A power cut may leave zeros where something was to be written.
            Ok(()) if begins == *MAGIC || begins == [0; MAGIC.len()] => Ok(()),
            Ok(()) => Err("it does not begin as a file of the spill does".to_owned()),
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

    /// Reads a file through.
    fn walk(&mut self, number: u64, read: bool, found: &mut Found) -> io::Result<()> {
        let path = self.path(number, read);
        let file = self.medium.open_to_write(&path)?;
        let size = file.size()?;
        let mut front = Front { file, number, at: MAGIC.len() as u64, size, unsure: read };
        let mut magic = [0; 8];
        let begins =
            size >= MAGIC.len() as u64 && front.file.read_exact_at(&mut magic, 0).is_ok() && magic == *MAGIC;
        let mut events = 0;
        let mut end = if begins { MAGIC.len() as u64 } else { 0 };
        let mut buffer = Vec::new();
        while begins && front.fill(&mut buffer)? {
            let mut rest = buffer.as_slice();
            while let Ok(Some(record)) = record(rest) {
                let here = (record.number, record.at);
                found.first.get_or_insert(here);
                found.last = Some(here);
                events += 1;
                end += record.len as u64;
                rest = rest.get(record.len..).unwrap_or_default();
            }
            if end == front.at {
                break;
            }
            front.at = end;
        }
        if end < size {
            found.cut += size - end;
            tracing::warn!(path = %path.display(), offset = end, bytes = size - end, "cutting off a torn end of the spill");
            front.file.set_len(end)?;
        }
        self.bytes += end;
        self.waiting += events;
        self.files.push_back(File { number, size: end, events, read, under_way: 0, done: false });
        if events == 0 {
            self.files.pop_back();
            self.bytes -= end;
            self.medium.remove_file(&path)?;
        }
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
        let mut bytes = Vec::with_capacity(batch.bytes() + batch.len() * (HEADER + FIXED));
        for ((entry, _), n) in batch.entries().zip(0_u64..) {
            write_record(&mut bytes, &entry, first.wrapping_add(n), false)?;
        }
        if self.tail.as_ref().is_none_or(|tail| tail.size >= SPILL_FILE_BYTES) {
            self.tail = None;
            let number = self.next_file;
            let path = self.path(number, false);
            let file = self.medium.create(&path)?;
            if let Err(why) = file.write_all_at(MAGIC, 0) {
                // An empty file in the way of nobody; it takes the place that is perhaps lacking.
                let _ = self.medium.remove_file(&path);
                return Err(why);
            }
            self.next_file += 1;
            let size = MAGIC.len() as u64;
            self.bytes += size;
            self.files.push_back(File { number, size, events: 0, read: false, under_way: 0, done: false });
            self.tail = Some(Tail { file, size });
        }
        let (Some(tail), Some(entry)) = (&mut self.tail, self.files.back_mut()) else {
            return Err(io::Error::other("internal error: the spill has no file to append to"));
        };
        if let Err(why) = tail.file.write_all_at(&bytes, tail.size) {
            // Should this fail, too, the start will cut it off.
            let _ = tail.file.set_len(tail.size);
            self.tail = None;
            return Err(why);
        }
        tail.size += bytes.len() as u64;
        entry.size = tail.size;
        entry.events += batch.len() as u64;
        self.bytes += bytes.len() as u64;
        self.waiting += batch.len() as u64;
        Ok(())
    }

    /// Puts batches in front of everything else, for the next daemon. They may be stored already.
    pub fn prepend(&mut self, batches: &[(Arc<Batch>, u64)]) -> io::Result<()> {
        if batches.is_empty() {
            return Ok(());
        }
        let mut bytes = MAGIC.to_vec();
        for (batch, first) in batches {
            for ((entry, _), n) in batch.entries().zip(0_u64..) {
                write_record(&mut bytes, &entry, first.wrapping_add(n), true)?;
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

    /// The next events, about [`SPILL_READ_BYTES`] of them; `None` if everything has been handed out.
    pub fn next_piece(&mut self) -> io::Result<Option<Piece>> {
        loop {
            if self.front.is_none() && !self.begin_next()? {
                // What comes between this and the next spilling goes past the disk.
                self.last_out = None;
                return Ok(None);
            }
            let Some(front) = &mut self.front else { return Ok(None) };
            let mut buffer = Vec::new();
            front.fill(&mut buffer)?;
            let mut rest = buffer.as_slice();
            let mut batch = Batch::with_room(buffer.len());
            let mut piece: Option<(u64, Option<(u64, Micros)>)> = None;
            let mut skipped = 0;
            while let Ok(Some(record)) = record(rest) {
                let expected = self.last_out.map(|(number, at)| (number.saturating_add(1), at));
                let hole = expected.filter(|(number, _)| *number < record.number);
                if hole.is_some() && piece.is_some() {
                    break;
                }
                let hole = hole.map(|(number, at)| (record.number - number, at));
                let readable = record.push_to(&mut batch, front.unsure);
                if !readable && piece.is_some() {
                    // Numbers within a piece have no gaps, so it is skipped at the start of the next one.
                    break;
                }
                front.at += record.len as u64;
                rest = rest.get(record.len..).unwrap_or_default();
                if !readable {
                    skipped += 1;
                    // Behind a hole it is one more of the events missing there.
                    if hole.is_none() {
                        self.last_out = Some((record.number, record.at));
                    }
                    continue;
                }
                piece.get_or_insert((record.number, hole));
                self.last_out = Some((record.number, record.at));
                if batch.bytes() >= SPILL_READ_BYTES {
                    break;
                }
            }
            let number = front.number;
            let Some(file) = self.files.iter_mut().find(|file| file.number == number) else {
                self.front = None;
                continue;
            };
            let read = batch.len() as u64 + skipped;
            self.waiting -= read.min(self.waiting);
            file.events -= read.min(file.events);
            self.unreadable += skipped;
            if let Some((first, hole)) = piece {
                file.under_way += 1;
                return Ok(Some(Piece { batch, first, file: number, hole }));
            }
            if skipped > 0 {
                continue;
            }
            // Its end, or bytes that went bad since they were written: the rest of the file is given up.
            if front.at < front.size {
                tracing::error!(
                    path = %self.dir.join(format!("{number:010}.read")).display(), offset = front.at,
                    bytes = front.size - front.at, "a damaged stretch of the spill is given up"
                );
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
        let (number, was_read, size) = (file.number, file.read, file.size);
        if !was_read {
            self.medium.rename(&self.path(number, false), &self.path(number, true))?;
        }
        if is_tail {
            // What comes now goes into a file of its own.
            self.tail = None;
        }
        let opened = self.medium.open(&self.path(number, true))?;
        if let Some(file) = self.files.get_mut(at) {
            file.read = true;
        }
        // Only what was being handed over when a daemon ended may be stored already.
        self.front = Some(Front { file: opened, number, at: MAGIC.len() as u64, size, unsure: was_read });
        Ok(true)
    }

    /// A piece of that file is stored.
    pub fn stored(&mut self, file: u64) {
        if let Some(file) = self.files.iter_mut().find(|known| known.number == file) {
            file.under_way = file.under_way.saturating_sub(1);
        }
        self.tidy();
    }

    /// Removes files that are of no more use.
    fn tidy(&mut self) {
        while self.files.front().is_some_and(|file| file.done && file.under_way == 0) {
            let Some(file) = self.files.pop_front() else { return };
            self.bytes -= file.size.min(self.bytes);
            let path = self.path(file.number, true);
            if let Err(error) = self.medium.remove_file(&path) {
                // Handed over again at the next start, and known to be stored then.
                tracing::warn!(path = %path.display(), %error, "could not remove a file of the spill");
            }
        }
    }
}

impl Front {
    /// Fills `buffer` from where reading stands, with a whole record at least if there is one. False at the end.
    fn fill(&mut self, buffer: &mut Vec<u8>) -> io::Result<bool> {
        let left = usize::try_from(self.size.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let mut wanted = left.min(SPILL_READ_BYTES);
        buffer.clear();
        if wanted < HEADER {
            return Ok(false);
        }
        buffer.resize(wanted, 0);
        self.file.read_exact_at(buffer, self.at)?;
        let len = buffer.first_chunk().map_or(0, |b| u32::from_le_bytes(*b) as usize);
        if len <= FIXED + TAG_BYTES_MAX + ENTRY_BYTES_MAX && HEADER + len > wanted && HEADER + len <= left {
            wanted = HEADER + len;
            buffer.resize(wanted, 0);
            self.file.read_exact_at(buffer, self.at)?;
        }
        Ok(true)
    }
}
