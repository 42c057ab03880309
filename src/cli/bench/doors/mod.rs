//! `saltcellar bench doors`: what each door takes, from senders outside the daemon.
//!
//! A door is a file here with a `run` that starts a daemon, sends, and says what it took; this file makes rows of it.

mod https;
mod socket;
mod streams;

use serde_json::json;

use super::super::Global;
use super::super::output::{Format, Output};
use super::super::table::{Column, Table};
use super::driver::percentile;
use super::{Common, rounded, thousands};
use streams::Stream;

pub(super) const EXAMPLES: &str = "\
Every door takes the same made-up events (the `mix` of `bench ingest`, 1.3 KB), but https, which takes returns of \
1.2 KB. This process sends; everything is durable at the end of the clock. The yardstick is that of `bench ingest`.

  bus      this process plays Salt's publisher and writes as fast as the door reads; no answers
  pull     this process is a ZeroMQ PUSH; no answers
  socket   `event_return` in batches of 1,000 on 4 connections, 8 batches under way on each
  https    returns of minions, each batch signed with a key of 2048 bits before the clock starts

Examples:
  saltcellar bench doors
  saltcellar bench doors --door bus,yardstick --entries 3000000
  saltcellar bench doors --door https --connections 1000 --batch 1";

/// Flags of `bench doors`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    common: Common,
    /// The doors to measure
    #[arg(long, value_name = "DOOR,...", value_enum, value_delimiter = ',', default_values_t = [Door::Yardstick, Door::Bus, Door::Pull, Door::Socket, Door::Https])]
    door: Vec<Door>,
    /// Entries to send [default: 1,000,000; https: 30,000 with each size of batch]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    entries: Option<u64>,
    /// Connections to send over [default: 4; https: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    connections: Option<u64>,
    /// Entries sent at once, each size in a run of its own [default: 1,000; yardstick: 64; https: 1 and 64]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=1000))]
    batch: Vec<u64>,
}

/// A way in.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Door {
    /// No door: what any durable store of these bytes has to do
    Yardstick,
    /// The bus, with this process as Salt's publisher
    Bus,
    /// The ZeroMQ PULL, with this process as PUSH
    Pull,
    /// The local socket, `event_return`
    Socket,
    /// Returns of minions, each batch signed with a key of 2048 bits before the clock starts
    Https,
}

impl Door {
    fn name(self) -> &'static str {
        match self {
            Self::Yardstick => "yardstick",
            Self::Bus => "bus",
            Self::Pull => "pull",
            Self::Socket => "socket",
            Self::Https => "https",
        }
    }

    /// Sizes of batches; 0 where events come in a stream.
    fn batches(self, asked: &[u64]) -> Vec<u64> {
        match self {
            Self::Bus | Self::Pull => vec![0],
            _ if !asked.is_empty() => asked.to_vec(),
            Self::Yardstick => vec![64],
            Self::Socket => vec![1000],
            Self::Https => vec![1, 64],
        }
    }

    fn connections(self, asked: Option<u64>) -> u64 {
        match self {
            Self::Bus | Self::Pull => 1,
            Self::Https => asked.unwrap_or(64),
            Self::Yardstick | Self::Socket => asked.unwrap_or(4),
        }
    }
}

/// One run.
struct Run {
    seconds: f64,
    /// Nanoseconds from sending a batch to its answer, sorted; none where there are no answers.
    latencies: Vec<u64>,
    daemon_cpu_s: f64,
    sender_cpu_s: f64,
    rss_peak_mb: f64,
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut out = Output::new(global.output);
    let mut table = Table::new([
        Column::left("DOOR"),
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
    for &door in &args.door {
        let entries = args.entries.unwrap_or(if door == Door::Https { 30_000 } else { 1_000_000 });
        let connections = door.connections(args.connections);
        for batch in door.batches(&args.batch) {
            let run = match door {
                Door::Yardstick => socket::run(&args.common, true, entries, connections, batch)?,
                Door::Bus => streams::run(&args.common, Stream::Bus, entries)?,
                Door::Pull => streams::run(&args.common, Stream::Pull, entries)?,
                Door::Socket => socket::run(&args.common, false, entries, connections, batch)?,
                Door::Https => https::run(&args.common, entries, connections, batch)?,
            };
            let rate = entries as f64 / run.seconds;
            let ms =
                |share| (!run.latencies.is_empty()).then(|| percentile(&run.latencies, share) as f64 / 1e6);
            let a_million = |seconds: f64| seconds / entries as f64 * 1e6;
            if out.format == Format::Table {
                let shown = |ms: Option<f64>| ms.map(|ms| format!("{ms:.3}")).unwrap_or_default();
                let row = vec![
                    door.name().to_owned(),
                    if batch > 0 { batch.to_string() } else { String::new() },
                    connections.to_string(),
                    thousands(entries as f64),
                    thousands(rate),
                    shown(ms(0.5)),
                    shown(ms(0.99)),
                    format!("{:.1}", a_million(run.daemon_cpu_s)),
                    format!("{:.1}", a_million(run.sender_cpu_s)),
                    format!("{:.0}", run.rss_peak_mb),
                ];
                table.print(&mut out, &[row])?;
                out.flush()?;
            }
            runs.push(json!({
                "door": door.name(),
                "batch": (batch > 0).then_some(batch),
                "connections": connections,
                "entries": entries,
                "entries_per_s": rounded(rate, 0),
                "p50_ms": ms(0.5).map(|ms| rounded(ms, 3)),
                "p99_ms": ms(0.99).map(|ms| rounded(ms, 3)),
                "daemon_cpu_s_per_million": rounded(a_million(run.daemon_cpu_s), 2),
                "sender_cpu_s_per_million": rounded(a_million(run.sender_cpu_s), 2),
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
