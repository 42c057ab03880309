//! `saltcellar bench ingest`: rate, disk space and CPU time of ingesting events, compared with the baseline.

use std::path::PathBuf;

use anyhow::ensure;
use serde_json::{Value as Json, json};

use super::super::Global;
use super::super::format::output::{Format, Output};
use super::super::format::table::{Column, Table};
use super::child::{Scratch, Subject, cpu_s};
use super::load::corpus;
use super::load::driver::{LoadSpec, run_load};
use super::load::template::{Encoding, EventGenerator, EventTemplate, Jobs};
use super::{Common, ProgressLine, load, rounded, thousands};

pub(super) const EXAMPLES: &str = "\
Two loads: `mix` (80 % of 300-400 bytes, 18 % of 2-3 KB, 2 % of 20-40 KB, mean 1.3 KB) and `small` (pings, \
publishes, beacons; median 180 bytes). --corpus replays a recorded bus instead of `mix`, with new jids, \
time stamps, minion ids and values each time; events above 64 KiB are skipped.

The baseline is a process that appends the same bytes, compressed by zstd level 1 in blocks of 256 KiB, to one \
file and calls fdatasync before it answers. It receives the same load over the same kind of socket.

  entries_per_s         answered entries per second, from the first one sent to the last answer
  cpu_s_per_million     user and system time of the process, from its start of service to its exit, including sealing
  raw_bytes_per_entry   tag and body as sent
  disk_bytes_per_entry  disk blocks of the directory after a graceful stop, as counted by du
  ack_p50_ms, ack_p99_ms  latency of a batch from its due time to its answer; without --rate it grows with
                        --in-flight and --connections
  rss_peak_mb           peak resident memory
  generator_cpu_s_per_million  CPU time of the load generator, on the same machine

Examples:
  saltcellar bench ingest
  saltcellar bench ingest --entries 5000000 --load small --output json
  saltcellar bench ingest --rate 20000 --load mix --entries 400000
  saltcellar bench ingest --corpus tests/data/3008.3.sbus --entries 1000000
  saltcellar bench ingest --connections 1 --in-flight 1 --batch 1 --entries 100000   (single events)";

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum LoadChoice {
    Mix,
    Small,
    Both,
}

/// Flags of `bench ingest`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
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
    #[arg(long, value_name = "N/S", value_parser = rate)]
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

fn rate(text: &str) -> Result<f64, String> {
    let text = text.strip_suffix("/s").unwrap_or(text);
    let rate = text.parse::<f64>().ok().filter(|rate| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "expected a number of events per second".to_owned())
}

struct Load {
    name: &'static str,
    templates: Vec<EventTemplate>,
    jobs: Jobs,
    batch: u64,
}

impl Args {
    fn loads(&self) -> anyhow::Result<Vec<Load>> {
        let seed = self.common.seed;
        let scaled = |make: fn(u64, f64) -> Vec<EventTemplate>| {
            let natural = make(seed, 1.0);
            let Some(wanted) = self.mean_bytes else { return natural };
            make(seed, wanted as f64 / load::sizes(&natural).0)
        };
        let mut loads = Vec::new();
        if self.load != LoadChoice::Small {
            loads.push(if let Some(path) = &self.corpus {
                let corpus = corpus::read(path)?;
                let jobs = Jobs::Replayed(corpus.jobs);
                Load { name: "corpus", templates: corpus.templates, jobs, batch: self.batch.unwrap_or(256) }
            } else {
                let batch = self.batch.unwrap_or(64);
                Load { name: "mix", templates: scaled(load::mix), jobs: Jobs::Interleaved, batch }
            });
        }
        if self.load != LoadChoice::Mix {
            let batch = self.batch.unwrap_or(256);
            loads.push(Load {
                name: "small",
                templates: scaled(load::small),
                jobs: Jobs::Interleaved,
                batch,
            });
        }
        Ok(loads)
    }
}

/// The result of one process and load.
struct IngestRow {
    load: &'static str,
    store: &'static str,
    entries: u64,
    entries_per_s: f64,
    cpu_s_per_million: f64,
    raw_bytes_per_entry: f64,
    disk_bytes_per_entry: f64,
    ack_p50_ms: f64,
    ack_p99_ms: f64,
    rss_peak_mb: f64,
    rss_mb_by_quarter: Vec<f64>,
    generator_cpu_s_per_million: f64,
}

impl IngestRow {
    fn json(&self) -> Json {
        json!({
            "entries_per_s": rounded(self.entries_per_s, 0),
            "cpu_s_per_million": rounded(self.cpu_s_per_million, 3),
            "raw_bytes_per_entry": rounded(self.raw_bytes_per_entry, 1),
            "disk_bytes_per_entry": rounded(self.disk_bytes_per_entry, 1),
            "ack_p50_ms": rounded(self.ack_p50_ms, 3),
            "ack_p99_ms": rounded(self.ack_p99_ms, 3),
            "rss_peak_mb": rounded(self.rss_peak_mb, 1),
            "entries": self.entries,
            "generator_cpu_s_per_million": rounded(self.generator_cpu_s_per_million, 3),
            "rss_mb_by_quarter": self.rss_mb_by_quarter.iter().map(|mb| rounded(*mb, 1)).collect::<Json>(),
        })
    }

