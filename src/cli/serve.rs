//! `saltcellar serve`: the daemon in the foreground.

use std::path::PathBuf;

use anyhow::Context;

use super::{Global, logs};
use crate::config::{Config, Given, Surroundings};

/// Flags of `serve`.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Salt socket directory whose event bus is archived; may be repeated
    #[arg(long, value_name = "SOCK_DIR")]
    bus: Vec<PathBuf>,
    /// off, error, warn, info, debug, trace, or a filter [env: SALTCELLAR_LOG]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

const EXAMPLES: &str = "\
Runs until SIGTERM or Ctrl-C, then takes in what has arrived, writes it to disk, and ends.
No configuration is needed: root's daemon keeps its state under /var/lib/saltcellar and listens at
/run/saltcellar/saltcellar.sock, anybody else's stays within their own directories.

Examples:
  saltcellar serve
  saltcellar serve --bus /var/run/salt/master
  saltcellar serve --state-dir /tmp/sc --socket /tmp/sc.sock --log-level debug
  saltcellar serve --config /etc/saltcellar/saltcellar.yaml

See also: saltcellar check";

pub(super) fn run(global: &Global, args: Args) -> anyhow::Result<()> {
    let given = Given { bus: args.bus, log_level: args.log_level, ..global.given() };
    let config = Config::load(&given, &Surroundings::of_process()).context("read the configuration")?;
    super::restrict_umask(config.umask());
    logs::start(&config.log);
    crate::daemon::run(&config)
}
