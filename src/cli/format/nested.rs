//! Indented text of a value, similar to Salt's `nested` outputter.

use salt_sls::json_form::untagged;
use serde_json::Value as Json;

use crate::base::visible::plain;

const STEP: usize = 4;
/// Largest indent, in spaces.
const INDENT_MAX: usize = 60;

/// Formats the value as lines, each indented by at least `indent` spaces.
pub(in crate::cli) fn nested(value: &Json, indent: usize) -> String {
    let mut text = String::new();
    write(&mut text, value, indent);
    text
}

fn write(out: &mut String, value: &Json, indent: usize) {
    match value {
        Json::Object(object) if !is_leaf(value) => {
            for (key, value) in object {
                // Without the mark of keys that are no strings, and of strings that look like it.
                let key = key.strip_prefix('$').unwrap_or(key);
                field(out, &format!("{}:", plain(key)), value, indent);
            }
        }
        Json::Array(items) if !items.is_empty() => {
            for item in items {
                field(out, "-", item, indent);
            }
        }
        // Split before it is escaped, because `plain` would turn the line ends into text.
        Json::String(text) if text.contains('\n') => {
            for part in text.trim_end_matches('\n').split('\n') {
                line(out, indent, &plain(part.trim_end_matches('\r')));
            }
        }
        other => line(out, indent, &leaf(other)),
    }
}

/// A key or a dash with its value: on the same line if it is a leaf, otherwise below.
fn field(out: &mut String, head: &str, value: &Json, indent: usize) {
    if is_leaf(value) {
        line(out, indent, &format!("{head} {}", leaf(value)));
    } else {
        line(out, indent, head);
        write(out, value, indent + STEP);
    }
}

/// Whether a value fits one line: scalars, empty collections, and tagged JSON (`{"$bin": ...}`).
fn is_leaf(value: &Json) -> bool {
    match value {
        Json::Object(object) => object.is_empty() || untagged(object).is_some(),
        Json::Array(items) => items.is_empty(),
        Json::String(text) => !text.contains('\n'),
        _ => true,
    }
}

/// Formats a one-line value; text contains no quotes.
pub(in crate::cli) fn leaf(value: &Json) -> String {
    match value {
        Json::Null => String::new(),
        Json::String(text) => plain(text).into_owned(),
        other => plain(&other.to_string()).into_owned(),
    }
}

fn line(out: &mut String, indent: usize, text: &str) {
    out.extend(std::iter::repeat_n(' ', indent.min(INDENT_MAX)));
    out.push_str(text);
    out.truncate(out.trim_end_matches(' ').len());
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nested_values_are_indented() {
        let value = json!({
            "pid": 7, "ok": true, "none": null, "empty": [], "blob": {"$bin": "AA=="}, "$8080": {"$1": "int"},
            "out": "one\n\x1b[2Jtwo\n",
            "list": ["a", {"k": "v"}],
        });
        let expected = "  pid: 7\n  ok: true\n  none:\n  empty: []\n  blob: {\"$bin\":\"AA==\"}\n  8080:\n      1: int\n  out:\n      one\n      \\x1b[2Jtwo\n  list:\n      - a\n      -\n          k: v\n";
        assert_eq!(nested(&value, 2), expected);
        assert_eq!(nested(&json!("one\ntwo"), 0), "one\ntwo\n");
        assert_eq!(nested(&json!(true), 0), "true\n");
    }
}
