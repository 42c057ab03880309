//! Whether all is well, and why not.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Lag of a consumer, a sink or a master that needs attention, in seconds.
pub(super) const LAG_S_MAX: u64 = 600;

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

/// Reasons as they are found.
#[derive(Default)]
pub(super) struct Reasons(pub(super) Vec<Reason>);

impl Reasons {
    pub(super) fn add(
        &mut self,
        level: Level,
        part: impl Into<String>,
        message: impl Into<String>,
    ) {
        self.0.push(Reason {
            level,
            part: part.into(),
            message: message.into(),
        });
    }
}
