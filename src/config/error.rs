//! The origin of a setting, and the error for an invalid one.

use std::fmt;
use std::path::PathBuf;

/// The origin of a value, in order of increasing precedence.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The built-in default.
    Default,
    /// A configuration file; lines count from 1.
    File {
        /// The file as it was named.
        path: PathBuf,
        /// The line of the key, or of the value where an item of it is meant.
        line: usize,
    },
    /// An environment variable.
    Environment(&'static str),
    /// A flag of the command line.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}

/// An invalid setting: its origin, its key, the problem, and the accepted values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// The origin of the setting.
    pub origin: Origin,
    /// The dotted name of the key; empty where the file as a whole is meant.
    pub key: String,
    /// The problem.
    pub problem: String,
    /// The accepted values; empty where the problem is self-explanatory.
    pub accepted: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.problem)?;
        if !self.accepted.is_empty() {
            write!(f, "; {}", self.accepted)?;
        }
        Ok(())
    }
}
