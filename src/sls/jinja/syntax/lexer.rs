//! Text to tokens, by Jinja's rules for delimiters, white space and newlines.

use crate::sls::jinja::exc::{Exc, Kind, Res, not_native};
use crate::sls::jinja::options::Syntax;
use crate::sls::python::text::{self, is_space};

/// A token and its line.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token {
    pub(crate) line: u32,
    pub(crate) kind: Tok,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Tok {
    Data(String),
    BlockBegin,
    BlockEnd,
    VarBegin,
    VarEnd,
    Name(String),
    Str(String),
    Int(i128),
    Float(f64),
    Op(&'static str),
    Eof,
}

/// Longer ones before those that they begin with.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
    "=", ".", ":", "|", ",", ";",
];

pub(super) fn syntax_error(line: u32, message: impl Into<String>) -> Exc {
    Exc::new(Kind::Syntax, message.into()).at_line(line)
}

struct Lexer<'a> {
    syntax: &'a Syntax,
    source: &'a str,
    pos: usize,
    line: u32,
    /// Whether the last match ended a line.
    line_starting: bool,
    tokens: Vec<Token>,
}

/// What begins at a place of a template's text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    Raw,
    Comment,
    Block,
    Variable,
    LineStatement,
    LineComment,
}

/// The tokens of a template.
pub(super) fn tokens(source: &str, syntax: &Syntax) -> Res<Vec<Token>> {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    if !syntax.keep_trailing_newline && source.ends_with('\n') {
        source.pop();
    }
    let mut lexer =
        Lexer { syntax, source: &source, pos: 0, line: 1, line_starting: true, tokens: Vec::new() };
    lexer.root()?;
    let line = lexer.line;
    lexer.tokens.push(Token { line, kind: Tok::Eof });
    Ok(lexer.tokens)
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        self.source.get(self.pos..).unwrap_or_default()
    }

    fn push(&mut self, kind: Tok) {
        self.tokens.push(Token { line: self.line, kind });
    }

    /// Goes on by so many bytes.
    fn skip(&mut self, bytes: usize) {
        let skipped = self.rest().get(..bytes).unwrap_or_default();
        if !skipped.is_empty() {
            self.line_starting = skipped.ends_with('\n');
        }
        self.line += newlines(skipped);
        self.pos += bytes;
    }

    fn data(&mut self, text: &str) {
        if !text.is_empty() {
            let text = if self.syntax.newline == "\n" {
                text.to_owned()
            } else {
                text.replace('\n', &self.syntax.newline)
            };
            self.push(Tok::Data(text));
        }
    }

    fn root(&mut self) -> Res<()> {
        loop {
            let rest = self.rest();
            if rest.is_empty() {
                return Ok(());
            }
            let Some((offset, begin, len, sign)) = self.find_begin(rest) else {
                self.data(rest);
                self.skip(rest.len());
                return Ok(());
            };
            let text = rest.get(..offset).unwrap_or_default();
            self.data(self.stripped(text, begin, sign));
            self.skip(offset);
            let line_before = self.line;
            self.skip(len);
            let began = Token { line: line_before, kind: Tok::VarBegin };
            match begin {
                Begin::Raw => self.raw(line_before)?,
                Begin::Comment => self.comment(line_before)?,
                Begin::LineComment => {
                    let end = self.rest().find('\n').unwrap_or(self.rest().len());
                    self.skip(end);
                }
                Begin::Variable => {
                    self.tokens.push(began);
                    self.expression(begin)?;
                }
                Begin::Block | Begin::LineStatement => {
                    self.tokens.push(Token { kind: Tok::BlockBegin, ..began });
                    self.expression(begin)?;
                }
            }
        }
    }

    /// Text before a tag, as far as it is kept.
    fn stripped<'t>(&self, text: &'t str, begin: Begin, sign: Option<char>) -> &'t str {
        match sign {
            Some('-') => text.trim_end_matches(is_space),
            None if self.syntax.lstrip_blocks && begin != Begin::Variable => {
                let line = text.rfind('\n').map_or(0, |i| i + 1);
                let (before, last) = text.split_at(line);
                if (line > 0 || self.line_starting) && !last.is_empty() && last.chars().all(is_space) {
                    before
                } else {
                    text
                }
            }
            _ => text,
        }
    }

    /// The next tag: where, which, how long its beginning is, and its sign.
    fn find_begin(&self, rest: &str) -> Option<(usize, Begin, usize, Option<char>)> {
        let syntax = self.syntax;
        let mut kinds: Vec<(usize, &str, Begin, &str)> = vec![
            (syntax.comment.0.len(), "comment_begin", Begin::Comment, &syntax.comment.0),
            (syntax.block.0.len(), "block_begin", Begin::Block, &syntax.block.0),
            (syntax.variable.0.len(), "variable_begin", Begin::Variable, &syntax.variable.0),
        ];
        if let Some(prefix) = &syntax.line_statement {
            kinds.push((prefix.len(), "linestatement_begin", Begin::LineStatement, prefix));
        }
        if let Some(prefix) = &syntax.line_comment {
            kinds.push((prefix.len(), "linecomment_begin", Begin::LineComment, prefix));
        }
        kinds.sort_by(|a, b| (b.0, b.1).cmp(&(a.0, a.1)));
        let by_line = syntax.line_statement.is_some() || syntax.line_comment.is_some();
        for (offset, _) in rest.char_indices() {
            let here = rest.get(offset..)?;
            if !by_line && !kinds.iter().any(|(.., start)| here.starts_with(start)) {
                continue;
            }
            if let Some((len, sign)) = self.raw_begin(here) {
                return Some((offset, Begin::Raw, len, sign));
            }
            for (_, _, begin, start) in &kinds {
                let skipped = match begin {
                    Begin::LineStatement => {
                        if !self.line_begins(offset) {
                            continue;
                        }
                        here.len() - here.trim_start_matches([' ', '\t', '\x0b']).len()
                    }
                    Begin::LineComment => {
                        let before =
                            self.source.get(..self.pos + offset).and_then(|text| text.chars().next_back());
                        if !self.line_begins(offset) && before.is_none_or(is_space) {
                            continue;
                        }
                        here.len() - here.trim_start_matches(|c| is_space(c) && c != '\n' && c != '\r').len()
                    }
                    _ => 0,
                };
                if let Some(after) = here.get(skipped..).and_then(|here| here.strip_prefix(start)) {
                    let sign = after.chars().next().filter(|c| matches!(c, '-' | '+'));
                    return Some((offset, *begin, skipped + start.len() + usize::from(sign.is_some()), sign));
                }
            }
        }
        None
    }

    fn line_begins(&self, offset: usize) -> bool {
        let at = self.pos + offset;
        at == 0 || self.source.as_bytes().get(at - 1) == Some(&b'\n')
    }

    /// `{% raw %}` right here.
    fn raw_begin(&self, here: &str) -> Option<(usize, Option<char>)> {
        let after = here.strip_prefix(&self.syntax.block.0)?;
        let sign = after.chars().next().filter(|c| matches!(c, '-' | '+'));
        let after =
            after.get(usize::from(sign.is_some())..)?.trim_start_matches(is_space).strip_prefix("raw")?;
        let after = after.trim_start_matches(is_space);
        let end = &self.syntax.block.1;
        let after = match after.strip_prefix('-').and_then(|after| after.strip_prefix(end)) {
            Some(after) => after.trim_start_matches(is_space),
            None => after.strip_prefix(end)?,
        };
        Some((here.len() - after.len(), sign))
    }

    /// The end of a block, a comment or `raw` right here: how long it is.
    fn block_end(&self, here: &str, end: &str) -> Option<usize> {
        if let Some(after) = here.strip_prefix('+').and_then(|after| after.strip_prefix(end)) {
            return Some(here.len() - after.len());
        }
        if let Some(after) = here.strip_prefix('-').and_then(|after| after.strip_prefix(end)) {
            return Some(here.len() - after.trim_start_matches(is_space).len());
        }
        let after = here.strip_prefix(end)?;
        let after = if self.syntax.trim_blocks { after.strip_prefix('\n').unwrap_or(after) } else { after };
        Some(here.len() - after.len())
    }

    fn comment(&mut self, line: u32) -> Res<()> {
        let rest = self.rest();
        for (offset, _) in rest.char_indices() {
            if let Some(len) =
                rest.get(offset..).and_then(|here| self.block_end(here, &self.syntax.comment.1))
            {
                self.skip(offset + len);
                return Ok(());
            }
        }
        Err(syntax_error(line, "Missing end of comment tag"))
    }

    fn raw(&mut self, line: u32) -> Res<()> {
        let rest = self.rest();
        for (offset, _) in rest.match_indices(&self.syntax.block.0) {
            let here = rest.get(offset..).unwrap_or_default();
            let Some((len, sign)) = self.raw_end(here) else { continue };
            let text = rest.get(..offset).unwrap_or_default();
            self.data(self.stripped(text, Begin::Raw, sign));
            self.skip(offset + len);
            return Ok(());
        }
        Err(syntax_error(line, "Missing end of raw directive"))
    }

    fn raw_end(&self, here: &str) -> Option<(usize, Option<char>)> {
        let after = here.strip_prefix(&self.syntax.block.0)?;
        let sign = after.chars().next().filter(|c| matches!(c, '-' | '+'));
        let after =
            after.get(usize::from(sign.is_some())..)?.trim_start_matches(is_space).strip_prefix("endraw")?;
        let after = after.trim_start_matches(is_space);
        let len = self.block_end(after, &self.syntax.block.1)?;
        Some((here.len() - after.len() + len, sign))
    }

    /// The end of the tag that the lexer is in, if it is right here.
    fn tag_end(&self, begin: Begin) -> Option<usize> {
        let here = self.rest();
        match begin {
            Begin::Variable => {
                let end = &self.syntax.variable.1;
                if let Some(after) = here.strip_prefix('-').and_then(|after| after.strip_prefix(end)) {
                    return Some(here.len() - after.trim_start_matches(is_space).len());
                }
                here.strip_prefix(end).map(|after| here.len() - after.len())
            }
            Begin::LineStatement => {
                let after = here.trim_start_matches(is_space);
                if after.is_empty() {
                    return Some(here.len());
                }
                // As far as the last newline of this white space.
                let space = here.get(..here.len() - after.len())?;
                space.rfind('\n').map(|i| i + 1)
            }
            _ => self.block_end(here, &self.syntax.block.1),
        }
    }

    /// The tokens of a tag, its end included.
    fn expression(&mut self, begin: Begin) -> Res<()> {
        let mut open: Vec<&'static str> = Vec::new();
        loop {
            if open.is_empty()
                && let Some(len) = self.tag_end(begin)
            {
                self.push(if begin == Begin::Variable { Tok::VarEnd } else { Tok::BlockEnd });
                self.skip(len);
                return Ok(());
            }
            let here = self.rest();
            let Some(first) = here.chars().next() else {
                return if begin == Begin::LineStatement {
                    self.push(Tok::BlockEnd);
                    Ok(())
                } else {
                    // The parser says what it missed.
                    Ok(())
                };
            };
            if is_space(first) {
                self.skip(here.len() - here.trim_start_matches(is_space).len());
            } else if let Some((tok, len)) = self.number(here)? {
                self.push(tok);
                self.skip(len);
            } else if first == '_' || first.is_alphanumeric() {
                let end = here.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(here.len());
                let name = here.get(..end).unwrap_or_default();
                if first.is_numeric() {
                    return Err(syntax_error(self.line, "Invalid character in identifier"));
                }
                self.push(Tok::Name(name.to_owned()));
                self.skip(end);
            } else if let Some(len) = string(here) {
                let text = self.unescaped(here.get(1..len - 1).unwrap_or_default())?;
                self.push(Tok::Str(text));
                self.skip(len);
            } else if let Some(op) = OPERATORS.iter().find(|op| here.starts_with(**op)) {
                match *op {
                    "{" => open.push("}"),
                    "(" => open.push(")"),
                    "[" => open.push("]"),
                    "}" | ")" | "]" => match open.pop() {
                        None => return Err(syntax_error(self.line, format!("unexpected '{op}'"))),
                        Some(expected) if expected != *op => {
                            return Err(syntax_error(
                                self.line,
                                format!("unexpected '{op}', expected '{expected}'"),
                            ));
                        }
                        Some(_) => {}
                    },
                    _ => {}
                }
                self.push(Tok::Op(op));
                self.skip(op.len());
            } else {
                return Err(syntax_error(self.line, format!("unexpected char '{first}' at {}", self.pos)));
            }
        }
    }

    /// A number right here, and how long it is.
    fn number(&self, here: &str) -> Res<Option<(Tok, usize)>> {
        let bytes = here.as_bytes();
        if !bytes.first().is_some_and(u8::is_ascii_digit) {
            return Ok(None);
        }
        let after_dot = self.pos > 0 && self.source.as_bytes().get(self.pos - 1) == Some(&b'.');
        if !after_dot && let Some(len) = float(bytes) {
            let text: String = here.get(..len).unwrap_or_default().replace('_', "");
            let f = text.parse().map_err(|_| syntax_error(self.line, format!("bad number {text}")))?;
            return Ok(Some((Tok::Float(f), len)));
        }
        let (len, radix) = integer(bytes);
        let digits: String =
            here.get(if radix == 10 { 0 } else { 2 }..len).unwrap_or_default().replace('_', "");
        match i128::from_str_radix(&digits, radix) {
            Ok(i) => Ok(Some((Tok::Int(i), len))),
            Err(_) => Err(not_native(format!("an integer of {} digits", digits.len()))),
        }
    }

    /// What `unicode-escape` makes of a literal.
    fn unescaped(&self, raw: &str) -> Res<String> {
        let newlines = raw.replace('\n', &self.syntax.newline);
        let mut out = String::with_capacity(newlines.len());
        let mut chars = newlines.chars();
        while let Some(c) = chars.next() {
            if c != '\\' {
                out.push(c);
                continue;
            }
            let Some(escaped) = chars.next() else { break };
            match escaped {
                '\n' => {}
                '\\' | '\'' | '"' => out.push(escaped),
                'a' => out.push('\x07'),
                'b' => out.push('\x08'),
                'f' => out.push('\x0c'),
                'n' => out.push('\n'),
                'r' => out.push('\r'),
                't' => out.push('\t'),
                'v' => out.push('\x0b'),
                '0'..='7' => {
                    let mut code = escaped.to_digit(8).unwrap_or(0);
                    for _ in 0..2 {
                        let mut ahead = chars.clone();
                        let Some(digit) = ahead.next().and_then(|c| c.to_digit(8)) else { break };
                        code = code * 8 + digit;
                        chars = ahead;
                    }
                    out.push(char::from_u32(code).unwrap_or('\u{fffd}'));
                }
                'x' | 'u' | 'U' => {
                    let len = match escaped {
                        'x' => 2,
                        'u' => 4,
                        _ => 8,
                    };
                    let hex: String = chars.by_ref().take(len).collect();
                    let code = (hex.len() == len && hex.bytes().all(|b| b.is_ascii_hexdigit()))
                        .then(|| u32::from_str_radix(&hex, 16).ok())
                        .flatten()
                        .ok_or_else(|| syntax_error(self.line, format!("truncated \\{escaped} escape")))?;
                    match char::from_u32(code) {
                        Some(c) => out.push(c),
                        None if (0xd800..0xe000).contains(&code) => {
                            return Err(not_native("text with half a surrogate pair"));
                        }
                        None => return Err(syntax_error(self.line, "illegal Unicode character")),
                    }
                }
                'N' => return Err(not_native("a character by its name (\\N{..})")),
                // Jinja writes what is not ASCII as an escape first, and its backslash then belongs to this one.
                c if !c.is_ascii() => {
                    out.push('\\');
                    out.push_str(text::backslashed(c).trim_start_matches('\\'));
                }
                c => {
                    out.push('\\');
                    out.push(c);
                }
            }
        }
        Ok(out)
    }
}

