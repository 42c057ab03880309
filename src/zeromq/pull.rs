//! The PULL: events from any program that has a ZeroMQ PUSH socket.
//!
//! A message is one frame, `tag`, two newlines and a msgpack map, or two frames, tag and map. What is neither is counted and
//! passed over, and its sender goes on.
//!
//! # Backpressure
//!
//! Each connection has a task that reads a little, hands it to `intake`, and waits while there is no room; while the disk is
//! too full to store, too. So the socket's buffer fills, libzmq's PUSH reaches its high-water mark, and the program that
//! sends is slowed: nothing is dropped. A frame over [`ZMQ_READ_BYTES`] is read once its bytes fit into
//! [`ZMQ_BYTES_IN_FLIGHT`], and must then come to an end in time.
//!
//! # What is acknowledged
//!
//! Nothing: PUSH and PULL know no answers. An orderly stop stores all that was written to the socket. A kill takes what lay
//! in the socket's buffer and in `intake`, and libzmq itself forgets what it had begun to write when a connection ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::peer::{Farewell, Lobby, Says};
use crate::channel::Refused;
use crate::clock::Clock;
use crate::door::{Door, Place, SocketError, Watch};
use crate::ingest::gate::Gate;
use crate::limits::{ENTRY_BYTES_MAX, PEER_PATIENCE, ZMQ_BYTES_IN_FLIGHT, ZMQ_READ_BYTES};
use crate::metrics::Metrics;
use crate::model::{Batch, Entry, Source};
use crate::store::{Done, Intake, Store};
use crate::wire::msgpack::Reader;
use crate::wire::salt_event;
use crate::wire::zmtp::{self, Command, Message, Piece, SocketType, Splitter, read_command};

/// Bytes that one permit stands for.
const PERMIT_BYTES: usize = 1024;

/// How often a task that cannot go on looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The same, while the disk is full.
const LOOK_AGAIN_DISK: Duration = Duration::from_millis(50);

/// The bytes set aside for a large message, and by when it must have come.
type Giant = (OwnedSemaphorePermit, Instant);

/// The door, bound.
pub struct Pull {
    door: Door,
    house: Arc<House>,
}

struct House {
    lobby: Arc<Lobby>,
    intake: Intake,
    store: Store,
    clock: Clock,
    gate: Arc<Gate>,
    giants: Giants,
    malformed: Says,
}

/// Bytes that unfinished large messages of all connections may have.
struct Giants(Arc<Semaphore>);

impl Pull {
    /// Binds the socket. Must run inside a tokio runtime.
    pub fn open(
        place: &Place<'_>,
        gate: Arc<Gate>,
        (intake, store): (Intake, Store),
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Result<Self, SocketError> {
        let door = Door::open(place)?;
        let watch = Watch::new("pull", place.path);
        // Room for a tag beside the largest body: what is a little too large is passed over, not the end.
        let lobby = Lobby::new(SocketType::Pull, ENTRY_BYTES_MAX + ZMQ_READ_BYTES, watch, metrics);
        let giants = Giants(Arc::new(Semaphore::new(ZMQ_BYTES_IN_FLIGHT / PERMIT_BYTES)));
        let malformed = Says::default();
        let house = House { lobby, intake, store, clock, gate, giants, malformed };
        Ok(Self { door, house: Arc::new(house) })
    }

    /// A view of how it stands.
    pub fn watch(&self) -> Watch {
        self.house.lobby.watch.clone()
    }

    /// Takes events until `stop` turns true, then what has been written to the socket by then.
    pub async fn serve(self, stop: watch::Receiver<bool>) {
        let Self { door, house } = self;
        let lobby = house.lobby.clone();
        let peers_stop = stop.clone();
        let work = move |stream, splitter| {
            let (house, stop) = (house.clone(), peers_stop.clone());
            async move { house.take(stream, splitter, stop).await }
        };
        lobby.serve(door, stop, work).await;
    }
}

impl House {
    /// One connection, from behind its READY to its end.
    async fn take(
        &self,
        mut stream: UnixStream,
        mut splitter: Splitter,
        mut stop: watch::Receiver<bool>,
    ) -> Farewell {
        let farewell = match self.read(&mut stream, &mut splitter, &mut stop).await {
            Ok(()) => Farewell::Gone,
            Err(farewell) => farewell,
        };
        if splitter.waiting() > 0 {
            self.lobby.metrics.zmq_messages_cut.add(1);
        }
        if let Farewell::Told(why) = &farewell {
            let _ = timeout(PEER_PATIENCE, stream.write_all(&zmtp::error(why))).await;
        }
        farewell
    }

