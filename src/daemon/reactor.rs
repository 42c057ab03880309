//! Integration of the reactor: built from the configuration of a master or minion, and rebuilt when that changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use parking_lot::RwLock;

use super::signatures::Learner;
use super::threads;
use crate::clock::Clock;
use crate::config::salt_master::{Role, SALT_PYTHON, SaltMaster, same_file};
use crate::config::{Config, Environment, Origin, ReactorConfig};
use crate::ingest::fire::Firer;
use crate::ingest::master_keys::MasterKeys;
use crate::limits::{REACTOR_RELOAD, REACTOR_RUNNERS_MAX};
use crate::master::{Answer, Call, Master, MasterAddress, MasterError, pack};
use crate::metrics::Metrics;
use crate::model::{Glob, Note, NoteLevel, ReactorSettings, RunnerLimits};
use crate::reactor::acting;
use crate::reactor::run::engine::{Handle, Parts, Reactor};
use crate::reactor::run::native::Native;
use crate::reactor::run::{CallerError, CallerReturn, Executor};
use crate::reactor::{Account, Helper, HelperOptions, NoSalt, Pipeline, Salt, SaltAnswer, SaltError};
use crate::shutdown::Drain;
use crate::sls::Value;
use crate::sls::value::Map;
use crate::store::{Intake, Store};
use crate::wire::salt_event;

/// The running reactor and its reloader thread.
pub(super) struct Running {
    reactor: Reactor,
    reloader: JoinHandle<()>,
    drain: Drain,
    again: Arc<AtomicBool>,
}

/// Why a minion's reactor rejects reactions other than `caller`.
const NO_MASTER: &str = "a minion's reactor (reactor.minion) supports `caller` reactions only";

/// Executes reactions.
struct MasterExecutor {
    /// Replaced when the configuration changes; calls in flight keep the old one. `None` for a minion.
    target: RwLock<Option<MasterTarget>>,
    /// Runs `caller` reactions, one at a time.
    callers: RwLock<Arc<dyn Salt>>,
    firer: Arc<Firer>,
    learner: Arc<Learner>,
    /// The socket directory of the bus that is reacted to.
    sock_dir: String,
    clock: Clock,
    metrics: Arc<Metrics>,
}

/// A master and the relevant parts of its configuration.
#[derive(Clone)]
struct MasterTarget {
    master: Arc<Master>,
    /// The directory of accepted keys; `None` if the master also publishes jobs without matching keys.
    accepted: Option<PathBuf>,
    /// Why requests to it are impossible with its configuration.
    unsupported: Option<String>,
}

impl MasterExecutor {
    fn target(&self) -> Option<MasterTarget> {
        self.target.read().clone()
    }

    /// Fails if the master's event bus is disconnected. Without a bus the master is not running properly: it cannot publish a job or
    /// report the start of a runner, and every request would raise an exception at an unknown point.
    fn has_bus(&self, master: &Master) -> Result<(), MasterError> {
        self.firer.disconnected(&self.sock_dir).map_or(Ok(()), |bus| {
            let why = format!("its event bus is not connected ({})", bus.display());
            Err(MasterError::Unreachable { place: master.place().to_string(), why })
        })
    }

    /// Connects a pipeline to the signatures of the master's own runners, which are fetched on demand.
    fn set_learner(self: &Arc<Self>, pipeline: &Pipeline) {
        let executor = Arc::downgrade(self);
        let learn = move |salt: &dyn Salt| {
            let executor = executor.upgrade()?;
            executor.learner.learn(salt, executor.target().map(|target| target.master).as_deref())
        };
        pipeline.set_signatures(self.learner.known(), Box::new(learn));
    }

    /// Applies a changed configuration. The key is checked for each request anyway.
    fn apply(&self, built: &Built) {
        let (Some(place), Some(known)) = (&built.place, self.target()) else { return };
        let master = if known.master.place() == place {
            known.master
        } else {
            tracing::info!(
                master = %place, user = place.user, before = %known.master.place(),
                "master address changed, sending reactions to the new one"
            );
            Arc::new(Master::new(place.clone(), self.metrics.clone()))
        };
        let (accepted, unsupported) = (built.accepted.clone(), built.unsupported.clone());
        let target = MasterTarget { master, accepted, unsupported };
        *self.target.write() = Some(target);
    }
}

