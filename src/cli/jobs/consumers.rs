//! `saltcellar consumers`: lists and controls the consumers of the event stream.

use std::time::Duration;

use anyhow::bail;
use serde_json::json;

use super::filter::FilterFlags;
use crate::api::call as calls;
use crate::api::call::consumers::{self as api, Consumer, ConsumersPage, LostRange, Pinned};
use crate::api::call::events::{End, StartArgs};
use crate::cli::{
    Column, Global, Table, Tone, When, ask, duration, or_empty, short_at, show, show_rows,
};
use crate::wire::msgpack::Time;

#[derive(clap::Subcommand)]
pub(in crate::cli) enum Consumers {
    /// List the consumers with their lag
    List,
    /// Show one consumer: filter, position, holder, last error
    Show(Name),
    /// Create a consumer, or change the filter of one
    #[command(after_long_help = CREATE_EXAMPLES)]
    Create(Create),
    /// Take the next events; they are redelivered until they are acknowledged
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
    Pin(Name),
    /// Let retention delete unprocessed events
    Unpin(Name),
    /// Delete a consumer and its position
    Delete(Name),
}

impl Consumers {
    /// Whether it prints a table.
    pub(in crate::cli) fn has_rows(&self) -> bool {
        match self {
            Self::List | Self::Next(_) => true,
            Self::Show(_)
            | Self::Create(_)
            | Self::Ack(_)
            | Self::Seek(_)
            | Self::Pause(_)
            | Self::Resume(_)
            | Self::Pin(_)
            | Self::Unpin(_)
            | Self::Delete(_) => false,
        }
    }
}

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
    /// Start here instead of with the next event: oldest, a sequence number, an age (2h) or a time
    #[arg(long, value_name = "POSITION", value_parser = position, allow_hyphen_values = true)]
    start: Option<Position>,
}

#[derive(clap::Args)]
pub(in crate::cli) struct Next {
    /// The consumer's name
    name: String,
    /// Maximum number of events
    #[arg(short = 'n', long, default_value_t = 20, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Wait for events: 5s, at most 10s
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = short_wait)]
    wait: Duration,
    /// The holder of the consumer: another holder is rejected until the lease ends
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

#[derive(Clone)]
pub(in crate::cli) enum Position {
    End(End),
    Seq(u64),
    Time(When),
}

impl From<&Position> for StartArgs {
    fn from(position: &Position) -> Self {
        let mut start = Self::default();
        match position {
            Position::End(end) => start.to = Some(*end),
            Position::Seq(seq) => start.seq = Some(*seq),
            Position::Time(when) => start.time = Some(Time::from(*when)),
        }
        start
    }
}

impl From<Name> for api::NameArgs {
    fn from(Name { name }: Name) -> Self {
        Self { name }
    }
}

/// As long as the daemon lets a call wait.
const WAIT_MAX: Duration = Duration::from_secs(10);

const HOLDER: &str = "cli";

const CREATE_EXAMPLES: &str = "\
A new consumer starts with the next event. For an existing one, the filter is replaced and the position stays.

Examples:
  saltcellar consumers create audit --tag 'salt/auth*'
  saltcellar consumers create failures --fun 'state.*' --failed --start 2h";

const NEXT_EXAMPLES: &str = "\
JSON includes each event's data and its id, which stays the same when the event is redelivered.

Examples:
  saltcellar consumers next audit --wait 10s --output jsonl
  saltcellar consumers ack audit 81234";

const SEEK_EXAMPLES: &str = "\
Examples:
  saltcellar consumers seek audit oldest
  saltcellar consumers seek audit 2026-11-21T05:47
  saltcellar consumers seek audit 81234";

/// A wait of one call.
fn short_wait(text: &str) -> Result<Duration, String> {
    let wait = duration(text)?;
    if wait > WAIT_MAX {
        return Err(format!("at most {} s", WAIT_MAX.as_secs()));
    }
    Ok(wait)
}

