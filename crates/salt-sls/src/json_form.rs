//! Values as JSON and back, exactly: what JSON lacks is an object with one key that begins with `$`
//! ([`tag`]). `docs/WIRE.md` of the repository describes the form for other programs, and
//! `tests/data/json-form.jsonl` contains the cases that all implementations read.
//!
//! | value | JSON |
//! |---|---|
//! | None, booleans, integers of 64 bits, finite floats, text, lists | themselves |
//! | mapping | object, keys in the same order; text is itself ([`text_key`]), another key `$` and its form ([`key`]) |
//! | bytes | `{"$bin": "<base64>"}` |
//! | integer beyond 64 bits | `{"$int": "99999999999999999999"}` |
//! | nan and infinities | `{"$float": "nan"}`, `"inf"`, `"-inf"` |
//! | tuple, set | `{"$tuple": [..]}`, `{"$set": [..]}` |
//! | another object | `{"$object": {"type": .., "str": .., "repr": .., "true": .., "ext": [code, "<base64>"]}}`, with "why" instead of "ext" if Salt cannot send it |
//!
//! A number without a point and an exponent is an integer.
//!
//! # Invariant
//!
//! [`decode`] reverses [`encode`], except for a key that is or contains a mapping, which Python does not allow.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map as JsonMap, Value as Json, json};

use crate::python;
use crate::{Key, Map, Object, Value};

/// The keys of objects that stand for values.
pub mod tag {
    /// Bytes, in base64.
    pub const BIN: &str = "$bin";
    /// Decimal digits of an integer beyond 64 bits.
    pub const INT: &str = "$int";
    /// `nan`, `inf` or `-inf`
    pub const FLOAT: &str = "$float";
    /// The members of a tuple.
    pub const TUPLE: &str = "$tuple";
    /// The members of a set.
    pub const SET: &str = "$set";
    /// What is known of an object of another type.
    pub const OBJECT: &str = "$object";
    /// msgpack: bytes, in base64, of a string that is not UTF-8.
    pub const BAD_STR: &str = "$badstr";
    /// msgpack: the ext of a date in Salt's format, as ISO 8601.
    pub const DATETIME: &str = "$datetime";
    /// msgpack: code and bytes, in base64, of another ext.
    pub const EXT: &str = "$ext";

    /// Whether an object with this only key stands for a value.
    pub fn is_one(key: &str) -> bool {
        matches!(
            key,
            BIN | INT | FLOAT | TUPLE | SET | OBJECT | BAD_STR | DATETIME | EXT
        )
    }
}

/// The object that stands for a value.
pub fn tagged(tag: &str, value: Json) -> Json {
    Json::Object(JsonMap::from_iter([(tag.to_owned(), value)]))
}

/// The tag and the inner value of an object that stands for a value; `None` for a mapping.
pub fn untagged(object: &JsonMap<String, Json>) -> Option<(&str, &Json)> {
    let (key, value) = object.iter().next().filter(|_| object.len() == 1)?;
    tag::is_one(key).then_some((key, value))
}

/// The form of a float.
pub fn float(number: f64) -> Json {
    let name = if number.is_nan() {
        "nan"
    } else if number == f64::INFINITY {
        "inf"
    } else if number == f64::NEG_INFINITY {
        "-inf"
    } else {
        return Json::from(number);
    };
    tagged(tag::FLOAT, Json::from(name))
}

/// The reverse of [`float`] for a tagged one.
pub fn tagged_float(name: &str) -> Option<f64> {
    match name {
        "nan" => Some(f64::NAN),
        "inf" => Some(f64::INFINITY),
        "-inf" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// The key of an object for a key that is text: itself, with one more `$` in front if it begins with `$`.
pub fn text_key(text: &str) -> String {
    if text.starts_with('$') {
        format!("${text}")
    } else {
        text.to_owned()
    }
}

/// The key of an object for a key in this form: `$` and the JSON of the form, such as `$5` and
/// `$null`.
pub fn key(form: &Json) -> String {
    match form {
        Json::String(text) => text_key(text),
        other => format!("${other}"),
    }
}

/// What the key of an object stands for.
#[derive(Debug, PartialEq)]
pub enum KeyForm<'a> {
    /// Text.
    Text(&'a str),
    /// A value with this form, which is not text.
    Value(Json),
    /// It begins with `$`, and is not the key of any value.
    Invalid,
}

/// The reverse of [`key`].
pub fn key_form(text: &str) -> KeyForm<'_> {
    match text.strip_prefix('$') {
        None => KeyForm::Text(text),
        Some(escaped) if escaped.starts_with('$') => KeyForm::Text(escaped),
        Some(form) => match serde_json::from_str(form) {
            // Strings need no mark.
            Ok(Json::String(_)) | Err(_) => KeyForm::Invalid,
            Ok(form) => KeyForm::Value(form),
        },
    }
}

/// The form of a value.
pub fn encode(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(flag) => Json::Bool(*flag),
        Value::Int(int) => Json::from(*int),
        Value::BigInt(digits) => match digits.parse::<u64>() {
            Ok(int) => Json::from(int),
            Err(_) => tagged(tag::INT, Json::from(digits.as_str())),
        },
        Value::Float(number) => float(*number),
        Value::Str(text) => Json::from(text.as_str()),
        Value::Bytes(bytes) => tagged(tag::BIN, Json::from(BASE64.encode(bytes))),
        Value::List(items) => items.iter().map(encode).collect(),
        Value::Tuple(items) => tagged(tag::TUPLE, items.iter().map(encode).collect()),
        Value::Set(items) => tagged(tag::SET, items.iter().map(encode).collect()),
        Value::Map(map) => encode_map(map),
        Value::Object(object) => tagged(tag::OBJECT, encode_object(object)),
    }
}

