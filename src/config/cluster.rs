//! The keys under `cluster`: what one of several masters needs to know of the others.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::{Invalid, within};
use super::network::Nats;
use crate::base::limits::{
    CLUSTER_REPLICAS_MAX, CLUSTER_STREAM_BYTES_MAX, CLUSTER_WINDOW_MAX, CLUSTER_WINDOW_MIN,
};
use crate::model::word;
use crate::model::{MasterName, Slot};

/// Settings of one of several masters.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterConfig {
    /// This master's position among several: `2/3` is the second of three. The job ids of the daemons, and those that their Salt extensions
    /// make while a daemon is unreachable, then never equal those of another master with the same `n`. `n` may be larger than the number of masters, so that one
    /// can be added without a change on the others. A job id is a time in microseconds: with `n` masters a daemon has every 2`n`th. Each extension learns the
    /// slot from its daemon. Job ids of runners and of minions' own jobs are made by Salt, and have no slot.
    ///
    /// - value: k/n, where n is at most 64, and k is from 1 to n
    /// - default: none: all even microseconds, as for a single master
    /// - example: `2/3`
    /// - environment: `SALTCELLAR_CLUSTER_SLOT`
    #[serde(with = "word")]
    pub slot: Option<Slot>,
    /// The servers of NATS over which the masters share one history (docs/CLUSTER.md). The daemon publishes its own master's entries to a stream of NATS
    /// JetStream, and stores those of the other masters. Salt never waits for it. All masters have the same servers, and a user each.
    ///
    /// - value: a mapping of `servers`, a list of addresses `nats://host:4222` or `tls://host:4222`; `user` and `password`, or `token`, of which `password` and
    ///   `token` are places of a secret; `tls` and `timeout`, all same as for the sink transport `nats` (docs/SINKS.md)
    /// - default: none: no shared history
    /// - example: `{servers: ['tls://n1.example.com:4222', 'tls://n2.example.com:4222'], user: master1, password: 'file:/etc/saltcellar/nats.password'}`
    pub nats: Option<Nats>,
    /// The name of the stream, with which all its subjects begin: `STREAM.log.NAME` for the entries of a master, `STREAM.beat.NAME` for its heartbeats. All masters
    /// of one history have the same stream. The daemon creates it if it is missing, and never changes one that exists.
    ///
    /// - value: 1 to 32 letters, digits, `_` and `-`
    /// - default: `saltcellar`
    /// - example: `salt-prod`
    pub stream: String,
    /// The number of NATS servers that keep each message of a new stream. With 3, any one of them may fail.
    ///
    /// - value: a number from 1 to 5
    /// - default: `3`
    /// - example: `1`
    pub replicas: u32,
    /// The name of this master in the shared history, which no other master may have. In a Salt cluster it must be the master's id, because events name the master by it.
    ///
    /// - value: a string; each byte but letters, digits, `_` and `-` counts three, and at most 255 are accepted
    /// - default: the id of this host's master; without a master a name must be given
    /// - example: `master1`
    #[serde(with = "word")]
    pub name: Option<MasterName>,
    /// What this master publishes: `jobs` are its loads, expected minions, returns and end times, jobs of runners, wheel and `salt-call`, and the
    /// reactor's records; `all` adds every other event. In a Salt cluster the masters tell each other all events anyway.
    ///
    /// - value: jobs or all
    /// - default: `jobs`
    /// - example: `all`
    pub replicate: Replicate,
    /// How long a new stream keeps messages. A master that was offline for longer misses entries; copy them from another master's store.
    ///
    /// - value: a time from 2m to 365d
    /// - default: `7d`
    /// - example: `30d`
    #[serde(with = "word")]
    pub window: Duration,
    /// The monitoring ports of the NATS servers. `saltcellar doctor` asks them whether a server acknowledges before it syncs; nothing else reveals this.
    ///
    /// - value: a list of addresses, such as `http://n1.example.com:8222`
    /// - default: `[]`
    /// - example: `['http://n1.example.com:8222', 'http://n2.example.com:8222']`
    pub monitor: Vec<String>,
}

