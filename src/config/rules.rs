//! `ingest.filter` and `ingest.redact`: parsing with a line number for each error, and rendering.

use serde_json::{Map, Value as Json, json};

use super::keys::{ValueError, text};
use super::raw::{ConfigEntry, ConfigNode, Value};
use crate::limits::{INGEST_RULES_MAX, SAMPLE_MAX};
use crate::model::{Action, Builtin, FilterRule, Glob, Pattern, RedactRule, Scope};

const SCOPE: [&str; 3] = ["tag", "fun", "minion"];

/// Reads `ingest.filter`.
pub(super) fn read_filter(value: &Value) -> Result<Vec<FilterRule>, ValueError> {
    list(value, |node, at| {
        let keys = entries(node, at, &["do", "name", "tag", "fun", "minion"])?;
        let place = format!("{at}.do");
        let accepted = format!("give store, drop, or `sample N` with N from 2 to {SAMPLE_MAX}");
        let Some(found) = find(keys, "do") else {
            return Err(bad(node.line, &place, "missing".to_owned(), &accepted));
        };
        let action = action(&found.value).ok_or_else(|| refused(found, &place, &accepted))?;
        Ok(FilterRule { name: name(keys, at)?, scope: scope(keys, at)?, action })
    })
}

fn action(value: &Value) -> Option<Action> {
    match text(value).ok()? {
        "store" => Some(Action::Store),
        "drop" => Some(Action::Drop),
        words => {
            let n = words.strip_prefix("sample ")?.trim().parse().ok()?;
            (2..=SAMPLE_MAX).contains(&n).then_some(Action::Sample(n))
        }
    }
}

/// Reads `ingest.redact`.
pub(super) fn read_redact(value: &Value) -> Result<Vec<RedactRule>, ValueError> {
    list(value, |node, at| {
        let keys =
            entries(node, at, &["builtin", "keys", "paths", "patterns", "name", "tag", "fun", "minion"])?;
        let rule = RedactRule {
            name: name(keys, at)?,
            scope: scope(keys, at)?,
            builtin: builtin(keys, at)?,
            keys: texts(keys, at, "keys", "a glob", |text| Ok(Glob::new(text)))?,
            paths: texts(keys, at, "paths", "keys joined by dots, such as return.password", path)?,
            patterns: texts(keys, at, "patterns", "a regular expression", Pattern::new)?,
        };
        if rule.builtin.is_none() && rule.keys.is_empty() && rule.paths.is_empty() && rule.patterns.is_empty()
        {
            let accepted = "give at least one of builtin, keys, paths and patterns";
            return Err(bad(node.line, at, "it selects nothing".to_owned(), accepted));
        }
        Ok(rule)
    })
}

fn builtin(keys: &[ConfigEntry], at: &str) -> Result<Option<Builtin>, ValueError> {
    let Some(found) = find(keys, "builtin") else { return Ok(None) };
    let known = Builtin::ALL.into_iter().find(|one| text(&found.value).is_ok_and(|name| one.name() == name));
    let names = Builtin::ALL.map(Builtin::name).join(", ");
    known.map(Some).ok_or_else(|| refused(found, &format!("{at}.builtin"), &format!("give one of {names}")))
}

fn path(text: &str) -> Result<Vec<Glob>, String> {
    if text.split('.').any(str::is_empty) {
        return Err(format!("{text:?} has an empty key"));
    }
    Ok(text.split('.').map(Glob::new).collect())
}

/// The name of a rule; empty without one, until [`list`] assigns a number.
fn name(keys: &[ConfigEntry], at: &str) -> Result<String, ValueError> {
    let Some(found) = find(keys, "name") else { return Ok(String::new()) };
    let name = text(&found.value).ok().filter(|name| name.len() <= 64);
    let accepted = "give a name of at most 64 bytes";
    name.map(str::to_owned).ok_or_else(|| refused(found, &format!("{at}.name"), accepted))
}

fn scope(keys: &[ConfigEntry], at: &str) -> Result<Scope, ValueError> {
    let globs = |name| texts(keys, at, name, "a glob", |text| Ok(Glob::new(text)));
    let [tag, fun, minion] = SCOPE.map(globs);
    Ok(Scope { tag: tag?, fun: fun?, minion: minion? })
}

