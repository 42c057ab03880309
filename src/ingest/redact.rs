//! Redaction of an entry's msgpack.
//!
//! One walk over the body collects the values to replace; the rest is copied unchanged, so the result is msgpack of the same structure.
//! A redacted value becomes the text [`REDACTED`], unless it is nil or a boolean: those are not secret, and callers test
//! them. A pattern replaces only the matching part of a text.
//!
//! The keys that identify a job for Salt and the store ([`STRUCTURAL`]) are never redacted at the top of a return, an event or a
//! load. Data that cannot be parsed is replaced as a whole, because storing it could expose a secret.

use std::sync::atomic::{AtomicU64, Ordering};

use memchr::memmem;
use regex::bytes::Regex;

use crate::base::limits::MSGPACK_DEPTH_MAX;
use crate::model::{Builtin, Entry, Glob, Kind, REDACTED, RedactRule, Scope};
use crate::wire::msgpack::{DecodeError, Head, Reader, Writer, as_text};
use crate::wire::salt_event::funs_of;

/// Top-level keys that are never redacted.
pub const STRUCTURAL: [&str; 13] = [
    "_stamp", "cmd", "fun", "id", "jid", "minions", "Minions", "nocache", "retcode", "success",
    "tgt", "tgt_type", "out",
];

/// Keys of [`Builtin::Passwords`].
const PASSWORD_KEYS: [&str; 14] = [
    "*password*",
    "*passwd*",
    "*passphrase*",
    "*secret*",
    "pwd",
    "pw",
    "token",
    "*_token",
    "*-token",
    "*api_key*",
    "*apikey*",
    "*access_key*",
    "*private_key*",
    "authorization",
];

/// The result of redaction.
#[derive(Debug, PartialEq, Eq)]
pub enum Redacted {
    /// No rule applies.
    Untouched,
    /// The new body.
    Changed(Vec<u8>),
    /// The body could not be parsed; this replaces all of it.
    Unparsed(Vec<u8>),
}

/// The compiled rules.
pub struct Redactor {
    parts: Vec<CompiledRule>,
    counts: Vec<(String, AtomicU64)>,
}

/// A rule, or a part of one with its own scope.
struct CompiledRule {
    /// Its index among the counts.
    rule: usize,
    scope: Scope,
    keys: Vec<KeyGlob>,
    /// Matches any body that may contain one of the keys; `None` if no such expression exists.
    hint: Option<Regex>,
    paths: Vec<Vec<Glob>>,
    patterns: Vec<Regex>,
    blocks: bool,
}

/// A case-insensitive glob for keys, with fast paths for common forms.
enum KeyGlob {
    Is(Vec<u8>),
    Contains(Vec<u8>),
    Other(Glob),
}

impl KeyGlob {
    fn new(glob: &Glob) -> Self {
        let text = glob.as_str().to_ascii_lowercase();
        let inner = text.trim_matches('*');
        let plain = !inner.is_empty() && !inner.contains(['*', '?', '[']);
        if plain && inner.len() == text.len() {
            Self::Is(text.into_bytes())
        } else if plain && text.starts_with('*') && text.ends_with('*') {
            Self::Contains(inner.as_bytes().to_vec())
        } else {
            Self::Other(Glob::new(&text))
        }
    }

    /// `key` is lower case.
    fn matches(&self, key: &[u8]) -> bool {
        match self {
            Self::Is(text) => key == text,
            Self::Contains(text) => {
                text.len() <= key.len()
                    && key.windows(text.len()).any(|part| part == text.as_slice())
            }
            Self::Other(glob) => glob.matches_bytes(key),
        }
    }
}

impl CompiledRule {
    fn new(rule: usize, scope: Scope, keys: &[Glob]) -> Self {
        Self {
            rule,
            scope,
            keys: keys.iter().map(KeyGlob::new).collect(),
            hint: hint(keys),
            paths: Vec::new(),
            patterns: Vec::new(),
            blocks: false,
        }
    }

    /// Whether it can match anything in these bytes.
    fn may_find(&self, body: &[u8]) -> bool {
        let by_key =
            || !self.keys.is_empty() && self.hint.as_ref().is_none_or(|hint| hint.is_match(body));
        let by_block = || self.blocks && memmem::find(body, b"-----BEGIN ").is_some();
        !self.paths.is_empty() || !self.patterns.is_empty() || by_key() || by_block()
    }
}

