//! The reactor's place in the daemon: built out of the master's own configuration, or a minion's, and built anew when that changes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::SystemTime;

use anyhow::{Context as _, bail};

use super::signatures::Learner;
use super::threads;
use crate::clock::Clock;
use crate::config::salt_master::{Role, SALT_PYTHON, SaltMaster, same_place};
use crate::config::{Config, Origin, ReactorConfig, Surroundings};
use crate::ingest::fire::Firer;
use crate::ingest::master_keys::MasterKeys;
use crate::limits::{REACTOR_RELOAD, REACTOR_RUNNERS_MAX};
use crate::master::{Answer, Call, Master, MasterError, Place, pack};
use crate::metrics::Metrics;
use crate::model::{Glob, Note, NoteLevel, ReactorSettings, RunnerLimits};
use crate::reactor::acting;
use crate::reactor::run::engine::{Handle, Parts, Reactor};
use crate::reactor::run::native::Native;
use crate::reactor::run::{Ask, CallerError, CallerReturn};
use crate::reactor::{Account, Helper, HelperOptions, NoSalt, Pipeline, Salt, SaltAnswer, SaltError};
use crate::shutdown::Drain;
use crate::sls::Value;
use crate::sls::value::Map;
use crate::store::{Intake, Store};
use crate::wire::salt_event;

/// The running reactor and the thread that looks after its configuration.
pub(super) struct Running {
    reactor: Reactor,
    reloader: JoinHandle<()>,
    drain: Drain,
    again: Arc<AtomicBool>,
}

/// What a minion's reactor says of other reactions than `caller`.
const NO_MASTER: &str = "this is a minion's reactor (reactor.minion): it has `caller` reactions only";

/// What reactions are carried out with.
struct Hands {
    /// Another one once the configuration says so; what is under way ends with the one it began with. A minion has none.
    seat: RwLock<Option<Seat>>,
    /// What runs `caller` reactions, one after the other.
    callers: RwLock<Arc<dyn Salt>>,
    firer: Arc<Firer>,
    learner: Arc<Learner>,
    /// Where the sockets of the bus lie that is reacted to.
    sock_dir: String,
    clock: Clock,
    metrics: Arc<Metrics>,
}

/// A master, as its configuration has it.
#[derive(Clone)]
struct Seat {
    master: Arc<Master>,
    /// The keys that it accepted; none if it publishes jobs for nobody, too.
    accepted: Option<PathBuf>,
    /// Why nothing can be asked of it, if that follows from its configuration.
    unsupported: Option<String>,
}

impl Hands {
    fn seat(&self) -> Option<Seat> {
        self.seat.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fails if the master's event bus is gone. Without one a master does not run: no process of it can publish a job, or start a
    /// runner in sight of anybody, and each request would end in an exception of which nobody knows where it was raised.
    fn has_bus(&self, master: &Master) -> Result<(), MasterError> {
        self.firer.disconnected(&self.sock_dir).map_or(Ok(()), |bus| {
            let why = format!("its event bus is not connected ({})", bus.display());
            Err(MasterError::Unreachable { place: master.place().to_string(), why })
        })
    }

    /// Lets a pipeline learn what the master's own runners take, when it needs that.
    fn set_learner(self: &Arc<Self>, pipeline: &Pipeline) {
        let hands = Arc::downgrade(self);
        let learn = move |salt: &dyn Salt| {
            let hands = hands.upgrade()?;
            hands.learner.learn(salt, hands.seat().map(|seat| seat.master).as_deref())
        };
        pipeline.set_signatures(self.learner.known(), Box::new(learn));
    }

    /// Takes up what the configuration says by now. The key is looked at for each request anyway.
    fn take_up(&self, built: &Built) {
        let (Some(place), Some(known)) = (&built.place, self.seat()) else { return };
        let master = if known.master.place() == place {
            known.master
        } else {
            tracing::info!(
                master = %place, user = place.user, before = %known.master.place(),
                "reactions go to the master at its new place"
            );
            Arc::new(Master::new(place.clone(), self.metrics.clone()))
        };
        let (accepted, unsupported) = (built.accepted.clone(), built.unsupported.clone());
        let seat = Seat { master, accepted, unsupported };
        *self.seat.write().unwrap_or_else(PoisonError::into_inner) = Some(seat);
    }
}

impl Ask for Hands {
    fn ask(&self, call: &Call, jid: &str, patience: std::time::Duration) -> Result<Answer, MasterError> {
        match self.seat() {
            Some(seat) => {
                self.has_bus(&seat.master)?;
                seat.master.ask(call, jid, patience)
            }
            None => Err(MasterError::Refused { place: "no address".to_owned(), why: NO_MASTER.to_owned() }),
        }
    }

