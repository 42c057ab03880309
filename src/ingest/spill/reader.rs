//! Reading a file of the spill: record by record, past damage, and past sectors that cannot be read.

use std::io;

use super::record::{FILE_HEADER, Header, Record};
use crate::clock::Micros;
use crate::limits::{SECTOR_BYTES, SPILL_READ_BYTES};
use crate::store::medium::MediumFile;

/// What comes next in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// A record of so many bytes.
    Record(usize),
    /// So many bytes that are no record; the reader is behind them.
    Damage(u64),
    /// Nothing.
    End,
}

/// A position in a file of the spill.
#[derive(Debug)]
pub(super) struct Reader {
    file: Box<dyn MediumFile>,
    header: Header,
    at: u64,
    size: u64,
    /// Bytes of the file, from `window_at` on.
    window: Vec<u8>,
    window_at: u64,
    /// Sectors that cannot be read count as zero bytes.
    past_errors: bool,
}

impl Reader {
    /// Reads the header of a file; `None` if it has none that can be read.
    pub(super) fn open(file: Box<dyn MediumFile>, size: u64, past_errors: bool) -> io::Result<Option<Self>> {
        let unknown = Header::new(0);
        let mut reader =
            Self { file, header: unknown, at: 0, size, window: Vec::new(), window_at: 0, past_errors };
        let Some(header) = Header::read(reader.load(0, FILE_HEADER)?) else { return Ok(None) };
        (reader.header, reader.at) = (header, header.len as u64);
        Ok(Some(reader))
    }

    pub(super) fn header(&self) -> Header {
        self.header
    }

    /// Where it stands.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// From now on sectors that cannot be read are passed over.
    pub(super) fn read_past_errors(&mut self) {
        self.past_errors = true;
    }

    /// What comes next. After an error it stands where it stood.
    pub(super) fn step(&mut self) -> io::Result<Step> {
        if self.at >= self.size {
            return Ok(Step::End);
        }
        if let Some(len) = self.record_at(self.at)? {
            return Ok(Step::Record(len));
        }
        let mut behind = self.size;
        if self.header.is_searchable() {
            for at in self.at + 1..self.size {
                if self.record_at(at)?.is_some() {
                    behind = at;
                    break;
                }
            }
        }
        // The file may turn out to be shorter than it was.
        let damaged = behind.min(self.size).saturating_sub(self.at);
        self.at += damaged;
        Ok(if damaged == 0 { Step::End } else { Step::Damage(damaged) })
    }

    /// The record that [`Reader::step`] has found, of `len` bytes.
    pub(super) fn record(&self, len: usize) -> Option<Record<'_>> {
        let from = usize::try_from(self.at.checked_sub(self.window_at)?).ok()?;
        self.header.record(self.window.get(from..from.checked_add(len)?)?)
    }

    /// Goes on behind a record of `len` bytes.
    pub(super) fn pass(&mut self, len: usize) {
        self.at += len as u64;
    }

    /// Bytes of the whole record at an offset.
    fn record_at(&mut self, at: u64) -> io::Result<Option<usize>> {
        let header = self.header;
        let bytes = self.load(at, header.record_header())?;
        let Some(len) = bytes.get(..header.record_header()).and_then(|bytes| header.record_len(bytes, at))
        else {
            return Ok(None);
        };
        let bytes = self.load(at, len)?;
        Ok(bytes.get(..len).and_then(|bytes| header.record(bytes)).map(|_| len))
    }

    /// The bytes from `at` on: `wanted` of them or more, fewer if the file ends before.
    fn load(&mut self, at: u64, wanted: usize) -> io::Result<&[u8]> {
        loop {
            let left = usize::try_from(self.size.saturating_sub(at)).unwrap_or(usize::MAX);
            let from = at.checked_sub(self.window_at).and_then(|from| usize::try_from(from).ok());
            let there = from.filter(|from| self.window.len() >= from.saturating_add(wanted.min(left)));
            if let Some(from) = there {
                return Ok(self.window.get(from..).unwrap_or_default());
            }
            self.window.clear();
            let mut window = std::mem::take(&mut self.window);
            window.resize(left.min(wanted.max(SPILL_READ_BYTES)), 0);
            match self.file.read_exact_at(&mut window, at) {
                Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => {
                    // Cut short by somebody else; what is missing shows in the numbers.
                    self.size = self.file.size()?.min(self.size - 1);
                    continue;
                }
                Err(_) if self.past_errors => self.read_sectors(&mut window, at),
                read => read?,
            }
            (self.window, self.window_at) = (window, at);
        }
    }

    /// Reads sector by sector; those that fail become zero bytes, which are no record.
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

/// What reading a file through found.
#[derive(Debug, Default)]
pub(super) struct Walked {
    /// Good records.
    pub(super) events: u64,
    /// Number and arrival of the first.
    pub(super) first: Option<(u64, Micros)>,
    /// Number and arrival of the last.
    pub(super) last: Option<(u64, Micros)>,
    /// Where the last one ends.
    pub(super) end: u64,
    /// There are bytes that are no records.
    pub(super) damaged: bool,
    /// Behind the last good record is the beginning of one, and nothing else.
    pub(super) torn: bool,
}

/// Reads a file through.
pub(super) fn walk(file: Box<dyn MediumFile>, size: u64) -> io::Result<Walked> {
    let mut walked = Walked::default();
    if size < FILE_HEADER as u64 || is_zeros(&*file, size)? {
        return Ok(walked);
    }
    let Some(mut reader) = Reader::open(file, size, false)? else {
        return Ok(Walked { damaged: true, ..walked });
    };
    walked.end = reader.at();
    loop {
        match reader.step()? {
            Step::Record(len) => {
                if let Some(record) = reader.record(len) {
                    let here = (record.number, record.at);
                    walked.first.get_or_insert(here);
                    walked.last = Some(here);
                }
                walked.events += 1;
                reader.pass(len);
                walked.end = reader.at();
            }
            Step::Damage(_) => walked.damaged = true,
            Step::End => break,
        }
    }
    if walked.end < size {
        let header = reader.header();
        let bytes = reader.load(walked.end, header.record_header())?;
        let len = bytes.get(..header.record_header()).map(|bytes| header.record_len(bytes, walked.end));
        walked.torn = len.is_none_or(|len| len.is_some_and(|len| walked.end + len as u64 > size));
    }
    Ok(walked)
}

/// Was nothing of it written before a power cut?
fn is_zeros(file: &dyn MediumFile, size: u64) -> io::Result<bool> {
    let mut bytes = vec![0; SPILL_READ_BYTES];
    let mut at = 0;
    while at < size {
        let len = bytes.len().min(usize::try_from(size - at).unwrap_or(usize::MAX));
        let part = bytes.get_mut(..len).unwrap_or_default();
        file.read_exact_at(part, at)?;
        if part.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += len as u64;
    }
    Ok(true)
}
