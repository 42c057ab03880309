//! `saltcellar consumers`: lists and controls the consumers of the event stream.

use anyhow::{Context as _, bail};
use serde_json::{Value as Json, json};

use super::filter::FilterFlags;
use crate::cli::{Column, Fields as _, Global, Table, When, ask, short, show, show_rows, title};

#[derive(clap::Subcommand)]
pub(in crate::cli) enum Consumers {
    /// List the consumers with their lag
    List,
    /// Show one consumer: filter, position, holder, last error
    Show(Name),
    /// Create a consumer, or change the filter of one
    #[command(after_long_help = CREATE_EXAMPLES)]
    Create(Create),
    /// Take the next events; they are delivered again until they are acknowledged
    #[command(after_long_help = NEXT_EXAMPLES)]
    Next(Next),
    /// Acknowledge all events up to a sequence number
    Ack(Ack),
    /// Move the position
    #[command(after_long_help = SEEK_EXAMPLES)]
    Seek(Seek),
    /// Stop deliveries; the position stays
    Pause(Name),
    /// Continue deliveries
    Resume(Name),
    /// Keep unprocessed events from retention, up to store.pin_bytes_max
    Pin(Pin),
    /// Delete a consumer and its position
    Delete(Name),
}

/// A consumer.
#[derive(clap::Args)]
pub(in crate::cli) struct Name {
    /// The consumer's name
    name: String,
}

#[derive(clap::Args)]
pub(in crate::cli) struct Create {
    /// The consumer's name
    name: String,
    #[command(flatten)]
    filter: FilterFlags,
    /// Start with the first event since then, not with the next one: oldest, 2h (ago), 2026-11-21
    #[arg(long, value_name = "POSITION", value_parser = position, allow_hyphen_values = true)]
    from: Option<Position>,
}

#[derive(clap::Args)]
pub(in crate::cli) struct Next {
    /// The consumer's name
    name: String,
    /// Maximum number of events
    #[arg(long, default_value_t = 20, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Wait so many seconds for events, at most 10
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=10))]
    wait: u64,
    /// The holder of the consumer: another holder is refused until the lease ends
    #[arg(long, value_name = "NAME", default_value = HOLDER)]
    holder: String,
}

#[derive(clap::Args)]
pub(in crate::cli) struct Ack {
    /// The consumer's name
    name: String,
    /// The sequence number of the last processed event
    seq: u64,
    /// The holder of the consumer
    #[arg(long, value_name = "NAME", default_value = HOLDER)]
    holder: String,
}

#[derive(clap::Args)]
pub(in crate::cli) struct Seek {
    /// The consumer's name
    name: String,
    /// oldest, newest, a sequence number, an age (2h) or a time ('2026-11-21 05:47')
    #[arg(value_parser = position, allow_hyphen_values = true)]
    to: Position,
}

#[derive(clap::Args)]
pub(in crate::cli) struct Pin {
    /// The consumer's name
    name: String,
    /// Let retention delete unprocessed events again
    #[arg(long)]
    release: bool,
}

/// A place in the log, as an argument of a call.
#[derive(Clone)]
pub(in crate::cli) enum Position {
    Name(String),
    Seq(u64),
    Time(When),
}

impl Position {
    pub(in crate::cli) fn arg(&self) -> (&'static str, Json) {
        match self {
            Self::Name(name) => ("to", name.as_str().into()),
            Self::Seq(seq) => ("seq", (*seq).into()),
            Self::Time(when) => ("time", when.micros().0.into()),
        }
    }
}

const HOLDER: &str = "cli";

const CREATE_EXAMPLES: &str = "\
A new consumer starts with the next event. For an existing one, the filter is replaced and the position stays.

Examples:
  saltcellar consumers create audit --tag 'salt/auth*'
  saltcellar consumers create failures --fun 'state.*' --retcode '!0' --from 2h";

const NEXT_EXAMPLES: &str = "\
JSON includes each event's data and its id, which stays the same when the event is delivered again.

Examples:
  saltcellar consumers next audit --wait 10 --output jsonl
  saltcellar consumers ack audit 81234";

const SEEK_EXAMPLES: &str = "\
Examples:
  saltcellar consumers seek audit oldest
  saltcellar consumers seek audit 2026-11-21T05:47
  saltcellar consumers seek audit 81234";

pub(in crate::cli) fn position(text: &str) -> Result<Position, String> {
    if text == "oldest" || text == "newest" {
        return Ok(Position::Name(text.to_owned()));
    }
    if let Ok(seq) = text.parse::<u64>() {
        return Ok(Position::Seq(seq));
    }
    match text.parse() {
        Ok(when) => Ok(Position::Time(when)),
        Err(error) => Err(format!("expected oldest, newest, a sequence number, or a time: {error}")),
    }
}

