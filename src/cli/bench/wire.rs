//! `saltcellar bench reactor --wire`: from an event's arrival to the request at the master, at a given rate.
//!
//! An event is on disk before anybody looks at it, so no request is faster than the disk: each row has beside it what a bare
//! `fdatasync` took there a moment before.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::{Value as Json, json};

use super::super::output::{Format, Output};
use super::super::table::{Column, Table};
use super::stage::{PlayedMaster, Stage, own_cpu_s};
use super::{rounded, thousands};
use crate::model::ReactorSettings;

/// One in so many events is reacted to.
const ONE_OF: [usize; 3] = [100, 10, 1];

/// Minions that the events are about.
const MINIONS: usize = 500;

/// Bare syncs beside each row.
const SYNCS: u32 = 200;

/// What was measured.
struct Row {
    one_of: usize,
    rate: f64,
    requests: usize,
    /// Requests per second from the first event's time to the last request.
    requests_per_s: f64,
    ms: [f64; 3],
    sync_ms: [f64; 2],
    cpu_us: f64,
}

pub(super) fn run(out: &mut Output, root: &Path, rate: u32, time: Duration) -> anyhow::Result<()> {
    let rows: Vec<Row> =
        ONE_OF.iter().map(|one_of| measure(root, *one_of, rate, time)).collect::<anyhow::Result<_>>()?;
    match out.format {
        Format::Table => {
            let mut table = Table::new([
                Column::left("REACTED TO"),
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

fn measure(root: &Path, one_of: usize, rate: u32, time: Duration) -> anyhow::Result<Row> {
    let dir = root.join(format!("wire-{one_of}"));
    std::fs::create_dir_all(&dir).context("make a directory")?;
    let sync_ms = syncs(&dir)?;
    let master = PlayedMaster::start(&dir)?;
    let mut stage =
        Stage::start(&dir, &["hot/*"], ReactorSettings::default(), Default::default(), |metrics| {
            master.client(metrics)
        })?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of events")]
    let events = (f64::from(rate) * time.as_secs_f64()) as usize;
    let each = Duration::from_secs(1) / rate.max(1);
    // The first reaction connects and compiles; the master has long been asked something when a day's events come.
    stage.tell(&[("hot/first".to_owned(), "web0".to_owned())])?;
    stage.wait_until_through()?;
    let cpu = own_cpu_s()?;
    let began = Instant::now();
    let mut sent = Vec::with_capacity(events);
    for n in 0..events {
        let due = began + each * u32::try_from(n).unwrap_or(u32::MAX);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let kind = if n % one_of == 0 { "hot" } else { "cold" };
        // Late is late: a sender that could not keep its time counts as part of the way.
        sent.push(due);
        stage.tell(&[(format!("{kind}/{n}"), format!("web{}", n % MINIONS))])?;
    }
    let rate = events as f64 / began.elapsed().as_secs_f64();
    stage.wait_until_through()?;
    let cpu_us = (own_cpu_s()? - cpu) * 1e6 / events.max(1) as f64;
    stage.stop();
    let asked = master.asked.lock().unwrap_or_else(PoisonError::into_inner);
    let mut took: Vec<f64> = asked
        .iter()
        .filter_map(|(tag, at)| {
            let due = sent.get(tag.strip_prefix("hot/")?.parse::<usize>().ok()?)?;
            Some(at.saturating_duration_since(*due).as_secs_f64() * 1e3)
        })
        .collect();
    let wanted = events.div_ceil(one_of);
    anyhow::ensure!(took.len() == wanted, "{} of {wanted} requests reached the master", took.len());
    let last = asked.iter().map(|(_, at)| *at).max().unwrap_or(began);
    let requests_per_s = took.len() as f64 / last.saturating_duration_since(began).as_secs_f64().max(1e-9);
    took.sort_by(f64::total_cmp);
    let ms = [500, 990, 1000].map(|thousandth| share(&took, thousandth));
    Ok(Row { one_of, rate, requests: took.len(), requests_per_s, ms, sync_ms, cpu_us })
}

/// A value of a sorted list.
pub(super) fn share(sorted: &[f64], thousandth: usize) -> f64 {
    let place = sorted.len().saturating_sub(1) * thousandth / 1000;
    sorted.get(place).copied().unwrap_or(0.0)
}

/// What it takes to write 4 KB and have them on disk: the median and the 99th percentile, in milliseconds.
fn syncs(dir: &Path) -> anyhow::Result<[f64; 2]> {
    let path = dir.join("yardstick");
    let mut file = File::create(&path).context("make the yardstick's file")?;
    let mut took = Vec::new();
    for _ in 0..SYNCS {
        file.write_all(&[0x5a; 4096]).context("write the yardstick")?;
        let began = Instant::now();
        file.sync_data().context("sync the yardstick")?;
        took.push(began.elapsed().as_secs_f64() * 1e3);
    }
    std::fs::remove_file(&path).context("remove the yardstick")?;
    took.sort_by(f64::total_cmp);
    Ok([share(&took, 500), share(&took, 990)])
}
