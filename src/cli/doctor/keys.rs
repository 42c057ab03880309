//! Masters' keys in the archive, and the redaction that is configured.

use serde_json::Value as Json;

use super::super::ask;
use super::{Advice, Findings, Verdict, number, text};
use crate::api::client::Client;
use crate::config::Config;
use crate::model::{Builtin, MANAGE_TAG, REDACTED};

/// Stored requests to the reactor that are looked at, the latest first.
const REQUESTS: u64 = 1000;

/// Looks at what the daemon knows and has stored.
pub(super) fn look(found: &mut Findings, client: &mut Client, status: &Json) {
    known(found, status);
    stored(found, client);
}

fn known(found: &mut Findings, status: &Json) {
    const CHECK: &str = "master_keys";
    let keys = status.get("master_keys").unwrap_or(&Json::Null);
    let unreadable = keys.get("unreadable").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
    if let Some(first) = unreadable.first().and_then(Json::as_str) {
        let words = format!("the daemon cannot read {} key files of masters: {first}", unreadable.len());
        let why =
            "only the requests of salt-run reactor.* are then redacted, not a key that occurs elsewhere"
                .to_owned();
        let write = "run the daemon as root or as the master's user, or correct ingest.masters".to_owned();
        return found.advise(CHECK, Verdict::Warning, words, Advice { why, write });
    }
    let words = match number(keys, "known") {
        0 => "no master's key is known (ingest.masters); requests of salt-run reactor.* are redacted all the same".to_owned(),
        known => format!("{known} keys of masters are redacted wherever they occur"),
    };
    found.say(CHECK, Verdict::Ok, words);
}

fn stored(found: &mut Findings, client: &mut Client) {
    const CHECK: &str = "stored_keys";
    let tag = format!("*{MANAGE_TAG}*");
    let page = match ask::call(client, "events_list", [("tag", tag.into()), ("limit", REQUESTS.into())]) {
        Ok(page) => page,
        Err(error) => return found.say(CHECK, Verdict::Problem, error.to_string()),
    };
    let events = page.get("events").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
    let is_clear = |event: &&Json| {
        let key = event.get("data").and_then(|data| data.get("key"));
        key.is_some_and(|key| !key.is_null() && !key.is_boolean() && key.as_str() != Some(REDACTED))
    };
    let clear: Vec<_> = events.iter().filter(is_clear).collect();
    let Some(latest) = clear.first() else {
        let words = format!("none in the latest {} requests of salt-run reactor.*", events.len());
        return found.say(CHECK, Verdict::Ok, words);
    };
    let words = format!(
        "{} stored events hold a master's key in clear, the latest with tag {}",
        clear.len(),
        text(latest, "tag")
    );
    let why = "a reader of the archive, of a backup or of an export becomes root on all minions with it, through port 4506";
    let write = "`systemctl stop saltcellar && saltcellar store redact-keys && systemctl start saltcellar`; then update each backup \
                 (`saltcellar store backup --delete DIR`) and delete exports; then give the master new keys: stop salt-master, \
                 delete .*_key in its cachedir (/var/cache/salt/master), start it";
    found.advise(CHECK, Verdict::Problem, words, Advice { why: why.to_owned(), write: write.to_owned() });
}

/// Says which built-in redactions are off.
pub(super) fn redaction(found: &mut Findings, config: &Config) {
    const CHECK: &str = "ingest.redact";
    let is_on = |builtin: &Builtin| config.ingest.redact.iter().any(|rule| rule.builtin == Some(*builtin));
    let off: Vec<_> =
        Builtin::ALL.iter().filter(|builtin| !is_on(builtin)).map(|builtin| builtin.name()).collect();
    if off.is_empty() {
        return found.say(CHECK, Verdict::Ok, "all built-in redactions are on");
    }
    let rules: Vec<_> = off.iter().map(|name| format!("{{builtin: {name}}}")).collect();
    let words = format!(
        "off: {}. What minions return, passwords and pillar among it, is stored in clear. To redact it from now on: ingest.redact: [{}]",
        off.join(", "),
        rules.join(", ")
    );
    found.say(CHECK, Verdict::Ok, words);
}
