//! Scalars: plain, quoted, literal and folded. Unchanged parts of the text are borrowed.

use std::borrow::Cow;

use super::error::YamlError;
use super::scan::{Mark, Scanner};

/// A scalar under construction: the converted part, and the start of the unchanged rest.
struct Building<'a> {
    done: Option<String>,
    from: usize,
    text: &'a str,
}

impl<'a> Building<'a> {
    fn take(&mut self, end: usize) -> &mut String {
        let piece = self.text.get(self.from..end).unwrap_or_default();
        let done = self.done.get_or_insert_default();
        done.push_str(piece);
        done
    }

    fn finish(mut self, end: usize) -> Cow<'a, str> {
        if self.done.is_none() {
            return Cow::Borrowed(self.text.get(self.from..end).unwrap_or_default());
        }
        Cow::Owned(std::mem::take(self.take(end)))
    }
}

/// Line breaks between two pieces of a scalar.
#[derive(Default)]
struct Breaks {
    first: &'static str,
    more: String,
}

impl Breaks {
    /// Folds breaks: a single line feed is a blank, of several the first is removed.
    fn fold(&self, to: &mut String) {
        if self.first == "\n" {
            to.push_str(if self.more.is_empty() {
                " "
            } else {
                &self.more
            });
        } else {
            to.push_str(self.first);
            to.push_str(&self.more);
        }
    }
}

impl<'a> Scanner<'a> {
    /// A plain scalar, and whether line breaks follow.
    pub(super) fn plain_scalar(&mut self, start: Mark) -> Result<(Cow<'a, str>, bool), YamlError> {
        let mut scalar = Building {
            done: None,
            from: self.pos,
            text: self.text,
        };
        let mut end = self.pos;
        let least_column = self.indent + 1;
        let mut breaks: Option<Breaks> = None;

        loop {
            // Both end the scalar at any indentation.
            if self.column() == 0 && self.document_indicator().is_some() || self.peek(0) == b'#' {
                break;
            }

            let begin = self.pos;
            self.skip_plain_characters(start)?;
            if self.pos > begin {
                if let Some(breaks) = breaks.take() {
                    breaks.fold(scalar.take(end));
                    scalar.from = begin;
                }
                end = self.pos;
            }

            if !self.is_blank(0) && !self.is_break(0) {
                break;
            }

            while self.is_blank(0) || self.is_break(0) {
                if self.is_break(0) {
                    let broken = self.skip_line();
                    match &mut breaks {
                        Some(breaks) => breaks.more.push_str(broken),
                        none => {
                            *none = Some(Breaks {
                                first: broken,
                                more: String::new(),
                            });
                        }
                    }
                } else if self.peek(0) == b' ' {
                    self.skip_while(|byte| byte == b' ');
                } else {
                    // A tab is no indentation, so it may not stand where indentation is required.
                    let column = i64::try_from(self.column()).unwrap_or(i64::MAX);
                    if breaks.is_some() && column < least_column {
                        return Err(self
                            .mark()
                            .error("found a tab character that violates indentation"));
                    }
                    self.pos += 1;
                }
            }

            // Outside of flow collections less indentation ends the scalar.
            let column = i64::try_from(self.column()).unwrap_or(i64::MAX);
            if !self.in_flow() && column < least_column {
                break;
            }
        }

        Ok((scalar.finish(end), breaks.is_some()))
    }

