//! The state database: what is looked up across segments.
//!
//! Everything in it comes out of sealed segments and can be made again from their logs; nothing is only here.
//! Segments apply themselves once, when they are sealed, in the order of their sequence numbers; applying one
//! again changes nothing.
//!
//! # On disk
//!
//! ```text
//! state/              sled database
//!   tree "job"        key    jid key, u128 BE: sorts by time, free text last
//!                     value  rkyv archive of `row::JobRow`
//!   tree "latest"     key    function, UTF-8 | 0 | minion id, UTF-8
//!                     value  sequence number of the return, u64 BE | jid, UTF-8
//!   tree "segment"    key    class u8 | first sequence number u64 BE
//!                     value  entries u64 | raw bytes u64 | log bytes u64, LE
//!   tree "register"   key    "place"
//!                     value  segment's first sequence number u64 | block u32 | place u16, BE
//! ```

use std::path::{Path, PathBuf};

use super::error::StoreError;
use super::format::Class;
use super::index::{Latest, MemIndex, Place, Sums, flush_and_sync, guarded, open_sled};
use super::row::JobRow;
use crate::model::{JidKey, SeqNo};

/// The open database.
#[derive(Debug)]
pub struct State {
    dir: PathBuf,
    db: sled::Db,
    job: sled::Tree,
    latest: sled::Tree,
    segment: sled::Tree,
    register: sled::Tree,
}