pub(in crate::cli) fn position(text: &str) -> Result<Position, String> {
    if let Ok(end) = End::try_from(text.to_owned()) {
        return Ok(Position::End(end));
    }

    // Before a time: a bare number is a sequence number, not a year.
    if let Ok(seq) = text.parse::<u64>() {
        return Ok(Position::Seq(seq));
    }

    match text.parse() {
        Ok(when) => Ok(Position::Time(when)),
        Err(error) => Err(format!(
            "expected oldest, newest, a sequence number, or a time: {error}"
        )),
    }
}

pub(in crate::cli) fn run(global: &Global, verb: Consumers) -> anyhow::Result<()> {
    match verb {
        Consumers::List => list(global),
        Consumers::Show(Name { name }) => show_one(global, &name),
        Consumers::Create(args) => create(global, &args),
        Consumers::Next(args) => next(global, &args),
        Consumers::Ack(Ack { name, seq, holder }) => {
            let call = api::AckArgs {
                name: name.clone(),
                seq,
                holder,
                ..api::AckArgs::default()
            };
            ask::change::<calls::consumers::Ack>(global, &call, "acknowledge the events", |at| {
                continues(&name, at)
            })
        }
        Consumers::Seek(Seek { name, to }) => {
            let call = api::SeekArgs {
                name: name.clone(),
                start: (&to).into(),
                ..api::SeekArgs::default()
            };
            ask::change::<calls::consumers::Seek>(global, &call, "move the consumer", |at| {
                continues(&name, at)
            })
        }
        Consumers::Pause(name) => ask::change::<calls::consumers::Pause>(
            global,
            &name.into(),
            "pause the consumer",
            paused,
        ),
        Consumers::Resume(name) => ask::change::<calls::consumers::Resume>(
            global,
            &name.into(),
            "resume the consumer",
            paused,
        ),
        Consumers::Pin(Name { name }) => pin(global, name, false, "pin the consumer"),
        Consumers::Unpin(Name { name }) => pin(global, name, true, "unpin the consumer"),
        Consumers::Delete(Name { name }) => {
            let call = api::NameArgs {
                name: name.clone(),
                ..api::NameArgs::default()
            };
            // Whether it existed is looked at, because a mistyped name must not pass for a deleted
            // consumer.
            let is_deleted =
                ask::answer::<calls::consumers::Delete>(global, &call, "delete the consumer")?;

            if !is_deleted {
                bail!(
                    "delete the consumer: {name:?} does not exist; `saltcellar consumers list` lists them"
                );
            }

            // The daemon only says whether there was one.
            let answer = json!({ "name": name, "deleted": true });
            ask::confirm(global, &answer, &format!("{name} is deleted"))
        }
    }
}

fn pin(
    global: &Global,
    name: String,
    release: bool,
    operation: &'static str,
) -> anyhow::Result<()> {
    let call = api::PinArgs {
        name,
        release,
        ..api::PinArgs::default()
    };

    ask::change::<calls::consumers::Pin>(global, &call, operation, |Pinned { name, pin }| {
        let state = if *pin { "is pinned" } else { "is not pinned" };
        format!("{name} {state}")
    })
}

pub(in crate::cli) fn continues(name: &str, at: &api::Position) -> String {
    format!("{name} continues with {}", or_empty(at.cursor))
}

pub(in crate::cli) fn paused(state: &api::Position) -> String {
    let paused = if state.paused == Some(true) {
        "paused"
    } else {
        "resumed"
    };
    format!("{} is {paused}", or_empty(state.name.as_ref()))
}

fn create(global: &Global, args: &Create) -> anyhow::Result<()> {
    let call = api::CreateArgs {
        name: args.name.clone(),
        filter: args.filter.args(),
        start: args.start.as_ref().map(StartArgs::from).unwrap_or_default(),
        ..api::CreateArgs::default()
    };

    ask::change::<calls::consumers::Create>(global, &call, "create the consumer", |at| {
        continues(&args.name, at)
    })
}

