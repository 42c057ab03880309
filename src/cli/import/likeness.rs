//! Whether two values are the same.
//!
//! JSON says less than msgpack, and PostgreSQL's `jsonb` orders keys its own way. A value that went through it is known again
//! if it says the same as far as JSON can tell.

use rmpv::Value;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::limits::RMPV_DEPTH_MAX;

/// How closely two values must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Likeness {
    /// In every type; only the order of keys does not matter.
    Exact,
    /// As far as JSON tells: bytes are text, keys are text, 1.0 is 1.
    Json,
}

impl Likeness {
    /// A number that like values share.
    pub(super) fn of(self, bytes: &[u8]) -> u64 {
        let mut rest = bytes;
        match rmpv::decode::read_value_with_max_depth(&mut rest, RMPV_DEPTH_MAX) {
            Ok(value) if rest.is_empty() => self.of_value(&value),
            _ => xxh3_64(bytes),
        }
    }

    /// The same of a value that was read.
    pub(super) fn of_value(self, value: &Value) -> u64 {
        let mut hash = Xxh3::new();
        self.fold(value, &mut hash);
        hash.digest()
    }

    fn fold(self, value: &Value, hash: &mut Xxh3) {
        let json = self == Self::Json;
        let mut say = |kind: u8, bytes: &[u8]| {
            hash.update(&[kind]);
            hash.update(&(bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        match value {
            Value::Nil => say(b'0', b""),
            Value::Boolean(flag) => say(b'b', &[u8::from(*flag)]),
            Value::Integer(number) => say(b'i', number.to_string().as_bytes()),
            Value::F32(number) => self.fold(&Value::F64(f64::from(*number)), hash),
            #[expect(clippy::cast_possible_truncation, reason = "it was looked at before")]
            Value::F64(number) if json && number.fract() == 0.0 && number.abs() < 9e15 => {
                say(b'i', (*number as i64).to_string().as_bytes());
            }
            Value::F64(number) => say(b'f', &number.to_bits().to_le_bytes()),
            Value::String(text) => say(b's', text.as_bytes()),
            Value::Binary(bytes) => say(if json { b's' } else { b'y' }, bytes),
            Value::Ext(code, bytes) => say(b'x', &[&code.to_le_bytes()[..], bytes].concat()),
            Value::Array(items) => {
                say(b'a', &(items.len() as u64).to_le_bytes());
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
                say(b'm', &[(pairs.len() as u64).to_le_bytes(), sum.to_le_bytes()].concat());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_alike_as_far_as_their_form_can_tell() {
        let map = |pairs: Vec<(Value, Value)>| Value::Map(pairs);
        let one = map(vec![("a".into(), 1.into()), (2.into(), Value::Binary(b"x".to_vec()))]);
        let turned = map(vec![(2.into(), Value::Binary(b"x".to_vec())), ("a".into(), 1.into())]);
        let by_json = map(vec![("2".into(), "x".into()), ("a".into(), 1.0.into())]);
        let other = map(vec![("a".into(), 2.into()), (2.into(), Value::Binary(b"x".to_vec()))]);
        for (likeness, alike) in [(Likeness::Exact, false), (Likeness::Json, true)] {
            let of = |value: &Value| likeness.of_value(value);
            assert_eq!(of(&one), of(&turned));
            assert_eq!(of(&one) == of(&by_json), alike);
            assert_ne!(of(&one), of(&other));
            assert_ne!(of(&Value::Array(vec![one.clone()])), of(&one));
        }
    }
}
