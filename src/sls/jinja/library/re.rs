//! Python's regular expressions: translated, compiled once, and run with a bound.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use fancy_regex::{Captures, Regex, RegexBuilder};

use crate::limits;
use crate::sls::jinja::budget;
use crate::sls::jinja::exc::{Exc, Kind, Res, limit_error, not_native, other_error};
use crate::sls::jinja::values::val::Val;

thread_local! {
    static COMPILED: RefCell<HashMap<(String, bool, bool), Rc<Regex>>> = RefCell::new(HashMap::new());
}

/// Where a match must be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    Start,
    Anywhere,
    /// From the first character to the last.
    Whole,
}

fn bad(message: impl Into<String>) -> Exc {
    Exc::new(Kind::Other, message)
}

/// A pattern, compiled.
pub(crate) fn compile(pattern: &str, at: At, ignore_case: bool, multiline: bool) -> Res<Rc<Regex>> {
    let translated = translate(pattern, multiline)?;
    let translated = match at {
        At::Start => format!(r"\A(?:{translated})"),
        At::Whole => format!(r"\A(?:{translated})\z"),
        At::Anywhere => translated,
    };
    let key = (translated, ignore_case, multiline);
    if let Some(regex) = COMPILED.with_borrow(|compiled| compiled.get(&key).cloned()) {
        return Ok(regex);
    }
    budget::steps(key.0.len() as u64 * 10)?;
    let flags = match (ignore_case, multiline) {
        (true, true) => "(?im)",
        (true, false) => "(?i)",
        (false, true) => "(?m)",
        _ => "",
    };
    let regex = RegexBuilder::new(&format!("{flags}{}", key.0))
        .backtrack_limit(limits::JINJA_BACKTRACK_MAX)
        .delegate_size_limit(limits::JINJA_PATTERN_BYTES_MAX)
        .build()
        .map_err(|error| not_native(format!("the regular expression {pattern:?}: {error}")))?;
    let regex = Rc::new(regex);
    COMPILED.with_borrow_mut(|compiled| {
        if compiled.len() >= limits::JINJA_PATTERNS_KEPT {
            compiled.clear();
        }
        compiled.insert(key, Rc::clone(&regex));
    });
    Ok(regex)
}

/// A pattern of Python as one of ours.
fn translate(pattern: &str, multiline: bool) -> Res<String> {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut chars = pattern.chars().peekable();
    let mut rest = pattern;
    while let Some(c) = chars.next() {
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
        let mut taken = 0;
        match c {
            '\\' => {
                let Some(escaped) = chars.peek().copied() else {
                    return Err(bad("bad escape (end of pattern)"));
                };
                taken = 1;
                match escaped {
                    'Z' => out.push_str(r"\z"),
                    '0' => {
                        let digits: String =
                            rest.chars().take(3).take_while(|c| ('0'..='7').contains(c)).collect();
                        taken = digits.len();
                        let code = u32::from_str_radix(&digits, 8).unwrap_or(0);
                        out.push_str(&format!("\\x{{{code:x}}}"));
                    }
                    'A'
                    | 'b'
                    | 'B'
                    | 'd'
                    | 'D'
                    | 's'
                    | 'S'
                    | 'w'
                    | 'W'
                    | 'a'
                    | 'f'
                    | 'n'
                    | 'r'
                    | 't'
                    | 'v'
                    | 'x'
                    | 'u'
                    | 'U'
                    | '1'..='9' => {
                        out.push('\\');
                        out.push(escaped);
                    }
                    c if c.is_ascii_alphabetic() => return Err(bad(format!("bad escape \\{c}"))),
                    c => push_literal(c, &mut out),
                }
            }
            '$' if !multiline => out.push_str(r"(?=\n?\z)"),
            '[' => {
                taken = class(rest, &mut out)?;
            }
            '{' => {
                let end = rest.find('}').unwrap_or(0);
                let inner = rest.get(..end).unwrap_or_default();
                let is_count = !inner.is_empty()
                    && inner.bytes().all(|b| b.is_ascii_digit() || b == b',')
                    && inner.bytes().filter(|b| *b == b',').count() <= 1
                    && inner != ",";
                if is_count {
                    out.push('{');
                    if inner.starts_with(',') {
                        out.push('0');
                    }
                    out.push_str(inner);
                    out.push('}');
                    taken = end + 1;
                } else {
                    out.push_str(r"\{");
                }
            }
            '}' => out.push_str(r"\}"),
            '(' if rest.starts_with("?#") => {
                let end = rest.find(')').ok_or_else(|| bad("missing ), unterminated comment"))?;
                taken = rest.get(..=end).map_or(0, |comment| comment.chars().count());
            }
            '(' if rest.starts_with('?') => {
                let flags: String =
                    rest.chars().skip(1).take_while(|c| c.is_ascii_alphabetic() || *c == '-').collect();
                let after = rest.chars().nth(1 + flags.len());
                if !flags.is_empty() && matches!(after, Some(')' | ':')) && !flags.starts_with('P') {
                    if flags.contains(['a', 'L']) {
                        return Err(not_native(format!(
                            "the regular expression {pattern:?}: flag (?{flags})"
                        )));
                    }
                    let kept = flags.replace('u', "");
                    if kept.is_empty() && after == Some(')') {
                        taken = flags.len() + 2;
                    } else {
                        out.push_str("(?");
                        out.push_str(&kept);
                        taken = flags.len() + 1;
                    }
                } else {
                    out.push('(');
                }
            }
            c => out.push(c),
        }
        for _ in 0..taken {
            if let Some(c) = chars.next() {
                rest = rest.get(c.len_utf8()..).unwrap_or_default();
            }
        }
    }
    Ok(out)
}