    fn cells(&self, of_baseline: Option<f64>) -> Vec<String> {
        vec![
            self.load.to_owned(),
            self.store.to_owned(),
            thousands(self.entries as f64),
            thousands(self.entries_per_s),
            of_baseline.map(|share| format!("{:.0} %", share * 100.0)).unwrap_or_default(),
            format!("{:.2}", self.cpu_s_per_million),
            format!("{:.0}", self.raw_bytes_per_entry),
            format!("{:.1}", self.disk_bytes_per_entry),
            format!("{:.3}", self.disk_bytes_per_entry / self.raw_bytes_per_entry),
            format!("{:.1}", self.ack_p50_ms),
            format!("{:.1}", self.ack_p99_ms),
            format!("{:.0}", self.rss_peak_mb),
            format!("{:.2}", self.generator_cpu_s_per_million),
        ]
    }
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut out = Output::new(global.output);
    let mut table = Table::new([
        Column::left("LOAD"),
        Column::left("STORE"),
        Column::right("ENTRIES"),
        Column::right("ENTRIES/S"),
        Column::right("OF BASELINE"),
        Column::right("CPU S/M"),
        Column::right("RAW B"),
        Column::right("DISK B"),
        Column::right("DISK/RAW"),
        Column::right("ACK P50 MS"),
        Column::right("ACK P99 MS"),
        Column::right("RSS MB"),
        Column::right("GENERATOR S/M"),
    ]);
    let mut documents = Vec::new();
    for load in args.loads()? {
        let baseline = if args.no_baseline { None } else { Some(measure(global, args, &load, true)?) };
        let saltcellar = measure(global, args, &load, false)?;
        let share = baseline.as_ref().map(|y| saltcellar.entries_per_s / y.entries_per_s);
        let mut document = json!({ "load": load.name, "saltcellar": saltcellar.json() });
        if let (Some(fields), Some(baseline), Some(share)) = (document.as_object_mut(), &baseline, share) {
            fields.insert("baseline".to_owned(), baseline.json());
            fields.insert("of_baseline".to_owned(), rounded(share, 3));
        }
        documents.push((load.name, document));
        if out.format == Format::Table {
            let mut rows = vec![saltcellar.cells(share)];
            rows.extend(baseline.map(|row| row.cells(None)));
            table.print(&mut out, &rows)?;
            out.flush()?;
        }
    }
    match out.format {
        Format::Table => {}
        Format::Jsonl => {
            for (_, document) in &documents {
                out.json(document)?;
            }
        }
        // The first load is the document; the second is a field of it, named by the load.
        Format::Json => {
            let mut documents = documents.into_iter();
            if let Some((_, mut first)) = documents.next() {
                for (name, document) in documents {
                    if let Some(fields) = first.as_object_mut() {
                        fields.insert(name.to_owned(), document);
                    }
                }
                out.json(&first)?;
            }
        }
    }
    Ok(out.flush()?)
}

fn measure(global: &Global, args: &Args, load: &Load, baseline: bool) -> anyhow::Result<IngestRow> {
    let scratch = Scratch::new(args.common.dir.as_deref(), args.common.keep)?;
    let store = if baseline { "baseline" } else { "saltcellar" };
    let (subject, encoding) = if baseline {
        (Subject::baseline(&scratch, args.baseline_packers.into())?, Encoding::Bare)
    } else {
        (Subject::daemon(&scratch, global.config.as_deref())?, Encoding::EventReturn)
    };
    let generator = EventGenerator::new(&load.templates, encoding, load.jobs, args.common.seed);
    let mut progress = ProgressLine::new();
    let mut quarters = Vec::new();
    let own_cpu = cpu_s(std::process::id())?;
    let result = run_load(
        &LoadSpec {
            socket: subject.socket(),
            generator: &generator,
            encoding,
            first: 0,
            entries: args.entries,
            connections: args.connections,
            in_flight: args.in_flight.into(),
            batch: load.batch,
            rate: args.rate,
        },
        &mut |answered, seconds| {
            if answered * 4 >= args.entries * (quarters.len() as u64 + 1) {
                quarters.push(subject.rss_mb());
            }
            progress.show(|| {
                let rate = answered as f64 / seconds;
                let (done, all) = (thousands(answered as f64), thousands(args.entries as f64));
                let rss = subject.rss_mb();
                format!("{} {store}: {done} of {all}, {}/s, {rss:.0} MB", load.name, thousands(rate))
            });
        },
    )?;
    progress.done();
    let own_cpu = cpu_s(std::process::id())? - own_cpu;
    subject.wait_until_idle()?;
    let rss_peak_mb = subject.rss_peak_mb();
    let log = subject.log_text();
    ensure!(log.is_empty() || baseline, "check the daemon: unexpected log output: {log}");
    let cost = subject.stop()?;
    let entries = args.entries as f64;
    Ok(IngestRow {
        load: load.name,
        store,
        entries: args.entries,
        entries_per_s: entries / result.seconds,
        cpu_s_per_million: cost.cpu_s / entries * 1e6,
        raw_bytes_per_entry: result.raw_bytes as f64 / entries,
        disk_bytes_per_entry: cost.disk_bytes as f64 / entries,
        ack_p50_ms: result.latency_ms(0.5),
        ack_p99_ms: result.latency_ms(0.99),
        rss_peak_mb,
        rss_mb_by_quarter: quarters,
        generator_cpu_s_per_million: own_cpu / entries * 1e6,
    })
}
