//! A bounded map of jobs.

use std::collections::{HashMap, VecDeque};

/// Values by jid. Beyond the limit the jid that was added first is dropped.
#[derive(Debug)]
pub(super) struct LatestByJid<T, const MAX: usize> {
    values: HashMap<String, T>,
    order: VecDeque<String>,
}

impl<T, const MAX: usize> Default for LatestByJid<T, MAX> {
    fn default() -> Self {
        Self {
            values: HashMap::new(),
            order: VecDeque::new(),
        }
    }
}

impl<T, const MAX: usize> LatestByJid<T, MAX> {
    pub(super) fn get(&self, jid: &str) -> Option<&T> {
        self.values.get(jid)
    }

    pub(super) fn insert(&mut self, jid: &str, value: T) {
        if self.values.insert(jid.to_owned(), value).is_none() {
            self.order.push_back(jid.to_owned());
        }
        if self.order.len() > MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.values.remove(&oldest);
        }
    }

    /// Removes a value. Its jid keeps its place in the order until it is the oldest.
    pub(super) fn remove(&mut self, jid: &str) -> Option<T> {
        self.values.remove(jid)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> (usize, usize) {
        (self.values.len(), self.order.len())
    }
}
