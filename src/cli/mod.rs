//! The command line: one file per verb, and what verbs share.
//!
//! # Invariant
//!
//! Every verb that answers something takes `--output`; every way to end is an [`Exit`]; an error is one line
//! on standard error that begins with `saltcellar: failed to`, and a missing daemon is said as such.

mod ask;
mod bench;
mod check;
mod completions;
mod doctor;
mod events;
mod exit;
mod export;
mod import;
mod jobs;
mod logs;
mod nested;
mod output;
mod outputter;
mod progress;
mod reactor;
mod serve;
mod setup;
mod status;
mod store;
mod table;
mod version;
mod when;
mod yaml;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use self::exit::Exit;
pub use self::output::{Form, Format, OutputError};
use crate::config::Given;

/// Job cache and event archive beside a Salt master.
#[derive(Parser)]
#[command(name = "saltcellar", version, arg_required_else_help = true, after_long_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

const EXAMPLES: &str = "\
Examples:
  saltcellar serve                           run the daemon, with defaults
  saltcellar serve --bus /var/run/salt/master
                                             and archive that master's event bus
  saltcellar jobs list --since 2h            what ran lately
  saltcellar jobs show 20261121054728123456  one job in full
  saltcellar jobs watch 20261121054728123456 a job as it goes on
  saltcellar events list --tag 'salt/auth*'  the last events of a kind
  saltcellar store backup /backup/saltcellar a copy, while the daemon runs
  saltcellar import local_cache /var/cache/salt/master/jobs
                                             take over Salt's own job cache
  saltcellar doctor                          what is wrong, if anything is
  saltcellar reactor test start.sls --tag salt/minion/web1/start
                                             what a reactor file makes of an event
  saltcellar check                           what the daemon would run on
  saltcellar setup                           what the Salt master is to be told

Exit codes:
  0 done   1 failed   64 bad usage or configuration   65 stored data cannot be read
  69 no daemon answers   70 a fault of saltcellar   75 try again later   130 interrupted";

/// Flags of every verb.
#[derive(clap::Args)]
struct Global {
    /// The daemon's unix socket [env: SALTCELLAR_SOCKET]
    #[arg(long, global = true, value_name = "PATH", help_heading = "Global options")]
    socket: Option<PathBuf>,
    /// The daemon's state directory [env: SALTCELLAR_STATE_DIR]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Global options")]
    state_dir: Option<PathBuf>,
    /// Read this configuration file instead of the default one
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    config: Option<PathBuf>,
    /// Form of the answer
    #[arg(long, global = true, value_enum, default_value_t = Form::Table, hide_possible_values = true,
          value_name = "table|json|jsonl|nested|highstate", help_heading = "Global options")]
    output: Form,
}

impl Global {
    fn given(&self) -> Given {
        Given {
            config: self.config.clone(),
            state_dir: self.state_dir.clone(),
            socket: self.socket.clone(),
            ..Given::default()
        }
    }
}

#[derive(Subcommand)]
enum Verb {
    /// Run the daemon
    Serve(serve::Args),
    /// Validate the configuration and print what it comes to
    #[command(after_long_help = check::EXAMPLES)]
    Check,
    /// What Salt's jobs were and what they returned
    #[command(subcommand)]
    Jobs(jobs::Jobs),
    /// What passed over the event bus
    #[command(subcommand)]
    Events(events::Events),
    /// How the daemon is
    #[command(after_long_help = status::EXAMPLES)]
    Status,
    /// What is wrong with the daemon, its socket, its store, the Salt master's configuration, or the extension's spool
    #[command(after_long_help = doctor::EXAMPLES)]
    Doctor(doctor::Args),
    /// What the Salt master's configuration needs for saltcellar: show it, write it, check it, remove it
    #[command(after_long_help = setup::EXAMPLES)]
    Setup(setup::Args),
    /// What the store keeps and for how long; verify, rebuild, salvage, back up, restore
    #[command(subcommand)]
    Store(store::Store),
    /// What the reactor does, did, and why; its rules and files, tried and compared with Salt
    #[command(subcommand)]
    Reactor(reactor::Reactor),
    /// Take over what another job cache has
    #[command(subcommand)]
    Import(import::Import),
    /// Give what is stored to Salt's own job cache, or to any program
    #[command(subcommand)]
    Export(export::Export),
    /// Measure the program on this machine
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Versions of the program and of what it speaks
    Version,
    /// Print completions for a shell
    Completions(completions::Args),
}

/// Flags that do not fit one another.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct BadUsage(String);

/// Runs the program: reads `args` (the first is the program's name), does what they say, and reports.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Nobody is left to tell if this cannot be printed.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage.into() } else { Exit::Ok.into() };
        }
    };
    match dispatch(cli) {
        Ok(()) => Exit::Ok.into(),
        Err(error) => {
            let exit = Exit::of(&error);
            if exit != Exit::Ok {
                report(&error);
            }
            exit.into()
        }
    }
}

fn dispatch(cli: Cli) -> anyhow::Result<()> {
    let Cli { global, verb } = cli;
    if global.output == Form::Highstate && !matches!(verb, Verb::Jobs(jobs::Jobs::Show(_))) {
        return Err(BadUsage(
            "read --output: highstate shows the returns of one job: `jobs show JID`".to_owned(),
        )
        .into());
    }
    // Copies of the archive are for the user who makes them; `serve` reads the configuration first, which may name a group.
    if matches!(verb, Verb::Store(_) | Verb::Export(_)) {
        restrict_umask(0o077);
    }
    match verb {
        Verb::Serve(args) => serve::run(&global, args),
        Verb::Check => check::run(&global),
        Verb::Jobs(jobs) => jobs::run(&global, jobs),
        Verb::Events(events) => events::run(&global, events),
        Verb::Status => status::run(&global),
        Verb::Doctor(args) => doctor::run(&global, &args),
        Verb::Setup(args) => setup::run(&global, &args),
        Verb::Store(verb) => store::run(&global, verb),
        Verb::Reactor(reactor) => reactor::run(&global, reactor),
        Verb::Import(import) => import::run(&global, &import),
        Verb::Export(export) => export::run(&global, export),
        Verb::Bench(bench) => bench::run(&global, bench),
        Verb::Version => version::run(&global),
        Verb::Completions(args) => completions::run(&args),
    }
}

/// Takes permissions from all files that the process creates from now on, in addition to those that its umask takes already.
fn restrict_umask(mask: u32) {
    let mask = rustix::fs::Mode::from_raw_mode(mask);
    let inherited = rustix::process::umask(mask);
    rustix::process::umask(inherited | mask);
}

/// Says what went wrong. Causes may quote what a daemon or a file said, hence the escaping.
fn report(error: &anyhow::Error) {
    if let Some(away) = error.chain().find_map(|cause| cause.downcast_ref::<ask::NoDaemon>()) {
        say(&away.to_string());
        say(&away.hint());
        return;
    }
    // A finding is no failure of the program.
    if let Some(unwell) = error.downcast_ref::<doctor::Unwell>() {
        return say(&unwell.to_string());
    }
    say(&format!("failed to {error:#}"));
}

/// Writes one line to standard error. If that cannot be written, the exit code still tells.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "saltcellar: {}", output::plain(text));
}
