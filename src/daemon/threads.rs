//! Threads: each has a name of at most 15 bytes, which `top -H` shows, and a place in the order of stopping.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a named thread.
pub(super) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    debug_assert!(name.len() <= 15 && name.starts_with("sc-"), "{name}");
    Builder::new().name(name.to_owned()).spawn(work)
}

/// Waits for a thread; one that panicked has said so on standard error.
pub(super) fn join(handle: JoinHandle<()>) {
    let name = handle.thread().name().unwrap_or("sc-?").to_owned();
    if handle.join().is_err() {
        tracing::error!(thread = name, "a thread ended by panic");
    }
}
