//! A source of events as a benchmark knows it: which there are, what a run measures, and when all of it is stored.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::ensure;
use saltcellar_testkit::load::{Load, mix, small};
use saltcellar_testkit::usage::Durations;

use crate::calls::{Daemon, Status};
use crate::child::{Subject, TIMEOUT};
use crate::options::{self, Common};

/// Timeout until the daemon makes progress.
pub(super) const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) common: Common,
    /// The sources to measure
    #[arg(long, value_name = "SOURCE,...", value_enum, value_delimiter = ',', default_values_t = [BenchSource::Baseline, BenchSource::Bus, BenchSource::Pull, BenchSource::Socket, BenchSource::Https])]
    pub(super) source: Vec<BenchSource>,
    /// Entries to send [default: 1,000,000; https: 30,000 for each batch size]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) entries: Option<u64>,
    /// Connections to send over [default: 4; https: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(super) connections: Option<u64>,
    /// Batch sizes, each measured in a separate run [default: 1,000; baseline: 64; https: 1 and 64]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(super) batch: Vec<u64>,
    /// Events of bus, pull, socket and baseline
    #[arg(long, value_enum, default_value = "mix")]
    load: LoadChoice,
    /// Send this many events per second over the bus, each in a write of its own [default: unlimited]
    #[arg(long, value_name = "N/S", value_parser = options::rate)]
    pub(super) rate: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum LoadChoice {
    Mix,
    Small,
}

impl Args {
    /// The events of all sources but https.
    pub(super) fn load(&self) -> Load {
        match self.load {
            LoadChoice::Mix => mix(self.common.seed, 1.0),
            LoadChoice::Small => small(self.common.seed, 1.0),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum BenchSource {
    /// The baseline process instead of a source
    Baseline,
    /// The bus source, with this process as Salt's publisher
    Bus,
    /// The ZeroMQ PULL socket, with this process as PUSH
    Pull,
    /// The local socket, `event_return`
    Socket,
    /// Returns of minions, each batch signed with a key of 2048 bits before the clock starts
    Https,
}

impl BenchSource {
    /// Batch sizes; 0 for streams.
    pub(super) fn batches(self, requested: &[u64]) -> Vec<u64> {
        match self {
            Self::Bus | Self::Pull => vec![0],
            _ if !requested.is_empty() => requested.to_vec(),
            Self::Baseline => vec![64],
            Self::Socket => vec![1000],
            Self::Https => vec![1, 64],
        }
    }

    pub(super) fn connections(self, requested: Option<u64>) -> u64 {
        match self {
            Self::Bus | Self::Pull => 1,
            Self::Https => requested.unwrap_or(64),
            Self::Baseline | Self::Socket => requested.unwrap_or(4),
        }
    }
}

pub(super) struct SourceRun {
    pub(super) seconds: f64,
    /// From sending a batch to its response; for a bus with a rate, of each write, which waits while the socket is full;
    /// empty for other streams.
    pub(super) latencies: Durations,
    pub(super) sender_cpu_s: f64,
    /// CPU time of the daemon before the first batch.
    pub(super) cpu_s_before: f64,
    /// The connection of a stream: the daemon would log its end.
    pub(super) peer: Option<UnixStream>,
}

/// Polls the daemon's status until `progress`, of which it returns the present and the final value,
/// is complete.
pub(super) fn wait_for_status(
    subject: &Subject,
    mut progress: impl FnMut(Status) -> (u64, u64),
) -> anyhow::Result<()> {
    let mut daemon = Daemon::connect(&subject.socket, TIMEOUT)?;
    let mut seen = 0;
    let mut since = Instant::now();

    loop {
        let (now, end) = progress(daemon.status()?);

        if now >= end {
            return Ok(());
        }

        if now > seen {
            seen = now;
            since = Instant::now();
        }
        // Only a lack of progress is a failure; a slow disk is not.
        ensure!(
            since.elapsed() < PROGRESS_TIMEOUT,
            "wait for the daemon: no progress after {now} of {end}"
        );

        // Seldom, because each check costs the daemon as much as dozens of events.
        std::thread::sleep(Duration::from_millis(20));
    }
}
