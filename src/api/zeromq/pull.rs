//! The PULL: accepts events from any program with a ZeroMQ PUSH socket.
//!
//! A message is one frame with tag, two newlines and a msgpack map, or two frames with tag and map. Other messages are counted and
//! ignored; the connection continues.
//!
//! # Backpressure
//!
//! Each connection has a task that reads a little, passes it to `intake`, and waits while there is no room or the disk is
//! full. Then the socket's buffer fills, libzmq's PUSH reaches its high-water mark, and the sending program
//! is slowed: nothing is dropped. A frame over [`ZMQ_READ_BYTES`] is read once its bytes fit into
//! [`ZMQ_BYTES_IN_FLIGHT`], and must then end before a timeout.
//!
//! # Acknowledgements
//!
//! None: PUSH and PULL have no answers. An orderly shutdown stores everything written to the socket. A kill loses the contents
//! of the socket's buffer and of `intake`, and libzmq drops partly written messages when a connection ends.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::TrySendError;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::peer::{Connections, LogThrottle, ZmtpCloseReason};
use crate::base::clock::Clock;
use crate::base::limits::{ENTRY_BYTES_MAX, PEER_TIMEOUT, ZMQ_BYTES_IN_FLIGHT, ZMQ_READ_BYTES};
use crate::base::metrics::Metrics;
use crate::ingest::policy::Policy;
use crate::model::{Batch, Source};
use crate::store::{Done, Intake, Store};
use crate::wire::msgpack::Reader;
use crate::wire::salt_event;
use crate::wire::unix_listener::{Listener, ListenerSpec, SocketError, SocketStats};
use crate::wire::zmtp::{self, Command, Message, SocketType, Splitter, ZmtpItem, read_command};

/// Bytes per permit.
const PERMIT_BYTES: usize = 1024;

/// Pause before a full intake is tried again.
const INTAKE_RETRY: Duration = Duration::from_millis(1);
/// Pause before a full disk is checked again.
const DISK_RETRY: Duration = Duration::from_millis(50);

/// The bytes reserved for a large message, and its deadline.
type LargeMessage = (OwnedSemaphorePermit, Instant);

/// The bound socket.
pub struct Pull {
    source: Listener,
    server: Arc<PullServer>,
}

struct PullServer {
    connections: Arc<Connections>,
    intake: Intake,
    store: Store,
    clock: Clock,
    policy: Arc<Policy>,
    large_messages: LargeMessages,
    malformed: LogThrottle,
}

/// The budget for unfinished large messages of all connections.
struct LargeMessages(Arc<Semaphore>);

impl Pull {
    /// Binds the socket. Requires a tokio runtime.
    pub fn open(
        spec: &ListenerSpec<'_>,
        policy: Arc<Policy>,
        (intake, store): (Intake, Store),
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Result<Self, SocketError> {
        let source = Listener::open(spec)?;
        let watch = SocketStats::new("pull", spec.path);
        // Room for a tag beside the largest body: slightly oversized messages are ignored instead of ending the connection.
        let connections =
            Connections::new(SocketType::Pull, ENTRY_BYTES_MAX + ZMQ_READ_BYTES, watch, metrics);
        let large_messages = LargeMessages(Arc::new(Semaphore::new(ZMQ_BYTES_IN_FLIGHT / PERMIT_BYTES)));
        let malformed = LogThrottle::default();
        let server = PullServer { connections, intake, store, clock, policy, large_messages, malformed };
        Ok(Self { source, server: Arc::new(server) })
    }

    /// The counters of the socket.
    pub fn watch(&self) -> SocketStats {
        self.server.connections.watch.clone()
    }

    /// Accepts events until `stop` turns true, then those already written to the socket.
    pub async fn serve(self, stop: watch::Receiver<bool>) {
        let Self { source, server } = self;
        let connections = server.connections.clone();
        let peers_stop = stop.clone();
        let work = move |stream, splitter| {
            let (server, stop) = (server.clone(), peers_stop.clone());
            async move { server.take(stream, splitter, stop).await }
        };
        connections.serve(source, stop, work).await;
    }
}

impl PullServer {
    /// One connection, after the handshake.
    async fn take(
        &self,
        mut stream: UnixStream,
        mut splitter: Splitter,
        mut stop: watch::Receiver<bool>,
    ) -> ZmtpCloseReason {
        let close_reason = match self.read(&mut stream, &mut splitter, &mut stop).await {
            Ok(()) => ZmtpCloseReason::Gone,
            Err(close_reason) => close_reason,
        };
        if splitter.waiting() > 0 {
            self.connections.metrics.zmq_messages_cut.add(1);
        }
        if let ZmtpCloseReason::Error(why) = &close_reason {
            let _ = timeout(PEER_TIMEOUT, stream.write_all(&zmtp::error(why))).await;
        }
        close_reason
    }

