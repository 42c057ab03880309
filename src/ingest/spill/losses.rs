//! Events of a bus that were lost, and the gaps that record them.
//!
//! # Invariant
//!
//! While a loss lasts, [`Losses::begin`] is the time of its first event. It lasts until its gap is
//! taken.

use crate::base::clock::Micros;
use crate::ingest::gap::{Cause, Gap};

#[derive(Debug, Default)]
pub(super) struct Losses {
    /// The loss that lasts, for want of room.
    current: Option<Gap>,
    /// Events lost since the start.
    lost: u64,
    /// Gaps recorded since the start.
    gaps: u64,
}

impl Losses {
    /// Events lost since the start.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Gaps recorded since the start.
    pub(super) fn gaps(&self) -> u64 {
        self.gaps
    }

    /// Whether a loss lasts.
    pub(super) fn is_losing(&self) -> bool {
        self.current.is_some()
    }

    /// The begin of the loss that lasts.
    pub(super) fn begin(&self) -> Option<Micros> {
        self.current.and_then(|gap| gap.begin)
    }

    /// Counts events for which there was no room. They begin a loss, or prolong it.
    pub(super) fn lose(&mut self, events: u64, at: Micros) {
        self.count(events);

        let gap = self.current.get_or_insert(Gap {
            begin: Some(at),
            end: at,
            cause: Cause::Overflow,
            lost: Some(0),
        });
        gap.end = at;
        gap.lost = gap.lost.map(|lost| lost + events);
    }

    /// Ends the loss, if one lasts: its gap.
    pub(super) fn end(&mut self) -> Option<Gap> {
        self.current.take()
    }

    /// Counts events whose gap is recorded separately.
    pub(super) fn count(&mut self, events: u64) {
        self.lost += events;
    }

    pub(super) fn count_gap(&mut self) {
        self.gaps += 1;
    }
}
