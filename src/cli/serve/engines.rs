//! The sinks of the daemon: its store, its redaction and its configuration behind them.

use std::sync::Arc;

use crate::base::clock::Clock;
use crate::config::Config;
use crate::config::salt_master::SaltMaster;
use crate::engines::feed::{ConsumerFeed, Feed};
use crate::engines::runtime::{Dependencies, Engines, Redact};
use crate::engines::settings::SinkSettings;
use crate::ingest::redact::{Redacted, Redactor};
use crate::model::{Entry, RedactRule};
use crate::store::Store;
use crate::store::vfs::Fs;

/// Starts the sinks.
pub(super) fn start(
    config: &Config,
    settings: Vec<SinkSettings>,
    store: &Store,
    fs: &Arc<dyn Fs>,
    clock: &Clock,
) -> Arc<Engines> {
    let store = store.clone();
    let deps = Dependencies {
        open_feed: Arc::new(move |settings| {
            let feed = ConsumerFeed::open(store.clone(), &settings.name, &settings.filter)?;
            Ok(Arc::new(feed) as Arc<dyn Feed>)
        }),
        redactor: Arc::new(redactor),
        state_dir: config.state_dir.clone(),
        fs: fs.clone(),
        clock: clock.clone(),
        master_id: master_id(config).into(),
    };
    Arc::new(Engines::start(deps, settings))
}

fn redactor(rules: &[RedactRule]) -> Redact {
    let rules = Redactor::new(rules);
    Arc::new(move |entry: &Entry<'_>| match rules.redact(entry) {
        Redacted::Untouched => None,
        Redacted::Changed(body) | Redacted::Unparsed(body) => Some(body),
    })
}

/// The id of the first configured master that exists on this machine.
fn master_id(config: &Config) -> String {
    let masters = config.reactor.master.iter().chain(&config.ingest.masters);
    let existing = masters.into_iter().find(|path| path.exists());
    existing.map(|path| SaltMaster::read(path).id).unwrap_or_default()
}
