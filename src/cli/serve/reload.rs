//! SIGHUP: applies changed `reactor`, `scripts` and `sinks` sections, and reports changes of other keys, which need a restart.

use crate::config::Config;
use crate::engines::program::script::{self, Scripts};
use crate::engines::runtime::Engines;
use crate::engines::settings::of_config;
use crate::reactor::service::Reloader;

/// Rereads the configuration of the `running` daemon. Returns when the change is in effect, or rejected.
pub(super) fn reload(
    running: &Config,
    reactor: Option<&Reloader>,
    engines: &Engines,
    scripts: &Scripts,
) {
    match running.reread() {
        Ok(new) => {
            let mut changed = running.changed_keys(&new);
            // The reactor compares its own keys, and rejects a change of the master or minion.
            changed.retain(|key| {
                !matches!(key.as_str(), "scripts" | "sinks")
                    && (reactor.is_none() || !key.starts_with("reactor."))
            });
            // All sinks or none: also unchanged ones open their files and connections anew.
            match of_config(&new) {
                Ok(sinks) => engines.apply(sinks),
                Err(error) => {
                    tracing::error!(%error, "changed sinks are invalid, keeping the previous ones");
                }
            }
            match script::of_config(&new) {
                Ok(settings) => scripts.apply(settings),
                Err(error) => {
                    tracing::error!(%error, "changed scripts are invalid, keeping the old ones");
                }
            }
            if !changed.is_empty() {
                let keys = changed.join(", ");
                tracing::warn!(
                    keys,
                    "changed configuration keys take effect after a restart"
                );
            }
        }
        // With a reactor, it reports the error.
        Err(error) if reactor.is_none() => {
            tracing::error!(%error, "changed configuration is invalid, keeping the previous one");
        }
        Err(_) => {}
    }
    if let Some(reactor) = reactor {
        reactor.reload();
    }
}
