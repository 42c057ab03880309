//! A compressed set of sequence numbers: a bitmap per page of 65,536 numbers, and nothing for a
//! full page.

use std::collections::BTreeMap;

use crate::model::SeqNo;

const PAGE_BITS: u64 = 1 << 16;

#[derive(Debug)]
enum Page {
    Full,
    Part { bits: Box<[u64]>, count: u64 },
}

#[derive(Debug, Default)]
pub(crate) struct SeqSet(BTreeMap<u64, Page>);

impl SeqSet {
    /// Inserts a number; false if it is present already.
    pub(crate) fn insert(&mut self, seq: SeqNo) -> bool {
        // A store of a hundred million entries needs 12 MB as bits, and almost nothing once pages
        // are full.
        let words = usize::try_from(PAGE_BITS / 64).unwrap_or(0);
        let empty = || Page::Part {
            bits: vec![0; words].into_boxed_slice(),
            count: 0,
        };
        let page = self.0.entry(seq.0 / PAGE_BITS).or_insert_with(empty);
        // All of its numbers are present.
        let Page::Part { bits, count } = page else {
            return false;
        };

        let at = seq.0 % PAGE_BITS;
        let Some(word) = usize::try_from(at / 64)
            .ok()
            .and_then(|at| bits.get_mut(at))
        else {
            return false;
        };

        let is_new = *word & (1 << (at % 64)) == 0;
        *word |= 1 << (at % 64);
        *count += u64::from(is_new);
        // The bits are not needed any more.
        if *count == PAGE_BITS {
            *page = Page::Full;
        }
        is_new
    }

    pub(crate) fn has(&self, seq: SeqNo) -> bool {
        match self.0.get(&(seq.0 / PAGE_BITS)) {
            None => false,
            Some(Page::Full) => true,
            Some(Page::Part { bits, .. }) => {
                let at = seq.0 % PAGE_BITS;
                let word = usize::try_from(at / 64).ok().and_then(|at| bits.get(at));
                word.is_some_and(|word| word & (1 << (at % 64)) != 0)
            }
        }
    }

    /// Number of absent numbers between `after` and `before`, both exclusive.
    pub(crate) fn missing_between(&self, after: SeqNo, before: SeqNo) -> u64 {
        let mut missing = 0;
        let mut at = after.0.saturating_add(1);
        // A page at a time: gaps after a restore span billions of numbers.
        while at < before.0 {
            let page_end = (at / PAGE_BITS + 1).saturating_mul(PAGE_BITS).min(before.0);
            match self.0.get(&(at / PAGE_BITS)) {
                None => missing += page_end - at,
                Some(Page::Full) => {}
                Some(Page::Part { .. }) => {
                    missing += (at..page_end).filter(|seq| !self.has(SeqNo(*seq))).count() as u64;
                }
            }
            at = page_end;
        }
        missing
    }

    /// Number of present numbers from `first` to `last`, both inclusive.
    pub(crate) fn count_between(&self, first: SeqNo, last: SeqNo) -> u64 {
        let pages = self
            .0
            .range(first.0 / PAGE_BITS..=last.0.max(first.0) / PAGE_BITS);

        let count = |(page, _): (&u64, &Page)| {
            let from = first.0.max(page * PAGE_BITS);
            let to = last.0.min(page * PAGE_BITS + (PAGE_BITS - 1));
            let before = SeqNo(from.saturating_sub(1));
            // Zero is no sequence number.
            let all = (to + 1).saturating_sub(from.max(1));
            all - self.missing_between(before, SeqNo(to + 1)).min(all)
        };
        pages.map(count).sum()
    }

    pub(crate) fn last(&self) -> Option<SeqNo> {
        let (number, page) = self.0.last_key_value()?;
        let first = number * PAGE_BITS;
        match page {
            Page::Full => Some(SeqNo(first + PAGE_BITS - 1)),
            Page::Part { .. } => (first..first + PAGE_BITS)
                .rev()
                .map(SeqNo)
                .find(|seq| self.has(*seq)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_inserted_once_also_into_a_full_page() {
        let mut set = SeqSet::default();
        for seq in 1..=PAGE_BITS * 2 {
            assert!(set.insert(SeqNo(seq)));
        }
        assert!(!set.insert(SeqNo(5)) && !set.insert(SeqNo(PAGE_BITS + 5)));
        assert!(set.insert(SeqNo(PAGE_BITS * 5)));
        assert!(set.has(SeqNo(1)) && set.has(SeqNo(PAGE_BITS * 2)) && !set.has(SeqNo(0)));
        assert_eq!(set.missing_between(SeqNo(10), SeqNo(PAGE_BITS * 2 + 1)), 0);
        assert_eq!(
            set.missing_between(SeqNo(10), SeqNo(PAGE_BITS * 2 + 11)),
            10
        );
        assert_eq!(
            set.missing_between(SeqNo(1), SeqNo(PAGE_BITS * 6)),
            PAGE_BITS * 4 - 2
        );
        assert_eq!(set.last(), Some(SeqNo(PAGE_BITS * 5)));
        let count = |first, last| set.count_between(SeqNo(first), SeqNo(last));
        assert_eq!(count(1, PAGE_BITS * 2), PAGE_BITS * 2);
        assert_eq!(count(5, 9), 5);
        assert_eq!(count(PAGE_BITS * 2 - 3, PAGE_BITS * 6), 5);
        assert_eq!(
            [
                count(9, 5),
                count(PAGE_BITS * 3, PAGE_BITS * 4),
                count(1 << 40, 1 << 41)
            ],
            [0; 3]
        );
    }
}
