//! Damage found since the start: each place is logged and counted once, and listed in the status.

use std::collections::BTreeMap;
use std::path::PathBuf;

use parking_lot::Mutex;

use crate::base::limits::DAMAGE_PLACES_MAX;
use crate::base::metrics::Metrics;
use crate::store::Store;

/// A damaged range of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Damage {
    pub(crate) path: PathBuf,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) what: String,
    /// Number of entries that cannot be read because of it, if it is known.
    pub(crate) entries: Option<u64>,
}

impl Store {
    /// The damage of logs found since the start, by path and offset.
    pub(crate) fn damage(&self) -> Vec<Damage> {
        self.0.damage.all()
    }
}

/// The known damage of a store.
#[derive(Debug, Default)]
pub(in crate::store) struct DamageList(Mutex<BTreeMap<(PathBuf, u64), Damage>>);

impl DamageList {
    /// Notes a damaged range of a log; logs and counts it unless it is known.
    pub(in crate::store) fn note(&self, damage: Damage, metrics: &Metrics) {
        let mut known = self.0.lock();
        let place = (damage.path.clone(), damage.offset);
        // Readers meet the same block again and again. Beyond the limit the status shows enough.
        if known.len() >= DAMAGE_PLACES_MAX || known.contains_key(&place) {
            return;
        }

        let Damage {
            path,
            offset,
            bytes,
            what,
            entries,
        } = &damage;
        metrics.frames_damaged.add(1);
        metrics.entries_damaged.add(entries.unwrap_or(0));
        tracing::error!(
            path = %path.display(), offset, bytes, what, entries,
            "damaged range of a log skipped, `saltcellar store verify` shows the loss"
        );
        known.insert(place, damage);
    }

    fn all(&self) -> Vec<Damage> {
        self.0.lock().values().cloned().collect()
    }
}
