//! Python's methods and `repr` of strings: characters, its own white space, printable characters.

use std::fmt::Write as _;

/// `str.isspace` of one character.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Line boundaries of `str.splitlines`.
fn is_line_end(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// `str.splitlines`
pub fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let Some(end) = rest.find(is_line_end) else {
            lines.push(rest);
            break;
        };

        let (line, tail) = rest.split_at(end);
        // The two characters are one line boundary.
        let len = if tail.starts_with("\r\n") {
            2
        } else {
            tail.chars().next().map_or(0, char::len_utf8)
        };

        let (_, after) = tail.split_at(len);
        lines.push(if keep_ends {
            rest.get(..end + len).unwrap_or(line)
        } else {
            line
        });

        rest = after;
    }

    lines
}

/// `str.split(maxsplit=max)` at white space
pub fn words(text: &str, max: Option<usize>) -> Vec<&str> {
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

/// The length in characters.
pub fn len(text: &str) -> usize {
    if text.is_ascii() {
        text.len()
    } else {
        text.chars().count()
    }
}

/// `\x..`, `\u....` or `\U........`
pub fn backslashed(c: char) -> String {
    let code = u32::from(c);
    match code {
        0..=0xff => format!("\\x{code:02x}"),
        0x100..=0xffff => format!("\\u{code:04x}"),
        _ => format!("\\U{code:08x}"),
    }
}

/// Whether `repr` leaves a character unescaped.
pub fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    let code = u32::from(c);

    // Unicode's categories "other" and "separator", which Python does not print.
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

/// `repr` of a string.
pub fn repr(text: &str, out: &mut String) {
    // Double quotes only where they save escapes.
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };

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
pub fn repr_bytes(bytes: &[u8], out: &mut String) {
    // As for strings.
    let quote = if bytes.contains(&b'\'') && !bytes.contains(&b'"') {
        b'"'
    } else {
        b'\''
    };

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
