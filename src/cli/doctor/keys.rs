//! The redaction: masters' keys that are known, and rules.

use super::check::{Check, Daemon, Machine, Run};
use super::finding::Findings;
use crate::cli::store::tool::count;
use crate::model::Builtin;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "master_keys",
        not_ok_when: "the daemon cannot read the key files of a master (`ingest.masters`), so it redacts keys only from requests of `salt-run reactor.*`",
        run: Run::Daemon(master_keys),
    },
    Check {
        name: "ingest.redact",
        not_ok_when: "never reports a problem; lists the built-in redactions that are off, and how to enable them",
        run: Run::Machine(redaction),
    },
];

fn master_keys(found: &mut Findings, daemon: &mut Daemon<'_>) {
    let keys = &daemon.status.master_keys;
    let mut found = found.of("master_keys");

    if let Some(first) = keys.unreadable.first() {
        let count = keys.unreadable.len();
        return found.warn_because(
            format!("the daemon cannot read {count} key files of masters, the first is {first}"),
            "unread keys are redacted only in requests of salt-run reactor.*, not in other events",
            "run the daemon as root or as the master's user, or fix ingest.masters",
        );
    }

    found.ok(match keys.known {
        0 => "no master's key is known (ingest.masters); requests of salt-run reactor.* are redacted nevertheless".to_owned(),
        known => format!("{} redacted in all events", count(known, "key of a master is", "keys of masters are")),
    });
}

/// Lists the built-in redactions that are off.
fn redaction(found: &mut Findings, machine: &Machine<'_>) {
    let mut found = found.of("ingest.redact");

    let is_on = |builtin: &Builtin| {
        machine
            .config
            .ingest
            .redact
            .iter()
            .any(|rule| rule.builtin == Some(*builtin))
    };

    let off: Vec<_> = Builtin::ALL
        .iter()
        .filter(|builtin| !is_on(builtin))
        .map(|builtin| builtin.name())
        .collect();

    if off.is_empty() {
        return found.ok("all built-in redactions are on");
    }

    // Only the missing rules, in a form that can be added to the list.
    let rules: Vec<_> = off
        .iter()
        .map(|name| format!("{{builtin: {name}}}"))
        .collect();

    // Not a warning: leaving them off is a decision of the site.
    let message = format!(
        "off: {}. Minions' returns, including passwords and pillar, are stored in plain text. To redact future events: ingest.redact: [{}]",
        off.join(", "),
        rules.join(", ")
    );
    found.ok(message);
}
