//! `ingest.filter` and `ingest.redact`.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value as Json;

use super::read::{Mapping, Problem, mappings, show};
use super::value::{Of, Scalar, Setting, Texts, refused};
use crate::limits::{INGEST_RULES_MAX, SAMPLE_MAX};
use crate::model::{Action, Builtin, FilterRule, Glob, Pattern, RedactRule, Scope};

trait Named: Mapping {
    fn name(&mut self) -> &mut String;
}

impl Named for FilterRule {
    fn name(&mut self) -> &mut String {
        &mut self.name
    }
}

impl Named for RedactRule {
    fn name(&mut self) -> &mut String {
        &mut self.name
    }
}

impl<T: Named + Clone> Setting for Vec<T> {
    type Value = Self;

    /// Reads a list of rules. A rule without a name gets its number, from 1.
    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        mappings(deserializer, |before: &[T], rule: &mut T| {
            if before.len() >= INGEST_RULES_MAX {
                return Err(("too many rules".to_owned(), format!("give at most {INGEST_RULES_MAX}")));
            }
            if rule.name().is_empty() {
                *rule.name() = (before.len() + 1).to_string();
            }
            if before.iter().any(|known| known.clone().name() == rule.name()) {
                let problem = format!("the name {:?} appears twice", rule.name());
                return Err((problem, "give each rule a unique name".to_owned()));
            }
            Ok(())
        })
    }

    fn show(rules: &Self) -> Json {
        show(rules)
    }
}

type Globs = Option<Texts<Glob>>;

fn some<S: Scalar>(values: Vec<S::Value>) -> Option<Texts<S>> {
    (!values.is_empty()).then_some(Texts(values))
}

