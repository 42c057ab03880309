//! `saltcellar store stats`: shows statistics of the store.

use serde_json::Value as Json;

use super::{ago, bytes, span};
use crate::base::clock::Clock;
use crate::cli::{Column, Fields as _, Global, Output, Table, ask, show};

pub(super) const EXAMPLES: &str = "\
RAW is the size of tags and bodies as received, DISK the size on disk including indexes, RATIO is DISK / RAW. KEEPS is \
the age limit of entries, HELD the number of expired segments that are kept for held jobs.

Examples:
  saltcellar store stats
  saltcellar store stats --output json | jq '.classes[] | {class, disk_bytes}'";

pub(super) fn run(global: &Global) -> anyhow::Result<()> {
    let stats = ask::answer(global, "store_stats", (), "query the store's statistics")?;
    show(global.output, &stats, |out| table(out, &stats))
}

fn table(out: &mut Output, stats: &Json) -> anyhow::Result<()> {
    let space = stats.of("space");
    let [free, total, low, min] =
        ["free_bytes", "total_bytes", "low_bytes", "min_bytes"].map(|name| bytes(space.number(name)));
    let state = space.leaf("state");
    out.line(&format!("disk      {free} free of {total}: {state} (low below {low}, full below {min})"))?;
    let checkpoint = stats.of("checkpoint").as_u64().map_or("-".to_owned(), |seq| seq.to_string());
    let (head, durable) = (stats.number("head"), stats.number("durable"));
    out.line(&format!("seq       head {head}, durable {durable}, checkpoint {checkpoint}"))?;
    out.line(&format!("held      {} jobs", stats.number("holds")))?;
    let classes = stats.list("classes");
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
    Ok(table.print(out, &rows)?)
}

fn statistics(class: &Json, now: i64) -> Vec<String> {
    let (raw, disk) = (class.number("raw_bytes"), class.number("disk_bytes"));
    let ratio =
        (disk * 100).checked_div(raw).map_or("-".to_owned(), |n| format!("{}.{:02}", n / 100, n % 100));
    let rate = class.number("entries_per_1000_s");
    vec![
        class.leaf("class"),
        class.leaf("segments"),
        class.leaf("entries"),
        bytes(raw),
        bytes(disk),
        ratio,
        ago(class, "oldest", now),
        ago(class, "newest", now),
        format!("{}.{}", rate / 1000, rate % 1000 / 100),
    ]
}

fn limits(class: &Json) -> Vec<String> {
    let age = match (class.text("keep_age"), class.of("keep_age_s").as_u64()) {
        ("salt", Some(seconds)) => format!("{} (salt)", span(seconds)),
        ("salt", None) if *class.of("keep_age_known") == false => "not reported yet (salt)".to_owned(),
        ("salt", None) => "forever (salt)".to_owned(),
        (_, Some(seconds)) => span(seconds),
        (_, None) => "forever".to_owned(),
    };
    let age = if class.is("configured") { age } else { format!("{age} (not configured)") };
    let or_dash = |name: &str, show: fn(u64) -> String| class.of(name).as_u64().map_or("-".to_owned(), show);
    vec![
        class.leaf("class"),
        age,
        or_dash("keep_bytes", bytes),
        or_dash("keep_entries", |n| n.to_string()),
        class.leaf("held_segments"),
    ]
}
