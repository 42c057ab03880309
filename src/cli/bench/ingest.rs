//! `saltcellar bench ingest`: how fast, how small, at what cost, beside the physical yardstick.

use std::path::PathBuf;

use anyhow::ensure;
use serde_json::{Value as Json, json};

use super::super::Global;
use super::super::output::{Format, Output};
use super::super::table::{Column, Table};
use super::child::{Scratch, Subject, cpu_s};
use super::driver::{Drive, drive};
use super::template::{Form, Jobs, Pool, Wrap};
use super::{Common, Progress, corpus, load, rounded, thousands};

pub(super) const EXAMPLES: &str = "\
Two loads: `mix` (80 % of 300-400 bytes, 18 % of 2-3 KB, 2 % of 20-40 KB, mean 1.3 KB) and `small` (pings, \
publishes, beacons; median 180 bytes). --corpus replays a recorded bus in place of `mix`, with new jids, \
stamps, minion ids and values each time; events above 64 KiB are left out.

The yardstick is a process that appends the same bytes, packed by zstd level 1 in pieces of 256 KiB, to one \
file and calls fdatasync before it answers; it is fed by the same generator over the same kind of socket.

  entries_per_s         entries answered, by the time from the first one sent to the last answer
  cpu_s_per_million     user and system time of the process alone, from ready to its end, sealing included
  raw_bytes_per_entry   tag and body as sent
  disk_bytes_per_entry  blocks of the directory after an orderly stop, as du counts them
  ack_p50_ms, ack_p99_ms  from when a batch was due to its answer; without --rate that is when there was room
                        for it among --in-flight times --connections, so it grows with both
  rss_peak_mb           the most memory resident, as the kernel recorded it
  generator_cpu_s_per_million  what making and sending the events took beside it, on the same machine

Examples:
  saltcellar bench ingest
  saltcellar bench ingest --entries 5000000 --load small --output json
  saltcellar bench ingest --rate 20000 --load mix --entries 400000
  saltcellar bench ingest --corpus tests/data/3008.3.sbus --entries 1000000
  saltcellar bench ingest --connections 1 --in-flight 1 --batch 1 --entries 100000   (each event by itself)";

/// Which loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Which {
    Mix,
    Small,
    Both,
}

/// Flags of `bench ingest`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    common: Common,
    /// Events of each load
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    entries: u64,
    /// Which of the two loads
    #[arg(long, value_enum, default_value = "both")]
    load: Which,
    /// Scale the events so that they have this many bytes in the mean
    #[arg(long, value_name = "BYTES", conflicts_with = "corpus", value_parser = clap::value_parser!(u64).range(150..200_000))]
    mean_bytes: Option<u64>,
    /// Send so many events a second, not as many as possible
    #[arg(long, value_name = "N/S", value_parser = rate)]
    rate: Option<f64>,
    /// Replay a recorded bus (.sbus) in place of `mix`
    #[arg(long, value_name = "FILE")]
    corpus: Option<PathBuf>,
    /// Connections that send
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..1000))]
    connections: u64,
    /// Batches under way on each connection
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    in_flight: u16,
    /// Events in a batch [default: 64 of `mix`, 256 of `small` or a corpus]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    batch: Option<u64>,
    /// Only the daemon, without the yardstick
    #[arg(long)]
    no_yardstick: bool,
    /// Threads with which the yardstick packs
    #[arg(long, value_name = "N", default_value_t = 1)]
    yardstick_packers: u8,
}

fn rate(text: &str) -> Result<f64, String> {
    let text = text.strip_suffix("/s").unwrap_or(text);
    let rate = text.parse::<f64>().ok().filter(|rate| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "a number of events per second".to_owned())
}

/// A load, ready to be sent.
struct Load {
    name: &'static str,
    forms: Vec<Form>,
    jobs: Jobs,
    batch: u64,
}

