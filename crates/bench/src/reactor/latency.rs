//! `saltcellar-bench reactor --wire` and `--isolation`: latency from an event's due time to the
//! request at the master, at a given rate.
//!
//! The reactor reads only durable events, so each row of `--wire` includes the latency of a bare
//! `fdatasync`, measured before it.
//!
//! For `--isolation`, one event in ten matches the measured rule, the rest match another rule that
//! is throttled, slow or failing; both have the same minions. With `--check` the command fails if
//! the other rule increases the 99th percentile by more than [`DELAY_MS`].

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use parking_lot::Mutex;
use saltcellar::model::{Rate, ReactorSettings, RuleOptions};
use saltcellar::reactor::master::{Answer, Call, Master, MasterAddress, MasterError};
use saltcellar::reactor::run::Executor;
use saltcellar::wire::msgpack::{as_text, elements, get};
use saltcellar_testkit::master::{published, serve};
use saltcellar_testkit::usage::{Durations, own_cpu_s};

use super::harness::{FakeMaster, Harness};
use crate::report::{Report, Row};

/// Tags of requests, with their time.
type Requests = Arc<Mutex<Vec<(String, Instant)>>>;

/// One of this many events matches a rule.
const MATCHING: [u64; 3] = [100, 10, 1];

const SYNCS: u32 = 200;

/// A master without its bus, which the daemon's executor would wait for.
struct OnlyMaster(Master);

impl Executor for OnlyMaster {
    fn ask(&self, call: &Call, jid: &str, timeout: Duration) -> Result<Answer, MasterError> {
        self.0.ask(call, jid, timeout)
    }

    fn reach(&self) -> Result<(), MasterError> {
        self.0.reach()
    }
}

pub(crate) fn wire(
    report: &mut Report,
    root: &Path,
    rate: u32,
    time: Duration,
) -> anyhow::Result<()> {
    let rows: anyhow::Result<_> = MATCHING
        .iter()
        .map(|one_of| measure_wire(root, *one_of, rate, time))
        .collect();
    report.print_rows(rows?)
}

fn measure_wire(root: &Path, one_of: u64, rate: u32, time: Duration) -> anyhow::Result<Row> {
    let dir = root.join(format!("wire-{one_of}"));
    std::fs::create_dir_all(&dir).context("create a directory")?;

    // On the same disk, and before the load disturbs it.
    let syncs = syncs(&dir)?;

    let requests = Requests::default();
    let recorded = requests.clone();

    let port = serve(move |request| {
        let load = get(request, "load").unwrap_or_default();
        let text = |value: Option<&[u8]>| value.and_then(as_text).unwrap_or_default().to_owned();
        let tag = text(get(load, "arg").and_then(|arg| elements(arg).next()));
        recorded.lock().push((tag, Instant::now()));
        published(&text(get(load, "jid")))
    });

    let (host, user) = ("127.0.0.1".to_owned(), "root".to_owned());
    let address = MasterAddress {
        host,
        port: port.context("open a request port")?,
        cachedir: dir.clone(),
        user,
    };
    // The key that a caller on the master's host has.
    std::fs::write(dir.join(".root_key"), "the key").context("write a key")?;

    let mut harness = Harness::start(
        &dir,
        &["hot/*"],
        ReactorSettings::default(),
        Default::default(),
        |metrics| Arc::new(OnlyMaster(Master::new(address, metrics.clone()))),
    )?;

    let schedule = harness.submit_at_rate(rate, time, one_of, "cold")?;
    harness.wait_until_done()?;
    let cpu_us = (own_cpu_s()? - schedule.cpu_s) * 1e6 / schedule.events.max(1) as f64;
    harness.stop();

    let requests = requests.lock();
    let latencies = schedule.latencies(&requests);

    // The event before the schedule has another tag and is not counted.
    let found = latencies.count() as u64;
    let expected = schedule.events.div_ceil(one_of);

    ensure!(
        found == expected,
        "{found} of {expected} requests reached the master"
    );

    // The request rate covers the whole run, up to the last request.
    let last = requests
        .iter()
        .map(|(_, at)| *at)
        .max()
        .unwrap_or(schedule.started);

    let seconds = last
        .saturating_duration_since(schedule.started)
        .as_secs_f64();

    let matching = if one_of == 1 {
        "all".to_owned()
    } else {
        format!("1 of {one_of}")
    };

    Ok(Row::default()
        .label("MATCHING", matching)
        .json("one_of", one_of)
        .number("EVENTS/S", "events_per_s", 0, schedule.rate)
        .count("REQUESTS", "requests", found)
        .number(
            "REQUESTS/S",
            "requests_per_s",
            0,
            found as f64 / seconds.max(1e-9),
        )
        .latency_and_max(&latencies)
        .number("SYNC P50", "sync_p50_ms", 3, syncs.ms(0.5))
        .number("SYNC P99", "sync_p99_ms", 3, syncs.ms(0.99))
        .number("CPU US", "cpu_us_per_event", 2, cpu_us))
}

