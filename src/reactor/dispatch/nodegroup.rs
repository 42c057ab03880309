//! Nodegroups, which Salt's client resolves before publishing: `tgt_type: nodegroup`, and `N@` in
//! compound targets.

use salt_sls::{Map, Value};

use crate::model::Note;

const LOGGER: &str = "salt.utils.minions";
const OPERATORS: [&str; 5] = ["and", "or", "not", "(", ")"];

enum Group {
    /// Words of a compound target.
    Words(Vec<String>),
    /// Its definition as configured, without nested groups.
    Plain(Vec<String>),
}

/// The target and target type to publish.
pub(in crate::reactor) fn resolved(
    tgt: &Value,
    tgt_type: Value,
    groups: &Map,
    conf_file: &str,
    notes: &mut Vec<Note>,
) -> Result<(Value, Value), String> {
    let kind = tgt_type.as_str().unwrap_or_default();
    let words: Vec<String> = match kind {
        "nodegroup" => {
            let name = tgt
                .as_str()
                .ok_or_else(|| format!("Node group {} unavailable", tgt.python_str()))?;
            group(name, groups, conf_file, notes)?
        }
        "compound" => match tgt {
            Value::Str(text) => text.split_whitespace().map(str::to_owned).collect(),
            Value::List(items) | Value::Tuple(items) => {
                let texts: Option<Vec<String>> = items
                    .iter()
                    .map(|item| item.as_str().map(str::to_owned))
                    .collect();
                texts.ok_or("the list of a compound target may contain strings only")?
            }
            other => {
                return Err(format!(
                    "a compound target must be a string: {}",
                    other.python_str()
                ));
            }
        },
        // Targets of other types cannot contain nodegroups.
        _ => return Ok((tgt.clone(), tgt_type)),
    };

    let mut spread = Vec::with_capacity(words.len());
    for word in words {
        match word.strip_prefix("N@") {
            Some(name) if !name.is_empty() => spread.extend(group(name, groups, conf_file, notes)?),
            _ => spread.push(word),
        }
    }

    Ok((spread.join(" ").into(), "compound".into()))
}

fn group(
    name: &str,
    groups: &Map,
    conf_file: &str,
    notes: &mut Vec<Note>,
) -> Result<Vec<String>, String> {
    if !groups.contains_key(name) {
        return Err(format!("Node group {name} unavailable in {conf_file}"));
    }
    Ok(match expanded(name, groups, &mut Vec::new(), true, notes) {
        Group::Words(words) | Group::Plain(words) => words,
    })
}

fn expanded<'a>(
    name: &'a str,
    groups: &'a Map,
    skip: &mut Vec<&'a str>,
    first: bool,
    notes: &mut Vec<Note>,
) -> Group {
    let mut complain = |message: String| {
        notes.push(Note::error(LOGGER, message));
        Group::Words(Vec::new())
    };

    // A group that contains itself would be expanded without end.
    if skip.contains(&name) {
        return complain(format!(
            "Failed nodegroup expansion: illegal nested nodegroup \"{name}\""
        ));
    }
    let Some(definition) = groups.get(name) else {
        return complain(format!(
            "Failed nodegroup expansion: unknown nodegroup \"{name}\""
        ));
    };

    let words: Vec<String> = match definition {
        Value::Str(text) => text.split_whitespace().map(str::to_owned).collect(),
        Value::List(items) | Value::Tuple(items) => items.iter().map(Value::python_str).collect(),
        other => {
            let other = other.python_str();
            return complain(format!(
                "Nodegroup '{name}' ({other}) is neither a string, list nor tuple"
            ));
        }
    };

    skip.push(name);
    let mut found_group = false;
    let mut out: Vec<String> = Vec::new();
    for word in &words {
        let inner = word.strip_prefix("N@").filter(|inner| !inner.is_empty());
        // The key of the map instead of the word, because `skip` outlives the word.
        match inner.and_then(|inner| {
            groups
                .get_full(inner)
                .map(|(_, key, _)| key.as_str().unwrap_or_default())
        }) {
            Some(inner) => {
                found_group = true;
                let (Group::Words(words) | Group::Plain(words)) =
                    expanded(inner, groups, skip, false, notes);
                out.extend(words);
            }
            None if inner.is_some() => {
                // As in Salt, which reports it and expands the rest.
                found_group = true;
                notes.push(Note::error(
                    LOGGER,
                    format!(
                        "Failed nodegroup expansion: unknown nodegroup \"{}\"",
                        inner.unwrap_or_default()
                    ),
                ));
            }
            None => out.push(word.clone()),
        }
    }

    skip.pop();
    // Brackets keep its operators apart from those around it.
    if !out.is_empty() {
        out.insert(0, "(".to_owned());
        out.push(")".to_owned());
    }

    if found_group || !first {
        // Within an expression a plain list of minions needs its type.
        if !first && let Some(joined) = names_or_expression(&words) {
            return Group::Words(vec![joined]);
        }
        return Group::Words(out);
    }

    Group::Plain(names_or_expression(&words).map_or(words, |joined| vec![joined]))
}

/// The form of a group without operators, types and wildcards: a list of minions, or a regular
/// expression if it contains such characters. `None` for any other group.
fn names_or_expression(words: &[String]) -> Option<String> {
    let typed = |word: &str| {
        let mut chars = word.chars();
        chars.next().is_some_and(|c| c.is_ascii_uppercase()) && chars.next() == Some('@')
    };
    if words
        .iter()
        .any(|word| OPERATORS.contains(&word.as_str()) || word.contains('*') || typed(word))
    {
        return None;
    }

    // The same characters as in `nodegroup_comp` of `salt/utils/minions.py`.
    let expression = words
        .iter()
        .any(|word| word.contains(['(', '[', '{', '\\', '?', '}', ']', ')']));

    Some(format!(
        "{}@{}",
        if expression { "E" } else { "L" },
        words.join(",")
    ))
}
