//! Conversion of values to and from msgpack, like Salt's own serializer (`salt/payload.py`).

use salt_sls::{Map, Value};
use serde_json::Value as Json;

use crate::wire::msgpack::{Writer, json};
use crate::wire::salt_value::from_msgpack;

/// Appends a value. As in Salt, sets and tuples become lists, integers beyond msgpack's range text,
/// and dates an ext. An object that Salt cannot pack becomes text.
pub(crate) fn put(w: &mut Writer, value: &Value) {
    match value {
        Value::Null => w.nil(),
        Value::Bool(b) => w.bool(*b),
        Value::Int(i) => w.int(*i),
        Value::BigInt(digits) => match digits.parse() {
            Ok(n) => w.uint(n),
            Err(_) => w.str(digits),
        },
        Value::Float(f) => w.float(*f),
        Value::Str(text) => w.str(text),
        Value::Bytes(bytes) => w.bin(bytes),
        Value::List(items) | Value::Tuple(items) | Value::Set(items) => {
            w.array(items.len());
            for item in items {
                put(w, item);
            }
            w
        }
        Value::Map(map) => put_map(w, map),
        Value::Object(object) => match &object.packed {
            Ok((code, data)) => w.ext(*code, data),
            Err(_) => w.str(&object.text),
        },
    };
}

fn put_map<'w>(w: &'w mut Writer, map: &Map) -> &'w mut Writer {
    w.map(map.len());
    for (key, value) in map {
        put(w, &key.0);
        put(w, value);
    }
    w
}

pub(crate) fn packed_map(map: &Map) -> Vec<u8> {
    let mut w = Writer::new();
    put_map(&mut w, map);
    w.into_bytes()
}

pub(crate) fn packed(value: &Value) -> Vec<u8> {
    let mut w = Writer::new();
    put(&mut w, value);
    w.into_bytes()
}

/// The JSON form of a value; lists stand for tuples and sets, as in msgpack.
pub(crate) fn to_json(value: &Value) -> Json {
    rmpv::decode::read_value(&mut packed(value).as_slice())
        .map_or(Json::Null, |value| json::to_json(&value))
}

/// Parses the JSON form.
pub(crate) fn from_json(json: &Json) -> Option<Value> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &json::from_json(json).ok()?).ok()?;
    from_msgpack(&bytes)
}
