//! The local socket: many short-lived and forking processes, one unix stream each.
//!
//! Each connection has a task. It takes frames in order and starts calls; a writing call goes to `intake` before the
//! next frame is looked at, so one peer's writes keep their order. Answers go out as they come ([`super::stream`]). A
//! peer that breaks the protocol is told so and dropped; the others and the daemon go on.
//!
//! # Bounds
//!
//! A frame's bytes are set aside out of [`SOCKET_BYTES_IN_FLIGHT`] before they are read, in lanes by size, so that a
//! peer with a slow giant holds up nobody's small calls; a tiny frame is read first, so that a peer that stalls
//! holds up nobody at all. Answers that wait to be read have at most [`ANSWER_BYTES_WAITING`]. Patience is bounded at
//! every step but one: between two frames a peer may be silent for as long as it likes.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use super::call::{Caller, Ctx, Run, find};
use super::stream::{Answers, Incoming, Outgoing};
use crate::door::Door;
use crate::limits::{
    ANSWER_BYTES_WAITING, PEER_CALLS_IN_FLIGHT, PEER_PATIENCE, PREAMBLE_PATIENCE, SOCKET_BYTES_IN_FLIGHT,
    SOCKET_PEERS_MAX, TINY_FRAME_BYTES, WIRE_FRAME_BYTES_MAX,
};
use crate::model::{Batch, Drafts};
use crate::store::{Done, Intake};
use crate::wire::call::{
    CallError, Request, VERSION, into_answer_frame, read_preamble, refusal_frame, version_frame,
};

/// A frame up to this size goes through the lane of small ones.
const SMALL_FRAME_BYTES: usize = 1024 * 1024;

/// Bytes that one permit of a lane stands for.
const PERMIT_BYTES: usize = 1024;

/// What all connections share.
struct House {
    ctx: Arc<Ctx>,
    intake: Intake,
    lanes: Lanes,
    answer_bytes: AtomicUsize,
}

/// Bytes of frames that may be under way, in lanes by size, and the time that a frame may take.
struct Lanes {
    tiny: Arc<Semaphore>,
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    patience: Duration,
}

impl Lanes {
    /// A third of `bytes` for each lane.
    fn new(bytes: usize, patience: Duration) -> Self {
        let lane = || Arc::new(Semaphore::new(bytes / 3 / PERMIT_BYTES));
        Self { tiny: lane(), small: lane(), large: lane(), patience }
    }
}

/// Serves connections until `stop` turns true, then lets calls under way finish.
pub async fn serve(door: Door, ctx: Arc<Ctx>, intake: Intake, stop: watch::Receiver<bool>) {
    let house = Arc::new(House {
        ctx,
        intake,
        lanes: Lanes::new(SOCKET_BYTES_IN_FLIGHT, PEER_PATIENCE),
        answer_bytes: AtomicUsize::new(0),
    });
    let turn_away = |stream: UnixStream| {
        house.ctx.metrics.peers_turned_away.add(1);
        let error = CallError::Unavailable(format!("{SOCKET_PEERS_MAX} connections are open already"));
        // Into the socket's empty buffer, or not at all.
        let _ = stream.try_write(&refusal_frame(None, &error));
    };
    let host = |stream| {
        house.ctx.metrics.peers.add(1);
        let (house, stop) = (house.clone(), stop.clone());
        async move {
            if let Err(error) = serve_peer(&house, stream, stop).await
                && error.kind() == io::ErrorKind::TimedOut
            {
                house.ctx.metrics.peers_deaf.add(1);
            }
        }
    };
    door.serve(SOCKET_PEERS_MAX, stop.clone(), turn_away, host).await;
}

