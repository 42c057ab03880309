//! Positions in the log.

use std::fmt;

/// The number of an entry: starts at 1, increases by one with each entry of any class, and is never reused.
///
/// As a watermark it means "everything before": `durable` is the first number not yet synced.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    serde::Serialize,
    serde::Deserialize,
    rkyv::Archive,
    rkyv::Serialize,
    rkyv::Deserialize,
)]
pub struct SeqNo(pub u64);

impl SeqNo {
    /// The first entry of a new store.
    pub const FIRST: SeqNo = SeqNo(1);

    /// The next number.
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
