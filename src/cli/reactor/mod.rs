//! `saltcellar reactor ...`: what the reactor does, did, and why; its rules and files: tried, looked over, compared with Salt.

mod check;
mod history;
mod list;
mod parity;
mod replay;
mod shadow;
mod show;
mod test;
mod why;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;

use super::Global;
use crate::config::salt_master::{Role, SALT_MASTER_FILE, SALT_PYTHON, SaltMaster};
use crate::config::{Config, Surroundings};
use crate::reactor::{Helper, HelperOptions, NoSalt, Salt};
use crate::sls;

pub(super) use self::check::Broken;
pub(super) use self::history::failures;
pub(super) use self::parity::NotAsSalt;
pub(super) use self::shadow::Unlike;

/// Verbs under `reactor`.
#[derive(clap::Subcommand)]
pub(super) enum Reactor {
    /// List the rules and who acts on each: saltcellar, Salt's own reactor, nobody, or both
    #[command(after_long_help = list::EXAMPLES)]
    List(list::Args),
    /// What was done about events, the newest at the bottom
    #[command(after_long_help = history::EXAMPLES)]
    History(history::Args),
    /// One reaction: event, rules, rendered files, calls, and what became of them
    #[command(after_long_help = show::EXAMPLES)]
    Show(show::Args),
    /// Which rules take a tag, and what was done about it last
    #[command(after_long_help = why::EXAMPLES)]
    Why(why::Args),
    /// Do again what was dead-lettered: calls that were not made, files that failed to render
    #[command(after_long_help = replay::EXAMPLES)]
    Replay(replay::Args),
    /// In what our reactor, in shadow, and Salt's own differ
    #[command(after_long_help = shadow::EXAMPLES)]
    Shadow(shadow::Args),
    /// Render one file for one event, and show the calls that come of it; nothing is sent
    #[command(after_long_help = test::EXAMPLES)]
    Test(test::Args),
    /// Look over the master's rules and their files: which are broken, which need Salt's own Python, and why
    #[command(after_long_help = check::EXAMPLES)]
    Check(check::Args),
    /// Play cases of what Salt does, and tell every difference
    #[command(after_long_help = parity::EXAMPLES)]
    Parity(parity::Args),
}

/// Which Salt.
#[derive(clap::Args)]
struct SaltArgs {
    /// The Salt master's configuration file [default: `reactor.master` or `reactor.minion` of saltcellar's own configuration, or else
    /// /etc/salt/master]
    #[arg(long, value_name = "FILE")]
    master_config: Option<PathBuf>,
    /// A minion's configuration file instead, for a minion's reactor (`reactor.minion`)
    #[arg(long, value_name = "FILE", conflicts_with = "master_config")]
    minion_config: Option<PathBuf>,
    #[command(flatten)]
    python: PythonArgs,
}

#[derive(clap::Args)]
struct PythonArgs {
    /// A Python that Salt is installed for, for what is not done natively: `#!py`, functions of `salt`. Without this, that
    /// of Salt's own packages, or else the system's
    #[arg(long, value_name = "PATH", env = "SALTCELLAR_SALT_PYTHON")]
    salt_python: Option<PathBuf>,
}

/// Where Salt's packages have their Python, and where others may have it. Without Salt, it still runs `#!py` files.
const PYTHONS: [&str; 3] = [SALT_PYTHON, "/usr/bin/python3", "/usr/local/bin/python3"];

impl PythonArgs {
    fn python(&self) -> Option<PathBuf> {
        let there = || PYTHONS.iter().map(PathBuf::from).find(|python| python.exists());
        self.salt_python.clone().or_else(there)
    }
}

/// The Salt that the flags name, or else saltcellar's own configuration.
struct Chosen {
    master: SaltMaster,
    /// `reactor.rules`, which take the place of the master's own.
    rules: Option<sls::Value>,
    salt: Arc<dyn Salt>,
}

impl SaltArgs {
    fn choose(&self, global: &Global) -> anyhow::Result<Chosen> {
        let named = match (&self.master_config, &self.minion_config) {
            (_, Some(path)) => Some((Role::Minion, path.clone())),
            (Some(path), None) => Some((Role::Master, path.clone())),
            (None, None) => None,
        };
        let (role, path, rules, python) = if let Some((role, path)) = named {
            (role, path, None, None)
        } else {
            let config = Config::load(&global.given(), &Surroundings::of_process())
                .context("read the configuration")?
                .reactor;
            let of_whom = config.of_whom().map(|(role, path, _)| (role, path.to_owned()));
            let (role, path) = of_whom.unwrap_or((Role::Master, PathBuf::from(SALT_MASTER_FILE)));
            (role, path, config.rules, config.python)
        };
        let master = SaltMaster::read_as(&path, role);
        let salt = self.salt(&master, python);
        Ok(Chosen { master, rules, salt })
    }

    fn salt(&self, master: &SaltMaster, configured: Option<PathBuf>) -> Arc<dyn Salt> {
        let python = self.python.salt_python.clone().or(configured).or_else(|| self.python.python());
        let Some(python) = python else { return Arc::new(NoSalt) };
        let mut options = HelperOptions::of_daemon(python, master);
        // Nothing is sent, so whoever is not root may try files as themselves.
        options.user = options.user.filter(|_| rustix::process::geteuid().is_root());
        Arc::new(Helper::new(options))
    }
}

pub(super) fn run(global: &Global, reactor: Reactor) -> anyhow::Result<()> {
    match reactor {
        Reactor::List(args) => list::run(global, &args),
        Reactor::History(args) => history::run(global, args),
        Reactor::Show(args) => show::run(global, &args),
        Reactor::Why(args) => why::run(global, &args),
        Reactor::Replay(args) => replay::run(global, &args),
        Reactor::Shadow(args) => shadow::run(global, &args),
        Reactor::Test(args) => test::run(global, &args),
        Reactor::Check(args) => check::run(global, &args),
        Reactor::Parity(args) => parity::run(global, &args),
    }
}
