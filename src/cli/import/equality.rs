//! Fingerprints of values, for comparison.
//!
//! JSON has fewer types than msgpack, and PostgreSQL's `jsonb` reorders keys. Values from there are compared by their JSON
//! equivalents.

use rmpv::Value;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::base::limits::RMPV_DEPTH_MAX;

/// Which values have equal fingerprints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Equality {
    /// Values equal in type and content; the order of keys is ignored.
    Exact,
    /// Values equal in JSON: bytes equal text, keys are text, 1.0 equals 1.
    Json,
}

impl Equality {
    /// The fingerprint of a msgpack value.
    pub(super) fn of(self, bytes: &[u8]) -> u64 {
        let mut rest = bytes;
        match rmpv::decode::read_value_with_max_depth(&mut rest, RMPV_DEPTH_MAX) {
            Ok(value) if rest.is_empty() => self.of_value(&value),
            _ => xxh3_64(bytes),
        }
    }

    /// The fingerprint of a decoded value.
    pub(super) fn of_value(self, value: &Value) -> u64 {
        let mut hash = Xxh3::new();
        self.fold(value, &mut hash);
        hash.digest()
    }

    fn fold(self, value: &Value, hash: &mut Xxh3) {
        let json = self == Self::Json;
        let mut update = |kind: u8, bytes: &[u8]| {
            hash.update(&[kind]);
            hash.update(&(bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        match value {
            Value::Nil => update(b'0', b""),
            Value::Boolean(flag) => update(b'b', &[u8::from(*flag)]),
            Value::Integer(number) => update(b'i', number.to_string().as_bytes()),
            Value::F32(number) => self.fold(&Value::F64(f64::from(*number)), hash),
            #[expect(clippy::cast_possible_truncation, reason = "checked by the guard")]
            Value::F64(number) if json && number.fract() == 0.0 && number.abs() < 9e15 => {
                update(b'i', (*number as i64).to_string().as_bytes());
            }
            Value::F64(number) => update(b'f', &number.to_bits().to_le_bytes()),
            Value::String(text) => update(b's', text.as_bytes()),
            Value::Binary(bytes) => update(if json { b's' } else { b'y' }, bytes),
            Value::Ext(code, bytes) => update(b'x', &[&code.to_le_bytes()[..], bytes].concat()),
            Value::Array(items) => {
                update(b'a', &(items.len() as u64).to_le_bytes());
                for item in items {
                    self.fold(item, hash);
                }
            }
            Value::Map(pairs) => {
                let sum = pairs.iter().fold(0_u64, |sum, (key, value)| {
                    let mut pair = Xxh3::new();
                    match key {
                        Value::String(_) | Value::Binary(_) => self.fold(key, &mut pair),
                        other if json => self.fold(&Value::from(other.to_string()), &mut pair),
                        other => self.fold(other, &mut pair),
                    }
                    self.fold(value, &mut pair);
                    sum.wrapping_add(pair.digest())
                });
                update(b'm', &[(pairs.len() as u64).to_le_bytes(), sum.to_le_bytes()].concat());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_equal_for_equivalent_values() {
        let map = |pairs: Vec<(Value, Value)>| Value::Map(pairs);
        let one = map(vec![("a".into(), 1.into()), (2.into(), Value::Binary(b"x".to_vec()))]);
        let reordered = map(vec![(2.into(), Value::Binary(b"x".to_vec())), ("a".into(), 1.into())]);
        let by_json = map(vec![("2".into(), "x".into()), ("a".into(), 1.0.into())]);
        let other = map(vec![("a".into(), 2.into()), (2.into(), Value::Binary(b"x".to_vec()))]);
        for (equality, alike) in [(Equality::Exact, false), (Equality::Json, true)] {
            let of = |value: &Value| equality.of_value(value);
            assert_eq!(of(&one), of(&reordered));
            assert_eq!(of(&one) == of(&by_json), alike);
            assert_ne!(of(&one), of(&other));
            assert_ne!(of(&Value::Array(vec![one.clone()])), of(&one));
        }
    }
}
