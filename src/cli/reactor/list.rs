//! `saltcellar reactor list`: shows the state of the reactor, its rules and their acting reactor.

use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::{Value as Json, json};

use super::super::format::nested::leaf;
use super::super::format::output::{Format, Output, plain};
use super::super::format::table::{Column, Table};
use super::super::format::when::iso_in;
use super::super::{Global, ask};
use crate::config::salt_master::{SALT_MASTER_FILE, SaltMaster};
use crate::reactor::acting;

/// Flags of `reactor list`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// The Salt master's configuration file, used if the daemon has no reactor
    #[arg(long, value_name = "FILE", default_value = SALT_MASTER_FILE)]
    master_config: PathBuf,
}

pub(super) const EXAMPLES: &str = "\
ACTS is the reactor that acts on events of the rule: saltcellar, salt (Salt's own reactor), `nobody`, or both. It depends \
on the master's configuration, the state of the bus and the store, and `reactor.shadow`.

Examples:
  saltcellar reactor list
  saltcellar reactor list --output json | jq '.rules[] | select(.acts != \"saltcellar\")'";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut client = ask::connect(global)?;
    let status = ask::call(&mut client, "status", []).context("query the status")?;
    let has_reactor = status.get("reactor").and_then(Json::as_bool) != Some(false);
    let mut answer = if has_reactor {
        ask::call(&mut client, "reactor_list", []).context("list the rules")?
    } else {
        without(args)
    };
    for time in ["refused", "foreign_call"] {
        if let Some(value) = answer.get_mut(time) {
            iso_in(value);
        }
    }
    let mut out = Output::new(global.output);
    if out.format != Format::Table {
        out.json(&answer)?;
        return Ok(out.flush()?);
    }
    print(&mut out, &answer)?;
    Ok(out.flush()?)
}

/// The rules of the master's configuration, if the daemon has no reactor.
fn without(args: &Args) -> Json {
    let salts = acting::of_master(&SaltMaster::read(&args.master_config));
    let no_reactor = "the daemon has no reactor: `reactor.master` is not set";
    let rules = acting::assign(Vec::new(), &salts, None, no_reactor).into_iter().map(|one| {
        let (rule, files) = (one.rule.pattern, one.rule.files);
        json!({"rule": rule, "acts": one.actor.name(), "why": one.why, "files": files})
    });
    json!({"blocked": no_reactor, "salts_reactor": salts.runs, "rules": rules.collect::<Json>()})
}

fn print(out: &mut Output, answer: &Json) -> anyhow::Result<()> {
    let field = |name: &str| answer.get(name).map(leaf).unwrap_or_default();
    let is = |name: &str| answer.get(name).and_then(Json::as_bool).unwrap_or(false);
    let blocked = field("blocked");
    let state = match (blocked.is_empty(), is("master_unreachable")) {
        (false, _) => format!("inactive: {blocked}"),
        (true, true) => "waiting for the master".to_owned(),
        (true, false) => "active".to_owned(),
    };
    let numbers = ["behind", "unstored", "waiting", "open"].map(|name| (name, field(name)));
    let numbers: Vec<_> = numbers
        .into_iter()
        .filter(|(_, number)| !number.is_empty())
        .map(|(name, number)| match name {
            "behind" => format!("{number} events behind"),
            "unstored" => format!("{number} records not stored yet"),
            _ => format!("{number} {name}"),
        })
        .collect();
    out.line(plain(&[state, numbers.join(", ")].join("; ")).trim_end_matches("; "))?;
    if let Some(ended) = answer.get("reactions").and_then(Json::as_object) {
        let counts: Vec<_> = ended.iter().map(|(state, count)| format!("{} {state}", leaf(count))).collect();
        out.line(&format!("reactions since the start: {}", counts.join(", ")))?;
    }
    if let Some(refused) = answer.get("refused") {
        let of = |name: &str| refused.get(name).map(leaf).unwrap_or_default();
        let message = format!("new configuration invalid since {}, not in use: {}", of("time"), of("why"));
        out.line(&plain(&message))?;
    }
    if let Some(call) = answer.get("foreign_call") {
        let of = |name: &str| call.get(name).map(leaf).unwrap_or_default();
        out.line(&plain(&format!("another reactor called {} at {}", of("fun"), of("time"))))?;
    }
    let rules = answer.get("rules").and_then(Json::as_array).cloned().unwrap_or_default();
    let row = |rule: &Json| {
        let of = |name: &str| rule.get(name).map(leaf).unwrap_or_default();
        let files = rule.get("files").and_then(Json::as_array);
        let files: Vec<_> = files.into_iter().flatten().map(leaf).collect();
        vec![of("rule"), of("acts"), files.join(", "), of("why")]
    };
    let rows: Vec<_> = rules.iter().map(row).collect();
    let columns =
        [Column::left("RULE"), Column::left("ACTS"), Column::truncated("FILES"), Column::truncated("WHY")];
    Ok(Table::new(columns).print(out, &rows)?)
}
