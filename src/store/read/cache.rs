//! Caches with a limit of bytes, as of recently read blocks. First in, first out.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::store::log::block::BlockView;

/// A block: [`crate::store::segment::Segment::numbering`] and the block's index in the segment.
pub(crate) type BlockId = (u64, u32);

/// Recently read blocks, decompressed.
pub(crate) type BlockCache = Cache<BlockId, BlockView>;

pub(crate) trait Cached {
    /// Its memory in bytes, which does not change.
    fn memory(&self) -> usize;
}

impl Cached for BlockView {
    fn memory(&self) -> usize {
        self.memory()
    }
}

/// A cache of at most `bytes_max` bytes; the value inserted first is evicted first.
#[derive(Debug)]
pub(crate) struct Cache<K, V> {
    bytes_max: usize,
    inner: Mutex<Inner<K, V>>,
}

#[derive(Debug)]
struct Inner<K, V> {
    values: HashMap<K, (Arc<V>, usize)>,
    order: VecDeque<K>,
    bytes: usize,
}

impl<K: Clone + Eq + Hash, V: Cached> Cache<K, V> {
    pub(crate) fn new(bytes_max: usize) -> Self {
        let (values, order) = (HashMap::new(), VecDeque::new());
        Self {
            bytes_max,
            inner: Mutex::new(Inner {
                values,
                order,
                bytes: 0,
            }),
        }
    }

    pub(crate) fn get(&self, key: &K) -> Option<Arc<V>> {
        self.inner
            .lock()
            .values
            .get(key)
            .map(|(value, _)| value.clone())
    }

    /// Inserts a value. A value larger than the whole cache is not cached.
    pub(crate) fn put(&self, key: K, value: Arc<V>) {
        let mut inner = self.inner.lock();
        let cost = value.memory();
        // It would push out everything else and then itself.
        if cost > self.bytes_max {
            return;
        }

        inner.bytes += cost;
        match inner.values.insert(key.clone(), (value, cost)) {
            // Two readers may have read the same block at the same time. Its place in the order
            // stays.
            Some((_, before)) => inner.bytes -= before,
            None => inner.order.push_back(key),
        }

        // The value inserted first goes first: moving values on each read would make every read a
        // write.
        while inner.bytes > self.bytes_max {
            let Some(oldest) = inner.order.pop_front() else {
                break;
            };
            let (_, cost) = inner
                .values
                .remove(&oldest)
                .expect("every queued value is cached");
            inner.bytes -= cost;
        }

        debug_assert_eq!(
            inner.values.len(),
            inner.order.len(),
            "each value is queued once"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::Micros;
    use crate::base::limits::BLOCK_CACHE_BYTES;
    use crate::model::{Entry, Flags, Kind, SeqNo, Source};
    use crate::store::log::builder::{BlockBuilder, Packer};

    #[test]
    fn a_full_cache_evicts_the_oldest_blocks() {
        let cache = BlockCache::new(BLOCK_CACHE_BYTES);
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
        assert!(cache.get(&(1, 0)).is_none());
        assert!(cache.get(&(1, 39)).is_some());
        for _ in 0..100 {
            cache.put((1, 39), view.clone());
        }
        let inner = cache.inner.lock();
        assert_eq!(
            inner.bytes,
            inner.values.len() * view.memory(),
            "a block inserted again is counted once"
        );
        assert!(inner.bytes <= BLOCK_CACHE_BYTES);
    }
}
