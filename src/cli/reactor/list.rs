//! `saltcellar reactor list`: the rules, and how the reactor is.

use anyhow::Context as _;
use serde_json::Value as Json;

use super::super::nested::leaf;
use super::super::output::{Format, Output, plain};
use super::super::table::{Column, Table};
use super::super::when::iso_in;
use super::super::{Global, ask};

pub(super) fn run(global: &Global) -> anyhow::Result<()> {
    let mut client = ask::connect(global)?;
    let mut answer = ask::call(&mut client, "reactor_list", []).context("list the rules")?;
    if let Some(refused) = answer.get_mut("refused") {
        iso_in(refused);
    }
    let mut out = Output::new(global.output);
    if out.format != Format::Table {
        out.json(&answer)?;
        return Ok(out.flush()?);
    }
    let field = |name: &str| answer.get(name).map(leaf).unwrap_or_default();
    let is = |name: &str| answer.get(name).and_then(Json::as_bool).unwrap_or(false);
    let state = match (is("shadow"), is("master_away")) {
        (true, _) => "watches only (shadow)",
        (false, true) => "waits for the master",
        (false, false) => "acts",
    };
    out.line(&format!(
        "it {state}; {} events behind, {} waiting, {} open",
        field("behind"),
        field("waiting"),
        field("open")
    ))?;
    if let Some(refused) = answer.get("refused") {
        let of = |name: &str| refused.get(name).map(leaf).unwrap_or_default();
        let words =
            format!("since {} its configuration cannot be used, and is not: {}", of("time"), of("why"));
        out.line(&plain(&words))?;
    }
    let row = |rule: &Json| {
        let files = rule.get("files").and_then(Json::as_array);
        let files: Vec<_> = files.into_iter().flatten().map(leaf).collect();
        vec![rule.get("rule").map(leaf).unwrap_or_default(), files.join(", ")]
    };
    let rules: Vec<_> = answer.get("rules").and_then(Json::as_array).into_iter().flatten().map(row).collect();
    Table::new([Column::left("RULE"), Column::shrinks("FILES")]).print(&mut out, &rules)?;
    Ok(out.flush()?)
}
