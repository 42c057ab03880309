//! Holds: jobs that are exempt from retention.
//!
//! Holds are set by an administrator, and are settings of the store (see `settings`). While a change
//! of the settings may be lost, or a hold cannot be read, every job counts as held: a job whose hold
//! is lost must not be deleted.
//!
//! Masters that share a history also share their holds. Each change of a hold has a timestamp, and
//! the latest change of a job counts, wherever it was made. A release therefore leaves a record
//! ([`Released`]).
//!
//! # Invariant
//!
//! A held job outlives retention. While holds may be lost, every job counts as held.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::settings::{Changes, Save, Setting, Settings};
use saltcellar_base::clock::Micros;
use saltcellar_base::limits::{
    HOLD_REASON_BYTES_MAX, HOLDS_MAX, HOLDS_SHARED_MAX, NAME_BYTES_MAX, RELEASES_MAX,
};
use saltcellar_model::JidKey;

/// A job that is exempt from retention.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// The job id.
    pub jid: String,
    /// Time of the first hold.
    pub since: Micros,
    /// Why, as the administrator gave it.
    pub reason: String,
    /// The master on which it was made; empty for this daemon's master.
    #[serde(default)]
    pub origin: String,
    /// Time of the last change; absent in releases before holds were shared.
    #[serde(default)]
    pub(crate) changed: Option<Micros>,
}

impl Hold {
    fn changed(&self) -> Micros {
        self.changed.unwrap_or(self.since)
    }
}

impl Setting for Hold {
    const KIND: &'static str = "hold";
}

/// The end of a hold: another master may still have the hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Released {
    changed: Micros,
}

impl Setting for Released {
    const KIND: &'static str = "released";
}

/// The latest change of a job's hold.
///
/// Of two changes of a job the greater one counts: the later one, and of two at the same time one that
/// holds the job. The rest of the order makes all masters choose the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldChange {
    /// When it was made, but always after the change before it.
    pub at: Micros,
    /// The hold; `None` for a release.
    pub held: Option<Held>,
    /// The job id.
    pub jid: String,
}

/// What a change holds a job with. See [`Hold`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// Time of the first hold.
    pub since: Micros,
    /// The name of the master on which it was made. It is set for this daemon's master as well,
    /// because all masters must compare the same values.
    pub master: String,
    /// Why.
    pub reason: String,
}

/// What became of changes from elsewhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Merged {
    /// Changes that were later than this store's changes.
    pub taken: usize,
    /// Changes that no store makes.
    pub invalid: usize,
    /// Holds beyond [`HOLDS_SHARED_MAX`].
    pub beyond_limit: usize,
}

/// Times of changes end in the year 9999. A later change can always follow.
const CHANGE_MAX: Micros = Micros(253_402_300_799_000_000);

impl HoldChange {
    /// Whether a store can have made it.
    fn is_valid(&self) -> bool {
        let is_reason = |reason: &str| {
            reason.len() <= HOLD_REASON_BYTES_MAX && !reason.contains(char::is_control)
        };
        is_jid(&self.jid)
            && (Micros(0)..=CHANGE_MAX).contains(&self.at)
            && self
                .held
                .as_ref()
                .is_none_or(|held| is_reason(&held.reason) && held.master.len() <= NAME_BYTES_MAX)
    }
}

/// Whether a job can be held: a table shows its id in one line.
fn is_jid(jid: &str) -> bool {
    !jid.is_empty() && jid.len() <= NAME_BYTES_MAX && !jid.contains(['\t', '\n', '\r'])
}

#[derive(Debug)]
pub(crate) struct Holds {
    settings: Arc<Settings>,
    /// Held from reading a hold to its change. Lock order: after a retention round, before the
    /// settings' locks.
    changing: Mutex<()>,
    /// See [`Holds::version`].
    version: AtomicU64,
}

