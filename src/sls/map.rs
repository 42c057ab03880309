//! A mapping in the order in which its keys came, as Python's are.
//!
//! Nearly all mappings of events and of SLS files have a handful of keys. Those are looked through, which takes less than a hash and
//! lets a copy be one of a list; larger ones have an index.
//!
//! # Invariant
//!
//! Looking a key up in a mapping that somebody else made takes no more than [`SMALL`] comparisons, or one hash whose seed nobody
//! knows: the index hashes with SipHash.

use std::fmt;
use std::hash::{BuildHasher as _, Hash, RandomState};

use hashbrown::{Equivalent, HashTable};

/// Keys that are looked through; a mapping of more has an index.
const SMALL: usize = 16;

/// A mapping that keeps its order.
#[derive(Clone)]
pub struct OrderedMap<K, V> {
    entries: Vec<(K, V)>,
    index: Option<Box<Index>>,
}

/// The places of all keys by hash.
#[derive(Clone, Default)]
struct Index {
    places: HashTable<usize>,
    hasher: RandomState,
}

/// A key's place: taken or free.
pub enum Entry<'a, K, V> {
    /// There is such a key.
    Occupied(OccupiedEntry<'a, K, V>),
    /// There is none yet.
    Vacant(VacantEntry<'a, K, V>),
}

/// A key that is there.
pub struct OccupiedEntry<'a, K, V> {
    map: &'a mut OrderedMap<K, V>,
    place: usize,
}

/// A key that is not there.
pub struct VacantEntry<'a, K, V> {
    map: &'a mut OrderedMap<K, V>,
    key: K,
}

impl<K, V> OrderedMap<K, V> {
    /// Nothing.
    pub const fn new() -> Self {
        Self { entries: Vec::new(), index: None }
    }

    /// Nothing, with room for so many.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { entries: Vec::with_capacity(capacity), index: None }
    }

    /// How many pairs.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The pairs, in order.
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter(self.entries.iter())
    }

    /// The pairs, in order; values may be changed.
    pub fn iter_mut(&mut self) -> IterMut<'_, K, V> {
        IterMut(self.entries.iter_mut())
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> + ExactSizeIterator + Clone {
        self.entries.iter().map(|(key, _)| key)
    }

    /// The values, in order.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> + ExactSizeIterator + Clone {
        self.entries.iter().map(|(_, value)| value)
    }

    /// The keys, in order.
    pub fn into_keys(self) -> impl DoubleEndedIterator<Item = K> + ExactSizeIterator {
        self.entries.into_iter().map(|(key, _)| key)
    }

    /// The values, in order.
    pub fn into_values(self) -> impl DoubleEndedIterator<Item = V> + ExactSizeIterator {
        self.entries.into_iter().map(|(_, value)| value)
    }

    /// The first pair.
    pub fn first(&self) -> Option<(&K, &V)> {
        self.entries.first().map(|(key, value)| (key, value))
    }

    /// The pair at a place.
    pub fn get_index(&self, place: usize) -> Option<(&K, &V)> {
        self.entries.get(place).map(|(key, value)| (key, value))
    }

    /// Takes the last pair off.
    pub fn pop(&mut self) -> Option<(K, V)> {
        let place = self.entries.len().checked_sub(1)?;
        if let Some(index) = &mut self.index {
            index.places.retain(|other| *other != place);
        }
        self.entries.pop()
    }

    /// Takes all pairs out.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.index = None;
    }
}

impl<K: Hash + Eq, V> OrderedMap<K, V> {
    /// The place of a key.
    pub fn get_index_of<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<usize> {
        match &self.index {
            None => self.entries.iter().position(|(own, _)| key.equivalent(own)),
            Some(index) => {
                let is_it =
                    |place: &usize| self.entries.get(*place).is_some_and(|(own, _)| key.equivalent(own));
                index.places.find(index.hasher.hash_one(key), is_it).copied()
            }
        }
    }

    /// A key's pair, with its place.
    pub fn get_full<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<(usize, &K, &V)> {
        let place = self.get_index_of(key)?;
        self.entries.get(place).map(|(key, value)| (place, key, value))
    }

    /// A key's value.
    pub fn get<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<&V> {
        let place = self.get_index_of(key)?;
        self.entries.get(place).map(|(_, value)| value)
    }

    /// A key's value, to be changed.
    pub fn get_mut<Q: Hash + Equivalent<K> + ?Sized>(&mut self, key: &Q) -> Option<&mut V> {
        let place = self.get_index_of(key)?;
        self.entries.get_mut(place).map(|(_, value)| value)
    }

    /// Whether there is such a key.
    pub fn contains_key<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> bool {
        self.get_index_of(key).is_some()
    }

