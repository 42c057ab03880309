//! The blocks of a segment, with the data to skip them: times of arrival and tag templates.
//!
//! # On disk
//!
//! Records in pages of tree `block`; the key of a page is the number of its first block, u32 BE.
//! Differences are relative to the previous block in the page.
//!
//! ```text
//! offset less the end of the previous frame: signed | bytes of the frame | bytes of its head | entries
//! first seq less the previous last one: signed | last seq less first, less entries, plus 1
//! earliest arrival: signed difference | latest less earliest | template bits, u64 LE
//! ```
//!
//! Tree `shape`, key zero, u32 BE: all tag templates of the segment, as bytes, in the order of
//! their numbers. Template *n* sets bit *n* of a block if *n* is below 48, else one of the next 15
//! bits (48 + *n* mod 15). Bit 63 means that the block has templates that did not fit the list. A
//! template that is only the placeholder of a jid marks blocks with a jid that is not derived from
//! a time.

use super::EntryPosition;
use crate::base::clock::Micros;
use crate::base::limits::{TAG_TEMPLATE_BYTES_MAX, TAG_TEMPLATES_MAX};
use crate::model::SeqNo;
use crate::store::index::memory::names::Names;
use crate::store::index::page::code::{FieldReader, put, put_bytes, put_signed};
use crate::store::log::file::{BlockMeta, FILE_HEADER_LEN};

/// The bit of templates that are not listed.
pub(crate) const UNLISTED: u64 = 1 << 63;
/// Number of templates with a bit of their own.
pub(crate) const OWN_BITS: u32 = 48;
const SHARED_BITS: u32 = 15;

/// The tag templates of a segment.
#[derive(Debug, Default)]
pub struct TagTemplates(Names);

impl TagTemplates {
    /// The bits of a block with these templates; adds new ones to the list.
    pub fn bits(&mut self, templates: &[Vec<u8>]) -> u64 {
        templates
            .iter()
            .fold(0, |bits, template| bits | self.bit_of(template))
    }

    fn bit_of(&mut self, template: &[u8]) -> u64 {
        let number = match self.0.find(template) {
            Some(number) => number,
            // Both limits: templates come from senders, and the list is in memory for each open
            // segment.
            None if self.0.len() < TAG_TEMPLATES_MAX
                && self.0.bytes() + template.len() <= TAG_TEMPLATE_BYTES_MAX =>
            {
                self.0
                    .number(template)
                    .expect("the list is far below the limit of names")
            }
            None => return UNLISTED,
        };
        Self::bit(number)
    }

    /// The bit of a template in a block of this segment.
    pub(crate) fn listed_bit(&self, template: &[u8]) -> u64 {
        self.0.find(template).map_or(UNLISTED, Self::bit)
    }

    fn bit(number: u32) -> u64 {
        // Rare templates share bits: a shared bit costs a look at blocks without the tag.
        1 << if number < OWN_BITS {
            number
        } else {
            OWN_BITS + number % SHARED_BITS
        }
    }

    /// Each template and its bit.
    pub fn each(&self) -> impl Iterator<Item = (&[u8], u64)> {
        (0..self.0.len()).map(|n| (self.0.get(n), Self::bit(n)))
    }

    /// Encodes all templates as one record.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.each()
            .for_each(|(template, _)| put_bytes(&mut out, template));
        out
    }

    /// Decodes; `None` if malformed.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut reader = FieldReader(bytes);
        let mut names = Names::default();
        while !reader.is_empty() {
            names.number(reader.bytes()?).ok()?;
        }
        Some(Self(names))
    }

    pub(crate) fn memory(&self) -> usize {
        self.0.memory()
    }
}

/// The blocks of a segment in order.
#[derive(Debug, Default)]
pub struct Blocks {
    metas: Vec<BlockMeta>,
    /// Number of the first entry of each block.
    starts: Vec<u32>,
    templates: Vec<u64>,
}

impl Blocks {
    /// Appends a block.
    pub fn push(&mut self, meta: BlockMeta, templates: u64) {
        self.starts.push(self.entries());
        self.metas.push(meta);
        self.templates.push(templates);
    }

    /// Positions and bounds of the blocks.
    pub fn metas(&self) -> &[BlockMeta] {
        &self.metas
    }

    /// The template bits of a block.
    pub fn templates(&self, block: usize) -> u64 {
        // All bits for an unknown block: a search must not pass over it.
        self.templates.get(block).copied().unwrap_or(u64::MAX)
    }

    /// Number of entries.
    pub fn entries(&self) -> u32 {
        let last = self.starts.last().zip(self.metas.last());
        last.map_or(0, |(start, meta)| start.saturating_add(meta.count))
    }

    /// The position of an entry, by its number in the segment.
    pub fn position(&self, entry: u32) -> Option<EntryPosition> {
        let block = self
            .starts
            .partition_point(|&start| start <= entry)
            .checked_sub(1)?;
        let at = u16::try_from(entry - self.starts.get(block)?).ok()?;

        Some(EntryPosition {
            block: u32::try_from(block).ok()?,
            at,
        })
    }

    /// Number of the first entry of the newest block.
    pub(crate) fn newest_start(&self) -> u32 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// The block whose range contains a sequence number.
    pub(crate) fn block_of(&self, seq: SeqNo) -> Option<u32> {
        let block = self.metas.partition_point(|meta| meta.last_seq < seq);
        let found = self
            .metas
            .get(block)
            .is_some_and(|meta| meta.first_seq <= seq);
        found.then(|| u32::try_from(block).ok())?
    }

