//! The rules and settings in use.
//!
//! # Invariant
//!
//! Rules and settings are replaced together: no event is handled with the rules of one
//! configuration and the settings of another.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard, RwLock};

use super::RuleEngine;
use crate::base::clock::Micros;
use crate::model::ReactorSettings;

/// Rules and their settings.
#[derive(Clone)]
pub(super) struct RuleSnapshot {
    pub(super) rules: Arc<dyn RuleEngine>,
    pub(super) settings: Arc<ReactorSettings>,
}

pub(super) struct InUse {
    /// The settings as configured. Those in use also depend on the report of the master's engine.
    /// Lock order: before all others of this module, because it is held while a change is applied.
    configured: Mutex<ReactorSettings>,
    /// Lock order: no other lock is taken under it.
    snapshot: RwLock<RuleSnapshot>,
    /// Time and reason of a rejected reload. Lock order: no other lock is taken under it.
    refused: Mutex<Option<(Micros, String)>>,
}

impl InUse {
    pub(super) fn new(rules: Arc<dyn RuleEngine>, settings: ReactorSettings) -> Self {
        Self {
            configured: Mutex::new(settings.clone()),
            snapshot: RwLock::new(RuleSnapshot {
                rules,
                settings: Arc::new(settings),
            }),
            refused: Mutex::default(),
        }
    }

    pub(super) fn snapshot(&self) -> RuleSnapshot {
        self.snapshot.read().clone()
    }

    pub(super) fn rules(&self) -> Arc<dyn RuleEngine> {
        self.snapshot().rules
    }

    pub(super) fn settings(&self) -> Arc<ReactorSettings> {
        self.snapshot().settings
    }

    /// The configured settings, locked until a change of them is in use.
    pub(super) fn configured(&self) -> MutexGuard<'_, ReactorSettings> {
        self.configured.lock()
    }

    /// Replaces both; true if the mode changes, between shadow and active.
    pub(super) fn replace(&self, new: RuleSnapshot) -> bool {
        let mut snapshot = self.snapshot.write();
        let changes = snapshot.settings.shadow != new.settings.shadow;
        *snapshot = new;
        changes
    }

    /// Time and reason of a rejected reload; `None` if the current configuration is in use.
    pub(super) fn refused(&self) -> Option<(Micros, String)> {
        self.refused.lock().clone()
    }

    /// Notes a rejected configuration, or its acceptance.
    pub(super) fn set_refused(&self, refused: Option<(Micros, String)>) {
        *self.refused.lock() = refused;
    }

    /// Ends a rejection for this reason. One for another reason stays.
    pub(super) fn accept(&self, why: &str) {
        self.refused.lock().take_if(|(_, known)| known == why);
    }
}
