//! Building blocks: entries become columns, strings are stored once in a dictionary, bodies are
//! compressed together.
//!
//! A [`BlockBuilder`] is reused, so that a steady flow of entries allocates almost nothing.

use memchr::memmem;
use rkyv::rancor::Error;
use xxhash_rust::xxh3::xxh3_64;

use super::block::{
    CODEC_STORED, CODEC_ZSTD, FREE_JID, Head, JID_PLACEHOLDER, LITERAL, MINION_PLACEHOLDER,
};
use super::column::{Column, distinct};
use super::file::BlockMeta;
use super::frame::{Packed, write_frame};
use crate::error::{StoreError, fits};
use saltcellar_base::clock::Micros;
use saltcellar_base::limits::{BLOCK_ENTRIES_MAX, BLOCK_RAW_BYTES, ZSTD_LEVEL};
use saltcellar_model::{Entry, FastMap, JidKey, SeqNo};

/// A compressor that reuses its tables and its output buffer.
pub struct Packer {
    zstd: zstd::bulk::Compressor<'static>,
    packed: Vec<u8>,
}

impl Packer {
    /// Uses the compression level of the log.
    pub fn new() -> std::io::Result<Self> {
        Self::with_level(ZSTD_LEVEL)
    }

    /// Uses another level of zstd.
    pub(crate) fn with_level(level: i32) -> std::io::Result<Self> {
        Ok(Self {
            zstd: zstd::bulk::Compressor::new(level)?,
            packed: Vec::new(),
        })
    }

    /// Returns the codec and the bytes, compressed if that is shorter.
    fn pack<'a>(&'a mut self, bytes: &'a [u8]) -> std::io::Result<(u8, &'a [u8])> {
        self.packed.clear();
        self.packed
            .reserve(zstd::zstd_safe::compress_bound(bytes.len()));
        self.zstd.compress_to_buffer(bytes, &mut self.packed)?;

        // Random or compressed bodies become longer with zstd, and are stored as they are.
        Ok(if self.packed.len() < bytes.len() {
            (CODEC_ZSTD, &self.packed)
        } else {
            (CODEC_STORED, bytes)
        })
    }
}

/// Limit of the texts in a block: minion, function, tag template and jid of each entry.
const TEXTS_MAX: usize = 4 * BLOCK_ENTRIES_MAX;

#[derive(Default)]
struct Dictionary {
    by_hash: FastMap<u64, u32>,
    ends: Vec<u32>,
    bytes: Vec<u8>,
}

impl Dictionary {
    fn index_of(&mut self, text: &[u8]) -> Result<i64, StoreError> {
        let hash = xxh3_64(text);
        // The texts are compared: a hash is not an identity, and an equal hash must not merge two
        // names.
        if let Some(&at) = self.by_hash.get(&hash)
            && self.text(at) == text
        {
            return Ok(i64::from(at));
        }

        // Only a bug reaches this: each entry adds at most four texts.
        if self.ends.len() >= TEXTS_MAX {
            return Err(StoreError::Broken(
                "a block has more texts than its entries can name",
            ));
        }

        let at = fits(self.ends.len(), "a block has over 4 G texts")?;
        let end = fits(
            self.bytes.len() + text.len(),
            "the texts of a block exceed 4 GiB",
        )?;

        self.bytes.extend_from_slice(text);
        self.ends.push(end);
        self.by_hash.insert(hash, at);
        Ok(i64::from(at))
    }

    fn text(&self, at: u32) -> &[u8] {
        let end = |i: u32| self.ends.get(i as usize).map(|&end| end as usize);
        let from = at.checked_sub(1).map_or(Some(0), end);
        let text = from
            .zip(end(at))
            .and_then(|(from, to)| self.bytes.get(from..to));
        text.expect("an index of this dictionary")
    }

    fn clear(&mut self) {
        self.by_hash.clear();
        self.ends.clear();
        self.bytes.clear();
    }
}

