//! Reads a spill file record by record, and skips damage and unreadable sectors.

use std::io;

use super::record::{FILE_HEADER, Header, RECORD_HEADER, Record};
use crate::base::clock::Micros;
use crate::base::limits::{SECTOR_BYTES, SPILL_READ_BYTES};
use crate::store::vfs::FsFile;

/// The next item of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadStep {
    /// A record of this many bytes.
    Record(usize),
    /// This many invalid bytes, which the reader has skipped.
    Damage(u64),
    End,
}

#[derive(Debug)]
pub(super) struct Reader {
    file: Box<dyn FsFile>,
    header: Header,
    at: u64,
    size: u64,
    /// Bytes of the file, starting at `window_at`.
    window: Vec<u8>,
    window_at: u64,
    /// Read unreadable sectors as zero bytes.
    past_errors: bool,
}

impl Reader {
    /// Reads the header of a file; `None` without a readable one.
    pub(super) fn open(
        file: Box<dyn FsFile>,
        size: u64,
        past_errors: bool,
    ) -> io::Result<Option<Self>> {
        let unknown = Header::new(0);
        let mut reader = Self {
            file,
            header: unknown,
            at: 0,
            size,
            window: Vec::new(),
            window_at: 0,
            past_errors,
        };

        let Some(header) = Header::read(reader.load(0, FILE_HEADER)?) else {
            return Ok(None);
        };
        (reader.header, reader.at) = (header, FILE_HEADER as u64);
        Ok(Some(reader))
    }

    pub(super) fn header(&self) -> Header {
        self.header
    }

    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Skip unreadable sectors from now on.
    pub(super) fn read_past_errors(&mut self) {
        self.past_errors = true;
    }

    /// The next item. An error does not change the position.
    pub(super) fn step(&mut self) -> io::Result<ReadStep> {
        if self.at >= self.size {
            return Ok(ReadStep::End);
        }

        if let Some(len) = self.record_at(self.at)? {
            return Ok(ReadStep::Record(len));
        }

        // Byte by byte, because a record may begin anywhere behind damage.
        let mut behind = self.size;
        for at in self.at + 1..self.size {
            if self.record_at(at)?.is_some() {
                behind = at;
                break;
            }
        }

        // The file may have become shorter.
        let damaged = behind.min(self.size).saturating_sub(self.at);
        self.at += damaged;

        Ok(if damaged == 0 {
            ReadStep::End
        } else {
            ReadStep::Damage(damaged)
        })
    }

    /// The record found by [`Reader::step`], of `len` bytes.
    pub(super) fn record(&self, len: usize) -> Option<Record<'_>> {
        let from = usize::try_from(self.at.checked_sub(self.window_at)?).ok()?;
        self.header
            .record(self.window.get(from..from.checked_add(len)?)?)
    }

    /// Advances past a record of `len` bytes.
    pub(super) fn pass(&mut self, len: usize) {
        self.at += len as u64;
    }

    /// Length of a valid record at an offset.
    fn record_at(&mut self, at: u64) -> io::Result<Option<usize>> {
        let header = self.header;
        let bytes = self.load(at, RECORD_HEADER)?;
        let Some(len) = bytes
            .get(..RECORD_HEADER)
            .and_then(|bytes| header.record_len(bytes, at))
        else {
            return Ok(None);
        };

        // The header's checksum has only 32 bits, so the payload's must match as well.
        let bytes = self.load(at, len)?;
        Ok(bytes
            .get(..len)
            .and_then(|bytes| header.record(bytes))
            .map(|_| len))
    }

    /// The bytes from `at` on: at least `wanted`, fewer at the end of the file.
    fn load(&mut self, at: u64, wanted: usize) -> io::Result<&[u8]> {
        loop {
            let left = usize::try_from(self.size.saturating_sub(at)).unwrap_or(usize::MAX);
            let from = at
                .checked_sub(self.window_at)
                .and_then(|from| usize::try_from(from).ok());
            let there =
                from.filter(|from| self.window.len() >= from.saturating_add(wanted.min(left)));

            if let Some(from) = there {
                return Ok(self.window.get(from..).unwrap_or_default());
            }

            self.window.clear();
            let mut window = std::mem::take(&mut self.window);
            window.resize(left.min(wanted.max(SPILL_READ_BYTES)), 0);

            match self.file.read_exact_at(&mut window, at) {
                Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => {
                    // Truncated by another process; record numbers show the loss.
                    self.size = self.file.size()?.min(self.size - 1);
                    continue;
                }

                // The caller has given up on retrying the file, so the rest of it counts.
                Err(_) if self.past_errors => self.read_sectors(&mut window, at),
                read => read?,
            }

            (self.window, self.window_at) = (window, at);
        }
    }

    /// Reads sector by sector; unreadable ones become zero bytes, which are not valid records.
    fn read_sectors(&self, window: &mut [u8], at: u64) {
        let mut offset = at;
        let mut rest = window;
        while !rest.is_empty() {
            let in_sector = usize::try_from(offset % SECTOR_BYTES as u64).unwrap_or(0);
            let len = (SECTOR_BYTES - in_sector).min(rest.len());
            let (sector, behind) = rest.split_at_mut(len);
            if self.file.read_exact_at(sector, offset).is_err() {
                sector.fill(0);
            }
            offset += len as u64;
            rest = behind;
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct FileScan {
    pub(super) events: u64,
    pub(super) first: Option<(u64, Micros)>,
    pub(super) last: Option<(u64, Micros)>,
    pub(super) end: u64,
    pub(super) damaged: bool,
    /// Only an incomplete record follows the last valid one.
    pub(super) torn: bool,
}

pub(super) fn scan(file: Box<dyn FsFile>, size: u64) -> io::Result<FileScan> {
    let mut scan = FileScan::default();

    // Too short for a header, or never written before a power loss: empty, not damaged.
    if size < FILE_HEADER as u64 || is_zeros(&*file, size)? {
        return Ok(scan);
    }

    let Some(mut reader) = Reader::open(file, size, false)? else {
        return Ok(FileScan {
            damaged: true,
            ..scan
        });
    };

    scan.end = reader.at();
    loop {
        match reader.step()? {
            ReadStep::Record(len) => {
                if let Some(record) = reader.record(len) {
                    let here = (record.number, record.at);
                    scan.first.get_or_insert(here);
                    scan.last = Some(here);
                }
                scan.events += 1;
                reader.pass(len);
                scan.end = reader.at();
            }
            ReadStep::Damage(_) => scan.damaged = true,
            ReadStep::End => break,
        }
    }

    // A record that announces more bytes than there are was interrupted while it was written.
    if scan.end < size {
        let header = reader.header();
        let bytes = reader.load(scan.end, RECORD_HEADER)?;
        let len = bytes
            .get(..RECORD_HEADER)
            .map(|bytes| header.record_len(bytes, scan.end));
        scan.torn = len.is_none_or(|len| len.is_some_and(|len| scan.end + len as u64 > size));
    }

    Ok(scan)
}

/// Whether the file is all zeros: a power loss came before any of its bytes were written.
fn is_zeros(file: &dyn FsFile, size: u64) -> io::Result<bool> {
    let mut bytes = vec![0; SPILL_READ_BYTES];
    let mut at = 0;

    while at < size {
        let len = bytes
            .len()
            .min(usize::try_from(size - at).unwrap_or(usize::MAX));
        let part = bytes.get_mut(..len).unwrap_or_default();
        file.read_exact_at(part, at)?;
        if part.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += len as u64;
    }

    Ok(true)
}
