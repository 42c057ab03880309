//! The option `reactor`: a map from patterns to files.
//!
//! It is a list of one-key mappings, or the name of a YAML file with such a list. `salt-run
//! reactor.add` and `reactor.delete` change a list until the next restart. Entries that Salt skips
//! silently are skipped here as well; mistakes of which its process dies cause an ERROR.

pub(crate) mod acting;
pub(super) mod lease;
pub(super) mod manage;
pub(super) mod matcher;

use std::path::Path;
use std::sync::Arc;

use salt_sls::{Key, Map, Value, yaml};

use self::matcher::Matcher;
use super::render::files::Fingerprint;
use crate::base::utf8;
use crate::model::{ListedRule, Note};

const LOGGER: &str = "salt.utils.reactor";

#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub(crate) entries: Vec<Value>,
    pub(crate) notes: Vec<Note>,
    matcher: Matcher,
    compiled: Vec<(Arc<str>, Vec<Value>)>,
}

impl Rules {
    /// The rules for display, in the order of the configuration.
    pub(crate) fn listed(&self) -> Vec<ListedRule> {
        let text = |value: &Value| {
            value
                .as_str()
                .map_or_else(|| value.python_repr(), str::to_owned)
        };

        // Even what Salt ignores is shown, because somebody wrote it.
        let one = |(pattern, value): (&Key, &Value)| {
            let files = match value {
                Value::List(items) => items.iter().map(text).collect(),
                other => vec![text(other)],
            };
            ListedRule {
                pattern: text(&pattern.0),
                files,
            }
        };

        self.entries
            .iter()
            .filter_map(Value::as_map)
            .flatten()
            .map(one)
            .collect()
    }

    /// Compiles the value of the option, or of the file it names.
    pub(crate) fn new(reactor: &Value) -> Self {
        match reactor {
            Value::List(entries) => Self::of(entries.clone()),
            // Salt iterates over the keys or characters of these, finds no mapping among them, and
            // matches nothing.
            Value::Map(_) | Value::Str(_) => Self::default(),
            other => Self {
                notes: vec![Note::error(
                    LOGGER,
                    format!(
                        "`reactor` is not a list of rules: {}; no event causes a reaction",
                        other.python_repr()
                    ),
                )],
                ..Self::default()
            },
        }
    }

    fn of(entries: Vec<Value>) -> Self {
        let mut rules = Self {
            entries,
            ..Self::default()
        };

        let mut compiled: Vec<(Arc<str>, Vec<Value>)> = Vec::new();
        for entry in &rules.entries {
            // Salt also skips such an entry, without a message.
            let Some((key, value)) = only_pair(entry) else {
                continue;
            };

            let Some(pattern) = key.as_str() else {
                rules.notes.push(Note::error(
                    LOGGER,
                    format!(
                        "reactor rule ignored: its pattern is not a string, quote it: {}",
                        key.python_repr()
                    ),
                ));
                continue;
            };

            // As in Salt, anything else names no file.
            let references = match value {
                Value::Str(_) => vec![value.clone()],
                Value::List(items) => items.clone(),
                _ => Vec::new(),
            };

            compiled.push((Arc::from(pattern), references));
        }

        rules.matcher = Matcher::new(compiled.iter().map(|(pattern, _)| &**pattern));
        rules.compiled = compiled;
        rules
    }

    /// The rules that match a tag, in order: pattern and references.
    pub(crate) fn matching(&self, tag: &str) -> impl Iterator<Item = (&Arc<str>, &[Value])> {
        let numbers = self.matcher.matching(tag);
        numbers
            .into_iter()
            .filter_map(|rule| self.compiled.get(rule))
            .map(|(pattern, refs)| (pattern, refs.as_slice()))
    }

    pub(crate) fn matches(&self, tag: &str) -> bool {
        self.matcher.matches(tag)
    }

