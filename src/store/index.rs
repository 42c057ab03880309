//! A segment's index: where its blocks lie, and which entries belong to which job.
//!
//! The index of an unfinished segment lies in memory ([`MemIndex`]) and is made anew from the log at start.
//! When the segment is sealed it is written to sled in one go ([`SledIndex`]): sled then never sees a write
//! per event, and the hot path never waits for it.
//!
//! # On disk
//!
//! ```text
//! index/            sled database
//!   tree "block"    key    block number, u32 BE
//!                   value  offset u64 | payload bytes u32 | entries u32 | first_seq u64 | last_seq u64
//!                          | at_min i64 | at_max i64, all LE
//!   tree "jid"      key    jid key, u128 BE | part, u32 BE
//!                   value  places: block number u32 LE | place in the block u16 LE, up to 512 of them
//! ```
//!
//! Both trees are summed up (`checked`). Values stay below sled's limit for pages outside its file, which it does not sync.

use std::collections::BTreeMap;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use super::checked::CheckedTree;
use super::error::{StoreError, io_at};
use super::log::BlockMeta;
use super::row::{self, JobRow};
use crate::clock::Micros;
use crate::limits::INDEX_BUSY_PATIENCE;
use crate::model::{Entry, FastMap, JidKey, Kind, SeqNo};

/// An entry's place in its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Number of the block.
    pub block: u32,
    /// Number of the entry in the block.
    pub at: u16,
}

impl Place {
    /// Six bytes: block u32 LE, place in it u16 LE.
    pub fn to_bytes(self) -> [u8; PLACE_LEN] {
        let mut bytes = [0; PLACE_LEN];
        let (block, at) = bytes.split_at_mut(4);
        block.copy_from_slice(&self.block.to_le_bytes());
        at.copy_from_slice(&self.at.to_le_bytes());
        bytes
    }

    /// Reads them.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (block, at) = bytes.split_first_chunk()?;
        Some(Self { block: u32::from_le_bytes(*block), at: u16::from_le_bytes(*at.first_chunk()?) })
    }
}

/// The last job that ran a function on a minion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latest {
    /// Where its return lies in the log.
    pub seq: SeqNo,
    /// The job.
    pub jid: String,
}

/// Where a job's entries lie, and how good a load its row has (`row::rank`).
#[derive(Debug, Default)]
struct JobPlaces {
    places: Vec<Place>,
    rank: u8,
}

/// By function, then by minion. A job of several functions stands under the empty one.
pub type LatestJobs = FastMap<String, FastMap<String, Latest>>;

/// Sums over a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sums {
    /// Entries.
    pub entries: u64,
    /// Bytes that they brought along.
    pub raw_bytes: u64,
    /// Bytes of the log file.
    pub log_bytes: u64,
    /// Last sequence number.
    pub last_seq: SeqNo,
}

/// The index of a segment that still grows, or waits to be sealed.
#[derive(Debug)]
pub struct MemIndex {
    segment: SeqNo,
    blocks: Vec<BlockMeta>,
    jobs: FastMap<JidKey, JobPlaces>,
    rows: BTreeMap<JidKey, JobRow>,
    latest: LatestJobs,
    register: Option<Place>,
    sums: Sums,
}

impl MemIndex {
    /// The index of a segment without entries.
    pub fn new(segment: SeqNo) -> Self {
        Self {
            segment,
            blocks: Vec::new(),
            jobs: FastMap::default(),
            rows: BTreeMap::new(),
            latest: FastMap::default(),
            register: None,
            sums: Sums::default(),
        }
    }

    /// Takes note of a block whose entries follow through [`MemIndex::add`].
    pub fn add_block(&mut self, meta: BlockMeta) {
        self.sums.log_bytes = meta.end();
        self.blocks.push(meta);
    }

