//! The manifest of a backup.
//!
//! # On disk
//!
//! ```text
//! MANIFEST        text, one item per line, written last and replaced atomically
//!   saltcellar backup, format 2
//!   store format <version>
//!   store <public id of the store>
//!   made <microseconds since 1970 UTC> by saltcellar <version>
//!   sequence <number>                                all sequence numbers below may have been assigned
//!   skipped <first> <end>                            numbers from `first` to before `end` were never assigned; any number of lines
//!   log <class> <first-seq> <last-seq> <file> <bytes> <xxh3-128, hex> <size> <mtime, ns> <inode> <sealed|growing|dropped>
//!   small <name> <file> <bytes> <xxh3-128, hex>
//!   end <lines above> <xxh3-128 of all bytes above, hex>
//! ```
//!
//! File names are relative to the backup's directory. Size, mtime and inode are taken from the
//! source: an unchanged file is not reread. A `dropped` segment is no longer in the store; a backup
//! keeps it by default. The public id is one-way: it reveals nothing of the store id.

use std::fmt::Write as _;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use crate::skipped::SkippedNumbers;
use crate::tools::files::{self, Hash};
use crate::tools::{ToolError, layout};
use saltcellar_model::{SETTINGS, SeqNo, is_class_name};

const TITLE: &str = "saltcellar backup, format 2";

/// The state of a segment at the last backup that saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SegmentState {
    /// Finished and immutable.
    Sealed,
    Growing,
    /// No longer in the store.
    Dropped,
}

impl SegmentState {
    const ALL: [(SegmentState, &'static str); 3] = [
        (SegmentState::Sealed, "sealed"),
        (SegmentState::Growing, "growing"),
        (SegmentState::Dropped, "dropped"),
    ];

    fn word(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(state, _)| *state == self)
            .map_or("", |(_, word)| word)
    }
}

/// Detects changes of a source file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileVersion {
    /// Bytes.
    pub(crate) size: u64,
    /// Time of modification, nanoseconds since 1970.
    pub(crate) mtime_ns: i128,
    pub(crate) inode: u64,
}

/// A segment's log in the backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogCopy {
    pub(crate) class_name: String,
    pub(crate) first_seq: SeqNo,
    /// The last sequence number in the copy; the number before `first_seq` if it contains no
    /// entries.
    pub(crate) last_seq: SeqNo,
    /// Name in the backup.
    pub file: String,
    pub(crate) bytes: u64,
    pub(crate) hash: Hash,
    /// The source file at the time of the copy.
    pub(crate) version: FileVersion,
    /// State of the segment when it was copied.
    pub(crate) state: SegmentState,
}

/// A small file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmallFile {
    /// Name in the store.
    pub(crate) name: String,
    /// Name in the backup.
    pub file: String,
    pub(crate) bytes: u64,
    pub(crate) hash: Hash,
}

/// The content of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Manifest {
    pub(crate) store_format: u32,
    /// The public id of the store (`log::file::public_id`).
    pub(crate) store: String,
    /// Time of the backup, microseconds since 1970.
    pub(crate) made: i64,
    /// All sequence numbers below may have been assigned.
    pub(crate) sequence: u64,
    pub(crate) skipped: Vec<SkippedNumbers>,
    /// The logs.
    pub logs: Vec<LogCopy>,
    /// The small files.
    pub smalls: Vec<SmallFile>,
}

impl Manifest {
    /// Reads the manifest of a backup; `None` if the directory has none.
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>, ToolError> {
        let path = dir.join("MANIFEST");
        let Some(text) = files::text(&path)? else {
            return Ok(None);
        };
        match Self::parse(&text) {
            Ok(manifest) => Ok(Some(manifest)),
            Err(what) => Err(ToolError::Damaged { path, what }),
        }
    }

    /// Parses a manifest; the error describes the defect.
    pub fn parse(text: &str) -> Result<Self, String> {
        // The last line contains the checksum of all lines before it, so it is taken off first.
        let (body, end) = text
            .trim_end_matches('\n')
            .rsplit_once('\n')
            .map(|(body, end)| (text.get(..=body.len()).unwrap_or_default(), end))
            .ok_or("not a manifest")?;

        // Three different errors, because each calls for something else: another directory, another
        // release, another backup.
        if !text.starts_with("saltcellar backup, format ") {
            return Err("not a manifest".to_owned());
        }
        if !text.starts_with(&format!("{TITLE}\n")) {
            let found = text.lines().next().unwrap_or_default();
            return Err(format!(
                "the manifest has `{found}`, this release reads `{TITLE}`; use the release that made the backup"
            ));
        }

        let expected = format!(
            "end {} {:032x}",
            body.lines().count(),
            xxh3_128(body.as_bytes())
        );
        if end != expected {
            return Err(
                "checksum mismatch: the manifest is damaged. `saltcellar store salvage` copies the readable entries of the backup's \
                 directory to a new store; make the next backup in another directory"
                    .to_owned(),
            );
        }

        let mut manifest = Manifest::default();
        for line in body.lines().skip(1) {
            read_line(line, &mut manifest).ok_or_else(|| format!("unknown line `{line}`"))?;
        }
        Ok(manifest)
    }

    /// The last sequence number of an entry in the backup.
    pub(crate) fn last_seq(&self) -> SeqNo {
        // Settings are numbered separately.
        let of_entries = self.logs.iter().filter(|log| log.class_name != SETTINGS);
        let last = of_entries.map(|log| log.last_seq).max();
        last.unwrap_or_default()
    }

