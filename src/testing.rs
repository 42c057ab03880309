//! Helpers of all tests: waiting with a deadline, and skipping without a precondition.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Longest wait for anything. A machine under load is slow, not wrong; a test that hangs must fail.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Polls until `look` returns a value; panics after [`DEADLINE`].
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

/// Reports that the calling test is skipped because `what` is missing. Panics if `CI` is set.
#[expect(clippy::print_stderr, reason = "a skipped test prints its reason")]
pub(crate) fn missing(what: &str) {
    assert!(
        std::env::var_os("CI").is_none_or(|ci| ci.is_empty()),
        "CI must have what this test needs: {what}"
    );
    eprintln!("skipped: needs {what}");
}
