//! `saltcellar reactor show`: shows a reaction from its event to the results of its jobs.

use anyhow::Context as _;
use rmpv::Value;
use serde_json::Value as Json;

use super::super::format::nested::{leaf, nested};
use super::super::format::output::{Format, Output};
use super::super::format::when::iso_in;
use super::super::{Global, ask};
use super::history::{self, outcome};

/// Flags of `reactor show`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Sequence number of the reaction, or of the event
    seq: u64,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  saltcellar reactor show 18234
  saltcellar reactor show 18234 --output json";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut client = ask::connect(global)?;
    let mut answer = ask::call(&mut client, "reactor_show", [("seq", Value::from(args.seq))])
        .context("show the reaction")?;
    iso_in(&mut answer);
    let mut out = Output::new(global.output);
    if out.format == Format::Table {
        print(&mut out, &answer)?;
    } else {
        out.json(&answer)?;
    }
    Ok(out.flush()?)
}

fn print(out: &mut Output, answer: &Json) -> anyhow::Result<()> {
    let of = |name: &str| answer.get(name).map(leaf).unwrap_or_default();
    let record = answer.get("reaction").unwrap_or(&Json::Null);
    let text = |name: &str| record.get(name).map(leaf).unwrap_or_default();
    let list = |name: &str| record.get(name).and_then(Json::as_array).cloned().unwrap_or_default();
    let why = if text("why").is_empty() { String::new() } else { format!(": {}", text("why")) };
    out.line(&format!("reaction {}, {}{why}, {}", of("seq"), text("state"), of("time")))?;
    out.line(&format!("  event {}  {}  {}", text("event"), of("tag"), of("minion")))?;
    let rules: Vec<_> = list("rules").iter().map(leaf).collect();
    out.line(&format!("  rules {}", rules.join(", ")))?;
    for file in list("files") {
        let part = |n: usize| file.get(n).and_then(Json::as_str).unwrap_or_default().to_owned();
        out.line("")?;
        out.heading(&format!("{}{}", part(0), if file.get(2).is_some() { " (truncated)" } else { "" }))?;
        for line in part(1).lines() {
            out.line(&format!("    {line}"))?;
        }
    }
    let results = answer.get("results").and_then(Json::as_array).cloned().unwrap_or_default();
    for (n, call) in list("calls").iter().enumerate() {
        let text = |name: &str| call.get(name).map(leaf).unwrap_or_default();
        out.line("")?;
        out.heading(&format!("{}: {}.{} {}", text("id"), text("client"), text("fun"), text("tgt")))?;
        let why = if text("why").is_empty() { String::new() } else { format!(": {}", text("why")) };
        let took = call.get("took_us").and_then(Json::as_i64).map_or(0.0, |us| us as f64 / 1e3);
        out.line(&format!(
            "    {}{why}, try {}, {took:.1} ms, jid {}",
            outcome(call),
            text("tries"),
            text("jid")
        ))?;
        out.text(&nested(call.get("load").unwrap_or(&Json::Null), 4))?;
        if let Some(result) = results.get(n).filter(|result| !result.is_null()) {
            out.line("    result:")?;
            out.text(&nested(result, 6))?;
        }
    }
    let failures: Vec<_> = history::failures(record).collect();
    if !failures.is_empty() {
        out.line("")?;
        out.heading("failed:")?;
    }
    for failure in failures {
        out.line(&format!("    {failure}"))?;
    }
    for note in list("notes") {
        let part = |n: usize| note.get(n).and_then(Json::as_str).unwrap_or_default().to_owned();
        out.line(&format!("  {}: {}", part(0), part(1)))?;
    }
    Ok(())
}
