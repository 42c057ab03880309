//! Redaction of an entry's msgpack.
//!
//! One walk over the body collects the values to replace; the rest is copied unchanged, so the result is msgpack of the same structure.
//! A redacted value becomes the text [`REDACTED`], unless it is nil or a boolean: those are not secret, and callers test
//! them. A pattern replaces only the matching part of a string.
//!
//! The fields that identify a job for Salt and the store are kept at the top of a return, an event or a load, if they have a value of their
//! kind ([`is_kept`]): a name alone keeps nothing. A pattern also applies to the keys of maps, except for the names of Salt's fields at
//! the top ([`FIELDS`]). Data that cannot be parsed is replaced as a whole, because storing it could expose a secret.

use std::sync::atomic::{AtomicU64, Ordering};

use memchr::memmem;
use regex::bytes::Regex;
use salt_sls::Glob;

use crate::base::limits::{MSGPACK_DEPTH_MAX, NAME_BYTES_MAX};
use crate::model::{Builtin, Entry, Kind, Names, REDACTED, RedactRule, Replaced, Scope};
use crate::wire::msgpack::{
    DecodeError, Head, Reader, Writer, as_bool, as_int, as_text, elements, get, pairs,
};
use crate::wire::salt_event::funs_of;

/// Names of Salt's fields, which are public: at the top they are no secrets, whatever a pattern matches.
pub const FIELDS: [&str; 32] = [
    "_stamp",
    "act",
    "arg",
    "cmd",
    "data",
    "full_ret",
    "fun",
    "fun_args",
    "id",
    "jid",
    "key",
    "kwargs",
    "master_id",
    "metadata",
    "minions",
    "Minions",
    "missing",
    "nocache",
    "out",
    "path",
    "post",
    "pretag",
    "result",
    "ret",
    "retcode",
    "return",
    "schedule",
    "success",
    "tag",
    "tgt",
    "tgt_type",
    "user",
];

/// Whether the value of a field at the top is of the field's kind, so that it is kept. `value` is msgpack; `is_own` is true for the
/// functions in the event's `fun`: a string that only looks like a function may be anything.
///
/// | field | kind |
/// |---|---|
/// | `jid` | digits, with `_<pid>` |
/// | `id` | a minion's id: no white space, control characters or slashes |
/// | `fun` | a function, or a list of functions |
/// | `minions`, `Minions` | a list of minion ids |
/// | `retcode` | an integer, a list of them, or a map to them of functions in the event's `fun` |
/// | `success` | likewise with booleans |
/// | `_stamp` | a time |
/// | `cmd`, `out`, `tgt_type` | a word |
pub fn is_kept(field: &[u8], value: &[u8], is_own: impl Fn(&str) -> bool) -> bool {
    let is_text = |is: fn(&str) -> bool| as_text(value).is_some_and(is);
    // The head is checked, because any other value has no elements, and would pass as an empty
    // list.
    let is_list = |is: fn(&[u8]) -> bool| {
        matches!(Reader::new(value).head(), Ok(Head::Array(_))) && elements(value).all(is)
    };

    let by_function = |is: fn(&[u8]) -> bool| {
        let is_pair = |(key, value): (&[u8], &[u8])| as_text(key).is_some_and(&is_own) && is(value);
        matches!(Reader::new(value).head(), Ok(Head::Map(_))) && pairs(value).all(is_pair)
    };

    match field {
        b"jid" => is_text(is_jid),
        b"id" => is_text(is_minion),
        b"fun" => is_text(is_function) || is_list(|item| as_text(item).is_some_and(is_function)),
        b"minions" | b"Minions" => is_list(|item| as_text(item).is_some_and(is_minion)),
        // Salt sends one value for a function, and for several functions a list or a map by
        // function.
        b"retcode" => {
            let is = |item: &[u8]| as_int(item).is_some();
            is(value) || is_list(is) || by_function(is)
        }
        b"success" => {
            let is = |item: &[u8]| as_bool(item).is_some();
            is(value) || is_list(is) || by_function(is)
        }
        b"_stamp" => is_text(is_time),
        b"cmd" | b"out" | b"tgt_type" => is_text(is_word),
        // Everything else can contain anything, `return` and `fun_args` in particular.
        _ => false,
    }
}

