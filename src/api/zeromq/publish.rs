//! The PUB: sends each stored event to the subscribers of a prefix of its tag.
//!
//! One thread follows the log, so each event is published once, in order, and after it is durable, without involving the committer.
//! Without subscribers nothing is read. The thread encodes a batch of events for the wire, and puts each subscriber's
//! part into that subscriber's queue, which a separate task writes to its socket.
//!
//! # Slow subscribers
//!
//! Each queue is limited by events and bytes, and all queues together by bytes. Excess events are dropped for that subscriber
//! only, and counted. A subscriber that reads nothing for [`PEER_TIMEOUT`] with a non-empty queue is disconnected; libzmq
//! then reconnects. Nothing is published twice: missed events are available in the archive.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{ReadHalf, WriteHalf};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::peer::{Connections, LogThrottle, ZmtpCloseReason};
use super::subscriptions::Subscriptions;
use crate::base::limits::{
    PEER_TIMEOUT, STOP_CHECK, ZMQ_PREFIX_BYTES_MAX, ZMQ_QUEUE_BYTES, ZMQ_QUEUE_EVENTS, ZMQ_QUEUES_BYTES,
    ZMQ_STOP_TIMEOUT, ZMQ_WAVE_BYTES,
};
use crate::base::metrics::Metrics;
use crate::base::shutdown::Drain;
use crate::model::SeqNo;
use crate::store::{Store, StoreError};
use crate::wire::unix_listener::{Listener, ListenerSpec, SocketError, SocketStats};
use crate::wire::zmtp::{self, Command, Message, SocketType, Splitter, ZmtpError, ZmtpItem, read_command};

/// The bound socket.
pub struct Publish {
    source: Listener,
    hub: Arc<Hub>,
}

/// Follows the log, on its own thread.
pub struct Follower {
    hub: Arc<Hub>,
    drain: Drain,
}

struct Hub {
    connections: Arc<Connections>,
    store: Store,
    subscribers: Mutex<Subscribers>,
    /// A subscriber connected.
    came: Condvar,
    queues: QueueBudget,
    slow: LogThrottle,
}

/// The limit shared by all queues.
#[derive(Default)]
struct QueueBudget {
    /// Bytes in all queues.
    bytes: AtomicUsize,
}

/// The connected subscribers, and the log position published to them.
#[derive(Default)]
struct Subscribers {
    list: Vec<Arc<Subscriber>>,
    /// The next event to publish; unset without subscribers.
    next: SeqNo,
}

#[derive(Default)]
struct Subscriber {
    wants: Mutex<Subscriptions>,
    queue: Mutex<SubscriberQueue>,
    more: Notify,
}

#[derive(Default)]
struct SubscriberQueue {
    queued: VecDeque<OutgoingBytes>,
    events: u64,
    bytes: usize,
    /// Nothing more will be queued.
    ends: bool,
    /// The subscriber has disconnected.
    closed: bool,
}

/// Messages for a subscriber, and their number.
struct OutgoingBytes {
    bytes: Bytes,
    events: u64,
}

/// Events encoded for the wire.
struct Wave {
    bytes: Bytes,
    /// The offset of each event, and of its tag after the header.
    offsets: Vec<(usize, usize)>,
}

impl Wave {
    /// Some events from `next` on, and the position after them.
    fn read(store: &Store, next: SeqNo) -> Result<(Self, SeqNo), StoreError> {
        let (mut bytes, mut offsets) = (Vec::new(), Vec::new());
        let after = store.follow(next, ZMQ_WAVE_BYTES, |event| {
            let from = bytes.len();
            zmtp::put_message(&mut bytes, &[event.tag, b"\n\n", event.body]);
            offsets.push((from, bytes.len() - (event.tag.len() + 2 + event.body.len())));
        })?;
        Ok((Self { bytes: bytes.into(), offsets }, after))
    }

    /// The whole wave, shared, if all events match, else a copy of the matching ones; `None` without a match.
    fn wanted_by(&self, wants: &Subscriptions) -> Option<OutgoingBytes> {
        let picked: Vec<&[u8]> =
            self.events().filter(|(_, message)| wants.matches(message)).map(|(bytes, _)| bytes).collect();
        let all = picked.len() == self.offsets.len();
        let bytes = if all { self.bytes.clone() } else { picked.concat().into() };
        (!picked.is_empty()).then_some(OutgoingBytes { bytes, events: picked.len() as u64 })
    }

