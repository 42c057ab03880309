//! Parts of the rules of the ingest policy, as configured: scopes, actions, redaction.
//!
//! `policy/` applies them, at every source.

use salt_sls::Glob;
use serde::{Deserialize, Serialize};

use crate::word::{self, Word, words};
use crate::{Entry, Flags, OVERFLOW};
use saltcellar_base::limits::SAMPLE_MAX;

/// In [`Scope::master`] the daemon's own master, whatever its id is: [`Entry::origin`] is empty for it. No master has this id.
pub const OWN_MASTER: &str = ".";

/// A selection of entries: one item of each non-empty list must match.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
#[serde(
    expecting = "a mapping with any of `tag`, `jid`, `fun`, `minion`, `master`, `retcode` and `class`"
)]
pub struct Scope {
    /// For the tag of an event or a return.
    #[serde(with = "word::some", skip_serializing_if = "Vec::is_empty")]
    pub tag: Vec<Glob>,
    /// For the job id.
    #[serde(with = "word::some", skip_serializing_if = "Vec::is_empty")]
    pub jid: Vec<Glob>,
    /// For the function.
    #[serde(with = "word::some", skip_serializing_if = "Vec::is_empty")]
    pub fun: Vec<Glob>,
    /// For the minion id.
    #[serde(with = "word::some", skip_serializing_if = "Vec::is_empty")]
    pub minion: Vec<Glob>,
    /// For the id of the master that fired the event; [`OWN_MASTER`] for this daemon's. [`Scope::beside`] makes it complete.
    #[serde(with = "word::some", skip_serializing_if = "Vec::is_empty")]
    pub master: Vec<Glob>,
    /// For the exit code of a return.
    #[serde(with = "word::some", skip_serializing_if = "Vec::is_empty")]
    pub retcode: Vec<RetcodePattern>,
    /// For the retention class. [`Scope::matches`] ignores it: an entry contains no class before it is stored.
    #[serde(with = "word::some", skip_serializing_if = "Vec::is_empty")]
    pub class: Vec<Glob>,
}

/// An exit code, or all other ones. Only returns with an exit code match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetcodePattern {
    code: i64,
    is_negated: bool,
}

impl RetcodePattern {
    fn matches(self, entry: &Entry<'_>) -> bool {
        entry.flags.has(Flags::RETCODE_KNOWN) && (entry.retcode == self.code) != self.is_negated
    }
}

impl Scope {
    /// The same selection at the daemon of the master `own`, whose entries name no origin; empty if its id is unknown.
    #[must_use]
    pub fn beside(mut self, own: &str) -> Self {
        if !self.has_own() && self.master.iter().any(|glob| glob.matches(own)) {
            self.master.push(Glob::new(OWN_MASTER));
        }
        self
    }

    fn has_own(&self) -> bool {
        self.master.iter().any(|glob| glob.as_str() == OWN_MASTER)
    }

    /// Whether it contains an entry of any class. `funs` returns the functions of a job with several.
    pub fn matches<'a>(&self, entry: &Entry<'_>, funs: impl Fn() -> Vec<&'a str>) -> bool {
        let any = |globs: &[Glob], text: &str| globs.iter().any(|glob| glob.matches(text));
        let tag = self.tag.is_empty() || self.tag.iter().any(|glob| glob.matches_bytes(entry.tag));

        // As closures: after a failed comparison the rest is not evaluated.
        let jid = || self.jid.is_empty() || any(&self.jid, entry.jid);
        let minion = || self.minion.is_empty() || any(&self.minion, entry.minion);
        let fun = || match entry.fun {
            _ if self.fun.is_empty() => true,
            "" => funs().into_iter().any(|fun| any(&self.fun, fun)),
            fun => any(&self.fun, fun),
        };
        let master = || match entry.origin {
            _ if self.master.is_empty() => true,
            "" => self.has_own(),
            peer => any(&self.master, peer),
        };
        let retcode =
            || self.retcode.is_empty() || self.retcode.iter().any(|code| code.matches(entry));

