//! `store.classes`.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value as Json;

use super::duration;
use super::read::{Keyed, Mapping, Problem, list, mappings, show};
use super::size::MIB;
use super::value::{ByteSize, Of, Scalar, Setting, refused};
use crate::limits::{CLASS_NAME_BYTES_MAX, CLASS_RULES_MAX, CLASSES_MAX, KEEP_AGE_MAX, KEEP_AGE_MIN};
use crate::model::{Age, ClassRule, ClassRules, Glob, Keep, is_class_name};

/// `jobs` and `events`, each with its default bounds.
pub(super) fn defaults() -> Vec<ClassRules> {
    vec![ClassRules::events(), ClassRules::jobs()]
}

impl Setting for Vec<ClassRules> {
    type Value = Self;

    /// Reads the list; appends `events` and `jobs` if they are missing.
    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut classes = mappings(deserializer, |before: &[ClassRules], class: &mut ClassRules| {
            if before.len() >= CLASSES_MAX {
                return Err(("too many classes".to_owned(), format!("give at most {CLASSES_MAX}")));
            }
            if before.iter().any(|known| known.name == class.name) {
                let problem = format!("the class {:?} appears twice", class.name);
                return Err((problem, "give each class one item".to_owned()));
            }
            Ok(())
        })?;
        for fixed in defaults() {
            if !classes.iter().any(|class| class.name == fixed.name) {
                classes.push(fixed);
            }
        }
        Ok(classes)
    }

    fn show(classes: &Self) -> Json {
        show(classes)
    }
}

const RULES: &str = "give a list such as [{fun: saltutil.find_job}, {tag: \"salt/auth\"}]";
const KEEP: &str = "give at least one of age, bytes and entries, such as {age: 7d}";

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClassFields {
    name: Option<Of<ClassName>>,
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    rules: Option<Rules>,
    keep: Option<Keyed<Limits>>,
}

impl Mapping for ClassRules {
    type Fields = ClassFields;

    fn check(fields: ClassFields) -> Result<Self, Problem> {
        let missing = |name: &str, accepted: &str| (format!("`{name}` is missing"), accepted.to_owned());
        let name = fields.name.ok_or_else(|| missing("name", &format!("give {}", ClassName::accepts())))?.0;
        let fixed = defaults().into_iter().find(|class| class.name == name);
        let rules = match (fields.rules, &fixed) {
            (Some(_), Some(_)) => {
                let problem = format!("{name} contains the entries that match no other class");
                return Err((problem, "leave `match` out".to_owned()));
            }
            (None, Some(_)) => Vec::new(),
            (Some(rules), None) => rules.0,
            (None, None) => return Err(missing("match", RULES)),
        };
        let keep = match (fields.keep, fixed) {
            (Some(Keyed(keep)), fixed) => Keep {
                age: keep.age.or(fixed.map(|class| class.keep.age)).unwrap_or(Age::Forever),
                bytes: keep.bytes,
                entries: keep.entries,
            },
            (None, Some(fixed)) => fixed.keep,
            (None, None) => return Err(missing("keep", KEEP)),
        };
        Ok(Self { name, rules, keep })
    }

    fn fields(&self) -> ClassFields {
        let Keep { age, bytes, entries } = self.keep;
        ClassFields {
            name: Some(Of(self.name.clone())),
            rules: (!self.rules.is_empty()).then(|| Rules(self.rules.clone())),
            keep: Some(Keyed(Limits { age: Some(age), bytes, entries })),
        }
    }
}

/// The items under `match`.
struct Rules(Vec<ClassRule>);

impl<'de> Deserialize<'de> for Rules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let rules = list(deserializer, |_, rule: Keyed<ClassRule>| Ok(rule.0))?;
        if (1..=CLASS_RULES_MAX).contains(&rules.len()) {
            return Ok(Self(rules));
        }
        let accepted = format!("{RULES}, of 1 to {CLASS_RULES_MAX}");
        Err(super::read::problem(&format!("a list of {}", rules.len()), &accepted))
    }
}

