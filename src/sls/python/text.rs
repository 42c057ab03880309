//! Text as Python sees it: by characters, with its own idea of white space, lines and letters.

use std::fmt::Write as _;

/// `str.isspace` of one character.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// What ends a line for `str.splitlines`.
fn is_line_end(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// `str.splitlines`
pub(crate) fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let Some(end) = rest.find(is_line_end) else {
            lines.push(rest);
            break;
        };
        let (line, tail) = rest.split_at(end);
        let len = if tail.starts_with("\r\n") { 2 } else { tail.chars().next().map_or(0, char::len_utf8) };
        let (_, after) = tail.split_at(len);
        lines.push(if keep_ends { rest.get(..end + len).unwrap_or(line) } else { line });
        rest = after;
    }
    lines
}

/// `str.split()` at white space, at most so often.
pub(crate) fn words(text: &str, max: Option<usize>) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        if max.is_some_and(|max| words.len() >= max) {
            words.push(rest.trim_end_matches(is_space));
            break;
        }
        let end = rest.find(is_space).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        words.push(word);
        rest = tail.trim_start_matches(is_space);
    }
    words
}

/// `str.rsplit()` at white space, at most so often.
pub(crate) fn words_from_right(text: &str, max: Option<usize>) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() {
        if max.is_some_and(|max| words.len() >= max) {
            words.push(rest.trim_start_matches(is_space));
            break;
        }
        let start =
            rest.char_indices().rev().find(|(_, c)| is_space(*c)).map_or(0, |(i, c)| i + c.len_utf8());
        let (tail, word) = rest.split_at(start);
        words.push(word);
        rest = tail.trim_end_matches(is_space);
    }
    words.reverse();
    words
}

/// How many characters.
pub(crate) fn len(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.chars().count() }
}

/// The character at a byte: its place.
pub(crate) fn place_of(text: &str, byte: usize) -> usize {
    text.get(..byte).map_or(0, len)
}

/// `\x..`, `\u....` or `\U........`
pub(crate) fn backslashed(c: char) -> String {
    let code = u32::from(c);
    match code {
        0..=0xff => format!("\\x{code:02x}"),
        0x100..=0xffff => format!("\\u{code:04x}"),
        _ => format!("\\U{code:08x}"),
    }
}

/// Whether Python prints a character of a text as it is.
pub(crate) fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    let code = u32::from(c);
    let unprintable = c.is_control()
        || (c.is_whitespace())
        || matches!(code,
            0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x890 | 0x891 | 0x8e2 | 0x180e | 0x200b..=0x200f
            | 0x2028..=0x202e | 0x2060..=0x206f | 0xe000..=0xf8ff | 0xfdd0..=0xfdef | 0xfeff | 0xfff0..=0xfffb
            | 0x110bd | 0x110cd | 0x13430..=0x1343f | 0x1bca0..=0x1bca3 | 0x1d173..=0x1d17a | 0xe0000..=0xe0fff
            | 0xf0000..=0x0010_ffff)
        || code & 0xfffe == 0xfffe;
    !unprintable
}

/// `repr` of a text.
pub(crate) fn repr(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            c => out.push_str(&backslashed(c)),
        }
    }
    out.push(quote);
}

/// `repr` of bytes.
pub(crate) fn repr_bytes(bytes: &[u8], out: &mut String) {
    let quote = if bytes.contains(&b'\'') && !bytes.contains(&b'"') { b'"' } else { b'\'' };
    out.push('b');
    out.push(char::from(quote));
    for b in bytes {
        match b {
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            b if *b == quote => {
                out.push('\\');
                out.push(char::from(*b));
            }
            b' '..=b'~' => out.push(char::from(*b)),
            b => {
                let _ = write!(out, "\\x{b:02x}");
            }
        }
    }
    out.push(char::from(quote));
}

/// Whether letters are compared by Unicode's title case.
fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || is_title(c)
}

fn is_title(c: char) -> bool {
    matches!(u32::from(c), 0x1c5 | 0x1c8 | 0x1cb | 0x1f2)
}

/// A character in title case.
fn title_of(c: char, out: &mut String) {
    match u32::from(c) {
        0x1c4..=0x1c6 => out.push('\u{1c5}'),
        0x1c7..=0x1c9 => out.push('\u{1c8}'),
        0x1ca..=0x1cc => out.push('\u{1cb}'),
        0x1f1..=0x1f3 => out.push('\u{1f2}'),
        0xdf => out.push_str("Ss"),
        _ => {
            // One upper-case letter of several is followed by lower-case ones: `ﬁ` becomes `Fi`.
            let mut upper = c.to_uppercase();
            out.extend(upper.next());
            for c in upper {
                out.extend(c.to_lowercase());
            }
        }
    }
}

/// `str.capitalize`
pub(crate) fn capitalize(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    if let Some(first) = chars.next() {
        title_of(first, &mut out);
    }
    out.push_str(&chars.as_str().to_lowercase());
    out
}

/// `str.title`
pub(crate) fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            title_of(c, &mut out);
        }
        inside = is_cased(c);
    }
    out
}

/// `str.islower`
pub(crate) fn is_lower(text: &str) -> bool {
    text.chars().any(char::is_lowercase) && !text.chars().any(|c| c.is_uppercase() || is_title(c))
}

/// `str.isupper`
pub(crate) fn is_upper(text: &str) -> bool {
    text.chars().any(char::is_uppercase) && !text.chars().any(|c| c.is_lowercase() || is_title(c))
}
