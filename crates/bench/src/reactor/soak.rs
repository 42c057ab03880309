//! `saltcellar-bench reactor --soak`: memory of the reactor over many events.
//!
//! Every event contains a unique tag and minion. Most events match no rule, the rest match rules
//! without options, with `once_per`, `debounce` or `budget`. The first quarter fills bounded
//! caches, the log and thread pools. From the second to the last quarter, median memory may grow by
//! [`GROWTH_MB`]; single samples vary with the sealing of segments.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use saltcellar::model::{ClassRules, Rate, ReactorSettings, RuleOptions};
use saltcellar::store::{Classes, Limits};
use saltcellar_testkit::usage::memory_mb;

use super::harness::{FakeMaster, Harness};
use crate::report::{Report, Row};

/// Limit of growth, which allows for the allocator's reserve and one doubling of a table.
const GROWTH_MB: f64 = 48.0;

const SAMPLES: u64 = 20;

/// Events in a batch, of which each rule below matches one.
const BATCH: u64 = 50;

/// Sizes of each class and of a segment, so small that segments are dropped early in the run.
const LOG_BYTES: u64 = 32 * 1024 * 1024;
const SEGMENT_BYTES: u64 = 8 * 1024 * 1024;

fn rule(pattern: &str, change: impl FnOnce(&mut RuleOptions)) -> Arc<RuleOptions> {
    let mut options = RuleOptions {
        rule: pattern.into(),
        ..RuleOptions::default()
    };
    change(&mut options);
    Arc::new(options)
}

pub(crate) fn run(report: &mut Report, root: &Path, events: u64) -> anyhow::Result<()> {
    let settings = ReactorSettings {
        rules: vec![
            rule("once/*", |options| {
                options.once_per = Some(Duration::from_secs(3600));
            }),
            rule("quiet/*", |options| {
                options.debounce = Some(Duration::from_millis(5));
            }),
            rule("budget/*", |options| {
                options.budget = Some(Rate {
                    times: 1000,
                    per: Duration::from_secs(1),
                });
            }),
        ],
        ..ReactorSettings::default()
    };

    let mut classes = [ClassRules::jobs(), ClassRules::events()];
    for class in &mut classes {
        class.keep.bytes = Some(LOG_BYTES);
    }

    // One rule without options, and one for each option that keeps state.
    let patterns = ["plain/*", "once/*", "quiet/*", "budget/*"];
    let limits = Limits {
        segment_bytes_max: SEGMENT_BYTES,
        ..Limits::default()
    };
    let classes = Classes::new(&classes);

    let master = FakeMaster::new(true, |_: &str, _: &str| Ok(()));

    let mut harness = Harness::start(
        &root.join("soak"),
        &patterns,
        settings,
        (limits, classes),
        |_| master,
    )?;

    let started = Instant::now();
    let mut samples = Vec::new();
    let step = (events / SAMPLES).max(BATCH);
    let mut sent = 0;
    let mut next = step;

    while sent < events {
        harness.submit(sent..sent + BATCH, |n| {
            // The first events of a batch match one pattern each, the rest none.
            let tag = match patterns.get(usize::try_from(n % BATCH).unwrap_or(0)) {
                Some(pattern) => pattern.replace('*', &n.to_string()),
                None => format!("salt/beacon/minion{n}/load/{n}"),
            };
            (tag, format!("minion{n}"))
        })?;

        sent += BATCH;

        // Limits the reactor's lag.
        harness.wait("the reactor", |harness| {
            harness.handle.status().behind < 100_000
        })?;

        if sent >= next || sent >= events {
            next += step;
            // Pending events use memory but are not growth.
            harness.wait_until_done()?;

            let mb = memory_mb(std::process::id(), "VmRSS")?;
            let (done, skipped) = reactions(&harness);

            let row = Row::default()
                .count("EVENTS", "events", sent)
                .number(
                    "EVENTS/S",
                    "events_per_s",
                    0,
                    sent as f64 / started.elapsed().as_secs_f64(),
                )
                .count("REACTIONS", "reactions", done)
                .count("SKIPPED", "skipped", skipped)
                .number("RSS MB", "rss_mb", 1, mb);

            report.print_row(row)?;
            // Kept apart from the rows for the comparison at the end.
            samples.push(mb);
        }
    }

    let (done, skipped) = reactions(&harness);
    let handled = done + skipped;
    // A lost event would look like saved memory.
    let expected = sent / BATCH * patterns.len() as u64;

    harness.stop();
    ensure!(
        handled == expected,
        "{handled} of {expected} matching events were handled"
    );

    // The median, because single samples include segments that are being sealed.
    let quarter = samples.len() / 4;
    let before = median(samples.get(quarter..2 * quarter).unwrap_or_default());
    let after = median(samples.get(samples.len() - quarter..).unwrap_or_default());

    ensure!(
        after - before <= GROWTH_MB,
        "memory grew from {before:.1} MB in the second quarter of {sent} events to {after:.1} MB in the last, by more than {GROWTH_MB:.0} MB"
    );
    Ok(())
}

fn reactions(harness: &Harness) -> (u64, u64) {
    let metrics = &harness.metrics;
    let skipped = [
        &metrics.reactions_skipped_once_per,
        &metrics.reactions_skipped_debounced,
        &metrics.reactions_skipped_budget,
    ];
    (
        metrics.reactions_done.get(),
        skipped.iter().map(|counter| counter.get()).sum(),
    )
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}
