//! The local socket, and the yardstick beside all doors: both are driven like `bench ingest`.

use super::super::child::{Scratch, Subject, cpu_s};
use super::super::driver::{Drive, drive};
use super::super::template::{Jobs, Pool, Wrap};
use super::super::{Common, load};
use super::Run;

/// Batches under way on each connection.
const IN_FLIGHT: usize = 8;

/// Events in batches, by `event_return` to a daemon or bare to the yardstick.
pub(super) fn run(
    common: &Common,
    yardstick: bool,
    entries: u64,
    connections: u64,
    batch: u64,
) -> anyhow::Result<Run> {
    let scratch = Scratch::new(common.dir.as_deref(), common.keep)?;
    let (subject, wrap) = if yardstick {
        (Subject::yardstick(&scratch, 1)?, Wrap::Bare)
    } else {
        std::fs::write(scratch.path().join("empty.yaml"), "")?;
        (Subject::daemon(&scratch, Some(&scratch.path().join("empty.yaml")))?, Wrap::EventReturn)
    };
    let pool = Pool::new(&load::mix(common.seed, 1.0), wrap, Jobs::Interleaved, common.seed);
    let (own, daemon) = (cpu_s(std::process::id())?, subject.cpu_s()?);
    let drive_it = Drive {
        socket: subject.socket(),
        pool: &pool,
        wrap,
        first: 0,
        entries,
        connections,
        in_flight: IN_FLIGHT,
        batch,
        rate: None,
    };
    let driven = drive(&drive_it, &mut |_, _| {})?;
    let sender_cpu_s = cpu_s(std::process::id())? - own;
    subject.wait_until_idle()?;
    let daemon_cpu_s = subject.cpu_s()? - daemon;
    let rss_peak_mb = subject.rss_peak_mb();
    subject.stop()?;
    Ok(Run { seconds: driven.seconds, latencies: driven.latencies, daemon_cpu_s, sender_cpu_s, rss_peak_mb })
}
