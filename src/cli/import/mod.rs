//! `saltcellar import ...`: what another job cache has, into the running daemon.
//!
//! # Invariant
//!
//! An import may be stopped at any moment and begun again, and may be done twice: what the daemon has already is not stored
//! again ([`known`]). Nothing is kept beside the store to that end.

mod feed;
mod item;
mod jsonl;
mod known;
mod likeness;
mod local_cache;
mod pgjsonb;

use std::path::PathBuf;

use serde_json::{Map, Value as Json, json};

pub(super) use self::feed::question;
use self::feed::{Feed, Tally};
pub(super) use self::jsonl::VERSION as JSONL_VERSION;
use self::likeness::Likeness;
use super::output::{Format, Output};
use super::progress::{Bar, Unit};
use super::when::When;
use super::{Global, ask};
use crate::clock::Clock;
use crate::model::Kind;

/// Verbs under `import`.
#[derive(clap::Subcommand)]
pub(super) enum Import {
    /// Salt's own job cache, the directory that `master_job_cache: local_cache` writes
    #[command(name = "local_cache", after_long_help = LOCAL_CACHE)]
    LocalCache {
        /// The directory: /var/cache/salt/master/jobs
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// Only jobs that began since: 10m, 2h, 3d, 2026-11-21 (UTC)
        #[arg(long, value_name = "TIME")]
        since: Option<When>,
    },
    /// The tables of Salt's returner pgjsonb, read by `psql`
    #[command(after_long_help = PGJSONB)]
    Pgjsonb {
        /// What psql connects to: postgresql://salt@db/salt, host=db dbname=salt, service=salt
        #[arg(value_name = "CONNECTION")]
        connection: String,
        /// Leave the table salt_events alone
        #[arg(long)]
        no_events: bool,
    },
    /// JSON lines, as `saltcellar export jsonl` writes them
    #[command(after_long_help = JSONL)]
    Jsonl {
        /// The file; - is standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

const LOCAL_CACHE: &str = "\
The daemon runs, and so may the master. Jobs keep their times, so retention lets go of what is older than it keeps; see
`saltcellar store stats`. Stopped in the middle, begun again or done twice, an import stores nothing twice. A file that cannot be read
is named and left out; the exit code is then 65.

Examples:
  saltcellar import local_cache /var/cache/salt/master/jobs
  saltcellar import local_cache --since 30d /var/cache/salt/master/jobs";

const PGJSONB: &str = "\
CONNECTION is whatever psql understands, without a password: that is read from PGPASSWORD, PGPASSFILE or ~/.pgpass. JSON knows no bytes: a return that is here
already counts as the same if it says the same in JSON.

Examples:
  saltcellar import pgjsonb postgresql://salt@db.example/salt
  saltcellar import pgjsonb --no-events service=salt";

const JSONL: &str = "\
docs/MIGRATE.md has the fields. Gaps of the other daemon's buses are not taken over.

Examples:
  saltcellar import jsonl salt.jsonl
  ssh old-master saltcellar export jsonl - | saltcellar import jsonl -";

/// Something could not be imported or exported; it was named.
#[derive(Debug, thiserror::Error)]
#[error("take everything: {0} left out, named above")]
pub(super) struct LeftOut(pub(super) u64);

pub(super) fn run(global: &Global, import: &Import) -> anyhow::Result<()> {
    // Two connections: answers to questions are large, and may not stand in the way of those to writes.
    let (asks, writes) = (ask::connect(global)?, ask::connect(global)?);
    let now = Clock::real().now().0;
    let (likeness, slack_s) = match import {
        Import::Pgjsonb { .. } => (Likeness::Json, 60),
        _ => (Likeness::Exact, 2),
    };
    let mut feed = Feed::new(asks, writes, likeness, slack_s * 1_000_000, now);
    feed.ask_retention()?;
    let unit = match import {
        Import::LocalCache { .. } => Unit::Jobs,
        Import::Pgjsonb { .. } => Unit::Rows,
        Import::Jsonl { .. } => Unit::Bytes,
    };
    let mut bar = Bar::new("import", unit);
    match import {
        Import::LocalCache { dir, since } => {
            local_cache::import(&mut feed, dir, since.as_ref().map(|When(at)| *at), &mut bar)?;
        }
        Import::Pgjsonb { connection, no_events } => {
            pgjsonb::import(&mut feed, connection, !no_events, &mut bar)?;
        }
        Import::Jsonl { file } => jsonl::import(&mut feed, file, &mut bar)?,
    }
    let seconds = bar.seconds();
    drop(bar);
    report(global, &feed.tally, seconds)?;
    match feed.tally.bad {
        0 => Ok(()),
        bad => Err(LeftOut(bad).into()),
    }
}

const KINDS: [(Kind, &str); 7] = [
    (Kind::Load, "loads"),
    (Kind::Return, "returns"),
    (Kind::Minions, "minions"),
    (Kind::Endtime, "endtimes"),
    (Kind::NoCache, "nocache"),
    (Kind::Event, "events"),
    (Kind::Register, "registers"),
];

fn report(global: &Global, tally: &Tally, seconds: f64) -> anyhow::Result<()> {
    let (stored, known) = tally.sums();
    let mut out = Output::new(global.output);
    let of = |kind: &Kind| tally.by_kind.get(kind).copied().unwrap_or_default();
    if out.format == Format::Table {
        for (kind, name) in KINDS {
            let (new, known) = of(&kind);
            if new + known > 0 {
                out.line(&format!("{name:<10} {new} stored, {known} known already"))?;
            }
        }
        let rate = (stored + known) as f64 / seconds.max(0.001);
        out.line(&format!(
            "{:<10} {stored} stored, {known} known already, {} left out, in {seconds:.1} s ({rate:.0}/s)",
            "all", tally.bad
        ))?;
        if tally.too_old > 0 {
            out.line(&format!(
                "{:<10} {} are older than the class `jobs` keeps its entries: retention lets go of them (docs/STORE.md)",
                "old", tally.too_old
            ))?;
        }
        return Ok(out.flush()?);
    }
    let kinds: Map<String, Json> = KINDS
        .iter()
        .map(|(kind, name)| {
            let (stored, known) = of(kind);
            ((*name).to_owned(), json!({ "stored": stored, "known": known }))
        })
        .collect();
    out.json(&json!({
        "stored": stored, "known": known, "left_out": tally.bad, "older_than_kept": tally.too_old,
        "seconds": seconds, "kinds": kinds,
    }))?;
    Ok(out.flush()?)
}
