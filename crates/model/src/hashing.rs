//! Hash tables with xxh3 as hash function, or with keys that are already hashes.
//!
//! The standard hasher protects against chosen keys at a cost of at least 20 ns a key. Where needed, this program includes
//! a random seed in the key itself (`store::dedupe`); its other tables are small or bounded.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, Hasher};

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// A hash table with [`FastHasher`].
pub type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<FastHasher>>;

/// Hashes numbers by one multiplication, and bytes by xxh3-64.
#[derive(Debug, Default, Clone, Copy)]
pub struct FastHasher(u64);

impl Hasher for FastHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.write_u64(xxh3_64(bytes));
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        // Multiplication by the golden ratio spreads low bits to the high bits that the table uses.
        self.0 = (self.0.rotate_left(23) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }

    fn write_u128(&mut self, n: u128) {
        let [low, high] =
            [n & u128::from(u64::MAX), n >> 64].map(|n| u64::try_from(n).expect("64 bits"));
        self.write_u64(low);
        self.write_u64(high);
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
}

/// A random number, the same for the lifetime of the process.
pub fn secret_seed() -> u64 {
    static SEED: std::sync::LazyLock<u64> =
        std::sync::LazyLock::new(|| std::hash::RandomState::new().build_hasher().finish());
    *SEED
}

/// A hash of several parts, each seeded by the previous parts: boundaries matter.
pub fn chained<const N: usize>(seed: u64, pieces: [&[u8]; N]) -> u64 {
    pieces
        .iter()
        .fold(seed, |hash, piece| xxh3_64_with_seed(piece, hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_differ_in_one_bit_differ_in_their_hash() {
        let hash = |n: u128| {
            let mut hasher = FastHasher::default();
            hasher.write_u128(n);
            hasher.finish()
        };
        let mut seen: Vec<u64> = (0..128)
            .map(|bit| hash(1 << bit))
            .chain([hash(0)])
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 129);
    }
}
