//! Checks of the daemon's reactor: acting reactors of each rule, loops and failed reactions.

use serde_json::{Value as Json, json};

use super::super::reactor::failures;
use super::{CheckResult, Findings, number, text};
use crate::api::client::{Client, ClientError};
use crate::base::clock::Clock;
use crate::base::limits::LIST_ROWS_MAX;
use crate::cli::ask;
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
    let Some((role, file, _)) = config.reactor.of_whom() else { return };
    let reactor = match ask::call(client, "reactor_list", ()) {
        Ok(reactor) => reactor,
        Err(error) => return found.add(CHECK, CheckResult::Problem, error.to_string()),
    };
    let is = |key: &str| reactor.get(key).and_then(Json::as_bool).unwrap_or(false);
    let before = found.0.len();
    if let Some(refused) = reactor.get("refused") {
        let message = format!("its configuration is invalid and not in use: {}", text(refused, "why"));
        found.add(CHECK, CheckResult::Problem, message);
    }
    if is("master_unreachable") {
        found.add(
            CHECK,
            CheckResult::Problem,
            "the master's request port is unreachable; reactions are waiting",
        );
    }
    actors(found, &reactor);
    if is("shadow") && is("salts_reactor") && !config.reactor.shadow {
        let file = file.display();
        let message = match role {
            Role::Master => format!(
                "it runs in shadow mode, because Salt's own reactor is enabled on the master of {file}: `saltcellar setup --reactor` disables it"
            ),
            Role::Minion => format!(
                "it runs in shadow mode, because Salt's own reactor is enabled in the minion of {file}: remove it from `engines` there to disable it"
            ),
        };
        found.add(CHECK, CheckResult::Warning, message);
    }
    if found.0.len() == before {
        let rules = reactor.get("rules").and_then(Json::as_array).map_or(0, Vec::len);
        let who = if is("shadow") { "in shadow mode, Salt's own reactor acts" } else { "active" };
        let [behind, unstored, open] = ["behind", "unstored", "open"].map(|key| number(&reactor, key));
        let message = format!(
            "{who}: {rules} rules, {behind} events behind, {unstored} records not stored yet, {open} open"
        );
        found.add(CHECK, CheckResult::Ok, message);
    }
    if let Err(error) = limited(found, client) {
        found.add(LOOPS, CheckResult::Problem, format!("cannot list reactions: {error}"));
    }
    if let Err(error) = failed(found, client, is("shadow")) {
        found.add(REACTIONS, CheckResult::Problem, format!("cannot list reactions: {error}"));
    }
}

/// Rules with no acting reactor, or with two.
fn actors(found: &mut Findings, reactor: &Json) {
    let rules = reactor.get("rules").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
    let of = |who: &str| rules.iter().filter(|rule| text(rule, "acts") == who).collect::<Vec<_>>();
    for (who, message) in [("nobody", "no reactor acts on"), ("both", "saltcellar and Salt both act on")] {
        let these = of(who);
        let Some(first) = these.first() else { continue };
        let mut names: Vec<_> = these.iter().take(NAMED).map(|rule| text(rule, "rule")).collect();
        if these.len() > NAMED {
            names.push("...");
        }
        let (count, all, names, why) = (these.len(), rules.len(), names.join(", "), text(first, "why"));
        let message = format!("{message} {count} of {all} rules ({names}): {why}");
        let why = match who {
            "nobody" => "events that match these rules cause no reaction",
            _ => "every reaction is executed twice",
        };
        let write =
            "run `saltcellar reactor list`, which shows the acting reactor of each rule and the reason";
        found.advise(CHECK, CheckResult::Problem, message, why, write);
    }
    // With rules, the findings above name the reason.
    let blocked = reactor.get("blocked").and_then(Json::as_str).filter(|_| rules.is_empty());
    if let Some(blocked) = blocked {
        found.add(CHECK, CheckResult::Problem, format!("inactive: {blocked}"));
    }
}