impl Holds {
    pub(crate) fn new(settings: Arc<Settings>) -> Self {
        Self {
            settings,
            changing: Mutex::default(),
            version: AtomicU64::default(),
        }
    }

    /// Grows with each change. A caller that knows all changes of a version need not reread them.
    /// It must read the version before the changes.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Makes changes of holds and releases; nothing else does.
    fn commit(&self, changes: Changes, save: Save) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        let committed = self.settings.commit(changes, save);
        // Afterwards: who reads the new version reads the new values. After an error too, because it costs one reading.
        self.version.fetch_add(1, Ordering::AcqRel);
        committed
    }

    /// Whether any job may be held, because holds may be lost.
    pub(crate) fn may_be_any(&self) -> bool {
        let is_unreadable = |found: &crate::settings::Found<Hold>| found.value.is_none();
        self.settings.loss().is_some() || self.settings.all("").iter().any(is_unreadable)
    }

    /// All holds, sorted by jid.
    pub(crate) fn all(&self) -> Vec<Hold> {
        let found = self.settings.all("").into_iter();
        found.filter_map(|found| found.value).collect()
    }

    /// The latest change of each job that is held, or was released not long ago. Sorted by jid. `own` is
    /// the name of this daemon's master.
    pub(crate) fn changes(&self, own: &str) -> Vec<HoldChange> {
        self.latest(own).into_values().collect()
    }

    fn latest(&self, own: &str) -> BTreeMap<String, HoldChange> {
        let mut latest = BTreeMap::new();
        for found in self.settings.all::<Released>("") {
            let Some(released) = found.value else {
                continue;
            };
            let release = HoldChange {
                at: released.changed,
                held: None,
                jid: found.name.clone(),
            };
            latest.insert(found.name, release);
        }

        for hold in self.all() {
            let is_own = hold.origin.is_empty();
            let change = HoldChange {
                at: hold.changed(),
                held: Some(Held {
                    since: hold.since,
                    master: if is_own { own.to_owned() } else { hold.origin },
                    reason: hold.reason,
                }),
                jid: hold.jid.clone(),
            };
            latest.insert(hold.jid, change);
        }

        latest
    }

    /// The timestamp of a change that is made now: later than the change that it replaces, even if
    /// a clock is wrong.
    fn time_of_change(&self, jid: &str, now: Micros) -> Micros {
        let hold = self.settings.get::<Hold>(jid).and_then(|found| found.value);
        let released = self
            .settings
            .get::<Released>(jid)
            .and_then(|found| found.value);
        let before = hold.map(|hold| hold.changed());
        let before = before.max(released.map(|released| released.changed));
        before.map_or(now, |before| now.max(Micros(before.0.saturating_add(1))))
    }

    /// Holds a job; for a held job, changes the reason only. Durable on return.
    pub(crate) fn hold(&self, jid: &str, reason: &str, now: Micros) -> Result<Hold, StoreError> {
        let refused =
            |what: String| StoreError::Refused(format!("cannot hold the job {jid:?}: {what}"));
        if !is_jid(jid) {
            return Err(refused(
                "a jid must not be empty, too long, or contain tabs or line breaks".to_owned(),
            ));
        }

        // A reason is a string for people, so it is adjusted instead of rejected.
        let reason: String = reason
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();

        if reason.len() > HOLD_REASON_BYTES_MAX {
            return Err(refused(format!(
                "a reason has at most {HOLD_REASON_BYTES_MAX} bytes"
            )));
        }

        let _one = self.changing.lock();
        let known = self.settings.get::<Hold>(jid);
        // A held job may change its reason at the limit.
        if known.is_none() && self.settings.all::<Hold>("").len() >= HOLDS_MAX {
            return Err(refused(format!(
                "the limit of {HOLDS_MAX} holds is reached; remove one with `saltcellar store holds remove`, or use a class with longer retention"
            )));
        }

        let known = known.and_then(|known| known.value);
        let (since, origin) = known.map_or((now, String::new()), |hold| (hold.since, hold.origin));
        let hold = Hold {
            jid: jid.to_owned(),
            since,
            reason,
            origin,
            changed: Some(self.time_of_change(jid, now)),
        };
        let mut changes = Changes::default();
        changes.put(jid, &hold)?;
        self.forget_release(jid, &mut changes);
        self.commit(changes, Save::Durable)?;
        Ok(hold)
    }

    fn forget_release(&self, jid: &str, changes: &mut Changes) {
        if self.settings.get::<Released>(jid).is_some() {
            changes.remove::<Released>(jid);
        }
    }

    /// Ends a hold; false if the job was not held. Durable on return.
    pub(crate) fn release(&self, jid: &str, now: Micros) -> Result<bool, StoreError> {
        let _one = self.changing.lock();
        if self.settings.get::<Hold>(jid).is_none() {
            return Ok(false);
        }
        let released = Released {
            changed: self.time_of_change(jid, now),
        };
        let mut changes = Changes::default();
        changes.remove::<Hold>(jid);
        changes.put(jid, &released)?;
        self.commit(changes, Save::Durable)?;
        self.forget_old_releases()?;
        Ok(true)
    }

    /// Takes changes from other masters that are later than the local changes. Durable on return.
    pub(crate) fn merge(&self, own: &str, changes: Vec<HoldChange>) -> Result<Merged, StoreError> {
        let mut merged = Merged::default();

        let _one = self.changing.lock();
        let mut latest = self.latest(own);

        // Counted across the whole message, because a single large message must not exceed the
        // limit.
        let is_hold = |change: &&HoldChange| change.held.is_some();
        let mut holds = latest.values().filter(is_hold).count();
        let mut new = Changes::default();

        for change in changes {
            if !change.is_valid() {
                merged.invalid += 1;
                continue;
            }
            let known = latest.get(&change.jid);
            if known.is_some_and(|known| *known >= change) {
                continue;
            }

            let was_held = known.is_some_and(|known| known.held.is_some());
            match &change.held {
                Some(_) if !was_held && holds >= HOLDS_SHARED_MAX => {
                    merged.beyond_limit += 1;
                    continue;
                }
                Some(held) => {
                    holds += usize::from(!was_held);
                    let origin = Some(&held.master).filter(|master| *master != own);
                    let hold = Hold {
                        jid: change.jid.clone(),
                        since: held.since,
                        reason: held.reason.clone(),
                        origin: origin.cloned().unwrap_or_default(),
                        changed: Some(change.at),
                    };
                    new.put(&change.jid, &hold)?;
                    self.forget_release(&change.jid, &mut new);
                }
                None => {
                    holds -= usize::from(was_held);
                    if was_held {
                        new.remove::<Hold>(&change.jid);
                    }
                    let changed = change.at;
                    new.put(&change.jid, &Released { changed })?;
                }
            }

            merged.taken += 1;
            // A later change in the same message must be compared with this change.
            latest.insert(change.jid.clone(), change);
        }

        self.commit(new, Save::Durable)?;
        self.forget_old_releases()?;
        Ok(merged)
    }

    /// Keeps the latest releases only.
    fn forget_old_releases(&self) -> Result<(), StoreError> {
        let found = self.settings.all::<Released>("").into_iter();
        let mut all: Vec<_> = found
            .map(|found| (found.value.map(|released| released.changed), found.name))
            .collect();
        all.sort_unstable_by(|a, b| b.cmp(a));

        let mut changes = Changes::default();
        for (_, jid) in all.iter().skip(RELEASES_MAX) {
            changes.remove::<Released>(jid);
        }
        self.commit(changes, Save::Later)
    }

    /// Keys and jids of all held jobs.
    pub(crate) fn jids(&self) -> Vec<(JidKey, String)> {
        let jids = self.all().into_iter().map(|hold| hold.jid);
        jids.map(|jid| (JidKey::of(&jid), jid)).collect()
    }
}

#[cfg(test)]
mod tests;
