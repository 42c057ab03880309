//! `saltcellar reactor history`: lists reactions.

use serde_json::Value as Json;

use crate::api::call as calls;
use crate::api::call::events::Scan;
use crate::api::call::reactor::{ReactionRow, ReactionsPage};
use crate::cli::{
    Column, Fields as _, Global, ListOf, Order, Page, Pages, Table, TimeRange, plain, short_at,
    title, value,
};
use crate::model::{Location, ReactionFailure};

#[derive(clap::Args, serde::Serialize)]
pub(in crate::cli) struct Args {
    /// Maximum number of reactions
    #[arg(long, default_value_t = 20, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Only events whose tag matches this glob
    #[arg(long, value_name = "GLOB")]
    tag: Option<String>,
    /// Only events of this minion
    #[arg(long, value_name = "ID")]
    minion: Option<String>,
    /// Only reactions in these states: done, failed, partial, dead, left
    #[arg(long, value_name = "STATE,..", value_delimiter = ',', value_parser = ["done", "failed", "partial", "dead", "left"])]
    #[serde(serialize_with = "joined")]
    state: Vec<String>,
    #[command(flatten)]
    #[serde(flatten)]
    when: TimeRange,
    /// Only reactions before this sequence number
    #[arg(long, value_name = "SEQ")]
    before: Option<u64>,
}

pub(super) const EXAMPLES: &str = "\
States: `done`, all calls were made; `failed`, rendering failed and no call was made; `dead`, no call could be made; \
`partial`, some calls were made, and the others failed to render or could not be made; `left`, skipped for the given \
reason. `reactor replay` retries `failed`, `dead` and `partial` reactions.

Examples:
  saltcellar reactor history --since 1h
  saltcellar reactor history --state failed,partial,dead
  saltcellar reactor history --tag 'salt/minion/*/start' --output json";

impl ListOf for calls::reactor::History {
    type Row = ReactionRow;
    const ROWS: &'static str = "reactions";
    const OPERATION: &'static str = "list the reactions";

    fn page(answer: ReactionsPage) -> Page<ReactionRow> {
        Page {
            rows: answer.reactions,
            more: answer.more,
            next: answer.next,
            scan: Scan::default(),
        }
    }
}

fn joined<S: serde::Serializer>(states: &[String], to: S) -> Result<S::Ok, S::Error> {
    if states.is_empty() {
        to.serialize_none()
    } else {
        to.serialize_str(&states.join(","))
    }
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    Pages::<calls::reactor::History>::new(global, args)?.print(
        global.output,
        Order::NewestLast,
        |out, reactions| Ok(table().print(out, &reactions.iter().map(row).collect::<Vec<_>>())?),
    )
}

pub(super) fn table() -> Table {
    Table::new([
        Column::right("SEQ"),
        Column::left(title("TIME", "TIME (UTC)")),
        Column::left("STATE"),
        Column::right("MS"),
        Column::truncated("TAG"),
        Column::truncated("CALLS, FAILURES"),
    ])
}

/// The failures of a reaction, each with file, line and cause.
pub(in crate::cli) fn failures(record: &Json) -> impl Iterator<Item = String> + '_ {
    // Absent if the renderer does not say.
    record.list("failures").iter().map(|failure| {
        let line = failure
            .of("line")
            .as_u64()
            .and_then(|line| u32::try_from(line).ok());

        let at = Location {
            file: failure.text("file").to_owned(),
            line,
            rendered: failure.is("rendered"),
        };

        plain(
            &ReactionFailure {
                at,
                cause: failure.text("cause").to_owned(),
            }
            .to_string(),
        )
        .into_owned()
    })
}

/// The outcome of a call, and whether its function failed.
pub(super) fn outcome(call: &Json) -> String {
    let outcome = call.leaf("outcome");
    // Absent while the result is unknown.
    if *call.of("success") != false {
        return outcome;
    }

    let retcode = if call.get("retcode").is_some() {
        ", retcode "
    } else {
        ""
    };
    format!("{outcome}, failed{retcode}{}", call.leaf("retcode"))
}

pub(super) fn row(reaction: &ReactionRow) -> Vec<String> {
    // A record as it is stored, without a type in the API.
    let record = &value(&reaction.reaction);

    // In milliseconds. A reaction without an end has none.
    let took = record.of("ended").as_i64().zip(record.of("at").as_i64());
    let took = took
        .map(|(ended, at)| format!("{:.1}", (ended - at) as f64 / 1e3))
        .unwrap_or_default();

    let why = record.leaf("why");
    // Only a skipped reaction has a reason.
    let state = if why.is_empty() {
        record.leaf("state")
    } else {
        format!("left: {why}")
    };

    let calls = record.list("calls").iter().map(|call| {
        let [client, fun, tgt] = ["client", "fun", "tgt"].map(|name| call.leaf(name));
        let on = if tgt.is_empty() {
            tgt
        } else {
            format!(" {tgt}")
        };
        format!("{client}.{fun}{on}: {}", outcome(call))
    });

    let calls: Vec<_> = calls
        .chain(failures(record).map(|failure| format!("failed: {failure}")))
        .collect();

    vec![
        reaction.seq.to_string(),
        short_at(reaction.time),
        state,
        took,
        plain(&reaction.tag).into_owned(),
        calls.join("; "),
    ]
}