    /// Each event: all of its bytes, and its message without the header.
    fn events(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let ends = self.offsets.iter().skip(1).map(|(from, _)| *from).chain([self.bytes.len()]);
        self.offsets.iter().zip(ends).map(|(&(from, tag), end)| {
            let bytes = |from| self.bytes.get(from..end).unwrap_or_default();
            (bytes(from), bytes(tag))
        })
    }
}

impl Publish {
    /// Binds the socket. Requires a tokio runtime. The follower ends after `drain` is set and all
    /// durable events are published.
    pub fn open(
        spec: &ListenerSpec<'_>,
        store: Store,
        metrics: Arc<Metrics>,
        drain: Drain,
    ) -> Result<(Self, Follower), SocketError> {
        let source = Listener::open(spec)?;
        let connections = Connections::new(
            SocketType::Pub,
            ZMQ_PREFIX_BYTES_MAX,
            SocketStats::new("pub", spec.path),
            metrics,
        );
        let hub = Arc::new(Hub {
            connections,
            store,
            subscribers: Mutex::default(),
            came: Condvar::new(),
            queues: QueueBudget::default(),
            slow: LogThrottle::default(),
        });
        Ok((Self { source, hub: hub.clone() }, Follower { hub, drain }))
    }

    /// The counters of the socket.
    pub fn watch(&self) -> SocketStats {
        self.hub.connections.watch.clone()
    }

    /// Serves subscribers until `stop` turns true and their queues are written.
    pub async fn serve(self, stop: watch::Receiver<bool>) {
        let Self { source, hub } = self;
        let connections = hub.connections.clone();
        let peers_stop = stop.clone();
        let work = move |stream, splitter| {
            let (hub, stop) = (hub.clone(), peers_stop.clone());
            async move { hub.subscriber(stream, splitter, stop).await }
        };
        connections.serve(source, stop, work).await;
    }
}

impl Follower {
    /// Follows the log until the end.
    pub fn run(self) {
        let Self { hub, drain } = self;
        loop {
            // Read before the log: events durable at the time of the stop are still published.
            let stopping = drain.is_stopping();
            let next = {
                let mut subscribers = hub.subscribers.lock();
                if subscribers.list.is_empty() && !stopping {
                    hub.came.wait_for(&mut subscribers, STOP_CHECK);
                }
                if subscribers.list.is_empty() { None } else { Some(subscribers.next) }
            };
            let Some(next) = next else {
                if stopping {
                    return;
                }
                continue;
            };
            match hub.publish(next) {
                Ok(true) => {}
                Ok(false) if stopping => return,
                Ok(false) => hub.store.wait_for(next, STOP_CHECK),
                Err(error) => {
                    tracing::error!(%error, seq = %next, "cannot read the log for ZeroMQ subscribers, retrying");
                    if stopping || drain.wait(READ_RETRY) {
                        return;
                    }
                }
            }
        }
    }
}

/// Pause before a failed read of the log is retried.
const READ_RETRY: Duration = Duration::from_secs(1);

impl QueueBudget {
    /// Queues bytes for a subscriber; false if there is no room.
    fn put(&self, subscriber: &Subscriber, bytes_out: OutgoingBytes) -> bool {
        let mut queue = subscriber.queue.lock();
        let len = bytes_out.bytes.len();
        let all = self.bytes.load(Ordering::Relaxed);
        let fits = queue.bytes + len <= ZMQ_QUEUE_BYTES
            && queue.events + bytes_out.events <= ZMQ_QUEUE_EVENTS
            && all + len <= ZMQ_QUEUES_BYTES;
        // Bytes beyond the whole limit are queued alone.
        if (!fits && queue.bytes > 0) || queue.closed {
            return false;
        }
        self.bytes.fetch_add(len, Ordering::Relaxed);
        queue.bytes += len;
        queue.events += bytes_out.events;
        queue.queued.push_back(bytes_out);
        drop(queue);
        subscriber.more.notify_one();
        true
    }
}

