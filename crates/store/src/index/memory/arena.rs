//! A vector of fixed-size chunks: growing copies nothing and reserves little.

/// Items per chunk. One chunk of entries is 64 KiB, so growing never copies, as a `Vec` would while
/// the commit waits.
const PIECE: usize = 1 << 14;

#[derive(Debug)]
pub(crate) struct Arena<T> {
    pieces: Vec<Vec<T>>,
    len: usize,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self {
            pieces: Vec::new(),
            len: 0,
        }
    }
}

impl<T> Arena<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, item: T) {
        if self.len.is_multiple_of(PIECE) {
            // The first chunk grows on demand: most indexes of a quiet master stay small.
            let room = if self.pieces.is_empty() { 0 } else { PIECE };
            self.pieces.push(Vec::with_capacity(room));
        }

        let piece = self.pieces.last_mut().expect("a chunk was pushed");
        piece.push(item);
        debug_assert!(piece.len() <= PIECE, "a chunk has at most PIECE items");
        self.len += 1;
    }

    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        self.pieces.get(at / PIECE)?.get(at % PIECE)
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.pieces.get_mut(at / PIECE)?.get_mut(at % PIECE)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.pieces.iter().flatten()
    }

    /// The items in a range, as slices of chunks: a search reads millions of them.
    pub(crate) fn range(&self, range: std::ops::Range<usize>) -> impl Iterator<Item = &T> {
        let pieces = range.start / PIECE..range.end.div_ceil(PIECE);
        let slices = pieces.filter_map(move |piece| {
            let first = piece * PIECE;
            let items = self.pieces.get(piece)?;
            let from = range.start.saturating_sub(first);
            let to = (range.end - first).min(items.len());
            items.get(from..to)
        });
        slices.flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_keep_their_indexes_across_chunks() {
        let mut arena = Arena::default();
        for n in 0..PIECE * 2 + 5 {
            arena.push(n);
        }
        *arena.get_mut(PIECE).unwrap() = 7;
        assert_eq!(
            (arena.get(PIECE - 1), arena.get(PIECE), arena.get(PIECE + 1)),
            (Some(&(PIECE - 1)), Some(&7), Some(&(PIECE + 1)))
        );
        assert_eq!(
            (arena.len(), arena.get(PIECE * 2 + 5), arena.iter().count()),
            (PIECE * 2 + 5, None, PIECE * 2 + 5)
        );
        assert_eq!(
            arena
                .range(PIECE - 1..PIECE + 1)
                .copied()
                .collect::<Vec<_>>(),
            [PIECE - 1, 7]
        );
        assert!(arena.pieces.iter().map(Vec::capacity).sum::<usize>() < PIECE * 3 + 1);
    }
}
