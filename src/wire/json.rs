//! The JSON form of Salt's values.
//!
//! msgpack has more types than JSON; the others become an object with a single key that starts with `$`.
//! Programs that read `--output json` may rely on this table, and [`from_json`] implements the reverse.
//!
//! | msgpack | JSON |
//! |---|---|
//! | nil, bool, integers of 64 bits, finite floats, str, array | themselves |
//! | map with str keys, each once | object, keys in the same order |
//! | bin | `{"$bin": "<base64>"}` |
//! | ext 78 with a date in Salt's format | `{"$datetime": "2026-02-03T04:05:06.000789"}` |
//! | any other ext | `{"$ext": [78, "<base64>"]}` |
//! | NaN and infinities | `{"$float": "nan"}`, `"inf"`, `"-inf"` |
//! | str that is not UTF-8 | `{"$badstr": "<base64>"}` |
//! | map with other keys, a duplicate key, or a single key that starts with `$` | `{"$map": [[key, value], ...]}` |
//!
//! # Invariant
//!
//! [`from_json`] reverses [`to_json`], except for differences that msgpack itself ignores: the width
//! of integers and floats.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rmpv::{Integer, Utf8String, Value};
use serde_json::{Map, Number, Value as Json};

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
            None => bytes("$badstr", text.as_bytes()),
        },
        Value::Binary(blob) => bytes("$bin", blob),
        Value::Array(items) => items.iter().map(to_json).collect(),
        Value::Map(pairs) => map(pairs),
        Value::Ext(code, blob) => ext(*code, blob),
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
        Json::Number(number) => from_number(number)?,
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::Array(items.iter().map(from_json).collect::<Result<_, _>>()?),
        Json::Object(object) => from_object(object)?,
    })
}