fn all<S: Scalar>(values: Option<Texts<S>>) -> Vec<S::Value> {
    values.map(|values| values.0).unwrap_or_default()
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FilterFields {
    name: Option<Of<RuleName>>,
    #[serde(rename = "do")]
    action: Option<Of<Action>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Globs,
    #[serde(skip_serializing_if = "Option::is_none")]
    fun: Globs,
    #[serde(skip_serializing_if = "Option::is_none")]
    minion: Globs,
}

impl Mapping for FilterRule {
    type Fields = FilterFields;

    fn check(fields: FilterFields) -> Result<Self, Problem> {
        let FilterFields { name, action, tag, fun, minion } = fields;
        let missing = || ("`do` is missing".to_owned(), format!("give {}", Action::accepts()));
        Ok(Self {
            name: name.map(|name| name.0).unwrap_or_default(),
            scope: Scope { tag: all(tag), fun: all(fun), minion: all(minion) },
            action: action.ok_or_else(missing)?.0,
        })
    }

    fn fields(&self) -> FilterFields {
        let Scope { tag, fun, minion } = self.scope.clone();
        FilterFields {
            name: Some(Of(self.name.clone())),
            action: Some(Of(self.action)),
            tag: some(tag),
            fun: some(fun),
            minion: some(minion),
        }
    }
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RedactFields {
    name: Option<Of<RuleName>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    builtin: Option<Of<Builtin>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keys: Globs,
    #[serde(skip_serializing_if = "Option::is_none")]
    paths: Option<Texts<KeyPath>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patterns: Option<Texts<Pattern>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Globs,
    #[serde(skip_serializing_if = "Option::is_none")]
    fun: Globs,
    #[serde(skip_serializing_if = "Option::is_none")]
    minion: Globs,
}

impl Mapping for RedactRule {
    type Fields = RedactFields;

    fn check(fields: RedactFields) -> Result<Self, Problem> {
        let RedactFields { name, builtin, keys, paths, patterns, tag, fun, minion } = fields;
        if builtin.is_none() && keys.is_none() && paths.is_none() && patterns.is_none() {
            let accepted = "give at least one of builtin, keys, paths and patterns";
            return Err(("it selects nothing".to_owned(), accepted.to_owned()));
        }
        Ok(Self {
            name: name.map(|name| name.0).unwrap_or_default(),
            scope: Scope { tag: all(tag), fun: all(fun), minion: all(minion) },
            builtin: builtin.map(|builtin| builtin.0),
            keys: all(keys),
            paths: all(paths),
            patterns: all(patterns),
        })
    }

    fn fields(&self) -> RedactFields {
        let Self { name, scope: Scope { tag, fun, minion }, builtin, keys, paths, patterns } = self.clone();
        RedactFields {
            name: Some(Of(name)),
            builtin: builtin.map(Of),
            keys: some(keys),
            paths: some(paths),
            patterns: some(patterns),
            tag: some(tag),
            fun: some(fun),
            minion: some(minion),
        }
    }
}

/// The name of a rule.
struct RuleName;

impl Scalar for RuleName {
    type Value = String;

    fn accepts() -> String {
        "a name of at most 64 bytes".to_owned()
    }

    fn parse(text: &str) -> Result<String, String> {
        if text.len() <= 64 { Ok(text.to_owned()) } else { refused(text) }
    }

    fn show(name: &String) -> Json {
        Json::from(name.as_str())
    }
}

impl Scalar for Action {
    type Value = Self;

    fn accepts() -> String {
        format!("store, drop, or `sample N` with N from 2 to {SAMPLE_MAX}")
    }

    fn parse(text: &str) -> Result<Self, String> {
        let sample = || {
            let n = text.strip_prefix("sample ")?.trim().parse().ok()?;
            (2..=SAMPLE_MAX).contains(&n).then_some(Self::Sample(n))
        };
        match text {
            "store" => Ok(Self::Store),
            "drop" => Ok(Self::Drop),
            _ => sample().map_or_else(|| refused(text), Ok),
        }
    }

    fn show(action: &Self) -> Json {
        Json::from(match action {
            Self::Store => "store".to_owned(),
            Self::Drop => "drop".to_owned(),
            Self::Sample(n) => format!("sample {n}"),
        })
    }
}

/// Keys from the top, each a glob.
struct KeyPath;

impl Scalar for KeyPath {
    type Value = Vec<Glob>;

    fn accepts() -> String {
        "keys joined by dots, such as return.password".to_owned()
    }

    fn parse(text: &str) -> Result<Vec<Glob>, String> {
        if text.split('.').any(str::is_empty) {
            return Err(format!("{text:?} has an empty key"));
        }
        Ok(text.split('.').map(Glob::new).collect())
    }

    fn show(path: &Vec<Glob>) -> Json {
        Json::from(path.iter().map(Glob::as_str).collect::<Vec<_>>().join("."))
    }
}

impl Scalar for Pattern {
    type Value = Self;

    fn accepts() -> String {
        "a regular expression".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        Self::new(text)
    }

    fn show(pattern: &Self) -> Json {
        Json::from(pattern.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::read_value;
    use crate::config::{Config, IngestConfig};

    fn read(name: &str, text: &str) -> Result<IngestConfig, String> {
        let mut config = Config::for_state_dir("/s", "/s/sock");
        let read = read_value(&mut config, name, text);
        read.map(|()| config.ingest).map_err(|error| error.to_string()[1..].replace(&format!(": {name}"), ""))
    }

    fn read_filter(text: &str) -> Result<Vec<FilterRule>, String> {
        read("ingest.filter", text).map(|ingest| ingest.filter)
    }

    fn read_redact(text: &str) -> Result<Vec<RedactRule>, String> {
        read("ingest.redact", text).map(|ingest| ingest.redact)
    }

    #[test]
    fn rendered_rules_are_read_back_equal() {
        for text in [
            "[]",
            "- {do: store, tag: 'salt/job/*'}\n- {do: sample 7, fun: [a, b], minion: 'x*'}\n- {name: rest, do: drop}",
        ] {
            let rules = read_filter(text).unwrap();
            let shown = Setting::show(&rules).to_string();
            assert_eq!(read_filter(&shown).unwrap(), rules, "{shown}");
        }
        for text in [
            "- {builtin: pillar}\n- {keys: [a, '*b*'], paths: return.x.*, patterns: ['a\\d+'], tag: t}",
            "- {name: n, builtin: private_keys, keys: k, minion: m}",
        ] {
            let rules = read_redact(text).unwrap();
            let shown = Setting::show(&rules).to_string();
            assert_eq!(read_redact(&shown).unwrap(), rules, "{shown}");
        }
    }

    #[test]
    fn an_error_names_line_key_and_accepted_values() {
        let filter = |text: &str, expected: &str| {
            let error = read_filter(text).expect_err(text);
            assert!(error.starts_with(expected), "{text:?}: {error}");
        };
        filter("x", "0: \"x\" is not accepted");
        filter("- x", "1[0]: \"x\" where keys are expected; give a list of rules");
        filter("- tag: x\n", "1[0]: `do` is missing; give store, drop, or `sample N`");
        filter("- tag: x\n  do: allow\n", "2[0].do: \"allow\" is not accepted; give store, drop");
        filter("- do: sample 1\n", "1[0].do: \"sample 1\" is not accepted");
        filter("- do: drop\n  tags: x\n", "2[0].tags: unknown key; give name, do, tag");
        filter("- do: drop\n  tag: []\n", "2[0].tag: a list of 0; give a glob, or a list");
        filter("- do: drop\n  tag: {a: b}\n", "2[0].tag: a mapping is not accepted; give a glob");
        filter("- {do: drop, name: a}\n- {do: drop, name: a}\n", "2[1]: the name \"a\" appears twice");
        filter(&"- do: drop\n".repeat(65), "65[64]: too many rules; give at most 64");
        let redact = |text: &str, expected: &str| {
            let error = read_redact(text).expect_err(text);
            assert!(error.starts_with(expected), "{text:?}: {error}");
        };
        redact("- tag: x\n", "1[0]: it selects nothing; give at least one of builtin, keys");
        redact(
            "- builtin: secrets\n",
            "1[0].builtin: \"secrets\" is not accepted; give one of passwords, private_keys",
        );
        redact("- paths: a..b\n", "1[0].paths: \"a..b\" has an empty key; give keys joined by dots");
        redact(
            "- patterns:\n   - a\n   - '('\n",
            "3[0].patterns[1]: \"(\" is not a regular expression: unclosed group",
        );
        redact("- patterns: 'x*'\n", "1[0].patterns: \"x*\" matches the empty text");
    }
}
