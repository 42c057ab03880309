//! The PUB: every event that is stored, to whom has subscribed to a prefix of its tag.
//!
//! One thread follows the log, so an event is published once, in order, and after it is durable; who commits never knows.
//! Without a subscriber nothing is read. It makes a wave of some events as they go over the wire, and each subscriber gets
//! the part that it asked for into a queue of its own, which a task of its own writes to its socket.
//!
//! # Slow subscribers
//!
//! A queue is bounded by events and bytes, and all queues together by bytes. What does not fit is dropped for that subscriber
//! alone, and counted. One that takes nothing at all for [`PEER_PATIENCE`] while something waits is disconnected; libzmq
//! connects again by itself. Nothing is published a second time: who was away finds what it missed in the archive.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{ReadHalf, WriteHalf};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::peer::{Farewell, Lobby, Says};
use super::subscriptions::Subscriptions;
use crate::door::{Door, Place, SocketError, Watch};
use crate::limits::{
    PEER_PATIENCE, STOP_CHECK, ZMQ_PREFIX_BYTES_MAX, ZMQ_QUEUE_BYTES, ZMQ_QUEUE_EVENTS, ZMQ_QUEUES_BYTES,
    ZMQ_STOP_PATIENCE, ZMQ_WAVE_BYTES,
};
use crate::metrics::Metrics;
use crate::model::SeqNo;
use crate::shutdown::Drain;
use crate::store::{Store, StoreError};
use crate::wire::zmtp::{self, Command, Message, Piece, SocketType, Splitter, ZmtpError, read_command};

/// The door, bound.
pub struct Publish {
    door: Door,
    hub: Arc<Hub>,
}

/// What follows the log; runs on a thread of its own.
pub struct Follower {
    hub: Arc<Hub>,
    drain: Drain,
}

struct Hub {
    lobby: Arc<Lobby>,
    store: Store,
    crowd: Mutex<Crowd>,
    /// Somebody came.
    came: Condvar,
    queues: Queues,
    slow: Says,
}

/// What the queues of all subscribers have in common.
#[derive(Default)]
struct Queues {
    /// Bytes that wait in all of them.
    bytes: AtomicUsize,
}

/// Who is there, and how far the log has been read for them.
#[derive(Default)]
struct Crowd {
    subscribers: Vec<Arc<Subscriber>>,
    /// The next event to be published; none while nobody is there.
    next: SeqNo,
}

#[derive(Default)]
struct Subscriber {
    wants: Mutex<Subscriptions>,
    queue: Mutex<Queue>,
    more: Notify,
}

#[derive(Default)]
struct Queue {
    parcels: VecDeque<Parcel>,
    events: u64,
    bytes: usize,
    /// Nothing will come any more.
    ends: bool,
    /// Its subscriber is gone.
    closed: bool,
}

/// Bytes for a subscriber, and how many events they are.
struct Parcel {
    bytes: Bytes,
    events: u64,
}

enum Bytes {
    /// A whole wave, shared with all others that want all of it.
    Wave(Arc<Wave>),
    /// Of this subscriber alone.
    Own(Vec<u8>),
}

impl Parcel {
    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Wave(wave) => &wave.bytes,
            Bytes::Own(bytes) => bytes,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Events as they go over the wire.
#[derive(Default)]
struct Wave {
    bytes: Vec<u8>,
    /// Where each begins, and behind its header its tag.
    places: Vec<(usize, usize)>,
}

impl Wave {
    fn push(&mut self, tag: &[u8], body: &[u8]) {
        let from = self.bytes.len();
        zmtp::put_message(&mut self.bytes, &[tag, b"\n\n", body]);
        let len = tag.len() + 2 + body.len();
        self.places.push((from, self.bytes.len() - len));
    }

    /// The whole wave if it wants every event, else a copy of those it wants; none at all if it wants none.
    fn wanted_by(self: &Arc<Self>, wants: &Subscriptions) -> Option<Parcel> {
        let picked: Vec<&[u8]> =
            self.events().filter(|(_, message)| wants.matches(message)).map(|(bytes, _)| bytes).collect();
        let all = picked.len() == self.places.len();
        let bytes = if all { Bytes::Wave(self.clone()) } else { Bytes::Own(picked.concat()) };
        (!picked.is_empty()).then_some(Parcel { bytes, events: picked.len() as u64 })
    }

