//! Reads that survive bad sectors. What a failed read means is decided here and nowhere else.
//!
//! A read has three outcomes:
//!
//! - **bytes**;
//! - **damaged**: the disk cannot return some of them (`EIO`, `EUCLEAN`, `EBADMSG`, `EILSEQ`,
//!   `ENODATA`). The range is halved down to sectors of [`SECTOR_BYTES`], until everything readable
//!   is read; an unreadable sector reads as zero bytes, and the caller learns its range. Checksums
//!   then treat it as any other damage;
//! - **retry**: any other error (`ENOSPC`, `EMFILE`, `ENOMEM`, ..). It says nothing about the
//!   bytes: the caller gets the error, and nothing is derived from it.
//!
//! # Invariant
//!
//! An unreadable sector is never an unfinished write. Its content may be acknowledged, and a later
//! read may succeed; it is neither cut off nor overwritten.

use std::io;
use std::ops::Range;
use std::path::Path;

use rustix::io::Errno;

use super::{Fs, FsFile};
use saltcellar_base::limits::SECTOR_BYTES;

/// Whether an error of a read or of an opening means that the disk cannot return the data.
pub(crate) fn is_damage(why: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(why),
        Some(Errno::IO | Errno::UCLEAN | Errno::BADMSG | Errno::ILSEQ | Errno::NODATA)
    )
}

/// The outcome of a read that did not fail with an error of the third kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All bytes.
    Whole,
    /// Zero bytes in place of these ranges of the file, ascending.
    Damaged(Vec<Range<u64>>),
    /// The file ends before the range does.
    End,
}

/// Fills `buffer` from `offset` as far as the disk can read it. An error is one to retry.
pub(crate) fn read_at(file: &dyn FsFile, buffer: &mut [u8], offset: u64) -> io::Result<Outcome> {
    match file.read_exact_at(buffer, offset) {
        Ok(()) => Ok(Outcome::Whole),
        Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => Ok(Outcome::End),
        // Only now in parts: a single read is the usual case, and each part costs a request.
        Err(why) if is_damage(&why) => {
            let mut unreadable = Vec::new();
            Ok(if halve(file, buffer, offset, &mut unreadable)? {
                Outcome::Damaged(unreadable)
            } else {
                Outcome::End
            })
        }
        Err(why) => Err(why),
    }
}

/// Reads both halves of a range that cannot be read as a whole. False at the end of the file.
fn halve(
    file: &dyn FsFile,
    buffer: &mut [u8],
    offset: u64,
    unreadable: &mut Vec<Range<u64>>,
) -> io::Result<bool> {
    let end = offset + buffer.len() as u64;
    // One sector, or a part of one: this is what is lost.
    let Some(middle) = middle(offset, end) else {
        buffer.fill(0);

        // Adjacent sectors are one range for the caller.
        match unreadable.last_mut() {
            Some(before) if before.end == offset => before.end = end,
            _ => unreadable.push(offset..end),
        }

        return Ok(true);
    };

    let (left, right) = buffer.split_at_mut(usize::try_from(middle - offset).unwrap_or(0));
    for (half, at) in [(left, offset), (right, middle)] {
        // This half is whole: the bad sector is in the other one.
        match file.read_exact_at(half, at) {
            Ok(()) => {}
            Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(why) if is_damage(&why) => {
                if !halve(file, half, at, unreadable)? {
                    return Ok(false);
                }
            }
            Err(why) => return Err(why),
        }
    }
    Ok(true)
}

/// The boundary between sectors nearest to the middle of a range; `None` within one sector.
fn middle(from: u64, to: u64) -> Option<u64> {
    // Boundaries of sectors within the range, as sector numbers.
    let sector = SECTOR_BYTES as u64;
    let first = from / sector + 1;
    let last = to.div_ceil(sector).saturating_sub(1);
    (first <= last).then(|| first.midpoint(last) * sector)
}

/// The content of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// With zero bytes in place of unreadable bytes.
    pub bytes: Vec<u8>,
    /// The unreadable ranges, ascending.
    pub(crate) unreadable: Vec<Range<u64>>,
}

