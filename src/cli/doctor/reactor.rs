//! Checks of the daemon's reactor: acting reactors of each rule, loops and failed reactions.

use serde_json::{Value as Json, json};

use super::super::reactor::failures;
use super::{CheckResult, Findings};
use crate::api::call as calls;
use crate::api::call::reactor::{ReactorState, RunningReactor};
use crate::api::client::{Client, ClientError};
use crate::base::clock::Clock;
use crate::base::limits::LIST_ROWS_MAX;
use crate::cli::{Fields as _, ask};
use crate::config::Config;
use crate::config::salt_master::Role;

const CHECK: &str = "reactor";
const REACTIONS: &str = "reactions";
const LOOPS: &str = "reactor.loops";

/// Age limit of reactions that are checked, in days.
const DAYS: i64 = 7;

/// Maximum number of rule names in one finding.
const NAMED: usize = 5;

pub(super) fn check(found: &mut Findings, client: &mut Client, config: &Config) {
    let Some((role, file, _)) = config.reactor.of_whom() else {
        // No reactor is configured.
        return;
    };

    let (state, _) = match ask::call_as::<calls::reactor::List>(client, ()) {
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
            .problem("the master's request port is unreachable; reactions are waiting");
    }

    actors(found, &state);

    // Shadow mode is a warning only if the configuration does not ask for it.
    if reactor.shadow && state.salts_reactor && !config.reactor.shadow {
        let file = file.display();
        found.of(CHECK).warn(match role {
            Role::Master => format!(
                "it runs in shadow mode, because Salt's own reactor is enabled on the master of {file}: `saltcellar setup --reactor` disables it"
            ),
            Role::Minion => format!(
                "it runs in shadow mode, because Salt's own reactor is enabled in the minion of {file}: remove it from `engines` there to disable it"
            ),
        });
    }

    if found.0.len() == before {
        let who = if reactor.shadow {
            "in shadow mode, Salt's own reactor acts"
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
            .problem(format!("cannot list reactions: {error}"));
    }

    if let Err(error) = failed(found, client, reactor.shadow) {
        found
            .of(REACTIONS)
            .problem(format!("cannot list reactions: {error}"));
    }
}

/// Rules with no acting reactor, or with two.
fn actors(found: &mut Findings, state: &ReactorState) {
    for (who, message, why) in [
        (
            "nobody",
            "no reactor acts on",
            "events that match these rules cause no reaction",
        ),
        (
            "both",
            "saltcellar and Salt both act on",
            "every reaction is executed twice",
        ),
    ] {
        let these: Vec<_> = state.rules.iter().filter(|rule| rule.acts == who).collect();

        let Some(first) = these.first() else { continue };

        let mut names: Vec<_> = these
            .iter()
            .take(NAMED)
            .map(|rule| rule.rule.as_str())
            .collect();
        if these.len() > NAMED {
            names.push("...");
        }

        let (count, all, names) = (these.len(), state.rules.len(), names.join(", "));
        found.of(CHECK).problem_because(
            format!("{message} {count} of {all} rules ({names}): {}", first.why),
            why,
            "run `saltcellar reactor list`, which shows the acting reactor of each rule and the reason",
        );
    }

    // With rules, the findings above name the reason.
    if let Some(blocked) = state.blocked.as_ref().filter(|_| state.rules.is_empty()) {
        found.of(CHECK).problem(format!("inactive: {blocked}"));
    }
}

/// The latest reactions that the arguments select, at most [`LIST_ROWS_MAX`]. One call looks at a part
/// of the history, so that a rare state takes several.
fn latest(client: &mut Client, mut call_args: Json) -> Result<Vec<Json>, ClientError> {
    let mut rows = Vec::new();
    loop {
        ask::set(&mut call_args, "limit", (LIST_ROWS_MAX - rows.len()).into());
        let answer = ask::call::<calls::reactor::History>(client, &call_args)?;
        rows.extend_from_slice(answer.list("reactions"));

        let next = answer.of("next");
        if next.is_null() || rows.len() >= LIST_ROWS_MAX {
            return Ok(rows);
        }
        // A daemon that repeats a page would be read forever.
        if next == call_args.of("cursor") {
            let why = "reactor_history: the list does not advance".to_owned();
            return Err(ClientError::Protocol(why));
        }
        ask::set(&mut call_args, "cursor", next.clone());
    }
}

/// Reactions skipped by loop protection: by `depth_max`, or by the `budget` of their rule.
fn limited(found: &mut Findings, client: &mut Client) -> Result<(), ClientError> {
    // Reactions of longer ago would keep the finding alive after the cause is gone.
    let since = Clock::real().now().0.saturating_sub(DAYS * 86_400_000_000);
    let rows = latest(client, json!({ "state": "left", "since": since }))?;

    for (why, option) in [("depth", "reactor.depth_max"), ("budget", "budget")] {
        let is_of = |row: &&Json| row.of("reaction").text("why") == why;
        let these: Vec<&Json> = rows.iter().filter(is_of).collect();

        let Some(latest) = these.first() else {
            continue;
        };

        let rules: Vec<_> = latest
            .of("reaction")
            .list("rules")
            .iter()
            .filter_map(Json::as_str)
            .collect();

        let (count, tag, rules) = (these.len(), latest.text("tag"), rules.join(", "));

        let message = format!(
            "`{option}` stopped at least {count} reactions of the last {DAYS} days; the latest is to {tag}, by rules {rules}"
        );

        let why = "reactions may trigger themselves, or a rule matches more events than expected";
        let write = format!(
            "`saltcellar reactor history --state left` lists them; fix the rule, or raise `{option}` if this is intended"
        );
        found.of(LOOPS).warn_because(message, why, write);
    }

    Ok(())
}

/// Reactions that failed, wholly or partly, and were not replayed successfully.
fn failed(found: &mut Findings, client: &mut Client, shadow: bool) -> Result<(), ClientError> {
    let since = Clock::real().now().0.saturating_sub(DAYS * 86_400_000_000);

    let mut rows = |state: &str, replays: bool| -> Result<Vec<Json>, ClientError> {
        latest(
            client,
            json!({ "state": state, "replays": replays, "since": since }),
        )
    };

    // A replay has its own record. The latest record of an event and its rules counts.
    let about = |row: &Json| ["event", "rules"].map(|name| row.of("reaction").of(name).clone());

    let done: Vec<_> = rows("done", true)?
        .iter()
        .map(|row| (about(row), row.number("seq")))
        .collect();

    let mut waiting: Vec<Json> = Vec::new();

    for row in rows("failed,partial,dead", false)? {
        let (about_row, seq) = (about(&row), row.number("seq"));
        let is_done = done
            .iter()
            .any(|(about, later)| *about == about_row && *later > seq);

        // Rows come latest first, so the first record of an event and its rules is the latest.
        if !is_done && !waiting.iter().any(|later| about(later) == about_row) {
            waiting.push(row);
        }
    }

    let Some(latest) = waiting.first() else {
        let message = format!("no failures in the last {DAYS} days, or all were replayed");
        found.of(REACTIONS).ok(message);
        return Ok(());
    };

    let record = latest.of("reaction");
    let mut causes: Vec<String> = failures(record).collect();

    let lost = record
        .list("calls")
        .iter()
        .filter(|call| matches!(call.text("outcome"), "dead" | "unknown"));

    causes.extend(lost.map(|call| {
        format!(
            "{} of {}: {}",
            call.text("fun"),
            call.text("sls"),
            call.text("why")
        )
    }));

    let (count, seq) = (waiting.len(), latest.number("seq"));

    let message = format!(
        "{count} reactions of the last {DAYS} days failed; the latest is {seq}, to {}: {}",
        latest.text("tag"),
        causes.join("; ")
    );

    // In shadow mode Salt's own reactor has acted on these events.
    let verdict = if shadow {
        CheckResult::Warning
    } else {
        CheckResult::Problem
    };

    let why = "these reactions were not executed completely";
    let write = format!(
        "`saltcellar reactor history --state failed,partial,dead` lists them; `saltcellar reactor replay {seq}` retries the rest"
    );

    found.of(REACTIONS).advise(verdict, message, why, write);
    Ok(())
}
