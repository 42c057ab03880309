//! Encoding of Rust types as msgpack: a struct is a map, a variant its name, and an absent value no pair of its map.
//!
//! For serde msgpack is not human-readable: a [`Time`] is a number here and a string in JSON.

use std::borrow::Cow;
use std::fmt::{self, Display};

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::ser::{Error as _, Impossible};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};
use serde_json::Value as Json;

use super::json::{Plain, to_json};
use super::{Reader, Writer, as_bytes, as_text, is_nil};
use saltcellar_base::clock::Micros;
use saltcellar_base::limits::RMPV_ANSWER_DEPTH_MAX;

/// The name by which a type asks for the bytes of one value, see [`Stored`].
pub(super) const PACKED: &str = "$packed";

/// A value cannot be represented in msgpack.
#[derive(Debug, thiserror::Error)]
#[error("internal error, a value cannot be encoded as msgpack: {0}; please report it")]
pub struct EncodeError(String);

impl ser::Error for EncodeError {
    fn custom<T: Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

/// Encodes a value.
pub fn encode(value: &(impl Serialize + ?Sized)) -> Result<Vec<u8>, EncodeError> {
    let mut out = Writer::new();
    value.serialize(&mut out)?;
    Ok(out.into_bytes())
}

/// Leaves a default value, such as `None` or an empty list, out of msgpack, but not out of JSON.
pub fn or_absent<T: Serialize + Default + PartialEq, S: Serializer>(
    value: &T,
    to: S,
) -> Result<S::Ok, S::Error> {
    if !to.is_human_readable() && *value == T::default() {
        return to.serialize_unit_struct("Absent");
    }
    value.serialize(to)
}

/// A value of Salt in a response or among arguments: msgpack as it was received.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Stored {
    /// Null, or left out, see [`or_absent`].
    #[default]
    None,
    /// One msgpack value.
    Packed(Vec<u8>),
}

impl Stored {
    /// A value as it was received; without any bytes [`Stored::None`].
    pub fn of(value: Option<&[u8]>) -> Self {
        value
            .filter(|value| !value.is_empty())
            .map_or(Self::None, |value| Self::Packed(value.to_vec()))
    }

    /// An event's data; binary if it is not msgpack: a value with bytes behind it would end a response early.
    pub fn of_data(data: Vec<u8>) -> Self {
        let is_whole = Reader::new(&data)
            .value()
            .is_ok_and(|value| value.len() == data.len());
        if is_whole {
            Self::Packed(data)
        } else {
            Self::binary(&data)
        }
    }

    /// Binary.
    pub fn binary(bytes: &[u8]) -> Self {
        let mut out = Writer::new();
        out.bin(bytes);
        Self::Packed(out.into_bytes())
    }

    /// Bytes of the value.
    pub fn size(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Packed(value) => value.len(),
        }
    }

    /// Nil instead of none, because it must not be left out.
    #[must_use]
    pub fn or_nil(self) -> Self {
        if self.is_none() {
            Self::Packed(vec![0xc0])
        } else {
            self
        }
    }

    /// The value, if it is text.
    pub fn as_str(&self) -> Option<&str> {
        as_text(self.packed())
    }

    /// The value in msgpack.
    pub fn packed(&self) -> &[u8] {
        match self {
            Self::None => &[0xc0],
            Self::Packed(value) => value,
        }
    }

    /// As [`Stored::packed`], without a copy.
    pub fn into_packed(self) -> Vec<u8> {
        match self {
            Self::None => vec![0xc0],
            Self::Packed(value) => value,
        }
    }

    /// Its JSON form.
    pub fn json(&self) -> Result<Json, rmpv::decode::Error> {
        let read =
            rmpv::decode::read_value_with_max_depth(&mut self.packed(), RMPV_ANSWER_DEPTH_MAX);
        read.map(|value| to_json(&value))
    }

    /// Whether it has no value.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

