//! The transport `file`: one line per item.
//!
//! # Invariant
//!
//! The file ends with a complete line whenever no write is in progress: a failed write is truncated
//! away, and an incomplete last line, which a killed process leaves, is truncated at the next
//! start.

mod rotate;

use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use self::rotate::{Rotation, period_of};
use super::deliver::{
    BoxedDestination, DeliverError, Dependencies, Destination, Rejected, RequestLimits, Transcript,
    Transport,
};
use super::item::Item;
use crate::base::advice::WRITABLE_DIRECTORY;
use crate::base::clock::Micros;
use crate::config::{Invalid, Mode};
use crate::engines::framing::Framing;
use crate::engines::kind::{Kind, options};
use crate::model::word::{self, MIB};
use crate::store::vfs::FsFile;

const DOC: &str = r"A file with one line per item, rotated by size and time.

An item is always one line: a line break in it is written as `\n` or `\r`, two characters.

| option | value | default |
|---|---|---|
| `path` | absolute path; its directory must exist and be writable for the daemon | required |
| `mode` | permissions of a new file | of the daemon's umask |
| `fsync` | `batch`: events count as delivered once they are on disk; `never`: a power loss can lose lines | `batch` |
| `rotate.bytes`, `rotate.time` | size and period (from midnight UTC for `1d`) after which the file gets the time as suffix | never |
| `rotate.keep` | number of rotated files | all |
| `rotate.compress` | `none`, `gzip` or `zstd`, for rotated files | `none` |

A batch has up to 10,000 items or 4 MiB and waits 100 ms for more, because each is synced: `batch: {time: 0s}` writes immediately.

logrotate may move the file instead: the sink notices and creates a new one. A full disk pauses the sink; no line is ever incomplete.

The units of systemd create `/var/log/saltcellar` (`/var/log/saltcellar-minion` for a minion), and allow no other directory. For another one, `systemctl edit saltcellar`:

```ini
[Service]
ReadWritePaths=/srv/logs
```";

pub(super) const KIND: Kind<BoxedDestination> = Kind {
    name: "file",
    doc: DOC,
    example: "{path: /var/log/saltcellar/audit.jsonl, mode: '0640', fsync: batch, \
              rotate: {bytes: 100MiB, time: 1d, keep: 14, compress: zstd}}",
    build: |given| {
        let file: FileDestination = options(given)?;
        if file.path.file_name().is_none() {
            return Err(Invalid::new(
                "path",
                "it names no file; give the absolute path of a file",
            ));
        }
        file.rotate.check()?;
        Ok(Box::new(file))
    },
};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileDestination {
    #[serde(with = "word")]
    path: PathBuf,
    /// Permissions of a new file.
    #[serde(default, with = "word")]
    mode: Option<Mode>,
    #[serde(default)]
    fsync: Fsync,
    #[serde(default)]
    rotate: Rotation,
}

/// Bytes of one write. A whole batch would be copied through memory that is in no cache of the processor, and new at each
/// batch.
const WRITE_BYTES: usize = 256 * 1024;

/// When lines become durable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Fsync {
    /// Before the events of a batch count as delivered.
    #[default]
    Batch,
    /// When the kernel writes them; a power loss can lose lines that count as delivered.
    Never,
}

impl Destination for FileDestination {
    fn open(&self, deps: &Dependencies) -> Box<dyn Transport> {
        Box::new(FileTransport {
            settings: self.clone(),
            deps: deps.clone(),
            open: None,
            not_rotated: None,
            unfinished: None,
        })
    }

    fn describe(&self) -> String {
        self.path.display().to_string()
    }

    fn limits(&self) -> RequestLimits {
        // A sync costs as much as writing megabytes; buffers of more cost page faults.
        let bytes = usize::try_from(4 * MIB).unwrap_or(usize::MAX);
        RequestLimits {
            count: 10_000,
            bytes,
            time: Duration::from_millis(100),
        }
    }

    fn framing(&self) -> Framing {
        Framing::Line
    }

    fn concurrency_max(&self) -> usize {
        1
    }
}

struct FileTransport {
    settings: FileDestination,
    deps: Dependencies,
    open: Option<OpenFile>,
    /// Why the file is not rotated although it is due; logged once.
    not_rotated: Option<String>,
    /// Why a rotated file is not compressed or removed; logged once.
    unfinished: Option<String>,
}