fn newlines(text: &str) -> u32 {
    u32::try_from(text.bytes().filter(|b| *b == b'\n').count()).unwrap_or(u32::MAX)
}

/// The length of a string literal right here.
fn string(here: &str) -> Option<usize> {
    let bytes = here.as_bytes();
    let quote = *bytes.first().filter(|b| matches!(b, b'\'' | b'"'))?;
    let mut i = 1;
    loop {
        match *bytes.get(i)? {
            b'\\' => i += 2,
            b if b == quote => return Some(i + 1),
            _ => i += 1,
        }
    }
}

/// `(\d+_)*\d+` from here on.
fn digits(bytes: &[u8], from: usize) -> Option<usize> {
    let mut i = from;
    loop {
        let start = i;
        while bytes.get(i).is_some_and(u8::is_ascii_digit) {
            i += 1;
        }
        if i == start {
            // An underscore that no digit follows is not part of it.
            return (start > from + 1).then(|| start - 1);
        }
        if bytes.get(i) != Some(&b'_') {
            return Some(i);
        }
        i += 1;
    }
}

fn float(bytes: &[u8]) -> Option<usize> {
    let whole = digits(bytes, 0)?;
    let fraction = if bytes.get(whole) == Some(&b'.') { digits(bytes, whole + 1) } else { None };
    let mantissa = fraction.unwrap_or(whole);
    if matches!(bytes.get(mantissa), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(mantissa + 1), Some(b'+' | b'-')));
        if let Some(end) = digits(bytes, mantissa + 1 + sign) {
            return Some(end);
        }
    }
    fraction
}

fn integer(bytes: &[u8]) -> (usize, u32) {
    let run = |from: usize, ok: fn(&u8) -> bool| {
        let mut i = from;
        loop {
            let digit = if bytes.get(i) == Some(&b'_') { i + 1 } else { i };
            if !bytes.get(digit).is_some_and(ok) {
                return i;
            }
            i = digit + 1;
        }
    };
    if bytes.first() == Some(&b'0') {
        let radix: Option<(u32, fn(&u8) -> bool)> = match bytes.get(1) {
            Some(b'b' | b'B') => Some((2, |b| matches!(b, b'0' | b'1'))),
            Some(b'o' | b'O') => Some((8, |b| matches!(b, b'0'..=b'7'))),
            Some(b'x' | b'X') => Some((16, u8::is_ascii_hexdigit)),
            _ => None,
        };
        if let Some((radix, ok)) = radix {
            let end = run(2, ok);
            if end > 2 {
                return (end, radix);
            }
        }
        return (run(1, |b| *b == b'0'), 10);
    }
    (run(1, u8::is_ascii_digit), 10)
}
