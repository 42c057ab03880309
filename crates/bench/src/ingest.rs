//! `saltcellar-bench ingest`: rate, disk space and CPU time of ingesting events, compared with the
//! baseline.

use std::path::PathBuf;

use saltcellar_testkit::load::driver::{LoadSpec, run_load};
use saltcellar_testkit::load::template::Encoding;
use saltcellar_testkit::load::{Load, mix, recorded, small};
use serde_json::{Value as Json, json};

use super::child::{Subject, TIMEOUT};
use super::report::{Report, Row, rounded, set, thousands};
use crate::options::{self, Common, Options};

pub(crate) const EXAMPLES: &str = "\
Two loads: `mix` (80 % of 300-400 bytes, 18 % of 2-3 KB, 2 % of 20-40 KB, mean 1.3 KB) and `small` (pings, \
publishes, beacons; median 180 bytes). --corpus replays a recorded bus instead of `mix`, with new jids, \
time stamps, minion ids and values each time; events above 64 KiB are skipped.

The baseline is a process that appends the same bytes, compressed by zstd level 1 in blocks of 256 KiB, to one \
file and calls fdatasync before it answers. It receives the same load over the same kind of socket.

  of_baseline, cpu_of_baseline, ack_p99_of_baseline
                        entries_per_s, cpu_s_per_million and ack_p99_ms of saltcellar in relation to the baseline's of
                        the same run; absent with --no-baseline, null if the baseline's is 0
  entries_per_s         answered entries per second, from the first one sent to the last response
  cpu_s_per_million     user and system time of the process, from its start of service to its exit, including sealing
  raw_bytes_per_entry   tag and body as sent
  disk_bytes_per_entry  disk blocks of the directory after a graceful stop, as counted by du
  ack_p50_ms, ack_p99_ms  latency of a batch from its due time to its response; without --rate it grows with
                        --in-flight and --connections
  rss_peak_mb           peak resident memory
  generator_cpu_s_per_million  CPU time of the load generator, on the same host

Examples:
  saltcellar-bench ingest
  saltcellar-bench ingest --entries 5000000 --load small --output json
  saltcellar-bench ingest --rate 20000 --load mix --entries 400000
  saltcellar-bench ingest --corpus tests/data/3008.3.sbus --entries 1000000
  saltcellar-bench ingest --connections 1 --in-flight 1 --batch 1 --entries 100000   (single events)";

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum LoadChoice {
    Mix,
    Small,
    Both,
}

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Number of events of each load
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    entries: u64,
    /// The load
    #[arg(long, value_enum, default_value = "both")]
    load: LoadChoice,
    /// Scale the events to this mean size in bytes
    #[arg(long, value_name = "BYTES", conflicts_with = "corpus", value_parser = clap::value_parser!(u64).range(150..200_000))]
    mean_bytes: Option<u64>,
    /// Send this many events per second [default: unlimited]
    #[arg(long, value_name = "N/S", value_parser = options::rate)]
    rate: Option<f64>,
    /// Replay a recorded bus (.sbus) instead of `mix`
    #[arg(long, value_name = "FILE")]
    corpus: Option<PathBuf>,
    /// Number of connections
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..1000))]
    connections: u64,
    /// Batches in flight on each connection
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    in_flight: u16,
    /// Events in a batch [default: 64 for `mix`, 256 for `small` or a corpus]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    batch: Option<u64>,
    /// Skip the baseline
    #[arg(long)]
    no_baseline: bool,
    /// Number of compression threads of the baseline
    #[arg(long, value_name = "N", default_value_t = 1)]
    baseline_packers: u8,
}

