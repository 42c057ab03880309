//! `saltcellar-bench returner`: latency of `returner` calls, for each of which a worker of the
//! master waits.

use saltcellar_testkit::load::driver::{LoadSpec, run_load};
use saltcellar_testkit::load::returns;
use saltcellar_testkit::load::template::Encoding;
use serde_json::json;

use super::child::Subject;
use super::report::{Report, Row, set};
use crate::options::{Common, Options};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Number of calls for each number of connections
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    entries: u64,
    /// Numbers of connections
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1, 8])]
    connections: Vec<u64>,
}

pub(crate) fn run(options: &Options, args: &Args) -> anyhow::Result<()> {
    let mut report = Report::new(options);
    let load = returns(args.common.seed);
    let mut runs = Vec::new();

    for &connections in &args.connections {
        let mut document = json!({ "connections": connections });

        for (store, encoding) in [
            ("saltcellar", Encoding::Returner),
            ("baseline", Encoding::Bare),
        ] {
            let scratch = args.common.scratch()?;

            // A separate process for each run, because no run may inherit memory.
            let mut subject = match encoding {
                Encoding::Bare => Subject::baseline(&scratch, 1)?,
                _ => Subject::daemon(&options.program()?, &scratch, options.config.as_deref())?,
            };

            let generator = load.generator(encoding);
            let spec = LoadSpec {
                // Zero would send nothing.
                connections: connections.max(1),
                ..LoadSpec::new(&generator, args.entries)
            };

            let result = run_load(&subject.socket, &spec, |answered, _| {
                report.progress(|| format!("{store}, {connections}: {answered} calls"))
            })?;

            let cost = subject.stop()?;
            let entries = args.entries as f64;

            let row = Row::default()
                .label("STORE", store)
                .label("CONNECTIONS", connections.to_string())
                .count("CALLS", "calls", args.entries)
                .number("CALLS/S", "calls_per_s", 0, entries / result.seconds)
                .latency(&result.latencies)
                .number(
                    "CPU S/M",
                    "cpu_s_per_million",
                    2,
                    cost.cpu_s / entries * 1e6,
                );

            set(&mut document, store, report.row(row)?);
        }
        runs.push(document);
    }

    report.runs(runs)
}
