//! Fingerprints of values, for comparison: equal for values that are equal in type and content. The
//! order of keys is ignored.

use rmpv::Value;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::base::limits::RMPV_DEPTH_MAX;

pub(super) fn of(bytes: &[u8]) -> u64 {
    let mut rest = bytes;
    match rmpv::decode::read_value_with_max_depth(&mut rest, RMPV_DEPTH_MAX) {
        Ok(value) if rest.is_empty() => of_value(&value),
        // Not one msgpack value: compared as bytes.
        _ => xxh3_64(bytes),
    }
}

pub(super) fn of_value(value: &Value) -> u64 {
    let mut hash = Xxh3::new();
    fold(value, &mut hash);
    hash.digest()
}

fn fold(value: &Value, hash: &mut Xxh3) {
    // Kind and length keep neighboring values apart.
    let mut update = |kind: u8, bytes: &[u8]| {
        hash.update(&[kind]);
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };

    match value {
        Value::Nil => update(b'0', b""),
        Value::Boolean(flag) => update(b'b', &[u8::from(*flag)]),
        Value::Integer(number) => update(b'i', number.to_string().as_bytes()),
        // Equal numbers are equal whatever their width.
        Value::F32(number) => fold(&Value::F64(f64::from(*number)), hash),
        Value::F64(number) => update(b'f', &number.to_bits().to_le_bytes()),
        Value::String(text) => update(b's', text.as_bytes()),
        Value::Binary(bytes) => update(b'y', bytes),
        Value::Ext(code, bytes) => update(b'x', &[&code.to_le_bytes()[..], bytes].concat()),
        Value::Array(items) => {
            update(b'a', &(items.len() as u64).to_le_bytes());
            for item in items {
                fold(item, hash);
            }
        }
        Value::Map(pairs) => {
            // A sum does not depend on the order of the pairs.
            let sum = pairs.iter().fold(0_u64, |sum, (key, value)| {
                let mut pair = Xxh3::new();
                fold(key, &mut pair);
                fold(value, &mut pair);
                sum.wrapping_add(pair.digest())
            });

            update(
                b'm',
                &[(pairs.len() as u64).to_le_bytes(), sum.to_le_bytes()].concat(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_equal_for_equal_values_in_any_order_of_keys() {
        let map = |pairs: Vec<(Value, Value)>| Value::Map(pairs);
        let one = map(vec![
            ("a".into(), 1.into()),
            (2.into(), Value::Binary(b"x".to_vec())),
        ]);
        let reordered = map(vec![
            (2.into(), Value::Binary(b"x".to_vec())),
            ("a".into(), 1.into()),
        ]);
        let other_types = map(vec![("2".into(), "x".into()), ("a".into(), 1.0.into())]);
        let other = map(vec![
            ("a".into(), 2.into()),
            (2.into(), Value::Binary(b"x".to_vec())),
        ]);
        assert_eq!(of_value(&one), of_value(&reordered));
        for different in [&other_types, &other, &Value::Array(vec![one.clone()])] {
            assert_ne!(of_value(different), of_value(&one));
        }
    }
}
