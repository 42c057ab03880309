//! Redaction: what rules name is replaced in an entry's msgpack before the entry goes anywhere.
//!
//! One walk over the body notes what goes; the rest is copied as it came, so the result is msgpack of the same shape.
//! A value that goes becomes the text [`REDACTED`], unless it is nil or a truth value: those are no secrets, and callers test
//! them. In a text only what a pattern matches becomes it.
//!
//! The keys by which Salt and the store know a job ([`STRUCTURAL`]) are never touched at the top of a return, an event or a
//! load. Data that cannot be walked is replaced as a whole: better lost than stored in the clear.

use std::sync::atomic::{AtomicU64, Ordering};

use memchr::memmem;
use regex::bytes::Regex;

use super::gate::funs_of;
use crate::limits::MSGPACK_DEPTH_MAX;
use crate::model::{Builtin, Entry, Glob, Kind, REDACTED, RedactRule, Scope};
use crate::wire::msgpack::{DecodeError, Head, Reader, Writer, as_text};

/// Top-level keys that stay as they are.
pub const STRUCTURAL: [&str; 13] = [
    "_stamp", "cmd", "fun", "id", "jid", "minions", "Minions", "nocache", "retcode", "success", "tgt",
    "tgt_type", "out",
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

/// What became of an entry's body.
#[derive(Debug, PartialEq, Eq)]
pub enum Redacted {
    /// No rule has anything to do with it.
    Untouched,
    /// These bytes stand for it.
    Changed(Vec<u8>),
    /// It could not be walked; these bytes stand for all of it.
    Blind(Vec<u8>),
}

/// The rules, ready to run.
pub struct Redactor {
    parts: Vec<Part>,
    counts: Vec<(String, AtomicU64)>,
}

/// A rule, or a part of one that has a scope of its own.
struct Part {
    /// Its place among the counts.
    rule: usize,
    scope: Scope,
    keys: Vec<KeyGlob>,
    /// Matches wherever a key that goes could stand; none if there is no telling.
    hint: Option<Regex>,
    paths: Vec<Vec<Glob>>,
    patterns: Vec<Regex>,
    blocks: bool,
}

/// A glob over keys, without regard to case. The usual ones are no work.
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

    /// `key` is in lower case.
    fn matches(&self, key: &[u8]) -> bool {
        match self {
            Self::Is(text) => key == text,
            Self::Contains(text) => {
                text.len() <= key.len() && key.windows(text.len()).any(|part| part == text.as_slice())
            }
            Self::Other(glob) => glob.matches_bytes(key),
        }
    }
}

impl Part {
    fn new(rule: usize, scope: &Scope, keys: &[Glob]) -> Self {
        Self {
            rule,
            scope: scope.clone(),
            keys: keys.iter().map(KeyGlob::new).collect(),
            hint: hint(keys),
            paths: Vec::new(),
            patterns: Vec::new(),
            blocks: false,
        }
    }

    /// Could it find anything in these bytes?
    fn may_find(&self, body: &[u8]) -> bool {
        let by_key = || !self.keys.is_empty() && self.hint.as_ref().is_none_or(|hint| hint.is_match(body));
        let by_block = || self.blocks && memmem::find(body, b"-----BEGIN ").is_some();
        !self.paths.is_empty() || !self.patterns.is_empty() || by_key() || by_block()
    }
}

/// An expression that matches every text with a key that one of the globs takes.
fn hint(keys: &[Glob]) -> Option<Regex> {
    let longest = |glob: &Glob| {
        let literals = glob.literals().into_iter().map(|literal| literal.text);
        literals.max_by_key(String::len).filter(|text| text.is_ascii() && text.len() > 1)
    };
    let words: Option<Vec<String>> =
        keys.iter().map(|glob| longest(glob).map(|text| regex::escape(&text))).collect();
    let pattern = format!("(?i-u:{})", words.filter(|words| !words.is_empty())?.join("|"));
    Regex::new(&pattern).ok()
}

