//! `saltcellar-bench reactor --backlog`: events that arrive while the master is down.
//!
//! All of them match a rule. Once the master is up, each event must lead to one request, in order
//! for each minion. With `--check`, peak memory must not exceed [`PEAK_MB`].

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::ensure;
use parking_lot::Mutex;
use saltcellar::model::ReactorSettings;
use saltcellar_testkit::usage::memory_mb;

use super::harness::{FakeMaster, Harness};
use crate::report::{Report, Row};

const PEAK_MB: f64 = 200.0;

const MINIONS: u64 = 1000;

const BATCH: u64 = 100;

#[derive(Default)]
struct Requests {
    /// Number of the last event, by minion.
    last: HashMap<String, u64>,
    count: u64,
    /// Requests that were repeated or out of order.
    violations: Vec<String>,
}

pub(crate) fn run(
    report: &mut Report,
    root: &Path,
    events: u64,
    check: bool,
) -> anyhow::Result<()> {
    let requests: Arc<Mutex<Requests>> = Arc::default();
    let recorded = requests.clone();

    let master = FakeMaster::new(false, move |tag: &str, minion: &str| {
        let number = tag
            .strip_prefix("hot/")
            .and_then(|n| n.parse().ok())
            .unwrap_or(0);

        let mut requests = recorded.lock();
        requests.count += 1;

        let last = requests.last.insert(minion.to_owned(), number);
        // Numbers ascend for each minion.
        if last.is_some_and(|last| last >= number) {
            requests
                .violations
                .push(format!("{tag} of {minion} after {last:?}"));
        }
        Ok(())
    });

    // One handle for the reactor, one to bring the master up.
    let ask = master.clone();
    let settings = ReactorSettings::default();

    let mut harness = Harness::start(
        &root.join("backlog"),
        &["hot/*"],
        settings,
        Default::default(),
        |_| ask,
    )?;

    let peak_mb = || memory_mb(std::process::id(), "VmHWM");
    let started = Instant::now();

    let mut sent = 0;

    // In batches, as a busy bus source delivers them.
    while sent < events {
        let batch = sent..events.min(sent + BATCH);
        sent = batch.end;
        harness.submit(batch, |n| {
            (format!("hot/{}", n + 1), format!("web{}", n % MINIONS))
        })?;
    }

    harness.wait_until_read()?;
    let (waiting, sent_s) = (
        harness.handle.status().waiting,
        started.elapsed().as_secs_f64(),
    );
    // The backlog is complete, and nothing was sent yet.
    let down_mb = peak_mb()?;

    let up_at = Instant::now();
    master.is_up.store(true, Ordering::Relaxed);

    loop {
        let open = harness.handle.status().open;
        if open == 0 {
            break;
        }
        // The timeout limits each step, not the whole backlog.
        harness.wait("reactions", |harness| harness.handle.status().open < open)?;
        std::thread::sleep(Duration::from_millis(10));
    }

    harness.wait_until_done()?;

    let took = up_at.elapsed().as_secs_f64();
    let peak = peak_mb()?;

    // Read before the stop takes the harness apart.
    let too_old = harness.metrics.reactions_skipped_too_old.get();

    harness.stop();

    let row = Row::default()
        .count("EVENTS", "events", events)
        .count("WAITING", "waiting", waiting as u64)
        .number("SENT S", "", 1, sent_s)
        .number("DOWN PEAK MB", "down_peak_mb", 1, down_mb)
        .number(
            "EVENTS/S",
            "events_per_s",
            0,
            events as f64 / took.max(1e-9),
        )
        .number("PEAK MB", "peak_mb", 1, peak);

    report.print_row(row)?;

    // Checked after the row is printed, because the numbers explain a failure.
    let requests = requests.lock();
    ensure!(
        requests.violations.is_empty(),
        "{} requests were repeated or out of order: {:?}",
        requests.violations.len(),
        requests.violations.first()
    );
    // Old events are skipped by design, and counted.
    ensure!(
        requests.count + too_old == events,
        "{} of {events} events caused a request, {too_old} were too old",
        requests.count
    );

    ensure!(
        !check || peak <= PEAK_MB,
        "peak memory {peak:.1} MB exceeds {PEAK_MB:.0} MB"
    );
    Ok(())
}