struct OpenFile {
    file: Box<dyn FsFile>,
    /// Device and inode: another program may have moved the file.
    identity: (u64, u64),
    bytes: u64,
    /// The period of [`Rotation::time`] in which its first line was written.
    period: i64,
}

impl Transport for FileTransport {
    fn deliver(
        &mut self,
        items: &[Item],
        transcript: Option<&mut Transcript>,
    ) -> Result<Vec<Rejected>, DeliverError> {
        let path = self.settings.path.display().to_string();
        let written = self.append(items).map_err(|why| {
            // After a failed sync the kernel may have dropped the data. Therefore the file is
            // reopened, and its end is searched for.
            self.open = None;
            DeliverError::retry(format_args!("cannot write {path}: {why}{}", remedy(&why)))
        })?;

        if let Some(transcript) = transcript {
            transcript.request = items.iter().map(line_of).collect();
            transcript.response = format!("{written} bytes written to {path}");
        }
        Ok(Vec::new())
    }

    fn check(&mut self) -> Result<String, String> {
        let path = self.settings.path.display().to_string();
        let bytes = match self.opened() {
            Ok(open) => open.bytes,
            Err(why) => return Err(format!("cannot open {path}: {why}{}", remedy(&why))),
        };

        let writable = format!("{path} is writable and has {bytes} bytes");
        Ok(match &self.unfinished {
            None => writable,
            Some(why) => format!("{writable}; a rotated file is not compressed or removed: {why}"),
        })
    }

    fn idle(&mut self) {
        if self.open.is_some() {
            self.rotate_if_due();
        }
    }

    fn reopen(&mut self) {
        self.open = None;
    }
}

impl FileTransport {
    /// Appends the lines of items; returns their length.
    fn append(&mut self, items: &[Item]) -> io::Result<u64> {
        // Opened before the rotation, which depends on the size, and after it, which closes the
        // file.
        self.opened()?;
        self.rotate_if_due();

        let sync = self.settings.fsync == Fsync::Batch;
        let period = period_of(self.settings.rotate.time, self.deps.clock.now());
        let open = self.opened()?;
        // At the offset that is known to end with a complete line, and not at the end of the file.
        let written = write_lines(&*open.file, items, open.bytes).and_then(|end| {
            if sync {
                open.file.sync_data()?;
            }
            Ok(end)
        });

        let end = match written {
            Ok(end) => end,
            Err(why) => {
                // What was written in part is removed. If that fails too, the next opening does it.
                let _ = open.file.set_len(open.bytes);
                return Err(why);
            }
        };

        // An empty file belongs to the period of its first line.
        if open.bytes == 0 {
            open.period = period;
        }
        let written = end - open.bytes;
        open.bytes = end;
        Ok(written)
    }

    /// The file at the path, opened or created if necessary.
    fn opened(&mut self) -> io::Result<&mut OpenFile> {
        let path = &self.settings.path;
        // Another program, such as logrotate, may have moved the file away.
        let moved = |open: &OpenFile| identity(path).ok() != Some(open.identity);
        if self.open.as_ref().is_some_and(moved) {
            self.open = None;
        }

        if self.open.is_none() {
            self.open = Some(open_file(&self.settings, &self.deps)?);
            // A crash may have interrupted a rotation.
            self.finish_rotation();
        }

        let none = || io::Error::other("the file is not open");
        self.open.as_mut().ok_or_else(none)
    }

    fn rotate_if_due(&mut self) {
        let rotation = &self.settings.rotate;
        let now = self.deps.clock.now();
        let is_due = |open: &OpenFile| {
            let is_full = rotation.bytes.is_some_and(|max| open.bytes >= max);
            open.bytes > 0 && (is_full || open.period != period_of(rotation.time, now))
        };
        if !self.open.as_ref().is_some_and(is_due) {
            return;
        }

        let result = Rotation::rotate(&*self.deps.fs, &self.settings.path, now);
        let is_rotated = result.is_ok();

        // The next attempt comes with the next batch.
        if let Some(error) = new_problem(&mut self.not_rotated, result) {
            tracing::warn!(path = %self.settings.path.display(), error, "rotation failed, continuing in the same file: check the permissions of the directory");
        }

        if is_rotated {
            // From here on the file has another name, whatever fails below.
            self.open = None;
            self.finish_rotation();
        }
    }

