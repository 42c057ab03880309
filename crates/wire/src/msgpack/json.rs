//! The JSON form of msgpack values: of `--output json`, of exports, and of typed data.
//!
//! `docs/WIRE.md` describes the form for other programs. It is the form of [`salt_sls::json_form`],
//! which defines the tags that msgpack shares with Python's values, plus these tags for what only
//! msgpack has:
//!
//! | msgpack | JSON |
//! |---|---|
//! | ext 78 with a date in Salt's format | `{"$datetime": "2026-02-03T04:05:06.000789"}` |
//! | any other ext | `{"$ext": [78, "<base64>"]}` |
//! | str that is not UTF-8 | `{"$badstr": "<base64>"}` |
//!
//! # Invariant
//!
//! [`parse`](crate::json::parse) reads every string that results from [`to_json`].
//!
//! [`from_json`] reverses [`to_json`], except for differences that msgpack itself ignores (the width of integers and floats), repeated
//! keys, of which the last value counts, as in Python, and keys that are or contain maps, which Salt's codec cannot read.

use std::cell::Cell;
use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rmpv::{Integer, Utf8String, Value};
use salt_sls::json_form::{self, KeyForm, float, tag, tagged, text_key, untagged};
use serde::ser::{self, SerializeMap as _, SerializeSeq as _};
use serde::{Serialize, Serializer};
use serde_json::{Map, Number, Value as Json};

use super::{DecodeError, Head, Reader};

/// Salt's ext type of dates.
const EXT_DATETIME: i8 = 78;

/// The JSON form of `value`.
pub fn to_json(value: &Value) -> Json {
    match value {
        Value::Nil => Json::Null,
        Value::Boolean(flag) => Json::Bool(*flag),
        Value::Integer(number) => integer(*number),
        Value::F32(number) => float(f64::from(*number)),
        Value::F64(number) => float(*number),
        Value::String(text) => match text.as_str() {
            Some(text) => Json::from(text),
            // msgpack allows any bytes in a str.
            None => bytes(tag::BAD_STR, text.as_bytes()),
        },
        Value::Binary(blob) => bytes(tag::BIN, blob),
        Value::Array(items) => items.iter().map(to_json).collect(),
        Value::Map(pairs) => pairs
            .iter()
            .map(|(key, value)| (key_text(key), to_json(value)))
            .collect::<Map<_, _>>()
            .into(),
        Value::Ext(code, blob) => ext(*code, blob),
    }
}

/// Appends the JSON form of one msgpack value to `out` as a string, without a tree in between.
/// Returns false if the value is not [`Plain`]; `out` is then unchanged.
pub fn append_plain(bytes: &[u8], out: &mut Vec<u8>) -> bool {
    let start = out.len();
    let is_written =
        Plain::of(bytes).is_some_and(|plain| serde_json::to_writer(&mut *out, &plain).is_ok());
    if !is_written {
        out.truncate(start);
    }
    is_written
}

/// A msgpack value whose JSON form is written without a tree in between: not one whose form is tagged, that has repeated keys or deep nesting, or
/// is malformed. Those need [`to_json`].
pub struct Plain<'a>(&'a [u8]);

impl<'a> Plain<'a> {
    /// The value, if it is a plain one.
    pub fn of(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        check_plain(&mut reader, PLAIN_DEPTH_MAX)?;
        reader.rest().is_empty().then_some(Self(bytes))
    }
}

impl Serialize for Plain<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Next(&Cell::new(Reader::new(self.0))).serialize(to)
    }
}

/// The next value of a reader, which has been checked.
struct Next<'r, 'a>(&'r Cell<Reader<'a>>);

impl Next<'_, '_> {
    fn read<'a, T, E: ser::Error>(
        cell: &Cell<Reader<'a>>,
        read: impl FnOnce(&mut Reader<'a>) -> Result<T, DecodeError>,
    ) -> Result<T, E> {
        let mut reader = cell.get();
        let value = read(&mut reader).map_err(E::custom)?;
        cell.set(reader);
        Ok(value)
    }

