//! Holds: jobs that are exempt from retention.
//!
//! Holds are set by an administrator. They are in a small text file, written atomically: not in
//! sled, which may be rebuilt from the log, and not in the log, which contains only Salt's data.
//!
//! # On disk
//!
//! ```text
//! HOLDS    one line per job: jid, tab, time of the hold (microseconds since 1970), tab, reason
//! ```
//!
//! A malformed line is reported and preserved, so that an editing mistake loses no hold. While a
//! part of the file cannot be read, every job counts as held, and holds cannot be changed: a job
//! that is held by an unreadable line must not be deleted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;

use crate::base::clock::Micros;
use crate::base::file_fault::FileFault;
use crate::base::limits::{HOLD_REASON_BYTES_MAX, HOLDS_MAX};
use crate::model::JidKey;
use crate::store::error::{StoreError, io_at};
use crate::store::format::open_small;
use crate::store::tools::verify::small_files::Fault;
use crate::store::vfs::Fs;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) jid: String,
    /// Time of the first hold.
    pub(crate) since: Micros,
    pub(crate) reason: String,
}

#[derive(Debug)]
pub(crate) struct Holds {
    path: PathBuf,
    fs: Arc<dyn Fs>,
    /// Whether a part of the file cannot be read.
    is_unreadable: bool,
    list: RwLock<List>,
    /// Numbers of the malformed lines at the start.
    malformed: Vec<usize>,
}

#[derive(Debug, Default, Clone)]
struct List {
    holds: BTreeMap<String, Hold>,
    /// As they are in the file, without the line break.
    malformed: Vec<Vec<u8>>,
}

impl Holds {
    pub(crate) fn open(state_dir: &Path, fs: Arc<dyn Fs>) -> Result<Self, StoreError> {
        let path = state_dir.join("HOLDS");

        let content = open_small(&*fs, &path)?.unwrap_or_default();
        let mut list = List::default();
        let mut malformed = Vec::new();

        // Lines are kept in one of two forms, because a change writes the whole file again.
        for (line, text) in lines(&content.bytes) {
            if let Some(hold) = read_line(text) {
                list.holds.insert(hold.jid.clone(), hold);
            } else {
                tracing::error!(
                    path = %path.display(), line, "malformed hold, expected: jid, tab, microseconds since 1970, tab, reason"
                );
                list.malformed.push(text.to_owned());
                malformed.push(line);
            }
        }

        let is_unreadable = content.is_damaged();
        if is_unreadable {
            tracing::error!(
                path = %path.display(),
                "{UNREADABLE}"
            );
        }

        Ok(Self {
            path,
            fs,
            is_unreadable,
            list: RwLock::new(list),
            malformed,
        })
    }

    /// The lines of the file that are no holds.
    pub(in crate::store) fn fault(&self) -> Option<FileFault> {
        if self.is_unreadable {
            // Worse than malformed lines, and has another remedy.
            return Some(FileFault::new(&self.path, UNREADABLE));
        }
        let meaning =
            "the jobs in them are not held; correct or delete them, and restart the daemon";
        FileFault::of_lines(&self.path, &self.malformed, meaning)
    }

    /// Whether any job may be held.
    pub(in crate::store) fn is_unreadable(&self) -> bool {
        self.is_unreadable
    }

    /// All holds, sorted by jid.
    pub(crate) fn all(&self) -> Vec<Hold> {
        self.list.read().holds.values().cloned().collect()
    }

    /// Holds a job; for a held job, changes the reason only. Durable on return.
    pub(crate) fn hold(&self, jid: &str, reason: &str, now: Micros) -> Result<Hold, StoreError> {
        let refused =
            |what: String| StoreError::Refused(format!("cannot hold the job {jid:?}: {what}"));
        // They separate the fields and lines of the file.
        if jid.is_empty() || jid.contains(['\t', '\n', '\r']) {
            return Err(refused(
                "a jid must not be empty or contain tabs or line breaks".to_owned(),
            ));
        }

        // A reason is text for people, so it is adjusted instead of refused.
        let reason: String = reason
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();

        if reason.len() > HOLD_REASON_BYTES_MAX {
            return Err(refused(format!(
                "a reason has at most {HOLD_REASON_BYTES_MAX} bytes"
            )));
        }

        self.change(|list| {
            // A held job may change its reason at the limit.
            if list.holds.len() >= HOLDS_MAX && !list.holds.contains_key(jid) {
                return Err(refused(format!(
                    "the limit of {HOLDS_MAX} holds is reached; use a class with longer retention"
                )));
            }

            let fresh = || Hold {
                jid: jid.to_owned(),
                since: now,
                reason: String::new(),
            };

            let hold = list.holds.entry(jid.to_owned()).or_insert_with(fresh);
            hold.reason = reason;
            Ok(hold.clone())
        })
    }

    /// Ends a hold; false if the job was not held. Durable on return.
    pub(crate) fn release(&self, jid: &str) -> Result<bool, StoreError> {
        self.change(|list| Ok(list.holds.remove(jid).is_some()))
    }

    /// Keys and jids of all held jobs.
    pub(in crate::store) fn jids(&self) -> Vec<(JidKey, String)> {
        self.list
            .read()
            .holds
            .keys()
            .map(|jid| (JidKey::of(jid), jid.clone()))
            .collect()
    }

    /// Changes the list on disk, then in memory.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut List) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        // A new file would lose what the unreadable part held.
        if self.is_unreadable {
            return Err(StoreError::Refused(format!(
                "cannot change holds: {}: {UNREADABLE}",
                self.path.display()
            )));
        }

        // Locked until the file is written: two changes of the same list would lose one.
        let mut list = self.list.write();

        let mut fresh = list.clone();
        let outcome = change(&mut fresh)?;

        let holds = fresh
            .holds
            .values()
            .map(|h| format!("{}\t{}\t{}\n", h.jid, h.since.0, h.reason).into_bytes());
        let malformed = fresh
            .malformed
            .iter()
            .map(|line| [line.as_slice(), b"\n"].concat());
        let text: Vec<u8> = holds.chain(malformed).flatten().collect();

        self.fs
            .write_whole(&self.path, &text)
            .map_err(io_at("write", &self.path))?;
        *list = fresh;
        // In memory only after the disk: a hold that is acknowledged survives a crash.
        Ok(outcome)
    }
}

const UNREADABLE: &str = "a part cannot be read: every job counts as held, and holds cannot be changed; restore the file from a backup, or \
     remove it to end its holds, and restart the daemon";

/// What is wrong with the content of the file.
pub(crate) fn hold_faults(bytes: &[u8]) -> Vec<Fault> {
    let malformed = lines(bytes).filter(|(_, text)| read_line(text).is_none());
    malformed
        .map(|(line, _)| Fault::at(line as u64, "malformed hold: that job is not held"))
        .collect()
}

/// The lines that are not empty, with their numbers. Bytes, because an editor may have written
/// anything.
fn lines(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let all = (1..).zip(bytes.split(|byte| *byte == b'\n'));
    all.filter(|(_, line)| !without_return(line).is_empty())
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn read_line(line: &[u8]) -> Option<Hold> {
    let mut parts = without_return(line).splitn(3, |byte| *byte == b'\t');
    // A line without a valid time is not a hold: it may be any text.
    let jid = str::from_utf8(parts.next()?).ok()?;
    let since = Micros(str::from_utf8(parts.next()?).ok()?.parse().ok()?);
    // Text for people: the job is held, whatever it is.
    let reason = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();

    (!jid.is_empty()).then(|| Hold {
        jid: jid.to_owned(),
        since,
        reason,
    })
}

#[cfg(test)]
mod tests;
