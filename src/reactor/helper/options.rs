//! The options of helper processes, and what they log.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use salt_sls::json_form::encode_map;
use serde_json::Value as Json;

use crate::base::limits;
use crate::base::metrics::Metrics;
use crate::config::salt_master::{Role, SaltMaster};

/// Options of the helper processes.
#[derive(Debug, Clone)]
pub struct HelperOptions {
    /// A Python with Salt; one without Salt can still run `#!py` files.
    pub python: PathBuf,
    /// The configuration file.
    pub config: PathBuf,
    /// The daemon that the file configures.
    pub role: Role,
    /// True if it runs only a minion's `caller` reactions.
    pub caller: bool,
    /// True if it runs `caller` reactions, of a master or a minion.
    pub runs_callers: bool,
    /// Fixed results of functions of `salt`, as in conformance cases; an object.
    pub stubs: Json,
    /// The user to run as; `None` for the daemon's own user.
    pub user: Option<String>,
    /// The configured options without defaults, because `user` may lack the permission to read the
    /// files. An object.
    pub given: Option<Json>,
    /// Memory limit of a process in bytes; `None` for no limit.
    pub memory: Option<u64>,
    /// Maximum number of tries of a request whose process dies.
    pub tries: u32,
    /// Maximum number of processes.
    pub processes: usize,
    /// Time limit of a file or call.
    pub time: Duration,
    /// Time limit of a file that is a program.
    pub program_time: Duration,
    /// Receives the counters.
    pub metrics: Arc<Metrics>,
}

impl HelperOptions {
    /// For a master, with default limits and without stubs.
    pub fn new(python: impl Into<PathBuf>, config: impl Into<PathBuf>) -> Self {
        let python: PathBuf = python.into();

        // A name without directory is searched in `PATH`.
        let is_name = python.components().count() == 1;
        Self {
            python: if is_name { python } else { absolute(&python) },
            config: absolute(&config.into()),
            role: Role::Master,
            caller: false,
            runs_callers: false,
            stubs: Json::Object(serde_json::Map::new()),
            user: None,
            given: None,
            memory: Some(limits::REACTOR_HELPER_MEMORY),
            tries: limits::REACTOR_HELPER_TRIES,
            processes: limits::REACTOR_HELPERS,
            time: limits::REACTOR_HELPER_TIME,
            program_time: limits::REACTOR_PROGRAM_TIME,
            metrics: Arc::default(),
        }
    }

    /// For a Salt daemon with this configuration, as its user.
    pub fn of_daemon(python: impl Into<PathBuf>, salt: &SaltMaster) -> Self {
        let mut options = Self::new(python, &salt.conf_file);
        options.role = salt.role;
        options.user = salt.configured_user().map(str::to_owned);
        options.given = Some(encode_map(salt.given()));
        options
    }

    /// A time limit, with its form in messages.
    pub(super) fn time_limit(&self, is_program: bool) -> (Duration, String) {
        let (time, option) = match (self.runs_callers, is_program) {
            (true, _) => (self.time, ""),
            (false, false) => (self.time, " (reactor.helper_timeout)"),
            // A longer one for all files is not cut for those that need it most.
            (false, true) if self.time > self.program_time => {
                (self.time, " (reactor.helper_timeout)")
            }
            (false, true) => (self.program_time, " (reactor.program_timeout)"),
        };
        (time, format!("{} s{option}", time.as_secs()))
    }

    /// For `caller` reactions, which may take as long as a state run. No memory limit, because
    /// child processes would inherit it.
    #[must_use]
    pub fn for_callers(mut self) -> Self {
        // A master does not load minion functions; the functions of its renderer are used.
        self.caller = self.role == Role::Minion;
        self.runs_callers = true;
        self.time = limits::REACTOR_CALLER_TIME;
        self.processes = 1;
        self.tries = 1;
        self.memory = None;
        self
    }
}

/// An absolute path, because processes run in `/`.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The loggers of Salt whose records concern the reactor; part of the greeting's request.
pub(in crate::reactor) const LOGGERS: [&str; 14] = [
    "salt.utils.reactor",
    "salt.template",
    "salt.utils.templates",
    "salt.utils.data",
    "salt.state",
    "salt.utils.requisite",
    "salt.utils.jinja",
    "salt.loaded.int.render",
    "salt.renderers",
    "salt.fileclient",
    "salt.loaded.int.module.cp",
    "salt.loaded.int.module.logmod",
    "salt.client",
    "salt.config",
];
