//! Python's `str()`, `repr()` and `type()` of values.

use std::fmt::Write as _;

use super::text;
use crate::value::{Map, Value};

impl Value {
    /// `str(value)`.
    pub fn python_str(&self) -> String {
        str(self)
    }

    /// `repr(value)`.
    pub fn python_repr(&self) -> String {
        repr(self)
    }
}

/// `str(value)`
pub fn str(value: &Value) -> String {
    match value {
        Value::Str(text) => text.clone(),
        Value::Object(object) => object.text.clone(),
        _ => repr(value),
    }
}

/// `repr(value)`
pub fn repr(value: &Value) -> String {
    let mut out = String::new();
    write_repr(value, &mut out);
    out
}

/// `repr()` of a list of strings
pub fn repr_texts<T: AsRef<str>>(texts: &[T]) -> String {
    let mut out = String::from("[");
    for (n, item) in texts.iter().enumerate() {
        separate(n, &mut out);
        text::repr(item.as_ref(), &mut out);
    }
    out.push(']');
    out
}

/// `type(value).__name__`
pub fn type_name(value: &Value) -> &str {
    match value {
        Value::Null => "NoneType",
        Value::Bool(_) => "bool",
        Value::Int(_) | Value::BigInt(_) => "int",
        Value::Float(_) => "float",
        Value::Str(_) => "str",
        Value::Bytes(_) => "bytes",
        Value::List(_) => "list",
        Value::Tuple(_) => "tuple",
        Value::Set(_) => "set",
        Value::Map(_) => "dict",
        Value::Object(object) => &object.type_name,
    }
}

fn separate(n: usize, out: &mut String) {
    if n > 0 {
        out.push_str(", ");
    }
}

fn write_repr(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Int(number) => out.push_str(&number.to_string()),
        Value::BigInt(digits) => out.push_str(digits),
        Value::Float(number) => write_float(*number, out),
        Value::Str(value) => text::repr(value, out),
        Value::Bytes(bytes) => text::repr_bytes(bytes, out),
        Value::List(items) => write_items('[', items, ']', out),
        Value::Tuple(items) => {
            write_items('(', items, ')', out);
            if items.len() == 1 {
                // The comma tells a tuple from brackets around a value.
                out.insert(out.len() - 1, ',');
            }
        }
        // `{}` is a mapping.
        Value::Set(items) if items.is_empty() => out.push_str("set()"),
        Value::Set(items) => write_items('{', items, '}', out),
        Value::Map(map) => write_map(map, out),
        Value::Object(object) => out.push_str(&object.repr),
    }
}

fn write_items(open: char, items: &[Value], close: char, out: &mut String) {
    out.push(open);
    for (n, item) in items.iter().enumerate() {
        separate(n, out);
        write_repr(item, out);
    }
    out.push(close);
}

fn write_map(map: &Map, out: &mut String) {
    out.push('{');
    for (n, (key, value)) in map.iter().enumerate() {
        separate(n, out);
        write_repr(&key.0, out);
        out.push_str(": ");
        write_repr(value, out);
    }
    out.push('}');
}

/// `repr` of a float: the shortest digits that round-trip; with an exponent below 1e-4 and from 1e16 on.
pub fn write_float(number: f64, out: &mut String) {
    if number.is_nan() {
        out.push_str("nan");
    } else if number.is_infinite() {
        out.push_str(if number > 0.0 { "inf" } else { "-inf" });
    } else if number == 0.0 || (1e-4..1e16).contains(&number.abs()) {
        let _ = write!(out, "{number:?}");
    } else {
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, size) = exponent
            .strip_prefix('-')
            .map_or(('+', exponent), |size| ('-', size));
        let _ = write!(out, "{digits}e{sign}{size:0>2}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_printed_as_python_prints_them() {
        let check = |number: f64, expected: &str| assert_eq!(repr(&Value::Float(number)), expected);
        check(1.0, "1.0");
        check(-0.0, "-0.0");
        check(0.1, "0.1");
        check(1e16, "1e+16");
        check(123_456_789_012_345_680.0, "1.2345678901234568e+17");
        check(9_999_999_999_999_998.0, "9999999999999998.0");
        check(0.0001, "0.0001");
        check(0.00001, "1e-05");
        check(1.5e-300, "1.5e-300");
        check(f64::NEG_INFINITY, "-inf");
    }

    #[test]
    fn texts_and_collections_are_printed_as_python_prints_them() {
        let check = |value: Value, expected: &str| assert_eq!(repr(&value), expected);
        check("it's".into(), r#""it's""#);
        check("it's \"x\"".into(), r#"'it\'s "x"'"#);
        check("a\nb\\\u{7f}\u{2028}é".into(), r"'a\nb\\\x7f\u2028é'");
        check(Value::Bytes(b"a'\xff".to_vec()), r#"b"a'\xff""#);
        check(Value::Tuple(vec![Value::Null]), "(None,)");
        check(Value::Set(vec![]), "set()");
        let map = Map::from_iter([(
            "a".into(),
            Value::List(vec![Value::Bool(true), Value::Int(-1)]),
        )]);
        check(Value::Map(map), "{'a': [True, -1]}");
    }
}
