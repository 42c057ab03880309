//! The file `CONSUMERS`: all consumers with their cursors. It is neither derived from the log nor part of it.
//!
//! # On disk
//!
//! Text. A title, then lines that each hold a consumer as it was at some time; the last line of a name counts. The file is appended to, and
//! rewritten when it has grown.
//!
//! ```text
//! saltcellar consumers 1
//! <xxh3-64 of the JSON, 16 hexadecimal digits> {"name": .., "cursor": .., ..}
//! <as above> {"name": .., "deleted": true}
//! ```
//!
//! A line whose checksum does not match (an incomplete write, damage) is ignored: an earlier line of that name counts, whose cursor is lower,
//! so events are delivered again and none is skipped. A line with a valid checksum that this release cannot read is preserved.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::ConsumerRecord;
use crate::base::limits::CONSUMER_FILE_GROWTH;
use crate::store::error::{StoreError, io_at};
use crate::store::format::read_if_exists;
use crate::store::vfs::{Fs, FsFile};

const TITLE: &str = "saltcellar consumers 1";

#[derive(Debug)]
pub(super) struct ConsumerFile {
    path: PathBuf,
    fs: Arc<dyn Fs>,
    /// `None` if the file must be rewritten first.
    open: Option<Box<dyn FsFile>>,
    len: u64,
    /// Length after it was last rewritten.
    base: u64,
    /// Lines of another release.
    foreign: Vec<String>,
}

#[derive(Deserialize)]
struct Line {
    name: String,
    #[serde(default)]
    deleted: bool,
}

impl ConsumerFile {
    /// Reads the file, if it exists.
    pub(super) fn open(
        state_dir: &Path,
        fs: Arc<dyn Fs>,
    ) -> Result<(Self, BTreeMap<String, ConsumerRecord>), StoreError> {
        let path = state_dir.join("CONSUMERS");
        let bytes = read_if_exists(&path)?.unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let mut lines = text.lines();
        let title = lines.next().unwrap_or(TITLE);
        if title != TITLE {
            let what = format!(
                "line 1: expected `{TITLE}`, found {title:?}; the release that wrote the file can read it"
            );
            return Err(StoreError::Corrupt { path, offset: 0, what });
        }
        let (mut records, mut foreign) = (BTreeMap::new(), BTreeMap::new());
        for (number, line) in (2..).zip(lines) {
            let Some(json) = checked(line) else {
                tracing::error!(path = %path.display(), line = number, "line of the consumers ignored: checksum mismatch");
                continue;
            };
            let Ok(Line { name, deleted }) = serde_json::from_str(json) else {
                foreign.insert(format!("line {number}"), line.to_owned());
                continue;
            };
            foreign.remove(&name);
            records.remove(&name);
            if deleted {
                continue;
            }
            match serde_json::from_str::<ConsumerRecord>(json) {
                Ok(record) => {
                    records.insert(name, record);
                }
                Err(error) => {
                    tracing::error!(path = %path.display(), line = number, consumer = name, %error, "consumer unreadable, keeping its line");
                    foreign.insert(name, line.to_owned());
                }
            }
        }
        // The first change rewrites it: the end may be an incomplete line.
        let file = Self { path, fs, open: None, len: 0, base: 0, foreign: foreign.into_values().collect() };
        Ok((file, records))
    }

    /// Saves changes: `record` is the new state of `name`, `None` for a deleted consumer; `all` are the consumers before the change. With
    /// `sync`, it is durable on return, otherwise it survives the end of the process.
    pub(super) fn save<'a>(
        &mut self,
        name: &str,
        record: Option<&'a ConsumerRecord>,
        all: impl Iterator<Item = &'a ConsumerRecord>,
        sync: bool,
    ) -> Result<(), StoreError> {
        let line = match record {
            Some(record) => line(record)?,
            None => line(&serde_json::json!({ "name": name, "deleted": true }))?,
        };
        let has_room = self.len + line.len() as u64 <= 2 * self.base + CONSUMER_FILE_GROWTH;
        if let Some(file) = self.open.as_ref().filter(|_| has_room) {
            let written = file.write_all_at(line.as_bytes(), self.len);
            let written = written.and_then(|()| if sync { file.sync_data() } else { Ok(()) });
            self.len += line.len() as u64;
            return written.map_err(|why| {
                // Its content is unknown.
                self.open = None;
                io_at("append to", &self.path)(why)
            });
        }
        self.open = None;
        let mut text = format!("{TITLE}\n");
        for other in all.filter(|other| other.name != name) {
            text += &self::line(other)?;
        }
        if record.is_some() {
            text += &line;
        }
        for line in &self.foreign {
            text += line;
            text.push('\n');
        }
        self.fs.write_whole(&self.path, text.as_bytes()).map_err(io_at("write", &self.path))?;
        let file = self.fs.open_to_write(&self.path).map_err(io_at("open for writing", &self.path))?;
        (self.open, self.len, self.base) = (Some(file), text.len() as u64, text.len() as u64);
        Ok(())
    }
}

