//! Allocation of sequence numbers; none is assigned twice.
//!
//! A reader may have seen a number whose entry is lost: a power cut before a delayed sync, a deleted file. Numbers are
//! therefore reserved on disk in batches of [`NUMBERS_AHEAD`](crate::base::limits::NUMBERS_AHEAD) before use, and a start after a
//! crash continues after the reserved batch. If the file is missing or malformed, a start skips one batch.
//!
//! # On disk
//!
//! ```text
//! SEQUENCE    decimal digits, newline: all numbers below may have been assigned
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::model::SeqNo;
use crate::store::error::{StoreError, io_at};
use crate::store::format::read_if_exists;
use crate::store::vfs::Fs;

#[derive(Debug)]
pub(crate) struct SeqNos {
    fs: Arc<dyn Fs>,
    path: PathBuf,
    next: SeqNo,
    /// End of the numbers reserved on disk.
    end: SeqNo,
    /// Size of a batch.
    ahead: u64,
}

impl SeqNos {
    /// Continues at the greater of `used`, the number after the last one in the log, and the number in the file.
    pub(crate) fn open(
        fs: &Arc<dyn Fs>,
        state_dir: &Path,
        used: SeqNo,
        ahead: u64,
    ) -> Result<Self, StoreError> {
        let path = state_dir.join("SEQUENCE");
        let number = |bytes: Vec<u8>| {
            str::from_utf8(&bytes)
                .ok()?
                .trim_end()
                .parse()
                .ok()
                .map(SeqNo)
        };
        let stored = read_if_exists(&path)?.map(number);
        let next = match stored {
            Some(Some(stored)) => {
                if used > stored {
                    tracing::error!(
                        path = %path.display(), stored = stored.0, next = used.0,
                        "file older than the log, sequence numbers of lost entries may be assigned again"
                    );
                }
                used.max(stored)
            }
            // A new store.
            None if used == SeqNo::FIRST => used,
            None | Some(None) => {
                // Saturates at the last number, where `reserve` fails.
                let next = SeqNo(used.0.saturating_add(ahead));
                tracing::error!(
                    path = %path.display(), next = next.0,
                    "file missing or malformed, skipping sequence numbers that may have been assigned"
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
        })
    }

    pub(crate) fn next(&self) -> SeqNo {
        self.next
    }

    /// Reserves at least `count` numbers on disk.
    pub(crate) fn reserve(&mut self, count: usize) -> Result<(), StoreError> {
        let exhausted = StoreError::Broken("sequence numbers are exhausted");
        let wanted = self.next.0.checked_add(count as u64);
        let Some((wanted, ahead)) = wanted.and_then(|n| Some((n, n.checked_add(self.ahead)?)))
        else {
            return Err(exhausted);
        };
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
        let text = format!("{}\n", end.0);
        self.fs
            .write_whole(&self.path, text.as_bytes())
            .map_err(io_at("write", &self.path))?;
        self.end = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::vfs::Disk;

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
    fn without_the_file_one_batch_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(open(dir.path(), 1).next(), SeqNo(1), "a new store");
        assert_eq!(open(dir.path(), 5).next(), SeqNo(105));
    }

    #[test]
    fn exhausted_sequence_numbers_are_rejected() {
        for last in [u64::MAX, u64::MAX - 1, u64::MAX - 100] {
            for file in [None, Some(last.to_string()), Some("many".to_owned())] {
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