type NamedLoad = (&'static str, Load, u64);

impl Args {
    fn loads(&self) -> anyhow::Result<Vec<NamedLoad>> {
        let seed = self.common.seed;
        let scaled = |make: fn(u64, f64) -> Load| {
            let natural = make(seed, 1.0);
            let Some(wanted) = self.mean_bytes else {
                return natural;
            };
            // Sizes are proportional to the factor.
            make(seed, wanted as f64 / natural.sizes().0)
        };

        let batch = |default| self.batch.unwrap_or(default);

        let mut loads = Vec::new();

        match &self.corpus {
            _ if self.load == LoadChoice::Small => {}
            Some(path) => loads.push(("corpus", recorded(path, seed)?, batch(256))),
            None => loads.push(("mix", scaled(mix), batch(64))),
        }

        if self.load != LoadChoice::Mix {
            loads.push(("small", scaled(small), batch(256)));
        }
        Ok(loads)
    }
}

pub(crate) fn run(options: &Options, args: &Args) -> anyhow::Result<()> {
    let mut report = Report::new(options);

    let mut documents = Vec::new();

    for load in &args.loads()? {
        // Both receive the same load, one after the other.
        let mut measure = |store, of| measure(options, args, &mut report, load, store, of);

        let baseline = if args.no_baseline {
            None
        } else {
            Some(measure("baseline", None)?)
        };

        // After the baseline, because the row needs its figures.
        let (own, saltcellar) =
            measure("saltcellar", baseline.as_ref().map(|(figures, _)| figures))?;

        let mut document = json!({ "load": load.0, "saltcellar": saltcellar });
        if let Some((figures, baseline)) = baseline {
            set(&mut document, "baseline", baseline);

            let ratio = own.of(&figures);
            for (name, ratio) in [
                ("of_baseline", ratio.rate),
                ("cpu_of_baseline", ratio.cpu),
                ("ack_p99_of_baseline", ratio.ack_p99),
            ] {
                set(&mut document, name, ratio.map(|ratio| rounded(ratio, 3)));
            }
        }

        documents.push((load.0, document));
    }

    // The first load is the document; the second is a field of it, named by the load.
    let (names, documents): (Vec<_>, Vec<_>) = documents.into_iter().unzip();
    report.documents(documents, |documents| {
        let mut documents = names.iter().zip(documents);
        let mut first = documents.next().map(|(_, first)| first).unwrap_or_default();
        for (name, document) in documents {
            set(&mut first, name, document);
        }
        first
    })
}

/// What is compared with the baseline: entries per second, CPU seconds per million entries, and the
/// 99th percentile of the acknowledgement latency in milliseconds.
struct Figures {
    rate: f64,
    cpu: f64,
    ack_p99: Option<f64>,
}

/// Figures in relation to the baseline's.
#[derive(Default)]
struct Ratios {
    rate: Option<f64>,
    cpu: Option<f64>,
    ack_p99: Option<f64>,
}

impl Figures {
    fn of(&self, baseline: &Self) -> Ratios {
        // The CPU time of a short run can be zero: it is counted in hundredths of a second.
        let ratio = |own: f64, baseline: f64| (baseline > 0.0).then(|| own / baseline);

        Ratios {
            rate: ratio(self.rate, baseline.rate),
            cpu: ratio(self.cpu, baseline.cpu),
            ack_p99: (self.ack_p99.zip(baseline.ack_p99))
                .and_then(|(own, baseline)| ratio(own, baseline)),
        }
    }
}

/// Measures one process and load; returns what is compared, and all results. `baseline` contains
/// the figures of the baseline.
fn measure(
    options: &Options,
    args: &Args,
    report: &mut Report,
    (name, load, batch): &NamedLoad,
    store: &str,
    baseline: Option<&Figures>,
) -> anyhow::Result<(Figures, Json)> {
    let scratch = args.common.scratch()?;

    let (mut subject, encoding) = if store == "baseline" {
        (
            Subject::baseline(&scratch, args.baseline_packers.into())?,
            Encoding::Bare,
        )
    } else {
        (
            Subject::daemon(&options.program()?, &scratch, options.config.as_deref())?,
            Encoding::EventReturn,
        )
    };

    let generator = load.generator(encoding);

    let spec = LoadSpec {
        connections: args.connections,
        in_flight: args.in_flight.into(),
        batch: *batch,
        rate: args.rate,
        ..LoadSpec::new(&generator, args.entries)
    };

    let mut quarters: Vec<Json> = Vec::new();

    let result = run_load(&subject.socket, &spec, |answered, seconds| {
        // Memory by quarters shows whether it grows with the number of entries.
        if answered * 4 >= args.entries * (quarters.len() as u64 + 1) {
            quarters.push(rounded(subject.rss_mb()?, 1));
        }

        report.progress(|| {
            let rate = answered as f64 / seconds;
            let [done, all, rate] = [answered as f64, args.entries as f64, rate].map(thousands);
            format!("{name} {store}: {done} of {all}, {rate}/s")
        })
    })?;

    // Sealing belongs to the cost.
    subject.process.wait_until_idle(TIMEOUT)?;

    let rss_peak_mb = subject.rss_peak_mb()?;
    // A warning would mean that something else was measured.
    if store != "baseline" {
        subject.check_log()?;
    }

    // The disk is measured after the end, when everything is sealed.
    let cost = subject.stop()?;

    let entries = args.entries as f64;
    let figures = Figures {
        rate: entries / result.seconds,
        cpu: cost.cpu_s / entries * 1e6,
        ack_p99: result.latencies.ms(0.99),
    };

    let ratio = baseline.map(|baseline| figures.of(baseline));
    // Without a baseline the cells stay empty.
    let ratio = ratio.unwrap_or_default();

    let (raw, disk) = (
        result.raw_bytes as f64 / entries,
        cost.disk_bytes as f64 / entries,
    );

    let row = Row::default()
        .label("LOAD", *name)
        .label("STORE", store)
        .count("ENTRIES", "entries", args.entries)
        .number("ENTRIES/S", "entries_per_s", 0, figures.rate)
        .number("OF BASELINE", "", 2, ratio.rate)
        .number("CPU S/M", "cpu_s_per_million", 3, figures.cpu)
        .number("CPU OF BASELINE", "", 2, ratio.cpu)
        .number("RAW B", "raw_bytes_per_entry", 1, raw)
        .number("DISK B", "disk_bytes_per_entry", 1, disk)
        .number("DISK/RAW", "", 3, disk / raw)
        .number("ACK P50 MS", "ack_p50_ms", 3, result.latencies.ms(0.5))
        .number("ACK P99 MS", "ack_p99_ms", 3, figures.ack_p99)
        .number("P99 OF BASELINE", "", 2, ratio.ack_p99)
        .number("RSS MB", "rss_peak_mb", 1, rss_peak_mb)
        .json("rss_mb_by_quarter", quarters)
        .number(
            "GENERATOR S/M",
            "generator_cpu_s_per_million",
            3,
            result.own_cpu_s / entries * 1e6,
        );

    Ok((figures, report.row(row)?))
}