fn line(record: &impl Serialize) -> Result<String, StoreError> {
    let json =
        serde_json::to_string(record).map_err(|_| StoreError::Broken("a consumer that is not JSON"))?;
    Ok(format!("{:016x} {json}\n", xxh3_64(json.as_bytes())))
}

/// The JSON of a line, if its checksum holds.
fn checked(line: &str) -> Option<&str> {
    let (sum, json) = line.split_once(' ')?;
    (u64::from_str_radix(sum, 16).ok()? == xxh3_64(json.as_bytes())).then_some(json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::SeqNo;
    use crate::store::vfs::Disk;

    fn open(dir: &Path) -> (ConsumerFile, BTreeMap<String, ConsumerRecord>) {
        ConsumerFile::open(dir, Arc::new(Disk)).unwrap()
    }

    fn record(name: &str, cursor: u64) -> ConsumerRecord {
        ConsumerRecord { name: name.to_owned(), cursor: SeqNo(cursor), ..ConsumerRecord::default() }
    }

    fn save(file: &mut ConsumerFile, all: &mut BTreeMap<String, ConsumerRecord>, record: ConsumerRecord) {
        file.save(&record.name, Some(&record), all.values(), true).unwrap();
        all.insert(record.name.clone(), record);
    }

    #[test]
    fn a_cut_or_a_flipped_bit_yields_earlier_cursors_and_never_later_ones() {
        let dir = tempfile::tempdir().unwrap();
        let (mut file, mut all) = open(dir.path());
        for cursor in 1..=5 {
            save(&mut file, &mut all, record("audit", cursor));
            save(&mut file, &mut all, record("sns", cursor * 10));
        }
        assert_eq!(open(dir.path()).1, all);
        let path = dir.path().join("CONSUMERS");
        let bytes = std::fs::read(&path).unwrap();
        let cursors = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            ConsumerFile::open(dir.path(), Arc::new(Disk)).ok().map(|(_, found)| {
                let cursor = |name| found.get(name).map_or(0, |record: &ConsumerRecord| record.cursor.0);
                [cursor("audit"), cursor("sns")]
            })
        };
        let mut before = [0, 0];
        for cut in TITLE.len()..=bytes.len() {
            let found = cursors(&bytes[..cut]).unwrap();
            assert!(found[0] >= before[0] && found[1] >= before[1], "cut at {cut}");
            before = found;
        }
        assert_eq!(before, [5, 50]);
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            let Some(found) = cursors(&bad) else {
                assert!(at < TITLE.len() + 1, "only a damaged title is an error: {at}");
                continue;
            };
            assert!(found[0] <= 5 && found[1] <= 50 && found[0] >= 3 && found[1] >= 30, "{at}: {found:?}");
        }
    }

    #[test]
    fn a_deleted_consumer_stays_deleted_and_a_foreign_line_is_preserved() {
        let dir = tempfile::tempdir().unwrap();
        let (mut file, mut all) = open(dir.path());
        save(&mut file, &mut all, record("audit", 1));
        save(&mut file, &mut all, record("sns", 1));
        file.save("sns", None, all.values(), true).unwrap();
        all.remove("sns");
        assert_eq!(open(dir.path()).1, all);
        let foreign = line(&serde_json::json!({ "name": "later", "cursor": "of another type" })).unwrap();
        let path = dir.path().join("CONSUMERS");
        let text = std::fs::read_to_string(&path).unwrap() + &foreign;
        std::fs::write(&path, text).unwrap();
        let (mut file, mut all) = open(dir.path());
        assert_eq!(all.len(), 1);
        save(&mut file, &mut all, record("audit", 2));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(&foreign) && text.lines().count() == 3, "{text}");
    }

    #[test]
    fn the_file_is_rewritten_when_it_has_grown() {
        let dir = tempfile::tempdir().unwrap();
        let (mut file, mut all) = open(dir.path());
        let mut rewritten = 0;
        for cursor in 1..20_000 {
            let before = file.len;
            save(&mut file, &mut all, record("audit", cursor));
            rewritten += u32::from(file.len < before);
            assert!(file.len <= 2 * file.base + CONSUMER_FILE_GROWTH);
        }
        assert!((1..100).contains(&rewritten), "{rewritten}");
        assert_eq!(open(dir.path()).1, all);
    }
}