/// An expression that matches every text with a key of one of the globs.
fn hint(keys: &[Glob]) -> Option<Regex> {
    let longest = |glob: &Glob| {
        let literals = glob.literals().into_iter().map(|literal| literal.text);
        literals
            .max_by_key(String::len)
            .filter(|text| text.is_ascii() && text.len() > 1)
    };
    let words: Option<Vec<String>> = keys
        .iter()
        .map(|glob| longest(glob).map(|text| regex::escape(&text)))
        .collect();
    let pattern = format!(
        "(?i-u:{})",
        words.filter(|words| !words.is_empty())?.join("|")
    );
    Regex::new(&pattern).ok()
}

impl Redactor {
    /// Compiles the rules.
    pub fn new(rules: &[RedactRule]) -> Self {
        let globs = |texts: &[&str]| texts.iter().map(|text| Glob::new(text)).collect::<Vec<_>>();
        let mut parts = Vec::new();
        for (n, rule) in rules.iter().enumerate() {
            let mut part = CompiledRule::new(n, rule.scope(), &rule.keys);
            part.paths.clone_from(&rule.paths);
            part.patterns = rule
                .patterns
                .iter()
                .map(|pattern| pattern.regex().clone())
                .collect();
            part.blocks = rule.builtin == Some(Builtin::PrivateKeys);
            match rule.builtin {
                Some(Builtin::Passwords) => {
                    parts.push(CompiledRule::new(n, rule.scope(), &globs(&PASSWORD_KEYS)));
                }
                Some(Builtin::Pillar) => {
                    parts.push(CompiledRule::new(
                        n,
                        rule.scope(),
                        &globs(&["pillar", "pillar_override"]),
                    ));
                    let scope = Scope {
                        fun: globs(&["pillar.*", "runner.pillar.*"]),
                        ..rule.scope()
                    };
                    let mut returns = CompiledRule::new(n, scope, &[]);
                    returns.paths = vec![globs(&["return"])];
                    parts.push(returns);
                }
                Some(Builtin::PrivateKeys) | None => {}
            }
            parts.push(part);
        }
        let counts = rules
            .iter()
            .map(|rule| (rule.name.clone(), AtomicU64::new(0)))
            .collect();
        Self { parts, counts }
    }

    /// Entries changed, per rule.
    pub fn counts(&self) -> Vec<(String, u64)> {
        self.counts
            .iter()
            .map(|(name, count)| (name.clone(), count.load(Ordering::Relaxed)))
            .collect()
    }

    /// Redacts the body of an entry.
    pub fn redact(&self, entry: &Entry<'_>) -> Redacted {
        let body = entry.body;
        let root = match entry.kind {
            Kind::Event | Kind::JobNew | Kind::Return | Kind::Register => body,
            // A load is the first of two values; the other one is a list of minion names.
            Kind::Load | Kind::ReturnLoad => match body.split_first() {
                Some((0x92, rest)) => rest,
                _ => body,
            },
            Kind::Minions
            | Kind::Endtime
            | Kind::NoCache
            | Kind::Gap
            | Kind::Reaction
            | Kind::SeenOnBus => {
                return Redacted::Untouched;
            }
        };
        let concerned: Vec<&CompiledRule> = self
            .parts
            .iter()
            .filter(|part| part.scope.matches(entry, || funs_of(root)) && part.may_find(body))
            .collect();
        if concerned.is_empty() {
            return Redacted::Untouched;
        }
        let mut walk = Walk {
            parts: &concerned,
            spares: entry.kind != Kind::Register,
            len: root.len(),
            path: Vec::new(),
            edits: Vec::new(),
            rules: 0,
            open: false,
        };
        let mut reader = Reader::new(root);
        let walked = walk.value(&mut reader);
        let is_whole = root.len() != body.len() || reader.rest().is_empty();
        if walked.is_err() || !is_whole {
            let mut whole = Writer::new();
            whole.str(REDACTED);
            return Redacted::Unparsed(whole.into_bytes());
        }
        if walk.edits.is_empty() {
            return Redacted::Untouched;
        }
        for (n, (_, count)) in self.counts.iter().enumerate() {
            count.fetch_add(walk.rules >> n & 1, Ordering::Relaxed);
        }
        let from = body.len() - root.len();
        let edits = walk
            .edits
            .iter()
            .map(|edit| (from + edit.from, from + edit.to, &*edit.value));
        Redacted::Changed(spliced(body, edits))
    }
}

