//! `saltcellar bench reactor --soak`: does the reactor's memory stay as it is, however many events come?
//!
//! Every event has a tag and a minion of its own. Some rules take some: plainly, once per minion, when it is quiet, within a budget;
//! most events concern nobody. The first quarter fills what is bounded (jobs and minions that are remembered, the log, pools of
//! threads). From the second quarter to the last the median may grow by [`GROWTH_MB`] and no more; single looks go up and down with
//! the segments that are being sealed.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::json;

use super::super::output::{Format, Output};
use super::stage::{Stage, own_rss_mb};
use super::{rounded, thousands};
use crate::master::{Answer, Call, MasterError};
use crate::model::{ClassRules, Rate, ReactorSettings, RuleOptions};
use crate::reactor::run::Ask;
use crate::store::{Classes, Limits};

/// Growth that is allowed: what an allocator keeps for later, and a table that doubles.
const GROWTH_MB: f64 = 48.0;

/// Looks at the memory.
const LOOKS: u64 = 20;

/// Events in a batch, of which one each is taken by the rules below.
const BATCH: u64 = 50;

/// Bytes of each log that are kept, so few that its segments come and go from early on; and those of a segment.
const LOG_BYTES: u64 = 32 * 1024 * 1024;
const SEGMENT_BYTES: u64 = 8 * 1024 * 1024;

/// A master that answers at once.
struct Yes;

impl Ask for Yes {
    fn ask(&self, _call: &Call, jid: &str, _patience: Duration) -> Result<Answer, MasterError> {
        Ok(Answer::Published { jid: jid.to_owned(), minions: vec!["web1".to_owned()], missing: Vec::new() })
    }
}

fn rule(pattern: &str, change: impl FnOnce(&mut RuleOptions)) -> Arc<RuleOptions> {
    let mut options = RuleOptions { rule: pattern.into(), ..RuleOptions::default() };
    change(&mut options);
    Arc::new(options)
}

pub(super) fn run(out: &mut Output, root: &Path, events: u64) -> anyhow::Result<()> {
    let dir = root.join("soak");
    std::fs::create_dir_all(&dir).context("make a directory")?;
    let settings = ReactorSettings {
        rules: vec![
            rule("once/*", |options| options.once_per = Some(Duration::from_secs(3600))),
            rule("quiet/*", |options| options.debounce = Some(Duration::from_millis(5))),
            rule("budget/*", |options| {
                options.budget = Some(Rate { times: 1000, per: Duration::from_secs(1) });
            }),
        ],
        ..ReactorSettings::default()
    };
    let mut classes = [ClassRules::jobs(), ClassRules::events()];
    for class in &mut classes {
        class.keep.bytes = Some(LOG_BYTES);
    }
    let patterns = ["plain/*", "once/*", "quiet/*", "budget/*"];
    let limits = Limits { segment_bytes_max: SEGMENT_BYTES, ..Limits::default() };
    let classes = Classes::new(&classes);
    let mut stage = Stage::start(&dir, &patterns, settings, (limits, classes), |_| Arc::new(Yes))?;
    let began = Instant::now();
    let mut looks = Vec::new();
    let step = (events / LOOKS).max(BATCH);
    let (mut told, mut next) = (0, step);
    while told < events {
        let batch: Vec<(String, String)> = (told..told + BATCH)
            .map(|n| match patterns.get(usize::try_from(n % BATCH).unwrap_or(0)) {
                Some(pattern) => (pattern.replace('*', &n.to_string()), format!("minion{n}")),
                None => (format!("salt/beacon/minion{n}/load/{n}"), format!("minion{n}")),
            })
            .collect();
        stage.tell(&batch)?;
        told += BATCH;
        // The reactor reads the log at its own pace; here it is held up to it.
        stage.wait("the reactor", |stage| stage.handle.status().behind < 100_000)?;
        if told >= next || told >= events {
            next += step;
            // What is under way takes memory, too, and is no growth.
            stage.wait_until_through()?;
            let mb = own_rss_mb()?;
            let metrics = &stage.metrics;
            let left =
                [&metrics.reactions_left_once, &metrics.reactions_left_quiet, &metrics.reactions_left_budget];
            let left: u64 = left.iter().map(|counter| counter.get()).sum();
            let done = metrics.reactions_done.get();
            let per_s = told as f64 / began.elapsed().as_secs_f64();
            match out.format {
                Format::Table => out.line(&format!(
                    "{:>12} events  {:>9}/s  {done:>9} reactions  {left:>8} left out  {mb:>7.1} MB",
                    thousands(told as f64),
                    thousands(per_s)
                ))?,
                Format::Json | Format::Jsonl => out.json(&json!({
                    "events": told, "events_per_s": rounded(per_s, 0), "reactions": done, "left_out": left,
                    "rss_mb": rounded(mb, 1),
                }))?,
            }
            out.flush()?;
            looks.push(mb);
        }
    }
    let metrics = &stage.metrics;
    let through = [
        &metrics.reactions_done,
        &metrics.reactions_left_once,
        &metrics.reactions_left_quiet,
        &metrics.reactions_left_budget,
    ];
    let through: u64 = through.iter().map(|counter| counter.get()).sum();
    let taken = told / BATCH * patterns.len() as u64;
    stage.stop();
    ensure!(through == taken, "{taken} events were to be reacted to, and {through} are accounted for");
    let quarter = looks.len() / 4;
    let before = median(looks.get(quarter..2 * quarter).unwrap_or_default());
    let after = median(looks.get(looks.len() - quarter..).unwrap_or_default());
    ensure!(
        after - before <= GROWTH_MB,
        "memory grew from {before:.1} MB in the second quarter of {told} events to {after:.1} in the last, by more than {GROWTH_MB:.0}"
    );
    Ok(())
}

fn median(looks: &[f64]) -> f64 {
    let mut sorted = looks.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}
