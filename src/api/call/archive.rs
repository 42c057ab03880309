//! The part of the daemon that most calls need: what is stored.

use std::path::Path;
use std::sync::Arc;

use super::shared::SharedHistory;
use crate::api::query::Digest;
use crate::base::clock::Clock;
use crate::base::metrics::Metrics;
use crate::model::Masters;
use crate::store::Store;
use salt_sls::Glob;

/// What is stored: the store with its place, time and counters. Clones share it.
#[derive(Clone)]
pub(crate) struct Archive {
    pub(crate) store: Store,
    pub(crate) state_dir: Arc<Path>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) master: OwnMaster,
    /// With `cluster.nats`.
    pub(crate) shared: Option<SharedHistory>,
    /// What lists and counts need of runs.
    pub(crate) digest: Digest,
}

/// The id of this host's master; empty if there is none.
///
/// An entry of that master has no origin: its id may be unknown when the entry is stored, and change.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnMaster(Arc<str>);

impl OwnMaster {
    pub(crate) fn new(id: &str) -> Self {
        Self(id.into())
    }

    pub(crate) fn id(&self) -> &str {
        &self.0
    }

    /// The id of the master that an entry came from, as it is shown; `None` if unknown.
    pub(crate) fn shown(&self, origin: &str) -> Option<String> {
        let id = if origin.is_empty() { &self.0 } else { origin };
        Some(id.to_owned()).filter(|id| !id.is_empty())
    }

    /// The masters whose ids, as they are shown, match a pattern.
    pub(crate) fn masters(&self, ids: Glob) -> Masters {
        let is_own = ids.matches(&self.0);
        Masters { ids, is_own }
    }

    /// The origin of an entry that another daemon shows with the id of a master.
    pub(crate) fn origin<'a>(&self, shown: &'a str) -> &'a str {
        if shown == &*self.0 { "" } else { shown }
    }
}
