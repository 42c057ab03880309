//! Columns: many numbers of one kind, packed to the bytes that their range needs.
//!
//! # On disk
//!
//! ```text
//! base   i64     the smallest value
//! width  u8      bytes of each delta, 0 to 8; 0 if all values are equal
//! data   bytes   value i is base + the little-endian delta at i * width
//! ```
//!
//! A column is read in place: value `i` costs one load and one addition, a column of equal values no byte.

use rkyv::{Archive, Serialize};

/// A packed column.
#[derive(Debug, Archive, Serialize)]
pub struct Column {
    base: i64,
    width: u8,
    data: Vec<u8>,
}

impl Column {
    /// Packs values.
    pub fn pack(values: &[i64]) -> Self {
        let base = values.iter().copied().min().unwrap_or(0);
        // Wrapping: the difference of two i64 always fits the u64 it is taken as.
        let delta = |v: i64| v.wrapping_sub(base).cast_unsigned();
        let widest = values.iter().map(|&v| delta(v)).max().unwrap_or(0);
        let width = 8 - usize::try_from(widest.leading_zeros() / 8).unwrap_or(0);
        let mut data = Vec::with_capacity(values.len() * width);
        for &value in values {
            data.extend(delta(value).to_le_bytes().iter().take(width));
        }
        Self { base, width: u8::try_from(width).unwrap_or(8), data }
    }
}

impl ArchivedColumn {
    /// Does it hold exactly `count` values? A column of equal values holds any number of them.
    pub fn holds(&self, count: usize) -> bool {
        self.width <= 8 && count.checked_mul(usize::from(self.width)) == Some(self.data.len())
    }

    /// Value `i`; the base for an `i` that is not there.
    pub fn get(&self, i: usize) -> i64 {
        let width = usize::from(self.width);
        let base = self.base.to_native();
        let at = i.saturating_mul(width);
        let Some(bytes) = self.data.get(at..at.saturating_add(width)) else { return base };
        let mut delta = [0_u8; 8];
        for (to, from) in delta.iter_mut().zip(bytes) {
            *to = *from;
        }
        base.wrapping_add(u64::from_le_bytes(delta).cast_signed())
    }

    /// Value `i` as an index; 0 for what is none.
    pub fn index(&self, i: usize) -> usize {
        usize::try_from(self.get(i)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rkyv::rancor::Error;

    proptest! {
        #[test]
        fn a_column_gives_back_its_values(values in prop_oneof![
            prop::collection::vec(any::<i64>(), 0..50),
            prop::collection::vec(0_i64..300, 0..50),
            prop::collection::vec(Just(7_i64), 0..50),
        ]) {
            let bytes = rkyv::to_bytes::<Error>(&Column::pack(&values)).unwrap();
            let column = rkyv::access::<ArchivedColumn, Error>(&bytes).unwrap();
            prop_assert!(column.holds(values.len()));
            for (i, v) in values.iter().enumerate() {
                prop_assert_eq!(column.get(i), *v);
            }
        }
    }

    #[test]
    fn equal_values_cost_nothing_and_small_ranges_one_byte() {
        assert_eq!(Column::pack(&[1_795_230_637_359_479; 1000]).data.len(), 0);
        assert_eq!(Column::pack(&[1_000_000, 1_000_255]).data.len(), 2);
        assert_eq!(Column::pack(&[i64::MIN, i64::MAX]).width, 8);
    }
}