/// A block under construction.
#[derive(Default)]
pub struct BlockBuilder {
    first_seq: u64,
    seqs: Vec<i64>,
    at: Vec<i64>,
    kind: Vec<i64>,
    source: Vec<i64>,
    origin: Vec<i64>,
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
    template: Vec<u8>,
    /// Text and index of the last jid, for consecutive entries of one job.
    last_jid: (String, i64),
}

impl BlockBuilder {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.at.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.at.is_empty()
    }

    /// Bytes of the entries, names included.
    pub fn raw_bytes(&self) -> usize {
        self.raw_bytes
    }

    /// Whether the block has reached half of a limit.
    pub(crate) fn is_half_full(&self) -> bool {
        self.raw_bytes >= BLOCK_RAW_BYTES / 2 || self.len() >= BLOCK_ENTRIES_MAX / 2
    }

    /// Whether the block must be finished before `entry` is added. A large entry gets a block of
    /// its own.
    pub fn is_full_for(&self, entry: &Entry<'_>) -> bool {
        self.len() >= BLOCK_ENTRIES_MAX
            || (!self.is_empty() && self.raw_bytes + entry.packed_len_max() > BLOCK_RAW_BYTES)
    }

    /// Appends an entry; sequence numbers must ascend. After an error the builder is inconsistent
    /// and must be cleared with [`BlockBuilder::clear`].
    pub fn push(&mut self, seq: SeqNo, entry: &Entry<'_>) -> Result<(), StoreError> {
        // The frame's count is 16 bits.
        if self.len() >= BLOCK_ENTRIES_MAX {
            return Err(StoreError::Broken(
                "a block has more than BLOCK_ENTRIES_MAX entries",
            ));
        }

        if self.is_empty() {
            self.first_seq = seq.0;
        }

        // Gaps are relative to the index in the block, so consecutive numbers are a constant
        // column.
        let before = self.seqs.last().copied().unwrap_or(0);
        let gap = seq
            .0
            .checked_sub(self.first_seq)
            .and_then(|n| n.checked_sub(self.len() as u64));

        let gap = gap
            .and_then(|gap| i64::try_from(gap).ok())
            .filter(|gap| *gap >= before);
        self.seqs.push(gap.ok_or(StoreError::Broken(
            "the sequence numbers of a block do not ascend",
        ))?);

        self.at.push(entry.at.0);
        self.kind.push(i64::from(entry.kind as u8));
        self.source.push(i64::from(entry.source as u8));
        self.origin.push(i64::from(entry.origin.0));
        self.flags.push(i64::from(entry.flags.0));
        self.retcode.push(entry.retcode);

        // 0 means none, so real indexes are shifted by one.
        let jid = if entry.jid.is_empty() {
            0
        } else {
            self.jid_of(entry.jid)? + 1
        };
        self.jid.push(jid);

        for (text, column) in [(entry.minion, &mut self.minion), (entry.fun, &mut self.fun)] {
            column.push(if text.is_empty() {
                0
            } else {
                self.texts.index_of(text.as_bytes())? + 1
            });
        }

        template_of(entry, &mut self.template);
        let template = self.texts.index_of(&self.template)?;
        self.tag.push(template);

        let body_len = i64::try_from(entry.body.len());
        self.body_len
            .push(body_len.map_err(|_| StoreError::Broken("a body exceeds 8 EiB"))?);
        self.bodies.extend_from_slice(entry.body);

        self.raw_bytes += entry.packed_len_max();
        Ok(())
    }

    fn jid_of(&mut self, jid: &str) -> Result<i64, StoreError> {
        // Returns of one job usually follow each other, so the last jid saves hashing the next one.
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
            // Keys of jids that are arbitrary text may collide; compare the texts.
            let place = usize::try_from(at)
                .ok()
                .and_then(|at| self.jid_time.get(at));

            let spelled = *place.expect("a jid of this block");
            let same = spelled >= 0
                || u32::try_from(-1 - spelled)
                    .is_ok_and(|text| self.texts.text(text) == jid.as_bytes());
            if same {
                return Ok(at);
            }
        }

        // After a collision the new jid takes the place in the index. Both keep their own number.
        let at = i64::from(fits(self.jid_time.len(), "a block has over 4 G jids")?);
        self.jid_time.push(match key.time() {
            Some(time) => time.0,
            None => -1 - self.texts.index_of(jid.as_bytes())?,
        });
        self.jid_pid
            .push(key.pid().map_or(0, |pid| i64::from(pid) + 1));
        self.jid_index.insert(key, at);

        Ok(at)
    }

    /// The sequence numbers of the first and last entry. Panics if empty.
    pub(crate) fn seqs(&self) -> (SeqNo, SeqNo) {
        let gap = self
            .seqs
            .last()
            .expect("a block with entries")
            .unsigned_abs();
        (
            SeqNo(self.first_seq),
            SeqNo(self.first_seq + gap + (self.len() - 1) as u64),
        )
    }

    /// Earliest and latest time of arrival. Panics if empty.
    pub fn times(&self) -> (Micros, Micros) {
        let earliest = self.at.iter().min().zip(self.at.iter().max());
        let (earliest, latest) = earliest.expect("a block with entries");
        (Micros(*earliest), Micros(*latest))
    }

    /// Checks the columns against each other, the dictionary and the bodies.
    fn check(&self) -> Result<(), StoreError> {
        let columns = [
            &self.seqs,
            &self.at,
            &self.kind,
            &self.source,
            &self.origin,
            &self.flags,
            &self.retcode,
            &self.jid,
            &self.minion,
            &self.fun,
            &self.tag,
            &self.body_len,
        ];
        // All checks repeat what `push` ensures. They cost little next to zstd, and a block that
        // contradicts itself would be acknowledged and then unreadable.
        if self.is_empty() || columns.iter().any(|column| column.len() != self.len()) {
            return Err(StoreError::Broken(
                "a column of a block does not have one value per entry",
            ));
        }
        if self.jid_time.len() != self.jid_pid.len() || self.jid_time.len() > self.len() {
            return Err(StoreError::Broken("a block has more jids than entries"));
        }
        if self.texts.ends.last().map_or(0, |&end| end as usize) != self.texts.bytes.len() {
            return Err(StoreError::Broken(
                "the last text end of a block differs from the length of its texts",
            ));
        }

        let bodies: i64 = self.body_len.iter().sum();
        if usize::try_from(bodies) != Ok(self.bodies.len()) {
            return Err(StoreError::Broken(
                "the bodies of a block differ in length from its entries",
            ));
        }

        Ok(())
    }

    /// The distinct tag templates, and `FREE_JID` if a jid is not derived from a time.
    pub fn templates(&self) -> Vec<Vec<u8>> {
        let text = |at| {
            self.texts
                .text(u32::try_from(at).expect("an index of the dictionary"))
                .to_vec()
        };

        let free = self
            .jid_time
            .iter()
            .any(|&time| time < 0)
            .then(|| FREE_JID.to_vec());

        distinct(&self.tag)
            .into_iter()
            .map(text)
            .chain(free)
            .collect()
    }

    /// Compresses the bodies and archives the columns. Call [`BlockBuilder::clear`] before reuse.
    pub fn finish<'a>(&'a self, packer: &'a mut Packer) -> Result<Packed<'a>, StoreError> {
        self.check()?;

        let failed = |what: String| StoreError::Failed(format!("cannot pack a block: {what}"));
        let (codec, bodies) = packer
            .pack(&self.bodies)
            .map_err(|error| failed(error.to_string()))?;

        let head = Head {
            first_seq: self.first_seq,
            count: fits(self.len(), "a block has over 4 G entries")?,
            seq: Column::pack(&self.seqs),
            at: Column::pack(&self.at),
            kind: Column::pack(&self.kind),
            source: Column::pack(&self.source),
            origin: Column::pack(&self.origin),
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

    /// Packs the block, appends its frame to `out` and clears the builder. The offset in the result
    /// is that in `out`; the frame is invalid until [`super::frame::place_frame`] completes its
    /// header.
    pub fn write(
        &mut self,
        packer: &mut Packer,
        out: &mut Vec<u8>,
    ) -> Result<BlockMeta, StoreError> {
        let packed = self.finish(packer)?;

        let (seqs, (at_min, at_max), offset) = (self.seqs(), self.times(), out.len() as u64);
        let (len, head_len) = write_frame(out, &packed, seqs, self.len())?;
        // Ends the borrow of the builder, which is cleared below.
        drop(packed);

        let count = fits(self.len(), "a block has over 4 G entries")?;
        self.clear();

        let (first_seq, last_seq) = seqs;
        Ok(BlockMeta {
            offset,
            len,
            head_len,
            count,
            first_seq,
            last_seq,
            at_min,
            at_max,
        })
    }

    /// Empties the builder and keeps its buffers, except an oversized one for bodies.
    pub fn clear(&mut self) {
        let columns = [
            &mut self.seqs,
            &mut self.at,
            &mut self.kind,
            &mut self.source,
            &mut self.origin,
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

        // One entry may be as large as `ENTRY_BYTES_MAX`, and each class keeps its builder forever.
        self.bodies.clear();
        self.bodies.shrink_to(4 * BLOCK_RAW_BYTES);
        self.first_seq = 0;
        self.raw_bytes = 0;
    }

    #[cfg(test)]
    pub(crate) fn texts(&self) -> usize {
        self.texts.ends.len()
    }
}

/// Offset of `word` in `text`: its own position if it is a subslice, otherwise its first
/// occurrence.
fn place_of(word: &[u8], text: &[u8]) -> Option<usize> {
    // Names that were cut out of the tag are found by their address, without a search.
    let cut_at = word.as_ptr().addr().wrapping_sub(text.as_ptr().addr());
    if cut_at < text.len() && text.get(cut_at..cut_at + word.len()) == Some(word) {
        return Some(cut_at);
    }
    memmem::find(text, word)
}

/// Writes a tag's template: the tag with placeholders for its jid and its minion id.
fn template_of(entry: &Entry<'_>, template: &mut Vec<u8>) {
    template.clear();
    // A tag with a placeholder byte would be expanded wrongly.
    if entry.tag.iter().any(|&b| b <= MINION_PLACEHOLDER) {
        template.push(LITERAL);
        template.extend_from_slice(entry.tag);
        return;
    }

    // The jid comes first in every tag of Salt that has both, so the minion is searched for behind
    // it.
    let mut rest = entry.tag;
    for (word, mark) in [
        (entry.jid, JID_PLACEHOLDER),
        (entry.minion, MINION_PLACEHOLDER),
    ] {
        if word.is_empty() {
            continue;
        }
        if let Some(at) = place_of(word.as_bytes(), rest) {
            let (before, after) = rest.split_at(at);
            template.extend_from_slice(before);
            template.push(mark);
            rest = after.split_at(word.len()).1;
        }
    }

    template.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dictionary_with_too_many_texts_is_rejected() {
        let mut texts = Dictionary::default();
        for n in 0..TEXTS_MAX {
            assert_eq!(
                usize::try_from(texts.index_of(&n.to_le_bytes()).unwrap()),
                Ok(n)
            );
        }
        assert!(matches!(
            texts.index_of(b"one more"),
            Err(StoreError::Broken(_))
        ));
        assert_eq!(
            texts.index_of(&0_usize.to_le_bytes()).unwrap(),
            0,
            "known texts are still found"
        );
        let mut builder = BlockBuilder {
            texts,
            ..BlockBuilder::default()
        };
        let entry = saltcellar_wire::salt_event::event_entry(
            b"a/tag",
            b"\x80",
            saltcellar_model::Source::Bus,
            Micros(0),
        );
        assert!(matches!(
            builder.push(SeqNo(1), &entry),
            Err(StoreError::Broken(_))
        ));
        let finished = builder.finish(&mut Packer::new().unwrap()).map(|_| ());
        assert!(
            matches!(finished, Err(StoreError::Broken(_))),
            "an incomplete entry is not written"
        );
    }
}
