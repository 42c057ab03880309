//! Values as Python writes them: `str()` and `repr()`.

use rmpv::Value;

/// The ext type in which Salt packs dates.
const EXT_DATETIME: i8 = 78;

/// `str(value)`
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
        Value::Binary(bytes) => std::str::from_utf8(bytes).map_or_else(|_| repr(value), str::to_owned),
        Value::Ext(EXT_DATETIME, bytes) => date(&String::from_utf8_lossy(bytes)),
        other => repr(other),
    }
}

/// `20260203T04:05:06.000789` as `str()` writes a date.
fn date(packed: &str) -> String {
    match (packed.get(..4), packed.get(4..6), packed.get(6..8), packed.get(8..9), packed.get(9..)) {
        (Some(year), Some(month), Some(day), Some("T"), Some(time)) => {
            format!("{year}-{month}-{day} {}", time.strip_suffix(".000000").unwrap_or(time))
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
        Value::Binary(bytes) => format!("b'{}'", bytes.escape_ascii()),
        Value::Array(items) => format!("[{}]", items.iter().map(repr).collect::<Vec<_>>().join(", ")),
        Value::Map(pairs) => {
            let pairs = pairs.iter().map(|(key, value)| format!("{}: {}", repr(key), repr(value)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
        Value::Ext(EXT_DATETIME, _) => quoted(&text(value)),
        Value::Ext(code, bytes) => format!("ExtType(code={code}, data=b'{}')", bytes.escape_ascii()),
    }
}

fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if c.is_control() && u32::from(c) < 0x100 => out.extend(['\\', 'x', hex(c, 4), hex(c, 0)]),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// A digit of a character's number.
fn hex(c: char, shift: u32) -> char {
    char::from_digit(u32::from(c) >> shift & 0xf, 16).unwrap_or('0')
}

/// The shortest digits that read back as the number, with an exponent from 1e16 on and below 1e-4.
pub(super) fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if x != 0.0 && !(1e-4..1e16).contains(&x.abs()) {
        let text = format!("{x:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(("+", exponent), |rest| ("-", rest));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = format!("{x}");
    if text.contains('.') { text } else { format!("{text}.0") }
}

/// `str.splitlines()`
pub(super) fn lines(text: &str) -> Vec<&str> {
    let ends =
        |c| matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ends) {
        let (line, from_end) = rest.split_at(at);
        lines.push(line);
        let end =
            if from_end.starts_with("\r\n") { 2 } else { from_end.chars().next().map_or(1, char::len_utf8) };
        rest = from_end.get(end..).unwrap_or_default();
    }
    lines.extend((!rest.is_empty()).then_some(rest));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_are_written_as_python_does() {
        let floats = [1.0, 0.1, -2.5e-5, 1e16, 1.5e300, 123_456_789.125, 1e15, 0.0001, -0.0].map(float);
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
            ("a'b".into(), Value::Array(vec![Value::Nil, true.into(), "x\ny".into()])),
            (1.into(), Value::Binary(vec![0, b'a', 255])),
        ]);
        assert_eq!(repr(&value), r#"{"a'b": [None, True, 'x\ny'], 1: b'\x00a\xff'}"#);
        assert_eq!(text(&Value::Ext(78, b"20260203T04:05:06.000789".to_vec())), "2026-02-03 04:05:06.000789");
        assert_eq!(lines("a\r\nb\n\nc\u{2028}d\n"), ["a", "b", "", "c", "d"]);
    }
}