/// A text or a list of texts.
fn texts<T>(
    keys: &[ConfigEntry],
    at: &str,
    name: &str,
    what: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, ValueError> {
    let Some(found) = find(keys, name) else { return Ok(Vec::new()) };
    let place = format!("{at}.{name}");
    let accepted = format!("give {what}, or a list of 1 to {INGEST_RULES_MAX}");
    let one = |node: &ConfigNode| match text(&node.value) {
        Ok(text) => read(text).map_err(|problem| bad(node.line, &place, problem, &accepted)),
        Err(_) => Err(refused(node, &place, &accepted)),
    };
    match &found.value {
        Value::List(items) if (1..=INGEST_RULES_MAX).contains(&items.len()) => {
            items.iter().map(one).collect()
        }
        Value::List(items) => Err(bad(found.line, &place, format!("a list of {}", items.len()), &accepted)),
        _ => one(found).map(|one| vec![one]),
    }
}

trait Named {
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

/// Reads a list of rules. A rule without a name gets its number, from 1.
fn list<T: Named>(
    value: &Value,
    read: impl Fn(&ConfigNode, &str) -> Result<T, ValueError>,
) -> Result<Vec<T>, ValueError> {
    let Value::List(items) = value else {
        return Err(ValueError::from(format!("{} is not accepted", value.noun())));
    };
    if items.len() > INGEST_RULES_MAX {
        let problem = format!("{} rules", items.len());
        return Err(ValueError {
            accepted: Some(format!("give at most {INGEST_RULES_MAX}")),
            ..ValueError::from(problem)
        });
    }
    let mut rules: Vec<T> = Vec::new();
    for (n, node) in items.iter().enumerate() {
        let mut rule = read(node, &format!("[{n}]"))?;
        if rule.name().is_empty() {
            *rule.name() = (n + 1).to_string();
        }
        if rules.iter_mut().any(|known| known.name() == rule.name()) {
            let problem = format!("the name {:?} appears twice", rule.name());
            return Err(bad(node.line, &format!("[{n}].name"), problem, "give each rule a unique name"));
        }
        rules.push(rule);
    }
    Ok(rules)
}

/// `ingest.filter` as in a configuration file.
pub(super) fn show_filter(rules: &[FilterRule]) -> Json {
    let show = |rule: &FilterRule| {
        let action = match rule.action {
            Action::Store => "store".to_owned(),
            Action::Drop => "drop".to_owned(),
            Action::Sample(n) => format!("sample {n}"),
        };
        let mut map =
            Map::from_iter([("name".to_owned(), json!(rule.name)), ("do".to_owned(), json!(action))]);
        show_scope(&mut map, &rule.scope);
        Json::from(map)
    };
    rules.iter().map(show).collect()
}

/// `ingest.redact` as in a configuration file.
pub(super) fn show_redact(rules: &[RedactRule]) -> Json {
    let show = |rule: &RedactRule| {
        let mut map = Map::from_iter([("name".to_owned(), json!(rule.name))]);
        map.extend(rule.builtin.map(|builtin| ("builtin".to_owned(), json!(builtin.name()))));
        let globs = |globs: &[Glob]| globs.iter().map(|glob| glob.as_str().to_owned()).collect::<Vec<_>>();
        show_texts(&mut map, "keys", &globs(&rule.keys));
        let paths: Vec<_> = rule.paths.iter().map(|path| globs(path).join(".")).collect();
        show_texts(&mut map, "paths", &paths);
        let patterns: Vec<_> = rule.patterns.iter().map(|pattern| pattern.as_str().to_owned()).collect();
        show_texts(&mut map, "patterns", &patterns);
        show_scope(&mut map, &rule.scope);
        Json::from(map)
    };
    rules.iter().map(show).collect()
}

fn show_scope(map: &mut Map<String, Json>, scope: &Scope) {
    for (name, globs) in SCOPE.into_iter().zip([&scope.tag, &scope.fun, &scope.minion]) {
        let texts: Vec<_> = globs.iter().map(|glob| glob.as_str().to_owned()).collect();
        show_texts(map, name, &texts);
    }
}

fn show_texts(map: &mut Map<String, Json>, name: &str, texts: &[String]) {
    if !texts.is_empty() {
        map.insert(name.to_owned(), json!(texts));
    }
}

fn find<'a>(entries: &'a [ConfigEntry], name: &str) -> Option<&'a ConfigNode> {
    entries.iter().find(|entry| entry.name == name).map(|entry| &entry.node)
}

