//! One peer's connection: reading its bytes, and sending responses.
//!
//! A call with a waiting caller uses as few system calls and wake-ups as possible, because apart
//! from the sync they are most of its latency:
//!
//! - one read returns whole small frames, including the header;
//! - the thread that has the response for a peer without other calls writes it directly into the
//!   socket's empty buffer. That never blocks. The remainder, and answers queued behind others, are
//!   sent by the peer's task.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::task::ready;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead as _, AsyncReadExt as _, Interest, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::base::limits::{ANSWERS_WRITTEN_AT_ONCE, PEER_READ_BYTES};

/// The reading half. No data is lost if [`Incoming::exactly`] is dropped while it waits.
pub(super) struct Incoming {
    from: OwnedReadHalf,
    /// Bytes received but not requested yet.
    ahead: Vec<u8>,
}

impl Incoming {
    pub(super) fn new(from: OwnedReadHalf) -> Self {
        Self {
            from,
            ahead: Vec::new(),
        }
    }

    /// The next `N` bytes; an error of kind `UnexpectedEof` if the peer closes before.
    pub(super) async fn exactly<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        loop {
            if let Some(bytes) = self.ahead.first_chunk().copied() {
                self.ahead.drain(..N);
                return Ok(bytes);
            }
            self.more().await?;
        }
    }

    /// The next `len` bytes, if already received.
    pub(super) fn at_hand(&mut self, len: usize) -> Option<Vec<u8>> {
        // Mostly a single frame was received, and its bytes are passed on without a copy.
        if self.ahead.len() == len {
            return Some(std::mem::take(&mut self.ahead));
        }
        let bytes = self.ahead.get(..len)?.to_vec();
        self.ahead.drain(..len);
        Some(bytes)
    }

    /// The next `len` bytes, read directly into the returned buffer.
    pub(super) async fn rest(&mut self, len: usize) -> io::Result<Vec<u8>> {
        if let Some(bytes) = self.at_hand(len) {
            return Ok(bytes);
        }
        // The buffer is not zeroed first. Its spare capacity keeps the end of the frame from
        // growing it.
        let mut bytes = Vec::with_capacity(len + 64);
        bytes.append(&mut self.ahead);
        let left = (len - bytes.len()) as u64;
        (&mut self.from).take(left).read_to_end(&mut bytes).await?;

        if bytes.len() < len {
            Err(ErrorKind::UnexpectedEof.into())
        } else {
            Ok(bytes)
        }
    }

    async fn more(&mut self) -> io::Result<()> {
        let Self { from, ahead } = self;
        poll_fn(|cx| {
            // The buffer is on the stack and not in the task, because idle peers must not hold a
            // buffer.
            let mut piece = [0; PEER_READ_BYTES];
            let mut read = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut *from).poll_read(cx, &mut read))?;
            ahead.extend_from_slice(read.filled());

            let came = !read.filled().is_empty();
            if came {
                Ok(()).into()
            } else {
                Err(ErrorKind::UnexpectedEof.into()).into()
            }
        })
        .await
    }
}

/// A response to send, with the resources that it holds until then.
pub(super) struct OutgoingAnswer<H> {
    pub(super) frame: Vec<u8>,
    pub(super) held: H,
}

/// The writing half, shared by all threads with a response for this peer.
pub(super) struct AnswerWriter<H> {
    to: OwnedWriteHalf,
    /// Timeout of one write.
    timeout: Duration,
    /// Lock order: no other lock is taken under it.
    queue: Mutex<AnswerQueue<H>>,
    came: Notify,
}

struct AnswerQueue<H> {
    waiting: VecDeque<OutgoingAnswer<H>>,
    /// The peer's task is writing.
    busy: bool,
    /// No more responses are sent.
    closed: bool,
}

impl<H> AnswerWriter<H> {
    pub(super) fn new(to: OwnedWriteHalf, timeout: Duration) -> Self {
        let queue = AnswerQueue {
            waiting: VecDeque::new(),
            busy: false,
            closed: false,
        };
        Self {
            to,
            timeout,
            queue: Mutex::new(queue),
            came: Notify::new(),
        }
    }

    /// Sends a response without waiting. `at_once` tries to write it directly. It is dropped if the
    /// peer has disconnected.
    pub(super) fn send(&self, mut answer: OutgoingAnswer<H>, at_once: bool) {
        let mut queue = self.queue.lock();
        // The call was carried out; nobody reads its response.
        if queue.closed {
            return;
        }

        // While another response waits, this one would overtake it, or land in the middle of a
        // frame. `try_write` does not block, so the lock is held for a moment.
        if at_once && !queue.busy && queue.waiting.is_empty() {
            match self.to.try_write(&answer.frame) {
                Ok(count) if count == answer.frame.len() => return,
                Ok(count) => drop(answer.frame.drain(..count)),
                // The peer's task meets the same error and ends the connection.
                Err(_) => {}
            }
        }

        queue.waiting.push_back(answer);
        // Released first, because the woken task takes the lock.
        drop(queue);
        self.came.notify_one();
    }

    /// Writes queued responses until the peer disconnects or stops reading; returns the error.
    pub(super) async fn write_out(&self) -> io::Result<()> {
        loop {
            // A `Notify` keeps one wake-up, so a response that is queued between the two lines is
            // not missed.
            let Some((frames, held)) = self.take() else {
                self.came.notified().await;
                continue;
            };
            let written = timeout(self.timeout, self.write(&frames)).await;
            // The permits are free even if writing failed: the responses are gone either way.
            drop(held);

            let outcome = written.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
            if outcome.is_err() {
                // Under the lock, because a response that is queued later would keep its permits.
                let mut queue = self.queue.lock();

                queue.closed = true;
                queue.waiting.clear();
                return outcome;
            }
        }
    }