    async fn read(
        &self,
        stream: &mut UnixStream,
        splitter: &mut Splitter,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<(), Farewell> {
        let mut stopping = false;
        let mut giant = None;
        loop {
            let mut answers = Vec::new();
            let (batch, cut) = self.messages(splitter, &mut answers);
            if !batch.is_empty() {
                self.submit(batch, stop).await?;
            }
            cut?;
            if !answers.is_empty() {
                timeout(PEER_PATIENCE, stream.write_all(&answers)).await.map_err(|_| Farewell::Gone)??;
            }
            let missing = splitter.missing();
            giant = self.giants.set_aside(splitter.waiting() + missing, giant).await?;
            let patience = giant.as_ref().map(|(_, until)| *until);
            tokio::select! {
                ready = stream.readable() => ready?,
                () = end_of(patience) => {
                    return Err(Farewell::Told("a message that was begun did not end in time".to_owned()));
                }
                _ = stop.wait_for(|stop| *stop), if !stopping => {
                    stopping = true;
                    // What the peer has written can still be read; more it cannot write.
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

    /// The whole messages that have come, as a batch, and whether the stream can go on behind them.
    fn messages(&self, splitter: &mut Splitter, answers: &mut Vec<u8>) -> (Batch, Result<(), Farewell>) {
        let at = self.clock.now();
        let mut batch = Batch::default();
        loop {
            let message = match splitter.next_piece() {
                Ok(Some(Piece::Message(message))) => message,
                Ok(Some(Piece::Command(command))) => {
                    if let Some(Command::Ping(context)) = read_command(command) {
                        answers.extend_from_slice(&zmtp::pong(context));
                    }
                    continue;
                }
                Ok(None) => return (batch, Ok(())),
                Err(error) => return (batch, Err(error.into())),
            };
            let Some((tag, data)) = event(&message) else {
                self.pass_over(&message);
                continue;
            };
            let take = |entry: &Entry<'_>, prints| batch.push(entry, Some(prints));
            // What is refused has been counted and said there; to its sender, what a rule leaves out is as good as stored.
            if self.gate.event(tag, data, Source::Zeromq, at, take).is_err() {
                self.lobby.watch.drop_events(1);
            }
        }
    }

    fn pass_over(&self, message: &Message<'_>) {
        self.lobby.metrics.zmq_messages_malformed.add(1);
        self.lobby.watch.drop_events(1);
        if let Some(times) = self.malformed.is_time() {
            let begins = message.first.get(..message.first.len().min(40)).unwrap_or_default();
            let begins = begins.escape_ascii().to_string();
            tracing::warn!(
                times,
                frames = message.frames,
                begins,
                "a ZeroMQ message is no event: one frame with tag, two newlines and a msgpack map, or two frames with tag and map"
            );
        }
    }

    /// Hands a batch over, waiting for room as long as it takes: that is what slows the sender.
    async fn submit(&self, mut batch: Batch, stop: &watch::Receiver<bool>) -> Result<(), Farewell> {
        let events = batch.len() as u64;
        let (metrics, watch) = (self.lobby.metrics.clone(), self.lobby.watch.clone());
        let mut done: Option<Done> = Some(Box::new(move |stored: Result<(), String>| {
            if stored.is_err() {
                metrics.zmq_events_lost.add(events);
                watch.drop_events(events);
            }
        }));
        // The end of the daemon does not wait for room on the disk; then the refusal counts these as lost.
        while self.store.refusal().is_some() && !*stop.borrow() {
            sleep(LOOK_AGAIN_DISK).await;
        }
        loop {
            match self.intake.try_submit(batch, done) {
                Ok(()) => {
                    self.lobby.metrics.zmq_events.add(events);
                    self.lobby.watch.count(events);
                    return Ok(());
                }
                Err(Refused::Full(back)) => (batch, done) = back,
                Err(Refused::Closed((_, done))) => {
                    if let Some(done) = done {
                        done(Err("the daemon is stopping".to_owned()));
                    }
                    return Err(Farewell::Gone);
                }
            }
            sleep(LOOK_AGAIN).await;
        }
    }
}

impl Giants {
    /// Sets bytes aside for an unfinished message, if it is a giant, waiting until others have let go of theirs. One that
    /// grows while it comes has less patience: two of them might wait for one another.
    async fn set_aside(&self, bytes: usize, held: Option<Giant>) -> Result<Option<Giant>, Farewell> {
        if bytes <= ZMQ_READ_BYTES {
            return Ok(None);
        }
        let wanted = bytes / PERMIT_BYTES + 1;
        let have = held.as_ref().map_or(0, |(permit, _)| permit.num_permits());
        let more = u32::try_from(wanted.saturating_sub(have)).unwrap_or(u32::MAX);
        let acquire = self.0.clone().acquire_many_owned(more);
        let Some((mut permit, until)) = held else {
            let permit = acquire.await.map_err(|_| Farewell::Gone)?;
            return Ok(Some((permit, Instant::now() + PEER_PATIENCE)));
        };
        if more > 0 {
            let crowded = || Farewell::Told("too many large messages are under way".to_owned());
            permit
                .merge(timeout_at(until, acquire).await.map_err(|_| crowded())?.map_err(|_| Farewell::Gone)?);
        }
        Ok(Some((permit, until)))
    }
}

async fn end_of(patience: Option<Instant>) {
    match patience {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// Tag and data of a message, if it is an event: a tag, and one whole msgpack map.
pub fn event<'a>(message: &Message<'a>) -> Option<(&'a [u8], &'a [u8])> {
    let (tag, data) = match (message.frames, message.second) {
        (1, _) => salt_event::split(message.first)?,
        (2, Some(data)) => (message.first, data),
        _ => return None,
    };
    let mut reader = Reader::new(data);
    let is_map = matches!(data.first(), Some(0x80..=0x8f | 0xde | 0xdf));
    let whole = is_map && reader.value().is_ok() && reader.rest().is_empty();
    // In two frames a tag could have the newlines that end it.
    let has_end = memchr::memmem::find(tag, b"\n\n").is_some();
    (whole && !tag.is_empty() && !has_end).then_some((tag, data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_unfinished_large_messages_are_bounded() {
        const MIB: usize = 1024 * 1024;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let giants = Giants(Arc::new(Semaphore::new(2 * MIB / PERMIT_BYTES)));
            assert!(
                giants.set_aside(ZMQ_READ_BYTES, None).await.unwrap().is_none(),
                "a small one needs no room"
            );
            let first = giants.set_aside(ZMQ_READ_BYTES + 1, None).await.unwrap().unwrap();
            // It grows as it comes, up to all there is.
            let (first, _) = giants.set_aside(2 * MIB - 1, Some(first)).await.unwrap().unwrap();
            assert_eq!((first.num_permits(), giants.0.available_permits()), (2 * MIB / PERMIT_BYTES, 0));
            // Another one is not read for as long.
            let mut second = Box::pin(giants.set_aside(ZMQ_READ_BYTES + 1, None));
            tokio::select! {
                biased;
                _ = &mut second => panic!("a second large message was read beside the first"),
                () = tokio::task::yield_now() => {}
            }
            // Nor for ever, if it has room and needs more.
            let late = (first, Instant::now());
            let crowded = giants.set_aside(2 * MIB, Some(late)).await;
            assert!(
                matches!(crowded, Err(Farewell::Told(why)) if why == "too many large messages are under way")
            );
            assert!(second.await.unwrap().is_some());
        });
    }

    #[test]
    fn an_event_is_a_tag_and_a_whole_map() {
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
