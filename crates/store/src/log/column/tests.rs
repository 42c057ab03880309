//! Tests of columns: packed and unpacked values are equal.

use super::*;
use proptest::prelude::*;
use rkyv::rancor::Error;

proptest! {
    #[test]
    fn a_column_reproduces_its_values(values in prop_oneof![
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
        let mut unpacked = Vec::new();
        column.unpack(values.len(), &mut unpacked);
        prop_assert_eq!(&unpacked, &values);
        for bound in [0, 7, 8, 299, 300] {
            let below = values.iter().all(|v| usize::try_from(*v).is_ok_and(|v| v < bound));
            prop_assert!(column.is_below(bound) == below || values.is_empty());
        }
        let sum = values.iter().try_fold(0_u64, |sum, v| sum.checked_add(u64::try_from(*v).ok()?));
        prop_assert_eq!(column.total(values.len()), sum);
    }
}

#[test]
fn a_constant_column_has_no_data_and_a_small_range_one_byte_per_value() {
    assert_eq!(Column::pack(&[1_795_230_637_359_479; 1000]).data.len(), 0);
    assert_eq!(Column::pack(&[1_000_000, 1_000_255]).data.len(), 2);
    assert_eq!(Column::pack(&[i64::MIN, i64::MAX]).width, 8);
}
