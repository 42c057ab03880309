//! SIGHUP: applies changed `reactor`, `scripts` and `sinks` sections, and reports changes of other
//! keys, which need a restart.
//!
//! A reload logs one line, with what changed, what was rejected and what needs a restart; `status`
//! shows the same until the next reload. Other
//! lines are logged only for what is new.

use std::sync::Arc;

use crate::api::call::running::{Reload, RunningConfig};
use crate::config::Config;
use crate::engines::runtime::Engines;
use crate::engines::script::{self, Scripts};
use crate::engines::settings::of_config;
use crate::reactor::service::Reloader;

/// The parts that a reload can change.
pub(super) struct Parts {
    pub(super) started_with: Config,
    pub(super) running: Arc<RunningConfig>,
    pub(super) reactor: Option<Reloader>,
    pub(super) engines: Arc<Engines>,
    pub(super) scripts: Arc<Scripts>,
}

/// Rereads the configuration of the running daemon. Returns when the change is in effect, or
/// rejected.
pub(super) fn reload(parts: &Parts) {
    let new = match parts.started_with.reread() {
        Ok(new) => new,
        Err(error) => {
            // The reactor rejects the file as well, and counts the rejection.
            if let Some(Err(reason)) = parts.reactor.as_ref().map(Reloader::reload) {
                tracing::debug!(reason, "the reactor also keeps its configuration");
            }

            tracing::error!(%error, "changed configuration invalid, keeping the previous one: run `saltcellar config check`");

            // Keys that need a restart stay as the last valid file left them.
            let problem = Some(error.to_string());
            return parts.running.reloaded(
                None,
                Reload {
                    problem,
                    ..parts.running.last_reload()
                },
            );
        }
    };

    let before = parts.running.config();
    let mut in_effect = before.clone();
    let mut problems = Vec::new();

    // All sinks or none: even unchanged sinks reopen their files and connections.
    match of_config(&new) {
        Ok(sinks) => {
            parts.engines.apply(sinks);
            in_effect.sinks.clone_from(&new.sinks);
        }
        Err(error) => problems.push(error.to_string()),
    }

    // Wrong sinks keep neither the scripts nor the reactor from their new settings.
    match script::of_config(&new) {
        Ok(settings) => {
            parts.scripts.apply(settings);
            in_effect.scripts.clone_from(&new.scripts);
        }
        Err(error) => problems.push(error.to_string()),
    }

    // The reactor compares its own keys, and rejects a change of the master or minion.
    if let Some(reactor) = &parts.reactor {
        match reactor.reload() {
            Ok(()) => in_effect.reactor = new.reactor.clone(),
            Err(error) => problems.push(error),
        }
    }

    let changed = before.changed_keys(&in_effect);
    let mut restart_keys = parts.started_with.changed_keys(&new);
    // Applied above. Only a daemon with a reactor can apply the reactor's keys.
    restart_keys.retain(|key| {
        !matches!(key.as_str(), "scripts" | "sinks")
            && (parts.reactor.is_none() || !key.starts_with("reactor."))
    });
    report(&changed, &restart_keys, &problems);

    let problem = (!problems.is_empty()).then(|| problems.join("; "));
    parts.running.reloaded(
        Some(in_effect),
        Reload {
            problem,
            restart_keys,
        },
    );
}

/// Logs the one line of a reload, at the level of its worst result.
fn report(changed: &[String], restart_keys: &[String], problems: &[String]) {
    let list = |names: &[String]| match names {
        [] => "none".to_owned(),
        names => names.join(", "),
    };
    let (changed, restart) = (list(changed), list(restart_keys));

    if !problems.is_empty() {
        let rejected = problems.join("; ");
        tracing::error!(
            rejected,
            changed,
            needs_restart = restart,
            "configuration reloaded in part, rejected parts keep their previous settings: run `saltcellar config check`"
        );
    } else if !restart_keys.is_empty() {
        tracing::warn!(
            changed,
            needs_restart = restart,
            "configuration reloaded, some changed keys take effect after `systemctl restart saltcellar`"
        );
    } else {
        tracing::info!(changed, "configuration reloaded");
    }
}
