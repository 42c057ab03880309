//! A compressed set of sequence numbers: a bitmap per page of 65,536 numbers, and nothing for a
//! full page.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use saltcellar_model::SeqNo;

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
        self.present(seq.0, seq.0) > 0
    }

    /// Number of absent numbers between `after` and `before`, both exclusive.
    pub(crate) fn missing_between(&self, after: SeqNo, before: SeqNo) -> u64 {
        let first = after.0.saturating_add(1);
        let end = before.0;
        // By the numbers that are there: a gap after a restore spans more pages than can be looked
        // at.
        match end.checked_sub(first) {
            None | Some(0) => 0,
            Some(all) => all - self.present(first, end - 1),
        }
    }

    /// Number of present numbers from `first` to `last`, both inclusive.
    pub(crate) fn count_between(&self, first: SeqNo, last: SeqNo) -> u64 {
        // Zero is no sequence number.
        self.present(first.0.max(1), last.0)
    }

    pub(crate) fn last(&self) -> Option<SeqNo> {
        let (number, page) = self.0.last_key_value()?;
        let of_page = numbers(*number);
        let is_present = |seq: &u64| page.has(*seq);
        of_page.rev().find(is_present).map(SeqNo)
    }

    /// Number of present numbers from `first` to `last`. Looks at the pages that exist.
    fn present(&self, first: u64, last: u64) -> u64 {
        if first > last {
            return 0;
        }

        let pages = self.0.range(first / PAGE_BITS..=last / PAGE_BITS);
        let of_page = |(number, page): (&u64, &Page)| {
            let of_page = numbers(*number);
            let (from, to) = (first.max(*of_page.start()), last.min(*of_page.end()));
            match page {
                Page::Full => to - from + 1,
                Page::Part { .. } => (from..=to).filter(|seq| page.has(*seq)).count() as u64,
            }
        };
        pages.map(of_page).sum()
    }
}

/// The numbers of a page.
fn numbers(page: u64) -> RangeInclusive<u64> {
    let first = page * PAGE_BITS;
    first..=first + (PAGE_BITS - 1)
}

impl Page {
    /// Whether a number of this page is present.
    fn has(&self, seq: u64) -> bool {
        let Page::Part { bits, .. } = self else {
            return true;
        };
        let at = seq % PAGE_BITS;
        let word = usize::try_from(at / 64).ok().and_then(|at| bits.get(at));
        word.is_some_and(|word| word & (1 << (at % 64)) != 0)
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

    #[test]
    fn the_greatest_number_is_one_as_any_other() {
        let mut set = SeqSet::default();
        assert!(set.insert(SeqNo(5)) && set.insert(SeqNo(u64::MAX)));
        assert_eq!(set.last(), Some(SeqNo(u64::MAX)));
        assert_eq!(set.count_between(SeqNo(1), SeqNo(u64::MAX)), 2);
        // Also a gap that no loop over its pages ends with.
        let missing = set.missing_between(SeqNo(5), SeqNo(u64::MAX));
        assert_eq!(missing, u64::MAX - 6);
    }
}
