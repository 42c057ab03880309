//! Blocks that travel to another store, in the format of the log.
//!
//! A frame is valid in one log of one store only (`super::frame`). A frame that travels belongs to
//! a separate log, with the same identity everywhere: its checksums find damage, and prove nothing
//! about the sender.
//!
//! # Invariant
//!
//! No bytes make [`read`] panic, or allocate more than a block may have.

use rkyv::util::AlignedVec;

use super::block::{BODIES_MAX, BlockView, Rows};
use super::builder::{BlockBuilder, Packer};
use super::frame::{
    FRAME_HEADER_LEN, FRAME_VERSION, FrameHeader, LogId, PAYLOAD_BYTES_MAX, Position, place_frame,
    write_frame,
};
use crate::error::StoreError;
use saltcellar_base::clock::Micros;
use saltcellar_base::limits::BLOCK_ENTRIES_MAX;
use saltcellar_model::{Entry, SeqNo};

/// The log that all travelling blocks belong to. Not a secret.
const ID: LogId = LogId {
    store_id: 0x7361_6c74_6365_6c6c,
    first_seq: SeqNo(0),
};

/// A block that can travel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Travelling {
    /// Sequence number of its first entry, in the store that sends it.
    pub first: SeqNo,
    /// Sequence number of its last entry.
    pub last: SeqNo,
    /// Arrival of its last entry.
    pub last_at: Micros,
    /// Its entries.
    pub entries: usize,
    /// Bytes of their tags and bodies.
    pub raw_bytes: u64,
    /// The frame. Those of several blocks, one behind the other, are read together.
    pub bytes: Vec<u8>,
}

impl Travelling {
    /// A block of the log, as it is: nothing is unpacked.
    pub(crate) fn copy_of(rows: Rows<'_>) -> Result<Self, StoreError> {
        let (first, last) = (rows.seq(0), rows.seq(rows.len() - 1));
        let mut bytes = Vec::new();
        write_frame(&mut bytes, &rows.packed()?, (first, last), rows.len())?;
        place_frame(&mut bytes, ID, Position::in_new_log(0));

        Ok(Self {
            first,
            last,
            last_at: rows.at(rows.len() - 1),
            entries: rows.len(),
            raw_bytes: rows.raw_len() as u64,
            bytes,
        })
    }
}

/// Packs entries into blocks that can travel.
pub struct TravelPacker {
    packer: Packer,
    builder: BlockBuilder,
    raw_bytes: u64,
    last_at: Micros,
}

impl TravelPacker {
    /// A packer without entries.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            packer: Packer::new()?,
            builder: BlockBuilder::default(),
            raw_bytes: 0,
            last_at: Micros(0),
        })
    }

    /// Adds an entry; returns the block before it, if it is full. Sequence numbers must ascend.
    pub fn push(
        &mut self,
        seq: SeqNo,
        entry: &Entry<'_>,
    ) -> Result<Option<Travelling>, StoreError> {
        // A frame has 32 bits for its span, and numbers that were left out after a restore are more.
        let is_far = self
            .builder
            .first_seq()
            .is_some_and(|first| u32::try_from(seq.0.saturating_sub(first.0)).is_err());
        let full = if is_far || self.builder.is_full_for(entry) {
            self.finish()?
        } else {
            None
        };

        self.raw_bytes += entry.raw_len() as u64;
        self.last_at = entry.at;
        self.builder.push(seq, entry).inspect_err(|_| {
            self.builder.clear();
            self.raw_bytes = 0;
        })?;
        Ok(full)
    }

    /// The block of the entries since the last one.
    pub fn finish(&mut self) -> Result<Option<Travelling>, StoreError> {
        if self.builder.is_empty() {
            return Ok(None);
        }

        let entries = self.builder.len();
        let mut bytes = Vec::new();
        let written = self.builder.write(&mut self.packer, &mut bytes);
        self.builder.clear();
        let raw_bytes = std::mem::take(&mut self.raw_bytes);

        let meta = written?;
        place_frame(&mut bytes, ID, Position::in_new_log(0));
        Ok(Some(Travelling {
            first: meta.first_seq,
            last: meta.last_seq,
            last_at: self.last_at,
            entries,
            raw_bytes,
            bytes,
        }))
    }
}

