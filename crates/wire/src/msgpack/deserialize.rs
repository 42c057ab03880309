//! Decoding of msgpack into Rust types, without a tree in between: arguments in the daemon,
//! responses in its clients.
//!
//! Text may be str or bin, as everywhere at the socket: old releases of msgpack for Python write text as bin.

use std::borrow::Cow;
use std::fmt::{self, Display};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::{BorrowedBytesDeserializer, BorrowedStrDeserializer, StrDeserializer};
use serde::de::{
    self, DeserializeSeed, EnumAccess, Error as _, IntoDeserializer as _, MapAccess, SeqAccess,
    Unexpected, VariantAccess, Visitor,
};
use serde::{Deserialize, Serialize, Serializer};

use super::serialize::{PACKED, Stored};
use super::{DecodeError, Head, Reader, is_nil};
use saltcellar_base::limits::DECODE_DEPTH_MAX;

/// Bytes are not a value of the requested type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotOfType(String);

impl de::Error for NotOfType {
    fn custom<T: Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

impl From<DecodeError> for NotOfType {
    fn from(error: DecodeError) -> Self {
        Self(error.to_string())
    }
}

/// Decodes one value.
pub fn decode<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, NotOfType> {
    let mut decoder = Decoder::new(bytes);
    let value = T::deserialize(&mut decoder)?;
    if decoder.reader.rest().is_empty() {
        Ok(value)
    } else {
        Err(NotOfType::custom("bytes after the value"))
    }
}

/// Decodes the next value of a reader.
pub struct Decoder<'de> {
    reader: Reader<'de>,
    /// Levels that may still be entered: each takes room on the stack.
    depth: usize,
    /// Whether the bytes are known to be exactly one value. Its end needs no search then.
    is_measured: bool,
}

impl<'de> Decoder<'de> {
    /// A decoder of one value.
    pub fn new(bytes: &'de [u8]) -> Self {
        Self {
            reader: Reader::new(bytes),
            depth: DECODE_DEPTH_MAX,
            is_measured: false,
        }
    }

    /// A decoder of a value whose bytes are known.
    fn of_measured(value: &'de [u8]) -> Self {
        Self {
            is_measured: true,
            ..Self::new(value)
        }
    }

    /// The bytes of the next value.
    fn packed(&mut self) -> Result<&'de [u8], NotOfType> {
        let whole = self.reader.rest();
        if self.is_measured && self.depth == DECODE_DEPTH_MAX {
            // A batch of events is long, and has been traversed once to find its end.
            return Ok(self.reader.take(whole.len())?);
        }
        Ok(self.reader.value()?)
    }

    /// Consumes nil, if it is next.
    fn take_nil(&mut self) -> bool {
        let is_next = self.reader.rest().first() == Some(&0xc0);
        is_next && self.reader.head().is_ok()
    }

    fn nested<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, NotOfType>,
    ) -> Result<T, NotOfType> {
        self.depth = self
            .depth
            .checked_sub(1)
            .ok_or_else(|| NotOfType::custom("nested too deep"))?;
        let value = read(self);
        self.depth += 1;
        value
    }
}