    /// Compresses and removes rotated files. If that fails, it is done after the next rotation or
    /// opening: the file at the path is writable, so the sink goes on.
    fn finish_rotation(&mut self) {
        let fs = &*self.deps.fs;
        let path = &self.settings.path;
        // The new name is durable before lines go to a new file, so a crash cannot mix them.
        let synced = path.parent().map_or(Ok(()), |dir| fs.sync_dir(dir));
        let result = synced.and_then(|()| self.settings.rotate.finish(fs, path));

        if let Some(error) = new_problem(&mut self.unfinished, result) {
            tracing::warn!(path = %path.display(), error, "cannot compress or remove a rotated file, retrying after the next rotation: check the permissions and free space of the directory");
        }
    }
}

fn remedy(why: &io::Error) -> String {
    let remedy = match why.kind() {
        io::ErrorKind::NotFound => "create its directory, or correct `path`",
        io::ErrorKind::PermissionDenied => "let the daemon's user write to it",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free space on that file system"
        }
        io::ErrorKind::ReadOnlyFilesystem => WRITABLE_DIRECTORY,
        _ => return String::new(),
    };
    format!("; {remedy}")
}

/// Writes the lines of items from an offset on; returns the offset behind them.
fn write_lines(file: &dyn FsFile, items: &[Item], from: u64) -> io::Result<u64> {
    let mut at = from;
    let mut lines = Vec::with_capacity(WRITE_BYTES);
    for item in items {
        if !lines.is_empty() && lines.len() + item.bytes.len() >= WRITE_BYTES {
            file.write_all_at(&lines, at)?;
            at += lines.len() as u64;
            lines.clear();
        }
        lines.extend_from_slice(&item.bytes);
        lines.push(b'\n');
    }

    file.write_all_at(&lines, at)?;
    Ok(at + lines.len() as u64)
}

fn line_of(item: &Item) -> String {
    format!("{}\n", String::from_utf8_lossy(&item.bytes))
}

/// Keeps the problem of the last attempt; returns one that the attempt before did not have.
fn new_problem(last: &mut Option<String>, result: io::Result<()>) -> Option<String> {
    let problem = result.err().map(|why| why.to_string());
    let is_new = problem != *last;
    last.clone_from(&problem);
    problem.filter(|_| is_new)
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok((metadata.dev(), metadata.ino()))
}

fn open_file(settings: &FileDestination, deps: &Dependencies) -> io::Result<OpenFile> {
    let (path, fs) = (&settings.path, &deps.fs);

    match identity(path) {
        // The mode is set before anything is written, and the name is durable before the first line
        // counts.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            drop(fs.create(path)?);
            if let Some(mode) = settings.mode {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode.0))?;
            }
            path.parent().map_or(Ok(()), |dir| fs.sync_dir(dir))?;
        }
        found => _ = found?,
    }

    // A killed process may have left a part of a line.
    let file = fs.open_to_write(path)?;
    let bytes = complete_lines(&*file)?;
    // Its last change is the best sign of the period that the lines belong to.
    let modified = std::fs::metadata(path)?.mtime().saturating_mul(1_000_000);
    let period = period_of(settings.rotate.time, Micros(modified));

    Ok(OpenFile {
        file,
        identity: identity(path)?,
        bytes,
        period,
    })
}