/// Why bytes are no block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoBlock {
    /// A valid block of another version of the format.
    #[error("a block has version {0}, this release reads {FRAME_VERSION}: upgrade this daemon")]
    OtherVersion(u16),
    /// No block, or a damaged one.
    #[error("{0}")]
    Damaged(String),
}

/// Reads blocks that another store has packed, one after the other: at least one.
pub fn read(bytes: &[u8]) -> Result<Vec<BlockView>, NoBlock> {
    let damaged = |what: &str| NoBlock::Damaged(what.to_owned());

    let (mut blocks, mut rest) = (Vec::new(), bytes);
    let (mut entries, mut bodies) = (0, 0);
    let mut last = None;
    while blocks.is_empty() || !rest.is_empty() {
        let (block, behind) = first_of(rest)?;
        let rows = block.rows();
        if last.is_some_and(|last| rows.seq(0) <= last) {
            return Err(damaged("blocks whose numbers do not ascend"));
        }
        last = Some(rows.seq(rows.len() - 1));
        // The limits of one block apply to all of them together: few bytes must not expand to much
        // memory.
        entries += rows.len();
        bodies += block.bodies_len();
        if entries > BLOCK_ENTRIES_MAX || bodies > BODIES_MAX {
            return Err(damaged("more than a block may have"));
        }
        blocks.push(block);
        rest = behind;
    }
    Ok(blocks)
}

