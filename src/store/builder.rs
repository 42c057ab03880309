//! Making blocks: entries become columns, names go into a dictionary once, bodies are compressed as one.
//!
//! A [`BlockBuilder`] is used again and again, so that a flood of entries allocates next to nothing.

use memchr::memmem;
use rkyv::rancor::Error;
use rkyv::util::AlignedVec;
use xxhash_rust::xxh3::xxh3_64;

use super::block::{CODEC_STORED, CODEC_ZSTD, FREE_JID, Head, JID_MARK, LITERAL, MINION_MARK};
use super::column::Column;
use super::error::{StoreError, fits};
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

/// Texts that the entries of a block may name: minion, function, shape of the tag and jid of each.
const TEXTS_MAX: usize = 4 * BLOCK_ENTRIES_MAX;

/// Texts, each once.
#[derive(Default)]
struct Dictionary {
    by_hash: FastMap<u64, u32>,
    ends: Vec<u32>,
    bytes: Vec<u8>,
}

impl Dictionary {
    fn index_of(&mut self, text: &[u8]) -> Result<i64, StoreError> {
        let hash = xxh3_64(text);
        if let Some(&at) = self.by_hash.get(&hash)
            && self.text(at) == text
        {
            return Ok(i64::from(at));
        }
        if self.ends.len() >= TEXTS_MAX {
            return Err(StoreError::Broken("a block has more texts than its entries can name"));
        }
        let at = fits(self.ends.len(), "a block has over 4 G texts")?;
        let end = fits(self.bytes.len() + text.len(), "the texts of a block exceed 4 GiB")?;
        self.bytes.extend_from_slice(text);
        self.ends.push(end);
        self.by_hash.insert(hash, at);
        Ok(i64::from(at))
    }