    /// Takes note of an entry of the newest block. `body` is asked for only if the job's row needs it.
    pub fn add<'a>(
        &mut self,
        at: usize,
        seq: SeqNo,
        entry: &Entry<'a>,
        raw_len: usize,
        body: impl FnOnce() -> &'a [u8],
    ) {
        let block = u32::try_from(self.blocks.len().saturating_sub(1)).unwrap_or(u32::MAX);
        let place = Place { block, at: u16::try_from(at).unwrap_or(u16::MAX) };
        self.sums.entries += 1;
        self.sums.last_seq = self.sums.last_seq.max(seq);
        self.sums.raw_bytes += raw_len as u64;
        if entry.kind == Kind::Register {
            self.register = Some(place);
        }
        if entry.jid.is_empty() {
            return;
        }
        let key = JidKey::of(entry.jid);
        let job = self.jobs.entry(key).or_default();
        job.places.push(place);
        let rank = row::rank(entry.kind);
        // A row for every job that has entries here, whatever they are: it tells where they can be found.
        let row =
            (job.places.len() == 1 || rank > job.rank || matches!(entry.kind, Kind::Endtime | Kind::NoCache))
                .then(|| {
                    self.rows.entry(key).or_insert_with(|| JobRow {
                        jid: entry.jid.to_owned(),
                        first_at: entry.at.0,
                        segments: vec![self.segment.0],
                        ..JobRow::default()
                    })
                });
        if let Some(row) =
            row.filter(|_| rank > job.rank || matches!(entry.kind, Kind::Endtime | Kind::NoCache))
        {
            job.rank = job.rank.max(rank);
            row.learn(seq, &Entry { body: body(), ..*entry });
        }
        if entry.kind == Kind::Return && !entry.minion.is_empty() {
            self.note_latest(seq, entry);
        }
    }

    fn note_latest(&mut self, seq: SeqNo, entry: &Entry<'_>) {
        if !self.latest.contains_key(entry.fun) {
            self.latest.insert(entry.fun.to_owned(), FastMap::default());
        }
        let Some(minions) = self.latest.get_mut(entry.fun) else { return };
        match minions.get_mut(entry.minion) {
            Some(latest) => {
                latest.seq = seq;
                entry.jid.clone_into(&mut latest.jid);
            }
            None => {
                minions.insert(entry.minion.to_owned(), Latest { seq, jid: entry.jid.to_owned() });
            }
        }
    }

    /// The blocks in order.
    pub fn blocks(&self) -> &[BlockMeta] {
        &self.blocks
    }

    /// The places of a job's entries, in order.
    pub fn places(&self, key: JidKey) -> &[Place] {
        self.jobs.get(&key).map_or(&[], |job| job.places.as_slice())
    }

    /// The rows of jobs whose entries are here.
    pub fn rows(&self) -> &BTreeMap<JidKey, JobRow> {
        &self.rows
    }

    /// Per function and minion the last job.
    pub fn latest(&self) -> &LatestJobs {
        &self.latest
    }

    /// Where the newest register of this segment lies.
    pub fn register(&self) -> Option<Place> {
        self.register
    }

    /// Sums over the segment.
    pub fn sums(&self) -> Sums {
        self.sums
    }
}

/// The index of a sealed segment.
#[derive(Debug)]
pub struct SledIndex {
    blocks: Vec<BlockMeta>,
    jid: CheckedTree,
    _db: sled::Db,
}

const PLACES_PER_PART: usize = 512;
const PLACE_LEN: usize = 6;

/// Opens a sled database; a panic inside sled on damaged files becomes an error. sled lets go of a database on a thread
/// of its own, so one that was closed a moment ago may still be held: that is waited for.
pub fn open_sled(dir: &Path, cache_bytes: u64) -> Result<sled::Db, StoreError> {
    let deadline = Instant::now() + INDEX_BUSY_PATIENCE;
    loop {
        let config = sled::Config::new().path(dir).cache_capacity(cache_bytes).flush_every_ms(None);
        match guarded(dir, || config.open()) {
            Err(StoreError::Io { why, .. }) if is_held(&why) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2));
            }
            opened => return opened,
        }
    }
}

/// Runs something of sled's. Damage and panics become a [`StoreError::Index`], what the operating system refuses
/// (no space, no file descriptor, no permission, a database that somebody holds) a [`StoreError::Io`].
pub fn guarded<T>(dir: &Path, work: impl FnOnce() -> sled::Result<T>) -> Result<T, StoreError> {
    let what = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => return Ok(done),
        Ok(Err(sled::Error::Io(why))) if why.raw_os_error().is_some() || is_held(&why) => {
            return Err(StoreError::Io { action: "use the index", path: dir.to_owned(), why });
        }
        Ok(Err(e)) => e.to_string(),
        Err(panic) => {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words");
            format!("sled panicked: {words}")
        }
    };
    Err(StoreError::Index { path: dir.to_owned(), what })
}

/// Is this sled's word for a database that is open already? It has no error of its own for that.
fn is_held(error: &std::io::Error) -> bool {
    error.to_string().contains("could not acquire lock")
}

/// Flushes a database and syncs its file: `flush` of sled 0.34 alone is no fsync (docs/DECISIONS.md).
pub fn flush_and_sync(db: &sled::Db, dir: &Path) -> Result<(), StoreError> {
    guarded(dir, || db.flush())?;
    let file = dir.join("db");
    File::open(&file).and_then(|f| f.sync_data()).map_err(io_at("sync", &file))?;
    super::format::sync_dir(&super::medium::Disk, dir)
}

impl SledIndex {
    /// Writes the index of a finished segment into a new directory and syncs it.
    pub fn write(index: &MemIndex, dir: &Path) -> Result<(), StoreError> {
        let db = open_sled(dir, 8 << 20)?;
        let blocks =
            (0_u32..).zip(&index.blocks).map(|(n, meta)| (n.to_be_bytes().to_vec(), meta_bytes(meta)));
        CheckedTree::open(&db, dir, "block")?.put(blocks)?;
        let places = index.jobs.iter().flat_map(|(key, job)| {
            (0_u32..).zip(job.places.chunks(PLACES_PER_PART)).map(|(part, places)| {
                let key = [&key.0.to_be_bytes()[..], &part.to_be_bytes()].concat();
                (key, places.iter().flat_map(|place| place.to_bytes()).collect())
            })
        });
        CheckedTree::open(&db, dir, "jid")?.put(places)?;
        flush_and_sync(&db, dir)
    }