    /// Each event: all of its bytes, and the message without its header.
    fn events(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let ends = self.places.iter().skip(1).map(|(from, _)| *from).chain([self.bytes.len()]);
        self.places.iter().zip(ends).map(|(&(from, tag), end)| {
            let bytes = |from| self.bytes.get(from..end).unwrap_or_default();
            (bytes(from), bytes(tag))
        })
    }
}

impl Publish {
    /// Binds the socket. Must run inside a tokio runtime. The follower ends once `drain` is asked to stop and all that is
    /// durable has been published.
    pub fn open(
        place: &Place<'_>,
        store: Store,
        metrics: Arc<Metrics>,
        drain: Drain,
    ) -> Result<(Self, Follower), SocketError> {
        let door = Door::open(place)?;
        let lobby = Lobby::new(SocketType::Pub, ZMQ_PREFIX_BYTES_MAX, Watch::new("pub", place.path), metrics);
        let hub = Arc::new(Hub {
            lobby,
            store,
            crowd: Mutex::default(),
            came: Condvar::new(),
            queues: Queues::default(),
            slow: Says::default(),
        });
        Ok((Self { door, hub: hub.clone() }, Follower { hub, drain }))
    }

    /// A view of how it stands.
    pub fn watch(&self) -> Watch {
        self.hub.lobby.watch.clone()
    }

    /// Serves subscribers until `stop` turns true, then until what waits for them is written.
    pub async fn serve(self, stop: watch::Receiver<bool>) {
        let Self { door, hub } = self;
        let lobby = hub.lobby.clone();
        let peers_stop = stop.clone();
        let work = move |stream, splitter| {
            let (hub, stop) = (hub.clone(), peers_stop.clone());
            async move { hub.subscriber(stream, splitter, stop).await }
        };
        lobby.serve(door, stop, work).await;
    }
}

impl Follower {
    /// Follows the log.
    pub fn run(self) {
        let Self { hub, drain } = self;
        loop {
            // Asked for before the log is read: what was durable when somebody asked to stop is still published.
            let stopping = drain.is_stopping();
            let next = {
                let crowd = lock(&hub.crowd);
                let crowd = if crowd.subscribers.is_empty() && !stopping {
                    hub.came.wait_timeout(crowd, STOP_CHECK).unwrap_or_else(PoisonError::into_inner).0
                } else {
                    crowd
                };
                if crowd.subscribers.is_empty() { None } else { Some(crowd.next) }
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
                    tracing::error!(%error, seq = %next, "the log could not be read for ZeroMQ subscribers; trying again");
                    if stopping || drain.wait(READ_AGAIN) {
                        return;
                    }
                }
            }
        }
    }
}

/// The pause before the log is read again where it could not be read.
const READ_AGAIN: Duration = Duration::from_secs(1);

impl Queues {
    /// Puts a parcel into a queue; false if there is no room.
    fn put(&self, subscriber: &Subscriber, parcel: Parcel) -> bool {
        let mut queue = lock(&subscriber.queue);
        let len = parcel.bytes().len();
        let all = self.bytes.load(Ordering::Relaxed);
        let fits = queue.bytes + len <= ZMQ_QUEUE_BYTES
            && queue.events + parcel.events <= ZMQ_QUEUE_EVENTS
            && all + len <= ZMQ_QUEUES_BYTES;
        // What is larger than all the room there is goes in alone.
        if (!fits && queue.bytes > 0) || queue.closed {
            return false;
        }
        self.bytes.fetch_add(len, Ordering::Relaxed);
        queue.bytes += len;
        queue.events += parcel.events;
        queue.parcels.push_back(parcel);
        drop(queue);
        subscriber.more.notify_one();
        true
    }
}