    fn text<'a, E: ser::Error>(cell: &Cell<Reader<'a>>, len: usize) -> Result<&'a str, E> {
        let bytes = Self::read(cell, |reader| reader.take(len))?;
        std::str::from_utf8(bytes).map_err(E::custom)
    }
}

impl Serialize for Next<'_, '_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match Self::read(self.0, Reader::head)? {
            Head::Nil => to.serialize_unit(),
            Head::Bool(flag) => to.serialize_bool(flag),
            Head::Int(number) => to.serialize_i64(number),
            Head::Big(number) => to.serialize_u64(number),
            Head::Float(number) => to.serialize_f64(number),
            Head::Str(len) => to.serialize_str(Self::text(self.0, len)?),
            Head::Array(len) => {
                let mut items = to.serialize_seq(Some(len))?;
                for _ in 0..len {
                    items.serialize_element(&Next(self.0))?;
                }
                items.end()
            }
            Head::Map(len) => {
                let mut pairs = to.serialize_map(Some(len))?;
                for _ in 0..len {
                    // A key is a str: it was checked.
                    pairs.serialize_entry(&Next(self.0), &Next(self.0))?;
                }
                pairs.end()
            }
            Head::Bin(_) | Head::Ext(..) => Err(ser::Error::custom("its form contains a tag")),
        }
    }
}

/// Nesting depth of [`Plain`], which recurses. Deeper values are rare and take the way by
/// [`to_json`].
const PLAIN_DEPTH_MAX: usize = 64;

fn check_plain(reader: &mut Reader<'_>, depth: usize) -> Option<()> {
    let depth = depth.checked_sub(1)?;

    match reader.head().ok()? {
        Head::Nil | Head::Bool(_) | Head::Int(_) | Head::Big(_) => {}
        Head::Float(number) if number.is_finite() => {}
        Head::Str(len) => {
            std::str::from_utf8(reader.take(len).ok()?).ok()?;
        }
        Head::Array(len) => {
            for _ in 0..len {
                check_plain(reader, depth)?;
            }
        }
        Head::Map(len) => check_plain_map(reader, len, depth)?,
        // The forms of these carry a tag.
        Head::Float(_) | Head::Bin(_) | Head::Ext(..) => return None,
    }

    Some(())
}

fn check_plain_map(reader: &mut Reader<'_>, pairs: usize, depth: usize) -> Option<()> {
    let (mut few, mut many) = (Vec::new(), HashSet::new());

    for _ in 0..pairs {
        let Head::Str(len) = reader.head().ok()? else {
            // Other keys get a mark.
            return None;
        };
        let key = std::str::from_utf8(reader.take(len).ok()?).ok()?;

        // Comparing a few keys is faster than hashing them.
        let is_repeated = if pairs <= 16 {
            let is_known = few.contains(&key);
            few.push(key);
            is_known
        } else {
            !many.insert(key)
        };
        if is_repeated || key.starts_with('$') {
            // The last value of a repeated key counts, and a `$` is doubled.
            return None;
        }

        check_plain(reader, depth)?;
    }

    Some(())
}

/// The JSON form as Python's `json` writes the same maps: keys are the strings of scalars, without the mark of this form. Values with a tag stay as
/// they are; Python cannot write them.
pub fn as_python(json: Json) -> Json {
    match json {
        Json::Array(items) => items.into_iter().map(as_python).collect(),
        Json::Object(object) if untagged(&object).is_none() => {
            let pair = |(key, value): (String, Json)| (python_key(key), as_python(value));
            object.into_iter().map(pair).collect::<Map<_, _>>().into()
        }
        other => other,
    }
}

