//! `saltcellar bench sources`: throughput and latency of each source of events.
//!
//! Each file here has a function `run` that starts a daemon, sends the load, and returns a [`SourceRun`].

mod https;
mod socket;
mod streams;

use serde_json::json;

use super::super::Global;
use super::super::format::output::{Format, Output};
use super::super::format::table::{Column, Table};
use super::load::driver::percentile;
use super::{Common, rounded, thousands};
use streams::Stream;

pub(super) const EXAMPLES: &str = "\
All sources receive the same synthetic events (the `mix` of `bench ingest`, 1.3 KB), except https, which receives \
returns of 1.2 KB. This process sends them; the clock stops once all are durable. The baseline is that of `bench ingest`.

  bus      this process is Salt's publisher and writes as fast as the source reads; no answers
  pull     this process is a ZeroMQ PUSH; no answers
  socket   `event_return` in batches of 1,000 on 4 connections, 8 batches in flight on each
  https    returns of minions, each batch signed with a key of 2048 bits before the clock starts

Examples:
  saltcellar bench sources
  saltcellar bench sources --source bus,baseline --entries 3000000
  saltcellar bench sources --source https --connections 1000 --batch 1";

/// Flags of `bench sources`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
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

/// A source of events.
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
    fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Bus => "bus",
            Self::Pull => "pull",
            Self::Socket => "socket",
            Self::Https => "https",
        }
    }

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
    /// Nanoseconds from sending a batch to its answer, sorted; empty without answers.
    latencies: Vec<u64>,
    daemon_cpu_s: f64,
    sender_cpu_s: f64,
    rss_peak_mb: f64,
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut out = Output::new(global.output);
    let mut table = Table::new([
        Column::left("SOURCE"),
        Column::right("BATCH"),
        Column::right("CONNECTIONS"),
        Column::right("ENTRIES"),
        Column::right("ENTRIES/S"),
        Column::right("P50 MS"),
        Column::right("P99 MS"),
        Column::right("DAEMON CPU S/M"),
        Column::right("SENDER CPU S/M"),
        Column::right("RSS MB"),
    ]);
    let mut runs = Vec::new();
    for &source in &args.source {
        let entries = args.entries.unwrap_or(if source == BenchSource::Https { 30_000 } else { 1_000_000 });
        let connections = source.connections(args.connections);
        for batch in source.batches(&args.batch) {
            let run = match source {
                BenchSource::Baseline => socket::run(&args.common, true, entries, connections, batch)?,
                BenchSource::Bus => streams::run(&args.common, Stream::Bus, entries)?,
                BenchSource::Pull => streams::run(&args.common, Stream::Pull, entries)?,
                BenchSource::Socket => socket::run(&args.common, false, entries, connections, batch)?,
                BenchSource::Https => https::run(&args.common, entries, connections, batch)?,
            };
            let rate = entries as f64 / run.seconds;
            let ms =
                |share| (!run.latencies.is_empty()).then(|| percentile(&run.latencies, share) as f64 / 1e6);
            let per_million = |seconds: f64| seconds / entries as f64 * 1e6;
            if out.format == Format::Table {
                let shown = |ms: Option<f64>| ms.map(|ms| format!("{ms:.3}")).unwrap_or_default();
                let row = vec![
                    source.name().to_owned(),
                    if batch > 0 { batch.to_string() } else { String::new() },
                    connections.to_string(),
                    thousands(entries as f64),
                    thousands(rate),
                    shown(ms(0.5)),
                    shown(ms(0.99)),
                    format!("{:.1}", per_million(run.daemon_cpu_s)),
                    format!("{:.1}", per_million(run.sender_cpu_s)),
                    format!("{:.0}", run.rss_peak_mb),
                ];
                table.print(&mut out, &[row])?;
                out.flush()?;
            }
            runs.push(json!({
                // The key has been `door` since the first release; scripts read it.
                "door": source.name(),
                "batch": (batch > 0).then_some(batch),
                "connections": connections,
                "entries": entries,
                "entries_per_s": rounded(rate, 0),
                "p50_ms": ms(0.5).map(|ms| rounded(ms, 3)),
                "p99_ms": ms(0.99).map(|ms| rounded(ms, 3)),
                "daemon_cpu_s_per_million": rounded(per_million(run.daemon_cpu_s), 2),
                "sender_cpu_s_per_million": rounded(per_million(run.sender_cpu_s), 2),
                "rss_peak_mb": rounded(run.rss_peak_mb, 1),
            }));
        }
    }
    match out.format {
        Format::Table => {}
        Format::Json => out.json(&json!({ "runs": runs }))?,
        Format::Jsonl => runs.iter().try_for_each(|run| out.json(run))?,
    }
    Ok(out.flush()?)
}
