//! Sequence numbers: each is given out once, whatever happens.
//!
//! A number may have been seen and its entry lost all the same: a power cut took what was answered before it was
//! synced, somebody deleted a file. So numbers are set aside on disk before they are given out, many at a
//! time ([`NUMBERS_AHEAD`](crate::limits::NUMBERS_AHEAD)), and a start after a crash goes on behind those. Where the file is lost or
//! unreadable, a start skips as many as may have been reserved.
//!
//! # On disk
//!
//! ```text
//! SEQUENCE    decimal digits and a newline: every number below may have been given out
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::{StoreError, io_at};
use super::medium::Medium;
use crate::model::SeqNo;

/// The numbers that are left to give out.
#[derive(Debug)]
pub struct Numbers {
    medium: Arc<dyn Medium>,
    path: PathBuf,
    next: SeqNo,
    /// Set aside on disk up to here.
    end: SeqNo,
    /// How many are set aside at once.
    ahead: u64,
}

impl Numbers {
    /// Continues after `used`, the number after the last one in the log, and after what the file names.
    pub fn open(
        medium: &Arc<dyn Medium>,
        state_dir: &Path,
        used: SeqNo,
        ahead: u64,
    ) -> Result<Self, StoreError> {
        let path = state_dir.join("SEQUENCE");
        let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.trim_end().parse().ok().map(SeqNo);
        // At the end of all numbers it stays there: `reserve` refuses.
        let skipped = || SeqNo(used.0.saturating_add(ahead));
        let next = match std::fs::read(&path) {
            Ok(bytes) => number(&bytes).map_or_else(
                || {
                    let next = skipped();
                    tracing::error!(
                        path = %path.display(), going_on_at = next.0,
                        "expected one number in this file; those that may have been given out are passed over"
                    );
                    next
                },
                |said| {
                    if used > said {
                        tracing::error!(
                            path = %path.display(), says = said.0, going_on_at = used.0,
                            "this file is older than the log: numbers of lost entries may be given out again"
                        );
                    }
                    used.max(said)
                },
            ),
            // A new store has given out none.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && used == SeqNo::FIRST => used,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let next = skipped();
                tracing::error!(
                    path = %path.display(), next = next.0,
                    "file not found, skipping sequence numbers that may have been given out"
                );
                next
            }
            Err(why) => return Err(io_at("read", &path)(why)),
        };
        Ok(Self { medium: medium.clone(), path, next, end: next, ahead })
    }

    /// The number that the next entry gets.
    pub fn next(&self) -> SeqNo {
        self.next
    }

    /// Makes sure that `count` numbers can be taken.
    pub fn reserve(&mut self, count: usize) -> Result<(), StoreError> {
        let exhausted = StoreError::Broken("sequence numbers are exhausted");
        let wanted = self.next.0.checked_add(count as u64);
        let Some((wanted, ahead)) = wanted.and_then(|n| Some((n, n.checked_add(self.ahead)?))) else {
            return Err(exhausted);
        };
        if wanted > self.end.0 {
            self.keep(SeqNo(ahead))?;
        }
        Ok(())
    }

    /// Gives one out.
    pub fn take(&mut self) -> SeqNo {
        let seq = self.next;
        assert!(seq < self.end, "a number is set aside on disk before it is given out");
        self.next = seq.next();
        seq
    }

    /// At an orderly end: the rest was never given out.
    pub fn give_back(&mut self) {
        if self.end > self.next
            && let Err(error) = self.keep(self.next)
        {
            tracing::warn!(%error, "sequence numbers that were set aside will be passed over");
        }
    }

    fn keep(&mut self, end: SeqNo) -> Result<(), StoreError> {
        let words = format!("{}\n", end.0);
        self.medium.write_whole(&self.path, words.as_bytes()).map_err(io_at("write", &self.path))?;
        self.end = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::medium::Disk;
    use super::*;

    fn open(dir: &Path, used: u64) -> Numbers {
        Numbers::open(&(Arc::new(Disk) as Arc<dyn Medium>), dir, SeqNo(used), 100).unwrap()
    }

    #[test]
    fn no_number_is_given_out_twice() {
        let dir = tempfile::tempdir().unwrap();
        let open = |used| open(dir.path(), used);
        let mut numbers = open(1);
        numbers.reserve(2).unwrap();
        assert_eq!([numbers.take(), numbers.take()], [SeqNo(1), SeqNo(2)]);
        // A crash: the log may have kept nothing of it.
        assert_eq!(open(1).next(), SeqNo(103));
        numbers.give_back();
        assert_eq!(open(1).next(), SeqNo(3));
        assert_eq!(open(9).next(), SeqNo(9));
        std::fs::write(dir.path().join("SEQUENCE"), "many\n").unwrap();
        assert_eq!(open(9).next(), SeqNo(109));
    }

    #[test]
    fn without_its_file_numbers_of_lost_entries_were_given_out_again() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(open(dir.path(), 1).next(), SeqNo(1), "a new store");
        assert_eq!(open(dir.path(), 5).next(), SeqNo(105));
    }

    #[test]
    fn the_last_numbers_are_refused_and_never_given_out_twice() {
        for last in [u64::MAX, u64::MAX - 1, u64::MAX - 100] {
            for file in [None, Some(last.to_string()), Some("many".to_owned())] {
                let dir = tempfile::tempdir().unwrap();
                if let Some(words) = file {
                    std::fs::write(dir.path().join("SEQUENCE"), words).unwrap();
                }
                let mut numbers = open(dir.path(), last);
                let error = numbers.reserve(1).unwrap_err().to_string();
                assert!(error.contains("sequence numbers are exhausted"), "{error}");
            }
        }
    }
}
