//! The answer of one minion. [`Outcome`] says whether it failed; the columns of the entry have it.

use super::parts::Extent;
use crate::model::Flags;
use crate::store::StoredEntry;
use crate::wire::msgpack;
use crate::wire::outcome::states::StateRow;
use crate::wire::outcome::{Outcome, is_of_master};
use crate::wire::salt_event::peek;

/// One minion's answer, with later answers that differ.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    /// The answer that counts.
    pub(crate) entry: StoredEntry,
    /// Number of differing other answers; beyond those in `others`, every entry counts.
    pub(crate) duplicates: u64,
    /// The first differing answers, in the order of the log.
    pub(crate) others: Vec<StoredEntry>,
    /// All returns of the minion in the log.
    pub(super) extent: Extent,
    /// It came from a peer whose history is here, in which no call confirmed it: see [`Answer::peer`].
    pub(super) is_settled: bool,
}

/// True if the entry is the result of a runner or wheel function. Its body is always read: it may
/// name the job that started it, and the jobs that it started.
pub(super) fn names_jobs(entry: &StoredEntry) -> bool {
    is_of_master(&entry.fun)
}

impl Answer {
    pub(super) fn new(entry: StoredEntry) -> Self {
        let extent = Extent::new(entry.seq, entry.body_len());
        Self {
            entry,
            extent,
            duplicates: 0,
            others: Vec::new(),
            is_settled: false,
        }
    }

    /// Leaves the content out.
    pub(super) fn leave_bodies(&mut self) {
        self.entry.leave_body();
        self.others.iter_mut().for_each(StoredEntry::leave_body);
    }

    /// A value of the return's map, as msgpack.
    pub(crate) fn get(&self, key: &str) -> Option<&[u8]> {
        msgpack::get(&self.entry.body, key)
    }

    /// True if it was seen on a bus only, so any program may have fired it.
    pub(crate) fn is_bus_only(&self) -> bool {
        is_bus_only(&self.entry)
    }

    /// The peer of the cluster on whose bus it was seen, if no returner call of this master brought it, and it is not known here whether one
    /// of the peer did.
    pub(crate) fn peer(&self) -> Option<&str> {
        (is_of_peer(&self.entry) && !self.is_settled).then_some(self.entry.origin.as_str())
    }

    pub(crate) fn outcome(&self) -> Outcome<'_> {
        Outcome::of(&self.entry.body, &self.entry.jid)
    }

    /// The states that ran.
    pub(crate) fn states(&self) -> Vec<StateRow<'_>> {
        self.outcome().states(&self.entry.minion)
    }

    pub(crate) fn failed(&self) -> bool {
        self.entry.flags.failed(self.entry.retcode)
    }

    pub(crate) fn code(&self) -> Option<i64> {
        let is_known = self.entry.flags.has(Flags::RETCODE_KNOWN);
        is_known.then_some(self.entry.retcode)
    }
}

/// True if a return was seen on a bus only when it was stored.
pub(super) fn is_bus_only(entry: &StoredEntry) -> bool {
    entry.flags.has(Flags::UNCONFIRMED)
}

/// True if a return was seen on a bus only, to which a peer of the cluster had sent it. What the peer's own daemon sent has its
/// number: then it is known that no call confirmed it there.
pub(super) fn is_of_peer(entry: &StoredEntry) -> bool {
    is_bus_only(entry) && !entry.origin.is_empty() && entry.number == 0
}

/// True if two answers have the same content.
pub(super) fn same(one: &StoredEntry, other: &StoredEntry) -> bool {
    peek(&one.body).answer == peek(&other.body).answer
}
