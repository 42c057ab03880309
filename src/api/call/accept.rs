//! What entries of callers must be before they are stored, and the ids of new jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::archive::Archive;
use crate::base::clock::Micros;
use crate::model::{Entry, FrameBatch, Slot};
use crate::policy::{Policy, RejectReason};
use crate::wire::call::CallError;
use crate::wire::salt_codec::check_whole;
use crate::wire::salt_event::PLACEHOLDER_JIDS;

/// Accepts entries of callers.
///
/// # Invariant
///
/// An entry reaches a batch only if Salt can read it, it is not too large, and the policy has passed
/// and redacted it.
pub(crate) struct Acceptor {
    pub(crate) archive: Archive,
    pub(crate) policy: Arc<Policy>,
    pub(crate) jids: JidMaker,
    pub(crate) entry_bytes_max: usize,
}

pub(super) fn refused(why: &RejectReason) -> CallError {
    CallError::Refused(why.to_string())
}

impl Acceptor {
    pub(super) fn store_one(
        &self,
        entry: &Entry<'_>,
        to: &mut FrameBatch<'_>,
    ) -> Result<(), CallError> {
        self.check_size(entry)?;
        check_whole(entry.body).map_err(|why| refused(&self.policy.reject(entry, why)))?;
        if let Some(accepted) = self.policy.pass(entry, None) {
            to.push(&accepted.entry(), accepted.fingerprints);
        }
        Ok(())
    }

    pub(super) fn check_size(&self, entry: &Entry<'_>) -> Result<(), CallError> {
        let len = entry.raw_len();
        let max = self.entry_bytes_max;
        if len > max {
            self.archive.metrics.entries_rejected_too_large.add(1);
            return Err(CallError::TooLarge { len, max });
        }
        Ok(())
    }

    pub(super) fn refuse(&self, why: String) -> CallError {
        self.archive.metrics.calls_rejected.add(1);
        CallError::Refused(why)
    }

    pub(super) fn job_of(&self, jid: String) -> Result<String, CallError> {
        if PLACEHOLDER_JIDS.contains(&jid.as_str()) {
            return Err(self.refuse(format!(
                "`{jid}` is not a job id; nothing is stored under it"
            )));
        }
        Ok(jid)
    }
}

/// Generates jids: the current time, or the next unused microsecond of the daemon's slot.
///
/// # Invariant
///
/// Only microseconds of the slot; without one, even microseconds. Those after them are reserved for
/// the extension, which generates jids while the daemon is unreachable (`local_jid` in `salt/`),
/// and the others for other masters. Therefore no two generate the same jid, even if clocks are set.
#[derive(Debug)]
pub(crate) struct JidMaker {
    last: AtomicI64,
    slot: Option<Slot>,
}

impl JidMaker {
    /// A generator for jids after `last`.
    pub(crate) fn after(last: Micros, slot: Option<Slot>) -> Self {
        Self {
            last: AtomicI64::new(last.0),
            slot,
        }
    }

    /// The daemon's slot, if it has one.
    pub(crate) fn slot(&self) -> Option<Slot> {
        self.slot
    }

    /// The time of a new jid.
    pub(crate) fn next(&self, now: Micros) -> Micros {
        let slot = self.slot.unwrap_or_default();
        let after = |last: i64| slot.first_from(Micros(now.0.max(last.saturating_add(1)))).0;
        let advance = |last: i64| Some(after(last));
        let last = self
            .last
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, advance)
            .unwrap_or(now.0);
        Micros(after(last))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::word::Word as _;

    #[test]
    fn jids_are_unique_even_when_the_clock_stops_or_steps_back() {
        let maker = JidMaker::after(Micros(100), None);
        let made = [50, 50, 200, 200, 10, 207].map(|now| maker.next(Micros(now)).0);
        assert_eq!(
            made,
            [102, 104, 200, 202, 204, 208],
            "all even: odd ones are the extension's"
        );
    }

    #[test]
    fn jids_of_a_slot_are_microseconds_of_it() {
        let maker = JidMaker::after(Micros(100), Slot::parse("2/3"));
        let made = [50, 50, 200, 200, 10, 207].map(|now| maker.next(Micros(now)).0);
        assert_eq!(made, [104, 110, 200, 206, 212, 218], "2 modulo 6");
    }

    proptest! {
        #[test]
        fn daemons_with_distinct_slots_never_make_the_same_jid(
            of in 1..=64_u16,
            // Clocks that stop, step back, and differ between daemons.
            calls in proptest::collection::vec((0..64_u16, 0..400_i64), 1..300),
            last in 0..400_i64,
        ) {
            let slot = |number: u16| Slot::parse(&format!("{}/{of}", number + 1));
            let makers: Vec<_> = (0..of)
                .map(|number| JidMaker::after(Micros(last), slot(number)))
                .collect();
            let mut made: Vec<Vec<i64>> = vec![Vec::new(); makers.len()];

            for (which, now) in calls {
                let which = usize::from(which % of);
                made[which].push(makers[which].next(Micros(now)).0);
            }

            for (jids, maker) in made.iter().zip(&makers) {
                prop_assert!(jids.is_sorted_by(|a, b| a < b), "increasing: {jids:?}");
                prop_assert!(jids.iter().all(|jid| *jid > last && jid % 2 == 0));
                let step = maker.slot().unwrap().step();
                prop_assert!(jids.windows(2).all(|two| (two[1] - two[0]) % step == 0));
            }

            let mut all = made.concat();
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            prop_assert_eq!(all.len(), count);
        }
    }
}