/// The form of a mapping.
pub fn encode_map(map: &Map) -> Json {
    let pair = |(of, value): (&Key, &Value)| {
        let name = match &of.0 {
            Value::Str(text) => text_key(text),
            // The escapes of a key within a key would double with each level.
            other if has_map(other) => format!("${}", python::repr(other)),
            other => key(&encode(other)),
        };
        (name, encode(value))
    };
    Json::Object(map.iter().map(pair).collect())
}

fn has_map(value: &Value) -> bool {
    match value {
        Value::Map(_) => true,
        Value::List(items) | Value::Tuple(items) | Value::Set(items) => items.iter().any(has_map),
        _ => false,
    }
}

fn encode_object(object: &Object) -> Json {
    let (name, packed) = match &object.packed {
        Ok((code, data)) => ("ext", json!([code, BASE64.encode(data)])),
        Err(why) => ("why", Json::from(why.as_str())),
    };
    json!({
        "type": object.type_name,
        "str": object.text,
        "repr": object.repr,
        "true": object.is_true,
        name: packed,
    })
}

/// The value of a form. JSON that is no form stands for itself: an object with an unknown tag is a mapping.
pub fn decode(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(flag) => Value::Bool(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(int), _) => Value::Int(int),
            // Beyond i64 only integers of u64 lack a decimal point.
            (None, _) if number.is_u64() => Value::BigInt(number.to_string()),
            (None, float) => Value::Float(float.unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::Str(text.clone()),
        Json::Array(items) => Value::List(items.iter().map(decode).collect()),
        Json::Object(object) => untagged(object)
            .and_then(|(tag, inner)| decode_tagged(tag, inner))
            .unwrap_or_else(|| Value::Map(decode_map(object))),
    }
}

/// The mapping of an object.
pub fn decode_map(object: &JsonMap<String, Json>) -> Map {
    let pair = |(name, value): (&String, &Json)| {
        let key = match key_form(name) {
            KeyForm::Text(text) => Key::from(text),
            KeyForm::Value(form) => Key(decode(&form)),
            KeyForm::Invalid => Key::from(name.as_str()),
        };
        (key, decode(value))
    };
    object.iter().map(pair).collect()
}

fn decode_tagged(tag: &str, inner: &Json) -> Option<Value> {
    let items = || -> Option<Vec<Value>> { Some(inner.as_array()?.iter().map(decode).collect()) };

    Some(match tag {
        tag::BIN => Value::Bytes(BASE64.decode(inner.as_str()?).ok()?),
        tag::INT => {
            let digits = inner.as_str()?;
            // Also integers that fit, because other writers may tag those as well.
            match digits.parse() {
                Ok(int) => Value::Int(int),
                Err(_) if is_integer(digits) => Value::BigInt(digits.to_owned()),
                Err(_) => return None,
            }
        }
        tag::FLOAT => Value::Float(tagged_float(inner.as_str()?)?),
        tag::TUPLE => Value::Tuple(items()?),
        tag::SET => Value::Set(items()?),
        tag::OBJECT => Value::Object(Box::new(decode_object(inner)?)),
        _ => return None,
    })
}

fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn decode_object(form: &Json) -> Option<Object> {
    let text = |name: &str| form.get(name)?.as_str().map(str::to_owned);
    let packed = match form.get("ext") {
        Some(ext) => {
            let [code, data] = ext.as_array()?.as_slice() else {
                return None;
            };
            let code = i8::try_from(code.as_i64()?).ok()?;
            Ok((code, BASE64.decode(data.as_str()?).ok()?))
        }
        // Salt cannot send such a value, and a call that contains it fails with this reason.
        None => Err(text("why")?),
    };

    Some(Object {
        type_name: text("type")?,
        text: text("str")?,
        repr: text("repr")?,
        is_true: form.get("true")?.as_bool()?,
        packed,
    })
}
