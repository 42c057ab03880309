//! `saltcellar bench`: the program measured on this machine, from outside, by real processes.
//!
//! Each measure starts a daemon of its own on an empty directory that is removed at the end, and speaks to it
//! over its socket. The load is a pure function of the seed. Whatever can be compared with physics is, in the
//! same run: see [`yardstick`].

mod backlog;
mod child;
mod corpus;
mod doors;
mod driver;
mod ingest;
mod isolation;
mod load;
#[cfg(test)]
mod measure;
mod query;
mod reactor;
mod returner;
mod soak;
mod stage;
mod template;
mod wire;
mod yardstick;

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::Global;

/// What `bench` can measure.
#[derive(clap::Subcommand)]
pub(super) enum Bench {
    /// Events taken in: rate, processor time, disk, time to an answer; beside the physical yardstick
    #[command(after_long_help = ingest::EXAMPLES)]
    Ingest(ingest::Args),
    /// Questions to a filled store: newest jobs, one job's returns, a search by tag
    Query(query::Args),
    /// Durable `returner` calls, one at a time on each connection
    Returner(returner::Args),
    /// The reactor: its pipeline in one thread from tag to calls; its whole way at a rate; its memory over many events
    Reactor(reactor::Args),
    /// Each door with senders outside the daemon, beside the physical yardstick
    #[command(after_long_help = doors::EXAMPLES)]
    Doors(doors::Args),
    /// What `ingest` compares with; started by it
    #[command(hide = true)]
    Yardstick(yardstick::Args),
}

/// Flags of every measure.
#[derive(clap::Args)]
struct Common {
    /// Make the temporary state directory in this one, to measure its disk
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Leave the state directory behind
    #[arg(long)]
    keep: bool,
    /// What the events are made from; the same seed makes the same events
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(super) fn run(global: &Global, bench: Bench) -> anyhow::Result<()> {
    match bench {
        Bench::Ingest(args) => ingest::run(global, &args),
        Bench::Query(args) => query::run(global, &args),
        Bench::Returner(args) => returner::run(global, &args),
        Bench::Reactor(args) => reactor::run(global, &args),
        Bench::Doors(args) => doors::run(global, &args),
        Bench::Yardstick(args) => yardstick::run(&args),
    }
}

/// How far it is, on standard error, if that is a terminal.
struct Progress {
    shown: bool,
    last: Instant,
}

impl Progress {
    fn new() -> Self {
        Self { shown: std::io::stderr().is_terminal(), last: Instant::now() }
    }

    fn say(&mut self, words: impl FnOnce() -> String) {
        if self.shown && self.last.elapsed() > Duration::from_millis(200) {
            self.last = Instant::now();
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", words());
        }
    }

    fn done(&self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// `1,234,567`
fn thousands(n: f64) -> String {
    let digits = format!("{n:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with so many decimals, as JSON.
fn rounded(n: f64, decimals: i32) -> serde_json::Value {
    let unit = 10_f64.powi(decimals);
    serde_json::Value::from((n * unit).round() / unit)
}