impl Hub {
    /// Publishes some events from `next` on; false if there were none.
    fn publish(&self, next: SeqNo) -> Result<bool, StoreError> {
        let mut wave = Wave::default();
        let after = self.store.follow(next, ZMQ_WAVE_BYTES, |event| wave.push(event.tag, event.body))?;
        let subscribers = {
            let mut crowd = lock(&self.crowd);
            // All may have left, and others come, while the log was read.
            if crowd.next != next {
                return Ok(true);
            }
            crowd.next = after;
            crowd.subscribers.clone()
        };
        let wave = Arc::new(wave);
        for subscriber in subscribers {
            let parcel = wave.wanted_by(&lock(&subscriber.wants));
            if let Some(parcel) = parcel {
                self.offer(&subscriber, parcel);
            }
        }
        Ok(after > next)
    }

    fn offer(&self, subscriber: &Subscriber, parcel: Parcel) {
        let events = parcel.events;
        if self.queues.put(subscriber, parcel) {
            self.lobby.metrics.zmq_events_published.add(events);
            self.lobby.watch.count(events);
            return;
        }
        self.dropped(events);
        if let Some(times) = self.slow.is_time() {
            tracing::warn!(times, dropped = events, "a ZeroMQ subscriber is slow; events for it are dropped");
        }
    }

    fn dropped(&self, events: u64) {
        self.lobby.metrics.zmq_events_dropped.add(events);
        self.lobby.watch.drop_events(events);
    }

    /// One connection, from behind its READY to its end.
    async fn subscriber(
        &self,
        mut stream: UnixStream,
        splitter: Splitter,
        mut stop: watch::Receiver<bool>,
    ) -> Farewell {
        let subscriber = Arc::new(Subscriber::default());
        {
            let mut crowd = lock(&self.crowd);
            if crowd.subscribers.is_empty() {
                crowd.next = self.store.durable();
            }
            crowd.subscribers.push(subscriber.clone());
            self.came.notify_all();
        }
        let (from, to) = stream.split();
        let ends = async {
            let _ = stop.wait_for(|stop| *stop).await;
            lock(&subscriber.queue).ends = true;
            subscriber.more.notify_one();
            tokio::time::sleep(ZMQ_STOP_PATIENCE).await;
        };
        // What still waits for one that has left is no loss of ours.
        let (farewell, left) = tokio::select! {
            farewell = self.listen(from, splitter, &subscriber) => {
                let left = matches!(farewell, Farewell::Gone);
                (farewell, left)
            }
            farewell = self.write(to, &subscriber) => (farewell, false),
            () = ends => (Farewell::Gone, false),
        };
        lock(&self.crowd).subscribers.retain(|other| !Arc::ptr_eq(other, &subscriber));
        let mut queue = lock(&subscriber.queue);
        queue.closed = true;
        queue.parcels.clear();
        self.queues.bytes.fetch_sub(std::mem::take(&mut queue.bytes), Ordering::Relaxed);
        if queue.events > 0 && !left {
            self.dropped(queue.events);
        }
        farewell
    }

    /// Takes what a subscriber says: what it wants, and whether this end lives.
    async fn listen(
        &self,
        mut from: ReadHalf<'_>,
        mut splitter: Splitter,
        subscriber: &Subscriber,
    ) -> Farewell {
        loop {
            match self.hear(&mut splitter, subscriber) {
                Ok(()) => {}
                Err(farewell) => return farewell,
            }
            match from.read_buf(splitter.spare(ZMQ_PREFIX_BYTES_MAX)).await {
                Ok(0) | Err(_) => return Farewell::Gone,
                Ok(_) => {}
            }
        }
    }

    fn hear(&self, splitter: &mut Splitter, subscriber: &Subscriber) -> Result<(), Farewell> {
        while let Some(piece) = splitter.next_piece()? {
            let command = match piece {
                Piece::Command(command) => {
                    read_command(command).ok_or(ZmtpError::Malformed("a command without a name"))?
                }
                Piece::Message(Message { first: [1, prefix @ ..], frames: 1, .. }) => {
                    Command::Subscribe(prefix)
                }
                Piece::Message(Message { first: [0, prefix @ ..], frames: 1, .. }) => Command::Cancel(prefix),
                // An XSUB may say more than that; a PUB does not listen.
                Piece::Message(_) => continue,
            };
            match command {
                Command::Subscribe(prefix) => {
                    if !lock(&subscriber.wants).add(prefix) {
                        return Err(Farewell::Told("too many subscriptions on one socket".to_owned()));
                    }
                }
                Command::Cancel(prefix) => lock(&subscriber.wants).cancel(prefix),
                // Without room in its queue it reads nothing anyway.
                Command::Ping(context) => {
                    self.queues.put(subscriber, Parcel { bytes: Bytes::Own(zmtp::pong(context)), events: 0 });
                }
                Command::Ready(_) | Command::Other => {}
            }
        }
        Ok(())
    }