/// The first block, and the bytes behind it.
fn first_of(bytes: &[u8]) -> Result<(BlockView, &[u8]), NoBlock> {
    let damaged = |what: &str| NoBlock::Damaged(what.to_owned());

    let header = FrameHeader::read(bytes, ID, 0, 0).ok_or_else(|| damaged("no block"))?;
    if header.version != FRAME_VERSION {
        return Err(NoBlock::OtherVersion(header.version));
    }

    let (head_len, bodies_len) = (header.head_len as usize, header.bodies_len as usize);
    if head_len.max(bodies_len) > PAYLOAD_BYTES_MAX {
        return Err(damaged("a block larger than any block may be"));
    }
    let part = |from: u64, len: usize| {
        let from = usize::try_from(from).ok()?;
        bytes.get(from..from.checked_add(len)?)
    };
    let head = part(FRAME_HEADER_LEN as u64, head_len);
    let bodies = part(header.bodies_at(), bodies_len);
    let (head, bodies) = head
        .zip(bodies)
        .ok_or_else(|| damaged("a block without its end"))?;
    if crc32fast::hash(head) != header.head_crc || crc32fast::hash(bodies) != header.bodies_crc {
        return Err(damaged("a block with another checksum"));
    }

    // The checksums prove nothing about the sender, so the contents are validated as well. Heads
    // are read in place, which needs the alignment.
    let mut aligned = AlignedVec::new();
    aligned.extend_from_slice(head);
    let view = BlockView::new(aligned, Some(bodies.to_vec())).map_err(NoBlock::Damaged)?;
    let rows = view.rows();
    let bounds = (rows.seq(0), rows.seq(rows.len() - 1), rows.len());
    if bounds != (header.first_seq, header.last_seq, usize::from(header.count)) {
        return Err(damaged("a block with other numbers than its header"));
    }
    // The padding of the last one may be missing.
    let end = usize::try_from(header.end()).ok();
    let behind = end.and_then(|end| bytes.get(end..)).unwrap_or_default();
    Ok((view, behind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use saltcellar_model::{Flags, Kind, Source};

    fn entry<'a>(tag: &'a [u8], jid: &'a str, body: &'a [u8]) -> Entry<'a> {
        Entry {
            tag,
            jid,
            minion: "web1",
            fun: "test.ping",
            flags: Flags::ON_BUS.with(Flags::UNCONFIRMED),
            retcode: 2,
            ..Entry::new(Kind::Return, Source::Returner, Micros(7), body)
        }
    }

    fn blocks(entries: &[(u64, Vec<u8>)]) -> Vec<Travelling> {
        let mut packer = TravelPacker::new().unwrap();
        let mut blocks = Vec::new();
        for (seq, body) in entries {
            let entry = entry(b"salt/job/1/ret/web1", "20261121030955000001", body);
            blocks.extend(packer.push(SeqNo(*seq), &entry).unwrap());
        }
        blocks.extend(packer.finish().unwrap());
        blocks
    }

    #[test]
    fn entries_arrive_as_they_left_in_blocks_of_limited_size() {
        let body = |n: u64| vec![u8::try_from(n % 251).unwrap(); 3000];
        let mut sent: Vec<_> = (1..200).map(|n| (n * 3, body(n))).collect();
        // After a restore.
        sent.push(((1 << 32) + 900, body(7)));
        let blocks = blocks(&sent);
        assert!(blocks.len() > 2, "{}", blocks.len());
        assert_eq!(blocks.iter().map(|block| block.entries).sum::<usize>(), 200);

        let mut back = Vec::new();
        for block in &blocks {
            let [view] = &read(&block.bytes).unwrap()[..] else {
                panic!("one block")
            };
            let rows = view.rows();
            assert_eq!(rows.seq(0), block.first);
            for n in 0..rows.len() {
                let (tag, jid) = (rows.tag(n), rows.jid(n));
                let body = rows.body(n).unwrap();
                assert_eq!(
                    rows.entry(n, &tag, &jid, body),
                    entry(b"salt/job/1/ret/web1", "20261121030955000001", body)
                );
                back.push((rows.seq(n).0, body.to_vec()));
            }
        }
        assert_eq!(back, sent);
    }

    proptest! {
        #[test]
        fn a_changed_block_is_rejected_and_never_read_as_another(
            at in 0..10_000_usize, to in any::<u8>(), cut in 0..10_000_usize
        ) {
            let sent: Vec<_> = (1..20).map(|n| (n, n.to_string().into_bytes())).collect();
            let block = blocks(&sent).pop().unwrap();
            let mut bytes = block.bytes.clone();
            let at = at % bytes.len();
            bytes[at] = to;
            if bytes != block.bytes {
                // No checksum covers the padding.
                if let Ok(views) = read(&bytes) {
                    let whole = read(&block.bytes).unwrap();
                    prop_assert_eq!(views.len(), 1);
                    for n in 0..whole[0].len() {
                        prop_assert_eq!(views[0].rows().body(n), whole[0].rows().body(n));
                    }
                }
            }
            let cut = cut % (block.bytes.len() - 15);
            prop_assert!(read(&block.bytes[..cut]).is_err());
        }
    }

    #[test]
    fn a_block_of_a_newer_release_is_told_from_damage() {
        let mut block = blocks(&[(1, b"x".to_vec())]).pop().unwrap().bytes;
        super::super::frame::put(&mut block, 4, &(FRAME_VERSION + 1).to_le_bytes());
        assert!(matches!(read(&block), Err(NoBlock::Damaged(_))));
        place_frame(&mut block, ID, Position::in_new_log(0));
        let newer = read(&block).map(drop).unwrap_err();
        assert_eq!(newer, NoBlock::OtherVersion(FRAME_VERSION + 1));
    }

    #[test]
    fn blocks_in_a_row_are_read_in_their_order_within_the_limits_of_one() {
        let of = |from: u64, count: u64| {
            let entries: Vec<_> = (from..from + count).map(|n| (n, b"x".to_vec())).collect();
            blocks(&entries).pop().unwrap()
        };
        let both = [of(1, 3).bytes, of(7, 2).bytes].concat();
        let seqs = |bytes: &[u8]| -> Result<Vec<u64>, NoBlock> {
            let read = read(bytes)?;
            let all = read.iter().flat_map(|view| {
                let rows = view.rows();
                (0..rows.len()).map(move |n| rows.seq(n).0)
            });
            Ok(all.collect())
        };
        assert_eq!(seqs(&both).unwrap(), [1, 2, 3, 7, 8]);

        let wrong = [of(7, 2).bytes, of(8, 2).bytes].concat();
        assert!(seqs(&wrong).is_err(), "8 twice");
        let entries: Vec<_> = (1..=70_000).map(|n| (n, b"x".to_vec())).collect();
        let many: Vec<u8> = blocks(&entries)
            .into_iter()
            .flat_map(|block| block.bytes)
            .collect();
        assert!(seqs(&many).is_err(), "more than a block may have");
        let cut = &both[..both.len() - 100];
        assert!(seqs(cut).is_err());
    }
}
