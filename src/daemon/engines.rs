//! Connects sinks and scripts with the daemon's store, redaction, bus and configuration.

use std::sync::Arc;

use super::history::History;
use crate::api::call::Ctx;
use crate::base::clock::Clock;
use crate::base::limits::{SINK_IDLE, SINK_LAG_INTERVAL};
use crate::config::Config;
use crate::engines::runtime::{Dependencies, Engines};
use crate::engines::script::{self, ScriptSettings, Scripts};
use crate::engines::settings::SinkSettings;
use crate::store::Store;
use crate::store::vfs::Fs;

pub(super) fn start(
    config: &Config,
    settings: Vec<SinkSettings>,
    store: &Store,
    fs: &Arc<dyn Fs>,
    clock: &Clock,
    history: Option<&History>,
) -> Arc<Engines> {
    let deps = Dependencies {
        store: store.clone(),
        fs: fs.clone(),
        clock: clock.clone(),
        master_id: master_id(config).into(),
        idle: SINK_IDLE,
    };

    let own = history.map(|history| history.outbox(store, clock.now()));
    Arc::new(Engines::start(deps, settings, own.into_iter().collect()))
}

pub(super) fn start_scripts(
    config: &Config,
    settings: Vec<ScriptSettings>,
    ctx: &Arc<Ctx>,
) -> Arc<Scripts> {
    let deps = script::Dependencies {
        firing: ctx.firing.clone(),
        id: master_id(config).into(),
        clock: ctx.archive.clock.clone(),
        metrics: ctx.archive.metrics.clone(),
        monitor: ctx.process.scripts.clone(),
    };

    Arc::new(Scripts::start(deps, settings))
}

/// The id of the first configured master that exists on this host. Empty on a host without a
/// master, and if only Salt can tell it: with a wrong one, this master would seem to be two.
pub(crate) fn master_id(config: &Config) -> String {
    config
        .own_master()
        .filter(|master| !master.id_is_of_function)
        .map(|master| master.id)
        .unwrap_or_default()
}

/// Notes the lag of sinks at an interval. Never returns.
pub(super) async fn watch(engines: Arc<Engines>) {
    let mut minute = tokio::time::interval(SINK_LAG_INTERVAL);
    loop {
        minute.tick().await;
        let engines = engines.clone();
        // Positions are read from the store, which may wait for a disk.
        if let Err(error) = tokio::task::spawn_blocking(move || engines.note_lags()).await {
            tracing::error!(%error, "cannot record the lag of sinks, the web UI shows a gap: report the backtrace above");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_id_of_a_master_is_made_up() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("master");
        let mut config = Config::for_state_dir(dir.path(), "/s");
        assert_eq!(master_id(&config), "");

        config.ingest.masters = vec![file.clone()];
        let id_with = |options: &str| {
            let root = dir.path().display();
            std::fs::write(&file, format!("root_dir: {root}\n{options}\n")).unwrap();
            master_id(&config)
        };
        assert_eq!(id_with("id_function: grains.get_id"), "");
        assert_eq!(id_with("id_function: grains.get_id\nid: m"), "m");
        assert!(id_with("").ends_with("_master"));
    }
}
