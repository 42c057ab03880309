//! Conversion of values to msgpack, like Salt's serializer (`salt/payload.py`).

use salt_sls::{Map, Value};

use crate::wire::msgpack::Writer;

/// Appends a value. As in Salt, sets and tuples become lists, dates become an ext, and integers
/// beyond msgpack's range become strings. An object that Salt cannot pack becomes a string.
pub(crate) fn put(w: &mut Writer, value: &Value) {
    match value {
        Value::Null => w.nil(),
        Value::Bool(b) => w.bool(*b),
        Value::Int(i) => w.int(*i),
        // msgpack's unsigned integers have 64 bits. Salt's packer turns larger ones into strings.
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
