//! `saltcellar bench`: benchmarks of real processes on this machine.
//!
//! Most benchmarks start a daemon with an empty temporary directory and connect to its socket. The
//! load is a pure function of the seed. Where possible, the same run measures a [`baseline`].

mod baseline;
mod child;
mod ingest;
mod query;
mod reactor;
mod report;
mod returner;
mod sources;

use std::path::PathBuf;

use tempfile::TempDir;

use self::child::Subject;
use crate::cli::Global;

#[derive(clap::Subcommand)]
pub(super) enum Bench {
    /// Measure ingestion of events: rate, CPU time, disk space and latency, compared with a baseline
    #[command(after_long_help = ingest::EXAMPLES)]
    Ingest(ingest::Args),
    /// Measure queries of a filled store: newest jobs, one job's returns, a search by tag; and those of limited tokens
    Query(query::Args),
    /// Measure durable `returner` calls, one at a time on each connection
    Returner(returner::Args),
    /// Measure the reactor: its pipeline, its latency at a rate, or its memory over many events
    Reactor(reactor::Args),
    /// Measure each source of events, compared with a baseline
    #[command(alias = "doors", after_long_help = sources::EXAMPLES)]
    Sources(sources::Args),
    /// Run the baseline process; started by other benchmarks
    #[command(hide = true)]
    Baseline(baseline::Args),
}

#[derive(clap::Args)]
struct Common {
    /// Create the temporary state directory in DIR, to measure its disk
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Keep the state directory
    #[arg(long)]
    keep: bool,
    /// Seed of the events; equal seeds generate equal events
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Common {
    fn scratch(&self) -> anyhow::Result<TempDir> {
        child::scratch(self.dir.as_deref(), self.keep)
    }
}

pub(super) fn run(global: &Global, bench: Bench) -> anyhow::Result<()> {
    match bench {
        Bench::Ingest(args) => ingest::run(global, &args),
        Bench::Query(args) => query::run(global, &args),
        Bench::Returner(args) => returner::run(global, &args),
        Bench::Reactor(args) => reactor::run(global, &args),
        Bench::Sources(args) => sources::run(global, &args),
        Bench::Baseline(args) => baseline::run(&args),
    }
}
