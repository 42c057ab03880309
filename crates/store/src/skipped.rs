//! Sequence numbers that were never assigned: a restored or salvaged store continues far behind the numbers that its original
//! may have assigned.

use saltcellar_model::SeqNo;

/// Sequence numbers that were never assigned, from `first` to before `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SkippedNumbers {
    /// The first one.
    pub first: SeqNo,
    /// The one after the last.
    pub end: SeqNo,
}

impl SkippedNumbers {
    /// How many of them are at least `from` and below `to`.
    pub(crate) fn count_between(self, from: SeqNo, to: SeqNo) -> u64 {
        let end = self.end.0.min(to.0);
        end.saturating_sub(self.first.0.max(from.0))
    }
}
