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
    tiny: Arc<Semaphore>,
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    answer_bytes: AtomicUsize,
}

/// Serves connections until `stop` turns true, then lets calls under way finish.
pub async fn serve(door: Door, ctx: Arc<Ctx>, intake: Intake, stop: watch::Receiver<bool>) {
    let lane = || Arc::new(Semaphore::new(SOCKET_BYTES_IN_FLIGHT / 3 / PERMIT_BYTES));
    let house = Arc::new(House {
        ctx,
        intake,
        tiny: lane(),
        small: lane(),
        large: lane(),
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
            let (payload, bytes) = take_payload(&self.house, from, len).await?;
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

/// Reads a frame's payload, with its bytes set aside.
async fn take_payload(
    house: &House,
    from: &mut Incoming,
    len: usize,
) -> Result<(Vec<u8>, OwnedSemaphorePermit), Farewell> {
    let lane = match len {
        n if n <= TINY_FRAME_BYTES => &house.tiny,
        n if n <= SMALL_FRAME_BYTES => &house.small,
        _ => &house.large,
    };
    let set_aside = async || {
        let permits = u32::try_from(len / PERMIT_BYTES + 1).unwrap_or(u32::MAX);
        let permit =
            timeout(PEER_PATIENCE, lane.clone().acquire_many_owned(permits)).await.map_err(|_| {
                let words = "too many bytes of calls are under way; try again later".to_owned();
                Farewell::Told(CallError::Unavailable(words))
            })?;
        permit.map_err(|_| Farewell::Gone)
    };
    if len > TINY_FRAME_BYTES {
        let bytes = set_aside().await?;
        return Ok((read_payload(from, len).await?, bytes));
    }
    let payload = match from.at_hand(len) {
        Some(payload) => payload,
        None => read_payload(from, len).await?,
    };
    Ok((payload, set_aside().await?))
}

async fn read_payload(from: &mut Incoming, len: usize) -> Result<Vec<u8>, Farewell> {
    match timeout(PEER_PATIENCE, from.rest(len)).await {
        Err(_) => Err(broke("a frame that was begun did not end in time")),
        Ok(read) => Ok(read?),
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
                    match run {
                        Run::Read(run) => run(&house.ctx, &request.args),
                        Run::Act(run) => run(&house.ctx, &request.args, caller),
                        Run::Write(_) => Err(CallError::Internal("a writing call went astray".to_owned())),
                    }
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
