//! The parts in which the returns of a job are read: all of them may not fit into memory.
//!
//! # Invariant
//!
//! What is in memory of the returns of a job at a time has at most [`PART_BYTES`], or is of one minion. Only a job's list of answers is
//! whole, without content (`Job::read_heads`).

use crate::base::limits::{PART_BYTES, PART_MINIONS, PART_MINIONS_MIN};
use crate::model::SeqNo;

/// The returns of a minion in a job, as far as the log has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// Bytes of all of them, also of those that are equal to others.
    pub(super) bytes: usize,
    pub(super) first: SeqNo,
    pub(super) last: SeqNo,
}

impl Extent {
    pub(super) fn new(seq: SeqNo, bytes: usize) -> Self {
        Self {
            bytes,
            first: seq,
            last: seq,
        }
    }

    pub(super) fn add(&mut self, seq: SeqNo, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.first = self.first.min(seq);
        self.last = self.last.max(seq);
    }
}

/// Minions in parts whose returns are read together.
#[derive(Debug)]
pub(crate) struct Parts<'m, T> {
    rest: &'m [T],
    minions_max: usize,
}

impl<'m, T> Parts<'m, T> {
    /// For a walk over all of them.
    pub(crate) fn of_all(minions: &'m [T]) -> Self {
        Self::beginning_with(minions, PART_MINIONS)
    }

    /// For a walk that may end early: the first part has about so many minions, and each further one is larger.
    pub(crate) fn beginning_with(minions: &'m [T], count: usize) -> Self {
        Self {
            rest: minions,
            minions_max: count.clamp(PART_MINIONS_MIN, PART_MINIONS),
        }
    }

    /// The next part; `None` at the end. `bytes` tells how long a minion's returns are.
    pub(crate) fn next(&mut self, bytes: impl Fn(&T) -> usize) -> Option<&'m [T]> {
        let mut sum = 0_usize;
        let fits = |minion: &&T| {
            sum = sum.saturating_add(bytes(minion));
            sum <= PART_BYTES
        };
        let count = self.rest.iter().take(self.minions_max).take_while(fits);
        // However long the returns of one minion are, the walk advances.
        let count = count.count().max(1).min(self.rest.len());
        let (part, rest) = self.rest.split_at(count);

        self.rest = rest;
        self.minions_max = self.minions_max.saturating_mul(4).min(PART_MINIONS);
        (!part.is_empty()).then_some(part)
    }
}

/// The most bytes of entries of which each job was assembled.
#[cfg(test)]
pub(crate) mod held {
    use std::collections::BTreeMap;

    use parking_lot::Mutex;

    use crate::store::StoredEntry;

    /// By job. Lock order: no other lock is taken under it.
    static MOST: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

    pub(in crate::api::query) fn note(jid: &str, entries: &[StoredEntry]) {
        let bytes: usize = entries.iter().map(|entry| entry.body.len()).sum();
        let mut most = MOST.lock();
        let known = most.entry(jid.to_owned()).or_default();
        *known = bytes.max(*known);
    }

    /// Of a job whose id occurs in one test only.
    pub(crate) fn most(jid: &str) -> usize {
        MOST.lock().get(jid).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_ends_at_its_bytes_and_has_one_minion_at_least() {
        let parts = |sizes: &[usize]| {
            let mut parts = Parts::of_all(sizes);
            std::iter::from_fn(|| parts.next(|size| *size).map(<[usize]>::len)).collect::<Vec<_>>()
        };
        let third = PART_BYTES / 3;
        assert_eq!(parts(&[third; 7]), [3, 3, 1]);
        assert_eq!(parts(&[1, PART_BYTES, 3 * PART_BYTES, 0, 1]), [1, 1, 1, 2]);
        assert_eq!(
            parts(&vec![0; 2 * PART_MINIONS + 1]),
            [PART_MINIONS, PART_MINIONS, 1]
        );
        assert!(parts(&[]).is_empty());
    }

    #[test]
    fn the_parts_of_a_walk_that_may_end_early_grow() {
        let minions = vec![0; 10_000];
        let mut parts = Parts::beginning_with(&minions, 1);
        let first = std::iter::from_fn(|| parts.next(|_| 1).map(<[i32]>::len)).take(3);
        let first: Vec<_> = first.collect();
        assert_eq!(first, [1, 4, 16].map(|n| n * PART_MINIONS_MIN));
    }
}
