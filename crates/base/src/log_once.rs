//! A limit of lines of the log about what peers or a broken disk can cause by the thousand.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;

/// Permits one line of each kind in an interval. What happened in between is in a counter.
#[derive(Debug)]
pub struct LogOnce<K = ()> {
    interval: Duration,
    /// When each kind was logged last, by the monotonic clock. Lock order: no other lock is taken
    /// under it.
    logged: Mutex<HashMap<K, Duration>>,
}

impl<K: Eq + Hash> LogOnce<K> {
    /// At most one line of a kind in this time.
    pub fn every(interval: Duration) -> Self {
        Self {
            interval,
            logged: Mutex::default(),
        }
    }

    /// True if a line of this kind is to be logged; then the next one is after the interval. No lock
    /// is held while the caller writes it.
    pub fn is_due(&self, kind: K, now: Duration) -> bool {
        let mut logged = self.logged.lock();
        let is_due = logged
            .get(&kind)
            .is_none_or(|last| now.saturating_sub(*last) >= self.interval);
        if is_due {
            logged.insert(kind, now);
        }
        is_due
    }

    /// Makes the next line of each kind due, because what was logged is over.
    pub fn reset(&self) {
        self.logged.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_one_line_in_an_interval() {
        let second = Duration::from_secs(1);
        let log = LogOnce::every(10 * second);
        let start = 100 * second;
        assert!(log.is_due("a", start));
        assert!(log.is_due("b", start));
        assert!(!log.is_due("a", start + 9 * second));
        assert!(log.is_due("a", start + 10 * second), "by the last line");
        assert!(!log.is_due("a", start + 19 * second));

        log.reset();
        assert!(log.is_due("a", start + 19 * second));
    }
}
