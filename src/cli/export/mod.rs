//! `saltcellar export ...`: exports as JSON lines.

mod jsonl;

use std::path::PathBuf;

use crate::cli::Global;

#[derive(clap::Subcommand)]
pub(super) enum Export {
    /// Export jobs, and optionally all events, as JSON lines
    #[command(after_long_help = JSONL)]
    Jsonl {
        /// Target file, which must not exist; - is standard output
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Export all entries, including events without a job, gaps, and Thorium's register
        #[arg(long)]
        events: bool,
    },
}

const JSONL: &str = "\
Writes one entry per line in the order of the log, up to the last entry that was durable at the start; docs/EXPORT.md \
lists the fields. Types without a JSON equivalent (bytes, dates, keys other than strings) are tagged as in `--output json`, \
and `import jsonl` restores them. FILE is created once it is complete; an interrupted export resumes at the end of \
FILE.part.

Examples:
  saltcellar export jsonl salt.jsonl
  saltcellar export jsonl --events - | gzip > salt.jsonl.gz";

pub(super) fn run(global: &Global, export: Export) -> anyhow::Result<()> {
    match export {
        Export::Jsonl { file, events } => jsonl::run(global, &file, events),
    }
}
