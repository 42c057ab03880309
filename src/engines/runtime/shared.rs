//! What outlives the thread of a sink: its turn, its dead letters, and which of them are redelivered.

use std::collections::HashSet;

use parking_lot::Mutex;

use crate::engines::dead_letters::DeadLetters;

/// What the threads of one sink's name share, and calls about it.
#[derive(Debug)]
pub(super) struct Shared {
    /// Held by the thread that works. Lock order: before all that a delivery takes, because it is
    /// held meanwhile; never taken under another lock.
    pub(super) turn: Mutex<()>,
    pub(super) dead_letters: DeadLetters,
    /// Ids of the dead letters to redeliver. Kept here and not with the thread's state, because a
    /// reload must not forget them. Lock order: no other lock is taken under it.
    retries: Mutex<HashSet<String>>,
}

impl Shared {
    pub(super) fn new(dead_letters: DeadLetters) -> Self {
        Self {
            turn: Mutex::new(()),
            dead_letters,
            retries: Mutex::default(),
        }
    }

    pub(super) fn add_retries(&self, ids: impl IntoIterator<Item = String>) {
        self.retries.lock().extend(ids);
    }

    pub(super) fn take_retries(&self) -> HashSet<String> {
        std::mem::take(&mut self.retries.lock())
    }
}
