//! `saltcellar bench reactor --backlog`: events that arrive while the master is down.
//!
//! All of them match a rule. Once the master is up, each event must lead to one request, in order for each minion. With
//! `--check`, peak memory must not exceed [`PEAK_MB`].

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use parking_lot::Mutex;
use serde_json::json;

use super::harness::{Harness, peak_rss_mb};
use crate::cli::bench::{rounded, thousands};
use crate::cli::format::output::{Format, Output};
use crate::master::{Answer, Call, MasterError};
use crate::model::ReactorSettings;
use crate::reactor::run::Executor;
use crate::sls::Value;

/// Limit of peak memory, in megabytes.
const PEAK_MB: f64 = 200.0;

const MINIONS: u64 = 1000;

/// Events in a batch.
const BATCH: u64 = 100;

/// Requests that the master received.
#[derive(Default)]
struct Requests {
    /// Number of the last event, by minion.
    last: HashMap<String, u64>,
    count: u64,
    /// Requests that were repeated or out of order.
    violations: Vec<String>,
}

/// A master that is down until it is started.
#[derive(Default)]
struct StoppedMaster {
    is_up: AtomicBool,
    requests: Mutex<Requests>,
}

impl Executor for StoppedMaster {
    fn ask(&self, call: &Call, jid: &str, _timeout: Duration) -> Result<Answer, MasterError> {
        self.reach()?;
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let minion = text(call.load.get("tgt"));
        let tag = text(call.load.get("arg").and_then(Value::as_list).and_then(|arg| arg.first()));
        let number = tag.strip_prefix("hot/").and_then(|n| n.parse().ok()).unwrap_or(0);
        let mut requests = self.requests.lock();
        requests.count += 1;
        let last = requests.last.insert(minion.clone(), number);
        if last.is_some_and(|last| last >= number) {
            requests.violations.push(format!("{tag} of {minion} after {last:?}"));
        }
        drop(requests);
        Ok(Answer::Published { jid: jid.to_owned(), minions: vec![minion], missing: Vec::new() })
    }

    fn reach(&self) -> Result<(), MasterError> {
        if self.is_up.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(MasterError::Unreachable { place: "the benchmark".to_owned(), why: "it is down".to_owned() })
    }
}

pub(super) fn run(out: &mut Output, root: &Path, events: u64, check: bool) -> anyhow::Result<()> {
    let dir = root.join("backlog");
    std::fs::create_dir_all(&dir).context("create a directory")?;
    let master = Arc::new(StoppedMaster::default());
    let ask = master.clone();
    let mut harness =
        Harness::start(&dir, &["hot/*"], ReactorSettings::default(), Default::default(), |_| ask)?;
    let started = Instant::now();
    let mut sent = 0;
    while sent < events {
        let batch: Vec<(String, String)> = (sent..events.min(sent + BATCH))
            .map(|n| (format!("hot/{}", n + 1), format!("web{}", n % MINIONS)))
            .collect();
        sent += batch.len() as u64;
        harness.submit(&batch)?;
    }
    harness.wait_until_read()?;
    let (waiting, sent_s) = (harness.handle.status().waiting, started.elapsed().as_secs_f64());
    let down_mb = peak_rss_mb()?;
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
    let (took, peak) = (up_at.elapsed().as_secs_f64(), peak_rss_mb()?);
    let left = harness.metrics.reactions_left_old.get();
    harness.stop();
    let per_s = events as f64 / took.max(1e-9);
    match out.format {
        Format::Table => out.line(&format!(
            "{} events waiting ({sent_s:.1} s), {down_mb:.1} MB; then {}/s, {peak:.1} MB",
            thousands(waiting as f64),
            thousands(per_s)
        ))?,
        Format::Json | Format::Jsonl => out.json(&json!({
            "events": events, "waiting": waiting, "down_peak_mb": rounded(down_mb, 1), "events_per_s": rounded(per_s, 0),
            "peak_mb": rounded(peak, 1),
        }))?,
    }
    out.flush()?;
    let requests = master.requests.lock();
    ensure!(
        requests.violations.is_empty(),
        "{} requests were repeated or out of order: {:?}",
        requests.violations.len(),
        requests.violations.first()
    );
    ensure!(
        requests.count + left == events,
        "{} of {events} events caused a request, {left} were too old",
        requests.count
    );
    ensure!(!check || peak <= PEAK_MB, "peak memory {peak:.1} MB exceeds {PEAK_MB:.0} MB");
    Ok(())
}