/// The place of a call among those of its peer, and the bytes of its answer among all that wait.
struct Held {
    _place: OwnedSemaphorePermit,
    bytes: usize,
    house: Arc<House>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.house.answer_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

async fn serve_peer(house: &Arc<House>, stream: UnixStream, stop: watch::Receiver<bool>) -> io::Result<()> {
    let caller = Caller { uid: stream.peer_cred().ok().map(|who| who.uid()) };
    let (from, to) = stream.into_split();
    let mut from = Incoming::new(from);
    let peer = Peer {
        house: house.clone(),
        caller,
        answers: Arc::new(Answers::new(to, PEER_PATIENCE)),
        places: Arc::new(Semaphore::new(PEER_CALLS_IN_FLIGHT)),
    };
    let mut writing = pin!(peer.answers.write_out());
    let farewell = tokio::select! {
        taken = peer.take_requests(&mut from, stop) => taken,
        // A peer that takes no answers has nothing to ask either.
        gone = &mut writing => return gone,
    };
    tokio::select! {
        () = peer.say_farewell(farewell) => Ok(()),
        gone = &mut writing => gone,
    }
}

/// A connection, as its calls see it.
#[derive(Clone)]
struct Peer {
    house: Arc<House>,
    caller: Caller,
    answers: Arc<Answers<Held>>,
    /// Each call under way holds one, until its answer is out.
    places: Arc<Semaphore>,
}

/// Why a connection ends.
#[derive(Debug)]
enum Farewell {
    Told(CallError),
    Version(u16),
    Gone,
}

impl From<std::io::Error> for Farewell {
    fn from(_: std::io::Error) -> Self {
        Farewell::Gone
    }
}

fn broke(what: impl Into<String>) -> Farewell {
    Farewell::Told(CallError::Protocol(what.into()))
}

impl Peer {
    async fn take_requests(
        &self,
        from: &mut Incoming,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), Farewell> {
        let Ok(preamble) = timeout(PREAMBLE_PATIENCE, from.exactly()).await else {
            return Err(broke("no preamble came in time"));
        };
        match read_preamble(preamble?) {
            Some(VERSION) => {}
            Some(theirs) => return Err(Farewell::Version(theirs)),
            None => {
                return Err(broke(
                    "this socket speaks saltcellar's protocol, which begins with SCWIRE and a version",
                ));
            }
        }
        loop {
            // Between frames a peer may be silent for as long as it likes; the stop ends that.
            let header = tokio::select! {
                read = from.exactly() => read?,
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
            };
            let len = u32::from_be_bytes(header) as usize;
            if len > WIRE_FRAME_BYTES_MAX {
                return Err(broke(format!(
                    "a frame of {len} bytes exceeds the limit of {WIRE_FRAME_BYTES_MAX}"
                )));
            }
            let (payload, bytes) = self.house.lanes.take_payload(from, len).await?;
            let Ok(place) = self.places.clone().acquire_owned().await else { return Err(Farewell::Gone) };
            self.house.ctx.metrics.calls.add(1);
            start_call(self, payload, bytes, place).await.map_err(Farewell::Told)?;
        }
    }

    /// Says why the connection ends, if there is anything to say, and waits until every answer is out.
    async fn say_farewell(&self, farewell: Result<(), Farewell>) {
        let last_words = match farewell {
            Ok(()) | Err(Farewell::Gone) => None,
            Err(Farewell::Told(error)) => Some(refusal_frame(None, &error)),
            Err(Farewell::Version(theirs)) => Some(version_frame(theirs)),
        };
        if let Some(frame) = last_words {
            self.house.ctx.metrics.peers_dropped.add(1);
            let Ok(place) = self.places.clone().acquire_owned().await else { return };
            self.send(frame, place, 0);
        }
        let all = u32::try_from(PEER_CALLS_IN_FLIGHT).unwrap_or(u32::MAX);
        let _ = self.places.acquire_many(all).await;
    }

    /// Sends a frame; never waits. A peer that has nothing else under way waits for it, most likely.
    fn send(&self, frame: Vec<u8>, place: OwnedSemaphorePermit, bytes: usize) {
        let alone = self.places.available_permits() == PEER_CALLS_IN_FLIGHT - 1;
        let held = Held { _place: place, bytes, house: self.house.clone() };
        self.answers.send(Outgoing { frame, held }, alone);
    }
}

impl Lanes {
    /// Reads a frame's payload, with its bytes set aside.
    async fn take_payload(
        &self,
        from: &mut Incoming,
        len: usize,
    ) -> Result<(Vec<u8>, OwnedSemaphorePermit), Farewell> {
        if len > TINY_FRAME_BYTES {
            let bytes = self.set_aside(len).await?;
            return Ok((self.read_payload(from, len).await?, bytes));
        }
        let payload = match from.at_hand(len) {
            Some(payload) => payload,
            None => self.read_payload(from, len).await?,
        };
        Ok((payload, self.set_aside(len).await?))
    }

