//! `saltcellar reactor why`: explains the rules and latest reactions of a tag.

use anyhow::Context as _;
use rmpv::Value;
use serde_json::Value as Json;

use super::super::format::nested::leaf;
use super::super::format::output::{Format, Output};
use super::super::format::when::iso_in;
use super::super::{Global, ask};
use super::history;

/// Flags of `reactor why`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// The event's tag
    tag: String,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  saltcellar reactor why salt/minion/web1/start";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut client = ask::connect(global)?;
    let pairs = [("tag", Value::from(args.tag.as_str()))];
    let mut answer = ask::call(&mut client, "reactor_why", pairs).context("query the rules of the tag")?;
    iso_in(&mut answer);
    if let Some(Json::Array(rows)) = answer.get_mut("reactions") {
        rows.iter_mut().for_each(iso_in);
    }
    let mut out = Output::new(global.output);
    if out.format != Format::Table {
        out.json(&answer)?;
        return Ok(out.flush()?);
    }
    let of = |name: &str| answer.get(name).map(leaf).unwrap_or_default();
    let list = |name: &str| answer.get(name).and_then(Json::as_array).cloned().unwrap_or_default();
    let rules: Vec<_> = list("rules").iter().map(leaf).collect();
    if rules.is_empty() {
        out.line("no rule matches this tag")?;
    } else {
        out.line(&format!("matched by {}", rules.join(", ")))?;
    }
    match answer.get("event") {
        None => out.line("the archive has no event with this tag")?,
        Some(event) => {
            out.line(&format!("latest event {} of {}, source {}", leaf(event), of("time"), of("source")))?;
            if of("user") == "Reactor" {
                out.line("ignored: a reactor caused this event")?;
            }
            if !of("source").starts_with("bus") {
                out.line(
                    "ignored: the reactor handles only events that the daemon read from the master's bus",
                )?;
            }
        }
    }
    let rows: Vec<_> = list("reactions").iter().rev().map(history::row).collect();
    if rows.is_empty() {
        out.line("no reactions")?;
    } else {
        history::table().print(&mut out, &rows)?;
    }
    Ok(out.flush()?)
}
