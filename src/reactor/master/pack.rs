//! Conversion of values to and from msgpack, like Salt's own serializer (`salt/payload.py`).

use serde_json::Value as Json;

use crate::base::limits::MSGPACK_DEPTH_MAX;
use crate::wire::json;
use crate::wire::msgpack::{Head, Reader, Writer};
use crate::wire::python::value::{Key, Map, Value};
use crate::wire::salt_ext::from_ext;

/// Appends a value. As in Salt, sets and tuples become lists, integers beyond msgpack's range text, and dates an ext. An object that Salt
/// cannot pack becomes text.
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
        Value::Map(map) => {
            w.map(map.len());
            for (key, value) in map {
                put(w, &key.0);
                put(w, value);
            }
            w
        }
        Value::Object(object) => match &object.packed {
            Ok((code, data)) => w.ext(*code, data),
            Err(_) => w.str(&object.text),
        },
    };
}

/// Encodes a value.
pub(crate) fn packed(value: &Value) -> Vec<u8> {
    let mut w = Writer::new();
    put(&mut w, value);
    w.into_bytes()
}

/// Decodes a value; `None` for malformed msgpack, or nesting beyond [`MSGPACK_DEPTH_MAX`].
pub(crate) fn unpacked(bytes: &[u8]) -> Option<Value> {
    read(&mut Reader::new(bytes), MSGPACK_DEPTH_MAX)
}

fn read(reader: &mut Reader<'_>, depth: usize) -> Option<Value> {
    let depth = depth.checked_sub(1)?;
    let text = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => Value::Str(text.to_owned()),
        Err(_) => Value::Bytes(bytes.to_vec()),
    };
    let mut look = *reader;
    Some(match look.head().ok()? {
        Head::Str(_) | Head::Bin(_) => {
            let is_text = matches!(look_head(reader)?, Head::Str(_));
            let bytes = reader.bytes().ok()?;
            if is_text {
                text(bytes)
            } else {
                Value::Bytes(bytes.to_vec())
            }
        }
        Head::Array(len) => {
            *reader = look;
            // Grows with the actual data, not with the announced length.
            let mut items = Vec::new();
            for _ in 0..len {
                items.push(read(reader, depth)?);
            }
            Value::List(items)
        }
        Head::Map(len) => {
            *reader = look;
            let mut map = Map::default();
            for _ in 0..len {
                let key = read(reader, depth)?;
                map.insert(Key(key), read(reader, depth)?);
            }
            Value::Map(map)
        }
        Head::Ext(code, len) => {
            *reader = look;
            from_ext(code, reader.take(len).ok()?)
        }
        scalar => {
            *reader = look;
            match scalar {
                Head::Bool(b) => Value::Bool(b),
                Head::Int(i) => Value::Int(i),
                Head::Big(n) => Value::BigInt(n.to_string()),
                Head::Float(f) => Value::Float(f),
                _ => Value::Null,
            }
        }
    })
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
    unpacked(&bytes)
}

fn look_head(reader: &Reader<'_>) -> Option<Head> {
    let mut look = *reader;
    look.head().ok()
}
