//! `saltcellar bench reactor --wire`: latency from an event's arrival to the request at the master, at a given rate.
//!
//! The reactor reads only durable events, so each row includes the latency of a bare `fdatasync`, measured before it.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::{Value as Json, json};

use super::harness::{FakeMaster, Harness, own_cpu_s};
use crate::cli::bench::{rounded, thousands};
use crate::cli::format::output::{Format, Output};
use crate::cli::format::table::{Column, Table};
use crate::model::ReactorSettings;

/// One of this many events matches a rule.
const ONE_OF: [usize; 3] = [100, 10, 1];

const MINIONS: usize = 500;

/// Number of bare syncs for each row.
const SYNCS: u32 = 200;

struct WireRow {
    one_of: usize,
    rate: f64,
    requests: usize,
    /// Requests per second from the first event to the last request.
    requests_per_s: f64,
    ms: [f64; 3],
    sync_ms: [f64; 2],
    cpu_us: f64,
}

pub(super) fn run(out: &mut Output, root: &Path, rate: u32, time: Duration) -> anyhow::Result<()> {
    let rows: Vec<WireRow> =
        ONE_OF.iter().map(|one_of| measure(root, *one_of, rate, time)).collect::<anyhow::Result<_>>()?;
    match out.format {
        Format::Table => {
            let mut table = Table::new([
                Column::left("MATCHING"),
                Column::right("EVENTS/S"),
                Column::right("REQUESTS"),
                Column::right("REQUESTS/S"),
                Column::right("P50 MS"),
                Column::right("P99 MS"),
                Column::right("MAX MS"),
                Column::right("SYNC P50"),
                Column::right("SYNC P99"),
                Column::right("CPU US"),
            ]);
            let lines: Vec<Vec<String>> = rows
                .iter()
                .map(|row| {
                    let mut line = vec![
                        if row.one_of == 1 { "all".to_owned() } else { format!("1 of {}", row.one_of) },
                        thousands(row.rate),
                        row.requests.to_string(),
                        thousands(row.requests_per_s),
                    ];
                    let numbers = row.ms.iter().chain(&row.sync_ms).chain([&row.cpu_us]);
                    line.extend(numbers.map(|number| format!("{number:.2}")));
                    line
                })
                .collect();
            table.print(out, &lines)?;
        }
        Format::Json | Format::Jsonl => out.json(&Json::from(
            rows.iter()
                .map(|row| {
                    json!({
                        "one_of": row.one_of,
                        "events_per_s": rounded(row.rate, 0),
                        "requests": row.requests,
                        "requests_per_s": rounded(row.requests_per_s, 0),
                        "p50_ms": rounded(row.ms[0], 3),
                        "p99_ms": rounded(row.ms[1], 3),
                        "max_ms": rounded(row.ms[2], 3),
                        "sync_p50_ms": rounded(row.sync_ms[0], 3),
                        "sync_p99_ms": rounded(row.sync_ms[1], 3),
                        "cpu_us_per_event": rounded(row.cpu_us, 2),
                    })
                })
                .collect::<Vec<_>>(),
        ))?,
    }
    Ok(())
}

fn measure(root: &Path, one_of: usize, rate: u32, time: Duration) -> anyhow::Result<WireRow> {
    let dir = root.join(format!("wire-{one_of}"));
    std::fs::create_dir_all(&dir).context("create a directory")?;
    let sync_ms = syncs(&dir)?;
    let master = FakeMaster::start(&dir)?;
    let mut harness =
        Harness::start(&dir, &["hot/*"], ReactorSettings::default(), Default::default(), |metrics| {
            master.client(metrics)
        })?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of events")]
    let events = (f64::from(rate) * time.as_secs_f64()) as usize;
    let each = Duration::from_secs(1) / rate.max(1);
    // The first reaction connects to the master and compiles the template.
    harness.submit(&[("hot/first".to_owned(), "web0".to_owned())])?;
    harness.wait_until_done()?;
    let cpu = own_cpu_s()?;
    let started = Instant::now();
    let mut sent = Vec::with_capacity(events);
    for n in 0..events {
        let due = started + each * u32::try_from(n).unwrap_or(u32::MAX);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let kind = if n % one_of == 0 { "hot" } else { "cold" };
        // Latency counts from the due time, even if the sender is late.
        sent.push(due);
        harness.submit(&[(format!("{kind}/{n}"), format!("web{}", n % MINIONS))])?;
    }
    let rate = events as f64 / started.elapsed().as_secs_f64();
    harness.wait_until_done()?;
    let cpu_us = (own_cpu_s()? - cpu) * 1e6 / events.max(1) as f64;
    harness.stop();
    let requests = master.requests.lock();
    let mut took: Vec<f64> = requests
        .iter()
        .filter_map(|(tag, at)| {
            let due = sent.get(tag.strip_prefix("hot/")?.parse::<usize>().ok()?)?;
            Some(at.saturating_duration_since(*due).as_secs_f64() * 1e3)
        })
        .collect();
    let wanted = events.div_ceil(one_of);
    anyhow::ensure!(took.len() == wanted, "{} of {wanted} requests reached the master", took.len());
    let last = requests.iter().map(|(_, at)| *at).max().unwrap_or(started);
    let requests_per_s = took.len() as f64 / last.saturating_duration_since(started).as_secs_f64().max(1e-9);
    took.sort_by(f64::total_cmp);
    let ms = [500, 990, 1000].map(|thousandth| quantile(&took, thousandth));
    Ok(WireRow { one_of, rate, requests: took.len(), requests_per_s, ms, sync_ms, cpu_us })
}

/// The quantile of sorted values, in thousandths.
pub(super) fn quantile(sorted: &[f64], thousandth: usize) -> f64 {
    let index = sorted.len().saturating_sub(1) * thousandth / 1000;
    sorted.get(index).copied().unwrap_or(0.0)
}

/// Latency of writing and syncing 4 KB: the median and the 99th percentile, in milliseconds.
fn syncs(dir: &Path) -> anyhow::Result<[f64; 2]> {
    let path = dir.join("baseline");
    let mut file = File::create(&path).context("create the baseline's file")?;
    let mut took = Vec::new();
    for _ in 0..SYNCS {
        file.write_all(&[0x5a; 4096]).context("write the baseline")?;
        let started = Instant::now();
        file.sync_data().context("sync the baseline")?;
        took.push(started.elapsed().as_secs_f64() * 1e3);
    }
    std::fs::remove_file(&path).context("remove the baseline")?;
    took.sort_by(f64::total_cmp);
    Ok([quantile(&took, 500), quantile(&took, 990)])
}
