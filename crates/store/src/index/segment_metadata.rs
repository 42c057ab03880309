//! Segment metadata: totals, times, and a filter of the jobs in the segment.
//!
//! On disk it is an rkyv archive of [`SegmentMetadata`].
//!
//! A run is an interval of time that contains jids of the segment. The smallest gaps between runs
//! are closed until at most 384 runs are left (limits::JID_RUNS_MAX). A jid contains its time, so a
//! job is searched for only if a run contains it.

use rkyv::util::AlignedVec;

use super::{Totals, archive};
use saltcellar_base::clock::Micros;
use saltcellar_base::limits::{JID_FILTER_BITS, JID_RUNS_MAX};
use saltcellar_model::{JidKey, SeqNo};

/// Metadata of a segment.
#[derive(
    Debug, Clone, PartialEq, Eq, Default, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize,
)]
pub struct SegmentMetadata {
    /// Entries, bytes, sequence numbers, timestamps.
    pub totals: Totals,
    /// Number of jobs with entries in the segment.
    pub jobs: u64,
    /// Sequence number of its newest Thorium register.
    pub register: Option<SeqNo>,
    /// See [`Blocks::positions`](super::Blocks::positions).
    pub(crate) positions: u64,
    /// The parts of the log that the disk could not read when the index was made, which lacks the
    /// entries in them: offsets of the first byte and after the last one, ascending.
    pub(crate) unreadable: Vec<(u64, u64)>,
    jids: Jids,
}

/// A compact set of jids without false negatives.
#[derive(
    Debug, Clone, PartialEq, Eq, Default, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize,
)]
struct Jids {
    /// The newest time in microseconds.
    newest: Option<i64>,
    /// First and last microsecond of each run, ascending.
    runs: Vec<(i64, i64)>,
    /// A Bloom filter of jids without a time; empty if there are none.
    filter: Vec<u8>,
}

/// Bits that each jid sets in the filter; see [`JID_FILTER_BITS`] for the rate of false positives.
const PROBES: u32 = 4;

impl SegmentMetadata {
    /// Builds metadata from the keys of all jobs, ascending.
    pub fn new(
        totals: Totals,
        register: Option<SeqNo>,
        keys: impl Iterator<Item = JidKey>,
    ) -> Self {
        let mut jobs = 0;
        let mut jids = Jids::default();
        for key in keys {
            jobs += 1;
            jids.add(key);
        }

        jids.coarsen();
        Self {
            totals,
            jobs,
            register,
            positions: 0,
            unreadable: Vec::new(),
            jids,
        }
    }

    pub(crate) fn may_hold(&self, key: JidKey) -> bool {
        self.jids.may_hold(key)
    }

    /// Whether the time of `key` lies within the times of the segment's jobs; for a key without a
    /// time, whether the segment contains any such key.
    pub(crate) fn spans(&self, key: JidKey) -> bool {
        self.jids.spans(key)
    }

    /// Whether the segment may contain a job older than `than`. Jids without a time sort before all
    /// other jids.
    pub(crate) fn may_hold_older(&self, than: JidKey) -> bool {
        !self.jids.filter.is_empty() || self.jids.newest_below(Some(than)).is_some()
    }

    /// Upper bound of the job keys below `before`; `None` if no job key is lower.
    pub(crate) fn newest_below(&self, before: Option<JidKey>) -> Option<JidKey> {
        self.jids.newest_below(before)
    }

    /// Encodes for disk.
    pub fn to_bytes(&self) -> std::io::Result<AlignedVec> {
        archive::write(self)
    }

    /// Decodes; `None` if malformed.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        archive::look::<Self, _>(bytes, archive::value::<Self>)
            .filter(|metadata| metadata.jids.is_well_formed())
    }
}

impl Jids {
    /// Whether the searches below find their way in it: a wrong order would hide a job.
    fn is_well_formed(&self) -> bool {
        let ascends = self.runs.iter().all(|(from, to)| from <= to)
            && self.runs.is_sorted_by(|(_, end), (from, _)| end <= from);
        ascends && [0, JID_FILTER_BITS / 8].contains(&self.filter.len())
    }

    /// Adds a key; keys with a time must be added in ascending order.
    fn add(&mut self, key: JidKey) {
        // Its key is a hash, so only the filter can hold it.
        let Some(at) = key.time() else {
            // Allocated with the first such jid: most segments have none.
            self.filter.resize(JID_FILTER_BITS / 8, 0);
            for bit in bits(key) {
                *self
                    .filter
                    .get_mut(bit / 8)
                    .expect("the filter has JID_FILTER_BITS") |= 1 << (bit % 8);
            }
            return;
        };

        // Runs are extended at their end only.
        assert!(
            self.newest.is_none_or(|newest| newest <= at.0),
            "keys ascend"
        );

        self.newest = Some(at.0);
        // Adjacent microseconds are one run: jids of a busy master are close together.
        match self.runs.last_mut() {
            Some((_, last)) if at.0 <= last.saturating_add(1) => *last = at.0.max(*last),
            _ => self.runs.push((at.0, at.0)),
        }
    }

