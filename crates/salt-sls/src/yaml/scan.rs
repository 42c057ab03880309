//! Text to tokens by libyaml's rules: first characters, indentation, and simple keys, which only their colon identifies.
//!
//! A token may be the start of a simple key, so tokens are queued until that is decided. A simple key has at most one line and
//! 1024 characters.

use std::borrow::Cow;
use std::collections::VecDeque;

use super::error::YamlError;

/// Maximum length of a simple key in characters.
const SIMPLE_KEY_CHARS_MAX: u32 = 1024;

/// A position in the text: characters from the start, line and column, from 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) index: u32,
    pub(super) line: u32,
    pub(super) column: u32,
}

impl Mark {
    pub(super) fn error(self, message: impl Into<String>) -> YamlError {
        YamlError {
            line: self.line as usize + 1,
            column: self.column as usize + 1,
            message: message.into(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token<'a> {
    StreamEnd,
    Version {
        major: u32,
        minor: u32,
    },
    /// Handle and prefix; boxed as tags are, which keeps other tokens small.
    TagDirective(Box<(String, String)>),
    DocumentStart,
    DocumentEnd,
    BlockSequenceStart,
    BlockMappingStart,
    BlockEnd,
    FlowSequenceStart,
    FlowSequenceEnd,
    FlowMappingStart,
    FlowMappingEnd,
    BlockEntry,
    FlowEntry,
    Key,
    Value,
    Alias(&'a str),
    Anchor(&'a str),
    /// Handle and suffix.
    Tag(Box<(String, String)>),
    Scalar {
        text: Cow<'a, str>,
        plain: bool,
    },
}

/// A possible start of a simple key.
#[derive(Debug, Clone, Copy, Default)]
struct SimpleKey {
    possible: bool,
    required: bool,
    token: usize,
    mark: Mark,
}

pub(super) struct Scanner<'a> {
    pub(super) text: &'a str,
    bytes: &'a [u8],
    /// The next byte.
    pub(super) pos: usize,
    line: u32,
    /// The start of the line.
    line_start: usize,
    /// Continuation bytes before `pos`, and before `line_start`.
    inner: usize,
    line_inner: usize,
    /// The next token, if `ready`; those that follow it are in the queue.
    next: (Token<'a>, Mark),
    ready: bool,
    tokens: VecDeque<(Token<'a>, Mark)>,
    /// Number of tokens taken from the queue.
    taken: usize,
    /// The column of the current block collection; -1 outside.
    pub(super) indent: i64,
    indents: Vec<i64>,
    key_allowed: bool,
    /// Of the innermost context: the block context, or an open flow collection.
    simple_key: SimpleKey,
    /// Of the contexts around it.
    outer_keys: Vec<SimpleKey>,
    ended: bool,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        // The text is decoded, so a byte order mark is ignored.
        let pos = if text.starts_with('\u{feff}') { 3 } else { 0 };

        Self {
            text,
            bytes: text.as_bytes(),
            pos,
            line: 0,
            line_start: pos,
            inner: 0,
            line_inner: 0,
            next: (Token::StreamEnd, Mark::default()),
            ready: false,
            tokens: VecDeque::with_capacity(8),
            taken: 0,
            indent: -1,
            indents: Vec::with_capacity(8),
            key_allowed: true,
            simple_key: SimpleKey::default(),
            outer_keys: Vec::new(),
            ended: false,
        }
    }

    /// The next token, which stays.
    #[inline]
    pub(super) fn peek_token(&mut self) -> Result<&Token<'a>, YamlError> {
        if !self.ready {
            self.fill()?;
        }
        Ok(&self.next.0)
    }

    /// The position of the next token.
    #[inline]
    pub(super) fn token_mark(&mut self) -> Result<Mark, YamlError> {
        self.peek_token()?;
        Ok(self.next.1)
    }

    /// Removes the token that was peeked.
    #[inline]
    pub(super) fn skip_token(&mut self) {
        self.ready = false;
    }

    /// Removes the next token.
    #[inline]
    pub(super) fn next_token(&mut self) -> Result<Token<'a>, YamlError> {
        self.peek_token()?;
        self.ready = false;
        Ok(std::mem::replace(&mut self.next.0, Token::StreamEnd))
    }

    /// Scans until the next token is final.
    fn fill(&mut self) -> Result<(), YamlError> {
        while self.tokens.is_empty() && !self.ended || self.first_may_be_key()? {
            self.fetch()?;
        }
        self.taken += 1;
        self.next = self
            .tokens
            .pop_front()
            .unwrap_or_else(|| (Token::StreamEnd, self.mark()));
        self.ready = true;
        Ok(())
    }

    fn first_may_be_key(&mut self) -> Result<bool, YamlError> {
        if self.tokens.is_empty() || !self.simple_key.possible && self.outer_keys.is_empty() {
            return Ok(false);
        }
        self.drop_stale_keys()?;
        let taken = self.taken;
        let is_first = |key: &SimpleKey| key.possible && key.token == taken;
        Ok(is_first(&self.simple_key) || self.outer_keys.iter().any(is_first))
    }

    #[inline(never)]
    fn fetch(&mut self) -> Result<(), YamlError> {
        self.skip_to_token();
        self.drop_stale_keys()?;

        let mark = self.mark();
        // Indentation ends collections, whatever the token is.
        self.unroll(i64::from(mark.column));

        let Some(first) = self.bytes.get(self.pos).copied() else {
            return self.stream_end();
        };

        // Directives and document indicators stand at the beginning of a line only.
        if mark.column == 0 {
            if first == b'%' {
                self.line_of_its_own()?;
                let token = self.directive(mark)?;
                return self.push(token, mark);
            }
            if let Some(token) = self.document_indicator() {
                self.line_of_its_own()?;
                self.pos += 3;
                return self.push(token, mark);
            }
        }

        let blank_next = self.is_blankz(1);
        let flow = self.in_flow();
        match first {
            b'[' => self.flow_start(Token::FlowSequenceStart),
            b'{' => self.flow_start(Token::FlowMappingStart),
            b']' => self.flow_end(Token::FlowSequenceEnd),
            b'}' => self.flow_end(Token::FlowMappingEnd),
            b',' => {
                self.forget_key()?;
                self.key_allowed = true;
                self.indicator(Token::FlowEntry)
            }
            b'-' if blank_next => self.block_entry(),
            b'?' if blank_next || flow => self.key(),
            b':' if blank_next || flow => self.value(),
            b'*' | b'&' => {
                self.save_key()?;
                self.key_allowed = false;
                let token = self.anchor(mark)?;
                self.push(token, mark)
            }
            b'!' => {
                self.save_key()?;
                self.key_allowed = false;
                let token = self.tag(mark)?;
                self.push(token, mark)
            }
            b'|' | b'>' if !flow => {
                self.forget_key()?;
                self.key_allowed = true;
                // It ends with a line, so a key may follow.
                let text = self.block_scalar(mark, first == b'|')?;
                self.push(
                    Token::Scalar {
                        text: text.into(),
                        plain: false,
                    },
                    mark,
                )
            }
            b'\'' | b'"' => {
                self.save_key()?;
                self.key_allowed = false;
                let text = self.quoted_scalar(mark, first)?;
                self.push_scalar(Token::Scalar { text, plain: false }, mark)
            }
            _ if self.begins_plain(first) => {
                self.save_key()?;
                self.key_allowed = false;
                let (text, crossed_line) = self.plain_scalar(mark)?;
                // A key may begin behind a line break.
                self.key_allowed |= crossed_line;
                self.push_scalar(Token::Scalar { text, plain: true }, mark)
            }
            _ => Err(mark.error(match first {
                b'\t' => "found character '\\t' that cannot start any token".to_owned(),
                _ => "found character that cannot start any token".to_owned(),
            })),
        }
    }

    fn begins_plain(&self, first: u8) -> bool {
        match first {
            b'-' => !self.is_blank(1),
            b'?' | b':' => !self.in_flow() && !self.is_blankz(1),
            b',' | b'[' | b']' | b'{' | b'}' | b'#' | b'&' | b'*' | b'!' | b'|' | b'>' | b'\''
            | b'"' | b'%' | b'@' | b'`' => false,
            _ => !self.is_blankz(0),
        }
    }

    fn stream_end(&mut self) -> Result<(), YamlError> {
        self.unroll(-1);
        self.forget_key()?;
        self.key_allowed = false;
        self.ended = true;

        // Open simple keys end here without a colon.
        if self.column() > 0 {
            self.line += 1;
            self.line_start = self.pos;
            self.line_inner = self.inner;
        }

        let mark = self.mark();
        self.push(Token::StreamEnd, mark)
    }

    /// Directives and document indicators end all block collections.
    fn line_of_its_own(&mut self) -> Result<(), YamlError> {
        self.unroll(-1);
        self.forget_key()?;
        self.key_allowed = false;
        Ok(())
    }

    /// `---` or `...`; the caller has checked the start of the line.
    pub(super) fn document_indicator(&self) -> Option<Token<'a>> {
        if !self.is_blankz(3) {
            return None;
        }
        match self.bytes.get(self.pos..self.pos + 3)? {
            b"---" => Some(Token::DocumentStart),
            b"..." => Some(Token::DocumentEnd),
            _ => None,
        }
    }

    fn flow_start(&mut self, token: Token<'a>) -> Result<(), YamlError> {
        self.save_key()?;
        self.outer_keys.push(std::mem::take(&mut self.simple_key));
        self.key_allowed = true;
        self.indicator(token)
    }

    fn flow_end(&mut self, token: Token<'a>) -> Result<(), YamlError> {
        self.forget_key()?;
        if let Some(key) = self.outer_keys.pop() {
            self.simple_key = key;
        }
        self.key_allowed = false;
        self.indicator(token)
    }

    fn block_entry(&mut self) -> Result<(), YamlError> {
        if !self.in_flow() {
            let mark = self.mark();
            if !self.key_allowed {
                return Err(mark.error("block sequence entries are not allowed in this context"));
            }
            self.roll(mark, None, Token::BlockSequenceStart);
        }
        self.forget_key()?;
        self.key_allowed = true;
        self.indicator(Token::BlockEntry)
    }

    fn key(&mut self) -> Result<(), YamlError> {
        if !self.in_flow() {
            let mark = self.mark();
            if !self.key_allowed {
                return Err(mark.error("mapping keys are not allowed in this context"));
            }
            self.roll(mark, None, Token::BlockMappingStart);
        }
        self.forget_key()?;
        self.key_allowed = !self.in_flow();
        self.indicator(Token::Key)
    }

    fn value(&mut self) -> Result<(), YamlError> {
        let key = self.simple_key;
        if key.possible {
            let at = key.token - self.taken;
            // The key was scanned as a scalar, before its colon was known.
            self.tokens.insert(at, (Token::Key, key.mark));
            self.roll(key.mark, Some(at), Token::BlockMappingStart);
            self.simple_key.possible = false;
            self.key_allowed = false;
        } else {
            // A value after `?`, or one with an empty key.
            if !self.in_flow() {
                let mark = self.mark();
                if !self.key_allowed {
                    return Err(mark.error("mapping values are not allowed in this context"));
                }
                self.roll(mark, None, Token::BlockMappingStart);
            }
            self.key_allowed = !self.in_flow();
        }

        self.indicator(Token::Value)
    }

    fn indicator(&mut self, token: Token<'a>) -> Result<(), YamlError> {
        let mark = self.mark();
        self.pos += 1;
        self.push(token, mark)
    }

    /// A scalar directly before a colon is a key, which needs no queue.
    fn push_scalar(&mut self, token: Token<'a>, mark: Mark) -> Result<(), YamlError> {
        let key = self.simple_key;
        let is_key =
            key.possible && key.token == self.taken + self.tokens.len() && !self.is_stale(&key);
        if !(is_key && self.peek(0) == b':' && (self.is_blankz(1) || self.in_flow())) {
            return self.push(token, mark);
        }

        self.simple_key.possible = false;
        self.roll(mark, None, Token::BlockMappingStart);
        self.tokens.push_back((Token::Key, mark));
        self.tokens.push_back((token, mark));
        self.indicator(Token::Value)
    }

    #[expect(clippy::unnecessary_wraps, reason = "the last step of every fetch")]
    fn push(&mut self, token: Token<'a>, mark: Mark) -> Result<(), YamlError> {
        self.tokens.push_back((token, mark));
        Ok(())
    }

    /// Records the current token as a possible simple key, where one is permitted.
    fn save_key(&mut self) -> Result<(), YamlError> {
        if self.key_allowed {
            let mark = self.mark();
            let required = !self.in_flow() && self.indent == i64::from(mark.column);
            self.forget_key()?;
            let token = self.taken + self.tokens.len();
            self.simple_key = SimpleKey {
                possible: true,
                required,
                token,
                mark,
            };
        }
        Ok(())
    }

    fn forget_key(&mut self) -> Result<(), YamlError> {
        let key = &mut self.simple_key;
        if key.possible && key.required {
            return Err(key.mark.error("could not find expected ':'"));
        }
        key.possible = false;
        Ok(())
    }

    /// True for a key that started on an earlier line or too far back.
    fn is_stale(&self, key: &SimpleKey) -> bool {
        key.mark.line < self.line || key.mark.index + SIMPLE_KEY_CHARS_MAX < self.mark().index
    }

    /// Drops possible keys that are stale.
    fn drop_stale_keys(&mut self) -> Result<(), YamlError> {
        for at in 0..=self.outer_keys.len() {
            let key = *self.outer_keys.get(at).unwrap_or(&self.simple_key);
            if key.possible && self.is_stale(&key) {
                if key.required {
                    return Err(self.mark().error("could not find expected ':'"));
                }
                self.outer_keys
                    .get_mut(at)
                    .unwrap_or(&mut self.simple_key)
                    .possible = false;
            }
        }
        Ok(())
    }

    /// Starts a block collection if this column is deeper than the current one.
    fn roll(&mut self, mark: Mark, at: Option<usize>, token: Token<'a>) {
        let column = i64::from(mark.column);
        if !self.in_flow() && self.indent < column {
            self.indents.push(self.indent);
            self.indent = column;
            match at {
                Some(at) => self.tokens.insert(at, (token, mark)),
                None => self.tokens.push_back((token, mark)),
            }
        }
    }

    /// Ends block collections deeper than `column`.
    fn unroll(&mut self, column: i64) {
        if self.in_flow() {
            return;
        }
        while self.indent > column {
            let mark = self.mark();
            self.tokens.push_back((Token::BlockEnd, mark));
            self.indent = self.indents.pop().unwrap_or(-1);
        }
    }

    /// Skips blanks, comments and line breaks. A tab is not indentation.
    fn skip_to_token(&mut self) {
        loop {
            // libyaml ignores a byte order mark at the beginning of any line.
            if self.pos == self.line_start
                && self.peek(0) == 0xef
                && self.rest().starts_with('\u{feff}')
            {
                self.skip_char();
            }

            let tabs = self.in_flow() || !self.key_allowed;
            self.skip_while(|byte| byte == b' ' || tabs && byte == b'\t');
            self.skip_comment();

            if !self.is_break(0) {
                return;
            }

            self.skip_line();
            if !self.in_flow() {
                self.key_allowed = true;
            }
        }
    }

    pub(super) fn in_flow(&self) -> bool {
        !self.outer_keys.is_empty()
    }

    pub(super) fn mark(&self) -> Mark {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Mark {
            index: number(self.pos - self.inner),
            line: self.line,
            column: number(self.column()),
        }
    }

    pub(super) fn column(&self) -> usize {
        (self.pos - self.line_start) - (self.inner - self.line_inner)
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.pos..).unwrap_or_default()
    }

    /// The text from `start` to the current position.
    pub(super) fn since(&self, start: usize) -> &'a str {
        self.text.get(start..self.pos).unwrap_or_default()
    }

