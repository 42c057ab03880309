//! The name of one of several masters, and its token in subjects of NATS.
//!
//! A subject is made of tokens with dots between them, and a master's id is often an address with dots. In a token each byte of the
//! name but letters, digits, `_` and `-` is `=` and two digits in hexadecimal: `10.0.0.1` is `10=2E0=2E0=2E1`.
//!
//! # Invariant
//!
//! Each name has one token, and no two names have the same.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::settings::word::{Word, words};

/// Longest token.
const TOKEN_BYTES_MAX: usize = 255;

/// The name of a master, which has a token.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MasterName {
    name: Arc<str>,
    token: Arc<str>,
}

impl MasterName {
    /// `None` for an empty name, and for one that is too long.
    pub fn new(name: &str) -> Option<Self> {
        let mut token = String::with_capacity(name.len());
        for &byte in name.as_bytes() {
            if is_plain(byte) {
                token.push(char::from(byte));
            } else {
                // Writing to a string cannot fail.
                let _ = write!(token, "={byte:02X}");
            }
        }

        (1..=TOKEN_BYTES_MAX).contains(&token.len()).then(|| Self {
            name: name.into(),
            token: token.into(),
        })
    }

    /// The name with this token. `None` for a string that is no token of a name.
    pub fn of_token(token: &str) -> Option<Self> {
        let mut bytes = Vec::with_capacity(token.len());
        let mut rest = token.as_bytes();
        while let Some((&first, after)) = rest.split_first() {
            if first != b'=' {
                bytes.push(first);
                rest = after;
                continue;
            }

            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = after.get(2..)?;
        }

        // Other spellings of a name would be other subjects of one master.
        let name = Self::new(std::str::from_utf8(&bytes).ok()?)?;
        (*name.token == *token).then_some(name)
    }

    /// The name itself.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// The token in subjects.
    pub fn token(&self) -> &str {
        &self.token
    }
}

/// A byte that is the same in a token.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

words! {
    MasterName: "the name of a master, such as its id; each byte but letters, digits, _ and - counts three, and at most 255 are accepted",
        Self::new,
        |name| name.name.to_string();
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token(name: &str) -> Option<String> {
        MasterName::new(name).map(|name| name.token().to_owned())
    }

    #[test]
    fn a_token_is_one_word_of_a_subject() {
        assert_eq!(token("master1").as_deref(), Some("master1"));
        assert_eq!(token("10.0.0.1").as_deref(), Some("10=2E0=2E0=2E1"));
        assert_eq!(token("a_b-c=*>é").as_deref(), Some("a_b-c=3D=2A=3E=C3=A9"));
        assert_eq!(token(""), None);
        assert_eq!(token(&"a".repeat(255)).map(|token| token.len()), Some(255));
        assert_eq!(token(&"a".repeat(256)), None);
        assert_eq!(token(&".".repeat(86)), None);
    }

    #[test]
    fn other_texts_are_no_tokens() {
        for text in [
            "", "a.b", "=", "=2", "=2e", "=41", "=C3", "=+1", "a b", "é", "=GG",
        ] {
            assert_eq!(MasterName::of_token(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn each_name_has_one_token_and_each_token_one_name(one in ".{1,80}", other in ".{1,80}") {
            let names = [&one, &other].map(|name| MasterName::new(name));
            for name in names.iter().flatten() {
                let token = name.token();
                prop_assert!(token.bytes().all(|byte| byte == b'=' || is_plain(byte)));
                let again = MasterName::of_token(token);
                prop_assert_eq!(again.as_ref(), Some(name));
            }
            if let [Some(a), Some(b)] = &names {
                prop_assert_eq!(a.token() == b.token(), one == other);
            }
        }

        #[test]
        fn a_token_that_is_accepted_is_that_of_its_name(text in "[a-zA-Z0-9_=.-]{1,60}") {
            if let Some(name) = MasterName::of_token(&text) {
                prop_assert_eq!(name.token(), text);
            }
        }
    }
}
