//! `saltcellar bench returner`: latency of `returner` calls, for each of which a worker of the master waits.

use serde_json::json;

use super::super::Global;
use super::super::format::output::{Format, Output};
use super::super::format::table::{Column, Table};
use super::child::{Scratch, Subject};
use super::load::driver::{LoadSpec, run_load};
use super::load::template::{Encoding, EventGenerator, Jobs};
use super::{Common, ProgressLine, load, rounded, thousands};

/// Flags of `bench returner`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    common: Common,
    /// Number of calls for each number of connections
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    entries: u64,
    /// Numbers of connections
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1, 8])]
    connections: Vec<u64>,
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut out = Output::new(global.output);
    let mut table = Table::new([
        Column::left("STORE"),
        Column::right("CONNECTIONS"),
        Column::right("CALLS"),
        Column::right("CALLS/S"),
        Column::right("P50 MS"),
        Column::right("P99 MS"),
        Column::right("CPU S/M"),
    ]);
    let returns = load::returns(args.common.seed);
    let mut runs = Vec::new();
    for &connections in &args.connections {
        let mut document = json!({ "connections": connections });
        for store in ["saltcellar", "baseline"] {
            let scratch = Scratch::new(args.common.dir.as_deref(), args.common.keep)?;
            let (subject, encoding) = if store == "saltcellar" {
                (Subject::daemon(&scratch, global.config.as_deref())?, Encoding::Returner)
            } else {
                (Subject::baseline(&scratch, 1)?, Encoding::Bare)
            };
            let generator = EventGenerator::new(&returns, encoding, Jobs::Interleaved, args.common.seed);
            let mut progress = ProgressLine::new();
            let result = run_load(
                &LoadSpec {
                    socket: subject.socket(),
                    generator: &generator,
                    encoding,
                    first: 0,
                    entries: args.entries,
                    connections: connections.max(1),
                    in_flight: 1,
                    batch: 1,
                    rate: None,
                },
                &mut |answered, _| progress.show(|| format!("{store}, {connections}: {answered} calls")),
            )?;
            progress.done();
            let cost = subject.stop()?;
            let rate = args.entries as f64 / result.seconds;
            let (p50, p99) = (result.latency_ms(0.5), result.latency_ms(0.99));
            let cpu = cost.cpu_s / args.entries as f64 * 1e6;
            if out.format == Format::Table {
                let row = vec![
                    store.to_owned(),
                    connections.to_string(),
                    thousands(args.entries as f64),
                    thousands(rate),
                    format!("{p50:.3}"),
                    format!("{p99:.3}"),
                    format!("{cpu:.1}"),
                ];
                table.print(&mut out, &[row])?;
                out.flush()?;
            }
            if let Some(fields) = document.as_object_mut() {
                let run = json!({
                    "calls_per_s": rounded(rate, 0),
                    "p50_ms": rounded(p50, 3),
                    "p99_ms": rounded(p99, 3),
                    "cpu_s_per_million": rounded(cpu, 2),
                    "calls": args.entries,
                });
                fields.insert(store.to_owned(), run);
            }
        }
        runs.push(document);
    }
    match out.format {
        Format::Table => {}
        Format::Json => out.json(&json!({ "runs": runs }))?,
        Format::Jsonl => runs.iter().try_for_each(|run| out.json(run))?,
    }
    Ok(out.flush()?)
}
