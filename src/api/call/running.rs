//! The configuration that the daemon runs with, and what a reload left open.

use parking_lot::Mutex;

use crate::config::Config;
use crate::reactor::service::Reloader;

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
    /// Lock order: no other lock is taken under it.
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
