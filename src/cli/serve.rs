//! `saltcellar serve`: the daemon in the foreground; and the hidden verb `zeromq` of its child
//! processes.

use std::path::PathBuf;

use anyhow::Context as _;

use super::{Global, ask};
use crate::api::monitor::ZmqKind;
use crate::config::{CliOverrides, Config, Environment};
use crate::daemon;

#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Archive the event bus in this Salt socket directory; may be repeated
    #[arg(long, value_name = "SOCK_DIR")]
    bus: Vec<PathBuf>,
    /// Log level: off, error, warn, info, debug, trace, or a filter [env: SALTCELLAR_LOG]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

const EXAMPLES: &str = "\
Runs until SIGTERM or Ctrl-C, then stores all received events and exits.
No configuration is required. As root, the daemon stores its state in /var/lib/saltcellar and listens on \
/run/saltcellar/saltcellar.sock. As any other user, it uses that user's XDG directories.

Examples:
  saltcellar serve
  saltcellar serve --bus /var/run/salt/master
  saltcellar serve --state-dir /tmp/sc --socket /tmp/sc.sock --log-level debug
  saltcellar serve --config /etc/saltcellar/saltcellar.yaml

See also: saltcellar config show";

pub(super) fn run(global: &Global, args: Args) -> anyhow::Result<()> {
    let overrides = CliOverrides {
        bus: args.bus,
        log_level: args.log_level,
        ..global.overrides()
    };
    let config =
        Config::load(&overrides, &Environment::of_process()).context("read the configuration")?;

    daemon::run(&config)
}

/// The hidden verb `zeromq`: serves the listening socket on standard input for the daemon that
/// started it.
#[derive(clap::Args)]
pub(super) struct ZeromqArgs {
    #[arg(value_parser = ask::words::<ZmqKind>())]
    kind: ZmqKind,
    /// The process id of the daemon
    parent: u32,
}

pub(super) fn run_zeromq(global: &Global, args: &ZeromqArgs) -> anyhow::Result<()> {
    daemon::zeromq::serve(global.socket.as_deref(), args.kind, args.parent)
}
