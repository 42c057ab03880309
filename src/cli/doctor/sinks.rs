//! Sinks: whether the daemon reaches each destination, lag, failures, and dead letters.

use super::check::{Check, Daemon, Run};
use super::finding::{CheckResult, Findings};
use crate::api::call::sinks::{ListArgs, SinkCheck, SinkChecks};
use crate::api::call::status::explains_outbox;
use crate::api::call::{self as calls, NoArgs};
use crate::cluster::OUTBOX;
use crate::engines::runtime::Phase;

/// Lag in seconds above which a sink gets a warning.
const LAG_S: u64 = 3_600;

pub(super) const CHECKS: &[Check] = &[Check {
    name: "sinks",
    not_ok_when: "the destination of a sink is not reachable from the daemon, deliveries fail, a sink is more than an hour behind, or has dead letters",
    run: Run::Daemon(check),
}];

fn check(found: &mut Findings, daemon: &mut Daemon<'_>) {
    let client = &mut daemon.client;
    // The reason of `status` says what it means for the other masters, and the remedy.
    let is_explained = explains_outbox(&daemon.status);
    let is_said = |name: &str| is_explained && name == OUTBOX;
    let mut found = found.of("sinks");
    let page = match client.make::<calls::sinks::List>(&ListArgs::default()) {
        Ok(answer) => answer,
        Err(error) => return found.problem(error.to_string()),
    };

    if page.sinks.is_empty() {
        // Without sinks there is nothing to say.
        return;
    }

    match client.make::<calls::sinks::Check>(&NoArgs {}) {
        Ok(SinkChecks { sinks }) => {
            for SinkCheck {
                name,
                ok,
                found: message,
            } in sinks
            {
                if !ok && is_said(&name) {
                    continue;
                }
                // The daemon tries the connections itself, because this user's network and rights
                // may differ.
                let result = if ok {
                    CheckResult::Ok
                } else {
                    CheckResult::Problem
                };
                found.add(result, format!("{name}: {message}"));
            }
        }
        Err(error) => found.problem(error.to_string()),
    }

    for sink in page.sinks {
        let name = &sink.name;

        if sink.failures > 0 && !is_said(name) {
            let error = sink.error.map(|error| error.message).unwrap_or_default();
            let message = format!(
                "{name}: {} failed attempts since the last delivery: {error}",
                sink.failures
            );
            found.problem_because(
                message,
                "deliveries are retried, and the events wait in the store",
                format!("`saltcellar sinks test {name}` shows the request and the response"),
            );
        }

        let (lag, entries) = (sink.lag_s.unwrap_or(0), sink.lag_entries.unwrap_or(0));

        // A paused sink is behind on purpose.
        if lag > LAG_S && sink.state != Phase::Paused && !is_said(name) {
            let message = format!("{name}: {entries} entries behind, the oldest is {lag} s old");
            found.warn_because(
                message,
                "events arrive late, and retention may delete them before",
                "correct what fails; if nothing does, raise `batch` or `concurrency` of the sink",
            );
        }

        if sink.dead_letters > 0 {
            found.warn_because(
                format!("{name}: {} dead letters", sink.dead_letters),
                "the destination rejected these events, or they could not be encoded",
                format!("`saltcellar sinks dead-letters list {name}`, then `retry` or `drop`"),
            );
        }
    }
}
