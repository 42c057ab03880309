//! Renders configurations for `saltcellar config show`.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value as Json, json};

use super::{Config, Origin};

impl Config {
    /// The dotted names of the keys whose values in `other` differ.
    pub fn changed_keys(&self, other: &Self) -> Vec<String> {
        let (ours, theirs) = (by_name(self), by_name(other));
        ours.into_iter()
            .filter(|(name, value)| theirs.get(name) != Some(value))
            .map(|(name, _)| name)
            .collect()
    }

    /// The effective configuration as YAML, each value with its origin in a comment.
    pub fn to_yaml(&self) -> String {
        let mut text = format!(
            "# saltcellar {}, effective configuration\n",
            env!("CARGO_PKG_VERSION")
        );

        for (name, value) in values(self) {
            // Names of sinks are no keys, so the mapping as a whole has an origin.
            if MAPPINGS.contains(&name.as_str()) {
                yaml_key(&mut text, "", &name, &value, self.origin(&name));
            } else if let Json::Object(section) = value {
                line(&mut text, format_args!("{name}:"));
                for (key, value) in section {
                    yaml_key(
                        &mut text,
                        "  ",
                        &key,
                        &value,
                        self.origin(&format!("{name}.{key}")),
                    );
                }
            } else {
                yaml_key(&mut text, "", &name, &value, self.origin(&name));
            }
        }

        text
    }

    /// The effective configuration as in a file, and the origins of its keys by dotted name.
    pub(crate) fn shown(&self) -> (Json, BTreeMap<String, String>) {
        let origin = |name: String| {
            let origin = self.origin(&name).to_string();
            (name, origin)
        };
        (
            Json::Object(values(self)),
            names().into_iter().map(origin).collect(),
        )
    }
}

/// The values of all keys, as in a configuration file.
fn values(config: &Config) -> Map<String, Json> {
    match serde_json::to_value(config) {
        Ok(Json::Object(values)) => values,
        // The keys of a configuration are strings, and its values can all be written.
        other => unreachable!("{other:?}"),
    }
}

/// Keys whose value is a mapping with names that the user chooses. Every other mapping is a section.
const MAPPINGS: [&str; 2] = ["scripts", "sinks"];

/// The dotted names of all keys.
pub(super) fn names() -> Vec<String> {
    by_name(&Config::default())
        .into_iter()
        .map(|(name, _)| name)
        .collect()
}

/// The values of all keys by dotted name.
fn by_name(config: &Config) -> Map<String, Json> {
    let mut named = Map::new();
    for (name, value) in values(config) {
        match value {
            Json::Object(section) if !MAPPINGS.contains(&name.as_str()) => {
                named.extend(
                    section
                        .into_iter()
                        .map(|(key, value)| (format!("{name}.{key}"), value)),
                );
            }
            value => _ = named.insert(name, value),
        }
    }
    named
}

fn yaml_key(text: &mut String, indent: &str, name: &str, value: &Json, origin: &Origin) {
    match value {
        // A key without a value cannot be written, but is listed.
        Json::Null => line(text, format_args!("{indent}# {name}: not set  # {origin}")),

        // An empty list has no block form, and is written as `[]` below.
        Json::Array(items) if !items.is_empty() => {
            line(text, format_args!("{indent}{name}:  # {origin}"));
            for item in items {
                line(text, format_args!("{indent}  - {}", scalar(item)));
            }
        }

        // A line for each name, as people write it.
        Json::Object(items) if !items.is_empty() => {
            line(text, format_args!("{indent}{name}:  # {origin}"));
            for (item, value) in items {
                line(
                    text,
                    format_args!("{indent}  {}: {}", scalar(&json!(item)), scalar(value)),
                );
            }
        }

        _ => line(
            text,
            format_args!("{indent}{name}: {}  # {origin}", scalar(value)),
        ),
    }
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{arguments}");
}

/// A YAML value on one line. Text is bare where that is unambiguous, else quoted as in JSON.
fn scalar(value: &Json) -> String {
    // Lists and mappings within a value stay on its line, which ends with the origin as a comment.
    match value {
        Json::String(text) if is_bare(text) => text.clone(),
        Json::Object(map) => {
            let pairs: Vec<_> = map
                .iter()
                .map(|(name, value)| format!("{}: {}", scalar(&json!(name)), scalar(value)))
                .collect();
            format!("{{{}}}", pairs.join(", "))
        }
        Json::Array(items) => format!(
            "[{}]",
            items.iter().map(scalar).collect::<Vec<_>>().join(", ")
        ),
        other => other.to_string(),
    }
}

fn is_bare(text: &str) -> bool {
    // Sizes and times, such as `10m`.
    let sized = text.starts_with(|c: char| c.is_ascii_digit())
        && text.ends_with(['B', 's', 'm', 'h', 'd'])
        && text.chars().all(is_plain_char);

    sized || is_plain_yaml(text)
}

/// Whether a YAML reader, ours or PyYAML, takes this text unquoted for text. In doubt it does not.
pub(crate) fn is_plain_yaml(text: &str) -> bool {
    // In all their spellings: `On`, `NULL`.
    const WORDS: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];

    text.starts_with(|c: char| c == '/' || c.is_ascii_alphabetic())
        && text.chars().all(is_plain_char)
        && !WORDS.contains(&text.to_lowercase().as_str())
}

fn is_plain_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "/._-".contains(c)
}

#[cfg(test)]
mod tests;
