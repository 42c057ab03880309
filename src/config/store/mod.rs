//! The keys under `store`: durability, sizes and retention.

use serde::{Deserialize, Serialize};

use super::error::{Invalid, at_most, unique, within};
use super::items;
use crate::base::limits::{
    CLASS_NAME_BYTES_MAX, CLASS_RULES_MAX, CLASSES_MAX, ENTRY_BYTES_MAX, PIN_BYTES_MAX,
};
use crate::model::word::{self, GIB, KIB, MIB, Word, words};
use crate::model::{ClassRules, Durability, EVENTS, JOBS, MINION_SHARE, OVERFLOW};

/// Settings of the store.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// When a call is acknowledged. `durable`: after its entries are synced; a power loss loses no acknowledged entry. `written 5s`: after its entries
    /// are handed to the kernel, which are synced within that time; a killed daemon loses nothing, a power loss loses up to the last five seconds.
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
    /// are part of a job, else to `events`; these two classes always exist. An item contains a glob for the function (`fun`), for the event's tag (`tag`),
    /// or both. A function selects its jobs as a whole: load, returns and events. A tag selects single events. `keep` limits the class by `age` (a
    /// time such as `12h` or `30d`, `forever`, `salt` for the master's `keep_jobs_seconds`, or `30d or salt` for the longer of both), by `bytes` on
    /// disk, and by `entries`. The oldest entries are deleted first, in segments of at most a sixteenth of each limit. Held jobs are kept (`saltcellar
    /// store holds list`). If `keep_jobs_seconds` becomes shorter later, nothing is deleted until `saltcellar store prune --accept-salt`.
    ///
    /// - value: a list of classes, each with `name`, `match` and `keep`
    /// - default: `jobs` with the age `90d or salt`, `events` with `90d`
    /// - example: `[{name: chatter, match: [{fun: saltutil.find_job}, {tag: salt/auth}], keep: {age: 1d}}]`
    #[serde(serialize_with = "items::without_unset")]
    pub classes: Vec<ClassRules>,
    /// The share of a class, in percent, that one minion may have where `keep` limits the class by `bytes` or `entries`. Further entries of such a
    /// minion go to a class of their own, named like the class with `-over` behind it: it has this share of the limits, or what others leave, and
    /// only its own oldest entries are deleted for it. `status` names these minions. 100 turns this off.
    ///
    /// - value: a number from 2 to 100
    /// - default: `50`
    /// - example: `25`
    pub minion_share: u64,
    /// With less free space than this, retention deletes the oldest segments early: first of minions over their share, then of classes with a
    /// `match`, then of `events`, then of `jobs`. `auto` is a tenth of the file system, at most 3GiB.
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
            minion_share: MINION_SHARE,
            free_bytes_low: Space::Auto,
            free_bytes_min: Space::Auto,
            pin_bytes_max: PIN_BYTES_MAX,
        }
    }
}

impl StoreConfig {
    /// Checks the values, and adds the classes `events` and `jobs` if they are missing.
    pub(super) fn check(&mut self) -> Result<(), Invalid> {
        within(
            "store.segment_bytes_max",
            &self.segment_bytes_max,
            MIB..=64 * GIB,
        )?;

        let entry_bytes_max = self.entry_bytes_max as u64;
        within(
            "store.entry_bytes_max",
            &entry_bytes_max,
            64 * KIB..=ENTRY_BYTES_MAX as u64,
        )?;

        within("store.minion_share", &self.minion_share, 2..=100)?;
        at_most("store.classes", self.classes.len(), CLASSES_MAX)?;

        for (n, class) in self.classes.iter().enumerate() {
            let key = |name: &str| format!("store.classes[{n}].{name}");

            // Without a pattern it is unclear whether an item means all entries or none.
            if let Some(n) = class
                .rules
                .iter()
                .position(|rule| rule.fun.is_none() && rule.tag.is_none())
            {
                let problem = "it matches nothing; give fun, tag, or both";
                return Err(Invalid::new(key(&format!("match[{n}]")), problem));
            }

            // The name of the overflow class has to fit as well.
            let name_bytes_max = CLASS_NAME_BYTES_MAX - OVERFLOW.len();
            if class.name.ends_with(OVERFLOW) || class.name.len() > name_bytes_max {
                let problem = format!(
                    "{:?} is not accepted; give a name of at most {name_bytes_max} bytes that does not end with {OVERFLOW}, which names the \
                     classes of minions over their share",
                    class.name
                );
                return Err(Invalid::new(key("name"), problem));
            }

            // The fixed classes take what is left, so they need no items.
            let is_fixed = [JOBS, EVENTS].contains(&class.name.as_str());
            if !is_fixed && !(1..=CLASS_RULES_MAX).contains(&class.rules.len()) {
                let problem = format!(
                    "{} items; give from 1 to {CLASS_RULES_MAX}",
                    class.rules.len()
                );
                return Err(Invalid::new(key("match"), problem));
            }

            // A class reaches its limits in steps of a segment, and segments contain a minimum size.
            within(key("keep.bytes"), &class.keep.bytes.unwrap_or(MIB), MIB..)?;
            within(
                key("keep.entries"),
                &class.keep.entries.unwrap_or(1000),
                1000..,
            )?;
        }

        // The directory of a class bears its name.
        let names: Vec<_> = self
            .classes
            .iter()
            .map(|class| class.name.clone())
            .collect();
        unique("store.classes", "name", &names)?;

        // Behind all others, because these two take what is left.
        let missing = |fixed: &ClassRules| !names.contains(&fixed.name);
        self.classes.extend(
            [ClassRules::events(), ClassRules::jobs()]
                .into_iter()
                .filter(missing),
        );

        Ok(())
    }
}

#[cfg(test)]
mod tests;
