//! String interning: each byte string is stored once and gets a number. The hash table finds it.
//!
//! The names of a segment ([`Names`]), and the strings of a block, whose table its builder keeps ([`intern`]).
//!
//! Names come from outside, so the hash has a secret seed against collision attacks.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::{StoreError, fits};
use saltcellar_model::secret_seed;

/// A hash with a seed of this process.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, secret_seed())
}

/// A hash table of numbers: open addressing, eight bytes per slot, at most three quarters full.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// Upper half of the hash, then the number plus one; 0 is free.
    slots: Vec<u64>,
    used: usize,
}

const HASH_BITS: u64 = 0xffff_ffff_0000_0000;

impl Table {
    /// The number with this hash for which `is` returns true.
    pub(crate) fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        // An empty table contains no slot at all, so the first access below ends the search.
        let mask = self.slots.len().wrapping_sub(1);
        let mut at = home(hash, mask);
        loop {
            let slot = *self.slots.get(at)?;
            if slot == 0 {
                return None;
            }
            // The upper half of the hash is in the slot, so few names are compared.
            if (slot ^ hash) & HASH_BITS == 0 {
                let number = number(slot);
                if is(number) {
                    return Some(number);
                }
            }
            at = (at + 1) & mask;
        }
    }

    /// Inserts a number that is not in the table and is not `u32::MAX`.
    pub(crate) fn insert(&mut self, hash: u64, number: u32) {
        assert!(number < u32::MAX, "a slot holds the number plus one");
        // Three quarters: beyond that, linear probing meets long runs.
        if (self.used + 1) * 4 > self.slots.len() * 3 {
            self.grow();
        }
        self.used += 1;
        assert!(self.used < self.slots.len(), "a search ends at a free slot");
        self.insert_slot((hash & HASH_BITS) | (u64::from(number) + 1));
    }

    fn insert_slot(&mut self, slot: u64) {
        let mask = self.slots.len().wrapping_sub(1);
        let mut at = home(slot, mask);
        while let Some(free) = self.slots.get_mut(at) {
            if *free == 0 {
                *free = slot;
                return;
            }
            at = (at + 1) & mask;
        }
    }

    /// Reads the slot where the number of a hash probably is: many of these wait for memory together, searches one after the other.
    #[inline]
    pub(crate) fn touch(&self, hash: u64) -> u64 {
        let mask = self.slots.len().wrapping_sub(1);
        self.slots.get(home(hash, mask)).copied().unwrap_or(0)
    }

    /// Empties the table and keeps its slots.
    pub(crate) fn clear(&mut self) {
        self.slots.fill(0);
        self.used = 0;
    }

    fn grow(&mut self) {
        let size = (self.slots.len() * 2).max(16);
        // Slots contain the upper half of their hash, so nothing is hashed again.
        let old = std::mem::replace(&mut self.slots, vec![0; size]);
        old.into_iter()
            .filter(|&slot| slot != 0)
            .for_each(|slot| self.insert_slot(slot));
    }
}

/// The preferred slot of a hash, from its upper half, which every slot contains.
fn home(hash: u64, mask: usize) -> usize {
    (hash >> 32) as usize & mask
}

fn number(slot: u64) -> u32 {
    u32::try_from(slot & !HASH_BITS).expect("the lower half") - 1
}

/// Byte strings, concatenated.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Texts {
    /// The end of each.
    pub(crate) ends: Vec<u32>,
    pub(crate) bytes: Vec<u8>,
}

impl Texts {
    #[inline]
    pub(crate) fn get(&self, number: u32) -> &[u8] {
        let end = |n: u32| {
            *self
                .ends
                .get(n as usize)
                .expect("a number of these strings") as usize
        };
        let from = number.checked_sub(1).map_or(0, end);
        self.bytes.get(from..end(number)).expect("ends ascend")
    }

    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.ends.len()).expect("numbers are 32 bits")
    }

    pub(crate) fn clear(&mut self) {
        self.ends.clear();
        self.bytes.clear();
    }

    /// Appends a string and returns its number. Fails if the strings exceed 4 GiB.
    fn push(&mut self, text: &[u8]) -> Result<u32, StoreError> {
        let number = self.len();
        let end = fits(
            self.bytes.len() + text.len(),
            "the names in an index or a block exceed 4 GiB",
        )?;
        // The greatest number stands for none elsewhere, and a slot holds the number plus one.
        if number == u32::MAX {
            return Err(StoreError::Broken("an index has over 4 G names"));
        }

        self.bytes.extend_from_slice(text);
        self.ends.push(end);
        Ok(number)
    }
}

/// The number of a string, which is added if it is new. Fails if the strings exceed 4 GiB.
#[inline]
pub(crate) fn intern(table: &mut Table, texts: &mut Texts, text: &[u8]) -> Result<u32, StoreError> {
    intern_hashed(table, texts, (text, hash(text)))
}

/// As [`intern`], with the hash of the text.
#[inline]
fn intern_hashed(
    table: &mut Table,
    texts: &mut Texts,
    (text, hash): (&[u8], u64),
) -> Result<u32, StoreError> {
    // The usual case: names repeat.
    if let Some(known) = table.find(hash, |n| texts.get(n) == text) {
        return Ok(known);
    }

    let number = texts.push(text)?;
    table.insert(hash, number);
    Ok(number)
}

/// Interned byte strings, numbered from 0 in order of insertion.
#[derive(Debug, Default)]
pub(crate) struct Names {
    table: Table,
    texts: Texts,
}

impl Names {
    /// The number of a name, which is added if new. Fails if the names exceed 4 GiB.
    #[inline]
    pub(crate) fn number(&mut self, name: &[u8]) -> Result<u32, StoreError> {
        intern(&mut self.table, &mut self.texts, name)
    }

    /// As [`Names::number`], with the hash of the name.
    #[inline]
    pub(crate) fn number_hashed(&mut self, name: &[u8], hash: u64) -> Result<u32, StoreError> {
        intern_hashed(&mut self.table, &mut self.texts, (name, hash))
    }

    /// As [`Table::touch`].
    #[inline]
    pub(crate) fn touch(&self, hash: u64) -> u64 {
        self.table.touch(hash)
    }

    pub(crate) fn find(&self, name: &[u8]) -> Option<u32> {
        self.table.find(hash(name), |n| self.get(n) == name)
    }

    pub(crate) fn get(&self, number: u32) -> &[u8] {
        self.texts.get(number)
    }

    pub(crate) fn len(&self) -> u32 {
        self.texts.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.texts.bytes.len()
    }

    pub(crate) fn memory(&self) -> usize {
        let texts = self.texts.bytes.capacity() + self.texts.ends.capacity() * 4;
        texts + self.table.slots.capacity() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_one_number() {
        let mut names = Names::default();
        assert!(names.find(b"web0").is_none());
        for round in 0..2 {
            for n in 0..5_000_u32 {
                assert_eq!(
                    names.number(format!("web{n}").as_bytes()).unwrap(),
                    n,
                    "round {round}"
                );
            }
        }
        assert_eq!((names.len(), names.get(4_711)), (5_000, &b"web4711"[..]));
        assert_eq!(
            (names.find(b"web4999"), names.find(b"web5000")),
            (Some(4_999), None)
        );
        assert_eq!(names.number(b"").unwrap(), 5_000);
        assert_eq!(names.get(5_000), b"");
    }
}
