//! The blocks of a segment, with the data to skip them: arrival timestamps and tag templates.
//!
//! # On disk
//!
//! Tree `block`: per 2,048 blocks, in their order, a page with an rkyv archive of their positions,
//! bounds and template bits.
//!
//! Tree `shape`: an rkyv archive of all tag templates of the segment, in the order of
//! their numbers. Template *n* sets bit *n* of a block if *n* is below 48, else one of the next 15
//! bits (48 + *n* mod 15). Bit 63 means that the block has templates that did not fit the list. A
//! template that is only the placeholder of a jid marks blocks with a jid that is not derived from
//! a time.

use std::io;

use rkyv::util::AlignedVec;
use rkyv::{Archive, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::{EntryPosition, archive};
use crate::log::file::BlockMeta;
use crate::names::Names;
use saltcellar_base::limits::{TAG_TEMPLATE_BYTES_MAX, TAG_TEMPLATES_MAX};
use saltcellar_model::SeqNo;

/// The bit of templates that are not listed.
pub(crate) const UNLISTED: u64 = 1 << 63;
/// Number of templates with a separate bit.
pub(crate) const OWN_BITS: u32 = 48;
const SHARED_BITS: u32 = 15;

/// The tag templates of a segment.
#[derive(Debug, Default)]
pub struct TagTemplates(Names);

impl TagTemplates {
    /// The bits of a block with these templates; adds new templates to the list.
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
        // Rare templates share bits: a shared bit costs reads of blocks without the tag.
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
    pub fn to_bytes(&self) -> io::Result<AlignedVec> {
        let templates: Vec<Vec<u8>> = self.each().map(|(template, _)| template.to_vec()).collect();
        archive::write(&templates)
    }

    /// Decodes; `None` if malformed.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        archive::look::<Vec<Vec<u8>>, _>(bytes, |templates| {
            let mut names = Names::default();
            for template in templates.iter() {
                names.number(template).ok()?;
            }
            Some(Self(names))
        })
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

    /// A hash of the positions and the numbers of all blocks: it distinguishes the indexes of
    /// different logs, even of the same segment before and after its blocks were merged.
    pub(crate) fn positions(&self) -> u64 {
        let mut hash = Xxh3::new();
        for meta in &self.metas {
            hash.update(&meta.offset.to_le_bytes());
            hash.update(&meta.len.to_le_bytes());
            hash.update(&meta.count.to_le_bytes());
            hash.update(&meta.first_seq.0.to_le_bytes());
            hash.update(&meta.last_seq.0.to_le_bytes());
        }
        hash.digest()
    }

    /// The pages of all blocks.
    pub fn pages(&self) -> impl Iterator<Item = io::Result<AlignedVec>> {
        let rows: Vec<BlockRow> = self
            .metas
            .iter()
            .zip(&self.templates)
            .map(|(meta, templates)| {
                // Readers search blocks by these bounds.
                assert!(
                    meta.first_seq <= meta.last_seq && meta.at_min <= meta.at_max,
                    "bounds of a block are ordered"
                );
                BlockRow {
                    meta: *meta,
                    templates: *templates,
                }
            })
            .collect();

        let pages: Vec<_> = rows
            .chunks(BLOCKS_PER_PAGE)
            .map(|page| archive::write(&page.to_vec()))
            .collect();
        pages.into_iter()
    }

    /// Appends the blocks of a page; `None` if malformed.
    pub fn read(&mut self, page: &[u8]) -> Option<()> {
        archive::look::<Vec<BlockRow>, _>(page, |rows| {
            for row in rows.iter() {
                let meta: BlockMeta = archive::value(&row.meta)?;
                // What an archive validates is its shape, not what the numbers mean.
                meta.offset.checked_add(u64::from(meta.len))?;
                (meta.first_seq <= meta.last_seq && meta.at_min <= meta.at_max).then_some(())?;
                self.push(meta, row.templates.to_native());
            }
            Some(())
        })
    }

    pub(crate) fn memory(&self) -> usize {
        self.metas.capacity() * size_of::<BlockMeta>()
            + self.starts.capacity() * 4
            + self.templates.capacity() * 8
    }
}

/// A block, as archived.
#[derive(Debug, Clone, Copy, Archive, Serialize)]
struct BlockRow {
    meta: BlockMeta,
    templates: u64,
}

/// Blocks in a page: about 130 KiB before compression.
const BLOCKS_PER_PAGE: usize = 2_048;

#[cfg(test)]
mod tests {
    use super::*;
    use saltcellar_base::clock::Micros;

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
        let read = TagTemplates::from_bytes(&templates.to_bytes().unwrap()).unwrap();
        assert!(read.each().eq(templates.each()));
        assert!(TagTemplates::from_bytes(&[5, 1]).is_none());
    }

    #[test]
    fn blocks_are_read_as_they_were_written() {
        let mut blocks = Blocks::default();
        for n in 0..5_000_u32 {
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
        let pages: Vec<_> = blocks.pages().map(Result::unwrap).collect();
        assert_eq!(pages.len(), 3);
        let mut read = Blocks::default();
        for page in &pages {
            read.read(page).unwrap();
        }
        assert_eq!(read.positions(), blocks.positions());
        assert_eq!(
            (read.metas(), read.entries(), read.templates(7)),
            (blocks.metas(), 500_000, 7)
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
                read.block_of(SeqNo(999_999))
            ),
            (Some(2), None, None)
        );
        let page = &pages[0];
        assert!(read.read(&page[..page.len() - 3]).is_none());
    }
}