impl Args {
    fn loads(&self) -> anyhow::Result<Vec<Load>> {
        let seed = self.common.seed;
        let scaled = |make: fn(u64, f64) -> Vec<Form>| {
            let natural = make(seed, 1.0);
            let Some(wanted) = self.mean_bytes else { return natural };
            make(seed, wanted as f64 / load::sizes(&natural).0)
        };
        let mut loads = Vec::new();
        if self.load != Which::Small {
            loads.push(if let Some(path) = &self.corpus {
                let corpus = corpus::read(path)?;
                let jobs = Jobs::Replayed(corpus.jobs);
                Load { name: "corpus", forms: corpus.forms, jobs, batch: self.batch.unwrap_or(256) }
            } else {
                let batch = self.batch.unwrap_or(64);
                Load { name: "mix", forms: scaled(load::mix), jobs: Jobs::Interleaved, batch }
            });
        }
        if self.load != Which::Mix {
            let batch = self.batch.unwrap_or(256);
            loads.push(Load { name: "small", forms: scaled(load::small), jobs: Jobs::Interleaved, batch });
        }
        Ok(loads)
    }
}

/// What one process did with one load.
struct Row {
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

impl Row {
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

    fn cells(&self, of_yardstick: Option<f64>) -> Vec<String> {
        vec![
            self.load.to_owned(),
            self.store.to_owned(),
            thousands(self.entries as f64),
            thousands(self.entries_per_s),
            of_yardstick.map(|share| format!("{:.0} %", share * 100.0)).unwrap_or_default(),
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
        Column::right("OF YARDSTICK"),
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
        let yardstick = if args.no_yardstick { None } else { Some(measure(global, args, &load, true)?) };
        let saltcellar = measure(global, args, &load, false)?;
        let share = yardstick.as_ref().map(|y| saltcellar.entries_per_s / y.entries_per_s);
        let mut document = json!({ "load": load.name, "saltcellar": saltcellar.json() });
        if let (Some(fields), Some(yardstick), Some(share)) = (document.as_object_mut(), &yardstick, share) {
            fields.insert("yardstick".to_owned(), yardstick.json());
            fields.insert("of_yardstick".to_owned(), rounded(share, 3));
        }
        documents.push((load.name, document));
        if out.format == Format::Table {
            let mut rows = vec![saltcellar.cells(share)];
            rows.extend(yardstick.map(|row| row.cells(None)));
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
        // The first load is the object, the second one stands in it under its name.
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

fn measure(global: &Global, args: &Args, load: &Load, yardstick: bool) -> anyhow::Result<Row> {
    let scratch = Scratch::new(args.common.dir.as_deref(), args.common.keep)?;
    let store = if yardstick { "yardstick" } else { "saltcellar" };
    let (subject, wrap) = if yardstick {
        (Subject::yardstick(&scratch, args.yardstick_packers.into())?, Wrap::Bare)
    } else {
        (Subject::daemon(&scratch, global.config.as_deref())?, Wrap::EventReturn)
    };
    let pool = Pool::new(&load.forms, wrap, load.jobs, args.common.seed);
    let mut progress = Progress::new();
    let mut quarters = Vec::new();
    let own_cpu = cpu_s(std::process::id())?;
    let driven = drive(
        &Drive {
            socket: subject.socket(),
            pool: &pool,
            wrap,
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
            progress.say(|| {
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
    let words = subject.words();
    ensure!(words.is_empty() || yardstick, "measure a healthy daemon; it said: {words}");
    let cost = subject.stop()?;
    let entries = args.entries as f64;
    Ok(Row {
        load: load.name,
        store,
        entries: args.entries,
        entries_per_s: entries / driven.seconds,
        cpu_s_per_million: cost.cpu_s / entries * 1e6,
        raw_bytes_per_entry: driven.raw_bytes as f64 / entries,
        disk_bytes_per_entry: cost.disk_bytes as f64 / entries,
        ack_p50_ms: driven.latency_ms(0.5),
        ack_p99_ms: driven.latency_ms(0.99),
        rss_peak_mb,
        rss_mb_by_quarter: quarters,
        generator_cpu_s_per_million: own_cpu / entries * 1e6,
    })
}