/// The key of an object for a key of this form: `$5` is `5`, `$$bin` is `$bin`.
fn python_key(key: String) -> String {
    match json_form::key_form(&key) {
        KeyForm::Text(text) => text.to_owned(),
        KeyForm::Value(form) if !form.is_object() => form.to_string(),
        KeyForm::Value(_) | KeyForm::Invalid => key,
    }
}

/// The JSON is not the form of a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not the JSON form of a value: {0}")]
pub struct NotAValue(String);

/// Parses the JSON form.
pub fn from_json(json: &Json) -> Result<Value, NotAValue> {
    Ok(match json {
        Json::Null => Value::Nil,
        Json::Bool(flag) => Value::Boolean(*flag),
        Json::Number(number) => from_number(number),
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::Array(items.iter().map(from_json).collect::<Result<_, _>>()?),
        Json::Object(object) => from_object(object)?,
    })
}

fn bytes(tag: &str, blob: &[u8]) -> Json {
    tagged(tag, Json::from(BASE64.encode(blob)))
}

fn integer(number: Integer) -> Json {
    match (number.as_u64(), number.as_i64()) {
        (Some(number), _) => Json::from(number),
        (None, Some(number)) => Json::from(number),
        (None, None) => Json::Null,
    }
}

fn key_text(key: &Value) -> String {
    match key.as_str() {
        Some(text) => text_key(text),
        // The escapes of a key within a key would double with each level.
        None if has_map(key) => format!("${key}"),
        None => json_form::key(&to_json(key)),
    }
}

fn has_map(value: &Value) -> bool {
    match value {
        Value::Map(_) => true,
        Value::Array(items) => items.iter().any(has_map),
        _ => false,
    }
}

/// The reverse of [`key_text`].
fn key_of(text: &str) -> Result<Value, NotAValue> {
    match json_form::key_form(text) {
        KeyForm::Text(text) => Ok(Value::from(text)),
        KeyForm::Value(form) => from_json(&form),
        KeyForm::Invalid => Err(NotAValue(format!("invalid key {text:?}"))),
    }
}

fn ext(code: i8, blob: &[u8]) -> Json {
    if code == EXT_DATETIME
        && let Some(date) = std::str::from_utf8(blob).ok().and_then(date_of_salt)
    {
        return tagged(tag::DATETIME, Json::from(date));
    }
    tagged(
        tag::EXT,
        Json::from(vec![Json::from(code), Json::from(BASE64.encode(blob))]),
    )
}

/// Converts a date in Salt's format, `20260203T04:05:06.000789`, to ISO 8601.
fn date_of_salt(text: &str) -> Option<String> {
    let fits = shaped(text, "00000000T00:00:00.000000");
    let (year, rest) = fits.then_some(text)?.split_at_checked(4)?;
    let (month, rest) = rest.split_at_checked(2)?;
    Some(format!("{year}-{month}-{rest}"))
}

/// The reverse of [`date_of_salt`].
fn date_to_salt(text: &str) -> Option<String> {
    if !shaped(text, "0000-00-00T00:00:00.000000") {
        return None;
    }

    let (date, time) = text.split_at_checked(10)?;
    Some(format!("{}{time}", date.replace('-', "")))
}

/// Whether `text` has digits at the zeros of `shape`, and the same characters elsewhere.
fn shaped(text: &str, shape: &str) -> bool {
    text.len() == shape.len()
        && text.bytes().zip(shape.bytes()).all(|(t, s)| {
            if s == b'0' {
                t.is_ascii_digit()
            } else {
                t == s
            }
        })
}

