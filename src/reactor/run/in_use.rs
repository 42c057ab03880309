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
    /// Time since which calls are compared with Salt's as these settings say.
    pub(super) compared_since: Micros,
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
    pub(super) fn new(rules: Arc<dyn RuleEngine>, settings: ReactorSettings, now: Micros) -> Self {
        Self {
            configured: Mutex::new(settings.clone()),
            snapshot: RwLock::new(RuleSnapshot {
                rules,
                settings: Arc::new(settings),
                compared_since: now,
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
    pub(super) fn replace(
        &self,
        rules: Arc<dyn RuleEngine>,
        settings: Arc<ReactorSettings>,
        now: Micros,
    ) -> bool {
        let mut snapshot = self.snapshot.write();
        let changes = snapshot.settings.shadow != settings.shadow;
        // A comparison with other settings knows nothing of earlier calls.
        let compares_anew = changes
            || snapshot.settings.shadow_window != settings.shadow_window
            || snapshot.settings.salts.workers != settings.salts.workers;
        let compared_since = if compares_anew {
            now
        } else {
            snapshot.compared_since
        };

        *snapshot = RuleSnapshot {
            rules,
            settings,
            compared_since,
        };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ListedRule, SaltsReactor};
    use crate::reactor::run::{Event, ReactionPlan};

    struct Rule(&'static str);

    impl RuleEngine for Rule {
        fn matching(&self, _tag: &str) -> Vec<Arc<str>> {
            Vec::new()
        }

        fn all(&self) -> Vec<ListedRule> {
            vec![ListedRule {
                pattern: self.0.to_owned(),
                files: Vec::new(),
            }]
        }

        fn react(&self, _event: &Event, _rules: &[Arc<str>]) -> ReactionPlan {
            ReactionPlan::default()
        }
    }

    #[test]
    fn rules_and_settings_change_together_and_a_change_of_the_mode_is_noticed() {
        let of = |shadow, workers| ReactorSettings {
            shadow,
            salts: SaltsReactor {
                workers,
                ..SaltsReactor::default()
            },
            ..ReactorSettings::default()
        };
        let in_use = InUse::new(Arc::new(Rule("a")), of(true, 1), Micros(1));
        let old = in_use.snapshot();
        let replace = |rule, settings, now| {
            let changes = in_use.replace(Arc::new(Rule(rule)), Arc::new(settings), Micros(now));
            (changes, in_use.snapshot().compared_since.0)
        };
        assert_eq!(replace("b", of(true, 1), 2), (false, 1));
        assert_eq!(replace("b", of(true, 2), 3), (false, 3));
        assert_eq!(replace("c", of(false, 2), 4), (true, 4));

        let shown = |snapshot: &RuleSnapshot| {
            (
                snapshot.rules.all()[0].pattern.clone(),
                snapshot.settings.shadow,
            )
        };
        // A reaction in progress keeps both.
        assert_eq!(shown(&old), ("a".to_owned(), true));
        assert_eq!(shown(&in_use.snapshot()), ("c".to_owned(), false));
    }

    #[test]
    fn a_rejection_ends_by_its_own_reason_only() {
        let in_use = InUse::new(Arc::new(Rule("a")), ReactorSettings::default(), Micros(0));
        let refused = Some((Micros(1), "a bad file".to_owned()));
        in_use.set_refused(refused.clone());
        in_use.accept("another reason");
        assert_eq!(in_use.refused(), refused);
        in_use.accept("a bad file");
        assert_eq!(in_use.refused(), None);
    }
}
