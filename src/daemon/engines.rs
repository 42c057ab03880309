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

/// The id of the first configured master that exists on this host.
pub(crate) fn master_id(config: &Config) -> String {
    // Empty on a host without a master.
    config
        .own_master()
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
