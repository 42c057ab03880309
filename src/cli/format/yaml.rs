//! Data typed on the command line: JSON, or YAML as Salt's own command line reads it.
//!
//! JSON may contain the tagged values of `--output json` ([`crate::wire::json`]). Plain YAML scalars have their PyYAML
//! meaning: `yes` is true, `010` is 8, `1_000` is 1000. Dates remain text.

use anyhow::{Context as _, anyhow, bail};
use rmpv::Value;
use saphyr_parser::{Event, Parser, ScalarStyle, StrInput};

use crate::limits::CONFIG_DEPTH_MAX;
use crate::wire::json::from_json;

pub(in crate::cli) fn value(text: &str) -> anyhow::Result<Value> {
    if let Ok(json) = serde_json::from_str(text) {
        return Ok(from_json(&json)?);
    }
    let mut reader = Reader { events: Parser::new_from_str(text) };
    let value = reader.document().context("neither JSON nor YAML")?;
    Ok(value)
}

struct Reader<'a> {
    events: Parser<'a, StrInput<'a>>,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> anyhow::Result<Event<'a>> {
        loop {
            let event = self.events.next().ok_or_else(|| anyhow!("unexpected end of input"))?;
            let (event, _) = event.map_err(|error| anyhow!("{error}"))?;
            if !matches!(event, Event::Nothing | Event::StreamStart | Event::DocumentStart(_)) {
                return Ok(event);
            }
        }
    }

    fn document(&mut self) -> anyhow::Result<Value> {
        let value = match self.next()? {
            Event::StreamEnd | Event::DocumentEnd => return Ok(Value::Nil),
            event => self.node(event, 0)?,
        };
        match (self.next()?, self.next()?) {
            (Event::DocumentEnd, Event::StreamEnd) => Ok(value),
            _ => bail!("more than one document"),
        }
    }

    fn node(&mut self, event: Event<'a>, depth: usize) -> anyhow::Result<Value> {
        if depth > CONFIG_DEPTH_MAX {
            bail!("nested more than {CONFIG_DEPTH_MAX} levels deep");
        }
        match event {
            Event::Scalar(text, ScalarStyle::Plain, 0, None) => Ok(plain(&text)),
            Event::Scalar(text, _, 0, None) => Ok(Value::from(text.as_ref())),
            Event::SequenceStart(0, None) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        Event::SequenceEnd => return Ok(Value::Array(items)),
                        event => items.push(self.node(event, depth + 1)?),
                    }
                }
            }
            Event::MappingStart(0, None) => {
                let mut pairs: Vec<(Value, Value)> = Vec::new();
                loop {
                    let key = match self.next()? {
                        Event::MappingEnd => return Ok(Value::Map(pairs)),
                        event => self.node(event, depth + 1)?,
                    };
                    if pairs.iter().any(|(known, _)| *known == key) {
                        bail!("duplicate key {key}");
                    }
                    let event = self.next()?;
                    pairs.push((key, self.node(event, depth + 1)?));
                }
            }
            _ => bail!("anchors, aliases and tags are not supported"),
        }
    }
}

/// The value of a plain scalar, by the rules of PyYAML.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Nil,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => return Value::from(true),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => {
            return Value::from(false);
        }
        ".nan" | ".NaN" | ".NAN" => return Value::from(f64::NAN),
        _ => {}
    }
    let (minus, digits) = match text.strip_prefix(['-', '+']) {
        Some(digits) => (text.starts_with('-'), digits),
        None => (false, text),
    };
    if matches!(digits, ".inf" | ".Inf" | ".INF") {
        return Value::from(if minus { f64::NEG_INFINITY } else { f64::INFINITY });
    }
    integer(minus, digits).or_else(|| float(minus, digits)).unwrap_or_else(|| Value::from(text))
}

fn integer(minus: bool, digits: &str) -> Option<Value> {
    let (radix, digits) = match digits.get(..2) {
        Some("0x") => (16, digits.get(2..)?),
        Some("0b") => (2, digits.get(2..)?),
        Some(_) if digits.starts_with('0') => (8, digits.get(1..)?),
        _ => (10, digits),
    };
    let first_counts = radix != 10 || digits.starts_with(|c: char| c.is_ascii_digit());
    let digits = digits.replace('_', "");
    if !first_counts || !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    let number = u64::from_str_radix(&digits, radix).ok()?;
    if minus { 0_i64.checked_sub_unsigned(number).map(Value::from) } else { Some(Value::from(number)) }
}

/// As in PyYAML, a float requires a point, and an exponent requires a sign.
fn float(minus: bool, digits: &str) -> Option<Value> {
    let (whole, rest) = digits.split_once('.')?;
    let (fraction, exponent) = match rest.split_once(['e', 'E']) {
        Some((fraction, exponent)) => (fraction, Some(exponent)),
        None => (rest, None),
    };
    let are_digits = |text: &str| text.chars().all(|c| c.is_ascii_digit() || c == '_');
    let signed = |text: &str| {
        text.strip_prefix(['-', '+']).is_some_and(|digits| !digits.is_empty() && are_digits(digits))
    };
    let shaped = are_digits(whole)
        && are_digits(fraction)
        && !(whole.is_empty() && fraction.is_empty())
        && !whole.starts_with('_')
        && exponent.is_none_or(signed);
    let number = digits.replace('_', "").parse::<f64>().ok().filter(|_| shaped)?;
    Some(Value::from(if minus { -number } else { number }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        value(text).map_or_else(|error| format!("error: {error:#}"), |value| value.to_string())
    }

    #[test]
    fn data_is_json_or_yaml_as_salt_reads_it() {
        for (text, expected) in [
            (r#"{"a": 1, "b": [true, null, "x"]}"#, r#"{"a": 1, "b": [true, nil, "x"]}"#),
            ("{a: 1, b: [yes, ~, x y]}", r#"{"a": 1, "b": [true, nil, "x y"]}"#),
            ("a:\n  b: 010\n  c: 0x1f\n  d: -1_000\n", r#"{"a": {"b": 8, "c": 31, "d": -1000}}"#),
            (
                "{a: 1.5, b: 1.0e+3, c: 1e3, d: 08, e: 1.2.3}",
                r#"{"a": 1.5, "b": 1000, "c": "1e3", "d": "08", "e": "1.2.3"}"#,
            ),
            ("{a: '1', b: \"yes\", c: 2026-11-21}", r#"{"a": "1", "b": "yes", "c": "2026-11-21"}"#),
            ("{1: x, -.5: y, 0: z}", r#"{1: "x", -0.5: "y", 0: "z"}"#),
            ("18446744073709551615", "18446744073709551615"),
            ("99999999999999999999", "100000000000000000000"),
            ("", "nil"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
        assert_eq!(value(r#"{"$bin": "AAE="}"#).unwrap(), Value::Binary(vec![0, 1]));
    }

    #[test]
    fn errors_name_the_cause() {
        for (text, why) in [
            ("{a: 1", "neither JSON nor YAML"),
            ("a: &x 1\nb: *x", "anchors"),
            ("a: !!str 1", "anchors, aliases and tags"),
            ("{a: 1, a: 2}", "duplicate key"),
            ("a\n---\nb", "more than one document"),
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
