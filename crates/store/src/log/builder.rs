//! Building blocks: entries become columns, strings are stored once in a dictionary, bodies are
//! compressed together.
//!
//! A [`BlockBuilder`] is reused; a steady flow of entries therefore allocates almost nothing.

use memchr::memmem;
use rkyv::rancor::Error;
use zstd::zstd_safe::CParameter;

use super::block::{CODEC_STORED, CODEC_ZSTD, Head};
use super::column::Column;
use super::columns::{Columns, JID_PLACEHOLDER, LITERAL, MINION_PLACEHOLDER};
use super::file::BlockMeta;
use super::frame::{Packed, write_frame};
use crate::error::{StoreError, fits};
use crate::names::{Table, Texts, intern};
use saltcellar_base::clock::Micros;
use saltcellar_base::limits::{BLOCK_ENTRIES_MAX, BLOCK_RAW_BYTES, ZSTD_LEVEL, ZSTD_MIN_MATCH};
use saltcellar_model::{Entry, FastMap, JidKey, SeqNo};

/// A compressor that reuses its tables and its output buffer.
pub struct Packer {
    zstd: zstd::bulk::Compressor<'static>,
    packed: Vec<u8>,
}

impl Packer {
    /// Uses the compression level of the log.
    pub fn new() -> std::io::Result<Self> {
        let mut packer = Self::with_level(ZSTD_LEVEL)?;
        let min_match = CParameter::MinMatch(ZSTD_MIN_MATCH);
        packer.zstd.set_parameter(min_match)?;
        Ok(packer)
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

/// Limit of the strings in a block: minion, function, master, tag template and jid of each entry.
const TEXTS_MAX: usize = 5 * BLOCK_ENTRIES_MAX;

/// The number of a string of a block, which gets it if it is new.
fn index_of(table: &mut Table, texts: &mut Texts, text: &[u8]) -> Result<i64, StoreError> {
    let at = intern(table, texts, text)?;
    // Only a bug reaches this: each entry adds at most five strings.
    if at as usize >= TEXTS_MAX {
        return Err(StoreError::Broken(
            "a block contains more strings than its entries can name",
        ));
    }
    Ok(i64::from(at))
}

/// A block under construction.
#[derive(Default)]
pub struct BlockBuilder {
    buffers: BlockBuffers,
    text_table: Table,
    jid_index: FastMap<JidKey, i64>,
    raw_bytes: usize,
    template: Vec<u8>,
    /// Text and index of the last jid, for consecutive entries of one job.
    last_jid: (String, i64),
}

/// What a block under construction fills.
#[derive(Debug, Default)]
pub(crate) struct BlockBuffers {
    columns: Columns,
    bodies: Vec<u8>,
}

impl BlockBuffers {
    /// Bodies from which on a block probably becomes a full one.
    const MANY_BYTES: usize = BLOCK_RAW_BYTES / 8;

    fn append_body(&mut self, body: &[u8]) {
        let bodies = &mut self.bodies;
        // Reserve all room in one step: each doubling would leave freed memory behind.
        if bodies.len() > Self::MANY_BYTES && bodies.capacity() - bodies.len() < body.len() {
            bodies.reserve_exact(body.len().max(BLOCK_RAW_BYTES.saturating_sub(bodies.len())));
        }
        bodies.extend_from_slice(body);
    }

    fn clear(&mut self) {
        self.columns.clear();
        // One entry may be as large as `ENTRY_BYTES_MAX`, and these are kept forever.
        self.bodies.clear();
        self.bodies.shrink_to(4 * BLOCK_RAW_BYTES);
    }
}

/// A block that was packed: where its frame is, and what its index is made from.
#[derive(Debug)]
pub(crate) struct BuiltBlock {
    /// Its offset is relative to the buffer that the frame was appended to.
    pub(crate) meta: BlockMeta,
    pub(crate) columns: Columns,
    /// Bodies of its entries, concatenated.
    bodies: Vec<u8>,
    /// Bytes of its entries, names included.
    pub(crate) raw_bytes: usize,
}

impl BuiltBlock {
    /// The bodies of its entries, concatenated.
    pub(crate) fn bodies(&self) -> &[u8] {
        &self.bodies
    }

    /// Its buffers, emptied, for a later block.
    pub(crate) fn into_buffers(self) -> BlockBuffers {
        let mut buffers = BlockBuffers {
            columns: self.columns,
            bodies: self.bodies,
        };
        buffers.clear();
        buffers
    }
}

impl BlockBuilder {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.buffers.columns.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.buffers.columns.is_empty()
    }

    /// Bytes of the entries, names included.
    pub fn raw_bytes(&self) -> usize {
        self.raw_bytes
    }

    /// Whether the block has reached half of a limit.
    pub(crate) fn is_half_full(&self) -> bool {
        self.raw_bytes >= BLOCK_RAW_BYTES / 2 || self.len() >= BLOCK_ENTRIES_MAX / 2
    }

    /// Whether the block must be finished before `entry` is added. A large entry gets a separate
    /// block.
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
                "a block contains more than BLOCK_ENTRIES_MAX entries",
            ));
        }

        if self.is_empty() {
            self.buffers.columns.first_seq = seq.0;
        }

        // Gaps are relative to the index in the block, so consecutive numbers are a constant
        // column.
        let before = self.buffers.columns.seqs.last().copied().unwrap_or(0);
        let gap = seq
            .0
            .checked_sub(self.buffers.columns.first_seq)
            .and_then(|n| n.checked_sub(self.len() as u64));

        let gap = gap
            .and_then(|gap| i64::try_from(gap).ok())
            .filter(|gap| *gap >= before);
        let gap = gap.ok_or(StoreError::Broken(
            "the sequence numbers of a block do not ascend",
        ))?;

        // 0 means none, so real indexes are shifted by one.
        let jid = if entry.jid.is_empty() {
            0
        } else {
            self.jid_of(entry.jid)? + 1
        };

        let columns = &mut self.buffers.columns;
        let mut name = |text: &str| {
            if text.is_empty() {
                return Ok(0);
            }
            index_of(&mut self.text_table, &mut columns.texts, text.as_bytes()).map(|at| at + 1)
        };
        let minion = name(entry.minion)?;
        let fun = name(entry.fun)?;
        let origin = name(entry.origin)?;

        template_of(entry, &mut self.template);
        let tag = index_of(&mut self.text_table, &mut columns.texts, &self.template)?;

        let body_len = i64::try_from(entry.body.len())
            .map_err(|_| StoreError::Broken("a body exceeds 8 EiB"))?;

        columns.seqs.push(gap);
        columns.at.push(entry.at.0);
        columns.kind.push(i64::from(entry.kind as u8));
        columns.source.push(i64::from(entry.source as u8));
        columns.origin.push(origin);
        columns.number.push(entry.number.cast_signed());
        columns.flags.push(i64::from(entry.flags.0));
        columns.retcode.push(entry.retcode);
        columns.jid.push(jid);
        columns.minion.push(minion);
        columns.fun.push(fun);
        columns.tag.push(tag);
        columns.body_len.push(body_len);
        columns.raw_len += entry.raw_len();

        self.buffers.append_body(entry.body);
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
            // Keys of jids that are arbitrary text may collide; compare the strings.
            let place = usize::try_from(at)
                .ok()
                .and_then(|at| self.buffers.columns.jid_time.get(at));

            let spelled = *place.expect("a jid of this block");
            let same = spelled >= 0
                || u32::try_from(-1 - spelled)
                    .is_ok_and(|text| self.buffers.columns.texts.get(text) == jid.as_bytes());
            if same {
                return Ok(at);
            }
        }

        // After a collision the new jid takes the place in the index. Both keep their own number.
        let columns = &mut self.buffers.columns;
        let at = i64::from(fits(columns.jids(), "a block has over 4 G jids")?);
        let time = if let Some(time) = key.time() {
            time.0
        } else {
            let text = jid.as_bytes();
            -1 - index_of(&mut self.text_table, &mut columns.texts, text)?
        };
        columns.jid_time.push(time);
        columns
            .jid_pid
            .push(key.pid().map_or(0, |pid| i64::from(pid) + 1));
        self.jid_index.insert(key, at);

        Ok(at)
    }

    /// The sequence number of the first entry; `None` if there are no entries.
    pub(crate) fn first_seq(&self) -> Option<SeqNo> {
        (!self.is_empty()).then_some(SeqNo(self.buffers.columns.first_seq))
    }

    /// The sequence numbers of the first and last entry. Panics if empty.
    pub(crate) fn seqs(&self) -> (SeqNo, SeqNo) {
        let last = self.len().checked_sub(1).expect("a block with entries");
        (
            SeqNo(self.buffers.columns.first_seq),
            self.buffers.columns.seq(last),
        )
    }

    /// Earliest and latest time of arrival. Panics if empty.
    pub fn times(&self) -> (Micros, Micros) {
        self.buffers.columns.times()
    }

    /// Checks the columns against each other, the dictionary and the bodies.
    fn check(&self) -> Result<(), StoreError> {
        let block = &self.buffers.columns;
        let columns = [
            &block.seqs,
            &block.at,
            &block.kind,
            &block.source,
            &block.origin,
            &block.number,
            &block.flags,
            &block.retcode,
            &block.jid,
            &block.minion,
            &block.fun,
            &block.tag,
            &block.body_len,
        ];
        // All checks repeat what `push` ensures. They cost little next to zstd, and a block that
        // contradicts itself would be acknowledged and then unreadable.
        if self.is_empty() || columns.iter().any(|column| column.len() != self.len()) {
            return Err(StoreError::Broken(
                "a column of a block does not have one value per entry",
            ));
        }
        if block.jid_time.len() != block.jid_pid.len() || block.jids() > self.len() {
            return Err(StoreError::Broken(
                "a block contains more jids than entries",
            ));
        }
        if block.texts.ends.last().map_or(0, |&end| end as usize) != block.texts.bytes.len() {
            return Err(StoreError::Broken(
                "the last text end of a block differs from the length of its strings",
            ));
        }

        let bodies: i64 = block.body_len.iter().sum();
        if usize::try_from(bodies) != Ok(self.buffers.bodies.len()) {
            return Err(StoreError::Broken(
                "the bodies of a block differ in length from its entries",
            ));
        }

        Ok(())
    }

    /// Compresses the bodies and archives the columns. Call [`BlockBuilder::clear`] before reuse.
    pub fn finish<'a>(&'a self, packer: &'a mut Packer) -> Result<Packed<'a>, StoreError> {
        self.check()?;

        let failed = |what: String| {
            StoreError::Failed(format!(
                "internal error, a block cannot be packed: {what}; please report it"
            ))
        };
        let (codec, bodies) = packer
            .pack(&self.buffers.bodies)
            .map_err(|error| failed(error.to_string()))?;

        let block = &self.buffers.columns;
        let head = Head {
            first_seq: block.first_seq,
            count: fits(self.len(), "a block has over 4 G entries")?,
            seq: Column::pack(&block.seqs),
            at: Column::pack(&block.at),
            kind: Column::pack(&block.kind),
            source: Column::pack(&block.source),
            origin: Column::pack(&block.origin),
            number: Column::pack(&block.number),
            flags: Column::pack(&block.flags),
            retcode: Column::pack(&block.retcode),
            jid: Column::pack(&block.jid),
            minion: Column::pack(&block.minion),
            fun: Column::pack(&block.fun),
            tag: Column::pack(&block.tag),
            body_len: Column::pack(&block.body_len),
            jid_time: Column::pack(&block.jid_time),
            jid_pid: Column::pack(&block.jid_pid),
            jids: fits(block.jids(), "a block has over 4 G jids")?,
            text_ends: block.texts.ends.clone(),
            texts: block.texts.bytes.clone(),
            bodies_len: self.buffers.bodies.len() as u64,
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
        let meta = self.append(packer, out)?;
        self.clear();
        Ok(meta)
    }

    /// As [`BlockBuilder::write`], and returns what the index of the block is made from. `next` is filled by the next block.
    pub(crate) fn build(
        &mut self,
        packer: &mut Packer,
        out: &mut Vec<u8>,
        next: BlockBuffers,
    ) -> Result<BuiltBlock, StoreError> {
        let meta = self.append(packer, out)?;
        let BlockBuffers { columns, bodies } = std::mem::replace(&mut self.buffers, next);
        let built = BuiltBlock {
            meta,
            columns,
            bodies,
            raw_bytes: self.raw_bytes,
        };

        self.clear();
        Ok(built)
    }

    fn append(&self, packer: &mut Packer, out: &mut Vec<u8>) -> Result<BlockMeta, StoreError> {
        let packed = self.finish(packer)?;

        let offset = out.len() as u64;
        let (first_seq, last_seq) = self.seqs();
        let (at_min, at_max) = self.times();
        let (len, head_len) = write_frame(out, &packed, (first_seq, last_seq), self.len())?;

        Ok(BlockMeta {
            offset,
            len,
            head_len,
            count: fits(self.len(), "a block has over 4 G entries")?,
            first_seq,
            last_seq,
            at_min,
            at_max,
        })
    }

    /// Empties the builder and keeps its buffers, except an oversized one for bodies.
    pub fn clear(&mut self) {
        self.buffers.clear();
        self.text_table.clear();
        self.jid_index.clear();
        self.last_jid.0.clear();
        self.raw_bytes = 0;
    }

    /// Makes the block impossible to pack.
    #[cfg(test)]
    pub(crate) fn break_a_column(&mut self) {
        self.buffers.columns.kind.pop();
    }

    #[cfg(test)]
    pub(crate) fn texts(&self) -> usize {
        self.buffers.columns.texts.ends.len()
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

    // The jid comes first in every tag of Salt that contains both, so the minion is searched for
    // behind it.
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
        let mut builder = BlockBuilder::default();
        let mut index_of = |text: &[u8]| {
            index_of(
                &mut builder.text_table,
                &mut builder.buffers.columns.texts,
                text,
            )
        };
        for n in 0..TEXTS_MAX {
            assert_eq!(usize::try_from(index_of(&n.to_le_bytes()).unwrap()), Ok(n));
        }
        assert!(matches!(index_of(b"one more"), Err(StoreError::Broken(_))));
        assert_eq!(
            index_of(&0_usize.to_le_bytes()).unwrap(),
            0,
            "known strings are still found"
        );
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