impl Content {
    /// Whether a part of it could not be read.
    pub fn is_damaged(&self) -> bool {
        !self.unreadable.is_empty()
    }
}

/// Reads a small file; `None` if it does not exist. A file that cannot be opened because of damage
/// is unreadable as a whole.
pub fn read_whole(fs: &dyn Fs, path: &Path) -> io::Result<Option<Content>> {
    let file = match fs.open(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        // The inode itself is unreadable, so the length is unknown.
        Err(why) if is_damage(&why) => {
            return Ok(Some(Content {
                bytes: Vec::new(),
                unreadable: std::iter::once(0..SECTOR_BYTES as u64).collect(),
            }));
        }
        opened => opened?,
    };

    for _ in 0..SHRINKS_MAX {
        // The size first: a small file is read in one piece.
        let size = file.size()?;
        let len = usize::try_from(size).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut bytes = vec![0; len];

        match read_at(&*file, &mut bytes, 0)? {
            Outcome::Whole => {
                return Ok(Some(Content {
                    bytes,
                    unreadable: Vec::new(),
                }));
            }
            Outcome::Damaged(unreadable) => return Ok(Some(Content { bytes, unreadable })),
            // Another process replaced its content by a shorter one.
            Outcome::End => {}
        }
    }

    // No process does that so often, so the file system reports a wrong size.
    Err(io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the file ends before the size that the file system tells",
    ))
}

