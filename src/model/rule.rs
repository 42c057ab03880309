//! Rules that hold before anything is stored, as an administrator words them: what is left out, what is blotted out.
//!
//! [`crate::ingest::gate::Gate`] carries them out, at every door.

use super::{Entry, Glob};

/// The entries that a rule is about: of each list that is not empty, one glob has to match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scope {
    /// Over the tag of an event or a return.
    pub tag: Vec<Glob>,
    /// Over the function.
    pub fun: Vec<Glob>,
    /// Over the minion id.
    pub minion: Vec<Glob>,
}

impl Scope {
    /// Is it about everything?
    pub fn is_everything(&self) -> bool {
        self.tag.is_empty() && self.fun.is_empty() && self.minion.is_empty()
    }

    /// Is it about this entry? `funs` says the functions of a job that has several.
    pub fn takes<'a>(&self, entry: &Entry<'_>, funs: impl Fn() -> Vec<&'a str>) -> bool {
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

/// What becomes of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It is stored.
    Store,
    /// It is not.
    Drop,
    /// One of so many is, chosen by a hash: the same one at every door, and a job as a whole.
    Sample(u32),
}

/// One item of `ingest.filter`. The first that takes an entry decides; what none takes is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterRule {
    /// Its name in `saltcellar status`.
    pub name: String,
    /// What it is about.
    pub scope: Scope,
    /// What it does.
    pub action: Action,
}

/// What a redaction rule can be told by one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Builtin {
    /// Values under keys that are named as passwords, secrets and tokens usually are.
    Passwords,
    /// PEM and PGP private key blocks, wherever they stand in a text.
    PrivateKeys,
    /// What `pillar.*` returns, and pillar given on the command line.
    Pillar,
}

impl Builtin {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Passwords, Self::PrivateKeys, Self::Pillar];

    /// Its name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Passwords => "passwords",
            Self::PrivateKeys => "private_keys",
            Self::Pillar => "pillar",
        }
    }
}

/// One item of `ingest.redact`. All that take an entry are applied.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RedactRule {
    /// Its name in `saltcellar status`.
    pub name: String,
    /// What it is about.
    pub scope: Scope,
    /// One of those that come with the program.
    pub builtin: Option<Builtin>,
    /// Keys of maps at any depth, without regard to case: their values go.
    pub keys: Vec<Glob>,
    /// Keys from the top down, a glob each: the value there goes.
    pub paths: Vec<Vec<Glob>>,
    /// What matches in a text goes.
    pub patterns: Vec<Pattern>,
}

/// A regular expression over bytes, known to compile.
#[derive(Debug, Clone)]
pub struct Pattern(regex::bytes::Regex);

impl Pattern {
    /// Compiles one; says what is wrong with it, in a line.
    pub fn new(text: &str) -> Result<Self, String> {
        let built = regex::bytes::RegexBuilder::new(text)
            .unicode(false)
            .size_limit(crate::limits::PATTERN_BYTES_MAX)
            .dfa_size_limit(crate::limits::PATTERN_BYTES_MAX)
            .build();
        match built {
            // What matches nothing at all matches everywhere.
            Ok(regex) if regex.is_match(b"") => Err(format!("{text:?} matches the empty text")),
            Ok(regex) => Ok(Self(regex)),
            Err(error) => {
                let words = error.to_string();
                let last = words.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
                Err(format!(
                    "{text:?} is no regular expression: {}",
                    last.trim().trim_start_matches("error: ")
                ))
            }
        }
    }

    /// The text it was made of.
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
    fn a_scope_takes_what_one_glob_of_each_list_matches() {
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
        let takes = |tag: &[&str], fun: &[&str], minion: &[&str], entry: &Entry<'_>| {
            let scope = Scope { tag: globs(tag), fun: globs(fun), minion: globs(minion) };
            scope.takes(entry, || vec!["cmd.run", "test.version"])
        };
        assert!(takes(&[], &[], &[], &entry));
        assert!(takes(&["x", "salt/job/*"], &["test.*"], &["web?"], &entry));
        assert!(!takes(&["salt/job/*"], &["test.*"], &["db*"], &entry));
        assert!(!takes(&["salt/auth"], &["test.*"], &[], &entry));
        assert!(!takes(&[], &["cmd.*"], &[], &entry));
        let several = Entry { fun: "", ..entry };
        assert!(takes(&[], &["cmd.*"], &[], &several) && !takes(&[], &["state.*"], &[], &several));
    }

    #[test]
    fn a_pattern_that_cannot_be_used_is_told_in_a_line() {
        assert!(Pattern::new("AKIA[0-9A-Z]{16}").is_ok());
        for (text, words) in [
            ("(", "unclosed group"),
            ("a*", "matches the empty text"),
            ("[0-9]{1000000}", "exceeds size limit"),
        ] {
            let told = Pattern::new(text).unwrap_err();
            assert!(told.contains(words) && !told.contains('\n'), "{told}");
        }
    }
}
