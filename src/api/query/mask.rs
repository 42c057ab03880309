//! Masks what differs between two failures for the same reason: names, paths and numbers.

/// What replaces a path.
const PATH: &str = "<path>";
/// What replaces the minion's name.
const MINION: &str = "<minion>";
/// What replaces a number.
const NUMBER: char = '#';

/// Bytes from which on a name is looked for.
const NAME_MIN: usize = 3;

/// Hexadecimal digits from which on a word with a digit is a number: commits, ids of containers.
const HEX_MIN: usize = 7;

/// A line with the name of its minion, paths and numbers masked.
pub(crate) fn masked(line: &str, minion: &str) -> String {
    let line = without_name(line, minion);
    let mut text = String::with_capacity(line.len());

    let mut rest = line.as_str();
    let mut before = ' ';
    while let Some(c) = rest.chars().next() {
        let taken = if let Some(len) = path_len(rest, before) {
            text.push_str(PATH);
            len
        } else if let Some(status) = http_status(rest, before) {
            text.push_str(status);
            status.len()
        } else if let Some(len) = number_len(rest, before) {
            text.push(NUMBER);
            len
        } else {
            text.push(c);
            c.len_utf8()
        };

        let (done, left) = rest.split_at(taken);
        before = done.chars().next_back().unwrap_or(' ');
        rest = left;
    }
    text
}

/// The line with the minion's id, and then the host name in it, replaced.
fn without_name(line: &str, minion: &str) -> String {
    let host = minion.split('.').next().unwrap_or_default();
    let mut line = line.to_owned();
    for name in [minion, host] {
        // A short one is a common word.
        if name.len() >= NAME_MIN {
            line = replaced(&line, name);
        }
    }
    line
}

/// Replaces a name where it is a word.
fn replaced(line: &str, name: &str) -> String {
    let is_in_word = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    let mut before = None;
    while let Some((head, tail)) = rest.split_once(name) {
        text.push_str(head);
        before = head.chars().next_back().or(before);
        let is_word = !before.is_some_and(is_in_word) && !tail.starts_with(is_in_word);
        text.push_str(if is_word { MINION } else { name });
        before = name.chars().next_back();
        rest = tail;
    }
    text.push_str(rest);
    text
}

/// The bytes of the path that a string begins with: `/a`, `C:\a`, `salt://a`.
fn path_len(text: &str, before: char) -> Option<usize> {
    // Within a word, as in `and/or`, a slash begins no path.
    if before.is_alphanumeric() || matches!(before, '/' | '\\' | '>' | '_' | '-' | '.') {
        return None;
    }

    let is_end = |c: char| {
        c.is_whitespace()
            || c.is_control()
            || matches!(
                c,
                '\'' | '"' | '`' | ',' | ';' | '(' | ')' | '<' | '>' | '[' | ']' | '{' | '}' | '|'
            )
    };
    let word = text.split(is_end).next().unwrap_or_default();
    // The punctuation of the sentence is no part of it.
    let word = word.trim_end_matches(['.', ':', '!', '?']);

    let mut chars = word.chars();
    let (first, second, third) = (chars.next()?, chars.next()?, chars.next());
    let is_unix = first == '/' && second != '/';
    let is_windows = first.is_ascii_alphabetic() && second == ':' && third == Some('\\');
    let scheme = word.split_once("://").map(|(scheme, _)| scheme);
    let is_address = scheme.is_some_and(|scheme| {
        !scheme.is_empty()
            && scheme
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '+')
    });
    (is_unix || is_windows || is_address).then_some(word.len())
}

/// Codes of failed requests, with the first word of their reason phrases (RFC 9110, section 15.5 and 15.6; RFC 6585). Another number before a
/// word is no status: `120 Seconds`.
const HTTP_STATUSES: [(&str, &str); 19] = [
    ("400", "Bad"),
    ("401", "Unauthorized"),
    ("403", "Forbidden"),
    ("404", "Not"),
    ("405", "Method"),
    ("406", "Not"),
    ("407", "Proxy"),
    ("408", "Request"),
    ("409", "Conflict"),
    ("410", "Gone"),
    ("412", "Precondition"),
    ("416", "R"),
    ("429", "Too"),
    ("500", "Internal"),
    ("501", "Not"),
    ("502", "Bad"),
    ("503", "Service"),
    ("504", "Gateway"),
    ("505", "HTTP"),
];

