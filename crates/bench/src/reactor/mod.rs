//! `saltcellar-bench reactor`: the reactor's pipeline in one thread, from tag and body to calls.
//!
//! `tests/lab/bench_reactor_salt.py` measures Salt's pipeline with the same configurations.

mod backlog;
mod harness;
mod latency;
mod soak;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use saltcellar::config::salt_master::SaltMaster;
use saltcellar::reactor::{Body, Detail, NoSalt, Pipeline, Worker};
use saltcellar_testkit::load::packed;
use saltcellar_testkit::usage::Durations;
use serde_json::json;

use self::harness::old_file;
use super::child;
use super::report::{Report, Row};
use crate::options::Options;

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

#[derive(clap::Args)]
pub(crate) struct Args {
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

pub(crate) fn run(options: &Options, args: &Args) -> anyhow::Result<()> {
    let scratch = child::scratch(args.dir.as_deref(), false)?;
    let time = Duration::from_secs_f64(args.seconds.clamp(0.01, 60.0));
    let root = scratch.path();
    let mut report = Report::new(options);

    // Each of these flags replaces the measurement of the pipeline.
    if args.wire {
        return latency::wire(&mut report, root, args.rate, time);
    }
    if let Some(events) = args.soak {
        return soak::run(&mut report, root, events);
    }
    if args.isolation {
        return latency::isolation(&mut report, root, args.rate, time, args.check);
    }
    if let Some(events) = args.backlog {
        return backlog::run(&mut report, root, events, args.check);
    }

    let mut rows = Vec::new();
    for situation in situations(root)? {
        let name = format!("{} {}", situation.name, situation.entries);
        if args.only.as_ref().is_none_or(|text| name.contains(text)) {
            rows.push(measure(root, &situation, time)?);
        }
    }

    report.print_rows(rows)
}

fn situations(root: &Path) -> anyhow::Result<Vec<Situation>> {
    for dir in ["srv/salt/reactor", "srv/reactor"] {
        old_file(&root.join(dir), "r.sls", SLS)?;
    }

    let local = format!("{}/srv/reactor/r.sls", root.display());

    // The last rule matches, so a search through a list would be slowest.
    let one = |entries: usize, reference: &str| {
        let mut rules = String::from("reactor:\n");
        for number in 0..entries - 1 {
            let _ = writeln!(rules, "- 'site{number}/service/*/changed': [{reference}]");
        }
        rules + &format!("- 'salt/key': [{reference}]\n")
    };

    // Two patterns that both match, alternating.
    let all = |entries: usize| {
        let mut rules = String::from("reactor:\n");
        for number in 0..entries {
            let _ = writeln!(rules, "- 'salt/k*{}': [{local}]", "y".repeat(number % 2));
        }
        rules
    };

    let mut found = Vec::new();
    for entries in ENTRIES {
        let mut add = |name, rules, tag, id, calls| {
            found.push(Situation {
                name,
                entries,
                rules,
                tag,
                id,
                calls,
            });
        };

        add("one matches", one(entries, &local), "salt/key", "web1", 1);
        add(
            "one matches, if false",
            one(entries, &local),
            "salt/key",
            "db1",
            0,
        );
        add(
            "none matches",
            one(entries, &local),
            "salt/job/2030/ret/x",
            "web1",
            0,
        );
        add(
            "one matches, salt://",
            one(entries, "salt://reactor/r.sls"),
            "salt/key",
            "web1",
            1,
        );
        add("all match one file", all(entries), "salt/key", "web1", 1);
    }

    Ok(found)
}

fn measure(root: &Path, situation: &Situation, time: Duration) -> anyhow::Result<Row> {
    let config = root.join("master");
    let head = format!(
        "root_dir: {0}\nid: m_master\nfile_roots:\n  base: ['{0}/srv/salt']\n",
        root.display()
    );
    fs::write(&config, head + &situation.rules).context("write the configuration")?;

    // Each situation needs separate rules, and therefore a separate pipeline.
    let pipeline = Pipeline::new(&SaltMaster::read(&config), std::sync::Arc::new(NoSalt));
    let mut worker = Worker::new(pipeline.into());

    // A fixed time: no rule uses it.
    let stamp = "2030-01-01T00:00:00";
    let body =
        packed(&json!({ "id": situation.id, "act": "accept", "result": true, "_stamp": stamp }));

    let mut once = || {
        worker.react(
            situation.tag,
            Body::Stored {
                data: &body,
                has_key: false,
            },
            Detail::Calls,
        )
    };

    // Before the clock starts: compiles the template, and checks the result.
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
        // The mean of a batch is one sample.
        samples.push(start.elapsed() / batch);
    }

    let per_s = samples.len() as f64 * f64::from(batch) / begin.elapsed().as_secs_f64();
    let samples: Durations = samples.into_iter().collect();
    let us = |share| samples.ms(share).map(|ms| ms * 1e3);

    Ok(Row::default()
        .text("SITUATION", "situation", situation.name)
        .count("RULES", "entries", situation.entries as u64)
        .number("EVENTS/S", "events_per_s", 0, per_s)
        .number("P50 US", "p50_us", 3, us(0.5))
        .number("P99 US", "p99_us", 3, us(0.99)))
}
