//! A subscriber's prefixes. Messages begin with the tag.

use std::collections::BTreeMap;

use crate::base::limits::ZMQ_PREFIXES_BYTES_MAX;

/// Memory of a prefix in addition to its bytes.
const OVERHEAD: usize = 32;

/// The prefixes of one subscriber. As in ZeroMQ, a prefix subscribed twice must be cancelled twice.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    all: BTreeMap<Vec<u8>, u32>,
    bytes: usize,
    /// The prefixes without a shorter matching one, sorted: at most one of them matches a message.
    roots: Vec<Vec<u8>>,
}

impl Subscriptions {
    /// Adds a prefix; false if the subscriber has too many.
    pub(super) fn add(&mut self, prefix: &[u8]) -> bool {
        if let Some(times) = self.all.get_mut(prefix) {
            *times = times.saturating_add(1);
            return true;
        }
        if self.bytes + prefix.len() + OVERHEAD > ZMQ_PREFIXES_BYTES_MAX {
            return false;
        }
        self.bytes += prefix.len() + OVERHEAD;
        self.all.insert(prefix.to_vec(), 1);
        self.find_roots();
        true
    }

    /// Cancels a prefix; no effect if it was not subscribed.
    pub(super) fn cancel(&mut self, prefix: &[u8]) {
        match self.all.get_mut(prefix) {
            None => {}
            Some(times) if *times > 1 => *times -= 1,
            Some(_) => {
                self.all.remove(prefix);
                self.bytes = self.bytes.saturating_sub(prefix.len() + OVERHEAD);
                self.find_roots();
            }
        }
    }

    /// Whether any prefix matches.
    pub(super) fn matches(&self, message: &[u8]) -> bool {
        let after = self.roots.partition_point(|root| root.as_slice() <= message);
        after.checked_sub(1).and_then(|at| self.roots.get(at)).is_some_and(|root| message.starts_with(root))
    }

    fn find_roots(&mut self) {
        self.roots.clear();
        for prefix in self.all.keys() {
            if self.roots.last().is_none_or(|root| !prefix.starts_with(root)) {
                self.roots.push(prefix.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_prefix_subscribed_twice_must_be_cancelled_twice() {
        let mut wanted = Subscriptions::default();
        assert!(!wanted.matches(b"salt/auth"), "no subscription at first");
        assert!(wanted.add(b"salt/") && wanted.add(b"salt/") && wanted.add(b"salt/job/"));
        wanted.cancel(b"salt/");
        assert!(wanted.matches(b"salt/auth"));
        wanted.cancel(b"salt/");
        assert!(!wanted.matches(b"salt/auth") && wanted.matches(b"salt/job/1/new"));
        wanted.cancel(b"never");
        assert!(wanted.add(b""));
        assert!(wanted.matches(b"") && wanted.matches(b"anything"));
    }

    #[test]
    fn the_bytes_of_subscriptions_are_limited() {
        let mut wanted = Subscriptions::default();
        let taken = (0..10_000_u32).take_while(|n| wanted.add(&n.to_be_bytes())).count();
        assert_eq!(taken, ZMQ_PREFIXES_BYTES_MAX / (OVERHEAD + 4));
        wanted.cancel(&0_u32.to_be_bytes());
        assert!(wanted.add(b"more"), "cancelling frees room");
    }

    proptest! {
        #[test]
        fn the_search_agrees_with_a_linear_scan(
            steps in prop::collection::vec((any::<bool>(), "[ab]{0,4}"), 0..40),
            messages in prop::collection::vec("[abc]{0,6}", 1..20),
        ) {
            let (mut wanted, mut plain) = (Subscriptions::default(), Vec::new());
            for (add, prefix) in &steps {
                if *add {
                    prop_assert!(wanted.add(prefix.as_bytes()));
                    plain.push(prefix);
                } else {
                    wanted.cancel(prefix.as_bytes());
                    if let Some(at) = plain.iter().position(|known| *known == prefix) {
                        plain.remove(at);
                    }
                }
                for message in &messages {
                    let found = plain.iter().any(|prefix| message.starts_with(prefix.as_str()));
                    prop_assert_eq!(wanted.matches(message.as_bytes()), found);
                }
            }
        }
    }
}
