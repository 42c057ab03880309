//! `saltcellar-bench query`: latency of queries to a store with many jobs.

mod limited;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use saltcellar::base::metrics::names;
use saltcellar_testkit::Random;
use saltcellar_testkit::load::driver::{LoadSpec, run_load};
use saltcellar_testkit::load::template::Encoding;
use saltcellar_testkit::load::{jobs, returns};
use saltcellar_testkit::usage::Durations;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::calls::{self, Daemon, Events, Rows};
use crate::child::{Subject, TIMEOUT};
use crate::options::{Common, Options};
use crate::report::{Report, Row, rounded, set, thousands};

/// Number of runs of each query.
const LISTS: u64 = 300;
const LOOKUPS: u64 = 3_000;
const SCANS: u64 = 7;
const WHOLE: u64 = 15;
const STARTS: u64 = 5;

/// Number and rate of `returner` calls, fewer for a small store, while retention drops expired jobs, which it does every five
/// seconds.
const CALLS: u64 = 16_000;
const CALLS_PER_S: f64 = 2_000.0;

#[derive(clap::Args)]
pub(crate) struct Args {
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
    /// Time after which the fewest runs of each search by a limited token are enough
    #[arg(long, value_name = "SECONDS", default_value_t = 4.0)]
    limited_seconds: f64,
}

/// What the columns of limited tokens mean.
const MEANING_OF_LIMITED: &str = "limited tokens: medians; FIRST is the first such search of a token, SAME ENTRIES an unlimited token that selects the same entries with a filter \
    (of jobs: the list that ends at the same job), NO FILTER the same request by an unlimited token, which looks at fewer entries for a full page, or has a longer answer; ratios are without the time of a \
    request that finds nothing";

/// The daemon with its filled store, and the results.
struct QueryBench<'a> {
    args: &'a Args,
    program: PathBuf,
    config: PathBuf,
    report: Report,
    scratch: TempDir,
    subject: Subject,
    daemon: Daemon,
    /// Each with its key in JSON.
    rows: Vec<(&'static str, Row)>,
}

/// The jid of the additional job with many minions.
const WIDE: &str = "20261120235959000001";

fn store_wide(daemon: &mut Daemon, minions: u64) -> anyhow::Result<()> {
    let ids: Vec<_> = (0..minions).map(|n| format!("web{n:06}")).collect();

    let load = json!({
        "cmd": "publish", "jid": WIDE, "fun": "test.ping", "arg": [], "tgt": "*", "tgt_type": "glob", "user": "root",
    });

    daemon.ask(
        "save_load",
        &json!({ "jid": WIDE, "load": load, "minions": ids }),
    )?;

    let event = |(n, id): (usize, &String)| {
        let data = json!({
            "cmd": "_return", "id": id, "jid": WIDE, "fun": "test.ping", "fun_args": [], "retcode": 0, "success": true,
            "return": { "uptime": n, "release": "Linux 6.12" },
        });
        json!({ "tag": format!("salt/job/{WIDE}/ret/{id}"), "data": data })
    };

    let events: Vec<_> = ids.iter().enumerate().map(event).collect();

    // In calls of a size that the daemon accepts.
    for events in events.chunks(500) {
        daemon.ask("event_return", &json!({ "events": events }))?;
    }
    Ok(())
}

/// Key and title of a query.
type Query = (&'static str, &'static str);

