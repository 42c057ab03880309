//! `saltcellar reactor history`: lists reactions.

use anyhow::Context as _;
use rmpv::Value;
use serde_json::Value as Json;

use super::super::ask::{ListCall, Pages};
use super::super::format::nested::leaf;
use super::super::format::output::{Format, Output, plain};
use super::super::format::table::{Column, Table};
use super::super::format::when::{TimeRange, short};
use super::super::{Global, ask, jobs};
use crate::model::{Location, ReactionFailure};

/// Flags of `reactor history`.
#[derive(clap::Args)]
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
    state: Vec<String>,
    #[command(flatten)]
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

const LIST_CALL: ListCall = ListCall { call: "reactor_history", rows: "reactions", cursor: "seq" };

pub(super) fn run(global: &Global, args: Args) -> anyhow::Result<()> {
    let client = ask::connect(global)?;
    let text = |value: Option<String>| value.map_or(Value::Nil, Value::from);
    let state = Some(args.state.join(",")).filter(|states| !states.is_empty());
    let mut filter_args =
        vec![("tag", text(args.tag)), ("minion", text(args.minion)), ("state", text(state))];
    filter_args.extend(args.when.arguments());
    let before = args.before.map_or(Value::Nil, Value::from);
    let mut pages = Pages::new(client, LIST_CALL, filter_args, before, args.limit);
    let mut out = Output::new(global.output);
    if out.format != Format::Table {
        jobs::print_json(&mut out, &mut pages, LIST_CALL.rows).context("list the reactions")?;
        return Ok(out.flush()?);
    }
    let rows: Vec<_> = pages.oldest_first().context("list the reactions")?.iter().map(row).collect();
    table().print(&mut out, &rows)?;
    Ok(out.flush()?)
}

pub(super) fn table() -> Table {
    Table::new([
        Column::right("SEQ"),
        Column::left("TIME (UTC)"),
        Column::left("STATE"),
        Column::right("MS"),
        Column::truncated("TAG"),
        Column::truncated("CALLS, FAILURES"),
    ])
}

/// The failures of a reaction, each with file, line and cause.
pub(in crate::cli) fn failures(record: &Json) -> impl Iterator<Item = String> + '_ {
    let list = record.get("failures").and_then(Json::as_array).into_iter().flatten();
    list.map(|failure| {
        let text = |name: &str| failure.get(name).and_then(Json::as_str).unwrap_or_default().to_owned();
        let line = failure.get("line").and_then(Json::as_u64).and_then(|line| u32::try_from(line).ok());
        let rendered = failure.get("rendered").and_then(Json::as_bool).unwrap_or(false);
        let at = Location { file: text("file"), line, rendered };
        plain(&ReactionFailure { at, cause: text("cause") }.to_string()).into_owned()
    })
}

/// The outcome of a call, and whether its function failed.
pub(super) fn outcome(call: &Json) -> String {
    let outcome = call.get("outcome").map(leaf).unwrap_or_default();
    let retcode = call.get("retcode").map(|code| format!(", retcode {}", leaf(code)));
    match call.get("success").and_then(Json::as_bool) {
        Some(false) => format!("{outcome}, failed{}", retcode.unwrap_or_default()),
        _ => outcome,
    }
}

pub(super) fn row(reaction: &Json) -> Vec<String> {
    let of = |name: &str| reaction.get(name).unwrap_or(&Json::Null);
    let record = of("reaction");
    let text = |name: &str| record.get(name).map(leaf).unwrap_or_default();
    let number = |name: &str| record.get(name).and_then(Json::as_i64);
    let took =
        number("ended").zip(number("at")).map(|(ended, at)| format!("{:.1}", (ended - at) as f64 / 1e3));
    let state = if text("why").is_empty() { text("state") } else { format!("left: {}", text("why")) };
    let calls = record.get("calls").and_then(Json::as_array).into_iter().flatten().map(|call| {
        let text = |name: &str| call.get(name).map(leaf).unwrap_or_default();
        let tgt = text("tgt");
        let on = if tgt.is_empty() { String::new() } else { format!(" {tgt}") };
        format!("{}.{}{on}: {}", text("client"), text("fun"), outcome(call))
    });
    let calls: Vec<_> = calls.chain(failures(record).map(|failure| format!("failed: {failure}"))).collect();
    vec![
        leaf(of("seq")),
        short(of("time")),
        state,
        took.unwrap_or_default(),
        leaf(of("tag")),
        calls.join("; "),
    ]
}
