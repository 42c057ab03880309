//! Positions in the log.

use std::fmt;

/// An entry's place in the log: starts at 1, grows by one with each entry of any class, is never used twice.
///
/// As a watermark it means "everything before this": `durable` is the first number not yet synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SeqNo(pub u64);

impl SeqNo {
    /// The first entry of a new store.
    pub const FIRST: SeqNo = SeqNo(1);

    /// The number after this one.
    #[must_use]
    pub fn next(self) -> SeqNo {
        SeqNo(self.0.saturating_add(1))
    }
}

impl fmt::Display for SeqNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