/// The bytes with replacements for ranges, in order.
fn spliced<'e>(bytes: &[u8], edits: impl Iterator<Item = (usize, usize, &'e [u8])>) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut done = 0;
    for (from, to, value) in edits {
        out.extend_from_slice(bytes.get(done..from).unwrap_or_default());
        out.extend_from_slice(value);
        done = to;
    }
    out.extend_from_slice(bytes.get(done..).unwrap_or_default());
    out
}

struct Edit {
    from: usize,
    to: usize,
    value: Vec<u8>,
}

/// A step from a value to a nested one.
enum PathStep<'a> {
    Key(&'a [u8]),
    Index(usize),
}

impl PathStep<'_> {
    fn matches(&self, glob: &Glob) -> bool {
        match self {
            PathStep::Key(key) => glob.matches_bytes(key),
            PathStep::Index(index) => glob.matches(&index.to_string()),
        }
    }
}

struct Walk<'w, 'a> {
    parts: &'w [&'w CompiledRule],
    /// Keep the structural keys at the top.
    spares: bool,
    len: usize,
    path: Vec<PathStep<'a>>,
    edits: Vec<Edit>,
    /// A bit per rule that has changed something.
    rules: u64,
    /// A key block started in a text of this list and has not ended.
    open: bool,
}

impl<'a> Walk<'_, 'a> {
    fn value(&mut self, reader: &mut Reader<'a>) -> Result<(), DecodeError> {
        let from = self.len - reader.rest().len();
        let mut content = *reader;
        match content.head()? {
            // No reader supports deeper values.
            Head::Map(_) | Head::Array(_) if self.path.len() >= MSGPACK_DEPTH_MAX => {
                Err(DecodeError::Type("shallow value"))
            }
            Head::Map(pairs) => {
                *reader = content;
                for _ in 0..pairs {
                    let key = Reader::new(reader.value()?).bytes().unwrap_or_default();
                    let spared = self.spares
                        && self.path.is_empty()
                        && STRUCTURAL.iter().any(|own| own.as_bytes() == key);
                    self.path.push(PathStep::Key(key));
                    self.open = false;
                    if spared {
                        reader.value()?;
                    } else {
                        self.item(reader)?;
                    }
                    self.path.pop();
                }
                self.open = false;
                Ok(())
            }
            Head::Array(count) => {
                *reader = content;
                self.open = false;
                for index in 0..count {
                    self.path.push(PathStep::Index(index));
                    self.item(reader)?;
                    self.path.pop();
                }
                self.open = false;
                Ok(())
            }
            Head::Str(_) => {
                let text = reader.bytes()?;
                if let Some(text) = self.text(text) {
                    self.edit(from, reader, |w| {
                        w.str_bytes(&text);
                    });
                }
                Ok(())
            }
            Head::Bin(_) => {
                let bytes = reader.bytes()?;
                if let Some(bytes) = self.text(bytes) {
                    self.edit(from, reader, |w| {
                        w.bin(&bytes);
                    });
                }
                Ok(())
            }
            _ => reader.value().map(|_| ()),
        }
    }

    fn edit(&mut self, from: usize, reader: &Reader<'_>, write: impl FnOnce(&mut Writer)) {
        let mut value = Writer::new();
        write(&mut value);
        self.edits.push(Edit {
            from,
            to: self.len - reader.rest().len(),
            value: value.into_bytes(),
        });
    }

    /// Handles the value at the end of the path.
    fn item(&mut self, reader: &mut Reader<'a>) -> Result<(), DecodeError> {
        let Some(rule) = self.named() else {
            return self.value(reader);
        };
        let from = self.len - reader.rest().len();
        let mut content = *reader;
        let value = reader.value()?;
        // Not secret, or already redacted.
        let harmless = matches!(content.head()?, Head::Nil | Head::Bool(_))
            || as_text(value) == Some(REDACTED);
        if !harmless {
            self.rules |= bit(rule);
            self.edit(from, reader, |w| {
                w.str(REDACTED);
            });
        }
        Ok(())
    }

    /// The rule that selects the value at the end of the path, by key or path.
    fn named(&self) -> Option<usize> {
        let lower = match self.path.last() {
            Some(PathStep::Key(key)) => key.to_ascii_lowercase(),
            _ => Vec::new(),
        };
        let by_key = |part: &CompiledRule| {
            !lower.is_empty() && part.keys.iter().any(|glob| glob.matches(&lower))
        };
        let by_path = |part: &CompiledRule| {
            let is_it = |globs: &Vec<Glob>| {
                globs.len() == self.path.len()
                    && globs
                        .iter()
                        .zip(&self.path)
                        .all(|(glob, step)| step.matches(glob))
            };
            part.paths.iter().any(is_it)
        };
        self.parts
            .iter()
            .find(|part| by_key(part) || by_path(part))
            .map(|part| part.rule)
    }

    /// The redacted text; `None` if unchanged.
    fn text(&mut self, text: &[u8]) -> Option<Vec<u8>> {
        let mut changed: Option<Vec<u8>> = None;
        for part in self.parts {
            let mut ranges = Vec::new();
            let now = changed.as_deref().unwrap_or(text);
            if part.blocks {
                self.open = blocks(now, self.open, &mut ranges);
            }
            let replaced = replace_ranges(now, &ranges);
            let mut redacted = replaced.is_some();
            changed = replaced.or(changed);
            for pattern in &part.patterns {
                let now = changed.as_deref().unwrap_or(text);
                let found: Vec<_> = pattern
                    .find_iter(now)
                    .map(|found| (found.start(), found.end()))
                    .collect();
                if let Some(replaced) = replace_whole_characters(now, &found) {
                    (changed, redacted) = (Some(replaced), true);
                }
            }
            if redacted {
                self.rules |= bit(part.rule);
            }
        }
        changed
    }
}

