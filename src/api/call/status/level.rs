//! Whether all is well, and why not.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// All is well.
    #[default]
    Ok,
    /// Something needs attention.
    Warning,
    /// Data is rejected, lost or long overdue.
    Problem,
}

answers! {
    /// The daemon's health.
    Health {
        /// The worst level of the reasons.
        state: Level,
        /// The reasons, the worst first.
        reasons: Vec<Reason>,
    }
    /// Why not all is well.
    Reason {
        level: Level,
        /// The part of the daemon, such as `disk` or `sink audit`.
        part: String,
        /// The problem and the remedy.
        message: String,
    }
}