impl<'de> de::Deserializer<'de> for &mut Decoder<'de> {
    type Error = NotOfType;

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, NotOfType> {
        let start = self.reader.rest();
        match self.reader.head()? {
            Head::Nil => visitor.visit_unit(),
            Head::Bool(flag) => visitor.visit_bool(flag),
            Head::Int(number) => match u64::try_from(number) {
                Ok(number) => visitor.visit_u64(number),
                Err(_) => visitor.visit_i64(number),
            },
            Head::Big(number) => visitor.visit_u64(number),
            Head::Float(number) => visitor.visit_f64(number),
            Head::Str(len) => {
                let bytes = self.reader.take(len)?;
                match std::str::from_utf8(bytes) {
                    Ok(text) => visitor.visit_borrowed_str(text),
                    // Salt sends such strings, and only their msgpack says what they are.
                    Err(_) => visitor.visit_map(Wrapped::of(start, self.reader.rest())),
                }
            }
            Head::Bin(len) => visitor.visit_borrowed_bytes(self.reader.take(len)?),
            Head::Ext(_, len) => {
                self.reader.take(len)?;
                visitor.visit_map(Wrapped::of(start, self.reader.rest()))
            }
            Head::Array(len) => self.nested(|decoder| {
                let mut items = Items { decoder, left: len };
                let value = visitor.visit_seq(&mut items)?;
                items.end()?;
                Ok(value)
            }),
            Head::Map(len) => self.nested(|decoder| {
                let mut items = Items { decoder, left: len };
                let value = visitor.visit_map(&mut items)?;
                items.end()?;
                Ok(value)
            }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, NotOfType> {
        if self.take_nil() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, NotOfType> {
        if name == PACKED {
            visitor.visit_borrowed_bytes(self.packed()?)
        } else {
            visitor.visit_newtype_struct(self)
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, NotOfType> {
        let text = self.reader.text()?;
        visitor.visit_enum(Variant(text))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, NotOfType> {
        self.packed()?;
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier
    }
}

/// The elements of an array, or the pairs of a map.
struct Items<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    left: usize,
}

impl Items<'_, '_> {
    /// Rejects elements that the type does not have.
    fn end(&self) -> Result<(), NotOfType> {
        if self.left == 0 {
            Ok(())
        } else {
            Err(NotOfType::custom(format!(
                "{} elements too many",
                self.left
            )))
        }
    }
}

impl<'de> SeqAccess<'de> for &mut Items<'_, 'de> {
    type Error = NotOfType;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, NotOfType> {
        let Some(left) = self.left.checked_sub(1) else {
            return Ok(None);
        };
        self.left = left;
        seed.deserialize(&mut *self.decoder).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        // Each element is at least one byte long, so a greater number cannot be true.
        Some(self.left.min(self.decoder.reader.rest().len()))
    }
}

impl<'de> MapAccess<'de> for &mut Items<'_, 'de> {
    type Error = NotOfType;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, NotOfType> {
        SeqAccess::next_element_seed(self, seed)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, NotOfType> {
        seed.deserialize(&mut *self.decoder)
    }
}

/// A value without a type in serde, as a map with one pair: its bytes under [`PACKED`].
struct Wrapped<'de> {
    value: Option<&'de [u8]>,
    is_key_read: bool,
}

impl<'de> Wrapped<'de> {
    /// The value between two positions.
    fn of(start: &'de [u8], rest: &'de [u8]) -> Self {
        let len = start.len().saturating_sub(rest.len());
        Self {
            value: start.get(..len),
            is_key_read: false,
        }
    }
}

impl<'de> MapAccess<'de> for Wrapped<'de> {
    type Error = NotOfType;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, NotOfType> {
        if std::mem::replace(&mut self.is_key_read, true) {
            return Ok(None);
        }
        seed.deserialize(BorrowedStrDeserializer::new(PACKED))
            .map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, NotOfType> {
        let value = self.value.take().unwrap_or_default();
        seed.deserialize(BorrowedBytesDeserializer::new(value))
    }
}

/// A variant without a value, by its name.
struct Variant<'de>(&'de str);

impl<'de> EnumAccess<'de> for Variant<'de> {
    type Error = NotOfType;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), NotOfType> {
        let name: StrDeserializer<'_, NotOfType> = self.0.into_deserializer();
        Ok((seed.deserialize(name)?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'de> {
    type Error = NotOfType;

    fn unit_variant(self) -> Result<(), NotOfType> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _: T) -> Result<T::Value, NotOfType> {
        Err(NotOfType::invalid_type(
            Unexpected::UnitVariant,
            &"a variant with a value",
        ))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, NotOfType> {
        Err(NotOfType::invalid_type(
            Unexpected::UnitVariant,
            &"a variant with values",
        ))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, NotOfType> {
        Err(NotOfType::invalid_type(
            Unexpected::UnitVariant,
            &"a variant with fields",
        ))
    }
}

/// The pairs of a map whose slices are known, without those whose value is nil.
pub struct Pairs<'de, I> {
    pairs: I,
    value: &'de [u8],
}

impl<'de, I: Iterator<Item = (&'de [u8], &'de [u8])>> Pairs<'de, I> {
    /// A map of these keys (the bytes of their strings) and values (msgpack).
    pub fn new(pairs: I) -> Self {
        Self { pairs, value: &[] }
    }
}

impl<'de, I: Iterator<Item = (&'de [u8], &'de [u8])>> de::Deserializer<'de> for Pairs<'de, I> {
    type Error = NotOfType;

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, NotOfType> {
        visitor.visit_map(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, I: Iterator<Item = (&'de [u8], &'de [u8])>> MapAccess<'de> for Pairs<'de, I> {
    type Error = NotOfType;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, NotOfType> {
        let Some((key, value)) = self.pairs.find(|(_, value)| !is_nil(value)) else {
            return Ok(None);
        };
        self.value = value;
        let key = std::str::from_utf8(key).unwrap_or_default();
        seed.deserialize(BorrowedStrDeserializer::new(key))
            .map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, NotOfType> {
        let mut decoder = Decoder::of_measured(self.value);
        seed.deserialize(&mut decoder)
    }
}

/// One value, as its bytes: a stored body among arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed<'a>(pub &'a [u8]);

/// A map, as its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedMap<'a>(pub &'a [u8]);

/// An array, as its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedArray<'a>(pub &'a [u8]);

struct PackedVisitor;

impl<'de> Visitor<'de> for PackedVisitor {
    type Value = &'de [u8];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("msgpack")
    }

    fn visit_borrowed_bytes<E: de::Error>(self, value: &'de [u8]) -> Result<&'de [u8], E> {
        Ok(value)
    }
}

/// Implements a type of one value as its bytes.
macro_rules! packed {
    ($name:ident, $what:literal, $empty:expr, $fits:expr, $schema:tt) => {
        impl<'de: 'a, 'a> Deserialize<'de> for $name<'a> {
            fn deserialize<D: de::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let value = from.deserialize_newtype_struct(PACKED, PackedVisitor)?;
                let fits: fn(&[u8]) -> bool = $fits;
                if fits(value) {
                    Ok(Self(value))
                } else {
                    Err(D::Error::custom(concat!("expected ", $what)))
                }
            }
        }

        impl Default for $name<'_> {
            fn default() -> Self {
                Self($empty)
            }
        }

        impl Serialize for $name<'_> {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                if to.is_human_readable() {
                    return Stored::of(Some(self.0)).serialize(to);
                }
                // As it is.
                to.serialize_bytes(self.0)
            }
        }

        impl JsonSchema for $name<'_> {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

packed!(Packed, "a value", &[0xc0], |_| true, {});
packed!(PackedMap, "map", &[0x80], |value| Reader::new(value).map().is_ok(), { "type": "object" });
packed!(PackedArray, "array", &[0x90], |value| Reader::new(value).array().is_ok(), { "type": "array" });

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value as Json;

    use super::super::{Time, Writer, encode, or_absent};
    use super::*;
    use saltcellar_base::clock::Micros;

    #[derive(Debug, Default, PartialEq, serde::Serialize, Deserialize)]
    #[serde(default)]
    struct Row {
        name: String,
        at: Option<Time>,
        share: Option<f64>,
        counts: BTreeMap<String, u64>,
        kind: Option<Kind>,
        pair: Option<(u64, String)>,
        #[serde(serialize_with = "or_absent")]
        body: Stored,
        #[serde(flatten)]
        more: More,
    }

    #[derive(Debug, Default, PartialEq, serde::Serialize, Deserialize)]
    #[serde(default)]
    struct More {
        #[serde(serialize_with = "or_absent")]
        value: Stored,
        left: i64,
    }

    #[derive(Debug, PartialEq, serde::Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        First,
    }

    fn row(body: &[u8]) -> Row {
        Row {
            name: "é".to_owned(),
            at: Some(Time(Micros(-5))),
            share: Some(1.5),
            counts: [("0".to_owned(), u64::MAX)].into(),
            kind: Some(Kind::First),
            pair: Some((7, "a".to_owned())),
            body: Stored::of(Some(body)),
            more: More {
                value: Stored::of(Some(body)),
                left: -3,
            },
        }
    }

    #[test]
    fn what_was_encoded_is_decoded_and_stored_values_stay_as_they_are() {
        let mut map = Writer::new();
        map.map(3).int(1).float(f64::INFINITY);
        map.str("a").array(2).nil().bool(true).str("b").bin(b"\xff");
        let map = map.into_bytes();

        // A date of Salt, a str that is not UTF-8, and the largest integer have no type in serde.
        let bodies = [
            &map[..],
            b"\xd6\x4e1234",
            b"\xa1\xff",
            b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
        ];
        for body in bodies {
            let bytes = encode(&row(body)).unwrap();
            assert_eq!(decode::<Row>(&bytes), Ok(row(body)), "{body:?}");
        }

        assert_eq!(decode::<Row>(&[0x80]), Ok(Row::default()), "absent fields");
    }

    #[test]
    fn other_bytes_are_an_error() {
        let bytes = encode(&row(&[0xc0])).unwrap();
        for end in 0..bytes.len() {
            assert!(decode::<Row>(&bytes[..end]).is_err(), "cut at {end}");
        }

        let behind = [&bytes[..], &[0xc0]].concat();
        assert!(decode::<Row>(&behind).is_err(), "bytes behind it");
        assert!(decode::<u64>(&[0xff]).is_err(), "a negative count");
        assert!(decode::<Kind>(b"\xa4last").is_err(), "an unknown variant");
        assert!(
            decode::<(u64,)>(&[0x92, 1, 2]).is_err(),
            "an element too many"
        );

        let deep = [vec![0x91; 10_000], vec![0xc0]].concat();
        assert!(decode::<Json>(&deep).is_err(), "deep nesting ends no stack");
        // An announced length is no reason to allocate.
        assert!(decode::<Vec<u64>>(b"\xdd\xff\xff\xff\xff").is_err());
    }

    #[test]
    fn absent_arguments_are_left_out() {
        let pairs: [(&[u8], &[u8]); 3] = [
            (b"name", b"\xa1x"),
            (b"kind", &[0xc0]),
            (b"unknown", &[0x05]),
        ];
        let read = Row::deserialize(Pairs::new(pairs.into_iter())).unwrap();
        assert_eq!(
            read,
            Row {
                name: "x".to_owned(),
                ..Row::default()
            }
        );
    }
}
