//! `saltcellar sinks`: shows, tests and controls the sinks of the daemon.

use anyhow::{Context as _, bail};

use crate::api::call as calls;
use crate::api::call::consumers::Problem;
use crate::api::call::sinks::{
    DeadLetterRow, DeadLettersArgs, LettersArgs, ListArgs, NameArgs, SeekArgs, Sink, SinksPage,
    TestedEvent,
};
use crate::cli::jobs::consumers::{Position, continues, paused, position};
use crate::cli::{
    BadUsage, Column, Global, Output, Table, Tone, ask, finding, leaf, or_empty, short_at, show,
    show_rows, title,
};

#[derive(clap::Subcommand)]
pub(in crate::cli) enum Sinks {
    /// List the sinks with their state and lag
    #[command(after_long_help = LIST_EXAMPLES)]
    List,
    /// Show one sink: destination, position, counters, last error
    Show(Name),
    /// Send the newest matching event to the destination, and print request and response
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
    fn args(self) -> anyhow::Result<LettersArgs> {
        if self.id.is_empty() && !self.all {
            return Err(BadUsage(
                "read the arguments: give ids or sequence numbers of events, or --all".to_owned(),
            )
            .into());
        }
        // None selects all.
        let ids = (!self.all).then_some(self.id);
        Ok(LettersArgs {
            name: self.name,
            ids,
            ..LettersArgs::default()
        })
    }
}

impl From<Name> for NameArgs {
    fn from(Name { name }: Name) -> Self {
        Self { name }
    }
}

ask::paged! {
    calls::sinks::DeadLetters: DeadLetterRow, in dead_letters, after (u64, String), in after
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
        Sinks::Test(Name { name }) => test(global, name),
        Sinks::Pause(name) => {
            ask::change::<calls::sinks::Pause>(global, &name.into(), "pause the sink", paused)
        }
        Sinks::Resume(name) => {
            ask::change::<calls::sinks::Resume>(global, &name.into(), "resume the sink", paused)
        }
        Sinks::Seek(Seek { name, to }) => {
            let call = SeekArgs {
                name: name.clone(),
                start: (&to).into(),
                ..SeekArgs::default()
            };
            ask::change::<calls::sinks::Seek>(global, &call, "move the sink", |at| {
                continues(&name, at)
            })
        }
        Sinks::DeadLetters(verb) => dead_letters(global, verb),
    }
}

fn dead_letters(global: &Global, verb: DeadLetters) -> anyhow::Result<()> {
    match verb {
        DeadLetters::List(Name { name }) => list_letters(global, name),
        DeadLetters::Show(Letter { name, id }) => show_letter(global, &name, &id),
        DeadLetters::Retry(letters) => ask::change::<calls::sinks::Retry>(
            global,
            &letters.args()?,
            "retry dead letters",
            |of| {
                format!(
                    "{} dead letters of {} are redelivered; `saltcellar sinks show` shows the result",
                    of.count, of.name
                )
            },
        ),
        DeadLetters::Drop(letters) => {
            ask::change::<calls::sinks::Drop>(global, &letters.args()?, "drop dead letters", |of| {
                format!("{} dead letters of {} are deleted", of.count, of.name)
            })
        }
    }
}

