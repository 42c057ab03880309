//! Blocks of segments, for readers.
//!
//! # Invariant
//!
//! A block that cannot be read is noted as damage, and passed over; all others stay readable. What is
//! cached under a block's number is the block of that numbering, even if the index was rebuilt.

use std::path::PathBuf;
use std::sync::Arc;

use super::cache::BlockCache;
use super::stored_entry::{StoredEntry, without_body};
use crate::damage::{Damage, DamageList};
use crate::error::StoreError;
use crate::log::block::{BlockView, Rows};
use crate::log::file::BlockMeta;
use crate::segment::Segment;
use crate::segment::open_indexes::OpenIndexes;
use saltcellar_base::limits::BLOCK_CACHE_BYTES;
use saltcellar_base::work;
use saltcellar_model::SeqNo;

/// Reads blocks, and keeps those that were read lately.
#[derive(Debug)]
pub(crate) struct BlockReader {
    indexes: Arc<OpenIndexes>,
    damage: Arc<DamageList>,
    cache: BlockCache,
}

impl BlockReader {
    pub(crate) fn new(indexes: Arc<OpenIndexes>, damage: Arc<DamageList>) -> Self {
        Self {
            indexes,
            damage,
            cache: BlockCache::new(BLOCK_CACHE_BYTES),
        }
    }

    /// The indexes by which it finds blocks.
    pub(crate) fn indexes(&self) -> &OpenIndexes {
        &self.indexes
    }

    /// A block by its index in the segment; `None` if it does not exist or is damaged.
    pub(crate) fn block(
        &self,
        segment: &Arc<Segment>,
        number: u32,
    ) -> Result<Option<Arc<BlockView>>, StoreError> {
        work::check()?;
        // Before the block is looked up: a block of a later numbering is then cached under a
        // numbering that is no longer used.
        let id = (segment.numbering(), number);
        // Only whole blocks are cached, so a head alone is never returned here.
        if let Some(view) = self.cache.get(&id) {
            return Ok(Some(view));
        }

        let view = self.read_block(segment, number, true)?;
        // A damaged block is not remembered: the disk may read it at the next try.
        if let Some(view) = &view {
            self.cache.put(id, view.clone());
        }
        Ok(view)
    }

    /// As [`BlockReader::block`], with only the head guaranteed to be readable.
    pub(crate) fn head(
        &self,
        segment: &Arc<Segment>,
        number: u32,
    ) -> Result<Option<Arc<BlockView>>, StoreError> {
        work::check()?;
        // A head is not cached: it is small, and a search that reads all heads would displace the
        // blocks.
        match self.cache.get(&(segment.numbering(), number)) {
            Some(view) => Ok(Some(view)),
            None => self.read_block(segment, number, false),
        }
    }

    /// Position and bounds of a block by its index in the segment, if it exists.
    fn meta(&self, segment: &Arc<Segment>, number: u32) -> Result<Option<BlockMeta>, StoreError> {
        Ok(self
            .indexes
            .ready(segment)?
            .blocks()
            .metas()
            .get(number as usize)
            .copied())
    }

    /// The number of a block's first entry; `None` if it has none with a number in `from..upto`.
    pub(crate) fn first_seq(
        &self,
        segment: &Arc<Segment>,
        number: u32,
        (from, upto): (SeqNo, SeqNo),
    ) -> Result<Option<SeqNo>, StoreError> {
        let meta = self.meta(segment, number)?;
        let meta = meta.filter(|meta| meta.last_seq >= from && meta.first_seq < upto);
        Ok(meta.map(|meta| meta.first_seq))
    }

    /// As [`BlockReader::block`], but a block that is not cached stays so: blocks that are read
    /// once would displace blocks of other readers.
    pub(crate) fn block_once(
        &self,
        segment: &Arc<Segment>,
        number: u32,
    ) -> Result<Option<Arc<BlockView>>, StoreError> {
        match self.cache.get(&(segment.numbering(), number)) {
            Some(view) => Ok(Some(view)),
            None => self.read_block(segment, number, true),
        }
    }

    fn read_block(
        &self,
        segment: &Arc<Segment>,
        number: u32,
        with_bodies: bool,
    ) -> Result<Option<Arc<BlockView>>, StoreError> {
        let Some(meta) = self.meta(segment, number)? else {
            return Ok(None);
        };

        let log = segment.log();
        match if with_bodies {
            log.block(&meta)
        } else {
            log.head(&meta)
        } {
            // Noted once per place; the other blocks of the segment stay readable.
            Ok(view) => Ok(Some(Arc::new(view))),
            Err(StoreError::Corrupt { path, offset, what }) => {
                self.note_block(segment, &meta, (path, offset), what);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The body of an entry; `None` if its block cannot be unpacked although its checksums hold,
    /// which is noted like any other damage.
    pub(crate) fn body<'a>(
        &self,
        segment: &Arc<Segment>,
        rows: Rows<'a>,
        at: usize,
    ) -> Option<&'a [u8]> {
        let what = match rows.body(at) {
            Ok(body) => return Some(body),
            Err(what) => what,
        };

        // The bodies of a block are packed together, so all of them are lost.
        let seq = rows.seq(at);
        let meta = self.indexes.ready(segment).map(|ready| {
            let blocks = ready.blocks();
            let block = blocks.block_of(seq)?;
            blocks.metas().get(block as usize).copied()
        });
        match meta {
            Ok(Some(meta)) => {
                let place = (segment.log().path().to_owned(), meta.offset);
                self.note_block(segment, &meta, place, what);
            }
            // Its place cannot be told. The body is as unreadable.
            Ok(None) => {
                tracing::error!(path = %segment.log().path().display(), %seq, what, "unreadable entry skipped: run `saltcellar store verify`");
            }
            Err(error) => {
                tracing::error!(path = %segment.log().path().display(), %seq, what, %error, "unreadable entry skipped: run `saltcellar store verify`");
            }
        }
        None
    }

    fn note_block(
        &self,
        segment: &Arc<Segment>,
        meta: &BlockMeta,
        (path, offset): (PathBuf, u64),
        what: String,
    ) {
        let damage = Damage {
            path,
            offset,
            bytes: u64::from(meta.len),
            what,
            entries: Some(u64::from(meta.count)),
        };

        self.damage.note(damage);
        self.damage.count_unreadable(segment.log());
    }

    /// As [`BlockReader::stored`], from block and row at which it was found before. `None` if its
    /// block cannot be read, or has another number since.
    pub(crate) fn stored_again(
        &self,
        segment: &Arc<Segment>,
        (block, at): (u32, usize),
        seq: SeqNo,
    ) -> Result<Option<StoredEntry>, StoreError> {
        let Some(view) = self.block(segment, block)? else {
            return Ok(None);
        };

        let rows = view.rows();
        // A reader with limits has looked at that entry, not at what is here now.
        let is_same = at < rows.len() && rows.seq(at) == seq;
        Ok(is_same.then(|| self.stored(segment, rows, at)).flatten())
    }

    /// Copies an entry out of its block; `None` if its body is unreadable, see [`BlockReader::body`].
    pub(crate) fn stored(
        &self,
        segment: &Arc<Segment>,
        rows: Rows<'_>,
        at: usize,
    ) -> Option<StoredEntry> {
        let body = self.body(segment, rows, at)?.to_vec();
        Some(StoredEntry {
            body,
            unread: 0,
            ..without_body(rows, at, rows.jid(at), true)
        })
    }
}
