//! `saltcellar events`: lists, counts and follows archived events, and fires events onto Salt's
//! bus.

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context, bail};
use rmpv::Value;

use super::event_rows::{columns, row, tone};
use super::filter::EventFlags;
use super::tail::{self, Bounds};
use crate::api::call::events::{EventRow, EventsPage, FollowArgs, Scan};
use crate::api::call::send::SendArgs;
use crate::api::call::{self as calls, Cursor};
use crate::cli::format::exit::BadData;
use crate::cli::{
    Format, Global, ListFlags, ListOf, Listing, Output, Table, Tone, ask, nested, value, yaml,
};
use crate::wire::msgpack::PackedMap;

#[derive(clap::Subcommand)]
pub(in crate::cli) enum Events {
    /// List events, newest first
    List(List),
    /// Follow events as they are stored
    #[command(after_long_help = tail::EXAMPLES)]
    Tail(tail::Args),
    /// Count events
    #[command(after_long_help = tail::COUNT_EXAMPLES)]
    Count(tail::CountArgs),
    /// Fire an event onto Salt's bus
    Send(Send),
}

impl Events {
    /// Whether it prints a table.
    pub(in crate::cli) fn has_rows(&self) -> bool {
        match self {
            Self::List(_) | Self::Tail(_) => true,
            Self::Count(args) => args.has_rows(),
            Self::Send(_) => false,
        }
    }
}

#[derive(clap::Args)]
#[command(after_long_help = SEND_EXAMPLES)]
pub(in crate::cli) struct Send {
    /// The event's tag
    tag: String,
    /// The event's data, a map in JSON or YAML; - reads standard input
    data: Option<String>,
    /// Read the data from this file; - reads standard input
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    data_file: Option<PathBuf>,
    /// Socket directory of the target bus, if the daemon reads several
    #[arg(long, value_name = "SOCK_DIR")]
    bus: Option<PathBuf>,
}

const SEND_EXAMPLES: &str = "\
The daemon fires the event as `salt-run event.send` does, with the current time as _stamp. All subscribers of \
the bus see it: reactors, engines, and the archive. Only root and the master's user have the right to fire events. \
The master does not acknowledge events, so success means that the event was written to the master's socket.

Examples:
  saltcellar events send my/custom/event
  saltcellar events send deploy/done '{\"app\": \"shop\", \"version\": \"1.4\"}'
  saltcellar events send deploy/done 'app: shop'
  make-report | saltcellar events send report/ready -
  saltcellar events send deploy/done --data-file done.yaml --bus /var/run/salt/master";

#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags")]
pub(in crate::cli) struct List {
    #[command(flatten)]
    rows: ListFlags,
    /// List all matching events
    #[arg(long, conflicts_with_all = ["limit", "reverse"])]
    no_limit: bool,
    /// Print the latest events, newest last, then follow new events as `events tail` does
    #[arg(short, long, conflicts_with_all = ["no_limit", "reverse", "until", "before", "stats"])]
    follow: bool,
    #[command(flatten)]
    filter: EventFlags,
    /// Show each event's data in tables
    #[arg(long)]
    show_data: bool,
    /// Print on standard error how much was searched, and what the summaries excluded
    #[arg(long)]
    stats: bool,
}

const EXAMPLES: &str = "\
JSON includes each event's data; docs/WIRE.md lists the fields.

Examples:
  saltcellar events list
  saltcellar events list --tag 'salt/job/*/ret/*' --since 10m
  saltcellar events list -n 5 -f
  saltcellar events list --minion web1 --show-data
  saltcellar events list --fun 'state.*' --failed
  saltcellar events list --since yesterday --search 'Permission denied' --stats
  saltcellar events list --jid 20261121054728123456 --output json
  saltcellar events list --no-limit --since 2026-11-21 --output jsonl | gzip > events.jsonl.gz";

ask::paged! {
    calls::events::List: EventRow, in events, after Cursor, in cursor,
    limited by limit, joined by |before, page| page.scan.add(&before.scan)
}

impl ListOf for calls::events::List {
    const ROWS: &'static str = "events";
    const OPERATION: &'static str = "list events";

    fn scan(answer: &EventsPage) -> Scan {
        answer.scan.clone()
    }
}

pub(in crate::cli) fn run(global: &Global, events: Events) -> anyhow::Result<()> {
    match events {
        Events::List(args) => list(global, &args),
        Events::Tail(args) => tail::run(global, &args),
        Events::Count(args) => tail::count(global, &args),
        Events::Send(event) => send(global, event),
    }
}