impl Executor for MasterExecutor {
    fn ask(&self, call: &Call, jid: &str, timeout: std::time::Duration) -> Result<Answer, MasterError> {
        match self.target() {
            Some(target) => {
                self.has_bus(&target.master)?;
                target.master.ask(call, jid, timeout)
            }
            None => Err(MasterError::Refused { place: "no address".to_owned(), why: NO_MASTER.to_owned() }),
        }
    }

    fn reach(&self) -> Result<(), MasterError> {
        let Some(target) = self.target() else { return Ok(()) };
        self.has_bus(&target.master)?;
        target.master.reach()
    }

    fn unsupported(&self, client: &str) -> Option<String> {
        match self.target() {
            _ if client == "caller" => None,
            Some(target) => target.unsupported,
            None => Some(NO_MASTER.to_owned()),
        }
    }

    fn blocked_by(&self) -> Option<String> {
        self.target()?.unsupported
    }

    fn no_target(&self, tgt: &Value, tgt_type: &str) -> Option<String> {
        let accepted = self.target()?.accepted?;
        let is_there = |name: &str| {
            // A name with a slash is not a minion id, and could lead out of the directory.
            !name.contains('/') && accepted.join(name).symlink_metadata().is_ok()
        };
        let found = match (tgt_type, tgt) {
            ("glob", Value::Str(glob)) if glob.contains(['*', '?', '[']) => {
                let glob = Glob::new(glob);
                let mut keys = std::fs::read_dir(&accepted).ok()?;
                keys.any(|key| {
                    key.is_ok_and(|key| key.file_name().to_str().is_some_and(|id| glob.matches(id)))
                })
            }
            ("glob", Value::Str(name)) => accepted.is_dir().then(|| is_there(name))?,
            ("list", Value::List(names)) => {
                accepted.is_dir().then(|| names.iter().filter_map(Value::as_str).any(is_there))?
            }
            _ => return None,
        };
        (!found).then(|| "no minion with an accepted key matches the target".to_owned())
    }

    fn caller(&self, fun: &str, args: &[Value], kwargs: &Value) -> Result<CallerReturn, CallerError> {
        let kwargs: Map = kwargs.as_map().cloned().unwrap_or_default();
        let salt = self.callers.read().clone();
        let answer = salt.call(fun, args, &kwargs).map_err(|error| match error {
            SaltError::Absent(why) => CallerError::NotStarted(why),
            error @ SaltError::TooLong { .. } => CallerError::Failed(error.to_string()),
            error @ SaltError::Broken(_) => CallerError::Lost(error.to_string()),
        })?;
        let SaltAnswer { result, retcode, .. } = answer;
        result
            .map(|value| CallerReturn { value, retcode })
            .map_err(|(kind, text)| CallerError::Failed(format!("{kind}: {text}")))
    }

    fn fire(&self, tag: &str, data: &Value) -> Result<(), String> {
        let text = |error: crate::ingest::fire::FireError| error.to_string();
        let ours = self.firer.target(Some(&self.sock_dir));
        let target = ours.or_else(|_| self.firer.target(None)).map_err(text)?;
        let framing = self.firer.framing(&target).map_err(text)?;
        let stamp = self.clock.now().iso();
        let data = salt_event::stamped(&pack::packed(data), stamp.trim_end_matches('Z'));
        self.firer.fire(&target, framing, tag, &data).map_err(text)?;
        self.metrics.events_fired.add(1);
        Ok(())
    }
}

/// The parts built from Salt's configuration.
struct Built {
    pipeline: Arc<Pipeline>,
    settings: ReactorSettings,
    /// The master's address; `None` for a minion.
    place: Option<MasterAddress>,
    accepted: Option<PathBuf>,
    /// See [`MasterTarget`].
    unsupported: Option<String>,
    python: Option<PathBuf>,
    sock_dir: PathBuf,
}

/// A process of Salt's Python, or a stub without Python.
fn helper(python: Option<&PathBuf>, make: impl FnOnce(&PathBuf) -> HelperOptions) -> Arc<dyn Salt> {
    match python {
        Some(python) => Arc::new(Helper::new(make(python))),
        None => Arc::new(NoSalt),
    }
}