    /// Sets a key's value, and returns the one before. A key that is there keeps its place and its spelling.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        if let Some(there) = self.get_mut(&key) {
            return Some(std::mem::replace(there, value));
        }
        self.push(key, value);
        None
    }

    /// A key's place.
    pub fn entry(&mut self, key: K) -> Entry<'_, K, V> {
        match self.get_index_of(&key) {
            Some(place) => Entry::Occupied(OccupiedEntry { map: self, place }),
            None => Entry::Vacant(VacantEntry { map: self, key }),
        }
    }

    /// Takes a key out; those behind it move up.
    pub fn shift_remove<Q: Hash + Equivalent<K> + ?Sized>(&mut self, key: &Q) -> Option<V> {
        let place = self.get_index_of(key)?;
        self.shift_remove_index(place).map(|(_, value)| value)
    }

    /// Takes the pair at a place out; those behind it move up.
    pub fn shift_remove_index(&mut self, place: usize) -> Option<(K, V)> {
        if place >= self.entries.len() {
            return None;
        }
        if let Some(index) = &mut self.index {
            index.places.retain(|other| *other != place);
            index.places.iter_mut().filter(|other| **other > place).for_each(|other| *other -= 1);
        }
        Some(self.entries.remove(place))
    }

    /// Takes a pair to another place.
    pub fn move_index(&mut self, from: usize, to: usize) {
        if from >= self.entries.len() || to >= self.entries.len() {
            return;
        }
        let pair = self.entries.remove(from);
        self.entries.insert(to, pair);
        self.index_anew();
    }

    /// Keeps the pairs that are wanted.
    pub fn retain(&mut self, mut wanted: impl FnMut(&K, &mut V) -> bool) {
        self.entries.retain_mut(|(key, value)| wanted(key, value));
        self.index_anew();
    }

    /// Behind what is there. No such key is there.
    fn push(&mut self, key: K, value: V) {
        let place = self.entries.len();
        if let Some(index) = &mut self.index {
            let Index { places, hasher } = &mut **index;
            let entries = &self.entries;
            let hash_of = |place: &usize| entries.get(*place).map_or(0, |(key, _)| hasher.hash_one(key));
            places.insert_unique(hasher.hash_one(&key), place, hash_of);
        }
        self.entries.push((key, value));
        if self.index.is_none() && self.entries.len() > SMALL {
            self.index_anew();
        }
    }

    fn index_anew(&mut self) {
        if self.entries.len() <= SMALL {
            self.index = None;
            return;
        }
        let mut index = self.index.take().unwrap_or_default();
        let Index { places, hasher } = &mut *index;
        places.clear();
        let entries = &self.entries;
        let hash_of = |place: &usize| entries.get(*place).map_or(0, |(key, _)| hasher.hash_one(key));
        places.reserve(entries.len(), hash_of);
        for (place, (key, _)) in entries.iter().enumerate() {
            places.insert_unique(hasher.hash_one(key), place, hash_of);
        }
        self.index = Some(index);
    }
}

impl<'a, K: Hash + Eq, V> Entry<'a, K, V> {
    /// Its value, which is this one if there was none.
    pub fn or_insert(self, value: V) -> &'a mut V {
        self.or_insert_with(|| value)
    }

    /// Its value, which is made if there was none.
    pub fn or_insert_with(self, make: impl FnOnce() -> V) -> &'a mut V {
        match self {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => place.insert(make()),
        }
    }

    /// Its value, which is the usual one if there was none.
    pub fn or_default(self) -> &'a mut V
    where
        V: Default,
    {
        self.or_insert_with(V::default)
    }
}

#[expect(clippy::indexing_slicing, reason = "the place was found in these very entries")]
impl<'a, K, V> OccupiedEntry<'a, K, V> {
    /// The key as it is spelled there.
    pub fn key(&self) -> &K {
        &self.map.entries[self.place].0
    }

    /// The value.
    pub fn into_mut(self) -> &'a mut V {
        &mut self.map.entries[self.place].1
    }
}

impl<'a, K: Hash + Eq, V> VacantEntry<'a, K, V> {
    /// Sets the value.
    pub fn insert(self, value: V) -> &'a mut V {
        let place = self.map.len();
        self.map.push(self.key, value);
        OccupiedEntry { map: self.map, place }.into_mut()
    }
}

impl<K, V> Default for OrderedMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for OrderedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// The order does not count, as in Python.
impl<K: Hash + Eq, V: PartialEq> PartialEq for OrderedMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().all(|(key, value)| other.get(key) == Some(value))
    }
}

impl<K: Hash + Eq, V: Eq> Eq for OrderedMap<K, V> {}

impl<K: Hash + Eq, V> Extend<(K, V)> for OrderedMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, pairs: I) {
        let pairs = pairs.into_iter();
        if self.is_empty() {
            self.entries.reserve(pairs.size_hint().0);
        }
        for (key, value) in pairs {
            self.insert(key, value);
        }
    }
}

