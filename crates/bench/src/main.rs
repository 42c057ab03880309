//! `saltcellar-bench`: benchmarks of saltcellar on this machine.
//!
//! Most benchmarks start the daemon with an empty temporary directory and connect to its socket;
//! reactor benchmarks run its pipeline in this process. The load is a pure function of the seed.
//! Where possible, the same run measures a [`baseline`].

mod baseline;
mod calls;
mod child;
mod ingest;
mod options;
mod query;
mod reactor;
mod report;
mod returner;
mod sources;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::options::Options;

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