    /// All rules, in order: pattern and references.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&Arc<str>, &[Value])> {
        self.compiled
            .iter()
            .map(|(pattern, references)| (pattern, references.as_slice()))
    }

    pub(crate) fn len(&self) -> usize {
        self.matcher.len()
    }

    /// The rules with an additional one; `None` if its pattern exists.
    pub(crate) fn with(
        &self,
        pattern: Value,
        references: Value,
        notes: &mut Vec<Note>,
    ) -> Option<Self> {
        if self.position(&pattern, notes).is_some() {
            return None;
        }
        let mut entries = self.entries.clone();
        let mut entry = Map::default();
        entry.insert(salt_sls::Key(pattern), references);
        entries.push(Value::Map(entry));
        Some(Self::of(entries))
    }

    /// The rules without the first one of this pattern; `None` if it does not exist.
    pub(crate) fn without(&self, pattern: &Value, notes: &mut Vec<Note>) -> Option<Self> {
        let at = self.position(pattern, notes)?;
        let mut entries = self.entries.clone();
        entries.remove(at);
        Some(Self::of(entries))
    }

    fn position(&self, pattern: &Value, notes: &mut Vec<Note>) -> Option<usize> {
        for (at, entry) in self.entries.iter().enumerate() {
            match first_key(entry) {
                Some(key) if key.python_eq(pattern) => return Some(at),
                Some(_) => {}
                None => notes.push(odd(entry)),
            }
        }
        None
    }
}

/// The message about an entry without a first key; Salt's process dies of it.
fn odd(entry: &Value) -> Note {
    Note::error(
        LOGGER,
        format!(
            "reactor rule ignored: not a mapping: {}",
            entry.python_repr()
        ),
    )
}

fn only_pair(entry: &Value) -> Option<(&Value, &Value)> {
    let map = entry.as_map()?;
    let (key, value) = map.first()?;
    (map.len() == 1).then_some((&key.0, value))
}

fn first_key(entry: &Value) -> Option<&Value> {
    Some(&entry.as_map()?.first()?.0.0)
}

/// A file of rules, reread after changes.
///
/// While a changed file cannot be read, the rules from before stay in use, as after a rejected
/// reload do: events that arrive meanwhile would otherwise match nothing, and be lost.
#[derive(Debug)]
pub(super) struct RulesFile {
    pub(super) path: String,
    /// The rules in use.
    rules: Option<Arc<Rules>>,
    /// The state of the file when it was last read; `None` if it must be reread.
    seen: Option<Fingerprint>,
    /// Why the file as it was last read is not in use.
    problem: Option<Note>,
}

