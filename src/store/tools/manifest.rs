//! A backup's list of what is in it.
//!
//! # On disk
//!
//! ```text
//! MANIFEST        text, one thing a line, written last and put into its place by renaming
//!   saltcellar backup, format 1
//!   store format <version>
//!   made <microseconds since 1970 UTC> by saltcellar <version>
//!   sequence <number>                                every number below may have been given out
//!   log <class> <first-seq> <file> <bytes> <xxh3-128, hex> <size> <mtime, ns> <inode> <sealed|growing|dropped>
//!   small <name> <file> <bytes> <xxh3-128, hex>
//!   end <lines above> <xxh3-128 of all bytes above, hex>
//! ```
//!
//! Files are named below the backup's directory. Size, mtime and inode are the source's: if they have not changed
//! since, the file is not read again. A `dropped` segment is no longer in the store; a backup keeps it unless told
//! otherwise.

use std::fmt::Write as _;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use super::files::{self, Hash};
use super::{ToolError, layout};
use crate::model::{SeqNo, is_class_name};

/// The first line.
const TITLE: &str = "saltcellar backup, format 1";

/// The state of a segment when it was last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Finished: it never changes again.
    Sealed,
    /// It may grow.
    Growing,
    /// It is not in the store any more.
    Dropped,
}

impl State {
    const ALL: [(State, &'static str); 3] =
        [(State::Sealed, "sealed"), (State::Growing, "growing"), (State::Dropped, "dropped")];

    fn word(self) -> &'static str {
        Self::ALL.iter().find(|(state, _)| *state == self).map_or("", |(_, word)| word)
    }
}

/// What tells whether a file of the store has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Bytes.
    pub size: u64,
    /// When it was written to, nanoseconds since 1970.
    pub mtime_ns: i128,
    /// Which file it is.
    pub inode: u64,
}

/// A segment's log in the backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// Its class.
    pub class_name: String,
    /// Its first sequence number.
    pub first_seq: SeqNo,
    /// The file in the backup.
    pub file: String,
    /// Its bytes.
    pub bytes: u64,
    /// Their hash.
    pub hash: Hash,
    /// The file in the store, when it was copied.
    pub stamp: Stamp,
    /// What the segment was then.
    pub state: State,
}

/// A small file, copied whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Small {
    /// Its name in the store.
    pub name: String,
    /// The file in the backup.
    pub file: String,
    /// Its bytes.
    pub bytes: u64,
    /// Their hash.
    pub hash: Hash,
}

/// What is in a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The format of the store.
    pub store_format: u32,
    /// When it was made, microseconds since 1970.
    pub made: i64,
    /// Numbers below may have been given out.
    pub sequence: u64,
    /// The logs.
    pub logs: Vec<Log>,
    /// The small files.
    pub smalls: Vec<Small>,
}

impl Manifest {
    /// The manifest of a backup; none if the directory has none.
    pub fn read(dir: &Path) -> Result<Option<Self>, ToolError> {
        let path = dir.join("MANIFEST");
        let Some(text) = files::text(&path)? else { return Ok(None) };
        match Self::parse(&text) {
            Ok(manifest) => Ok(Some(manifest)),
            Err(what) => Err(ToolError::Damaged { path, what }),
        }
    }

    /// Reads its text; says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        parse(text)
    }

    /// Puts it into its place. From then on it is what the backup is.
    pub fn write(&self, dir: &Path) -> Result<(), ToolError> {
        Ok(files::write_small(&dir.join("MANIFEST"), &self.text())?)
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{TITLE}\nstore format {}\nmade {} by saltcellar {}\nsequence {}\n",
            self.store_format,
            self.made,
            env!("CARGO_PKG_VERSION"),
            self.sequence
        );
        // Writing to a String cannot fail.
        for log in &self.logs {
            let Stamp { size, mtime_ns, inode } = log.stamp;
            let _ = writeln!(
                text,
                "log {} {} {} {} {:032x} {size} {mtime_ns} {inode} {}",
                log.class_name,
                log.first_seq.0,
                log.file,
                log.bytes,
                log.hash,
                log.state.word()
            );
        }
        for small in &self.smalls {
            let _ = writeln!(text, "small {} {} {} {:032x}", small.name, small.file, small.bytes, small.hash);
        }
        let (lines, hash) = (text.lines().count(), xxh3_128(text.as_bytes()));
        let _ = writeln!(text, "end {lines} {hash:032x}");
        text
    }
}

