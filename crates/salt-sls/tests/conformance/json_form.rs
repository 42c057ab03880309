//! The JSON form of the recordings: types without an equivalent are a mapping of one key that begins with `$`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use salt_sls::compile::{self, Refused};
use salt_sls::{Key, Map, Value, json, python};
use serde_json::{Value as Json, json};

/// Encodes a value in the JSON format of the cases.
pub(crate) fn spell(value: &Value) -> Json {
    let items = |items: &[Value]| items.iter().map(spell).collect::<Vec<_>>();
    match value {
        Value::Null => Json::Null,
        Value::Bool(b) => json!(b),
        Value::Int(i) if i.unsigned_abs() < 1 << 53 => json!(i),
        Value::Int(i) => json!({"$int": i.to_string()}),
        Value::BigInt(digits) => json!({"$int": digits}),
        Value::Float(f) if f.is_finite() && f.fract() != 0.0 => json!(f),
        Value::Float(_) => json!({"$float": python::repr(value)}),
        Value::Str(text) => json!(text),
        Value::Bytes(bytes) => json!({"$bytes": STANDARD.encode(bytes)}),
        Value::List(list) => Json::Array(items(list)),
        Value::Tuple(list) => json!({"$tuple": items(list)}),
        Value::Set(list) => {
            let mut list = items(list);
            list.sort_by_key(Json::to_string);
            json!({"$set": list})
        }
        Value::Map(map) => spell_map(map),
        Value::Object(object) => panic!("YAML and JSON have no {}", object.type_name),
    }
}

pub(crate) fn spell_map(map: &Map) -> Json {
    if map
        .keys()
        .all(|key| key.as_str().is_some_and(|key| !key.starts_with('$')))
    {
        let pair = |(key, value): (&Key, &Value)| (key.as_str().unwrap().to_owned(), spell(value));
        return Json::Object(map.iter().map(pair).collect());
    }
    json!({"$map": map.iter().map(|(key, value)| json!([spell(&key.0), spell(value)])).collect::<Vec<_>>()})
}

/// Decodes a value from the JSON format of the cases.
pub(crate) fn read(json: &Json) -> Value {
    let list = |json: &Json| {
        json.as_array()
            .unwrap()
            .iter()
            .map(read)
            .collect::<Vec<_>>()
    };
    match json {
        Json::Null => Value::Null,
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => Value::Int(i),
            (None, Some(i)) => Value::BigInt(i.to_string()),
            _ => Value::Float(n.as_f64().unwrap()),
        },
        Json::String(text) => Value::Str(text.clone()),
        Json::Array(_) => Value::List(list(json)),
        Json::Object(map) => match map.iter().next().map(|(key, value)| (key.as_str(), value)) {
            Some(("$int", digits)) => json::load(digits.as_str().unwrap()).unwrap(),
            Some(("$float", text)) => Value::Float(text.as_str().unwrap().parse().unwrap()),
            Some(("$bytes", text)) => {
                Value::Bytes(STANDARD.decode(text.as_str().unwrap()).unwrap())
            }
            Some(("$tuple", items)) => Value::Tuple(list(items)),
            Some(("$set", items)) => Value::Set(list(items)),
            Some(("$map", pairs)) => {
                let pair = |pair: &Json| (Key(read(&pair[0])), read(&pair[1]));
                Value::Map(pairs.as_array().unwrap().iter().map(pair).collect())
            }
            // An object of another type, of which no test looks at more than the text.
            Some((key, other)) if map.len() == 1 && key.starts_with('$') => {
                Value::Str(other.to_string())
            }
            _ => Value::Map(read_map(json)),
        },
    }
}

pub(crate) fn read_map(json: &Json) -> Map {
    match json.get("$map") {
        Some(_) => read(json).as_map().unwrap().clone(),
        None => json
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, value)| (key.as_str().into(), read(value)))
            .collect(),
    }
}

/// Equality including the order of keys.
pub(crate) fn alike(found: &Json, expected: &Json) -> bool {
    let (found, expected) = (found.to_string(), expected.to_string());
    found == expected
}

/// The differences, one per line; empty for a pass.
pub(crate) fn assert_none(wrong: &[String], of: usize) {
    assert!(of > 0);
    assert!(
        wrong.is_empty(),
        "{} of {of}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Chunks compared without regard to the order of their keys.
pub(crate) fn spell_low(low: &Json) -> Vec<String> {
    let chunk = |chunk: &Json| {
        let mut pairs: Vec<_> = chunk.as_object().unwrap().iter().collect();
        pairs.sort_by_key(|(key, _)| key.as_str());
        json!(pairs).to_string()
    };
    low.as_array()
        .map_or(vec![], |low| low.iter().map(chunk).collect())
}

pub(crate) fn low_of(files: Vec<Map>) -> Result<Json, Refused> {
    compile::low(files).map(|low| low.iter().map(spell_map).collect())
}
