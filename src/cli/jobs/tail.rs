//! `saltcellar events tail` and `count`: read events forwards.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde_json::{Value as Json, json};

use super::events::{columns, row};
use super::filter::FilterFlags;
use crate::api::call as calls;
use crate::api::call::events::{EventGroup, EventRow};
use crate::base::clock::Micros;
use crate::cli::{
    Column, Fields as _, Format, Global, Output, Table, TimeRange, When, ask, nested, plain,
    print_error, short, show, show_rows, title, value,
};

pub(in crate::cli) const EXAMPLES: &str = "\
Prints each event once, in order: first those since --since, then new ones as they are stored. JSON includes each event's data. \
The command replaces `salt-run state.event pretty=True`, and needs no access to Salt's bus. \
After a restart of the daemon it continues at its position; an event `saltcellar/gap/retention` stands for events that were deleted meanwhile.

Examples:
  saltcellar events tail
  saltcellar events tail --since 10m --tag 'salt/job/*/ret/*'
  saltcellar events tail --where 'data.success is false and data.fun is startingwith(\"state.\")' --data
  saltcellar events tail --output jsonl | jq .data";

pub(in crate::cli) const COUNT_EXAMPLES: &str = "\
Examples:
  saltcellar events count --since 1d --tag 'salt/auth'
  saltcellar events count --fun 'state.*' --retcode '!0'
  saltcellar events count --since today --by function
  saltcellar events count --since -1d --search 'Permission denied' --by minion";

/// Wait of one call, in milliseconds, which bounds the time until a dead daemon is noticed.
const WAIT_MS: u64 = 10_000;

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    filter: FilterFlags,
    /// Start with the events since then: 2h or -2h (ago), 'yesterday 14:00', '2026-11-21 05:47'
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    since: Option<When>,
    /// End after this number of events
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Show each event's data
    #[arg(long)]
    data: bool,
}

#[derive(clap::Args)]
pub(in crate::cli) struct CountArgs {
    #[command(flatten)]
    filter: FilterFlags,
    #[command(flatten)]
    when: TimeRange,
    /// Count by function, minion, hour or class
    #[arg(long, value_name = "WHAT", value_parser = ["function", "minion", "hour", "class"], hide_possible_values = true)]
    by: Option<String>,
}

impl CountArgs {
    /// Whether it prints a table: without groups there is one number.
    pub(super) fn has_rows(&self) -> bool {
        self.by.is_some()
    }
}

/// The arguments of a call: a filter and others.
fn with_filter(filter: &FilterFlags, others: Json) -> anyhow::Result<Json> {
    let mut args = serde_json::to_value(filter)?;
    if let (Json::Object(args), Json::Object(others)) = (&mut args, others) {
        args.extend(others);
    }

    Ok(args)
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let operation = "follow the events";
    let mut client = ask::connect(global)?;
    let mut out = Output::new(global.output);
    let mut table = Table::new(columns());
    let mut left = args.limit.unwrap_or(u64::MAX);

    // The first call does not wait: its response has the position from which a later connection
    // continues.
    let mut call_args = with_filter(&args.filter, json!({ "wait_ms": 0, "time": args.since }))?;

    let mut has_position = false;

    while left > 0 {
        ask::set(
            &mut call_args,
            "limit",
            left.min(crate::base::limits::CLI_PAGE_ROWS).into(),
        );

        let (found, json) = match ask::call_as::<calls::events::Follow>(&mut client, &call_args) {
            // Before the first result there is no position from which to continue.
            Err(error) if has_position && ask::is_gone(&error) => {
                client = ask::reconnected(global, None)?;
                continue;
            }
            answer => answer.context(operation)?,
        };

        for (event, json) in found.events.iter().zip(json.list("events")) {
            print(&mut out, &mut table, event, json, args.data)?;
            left = left.saturating_sub(1);
        }

        // Now, because the next call may wait, and a pipe would hold the lines back.
        out.flush()?;

        // After the events before it. It may match, so it is not passed in silence.
        if let Some(unfiltered) = &found.unfiltered {
            print_error(&format!("{}; not shown", plain(&unfiltered.reason)));
        }

        // From now on by position: by time, an event could be missed or repeated.
        has_position = true;
        ask::set(&mut call_args, "wait_ms", WAIT_MS.into());
        ask::set(&mut call_args, "time", Json::Null);
        ask::set(&mut call_args, "seq", found.next.into());
    }
    Ok(())
}

