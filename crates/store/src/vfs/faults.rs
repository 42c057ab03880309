//! Fault injection for tests: a disk that fills up, fails operations or delays them.
//!
//! A debug build of the daemon reads the fault plan from [`VARIABLE`]: a plan, or the path of a file
//! with one, which is reread when it changes. A release build has none.
//!
//! # The plan
//!
//! A plan is a list of words, separated by spaces or newlines:
//!
//! ```text
//! sync_delay_ms=5            delay of every sync of a file
//! space=4096/1000000         available and total bytes that the file system reports
//! room=65536                 bytes that can still be written before writes fail with ENOSPC
//! write=ENOSPC@3             the third write from now fails with ENOSPC
//! sync=EIO@1+                every sync of a file fails with EIO
//! write=EIO@2/512            the second write fails after 512 bytes
//! create=EIO@1+:log/jobs     every creation of a file with `log/jobs` in its path fails
//! read=EIO@1+:spill          every read of a file with `spill` in its path fails
//! bad=4096-8192:events/      reads of these bytes fail with EIO in files with `events/` in their path
//! ```
//!
//! The names of the operations: `create`, `read`, `write`, `sync`, `set_len`, `make_dir`,
//! `sync_dir`, `rename`, `remove`.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;

use super::{Fs, FsFile, Space};

/// Environment variable with the fault plan of a daemon's debug build.
pub(crate) const VARIABLE: &str = "SALTCELLAR_TEST_FS";

/// The daemon's file system: [`Disk`]. In a debug build the environment variable
/// `SALTCELLAR_TEST_FS` can inject faults.
pub fn from_environment() -> Result<Arc<dyn Fs>, String> {
    // A fault plan that cannot be read must not run as a disk without faults.
    if cfg!(debug_assertions)
        && let Ok(text) = std::env::var(VARIABLE)
    {
        let faults = Faults::parse(&text);
        return Ok(Arc::new(faults.map_err(|word| {
            format!("{VARIABLE}: invalid fault plan: `{word}`")
        })?));
    }
    Ok(Arc::new(super::Disk))
}

/// A file system operation that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Creating a file.
    Create,
    /// Writing to a file.
    Write,
    /// Making a file durable.
    Sync,
    /// Changing the length of a file.
    SetLen,
    /// Creating a directory.
    MakeDir,
    /// Making the names in a directory durable.
    SyncDir,
    /// Renaming a file or a directory.
    Rename,
    /// Removing a file or a directory.
    Remove,
    /// Reading from a file.
    Read,
}

impl Act {
    /// All operations with their names in a plan.
    pub(crate) const ALL: [(Act, &'static str); 9] = [
        (Act::Create, "create"),
        (Act::Write, "write"),
        (Act::Sync, "sync"),
        (Act::SetLen, "set_len"),
        (Act::MakeDir, "make_dir"),
        (Act::SyncDir, "sync_dir"),
        (Act::Rename, "rename"),
        (Act::Remove, "remove"),
        (Act::Read, "read"),
    ];
}

/// An injected fault.
#[derive(Debug, Clone)]
pub struct Fault {
    /// The operation that fails.
    pub act: Act,
    /// The error that it fails with.
    pub errno: Errno,
    /// The first matching operation that fails, counted from 1.
    pub from: u64,
    /// Later matching operations also fail.
    pub lasting: bool,
    /// Bytes that a failing write writes nevertheless.
    pub part: usize,
    /// Only paths that contain this text match.
    pub within: String,
}

impl Fault {
    /// The next such operation fails.
    pub fn once(act: Act, errno: Errno) -> Self {
        Self {
            act,
            errno,
            from: 1,
            lasting: false,
            part: 0,
            within: String::new(),
        }
    }

    /// All such operations fail.
    pub fn lasting(act: Act, errno: Errno) -> Self {
        Self {
            lasting: true,
            ..Self::once(act, errno)
        }
    }
}

impl Fault {
    fn parse(act: Act, text: &str) -> Option<Self> {
        // From the end of the word to its beginning, because each part is optional.
        let (text, within) = text.split_once(':').unwrap_or((text, ""));
        let (text, part) = text.split_once('/').unwrap_or((text, "0"));
        let (errno, from) = text.split_once('@').unwrap_or((text, "1"));

        let errno = match errno {
            "ENOSPC" => Errno::NOSPC,
            "EIO" => Errno::IO,
            "EROFS" => Errno::ROFS,
            "ENOMEM" => Errno::NOMEM,
            _ => return None,
        };

        let number = from.strip_suffix('+').unwrap_or(from);
        let (from, lasting) = (number.parse().ok()?, number.len() < from.len());

        Some(Self {
            act,
            errno,
            from,
            lasting,
            part: part.parse().ok()?,
            within: within.to_owned(),
        })
    }
}

/// The faults to inject. Can be changed at any time.
#[derive(Debug, Default)]
pub struct Plan {
    /// Lock order: no other lock is taken under it.
    now: Mutex<Now>,
    done: [AtomicU64; Act::ALL.len()],
}

#[derive(Debug, Default)]
struct Now {
    /// Each with the number of matching operations so far.
    faults: Vec<(Fault, u64)>,
    sync_delay: Duration,
    rename_delay: Duration,
    /// Unreadable byte ranges, each with a part of the file's path.
    bad_sectors: Vec<(String, std::ops::Range<u64>)>,
    space: Option<Space>,
    room: Option<u64>,
    file: Option<(PathBuf, Option<Version>)>,
}

/// Inode, seconds and nanoseconds of the modification time.
type Version = (u64, i64, i64);

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) why: io::Error,
    /// Bytes that a failing write writes nevertheless.
    pub(crate) part: usize,
}

