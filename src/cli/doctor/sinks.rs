//! Destinations of sinks: whether each is reachable from the daemon, keeps up, and accepts what it gets.

use serde_json::Value as Json;

use super::{CheckResult, Findings, number, text};
use crate::api::client::Client;
use crate::cli::ask;

/// A sink that is further behind, in seconds, is a warning.
const LAG_S: u64 = 3_600;

pub(super) fn check(found: &mut Findings, client: &mut Client) {
    const CHECK: &str = "sinks";
    let sinks = match ask::call(client, "sinks_list", ()) {
        Ok(answer) => answer,
        Err(error) => return found.add(CHECK, CheckResult::Problem, error.to_string()),
    };
    let sinks = list(&sinks);
    if sinks.is_empty() {
        return;
    }
    match ask::call(client, "sinks_check", ()) {
        Ok(answer) => {
            for one in list(&answer) {
                let is_ok = one.get("ok").and_then(Json::as_bool).unwrap_or(false);
                let verdict = if is_ok { CheckResult::Ok } else { CheckResult::Problem };
                found.add(CHECK, verdict, format!("{}: {}", text(one, "name"), text(one, "found")));
            }
        }
        Err(error) => found.add(CHECK, CheckResult::Problem, error.to_string()),
    }
    for sink in sinks {
        let name = text(sink, "name");
        let failures = number(sink, "failures");
        let error = sink.get("error").map(|error| text(error, "message")).unwrap_or_default();
        if failures > 0 {
            let message = format!("{name}: {failures} failed attempts since the last delivery: {error}");
            found.add(CHECK, CheckResult::Problem, message);
        }
        let lag = number(sink, "lag_s");
        if lag > LAG_S && text(sink, "state") != "paused" {
            let message =
                format!("{name}: {} entries behind, the oldest is {lag} s old", number(sink, "lag_entries"));
            found.add(CHECK, CheckResult::Warning, message);
        }
        let dead = number(sink, "dead_letters");
        if dead > 0 {
            found.advise(
                CHECK,
                CheckResult::Warning,
                format!("{name}: {dead} dead letters"),
                "the destination rejected these events, or they could not be encoded",
                format!("`saltcellar sinks dead-letters list {name}`, then `retry` or `drop`"),
            );
        }
    }
}

fn list(answer: &Json) -> &[Json] {
    answer.get("sinks").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default()
}
