//! `saltcellar sinks`: shows, tests and controls the sinks of the daemon.

use anyhow::{Context as _, bail};
use serde_json::json;

use crate::api::call as calls;
use crate::api::call::consumers::Problem;
use crate::api::call::sinks::{DeadLetterRow, LetterCount, Sink, TestedEvent};
use crate::cli::jobs::consumers::{Position, continues, paused, position};
use crate::cli::{
    BadUsage, Column, Fields as _, Global, Output, Table, ask, finding, leaf, or_empty, short_at,
    show, show_rows, title,
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

impl Sinks {
    /// Whether it prints a table.
    pub(in crate::cli) fn has_rows(&self) -> bool {
        match self {
            Self::List | Self::DeadLetters(DeadLetters::List(_)) => true,
            Self::Show(_)
            | Self::Test(_)
            | Self::Pause(_)
            | Self::Resume(_)
            | Self::Seek(_)
            | Self::DeadLetters(
                DeadLetters::Show(_) | DeadLetters::Retry(_) | DeadLetters::Drop(_),
            ) => false,
        }
    }
}

#[derive(clap::Args, serde::Serialize)]
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

#[derive(clap::Args)]
pub(in crate::cli) struct Letter {
    /// The sink's name
    name: String,
    /// The id of the event, or its sequence number
    id: String,
}

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
    fn args(&self) -> anyhow::Result<serde_json::Value> {
        if self.id.is_empty() && !self.all {
            return Err(BadUsage(
                "read the arguments: give ids or sequence numbers of events, or --all".to_owned(),
            )
            .into());
        }
        // `null` selects all.
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
        Sinks::Pause(name) => {
            ask::change::<calls::sinks::Pause>(global, &name, "pause the sink", paused)
        }
        Sinks::Resume(name) => {
            ask::change::<calls::sinks::Resume>(global, &name, "resume the sink", paused)
        }
        Sinks::Seek(Seek { name, to }) => {
            // A position is one of several arguments of the call.
            let (key, value) = to.arg();
            let call = json!({ "name": name, key: value });
            ask::change::<calls::sinks::Seek>(global, call, "move the sink", |at| {
                continues(&name, &at)
            })
        }
        Sinks::DeadLetters(verb) => dead_letters(global, verb),
    }
}

fn dead_letters(global: &Global, verb: DeadLetters) -> anyhow::Result<()> {
    match verb {
        DeadLetters::List(Name { name }) => list_letters(global, &name),
        DeadLetters::Show(Letter { name, id }) => show_letter(global, &name, &id),
        DeadLetters::Retry(letters) => ask::change::<calls::sinks::Retry>(
            global,
            letters.args()?,
            "retry dead letters",
            |of: LetterCount| {
                format!(
                    "{} dead letters of {} are delivered again; `saltcellar sinks show` has the result",
                    of.count, of.name
                )
            },
        ),
        DeadLetters::Drop(letters) => ask::change::<calls::sinks::Drop>(
            global,
            letters.args()?,
            "drop dead letters",
            |of: LetterCount| format!("{} dead letters of {} are deleted", of.count, of.name),
        ),
    }
}

fn list(global: &Global) -> anyhow::Result<()> {
    let (page, answer) = ask::answer_as::<calls::sinks::List>(global, (), "list the sinks")?;

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

        let cells = |row: Sink| {
            let (delivered, error) = (or_empty(row.counters.get("delivered")), present_error(&row));
            let [lag, lag_s] = [row.lag_entries, row.lag_s].map(or_empty);
            vec![
                row.name,
                row.state,
                lag,
                lag_s,
                delivered,
                row.dead_letters.to_string(),
                row.destination,
                error,
            ]
        };

        Ok(Table::new(columns)
            .print(out, &page.sinks.into_iter().map(cells).collect::<Vec<_>>())?)
    })
}

/// The last error, as long as deliveries fail.
fn present_error(row: &Sink) -> String {
    let error = row
        .error
        .as_ref()
        // The row keeps the last error after deliveries succeed again.
        .filter(|_| row.failures > 0)
        .map(|error| &error.message);
    or_empty(row.problem.as_ref().or(error))
}

