//! `saltcellar reactor rules`: shows the state of the reactor, its rules and their acting reactor.

use std::path::PathBuf;

use anyhow::Context as _;

use crate::api::call::reactor::{ForeignCall, ReactorState, Refusal, RuleState, RunningReactor};
use crate::api::call::{self as calls, NoArgs};
use crate::cli::{Column, Global, Output, Table, ask, plain, show};
use crate::config::salt_master::SALT_CONFIG;
use crate::config::salt_master::SaltMaster;
use crate::reactor::acting;

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Salt's configuration directory, as for Salt's option -c; used if the daemon has no reactor
    #[arg(long, value_name = "DIR", default_value = SALT_CONFIG)]
    salt_config: PathBuf,
}

pub(super) const EXAMPLES: &str = "\
HANDLED BY is the reactor that acts on events of the rule: saltcellar, salt (Salt's reactor), none, or both. It depends \
on the master's configuration, the state of the bus and the store, and `reactor.shadow`.

Examples:
  saltcellar reactor rules
  saltcellar reactor rules --output json | jq '.rules[] | select(.handled_by != \"saltcellar\")'";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut client = ask::connect(global)?;
    let status = client
        .make::<calls::status::Show>(&NoArgs {})
        .context("query the status")?;

    // Without a reactor in the daemon, Salt's rules are read here.
    let state = if status.reactor {
        client
            .make::<calls::reactor::List>(&NoArgs {})
            .context("list the rules")?
    } else {
        without(args)
    };

    show(global.output, &state, |out| print(out, &state))
}

/// The rules of the master's configuration, if the daemon has no reactor.
fn without(args: &Args) -> ReactorState {
    let salts = acting::of_master(&SaltMaster::read(&args.salt_config.join("master")));

    let no_reactor = "the daemon has no reactor: `reactor.master` is not set";
    let rules = acting::assign(Vec::new(), &salts, (None, None), no_reactor);
    ReactorState {
        running: None,
        blocked: Some(no_reactor.to_owned()),
        salts_reactor: salts.runs,
        rules: rules.into_iter().map(RuleState::from).collect(),
    }
}

fn print(out: &mut Output, state: &ReactorState) -> anyhow::Result<()> {
    let running = state.running.as_ref();

    // A block is the stronger reason: nothing acts even if the master is reachable.
    let leader = running
        .and_then(|running| running.election.as_ref())
        .and_then(|election| election.leader.as_deref());
    let activity = match &state.blocked {
        Some(blocked) => format!("inactive: {blocked}"),
        None if let Some(leader) = leader => {
            format!(
                "on standby: the reactor of the master {} leads",
                plain(leader)
            )
        }
        None if running.is_some_and(|running| running.master_unreachable) => {
            "waiting for the master".to_owned()
        }
        None => "active".to_owned(),
    };

    // Without a reactor there is nothing to count.
    let numbers = running.map_or_else(String::new, |running| {
        let RunningReactor { behind, unstored, waiting, open, .. } = running;
        format!("; {behind} events behind, {unstored} records not stored yet, {waiting} waiting, {open} open")
    });

    out.line(&format!("{activity}{numbers}"))?;

    if let Some(running) = running {
        let counts: Vec<_> = running
            .reactions
            .iter()
            .map(|(state, count)| format!("{count} {state}"))
            .collect();
        out.line(&format!("reactions since the start: {}", counts.join(", ")))?;

        if let Some(cluster) = &running.cluster_id {
            out.line(&format!(
                "acts only on events that this master fired, because cluster_id is {}; {} of other masters since the start, whose daemons react",
                plain(cluster),
                running.of_peers
            ))?;
        }

        if let Some(election) = running.election.as_ref().filter(|one| one.leads) {
            out.line(&format!("leads in the election {}", plain(&election.name)))?;
        }

        // The earlier configuration goes on, so this must not go unnoticed.
        if let Some(Refusal { time, why }) = &running.refused {
            out.line(&format!(
                "new configuration invalid since {}, not in use: {why}",
                time.0.iso()
            ))?;
        }
        // Two reactors that act would execute every reaction twice.
        if let Some(ForeignCall { time, fun }) = &running.foreign_call {
            out.line(&format!("another reactor called {fun} at {}", time.0.iso()))?;
        }
    }

    let row = |rule: &RuleState| {
        vec![
            rule.rule.clone(),
            rule.handled_by.name().to_owned(),
            rule.files.join(", "),
            rule.why.clone(),
        ]
    };

    let rows: Vec<_> = state.rules.iter().map(row).collect();

    let columns = [
        Column::left("RULE"),
        Column::left("HANDLED BY"),
        Column::truncated("FILES"),
        Column::truncated("WHY"),
    ];

    Ok(Table::new(columns).print(out, &rows)?)
}
