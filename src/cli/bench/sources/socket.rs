//! The local socket and the baseline, with the load generator of `bench ingest`.

use super::super::child::{Scratch, Subject, cpu_s};
use super::super::load::driver::{LoadSpec, run_load};
use super::super::load::template::{Encoding, EventGenerator, Jobs};
use super::super::{Common, load};
use super::SourceRun;

/// Batches in flight on each connection.
const IN_FLIGHT: usize = 8;

/// Sends events in batches, by `event_return` to a daemon or without encoding to the baseline.
pub(super) fn run(
    common: &Common,
    baseline: bool,
    entries: u64,
    connections: u64,
    batch: u64,
) -> anyhow::Result<SourceRun> {
    let scratch = Scratch::new(common.dir.as_deref(), common.keep)?;
    let (subject, encoding) = if baseline {
        (Subject::baseline(&scratch, 1)?, Encoding::Bare)
    } else {
        std::fs::write(scratch.path().join("empty.yaml"), "")?;
        (Subject::daemon(&scratch, Some(&scratch.path().join("empty.yaml")))?, Encoding::EventReturn)
    };
    let generator =
        EventGenerator::new(&load::mix(common.seed, 1.0), encoding, Jobs::Interleaved, common.seed);
    let (own, daemon) = (cpu_s(std::process::id())?, subject.cpu_s()?);
    let spec = LoadSpec {
        socket: subject.socket(),
        generator: &generator,
        encoding,
        first: 0,
        entries,
        connections,
        in_flight: IN_FLIGHT,
        batch,
        rate: None,
    };
    let result = run_load(&spec, &mut |_, _| {})?;
    let sender_cpu_s = cpu_s(std::process::id())? - own;
    subject.wait_until_idle()?;
    let daemon_cpu_s = subject.cpu_s()? - daemon;
    let rss_peak_mb = subject.rss_peak_mb();
    subject.stop()?;
    Ok(SourceRun {
        seconds: result.seconds,
        latencies: result.latencies,
        daemon_cpu_s,
        sender_cpu_s,
        rss_peak_mb,
    })
}
