//! Where a setting came from, and what is wrong with one.

use std::fmt;
use std::path::PathBuf;

/// Where a value was said, from the weakest voice to the strongest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// A configuration file; lines count from 1.
    File {
        /// The file as it was named.
        path: PathBuf,
        /// The line of the key, or of the value where a value is meant.
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

/// A setting that cannot be used: where it was said, which, and what would be accepted instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// Where the setting was said.
    pub origin: Origin,
    /// The dotted name of the key; empty where the file as a whole is meant.
    pub key: String,
    /// What is wrong.
    pub problem: String,
    /// What would be accepted; empty where the problem says it all.
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
