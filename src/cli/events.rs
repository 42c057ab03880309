//! `saltcellar events list`: the archive of the event bus.

use anyhow::Context;
use rmpv::Value;
use serde_json::Value as Json;

use super::ask::{Names, Pages};
use super::nested::{leaf, nested};
use super::output::{Format, Output};
use super::table::{Column, Table};
use super::when::{When, short};
use super::{Global, ask, jobs};

/// Verbs under `events`.
#[derive(clap::Subcommand)]
pub(super) enum Events {
    /// The last events, the newest at the bottom
    List(Filter),
}

/// Flags of `events list`.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Filter {
    /// At most so many events
    #[arg(long, default_value_t = 20, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// All events that match, newest first, page by page
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// Only tags that match this glob; * crosses slashes, as in Salt
    #[arg(long, value_name = "GLOB")]
    tag: Option<String>,
    /// Only events of this job
    #[arg(long)]
    jid: Option<String>,
    /// Only events of this minion
    #[arg(long, value_name = "ID")]
    minion: Option<String>,
    /// Not older than: 10m, 2h, 3d, 2026-11-21, 2026-11-21T05:47:28 (UTC)
    #[arg(long, value_name = "TIME")]
    since: Option<When>,
    /// Not younger than
    #[arg(long, value_name = "TIME")]
    until: Option<When>,
    /// Only events before this sequence number
    #[arg(long, value_name = "SEQ")]
    before: Option<u64>,
    /// In tables: show each event's data, too
    #[arg(long)]
    data: bool,
}

const EXAMPLES: &str = "\
Tables show the newest event at the bottom; JSON lists the newest first, and so does --all.
JSON holds each event's data; docs/WIRE.md names the fields.

Examples:
  saltcellar events list
  saltcellar events list --tag 'salt/job/*/ret/*' --since 10m
  saltcellar events list --minion web1 --data
  saltcellar events list --jid 20261121054728123456 --output json
  saltcellar events list --all --since 2026-11-21 --output jsonl | gzip > events.jsonl.gz";

const NAMES: Names = Names { call: "events_list", rows: "events", cursor: "seq" };

pub(super) fn run(global: &Global, events: Events) -> anyhow::Result<()> {
    let Events::List(filter) = events;
    let client = ask::connect(global)?;
    let said = vec![
        ("tag", Value::from(filter.tag.unwrap_or_default())),
        ("jid", Value::from(filter.jid.unwrap_or_default())),
        ("minion", Value::from(filter.minion.unwrap_or_default())),
        ("since", filter.since.map_or(Value::Nil, |When(micros)| Value::from(micros))),
        ("until", filter.until.map_or(Value::Nil, |When(micros)| Value::from(micros))),
    ];
    let said = said.into_iter().filter(|(_, value)| value.as_str() != Some("")).collect();
    let wanted = if filter.all { u64::MAX } else { filter.limit };
    let before = filter.before.map_or(Value::Nil, Value::from);
    let mut pages = Pages::new(client, NAMES, said, before, wanted);
    let mut out = Output::new(global.output);
    let asking = "list the events";
    if out.format != Format::Table {
        jobs::print_json(&mut out, &mut pages, NAMES.rows).context(asking)?;
    } else if filter.all {
        let mut view = View::new(filter.data);
        loop {
            let rows = pages.next().context(asking)?;
            if rows.is_empty() {
                break;
            }
            view.print(&mut out, &rows)?;
            out.flush()?;
        }
    } else {
        let mut rows = Vec::new();
        loop {
            let page = pages.next().context(asking)?;
            if page.is_empty() {
                break;
            }
            rows.extend(page);
        }
        rows.reverse();
        View::new(filter.data).print(&mut out, &rows)?;
    }
    Ok(out.flush()?)
}

/// The table of events, with or without their data.
struct View {
    table: Table,
    data: bool,
}

impl View {
    fn new(data: bool) -> Self {
        let columns = [
            Column::right("SEQ"),
            Column::left("TIME (UTC)"),
            Column::shrinks("TAG"),
            Column::shrinks("MINION"),
            Column::shrinks("FUN"),
        ];
        Self { table: Table::new(columns), data }
    }

    fn print(&mut self, out: &mut Output, events: &[Json]) -> anyhow::Result<()> {
        let rows: Vec<_> = events.iter().map(row).collect();
        let data = |number: usize| {
            let event = events.get(number).filter(|_| self.data);
            event.map(|event| nested(event.get("data").unwrap_or(&Json::Null), 4)).unwrap_or_default()
        };
        Ok(self.table.print_with(out, &rows, data)?)
    }
}

fn row(event: &Json) -> Vec<String> {
    let field = |name: &str| event.get(name).map(leaf).unwrap_or_default();
    vec![
        field("seq"),
        event.get("time").map(short).unwrap_or_default(),
        field("tag"),
        field("minion"),
        field("fun"),
    ]
}
