//! The event's data of templates, from msgpack in one step.

use salt_sls::jinja::{Data, DictBuilder, Item};
use salt_sls::limits::JINJA_DATA_DEPTH_MAX;
use salt_sls::{Key, Value};

use crate::wire::msgpack::{DecodeError, Head, Reader};
use crate::wire::salt_value::from_ext;

/// Decodes one msgpack value.
pub fn from_msgpack(bytes: &[u8]) -> Result<Data, String> {
    let mut reader = Reader::new(bytes);
    let value = read(&mut reader, 0)?;
    match reader.rest().len() {
        0 => Ok(value.into()),
        left => Err(format!("msgpack: {left} bytes after the value")),
    }
}

fn read(reader: &mut Reader<'_>, depth: usize) -> Result<Item, String> {
    if depth > JINJA_DATA_DEPTH_MAX {
        return Err(too_deep());
    }

    let broken = |error: DecodeError| error.to_string();
    Ok(match reader.head().map_err(broken)? {
        Head::Nil => Item::none(),
        Head::Bool(b) => b.into(),
        Head::Int(i) => i.into(),
        Head::Big(n) => Item::opaque(Value::BigInt(n.to_string())),
        Head::Float(f) => f.into(),
        Head::Str(len) => (&*String::from_utf8_lossy(reader.take(len).map_err(broken)?)).into(),
        Head::Ext(code, len) => {
            let data = reader.take(len).map_err(broken)?;
            Item::opaque(from_ext(code, data))
        }
        Head::Bin(len) => {
            let data = reader.take(len).map_err(broken)?;
            Item::opaque(Value::Bytes(data.to_vec()))
        }
        Head::Array(len) => {
            // A member has at least one byte.
            let mut items = Vec::with_capacity(len.min(reader.rest().len()));
            for _ in 0..len {
                items.push(read(reader, depth + 1)?);
            }
            Item::list(items)
        }
        Head::Map(len) => {
            // As for lists, a length alone must not allocate memory.
            let mut dict = DictBuilder::with_room(len.min(reader.rest().len()));
            for _ in 0..len {
                let key = read_key(reader, depth + 1)?;
                dict.insert(key, read(reader, depth + 1)?);
            }
            dict.into()
        }
    })
}

fn read_key(reader: &mut Reader<'_>, depth: usize) -> Result<Key, String> {
    // Most keys are strings, which need no value in between.
    let mut content = *reader;
    if let Ok(Head::Str(len)) = content.head() {
        let text = content.take(len).map_err(|error| error.to_string())?;
        *reader = content;
        return Ok(Key(Value::Str(String::from_utf8_lossy(text).into_owned())));
    }

    let key = read(reader, depth)?.to_value().ok_or_else(too_deep)?;
    Ok(Key(match key {
        // Python decodes lists in keys as tuples.
        Value::List(items) => Value::Tuple(items),
        plain => plain,
    }))
}

fn too_deep() -> String {
    format!("the data is nested deeper than {JINJA_DATA_DEPTH_MAX} levels")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_msgpack_is_an_error() {
        for bytes in [
            &b""[..],
            b"\xdd\xff\xff\xff\xff",
            b"\xdf\xff\xff\xff\xff\x01",
            b"\xdb\xff\xff\xff\xff",
            b"\xc1",
            b"\x81\xa1a",
            b"\x01\x02",
        ] {
            assert!(from_msgpack(bytes).is_err(), "{bytes:?}");
        }
        let nested: Vec<u8> = std::iter::repeat_n(0x91, 5_000).chain([0xc0]).collect();
        assert!(from_msgpack(&nested).is_err());
    }

    #[test]
    fn values_and_keys_of_every_type_are_those_of_python() {
        let check = |bytes: &[u8], expected: &str| {
            let value = from_msgpack(bytes).map(|data| data.to_value().python_repr());
            assert_eq!(value.as_deref(), Ok(expected));
        };
        check(
            b"\x96\xc0\xc2\xff\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xa2hi\xc4\x01\xff",
            r"[None, False, -1, 18446744073709551615, 'hi', b'\xff']",
        );
        check(
            b"\x83\x01\xa1a\x92\x01\x02\xa1b\x01\xa1c",
            "{1: 'c', (1, 2): 'b'}",
        );
    }
}
