//! Requests to the retainer's thread.
//!
//! # Invariant
//!
//! A requested round is made, however long the request waits: requests that come before it are one.
//! After the end is requested, the retainer starts no other round.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// What the retainer's thread is asked for.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// Lock order: no other lock is taken under it.
    signals: Mutex<Signals>,
    wakeup: Condvar,
}

#[derive(Debug, Default)]
struct Signals {
    round: bool,
    stop: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wakeup {
    Timeout,
    RoundRequested,
    Stop,
}

impl Rounds {
    pub(crate) fn request(&self) {
        self.signals.lock().round = true;
        self.wakeup.notify_all();
    }

    /// Ends the retainer.
    pub(crate) fn stop(&self) {
        self.signals.lock().stop = true;
        self.wakeup.notify_all();
    }

    /// Whether the retainer is to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.signals.lock().stop
    }

    /// Waits for at most `pause`, or until a round or the end is requested.
    pub(crate) fn wait(&self, pause: Duration) -> Wakeup {
        let mut signals = self.signals.lock();

        let idle = |signals: &mut Signals| !signals.round && !signals.stop;
        self.wakeup.wait_while_for(&mut signals, idle, pause);

        let requested = std::mem::take(&mut signals.round);
        match signals.stop {
            true => Wakeup::Stop,
            false if requested => Wakeup::RoundRequested,
            false => Wakeup::Timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_kept_until_the_retainer_waits_and_the_end_counts_most() {
        let (rounds, now) = (Rounds::default(), Duration::ZERO);
        assert_eq!(rounds.wait(now), Wakeup::Timeout);
        rounds.request();
        rounds.request();
        assert_eq!(rounds.wait(now), Wakeup::RoundRequested);
        assert_eq!(rounds.wait(now), Wakeup::Timeout, "both were one");

        rounds.request();
        rounds.stop();
        assert!(rounds.is_stopping());
        for _ in 0..2 {
            assert_eq!(rounds.wait(now), Wakeup::Stop);
        }
    }
}
