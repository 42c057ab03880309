//! A position in the events of a bus, and its form in the file `SEEN`.

use crate::base::clock::Micros;

/// A position in the events of a bus: everything up to here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Position {
    /// By time; `None` if nothing was read yet.
    pub(super) until: Option<Micros>,
    /// By the number of the last event.
    pub(super) number: u64,
}

impl Position {
    /// Moves behind this many events more; returns the number of the first.
    pub(super) fn number_events(&mut self, events: u64) -> u64 {
        let first = self.number + 1;
        self.number += events;
        first
    }

    /// A position as a line. Its length is constant, because a position is written over the last.
    pub(super) fn line(until: Micros, number: u64) -> String {
        format!("{:>20} {number:>20}\n", until.0)
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(bytes).ok()?.split_whitespace();
        let (until, number) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Self {
            until: Some(Micros(until)),
            number,
        })
    }
}
