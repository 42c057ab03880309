//! The part of the daemon that most calls need: what is stored.

use std::path::Path;
use std::sync::Arc;

use crate::base::clock::Clock;
use crate::base::metrics::Metrics;
use crate::store::Store;

/// What is stored: the store with its place, time and counters. Clones share it.
#[derive(Clone)]
pub(crate) struct Archive {
    pub(crate) store: Store,
    pub(crate) state_dir: Arc<Path>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
}
