//! Copies the shared history from the store of a peer into this store, for entries that the stream no longer contains.
//!
//! # Invariant
//!
//! The marks move only when all entries are on disk. A copy that was interrupted is repeated, and stores nothing twice.

use std::collections::BTreeSet;

use super::of_peers::{Stored, accept, is_shared};
use crate::base::limits::{CLUSTER_BATCH_BYTES, SCAN_BYTES_MAX};
use crate::base::metrics::Metrics;
use crate::cluster::numbering::Numbering;
use crate::cluster::peers::Mark;
use crate::model::{Batch, Entry, Flags, Kind, MasterName, SeqNo};
use crate::policy::Policy;
use crate::store::settings::{Changes, Save};
use crate::store::{Done, Followed, Intake, Store, StoreError};
use crate::wire::filter::Entries;

/// The own store, which takes the entries.
pub(crate) struct Joining<'a> {
    pub(crate) store: &'a Store,
    pub(crate) intake: &'a Intake,
    pub(crate) policy: &'a Policy,
    pub(crate) metrics: &'a Metrics,
    pub(crate) name: &'a MasterName,
    /// What each master shares.
    pub(crate) shared: Entries,
}

/// What was copied.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Joined {
    pub(crate) stored: u64,
    pub(crate) known: u64,
    pub(crate) masters: BTreeSet<String>,
}

/// Why nothing, or not everything, was copied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    #[error(
        "its daemon has never shared a history: configure cluster.nats there, start that daemon, and make another backup"
    )]
    NotShared,
    #[error(
        "it is a store of this master, {0:?}, and not of a peer: give the backup of another master"
    )]
    Own(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(
        "entries were not stored: {0}; correct this and run the command again, nothing is stored twice"
    )]
    Refused(String),
}

impl Joining<'_> {
    /// Copies the shared entries in the store of the master `peer`.
    pub(crate) fn copy(&self, from: &Store, peer: &MasterName) -> Result<Joined, JoinError> {
        let numbering = from.settings().get::<Numbering>("");
        let numbering = numbering.and_then(|found| found.value);
        let numbering = numbering.ok_or(JoinError::NotShared)?;
        let own = self.store.settings().get::<Numbering>("");
        let own = own.and_then(|found| found.value);
        // A copy of this store shares its numbering, and its entries would be taken for another
        // master's.
        if peer == self.name || own.is_some_and(|own| own.epoch == numbering.epoch) {
            return Err(JoinError::Own(self.name.as_str().to_owned()));
        }

        // First: retention must not drop held jobs that are copied.
        let held = from.hold_changes(peer.as_str());
        self.store.merge_holds(self.name.as_str(), held)?;

        let stored = Stored::since(self.store, SeqNo::FIRST)?;
        let mut joined = Joined::default();
        let mut last = None;
        let mut next = SeqNo::FIRST;

        while next < from.durable() {
            let mut batch = Batch::default();
            let mut failed = None;
            let any = |kind: Kind, _: Flags| is_shared(kind) && kind != Kind::Gap;
            next = from.follow(any, next, CLUSTER_BATCH_BYTES.min(SCAN_BYTES_MAX), |row| {
                let is_own_of_peer = row.number == 0;
                let Some(entry) = self.named(&row, peer) else {
                    return;
                };
                if is_own_of_peer {
                    last = Some((row.seq, row.at));
                }
                match self.is_known(&stored, &entry) {
                    Ok(true) => joined.known += 1,
                    Ok(false) => {
                        joined.masters.insert(entry.origin.to_owned());
                        accept(self.policy, self.metrics, &entry, &mut batch);
                    }
                    Err(error) => failed = Some(error),
                }
            })?;

            // The closure cannot end the reading itself.
            if let Some(error) = failed {
                return Err(error.into());
            }

            joined.stored += batch.len() as u64;
            // On disk before the next batch is read, because the entries of an origin keep their
            // order.
            self.submit(batch)?;
        }

        // Last: a mark for entries that are not here would keep them away forever.
        self.mark(from, peer, &numbering, last)?;
        Ok(joined)
    }

    /// The entry as the stream would have brought it; `None` if it is not of the shared history.
    fn named<'a>(&self, row: &'a Followed<'_>, peer: &'a MasterName) -> Option<Entry<'a>> {
        let entry: &Entry<'a> = row;
        if entry.number != 0 {
            return Some(*entry);
        }
        let (is_own, has_jid) = (entry.origin.is_empty(), !entry.jid.is_empty());
        self.shared
            .have(entry.kind, entry.flags, entry.fun, has_jid, is_own)
            .then_some(Entry {
                origin: peer.as_str(),
                number: row.seq.0,
                ..*entry
            })
    }

    fn is_known(&self, stored: &Stored, entry: &Entry<'_>) -> Result<bool, StoreError> {
        if entry.origin != self.name.as_str() || stored.has(entry) {
            return Ok(stored.has(entry));
        }
        // Of this daemon's master: this store has it unless it was lost.
        let mut found = false;
        let any = |_: Kind, _: Flags| true;
        let number = SeqNo(entry.number);
        self.store.first_entry(any, number, |own| {
            found = own.seq == number && own.at == entry.at;
        })?;
        Ok(found)
    }

    fn submit(&self, batch: Batch) -> Result<(), JoinError> {
        if batch.is_empty() {
            return Ok(());
        }
        let (sender, stored) = crossbeam_channel::bounded(1);
        let done: Done = Box::new(move |result| _ = sender.send(result));
        self.intake.submit(batch, Some(done))?;
        let ended = || Err("the store has ended".to_owned());
        let result = stored.recv().unwrap_or_else(|_| ended());
        result.map_err(JoinError::Refused)
    }

    /// Takes over the marks of the peer, and one for its own entries.
    fn mark(
        &self,
        from: &Store,
        peer: &MasterName,
        numbering: &Numbering,
        last: Option<(SeqNo, crate::base::clock::Micros)>,
    ) -> Result<(), JoinError> {
        let mut marks: Vec<(String, Mark)> = Vec::new();
        for found in from.settings().all::<Mark>("") {
            marks.extend(found.value.map(|mark| (found.name, mark)));
        }
        if let Some((seq, at)) = last {
            let number = seq.0;
            let (epoch, _) = numbering.of_number(number);
            marks.push((Mark::name_of(peer.as_str(), epoch), Mark { number, at }));
        }

        let settings = self.store.settings();
        let mut changes = Changes::default();

        // Marks never move backwards: this store may have more of an origin than the peer.
        for (name, mark) in marks {
            let known = settings.get::<Mark>(&name).and_then(|found| found.value);
            if known.is_none_or(|known| known.number < mark.number) {
                changes.put(&name, &mark)?;
            }
        }
        settings.commit(changes, Save::Durable)?;
        Ok(())
    }
}
