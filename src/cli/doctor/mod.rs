//! `saltcellar doctor`: diagnoses the daemon, its store and socket, the Salt master and the
//! extension.
//!
//! The checks query the daemon and read files. They change nothing, and work without a running
//! daemon. A *problem* is actual or possible loss of data, or a component that cannot work; a
//! *warning* is a risk of one.
//!
//! Checks of the Salt master (`doctor/master.rs`) read its configuration as Salt does. Their
//! findings include a reason and a fix.

mod access;
mod check;
mod configuration;
mod daemon;
mod disk;
mod finding;
mod keys;
mod master;
mod master_use;
mod masters;
mod nats;
mod options;
mod permissions;
mod python;
mod reactor;
mod report;
mod sinks;
mod spool;

pub(super) use self::master::setting as master_setting;
pub(super) use self::masters::of_several_masters;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::json;

use self::check::{Check, Daemon, Machine, Run};
use self::finding::{CheckFinding, Findings};
use self::master_use::{MasterContext, Uses};
use crate::base::users;
use crate::cli::{Exit, Finding, Format, Global, Output, salt_python};
use crate::config::salt_master::{SALT_CONFIG, SaltMaster};
use crate::config::{Config, Environment, SocketChoice};

pub(super) const EXAMPLES: &str = "\
Exit codes: 0 no problems (warnings are possible), 1 problems found, 69 daemon unreachable.

Examples:
  saltcellar doctor
  saltcellar doctor --salt-config /srv/salt/etc
  saltcellar doctor --spool /srv/salt/cache/saltcellar
  saltcellar doctor --output json | jq '.checks[] | select(.result != \"ok\")'";

#[derive(clap::Args)]
pub(super) struct Args {
    /// Also check this spool of the extension (its `spool_dir`); may be repeated
    #[arg(long, value_name = "DIR")]
    spool: Vec<PathBuf>,
    /// Salt's configuration directory, as for Salt's option -c
    #[arg(long, value_name = "DIR", default_value = SALT_CONFIG)]
    salt_config: PathBuf,
    /// Do not check the Salt master
    #[arg(long, conflicts_with_all = ["salt_config", "salt_python"])]
    no_master: bool,
    /// Salt's Python [default: that of the running salt-master, or of the installed one]
    #[arg(long, value_name = "PROGRAM")]
    salt_python: Option<PathBuf>,
}

fn summary(problems: usize, checks: usize) -> String {
    format!("{problems} of {checks} checks failed")
}

impl Args {
    /// For a check after `setup`.
    pub(super) fn after_setup(salt_config: &Path, salt_python: Option<&Path>) -> Self {
        let (spool, salt_python) = (Vec::new(), salt_python.map(Path::to_owned));
        Self {
            spool,
            salt_config: salt_config.to_owned(),
            no_master: false,
            salt_python,
        }
    }
}

/// All checks, in the order of the table in docs/DOCTOR.md.
const CHECKS: &[&[Check]] = &[
    configuration::CHECKS,
    daemon::CHECKS,
    reactor::CHECKS,
    sinks::CHECKS,
    keys::CHECKS,
    disk::CHECKS,
    permissions::CHECKS,
    spool::CHECKS,
    master::CHECKS,
    masters::CHECKS,
    nats::CHECKS,
    options::CHECKS,
];

fn checks() -> impl Iterator<Item = &'static Check> {
    CHECKS.iter().copied().flatten()
}

/// The table of checks in docs/DOCTOR.md.
pub fn reference() -> String {
    let mut table = "| name | reports a warning or problem if |\n|---|---|\n".to_owned();

    for check in checks() {
        // Writing to a String cannot fail.
        let _ = writeln!(table, "| `{}` | {} |", check.name, check.not_ok_when);
    }

    table
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let (overrides, environment) = (global.overrides(), Environment::of_process());
    // Found separately: the daemon may run although its file is invalid by now.
    let choice = SocketChoice::find(&overrides, &environment).context("read the configuration")?;

    let mut found = Findings::default();

    // An invalid file is a finding among others, so its error is kept here.
    let file = Config::load(&overrides, &environment);

    let mut answer = daemon::ask(&choice.path);
    let running = answer
        .as_mut()
        .ok()
        .map(|(client, _)| configuration::running(client));

    // A file that is named on the command line is the one to check.
    let running = running.filter(|_| global.config.is_none() || file.is_err());

    // These three come first: the others look at the configuration, and some ask the daemon.
    let config = configuration::check(&mut found, file, running)?;
    daemon::check_socket(&mut found, &choice.path, &config);
    let answer = daemon::check_daemon(&mut found, answer);

    let mut daemon = answer.map(|(client, status)| Daemon {
        client,
        status,
        config: &config,
    });

    if let Some(daemon) = &mut daemon {
        for check in checks() {
            if let Run::Daemon(run) = check.run {
                run(&mut found, daemon);
            }
        }
    }

    // From here on nothing needs the daemon.
    let salt_master = SaltMaster::read(&args.salt_config.join("master"));
    let has_master = !args.no_master && master_exists(&mut found, &salt_master, args);

    let machine = Machine {
        config: &config,
        daemon_uid: daemon::daemon_uid(&choice.path),
        daemon_answers: daemon.is_some(),
        spools: spools(args, &config, has_master.then_some(&salt_master)),
    };

    for check in checks() {
        if let Run::Machine(run) = check.run {
            run(&mut found, &machine);
        }
    }

    if has_master {
        check_master(&mut found, &salt_master, &machine, &choice.path, args);
    }

    if let Some(daemon) = &daemon {
        daemon::check_reasons(&mut found, &daemon.status);
    }

    report(global, &found, daemon.is_none())
}