impl State {
    /// Opens or creates it.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let db = open_sled(dir, 32 << 20)?;
        let tree = |name: &str| guarded(dir, || db.open_tree(name));
        let (job, latest, segment, register) =
            (tree("job")?, tree("latest")?, tree("segment")?, tree("register")?);
        Ok(Self { dir: dir.to_owned(), db, job, latest, segment, register })
    }

    /// Takes over what a finished segment knows. Durable when it returns.
    pub fn apply(&self, class: Class, segment: SeqNo, index: &MemIndex) -> Result<(), StoreError> {
        let damaged = |what: String| sled::Error::ReportableBug(what);
        guarded(&self.dir, || {
            for (key, row) in index.rows() {
                let key = key.0.to_be_bytes();
                let mut merged = match self.job.get(key)? {
                    Some(bytes) => JobRow::from_bytes(&bytes).map_err(damaged)?,
                    None => JobRow { first_at: row.first_at, jid: row.jid.clone(), ..JobRow::default() },
                };
                merged.merge(row.clone());
                self.job.insert(key, merged.to_bytes().map_err(damaged)?.as_slice())?;
            }
            for (fun, minions) in index.latest() {
                for (minion, latest) in minions {
                    let key = [fun.as_bytes(), &[0], minion.as_bytes()].concat();
                    let known = self.latest.get(&key)?.and_then(|v| read_latest(&v));
                    if known.is_none_or(|known| known.seq < latest.seq) {
                        self.latest
                            .insert(key, [&latest.seq.0.to_be_bytes()[..], latest.jid.as_bytes()].concat())?;
                    }
                }
            }
            if let Some(Place { block, at }) = index.register() {
                let value = [&segment.0.to_be_bytes()[..], &block.to_be_bytes(), &at.to_be_bytes()].concat();
                let known = self.register.get("place")?.and_then(|v| read_register(&v));
                if known.is_none_or(|(known, _)| known <= segment) {
                    self.register.insert("place", value)?;
                }
            }
            Ok(())
        })?;
        // The rows are durable before the segment counts as applied.
        flush_and_sync(&self.db, &self.dir)?;
        let sums = index.sums();
        let value: Vec<u8> =
            [sums.entries, sums.raw_bytes, sums.log_bytes].iter().flat_map(|n| n.to_le_bytes()).collect();
        guarded(&self.dir, || self.segment.insert(segment_key(class, segment), value))?;
        flush_and_sync(&self.db, &self.dir)
    }

    /// The sums of a segment that has been applied.
    pub fn sums(&self, class: Class, segment: SeqNo) -> Result<Option<Sums>, StoreError> {
        let value = guarded(&self.dir, || self.segment.get(segment_key(class, segment)))?;
        Ok(value.and_then(|v| {
            let at = |i: usize| Some(u64::from_le_bytes(*v.get(i..)?.first_chunk()?));
            Some(Sums { entries: at(0)?, raw_bytes: at(8)?, log_bytes: at(16)? })
        }))
    }

    /// A job's row.
    pub fn job(&self, key: JidKey) -> Result<Option<JobRow>, StoreError> {
        let value = guarded(&self.dir, || self.job.get(key.0.to_be_bytes()))?;
        value.map(|bytes| self.row(&bytes)).transpose()
    }

    /// Up to `limit` rows, the latest first, of keys below `before`.
    pub fn jobs_before(
        &self,
        before: Option<JidKey>,
        limit: usize,
    ) -> Result<Vec<(JidKey, JobRow)>, StoreError> {
        let pairs = guarded(&self.dir, || {
            let range = match before {
                Some(key) => self.job.range(..key.0.to_be_bytes()),
                None => self.job.iter(),
            };
            range.rev().take(limit).collect::<sled::Result<Vec<_>>>()
        })?;
        pairs
            .into_iter()
            .filter_map(|(key, value)| {
                Some((JidKey(u128::from_be_bytes(key.as_ref().try_into().ok()?)), value))
            })
            .map(|(key, value)| Ok((key, self.row(&value)?)))
            .collect()
    }

    /// Per minion the last job that ran a function.
    pub fn latest_of(&self, fun: &str) -> Result<Vec<(String, Latest)>, StoreError> {
        let prefix = [fun.as_bytes(), &[0]].concat();
        let pairs =
            guarded(&self.dir, || self.latest.scan_prefix(&prefix).collect::<sled::Result<Vec<_>>>())?;
        Ok(pairs
            .into_iter()
            .filter_map(|(key, value)| {
                let minion = String::from_utf8(key.get(prefix.len()..)?.to_vec()).ok()?;
                Some((minion, read_latest(&value)?))
            })
            .collect())
    }

    /// Every minion that has returned anything.
    pub fn minions(&self) -> Result<Vec<String>, StoreError> {
        let keys = guarded(&self.dir, || self.latest.iter().keys().collect::<sled::Result<Vec<_>>>())?;
        let minion = |key: &sled::IVec| {
            let at = memchr::memchr(0, key)?;
            String::from_utf8(key.get(at + 1..)?.to_vec()).ok()
        };
        Ok(keys.iter().filter_map(minion).collect())
    }

    /// Where the newest register in a sealed segment lies.
    pub fn register(&self) -> Result<Option<(SeqNo, Place)>, StoreError> {
        Ok(guarded(&self.dir, || self.register.get("place"))?.and_then(|v| read_register(&v)))
    }

    fn row(&self, bytes: &[u8]) -> Result<JobRow, StoreError> {
        JobRow::from_bytes(bytes).map_err(|what| StoreError::Index { path: self.dir.clone(), what })
    }
}

fn segment_key(class: Class, segment: SeqNo) -> Vec<u8> {
    [&[class as u8][..], &segment.0.to_be_bytes()].concat()
}

fn read_latest(value: &[u8]) -> Option<Latest> {
    let (seq, jid) = value.split_first_chunk::<8>()?;
    Some(Latest { seq: SeqNo(u64::from_be_bytes(*seq)), jid: String::from_utf8(jid.to_vec()).ok()? })
}

fn read_register(value: &[u8]) -> Option<(SeqNo, Place)> {
    let segment = SeqNo(u64::from_be_bytes(*value.first_chunk()?));
    let block = u32::from_be_bytes(*value.get(8..)?.first_chunk()?);
    Some((segment, Place { block, at: u16::from_be_bytes(*value.get(12..)?.first_chunk()?) }))
}