impl RulesFile {
    pub(super) fn new(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            rules: None,
            seen: None,
            problem: None,
        }
    }

    /// The rules in use; an ERROR if the file could never be read.
    pub(super) fn rules(&mut self) -> Result<Arc<Rules>, Note> {
        let problem = self.problem();
        match (&self.rules, problem) {
            (Some(rules), _) => Ok(Arc::clone(rules)),
            (None, Some(problem)) => Err(problem),
            (None, None) => Ok(Arc::default()),
        }
    }

    /// Reads the file again if it has changed; an ERROR if it cannot be read as it is now.
    pub(super) fn problem(&mut self) -> Option<Note> {
        // From before the file is read: if it changes meanwhile, it is reread for the next
        // event.
        let now = Fingerprint::of(Path::new(&self.path));
        let is_unchanged =
            matches!((&self.seen, &now), (Some(seen), Some(now)) if seen.is_unchanged(now));

        if !is_unchanged {
            match self.read() {
                Ok(rules) => (self.rules, self.problem) = (Some(Arc::new(rules)), None),
                Err(problem) => self.problem = Some(problem),
            }
            self.seen = now;
        }

        self.problem.clone()
    }

    fn read(&self) -> Result<Rules, Note> {
        let complain = |what: &str, cause: String| {
            Note::error(
                LOGGER,
                format!("Failed to {what} reactor map: \"{}\"", self.path),
            )
            .because(cause)
        };

        let bytes =
            std::fs::read(&self.path).map_err(|error| complain("read", error.to_string()))?;
        let text = utf8::text_of(bytes)
            .map_err(|line| complain("parse YAML in", format!("line {line}: not UTF-8")))?;
        let value =
            yaml::load(&text).map_err(|error| complain("parse YAML in", error.to_string()))?;
        Ok(Rules::new(&value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Rules {
        Rules::new(&yaml::load(text).unwrap())
    }

    fn matched(rules: &Rules, tag: &str) -> Vec<String> {
        rules
            .matching(tag)
            .flat_map(|(_, references)| references)
            .map(Value::python_str)
            .collect()
    }

    #[test]
    fn all_matching_rules_apply_in_order() {
        let rules = rules("[{'te*': c}, {other: b}, {'test/*': [b, a]}, {'test/*': b}]");
        assert_eq!(matched(&rules, "test/x"), ["c", "b", "a", "b"]);
        assert!(matched(&rules, "nothing").is_empty());
    }

    #[test]
    fn invalid_entries_are_skipped_and_numbers_are_errors() {
        let rules = rules(
            "[text, 5, ~, {}, {a: ~}, {a: {b: c}}, {a: 7}, {a: x, b: y}, {5: z}, {a: [[n]]}]",
        );
        assert_eq!(matched(&rules, "a"), ["['n']"]);
        assert_eq!(rules.notes.len(), 1);
        assert!(rules.notes[0].message.contains('5'));
    }

    #[test]
    fn rules_are_added_and_deleted_by_their_first_key() {
        let one = rules("[plain, {a: x}]");
        let mut notes = Vec::new();
        assert!(one.with("a".into(), "y".into(), &mut notes).is_none());
        let two = one
            .with("b".into(), Value::List(vec!["y".into()]), &mut notes)
            .unwrap();
        assert_eq!(matched(&two, "b"), ["y"]);
        assert!(two.without(&"c".into(), &mut notes).is_none());
        assert!(matched(&two.without(&"a".into(), &mut notes).unwrap(), "a").is_empty());
        assert_eq!(notes.len(), 4, "the invalid entry is reported each time");
    }

    #[test]
    fn a_file_of_rules_is_reread_after_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        let mut file = RulesFile::new(path.to_str().unwrap());
        assert!(
            file.rules()
                .unwrap_err()
                .message
                .starts_with("Failed to read reactor map: \"")
        );
        std::fs::write(&path, "- a: x\n").unwrap();
        assert_eq!(matched(&file.rules().unwrap(), "a"), ["x"]);
        std::fs::write(&path, "- a: y\n").unwrap();
        assert_eq!(matched(&file.rules().unwrap(), "a"), ["y"]);
        assert_eq!(file.problem(), None);
    }

    #[test]
    fn while_a_changed_file_cannot_be_read_its_rules_stay_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        std::fs::write(&path, "- a: x\n").unwrap();
        let mut file = RulesFile::new(path.to_str().unwrap());
        assert_eq!(matched(&file.rules().unwrap(), "a"), ["x"]);

        let mut check = |change: &dyn Fn(), problem: &str, expected: &str| {
            change();
            assert_eq!(
                matched(&file.rules().unwrap(), "a"),
                [expected],
                "{problem}"
            );
            let found = file.problem().map(|note| note.message).unwrap_or_default();
            assert!(found.starts_with(problem), "{found}");
            assert_eq!(found.is_empty(), problem.is_empty(), "{found}");
        };
        let write = |bytes: &'static [u8]| move |path: &Path| std::fs::write(path, bytes).unwrap();
        let parse = "Failed to parse YAML in reactor map: \"";
        check(&|| write(b"- [\n")(&path), parse, "x");
        check(&|| write(b"\xff")(&path), parse, "x");
        check(
            &|| std::fs::remove_file(&path).unwrap(),
            "Failed to read reactor map: \"",
            "x",
        );
        check(&|| write(b"- a: y\n")(&path), "", "y");
    }
}