fn list(global: &Global) -> anyhow::Result<()> {
    let page = ask::answer::<calls::sinks::List>(global, &ListArgs::default(), "list the sinks")?;

    show_rows(global.output, &page, &page.sinks, |out| {
        let columns = [
            Column::left("NAME"),
            Column::left("STATE").toned(Tone::of_word),
            Column::right("LAG"),
            Column::right("LAG S"),
            Column::right("DELIVERED"),
            Column::right("DEAD"),
            Column::middle_truncated("DESTINATION").drop_order(2),
            Column::truncated("ERROR").drop_order(1),
        ];

        let cells = |row: &Sink| {
            let delivered = row.counters.delivered.to_string();
            let error = present_error(row);
            // Empty without a position, because a lag of zero would mean that all is delivered.
            let [lag, lag_s] = [row.lag_entries, row.lag_s].map(or_empty);
            vec![
                row.name.clone(),
                row.state.name().to_owned(),
                lag,
                lag_s,
                delivered,
                row.dead_letters.to_string(),
                row.destination.clone(),
                error,
            ]
        };

        let rows: Vec<_> = page.sinks.iter().map(cells).collect();
        Ok(Table::new(columns).print(out, &rows)?)
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
    let call = ListArgs {
        name: Some(name.to_owned()),
        ..ListArgs::default()
    };
    let SinksPage { sinks } = ask::answer::<calls::sinks::List>(global, &call, "show the sink")?;

    let Some(row) = sinks.first() else {
        bail!("show the sink: {name:?} is not configured; `saltcellar sinks list` lists them")
    };

    show(global.output, row, |out| {
        let lag = || {
            format!(
                "{} entries, {} s",
                or_empty(row.lag_entries),
                or_empty(row.lag_s)
            )
        };

        // Shown even after a later delivery. The number of failures since then tells whether it is
        // over.
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
            ("state", Some(row.state.name().to_owned())),
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

        // A line for each counter, under its name.
        let counters = serde_json::to_value(row.counters)?;
        let counters = counters.as_object().into_iter().flatten();
        let counters = counters.map(|(name, value)| (name.as_str(), Some(leaf(value))));
        // Lines without a value are left out.
        for (title, text) in lines.into_iter().chain(counters) {
            text.map_or(Ok(()), |text| out.line(&format!("{title:<14} {text}")))?;
        }
        Ok(())
    })
}

fn test(global: &Global, name: String) -> anyhow::Result<()> {
    let call = NameArgs {
        name,
        ..NameArgs::default()
    };
    let result = ask::answer::<calls::sinks::Test>(global, &call, "test the sink")?;

    show(global.output, &result, |out| {
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
            "sink {} did not deliver the event: {error}",
            result.name
        ))),
    }
}

fn list_letters(global: &Global, name: String) -> anyhow::Result<()> {
    let operation = "list dead letters";
    let mut client = ask::connect(global)?;
    let call = DeadLettersArgs {
        name,
        ..DeadLettersArgs::default()
    };
    let page = ask::whole::<calls::sinks::DeadLetters>(&mut client, call).context(operation)?;

    show_rows(global.output, &page, &page.dead_letters, |out| {
        let columns = [
            Column::right("SEQ"),
            Column::time(title("FAILED", "FAILED (UTC)")),
            Column::right("ATTEMPTS"),
            Column::middle_truncated("TAG").drop_order(1),
            Column::truncated("REASON"),
        ];

        let cells = |row: &DeadLetterRow| {
            let [seq, attempts] = [row.seq, row.attempts].map(|n| n.to_string());
            vec![
                seq,
                short_at(row.failed.time),
                attempts,
                row.tag.clone(),
                row.reason.clone(),
            ]
        };

        let rows: Vec<_> = page.dead_letters.iter().map(cells).collect();
        Ok(Table::new(columns).print(out, &rows)?)
    })
}

fn show_letter(global: &Global, name: &str, id: &str) -> anyhow::Result<()> {
    let call = DeadLettersArgs {
        name: name.to_owned(),
        // The daemon finds it by its id, so a long list is not read for it.
        ids: Some(vec![id.to_owned()]),
        after: None,
        ..DeadLettersArgs::default()
    };
    let page = ask::answer::<calls::sinks::DeadLetters>(global, &call, "show the dead letter")?;

    let Some(row) = page.dead_letters.first() else {
        bail!(
            "show the dead letter: sink {name:?} has none of the event {id:?}; `saltcellar sinks dead-letters list {name}` lists them"
        )
    };
    show(global.output, row, |out: &mut Output| {
        // A line for each field, under its name.
        let fields = serde_json::to_value(row)?;
        for (key, value) in fields.as_object().into_iter().flatten() {
            out.line(&format!("{key:<10} {}", leaf(value)))?;
        }
        Ok(())
    })
}