/// How often a small file may become shorter while it is read.
const SHRINKS_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Disk;
    use super::super::faults::{Act, Fault, Faults, Plan};
    use super::*;

    const SECTOR: u64 = SECTOR_BYTES as u64;

    fn bench(bytes: &[u8]) -> (tempfile::TempDir, Arc<Plan>, Faults, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, bytes).unwrap();
        let plan = Arc::new(Plan::default());
        let fs = Faults::over(Arc::new(Disk), plan.clone());
        (dir, plan, fs, path)
    }

    /// A file of 3 bytes whose size is told wrong, or right after some looks.
    #[derive(Debug)]
    struct Shrinking {
        wrong: std::sync::atomic::AtomicUsize,
    }

    impl Fs for Shrinking {
        fn open(&self, _: &Path) -> io::Result<Box<dyn FsFile>> {
            let wrong = self.wrong.load(std::sync::atomic::Ordering::Relaxed);
            let wrong = std::sync::atomic::AtomicUsize::new(wrong);
            Ok(Box::new(Self { wrong }))
        }
        fn create(&self, path: &Path) -> io::Result<Box<dyn FsFile>> {
            self.open(path)
        }
        fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn FsFile>> {
            self.open(path)
        }
        fn make_dir(&self, _: &Path) -> io::Result<()> {
            Ok(())
        }
        fn sync_dir(&self, _: &Path) -> io::Result<()> {
            Ok(())
        }
        fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
            Ok(())
        }
        fn remove_file(&self, _: &Path) -> io::Result<()> {
            Ok(())
        }
        fn remove_dir_all(&self, _: &Path) -> io::Result<()> {
            Ok(())
        }
        fn space(&self, path: &Path) -> io::Result<super::super::Space> {
            Disk.space(path)
        }
    }

    impl FsFile for Shrinking {
        fn write_all_at(&self, _: &[u8], _: u64) -> io::Result<()> {
            Ok(())
        }
        fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
            let end = usize::try_from(offset).unwrap() + buffer.len();
            if end > 3 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            buffer.fill(b'x');
            Ok(())
        }
        fn sync_data(&self) -> io::Result<()> {
            Ok(())
        }
        fn sync_all(&self) -> io::Result<()> {
            Ok(())
        }
        fn set_len(&self, _: u64) -> io::Result<()> {
            Ok(())
        }
        fn set_mode(&self, _: u32) -> io::Result<()> {
            Ok(())
        }
        fn size(&self) -> io::Result<u64> {
            let order = std::sync::atomic::Ordering::Relaxed;
            let less = |n: usize| n.checked_sub(1);
            let is_wrong = self.wrong.fetch_update(order, order, less).is_ok();
            Ok(if is_wrong { 7 } else { 3 })
        }
    }

    #[test]
    fn a_file_that_becomes_shorter_is_read_and_one_without_end_is_an_error() {
        let read = |wrong: usize| {
            let wrong = std::sync::atomic::AtomicUsize::new(wrong);
            read_whole(&Shrinking { wrong }, Path::new("SEQUENCE"))
        };
        assert_eq!(read(5).unwrap().unwrap().bytes, b"xxx");
        let error = read(usize::MAX).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{error}");
    }

    #[test]
    fn all_but_the_bad_sectors_is_read() {
        let content: Vec<u8> = (1..=250).cycle().take(100_000).collect();
        for bad in [
            0..1,
            4096..4097,
            8191..8193,
            50_000..70_000,
            99_999..100_000,
        ] {
            let (_dir, plan, fs, path) = bench(&content);
            let sectors = bad.start / SECTOR * SECTOR..bad.end.next_multiple_of(SECTOR);
            plan.add_bad_sector("log", sectors);
            let file = fs.open(&path).unwrap();
            for (from, to) in [(0, 100_000), (5, 99_990), (4096, 8192), (40_000, 60_001)] {
                let mut buffer = vec![7; to - from];
                let outcome = read_at(&*file, &mut buffer, from as u64).unwrap();
                let first = bad.start / SECTOR * SECTOR;
                let behind = bad.end.next_multiple_of(SECTOR);
                let lost = first.max(from as u64)..behind.min(to as u64);
                if lost.is_empty() {
                    assert_eq!((outcome, &*buffer), (Outcome::Whole, &content[from..to]));
                    continue;
                }
                assert_eq!(outcome, Outcome::Damaged(vec![lost.clone()]), "{bad:?}");
                for (byte, at) in buffer.iter().zip(from..) {
                    let expected = if lost.contains(&(at as u64)) {
                        0
                    } else {
                        content[at]
                    };
                    assert_eq!(*byte, expected, "{bad:?}: byte {at}");
                }
            }
            let mut buffer = vec![0; 10];
            let end = read_at(&*file, &mut buffer, 99_995).unwrap();
            assert!(
                end == Outcome::End || bad.end == 100_000,
                "{bad:?}: {end:?}"
            );
        }
    }

    #[test]
    fn only_errors_that_name_damage_are_damage() {
        for (errno, damaged) in [
            (Errno::IO, true),
            (Errno::UCLEAN, true),
            (Errno::BADMSG, true),
            (Errno::ILSEQ, true),
            (Errno::NODATA, true),
            (Errno::NOSPC, false),
            (Errno::MFILE, false),
            (Errno::NOMEM, false),
            (Errno::STALE, false),
        ] {
            let (_dir, plan, fs, path) = bench(&[1; 9000]);
            plan.add(Fault::lasting(Act::Read, errno));
            match read_whole(&fs, &path) {
                Ok(Some(content)) => {
                    assert!(damaged, "{errno:?}");
                    assert_eq!(content.unreadable, vec![0..9000; 1]);
                }
                Ok(None) => panic!("it exists"),
                Err(why) => {
                    assert!(!damaged, "{errno:?}");
                    assert_eq!(Errno::from_io_error(&why), Some(errno));
                }
            }
        }
        let (_dir, _, fs, path) = bench(b"text");
        assert_eq!(read_whole(&fs, &path).unwrap().unwrap().bytes, b"text");
        let missing = read_whole(&fs, &path.with_file_name("none")).unwrap();
        assert_eq!(missing, None);
    }

    #[test]
    fn an_error_to_try_again_in_one_half_is_the_error_of_the_read() {
        let (_dir, plan, fs, path) = bench(&vec![1; 20_000]);
        plan.add_bad_sector("log", 0..SECTOR);
        plan.add(Fault {
            from: 3,
            ..Fault::once(Act::Read, Errno::NOMEM)
        });
        let why = read_whole(&fs, &path).unwrap_err();
        assert_eq!(Errno::from_io_error(&why), Some(Errno::NOMEM));
    }
}
