//! The command line: one file per verb, plus shared helpers.
//!
//! # Invariant
//!
//! Every verb that prints data honours `--output`. The process ends with an [`Exit`]. An error is
//! one line on standard error that starts with `saltcellar: cannot`; an unreachable daemon and
//! findings of `doctor` have separate lines.

mod admin;
mod cluster;
mod doctor;
mod export;
mod format;
mod import;
#[cfg(test)]
pub(crate) mod in_process;
mod jobs;
mod reactor;
mod salt_python;
mod serve;
mod store;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

pub use self::doctor::reference as reference_of_checks;
// The common imports of verbs.
use self::format::ask::{ListFlags, ListOf, Listing, NoDaemon, Paged};
use self::format::colour::{Line, Tone};
pub use self::format::exit::Exit;
use self::format::exit::{BadUsage, Finding, finding};
use self::format::fields::{joined, line_of, or_empty, value};
use self::format::global::Global;
use self::format::nested::{leaf, nested};
pub use self::format::output::{Form, Format, Output, OutputError};
use self::format::output::{show, show_rows};
use self::format::progress::{Bar, Unit, bytes};
use self::format::streams::{print_error, print_error_of};
pub use self::format::table::{Column, Table};
use self::format::when::{TimeRange, When, day_of, duration, short_at, short_at_in_zone, title};
use self::format::width::width_of;
use self::format::wrap::{LongWords, wrapped, wrapped_after};
use self::format::{ask, yaml};
use crate::base::umask;
use crate::base::visible::plain;

/// Job cache, event archive and reactor for a Salt master.
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
  saltcellar serve                           run the daemon with defaults
  saltcellar serve --bus /var/run/salt/master
                                             and archive that master's event bus
  saltcellar jobs list --since 2h            list recent jobs
  saltcellar jobs show 20261121054728123456  show one job in full
  saltcellar jobs watch 20261121054728123456 follow a job until it is finished
  saltcellar events list --tag 'salt/auth*'  list the latest events of one kind
  saltcellar events tail --since 10m         follow events, from ten minutes ago on
  saltcellar store backup /backup/saltcellar back up while the daemon runs
  saltcellar import local-cache /var/cache/salt/master/jobs
                                             import Salt's job cache
  saltcellar doctor                          diagnose problems
  saltcellar reactor render start.sls --tag salt/minion/web1/start
                                             render a reactor file for an event
  saltcellar config show                     show the effective configuration
  saltcellar setup                           set up this Salt master

Exit codes:
  0 success   1 failure   64 usage or configuration error   65 stored data is unreadable
  69 daemon unreachable   70 internal error   75 temporary failure, retry   130 interrupted";

/// The definition of the command line.
pub fn command() -> clap::Command {
    Cli::command()
}

#[derive(Subcommand)]
enum Verb {
    /// Run the daemon
    Serve(serve::Args),
    /// Validate the configuration, or print its effective values
    #[command(subcommand)]
    Config(admin::config::ConfigVerb),
    /// List, show, compare and watch jobs
    #[command(subcommand)]
    Jobs(jobs::Jobs),
    /// List minions, and show one, from the archive
    #[command(subcommand)]
    Minions(jobs::minions::Minions),
    /// List, count and follow events, or fire one
    #[command(subcommand)]
    Events(jobs::events::Events),
    /// List, create and control consumers of the event stream
    #[command(subcommand)]
    Consumers(jobs::consumers::Consumers),
    /// Show, test and control sinks, which deliver events to other systems
    #[command(subcommand)]
    Sinks(admin::sinks::Sinks),
    /// Create, list and revoke tokens of the HTTP listener
    #[command(subcommand)]
    Tokens(admin::tokens::Tokens),
    /// Print a link that signs in to the web UI once
    #[command(after_long_help = admin::page::EXAMPLES)]
    Page,
    /// Show daemon status
    #[command(after_long_help = admin::status::EXAMPLES)]
    Status(admin::status::Args),
    /// Watch the daemon and its jobs live
    #[command(after_long_help = admin::top::EXAMPLES)]
    Top(admin::top::Args),
    /// Diagnose the daemon, its socket and store, the Salt master's configuration and the extension's spool
    #[command(after_long_help = doctor::EXAMPLES)]
    Doctor(doctor::Args),
    /// Set up the Salt master to use saltcellar, check that, or undo it
    #[command(after_long_help = admin::setup::EXAMPLES)]
    Setup(admin::setup::Args),
    /// Set up one history of several masters
    #[command(subcommand)]
    Cluster(cluster::Cluster),
    /// Inspect, prune, verify, repair, back up and restore the store
    #[command(subcommand)]
    Store(store::Store),
    /// Inspect the reactor, test its rules and compare it with Salt's
    #[command(subcommand)]
    Reactor(reactor::Reactor),
    /// Import another job cache
    #[command(subcommand)]
    Import(import::Import),
    /// Export jobs and events
    #[command(subcommand)]
    Export(export::Export),
    /// Print the versions of the program and its formats
    Version,
    /// Print shell completions
    Completions(admin::completions::Args),
    /// Serve a ZeroMQ socket for the daemon
    #[command(hide = true)]
    Zeromq(serve::ZeromqArgs),
    /// Write a manual page of each verb into a directory; packages do
    #[command(hide = true)]
    Man(admin::completions::ManArgs),
}

