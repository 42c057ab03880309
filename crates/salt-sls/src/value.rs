//! Values with Python's types and equality, from YAML, msgpack and JSON to low chunks.
//!
//! Mappings keep insertion order. Keys are equal as in Python: `1`, `1.0` and `True` are one key, `1` and `"1"` are two.

use std::hash::{Hash, Hasher};

use indexmap::IndexMap;

use crate::object::Object;

/// A value.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Value {
    /// `None`
    #[default]
    Null,
    /// `True` or `False`
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer outside of `i64`: decimal digits, with `-` if negative.
    BigInt(String),
    /// A float, including `nan` and the infinities.
    Float(f64),
    /// Text.
    Str(String),
    /// Bytes: `!!binary`, or msgpack's bin.
    Bytes(Vec<u8>),
    /// A list.
    List(Vec<Value>),
    /// A tuple. msgpack and YAML have none.
    Tuple(Vec<Value>),
    /// A set in insertion order.
    Set(Vec<Value>),
    /// A mapping in insertion order.
    Map(Map),
    /// A value of another type.
    Object(Box<Object>),
}

/// A mapping in insertion order.
///
/// foldhash: the mappings of one event are small and short-lived, and the standard library's hash took a twelfth of a reaction.
pub type Map = PythonDict<Value>;

/// [`Map`] for values of any type.
pub type PythonDict<V> = IndexMap<Key, V, foldhash::fast::RandomState>;

/// An empty mapping with room for this number of pairs.
pub fn with_room<V>(pairs: usize) -> PythonDict<V> {
    PythonDict::with_capacity_and_hasher(pairs, foldhash::fast::RandomState::default())
}

/// A key of a mapping, with Python's equality.
///
/// Lists and mappings are not hashable in Python; as keys they are equal to equal values here.
#[derive(Debug, Clone)]
pub struct Key(pub Value);

impl Key {
    /// The key's text, if it is text.
    pub fn as_str(&self) -> Option<&str> {
        self.0.as_str()
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Key(Value::Str(text.to_owned()))
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Key(Value::Str(text))
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            // PyYAML uses one nan object, and identical objects are equal as keys.
            (Value::Float(a), Value::Float(b)) if a.is_nan() && b.is_nan() => true,
            (a, b) => a.python_eq(b),
        }
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_of(&self.0, state);
    }
}

/// Lookup by `&str` without an allocation.
impl indexmap::Equivalent<Key> for str {
    fn equivalent(&self, key: &Key) -> bool {
        key.as_str() == Some(self)
    }
}

/// Strings hash as `str`, for lookups by `&str`.
fn hash_of<H: Hasher>(value: &Value, state: &mut H) {
    match value {
        Value::Null => state.write_u8(0),
        // Equal numbers hash alike, whatever their type is.
        Value::Bool(b) => state.write_i64(i64::from(*b)),
        Value::Int(i) => state.write_i64(*i),
        Value::BigInt(digits) => digits.as_str().hash(state),
        Value::Float(f) => match whole(*f) {
            Some(i) => state.write_i64(i),
            None if f.is_nan() => state.write_u8(1),
            None if f.fract() == 0.0 => digits(*f).as_str().hash(state),
            None => state.write_u64(f.to_bits()),
        },
        Value::Str(s) => s.as_str().hash(state),
        Value::Bytes(b) => b.hash(state),
        Value::List(items) | Value::Tuple(items) => {
            state.write_usize(items.len());
            for item in items {
                hash_of(item, state);
            }
        }

        // Equality ignores the order of these, so only the length is hashed.
        Value::Set(items) => state.write_usize(items.len()),
        Value::Map(map) => state.write_usize(map.len()),
        Value::Object(object) => object.text.hash(state),
    }
}

/// The integer that a float equals.
#[expect(
    clippy::cast_possible_truncation,
    reason = "checked: the float is whole and within i64"
)]
fn whole(f: f64) -> Option<i64> {
    // -2^63 and 2^63 are exact in f64; 2^63 exceeds i64.
    const EDGE: f64 = 9_223_372_036_854_775_808.0;
    (f.fract() == 0.0 && (-EDGE..EDGE).contains(&f)).then_some(f as i64)
}

/// All digits of a whole float.
fn digits(f: f64) -> String {
    format!("{f:.0}")
}