impl Serialize for Rules {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        show(&self.0).serialize(serializer)
    }
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    fun: Option<Of<Glob>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<Of<Glob>>,
}

impl Mapping for ClassRule {
    type Fields = RuleFields;

    fn check(RuleFields { fun, tag }: RuleFields) -> Result<Self, Problem> {
        if fun.is_none() && tag.is_none() {
            return Err(("it matches nothing".to_owned(), "give fun, tag, or both".to_owned()));
        }
        Ok(Self { fun: fun.map(|glob| glob.0), tag: tag.map(|glob| glob.0) })
    }

    fn fields(&self) -> RuleFields {
        RuleFields { fun: self.fun.clone().map(Of), tag: self.tag.clone().map(Of) }
    }
}

/// The limits under `keep`.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    age: Option<Age>,
    bytes: Option<u64>,
    entries: Option<u64>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    age: Option<Of<Age>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<Of<ByteSize<MIB, { u64::MAX }>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<Of<Entries>>,
}

impl Mapping for Limits {
    type Fields = LimitFields;

    fn check(LimitFields { age, bytes, entries }: LimitFields) -> Result<Self, Problem> {
        if age.is_none() && bytes.is_none() && entries.is_none() {
            return Err(("no limit given".to_owned(), KEEP.to_owned()));
        }
        let (bytes, entries) = (bytes.map(|bytes| bytes.0), entries.map(|entries| entries.0));
        Ok(Self { age: age.map(|age| age.0), bytes, entries })
    }

    fn fields(&self) -> LimitFields {
        LimitFields { age: self.age.map(Of), bytes: self.bytes.map(Of), entries: self.entries.map(Of) }
    }
}

/// The name of a class.
struct ClassName;

impl Scalar for ClassName {
    type Value = String;

    fn accepts() -> String {
        format!(
            "a name of lower-case letters, digits, - and _ that begins with a letter, at most {CLASS_NAME_BYTES_MAX} bytes"
        )
    }

    fn parse(text: &str) -> Result<String, String> {
        if is_class_name(text) { Ok(text.to_owned()) } else { refused(text) }
    }

    fn show(name: &String) -> Json {
        Json::from(name.as_str())
    }
}

impl Scalar for Age {
    type Value = Self;

    fn accepts() -> String {
        let (least, most) = (duration::show(KEEP_AGE_MIN), duration::show(KEEP_AGE_MAX));
        format!(
            "a time from {least} to {most} such as 12h or 30d, or `salt` for the master's keep_jobs_seconds, or `forever`"
        )
    }

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "forever" => Ok(Self::Forever),
            "salt" => Ok(Self::Salt),
            _ => {
                let length =
                    duration::parse(text).filter(|length| (KEEP_AGE_MIN..=KEEP_AGE_MAX).contains(length));
                length.map_or_else(|| refused(text), |length| Ok(Self::For(length)))
            }
        }
    }

    fn show(age: &Self) -> Json {
        Json::from(match age {
            Self::Forever => "forever".to_owned(),
            Self::Salt => "salt".to_owned(),
            Self::For(length) => duration::show(*length),
        })
    }
}

/// A number of entries.
struct Entries;

impl Scalar for Entries {
    type Value = u64;

    fn accepts() -> String {
        "a number from 1000".to_owned()
    }

    fn parse(text: &str) -> Result<u64, String> {
        text.parse().ok().filter(|entries| *entries >= 1000).map_or_else(|| refused(text), Ok)
    }