pub(in crate::cli) fn run(global: &Global, verb: Consumers) -> anyhow::Result<()> {
    match verb {
        Consumers::List => list(global),
        Consumers::Show(Name { name }) => show_one(global, &name),
        Consumers::Create(args) => create(global, &args),
        Consumers::Next(args) => next(global, &args),
        Consumers::Ack(args) => {
            let call = json!({ "name": args.name, "seq": args.seq, "holder": args.holder });
            ask::change(global, "consumer_ack", call, "acknowledge the events", |answer| {
                format!("{} continues with {}", args.name, answer.leaf("cursor"))
            })
        }
        Consumers::Seek(Seek { name, to }) => {
            let (key, value) = to.arg();
            let call = json!({ "name": name, key: value });
            ask::change(global, "consumer_seek", call, "move the consumer", |answer| {
                format!("{name} continues with {}", answer.leaf("cursor"))
            })
        }
        Consumers::Pause(Name { name }) => {
            ask::change(global, "consumer_pause", json!({ "name": name }), "pause the consumer", |_| {
                format!("{name} is paused")
            })
        }
        Consumers::Resume(Name { name }) => {
            ask::change(global, "consumer_resume", json!({ "name": name }), "resume the consumer", |_| {
                format!("{name} is resumed")
            })
        }
        Consumers::Pin(Pin { name, release }) => {
            let call = json!({ "name": name, "release": release });
            let state = if release { "is not pinned" } else { "is pinned" };
            ask::change(global, "consumer_pin", call, "pin the consumer", |_| format!("{name} {state}"))
        }
        Consumers::Delete(Name { name }) => {
            let answer =
                ask::answer(global, "consumer_delete", json!({ "name": name }), "delete the consumer")?;
            if answer == false {
                bail!("delete the consumer: {name:?} does not exist");
            }
            let answer = json!({ "name": name, "deleted": true });
            show(global.output, &answer, |out| Ok(out.line(&format!("{name} is deleted"))?))
        }
    }
}

fn create(global: &Global, args: &Create) -> anyhow::Result<()> {
    let mut call = serde_json::to_value(&args.filter)?;
    ask::set(&mut call, "name", args.name.as_str().into());
    if let Some((key, value)) = args.from.as_ref().map(Position::arg) {
        ask::set(&mut call, key, value);
    }
    ask::change(global, "consumer_create", call, "create the consumer", |answer| {
        format!("{} continues with {}", args.name, answer.leaf("cursor"))
    })
}

fn next(global: &Global, args: &Next) -> anyhow::Result<()> {
    let call = json!({
        "name": args.name, "holder": args.holder, "limit": args.limit, "wait_ms": args.wait * 1000,
    });
    let mut client = ask::connect(global)?;
    let answer = ask::call(&mut client, "consumer_next", call).context("take the next events")?;
    show_rows(global.output, &answer, "events", |out| {
        let columns = [
            Column::right("SEQ"),
            Column::left(title("TIME", "TIME (UTC)")),
            Column::middle_truncated("TAG"),
            Column::truncated("MINION").drop_order(2),
            Column::truncated("FUN").drop_order(1),
        ];
        let rows: Vec<_> = answer.list("events").iter().map(super::events::row).collect();
        Ok(Table::new(columns).print(out, &rows)?)
    })
}

fn list(global: &Global) -> anyhow::Result<()> {
    let answer = ask::answer(global, "consumers_list", (), "list the consumers")?;
    show_rows(global.output, &answer, "consumers", |out| {
        let columns = [
            Column::left("NAME"),
            Column::right("CURSOR"),
            Column::right("LAG"),
            Column::right("LAG S"),
            Column::left("STATE"),
            Column::truncated("HOLDER").drop_order(2),
            Column::truncated("ERROR").drop_order(1),
        ];
        let cells = |row: &Json| {
            let error = row.of("error").leaf("message");
            let [name, cursor, lag, lag_s] =
                ["name", "cursor", "lag_entries", "lag_s"].map(|key| row.leaf(key));
            vec![name, cursor, lag, lag_s, state(row), holder(row), error]
        };
        let rows: Vec<_> = answer.list("consumers").iter().map(cells).collect();
        Ok(Table::new(columns).print(out, &rows)?)
    })
}

fn state(row: &Json) -> String {
    let marks = [
        row.is("paused").then_some("paused"),
        row.is("pin").then_some("pinned"),
        (!row.of("lost").is_null()).then_some("gap"),
    ];
    let marks: Vec<&str> = marks.into_iter().flatten().collect();
    if marks.is_empty() { "active".to_owned() } else { marks.join(",") }
}

fn holder(row: &Json) -> String {
    if row.of("holder").is_null() { String::new() } else { row.leaf("holder") }
}

fn show_one(global: &Global, name: &str) -> anyhow::Result<()> {
    let answer = ask::answer(global, "consumers_list", json!({ "name": name }), "show the consumer")?;
    let Some(row) = answer.list("consumers").first() else {
        bail!("show the consumer: {name:?} does not exist")
    };
    show(global.output, row, |out| {
        out.line(&format!("name      {}", row.leaf("name")))?;
        out.line(&format!("created   {}", short(row.of("time"))))?;
        if !row.list("match").is_empty() {
            out.line(&format!("match     {}", row.of("match")))?;
        }
        if !row.of("where").is_null() {
            out.line(&format!("where     {}", row.leaf("where")))?;
        }
        out.line(&format!("cursor    {}", row.leaf("cursor")))?;
        out.line(&format!("lag       {} entries, {} s", row.leaf("lag_entries"), row.leaf("lag_s")))?;
        out.line(&format!("state     {}", state(row)))?;
        if !row.of("holder").is_null() {
            out.line(&format!("holder    {}, for {} s", row.leaf("holder"), row.leaf("lease_s")))?;
        }
        if !row.of("lost").is_null() {
            let lost = row.of("lost");
            out.line(&format!(
                "lost      up to {} entries from {} to {}, dropped by retention",
                lost.leaf("entries"),
                lost.leaf("first"),
                lost.leaf("last")
            ))?;
        }
        if !row.of("error").is_null() {
            let error = row.of("error");
            out.line(&format!("error     {} {}", short(error.of("time")), error.leaf("message")))?;
        }
        Ok(())
    })
}
