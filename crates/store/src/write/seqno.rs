//! Allocation of sequence numbers; none is assigned twice.
//!
//! A reader may have seen a number whose entry is lost: a power loss before a delayed sync, a
//! deleted file. Numbers are therefore reserved on disk in batches of
//! [`NUMBERS_AHEAD`](saltcellar_base::limits::NUMBERS_AHEAD) before use, and a start after a crash
//! continues after the reserved batch. If the file is missing or malformed, a start skips one
//! batch.
//!
//! A restored or salvaged store continues far behind the numbers that its predecessor may have
//! assigned. Those in between are `skipped`: no entry of this store has them, and none was lost
//! under them.
//!
//! The numbers are a file, and not among the settings: they are read before any log, because a
//! frame with a number that was never reserved is not trusted.
//!
//! # On disk
//!
//! ```text
//! SEQUENCE    decimal digits: all numbers below may have been assigned
//!             skipped <first> <end>      numbers from `first` to before `end` that were never assigned; any number of lines
//!             sum <xxh3-64 of the lines above, hex>
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{StoreError, io_at};
use crate::format::{read_small, with_sum, without_sum};
use crate::skipped::SkippedNumbers;
use crate::vfs::Fs;
use saltcellar_model::SeqNo;

pub(crate) const SEQUENCE: &str = "SEQUENCE";

/// The content of the file `SEQUENCE`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SequenceFile {
    /// All numbers below may have been assigned.
    pub(crate) end: SeqNo,
    pub(crate) skipped: Vec<SkippedNumbers>,
}

impl SequenceFile {
    /// Reads the file of a state directory: `None` if it does not exist, `Some(None)` if it is
    /// malformed or unreadable.
    #[expect(
        clippy::option_option,
        reason = "a missing file and a malformed one have other consequences"
    )]
    pub(crate) fn read(fs: &dyn Fs, state_dir: &Path) -> Result<Option<Option<Self>>, StoreError> {
        let content = read_small(fs, &state_dir.join(SEQUENCE))?;
        Ok(content.map(|content| Self::parse(&content.bytes)))
    }

    /// Parses the file; `None` if it is malformed or its checksum does not match.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        // The checksum first: a changed digit would be a valid number.
        let mut lines = without_sum(bytes)?.lines();
        let end = SeqNo(lines.next()?.parse().ok()?);

        let skipped = lines.map(|line| {
            let (first, end) = line.strip_prefix("skipped ")?.split_once(' ')?;
            Some(SkippedNumbers {
                first: SeqNo(first.parse().ok()?),
                end: SeqNo(end.parse().ok()?),
            })
        });

        let skipped = skipped.collect::<Option<_>>()?;
        Some(Self { end, skipped })
    }

    pub(crate) fn text(&self) -> String {
        let skipped = self.skipped.iter();
        let lines = skipped.map(|range| format!("skipped {} {}\n", range.first.0, range.end.0));
        with_sum(&format!("{}\n{}", self.end.0, lines.collect::<String>()))
    }
}

#[derive(Debug)]
pub(crate) struct SeqNos {
    fs: Arc<dyn Fs>,
    path: PathBuf,
    next: SeqNo,
    /// End of the numbers reserved on disk.
    end: SeqNo,
    /// Size of a batch.
    ahead: u64,
    skipped: Vec<SkippedNumbers>,
    problem_at_start: Option<&'static str>,
}

impl SeqNos {
    /// Continues at the greater of `used`, the number after the last one in the log, and the number
    /// in the file.
    pub(crate) fn open(
        fs: &Arc<dyn Fs>,
        state_dir: &Path,
        used: SeqNo,
        ahead: u64,
    ) -> Result<Self, StoreError> {
        let path = state_dir.join(SEQUENCE);

        let file = SequenceFile::read(&**fs, state_dir)?;
        let stored = file.as_ref().map(|file| file.as_ref().map(|file| file.end));
        let skipped = file.flatten().unwrap_or_default().skipped;
        let mut problem = None;

        let next = match stored {
            Some(Some(stored)) => {
                // The log has numbers that were never reserved here: an older file was put back, or
                // the disk lost an update.
                if used > stored {
                    problem = Some(
                        "older than the log: numbers of lost entries may be reused; was an older file restored?",
                    );

                    tracing::error!(
                        path = %path.display(), stored = stored.0, next = used.0,
                        "file older than the log, sequence numbers of lost entries may be reused: run `saltcellar store verify`, and do not restore single files"
                    );
                }
                // Never below either of them: both may have been seen by readers.
                used.max(stored)
            }
            // Neither file nor log: no number was ever assigned.
            None if used == SeqNo::FIRST => used,
            None | Some(None) => {
                // Saturates at the last number, where `reserve` fails.
                let next = SeqNo(used.0.saturating_add(ahead));
                problem = Some(
                    "missing or malformed at the start: numbers that may have been assigned were skipped, nothing is lost",
                );
                tracing::error!(
                    path = %path.display(), next = next.0,
                    "file missing, malformed or unreadable, skipping sequence numbers that may be in use, nothing is lost by that: if nobody changed the file, check the disk and run `saltcellar store verify`"
                );
                next
            }
        };

        Ok(Self {
            fs: fs.clone(),
            path,
            next,
            end: next,
            ahead,
            skipped,
            problem_at_start: problem,
        })
    }