impl Verb {
    /// Whether it prints a table, whose rows can be comma-separated values.
    fn has_rows(&self) -> bool {
        match self {
            Self::Jobs(verb) => verb.has_rows(),
            Self::Minions(jobs::minions::Minions::List(_) | jobs::minions::Minions::Show(_))
            | Self::Doctor(_) => true,
            Self::Events(verb) => verb.has_rows(),
            Self::Consumers(verb) => verb.has_rows(),
            Self::Sinks(verb) => verb.has_rows(),
            Self::Tokens(verb) => verb.has_rows(),
            Self::Status(args) => args.has_rows(),
            Self::Cluster(verb) => verb.has_rows(),
            Self::Store(verb) => verb.has_rows(),
            Self::Reactor(verb) => verb.has_rows(),
            // Listed one by one, because a new verb must decide: csv is rejected for a verb without
            // a table.
            Self::Serve(_)
            | Self::Config(_)
            | Self::Page
            | Self::Top(_)
            | Self::Setup(_)
            | Self::Import(_)
            | Self::Export(_)
            | Self::Version
            | Self::Completions(_)
            | Self::Zeromq(_)
            | Self::Man(_) => false,
        }
    }
}

/// Runs `saltcellar` with `args` (the first is the program's name) and prints errors to standard
/// error.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    run_program(args, dispatch)
}

/// Runs a program of this workspace: parses its command line, does what `dispatch` makes of it, and
/// prints errors as `saltcellar` does, with the same exit codes.
pub fn run_program<C: Parser>(
    args: impl IntoIterator<Item = OsString>,
    dispatch: impl FnOnce(C) -> anyhow::Result<()>,
) -> ExitCode {
    outcome(args, dispatch).into()
}

fn outcome<C: Parser>(
    args: impl IntoIterator<Item = OsString>,
    dispatch: impl FnOnce(C) -> anyhow::Result<()>,
) -> Exit {
    let cli = match C::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // There is nowhere to report a failure to print.
            let _ = error.print();
            return if error.use_stderr() {
                Exit::Usage
            } else {
                Exit::Ok
            };
        }
    };

    // Errors are printed here only. A verb returns its error, which therefore appears once.
    match dispatch(cli) {
        Ok(()) => Exit::Ok,
        Err(error) => {
            let exit = Exit::of(&error);
            // A closed pipe is an error without a message.
            if exit != Exit::Ok {
                report(C::command().get_name(), &error);
            }
            exit
        }
    }
}

fn dispatch(cli: Cli) -> anyhow::Result<()> {
    let Cli { global, verb } = cli;

    // First, because these choices apply to everything that the verb prints.
    format::colour::choose(global.color);

    if global.utc {
        format::when::use_utc();
    }

    format::streams::set_quiet(global.quiet);

    if global.no_pager {
        format::output::disable_pager();
    }

    // A command that changes something would do it, and then have nothing to print.
    if global.output == Form::Csv && !verb.has_rows() {
        return Err(BadUsage(
            "read --output: csv is for the rows of tables, and this command prints none; use table, json or jsonl"
                .to_owned(),
        )
        .into());
    }

    // Copies of the archive are private to the calling user. `serve` sets its umask from the
    // configuration, which may name a group.
    if matches!(verb, Verb::Store(_) | Verb::Export(_)) {
        umask::restrict(0o077);
    }

    match verb {
        Verb::Serve(args) => serve::run(&global, args),
        Verb::Config(verb) => admin::config::run(&global, &verb),
        Verb::Jobs(jobs) => jobs::run(&global, jobs),
        Verb::Minions(verb) => jobs::minions::run(&global, verb),
        Verb::Events(events) => jobs::events::run(&global, events),
        Verb::Consumers(verb) => jobs::consumers::run(&global, verb),
        Verb::Sinks(verb) => admin::sinks::run(&global, verb),
        Verb::Tokens(verb) => admin::tokens::run(&global, verb),
        Verb::Page => admin::page::run(&global),
        Verb::Status(args) => admin::status::run(&global, &args),
        Verb::Top(args) => admin::top::run(&global, &args),
        Verb::Doctor(args) => doctor::run(&global, &args),
        Verb::Setup(args) => admin::setup::run(&global, &args),
        Verb::Cluster(verb) => cluster::run(&global, verb),
        Verb::Store(verb) => store::run(&global, verb),
        Verb::Reactor(reactor) => reactor::run(&global, reactor),
        Verb::Import(import) => import::run(&global, &import),
        Verb::Export(export) => export::run(&global, export),
        Verb::Version => admin::version::run(&global),
        Verb::Zeromq(args) => serve::run_zeromq(&global, &args),
        Verb::Completions(args) => admin::completions::run(&mut command(), &args),
        Verb::Man(args) => admin::completions::man(command(), &args),
    }
}

/// Prints an error. Its causes may quote text of a daemon or a file, hence the escaping in
/// [`print_error`].
fn report(program: &str, error: &anyhow::Error) {
    // The chain would only say what failed; this says what to do.
    if let Some(unreachable) = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<NoDaemon>())
    {
        print_error_of(program, &unreachable.to_string());
        print_error_of(program, &unreachable.hint());
        return;
    }

    // Not a failure of the program, so without `cannot`.
    if error.is::<Finding>() {
        return print_error_of(program, &error.to_string());
    }

    print_error_of(program, &format!("cannot {error:#}"));
}
