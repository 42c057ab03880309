//! `saltcellar sinks`: shows, tests and controls the sinks of the daemon.

use anyhow::{Context as _, bail};
use serde_json::{Value as Json, json};

use crate::cli::jobs::consumers::{Position, position};
use crate::cli::{
    BadUsage, Column, Fields as _, Global, Output, Table, ask, finding, leaf, short, show, show_rows, title,
};

#[derive(clap::Subcommand)]
pub(in crate::cli) enum Sinks {
    /// List the sinks with their state and lag
    #[command(after_long_help = LIST_EXAMPLES)]
    List,
    /// Show one sink: destination, position, counters, last error
    Show(Name),
    /// Send the newest matching event to the destination, and print request and answer
    #[command(after_long_help = TEST_EXAMPLES)]
    Test(Name),
    /// Stop deliveries; the position stays
    Pause(Name),
    /// Continue deliveries
    Resume(Name),
    /// Move the position
    #[command(after_long_help = SEEK_EXAMPLES)]
    Seek(Seek),
    /// List, show, retry and drop events that the destination rejected
    #[command(subcommand)]
    DeadLetters(DeadLetters),
}

#[derive(clap::Subcommand)]
pub(in crate::cli) enum DeadLetters {
    /// List dead letters with the reason of the destination
    List(Name),
    /// Show one dead letter with its data
    Show(Letter),
    /// Deliver dead letters again; those that are rejected again stay
    #[command(after_long_help = RETRY_EXAMPLES)]
    Retry(Letters),
    /// Delete dead letters
    Drop(Letters),
}

/// A sink.
#[derive(clap::Args)]
pub(in crate::cli) struct Name {
    /// The sink's name
    name: String,
}

#[derive(clap::Args)]
pub(in crate::cli) struct Seek {
    /// The sink's name
    name: String,
    /// oldest, newest, a sequence number, an age (2h) or a time ('2026-11-21 05:47')
    #[arg(value_parser = position, allow_hyphen_values = true)]
    to: Position,
}

/// One dead letter.
#[derive(clap::Args)]
pub(in crate::cli) struct Letter {
    /// The sink's name
    name: String,
    /// The id of the event, or its sequence number
    id: String,
}

/// Some or all dead letters.
#[derive(clap::Args)]
pub(in crate::cli) struct Letters {
    /// The sink's name
    name: String,
    /// Ids of events, or their sequence numbers
    id: Vec<String>,
    /// All dead letters of the sink
    #[arg(long, conflicts_with = "id")]
    all: bool,
}

impl Letters {
    /// The arguments of a call.
    fn args(&self) -> anyhow::Result<Json> {
        if self.id.is_empty() && !self.all {
            return Err(BadUsage(
                "read the arguments: give ids or sequence numbers of events, or --all".to_owned(),
            )
            .into());
        }
        let ids = (!self.all).then_some(&self.id);
        Ok(json!({ "name": self.name, "ids": ids }))
    }
}

const LIST_EXAMPLES: &str = "\
LAG is the number of stored entries behind the position, matching or not.

Examples:
  saltcellar sinks list
  saltcellar sinks list --output json | jq '.sinks[] | select(.failures > 0)'";

const TEST_EXAMPLES: &str = "\
The event is really delivered, over a connection of its own; the position does not change. Secrets are redacted in what is printed. \
Exit code 1 if the destination does not accept it.

Examples:
  saltcellar sinks test datadog";

const SEEK_EXAMPLES: &str = "\
Examples:
  saltcellar sinks seek audit oldest            deliver the whole archive
  saltcellar sinks seek audit 2026-11-21T05:47
  saltcellar sinks seek audit newest            skip the backlog";

const RETRY_EXAMPLES: &str = "\
Examples:
  saltcellar sinks dead-letters retry audit 81234 81240
  saltcellar sinks dead-letters retry audit --all";

pub(in crate::cli) fn run(global: &Global, verb: Sinks) -> anyhow::Result<()> {
    match verb {
        Sinks::List => list(global),
        Sinks::Show(Name { name }) => show_one(global, &name),
        Sinks::Test(Name { name }) => test(global, &name),
        Sinks::Pause(Name { name }) => {
            ask::change(global, "sink_pause", json!({ "name": name }), "pause the sink", |_| {
                format!("{name} is paused")
            })
        }
        Sinks::Resume(Name { name }) => {
            ask::change(global, "sink_resume", json!({ "name": name }), "resume the sink", |_| {
                format!("{name} is resumed")
            })
        }
        Sinks::Seek(Seek { name, to }) => {
            let (key, value) = to.arg();
            ask::change(global, "sink_seek", json!({ "name": name, key: value }), "move the sink", |answer| {
                format!("{name} continues with {}", answer.leaf("cursor"))
            })
        }
        Sinks::DeadLetters(verb) => dead_letters(global, verb),
    }
}

fn dead_letters(global: &Global, verb: DeadLetters) -> anyhow::Result<()> {
    match verb {
        DeadLetters::List(Name { name }) => list_letters(global, &name),
        DeadLetters::Show(Letter { name, id }) => show_letter(global, &name, &id),
        DeadLetters::Retry(letters) => {
            ask::change(global, "sink_retry", letters.args()?, "retry dead letters", |answer| {
                let count = answer.leaf("count");
                format!(
                    "{count} dead letters of {} are delivered again; `saltcellar sinks show` has the result",
                    letters.name
                )
            })
        }
        DeadLetters::Drop(letters) => {
            ask::change(global, "sink_drop", letters.args()?, "drop dead letters", |answer| {
                format!("{} dead letters of {} are deleted", answer.leaf("count"), letters.name)
            })
        }
    }
}

