//! `saltcellar bench reactor`: the reactor's pipeline in one thread, from tag and body to calls.
//!
//! `tests/lab/bench_reactor_salt.py` measures Salt's own pipeline with the same configurations.

mod backlog;
mod harness;
mod isolation;
mod soak;
mod wire;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rmpv::Value;
use serde_json::{Value as Json, json};

use self::harness::old_file;
use super::super::Global;
use super::super::format::output::{Format, Output};
use super::super::format::table::{Column, Table};
use super::child::Scratch;
use super::{rounded, thousands};
use crate::config::salt_master::SaltMaster;
use crate::reactor::{Body, Detail, NoSalt, Pipeline, Worker};

const SLS: &str = "\
{% if data['id'].startswith('web') and data['act'] == 'accept' %}
refresh_pool_{{ data['id'] }}:
  local.state.apply:
    - tgt: 'haproxy*'
    - args:
      - mods: haproxy.refresh_pool
      - pillar:
          new_minion: {{ data['id'] }}
{% endif %}
";

/// Numbers of rules.
const ENTRIES: [usize; 4] = [1, 10, 100, 1000];

/// Flags of `bench reactor`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Duration of each measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    seconds: f64,
    /// Only situations whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Measure latency from the log to the requests at a fake master instead, at --rate
    #[arg(long, conflicts_with = "only")]
    wire: bool,
    /// Events per second, for --wire and --isolation
    #[arg(long, value_name = "EVENTS", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Measure memory over this many events instead; fail if it grows
    #[arg(long, value_name = "EVENTS", conflicts_with_all = ["only", "wire"])]
    soak: Option<u64>,
    /// Measure latency while another rule is throttled, slow or failing instead, at --rate
    #[arg(long, conflicts_with_all = ["only", "wire", "soak"])]
    isolation: bool,
    /// Submit this many events while the master is down instead; fail if requests are lost, repeated or out of order
    #[arg(long, value_name = "EVENTS", conflicts_with_all = ["only", "wire", "soak", "isolation"])]
    backlog: Option<u64>,
    /// Fail if another rule delays reactions by over 50 ms (--isolation), or memory exceeds 200 MB (--backlog)
    #[arg(long)]
    check: bool,
    /// Create the temporary files in DIR
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

struct Situation {
    name: &'static str,
    entries: usize,
    rules: String,
    tag: &'static str,
    id: &'static str,
    /// Expected number of calls of each event.
    calls: usize,
}

struct PipelineRow {
    name: &'static str,
    entries: usize,
    per_s: f64,
    p50_us: f64,
    p99_us: f64,
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let scratch = Scratch::new(args.dir.as_deref(), false)?;
    let time = Duration::from_secs_f64(args.seconds.clamp(0.01, 60.0));
    let root = scratch.path();
    let mut out = Output::new(global.output);
    if args.wire {
        wire::run(&mut out, root, args.rate, time)?;
        return Ok(out.flush()?);
    }
    if let Some(events) = args.soak {
        soak::run(&mut out, root, events)?;
        return Ok(out.flush()?);
    }
    if args.isolation {
        isolation::run(&mut out, root, args.rate, time, args.check)?;
        return Ok(out.flush()?);
    }
    if let Some(events) = args.backlog {
        backlog::run(&mut out, root, events, args.check)?;
        return Ok(out.flush()?);
    }
    let mut rows = Vec::new();
    let wanted = |situation: &Situation| {
        let name = format!("{} {}", situation.name, situation.entries);
        args.only.as_ref().is_none_or(|text| name.contains(text.as_str()))
    };
    for situation in situations(root)?.into_iter().filter(wanted) {
        rows.push(measure(root, &situation, time)?);
    }
    match out.format {
        Format::Table => {
            let mut table = Table::new([
                Column::left("SITUATION"),
                Column::right("RULES"),
                Column::right("EVENTS/S"),
                Column::right("P50 US"),
                Column::right("P99 US"),
            ]);
            let lines: Vec<Vec<String>> = rows
                .iter()
                .map(|row| {
                    vec![
                        row.name.to_owned(),
                        row.entries.to_string(),
                        thousands(row.per_s),
                        format!("{:.2}", row.p50_us),
                        format!("{:.2}", row.p99_us),
                    ]
                })
                .collect();
            table.print(&mut out, &lines)?;
        }
        Format::Json | Format::Jsonl => out.json(&Json::from(
            rows.iter()
                .map(|row| {
                    json!({
                        "situation": row.name,
                        "entries": row.entries,
                        "events_per_s": rounded(row.per_s, 0),
                        "p50_us": rounded(row.p50_us, 3),
                        "p99_us": rounded(row.p99_us, 3),
                    })
                })
                .collect::<Vec<_>>(),
        ))?,
    }
    Ok(out.flush()?)
}

