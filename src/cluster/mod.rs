//! One history of several masters over NATS JetStream: what the settings of a master mean there.
//!
//! The daemon of each master publishes the entries of its own master to a stream, and stores the entries of the other masters. The sink `cluster` of `engines` publishes,
//! a source of `ingest` receives; both connect by this module. docs/CLUSTER.md describes the whole.
//!
//! # Invariant
//!
//! Salt waits for nothing here. No stream that exists is changed: what it keeps may be the only copy of an entry that a master misses.

pub(crate) mod connection;
pub(crate) mod election;
pub(crate) mod envelope;
pub(crate) mod holds;
pub(crate) mod numbering;
pub(crate) mod peers;
pub(crate) mod reader;
pub(crate) mod rights;
pub(crate) mod shared_hold;
pub(crate) mod stream;
pub(crate) mod subject;

use std::time::Duration;

use ring::rand::{SecureRandom as _, SystemRandom};

use self::subject::Subjects;
use crate::config::{Config, ConfigError, Nats, Replicate};
use crate::model::{MasterName, Slot};
use crate::store::StoreError;
use crate::wire::filter::Entries;

/// The name of the sink that publishes this master's history, and of its position in the log.
pub(crate) const OUTBOX: &str = "cluster";

/// A master's part in the shared history.
#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    /// The master whose entries are published.
    pub(crate) name: MasterName,
    pub(crate) subjects: Subjects,
    pub(crate) nats: Nats,
    /// Of a new stream.
    pub(crate) replicas: u32,
    /// The age to which a new stream keeps messages.
    pub(crate) window: Duration,
    pub(crate) replicate: Replicate,
    pub(crate) slot: Option<Slot>,
    /// The largest entry of the store. A message of the stream may be smaller.
    pub(crate) entry_bytes_max: u64,
}

impl Cluster {
    /// The part of the master with this id, which is empty on a host without one. `None` if no history is shared.
    pub(crate) fn of(config: &Config, master_id: &str) -> Result<Option<Self>, ConfigError> {
        let settings = &config.cluster;
        let Some(nats) = settings.nats.clone() else {
            return Ok(None);
        };

        let name = settings.name.clone();
        // No name is made up: two masters with one name would be taken for one.
        let Some(name) = name.or_else(|| MasterName::new(master_id)) else {
            let why = if master_id.is_empty() {
                "this host has no Salt master whose id is known and could be the name".to_owned()
            } else {
                format!("the id of the master, {master_id:?}, is too long for a name")
            };
            // A missing key is on no line, therefore the error names the line of `cluster.nats`.
            let problem =
                format!("{why}; give cluster.name, a name that no other master of the history has");
            return Err(config.error_at("cluster.nats".to_owned(), problem));
        };

        Ok(Some(Self {
            name,
            subjects: Subjects::of(&settings.stream),
            nats,
            replicas: settings.replicas,
            window: settings.window,
            replicate: settings.replicate,
            slot: settings.slot,
            entry_bytes_max: config.store.entry_bytes_max as u64,
        }))
    }

    /// The entries that a master shares.
    pub(crate) fn shared(&self) -> Entries {
        match self.replicate {
            Replicate::Jobs => Entries::OwnJobs,
            Replicate::All => Entries::Own,
        }
    }
}

/// A random number, 16 hexadecimal digits.
pub(crate) fn random_name() -> Result<String, StoreError> {
    let mut bytes = [0; 8];
    let no_random = |_| StoreError::Refused("the kernel provides no random bytes".to_owned());
    SystemRandom::new().fill(&mut bytes).map_err(no_random)?;
    Ok(format!("{:016x}", u64::from_le_bytes(bytes)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::config::tests::in_directory;

    /// The part of a master with these keys below `cluster`, in one line.
    pub(crate) fn cluster(keys: &str) -> Cluster {
        let (config, _dir) = in_directory(&format!("cluster: {{{keys}}}\n")).unwrap();
        Cluster::of(&config, "m.1").unwrap().unwrap()
    }

    #[test]
    fn nothing_is_shared_without_servers() {
        let (config, _dir) = in_directory("cluster: {slot: 1/2, stream: a}").unwrap();
        assert!(Cluster::of(&config, "m").unwrap().is_none());
    }

    #[test]
    fn the_name_is_the_masters_id_unless_it_is_given() {
        let nats = "nats: {servers: ['nats://n1']}";
        assert_eq!(cluster(nats).name.as_str(), "m.1");
        assert_eq!(cluster(&format!("{nats}, name: a")).name.as_str(), "a");

        let (config, dir) =
            in_directory("log.level: info\ncluster:\n  nats: {servers: ['nats://n1']}\n").unwrap();
        for (id, why) in [
            (String::new(), "this host has no Salt master"),
            ("a".repeat(300), "the id of the master"),
        ] {
            let error = Cluster::of(&config, &id).unwrap_err();
            let error = crate::config::tests::without(&dir, &error);
            assert!(
                error.starts_with(&format!("c.yaml:3: cluster.nats: {why}"))
                    && error.contains("give cluster.name"),
                "{error}"
            );
        }
    }
}
