//! A record of the class `settings`, as the body of an entry. Its key is the entry's tag.
//!
//! # On disk
//!
//! ```text
//! body    position       u64 LE
//!         index in its batch, and records of the batch that follow   u32 LE each
//!         state          1 byte: 0 nil, 1 a value, 2 a value of the snapshot at the begin of a segment
//!         value
//! ```
//!
//! The first record of a segment contains an empty key and state 2. Its position is the end of the
//! snapshot behind it, and its value the number of records in the snapshot (u64 LE).

use std::sync::Arc;

/// Bytes before the value.
const PREFIX: usize = 17;

const NIL: u8 = 0;
const VALUE: u8 = 1;
const SNAPSHOT: u8 = 2;

/// The bytes of a value, shared by snapshots and the view.
pub(super) type Value = Arc<[u8]>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// `<kind>/<name>`; empty for the first record of a segment.
    pub(super) key: String,
    /// Its number among all changes ever made, without gaps. A snapshot's record keeps the number
    /// of the change that it repeats.
    pub(super) position: u64,
    /// Its place in its batch, and the number of records behind it there: a batch counts as a whole.
    pub(super) index: u32,
    pub(super) left: u32,
    pub(super) is_snapshot: bool,
    /// `None` if the key was removed.
    pub(super) value: Option<Value>,
}

impl Record {
    /// A record of a snapshot.
    pub(super) fn of_snapshot(key: &str, position: u64, value: Value) -> Self {
        Self {
            key: key.to_owned(),
            position,
            index: 0,
            left: 0,
            is_snapshot: true,
            value: Some(value),
        }
    }

    /// The first record of a segment.
    pub(super) fn of_head(head: Head) -> Self {
        Self::of_snapshot(
            "",
            head.position,
            head.records.to_le_bytes().as_slice().into(),
        )
    }

    /// The content of the first record of a segment; `None` for any other record.
    pub(super) fn head(&self) -> Option<Head> {
        if !self.key.is_empty() || !self.is_snapshot {
            return None;
        }
        let records = self.value.as_deref()?.try_into().ok()?;
        Some(Head {
            position: self.position,
            records: u64::from_le_bytes(records),
        })
    }

    pub(super) fn to_body(&self) -> Vec<u8> {
        let value = self.value.as_deref().unwrap_or_default();
        let state = match (&self.value, self.is_snapshot) {
            (None, _) => NIL,
            (Some(_), false) => VALUE,
            (Some(_), true) => SNAPSHOT,
        };

        let mut body = Vec::with_capacity(PREFIX + value.len());
        body.extend_from_slice(&self.position.to_le_bytes());
        body.extend_from_slice(&self.index.to_le_bytes());
        body.extend_from_slice(&self.left.to_le_bytes());
        body.push(state);
        body.extend_from_slice(value);
        body
    }

    /// `None` if this release writes no such record.
    pub(super) fn read(tag: &[u8], body: &[u8]) -> Option<Self> {
        let key = std::str::from_utf8(tag).ok()?.to_owned();

        let (position, rest) = body.split_first_chunk()?;
        let (index, rest) = rest.split_first_chunk()?;
        let (left, rest) = rest.split_first_chunk()?;
        let (state, value) = rest.split_first()?;

        let (value, is_snapshot) = match *state {
            NIL => (None, false),
            VALUE => (Some(value.into()), false),
            SNAPSHOT => (Some(value.into()), true),
            _ => return None,
        };
        Some(Self {
            key,
            position: u64::from_le_bytes(*position),
            index: u32::from_le_bytes(*index),
            left: u32::from_le_bytes(*left),
            is_snapshot,
            value,
        })
    }
}

/// What the first record of a segment states about the snapshot behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// The snapshot contains all changes up to this position.
    pub(super) position: u64,
    /// Its records.
    pub(super) records: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_no_part_of_one_is() {
        let value = || Some(b"{}".as_slice().into());
        for (value, is_snapshot) in [(None, false), (value(), false), (value(), true)] {
            let record = Record {
                key: "consumer/audit".to_owned(),
                position: 7,
                index: 1,
                left: 2,
                is_snapshot,
                value,
            };
            let body = record.to_body();
            assert_eq!(Record::read(b"consumer/audit", &body), Some(record));
            assert_eq!(Record::read(b"consumer/audit", &body[..PREFIX - 1]), None);
            assert_eq!(Record::read(&[0xff], &body), None);
        }

        let head = Head {
            position: 9,
            records: 3,
        };
        assert_eq!(Record::of_head(head).head(), Some(head));
    }
}
