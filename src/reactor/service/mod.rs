//! The reactor of a daemon: built from the configuration of a master or minion, and rebuilt when
//! that changes.

mod build;
mod executor;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Mutex, RwLock};
use salt_sls::Map;

use self::build::{Built, Said, build, callers, runs_as};
use self::executor::{MasterExecutor, MasterTarget};
use super::Pipeline;
use super::run::checkpoint::saved;
use super::run::engine::{Handle, Parts, Reactor};
use super::run::native::Native;
use crate::base::clock::Clock;
use crate::base::limits::REACTOR_RELOAD;
use crate::base::metrics::Metrics;
use crate::base::shutdown::Drain;
use crate::base::threads;
use crate::bus::fire::Firer;
use crate::cluster::election::Election;
use crate::config::salt_master::{Role, SaltMaster, WatchedFiles, same_file};
use crate::config::{Config, Origin, ReactorConfig};
use crate::policy::master_keys::MasterKeys;
use crate::reactor::master::Master;
use crate::store::{Intake, Store, StoreError};

#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceError {
    #[error("{0}")]
    Config(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("start the reactor")]
    Start(#[source] StoreError),
    #[error("start the reactor's reloader")]
    Reloader(#[source] std::io::Error),
}

pub(crate) struct ReactorService {
    reactor: Reactor,
    reloader: Reloader,
    follower: JoinHandle<()>,
    drain: Drain,
}

/// Warns if the buses are not exactly the one of this master or minion.
fn check_buses(buses: &[PathBuf], sock_dir: &Path) {
    match buses {
        [] => tracing::warn!(
            wanted = %sock_dir.display(),
            "no bus is configured, the reactor receives no events: set `bus`, or run `saltcellar setup`"
        ),
        [one] if same_file(one, sock_dir) => {}
        _ => tracing::warn!(
            ?buses, wanted = %sock_dir.display(),
            "the reactor handles events of all configured buses; Salt's reactor handles only those of its own process"
        ),
    }
}

impl ReactorService {
    /// Starts the reactor, if configured.
    pub(crate) fn start(
        config: &Config,
        store: &Store,
        intake: &Intake,
        firer: Arc<Firer>,
        (keys, election): (Arc<MasterKeys>, Option<Arc<Election>>),
        clock: &Clock,
        metrics: &Arc<Metrics>,
    ) -> Result<Option<Self>, ServiceError> {
        let Some((role, path, key)) = config.reactor.of_whom() else {
            // Salt's reactor acts from now on: a reactor configured later must not handle the
            // events until then.
            if saved::remove(store.settings())? {
                tracing::info!(
                    "no reactor is configured; one configured later starts with the next event"
                );
            }
            return Ok(None);
        };

        let path = path.to_owned();

        // A configuration from a flag cannot change while the daemon runs.
        let own =
            matches!(config.origin(key), Origin::File { .. }).then(|| Own::of(config.clone()));

        let mut files = WatchedFiles::default();
        let master = SaltMaster::read_watched(&path, role, &mut files);
        let mut said = Said::default();
        // At the start an invalid configuration is an error. Later the previous one stays in use.
        let Built {
            pipeline,
            settings,
            place,
            accepted,
            unsupported,
            python,
            sock_dir,
        } = build(&master, &path, key, &config.reactor, metrics, &mut said)
            .map_err(ServiceError::Config)?;

        let shadow = settings.shadow;
        if let Some(place) = &place {
            tracing::info!(master = %place, user = place.user, shadow, "reacting to the master's events");
        } else {
            tracing::info!(minion = %path.display(), shadow, "reacting to the minion's events");
        }

        check_buses(&config.bus, &sock_dir);
        let (clock, metrics) = (clock.clone(), metrics.clone());

        let executor = Arc::new(MasterExecutor {
            target: RwLock::new(place.map(|place| {
                let master = Arc::new(Master::new(place, metrics.clone()));
                MasterTarget {
                    master,
                    accepted,
                    unsupported,
                }
            })),
            // Apart from the processes that render: a function may take as long as a state run.
            callers: RwLock::new(callers(python.as_ref(), &master, &metrics)),
            firer,
            sock_dir: RwLock::new(sock_dir.clone()),
            clock: clock.clone(),
            metrics: metrics.clone(),
        });

        let rules = Arc::new(Native::new(pipeline.clone()));
        let parts = Parts {
            store: store.clone(),
            intake: intake.clone(),
            keys: keys.clone(),
            clock,
            metrics,
            rules,
            settings,
            jid_slot: config.cluster.slot,
            executor: executor.clone(),
        };

        let reactor = Reactor::start_in(parts, election).map_err(ServiceError::Start)?;
        let drain = Drain::new();

        let reloader = Reloader(Arc::new(Mutex::new(Current {
            handle: reactor.handle(),
            executor: executor.clone(),
            config: config.reactor.clone(),
            own,
            source: (role, path, key),
            python,
            runs_as: runs_as(&master),
            buses: (config.bus.clone(), sock_dir),
            files,
            pipeline,
            rules_problem: None,
            said,
            keys,
        })));

        // The reloader has a separate stop signal, because it stops before the reactor.
        let (follower, stops) = (reloader.clone(), drain.clone());
        let work = move || follower.follow(&stops);
        let follower = threads::spawn("sc-react-conf", work).map_err(ServiceError::Reloader)?;

        Ok(Some(Self {
            reactor,
            reloader,
            follower,
            drain,
        }))
    }

    pub(crate) fn handle(&self) -> Handle {
        self.reactor.handle()
    }

    pub(crate) fn reloader(&self) -> Reloader {
        self.reloader.clone()
    }

    /// Stops the reloader, then the reactor.
    pub(crate) fn stop(self) {
        self.drain.stop();
        if self.follower.join().is_err() {
            tracing::error!(
                thread = "sc-react-conf",
                "thread panicked, changes of the reactor configuration are not noticed: restart the daemon and report the backtrace above"
            );
        }
        self.reactor.stop();
    }
}

/// Keeps rules and settings up to date. Lock order: before all others of the reactor, because it is
/// held while a change is applied.
#[derive(Clone)]
pub(crate) struct Reloader(Arc<Mutex<Current>>);

/// The running reactor and the settings it was built from.
struct Current {
    handle: Handle,
    executor: Arc<MasterExecutor>,
    config: ReactorConfig,
    /// The daemon's own configuration files, if one of them configures the reactor.
    own: Option<Own>,
    source: (Role, PathBuf, &'static str),
    /// Salt's Python.
    python: Option<PathBuf>,
    /// See [`runs_as`].
    runs_as: Option<Map>,
    /// The configured buses, and the directory of the one that is reacted to.
    buses: (Vec<PathBuf>, PathBuf),
    files: WatchedFiles,
    pipeline: Arc<Pipeline>,
    /// Why the file of the rules is not in use as it is now, as last reported.
    rules_problem: Option<String>,
    said: Said,
    keys: Arc<MasterKeys>,
}

/// The daemon's own configuration, and the state of its files before they were read.
struct Own {
    running: Config,
    files: WatchedFiles,
}

impl Own {
    fn of(running: Config) -> Self {
        let files = WatchedFiles::of(running.watched());
        Self { running, files }
    }
}

impl Reloader {
    /// Reloads the configuration, changed or not; returns when it is in effect, or the reason for
    /// rejecting it.
    pub(crate) fn reload(&self) -> Result<(), String> {
        self.0.lock().reload()
    }

    /// The settings in effect.
    pub(crate) fn config(&self) -> ReactorConfig {
        self.0.lock().config.clone()
    }

    fn follow(&self, stops: &Drain) {
        while !stops.wait(REACTOR_RELOAD) {
            let mut current = self.0.lock();
            current.look_at_rules();
            if !current.is_changed() {
                continue;
            }
            match current.reload() {
                Ok(()) => tracing::info!("reactor configuration reloaded"),
                Err(error) => tracing::error!(
                    error,
                    "changed reactor configuration invalid, keeping the previous one: correct the master's configuration (`saltcellar reactor rules` shows the error)"
                ),
            }
        }
    }
}

impl Current {
    fn is_changed(&self) -> bool {
        let own = self
            .own
            .as_ref()
            .is_some_and(|own| own.files.have_changed());
        own || self.files.have_changed()
    }

    /// Reports a separate file of rules that has become unreadable, or readable again. The pipeline
    /// reads such a file itself, and a change takes effect with the next event.
    fn look_at_rules(&mut self) {
        let problem = self.pipeline.rules_problem().map(|note| note.to_string());
        let before = std::mem::replace(&mut self.rules_problem, problem);

        // The file is polled, and each of its states is reported once.
        match (&before, &self.rules_problem) {
            (before, now) if before == now => {}
            (_, Some(error)) => {
                tracing::error!(
                    error,
                    "changed reactor rules invalid, keeping the previous ones: correct the rules (`saltcellar reactor lint`)"
                );
                self.handle.refuse(error.clone());
            }
            (Some(error), None) => {
                tracing::info!("reactor rules can be reread");
                self.handle.accept(error);
            }
            (None, None) => {}
        }
    }

    /// Reloads everything. An invalid configuration changes nothing.
    fn reload(&mut self) -> Result<(), String> {
        let config = self.own_config();
        let (role, path, key) = &self.source;
        let metrics = &self.executor.metrics;

        // Invalid files are also watched, because the correction will be made there.
        let master = SaltMaster::read_watched(path, *role, &mut self.files);

        // Sources learn of a `cluster_id` before the reactor does. Otherwise it could take an event
        // of a peer for an event of this master.
        self.keys.refresh();

        let said = &mut self.said;
        match config
            .and_then(|config| Ok((build(&master, path, key, &config, metrics, said)?, config)))
        {
            Ok((built, config)) => {
                // The changes by `salt-run` come first, because no event may see the new rules
                // without them.
                built.pipeline.take_over(&self.pipeline);
                self.executor.apply(&built);

                // The buses are fixed at the start, therefore the new bus may be missing.
                let (buses, sock_dir) = &mut self.buses;
                if *sock_dir != built.sock_dir {
                    check_buses(buses, &built.sock_dir);
                    sock_dir.clone_from(&built.sock_dir);
                }

                let runs_as = runs_as(&master);

                // Only a needed change replaces the process: a function that still runs in the old
                // one would run at the same time as functions of the new one.
                if (&built.python, &runs_as) != (&self.python, &self.runs_as) {
                    let other = callers(built.python.as_ref(), &master, metrics);
                    self.executor.replace_callers(other);
                    (self.python, self.runs_as) = (built.python, runs_as);
                }

                self.config = config;
                self.pipeline = built.pipeline;

                // Last, because from here on the new rules handle events.
                let rules = Arc::new(Native::new(self.pipeline.clone()));
                self.handle.change(rules, built.settings);
                Ok(())
            }
            Err(error) => {
                self.handle.refuse(error.clone());
                Err(error)
            }
        }
    }

    /// The reactor's part of the daemon's own configuration.
    fn own_config(&mut self) -> Result<ReactorConfig, String> {
        let Some(own) = &mut self.own else {
            return Ok(self.config.clone());
        };

        loop {
            // Their state before reading. An invalid file is also watched.
            *own = Own::of(own.running.clone());
            own.running = own.running.reread().map_err(|error| error.to_string())?;
            if own.running.watched().all(|file| own.files.contains(file)) {
                break;
            }
        }

        let config = own.running.reactor.clone();
        let of_election = |config: &ReactorConfig| (config.election.clone(), config.without_quorum);
        if of_election(&config) != of_election(&self.config) {
            return Err(
                "reactor.election or reactor.without_quorum changed; restart the daemon to apply the change"
                    .to_owned(),
            );
        }

        let (role, path, key) = &self.source;
        // Buses and checkpoint belong to the master or minion that the daemon was started for.
        if config.of_whom() != Some((*role, path, key)) {
            return Err(format!(
                "{key} names another file; restart the daemon to apply the change"
            ));
        }

        Ok(config)
    }
}