impl Redactor {
    /// Makes the rules ready.
    pub fn new(rules: &[RedactRule]) -> Self {
        let globs = |texts: &[&str]| texts.iter().map(|text| Glob::new(text)).collect::<Vec<_>>();
        let mut parts = Vec::new();
        for (n, rule) in rules.iter().enumerate() {
            let mut part = Part::new(n, &rule.scope, &rule.keys);
            part.paths.clone_from(&rule.paths);
            part.patterns = rule.patterns.iter().map(|pattern| pattern.regex().clone()).collect();
            part.blocks = rule.builtin == Some(Builtin::PrivateKeys);
            match rule.builtin {
                Some(Builtin::Passwords) => parts.push(Part::new(n, &rule.scope, &globs(&PASSWORD_KEYS))),
                Some(Builtin::Pillar) => {
                    parts.push(Part::new(n, &rule.scope, &globs(&["pillar", "pillar_override"])));
                    let scope = Scope { fun: globs(&["pillar.*", "runner.pillar.*"]), ..rule.scope.clone() };
                    let mut returns = Part::new(n, &scope, &[]);
                    returns.paths = vec![globs(&["return"])];
                    parts.push(returns);
                }
                Some(Builtin::PrivateKeys) | None => {}
            }
            parts.push(part);
        }
        let counts = rules.iter().map(|rule| (rule.name.clone(), AtomicU64::new(0))).collect();
        Self { parts, counts }
    }

    /// Per rule, how many entries it has changed.
    pub fn counts(&self) -> Vec<(String, u64)> {
        self.counts.iter().map(|(name, count)| (name.clone(), count.load(Ordering::Relaxed))).collect()
    }

    /// The body of an entry as it may be stored.
    pub fn redact(&self, entry: &Entry<'_>) -> Redacted {
        let body = entry.body;
        let root = match entry.kind {
            Kind::Event | Kind::JobNew | Kind::Return | Kind::Register => body,
            // The load is the first of two; the minions beside it are names.
            Kind::Load | Kind::ReturnLoad => match body.split_first() {
                Some((0x92, rest)) => rest,
                _ => body,
            },
            Kind::Minions | Kind::Endtime | Kind::NoCache | Kind::Gap | Kind::Reaction | Kind::Heard => {
                return Redacted::Untouched;
            }
        };
        let concerned: Vec<&Part> = self
            .parts
            .iter()
            .filter(|part| part.scope.takes(entry, || funs_of(root)) && part.may_find(body))
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
            let mut blot = Writer::new();
            blot.str(REDACTED);
            return Redacted::Blind(blot.into_bytes());
        }
        if walk.edits.is_empty() {
            return Redacted::Untouched;
        }
        for (n, (_, count)) in self.counts.iter().enumerate() {
            count.fetch_add(walk.rules >> n & 1, Ordering::Relaxed);
        }
        Redacted::Changed(spliced(body, body.len() - root.len(), &walk.edits))
    }
}

/// `body` with the edits made; their places count from `from`.
fn spliced(body: &[u8], from: usize, edits: &[Edit]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len());
    let mut done = 0;
    for edit in edits {
        out.extend_from_slice(body.get(done..from + edit.from).unwrap_or_default());
        out.extend_from_slice(&edit.value);
        done = from + edit.to;
    }
    out.extend_from_slice(body.get(done..).unwrap_or_default());
    out
}

/// Other bytes for a value.
struct Edit {
    from: usize,
    to: usize,
    value: Vec<u8>,
}

/// A step from a value down to one in it.
enum Step<'a> {
    Key(&'a [u8]),
    Place(usize),
}

impl Step<'_> {
    fn matches(&self, glob: &Glob) -> bool {
        match self {
            Step::Key(key) => glob.matches_bytes(key),
            Step::Place(place) => glob.matches(&place.to_string()),
        }
    }
}

struct Walk<'w, 'a> {
    parts: &'w [&'w Part],
    /// Top-level keys of Salt's own stay.
    spares: bool,
    len: usize,
    path: Vec<Step<'a>>,
    edits: Vec<Edit>,
    /// A bit per rule that has changed something.
    rules: u64,
    /// A key block was begun in a text of this list, and has not ended.
    open: bool,
}

