//! A fake event bus: the socket of a Salt publisher, its frames, and recordings of real buses.
//!
//! # Recording
//!
//! `SBUS1\n`; u32 size and JSON header; then records of u64 arrival time (ns), u32 size, frame of the bus.
//! Integers are big-endian.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::DEADLINE;
use saltcellar_wire::msgpack::Writer;

/// The socket of a publisher.
#[derive(Debug)]
pub struct FakeBus(UnixListener);

impl FakeBus {
    /// Replaces the socket at `path`.
    pub fn listen(path: &Path) -> io::Result<Self> {
        // A bind fails unless the old socket was removed.
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path)?;
        // Limits the wait for a subscriber.
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// Waits for a subscriber, which must also read within [`DEADLINE`].
    pub fn subscriber(&self) -> io::Result<UnixStream> {
        let deadline = Instant::now() + DEADLINE;

        loop {
            match self.0.accept() {
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline =>
                {
                    std::thread::sleep(Duration::from_millis(2));
                }
                accepted => {
                    let (subscriber, _) = accepted?;
                    subscriber.set_nonblocking(false)?;
                    subscriber.set_write_timeout(Some(DEADLINE))?;
                    return Ok(subscriber);
                }
            }
        }
    }
}

/// Appends the frame of a message (tag, two newlines, data) without a length before it.
pub fn put_frame(out: &mut Vec<u8>, message: &[u8]) {
    let mut w = Writer::behind(std::mem::take(out));
    w.map(2).str("head").map(0).str("body").bin(message);
    *out = w.into_bytes();
}

/// The header and the frames of a recording.
pub fn read_recording(bytes: &[u8]) -> anyhow::Result<(serde_json::Value, Vec<&[u8]>)> {
    let mut rest = bytes.strip_prefix(b"SBUS1\n").context("SBUS1 is missing")?;
    let mut take = |n: usize| {
        let (consumed, after) = rest.split_at_checked(n)?;
        rest = after;
        Some(consumed)
    };
    let size = |b: &[u8]| b.iter().fold(0_usize, |n, b| n << 8 | usize::from(*b));

    let header = take(4)
        .and_then(|len| take(size(len)))
        .context("truncated header")?;
    let header = serde_json::from_slice(header).context("the header is not JSON")?;

    let mut frames = Vec::new();
    while let Some(head) = take(12) {
        frames.push(take(size(head.get(8..).unwrap_or_default())).context("truncated frame")?);
    }

    Ok((header, frames))
}
