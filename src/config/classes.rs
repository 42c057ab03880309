//! `store.classes`: parsing with a line number for each error, and rendering.

use std::time::Duration;

use serde_json::{Map, Value as Json, json};

use super::keys::{ValueError, text};
use super::raw::{ConfigEntry, ConfigNode, Value};
use super::{duration, size};
use crate::limits::{CLASS_NAME_BYTES_MAX, CLASS_RULES_MAX, CLASSES_MAX, KEEP_AGE_MAX, KEEP_AGE_MIN};
use crate::model::{Age, ClassRule, ClassRules, Glob, Keep, is_class_name};

/// `jobs` and `events`, each with its default bounds.
pub(super) fn defaults() -> Vec<ClassRules> {
    vec![ClassRules::events(), ClassRules::jobs()]
}

/// Reads the list; appends `events` and `jobs` if they are missing.
pub(super) fn read(value: &Value) -> Result<Vec<ClassRules>, ValueError> {
    let Value::List(items) = value else {
        return Err(ValueError::from(format!("{} is not accepted", value.noun())));
    };
    let mut classes: Vec<ClassRules> = Vec::new();
    for (n, node) in items.iter().enumerate() {
        let class = class(node, &format!("[{n}]"))?;
        if classes.iter().any(|known| known.name == class.name) {
            let problem = format!("the class {:?} appears twice", class.name);
            return Err(bad(node.line, &format!("[{n}].name"), problem, "give each class one item"));
        }
        classes.push(class);
    }
    if classes.len() > CLASSES_MAX {
        let problem = format!("{} classes", classes.len());
        return Err(ValueError {
            accepted: Some(format!("give at most {CLASSES_MAX}")),
            ..ValueError::from(problem)
        });
    }
    for fixed in defaults() {
        if !classes.iter().any(|class| class.name == fixed.name) {
            classes.push(fixed);
        }
    }
    Ok(classes)
}

/// The list as in a configuration file.
pub(super) fn show(classes: &[ClassRules]) -> Json {
    classes.iter().map(show_class).collect()
}

fn show_class(class: &ClassRules) -> Json {
    let mut map = Map::new();
    map.insert("name".to_owned(), class.name.clone().into());
    if !class.rules.is_empty() {
        map.insert("match".to_owned(), class.rules.iter().map(show_rule).collect());
    }
    let age = match class.keep.age {
        Age::Forever => "forever".to_owned(),
        Age::Salt => "salt".to_owned(),
        Age::For(length) => duration::show(length),
    };
    let mut keep = Map::new();
    keep.insert("age".to_owned(), age.into());
    keep.extend(class.keep.bytes.map(|bytes| ("bytes".to_owned(), size::show(bytes).into())));
    keep.extend(class.keep.entries.map(|entries| ("entries".to_owned(), entries.into())));
    map.insert("keep".to_owned(), keep.into());
    map.into()
}

fn show_rule(rule: &ClassRule) -> Json {
    let pattern = |name, glob: &Option<Glob>| Some((name, json!(glob.as_ref()?.as_str())));
    let patterns = [pattern("fun", &rule.fun), pattern("tag", &rule.tag)];
    patterns.into_iter().flatten().map(|(name, glob)| (name.to_owned(), glob)).collect::<Map<_, _>>().into()
}

fn bad(line: usize, at: &str, problem: String, accepted: &str) -> ValueError {
    ValueError { line: Some(line), at: at.to_owned(), problem, accepted: Some(accepted.to_owned()) }
}

/// The entries of a mapping whose keys must be among `known`.
fn entries<'a>(node: &'a ConfigNode, at: &str, known: &[&str]) -> Result<&'a [ConfigEntry], ValueError> {
    let accepted = format!("give {}", known.join(", "));
    let Value::Map(entries) = &node.value else {
        let problem = format!("{} where keys are expected", node.value.noun());
        return Err(bad(node.line, at, problem, &accepted));
    };
    match entries.iter().find(|entry| !known.contains(&entry.name.as_str())) {
        Some(other) => {
            Err(bad(other.line, &format!("{at}.{}", other.name), "unknown key".to_owned(), &accepted))
        }
        None => Ok(entries),
    }
}

