//! The keys under `cluster`: what one of several masters needs to know of the others.

use serde::{Deserialize, Serialize};

use crate::model::Slot;
use crate::model::word;

/// Settings of one of several masters.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterConfig {
    /// With several masters, which of them this is: `2/3` is the second of three. The job ids of the daemons, and those that their Salt extensions
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
}

#[cfg(test)]
mod tests {
    use crate::config::tests::{assert_errors, assert_round_trip, load};
    use crate::config::{CliOverrides, Config, Environment};
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
}
