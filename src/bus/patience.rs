//! Connecting and writing to a unix socket of Salt, with a deadline: a master that hangs must block no thread.

use std::io::{ErrorKind, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::base::connect;
use crate::base::limits::{FIRE_STEP, FIRE_WRITE_STEP};
use crate::base::shutdown::Drain;

/// A deadline, and the stop of the daemon, which ends waits before it.
pub(crate) struct Patience<'a> {
    pub(crate) until: Instant,
    pub(crate) stop: &'a Drain,
}

impl Patience<'_> {
    /// The time that is left; an error if there is none.
    pub(crate) fn left(&self) -> std::io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() || self.stop.is_stopping() {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(left.min(FIRE_STEP))
    }

    /// Connects, or fails at the deadline.
    pub(crate) fn connect(&self, path: &Path) -> std::io::Result<UnixStream> {
        loop {
            // A listener that accepts is reached even without patience.
            let step = self.left().unwrap_or_default();
            match connect::unix(path, step) {
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    // Only this step timed out; it fails once the whole time is over.
                    self.left()?;
                }
                connected => return connected,
            }
        }
    }

    /// Writes everything, or fails at the deadline.
    pub(crate) fn write(&self, stream: &mut UnixStream, mut bytes: &[u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            // What fits into the socket's buffer is written even without patience.
            let step = self.left().unwrap_or(FIRE_WRITE_STEP);
            stream.set_write_timeout(Some(step))?;

            match stream.write(bytes) {
                Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    self.left()?;
                }
                Err(error) => return Err(error),
            }
        }

        Ok(())
    }
}
