//! `saltcellar events`: the archive of the event bus, and a way onto the bus itself.

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context, bail};
use rmpv::Value;
use serde_json::Value as Json;

use super::ask::{Names, Pages};
use super::nested::{leaf, nested};
use super::output::{Format, Output};
use super::table::{Column, Table};
use super::when::{Stretch, short};
use super::{Global, ask, jobs, yaml};

/// Verbs under `events`.
#[derive(clap::Subcommand)]
pub(super) enum Events {
    /// The last events, the newest at the bottom
    List(Filter),
    /// Fire an event onto Salt's bus
    Send(Send),
}

/// Flags of `events send`.
#[derive(clap::Args)]
#[command(after_long_help = SEND_EXAMPLES)]
pub(super) struct Send {
    /// The event's tag
    tag: String,
    /// Its data, a map in JSON or YAML; - reads it from standard input
    data: Option<String>,
    /// Read the data from this file; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    data_file: Option<PathBuf>,
    /// The bus to fire at, if the daemon reads several: its directory
    #[arg(long, value_name = "SOCK_DIR")]
    bus: Option<PathBuf>,
}

const SEND_EXAMPLES: &str = "\
The daemon fires it as `salt-run event.send` does, with the _stamp of the moment: reactors, engines and \
everybody on the bus see it, and so does the archive, once it comes back. Only root and the user that the \
master runs as may. Nobody answers: what is written to a master's socket was fired as far as anyone knows.

Examples:
  saltcellar events send my/custom/event
  saltcellar events send deploy/done '{\"app\": \"shop\", \"version\": \"1.4\"}'
  saltcellar events send deploy/done 'app: shop'
  make-report | saltcellar events send report/ready -
  saltcellar events send deploy/done --data-file done.yaml --bus /var/run/salt/master";

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
    #[command(flatten)]
    when: Stretch,
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
    match events {
        Events::List(filter) => list(global, filter),
        Events::Send(event) => send(global, event),
    }
}

/// Bytes of data that are read; the daemon takes less.
const DATA_BYTES_MAX: u64 = 16 * 1024 * 1024;

fn send(global: &Global, event: Send) -> anyhow::Result<()> {
    let data = data(&event).context("read the event's data").map_err(BadData)?;
    let mut client = ask::connect(global)?;
    let bus = event.bus.map(std::path::absolute).transpose().context("find the bus")?;
    let pairs = [
        ("tag", Value::from(event.tag.as_str())),
        ("data", data),
        ("bus", bus.map_or(Value::Nil, |bus| Value::from(bus.to_string_lossy().as_ref()))),
    ];
    let answer = ask::call(&mut client, "event_send", pairs).context("fire the event")?;
    let mut out = Output::new(global.output);
    if out.format == Format::Table {
        let field = |name: &str| answer.get(name).map(leaf).unwrap_or_default();
        out.line(&format!("fired {} at {}", field("tag"), field("socket")))?;
    } else {
        out.json(&answer)?;
    }
    Ok(out.flush()?)
}

/// Data that is no map, or cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
pub(super) struct BadData(anyhow::Error);

fn data(event: &Send) -> anyhow::Result<Value> {
    let read = |from: &mut dyn std::io::Read| -> anyhow::Result<String> {
        let mut text = String::new();
        if from.take(DATA_BYTES_MAX + 1).read_to_string(&mut text)? as u64 > DATA_BYTES_MAX {
            bail!("more than {DATA_BYTES_MAX} bytes");
        }
        Ok(text)
    };
    let file = event.data_file.as_deref();
    let text = match (event.data.as_deref(), file) {
        (Some("-"), _) => read(&mut std::io::stdin()).context("from standard input")?,
        (None, Some(path)) if path.as_os_str() == "-" => {
            read(&mut std::io::stdin()).context("from standard input")?
        }
        (None, Some(path)) => {
            let from = || path.display().to_string();
            read(&mut std::fs::File::open(path).with_context(from)?).with_context(from)?
        }
        (Some(text), _) => text.to_owned(),
        (None, None) => return Ok(Value::Map(Vec::new())),
    };
    match yaml::value(&text)? {
        Value::Map(pairs) => Ok(Value::Map(pairs)),
        Value::Nil => Ok(Value::Map(Vec::new())),
        other => bail!("an event's data is a map, such as '{{\"key\": \"value\"}}', not {other}"),
    }
}

fn list(global: &Global, filter: Filter) -> anyhow::Result<()> {
    let client = ask::connect(global)?;
    let text = |value: Option<String>| value.filter(|text| !text.is_empty()).map_or(Value::Nil, Value::from);
    let mut said =
        vec![("tag", text(filter.tag)), ("jid", text(filter.jid)), ("minion", text(filter.minion))];
    said.extend(filter.when.said());
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
        let rows = pages.newest_below().context(asking)?;
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
            Column::middle("TAG"),
            Column::shrinks("MINION").yields(2),
            Column::shrinks("FUN").yields(1),
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
