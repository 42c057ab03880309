//! Making blocks: entries become columns, names go into a dictionary once, bodies are compressed as one.
//!
//! A [`BlockBuilder`] is used again and again, so that a flood of entries allocates next to nothing.

use memchr::memmem;
use rkyv::rancor::{Error, Source as _};
use rkyv::util::AlignedVec;
use xxhash_rust::xxh3::xxh3_64;

use super::block::{CODEC_STORED, CODEC_ZSTD, FREE_JID, Head, JID_MARK, LITERAL, MINION_MARK};
use super::column::Column;
use crate::clock::Micros;
use crate::limits::{BLOCK_ENTRIES_MAX, BLOCK_RAW_BYTES, ZSTD_LEVEL};
use crate::model::{Entry, FastMap, JidKey, SeqNo};

/// Compresses bodies, keeping its tables and its output buffer from block to block.
pub struct Packer {
    zstd: zstd::bulk::Compressor<'static>,
    packed: Vec<u8>,
}

impl Packer {
    /// At the level that the log is written with.
    pub fn new() -> std::io::Result<Self> {
        Self::with_level(ZSTD_LEVEL)
    }

    /// At another level of zstd.
    pub fn with_level(level: i32) -> std::io::Result<Self> {
        Ok(Self { zstd: zstd::bulk::Compressor::new(level)?, packed: Vec::new() })
    }

    /// The shorter of the bytes as they are and compressed, and which it is.
    fn pack<'a>(&'a mut self, bytes: &'a [u8]) -> std::io::Result<(u8, &'a [u8])> {
        self.packed.clear();
        self.packed.reserve(zstd::zstd_safe::compress_bound(bytes.len()));
        self.zstd.compress_to_buffer(bytes, &mut self.packed)?;
        Ok(if self.packed.len() < bytes.len() { (CODEC_ZSTD, &self.packed) } else { (CODEC_STORED, bytes) })
    }
}

/// A block as it goes into a frame: its two halves, each with a checksum of its own there.
pub struct Packed<'a> {
    /// The archived [`Head`].
    pub head: AlignedVec,
    /// The bodies, compressed if that made them shorter.
    pub bodies: &'a [u8],
}

/// Texts, each once.
#[derive(Default)]
struct Dictionary {
    by_hash: FastMap<u64, u32>,
    ends: Vec<u32>,
    bytes: Vec<u8>,
}

impl Dictionary {
    fn index_of(&mut self, text: &[u8]) -> i64 {
        let hash = xxh3_64(text);
        if let Some(&at) = self.by_hash.get(&hash)
            && self.text(at) == text
        {
            return i64::from(at);
        }
        let at = u32::try_from(self.ends.len()).unwrap_or(u32::MAX);
        self.bytes.extend_from_slice(text);
        self.ends.push(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX));
        self.by_hash.insert(hash, at);
        i64::from(at)
    }

    fn text(&self, at: u32) -> &[u8] {
        let end = |i: u32| self.ends.get(i as usize).map_or(0, |&e| e as usize);
        let from = at.checked_sub(1).map_or(0, end);
        self.bytes.get(from..end(at)).unwrap_or_default()
    }

    fn clear(&mut self) {
        self.by_hash.clear();
        self.ends.clear();
        self.bytes.clear();
    }
}

/// A block in the making.
#[derive(Default)]
pub struct BlockBuilder {
    first_seq: u64,
    seqs: Vec<i64>,
    at: Vec<i64>,
    kind: Vec<i64>,
    source: Vec<i64>,
    flags: Vec<i64>,
    retcode: Vec<i64>,
    jid: Vec<i64>,
    minion: Vec<i64>,
    fun: Vec<i64>,
    tag: Vec<i64>,
    body_len: Vec<i64>,
    jid_index: FastMap<JidKey, i64>,
    jid_time: Vec<i64>,
    jid_pid: Vec<i64>,
    texts: Dictionary,
    bodies: Vec<u8>,
    raw_bytes: usize,
    shape: Vec<u8>,
    /// The last jid's text and its index, for entries of one job in a row.
    last_jid: (String, i64),
}

impl BlockBuilder {
    /// How many entries it holds.
    pub fn len(&self) -> usize {
        self.at.len()
    }

