//! The work of one request: whether anybody still waits for it, and how much processor time it may take.
//!
//! Each request runs in a [`Work`]. Long loops in lower layers, such as a search through blocks,
//! call [`check`], and end with its error. Threads outside of a [`Work`], such as writer and
//! consumer threads, are never ended.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Why a work ends before it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// The client has disconnected.
    #[error("the client has disconnected, the search was abandoned")]
    Abandoned,
    /// It took more processor time than a request may take.
    #[error(
        "the request takes more than {0} s of processor time: narrow it, for example by a time"
    )]
    TooLong(u64),
}

/// The work of one request. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Work {
    abandoned: Arc<AtomicBool>,
    processor_time: Option<Duration>,
}

/// Abandons the work when it is dropped, together with the future that waits for it.
pub struct AbandonOnDrop(Work);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.abandoned.store(true, Ordering::Relaxed);
    }
}

/// Work on its thread.
struct Running {
    work: Work,
    limit: Option<Limit>,
}

/// The end of a work's processor time.
struct Limit {
    /// The processor time of the thread at which the work has to end.
    until: Duration,
    /// The limit cannot be reached before: a thread uses no more processor time than passes. Reading the thread's clock is a
    /// system call, so it is not read for each block.
    not_before: Instant,
}

impl Limit {
    fn new(time: Duration) -> Self {
        Self {
            until: thread_time() + time,
            not_before: Instant::now() + time,
        }
    }

    fn is_over(&mut self) -> bool {
        let now = Instant::now();
        if now < self.not_before {
            return false;
        }
        let left = self.until.saturating_sub(thread_time());
        self.not_before = now + left;
        left.is_zero()
    }
}

thread_local! {
    static RUNNING: RefCell<Option<Running>> = const { RefCell::new(None) };
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // The kernel reports no negative durations.
    Duration::try_from(time).unwrap_or_default()
}

/// Restores what ran on the thread before, even after a panic.
struct Restore(Option<Running>);

impl Drop for Restore {
    fn drop(&mut self) {
        RUNNING.set(self.0.take());
    }
}

impl Work {
    /// Work that may take at most this much processor time.
    pub fn new(processor_time: Option<Duration>) -> Self {
        Self {
            processor_time,
            ..Self::default()
        }
    }

    /// A guard for the thread that waits for the result.
    pub fn abandon_on_drop(&self) -> AbandonOnDrop {
        AbandonOnDrop(self.clone())
    }

    /// Whether nobody waits for the result.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Runs `task` as a part of this work, on this thread.
    pub fn run<T>(&self, task: impl FnOnce() -> T) -> T {
        let running = Running {
            work: self.clone(),
            limit: self.processor_time.map(Limit::new),
        };
        let _restore = Restore(RUNNING.replace(Some(running)));
        task()
    }
}

/// Whether the work of this thread may continue. Cheap enough for each block of a search: below a
/// microsecond.
pub fn check() -> Result<(), Ended> {
    STEPS.set(STEPS.get() + 1);
    RUNNING.with_borrow_mut(|running| {
        let Some(Running { work, limit }) = running else {
            return Ok(());
        };

        if work.is_abandoned() {
            return Err(Ended::Abandoned);
        }

        if limit.as_mut().is_some_and(Limit::is_over) {
            let limit = work.processor_time.unwrap_or_default();
            return Err(Ended::TooLong(limit.as_secs()));
        }

        Ok(())
    })
}

thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// How often this thread called [`check`]: how many blocks and indexes its searches examined. For
/// tests; a package above compiles this package without its `cfg(test)`.
pub fn steps() -> u64 {
    STEPS.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_ends_when_it_is_abandoned_or_takes_too_long_and_other_threads_go_on() {
        assert_eq!(check(), Ok(()), "in no work");
        let work = Work::new(None);
        let guard = work.abandon_on_drop();
        work.run(|| {
            assert_eq!(check(), Ok(()));
            drop(guard);
            assert_eq!(check(), Err(Ended::Abandoned));
            Work::new(None).run(|| assert_eq!(check(), Ok(()), "another one within"));
            assert_eq!(check(), Err(Ended::Abandoned));
            std::thread::scope(|scope| {
                scope.spawn(|| assert_eq!(check(), Ok(())));
            });
        });
        assert_eq!(check(), Ok(()));

        Work::new(Some(Duration::ZERO)).run(|| {
            while check().is_ok() {
                std::hint::spin_loop();
            }
            assert_eq!(check(), Err(Ended::TooLong(0)));
        });
        // The time of the processor counts, however rarely its clock is read.
        let limit = Duration::from_millis(20);
        let began = thread_time();
        Work::new(Some(limit)).run(|| {
            std::thread::sleep(limit * 2);
            assert_eq!(check(), Ok(()), "it slept");
            while check().is_ok() {
                std::hint::spin_loop();
            }
        });
        assert!(thread_time() >= began + limit);

        let panicked = std::panic::catch_unwind(|| work.run(|| panic!("a bug")));
        assert!(panicked.is_err() && check() == Ok(()));
    }
}
