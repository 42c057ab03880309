//! Hash tables whose keys are hashed once, by xxh3, or are hashes already.
//!
//! The standard hasher defends tables against chosen keys at 20 ns and more a key. Here such a defence, where it is
//! needed, is a random seed in the key itself (`store::dedupe`); the other tables are small or bounded.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use xxhash_rust::xxh3::xxh3_64;

/// A table with that hasher.
pub type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<FastHasher>>;

/// Numbers hash to themselves, mixed once; bytes by xxh3-64.
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
        // A multiplication by the golden ratio spreads low bits to the high ones that the table looks at.
        self.0 = (self.0.rotate_left(23) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }

    fn write_u128(&mut self, n: u128) {
        let [low, high] = [n & u128::from(u64::MAX), n >> 64].map(|n| u64::try_from(n).unwrap_or(0));
        self.write_u64(low);
        self.write_u64(high);
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_differ_in_a_bit_differ_in_their_hash() {
        let hash = |n: u128| {
            let mut hasher = FastHasher::default();
            hasher.write_u128(n);
            hasher.finish()
        };
        let mut seen: Vec<u64> = (0..128).map(|bit| hash(1 << bit)).chain([hash(0)]).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 129);
    }
}
