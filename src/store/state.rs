//! The state database: what is looked up across segments.
//!
//! Everything in it comes out of sealed segments and can be made again from their logs; nothing is only here.
//! Segments are applied when they are sealed; the order does not matter, and applying one again changes nothing.
//!
//! # On disk
//!
//! ```text
//! state/              sled database; each tree is summed up (see `checked`)
//!   tree "job"        key    jid key, u128 BE: sorts by time, free text last
//!                     value  rkyv archive of `row::JobRow`
//!   tree "latest"     key    function, UTF-8 | 0 | minion id, UTF-8
//!                     value  sequence number of the return, u64 BE | jid, UTF-8
//!   tree "segment"    key    0 (jobs), 1 (events) or the class's name | first sequence number u64 BE
//!                     value  entries u64 | raw bytes u64 | log bytes u64 | last sequence number u64, LE
//!                            | place of its newest register: block u32 LE, place u16 LE; absent without one
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::checked::CheckedTree;
use super::class::Class;
use super::error::StoreError;
use super::index::{Latest, MemIndex, Place, Sums, flush_and_sync, open_sled};
use super::row::JobRow;
use super::segment::Segment;
use crate::model::{JidKey, SeqNo};

/// The open database.
#[derive(Debug)]
pub struct State {
    dir: PathBuf,
    db: sled::Db,
    job: CheckedTree,
    latest: CheckedTree,
    segment: CheckedTree,
}

impl State {
    /// Opens or creates it, and adds it up.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let db = open_sled(dir, 32 << 20)?;
        let tree = |name: &str| CheckedTree::open(&db, dir, name);
        let (job, latest, segment) = (tree("job")?, tree("latest")?, tree("segment")?);
        let state = Self { dir: dir.to_owned(), db, job, latest, segment };
        if !state.segment.is_new() && (state.job.is_new() || state.latest.is_new()) {
            return Err(state.damaged("a tree has lost everything".to_owned()));
        }
        Ok(state)
    }

    /// Takes over what a finished segment knows. Durable when it returns.
    pub fn apply(&self, segment: &Segment, index: &MemIndex) -> Result<(), StoreError> {
        let mut rows = Vec::with_capacity(index.rows().len());
        for (key, row) in index.rows() {
            let merged = match self.job(*key)? {
                Some(known) => known.joined(row.clone()),
                None => row.clone(),
            };
            let value = merged.to_bytes().map_err(|what| self.damaged(what))?;
            rows.push((key.0.to_be_bytes().to_vec(), value.to_vec()));
        }
        self.job.put(rows)?;
        let mut rows = Vec::new();
        for (fun, minions) in index.latest() {
            for (minion, latest) in minions {
                let key = [fun.as_bytes(), &[0], minion.as_bytes()].concat();
                let known = self.latest.get(&key)?.and_then(|v| read_latest(&v));
                if known.is_none_or(|known| known.seq < latest.seq) {
                    rows.push((key, [&latest.seq.0.to_be_bytes()[..], latest.jid.as_bytes()].concat()));
                }
            }
        }
        self.latest.put(rows)?;
        // The rows are durable before the segment counts as applied.
        flush_and_sync(&self.db, &self.dir)?;
        let Sums { entries, raw_bytes, log_bytes, last_seq } = index.sums();
        let mut value: Vec<u8> =
            [entries, raw_bytes, log_bytes, last_seq.0].iter().flat_map(|n| n.to_le_bytes()).collect();
        value.extend(index.register().into_iter().flat_map(Place::to_bytes));
        self.segment.put([(segment_key(segment), value)])?;
        flush_and_sync(&self.db, &self.dir)
    }

    /// The sums of a segment that has been applied.
    pub fn sums(&self, segment: &Segment) -> Result<Option<Sums>, StoreError> {
        Ok(self.segment.get(&segment_key(segment))?.and_then(|v| {
            let at = |i: usize| Some(u64::from_le_bytes(*v.get(i..)?.first_chunk()?));
            let (entries, raw_bytes, log_bytes, last_seq) = (at(0)?, at(8)?, at(16)?, SeqNo(at(24)?));
            Some(Sums { entries, raw_bytes, log_bytes, last_seq })
        }))
    }

    /// A job's row.
    pub fn job(&self, key: JidKey) -> Result<Option<JobRow>, StoreError> {
        self.job.get(&key.0.to_be_bytes())?.map(|bytes| self.row(&bytes)).transpose()
    }

    /// Up to `limit` rows, the latest first, of keys below `before`.
    pub fn jobs_before(
        &self,
        before: Option<JidKey>,
        limit: usize,
    ) -> Result<Vec<(JidKey, JobRow)>, StoreError> {
        let upper = before.map(|key| key.0.to_be_bytes());
        let rows = self.job.before(upper.as_ref().map(<[u8; 16]>::as_slice), limit)?;
        let key_of = |key: &[u8]| Some(JidKey(u128::from_be_bytes(key.try_into().ok()?)));
        rows.iter()
            .map(|(key, value)| {
                let key = key_of(key).ok_or_else(|| self.damaged("a jid key has not 16 bytes".to_owned()))?;
                Ok((key, self.row(value)?))
            })
            .collect()
    }

    /// Per minion the last job that ran a function.
    pub fn latest_of(&self, fun: &str) -> Result<BTreeMap<String, Latest>, StoreError> {
        let prefix = [fun.as_bytes(), &[0]].concat();
        let latest = |(key, value): &super::checked::Row| {
            let minion = String::from_utf8(key.get(prefix.len()..)?.to_vec()).ok()?;
            Some((minion, read_latest(value)?))
        };
        Ok(self.latest.with_prefix(&prefix)?.iter().filter_map(latest).collect())
    }

    /// Every minion that has returned anything.
    pub fn minions(&self) -> Result<Vec<String>, StoreError> {
        let minion = |key: &[u8]| {
            let at = memchr::memchr(0, key)?;
            String::from_utf8(key.get(at + 1..)?.to_vec()).ok()
        };
        Ok(self.latest.with_prefix(b"")?.iter().filter_map(|(key, _)| minion(key)).collect())
    }

    /// Where the newest register in a sealed segment lies.
    pub fn register(&self) -> Result<Option<(SeqNo, Place)>, StoreError> {
        let rows = self.segment.with_prefix(&JOBS_PREFIX)?;
        Ok(rows.iter().rev().find_map(|(key, value)| {
            let segment = u64::from_be_bytes(*key.get(1..)?.first_chunk()?);
            Some((SeqNo(segment), Place::from_bytes(value.get(32..)?)?))
        }))
    }

    fn row(&self, bytes: &[u8]) -> Result<JobRow, StoreError> {
        JobRow::from_bytes(bytes).map_err(|what| self.damaged(what))
    }

    fn damaged(&self, what: String) -> StoreError {
        StoreError::Index { path: self.dir.clone(), what }
    }
}

const JOBS_PREFIX: [u8; 1] = [0];

/// Of other classes the name stands here: their numbers may be others in the next run.
fn segment_key(segment: &Segment) -> Vec<u8> {
    let class = match segment.class {
        Class::JOBS => &JOBS_PREFIX[..],
        Class::EVENTS => &[1],
        _ => segment.class_name.as_bytes(),
    };
    [class, &segment.first_seq.0.to_be_bytes()].concat()
}

fn read_latest(value: &[u8]) -> Option<Latest> {
    let (seq, jid) = value.split_first_chunk::<8>()?;
    Some(Latest { seq: SeqNo(u64::from_be_bytes(*seq)), jid: String::from_utf8(jid.to_vec()).ok()? })
}