    async fn set_aside(&self, len: usize) -> Result<OwnedSemaphorePermit, Farewell> {
        let lane = match len {
            n if n <= TINY_FRAME_BYTES => &self.tiny,
            n if n <= SMALL_FRAME_BYTES => &self.small,
            _ => &self.large,
        };
        let permits = u32::try_from(len / PERMIT_BYTES + 1).unwrap_or(u32::MAX);
        let permit =
            timeout(self.patience, lane.clone().acquire_many_owned(permits)).await.map_err(|_| {
                let words = "too many bytes of calls are under way; try again later".to_owned();
                Farewell::Told(CallError::Unavailable(words))
            })?;
        permit.map_err(|_| Farewell::Gone)
    }

    async fn read_payload(&self, from: &mut Incoming, len: usize) -> Result<Vec<u8>, Farewell> {
        match timeout(self.patience, from.rest(len)).await {
            Err(_) => Err(broke("a frame that was begun did not end in time")),
            Ok(read) => Ok(read?),
        }
    }
}

/// Starts a call; returns once its place among the peer's writes is settled.
async fn start_call(
    peer: &Peer,
    payload: Vec<u8>,
    bytes: OwnedSemaphorePermit,
    place: OwnedSemaphorePermit,
) -> Result<(), CallError> {
    let request = Request::read(&payload)?;
    let house = &peer.house;
    let reply = Reply { id: request.id, place, peer: peer.clone() };
    let Some(call) = find(request.call) else {
        reply.send(Err(CallError::UnknownCall(request.call.to_owned())));
        return Ok(());
    };
    if let Err(denied) = house.ctx.rights.check(call, &request.args, peer.caller, &house.ctx.metrics) {
        reply.send(Err(denied));
        return Ok(());
    }
    match &call.run {
        run @ (Run::Read(_) | Run::Act(_)) => {
            let (house, caller) = (house.clone(), peer.caller);
            tokio::task::spawn_blocking(move || {
                // A panic is a fault of ours; the caller is told instead of left waiting.
                let work = || {
                    let request = Request::read(&payload)?;
                    run.answer(&house.ctx, &request.args, caller)
                };
                let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
                    Err(CallError::Internal("the call ended by a panic, see the daemon's log".to_owned()))
                });
                drop((payload, bytes));
                reply.send(outcome);
            });
        }
        Run::Write(run) => {
            let mut drafts = Drafts::within(&payload);
            let made = run(&house.ctx, &request.args, &mut drafts);
            let loose = drafts.loose();
            match made {
                Err(error) => reply.send(Err(error)),
                Ok(answer) if loose.is_empty() => reply.send(Ok(answer)),
                Ok(answer) => submit(house, loose.into_batch(payload), answer, bytes, reply).await,
            }
        }
    }
    Ok(())
}

/// Hands entries to the appender; the answer goes out once they are on disk.
async fn submit(house: &House, batch: Batch, answer: Vec<u8>, bytes: OwnedSemaphorePermit, reply: Reply) {
    let done: Done = Box::new(move |stored: Result<(), String>| {
        drop(bytes);
        reply.send(stored.map(|()| answer).map_err(CallError::Unavailable));
    });
    super::submit::submit(&house.intake, batch, done).await;
}

/// Where the answer of one call goes.
struct Reply {
    id: u64,
    place: OwnedSemaphorePermit,
    peer: Peer,
}

