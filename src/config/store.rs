//! The keys under `store`: durability, sizes and retention.

use serde::{Deserialize, Serialize};

use super::error::{Invalid, at_most, unique, within};
use super::render;
use crate::base::limits::{CLASS_RULES_MAX, CLASSES_MAX, ENTRY_BYTES_MAX, PIN_BYTES_MAX};
use crate::model::word::{self, GIB, KIB, MIB, Word, words};
use crate::model::{ClassRules, Durability, EVENTS, JOBS};

/// Settings of the store.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// When a call is acknowledged. `durable`: after its entries are synced; a power cut loses no acknowledged entry. `written 5s`: after its entries
    /// are handed to the kernel, which are synced within that time; a killed daemon loses nothing, a power cut loses up to the last five seconds.
    ///
    /// - value: durable, or written and a time from 1s to 60s
    /// - default: `durable`
    /// - example: `written 5s`
    #[serde(with = "word")]
    pub durability: Durability,
    /// The size at which a segment of the log is sealed and a new one started.
    ///
    /// - value: a size from 1MiB to 64GiB: a number of bytes, or a number with KiB, MiB or GiB
    /// - default: `256MiB`
    /// - example: `1GiB`
    #[serde(with = "word")]
    pub segment_bytes_max: u64,
    /// The largest event, load or return that is stored. Larger ones are rejected and counted.
    ///
    /// - value: a size from 64KiB to 64MiB: a number of bytes, or a number with KiB or MiB
    /// - default: `64MiB`
    /// - example: `16MiB`
    #[serde(with = "word")]
    pub entry_bytes_max: usize,
    /// Retention classes. An entry belongs to the first class with a matching item under `match`. Entries without a match belong to `jobs` if they
    /// are part of a job, else to `events`; these two classes always exist. An item has a glob for the function (`fun`), for the event's tag (`tag`),
    /// or both. A function selects its jobs as a whole: load, returns and events. A tag selects single events. `keep` limits the class by `age` (a
    /// time such as `12h` or `30d`, `forever`, or `salt` for the master's `keep_jobs_seconds`), by `bytes` on disk, and by `entries`. The oldest
    /// entries are deleted first, in segments of at most a sixteenth of each limit. Held jobs are kept (`saltcellar store hold`).
    ///
    /// - value: a list of classes, each with `name`, `match` and `keep`
    /// - default: `jobs` with the age of Salt's `keep_jobs_seconds`, `events` with 30 days
    /// - example: `[{name: chatter, match: [{fun: saltutil.find_job}, {tag: salt/auth}], keep: {age: 1d}}]`
    #[serde(serialize_with = "render::items")]
    pub classes: Vec<ClassRules>,
    /// With less free space than this, retention deletes the oldest segments early: first of classes with a `match`, then of `events`, then of
    /// `jobs`. `auto` is a tenth of the file system, at most 3GiB.
    ///
    /// - value: a size: a number of bytes, or a number with KiB, MiB or GiB; or auto
    /// - default: `auto`
    /// - example: `10GiB`
    #[serde(with = "word")]
    pub free_bytes_low: Space,
    /// With less free space than this, the store accepts no entries: callers get `unavailable` and spool. Reading continues. `auto` is a twentieth of
    /// the file system, at most 1GiB.
    ///
    /// - value: a size: a number of bytes, or a number with KiB, MiB or GiB; or auto
    /// - default: `auto`
    /// - example: `2GiB`
    #[serde(with = "word")]
    pub free_bytes_min: Space,
    /// Size that pinned consumers may keep of a class beyond its limits (`saltcellar consumers pin`). The oldest segments beyond it are deleted, and
    /// the consumer gets a gap record. With too little free space pins have no effect.
    ///
    /// - value: a size: a number of bytes, or a number with KiB, MiB or GiB
    /// - default: `10GiB`
    /// - example: `50GiB`
    #[serde(with = "word")]
    pub pin_bytes_max: u64,
}

/// An amount of free space on the state directory's file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// A share of the file system, up to a limit (see [`crate::base::limits::FREE_BYTES_MIN`]).
    Auto,
    /// A number of bytes.
    Bytes(u64),
}

words! {
    Space: "a size: a number of bytes, or a number with KiB, MiB or GiB; or auto",
        |text| if text == "auto" { Some(Self::Auto) } else { u64::parse(text).map(Self::Bytes) },
        |space| space.bytes().show().unwrap_or_else(|| "auto".to_owned());
}

impl Space {
    /// The bytes, unless automatic.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Auto => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            durability: Durability::Durable,
            segment_bytes_max: 256 * MIB,
            entry_bytes_max: ENTRY_BYTES_MAX,
            classes: vec![ClassRules::events(), ClassRules::jobs()],
            free_bytes_low: Space::Auto,
            free_bytes_min: Space::Auto,
            pin_bytes_max: PIN_BYTES_MAX,
        }
    }
}