fn situations(root: &Path) -> anyhow::Result<Vec<Situation>> {
    for dir in ["srv/salt/reactor", "srv/reactor"] {
        old_file(&root.join(dir), "r.sls", SLS)?;
    }
    let local = format!("{}/srv/reactor/r.sls", root.display());
    let one = |entries: usize, reference: &str| {
        let mut rules = String::from("reactor:\n");
        for number in 0..entries - 1 {
            let _ = writeln!(rules, "- 'site{number}/service/*/changed': [{reference}]");
        }
        rules + &format!("- 'salt/key': [{reference}]\n")
    };
    let all = |entries: usize| {
        let mut rules = String::from("reactor:\n");
        for number in 0..entries {
            let _ = writeln!(rules, "- 'salt/k*{}': [{local}]", "y".repeat(number % 2));
        }
        rules
    };
    let mut found = Vec::new();
    for entries in ENTRIES {
        let mut add =
            |name, rules, tag, id, calls| found.push(Situation { name, entries, rules, tag, id, calls });
        add("one matches", one(entries, &local), "salt/key", "web1", 1);
        add("one matches, if false", one(entries, &local), "salt/key", "db1", 0);
        add("none matches", one(entries, &local), "salt/job/2030/ret/x", "web1", 0);
        add("one matches, salt://", one(entries, "salt://reactor/r.sls"), "salt/key", "web1", 1);
        add("all match one file", all(entries), "salt/key", "web1", 1);
    }
    Ok(found)
}

fn measure(root: &Path, situation: &Situation, time: Duration) -> anyhow::Result<PipelineRow> {
    let config = root.join("master");
    let head =
        format!("root_dir: {0}\nid: m_master\nfile_roots:\n  base: ['{0}/srv/salt']\n", root.display());
    fs::write(&config, head + &situation.rules).context("write the configuration")?;
    let pipeline = Pipeline::new(&SaltMaster::read(&config), std::sync::Arc::new(NoSalt));
    let mut worker = Worker::new(pipeline.into());
    let data = Value::Map(vec![
        ("id".into(), situation.id.into()),
        ("act".into(), "accept".into()),
        ("result".into(), true.into()),
        ("_stamp".into(), "2030-01-01T00:00:00".into()),
    ]);
    let mut body = Vec::new();
    rmpv::encode::write_value(&mut body, &data).context("encode the event")?;
    let mut once =
        || worker.react(situation.tag, Body::Stored { data: &body, has_key: false }, Detail::Calls);
    let outcome = once();
    ensure!(
        outcome.calls.len() == situation.calls && outcome.notes.is_empty(),
        "measure {}: {} calls, {:?}",
        situation.name,
        outcome.calls.len(),
        outcome.notes
    );
    // Fast situations are measured in batches, to amortise reading the clock.
    let batch: u32 = if situation.tag == "salt/key" { 1 } else { 64 };
    let mut samples = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < time {
        let start = Instant::now();
        for _ in 0..batch {
            std::hint::black_box(once());
        }
        samples.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(batch));
    }
    let per_s = samples.len() as f64 * f64::from(batch) / begin.elapsed().as_secs_f64();
    samples.sort_by(f64::total_cmp);
    let at = |share: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
        let index = (samples.len() as f64 * share) as usize;
        samples.get(index.min(samples.len().saturating_sub(1))).copied().unwrap_or(0.0)
    };
    Ok(PipelineRow {
        name: situation.name,
        entries: situation.entries,
        per_s,
        p50_us: at(0.5),
        p99_us: at(0.99),
    })
}