/// The spools that are checked in addition to the configured spools.
fn spools(args: &Args, config: &Config, salt_master: Option<&SaltMaster>) -> Vec<PathBuf> {
    let mut spools = args.spool.clone();

    if let Some(salt_master) = salt_master {
        let spool = master::setting(salt_master, "spool_dir")
            .map_or_else(|| salt_master.cachedir.join("saltcellar"), PathBuf::from);
        // The daemon's configuration or a flag may have named it already.
        if !config.spools.contains(&spool) && !spools.contains(&spool) && spool.exists() {
            spools.push(spool);
        }
    }

    spools
}

/// The version of the extension's package in Salt's Python.
pub(super) fn installed_extension(salt_python: &Path, master: &SaltMaster) -> Option<String> {
    python::ask(salt_python, master).ok()?.extension
}

/// Whether a master is configured here. A missing configuration is a problem only if its directory
/// was passed.
fn master_exists(found: &mut Findings, salt_master: &SaltMaster, args: &Args) -> bool {
    let mut found = found.of("master_config");

    let is_default = args.salt_config == Path::new(SALT_CONFIG);

    if let Some(what) = closed_to_this_user(salt_master, is_default) {
        found.needs_root(what);
        return false;
    }

    // A master may be configured by `master.d` alone.
    if salt_master.conf_file.exists() || !salt_master.files.is_empty() {
        return true;
    }

    let name = salt_master.conf_file.display();
    // Nobody asked for a master, so its absence is normal.
    if is_default {
        let message = format!(
            "no Salt master is configured here: {name} does not exist (--salt-config sets another directory)"
        );
        found.ok(message);
    } else {
        found.problem(format!(
            "{name} does not exist; the Salt master is not checked: correct --salt-config"
        ));
    }

    false
}

/// The part of the master that this user cannot read, if any. Checks without it would report false
/// findings: unread options would have Salt's defaults, and existing keys, modules and sockets
/// would look missing.
fn closed_to_this_user(master: &SaltMaster, is_default: bool) -> Option<String> {
    let own = rustix::process::geteuid();
    if own.is_root() {
        return None;
    }

    let denied = |path: &Path| {
        std::fs::File::open(path)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    };

    if denied(&master.conf_file) || master.files.iter().any(|file| denied(file)) {
        return Some(master.conf_file.display().to_string());
    }

    // The files of another user's master are closed even if its configuration is not.
    let is_own = users::User::numbered(own.as_raw()).is_some_and(|user| user.name == master.user);
    (is_default && master.conf_file.exists() && !is_own)
        .then(|| format!("what the master of user {} keeps", master.user))
}

fn check_master(
    found: &mut Findings,
    salt_master: &SaltMaster,
    machine: &Machine<'_>,
    socket: &Path,
    args: &Args,
) {
    // A Python that is named explicitly is checked instead, whatever the master runs in.
    let vanished = salt_python::running(salt_master)
        .filter(|running| args.salt_python.is_none() && !running.exists());

    let python = match salt_python::find(args.salt_python.as_deref(), salt_master) {
        Some(path) => python::ask(&path, salt_master)
            .map_err(|why| format!("cannot query {}: {why}", path.display())),
        None => Err(
            "no salt-master is installed in PATH, /usr/bin, /usr/local/bin or /opt/saltstack/salt"
                .to_owned(),
        ),
    };

    // The owner of the socket is the daemon's user, even if the daemon does not respond.
    let daemon = access::User::numbered(machine.daemon_uid);
    let context = MasterContext {
        master: salt_master,
        config: machine.config,
        socket,
        daemon: &daemon,
        vanished: vanished.as_deref(),
        python: &python,
    };
    let uses = Uses::of(&context);

    for check in checks() {
        if let Run::Master(run) = check.run {
            run(found, &context, &uses);
        }
    }
}

fn report(global: &Global, found: &Findings, unreachable: bool) -> anyhow::Result<()> {
    let mut out = Output::new(global.output);

    match out.format {
        Format::Table => {
            report::table(&mut out, found)?;

            // With problems, the summary is the error that the program prints last.
            if found.problems() == 0 {
                out.line(&summary(0, found.0.len()))?;
            }
        }
        // One document in both formats, because the summary belongs to all checks.
        Format::Json | Format::Jsonl => {
            let one = |f: &CheckFinding| {
                let (reason, remedy) = f
                    .advice
                    .as_ref()
                    .map(|advice| (&advice.reason, &advice.remedy))
                    .unzip();
                json!({"check": f.check, "result": f.result.name(), "message": f.message, "reason": reason, "remedy": remedy})
            };

            let checks: Vec<_> = found.0.iter().map(one).collect();
            let summary = summary(found.problems(), found.0.len());
            out.json(
                &json!({ "problems": found.problems(), "summary": summary, "checks": checks }),
            )?;
        }
    }

    out.flush()?;

    match found.problems() {
        0 => Ok(()),
        problems => {
            // Most other problems follow from an unreachable daemon, so the exit code names that.
            let exit = if unreachable {
                Exit::NoDaemon
            } else {
                Exit::Failed
            };
            Err(Finding {
                exit,
                message: summary(problems, found.0.len()),
            }
            .into())
        }
    }
}