fn bit(rule: usize) -> u64 {
    1_u64
        .checked_shl(u32::try_from(rule).unwrap_or(u32::MAX))
        .unwrap_or(0)
}

/// The text with `ranges` redacted; `None` without ranges.
fn replace_ranges(text: &[u8], ranges: &[(usize, usize)]) -> Option<Vec<u8>> {
    let edits = ranges
        .iter()
        .map(|&(from, to)| (from, to, REDACTED.as_bytes()));
    (!ranges.is_empty()).then(|| spliced(text, edits))
}

/// As [`replace_ranges`], with ranges extended to whole UTF-8 characters.
fn replace_whole_characters(text: &[u8], found: &[(usize, usize)]) -> Option<Vec<u8>> {
    if found.is_empty() {
        return None;
    }
    let Ok(utf8) = std::str::from_utf8(text) else {
        return replace_ranges(text, found);
    };
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &(from, to) in found {
        let from = (0..=from)
            .rev()
            .find(|&at| utf8.is_char_boundary(at))
            .unwrap_or(0);
        let to = (to..text.len())
            .find(|&at| utf8.is_char_boundary(at))
            .unwrap_or(text.len());
        match ranges.last_mut() {
            Some(last) if from < last.1 => last.1 = last.1.max(to),
            _ => ranges.push((from, to)),
        }
    }
    replace_ranges(text, &ranges)
}

