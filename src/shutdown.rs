//! Stopping: [`Drain`] asks everyone to stop and lets them wait for that.
//!
//! It only carries the wish. Who stops in which order, and who waits for whom, is `daemon::threads`.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A shared wish to stop. Clones are the same wish.
#[derive(Debug, Clone, Default)]
pub struct Drain(Arc<(Mutex<bool>, Condvar)>);

impl Drain {
    /// Nobody wants to stop yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks everyone to stop. Asking twice is asking once.
    pub fn stop(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    /// Has somebody asked?
    pub fn is_stopping(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps for `pause` or until somebody asks to stop; says whether somebody did.
    pub fn wait(&self, pause: Duration) -> bool {
        let asked = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (asked, _) = self
            .0
            .1
            .wait_timeout_while(asked, pause, |asked| !*asked)
            .unwrap_or_else(PoisonError::into_inner);
        *asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_when_somebody_asks_to_stop() {
        let drain = Drain::new();
        assert!(!drain.wait(Duration::from_millis(1)));
        drain.clone().stop();
        assert!(drain.wait(Duration::from_secs(3600)));
        assert!(drain.is_stopping());
    }
}