fn find<'a>(entries: &'a [ConfigEntry], name: &str) -> Option<&'a ConfigNode> {
    entries.iter().find(|entry| entry.name == name).map(|entry| &entry.node)
}

fn class(node: &ConfigNode, at: &str) -> Result<ClassRules, ValueError> {
    const NAME: &str = "give a name of lower-case letters, digits, - and _ that begins with a letter";
    let keys = entries(node, at, &["name", "match", "keep"])?;
    let place = format!("{at}.name");
    let Some(name) = find(keys, "name") else {
        return Err(bad(node.line, &place, "missing".to_owned(), NAME));
    };
    let name = match text(&name.value) {
        Ok(text) if is_class_name(text) => text.to_owned(),
        _ => {
            let problem = format!("{} is not accepted", name.value.noun());
            let accepted = format!("{NAME}, at most {CLASS_NAME_BYTES_MAX} bytes");
            return Err(bad(name.line, &place, problem, &accepted));
        }
    };
    let fixed = defaults().into_iter().find(|class| class.name == name);
    let place = format!("{at}.match");
    let rules = match (find(keys, "match"), &fixed) {
        (Some(found), Some(_)) => {
            let problem = format!("{name} contains the entries that match no other class");
            return Err(bad(found.line, &place, problem, "leave `match` out"));
        }
        (None, Some(_)) => Vec::new(),
        (Some(found), None) => rules(found, &place)?,
        (None, None) => return Err(bad(node.line, &place, "missing".to_owned(), RULES)),
    };
    let place = format!("{at}.keep");
    let keep = match (find(keys, "keep"), fixed) {
        (Some(found), fixed) => keep(found, &place, fixed.map(|class| class.keep.age))?,
        (None, Some(fixed)) => fixed.keep,
        (None, None) => return Err(bad(node.line, &place, "missing".to_owned(), KEEP)),
    };
    Ok(ClassRules { name, rules, keep })
}

const RULES: &str = "give a list such as [{fun: saltutil.find_job}, {tag: \"salt/auth\"}]";
const KEEP: &str = "give at least one of age, bytes and entries, such as {age: 7d}";

fn rules(node: &ConfigNode, at: &str) -> Result<Vec<ClassRule>, ValueError> {
    let problem = match &node.value {
        Value::List(items) if (1..=CLASS_RULES_MAX).contains(&items.len()) => {
            let rules = items.iter().enumerate().map(|(n, item)| rule(item, &format!("{at}[{n}]")));
            return rules.collect();
        }
        Value::List(items) => format!("a list of {}", items.len()),
        other => format!("{} is not accepted", other.noun()),
    };
    Err(bad(node.line, at, problem, &format!("{RULES}, of 1 to {CLASS_RULES_MAX}")))
}

fn rule(node: &ConfigNode, at: &str) -> Result<ClassRule, ValueError> {
    let keys = entries(node, at, &["fun", "tag"])?;
    let glob = |name: &str| {
        let Some(found) = find(keys, name) else { return Ok(None) };
        let glob = text(&found.value).map(|pattern| Some(Glob::new(pattern)));
        glob.map_err(|unfit| bad(found.line, &format!("{at}.{name}"), unfit.problem, "give a glob"))
    };
    let rule = ClassRule { fun: glob("fun")?, tag: glob("tag")? };
    if rule.fun.is_none() && rule.tag.is_none() {
        return Err(bad(node.line, at, "it matches nothing".to_owned(), "give fun, tag, or both"));
    }
    Ok(rule)
}