/// Finds key blocks: from `-----BEGIN ... PRIVATE KEY...-----` to its end line, or to the end of the text. `open`: a block
/// started in the previous text. Returns whether a block continues in the next text.
fn blocks(text: &[u8], open: bool, found: &mut Vec<(usize, usize)>) -> bool {
    const BEGIN: &[u8] = b"-----BEGIN ";
    const END: &[u8] = b"-----END ";
    let end_of = |from: usize| {
        let rest = text.get(from..).unwrap_or_default();
        let line = memmem::find(rest, END)?;
        let after = rest.get(line + END.len()..)?;
        Some(
            from + line
                + END.len()
                + memmem::find(after, b"-----").map_or(after.len(), |at| at + 5),
        )
    };
    let mut at = 0;
    if open {
        let Some(end) = end_of(0) else {
            // Replace all of it, including the length of the lines.
            if !text.is_empty() {
                found.push((0, text.len()));
            }
            return true;
        };
        found.push((0, end));
        at = end;
    }
    while let Some(begin) = memmem::find(text.get(at..).unwrap_or_default(), BEGIN).map(|n| at + n)
    {
        let label = text.get(begin + BEGIN.len()..).unwrap_or_default();
        let label_len = memmem::find(label, b"-----").filter(|len| *len <= 64);
        let is_private = label_len
            .and_then(|len| label.get(..len))
            .is_some_and(|label| memmem::find(label, b"PRIVATE KEY").is_some());
        if !is_private {
            at = begin + BEGIN.len();
            continue;
        }
        let Some(end) = end_of(begin + BEGIN.len()) else {
            found.push((begin, text.len()));
            return true;
        };
        found.push((begin, end));
        at = end;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::Micros;
    use crate::model::{Flags, Pattern, Source};
    use proptest::prelude::*;
    use rmpv::Value;

    fn bytes(value: &Value) -> Vec<u8> {
        let mut out = Vec::new();
        rmpv::encode::write_value(&mut out, value).unwrap();
        out
    }

    fn map(pairs: &[(&str, Value)]) -> Value {
        Value::Map(
            pairs
                .iter()
                .map(|(k, v)| ((*k).into(), v.clone()))
                .collect(),
        )
    }

    fn list(items: &[&str]) -> Value {
        Value::Array(items.iter().map(|item| Value::from(*item)).collect())
    }

    fn rule() -> RedactRule {
        RedactRule {
            name: "r".into(),
            ..RedactRule::default()
        }
    }

    fn globs(texts: &[&str]) -> Vec<Glob> {
        texts.iter().map(|text| Glob::new(text)).collect()
    }

    fn of<'a>(kind: Kind, fun: &'static str, body: &'a [u8]) -> Entry<'a> {
        Entry {
            kind,
            source: Source::Bus,
            flags: Flags::default(),
            at: Micros(0),
            tag: b"t",
            jid: "1",
            minion: "web1",
            fun,
            retcode: 0,
            body,
        }
    }

    fn redacted(rules: &[RedactRule], kind: Kind, fun: &'static str, value: &Value) -> Value {
        let body = bytes(value);
        match Redactor::new(rules).redact(&of(kind, fun, &body)) {
            Redacted::Untouched => value.clone(),
            Redacted::Changed(body) | Redacted::Unparsed(body) => {
                let mut rest = body.as_slice();
                let value = rmpv::decode::read_value(&mut rest).unwrap();
                assert!(rest.is_empty(), "exactly one value");
                value
            }
        }
    }

    #[test]
    fn values_are_redacted_by_key_at_any_depth() {
        let passwords = RedactRule {
            builtin: Some(Builtin::Passwords),
            ..rule()
        };
        let value = map(&[
            ("jid", "1".into()),
            (
                "return",
                Value::Array(vec![map(&[
                    ("DB_PASSWORD", "a".into()),
                    ("passwd", 5.into()),
                    ("token", map(&[("x", "y".into())])),
                    ("password_changed", true.into()),
                    ("secret", Value::Nil),
                    ("name", "password".into()),
                ])]),
            ),
        ]);
        let expected = map(&[
            ("jid", "1".into()),
            (
                "return",
                Value::Array(vec![map(&[
                    ("DB_PASSWORD", REDACTED.into()),
                    ("passwd", REDACTED.into()),
                    ("token", REDACTED.into()),
                    ("password_changed", true.into()),
                    ("secret", Value::Nil),
                    ("name", "password".into()),
                ])]),
            ),
        ]);
        assert_eq!(redacted(&[passwords], Kind::Return, "x", &value), expected);
    }

    #[test]
    fn values_are_redacted_by_path_including_list_indexes() {
        let paths = RedactRule {
            paths: vec![globs(&["return", "*", "pin"]), globs(&["fun_args", "1"])],
            ..rule()
        };
        let value = |pin: &str, arg: &str| {
            map(&[
                ("pin", "here".into()),
                (
                    "return",
                    map(&[(
                        "a",
                        map(&[("pin", pin.into()), ("b", map(&[("pin", "deep".into())]))]),
                    )]),
                ),
                ("fun_args", list(&["zero", arg])),
            ])
        };
        assert_eq!(
            redacted(&[paths], Kind::Return, "x", &value("1234", "one")),
            value(REDACTED, REDACTED)
        );
    }

    #[test]
    fn patterns_replace_only_the_matching_part() {
        let rules = [RedactRule {
            patterns: vec![
                Pattern::new("AKIA[0-9A-Z]{4}").unwrap(),
                Pattern::new("(?i)bearer [a-z]+").unwrap(),
            ],
            ..rule()
        }];
        let value = |text: &str, bin: &[u8]| {
            map(&[(
                "return",
                Value::Array(vec![text.into(), Value::Binary(bin.to_vec())]),
            )])
        };
        let before = value(
            "key AKIA1234 and Bearer abc, AKIA99",
            b"\xff\xfeAKIAZZZZ\xff",
        );
        let after = value(
            "key [redacted] and [redacted], AKIA99",
            b"\xff\xfe[redacted]\xff",
        );
        assert_eq!(redacted(&rules, Kind::Return, "x", &before), after);
        // A match that ends inside a character covers the whole character: the text stays UTF-8.
        let halves = [RedactRule {
            patterns: vec![Pattern::new("x.").unwrap()],
            ..rule()
        }];
        assert_eq!(
            redacted(&halves, Kind::Event, "", &map(&[("a", "1xé2".into())])),
            map(&[("a", "1[redacted]2".into())])
        );
    }

    #[test]
    fn private_keys_are_redacted_from_begin_to_end_line() {
        let keys = [RedactRule {
            builtin: Some(Builtin::PrivateKeys),
            ..rule()
        }];
        let check = |before: Value, after: Value| {
            let of = |value| map(&[("return", value)]);
            assert_eq!(redacted(&keys, Kind::Return, "x", &of(before)), of(after));
        };
        let pem = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----";
        check(
            format!("a\n{pem}\nb\n{pem}").into(),
            format!("a\n{REDACTED}\nb\n{REDACTED}").into(),
        );
        check(
            "x -----BEGIN PRIVATE KEY-----\nMIIE".into(),
            format!("x {REDACTED}").into(),
        );
        check(
            "-----BEGIN PGP PRIVATE KEY BLOCK-----\nx\n-----END PGP PRIVATE KEY BLOCK-----!".into(),
            format!("{REDACTED}!").into(),
        );
        let public = "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----";
        check(public.into(), public.into());
        // As a list of lines, like the result of `file.readlines`.
        check(
            list(&[
                "a",
                "-----BEGIN EC PRIVATE KEY-----",
                "MIIE",
                "AAAA",
                "-----END EC PRIVATE KEY-----",
                "b",
            ]),
            list(&["a", REDACTED, REDACTED, REDACTED, REDACTED, "b"]),
        );
        check(
            Value::Array(vec![
                list(&["-----BEGIN PRIVATE KEY-----"]),
                "not of it".into(),
            ]),
            Value::Array(vec![list(&[REDACTED]), "not of it".into()]),
        );
    }

    #[test]
    fn pillar_is_redacted_from_returns_of_its_functions_and_from_loads() {
        let pillar = [RedactRule {
            builtin: Some(Builtin::Pillar),
            ..rule()
        }];
        let answer = |value: Value| {
            map(&[
                ("fun", "pillar.items".into()),
                ("retcode", 0.into()),
                ("return", value),
            ])
        };
        let before = answer(map(&[("k", "v".into())]));
        assert_eq!(
            redacted(&pillar, Kind::Return, "pillar.items", &before),
            answer(REDACTED.into())
        );
        assert_eq!(
            redacted(&pillar, Kind::Return, "test.ping", &before),
            before
        );
        let several = |value: Value| {
            map(&[
                ("fun", list(&["test.ping", "pillar.get"])),
                ("return", value),
            ])
        };
        assert_eq!(
            redacted(&pillar, Kind::Return, "", &several("v".into())),
            several(REDACTED.into())
        );
        let load = |pillar: Value| {
            let arg = Value::Array(vec![map(&[("__kwarg__", true.into()), ("pillar", pillar)])]);
            Value::Array(vec![
                map(&[("fun", "state.apply".into()), ("arg", arg)]),
                list(&["web1"]),
            ])
        };
        assert_eq!(
            redacted(
                &pillar,
                Kind::Load,
                "state.apply",
                &load(map(&[("a", 1.into())]))
            ),
            load(REDACTED.into())
        );
    }

    #[test]
    fn structural_keys_of_a_job_are_kept() {
        let all = [RedactRule {
            keys: globs(&["*"]),
            patterns: vec![Pattern::new("[a-z0-9.]+").unwrap()],
            ..rule()
        }];
        let value = |rest: &str| {
            map(&[
                ("jid", "2026".into()),
                ("id", "web1".into()),
                ("fun", "test.ping".into()),
                ("retcode", 0.into()),
                ("success", true.into()),
                ("_stamp", "2026-11-21".into()),
                ("return", rest.into()),
            ])
        };
        assert_eq!(
            redacted(&all, Kind::Return, "test.ping", &value("secret")),
            value(REDACTED)
        );
        // Only at the top: returned data can contain such keys, too.
        let inner = |id: &str| map(&[("return", map(&[("id", id.into())]))]);
        let ids = [RedactRule {
            keys: globs(&["id"]),
            ..rule()
        }];
        assert_eq!(
            redacted(&ids, Kind::Return, "x", &inner("secret")),
            inner(REDACTED)
        );
    }

    #[test]
    fn a_rule_applies_to_its_scope_only() {
        let vault = [RedactRule {
            fun: globs(&["vault.*"]),
            paths: vec![globs(&["return"])],
            ..rule()
        }];
        let value = map(&[("return", "x".into())]);
        assert_eq!(
            redacted(&vault, Kind::Return, "vault.read", &value),
            map(&[("return", REDACTED.into())])
        );
        assert_eq!(redacted(&vault, Kind::Return, "test.ping", &value), value);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            any::<i64>().prop_map(Value::from),
            "[a-c]{0,40}".prop_map(Value::from),
            prop::collection::vec(any::<u8>(), 0..20).prop_map(Value::Binary),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..20).prop_map(Value::Array),
                prop::collection::vec(("[a-c]{1,2}".prop_map(Value::from), inner), 0..20)
                    .prop_map(Value::Map),
            ]
        })
    }

    fn clean(value: &Value) -> bool {
        match value {
            Value::Map(pairs) => pairs.iter().all(|(k, v)| {
                let redacted = k
                    .as_str()
                    .is_some_and(|k| k.len() == 2 && k.starts_with('a'));
                if redacted {
                    v.is_nil() || *v == Value::from(REDACTED)
                } else {
                    clean(v)
                }
            }),
            Value::Array(items) => items.iter().all(clean),
            Value::String(text) => !text.as_str().is_some_and(|text| text.contains("cb")),
            Value::Binary(bytes) => memmem::find(bytes, b"cb").is_none(),
            _ => true,
        }
    }

    proptest! {
        #[test]
        fn redaction_yields_one_value_without_the_selected_parts(value in any_value()) {
            let rules = [RedactRule { keys: globs(&["a?"]), patterns: vec![Pattern::new("cb+").unwrap()], ..rule() }];
            let body = bytes(&value);
            let once = match Redactor::new(&rules).redact(&of(Kind::Register, "", &body)) {
                Redacted::Untouched => body.clone(),
                Redacted::Changed(body) => body,
                Redacted::Unparsed(_) => panic!("it is msgpack"),
            };
            let mut rest = once.as_slice();
            let read = rmpv::decode::read_value(&mut rest).unwrap();
            prop_assert!(rest.is_empty());
            prop_assert!(clean(&read), "{read}");
            prop_assert_eq!(Redactor::new(&rules).redact(&of(Kind::Register, "", &once)), Redacted::Untouched);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let rules = [RedactRule { keys: globs(&["*"]), builtin: Some(Builtin::PrivateKeys), ..rule() }];
            for kind in [Kind::Event, Kind::Load, Kind::Register] {
                if let Redacted::Changed(body) = Redactor::new(&rules).redact(&of(kind, "", &body)) {
                    prop_assert_eq!(Reader::new(&body).value().map(<[u8]>::len), Ok(body.len()));
                }
            }
        }
    }
}
