//! Retention classes as an administrator words them: a name, what goes there, how long it is kept.

use std::time::Duration;

use super::Glob;
use crate::limits::CLASS_NAME_BYTES_MAX;

/// The class of what belongs to jobs and no rule takes.
pub const JOBS: &str = "jobs";
/// The class of every other event that no rule takes.
pub const EVENTS: &str = "events";

/// One class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassRules {
    /// Its name; also that of its directory.
    pub name: String,
    /// It takes an entry that any of these takes. None for `jobs` and `events`: they take what is left.
    pub rules: Vec<ClassRule>,
    /// Its bounds.
    pub keep: Keep,
}

/// Takes the entries that all of its patterns match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassRule {
    /// Over the function of a job: its load, its returns and its events go where the function says.
    pub fun: Option<Glob>,
    /// Over the tag of an event.
    pub tag: Option<Glob>,
}

/// Bounds of a class. What exceeds any of them goes, the oldest first, in whole segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// How long an entry is kept.
    pub age: Age,
    /// Bytes on disk, indexes included.
    pub bytes: Option<u64>,
    /// Entries.
    pub entries: Option<u64>,
}

/// How long an entry is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    /// As long as the other bounds allow.
    Forever,
    /// As long as Salt's `keep_jobs_seconds` says; for ever while Salt says nothing.
    Salt,
    /// So long.
    For(Duration),
}

impl ClassRules {
    /// `jobs` with its default bounds: Salt's word counts.
    pub fn jobs() -> Self {
        let keep = Keep { age: Age::Salt, bytes: None, entries: None };
        Self { name: JOBS.to_owned(), rules: Vec::new(), keep }
    }

    /// `events` with its default bounds: thirty days.
    pub fn events() -> Self {
        let keep = Keep { age: Age::For(Duration::from_secs(30 * 86_400)), bytes: None, entries: None };
        Self { name: EVENTS.to_owned(), rules: Vec::new(), keep }
    }
}

/// Is this a name for a class: `[a-z][a-z0-9_-]*`, at most [`CLASS_NAME_BYTES_MAX`] bytes?
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
    fn names_of_classes_are_names_of_directories() {
        for name in ["jobs", "a", "chatter-2", "a_b", &"x".repeat(28)] {
            assert!(is_class_name(name), "{name}");
        }
        for name in ["", "Jobs", "2a", "-a", "a/b", "..", "a.b", "é", &"x".repeat(29)] {
            assert!(!is_class_name(name), "{name}");
        }
    }
}
