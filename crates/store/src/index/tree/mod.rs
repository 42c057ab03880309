//! sled trees that detect missing rows.
//!
//! A truncated file of sled 0.34 opens without an error, but without the rows of the lost part
//! (`docs/decisions/log-and-indexes.md`). Each tree therefore has a row with the count of its other rows
//! and the sum of their hashes, updated in the same atomic batch. Opening a tree verifies both.
//!
//! A damaged file may also yield an old version of a tree, complete but older than another tree. A
//! tree that must not be older than another one carries a mark that grows with each change.
//!
//! # On disk
//!
//! ```text
//! key    empty
//! value  rows u64 LE | sum of xxh3-64(key length u32 LE, key, value) over all rows, wrapping, u64 LE
//!        | mark u64 LE
//! ```

pub mod sled_guard;

use std::ops::Bound;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3;

use crate::error::StoreError;
use crate::index::tree::sled_guard::guarded;

const SUM_KEY: &[u8] = b"";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Sum {
    rows: u64,
    hashes: u64,
    mark: u64,
}

impl Sum {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        self.rows = self.rows.wrapping_add(1);
        self.hashes = self.hashes.wrapping_add(row_hash(key, value));
    }

    fn remove(&mut self, key: &[u8], value: &[u8]) {
        self.rows = self.rows.wrapping_sub(1);
        self.hashes = self.hashes.wrapping_sub(row_hash(key, value));
    }

    fn to_bytes(self) -> Vec<u8> {
        [self.rows, self.hashes, self.mark]
            .map(u64::to_le_bytes)
            .concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            bytes
                .get(at..at + 8)?
                .try_into()
                .ok()
                .map(u64::from_le_bytes)
        };
        Some(Self {
            rows: word(0)?,
            hashes: word(8)?,
            mark: word(16)?,
        })
    }
}

fn row_hash(key: &[u8], value: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(
        &u32::try_from(key.len())
            .expect("sled takes no such key")
            .to_le_bytes(),
    );
    hash.update(key);
    hash.update(value);
    hash.digest()
}

pub(crate) type Row = (sled::IVec, sled::IVec);

/// A tree whose rows were verified when it was opened.
#[derive(Debug)]
pub(crate) struct CheckedTree {
    dir: PathBuf,
    tree: sled::Tree,
    /// Lock order: after the state database's locks; no other lock is taken under it.
    sum: Mutex<Sum>,
    is_new: bool,
}

impl CheckedTree {
    /// Opens a tree and verifies count and hashes.
    pub(crate) fn open(db: &sled::Db, dir: &Path, name: &str) -> Result<Self, StoreError> {
        let tree = guarded(dir, || db.open_tree(name))?;

        let (mut found, stored) = guarded(dir, || {
            // Every row, on each opening: sled verifies its own pages only as they are read, and a
            // lost part is not noticed at all.
            let mut found = Sum::default();
            for row in tree.range::<&[u8], _>((Bound::Excluded(SUM_KEY), Bound::Unbounded)) {
                let (key, value) = row?;
                found.add(&key, &value);
            }
            Ok((found, tree.get(SUM_KEY)?))
        })?;

        let is_new = stored.is_none();
        let stored = stored.map_or(Some(Sum::default()), |bytes| Sum::from_bytes(&bytes));

        // The mark has no second source. It is compared with another tree by the caller.
        found.mark = stored.map_or(0, |stored| stored.mark);
        if stored != Some(found) {
            let what = format!("tree `{name}` does not add up: rows are missing or foreign");
            return Err(StoreError::Index {
                path: dir.to_owned(),
                what,
            });
        }

        Ok(Self {
            dir: dir.to_owned(),
            tree,
            sum: Mutex::new(found),
            is_new,
        })
    }