/// What a master publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Replicate {
    /// What jobs are made of, and the reactor's records.
    #[default]
    Jobs,
    /// Every entry.
    All,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            slot: None,
            nats: None,
            stream: "saltcellar".to_owned(),
            replicas: 3,
            name: None,
            replicate: Replicate::default(),
            window: Duration::from_secs(7 * 86_400),
            monitor: Vec::new(),
        }
    }
}

impl ClusterConfig {
    /// Whether a stream may have this name. No token of a subject needs an escape then.
    pub(crate) fn is_stream_name(name: &str) -> bool {
        let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
        (1..=CLUSTER_STREAM_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits)
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        let below = |invalid: Invalid| invalid.below("cluster");

        if let Some(nats) = &self.nats {
            nats.check()
                .map_err(|invalid| invalid.below("cluster.nats"))?;
        }

        // The name becomes a token of subjects and a part of file names on NATS's servers.
        if !Self::is_stream_name(&self.stream) {
            let problem = format!(
                "{:?} is not accepted; give 1 to {CLUSTER_STREAM_BYTES_MAX} letters, digits, _ and -",
                self.stream
            );
            return Err(Invalid::new("cluster.stream", problem));
        }

        within("replicas", &self.replicas, 1..=CLUSTER_REPLICAS_MAX).map_err(below)?;
        within(
            "window",
            &self.window,
            CLUSTER_WINDOW_MIN..=CLUSTER_WINDOW_MAX,
        )
        .map_err(below)?;

        // An address alone, because `doctor` adds the path.
        for (n, address) in self.monitor.iter().enumerate() {
            let host = address
                .strip_prefix("http://")
                .or_else(|| address.strip_prefix("https://"));
            if host.is_none_or(|host| host.is_empty() || host.contains(['/', '@', ' '])) {
                let problem = format!(
                    "{address:?} is not accepted; give an address such as http://host:8222"
                );
                return Err(Invalid::new(format!("cluster.monitor[{n}]"), problem));
            }
        }

        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::{assert_errors, assert_round_trip, load};
    use crate::config::{CliOverrides, Config, Environment, Replicate};
    use crate::model::word::Word as _;

    #[test]
    fn a_slot_is_read_and_rendered() {
        for text in ["1/1", "2/3", "64/64"] {
            let config = assert_round_trip(&format!("cluster:\n  slot: {text}\n"));
            assert_eq!(config.cluster.slot.show().as_deref(), Some(text));
        }
        let without = load("cluster:\n").unwrap();
        assert_eq!(without.cluster.slot, None);
    }

    #[test]
    fn an_error_names_line_key_and_accepted_values() {
        let accepts = "give k/n: the number n of masters, from 1 to 64, and the number k of this one, from 1 to n, such as 2/3";
        for (value, shown) in [
            ("0/3", "\"0/3\""),
            ("4/3", "\"4/3\""),
            ("a", "\"a\""),
            ("1/0", "\"1/0\""),
            ("1/65", "\"1/65\""),
        ] {
            let text = format!("log.level: info\ncluster:\n  slot: {value}\n");
            let expected = format!("c.yaml:3: cluster.slot: {shown} is not accepted; {accepts}");
            assert_errors(&[(&text, &expected)]);
        }
        assert_errors(&[
            ("cluster.slot: 2\n", "c.yaml:1: cluster.slot: "),
            (
                "cluster.slots: 1/2\n",
                "c.yaml:1: cluster.slots: unknown key; the nearest known key is cluster.slot",
            ),
        ]);
    }

    #[test]
    fn the_environment_overrides_the_files_that_all_masters_share() {
        let around = |slot: &str| Environment {
            home: Some("/home/u".into()),
            cluster_slot: Some(slot.to_owned()),
            ..Environment::default()
        };
        let load = |slot| Config::load(&CliOverrides::default(), &around(slot));

        let config = load("3/3").unwrap();
        assert_eq!(config.cluster.slot.show().as_deref(), Some("3/3"));
        assert_eq!(
            config.origin("cluster.slot").to_string(),
            "SALTCELLAR_CLUSTER_SLOT"
        );

        let error = load("4/3").unwrap_err().to_string();
        assert!(
            error.starts_with("SALTCELLAR_CLUSTER_SLOT: cluster.slot: \"4/3\" is not accepted"),
            "{error}"
        );
    }

    #[test]
    fn the_settings_of_a_shared_history_are_read_and_rendered() {
        let config = assert_round_trip(
            "cluster:\n  nats: {servers: ['tls://n1:4222', 'nats://[::1]:4222'], user: a, password: 'file:/p', tls: {ca: /ca}, timeout: 3s}\n  \
             stream: SALT_1\n  replicas: 1\n  name: 10.0.0.1\n  replicate: all\n  window: 30d\n  monitor: ['http://n1:8222']\n",
        );
        let cluster = &config.cluster;
        assert_eq!(cluster.nats.as_ref().unwrap().servers.len(), 2);
        assert_eq!(cluster.name.as_ref().unwrap().token(), "10=2E0=2E0=2E1");
        assert_eq!(cluster.replicate, Replicate::All);
        assert_round_trip("cluster.nats: {servers: ['nats://n1'], token: 'credential:nats'}");
    }

    #[test]
    fn errors_of_a_shared_history_name_line_key_and_what_is_accepted() {
        assert_errors(&[
            (
                "cluster:\n  nats:\n    servers: [nats://a,\n      http://b]\n",
                "c.yaml:4: cluster.nats.servers[1]: \"http://b\" is not accepted: invalid scheme for NATS server URL: http; give an address such as nats://host:4222",
            ),
            (
                "cluster.nats: {servers: []}",
                "c.yaml:1: cluster.nats.servers: give at least one address",
            ),
            (
                "cluster.nats: {}",
                "c.yaml:1: cluster.nats: missing field `servers`",
            ),
            (
                "cluster:\n  nats:\n    servers: [nats://a]\n    pasword: x\n",
                "c.yaml:4: cluster.nats.pasword: unknown field `pasword`, expected one of `servers`, `user`",
            ),
            (
                "cluster.nats: {servers: ['nats://a'], user: u, password: secret}",
                "c.yaml:1: cluster.nats.password: \"secret\" is not accepted; give file:",
            ),
            (
                "cluster.nats: {servers: ['nats://a'], user: u}",
                "c.yaml:1: cluster.nats.user: user and password belong together, and exclude token; give user and password, or token",
            ),
            (
                "cluster.nats: {servers: ['nats://a'], tls: {key: /k}}",
                "c.yaml:1: cluster.nats.tls: a client's certificate needs its key",
            ),
            (
                "cluster.nats: {servers: ['nats://a'], timeout: 0s}",
                "c.yaml:1: cluster.nats.timeout: \"0s\" is not accepted; give a value from 1s to 10m",
            ),
            (
                "cluster.stream: a.b",
                "c.yaml:1: cluster.stream: \"a.b\" is not accepted; give 1 to 32 letters, digits, _ and -",
            ),
            (
                "cluster.replicas: 6",
                "c.yaml:1: cluster.replicas: \"6\" is not accepted; give a value from 1 to 5",
            ),
            (
                "cluster.window: 1s",
                "c.yaml:1: cluster.window: \"1s\" is not accepted; give a value from 2m to 365d",
            ),
            (
                "cluster.replicate: some",
                "c.yaml:1: cluster.replicate: unknown variant `some`, expected `jobs` or `all`",
            ),
            (
                "cluster.name: ''",
                "c.yaml:1: cluster.name: \"\" is not accepted; give",
            ),
            (
                "cluster.monitor: [n1]",
                "c.yaml:1: cluster.monitor[0]: \"n1\" is not accepted; give an address such as http://host:8222",
            ),
        ]);
    }
}