fn is_jid(text: &str) -> bool {
    text == "req" || text.len() <= 64 && text.bytes().all(|b| b.is_ascii_digit() || b == b'_')
}

fn is_minion(text: &str) -> bool {
    let is_outside = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '\\');
    text.len() <= NAME_BYTES_MAX && !text.contains(is_outside)
}

fn is_function(text: &str) -> bool {
    let is_inside = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    text.len() <= NAME_BYTES_MAX && text.bytes().all(is_inside)
}

fn is_time(text: &str) -> bool {
    let is_inside =
        |b: u8| b.is_ascii_digit() || matches!(b, b'-' | b'+' | b':' | b'.' | b' ' | b'T' | b'Z');
    text.len() <= 40 && text.bytes().all(is_inside)
}

fn is_word(text: &str) -> bool {
    text.len() <= 32 && text.bytes().all(|b| b.is_ascii_alphabetic() || b == b'_')
}

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
    /// A further condition.
    within: Option<Scope>,
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
            within: None,
            keys: keys.iter().map(KeyGlob::new).collect(),
            hint: hint(keys),
            paths: Vec::new(),
            patterns: Vec::new(),
            blocks: false,
        }
    }

    fn is_for(&self, entry: &Entry<'_>, root: &[u8]) -> bool {
        let mut scopes = std::iter::once(&self.scope).chain(&self.within);
        scopes.all(|scope| scope.matches(entry, || funs_of(root)))
    }

    /// Whether it can match anything in these bytes.
    fn may_find(&self, body: &[u8]) -> bool {
        let by_key =
            || !self.keys.is_empty() && self.hint.as_ref().is_none_or(|hint| hint.is_match(body));
        let by_block = || self.blocks && memmem::find(body, b"-----BEGIN ").is_some();
        !self.paths.is_empty() || !self.patterns.is_empty() || by_key() || by_block()
    }
}