    /// Whether the tree was empty and without a sum when it was opened. A tree that lost everything
    /// looks the same.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    pub(crate) fn mark(&self) -> u64 {
        self.sum.lock().mark
    }

    /// Inserts rows and sets the mark, atomically. Keys must be distinct.
    pub(crate) fn put(
        &self,
        rows: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
        mark: u64,
    ) -> Result<(), StoreError> {
        // The sum is locked until the batch is applied, because sum and rows must change in the
        // same order.
        let mut kept = self.sum.lock();
        let mut sum = Sum { mark, ..*kept };
        guarded(&self.dir, || {
            let mut batch = sled::Batch::default();
            // Replacing a row takes its old hash out of the sum.
            for (key, value) in rows {
                if let Some(old) = self.tree.get(&key)? {
                    sum.remove(&key, &old);
                }
                sum.add(&key, &value);
                batch.insert(key, value);
            }

            batch.insert(SUM_KEY, sum.to_bytes());
            self.tree.apply_batch(batch)
        })?;

        // Only after success: a batch that failed changed nothing.
        *kept = sum;
        Ok(())
    }

    /// Replaces all rows and sets the mark, atomically. Unchanged rows are not written.
    pub(crate) fn replace(
        &self,
        rows: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
        mark: u64,
    ) -> Result<(), StoreError> {
        let mut kept = self.sum.lock();
        let sum = guarded(&self.dir, || {
            // The sum starts over: all rows that stay are added again.
            let mut batch = sled::Batch::default();
            let mut sum = Sum {
                mark,
                ..Sum::default()
            };
            let mut old: std::collections::BTreeMap<_, _> = self
                .tree
                .range::<&[u8], _>((Bound::Excluded(SUM_KEY), Bound::Unbounded))
                .collect::<sled::Result<_>>()?;

            for (key, value) in rows {
                sum.add(&key, &value);
                if old
                    .remove(key.as_slice())
                    .is_none_or(|known| known != value)
                {
                    batch.insert(key, value);
                }
            }

            for key in old.into_keys() {
                batch.remove(key);
            }
            batch.insert(SUM_KEY, sum.to_bytes());
            self.tree.apply_batch(batch)?;
            Ok(sum)
        })?;

        *kept = sum;
        Ok(())
    }

    /// Removes a row, if it exists.
    pub(crate) fn remove(&self, key: &[u8]) -> Result<(), StoreError> {
        let mut kept = self.sum.lock();
        let mut sum = *kept;
        guarded(&self.dir, || {
            // Already removed, as after a drop that was interrupted.
            let Some(old) = self.tree.get(key)? else {
                return Ok(());
            };
            sum.remove(key, &old);

            let mut batch = sled::Batch::default();
            batch.remove(key);
            batch.insert(SUM_KEY, sum.to_bytes());
            self.tree.apply_batch(batch)
        })?;
        *kept = sum;
        Ok(())
    }

    pub(crate) fn damaged(&self, what: &str) -> StoreError {
        let name = String::from_utf8_lossy(&self.tree.name()).into_owned();
        StoreError::Index {
            path: self.dir.clone(),
            what: format!("tree `{name}`: {what}"),
        }
    }

    /// All rows, ascending.
    pub(crate) fn rows(&self) -> Result<Vec<Row>, StoreError> {
        guarded(&self.dir, || {
            self.tree
                .range::<&[u8], _>((Bound::Excluded(SUM_KEY), Bound::Unbounded))
                .collect()
        })
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<sled::IVec>, StoreError> {
        guarded(&self.dir, || self.tree.get(key))
    }

    /// Number of rows.
    pub(crate) fn len(&self) -> u64 {
        self.sum.lock().rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_foreign_rows_are_detected() {
        let dir = tempfile::tempdir().unwrap();
        let row = |n: u8| (vec![n], vec![n; 10]);
        let db = crate::index::tree::sled_guard::open_sled(dir.path(), 1 << 20).unwrap();
        let tree = CheckedTree::open(&db, dir.path(), "t").unwrap();
        tree.put([row(1), row(2)], 1).unwrap();
        tree.put([(vec![2], b"other".to_vec()), row(3)], 7).unwrap();
        assert_eq!((tree.rows().unwrap().len(), tree.len()), (3, 3));
        assert_eq!(tree.get(&[2]).unwrap().unwrap().as_ref(), b"other");
        drop(tree);
        assert_eq!(CheckedTree::open(&db, dir.path(), "t").unwrap().mark(), 7);
        let raw = db.open_tree("t").unwrap();
        let taken = raw.remove([1]).unwrap().unwrap();
        let error = CheckedTree::open(&db, dir.path(), "t")
            .unwrap_err()
            .to_string();
        assert!(error.contains("does not add up"), "{error}");
        raw.insert([1], taken).unwrap();
        assert!(CheckedTree::open(&db, dir.path(), "t").is_ok());
        raw.insert([9], "foreign").unwrap();
        assert!(CheckedTree::open(&db, dir.path(), "t").is_err());
    }
}
