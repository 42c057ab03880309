//! A look into the spool of the Salt extension: what waits there for the daemon, and what was lost on the way.
//!
//! The extension owns these files (`salt/src/saltext/saltcellar/utils/spool.py` has their form) and hands them over itself;
//! here they are only read, without a lock, a few kilobytes at most. A figure may be a moment old. Whatever the files hold,
//! the look comes to an end.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::clock::Micros;
use crate::limits::SPOOL_LOOK_BYTES;
use crate::wire::msgpack::{Reader, as_int};

/// Bytes of the file with the state: two offsets, a count, a checksum.
const STATE_LEN: usize = 24;

/// Bytes before a record: its length and its checksum.
const HEADER_LEN: usize = 8;

/// What one spool holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spool {
    /// Its directory.
    pub dir: PathBuf,
    /// Bytes that wait to be handed over.
    pub waiting_bytes: u64,
    /// When the first of them was spooled; unknown if nothing waits, or if it cannot be read.
    pub oldest: Option<Micros>,
    /// Bytes of records that the daemon kept failing on, for a person to look at.
    pub aside_bytes: u64,
    /// Entries that were not stored, by reason.
    pub lost: Vec<(String, u64)>,
}

impl Spool {
    /// Looks into a directory; `None` if there is no spool.
    pub fn look(dir: &Path) -> io::Result<Option<Self>> {
        let Some((file, len)) = open(&dir.join("spool"))? else {
            return Ok(None);
        };
        let offset = handed_over(dir)?.filter(|offset| *offset <= len).unwrap_or(0);
        let waiting_bytes = len - offset;
        Ok(Some(Self {
            dir: dir.to_owned(),
            waiting_bytes,
            oldest: if waiting_bytes > 0 { spooled_at(&file, offset)? } else { None },
            aside_bytes: open(&dir.join("spool.aside"))?.map_or(0, |(_, len)| len),
            lost: lost(dir)?,
        }))
    }

    /// Entries that were not stored, whatever the reason.
    pub fn lost_entries(&self) -> u64 {
        self.lost.iter().fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }
}

fn open(path: &Path) -> io::Result<Option<(File, u64)>> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => match File::open(path) {
            Ok(file) => Ok(Some((file, found.len()))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        },
        Ok(_) => Err(io::Error::new(ErrorKind::InvalidData, format!("{} is no file", path.display()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The first bytes of a file from `at` on, at most so many.
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

/// The offset that the state names, if its checksum holds.
fn handed_over(dir: &Path) -> io::Result<Option<u64>> {
    let Some((file, _)) = open(&dir.join("spool.state"))? else {
        return Ok(None);
    };
    let state = bytes_at(&file, 0, STATE_LEN)?;
    let holds = |(body, crc): (&[u8], &[u8])| crc == crc32fast::hash(body).to_be_bytes();
    let whole = state.split_at_checked(STATE_LEN - 4).is_some_and(holds);
    Ok(state.first_chunk().filter(|_| whole).map(|offset| u64::from_be_bytes(*offset)))
}

/// When the record at `offset` was made. The extension puts the time first.
fn spooled_at(file: &File, offset: u64) -> io::Result<Option<Micros>> {
    let record = bytes_at(file, offset, SPOOL_LOOK_BYTES)?;
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
    let text = bytes_at(&file, 0, SPOOL_LOOK_BYTES)?;
    // While it is being written it may be half a text; the next look finds it whole.
    let Ok(serde_json::Value::Object(counters)) = serde_json::from_slice(&text) else {
        return Ok(Vec::new());
    };
    let number = |(name, n): (String, serde_json::Value)| Some((name, n.as_u64()?));
    Ok(counters.into_iter().filter_map(number).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::msgpack::Writer;

    fn record(at: i64) -> Vec<u8> {
        let mut w = Writer::new();
        w.array(2).str("returner").map(3).str("at").int(at).str("load").map(0).str("replay").bool(true);
        let payload = w.into_bytes();
        let len = u32::try_from(payload.len()).unwrap();
        [&len.to_be_bytes()[..], &crc32fast::hash(&payload).to_be_bytes(), &payload].concat()
    }

    fn state(offset: u64, end: u64) -> Vec<u8> {
        let body = [&offset.to_be_bytes()[..], &end.to_be_bytes(), &[0; 4]].concat();
        [&body[..], &crc32fast::hash(&body).to_be_bytes()].concat()
    }

    #[test]
    fn what_waits_and_what_was_lost_is_read_as_the_extension_wrote_it() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Spool::look(dir.path()).unwrap(), None);
        let (first, second) = (record(1_000), record(2_000));
        fs::write(dir.path().join("spool"), [&first[..], &second].concat()).unwrap();
        let look = || Spool::look(dir.path()).unwrap().unwrap();
        assert_eq!((look().waiting_bytes, look().oldest), (2 * first.len() as u64, Some(Micros(1_000))));
        let (len, end) = (first.len() as u64, 2 * first.len() as u64);
        fs::write(dir.path().join("spool.state"), state(len, end)).unwrap();
        fs::write(dir.path().join("spool.aside"), [0; 7]).unwrap();
        fs::write(dir.path().join("spool.counters"), "{\"spool_full\": 3, \"torn\": 1}\n").unwrap();
        assert_eq!((look().waiting_bytes, look().oldest, look().aside_bytes), (len, Some(Micros(2_000)), 7));
        assert_eq!(
            (look().lost, look().lost_entries()),
            (vec![("spool_full".into(), 3), ("torn".into(), 1)], 4)
        );
        fs::write(dir.path().join("spool"), "").unwrap();
        assert_eq!((look().waiting_bytes, look().oldest), (0, None));
    }

    #[test]
    fn damage_ends_in_a_figure_or_an_error_and_never_in_a_panic() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("spool"), b"\xff\xff\xff\xff\0\0\0\0\x92\xa1").unwrap();
        for broken in [&b""[..], b"short", &[0xff; 24], &state(1 << 60, 5)] {
            fs::write(dir.path().join("spool.state"), broken).unwrap();
            fs::write(dir.path().join("spool.counters"), broken).unwrap();
            let spool = Spool::look(dir.path()).unwrap().unwrap();
            assert_eq!((spool.waiting_bytes, spool.oldest, spool.lost), (10, None, vec![]));
        }
        fs::remove_file(dir.path().join("spool")).unwrap();
        fs::create_dir(dir.path().join("spool")).unwrap();
        assert!(Spool::look(dir.path()).is_err());
    }
}