    /// Waits until the peer has closed the connection; one that has only finished writing still
    /// reads. Uses a descriptor of its own, because the readiness of the shared one is needed for
    /// writing.
    pub(super) async fn disconnected(&self) {
        if self.wait_for_close().await.is_err() {
            // Without a descriptor it is not noticed; the response then is in vain.
            std::future::pending::<()>().await;
        }
    }

    async fn wait_for_close(&self) -> io::Result<()> {
        let socket = self.to.as_ref().as_fd().try_clone_to_owned()?;
        let socket = UnixStream::from_std(socket.into())?;
        loop {
            if socket.ready(Interest::WRITABLE).await?.is_write_closed() {
                return Ok(());
            }
            // Cleared, because the next wait must end only when the readiness changes again.
            let not_now = || Err::<(), _>(ErrorKind::WouldBlock.into());
            let _ = socket.try_io(Interest::WRITABLE, not_now);
        }
    }

    /// Takes the queued responses as one buffer; the queue is busy until the next call.
    fn take(&self) -> Option<(Vec<u8>, Vec<H>)> {
        let mut queue = self.queue.lock();
        let Some(first) = queue.waiting.pop_front() else {
            queue.busy = false;
            return None;
        };
        // Set until the queue is empty, because no other thread may write between two parts of a
        // frame.
        queue.busy = true;

        let mut frames = first.frame;
        let mut held = vec![first.held];
        // Answers in one write save system calls; the limit bounds the copy.
        while frames.len() < ANSWERS_WRITTEN_AT_ONCE {
            let Some(next) = queue.waiting.pop_front() else {
                break;
            };
            frames.extend_from_slice(&next.frame);
            held.push(next.held);
        }

        Some((frames, held))
    }

    async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.to.try_write(bytes) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.to.writable().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    /// Runs `work` on one end of a connection, with the other end for the test.
    fn with_pair<F: Future>(work: impl FnOnce(UnixStream, OwnedReadHalf, OwnedWriteHalf) -> F) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (theirs, ours) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            let (from, to) = tokio::net::UnixStream::from_std(ours).unwrap().into_split();
            work(theirs, from, to).await;
        });
    }

    #[test]
    fn bytes_arrive_unchanged_in_any_chunking() {
        let bytes: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
        with_pair(async |mut theirs, from, _to| {
            let sent = bytes.clone();
            let sender = tokio::task::spawn_blocking(move || {
                for piece in sent.chunks(7_001) {
                    theirs.write_all(piece).unwrap();
                }
            });
            let mut incoming = Incoming::new(from);
            let mut read = Vec::new();
            for len in [0, 1, 5_000, 100_000, 3, 190_000] {
                read.extend_from_slice(&incoming.exactly::<2>().await.unwrap());
                read.extend_from_slice(&incoming.rest(len).await.unwrap());
            }
            assert_eq!(read, bytes[..read.len()]);
            let end = incoming
                .rest(bytes.len() - read.len() + 1)
                .await
                .unwrap_err();
            assert_eq!(end.kind(), ErrorKind::UnexpectedEof);
            sender.await.unwrap();
        });
    }

    #[test]
    fn a_peer_that_has_only_finished_writing_is_not_disconnected() {
        with_pair(async |theirs, _from, to| {
            let answers = AnswerWriter::<()>::new(to, Duration::from_secs(30));
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
            let early = timeout(Duration::from_millis(20), answers.disconnected()).await;
            assert!(early.is_err(), "it still reads");
            let gone = timeout(Duration::from_secs(30), answers.disconnected());
            let (gone, ()) = tokio::join!(gone, async { drop(theirs) });
            assert_eq!(gone, Ok(()));
        });
    }

    #[test]
    fn answers_keep_their_order_and_a_late_reader_gets_all() {
        let frames: Vec<Vec<u8>> = (0..200_u8)
            .map(|n| vec![n; 1 + usize::from(n) * 50])
            .collect();
        with_pair(async |mut theirs, _from, to| {
            let answers = Arc::new(AnswerWriter::new(to, Duration::from_secs(30)));
            let writing = tokio::spawn({
                let answers = answers.clone();
                async move { answers.write_out().await }
            });
            let expected = frames.concat();
            for (n, frame) in frames.into_iter().enumerate() {
                answers.send(OutgoingAnswer { frame, held: () }, n % 3 > 0);
            }
            let reading = tokio::task::spawn_blocking(move || {
                std::thread::sleep(Duration::from_millis(20));
                let mut read = vec![0; expected.len()];
                theirs.read_exact(&mut read).unwrap();
                assert_eq!(read, expected);
            });
            reading.await.unwrap();
            answers.send(
                OutgoingAnswer {
                    frame: vec![0],
                    held: (),
                },
                false,
            );
            assert!(writing.await.unwrap().is_err(), "the peer has disconnected");
            answers.send(
                OutgoingAnswer {
                    frame: vec![0],
                    held: (),
                },
                true,
            );
            assert!(
                answers.queue.lock().waiting.is_empty(),
                "nothing is queued for it"
            );
        });
    }

    #[test]
    fn a_peer_that_does_not_read_times_out_and_its_answers_are_dropped() {
        with_pair(async |theirs, _from, to| {
            let answers = AnswerWriter::new(to, Duration::from_millis(20));
            let held = Arc::new(());
            for _ in 0..40 {
                answers.send(
                    OutgoingAnswer {
                        frame: vec![0; 100_000],
                        held: held.clone(),
                    },
                    true,
                );
            }
            let end = answers.write_out().await.unwrap_err();
            assert_eq!(end.kind(), ErrorKind::TimedOut);
            assert_eq!(Arc::strong_count(&held), 1);
            drop(theirs);
        });
    }
}
