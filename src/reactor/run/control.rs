//! Changes of the running reactor: rules, settings, and the report of the master's engine.
//!
//! # Invariant
//!
//! The checkpoint knows new rules before any event is handled with them, because a rule that it
//! does not know applies to every event.

use std::sync::Arc;

use super::gate::CallGate;
use super::in_use::{InUse, RuleSnapshot};
use super::keeper::Keeper;
use super::pending::Pending;
use super::record::recorder::Recorder;
use super::traces::Traces;
use super::{Executor, RuleEngine};
use crate::base::clock::Clock;
use crate::base::metrics::Metrics;
use crate::cluster::election::Standing;
use crate::model::{ReactorSettings, SaltsReactor};
use crate::reactor::rules::lease::EngineReport;
use crate::reactor::shadow;

pub(super) struct Control {
    pub(super) in_use: Arc<InUse>,
    pub(super) keeper: Arc<Keeper>,
    pub(super) pending: Arc<Pending>,
    pub(super) gate: Arc<CallGate>,
    pub(super) traces: Arc<Traces>,
    pub(super) recorder: Arc<Recorder>,
    pub(super) executor: Arc<dyn Executor>,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
}

impl Control {
    /// Records in the log whether the reactor is in shadow, for later comparisons.
    pub(super) fn record_mode(&self, started: bool) {
        let shadow = self.in_use.settings().shadow;
        self.recorder
            .write(shadow::mode(shadow, started, self.clock.now()));
    }

    /// Replaces rules and settings together. Reactions in progress keep the old ones.
    pub(super) fn change(&self, rules: Arc<dyn RuleEngine>, settings: ReactorSettings) {
        self.gate.configure(settings.salts.fallback);
        {
            // Held until all is in use, see `report`.
            let mut configured = self.in_use.configured();
            configured.clone_from(&settings);
            self.apply(rules, settings);
        }

        self.in_use.set_refused(None);
        self.metrics.reactor_reloads.add(1);
    }

    /// Puts rules and configured settings into use. The reactor only watches if the master's engine
    /// has reported that Salt's reactor also runs: the configuration alone does not show
    /// what Salt has started.
    fn apply(&self, rules: Arc<dyn RuleEngine>, mut settings: ReactorSettings) {
        if self.gate.salts_reactor() {
            settings.salts.runs = true;
            settings.shadow = true;
        }

        let before = self.in_use.rules();
        self.keeper
            .replace_rules(&*before, &*rules, settings.shadow);

        // Only after the checkpoint, see the invariant.
        let settings = Arc::new(settings);
        let changes = self
            .in_use
            .replace(rules, settings.clone(), self.clock.now());
        self.pending.configure(settings);

        // Later comparisons need the change. Responses to calls that were just sent may be missing.
        if changes {
            self.record_mode(false);
            self.traces.suspend_foreign();
        }
    }

    /// Applies a report of the master's engine. Returns the token for its next one, and why the
    /// reactor makes no calls.
    pub(super) fn report(&self, report: &EngineReport<'_>) -> (String, Option<String>) {
        let reported = self.gate.report(report);

        if let Some(both) = reported.salts_reactor {
            // Held until all is in use: a reload in between would otherwise be undone by the rules
            // that are read here.
            let configured = self.in_use.configured();
            if both {
                tracing::warn!(
                    "the master runs Salt's reactor in addition to its engine saltcellar_reactor; saltcellar stays in shadow mode. Remove `reactor` from \
                     the master's list `engines`, write saltcellar_reactor there as a string, and restart the master"
                );
            }
            self.apply(self.in_use.rules(), configured.clone());
        }

        if reported.fallback_ended {
            // Calls of the fallback may still appear on the bus.
            self.traces.suspend_foreign();
        }

        if !self.gate.blocks() {
            self.pending.wake_all();
        }

        (reported.token, self.blocked_by())
    }

    /// Notes rejected configuration or rules, and the reason; the old ones stay in use.
    pub(super) fn refuse(&self, why: String) {
        self.in_use.set_refused(Some((self.clock.now(), why)));
        self.metrics.reactor_reloads_rejected.add(1);
    }

    /// Salt's reactor: as configured, or on if its calls have been seen.
    pub(super) fn salts_reactor(&self) -> SaltsReactor {
        let mut salts = self.in_use.settings().salts.clone();
        salts.runs |= self.gate.fallback_acts() || self.traces.foreign().is_some();
        salts
    }

    /// Why the reactor cannot lead in an election; `None` if it can.
    pub(super) fn unfit(&self) -> Option<String> {
        if !self.in_use.settings().takes_part() {
            return Some("it takes no part".to_owned());
        }
        let unreachable = || self.executor.reach().err().map(|why| why.to_string());
        self.unable().or_else(unreachable)
    }

    /// Why the reactor makes no calls, as far as known here. That another master's reactor leads is no reason.
    pub(super) fn blocked_by(&self) -> Option<String> {
        self.unable().or_else(|| match self.gate.standing()? {
            Standing::Unknown(why) => Some(why),
            Standing::Leads | Standing::Follows(_) => None,
        })
    }

    /// Why the reactor could make no calls, whoever leads.
    fn unable(&self) -> Option<String> {
        let RuleSnapshot {
            rules, settings, ..
        } = self.in_use.snapshot();

        // The most general reason comes first, because a reader sees only one.
        if settings.shadow && settings.salts.runs {
            return Some("shadow mode, because Salt's reactor is on".to_owned());
        }
        if settings.shadow {
            return Some("shadow mode: `reactor.shadow` is true".to_owned());
        }
        if let Some(why) = self.gate.why() {
            return Some(why);
        }

        let full = || "records of reactions cannot be written to the log".to_owned();
        rules
            .blocked_by()
            .or_else(|| self.executor.blocked_by())
            .or_else(|| self.recorder.is_full().then(full))
    }
}