impl Plan {
    /// Adds a fault.
    pub fn add(&self, fault: Fault) {
        self.now().faults.push((fault, 0));
    }

    /// Makes reads of these bytes fail with EIO in files with `within` in their path.
    pub fn add_bad_sector(&self, within: &str, bytes: std::ops::Range<u64>) {
        self.now().bad_sectors.push((within.to_owned(), bytes));
    }

    /// Limits the bytes that can still be written; `None` is unlimited.
    pub fn leave_room(&self, bytes: Option<u64>) {
        self.now().room = bytes;
    }

    /// Removes all faults except the delay of syncs.
    pub fn heal(&self) {
        let mut now = self.now();
        now.faults.clear();
        now.room = None;
        now.space = None;
        now.bad_sectors.clear();
        now.rename_delay = Duration::ZERO;
    }
}

#[cfg(test)]
impl Plan {
    /// Delays every sync of a file.
    pub(crate) fn delay_syncs(&self, by: Duration) {
        self.now().sync_delay = by;
    }

    /// Delays every rename, to let other threads observe the state between two renames.
    pub(crate) fn delay_renames(&self, by: Duration) {
        self.now().rename_delay = by;
    }

    /// Whether no read fails, but for bad sectors.
    pub(crate) fn reads_succeed(&self) -> bool {
        self.now()
            .faults
            .iter()
            .all(|(fault, _)| fault.act != Act::Read)
    }

