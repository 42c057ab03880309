//! `saltcellar reactor list`: shows the state of the reactor, its rules and their acting reactor.

use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::{Value as Json, json};

use crate::cli::{Column, Fields as _, Global, Output, Table, ask, leaf, show};
use crate::config::salt_master::{SALT_MASTER_FILE, SaltMaster};
use crate::reactor::acting;

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
    let status = ask::call(&mut client, "status", ()).context("query the status")?;
    let answer = if *status.of("reactor") == false {
        without(args)
    } else {
        ask::call(&mut client, "reactor_list", ()).context("list the rules")?
    };
    show(global.output, &answer, |out| print(out, &answer))
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
    let state = match answer.leaf("blocked") {
        blocked if !blocked.is_empty() => format!("inactive: {blocked}"),
        _ if answer.is("master_unreachable") => "waiting for the master".to_owned(),
        _ => "active".to_owned(),
    };
    let numbers = [
        ("behind", "events behind"),
        ("unstored", "records not stored yet"),
        ("waiting", "waiting"),
        ("open", "open"),
    ];
    let numbers = numbers.iter().filter(|(name, _)| answer.get(name).is_some());
    let numbers: Vec<_> = numbers.map(|(name, words)| format!("{} {words}", answer.leaf(name))).collect();
    out.line([state, numbers.join(", ")].join("; ").trim_end_matches("; "))?;
    if let Some(ended) = answer.of("reactions").as_object() {
        let counts: Vec<_> = ended.iter().map(|(state, count)| format!("{} {state}", leaf(count))).collect();
        out.line(&format!("reactions since the start: {}", counts.join(", ")))?;
    }
    if let Some(refused) = answer.get("refused") {
        let [time, why] = ["time", "why"].map(|name| refused.leaf(name));
        out.line(&format!("new configuration invalid since {time}, not in use: {why}"))?;
    }
    if let Some(call) = answer.get("foreign_call") {
        out.line(&format!("another reactor called {} at {}", call.leaf("fun"), call.leaf("time")))?;
    }
    let row = |rule: &Json| {
        let files: Vec<_> = rule.list("files").iter().map(leaf).collect();
        vec![rule.leaf("rule"), rule.leaf("acts"), files.join(", "), rule.leaf("why")]
    };
    let rows: Vec<_> = answer.list("rules").iter().map(row).collect();
    let columns =
        [Column::left("RULE"), Column::left("ACTS"), Column::truncated("FILES"), Column::truncated("WHY")];
    Ok(Table::new(columns).print(out, &rows)?)
}
