//! `saltcellar-bench sources`: throughput and latency of each source of events.

mod https;
mod source;
mod streams;

use std::path::Path;

use anyhow::Context as _;
use clap::ValueEnum as _;
use saltcellar_testkit::load::driver::{LoadResult, LoadSpec, run_load};
use saltcellar_testkit::load::template::Encoding;
use tempfile::TempDir;

pub(crate) use self::source::Args;
use self::source::{BenchSource, SourceRun};
use crate::child::{Subject, TIMEOUT};
use crate::options::Options;
use crate::report::{Report, Row};

/// Batches in flight on each connection of the local socket and the baseline.
const IN_FLIGHT: usize = 8;

pub(crate) const EXAMPLES: &str = "\
All sources receive the same synthetic events (`mix`, 1.3 KB, or `small` of `saltcellar-bench ingest`), except https, which receives \
returns of 1.2 KB. This process sends them; the clock stops once all are durable. The baseline is that of `saltcellar-bench ingest`.

  bus      this process is Salt's publisher and writes as fast as the source reads; no responses. With --rate it writes each event
           for itself as Salt does, and the latency is that of a write, which waits while the socket is full
  pull     this process is a ZeroMQ PUSH; no responses
  socket   `event_return` in batches of 1,000 on 4 connections, 8 batches in flight on each
  https    returns of minions, each batch signed with a key of 2048 bits before the clock starts

Examples:
  saltcellar-bench sources
  saltcellar-bench sources --source bus,baseline --entries 3000000
  saltcellar-bench sources --source bus --rate 5000 --entries 100000
  saltcellar-bench sources --source https --connections 1000 --batch 1";

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
            // A new daemon for each run, because no run may find entries of another.
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

            // Costs are given for a million entries, to compare runs of different length.
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
                .latency_and_max(&run.latencies)
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

    let generator = args.load().generator(encoding);

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
