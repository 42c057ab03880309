//! A JSON parser like Python's `json`: `NaN` and infinities, integers of any size, the last of equal keys.
//!
//! A lone surrogate is an error. Python accepts it and fails to encode it later.

use crate::limits::{INTEGER_DIGITS_MAX, SLS_BYTES_MAX, SLS_DEPTH_MAX};
use crate::value::{Key, Map, Value};

/// A syntax error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}: line {line} column {column} (char {at})")]
pub struct JsonError {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The offset in characters, from 0.
    pub at: usize,
    /// Python's message, if Python reports one.
    pub message: &'static str,
}

/// Parses one JSON value.
pub fn load(text: &str) -> Result<Value, JsonError> {
    let mut reader = Reader {
        text,
        bytes: text.as_bytes(),
        at: 0,
        depth: 0,
    };

    if text.len() > SLS_BYTES_MAX {
        return Err(reader.error(0, "The text is too large"));
    }
    if text.starts_with('\u{feff}') {
        return Err(reader.error(0, "Unexpected UTF-8 BOM (decode using utf-8-sig)"));
    }

    let value = reader.value()?;
    reader.skip_blanks();
    if reader.at < reader.bytes.len() {
        return Err(reader.error(reader.at, "Extra data"));
    }

    Ok(value)
}

struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn error(&self, at: usize, message: &'static str) -> JsonError {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        JsonError {
            line: before.matches('\n').count() + 1,
            column: before.get(line_start..).unwrap_or_default().chars().count() + 1,
            at: before.chars().count(),
            message,
        }
    }

    fn peek(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn value(&mut self) -> Result<Value, JsonError> {
        self.skip_blanks();
        match self.peek() {
            b'"' => self.string().map(Value::Str),
            b'{' => self.nested(Self::object),
            b'[' => self.nested(Self::array),
            _ => self.word(),
        }
    }

    fn nested(
        &mut self,
        read: fn(&mut Self) -> Result<Value, JsonError>,
    ) -> Result<Value, JsonError> {
        self.depth += 1;
        if self.depth > SLS_DEPTH_MAX {
            return Err(self.error(self.at, "The text is nested too deep"));
        }
        self.at += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn word(&mut self) -> Result<Value, JsonError> {
        const WORDS: [(&str, Value); 6] = [
            ("null", Value::Null),
            ("true", Value::Bool(true)),
            ("false", Value::Bool(false)),
            ("NaN", Value::Float(f64::NAN)),
            ("Infinity", Value::Float(f64::INFINITY)),
            ("-Infinity", Value::Float(f64::NEG_INFINITY)),
        ];

        for (word, value) in WORDS {
            if self.rest().starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }

        // Anything else can only be a number, and what is none gets Python's error for an
        // unexpected value.
        self.number()
    }

    fn number(&mut self) -> Result<Value, JsonError> {
        let begin = self.at;
        let digits = |from: usize| {
            let rest = self.bytes.get(from..).unwrap_or_default();
            from + rest.iter().take_while(|byte| byte.is_ascii_digit()).count()
        };
        let is = |at: usize, any: &[u8]| self.bytes.get(at).is_some_and(|byte| any.contains(byte));

        let first = begin + usize::from(is(begin, b"-"));
        // Nothing may follow a leading zero, so `01` is a number and extra data.
        let whole = if is(first, b"0") {
            first + 1
        } else {
            digits(first)
        };

        if whole == first {
            return Err(self.error(begin, "Expecting value"));
        }

        let mut end = whole;
        // A point without a digit behind it is extra data as well.
        if is(end, b".") && digits(end + 1) > end + 1 {
            end = digits(end + 1);
        }

        if is(end, b"eE") {
            let exponent = end + 1 + usize::from(is(end + 1, b"+-"));
            if digits(exponent) > exponent {
                end = digits(exponent);
            }
        }

        let text = self.text.get(begin..end).unwrap_or_default();
        self.at = end;

        if end > whole {
            return text
                .parse()
                .map(Value::Float)
                .map_err(|_| self.error(begin, "Expecting value"));
        }

        // As in Python, where the conversion takes quadratic time.
        if whole - first > INTEGER_DIGITS_MAX {
            return Err(self.error(begin, "Exceeds the limit for integers"));
        }

        Ok(text
            .parse()
            .map_or_else(|_| Value::BigInt(text.to_owned()), Value::Int))
    }

    fn array(&mut self) -> Result<Value, JsonError> {
        let mut items = Vec::new();
        self.skip_blanks();
        if self.peek() == b']' {
            self.at += 1;
            return Ok(Value::List(items));
        }

        loop {
            // A value must follow a comma, so `[1,]` is an error.
            items.push(self.value()?);

            self.skip_blanks();
            match self.peek() {
                b']' => {
                    self.at += 1;
                    return Ok(Value::List(items));
                }
                b',' => self.at += 1,
                _ => return Err(self.error(self.at, "Expecting ',' delimiter")),
            }
        }
    }

    fn object(&mut self) -> Result<Value, JsonError> {
        const NO_NAME: &str = "Expecting property name enclosed in double quotes";
        let mut map = Map::default();
        self.skip_blanks();
        if self.peek() == b'}' {
            self.at += 1;
            return Ok(Value::Map(map));
        }

        loop {
            // A name must follow a comma as well.
            self.skip_blanks();
            if self.peek() != b'"' {
                return Err(self.error(self.at, NO_NAME));
            }

            let key = self.string()?;
            self.skip_blanks();
            if self.peek() != b':' {
                return Err(self.error(self.at, "Expecting ':' delimiter"));
            }
            self.at += 1;
            let value = self.value()?;
            // The last of equal keys counts, as in Python.
            map.insert(Key(Value::Str(key)), value);

            self.skip_blanks();
            match self.peek() {
                b'}' => {
                    self.at += 1;
                    return Ok(Value::Map(map));
                }
                b',' => self.at += 1,
                _ => return Err(self.error(self.at, "Expecting ',' delimiter")),
            }
        }
    }

    fn string(&mut self) -> Result<String, JsonError> {
        let begin = self.at;
        self.at += 1;
        let mut text = String::new();

        loop {
            let from = self.at;
            // Pieces without escapes are copied as a whole.
            while !matches!(self.peek(), b'"' | b'\\' | 0..0x20) {
                self.at += 1;
            }
            text.push_str(self.text.get(from..self.at).unwrap_or_default());

            match self.peek() {
                b'"' => {
                    self.at += 1;
                    return Ok(text);
                }
                b'\\' => text.push(self.escape(begin)?),
                _ if self.at >= self.bytes.len() => {
                    return Err(self.error(begin, "Unterminated string starting at"));
                }
                _ => return Err(self.error(self.at, "Invalid control character at")),
            }
        }
    }

    fn escape(&mut self, begin: usize) -> Result<char, JsonError> {
        let c = match self.bytes.get(self.at + 1) {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\x08',
            Some(b'f') => '\x0c',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.code(),
            Some(_) => return Err(self.error(self.at, "Invalid \\escape")),
            None => return Err(self.error(begin, "Unterminated string starting at")),
        };

        self.at += 2;
        Ok(c)
    }

    /// `\uXXXX`, or two of them for a character of more than 16 bits.
    fn code(&mut self) -> Result<char, JsonError> {
        let begin = self.at;
        let first = self.unit()?;
        if let Some(c) = char::from_u32(first) {
            return Ok(c);
        }

        // The first half of a pair, which needs the second one.
        let lone = "Half of a surrogate pair";
        if first >= 0xdc00 || !self.rest().starts_with("\\u") {
            return Err(self.error(begin, lone));
        }

        let second = self.unit()?;
        let c = (0xdc00..0xe000)
            .contains(&second)
            .then(|| 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00));
        c.and_then(char::from_u32)
            .ok_or_else(|| self.error(begin, lone))
    }

    fn unit(&mut self) -> Result<u32, JsonError> {
        let digits = self.text.get(self.at + 2..self.at + 6).unwrap_or_default();
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(self.error(self.at + 1, "Invalid \\uXXXX escape"));
        }
        self.at += 6;
        Ok(u32::from_str_radix(digits, 16).unwrap_or(0xdfff))
    }
}