    async fn read(
        &self,
        stream: &mut UnixStream,
        splitter: &mut Splitter,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<(), ZmtpCloseReason> {
        let mut stopping = false;
        let mut large = None;
        loop {
            let mut answers = Vec::new();
            let (batch, cut) = self.messages(splitter, &mut answers);
            if !batch.is_empty() {
                self.submit(batch, stop).await?;
            }
            cut?;
            if !answers.is_empty() {
                timeout(PEER_TIMEOUT, stream.write_all(&answers))
                    .await
                    .map_err(|_| ZmtpCloseReason::Gone)??;
            }
            let missing = splitter.missing();
            large = self.large_messages.reserve(splitter.waiting() + missing, large).await?;
            let timeout = large.as_ref().map(|(_, until)| *until);
            tokio::select! {
                ready = stream.readable() => ready?,
                () = end_of(timeout) => {
                    return Err(ZmtpCloseReason::Error("timeout within a message".to_owned()));
                }
                _ = stop.wait_for(|stop| *stop), if !stopping => {
                    stopping = true;
                    // Data already written can still be read; the peer cannot write more.
                    rustix::net::shutdown(&*stream, rustix::net::Shutdown::Read).map_err(std::io::Error::from)?;
                    continue;
                }
            }
            match stream.try_read_buf(splitter.spare(missing.max(ZMQ_READ_BYTES))) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The complete messages received so far, as a batch, and the error that ends the stream, if any.
    fn messages(
        &self,
        splitter: &mut Splitter,
        answers: &mut Vec<u8>,
    ) -> (Batch, Result<(), ZmtpCloseReason>) {
        let at = self.clock.now();
        let mut batch = Batch::default();
        loop {
            let message = match splitter.next_item() {
                Ok(Some(ZmtpItem::Message(message))) => message,
                Ok(Some(ZmtpItem::Command(command))) => {
                    if let Some(Command::Ping(context)) = read_command(command) {
                        answers.extend_from_slice(&zmtp::pong(context));
                    }
                    continue;
                }
                Ok(None) => return (batch, Ok(())),
                Err(error) => return (batch, Err(error.into())),
            };
            let Some((tag, data)) = event(&message) else {
                self.ignore(&message);
                continue;
            };
            // The policy counts and logs rejected events; senders treat dropped ones as stored.
            match self.policy.event(tag, data, Source::Zeromq, at) {
                Ok(Some(accepted)) => batch.push(&accepted.entry(), accepted.fingerprints),
                Ok(None) => {}
                Err(_) => self.connections.watch.drop_events(1),
            }
        }
    }

    fn ignore(&self, message: &Message<'_>) {
        self.connections.metrics.zmq_messages_malformed.add(1);
        self.connections.watch.drop_events(1);
        if let Some(times) = self.malformed.is_time() {
            let begins = message.first.get(..message.first.len().min(40)).unwrap_or_default();
            let begins = begins.escape_ascii().to_string();
            tracing::warn!(
                times,
                frames = message.frames,
                begins,
                "ZeroMQ message ignored: expected one frame with tag, two newlines and a msgpack map, or two frames with tag and map"
            );
        }
    }

    /// Passes a batch to the intake. Waits for room indefinitely, which slows the sender.
    async fn submit(&self, mut batch: Batch, stop: &watch::Receiver<bool>) -> Result<(), ZmtpCloseReason> {
        let events = batch.len() as u64;
        let (metrics, watch) = (self.connections.metrics.clone(), self.connections.watch.clone());
        let mut done: Option<Done> = Some(Box::new(move |stored: Result<(), String>| {
            if stored.is_err() {
                metrics.zmq_events_lost.add(events);
                watch.drop_events(events);
            }
        }));
        // Shutdown does not wait for disk space; the rejected events are counted as lost.
        while self.store.refusal().is_some() && !*stop.borrow() {
            sleep(DISK_RETRY).await;
        }
        loop {
            match self.intake.try_submit(batch, done) {
                Ok(()) => {
                    self.connections.metrics.zmq_events.add(events);
                    self.connections.watch.count(events);
                    return Ok(());
                }
                Err(TrySendError::Full(back)) => (batch, done) = back,
                Err(TrySendError::Disconnected((_, done))) => {
                    if let Some(done) = done {
                        done(Err("the daemon is stopping".to_owned()));
                    }
                    return Err(ZmtpCloseReason::Gone);
                }
            }
            sleep(INTAKE_RETRY).await;
        }
    }
}
impl LargeMessages {
    /// Reserves bytes for an unfinished large message, waiting for other messages to finish. A message that
    /// grows keeps its deadline, because two of them could wait for each other.
    async fn reserve(
        &self,
        bytes: usize,
        held: Option<LargeMessage>,
    ) -> Result<Option<LargeMessage>, ZmtpCloseReason> {
        if bytes <= ZMQ_READ_BYTES {
            return Ok(None);
        }
        let wanted = bytes / PERMIT_BYTES + 1;
        let have = held.as_ref().map_or(0, |(permit, _)| permit.num_permits());
        let more = u32::try_from(wanted.saturating_sub(have)).unwrap_or(u32::MAX);
        let acquire = self.0.clone().acquire_many_owned(more);
        let Some((mut permit, until)) = held else {
            let permit = acquire.await.map_err(|_| ZmtpCloseReason::Gone)?;
            return Ok(Some((permit, Instant::now() + PEER_TIMEOUT)));
        };
        if more > 0 {
            let overloaded = || ZmtpCloseReason::Error("too many large messages are in flight".to_owned());
            permit.merge(
                timeout_at(until, acquire)
                    .await
                    .map_err(|_| overloaded())?
                    .map_err(|_| ZmtpCloseReason::Gone)?,
            );
        }
        Ok(Some((permit, until)))
    }
}

async fn end_of(timeout: Option<Instant>) {
    match timeout {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// Tag and data of a message with a tag and exactly one msgpack map; `None` otherwise.
pub fn event<'a>(message: &Message<'a>) -> Option<(&'a [u8], &'a [u8])> {
    let (tag, data) = match (message.frames, message.second) {
        (1, _) => salt_event::split(message.first)?,
        (2, Some(data)) => (message.first, data),
        _ => return None,
    };
    let mut reader = Reader::new(data);
    let is_map = matches!(data.first(), Some(0x80..=0x8f | 0xde | 0xdf));
    let whole = is_map && reader.value().is_ok() && reader.rest().is_empty();
    // In two frames the tag could contain the separator.
    let has_end = memchr::memmem::find(tag, b"\n\n").is_some();
    (whole && !tag.is_empty() && !has_end).then_some((tag, data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_unfinished_large_messages_are_limited() {
        const MIB: usize = 1024 * 1024;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let large_messages = LargeMessages(Arc::new(Semaphore::new(2 * MIB / PERMIT_BYTES)));
            assert!(
                large_messages.reserve(ZMQ_READ_BYTES, None).await.unwrap().is_none(),
                "a small message needs no reservation"
                );
                let first = large_messages.reserve(ZMQ_READ_BYTES + 1, None).await.unwrap().unwrap();
                // It grows up to the whole budget.
                let (first, _) = large_messages.reserve(2 * MIB - 1, Some(first)).await.unwrap().unwrap();
            assert_eq!((first.num_permits(), large_messages.0.available_permits()), (2 * MIB / PERMIT_BYTES, 0));
            // A second one has to wait.
            let mut second = Box::pin(large_messages.reserve(ZMQ_READ_BYTES + 1, None));
            tokio::select! {
                biased;
                _ = &mut second => panic!("a second large message was read beside the first"),
                () = tokio::task::yield_now() => {}
            }
            // A message that needs more than the budget times out.
            let late = (first, Instant::now());
            let overloaded = large_messages.reserve(2 * MIB, Some(late)).await;
            assert!(
                matches!(overloaded, Err(ZmtpCloseReason::Error(why)) if why == "too many large messages are in flight")
            );
            assert!(second.await.unwrap().is_some());
        });
    }

    #[test]
    fn an_event_is_a_tag_and_exactly_one_map() {
        let check = |first: &[u8], second: Option<&[u8]>, expected: Option<(&[u8], &[u8])>| {
            let frames = 1 + usize::from(second.is_some());
            assert_eq!(event(&Message { first, second, frames }), expected, "{first:?} {second:?}");
        };
        check(b"a/b\n\n\x80", None, Some((b"a/b", b"\x80")));
        check(b"a/b\n\n\x81\xa1x\xa2\n\n", None, Some((b"a/b", b"\x81\xa1x\xa2\n\n")));
        check(b"a/b", Some(b"\x80"), Some((b"a/b", b"\x80")));
        for first in [
            &b""[..],
            b"a/b",
            b"a/b\n\n",
            b"\n\n\x80",
            b"a\n\n\x90",
            b"a\n\n\x80\x80",
            b"a\n\n\x81",
            b"a\n\n{}",
        ] {
            check(first, None, None);
        }
        check(b"", Some(b"\x80"), None);
        check(b"a\n\nb", Some(b"\x80"), None);
        check(b"a", Some(b""), None);
        assert_eq!(event(&Message { first: b"a", second: Some(b"\x80"), frames: 3 }), None);
    }
}
