//! Threads: each has a name of at most 15 bytes, which `top -H` shows, and a place in the order of stopping.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, JoinHandle};

/// Starts a named thread.
pub(super) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    debug_assert!(name.len() <= 15 && name.starts_with("sc-"), "{name}");
    Builder::new().name(name.to_owned()).spawn(work)
}

/// Starts a named thread without which the daemon is of no use: if it panics, the process ends, so that
/// systemd can start another.
pub(super) fn spawn_vital(
    name: &'static str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    spawn(name, move || {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            tracing::error!(
                thread = name,
                "a thread that everything depends on ended by panic; so does the daemon"
            );
            std::process::exit(70);
        }
    })
}

/// Waits for a thread; one that panicked has said so on standard error.
pub(super) fn join(handle: JoinHandle<()>) {
    let name = handle.thread().name().unwrap_or("sc-?").to_owned();
    if handle.join().is_err() {
        tracing::error!(thread = name, "a thread ended by panic");
    }
}