fn show_one(global: &Global, name: &str) -> anyhow::Result<()> {
    let (page, answer) =
        ask::answer_as::<calls::sinks::List>(global, json!({ "name": name }), "show the sink")?;

    // Both: the typed row to print, and the daemon's own JSON for `--output json`.
    let (Some(row), Some(shown)) = (page.sinks.first(), answer.list("sinks").first()) else {
        bail!("show the sink: {name:?} does not exist")
    };

    show(global.output, shown, |out| {
        let lag = || {
            format!(
                "{} entries, {} s",
                or_empty(row.lag_entries),
                or_empty(row.lag_s)
            )
        };

        let error = row.error.as_ref().map(|error| {
            let Problem { time, message } = error;
            format!(
                "{} {message} ({} failures since the last delivery)",
                short_at(*time),
                row.failures
            )
        });

        let lines = [
            ("name", Some(row.name.clone())),
            ("encoder", Some(row.encoder.clone())),
            ("transport", Some(row.transport.clone())),
            ("to", Some(row.destination.clone())),
            ("state", Some(row.state.clone())),
            ("cursor", row.cursor.map(|cursor| cursor.to_string())),
            ("lag", row.cursor.map(|_| lag())),
            ("problem", row.problem.clone()),
            ("dead letters", Some(row.dead_letters.to_string())),
            (
                "last delivery",
                row.last_delivery.as_ref().map(|at| short_at(at.time)),
            ),
            ("last error", error),
        ];

        let counters = row
            .counters
            .iter()
            .map(|(name, value)| (name.as_str(), Some(value.to_string())));
        // Lines without a value are left out.
        for (title, text) in lines.into_iter().chain(counters) {
            text.map_or(Ok(()), |text| out.line(&format!("{title:<14} {text}")))?;
        }
        Ok(())
    })
}

fn test(global: &Global, name: &str) -> anyhow::Result<()> {
    let (result, answer) =
        ask::answer_as::<calls::sinks::Test>(global, json!({ "name": name }), "test the sink")?;

    show(global.output, &answer, |out| {
        let TestedEvent { seq, tag, time, .. } = &result.event;
        out.line(&format!(
            "event {seq} of {}: {tag}, {} items",
            time.0.iso(),
            result.items
        ))?;

        for (part, text) in [("request", &result.request), ("response", &result.response)] {
            out.heading(part)?;
            text.lines().try_for_each(|line| out.line(line))?;
        }
        Ok(())
    })?;

    // Printed first, because request and response explain the error that sets the exit code.
    match result.error {
        None => Ok(()),
        Some(error) => Err(finding(format!(
            "sink {name} did not deliver the event: {error}"
        ))),
    }
}

fn list_letters(global: &Global, name: &str) -> anyhow::Result<()> {
    let operation = "list dead letters";
    let mut client = ask::connect(global)?;
    let (page, answer) = ask::call_paged::<calls::sinks::DeadLetters>(
        &mut client,
        "dead_letters",
        json!({ "name": name }),
        |all, more| all.dead_letters.extend(more.dead_letters),
    )
    .context(operation)?;

    show_rows(global.output, &answer, "dead_letters", |out| {
        let columns = [
            Column::right("SEQ"),
            Column::left(title("FAILED", "FAILED (UTC)")),
            Column::right("ATTEMPTS"),
            Column::middle_truncated("TAG").drop_order(1),
            Column::truncated("REASON"),
        ];

        let cells = |row: DeadLetterRow| {
            let [seq, attempts] = [row.seq, row.attempts].map(|n| n.to_string());
            vec![
                seq,
                short_at(row.failed.time),
                attempts,
                row.tag,
                row.reason,
            ]
        };

        Ok(Table::new(columns).print(
            out,
            &page.dead_letters.into_iter().map(cells).collect::<Vec<_>>(),
        )?)
    })
}

fn show_letter(global: &Global, name: &str, id: &str) -> anyhow::Result<()> {
    let args = json!({ "name": name, "ids": [id] });
    let answer = ask::answer::<calls::sinks::DeadLetters>(global, args, "show the dead letter")?;

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
