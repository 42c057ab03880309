//! `saltcellar-bench sources`: throughput and latency of each source of events.

mod https;
mod streams;

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::ValueEnum as _;
use saltcellar_testkit::load::driver::{LoadResult, LoadSpec, run_load};
use saltcellar_testkit::load::mix;
use saltcellar_testkit::load::template::Encoding;
use saltcellar_testkit::usage::Durations;
use tempfile::TempDir;

use crate::calls::{Daemon, Status};
use crate::child::{Subject, TIMEOUT};
use crate::report::{Report, Row};
use crate::{Common, Options};

/// Batches in flight on each connection of the local socket and the baseline.
const IN_FLIGHT: usize = 8;

/// Timeout until the daemon makes progress.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const EXAMPLES: &str = "\
All sources receive the same synthetic events (the `mix` of `saltcellar-bench ingest`, 1.3 KB), except https, which receives \
returns of 1.2 KB. This process sends them; the clock stops once all are durable. The baseline is that of `saltcellar-bench ingest`.

  bus      this process is Salt's publisher and writes as fast as the source reads; no answers
  pull     this process is a ZeroMQ PUSH; no answers
  socket   `event_return` in batches of 1,000 on 4 connections, 8 batches in flight on each
  https    returns of minions, each batch signed with a key of 2048 bits before the clock starts

Examples:
  saltcellar-bench sources
  saltcellar-bench sources --source bus,baseline --entries 3000000
  saltcellar-bench sources --source https --connections 1000 --batch 1";

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// The sources to measure
    #[arg(long, value_name = "SOURCE,...", value_enum, value_delimiter = ',', default_values_t = [BenchSource::Baseline, BenchSource::Bus, BenchSource::Pull, BenchSource::Socket, BenchSource::Https])]
    source: Vec<BenchSource>,
    /// Entries to send [default: 1,000,000; https: 30,000 for each batch size]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    entries: Option<u64>,
    /// Connections to send over [default: 4; https: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    connections: Option<u64>,
    /// Batch sizes, each measured in a separate run [default: 1,000; baseline: 64; https: 1 and 64]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=1000))]
    batch: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum BenchSource {
    /// The baseline process instead of a source
    Baseline,
    /// The bus source, with this process as Salt's publisher
    Bus,
    /// The ZeroMQ PULL socket, with this process as PUSH
    Pull,
    /// The local socket, `event_return`
    Socket,
    /// Returns of minions, each batch signed with a key of 2048 bits before the clock starts
    Https,
}

impl BenchSource {
    /// Batch sizes; 0 for streams.
    fn batches(self, requested: &[u64]) -> Vec<u64> {
        match self {
            Self::Bus | Self::Pull => vec![0],
            _ if !requested.is_empty() => requested.to_vec(),
            Self::Baseline => vec![64],
            Self::Socket => vec![1000],
            Self::Https => vec![1, 64],
        }
    }

    fn connections(self, requested: Option<u64>) -> u64 {
        match self {
            Self::Bus | Self::Pull => 1,
            Self::Https => requested.unwrap_or(64),
            Self::Baseline | Self::Socket => requested.unwrap_or(4),
        }
    }
}

struct SourceRun {
    seconds: f64,
    /// From sending a batch to its response; empty for streams.
    latencies: Durations,
    sender_cpu_s: f64,
    /// CPU time of the daemon before the first batch.
    cpu_s_before: f64,
    /// The connection of a stream: the daemon would log its end.
    peer: Option<UnixStream>,
}