impl Value {
    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The mapping, if it is one.
    pub fn as_map(&self) -> Option<&Map> {
        match self {
            Value::Map(map) => Some(map),
            _ => None,
        }
    }

    /// The list, if it is one; `None` for a tuple.
    pub fn as_list(&self) -> Option<&[Value]> {
        match self {
            Value::List(items) => Some(items),
            _ => None,
        }
    }

    /// Whether Python can hash the value: no list, set or mapping.
    pub fn is_hashable(&self) -> bool {
        match self {
            Value::List(_) | Value::Set(_) | Value::Map(_) => false,
            Value::Tuple(items) => items.iter().all(Value::is_hashable),
            _ => true,
        }
    }

    /// `bool(value)`
    pub fn truthy(&self) -> bool {
        match self {
            Value::Null => false,
            Value::Bool(b) => *b,
            Value::Int(i) => *i != 0,
            Value::BigInt(_) => true,
            Value::Float(f) => *f != 0.0,
            Value::Str(s) => !s.is_empty(),
            Value::Bytes(b) => !b.is_empty(),
            Value::List(items) | Value::Tuple(items) | Value::Set(items) => !items.is_empty(),
            Value::Map(map) => !map.is_empty(),
            Value::Object(object) => object.is_true,
        }
    }

    /// Python's `==`: numbers and booleans are compared as numbers, mappings and sets without order.
    pub fn python_eq(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Null, Value::Null) => true,
            (Value::Str(a), Value::Str(b)) | (Value::BigInt(a), Value::BigInt(b)) => a == b,
            (Value::Bytes(a), Value::Bytes(b)) => a == b,
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.python_eq(b))
            }
            (Value::Set(a), Value::Set(b)) => {
                a.len() == b.len() && a.iter().all(|a| b.iter().any(|b| a.python_eq(b)))
            }
            (Value::Map(a), Value::Map(b)) => {
                a.len() == b.len()
                    && a.iter()
                        .all(|(key, value)| b.get(key).is_some_and(|other| value.python_eq(other)))
            }
            (Value::Float(a), Value::Float(b)) => a == b,
            (Value::Object(a), Value::Object(b)) => a == b,
            // Beyond `i64` the digits are compared.
            (Value::Float(f), Value::BigInt(i)) | (Value::BigInt(i), Value::Float(f)) => {
                f.fract() == 0.0 && digits(*f) == *i
            }
            _ => match (self.whole_number(), other.whole_number()) {
                (Some(a), Some(b)) => a == b,
                _ => false,
            },
        }
    }

    fn whole_number(&self) -> Option<i64> {
        match self {
            Value::Bool(b) => Some(i64::from(*b)),
            Value::Int(i) => Some(*i),
            Value::Float(f) => whole(*f),
            _ => None,
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Str(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_one_where_python_has_one() {
        let mut map = Map::default();
        map.insert(Key(Value::Int(1)), "int".into());
        map.insert(Key(Value::Float(1.0)), "float".into());
        map.insert(Key(Value::Bool(true)), "bool".into());
        map.insert(Key("1".into()), "text".into());
        assert_eq!(map.len(), 2);
        map.insert(Key(Value::Float(1e20)), "float".into());
        map.insert(
            Key(Value::BigInt("100000000000000000000".into())),
            "int".into(),
        );
        map.insert(Key(Value::Float(f64::NAN)), "nan".into());
        map.insert(Key(Value::Float(f64::NAN)), "nan".into());
        assert_eq!(map.len(), 4);
        assert_eq!(map.get(&Key(Value::Int(1))), Some(&"bool".into()));
        assert_eq!(map.get("1"), Some(&"text".into()));
    }

    #[test]
    fn equality_is_python_s() {
        assert!(Value::Int(0).python_eq(&Value::Bool(false)));
        assert!(Value::Float(2.0).python_eq(&Value::Int(2)));
        assert!(!Value::List(vec![]).python_eq(&Value::Tuple(vec![])));
        assert!(!Value::Float(f64::NAN).python_eq(&Value::Float(f64::NAN)));
        assert!(!Value::Null.python_eq(&Value::Bool(false)));
        assert!(Value::Float(1e20).python_eq(&Value::BigInt("100000000000000000000".into())));
        assert!(
            !Value::Float(f64::INFINITY).python_eq(&Value::BigInt("100000000000000000000".into()))
        );
    }
}
