//! Retention classes as configured: name, matching entries, limits.

use std::time::Duration;

use salt_sls::Glob;
use serde::{Deserialize, Serialize};

use crate::word::{self, Word, words};
use saltcellar_base::limits::{CLASS_NAME_BYTES_MAX, KEEP_AGE_MAX, KEEP_AGE_MIN};

/// The class of job entries that match no other class.
pub const JOBS: &str = "jobs";
/// The class of other events that match no other class.
pub const EVENTS: &str = "events";

/// The end of the name of a class's overflow, which holds entries of minions over their share.
pub const OVERFLOW: &str = "-over";

/// The class of the store's own settings. It contains no entries, and cannot be configured.
pub const SETTINGS: &str = "settings";

/// The share of a class, in percent, that one minion may have by default.
pub const MINION_SHARE: u64 = 50;

/// A retention class.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "WrittenClass")]
pub struct ClassRules {
    /// Its name, and that of its directory.
    pub name: String,
    /// Matches an entry that any of these matches. Empty for `jobs` and `events`, which contain the rest.
    #[serde(rename = "match")]
    pub rules: Vec<ClassRule>,
    /// Its limits of retention.
    pub keep: Keep,
}

/// Matches the entries that all of its patterns match.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "a mapping with `fun`, `tag`, or both"
)]
pub struct ClassRule {
    /// Pattern for the function of a job, which selects its load, returns and events.
    #[serde(with = "word")]
    pub fun: Option<Glob>,
    /// Pattern for the tag of an event.
    #[serde(with = "word")]
    pub tag: Option<Glob>,
}

/// Limits of a class. Excess entries are deleted, the oldest first, in whole segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Keep {
    /// The age limit.
    #[serde(with = "word")]
    pub age: Age,
    /// Bytes on disk, indexes included.
    #[serde(with = "word")]
    pub bytes: Option<u64>,
    /// Number of entries.
    pub entries: Option<u64>,
}

impl Keep {
    /// Whether another limit than the age ends entries.
    pub fn is_bounded(&self) -> bool {
        self.bytes.is_some() || self.entries.is_some()
    }
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
    /// This age, and never less than Salt's `keep_jobs_seconds`.
    AtLeastSalt(Duration),
}

words! {
    Age: "a time from 1s to 36500d such as 12h or 30d, `salt` for the master's keep_jobs_seconds, `30d or salt` for the longer of both, or `forever`",
        |text| match text {
            "forever" => Some(Self::Forever),
            "salt" => Some(Self::Salt),
            _ => match text.strip_suffix(OR_SALT) {
                Some(age) => age_within(age).map(Self::AtLeastSalt),
                None => age_within(text).map(Self::For),
            },
        },
        |age| match age {
            Self::Forever => "forever".to_owned(),
            Self::Salt => "salt".to_owned(),
            Self::For(age) => age.show().unwrap_or_default(),
            Self::AtLeastSalt(age) => age.show().unwrap_or_default() + OR_SALT,
        };
}

/// The end of an age that is never less than Salt's.
const OR_SALT: &str = " or salt";

/// How long `jobs` and `events` keep their entries by default.
const KEEP_DEFAULT: Duration = Duration::from_secs(90 * 86_400);

fn age_within(text: &str) -> Option<Duration> {
    Duration::parse(text).filter(|age| (KEEP_AGE_MIN..=KEEP_AGE_MAX).contains(age))
}

/// A class as written: `jobs` and `events` need neither `match` nor `keep`.
#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a mapping with `name`, `match` and `keep`"
)]
struct WrittenClass {
    name: String,
    #[serde(rename = "match")]
    rules: Option<Vec<ClassRule>>,
    #[serde(default, deserialize_with = "word::mapping")]
    keep: Option<WrittenKeep>,
}

/// Limits as written: without `age`, the default of the class applies.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct WrittenKeep {
    #[serde(with = "word")]
    age: Option<Age>,
    #[serde(with = "word")]
    bytes: Option<u64>,
    entries: Option<u64>,
}

impl TryFrom<WrittenClass> for ClassRules {
    type Error = String;

    fn try_from(WrittenClass { name, rules, keep }: WrittenClass) -> Result<Self, String> {
        if name == SETTINGS {
            return Err(format!(
                "`name` {name:?} is the class of the store's own settings; give another name"
            ));
        }
        if !is_class_name(&name) {
            return Err(format!(
                "`name` {name:?} is not accepted; give a name of lower-case letters, digits, - and _ that begins with a letter, \
                 at most {CLASS_NAME_BYTES_MAX} bytes"
            ));
        }

        // These two always exist and take what matches no other class, so they need neither `match`
        // nor `keep`.
        let fixed = [Self::jobs(), Self::events()]
            .into_iter()
            .find(|class| class.name == name);

        let rules = match (rules, &fixed) {
            (None, Some(_)) => Vec::new(),
            (Some(_), Some(_)) => {
                return Err(format!(
                    "{name} contains the entries that match no other class; leave `match` out"
                ));
            }
            (Some(rules), None) => rules,
            (None, None) => {
                return Err("`match` is missing; give a list such as [{fun: saltutil.find_job}, {tag: \"salt/auth\"}]".to_owned());
            }
        };

        // Another class without `age` is limited by its other limits only.
        let default_age = fixed.as_ref().map_or(Age::Forever, |class| class.keep.age);
        let keep = match (keep, fixed) {
            (
                Some(WrittenKeep {
                    age: None,
                    bytes: None,
                    entries: None,
                }),
                _,
            )
            | (None, None) => {
                return Err(
                    "`keep` contains no limit; give at least one of age, bytes and entries, such as {age: 7d}"
                        .to_owned(),
                );
            }
            (Some(keep), _) => Keep {
                age: keep.age.unwrap_or(default_age),
                bytes: keep.bytes,
                entries: keep.entries,
            },
            (None, Some(fixed)) => fixed.keep,
        };

        Ok(Self { name, rules, keep })
    }
}

impl ClassRules {
    /// `jobs` with its default limit: ninety days, and never less than Salt's `keep_jobs_seconds`.
    pub fn jobs() -> Self {
        let keep = Keep {
            age: Age::AtLeastSalt(KEEP_DEFAULT),
            bytes: None,
            entries: None,
        };
        Self {
            name: JOBS.to_owned(),
            rules: Vec::new(),
            keep,
        }
    }

    /// `events` with its default limit: ninety days.
    pub fn events() -> Self {
        let keep = Keep {
            age: Age::For(KEEP_DEFAULT),
            bytes: None,
            entries: None,
        };
        Self {
            name: EVENTS.to_owned(),
            rules: Vec::new(),
            keep,
        }
    }
}

/// Whether this is a valid class name: `[a-z][a-z0-9_-]*`, at most [`CLASS_NAME_BYTES_MAX`] bytes,
/// and not [`SETTINGS`].
pub fn is_class_name(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-';
    name != SETTINGS
        && name.len() <= CLASS_NAME_BYTES_MAX
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
        for name in [
            "",
            "Jobs",
            "2a",
            "-a",
            "a/b",
            "..",
            "a.b",
            SETTINGS,
            "é",
            &"x".repeat(29),
        ] {
            assert!(!is_class_name(name), "{name}");
        }
    }
}
