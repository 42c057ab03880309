//! Strings from peers, made safe for a terminal and for a log of lines.
//!
//! # Invariant
//!
//! The result contains no character that a terminal executes or that a reader does not see.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Escapes the control characters that JSON permits unescaped. They occur only within strings,
/// where the escape is equivalent.
pub fn json_plain(text: &str) -> Cow<'_, str> {
    escape(
        text,
        |c| is_unsafe(c) && c > ' ',
        |out, c| {
            c.encode_utf16(&mut [0; 2])
                .iter()
                .try_for_each(|unit| write!(out, "\\u{unit:04x}"))
        },
    )
}

/// Escapes all characters that move the cursor, start a line, change the text direction, or are
/// invisible.
pub fn plain(text: &str) -> Cow<'_, str> {
    escape(text, is_unsafe, |out, c| match c {
        '\n' => out.write_str("\\n"),
        '\r' => out.write_str("\\r"),
        '\t' => out.write_str("\\t"),
        c if u32::from(c) < 0x100 => write!(out, "\\x{:02x}", u32::from(c)),
        c => write!(out, "\\u{{{:x}}}", u32::from(c)),
    })
}

fn escape(
    text: &str,
    is_unsafe: impl Fn(char) -> bool,
    write: impl Fn(&mut String, char) -> std::fmt::Result,
) -> Cow<'_, str> {
    // Most text needs no copy.
    if !text.contains(&is_unsafe) {
        return Cow::Borrowed(text);
    }

    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unsafe(c) {
            // Writing to a String cannot fail.
            let _ = write(&mut out, c);
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

fn is_unsafe(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control();
    }

    // Line separators and bidirectional controls; then characters that are invisible or render as
    // blanks.
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{61c}')
        || matches!(
            c,
            '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'
                ..='\u{180f}'
        )
        || matches!(c, '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}')
        || matches!(c, '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;

    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(plain("gr\u{fc}n"), "gr\u{fc}n");
        assert_eq!(
            plain("\x1b[2J\n\r\t\x7f\u{9b}x\u{202e}y"),
            r"\x1b[2J\n\r\t\x7f\x9bx\u{202e}y"
        );
        let json = Json::from("\x1b\x7f\u{9b}2J\u{202e}");
        let text = json.to_string();
        assert_eq!(json_plain(&text), r#""\u001b\u007f\u009b2J\u202e""#);
        assert_eq!(
            serde_json::from_str::<Json>(&json_plain(&text)).unwrap(),
            json
        );
        assert_eq!(
            plain("web\u{200b}1 \u{feff}\u{e0041}"),
            r"web\u{200b}1 \u{feff}\u{e0041}"
        );
        let json = Json::from("web\u{200b}1\u{e0041}");
        let text = json_plain(&json.to_string()).into_owned();
        assert_eq!(text, r#""web\u200b1\udb40\udc41""#);
        assert_eq!(serde_json::from_str::<Json>(&text).unwrap(), json);
    }
}
