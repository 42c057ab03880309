//! The redaction: masters' keys that are known, and rules.

use super::Findings;
use crate::api::call::status::MasterKeys;
use crate::config::Config;
use crate::model::Builtin;

pub(super) fn check(found: &mut Findings, keys: &MasterKeys) {
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
        known => format!("{known} keys of masters are redacted in all events"),
    });
}

/// Lists the built-in redactions that are off.
pub(super) fn redaction(found: &mut Findings, config: &Config) {
    let mut found = found.of("ingest.redact");

    let is_on = |builtin: &Builtin| {
        config
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