    /// Opens the index of a sealed segment, and adds it up.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let db = open_sled(dir, 4 << 20)?;
        let (block, jid) = (CheckedTree::open(&db, dir, "block")?, CheckedTree::open(&db, dir, "jid")?);
        if block.is_new() || jid.is_new() {
            let what = "a tree has lost everything".to_owned();
            return Err(StoreError::Index { path: dir.to_owned(), what });
        }
        let rows = block.with_prefix(b"")?;
        let blocks = rows.iter().map(|(_, value)| read_meta(value)).collect::<Option<Vec<_>>>();
        let what = || "a row of tree `block` is too short".to_owned();
        let blocks = blocks.ok_or_else(|| StoreError::Index { path: dir.to_owned(), what: what() })?;
        Ok(Self { blocks, jid, _db: db })
    }

    /// The blocks in order.
    pub fn blocks(&self) -> &[BlockMeta] {
        &self.blocks
    }

    /// The places of a job's entries, in order.
    pub fn places(&self, key: JidKey) -> Result<Vec<Place>, StoreError> {
        let rows = self.jid.with_prefix(&key.0.to_be_bytes())?;
        let parts = rows.iter().flat_map(|(_, value)| value.chunks_exact(PLACE_LEN));
        Ok(parts.filter_map(Place::from_bytes).collect())
    }
}

fn meta_bytes(meta: &BlockMeta) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(52);
    bytes.extend_from_slice(&meta.offset.to_le_bytes());
    bytes.extend_from_slice(&meta.len.to_le_bytes());
    bytes.extend_from_slice(&meta.count.to_le_bytes());
    bytes.extend_from_slice(&meta.first_seq.0.to_le_bytes());
    bytes.extend_from_slice(&meta.last_seq.0.to_le_bytes());
    bytes.extend_from_slice(&meta.at_min.0.to_le_bytes());
    bytes.extend_from_slice(&meta.at_max.0.to_le_bytes());
    bytes.extend_from_slice(&meta.head_len.to_le_bytes());
    bytes
}

fn read_meta(bytes: &[u8]) -> Option<BlockMeta> {
    let u64_at = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let u32_at = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    Some(BlockMeta {
        offset: u64_at(0)?,
        len: u32_at(8)?,
        count: u32_at(12)?,
        first_seq: SeqNo(u64_at(16)?),
        last_seq: SeqNo(u64_at(24)?),
        at_min: Micros(u64_at(32)?.cast_signed()),
        at_max: Micros(u64_at(40)?.cast_signed()),
        head_len: u32_at(48)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Flags, Source};

    #[test]
    fn a_sealed_index_answers_as_the_one_in_memory_did() {
        let mut index = MemIndex::new(SeqNo(1));
        let jids = ["20261121030955505683", "free text", "20261121030955505684"];
        let mut seq = 0;
        for block in 0..40_u64 {
            index.add_block(BlockMeta {
                offset: 64 + block * 1000,
                len: 900,
                head_len: 100,
                count: 100,
                first_seq: SeqNo(block * 100 + 1),
                last_seq: SeqNo(block * 100 + 100),
                at_min: Micros(-5),
                at_max: Micros(5),
            });
            for at in 0..100 {
                seq += 1;
                let entry = Entry {
                    kind: Kind::Return,
                    source: Source::Bus,
                    flags: Flags::ON_BUS,
                    at: Micros(1),
                    tag: b"",
                    jid: jids[at % 3],
                    minion: "web1",
                    fun: "test.ping",
                    retcode: 0,
                    body: b"\x80",
                };
                index.add(at, SeqNo(seq), &entry, 1, || b"\x80");
            }
        }
        let dir = tempfile::tempdir().unwrap();
        SledIndex::write(&index, dir.path()).unwrap();
        let sealed = SledIndex::open(dir.path()).unwrap();
        assert_eq!(sealed.blocks(), index.blocks());
        for jid in jids {
            let key = JidKey::of(jid);
            assert!(index.places(key).len() > PLACES_PER_PART);
            assert_eq!(sealed.places(key).unwrap(), index.places(key));
        }
        assert!(sealed.places(JidKey::of("unknown")).unwrap().is_empty());
        let blobs = std::fs::read_dir(dir.path().join("blobs")).map_or(0, std::iter::Iterator::count);
        assert_eq!(blobs, 0, "sled does not sync what it keeps in blobs/");
    }

    #[test]
    fn a_panic_inside_sled_is_an_error() {
        let error = guarded::<()>(Path::new("/x"), || panic!("boom")).unwrap_err().to_string();
        assert!(error.contains("/x") && error.contains("boom"), "{error}");
    }
}
