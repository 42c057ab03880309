//! What all threads of one name share. A reload replaces the thread of an engine by another one of
//! the same name while the old one still works, and both need the same lock and the same file.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// One value per name, as long as anyone uses it.
#[derive(Debug)]
pub(super) struct PerName<T> {
    /// Lock order: after the running engines; `make` takes no other lock under it.
    values: Mutex<HashMap<String, Weak<T>>>,
}

impl<T> Default for PerName<T> {
    fn default() -> Self {
        Self {
            values: Mutex::default(),
        }
    }
}

impl<T> PerName<T> {
    /// The value of a name. It is made if nobody uses one; `make` runs under the lock, because two
    /// callers must never make two.
    pub(super) fn get<E>(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let mut values = self.values.lock();
        if let Some(used) = values.get(name).and_then(Weak::upgrade) {
            return Ok(used);
        }

        // Names that are not used any more must not stay for the life of the daemon.
        values.retain(|_, value| value.strong_count() > 0);
        let made = Arc::new(make()?);
        values.insert(name.to_owned(), Arc::downgrade(&made));
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_shared_while_it_is_used_and_made_anew_afterwards() {
        let values = PerName::<u32>::default();
        let get = |name, value| values.get(name, || Ok::<_, ()>(value)).unwrap();
        let first = get("a", 1);
        assert_eq!((*get("a", 2), *get("b", 3)), (1, 3));
        drop(first);
        assert_eq!(*get("a", 4), 4);
        assert_eq!(values.get("c", || Err("no")), Err("no"));
        assert!(values.values.lock().len() <= 1, "unused names are gone");
    }
}