impl QueryBench<'_> {
    /// Adds the durations of a query. `scanned` is the number of entries that each run scans.
    fn add(&mut self, (key, title): Query, durations: &Durations, scanned: Option<u64>) {
        let row = Row::default()
            .label("QUERY", title)
            .count("RUNS", "asked", durations.count() as u64)
            .latency_and_max(durations);

        // Entries a second compare scans of stores of different sizes.
        let rate = scanned
            .zip(durations.ms(0.5))
            .map(|(entries, ms)| entries as f64 / ms * 1e3);

        let key_of_rate = if rate.is_some() { "entries_per_s" } else { "" };
        self.rows
            .push((key, row.number("ENTRIES/S", key_of_rate, 0, rate)));
    }

    /// Measures a call whose arguments depend on the run. Its response must contain this number of
    /// rows; without `rows` it is not checked.
    fn ask(
        &mut self,
        query: Query,
        (call, runs): (&str, u64),
        rows: Option<(Rows, usize)>,
        arguments: impl Fn(u64) -> Json,
    ) -> anyhow::Result<()> {
        let mut durations = Vec::new();

        for n in 0..runs {
            let arguments = arguments(n);
            let started = Instant::now();
            let answer = self.daemon.ask(call, &arguments)?;
            // Before the check, which is no part of the call.
            durations.push(started.elapsed());

            if let Some((count, rows)) = rows {
                let found = count(call, &answer)?;
                ensure!(
                    found == rows,
                    "check the response of {call}: {found} rows, expected {rows}"
                );
            }

            self.report
                .progress(|| format!("{}: {n} of {runs}", query.1))?;
        }

        let is_scan = query.0.starts_with("tag_scan");
        self.add(
            query,
            &durations.into_iter().collect(),
            is_scan.then_some(self.entries()),
        );
        Ok(())
    }

    /// Measures a search of events that finds `rows` events.
    fn search_events(
        &mut self,
        query: Query,
        runs: u64,
        rows: usize,
        args: &Json,
    ) -> anyhow::Result<()> {
        let rows = Some((calls::events as Rows, rows));
        self.ask(query, ("events_list", runs), rows, |_| args.clone())
    }

    fn entries(&self) -> u64 {
        self.args.jobs * (self.args.returns + 1)
    }

    /// A minion of the load, and a time in the middle of the load before which at least 60 events arrived, if there are as many.
    fn middle_event(&mut self) -> anyhow::Result<(String, i64)> {
        let before = self.entries() / 2 + 60;
        let page: Events = self
            .daemon
            .read("events_list", &json!({ "before": before, "limit": 60 }))?;

        let minion = page.events.iter().find_map(|event| event.minion.clone());
        // The latest: connections store concurrently, so timestamps do not always follow the order
        // of the log.
        let latest = page.events.iter().map(|event| event.time).max();

        Ok((
            minion.context("find a minion")?,
            latest.context("find a time")?.saturating_add(1),
        ))
    }

    fn jobs_list(&self, rows: usize) -> anyhow::Result<Duration> {
        let started = Instant::now();
        let output = std::process::Command::new(&self.program)
            .args([
                "jobs", "list", "--limit", "50", "--output", "jsonl", "--socket",
            ])
            .arg(&self.subject.socket)
            .output()
            .context("run jobs list")?;
        let duration = started.elapsed();

        let found = String::from_utf8_lossy(&output.stdout).lines().count();

        ensure!(
            found == rows,
            "check what jobs list prints: {found} lines, expected {rows}"
        );

        Ok(duration)
    }

    /// Restarts the daemon without its store in the page cache.
    fn restart_cold(&mut self) -> anyhow::Result<()> {
        self.subject.stop()?;
        evict_pages(self.scratch.path()).context("evict the store from the page cache")?;
        self.subject = Subject::daemon(&self.program, &self.scratch, Some(&self.config))?;
        Ok(())
    }

    fn calls(&self) -> u64 {
        CALLS.min(self.args.jobs)
    }

    /// `returner` calls at a rate that leaves the daemon mostly idle.
    fn returner_calls(&mut self, query: Query, first: u64) -> anyhow::Result<()> {
        let generator = returns(self.args.common.seed).generator(Encoding::Returner);
        let spec = LoadSpec {
            first,
            rate: Some(CALLS_PER_S),
            ..LoadSpec::new(&generator, self.calls())
        };
        let result = run_load(&self.subject.socket, &spec, |_, _| Ok(()))?;
        self.add(query, &result.latencies, None);
        Ok(())
    }

    fn segments_dropped(&mut self) -> anyhow::Result<u64> {
        Ok(self
            .daemon
            .status()?
            .counters
            .get(names::segments_dropped)
            .copied()
            .unwrap_or(0))
    }
}

/// Writes a configuration with an HTTP listener, for searches by limited tokens.
fn with_listener(scratch: &TempDir) -> anyhow::Result<PathBuf> {
    let path = scratch.path().join("query.yaml");
    std::fs::write(&path, "http: {listen: '127.0.0.1:0'}\n").context("write a configuration")?;
    Ok(path)
}

