//! What all tests share: waiting with a deadline, and what to do where a precondition is missing.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Longest wait for anything. A machine under load is slow, not wrong; a test that hangs must fail.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Tries again until something is there.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "no {what} within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The next message of a channel.
pub(crate) fn receive<T>(from: &Receiver<T>) -> T {
    from.recv_timeout(DEADLINE).unwrap_or_else(|error| panic!("no message within {DEADLINE:?}: {error}"))
}

/// Called where a test cannot run for want of `what`, before it returns. Where `CI` is set, nothing may be missing.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
pub(crate) fn missing(what: &str) {
    assert!(
        std::env::var_os("CI").is_none_or(|ci| ci.is_empty()),
        "CI must have what this test needs: {what}"
    );
    eprintln!("skipped: needs {what}");
}