    fn text(&self, at: u32) -> &[u8] {
        let end = |i: u32| self.ends.get(i as usize).map(|&end| end as usize);
        let from = at.checked_sub(1).map_or(Some(0), end);
        let text = from.zip(end(at)).and_then(|(from, to)| self.bytes.get(from..to));
        text.expect("a number of this dictionary")
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

    /// Bytes of its entries, names included.
    pub fn raw_bytes(&self) -> usize {
        self.raw_bytes
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

    /// Appends an entry, whose number is greater than that of the one before. After an error the builder holds half an
    /// entry, and only [`BlockBuilder::clear`] makes it good again.
    pub fn push(&mut self, seq: SeqNo, entry: &Entry<'_>) -> Result<(), StoreError> {
        if self.len() >= BLOCK_ENTRIES_MAX {
            return Err(StoreError::Broken("a block has more entries than it may have"));
        }
        if self.is_empty() {
            self.first_seq = seq.0;
        }
        let before = self.seqs.last().copied().unwrap_or(0);
        let gap = seq.0.checked_sub(self.first_seq).and_then(|n| n.checked_sub(self.len() as u64));
        let gap = gap.and_then(|gap| i64::try_from(gap).ok()).filter(|gap| *gap >= before);
        self.seqs.push(gap.ok_or(StoreError::Broken("the numbers of a block do not ascend"))?);
        self.at.push(entry.at.0);
        self.kind.push(i64::from(entry.kind as u8));
        self.source.push(i64::from(entry.source as u8));
        self.flags.push(i64::from(entry.flags.0));
        self.retcode.push(entry.retcode);
        let jid = if entry.jid.is_empty() { 0 } else { self.jid_of(entry.jid)? + 1 };
        self.jid.push(jid);
        for (text, column) in [(entry.minion, &mut self.minion), (entry.fun, &mut self.fun)] {
            column.push(if text.is_empty() { 0 } else { self.texts.index_of(text.as_bytes())? + 1 });
        }
        shape_of(entry, &mut self.shape);
        let shape = self.texts.index_of(&self.shape)?;
        self.tag.push(shape);
        let body_len = i64::try_from(entry.body.len());
        self.body_len.push(body_len.map_err(|_| StoreError::Broken("a body exceeds 8 EiB"))?);
        self.bodies.extend_from_slice(entry.body);
        self.raw_bytes += entry.packed_len_max();
        Ok(())
    }

    fn jid_of(&mut self, jid: &str) -> Result<i64, StoreError> {
        if self.last_jid.0 == jid {
            return Ok(self.last_jid.1);
        }
        let at = self.find_jid(jid)?;
        self.last_jid.0.clear();
        self.last_jid.0.push_str(jid);
        self.last_jid.1 = at;
        Ok(at)
    }

    fn find_jid(&mut self, jid: &str) -> Result<i64, StoreError> {
        let key = JidKey::of(jid);
        if let Some(&at) = self.jid_index.get(&key) {
            // Keys of free text may collide; the text decides.
            let place = usize::try_from(at).ok().and_then(|at| self.jid_time.get(at));
            let spelled = *place.expect("a jid of this block");
            let same = spelled >= 0
                || u32::try_from(-1 - spelled).is_ok_and(|text| self.texts.text(text) == jid.as_bytes());
            if same {
                return Ok(at);
            }
        }
        let at = i64::from(fits(self.jid_time.len(), "a block has over 4 G jids")?);
        self.jid_time.push(match key.time() {
            Some(time) => time.0,
            None => -1 - self.texts.index_of(jid.as_bytes())?,
        });
        self.jid_pid.push(key.pid().map_or(0, |pid| i64::from(pid) + 1));
        self.jid_index.insert(key, at);
        Ok(at)
    }

    /// The sequence numbers of its first and last entry. It has one.
    pub fn seqs(&self) -> (SeqNo, SeqNo) {
        let gap = self.seqs.last().expect("a block with entries").unsigned_abs();
        (SeqNo(self.first_seq), SeqNo(self.first_seq + gap + (self.len() - 1) as u64))
    }

    /// The earliest and the latest arrival. It has an entry.
    pub fn times(&self) -> (Micros, Micros) {
        let earliest = self.at.iter().min().zip(self.at.iter().max());
        let (earliest, latest) = earliest.expect("a block with entries");
        (Micros(*earliest), Micros(*latest))
    }

    /// Do the columns agree with each other, with the dictionary and with the bodies?
    fn check(&self) -> Result<(), StoreError> {
        let columns = [
            &self.seqs,
            &self.at,
            &self.kind,
            &self.source,
            &self.flags,
            &self.retcode,
            &self.jid,
            &self.minion,
            &self.fun,
            &self.tag,
            &self.body_len,
        ];
        if self.is_empty() || columns.iter().any(|column| column.len() != self.len()) {
            return Err(StoreError::Broken("a column of a block has not one value per entry"));
        }
        if self.jid_time.len() != self.jid_pid.len() || self.jid_time.len() > self.len() {
            return Err(StoreError::Broken("a block has more jids than entries"));
        }
        if self.texts.ends.last().map_or(0, |&end| end as usize) != self.texts.bytes.len() {
            return Err(StoreError::Broken("the dictionary of a block does not end where its texts do"));
        }
        let bodies: i64 = self.body_len.iter().sum();
        if usize::try_from(bodies) != Ok(self.bodies.len()) {
            return Err(StoreError::Broken("the bodies of a block have other lengths than their entries"));
        }
        Ok(())
    }

    /// The distinct shapes of its tags, and [`FREE_JID`] if a jid is not made of time.
    pub fn shapes(&self) -> Vec<Vec<u8>> {
        let text = |at| self.texts.text(u32::try_from(at).expect("a number of the dictionary")).to_vec();
        let free = self.jid_time.iter().any(|&time| time < 0).then(|| FREE_JID.to_vec());
        distinct(&self.tag).into_iter().map(text).chain(free).collect()
    }

    /// Compresses the bodies and archives the columns. The builder keeps its entries until [`BlockBuilder::clear`].
    pub fn finish<'a>(&'a self, packer: &'a mut Packer) -> Result<Packed<'a>, StoreError> {
        self.check()?;
        let failed = |what: String| StoreError::Failed(format!("pack a block: {what}"));
        let (codec, bodies) = packer.pack(&self.bodies).map_err(|error| failed(error.to_string()))?;
        let head = Head {
            first_seq: self.first_seq,
            count: fits(self.len(), "a block has over 4 G entries")?,
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
            jids: fits(self.jid_time.len(), "a block has over 4 G jids")?,
            text_ends: self.texts.ends.clone(),
            texts: self.texts.bytes.clone(),
            bodies_len: self.bodies.len() as u64,
            codec,
        };
        let head = rkyv::to_bytes::<Error>(&head).map_err(|error| failed(error.to_string()))?;
        Ok(Packed { head, bodies })
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
            rest = after.split_at(word.len()).1;
        }
    }
    shape.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dictionary_with_too_many_texts_was_written_with_numbers_that_are_none() {
        let mut texts = Dictionary::default();
        for n in 0..TEXTS_MAX {
            assert_eq!(usize::try_from(texts.index_of(&n.to_le_bytes()).unwrap()), Ok(n));
        }
        assert!(matches!(texts.index_of(b"one more"), Err(StoreError::Broken(_))));
        assert_eq!(texts.index_of(&0_usize.to_le_bytes()).unwrap(), 0, "those that it has it knows");
        let mut builder = BlockBuilder { texts, ..BlockBuilder::default() };
        let entry =
            crate::wire::salt_event::event_entry(b"a/tag", b"\x80", crate::model::Source::Bus, Micros(0));
        assert!(matches!(builder.push(SeqNo(1), &entry), Err(StoreError::Broken(_))));
        let finished = builder.finish(&mut Packer::new().unwrap()).map(|_| ());
        assert!(matches!(finished, Err(StoreError::Broken(_))), "half an entry is not written either");
    }
}
