//! Checks of the daemon's reactor: acting reactors of each rule, loops and failed reactions.

use anyhow::Context as _;

use super::super::reactor::failures;
use super::check::{Check, Daemon, Run};
use super::finding::{CheckResult, Findings};
use crate::api::call::reactor::{HistoryArgs, ReactionRow, ReactorState, RunningReactor};
use crate::api::call::status::REACTOR_BEHIND_MAX;
use crate::api::call::{self as calls, NoArgs};
use crate::api::client::Client;
use crate::base::clock::{Clock, Micros};
use crate::base::limits::LIST_ROWS_MAX;
use crate::cli::ask;
use crate::config::salt_master::Role;
use crate::reactor::acting::Actor;
use crate::reactor::stored::{SkipReason, State, States, StoredRecord};
use crate::wire::msgpack::Time;

const CHECK: &str = "reactor";
const REACTIONS: &str = "reactions";
const LOOPS: &str = "reactor.loops";

/// Age limit of reactions that are checked, in days.
const DAYS: i64 = 7;

/// Maximum number of rule names in one finding.
const NAMED: usize = 5;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "reactor",
        not_ok_when: "no reactor acts on a rule, or both do; Salt's reactor is on in addition to saltcellar's, which is therefore in shadow mode; its configuration cannot be used; the master does not respond, or its `transport` is not `zeromq`; it is more than 10,000 entries behind",
        run: Run::Daemon(check),
    },
    Check {
        name: "reactor.loops",
        not_ok_when: "`reactor.depth_max` or the `budget` of a rule stopped reactions in the last 7 days: a rule runs in a loop, or has more to do than expected",
        run: Run::ByAnother,
    },
    Check {
        name: "reactions",
        not_ok_when: "reactions of the last 7 days failed, wholly or in part, and were not replayed since: file, line and cause of the latest. In shadow a warning",
        run: Run::ByAnother,
    },
];

fn check(found: &mut Findings, daemon: &mut Daemon<'_>) {
    let Daemon { client, config, .. } = daemon;

    let Some((role, file, _)) = config.reactor.of_whom() else {
        // No reactor is configured.
        return;
    };

    let state = match client.make::<calls::reactor::List>(&NoArgs {}) {
        Ok(answer) => answer,
        Err(error) => return found.of(CHECK).problem(error.to_string()),
    };

    let reactor = state.running.clone().unwrap_or_default();

    // The reactor is reported as healthy only if nothing is found from here on.
    let before = found.0.len();

    if let Some(refused) = &reactor.refused {
        found.of(CHECK).problem(format!(
            "its configuration is invalid and not in use: {}",
            refused.why
        ));
    }

    if reactor.master_unreachable {
        found
            .of(CHECK)
            .problem("the master's request port is unreachable; reactions are waiting: run `systemctl status salt-master`");
    }

    actors(found, &state);

    // Shadow mode is a warning only if the configuration does not ask for it.
    if reactor.shadow && state.salts_reactor && !config.reactor.shadow {
        let file = file.display();
        found.of(CHECK).warn(match role {
            Role::Master => format!(
                "it runs in shadow mode, because Salt's reactor is enabled on the master of {file}: `saltcellar setup --reactor` disables it"
            ),
            Role::Minion => format!(
                "it runs in shadow mode, because Salt's reactor is enabled in the minion of {file}: remove it from `engines` there to disable it"
            ),
        });
    }

    if reactor.behind > REACTOR_BEHIND_MAX {
        found.of(CHECK).warn_because(
            format!("{} log entries behind", reactor.behind),
            "reactions come late",
            "if the number does not fall, `saltcellar reactor history` shows slow rules",
        );
    }

    if found.0.len() == before {
        let who = if reactor.shadow {
            "in shadow mode, Salt's reactor acts"
        } else {
            "active"
        };

        let RunningReactor {
            behind,
            unstored,
            open,
            ..
        } = reactor;

        let rules = state.rules.len();
        found.of(CHECK).ok(format!(
            "{who}: {rules} rules, {behind} events behind, {unstored} records not stored yet, {open} open"
        ));
    }

    // Past reactions matter in any state.
    if let Err(error) = limited(found, client) {
        found
            .of(LOOPS)
            .problem(format!("cannot list reactions: {error:#}"));
    }

    if let Err(error) = failed(found, client, reactor.shadow) {
        found
            .of(REACTIONS)
            .problem(format!("cannot list reactions: {error:#}"));
    }
}

/// Rules with no acting reactor, or with two.
fn actors(found: &mut Findings, state: &ReactorState) {
    for (who, message, why) in [
        (
            Actor::Neither,
            "no reactor acts on",
            "events that match these rules cause no reaction",
        ),
        (
            Actor::Both,
            "saltcellar and Salt both act on",
            "every reaction is executed twice",
        ),
    ] {
        let these: Vec<_> = state
            .rules
            .iter()
            .filter(|rule| rule.handled_by == who)
            .collect();

        // One finding for all rules of a kind. `reactor rules` shows the reason of each.
        let Some(first) = these.first() else { continue };

        let mut names: Vec<_> = these
            .iter()
            .take(NAMED)
            .map(|rule| rule.rule.as_str())
            .collect();
        if these.len() > NAMED {
            names.push("...");
        }

        let count = these.len();
        let all = state.rules.len();
        let names = names.join(", ");
        found.of(CHECK).problem_because(
            format!("{message} {count} of {all} rules ({names}): {}", first.why),
            why,
            "run `saltcellar reactor rules`, which shows the acting reactor of each rule and the reason",
        );
    }

    // With rules, the findings above name the reason.
    if let Some(blocked) = state.blocked.as_ref().filter(|_| state.rules.is_empty()) {
        found.of(CHECK).problem(format!("inactive: {blocked}"));
    }
}