/// The status code and the reason phrase's first letter that a string begins with, as in `404 Not Found` (RFC 9112, section 4). It
/// names the cause, and is not one of the numbers that differ.
fn http_status(text: &str, before: char) -> Option<&str> {
    if before.is_alphanumeric() {
        return None;
    }
    let (code, phrase) = (text.get(..4)?.strip_suffix(' ')?, text.get(4..)?);
    let is_it = |(known, word): &(&str, &str)| code == *known && phrase.starts_with(word);
    HTTP_STATUSES
        .iter()
        .any(is_it)
        .then(|| text.get(..5))
        .flatten()
}

/// The bytes of the number that a string begins with: digits, or a word of hexadecimal digits.
fn number_len(text: &str, before: char) -> Option<usize> {
    if !before.is_alphanumeric() {
        let is_word = |c: char| c.is_ascii_alphanumeric();
        let word = text.find(|c| !is_word(c)).unwrap_or(text.len());
        let word = text.get(..word)?;
        let is_hex = word.len() >= HEX_MIN
            && word.chars().all(|c| c.is_ascii_hexdigit())
            // A digit is required, because words such as `facade` consist of hexadecimal digits as
            // well.
            && word.chars().any(|c| c.is_ascii_digit());
        let is_0x = word.strip_prefix("0x").is_some_and(|digits| {
            !digits.is_empty() && digits.chars().all(|c| c.is_ascii_hexdigit())
        });
        if is_hex || is_0x {
            return Some(word.len());
        }
    }

    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    (digits > 0).then_some(digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_paths_and_numbers_are_masked() {
        for (line, minion, expected) in [
            (
                "Host web1.example.net is down",
                "web1.example.net",
                "Host <minion> is down",
            ),
            (
                "Host web1 is down (web12, xweb1)",
                "web1.example.net",
                "Host <minion> is down (web#, xweb#)",
            ),
            (
                "Unable to write /etc/nginx/nginx.conf: No space",
                "a",
                "Unable to write <path>: No space",
            ),
            (
                "Source file salt://web/x.conf not found in saltenv 'base'",
                "a",
                "Source file <path> not found in saltenv 'base'",
            ),
            (r"Cannot open C:\Temp\x1.log.", "a", "Cannot open <path>."),
            (
                "timed out after 30.5 s, pid 4711",
                "a",
                "timed out after #.# s, pid #",
            ),
            ("commit 9fceb02d0ae5 is missing", "a", "commit # is missing"),
            ("at 0xffee in 10.0.0.7:8080", "a", "at # in #.#.#.#:#"),
            (
                "get https://repo.example.org/a?b=1, then",
                "a",
                "get <path>, then",
            ),
            (
                "read/write error and/or 5",
                "a",
                "read/write error and/or #",
            ),
            (
                "Failed to fetch http://a/b: 404 Not Found, 3 tries",
                "a",
                "Failed to fetch <path>: 404 Not Found, # tries",
            ),
            ("took 404 seconds, x404 Not", "a", "took # seconds, x# Not"),
            (
                "after 120 Seconds, port 443 Failed",
                "a",
                "after # Seconds, port # Failed",
            ),
            ("WIN-RDS29 refused", "WIN-RDS29", "<minion> refused"),
            ("decade facade added", "a", "decade facade added"),
            ("", "web1", ""),
        ] {
            assert_eq!(masked(line, minion), expected, "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_masked_once(line in ".{0,80}", minion in "[a-z0-9.]{0,8}") {
            let text = masked(&line, &minion);
            // Only the codes of statuses are left, and masking them again changes nothing.
            let digits = text.bytes().filter(u8::is_ascii_digit).count();
            let statuses = text.as_bytes().windows(5).filter(|w| matches!(w, [b'1'..=b'5', _, _, b' ', b'A'..=b'Z']));
            prop_assert_eq!(digits, 3 * statuses.count());
        }
    }
}
