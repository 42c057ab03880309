//! The record of a clean stop: the ends of the active logs, and the files that cannot be rebuilt.
//! Only this record shows that the end of an active log, or such a file as a whole, is missing. It
//! is a file, and not among the settings, because it also contains the end of the settings.
//!
//! # Invariant
//!
//! The file is written when nothing changes any more, and removed by the next start before anything
//! changes. A crash therefore leaves none, and what it says is never out of date.
//!
//! # On disk
//!
//! ```text
//! STOPPED    saltcellar stopped 1
//!            log <class> <first-seq> <entries> <last-seq>      an active log with entries
//!            settings <position>                               the last change of the settings
//!            file <bytes> <xxh3-128, hex, or -> <name>         a file, by its name within the state directory; - if only its size counts
//!            sum <xxh3-64 of the lines above, hex>
//! ```

use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use super::class::Classes;
use super::damage::FileFaults;
use super::error::{StoreError, io_at};
use super::format::{read_small, sync_dir, with_sum, without_sum};
use super::segment::list::Segments;
use super::state_dir::StateDir;
use super::vfs::{Disk, Fs};
use saltcellar_model::SeqNo;

pub(crate) const STOPPED: &str = "STOPPED";

const TITLE: &str = "saltcellar stopped 1";

/// An active log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoppedLog {
    pub(crate) class_name: String,
    pub(crate) first_seq: SeqNo,
    pub(crate) entries: u64,
    pub(crate) last_seq: SeqNo,
}

/// A file that cannot be rebuilt.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StoppedFile {
    /// Within the state directory.
    name: String,
    bytes: u64,
    /// `None` if only the size counts: the file has checksums, and may be large.
    hash: Option<u128>,
}

/// The content of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Stopped {
    pub(crate) logs: Vec<StoppedLog>,
    /// The position of the last change of the settings.
    pub(crate) settings: Option<u64>,
    files: Vec<StoppedFile>,
}

impl Stopped {
    /// Reads the file of a state directory: `None` if it does not exist, `Some(None)` if it is
    /// malformed.
    #[expect(
        clippy::option_option,
        reason = "a missing file and a malformed one have other consequences"
    )]
    pub(crate) fn read(state_dir: &Path) -> Result<Option<Option<Self>>, StoreError> {
        let content = read_small(&Disk, &state_dir.join(STOPPED))?;
        Ok(content.map(|content| Self::parse(&content.bytes)))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut lines = without_sum(bytes)?.lines();

        let mut stopped = Self::default();
        // Another format than this release writes. Nothing can be concluded from it.
        if lines.next()? != TITLE {
            return None;
        }
        for line in lines {
            let (kind, rest) = line.split_once(' ')?;
            match kind {
                "log" => {
                    let mut words = rest.split(' ');
                    let class_name = words.next()?.to_owned();
                    let mut number = || words.next()?.parse().ok();
                    stopped.logs.push(StoppedLog {
                        class_name,
                        first_seq: SeqNo(number()?),
                        entries: number()?,
                        last_seq: SeqNo(number()?),
                    });
                }
                "settings" => stopped.settings = Some(rest.parse().ok()?),
                "file" => {
                    // The name is last, because only it may contain spaces.
                    let mut words = rest.splitn(3, ' ');
                    let bytes = words.next()?.parse().ok()?;
                    let hash = match words.next()? {
                        "-" => None,
                        hex => Some(u128::from_str_radix(hex, 16).ok()?),
                    };
                    let name = words.next()?.to_owned();
                    stopped.files.push(StoppedFile { name, bytes, hash });
                }
                _ => return None,
            }
        }
        Some(stopped)
    }

    fn text(&self) -> String {
        let logs = self.logs.iter().map(|log| {
            let (first, last) = (log.first_seq.0, log.last_seq.0);
            format!("log {} {first} {} {last}\n", log.class_name, log.entries)
        });
        let files = self.files.iter().map(|file| {
            let hash = file
                .hash
                .map_or("-".to_owned(), |hash| format!("{hash:032x}"));
            format!("file {} {hash} {}\n", file.bytes, file.name)
        });

        let settings = self
            .settings
            .map(|position| format!("settings {position}\n"));
        let lines: String = logs.chain(settings).chain(files).collect();
        with_sum(&format!("{TITLE}\n{lines}"))
    }

    /// The files that are not as the stop left them, with a description of each.
    pub(crate) fn changed_files(&self, state_dir: &Path) -> Result<Vec<ChangedFile>, StoreError> {
        let mut changed = Vec::new();

        for file in &self.files {
            let found = describe(state_dir, &file.name, file.hash.is_some())?;
            let what = match found {
                None => "missing since the last clean stop".to_owned(),
                Some(found) if found == *file => continue,
                Some(found) if found.bytes == file.bytes => {
                    "changed since the last clean stop".to_owned()
                }
                Some(found) => format!(
                    "changed since the last clean stop: {} bytes instead of {}",
                    found.bytes, file.bytes
                ),
            };
            changed.push((file.name.clone(), what));
        }
        Ok(changed)
    }
}

