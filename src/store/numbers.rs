//! Sequence numbers: each is given out once, whatever happens.
//!
//! A number may have been seen and its entry lost all the same: a power cut took what was answered before it was
//! synced, somebody deleted a file. So numbers are set aside on disk before they are given out, many at a
//! time ([`NUMBERS_AHEAD`](crate::limits::NUMBERS_AHEAD)), and a start after a crash goes on behind those.
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
    /// Goes on behind `used`, the number after the last one in the log, and behind what the file says.
    pub fn open(
        medium: &Arc<dyn Medium>,
        state_dir: &Path,
        used: SeqNo,
        ahead: u64,
    ) -> Result<Self, StoreError> {
        let path = state_dir.join("SEQUENCE");
        let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.trim_end().parse().ok().map(SeqNo);
        let next = match std::fs::read(&path) {
            Ok(bytes) => number(&bytes).map_or_else(
                || {
                    let next = SeqNo(used.0.saturating_add(ahead));
                    tracing::error!(
                        path = %path.display(), going_on_at = next.0,
                        "expected one number in this file; those that may have been given out are passed over"
                    );
                    next
                },
                |said| used.max(said),
            ),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => used,
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

    #[test]
    fn no_number_is_given_out_twice() {
        let dir = tempfile::tempdir().unwrap();
        let open =
            |used| Numbers::open(&(Arc::new(Disk) as Arc<dyn Medium>), dir.path(), SeqNo(used), 100).unwrap();
        let mut numbers = open(5);
        numbers.reserve(2).unwrap();
        assert_eq!([numbers.take(), numbers.take()], [SeqNo(5), SeqNo(6)]);
        // A crash: the log may have kept nothing of it.
        let after = open(1).next();
        assert_eq!(after, SeqNo(107));
        numbers.give_back();
        assert_eq!(open(1).next(), SeqNo(7));
        assert_eq!(open(9).next(), SeqNo(9));
        std::fs::write(dir.path().join("SEQUENCE"), "many\n").unwrap();
        assert_eq!(open(9).next(), SeqNo(109));
    }
}