impl<'a> Walk<'_, 'a> {
    fn value(&mut self, reader: &mut Reader<'a>) -> Result<(), DecodeError> {
        let from = self.len - reader.rest().len();
        let mut content = *reader;
        match content.head()? {
            // Deeper than anybody reads again.
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
                    self.path.push(Step::Key(key));
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
                for place in 0..count {
                    self.path.push(Step::Place(place));
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
        self.edits.push(Edit { from, to: self.len - reader.rest().len(), value: value.into_bytes() });
    }

    /// The value at the end of the path.
    fn item(&mut self, reader: &mut Reader<'a>) -> Result<(), DecodeError> {
        let Some(rule) = self.named() else { return self.value(reader) };
        let from = self.len - reader.rest().len();
        let mut content = *reader;
        let value = reader.value()?;
        // No secret, or none any more.
        let harmless =
            matches!(content.head()?, Head::Nil | Head::Bool(_)) || as_text(value) == Some(REDACTED);
        if !harmless {
            self.rules |= bit(rule);
            self.edit(from, reader, |w| {
                w.str(REDACTED);
            });
        }
        Ok(())
    }

    /// The rule that names the value at the end of the path by its key or by the path.
    fn named(&self) -> Option<usize> {
        let lower = match self.path.last() {
            Some(Step::Key(key)) => key.to_ascii_lowercase(),
            _ => Vec::new(),
        };
        let by_key = |part: &Part| !lower.is_empty() && part.keys.iter().any(|glob| glob.matches(&lower));
        let by_path = |part: &Part| {
            let is_it = |globs: &Vec<Glob>| {
                globs.len() == self.path.len()
                    && globs.iter().zip(&self.path).all(|(glob, step)| step.matches(glob))
            };
            part.paths.iter().any(is_it)
        };
        self.parts.iter().find(|part| by_key(part) || by_path(part)).map(|part| part.rule)
    }

    /// A text as it may be stored, if not as it is.
    fn text(&mut self, text: &[u8]) -> Option<Vec<u8>> {
        let mut changed: Option<Vec<u8>> = None;
        for part in self.parts {
            let mut stretches = Vec::new();
            let now = changed.as_deref().unwrap_or(text);
            if part.blocks {
                self.open = blocks(now, self.open, &mut stretches);
            }
            let blotted = blotted(now, &stretches);
            let mut redacted = blotted.is_some();
            changed = blotted.or(changed);
            for pattern in &part.patterns {
                let now = changed.as_deref().unwrap_or(text);
                let found: Vec<_> =
                    pattern.find_iter(now).map(|found| (found.start(), found.end())).collect();
                if let Some(blotted) = blotted_whole_characters(now, &found) {
                    (changed, redacted) = (Some(blotted), true);
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
    1_u64.checked_shl(u32::try_from(rule).unwrap_or(u32::MAX)).unwrap_or(0)
}

/// The text with stretches of it blotted out; `None` if there are none.
fn blotted(text: &[u8], stretches: &[(usize, usize)]) -> Option<Vec<u8>> {
    if stretches.is_empty() {
        return None;
    }
    let mut out = Vec::with_capacity(text.len());
    let mut done = 0;
    for &(from, to) in stretches {
        out.extend_from_slice(text.get(done..from).unwrap_or_default());
        out.extend_from_slice(REDACTED.as_bytes());
        done = to;
    }
    out.extend_from_slice(text.get(done..).unwrap_or_default());
    Some(out)
}

/// As [`blotted`]; what begins or ends inside a character of UTF-8 takes the whole of it.
fn blotted_whole_characters(text: &[u8], found: &[(usize, usize)]) -> Option<Vec<u8>> {
    if found.is_empty() {
        return None;
    }
    let Ok(utf8) = std::str::from_utf8(text) else { return blotted(text, found) };
    let mut stretches: Vec<(usize, usize)> = Vec::new();
    for &(from, to) in found {
        let from = (0..=from).rev().find(|&at| utf8.is_char_boundary(at)).unwrap_or(0);
        let to = (to..text.len()).find(|&at| utf8.is_char_boundary(at)).unwrap_or(text.len());
        match stretches.last_mut() {
            Some(last) if from < last.1 => last.1 = last.1.max(to),
            _ => stretches.push((from, to)),
        }
    }
    blotted(text, &stretches)
}

/// Finds key blocks: from `-----BEGIN ... PRIVATE KEY...-----` to the end that belongs to it, or to the end of the text. `open`
/// says that one was begun in the text before; what is returned, that one goes on in the text after.
fn blocks(text: &[u8], open: bool, found: &mut Vec<(usize, usize)>) -> bool {
    const BEGIN: &[u8] = b"-----BEGIN ";
    const END: &[u8] = b"-----END ";
    let end_of = |from: usize| {
        let rest = text.get(from..).unwrap_or_default();
        let line = memmem::find(rest, END)?;
        let after = rest.get(line + END.len()..)?;
        Some(from + line + END.len() + memmem::find(after, b"-----").map_or(after.len(), |at| at + 5))
    };
    let mut at = 0;
    if open {
        let Some(end) = end_of(0) else {
            // Nothing of it is worth keeping, not even how long the lines are.
            if !text.is_empty() {
                found.push((0, text.len()));
            }
            return true;
        };
        found.push((0, end));
        at = end;
    }
    while let Some(begin) = memmem::find(text.get(at..).unwrap_or_default(), BEGIN).map(|n| at + n) {
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
    use crate::clock::Micros;
    use crate::model::{Flags, Pattern, Source};
    use proptest::prelude::*;
    use rmpv::Value;

    fn bytes(value: &Value) -> Vec<u8> {
        let mut out = Vec::new();
        rmpv::encode::write_value(&mut out, value).unwrap();
        out
    }

    fn map(pairs: &[(&str, Value)]) -> Value {
        Value::Map(pairs.iter().map(|(k, v)| ((*k).into(), v.clone())).collect())
    }

    fn list(items: &[&str]) -> Value {
        Value::Array(items.iter().map(|item| Value::from(*item)).collect())
    }

    fn rule() -> RedactRule {
        RedactRule { name: "r".into(), ..RedactRule::default() }
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

    /// What a value becomes.
    fn redacted(rules: &[RedactRule], kind: Kind, fun: &'static str, value: &Value) -> Value {
        let body = bytes(value);
        match Redactor::new(rules).redact(&of(kind, fun, &body)) {
            Redacted::Untouched => value.clone(),
            Redacted::Changed(body) | Redacted::Blind(body) => {
                let mut rest = body.as_slice();
                let value = rmpv::decode::read_value(&mut rest).unwrap();
                assert!(rest.is_empty(), "one value, and nothing behind it");
                value
            }
        }
    }

    #[test]
    fn values_go_by_the_name_of_their_key_at_any_depth() {
        let passwords = RedactRule { builtin: Some(Builtin::Passwords), ..rule() };
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
    fn values_go_by_their_path_and_lists_count_their_items() {
        let paths =
            RedactRule { paths: vec![globs(&["return", "*", "pin"]), globs(&["fun_args", "1"])], ..rule() };
        let value = |pin: &str, arg: &str| {
            map(&[
                ("pin", "here".into()),
                ("return", map(&[("a", map(&[("pin", pin.into()), ("b", map(&[("pin", "deep".into())]))]))])),
                ("fun_args", list(&["zero", arg])),
            ])
        };
        assert_eq!(redacted(&[paths], Kind::Return, "x", &value("1234", "one")), value(REDACTED, REDACTED));
    }

    #[test]
    fn patterns_take_what_matches_and_leave_the_rest() {
        let rules = [RedactRule {
            patterns: vec![
                Pattern::new("AKIA[0-9A-Z]{4}").unwrap(),
                Pattern::new("(?i)bearer [a-z]+").unwrap(),
            ],
            ..rule()
        }];
        let value = |text: &str, bin: &[u8]| {
            map(&[("return", Value::Array(vec![text.into(), Value::Binary(bin.to_vec())]))])
        };
        let before = value("key AKIA1234 and Bearer abc, AKIA99", b"\xff\xfeAKIAZZZZ\xff");
        let after = value("key [redacted] and [redacted], AKIA99", b"\xff\xfe[redacted]\xff");
        assert_eq!(redacted(&rules, Kind::Return, "x", &before), after);
        // A match that ends inside a character takes the whole of it: the text stays UTF-8.
        let halves = [RedactRule { patterns: vec![Pattern::new("x.").unwrap()], ..rule() }];
        assert_eq!(
            redacted(&halves, Kind::Event, "", &map(&[("a", "1xé2".into())])),
            map(&[("a", "1[redacted]2".into())])
        );
    }

    #[test]
    fn private_keys_go_from_their_begin_to_their_end() {
        let keys = [RedactRule { builtin: Some(Builtin::PrivateKeys), ..rule() }];
        let check = |before: Value, after: Value| {
            let of = |value| map(&[("return", value)]);
            assert_eq!(redacted(&keys, Kind::Return, "x", &of(before)), of(after));
        };
        let pem = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----";
        check(format!("a\n{pem}\nb\n{pem}").into(), format!("a\n{REDACTED}\nb\n{REDACTED}").into());
        check("x -----BEGIN PRIVATE KEY-----\nMIIE".into(), format!("x {REDACTED}").into());
        check(
            "-----BEGIN PGP PRIVATE KEY BLOCK-----\nx\n-----END PGP PRIVATE KEY BLOCK-----!".into(),
            format!("{REDACTED}!").into(),
        );
        let public = "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----";
        check(public.into(), public.into());
        // As a list of lines, as `file.readlines` gives it.
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
            Value::Array(vec![list(&["-----BEGIN PRIVATE KEY-----"]), "not of it".into()]),
            Value::Array(vec![list(&[REDACTED]), "not of it".into()]),
        );
    }

    #[test]
    fn pillar_goes_from_returns_of_its_functions_and_from_command_lines() {
        let pillar = [RedactRule { builtin: Some(Builtin::Pillar), ..rule() }];
        let answer =
            |value: Value| map(&[("fun", "pillar.items".into()), ("retcode", 0.into()), ("return", value)]);
        let before = answer(map(&[("k", "v".into())]));
        assert_eq!(redacted(&pillar, Kind::Return, "pillar.items", &before), answer(REDACTED.into()));
        assert_eq!(redacted(&pillar, Kind::Return, "test.ping", &before), before);
        let several = |value: Value| map(&[("fun", list(&["test.ping", "pillar.get"])), ("return", value)]);
        assert_eq!(redacted(&pillar, Kind::Return, "", &several("v".into())), several(REDACTED.into()));
        let load = |pillar: Value| {
            let arg = Value::Array(vec![map(&[("__kwarg__", true.into()), ("pillar", pillar)])]);
            Value::Array(vec![map(&[("fun", "state.apply".into()), ("arg", arg)]), list(&["web1"])])
        };
        assert_eq!(
            redacted(&pillar, Kind::Load, "state.apply", &load(map(&[("a", 1.into())]))),
            load(REDACTED.into())
        );
    }

    #[test]
    fn what_tells_one_job_from_another_stays() {
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
        assert_eq!(redacted(&all, Kind::Return, "test.ping", &value("secret")), value(REDACTED));
        // Only at the top: what a minion returns may have such keys, too.
        let inner = |id: &str| map(&[("return", map(&[("id", id.into())]))]);
        let ids = [RedactRule { keys: globs(&["id"]), ..rule() }];
        assert_eq!(redacted(&ids, Kind::Return, "x", &inner("secret")), inner(REDACTED));
    }

    #[test]
    fn a_rule_is_about_its_scope_only() {
        let scope = Scope { fun: globs(&["vault.*"]), ..Scope::default() };
        let vault = [RedactRule { scope, paths: vec![globs(&["return"])], ..rule() }];
        let value = map(&[("return", "x".into())]);
        assert_eq!(redacted(&vault, Kind::Return, "vault.read", &value), map(&[("return", REDACTED.into())]));
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
                let goes = k.as_str().is_some_and(|k| k.len() == 2 && k.starts_with('a'));
                if goes { v.is_nil() || *v == Value::from(REDACTED) } else { clean(v) }
            }),
            Value::Array(items) => items.iter().all(clean),
            Value::String(text) => !text.as_str().is_some_and(|text| text.contains("cb")),
            Value::Binary(bytes) => memmem::find(bytes, b"cb").is_none(),
            _ => true,
        }
    }

    proptest! {
        #[test]
        fn whatever_goes_in_one_value_comes_out_and_nothing_that_should_go(value in any_value()) {
            let rules = [RedactRule { keys: globs(&["a?"]), patterns: vec![Pattern::new("cb+").unwrap()], ..rule() }];
            let body = bytes(&value);
            let once = match Redactor::new(&rules).redact(&of(Kind::Register, "", &body)) {
                Redacted::Untouched => body.clone(),
                Redacted::Changed(body) => body,
                Redacted::Blind(_) => panic!("it is msgpack"),
            };
            let mut rest = once.as_slice();
            let read = rmpv::decode::read_value(&mut rest).unwrap();
            prop_assert!(rest.is_empty());
            prop_assert!(clean(&read), "{read}");
            prop_assert_eq!(Redactor::new(&rules).redact(&of(Kind::Register, "", &once)), Redacted::Untouched);
        }

        #[test]
        fn no_bytes_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let rules = [RedactRule { keys: globs(&["*"]), builtin: Some(Builtin::PrivateKeys), ..rule() }];
            for kind in [Kind::Event, Kind::Load, Kind::Register] {
                if let Redacted::Changed(body) = Redactor::new(&rules).redact(&of(kind, "", &body)) {
                    prop_assert_eq!(Reader::new(&body).value().map(<[u8]>::len), Ok(body.len()));
                }
            }
        }
    }
}
