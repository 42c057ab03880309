//! Entries of peers: which of them the log contains, and how an entry enters it.
//!
//! # Invariant
//!
//! An entry of a peer has a name, which is its origin, number and arrival. The log contains each name once.

use std::collections::{HashMap, HashSet};

use crate::base::clock::Micros;
use crate::base::limits::{NAME_BYTES_MAX, SCAN_BYTES_MAX};
use crate::base::metrics::Metrics;
use crate::model::{Batch, Entry, Flags, Kind, SeqNo, chained};
use crate::policy::Policy;
use crate::store::{Store, StoreError};
use crate::wire::salt_codec::check_whole;

/// What the log contains of peers.
#[derive(Debug, Default)]
pub(super) struct Stored {
    /// Hashes of origin, number and arrival. Two numberings may have the same number.
    names: HashSet<u64>,
    /// The greatest number of each origin.
    last: HashMap<String, u64>,
}

fn name_of(origin: &str, number: u64, at: Micros) -> u64 {
    chained(number, [origin.as_bytes(), &at.0.to_le_bytes()])
}

impl Stored {
    /// The entries of peers in the log from a number on.
    pub(super) fn since(store: &Store, from: SeqNo) -> Result<Self, StoreError> {
        let mut stored = Self::default();
        let mut next = from;
        while next < store.durable() {
            let any = |_: Kind, _: Flags| true;
            next = store.follow(any, next, SCAN_BYTES_MAX, |entry| {
                if entry.number != 0 {
                    stored.add(entry.origin, entry.number, entry.at);
                }
            })?;
        }
        Ok(stored)
    }

    fn add(&mut self, origin: &str, number: u64, at: Micros) {
        self.names.insert(name_of(origin, number, at));
        match self.last.get_mut(origin) {
            Some(last) => *last = number.max(*last),
            None => _ = self.last.insert(origin.to_owned(), number),
        }
    }

    pub(super) fn has(&self, entry: &Entry<'_>) -> bool {
        // Nearly always, so nothing is hashed.
        !self.names.is_empty()
            && self
                .names
                .contains(&name_of(entry.origin, entry.number, entry.at))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether the marks have reached the last entry of each origin.
    pub(super) fn is_marked(&self, mark: impl Fn(&str) -> u64) -> bool {
        self.last.iter().all(|(origin, last)| mark(origin) >= *last)
    }

    pub(super) fn last(&self, origin: &str) -> u64 {
        self.last.get(origin).copied().unwrap_or(0)
    }
}

/// Whether masters share entries of this kind.
pub(super) fn is_shared(kind: Kind) -> bool {
    !matches!(kind, Kind::Setting | Kind::SeenOnBus | Kind::Register)
}

/// Adds an entry of a peer, unless this daemon's policy drops it, as from any source.
pub(super) fn accept(policy: &Policy, metrics: &Metrics, entry: &Entry<'_>, to: &mut Batch) {
    let names = [entry.jid, entry.minion, entry.fun, entry.origin];
    let is_short = names.iter().all(|name| name.len() <= NAME_BYTES_MAX);
    if !is_short || policy.check_tag(entry.tag, entry.source).is_err() {
        metrics.cluster_entries_rejected.add(1);
        return;
    }

    let accepted = match check_whole(entry.body) {
        Ok(()) => policy.pass(entry, None),
        // Its origin has mended what it could; this is another's work.
        Err(why) => {
            let Ok(body) = policy.mend(entry, why) else {
                metrics.cluster_entries_rejected.add(1);
                return;
            };
            policy.pass_mended(entry, body, why)
        }
    };
    if let Some(accepted) = accepted {
        to.push(&accepted.entry(), accepted.fingerprints);
    }
}
