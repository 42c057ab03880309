//! Threads, each with a name of at most 15 bytes, shown by `top -H`.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, JoinHandle};

pub(super) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    // The kernel cuts longer names.
    debug_assert!(name.len() <= 15 && name.starts_with("sc-"), "{name}");
    Builder::new().name(name.to_owned()).spawn(work)
}

/// Starts a named critical thread: if it panics, the process exits, so that
/// systemd can restart it.
pub(super) fn spawn_critical(
    name: &'static str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    spawn(name, move || {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            tracing::error!(thread = name, "critical thread panicked, exiting");
            // `EX_SOFTWARE` of sysexits.h.
            std::process::exit(70);
        }
    })
}

/// Waits for a thread. A panic has been printed to standard error.
pub(super) fn join(handle: JoinHandle<()>) {
    let name = handle.thread().name().unwrap_or("sc-?").to_owned();
    if handle.join().is_err() {
        tracing::error!(thread = name, "thread panicked");
    }
}
