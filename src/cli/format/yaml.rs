//! YAML of and for people: data typed on the command line, which is JSON, or YAML as Salt's own
//! command line reads it; and values written into files of configuration.
//!
//! JSON may contain the tagged values of `--output json` ([`crate::wire::msgpack::json`]). Plain YAML
//! scalars have the meaning that Salt's loader gives them: `yes` is true, `010` is 10, `1_000` is
//! 1000. Dates remain text.

use std::path::Path;

use anyhow::Context as _;
use rmpv::Value;
use salt_sls::yaml::load;
use salt_sls::{Key, Value as Python};
use serde_json::json;

use crate::config::is_plain_yaml;
use crate::reactor::master::pack::packed;
use crate::wire::msgpack::json::from_json;

pub(in crate::cli) fn value(text: &str) -> anyhow::Result<Value> {
    if let Ok(json) = serde_json::from_str(text) {
        return Ok(from_json(&json)?);
    }
    let value = load(text).context("neither JSON nor YAML")?;
    Ok(rmpv::decode::read_value(&mut packed(&value).as_slice())?)
}

/// A value as YAML on one line, for Salt and for saltcellar.
pub(in crate::cli) fn inline(value: &Python) -> String {
    match value {
        Python::Str(text) => quoted(text),
        Python::List(items) => format!(
            "[{}]",
            items.iter().map(inline).collect::<Vec<_>>().join(", ")
        ),
        Python::Map(map) => {
            let pair =
                |(key, value): (&Key, &Python)| format!("{}: {}", inline(&key.0), inline(value));

            format!(
                "{{{}}}",
                map.iter().map(pair).collect::<Vec<_>>().join(", ")
            )
        }
        Python::Null => "null".to_owned(),
        Python::Bool(value) => value.to_string(),
        other => other.python_str(),
    }
}

/// Text as YAML: quoted, unless it is a path or a name that YAML cannot take for anything else.
fn quoted(text: &str) -> String {
    if is_plain_yaml(text) {
        text.to_owned()
    } else {
        json!(text).to_string()
    }
}

/// A path as YAML, for messages; see [`inline`].
pub(in crate::cli) fn inline_path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        value(text).map_or_else(
            |error| format!("error: {error:#}"),
            |value| value.to_string(),
        )
    }

    #[test]
    fn data_is_json_or_yaml_as_salt_reads_it() {
        for (text, expected) in [
            (
                r#"{"a": 1, "b": [true, null, "x"]}"#,
                r#"{"a": 1, "b": [true, nil, "x"]}"#,
            ),
            (
                "{a: 1, b: [yes, ~, x y]}",
                r#"{"a": 1, "b": [true, nil, "x y"]}"#,
            ),
            (
                "a:\n  b: 010\n  c: 0x1f\n  d: -1_000\n",
                r#"{"a": {"b": 10, "c": 31, "d": -1000}}"#,
            ),
            (
                "{a: 1.5, b: 1.0e+3, c: 1e3, d: 08, e: 1.2.3}",
                r#"{"a": 1.5, "b": 1000, "c": "1e3", "d": "08", "e": "1.2.3"}"#,
            ),
            (
                "{a: '1', b: \"yes\", c: 2026-11-21}",
                r#"{"a": "1", "b": "yes", "c": "2026-11-21"}"#,
            ),
            ("{1: x, -.5: y, 0: z}", r#"{1: "x", "-.5": "y", 0: "z"}"#),
            ("18446744073709551615", "18446744073709551615"),
            ("99999999999999999999", "100000000000000000000"),
            (
                "{a: &x 1, b: *x, c: !!str 1}",
                r#"{"a": 1, "b": 1, "c": "1"}"#,
            ),
            ("", "nil"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
        assert_eq!(
            value(r#"{"$bin": "AAE="}"#).unwrap(),
            Value::Binary(vec![0, 1])
        );
    }

    #[test]
    fn errors_name_the_cause() {
        for (text, why) in [
            ("{a: 1", "neither JSON nor YAML"),
            ("a: !x 1", "could not determine a constructor"),
            ("{a: 1, a: 2}", "found conflicting ID"),
            ("a\n---\nb", "single document"),
            (&"[".repeat(100), "neither"),
        ] {
            assert!(
                shown(text).starts_with("error: ") && shown(text).contains(why),
                "{text}: {}",
                shown(text)
            );
        }
    }

    #[test]
    fn values_are_quoted_as_yaml_if_necessary() {
        for (text, yaml) in [
            (
                "/run/saltcellar/saltcellar.sock",
                "/run/saltcellar/saltcellar.sock",
            ),
            ("/a b: c", r#""/a b: c""#),
            ("https://master:4580", r#""https://master:4580""#),
            ("/a\"b", r#""/a\"b""#),
            ("/a,/b", r#""/a,/b""#),
            ("/a # b", r#""/a # b""#),
            ("/a]", r#""/a]""#),
            ("saltcellar", "saltcellar"),
            ("On", r#""On""#),
            ("1e3", r#""1e3""#),
        ] {
            assert_eq!(quoted(text), yaml);
            assert_eq!(load(yaml).unwrap(), text.into());
        }
    }
}
