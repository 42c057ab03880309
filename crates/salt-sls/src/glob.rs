//! Patterns for tags and names, with the rules of Python's `fnmatch.fnmatchcase`, as everywhere in Salt.
//!
//! `*` matches anything including slashes, `?` one character, `[seq]` and `[!seq]` one character in or not in
//! a set with ranges. There is no escape; an unclosed `[` is a literal `[`.

use std::convert::Infallible;
use std::hash::{Hash, Hasher};

/// A compiled pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize, serde::Serialize),
    serde(from = "String", into = "String")
)]
pub struct Glob {
    text: String,
    tokens: Vec<Token>,
    /// Indexes of the first and the last star.
    stars: Option<(usize, usize)>,
    /// The ASCII characters, by bit, that each token accepts.
    ascii: Vec<u128>,
}

impl From<String> for Glob {
    fn from(text: String) -> Self {
        Self::new(&text)
    }
}

impl From<Glob> for String {
    fn from(glob: Glob) -> Self {
        glob.text
    }
}

#[cfg(feature = "schemars")]
impl schemars::JsonSchema for Glob {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Glob".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "glob" })
    }
}

/// The text decides everything else.
impl Hash for Glob {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Char(char),
    One,
    Many,
    Set {
        not: bool,
        ranges: Vec<(char, char)>,
    },
}

/// A part of a pattern without wildcards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Literal {
    /// The text, never empty.
    pub text: String,
    /// At the start of the pattern.
    pub begins: bool,
    /// At the end of the pattern.
    pub ends: bool,
}

impl Token {
    fn accepts(&self, c: char) -> bool {
        match self {
            Token::Char(own) => *own == c,
            Token::One => true,
            Token::Many => false,
            Token::Set { not, ranges } => ranges.iter().any(|&(a, b)| a <= c && c <= b) != *not,
        }
    }

    /// The ASCII characters that it accepts, by bit.
    fn ascii(&self) -> u128 {
        match self {
            Token::Char(c) if c.is_ascii() => 1 << u32::from(*c),
            Token::Char(_) | Token::Many => 0,
            Token::One => u128::MAX,
            Token::Set { .. } => {
                let accepted = (0..128_u8).filter(|byte| self.accepts(char::from(*byte)));
                accepted.fold(0, |set, byte| set | 1 << byte)
            }
        }
    }
}

/// Whether an ASCII character is in a set; `None` for a byte of a non-ASCII character.
fn is_in(set: u128, byte: u8) -> Option<bool> {
    byte.is_ascii().then(|| set >> byte & 1 == 1)
}

impl Glob {
    /// Compiles a pattern; every text is valid.
    pub fn new(text: &str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let mut tokens = Vec::new();
        let mut rest = chars.as_slice();
        while let Some((&c, after)) = rest.split_first() {
            rest = after;
            tokens.push(match c {
                '*' => {
                    // Stars in a row mean the same as one, and each would cost a backtracking
                    // position.
                    if tokens.last() == Some(&Token::Many) {
                        continue;
                    }
                    Token::Many
                }
                '?' => Token::One,
                '[' => match set(rest) {
                    Some((token, after)) => {
                        rest = after;
                        token
                    }
                    None => Token::Char('['),
                },
                c => Token::Char(c),
            });
        }

        let star = |token: &Token| *token == Token::Many;
        let stars = tokens.iter().position(star);
        let stars = stars.zip(tokens.iter().rposition(star));

        Self {
            text: text.to_owned(),
            ascii: tokens.iter().map(Token::ascii).collect(),
            tokens,
            stars,
        }
    }

    /// The pattern that only this text matches. Within `[]` a wildcard stands for itself.
    pub fn of_literal(text: &str) -> Self {
        let mut pattern = String::with_capacity(text.len());
        for c in text.chars() {
            if matches!(c, '*' | '?' | '[') {
                pattern.extend(['[', c, ']']);
            } else {
                pattern.push(c);
            }
        }
        Self::new(&pattern)
    }

    /// The pattern's text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The only text that matches, of a pattern without wildcards.
    pub fn as_literal(&self) -> Option<String> {
        let char = |token: &Token| {
            if let Token::Char(c) = token {
                Some(*c)
            } else {
                None
            }
        };
        self.tokens.iter().map(char).collect()
    }