fn push_literal(c: char, out: &mut String) {
    if c.is_ascii_punctuation() && !matches!(c, '<' | '>') {
        out.push('\\');
    }
    out.push(c);
}

/// A class of characters; how many characters of the pattern it takes.
fn class(rest: &str, out: &mut String) -> Res<usize> {
    let chars: Vec<char> = rest.chars().collect();
    let at = |i: usize| chars.get(i).copied();
    out.push('[');
    let mut i = 0;
    if at(0) == Some('^') {
        out.push('^');
        i = 1;
    }
    let first = i;
    loop {
        match at(i) {
            None => return Err(bad("unterminated character set")),
            Some(']') if i > first => {
                out.push(']');
                return Ok(i + 1);
            }
            Some('\\') => {
                i += 1;
                match at(i) {
                    None => return Err(bad("unterminated character set")),
                    Some('b') => out.push_str(r"\x08"),
                    Some(
                        c @ ('d' | 'D' | 's' | 'S' | 'w' | 'W' | 'a' | 'f' | 'n' | 'r' | 't' | 'v' | 'x'
                        | 'u' | 'U'),
                    ) => {
                        out.push('\\');
                        out.push(c);
                    }
                    Some('0'..='7') => {
                        let digits: String =
                            chars.iter().skip(i).take(3).take_while(|c| ('0'..='7').contains(*c)).collect();
                        i += digits.len() - 1;
                        out.push_str(&format!("\\x{{{:x}}}", u32::from_str_radix(&digits, 8).unwrap_or(0)));
                    }
                    Some(c) if c.is_ascii_alphanumeric() => return Err(bad(format!("bad escape \\{c}"))),
                    Some(c) => push_literal(c, out),
                }
            }
            Some('-') => out.push('-'),
            Some(c @ ('[' | ']' | '&' | '~' | '^')) => {
                out.push('\\');
                out.push(c);
            }
            Some(c) => out.push(c),
        }
        // Two hyphens are a subtraction to us.
        if out.ends_with("--") {
            out.pop();
            out.push_str(r"\-");
        }
        i += 1;
    }
}

fn failed(error: &fancy_regex::Error) -> Exc {
    match error {
        fancy_regex::Error::RuntimeError(fancy_regex::RuntimeError::BacktrackLimitExceeded) => limit_error(
            format!("a regular expression backtracks more than {} times", limits::JINJA_BACKTRACK_MAX),
        ),
        other => other_error(other.to_string()),
    }
}

/// Whether a pattern matches.
pub(crate) fn is_match(regex: &Regex, text: &str) -> Res<bool> {
    budget::steps(text.len() as u64 / 16)?;
    regex.is_match(text).map_err(|error| failed(&error))
}

fn group(captures: &Captures<'_, str>, i: usize) -> Val {
    captures.get(i).map_or(Val::None, |found| Val::from(found.as_str()))
}

/// The groups of the first match, or all of it if there are none; `None` without a match.
pub(crate) fn groups(regex: &Regex, text: &str) -> Res<Val> {
    budget::steps(text.len() as u64 / 16)?;
    let Some(captures) = regex.captures(text).map_err(|error| failed(&error))? else { return Ok(Val::None) };
    let items = if captures.len() == 1 {
        vec![group(&captures, 0)]
    } else {
        (1..captures.len()).map(|i| group(&captures, i)).collect()
    };
    Ok(Val::tuple(items))
}

