//! Masters' keys in the archive, and the configured redaction.

use salt_sls::Glob;

use super::Findings;
use crate::api::call as calls;
use crate::api::call::events::{EventRow, ListArgs};
use crate::api::client::Client;
use crate::api::status::{MasterKeys, Status};
use crate::config::Config;
use crate::model::{Builtin, MANAGE_TAG, REDACTED};
use crate::wire::msgpack::{self, as_bool, as_text, is_nil};

/// Maximum number of stored reactor requests that are checked, latest first.
const REQUESTS: usize = 1000;

pub(super) fn check(found: &mut Findings, client: &mut Client, status: &Status) {
    known(found, &status.master_keys);
    stored(found, client);
}

fn known(found: &mut Findings, keys: &MasterKeys) {
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

fn stored(found: &mut Findings, client: &mut Client) {
    let mut found = found.of("stored_keys");

    let call = ListArgs {
        tag: Some(Glob::new(&format!("*{MANAGE_TAG}*"))),
        limit: Some(REQUESTS),
        ..ListArgs::default()
    };
    let events = match client.make::<calls::events::List>(&call) {
        Ok(page) => page.events,
        Err(error) => return found.problem(error.to_string()),
    };

    // Anything but nothing or the mark of a redaction counts, so that no unknown form of a key is
    // missed.
    let is_clear = |event: &&EventRow| {
        // The data is an event of Salt as it is stored.
        let key = msgpack::get(event.data.packed(), "key");
        key.is_some_and(|key| {
            !is_nil(key) && as_bool(key).is_none() && as_text(key) != Some(REDACTED)
        })
    };
    let clear: Vec<_> = events.iter().filter(is_clear).collect();

    let Some(latest) = clear.first() else {
        let message = format!(
            "no keys in the latest {} requests of salt-run reactor.*",
            events.len()
        );
        return found.ok(message);
    };

    let message = format!(
        "{} stored events contain a master's key in plain text, the latest has tag {}",
        clear.len(),
        latest.tag
    );

    let why = "with this key, a reader of the archive, a backup or an export can become root on all minions through port 4506";
    let write = "`systemctl stop saltcellar && saltcellar store redact-keys && systemctl start saltcellar`; then update each backup \
                 (`saltcellar store backup --delete DIR`) and delete exports; then rotate the master's keys: stop salt-master, \
                 delete .*_key in its cachedir (/var/cache/salt/master), start it";
    found.problem_because(message, why, write);
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
