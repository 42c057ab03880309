//! The configuration that the daemon runs with, and what a reload left open.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde_json::Value as Json;

use super::{Call, In, NoArgs, Run, Whole};
use crate::config::Config;
use crate::reactor::service::Reloader;
use crate::wire::call::CallError;

/// The result of the last reload of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Reload {
    /// Why the file was rejected, wholly or in part; the previous configuration is in use.
    pub(crate) problem: Option<String>,
    /// Changed keys that take effect after a restart.
    pub(crate) restart_keys: Vec<String>,
}

/// The configuration in effect, and the result of the last reload.
pub(crate) struct RunningConfig {
    state: Mutex<(Config, Reload)>,
    /// The reactor follows its own keys in the file by itself.
    reactor: Option<Reloader>,
}

impl RunningConfig {
    pub(crate) fn new(config: &Config, reactor: Option<Reloader>) -> Self {
        Self {
            state: Mutex::new((config.clone(), Reload::default())),
            reactor,
        }
    }

    /// Records a reload. `applied` is the configuration that is in effect now, if it has changed.
    pub(crate) fn reloaded(&self, applied: Option<Config>, result: Reload) {
        let mut state = self.state.lock();
        if let Some(applied) = applied {
            state.0 = applied;
        }
        state.1 = result;
    }

    /// The configuration in effect.
    pub(crate) fn config(&self) -> Config {
        let mut config = self.state.lock().0.clone();
        if let Some(reactor) = &self.reactor {
            config.reactor = reactor.config();
        }
        config
    }

    pub(crate) fn last_reload(&self) -> Reload {
        self.state.lock().1.clone()
    }
}

answers! {
    /// The configuration in effect, without `sinks` and `scripts`.
    ShownConfig {
        /// As in a file.
        config: Json,
        /// The origins of the keys, by dotted name.
        origins: BTreeMap<String, String>,
    }
}

impl ShownConfig {
    /// All of a configuration.
    pub(crate) fn of(config: &Config) -> Self {
        let (config, origins) = config.shown();
        Self { config, origins }
    }
}

/// `config_show`: the keys that `doctor` needs, as in a configuration file. Sinks and scripts, which
/// may contain secrets, are left out.
pub(crate) struct Show;

impl Call for Show {
    const NAME: &'static str = "config_show";
    const DOC: &'static str =
        "Show the configuration that the daemon runs with, without sinks and scripts";
    type Scope = Whole<RunningConfig>;
    type Args<'a> = NoArgs;
    type Answer = ShownConfig;
}

impl Run for Show {
    fn run(ctx: &In<'_, Self>, _: NoArgs) -> Result<ShownConfig, CallError> {
        let mut shown = ShownConfig::of(&ctx.config());
        // By name, so that a new section is shown unless it is named here.
        if let Some(sections) = shown.config.as_object_mut() {
            sections.retain(|name, _| !matches!(name.as_str(), "sinks" | "scripts"));
        }
        Ok(shown)
    }
}
