//! `saltcellar bench query`: latency of queries to a store with many jobs.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rmpv::Value;
use serde_json::{Value as Json, json};

use super::super::Global;
use super::super::format::output::{Format, Output};
use super::super::format::table::{Column, Table};
use super::child::{Scratch, Subject};
use super::load::driver::{LoadSpec, percentile, run_load};
use super::load::template::{Encoding, EventGenerator, Jobs, Random};
use super::{Common, ProgressLine, load, rounded, thousands};
use crate::api::client::{Client, args as call_args};
use crate::wire::msgpack;

/// Timeout of a query.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Number of runs of each query.
const LISTS: u64 = 300;
const LOOKUPS: u64 = 3_000;
const SCANS: u64 = 7;
const WHOLE: u64 = 15;
const STARTS: u64 = 5;

/// Number and rate of `returner` calls while retention drops expired jobs, which it does every five seconds.
const CALLS: u64 = 16_000;
const CALLS_PER_S: f64 = 2_000.0;

/// Flags of `bench query`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    common: Common,
    /// Number of jobs to store
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    jobs: u64,
    /// Number of returns of each job
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1000))]
    returns: u64,
    /// Number of minions of one additional job
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    minions: u64,
}

struct QueryTimes {
    query: &'static str,
    /// Sorted.
    nanos: Vec<u64>,
    /// Entries that each run scans.
    scanned: Option<u64>,
}

impl QueryTimes {
    fn ms(&self, share: f64) -> f64 {
        percentile(&self.nanos, share) as f64 / 1e6
    }

    /// Entries scanned per second, by the median.
    fn per_s(&self) -> Option<f64> {
        Some(self.scanned? as f64 / self.ms(0.5) * 1e3)
    }

    fn json(&self) -> Json {
        let mut fields = json!({
            "p50_ms": rounded(self.ms(0.5), 3),
            "p99_ms": rounded(self.ms(0.99), 3),
            "max_ms": rounded(self.ms(1.0), 3),
            "asked": self.nanos.len(),
        });
        if let (Some(rate), Some(fields)) = (self.per_s(), fields.as_object_mut()) {
            fields.insert("entries_per_s".to_owned(), rounded(rate, 0));
        }
        fields
    }
}

/// A minion of the load, and the median arrival time of the events.
fn middle_event(client: &mut Client, entries: u64) -> anyhow::Result<(String, i64)> {
    let (before, limit) = (Value::from(entries / 2 + 60), Value::from(60));
    let answer = client.call("events_list", call_args([("before", before), ("limit", limit)]))?;
    let events = answer["events"].as_array().context("read the answer of events_list")?;
    let minion = events.iter().find_map(|event| event["minion"].as_str()).context("find a minion")?;
    let time = events.first().and_then(|event| event["time"].as_i64()).context("find a time")?;
    Ok((minion.to_owned(), time))
}

/// The jid of the additional job with many minions.
const WIDE: &str = "20261120235959000001";

fn store_wide(client: &mut Client, minions: u64) -> anyhow::Result<()> {
    let map = |pairs: Vec<(&str, Value)>| Value::Map(pairs.into_iter().map(|(k, v)| (k.into(), v)).collect());
    let id = |n: u64| Value::from(format!("web{n:06}"));
    let load = map(vec![
        ("cmd", "publish".into()),
        ("jid", WIDE.into()),
        ("fun", "test.ping".into()),
        ("arg", Value::Array(Vec::new())),
        ("tgt", "*".into()),
        ("tgt_type", "glob".into()),
        ("user", "root".into()),
    ]);
    let asked = Value::Array((0..minions).map(id).collect());
    client.call("save_load", call_args([("jid", WIDE.into()), ("load", load), ("minions", asked)]))?;
    for first in (0..minions).step_by(500) {
        let event = |n: u64| {
            let data = map(vec![
                ("cmd", "_return".into()),
                ("id", id(n)),
                ("jid", WIDE.into()),
                ("fun", "test.ping".into()),
                ("fun_args", Value::Array(Vec::new())),
                ("retcode", 0.into()),
                ("success", true.into()),
                ("return", map(vec![("uptime", n.into()), ("release", "Linux 6.12".into())])),
            ]);
            map(vec![("tag", format!("salt/job/{WIDE}/ret/web{n:06}").into()), ("data", data)])
        };
        let events = (first..(first + 500).min(minions)).map(event).collect();
        client.call("event_return", call_args([("events", Value::Array(events))]))?;
    }
    Ok(())
}