impl Serialize for Stored {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => to.serialize_none(),
            Self::Packed(value) if !to.is_human_readable() => to.serialize_bytes(value),
            Self::Packed(value) => match Plain::of(value) {
                Some(plain) => plain.serialize(to),
                // The forms of its values need tags.
                None => self.json().map_err(ser::Error::custom)?.serialize(to),
            },
        }
    }
}

impl<'de> Deserialize<'de> for Stored {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = from.deserialize_newtype_struct(PACKED, StoredVisitor)?;
        Ok(if is_nil(&value) {
            Self::None
        } else {
            Self::Packed(value)
        })
    }
}

/// The msgpack of one value: of [`decode`](super::decode) as it was, of any other source encoded.
struct StoredVisitor;

impl<'de> Visitor<'de> for StoredVisitor {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bytes<E>(self, value: &[u8]) -> Result<Vec<u8>, E> {
        Ok(value.to_vec())
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, from: D) -> Result<Vec<u8>, D::Error> {
        let mut out = Writer::new();
        from.deserialize_any(Rewrite(&mut out))?;
        Ok(out.into_bytes())
    }
}

/// Encodes what another deserializer reads: serde keeps the fields of a flattened struct in its own
/// values.
struct Rewrite<'a>(&'a mut Writer);

impl<'de> DeserializeSeed<'de> for Rewrite<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Rewrite<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.0.nil();
        Ok(())
    }

    fn visit_none<E>(self) -> Result<(), E> {
        self.0.nil();
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.0.bool(value);
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.0.int(value);
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.0.uint(value);
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.0.float(value);
        Ok(())
    }

    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        self.0.str(value);
        Ok(())
    }

    fn visit_bytes<E>(self, value: &[u8]) -> Result<(), E> {
        self.0.bin(value);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut body = Writer::new();
        let mut count = 0;
        while items.next_element_seed(Rewrite(&mut body))?.is_some() {
            count += 1;
        }

        self.0.array(count).raw(&body.0);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<(), A::Error> {
        let mut body = Writer::new();
        let mut count = 0;
        loop {
            let key = body.len();
            if pairs.next_key_seed(Rewrite(&mut body))?.is_none() {
                break;
            }

            let value = body.len();
            pairs.next_value_seed(Rewrite(&mut body))?;
            count += 1;

            // A value without a type in serde: its bytes are in the map's only pair.
            let at = |range| body.0.get(range).unwrap_or_default();
            if as_text(at(key..value)) == Some(PACKED) {
                let packed = as_bytes(at(value..body.len())).unwrap_or(&[0xc0]);
                self.0.raw(packed);
                return Ok(());
            }
        }

        self.0.map(count).raw(&body.0);
        Ok(())
    }
}

impl JsonSchema for Stored {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Stored".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        Schema::default()
    }
}

/// A timestamp in a response: microseconds since 1970 UTC in msgpack, an ISO string in JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Micros);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() {
            self.0.iso().serialize(to)
        } else {
            to.serialize_i64(self.0.0)
        }
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Micros(i64),
            Iso(String),
        }

        Ok(Self(Micros(match Form::deserialize(from)? {
            Form::Micros(at) => at,
            Form::Iso(text) => text
                .parse::<Timestamp>()
                .map_err(D::Error::custom)?
                .as_microsecond(),
        })))
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time", "examples": ["2026-11-21T05:47:28.123456Z"] })
    }
}

/// Elements of an array, or pairs of a map. Their head is corrected at the end, if their number is another than announced.
pub struct Parts<'a> {
    out: &'a mut Writer,
    is_map: bool,
    /// Where the head begins, and where it ends.
    head: [usize; 2],
    announced: usize,
    count: usize,
}

impl<'a> Parts<'a> {
    fn new(out: &'a mut Writer, is_map: bool, announced: usize) -> Self {
        let start = out.len();
        out.raw(&head_of(is_map, announced));
        Self {
            is_map,
            head: [start, out.len()],
            announced,
            count: 0,
            out,
        }
    }

