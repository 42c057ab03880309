//! Checks of the daemon's reactor: who acts on the rules, and what failed.

use rmpv::Value;
use serde_json::Value as Json;

use super::super::ask;
use super::super::reactor::failures;
use super::{Advice, Findings, Verdict, number, text};
use crate::api::client::{Client, ClientError};
use crate::clock::Clock;
use crate::config::Config;
use crate::config::salt_master::Role;
use crate::limits::LIST_ROWS_MAX;

const CHECK: &str = "reactor";
const REACTIONS: &str = "reactions";
const LOOPS: &str = "reactor.loops";

/// How far back reactions that failed are looked for.
const DAYS: i64 = 7;

/// The rules that are named in one finding.
const NAMED: usize = 5;

/// The reactor of the daemon, if it has one.
pub(super) fn look(found: &mut Findings, client: &mut Client, config: &Config) {
    let Some((role, file, _)) = config.reactor.of_whom() else { return };
    let reactor = match ask::call(client, "reactor_list", []) {
        Ok(reactor) => reactor,
        Err(error) => return found.say(CHECK, Verdict::Problem, error.to_string()),
    };
    let is = |key: &str| reactor.get(key).and_then(Json::as_bool).unwrap_or(false);
    let before = found.0.len();
    if let Some(refused) = reactor.get("refused") {
        let words = format!("its configuration cannot be used, and is not: {}", text(refused, "why"));
        found.say(CHECK, Verdict::Problem, words);
    }
    if is("master_away") {
        found.say(
            CHECK,
            Verdict::Problem,
            "the master does not answer at its request port; reactions wait for it",
        );
    }
    actors(found, &reactor);
    if is("shadow") && is("salts_reactor") && !config.reactor.settings.shadow {
        let file = file.display();
        let words = match role {
            Role::Master => format!(
                "it only watches, for Salt's own reactor runs on the master of {file}: `engines: [saltcellar-reactor]` there turns that off"
            ),
            Role::Minion => format!(
                "it only watches, for Salt's own reactor runs in the minion of {file}: taken out of `engines` there, it is off"
            ),
        };
        found.say(CHECK, Verdict::Warning, words);
    }
    if found.0.len() == before {
        let rules = reactor.get("rules").and_then(Json::as_array).map_or(0, Vec::len);
        let who = if is("shadow") { "Salt's own reactor acts, ours watches" } else { "it acts" };
        let [behind, unstored, open] = ["behind", "unstored", "open"].map(|key| number(&reactor, key));
        let words =
            format!("{who}: {rules} rules, {behind} events behind, {unstored} not stored yet, {open} open");
        found.say(CHECK, Verdict::Ok, words);
    }
    if let Err(error) = limited(found, client) {
        found.say(LOOPS, Verdict::Problem, format!("cannot list reactions: {error}"));
    }
    if let Err(error) = failed(found, client, is("shadow")) {
        found.say(REACTIONS, Verdict::Problem, format!("cannot list reactions: {error}"));
    }
}

/// Rules on which nobody acts, or two do.
fn actors(found: &mut Findings, reactor: &Json) {
    let rules = reactor.get("rules").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
    let of = |who: &str| rules.iter().filter(|rule| text(rule, "acts") == who).collect::<Vec<_>>();
    for (who, words) in [("nobody", "nobody acts on"), ("both", "saltcellar and Salt both act on")] {
        let these = of(who);
        let Some(first) = these.first() else { continue };
        let mut names: Vec<_> = these.iter().take(NAMED).map(|rule| text(rule, "rule")).collect();
        if these.len() > NAMED {
            names.push("...");
        }
        let (count, all, names, why) = (these.len(), rules.len(), names.join(", "), text(first, "why"));
        let words = format!("{words} {count} of {all} rules ({names}): {why}");
        let advice = Advice {
            why: match who {
                "nobody" => "events that these rules take cause nothing",
                _ => "everything is done twice",
            }
            .to_owned(),
            write: "`saltcellar reactor list`, which says for each rule who acts, and why".to_owned(),
        };
        found.advise(CHECK, Verdict::Problem, words, advice);
    }
    // A list without rules is no finding about any of them.
    let blocked = reactor.get("blocked").and_then(Json::as_str).filter(|_| rules.is_empty());
    if let Some(blocked) = blocked {
        found.say(CHECK, Verdict::Problem, format!("it does not act: {blocked}"));
    }
}

/// Reactions that were left out because their rule is taken for a loop: by `depth_max`, or by its `budget`.
fn limited(found: &mut Findings, client: &mut Client) -> Result<(), ClientError> {
    let since = Clock::real().now().0.saturating_sub(DAYS * 86_400_000_000);
    let pairs = [("state", "left".into()), ("limit", Value::from(LIST_ROWS_MAX)), ("since", since.into())];
    let answer = ask::call(client, "reactor_history", pairs)?;
    let rows = answer.get("reactions").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
    for (why, option) in [("depth", "reactor.depth_max"), ("budget", "budget")] {
        let is_of = |row: &&Json| row.get("reaction").is_some_and(|record| text(record, "why") == why);
        let these: Vec<&Json> = rows.iter().filter(is_of).collect();
        let Some(latest) = these.first() else { continue };
        let rules = latest.get("reaction").and_then(|record| record.get("rules")).and_then(Json::as_array);
        let rules: Vec<_> = rules.into_iter().flatten().filter_map(Json::as_str).collect();
        let (count, tag, rules) = (these.len(), text(latest, "tag"), rules.join(", "));
        let words = format!(
            "`{option}` stopped at least {count} reactions of the last {DAYS} days; the latest is to {tag}, of rules {rules}"
        );
        let advice = Advice {
            why: "reactions cause the events that they are reactions to, or a rule has more to do than expected".to_owned(),
            write: format!(
                "`saltcellar reactor history --state left` lists them; mend the rule, or raise `{option}` if this is wanted"
            ),
        };
        found.advise(LOOPS, Verdict::Warning, words, advice);
    }
    Ok(())
}

/// Reactions that failed, wholly or in part, and were not done since.
fn failed(found: &mut Findings, client: &mut Client, shadow: bool) -> Result<(), ClientError> {
    let since = Clock::real().now().0.saturating_sub(DAYS * 86_400_000_000);
    let mut rows = |state: &str, replays: bool| -> Result<Vec<Json>, ClientError> {
        let limit = ("limit", Value::from(LIST_ROWS_MAX));
        let pairs = [("state", state.into()), ("replays", replays.into()), limit, ("since", since.into())];
        let answer = ask::call(client, "reactor_history", pairs)?;
        Ok(answer.get("reactions").and_then(Json::as_array).cloned().unwrap_or_default())
    };
    // A replay has a record of its own. Of an event and its rules the latest record counts.
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
        let words = format!("none of the last {DAYS} days failed, or all were replayed");
        found.say(REACTIONS, Verdict::Ok, words);
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
    let words = format!(
        "{count} reactions of the last {DAYS} days failed; the latest is {seq}, to {}: {}",
        text(latest, "tag"),
        causes.join("; ")
    );
    let verdict = if shadow { Verdict::Warning } else { Verdict::Problem };
    let advice = Advice {
        why: "not all was done that the rules ask for".to_owned(),
        write: format!(
            "`saltcellar reactor history --state failed,partial,dead` lists them; `saltcellar reactor replay {seq}` does what is left to do"
        ),
    };
    found.advise(REACTIONS, verdict, words, advice);
    Ok(())
}