    /// Writes the manifest, durably and atomically.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), ToolError> {
        Ok(files::write_small(&dir.join("MANIFEST"), self.text())?)
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{TITLE}\nstore format {}\nstore {}\nmade {} by saltcellar {}\nsequence {}\n",
            self.store_format,
            self.store,
            self.made,
            env!("CARGO_PKG_VERSION"),
            self.sequence
        );
        // Writing to a String cannot fail.
        for range in &self.skipped {
            let _ = writeln!(text, "skipped {} {}", range.first.0, range.end.0);
        }

        for log in &self.logs {
            let FileVersion {
                size,
                mtime_ns,
                inode,
            } = log.version;
            let _ = writeln!(
                text,
                "log {} {} {} {} {} {:032x} {size} {mtime_ns} {inode} {}",
                log.class_name,
                log.first_seq.0,
                log.last_seq.0,
                log.file,
                log.bytes,
                log.hash,
                log.state.word()
            );
        }

        for small in &self.smalls {
            let _ = writeln!(
                text,
                "small {} {} {} {:032x}",
                small.name, small.file, small.bytes, small.hash
            );
        }

        // The last line proves that the manifest is complete.
        let lines = text.lines().count();
        let hash = xxh3_128(text.as_bytes());
        let _ = writeln!(text, "end {lines} {hash:032x}");
        text
    }
}

fn read_line(line: &str, manifest: &mut Manifest) -> Option<()> {
    let fields: Vec<&str> = line.split(' ').collect();
    let hash = |hex: &str| Hash::from_str_radix(hex, 16).ok();
    // `store format` before `store`: both begin with the same word.
    match fields.as_slice() {
        ["store", "format", version] => manifest.store_format = version.parse().ok()?,
        ["store", id] => (*id).clone_into(&mut manifest.store),
        ["skipped", first, end] => manifest.skipped.push(SkippedNumbers {
            first: SeqNo(first.parse().ok()?),
            end: SeqNo(end.parse().ok()?),
        }),
        ["made", at, "by", ..] => manifest.made = at.parse().ok()?,
        ["sequence", number] => manifest.sequence = number.parse().ok()?,
        [
            "log",
            class,
            first_seq,
            last_seq,
            file,
            bytes,
            hex,
            size,
            mtime_ns,
            inode,
            state,
        ] => {
            let log = LogCopy {
                class_name: (*class).to_owned(),
                first_seq: SeqNo(first_seq.parse().ok()?),
                last_seq: SeqNo(last_seq.parse().ok()?),
                file: (*file).to_owned(),
                bytes: bytes.parse().ok()?,
                hash: hash(hex)?,
                version: FileVersion {
                    size: size.parse().ok()?,
                    mtime_ns: mtime_ns.parse().ok()?,
                    inode: inode.parse().ok()?,
                },
                state: SegmentState::ALL
                    .iter()
                    .find(|(_, word)| word == state)
                    .map(|(state, _)| *state)?,
            };
            manifest.logs.push(log);
        }
        ["small", name, file, bytes, hex] => manifest.smalls.push(SmallFile {
            name: (*name).to_owned(),
            file: (*file).to_owned(),
            bytes: bytes.parse().ok()?,
            hash: hash(hex)?,
        }),
        _ => return None,
    }

    // Checked despite the checksum: no name may lead out of the directory.
    let log = manifest.logs.last();
    let is_class = |name: &str| is_class_name(name) || name == SETTINGS;
    let log_is_fine = log.is_none_or(|log| is_class(&log.class_name) && is_inside(&log.file));
    let small = manifest.smalls.last();
    let small_is_fine =
        small.is_none_or(|small| layout::is_small_file(&small.name) && is_inside(&small.file));
    (log_is_fine && small_is_fine).then_some(())
}

fn is_inside(file: &str) -> bool {
    !file.is_empty()
        && Path::new(file)
            .components()
            .all(|part| matches!(part, std::path::Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let log = LogCopy {
            class_name: "jobs".to_owned(),
            first_seq: SeqNo(7),
            last_seq: SeqNo(11),
            file: "log/jobs/00000000000000000007-0".to_owned(),
            bytes: 64,
            hash: 5,
            version: FileVersion {
                size: 64,
                mtime_ns: -3,
                inode: 9,
            },
            state: SegmentState::Growing,
        };
        let small = SmallFile {
            name: "FORMAT".to_owned(),
            file: "FORMAT-1".to_owned(),
            bytes: 1,
            hash: 2,
        };
        Manifest {
            store_format: 2,
            store: "0123456789abcdef".to_owned(),
            made: 1,
            sequence: 12,
            skipped: vec![SkippedNumbers {
                first: SeqNo(3),
                end: SeqNo(5),
            }],
            logs: vec![log],
            smalls: vec![small],
        }
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        assert_eq!(Manifest::parse(&manifest().text()), Ok(manifest()));
    }

    #[test]
    fn a_changed_or_foreign_manifest_is_rejected() {
        let text = manifest().text();
        for (from, to, fields) in [
            ("sequence 12", "sequence 13", "checksum"),
            ("\nend", "\nlog\nend", "checksum"),
            ("backup, format 2", "backup, format 3", "format 3"),
            ("saltcellar", "pepper", "not a manifest"),
        ] {
            let error = Manifest::parse(&text.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(fields), "{error}");
        }
        assert!(Manifest::parse("").is_err() && Manifest::parse("\n\n").is_err());
        let mut astray = manifest();
        astray.logs[0].file = "../../etc/passwd".to_owned();
        assert!(
            Manifest::parse(&astray.text())
                .unwrap_err()
                .contains("unknown line")
        );
    }
}