impl<K: Hash + Eq, V> FromIterator<(K, V)> for OrderedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut map = Self::new();
        map.extend(pairs);
        map
    }
}

/// The pairs of a mapping, in order.
pub struct Iter<'a, K, V>(std::slice::Iter<'a, (K, V)>);

/// The pairs of a mapping, in order; values may be changed.
pub struct IterMut<'a, K, V>(std::slice::IterMut<'a, (K, V)>);

impl<K, V> Clone for Iter<'_, K, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(key, value)| (key, value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<K, V> DoubleEndedIterator for Iter<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(|(key, value)| (key, value))
    }
}

impl<K, V> ExactSizeIterator for Iter<'_, K, V> {}

impl<'a, K, V> Iterator for IterMut<'a, K, V> {
    type Item = (&'a K, &'a mut V);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(key, value)| (&*key, value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<K, V> ExactSizeIterator for IterMut<'_, K, V> {}

impl<'a, K, V> IntoIterator for &'a OrderedMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

impl<'a, K, V> IntoIterator for &'a mut OrderedMap<K, V> {
    type Item = (&'a K, &'a mut V);
    type IntoIter = IterMut<'a, K, V>;

    fn into_iter(self) -> IterMut<'a, K, V> {
        self.iter_mut()
    }
}

impl<K, V> IntoIterator for OrderedMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

impl<K: Hash + Eq, V, Q: Hash + Equivalent<K> + ?Sized> std::ops::Index<&Q> for OrderedMap<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("there is such a key")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Act {
        Insert(u8, u32),
        Entry(u8, u32),
        Remove(u8),
        RemoveAt(usize),
        Move(usize, usize),
        Pop,
        RetainOdd,
        Clear,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            20 => (any::<u8>(), any::<u32>()).prop_map(|(k, v)| Act::Insert(k % 48, v)),
            4 => (any::<u8>(), any::<u32>()).prop_map(|(k, v)| Act::Entry(k % 48, v)),
            4 => any::<u8>().prop_map(|k| Act::Remove(k % 48)),
            2 => (0..40_usize).prop_map(Act::RemoveAt),
            2 => (0..40_usize, 0..40_usize).prop_map(|(a, b)| Act::Move(a, b)),
            2 => Just(Act::Pop),
            1 => Just(Act::RetainOdd),
            1 => Just(Act::Clear),
        ]
    }

    proptest! {
        /// The model is a list of pairs.
        #[test]
        fn it_does_as_a_list_of_pairs_does(acts in prop::collection::vec(act(), 0..120)) {
            let mut map = OrderedMap::new();
            let mut model: Vec<(u8, u32)> = Vec::new();
            for act in acts {
                let place = |model: &[(u8, u32)], key: u8| model.iter().position(|(own, _)| *own == key);
                match act {
                    Act::Insert(key, value) => {
                        let old = map.insert(key, value);
                        match place(&model, key) {
                            Some(at) => prop_assert_eq!(old, Some(std::mem::replace(&mut model[at].1, value))),
                            None => model.push((key, value)),
                        }
                    }
                    Act::Entry(key, value) => {
                        let got = *map.entry(key).or_insert(value);
                        if place(&model, key).is_none() {
                            model.push((key, value));
                        }
                        prop_assert_eq!(got, model[place(&model, key).unwrap()].1);
                    }
                    Act::Remove(key) => {
                        let gone = place(&model, key).map(|at| model.remove(at).1);
                        prop_assert_eq!(map.shift_remove(&key), gone);
                    }
                    Act::RemoveAt(at) => {
                        let gone = (at < model.len()).then(|| model.remove(at));
                        prop_assert_eq!(map.shift_remove_index(at), gone);
                    }
                    Act::Move(from, to) => {
                        if from < model.len() && to < model.len() {
                            let pair = model.remove(from);
                            model.insert(to, pair);
                        }
                        map.move_index(from, to);
                    }
                    Act::Pop => prop_assert_eq!(map.pop(), model.pop()),
                    Act::RetainOdd => {
                        map.retain(|key, _| key % 2 == 1);
                        model.retain(|(key, _)| key % 2 == 1);
                    }
                    Act::Clear => {
                        map.clear();
                        model.clear();
                    }
                }
                prop_assert_eq!(map.iter().map(|(k, v)| (*k, *v)).collect::<Vec<_>>(), model.clone());
                for key in 0..48 {
                    prop_assert_eq!(map.get_index_of(&key), place(&model, key));
                }
            }
            let mut turned: Vec<_> = model.clone();
            turned.reverse();
            prop_assert_eq!(&turned.into_iter().collect::<OrderedMap<_, _>>(), &map);
            prop_assert_eq!(map.clone().into_iter().collect::<Vec<_>>(), model);
        }
    }
}
