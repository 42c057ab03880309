//! `saltcellar-bench`: benchmarks of saltcellar on this machine.
//!
//! Most benchmarks start the daemon with an empty temporary directory and connect to its socket; those of the
//! reactor run its pipeline in this process. The load is a pure function of the seed. Where possible, the same
//! run measures a [`baseline`].

mod baseline;
mod calls;
mod child;
mod ingest;
mod query;
mod reactor;
mod report;
mod returner;
mod sources;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use clap::{Parser, Subcommand};
use saltcellar::cli::Format;
use tempfile::TempDir;

/// As in the daemon, whose reactor some benchmarks run here.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Benchmarks of saltcellar on this machine.
#[derive(Parser)]
#[command(name = "saltcellar-bench", version, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    bench: Bench,
}

/// Options of every benchmark.
#[derive(clap::Args)]
struct Options {
    /// The saltcellar to measure [default: the one beside this program]
    #[arg(long, global = true, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Configuration file of the daemon [default: defaults]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Output format
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "table",
        value_name = "FORMAT"
    )]
    output: Format,
}

impl Options {
    /// The program to measure.
    fn program(&self) -> anyhow::Result<PathBuf> {
        let program = match &self.program {
            Some(program) => std::path::absolute(program).context("find the program to measure")?,
            None => std::env::current_exe()
                .context("find this program")?
                .with_file_name("saltcellar"),
        };

        ensure!(
            program.is_file(),
            "find the program to measure: {} is no file; build it with `cargo build --release`, or name one with --program",
            program.display()
        );
        Ok(program)
    }
}

#[derive(Subcommand)]
enum Bench {
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
    #[command(after_long_help = sources::EXAMPLES)]
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

fn main() -> ExitCode {
    saltcellar::cli::run_program(std::env::args_os(), |Cli { options, bench }| match bench {
        Bench::Ingest(args) => ingest::run(&options, &args),
        Bench::Query(args) => query::run(&options, &args),
        Bench::Returner(args) => returner::run(&options, &args),
        Bench::Reactor(args) => reactor::run(&options, &args),
        Bench::Sources(args) => sources::run(&options, &args),
        Bench::Baseline(args) => baseline::run(&args),
    })
}
