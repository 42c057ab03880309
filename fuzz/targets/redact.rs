//! An entry of arbitrary bytes, under rules of every kind: the result is one value, or a redaction mark alone;
//! it contains no redacted data; a second redaction changes nothing. An independent search of a decoded tree
//! verifies this.
//!
//! Input: a byte that selects the kind of entry, then its body.

use std::sync::LazyLock;

use rmpv::Value;
use salt_sls::Glob;
use saltcellar::base::clock::Micros;
use saltcellar::policy::redact::{FIELDS, Redacted, Redactor, is_kept};
use saltcellar::base::limits::MSGPACK_DEPTH_MAX;
use saltcellar::model::{Builtin, Entry, Flags, Kind, Pattern, REDACTED, RedactRule, Source};
use saltcellar::wire::msgpack::Reader;

const KINDS: [Kind; 4] = [Kind::Event, Kind::Return, Kind::Load, Kind::Register];

static REDACTOR: LazyLock<Redactor> = LazyLock::new(|| {
    let rule = || RedactRule { name: "fuzz".into(), ..RedactRule::default() };
    Redactor::new(&[
        RedactRule { builtin: Some(Builtin::Passwords), ..rule() },
        RedactRule { patterns: vec![Pattern::new("AKIA[0-9A-Z]{4}").expect("a pattern")], ..rule() },
        RedactRule { paths: vec![vec![Glob::new("return"), Glob::new("pin")]], ..rule() },
    ])
});

static KEYS: LazyLock<Redactor> = LazyLock::new(|| {
    let name = "fuzz".into();
    Redactor::new(&[RedactRule { name, builtin: Some(Builtin::PrivateKeys), ..RedactRule::default() }])
});

pub(crate) fn redact(data: &[u8]) {
    let Some((kind, body)) = data.split_first() else { return };
    let kind = KINDS.get(usize::from(*kind) % KINDS.len()).copied().unwrap_or(Kind::Event);
    let entry = Entry {
        kind,
        source: Source::Bus,
            origin: "",
            number: 0,
        flags: Flags::default(),
        at: Micros(0),
        tag: b"fuzz",
        jid: "1",
        minion: "web1",
        fun: "test.ping",
        retcode: 0,
        body,
    };
    if let Some(kept) = redacted(&REDACTOR, &entry) {
        assert!(clean(kind, &kept), "{kind:?}: {kept:02x?}");
        assert_eq!(REDACTOR.redact(&Entry { body: &kept, ..entry }), Redacted::Untouched, "once more");
    }
    if let Some(kept) = redacted(&KEYS, &entry) {
        assert!(root(kind, &kept).is_none_or(|value| no_key(&value, kind != Kind::Register, true)));
    }
}

/// The body as stored; `None` if it cannot be decoded.
fn redacted(redactor: &Redactor, entry: &Entry<'_>) -> Option<Vec<u8>> {
    match redactor.redact(entry) {
        Redacted::Untouched => Some(entry.body.to_vec()),
        Redacted::Changed(body) => {
            let values = |bytes| {
                let mut reader = Reader::new(bytes);
                (reader.value().map(<[u8]>::len), reader.rest().len())
            };
            assert_eq!(values(entry.body), (Ok(entry.body.len()), 0));
            assert_eq!(values(&body), (Ok(body.len()), 0));
            Some(body)
        }
        Redacted::Unparsed(body) => {
            assert_eq!(Reader::new(&body).text(), Ok(REDACTED));
            None
        }
    }
}

/// The part covered by the rules, as a tree; `None` if it cannot be decoded.
fn root(kind: Kind, body: &[u8]) -> Option<Value> {
    let mut body = match body.split_first() {
        Some((0x92, rest)) if kind == Kind::Load => rest,
        _ => body,
    };
    rmpv::decode::read_value_with_max_depth(&mut body, MSGPACK_DEPTH_MAX).ok()
}

fn clean(kind: Kind, body: &[u8]) -> bool {
    let Some(value) = root(kind, body) else { return true };
    let pin = |value: &Value| {
        let inside = pairs(value).filter(|(key, _)| bytes(key) == Some(b"return"));
        inside.flat_map(|(_, value)| pairs(value)).all(|(key, value)| bytes(key) != Some(b"pin") || gone(value))
    };
    pin(&value) && no_secret(&value, kind != Kind::Register)
}

fn no_secret(value: &Value, spares: bool) -> bool {
    let all = value;
    let held = || pairs(value).all(|(key, value)| {
        let key = bytes(key).unwrap_or_default();
        kept(all, key, value, spares) || if is_secret(key) { gone(value) } else { no_secret(value, false) }
    });
    let items = || value.as_array().is_none_or(|items| items.iter().all(|item| no_secret(item, false)));
    held() && items() && bytes(value).is_none_or(|text| !text.windows(8).any(is_access_key))
}

/// It contains no start of a PEM block of a private key, unless its name consists of remaining parts.
fn no_key(value: &Value, spares: bool, top: bool) -> bool {
    let all = value;
    let held = || pairs(value).all(|(key, value)| {
        let name = bytes(key).unwrap_or_default();
        let is_field = spares && top && FIELDS.iter().any(|own| own.as_bytes() == name);
        (is_field || no_key(key, spares, false)) && (kept(all, name, value, spares && top) || no_key(value, spares, false))
    });
    let items = || value.as_array().is_none_or(|items| items.iter().all(|item| no_key(item, spares, false)));
    held() && items() && bytes(value).is_none_or(|text| !text.windows(27).any(|at| at == b"-----BEGIN PRIVATE KEY-----"))
}

/// Whether a field of a map is kept.
fn kept(all: &Value, key: &[u8], value: &Value, spares: bool) -> bool {
    let is_own = |fun: &str| {
        let funs = pairs(all).find(|(key, _)| key.as_str() == Some("fun")).and_then(|(_, funs)| funs.as_array());
        funs.into_iter().flatten().any(|own| own.as_str() == Some(fun))
    };
    let mut body = Vec::new();
    spares && rmpv::encode::write_value(&mut body, value).is_ok() && is_kept(key, &body, is_own)
}

/// Some of the names that `passwords` covers.
fn is_secret(key: &[u8]) -> bool {
    let key = key.to_ascii_lowercase();
    let has = |part: &[u8]| key.windows(part.len()).any(|at| at == part);
    has(b"password") || has(b"passwd") || has(b"secret") || has(b"api_key") || key == b"token" || key.ends_with(b"_token")
}

fn is_access_key(text: &[u8]) -> bool {
    let is_one = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
    text.strip_prefix(b"AKIA").is_some_and(|rest| rest.iter().all(is_one))
}

/// It has been redacted, or was not a secret.
fn gone(value: &Value) -> bool {
    matches!(value, Value::Nil | Value::Boolean(_)) || bytes(value) == Some(REDACTED.as_bytes())
}

fn pairs(value: &Value) -> impl Iterator<Item = (&Value, &Value)> {
    value.as_map().into_iter().flatten().map(|(key, value)| (key, value))
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::String(text) => Some(text.as_bytes()),
        Value::Binary(bytes) => Some(bytes),
        _ => None,
    }
}
