//! A list that grows in pieces: nothing is copied when it does, and next to nothing lies idle.

/// Items of a piece.
const PIECE: usize = 1 << 14;

/// A list of small items, found by number.
#[derive(Debug)]
pub struct Arena<T> {
    pieces: Vec<Vec<T>>,
    len: usize,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { pieces: Vec::new(), len: 0 }
    }
}

impl<T> Arena<T> {
    /// How many items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// None?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends an item.
    pub fn push(&mut self, item: T) {
        if self.len.is_multiple_of(PIECE) {
            // The first piece grows: most indexes of a quiet master stay small.
            let room = if self.pieces.is_empty() { 0 } else { PIECE };
            self.pieces.push(Vec::with_capacity(room));
        }
        let piece = self.pieces.last_mut().expect("a piece with room");
        piece.push(item);
        debug_assert!(piece.len() <= PIECE, "pieces are full but for the last one");
        self.len += 1;
    }

    /// The item with a number.
    pub fn get(&self, at: usize) -> Option<&T> {
        self.pieces.get(at / PIECE)?.get(at % PIECE)
    }

    /// The item with a number, to change it.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.pieces.get_mut(at / PIECE)?.get_mut(at % PIECE)
    }

    /// All items in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.pieces.iter().flatten()
    }

    /// The items of a range of numbers.
    pub fn range(&self, range: std::ops::Range<usize>) -> impl Iterator<Item = &T> {
        range.filter_map(|at| self.get(at))
    }

    /// Bytes in memory.
    pub fn memory(&self) -> usize {
        self.pieces.iter().map(|piece| piece.capacity() * size_of::<T>()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_keep_their_numbers_over_pieces() {
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
        assert_eq!(arena.range(PIECE - 1..PIECE + 1).copied().collect::<Vec<_>>(), [PIECE - 1, 7]);
        assert!(arena.memory() < (PIECE * 3 + 1) * size_of::<usize>());
    }
}
