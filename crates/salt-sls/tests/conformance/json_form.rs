//! The form of the recordings, and comparison of forms.

use proptest::prelude::*;
use salt_sls::compile::{self, Refused};
use salt_sls::json_form::{decode_map, encode, encode_map, tag, tagged};
use salt_sls::{Key, Map, Object, Value};
use serde_json::{Value as Json, json};

pub(crate) use salt_sls::json_form::decode as read;

use crate::lines;

/// The form of a value, with sets in the order of the recordings.
pub(crate) fn spell(value: &Value) -> Json {
    with_sorted_sets(encode(value))
}

pub(crate) fn spell_map(map: &Map) -> Json {
    with_sorted_sets(encode_map(map))
}

fn with_sorted_sets(form: Json) -> Json {
    match form {
        Json::Array(items) => items.into_iter().map(with_sorted_sets).collect(),
        Json::Object(object) => match object.get(tag::SET) {
            Some(Json::Array(items)) if object.len() == 1 => {
                let mut items: Vec<Json> = items.iter().cloned().map(with_sorted_sets).collect();
                items.sort_by_key(Json::to_string);
                tagged(tag::SET, items.into())
            }
            _ => object
                .into_iter()
                .map(|(key, item)| (key, with_sorted_sets(item)))
                .collect::<serde_json::Map<_, _>>()
                .into(),
        },
        other => other,
    }
}

pub(crate) fn read_map(json: &Json) -> Map {
    decode_map(json.as_object().unwrap())
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

/// The same table is read by the msgpack form of the daemon, and by both Python programs that
/// implement this form.
#[test]
fn the_shared_cases_survive_a_round_trip() {
    let mut checked = 0;
    for row in lines("json-form.jsonl") {
        // Other rows are of types that only msgpack has.
        if row.get("python").is_some() {
            let value = read(&row["json"]);
            assert_eq!(encode(&value).to_string(), row["json"].to_string(), "{row}");
            checked += 1;
        }
    }
    assert!(checked > 40, "{checked}");
}

#[test]
fn json_that_is_no_form_stands_for_itself() {
    for (text, form) in [
        (r#"{"$other":"function"}"#, r#"{"$$other":"function"}"#),
        (r#"{"$bin":"not base64!"}"#, r#"{"$$bin":"not base64!"}"#),
        (r#"{"$int":"x"}"#, r#"{"$$int":"x"}"#),
        (r#"{"$float":"1.5"}"#, r#"{"$$float":"1.5"}"#),
        (r#"{"$\"a\"":1}"#, r#"{"$$\"a\"":1}"#),
        (r#"{"$int":"5"}"#, "5"),
    ] {
        let value = read(&serde_json::from_str(text).unwrap());
        let again = encode(&value);
        assert_eq!(again.to_string(), form);
        assert_eq!(read(&again), value);
    }
}

/// Values that Python can have: a key is hashable.
fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        (i64::MAX as u64 + 1..).prop_map(|int| Value::BigInt(int.to_string())),
        "-?[1-9][0-9]{20,40}".prop_map(Value::BigInt),
        any::<f64>()
            .prop_filter("nan is unequal to itself", |float| !float.is_nan())
            .prop_map(Value::Float),
        ".{0,8}".prop_map(Value::Str),
        "\\$(bin|int|5|null|x)?".prop_map(Value::Str),
        any::<Vec<u8>>().prop_map(Value::Bytes),
        (any::<bool>(), ".{0,4}", any::<Vec<u8>>()).prop_map(|(is_true, text, data)| {
            Value::Object(Box::new(Object {
                type_name: "date".to_owned(),
                repr: format!("<{text}>"),
                packed: if is_true {
                    Ok((78, data))
                } else {
                    Err(text.clone())
                },
                text,
                is_true,
            }))
        }),
    ];
    let hashable = leaf.clone().prop_recursive(3, 8, 3, |inner| {
        prop::collection::vec(inner, 0..3).prop_map(Value::Tuple)
    });
    leaf.prop_recursive(4, 64, 6, move |inner| {
        let items = || prop::collection::vec(inner.clone(), 0..5);
        prop_oneof![
            items().prop_map(Value::List),
            items().prop_map(Value::Tuple),
            prop::collection::vec(hashable.clone(), 0..4).prop_map(Value::Set),
            prop::collection::vec((hashable.clone(), inner.clone()), 0..4).prop_map(|pairs| {
                let pairs = pairs.into_iter().map(|(key, value)| (Key(key), value));
                Value::Map(pairs.collect())
            }),
        ]
    })
}

proptest! {
    #[test]
    fn every_value_survives_a_round_trip(value in values()) {
        let text = encode(&value).to_string();
        prop_assert_eq!(read(&serde_json::from_str(&text).unwrap()), value);
    }
}
