//! The context of a call that applies the limits of its caller, and these limits.

use std::sync::Arc;

use super::archive::{Archive, OwnMaster};
use crate::api::query::{DigestView, Others};
use crate::base::metrics::Metrics;
use crate::model::{Limit, ReadLimits};
use crate::store::StoreView;

/// The context of a call that applies the limits of its caller. Nothing else leads such a call to
/// the store, so none can forget them.
pub(crate) struct ReadCtx<'a> {
    /// The store as the caller may know it.
    pub(crate) store: StoreView,
    pub(crate) metrics: &'a Metrics,
    pub(crate) master: &'a OwnMaster,
    /// The other masters of a shared history, as known when the call began.
    pub(crate) others: Others,
    /// Runs, as far as the caller may know them.
    pub(crate) digest: DigestView<'a>,
    pub(super) limits: Arc<ReadLimits>,
}

impl<'a> ReadCtx<'a> {
    pub(in crate::api) fn of(archive: &'a Archive, limits: &Arc<ReadLimits>) -> Self {
        Self {
            store: archive.store.view(limits.clone()),
            metrics: &archive.metrics,
            master: &archive.master,
            others: archive
                .shared
                .as_ref()
                .map_or_else(Others::default, |shared| {
                    Others::of(shared.others(), shared.window())
                }),
            digest: DigestView::new(&archive.digest, &archive.store, limits.clone()),
            limits: limits.clone(),
        }
    }
}

/// Jobs have no tags.
pub(super) const OF_JOBS: &[Limit] = &[Limit::Minions, Limit::Functions];

pub(super) const OF_MINIONS: &[Limit] = &[Limit::Minions];

pub(super) const OF_EVENTS: &[Limit] = &Limit::ALL;
