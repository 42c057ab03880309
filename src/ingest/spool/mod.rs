//! Status of the Salt extension's spool: waiting and lost entries.
//!
//! The extension owns these files (`salt/src/saltext/saltcellar/utils/spool.py` defines their format) and delivers their entries itself.
//! They are only read here, without a lock, a few kilobytes at most, so values can be slightly outdated. Any file content
//! is handled in bounded time.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::base::clock::Micros;
use crate::base::limits::SPOOL_PEEK_BYTES;
use crate::wire::msgpack::{Reader, as_int};

/// Bytes of the state file: two offsets, two counts, a checksum.
const STATE_LEN: usize = 32;

/// Bytes of a record's header: length, number of entries, checksum.
const HEADER_LEN: usize = 12;

/// The status of a spool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Spool {
    pub(crate) dir: PathBuf,
    pub(crate) waiting_bytes: u64,
    /// When the oldest of them was spooled; `None` if nothing waits, or if it cannot be read.
    pub(crate) oldest: Option<Micros>,
    /// Bytes of records that the daemon rejected repeatedly, kept for inspection.
    pub(crate) dead_letter_bytes: u64,
    /// Lost entries by reason.
    pub(crate) lost: Vec<(String, u64)>,
}

impl Spool {
    /// Inspects a directory; `None` if it contains no spool.
    pub(crate) fn inspect(dir: &Path) -> io::Result<Option<Self>> {
        let Some((file, len)) = open(&dir.join("spool"))? else {
            return Ok(None);
        };

        let offset = handed_over(dir)?
            .filter(|offset| *offset <= len)
            .unwrap_or(0);
        let waiting_bytes = len - offset;

        Ok(Some(Self {
            dir: dir.to_owned(),
            waiting_bytes,
            oldest: if waiting_bytes > 0 {
                spooled_at(&file, offset)?
            } else {
                None
            },
            dead_letter_bytes: open(&dir.join("spool.dead-letter"))?.map_or(0, |(_, len)| len),
            lost: lost(dir)?,
        }))
    }

    pub(crate) fn lost_entries(&self) -> u64 {
        self.lost
            .iter()
            .fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }
}

fn open(path: &Path) -> io::Result<Option<(File, u64)>> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => match File::open(path) {
            Ok(file) => Ok(Some((file, found.len()))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        },
        Ok(_) => Err(io::Error::new(
            ErrorKind::InvalidData,
            format!("{} is not a file", path.display()),
        )),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Up to `max` bytes of a file, starting at `at`.
fn bytes_at(file: &File, at: u64, max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; max];
    let mut len = 0;
    while let Some(rest) = bytes.get_mut(len..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, at + len as u64) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}

/// The offset in the state file, if its checksum matches.
fn handed_over(dir: &Path) -> io::Result<Option<u64>> {
    let Some((file, _)) = open(&dir.join("spool.state"))? else {
        return Ok(None);
    };
    let state = bytes_at(&file, 0, STATE_LEN)?;
    let holds = |(body, crc): (&[u8], &[u8])| crc == crc32fast::hash(body).to_be_bytes();
    let whole = state.split_at_checked(STATE_LEN - 4).is_some_and(holds);
    Ok(state
        .first_chunk()
        .filter(|_| whole)
        .map(|offset| u64::from_be_bytes(*offset)))
}

/// The time of the record at `offset`. The extension writes it first.
fn spooled_at(file: &File, offset: u64) -> io::Result<Option<Micros>> {
    let record = bytes_at(file, offset, SPOOL_PEEK_BYTES)?;
    let read = || {
        let mut reader = Reader::new(record.get(HEADER_LEN..)?);
        (reader.array().ok()? == 2).then_some(())?;
        reader.text().ok()?;
        for _ in 0..reader.map().ok()? {
            let (key, value) = (reader.text().ok()?, reader.value().ok()?);
            if key == "at" {
                return as_int(value).map(Micros);
            }
        }
        None
    };
    Ok(read())
}

fn lost(dir: &Path) -> io::Result<Vec<(String, u64)>> {
    let Some((file, _)) = open(&dir.join("spool.counters"))? else {
        return Ok(Vec::new());
    };
    let text = bytes_at(&file, 0, SPOOL_PEEK_BYTES)?;
    // A concurrent write can leave incomplete text; the next inspection reads it whole.
    let Ok(serde_json::Value::Object(counters)) = serde_json::from_slice(&text) else {
        return Ok(Vec::new());
    };
    let number = |(name, n): (String, serde_json::Value)| Some((name, n.as_u64()?));
    Ok(counters.into_iter().filter_map(number).collect())
}

#[cfg(test)]
mod tests;
