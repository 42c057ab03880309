//! What a state changed, in one line.

use crate::base::limits::CHANGE_SUMMARY_MAX;
use crate::base::units::cut;
use crate::wire::call::id_text;
use crate::wire::msgpack::{self, Head, Reader, as_text};

/// The changes of a state in one line: what became what, or how many lines differ.
pub(crate) fn summary(changes: &[u8]) -> String {
    let parts = msgpack::pairs(changes).map(|(key, value)| {
        let key = id_text(key).unwrap_or_default();
        match of_value(value) {
            // The key `diff` says nothing that the summary of a diff does not say.
            Some(what) if key == "diff" => what,
            Some(what) => format!("{key}: {what}"),
            None => key,
        }
    });

    let mut text = String::new();
    for part in parts {
        if !text.is_empty() {
            text.push_str(", ");
        }
        text.push_str(&part);
        // What is longer is not shown.
        if text.chars().nth(CHANGE_SUMMARY_MAX).is_some() {
            break;
        }
    }
    cut(&text, CHANGE_SUMMARY_MAX).into_owned()
}

/// A value of the changes; `None` if its key says all that fits in a line.
fn of_value(value: &[u8]) -> Option<String> {
    if let Some(text) = as_text(value) {
        return Some(of_text(text));
    }

    match Reader::new(value).head().ok()? {
        Head::Map(_) => {
            // Most states report a change as an `old` and a `new` value.
            let [old, new] = ["old", "new"].map(|key| msgpack::get(value, key).and_then(scalar));
            match (old, new) {
                (None, None) => None,
                (old, new) => {
                    let shown = |text: Option<String>| {
                        text.filter(|text| !text.is_empty())
                            .unwrap_or_else(|| "none".to_owned())
                    };
                    Some(format!("{} → {}", shown(old), shown(new)))
                }
            }
        }
        Head::Array(_) => None,
        _ => scalar(value),
    }
}

/// A string: of a unified diff the number of its lines, of others the first line.
fn of_text(text: &str) -> String {
    if text.starts_with("---") && text.contains("\n@@") {
        let count = |mark: char, header: &str| {
            let lines = text.lines().filter(|line| line.starts_with(mark));
            lines.filter(|line| !line.starts_with(header)).count()
        };
        return format!("diff +{} −{}", count('+', "+++"), count('-', "---"));
    }
    let first = text.lines().find(|line| !line.trim().is_empty());
    first.unwrap_or_default().trim().to_owned()
}

fn scalar(value: &[u8]) -> Option<String> {
    if let Some(known) = msgpack::as_bool(value) {
        return Some(known.to_string());
    }
    id_text(value).or_else(|| msgpack::as_int(value).map(|n| n.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::msgpack::{Writer, encode};
    use serde_json::json;

    fn of(value: &serde_json::Value) -> String {
        summary(&encode(value).unwrap())
    }

    #[test]
    fn changes_are_one_line() {
        for (changes, expected) in [
            (
                json!({"nginx": {"old": "1.22.0", "new": "1.22.1"}}),
                "nginx: 1.22.0 → 1.22.1",
            ),
            (
                json!({"nginx": {"old": "", "new": "1.22.1"}}),
                "nginx: none → 1.22.1",
            ),
            (
                json!({"diff": "--- \n+++ \n@@ -1,2 +1,3 @@\n-a\n+b\n+c\n d"}),
                "diff +2 −1",
            ),
            (
                json!({"diff": "New file", "mode": "0644"}),
                "New file, mode: 0644",
            ),
            (
                json!({"pid": 4711, "retcode": 0, "stdout": "a\nb"}),
                "pid: 4711, retcode: 0, stdout: a",
            ),
            (json!({"nginx": true}), "nginx: true"),
            (json!({"groups": ["a", "b"]}), "groups"),
            (json!({}), ""),
        ] {
            assert_eq!(of(&changes), expected);
        }
        let long = of(&json!({"a": "é".repeat(5_000)}));
        assert_eq!(long.chars().count(), CHANGE_SUMMARY_MAX + 1);
        assert_eq!(summary(b"\xff"), "", "not msgpack");
        let mut w = Writer::new();
        w.str("text");
        assert_eq!(summary(&w.into_bytes()), "", "not a map");
    }
}