/// Reactions skipped by loop protection: by `depth_max`, or by the `budget` of their rule.
fn limited(found: &mut Findings, client: &mut Client) -> Result<(), ClientError> {
    let since = Clock::real().now().0.saturating_sub(DAYS * 86_400_000_000);
    let call_args = json!({ "state": "left", "limit": LIST_ROWS_MAX, "since": since });
    let answer = ask::call(client, "reactor_history", call_args)?;
    let rows = answer.get("reactions").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
    for (why, option) in [("depth", "reactor.depth_max"), ("budget", "budget")] {
        let is_of = |row: &&Json| row.get("reaction").is_some_and(|record| text(record, "why") == why);
        let these: Vec<&Json> = rows.iter().filter(is_of).collect();
        let Some(latest) = these.first() else { continue };
        let rules = latest.get("reaction").and_then(|record| record.get("rules")).and_then(Json::as_array);
        let rules: Vec<_> = rules.into_iter().flatten().filter_map(Json::as_str).collect();
        let (count, tag, rules) = (these.len(), text(latest, "tag"), rules.join(", "));
        let message = format!(
            "`{option}` stopped at least {count} reactions of the last {DAYS} days; the latest is to {tag}, by rules {rules}"
        );
        let why = "reactions may trigger themselves, or a rule matches more events than expected";
        let write = format!(
            "`saltcellar reactor history --state left` lists them; fix the rule, or raise `{option}` if this is intended"
        );
        found.advise(LOOPS, CheckResult::Warning, message, why, write);
    }
    Ok(())
}

/// Reactions that failed, wholly or partly, and were not replayed successfully.
fn failed(found: &mut Findings, client: &mut Client, shadow: bool) -> Result<(), ClientError> {
    let since = Clock::real().now().0.saturating_sub(DAYS * 86_400_000_000);
    let mut rows = |state: &str, replays: bool| -> Result<Vec<Json>, ClientError> {
        let call_args = json!({ "state": state, "replays": replays, "limit": LIST_ROWS_MAX, "since": since });
        let answer = ask::call(client, "reactor_history", call_args)?;
        Ok(answer.get("reactions").and_then(Json::as_array).cloned().unwrap_or_default())
    };
    // A replay has its own record. The latest record of an event and its rules counts.
    let of = |row: &Json, name: &str| row.get("reaction").and_then(|record| record.get(name)).cloned();
    let about = |row: &Json| (of(row, "event"), of(row, "rules"));
    let done: Vec<_> = rows("done", true)?.iter().map(|row| (about(row), number(row, "seq"))).collect();
    let mut waiting: Vec<Json> = Vec::new();
    for row in rows("failed,partial,dead", false)? {
        let (about_row, seq) = (about(&row), number(&row, "seq"));
        let is_done = done.iter().any(|(about, later)| *about == about_row && *later > seq);
        if !is_done && !waiting.iter().any(|later| about(later) == about_row) {
            waiting.push(row);
        }
    }
    let Some(latest) = waiting.first() else {
        let message = format!("no failures in the last {DAYS} days, or all were replayed");
        found.add(REACTIONS, CheckResult::Ok, message);
        return Ok(());
    };
    let record = latest.get("reaction").unwrap_or(&Json::Null);
    let mut causes: Vec<String> = failures(record).collect();
    let calls = record.get("calls").and_then(Json::as_array).into_iter().flatten();
    let lost = calls.filter(|call| matches!(text(call, "outcome"), "dead" | "unknown"));
    causes.extend(
        lost.map(|call| format!("{} of {}: {}", text(call, "fun"), text(call, "sls"), text(call, "why"))),
    );
    let (count, seq) = (waiting.len(), number(latest, "seq"));
    let message = format!(
        "{count} reactions of the last {DAYS} days failed; the latest is {seq}, to {}: {}",
        text(latest, "tag"),
        causes.join("; ")
    );
    let verdict = if shadow { CheckResult::Warning } else { CheckResult::Problem };
    let why = "these reactions were not executed completely";
    let write = format!(
        "`saltcellar reactor history --state failed,partial,dead` lists them; `saltcellar reactor replay {seq}` retries the rest"
    );
    found.advise(REACTIONS, verdict, message, why, write);
    Ok(())
}
