//! Threads, each with a name of at most 15 bytes, shown by `top -H`.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::advice::TOO_FEW_TASKS;

/// Starts a named thread. If it panics, the rest continues, and [`join`] reports it.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // The kernel cuts longer names.
    debug_assert!(name.len() <= 15 && name.starts_with("sc-"), "{name}");
    let started = Builder::new().name(name.to_owned()).spawn(work);
    started.map_err(|why| not_started(name, &why))
}

/// Why a thread cannot be started. The usual cause is a limit of the kernel, which names none.
pub fn not_started(name: &str, why: &io::Error) -> io::Error {
    let text = format!("the thread {name} cannot be started, {TOO_FEW_TASKS}: {why}");
    io::Error::new(why.kind(), text)
}

/// Starts a named critical thread: if it panics, the process exits, and systemd can restart it.
pub fn spawn_critical(
    name: &'static str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    spawn(name, move || {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            tracing::error!(
                thread = name,
                "critical thread panicked, the daemon exits and systemd restarts it; please report the backtrace above"
            );
            // `EX_SOFTWARE` of sysexits.h.
            std::process::exit(70);
        }
    })
}

/// Waits for a thread. A panic has been printed to standard error.
pub fn join(handle: JoinHandle<()>) {
    let name = handle.thread().name().unwrap_or("sc-?").to_owned();
    if handle.join().is_err() {
        tracing::error!(
            thread = name,
            "thread panicked, its part of the daemon no longer works: restart the daemon and report the backtrace above"
        );
    }
}

/// Waits for a thread until a deadline: `JoinHandle` has no join with one. Returns the handle of a
/// thread that still works.
pub fn join_until(handle: JoinHandle<()>, until: Instant) -> Option<JoinHandle<()>> {
    while !handle.is_finished() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }

    if !handle.is_finished() {
        return Some(handle);
    }
    join(handle);
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_waited_for_until_the_deadline() {
        let (stop, stopped) = crossbeam_channel::bounded::<()>(0);
        let work = move || _ = stopped.recv();
        let working = join_until(spawn("sc-test", work).unwrap(), Instant::now());
        drop(stop);
        let far = Instant::now() + Duration::from_secs(60);
        assert!(join_until(working.unwrap(), far).is_none());
    }
}
