//! A change of a hold in a heartbeat, as JSON.

use serde::{Deserialize, Serialize};

use crate::base::clock::Micros;
use crate::model::MasterName;
use crate::store::{Held, HoldChange};

/// A change of a hold, as it travels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SharedHold {
    jid: String,
    /// When it was made, in microseconds since 1970.
    at: i64,
    /// Absent: the job was released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    held: Option<SharedHeld>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SharedHeld {
    since: i64,
    master: String,
    reason: String,
}

impl From<HoldChange> for SharedHold {
    fn from(change: HoldChange) -> Self {
        Self {
            jid: change.jid,
            at: change.at.0,
            held: change.held.map(|held| SharedHeld {
                since: held.since.0,
                master: held.master,
                reason: held.reason,
            }),
        }
    }
}

impl SharedHold {
    /// `None` if its master has no name that a master can have.
    pub(crate) fn into_change(self) -> Option<HoldChange> {
        let held = match self.held {
            Some(held) => Some(Held {
                since: Micros(held.since),
                master: MasterName::new(&held.master)?.as_str().to_owned(),
                reason: held.reason,
            }),
            None => None,
        };
        Some(HoldChange {
            at: Micros(self.at),
            held,
            jid: self.jid,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_arrives_as_it_left() {
        let released = HoldChange {
            at: Micros(9),
            held: None,
            jid: "1".to_owned(),
        };
        let held = HoldChange {
            held: Some(Held {
                since: Micros(7),
                master: "m1".to_owned(),
                reason: "why".to_owned(),
            }),
            ..released.clone()
        };
        for change in [released, held.clone()] {
            let text = serde_json::to_vec(&SharedHold::from(change.clone())).unwrap();
            let back: SharedHold = serde_json::from_slice(&text).unwrap();
            assert_eq!(back.into_change(), Some(change));
        }

        let mut nameless = SharedHold::from(held);
        nameless.held.as_mut().unwrap().master = String::new();
        assert_eq!(nameless.into_change(), None);
    }
}
