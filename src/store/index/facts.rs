//! What is known of a segment without opening it: sums, times, and which jobs it may hold.
//!
//! # On disk
//!
//! ```text
//! entries, raw bytes, log bytes, jobs                        numbers (see `code`)
//! first seq, last seq less first                             numbers
//! earliest arrival, latest less earliest                     signed number, number
//! register: 0, or 1 + its seq                                number
//! newest jid made of time: 0, or 1 + microseconds            number
//! runs; each: microseconds since the end of the one before, microseconds it spans    numbers
//! bytes of the filter, and the filter                        for jids of other forms; 0 without any
//! ```
//!
//! A run is a stretch of time in which jids of the segment were made; the smallest gaps between runs are given up
//! until at most 384 are left (limits::JID_RUNS_MAX). A jid carries its time, so a job is looked for only where a run holds it.

use super::Sums;
use super::code::{Reader, put, put_bytes, put_signed};
use crate::clock::Micros;
use crate::limits::{JID_FILTER_BITS, JID_RUNS_MAX};
use crate::model::{JidKey, SeqNo};

/// Facts about a segment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Entries, bytes, numbers, times.
    pub sums: Sums,
    /// Jobs that have entries in it.
    pub jobs: u64,
    /// Its newest Thorium register.
    pub register: Option<SeqNo>,
    jids: Jids,
}

/// A compact set of jids: never wrong about one that is in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Jids {
    /// The newest time, microseconds.
    newest: Option<i64>,
    /// First and last microsecond, ascending.
    runs: Vec<(i64, i64)>,
    /// A Bloom filter over free-form jids; empty if there are none.
    filter: Vec<u8>,
}

const PROBES: u32 = 4;

impl Facts {
    /// Puts facts together. `keys` are those of all jobs, ascending.
    pub fn new(sums: Sums, register: Option<SeqNo>, keys: impl Iterator<Item = JidKey>) -> Self {
        let mut jobs = 0;
        let mut jids = Jids::default();
        for key in keys {
            jobs += 1;
            jids.add(key);
        }
        jids.coarsen();
        Self { sums, jobs, register, jids }
    }

    /// May the segment have entries of this job?
    pub fn may_hold(&self, key: JidKey) -> bool {
        self.jids.may_hold(key)
    }

    /// May the segment have a job that is older than this one? Jids that say no time count as older than any that does.
    pub fn may_hold_older(&self, than: JidKey) -> bool {
        !self.jids.filter.is_empty() || self.jids.newest_below(Some(than)).is_some()
    }

    /// No job of the segment below `before` has a greater key than this; `None` if there is none at all.
    pub fn newest_below(&self, before: Option<JidKey>) -> Option<JidKey> {
        self.jids.newest_below(before)
    }

    /// The bytes on disk.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let Sums { entries, raw_bytes, log_bytes, first_seq, last_seq, at_min, at_max } = self.sums;
        for n in [entries, raw_bytes, log_bytes, self.jobs, first_seq.0, last_seq.0.wrapping_sub(first_seq.0)]
        {
            put(&mut out, n);
        }
        put_signed(&mut out, at_min.0);
        put(&mut out, at_max.0.wrapping_sub(at_min.0).cast_unsigned());
        put(&mut out, self.register.map_or(0, |seq| seq.0.saturating_add(1)));
        put(&mut out, self.jids.newest.map_or(0, |at| at.cast_unsigned().saturating_add(1)));
        put(&mut out, self.jids.runs.len() as u64);
        let mut end = 0;
        for &(from, to) in &self.jids.runs {
            assert!(end <= from && from <= to, "runs ascend");
            put(&mut out, (from - end).cast_unsigned());
            put(&mut out, (to - from).cast_unsigned());
            end = to;
        }
        put_bytes(&mut out, &self.jids.filter);
        out
    }

    /// Reads them.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader(bytes);
        let [entries, raw_bytes, log_bytes, jobs] = [r.number()?, r.number()?, r.number()?, r.number()?];
        let first_seq = SeqNo(r.number()?);
        let last_seq = SeqNo(first_seq.0.wrapping_add(r.number()?));
        let at_min = Micros(r.signed()?);
        let at_max = Micros(at_min.0.wrapping_add(r.number()?.cast_signed()));
        let register = r.number()?.checked_sub(1).map(SeqNo);
        let newest = r.number()?.checked_sub(1).map(u64::cast_signed);
        let mut runs = Vec::new();
        let mut end = 0_i64;
        for _ in 0..r.number()? {
            let from = end.checked_add_unsigned(r.number()?)?;
            end = from.checked_add_unsigned(r.number()?)?;
            runs.push((from, end));
        }
        let filter = r.bytes()?.to_vec();
        let sums = Sums { entries, raw_bytes, log_bytes, first_seq, last_seq, at_min, at_max };
        r.is_empty().then_some(Self { sums, jobs, register, jids: Jids { newest, runs, filter } })
    }
}

impl Jids {
    /// Adds a key; those made of time come in ascending order.
    fn add(&mut self, key: JidKey) {
        let Some(at) = key.time() else {
            self.filter.resize(JID_FILTER_BITS / 8, 0);
            for bit in bits(key) {
                *self.filter.get_mut(bit / 8).expect("a bit of the filter") |= 1 << (bit % 8);
            }
            return;
        };
        assert!(self.newest.is_none_or(|newest| newest <= at.0), "keys ascend");
        self.newest = Some(at.0);
        match self.runs.last_mut() {
            Some((_, last)) if at.0 <= last.saturating_add(1) => *last = at.0.max(*last),
            _ => self.runs.push((at.0, at.0)),
        }
    }

