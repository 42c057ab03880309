//! `saltcellar store stats`: shows statistics of the store.

use anyhow::Context;
use serde_json::Value as Json;

use super::super::format::output::{Format, Output, OutputError};
use super::super::format::table::{Column, Table};
use super::super::{Global, ask};
use super::{ago, bytes, number, span, text};
use crate::clock::Clock;

pub(super) const EXAMPLES: &str = "\
RAW is the size of tags and bodies as received, DISK the size on disk including indexes, RATIO is DISK / RAW. KEEPS is \
the age limit of entries, HELD the number of expired segments that are kept for held jobs.

Examples:
  saltcellar store stats
  saltcellar store stats --output json | jq '.classes[] | {class, disk_bytes}'";

pub(super) fn run(global: &Global) -> anyhow::Result<()> {
    let mut client = ask::connect(global)?;
    let stats = ask::call(&mut client, "store_stats", []).context("query the store's statistics")?;
    let mut out = Output::new(global.output);
    match out.format {
        Format::Table => table(&mut out, &stats)?,
        Format::Json | Format::Jsonl => out.json(&stats)?,
    }
    Ok(out.flush()?)
}

fn table(out: &mut Output, stats: &Json) -> Result<(), OutputError> {
    let space = stats.get("space").unwrap_or(&Json::Null);
    out.line(&format!(
        "disk      {} free of {}: {} (low below {}, full below {})",
        bytes(number(space, "free_bytes")),
        bytes(number(space, "total_bytes")),
        text(space, "state"),
        bytes(number(space, "low_bytes")),
        bytes(number(space, "min_bytes")),
    ))?;
    let checkpoint = stats.get("checkpoint").and_then(Json::as_u64);
    let checkpoint = checkpoint.map_or("-".to_owned(), |seq| seq.to_string());
    out.line(&format!(
        "seq       head {}, durable {}, checkpoint {checkpoint}",
        number(stats, "head"),
        number(stats, "durable")
    ))?;
    out.line(&format!("held      {} jobs", number(stats, "holds")))?;
    let classes = stats.get("classes").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
    let now = Clock::real().now().0;
    out.line("")?;
    let mut table = Table::new([
        Column::truncated("CLASS"),
        Column::right("SEGS"),
        Column::right("ENTRIES"),
        Column::right("RAW"),
        Column::right("DISK"),
        Column::right("RATIO"),
        Column::right("OLDEST"),
        Column::right("NEWEST"),
        Column::right("PER S"),
    ]);
    let rows: Vec<_> = classes.iter().map(|class| statistics(class, now)).collect();
    table.print(out, &rows)?;
    out.line("")?;
    let mut table = Table::new([
        Column::truncated("CLASS"),
        Column::left("KEEPS"),
        Column::right("BYTES"),
        Column::right("ENTRIES"),
        Column::right("HELD"),
    ]);
    let rows: Vec<_> = classes.iter().map(limits).collect();
    table.print(out, &rows)
}

fn statistics(class: &Json, now: i64) -> Vec<String> {
    let (raw, disk) = (number(class, "raw_bytes"), number(class, "disk_bytes"));
    let ratio =
        (disk * 100).checked_div(raw).map_or("-".to_owned(), |n| format!("{}.{:02}", n / 100, n % 100));
    let rate = number(class, "entries_per_1000_s");
    vec![
        text(class, "class").to_owned(),
        number(class, "segments").to_string(),
        number(class, "entries").to_string(),
        bytes(raw),
        bytes(disk),
        ratio,
        ago(class, "oldest", now),
        ago(class, "newest", now),
        format!("{}.{}", rate / 1000, rate % 1000 / 100),
    ]
}

fn limits(class: &Json) -> Vec<String> {
    let age = match (text(class, "keep_age"), class.get("keep_age_s").and_then(Json::as_u64)) {
        ("salt", Some(seconds)) => format!("{} (salt)", span(seconds)),
        ("salt", None) if class.get("keep_age_known").and_then(Json::as_bool) == Some(false) => {
            "not reported yet (salt)".to_owned()
        }
        ("salt", None) => "forever (salt)".to_owned(),
        (_, Some(seconds)) => span(seconds),
        (_, None) => "forever".to_owned(),
    };
    let configured = class.get("configured").and_then(Json::as_bool).unwrap_or(true);
    let age = if configured { age } else { format!("{age} (not configured)") };
    let or_dash = |name: &str, show: fn(u64) -> String| {
        class.get(name).and_then(Json::as_u64).map_or("-".to_owned(), show)
    };
    vec![
        text(class, "class").to_owned(),
        age,
        or_dash("keep_bytes", bytes),
        or_dash("keep_entries", |n| n.to_string()),
        number(class, "held_segments").to_string(),
    ]
}
