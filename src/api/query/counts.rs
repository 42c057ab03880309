//! Numbers of states, of a run.

use crate::wire::outcome::Outcome;
use crate::wire::outcome::states::StateRow;

answers! {
    /// Numbers of states.
    StateCounts {
        total: u64,
        failed: u64,
        changed: u64,
    }
}

impl StateCounts {
    /// Those of a run on a minion; `None` if it ran none.
    pub(crate) fn of(outcome: &Outcome<'_>, minion: &str) -> Option<Self> {
        let mut counts = Self::default();
        outcome.each_state(minion, |state| counts.add(&state));
        counts.if_any()
    }

    pub(crate) fn add(&mut self, state: &StateRow<'_>) {
        self.total += 1;
        self.failed += u64::from(state.result == Some(false));
        self.changed += u64::from(state.changed());
    }

    /// `None` without any.
    pub(crate) fn if_any(self) -> Option<Self> {
        (self.total > 0).then_some(self)
    }
}