/// An expression that matches every body with a key of one of the globs.
fn hint(keys: &[Glob]) -> Option<Regex> {
    let longest = |glob: &Glob| {
        let literals = glob.literals().into_iter().map(|literal| literal.text);

        // Bytes outside ASCII do not match in either case, and a single letter is in nearly every
        // body.
        literals
            .max_by_key(String::len)
            .filter(|text| text.is_ascii() && text.len() > 1)
    };

    // One glob without a literal makes the hint useless, because its key can be any string.
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
            // All parts of a rule have its number, because changes are counted per rule.
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

                    // Whatever a function of `pillar` returns is pillar data.
                    // A separate part, because it applies to the returns of these functions only.
                    let mut returns = CompiledRule::new(n, rule.scope(), &[]);
                    returns.within = Some(Scope {
                        fun: globs(&["pillar.*", "runner.pillar.*"]),
                        ..Scope::default()
                    });
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

    /// The redacted body and names of an entry; nothing if there is nothing to redact.
    pub(crate) fn replaced(&self, entry: &Entry<'_>) -> Replaced {
        Replaced {
            body: match self.redact(entry) {
                Redacted::Untouched => None,
                Redacted::Changed(body) | Redacted::Unparsed(body) => Some(body),
            },
            names: self.names(entry).map(Box::new),
        }
    }

    /// Redacts the body of an entry.
    pub fn redact(&self, entry: &Entry<'_>) -> Redacted {
        let (redacted, rules) = self.walked(entry);
        for (n, (_, count)) in self.counts.iter().enumerate() {
            count.fetch_add(rules >> n & 1, Ordering::Relaxed);
        }
        redacted
    }

    /// Redacts the names that the store keeps in addition to the body, by the rules for the fields
    /// of a body: a name of its kind is kept. `None` if all are kept.
    pub(crate) fn names(&self, entry: &Entry<'_>) -> Option<Names> {
        let own = [
            ("jid", entry.jid, is_jid as fn(&str) -> bool),
            ("id", entry.minion, is_minion),
            ("fun", entry.fun, is_function),
        ];

        let odd = own.into_iter().filter(|(_, text, is_kind)| !is_kind(text));

        // As a map, because rules select them like the fields of an event.
        let mut fields = Writer::new();
        fields.map(odd.clone().count());
        for (field, text, _) in odd {
            fields.str(field).str(text);
        }
        let fields = fields.into_bytes();

        // All names are of their kind, as in nearly every entry.
        if fields == [0x80] {
            return None;
        }

        let entry_of_names = Entry {
            kind: Kind::Event,
            body: &fields,
            ..*entry
        };

        // Not `redact`, which counts: the same entry is counted when its body is redacted.
        let (Redacted::Changed(fields), _) = self.walked(&entry_of_names) else {
            return None;
        };

        // Only names of another kind are among the fields; the rest stay as they were.
        let mut names = Names::of(entry);
        for (field, to) in [
            ("jid", &mut names.jid),
            ("id", &mut names.minion),
            ("fun", &mut names.fun),
        ] {
            if let Some(text) = get(&fields, field).and_then(as_text) {
                text.clone_into(to);
            }
        }

        Some(names)
    }

    /// The redacted body, with a bit per rule that has changed it.
    fn walked(&self, entry: &Entry<'_>) -> (Redacted, u64) {
        let body = entry.body;
        let root = match entry.kind {
            Kind::Event
            | Kind::JobNew
            | Kind::Return
            | Kind::Register
            | Kind::Minions
            | Kind::Reaction
            | Kind::SeenOnBus => body,
            // A load is the first of two values; the other one is a list of minion names.
            Kind::Load | Kind::ReturnLoad => match body.split_first() {
                Some((0x92, rest)) => rest,
                _ => body,
            },
            // Nothing in these is secret.
            Kind::Endtime | Kind::NoCache | Kind::Gap | Kind::Setting => {
                return (Redacted::Untouched, 0);
            }
        };

        let concerned: Vec<&CompiledRule> = self
            .parts
            .iter()
            .filter(|part| part.is_for(entry, root) && part.may_find(body))
            .collect();
        if concerned.is_empty() {
            return (Redacted::Untouched, 0);
        }

        let mut walk = Walk {
            has_texts: concerned
                .iter()
                .any(|part| part.blocks || !part.patterns.is_empty()),
            parts: &concerned,
            root,
            spares: !matches!(entry.kind, Kind::Register | Kind::Minions),
            len: root.len(),
            path: Vec::new(),
            edits: Vec::new(),
            rules: 0,
            open: false,
            lower: concerned
                .iter()
                .any(|part| !part.keys.is_empty())
                .then(Vec::new),
        };

        let mut reader = Reader::new(root);
        let mut walked = match entry.kind {
            Kind::Minions => walk.lists_of_minions(&mut reader),
            _ => walk.value(&mut reader),
        };

        if walked.is_ok() && root.len() != body.len() {
            // The minions of a load.
            walk.spares = false;
            walked = walk.minions(&mut reader);
        }

        // Bytes behind the value cannot be judged, so they count as data that cannot be parsed.
        if walked.is_err() || !reader.rest().is_empty() {
            let mut whole = Writer::new();
            whole.str(REDACTED);
            return (Redacted::Unparsed(whole.into_bytes()), walk.rules);
        }

        if walk.edits.is_empty() {
            return (Redacted::Untouched, 0);
        }

        // Ranges are relative to the root, the result is a whole body.
        let from = body.len() - root.len();
        let edits = walk
            .edits
            .iter()
            .map(|edit| (from + edit.from, from + edit.to, &*edit.value));

        (Redacted::Changed(spliced(body, edits)), walk.rules)
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
    root: &'a [u8],
    /// Keep fields of their kind, and names of fields, at the top.
    spares: bool,
    len: usize,
    path: Vec<PathStep<'a>>,
    edits: Vec<Edit>,
    /// A bit per rule that has changed something.
    rules: u64,
    /// A key block started in a string of this list and has not ended.
    open: bool,
    /// Whether any rule looks into strings.
    has_texts: bool,
    /// The last key in lower case, to reuse the memory; `None` if no rule selects by keys.
    lower: Option<Vec<u8>>,
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
                let is_top = self.spares && self.path.is_empty();

                // The redacted keys of this map.
                let mut redacted = Vec::new();
                for _ in 0..pairs {
                    let key = self.key(reader, is_top, &mut redacted)?;
                    self.path.push(PathStep::Key(key));
                    // A key block continues in the next string of a list, not of a map.
                    self.open = false;
                    if !(is_top && self.keeps(key, reader)?) {
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
            Head::Ext(_, len) => {
                let whole = reader.value()?;

                // The payload is at the end, behind a header of variable length. Its meaning
                // depends on the type, so the whole value is replaced.
                let payload = whole.get(whole.len() - len..).unwrap_or_default();
                if self.text(payload).is_some() {
                    self.edit(from, reader, |w| {
                        w.str(REDACTED);
                    });
                }
                Ok(())
            }
            _ => reader.value().map(|_| ()),
        }
    }

    /// Handles a key: a pattern redacts it as it does a string. Returns its bytes as received, by which rules select the value.
    fn key(
        &mut self,
        reader: &mut Reader<'a>,
        is_top: bool,
        redacted: &mut Vec<Vec<u8>>,
    ) -> Result<&'a [u8], DecodeError> {
        let from = self.len - reader.rest().len();
        let mut content = *reader;
        let is_text = match content.head()? {
            Head::Str(_) => true,
            Head::Bin(_) => false,
            _ => {
                // A number, or a key of several values. One level deeper, as the value is.
                self.path.push(PathStep::Key(b""));
                self.open = false;
                self.value(reader)?;
                self.path.pop();
                return Ok(b"");
            }
        };

        let key = reader.bytes()?;
        let is_field = || is_top && FIELDS.iter().any(|own| own.as_bytes() == key);

        // Names of Salt's fields are public, and readers look for them.
        if !self.has_texts || is_field() {
            return Ok(key);
        }

        self.open = false;
        if let Some(mut text) = self.text(key) {
            // Two keys stay two.
            let same = redacted.iter().filter(|known| **known == text).count();
            redacted.push(text.clone());
            if same > 0 {
                text.extend_from_slice(format!(" ({})", same + 1).as_bytes());
            }
            self.edit(from, reader, |w| {
                if is_text {
                    w.str_bytes(&text);
                } else {
                    w.bin(&text);
                }
            });
        }

        Ok(key)
    }

    /// Skips the value of a field at the top if it is kept. Of a target only strings are looked into.
    fn keeps(&mut self, field: &[u8], reader: &mut Reader<'a>) -> Result<bool, DecodeError> {
        let mut after = *reader;
        let value = after.value()?;
        if is_kept(field, value, |fun| funs_of(self.root).contains(&fun)) {
            *reader = after;
            return Ok(true);
        }

        let is_target = field == b"tgt"
            && (as_text(value).is_some()
                || matches!(Reader::new(value).head()?, Head::Array(_))
                    && elements(value).all(|item| as_text(item).is_some()));

        if is_target {
            self.value(reader)?;
        }
        Ok(is_target)
    }

    /// Handles a list of minion ids.
    fn minions(&mut self, reader: &mut Reader<'a>) -> Result<(), DecodeError> {
        let mut after = *reader;
        if is_kept(b"minions", after.value()?, |_| false) {
            *reader = after;
            return Ok(());
        }
        self.value(reader)
    }

    /// Handles the minions that syndics report.
    fn lists_of_minions(&mut self, reader: &mut Reader<'a>) -> Result<(), DecodeError> {
        let mut content = *reader;
        let Head::Array(count) = content.head()? else {
            return self.value(reader);
        };
        *reader = content;
        for index in 0..count {
            self.path.push(PathStep::Index(index));
            self.minions(reader)?;
            self.path.pop();
        }
        Ok(())
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
    fn named(&mut self) -> Option<usize> {
        // Taken for the time of the search, because closures below borrow `self`.
        let mut reused = self.lower.take();
        if let Some(lower) = &mut reused {
            lower.clear();
            if let Some(PathStep::Key(key)) = self.path.last() {
                lower.extend(key.iter().map(u8::to_ascii_lowercase));
            }
        }

        let lower = reused.as_deref().unwrap_or_default();
        let by_key = |part: &CompiledRule| {
            !lower.is_empty() && part.keys.iter().any(|glob| glob.matches(lower))
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

        // All rules redact a value alike, so the first one that selects it is enough. It alone is
        // counted.
        let found = self
            .parts
            .iter()
            .find(|part| by_key(part) || by_path(part))
            .map(|part| part.rule);

        self.lower = reused;
        found
    }

    /// The redacted string; `None` if unchanged.
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

            // Each pattern reads the result of the one before, because the ranges of two could
            // overlap.
            for pattern in &part.patterns {
                let now = changed.as_deref().unwrap_or(text);
                let found: Vec<_> = pattern
                    .find_iter(now)
                    .map(|found| (found.start(), found.end()))
                    .collect();
                if let Some(replaced) = replace_whole_characters(now, &found) {
                    changed = Some(replaced);
                    redacted = true;
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

/// The string with `ranges` redacted; `None` without ranges.
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

    // Other bytes have no characters to keep whole.
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

        // Ranges may overlap once they are extended.
        match ranges.last_mut() {
            Some(last) if from < last.1 => last.1 = last.1.max(to),
            _ => ranges.push((from, to)),
        }
    }

    replace_ranges(text, &ranges)
}

/// Finds key blocks: from `-----BEGIN ... PRIVATE KEY...-----` to its end line, or to the end of
/// the string. `open`: a block started in the previous string. Returns whether a block continues in
/// the next string.
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
        // The label of a key is short. A longer one is text that only looks like the beginning of a
        // key.
        let label = text.get(begin + BEGIN.len()..).unwrap_or_default();
        let label_len = memmem::find(label, b"-----").filter(|len| *len <= 64);
        let is_private = label_len
            .and_then(|len| label.get(..len))
            .is_some_and(|label| memmem::find(label, b"PRIVATE KEY").is_some());

        if !is_private {
            // A certificate or a public key.
            at = begin + BEGIN.len();
            continue;
        }

        let Some(end) = end_of(begin + BEGIN.len()) else {
            // The rest is in the next string, or was cut off. In doubt it is a key.
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
            origin: "",
            number: 0,
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
        // Only at the top: returned data can also contain such keys.
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
    fn a_pillar_rule_for_a_function_leaves_other_functions_alone() {
        let pillar = |funs: &[&str]| {
            [RedactRule {
                fun: globs(funs),
                builtin: Some(Builtin::Pillar),
                ..rule()
            }]
        };
        let (value, hidden) = (
            map(&[("return", "x".into())]),
            map(&[("return", REDACTED.into())]),
        );
        for (funs, fun, expected) in [
            (&[][..], "pillar.items", &hidden),
            (&["pillar.get"], "pillar.get", &hidden),
            (&["pillar.get"], "pillar.items", &value),
            (&["state.*"], "pillar.items", &value),
            (&["state.*"], "state.apply", &value),
        ] {
            let found = redacted(&pillar(funs), Kind::Return, fun, &value);
            assert_eq!(found, *expected, "{funs:?} {fun}");
        }
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

    #[test]
    fn a_name_alone_keeps_nothing() {
        let secret = || Value::from("hunter2");
        let rules = [RedactRule {
            keys: globs(&["password"]),
            patterns: vec![Pattern::new("AKIA[0-9]{4}").unwrap()],
            ..rule()
        }];
        let inner = || map(&[("password", secret()), ("AKIA1234", "k AKIA1234".into())]);
        for field in [
            "id", "cmd", "out", "tgt", "minions", "jid", "retcode", "success", "fun", "_stamp",
            "tgt_type", "nocache", "Minions", "user",
        ] {
            for value in [inner(), Value::Array(vec![inner()]), "see AKIA1234".into()] {
                let event = map(&[(field, value)]);
                let shown = redacted(&rules, Kind::Event, "x", &event).to_string();
                assert!(
                    !shown.contains("hunter2") && !shown.contains("AKIA1234"),
                    "{field}: {shown}"
                );
            }
        }
        // It looks like a function, and is none of the event's.
        for field in ["retcode", "success"] {
            for value in [0.into(), Value::from(true)] {
                let value = map(&[("AKIA1234", value), ("test.ping", 0.into())]);
                let event = map(&[(field, value), ("fun", list(&["test.ping"]))]);
                let shown = redacted(&rules, Kind::Event, "x", &event).to_string();
                assert!(!shown.contains("AKIA1234"), "{field}: {shown}");
                assert!(shown.contains("test.ping"), "{field}: {shown}");
            }
        }
        let keys = map(&[("a", map(&[("AKIA1111", 1.into()), ("AKIA2222", 2.into())]))]);
        let expected = map(&[(
            "a",
            map(&[(REDACTED, 1.into()), ("[redacted] (2)", 2.into())]),
        )]);
        assert_eq!(redacted(&rules, Kind::Event, "x", &keys), expected);
    }

    #[test]
    fn names_beside_the_body_are_redacted_like_its_fields() {
        let rules = [RedactRule {
            keys: globs(&["id"]),
            patterns: vec![Pattern::new("AKIA[0-9]{4}").unwrap()],
            ..rule()
        }];
        let redactor = Redactor::new(&rules);
        let normal = of(Kind::Return, "state.apply", b"\x80");
        assert_eq!(redactor.names(&normal), None);
        let odd = Entry {
            minion: "not an id",
            fun: "AKIA1234 as a function",
            ..normal
        };
        let names = redactor.names(&odd).unwrap();
        assert_eq!((&*names.minion, &*names.jid), (REDACTED, "1"));
        assert_eq!(names.fun, "[redacted] as a function");
    }

    #[test]
    fn the_fields_of_normal_events_are_kept() {
        let all = Redactor::new(&[RedactRule {
            keys: globs(&["*"]),
            patterns: vec![Pattern::new("(?s).+").unwrap()],
            ..rule()
        }]);
        let funs = || list(&["test.ping", "state.apply"]);
        let ret = map(&[
            ("jid", "20261121054728123456_7".into()),
            ("id", "web-1.example.com".into()),
            ("fun", funs()),
            (
                "retcode",
                map(&[("test.ping", 0.into()), ("state.apply", 2.into())]),
            ),
            ("success", Value::Array(vec![true.into(), false.into()])),
            ("_stamp", "2026-11-21T05:47:28.123456".into()),
            ("cmd", "_return".into()),
            ("out", "highstate".into()),
            ("Minions", list(&["web1", "b\u{fc}ro"])),
        ]);
        let body = bytes(&ret);
        let entry = of(Kind::Return, "", &body);
        assert_eq!(all.redact(&entry), Redacted::Untouched);
        assert_eq!(all.names(&entry), None);
        let load = Value::Array(vec![
            map(&[("fun", "test.ping".into()), ("tgt_type", "glob".into())]),
            list(&["web1"]),
        ]);
        let body = bytes(&load);
        assert_eq!(
            all.redact(&of(Kind::Load, "test.ping", &body)),
            Redacted::Untouched
        );
        let minions = bytes(&Value::Array(vec![list(&["web1"]), Value::Nil]));
        assert_eq!(
            all.redact(&of(Kind::Minions, "", &minions)),
            Redacted::Untouched
        );
    }

    /// A string that no field keeps.
    const PLANTED: &str = "key: S3cr3t/AKIA";

    /// A string that looks like a function, a word and a minion.
    const PLANTED_NAME: &str = "AKIA_S3cr3t";

    /// Puts a string, alone or within other text, somewhere into a value: as a key or a value, at any depth.
    fn planted(text: &str, value: Value, choices: &mut impl Iterator<Item = u8>) -> Value {
        let mut choice = || choices.next().unwrap_or(0);
        let around = format!("a {text} b");
        let secret = match choice() % 4 {
            0 => text.into(),
            1 => around.into(),
            2 => Value::Binary(around.into_bytes()),
            _ => Value::Ext(78, around.into_bytes()),
        };
        match value {
            Value::Map(mut pairs) if !pairs.is_empty() => {
                let at = usize::from(choice()) % pairs.len();
                match choice() % 3 {
                    0 => pairs[at].0 = secret,
                    1 => pairs[at].1 = secret,
                    _ => {
                        let inner = pairs[at].1.clone();
                        pairs[at].1 = planted(text, inner, choices);
                    }
                }
                Value::Map(pairs)
            }
            Value::Array(mut items) if !items.is_empty() => {
                let at = usize::from(choice()) % items.len();
                items[at] = planted(text, items[at].clone(), choices);
                Value::Array(items)
            }
            _ => secret,
        }
    }

    /// An event's data: fields of Salt, normal or with any value.
    fn any_event() -> impl Strategy<Value = Value> {
        let field = prop::sample::select(FIELDS.as_slice()).prop_map(Value::from);
        let normal = prop::sample::select(vec!["web1", "test.ping", "1", "glob", "_return"]);
        let value = prop_oneof![normal.prop_map(Value::from), any_value()];
        prop::collection::vec((field, value), 1..8).prop_map(Value::Map)
    }

    /// An event with the outcomes of a job with several functions, and possibly with the functions.
    fn any_outcomes() -> impl Strategy<Value = Value> {
        let of_funs = |field: &'static str, outcome: Value| {
            prop::collection::vec("[a-z]{1,4}[.][a-z]{1,4}", 1..3).prop_map(move |funs| {
                let pairs = funs.into_iter().map(|fun| (fun.into(), outcome.clone()));
                (Value::from(field), Value::Map(pairs.collect()))
            })
        };
        let funs = Just(("fun".into(), list(&["test.ping"])));
        let pair = prop_oneof![
            of_funs("retcode", 0.into()),
            of_funs("success", true.into()),
            funs
        ];
        prop::collection::vec(pair, 1..3).prop_map(Value::Map)
    }

    proptest! {
        #[test]
        fn a_planted_secret_never_survives(
            value in any_event(), choices in prop::collection::vec(any::<u8>(), 24), load in any::<bool>()
        ) {
            let rules = [RedactRule { patterns: vec![Pattern::new(PLANTED).unwrap()], ..rule() }];
            let event = planted(PLANTED, value, &mut choices.into_iter());
            let (kind, body) = if load {
                let minions = Value::Array(vec!["web1".into(), PLANTED.into()]);
                (Kind::Load, bytes(&Value::Array(vec![event, minions])))
            } else {
                (Kind::Event, bytes(&event))
            };
            prop_assert!(memmem::find(&body, PLANTED.as_bytes()).is_some());
            let Redacted::Changed(stored) = Redactor::new(&rules).redact(&of(kind, "", &body)) else {
                panic!("it has something to redact")
            };
            prop_assert!(memmem::find(&stored, PLANTED.as_bytes()).is_none());
            let mut rest = stored.as_slice();
            rmpv::decode::read_value(&mut rest).unwrap();
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn a_secret_that_looks_like_a_name_survives_only_as_a_name(
            value in prop_oneof![any_event(), any_outcomes()], choices in prop::collection::vec(any::<u8>(), 24)
        ) {
            let rules = [RedactRule { patterns: vec![Pattern::new(PLANTED_NAME).unwrap()], ..rule() }];
            let body = bytes(&planted(PLANTED_NAME, value, &mut choices.into_iter()));
            let stored = match Redactor::new(&rules).redact(&of(Kind::Event, "", &body)) {
                Redacted::Changed(body) => body,
                Redacted::Untouched => body,
                Redacted::Unparsed(_) => panic!("it is msgpack"),
            };
            let is_own = funs_of(&stored).contains(&PLANTED_NAME);
            let Value::Map(pairs) = rmpv::decode::read_value(&mut stored.as_slice()).unwrap() else {
                return Ok(());
            };
            // Fields whose values are names, by which the store and Salt find the event.
            let of_names = ["fun", "id", "minions", "Minions", "cmd", "out", "tgt_type"];
            for (key, value) in pairs {
                let key = key.as_str().unwrap_or_default().to_owned();
                let is_outcome = is_own && ["retcode", "success"].contains(&&*key);
                if !of_names.contains(&&*key) && !is_outcome {
                    let rest = bytes(&value);
                    prop_assert!(memmem::find(&rest, PLANTED_NAME.as_bytes()).is_none(), "{key}: {value}");
                    prop_assert!(!key.contains(PLANTED_NAME));
                }
            }
        }

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
