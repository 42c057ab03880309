//! Holds of all masters: each daemon tells the others its changes of holds, in its heartbeats.
//!
//! They are no entries of the log: retention would drop the entry of a hold that lasts longer than everything else, and a master that was
//! away for longer than the stream keeps messages would not learn of it. Each heartbeat has a digest of all changes instead. A daemon
//! that hears another digest sends all that it has, and each takes what is later than its own ([`crate::store::HoldChange`]).
//!
//! # Invariant
//!
//! Masters that hear each other have the same holds, whatever was lost on the way. Until a daemon has heard them after its start, its
//! retention drops nothing, but not for longer than [`CLUSTER_HOLDS_WAIT`].

use parking_lot::Mutex;

use super::peers::Peers;
use super::shared_hold::SharedHold;
use crate::base::limits::{CLUSTER_HOLDS_BYTES, HOLDS_SHARED_MAX};
use crate::model::{MasterName, chained};
use crate::store::{Store, StoreError};

#[cfg(doc)]
use crate::base::limits::CLUSTER_HOLDS_WAIT;

/// What a heartbeat says about holds.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) digest: String,
    /// All changes, in parts of limited size; empty if every master that is heard of has them.
    pub(crate) parts: Vec<Vec<SharedHold>>,
}

/// The digest of the holds, which is made once for each version of them: a heartbeat every two seconds need not read all holds.
#[derive(Debug, Default)]
pub(crate) struct KnownDigest {
    /// The version and its digest. Lock order: before the locks of the settings, which are read under it.
    known: Mutex<Option<(u64, String)>>,
}

impl KnownDigest {
    fn of(&self, version: u64, make: impl FnOnce() -> String) -> String {
        let mut known = self.known.lock();
        match &*known {
            Some((of, digest)) if *of == version => digest.clone(),
            _ => known.insert((version, make())).1.clone(),
        }
    }
}

/// All changes of holds, each with its JSON.
fn changes(store: &Store, peers: &Peers) -> Vec<(SharedHold, Vec<u8>)> {
    let changes = store.hold_changes(peers.own.as_str()).into_iter();
    let shared = changes.map(SharedHold::from).map(|one| {
        let text = serde_json::to_vec(&one).expect("a hold is JSON");
        (one, text)
    });
    shared.collect()
}

fn digest_of(all: &[(SharedHold, Vec<u8>)]) -> String {
    // Each with its length, so none is taken for a part of another.
    let hash = all.iter().fold(0, |hash, (_, text)| {
        chained(hash, [&text.len().to_le_bytes(), text.as_slice()])
    });
    format!("{hash:016x}")
}

/// What to tell the others now. Once they agree with this store, its retention may go on.
pub(crate) fn tell(store: &Store, peers: &Peers, known: &KnownDigest) -> Told {
    // Before the holds are read: what changes meanwhile has another version.
    let version = store.holds_version();
    let digest = known.of(version, || digest_of(&changes(store, peers)));

    if peers.has_all_holds(&digest) {
        store.has_all_holds();
    }
    let parts = if peers.must_tell_holds(&digest) {
        parts(changes(store, peers))
    } else {
        Vec::new()
    };
    Told { digest, parts }
}

/// Parts that fit into a message.
fn parts(all: Vec<(SharedHold, Vec<u8>)>) -> Vec<Vec<SharedHold>> {
    let mut parts: Vec<Vec<SharedHold>> = Vec::new();
    let mut bytes = 0;
    for (one, text) in all {
        match parts.last_mut() {
            Some(part) if bytes + text.len() <= CLUSTER_HOLDS_BYTES => part.push(one),
            _ => {
                parts.push(vec![one]);
                bytes = 0;
            }
        }
        bytes += text.len() + 1;
    }
    parts
}

/// Takes what another master has told.
pub(crate) fn hear(
    store: &Store,
    peers: &Peers,
    sender: &MasterName,
    told: Vec<SharedHold>,
) -> Result<(), StoreError> {
    let count = told.len();
    let changes: Vec<_> = told
        .into_iter()
        .filter_map(SharedHold::into_change)
        .collect();
    let nameless = count - changes.len();

    let merged = store.merge_holds(peers.own.as_str(), changes)?;

    if merged.taken > 0 {
        let holds = merged.taken;
        tracing::info!(
            master = sender.as_str(),
            holds,
            "holds of another master taken over"
        );
    }

    let invalid = merged.invalid + nameless;
    if invalid > 0 {
        let why = format!("holds that no release makes ({invalid})");
        peers.rejected(Some(sender.as_str()), &why);
    }

    if merged.beyond_limit > 0 {
        let why = format!(
            "{} holds beyond the {HOLDS_SHARED_MAX} that all masters together may have",
            merged.beyond_limit
        );
        peers.rejected(Some(sender.as_str()), &why);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::Micros;
    use crate::store::{Held, HoldChange};

    fn of(n: usize) -> SharedHold {
        SharedHold::from(HoldChange {
            at: Micros(1),
            held: Some(Held {
                since: Micros(1),
                master: "m1".to_owned(),
                reason: "x".repeat(900),
            }),
            jid: n.to_string(),
        })
    }

    #[test]
    fn a_message_has_a_limited_part_of_many_holds() {
        let all: Vec<_> = (0..100).map(of).collect();
        let with_text = |one: &SharedHold| (one.clone(), serde_json::to_vec(one).unwrap());
        let parts = parts(all.iter().map(with_text).collect());
        assert!(parts.len() > 2, "{}", parts.len());
        for part in &parts {
            assert!(serde_json::to_vec(part).unwrap().len() <= CLUSTER_HOLDS_BYTES + 2);
        }
        assert_eq!(parts.concat(), all);
    }

    #[test]
    fn a_digest_is_made_once_for_each_version() {
        let known = KnownDigest::default();
        let made = std::cell::Cell::new(0);
        let of = |version| {
            known.of(version, || {
                made.set(made.get() + 1);
                format!("{version}")
            })
        };
        assert_eq!(
            [of(0), of(0), of(1), of(1), of(3)],
            ["0", "0", "1", "1", "3"]
        );
        assert_eq!(made.get(), 3);
    }
}