/// The state of a file for change detection: modification time and size.
type FileState = Option<(SystemTime, u64)>;

fn file_state(path: &Path) -> FileState {
    let found = std::fs::metadata(path).ok()?;
    Some((found.modified().ok()?, found.len()))
}

/// Watched files with their state before they were read, so that later changes trigger a reload.
type Followed = Vec<(PathBuf, FileState)>;

/// Reads the configuration of a master or minion, and all files to watch, valid or not. `known` are those
/// of the last read.
fn read(role: Role, path: &Path, known: &Followed) -> (SaltMaster, Followed) {
    let includes = match role {
        Role::Master => "master.d",
        Role::Minion => "minion.d",
    };
    let mut always = vec![path.to_owned()];
    always.extend(path.parent().map(|dir| dir.join(includes)));
    let with_state = |file: &PathBuf| (file.clone(), file_state(file));
    let others = known.iter().map(|(file, _)| file).filter(|file| !always.contains(file));
    let mut files: Followed = always.iter().chain(others).map(with_state).collect();
    loop {
        let master = SaltMaster::read_as(path, role);
        let is_new = |file: &&PathBuf| files.iter().all(|(there, _)| there != *file);
        let new: Followed = master.files.iter().filter(is_new).map(with_state).collect();
        if new.is_empty() {
            files.retain(|(file, _)| always.contains(file) || master.files.contains(file));
            return (master, files);
        }
        files.extend(new);
    }
}

