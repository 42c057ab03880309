//! The reactor's place in the daemon: built out of the master's own configuration, and built anew when that changes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime};

use anyhow::{Context as _, bail};

use super::threads;
use crate::clock::Clock;
use crate::config::salt_master::SaltMaster;
use crate::config::{Config, Origin, ReactorConfig, Surroundings};
use crate::ingest::fire::Firer;
use crate::limits::{MASTER_PATIENCE, REACTOR_RELOAD, REACTOR_SIGNATURES};
use crate::master::{Answer, Call, Master, MasterError, Place, pack, read_signatures};
use crate::metrics::Metrics;
use crate::model::{Note, NoteLevel, ReactorSettings};
use crate::reactor::run::Ask;
use crate::reactor::run::engine::{Handle, Parts, Reactor};
use crate::reactor::run::native::Native;
use crate::reactor::{Helper, HelperOptions, NoSalt, Pipeline, Salt, Signature, Signatures};
use crate::shutdown::Drain;
use crate::sls::Value;
use crate::sls::value::Map;
use crate::store::{Intake, Store};
use crate::wire::{msgpack, salt_event};

/// Where the packages of Salt have their Python.
const PACKAGED_PYTHON: &str = "/opt/saltstack/salt/bin/python3";

/// The running reactor and the thread that looks after its configuration.
pub(super) struct Running {
    reactor: Reactor,
    reloader: JoinHandle<()>,
    drain: Drain,
    again: Arc<AtomicBool>,
}

/// What reactions are carried out with.
struct Hands {
    master: Master,
    salt: Arc<dyn Salt>,
    firer: Arc<Firer>,
    clock: Clock,
    metrics: Arc<Metrics>,
}

impl Ask for Hands {
    fn ask(&self, call: &Call, jid: &str, patience: std::time::Duration) -> Result<Answer, MasterError> {
        self.master.ask(call, jid, patience)
    }

    fn caller(&self, fun: &str, args: &[Value], kwargs: &Value) -> Result<Value, String> {
        let kwargs: Map = kwargs.as_map().cloned().unwrap_or_default();
        let answer = self.salt.call(fun, args, &kwargs).map_err(|error| error.to_string())?;
        answer.result.map_err(|(kind, text)| format!("{kind}: {text}"))
    }

    fn fire(&self, tag: &str, data: &Value) -> Result<(), String> {
        let said = |error: crate::ingest::fire::FireError| error.to_string();
        let target = self.firer.target(None).map_err(said)?;
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
    place: Place,
    salt: Arc<dyn Salt>,
    /// The files that were read, and when they were changed.
    files: Vec<(PathBuf, Option<SystemTime>)>,
}

fn build(path: &Path, config: &ReactorConfig) -> anyhow::Result<Built> {
    if !path.is_file() {
        bail!("reactor.master: there is no file {}", path.display());
    }
    let master = SaltMaster::read(path);
    // The master starts its own reactor whatever else is said; two of them would do everything twice.
    let salt_reacts = master.runs_reactor();
    let bad: Vec<&Note> = master.notes.iter().filter(|note| note.level == NoteLevel::Error).collect();
    if let Some(first) = bad.first() {
        bail!("reactor.master: {first}");
    }
    for note in &master.notes {
        tracing::warn!(file = %path.display(), "{note}");
    }
    let python =
        config.python.clone().or_else(|| Some(PathBuf::from(PACKAGED_PYTHON)).filter(|path| path.is_file()));
    let salt: Arc<dyn Salt> = match python {
        Some(python) => Arc::new(Helper::new(HelperOptions::new(python, path))),
        None => Arc::new(NoSalt),
    };
    let pipeline = Pipeline::new(&master, salt.clone());
    if let Some(rules) = &config.rules {
        pipeline.set_rules(rules);
    }
    let rules = pipeline.rules().map_err(|note| anyhow::anyhow!("{note}"))?;
    for note in &rules.notes {
        tracing::error!(file = %path.display(), "{note}");
    }
    tracing::info!(rules = rules.len(), master = %path.display(), "the reactor's rules");
    let mut settings = config.effective();
    if salt_reacts && !settings.shadow {
        tracing::error!(
            master = %path.display(),
            "Salt's own reactor runs on this master, for its configuration has `reactor` (or names it under `engines`); \
             saltcellar's only watches. Move the rules to reactor.rules and restart the master, or say reactor.shadow: true"
        );
        settings.shadow = true;
    }
    let port = master.int("ret_port").and_then(|port| u16::try_from(port).ok()).unwrap_or(4506);
    let place = Place {
        host: master.text("interface").unwrap_or("0.0.0.0").to_owned(),
        port,
        cachedir: master.cachedir.clone(),
        user: master.user.clone(),
    };
    let mut files = master.files.clone();
    if !files.contains(&master.conf_file) {
        files.push(master.conf_file.clone());
    }
    let include = path.parent().map(|dir| dir.join("master.d"));
    let files = files.into_iter().chain(include).map(|file| (file.clone(), changed(&file))).collect();
    Ok(Built { pipeline: Arc::new(pipeline), settings, place, salt, files })
}

fn changed(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|found| found.modified()).ok()
}

