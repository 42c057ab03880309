//! Comparison of JSON values of cases.

use std::fmt::Write as _;

use salt_sls::json_form::tag;
use serde_json::Value as Json;

/// The first difference, as `path: expected .., got ..`; `None` for equivalent values.
///
/// An empty tuple equals an empty list, and a set has no order. With `ordered` the order of keys
/// counts below the first level of mappings, where it is visible to users.
pub(super) fn difference(expected: &Json, got: &Json, ordered: bool) -> Option<String> {
    let mut path = String::new();
    differ(expected, got, ordered, 0, &mut path)
}

fn differ(
    expected: &Json,
    got: &Json,
    ordered: bool,
    depth: usize,
    path: &mut String,
) -> Option<String> {
    let prefix = |path: &str| {
        if path.is_empty() {
            String::new()
        } else {
            format!("{path}: ")
        }
    };

    let difference_at = |path: &str| {
        Some(format!(
            "{}expected {}, got {}",
            prefix(path),
            short(expected),
            short(got)
        ))
    };

    let (expected, got) = (plain(expected), plain(got));
    match (expected, got) {
        (Json::Array(a), Json::Array(b)) => {
            // Another length says more than the first item that differs.
            if a.len() != b.len() {
                let (a, b, expected, got) = (a.len(), b.len(), short(expected), short(got));
                return Some(format!(
                    "{}expected {a} items, got {b}: expected {expected}, got {got}",
                    prefix(path)
                ));
            }

            for (number, (a, b)) in a.iter().zip(b).enumerate() {
                // One buffer for all paths: each level removes its part again.
                let length = path.len();
                let _ = write!(path, "[{number}]");
                if let Some(found) = differ(a, b, ordered, depth, path) {
                    return Some(found);
                }
                path.truncate(length);
            }
            None
        }
        (Json::Object(a), Json::Object(b)) => {
            if let (Some(a), Some(b)) = (members(a), members(b)) {
                // The members of a set have no order.
                return if same_members(a, b) {
                    None
                } else {
                    difference_at(path)
                };
            }

            // A missing key explains more than a value that differs.
            if let Some(key) = a.keys().find(|key| !b.contains_key(*key)) {
                return Some(format!(
                    "{path}.{key}: expected {}, got nothing",
                    short(&a[key.as_str()])
                ));
            }

            if let Some(key) = b.keys().find(|key| !a.contains_key(*key)) {
                return Some(format!(
                    "{path}.{key}: expected nothing, got {}",
                    short(&b[key.as_str()])
                ));
            }

            for (key, a) in a {
                let length = path.len();
                path.push('.');
                path.push_str(key);
                if let Some(found) = b
                    .get(key)
                    .and_then(|b| differ(a, b, ordered, depth + 1, path))
                {
                    return Some(found);
                }
                path.truncate(length);
            }

            // The first level consists of the names of the case format, whose order means nothing.
            if ordered && depth > 0 && !a.keys().eq(b.keys()) {
                let keys = |map: &serde_json::Map<String, Json>| {
                    map.keys().cloned().collect::<Vec<_>>().join(", ")
                };
                return Some(format!(
                    "{path}: expected keys in order {}, got {}",
                    keys(a),
                    keys(b)
                ));
            }

            None
        }
        (a, b) if a == b => None,
        _ => difference_at(path),
    }
}

/// Converts an empty tuple to an empty list.
fn plain(json: &Json) -> &Json {
    match json
        .as_object()
        .filter(|object| object.len() == 1)
        .and_then(|object| object.get(tag::TUPLE))
    {
        Some(items) if items.as_array().is_some_and(Vec::is_empty) => items,
        _ => json,
    }
}

fn members(object: &serde_json::Map<String, Json>) -> Option<&Vec<Json>> {
    if object.len() == 1 {
        object.get(tag::SET)?.as_array()
    } else {
        None
    }
}

fn same_members(a: &[Json], b: &[Json]) -> bool {
    let sorted = |items: &[Json]| {
        let mut texts: Vec<String> = items.iter().map(Json::to_string).collect();
        texts.sort();
        texts
    };
    sorted(a) == sorted(b)
}

/// A value on one line, truncated.
pub(super) fn short(json: &Json) -> String {
    const LONG: usize = 160;
    let text = json.to_string();
    match text.char_indices().nth(LONG) {
        Some((at, _)) => format!("{}...", text.get(..at).unwrap_or_default()),
        None => text,
    }
}

/// The first differing part of two long strings.
pub(super) fn parting(expected: &str, got: &str) -> String {
    let same = expected
        .chars()
        .zip(got.chars())
        .take_while(|(a, b)| a == b)
        .count();

    let line = expected.chars().take(same).filter(|c| *c == '\n').count() + 1;
    // A few equal characters show the place.
    let from = same.saturating_sub(10);
    let part = |text: &str| text.chars().skip(from).take(50).collect::<String>();

    format!(
        "line {line}: expected {:?}, got {:?}",
        part(expected),
        part(got)
    )
}
