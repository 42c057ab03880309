//! Rights: what a peer of the local socket may do.

/// A right. Each one includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Read jobs, returns, events and the daemon's state.
    Read,
    /// Add history with the present time.
    Write,
    /// Change what the daemon keeps or what Salt does, and add history with any time.
    Admin,
}

impl Right {
    /// Its name in the configuration, in messages and in `docs/WIRE.md`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }
}