/// Duration of the command `jobs list`, in nanoseconds.
fn jobs_list(subject: &Subject, rows: usize) -> anyhow::Result<u64> {
    let program = std::env::current_exe().context("get the path of the program")?;
    let started = Instant::now();
    let output = std::process::Command::new(&program)
        .args(["jobs", "list", "--limit", "50", "--output", "jsonl", "--socket"])
        .arg(subject.socket())
        .output()
        .context("run jobs list")?;
    let nanos = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let found = String::from_utf8_lossy(&output.stdout).lines().count();
    ensure!(found == rows, "check what jobs list prints: {found} lines, expected {rows}");
    Ok(nanos)
}

fn by_command_line(subject: &Subject, rows: usize) -> anyhow::Result<QueryTimes> {
    let nanos: anyhow::Result<Vec<u64>> = (0..WHOLE).map(|_| jobs_list(subject, rows)).collect();
    let mut nanos = nanos?;
    nanos.sort_unstable();
    Ok(QueryTimes { query: "newest 50 jobs, a process", nanos, scanned: None })
}

/// The first query to a daemon after its start, without its store in the page cache.
fn from_cold(
    mut subject: Subject,
    scratch: &Scratch,
    config: Option<&Path>,
    rows: usize,
) -> anyhow::Result<(Subject, QueryTimes)> {
    let mut nanos = Vec::new();
    for _ in 0..STARTS {
        subject.stop()?;
        evict_pages(scratch.path()).context("evict the store from the page cache")?;
        subject = Subject::daemon(scratch, config)?;
        nanos.push(jobs_list(&subject, rows)?);
    }
    nanos.sort_unstable();
    Ok((subject, QueryTimes { query: "newest 50 jobs, a process, cold", nanos, scanned: None }))
}

