//! A stream whose peer must read at a minimum rate: a peer that reads one byte a second would hold
//! a response and a connection for days.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::base::limits::{HTTP_READ_RATE_MIN, HTTP_READ_WINDOW};

/// A stream; writing fails with [`io::ErrorKind::TimedOut`] if the peer reads too slowly.
///
/// A window begins when a write has to wait, and ends when everything is written. In each window of
/// [`HTTP_READ_WINDOW`] the peer must take [`HTTP_READ_RATE_MIN`] bytes per second. A peer to which
/// nothing is written is not measured.
pub(super) struct Paced<S> {
    stream: S,
    window: Option<Window>,
    time: Duration,
    bytes_min: u64,
}

struct Window {
    end: Pin<Box<Sleep>>,
    written: u64,
}

impl Window {
    fn begin(time: Duration) -> Self {
        Self {
            end: Box::pin(sleep_until(Instant::now() + time)),
            written: 0,
        }
    }
}

impl<S> Paced<S> {
    pub(super) fn new(stream: S) -> Self {
        let bytes_min = HTTP_READ_RATE_MIN * HTTP_READ_WINDOW.as_secs();
        Self::with(stream, HTTP_READ_WINDOW, bytes_min)
    }

    fn with(stream: S, time: Duration, bytes_min: u64) -> Self {
        Self {
            stream,
            window: None,
            time,
            bytes_min,
        }
    }

    /// Counts a write, or waits within the window.
    fn measured(
        &mut self,
        context: &mut Context<'_>,
        write: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match write {
            Poll::Ready(Ok(bytes)) => {
                // Outside a window nobody waits, so there is nothing to measure.
                if let Some(window) = &mut self.window {
                    window.written = window.written.saturating_add(bytes as u64);
                }
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                let time = self.time;
                // At most two rounds: a window that has just begun is not over.
                loop {
                    let window = self.window.get_or_insert_with(|| Window::begin(time));
                    ready!(window.end.as_mut().poll(context));
                    if window.written < self.bytes_min {
                        // The error ends the connection, which releases its permit and the memory
                        // of the response.
                        return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                    }

                    // The peer was fast enough: the next window begins now.
                    self.window = None;
                }
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.measured(context, write)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.measured(context, write)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Everything before is written: the window ends.
    // A response that is flushed leaves the peer nothing to read, so an idle peer is never too slow.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(context));
        self.window = None;
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::sleep;

    use super::*;

    /// Writes a thousand bytes to a peer that reads some of them at each interval.
    async fn written(
        time: Duration,
        bytes_min: u64,
        (bytes, pause): (usize, Duration),
    ) -> io::Result<()> {
        let (ours, mut theirs) = duplex(64);
        let mut ours = Paced::with(ours, time, bytes_min);
        let reading = tokio::spawn(async move {
            let mut read = vec![0; bytes];
            while bytes == 0 || theirs.read_exact(&mut read).await.is_ok() {
                sleep(pause).await;
            }
        });
        let written = ours.write_all(&[7; 1000]).await;
        reading.abort();
        written
    }

    #[tokio::test]
    async fn a_peer_that_reads_too_slowly_is_disconnected_and_a_slow_one_is_not() {
        let pause = Duration::from_millis(5);
        for bytes in [0, 1] {
            let slow = written(Duration::from_millis(50), 100, (bytes, pause)).await;
            assert_eq!(slow.unwrap_err().kind(), io::ErrorKind::TimedOut, "{bytes}");
        }
        // More than one window, each with enough bytes.
        let (time, pause) = (Duration::from_secs(1), Duration::from_millis(30));
        written(time, 1, (20, pause)).await.unwrap();
    }

    #[tokio::test]
    async fn a_window_ends_when_everything_is_written() {
        let (ours, mut theirs) = duplex(64);
        let mut ours = Paced::with(ours, Duration::from_secs(3600), 100);
        let mut read = [0; 80];
        let reading = theirs.read_exact(&mut read);
        let (written, read) = tokio::join!(ours.write_all(&[7; 80]), reading);
        written.unwrap();
        read.unwrap();
        assert!(ours.window.is_some(), "a write had to wait");
        ours.flush().await.unwrap();
        assert!(
            ours.window.is_none(),
            "a pause of the writer does not count"
        );
    }
}