    fn show(entries: &u64) -> Json {
        Json::from(*entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::config::load::read_value;
    use crate::config::{Config, size};

    fn read_text(text: &str) -> Result<Vec<ClassRules>, String> {
        let mut config = Config::for_state_dir("/s", "/s/sock");
        let read = read_value(&mut config, "store.classes", text);
        read.map(|()| config.store.classes)
            .map_err(|error| error.to_string()[1..].replace(": store.classes", ""))
    }

    #[test]
    fn classes_are_read_in_their_order_and_jobs_and_events_are_added() {
        let text = "- name: chatter\n  match: [{fun: 'saltutil.*'}, {tag: salt/auth}]\n  keep: {age: 1d, bytes: 1GiB}\n\
                    - name: events\n  keep: {entries: 5000}\n";
        let classes = read_text(text).unwrap();
        let names: Vec<_> = classes.iter().map(|class| class.name.as_str()).collect();
        assert_eq!(names, ["chatter", "events", "jobs"]);
        let [chatter, events, jobs] = classes.as_slice() else { panic!() };
        assert_eq!(chatter.rules.len(), 2);
        assert_eq!(chatter.keep.age, Age::For(Duration::from_secs(86_400)));
        assert_eq!(chatter.keep.bytes, Some(size::GIB));
        assert_eq!((events.keep.age, events.keep.entries), (ClassRules::events().keep.age, Some(5000)));
        assert_eq!(jobs.keep.age, Age::Salt);
    }

    #[test]
    fn rendered_classes_are_read_back_equal() {
        for text in [
            "[]",
            "- {name: a, match: [{fun: 'x*', tag: 'y?'}], keep: {age: 90s, bytes: 1500000, entries: 1000}}",
            "- {name: jobs, keep: {age: forever}}\n- {name: b-2, match: [{tag: '*'}], keep: {age: salt}}",
        ] {
            let classes = read_text(text).unwrap();
            assert_eq!(read_text(&Setting::show(&classes).to_string()).unwrap(), classes, "{text}");
        }
    }

    #[test]
    fn an_error_names_line_key_and_accepted_values() {
        let check = |text: &str, expected: &str| {
            let error = read_text(text).expect_err(text);
            assert!(error.starts_with(expected), "{text:?}: {error}");
        };
        check("x", "0: \"x\" is not accepted");
        check("- 5", "1[0]: \"5\" where keys are expected; give a list of classes");
        check("- keep: {age: 1d}\n", "1[0]: `name` is missing; give a name of lower-case");
        check("- name: A\n", "1[0].name: \"A\" is not accepted; give a name of lower-case");
        check(
            "- name: jobs\n  match: []\n",
            "1[0]: jobs contains the entries that match no other class; leave",
        );
        check("- name: a\n  keep: {age: 1d}\n", "1[0]: `match` is missing; give a list such as");
        check("- name: a\n  match: []\n", "2[0].match: a list of 0; give a list such as");
        check("- name: a\n  match: [{}]\n", "2[0].match[0]: it matches nothing; give fun, tag, or both");
        check("- name: a\n  match:\n   - fn: x\n", "3[0].match[0].fn: unknown key; give fun, tag");
        check(
            "- name: a\n  match:\n   - fun: [x]\n",
            "3[0].match[0].fun: a list or a mapping is not accepted",
        );
        check("- name: a\n  match: [{fun: x}]\n", "1[0]: `keep` is missing; give at least one of");
        check("- name: jobs\n  keep: {}\n", "2[0].keep: no limit given; give at least one of");
        check("- name: jobs\n  keep: {days: 3}\n", "2[0].keep.days: unknown key; give age, bytes, entries");
        check(
            "- name: jobs\n  keep: {age: 30}\n",
            "2[0].keep.age: \"30\" is not accepted; give a time from 1s",
        );
        check("- name: jobs\n  keep: {age: 0d}\n", "2[0].keep.age: \"0d\" is not accepted");
        check("- name: jobs\n  keep: {bytes: 5}\n", "2[0].keep.bytes: \"5\" is not accepted; give a size");
        check(
            "- name: jobs\n  keep: {entries: 5}\n",
            "2[0].keep.entries: \"5\" is not accepted; give a number",
        );
        let twice = "- {name: jobs, keep: {age: 1d}}\n- {name: jobs, keep: {age: 2d}}\n";
        check(twice, "2[1]: the class \"jobs\" appears twice; give each class one item");
        let one = |n| format!("- {{name: c{n}, match: [{{fun: x}}], keep: {{age: 1d}}}}\n");
        let many = (0..40).map(one).collect::<Vec<_>>().concat();
        check(&many, &format!("{}[{CLASSES_MAX}]: too many classes; give at most", CLASSES_MAX + 1));
    }
}