/// The entries of a mapping whose keys must be among `known`.
fn entries<'a>(node: &'a ConfigNode, at: &str, known: &[&str]) -> Result<&'a [ConfigEntry], ValueError> {
    let accepted = format!("give {}", known.join(", "));
    let Value::Map(entries) = &node.value else {
        return Err(bad(node.line, at, format!("{} where keys are expected", node.value.noun()), &accepted));
    };
    match entries.iter().find(|entry| !known.contains(&entry.name.as_str())) {
        Some(other) => {
            Err(bad(other.line, &format!("{at}.{}", other.name), "unknown key".to_owned(), &accepted))
        }
        None => Ok(entries),
    }
}

fn refused(node: &ConfigNode, at: &str, accepted: &str) -> ValueError {
    bad(node.line, at, format!("{} is not accepted", node.value.noun()), accepted)
}

fn bad(line: usize, at: &str, problem: String, accepted: &str) -> ValueError {
    ValueError { line: Some(line), at: at.to_owned(), problem, accepted: Some(accepted.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::raw;

    fn describe(bad: ValueError) -> String {
        let accepted = bad.accepted.unwrap_or_default();
        format!("{}{}: {}; {accepted}", bad.line.unwrap_or(0), bad.at, bad.problem)
    }

    #[test]
    fn rendered_rules_are_read_back_equal() {
        for text in [
            "[]",
            "- {do: store, tag: 'salt/job/*'}\n- {do: sample 7, fun: [a, b], minion: 'x*'}\n- {name: rest, do: drop}",
        ] {
            let rules = read_filter(&raw::parse(text).unwrap().value).map_err(describe).unwrap();
            let shown = show_filter(&rules).to_string();
            assert_eq!(
                read_filter(&raw::parse(&shown).unwrap().value).map_err(describe).unwrap(),
                rules,
                "{shown}"
            );
        }
        for text in [
            "- {builtin: pillar}\n- {keys: [a, '*b*'], paths: return.x.*, patterns: ['a\\d+'], tag: t}",
            "- {name: n, builtin: private_keys, keys: k, minion: m}",
        ] {
            let rules = read_redact(&raw::parse(text).unwrap().value).map_err(describe).unwrap();
            let shown = show_redact(&rules).to_string();
            assert_eq!(
                read_redact(&raw::parse(&shown).unwrap().value).map_err(describe).unwrap(),
                rules,
                "{shown}"
            );
        }
    }

    #[test]
    fn an_error_names_line_key_and_accepted_values() {
        let filter = |text: &str, expected: &str| {
            let error = describe(read_filter(&raw::parse(text).unwrap().value).expect_err(text));
            assert!(error.starts_with(expected), "{text:?}: {error}");
        };
        filter("x", "0: \"x\" is not accepted");
        filter("- x", "1[0]: \"x\" where keys are expected; give do, name, tag");
        filter("- tag: x\n", "1[0].do: missing; give store, drop, or `sample N`");
        filter("- tag: x\n  do: allow\n", "2[0].do: \"allow\" is not accepted; give store, drop");
        filter("- do: sample 1\n", "1[0].do: \"sample 1\" is not accepted");
        filter("- do: drop\n  tags: x\n", "2[0].tags: unknown key; give do, name, tag");
        filter("- do: drop\n  tag: []\n", "2[0].tag: a list of 0; give a glob, or a list");
        filter("- do: drop\n  tag: {a: b}\n", "2[0].tag: a mapping is not accepted; give a glob");
        filter("- {do: drop, name: a}\n- {do: drop, name: a}\n", "2[1].name: the name \"a\" appears twice");
        filter(&"- do: drop\n".repeat(65), "0: 65 rules; give at most 64");
        let redact = |text: &str, expected: &str| {
            let error = describe(read_redact(&raw::parse(text).unwrap().value).expect_err(text));
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
            "3[0].patterns: \"(\" is not a regular expression: unclosed group",
        );
        redact("- patterns: 'x*'\n", "1[0].patterns: \"x*\" matches the empty text");
    }
}
