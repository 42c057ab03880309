//! `saltcellar bench reactor --backlog`: events that come while the master is down.
//!
//! All of them match a rule. With `--check` the peak of the process's memory may be [`PEAK_MB`]. Once the master is back, each event is reacted to once, and
//! those of a minion in order.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::json;

use super::super::output::{Format, Output};
use super::stage::{Stage, peak_rss_mb};
use super::{rounded, thousands};
use crate::master::{Answer, Call, MasterError};
use crate::model::ReactorSettings;
use crate::reactor::run::Ask;
use crate::sls::Value;

/// Memory that the process may have at most.
const PEAK_MB: f64 = 200.0;

/// Minions that the events are about.
const MINIONS: u64 = 1000;

/// Events in a batch.
const BATCH: u64 = 100;

/// What a master was asked, by minion.
#[derive(Default)]
struct Asked {
    last: HashMap<String, u64>,
    count: u64,
    /// Requests that came again, or too early.
    odd: Vec<String>,
}

/// A master that is down until it is started.
#[derive(Default)]
struct Down {
    is_up: AtomicBool,
    asked: Mutex<Asked>,
}

impl Ask for Down {
    fn ask(&self, call: &Call, jid: &str, _patience: Duration) -> Result<Answer, MasterError> {
        self.reach()?;
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let minion = text(call.load.get("tgt"));
        let tag = text(call.load.get("arg").and_then(Value::as_list).and_then(|arg| arg.first()));
        let number = tag.strip_prefix("hot/").and_then(|n| n.parse().ok()).unwrap_or(0);
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.count += 1;
        let last = asked.last.insert(minion.clone(), number);
        if last.is_some_and(|last| last >= number) {
            asked.odd.push(format!("{tag} of {minion} after {last:?}"));
        }
        drop(asked);
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
    std::fs::create_dir_all(&dir).context("make a directory")?;
    let master = Arc::new(Down::default());
    let ask = master.clone();
    let mut stage = Stage::start(&dir, &["hot/*"], ReactorSettings::default(), Default::default(), |_| ask)?;
    let began = Instant::now();
    let mut told = 0;
    while told < events {
        let batch: Vec<(String, String)> = (told..events.min(told + BATCH))
            .map(|n| (format!("hot/{}", n + 1), format!("web{}", n % MINIONS)))
            .collect();
        told += batch.len() as u64;
        stage.tell(&batch)?;
    }
    stage.wait_until_read()?;
    let (waiting, told_s) = (stage.handle.status().waiting, began.elapsed().as_secs_f64());
    let down_mb = peak_rss_mb()?;
    let back = Instant::now();
    master.is_up.store(true, Ordering::Relaxed);
    loop {
        let open = stage.handle.status().open;
        if open == 0 {
            break;
        }
        // Progress has a limit, not all of it together.
        stage.wait("reactions", |stage| stage.handle.status().open < open)?;
        std::thread::sleep(Duration::from_millis(10));
    }
    stage.wait_until_through()?;
    let (took, peak) = (back.elapsed().as_secs_f64(), peak_rss_mb()?);
    let left = stage.metrics.reactions_left_old.get();
    stage.stop();
    let per_s = events as f64 / took.max(1e-9);
    match out.format {
        Format::Table => out.line(&format!(
            "{} events waited ({told_s:.1} s), {down_mb:.1} MB; then {}/s, {peak:.1} MB",
            thousands(waiting as f64),
            thousands(per_s)
        ))?,
        Format::Json | Format::Jsonl => out.json(&json!({
            "events": events, "waiting": waiting, "down_peak_mb": rounded(down_mb, 1), "events_per_s": rounded(per_s, 0),
            "peak_mb": rounded(peak, 1),
        }))?,
    }
    out.flush()?;
    let asked = master.asked.lock().unwrap_or_else(PoisonError::into_inner);
    ensure!(
        asked.odd.is_empty(),
        "{} requests were repeated or out of order: {:?}",
        asked.odd.len(),
        asked.odd.first()
    );
    ensure!(
        asked.count + left == events,
        "{} of {events} events led to a request, {left} were too old",
        asked.count
    );
    ensure!(!check || peak <= PEAK_MB, "memory was {peak:.1} MB at most, more than {PEAK_MB:.0}");
    Ok(())
}