impl Hub {
    /// Publishes some events from `next` on; false if there were none.
    fn publish(&self, next: SeqNo) -> Result<bool, StoreError> {
        let (wave, after) = Wave::read(&self.store, next)?;
        let subscribers = {
            let mut subscribers = self.subscribers.lock();
            // All subscribers may have been replaced while the log was read.
            if subscribers.next != next {
                return Ok(true);
            }
            subscribers.next = after;
            subscribers.list.clone()
        };
        for subscriber in subscribers {
            let bytes_out = wave.wanted_by(&subscriber.wants.lock());
            if let Some(bytes_out) = bytes_out {
                self.offer(&subscriber, bytes_out);
            }
        }
        Ok(after > next)
    }

    fn offer(&self, subscriber: &Subscriber, bytes_out: OutgoingBytes) {
        let events = bytes_out.events;
        if self.queues.put(subscriber, bytes_out) {
            self.connections.metrics.zmq_events_published.add(events);
            self.connections.watch.count(events);
            return;
        }
        self.dropped(events);
        if let Some(times) = self.slow.is_time() {
            tracing::warn!(times, dropped = events, "ZeroMQ subscriber too slow, events dropped");
        }
    }

    fn dropped(&self, events: u64) {
        self.connections.metrics.zmq_events_dropped.add(events);
        self.connections.watch.drop_events(events);
    }

    /// One connection, after the handshake.
    async fn subscriber(
        &self,
        mut stream: UnixStream,
        splitter: Splitter,
        mut stop: watch::Receiver<bool>,
    ) -> ZmtpCloseReason {
        let subscriber = Arc::new(Subscriber::default());
        {
            let mut subscribers = self.subscribers.lock();
            if subscribers.list.is_empty() {
                subscribers.next = self.store.durable();
            }
            subscribers.list.push(subscriber.clone());
            self.came.notify_all();
        }
        let (from, to) = stream.split();
        let ends = async {
            let _ = stop.wait_for(|stop| *stop).await;
            subscriber.queue.lock().ends = true;
            subscriber.more.notify_one();
            tokio::time::sleep(ZMQ_STOP_TIMEOUT).await;
        };
        // Events queued for a subscriber that disconnects are not counted as dropped.
        let (close_reason, left) = tokio::select! {
            close_reason = self.listen(from, splitter, &subscriber) => {
                let left = matches!(close_reason, ZmtpCloseReason::Gone);
                (close_reason, left)
            }
            close_reason = self.write(to, &subscriber) => (close_reason, false),
            () = ends => (ZmtpCloseReason::Gone, false),
        };
        self.subscribers.lock().list.retain(|other| !Arc::ptr_eq(other, &subscriber));
        let mut queue = subscriber.queue.lock();
        queue.closed = true;
        queue.queued.clear();
        self.queues.bytes.fetch_sub(std::mem::take(&mut queue.bytes), Ordering::Relaxed);
        if queue.events > 0 && !left {
            self.dropped(queue.events);
        }
        close_reason
    }

    /// Handles the commands of a subscriber.
    async fn listen(
        &self,
        mut from: ReadHalf<'_>,
        mut splitter: Splitter,
        subscriber: &Subscriber,
    ) -> ZmtpCloseReason {
        loop {
            match self.handle_commands(&mut splitter, subscriber) {
                Ok(()) => {}
                Err(close_reason) => return close_reason,
            }
            match from.read_buf(splitter.spare(ZMQ_PREFIX_BYTES_MAX)).await {
                Ok(0) | Err(_) => return ZmtpCloseReason::Gone,
                Ok(_) => {}
            }
        }
    }

    fn handle_commands(
        &self,
        splitter: &mut Splitter,
        subscriber: &Subscriber,
    ) -> Result<(), ZmtpCloseReason> {
        while let Some(item) = splitter.next_item()? {
            let command = match item {
                ZmtpItem::Command(command) => {
                    read_command(command).ok_or(ZmtpError::Malformed("a command without a name"))?
                }
                ZmtpItem::Message(Message { first: [1, prefix @ ..], frames: 1, .. }) => {
                    Command::Subscribe(prefix)
                }
                ZmtpItem::Message(Message { first: [0, prefix @ ..], frames: 1, .. }) => {
                    Command::Cancel(prefix)
                }
                // An XSUB may send other messages; a PUB ignores them.
                ZmtpItem::Message(_) => continue,
            };
            match command {
                Command::Subscribe(prefix) => {
                    if !subscriber.wants.lock().add(prefix) {
                        return Err(ZmtpCloseReason::Error(
                            "too many subscriptions on one socket".to_owned(),
                        ));
                    }
                }
                Command::Cancel(prefix) => subscriber.wants.lock().cancel(prefix),
                // With a full queue the peer is not reading anyway.
                Command::Ping(context) => {
                    self.queues
                        .put(subscriber, OutgoingBytes { bytes: zmtp::pong(context).into(), events: 0 });
                }
                Command::Ready(_) | Command::Other => {}
            }
        }
        Ok(())
    }