fn evict_pages(dir: &Path) -> std::io::Result<()> {
    for item in std::fs::read_dir(dir)? {
        let (path, kind) = item.and_then(|item| Ok((item.path(), item.file_type()?)))?;
        if kind.is_dir() {
            evict_pages(&path)?;
        } else if kind.is_file() {
            let file = std::fs::File::open(&path)?;
            // Only clean pages can be dropped.
            file.sync_all()?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}

pub(crate) fn run(options: &Options, args: &Args) -> anyhow::Result<()> {
    let scratch = args.common.scratch()?;

    let config = match &options.config {
        Some(config) => config.clone(),
        None => with_listener(&scratch)?,
    };

    let program = options.program()?;
    let subject = Subject::daemon(&program, &scratch, Some(&config))?;
    let mut report = Report::new(options);

    // A job is an event for its start and one for each return.
    let each = args.returns + 1;
    let entries = args.jobs * each;
    let generator = jobs(args.common.seed, args.returns).generator(Encoding::EventReturn);

    let fill = LoadSpec {
        connections: 4,
        in_flight: 8,
        batch: 256,
        ..LoadSpec::new(&generator, entries)
    };

    run_load(&subject.socket, &fill, |answered, _| {
        report.progress(|| format!("storing: {answered} of {entries} events"))
    })?;

    let mut daemon = Daemon::connect(&subject.socket, TIMEOUT)?;
    store_wide(&mut daemon, args.minions)?;
    // Sealing would disturb the first queries.
    subject.process.wait_until_idle(TIMEOUT)?;

    let mut bench = QueryBench {
        args,
        program,
        config,
        report,
        scratch,
        subject,
        daemon,
        rows: Vec::new(),
    };

    let newest = usize::try_from(args.jobs.min(50)).unwrap_or(50);
    let newest_events = usize::try_from(entries.min(50)).unwrap_or(50);

    // First, because later queries would bring the store into the page cache.
    let mut cold = Vec::new();

    for _ in 0..STARTS {
        bench.restart_cold()?;
        cold.push(bench.jobs_list(newest)?);
    }
    // The restarts closed the first connection.
    bench.daemon = Daemon::connect(&bench.subject.socket, TIMEOUT)?;

    let query = ("jobs_list_50", "newest 50 jobs");

    bench.ask(
        query,
        ("jobs_list", LISTS),
        Some((calls::jobs, newest)),
        |_| json!({ "limit": 50 }),
    )?;

    // The whole program as a person calls it, with its start.
    let process = (0..WHOLE)
        .map(|_| bench.jobs_list(newest))
        .collect::<anyhow::Result<Vec<_>>>()?;

    bench.add(
        ("jobs_list_50_process", "newest 50 jobs, a process"),
        &process.into_iter().collect(),
        None,
    );

    let query = (
        "jobs_list_50_process_cold",
        "newest 50 jobs, a process, cold",
    );
    bench.add(query, &cold.into_iter().collect(), None);

    // A random job each time, because the cache of one job must not be measured.
    let answers = usize::try_from(args.returns).ok();

    bench.ask(
        ("get_jid", "one job's returns"),
        ("get_jid", LOOKUPS),
        answers.map(|answers| (calls::pairs as Rows, answers)),
        |n| {
            let job = Random::of(args.common.seed, n).below(args.jobs);
            json!({ "jid": generator.jid(job * each) })
        },
    )?;

    bench.ask(
        ("get_jid_wide", "returns of a wide job"),
        ("get_jid", WHOLE),
        None,
        |_| json!({ "jid": WIDE }),
    )?;

    bench.ask(
        ("get_jids", "summaries of all jobs"),
        ("get_jids", WHOLE),
        None,
        |_| json!({}),
    )?;

    // Only the jid distinguishes the second tag, and summaries contain no jids, so every block's
    // head is read.
    for (query, tag) in [
        (("tag_scan", "tag search, nothing found"), "*/ret/absent-*"),
        (
            ("tag_scan_heads", "tag search through every head"),
            "salt/job/19991231*/ret/*",
        ),
    ] {
        bench.search_events(query, SCANS, 0, &json!({ "limit": 50, "tag": tag }))?;
    }

    let (minion, until) = bench.middle_event()?;

    let of_minion = json!({ "limit": 50, "minion": minion });
    let found: Events = bench.daemon.read("events_list", &of_minion)?;

    let query = ("minion_search", "newest 50 of a minion");
    bench.search_events(query, LISTS, found.events.len(), &of_minion)?;

    let query = ("time_search", "newest 50 before a time");
    let before = json!({ "limit": 50, "until": until });
    bench.search_events(query, LISTS, newest_events, &before)?;

    // The peak of the queries, without the searches over HTTP below.
    let rss = bench.subject.rss_peak_mb()?;

    let limited = bench.limited_searches()?;

    bench.returner_calls(("returner_quiet", "returner, quiet"), 0)?;

    // The same while retention drops all stored jobs.
    let dropped = bench.segments_dropped()?;
    bench
        .daemon
        .ask("clean_old_jobs", &json!({ "keep_jobs_seconds": 1 }))?;

    bench.returner_calls(
        ("returner_cleaning", "returner, jobs dropped"),
        bench.calls(),
    )?;
    let dropped = bench.segments_dropped()? - dropped;

    let QueryBench {
        mut report,
        mut subject,
        rows,
        scratch: _scratch,
        daemon: _daemon,
        ..
    } = bench;

    let disk = subject.stop()?.disk_bytes as f64 / entries as f64;

    let (keys, rows): (Vec<_>, Vec<_>) = rows.into_iter().unzip();

    let mut document =
        json!({ "jobs": args.jobs, "entries": entries, "minions_of_wide": args.minions });

    for (key, row) in keys.into_iter().zip(report.rows(rows)?) {
        set(&mut document, key, row);
    }

    let mut of_limited = Report::new(options);
    let limited = of_limited.rows(limited)?;

    let limited_note = if limited.is_empty() {
        "the configuration contains no `http.listen`: searches by limited tokens were not measured"
    } else {
        MEANING_OF_LIMITED
    };

    set(&mut document, "limited", limited);
    set(&mut document, "segments_let_go", dropped);
    set(&mut document, "rss_peak_mb", rounded(rss, 1));
    set(&mut document, "disk_bytes_per_entry", rounded(disk, 1));

    report.document(&document)?;

    report.note(&format!(
        "the wide job has {} minions; {dropped} segments were dropped",
        args.minions
    ))?;
    report.note(limited_note)?;

    // The notes are for people; JSON output contains the same numbers as fields.
    let [stored_jobs, events] = [args.jobs, entries].map(|n| thousands(n as f64));
    report.note(&format!(
        "{stored_jobs} jobs, {events} events, {disk:.1} bytes of disk each, peak memory {rss:.0} MB"
    ))
}