fn list(global: &Global) -> anyhow::Result<()> {
    let answer = ask::answer(global, "sinks_list", (), "list the sinks")?;
    show_rows(global.output, &answer, "sinks", |out| {
        let columns = [
            Column::left("NAME"),
            Column::left("STATE"),
            Column::right("LAG"),
            Column::right("LAG S"),
            Column::right("DELIVERED"),
            Column::right("DEAD"),
            Column::middle_truncated("DESTINATION").drop_order(2),
            Column::truncated("ERROR").drop_order(1),
        ];
        let cells = |row: &Json| {
            let [name, state, lag, lag_s, dead, destination] =
                ["name", "state", "lag_entries", "lag_s", "dead_letters", "destination"]
                    .map(|key| row.leaf(key));
            vec![
                name,
                state,
                lag,
                lag_s,
                row.of("counters").leaf("delivered"),
                dead,
                destination,
                present_error(row),
            ]
        };
        let rows: Vec<_> = answer.list("sinks").iter().map(cells).collect();
        Ok(Table::new(columns).print(out, &rows)?)
    })
}

/// The error, while deliveries fail.
fn present_error(row: &Json) -> String {
    if !row.of("problem").is_null() {
        return row.leaf("problem");
    }
    if row.of("failures").as_u64().unwrap_or(0) > 0 { row.of("error").leaf("message") } else { String::new() }
}

fn show_one(global: &Global, name: &str) -> anyhow::Result<()> {
    let answer = ask::answer(global, "sinks_list", json!({ "name": name }), "show the sink")?;
    let Some(row) = answer.list("sinks").first() else { bail!("show the sink: {name:?} does not exist") };
    show(global.output, row, |out| {
        for (title, key) in [
            ("name", "name"),
            ("encoder", "encoder"),
            ("transport", "transport"),
            ("to", "destination"),
            ("state", "state"),
        ] {
            out.line(&format!("{title:<14} {}", row.leaf(key)))?;
        }
        if row.of("problem").is_null() {
            out.line(&format!("{:<14} {}", "cursor", row.leaf("cursor")))?;
            out.line(&format!("{:<14} {} entries, {} s", "lag", row.leaf("lag_entries"), row.leaf("lag_s")))?;
        } else {
            out.line(&format!("{:<14} {}", "problem", row.leaf("problem")))?;
        }
        out.line(&format!("{:<14} {}", "dead letters", row.leaf("dead_letters")))?;
        if !row.of("last_delivery").is_null() {
            out.line(&format!("{:<14} {}", "last delivery", short(row.of("last_delivery").of("time"))))?;
        }
        if !row.of("error").is_null() {
            let (error, failures) = (row.of("error"), row.leaf("failures"));
            let since = format!("{failures} failures since the last delivery");
            out.line(&format!(
                "{:<14} {} {} ({since})",
                "last error",
                short(error.of("time")),
                error.leaf("message")
            ))?;
        }
        for (name, value) in row.of("counters").as_object().into_iter().flatten() {
            out.line(&format!("{name:<14} {}", leaf(value)))?;
        }
        Ok(())
    })
}

fn test(global: &Global, name: &str) -> anyhow::Result<()> {
    let answer = ask::answer(global, "sink_test", json!({ "name": name }), "test the sink")?;
    show(global.output, &answer, |out| {
        let event = answer.of("event");
        let [seq, tag, time] = ["seq", "tag", "time"].map(|key| event.leaf(key));
        out.line(&format!("event {seq} of {time}: {tag}, {} items", answer.leaf("items")))?;
        for part in ["request", "response"] {
            out.heading(part)?;
            for line in answer.leaf(part).lines() {
                out.line(line)?;
            }
        }
        Ok(())
    })?;
    if answer.of("error").is_null() {
        return Ok(());
    }
    Err(finding(format!("sink {name} did not deliver the event: {}", answer.leaf("error"))))
}

fn list_letters(global: &Global, name: &str) -> anyhow::Result<()> {
    let mut client = ask::connect(global)?;
    let answer = ask::call_paged(&mut client, "sink_dead_letters", "dead_letters", json!({ "name": name }))
        .context("list dead letters")?;
    show_rows(global.output, &answer, "dead_letters", |out| {
        let columns = [
            Column::right("SEQ"),
            Column::left(title("FAILED", "FAILED (UTC)")),
            Column::right("ATTEMPTS"),
            Column::middle_truncated("TAG").drop_order(1),
            Column::truncated("REASON"),
        ];
        let cells = |row: &Json| {
            let [seq, attempts, tag, reason] = ["seq", "attempts", "tag", "reason"].map(|key| row.leaf(key));
            vec![seq, short(row.of("failed").of("time")), attempts, tag, reason]
        };
        let rows: Vec<_> = answer.list("dead_letters").iter().map(cells).collect();
        Ok(Table::new(columns).print(out, &rows)?)
    })
}

fn show_letter(global: &Global, name: &str, id: &str) -> anyhow::Result<()> {
    let args = json!({ "name": name, "ids": [id] });
    let answer = ask::answer(global, "sink_dead_letters", args, "show the dead letter")?;
    let Some(row) = answer.list("dead_letters").first() else {
        bail!("show the dead letter: sink {name:?} has none of the event {id:?}")
    };
    show(global.output, row, |out: &mut Output| {
        for (key, value) in row.as_object().into_iter().flatten() {
            out.line(&format!("{key:<10} {}", leaf(value)))?;
        }
        Ok(())
    })
}