fn syncs(dir: &Path) -> anyhow::Result<Durations> {
    let path = dir.join("baseline");
    let mut file = File::create(&path).context("create the baseline's file")?;

    let mut sync = |_| {
        // A page, about as much as a small commit.
        file.write_all(&[0x5a; 4096])
            .context("write the baseline")?;
        let started = Instant::now();
        file.sync_data().context("sync the baseline")?;
        Ok(started.elapsed())
    };

    let durations = (0..SYNCS)
        .map(&mut sync)
        .collect::<anyhow::Result<Vec<_>>>()?;

    // The store's directory must be empty at its start.
    std::fs::remove_file(&path).context("remove the baseline")?;
    Ok(durations.into_iter().collect())
}

/// Limit of the delay caused by another rule, in milliseconds.
const DELAY_MS: f64 = 50.0;

/// One of this many events is measured.
const ONE_OF: u64 = 10;

/// Duration of a request at a slow master.
const SLOW: Duration = Duration::from_secs(2);

const OTHERS: [&str; 4] = ["absent", "throttled", "slow", "failing"];

pub(crate) fn isolation(
    report: &mut Report,
    root: &Path,
    rate: u32,
    time: Duration,
    check: bool,
) -> anyhow::Result<()> {
    let (mut rows, mut p99) = (Vec::new(), Vec::new());

    for other in OTHERS {
        let latencies =
            measure_isolation(&root.join(format!("isolation-{other}")), other, rate, time)?;
        p99.push(latencies.ms(0.99).unwrap_or(0.0));

        rows.push(
            Row::default()
                .text("OTHER RULE", "other_rule", other)
                .latency_and_max(&latencies),
        );
    }

    report.print_rows(rows)?;

    for (other, ms) in OTHERS.iter().zip(&p99) {
        // The first run has no other rule.
        let delay = ms - p99.first().unwrap_or(ms);
        ensure!(
            !check || delay <= DELAY_MS,
            "a rule in state {other} delays another rule by {delay:.1} ms"
        );
    }
    Ok(())
}

fn measure_isolation(
    dir: &Path,
    other: &'static str,
    rate: u32,
    time: Duration,
) -> anyhow::Result<Durations> {
    let mut settings = ReactorSettings::default();

    if other == "throttled" {
        let rate = Some(Rate {
            times: 1,
            per: Duration::from_secs(5),
        });
        settings.rules.push(Arc::new(RuleOptions {
            rule: "other/*".into(),
            rate,
            ..RuleOptions::default()
        }));
    }

    // Without the other rule, the same events match nothing.
    let rules: &[&str] = if other == "absent" {
        &["hot/*"]
    } else {
        &["hot/*", "other/*"]
    };

    let requests = Requests::default();
    let recorded = requests.clone();

    let master = FakeMaster::new(true, move |tag: &str, _: &str| {
        match other {
            // Only the measured rule counts; the other one is as bad as it is meant to be.
            _ if tag.starts_with("hot/") => recorded.lock().push((tag.to_owned(), Instant::now())),
            // Occupies a worker, as a request without a response does.
            "slow" => std::thread::sleep(SLOW),
            "failing" => {
                let (place, why) = ("the benchmark".to_owned(), "a failing rule".to_owned());
                return Err(MasterError::Refused { place, why });
            }
            _ => {}
        }
        Ok(())
    });

    let mut harness = Harness::start(dir, rules, settings, Default::default(), |_| master)?;
    let schedule = harness.submit_at_rate(rate, time, ONE_OF, "other")?;

    // One more for the event before the schedule.
    let expected = 1 + schedule.events.div_ceil(ONE_OF);
    harness.wait("the measured rule", |_| {
        requests.lock().len() as u64 >= expected
    })?;

    harness.stop();
    Ok(schedule.latencies(&requests.lock()))
}
