//! `saltcellar store prune`: retention on request.

use std::time::Duration;

use anyhow::{Context, anyhow};
use rmpv::Value;
use serde_json::Value as Json;

use super::super::ask::NoDaemon;
use super::super::output::{Format, Output, OutputError};
use super::super::table::{Column, Table};
use super::super::{Global, ask, say};
use super::{ago, bytes, number, text};
use crate::api::call::prune_answer;
use crate::clock::Clock;
use crate::config::{Config, Surroundings, parse_duration, parse_size};
use crate::daemon::store_options;
use crate::model::{Age, Keep};
use crate::store::Store;
use crate::store::retention::PruneWish;
use crate::wire;

/// Flags of `store prune`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// This class only
    #[arg(long)]
    class: Option<String>,
    /// Keep what is younger, instead of the class's own bounds: 12h, 30d
    #[arg(long, value_parser = age)]
    age: Option<Duration>,
    /// Keep so many bytes on disk, instead of the class's own bounds: 500MiB, 2GiB
    #[arg(long, value_parser = size)]
    bytes: Option<u64>,
    /// Keep so many entries, instead of the class's own bounds
    #[arg(long)]
    entries: Option<u64>,
    /// Only say what would go
    #[arg(long)]
    dry_run: bool,
}

pub(super) const EXAMPLES: &str = "\
Whole finished segments go, the oldest first. The one that is being written to never goes, nor one with entries of a \
held job. Without --age, --bytes and --entries the bounds of the configuration count; the daemon looks at those every \
few seconds by itself. Without a daemon the store is opened, pruned and closed again.

Age is counted by the system clock. After the clock was set, deletion by age waits for up to a day (see the check \
`clock` of `saltcellar doctor`); prune does not wait, and without --class, --age, --bytes and --entries it confirms that \
the clock is right.

Examples:
  saltcellar store prune --dry-run
  saltcellar store prune --class events --age 7d --dry-run
  saltcellar store prune --class chatter --bytes 500MiB
  saltcellar store prune --dry-run --output json | jq '[.segments[].disk_bytes] | add'";

fn age(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "give a time such as 90m, 12h or 30d".to_owned())
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| "give bytes, or a number with KiB, MiB or GiB".to_owned())
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

/// Opens the store that the daemon would run on, under its lock.
fn offline(global: &Global, args: &Args) -> anyhow::Result<Json> {
    let config =
        Config::load(&global.given(), &Surroundings::of_process()).context("read the configuration")?;
    if !config.state_dir.join("FORMAT").exists() {
        return Err(anyhow!(
            "prune the store: no daemon answers, and there is no store in {}",
            config.state_dir.display()
        ));
    }
    say(&format!("no daemon answers; opening the store in {}", config.state_dir.display()));
    let options = store_options(&config, "saltcellar store prune".to_owned(), Clock::real());
    let opened = Store::open(&options).context("open the store")?;
    let own = args.age.is_some() || args.bytes.is_some() || args.entries.is_some();
    let keep = own.then(|| Keep {
        age: args.age.map_or(Age::Forever, Age::For),
        bytes: args.bytes,
        entries: args.entries,
    });
    let wish = PruneWish { class: args.class.clone(), keep, dry_run: args.dry_run };
    let all = opened.store.prune(&wish).context("prune the store")?;
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
            Column::shrinks("CLASS"),
            Column::right("SEGMENT"),
            Column::right("ENTRIES"),
            Column::right("JOBS"),
            Column::right("DISK"),
            Column::right("OLDEST"),
            Column::right("NEWEST"),
            Column::left("BOUND"),
            Column::left("OUTCOME"),
        ]);
        table.print(out, &rows.iter().map(cells).collect::<Vec<_>>())?;
    }
    let outcome = if dry_run { "goes" } else { "gone" };
    let going = || rows.iter().filter(|row| text(row, "outcome") == outcome);
    let sum = |name: &str| going().map(|row| number(row, name)).sum::<u64>();
    let (words, count) = (if dry_run { "would go" } else { "went" }, going().count());
    let (entries, size) = (sum("entries"), bytes(sum("disk_bytes")));
    out.line(&format!("{count} segments {words}: {entries} entries, {size} on disk"))
}