fn build(
    master: &SaltMaster,
    path: &Path,
    key: &str,
    config: &ReactorConfig,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<Built> {
    let role = master.role;
    if !path.is_file() {
        bail!("{key}: there is no file {}", path.display());
    }
    let bad: Vec<&Note> = master.notes.iter().filter(|note| note.level == NoteLevel::Error).collect();
    if let Some(first) = bad.first() {
        bail!("{key}: {first}");
    }
    for note in &master.notes {
        tracing::warn!(file = %path.display(), "{note}");
    }
    let python =
        config.python.clone().or_else(|| Some(PathBuf::from(SALT_PYTHON)).filter(|path| path.is_file()));
    let options = |python: &PathBuf| {
        HelperOptions::of_daemon(python, master).bounded(config.helper_memory).counting(metrics.clone())
    };
    if python.is_some()
        && let Some(user) = master.configured_user()
        && let Err(why) = Account::switch(user, rustix::process::geteuid().as_raw())
    {
        tracing::error!(file = %path.display(), "rendering files with Salt's Python will fail: {why}");
    }
    let salt = helper(python.as_ref(), options);
    let pipeline = Pipeline::new(master, salt);
    if let Some(rules) = &config.rules {
        pipeline.set_rules(rules);
    }
    let rules = pipeline.rules().map_err(|note| anyhow::anyhow!("{note}"))?;
    for note in &rules.notes {
        tracing::error!(file = %path.display(), "{note}");
    }
    tracing::info!(rules = rules.len(), file = %path.display(), "loaded the reactor's rules");
    let mut settings = config.effective();
    settings.salts = acting::of_master(master);
    settings.runners = runner_limits(master);
    // Salt starts its own reactor regardless of other settings; two reactors would do everything twice.
    if settings.salts.runs && !settings.shadow {
        match role {
            Role::Master => tracing::error!(
                master = %path.display(),
                "Salt's own reactor runs on this master, because its configuration has `reactor` (or lists it under `engines`); \
                saltcellar's only watches. To switch over, add `saltcellar-reactor` to the master's list `engines` and restart the \
                master; to keep watching, set reactor.shadow: true"
            ),
            Role::Minion => tracing::error!(
                minion = %path.display(),
                "Salt's own reactor runs in this minion, because its `engines` list it; saltcellar's only watches. To switch over, remove it \
                there and restart the minion; to keep watching, set reactor.shadow: true"
            ),
        }
        settings.shadow = true;
    } else if role == Role::Master && !master.sends_reactor_requests() {
        tracing::info!(
            master = %path.display(),
            "`salt-run reactor.list` and similar commands report that no reactor is running, unless the master's list `engines` contains \
            `saltcellar-reactor`"
        );
    }
    let place = (role == Role::Master).then(|| MasterAddress {
        host: master.text("interface").unwrap_or("0.0.0.0").to_owned(),
        port: master.int("ret_port").and_then(|port| u16::try_from(port).ok()).unwrap_or(4506),
        cachedir: master.cachedir.clone(),
        user: master.user.clone(),
    });
    let unsupported = place.as_ref().and_then(|_| unsupported_transport(master));
    if let Some(why) = &unsupported {
        tracing::error!(master = %path.display(), "reactions are not executed: {why}");
    }
    let sock_dir = master.sock_dir.clone();
    let orders = master.option("order_masters").is_some_and(|value| *value != Value::Bool(false));
    let accepted = (!orders).then(|| master.pki_dir.join("minions"));
    Ok(Built { pipeline: Arc::new(pipeline), settings, place, accepted, unsupported, python, sock_dir })
}

/// Why requests to this master are impossible: its request port speaks ZeroMQ with the default `transport` only.
fn unsupported_transport(master: &SaltMaster) -> Option<String> {
    let transport = master.text("transport").filter(|transport| *transport != "zeromq")?;
    Some(format!(
        "the master's configuration has `transport: {transport}`, and saltcellar can only send requests with `transport: zeromq`"
    ))
}

/// The limits of concurrent runners, from the options of Salt's own reactor.
fn runner_limits(master: &SaltMaster) -> RunnerLimits {
    let default = RunnerLimits::default();
    let number = |name: &str| master.int(name).and_then(|number| usize::try_from(number).ok());
    let threads = number("reactor_worker_threads").and_then(|threads| u32::try_from(threads).ok());
    RunnerLimits {
        threads: threads.map_or(default.threads, |threads| threads.clamp(1, REACTOR_RUNNERS_MAX)),
        // Python's queues are unlimited without a size.
        waiting: number("reactor_worker_hwm").map_or(default.waiting, |most| (most > 0).then_some(most)),
    }
}

/// Warns if the buses are not exactly the one of this master or minion.
fn check_buses(buses: &[PathBuf], sock_dir: &Path) {
    match buses {
        [] => tracing::warn!(
            wanted = %sock_dir.display(),
            "no bus is configured (`bus`), the reactor receives no events"
        ),
        [one] if same_file(one, sock_dir) => {}
        _ => tracing::warn!(
            ?buses, wanted = %sock_dir.display(),
            "the reactor handles events of all configured buses; Salt's reactor handles only those of its own process"
        ),
    }
}

fn callers(python: Option<&PathBuf>, master: &SaltMaster, metrics: &Arc<Metrics>) -> Arc<dyn Salt> {
    let options = |python: &PathBuf| HelperOptions::of_daemon(python, master).for_callers();
    helper(python, |python| options(python).counting(metrics.clone()))
}

/// The configured user, and the other options that a process running as that user receives.
fn runs_as(master: &SaltMaster) -> Option<Map> {
    master.configured_user().map(|_| master.given().clone())
}

impl Running {
    /// Starts the reactor, if configured.
    pub(super) fn start(
        config: &Config,
        store: &Store,
        intake: &Intake,
        firer: &Arc<Firer>,
        master_keys: &Arc<MasterKeys>,
        clock: &Clock,
        metrics: &Arc<Metrics>,
    ) -> anyhow::Result<Option<Self>> {
        let Some((role, path, key)) = config.reactor.of_whom() else {
            // Salt's own reactor acts from now on: a reactor configured later must not handle the events until then.
            if store.remove_reactor_file()? {
                tracing::info!("no reactor is configured; one configured later starts with the next event");
            }
            return Ok(None);
        };
        let path = path.to_owned();
        let own = match config.origin(key) {
            Origin::File { path, .. } => Some((path.clone(), file_state(path))),
            _ => None,
        };
        let (master, files) = read(role, &path, &Vec::new());
        let Built { pipeline, settings, place, accepted, unsupported, python, sock_dir } =
            build(&master, &path, key, &config.reactor, metrics)?;
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
                MasterTarget { master, accepted, unsupported }
            })),
            callers: RwLock::new(callers(python.as_ref(), &master, &metrics)),
            firer: firer.clone(),
            learner: Arc::new(Learner::new(store.clone())),
            sock_dir: sock_dir.to_string_lossy().into_owned(),
            clock: clock.clone(),
            metrics: metrics.clone(),
        });
        executor.set_learner(&pipeline);
        let rules = Arc::new(Native::new(pipeline.clone()));
        let master_keys = master_keys.clone();
        let parts = Parts {
            store: store.clone(),
            intake: intake.clone(),
            clean: Arc::new(move |batch| master_keys.clean_batch(batch)),
            clock,
            metrics,
            rules,
            settings,
            executor: executor.clone(),
        };
        let reactor = Reactor::start(parts).context("start the reactor")?;
        let (drain, again) = (Drain::new(), Arc::new(AtomicBool::new(false)));
        let reloader = Reloader {
            handle: reactor.handle(),
            executor: executor.clone(),
            config: config.reactor.clone(),
            own,
            source: (role, path, key),
            python,
            runs_as: runs_as(&master),
            files,
            pipeline,
            drain: drain.clone(),
            again: again.clone(),
        };
        let work = move || reloader.run();
        let reloader = threads::spawn("sc-react-conf", work).context("start the reactor's reloader")?;
        Ok(Some(Self { reactor, reloader, drain, again }))
    }

    pub(super) fn handle(&self) -> Handle {
        self.reactor.handle()
    }

    /// Reloads the configuration, changed or not.
    pub(super) fn reload(&self) {
        self.again.store(true, Ordering::Relaxed);
    }

    pub(super) fn stop(self) {
        self.drain.stop();
        threads::join(self.reloader);
        self.reactor.stop();
    }
}

