//! `saltcellar bench doors`: what each door takes, from senders outside the daemon.
//!
//! A door is a file here with a `run` that starts a daemon, sends, and says what it took; this file makes rows of it.

mod https;

use serde_json::json;

use super::super::Global;
use super::super::output::{Format, Output};
use super::super::table::{Column, Table};
use super::driver::percentile;
use super::{Common, rounded, thousands};

/// Flags of `bench doors`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    common: Common,
    /// The doors to measure
    #[arg(long, value_name = "DOOR,...", value_enum, value_delimiter = ',', default_values_t = [Door::Https])]
    door: Vec<Door>,
    /// Entries to send with each size of batch
    #[arg(long, value_name = "N", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1..))]
    entries: u64,
    /// Connections to send over
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1000))]
    connections: u64,
    /// Entries sent at once, each size in a run of its own
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1, 64], value_parser = clap::value_parser!(u64).range(1..=1000))]
    batch: Vec<u64>,
}

/// A way in.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Door {
    /// Returns of minions, each batch signed with a key of 2048 bits before the clock starts
    Https,
}

impl Door {
    fn name(self) -> &'static str {
        match self {
            Self::Https => "https",
        }
    }
}

/// One run.
struct Run {
    seconds: f64,
    /// Nanoseconds from sending a batch to its answer, sorted.
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
        for &batch in &args.batch {
            let run = match door {
                Door::Https => https::run(&args.common, args.entries, args.connections, batch)?,
            };
            let rate = args.entries as f64 / run.seconds;
            let ms = |share| percentile(&run.latencies, share) as f64 / 1e6;
            let a_million = |seconds: f64| seconds / args.entries as f64 * 1e6;
            if out.format == Format::Table {
                let row = vec![
                    door.name().to_owned(),
                    batch.to_string(),
                    args.connections.to_string(),
                    thousands(args.entries as f64),
                    thousands(rate),
                    format!("{:.3}", ms(0.5)),
                    format!("{:.3}", ms(0.99)),
                    format!("{:.1}", a_million(run.daemon_cpu_s)),
                    format!("{:.1}", a_million(run.sender_cpu_s)),
                    format!("{:.0}", run.rss_peak_mb),
                ];
                table.print(&mut out, &[row])?;
                out.flush()?;
            }
            runs.push(json!({
                "door": door.name(),
                "batch": batch,
                "connections": args.connections,
                "entries": args.entries,
                "entries_per_s": rounded(rate, 0),
                "p50_ms": rounded(ms(0.5), 3),
                "p99_ms": rounded(ms(0.99), 3),
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