    /// None yet?
    pub fn is_empty(&self) -> bool {
        self.at.is_empty()
    }

    /// Has it half of what a full block has?
    pub fn is_half_full(&self) -> bool {
        self.raw_bytes >= BLOCK_RAW_BYTES / 2 || self.len() >= BLOCK_ENTRIES_MAX / 2
    }

    /// Should it be finished before taking `entry`? A large entry gets a block of its own.
    pub fn is_full_for(&self, entry: &Entry<'_>) -> bool {
        self.len() >= BLOCK_ENTRIES_MAX
            || (!self.is_empty() && self.raw_bytes + entry.packed_len_max() > BLOCK_RAW_BYTES)
    }

    /// Appends an entry.
    pub fn push(&mut self, seq: SeqNo, entry: &Entry<'_>) {
        if self.is_empty() {
            self.first_seq = seq.0;
        }
        let gap = seq.0.saturating_sub(self.first_seq).saturating_sub(self.len() as u64);
        self.seqs.push(i64::try_from(gap).unwrap_or(i64::MAX));
        self.at.push(entry.at.0);
        self.kind.push(i64::from(entry.kind as u8));
        self.source.push(i64::from(entry.source as u8));
        self.flags.push(i64::from(entry.flags.0));
        self.retcode.push(entry.retcode);
        let jid = if entry.jid.is_empty() { 0 } else { self.jid_of(entry.jid) + 1 };
        self.jid.push(jid);
        for (text, column) in [(entry.minion, &mut self.minion), (entry.fun, &mut self.fun)] {
            column.push(if text.is_empty() { 0 } else { self.texts.index_of(text.as_bytes()) + 1 });
        }
        shape_of(entry, &mut self.shape);
        let shape = self.texts.index_of(&self.shape);
        self.tag.push(shape);
        self.body_len.push(i64::try_from(entry.body.len()).unwrap_or(0));
        self.bodies.extend_from_slice(entry.body);
        self.raw_bytes += entry.packed_len_max();
    }

    fn jid_of(&mut self, jid: &str) -> i64 {
        if self.last_jid.0 == jid {
            return self.last_jid.1;
        }
        let at = self.find_jid(jid);
        self.last_jid.0.clear();
        self.last_jid.0.push_str(jid);
        self.last_jid.1 = at;
        at
    }

    fn find_jid(&mut self, jid: &str) -> i64 {
        let key = JidKey::of(jid);
        if let Some(&at) = self.jid_index.get(&key) {
            // Keys of free text may collide; the text decides.
            let spelled = self.jid_time.get(usize::try_from(at).unwrap_or(usize::MAX)).copied().unwrap_or(0);
            let same = spelled >= 0
                || u32::try_from(-1 - spelled).is_ok_and(|text| self.texts.text(text) == jid.as_bytes());
            if same {
                return at;
            }
        }
        let at = i64::try_from(self.jid_time.len()).unwrap_or(0);
        self.jid_time.push(match key.time() {
            Some(time) => time.0,
            None => -1 - self.texts.index_of(jid.as_bytes()),
        });
        self.jid_pid.push(key.pid().map_or(0, |pid| i64::from(pid) + 1));
        self.jid_index.insert(key, at);
        at
    }

    /// The sequence numbers of its first and last entry; both 0 without entries.
    pub fn seqs(&self) -> (SeqNo, SeqNo) {
        let gap = self.seqs.last().map_or(0, |gap| gap.unsigned_abs());
        let last = self.first_seq + gap + self.len().saturating_sub(1) as u64;
        (SeqNo(self.first_seq), SeqNo(last))
    }

    /// The earliest and the latest arrival.
    pub fn times(&self) -> (Micros, Micros) {
        let earliest = self.at.iter().min().copied().unwrap_or_default();
        (Micros(earliest), Micros(self.at.iter().max().copied().unwrap_or_default()))
    }

    /// The distinct shapes of its tags, and [`FREE_JID`] if a jid is not made of time.
    pub fn shapes(&self) -> Vec<Vec<u8>> {
        let text = |at| self.texts.text(u32::try_from(at).unwrap_or(u32::MAX)).to_vec();
        let free = self.jid_time.iter().any(|&time| time < 0).then(|| FREE_JID.to_vec());
        distinct(&self.tag).into_iter().map(text).chain(free).collect()
    }

