//! The block cache: recently read blocks, decompressed. First in, first out.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::base::limits::BLOCK_CACHE_BYTES;
use crate::store::log::block::BlockView;

/// A block: [`crate::store::segment::Segment::id`] and the block's index in the segment.
pub(crate) type BlockId = (u64, u32);

/// A cache of at most `BLOCK_CACHE_BYTES`; the block inserted first is evicted first.
#[derive(Debug, Default)]
pub(crate) struct BlockCache(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    blocks: HashMap<BlockId, (Arc<BlockView>, usize)>,
    order: VecDeque<BlockId>,
    bytes: usize,
}

impl BlockCache {
    pub(crate) fn get(&self, id: BlockId) -> Option<Arc<BlockView>> {
        self.0.lock().blocks.get(&id).map(|(view, _)| view.clone())
    }

    /// Inserts a block. A block larger than the whole cache is not cached.
    pub(crate) fn put(&self, id: BlockId, view: Arc<BlockView>) {
        let mut inner = self.0.lock();
        let cost = view.memory();
        if cost > BLOCK_CACHE_BYTES {
            return;
        }
        inner.bytes += cost;
        match inner.blocks.insert(id, (view, cost)) {
            Some((_, before)) => inner.bytes -= before,
            None => inner.order.push_back(id),
        }
        while inner.bytes > BLOCK_CACHE_BYTES {
            let Some(oldest) = inner.order.pop_front() else {
                break;
            };
            let (_, cost) = inner
                .blocks
                .remove(&oldest)
                .expect("every queued block is cached");
            inner.bytes -= cost;
        }
        debug_assert_eq!(
            inner.blocks.len(),
            inner.order.len(),
            "each block is queued once"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::Micros;
    use crate::model::{Entry, Flags, Kind, SeqNo, Source};
    use crate::store::log::builder::{BlockBuilder, Packer};

    #[test]
    fn a_full_cache_evicts_the_oldest_blocks() {
        let cache = BlockCache::default();
        let noise: Vec<u8> = (0..200_000_u32)
            .flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes())
            .collect();
        let mut builder = BlockBuilder::default();
        let entry = Entry {
            flags: Flags::ON_BUS,
            tag: b"x",
            ..Entry::new(Kind::Event, Source::Bus, Micros(0), &noise)
        };
        builder.push(SeqNo(1), &entry).unwrap();
        let mut packer = Packer::new().unwrap();
        let packed = builder.finish(&mut packer).unwrap();
        let view = Arc::new(BlockView::new(packed.head, Some(packed.bodies.to_vec())).unwrap());
        for n in 0..40 {
            cache.put((1, n), view.clone());
        }
        assert!(cache.get((1, 0)).is_none());
        assert!(cache.get((1, 39)).is_some());
        for _ in 0..100 {
            cache.put((1, 39), view.clone());
        }
        let inner = cache.0.lock();
        assert_eq!(
            inner.bytes,
            inner.blocks.len() * view.memory(),
            "a block inserted again is counted once"
        );
        assert!(inner.bytes <= BLOCK_CACHE_BYTES);
    }
}