    /// Appends the record of block `n`; `before` is the previous block in the page.
    pub fn write(&self, n: usize, before: Option<usize>, out: &mut Vec<u8>) {
        let meta = self.metas.get(n).expect("a block of this segment");
        // Readers search blocks by these bounds.
        assert!(
            meta.first_seq <= meta.last_seq && meta.at_min <= meta.at_max,
            "bounds of a block are ordered"
        );

        let (end, seq, at) = before
            .and_then(|n| self.metas.get(n))
            .map_or(START, Self::anchor);

        put_signed(out, meta.offset.wrapping_sub(end).cast_signed());
        for number in [meta.len, meta.head_len, meta.count] {
            put(out, u64::from(number));
        }

        put_signed(out, meta.first_seq.0.wrapping_sub(seq).cast_signed());
        let span = meta.last_seq.0.wrapping_sub(meta.first_seq.0);
        // Consecutive numbers, the usual case, become a zero.
        put(
            out,
            span.wrapping_sub(u64::from(meta.count)).wrapping_add(1),
        );

        put_signed(out, meta.at_min.0.wrapping_sub(at));
        put(
            out,
            meta.at_max.0.wrapping_sub(meta.at_min.0).cast_unsigned(),
        );
        out.extend_from_slice(&self.templates(n).to_le_bytes());
    }

    fn anchor(meta: &BlockMeta) -> (u64, u64, i64) {
        (meta.end(), meta.last_seq.0, meta.at_min.0)
    }

    /// Appends the blocks of a page; `None` if malformed.
    pub fn read(&mut self, page: &[u8]) -> Option<()> {
        let mut r = FieldReader(page);

        let (mut end, mut seq, mut at) = START;
        while !r.is_empty() {
            let offset = end.wrapping_add(r.signed()?.cast_unsigned());
            let (len, head_len, count) = (r.small()?, r.small()?, r.small()?);
            let first_seq = SeqNo(seq.wrapping_add(r.signed()?.cast_unsigned()));
            let span = r.number()?.wrapping_add(u64::from(count)).wrapping_sub(1);
            let at_min = Micros(at.wrapping_add(r.signed()?));
            let at_max = Micros(at_min.0.wrapping_add(r.number()?.cast_signed()));
            let templates = u64::from_le_bytes(*r.take(8)?.first_chunk()?);

            let last_seq = SeqNo(first_seq.0.wrapping_add(span));
            let meta = BlockMeta {
                offset,
                len,
                head_len,
                count,
                first_seq,
                last_seq,
                at_min,
                at_max,
            };

            // Wrapping arithmetic accepts any bytes, so the results are checked instead.
            offset.checked_add(u64::from(len))?;
            (first_seq <= last_seq && at_min <= at_max).then_some(())?;

            (end, seq, at) = Self::anchor(&meta);
            self.push(meta, templates);
        }
        Some(())
    }

    pub(crate) fn memory(&self) -> usize {
        self.metas.capacity() * size_of::<BlockMeta>()
            + self.starts.capacity() * 4
            + self.templates.capacity() * 8
    }
}

/// The base of the first block in a page: end of the previous frame, last seq, arrival.
const START: (u64, u64, i64) = (FILE_HEADER_LEN as u64, 0, 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_beyond_the_list_set_the_last_bit() {
        let mut templates = TagTemplates::default();
        let template = |n: u32| format!("shape/{n}").into_bytes();
        for n in 0..TAG_TEMPLATES_MAX {
            let bits = templates.bits(&[template(n)]);
            assert_eq!(bits.count_ones(), 1);
            assert!(bits != UNLISTED && (n >= OWN_BITS || bits == 1 << n));
        }
        assert_eq!(
            templates.bits(&[template(TAG_TEMPLATES_MAX), template(3)]),
            UNLISTED | 8
        );
        let read = TagTemplates::from_bytes(&templates.to_bytes()).unwrap();
        assert!(read.each().eq(templates.each()));
        assert!(TagTemplates::from_bytes(&[5, 1]).is_none());
    }

    #[test]
    fn blocks_are_read_as_they_were_written() {
        let mut blocks = Blocks::default();
        for n in 0..50_u32 {
            let offset = 64 + u64::from(n) * 1000 + u64::from(n / 20) * 48;
            let first = u64::from(n) * 110;
            blocks.push(
                BlockMeta {
                    offset,
                    len: 1000,
                    head_len: 90,
                    count: 100,
                    first_seq: SeqNo(first),
                    last_seq: SeqNo(first + 99 + u64::from(n % 3)),
                    at_min: Micros(i64::from(n) - 20),
                    at_max: Micros(i64::from(n)),
                },
                u64::from(n),
            );
        }
        let mut page = Vec::new();
        (0..50).for_each(|n: usize| blocks.write(n, n.checked_sub(1), &mut page));
        let mut read = Blocks::default();
        read.read(&page).unwrap();
        assert_eq!(
            (read.metas(), read.entries(), read.templates(7)),
            (blocks.metas(), 5_000, 7)
        );
        assert_eq!(read.position(0), Some(EntryPosition { block: 0, at: 0 }));
        assert_eq!(
            read.position(4_321),
            Some(EntryPosition { block: 43, at: 21 })
        );
        assert_eq!(
            (
                read.block_of(SeqNo(220)),
                read.block_of(SeqNo(218)),
                read.block_of(SeqNo(9_999))
            ),
            (Some(2), None, None)
        );
        assert!(read.read(&page[..page.len() - 3]).is_none());
    }
}
