//! Python's `str()` and `repr()` of msgpack values.

use rmpv::Value;
use salt_sls::python;

/// Salt's extension type of dates.
const EXT_DATETIME: i8 = 78;

/// `str(value)`
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
        Value::Binary(bytes) => {
            std::str::from_utf8(bytes).map_or_else(|_| repr(value), str::to_owned)
        }
        Value::Ext(EXT_DATETIME, bytes) => date(&String::from_utf8_lossy(bytes)),
        other => repr(other),
    }
}

/// `str()` of the date packed as `20260203T04:05:06.000789`.
fn date(packed: &str) -> String {
    // Cut by position, because the packed form has no separators within the date.
    match (
        packed.get(..4),
        packed.get(4..6),
        packed.get(6..8),
        packed.get(8..9),
        packed.get(9..),
    ) {
        (Some(year), Some(month), Some(day), Some("T"), Some(time)) => {
            format!(
                "{year}-{month}-{day} {}",
                time.strip_suffix(".000000").unwrap_or(time)
            )
        }
        _ => packed.to_owned(),
    }
}

/// `repr(value)`
pub(super) fn repr(value: &Value) -> String {
    match value {
        Value::Nil => "None".to_owned(),
        Value::Boolean(true) => "True".to_owned(),
        Value::Boolean(false) => "False".to_owned(),
        Value::Integer(n) => n.to_string(),
        Value::F32(x) => float(f64::from(*x)),
        Value::F64(x) => float(*x),
        Value::String(text) => quoted(&String::from_utf8_lossy(text.as_bytes())),
        Value::Binary(bytes) => quoted_bytes(bytes),
        Value::Array(items) => format!(
            "[{}]",
            items.iter().map(repr).collect::<Vec<_>>().join(", ")
        ),
        Value::Map(pairs) => {
            let pairs = pairs
                .iter()
                .map(|(key, value)| format!("{}: {}", repr(key), repr(value)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
        Value::Ext(EXT_DATETIME, _) => quoted(&text(value)),
        Value::Ext(code, bytes) => format!("ExtType(code={code}, data={})", quoted_bytes(bytes)),
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::new();
    python::text::repr(text, &mut out);
    out
}

fn quoted_bytes(bytes: &[u8]) -> String {
    let mut out = String::new();
    python::text::repr_bytes(bytes, &mut out);
    out
}

pub(super) fn float(x: f64) -> String {
    let mut out = String::new();
    python::write_float(x, &mut out);
    out
}

/// `str.splitlines()`
pub(super) fn lines(text: &str) -> Vec<&str> {
    python::text::lines(text, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_formatted_as_by_python() {
        let floats = [
            1.0,
            0.1,
            -2.5e-5,
            1e16,
            1.5e300,
            123_456_789.125,
            1e15,
            0.0001,
            -0.0,
        ]
        .map(float);
        let expected = [
            "1.0",
            "0.1",
            "-2.5e-05",
            "1e+16",
            "1.5e+300",
            "123456789.125",
            "1000000000000000.0",
            "0.0001",
            "-0.0",
        ];
        assert_eq!(floats, expected);
        let value = Value::Map(vec![
            (
                "a'b".into(),
                Value::Array(vec![Value::Nil, true.into(), "x\ny".into()]),
            ),
            (1.into(), Value::Binary(vec![0, b'a', 255])),
        ]);
        assert_eq!(
            repr(&value),
            r#"{"a'b": [None, True, 'x\ny'], 1: b'\x00a\xff'}"#
        );
        assert_eq!(
            text(&Value::Ext(78, b"20260203T04:05:06.000789".to_vec())),
            "2026-02-03 04:05:06.000789"
        );
        assert_eq!(lines("a\r\nb\n\nc\u{2028}d\n"), ["a", "b", "", "c", "d"]);
    }
}