    fn element(&mut self, value: &(impl Serialize + ?Sized)) -> Result<(), EncodeError> {
        self.count += 1;
        value.serialize(&mut *self.out)
    }

    fn pair(
        &mut self,
        key: &(impl Serialize + ?Sized),
        value: &(impl Serialize + ?Sized),
    ) -> Result<(), EncodeError> {
        let start = self.out.len();
        key.serialize(&mut *self.out)?;
        let end_of_key = self.out.len();
        value.serialize(&mut *self.out)?;

        // A value that writes nothing is absent, and so is its key.
        if self.out.len() == end_of_key {
            self.out.0.truncate(start);
        } else {
            self.count += 1;
        }
        Ok(())
    }

    fn end(self) {
        // Mostly every element is there. Otherwise the elements move only if the head gets another length.
        if self.count != self.announced {
            let [start, end] = self.head;
            let head = head_of(self.is_map, self.count);
            self.out.0.splice(start..end, head);
        }
    }
}

fn head_of(is_map: bool, count: usize) -> Vec<u8> {
    let mut head = Writer::new();
    if is_map {
        head.map(count);
    } else {
        head.array(count);
    }
    head.into_bytes()
}

impl ser::SerializeSeq for Parts<'_> {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        self.element(value)
    }

    fn end(self) -> Result<(), EncodeError> {
        Parts::end(self);
        Ok(())
    }
}

impl ser::SerializeTuple for Parts<'_> {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        self.element(value)
    }

    fn end(self) -> Result<(), EncodeError> {
        Parts::end(self);
        Ok(())
    }
}

impl ser::SerializeMap for Parts<'_> {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), EncodeError> {
        self.element(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        value.serialize(&mut *self.out)
    }

    fn serialize_entry<K: Serialize + ?Sized, V: Serialize + ?Sized>(
        &mut self,
        key: &K,
        value: &V,
    ) -> Result<(), EncodeError> {
        self.pair(key, value)
    }

    fn end(self) -> Result<(), EncodeError> {
        Parts::end(self);
        Ok(())
    }
}

impl ser::SerializeStruct for Parts<'_> {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), EncodeError> {
        self.pair(key, value)
    }

    fn end(self) -> Result<(), EncodeError> {
        Parts::end(self);
        Ok(())
    }
}

impl<'a> Serializer for &'a mut Writer {
    type Ok = ();
    type Error = EncodeError;
    type SerializeSeq = Parts<'a>;
    type SerializeTuple = Parts<'a>;
    type SerializeTupleStruct = Impossible<(), EncodeError>;
    type SerializeTupleVariant = Impossible<(), EncodeError>;
    type SerializeMap = Parts<'a>;
    type SerializeStruct = Parts<'a>;
    type SerializeStructVariant = Impossible<(), EncodeError>;

    fn is_human_readable(&self) -> bool {
        false
    }

    fn serialize_bool(self, value: bool) -> Result<(), EncodeError> {
        self.bool(value);
        Ok(())
    }

    fn serialize_i8(self, value: i8) -> Result<(), EncodeError> {
        self.serialize_i64(value.into())
    }

    fn serialize_i16(self, value: i16) -> Result<(), EncodeError> {
        self.serialize_i64(value.into())
    }

    fn serialize_i32(self, value: i32) -> Result<(), EncodeError> {
        self.serialize_i64(value.into())
    }

    fn serialize_i64(self, value: i64) -> Result<(), EncodeError> {
        self.int(value);
        Ok(())
    }

    fn serialize_u8(self, value: u8) -> Result<(), EncodeError> {
        self.serialize_u64(value.into())
    }

    fn serialize_u16(self, value: u16) -> Result<(), EncodeError> {
        self.serialize_u64(value.into())
    }

    fn serialize_u32(self, value: u32) -> Result<(), EncodeError> {
        self.serialize_u64(value.into())
    }

    fn serialize_u64(self, value: u64) -> Result<(), EncodeError> {
        self.uint(value);
        Ok(())
    }

