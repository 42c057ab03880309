//! `saltcellar cluster ...`: what several masters need to share one history.

mod init;

use crate::cli::Global;

#[derive(clap::Subcommand)]
pub(super) enum Cluster {
    /// Print the configuration of NATS servers and daemons that share one history
    #[command(after_long_help = init::EXAMPLES)]
    Init(init::Args),
}

impl Cluster {
    /// Whether it prints a table.
    pub(super) fn has_rows(&self) -> bool {
        match self {
            Self::Init(_) => false,
        }
    }
}

pub(super) fn run(global: &Global, cluster: Cluster) -> anyhow::Result<()> {
    match cluster {
        Cluster::Init(args) => init::run(global, &args),
    }
}