    /// Number of such operations so far, including failures.
    pub(crate) fn count(&self, act: Act) -> u64 {
        self.done
            .get(act as usize)
            .map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

impl Plan {
    /// Parses a plan; the error is the invalid word.
    pub fn parse(text: &str) -> Result<Self, String> {
        let plan = Self::default();
        plan.now().apply(text)?;
        Ok(plan)
    }

    /// A plan in a file, which is reread when it changes. Empty while the file does not exist.
    pub(crate) fn in_file(path: &Path) -> Self {
        let now = Now {
            file: Some((path.to_owned(), None)),
            ..Now::default()
        };
        Self {
            now: Mutex::new(now),
            ..Self::default()
        }
    }

    /// Called before every operation; `bytes` is the length of a write.
    pub(crate) fn check(&self, act: Act, path: &Path, bytes: usize) -> Result<(), Failure> {
        // Counted whether the operation fails or not.
        if let Some(count) = self.done.get(act as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }

        let (failure, delay) = {
            // Under the lock only as long as needed: other operations continue during a delay.
            let mut now = self.now();
            let delay = match act {
                Act::Sync => now.sync_delay,
                Act::Rename => now.rename_delay,
                _ => Duration::ZERO,
            };
            (now.failure_of(act, path, bytes), delay)
        };

        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        failure
    }

    /// Called before every read of `len` bytes.
    pub(crate) fn check_read(&self, path: &Path, offset: u64, len: usize) -> io::Result<()> {
        // A plan may let every read fail, in addition to reads of single sectors.
        self.check(Act::Read, path, 0)
            .map_err(|failure| failure.why)?;

        let path = path.to_string_lossy();
        let meets =
            |bad: &std::ops::Range<u64>| bad.start < offset + len as u64 && offset < bad.end;

        if self
            .now()
            .bad_sectors
            .iter()
            .any(|(within, bad)| path.contains(within) && meets(bad))
        {
            return Err(Errno::IO.into());
        }
        Ok(())
    }

    /// The reported sizes, if the plan sets them.
    pub(crate) fn space(&self) -> Option<Space> {
        let now = self.now();
        let full = now.room.map(|room| Space {
            available: room,
            total: 1 << 30,
        });
        now.space.or(full)
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        let mut now = self.now.lock();
        now.reread_file();
        now
    }
}

impl Now {
    fn apply(&mut self, text: &str) -> Result<(), String> {
        for word in text.split_whitespace() {
            self.parse_word(word).ok_or_else(|| word.to_owned())?;
        }
        Ok(())
    }

    fn parse_word(&mut self, word: &str) -> Option<()> {
        let (name, value) = word.split_once('=')?;
        match name {
            "sync_delay_ms" => self.sync_delay = Duration::from_millis(value.parse().ok()?),
            "room" => self.room = Some(value.parse().ok()?),
            "bad" => {
                let (bytes, within) = value.split_once(':').unwrap_or((value, ""));
                let (from, to) = bytes.split_once('-')?;
                let bytes = from.parse().ok()?..to.parse().ok()?;
                self.bad_sectors.push((within.to_owned(), bytes));
            }
            "space" => {
                let (available, total) = value.split_once('/')?;
                self.space = Some(Space {
                    available: available.parse().ok()?,
                    total: total.parse().ok()?,
                });
            }
            // Any other word names an operation.
            name => {
                let (act, _) = Act::ALL.into_iter().find(|(_, word)| *word == name)?;
                self.faults.push((Fault::parse(act, value)?, 0));
            }
        }

        Some(())
    }

    fn reread_file(&mut self) {
        let Some((path, read)) = &mut self.file else {
            return;
        };
        let version = std::fs::metadata(&*path)
            .ok()
            .map(|m| (m.ino(), m.mtime(), m.mtime_nsec()));
        // The usual case.
        if version == *read {
            return;
        }

        *read = version;

        // The whole plan is replaced: a word that the file no longer has must end.
        let text = std::fs::read_to_string(&*path).unwrap_or_default();
        let file = self.file.take();
        *self = Self {
            file,
            ..Self::default()
        };

        if let Err(word) = self.apply(&text) {
            tracing::error!(word, "invalid word in the fault plan, ignored");
        }
    }

    fn failure_of(&mut self, act: Act, path: &Path, bytes: usize) -> Result<(), Failure> {
        let path = path.to_string_lossy();
        let failed = |errno: Errno, part: usize| Failure {
            why: errno.into(),
            part: part.min(bytes),
        };

        let mut failure = None;
        for (fault, seen) in &mut self.faults {
            // Each fault counts the operations that it matches.
            if fault.act != act || !path.contains(&fault.within) {
                continue;
            }
            *seen += 1;
            // The first fault in the plan decides, but all of them count.
            if *seen == fault.from || (fault.lasting && *seen > fault.from) {
                failure.get_or_insert_with(|| failed(fault.errno, fault.part));
            }
        }

        if let Some(failure) = failure {
            return Err(failure);
        }

        // A full disk takes no more bytes or names.
        let wanted = match act {
            Act::Write => bytes as u64,
            Act::Create | Act::MakeDir => 1,
            _ => 0,
        };

        if let Some(room) = &mut self.room {
            if wanted > *room {
                // The bytes that still fit are written, as by a real disk.
                let part = usize::try_from(std::mem::take(room)).unwrap_or(usize::MAX);
                return Err(failed(Errno::NOSPC, part));
            }
            *room -= wanted;
        }
        Ok(())
    }
}

/// A file system with the faults of a plan.
#[derive(Debug)]
pub struct Faults {
    plan: Arc<Plan>,
    fs: Arc<dyn Fs>,
}

impl Faults {
    /// Adds the faults of a plan to a file system.
    pub fn over(fs: Arc<dyn Fs>, plan: Arc<Plan>) -> Self {
        Self { plan, fs }
    }

    /// Parses the value of [`VARIABLE`]: a plan, or the path of a file with one.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let plan = if text.starts_with('/') {
            Plan::in_file(Path::new(text))
        } else {
            Plan::parse(text)?
        };
        Ok(Self::over(Arc::new(super::Disk), Arc::new(plan)))
    }

    fn check(&self, act: Act, path: &Path) -> io::Result<()> {
        self.plan.check(act, path, 0).map_err(|failure| failure.why)
    }

    fn file(&self, path: &Path, file: io::Result<Box<dyn FsFile>>) -> io::Result<Box<dyn FsFile>> {
        Ok(Box::new(FaultyFile {
            plan: self.plan.clone(),
            path: path.to_owned(),
            file: file?,
        }))
    }
}

