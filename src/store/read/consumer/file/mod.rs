//! The file `CONSUMERS`: all consumers with their cursors. It is neither derived from the log nor
//! part of it.
//!
//! # On disk
//!
//! Text. A title, then lines that each hold a consumer as it was at some time; the last line of a
//! name counts. The file is appended to, and rewritten when it has grown.
//!
//! ```text
//! saltcellar consumers 1
//! <xxh3-64 of the JSON, 16 hexadecimal digits> {"name": .., "cursor": .., ..}
//! <as above> {"name": .., "deleted": true}
//! ```
//!
//! A line whose checksum does not match (an incomplete write, damage) is ignored: an earlier line
//! of that name counts, whose cursor is lower, so events are delivered again and none is skipped. A
//! sector that cannot be read is damage like any other; the file is kept as `CONSUMERS.damaged`. A
//! line with a valid checksum that this release cannot read is preserved.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::ConsumerRecord;
use crate::base::file_fault::FileFault;
use crate::base::limits::CONSUMER_FILE_GROWTH;
use crate::store::error::{StoreError, io_at};
use crate::store::format::open_small;
use crate::store::tools::verify::small_files::Fault;
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
    /// Numbers of the lines that were ignored at the start.
    malformed: Vec<usize>,
    /// Whether a part of the file could not be read at the start.
    is_unreadable: bool,
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

        let content = open_small(&*fs, &path)?.unwrap_or_default();
        let text = String::from_utf8_lossy(&content.bytes);
        let mut lines = text.lines();
        let title = lines.next().unwrap_or(TITLE);
        // A title that cannot be read is no other release's; the lines have checksums.
        if title != TITLE && !content.is_damaged() {
            let what = format!(
                "line 1: expected `{TITLE}`, found {title:?}; the release that wrote the file can read it"
            );
            return Err(StoreError::Corrupt {
                path,
                offset: 0,
                what,
            });
        }

        let (mut records, mut foreign) = (BTreeMap::new(), BTreeMap::new());
        let mut malformed = Vec::new();
        for (number, line) in (2..).zip(lines) {
            // Ignored, not fatal: see above for what counts instead.
            let Some(json) = checked(line) else {
                tracing::error!(path = %path.display(), line = number, "line of the consumers ignored: checksum mismatch");
                malformed.push(number);
                continue;
            };
            // Not JSON of this release. Without a name it cannot replace an earlier line.
            let Ok(Line { name, deleted }) = serde_json::from_str(json) else {
                foreign.insert(format!("line {number}"), line.to_owned());
                malformed.push(number);
                continue;
            };

            // The last line of a name counts, even if this release cannot read it.
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
                    malformed.push(number);
                }
            }
        }

        // The first change rewrites it: the end may be an incomplete line.
        let file = Self {
            is_unreadable: content.is_damaged(),
            path,
            fs,
            open: None,
            len: 0,
            base: 0,
            foreign: foreign.into_values().collect(),
            malformed,
        };
        Ok((file, records))
    }

    /// The lines that were ignored at the start.
    pub(super) fn fault(&self) -> Option<FileFault> {
        let meaning = "their consumers are missing, or continue at an earlier position; see `saltcellar consumers list`";
        if self.is_unreadable {
            // Which lines it had is unknown.
            let problem = format!("a part could not be read at the start: {meaning}");
            return Some(FileFault::new(&self.path, problem));
        }
        FileFault::of_lines(&self.path, &self.malformed, meaning)
    }

    /// Saves changes: `record` is the new state of `name`, `None` for a deleted consumer; `all` are
    /// the consumers before the change. With `sync`, it is durable on return, otherwise it survives
    /// the end of the process.
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

        // Appending is one write of one line. The file is rewritten once it has doubled.
        let has_room = self.len + line.len() as u64 <= 2 * self.base + CONSUMER_FILE_GROWTH;
        if let Some(file) = self.open.as_ref().filter(|_| has_room) {
            let written = file.write_all_at(line.as_bytes(), self.len);
            // Unsynced, the line survives the death of the process in the page cache.
            let written = written.and_then(|()| if sync { file.sync_data() } else { Ok(()) });
            self.len += line.len() as u64;
            return written.map_err(|why| {
                // Its content is unknown.
                self.open = None;
                io_at("append to", &self.path)(why)
            });
        }

        // Rewritten as a whole, which is durable in any case.
        self.open = None;
        let mut text = format!("{TITLE}\n");
        for other in all.filter(|other| other.name != name) {
            text += &self::line(other)?;
        }
        if record.is_some() {
            text += &line;
        }
        // Another release may read them.
        for line in &self.foreign {
            text += line;
            text.push('\n');
        }

        self.fs
            .write_whole(&self.path, text.as_bytes())
            .map_err(io_at("write", &self.path))?;

        let file = self
            .fs
            .open_to_write(&self.path)
            .map_err(io_at("open for writing", &self.path))?;
        (self.open, self.len, self.base) = (Some(file), text.len() as u64, text.len() as u64);
        Ok(())
    }
}

/// What is wrong with the content of the file.
pub(crate) fn faults(bytes: &[u8]) -> Vec<Fault> {
    // Only whole lines: a crash may have left a part of one at the end.
    let whole = memchr::memrchr(b'\n', bytes).map_or(0, |end| end + 1);
    let text = String::from_utf8_lossy(bytes.get(..whole).unwrap_or_default());
    let mut lines = (1..).zip(text.lines());
    let mut found = Vec::new();
    // The lines behind an unknown title have a format of another release.
    if lines.next().is_none_or(|(_, title)| title != TITLE) {
        found.push(Fault::at(
            1,
            format!("expected `{TITLE}`: no consumer can be read"),
        ));
        return found;
    }

    for (line, text) in lines {
        // The same two steps as at a start: a name, then the record.
        let is_read = checked(text).is_some_and(|json| {
            let name = serde_json::from_str::<Line>(json);
            name.is_ok_and(|name| {
                name.deleted || serde_json::from_str::<ConsumerRecord>(json).is_ok()
            })
        });
        if !is_read {
            found.push(Fault::at(
                line,
                "damaged: an earlier line of the consumer counts, or none",
            ));
        }
    }

    if whole < bytes.len() {
        found.push(Fault::unfinished("an incomplete last line"));
    }
    found
}

fn line(record: &impl Serialize) -> Result<String, StoreError> {
    let json = serde_json::to_string(record)
        .map_err(|_| StoreError::Broken("a consumer that is not JSON"))?;
    Ok(format!("{:016x} {json}\n", xxh3_64(json.as_bytes())))
}

/// The JSON of a line, if its checksum holds.
fn checked(line: &str) -> Option<&str> {
    let (sum, json) = line.split_once(' ')?;
    (u64::from_str_radix(sum, 16).ok()? == xxh3_64(json.as_bytes())).then_some(json)
}

#[cfg(test)]
mod tests;
