//! `saltcellar import ...`: imports another job cache into the running daemon.
//!
//! # Invariant
//!
//! An import can be interrupted at any moment and repeated: entries that the daemon already has are
//! not stored again ([`known`]). This needs no state outside the store.

mod feed;
mod fingerprint;
mod item;
mod jsonl;
mod known;
mod local_cache;

use std::path::PathBuf;

use serde_json::{Map, json};

use self::feed::{Feed, ImportStats};
pub(super) use self::jsonl::VERSION as JSONL_VERSION;
use crate::base::clock::Clock;
use crate::base::limits::IMPORT_BAD_NAMED;
use crate::cli::store::tool::count;
use crate::cli::{Bar, Exit, Finding, Global, Unit, When, ask, show};
use crate::model::Kind;

#[derive(clap::Subcommand)]
pub(super) enum Import {
    /// Import Salt's job cache, the directory of `master_job_cache: local_cache`
    #[command(name = "local-cache", after_long_help = LOCAL_CACHE)]
    LocalCache {
        /// The directory, by default of Salt /var/cache/salt/master/jobs
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// Only jobs started since: 3d or -3d (ago), 'yesterday 14:00', 2026-11-21
        #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
        since: Option<When>,
    },
    /// Import JSON lines, as written by `saltcellar export jsonl`
    #[command(after_long_help = JSONL)]
    Jsonl {
        /// The file; - reads standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

impl Import {
    /// Everything in a directory of Salt's job cache.
    pub(super) fn local_cache(dir: PathBuf) -> Self {
        Self::LocalCache { dir, since: None }
    }
}

const LOCAL_CACHE: &str = "\
Requires a running daemon; the master may also run. Jobs keep their times, so retention drops jobs beyond its age limit; see \
`saltcellar store stats`. An import can be interrupted and repeated without storing anything twice. Unreadable files are \
reported and skipped; the exit code is then 65.

Examples:
  saltcellar import local-cache /var/cache/salt/master/jobs
  saltcellar import local-cache --since 30d /var/cache/salt/master/jobs";

const JSONL: &str = "\
docs/EXPORT.md lists the fields. Gaps, reactions and other records of the daemon that wrote the export are counted and left out.

Examples:
  saltcellar import jsonl salt.jsonl
  ssh old-master saltcellar export jsonl - | saltcellar import jsonl -";

/// The error of an import that skipped items.
fn skipped(items: u64) -> anyhow::Error {
    let listed = if items > IMPORT_BAD_NAMED {
        format!("the first {IMPORT_BAD_NAMED} are listed above")
    } else {
        "see above".to_owned()
    };
    let items = count(items, "item", "items");
    Finding {
        exit: Exit::Corrupt,
        message: format!("{items} skipped, {listed}; the rest is stored"),
    }
    .into()
}

pub(super) fn run(global: &Global, import: &Import) -> anyhow::Result<()> {
    // Two connections, because large responses to lookups must not delay responses to writes.
    let (reads, writes) = (ask::connect(global)?, ask::connect(global)?);

    let now = Clock::real().now().0;
    let mut feed = Feed::new(reads, writes, now);
    feed.query_retention()?;

    let unit = match import {
        Import::LocalCache { .. } => Unit::Jobs,
        Import::Jsonl { .. } => Unit::Bytes,
    };

    let mut bar = Bar::new("import", unit);

    match import {
        Import::LocalCache { dir, since } => {
            local_cache::import(
                &mut feed,
                dir,
                since.map(|since| since.micros().0),
                &mut bar,
            )?;
        }
        Import::Jsonl { file } => jsonl::import(&mut feed, file, &mut bar)?,
    }

    let seconds = bar.seconds();
    drop(bar);

    // Printed first, because the items that were not skipped are stored.
    report(global, &feed.stats, seconds)?;

    match feed.stats.skipped {
        0 => Ok(()),
        count => Err(skipped(count)),
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

fn report(global: &Global, stats: &ImportStats, seconds: f64) -> anyhow::Result<()> {
    let (stored, known) = stats.totals();
    let of = |kind: &Kind| stats.by_kind.get(kind).copied().unwrap_or_default();

    // Every kind in JSON, even without items: a script need not ask whether its key exists.
    let counts = |(kind, name): &(Kind, &str)| {
        let (stored, known) = of(kind);
        (
            (*name).to_owned(),
            json!({ "stored": stored, "known": known }),
        )
    };

    let document = json!({
        "stored": stored, "known": known, "skipped": stats.skipped, "left_out": stats.left_out, "older_than_kept": stats.too_old,
        "seconds": seconds, "kinds": KINDS.iter().map(counts).collect::<Map<_, _>>(),
    });

    show(global.output, &document, |out| {
        for (kind, name) in KINDS {
            let (new, known) = of(&kind);
            if new + known > 0 {
                out.line(&format!("{name:<10} {new} stored, {known} known already"))?;
            }
        }

        // An empty import takes no measurable time.
        let rate = (stored + known) as f64 / seconds.max(0.001);

        out.line(&format!(
            "{:<10} {stored} stored, {known} known already, {} skipped, in {seconds:.1} s ({rate:.0}/s)",
            "all", stats.skipped
        ))?;

        for (kind, count) in &stats.left_out {
            out.line(&format!(
                "{kind:<10} {count} left out: records of the daemon that wrote the export"
            ))?;
        }

        if stats.too_old > 0 {
            out.line(&format!(
                "{:<10} {} are beyond the age limit of the class `jobs`: retention will drop them (docs/RETENTION.md)",
                "old", stats.too_old
            ))?;
        }

        Ok(())
    })
}