/// Reads the limits. Without `age`: `default_age`, else no limit by age.
fn keep(node: &ConfigNode, at: &str, default_age: Option<Age>) -> Result<Keep, ValueError> {
    let keys = entries(node, at, &["age", "bytes", "entries"])?;
    if keys.is_empty() {
        return Err(bad(node.line, at, "no limit given".to_owned(), KEEP));
    }
    let ages = format!(
        "give a time from {} to {} such as 12h or 30d, or `salt` for the master's keep_jobs_seconds, or \
         `forever`",
        duration::show(KEEP_AGE_MIN),
        duration::show(KEEP_AGE_MAX)
    );
    let sizes = "give a size from 1MiB: a number of bytes, or a number with KiB, MiB or GiB";
    let age = limit(keys, at, "age", &ages, age)?.or(default_age).unwrap_or(Age::Forever);
    let bytes = limit(keys, at, "bytes", sizes, |value| {
        size::parse(text(value).ok()?).filter(|&bytes| bytes >= size::MIB)
    })?;
    let entries = limit(keys, at, "entries", "give a number from 1000", |value| {
        text(value).ok()?.parse().ok().filter(|&entries| entries >= 1000)
    })?;
    Ok(Keep { age, bytes, entries })
}

fn limit<T>(
    keys: &[ConfigEntry],
    at: &str,
    name: &str,
    accepted: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Option<T>, ValueError> {
    let Some(found) = find(keys, name) else { return Ok(None) };
    let refused = || {
        let problem = format!("{} is not accepted", found.value.noun());
        bad(found.line, &format!("{at}.{name}"), problem, accepted)
    };
    read(&found.value).map(Some).ok_or_else(refused)
}

fn age(value: &Value) -> Option<Age> {
    match text(value).ok()? {
        "forever" => Some(Age::Forever),
        "salt" => Some(Age::Salt),
        other => {
            let fits = |length: &Duration| (KEEP_AGE_MIN..=KEEP_AGE_MAX).contains(length);
            duration::parse(other).filter(fits).map(Age::For)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::raw;

    fn read_text(text: &str) -> Result<Vec<ClassRules>, String> {
        read(&raw::parse(text).unwrap().value).map_err(|bad| {
            format!(
                "{}{}: {}; {}",
                bad.line.unwrap_or(0),
                bad.at,
                bad.problem,
                bad.accepted.unwrap_or_default()
            )
        })
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
            assert_eq!(read_text(&show(&classes).to_string()).unwrap(), classes, "{text}");
        }
    }

    #[test]
    fn an_error_names_line_key_and_accepted_values() {
        let check = |text: &str, expected: &str| {
            let error = read_text(text).expect_err(text);
            assert!(error.starts_with(expected), "{text:?}: {error}");
        };
        check("x", "0: \"x\" is not accepted");
        check("- 5", "1[0]: \"5\" where keys are expected; give name, match, keep");
        check("- keep: {age: 1d}\n", "1[0].name: missing; give a name of lower-case");
        check("- name: A\n", "1[0].name: \"A\" is not accepted; give a name of lower-case");
        check(
            "- name: jobs\n  match: []\n",
            "2[0].match: jobs contains the entries that match no other class; leave",
        );
        check("- name: a\n  keep: {age: 1d}\n", "1[0].match: missing; give a list such as");
        check("- name: a\n  match: []\n", "2[0].match: a list of 0; give a list such as");
        check("- name: a\n  match: [{}]\n", "2[0].match[0]: it matches nothing; give fun, tag, or both");
        check("- name: a\n  match:\n   - fn: x\n", "3[0].match[0].fn: unknown key; give fun, tag");
        check(
            "- name: a\n  match:\n   - fun: [x]\n",
            "3[0].match[0].fun: a list is not accepted; give a glob",
        );
        check("- name: a\n  match: [{fun: x}]\n", "1[0].keep: missing; give at least one of");
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
        check(twice, "2[1].name: the class \"jobs\" appears twice; give each class one item");
        let one = |n| format!("- {{name: c{n}, match: [{{fun: x}}], keep: {{age: 1d}}}}\n");
        let many = (0..40).map(one).collect::<Vec<_>>().concat();
        check(&many, "0: 40 classes; give at most");
    }
}
