//! The parts of the reactor that follow from Salt's configuration, and the files to watch for
//! changes of it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use salt_sls::{Map, Value};

use crate::base::limits::REACTOR_RUNNERS_MAX;
use crate::base::metrics::Metrics;
use crate::config::ReactorConfig;
use crate::config::salt_master::{AcceptedKeys, Role, SaltMaster, python};
use crate::model::{Note, NoteLevel, ReactorSettings, RunnerLimits};
use crate::reactor::master::MasterAddress;
use crate::reactor::{Helper, HelperOptions, NoSalt, Pipeline, Salt, SaltPython, acting};

pub(super) struct Built {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) settings: ReactorSettings,
    /// The master's address; `None` for a minion.
    pub(super) place: Option<MasterAddress>,
    pub(super) accepted: Option<PathBuf>,
    /// See [`super::executor::MasterTarget`].
    pub(super) unsupported: Option<String>,
    pub(super) python: Option<PathBuf>,
    pub(super) sock_dir: PathBuf,
}

/// What was logged about the configuration in effect. A reload must not repeat it, because
/// repetitions would hide what is new.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// About the configuration in effect.
    before: HashSet<String>,
    /// About the configuration that is being built.
    now: HashSet<String>,
}

impl Said {
    /// Makes the remarks about the built configuration those about the configuration in effect.
    fn accept(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }

    /// True if a remark was not made about the configuration in effect.
    fn is_new(&mut self, remark: impl Into<String>) -> bool {
        let remark = remark.into();
        let is_new = !self.before.contains(&remark);
        self.now.insert(remark);
        is_new
    }
}

pub(super) fn build(
    master: &SaltMaster,
    path: &Path,
    key: &str,
    config: &ReactorConfig,
    metrics: &Arc<Metrics>,
    said: &mut Said,
) -> Result<Built, String> {
    said.now.clear();
    let role = master.role;
    if !path.is_file() {
        return Err(format!("{key}: there is no file {}", path.display()));
    }

    let bad: Vec<&Note> = master
        .notes
        .iter()
        .filter(|note| note.level == NoteLevel::Error)
        .collect();
    if let Some(first) = bad.first() {
        return Err(format!("{key}: {first}"));
    }

    for note in &master.notes {
        // A reload builds everything, and what was said of the configuration in effect is no news.
        if !said.is_new(note.to_string()) {
            continue;
        }
        tracing::warn!(file = %path.display(), %note, "master's configuration has a fault, which the reactor reads as Salt does: correct the option in this file or its includes");
    }

    let python = python::find(config.python.as_deref());
    if let Some(python) = &python {
        if said.is_new(format!("python {}", python.display())) {
            tracing::info!(python = %python.display(), "using Salt's Python");
        }
    } else if said.is_new("no python") {
        tracing::warn!(
            file = %path.display(),
            "no Python of Salt found (reactor.python is not set, salt-master is not installed): files that are not rendered natively, \
            grains, `caller` reactions, and runners and wheel functions without `args` will fail; set reactor.python"
        );
    }

    // Reported at the start, not only when the first file needs Python.
    if let Some(python) = &python
        && let Err(why) = SaltPython::new(python, master.configured_user())
        && said.is_new(&why)
    {
        tracing::error!(file = %path.display(), why, "Salt's Python cannot be used, files that need it fail to render: correct the cause and restart the daemon");
    }

    let salt: Arc<dyn Salt> = match &python {
        Some(python) => {
            let (memory, time, metrics) =
                (config.helper_memory, config.helper_timeout, metrics.clone());
            let options = HelperOptions {
                memory,
                time,
                program_time: config.program_timeout,
                metrics,
                ..HelperOptions::of_daemon(python, master)
            };
            Arc::new(Helper::new(options))
        }
        None => Arc::new(NoSalt),
    };

    let pipeline = Pipeline::new(master, salt);

    // The daemon's rules replace the master's rules.
    if let Some(rules) = &config.rules() {
        pipeline.set_rules(rules);
    }

    // With rules that cannot be read no event would match, so the configuration is rejected.
    let rules = pipeline.rules().map_err(|note| note.to_string())?;
    for note in &rules.notes {
        if !said.is_new(note.to_string()) {
            continue;
        }
        tracing::error!(file = %path.display(), %note, "rule of the reactor ignored: correct it, then run `saltcellar reactor lint`");
    }

    if said.is_new(format!("{} rules", rules.len())) {
        tracing::info!(rules = rules.len(), file = %path.display(), "loaded the reactor's rules");
    }

    let mut settings = config.effective();
    settings.salts = acting::of_master(master);
    settings.runners = runner_limits(master);
    settings.cluster_id = master.cluster_id().filter(|_| role == Role::Master);

    // Salt starts its own reactor regardless of other settings; two reactors would do everything
    // twice.
    if settings.salts.runs && !settings.shadow {
        match role {
            _ if !said.is_new("Salt's reactor runs") => {}
            Role::Master => tracing::warn!(
                master = %path.display(),
                "Salt's reactor runs on this master, because its configuration contains `reactor` (or lists it under `engines`); \
                saltcellar stays in shadow mode. To switch over, add `saltcellar_reactor` to the master's list `engines` and restart the \
                master; to keep watching, set reactor.shadow: true"
            ),
            Role::Minion => tracing::warn!(
                minion = %path.display(),
                "Salt's reactor runs in this minion, because its `engines` list it; saltcellar stays in shadow mode. To switch over, remove it \
                there and restart the minion; to keep watching, set reactor.shadow: true"
            ),
        }
        settings.shadow = true;
    } else if role == Role::Master
        && !master.sends_reactor_requests()
        && said.is_new("no reactor requests")
    {
        tracing::info!(
            master = %path.display(),
            "`salt-run reactor.list` and similar commands report that no reactor is running, unless the master's list `engines` contains \
            `saltcellar_reactor`"
        );
    }

    let place = (role == Role::Master).then(|| MasterAddress::of(master));
    let unsupported = place.as_ref().and_then(|_| unsupported_transport(master));
    if let Some(why) = &unsupported
        && said.is_new(why)
    {
        tracing::error!(master = %path.display(), why, "the reactor makes no calls: set `transport: zeromq` in the master's configuration and restart the master");
    }

    let sock_dir = master.sock_dir.clone();

    // A master of syndics publishes jobs that match none of its own minions.
    let orders = master
        .option("order_masters")
        .is_some_and(|value| *value != Value::Bool(false));

    let accepted = match master.accepted_keys() {
        AcceptedKeys::Files(dir) if !orders => Some(dir.join("minions")),
        // Keys that are kept elsewhere cannot be listed here.
        AcceptedKeys::Files(_) | AcceptedKeys::Driver(_) => None,
    };

    // From now on later remarks are compared with those about this configuration.
    said.accept();
    Ok(Built {
        pipeline: Arc::new(pipeline),
        settings,
        place,
        accepted,
        unsupported,
        python,
        sock_dir,
    })
}