fn parse(text: &str) -> Result<Manifest, String> {
    let (body, end) = text
        .trim_end_matches('\n')
        .rsplit_once('\n')
        .map(|(body, end)| (text.get(..=body.len()).unwrap_or_default(), end))
        .ok_or("it is no manifest")?;
    if !text.starts_with("saltcellar backup, format ") {
        return Err("it is no manifest".to_owned());
    }
    if !text.starts_with(&format!("{TITLE}\n")) {
        let found = text.lines().next().unwrap_or_default();
        return Err(format!("it says `{found}`, this release reads `{TITLE}`"));
    }
    let expected = format!("end {} {:032x}", body.lines().count(), xxh3_128(body.as_bytes()));
    if end != expected {
        return Err("its checksum does not hold: it is damaged".to_owned());
    }
    let mut manifest =
        Manifest { store_format: 0, made: 0, sequence: 0, logs: Vec::new(), smalls: Vec::new() };
    for line in body.lines().skip(1) {
        read_line(line, &mut manifest)
            .ok_or_else(|| format!("this release does not know the line `{line}`"))?;
    }
    Ok(manifest)
}

fn read_line(line: &str, manifest: &mut Manifest) -> Option<()> {
    let words: Vec<&str> = line.split(' ').collect();
    let hash = |hex: &str| Hash::from_str_radix(hex, 16).ok();
    match words.as_slice() {
        ["store", "format", version] => manifest.store_format = version.parse().ok()?,
        ["made", at, "by", ..] => manifest.made = at.parse().ok()?,
        ["sequence", number] => manifest.sequence = number.parse().ok()?,
        ["log", class, first_seq, file, bytes, hex, size, mtime_ns, inode, state] => {
            let log = Log {
                class_name: (*class).to_owned(),
                first_seq: SeqNo(first_seq.parse().ok()?),
                file: (*file).to_owned(),
                bytes: bytes.parse().ok()?,
                hash: hash(hex)?,
                stamp: Stamp {
                    size: size.parse().ok()?,
                    mtime_ns: mtime_ns.parse().ok()?,
                    inode: inode.parse().ok()?,
                },
                state: State::ALL.iter().find(|(_, word)| word == state).map(|(state, _)| *state)?,
            };
            manifest.logs.push(log);
        }
        ["small", name, file, bytes, hex] => manifest.smalls.push(Small {
            name: (*name).to_owned(),
            file: (*file).to_owned(),
            bytes: bytes.parse().ok()?,
            hash: hash(hex)?,
        }),
        _ => return None,
    }
    // The text has a checksum, and yet nothing in it may lead out of the directory.
    let log = manifest.logs.last();
    let log_is_fine = log.is_none_or(|log| is_class_name(&log.class_name) && is_inside(&log.file));
    let small = manifest.smalls.last();
    let small_is_fine = small
        .is_none_or(|small| layout::SMALL_FILES.contains(&small.name.as_str()) && is_inside(&small.file));
    (log_is_fine && small_is_fine).then_some(())
}

fn is_inside(file: &str) -> bool {
    !file.is_empty()
        && Path::new(file).components().all(|part| matches!(part, std::path::Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let log = Log {
            class_name: "jobs".to_owned(),
            first_seq: SeqNo(7),
            file: "log/jobs/00000000000000000007-0".to_owned(),
            bytes: 64,
            hash: 5,
            stamp: Stamp { size: 64, mtime_ns: -3, inode: 9 },
            state: State::Growing,
        };
        let small = Small { name: "HOLDS".to_owned(), file: "HOLDS-1".to_owned(), bytes: 1, hash: 2 };
        Manifest { store_format: 2, made: 1, sequence: 12, logs: vec![log], smalls: vec![small] }
    }

    #[test]
    fn a_manifest_reads_as_it_was_written() {
        assert_eq!(parse(&manifest().text()), Ok(manifest()));
    }

    #[test]
    fn a_changed_or_foreign_manifest_is_refused() {
        let text = manifest().text();
        for (from, to, words) in [
            ("sequence 12", "sequence 13", "checksum"),
            ("\nend", "\nlog\nend", "checksum"),
            ("backup, format 1", "backup, format 2", "format 2"),
            ("saltcellar", "pepper", "no manifest"),
        ] {
            let error = parse(&text.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert!(parse("").is_err() && parse("\n\n").is_err());
        let mut astray = manifest();
        astray.logs[0].file = "../../etc/passwd".to_owned();
        assert!(parse(&astray.text()).unwrap_err().contains("does not know the line"));
    }
}
