//! The keys under `ingest`: filter, redaction and spill of the sources.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::error::{Invalid, at_most, unique, within};
use super::{items, salt_master};
use crate::base::limits::INGEST_RULES_MAX;
use crate::model::RedactRule;
use crate::model::word::{self, GIB, MIB};
use crate::wire::filter::FilterRule;

/// Filter, redaction and spill of the sources.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct IngestConfig {
    /// Rules for storing or dropping events and returns, tried in order at every source (bus, `event_return`, `returner` and others). The first rule
    /// of which all conditions hold decides; entries without a matching rule are stored. `tag`, `fun` and `minion` are a glob or a list of globs, as in
    /// Salt. `retcode` is an exit code, `!` and an exit code for all other ones, or a list of these; only returns contain one.
    /// That of several functions is the first that is not 0, and a failure without one has 1, so `!0` matches each failure. `where` is an expression
    /// over `tag` and `data`, as in docs/FILTERS.md; an event that is too large to evaluate does not match. There is no `class`, because an entry
    /// gets its class when it is stored. A rule without conditions matches everything, so a list that ends in `{do: drop}` stores only entries that an
    /// earlier rule matches with `do: store`. `do` is `store`, `drop`, or `sample N`, which stores one of N entries. The choice depends on a hash of
    /// the jid, or of tag and data for entries without a jid, so every source makes the same choice and a job is kept as a whole. Loads that Salt
    /// publishes are always stored, because Salt treats a job without a load as unknown. `saltcellar status` counts dropped entries per rule.
    ///
    /// - value: a list of rules, each with `do` and any of `name`, `tag`, `fun`, `minion`, `retcode` and `where`
    /// - default: `[]`
    /// - example: `[{do: store, retcode: '!0'}, {do: drop, fun: saltutil.find_job}, {do: sample 10, tag: 'salt/beacon/*', minion: [lab-*, test-*]},
    ///   {do: drop, where: 'tag is startingwith("salt/beacon/") and data.load < 1'}]`
    #[serde(serialize_with = "items::without_unset")]
    pub filter: Vec<FilterRule>,
    /// Rules for replacing values by `[redacted]` at every source, before anything is stored, spilled or queued. Without rules only masters' keys are
    /// redacted (`ingest.masters`), because only the owner of a job cache knows which returned values are secret. A rule selects values by `keys`
    /// (globs for keys of maps at any depth, ignoring case), `paths` (keys from the top, joined by dots, each a glob: `return.*.password`; an index
    /// selects an item of a list), `patterns` (regular expressions for text; only the matching part is replaced), or a `builtin`: `passwords` (keys
    /// such as password, passwd, passphrase, secret, token, api_key, private_key), `private_keys` (blocks from `-----BEGIN ... PRIVATE KEY-----` to
    /// their end), `pillar` (results of `pillar.*`, and values under the keys pillar and pillar_override). `tag`, `fun` and `minion` restrict a rule,
    /// as under `ingest.filter`. nil, true and false are kept. The same holds for the keys jid, id, fun, retcode, success, tgt, minions, cmd, out and _stamp of a
    /// return, an event or a load, which identify jobs. Tags are not searched. Redaction is irreversible: `salt-run jobs.lookup_jid` also
    /// shows `[redacted]`. Entries stored earlier are not changed.
    ///
    /// - value: a list of rules, each with `builtin`, `keys`, `paths` or `patterns`, and any of `name`, `tag`, `fun` and `minion`
    /// - default: `[]`
    /// - example: `[{builtin: passwords}, {builtin: private_keys}, {builtin: pillar}, {fun: 'vault.*', paths: [return]}, {patterns:
    ///   ['AKIA[0-9A-Z]{16}']}]`
    #[serde(serialize_with = "items::without_unset")]
    pub redact: Vec<RedactRule>,
    /// Configuration files of the Salt masters whose events the daemon stores; that of `reactor.master` is added. The keys in their `cachedir`
    /// (`.root_key` and those of other users) are redacted in all data, without a rule, because a master accepts every command from a peer with such
    /// a key. If one of the masters has a `cluster_id`, the mark of a peer in an event (`__peer_id`) names the master that fired it; otherwise the
    /// mark is data. The daemon's user needs read access to the configuration and to the key files.
    ///
    /// - value: a list of absolute paths of files
    /// - default: `[/etc/salt/master]`
    /// - example: `[/etc/salt/master, /srv/other/etc/master]`
    #[serde(with = "word::many")]
    pub masters: Vec<PathBuf>,
    /// Events of a bus that the store cannot accept immediately wait in memory, then in files under `spill/` in the state directory. This is the limit of
    /// these files for each bus. Beyond it events are lost and counted, and a gap record is stored.
    ///
    /// - value: a size from 16MiB to 1024GiB: a number of bytes, or a number with KiB, MiB or GiB
    /// - default: `1GiB`
    /// - example: `4GiB`
    #[serde(with = "word")]
    pub spill_bytes_max: u64,
}

impl Default for IngestConfig {
    fn default() -> Self {
        let masters = vec![PathBuf::from(salt_master::SALT_MASTER_FILE)];
        Self {
            filter: Vec::new(),
            redact: Vec::new(),
            masters,
            spill_bytes_max: GIB,
        }
    }
}

impl IngestConfig {
    pub(super) fn check(&mut self) -> Result<(), Invalid> {
        name_rules(
            "ingest.filter",
            self.filter.iter_mut().map(|rule| &mut rule.name).collect(),
        )?;
        name_redact_rules("ingest.redact", &mut self.redact)?;
        within(
            "ingest.spill_bytes_max",
            &self.spill_bytes_max,
            16 * MIB..=1024 * GIB,
        )
    }
}

/// Checks the rules of the key `key`; a rule without a name gets its number, from 1.
pub fn name_redact_rules(key: &str, rules: &mut [RedactRule]) -> Result<(), Invalid> {
    name_rules(key, rules.iter_mut().map(|rule| &mut rule.name).collect())?;
    for (n, rule) in rules.iter().enumerate() {
        let is_empty = rule.keys.is_empty() && rule.paths.is_empty() && rule.patterns.is_empty();
        if is_empty && rule.builtin.is_none() {
            let problem =
                "it selects nothing; give at least one of builtin, keys, paths and patterns";
            return Err(Invalid::new(format!("{key}[{n}]"), problem));
        }
    }
    Ok(())
}

/// Checks the names of rules; a rule without a name gets its number, from 1.
fn name_rules(key: &str, names: Vec<&mut String>) -> Result<(), Invalid> {
    at_most(key, names.len(), INGEST_RULES_MAX)?;
    let mut known = Vec::new();
    for (n, name) in names.into_iter().enumerate() {
        if name.is_empty() {
            *name = (n + 1).to_string();
        }

        if name.len() > 64 {
            let problem = format!("{name:?} is not accepted; give a name of at most 64 bytes");
            return Err(Invalid::new(format!("{key}[{n}].name"), problem));
        }

        known.push(name.clone());
    }
    unique(key, "name", &known)
}

#[cfg(test)]
mod tests;
