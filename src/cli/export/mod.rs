//! `saltcellar export ...`: the way back, and the way to anywhere else.

mod jsonl;
mod local_cache;

use std::path::PathBuf;

use super::Global;

/// Verbs under `export`.
#[derive(clap::Subcommand)]
pub(super) enum Export {
    /// A tree that Salt's own job cache reads
    #[command(name = "local_cache", after_long_help = local_cache::EXAMPLES)]
    LocalCache(local_cache::Args),
    /// Jobs, and events if wanted, as JSON lines
    #[command(after_long_help = JSONL)]
    Jsonl {
        /// The file, a new one; - is standard output
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Everything: also events that belong to no job, gaps, and Thorium's register
        #[arg(long)]
        events: bool,
    },
}

const JSONL: &str = "\
An entry a line, in the order of the log, up to what was durable when it began; docs/MIGRATE.md has the fields. What JSON lacks (bytes,
dates, keys that are no text) is said as in `--output json`, and comes back by `import jsonl` as it was. FILE appears when it is whole;
an interrupted export goes on where FILE.part ends.

Examples:
  saltcellar export jsonl salt.jsonl
  saltcellar export jsonl --events - | gzip > salt.jsonl.gz";

pub(super) fn run(global: &Global, export: Export) -> anyhow::Result<()> {
    match export {
        Export::LocalCache(args) => local_cache::run(global, &args),
        Export::Jsonl { file, events } => jsonl::run(global, &file, events),
    }
}
