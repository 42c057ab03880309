//! `saltcellar bench reactor --isolation`: how long a reaction waits beside a rule that is throttled, slow or failing.
//!
//! One event in ten is for the rule that is measured, the rest is for the other one; both are about the same minions. Latency is the time
//! from the event to the request at the master. With `--check` the command fails if the 99th percentile beside such a rule exceeds the one
//! beside a rule that does nothing by more than [`DELAY_MS`].

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value as Json, json};

use super::super::output::{Format, Output};
use super::super::table::{Column, Table};
use super::rounded;
use super::stage::Stage;
use super::wire::share;
use crate::master::{Answer, Call, MasterError};
use crate::model::{Rate, ReactorSettings, RuleOptions};
use crate::reactor::run::Ask;
use crate::sls::Value;

/// The delay that another rule may cause, in milliseconds.
const DELAY_MS: f64 = 50.0;

/// Minions that the events are about.
const MINIONS: usize = 500;

/// One event in so many is measured.
const ONE_OF: usize = 10;

/// How long a slow master takes over a request.
const SLOW: Duration = Duration::from_secs(2);

/// What is wrong with the other rule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Other {
    Absent,
    Throttled,
    Slow,
    Failing,
}

const OTHERS: [(Other, &str); 4] = [
    (Other::Absent, "absent"),
    (Other::Throttled, "throttled"),
    (Other::Slow, "slow"),
    (Other::Failing, "failing"),
];

/// A master that notes when it is asked for what is measured.
struct Asked {
    other: Other,
    at: Mutex<Vec<(usize, Instant)>>,
}

impl Ask for Asked {
    fn ask(&self, call: &Call, jid: &str, _patience: Duration) -> Result<Answer, MasterError> {
        let tag = call.load.get("arg").and_then(Value::as_list).and_then(|arg| arg.first()?.as_str());
        match tag.and_then(|tag| tag.strip_prefix("hot/")?.parse().ok()) {
            Some(n) => self.at.lock().unwrap_or_else(PoisonError::into_inner).push((n, Instant::now())),
            None if self.other == Other::Slow => std::thread::sleep(SLOW),
            None if self.other == Other::Failing => {
                let (place, why) = ("the benchmark".to_owned(), "a failing rule".to_owned());
                return Err(MasterError::Refused { place, why });
            }
            None => {}
        }
        Ok(Answer::Published { jid: jid.to_owned(), minions: vec!["web1".to_owned()], missing: Vec::new() })
    }
}

/// What was measured: milliseconds.
struct Row {
    name: &'static str,
    ms: [f64; 3],
}

pub(super) fn run(
    out: &mut Output,
    root: &Path,
    rate: u32,
    time: Duration,
    check: bool,
) -> anyhow::Result<()> {
    let rows: Vec<Row> = OTHERS
        .iter()
        .map(|(other, name)| Ok(Row { name, ms: measure(root, *other, name, rate, time)? }))
        .collect::<anyhow::Result<_>>()?;
    match out.format {
        Format::Table => {
            let mut table = Table::new([
                Column::left("OTHER RULE"),
                Column::right("P50 MS"),
                Column::right("P99 MS"),
                Column::right("MAX MS"),
            ]);
            let line = |row: &Row| {
                let numbers = row.ms.iter().map(|ms| format!("{ms:.2}"));
                [row.name.to_owned()].into_iter().chain(numbers).collect()
            };
            let lines: Vec<Vec<String>> = rows.iter().map(line).collect();
            table.print(out, &lines)?;
        }
        Format::Json | Format::Jsonl => {
            let row = |row: &Row| {
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
            "a rule that is {} delays another one by {delay:.1} ms",
            row.name
        );
    }
    Ok(())
}

fn measure(root: &Path, other: Other, name: &str, rate: u32, time: Duration) -> anyhow::Result<[f64; 3]> {
    let dir = root.join(format!("isolation-{name}"));
    std::fs::create_dir_all(&dir).context("make a directory")?;
    let mut settings = ReactorSettings::default();
    if other == Other::Throttled {
        let rate = Some(Rate { times: 1, per: Duration::from_secs(5) });
        settings.rules.push(Arc::new(RuleOptions { rule: "other/*".into(), rate, ..RuleOptions::default() }));
    }
    let rules: &[&str] = if other == Other::Absent { &["hot/*"] } else { &["hot/*", "other/*"] };
    let asked = Arc::new(Asked { other, at: Mutex::default() });
    let master = asked.clone();
    let mut stage = Stage::start(&dir, rules, settings, Default::default(), |_| master)?;
    let count = || asked.at.lock().unwrap_or_else(PoisonError::into_inner).len();
    // The first reaction compiles the template.
    stage.tell(&[("hot/0".to_owned(), "web0".to_owned())])?;
    stage.wait_until_through()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of events")]
    let events = (f64::from(rate) * time.as_secs_f64()) as usize;
    let each = Duration::from_secs(1) / rate.max(1);
    let began = Instant::now();
    let due_of = |n: usize| began + each * u32::try_from(n).unwrap_or(u32::MAX);
    for n in 1..=events {
        std::thread::sleep(due_of(n).saturating_duration_since(Instant::now()));
        let kind = if n % ONE_OF == 0 { "hot" } else { "other" };
        stage.tell(&[(format!("{kind}/{n}"), format!("web{}", n % MINIONS))])?;
    }
    stage.wait("the rule that is measured", |_| count() > events / ONE_OF)?;
    stage.stop();
    let asked = asked.at.lock().unwrap_or_else(PoisonError::into_inner);
    let mut took: Vec<f64> = asked
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, at)| at.saturating_duration_since(due_of(*n)).as_secs_f64() * 1e3)
        .collect();
    took.sort_by(f64::total_cmp);
    Ok([500, 990, 1000].map(|thousandth| share(&took, thousandth)))
}
