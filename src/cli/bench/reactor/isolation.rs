//! `saltcellar bench reactor --isolation`: latency of reactions while another rule is throttled, slow or failing.
//!
//! One event in ten matches the measured rule, the others match the other rule; both have the same minions. Latency is the
//! time from the event to the request at the master. With `--check` the command fails if the other rule increases the 99th
//! percentile by more than [`DELAY_MS`].

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use parking_lot::Mutex;
use serde_json::{Value as Json, json};

use super::harness::Harness;
use super::wire::quantile;
use crate::cli::bench::rounded;
use crate::cli::format::output::{Format, Output};
use crate::cli::format::table::{Column, Table};
use crate::master::{Answer, Call, MasterError};
use crate::model::{Rate, ReactorSettings, RuleOptions};
use crate::reactor::run::Executor;
use crate::sls::Value;

/// Limit of the delay caused by another rule, in milliseconds.
const DELAY_MS: f64 = 50.0;

const MINIONS: usize = 500;

/// One of this many events is measured.
const ONE_OF: usize = 10;

/// Duration of a request at a slow master.
const SLOW: Duration = Duration::from_secs(2);

/// State of the other rule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OtherRule {
    Absent,
    Throttled,
    Slow,
    Failing,
}

const OTHERS: [(OtherRule, &str); 4] = [
    (OtherRule::Absent, "absent"),
    (OtherRule::Throttled, "throttled"),
    (OtherRule::Slow, "slow"),
    (OtherRule::Failing, "failing"),
];

/// A master that records the times of requests by the measured rule.
struct TimedMaster {
    other: OtherRule,
    requests: Mutex<Vec<(usize, Instant)>>,
}

impl Executor for TimedMaster {
    fn ask(&self, call: &Call, jid: &str, _timeout: Duration) -> Result<Answer, MasterError> {
        let tag = call.load.get("arg").and_then(Value::as_list).and_then(|arg| arg.first()?.as_str());
        match tag.and_then(|tag| tag.strip_prefix("hot/")?.parse().ok()) {
            Some(n) => self.requests.lock().push((n, Instant::now())),
            None if self.other == OtherRule::Slow => std::thread::sleep(SLOW),
            None if self.other == OtherRule::Failing => {
                let (place, why) = ("the benchmark".to_owned(), "a failing rule".to_owned());
                return Err(MasterError::Refused { place, why });
            }
            None => {}
        }
        Ok(Answer::Published { jid: jid.to_owned(), minions: vec!["web1".to_owned()], missing: Vec::new() })
    }
}

struct IsolationRow {
    name: &'static str,
    /// Median, 99th percentile and maximum in milliseconds.
    ms: [f64; 3],
}

pub(super) fn run(
    out: &mut Output,
    root: &Path,
    rate: u32,
    time: Duration,
    check: bool,
) -> anyhow::Result<()> {
    let rows: Vec<IsolationRow> = OTHERS
        .iter()
        .map(|(other, name)| Ok(IsolationRow { name, ms: measure(root, *other, name, rate, time)? }))
        .collect::<anyhow::Result<_>>()?;
    match out.format {
        Format::Table => {
            let mut table = Table::new([
                Column::left("OTHER RULE"),
                Column::right("P50 MS"),
                Column::right("P99 MS"),
                Column::right("MAX MS"),
            ]);
            let line = |row: &IsolationRow| {
                let numbers = row.ms.iter().map(|ms| format!("{ms:.2}"));
                [row.name.to_owned()].into_iter().chain(numbers).collect()
            };
            let lines: Vec<Vec<String>> = rows.iter().map(line).collect();
            table.print(out, &lines)?;
        }
        Format::Json | Format::Jsonl => {
            let row = |row: &IsolationRow| {
                let [p50, p99, max] = row.ms.map(|ms| rounded(ms, 3));
                json!({ "other_rule": row.name, "p50_ms": p50, "p99_ms": p99, "max_ms": max })
            };
            out.json(&Json::from(rows.iter().map(row).collect::<Vec<_>>()))?;
        }
    }
    let alone = rows.first().map_or(0.0, |row| row.ms[1]);
    for row in &rows {
        let delay = row.ms[1] - alone;
        ensure!(
            !check || delay <= DELAY_MS,
            "a rule in state {} delays another rule by {delay:.1} ms",
            row.name
        );
    }
    Ok(())
}

fn measure(root: &Path, other: OtherRule, name: &str, rate: u32, time: Duration) -> anyhow::Result<[f64; 3]> {
    let dir = root.join(format!("isolation-{name}"));
    std::fs::create_dir_all(&dir).context("create a directory")?;
    let mut settings = ReactorSettings::default();
    if other == OtherRule::Throttled {
        let rate = Some(Rate { times: 1, per: Duration::from_secs(5) });
        settings.rules.push(Arc::new(RuleOptions { rule: "other/*".into(), rate, ..RuleOptions::default() }));
    }
    let rules: &[&str] = if other == OtherRule::Absent { &["hot/*"] } else { &["hot/*", "other/*"] };
    let master = Arc::new(TimedMaster { other, requests: Mutex::default() });
    let executor = master.clone();
    let mut harness = Harness::start(&dir, rules, settings, Default::default(), |_| executor)?;
    let count = || master.requests.lock().len();
    // The first reaction compiles the template.
    harness.submit(&[("hot/0".to_owned(), "web0".to_owned())])?;
    harness.wait_until_done()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of events")]
    let events = (f64::from(rate) * time.as_secs_f64()) as usize;
    let each = Duration::from_secs(1) / rate.max(1);
    let started = Instant::now();
    let due_of = |n: usize| started + each * u32::try_from(n).unwrap_or(u32::MAX);
    for n in 1..=events {
        std::thread::sleep(due_of(n).saturating_duration_since(Instant::now()));
        let kind = if n % ONE_OF == 0 { "hot" } else { "other" };
        harness.submit(&[(format!("{kind}/{n}"), format!("web{}", n % MINIONS))])?;
    }
    harness.wait("the measured rule", |_| count() > events / ONE_OF)?;
    harness.stop();
    let requests = master.requests.lock();
    let mut took: Vec<f64> = requests
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, at)| at.saturating_duration_since(due_of(*n)).as_secs_f64() * 1e3)
        .collect();
    took.sort_by(f64::total_cmp);
    Ok([500, 990, 1000].map(|thousandth| quantile(&took, thousandth)))
}
