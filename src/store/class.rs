//! Retention classes: chains of segments with bounds of their own, and which entry goes to which.
//!
//! The table [`Classes`] is made once, when the store is opened. `jobs` and `events` are always there; after them
//! come those that the configuration adds, and then those that only the disk knows: they stay readable and take nothing.
//!
//! # Invariant
//!
//! A [`Class`] is a place in the table of this run. What is written to disk is the class's name: the next run may
//! give its number to another one. Only the numbers of `jobs` and `events` are for ever.

use std::sync::Arc;

use crate::model::{Entry, Kind};

/// A class, by its place in [`Classes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Class(u8);

impl Class {
    /// Whatever belongs to a job: loads, returns, `salt/job/..`, `salt/run/..`, `salt/wheel/..`.
    pub const JOBS: Class = Class(0);
    /// Every other event.
    pub const EVENTS: Class = Class(1);

    /// Its place in lists that have one item per class.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Bytes of a class's name. It is the name of a directory, and stands in the header of each log file.
pub const CLASS_NAME_BYTES_MAX: usize = 28;

/// Is this a name for a class: `[a-z][a-z0-9_-]*`, at most [`CLASS_NAME_BYTES_MAX`] bytes?
pub fn is_class_name(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-';
    name.len() <= CLASS_NAME_BYTES_MAX
        && name.as_bytes().first().is_some_and(u8::is_ascii_lowercase)
        && name.bytes().all(fits)
}

/// The table of classes.
#[derive(Debug, Clone)]
pub struct Classes {
    names: Vec<Arc<str>>,
    /// So many take entries; the rest are only on disk.
    configured: usize,
}

impl Default for Classes {
    fn default() -> Self {
        let names: Vec<Arc<str>> = vec!["jobs".into(), "events".into()];
        Self { configured: names.len(), names }
    }
}

impl Classes {
    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = Class> + use<> {
        (0..u8::try_from(self.names.len()).unwrap_or(u8::MAX)).map(Class)
    }

    /// Those that take entries; their places are the first ones.
    pub fn configured(&self) -> impl Iterator<Item = Class> + use<> {
        self.all().take(self.configured)
    }

    /// Does it take entries?
    pub fn is_configured(&self, class: Class) -> bool {
        class.index() < self.configured
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Its name, which is also that of its directory.
    pub fn name(&self, class: Class) -> Arc<str> {
        self.names.get(class.index()).cloned().unwrap_or_else(|| "".into())
    }

    /// The class of that name.
    pub fn find(&self, name: &str) -> Option<Class> {
        self.all().find(|class| self.names.get(class.index()).is_some_and(|known| **known == *name))
    }

    /// Adds a class that the disk has and the configuration does not; false if the table is full.
    pub(super) fn add_found(&mut self, name: &str) -> bool {
        let room = self.names.len() < usize::from(u8::MAX);
        if room {
            self.names.push(name.into());
        }
        room
    }
}

/// Tells entries' classes. One per thread that does so.
#[derive(Debug)]
pub struct Classifier {}

impl Classifier {
    /// One for that table.
    pub fn new(_classes: &Classes) -> Self {
        Self {}
    }

    /// The class an entry goes to.
    #[inline]
    pub fn class_of(&mut self, entry: &Entry<'_>) -> Class {
        if entry.kind == Kind::Event && entry.jid.is_empty() { Class::EVENTS } else { Class::JOBS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_and_events_are_always_there_and_keep_their_numbers() {
        let mut classes = Classes::default();
        assert!(classes.add_found("old"));
        assert_eq!(classes.find("jobs"), Some(Class::JOBS));
        assert_eq!(classes.find("events"), Some(Class::EVENTS));
        let old = classes.find("old").unwrap();
        assert_eq!((&*classes.name(old), classes.is_configured(old)), ("old", false));
        assert_eq!(classes.all().count(), 3);
        assert_eq!(classes.configured().collect::<Vec<_>>(), [Class::JOBS, Class::EVENTS]);
    }

    #[test]
    fn a_table_that_is_full_takes_no_more() {
        let mut classes = Classes::default();
        let added = (0..1000).filter(|n| classes.add_found(&format!("c{n}"))).count();
        assert_eq!((added, classes.len()), (253, 255));
        assert_eq!(classes.all().count(), 255);
    }

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