impl StoreConfig {
    /// Checks the values, and adds the classes `events` and `jobs` if they are missing.
    pub(super) fn check(&mut self) -> Result<(), Invalid> {
        within("store.segment_bytes_max", &self.segment_bytes_max, MIB..=64 * GIB)?;
        let entry_bytes_max = self.entry_bytes_max as u64;
        within("store.entry_bytes_max", &entry_bytes_max, 64 * KIB..=ENTRY_BYTES_MAX as u64)?;
        at_most("store.classes", self.classes.len(), CLASSES_MAX)?;
        for (n, class) in self.classes.iter().enumerate() {
            let key = |name: &str| format!("store.classes[{n}].{name}");
            if let Some(n) = class.rules.iter().position(|rule| rule.fun.is_none() && rule.tag.is_none()) {
                let problem = "it matches nothing; give fun, tag, or both";
                return Err(Invalid::new(key(&format!("match[{n}]")), problem));
            }
            let is_fixed = [JOBS, EVENTS].contains(&class.name.as_str());
            if !is_fixed && !(1..=CLASS_RULES_MAX).contains(&class.rules.len()) {
                let problem = format!("{} items; give from 1 to {CLASS_RULES_MAX}", class.rules.len());
                return Err(Invalid::new(key("match"), problem));
            }
            within(key("keep.bytes"), &class.keep.bytes.unwrap_or(MIB), MIB..)?;
            within(key("keep.entries"), &class.keep.entries.unwrap_or(1000), 1000..)?;
        }
        let names: Vec<_> = self.classes.iter().map(|class| class.name.clone()).collect();
        unique("store.classes", "name", &names)?;
        let missing = |fixed: &ClassRules| !names.contains(&fixed.name);
        self.classes.extend([ClassRules::events(), ClassRules::jobs()].into_iter().filter(missing));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::tests::{assert_errors, assert_round_trip};
    use crate::model::Age;

    #[test]
    fn classes_are_read_in_their_order_and_jobs_and_events_are_added() {
        let text = "- name: chatter\n  match: [{fun: 'saltutil.*'}, {tag: salt/auth}]\n  keep: {age: 1d, bytes: 1GiB}\n\
                    - name: events\n  keep: {entries: 5000}\n";
        let config = assert_round_trip(&format!("store.classes:\n{text}"));
        let names: Vec<_> = config.store.classes.iter().map(|class| class.name.as_str()).collect();
        assert_eq!(names, ["chatter", "events", "jobs"]);
        let [chatter, events, jobs] = config.store.classes.as_slice() else { panic!() };
        assert_eq!(chatter.rules.len(), 2);
        assert_eq!(chatter.keep.age, Age::For(Duration::from_secs(86_400)));
        assert_eq!(chatter.keep.bytes, Some(GIB));
        assert_eq!((events.keep.age, events.keep.entries), (ClassRules::events().keep.age, Some(5000)));
        assert_eq!(jobs.keep.age, Age::Salt);
    }

    #[test]
    fn rendered_classes_are_read_back_equal() {
        for text in [
            "[]",
            "[{name: a, match: [{fun: 'x*', tag: 'y?'}], keep: {age: 90s, bytes: 1500000, entries: 1000}}]",
            "[{name: jobs, keep: {age: forever}}, {name: b-2, match: [{tag: '*'}], keep: {age: salt}}]",
        ] {
            assert_round_trip(&format!("store.classes: {text}"));
        }
    }

    #[test]
    fn an_error_names_line_key_and_accepted_values() {
        let check = |text: &str, expected: &str| {
            assert_errors(&[(&format!("store.classes:\n{text}"), &format!("c.yaml:{expected}"))]);
        };
        check(
            "- 5",
            "2: store.classes[0]: integer `5` is not accepted; give a mapping with `name`, `match` and `keep`",
        );
        check("- keep: {age: 1d}\n", "2: store.classes[0]: missing field `name`");
        check("- name: A\n", "2: store.classes[0]: `name` \"A\" is not accepted; give a name of lower-case");
        check(
            "- name: jobs\n  match: []\n",
            "2: store.classes[0]: jobs contains the entries that match no other class; leave",
        );
        check(
            "- name: a\n  keep: {age: 1d}\n",
            "2: store.classes[0]: `match` is missing; give a list such as",
        );
        check(
            "- name: a\n  match: []\n  keep: {age: 1d}\n",
            "3: store.classes[0].match: 0 items; give from 1 to",
        );
        check(
            "- name: a\n  match: [{}]\n  keep: {age: 1d}\n",
            "3: store.classes[0].match[0]: it matches nothing; give fun, tag, or both",
        );
        check(
            "- name: a\n  match:\n   - fn: x\n",
            "4: store.classes[0].match[0].fn: unknown field `fn`, expected `fun` or `tag`",
        );
        check(
            "- name: a\n  match:\n   - fun: [x]\n",
            "4: store.classes[0].match[0].fun: a list is not accepted; give a glob",
        );
        check(
            "- name: a\n  match: [{fun: x}]\n",
            "2: store.classes[0]: `keep` has no limit; give at least one of",
        );
        check("- name: jobs\n  keep: {}\n", "2: store.classes[0]: `keep` has no limit; give at least one of");
        check(
            "- name: jobs\n  keep: {days: 3}\n",
            "3: store.classes[0].keep.days: unknown field `days`, expected one of `age`, `bytes`, `entries`",
        );
        check(
            "- name: jobs\n  keep: [1d]\n",
            "3: store.classes[0].keep: a list is not accepted; give a mapping",
        );
        check(
            "- name: jobs\n  keep: {age: 30}\n",
            "3: store.classes[0].keep.age: \"30\" is not accepted; give a time from 1s",
        );
        check("- name: jobs\n  keep: {age: 0d}\n", "3: store.classes[0].keep.age: \"0d\" is not accepted");
        check(
            "- name: jobs\n  keep: {bytes: 5}\n",
            "3: store.classes[0].keep.bytes: \"5\" is not accepted; give a value from 1MiB on",
        );
        check(
            "- name: jobs\n  keep:\n    entries: 5\n",
            "4: store.classes[0].keep.entries: \"5\" is not accepted; give a value from 1000 on",
        );
        check(
            "- {name: jobs, keep: {age: 1d}}\n- {name: jobs, keep: {age: 2d}}\n",
            "3: store.classes[1].name: the name \"jobs\" appears twice; give each item its own",
        );
        let one = |n| format!("- {{name: c{n}, match: [{{fun: x}}], keep: {{age: 1d}}}}\n");
        check(&(0..40).map(one).collect::<String>(), "1: store.classes: 40 items; give at most");
    }
}