/// Why requests to this master are impossible: its request port speaks ZeroMQ with the default
/// `transport` only.
fn unsupported_transport(master: &SaltMaster) -> Option<String> {
    let transport = master
        .text("transport")
        .filter(|transport| *transport != "zeromq")?;
    Some(format!(
        "the master's configuration has `transport: {transport}`, and saltcellar can only send requests with `transport: zeromq`"
    ))
}

/// The limits of concurrent runners, from the options of Salt's reactor.
fn runner_limits(master: &SaltMaster) -> RunnerLimits {
    let default = RunnerLimits::default();

    let number = |name: &str| {
        master
            .int(name)
            .and_then(|number| usize::try_from(number).ok())
    };

    let threads = number("reactor_worker_threads").and_then(|threads| u32::try_from(threads).ok());

    // As many as Salt's reactor, whose users know these options.
    RunnerLimits {
        threads: threads.map_or(default.threads, |threads| {
            threads.clamp(1, REACTOR_RUNNERS_MAX)
        }),
        // Python's queues are unlimited without a size.
        waiting: number("reactor_worker_hwm")
            .map_or(default.waiting, |most| (most > 0).then_some(most)),
    }
}

/// The process that runs `caller` reactions.
pub(super) fn callers(
    python: Option<&PathBuf>,
    master: &SaltMaster,
    metrics: &Arc<Metrics>,
) -> Option<Arc<Helper>> {
    let options = HelperOptions::of_daemon(python?, master).for_callers();
    Some(Arc::new(Helper::new(HelperOptions {
        metrics: metrics.clone(),
        ..options
    })))
}

/// The configured user, and the other options that a process running as that user receives.
pub(super) fn runs_as(master: &SaltMaster) -> Option<Map> {
    master.configured_user().map(|_| master.given().clone())
}