    /// The characters up to the next blank, break or indicator that ends a plain scalar.
    fn skip_plain_characters(&mut self, start: Mark) -> Result<(), YamlError> {
        let flow = self.in_flow();
        loop {
            // Most characters cannot end a scalar, so runs of them are skipped first.
            self.skip_while(|byte| {
                byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'/')
            });

            match self.peek(0) {
                b':' if self.is_blankz(1) => return Ok(()),
                // libyaml reads neither a key nor text here.
                b':' if flow && matches!(self.peek(1), b',' | b'?' | b'[' | b']' | b'{' | b'}') => {
                    return Err(start.error("found unexpected ':'"));
                }
                b',' | b'[' | b']' | b'{' | b'}' if flow => return Ok(()),
                0x21..0x80 => self.pos += 1,
                _ if self.is_blankz(0) => return Ok(()),
                _ => self.skip_char(),
            }
        }
    }

    /// A scalar in single or double quotes.
    pub(super) fn quoted_scalar(
        &mut self,
        start: Mark,
        quote: u8,
    ) -> Result<Cow<'a, str>, YamlError> {
        self.pos += 1;
        let mut scalar = Building {
            done: None,
            from: self.pos,
            text: self.text,
        };

        loop {
            // Quotes do not hide a document indicator.
            if self.column() == 0 && self.document_indicator().is_some() {
                return Err(self.mark().error("found unexpected document indicator"));
            }
            if self.at_end() {
                return Err(start.error("found unexpected end of stream"));
            }

            let mut breaks = self.quoted_characters(&mut scalar, quote)?;
            if self.peek(0) == quote {
                break;
            }

            // Blanks are kept, unless they are around a line break.
            let end = self.pos;
            while self.is_blank(0) || self.is_break(0) {
                if self.is_blank(0) {
                    self.pos += 1;
                    continue;
                }
                let broken = self.skip_line();
                match &mut breaks {
                    Some(breaks) => breaks.more.push_str(broken),
                    none => {
                        scalar.take(end);
                        *none = Some(Breaks {
                            first: broken,
                            more: String::new(),
                        });
                    }
                }
            }

            if let Some(breaks) = breaks {
                breaks.fold(scalar.done.get_or_insert_default());
                scalar.from = self.pos;
            }
        }

        let scalar = scalar.finish(self.pos);
        self.pos += 1;
        Ok(scalar)
    }

    /// The characters up to the next blank, break or closing quote. An escaped line break at the end starts the
    /// following breaks: it yields nothing itself, and the text before it is complete.
    fn quoted_characters(
        &mut self,
        scalar: &mut Building<'a>,
        quote: u8,
    ) -> Result<Option<Breaks>, YamlError> {
        loop {
            match self.peek(0) {
                b'\'' if quote == b'\'' && self.peek(1) == b'\'' => {
                    // Two quotes stand for one.
                    scalar.take(self.pos + 1);
                    self.pos += 2;
                    scalar.from = self.pos;
                }
                byte if byte == quote => return Ok(None),
                b'\\' if quote == b'"' => {
                    scalar.take(self.pos);
                    if self.is_break(1) {
                        self.pos += 1;
                        self.skip_line();
                        scalar.from = self.pos;
                        return Ok(Some(Breaks::default()));
                    }

                    let c = self.escape()?;
                    scalar.done.get_or_insert_default().push(c);
                    scalar.from = self.pos;
                }
                0x21..0x80 => self.pos += 1,
                _ if self.is_blankz(0) => return Ok(None),
                _ => self.skip_char(),
            }
        }
    }

    fn escape(&mut self) -> Result<char, YamlError> {
        let c = match self.peek(1) {
            b'0' => '\0',
            b'a' => '\x07',
            b'b' => '\x08',
            b't' | b'\t' => '\t',
            b'n' => '\n',
            b'v' => '\x0b',
            b'f' => '\x0c',
            b'r' => '\r',
            b'e' => '\x1b',
            b' ' => ' ',
            b'"' => '"',
            b'/' => '/',
            b'\\' => '\\',
            b'N' => '\u{85}',
            b'_' => '\u{a0}',
            b'L' => '\u{2028}',
            b'P' => '\u{2029}',
            b'x' => return self.code(2),
            b'u' => return self.code(4),
            b'U' => return self.code(8),
            _ => return Err(self.mark().error("found unknown escape character")),
        };

        self.pos += 2;
        Ok(c)
    }

    /// A character by its code in this number of digits.
    fn code(&mut self, digits: usize) -> Result<char, YamlError> {
        self.pos += 2;
        let text = self
            .text
            .get(self.pos..self.pos + digits)
            .unwrap_or_default();
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(self.mark().error("did not find expected hexdecimal number"));
        }

        // Surrogates are not characters.
        let code = u32::from_str_radix(text, 16).ok().and_then(char::from_u32);
        let c = code.ok_or_else(|| {
            self.mark()
                .error("found invalid Unicode character escape code")
        })?;

        self.pos += digits;
        Ok(c)
    }

    /// A literal or folded scalar, with its header.
    pub(super) fn block_scalar(&mut self, start: Mark, literal: bool) -> Result<String, YamlError> {
        self.pos += 1;
        let mut chomping = None;
        let mut increment = 0;

        // Both indicators are optional, in either order.
        for _ in 0..2 {
            match self.peek(0) {
                sign @ (b'+' | b'-') if chomping.is_none() => chomping = Some(sign),
                b'0' if increment == 0 => {
                    return Err(self
                        .mark()
                        .error("found an indentation indicator equal to 0"));
                }
                digit @ b'1'..=b'9' if increment == 0 => increment = i64::from(digit - b'0'),
                _ => break,
            }
            self.pos += 1;
        }

        self.skip_blanks();
        self.skip_comment();
        if !self.is_breakz(0) {
            return Err(self
                .mark()
                .error("did not find expected comment or line break"));
        }
        self.skip_line();

        // An indicator counts from the collection around the scalar. Without one the first line
        // decides.
        let mut indent = if increment > 0 {
            self.indent.max(0) + increment
        } else {
            0
        };

        let mut text = String::new();
        let mut breaks = Breaks::default();
        let mut was_blank = false;

        self.block_breaks(start, &mut indent, &mut breaks.more)?;
        while i64::try_from(self.column()) == Ok(indent) && !self.at_end() {
            let blank = self.is_blank(0);

            // Folding joins lines, except around those that begin with a blank.
            if !literal && breaks.first == "\n" && !was_blank && !blank {
                if breaks.more.is_empty() {
                    text.push(' ');
                }
            } else {
                text.push_str(breaks.first);
            }

            text.push_str(&breaks.more);
            breaks.more.clear();
            was_blank = blank;

            let begin = self.pos;
            while !self.is_breakz(0) {
                self.skip_char();
            }
            text.push_str(self.since(begin));

            breaks.first = self.skip_line();
            self.block_breaks(start, &mut indent, &mut breaks.more)?;
        }

        // By default one final break stays, with `-` none, with `+` all of them.
        if chomping != Some(b'-') {
            text.push_str(breaks.first);
        }
        if chomping == Some(b'+') {
            text.push_str(&breaks.more);
        }

        Ok(text)
    }

    /// Skips indentation and empty lines. An unknown indentation (0) becomes the indentation of the
    /// longest line.
    fn block_breaks(
        &mut self,
        start: Mark,
        indent: &mut i64,
        breaks: &mut String,
    ) -> Result<(), YamlError> {
        let mut longest = 0;

        loop {
            // While the indentation is unknown, all blanks belong to it.
            let inside =
                |column: usize| *indent == 0 || i64::try_from(column).unwrap_or(i64::MAX) < *indent;
            while inside(self.column()) && self.peek(0) == b' ' {
                self.pos += 1;
            }

            longest = longest.max(self.column());
            if inside(self.column()) && self.peek(0) == b'\t' {
                let message = "found a tab character where an indentation space is expected";
                return Err(start.error(message));
            }

            if !self.is_break(0) {
                break;
            }
            breaks.push_str(self.skip_line());
        }

        // At least one column deeper than the collection around it.
        if *indent == 0 {
            *indent = i64::try_from(longest)
                .unwrap_or(i64::MAX)
                .max(self.indent + 1)
                .max(1);
        }
        Ok(())
    }
}
