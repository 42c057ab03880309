//! Seats: how many connections there may be, and who gives way when all are taken.
//!
//! A peer that has not yet shown a good signature is a stranger. When no seat is free, the stranger that came first
//! goes, so that connections which only wait lock nobody out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use crate::limits::HTTPS_STRANGER_PATIENCE;

/// How long a stranger that was told to go may take for it.
const GOING: Duration = Duration::from_millis(500);

/// All seats.
pub(super) struct Seats {
    free: Arc<Semaphore>,
    all: usize,
    strangers: Mutex<Strangers>,
    taken: AtomicUsize,
}

#[derive(Default)]
struct Strangers {
    next: u64,
    waiting: BTreeMap<u64, Arc<Notify>>,
}

/// One taken seat; free again when dropped.
pub(super) struct Seat {
    seats: Arc<Seats>,
    number: u64,
    leave: Arc<Notify>,
    known: AtomicBool,
    _permit: OwnedSemaphorePermit,
}

impl Seats {
    /// So many.
    pub(super) fn new(all: usize) -> Arc<Self> {
        let (free, strangers) = (Arc::new(Semaphore::new(all)), Mutex::default());
        Arc::new(Self { free, all, strangers, taken: AtomicUsize::new(0) })
    }

    /// A seat for a stranger; `outwaited` is told if another one had to go for it.
    pub(super) async fn take(self: &Arc<Self>, outwaited: impl FnOnce()) -> Option<Seat> {
        let permit = if let Ok(permit) = self.free.clone().try_acquire_owned() {
            permit
        } else {
            let (_, first) = self.strangers().waiting.pop_first()?;
            first.notify_one();
            outwaited();
            timeout(GOING, self.free.clone().acquire_owned()).await.ok()?.ok()?
        };
        let leave = Arc::new(Notify::new());
        let mut strangers = self.strangers();
        let number = strangers.next;
        strangers.next += 1;
        strangers.waiting.insert(number, leave.clone());
        self.taken.fetch_add(1, Ordering::Relaxed);
        Some(Seat { seats: self.clone(), number, leave, known: AtomicBool::new(false), _permit: permit })
    }

    /// How many are taken.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Waits until all are free.
    pub(super) async fn all_free(&self, patience: Duration) {
        let all = u32::try_from(self.all).unwrap_or(u32::MAX);
        let _ = timeout(patience, self.free.acquire_many(all)).await;
    }

    fn strangers(&self) -> std::sync::MutexGuard<'_, Strangers> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Its peer has shown a good signature.
    pub(super) fn is_no_stranger(&self) {
        if !self.known.swap(true, Ordering::Relaxed) {
            self.seats.strangers().waiting.remove(&self.number);
        }
    }

    /// Ends when its peer, still a stranger, has to go: for another one, or because it took too long.
    pub(super) async fn must_go(&self) {
        tokio::select! {
            () = self.leave.notified() => {}
            () = sleep(HTTPS_STRANGER_PATIENCE) => {}
        }
        if self.known.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.strangers().waiting.remove(&self.number);
        self.seats.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
    }

    #[test]
    fn the_stranger_that_waits_longest_gives_way() {
        run(async {
            let seats = Seats::new(3);
            let nobody = || panic!("nobody has to go");
            let known = seats.take(nobody).await.unwrap();
            known.is_no_stranger();
            let first = seats.take(nobody).await.unwrap();
            let second = seats.take(nobody).await.unwrap();
            let going = tokio::spawn(async move {
                first.must_go().await;
                drop(first);
            });
            let mut went = false;
            let third = seats.take(|| went = true).await.unwrap();
            going.await.unwrap();
            assert!(went);
            assert_eq!(seats.taken(), 3);
            second.is_no_stranger();
            third.is_no_stranger();
            assert!(seats.take(nobody).await.is_none(), "all have shown who they are");
            drop(known);
            assert!(seats.take(nobody).await.is_some());
        });
    }
}
