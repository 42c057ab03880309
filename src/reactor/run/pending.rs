//! The pending tasks: the scheduler with its lock, and the signals of the threads that wait for it.
//!
//! # Invariant
//!
//! After each change of the scheduler that can give a worker something to do, a worker is woken.
//! The scheduler and the status agree on whether the master is reachable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::scheduler::Scheduler;
use super::scheduler::queues::QueueItem;
use super::scheduler::task::{RuleSet, Task};
use crate::base::clock::{Clock, Micros};
use crate::base::limits::STOP_CHECK;
use crate::model::ReactorSettings;
use crate::reactor::stored::SkipReason;

pub(super) struct Pending {
    /// Lock order: before the lease and the list of the recorder; no other lock is taken under it.
    scheduler: Mutex<Scheduler>,
    /// Signals workers that there is work.
    change: Condvar,
    /// Signals the follower that there is room.
    room: Condvar,
    /// Changed under the lock of the scheduler only, which has a second flag.
    master_unreachable: AtomicBool,
    clock: Clock,
}

impl Pending {
    pub(super) fn new(settings: Arc<ReactorSettings>, clock: Clock) -> Self {
        let mut scheduler = Scheduler::default();
        scheduler.configure(settings);

        Self {
            scheduler: Mutex::new(scheduler),
            change: Condvar::new(),
            room: Condvar::new(),
            master_unreachable: AtomicBool::new(false),
            clock,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Scheduler> {
        self.scheduler.lock()
    }

    /// Applies new settings, even to pending tasks.
    pub(super) fn configure(&self, settings: Arc<ReactorSettings>) {
        self.lock().configure(settings);
        self.change.notify_all();
    }

    /// Queues a task; see [`Scheduler::offer`].
    pub(super) fn offer(&self, task: Task) -> Option<(RuleSet, QueueItem, SkipReason)> {
        let skipped = self.lock().offer(task, self.clock.now());
        self.change.notify_one();
        skipped
    }

    /// Queues a task past the throttles.
    pub(super) fn put(&self, task: Task) {
        self.lock().put(task);
        self.change.notify_one();
    }

    /// Drops all pending events; see [`Scheduler::release_all`].
    pub(super) fn release_all(&self) {
        self.lock().release_all();
        self.room.notify_all();
    }

    /// Wakes one worker.
    pub(super) fn wake(&self) {
        self.change.notify_one();
    }

    /// Wakes all workers.
    pub(super) fn wake_all(&self) {
        self.change.notify_all();
    }

    /// Tells the follower that there may be room.
    pub(super) fn has_made_room(&self) {
        self.room.notify_one();
    }

    /// Wakes all threads, because the daemon stops.
    pub(super) fn stop(&self) {
        self.change.notify_all();
        self.room.notify_all();
    }

    /// Waits for a change of the scheduler, at most until `until` or the next check for a stop.
    pub(super) fn wait_for_change(
        &self,
        scheduler: &mut MutexGuard<'_, Scheduler>,
        until: Option<Micros>,
    ) {
        // At least 200 us: a time that has just passed must not cause a busy loop.
        let micros = until
            .map_or(i64::MAX, |at| at.0 - self.clock.now().0)
            .max(200);

        let pause = Duration::from_micros(u64::try_from(micros).unwrap_or(0)).min(STOP_CHECK);
        self.change.wait_for(scheduler, pause);
    }

    /// Waits for room, at most until the next check for a stop.
    pub(super) fn wait_for_room(&self, scheduler: &mut MutexGuard<'_, Scheduler>) {
        self.room.wait_for(scheduler, STOP_CHECK);
    }

    pub(super) fn is_master_unreachable(&self) -> bool {
        self.master_unreachable.load(Ordering::Relaxed)
    }

    /// Notes whether the master is reachable; logs a change with its reason.
    pub(super) fn set_master_unreachable(&self, away: bool, why: &str) {
        // Most calls change nothing and need no lock.
        if self.is_master_unreachable() == away {
            return;
        }

        {
            // Under the lock of the scheduler: two threads must not leave the two flags different.
            let mut scheduler = self.lock();
            // Only the thread that changes the flag logs, and wakes the others.
            if self.master_unreachable.swap(away, Ordering::Relaxed) == away {
                return;
            }
            scheduler.set_master_unreachable(away);
        }

        if away {
            tracing::warn!(why, "master unreachable, reactions wait until it responds");
        } else {
            tracing::info!("master reachable, reactions continue");
            self.wake_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheduler_and_the_status_agree_on_whether_the_master_is_reachable() {
        let pending = Pending::new(Arc::default(), Clock::manual(Micros(0)));
        let mut differing = 0;
        for _ in 0..3_000 {
            let both = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                for away in [true, false] {
                    let (both, pending) = (&both, &pending);
                    scope.spawn(move || {
                        both.wait();
                        pending.set_master_unreachable(away, "down");
                    });
                }
            });
            let of_status = pending.is_master_unreachable();
            differing += usize::from(pending.lock().master_unreachable() != of_status);
        }
        assert_eq!(differing, 0);
    }
}