/// Limit of the data that is read; the daemon's own limit is lower.
const DATA_BYTES_MAX: u64 = 16 * 1024 * 1024;

fn send(global: &Global, event: Send) -> anyhow::Result<()> {
    let data = data(&event)
        .context("read the event's data")
        .map_err(BadData)?;

    // Absolute, because the daemon runs in another working directory.
    let bus = event
        .bus
        .map(std::path::absolute)
        .transpose()
        .context("find the bus")?;

    let mut packed = Vec::new();
    rmpv::encode::write_value(&mut packed, &data).context("fire the event")?;

    let call = SendArgs {
        tag: event.tag,
        data: Some(PackedMap(&packed)),
        bus: bus.map(|bus| bus.to_string_lossy().into_owned()),
        ..SendArgs::default()
    };

    ask::change::<calls::send::Send>(global, &call, "fire the event", |fired| {
        format!("fired {} at {}", fired.tag, fired.socket)
    })
}

fn data(event: &Send) -> anyhow::Result<Value> {
    let read = |from: &mut dyn std::io::Read| -> anyhow::Result<String> {
        let mut text = String::new();
        // One byte beyond the limit shows that there is more.
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
        // Data is optional.
        (None, None) => return Ok(Value::Map(Vec::new())),
    };

    match yaml::value(&text)? {
        Value::Map(pairs) => Ok(Value::Map(pairs)),
        // An empty string is nil in YAML.
        Value::Nil => Ok(Value::Map(Vec::new())),
        other => bail!(
            "expected a map such as '{{\"key\": \"value\"}}', found {:.100}",
            other.to_string()
        ),
    }
}

impl List {
    fn call(&self) -> calls::events::ListArgs {
        calls::events::ListArgs {
            // Without a limit the pages end with the archive.
            limit: Some(if self.no_limit {
                usize::MAX
            } else {
                self.rows.limit()
            }),
            ..self.filter.list_args()
        }
    }
}

/// Prints the latest events, then new events as they arrive.
fn list_and_follow(global: &Global, args: &List) -> anyhow::Result<()> {
    // Before the list is read: an event may be stored meanwhile, and must be in one of the two.
    let mut call = FollowArgs {
        filter: args.filter.args(),
        wait_ms: Some(0),
        ..FollowArgs::default()
    };
    let position = ask::answer::<calls::events::Follow>(global, &call, "follow the events")?.next;

    // The whole list is read before it is printed, because the newest event comes last.
    let mut latest = Listing::<calls::events::List>::new(global, args.call())?.reversed(true);
    let events = latest.next_in_order()?;
    let listed = events.last().map_or(0, |event| event.seq + 1);

    let mut out = Output::new(global.output);
    let mut table = Table::new(columns());
    if out.format == Format::Table {
        let rows: Vec<_> = events.iter().map(row).collect();
        table.print_with(
            &mut out,
            &rows,
            |n| events.get(n).map_or(Tone::Plain, tone),
            |n| data_of(args, events.get(n)),
        )?;
    } else {
        events.iter().try_for_each(|event| out.json(event))?;
    }

    // An event that was stored in between is in the list, and must not be printed twice.
    call.start.seq = Some(position.max(listed));
    tail::follow(
        global,
        (&mut out, &mut table),
        call,
        &Bounds::since(args.filter.when.since()),
        args.show_data,
    )
}

/// The data below an event's row, if they are wanted.
fn data_of(args: &List, event: Option<&EventRow>) -> String {
    event
        .filter(|_| args.show_data)
        .map_or_else(String::new, |event| nested(&value(&event.data), 4))
}

fn list(global: &Global, args: &List) -> anyhow::Result<()> {
    if args.follow {
        return list_and_follow(global, args);
    }

    // One table for all pages, because each table prints its headings once.
    let mut table = Table::new(columns());
    Listing::<calls::events::List>::new(global, args.call())?
        .with_stats(args.stats)
        .reversed(args.rows.reverse)
        .print(global.output, |out, events| {
            let rows: Vec<_> = events.iter().map(row).collect();
            Ok(table.print_with(
                out,
                &rows,
                |n| events.get(n).map_or(Tone::Plain, tone),
                |n| data_of(args, events.get(n)),
            )?)
        })
}
