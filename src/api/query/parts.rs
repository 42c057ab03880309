//! The content of a job's answers, read in parts: the returns of a whole job may not fit into memory.
//!
//! # Invariant
//!
//! What is in memory of the returns of a job at a time has at most [`PART_BYTES`], or is of one minion. Only a job's list of answers is
//! whole, without content ([`Job::read_heads`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use super::answer::Answer;
use super::job::Job;
use super::others::Others;
use crate::base::limits::{PART_BYTES, PART_MINIONS, PART_MINIONS_MIN};
use crate::model::SeqNo;
use crate::store::{StoreError, StoreView};

/// Answers with their content, by minion.
pub(crate) type Answers = BTreeMap<String, Answer>;

/// The returns of a minion in a job, as far as the log has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// Bytes of all of them, also of those that are equal to others.
    bytes: usize,
    first: SeqNo,
    last: SeqNo,
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

    /// The next part; `None` at the end. `bytes` are those of a minion's returns.
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

impl Job {
    /// Bytes of the returns of a minion.
    pub(crate) fn bytes_of(&self, minion: &str) -> usize {
        self.answers
            .get(minion)
            .map_or(0, |answer| answer.extent.bytes)
    }

    /// The minions that have answered, in the order of the log: a walk over them reads each part of it once.
    pub(crate) fn answered_in_order(&self) -> Vec<&str> {
        let mut minions: Vec<_> = self.answers.iter().collect();
        minions.sort_unstable_by_key(|(_, answer)| answer.extent.first);
        minions.into_iter().map(|(minion, _)| &**minion).collect()
    }

    /// What the returns of some of its minions add to it. The caller sees to it that they are no more than a part.
    pub(super) fn part(&self, store: &StoreView, minions: &[&str]) -> Result<Self, StoreError> {
        let known = minions.iter().filter_map(|id| self.answers.get(*id));
        let spans = known.map(|answer| (answer.extent.first, answer.extent.last));
        let span = spans.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)));
        let Some((first, last)) = span else {
            return Ok(Self::default());
        };

        let wanted: BTreeSet<&str> = minions.iter().copied().collect();
        let is_wanted = |minion: &str| wanted.contains(minion);
        let entries = store.returns_between(&self.jid, (first, last.next()), is_wanted)?;
        // None if retention has dropped them since.
        Ok(Self::of_part(entries, self.confirmed_only).unwrap_or_default())
    }

    /// The answers of some of its minions with their content. The caller sees to it that they are no more than a part.
    pub(crate) fn answers_of(
        &self,
        store: &StoreView,
        others: &Others,
        minions: &[&str],
    ) -> Result<Answers, StoreError> {
        let mut part = self.part(store, minions)?;
        others.settle(&mut part);
        Ok(part.answers)
    }

    /// Calls `take` with the answers of these minions and their content.
    pub(crate) fn each_answer(
        &self,
        store: &StoreView,
        others: &Others,
        minions: &[&str],
        mut take: impl FnMut(&Answer),
    ) -> Result<(), StoreError> {
        let take = |answer: &Answer| {
            take(answer);
            ControlFlow::Continue(())
        };
        self.walk(store, others, Parts::of_all(minions), take)
    }

    /// Whether one of the answers of these minions is meant.
    pub(crate) fn any_answer(
        &self,
        store: &StoreView,
        others: &Others,
        minions: &[&str],
        mut is_meant: impl FnMut(&Answer) -> bool,
    ) -> Result<bool, StoreError> {
        let mut found = false;
        let take = |answer: &Answer| {
            found = is_meant(answer);
            if found {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let parts = Parts::beginning_with(minions, PART_MINIONS_MIN);
        self.walk(store, others, parts, take)?;
        Ok(found)
    }

    fn walk(
        &self,
        store: &StoreView,
        others: &Others,
        mut parts: Parts<'_, &str>,
        mut take: impl FnMut(&Answer) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        while let Some(part) = parts.next(|id| self.bytes_of(id)) {
            let answers = self.answers_of(store, others, part)?;
            let of_part = part.iter().filter_map(|id| answers.get(*id));
            for answer in of_part {
                if take(answer).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// The most bytes of entries of which each job was assembled.
#[cfg(test)]
pub(crate) mod held {
    use std::collections::BTreeMap;

    use parking_lot::Mutex;

    use crate::store::StoredEntry;

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
            parts(&[0; 2 * PART_MINIONS + 1]),
            [PART_MINIONS, PART_MINIONS, 1]
        );
        assert!(parts(&[]).is_empty());
    }

    #[test]
    fn the_parts_of_a_walk_that_may_end_early_grow() {
        let minions = [0; 10_000];
        let mut parts = Parts::beginning_with(&minions, 1);
        let first = std::iter::from_fn(|| parts.next(|_| 1).map(<[i32]>::len)).take(3);
        let first: Vec<_> = first.collect();
        assert_eq!(first, [1, 4, 16].map(|n| n * PART_MINIONS_MIN));
    }
}
