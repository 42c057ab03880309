//! `saltcellar store ...`: statistics, retention, integrity, backup and recovery of the store.

mod accept_loss;
mod backup;
mod holds;
mod prune;
mod rebuild;
mod restore;
mod salvage;
mod state_files;
mod stats;
pub(in crate::cli) mod tool;
mod verify;

use crate::cli::Global;

#[derive(clap::Subcommand)]
pub(super) enum Store {
    /// Show segments, entries, bytes, ages, rates and free space
    #[command(after_long_help = stats::EXAMPLES)]
    Stats,
    /// Drop expired segments now
    #[command(after_long_help = prune::EXAMPLES)]
    Prune(prune::Args),
    /// List, add and remove holds, which exempt jobs from retention
    #[command(subcommand)]
    Holds(holds::Holds),
    /// Count lost settings as gone
    #[command(name = "accept-loss", after_long_help = accept_loss::EXAMPLES)]
    AcceptLoss,
    /// Verify the checksums and the consistency of the store
    #[command(after_long_help = verify::EXAMPLES)]
    Verify(verify::Args),
    /// Rebuild all indexes from the log
    #[command(after_long_help = rebuild::EXAMPLES)]
    Rebuild(rebuild::Args),
    /// Recover a damaged store into a new one
    #[command(after_long_help = salvage::EXAMPLES)]
    Salvage(salvage::Args),
    /// Back up the store incrementally, even while the daemon runs
    #[command(after_long_help = backup::EXAMPLES)]
    Backup(backup::Args),
    /// Restore a backup to a new state directory
    #[command(after_long_help = restore::EXAMPLES)]
    Restore(restore::Args),
}

impl Store {
    /// Whether it prints a table.
    pub(super) fn has_rows(&self) -> bool {
        match self {
            Self::Stats | Self::Prune(_) => true,
            Self::Holds(verb) => verb.has_rows(),
            Self::AcceptLoss
            | Self::Verify(_)
            | Self::Rebuild(_)
            | Self::Salvage(_)
            | Self::Backup(_)
            | Self::Restore(_) => false,
        }
    }
}

pub(super) fn run(global: &Global, store: Store) -> anyhow::Result<()> {
    match store {
        Store::Stats => stats::run(global),
        Store::Prune(args) => prune::run(global, &args),
        Store::Holds(verb) => holds::run(global, verb),
        Store::AcceptLoss => accept_loss::run(global),
        Store::Verify(args) => verify::run(global, &args),
        Store::Rebuild(args) => rebuild::run(global, &args),
        Store::Salvage(args) => salvage::run(global, &args),
        Store::Backup(args) => backup::run(global, &args),
        Store::Restore(args) => restore::run(global, &args),
    }
}
