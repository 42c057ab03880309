//! `saltcellar reactor history`: what was done about events.

use anyhow::Context as _;
use rmpv::Value;
use serde_json::Value as Json;

use super::super::ask::{Names, Pages};
use super::super::nested::leaf;
use super::super::output::{Format, Output, plain};
use super::super::table::{Column, Table};
use super::super::when::{Stretch, short};
use super::super::{Global, ask, jobs};
use crate::model::{Location, ReactionFailure};

/// Flags of `reactor history`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// At most so many reactions
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
    when: Stretch,
    /// Only reactions before this number
    #[arg(long, value_name = "SEQ")]
    before: Option<u64>,
}

pub(super) const EXAMPLES: &str = "\
`done`: every call was made. `failed`: rendering failed, and no call was made. `dead`: no call could be made. `partial`: some \
calls were made, and the rest failed to render or could not be made. `reactor replay` does what is left to do of these three. `left`: \
nothing was done, for the reason shown.

Examples:
  saltcellar reactor history --since 1h
  saltcellar reactor history --state failed,partial,dead
  saltcellar reactor history --tag 'salt/minion/*/start' --output json";

const NAMES: Names = Names { call: "reactor_history", rows: "reactions", cursor: "seq" };

pub(super) fn run(global: &Global, args: Args) -> anyhow::Result<()> {
    let client = ask::connect(global)?;
    let text = |value: Option<String>| value.map_or(Value::Nil, Value::from);
    let state = Some(args.state.join(",")).filter(|states| !states.is_empty());
    let mut said = vec![("tag", text(args.tag)), ("minion", text(args.minion)), ("state", text(state))];
    said.extend(args.when.said());
    let before = args.before.map_or(Value::Nil, Value::from);
    let mut pages = Pages::new(client, NAMES, said, before, args.limit);
    let mut out = Output::new(global.output);
    if out.format != Format::Table {
        jobs::print_json(&mut out, &mut pages, NAMES.rows).context("list the reactions")?;
        return Ok(out.flush()?);
    }
    let rows: Vec<_> = pages.newest_below().context("list the reactions")?.iter().map(row).collect();
    table().print(&mut out, &rows)?;
    Ok(out.flush()?)
}

pub(super) fn table() -> Table {
    Table::new([
        Column::right("SEQ"),
        Column::left("TIME (UTC)"),
        Column::left("STATE"),
        Column::right("MS"),
        Column::shrinks("TAG"),
        Column::shrinks("CALLS, FAILURES"),
    ])
}

/// What failed of a reaction: file, line and cause of each.
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

/// What became of a call. What ran need not have done what it was to do.
pub(super) fn outcome(call: &Json) -> String {
    let said = call.get("outcome").map(leaf).unwrap_or_default();
    let retcode = call.get("retcode").map(|code| format!(", retcode {}", leaf(code)));
    match call.get("success").and_then(Json::as_bool) {
        Some(false) => format!("{said}, failed{}", retcode.unwrap_or_default()),
        _ => said,
    }
}

pub(super) fn row(reaction: &Json) -> Vec<String> {
    let of = |name: &str| reaction.get(name).unwrap_or(&Json::Null);
    let record = of("reaction");
    let said = |name: &str| record.get(name).map(leaf).unwrap_or_default();
    let number = |name: &str| record.get(name).and_then(Json::as_i64);
    let took =
        number("ended").zip(number("at")).map(|(ended, at)| format!("{:.1}", (ended - at) as f64 / 1e3));
    let state = if said("why").is_empty() { said("state") } else { format!("left: {}", said("why")) };
    let calls = record.get("calls").and_then(Json::as_array).into_iter().flatten().map(|call| {
        let said = |name: &str| call.get(name).map(leaf).unwrap_or_default();
        let tgt = said("tgt");
        let on = if tgt.is_empty() { String::new() } else { format!(" {tgt}") };
        format!("{}.{}{on}: {}", said("client"), said("fun"), outcome(call))
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