    /// Compresses the bodies and archives the columns. The builder keeps its entries until [`BlockBuilder::clear`].
    pub fn finish<'a>(&'a self, packer: &'a mut Packer) -> Result<Packed<'a>, Error> {
        let (codec, bodies) = packer.pack(&self.bodies).map_err(Error::new)?;
        let head = Head {
            first_seq: self.first_seq,
            count: u32::try_from(self.len()).map_err(Error::new)?,
            seq: Column::pack(&self.seqs),
            at: Column::pack(&self.at),
            kind: Column::pack(&self.kind),
            source: Column::pack(&self.source),
            flags: Column::pack(&self.flags),
            retcode: Column::pack(&self.retcode),
            jid: Column::pack(&self.jid),
            minion: Column::pack(&self.minion),
            fun: Column::pack(&self.fun),
            tag: Column::pack(&self.tag),
            body_len: Column::pack(&self.body_len),
            jid_time: Column::pack(&self.jid_time),
            jid_pid: Column::pack(&self.jid_pid),
            jids: u32::try_from(self.jid_time.len()).map_err(Error::new)?,
            text_ends: self.texts.ends.clone(),
            texts: self.texts.bytes.clone(),
            bodies_len: self.bodies.len() as u64,
            codec,
        };
        Ok(Packed { head: rkyv::to_bytes::<Error>(&head)?, bodies })
    }

    /// Empties it for the next block; its memory is kept, unless a giant went through.
    pub fn clear(&mut self) {
        let columns = [
            &mut self.seqs,
            &mut self.at,
            &mut self.kind,
            &mut self.source,
            &mut self.flags,
            &mut self.retcode,
            &mut self.jid,
            &mut self.minion,
            &mut self.fun,
            &mut self.tag,
            &mut self.body_len,
            &mut self.jid_time,
            &mut self.jid_pid,
        ];
        columns.into_iter().for_each(Vec::clear);
        self.jid_index.clear();
        self.texts.clear();
        self.last_jid.0.clear();
        self.bodies.clear();
        self.bodies.shrink_to(4 * BLOCK_RAW_BYTES);
        (self.first_seq, self.raw_bytes) = (0, 0);
    }

    /// How many texts the dictionary holds.
    #[cfg(test)]
    pub(super) fn texts(&self) -> usize {
        self.texts.ends.len()
    }
}

/// The distinct values of a column of indexes.
pub(super) fn distinct(column: &[i64]) -> Vec<usize> {
    let mut seen: Vec<bool> = Vec::new();
    let mut found = Vec::new();
    for at in column.iter().filter_map(|&n| usize::try_from(n).ok()) {
        if seen.len() <= at {
            seen.resize(at + 1, false);
        }
        if let Some(seen) = seen.get_mut(at)
            && !std::mem::replace(seen, true)
        {
            found.push(at);
        }
    }
    found
}

/// Where `word` lies in `text`: where it was cut from, if it was, else its first occurrence.
fn place_of(word: &[u8], text: &[u8]) -> Option<usize> {
    let cut_at = word.as_ptr().addr().wrapping_sub(text.as_ptr().addr());
    if cut_at < text.len() && text.get(cut_at..cut_at + word.len()) == Some(word) {
        return Some(cut_at);
    }
    memmem::find(text, word)
}

/// Writes a tag's shape: its jid and its minion id replaced by marks.
fn shape_of(entry: &Entry<'_>, shape: &mut Vec<u8>) {
    shape.clear();
    if entry.tag.iter().any(|&b| b <= MINION_MARK) {
        shape.push(LITERAL);
        shape.extend_from_slice(entry.tag);
        return;
    }
    let mut rest = entry.tag;
    for (word, mark) in [(entry.jid, JID_MARK), (entry.minion, MINION_MARK)] {
        if word.is_empty() {
            continue;
        }
        if let Some(at) = place_of(word.as_bytes(), rest) {
            let (before, after) = rest.split_at(at);
            shape.extend_from_slice(before);
            shape.push(mark);
            rest = after.get(word.len()..).unwrap_or_default();
        }
    }
    shape.extend_from_slice(rest);
}