/// A piece of what replaces a match.
enum Piece {
    Text(String),
    Group(usize),
}

/// `re.sub(pattern, template, text)`
pub(crate) fn replace(regex: &Regex, text: &str, template: &str) -> Res<String> {
    let pieces = pieces(regex, template)?;
    let mut out = String::with_capacity(text.len());
    let (mut pos, mut copied) = (0, 0);
    let mut must_advance = false;
    while pos <= text.len() {
        budget::steps(1 + (text.len() - pos) as u64 / 64)?;
        let Some(captures) = regex.captures_from_pos(text, pos).map_err(|error| failed(&error))? else {
            break;
        };
        let Some(whole) = captures.get(0) else { break };
        let (start, end) = (whole.start(), whole.end());
        if must_advance && start == end && start == pos {
            // An empty match right after another is none; one character on it may be one again.
            let Some(c) = text.get(pos..).and_then(|rest| rest.chars().next()) else { break };
            pos += c.len_utf8();
            must_advance = false;
            continue;
        }
        out.push_str(text.get(copied..start).unwrap_or_default());
        for piece in &pieces {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Group(i) => out.push_str(captures.get(*i).map_or("", |found| found.as_str())),
            }
        }
        budget::room(out.len())?;
        copied = end;
        must_advance = start == end;
        pos = end;
    }
    out.push_str(text.get(copied..).unwrap_or_default());
    Ok(out)
}

fn pieces(regex: &Regex, template: &str) -> Res<Vec<Piece>> {
    let count = regex.captures_len();
    let group = |i: usize| {
        if i < count { Ok(Piece::Group(i)) } else { Err(bad(format!("invalid group reference {i}"))) }
    };
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut chars = template.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\\' {
            text.push(c);
            continue;
        }
        let Some(escaped) = chars.next() else { return Err(bad("bad escape (end of pattern)")) };
        match escaped {
            'g' => {
                if chars.next() != Some('<') {
                    return Err(bad("missing <"));
                }
                let mut name = String::new();
                loop {
                    match chars.next() {
                        Some('>') => break,
                        Some(c) => name.push(c),
                        None => return Err(bad("missing >, unterminated name")),
                    }
                }
                pieces.push(Piece::Text(std::mem::take(&mut text)));
                pieces.push(match name.parse::<usize>() {
                    Ok(i) => group(i)?,
                    Err(_) => {
                        let at = regex.capture_names().position(|known| known == Some(name.as_str()));
                        group(
                            at.ok_or_else(|| Exc::new(Kind::Lookup, format!("unknown group name '{name}'")))?,
                        )?
                    }
                });
            }
            '1'..='9' => {
                let mut digits = String::from(escaped);
                while digits.len() < 2
                    && let Some(digit) = chars.next_if(char::is_ascii_digit)
                {
                    digits.push(digit);
                }
                pieces.push(Piece::Text(std::mem::take(&mut text)));
                pieces.push(group(digits.parse().unwrap_or(usize::MAX))?);
            }
            '0' => {
                let mut digits = String::new();
                while digits.len() < 2
                    && let Some(digit) = chars.next_if(|c| ('0'..='7').contains(c))
                {
                    digits.push(digit);
                }
                text.push(u32::from_str_radix(&digits, 8).ok().and_then(char::from_u32).unwrap_or('\0'));
            }
            'a' => text.push('\x07'),
            'b' => text.push('\x08'),
            'f' => text.push('\x0c'),
            'n' => text.push('\n'),
            'r' => text.push('\r'),
            't' => text.push('\t'),
            'v' => text.push('\x0b'),
            '\\' => text.push('\\'),
            c if c.is_ascii_alphabetic() => return Err(bad(format!("bad escape \\{c}"))),
            c => {
                text.push('\\');
                text.push(c);
            }
        }
    }
    pieces.push(Piece::Text(text));
    Ok(pieces)
}

/// `re.escape`
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(
            c,
            '\t' | '\n'
                | '\r'
                | '\x0b'
                | '\x0c'
                | ' '
                | '#'
                | '$'
                | '&'
                | '('
                | ')'
                | '*'
                | '+'
                | '-'
                | '.'
                | '?'
                | '['
                | '\\'
                | ']'
                | '^'
                | '{'
                | '|'
                | '}'
                | '~'
        ) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}