impl Fs for Faults {
    fn create(&self, path: &Path) -> io::Result<Box<dyn FsFile>> {
        self.check(Act::Create, path)?;
        self.file(path, self.fs.create(path))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn FsFile>> {
        self.file(path, self.fs.open(path))
    }

    fn open_log(&self, path: &Path) -> io::Result<Box<dyn FsFile>> {
        self.file(path, self.fs.open_log(path))
    }

    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn FsFile>> {
        self.file(path, self.fs.open_to_write(path))
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.check(Act::MakeDir, path)?;
        self.fs.make_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.check(Act::SyncDir, path)?;
        self.fs.sync_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check(Act::Rename, to)?;
        self.fs.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.check(Act::Remove, path)?;
        self.fs.remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.check(Act::Remove, path)?;
        self.fs.remove_dir_all(path)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.plan.space().map_or_else(|| self.fs.space(path), Ok)
    }
}

#[derive(Debug)]
struct FaultyFile {
    plan: Arc<Plan>,
    path: PathBuf,
    file: Box<dyn FsFile>,
}

impl FaultyFile {
    fn check(&self, act: Act) -> io::Result<()> {
        self.plan
            .check(act, &self.path, 0)
            .map_err(|failure| failure.why)
    }
}

impl FsFile for FaultyFile {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let Err(failure) = self.plan.check(Act::Write, &self.path, bytes.len()) else {
            return self.file.write_all_at(bytes, offset);
        };

        // A part may have been written before the failure, as in reality.
        let part = bytes.get(..failure.part).unwrap_or_default();
        if !part.is_empty() {
            self.file.write_all_at(part, offset)?;
        }
        Err(failure.why)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.plan.check_read(&self.path, offset, buffer.len())?;
        self.file.read_exact_at(buffer, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check(Act::Sync)?;
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.check(Act::Sync)?;
        self.file.sync_all()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check(Act::SetLen)?;
        self.file.set_len(len)
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.file.set_mode(mode)
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fs(text: &str) -> (tempfile::TempDir, Arc<Plan>, Faults) {
        let plan = Arc::new(Plan::parse(text).unwrap());
        (
            tempfile::tempdir().unwrap(),
            plan.clone(),
            Faults::over(Arc::new(super::super::Disk), plan),
        )
    }

    #[test]
    fn only_the_operation_of_the_plan_fails() {
        let (dir, plan, fs) = fs("write=EIO@2/3 sync=ENOSPC@1+:log");
        let file = fs.create(&dir.path().join("log")).unwrap();
        file.write_all_at(b"first", 0).unwrap();
        let why = file.write_all_at(b"second", 5).unwrap_err();
        assert_eq!(
            (why.raw_os_error(), file.size().unwrap()),
            (Some(Errno::IO.raw_os_error()), 8)
        );
        file.write_all_at(b"third", 5).unwrap();
        for _ in 0..2 {
            let full = file.sync_data().unwrap_err();
            assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        }
        fs.create(&dir.path().join("other"))
            .unwrap()
            .sync_all()
            .unwrap();
        plan.heal();
        file.sync_data().unwrap();
        plan.add(Fault::once(Act::Read, Errno::IO));
        let why = file.read_exact_at(&mut [0; 5], 0).unwrap_err();
        assert_eq!(why.raw_os_error(), Some(Errno::IO.raw_os_error()));
        file.read_exact_at(&mut [0; 5], 0).unwrap();
        assert_eq!((plan.count(Act::Write), plan.count(Act::Sync)), (3, 4));
    }

    #[test]
    fn writes_fail_when_the_disk_is_full_until_it_is_emptied() {
        let (dir, plan, fs) = fs("room=8");
        let file = fs.create(&dir.path().join("log")).unwrap();
        assert_eq!(fs.space(dir.path()).unwrap().available, 7);
        let why = file.write_all_at(b"ten bytes!", 0).unwrap_err();
        assert_eq!(
            (why.kind(), file.size().unwrap()),
            (io::ErrorKind::StorageFull, 7)
        );
        assert!(fs.make_dir(&dir.path().join("more")).is_err());
        plan.heal();
        fs.make_dir(&dir.path().join("more")).unwrap();
    }

    #[test]
    fn a_plan_in_a_file_is_reread_after_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let (path, target) = (dir.path().join("plan"), dir.path().join("x"));
        let fs = Faults::parse(path.to_str().unwrap()).unwrap();
        let apply = |text: &str| {
            super::super::Disk
                .write_whole(&path, text.as_bytes())
                .unwrap();
        };
        fs.create(&target).unwrap();
        apply("create=EROFS@1+ space=1/2");
        assert!(fs.create(&target).is_err());
        assert_eq!(
            fs.space(&target).unwrap(),
            Space {
                available: 1,
                total: 2
            }
        );
        apply("");
        fs.create(&target).unwrap();
    }

    #[test]
    fn an_invalid_word_is_the_error() {
        for word in [
            "write",
            "write=EBUSY",
            "write=EIO@x",
            "append=EIO",
            "sync_delay_ms=slow",
            "space=7",
        ] {
            assert_eq!(Plan::parse(&format!("room=7 {word}")).unwrap_err(), word);
        }
    }
}
