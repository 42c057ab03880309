//! `saltcellar reactor history`: lists reactions.

use clap::builder::PossibleValuesParser;
use salt_sls::Glob;

use crate::api::call::reactor::{HistoryArgs, ReactionRow};
use crate::api::call::{self as calls, Cursor};
use crate::cli::{
    Column, Global, ListFlags, ListOf, Listing, Table, TimeRange, Tone, ask, plain, short_at, title,
};
use crate::reactor::master::Call;
use crate::reactor::stored::{States, StoredRecord};
use crate::reactor::{CallOutcome, CallRecord};

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    rows: ListFlags,
    /// Only events whose tag matches this glob
    #[arg(long, value_name = "GLOB")]
    tag: Option<String>,
    /// Only reactions of masters that match this glob
    #[arg(long, value_name = "GLOB")]
    master: Option<String>,
    /// Only events of minions that match this glob
    #[arg(long, value_name = "GLOB")]
    minion: Option<String>,
    /// Only reactions in these states: done, failed, partial, dead, skipped
    #[arg(long, value_name = "STATE,..", value_delimiter = ',', value_parser = PossibleValuesParser::new(States::names()))]
    state: Vec<String>,
    #[command(flatten)]
    when: TimeRange,
    /// Only reactions before this sequence number
    #[arg(long, value_name = "SEQ")]
    before: Option<u64>,
}

pub(super) const EXAMPLES: &str = "\
States: `done`, all calls were made; `failed`, rendering failed and no call was made; `dead`, no call could be made; \
`partial`, some calls were made, and the others failed to render or could not be made; `skipped`, for the given \
reason. `reactor replay` retries `failed`, `dead` and `partial` reactions.

Examples:
  saltcellar reactor history --since 1h
  saltcellar reactor history --state failed,partial,dead
  saltcellar reactor history --tag 'salt/minion/*/start' --output json";

ask::paged! {
    calls::reactor::History: ReactionRow, in reactions, after Cursor, in cursor,
    limited by limit
}

impl ListOf for calls::reactor::History {
    const ROWS: &'static str = "reactions";
    const OPERATION: &'static str = "list the reactions";
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let states = match args.state.as_slice() {
        [] => None,
        // The command line accepts known names only, so this does not fail.
        names => Some(States::named(names.iter().map(String::as_str)).map_err(anyhow::Error::msg)?),
    };

    let call = HistoryArgs {
        limit: Some(args.rows.limit()),
        since: args.when.since(),
        until: args.when.until(),
        minion: args.minion.clone().map(Glob::from),
        tag: args.tag.clone(),
        master: args.master.clone().map(Glob::from),
        state: states,
        before: args.before,
        ..HistoryArgs::default()
    };

    let mut table = table();
    Listing::<calls::reactor::History>::new(global, call)?
        .reversed(args.rows.reverse)
        .print(global.output, |out, reactions| {
            Ok(table.print(out, &reactions.iter().map(row).collect::<Vec<_>>())?)
        })
}

pub(super) fn table() -> Table {
    Table::new([
        Column::right("SEQ"),
        Column::time(title("TIME", "TIME (UTC)")),
        Column::left("STATE").toned(Tone::of_word),
        Column::right("MS"),
        Column::truncated("TAG"),
        Column::truncated("CALLS, FAILURES"),
        Column::middle_truncated("MASTER")
            .min_chars(9)
            .if_different(),
    ])
}

/// The failures of a reaction, each with file, line and cause.
pub(in crate::cli) fn failures(record: &StoredRecord) -> impl Iterator<Item = String> {
    record
        .failures()
        .map(|failure| plain(&failure.to_string()).into_owned())
}

/// The outcome of a call, and whether its function failed.
pub(super) fn outcome(call: &CallRecord) -> String {
    let outcome = call.outcome.name();
    match call.outcome {
        CallOutcome::Ran {
            success: false,
            retcode: Some(retcode),
            ..
        } => format!("{outcome}, failed, retcode {retcode}"),
        CallOutcome::Ran { success: false, .. } => format!("{outcome}, failed"),
        _ => outcome.to_owned(),
    }
}

pub(super) fn row(reaction: &ReactionRow) -> Vec<String> {
    let [state, took, calls] = match StoredRecord::read(reaction.reaction.packed()) {
        Ok(record) => of_record(&record),
        // A damaged record, which must not hide the others.
        Err(error) => ["unreadable".to_owned(), String::new(), error.to_string()],
    };

    vec![
        reaction.seq.to_string(),
        short_at(reaction.time),
        state,
        took,
        plain(&reaction.tag).into_owned(),
        plain(&calls).into_owned(),
        plain(reaction.master.as_deref().unwrap_or_default()).into_owned(),
    ]
}

/// State, milliseconds, and calls with failures.
fn of_record(record: &StoredRecord) -> [String; 3] {
    // A reaction without an end has none.
    let took = record.took_us().map(|us| format!("{:.1}", us as f64 / 1e3));

    // Only a skipped reaction has a reason.
    let state = record.state.name();
    let state = record.why.map_or_else(
        || state.to_owned(),
        |why| format!("{state}: {}", why.name()),
    );

    let calls = record.calls.iter().map(|made| {
        let Call {
            client, fun, tgt, ..
        } = &made.call;
        let on = if tgt.is_empty() {
            String::new()
        } else {
            format!(" {tgt}")
        };
        format!("{}.{fun}{on}: {}", client.name(), outcome(made))
    });

    let calls: Vec<_> = calls
        .chain(failures(record).map(|failure| format!("failed: {failure}")))
        .collect();

    [state, took.unwrap_or_default(), calls.join("; ")]
}
