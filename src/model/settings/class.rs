//! Retention classes as configured: name, matching entries, limits.

use std::time::Duration;

use crate::limits::CLASS_NAME_BYTES_MAX;
use crate::model::Glob;

/// The class of job entries that match no other class.
pub const JOBS: &str = "jobs";
/// The class of other events that match no other class.
pub const EVENTS: &str = "events";

/// A retention class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassRules {
    /// Its name, and that of its directory.
    pub name: String,
    /// Matches an entry that any of these matches. Empty for `jobs` and `events`, which contain the rest.
    pub rules: Vec<ClassRule>,
    /// Its limits.
    pub keep: Keep,
}

/// Matches the entries that all of its patterns match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassRule {
    /// Pattern for the function of a job, which selects its load, returns and events.
    pub fun: Option<Glob>,
    /// Pattern for the tag of an event.
    pub tag: Option<Glob>,
}

/// Limits of a class. Excess entries are deleted, the oldest first, in whole segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// The age limit.
    pub age: Age,
    /// Bytes on disk, indexes included.
    pub bytes: Option<u64>,
    /// Number of entries.
    pub entries: Option<u64>,
}

/// The age limit of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    /// No limit by age.
    Forever,
    /// Salt's `keep_jobs_seconds`; no limit until Salt reports it.
    Salt,
    /// A fixed age.
    For(Duration),
}

impl ClassRules {
    /// `jobs` with its default limit: Salt's `keep_jobs_seconds`.
    pub fn jobs() -> Self {
        let keep = Keep { age: Age::Salt, bytes: None, entries: None };
        Self { name: JOBS.to_owned(), rules: Vec::new(), keep }
    }

    /// `events` with its default limit: thirty days.
    pub fn events() -> Self {
        let keep = Keep { age: Age::For(Duration::from_secs(30 * 86_400)), bytes: None, entries: None };
        Self { name: EVENTS.to_owned(), rules: Vec::new(), keep }
    }
}

/// Whether this is a valid class name: `[a-z][a-z0-9_-]*`, at most [`CLASS_NAME_BYTES_MAX`] bytes.
pub fn is_class_name(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-';
    name.len() <= CLASS_NAME_BYTES_MAX
        && name.as_bytes().first().is_some_and(u8::is_ascii_lowercase)
        && name.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_names_are_valid_directory_names() {
        for name in ["jobs", "a", "chatter-2", "a_b", &"x".repeat(28)] {
            assert!(is_class_name(name), "{name}");
        }
        for name in ["", "Jobs", "2a", "-a", "a/b", "..", "a.b", "é", &"x".repeat(29)] {
            assert!(!is_class_name(name), "{name}");
        }
    }
}
