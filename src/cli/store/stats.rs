//! `saltcellar store stats`: shows statistics of the store.

use super::tool::ago;
use crate::api::call::store::{StoreClass, StoreState};
use crate::api::call::{self as calls, NoArgs};
use crate::base::clock::{Clock, Micros};
use crate::base::units::{bytes, span};
use crate::cli::{Column, Global, Output, Table, ask, show};

pub(super) const EXAMPLES: &str = "\
RAW is the size of tags and bodies as received, DISK the size on disk including indexes, RATIO is DISK / RAW. KEEPS is \
the age limit of entries, HELD the number of expired segments that are kept for held jobs.

Examples:
  saltcellar store stats
  saltcellar store stats --output json | jq '.classes[] | {class, disk_bytes}'";

pub(super) fn run(global: &Global) -> anyhow::Result<()> {
    let state =
        ask::answer::<calls::store::Stats>(global, &NoArgs {}, "query the store's statistics")?;
    show(global.output, &state, |out| table(out, &state))
}

fn table(out: &mut Output, stats: &StoreState) -> anyhow::Result<()> {
    let space = &stats.space;

    let [free, total, low, min] = [
        space.free_bytes,
        space.total_bytes,
        space.low_bytes,
        space.min_bytes,
    ]
    .map(bytes);

    // Whether entries are accepted comes first.
    let state = space.state.name();
    out.line(&format!(
        "disk      {free} free of {total}: {state} (low below {low}, full below {min})"
    ))?;

    // A store without consumers has no checkpoint.
    let checkpoint = or_dash(stats.checkpoint, |seq| seq.to_string());

    let StoreState {
        head,
        durable,
        holds,
        classes,
        ..
    } = stats;
    out.line(&format!(
        "seq       head {head}, durable {durable}, checkpoint {checkpoint}"
    ))?;
    out.line(&format!("held      {holds} jobs"))?;

    let now = Clock::real().now();
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

    // A second table: together the columns would not fit 80 characters.
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

fn or_dash(value: Option<u64>, show: fn(u64) -> String) -> String {
    value.map_or("-".to_owned(), show)
}

fn statistics(class: &StoreClass, now: Micros) -> Vec<String> {
    let (raw, disk, rate) = (class.raw_bytes, class.disk_bytes, class.entries_per_1000_s);
    // In hundredths, and none for an empty class.
    let ratio = or_dash((disk * 100).checked_div(raw), |percent| {
        format!("{}.{:02}", percent / 100, percent % 100)
    });

    vec![
        class.class.clone(),
        class.segments.to_string(),
        class.entries.to_string(),
        bytes(raw),
        bytes(disk),
        ratio,
        ago(class.oldest, now),
        ago(class.newest, now),
        format!("{}.{}", rate / 1000, rate % 1000 / 100),
    ]
}

fn limits(class: &StoreClass) -> Vec<String> {
    let in_effect = class.keep_age_s.map_or("forever".to_owned(), span);

    // The configured form explains an age that Salt decides.
    let age = if class.keep_age.contains("salt") {
        format!("{in_effect} ({})", class.keep_age)
    } else {
        in_effect
    };

    // Salt's shorter limit has no effect before it is accepted (`store prune --accept-salt`).
    let age = match class.shorter_age_s {
        Some(shorter) => format!("{age}, Salt now {}", span(shorter)),
        None => age,
    };

    // Segments of a class that left the configuration remain.
    let age = if class.configured {
        age
    } else {
        format!("{age} (not configured)")
    };

    vec![
        class.class.clone(),
        age,
        or_dash(class.keep_bytes, bytes),
        or_dash(class.keep_entries, |n| n.to_string()),
        class.held_segments.to_string(),
    ]
}