    /// Writes a subscriber's queue to its socket.
    async fn write(&self, mut to: WriteHalf<'_>, subscriber: &Subscriber) -> ZmtpCloseReason {
        loop {
            let bytes_out = {
                let mut queue = subscriber.queue.lock();
                match queue.queued.pop_front() {
                    None if queue.ends => return ZmtpCloseReason::Gone,
                    bytes_out => bytes_out,
                }
            };
            let Some(bytes_out) = bytes_out else {
                subscriber.more.notified().await;
                continue;
            };
            match timeout(PEER_TIMEOUT, to.write_all(&bytes_out.bytes)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return ZmtpCloseReason::Gone,
                Err(_) => {
                    self.connections.metrics.zmq_subscribers_dropped.add(1);
                    return ZmtpCloseReason::Error("the subscriber did not read for too long".to_owned());
                }
            }
            let mut queue = subscriber.queue.lock();
            queue.bytes = queue.bytes.saturating_sub(bytes_out.bytes.len());
            queue.events = queue.events.saturating_sub(bytes_out.events);
            self.queues.bytes.fetch_sub(bytes_out.bytes.len(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_out(bytes: usize, events: u64) -> OutgoingBytes {
        OutgoingBytes { bytes: vec![0; bytes].into(), events }
    }

    #[test]
    fn one_queue_is_limited_to_the_byte_and_to_the_event() {
        let (queues, subscriber) = (QueueBudget::default(), Subscriber::default());
        assert!(queues.put(&subscriber, bytes_out(ZMQ_QUEUE_BYTES - 10, 1)));
        assert!(!queues.put(&subscriber, bytes_out(11, 1)), "a byte too many");
        assert!(queues.put(&subscriber, bytes_out(10, 1)));
        assert!(!queues.put(&subscriber, bytes_out(1, 1)));
        assert_eq!(queues.bytes.load(Ordering::Relaxed), ZMQ_QUEUE_BYTES);
        let subscriber = Subscriber::default();
        assert!(queues.put(&subscriber, bytes_out(1, ZMQ_QUEUE_EVENTS - 1)));
        assert!(!queues.put(&subscriber, bytes_out(1, 2)), "an event too many");
        assert!(queues.put(&subscriber, bytes_out(1, 1)));
        assert!(!queues.put(&subscriber, bytes_out(1, 1)));
        // Bytes beyond the limit of a queue are queued alone.
        let subscriber = Subscriber::default();
        assert!(queues.put(&subscriber, bytes_out(ZMQ_QUEUE_BYTES + 1, 1)));
        assert!(!queues.put(&subscriber, bytes_out(1, 1)));
    }

    #[test]
    fn all_queues_together_are_limited_to_the_byte() {
        const EACH: usize = ZMQ_QUEUE_BYTES - 1;
        let queues = QueueBudget::default();
        let subscribers: Vec<Subscriber> =
            (0..=ZMQ_QUEUES_BYTES / EACH).map(|_| Subscriber::default()).collect();
        let (last, others) = subscribers.split_last().unwrap();
        for subscriber in others {
            assert!(queues.put(subscriber, bytes_out(EACH, 1)));
        }
        let left = ZMQ_QUEUES_BYTES - others.len() * EACH;
        assert!((2..EACH).contains(&left), "the last queue has its own limit: {left}");
        assert!(queues.put(last, bytes_out(1, 1)));
        assert!(!queues.put(last, bytes_out(left, 1)), "a byte too many");
        assert!(queues.put(last, bytes_out(left - 1, 1)));
        assert!(!queues.put(last, bytes_out(1, 1)));
        assert_eq!(queues.bytes.load(Ordering::Relaxed), ZMQ_QUEUES_BYTES);
    }
}
