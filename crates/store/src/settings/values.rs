//! The latest values of all settings, by key.

use std::collections::BTreeMap;

use super::record::{Record, Value};

/// A value, and the position of the change that set it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) position: u64,
    pub(super) value: Value,
}

/// The latest values, by key.
pub(super) type Values = BTreeMap<String, Stored>;

/// Makes a change.
pub(super) fn apply(values: &mut Values, record: &Record) {
    match &record.value {
        Some(value) => {
            let stored = Stored {
                position: record.position,
                value: value.clone(),
            };
            values.insert(record.key.clone(), stored);
        }
        None => _ = values.remove(&record.key),
    }
}
