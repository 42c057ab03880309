//! `saltcellar cluster ...`: what several masters need to share one history.

mod init;
mod join;

use crate::cli::Global;

#[derive(clap::Subcommand)]
pub(super) enum Cluster {
    /// Print the configuration of NATS servers and daemons that share one history
    #[command(after_long_help = init::EXAMPLES)]
    Init(init::Args),
    /// Copy another daemon's history from its backup
    #[command(after_long_help = join::EXAMPLES)]
    Join(join::Args),
}

impl Cluster {
    /// Whether it prints a table.
    pub(super) fn has_rows(&self) -> bool {
        match self {
            Self::Init(_) | Self::Join(_) => false,
        }
    }
}

pub(super) fn run(global: &Global, cluster: Cluster) -> anyhow::Result<()> {
    match cluster {
        Cluster::Init(args) => init::run(global, &args),
        Cluster::Join(args) => join::run(global, &args),
    }
}
