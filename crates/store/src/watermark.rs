//! The durable watermark, and those that wait for it.
//!
//! # Invariant
//!
//! The watermark never decreases, and all entries below it are on disk and readable. A reader that
//! waits for an entry is woken by the commit that makes it durable. Without waiting readers a commit
//! pays one atomic load for that.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use saltcellar_base::clock::Clock;
use saltcellar_base::limits::FOLLOW_LINGER;
use saltcellar_model::SeqNo;

/// The position below which all entries are durable.
#[derive(Debug)]
pub(crate) struct Watermark {
    durable: AtomicU64,
    /// The content of `SEQUENCE` at the start: no number from there on was assigned before. The
    /// greatest number if it is unknown.
    reserved_at_start: SeqNo,
    clock: Clock,
    waiting: AtomicUsize,
    /// Guards nothing but the moment between a look and a wait. Lock order: no other lock is taken
    /// under it.
    lock: Mutex<()>,
    advanced: Condvar,
    /// Wakes tasks.
    tasks: Notify,
    /// When a task last stopped waiting, in microseconds of the monotonic clock.
    waited: AtomicU64,
}

impl Watermark {
    pub(crate) fn new(reserved_at_start: SeqNo, clock: Clock) -> Self {
        Self {
            durable: AtomicU64::new(SeqNo::FIRST.0),
            reserved_at_start,
            clock,
            waiting: AtomicUsize::new(0),
            lock: Mutex::default(),
            advanced: Condvar::new(),
            tasks: Notify::new(),
            waited: AtomicU64::new(0),
        }
    }

    /// All entries below are durable and readable.
    pub(crate) fn get(&self) -> SeqNo {
        SeqNo(self.durable.load(Ordering::Acquire))
    }

    pub(crate) fn reserved_at_start(&self) -> SeqNo {
        self.reserved_at_start
    }

    /// Numbers of stored entries are below. A finished segment contains only durable entries.
    pub(crate) fn believed_below(&self) -> SeqNo {
        // Until the first commit the watermark may be lower than what the logs have.
        self.reserved_at_start.max(self.get())
    }

    /// Called once the entries below `next` are durable and in the index: a reader that waits for
    /// the position finds its entries.
    pub(crate) fn advance(&self, next: SeqNo) {
        let before = self.durable.swap(next.0, Ordering::AcqRel);
        assert!(before <= next.0, "the durable watermark never decreases");
        self.wake();
    }

    /// Lets all that wait look whether their wait is over.
    pub(crate) fn wake(&self) {
        // A follower registers before it reads the durable position, so one of the two threads sees
        // the other's change.
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.has_waiting() {
            // Taken and released: a follower that has just looked is then certainly waiting.
            drop(self.lock.lock());
            self.advanced.notify_all();
            self.tasks.notify_waiters();
        }
    }

    /// Waits until the entry `seq` is durable or `is_over`, at most for `timeout`.
    pub(crate) fn wait(&self, seq: SeqNo, timeout: Duration, is_over: impl Fn() -> bool) {
        // Registered before the position is read; see `wake`.
        let _waiting = self.register();
        let is_there = || self.get() > seq || is_over();
        self.advanced
            .wait_while_for(&mut self.lock.lock(), |()| !is_there(), timeout);
    }

    /// As [`Watermark::wait`], for a task and without a timeout. Dropping it ends the wait.
    pub(crate) async fn wait_in_task(&self, seq: SeqNo) {
        {
            let _waiting = self.register();
            loop {
                let mut advanced = pin!(self.tasks.notified());
                // From here on a notification is not missed.
                advanced.as_mut().enable();
                if self.get() > seq {
                    break;
                }
                advanced.await;
            }
        }

        let now = u64::try_from(self.clock.monotonic().as_micros()).unwrap_or(u64::MAX);
        self.waited.store(now, Ordering::Relaxed);
    }

    /// Whether a follower waits for new entries, or did so recently.
    pub(crate) fn is_followed(&self) -> bool {
        let waited = Duration::from_micros(self.waited.load(Ordering::Relaxed));
        self.has_waiting()
            || !waited.is_zero() && self.clock.monotonic().saturating_sub(waited) < FOLLOW_LINGER
    }

    fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    fn register(&self) -> Waiting<'_> {
        // The fence pairs with the fence in `wake`.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        Waiting(self)
    }
}

/// A registered waiter; dropping it ends the registration.
struct Waiting<'a>(&'a Watermark);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use saltcellar_base::clock::Micros;

    fn watermark(reserved: u64) -> Arc<Watermark> {
        let clock = Clock::manual(Micros(1));
        Arc::new(Watermark::new(SeqNo(reserved), clock))
    }

    #[test]
    fn a_waiting_reader_is_woken_by_the_entry_it_waits_for() {
        let watermark = watermark(1);
        let waits = watermark.clone();
        let waiting = std::thread::Builder::new().spawn(move || {
            waits.wait(SeqNo(5), Duration::from_secs(3600), || false);
            waits.get()
        });
        watermark.advance(SeqNo(3));
        watermark.advance(SeqNo(6));
        assert_eq!(waiting.unwrap().join().unwrap(), SeqNo(6));
    }

    #[test]
    fn a_wait_that_is_over_ends_when_it_is_woken() {
        let watermark = watermark(1);
        watermark.wait(SeqNo(5), Duration::from_secs(3600), || true);
        assert_eq!(watermark.get(), SeqNo::FIRST);
        assert!(!watermark.is_followed(), "its registration has ended");
    }

    #[test]
    fn numbers_that_were_reserved_are_believed_before_the_first_commit() {
        let watermark = watermark(100);
        assert_eq!(watermark.believed_below(), SeqNo(100));
        watermark.advance(SeqNo(150));
        assert_eq!(watermark.believed_below(), SeqNo(150));
    }

    #[test]
    #[should_panic(expected = "never decreases")]
    fn a_position_that_was_durable_stays_durable() {
        let watermark = watermark(1);
        watermark.advance(SeqNo(9));
        watermark.advance(SeqNo(8));
    }
}