    /// The byte at this distance; zero, which no text contains, after the end.
    pub(super) fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.pos + ahead).copied().unwrap_or(0)
    }

    pub(super) fn at_end(&self) -> bool {
        self.pos >= self.bytes.len()
    }

    pub(super) fn is_blank(&self, ahead: usize) -> bool {
        matches!(self.peek(ahead), b' ' | b'\t')
    }

    /// CR, LF, NEL, LS or PS.
    pub(super) fn is_break(&self, ahead: usize) -> bool {
        match self.peek(ahead) {
            b'\r' | b'\n' => true,
            0xc2 => self.peek(ahead + 1) == 0x85,
            0xe2 => self.peek(ahead + 1) == 0x80 && matches!(self.peek(ahead + 2), 0xa8 | 0xa9),
            _ => false,
        }
    }

    pub(super) fn is_breakz(&self, ahead: usize) -> bool {
        self.peek(ahead) == 0 || self.is_break(ahead)
    }

    pub(super) fn is_blankz(&self, ahead: usize) -> bool {
        self.is_blank(ahead) || self.is_breakz(ahead)
    }

    pub(super) fn skip_char(&mut self) {
        let width = match self.peek(0) {
            0..0x80 => 1,
            0x80..0xe0 => 2,
            0xe0..0xf0 => 3,
            _ => 4,
        };
        self.pos += width;
        self.inner += width - 1;
    }

    /// Skips bytes, which must be ASCII and no line breaks.
    #[inline]
    pub(super) fn skip_while(&mut self, is: impl Fn(u8) -> bool) {
        let rest = self.bytes.get(self.pos..).unwrap_or_default();
        self.pos += rest
            .iter()
            .position(|byte| !is(*byte))
            .unwrap_or(rest.len());
    }

    pub(super) fn skip_blanks(&mut self) {
        self.skip_while(|byte| matches!(byte, b' ' | b'\t'));
    }

    pub(super) fn skip_comment(&mut self) {
        if self.peek(0) == b'#' {
            while !self.is_breakz(0) {
                self.skip_char();
            }
        }
    }

    /// Skips a line break, if any, and returns its normalized form.
    pub(super) fn skip_line(&mut self) -> &'static str {
        let (broken, stands_for) = match (self.peek(0), self.peek(1), self.peek(2)) {
            (b'\r', b'\n', _) | (0xc2, 0x85, _) => (2, "\n"),
            (b'\r' | b'\n', ..) => (1, "\n"),
            (0xe2, 0x80, 0xa8) => (3, "\u{2028}"),
            (0xe2, 0x80, 0xa9) => (3, "\u{2029}"),
            _ => return "",
        };

        // Columns count characters, so continuation bytes are counted apart.
        if self.peek(0) >= 0x80 {
            self.inner += broken - 1;
        }
        self.pos += broken;
        self.line += 1;

        self.line_start = self.pos;
        self.line_inner = self.inner;

        stands_for
    }
}