    fn reach(&self) -> Result<(), MasterError> {
        let Some(seat) = self.seat() else { return Ok(()) };
        self.has_bus(&seat.master)?;
        seat.master.reach()
    }

    fn cannot(&self, client: &str) -> Option<String> {
        match self.seat() {
            _ if client == "caller" => None,
            Some(seat) => seat.unsupported,
            None => Some(NO_MASTER.to_owned()),
        }
    }

    fn idle(&self) -> Option<String> {
        self.seat()?.unsupported
    }

    fn reaches_nobody(&self, tgt: &Value, tgt_type: &str) -> Option<String> {
        let accepted = self.seat()?.accepted?;
        let is_there = |name: &str| {
            // A name with a slash is no minion's, and would lead elsewhere.
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
        let salt = self.callers.read().unwrap_or_else(PoisonError::into_inner).clone();
        let answer = salt.call(fun, args, &kwargs).map_err(|error| match error {
            SaltError::Absent(why) => CallerError::NotBegun(why),
            error @ SaltError::TooLong { .. } => CallerError::Failed(error.to_string()),
            error @ SaltError::Broken(_) => CallerError::Lost(error.to_string()),
        })?;
        let SaltAnswer { result, retcode, .. } = answer;
        result
            .map(|value| CallerReturn { value, retcode })
            .map_err(|(kind, text)| CallerError::Failed(format!("{kind}: {text}")))
    }

    fn fire(&self, tag: &str, data: &Value) -> Result<(), String> {
        let said = |error: crate::ingest::fire::FireError| error.to_string();
        let ours = self.firer.target(Some(&self.sock_dir));
        let target = ours.or_else(|_| self.firer.target(None)).map_err(said)?;
        let framing = self.firer.framing(&target).map_err(said)?;
        let stamp = self.clock.now().iso();
        let data = salt_event::stamped(&pack::packed(data), stamp.trim_end_matches('Z'));
        self.firer.fire(&target, framing, tag, &data).map_err(said)?;
        self.metrics.events_fired.add(1);
        Ok(())
    }
}

/// What the master's files say, as far as it is of use.
struct Built {
    pipeline: Arc<Pipeline>,
    settings: ReactorSettings,
    /// The master's; none for a minion.
    place: Option<Place>,
    accepted: Option<PathBuf>,
    /// See [`Seat`].
    unsupported: Option<String>,
    python: Option<PathBuf>,
    sock_dir: PathBuf,
}

/// Salt's Python as a process, or nothing.
fn helper(python: Option<&PathBuf>, make: impl FnOnce(&PathBuf) -> HelperOptions) -> Arc<dyn Salt> {
    match python {
        Some(python) => Arc::new(Helper::new(make(python))),
        None => Arc::new(NoSalt),
    }
}

/// By what it is seen that a file has changed: when it was written to last, and how long it is.
type Stamp = Option<(SystemTime, u64)>;

fn stamp(path: &Path) -> Stamp {
    let found = std::fs::metadata(path).ok()?;
    Some((found.modified().ok()?, found.len()))
}

/// Files that are followed, as they were before they were read: what changes meanwhile is read again.
type Followed = Vec<(PathBuf, Stamp)>;

/// Reads the master's configuration, or a minion's, with all files that are to be followed, of use or not. `known` are those
/// of the last time.
fn read(role: Role, path: &Path, known: &Followed) -> (SaltMaster, Followed) {
    let includes = match role {
        Role::Master => "master.d",
        Role::Minion => "minion.d",
    };
    let mut always = vec![path.to_owned()];
    always.extend(path.parent().map(|dir| dir.join(includes)));
    let stamped = |file: &PathBuf| (file.clone(), stamp(file));
    let others = known.iter().map(|(file, _)| file).filter(|file| !always.contains(file));
    let mut files: Followed = always.iter().chain(others).map(stamped).collect();
    loop {
        let master = SaltMaster::read_as(path, role);
        let is_new = |file: &&PathBuf| files.iter().all(|(there, _)| there != *file);
        let new: Followed = master.files.iter().filter(is_new).map(stamped).collect();
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
        tracing::error!(file = %path.display(), "files that need Salt's Python will fail: {why}");
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
    tracing::info!(rules = rules.len(), file = %path.display(), "the reactor's rules");
    let mut settings = config.effective();
    settings.salts = acting::of_master(master);
    settings.runners = runner_limits(master);
    // Salt starts its own reactor whatever else is said; two of them would do everything twice.
    if settings.salts.runs && !settings.shadow {
        match role {
            Role::Master => tracing::error!(
                master = %path.display(),
                "Salt's own reactor runs on this master, for its configuration has `reactor` (or names it under `engines`); \
                 saltcellar's only watches. To hand over, put `saltcellar-reactor` into the master's list `engines` and restart the \
                 master, or say reactor.shadow: true"
            ),
            Role::Minion => tracing::error!(
                minion = %path.display(),
                "Salt's own reactor runs in this minion, for its `engines` name it; saltcellar's only watches. To hand over, take it \
                 out there and restart the minion, or say reactor.shadow: true"
            ),
        }
        settings.shadow = true;
    } else if role == Role::Master && !master.lets_ask_reactor() {
        tracing::info!(
            master = %path.display(),
            "`salt-run reactor.list` and its kin will say that no reactor is running, until the master's list `engines` has \
             `saltcellar-reactor`"
        );
    }
    let place = (role == Role::Master).then(|| Place {
        host: master.text("interface").unwrap_or("0.0.0.0").to_owned(),
        port: master.int("ret_port").and_then(|port| u16::try_from(port).ok()).unwrap_or(4506),
        cachedir: master.cachedir.clone(),
        user: master.user.clone(),
    });
    let unsupported = place.as_ref().and_then(|_| unsupported_transport(master));
    if let Some(why) = &unsupported {
        tracing::error!(master = %path.display(), "reactions are not carried out: {why}");
    }
    let sock_dir = master.sock_dir.clone();
    let orders = master.option("order_masters").is_some_and(|value| *value != Value::Bool(false));
    let accepted = (!orders).then(|| master.pki_dir.join("minions"));
    Ok(Built { pipeline: Arc::new(pipeline), settings, place, accepted, unsupported, python, sock_dir })
}

/// Why nothing can be asked of this master: its request port speaks ZeroMQ with the default `transport` alone.
fn unsupported_transport(master: &SaltMaster) -> Option<String> {
    let transport = master.text("transport").filter(|transport| *transport != "zeromq")?;
    Some(format!(
        "the master's configuration has `transport: {transport}`, and saltcellar can only send requests with `transport: zeromq`"
    ))
}

/// How many runners are under way at once, by the options of Salt's own reactor.
fn runner_limits(master: &SaltMaster) -> RunnerLimits {
    let default = RunnerLimits::default();
    let number = |name: &str| master.int(name).and_then(|number| usize::try_from(number).ok());
    let threads = number("reactor_worker_threads").and_then(|threads| u32::try_from(threads).ok());
    RunnerLimits {
        threads: threads.map_or(default.threads, |threads| threads.clamp(1, REACTOR_RUNNERS_MAX)),
        // A queue of Python without a size has no limit.
        waiting: number("reactor_worker_hwm").map_or(default.waiting, |most| (most > 0).then_some(most)),
    }
}

/// Says so if the events that are reacted to are not those of that one bus.
fn look_at_buses(buses: &[PathBuf], sock_dir: &Path) {
    match buses {
        [] => tracing::warn!(
            wanted = %sock_dir.display(),
            "no bus is read (`bus`): nothing is reacted to"
        ),
        [one] if same_place(one, sock_dir) => {}
        _ => tracing::warn!(
            ?buses, wanted = %sock_dir.display(),
            "events of every bus that is read are reacted to; Salt's reactor has that of its own daemon alone"
        ),
    }
}

fn callers(python: Option<&PathBuf>, master: &SaltMaster, metrics: &Arc<Metrics>) -> Arc<dyn Salt> {
    let options = |python: &PathBuf| HelperOptions::of_daemon(python, master).for_callers();
    helper(python, |python| options(python).counting(metrics.clone()))
}

/// The configured user, and what else a process that runs as that user has been given of the configuration.
fn runs_as(master: &SaltMaster) -> Option<Map> {
    master.configured_user().map(|_| master.given().clone())
}

impl Running {
    /// Starts the reactor that is configured, if one is.
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
            // Salt's own reactor acts from now on: a reactor that is configured later has nothing to do with events until then.
            if store.remove_reactor_file()? {
                tracing::info!(
                    "no reactor is configured; one that is configured later begins with the next event"
                );
            }
            return Ok(None);
        };
        let path = path.to_owned();
        let own = match config.origin(key) {
            Origin::File { path, .. } => Some((path.clone(), stamp(path))),
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
        look_at_buses(&config.bus, &sock_dir);
        let (clock, metrics) = (clock.clone(), metrics.clone());
        let hands = Arc::new(Hands {
            seat: RwLock::new(place.map(|place| {
                let master = Arc::new(Master::new(place, metrics.clone()));
                Seat { master, accepted, unsupported }
            })),
            callers: RwLock::new(callers(python.as_ref(), &master, &metrics)),
            firer: firer.clone(),
            learner: Arc::new(Learner::new(store.clone())),
            sock_dir: sock_dir.to_string_lossy().into_owned(),
            clock: clock.clone(),
            metrics: metrics.clone(),
        });
        hands.set_learner(&pipeline);
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
            ask: hands.clone(),
        };
        let reactor = Reactor::start(parts).context("start the reactor")?;
        let (drain, again) = (Drain::new(), Arc::new(AtomicBool::new(false)));
        let keeper = Keeper {
            handle: reactor.handle(),
            hands: hands.clone(),
            config: config.reactor.clone(),
            own,
            whose: (role, path, key),
            python,
            runs_as: runs_as(&master),
            files,
            pipeline,
            drain: drain.clone(),
            again: again.clone(),
        };
        let work = move || keeper.run();
        let reloader = threads::spawn("sc-react-conf", work).context("start the reactor's reloader")?;
        Ok(Some(Self { reactor, reloader, drain, again }))
    }