/// Truncates an incomplete last line; returns the length of the file.
fn complete_lines(file: &dyn FsFile) -> io::Result<u64> {
    let size = file.size()?;

    let mut end = size;
    // Backwards in parts: only the last line is of interest.
    let mut buffer = vec![0; 64 * 1024];

    while end > 0 {
        let from = end.saturating_sub(buffer.len() as u64);
        let part = buffer
            .get_mut(..usize::try_from(end - from).unwrap_or(0))
            .unwrap_or_default();
        file.read_exact_at(part, from)?;
        match memchr::memrchr(b'\n', part) {
            Some(at) => {
                end = from + at as u64 + 1;
                break;
            }
            None => end = from,
        }
    }

    if end < size {
        file.set_len(end)?;
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use rustix::io::Errno;

    use super::super::tests::{items, open_with};
    use super::*;
    use crate::base::clock::Clock;
    use crate::store::vfs::Disk;
    use crate::store::vfs::faults::{Act, Fault, Faults, Plan};

    fn deps() -> Dependencies {
        super::super::tests::deps(&Clock::manual(Micros(1_795_000_000_000_000)))
    }

    fn path_in(dir: &tempfile::TempDir) -> PathBuf {
        dir.path().join("out.jsonl")
    }

    /// The strings of the files in the directory, by name.
    fn texts(dir: &tempfile::TempDir) -> Vec<(String, String)> {
        let mut found: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let bytes = fs::read(entry.path()).unwrap();
                let name = entry.file_name().into_string().unwrap();
                let bytes = match name.rsplit('.').next().unwrap() {
                    "zst" => zstd::decode_all(&*bytes).unwrap(),
                    "gz" => {
                        let mut text = Vec::new();
                        io::Read::read_to_end(
                            &mut flate2::read::GzDecoder::new(&*bytes),
                            &mut text,
                        )
                        .unwrap();
                        text
                    }
                    _ => bytes,
                };
                (name, String::from_utf8(bytes).unwrap())
            })
            .collect();
        found.sort();
        found
    }

    #[test]
    fn lines_are_appended_across_reopening_and_an_incomplete_one_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = path_in(&dir);
        let options = format!("{{path: {}, mode: '0640'}}", path.display());
        let mut file = open_with(&KIND, &options, &deps());
        assert_eq!(file.deliver(&items(&["a", "b"]), None), Ok(vec![]));
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o640
        );
        file.reopen();
        assert_eq!(file.deliver(&items(&["c"]), None), Ok(vec![]));
        drop(file);
        fs::write(&path, format!("a\nb\nc\n{}", "torn".repeat(50_000))).unwrap();
        let mut transcript = Transcript::default();
        let mut file = open_with(&KIND, &options, &deps());
        assert_eq!(
            file.deliver(&items(&["d"]), Some(&mut transcript)),
            Ok(vec![])
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "a\nb\nc\nd\n");
        assert_eq!(transcript.request, "d\n");
        assert!(transcript.response.starts_with("2 bytes written to /"));
        assert!(file.check().unwrap().ends_with("has 8 bytes"));
    }

    #[test]
    fn a_file_that_another_program_moved_is_created_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = path_in(&dir);
        let mut file = open_with(&KIND, &format!("path: {}", path.display()), &deps());
        file.deliver(&items(&["a"]), None).unwrap();
        fs::rename(&path, dir.path().join("moved")).unwrap();
        file.deliver(&items(&["b"]), None).unwrap();
        assert_eq!(
            texts(&dir),
            [
                ("moved".into(), "a\n".into()),
                ("out.jsonl".into(), "b\n".into())
            ]
        );
    }

    #[test]
    fn a_full_disk_leaves_complete_lines_and_is_an_error_until_there_is_space() {
        let dir = tempfile::tempdir().unwrap();
        let path = path_in(&dir);
        let plan = Arc::new(Plan::default());
        let deps = Dependencies {
            fs: Arc::new(Faults::over(Arc::new(Disk), plan.clone())),
            ..deps()
        };
        let mut file = open_with(&KIND, &format!("path: {}", path.display()), &deps);
        file.deliver(&items(&["first"]), None).unwrap();
        plan.leave_room(Some(3));
        for _ in 0..2 {
            let error = file.deliver(&items(&["second"]), None).unwrap_err();
            assert!(
                matches!(&error, DeliverError::Retry { reason, after: None } if reason.contains("No space left")),
                "{error}"
            );
            assert_eq!(fs::read_to_string(&path).unwrap(), "first\n");
        }
        plan.leave_room(None);
        file.deliver(&items(&["second"]), None).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "first\nsecond\n");
        plan.add(Fault::once(Act::Sync, Errno::IO));
        assert!(
            file.deliver(&items(&["third"]), None).is_err(),
            "a failed sync is no delivery"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "first\nsecond\n");
    }

    #[test]
    fn a_missing_directory_and_a_directory_as_file_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("none/out");
        let mut file = open_with(&KIND, &format!("path: {}", missing.display()), &deps());
        assert!(
            file.deliver(&items(&["a"]), None)
                .unwrap_err()
                .to_string()
                .contains("No such file")
        );
        let mut file = open_with(&KIND, &format!("path: {}", dir.path().display()), &deps());
        assert!(
            file.check()
                .unwrap_err()
                .ends_with("it is not a regular file")
        );
        assert!((KIND.build)(&serde_json::json!({"path": "/"})).is_err());
    }

    #[test]
    fn files_are_rotated_by_size_compressed_and_limited_in_number() {
        let dir = tempfile::tempdir().unwrap();
        let deps = deps();
        let options = format!(
            "{{path: {}, rotate: {{bytes: 4, keep: 2, compress: zstd}}}}",
            path_in(&dir).display()
        );
        let mut file = open_with(&KIND, &options, &deps);
        for text in ["one", "two", "three", "four", "5"] {
            file.deliver(&items(&[text]), None).unwrap();
            deps.clock.wind(1_000_000);
        }
        let expected = [
            ("out.jsonl", "5\n"),
            ("out.jsonl.20261118T110643Z.zst", "three\n"),
            ("out.jsonl.20261118T110644Z.zst", "four\n"),
        ];
        assert_eq!(
            texts(&dir),
            expected.map(|(name, text)| (name.to_owned(), text.to_owned()))
        );
    }

    #[test]
    fn files_are_rotated_by_time_also_while_idle() {
        let dir = tempfile::tempdir().unwrap();
        let deps = deps();
        let options = format!(
            "{{path: {}, rotate: {{time: 1h, compress: gzip}}}}",
            path_in(&dir).display()
        );
        let mut file = open_with(&KIND, &options, &deps);
        file.deliver(&items(&["one"]), None).unwrap();
        file.idle();
        assert_eq!(texts(&dir).len(), 1, "the hour is not over");
        deps.clock.wind(3_600_000_000);
        file.idle();
        assert_eq!(
            texts(&dir),
            [(
                "out.jsonl.20261118T120640Z.gz".to_owned(),
                "one\n".to_owned()
            )]
        );
        file.idle();
        file.deliver(&items(&["two"]), None).unwrap();
        assert_eq!(texts(&dir).len(), 2);
    }

    #[test]
    fn an_interrupted_rotation_is_completed_and_a_failed_one_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = path_in(&dir);
        fs::write(dir.path().join("out.jsonl.20261118T110640Z"), "old\n").unwrap();
        let plan = Arc::new(Plan::default());
        let deps = Dependencies {
            fs: Arc::new(Faults::over(Arc::new(Disk), plan.clone())),
            ..deps()
        };
        let options = format!(
            "{{path: {}, rotate: {{bytes: 1, compress: zstd}}}}",
            path.display()
        );
        let mut file = open_with(&KIND, &options, &deps);
        file.deliver(&items(&["a"]), None).unwrap();
        assert_eq!(
            texts(&dir)[1],
            ("out.jsonl.20261118T110640Z.zst".into(), "old\n".into())
        );
        plan.add(Fault::lasting(Act::Rename, Errno::IO));
        file.deliver(&items(&["b"]), None).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "a\nb\n");
        plan.heal();
        file.deliver(&items(&["c"]), None).unwrap();
        assert_eq!(
            texts(&dir)
                .iter()
                .map(|(_, text)| text.as_str())
                .collect::<Vec<_>>(),
            ["c\n", "old\n", "a\nb\n"]
        );
    }

    #[test]
    fn a_rotated_file_that_cannot_be_compressed_or_removed_stops_neither_the_sink_nor_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = path_in(&dir);
        // A directory in place of the oldest rotated file: it can never be compressed or removed.
        let stuck = dir.path().join("out.jsonl.20200101T000000Z");
        fs::create_dir(&stuck).unwrap();
        fs::write(dir.path().join("out.jsonl.20200101T000001Z"), "old\n").unwrap();
        let deps = deps();
        let options = format!(
            "{{path: {}, rotate: {{bytes: 4, keep: 2, compress: zstd}}}}",
            path.display()
        );
        let mut file = open_with(&KIND, &options, &deps);
        for text in ["one", "two", "three", "4"] {
            assert_eq!(file.deliver(&items(&[text]), None), Ok(vec![]), "{text}");
            deps.clock.wind(1_000_000);
        }
        let found = file.check().unwrap();
        assert!(
            found.contains("has 2 bytes; ") && found.contains("20200101T000000Z"),
            "{found}"
        );
        fs::remove_dir(&stuck).unwrap();
        let expected = [
            ("out.jsonl", "4\n"),
            ("out.jsonl.20261118T110641Z.zst", "one\n"),
            ("out.jsonl.20261118T110642Z.zst", "two\n"),
            ("out.jsonl.20261118T110643Z.zst", "three\n"),
        ];
        let expected = expected.map(|(name, text)| (name.to_owned(), text.to_owned()));
        // With the directory there were three rotated files, of which one cannot be removed.
        assert_eq!(texts(&dir), [&expected[..1], &expected[2..]].concat());
        file.reopen();
        let found = file.check().unwrap();
        assert!(found.ends_with("has 2 bytes"), "{found}");
    }
}