        tag && jid() && minion() && fun() && master() && retcode()
    }

    /// Whether an entry with these columns may match; an empty function is unknown.
    pub fn may_match(&self, minion: &str, fun: &str) -> bool {
        let any = |globs: &[Glob], text: &str| {
            globs.is_empty() || globs.iter().any(|glob| glob.matches(text))
        };
        any(&self.minion, minion) && (fun.is_empty() || any(&self.fun, fun))
    }

    /// Whether it contains entries of the class. The overflow of a class is a part of it: which entries are there is no concern of a reader.
    pub fn allows_class(&self, class_name: &str) -> bool {
        let proper = class_name.strip_suffix(OVERFLOW).unwrap_or(class_name);
        let is_it = |glob: &Glob| glob.matches(proper) || glob.matches(class_name);
        self.class.is_empty() || self.class.iter().any(is_it)
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

words! {
    RetcodePattern: "an exit code, or ! and an exit code for all other ones, such as 1 or !0",
        |text| {
            let (is_negated, digits) = text.strip_prefix('!').map_or((false, text), |rest| (true, rest));
            digits.parse().ok().map(|code| Self { code, is_negated })
        },
        |pattern| format!("{}{}", if pattern.is_negated { "!" } else { "" }, pattern.code);
    Action: "store, drop, or `sample N` with N from 2 to 1000000",
        |text| match text {
            "store" => Some(Self::Store),
            "drop" => Some(Self::Drop),
            _ => {
                let n = text.strip_prefix("sample ")?.trim().parse().ok()?;
                (2..=SAMPLE_MAX).contains(&n).then_some(Self::Sample(n))
            }
        },
        |action| match action {
            Self::Store => "store".to_owned(),
            Self::Drop => "drop".to_owned(),
            Self::Sample(n) => format!("sample {n}"),
        };
}

/// A predefined redaction rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Builtin {
    /// Values under the usual keys of passwords, secrets and tokens.
    Passwords,
    /// PEM and PGP private key blocks, anywhere in a string.
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
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
#[serde(
    expecting = "a mapping with `builtin`, `keys`, `paths` or `patterns`, and any of `name`, `tag`, `fun` and `minion`"
)]
pub struct RedactRule {
    /// The name in `saltcellar status`.
    #[serde(with = "word")]
    pub name: String,
    /// A predefined rule.
    pub builtin: Option<Builtin>,
    /// Case-insensitive keys of maps at any depth, whose values are replaced.
    #[serde(with = "word::some")]
    pub keys: Vec<Glob>,
    /// Keys from the top, a glob each; the value there is replaced.
    #[serde(with = "word::some")]
    pub paths: Vec<Vec<Glob>>,
    /// Matching parts of strings are replaced.
    #[serde(with = "word::some")]
    pub patterns: Vec<Pattern>,
    /// The affected entries: their tags.
    #[serde(with = "word::some")]
    pub tag: Vec<Glob>,
    /// Their functions.
    #[serde(with = "word::some")]
    pub fun: Vec<Glob>,
    /// Their minions.
    #[serde(with = "word::some")]
    pub minion: Vec<Glob>,
}

impl RedactRule {
    /// The affected entries.
    pub fn scope(&self) -> Scope {
        Scope {
            tag: self.tag.clone(),
            fun: self.fun.clone(),
            minion: self.minion.clone(),
            ..Scope::default()
        }
    }
}

/// A compiled regular expression for bytes.
#[derive(Debug, Clone)]
pub struct Pattern(regex::bytes::Regex);