    /// Closes the smallest gaps until at most `JID_RUNS_MAX` runs are left.
    fn coarsen(&mut self) {
        // Most segments have few runs.
        if self.runs.len() <= JID_RUNS_MAX {
            return;
        }

        let mut gaps: Vec<i64> = self
            .runs
            .windows(2)
            .filter_map(|w| Some(w.get(1)?.0 - w.first()?.1))
            .collect();

        gaps.sort_unstable();

        // All gaps below this width are closed, and as many of exactly this width as the limit
        // needs.
        let closed = self.runs.len() - JID_RUNS_MAX;
        let widest = gaps.get(closed - 1).copied().unwrap_or(0);
        let mut ties = closed - gaps.partition_point(|&gap| gap < widest);

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
            // A false positive costs a read of the segment.
            let set = |bit: usize| {
                self.filter
                    .get(bit / 8)
                    .is_some_and(|byte| byte >> (bit % 8) & 1 == 1)
            };
            return bits(key).into_iter().all(set);
        };

        let next = self.runs.partition_point(|&(_, to)| to < at.0);
        self.runs.get(next).is_some_and(|&(from, _)| from <= at.0)
    }

    fn spans(&self, key: JidKey) -> bool {
        let Some(at) = key.time() else {
            return !self.filter.is_empty();
        };
        let ends = self.runs.first().zip(self.runs.last());
        ends.is_some_and(|(first, last)| (first.0..=last.1).contains(&at.0))
    }

    fn newest_below(&self, before: Option<JidKey>) -> Option<JidKey> {
        let before = before.unwrap_or(JidKey(u128::MAX));
        // Keys without a time sort behind all other keys.
        let Some(at) = before.time() else {
            // Keys without a time are greater than all other keys, and the filter cannot enumerate
            // them.
            if !self.filter.is_empty() {
                return Some(before);
            }
            return self
                .newest
                .map(|at| JidKey::from_time(Micros(at), Some(u32::MAX)));
        };

        let run = self
            .runs
            .partition_point(|&(from, _)| from <= at.0)
            .checked_sub(1)?;

        let (_, to) = *self.runs.get(run)?;
        // The greatest key of that microsecond: a bound must not be below any job of the run.
        Some(before.min(JidKey::from_time(Micros(to), Some(u32::MAX))))
    }
}

/// The filter bits of a key without a time. Such a key is a hash already.
fn bits(key: JidKey) -> [usize; PROBES as usize] {
    let bits = JID_FILTER_BITS as u128;
    std::array::from_fn(|n| {
        usize::try_from((key.0 >> (n * 24)) % bits).expect("a bit of the filter")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn metadata(mut keys: Vec<JidKey>) -> SegmentMetadata {
        keys.sort_unstable();
        keys.dedup();
        let totals = Totals {
            entries: 3,
            first_seq: SeqNo(7),
            last_seq: SeqNo(9),
            ..Totals::default()
        };
        SegmentMetadata::new(totals, Some(SeqNo(8)), keys.into_iter())
    }

    proptest! {
        #[test]
        fn a_contained_job_is_never_excluded(
            times in prop::collection::vec(0_i64..4_000_000_000_000_000, 0..2000),
            free in prop::collection::vec("[a-z]{1,9}", 0..20),
            before in 0_i64..4_000_000_000_000_000,
        ) {
            let mut keys: Vec<_> = times.iter().map(|&t| JidKey::from_time(Micros(t), (t % 3 == 0).then_some(7))).collect();
            keys.extend(free.iter().map(|jid| JidKey::of(jid)));
            let metadata = metadata(keys.clone());
            prop_assert!(metadata.jids.runs.len() <= JID_RUNS_MAX);
            prop_assert!(keys.iter().all(|&key| metadata.may_hold(key)));
            let than = JidKey::from_time(Micros(before), None);
            let is_older = |key: &JidKey| key.time().is_none_or(|at| at.0 < before);
            prop_assert!(!keys.iter().any(is_older) || metadata.may_hold_older(than));
            for bound in [None, Some(JidKey::from_time(Micros(before), None)), Some(JidKey::of("free text"))] {
                let newest = keys.iter().copied().filter(|&key| bound.is_none_or(|b| key < b)).max();
                prop_assert!(newest <= metadata.newest_below(bound));
            }
            prop_assert_eq!(SegmentMetadata::from_bytes(&metadata.to_bytes().unwrap()), Some(metadata));
        }

        #[test]
        fn damaged_metadata_are_rejected_without_panic(bytes in any::<Vec<u8>>()) {
            let _ = SegmentMetadata::from_bytes(&bytes);
        }
    }

    #[test]
    fn a_job_between_runs_is_excluded() {
        let at = |second: i64| JidKey::from_time(Micros(second * 1_000_000), None);
        let days = |n: i64| (1..=n).flat_map(move |day| [at(day * 86_400), at(day * 86_400 + 1)]);
        let few = metadata(days(150).collect());
        assert!((0..=150).all(|day| !few.may_hold(at(day * 86_400 + 40_000))));
        assert!(
            !few.may_hold(at(0))
                && !few.may_hold(JidKey::of("x"))
                && few.newest_below(Some(at(0))).is_none()
        );
        // With more days than runs, only the smallest gaps are closed, and no more than needed.
        let many = metadata(days(500).collect());
        let guesses = (1..500)
            .filter(|day| many.may_hold(at(day * 86_400 + 40_000)))
            .count();
        assert_eq!(
            (many.jids.runs.len(), guesses),
            (JID_RUNS_MAX, 500 - JID_RUNS_MAX)
        );
    }
}