/// A reaction of the history with its record.
struct Reaction {
    row: ReactionRow,
    record: StoredRecord,
}

impl Reaction {
    /// The event and the rules.
    fn about(&self) -> (u64, &[String]) {
        (self.record.event, &self.record.rules)
    }
}

/// The latest reactions of the last days in one of these states, at most [`LIST_ROWS_MAX`]. One call
/// looks at a part of the history, so a rare state takes several calls.
fn latest(
    client: &mut Client,
    state: impl Into<States>,
    replays: bool,
) -> anyhow::Result<Vec<Reaction>> {
    // Reactions of longer ago would keep the finding alive after the cause is gone.
    let since = Clock::real().now().0.saturating_sub(DAYS * 86_400_000_000);

    let call = HistoryArgs {
        limit: Some(LIST_ROWS_MAX),
        state: Some(state.into()),
        replays,
        since: Some(Time(Micros(since))),
        ..HistoryArgs::default()
    };
    let rows = ask::whole::<calls::reactor::History>(client, call)?.reactions;

    let read = |row: ReactionRow| {
        let record = StoredRecord::read(row.reaction.packed())
            .with_context(|| format!("read the record {}", row.seq))?;
        Ok(Reaction { row, record })
    };
    // The daemon of another master reports its reactions itself.
    rows.into_iter()
        .filter(|row| row.master.is_none())
        .map(read)
        .collect()
}

/// Reactions skipped by loop protection: by `depth_max`, or by the `budget` of their rule.
fn limited(found: &mut Findings, client: &mut Client) -> anyhow::Result<()> {
    let rows = latest(client, State::Skipped, false)?;

    // By the option that stopped them, because each has another remedy.
    for (why, option) in [
        (SkipReason::Depth, "reactor.depth_max"),
        (SkipReason::Budget, "budget"),
    ] {
        let is_of = |one: &&Reaction| one.record.why == Some(why);
        let these: Vec<_> = rows.iter().filter(is_of).collect();

        let Some(latest) = these.first() else {
            continue;
        };

        let count = these.len();
        // The count is a lower bound, because the list has a limit of rows.
        let tag = &latest.row.tag;
        let rules = latest.record.rules.join(", ");

        let message = format!(
            "`{option}` stopped at least {count} reactions of the last {DAYS} days; the latest is to {tag}, by rules {rules}"
        );

        let why = "reactions may trigger themselves, or a rule matches more events than expected";
        let write = format!(
            "`saltcellar reactor history --state skipped` lists them; fix the rule, or raise `{option}` if this is intended"
        );
        found.of(LOOPS).warn_because(message, why, write);
    }

    Ok(())
}

/// Reactions that failed, wholly or partly, and were not replayed successfully.
fn failed(found: &mut Findings, client: &mut Client, shadow: bool) -> anyhow::Result<()> {
    // A replay has its own record. The latest record of an event and its rules counts.
    let done = latest(client, State::Done, true)?;
    let mut waiting: Vec<Reaction> = Vec::new();

    for one in latest(client, States::unfinished(), false)? {
        let is_done = done
            .iter()
            .any(|done| done.about() == one.about() && done.row.seq > one.row.seq);

        // Rows come latest first, so the first record of an event and its rules is the latest.
        if !is_done && !waiting.iter().any(|later| later.about() == one.about()) {
            waiting.push(one);
        }
    }

    let Some(latest) = waiting.first() else {
        let message = format!("no failures in the last {DAYS} days, or all were replayed");
        found.of(REACTIONS).ok(message);
        return Ok(());
    };

    let record = &latest.record;
    let mut causes: Vec<String> = failures(record).collect();

    let lost = record
        .calls
        .iter()
        .filter(|made| made.outcome.is_dead())
        .map(|made| (&made.call, made.outcome.why()));

    causes.extend(lost.map(|(call, why)| format!("{} of {}: {why}", call.fun, call.sls)));

    let count = waiting.len();
    let seq = latest.row.seq;

    let message = format!(
        "{count} reactions of the last {DAYS} days failed; the latest is {seq}, to {}: {}",
        latest.row.tag,
        causes.join("; ")
    );

    // In shadow mode Salt's reactor has acted on these events.
    let result = if shadow {
        CheckResult::Warning
    } else {
        CheckResult::Problem
    };

    let why = "these reactions were not executed completely";
    let write = format!(
        "`saltcellar reactor history --state failed,partial,dead` lists them; `saltcellar reactor replay {seq}` retries the rest"
    );

    found.of(REACTIONS).advise(result, message, why, write);
    Ok(())
}