fn tagged(tag: &str, value: Json) -> Json {
    Json::Object(Map::from_iter([(tag.to_owned(), value)]))
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

fn float(number: f64) -> Json {
    let name = if number.is_nan() {
        "nan"
    } else if number == f64::INFINITY {
        "inf"
    } else if number == f64::NEG_INFINITY {
        "-inf"
    } else {
        return Json::from(number);
    };
    tagged("$float", Json::from(name))
}

fn map(pairs: &[(Value, Value)]) -> Json {
    let mut object = Map::with_capacity(pairs.len());
    for (key, value) in pairs {
        match key.as_str() {
            Some(key) if !object.contains_key(key) => object.insert(key.to_owned(), to_json(value)),
            _ => return pairs_form(pairs),
        };
    }
    if is_tagged(&object) { pairs_form(pairs) } else { Json::Object(object) }
}

fn pairs_form(pairs: &[(Value, Value)]) -> Json {
    let pair = |(key, value): &(Value, Value)| Json::Array(vec![to_json(key), to_json(value)]);
    tagged("$map", pairs.iter().map(pair).collect())
}

fn is_tagged(object: &Map<String, Json>) -> bool {
    object.len() == 1 && object.keys().all(|key| key.starts_with('$'))
}

fn ext(code: i8, blob: &[u8]) -> Json {
    if code == EXT_DATETIME
        && let Some(date) = std::str::from_utf8(blob).ok().and_then(date_of_salt)
    {
        return tagged("$datetime", Json::from(date));
    }
    tagged("$ext", Json::from(vec![Json::from(code), Json::from(BASE64.encode(blob))]))
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
        && text.bytes().zip(shape.bytes()).all(|(t, s)| if s == b'0' { t.is_ascii_digit() } else { t == s })
}

fn from_number(number: &Number) -> Result<Value, NotAValue> {
    if let Some(number) = number.as_u64() {
        return Ok(Value::from(number));
    }
    if let Some(number) = number.as_i64() {
        return Ok(Value::from(number));
    }
    number.as_f64().map(Value::from).ok_or_else(|| NotAValue(format!("the number {number}")))
}

fn from_object(object: &Map<String, Json>) -> Result<Value, NotAValue> {
    if is_tagged(object)
        && let Some((tag, value)) = object.iter().next()
    {
        return from_tagged(tag, value).ok_or_else(|| NotAValue(format!("invalid value of {tag:?}")))?;
    }
    let pair = |(key, value): (&String, &Json)| Ok((Value::from(key.as_str()), from_json(value)?));
    Ok(Value::Map(object.iter().map(pair).collect::<Result<_, _>>()?))
}

/// `None` for an unknown tag or an invalid value.
fn from_tagged(tag: &str, value: &Json) -> Option<Result<Value, NotAValue>> {
    let text = value.as_str();
    Some(Ok(match tag {
        "$bin" => Value::Binary(BASE64.decode(text?).ok()?),
        "$badstr" => Value::String(bad_str(&BASE64.decode(text?).ok()?)?),
        "$datetime" => Value::Ext(EXT_DATETIME, date_to_salt(text?)?.into_bytes()),
        "$float" => Value::F64(match text? {
            "nan" => f64::NAN,
            "inf" => f64::INFINITY,
            "-inf" => f64::NEG_INFINITY,
            _ => return None,
        }),
        "$ext" => match value.as_array()?.as_slice() {
            [code, blob] => {
                Value::Ext(i8::try_from(code.as_i64()?).ok()?, BASE64.decode(blob.as_str()?).ok()?)
            }
            _ => return None,
        },
        "$map" => return pairs_of(value.as_array()?),
        _ => return None,
    }))
}

fn pairs_of(items: &[Json]) -> Option<Result<Value, NotAValue>> {
    let mut pairs = Vec::with_capacity(items.len());
    for item in items {
        let [key, value] = item.as_array()?.as_slice() else { return None };
        match (from_json(key), from_json(value)) {
            (Ok(key), Ok(value)) => pairs.push((key, value)),
            (Err(error), _) | (_, Err(error)) => return Some(Err(error)),
        }
    }
    Some(Ok(Value::Map(pairs)))
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
    fn values_that_json_supports_are_not_tagged() {
        check(&Value::Nil, "null");
        check(&Value::from(u64::MAX), "18446744073709551615");
        check(&Value::from(i64::MIN), "-9223372036854775808");
        check(&Value::from(1.5), "1.5");
        check(&Value::from(2.0), "2.0");
        check(&Value::from("gr\u{fc}n"), "\"gr\u{fc}n\"");
        let map = Value::Map(vec![("b".into(), 1.into()), ("a".into(), Value::Array(vec![true.into()]))]);
        check(&map, r#"{"b":1,"a":[true]}"#);
        check(&Value::Map(vec![]), "{}");
        check(&Value::Map(vec![("$a".into(), 1.into()), ("b".into(), 2.into())]), r#"{"$a":1,"b":2}"#);
    }

    #[test]
    fn values_that_json_lacks_are_tagged() {
        check(&Value::Binary(vec![0, 255]), r#"{"$bin":"AP8="}"#);
        let date = Value::Ext(78, b"20260203T04:05:06.000789".to_vec());
        check(&date, r#"{"$datetime":"2026-02-03T04:05:06.000789"}"#);
        check(&Value::Ext(78, b"yesterday".to_vec()), r#"{"$ext":[78,"eWVzdGVyZGF5"]}"#);
        check(&Value::Ext(-1, vec![1]), r#"{"$ext":[-1,"AQ=="]}"#);
        check(&Value::F64(f64::INFINITY), r#"{"$float":"inf"}"#);
        check(&Value::F64(f64::NEG_INFINITY), r#"{"$float":"-inf"}"#);
        assert_eq!(to_json(&Value::F64(f64::NAN)).to_string(), r#"{"$float":"nan"}"#);
        assert_eq!(to_json(&Value::F32(f32::NAN)).to_string(), r#"{"$float":"nan"}"#);
        check(&Value::String(bad_str(b"\xff\xfe").unwrap()), r#"{"$badstr":"//4="}"#);
        check(&Value::Map(vec![(1.into(), 2.into())]), r#"{"$map":[[1,2]]}"#);
        check(&Value::Map(vec![("$bin".into(), "x".into())]), r#"{"$map":[["$bin","x"]]}"#);
        let twice = Value::Map(vec![("a".into(), 1.into()), ("a".into(), 2.into())]);
        check(&twice, r#"{"$map":[["a",1],["a",2]]}"#);
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
            r#"{"$map": [[{"$no": 1}, 2]]}"#,
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
            any::<f64>().prop_filter("NaN is unequal to itself", |f| !f.is_nan()).prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
            "\\$(bin|map|x)".prop_map(Value::from),
            any::<Vec<u8>>().prop_map(Value::Binary),
            any::<Vec<u8>>().prop_filter_map("str", |bytes| bad_str(&bytes).map(Value::String)),
            (any::<i8>(), any::<Vec<u8>>()).prop_map(|(code, blob)| Value::Ext(code, blob)),
        ];
        leaf.prop_recursive(4, 64, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
                prop::collection::vec((inner.clone(), inner), 0..4).prop_map(Value::Map),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_value_survives_a_round_trip(value in values()) {
            let text = to_json(&value).to_string();
            let json: Json = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(from_json(&json).unwrap(), value);
        }
    }
}
