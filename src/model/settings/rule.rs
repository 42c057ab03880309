//! Rules of the ingest policy, as configured: filters and redaction.
//!
//! [`crate::ingest::policy::Policy`] applies them, at every source.

use crate::model::{Entry, Glob};

/// A selection of entries: one glob of each non-empty list must match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scope {
    /// For the tag of an event or a return.
    pub tag: Vec<Glob>,
    /// For the function.
    pub fun: Vec<Glob>,
    /// For the minion id.
    pub minion: Vec<Glob>,
}

impl Scope {
    /// Whether it contains an entry. `funs` returns the functions of a job with several.
    pub fn matches<'a>(&self, entry: &Entry<'_>, funs: impl Fn() -> Vec<&'a str>) -> bool {
        let any = |globs: &[Glob], text: &str| globs.iter().any(|glob| glob.matches(text));
        let tag = self.tag.is_empty() || self.tag.iter().any(|glob| glob.matches_bytes(entry.tag));
        let minion = || self.minion.is_empty() || any(&self.minion, entry.minion);
        let fun = || match entry.fun {
            _ if self.fun.is_empty() => true,
            "" => funs().into_iter().any(|fun| any(&self.fun, fun)),
            fun => any(&self.fun, fun),
        };
        tag && minion() && fun()
    }
}

/// The action of a filter rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Store the entry.
    Store,
    /// Drop the entry.
    Drop,
    /// Store one of this many, chosen by a hash: the same at every source, and a job as a whole.
    Sample(u32),
}

/// An item of `ingest.filter`. The first matching rule decides; entries without one are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterRule {
    /// The name in `saltcellar status`.
    pub name: String,
    /// The affected entries.
    pub scope: Scope,
    /// The action.
    pub action: Action,
}

/// A predefined redaction rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Builtin {
    /// Values under the usual keys of passwords, secrets and tokens.
    Passwords,
    /// PEM and PGP private key blocks, anywhere in a text.
    PrivateKeys,
    /// Results of `pillar.*`, and pillar given on the command line.
    Pillar,
}

impl Builtin {
    /// All predefined rules.
    pub const ALL: [Self; 3] = [Self::Passwords, Self::PrivateKeys, Self::Pillar];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Passwords => "passwords",
            Self::PrivateKeys => "private_keys",
            Self::Pillar => "pillar",
        }
    }
}

/// An item of `ingest.redact`. All matching rules are applied.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RedactRule {
    /// The name in `saltcellar status`.
    pub name: String,
    /// The affected entries.
    pub scope: Scope,
    /// A predefined rule.
    pub builtin: Option<Builtin>,
    /// Case-insensitive keys of maps at any depth, whose values are replaced.
    pub keys: Vec<Glob>,
    /// Keys from the top, a glob each; the value there is replaced.
    pub paths: Vec<Vec<Glob>>,
    /// Matching parts of texts are replaced.
    pub patterns: Vec<Pattern>,
}

/// A compiled regular expression for bytes.
#[derive(Debug, Clone)]
pub struct Pattern(regex::bytes::Regex);

impl Pattern {
    /// Compiles an expression; the error is a single line.
    pub fn new(text: &str) -> Result<Self, String> {
        let built = regex::bytes::RegexBuilder::new(text)
            .unicode(false)
            .size_limit(crate::limits::PATTERN_BYTES_MAX)
            .dfa_size_limit(crate::limits::PATTERN_BYTES_MAX)
            .build();
        match built {
            // A pattern that matches the empty text matches everywhere.
            Ok(regex) if regex.is_match(b"") => Err(format!("{text:?} matches the empty text")),
            Ok(regex) => Ok(Self(regex)),
            Err(error) => {
                let message = error.to_string();
                let last = message.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
                Err(format!(
                    "{text:?} is not a regular expression: {}",
                    last.trim().trim_start_matches("error: ")
                ))
            }
        }
    }

    /// The source text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The compiled expression.
    pub fn regex(&self) -> &regex::bytes::Regex {
        &self.0
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Pattern {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Micros;
    use crate::model::{Flags, Kind, Source};

    #[test]
    fn a_scope_needs_a_match_in_each_list() {
        let globs = |list: &[&str]| list.iter().map(|text| Glob::new(text)).collect::<Vec<_>>();
        let entry = Entry {
            kind: Kind::Return,
            source: Source::Bus,
            flags: Flags::default(),
            at: Micros(0),
            tag: b"salt/job/1/ret/web1",
            jid: "1",
            minion: "web1",
            fun: "test.ping",
            retcode: 0,
            body: b"",
        };
        let matches = |tag: &[&str], fun: &[&str], minion: &[&str], entry: &Entry<'_>| {
            let scope = Scope { tag: globs(tag), fun: globs(fun), minion: globs(minion) };
            scope.matches(entry, || vec!["cmd.run", "test.version"])
        };
        assert!(matches(&[], &[], &[], &entry));
        assert!(matches(&["x", "salt/job/*"], &["test.*"], &["web?"], &entry));
        assert!(!matches(&["salt/job/*"], &["test.*"], &["db*"], &entry));
        assert!(!matches(&["salt/auth"], &["test.*"], &[], &entry));
        assert!(!matches(&[], &["cmd.*"], &[], &entry));
        let several = Entry { fun: "", ..entry };
        assert!(matches(&[], &["cmd.*"], &[], &several) && !matches(&[], &["state.*"], &[], &several));
    }

    #[test]
    fn an_invalid_pattern_is_reported_in_one_line() {
        assert!(Pattern::new("AKIA[0-9A-Z]{16}").is_ok());
        for (text, expected) in [
            ("(", "unclosed group"),
            ("a*", "matches the empty text"),
            ("[0-9]{1000000}", "exceeds size limit"),
        ] {
            let error = Pattern::new(text).unwrap_err();
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        }
    }
}
