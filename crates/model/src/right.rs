//! Rights of peers of the local socket.

/// A right, which includes those before it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize, serde::Serialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// Read jobs, returns, events and the daemon's state.
    Read,
    /// Store entries with the current time.
    Write,
    /// Change what the daemon keeps or what Salt does, and store entries with any time.
    #[serde(skip_deserializing)]
    Admin,
}

impl Right {
    /// The name in the configuration, in messages and in `docs/WIRE.md`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }
}