    /// Gives up the smallest gaps until few enough runs are left.
    fn coarsen(&mut self) {
        if self.runs.len() <= JID_RUNS_MAX {
            return;
        }
        let mut gaps: Vec<i64> =
            self.runs.windows(2).filter_map(|w| Some(w.get(1)?.0 - w.first()?.1)).collect();
        gaps.sort_unstable();
        let given_up = self.runs.len() - JID_RUNS_MAX;
        let widest = gaps.get(given_up - 1).copied().unwrap_or(0);
        // Of gaps as wide as that only as many as need be.
        let mut ties = given_up - gaps.partition_point(|&gap| gap < widest);
        let mut runs: Vec<(i64, i64)> = Vec::with_capacity(JID_RUNS_MAX);
        for &(from, to) in &self.runs {
            match runs.last_mut() {
                Some((_, last)) if from - *last < widest => *last = to,
                Some((_, last)) if from - *last == widest && ties > 0 => {
                    *last = to;
                    ties -= 1;
                }
                _ => runs.push((from, to)),
            }
        }
        self.runs = runs;
    }

    fn may_hold(&self, key: JidKey) -> bool {
        let Some(at) = key.time() else {
            let set = |bit: usize| self.filter.get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1);
            return bits(key).into_iter().all(set);
        };
        let next = self.runs.partition_point(|&(_, to)| to < at.0);
        self.runs.get(next).is_some_and(|&(from, _)| from <= at.0)
    }

    fn newest_below(&self, before: Option<JidKey>) -> Option<JidKey> {
        let before = before.unwrap_or(JidKey(u128::MAX));
        let Some(at) = before.time() else {
            // Free-form keys are greater than all made of time, and the filter cannot tell them in order.
            if !self.filter.is_empty() {
                return Some(before);
            }
            return self.newest.map(|at| JidKey::from_time(Micros(at), Some(u32::MAX)));
        };
        let run = self.runs.partition_point(|&(from, _)| from <= at.0).checked_sub(1)?;
        let (_, to) = *self.runs.get(run)?;
        Some(before.min(JidKey::from_time(Micros(to), Some(u32::MAX))))
    }
}

/// The bits that a free-form key sets in the filter. The key is a hash already.
fn bits(key: JidKey) -> [usize; PROBES as usize] {
    let bits = JID_FILTER_BITS as u128;
    std::array::from_fn(|n| usize::try_from((key.0 >> (n * 24)) % bits).expect("a bit of the filter"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn facts(mut keys: Vec<JidKey>) -> Facts {
        keys.sort_unstable();
        keys.dedup();
        let sums = Sums { entries: 3, first_seq: SeqNo(7), last_seq: SeqNo(9), ..Sums::default() };
        Facts::new(sums, Some(SeqNo(8)), keys.into_iter())
    }

    proptest! {
        #[test]
        fn a_job_that_is_there_is_never_denied(
            times in prop::collection::vec(0_i64..4_000_000_000_000_000, 0..2000),
            free in prop::collection::vec("[a-z]{1,9}", 0..20),
            before in 0_i64..4_000_000_000_000_000,
        ) {
            let mut keys: Vec<_> = times.iter().map(|&t| JidKey::from_time(Micros(t), (t % 3 == 0).then_some(7))).collect();
            keys.extend(free.iter().map(|jid| JidKey::of(jid)));
            let facts = facts(keys.clone());
            prop_assert!(facts.jids.runs.len() <= JID_RUNS_MAX);
            prop_assert!(keys.iter().all(|&key| facts.may_hold(key)));
            let than = JidKey::from_time(Micros(before), None);
            let is_older = |key: &JidKey| key.time().is_none_or(|at| at.0 < before);
            prop_assert!(!keys.iter().any(is_older) || facts.may_hold_older(than));
            for bound in [None, Some(JidKey::from_time(Micros(before), None)), Some(JidKey::of("free text"))] {
                let newest = keys.iter().copied().filter(|&key| bound.is_none_or(|b| key < b)).max();
                prop_assert!(newest <= facts.newest_below(bound));
            }
            prop_assert_eq!(Facts::from_bytes(&facts.to_bytes()), Some(facts));
        }

        #[test]
        fn damaged_facts_are_refused_without_panic(bytes in any::<Vec<u8>>()) {
            let _ = Facts::from_bytes(&bytes);
        }
    }

    #[test]
    fn a_job_of_another_time_is_not_looked_for() {
        let at = |second: i64| JidKey::from_time(Micros(second * 1_000_000), None);
        let days = |n: i64| (1..=n).flat_map(move |day| [at(day * 86_400), at(day * 86_400 + 1)]);
        let few = facts(days(150).collect());
        assert!((0..=150).all(|day| !few.may_hold(at(day * 86_400 + 40_000))));
        assert!(
            !few.may_hold(at(0)) && !few.may_hold(JidKey::of("x")) && few.newest_below(Some(at(0))).is_none()
        );
        // Of more days than there are runs, no more gaps are given up than need be, the seconds first.
        let many = facts(days(500).collect());
        let guesses = (1..500).filter(|day| many.may_hold(at(day * 86_400 + 40_000))).count();
        assert_eq!((many.jids.runs.len(), guesses), (JID_RUNS_MAX, 500 - JID_RUNS_MAX));
    }
}