impl Running {
    /// Starts the reactor that is configured, if one is.
    pub(super) fn start(
        config: &Config,
        store: &Store,
        intake: &Intake,
        firer: &Arc<Firer>,
        clock: &Clock,
        metrics: &Arc<Metrics>,
    ) -> anyhow::Result<Option<Self>> {
        let Some(path) = config.reactor.master.clone() else { return Ok(None) };
        let Built { pipeline, settings, place, salt, files } = build(&path, &config.reactor)?;
        let shadow = settings.shadow;
        tracing::info!(master = %place, user = place.user, shadow, "reacting to the master's events");
        let (clock, metrics) = (clock.clone(), metrics.clone());
        let hands = Arc::new(Hands {
            master: Master::new(place, metrics.clone()),
            salt,
            firer: firer.clone(),
            clock: clock.clone(),
            metrics: metrics.clone(),
        });
        let rules = Arc::new(Native::new(pipeline.clone()));
        let parts = Parts {
            store: store.clone(),
            intake: intake.clone(),
            clock,
            metrics,
            rules,
            settings,
            ask: hands.clone(),
        };
        let reactor = Reactor::start(parts).context("start the reactor")?;
        let (drain, again) = (Drain::new(), Arc::new(AtomicBool::new(false)));
        let own = match config.origin("reactor.master") {
            Origin::File { path, .. } => Some(path.clone()),
            _ => None,
        };
        let keeper = Keeper {
            handle: reactor.handle(),
            hands: hands.clone(),
            store: store.clone(),
            config: config.reactor.clone(),
            own: own.map(|path| (path.clone(), changed(&path))),
            path,
            files,
            pipeline,
            runners: HashMap::new(),
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

/// Keeps rules, settings and signatures up to date.
struct Keeper {
    handle: Handle,
    hands: Arc<Hands>,
    store: Store,
    config: ReactorConfig,
    /// The daemon's own file, and when it was changed.
    own: Option<(PathBuf, Option<SystemTime>)>,
    path: PathBuf,
    files: Vec<(PathBuf, Option<SystemTime>)>,
    pipeline: Arc<Pipeline>,
    /// The arguments of the master's runners, once it has told them.
    runners: HashMap<String, Signature>,
    drain: Drain,
    again: Arc<AtomicBool>,
}

impl Keeper {
    fn run(mut self) {
        let mut ask_at = Instant::now();
        let mut told: Option<(String, Instant)> = None;
        loop {
            if let Some((jid, until)) = &told {
                if self.learn_runners(jid) {
                    (told, ask_at) = (None, Instant::now() + REACTOR_SIGNATURES);
                } else if Instant::now() >= *until {
                    told = None;
                }
            } else if Instant::now() >= ask_at {
                // Until it has told, the built-in ones do for Salt's own runners.
                told = self.ask_for_runners().map(|jid| (jid, Instant::now() + MASTER_PATIENCE));
                ask_at = Instant::now() + REACTOR_SIGNATURES / 60;
            }
            if self.drain.wait(REACTOR_RELOAD) {
                return;
            }
            let asked = self.again.swap(false, Ordering::Relaxed);
            let own_changed = self.own.as_ref().is_some_and(|(path, known)| changed(path) != *known);
            if asked || own_changed || self.files.iter().any(|(file, known)| changed(file) != *known) {
                self.reload();
            }
        }
    }

    /// Reads everything again. What cannot be used leaves everything as it is.
    fn reload(&mut self) {
        let read = self.own_config().and_then(|config| Ok((build(&self.path, &config)?, config)));
        match read {
            Ok((built, config)) => {
                if !self.runners.is_empty() {
                    built.pipeline.set_signatures(Signatures::with_runners(self.runners.clone()));
                }
                (self.files, self.config) = (built.files, config);
                self.pipeline = built.pipeline;
                let rules = Arc::new(Native::new(self.pipeline.clone()));
                self.handle.change(Some(rules), Some(built.settings));
                tracing::info!("the reactor's configuration was read again");
            }
            Err(error) => {
                for (file, known) in &mut self.files {
                    *known = changed(file);
                }
                tracing::error!(
                    error = format!("{error:#}"),
                    "the reactor's configuration has changed and cannot be used; it goes on as it was"
                );
            }
        }
    }

    /// What the daemon's own file says of the reactor by now.
    fn own_config(&mut self) -> anyhow::Result<ReactorConfig> {
        let Some((path, known)) = &mut self.own else { return Ok(self.config.clone()) };
        *known = changed(path);
        let given = crate::config::Given { config: Some(path.clone()), ..crate::config::Given::default() };
        let config = Config::load(&given, &Surroundings::of_process())?.reactor;
        if config.master.as_deref() != Some(&self.path) {
            bail!("reactor.master is another file; that takes effect at the next start");
        }
        Ok(config)
    }

    /// Asks the master what its runners take, custom ones among them; the jid under which the answer comes.
    fn ask_for_runners(&self) -> Option<String> {
        let call = Call::runner("salt.cmd", vec!["sys.runner_argspec".into(), "*".into()], Map::new());
        match self.hands.master.ask(&call, "", MASTER_PATIENCE) {
            Ok(Answer::Started { jid, .. }) => Some(jid),
            Ok(_) => None,
            Err(error) => {
                tracing::debug!(%error, "the master was not asked for its runners");
                None
            }
        }
    }

    /// Takes the answer, if it has come.
    fn learn_runners(&mut self, jid: &str) -> bool {
        let entries = self.store.job_entries(jid).unwrap_or_else(|error| {
            tracing::warn!(%error, jid, "the master's answer about its runners could not be read");
            Vec::new()
        });
        let is_ret = |tag: &[u8]| salt_event::job_tag(tag).is_some_and(|tag| tag.about == "ret");
        let Some(ret) = entries.iter().find(|entry| is_ret(&entry.tag)) else { return false };
        let told = read_signatures(msgpack::get(&ret.body, "return").unwrap_or_default());
        if told.is_empty() {
            return false;
        }
        self.runners = told.into_iter().map(|(name, told)| (name.clone(), signature(&name, told))).collect();
        self.pipeline.set_signatures(Signatures::with_runners(self.runners.clone()));
        tracing::debug!(runners = self.runners.len(), "the master told what its runners take");
        true
    }
}

/// As Salt's own reactor would see it.
fn signature(name: &str, told: crate::master::Signature) -> Signature {
    let known = Signatures::built_in().runner(name).map(|known| known.name.clone());
    let last = || name.rsplit('.').next().unwrap_or(name).to_owned();
    let required = told.args.len().saturating_sub(told.defaults.len());
    let (required, optional) = told.args.split_at(required);
    Signature {
        name: known.unwrap_or_else(last),
        required: required.to_vec(),
        optional: optional.iter().cloned().zip(told.defaults).collect(),
        any_keyword: told.kwargs,
    }
}
