//! Reactions that failed, wholly or in part, within a day and since the start, and were not
//! replayed: for `status`.
//!
//! The records in the log have all of them (`saltcellar reactor history`); this list is read at
//! every status.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::base::clock::Micros;
use crate::base::limits::{REACTIONS_FAILED_AGE, REACTIONS_FAILED_KEPT};
use crate::model::SeqNo;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailedReaction {
    pub(crate) at: Micros,
    pub(crate) event: SeqNo,
    pub(crate) tag: String,
    pub(crate) rules: Vec<Arc<str>>,
}

/// The failed reactions, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct FailedReactions(VecDeque<FailedReaction>);

impl FailedReactions {
    /// Adds a failed reaction. Beyond [`REACTIONS_FAILED_KEPT`] the oldest is forgotten.
    pub(crate) fn add(&mut self, failed: FailedReaction) {
        // A replay that fails again must not count twice.
        self.succeeded(failed.event, &failed.rules);
        if self.0.len() >= REACTIONS_FAILED_KEPT {
            self.0.pop_front();
        }
        self.0.push_back(failed);
    }

    /// Removes a reaction that a replay has completed.
    pub(crate) fn succeeded(&mut self, event: SeqNo, rules: &[Arc<str>]) {
        self.0
            .retain(|failed| failed.event != event || failed.rules != rules);
    }

    /// The number of failed reactions of the last day, and the latest.
    pub(crate) fn recent(&mut self, now: Micros) -> Option<(u64, FailedReaction)> {
        let oldest = now.0.saturating_sub(REACTIONS_FAILED_AGE);
        while self.0.front().is_some_and(|failed| failed.at.0 < oldest) {
            self.0.pop_front();
        }
        let latest = self.0.back()?.clone();
        Some((self.0.len() as u64, latest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(at: i64, event: u64) -> FailedReaction {
        FailedReaction {
            at: Micros(at),
            event: SeqNo(event),
            tag: format!("tag/{event}"),
            rules: vec!["rule".into()],
        }
    }

    #[test]
    fn a_failed_reaction_counts_for_a_day_unless_it_is_replayed() {
        let mut list = FailedReactions::default();
        assert_eq!(list.recent(Micros(0)), None);
        for n in 0..3 {
            list.add(failed(i64::try_from(n).unwrap() * 1_000_000, n));
        }
        // A replay that fails counts once.
        list.add(failed(3_000_000, 1));
        assert_eq!(list.recent(Micros(0)), Some((3, failed(3_000_000, 1))));
        list.succeeded(SeqNo(1), &["other".into()]);
        assert_eq!(list.recent(Micros(0)).unwrap().0, 3, "other rules");
        list.succeeded(SeqNo(1), &["rule".into()]);
        assert_eq!(list.recent(Micros(0)), Some((2, failed(2_000_000, 2))));
        let later = REACTIONS_FAILED_AGE + 1;
        assert_eq!(list.recent(Micros(later)).unwrap().0, 1);
        assert_eq!(list.recent(Micros(later + 2_000_000)), None);
        for n in 0..2 * REACTIONS_FAILED_KEPT as u64 {
            list.add(failed(0, n));
        }
        assert_eq!(
            list.recent(Micros(0)).unwrap().0,
            REACTIONS_FAILED_KEPT as u64
        );
    }
}
