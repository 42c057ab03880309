//! `saltcellar store prune`: applies retention on request.

use std::time::Duration;

use anyhow::{Context, anyhow};

use super::tool::ago;
use crate::api::call as calls;
use crate::api::call::store::{PruneArgs, PruneOutcome, Pruned, PrunedSegment, pruned};
use crate::base::clock::Clock;
use crate::base::units::bytes;
use crate::cli::{Column, Global, NoDaemon, Output, Table, ask, print_error, show_rows};
use crate::config::{Config, Environment};
use crate::daemon::{open_for_command, store_options};
use crate::model::word::Word as _;
use crate::model::{Age, Keep};
use crate::store::retain::PruneOptions;

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Only this retention class
    #[arg(long)]
    retention_class: Option<String>,
    /// Keep younger entries, instead of the class's own limits: 12h, 30d
    #[arg(long, value_parser = age)]
    age: Option<Duration>,
    /// Keep this many bytes on disk, instead of the class's own limits: 500MiB, 2GiB
    #[arg(long, value_parser = size)]
    bytes: Option<u64>,
    /// Keep this many entries, instead of the class's own limits
    #[arg(long)]
    entries: Option<u64>,
    /// Accept the keep_jobs_seconds that Salt reported, although it is shorter than the one in effect
    #[arg(long, conflicts_with_all = ["retention_class", "age", "bytes", "entries"])]
    accept_salt: bool,
    /// Only show the segments that would be dropped
    #[arg(long)]
    dry_run: bool,
}

pub(super) const EXAMPLES: &str = "\
Drops whole segments, oldest first, but never the active segment or segments with entries of held jobs. \
Without --age, --bytes and --entries the configured limits apply, which the daemon enforces every few seconds anyway. \
Without a running daemon, the command opens the store itself.

Age is measured by the system clock. After a step of the clock, the daemon pauses deletion by age for up to a day (see \
the check `clock` of `saltcellar doctor`). prune does not wait. Without --retention-class, --age, --bytes and --entries it also \
confirms that the clock is right.

A master whose keep_jobs_seconds becomes shorter deletes nothing by itself: `saltcellar status` reports it, and --accept-salt puts it into effect.

Examples:
  saltcellar store prune --dry-run
  saltcellar store prune --retention-class events --age 7d --dry-run
  saltcellar store prune --retention-class chatter --bytes 500MiB
  saltcellar store prune --accept-salt --dry-run
  saltcellar store prune --dry-run --output json | jq '[.segments[].disk_bytes] | add'";

fn age(text: &str) -> Result<Duration, String> {
    Duration::parse(text).ok_or_else(|| "expected a duration such as 90m, 12h or 30d".to_owned())
}

fn size(text: &str) -> Result<u64, String> {
    u64::parse(text).ok_or_else(|| "expected bytes, or a number with KiB, MiB or GiB".to_owned())
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let call = PruneArgs {
        class: args.retention_class.clone(),
        age_s: args.age.map(|age| age.as_secs()),
        bytes: args.bytes,
        entries: args.entries,
        accept_salt: args.accept_salt,
        dry_run: args.dry_run,
        ..PruneArgs::default()
    };

    // The daemon holds the lock of the store, so it does the work if it runs.
    let answer = match ask::answer::<calls::store::Prune>(global, &call, "prune the store") {
        Err(error) if error.is::<NoDaemon>() => {
            if args.accept_salt {
                // Only a running daemon has received a report.
                return Err(error.context("accept the keep_jobs_seconds that Salt reported"));
            }

            // Without a daemon the store is free, and opened here.
            offline(global, args)?
        }
        answer => answer?,
    };

    show_rows(global.output, &answer, &answer.segments, |out| {
        table(out, &answer.segments, args.dry_run)
    })?;

    // Printed first: other segments may have been dropped in spite of the error.
    match answer.segments.into_iter().find_map(|row| row.error) {
        Some(error) => Err(anyhow!("prune the store: {error}")),
        None => Ok(()),
    }
}

/// Prunes the configured store under its lock, without a daemon.
fn offline(global: &Global, args: &Args) -> anyhow::Result<Pruned> {
    let config = Config::load(&global.overrides(), &Environment::of_process())
        .context("read the configuration")?;

    // Opening the store would create a missing one.
    if !config.state_dir.join("FORMAT").exists() {
        return Err(anyhow!(
            "prune the store: the daemon is unreachable, and {} contains no store; start the daemon, or name its directory with --state-dir",
            config.state_dir.display()
        ));
    }

    print_error(&format!(
        "daemon unreachable, opening the store in {}",
        config.state_dir.display()
    ));

    let options = store_options(&config, "saltcellar store prune".to_owned(), Clock::real());
    let opened = open_for_command(&options).context("open the store")?;

    let own = args.age.is_some() || args.bytes.is_some() || args.entries.is_some();

    // One limit given replaces all limits of the class.
    let keep = own.then(|| Keep {
        age: args.age.map_or(Age::Forever, Age::For),
        bytes: args.bytes,
        entries: args.entries,
    });

    let options = PruneOptions {
        class: args.retention_class.clone(),
        keep,
        // `run` rejects it without a daemon.
        accept_salt: false,
        dry_run: args.dry_run,
    };

    let all = opened.store.prune(&options).context("prune the store")?;
    Ok(pruned(&all))
}

fn table(out: &mut Output, rows: &[PrunedSegment], dry_run: bool) -> anyhow::Result<()> {
    let now = Clock::real().now();

    let cells = |row: &PrunedSegment| {
        vec![
            row.class.clone(),
            row.segment.to_string(),
            row.entries.to_string(),
            row.jobs.to_string(),
            bytes(row.disk_bytes),
            ago(row.oldest, now),
            ago(row.newest, now),
            row.reason.name().to_owned(),
            row.outcome.name().to_owned(),
        ]
    };

    // Nothing to drop is a result, not an empty table.
    if !rows.is_empty() {
        let mut table = Table::new([
            Column::truncated("CLASS"),
            Column::right("SEGMENT"),
            Column::right("ENTRIES"),
            Column::right("JOBS"),
            Column::right("DISK"),
            Column::right("OLDEST"),
            Column::right("NEWEST"),
            Column::left("LIMIT"),
            Column::left("OUTCOME"),
        ]);
        table.print(out, &rows.iter().map(cells).collect::<Vec<_>>())?;
    }

    // Segments that stay because of held jobs or an error are listed, but not counted.
    let (outcome, verb) = if dry_run {
        (PruneOutcome::Planned, "would be dropped")
    } else {
        (PruneOutcome::Dropped, "dropped")
    };

    let dropped: Vec<_> = rows.iter().filter(|row| row.outcome == outcome).collect();
    let entries: u64 = dropped.iter().map(|row| row.entries).sum();
    let size = bytes(dropped.iter().map(|row| row.disk_bytes).sum());

    Ok(out.line(&format!(
        "{} segments {verb}: {entries} entries, {size} on disk",
        dropped.len()
    ))?)
}
