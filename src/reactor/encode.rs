//! The JSON form of values in conformance cases.
//!
//! Types that JSON lacks are objects with one key that begins with `$`: `{"$tuple": [..]}`,
//! `{"$bytes": base64}`, `{"$int": "digits"}` from 2^53 on, `{"$float": "repr"}` for whole floats,
//! `inf` and `nan`, `{"$set": [..]}`, `{"$map": [[key, value], ..]}` for keys that are not text or
//! begin with `$`, `{"$object": {"type": .., "str": .., "repr": .., "true": .., "ext": [code,
//! base64]}}` for other types, with "why" instead of "ext" if Salt cannot send the value. A number
//! without a decimal point is an integer.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use salt_sls::{Key, Map, Object, Value};
use serde_json::{Value as Json, json};

/// Larger integers are not exact in all JSON parsers.
const EXACT: u64 = 1 << 53;

/// The JSON form.
pub(crate) fn encode(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(flag) => Json::Bool(*flag),
        Value::Int(int) if int.unsigned_abs() < EXACT => Json::from(*int),
        Value::Int(int) => tagged("$int", Json::from(int.to_string())),
        Value::BigInt(digits) => tagged("$int", Json::from(digits.as_str())),
        // A whole float would come back as an integer.
        Value::Float(float) if float.is_finite() && float.fract() != 0.0 => Json::from(*float),
        Value::Float(_) => tagged("$float", Json::from(value.python_repr())),
        Value::Str(text) => Json::from(text.as_str()),
        Value::Bytes(bytes) => tagged("$bytes", Json::from(BASE64.encode(bytes))),
        Value::List(items) => items.iter().map(encode).collect(),
        Value::Tuple(items) => tagged("$tuple", items.iter().map(encode).collect()),
        Value::Set(items) => tagged("$set", items.iter().map(encode).collect()),
        Value::Map(map) => encode_map(map),
        Value::Object(object) => tagged("$object", encode_object(object)),
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

/// The JSON form of a mapping.
pub(crate) fn encode_map(map: &Map) -> Json {
    let plain = map
        .keys()
        .all(|key| key.as_str().is_some_and(|text| !text.starts_with('$')));

    // A key that begins with `$` would be read back as a type.
    if !plain {
        return tagged(
            "$map",
            map.iter()
                .map(|(key, value)| Json::from(vec![encode(&key.0), encode(value)]))
                .collect(),
        );
    }

    Json::Object(
        map.iter()
            .filter_map(|(key, value)| Some((key.as_str()?.to_owned(), encode(value))))
            .collect(),
    )
}

fn tagged(tag: &str, value: Json) -> Json {
    Json::Object(serde_json::Map::from_iter([(tag.to_owned(), value)]))
}

/// Parses the JSON form. An object with another `$` key stays an object.
pub(crate) fn decode(json: &Json) -> Value {
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
        Json::Object(object) => decode_object(object),
    }
}

fn decode_object(object: &serde_json::Map<String, Json>) -> Value {
    let only = (object.len() == 1).then(|| object.iter().next()).flatten();
    if let Some((tag, inner)) = only
        && let Some(value) = decode_tagged(tag, inner)
    {
        return value;
    }
    Value::Map(
        object
            .iter()
            .map(|(key, value)| (Key::from(key.as_str()), decode(value)))
            .collect(),
    )
}

fn decode_tagged(tag: &str, inner: &Json) -> Option<Value> {
    let items = || -> Option<Vec<Value>> { Some(inner.as_array()?.iter().map(decode).collect()) };

    Some(match tag {
        "$bytes" => Value::Bytes(BASE64.decode(inner.as_str()?).ok()?),
        "$int" => {
            // Also integers that fit, see `EXACT`.
            let digits = inner.as_str()?;
            digits
                .parse()
                .map_or_else(|_| Value::BigInt(digits.to_owned()), Value::Int)
        }
        "$float" => Value::Float(inner.as_str()?.parse().ok()?),
        "$tuple" => Value::Tuple(items()?),
        "$set" => Value::Set(items()?),
        "$object" => Value::Object(Box::new(decode_object_form(inner)?)),
        "$map" => {
            let mut map = Map::default();
            for pair in inner.as_array()? {
                let [key, value] = pair.as_array()?.as_slice() else {
                    return None;
                };
                map.insert(Key(decode(key)), decode(value));
            }
            Value::Map(map)
        }
        _ => return None,
    })
}

fn decode_object_form(form: &Json) -> Option<Object> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_that_json_lacks_survive_a_round_trip() {
        for text in [
            r#"{"a":[1,2.5,"x",null,true]}"#,
            r#"{"$map":[[5,["a"]],[null,1]]}"#,
            r#"{"$map":[["$a",1]]}"#,
            r#"{"$int":"20300101000000000000"}"#,
            r#"{"$int":"9007199254740992"}"#,
            r#"{"$float":"2.0"}"#,
            r#"{"$float":"1e+300"}"#,
            r#"{"$float":"-inf"}"#,
            r#"{"$tuple":[1]}"#,
            r#"{"$set":["a"]}"#,
            r#"{"$bytes":"AAE="}"#,
            r#"{"$object":{"type":"date","str":"s","repr":"r","true":true,"ext":[78,"AA=="]}}"#,
            r#"{"$object":{"type":"Decimal","str":"s","repr":"r","true":false,"why":"no"}}"#,
            r#"{"$other":"function"}"#,
        ] {
            let json: Json = serde_json::from_str(text).unwrap();
            let again = encode(&decode(&json)).to_string();
            // An object with an unknown `$` key is encoded as a `$map`.
            let expected = if text.contains("$other") {
                r#"{"$map":[["$other","function"]]}"#
            } else {
                text
            };
            assert_eq!(again, expected);
        }
    }
}