    pub(super) fn handle(&self) -> Handle {
        self.reactor.handle()
    }

    /// Reads the master's files again, changed or not.
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
struct Keeper {
    handle: Handle,
    hands: Arc<Hands>,
    config: ReactorConfig,
    /// The daemon's own file.
    own: Option<(PathBuf, Stamp)>,
    whose: (Role, PathBuf, &'static str),
    /// Salt's.
    python: Option<PathBuf>,
    /// See [`runs_as`].
    runs_as: Option<Map>,
    files: Followed,
    pipeline: Arc<Pipeline>,
    drain: Drain,
    again: Arc<AtomicBool>,
}

impl Keeper {
    fn run(mut self) {
        while !self.drain.wait(REACTOR_RELOAD) {
            let asked = self.again.swap(false, Ordering::Relaxed);
            let own_changed = self.own.as_ref().is_some_and(|(path, known)| stamp(path) != *known);
            if asked || own_changed || self.files.iter().any(|(file, known)| stamp(file) != *known) {
                self.reload();
            }
        }
    }

    /// Reads everything again. What cannot be used leaves everything as it is.
    fn reload(&mut self) {
        let config = self.own_config();
        let (role, path, key) = &self.whose;
        let metrics = &self.hands.metrics;
        // Also what is of no use is followed: it is there that the mistake will be mended.
        let (master, files) = read(*role, path, &self.files);
        self.files = files;
        match config.and_then(|config| Ok((build(&master, path, key, &config, metrics)?, config))) {
            Ok((built, config)) => {
                self.hands.set_learner(&built.pipeline);
                built.pipeline.take_over(&self.pipeline);
                self.hands.take_up(&built);
                let runs_as = runs_as(&master);
                if (&built.python, &runs_as) != (&self.python, &self.runs_as) {
                    let other = callers(built.python.as_ref(), &master, metrics);
                    *self.hands.callers.write().unwrap_or_else(PoisonError::into_inner) = other;
                    (self.python, self.runs_as) = (built.python, runs_as);
                }
                self.config = config;
                self.pipeline = built.pipeline;
                let rules = Arc::new(Native::new(self.pipeline.clone()));
                self.handle.change(rules, built.settings);
                tracing::info!("the reactor's configuration was read again");
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(
                    error,
                    "the reactor's configuration has changed and cannot be used; it goes on as it was"
                );
                self.handle.refuse(error);
            }
        }
    }

    /// What the daemon's own file says of the reactor by now.
    fn own_config(&mut self) -> anyhow::Result<ReactorConfig> {
        let Some((path, known)) = &mut self.own else { return Ok(self.config.clone()) };
        *known = stamp(path);
        let given = crate::config::Given { config: Some(path.clone()), ..crate::config::Given::default() };
        let config = Config::load(&given, &Surroundings::of_process())?.reactor;
        let (role, path, key) = &self.whose;
        if config.of_whom() != Some((*role, path, key)) {
            bail!("{key} is another file; that takes effect at the next start");
        }
        Ok(config)
    }
}