fn print(
    out: &mut Output,
    table: &mut Table,
    event: &EventRow,
    json: &Json,
    with_data: bool,
) -> anyhow::Result<()> {
    if out.format != Format::Table {
        return Ok(out.json(json)?);
    }

    if out.is_csv() {
        return Ok(table.print(out, &[row(event)])?);
    }

    // Not aligned, because the width of later events is unknown.
    let line = row(event)
        .into_iter()
        .filter(|cell| !cell.is_empty())
        .collect::<Vec<_>>()
        .join("  ");
    out.line(&line)?;

    if with_data {
        nested(&value(&event.data), 4)
            .lines()
            .try_for_each(|line| out.line(line))?;
    }
    Ok(())
}

pub(super) fn count(global: &Global, args: &CountArgs) -> anyhow::Result<()> {
    let operation = "count the events";
    let mut client = ask::connect(global)?;
    let mut call_args = with_filter(&args.filter, serde_json::to_value(&args.when)?)?;
    ask::set(&mut call_args, "by", args.by.clone().into());

    let (mut count, mut others) = (0, 0);
    let mut groups: BTreeMap<String, u64> = BTreeMap::new();

    loop {
        let (found, _) =
            ask::call_as::<calls::events::Count>(&mut client, &call_args).context(operation)?;

        count += found.count;
        others += found.others.unwrap_or(0);

        // Groups continue from page to page.
        for EventGroup { key, count } in found.groups.into_iter().flatten() {
            *groups.entry(key).or_default() += count;
        }

        // One call reads a bounded part of the log, and names where the next one begins.
        let Some(next) = found.next else { break };
        ask::set(&mut call_args, "from", next.into());
    }

    let Some(by) = &args.by else {
        return show(global.output, &json!({ "count": count }), |out| {
            Ok(out.line(&count.to_string())?)
        });
    };

    let is_hour = by == "hour";
    let mut groups: Vec<(String, u64)> = groups.into_iter().collect();

    // Hours stay in the order of time; other groups begin with the largest.
    if !is_hour {
        groups.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    }

    let row = |(key, count): &(String, u64)| {
        // The daemon sends an hour as its start in microseconds.
        let hour = key
            .parse()
            .ok()
            .filter(|_| is_hour)
            .map(|at| Micros(at).iso());
        json!({ by.as_str(): hour.unwrap_or_else(|| key.clone()), "count": count })
    };

    let rows: Vec<Json> = groups.iter().map(row).collect();
    let document = json!({ "count": count, "others": others, "groups": rows });

    show_rows(global.output, &document, "groups", |out| {
        let key = |row: &Json| match row.text(by) {
            // Minutes are enough for the start of an hour.
            hour if is_hour => short(&Json::from(hour)).chars().take(16).collect(),
            // Events without a function or minion.
            "" => "(none)".to_owned(),
            key => key.to_owned(),
        };

        let cells: Vec<_> = rows
            .iter()
            .map(|row| vec![key(row), row.leaf("count")])
            .collect();

        let name = match by.as_str() {
            "function" => "FUNCTION",
            "minion" => "MINION",
            "class" => "CLASS",
            _ => title("HOUR", "HOUR (UTC)"),
        };

        Table::new([Column::middle_truncated(name), Column::right("EVENTS")]).print(out, &cells)?;
        // Beyond the daemon's limit of groups.
        if others > 0 {
            out.line(&format!("{others} events of other groups"))?;
        }

        Ok(out.line(&format!("{count} events"))?)
    })
}
