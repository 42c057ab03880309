//! `saltcellar store prune`: applies retention on request.

use std::time::Duration;

use anyhow::{Context, anyhow};
use rmpv::Value;
use serde_json::Value as Json;

use super::super::ask::NoDaemon;
use super::super::format::output::{Format, Output, OutputError};
use super::super::format::table::{Column, Table};
use super::super::{Global, ask, print_error};
use super::{ago, bytes, number, text};
use crate::api::call::prune_answer;
use crate::clock::Clock;
use crate::config::{Config, Environment, parse_duration, parse_size};
use crate::daemon::store_options;
use crate::model::{Age, Keep};
use crate::store::Store;
use crate::store::retain::PruneOptions;
use crate::wire;

/// Flags of `store prune`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Only this class
    #[arg(long)]
    class: Option<String>,
    /// Keep younger entries, instead of the class's own limits: 12h, 30d
    #[arg(long, value_parser = age)]
    age: Option<Duration>,
    /// Keep this many bytes on disk, instead of the class's own limits: 500MiB, 2GiB
    #[arg(long, value_parser = size)]
    bytes: Option<u64>,
    /// Keep this many entries, instead of the class's own limits
    #[arg(long)]
    entries: Option<u64>,
    /// Only show the segments that would be dropped
    #[arg(long)]
    dry_run: bool,
}

pub(super) const EXAMPLES: &str = "\
Drops whole finished segments, oldest first, but never the growing segment or segments with entries of held jobs. \
Without --age, --bytes and --entries the configured limits apply, which the daemon enforces every few seconds anyway. \
Without a running daemon, the command opens the store itself.

Age is measured by the system clock. After a step of the clock, the daemon pauses deletion by age for up to a day (see \
the check `clock` of `saltcellar doctor`). prune does not wait. Without --class, --age, --bytes and --entries it also \
confirms that the clock is right.

Examples:
  saltcellar store prune --dry-run
  saltcellar store prune --class events --age 7d --dry-run
  saltcellar store prune --class chatter --bytes 500MiB
  saltcellar store prune --dry-run --output json | jq '[.segments[].disk_bytes] | add'";

fn age(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "expected a duration such as 90m, 12h or 30d".to_owned())
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| "expected bytes, or a number with KiB, MiB or GiB".to_owned())
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let answer = match ask::connect(global) {
        Ok(mut client) => {
            let number = |n: Option<u64>| n.map_or(Value::Nil, Value::from);
            let pairs = [
                ("class", args.class.clone().map_or(Value::Nil, Value::from)),
                ("age_s", number(args.age.map(|age| age.as_secs()))),
                ("bytes", number(args.bytes)),
                ("entries", number(args.entries)),
                ("dry_run", Value::from(args.dry_run)),
            ];
            ask::call(&mut client, "store_prune", pairs).context("prune the store")?
        }
        Err(error) if error.is::<NoDaemon>() => offline(global, args)?,
        Err(error) => return Err(error),
    };
    let mut out = Output::new(global.output);
    match out.format {
        Format::Table => table(&mut out, &answer, args.dry_run)?,
        Format::Json => out.json(&answer)?,
        Format::Jsonl => rows(&answer).iter().try_for_each(|row| out.json(row))?,
    }
    out.flush()?;
    match rows(&answer).iter().find(|row| text(row, "outcome") == "failed") {
        Some(row) => Err(anyhow!("prune the store: {}", text(row, "error"))),
        None => Ok(()),
    }
}

/// Prunes the configured store under its lock, without a daemon.
fn offline(global: &Global, args: &Args) -> anyhow::Result<Json> {
    let config =
        Config::load(&global.overrides(), &Environment::of_process()).context("read the configuration")?;
    if !config.state_dir.join("FORMAT").exists() {
        return Err(anyhow!(
            "prune the store: the daemon is unreachable, and {} contains no store",
            config.state_dir.display()
        ));
    }
    print_error(&format!("daemon unreachable, opening the store in {}", config.state_dir.display()));
    let options = store_options(&config, "saltcellar store prune".to_owned(), Clock::real());
    let opened = Store::open(&options).context("open the store")?;
    let own = args.age.is_some() || args.bytes.is_some() || args.entries.is_some();
    let keep = own.then(|| Keep {
        age: args.age.map_or(Age::Forever, Age::For),
        bytes: args.bytes,
        entries: args.entries,
    });
    let options = PruneOptions { class: args.class.clone(), keep, dry_run: args.dry_run };
    let all = opened.store.prune(&options).context("prune the store")?;
    let value = rmpv::decode::read_value(&mut prune_answer(&all).as_slice()).context("read the answer")?;
    Ok(wire::json::to_json(&value))
}

fn rows(answer: &Json) -> &[Json] {
    answer.get("segments").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn table(out: &mut Output, answer: &Json, dry_run: bool) -> Result<(), OutputError> {
    let rows = rows(answer);
    let now = Clock::real().now().0;
    let cells = |row: &Json| {
        vec![
            text(row, "class").to_owned(),
            number(row, "segment").to_string(),
            number(row, "entries").to_string(),
            number(row, "jobs").to_string(),
            bytes(number(row, "disk_bytes")),
            ago(row, "oldest", now),
            ago(row, "newest", now),
            text(row, "reason").to_owned(),
            text(row, "outcome").to_owned(),
        ]
    };
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
    let outcome = if dry_run { "planned" } else { "dropped" };
    let dropped = || rows.iter().filter(|row| text(row, "outcome") == outcome);
    let sum = |name: &str| dropped().map(|row| number(row, name)).sum::<u64>();
    let (verb, count) = (if dry_run { "would be dropped" } else { "dropped" }, dropped().count());
    let (entries, size) = (sum("entries"), bytes(sum("disk_bytes")));
    out.line(&format!("{count} segments {verb}: {entries} entries, {size} on disk"))
}