    fn serialize_f32(self, value: f32) -> Result<(), EncodeError> {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> Result<(), EncodeError> {
        self.float(value);
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), EncodeError> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result<(), EncodeError> {
        self.str(value);
        Ok(())
    }

    /// Appends a value that is already msgpack, see [`Stored`].
    fn serialize_bytes(self, value: &[u8]) -> Result<(), EncodeError> {
        self.raw(value);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), EncodeError> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), EncodeError> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), EncodeError> {
        self.nil();
        Ok(())
    }

    /// Writes nothing; the pair of the value is then left out, see [`or_absent`].
    fn serialize_unit_struct(self, _: &'static str) -> Result<(), EncodeError> {
        Ok(())
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<(), EncodeError> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), EncodeError> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: &T,
    ) -> Result<(), EncodeError> {
        Err(EncodeError::custom(format!(
            "variant {variant} with a value"
        )))
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Parts<'a>, EncodeError> {
        Ok(Parts::new(self, false, len.unwrap_or(0)))
    }

    fn serialize_tuple(self, len: usize) -> Result<Parts<'a>, EncodeError> {
        Ok(Parts::new(self, false, len))
    }

    fn serialize_tuple_struct(
        self,
        name: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleStruct, EncodeError> {
        Err(EncodeError::custom(format!(
            "struct {name} without names of fields"
        )))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, EncodeError> {
        Err(EncodeError::custom(format!(
            "variant {variant} with values"
        )))
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Parts<'a>, EncodeError> {
        Ok(Parts::new(self, true, len.unwrap_or(0)))
    }

    fn serialize_struct(self, _: &'static str, len: usize) -> Result<Parts<'a>, EncodeError> {
        Ok(Parts::new(self, true, len))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, EncodeError> {
        Err(EncodeError::custom(format!(
            "variant {variant} with fields"
        )))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn decoded(bytes: &[u8]) -> Json {
        to_json(&rmpv::decode::read_value(&mut &*bytes).unwrap())
    }

    #[derive(Serialize, Default)]
    struct Row {
        time: Time,
        #[serde(serialize_with = "or_absent")]
        name: Option<String>,
        #[serde(flatten)]
        more: More,
    }

    #[derive(Serialize, Default)]
    struct More {
        next: Option<(u64, String)>,
        #[serde(serialize_with = "or_absent")]
        value: Stored,
        #[serde(serialize_with = "or_absent")]
        left: Option<i64>,
    }

    #[test]
    fn times_and_absent_values_have_a_form_in_each_format() {
        let none = Row {
            time: Time(Micros(5)),
            ..Row::default()
        };
        assert_eq!(
            decoded(&encode(&none).unwrap()),
            json!({ "time": 5, "next": null })
        );
        let iso = "1970-01-01T00:00:00.000005Z";
        let nulls = json!({ "time": iso, "name": null, "next": null, "value": null, "left": null });
        assert_eq!(json!(none), nulls);
        // nan has a form in msgpack, but not in JSON.
        let value = Stored::of(Some(&[0xcb, 0x7f, 0xf8, 0, 0, 0, 0, 0, 0]));
        let more = More {
            next: Some((7, "a".to_owned())),
            value,
            left: Some(-3),
        };
        let all = Row {
            time: Time(Micros(-1)),
            name: Some("x".to_owned()),
            more,
        };
        assert_eq!(
            decoded(&encode(&all).unwrap()),
            json!({ "time": -1, "name": "x", "next": [7, "a"], "value": { "$float": "nan" }, "left": -3 })
        );
    }

    #[test]
    fn any_json_is_encoded_as_it_is() {
        let numbers = json!([0, 127, 128, -33, u64::MAX, i64::MIN, 1.5, 70_000]);
        for value in [
            numbers,
            json!({ "a": { "b": [null, true, "é"] }, "": {} }),
            json!(vec![1; 70_000]),
        ] {
            assert_eq!(decoded(&encode(&value).unwrap()), value);
        }
    }
}