pub(crate) fn run(options: &Options, args: &Args) -> anyhow::Result<()> {
    let program = options.program()?;
    let mut report = Report::new(options);
    let mut runs = Vec::new();
    for &source in &args.source {
        let entries = args.entries.unwrap_or(if source == BenchSource::Https {
            30_000
        } else {
            1_000_000
        });

        let connections = source.connections(args.connections);
        let name = source.to_possible_value().context("name the source")?;

        for batch in source.batches(&args.batch) {
            // A new daemon for each run, so that no run finds entries of another.
            let scratch = args.common.scratch()?;

            let (mut subject, run) = match source {
                BenchSource::Baseline | BenchSource::Socket => socket(
                    args,
                    &program,
                    &scratch,
                    source,
                    entries,
                    connections,
                    batch,
                )?,
                BenchSource::Bus | BenchSource::Pull => {
                    streams::run(args, &program, &scratch, source, entries)?
                }
                BenchSource::Https => https::run(&program, &scratch, entries, connections, batch)?,
            };

            // Sealing belongs to the cost.
            subject.process.wait_until_idle(TIMEOUT)?;

            let daemon_cpu_s = subject.process.cpu_s()? - run.cpu_s_before;
            let rss_peak_mb = subject.rss_peak_mb()?;

            if source != BenchSource::Baseline {
                subject.check_log()?;
            }
            // Only now, because the daemon logs the end of a connection.
            drop(run.peer);

            subject.stop()?;

            // Costs are given for a million entries, so that runs of different length compare.
            let per_million = |seconds: f64| seconds / entries as f64 * 1e6;

            let row = Row::default()
                .text("SOURCE", "source", name.get_name())
                .count("BATCH", "batch", (batch > 0).then_some(batch))
                .count("CONNECTIONS", "connections", connections)
                .count("ENTRIES", "entries", entries)
                .number(
                    "ENTRIES/S",
                    "entries_per_s",
                    0,
                    entries as f64 / run.seconds,
                )
                .latency(&run.latencies)
                .number(
                    "DAEMON CPU S/M",
                    "daemon_cpu_s_per_million",
                    2,
                    per_million(daemon_cpu_s),
                )
                .number(
                    "SENDER CPU S/M",
                    "sender_cpu_s_per_million",
                    2,
                    per_million(run.sender_cpu_s),
                )
                .number("RSS MB", "rss_peak_mb", 1, rss_peak_mb);

            runs.push(report.row(row)?);
        }
    }
    report.runs(runs)
}

/// Sends events in batches, by `event_return` to a daemon or without encoding to the baseline.
fn socket(
    args: &Args,
    program: &Path,
    scratch: &TempDir,
    source: BenchSource,
    entries: u64,
    connections: u64,
    batch: u64,
) -> anyhow::Result<(Subject, SourceRun)> {
    let (subject, encoding) = if source == BenchSource::Baseline {
        (Subject::baseline(scratch, 1)?, Encoding::Bare)
    } else {
        (
            Subject::daemon(program, scratch, None)?,
            Encoding::EventReturn,
        )
    };

    let generator = mix(args.common.seed, 1.0).generator(encoding);

    // The start of the process does not belong to the load.
    let cpu_s_before = subject.process.cpu_s()?;

    let spec = LoadSpec {
        connections,
        in_flight: IN_FLIGHT,
        batch,
        ..LoadSpec::new(&generator, entries)
    };

    let LoadResult {
        seconds,
        latencies,
        own_cpu_s: sender_cpu_s,
        ..
    } = run_load(&subject.socket, &spec, |_, _| Ok(()))?;

    Ok((
        subject,
        SourceRun {
            seconds,
            latencies,
            sender_cpu_s,
            cpu_s_before,
            peer: None,
        },
    ))
}

/// Polls the daemon's status until `progress`, of which it returns the present and the final value,
/// is complete.
fn wait_for_status(
    subject: &Subject,
    mut progress: impl FnMut(Status) -> (u64, u64),
) -> anyhow::Result<()> {
    let mut daemon = Daemon::connect(&subject.socket, TIMEOUT)?;
    let mut seen = 0;
    let mut since = Instant::now();

    loop {
        let (now, end) = progress(daemon.status()?);

        if now >= end {
            return Ok(());
        }

        if now > seen {
            seen = now;
            since = Instant::now();
        }
        // Only a lack of progress is a failure; a slow disk is not.
        ensure!(
            since.elapsed() < PROGRESS_TIMEOUT,
            "wait for the daemon: no progress after {now} of {end}"
        );

        std::thread::sleep(Duration::from_millis(2));
    }
}