impl Reply {
    /// Sends the answer; never waits. A peer that is gone gets none.
    fn send(self, outcome: Result<Vec<u8>, CallError>) {
        let Self { id, place, peer } = self;
        let house = &peer.house;
        let refuse = |error: &CallError| {
            if !matches!(error, CallError::Refused(_) | CallError::TooLarge { .. }) {
                house.ctx.metrics.calls_failed.add(1);
            }
            refusal_frame(Some(id), error)
        };
        let mut frame = match outcome {
            Ok(value) => into_answer_frame(id, value),
            Err(error) => refuse(&error),
        };
        let waiting = house.answer_bytes.fetch_add(frame.len(), Ordering::AcqRel);
        let mut bytes = frame.len();
        if waiting > 0 && waiting + bytes > ANSWER_BYTES_WAITING {
            house.answer_bytes.fetch_sub(bytes, Ordering::AcqRel);
            frame = refuse(&CallError::Unavailable(
                "too many answers wait to be read; try again later".to_owned(),
            ));
            bytes = 0;
        }
        peer.send(frame, place, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;

    const MIB: usize = 1024 * 1024;

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // A limit that does not hold makes a test wait for ever.
        runtime.block_on(async { timeout(Duration::from_secs(30), work).await.expect("the test hangs") })
    }

    /// A peer that has sent so many bytes of a frame, and the daemon's end of its connection.
    fn peer_that_sent(bytes: usize) -> (UnixStream, Incoming) {
        let (theirs, ours) = UnixStream::pair().unwrap();
        let sent = theirs.try_write(&vec![0; bytes]).unwrap();
        assert_eq!(sent, bytes, "the socket's buffer holds it");
        (theirs, Incoming::new(ours.into_split().0))
    }

    fn last_words(outcome: Result<(Vec<u8>, OwnedSemaphorePermit), Farewell>) -> String {
        match outcome {
            Err(Farewell::Told(error)) => error.to_string(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_frame_is_not_read_while_its_bytes_do_not_fit_beside_those_of_others() {
        const LEN: usize = 2 * MIB;
        run(async {
            let lanes = Lanes::new(9 * MIB, Duration::from_secs(20));
            let (_first_peer, mut first) = peer_that_sent(1000);
            let (mut second_peer, mut second) = peer_that_sent(1000);
            let mut first = Box::pin(lanes.take_payload(&mut first, LEN));
            let mut second = Box::pin(lanes.take_payload(&mut second, LEN));
            // The first has its bytes set aside when it waits for more of them.
            let rest = vec![0; LEN - 1000];
            let sending = second_peer.write_all(&rest);
            let mut sending = Box::pin(sending);
            for _ in 0..20_000 {
                tokio::select! {
                    biased;
                    _ = &mut first => panic!("the first frame has not come whole"),
                    _ = &mut second => panic!("the second frame was read without room for it"),
                    _ = &mut sending => panic!("the second frame's bytes were read without room for it"),
                    () = tokio::task::yield_now() => {}
                }
            }
            // It leaves in the middle of its frame.
            drop(first);
            let (sent, taken) = tokio::join!(sending, second);
            sent.unwrap();
            assert_eq!(taken.unwrap().0.len(), LEN);
            assert_eq!(lanes.large.available_permits(), 3 * MIB / PERMIT_BYTES, "all are given back");
        });
    }

    #[test]
    fn the_bytes_of_a_frame_are_counted_to_the_last_permit() {
        run(async {
            let lanes = Lanes::new(9 * MIB, Duration::from_millis(20));
            let largest = 3 * MIB - 1;
            let all = lanes.set_aside(largest).await.unwrap();
            assert_eq!(lanes.large.available_permits(), 0);
            let (_peer, mut from) = peer_that_sent(0);
            let words = last_words(lanes.take_payload(&mut from, SMALL_FRAME_BYTES + 1).await);
            assert!(words.contains("too many bytes of calls are under way"), "{words}");
            // Smaller frames have lanes of their own.
            drop((
                lanes.set_aside(SMALL_FRAME_BYTES).await.unwrap(),
                lanes.set_aside(TINY_FRAME_BYTES).await.unwrap(),
            ));
            drop(all);
            let words = last_words(lanes.take_payload(&mut from, largest + 1).await);
            assert!(words.contains("too many bytes"), "more than there is altogether: {words}");
        });
    }

    #[test]
    fn a_frame_that_was_begun_and_does_not_end_is_given_up() {
        run(async {
            let lanes = Lanes::new(9 * MIB, Duration::from_millis(20));
            for len in [10, TINY_FRAME_BYTES + 1, SMALL_FRAME_BYTES + 1] {
                let (_peer, mut from) = peer_that_sent(9);
                let words = last_words(lanes.take_payload(&mut from, len).await);
                assert!(words.contains("did not end in time"), "{len}: {words}");
                let (_peer, mut from) = peer_that_sent(0);
                let words = last_words(lanes.take_payload(&mut from, len).await);
                assert!(words.contains("did not end in time"), "{len}: {words}");
            }
        });
    }
}