/// Keeps rules and settings up to date.
struct Reloader {
    handle: Handle,
    executor: Arc<MasterExecutor>,
    config: ReactorConfig,
    /// The daemon's own configuration file.
    own: Option<(PathBuf, FileState)>,
    source: (Role, PathBuf, &'static str),
    /// Salt's Python.
    python: Option<PathBuf>,
    /// See [`runs_as`].
    runs_as: Option<Map>,
    files: Followed,
    pipeline: Arc<Pipeline>,
    drain: Drain,
    again: Arc<AtomicBool>,
}

impl Reloader {
    fn run(mut self) {
        while !self.drain.wait(REACTOR_RELOAD) {
            let asked = self.again.swap(false, Ordering::Relaxed);
            let own_changed = self.own.as_ref().is_some_and(|(path, known)| file_state(path) != *known);
            if asked || own_changed || self.files.iter().any(|(file, known)| file_state(file) != *known) {
                self.reload();
            }
        }
    }

    /// Reloads everything. An invalid configuration changes nothing.
    fn reload(&mut self) {
        let config = self.own_config();
        let (role, path, key) = &self.source;
        let metrics = &self.executor.metrics;
        // Invalid files are watched, too, because the correction will be made there.
        let (master, files) = read(*role, path, &self.files);
        self.files = files;
        match config.and_then(|config| Ok((build(&master, path, key, &config, metrics)?, config))) {
            Ok((built, config)) => {
                self.executor.set_learner(&built.pipeline);
                built.pipeline.take_over(&self.pipeline);
                self.executor.apply(&built);
                let runs_as = runs_as(&master);
                if (&built.python, &runs_as) != (&self.python, &self.runs_as) {
                    let other = callers(built.python.as_ref(), &master, metrics);
                    *self.executor.callers.write() = other;
                    (self.python, self.runs_as) = (built.python, runs_as);
                }
                self.config = config;
                self.pipeline = built.pipeline;
                let rules = Arc::new(Native::new(self.pipeline.clone()));
                self.handle.change(rules, built.settings);
                tracing::info!("reactor configuration reloaded");
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(error, "changed reactor configuration is invalid, keeping the previous one");
                self.handle.refuse(error);
            }
        }
    }

    /// The reactor's part of the daemon's own configuration file.
    fn own_config(&mut self) -> anyhow::Result<ReactorConfig> {
        let Some((path, known)) = &mut self.own else { return Ok(self.config.clone()) };
        *known = file_state(path);
        let given = crate::config::CliOverrides {
            config: Some(path.clone()),
            ..crate::config::CliOverrides::default()
        };
        let config = Config::load(&given, &Environment::of_process())?.reactor;
        let (role, path, key) = &self.source;
        if config.of_whom() != Some((*role, path, key)) {
            bail!("{key} names another file; restart the daemon to apply the change");
        }
        Ok(config)
    }
}