    /// Writes what waits for a subscriber.
    async fn write(&self, mut to: WriteHalf<'_>, subscriber: &Subscriber) -> Farewell {
        loop {
            let parcel = {
                let mut queue = lock(&subscriber.queue);
                match queue.parcels.pop_front() {
                    None if queue.ends => return Farewell::Gone,
                    parcel => parcel,
                }
            };
            let Some(parcel) = parcel else {
                subscriber.more.notified().await;
                continue;
            };
            match timeout(PEER_PATIENCE, to.write_all(parcel.bytes())).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Farewell::Gone,
                Err(_) => {
                    self.lobby.metrics.zmq_subscribers_dropped.add(1);
                    return Farewell::Told("a subscriber took nothing for too long".to_owned());
                }
            }
            let mut queue = lock(&subscriber.queue);
            queue.bytes = queue.bytes.saturating_sub(parcel.bytes().len());
            queue.events = queue.events.saturating_sub(parcel.events);
            self.queues.bytes.fetch_sub(parcel.bytes().len(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parcel(bytes: usize, events: u64) -> Parcel {
        Parcel { bytes: Bytes::Own(vec![0; bytes]), events }
    }

    #[test]
    fn what_waits_for_one_subscriber_is_bounded_to_the_byte_and_to_the_event() {
        let (queues, subscriber) = (Queues::default(), Subscriber::default());
        assert!(queues.put(&subscriber, parcel(ZMQ_QUEUE_BYTES - 10, 1)));
        assert!(!queues.put(&subscriber, parcel(11, 1)), "a byte too many");
        assert!(queues.put(&subscriber, parcel(10, 1)));
        assert!(!queues.put(&subscriber, parcel(1, 1)));
        assert_eq!(queues.bytes.load(Ordering::Relaxed), ZMQ_QUEUE_BYTES);
        let subscriber = Subscriber::default();
        assert!(queues.put(&subscriber, parcel(1, ZMQ_QUEUE_EVENTS - 1)));
        assert!(!queues.put(&subscriber, parcel(1, 2)), "an event too many");
        assert!(queues.put(&subscriber, parcel(1, 1)));
        assert!(!queues.put(&subscriber, parcel(1, 1)));
        // A parcel that is larger than any queue waits alone.
        let subscriber = Subscriber::default();
        assert!(queues.put(&subscriber, parcel(ZMQ_QUEUE_BYTES + 1, 1)));
        assert!(!queues.put(&subscriber, parcel(1, 1)));
    }

    #[test]
    fn what_waits_for_all_subscribers_is_bounded_to_the_byte() {
        const EACH: usize = ZMQ_QUEUE_BYTES - 1;
        let queues = Queues::default();
        let subscribers: Vec<Subscriber> =
            (0..=ZMQ_QUEUES_BYTES / EACH).map(|_| Subscriber::default()).collect();
        let (last, others) = subscribers.split_last().unwrap();
        for subscriber in others {
            assert!(queues.put(subscriber, parcel(EACH, 1)));
        }
        let left = ZMQ_QUEUES_BYTES - others.len() * EACH;
        assert!((2..EACH).contains(&left), "there is room in the last one's own queue: {left}");
        assert!(queues.put(last, parcel(1, 1)));
        assert!(!queues.put(last, parcel(left, 1)), "a byte too many");
        assert!(queues.put(last, parcel(left - 1, 1)));
        assert!(!queues.put(last, parcel(1, 1)));
        assert_eq!(queues.bytes.load(Ordering::Relaxed), ZMQ_QUEUES_BYTES);
    }
}