fn describe(state_dir: &Path, name: &str, hashed: bool) -> Result<Option<StoppedFile>, StoreError> {
    let path = state_dir.join(name);
    // Read as a whole: these files are small.
    let (bytes, hash) = if hashed {
        let Some(content) = read_small(&Disk, &path)? else {
            return Ok(None);
        };
        (content.bytes.len() as u64, Some(xxh3_128(&content.bytes)))
    } else {
        match std::fs::metadata(&path) {
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            meta => (
                meta.map_err(io_at("read the metadata of", &path))?.len(),
                None,
            ),
        }
    };

    let name = name.to_owned();
    Ok(Some(StoppedFile { name, bytes, hash }))
}

/// A file that is not as the last stop left it: its name within the state directory, and what has
/// changed.
pub(super) type ChangedFile = (String, String);

/// Reads the file, logs which files are not as it says, and removes it. Called before anything
/// changes.
pub(super) fn take(
    fs: &dyn Fs,
    state_dir: &Path,
) -> Result<(Stopped, Vec<ChangedFile>), StoreError> {
    let path = state_dir.join(STOPPED);
    let stopped = match Stopped::read(state_dir)? {
        None => return Ok((Stopped::default(), Vec::new())),
        Some(Some(stopped)) => stopped,
        Some(None) => {
            // Nothing is known, but the start must go on.
            tracing::error!(path = %path.display(), "file damaged, entries missing since the last stop cannot be detected: run `saltcellar store verify`");
            Stopped::default()
        }
    };
    let changed = stopped.changed_files(state_dir)?;
    for (name, what) in &changed {
        tracing::error!(
            path = %state_dir.join(name).display(), what,
            "file changed while the daemon was stopped, it cannot be rebuilt: if nobody changed it on purpose, look for it in a backup"
        );
    }

    // Before anything changes: after a crash, no stored statement may be false.
    forget(fs, state_dir)?;
    Ok((stopped, changed))
}

/// Removes the file, if it exists, because something is about to change. Durable on return.
pub(crate) fn forget(fs: &dyn Fs, state_dir: &Path) -> Result<(), StoreError> {
    let path = state_dir.join(STOPPED);
    // Absent after a crash.
    match fs.remove_file(&path) {
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => {
            removed.map_err(io_at("remove", &path))?;
            sync_dir(fs, state_dir)
        }
    }
}

impl Stopped {
    /// Reports entries that active logs had at the last stop and do not have now; returns their
    /// number.
    pub(super) fn report_missing(
        &self,
        (classes, segments): (&Classes, &Segments),
        faults: &FileFaults,
    ) -> u64 {
        let mut missing = 0;
        // A class that was removed from the configuration is known from its directory.
        for log in &self.logs {
            let class = classes.find(&log.class_name);
            let segment = class
                .map(|class| segments.of(class))
                .unwrap_or_default()
                .into_iter()
                .find(|segment| segment.first_seq == log.first_seq);
            let found = segment.map_or(0, |segment| segment.totals().entries);

            let entries = log.entries.saturating_sub(found);
            if entries > 0 {
                tracing::error!(
                    class = log.class_name,
                    segment = log.first_seq.0,
                    entries,
                    "entries missing that were stored at the last clean stop: run `saltcellar store verify` for details, and look for them in a backup"
                );
                faults.report_log(
                    &log.class_name,
                    log.first_seq,
                    format!(
                        "{entries} entries are missing that were stored at the last clean stop"
                    ),
                );
            }
            missing += entries;
        }
        missing
    }
}

/// Records the end of a clean stop: the ends of active logs, the position of the settings, and the
/// files that cannot be rebuilt, by their names within the state directory, and whether their content
/// counts.
pub(super) fn note(
    dir: &StateDir,
    segments: &Segments,
    settings: u64,
    kept: Vec<(String, bool)>,
) -> Result<(), StoreError> {
    let mut stopped = Stopped::default();
    // The index of an active log is in memory. Each sealed log has a row in the catalogue.
    for segment in segments.all() {
        let totals = segment.totals();
        if segment.memory().is_some() && totals.entries > 0 {
            stopped.logs.push(StoppedLog {
                class_name: segment.class_name.to_string(),
                first_seq: segment.first_seq,
                entries: totals.entries,
                last_seq: totals.last_seq,
            });
        }
    }
    stopped.settings = Some(settings);
    for (name, hashed) in kept {
        stopped.files.extend(describe(dir.path(), &name, hashed)?);
    }

    let path = dir.path().join(STOPPED);
    dir.fs()
        .write_whole(&path, stopped.text().as_bytes())
        .map_err(io_at("write", &path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read_as_it_was_written() {
        let log = StoppedLog {
            class_name: "jobs".to_owned(),
            first_seq: SeqNo(1),
            entries: 3,
            last_seq: SeqNo(9),
        };
        let file = |name: &str, hash| StoppedFile {
            name: name.to_owned(),
            bytes: 7,
            hash,
        };
        let files = vec![file("SEQUENCE", Some(5)), file("spill/a b/1-1.spill", None)];
        let stopped = Stopped {
            logs: vec![log],
            settings: Some(7),
            files,
        };
        let text = stopped.text();
        assert_eq!(Stopped::parse(text.as_bytes()), Some(stopped));
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert_eq!(Stopped::parse(&bytes), None, "byte {at}");
        }
    }
}
