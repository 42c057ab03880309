//! The origin of a setting, and the error for an invalid one.

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::path::PathBuf;

use crate::model::word::Word;

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

/// An invalid setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// The origin of the setting.
    pub origin: Origin,
    /// The dotted name of the key; empty where the file as a whole is meant.
    pub key: String,
    /// The problem and, unless that is self-explanatory, the accepted values.
    pub problem: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.problem)
    }
}

/// A value that its key does not accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    /// The key and the position below it, such as `store.classes[0].name`.
    pub path: String,
    /// The problem and the accepted values.
    pub problem: String,
}

impl Invalid {
    /// An error for the value at `path`.
    pub fn new(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            problem: problem.into(),
        }
    }

    /// The same error, with the path of what contains the value.
    #[must_use]
    pub fn below(self, parent: &str) -> Self {
        let Self { path, problem } = self;
        let path = match path.as_str() {
            "" | "." => parent.to_owned(),
            path if path.starts_with('[') => format!("{parent}{path}"),
            path => format!("{parent}.{path}"),
        };
        Self { path, problem }
    }
}

/// Rejects a value outside of `range`.
pub fn within<T: Word + PartialOrd>(
    path: impl Into<String>,
    value: &T,
    range: impl RangeBounds<T>,
) -> Result<(), Invalid> {
    if range.contains(value) {
        return Ok(());
    }

    // In the form in which the key is written, with its unit.
    let show = |value: &T| value.show().unwrap_or_default();
    let bound = |bound| match bound {
        Bound::Included(value) => Some(show(value)),
        _ => None,
    };

    let accepted = match (bound(range.start_bound()), bound(range.end_bound())) {
        (Some(least), Some(most)) => format!("from {least} to {most}"),
        // Every range here has a lower bound.
        (least, _) => format!("from {} on", least.unwrap_or_default()),
    };

    Err(Invalid::new(
        path,
        format!("{:?} is not accepted; give a value {accepted}", show(value)),
    ))
}

/// Rejects a list that is too long.
pub(super) fn at_most(path: &str, items: usize, max: usize) -> Result<(), Invalid> {
    if items <= max {
        Ok(())
    } else {
        Err(Invalid::new(
            path,
            format!("{items} items; give at most {max}"),
        ))
    }
}

/// Rejects two items of the list `path` with the same `field`.
pub(super) fn unique(path: &str, field: &str, values: &[String]) -> Result<(), Invalid> {
    let twice = |(n, value): &(usize, &String)| values.iter().take(*n).any(|known| known == *value);
    match values.iter().enumerate().find(twice) {
        Some((n, value)) => {
            let problem = format!("the {field} {value:?} appears twice; give each item its own");
            Err(Invalid::new(format!("{path}[{n}].{field}"), problem))
        }
        None => Ok(()),
    }
}
