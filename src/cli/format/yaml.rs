//! Data typed on the command line: JSON, or YAML as Salt's own command line reads it.
//!
//! JSON may contain the tagged values of `--output json` ([`crate::wire::json`]). Plain YAML
//! scalars have the meaning that Salt's loader gives them: `yes` is true, `010` is 10, `1_000` is
//! 1000. Dates remain text.

use anyhow::Context as _;
use rmpv::Value;

use crate::reactor::master::pack::packed;
use crate::wire::json::from_json;
use crate::wire::python::yaml::load;

pub(in crate::cli) fn value(text: &str) -> anyhow::Result<Value> {
    if let Ok(json) = serde_json::from_str(text) {
        return Ok(from_json(&json)?);
    }
    let value = load(text).context("neither JSON nor YAML")?;
    Ok(rmpv::decode::read_value(&mut packed(&value).as_slice())?)
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
}