fn from_number(number: &Number) -> Value {
    match (number.as_u64(), number.as_i64()) {
        (Some(number), _) => Value::from(number),
        (None, Some(number)) => Value::from(number),
        (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
    }
}

fn from_object(object: &Map<String, Json>) -> Result<Value, NotAValue> {
    if let Some((tag, value)) = untagged(object) {
        return from_tagged(tag, value);
    }
    let pair = |(key, value): (&String, &Json)| Ok((key_of(key)?, from_json(value)?));
    Ok(Value::Map(
        object.iter().map(pair).collect::<Result<_, _>>()?,
    ))
}

fn from_tagged(tag: &str, value: &Json) -> Result<Value, NotAValue> {
    if matches!(tag, tag::INT | tag::TUPLE | tag::SET | tag::OBJECT) {
        let problem = format!("msgpack has no type for {tag:?}, which is a value of Python");
        return Err(NotAValue(problem));
    }
    // A value that [`to_json`] never makes is an error.
    tagged_value(tag, value).ok_or_else(|| NotAValue(format!("invalid value of {tag:?}")))
}

fn tagged_value(tag: &str, value: &Json) -> Option<Value> {
    let text = value.as_str();

    Some(match tag {
        tag::BIN => Value::Binary(BASE64.decode(text?).ok()?),
        tag::BAD_STR => Value::String(bad_str(&BASE64.decode(text?).ok()?)?),
        tag::DATETIME => Value::Ext(EXT_DATETIME, date_to_salt(text?)?.into_bytes()),
        tag::FLOAT => Value::F64(json_form::tagged_float(text?)?),
        tag::EXT => match value.as_array()?.as_slice() {
            [code, blob] => Value::Ext(
                i8::try_from(code.as_i64()?).ok()?,
                BASE64.decode(blob.as_str()?).ok()?,
            ),
            _ => return None,
        },
        _ => return None,
    })
}

/// A msgpack str of arbitrary bytes. rmpv constructs only text, so this uses its decoder.
fn bad_str(bytes: &[u8]) -> Option<Utf8String> {
    let mut packed = vec![0xdb];
    packed.extend_from_slice(&u32::try_from(bytes.len()).ok()?.to_be_bytes());
    packed.extend_from_slice(bytes);
    match rmpv::decode::read_value(&mut packed.as_slice()).ok()? {
        Value::String(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(value: &Value, expected: &str) {
        let json = to_json(value);
        assert_eq!(json.to_string(), expected);
        assert_eq!(&from_json(&json).unwrap(), value, "{expected}");
    }

    #[test]
    fn keys_are_those_that_python_writes() {
        let value = Value::Map(vec![
            (Value::from(1), Value::from("int")),
            (Value::from("$bin"), Value::from("text")),
            (Value::from("$5"), Value::Nil),
            (Value::Nil, Value::Boolean(true)),
            (
                Value::F64(1.5),
                Value::Map(vec![(Value::Boolean(true), Value::from(2))]),
            ),
            (Value::from("blob"), Value::Binary(vec![0])),
        ]);
        let expected = r#"{"1":"int","$bin":"text","$5":null,"null":true,"1.5":{"true":2},"blob":{"$bin":"AA=="}}"#;
        assert_eq!(as_python(to_json(&value)).to_string(), expected);
        let only = Value::Map(vec![(Value::from("$bin"), Value::from("text"))]);
        assert_eq!(as_python(to_json(&only)).to_string(), r#"{"$bin":"text"}"#);
    }

    /// The same table is read by the form of Python's values, and by both Python programs that
    /// implement this form.
    #[test]
    fn the_shared_cases_survive_a_round_trip() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../salt-sls/tests/data/json-form.jsonl"
        );
        let mut checked = 0;
        for line in std::fs::read_to_string(path).unwrap().lines() {
            let row: Json = serde_json::from_str(line).unwrap();
            let Some(hex) = row.get("msgpack").and_then(Json::as_str) else {
                // msgpack has no such type.
                assert!(from_json(&row["json"]).is_err(), "{row}");
                continue;
            };
            let bytes: Vec<u8> = (0..hex.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
                .collect();

            let value = rmpv::decode::read_value(&mut bytes.as_slice()).unwrap();
            assert_eq!(to_json(&value).to_string(), row["json"].to_string());
            let again = from_json(&row["json"]).unwrap();
            assert_eq!(format!("{again:?}"), format!("{value:?}"), "{row}");
            checked += 1;
        }
        assert!(checked > 40, "{checked}");
    }

    #[test]
    fn values_that_json_supports_are_not_tagged() {
        check(&Value::Nil, "null");
        check(&Value::from(u64::MAX), "18446744073709551615");
        check(&Value::from(i64::MIN), "-9223372036854775808");
        check(&Value::from(1.5), "1.5");
        check(&Value::from(2.0), "2.0");
        check(&Value::from("gr\u{fc}n"), "\"gr\u{fc}n\"");
        let map = Value::Map(vec![
            ("b".into(), 1.into()),
            ("a".into(), Value::Array(vec![true.into()])),
        ]);
        check(&map, r#"{"b":1,"a":[true]}"#);
        check(&Value::Map(vec![]), "{}");
        check(
            &Value::Map(vec![("$a".into(), 1.into()), ("b".into(), 2.into())]),
            r#"{"$$a":1,"b":2}"#,
        );
    }

    #[test]
    fn values_that_json_lacks_are_tagged() {
        check(&Value::Binary(vec![0, 255]), r#"{"$bin":"AP8="}"#);
        let date = Value::Ext(78, b"20260203T04:05:06.000789".to_vec());
        check(&date, r#"{"$datetime":"2026-02-03T04:05:06.000789"}"#);
        check(
            &Value::Ext(78, b"yesterday".to_vec()),
            r#"{"$ext":[78,"eWVzdGVyZGF5"]}"#,
        );
        check(&Value::Ext(-1, vec![1]), r#"{"$ext":[-1,"AQ=="]}"#);
        check(&Value::F64(f64::INFINITY), r#"{"$float":"inf"}"#);
        check(&Value::F64(f64::NEG_INFINITY), r#"{"$float":"-inf"}"#);
        assert_eq!(
            to_json(&Value::F64(f64::NAN)).to_string(),
            r#"{"$float":"nan"}"#
        );
        assert_eq!(
            to_json(&Value::F32(f32::NAN)).to_string(),
            r#"{"$float":"nan"}"#
        );
        check(
            &Value::String(bad_str(b"\xff\xfe").unwrap()),
            r#"{"$badstr":"//4="}"#,
        );
        check(
            &Value::Map(vec![("$bin".into(), "x".into())]),
            r#"{"$$bin":"x"}"#,
        );
    }

    #[test]
    fn keys_other_than_text_are_marked() {
        let map =
            |keys: Vec<Value>| Value::Map(keys.into_iter().map(|key| (key, Value::Nil)).collect());
        let keys = vec![
            1.into(),
            "1".into(),
            Value::from(-1.5),
            Value::Nil,
            true.into(),
            "$1".into(),
        ];
        check(
            &map(keys),
            r#"{"$1":null,"1":null,"$-1.5":null,"$null":null,"$true":null,"$$1":null}"#,
        );
        check(
            &map(vec![Value::Binary(vec![0])]),
            r#"{"${\"$bin\":\"AA==\"}":null}"#,
        );
        let nested = (0..100).fold(Value::Nil, |key, _| map(vec![key]));
        let length = to_json(&nested).to_string().len();
        assert!(length < 2_000, "{length}");
        let twice = Value::Map(vec![("a".into(), 1.into()), ("a".into(), 2.into())]);
        assert_eq!(to_json(&twice).to_string(), r#"{"a":2}"#);
    }

    #[test]
    fn other_json_is_rejected() {
        for text in [
            r#"{"$what": 1}"#,
            r#"{"$bin": "not base64!"}"#,
            r#"{"$datetime": "soon"}"#,
            r#"{"$float": "big"}"#,
            r#"{"$ext": [900, ""]}"#,
            r#"{"$map": [[1]]}"#,
            r#"{"$tuple": [1]}"#,
            r#"{"$\"a\"": 1}"#,
            r#"{"${\"$bin\":1}": 2}"#,
        ] {
            let json: Json = serde_json::from_str(text).unwrap();
            assert!(from_json(&json).is_err(), "{text}");
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            any::<bool>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>()
                .prop_filter("NaN is unequal to itself", |f| !f.is_nan())
                .prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
            "\\$(bin|map|x)".prop_map(Value::from),
            any::<Vec<u8>>().prop_map(Value::Binary),
            any::<Vec<u8>>().prop_filter_map("str", |bytes| bad_str(&bytes).map(Value::String)),
            (any::<i8>(), any::<Vec<u8>>()).prop_map(|(code, blob)| Value::Ext(code, blob)),
        ]
        .boxed();
        // Python allows no map within a key.
        let key = leaf.clone().prop_recursive(2, 4, 3, |inner| {
            prop::collection::vec(inner, 0..3).prop_map(Value::Array)
        });
        leaf.prop_recursive(4, 64, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
                prop::collection::vec((key.clone(), inner), 0..4).prop_map(|mut pairs| {
                    let mut seen = std::collections::HashSet::new();
                    pairs.retain(|(key, _)| seen.insert(key_text(key)));
                    Value::Map(pairs)
                }),
            ]
        })
    }

    #[test]
    fn text_without_a_tree_is_the_same_text() {
        let packed = |value: &Value| {
            let mut bytes = Vec::new();
            rmpv::encode::write_value(&mut bytes, value).unwrap();
            bytes
        };
        let many = (0..40)
            .map(|n| (Value::from(format!("k{n}")), n.into()))
            .collect();
        let value = Value::Map(vec![
            (
                "a".into(),
                Value::Array(vec![
                    Value::Nil,
                    true.into(),
                    (-1).into(),
                    u64::MAX.into(),
                    1.5.into(),
                    Value::F32(0.1),
                ]),
            ),
            ("b\"\n".into(), Value::Map(many)),
            (String::new().into(), "gr\u{fc}n".into()),
        ]);
        let mut out = b"x".to_vec();
        assert!(append_plain(&packed(&value), &mut out));
        assert_eq!(
            String::from_utf8(out).unwrap(),
            format!("x{}", to_json(&value))
        );
        let twice: Vec<(Value, Value)> = vec![("a".into(), 1.into()), ("a".into(), 2.into())];
        let nested = (0..100).fold(Value::Nil, |inner, _| Value::Array(vec![inner]));
        let tagged = [
            Value::Binary(vec![1]),
            Value::F64(f64::NAN),
            Value::Map(vec![(1.into(), 2.into())]),
        ];
        for value in [
            Value::Map(twice),
            nested,
            Value::Map(vec![("$a".into(), 1.into())]),
        ]
        .iter()
        .chain(&tagged)
        {
            let mut out = b"x".to_vec();
            assert!(
                !append_plain(
                    &packed(&Value::Array(vec![1.into(), value.clone()])),
                    &mut out
                ),
                "{value}"
            );
            assert_eq!(out, b"x");
        }
        for malformed in [&[][..], &[0xc1], &[0x91], &[0xc0, 0xc0], &[0x81, 0xa1]] {
            assert!(!append_plain(malformed, &mut Vec::new()), "{malformed:?}");
        }
    }

    proptest! {
        #[test]
        fn text_without_a_tree_is_that_of_the_tree(value in values()) {
            let mut bytes = Vec::new();
            rmpv::encode::write_value(&mut bytes, &value).unwrap();
            let mut text = Vec::new();
            if append_plain(&bytes, &mut text) {
                prop_assert_eq!(String::from_utf8(text).unwrap(), to_json(&value).to_string());
            }
        }

        #[test]
        fn every_value_survives_a_round_trip(value in values()) {
            let text = to_json(&value).to_string();
            let json: Json = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(from_json(&json).unwrap(), value);
        }
    }
}
