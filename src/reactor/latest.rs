//! A bounded map of jobs.

use std::collections::{BTreeMap, HashMap};

/// Values by jid. Beyond the limit the jid that was added first is dropped.
#[derive(Debug)]
pub(super) struct LatestByJid<T, const MAX: usize> {
    /// Each with its number in `order`.
    values: HashMap<String, (u64, T)>,
    /// The same jids, in the order in which they were added.
    order: BTreeMap<u64, String>,
    next: u64,
}

impl<T, const MAX: usize> Default for LatestByJid<T, MAX> {
    fn default() -> Self {
        Self {
            values: HashMap::new(),
            order: BTreeMap::new(),
            next: 0,
        }
    }
}

impl<T, const MAX: usize> LatestByJid<T, MAX> {
    pub(super) fn get(&self, jid: &str) -> Option<&T> {
        self.values.get(jid).map(|(_, value)| value)
    }

    pub(super) fn insert(&mut self, jid: &str, value: T) {
        // A new value of a known jid keeps its place.
        if let Some((_, known)) = self.values.get_mut(jid) {
            *known = value;
            return;
        }

        self.values.insert(jid.to_owned(), (self.next, value));
        self.order.insert(self.next, jid.to_owned());
        self.next += 1;

        if self.order.len() > MAX
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.values.remove(&oldest);
        }
    }

    /// Removes a value with its jid, which is new when it is added again.
    pub(super) fn remove(&mut self, jid: &str) -> Option<T> {
        let (place, value) = self.values.remove(jid)?;
        self.order.remove(&place);
        Some(value)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> (usize, usize) {
        (self.values.len(), self.order.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jid_that_is_removed_and_added_again_is_the_latest() {
        let mut latest = LatestByJid::<u32, 2>::default();
        latest.insert("a", 1);
        latest.insert("b", 2);
        assert_eq!((latest.remove("a"), latest.remove("a")), (Some(1), None));
        latest.insert("a", 3);
        assert_eq!(latest.len(), (2, 2));
        latest.insert("c", 4);
        let found = ["a", "b", "c"].map(|jid| latest.get(jid).copied());
        assert_eq!(found, [Some(3), None, Some(4)]);
        latest.insert("a", 5);
        latest.insert("d", 6);
        assert_eq!(
            latest.get("a"),
            None,
            "a new value keeps the place of the jid"
        );
    }
}
