//! Shutdown: [`Drain`] carries the request to stop.
//!
//! `daemon` defines the order in which threads stop.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// A shared request to stop. Clones share one state. Lock order: no other lock is taken under it.
#[derive(Debug, Clone, Default)]
pub struct Drain(Arc<(Mutex<bool>, Condvar)>);

impl Drain {
    /// A state without a request.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests all threads to stop. Idempotent.
    pub fn stop(&self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }

    /// Whether a stop was requested.
    pub fn is_stopping(&self) -> bool {
        *self.0.0.lock()
    }

    /// Sleeps for `pause` or until a stop is requested; returns whether it was.
    pub fn wait(&self, pause: Duration) -> bool {
        let mut asked = self.0.0.lock();
        self.0.1.wait_while_for(&mut asked, |asked| !*asked, pause);
        *asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_when_a_stop_is_requested() {
        let drain = Drain::new();
        assert!(!drain.wait(Duration::from_millis(1)));
        drain.clone().stop();
        assert!(drain.wait(Duration::from_secs(3600)));
        assert!(drain.is_stopping());
    }
}