    /// The literal parts of the pattern: each occurs in every matching text.
    pub fn literals(&self) -> Vec<Literal> {
        let mut literals: Vec<Literal> = Vec::new();
        let mut open = false;
        for (at, token) in self.tokens.iter().enumerate() {
            let Token::Char(c) = token else {
                open = false;
                continue;
            };
            if !std::mem::replace(&mut open, true) {
                literals.push(Literal {
                    text: String::new(),
                    begins: at == 0,
                    ends: false,
                });
            }

            literals
                .iter_mut()
                .last()
                .into_iter()
                .for_each(|literal| literal.text.push(*c));
        }

        if open && let Some(last) = literals.last_mut() {
            last.ends = true;
        }

        literals
    }

    /// Decides for bytes whose ends in question are ASCII, which names of minions and functions are: a limited reader's scan tests
    /// millions of them.
    fn matches_ascii(&self, bytes: &[u8]) -> Option<bool> {
        let (first, last) = self.stars.unwrap_or((self.ascii.len(), self.ascii.len()));
        let head = self.ascii.get(..first)?;
        let tail = self.ascii.get(last + 1..).unwrap_or_default();

        // There are at most as many characters as bytes.
        if bytes.len() < head.len() + tail.len() {
            return Some(false);
        }

        for (set, byte) in head.iter().zip(bytes) {
            if !is_in(*set, *byte)? {
                return Some(false);
            }
        }

        for (set, byte) in tail.iter().rev().zip(bytes.iter().rev()) {
            if !is_in(*set, *byte)? {
                return Some(false);
            }
        }

        match self.stars {
            Some(_) if first == last => Some(true),
            // There is text between two stars.
            Some(_) => None,
            None => Some(bytes.len() == head.len()),
        }
    }

    /// Whether the whole of `text` matches.
    pub fn matches(&self, text: &str) -> bool {
        if let Some(matches) = self.matches_ascii(text.as_bytes()) {
            return matches;
        }
        let Ok(matches) = self.matches_within(text, || Ok::<(), Infallible>(()));
        matches
    }