fn next(global: &Global, args: &Next) -> anyhow::Result<()> {
    let call = api::NextArgs {
        name: args.name.clone(),
        holder: args.holder.clone(),
        limit: Some(ask::rows(args.limit)),
        wait_ms: Some(u64::try_from(args.wait.as_millis()).unwrap_or(u64::MAX)),
        ..api::NextArgs::default()
    };

    let batch = ask::answer::<calls::consumers::Next>(global, &call, "take the next events")?;

    show_rows(global.output, &batch, &batch.events, |out| {
        let rows: Vec<_> = batch.events.iter().map(super::event_rows::row).collect();
        Ok(Table::new(super::event_rows::columns()).print(out, &rows)?)
    })
}

fn list(global: &Global) -> anyhow::Result<()> {
    let all = api::ListArgs::default();
    let page = ask::answer::<calls::consumers::List>(global, &all, "list the consumers")?;

    show_rows(global.output, &page, &page.consumers, |out| {
        let columns = [
            Column::left("NAME"),
            Column::right("CURSOR"),
            Column::right("LAG"),
            Column::right("LAG S"),
            Column::left("STATE").toned(Tone::of_word),
            Column::truncated("HOLDER").drop_order(2),
            Column::truncated("ERROR").drop_order(1),
        ];

        let cells = |row: &Consumer| {
            let [cursor, lag, lag_s] =
                [row.cursor, row.lag_entries, row.lag_s].map(|n| n.to_string());
            let error = or_empty(row.error.as_ref().map(|error| &error.message));
            // Cells are in the order of the columns above.
            vec![
                row.name.clone(),
                cursor,
                lag,
                lag_s,
                state(row),
                or_empty(row.holder.as_ref()),
                error,
            ]
        };

        let rows: Vec<_> = page.consumers.iter().map(cells).collect();
        Ok(Table::new(columns).print(out, &rows)?)
    })
}

fn state(row: &Consumer) -> String {
    let marks = [
        row.paused.then_some("paused"),
        row.pin.then_some("pinned"),
        row.lost.as_ref().map(|_| "gap"),
    ];

    let marks: Vec<&str> = marks.into_iter().flatten().collect();

    if marks.is_empty() {
        "active".to_owned()
    } else {
        marks.join(",")
    }
}

fn show_one(global: &Global, name: &str) -> anyhow::Result<()> {
    let call = api::ListArgs {
        name: Some(name.to_owned()),
        ..api::ListArgs::default()
    };
    let ConsumersPage { consumers } =
        ask::answer::<calls::consumers::List>(global, &call, "show the consumer")?;

    let Some(row) = consumers.first() else {
        bail!("show the consumer: {name:?} does not exist; `saltcellar consumers list` lists them")
    };

    show(global.output, row, |out| {
        // Without scopes the consumer gets every event.
        let has_match = row
            .scopes
            .as_array()
            .is_some_and(|scopes| !scopes.is_empty());

        let lines = [
            ("name", Some(row.name.clone())),
            ("created", Some(short_at(row.time))),
            ("match", has_match.then(|| row.scopes.to_string())),
            ("where", row.condition.clone()),
            ("cursor", Some(row.cursor.to_string())),
            (
                "lag",
                Some(format!("{} entries, {} s", row.lag_entries, row.lag_s)),
            ),
            ("state", Some(state(row))),
            (
                "holder",
                row.holder
                    .as_ref()
                    .map(|name| format!("{name}, for {} s", or_empty(row.lease_s))),
            ),
            (
                "lost",
                // "Up to", because whole segments are counted, without the consumer's filter.
                row.lost.as_ref().map(|lost| {
                    let LostRange {
                        first,
                        last,
                        entries,
                    } = lost;
                    format!("up to {entries} entries from {first} to {last}, dropped by retention")
                }),
            ),
            (
                "error",
                row.error
                    .as_ref()
                    .map(|error| format!("{} {}", short_at(error.time), error.message)),
            ),
        ];

        for (name, text) in lines {
            // Lines without a value are left out.
            text.map_or(Ok(()), |text| out.line(&format!("{name:<9} {text}")))?;
        }
        Ok(())
    })
}