    /// What was wrong with the file when it was read.
    pub(crate) fn problem_at_start(&self) -> Option<&'static str> {
        self.problem_at_start
    }

    pub(crate) fn next(&self) -> SeqNo {
        self.next
    }

    /// The numbers that were never assigned.
    /// Reserves at least `count` numbers on disk.
    pub(crate) fn reserve(&mut self, count: usize) -> Result<(), StoreError> {
        let exhausted = StoreError::Broken("sequence numbers are exhausted");
        let wanted = self.next.0.checked_add(count as u64);
        // The last batch must fit as a whole, so numbers run out a little early.
        let Some((wanted, ahead)) = wanted.and_then(|n| Some((n, n.checked_add(self.ahead)?)))
        else {
            return Err(exhausted);
        };
        // Rarely: once in `NUMBERS_AHEAD` numbers, and before any of them is used.
        if wanted > self.end.0 {
            self.write_end(SeqNo(ahead))?;
        }
        Ok(())
    }

    /// Assigns a number; it must be reserved.
    pub(crate) fn take(&mut self) -> SeqNo {
        let seq = self.next;
        assert!(
            seq < self.end,
            "a sequence number is reserved before it is assigned"
        );
        self.next = seq.next();
        seq
    }

    /// Returns the unused rest of the batch at shutdown.
    pub(crate) fn release_unused(&mut self) {
        if self.end > self.next
            && let Err(error) = self.write_end(self.next)
        {
            tracing::warn!(%error, "cannot return reserved sequence numbers, the next start skips them");
        }
    }

    fn write_end(&mut self, end: SeqNo) -> Result<(), StoreError> {
        // Skipped ranges are kept forever: they are what distinguishes them from lost entries.
        let file = SequenceFile {
            end,
            skipped: self.skipped.clone(),
        };

        self.fs
            .write_whole(&self.path, file.text().as_bytes())
            .map_err(io_at("write", &self.path))?;

        // Only after success: a failed reservation must assign nothing.
        self.end = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::Disk;

    fn open(dir: &Path, used: u64) -> SeqNos {
        SeqNos::open(&(Arc::new(Disk) as Arc<dyn Fs>), dir, SeqNo(used), 100).unwrap()
    }

    #[test]
    fn no_number_is_assigned_twice() {
        let dir = tempfile::tempdir().unwrap();
        let open = |used| open(dir.path(), used);
        let mut numbers = open(1);
        numbers.reserve(2).unwrap();
        assert_eq!([numbers.take(), numbers.take()], [SeqNo(1), SeqNo(2)]);
        // A crash: the log may have lost both entries.
        assert_eq!(open(1).next(), SeqNo(103));
        numbers.release_unused();
        assert_eq!(open(1).next(), SeqNo(3));
        assert_eq!(open(9).next(), SeqNo(9));
        std::fs::write(dir.path().join("SEQUENCE"), "many\n").unwrap();
        assert_eq!(open(9).next(), SeqNo(109));
    }

    #[test]
    fn skipped_numbers_stay_in_the_file_and_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let (first, end) = (SeqNo(10), SeqNo(1000));
        let file = SequenceFile {
            end,
            skipped: vec![SkippedNumbers { first, end }],
        };
        std::fs::write(dir.path().join(SEQUENCE), file.text()).unwrap();
        let mut numbers = open(dir.path(), 10);
        assert_eq!(
            (numbers.next(), &numbers.skipped[..]),
            (end, &file.skipped[..])
        );
        numbers.reserve(1).unwrap();
        let found = SequenceFile::read(&Disk, dir.path())
            .unwrap()
            .flatten()
            .unwrap();
        assert_eq!(
            (found.end, found.skipped),
            (SeqNo(1101), file.skipped.clone())
        );
        let count = |from, to| file.skipped[0].count_between(SeqNo(from), SeqNo(to));
        assert_eq!(
            [
                count(0, 10),
                count(5, 11),
                count(990, 2000),
                count(1000, 2000),
                count(0, 5000)
            ],
            [0, 1, 10, 0, 990]
        );
    }

    #[test]
    fn without_the_file_one_batch_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(open(dir.path(), 1).next(), SeqNo(1), "a new store");
        assert_eq!(open(dir.path(), 5).next(), SeqNo(105));
    }

    #[test]
    fn exhausted_sequence_numbers_are_rejected() {
        for last in [u64::MAX, u64::MAX - 1, u64::MAX - 100] {
            for file in [
                None,
                Some(
                    SequenceFile {
                        end: SeqNo(last),
                        ..SequenceFile::default()
                    }
                    .text(),
                ),
                Some("many".to_owned()),
            ] {
                let dir = tempfile::tempdir().unwrap();
                if let Some(text) = file {
                    std::fs::write(dir.path().join("SEQUENCE"), text).unwrap();
                }
                let mut numbers = open(dir.path(), last);
                let error = numbers.reserve(1).unwrap_err().to_string();
                assert!(error.contains("sequence numbers are exhausted"), "{error}");
            }
        }
    }
}
