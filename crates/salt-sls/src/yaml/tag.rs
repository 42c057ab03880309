//! Anchors, aliases, tags and directives.

use super::error::YamlError;
use super::scan::{Mark, Scanner, Token};

/// Digits of a version number.
const VERSION_DIGITS_MAX: usize = 9;

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

impl<'a> Scanner<'a> {
    /// `&name` or `*name`.
    pub(super) fn anchor(&mut self, start: Mark) -> Result<Token<'a>, YamlError> {
        let is_alias = self.peek(0) == b'*';
        self.pos += 1;
        let name = self.word();

        let ends = self.is_blankz(0)
            || matches!(
                self.peek(0),
                b'?' | b':' | b',' | b']' | b'}' | b'%' | b'@' | b'`'
            );

        if name.is_empty() || !ends {
            let what = if is_alias { "an alias" } else { "an anchor" };
            let message = format!(
                "while scanning {what}: did not find expected alphabetic or numeric character"
            );
            return Err(start.error(message));
        }

        Ok(if is_alias {
            Token::Alias(name)
        } else {
            Token::Anchor(name)
        })
    }

    /// `!<uri>`, `!suffix`, `!!suffix`, `!handle!suffix` or `!`.
    pub(super) fn tag(&mut self, start: Mark) -> Result<Token<'a>, YamlError> {
        let (handle, suffix);
        if self.peek(1) == b'<' {
            // A verbatim tag contains no handle.
            self.pos += 2;
            suffix = self.uri(start, true, "")?;
            handle = String::new();
            if self.peek(0) != b'>' {
                return Err(start.error("while scanning a tag: did not find the expected '>'"));
            }
            self.pos += 1;
        } else {
            let found = self.handle();
            if found.len() > 1 && found.ends_with('!') {
                suffix = self.uri(start, false, "")?;
                handle = found.to_owned();
            } else {
                let rest = self.uri(start, false, found)?;
                // A lone `!` is a complete tag.
                (handle, suffix) = if rest.is_empty() {
                    (rest, "!".to_owned())
                } else {
                    ("!".to_owned(), rest)
                };
            }
        }

        let ends = self.is_blankz(0) || self.in_flow() && self.peek(0) == b',';
        if !ends {
            return Err(self
                .mark()
                .error("did not find expected whitespace or line break"));
        }

        Ok(Token::Tag(Box::new((handle, suffix))))
    }

    /// `%YAML` or `%TAG`, with its line.
    pub(super) fn directive(&mut self, start: Mark) -> Result<Token<'a>, YamlError> {
        self.pos += 1;
        let name = self.word();
        if name.is_empty() {
            return Err(
                start.error("while scanning a directive: could not find expected directive name")
            );
        }

        if !self.is_blankz(0) {
            return Err(self
                .mark()
                .error("found unexpected non-alphabetical character"));
        }

        let token = match name {
            "YAML" => {
                self.skip_blanks();
                let major = self.version_number(start)?;
                if self.peek(0) != b'.' {
                    return Err(self
                        .mark()
                        .error("did not find expected digit or '.' character"));
                }
                self.pos += 1;
                Token::Version {
                    major,
                    minor: self.version_number(start)?,
                }
            }
            "TAG" => self.tag_directive(start)?,
            // YAML allows other directives and ignores them, libyaml does not.
            _ => {
                return Err(start.error("while scanning a directive: found unknown directive name"));
            }
        };

        self.skip_blanks();
        self.skip_comment();
        if !self.is_breakz(0) {
            return Err(self
                .mark()
                .error("did not find expected comment or line break"));
        }

        self.skip_line();
        Ok(token)
    }

    fn version_number(&mut self, start: Mark) -> Result<u32, YamlError> {
        let begin = self.pos;
        while self.peek(0).is_ascii_digit() {
            self.pos += 1;
        }
        match self.since(begin) {
            "" => Err(start.error("did not find expected version number")),
            digits if digits.len() > VERSION_DIGITS_MAX => {
                Err(start.error("found extremely long version number"))
            }
            digits => digits
                .parse()
                .map_err(|_| start.error("did not find expected version number")),
        }
    }

    fn tag_directive(&mut self, start: Mark) -> Result<Token<'a>, YamlError> {
        self.skip_blanks();
        let handle = if self.peek(0) == b'!' {
            self.handle()
        } else {
            ""
        };

        // `!`, `!!`, or a word between two of them.
        if handle != "!" && (handle.len() < 2 || !handle.ends_with('!')) {
            return Err(start.error("while parsing a tag directive: did not find expected '!'"));
        }
        if !self.is_blank(0) {
            return Err(self.mark().error("did not find expected whitespace"));
        }

        self.skip_blanks();
        let prefix = self.uri(start, true, "")?;
        if !self.is_blankz(0) {
            return Err(self
                .mark()
                .error("did not find expected whitespace or line break"));
        }

        Ok(Token::TagDirective(Box::new((handle.to_owned(), prefix))))
    }

    /// `!`, the following word, and a second `!` if present.
    fn handle(&mut self) -> &'a str {
        let begin = self.pos;
        self.pos += 1;
        self.word();
        if self.peek(0) == b'!' {
            self.pos += 1;
        }
        self.since(begin)
    }

    fn word(&mut self) -> &'a str {
        let begin = self.pos;
        while is_word(self.peek(0)) {
            self.pos += 1;
        }
        self.since(begin)
    }

    /// A URI, or the rest of one whose start was parsed as a handle, including `!`. It may contain flow indicators only if it is
    /// `verbatim`.
    fn uri(&mut self, start: Mark, verbatim: bool, head: &str) -> Result<String, YamlError> {
        let mut bytes = head.as_bytes().get(1..).unwrap_or_default().to_vec();
        let mut is_empty = head.is_empty();

        loop {
            match self.peek(0) {
                b'%' => self.octets(start, &mut bytes)?,
                // Outside of `<...>` these belong to the collection around the tag.
                b',' | b'[' | b']' if !verbatim => break,
                byte if is_word(byte) || b";/?:@&=+$.!~*'(),[]".contains(&byte) => {
                    bytes.push(byte);
                    self.pos += 1;
                }
                _ => break,
            }
            is_empty = false;
        }

        if is_empty {
            return Err(start.error("while parsing a tag: did not find expected tag URI"));
        }

        String::from_utf8(bytes).map_err(|_| start.error("while parsing a tag: it is no UTF-8"))
    }

    /// A character in `%xx` notation, one for each byte.
    fn octets(&mut self, start: Mark, to: &mut Vec<u8>) -> Result<(), YamlError> {
        let mut left = 0;
        loop {
            let octet = self
                .text
                .get(self.pos + 1..self.pos + 3)
                .filter(|_| self.peek(0) == b'%');
            let octet =
                octet.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
            let octet = octet.and_then(|digits| u8::from_str_radix(digits, 16).ok());
            let octet = octet.ok_or_else(|| {
                start.error("while parsing a tag: did not find URI escaped octet")
            })?;

            // The first byte tells how many follow.
            if left == 0 {
                left = match octet {
                    0..0x80 => 1,
                    0xc0..0xe0 => 2,
                    0xe0..0xf0 => 3,
                    0xf0..0xf8 => 4,
                    _ => {
                        return Err(start
                            .error("while parsing a tag: found an incorrect leading UTF-8 octet"));
                    }
                };
            } else if octet & 0xc0 != 0x80 {
                return Err(
                    start.error("while parsing a tag: found an incorrect trailing UTF-8 octet")
                );
            }

            to.push(octet);
            self.pos += 3;
            left -= 1;

            if left == 0 {
                return Ok(());
            }
        }
    }
}