impl Pattern {
    /// Compiles an expression; the error is a single line.
    pub fn new(text: &str) -> Result<Self, String> {
        // Without Unicode, because data may be any bytes. The limits bound the memory of a pattern
        // that a user writes.
        let built = regex::bytes::RegexBuilder::new(text)
            .unicode(false)
            .size_limit(saltcellar_base::limits::PATTERN_BYTES_MAX)
            .dfa_size_limit(saltcellar_base::limits::PATTERN_BYTES_MAX)
            .build();

        match built {
            // A pattern that matches the empty string matches everywhere.
            Ok(regex) if regex.is_match(b"") => Err(format!(
                "{text:?} matches the empty string; give a pattern that needs at least one character"
            )),
            Ok(regex) => Ok(Self(regex)),
            Err(error) => {
                // The last line is the reason; the lines above draw the pattern.
                let message = error.to_string();
                let last = message
                    .lines()
                    .rev()
                    .find(|line| !line.trim().is_empty())
                    .unwrap_or_default();
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

impl Word for Pattern {
    const ACCEPTS: &'static str = "a regular expression";

    fn parse(text: &str) -> Option<Self> {
        Self::new(text).ok()
    }

    fn show(&self) -> Option<String> {
        Some(self.as_str().to_owned())
    }

    fn problem(text: &str) -> String {
        Self::new(text).err().unwrap_or_default()
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
    use crate::{Kind, Source};
    use saltcellar_base::clock::Micros;

    #[test]
    fn a_scope_needs_a_match_in_each_list() {
        let globs = |list: &[&str]| list.iter().map(|text| Glob::new(text)).collect::<Vec<_>>();
        let entry = Entry {
            kind: Kind::Return,
            source: Source::Bus,
            origin: "",
            number: 0,
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
            let scope = Scope {
                tag: globs(tag),
                fun: globs(fun),
                minion: globs(minion),
                ..Scope::default()
            };
            scope.matches(entry, || vec!["cmd.run", "test.version"])
        };
        assert!(matches(&[], &[], &[], &entry));
        assert!(matches(
            &["x", "salt/job/*"],
            &["test.*"],
            &["web?"],
            &entry
        ));
        assert!(!matches(&["salt/job/*"], &["test.*"], &["db*"], &entry));
        assert!(!matches(&["salt/auth"], &["test.*"], &[], &entry));
        assert!(!matches(&[], &["cmd.*"], &[], &entry));
        let several = Entry { fun: "", ..entry };
        assert!(
            matches(&[], &["cmd.*"], &[], &several) && !matches(&[], &["state.*"], &[], &several)
        );
    }

    #[test]
    fn the_master_of_an_entry_is_its_origin_or_the_daemons_own() {
        let matches = |globs: &[&str], own: &str, origin: &str| {
            let scope = Scope {
                master: globs.iter().map(|text| Glob::new(text)).collect(),
                ..Scope::default()
            };
            let entry = Entry::new(Kind::Event, Source::Bus, Micros(0), b"");
            scope
                .beside(own)
                .matches(&Entry { origin, ..entry }, Vec::new)
        };
        for (globs, own, expected) in [
            // Of this daemon's master m1, of the peer m2, of another one.
            (&[][..], "m1", [true, true, true]),
            (&["m1"], "m1", [true, false, false]),
            (&["m2"], "m1", [false, true, false]),
            (&["m?"], "m1", [true, true, false]),
            (&["*"], "m1", [true, true, true]),
            (&["x", "m1"], "m1", [true, false, true]),
            (&["."], "m1", [true, false, false]),
            (&["[!m]*"], "m1", [false, false, true]),
            // Its id is unknown.
            (&["m?"], "", [false, true, false]),
            (&["*"], "", [true, true, true]),
            (&["."], "", [true, false, false]),
        ] {
            let found = ["", "m2", "x"].map(|origin| matches(globs, own, origin));
            assert_eq!(found, expected, "{globs:?} {own:?}");
        }
    }

    #[test]
    fn exit_codes_select_returns_that_have_one() {
        let body = b"";
        let ret = Entry {
            flags: Flags::RETCODE_KNOWN,
            retcode: 2,
            ..Entry::new(Kind::Return, Source::Bus, Micros(0), body)
        };
        let matches = |text: &str, entry: &Entry<'_>| {
            let retcode = vec![RetcodePattern::parse(text).unwrap()];
            Scope {
                retcode,
                ..Scope::default()
            }
            .matches(entry, Vec::new)
        };
        assert!(matches("2", &ret) && matches("!0", &ret) && matches("!-1", &ret));
        assert!(!matches("0", &ret) && !matches("!2", &ret));
        let without = Entry {
            flags: Flags::default(),
            retcode: 0,
            ..ret
        };
        assert!(
            !matches("0", &without) && !matches("!1", &without),
            "not a return with an exit code"
        );
        for text in ["", "!", "ok", "1.0", "! 1", "99999999999999999999"] {
            assert_eq!(RetcodePattern::parse(text), None, "{text}");
        }
        assert_eq!(RetcodePattern::parse("!0").unwrap().show().unwrap(), "!0");
    }

    #[test]
    fn an_invalid_pattern_is_reported_in_one_line() {
        assert!(Pattern::new("AKIA[0-9A-Z]{16}").is_ok());
        for (text, expected) in [
            ("(", "unclosed group"),
            ("a*", "matches the empty string"),
            ("[0-9]{1000000}", "exceeds size limit"),
        ] {
            let error = Pattern::new(text).unwrap_err();
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn the_overflow_of_a_class_is_a_part_of_it() {
        let scope = |class: &str| Scope {
            class: vec![Glob::new(class)],
            ..Scope::default()
        };
        assert!(scope("jobs").allows_class("jobs-over") && scope("jobs").allows_class("jobs"));
        assert!(scope("jobs-over").allows_class("jobs-over"));
        assert!(
            !scope("jobs-over").allows_class("jobs") && !scope("job").allows_class("jobs-over")
        );
    }
}