fn evict_pages(dir: &Path) -> std::io::Result<()> {
    for item in std::fs::read_dir(dir)? {
        let (path, kind) = item.and_then(|item| Ok((item.path(), item.file_type()?)))?;
        if kind.is_dir() {
            evict_pages(&path)?;
        } else if kind.is_file() {
            let file = std::fs::File::open(&path)?;
            file.sync_all()?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}

/// `returner` calls at a rate that leaves the daemon mostly idle.
fn returner_calls(
    subject: &Subject,
    seed: u64,
    first: u64,
    query: &'static str,
) -> anyhow::Result<QueryTimes> {
    let generator = EventGenerator::new(&load::returns(seed), Encoding::Returner, Jobs::Interleaved, seed);
    let calls = LoadSpec {
        socket: subject.socket(),
        generator: &generator,
        encoding: Encoding::Returner,
        first,
        entries: CALLS,
        connections: 1,
        in_flight: 1,
        batch: 1,
        rate: Some(CALLS_PER_S),
    };
    let result = run_load(&calls, &mut |_, _| {})?;
    Ok(QueryTimes { query, nanos: result.latencies, scanned: None })
}

/// Like [`returner_calls`], while retention drops all stored jobs.
fn returner_calls_cleaning(subject: &Subject, seed: u64) -> anyhow::Result<(QueryTimes, u64)> {
    let dropped = |client: &mut Client| -> anyhow::Result<u64> {
        let status = client.call("status", call_args([]))?;
        Ok(status["counters"]["segments_dropped"].as_u64().unwrap_or(0))
    };
    let mut client = Client::connect_within(subject.socket(), TIMEOUT)?;
    let before = dropped(&mut client)?;
    client.call("clean_old_jobs", call_args([("keep_jobs_seconds", Value::from(1))]))?;
    let times = returner_calls(subject, seed, CALLS, "returner, jobs dropped")?;
    Ok((times, dropped(&mut client)? - before))
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let scratch = Scratch::new(args.common.dir.as_deref(), args.common.keep)?;
    let subject = Subject::daemon(&scratch, global.config.as_deref())?;
    let each = args.returns + 1;
    let entries = args.jobs * each;
    let templates = load::jobs(args.common.seed, args.returns);
    let generator = EventGenerator::new(&templates, Encoding::EventReturn, Jobs::Of(each), args.common.seed);
    let mut progress = ProgressLine::new();
    let fill = LoadSpec {
        socket: subject.socket(),
        generator: &generator,
        encoding: Encoding::EventReturn,
        first: 0,
        entries,
        connections: 4,
        in_flight: 8,
        batch: 256,
        rate: None,
    };
    run_load(&fill, &mut |answered, _| progress.show(|| format!("storing: {answered} of {entries} events")))?;
    let mut client = Client::connect_within(subject.socket(), TIMEOUT)?;
    store_wide(&mut client, args.minions)?;
    subject.wait_until_idle()?;
    drop(client);
    let newest = usize::try_from(args.jobs.min(50)).unwrap_or(50);
    let (subject, cold) = from_cold(subject, &scratch, global.config.as_deref(), newest)?;
    let mut client = Client::connect_within(subject.socket(), TIMEOUT)?;

    let (minion, until) = middle_event(&mut client, entries)?;
    let by_minion = [("minion", Value::from(minion.as_str())), ("limit", Value::from(50))];
    let found = client.call("events_list", call_args(by_minion))?["events"].as_array().map_or(0, Vec::len);
    let newest_events = usize::try_from(entries.min(50)).unwrap_or(50);
    let mut ask = |query: &'static str, times: u64, call: &dyn Fn(u64) -> (&'static str, Value, usize)| {
        let mut nanos = Vec::new();
        for n in 0..times {
            let (name, arguments, expected) = call(n);
            let started = Instant::now();
            let answer = client.call(name, arguments)?;
            nanos.push(u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX));
            let found = match name {
                "jobs_list" => answer["jobs"].as_array().map(Vec::len),
                "events_list" => answer["events"].as_array().map(Vec::len),
                _ => answer.as_map().map(Vec::len),
            };
            let found = found.with_context(|| format!("read the answer of {name}"))?;
            ensure!(found == expected, "check the answer of {name}: {found} rows, expected {expected}");
            progress.show(|| format!("{query}: {n} of {times}"));
        }
        nanos.sort_unstable();
        anyhow::Ok(QueryTimes { query, nanos, scanned: None })
    };
    let list =
        ask("newest 50 jobs", LISTS, &|_| ("jobs_list", call_args([("limit", Value::from(50))]), newest))?;
    let mut random = Random::of(args.common.seed, 1);
    let jids: Vec<String> = (0..LOOKUPS).map(|_| generator.jid(random.below(args.jobs) * each)).collect();
    let minions = usize::try_from(args.returns).unwrap_or(0);
    let one = ask("one job's returns", LOOKUPS, &|n| {
        let jid = usize::try_from(n).ok().and_then(|n| jids.get(n)).cloned().unwrap_or_default();
        ("get_jid", call_args([("jid", Value::from(jid))]), minions)
    })?;
    let mut scan = ask("tag search, nothing found", SCANS, &|_| {
        ("events_list", call_args([("tag", Value::from("*/ret/absent-*")), ("limit", Value::from(50))]), 0)
    })?;
    scan.scanned = Some(entries);
    // Only the jid distinguishes these tags, and summaries contain no jids, so every block's head is read.
    let mut heads = ask("tag search through every head", SCANS, &|_| {
        (
            "events_list",
            call_args([("tag", Value::from("salt/job/19991231*/ret/*")), ("limit", Value::from(50))]),
            0,
        )
    })?;
    heads.scanned = Some(entries);
    let of_minion = ask("newest 50 of a minion", LISTS, &|_| {
        (
            "events_list",
            call_args([("minion", Value::from(minion.as_str())), ("limit", Value::from(50))]),
            found,
        )
    })?;
    let of_time = ask("newest 50 before a time", LISTS, &|_| {
        let (until, limit) = (Value::from(until), Value::from(50));
        ("events_list", call_args([("until", until), ("limit", limit)]), newest_events)
    })?;
    let mut raw = |query: &'static str, call: &str, arguments: &dyn Fn() -> Value| {
        let mut nanos = Vec::new();
        for n in 0..WHOLE {
            let started = Instant::now();
            let answer = client.call_raw(call, arguments())?;
            nanos.push(u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX));
            let good = msgpack::elements(&answer).nth(1).and_then(msgpack::as_bool);
            ensure!(good == Some(true), "ask for {call}");
            progress.show(|| format!("{query}: {n} of {WHOLE}"));
        }
        nanos.sort_unstable();
        anyhow::Ok(QueryTimes { query, nanos, scanned: None })
    };
    let wide = raw("returns of a wide job", "get_jid", &|| call_args([("jid", WIDE.into())]))?;
    let every = raw("summaries of all jobs", "get_jids", &|| call_args([]))?;
    let process = by_command_line(&subject, newest)?;
    let rss = subject.rss_peak_mb();
    let quiet = returner_calls(&subject, args.common.seed, 0, "returner, quiet")?;
    let (cleaning, dropped) = returner_calls_cleaning(&subject, args.common.seed)?;
    progress.done();
    let cost = subject.stop()?;

    let mut out = Output::new(global.output);
    let all = [list, process, cold, one, wide, every, scan, heads, of_minion, of_time, quiet, cleaning];
    if out.format == Format::Table {
        let mut table = Table::new([
            Column::left("QUERY"),
            Column::right("RUNS"),
            Column::right("P50 MS"),
            Column::right("P99 MS"),
            Column::right("MAX MS"),
            Column::right("ENTRIES/S"),
        ]);
        let rows = all.iter().map(|times| {
            vec![
                times.query.to_owned(),
                times.nanos.len().to_string(),
                format!("{:.3}", times.ms(0.5)),
                format!("{:.3}", times.ms(0.99)),
                format!("{:.3}", times.ms(1.0)),
                times.per_s().map(thousands).unwrap_or_default(),
            ]
        });
        table.print(&mut out, &rows.collect::<Vec<_>>())?;
        out.line(&format!("the wide job has {} minions; {dropped} segments were dropped", args.minions))?;
        out.line(&format!(
            "{} jobs, {} events, {:.1} bytes of disk each, peak memory {rss:.0} MB",
            thousands(args.jobs as f64),
            thousands(entries as f64),
            cost.disk_bytes as f64 / entries as f64
        ))?;
    } else {
        let [list, process, cold, one, wide, every, scan, heads, of_minion, of_time, quiet, cleaning] =
            all.each_ref().map(QueryTimes::json);
        out.json(&json!({
            "jobs": args.jobs,
            "entries": entries,
            "minions_of_wide": args.minions,
            "jobs_list_50": list,
            "jobs_list_50_process": process,
            "jobs_list_50_process_cold": cold,
            "get_jid": one,
            "get_jid_wide": wide,
            "get_jids": every,
            "tag_scan": scan,
            "tag_scan_heads": heads,
            "minion_search": of_minion,
            "time_search": of_time,
            "returner_quiet": quiet,
            "returner_cleaning": cleaning,
            "segments_let_go": dropped,
            "rss_peak_mb": rounded(rss, 1),
            "disk_bytes_per_entry": rounded(cost.disk_bytes as f64 / entries as f64, 1),
        }))?;
    }
    Ok(out.flush()?)
}