    /// As [`Glob::matches`], with a call of `step` for each compared character.
    pub fn matches_within<E>(
        &self,
        text: &str,
        mut step: impl FnMut() -> Result<(), E>,
    ) -> Result<bool, E> {
        step()?;
        let mut rest = text.chars();
        let (first, last) = self.stars.unwrap_or((self.tokens.len(), self.tokens.len()));
        let part = |range: std::ops::Range<usize>| self.tokens.get(range).unwrap_or_default();

        // What is before the first star and behind the last star can be in one place only: most
        // strings end here.
        for token in part(0..first) {
            step()?;
            if !rest.next().is_some_and(|c| token.accepts(c)) {
                return Ok(false);
            }
        }
        for token in part(last + 1..self.tokens.len()).iter().rev() {
            step()?;
            if !rest.next_back().is_some_and(|c| token.accepts(c)) {
                return Ok(false);
            }
        }
        if first == last {
            return Ok(self.stars.is_some() || rest.as_str().is_empty());
        }

        // Backtracks to the last star only: worst case length times pattern, without recursion.
        let between = part(first..last);
        let mut at = 0;
        let mut star: Option<(usize, std::str::Chars<'_>)> = None;
        loop {
            step()?;
            if between.get(at) == Some(&Token::Many) {
                at += 1;
                star = Some((at, rest.clone()));
                continue;
            }
            let fits = match (between.get(at), rest.next()) {
                // The last star takes the rest.
                (None, _) => return Ok(true),
                (Some(token), Some(c)) => token.accepts(c),
                // The text has ended but the pattern has not: a longer star cannot help.
                (Some(_), None) => return Ok(false),
            };
            if fits {
                at += 1;
                continue;
            }
            let Some((after_star, text_there)) = &mut star else {
                return Ok(false);
            };
            if text_there.next().is_none() {
                return Ok(false);
            }
            at = *after_star;
            rest = text_there.clone();
        }
    }

    /// Whether the bytes match. Invalid UTF-8 counts as replacement characters.
    pub fn matches_bytes(&self, bytes: &[u8]) -> bool {
        self.matches_ascii(bytes)
            .unwrap_or_else(|| self.matches(&String::from_utf8_lossy(bytes)))
    }
}

/// Parses a set after its `[`. A leading `]` is a member.
fn set(rest: &[char]) -> Option<(Token, &[char])> {
    let (not, body) = match rest.split_first() {
        Some(('!', after)) => (true, after),
        _ => (false, rest),
    };

    // A `]` at the very beginning is a member, so the search begins behind it.
    let end = body.iter().skip(1).position(|&c| c == ']')? + 1;

    let mut members = body.get(..end)?;
    let mut ranges = Vec::new();
    while let Some((&first, after)) = members.split_first() {
        members = after;
        match members {
            ['-', last, after @ ..] => {
                // A reversed range is empty, as in Python.
                if first <= *last {
                    ranges.push((first, *last));
                }
                members = after;
            }
            _ => ranges.push((first, first)),
        }
    }

    Some((Token::Set { not, ranges }, body.get(end + 1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(pattern: &str, text: &str, expected: bool) {
        assert_eq!(
            Glob::new(pattern).matches(text),
            expected,
            "{pattern:?} on {text:?}"
        );
    }

    /// By definition: a star takes any number of characters.
    fn matches_slowly(tokens: &[Token], text: &[char]) -> bool {
        match tokens.split_first() {
            None => text.is_empty(),
            Some((Token::Many, after)) => {
                (0..=text.len()).any(|taken| matches_slowly(after, &text[taken..]))
            }
            Some((token, after)) => text
                .split_first()
                .is_some_and(|(c, rest)| token.accepts(*c) && matches_slowly(after, rest)),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5000))]
        #[test]
        fn a_pattern_matches_as_defined(pattern in "[ab*?é\\[\\]!-]{0,8}", text in "[abé\\[-]{0,8}") {
            let glob = Glob::new(&pattern);
            let chars: Vec<char> = text.chars().collect();
            prop_assert_eq!(glob.matches(&text), matches_slowly(&glob.tokens, &chars));
        }
    }

    #[test]
    fn the_pattern_of_a_literal_matches_nothing_else() {
        for text in ["web1", "*", "a?[b]*", "[!a]", "", "é"] {
            let glob = Glob::of_literal(text);
            assert!(glob.matches(text), "{text}");
            for other in ["web2", "b", "axb", "ab", "a"] {
                assert!(!glob.matches(other), "{text} {other}");
            }
        }
    }

    #[test]
    fn literals_are_the_parts_between_wildcards() {
        let of = |pattern: &str| {
            let literals = Glob::new(pattern).literals().into_iter();
            literals
                .map(|l| (l.text, l.begins, l.ends))
                .collect::<Vec<_>>()
        };
        let literal = |text: &str, begins, ends| (text.to_owned(), begins, ends);
        assert_eq!(
            of("a/*/b?c[d]"),
            [
                literal("a/", true, false),
                literal("/b", false, false),
                literal("c", false, false)
            ]
        );
        assert_eq!(of("ab"), [literal("ab", true, true)]);
        assert_eq!(of("*x[y"), [literal("x[y", false, true)]);
        assert_eq!(of("*"), []);
    }

    /// The expected values come from Python's `fnmatch.fnmatchcase`.
    #[test]
    fn patterns_match_as_in_python() {
        check("", "", true);
        check("", "a", false);
        check("*", "", true);
        check("*", "a/b/c", true);
        check("salt/job/*/ret/*", "salt/job/20261121/ret/web1", true);
        check("salt/job/*/ret/*", "salt/job/20261121/new", false);
        check("salt/job/*/ret/", "salt/job/1/ret/web1", false);
        check("a?c", "abc", true);
        check("a?c", "ac", false);
        check("a?c", "aéc", true);
        check("*.example", "web.example.example", true);
        check("a*b*c", "aXbYbZc", true);
        check("a*b*c", "aXbYbZ", false);
        check("web[0-9]", "web5", true);
        check("web[!0-9]", "web5", false);
        check("web[!0-9]", "webx", true);
        check("web[", "web[", true);
        check("web[]", "web[]", true);
        check("web[]]", "web]", true);
        check("web[!]]", "web]", false);
        check("web[a-]", "web-", true);
        check("web[z-a]", "webm", false);
        check("a\\*", "a\\b", true);
        check("**", "ab", true);
        check("*a", "aaaaab", false);
    }
}
